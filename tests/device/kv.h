/* kv.h - engines and cells to test with. An engine is a layout of a named kind over memory of a
 * device; two engines of one kind hold the same bytes wherever they are, so that what two devices
 * did to them can be compared as images. */
#ifndef TSRI_TEST_KV_H
#define TSRI_TEST_KV_H

#include "device/device.h"
#include "support/test.h"

#include <math.h>

enum kv_kind {
    KV_SPLIT,  /* [2][blocks][tokens][heads][dim] for each layer */
    KV_BLOCKS, /* [blocks][2][tokens][heads][dim] for each layer */
    KV_HND,    /* [blocks][2][heads][tokens][dim] for each layer */
    KV_ROWS,   /* [blocks][tokens][heads][K dim + V dim]: K and V side by side */
    KV_PACKED, /* [blocks][heads][tokens][K dim + V dim]: vLLM's packed order */
    KV_COLUMN, /* [blocks][heads]{K [dim][tokens], V [tokens][dim]}: column-major K */
    KV_FLAT,   /* [slots][heads][dim], contiguous, K and V apart */
    KV_PAGES,  /* [blocks][layers][2][tokens][heads][dim] in one allocation */
    KV_LATENT, /* [blocks][tokens][dim]: one plane whose last elements turn */
    KV_OPAQUE, /* [blocks][bytes]: whole pages */
    KV_N_KINDS
};
static const char *const kv_kind_names[] = {"split",  "blocks", "hnd",   "rows",   "packed",
                                            "column", "flat",   "pages", "latent", "opaque"};

struct kv_shape {
    enum kv_kind kind;
    uint32_t dtype, n_layers, n_heads, k_dim, v_dim;
    uint32_t rope_first, rope_dims;
    uint32_t block_tokens;
    uint64_t n_slots;
};

struct kv_engine {
    struct tsri_device *device;
    struct tsr_kv_layout layout;
    size_t bytes;
    uint8_t *data; /* device memory */
    void *layers[2][64];
};

static inline uint64_t kv_random(uint64_t *seed)
{
    return test_rand(seed);
}

/* Random bytes, eight at a time. */
static inline void kv_random_bytes(uint8_t *out, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t r = kv_random(&seed);
        memcpy(out + i, &r, bytes - i < 8 ? bytes - i : 8);
    }
}

/* Strides of one plane for each kind, given the bytes of K, V and an element. */
static inline void kv_strides(struct tsr_kv_plane *p, const struct kv_shape *s, uint32_t plane)
{
    uint64_t e = tsri_dtype_bytes(s->dtype), h = s->n_heads, t = s->block_tokens;
    uint64_t dim = plane ? s->v_dim : s->k_dim, both = (uint64_t)s->k_dim + s->v_dim;
    p->element_stride = e;
    switch (s->kind) {
    case KV_SPLIT:
    case KV_LATENT:
    case KV_FLAT:
        p->head_stride = dim * e;
        p->token_stride = h * dim * e;
        p->block_stride = t * h * dim * e;
        break;
    case KV_BLOCKS:
        p->head_stride = dim * e;
        p->token_stride = h * dim * e;
        p->block_stride = t * h * both * e;
        break;
    case KV_HND:
        p->token_stride = dim * e;
        p->head_stride = t * dim * e;
        p->block_stride = t * h * both * e;
        break;
    case KV_ROWS:
        p->head_stride = both * e;
        p->token_stride = h * both * e;
        p->block_stride = t * h * both * e;
        break;
    case KV_PACKED:
        p->token_stride = both * e;
        p->head_stride = t * both * e;
        p->block_stride = t * h * both * e;
        break;
    case KV_COLUMN:
        p->element_stride = plane ? e : t * e;
        p->token_stride = plane ? dim * e : e;
        p->head_stride = t * both * e;
        p->block_stride = t * h * both * e;
        break;
    case KV_PAGES:
        p->head_stride = dim * e;
        p->token_stride = h * dim * e;
        p->layer_stride = t * h * both * e;
        p->block_stride = s->n_layers * t * h * both * e;
        break;
    default: /* KV_OPAQUE: a token is a page */
        p->head_stride = dim;
        p->token_stride = dim;
        p->block_stride = dim;
    }
}

/* Where V begins behind K, in a layer. */
static inline uint64_t kv_v_offset(const struct kv_shape *s)
{
    uint64_t e = tsri_dtype_bytes(s->dtype), k = (uint64_t)s->k_dim * e;
    switch (s->kind) {
    case KV_SPLIT:
    case KV_FLAT:
        return s->n_slots * s->n_heads * k;
    case KV_BLOCKS:
    case KV_HND:
    case KV_PAGES:
        return (uint64_t)s->block_tokens * s->n_heads * k;
    case KV_COLUMN:
        return (uint64_t)s->block_tokens * k;
    default:
        return k;
    }
}

static inline void kv_engine_fini(struct kv_engine *g)
{
    tsri_device_free(g->device, g->data);
}

/* Memory with 64 bytes to spare at both ends, all of it random from the seed. */
static inline void kv_engine_fill(struct kv_engine *g, uint64_t seed)
{
    uint8_t *image = malloc(g->bytes);
    kv_random_bytes(image, g->bytes, seed);
    struct tsr_copy copy = {g->data, image, g->bytes};
    CHECK_INT(tsri_device_copy(g->device, NULL, &copy, 1), 0);
    CHECK_INT(tsri_stream_sync(g->device, NULL), 0);
    free(image);
}

static inline void kv_engine_init(struct kv_engine *g, struct tsri_device *d,
                                  const struct kv_shape *s)
{
    uint32_t n_planes = s->v_dim ? 2 : 1;
    uint64_t row = (uint64_t)s->n_heads * (s->k_dim + s->v_dim) * tsri_dtype_bytes(s->dtype);
    uint64_t layer = s->n_slots * row;
    *g = (struct kv_engine){.device = d, .bytes = (size_t)(layer * s->n_layers) + 128};
    void *data;
    CHECK_INT(tsri_device_alloc(d, &data, g->bytes), 0);
    g->data = data;
    g->layout = (struct tsr_kv_layout){.size = sizeof g->layout,
                                       .memory = TSR_MEMORY_DEVICE,
                                       .n_layers = s->n_layers,
                                       .n_planes = n_planes,
                                       .block_tokens = s->kind == KV_FLAT ? 0 : s->block_tokens,
                                       .n_slots = s->n_slots};
    for (uint32_t i = 0; i < n_planes; i++) {
        struct tsr_kv_plane *p = &g->layout.planes[i];
        uint64_t offset = 64 + (i ? kv_v_offset(s) : 0);
        kv_strides(p, s, i);
        p->dtype = s->dtype;
        p->n_heads = s->n_heads;
        p->dim = i ? s->v_dim : s->k_dim;
        p->rope_first = i ? 0 : s->rope_first;
        p->rope_dims = i ? 0 : s->rope_dims;
        p->base = g->data + offset;
        /* Kinds take turns at layers by pointers and by stride; pages have only the latter. */
        if (s->kind != KV_PAGES) p->layer_stride = layer;
        for (uint32_t k = 0; k < s->n_layers; k++)
            g->layers[i][k] = g->data + offset + k * layer;
        if (s->kind != KV_PAGES && s->kind != KV_SPLIT) {
            p->layers = g->layers[i];
            p->base = NULL;
        }
    }
    kv_engine_fill(g, 7);
}

/* The first bytes of its memory. */
static inline uint8_t *kv_engine_image_of(const struct kv_engine *g, size_t bytes)
{
    uint8_t *image = malloc(bytes);
    struct tsr_copy copy = {image, g->data, bytes};
    CHECK_INT(tsri_device_copy(g->device, NULL, &copy, 1), 0);
    CHECK_INT(tsri_stream_sync(g->device, NULL), 0);
    return image;
}

static inline uint8_t *kv_engine_image(const struct kv_engine *g)
{
    return kv_engine_image_of(g, g->bytes);
}

/* ---- cells ---- */

struct kv_cells {
    struct tsri_device *device;
    struct tsr_kv_cells cells;
    size_t bytes;
    uint8_t *data; /* the device's host memory */
    void **planes;
};

static inline void kv_cells_fini(struct kv_cells *c)
{
    tsri_device_host_free(c->device, c->data);
    free(c->planes);
}

static inline size_t kv_row_bytes(const struct tsr_kv_plane *p, bool int8)
{
    return int8 ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
}

/* Planes stand one behind the other with 64 bytes between; random bytes everywhere. */
static inline void kv_cells_init(struct kv_cells *c, struct tsri_device *d,
                                 const struct tsr_kv_layout *l, uint32_t n_tokens,
                                 uint32_t cell_tokens, bool int8, uint64_t seed)
{
    uint32_t n_cells = (n_tokens + cell_tokens - 1) / cell_tokens;
    size_t n_planes = (size_t)l->n_layers * l->n_planes * n_cells, at = 0;
    *c = (struct kv_cells){.device = d, .planes = malloc(n_planes * sizeof(void *))};
    size_t *offsets = malloc(n_planes * sizeof *offsets);
    for (size_t i = 0; i < n_planes; i++) {
        const struct tsr_kv_plane *p = &l->planes[i / n_cells % l->n_planes];
        offsets[i] = at;
        at += tsri_align_up(kv_row_bytes(p, int8) * cell_tokens, 64) + 64;
    }
    void *data;
    c->bytes = at;
    CHECK_INT(tsri_device_host_alloc(d, &data, at), 0);
    c->data = data;
    kv_random_bytes(c->data, at, seed);
    for (size_t i = 0; i < n_planes; i++)
        c->planes[i] = c->data + offsets[i];
    free(offsets);
    c->cells = (struct tsr_kv_cells){.size = sizeof c->cells,
                                     .planes = c->planes,
                                     .n_cells = n_cells,
                                     .cell_tokens = cell_tokens,
                                     .n_tokens = n_tokens,
                                     .n_layers = l->n_layers,
                                     .n_planes = l->n_planes,
                                     .int8 = int8,
                                     .memory = TSR_MEMORY_LOCKED};
}

/* A number of the dtype, near enough to normal: four dice of 16 bits. */
static inline void kv_put_normal(uint8_t *at, uint32_t dtype, uint64_t *seed)
{
    uint64_t r = kv_random(seed);
    uint64_t sum = (r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48);
    float f = ((float)sum - 0x1p17f) * 0x1p-15f;
    uint16_t h = dtype == TSR_DTYPE_F16 ? tsri_f32_to_f16(f) : tsri_f32_to_bf16(f);
    if (dtype == TSR_DTYPE_F32)
        memcpy(at, &f, 4);
    else
        memcpy(at, &h, 2);
}

static inline double kv_get(const uint8_t *at, uint32_t dtype)
{
    float f;
    uint16_t h;
    memcpy(&f, at, dtype == TSR_DTYPE_F32 ? 4 : 2);
    memcpy(&h, at, 2);
    if (dtype == TSR_DTYPE_F32) return (double)f;
    return (double)(dtype == TSR_DTYPE_F16 ? tsri_f16_to_f32(h) : tsri_bf16_to_f32(h));
}

/* n packed rows of a plane's shape to their int8 form, or back, as the reference does it. */
static inline void kv_move_int8(void *int8, void *rows, uint32_t n, const struct tsr_kv_plane *p,
                                bool back)
{
    struct tsr_kv_layout l = {.size = sizeof l, .n_layers = 1, .n_planes = 1, .n_slots = n};
    size_t bytes = tsri_dtype_bytes(p->dtype);
    l.planes[0] = (struct tsr_kv_plane){.base = rows,
                                        .token_stride = (uint64_t)p->n_heads * p->dim * bytes,
                                        .head_stride = p->dim * bytes,
                                        .element_stride = bytes,
                                        .dtype = p->dtype,
                                        .n_heads = p->n_heads,
                                        .dim = p->dim};
    struct tsr_kv_cells cells = {.size = sizeof cells,
                                 .planes = &int8,
                                 .n_cells = 1,
                                 .cell_tokens = n,
                                 .n_tokens = n,
                                 .n_layers = 1,
                                 .n_planes = 1,
                                 .int8 = 1};
    int64_t *slots = malloc(n * sizeof *slots);
    for (uint32_t i = 0; i < n; i++)
        slots[i] = i;
    struct tsr_kv_run run = {&cells, slots, 0, n, 0, 0, 0};
    struct tsr_batch b = {.layout = &l, .runs = &run, .n_runs = 1, .n_tokens = n, .n_cells = 1};
    tsri_reference_move(&b, back, 0, 0, 0);
    free(slots);
}

/* The cells' rows as normal numbers, or as int8 rows made of such. */
static inline void kv_cells_numbers(struct kv_cells *c, const struct tsr_kv_layout *l,
                                    uint64_t seed)
{
    size_t n_planes = (size_t)l->n_layers * l->n_planes * c->cells.n_cells;
    for (size_t i = 0; i < n_planes; i++) {
        const struct tsr_kv_plane *p = &l->planes[i / c->cells.n_cells % l->n_planes];
        size_t n = (size_t)c->cells.cell_tokens * p->n_heads * p->dim;
        size_t bytes = tsri_dtype_bytes(p->dtype);
        uint8_t *rows = malloc(n * bytes);
        for (size_t k = 0; k < n; k++)
            kv_put_normal(rows + k * bytes, p->dtype, &seed);
        if (c->cells.int8)
            kv_move_int8(c->planes[i], rows, c->cells.cell_tokens, p, false);
        else
            memcpy(c->planes[i], rows, n * bytes);
        free(rows);
    }
}

/* Copies the cells to device memory, and points to them there, `shift` bytes behind its begin. */
static inline void *kv_cells_to_device(struct kv_cells *c, size_t shift)
{
    void *p;
    CHECK_INT(tsri_device_alloc(c->device, &p, c->bytes + shift), 0);
    struct tsr_copy copy = {(uint8_t *)p + shift, c->data, c->bytes};
    CHECK_INT(tsri_device_copy(c->device, NULL, &copy, 1), 0);
    CHECK_INT(tsri_stream_sync(c->device, NULL), 0);
    size_t n = (size_t)c->cells.n_layers * c->cells.n_planes * c->cells.n_cells;
    for (size_t i = 0; i < n; i++)
        c->planes[i] = (uint8_t *)p + shift + ((uint8_t *)c->planes[i] - c->data);
    c->cells.memory = TSR_MEMORY_DEVICE;
    return p;
}

/* Their bytes come back to host memory; the pointers stay. */
static inline void kv_cells_from_device(struct kv_cells *c, void *p, size_t shift)
{
    struct tsr_copy copy = {c->data, (uint8_t *)p + shift, c->bytes};
    CHECK_INT(tsri_device_copy(c->device, NULL, &copy, 1), 0);
    CHECK_INT(tsri_stream_sync(c->device, NULL), 0);
    tsri_device_free(c->device, p);
}

/* Scales of int8 rows that are no numbers: every fifth NaN, others infinite. */
static inline void kv_cells_odd_scales(struct kv_cells *c, const struct tsr_kv_layout *l)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    size_t n_planes = (size_t)l->n_layers * l->n_planes * c->cells.n_cells, n_scales = 0;
    for (size_t i = 0; i < n_planes; i++) {
        const struct tsr_kv_plane *p = &l->planes[i / c->cells.n_cells % l->n_planes];
        size_t n = (size_t)p->n_heads * p->dim, row = tsri_row_bytes_int8(p->n_heads, p->dim);
        size_t n_groups = n / tsri_quant_group(p->dim);
        for (size_t k = 0; k < c->cells.cell_tokens * n_groups; k++, n_scales++)
            if (n_scales % 5 == 0)
                memcpy((uint8_t *)c->planes[i] + k / n_groups * row + n + k % n_groups * 4,
                       &odd[n_scales / 5 % 3], 4);
    }
}

/* Distinct slots, mostly in runs, with some -1 among them. */
static inline void kv_slots(int64_t *slots, uint32_t n, uint64_t n_slots, uint64_t seed)
{
    uint8_t *taken = calloc(n_slots, 1);
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t dice = kv_random(&seed) >> 40;
        if (i == 0 || dice % 7 == 0) at = kv_random(&seed) % n_slots;
        if (dice % 11 == 3) {
            slots[i] = -1;
            continue;
        }
        while (taken[at])
            at = (at + 1) % n_slots;
        taken[at] = 1;
        slots[i] = (int64_t)at;
        at = (at + 1) % n_slots;
    }
    free(taken);
}

/* The unit in the last place of the dtype at magnitude x. */
static inline double kv_ulp(double x, uint32_t dtype)
{
    int bits = dtype == TSR_DTYPE_F32 ? 24 : dtype == TSR_DTYPE_F16 ? 11 : 8;
    int least = dtype == TSR_DTYPE_F16 ? -14 : -126, e;
    frexp(fabs(x), &e);
    if (x == 0 || e - 1 < least) e = least + 1;
    return ldexp(1, e - bits);
}

/* KV in the order [plane][layer][token][row] (KV_2LTD) as one big cell. planes has room for
 * n_layers x n_planes pointers. Returns the bytes it takes. */
static inline size_t kv_cells_2ltd(struct tsr_kv_cells *c, void **planes, void *data,
                                   const struct tsr_kv_layout *l, uint32_t n_tokens)
{
    size_t at = 0;
    for (uint32_t p = 0; p < l->n_planes; p++)
        for (uint32_t i = 0; i < l->n_layers; i++) {
            planes[(size_t)i * l->n_planes + p] = (uint8_t *)data + at;
            at += tsri_row_bytes(&l->planes[p]) * n_tokens;
        }
    *c = (struct tsr_kv_cells){.size = sizeof *c,
                               .planes = planes,
                               .n_cells = 1,
                               .cell_tokens = n_tokens,
                               .n_tokens = n_tokens,
                               .n_layers = l->n_layers,
                               .n_planes = l->n_planes};
    return at;
}

#endif
