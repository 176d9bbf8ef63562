/* layout.c - what a layout and a set of cells must satisfy before a byte of them is touched. A
 * layout is five strides and a base for each plane; it is sound when, with its axes sorted by
 * stride, every stride steps over all that the smaller axes cover. That holds for every layout an
 * engine uses and makes it certain that two elements never share an address. */
#include "device/device.h"

uint32_t tsri_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case TSR_DTYPE_F16:
    case TSR_DTYPE_BF16:
        return 2;
    case TSR_DTYPE_F32:
        return 4;
    case TSR_DTYPE_OPAQUE:
        return 1;
    default:
        return 0;
    }
}

uint32_t tsri_quant_group(uint32_t dim)
{
    return dim > 128 && dim % 64 == 0 ? 64 : dim;
}

size_t tsri_row_bytes(const struct tsr_kv_plane *p)
{
    return (size_t)p->n_heads * p->dim * tsri_dtype_bytes(p->dtype);
}

size_t tsri_row_bytes_int8(uint32_t n_heads, uint32_t dim)
{
    size_t n = (size_t)n_heads * dim;
    return tsri_align_up(n + n / tsri_quant_group(dim) * sizeof(float), 16);
}

/* ---- layouts ---- */

struct axis {
    uint64_t stride, n;
};
#define AXES_MAX 6u

static void add_axis(struct axis *axes, uint32_t *n_axes, uint64_t stride, uint64_t n)
{
    if (n <= 1) return;
    uint32_t i = (*n_axes)++;
    for (; i > 0 && axes[i - 1].stride > stride; i--)
        axes[i] = axes[i - 1];
    axes[i] = (struct axis){stride, n};
}

static uint32_t plane_axes(struct axis *axes, const struct tsr_kv_layout *l,
                           const struct tsr_kv_plane *p)
{
    uint32_t n = 0;
    uint64_t in_block = l->block_tokens ? l->block_tokens : l->n_slots;
    add_axis(axes, &n, p->element_stride, p->dim);
    add_axis(axes, &n, p->head_stride, p->n_heads);
    add_axis(axes, &n, p->token_stride, in_block);
    add_axis(axes, &n, p->block_stride, l->n_slots / in_block);
    if (!p->layers) add_axis(axes, &n, p->layer_stride, l->n_layers);
    return n;
}

/* Bytes from the first to behind the last element; 0 when an axis steps into another or the sum
 * does not fit. */
static uint64_t axes_span(const struct axis *axes, uint32_t n, uint64_t element_bytes)
{
    uint64_t span = element_bytes;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t far;
        if (axes[i].stride < span) return 0;
        if (__builtin_mul_overflow(axes[i].stride, axes[i].n - 1, &far)) return 0;
        if (__builtin_add_overflow(span, far, &span)) return 0;
    }
    return span;
}

/* A plane as its elements stand in memory, smallest stride first. */
struct form {
    const struct tsr_kv_plane *plane;
    struct axis axes[AXES_MAX];
    uint32_t n;
    uint64_t bytes, span; /* of an element, of everything */
};

static void form_of(struct form *f, const struct tsr_kv_layout *l, uint32_t plane)
{
    f->plane = &l->planes[plane];
    f->n = plane_axes(f->axes, l, f->plane);
    f->bytes = tsri_dtype_bytes(f->plane->dtype);
    f->span = axes_span(f->axes, f->n, f->bytes);
}

static int check_shape(const struct tsr_kv_plane *p, uint32_t i)
{
    uint32_t bytes = tsri_dtype_bytes(p->dtype);
    if (!bytes) return tsri_fail(TSR_EINVAL, "layout: plane %u: dtype %u", i, p->dtype);
    if (!p->n_heads || !p->dim || (uint64_t)p->n_heads * p->dim > UINT32_MAX / 4)
        return tsri_fail(TSR_EINVAL, "layout: plane %u: %u heads of %u elements", i, p->n_heads,
                         p->dim);
    if (p->rope_dims) {
        if (p->dtype == TSR_DTYPE_OPAQUE)
            return tsri_fail(TSR_EINVAL, "layout: plane %u is opaque and cannot be rotated", i);
        if (p->rope_dims % 2 || (uint64_t)p->rope_first + p->rope_dims > p->dim ||
            p->rope_dims > 2 * TSRI_ROPE_PAIRS_MAX || p->dim > TSRI_KV_DIM_MAX)
            return tsri_fail(TSR_EINVAL,
                             "layout: plane %u: rotated elements %u + %u exceed the head of %u", i,
                             p->rope_first, p->rope_dims, p->dim);
    }
    if (p->dtype == TSR_DTYPE_OPAQUE && p->element_stride != 1)
        return tsri_fail(TSR_EINVAL, "layout: plane %u: opaque bytes cannot have a stride of %llu",
                         i, (unsigned long long)p->element_stride);
    if ((p->element_stride | p->head_stride | p->token_stride | p->block_stride | p->layer_stride) %
        bytes)
        return tsri_fail(TSR_EINVAL, "layout: plane %u: a stride is not a multiple of %u bytes", i,
                         bytes);
    return 0;
}

static int check_pointers(const struct tsr_kv_layout *l, uint32_t i)
{
    const struct tsr_kv_plane *p = &l->planes[i];
    uint32_t bytes = tsri_dtype_bytes(p->dtype);
    if (!p->layers && !p->base) return tsri_fail(TSR_EINVAL, "layout: plane %u has no base", i);
    for (uint32_t j = 0; j < (p->layers ? l->n_layers : 1); j++) {
        const uint8_t *base = tsri_layer_base(p, j);
        if (!base || (uintptr_t)base % bytes)
            return tsri_fail(TSR_EINVAL, "layout: plane %u, layer %u: %s pointer", i, j,
                             base ? "unaligned" : "no");
    }
    return 0;
}

/* Whether the same elements again, `step` bytes further on, fall between them or behind them. */
static bool step_is_free(const struct form *f, uint64_t step)
{
    uint64_t span = f->bytes; /* of what is smaller than a step; then of both */
    uint32_t i = 0;
    for (; i < f->n && f->axes[i].stride < step; i++)
        span += f->axes[i].stride * (f->axes[i].n - 1);
    if (step < span) return false;
    for (span += step; i < f->n; i++) {
        if (f->axes[i].stride < span) return false;
        span += f->axes[i].stride * (f->axes[i].n - 1);
    }
    return true;
}

/* Layers by pointers. Most engines have one behind the other. */
static int check_layers_apart(const struct tsr_kv_layout *l, uint32_t i, const struct form *f)
{
    const struct tsr_kv_plane *p = f->plane;
    uint32_t n = 1;
    while (n < l->n_layers && (uintptr_t)p->layers[n] > (uintptr_t)p->layers[n - 1] &&
           (uintptr_t)p->layers[n] - (uintptr_t)p->layers[n - 1] >= f->span)
        n++;
    if (n == l->n_layers) return 0;
    for (uint32_t j = 1; j < l->n_layers; j++)
        for (uint32_t k = 0; k < j; k++) {
            uintptr_t a = (uintptr_t)p->layers[k], b = (uintptr_t)p->layers[j];
            uint64_t step = a < b ? b - a : a - b;
            if (step < f->span && !step_is_free(f, step))
                return tsri_fail(TSR_EINVAL, "layout: plane %u: layers %u and %u overlap", i, k, j);
        }
    return 0;
}

static int check_plane(const struct tsr_kv_layout *l, uint32_t i)
{
    const struct tsr_kv_plane *p = &l->planes[i];
    int e = check_shape(p, i);
    if (e) return e;
    if ((e = check_pointers(l, i)) != 0) return e;
    struct form f;
    form_of(&f, l, i);
    if (!f.span)
        return tsri_fail(TSR_EINVAL, "layout: plane %u: strides overlap or are too large", i);
    if (f.span > UINT64_MAX / 4 || (p->layer_bytes && f.span > p->layer_bytes))
        return tsri_fail(TSR_EINVAL, "layout: plane %u: needs %llu bytes, has %llu", i,
                         (unsigned long long)f.span, (unsigned long long)p->layer_bytes);
    return p->layers ? check_layers_apart(l, i, &f) : 0;
}

/* Two planes in one allocation: the axes they share, with the step from one to the other as one
 * more axis, must be as sound as a plane's own. Axes they do not share (column-major K beside
 * row-major V) must be the smallest; together they count as one element. */
static bool interleaved_overlap(const struct form *first, const struct form *second, uint64_t step)
{
    const struct axis *a = first->axes, *b = second->axes;
    uint32_t na = first->n, nb = second->n, shared = 0;
    while (shared < na && shared < nb && a[na - 1 - shared].stride == b[nb - 1 - shared].stride &&
           a[na - 1 - shared].n == b[nb - 1 - shared].n)
        shared++;
    /* The shared axes that are smaller than the step belong to the inner block of each plane. */
    uint32_t below = 0;
    for (uint32_t i = na - shared; i < na && a[i].stride < step; i++)
        below++;
    if (step < axes_span(a, na - shared + below, first->bytes)) return true;
    uint64_t span = step + axes_span(b, nb - shared + below, second->bytes);
    for (uint32_t i = na - shared + below; i < na; i++) {
        if (a[i].stride < span) return true;
        span += a[i].stride * (a[i].n - 1);
    }
    return false;
}

static bool planes_overlap(const struct form *a, uint32_t layer_a, const struct form *b,
                           uint32_t layer_b)
{
    uintptr_t at_a = (uintptr_t)tsri_layer_base(a->plane, layer_a);
    uintptr_t at_b = (uintptr_t)tsri_layer_base(b->plane, layer_b);
    if (at_a > at_b) return planes_overlap(b, layer_b, a, layer_a);
    return at_b - at_a < a->span && interleaved_overlap(a, b, at_b - at_a);
}

/* In every layer and, where layers are pointers, with the other plane of the next one: those who
 * compute their pointers wrong are off by a little or by one layer. */
static int check_apart(const struct tsr_kv_layout *l, uint32_t i, uint32_t j)
{
    struct form a, b;
    form_of(&a, l, i);
    form_of(&b, l, j);
    bool pointers = a.plane->layers && b.plane->layers;
    for (uint32_t k = 0; k < l->n_layers; k++) {
        if (planes_overlap(&a, k, &b, k))
            return tsri_fail(TSR_EINVAL, "layout: planes %u and %u overlap in layer %u", i, j, k);
        if (!a.plane->layers && !b.plane->layers) break;
        if (pointers && k + 1 < l->n_layers &&
            (planes_overlap(&a, k, &b, k + 1) || planes_overlap(&a, k + 1, &b, k)))
            return tsri_fail(TSR_EINVAL, "layout: planes %u and %u of layers %u and %u overlap", i,
                             j, k, k + 1);
    }
    return 0;
}

int tsri_layout_check(const struct tsr_kv_layout *l)
{
    if (!l || l->size < sizeof *l) return tsri_fail(TSR_EINVAL, "layout: size is not set");
    if (!l->n_layers || l->n_layers > TSRI_KV_LAYERS_MAX)
        return tsri_fail(TSR_EINVAL, "layout: %u layers", l->n_layers);
    if (!l->n_planes || l->n_planes > TSR_KV_PLANES_MAX)
        return tsri_fail(TSR_EINVAL, "layout: %u planes", l->n_planes);
    if (l->memory > TSR_MEMORY_DEVICE) return tsri_fail(TSR_EINVAL, "layout: memory %u", l->memory);
    if (l->block_tokens & (l->block_tokens - 1))
        return tsri_fail(TSR_EINVAL, "layout: block size %u is not a power of two",
                         l->block_tokens);
    if (!l->n_slots || l->n_slots > INT64_MAX || (l->block_tokens && l->n_slots % l->block_tokens))
        return tsri_fail(TSR_EINVAL, "layout: %llu slots in blocks of %u",
                         (unsigned long long)l->n_slots, l->block_tokens);
    for (uint32_t i = 0; i < l->n_planes; i++) {
        int e = check_plane(l, i);
        if (e) return e;
    }
    int e = 0;
    for (uint32_t i = 0; i < l->n_planes && !e; i++)
        for (uint32_t j = i + 1; j < l->n_planes && !e; j++)
            e = check_apart(l, i, j);
    return e;
}

/* ---- cells ---- */

static int check_cell_shape(const struct tsr_kv_cells *c, const struct tsr_kv_layout *l)
{
    if (!c || c->size < sizeof *c) return tsri_fail(TSR_EINVAL, "cells: size is not set");
    if (!c->n_tokens || !c->cell_tokens)
        return tsri_fail(TSR_EINVAL, "cells: %u tokens in cells of %u", c->n_tokens,
                         c->cell_tokens);
    uint64_t n = ((uint64_t)c->n_tokens + c->cell_tokens - 1) / c->cell_tokens;
    if (c->n_cells != n)
        return tsri_fail(TSR_EINVAL, "cells: %u tokens in %u cells of %u", c->n_tokens, c->n_cells,
                         c->cell_tokens);
    if (c->n_layers != l->n_layers || c->n_planes != l->n_planes)
        return tsri_fail(TSR_ESPACE,
                         "cells: %u layers of %u planes, the layout has %u layers of %u planes",
                         c->n_layers, c->n_planes, l->n_layers, l->n_planes);
    if (!c->planes) return tsri_fail(TSR_EINVAL, "cells: no planes");
    if (c->memory > TSR_MEMORY_DEVICE) return tsri_fail(TSR_EINVAL, "cells: memory %u", c->memory);
    return 0;
}

/* Without branches, four at a time: a load of many chunks has thousands of pointers. A missing one
 * is found by the top bit of pointer - 1, which no other has. align is a power of two. */
static bool pointers_are_good(void *const *pointers, size_t n, uintptr_t align)
{
    const uintptr_t top = ~(UINTPTR_MAX >> 1);
    uintptr_t low_a = 0, low_b = 0, less_a = 0, less_b = 0;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uintptr_t a = (uintptr_t)pointers[i], b = (uintptr_t)pointers[i + 1];
        uintptr_t c = (uintptr_t)pointers[i + 2], d = (uintptr_t)pointers[i + 3];
        low_a |= a | b;
        low_b |= c | d;
        less_a |= (a - 1) | (b - 1);
        less_b |= (c - 1) | (d - 1);
    }
    for (; i < n; i++) {
        low_a |= (uintptr_t)pointers[i];
        less_a |= (uintptr_t)pointers[i] - 1;
    }
    return !((less_a | less_b) & top) && !((low_a | low_b) & (align - 1));
}

int tsri_cells_check(const struct tsr_kv_cells *c, const struct tsr_kv_layout *l)
{
    int e = check_cell_shape(c, l);
    if (e) return e;
    uintptr_t align[TSR_KV_PLANES_MAX], most = 1;
    for (uint32_t p = 0; p < l->n_planes; p++) {
        const struct tsr_kv_plane *plane = &l->planes[p];
        align[p] = c->int8 ? sizeof(float) : tsri_dtype_bytes(plane->dtype);
        TSR_ASSERT(align[p] > 0); /* the layout was checked */
        if (align[p] > most) most = align[p];
        if (c->int8 && (plane->dtype == TSR_DTYPE_OPAQUE || plane->dim > TSRI_KV_DIM_MAX ||
                        tsri_row_bytes_int8(plane->n_heads, plane->dim) > UINT32_MAX))
            return tsri_fail(TSR_EUNSUP, "cells: plane %u cannot be int8", p);
    }
    if (pointers_are_good(c->planes, (size_t)l->n_layers * l->n_planes * c->n_cells, most))
        return 0;
    for (uint32_t i = 0; i < l->n_layers; i++)
        for (uint32_t p = 0; p < l->n_planes; p++) {
            void *const *row = c->planes + ((size_t)i * l->n_planes + p) * c->n_cells;
            for (uint32_t k = 0; k < c->n_cells; k++)
                if (!row[k] || (uintptr_t)row[k] % align[p])
                    return tsri_fail(TSR_EINVAL, "cells: layer %u, plane %u, cell %u: %s pointer",
                                     i, p, k, row[k] ? "unaligned" : "no");
        }
    return 0;
}
