/* lent.c - deliveries of a cache that a server has. What they move out of the memory that the server
 * shares is page-locked for the device the first time it is needed; puts go the other way, some
 * layers at a time, through memory that the device can write. */
#include "cache/clients.h"
#include "deliver/deliver.h"
#include "served/served.h"

#define BOUNCE_BYTES ((size_t)32 << 20) /* or one layer, where that is more */

/* ---- page-locking ---- */

void tsri_lent_unlock(struct tsr_delivery *d)
{
    if (!d->locked) return;
    tsri_device_host_unregister(d->device, d->locked->pool.data);
    tsri_mapping_release(d->locked);
    d->locked = NULL;
}

/* Another session has another mapping. */
int tsri_lent_lock(struct tsr_delivery *d)
{
    struct tsri_mapping *m = d->source.borrow.mapping;
    if (!m || !(tsri_device_caps(d->device) & TSR_DEVICE_NEEDS_LOCK)) return 0;
    if (d->locked != m) {
        tsri_lent_unlock(d);
        int e = tsri_device_host_register(d->device, m->pool.data, m->pool.bytes);
        if (e) return e;
        atomic_fetch_add(&m->refs, 1);
        d->locked = m;
    }
    d->source.locked = true;
    return 0;
}

/* ---- the other way ---- */

struct bounce {
    uint8_t *data;
    uint32_t n_layers; /* that fit */
    size_t layer_bytes, k_bytes;
};

/* All layers of one big cell; layers that are not moved together share memory. */
static void describe(const struct tsr_delivery *d, const struct bounce *b, uint32_t n,
                     void **planes, struct tsr_kv_cells *out)
{
    const struct tsri_shape *s = &d->space->shape;
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t p = 0; p < s->n_planes; p++)
            planes[l * s->n_planes + p] =
                b->data + (l % b->n_layers) * b->layer_bytes + (p ? b->k_bytes : 0);
    bool locked = tsri_device_caps(d->device) & TSR_DEVICE_NEEDS_LOCK;
    *out = (struct tsr_kv_cells){.size = sizeof *out,
                                 .planes = planes,
                                 .n_cells = 1,
                                 .cell_tokens = n,
                                 .n_tokens = n,
                                 .n_layers = s->n_layers,
                                 .n_planes = s->n_planes,
                                 .int8 = d->int8,
                                 .memory = locked ? TSR_MEMORY_LOCKED : TSR_MEMORY_HOST};
}

static int give_layers(struct tsr_delivery *d, const struct bounce *b, struct tsr_put *put)
{
    const struct tsri_shape *s = &d->space->shape;
    int e = 0;
    for (uint32_t first = 0; first < s->n_layers && !e; first += b->n_layers) {
        uint32_t n = tsri_min_u32(b->n_layers, s->n_layers - first);
        e = tsri_batch_gather(d->batch, first, n);
        int waited = tsri_stream_sync(d->device, d->stream);
        if (!e) e = waited;
        for (uint32_t l = 0; l < n && !e; l++) {
            struct tsr_view view = {.data = b->data + l * b->layer_bytes,
                                    .bytes = b->layer_bytes,
                                    .plane_stride = b->k_bytes};
            e = tsri_served_put_layer(put, first + l, &view);
        }
    }
    return e;
}

static int check_collect(const struct tsr_delivery *d, const int64_t *slots, uint32_t n)
{
    if (n == 0 || n > d->limits.tokens)
        return tsri_fail(TSR_ERANGE, "collect: %u tokens, tokens_max is %u", n, d->limits.tokens);
    int e = tsri_slots_check(slots, n, d->layout.n_slots, NULL);
    for (uint32_t i = 0; i < n && !e; i++)
        if (slots[i] < 0) e = tsri_fail(TSR_EINVAL, "collect: token %u has no slot", i);
    return e;
}

int tsri_lent_collect(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots, uint32_t n)
{
    const struct tsri_shape *s = &d->space->shape;
    int e = tsri_served_put_check(put, d->client, d->space, n);
    if (!e) e = check_collect(d, slots, n);
    if (e) return e;
    struct bounce b = {.k_bytes = (size_t)n * s->row_bytes[0],
                       .layer_bytes = (size_t)n * (s->row_bytes[0] + s->row_bytes[1])};
    b.n_layers = (uint32_t)(BOUNCE_BYTES / b.layer_bytes);
    b.n_layers = tsri_min_u32(b.n_layers ? b.n_layers : 1, s->n_layers);
    void *memory = NULL, **planes = tsri_alloc((size_t)s->n_layers * s->n_planes, sizeof *planes);
    if (!planes) return TSR_ENOMEM;
    e = tsri_device_host_alloc(d->device, &memory, b.n_layers * b.layer_bytes);
    b.data = memory;
    if (!e) {
        struct tsr_kv_cells cells;
        describe(d, &b, n, planes, &cells);
        struct tsr_kv_run run = {.cells = &cells, .slots = slots, .n_tokens = n};
        struct tsri_batch_desc desc = {
            .direction = TSRI_BATCH_GATHER, .n_runs = 1, .layout = &d->layout, .runs = &run};
        e = tsri_batch_set(d->batch, d->stream, &desc);
        if (!e) e = give_layers(d, &b, put);
    }
    tsri_device_host_free(d->device, memory);
    tsri_free(planes);
    return e;
}
