/* s3_get.c - get, contains and scan. A get knows the shape of what it wants, so it asks for the
 * record and for ranges of the KV all at once, without waiting for the record: an entry costs one
 * round trip. Bytes go to the caller's cells as they come; nothing is handed on before the record
 * is there and the sums of all cells up to it are right. Where the record turns out longer than
 * expected (extra bytes) the ranges were wrong and are asked for once more. */
#include "s3/s3.h"

#include <stdio.h>

struct s3_get_job {
    struct tsr_tier_io *io; /* NULL: free */
    struct tsri_parcel cut; /* in ranges of our own size, whatever parts the writer had */
    uint8_t *record;
    uint64_t *sums; /* behind it; see tsri_stream */
    struct tsri_arrivals arrivals;
    char etag[TSRI_S3_ETAG_BYTES];
    uint32_t next, n_flying; /* ranges: to be asked for, and under way */
    bool known;              /* the record is there and is what was asked for */
    bool odd;                /* a range was not as expected: the record will say why */
    int err;
};

struct s3_get {
    struct tsr_tier_io *io;
    size_t n, next;
    bool second;               /* the second time, for those whose record is longer */
    struct s3_get_job *making; /* whose ranges are asked for now */
    struct s3_get_job jobs[TSRI_S3_JOBS];
    int n_ok;
};

/* ---- one entry ---- */

static void get_finish(struct tsri_s3 *s, struct s3_get *get, struct s3_get_job *job)
{
    struct tsr_tier_io *io = job->io;
    const struct tsr_entry_head *h = &io->head;
    io->result = job->err;
    job->io = NULL;
    if (!job->err) {
        io->loc = 1;
        get->n_ok++;
        tsri_s3_index_add(&s->index, &h->key, h->space, job->cut.record_bytes + job->cut.kv_bytes);
    } else if (job->err == TSR_ENOENT || job->err == TSR_ECORRUPT) {
        tsri_s3_index_remove(&s->index, &h->key, h->space);
    }
    if (job->err == TSR_ENOENT) tsri_absent_add(&s->absent, &h->key, h->space);
    if (job->err == TSR_ECORRUPT) atomic_fetch_add(&s->corrupt, 1);
}

static void get_start(struct tsri_s3_flow *flow, struct s3_get_job *job, struct tsr_tier_io *io)
{
    struct s3_get *get = flow->arg;
    struct tsri_region *room = &flow->lane->records[job - get->jobs];
    *job = (struct s3_get_job){.io = io};
    if (!get->second) io->head.extra_bytes = io->extra_max;
    if (io->deadline_ns && tsri_now_ns() >= io->deadline_ns)
        job->err = tsri_fail(TSR_ETIME, "s3: deadline passed");
    else if (io->head.extra_bytes > TSRI_ENTRY_EXTRA_MAX)
        io->head.extra_bytes = 0;
    if (!job->err) job->err = tsri_parcel_init(&job->cut, &io->head, 0, flow->s->part_bytes);
    size_t sums_bytes = job->err ? 0 : tsri_parcel_cells(&job->cut) * sizeof job->sums[0];
    if (!job->err) job->err = tsri_region_need(room, job->cut.record_bytes + sums_bytes);
    if (job->err) return;
    job->record = room->data;
    job->sums = (uint64_t *)(void *)(room->data + job->cut.record_bytes);
    memset(job->sums, 0, sums_bytes);
    job->arrivals.sums = job->sums;
}

/* The record is there. TSR_EAGAIN: it is longer or shorter than was thought. */
static int take_record(struct s3_get_job *job, const struct tsri_s3_http_req *req)
{
    struct tsri_parcel said;
    uint64_t bytes = job->cut.record_bytes;
    int err = tsri_parcel_read_head(job->record, req->bytes < bytes ? req->bytes : bytes, &said);
    if (err) return err;
    const struct tsr_entry_head *wanted = &job->io->head;
    if (memcmp(&said.head.key, &wanted->key, sizeof wanted->key) != 0 ||
        memcmp(said.head.space, wanted->space, sizeof wanted->space) != 0 ||
        !tsri_head_same_shape(&said.head, wanted))
        return tsri_fail(TSR_ENOENT, "s3: found another entry");
    if (said.record_bytes != bytes) {
        job->io->head.extra_bytes = said.head.extra_bytes;
        return TSR_EAGAIN;
    }
    if (req->bytes < bytes || job->odd || req->total != bytes + said.kv_bytes)
        return tsri_fail(TSR_ECORRUPT, "s3: object has %llu bytes, expected %llu",
                         (unsigned long long)req->total,
                         (unsigned long long)(bytes + said.kv_bytes));
    err = tsri_parcel_read(job->record, bytes, &said);
    if (!err) err = tsri_parcel_deliver(job->record, &said, job->io);
    job->known = !err;
    return err;
}

/* The ranges of one object; a replaced one has another ETag. */
static bool same_object(struct s3_get_job *job, const struct tsri_s3_http_req *req)
{
    if (!job->etag[0]) memcpy(job->etag, req->etag, sizeof job->etag);
    return strcmp(job->etag, req->etag) == 0;
}

static int take_range(struct tsri_s3 *s, struct s3_get_job *job, const struct tsri_s3_http_req *req)
{
    int err = tsri_s3_error(s, req);
    uint32_t part = req->number;
    if (err == TSR_ECORRUPT && part > 0 && !job->known) {
        job->odd = true;
        return 0;
    }
    if (err) return err;
    atomic_fetch_add(&s->read_bytes, req->bytes);
    if (!same_object(job, req))
        return tsri_fail(TSR_ENOENT, "s3: object was replaced during the read");
    if (part == 0) {
        err = take_record(job, req);
        if (err) return err;
    }
    if (req->bytes != req->range.end - req->range.begin) {
        if (job->known)
            return tsri_fail(TSR_ECORRUPT, "s3: range has %llu bytes",
                             (unsigned long long)req->bytes);
        job->odd = true;
        return 0;
    }
    tsri_arrivals_note(&job->arrivals, part);
    if (!job->known) return 0;
    return tsri_arrivals_prove(&job->arrivals, job->record, &job->cut, job->io);
}

/* ---- get ---- */

/* The next entry to be asked for; NULL when all slots are taken. */
static struct s3_get_job *next_job(struct tsri_s3_flow *flow)
{
    struct s3_get *get = flow->arg;
    for (uint32_t k = 0; k < TSRI_S3_JOBS; k++)
        if (!get->jobs[k].io) {
            get_start(flow, &get->jobs[k], &get->io[get->next++]);
            return &get->jobs[k];
        }
    return NULL;
}

static void make_range(const struct tsri_s3 *s, struct s3_get_job *job,
                       struct tsri_s3_http_req *req, struct tsri_extent wanted)
{
    const struct tsr_entry_head *h = &job->io->head;
    uint64_t record_bytes = job->cut.record_bytes;
    tsri_s3_req_entry(s, req, TSRI_S3_HTTP_GET, &h->key, h->space);
    req->deadline_ns = job->io->deadline_ns;
    req->arg = job;
    req->number = job->next++;
    req->range = (struct tsri_extent){record_bytes + wanted.begin, record_bytes + wanted.end};
    if (req->number == 0) {
        req->range.begin = 0;
        req->sinks[0] = tsri_stream_flat(job->record, record_bytes);
    }
    if (wanted.end > wanted.begin) {
        req->sinks[1] = tsri_stream_kv(&job->cut, job->io->planes, wanted);
        req->sinks[1].sums = job->sums;
    }
    job->n_flying++;
}

static enum tsri_s3_make get_make(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_get *get = flow->arg;
    for (;;) {
        struct s3_get_job *job = get->making;
        if (!job) {
            while (get->second && get->next < get->n && get->io[get->next].result != TSR_EAGAIN)
                get->next++;
            if (get->next == get->n) return TSRI_S3_END;
            get->making = job = next_job(flow);
            if (!job) return TSRI_S3_LATER;
        }
        if (job->err || job->next == job->cut.n_parts) {
            get->making = NULL;
            if (!job->n_flying) get_finish(flow->s, get, job);
            continue;
        }
        if (job->next - job->arrivals.n_arrived >= TSRI_ARRIVALS_AHEAD) return TSRI_S3_LATER;
        struct tsri_extent wanted = tsri_parcel_wanted(&job->cut, job->io->planes, job->next);
        if (job->next > 0 && wanted.begin == wanted.end) {
            tsri_arrivals_note(&job->arrivals, job->next++);
            if (job->known)
                job->err = tsri_arrivals_prove(&job->arrivals, job->record, &job->cut, job->io);
            continue;
        }
        /* With the first range comes the record: what lies between goes to nobody. */
        if (job->next == 0 && wanted.end > wanted.begin) wanted.begin = 0;
        make_range(flow->s, job, req, wanted);
        return TSRI_S3_MADE;
    }
}

static void get_answered(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_get *get = flow->arg;
    struct s3_get_job *job = req->arg;
    job->n_flying--;
    if (!job->err) {
        job->err = take_range(flow->s, job, req);
        if (job->err && job->n_flying) tsri_s3_flow_cancel(flow, job);
    }
    if (job->n_flying == 0 && job != get->making) get_finish(flow->s, get, job);
}

int tsri_s3_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tsri_s3 *s = (struct tsri_s3 *)tier;
    int err = tsri_s3_usable(s);
    if (err) return err;
    struct tsri_s3_lane *lane = tsri_s3_lane_take(s, io[0].deadline_ns);
    if (!lane) return tsri_fail(TSR_ETIME, "s3: timed out waiting for a connection");
    struct s3_get get = {.io = io, .n = n};
    struct tsri_s3_flow flow = {.s = s,
                                .lane = lane,
                                .window = s->connections,
                                .arg = &get,
                                .make = get_make,
                                .answered = get_answered};
    tsri_s3_flow_run(&flow);
    get.second = true;
    get.next = 0;
    tsri_s3_flow_run(&flow);
    tsri_s3_lane_give(s, lane);
    return get.n_ok;
}

/* ---- contains ---- */

struct s3_look {
    const struct tsr_tier_ref *refs;
    uint8_t *found;
    size_t n, next;
    uint64_t deadline_ns;
    int err;
};

static enum tsri_s3_make look_make(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_look *look = flow->arg;
    struct tsri_s3 *s = flow->s;
    for (; look->next < look->n; look->next++) {
        const struct tsr_tier_ref *ref = &look->refs[look->next];
        look->found[look->next] = tsri_s3_index_has(&s->index, &ref->key, ref->space);
        if (look->found[look->next] || tsri_absent_has(&s->absent, &ref->key, ref->space)) continue;
        tsri_s3_req_entry(s, req, TSRI_S3_HTTP_HEAD, &ref->key, ref->space);
        req->deadline_ns = look->deadline_ns;
        req->number = (uint32_t)look->next++;
        return TSRI_S3_MADE;
    }
    return TSRI_S3_END;
}

static void look_answered(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct s3_look *look = flow->arg;
    const struct tsr_tier_ref *ref = &look->refs[req->number];
    int err = tsri_s3_error(flow->s, req);
    look->found[req->number] = err == 0;
    if (!err)
        tsri_s3_index_add(&flow->s->index, &ref->key, ref->space, req->total);
    else if (err == TSR_ENOENT)
        tsri_absent_add(&flow->s->absent, &ref->key, ref->space);
    else if (!look->err)
        look->err = err;
}

int tsri_s3_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                     uint8_t *found)
{
    struct tsri_s3 *s = (struct tsri_s3 *)tier;
    memset(found, 0, n);
    int err = tsri_s3_usable(s), n_found = 0;
    if (err) return err;
    struct s3_look look = {
        .refs = refs, .found = found, .n = n, .deadline_ns = tsri_s3_deadline(s)};
    struct tsri_s3_lane *lane = tsri_s3_lane_take(s, look.deadline_ns);
    if (!lane) return tsri_fail(TSR_ETIME, "s3: timed out waiting for a connection");
    struct tsri_s3_flow flow = {.s = s,
                                .lane = lane,
                                .window = 2 * s->connections,
                                .arg = &look,
                                .make = look_make,
                                .answered = look_answered};
    tsri_s3_flow_run(&flow);
    tsri_s3_lane_give(s, lane);
    for (size_t i = 0; i < n; i++)
        n_found += found[i];
    return n_found == 0 && look.err ? look.err : n_found;
}

/* ---- scan ---- */

#define PAGE_NAMES 1000u

/* One page of names, and the heads of their records. */
struct page {
    struct tsri_s3 *s;
    struct s3_place {
        uint8_t space[16];
        struct tsr_key key;
        uint64_t bytes;
    } places[PAGE_NAMES];
    uint8_t heads[TSRI_S3_REQS][TSRI_PARCEL_HEAD_BYTES];
    uint32_t n, next;
    tsr_tier_scan_fn fn;
    void *arg;
    int err;
};

static void add_place(void *arg, const char *name, uint64_t bytes)
{
    struct page *page = arg;
    struct s3_place *p = &page->places[page->n];
    if (page->n < PAGE_NAMES && tsri_s3_is_entry(name, page->s->dir, p->space, &p->key)) {
        p->bytes = bytes;
        page->n++;
    }
}

static enum tsri_s3_make page_make(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct page *page = flow->arg;
    if (page->err || page->next == page->n) return TSRI_S3_END;
    const struct s3_place *p = &page->places[page->next];
    tsri_s3_req_entry(flow->s, req, TSRI_S3_HTTP_GET, &p->key, p->space);
    req->range = (struct tsri_extent){0, TSRI_PARCEL_HEAD_BYTES};
    req->sinks[0] = tsri_stream_flat(page->heads[req - flow->lane->reqs], TSRI_PARCEL_HEAD_BYTES);
    req->number = page->next++;
    return TSRI_S3_MADE;
}

static void page_answered(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req)
{
    struct page *page = flow->arg;
    const struct s3_place *p = &page->places[req->number];
    struct tsri_parcel r;
    int err = tsri_s3_error(flow->s, req);
    if (err == TSR_ENOENT || err == TSR_ECORRUPT || page->err) return;
    if (err) {
        page->err = err;
        return;
    }
    if (tsri_parcel_read_head(page->heads[req - flow->lane->reqs], req->bytes, &r) != 0 ||
        memcmp(&r.head.key, &p->key, sizeof p->key) != 0 ||
        memcmp(r.head.space, p->space, sizeof p->space) != 0 ||
        p->bytes != r.record_bytes + r.kv_bytes)
        return;
    tsri_s3_index_add(&flow->s->index, &p->key, p->space, p->bytes);
    int told = page->fn(page->arg, &r.head, 1, p->bytes);
    if (told < 0) page->err = told;
}

int tsri_s3_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    struct tsri_s3 *s = (struct tsri_s3 *)tier;
    int err = tsri_s3_usable(s);
    if (err) return err;
    struct page *page = tsri_alloc(1, sizeof *page);
    if (!page) return TSR_ENOMEM;
    page->s = s;
    page->fn = fn;
    page->arg = arg;
    struct tsri_s3_lane *lane = tsri_s3_lane_take(s, 0);
    struct tsri_s3_flow flow = {.s = s,
                                .lane = lane,
                                .window = 2 * s->connections,
                                .arg = page,
                                .make = page_make,
                                .answered = page_answered};
    char token[TSRI_S3_TOKEN_BYTES] = "";
    do {
        page->n = page->next = 0;
        err = tsri_s3_list_page(s, lane, PAGE_NAMES, token, add_place, page);
        if (err >= 0) tsri_s3_flow_run(&flow);
        if (page->err) err = page->err;
    } while (err >= 0 && token[0]);
    tsri_s3_lane_give(s, lane);
    tsri_free(page);
    return err < 0 ? err : 0;
}
