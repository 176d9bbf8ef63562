/* redis_get.c - get, contains and scan. A get asks for the record, compares it with what is wanted,
 * and then has a few parts under way at a time, whose bytes go from the socket to the caller's
 * cells and are summed when all before them are there. A part that has vanished (the server evicts,
 * values expire) or was replaced by somebody's is a miss; nothing of it is handed on. */
#include "redis/redis.h"

#include <stdio.h>
#include <stdlib.h>

/* Of a connection: the next is there when one has been summed. With more of them the server builds
 * replies far ahead and both sides run out of cache (bench_redis). */
#define PARTS_UNDER_WAY 2u

struct redis_get_job {
    struct tsri_redis_job base; /* first */
    struct tsr_tier_io *io;
    struct tsri_parcel parcel;
    uint8_t *record;
    struct tsri_arrivals arrivals;
};

struct redis_get {
    struct tsr_tier_io *io;
    int n_ok;
};

static struct tsri_redis *redis_of(const struct tsri_redis_job *job)
{
    return job->run->r;
}

static void name_request(struct tsri_redis_job *job, struct tsri_resp_req *req, const char *name)
{
    req->slot = atomic_load(&redis_of(job)->cluster) ? tsri_redis_slot(name, strlen(name)) : 0;
    tsri_req_arg(req, name);
}

/* ---- get ---- */

static void get_start(struct tsri_redis_job *job, size_t i)
{
    struct redis_get_job *g = (struct redis_get_job *)job;
    g->io = &((struct redis_get *)job->run->arg)->io[i];
    job->deadline_ns = g->io->deadline_ns;
    job->n = 1;
    if (job->deadline_ns && tsri_now_ns() >= job->deadline_ns)
        job->err = tsri_fail(TSR_ETIME, "redis: deadline passed");
}

/* Where the record goes: to the lane's memory. */
static struct tsri_stream record_sink(struct tsri_resp_req *req, uint64_t bytes)
{
    struct redis_get_job *g = req->arg;
    struct tsri_region *room = &g->base.run->lane->records[tsri_redis_job_number(&g->base)];
    if (bytes > TSRI_PARCEL_RECORD_MAX || tsri_region_need(room, bytes + 1) != 0)
        return tsri_stream_flat(NULL, 0);
    g->record = room->data;
    return tsri_stream_flat(room->data, bytes);
}

static struct tsri_stream part_sink(struct tsri_resp_req *req, uint64_t bytes)
{
    struct redis_get_job *g = req->arg;
    struct tsri_extent x = tsri_parcel_part(&g->parcel, req->number);
    if (g->base.err || bytes != x.end - x.begin) return tsri_stream_flat(NULL, 0);
    return tsri_stream_kv(&g->parcel, g->io->planes, x);
}

/* The part is there, or nobody wants it: proves and hands on what is complete now. */
static void part_arrived(struct redis_get_job *g, uint32_t part)
{
    tsri_arrivals_note(&g->arrivals, part);
    g->base.err = tsri_arrivals_prove(&g->arrivals, g->record, &g->parcel, g->io);
}

static bool get_make(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct redis_get_job *g = (struct redis_get_job *)job;
    uint32_t part = job->stage == 0 ? TSRI_REDIS_RECORD : req->number;
    if (job->stage == 1) {
        if (part - g->arrivals.n_arrived >= TSRI_ARRIVALS_AHEAD) { /* too far ahead: later */
            job->next--;
            return false;
        }
        if (!tsri_parcel_wants(&g->parcel, g->io->planes, part)) {
            part_arrived(g, part);
            return false;
        }
    }
    char name[TSRI_REDIS_NAME_BYTES];
    tsri_redis_name(name, redis_of(job)->root, g->io->head.space, &g->io->head.key, g->parcel.nonce,
                    part);
    tsri_req_begin(req, 2, "GET");
    name_request(job, req, name);
    req->sink = job->stage == 0 ? record_sink : part_sink;
    return true;
}

static int take_record(struct redis_get_job *g, const struct tsri_resp_req *req)
{
    struct tsri_redis *r = redis_of(&g->base);
    if (req->type != '$') return tsri_redis_error(r, req);
    if (req->length < 0) {
        tsri_absent_add(&r->absent, &g->io->head.key, g->io->head.space);
        return tsri_fail(TSR_ENOENT, "redis: no such entry");
    }
    if (!g->record)
        return tsri_fail(TSR_ECORRUPT, "redis: a record of %lld bytes", (long long)req->length);
    int err = tsri_parcel_read(g->record, (size_t)req->length, &g->parcel);
    return err ? err : tsri_parcel_deliver(g->record, &g->parcel, g->io);
}

static void get_answered(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct redis_get_job *g = (struct redis_get_job *)job;
    if (job->err) return;
    if (req->length > 0 && req->type == '$')
        atomic_fetch_add(&redis_of(job)->read_bytes, (uint64_t)req->length);
    if (job->stage == 0) {
        job->err = take_record(g, req);
        return;
    }
    struct tsri_extent x = tsri_parcel_part(&g->parcel, req->number);
    if (req->type != '$')
        job->err = tsri_redis_error(redis_of(job), req);
    else if (req->length < 0)
        job->err = tsri_fail(TSR_ENOENT, "redis: part %u is missing", req->number);
    else if ((uint64_t)req->length != x.end - x.begin)
        job->err = tsri_fail(TSR_ECORRUPT, "redis: part %u has %lld bytes", req->number,
                             (long long)req->length);
    else
        part_arrived(g, req->number);
}

static bool get_advance(struct tsri_redis_job *job)
{
    struct redis_get_job *g = (struct redis_get_job *)job;
    if (job->stage++ > 0) return false;
    job->n = g->parcel.n_parts;
    return true;
}

static void get_finish(struct tsri_redis_job *job)
{
    struct redis_get_job *g = (struct redis_get_job *)job;
    struct redis_get *get = job->run->arg;
    if (job->err == TSR_ECORRUPT) atomic_fetch_add(&redis_of(job)->corrupt, 1);
    g->io->result = job->err;
    if (!job->err) g->io->loc = 1;
    get->n_ok += job->err == 0;
}

static const struct tsri_redis_job_ops get_ops = {
    .job_bytes = sizeof(struct redis_get_job),
    .start = get_start,
    .make = get_make,
    .answered = get_answered,
    .advance = get_advance,
    .finish = get_finish,
};

int tsri_redis_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tsri_redis *r = (struct tsri_redis *)tier;
    int err = tsri_redis_usable(r);
    if (err) return err;
    struct tsri_redis_lane *lane = tsri_redis_lane_take(r, io[0].deadline_ns);
    if (!lane) return tsri_fail(TSR_ETIME, "redis: no free connection in time");
    struct redis_get_job jobs[TSRI_REDIS_JOBS];
    struct redis_get get = {.io = io};
    struct tsri_redis_job_ops ops = get_ops;
    ops.window = PARTS_UNDER_WAY * r->share;
    struct tsri_redis_run run = {.r = r, .lane = lane, .ops = &ops, .arg = &get};
    tsri_redis_run(&run, jobs, n);
    tsri_redis_lane_give(r, lane);
    return get.n_ok;
}

/* ---- contains: one job ---- */

#define GROUP 16u /* keys of one command */

/* First by groups, which of most say all or none; then one by one what is left. A cluster does not
 * take keys of several slots in one command: there every key is asked for by itself. */
enum { GROUPS, SINGLES };

struct redis_look {
    const struct tsr_tier_ref *refs;
    uint8_t *found; /* UNKNOWN until it is known */
    size_t n;
    int err;
};

#define UNKNOWN 2u

static void look_start(struct tsri_redis_job *job, size_t i)
{
    struct redis_look *look = job->run->arg;
    struct tsri_redis *r = redis_of(job);
    job->deadline_ns = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    for (i = 0; i < look->n; i++)
        look->found[i] =
            tsri_absent_has(&r->absent, &look->refs[i].key, look->refs[i].space) ? 0 : UNKNOWN;
    bool apart = atomic_load(&r->cluster);
    job->stage = apart ? SINGLES : GROUPS;
    job->n = (uint32_t)(apart ? look->n : (look->n + GROUP - 1) / GROUP);
}

static bool look_make(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct redis_look *look = job->run->arg;
    size_t first = req->number * (job->stage == GROUPS ? GROUP : 1);
    size_t end = job->stage == GROUPS ? first + GROUP : first + 1;
    uint32_t n = 0;
    if (end > look->n) end = look->n;
    for (size_t i = first; i < end; i++)
        n += look->found[i] == UNKNOWN;
    if (n == 0) return false;
    tsri_req_begin(req, n + 1, "EXISTS");
    for (size_t i = first; i < end; i++) {
        if (look->found[i] != UNKNOWN) continue;
        char name[TSRI_REDIS_NAME_BYTES];
        tsri_redis_name(name, redis_of(job)->root, look->refs[i].space, &look->refs[i].key, 0,
                        TSRI_REDIS_RECORD);
        name_request(job, req, name);
    }
    return true;
}

static void look_answered(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct redis_look *look = job->run->arg;
    if (req->type != ':') {
        /* Of a cluster the others may well answer. */
        if (!look->err) look->err = tsri_redis_error(redis_of(job), req);
        return;
    }
    size_t first = req->number * (job->stage == GROUPS ? GROUP : 1);
    size_t end = job->stage == GROUPS ? first + GROUP : first + 1;
    int64_t n = 0;
    if (end > look->n) end = look->n;
    for (size_t i = first; i < end; i++)
        n += look->found[i] == UNKNOWN;
    if (req->length != 0 && req->length != n) return; /* some of them */
    for (size_t i = first; i < end; i++) {
        if (look->found[i] != UNKNOWN) continue;
        look->found[i] = req->length != 0;
        if (req->length == 0)
            tsri_absent_add(&redis_of(job)->absent, &look->refs[i].key, look->refs[i].space);
    }
}

static bool look_advance(struct tsri_redis_job *job)
{
    const struct redis_look *look = job->run->arg;
    if (job->stage == SINGLES) return false;
    job->stage = SINGLES;
    job->n = (uint32_t)look->n;
    return true;
}

static bool no_more(struct tsri_redis_job *job)
{
    (void)job;
    return false;
}

static void look_finish(struct tsri_redis_job *job)
{
    struct redis_look *look = job->run->arg;
    if (job->err && !look->err) look->err = job->err;
}

static const struct tsri_redis_job_ops look_ops = {
    .job_bytes = sizeof(struct tsri_redis_job),
    .window = TSRI_REDIS_REQS,
    .start = look_start,
    .make = look_make,
    .answered = look_answered,
    .advance = look_advance,
    .finish = look_finish,
};

int tsri_redis_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                        uint8_t *found)
{
    struct tsri_redis *r = (struct tsri_redis *)tier;
    memset(found, 0, n);
    int err = tsri_redis_usable(r), n_found = 0;
    if (err) return err;
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    struct tsri_redis_lane *lane = tsri_redis_lane_take(r, deadline);
    if (!lane) return tsri_fail(TSR_ETIME, "redis: no free connection in time");
    struct tsri_redis_job jobs[TSRI_REDIS_JOBS];
    struct redis_look look = {.refs = refs, .found = found, .n = n};
    struct tsri_redis_run run = {
        .r = r, .lane = lane, .ops = &look_ops, .arg = &look, .one_connection = true};
    tsri_redis_run(&run, jobs, 1);
    tsri_redis_lane_give(r, lane);
    for (size_t i = 0; i < n; i++) {
        found[i] = found[i] == 1;
        n_found += found[i];
    }
    return n_found == 0 && look.err ? look.err : n_found;
}

/* ---- scan ---- */

struct entry_name {
    uint8_t space[16];
    struct tsr_key key;
};

/* Everything the servers list; SCAN may tell a name twice. */
struct listing {
    struct entry_name *places;
    size_t n, n_max;
};

#define LISTING_MAX ((size_t)1 << 24)

static int add_place(struct listing *l, const struct entry_name *p)
{
    if (l->n == LISTING_MAX) return 0; /* more than any index takes */
    if (l->n == l->n_max) {
        size_t n_max = l->n_max ? l->n_max * 2 : 1024;
        struct entry_name *more = realloc(l->places, n_max * sizeof more[0]);
        if (!more) return tsri_fail(TSR_ENOMEM, "redis: out of memory to list entries");
        l->places = more;
        l->n_max = n_max;
    }
    l->places[l->n++] = *p;
    return 0;
}

/* One SCAN; *cursor is "0" after the last. */
static int list_some(struct tsri_redis *r, struct tsri_resp *c, char cursor[24], struct listing *l)
{
    char pattern[TSRI_REDIS_ROOT_MAX + 8];
    snprintf(pattern, sizeof pattern, "%s:*:{*}", r->root);
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    redisReply *reply = tsri_resp_ask(
        c, deadline, 6, (const char *[]){"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"});
    int err = 0;
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING || reply->element[0]->len >= 24 ||
        reply->element[1]->type != REDIS_REPLY_ARRAY) {
        freeReplyObject(reply);
        return tsri_fail(TSR_EIO, "redis: no response to SCAN");
    }
    memcpy(cursor, reply->element[0]->str, reply->element[0]->len + 1);
    const redisReply *names = reply->element[1];
    for (size_t i = 0; i < names->elements && !err; i++) {
        const redisReply *x = names->element[i];
        struct entry_name p;
        if (x->type == REDIS_REPLY_STRING &&
            tsri_redis_is_record(x->str, x->len, r->root, p.space, &p.key))
            err = add_place(l, &p);
    }
    freeReplyObject(reply);
    return err;
}

static int list_node(struct tsri_redis *r, uint32_t node, struct listing *l)
{
    char why[160], cursor[24] = "0";
    struct tsri_resp *c;
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    int err = tsri_resp_open(&c, r->nodes[node].address, &r->login, deadline, why, sizeof why);
    if (err) return err;
    do
        err = list_some(r, c, cursor, l);
    while (!err && strcmp(cursor, "0") != 0);
    tsri_resp_close(c);
    return err;
}

static int compare_places(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct entry_name));
}

struct heads {
    const struct entry_name *places;
    size_t n;
    uint8_t (*heads)[TSRI_PARCEL_HEAD_BYTES];
    bool *there;
};

static void heads_start(struct tsri_redis_job *job, size_t i)
{
    (void)i;
    job->n = (uint32_t)((struct heads *)job->run->arg)->n;
}

static struct tsri_stream head_sink(struct tsri_resp_req *req, uint64_t bytes)
{
    const struct tsri_redis_job *job = req->arg;
    struct heads *h = job->run->arg;
    return tsri_stream_flat(h->heads[req->number],
                            bytes == TSRI_PARCEL_HEAD_BYTES ? TSRI_PARCEL_HEAD_BYTES : 0);
}

static bool heads_make(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    const struct heads *h = job->run->arg;
    const struct entry_name *p = &h->places[req->number];
    char name[TSRI_REDIS_NAME_BYTES];
    tsri_redis_name(name, redis_of(job)->root, p->space, &p->key, 0, TSRI_REDIS_RECORD);
    tsri_req_begin(req, 4, "GETRANGE");
    name_request(job, req, name);
    tsri_req_number(req, 0);
    tsri_req_number(req, TSRI_PARCEL_HEAD_BYTES - 1);
    req->sink = head_sink;
    return true;
}

static void heads_answered(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct heads *h = job->run->arg;
    h->there[req->number] = req->type == '$' && req->length == TSRI_PARCEL_HEAD_BYTES;
}

static void heads_finish(struct tsri_redis_job *job)
{
    (void)job;
}

static const struct tsri_redis_job_ops heads_ops = {
    .job_bytes = sizeof(struct tsri_redis_job),
    .window = TSRI_REDIS_REQS,
    .start = heads_start,
    .make = heads_make,
    .answered = heads_answered,
    .advance = no_more,
    .finish = heads_finish,
};

/* Reads the heads of at most TSRI_REDIS_REQS entries and tells them. */
static int tell_some(struct tsri_redis *r, const struct entry_name *places, size_t n,
                     tsr_tier_scan_fn fn, void *arg)
{
    uint8_t heads[TSRI_REDIS_REQS][TSRI_PARCEL_HEAD_BYTES];
    bool there[TSRI_REDIS_REQS] = {false};
    struct heads h = {places, n, heads, there};
    struct tsri_redis_lane *lane = tsri_redis_lane_take(r, 0);
    struct tsri_redis_job jobs[TSRI_REDIS_JOBS];
    struct tsri_redis_run run = {.r = r, .lane = lane, .ops = &heads_ops, .arg = &h};
    tsri_redis_run(&run, jobs, 1);
    tsri_redis_lane_give(r, lane);
    for (size_t i = 0; i < n; i++) {
        struct tsri_parcel x;
        if (!there[i] || tsri_parcel_read_head(heads[i], sizeof heads[i], &x) != 0 ||
            memcmp(&x.head.key, &places[i].key, sizeof x.head.key) != 0 ||
            memcmp(x.head.space, places[i].space, sizeof x.head.space) != 0)
            continue;
        atomic_fetch_add(&r->entries, 1);
        atomic_fetch_add(&r->bytes, x.record_bytes + x.kv_bytes);
        int err = fn(arg, &x.head, 1, x.record_bytes + x.kv_bytes);
        if (err < 0) return err;
    }
    return 0;
}

int tsri_redis_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    struct tsri_redis *r = (struct tsri_redis *)tier;
    int err = tsri_redis_usable(r);
    struct listing l = {.n = 0};
    uint32_t n_nodes = atomic_load(&r->n_nodes);
    for (uint32_t i = 0; i < n_nodes && !err; i++)
        if (r->nodes[i].in_use) err = list_node(r, i, &l);
    if (l.n) qsort(l.places, l.n, sizeof l.places[0], compare_places);
    size_t n = 0;
    for (size_t i = 0; i < l.n; i++)
        if (n == 0 || compare_places(&l.places[n - 1], &l.places[i]) != 0)
            l.places[n++] = l.places[i];
    atomic_store(&r->entries, 0);
    atomic_store(&r->bytes, 0);
    for (size_t i = 0; i < n && !err; i += TSRI_REDIS_REQS)
        err =
            tell_some(r, l.places + i, n - i < TSRI_REDIS_REQS ? n - i : TSRI_REDIS_REQS, fn, arg);
    free(l.places);
    return err;
}
