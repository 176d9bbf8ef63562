/* deliver.c - matched ranges into an engine's memory on the cache's device, turned to their new
 * positions on the way: what tsr_client_load is for callers with plain memory. The way back is in
 * collect.c. All ranges of a start are one batch, moved layer by layer.
 *
 * A device that queues gets all layers at once, with an event behind each step, so that the
 * engine's stream can wait for a layer without anybody waiting for the stream. A device that does
 * not is given layer l when l is waited for.
 *
 * A range that cannot be had gets its reason and is left out; whatever else is wrong fails the call
 * before a byte is queued. */
#include "deliver/deliver.h"
#include "cache/clients.h"
#include "deliver/steps.h"

#define RANGES_DEFAULT 256u
#define TOKENS_DEFAULT 32768u

/* ---- open and close ---- */

static int check_desc(const struct tsr_cache *c, const struct tsr_delivery_desc *desc)
{
    if (desc->size < offsetof(struct tsr_delivery_desc, flags))
        return tsri_fail(TSR_EINVAL, "delivery: size is not set");
    if (!desc->space || desc->space->cache != c)
        return tsri_fail(TSR_ESPACE, "delivery: the space is not of this cache");
    if (desc->flags & ~(uint32_t)(TSR_DELIVERY_INT8 | TSR_DELIVERY_LOW_PRIORITY))
        return tsri_fail(TSR_EINVAL, "delivery: unknown flags %#x", desc->flags);
    int e = tsri_layout_check(desc->layout);
    if (!e && desc->rope) e = tsri_rope_check(desc->rope);
    if (!e) e = tsri_shape_fits(&desc->space->shape, desc->layout, desc->flags & TSR_DELIVERY_INT8);
    if (!e && !c->device && desc->layout->memory == TSR_MEMORY_DEVICE)
        e = tsri_fail(TSR_EDEVICE, "delivery: device memory needs a device (option device)");
    return e;
}

/* As many cells as ranges of that many tokens can touch. */
static int set_limits(struct tsr_delivery *d, const struct tsr_delivery_desc *desc)
{
    const struct tsri_shape *s = &d->space->shape;
    uint32_t ranges = desc->ranges_max ? desc->ranges_max : RANGES_DEFAULT;
    uint32_t tokens = desc->tokens_max ? desc->tokens_max : TOKENS_DEFAULT;
    uint64_t cells = tokens / s->cell_tokens + 2 * (uint64_t)ranges;
    uint64_t pointers = cells * s->n_layers * s->n_planes;
    if (cells > UINT32_MAX || pointers > UINT32_MAX)
        return tsri_fail(TSR_ERANGE, "delivery: %u ranges, %u tokens", ranges, tokens);
    d->limits = (struct tsr_batch_limits){ranges, tokens, (uint32_t)cells, (uint32_t)pointers};
    return 0;
}

static int open_device(struct tsr_delivery *d, const struct tsr_delivery_desc *desc)
{
    d->device = d->c->device;
    int e = d->device ? 0 : tsri_device_open(&d->own_device, "cpu", NULL);
    if (e) return e;
    if (!d->device) d->device = d->own_device;
    e = tsri_batch_open(&d->batch, d->device, &d->limits);
    uint32_t low = desc->flags & TSR_DELIVERY_LOW_PRIORITY ? TSR_STREAM_LOW : 0;
    if (!e) e = tsri_stream_open(&d->stream, d->device, desc->stream, low);
    if (!e && desc->compute) e = tsri_stream_open(&d->compute, d->device, desc->compute, 0);
    if (!e) e = tsri_event_open(&d->before, d->device);
    for (uint32_t i = 0; i < d->layout.n_layers && !e; i++)
        e = tsri_event_open(&d->events[i], d->device);
    return e;
}

int tsr_delivery_open(struct tsr_delivery **out, struct tsr_client *client,
                      const struct tsr_delivery_desc *desc)
{
    if (!out || !client || !desc) return tsri_fail(TSR_EINVAL, "delivery: NULL");
    *out = NULL;
    struct tsr_cache *c = tsri_client_cache(client);
    if (tsri_forked(c)) return tsri_fail(TSR_EFORK, "the cache belongs to the parent process");
    struct tsr_delivery_desc own = {0};
    memcpy(&own, desc, desc->size < sizeof own ? desc->size : sizeof own);
    int e = check_desc(c, &own);
    if (e) return e;
    struct tsr_delivery *d = tsri_alloc(1, sizeof *d);
    if (!d) return TSR_ENOMEM;
    d->client = client;
    d->c = c;
    d->space = own.space;
    d->layout = *own.layout;
    d->has_rope = own.rope != NULL;
    if (own.rope) d->rope = *own.rope;
    d->int8 = own.flags & TSR_DELIVERY_INT8;
    e = set_limits(d, &own);
    if (!e) {
        d->source = (struct tsri_source){.c = c, .client = client};
        d->source.ranges = tsri_alloc(d->limits.runs, sizeof *d->source.ranges);
        d->source.pins = tsri_alloc(d->limits.runs, sizeof *d->source.pins);
        d->cells = tsri_alloc(d->limits.runs, sizeof *d->cells);
        d->runs = tsri_alloc(d->limits.runs, sizeof *d->runs);
        d->planes = tsri_alloc(d->limits.plane_pointers, sizeof *d->planes);
        d->events = tsri_alloc(d->layout.n_layers, sizeof *d->events);
        d->step_last = tsri_alloc(d->layout.n_layers, sizeof *d->step_last);
        bool all = d->source.ranges && d->source.pins && d->cells && d->runs && d->planes &&
                   d->events && d->step_last;
        e = all ? open_device(d, &own) : TSR_ENOMEM;
    }
    if (e) {
        tsr_delivery_close(d);
        return e;
    }
    *out = d;
    return 0;
}

/* 0, or TSR_ENOENT: a server took back what was being read, and its memory may have held something
 * else. */
static int check_holds(const struct tsr_delivery *d)
{
    if (tsri_source_holds(&d->source)) return 0;
    return tsri_fail(TSR_ENOENT, "the server closed the session");
}

/* Waits for what was queued and lets go; what was not queued stays so. */
static int give_up(struct tsr_delivery *d)
{
    int e = 0;
    if (d->unmarked)
        e = tsri_stream_sync(d->device, d->stream);
    else if (d->n_queued)
        e = tsri_event_sync(d->device, d->events[d->n_queued - 1]);
    d->unmarked = false;
    int lost = d->n_queued ? check_holds(d) : 0;
    tsri_source_close(&d->source);
    d->source.n = d->n_runs = d->n_planes = d->n_queued = 0;
    return e ? e : lost;
}

void tsr_delivery_close(struct tsr_delivery *d)
{
    if (!d) return;
    if (!tsri_forked(d->c)) {
        int e = give_up(d);
        if (e && e != TSR_ENOENT)
            tsri_log(TSR_LOG_WARN, "device %s: %s", tsri_device_name(d->device), tsr_errmsg());
        tsri_batch_close(d->batch);
        for (uint32_t i = 0; d->events && i < d->layout.n_layers; i++)
            tsri_event_close(d->device, d->events[i]);
        tsri_event_close(d->device, d->before);
        tsri_stream_close(d->device, d->compute);
        tsri_stream_close(d->device, d->stream);
        tsri_device_close(d->own_device);
    }
    tsri_free(d->step_last);
    tsri_free(d->events);
    tsri_free(d->planes);
    tsri_free(d->runs);
    tsri_free(d->cells);
    tsri_free(d->source.pins);
    tsri_free(d->source.ranges);
    tsri_free(d);
}

/* ---- start ---- */

static int check_range(struct tsr_delivery *d, const struct tsr_delivery_range *r, uint32_t i)
{
    if (r->size < sizeof *r) return tsri_fail(TSR_EINVAL, "range: size is not set");
    if (!r->slots) return tsri_fail(TSR_EINVAL, "no slots");
    struct tsri_want want = {d->space, r->match, r->prompt, r->offset, r->n_tokens};
    return tsri_source_want(&d->source.ranges[i], d->c, &want);
}

static int check_ranges(struct tsr_delivery *d, struct tsr_delivery_range *ranges, uint32_t n)
{
    if (n && !ranges) return tsri_fail(TSR_EINVAL, "delivery: no ranges");
    if (n > d->limits.runs)
        return tsri_fail(TSR_ERANGE, "delivery: %u ranges, limit %u", n, d->limits.runs);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        int e = check_range(d, &ranges[i], i);
        if (e) return e;
        tokens += d->source.ranges[i].n_tokens;
    }
    if (tokens > d->limits.tokens)
        return tsri_fail(TSR_ERANGE, "delivery: %llu tokens, limit %u", (unsigned long long)tokens,
                         d->limits.tokens);
    return 0;
}

static bool can_turn(const struct tsr_delivery *d)
{
    bool any = false;
    for (uint32_t p = 0; p < d->layout.n_planes; p++)
        any |= d->layout.planes[p].rope_dims != 0;
    return any && d->has_rope;
}

bool tsri_delivery_reaches(const struct tsr_delivery *d, const struct tsri_source_range *r)
{
    return !(tsri_device_caps(d->device) & TSR_DEVICE_NEEDS_LOCK) || tsri_source_is_locked(r);
}

/* Of everything that can be loaded; returns whether something must turn. */
static bool make_runs(struct tsr_delivery *d, struct tsr_delivery_range *ranges, uint32_t freq_set)
{
    bool turns = false;
    for (uint32_t i = 0; i < d->source.n; i++) {
        const struct tsri_source_range *s = &d->source.ranges[i];
        struct tsr_delivery_range *r = &ranges[i];
        r->result = s->result;
        if (r->result) continue;
        int64_t delta = (int64_t)r->match->prompt_offset + r->position_offset -
                        r->match->entry_offset - s->base;
        if (s->freq_set != freq_set || (delta && !can_turn(d))) {
            r->result = TSR_EUNSUP;
            continue;
        }
        uint64_t n_planes = tsri_source_n_planes(s);
        if (n_planes > d->limits.plane_pointers - d->n_planes) {
            r->result = TSR_EUNSUP; /* of a server whose cells are smaller: see set_limits */
            continue;
        }
        if (!tsri_delivery_reaches(d, s)) {
            r->result = TSR_EAGAIN;
            continue;
        }
        struct tsr_kv_cells *cells = &d->cells[d->n_runs];
        uint32_t offset = tsri_source_cells(s, d->planes + d->n_planes, cells);
        cells->int8 = d->int8;
        d->n_planes += (uint32_t)n_planes;
        turns |= delta != 0;
        d->runs[d->n_runs++] = (struct tsr_kv_run){.cells = cells,
                                                   .slots = r->slots,
                                                   .offset = offset,
                                                   .n_tokens = s->n_tokens,
                                                   .delta = delta,
                                                   .freq_set = s->freq_set};
    }
    return turns;
}

static void count(const struct tsr_delivery *d, const struct tsr_delivery_range *ranges)
{
    uint64_t n_tokens = 0;
    uint32_t n_hot = 0;
    for (uint32_t i = 0; i < d->source.n; i++) {
        const struct tsri_source_range *s = &d->source.ranges[i];
        if (ranges[i].result) continue;
        n_tokens += s->n_tokens;
        n_hot += s->where == TSRI_HOT;
    }
    tsri_stats_add(d->c->stats, TSRI_M_deliveries, d->source.n);
    tsri_stats_add(d->c->stats, TSRI_M_delivery_misses, d->source.n - d->n_runs);
    tsri_stats_add(d->c->stats, TSRI_M_delivery_pool_hits, n_hot);
    tsri_stats_add(d->c->stats, TSRI_M_delivery_bytes,
                   n_tokens * tsri_shape_token_bytes(&d->space->shape));
}

int tsri_delivery_follow(struct tsr_delivery *d)
{
    if (!d->compute) return 0;
    int e = tsri_event_record(d->device, d->before, d->compute);
    return e ? e : tsri_event_wait(d->device, d->before, d->stream);
}

/* Layers up to `layer`, in steps. */
static int queue(struct tsr_delivery *d, uint32_t layer)
{
    int e = 0;
    while (!e && d->n_queued <= layer) {
        uint32_t first = d->n_queued, n = tsri_batch_step(d->batch, first), last = first + n - 1;
        e = tsri_batch_scatter(d->batch, first, n);
        /* Marked even when it failed halfway: whoever waits for the mark waits for what was queued.
         */
        int mark = tsri_event_record(d->device, d->events[last], d->stream);
        d->unmarked |= mark != 0;
        for (uint32_t l = first; l <= last; l++)
            d->step_last[l] = last;
        d->n_queued = last + 1;
        if (!e) e = mark;
    }
    return e;
}

int tsri_delivery_prepare(struct tsr_delivery *d, struct tsr_delivery_range *ranges, uint32_t n,
                          uint32_t freq_set)
{
    if (!d) return tsri_fail(TSR_EINVAL, "delivery: NULL");
    if (tsri_forked(d->c)) return tsri_fail(TSR_EFORK, "the cache belongs to the parent process");
    int e = tsri_delivery_drop(d);
    if (!e) e = check_ranges(d, ranges, n);
    if (e || n == 0) return e;
    d->source.n = n;
    e = tsri_source_open(&d->source) ? tsri_source_fetch(&d->source, NULL) : 0;
    if (e) {
        (void)give_up(d);
        return e;
    }
    d->turns = make_runs(d, ranges, freq_set);
    d->freq_set = freq_set;
    count(d, ranges);
    return (int)d->n_runs;
}

int tsri_delivery_begin(struct tsr_delivery *d, struct tsr_device_event *after)
{
    if (!d->n_runs) return 0;
    struct tsri_batch_desc desc = {.direction = TSRI_BATCH_SCATTER,
                                   .n_runs = d->n_runs,
                                   .layout = &d->layout,
                                   .runs = d->runs,
                                   .rope = d->turns ? &d->rope : NULL,
                                   .freq_set = d->freq_set};
    int e = after ? tsri_event_wait(d->device, after, d->stream) : tsri_delivery_follow(d);
    if (!e) e = tsri_batch_set(d->batch, d->stream, &desc);
    if (!e && tsri_device_caps(d->device) & TSR_DEVICE_ASYNC) e = queue(d, d->layout.n_layers - 1);
    return e;
}

int tsri_delivery_hold(struct tsr_delivery *d, struct tsr_device_stream *stream)
{
    TSR_ASSERT(d->n_queued == d->layout.n_layers);
    return tsri_event_wait(d->device, d->events[d->n_queued - 1], stream);
}

int tsri_delivery_drop(struct tsr_delivery *d)
{
    int e = give_up(d);
    return e == TSR_ENOENT ? 0 : e; /* would have been lost: not asked for any more */
}

int tsr_delivery_start(struct tsr_delivery *d, struct tsr_delivery_range *ranges, uint32_t n,
                       uint32_t freq_set)
{
    int n_runs = tsri_delivery_prepare(d, ranges, n, freq_set);
    int e = n_runs > 0 ? tsri_delivery_begin(d, NULL) : 0;
    if (!e) return n_runs;
    (void)give_up(d);
    return e;
}

/* ---- waiting ---- */

int tsri_delivery_check(const struct tsr_delivery *d)
{
    if (!d) return tsri_fail(TSR_EINVAL, "delivery: NULL");
    if (tsri_forked(d->c)) return tsri_fail(TSR_EFORK, "the cache belongs to the parent process");
    return 0;
}

int tsr_delivery_wait_layer(struct tsr_delivery *d, uint32_t layer)
{
    int e = tsri_delivery_check(d);
    if (e) return e;
    if (layer >= d->layout.n_layers)
        return tsri_fail(TSR_EINVAL, "delivery: layer %u of %u", layer, d->layout.n_layers);
    if (d->n_runs == 0) return 0; /* every range is to be recomputed */
    e = queue(d, layer);
    if (e) return e;
    struct tsr_device_event *event = d->events[d->step_last[layer]];
    if (d->compute) return tsri_event_wait(d->device, event, d->compute);
    e = tsri_event_sync(d->device, event);
    return e ? e : check_holds(d);
}

int tsr_delivery_finish(struct tsr_delivery *d)
{
    int e = tsri_delivery_check(d);
    if (e) return e;
    if (d->n_runs) e = queue(d, d->layout.n_layers - 1);
    int waited = give_up(d);
    return e ? e : waited;
}

/* ---- what a start needs to know ---- */

int tsr_rope_choose(const struct tsr_rope *rope, uint64_t n_tokens, uint32_t *freq_set)
{
    if (!freq_set) return tsri_fail(TSR_EINVAL, "rope: freq_set is NULL");
    int e = tsri_rope_check(rope);
    if (!e) *freq_set = tsri_rope_set_id(rope, n_tokens);
    return e;
}

int tsr_rope_text(const struct tsr_rope *rope, char *buf, size_t bytes)
{
    return tsri_rope_text(rope, buf, bytes);
}

uint32_t tsr_int8_row_bytes(uint32_t n_heads, uint32_t dim)
{
    if (!n_heads || !dim || dim > TSRI_KV_DIM_MAX || n_heads > UINT32_MAX / 4 / dim) return 0;
    return (uint32_t)tsri_row_bytes_int8(n_heads, dim);
}

int tsr_slots_of_blocks(int64_t *out, const int64_t *blocks, uint32_t n_blocks,
                        uint32_t block_tokens, uint32_t first, uint32_t n)
{
    if (n && (!out || !blocks)) return tsri_fail(TSR_EINVAL, "slots: NULL");
    return tsri_slots_of_blocks(out, blocks, n_blocks, block_tokens, first, n);
}
