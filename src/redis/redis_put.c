/* redis_put.c - put and drop. A put looks whether the same text is there already, whole; then it
 * writes the parts under a nonce of its own, each to expire soon; then it lets them stay, and only
 * then writes the record that names them. A writer that dies on the way leaves nothing that anybody
 * reads, and nothing that stays. */
#include "redis/redis.h"

#include <stdio.h>

#define PARTS_UNDER_WAY 4u
#define ORPHAN_S 600u   /* parts without a record are gone after this */
#define TTL_SLACK_S 60u /* a record goes before its parts */

enum put_stage { LOOK, COUNT, WRITE, STAY, COMMIT, TIDY, UNDO };

struct put_job {
    struct tsri_redis_job base; /* first */
    struct tsr_tier_io *io;
    struct tsri_parcel parcel, old;
    uint8_t *record, *old_record;
    uint64_t n_summed; /* cells */
    uint32_t n_there;  /* parts, of COUNT and STAY */
    int failed;        /* what goes wrong while parts may stand there that must go */
    bool same, replaces;
};

struct redis_put {
    struct tsr_tier_io *io;
    int n_ok;
};

static struct tsri_redis *redis_of(const struct tsri_redis_job *job)
{
    return job->run->r;
}

static void add_name(struct tsri_redis_job *job, struct tsri_resp_req *req,
                     const struct tsr_entry_head *head, uint64_t nonce, uint32_t part)
{
    char name[TSRI_REDIS_NAME_BYTES];
    tsri_redis_name(name, redis_of(job)->root, head->space, &head->key, nonce, part);
    req->slot = atomic_load(&redis_of(job)->cluster) ? tsri_redis_slot(name, strlen(name)) : 0;
    tsri_req_arg(req, name);
}

/* ---- put ---- */

static void put_start(struct tsri_redis_job *job, size_t i)
{
    struct put_job *p = (struct put_job *)job;
    struct tsri_redis *r = redis_of(job);
    struct tsri_region *room = &job->run->lane->records[tsri_redis_job_number(job)];
    p->io = &((struct redis_put *)job->run->arg)->io[i];
    job->deadline_ns = p->io->deadline_ns;
    job->stage = LOOK;
    job->n = 1;
    if (job->deadline_ns && tsri_now_ns() >= job->deadline_ns) {
        job->err = tsri_fail(TSR_ETIME, "redis: put missed its deadline");
        return;
    }
    uint64_t nonce = atomic_fetch_add(&r->nonce, 0x9E3779B97F4A7C15u);
    job->err = tsri_parcel_init(&p->parcel, &p->io->head, nonce, r->part_bytes);
    if (!job->err) job->err = tsri_region_need(room, p->parcel.record_bytes);
    if (job->err) return;
    p->record = room->data;
    tsri_parcel_fill(p->record, &p->parcel, p->io->tokens, p->io->extra);
}

/* The record that stands there now, if it may be one. */
static struct tsri_stream old_sink(struct tsri_resp_req *req, uint64_t bytes)
{
    struct put_job *p = req->arg;
    struct tsri_region *room = &p->base.run->lane->olds[tsri_redis_job_number(&p->base)];
    p->old_record = NULL;
    if (bytes > TSRI_PARCEL_RECORD_MAX || tsri_region_need(room, bytes + 1) != 0)
        return tsri_stream_flat(NULL, 0);
    p->old_record = room->data;
    return tsri_stream_flat(room->data, bytes);
}

static void make_write(struct put_job *p, struct tsri_resp_req *req)
{
    struct tsri_extent x = tsri_parcel_part(&p->parcel, req->number);
    uint64_t first = p->n_summed, n_cells = tsri_parcel_cells(&p->parcel);
    while (p->n_summed < n_cells && tsri_parcel_cell(&p->parcel, p->n_summed).end <= x.end)
        p->n_summed++;
    tsri_parcel_sum(p->record, &p->parcel, p->io->planes, first, p->n_summed);
    tsri_req_begin(req, 5, "SET");
    add_name(&p->base, req, &p->parcel.head, p->parcel.nonce, req->number);
    tsri_req_body(req, tsri_stream_kv(&p->parcel, p->io->planes, x));
    tsri_req_arg(req, "EX");
    tsri_req_number(req, ORPHAN_S);
}

static void make_commit(struct put_job *p, struct tsri_resp_req *req)
{
    uint32_t ttl_s = redis_of(&p->base)->ttl_s;
    tsri_parcel_seal(p->record, &p->parcel);
    tsri_req_begin(req, ttl_s ? 6 : 4, "SET");
    add_name(&p->base, req, &p->parcel.head, 0, TSRI_REDIS_RECORD);
    tsri_req_body(req, tsri_stream_flat(p->record, p->parcel.record_bytes));
    tsri_req_arg(req, "GET");
    if (ttl_s) tsri_req_arg(req, "EX");
    if (ttl_s) tsri_req_number(req, ttl_s);
    req->sink = old_sink;
}

static bool put_make(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct put_job *p = (struct put_job *)job;
    uint32_t ttl_s = redis_of(job)->ttl_s;
    const struct tsr_entry_head *head = &p->parcel.head;
    if (p->failed && job->stage != UNDO) return false;
    switch ((enum put_stage)job->stage) {
    case LOOK:
        tsri_req_begin(req, 2, "GET");
        add_name(job, req, head, 0, TSRI_REDIS_RECORD);
        req->sink = old_sink;
        break;
    case COUNT:
        tsri_req_begin(req, 2, "EXISTS");
        add_name(job, req, head, p->old.nonce, req->number);
        break;
    case WRITE:
        make_write(p, req);
        break;
    case STAY:
        tsri_req_begin(req, ttl_s ? 3 : 2, ttl_s ? "EXPIRE" : "PERSIST");
        add_name(job, req, head, p->parcel.nonce, req->number);
        if (ttl_s) tsri_req_number(req, (uint64_t)ttl_s + TTL_SLACK_S);
        break;
    case COMMIT:
        make_commit(p, req);
        break;
    case TIDY:
    case UNDO:
        tsri_req_begin(req, 2, "UNLINK");
        add_name(job, req, head, job->stage == TIDY ? p->old.nonce : p->parcel.nonce, req->number);
        break;
    }
    return true;
}

/* Whether the server has a record of ours; it stands in old_record then. */
static bool take_old(struct put_job *p, const struct tsri_resp_req *req)
{
    return req->type == '$' && req->length > 0 && p->old_record &&
           tsri_parcel_read(p->old_record, (size_t)req->length, &p->old) == 0;
}

static void put_answered(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct put_job *p = (struct put_job *)job;
    if (job->err) return;
    bool wrong = req->type == 0 || req->type == '-';
    switch ((enum put_stage)job->stage) {
    case LOOK:
        if (tsri_req_says(req, "WRONGTYPE")) return; /* a stranger's: replaced */
        if (wrong)
            job->err = tsri_redis_error(redis_of(job), req);
        else
            p->same = take_old(p, req) && p->old.record_bytes == p->parcel.record_bytes &&
                      p->old.part_bytes == p->parcel.part_bytes &&
                      tsri_parcel_same_text(p->old_record, p->record, &p->parcel);
        return;
    case COUNT:
    case STAY:
        p->n_there += req->type == ':' && req->length == 1;
        if (wrong && job->stage == STAY) p->failed = tsri_redis_error(redis_of(job), req);
        return;
    case WRITE:
        if (wrong && !p->failed) p->failed = tsri_redis_error(redis_of(job), req);
        if (!wrong) {
            struct tsri_extent x = tsri_parcel_part(&p->parcel, req->number);
            atomic_fetch_add(&redis_of(job)->written_bytes, x.end - x.begin);
        }
        return;
    case COMMIT:
        if (wrong) p->failed = tsri_redis_error(redis_of(job), req);
        p->replaces = take_old(p, req);
        return;
    case TIDY:
    case UNDO:
        return;
    }
}

static bool go(struct tsri_redis_job *job, enum put_stage stage, uint32_t n)
{
    job->stage = stage;
    job->n = n;
    return true;
}

static void committed(struct put_job *p)
{
    struct tsri_redis *r = redis_of(&p->base);
    tsri_absent_remove(&r->absent, &p->parcel.head.key, p->parcel.head.space);
    tsri_breaker_worked(&r->writes);
    atomic_fetch_add(&r->written_bytes, p->parcel.record_bytes);
    if (p->replaces) return;
    atomic_fetch_add(&r->entries, 1);
    atomic_fetch_add(&r->bytes, p->parcel.record_bytes + p->parcel.kv_bytes);
}

static bool put_advance(struct tsri_redis_job *job)
{
    struct put_job *p = (struct put_job *)job;
    uint32_t n_parts = p->parcel.n_parts;
    switch ((enum put_stage)job->stage) {
    case LOOK:
        return p->same ? go(job, COUNT, p->old.n_parts) : go(job, WRITE, n_parts);
    case COUNT:
        /* The same text, and all of it: another copy would be no better. */
        if (p->n_there == p->old.n_parts) {
            tsri_absent_remove(&redis_of(job)->absent, &p->parcel.head.key, p->parcel.head.space);
            return false;
        }
        p->n_there = 0;
        return go(job, WRITE, n_parts);
    case WRITE:
        return p->failed ? go(job, UNDO, n_parts) : go(job, STAY, n_parts);
    case STAY:
        if (!p->failed && p->n_there != n_parts)
            p->failed =
                tsri_fail(TSR_EFULL, "redis: the server evicts parts while they are written");
        return p->failed ? go(job, UNDO, n_parts) : go(job, COMMIT, 1);
    case COMMIT:
        if (p->failed) return go(job, UNDO, n_parts);
        committed(p);
        return p->replaces && p->old.nonce != p->parcel.nonce && go(job, TIDY, p->old.n_parts);
    case TIDY:
        return false;
    case UNDO:
        job->err = p->failed;
        return false;
    }
    return false;
}

static void put_finish(struct tsri_redis_job *job)
{
    struct put_job *p = (struct put_job *)job;
    struct redis_put *put = job->run->arg;
    if (job->stage == TIDY) job->err = 0; /* it is committed, whatever became of the old parts */
    if (!job->err && p->failed) job->err = p->failed;
    p->io->result = job->err;
    if (!job->err) p->io->loc = 1;
    put->n_ok += job->err == 0;
}

static const struct tsri_redis_job_ops put_ops = {
    .job_bytes = sizeof(struct put_job),
    .start = put_start,
    .make = put_make,
    .answered = put_answered,
    .advance = put_advance,
    .finish = put_finish,
};

int tsri_redis_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tsri_redis *r = (struct tsri_redis *)tier;
    int err = tsri_redis_usable(r);
    if (err) return err;
    if (r->read_only) return tsri_fail(TSR_EPERM, "redis: opened read-only");
    if (!tsri_breaker_try(&r->writes)) return tsri_fail(TSR_EIO, "redis: rejects writes for now");
    struct tsri_redis_lane *lane = tsri_redis_lane_take(r, io[0].deadline_ns);
    if (!lane) return tsri_fail(TSR_ETIME, "redis: no free connection in time");
    struct put_job jobs[TSRI_REDIS_JOBS];
    struct redis_put put = {.io = io};
    struct tsri_redis_job_ops ops = put_ops;
    ops.window = PARTS_UNDER_WAY * r->share;
    struct tsri_redis_run run = {.r = r, .lane = lane, .ops = &ops, .arg = &put};
    tsri_redis_run(&run, jobs, n);
    tsri_redis_lane_give(r, lane);
    return put.n_ok;
}

/* ---- drop ---- */

struct drop_job {
    struct tsri_redis_job base; /* first */
    struct tsr_entry_head head; /* key and space of the ref */
    struct tsri_parcel old;
    bool there, foreign;
};

struct redis_drop {
    const struct tsr_tier_ref *refs;
    int n_dropped, err;
};

static void drop_start(struct tsri_redis_job *job, size_t i)
{
    struct drop_job *d = (struct drop_job *)job;
    const struct tsr_tier_ref *ref = &((struct redis_drop *)job->run->arg)->refs[i];
    d->head.key = ref->key;
    memcpy(d->head.space, ref->space, sizeof ref->space);
    job->deadline_ns = tsri_now_ns() + (uint64_t)redis_of(job)->timeout_ms * 1000000;
    job->n = 1;
}

static struct tsri_stream dropped_sink(struct tsri_resp_req *req, uint64_t bytes)
{
    struct drop_job *d = req->arg;
    struct tsri_region *room = &d->base.run->lane->records[tsri_redis_job_number(&d->base)];
    if (bytes > TSRI_PARCEL_RECORD_MAX || tsri_region_need(room, bytes + 1) != 0)
        return tsri_stream_flat(NULL, 0);
    return tsri_stream_flat(room->data, bytes);
}

/* Stages: take the record away; its parts, or what a stranger left under its name. */
static bool drop_make(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct drop_job *d = (struct drop_job *)job;
    tsri_req_begin(req, 2, job->stage == 0 ? "GETDEL" : "UNLINK");
    bool record = job->stage == 0 || d->foreign;
    add_name(job, req, &d->head, d->old.nonce, record ? TSRI_REDIS_RECORD : req->number);
    if (job->stage == 0) req->sink = dropped_sink;
    return true;
}

static void drop_answered(struct tsri_redis_job *job, struct tsri_resp_req *req)
{
    struct drop_job *d = (struct drop_job *)job;
    if (job->err || job->stage) return;
    d->foreign = tsri_req_says(req, "WRONGTYPE");
    if (req->type != '$' && !d->foreign) job->err = tsri_redis_error(redis_of(job), req);
    d->there = d->foreign || (req->type == '$' && req->length >= 0);
    if (!d->there || d->foreign) return;
    const uint8_t *record = job->run->lane->records[tsri_redis_job_number(job)].data;
    if (tsri_parcel_read_head(record, (size_t)req->length, &d->old) != 0) d->old.n_parts = 0;
}

static bool drop_advance(struct tsri_redis_job *job)
{
    struct drop_job *d = (struct drop_job *)job;
    if (job->stage++ > 0) return false;
    job->n = d->foreign ? 1 : d->there ? d->old.n_parts : 0;
    return job->n > 0;
}

/* The number is one of entries, so it cannot go below none. */
static void count_down(_Atomic uint64_t *counter, uint64_t by)
{
    uint64_t now = atomic_load(counter);
    while (!atomic_compare_exchange_weak(counter, &now, now > by ? now - by : 0))
        ;
}

static void drop_finish(struct tsri_redis_job *job)
{
    struct drop_job *d = (struct drop_job *)job;
    struct redis_drop *drop = job->run->arg;
    struct tsri_redis *r = redis_of(job);
    drop->n_dropped += d->there;
    if (job->err && !d->there) drop->err = job->err;
    if (!d->there) return;
    count_down(&r->entries, 1);
    count_down(&r->bytes, d->old.record_bytes + d->old.kv_bytes);
}

static const struct tsri_redis_job_ops drop_ops = {
    .job_bytes = sizeof(struct drop_job),
    .window = TSRI_REDIS_REQS,
    .start = drop_start,
    .make = drop_make,
    .answered = drop_answered,
    .advance = drop_advance,
    .finish = drop_finish,
};

int tsri_redis_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct tsri_redis *r = (struct tsri_redis *)tier;
    int err = tsri_redis_usable(r);
    if (err) return err;
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    struct tsri_redis_lane *lane = tsri_redis_lane_take(r, deadline);
    if (!lane) return tsri_fail(TSR_ETIME, "redis: no free connection in time");
    struct drop_job jobs[TSRI_REDIS_JOBS];
    struct redis_drop drop = {.refs = refs};
    struct tsri_redis_run run = {.r = r, .lane = lane, .ops = &drop_ops, .arg = &drop};
    tsri_redis_run(&run, jobs, n);
    tsri_redis_lane_give(r, lane);
    return drop.n_dropped == 0 && drop.err ? drop.err : drop.n_dropped;
}
