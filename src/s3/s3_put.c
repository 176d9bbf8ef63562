/* s3_put.c - put and drop. A put looks whether the same text is there already; then it writes
 * record and KV as one object, in one request or, where it is large, in parts of an upload that
 * becomes an object when all of it is there. A writer that dies on the way leaves no object; what
 * it leaves of an upload the bucket's own rules remove (docs/remote.md). Bytes are read from the
 * caller's cells as they are sent: nothing is collected here. */
#include "s3/s3.h"

#include <stdio.h>

#define UPLOAD_PARTS_MAX 10000u /* as S3 has it */
#define TAIL_MS 5000u           /* for the last word of an upload that failed */

struct s3_put {
    struct tsri_s3 *s;
    struct tsri_s3_lane *lane;
    struct tsr_tier_io *io;
    struct tsri_parcel parcel;
    uint8_t *record;
    uint64_t total;
    /* an upload in parts */
    char upload[3 * TSRI_S3_TOKEN_BYTES]; /* its id, escaped */
    uint64_t part_bytes;
    uint32_t n_parts, next;
    char (*etags)[TSRI_S3_ETAG_BYTES];
    int err;
};

static struct tsri_s3_http_req *request(struct s3_put *p, enum tsri_s3_http_method method,
                                        const char *query)
{
    struct tsri_s3_http_req *req = p->lane->free;
    const struct tsr_entry_head *h = &p->parcel.head;
    tsri_s3_req_entry(p->s, req, method, &h->key, h->space);
    size_t n = strlen(req->url);
    snprintf(req->url + n, sizeof req->url - n, "%s", query);
    req->deadline_ns = p->io->deadline_ns;
    return req;
}

/* Bytes [begin, end) of the object as the body of a request. */
static void set_body(struct s3_put *p, struct tsri_s3_http_req *req, uint64_t begin, uint64_t end)
{
    uint64_t record_bytes = p->parcel.record_bytes;
    uint64_t cut = end < record_bytes ? end : record_bytes;
    if (begin < cut) req->bodies[0] = tsri_stream_flat(p->record + begin, cut - begin);
    if (end <= record_bytes) return;
    struct tsri_extent kv = {begin > record_bytes ? begin - record_bytes : 0, end - record_bytes};
    req->bodies[1] = tsri_stream_kv(&p->parcel, p->io->planes, kv);
}

/* ---- is it there already? ---- */

/* 1 when the same text is there, whole; 0 when not; else an error that ends the put. */
static int look(struct s3_put *p)
{
    const struct tsr_entry_head *h = &p->parcel.head;
    struct tsri_region *room = &p->lane->records[1];
    if (tsri_absent_has(&p->s->absent, &h->key, h->space)) return 0;
    int err = tsri_region_need(room, p->parcel.record_bytes);
    if (err) return err;
    struct tsri_s3_http_req *req = request(p, TSRI_S3_HTTP_GET, "");
    req->range = (struct tsri_extent){0, p->parcel.record_bytes};
    req->sinks[0] = tsri_stream_flat(room->data, p->parcel.record_bytes);
    err = tsri_s3_ask(p->s, p->lane, req);
    if (err == TSR_ENOENT || err == TSR_ECORRUPT) return 0; /* or a stranger's: replaced */
    if (err) return err;
    struct tsri_parcel old;
    return req->total == p->total && tsri_parcel_read(room->data, req->bytes, &old) == 0 &&
           old.record_bytes == p->parcel.record_bytes &&
           tsri_parcel_same_text(room->data, p->record, &p->parcel);
}

/* ---- in one request ---- */

static int put_whole(struct s3_put *p)
{
    struct tsri_s3_http_req *req = request(p, TSRI_S3_HTTP_PUT, "");
    set_body(p, req, 0, p->total);
    return tsri_s3_ask(p->s, p->lane, req);
}

/* ---- in parts ---- */

static enum tsri_s3_make part_make(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_put *p = flow->arg;
    char query[sizeof p->upload + 64];
    if (p->err || p->next == p->n_parts) return TSRI_S3_END;
    snprintf(query, sizeof query, "?partNumber=%u&uploadId=%s", p->next + 1, p->upload);
    (void)request(p, TSRI_S3_HTTP_PUT, query); /* fills lane->free, which req is */
    uint64_t begin = p->next * p->part_bytes, end = begin + p->part_bytes;
    set_body(p, req, begin, end < p->total ? end : p->total);
    req->arg = p;
    req->number = p->next++;
    return TSRI_S3_MADE;
}

static void part_answered(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_put *p = flow->arg;
    if (p->err) return;
    p->err = tsri_s3_error(flow->s, req);
    size_t n = strlen(req->etag);
    if (!p->err && (n == 0 || strcspn(req->etag, "<>&") != n))
        p->err = tsri_fail(TSR_EIO, "s3: response to a part has no ETag");
    if (p->err)
        tsri_s3_flow_cancel(flow, p);
    else
        memcpy(p->etags[req->number], req->etag, sizeof req->etag);
}

static int begin_upload(struct s3_put *p)
{
    char id[TSRI_S3_TOKEN_BYTES];
    struct tsri_s3_http_req *req = request(p, TSRI_S3_HTTP_POST, "?uploads=");
    int err = tsri_region_need(&p->lane->reply, TSRI_S3_REPLY_MAX);
    if (err) return err;
    req->sinks[0] = tsri_stream_flat(p->lane->reply.data, TSRI_S3_REPLY_MAX);
    err = tsri_s3_ask(p->s, p->lane, req);
    if (err) return err;
    if (!tsri_s3_element(tsri_s3_http_expat(p->s->http), (const char *)p->lane->reply.data,
                         req->bytes, "UploadId", id, sizeof id) ||
        !id[0] || !tsri_s3_escape(p->upload, sizeof p->upload, id))
        return tsri_fail(TSR_EIO, "s3: response to an upload has no id");
    return 0;
}

/* The list of parts, which makes an object of them. The server may say 200 and fail afterwards. */
static int end_upload(struct s3_put *p)
{
    char query[sizeof p->upload + 32], *text = (char *)p->lane->reply.data;
    size_t n = 0, n_max = TSRI_S3_REPLY_MAX;
    n += (size_t)snprintf(text, n_max, "<CompleteMultipartUpload>");
    for (uint32_t i = 0; i < p->n_parts; i++)
        n += (size_t)snprintf(text + n, n_max - n,
                              "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", i + 1,
                              p->etags[i]);
    n += (size_t)snprintf(text + n, n_max - n, "</CompleteMultipartUpload>");
    snprintf(query, sizeof query, "?uploadId=%s", p->upload);
    struct tsri_s3_http_req *req = request(p, TSRI_S3_HTTP_POST, query);
    char answer[4096];
    req->bodies[0] = tsri_stream_flat(text, n);
    req->sinks[0] = tsri_stream_flat(answer, sizeof answer);
    int err = tsri_s3_ask(p->s, p->lane, req);
    if (err) return err;
    char code[TSRI_S3_CODE_BYTES];
    if (!tsri_s3_element(tsri_s3_http_expat(p->s->http), answer, req->bytes, "Code", code,
                         sizeof code))
        return 0;
    atomic_fetch_add(&p->s->errors, 1);
    return tsri_fail(TSR_EIO, "s3: the upload was not accepted");
}

/* Whatever becomes of it: the put has failed already. */
static void abort_upload(struct s3_put *p)
{
    char query[sizeof p->upload + 32];
    snprintf(query, sizeof query, "?uploadId=%s", p->upload);
    struct tsri_s3_http_req *req = request(p, TSRI_S3_HTTP_DELETE, query);
    req->deadline_ns = tsri_now_ns() + (uint64_t)TAIL_MS * 1000000;
    if (tsri_breaker_closed(&p->s->reach)) (void)!tsri_s3_ask(p->s, p->lane, req);
}

static int put_in_parts(struct s3_put *p)
{
    p->part_bytes = p->s->upload_bytes;
    while ((p->total + p->part_bytes - 1) / p->part_bytes > UPLOAD_PARTS_MAX)
        p->part_bytes *= 2;
    p->n_parts = (uint32_t)((p->total + p->part_bytes - 1) / p->part_bytes);
    int err = tsri_region_need(&p->lane->records[2], p->n_parts * sizeof p->etags[0]);
    if (!err) err = begin_upload(p);
    if (err) return err;
    p->etags = (char(*)[TSRI_S3_ETAG_BYTES])(void *)p->lane->records[2].data;
    struct tsri_s3_flow flow = {.s = p->s,
                                .lane = p->lane,
                                .window = p->s->connections,
                                .arg = p,
                                .make = part_make,
                                .answered = part_answered};
    tsri_s3_flow_run(&flow);
    err = p->err ? p->err : end_upload(p);
    if (err) abort_upload(p);
    return err;
}

/* ---- put ---- */

static int put_one(struct s3_put *p)
{
    struct tsri_s3 *s = p->s;
    struct tsri_region *room = &p->lane->records[0];
    if (p->io->deadline_ns && tsri_now_ns() >= p->io->deadline_ns)
        return tsri_fail(TSR_ETIME, "s3: put missed its deadline");
    uint64_t nonce = atomic_fetch_add(&s->nonce, 0x9E3779B97F4A7C15u);
    int err = tsri_parcel_init(&p->parcel, &p->io->head, nonce, s->part_bytes);
    if (!err) err = tsri_region_need(room, p->parcel.record_bytes);
    if (err) return err;
    p->record = room->data;
    p->total = p->parcel.record_bytes + p->parcel.kv_bytes;
    tsri_parcel_fill(p->record, &p->parcel, p->io->tokens, p->io->extra);
    err = look(p);
    if (err < 0) return err;
    if (err == 0) {
        tsri_parcel_sum(p->record, &p->parcel, p->io->planes, 0, tsri_parcel_cells(&p->parcel));
        tsri_parcel_seal(p->record, &p->parcel);
        err = p->total <= s->upload_bytes ? put_whole(p) : put_in_parts(p);
        if (err) return err;
        atomic_fetch_add(&s->written_bytes, p->total);
        tsri_breaker_worked(&s->writes);
    }
    const struct tsr_entry_head *h = &p->parcel.head;
    tsri_absent_remove(&s->absent, &h->key, h->space);
    tsri_s3_index_add(&s->index, &h->key, h->space, p->total);
    p->io->loc = 1;
    return 0;
}

int tsri_s3_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tsri_s3 *s = (struct tsri_s3 *)tier;
    int err = tsri_s3_usable(s), n_ok = 0;
    if (err) return err;
    if (s->read_only) return tsri_fail(TSR_EPERM, "s3: opened read-only");
    if (!tsri_breaker_try(&s->writes)) return tsri_fail(TSR_EIO, "s3: rejects writes for now");
    struct tsri_s3_lane *lane = tsri_s3_lane_take(s, io[0].deadline_ns);
    if (!lane) return tsri_fail(TSR_ETIME, "s3: timed out waiting for a connection");
    for (size_t i = 0; i < n; i++) {
        struct s3_put p = {.s = s, .lane = lane, .io = &io[i]};
        io[i].result = tsri_s3_usable(s);
        if (!io[i].result) io[i].result = put_one(&p);
        n_ok += io[i].result == 0;
    }
    tsri_s3_lane_give(s, lane);
    return n_ok;
}

/* ---- drop ---- */

#define DROP_GROUP 64u

/* First who is there, then those are deleted: a DELETE does not say whether there was anything. */
struct s3_drop {
    const struct tsr_tier_ref *refs;
    bool there[DROP_GROUP];
    bool deleting;
    uint32_t n, next;
    uint64_t deadline_ns;
    int n_dropped, err;
};

static enum tsri_s3_make drop_make(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_drop *d = flow->arg;
    while (d->deleting && d->next < d->n && !d->there[d->next])
        d->next++;
    if (d->next == d->n) return TSRI_S3_END;
    const struct tsr_tier_ref *ref = &d->refs[d->next];
    tsri_s3_req_entry(flow->s, req, d->deleting ? TSRI_S3_HTTP_DELETE : TSRI_S3_HTTP_HEAD,
                      &ref->key, ref->space);
    req->deadline_ns = d->deadline_ns;
    req->number = d->next++;
    return TSRI_S3_MADE;
}

static void drop_answered(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_drop *d = flow->arg;
    const struct tsr_tier_ref *ref = &d->refs[req->number];
    int err = tsri_s3_error(flow->s, req);
    d->there[req->number] = err == 0;
    if (err && err != TSR_ENOENT) {
        if (!d->err) d->err = err;
        return;
    }
    if (!err && !d->deleting) return;
    tsri_s3_index_remove(&flow->s->index, &ref->key, ref->space);
    tsri_absent_add(&flow->s->absent, &ref->key, ref->space);
    d->n_dropped += err == 0;
}

int tsri_s3_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct tsri_s3 *s = (struct tsri_s3 *)tier;
    int err = tsri_s3_usable(s), n_dropped = 0;
    if (err) return err;
    if (s->read_only) return tsri_fail(TSR_EPERM, "s3: opened read-only");
    struct tsri_s3_lane *lane = tsri_s3_lane_take(s, tsri_s3_deadline(s));
    if (!lane) return tsri_fail(TSR_ETIME, "s3: timed out waiting for a connection");
    for (size_t i = 0; i < n; i += DROP_GROUP) {
        struct s3_drop d = {.refs = refs + i, .deadline_ns = tsri_s3_deadline(s)};
        d.n = n - i < DROP_GROUP ? (uint32_t)(n - i) : DROP_GROUP;
        struct tsri_s3_flow flow = {.s = s,
                                    .lane = lane,
                                    .window = 2 * s->connections,
                                    .arg = &d,
                                    .make = drop_make,
                                    .answered = drop_answered};
        tsri_s3_flow_run(&flow);
        d.deleting = true;
        d.next = 0;
        tsri_s3_flow_run(&flow);
        n_dropped += d.n_dropped;
        if (d.err) err = d.err;
    }
    tsri_s3_lane_give(s, lane);
    return n_dropped == 0 && err ? err : n_dropped;
}
