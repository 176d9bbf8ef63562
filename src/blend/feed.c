/* feed.c - brings matched ranges into the engine's memory, layer by layer, K turned to its new
 * position on the way. What lookups found in memory is copied by one job of the cache's threads,
 * what they found below by another, as each layer is proven; whoever computes waits for a layer
 * only, and helps with the copies. A copy runs straight from where a source has the range
 * (cache/source.h), the pool's pages, the device pool or the pages of a server, into the engine's
 * slots, and a layer counts when the source still held after it was copied.
 *
 * On a device that queues, everything that is in memory goes together (bulk.c): whoever comes first,
 * the job or the one who waits, queues all layers, and the latter waits for each.
 *
 * A feed has several owners: who opened it, and each job. A job whose tier stalls outlives the
 * owner's interest: once a range is given up, or the feed closed, its job may go on reading into
 * the cache but never again touches the engine's memory. The last owner frees it. */
#include "blend/blend.h"
#include "cache/source.h"

struct range {
    struct tsri_feed *feed;
    struct tsr_match match;
    struct tsr_space *space;
    bool int8, exact, plain;
    const struct tsri_source_range *from;
    void **planes;
    int64_t *slots;
    struct tsr_kv_cells cells;
    struct tsr_kv_run run;
    struct tsri_batch *batch;
    /* under feed->lock: */
    bool bulk;        /* goes with the others of the feed's bulk, whose layers count */
    bool here;        /* where it is read from is known, so that anybody may copy it */
    uint32_t n_ready; /* layers in place */
    int result;
    bool writing;
};

/* The ranges of one job. */
struct portion {
    struct tsri_job job; /* first */
    struct tsri_feed *feed;
    struct tsri_source source;
    struct range **ranges; /* [source.n] */
    uint32_t n_below;
};

struct tsri_feed {
    struct tsr_cache *cache;
    struct tsri_device *device;
    struct tsr_kv_layout layout;
    struct tsr_rope rope;
    uint32_t freq_set;
    struct tsr_prompt prompt; /* own copies of tokens, segments and context */
    struct tsr_prompt plain;  /* the same for ranges that are; own copies of extras */
    struct tsr_extra *extra;
    uint8_t *extra_data;
    uint32_t *tokens;
    struct tsr_range *segments;
    uint32_t *context;
    struct range *ranges;
    uint32_t n_ranges;
    struct portion portions[2];        /* what lookups found in memory, and what they found below */
    struct tsr_device_stream *compute; /* the engine's; NULL: it has queued nothing */
    struct tsr_device_event *before;   /* what it had queued when the feed was opened */
    struct tsri_bulk *bulk;            /* NULL: none, or it could not be opened */
    struct tsri_bulk_spare *spare;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock: */
    uint32_t n_owners;
    bool closed;
    bool bulk_taken, bulk_queues;   /* somebody has begun, and is at it */
    bool bulk_failed, bulk_settled; /* nothing of it is wanted any more, or under way */
    uint32_t bulk_queued, bulk_ready;
};

/* ---- one range ---- */

/* It is known where it is read from: describes it and makes the table of the rotation. */
static int range_bind(struct range *r)
{
    struct tsri_feed *f = r->feed;
    uint32_t n_planes = tsri_source_n_planes(r->from);
    r->planes = tsri_alloc((size_t)n_planes + 1, sizeof *r->planes);
    if (!r->planes) return TSR_ENOMEM;
    /* Not page-locked yet: computing it is faster than waiting for that. */
    bool needs_lock = tsri_device_caps(f->device) & TSR_DEVICE_NEEDS_LOCK;
    if (needs_lock && !tsri_source_is_locked(r->from)) return TSR_EAGAIN;
    uint32_t offset = tsri_source_cells(r->from, r->planes, &r->cells);
    r->cells.int8 = r->int8;
    r->run = (struct tsr_kv_run){.cells = &r->cells,
                                 .slots = r->slots,
                                 .offset = offset,
                                 .n_tokens = r->match.n_tokens,
                                 .delta = (int64_t)r->match.prompt_offset - r->match.entry_offset -
                                          r->from->base,
                                 .freq_set = r->from->freq_set};
    if (r->exact && r->run.delta) return TSR_ESPACE;
    struct tsr_batch_limits limits = {.runs = 1,
                                      .tokens = r->match.n_tokens,
                                      .cells = r->cells.n_cells,
                                      .plane_pointers =
                                          r->cells.n_cells * r->cells.n_layers * r->cells.n_planes};
    struct tsri_batch_desc desc = {.direction = TSRI_BATCH_SCATTER,
                                   .n_runs = 1,
                                   .layout = &f->layout,
                                   .runs = &r->run,
                                   .rope = &f->rope,
                                   .freq_set = f->freq_set};
    int err = tsri_batch_open(&r->batch, f->device, &limits);
    return err ? err : tsri_batch_set(r->batch, NULL, &desc);
}

/* Copies one layer, unless nobody wants it any more or it is there already. */
static void range_layer(struct range *r, uint32_t layer)
{
    struct tsri_feed *f = r->feed;
    pthread_mutex_lock(&f->lock);
    bool wanted = !f->closed && r->result == 0 && layer == r->n_ready && !r->writing;
    if (wanted) r->writing = true;
    pthread_mutex_unlock(&f->lock);
    if (!wanted) return;
    int e = r->batch ? 0 : range_bind(r);
    if (!e) e = tsri_batch_scatter(r->batch, layer, 1);
    if (!e && tsri_device_caps(f->device) & TSR_DEVICE_ASYNC) e = tsri_stream_sync(f->device, NULL);
    if (!e && !tsri_source_holds(r->from->source)) e = TSR_ENOENT; /* copied in vain */
    pthread_mutex_lock(&f->lock);
    r->writing = false;
    if (e)
        r->result = e;
    else
        r->n_ready++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* ---- what goes together ---- */

/* Under lock. */
static void bulk_fail(struct tsri_feed *f, int e)
{
    f->bulk_failed = true;
    for (uint32_t i = 0; i < f->n_ranges; i++)
        if (f->ranges[i].bulk && f->ranges[i].result == 0) f->ranges[i].result = e;
    pthread_cond_broadcast(&f->changed);
}

/* Queues all layers, unless somebody else does or nobody wants them any more. */
static void bulk_run(struct tsri_feed *f)
{
    uint32_t n_layers = f->layout.n_layers;
    pthread_mutex_lock(&f->lock);
    bool mine = f->bulk && !f->bulk_taken && !f->closed;
    f->bulk_taken |= mine;
    while (mine && f->bulk_queued < n_layers && !f->closed && !f->bulk_failed) {
        f->bulk_queues = true;
        pthread_mutex_unlock(&f->lock);
        int n = tsri_bulk_queue(f->bulk);
        pthread_mutex_lock(&f->lock);
        f->bulk_queues = false;
        if (n < 0)
            bulk_fail(f, n);
        else
            f->bulk_queued = (uint32_t)n;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* Under lock, which is let go meanwhile: waits for a layer that is queued. By one thread. */
static void bulk_wait(struct tsri_feed *f, uint32_t layer)
{
    if (!f->bulk || f->bulk_failed || f->bulk_queued <= layer || f->bulk_ready > layer) return;
    pthread_mutex_unlock(&f->lock);
    int n = tsri_bulk_wait(f->bulk, layer);
    for (uint32_t i = 0; n > 0 && i < 2; i++)
        if (!tsri_source_holds(&f->portions[i].source)) n = TSR_ENOENT; /* copied in vain */
    pthread_mutex_lock(&f->lock);
    if (n < 0)
        bulk_fail(f, n);
    else
        f->bulk_ready = (uint32_t)n;
}

/* Under lock, which is let go meanwhile: after a failure nothing is written any more, because its
 * slots are computed now. */
static void bulk_settle(struct tsri_feed *f)
{
    if (!f->bulk || !f->bulk_failed || f->bulk_settled) return;
    f->bulk_taken = f->bulk_settled = true;
    while (f->bulk_queues)
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
    tsri_bulk_drain(f->bulk);
    pthread_mutex_lock(&f->lock);
}

/* Before any job runs: takes what is in memory. What fails here costs its ranges. */
static int bulk_open(struct tsri_feed *f)
{
    uint32_t n = 0;
    struct tsri_bulk_range *rows = tsri_alloc((size_t)f->n_ranges + 1, sizeof *rows);
    if (!rows) return TSR_ENOMEM;
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        if (!r->here || r->result) continue;
        rows[n] = (struct tsri_bulk_range){.from = r->from,
                                           .match = &r->match,
                                           .slots = r->slots,
                                           .int8 = r->int8,
                                           .exact = r->exact};
        r->result = tsri_bulk_check(f->device, &rows[n]);
        r->bulk = r->result == 0;
        n += r->bulk;
    }
    struct tsri_bulk_desc desc = {.device = f->device,
                                  .layout = &f->layout,
                                  .rope = &f->rope,
                                  .freq_set = f->freq_set,
                                  .ranges = rows,
                                  .n_ranges = n,
                                  .after = f->before,
                                  .spare = f->spare};
    int e = n ? tsri_bulk_open(&f->bulk, &desc) : 0;
    tsri_free(rows);
    if (e) bulk_fail(f, e);
    return 0;
}

/* ---- jobs ---- */

static void feed_free(struct tsri_feed *f)
{
    for (uint32_t i = 0; f->ranges && i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        tsri_free(r->planes);
        tsri_free(r->slots);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct portion *p = &f->portions[i];
        tsri_source_close(&p->source);
        tsri_free(p->source.ranges);
        tsri_free(p->source.pins);
        tsri_free(p->ranges);
    }
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    tsri_free(f->ranges);
    tsri_free(f->tokens);
    tsri_free(f->segments);
    tsri_free(f->context);
    tsri_free(f->extra);
    tsri_free(f->extra_data);
    tsri_free(f);
}

/* Everything that is the device's: it may be closed before a job that is held up ends. */
static void close_device(struct tsri_feed *f)
{
    pthread_mutex_lock(&f->lock); /* a late job looks whether there is one */
    struct tsri_bulk *bulk = f->bulk;
    f->bulk = NULL;
    pthread_mutex_unlock(&f->lock);
    tsri_bulk_close(bulk);
    for (uint32_t i = 0; f->ranges && i < f->n_ranges; i++) {
        tsri_batch_close(f->ranges[i].batch);
        f->ranges[i].batch = NULL;
    }
    if (f->before) tsri_event_close(f->device, f->before);
    if (f->compute) tsri_stream_close(f->device, f->compute);
    f->before = NULL;
    f->compute = NULL;
}

static void leave(struct tsri_feed *f)
{
    pthread_mutex_lock(&f->lock);
    bool last = --f->n_owners == 0;
    pthread_mutex_unlock(&f->lock);
    if (last) feed_free(f);
}

static void copy_here(struct portion *p)
{
    for (uint32_t l = 0; l < p->feed->layout.n_layers; l++)
        for (uint32_t i = 0; i < p->source.n; i++)
            if (p->ranges[i]->here && !p->ranges[i]->bulk) range_layer(p->ranges[i], l);
}

static void layer_fetched(struct tsri_source_range *from, uint32_t layer)
{
    struct portion *p = from->source->arg;
    range_layer(p->ranges[from - p->source.ranges], layer);
}

/* What was below is here now, or not to be had: whoever waits may copy. */
static void hand_over(struct portion *p)
{
    pthread_mutex_lock(&p->feed->lock);
    for (uint32_t i = 0; i < p->source.n; i++) {
        struct range *r = p->ranges[i];
        if (r->bulk) continue;
        if (r->result == 0) r->result = r->from->result;
        r->here = r->from->result == 0;
    }
    pthread_cond_broadcast(&p->feed->changed);
    pthread_mutex_unlock(&p->feed->lock);
}

static void run_portion(struct tsri_job *job)
{
    struct portion *p = (struct portion *)job;
    bulk_run(p->feed);
    copy_here(p);
    if (p->n_below) {
        int e = tsri_source_fetch(&p->source, NULL);
        (void)e; /* each range has it as its result */
        hand_over(p);
        copy_here(p);
    }
    leave(p->feed);
}

/* When no thread has room for it, it runs here and now. */
static void start(struct tsri_feed *f, struct portion *p)
{
    p->job.run = run_portion;
    pthread_mutex_lock(&f->lock);
    f->n_owners++;
    pthread_mutex_unlock(&f->lock);
    if (tsri_work_push(tsri_cache_work(f->cache), &p->job) != 0) run_portion(&p->job);
}

/* ---- opening ---- */

static int copy_prompt(struct tsri_feed *f, const struct tsr_prompt *prompt)
{
    f->prompt = *prompt;
    f->tokens = tsri_alloc(prompt->n_tokens, sizeof *f->tokens);
    f->segments = tsri_alloc((size_t)prompt->n_segments + 1, sizeof *f->segments);
    f->context = tsri_alloc((size_t)prompt->n_context + 1, sizeof *f->context);
    if (!f->tokens || !f->segments || !f->context) return TSR_ENOMEM;
    memcpy(f->tokens, prompt->tokens, prompt->n_tokens * sizeof *f->tokens);
    if (prompt->n_segments)
        memcpy(f->segments, prompt->segments, prompt->n_segments * sizeof *f->segments);
    f->prompt.tokens = f->tokens;
    f->prompt.segments = prompt->n_segments ? f->segments : NULL;
    if (prompt->n_context)
        memcpy(f->context, prompt->context, prompt->n_context * sizeof *f->context);
    f->prompt.context = prompt->n_context ? f->context : NULL;
    return 0;
}

static int copy_plain(struct tsri_feed *f, const struct tsr_extra *extra, uint32_t n)
{
    size_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += extra[i].bytes;
    f->extra = tsri_alloc((size_t)n + 1, sizeof *f->extra);
    f->extra_data = tsri_alloc(bytes + 1, 1);
    if (!f->extra || !f->extra_data) return TSR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        f->extra[i] = extra[i];
        f->extra[i].data = f->extra_data + at;
        if (extra[i].bytes) memcpy(f->extra_data + at, extra[i].data, extra[i].bytes);
        at += extra[i].bytes;
    }
    f->plain = (struct tsr_prompt){.size = sizeof f->plain,
                                   .tokens = f->tokens,
                                   .n_tokens = f->prompt.n_tokens,
                                   .flags = TSR_PROMPT_PREFIX,
                                   .extra = f->extra,
                                   .n_extra = n};
    return 0;
}

static int range_open(struct range *r, struct tsri_feed *f, const struct tsri_feed_range *from)
{
    *r = (struct range){.feed = f,
                        .match = from->match,
                        .space = from->space,
                        .int8 = from->int8,
                        .exact = from->exact,
                        .plain = from->plain};
    r->slots = tsri_alloc(from->match.n_tokens, sizeof *r->slots);
    if (!r->slots) return TSR_ENOMEM;
    for (uint32_t i = 0; i < from->match.n_tokens; i++)
        r->slots[i] = from->slots ? from->slots[i] : (int64_t)from->match.prompt_offset + i;
    return 0;
}

/* The ranges that lookups found below, or those that they did not. */
static int portion_open(struct tsri_feed *f, bool below)
{
    struct portion *p = &f->portions[below];
    p->feed = f;
    p->source = (struct tsri_source){.c = f->cache, .layer_done = layer_fetched, .arg = p};
    p->source.ranges = tsri_alloc((size_t)f->n_ranges + 1, sizeof *p->source.ranges);
    p->ranges = tsri_alloc((size_t)f->n_ranges + 1, sizeof *p->ranges);
    if (!p->source.ranges || !p->ranges) return TSR_ENOMEM;
    if (f->device == tsri_cache_device(f->cache)) { /* it can read the device pool */
        p->source.pins = tsri_alloc((size_t)f->n_ranges + 1, sizeof *p->source.pins);
        if (!p->source.pins) return TSR_ENOMEM;
    }
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        if ((r->match.tier != 0) != below) continue;
        struct tsri_source_range *from = &p->source.ranges[p->source.n];
        const struct tsr_prompt *prompt = r->plain ? &f->plain : &f->prompt;
        struct tsri_want want = {.space = r->space, .match = &r->match, .prompt = prompt};
        int e = tsri_source_want(from, f->cache, &want);
        if (e) return e;
        r->from = from;
        p->ranges[p->source.n++] = r;
    }
    return 0;
}

/* Pins what is here; returns whether there is something to do. */
static bool portion_pin(struct portion *p)
{
    bool any = false;
    p->n_below = tsri_source_open(&p->source);
    for (uint32_t i = 0; i < p->source.n; i++) {
        struct range *r = p->ranges[i];
        r->result = r->from->result;
        r->here = r->result == 0 && r->from->where != TSRI_BELOW;
        any |= r->result == 0;
    }
    return any;
}

/* What the engine has queued comes before everything that is written here. */
static int follow(struct tsri_feed *f, void *native)
{
    if (!native || !(tsri_device_caps(f->device) & TSR_DEVICE_ASYNC)) return 0;
    int e = tsri_stream_open(&f->compute, f->device, native, 0);
    if (!e) e = tsri_event_open(&f->before, f->device);
    if (!e) e = tsri_event_record(f->device, f->before, f->compute);
    return e;
}

static void begin(struct tsri_feed *f)
{
    bool here = portion_pin(&f->portions[0]), below = portion_pin(&f->portions[1]);
    bool queues = tsri_device_caps(f->device) & TSR_DEVICE_ASYNC;
    int e = queues ? bulk_open(f) : 0;
    /* Ranges from below are copied as they come, by streams that know nothing of the engine's. */
    if (!e && f->before && (f->portions[0].n_below || f->portions[1].n_below || !f->bulk))
        e = tsri_event_sync(f->device, f->before);
    for (uint32_t i = 0; e && i < f->n_ranges; i++)
        if (!f->ranges[i].result) f->ranges[i].result = e;
    if (e) {
        bulk_fail(f, e); /* whoever waits must not begin it */
        return;
    }
    if (below) start(f, &f->portions[1]);
    if (here) start(f, &f->portions[0]);
}

int tsri_feed_open(struct tsri_feed **out, const struct tsri_feed_desc *d)
{
    *out = NULL;
    int e = tsri_layout_check(d->layout);
    for (uint32_t i = 0; !e && i < d->n_ranges; i++)
        e = tsri_shape_fits(tsri_space_shape(d->ranges[i].space), d->layout, d->ranges[i].int8);
    if (e) return e;
    struct tsri_feed *f = tsri_alloc(1, sizeof *f);
    if (!f) return TSR_ENOMEM;
    f->cache = d->cache;
    f->device = d->device;
    f->layout = *d->layout;
    f->rope = *d->rope;
    f->freq_set = d->freq_set;
    f->spare = d->spare;
    f->n_owners = 1;
    tsri_cond_init(&f->changed);
    pthread_mutex_init(&f->lock, NULL);
    f->ranges = tsri_alloc((size_t)d->n_ranges + 1, sizeof *f->ranges);
    e = f->ranges ? copy_prompt(f, d->prompt) : TSR_ENOMEM;
    if (!e) e = copy_plain(f, d->extra, d->n_extra);
    for (; !e && f->n_ranges < d->n_ranges; f->n_ranges++)
        e = range_open(&f->ranges[f->n_ranges], f, &d->ranges[f->n_ranges]);
    if (!e) e = portion_open(f, false);
    if (!e) e = portion_open(f, true);
    if (!e) e = follow(f, d->compute);
    if (e) {
        close_device(f);
        feed_free(f);
        return e;
    }
    *out = f;
    begin(f);
    return 0;
}

/* ---- waiting ---- */

static uint64_t deadline(uint32_t timeout_ms)
{
    return tsri_now_ns() + (uint64_t)timeout_ms * 1000000;
}

/* Under lock: ranges that lack the layer and can still be had, and what all of them have. */
static uint32_t n_missing(const struct tsri_feed *f, uint32_t layer, uint64_t *progress)
{
    uint32_t n = 0;
    *progress = 0;
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        const struct range *r = &f->ranges[i];
        uint32_t n_ready = r->bulk ? f->bulk_ready : r->n_ready;
        *progress += n_ready + (r->result ? f->layout.n_layers : 0);
        n += r->result == 0 && n_ready <= layer;
    }
    return n;
}

/* Under lock, which is let go meanwhile: copies what is in host memory and not copied yet,
 * because the threads are busy, or stuck with a tier. */
static void help(struct tsri_feed *f, uint32_t layer)
{
    if (f->bulk && !f->bulk_taken) {
        pthread_mutex_unlock(&f->lock);
        bulk_run(f);
        pthread_mutex_lock(&f->lock);
    }
    bulk_wait(f, layer);
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        while (r->here && !r->bulk && r->result == 0 && !r->writing && r->n_ready <= layer) {
            uint32_t next = r->n_ready;
            pthread_mutex_unlock(&f->lock);
            range_layer(r, next);
            pthread_mutex_lock(&f->lock);
        }
    }
}

static void give_up(struct tsri_feed *f, uint32_t layer)
{
    if (f->bulk && f->bulk_ready <= layer) bulk_fail(f, TSR_ETIME);
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        if (r->result || r->bulk || r->n_ready > layer) continue;
        r->result = TSR_ETIME;
        while (r->writing)
            pthread_cond_wait(&f->changed, &f->lock);
        r->result = TSR_ETIME;
    }
}

int tsri_feed_wait(struct tsri_feed *f, uint32_t layer, uint32_t timeout_ms)
{
    int n_failed = 0;
    uint64_t progress, before;
    pthread_mutex_lock(&f->lock);
    help(f, layer);
    uint64_t until_ns = deadline(timeout_ms);
    while (n_missing(f, layer, &before)) {
        bool in_time = tsri_cond_wait(&f->changed, &f->lock, until_ns);
        help(f, layer);
        if (n_missing(f, layer, &progress) && progress != before) {
            until_ns = deadline(timeout_ms);
        } else if (!in_time) {
            give_up(f, layer);
            break;
        }
    }
    bulk_settle(f);
    for (uint32_t i = 0; i < f->n_ranges; i++)
        n_failed += f->ranges[i].result != 0;
    pthread_mutex_unlock(&f->lock);
    return n_failed;
}

int tsri_feed_result(struct tsri_feed *f, uint32_t range)
{
    pthread_mutex_lock(&f->lock);
    int result = f->ranges[range].result;
    pthread_mutex_unlock(&f->lock);
    return result;
}

void tsri_feed_close(struct tsri_feed *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->closed = true;
    for (uint32_t i = 0; i < f->n_ranges; i++)
        while (f->ranges[i].writing)
            pthread_cond_wait(&f->changed, &f->lock);
    while (f->bulk_queues)
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
    close_device(f);
    leave(f);
}
