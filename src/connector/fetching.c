/* fetching.c - a load in the background, layer by layer, so that the engine computes its first
 * layer while the last ones arrive. Into host memory it is a delivery, straight out of the cache's
 * pages; into a device's it goes through staging memory, because a device writes when it likes, and
 * a job must be able to say when it no longer does. The first chunk that cannot be had ends the
 * load: what stands behind it would be recomputed anyway. */
#include "connector/connector.h"

#define RANGES_MAX TSRI_LANE_RUNS
/* Of one go: enough to be worth a request to a server, little enough that the engine is not kept
 * from its first layer. */
#define STEP_BYTES ((size_t)8 << 20)

struct fetching {
    struct tsri_kv_job *job;
    struct tsri_lane *lane;
    struct tsri_kvmem *mem;
    struct tsr_space *space;
    const struct tsr_match *column; /* of this space: rows are n_spaces apart */
    uint32_t group;
    uint32_t n_rows; /* that are still wanted */
    struct tsr_prompt prompt;
};

/* Tokens of a row that are to be loaded. */
static struct tsr_range row_range(const struct fetching *f, uint32_t row)
{
    const struct tsri_load_order *o = &f->job->load;
    uint32_t chunk = f->job->worker->terms.chunk_tokens;
    uint32_t first = (o->first / chunk + row) * chunk, end = first + chunk;
    if (first < o->first) first = o->first;
    if (end > o->end) end = o->end;
    return (struct tsr_range){first, end - first};
}

static void fail_row(struct fetching *f, uint32_t row, int err)
{
    if (row >= f->n_rows) return;
    f->n_rows = row;
    tsri_job_fail_at(f->job, row_range(f, row).offset, err);
}

/* ---- straight ---- */

/* Rows from `row` on as ranges of one delivery; *n_taken of them were looked at. */
static uint32_t make_ranges(struct fetching *f, uint32_t row, struct tsr_delivery_range *ranges,
                            uint32_t *rows, uint32_t *n_taken)
{
    const struct tsri_kv_job *job = f->job;
    const struct tsri_terms *t = &job->worker->terms;
    int64_t *slots = f->lane->slots;
    uint32_t n = 0;
    for (*n_taken = 0; row + *n_taken < f->n_rows && n < RANGES_MAX; (*n_taken)++) {
        struct tsr_range range = row_range(f, row + *n_taken);
        const struct tsr_match *m = &f->column[(size_t)(row + *n_taken) * t->n_spaces];
        if (!tsri_block_slots(slots, job->load.tables.blocks[f->group],
                              t->groups[f->group].block_tokens, job->load.first, range.offset,
                              range.n_tokens))
            continue; /* has left the window: nobody wants it */
        rows[n] = row + *n_taken;
        ranges[n++] = (struct tsr_delivery_range){.size = sizeof ranges[0],
                                                  .match = m,
                                                  .prompt = job->load.n_tokens ? &f->prompt : NULL,
                                                  .offset = range.offset - m->prompt_offset,
                                                  .n_tokens = range.n_tokens,
                                                  .slots = slots};
        slots += range.n_tokens;
    }
    return n;
}

/* All layers of some rows; layers are told of when these rows are the last. */
static uint32_t deliver_some(struct fetching *f, uint32_t row)
{
    struct tsr_delivery_range ranges[RANGES_MAX];
    uint32_t rows[RANGES_MAX], n_taken, n = make_ranges(f, row, ranges, rows, &n_taken);
    struct tsr_delivery *d = f->lane->deliveries[f->group];
    bool last = row + n_taken == f->n_rows;
    if (!n) return n_taken;
    int e = tsr_delivery_start(d, ranges, n, 0);
    for (uint32_t i = 0; i < n; i++)
        if (e < 0 || ranges[i].result) fail_row(f, rows[i], e < 0 ? e : ranges[i].result);
    if (e <= 0) return n_taken;
    e = 0;
    for (uint32_t layer = 0; !e && layer < f->mem->layout.n_layers; layer++) {
        if (!tsri_job_touch(f->job)) {
            e = TSR_ETIME;
            break;
        }
        e = tsr_delivery_wait_layer(d, layer);
        tsri_job_touched(f->job);
        if (!e && last) tsri_job_layers(f->job, f->group, layer + 1);
    }
    /* Was it still lent while it was copied? All layers have come, so nothing is written here; when
     * they have not, the next start lets go. */
    if (!e) e = tsr_delivery_finish(d);
    if (e) fail_row(f, rows[0], e);
    if (e == TSR_ETIME) f->n_rows = 0;
    return n_taken;
}

/* ---- through staging memory ---- */

/* Some rows, some layers: one request to the cache, one move. Returns how many rows it took. */
static uint32_t fetch_some(struct fetching *f, uint32_t row, uint32_t layer, uint32_t n_layers)
{
    struct tsri_kv_job *job = f->job;
    const struct tsri_terms *t = &job->worker->terms;
    struct tsr_load_desc loads[RANGES_MAX];
    struct tsri_kvmem_run runs[RANGES_MAX];
    uint32_t rows[RANGES_MAX], n = 0, n_taken = 0;
    size_t at = 0;
    int64_t *slots = f->lane->slots;
    for (; row + n_taken < f->n_rows && n < RANGES_MAX; n_taken++) {
        struct tsr_range range = row_range(f, row + n_taken);
        size_t bytes = (size_t)range.n_tokens * f->mem->row_bytes * n_layers;
        size_t room = n ? STEP_BYTES : f->mem->staging_bytes;
        if (room > f->mem->staging_bytes) room = f->mem->staging_bytes;
        if (at + bytes > room) break;
        uint32_t there = tsri_block_slots(slots, job->load.tables.blocks[f->group],
                                          t->groups[f->group].block_tokens, job->load.first,
                                          range.offset, range.n_tokens);
        if (!there) continue; /* has left the window: nobody wants it */
        const struct tsr_match *m = &f->column[(size_t)(row + n_taken) * t->n_spaces];
        rows[n] = row + n_taken;
        runs[n] = (struct tsri_kvmem_run){.at = at, .n_tokens = range.n_tokens, .slots = slots};
        loads[n] = (struct tsr_load_desc){.size = sizeof loads[n],
                                          .space = f->space,
                                          .match = m,
                                          .prompt = job->load.n_tokens ? &f->prompt : NULL,
                                          .offset = range.offset - m->prompt_offset,
                                          .n_tokens = range.n_tokens,
                                          .layer_first = layer,
                                          .n_layers = n_layers,
                                          .view = {.data = f->mem->staging + at, .bytes = bytes}};
        slots += range.n_tokens;
        at = tsri_align_up(at + bytes, 64);
        n++;
    }
    if (!n) return n_taken;
    int e = tsr_client_load(t->client, loads, n);
    uint32_t n_good = 0;
    while (e >= 0 && n_good < n && loads[n_good].result == 0)
        n_good++;
    if (n_good < n) fail_row(f, rows[n_good], e < 0 ? e : loads[n_good].result);
    if (!n_good) return n_taken;
    if (!tsri_job_touch(job)) {
        f->n_rows = 0;
        return n_taken;
    }
    e = tsri_kvmem_move(f->mem, true, runs, n_good, layer, n_layers);
    tsri_job_touched(job);
    if (e) fail_row(f, rows[0], e);
    return n_taken;
}

static void fetch_group(struct fetching *f)
{
    const struct tsri_terms *t = &f->job->worker->terms;
    uint32_t n_all = f->mem->layout.n_layers;
    if (f->lane->deliveries[f->group]) {
        for (uint32_t row = 0; row < f->n_rows;)
            row += deliver_some(f, row);
        return;
    }
    size_t layer_bytes = (size_t)t->chunk_tokens * f->mem->row_bytes;
    size_t at_once = STEP_BYTES / layer_bytes;
    uint32_t step =
        tsri_min_u32(tsri_kvmem_layers(f->mem, t->chunk_tokens),
                     at_once < 1 ? 1 : (uint32_t)tsri_min_u32((uint32_t)at_once, n_all));
    for (uint32_t layer = 0; layer < n_all && f->n_rows; layer += step) {
        uint32_t n_layers = tsri_min_u32(step, n_all - layer);
        for (uint32_t row = 0; row < f->n_rows;)
            row += fetch_some(f, row, layer, n_layers);
        tsri_job_layers(f->job, f->group, layer + n_layers);
    }
}

void tsri_fetching_run(struct tsri_job *base)
{
    struct tsri_kv_job *job = (struct tsri_kv_job *)base;
    struct tsr_worker *w = job->worker;
    const struct tsri_terms *t = &w->terms;
    struct tsri_lane *lane =
        &w->lanes[job->load.flags & TSRI_LOAD_ASYNC ? TSRI_LANE_LOAD_ASYNC : TSRI_LANE_LOAD];
    struct fetching f = {.job = job, .lane = lane, .n_rows = job->load.n_rows};
    f.prompt = (struct tsr_prompt){.size = sizeof f.prompt,
                                   .tokens = job->load.tokens,
                                   .n_tokens = job->load.n_tokens,
                                   .flags = TSR_PROMPT_PREFIX,
                                   .extra = job->load.extras.items,
                                   .n_extra = job->load.extras.n};
    /* Blocks may have been another request's until now, whose last step is still queued. */
    int e = tsri_event_wait(w->device, w->written, lane->stream);
    if (e) fail_row(&f, 0, e);
    uint32_t n_tokens = job->load.end - job->load.first;
    for (uint32_t g = 0; g < t->n_groups && f.n_rows; g++) {
        uint32_t space = w->rank * t->n_groups + g;
        f.group = g;
        f.mem = &lane->mem[g];
        f.space = t->spaces[space];
        f.column = job->load.rows + space;
        fetch_group(&f);
    }
    pthread_mutex_lock(&w->lock);
    w->stats.loads++;
    if (job->failed_at != UINT32_MAX || job->given_up)
        w->stats.loads_failed++;
    else
        w->stats.tokens_loaded += n_tokens;
    pthread_mutex_unlock(&w->lock);
    tsri_job_done(job);
}
