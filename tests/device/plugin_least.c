/* plugin_least.c - the least a device can be, as a shared object: required members alone, plain
 * host memory, copies. It shows what the defaults of device.c stand in for; it is also what
 * docs/backends.md walks through. */
#include <tessera/device.h>

#include <stdlib.h>
#include <string.h>

struct tsr_device {
    int (*fail)(int err, const char *text);
};

static int least_open(struct tsr_device **out, const struct tsr_device_desc *desc)
{
    if (desc->ordinal > 0) return desc->fail(TSR_EDEVICE, "device least: there is only one");
    *out = malloc(sizeof **out);
    if (!*out) return desc->fail(TSR_ENOMEM, "device least: no memory");
    (*out)->fail = desc->fail;
    return 0;
}

static void least_close(struct tsr_device *d)
{
    free(d);
}

static int least_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *out ? 0 : d->fail(TSR_ENOMEM, "device least: no memory");
}

static void least_free(struct tsr_device *d, void *p)
{
    (void)d;
    free(p);
}

static int least_copy(struct tsr_device *d, struct tsr_device_stream *s,
                      const struct tsr_copy *copies, size_t n)
{
    (void)d;
    (void)s;
    for (size_t i = 0; i < n; i++)
        if (copies[i].bytes) memcpy(copies[i].dst, copies[i].src, copies[i].bytes);
    return 0;
}

static size_t element_bytes(uint32_t dtype)
{
    return dtype == TSR_DTYPE_OPAQUE ? 1 : dtype == TSR_DTYPE_F32 ? 4 : 2;
}

/* One token of one plane, element by element: five strides on the engine's side, none on ours. */
static void move_token(const struct tsr_kv_plane *p, unsigned char *engine, unsigned char *row,
                       int to_engine)
{
    size_t bytes = element_bytes(p->dtype);
    for (uint32_t h = 0; h < p->n_heads; h++)
        for (uint32_t i = 0; i < p->dim; i++) {
            unsigned char *there = engine + h * p->head_stride + i * p->element_stride;
            unsigned char *here = row + ((size_t)h * p->dim + i) * bytes;
            memcpy(to_engine ? there : here, to_engine ? here : there, bytes);
        }
}

static unsigned char *engine_at(const struct tsr_kv_layout *l, const struct tsr_kv_plane *p,
                                uint32_t layer, uint64_t slot)
{
    unsigned char *base = p->layers ? (unsigned char *)p->layers[layer]
                                    : (unsigned char *)p->base + layer * p->layer_stride;
    uint64_t in_block = l->block_tokens ? slot % l->block_tokens : slot;
    uint64_t block = l->block_tokens ? slot / l->block_tokens : 0;
    return base + block * p->block_stride + in_block * p->token_stride;
}

static void move_run(const struct tsr_batch *b, const struct tsr_kv_run *r, uint32_t layer,
                     uint32_t plane, int to_engine)
{
    const struct tsr_kv_plane *p = &b->layout->planes[plane];
    const struct tsr_kv_cells *c = r->cells;
    size_t row_bytes = (size_t)p->n_heads * p->dim * element_bytes(p->dtype);
    for (uint32_t i = 0; i < r->n_tokens; i++) {
        if (r->slots[i] < 0) continue;
        uint32_t token = r->offset + i;
        size_t cell = ((size_t)layer * c->n_planes + plane) * c->n_cells + token / c->cell_tokens;
        move_token(p, engine_at(b->layout, p, layer, (uint64_t)r->slots[i]),
                   (unsigned char *)c->planes[cell] + token % c->cell_tokens * row_bytes,
                   to_engine);
    }
}

static int move(struct tsr_device *d, const struct tsr_batch *b, uint32_t layer_first,
                uint32_t n_layers, int to_engine)
{
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (b->runs[i].cells->int8) return d->fail(TSR_EUNSUP, "device least: no int8");
    for (uint32_t layer = layer_first; layer < layer_first + n_layers; layer++)
        for (uint32_t plane = 0; plane < b->layout->n_planes; plane++)
            for (uint32_t i = 0; i < b->n_runs; i++)
                move_run(b, &b->runs[i], layer, plane, to_engine);
    return 0;
}

static int least_gather(struct tsr_device *d, struct tsr_device_stream *s,
                        const struct tsr_batch *b, uint32_t layer_first, uint32_t n_layers)
{
    (void)s;
    return move(d, b, layer_first, n_layers, 0);
}

static int least_scatter(struct tsr_device *d, struct tsr_device_stream *s,
                         const struct tsr_batch *b, uint32_t layer_first, uint32_t n_layers)
{
    (void)s;
    return move(d, b, layer_first, n_layers, 1);
}

extern TSR_API const struct tsr_device_ops tsr_device_least;
const struct tsr_device_ops tsr_device_least = {
    .abi = TSR_DEVICE_ABI,
    .caps = 0,
    .name = "least",
    .open = least_open,
    .close = least_close,
    .alloc = least_alloc,
    .free = least_free,
    .copy = least_copy,
    .gather = least_gather,
    .scatter = least_scatter,
};

/* Tables that must be refused: of another abi, and without a member. */
extern TSR_API const struct tsr_device_ops tsr_device_later, tsr_device_earlier, tsr_device_torn;
const struct tsr_device_ops tsr_device_later = {.abi = TSR_DEVICE_ABI + 1, .name = "later"};
const struct tsr_device_ops tsr_device_earlier = {.abi = 1, .name = "earlier"};
const struct tsr_device_ops tsr_device_torn = {
    .abi = TSR_DEVICE_ABI, .name = "torn", .open = least_open, .close = least_close};
