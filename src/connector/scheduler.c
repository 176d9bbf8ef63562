/* scheduler.c - the scheduler half: keeps what the engine says of its requests and turns it into
 * the bytes of a step. It runs in the engine's scheduler, between two steps of every request there
 * is, so a step in which nothing is to be done must cost next to nothing: one look into a table for
 * each request, and no memory taken. */
#include "connector/connector.h"

/* What running requests may be kept waiting for by a load within a step: 64 MiB are 1.2 ms of a bus
 * of 55 GB/s, less than a step takes. */
#define SURE_BYTES ((uint64_t)64 << 20)

static int no_half(void)
{
    return tsri_fail(TSR_EINVAL, "connector: scheduler is NULL");
}

int tsr_scheduler_open(struct tsr_scheduler **out, struct tsr_cache *cache,
                       const struct tsr_connector_desc *desc)
{
    if (!out) return tsri_fail(TSR_EINVAL, "connector: out");
    *out = NULL;
    struct tsr_scheduler *s = tsri_alloc(1, sizeof *s);
    if (!s) return TSR_ENOMEM;
    int e = tsri_terms_init(&s->terms, cache, desc, TSRI_ALL_RANKS);
    if (!e) e = tsri_reqs_init(&s->reqs);
    if (!e) e = tsri_saves_init(s);
    if (e) {
        tsr_scheduler_close(s);
        return e;
    }
    s->stats.size = sizeof s->stats;
    s->sure_bytes = SURE_BYTES;
    *out = s;
    return 0;
}

void tsr_scheduler_close(struct tsr_scheduler *s)
{
    if (!s) return;
    tsri_saves_fini(s);
    tsri_reqs_fini(&s->reqs);
    tsri_bytes_fini(&s->meta);
    tsri_bytes_fini(&s->loads);
    tsri_bytes_fini(&s->saves);
    tsri_free(s->preempted);
    tsri_free(s->ended);
    tsri_free(s->ready);
    tsri_terms_fini(&s->terms); /* the client's leases go with it */
    tsri_free(s);
}

uint32_t tsr_scheduler_chunk_tokens(const struct tsr_scheduler *s)
{
    return s ? s->terms.chunk_tokens : 0;
}

/* ---- requests ---- */

void tsri_scheduler_settle(struct tsr_scheduler *s, struct tsri_req *r)
{
    if (!r->ended || r->n_saves || r->n_sent_reports || r->load_state == TSRI_LOAD_SENT) return;
    tsri_hits_drop(s, r);
    tsri_reqs_remove(&s->reqs, r);
}

/* What is under way of it goes on without it: its reports find nobody. */
static void forget(struct tsr_scheduler *s, struct tsri_req *r)
{
    if (r->load_state == TSRI_LOAD_SENT) {
        s->n_loads_sent--;
        tsri_resets_ended(s, &r->load_old);
        tsr_client_release(s->terms.client, r->id);
        if (s->terms.n_states) tsr_client_release(s->terms.state_client, r->id);
    }
    tsri_hits_drop(s, r);
    if (r->n_sent_reports) s->n_held--;
    if (!r->ended) s->n_live--;
    tsri_reqs_remove(&s->reqs, r);
}

int tsr_scheduler_on_new_request(struct tsr_scheduler *s, const struct tsr_request_desc *request)
{
    if (!s) return no_half();
    if (!request || request->size < sizeof *request || !request->id || !request->tokens)
        return tsri_fail(TSR_EINVAL, "connector: request: size, id or tokens are missing");
    struct tsri_req *r = tsri_reqs_find(&s->reqs, request->id);
    if (r) forget(s, r);
    r = tsri_reqs_add(&s->reqs, request->id);
    if (!r) return TSR_ENOMEM;
    r->n_prompt = request->n_prompt_tokens ? request->n_prompt_tokens : request->n_tokens;
    r->no_load = request->flags & TSR_REQUEST_NO_LOAD;
    r->no_save = request->flags & TSR_REQUEST_NO_SAVE;
    int e = tsri_req_tokens(r, 0, request->tokens, request->n_tokens);
    if (e) {
        tsri_reqs_remove(&s->reqs, r);
        return e;
    }
    s->stats.requests++;
    s->n_live++;
    e = tsri_extras_init(&r->extras, request->extra, request->n_extra, r->n_tokens,
                         s->terms.chunk_tokens);
    /* What a state was computed after is known by its tokens alone. */
    for (uint32_t i = 0; !e && s->terms.n_states && i < r->extras.n; i++)
        if (r->extras.items[i].kind == TSR_EXTRA_MEDIA)
            e = tsri_fail(TSR_EUNSUP, "media before states");
    if (e) { /* what cannot be told apart must not be cached; the request itself is fine */
        tsri_log(TSR_LOG_WARN, "connector: request %llu is not cached: %s",
                 (unsigned long long)r->id, tsr_errmsg());
        r->no_load = r->no_save = true;
    }
    return 0;
}

int tsr_scheduler_append_tokens(struct tsr_scheduler *s, uint64_t id, uint32_t first,
                                const uint32_t *tokens, uint32_t n)
{
    if (!s || (!tokens && n)) return no_half();
    struct tsri_req *r = tsri_reqs_find(&s->reqs, id);
    return r ? tsri_req_tokens(r, first, tokens, n) : 0;
}

int tsr_scheduler_get_num_new_matched_tokens(struct tsr_scheduler *s, uint64_t id,
                                             uint32_t n_computed, uint32_t *load_async)
{
    if (!s || !load_async) return no_half();
    *load_async = 0;
    struct tsri_req *r = tsri_reqs_find(&s->reqs, id);
    if (!r || r->ended) return 0;
    int n = tsri_hits_find(s, r, n_computed, load_async);
    if (n < 0) return n;
    if (!r->counted) s->stats.tokens_asked += r->n_tokens;
    r->counted = true;
    (void)tsri_waits_computed(s, r, n_computed + (uint32_t)n);
    return n;
}

static int take_blocks(struct tsr_scheduler *s, struct tsri_req *r, bool reset,
                       const struct tsr_blocks *b)
{
    const int32_t *at = b->blocks;
    if (reset) r->reach = 0;
    for (uint32_t g = 0; g < s->terms.n_groups; g++) {
        int e = tsri_req_blocks(r, g, reset, at, b->n_blocks[g]);
        if (e) return e;
        if (at) at += b->n_blocks[g];
    }
    return 0;
}

int tsr_scheduler_update_state_after_alloc(struct tsr_scheduler *s, uint64_t id,
                                           const struct tsr_blocks *blocks, uint32_t n_external)
{
    if (!s || !blocks || !blocks->n_blocks) return no_half();
    struct tsri_req *r = tsri_reqs_find(&s->reqs, id);
    if (!r) return n_external ? tsri_fail(TSR_ENOENT, "connector: no such request") : 0;
    int e = take_blocks(s, r, true, blocks);
    if (!e) (void)tsri_waits_computed(s, r, r->asked_computed + n_external);
    return e ? e : tsri_hits_take(s, r, n_external);
}

int tsr_scheduler_handle_preemptions(struct tsr_scheduler *s, const uint64_t *ids, uint32_t n)
{
    if (!s || (!ids && n)) return no_half();
    int e = tsri_grow(&s->preempted, &s->preempted_max, s->n_preempted + n, sizeof *ids);
    if (e) return e;
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_req *r = tsri_reqs_find(&s->reqs, ids[i]);
        if (!r) continue;
        tsri_log(TSR_LOG_DEBUG, "connector: request %llu: preempted, %u saves in flight",
                 (unsigned long long)r->id, r->n_saves);
        tsri_hits_drop(s, r);
        tsri_req_restart(r);
        if (r->n_saves) s->preempted[s->n_preempted++] = ids[i];
    }
    return 0;
}

/* ---- a step ---- */

/* The first token that is still there in every group. What has left a window stays gone when the
 * engine takes tokens back: drafts that were refused, a load that failed. */
static uint32_t first_kept(const struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed)
{
    uint32_t kept = 0;
    if (n_computed > r->reach) r->reach = n_computed;
    for (uint32_t g = 0; g < s->terms.n_groups; g++) {
        uint32_t first = tsri_window_first(&s->terms.groups[g], r->reach);
        if (first > kept) kept = first;
    }
    return kept;
}

static int take_row(struct tsr_scheduler *s, const struct tsr_step_row *row,
                    const uint32_t *new_tokens, const uint32_t *n_new_blocks,
                    const int32_t *new_blocks, uint32_t *n_computed)
{
    struct tsri_req *r = tsri_reqs_find(&s->reqs, row->id);
    if (!r || r->ended) return 0;
    if (row->n_new_tokens > row->n_tokens)
        return tsri_fail(TSR_EINVAL, "step: %u new tokens, expected %u", row->n_new_tokens,
                         row->n_tokens);
    int e = 0;
    if (row->n_new_tokens)
        e = tsri_req_tokens(r, row->n_tokens - row->n_new_tokens, new_tokens, row->n_new_tokens);
    if (n_new_blocks && !e) {
        struct tsr_blocks blocks = {.blocks = new_blocks, .n_blocks = n_new_blocks};
        e = take_blocks(s, r, row->flags & TSR_ROW_RESET_BLOCKS, &blocks);
    }
    if (e) return e;
    struct tsri_counters c = {.n_computed = row->n_computed,
                              .n_placeholders = row->n_placeholders,
                              .n_in_flight = row->n_in_flight,
                              .n_tokens = tsri_min_u32(row->n_tokens, r->n_tokens),
                              .n_prompt = r->n_prompt};
    uint32_t boundary = tsri_boundary(s->terms.boundary, TSRI_RUNNING, &c);
    uint32_t kept = first_kept(s, r, row->n_computed);
    uint32_t in_flight = tsri_min_u32(row->n_in_flight, row->n_computed);
    *n_computed += tsri_waits_computed(s, r, row->n_computed - in_flight);
    if (s->terms.n_states) tsri_saves_states(s, r, row->n_computed - in_flight, boundary);
    if (boundary / s->terms.chunk_tokens * s->terms.chunk_tokens <= r->upto) return 0;
    tsri_saves_plan(s, r, boundary, kept);
    return 0;
}

static int take_rows(struct tsr_scheduler *s, const struct tsr_step_desc *step)
{
    const uint32_t *tokens = step->new_tokens, *n_blocks = step->n_new_blocks;
    const int32_t *blocks = step->new_blocks;
    uint32_t n_computed = 0;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct tsr_step_row *row = &step->rows[i];
        if (row->n_new_tokens && !tokens) return tsri_fail(TSR_EINVAL, "step: no new tokens");
        int e = take_row(s, row, tokens, n_blocks, blocks, &n_computed);
        if (e) return e;
        if (tokens) tokens += row->n_new_tokens;
        for (uint32_t g = 0; n_blocks && g < s->terms.n_groups; g++) {
            if (blocks)
                blocks += n_blocks[g];
            else if (n_blocks[g])
                return tsri_fail(TSR_EINVAL, "step: no new blocks");
        }
        if (n_blocks) n_blocks += s->terms.n_groups;
    }
    tsri_waits_step(s, n_computed);
    return 0;
}

/* Empties what has gone out, and keeps the memory. */
static void begin_next(struct tsr_scheduler *s)
{
    s->loads.n = s->saves.n = 0;
    s->n_saves_out = s->n_preempted = s->n_ended = 0;
}

int tsr_scheduler_build_connector_meta(struct tsr_scheduler *s, const struct tsr_step_desc *step,
                                       const void **meta, size_t *meta_bytes)
{
    if (!s || !step || !meta || !meta_bytes) return no_half();
    *meta = NULL;
    *meta_bytes = 0;
    if (step->size < sizeof *step || (!step->rows && step->n_rows))
        return tsri_fail(TSR_EINVAL, "step: size is not set, or rows are missing");
    int e = take_rows(s, step);
    if (e) return e;
    uint64_t n_loads = s->stats.loads;
    tsri_hits_send(s);
    struct tsri_step_head head = {.step = ++s->step,
                                  .n_loads = (uint32_t)(s->stats.loads - n_loads),
                                  .n_saves = s->n_saves_out,
                                  .n_preempted = s->n_preempted,
                                  .n_ended = s->n_ended};
    s->meta.n = 0;
    tsri_meta_put_step(&s->meta, &s->terms, &head);
    tsri_bytes_put(&s->meta, s->preempted, s->n_preempted * sizeof *s->preempted);
    tsri_bytes_put(&s->meta, s->ended, s->n_ended * sizeof *s->ended);
    tsri_bytes_put(&s->meta, s->loads.data, s->loads.n);
    tsri_bytes_put(&s->meta, s->saves.data, s->saves.n);
    if (s->meta.failed || s->loads.failed || s->saves.failed)
        return tsri_fail(TSR_ENOMEM, "step: out of memory");
    begin_next(s);
    s->stats.steps++;
    *meta = s->meta.data;
    *meta_bytes = s->meta.n;
    return 0;
}

/* A worker has told the engine that the request's blocks may go. */
static void take_sent(struct tsr_scheduler *s, uint64_t id)
{
    struct tsri_req *r = tsri_reqs_find(&s->reqs, id);
    if (!r || !r->n_sent_reports) return;
    if (--r->n_sent_reports == 0) s->n_held--;
    tsri_scheduler_settle(s, r);
}

int tsr_scheduler_update_connector_output(struct tsr_scheduler *s, const void *meta,
                                          size_t meta_bytes)
{
    if (!s) return no_half();
    if (meta_bytes == 0) return 0;
    struct tsri_order_reader r;
    struct tsri_report_head head;
    int e = tsri_meta_read_report(&r, &s->terms, meta, meta_bytes, &head);
    if (e) return e;
    for (uint32_t i = 0; i < head.n_saves; i++) {
        struct tsri_save_report report;
        tsri_meta_read_save_report(&r, &report);
        tsri_saves_report(s, &report);
    }
    for (uint32_t i = 0; i < head.n_loads; i++) {
        struct tsri_load_report report;
        tsri_meta_read_load_report(&r, &report);
        tsri_hits_report(s, &report);
    }
    for (uint32_t i = 0; i < head.n_sent; i++) {
        uint64_t id = 0;
        e = tsri_meta_read_id(&r, &id);
        TSR_ASSERT(e == 0); /* the length was checked */
        take_sent(s, id);
    }
    (void)tsri_resets_on(s);
    return 0;
}

/* ---- the end of a request ---- */

int tsr_scheduler_request_finished(struct tsr_scheduler *s, const struct tsr_finish_desc *f)
{
    if (!s || !f) return no_half();
    const size_t least = offsetof(struct tsr_finish_desc, n_saved);
    uint32_t *n_saved = f->size >= sizeof *f ? f->n_saved : NULL;
    if (n_saved) *n_saved = 0;
    if (f->size < least || f->n_new_tokens > f->n_tokens || (!f->new_tokens && f->n_new_tokens))
        return tsri_fail(TSR_EINVAL, "finish: size is not set, or %u new tokens of %u",
                         f->n_new_tokens, f->n_tokens);
    struct tsri_req *r = tsri_reqs_find(&s->reqs, f->id);
    if (!r || r->ended) return 0;
    int e = tsri_grow(&s->ended, &s->ended_max, s->n_ended + 1, sizeof *s->ended);
    if (!e) e = tsri_req_tokens(r, f->n_tokens - f->n_new_tokens, f->new_tokens, f->n_new_tokens);
    if (!e && f->blocks && f->blocks->n_blocks) e = take_blocks(s, r, true, f->blocks);
    struct tsri_counters c = {.n_computed = f->n_computed,
                              .n_placeholders = f->n_placeholders,
                              .n_in_flight = f->n_in_flight,
                              .n_tokens = tsri_min_u32(f->n_tokens, r->n_tokens),
                              .n_prompt = r->n_prompt};
    enum tsri_stage stage = f->aborted ? TSRI_ABORTED : TSRI_FINISHED;
    uint32_t kept = first_kept(s, r, f->n_computed);
    uint32_t boundary = e ? 0 : tsri_boundary(s->terms.boundary, stage, &c);
    if (!e) tsri_saves_plan(s, r, boundary, kept);
    if (!e && s->terms.n_states)
        tsri_saves_states(s, r, f->n_computed - tsri_min_u32(f->n_in_flight, f->n_computed),
                          boundary);
    bool held = r->n_saves_now > 0;
    if (n_saved) *n_saved = r->saved;
    if (held) {
        s->ended[s->n_ended++] = r->id;
        r->n_sent_reports = s->terms.n_ranks;
        s->n_held++;
    }
    r->ended = true;
    s->n_live--;
    tsri_hits_drop(s, r);
    tsri_scheduler_settle(s, r);
    return held;
}

int tsr_scheduler_has_pending_work(const struct tsr_scheduler *s)
{
    return s && (s->n_savings || s->n_loads_sent || s->n_ready || s->n_held || s->n_preempted);
}

/* ---- watching ---- */

int tsr_scheduler_take_events(struct tsr_scheduler *s, struct tsr_event *out, uint32_t max)
{
    if (!s) return no_half();
    int n = tsr_cache_events(s->terms.cache, out, max);
    int kept = 0;
    for (int i = 0; i < n; i++) {
        bool ours = false;
        for (uint32_t k = 0; k < s->terms.n_spaces && !ours; k++) {
            uint8_t fingerprint[16];
            tsr_space_fingerprint(s->terms.spaces[k], fingerprint);
            ours = memcmp(fingerprint, out[i].space, sizeof fingerprint) == 0;
        }
        if (ours) out[kept++] = out[i];
    }
    return n < 0 ? n : kept;
}

int tsr_scheduler_keys(struct tsr_scheduler *s, uint64_t id, uint32_t first, uint32_t n,
                       struct tsr_key *keys)
{
    if (!s || (!keys && n)) return no_half();
    const struct tsri_req *r = tsri_reqs_find(&s->reqs, id);
    return r ? tsri_saves_keys(s, r, first, n, keys) : 0;
}

int tsr_scheduler_stats(const struct tsr_scheduler *s, struct tsr_connector_stats *out)
{
    if (!s || !out || out->size < sizeof(size_t)) return no_half();
    size_t size = out->size;
    struct tsr_connector_stats stats = s->stats;
    stats.jobs_in_flight = s->n_savings;
    memset(out, 0, size);
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    out->size = size;
    return 0;
}
