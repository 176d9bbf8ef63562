/* fetching.c - a load in the background: straight out of the pages of the cache, or of its server,
 * into the engine's blocks. All groups of up to TSRI_LANE_TOKENS tokens go together, in two steps.
 * First everything is found, and fetched from lower tiers where it must be; the job can be given up
 * at any time then. After that the layers are moved: one by one where the cpu copies, all queued at
 * once where a device queues. Then the device writes until it is done, and giving up waits for it.
 *
 * Rows that cannot go straight go through staging memory: their pages are not page-locked yet, or
 * the cache has no device.
 *
 * The first chunk that cannot be loaded ends the load: what follows it would be recomputed
 * anyway. */
#include "connector/connector.h"
#include "deliver/steps.h"

#define RANGES_MAX TSRI_LANE_RUNS
/* Of one go through staging memory: enough to be worth a request to a server, little enough that
 * the engine is not kept from its first layer. */
#define STEP_BYTES ((size_t)8 << 20)

struct fetching {
    struct tsri_kv_job *job;
    struct tsri_lane *lane;
    uint32_t n_groups;
    uint32_t n_rows; /* that are still wanted */
    uint64_t bytes, bytes_staged;
    struct tsr_prompt prompt;
    struct tsr_prompt states; /* the same, to its last block, which is a segment after the rest */
    struct tsr_range last;
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

static uint32_t space_of(const struct fetching *f, uint32_t group)
{
    return f->job->worker->rank * f->n_groups + group;
}

static const struct tsr_match *match_of(const struct fetching *f, uint32_t group, uint32_t row)
{
    size_t n_spaces = f->job->worker->terms.n_spaces;
    return &f->job->load.rows[row * n_spaces + space_of(f, group)];
}

/* Returns how many of the row's tokens have a block; without any it has left the window. */
static uint32_t row_slots(const struct fetching *f, uint32_t group, struct tsr_range range,
                          int64_t *slots)
{
    const struct tsri_kv_job *job = f->job;
    return tsri_block_slots(slots, job->load.tables.blocks[group],
                            job->worker->terms.groups[group].block_tokens, job->load.first,
                            range.offset, range.n_tokens);
}

/* Tokens of a row in a group: those of the chunk, or the block that ends with a state. */
static struct tsr_range range_of(const struct fetching *f, uint32_t group, uint32_t row)
{
    const struct tsr_match *m = match_of(f, group, row);
    if (tsri_is_state(&f->job->worker->terms, group))
        return (struct tsr_range){m->prompt_offset, m->n_tokens};
    return row_range(f, row);
}

static uint64_t row_bytes(const struct fetching *f, uint32_t group, uint32_t row)
{
    const struct tsri_kvmem *m = &f->lane->mem[group];
    return (uint64_t)range_of(f, group, row).n_tokens * m->row_bytes * m->layout.n_layers;
}

/* What matches that are not verified are compared with; NULL: there are none. */
static const struct tsr_prompt *prompt_of(const struct fetching *f, uint32_t group)
{
    if (!f->job->load.n_tokens) return NULL;
    return tsri_is_state(&f->job->worker->terms, group) ? &f->states : &f->prompt;
}

/* ---- straight ---- */

static void make_ranges(struct fetching *f, uint32_t group, uint32_t first, uint32_t end)
{
    struct tsri_lane_rows *r = &f->lane->rows[group];
    const struct tsr_prompt *prompt = prompt_of(f, group);
    bool straight = tsri_lane_delivery(f->lane, group) != NULL;
    int64_t *slots = r->slots;
    r->n_ranges = r->n_staged = 0;
    for (uint32_t row = first; row < end; row++) {
        struct tsr_range range = range_of(f, group, row);
        const struct tsr_match *m = match_of(f, group, row);
        if (!row_slots(f, group, range, slots)) continue; /* also where there is no state */
        if (!straight) {
            r->staged[r->n_staged++] = row;
            continue;
        }
        r->rows[r->n_ranges] = row;
        r->ranges[r->n_ranges++] =
            (struct tsr_delivery_range){.size = sizeof r->ranges[0],
                                        .match = m,
                                        .prompt = prompt,
                                        .offset = range.offset - m->prompt_offset,
                                        .n_tokens = range.n_tokens,
                                        .slots = slots};
        slots += range.n_tokens;
    }
}

/* Finds and fetches rows of a group. Pages that are not page-locked yet are told per range. */
static void prepare(struct fetching *f, uint32_t group, uint32_t first, uint32_t end)
{
    struct tsri_lane_rows *r = &f->lane->rows[group];
    int e = tsri_lane_open_rows(f->lane, group);
    if (e) {
        r->n_ranges = r->n_staged = 0;
        fail_row(f, first, e);
        return;
    }
    make_ranges(f, group, first, end);
    if (!r->n_ranges) return;
    e = tsri_delivery_prepare(f->lane->deliveries[group], r->ranges, r->n_ranges, 0);
    for (uint32_t i = 0; i < r->n_ranges; i++) {
        int result = e < 0 ? e : r->ranges[i].result;
        if (e >= 0 && result == TSR_EAGAIN)
            r->staged[r->n_staged++] = r->rows[i];
        else if (result)
            fail_row(f, r->rows[i], result);
    }
    if (e > 0) return;
    r->n_ranges = 0;
    (void)tsri_delivery_drop(f->lane->deliveries[group]); /* nothing is queued: it cannot fail */
}

/* Every layer of all groups, told as it arrives. A job that nothing is queued for can be given up
 * between layers. */
static int move_layers(struct fetching *f, bool queues, bool tell)
{
    uint32_t n_layers = 0;
    for (uint32_t g = 0; g < f->n_groups; g++)
        if (f->lane->mem[g].layout.n_layers > n_layers) n_layers = f->lane->mem[g].layout.n_layers;
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        if (!queues) {
            tsri_job_touched(f->job);
            if (!tsri_job_touch(f->job)) return TSR_ETIME;
        }
        for (uint32_t g = 0; g < f->n_groups; g++) {
            const struct tsri_lane_rows *r = &f->lane->rows[g];
            if (layer >= f->lane->mem[g].layout.n_layers) continue;
            int e = r->n_ranges ? tsr_delivery_wait_layer(f->lane->deliveries[g], layer) : 0;
            if (e) return e;
            if (tell && !r->n_staged) tsri_job_layers(f->job, g, layer + 1);
        }
    }
    return 0;
}

static void drop(struct fetching *f)
{
    for (uint32_t g = 0; g < f->n_groups; g++)
        if (f->lane->deliveries[g] && tsri_delivery_drop(f->lane->deliveries[g]) != 0)
            tsri_log(TSR_LOG_WARN, "connector: %s", tsr_errmsg());
}

/* Of a load that cannot fail: all of it is queued, and the engine's queue goes on behind it. */
static int hand_over(struct fetching *f)
{
    int e = 0;
    for (uint32_t g = 0; !e && g < f->n_groups; g++)
        if (f->lane->rows[g].n_ranges)
            e = tsri_delivery_hold(f->lane->deliveries[g], f->job->worker->engine_stream);
    if (!e) tsri_job_queued(f->job);
    return e;
}

/* Not one that did fail: the engine has to hear of it in this step. Nor one out of a server's pages:
 * whether they were lent to the end is known at the end. */
static bool is_handed_over(const struct fetching *f, bool queues, bool last)
{
    const struct tsri_options *o = tsri_cache_options(f->job->worker->terms.cache);
    bool all = f->n_rows == f->job->load.n_rows && o->owner != TSRI_OWNER_DAEMON;
    for (uint32_t g = 0; g < f->n_groups; g++)
        all = all && f->lane->rows[g].n_staged == 0;
    return all && queues && last && f->job->load.flags & TSRI_LOAD_SURE;
}

/* What was prepared. With a device that queues, wake-ups for layers are for steps that wait for
 * them; all others wait once, for the end. */
static int move(struct fetching *f, bool tell)
{
    struct tsr_worker *w = f->job->worker;
    bool queues = tsri_device_caps(w->device) & TSR_DEVICE_ASYNC;
    int e = tsri_job_touch(f->job) ? 0 : TSR_ETIME;
    for (uint32_t g = 0; !e && g < f->n_groups; g++)
        if (f->lane->rows[g].n_ranges)
            e = tsri_delivery_begin(f->lane->deliveries[g], f->job->written);
    bool handed = is_handed_over(f, queues, tell);
    if (!e && handed) e = hand_over(f);
    if (!e && !handed && (!queues || f->job->in_step)) e = move_layers(f, queues, tell);
    /* Was it all still lent while it was copied? After an error: what is queued is waited for, and
     * the rest is never queued. */
    for (uint32_t g = 0; !e && g < f->n_groups; g++)
        if (f->lane->rows[g].n_ranges) e = tsr_delivery_finish(f->lane->deliveries[g]);
    if (e) drop(f);
    tsri_job_touched(f->job);
    return e;
}

static void deliver(struct fetching *f, uint32_t first, bool last)
{
    int e = move(f, last);
    if (e) fail_row(f, first, e);
    if (e == TSR_ETIME) f->n_rows = 0;
    for (uint32_t g = 0; !e && g < f->n_groups; g++) {
        const struct tsri_lane_rows *r = &f->lane->rows[g];
        for (uint32_t i = 0; i < r->n_ranges; i++)
            if (!r->ranges[i].result) f->bytes += row_bytes(f, g, r->rows[i]);
    }
}

/* ---- through staging memory ---- */

/* Staged rows from the i-th on, some layers: one request to the cache, one move. Returns how many
 * rows it took. */
static uint32_t fetch_some(struct fetching *f, uint32_t group, uint32_t i, uint32_t layer,
                           uint32_t n_layers)
{
    struct tsri_kv_job *job = f->job;
    const struct tsri_terms *t = &job->worker->terms;
    const struct tsri_lane_rows *r = &f->lane->rows[group];
    struct tsri_kvmem *mem = &f->lane->mem[group];
    struct tsr_load_desc loads[RANGES_MAX];
    struct tsri_kvmem_run runs[RANGES_MAX];
    uint32_t n = 0;
    size_t at = 0;
    int64_t *slots = f->lane->slots;
    for (; i + n < r->n_staged && r->staged[i + n] < f->n_rows && n < RANGES_MAX; n++) {
        uint32_t row = r->staged[i + n];
        struct tsr_range range = range_of(f, group, row);
        const struct tsr_match *m = match_of(f, group, row);
        size_t bytes = (size_t)range.n_tokens * mem->row_bytes * n_layers;
        size_t room = n ? STEP_BYTES : f->lane->staging.bytes;
        if (room > f->lane->staging.bytes) room = f->lane->staging.bytes;
        if (at + bytes > room) break;
        (void)row_slots(f, group, range, slots);
        runs[n] = (struct tsri_kvmem_run){.at = at, .n_tokens = range.n_tokens, .slots = slots};
        loads[n] = (struct tsr_load_desc){.size = sizeof loads[n],
                                          .space = t->spaces[space_of(f, group)],
                                          .match = m,
                                          .prompt = prompt_of(f, group),
                                          .offset = range.offset - m->prompt_offset,
                                          .n_tokens = range.n_tokens,
                                          .layer_first = layer,
                                          .n_layers = n_layers,
                                          .view = {.data = mem->staging + at, .bytes = bytes}};
        slots += range.n_tokens;
        at = tsri_align_up(at + bytes, 64);
    }
    if (!n) return 0;
    int e = tsr_client_load(t->client, loads, n);
    uint32_t n_good = 0;
    while (e >= 0 && n_good < n && loads[n_good].result == 0)
        n_good++;
    if (n_good < n) fail_row(f, r->staged[i + n_good], e < 0 ? e : loads[n_good].result);
    if (!n_good) return n;
    if (!tsri_job_touch(job)) {
        f->n_rows = 0;
        return n;
    }
    e = tsri_kvmem_move(mem, true, runs, n_good, layer, n_layers);
    tsri_job_touched(job);
    if (e) fail_row(f, r->staged[i], e);
    return n;
}

static void fetch_staged(struct fetching *f, uint32_t group, bool tell)
{
    const struct tsri_terms *t = &f->job->worker->terms;
    const struct tsri_lane_rows *r = &f->lane->rows[group];
    struct tsri_kvmem *mem = &f->lane->mem[group];
    int e = tsri_kvmem_take(mem);
    if (e) {
        fail_row(f, r->staged[0], e);
        return;
    }
    uint32_t n_all = mem->layout.n_layers;
    size_t at_once = STEP_BYTES / ((size_t)t->chunk_tokens * mem->row_bytes);
    uint32_t step =
        tsri_min_u32(tsri_kvmem_layers(mem, t->chunk_tokens),
                     at_once < 1 ? 1 : (uint32_t)tsri_min_u32((uint32_t)at_once, n_all));
    for (uint32_t layer = 0; layer < n_all; layer += step) {
        uint32_t n_layers = tsri_min_u32(step, n_all - layer), n_taken = 1;
        for (uint32_t i = 0; n_taken && i < r->n_staged; i += n_taken)
            n_taken = fetch_some(f, group, i, layer, n_layers);
        if (tell) tsri_job_layers(f->job, group, layer + n_layers);
    }
    for (uint32_t i = 0; i < r->n_staged && r->staged[i] < f->n_rows; i++)
        f->bytes_staged += row_bytes(f, group, r->staged[i]);
}

/* ---- all of it ---- */

/* Rows [first, end) of all groups; layers are told of when these rows are the last. */
static void fetch_rows(struct fetching *f, uint32_t first, uint32_t end, bool last)
{
    uint32_t n_ranges = 0;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        prepare(f, g, first, end);
        n_ranges += f->lane->rows[g].n_ranges;
    }
    if (n_ranges && f->n_rows > first) deliver(f, first, last);
    if (n_ranges && f->n_rows <= first) drop(f);
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const struct tsri_lane_rows *r = &f->lane->rows[g];
        if (r->n_staged && r->staged[0] < f->n_rows) fetch_staged(f, g, last);
    }
}

void tsri_fetching_run(struct tsri_job *base)
{
    struct tsri_kv_job *job = (struct tsri_kv_job *)base;
    struct tsr_worker *w = job->worker;
    struct tsri_lane *lane =
        &w->lanes[job->load.flags & TSRI_LOAD_ASYNC ? TSRI_LANE_LOAD_ASYNC : TSRI_LANE_LOAD];
    struct fetching f = {
        .job = job, .lane = lane, .n_groups = w->terms.n_groups, .n_rows = job->load.n_rows};
    f.prompt = (struct tsr_prompt){.size = sizeof f.prompt,
                                   .tokens = job->load.tokens,
                                   .n_tokens = job->load.n_tokens,
                                   .flags = TSR_PROMPT_PREFIX,
                                   .extra = job->load.extras.items,
                                   .n_extra = job->load.extras.n};
    uint32_t n_state = w->terms.state_tokens;
    if (n_state && job->load.n_tokens) {
        f.last = (struct tsr_range){job->load.end - n_state, n_state};
        f.states = f.prompt;
        f.states.flags = TSR_PROMPT_SEGMENTS;
        f.states.segments = &f.last;
        f.states.n_segments = 1;
        f.states.context = f.prompt.tokens;
        f.states.n_context = f.last.offset;
    }
    /* Blocks may have been another request's until now, whose last step is still queued. */
    int e = tsri_event_wait(w->device, job->written, lane->stream);
    if (e) fail_row(&f, 0, e);
    uint32_t n_all = f.n_rows;
    for (uint32_t row = 0; row < f.n_rows; row += lane->rows_max) {
        uint32_t end = tsri_min_u32(row + lane->rows_max, n_all);
        fetch_rows(&f, row, end, end == n_all);
    }
    pthread_mutex_lock(&w->lock);
    w->stats.loads++;
    /* Too late is failed, also where all of it has come while giving up waited. */
    if (job->given_up) {
        job->failed_at = job->load.first;
        if (!job->result) job->result = TSR_ETIME;
    }
    if (job->failed_at != UINT32_MAX)
        w->stats.loads_failed++;
    else
        w->stats.tokens_loaded += job->load.end - job->load.first;
    w->stats.bytes_loaded += f.bytes + f.bytes_staged;
    w->stats.bytes_staged += f.bytes_staged;
    pthread_mutex_unlock(&w->lock);
    tsri_job_done(job);
}
