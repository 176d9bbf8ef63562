/* collect.c - the way back: a put filled from the engine's slots. Blocks of a cache of our own are
 * filled where they stand, in as few batches as fit. A server's are gathered some layers at a time
 * into the memory that it copies from; the device fills one part while the server empties another. */
#include "deliver/collect.h"
#include "cache/clients.h"
#include "cache/puts.h"
#include "deliver/deliver.h"
#include "served/served.h"

/* Layers [first, + n) of the batch, when the engine's memory may be read; 0 layers are all. Returns
 * when they have moved. */
static int gather(struct tsr_delivery *d, uint32_t first, uint32_t n,
                  const struct tsri_reading *reading)
{
    if (reading && !reading->begin(reading->arg))
        return tsri_fail(TSR_ETIME, "collect: the engine took its memory back");
    int e = tsri_batch_gather(d->batch, first, n);
    int waited = tsri_stream_sync(d->device, d->stream);
    if (reading) reading->end(reading->arg);
    return e ? e : waited;
}

static int check_slots(const struct tsr_delivery *d, const int64_t *slots, uint32_t n)
{
    int e = tsri_slots_check(slots, n, d->layout.n_slots, NULL);
    for (uint32_t i = 0; i < n && !e; i++)
        if (slots[i] < 0) e = tsri_fail(TSR_EINVAL, "collect: token %u has no slot", i);
    return e;
}

/* ---- into blocks that are here ---- */

/* Everything that can be wrong with any of the put's chunks. */
static int check_put(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots, uint32_t n)
{
    if (tsri_client_cache(((const struct tsri_put_base *)put)->client) != d->c ||
        tsri_put_space(put) != d->space)
        return tsri_fail(TSR_ESPACE, "collect: the put belongs to another space");
    if (n != tsri_put_n_tokens(put))
        return tsri_fail(TSR_EINVAL, "collect: %u slots for %u tokens", n, tsri_put_n_tokens(put));
    for (uint32_t i = 0; i < tsri_put_n_blocks(put); i++) {
        struct tsri_put_block b = tsri_put_block(put, i);
        if (b.n_tokens > d->limits.tokens)
            return tsri_fail(TSR_ERANGE, "collect: a chunk has %u tokens, tokens_max is %u",
                             b.n_tokens, d->limits.tokens);
        int e = check_slots(d, slots + b.offset, b.n_tokens);
        if (e) return e;
        tsri_source_filling(&d->source, &d->source.ranges[0], d->space, b.id);
        if (!tsri_delivery_reaches(d, &d->source.ranges[0]))
            return tsri_fail(TSR_EAGAIN, "collect: the memory of the put is not page-locked yet");
    }
    return 0;
}

/* Chunks from `first` on, as many as fit in one batch; returns how many, or an error. */
static int collect_some(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots,
                        uint32_t first, const struct tsri_reading *reading)
{
    uint32_t n_blocks = tsri_put_n_blocks(put), n_tokens = 0, n_planes = 0, n = 0;
    for (; first + n < n_blocks && n < d->limits.runs; n++) {
        struct tsri_put_block b = tsri_put_block(put, first + n);
        struct tsri_source_range *s = &d->source.ranges[n];
        if (b.n_tokens > d->limits.tokens - n_tokens) break;
        tsri_source_filling(&d->source, s, d->space, b.id);
        (void)tsri_source_cells(s, d->planes + n_planes, &d->cells[n]);
        d->cells[n].int8 = d->int8;
        d->runs[n] = (struct tsr_kv_run){
            .cells = &d->cells[n], .slots = slots + b.offset, .n_tokens = b.n_tokens};
        n_planes += (uint32_t)tsri_source_n_planes(s);
        n_tokens += b.n_tokens;
    }
    struct tsri_batch_desc desc = {
        .direction = TSRI_BATCH_GATHER, .n_runs = n, .layout = &d->layout, .runs = d->runs};
    int e = tsri_batch_set(d->batch, d->stream, &desc);
    if (!e) e = gather(d, 0, 0, reading);
    return e ? e : (int)n;
}

static int collect_here(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots,
                        uint32_t n, const struct tsri_reading *reading)
{
    int e = check_put(d, put, slots, n);
    for (uint32_t i = 0; !e && i < tsri_put_n_blocks(put);) {
        int done = collect_some(d, put, slots, i, reading);
        if (done < 0) e = done;
        i += done < 0 ? 0 : (uint32_t)done;
    }
    if (!e) tsri_put_filled(put);
    return e;
}

/* ---- into a server's ---- */

/* All layers as one big cell that lies where the server copies from. */
static void describe(const struct tsr_delivery *d, const struct tsri_staged_put *stage, uint32_t n,
                     struct tsr_kv_cells *out)
{
    const struct tsri_shape *s = &d->space->shape;
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t p = 0; p < s->n_planes; p++)
            d->planes[l * s->n_planes + p] =
                tsri_staged_layer(stage, l) + (p ? (size_t)n * s->row_bytes[0] : 0);
    bool locked = tsri_device_caps(d->device) & TSR_DEVICE_NEEDS_LOCK;
    *out = (struct tsr_kv_cells){.size = sizeof *out,
                                 .planes = d->planes,
                                 .n_cells = 1,
                                 .cell_tokens = n,
                                 .n_tokens = n,
                                 .n_layers = s->n_layers,
                                 .n_planes = s->n_planes,
                                 .int8 = d->int8,
                                 .memory = locked ? TSR_MEMORY_LOCKED : TSR_MEMORY_HOST};
}

static int give_layers(struct tsr_delivery *d, struct tsri_staged_put *stage, const int64_t *slots,
                       uint32_t n, const struct tsri_reading *reading)
{
    uint32_t n_layers = d->space->shape.n_layers, step = stage->part_layers;
    struct tsr_kv_run run = {.cells = d->cells, .slots = slots, .n_tokens = n};
    struct tsri_batch_desc desc = {
        .direction = TSRI_BATCH_GATHER, .n_runs = 1, .layout = &d->layout, .runs = &run};
    describe(d, stage, n, d->cells);
    int e = tsri_batch_set(d->batch, d->stream, &desc);
    for (uint32_t l = 0; !e && l < n_layers; l += step) {
        uint32_t n_now = tsri_min_u32(step, n_layers - l);
        e = tsri_staged_wait(stage, l);
        if (!e) e = gather(d, l, n_now, reading);
        if (!e) e = tsri_staged_send(stage, l, n_now);
    }
    return e;
}

static int collect_there(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots,
                         uint32_t n, const struct tsri_reading *reading)
{
    struct tsri_staged_put stage;
    int all_there = tsri_served_put_check(put, d->client, d->space, n);
    if (all_there < 0) return all_there;
    if (n == 0 || n > d->limits.tokens)
        return tsri_fail(TSR_ERANGE, "collect: %u tokens, tokens_max is %u", n, d->limits.tokens);
    int e = check_slots(d, slots, n);
    if (e || all_there) return e;
    e = tsri_staged_open(&stage, put, d->device);
    if (e) return e;
    return tsri_staged_close(&stage, give_layers(d, &stage, slots, n, reading));
}

/* ---- either ---- */

int tsri_delivery_collect(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots,
                          uint32_t n, const struct tsri_reading *reading)
{
    int e = tsri_delivery_check(d);
    if (e) return e;
    if (!put || !slots) return tsri_fail(TSR_EINVAL, "collect: NULL");
    if (d->source.n) return tsri_fail(TSR_EBUSY, "collect: finish the started delivery first");
    bool after = reading && reading->after;
    e = after ? tsri_event_wait(d->device, reading->after, d->stream) : tsri_delivery_follow(d);
    if (e) return e;
    bool sent = ((const struct tsri_put_base *)put)->sent;
    return sent ? collect_there(d, put, slots, n, reading)
                : collect_here(d, put, slots, n, reading);
}

int tsr_delivery_collect(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots,
                         uint32_t n)
{
    return tsri_delivery_collect(d, put, slots, n, NULL);
}
