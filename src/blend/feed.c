/* feed.c - brings matched ranges into the engine's memory, layer by layer, K turned to its new
 * position on the way. What is in host memory is copied by one job of the cache's threads, what
 * only a lower tier has is fetched by another and copied as each layer is proven; whoever computes
 * waits for a layer only, and helps with the copies. A copy runs straight from the pages of the
 * pool into the engine's slots. Where a server has the cache, the jobs borrow the pages from it,
 * and a layer counts when the borrow still held after it was copied.
 *
 * A feed has several owners: who opened it, and each job. A job whose tier stalls outlives the
 * owner's interest: once a range is given up, or the feed closed, its job may go on reading into
 * the cache but never again touches the engine's memory. The last owner frees it. */
#include "blend/blend.h"
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/ops.h"
#include "cache/source.h"

struct range {
    struct tsri_feed *feed;
    struct tsr_match match;
    struct tsr_space *space;
    bool int8;
    uint32_t id; /* pinned; TSRI_ID_NONE: not */
    bool exact, cold;
    const struct tsri_borrow *borrow; /* under feed->lock: a server has lent it, as `lent` of it */
    uint32_t lent;
    void **planes;
    int64_t *slots;
    struct tsr_kv_cells cells;
    struct tsr_kv_run run;
    struct tsri_batch *batch;
    /* under feed->lock: */
    uint32_t n_ready; /* layers in place */
    int result;
    bool writing;
};

struct job {
    struct tsri_job job; /* first */
    struct tsri_feed *feed;
};

struct tsri_feed {
    struct tsr_cache *cache;
    struct tsri_device *device;
    struct tsr_kv_layout layout;
    struct tsr_rope rope;
    uint32_t freq_set;
    struct tsr_prompt prompt; /* own copies of tokens and segments */
    uint32_t *tokens;
    struct tsr_range *segments;
    struct range *ranges;
    uint32_t n_ranges;
    struct job host_job, cold_job;
    struct tsri_borrow borrows[2]; /* of a server: what it has in memory, what it has to fetch */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock: */
    uint32_t n_owners;
    bool closed;
};

/* ---- one range ---- */

static void fail_range(struct range *r, int err)
{
    pthread_mutex_lock(&r->feed->lock);
    if (r->result == 0) r->result = err;
    pthread_cond_broadcast(&r->feed->changed);
    pthread_mutex_unlock(&r->feed->lock);
}

/* Describes the pages of an entry; returns at which position its first token stands. */
static int64_t bind_entry(struct range *r, struct tsri_meta *meta)
{
    const struct tsr_cache *c = r->feed->cache;
    const struct tsri_shape *shape = &r->space->shape;
    tsri_manager_planes(c, &c->entries[r->id], meta, r->planes);
    r->cells =
        (struct tsr_kv_cells){.size = sizeof r->cells,
                              .planes = r->planes,
                              .n_cells = tsri_shape_n_cells(shape, meta->n_tokens),
                              .cell_tokens = shape->cell_tokens,
                              .n_tokens = meta->n_tokens,
                              .n_layers = shape->n_layers,
                              .n_planes = shape->n_planes,
                              .memory = c->pool_locked ? TSR_MEMORY_LOCKED : TSR_MEMORY_HOST};
    r->run.offset = r->match.entry_offset;
    r->run.freq_set = meta->freq_set;
    return (int64_t)meta->base + r->match.entry_offset;
}

/* The same of pages that are borrowed. */
static int64_t bind_lent(struct range *r)
{
    const struct tsri_borrowed *l = &r->borrow->ranges[r->lent];
    tsri_borrow_cells(r->borrow, r->lent, r->planes, &r->cells);
    r->run.offset = l->offset;
    r->run.freq_set = l->freq_set;
    return l->stands;
}

/* The pages are known now: describes them and makes the table of the rotation. meta is that of an
 * entry of ours, or NULL. */
static int range_bind(struct range *r, struct tsri_meta *meta)
{
    struct tsri_feed *f = r->feed;
    uint32_t n_planes = r->borrow ? tsri_borrow_n_planes(r->borrow, r->lent)
                                  : tsri_manager_n_planes(f->cache, &f->cache->entries[r->id]);
    r->planes = tsri_alloc(n_planes, sizeof *r->planes);
    if (!r->planes) return TSR_ENOMEM;
    r->run =
        (struct tsr_kv_run){.cells = &r->cells, .slots = r->slots, .n_tokens = r->match.n_tokens};
    int64_t stands = r->borrow ? bind_lent(r) : bind_entry(r, meta);
    r->cells.int8 = r->int8;
    r->run.delta = (int64_t)r->match.prompt_offset - stands;
    if (r->exact && r->run.delta) return TSR_ESPACE;
    struct tsr_batch_limits limits = {.runs = 1,
                                      .tokens = r->match.n_tokens,
                                      .cells = r->cells.n_cells,
                                      .plane_pointers = n_planes};
    struct tsri_batch_desc desc = {.direction = TSRI_BATCH_SCATTER,
                                   .n_runs = 1,
                                   .layout = &f->layout,
                                   .runs = &r->run,
                                   .rope = &f->rope,
                                   .freq_set = f->freq_set};
    int err = tsri_batch_open(&r->batch, f->device, &limits);
    return err ? err : tsri_batch_set(r->batch, NULL, &desc);
}

/* Copies one layer, unless nobody wants it any more. Layers come in order; one that comes again,
 * from another tier, is there already. */
static void range_layer(struct range *r, struct tsri_meta *meta, uint32_t layer)
{
    struct tsri_feed *f = r->feed;
    pthread_mutex_lock(&f->lock);
    bool wanted = !f->closed && r->result == 0 && layer == r->n_ready && !r->writing;
    if (wanted) r->writing = true;
    pthread_mutex_unlock(&f->lock);
    if (!wanted) return;
    int e = r->batch ? 0 : range_bind(r, meta);
    if (!e) e = tsri_batch_scatter(r->batch, layer, 1);
    if (!e && tsri_device_caps(f->device) & TSR_DEVICE_ASYNC) e = tsri_stream_sync(f->device, NULL);
    if (!e && r->borrow && !tsri_borrow_holds(r->borrow)) e = TSR_ENOENT; /* copied in vain */
    pthread_mutex_lock(&f->lock);
    r->writing = false;
    if (e)
        r->result = e;
    else
        r->n_ready++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* ---- jobs ---- */

static void feed_free(struct tsri_feed *f)
{
    for (uint32_t i = 0; f->ranges && i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        tsri_batch_close(r->batch);
        tsri_free(r->planes);
        tsri_free(r->slots);
        if (r->id != TSRI_ID_NONE) tsri_unpin(f->cache, r->id);
    }
    tsri_borrow_fini(&f->borrows[0]);
    tsri_borrow_fini(&f->borrows[1]);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    tsri_free(f->ranges);
    tsri_free(f->tokens);
    tsri_free(f->segments);
    tsri_free(f);
}

static void leave(struct tsri_feed *f)
{
    pthread_mutex_lock(&f->lock);
    bool last = --f->n_owners == 0;
    pthread_mutex_unlock(&f->lock);
    if (last) feed_free(f);
}

static void run_host(struct tsri_job *job)
{
    struct tsri_feed *f = ((struct job *)job)->feed;
    for (uint32_t l = 0; l < f->layout.n_layers; l++)
        for (uint32_t i = 0; i < f->n_ranges; i++) {
            struct range *r = &f->ranges[i];
            if (r->cold || r->id == TSRI_ID_NONE) continue;
            range_layer(r, tsri_meta(f->cache, &f->cache->entries[r->id]), l);
        }
    leave(f);
}

/* Ranges of one kind, with their numbers in `which`. */
static uint32_t want_all(struct tsri_feed *f, bool cold, struct tsri_borrow_want *wants,
                         struct range **which)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        if (r->cold != cold) continue;
        wants[n] =
            (struct tsri_borrow_want){.space = r->space, .match = &r->match, .prompt = &f->prompt};
        which[n++] = r;
    }
    return n;
}

/* Whoever waits may copy from now on. */
static void hand_over(struct range *r, const struct tsri_borrow *b, uint32_t i)
{
    pthread_mutex_lock(&r->feed->lock);
    if (r->result == 0) r->result = b->ranges[i].result;
    if (b->ranges[i].result == 0) {
        r->lent = i;
        r->borrow = b;
    }
    pthread_cond_broadcast(&r->feed->changed);
    pthread_mutex_unlock(&r->feed->lock);
}

/* On the cache's own connection, which outlives whoever has opened the feed. */
static void run_lent(struct tsri_job *job)
{
    struct tsri_feed *f = ((struct job *)job)->feed;
    bool cold = (struct job *)job == &f->cold_job;
    struct tsri_served *served = f->cache->served;
    struct tsri_borrow *b = &f->borrows[cold];
    struct tsri_borrow_want *wants = tsri_alloc(f->n_ranges, sizeof *wants);
    struct range **which = tsri_alloc(f->n_ranges, sizeof *which);
    int e = wants && which ? 0 : TSR_ENOMEM;
    uint32_t n = e ? 0 : want_all(f, cold, wants, which);
    if (e == 0)
        e = tsri_borrow_init(b, served->seat, wants, n, tsri_now_ns() + served->patience_ns);
    for (uint32_t i = 0; i < f->n_ranges && e; i++)
        if (f->ranges[i].cold == cold) fail_range(&f->ranges[i], e == TSR_EAGAIN ? TSR_ENOENT : e);
    for (uint32_t i = 0; i < n && !e; i++)
        hand_over(which[i], b, i);
    for (uint32_t l = 0; l < f->layout.n_layers && !e; l++)
        for (uint32_t i = 0; i < n; i++)
            if (b->ranges[i].result == 0) range_layer(which[i], NULL, l);
    tsri_free(wants);
    tsri_free(which);
    leave(f);
}

static bool fetch_verify(struct tsri_fetch *fetch, struct tsri_meta *meta)
{
    struct range *r = fetch->arg;
    return tsri_match_wanted(r->space, &r->match, &r->feed->prompt, &r->feed->cache->entries[r->id],
                             meta);
}

static void fetch_layer(struct tsri_fetch *fetch, struct tsri_meta *meta, uint32_t layer)
{
    range_layer(fetch->arg, meta, layer);
}

static void run_cold(struct tsri_job *job)
{
    struct tsri_feed *f = ((struct job *)job)->feed;
    struct tsri_fetch *fetches = tsri_alloc(f->n_ranges, sizeof *fetches);
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        if (!r->cold) continue;
        if (fetches)
            fetches[n++] = (struct tsri_fetch){
                .id = r->id, .verify = fetch_verify, .layer_done = fetch_layer, .arg = r};
        else
            fail_range(r, TSR_ENOMEM);
    }
    if (n) tsri_manager_fetch(f->cache, fetches, n);
    for (uint32_t i = 0; i < n; i++) {
        struct range *r = fetches[i].arg;
        if (fetches[i].result) fail_range(r, fetches[i].result);
    }
    tsri_free(fetches);
    leave(f);
}

/* When no thread has room for it, it runs here and now. */
static void start(struct tsri_feed *f, struct job *j, void (*run)(struct tsri_job *))
{
    *j = (struct job){.job.run = run, .feed = f};
    pthread_mutex_lock(&f->lock);
    f->n_owners++;
    pthread_mutex_unlock(&f->lock);
    if (tsri_work_push(tsri_ops_work(f->cache->ops), &j->job) != 0) run(&j->job);
}

/* ---- opening ---- */

static int copy_prompt(struct tsri_feed *f, const struct tsr_prompt *prompt)
{
    f->prompt = *prompt;
    f->tokens = tsri_alloc(prompt->n_tokens, sizeof *f->tokens);
    f->segments = tsri_alloc((size_t)prompt->n_segments + 1, sizeof *f->segments);
    if (!f->tokens || !f->segments) return TSR_ENOMEM;
    memcpy(f->tokens, prompt->tokens, prompt->n_tokens * sizeof *f->tokens);
    if (prompt->n_segments)
        memcpy(f->segments, prompt->segments, prompt->n_segments * sizeof *f->segments);
    f->prompt.tokens = f->tokens;
    f->prompt.segments = prompt->n_segments ? f->segments : NULL;
    return 0;
}

static int range_open(struct range *r, struct tsri_feed *f, const struct tsri_feed_range *from)
{
    *r = (struct range){.feed = f,
                        .match = from->match,
                        .space = from->space,
                        .int8 = from->int8,
                        .exact = from->exact,
                        .id = TSRI_ID_NONE};
    r->slots = tsri_alloc(from->match.n_tokens, sizeof *r->slots);
    if (!r->slots) return TSR_ENOMEM;
    for (uint32_t i = 0; i < from->match.n_tokens; i++)
        r->slots[i] = from->slots ? from->slots[i] : (int64_t)from->match.prompt_offset + i;
    if (f->cache->served) { /* the server pins, and compares */
        r->cold = from->match.tier != 0;
        return 0;
    }
    uint32_t id;
    enum tsri_state state = tsri_pin_match(f->cache, &from->match, &id);
    if (state == TSRI_FREE) {
        r->result = TSR_ENOENT;
        return 0;
    }
    const struct tsri_entry *e = &f->cache->entries[id];
    r->id = id;
    r->cold = state == TSRI_COLD;
    if (e->space != r->space->id ||
        (uint64_t)from->match.entry_offset + from->match.n_tokens > e->n_tokens)
        r->result = TSR_ESPACE;
    else if (!r->cold &&
             !tsri_match_wanted(r->space, &r->match, &f->prompt, e, tsri_meta(f->cache, e)))
        r->result = TSR_ECORRUPT;
    return 0;
}

/* Entries of the range's space against the engine's memory. */
static int check_shape(const struct tsri_feed_desc *d, const struct tsri_feed_range *r)
{
    const struct tsri_shape *s = &r->space->shape;
    if (s->n_layers != d->layout->n_layers || s->n_planes != d->layout->n_planes)
        return tsri_fail(TSR_ESPACE, "feed: a space of %u layers, memory of %u", s->n_layers,
                         d->layout->n_layers);
    for (uint32_t p = 0; p < s->n_planes; p++) {
        const struct tsr_kv_plane *plane = &d->layout->planes[p];
        size_t row =
            r->int8 ? tsri_row_bytes_int8(plane->n_heads, plane->dim) : tsri_row_bytes(plane);
        if (row != s->row_bytes[p])
            return tsri_fail(TSR_ESPACE, "feed: rows of %zu bytes, entries of %u", row,
                             s->row_bytes[p]);
    }
    return 0;
}

int tsri_feed_open(struct tsri_feed **out, const struct tsri_feed_desc *d)
{
    *out = NULL;
    int e = tsri_layout_check(d->layout);
    for (uint32_t i = 0; !e && i < d->n_ranges; i++)
        e = check_shape(d, &d->ranges[i]);
    if (e) return e;
    struct tsri_feed *f = tsri_alloc(1, sizeof *f);
    if (!f) return TSR_ENOMEM;
    f->cache = d->cache;
    f->device = d->device;
    f->layout = *d->layout;
    f->rope = *d->rope;
    f->freq_set = d->freq_set;
    f->n_owners = 1;
    tsri_cond_init(&f->changed);
    pthread_mutex_init(&f->lock, NULL);
    f->ranges = tsri_alloc((size_t)d->n_ranges + 1, sizeof *f->ranges);
    e = f->ranges ? copy_prompt(f, d->prompt) : TSR_ENOMEM;
    bool host = false, cold = false;
    for (uint32_t i = 0; !e && i < d->n_ranges; i++) {
        e = range_open(&f->ranges[i], f, &d->ranges[i]);
        f->n_ranges++;
        bool loads = f->ranges[i].result == 0;
        cold |= loads && f->ranges[i].cold;
        host |= loads && !f->ranges[i].cold;
    }
    if (e) {
        feed_free(f);
        return e;
    }
    *out = f;
    bool served = d->cache->served != NULL;
    if (cold) start(f, &f->cold_job, served ? run_lent : run_cold);
    if (host) start(f, &f->host_job, served ? run_lent : run_host);
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
        *progress += r->n_ready + (r->result ? f->layout.n_layers : 0);
        n += r->result == 0 && r->n_ready <= layer;
    }
    return n;
}

/* Under lock: are its pages known, so that anybody may copy them? */
static bool is_here(const struct range *r)
{
    return r->borrow || (!r->cold && r->id != TSRI_ID_NONE);
}

/* Under lock, which is let go meanwhile: copies what is in host memory and nobody has copied yet,
 * because the threads are busy, or stuck with a tier. */
static void help(struct tsri_feed *f, uint32_t layer)
{
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        while (is_here(r) && r->result == 0 && !r->writing && r->n_ready <= layer) {
            uint32_t next = r->n_ready;
            struct tsri_meta *meta =
                r->borrow ? NULL : tsri_meta(f->cache, &f->cache->entries[r->id]);
            pthread_mutex_unlock(&f->lock);
            range_layer(r, meta, next);
            pthread_mutex_lock(&f->lock);
        }
    }
}

static void give_up(struct tsri_feed *f, uint32_t layer)
{
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        struct range *r = &f->ranges[i];
        if (r->result || r->n_ready > layer) continue;
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
    pthread_mutex_unlock(&f->lock);
    /* The device may be closed before a job that is held up ends. */
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        tsri_batch_close(f->ranges[i].batch);
        f->ranges[i].batch = NULL;
    }
    leave(f);
}
