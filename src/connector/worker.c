/* worker.c - the worker half: takes the bytes of a step apart into jobs, hands them to its lanes,
 * and answers the engine's questions about them. The engine's thread never copies and never talks
 * to the cache; it waits where the engine asks for it, and no longer than it was told to. */
#include "connector/connector.h"

#define STAGING_BYTES ((uint64_t)64 << 20)

static int no_half(void)
{
    return tsri_fail(TSR_EINVAL, "connector: worker is NULL");
}

/* ---- open and close ---- */

static int open_device(struct tsr_worker *w, const struct tsr_worker_desc *d)
{
    struct tsr_device_desc desc = {
        .size = sizeof desc, .ordinal = d->device_number, .n_threads = d->n_threads};
    int e = tsri_engine_device_open(&w->device, &w->own_device, w->terms.cache, d->device, &desc);
    if (!e) e = tsri_event_open(&w->written, w->device);
    if (!e) e = tsri_stream_open(&w->marks, w->device, NULL, 0);
    if (!e && d->stream) e = tsri_stream_open(&w->engine_stream, w->device, d->stream, 0);
    return e;
}

int tsr_worker_open(struct tsr_worker **out, struct tsr_cache *cache,
                    const struct tsr_connector_desc *desc, const struct tsr_worker_desc *worker)
{
    if (!out) return tsri_fail(TSR_EINVAL, "connector: out");
    *out = NULL;
    if (!worker || worker->size < sizeof *worker)
        return tsri_fail(TSR_EINVAL, "connector: worker description is missing");
    if (worker->flags > TSR_WORKER_SAVE_IN_STEP)
        return tsri_fail(TSR_EINVAL, "connector: unknown flags %#x", worker->flags);
    struct tsr_worker *w = tsri_alloc(1, sizeof *w);
    if (!w) return TSR_ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    tsri_cond_init(&w->changed);
    w->jobs_tail = &w->jobs;
    w->rank = worker->rank;
    w->flags = worker->flags;
    w->staging_bytes = worker->staging_bytes ? worker->staging_bytes : STAGING_BYTES;
    w->stats.size = sizeof w->stats;
    int e = tsri_terms_init(&w->terms, cache, desc, worker->rank);
    if (!e) e = open_device(w, worker);
    if (e) {
        tsr_worker_close(w);
        return e;
    }
    *out = w;
    return 0;
}

static void job_free(struct tsri_kv_job *job)
{
    if (job->written) tsri_event_close(job->worker->device, job->written);
    tsri_free(job->memory);
    tsri_free(job);
}

void tsr_worker_close(struct tsr_worker *w)
{
    if (!w) return;
    if (w->registered && tsr_worker_drain(w, (int)(w->terms.save_timeout_ns / 1000000)) != 0)
        tsri_log(TSR_LOG_WARN, "connector: saves were abandoned");
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    for (struct tsri_kv_job *job = w->jobs; job; job = job->next)
        if (job->state != TSRI_JOB_DONE) tsri_job_give_up(w, job, TSR_ETIME);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < TSRI_LANES; i++)
        tsri_lane_fini(&w->lanes[i]);
    while (w->jobs) {
        struct tsri_kv_job *job = w->jobs;
        w->jobs = job->next;
        job_free(job);
    }
    if (w->engine_stream) tsri_stream_close(w->device, w->engine_stream);
    if (w->written) tsri_event_close(w->device, w->written);
    if (w->marks) tsri_stream_close(w->device, w->marks);
    tsri_device_close(w->own_device);
    tsri_terms_fini(&w->terms);
    tsri_bytes_fini(&w->meta);
    tsri_free(w->ended);
    tsri_free(w->sent);
    tsri_free(w->save_reports);
    tsri_free(w->load_reports);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    tsri_free(w);
}

uint32_t tsr_worker_chunk_tokens(const struct tsr_worker *w)
{
    return w ? w->terms.chunk_tokens : 0;
}

int tsr_worker_register_kv_caches(struct tsr_worker *w, const struct tsr_kv_layout *layouts,
                                  uint32_t n)
{
    static const char *const names[TSRI_LANES] = {"tessera-load", "tessera-fetch", "tessera-save"};
    if (!w || !layouts) return no_half();
    if (w->registered) return tsri_fail(TSR_EBUSY, "kv caches: already registered");
    if (n != w->terms.n_groups)
        return tsri_fail(TSR_EINVAL, "kv caches: %u groups, expected %u", n, w->terms.n_groups);
    if (layouts[0].size < sizeof(size_t) || layouts[0].size > sizeof layouts[0])
        return tsri_fail(TSR_EINVAL, "kv caches: layout has %zu bytes", layouts[0].size);
    for (uint32_t g = 0; g < n; g++) {
        const struct tsr_kv_layout *l =
            (const void *)((const uint8_t *)layouts + g * layouts[0].size);
        /* 0: blocks without gaps, of any size */
        if (l->block_tokens && l->block_tokens != w->terms.groups[g].block_tokens)
            return tsri_fail(TSR_EINVAL, "kv caches: group %u: block size %u, expected %u", g,
                             l->block_tokens, w->terms.groups[g].block_tokens);
    }
    int e = 0;
    for (uint32_t i = 0; !e && i < TSRI_LANES; i++)
        e = tsri_lane_init(&w->lanes[i], w, names[i], layouts);
    for (uint32_t i = 0; e && i < TSRI_LANES; i++)
        tsri_lane_fini(&w->lanes[i]);
    w->registered = !e;
    return e;
}

/* ---- a step begins ---- */

/* Under lock: waits until the save has read the engine's memory, or gives it up. */
static void await_read(struct tsr_worker *w, struct tsri_kv_job *job, uint64_t until_ns)
{
    while (job->state < TSRI_JOB_READ && !job->given_up)
        if (!tsri_job_await(job, until_ns) && job->state < TSRI_JOB_READ)
            tsri_job_give_up(w, job, TSR_ETIME);
}

/* What loads and saves of a step wait for is queued before it: blocks that another request had until
 * now are not read or written any more after that, and what is saved was written. */
static int mark_written(struct tsr_worker *w, const struct tsri_step_head *head)
{
    bool is_marked = w->has_written && w->marked == head->step;
    if (is_marked || !(head->n_loads || head->n_saves)) return 0;
    int e = tsri_event_record(w->device, w->written, w->engine_stream);
    if (!e) e = tsri_event_wait(w->device, w->written, w->marks);
    w->has_written = !e;
    w->marked = head->step;
    return e;
}

int tsr_worker_handle_preemptions(struct tsr_worker *w, const void *meta, size_t meta_bytes)
{
    if (!w) return no_half();
    struct tsri_order_reader r;
    struct tsri_step_head head;
    int e = tsri_meta_read_step(&r, &w->terms, meta, meta_bytes, &head);
    if (e) return e;
    w->has_written = false; /* of a step that was not begun */
    uint64_t until_ns = tsri_now_ns() + w->terms.save_timeout_ns;
    for (uint32_t i = 0; i < head.n_preempted; i++) {
        uint64_t id;
        e = tsri_meta_read_id(&r, &id);
        if (e) return e;
        pthread_mutex_lock(&w->lock);
        for (struct tsri_kv_job *job = w->jobs; job; job = job->next)
            if (job->is_save && job->save.request == id) await_read(w, job, until_ns);
        pthread_mutex_unlock(&w->lock);
    }
    return 0;
}

int tsr_worker_mark_queue(struct tsr_worker *w, const void *meta, size_t meta_bytes)
{
    if (!w) return no_half();
    struct tsri_order_reader r;
    struct tsri_step_head head;
    int e = tsri_meta_read_step(&r, &w->terms, meta, meta_bytes, &head);
    return e ? e : mark_written(w, &head);
}

static void fail_unstarted(struct tsri_kv_job *job, int err)
{
    job->result = err;
    if (!job->is_save) job->failed_at = job->load.first;
    job->state = TSRI_JOB_DONE;
}

static int open_event(struct tsr_worker *w, struct tsri_kv_job *job)
{
    int e = tsri_event_open(&job->written, w->device);
    return e ? e : tsri_event_record(w->device, job->written, w->marks);
}

/* Takes over the job. What a device refuses fails the job and not the step, of which others have
 * begun. `marked`: whether the step's mark is in the engine's queue. */
static void start(struct tsr_worker *w, struct tsri_kv_job *job, uint32_t lane, int marked)
{
    job->worker = w;
    job->failed_at = UINT32_MAX;
    job->started_ns = tsri_now_ns();
    job->job.run = job->is_save ? tsri_keeping_run : tsri_fetching_run;
    int e = marked ? marked : open_event(w, job);
    pthread_mutex_lock(&w->lock);
    *w->jobs_tail = job;
    w->jobs_tail = &job->next;
    pthread_mutex_unlock(&w->lock);
    if (!e && tsri_work_push(w->lanes[lane].work, &job->job) == 0) return;
    pthread_mutex_lock(&w->lock);
    fail_unstarted(job, e ? e : TSR_EAGAIN);
    pthread_mutex_unlock(&w->lock);
}

static int start_load(struct tsr_worker *w, struct tsri_order_reader *r, int marked)
{
    struct tsri_kv_job *job = tsri_alloc(1, sizeof *job);
    if (!job) return TSR_ENOMEM;
    int e = tsri_meta_read_load(r, &job->load, &job->memory);
    if (e) {
        job_free(job);
        return e;
    }
    bool async = job->load.flags & TSRI_LOAD_ASYNC;
    job->in_step = !async;
    w->n_step_loads += !async;
    start(w, job, async ? TSRI_LANE_LOAD_ASYNC : TSRI_LANE_LOAD, marked);
    return 0;
}

static int start_save(struct tsr_worker *w, struct tsri_order_reader *r, int marked)
{
    struct tsri_kv_job *job = tsri_alloc(1, sizeof *job);
    if (!job) return TSR_ENOMEM;
    job->is_save = true;
    int e = tsri_meta_read_save(r, &job->save, &job->memory);
    if (e) {
        job_free(job);
        return e;
    }
    job->in_step = (job->save.flags & TSRI_SAVE_IN_STEP) || (w->flags & TSR_WORKER_SAVE_IN_STEP);
    w->n_step_saves += job->in_step;
    start(w, job, TSRI_LANE_SAVE, marked);
    return 0;
}

static int take_ended(struct tsr_worker *w, struct tsri_order_reader *r, uint32_t n)
{
    pthread_mutex_lock(&w->lock);
    int e = tsri_grow(&w->ended, &w->ended_max, w->n_ended + n, sizeof *w->ended);
    for (uint32_t i = 0; !e && i < n; i++)
        e = tsri_meta_read_id(r, &w->ended[w->n_ended++]);
    pthread_mutex_unlock(&w->lock);
    return e;
}

int tsr_worker_start_load_kv(struct tsr_worker *w, const void *meta, size_t meta_bytes)
{
    if (!w) return no_half();
    struct tsri_order_reader r;
    struct tsri_step_head head;
    int e = tsri_meta_check_step(&w->terms, meta, meta_bytes);
    if (!e) e = tsri_meta_read_step(&r, &w->terms, meta, meta_bytes, &head);
    if (e) return e;
    w->n_step_loads = w->n_step_saves = 0;
    if (!w->registered && (head.n_loads || head.n_saves))
        return tsri_fail(TSR_EINVAL, "connector: the kv caches are not registered");
    int marked = mark_written(w, &head);
    w->has_written = false;
    uint64_t unused;
    for (uint32_t i = 0; !e && i < head.n_preempted; i++)
        e = tsri_meta_read_id(&r, &unused);
    if (!e) e = take_ended(w, &r, head.n_ended);
    for (uint32_t i = 0; !e && i < head.n_loads; i++)
        e = start_load(w, &r, marked);
    for (uint32_t i = 0; !e && i < head.n_saves; i++)
        e = start_save(w, &r, marked);
    w->stats.steps++;
    return e;
}

/* ---- waiting ---- */

static bool is_awaited(const struct tsr_worker *w, const struct tsri_kv_job *job, uint32_t group,
                       uint32_t layer)
{
    if (job->is_save || !job->in_step || job->state == TSRI_JOB_DONE) return false;
    if (job->given_up || job->queued) return false;
    return group == w->terms.n_groups || job->layers_ready[group] <= layer;
}

/* Waits until a layer of a group (or, group n_groups, everything) of the step's loads is there. For
 * the newest first: they end in about the order in which they began, so one wait is often enough. */
static void await_loads(struct tsr_worker *w, uint32_t group, uint32_t layer)
{
    if (!w->n_step_loads) return;
    struct tsri_kv_job *last;
    pthread_mutex_lock(&w->lock);
    do {
        last = NULL;
        for (struct tsri_kv_job *job = w->jobs; job; job = job->next)
            if (is_awaited(w, job, group, layer)) last = job;
        if (last && !tsri_job_await(last, last->started_ns + w->terms.load_timeout_ns) &&
            is_awaited(w, last, group, layer))
            tsri_job_give_up(w, last, TSR_ETIME);
    } while (last);
    pthread_mutex_unlock(&w->lock);
}

static int check_layer(const struct tsr_worker *w, uint32_t group, uint32_t layer)
{
    if (!w) return no_half();
    if (group >= w->terms.n_groups)
        return tsri_fail(TSR_EINVAL, "connector: group %u of %u", group, w->terms.n_groups);
    uint32_t n = w->registered ? w->lanes[0].mem[group].layout.n_layers : 0;
    if (layer >= n) return tsri_fail(TSR_EINVAL, "connector: layer %u of %u", layer, n);
    return 0;
}

int tsr_worker_wait_for_layer_load(struct tsr_worker *w, uint32_t group, uint32_t layer)
{
    int e = check_layer(w, group, layer);
    if (!e) await_loads(w, group, layer);
    return e;
}

int tsr_worker_save_kv_layer(struct tsr_worker *w, uint32_t group, uint32_t layer)
{
    return check_layer(w, group, layer);
}

int tsr_worker_wait_for_save(struct tsr_worker *w)
{
    if (!w) return no_half();
    if (!w->n_step_saves) return 0;
    uint64_t until_ns = tsri_now_ns() + w->terms.save_timeout_ns;
    pthread_mutex_lock(&w->lock);
    for (struct tsri_kv_job *job = w->jobs; job; job = job->next)
        if (job->is_save && job->in_step) await_read(w, job, until_ns);
    pthread_mutex_unlock(&w->lock);
    w->n_step_saves = 0;
    return 0;
}

int tsr_worker_drain(struct tsr_worker *w, int timeout_ms)
{
    if (!w) return no_half();
    uint64_t until_ns = timeout_ms < 0 ? 0 : tsri_now_ns() + (uint64_t)timeout_ms * 1000000 + 1;
    int e = 0;
    pthread_mutex_lock(&w->lock);
    for (struct tsri_kv_job *job = w->jobs; job && !e; job = job->next)
        while (job->is_save && job->state != TSRI_JOB_DONE && !e)
            if (!tsri_job_await(job, until_ns) && job->state != TSRI_JOB_DONE) e = TSR_ETIME;
    pthread_mutex_unlock(&w->lock);
    return e ? tsri_fail(e, "connector: saves are still in flight") : 0;
}

/* ---- what has become of it ---- */

/* Under lock. Late loads and saves are given up here, too: every step asks. */
static void give_up_late(struct tsr_worker *w)
{
    uint64_t now = tsri_now_ns();
    for (struct tsri_kv_job *job = w->jobs; job; job = job->next) {
        if (job->given_up || job->queued || job->state >= TSRI_JOB_READ) continue;
        uint64_t limit = job->is_save ? w->terms.save_timeout_ns : w->terms.load_timeout_ns;
        if (now - job->started_ns > limit) tsri_job_give_up(w, job, TSR_ETIME);
    }
}

static bool is_read(const struct tsr_worker *w, uint64_t request)
{
    for (const struct tsri_kv_job *job = w->jobs; job; job = job->next)
        if (job->is_save && job->save.request == request && job->state < TSRI_JOB_READ &&
            !job->given_up)
            return false;
    return true;
}

static void tell_sent(struct tsr_worker *w, struct tsr_finished *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_ended; i++) {
        uint64_t id = w->ended[i];
        bool tell = out->n_sent < out->sent_max && is_read(w, id) &&
                    tsri_grow(&w->sent, &w->sent_max, w->n_sent + 1, sizeof *w->sent) == 0;
        if (!tell) {
            w->ended[n++] = id;
            continue;
        }
        out->sent[out->n_sent++] = id;
        w->sent[w->n_sent++] = id;
    }
    w->n_ended = n;
}

int tsr_worker_get_finished(struct tsr_worker *w, struct tsr_finished *out)
{
    if (!w) return no_half();
    if (!out || out->size < sizeof *out || (out->sent_max && !out->sent) ||
        (out->received_max && !out->received))
        return tsri_fail(TSR_EINVAL, "finished: size is not set, or arrays are missing");
    out->n_sent = out->n_received = 0;
    int e = tsr_worker_wait_for_save(w); /* steps without tokens do not call it */
    if (e) return e;
    pthread_mutex_lock(&w->lock);
    give_up_late(w);
    for (struct tsri_kv_job *job = w->jobs; job; job = job->next) {
        bool ended = job->state == TSRI_JOB_DONE || job->given_up;
        if (job->is_save || job->in_step || job->told_request || !ended ||
            out->n_received == out->received_max)
            continue;
        out->received[out->n_received++] = job->load.request;
        job->told_request = true;
    }
    if (w->n_ended) tell_sent(w, out);
    pthread_mutex_unlock(&w->lock);
    return (int)(out->n_sent + out->n_received);
}

/* Under lock: the blocks of a failed load from where it failed, those told already left out. */
static uint32_t tell_blocks(const struct tsri_terms *t, struct tsri_kv_job *job,
                            struct tsr_bad_block *out, uint32_t max)
{
    uint32_t n = 0, i = 0;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        uint32_t size = t->groups[g].block_tokens, first = job->load.first / size;
        uint32_t end = first + tsri_tables_n(&t->groups[g], job->load.first, job->load.end);
        for (uint32_t b = job->failed_at / size; b < end; b++, i++) {
            int32_t block = job->load.tables.blocks[g][b - first];
            if (i < job->n_blocks_told) continue;
            if (n == max) return n;
            job->n_blocks_told = i + 1;
            if (block >= 0) out[n++] = (struct tsr_bad_block){g, block};
        }
    }
    return n;
}

static bool blocks_are_told(const struct tsri_terms *t, const struct tsri_kv_job *job)
{
    uint32_t n = 0;
    if (job->failed_at == UINT32_MAX) return true;
    for (uint32_t g = 0; g < t->n_groups; g++)
        n += tsri_tables_n(&t->groups[g], job->failed_at, job->load.end);
    return job->n_blocks_told >= n;
}

int tsr_worker_get_block_ids_with_load_errors(struct tsr_worker *w, struct tsr_bad_block *out,
                                              uint32_t max)
{
    if (!w || (!out && max)) return no_half();
    await_loads(w, w->terms.n_groups, 0);
    w->n_step_loads = 0;
    uint32_t n = 0;
    pthread_mutex_lock(&w->lock);
    for (struct tsri_kv_job *job = w->jobs; job && n < max; job = job->next) {
        bool ended = job->state == TSRI_JOB_DONE || job->given_up;
        if (job->is_save || !ended || job->failed_at == UINT32_MAX) continue;
        n += tell_blocks(&w->terms, job, out + n, max - n);
    }
    pthread_mutex_unlock(&w->lock);
    return (int)n;
}

/* Under lock: a job that is over, and of which the engine has heard all there is. */
static bool is_over(const struct tsr_worker *w, const struct tsri_kv_job *job)
{
    if (job->state != TSRI_JOB_DONE) return false;
    if (job->is_save) return true;
    return (job->in_step || job->told_request) && blocks_are_told(&w->terms, job);
}

static int note(struct tsr_worker *w, const struct tsri_kv_job *job)
{
    if (job->is_save) {
        int e = tsri_grow(&w->save_reports, &w->save_reports_max, w->n_save_reports + 1,
                          sizeof *w->save_reports);
        if (e) return e;
        w->save_reports[w->n_save_reports++] = (struct tsri_save_report){
            .job = job->save.job,
            .result = job->result,
            .n_tokens = job->n_tokens,
            .busy_us =
                (uint32_t)(job->busy_ns / 1000 < UINT32_MAX ? job->busy_ns / 1000 : UINT32_MAX)};
        return 0;
    }
    int e = tsri_grow(&w->load_reports, &w->load_reports_max, w->n_load_reports + 1,
                      sizeof *w->load_reports);
    if (e) return e;
    w->load_reports[w->n_load_reports++] =
        (struct tsri_load_report){.request = job->load.request,
                                  .load = job->load.load,
                                  .result = job->result,
                                  .loaded = tsri_min_u32(job->failed_at, job->load.end)};
    return 0;
}

int tsr_worker_build_connector_worker_meta(struct tsr_worker *w, const void **meta,
                                           size_t *meta_bytes)
{
    if (!w || !meta || !meta_bytes) return no_half();
    *meta = NULL;
    *meta_bytes = 0;
    pthread_mutex_lock(&w->lock);
    w->n_save_reports = w->n_load_reports = 0;
    struct tsri_kv_job **at = &w->jobs;
    while (*at) {
        struct tsri_kv_job *job = *at;
        bool tell = (is_over(w, job) || job->queued) && !job->reported;
        if (tell && note(w, job) == 0) job->reported = true;
        if (!is_over(w, job) || !job->reported) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        job_free(job);
    }
    w->jobs_tail = at;
    struct tsri_report_head head = {.rank = w->rank,
                                    .n_saves = w->n_save_reports,
                                    .n_loads = w->n_load_reports,
                                    .n_sent = w->n_sent};
    w->meta.n = 0;
    if (head.n_saves || head.n_loads || head.n_sent)
        tsri_meta_put_report(&w->meta, &w->terms, &head, w->save_reports, w->load_reports, w->sent);
    w->n_sent = 0;
    pthread_mutex_unlock(&w->lock);
    if (w->meta.failed) return tsri_fail(TSR_ENOMEM, "connector: out of memory for a report");
    *meta = w->meta.data;
    *meta_bytes = w->meta.n;
    return 0;
}

int tsr_worker_stats(struct tsr_worker *w, struct tsr_connector_stats *out)
{
    if (!w || !out || out->size < sizeof(size_t)) return no_half();
    size_t size = out->size;
    pthread_mutex_lock(&w->lock);
    struct tsr_connector_stats stats = w->stats;
    for (const struct tsri_kv_job *job = w->jobs; job; job = job->next)
        stats.jobs_in_flight += job->state != TSRI_JOB_DONE;
    pthread_mutex_unlock(&w->lock);
    memset(out, 0, size);
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    out->size = size;
    return 0;
}
