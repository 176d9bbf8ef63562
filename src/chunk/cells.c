/* cells.c - where the rows of an entry are, and copying them to and from a caller's memory. Pure
 * functions over a shape and a page table: no locks, no allocation. A plane never straddles a page,
 * so a run of tokens in a cell is one memcpy. */
#include "chunk/cells.h"

static uint32_t dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case TSR_DTYPE_F32:
        return 4;
    case TSR_DTYPE_F16:
    case TSR_DTYPE_BF16:
        return 2;
    default:
        return 1;
    }
}

bool tsri_shape_is_sound(const struct tsri_shape *s)
{
    uint64_t row_max = s->row_bytes[0] > s->row_bytes[1] ? s->row_bytes[0] : s->row_bytes[1];
    return s->cell_tokens && s->cell_tokens <= TSRI_CELL_TOKENS_MAX &&
           tsri_align_up(s->cell_tokens * row_max, TSRI_CACHE_LINE) <= s->page_bytes;
}

int tsri_shape_init(struct tsri_shape *s, const struct tsr_space_desc *desc, size_t page_bytes)
{
    uint64_t element = dtype_bytes(desc->dtype);
    uint32_t v_dim = desc->v_dim;
    if (v_dim == 0 && desc->layout == TSR_LAYOUT_STANDARD) v_dim = desc->k_dim;
    uint64_t heads = desc->n_heads ? desc->n_heads : 1;
    uint64_t k = heads * desc->k_dim * element, v = heads * v_dim * element;
    uint64_t row_max = k > v ? k : v;
    if (row_max > TSRI_PLANE_BYTES_MAX)
        return tsri_fail(TSR_ERANGE, "%llu bytes per token and layer exceed the limit of %u",
                         (unsigned long long)row_max, TSRI_PLANE_BYTES_MAX);
    *s = (struct tsri_shape){.n_layers = desc->n_layers,
                             .n_planes = v ? 2 : 1,
                             .row_bytes = {(uint32_t)k, (uint32_t)v},
                             .cell_tokens = TSRI_CELL_TOKENS_MAX,
                             .page_bytes = (uint32_t)page_bytes};
    while (s->cell_tokens * row_max > TSRI_PLANE_BYTES_MAX)
        s->cell_tokens /= 2;
    if (!tsri_shape_is_sound(s))
        return tsri_fail(TSR_ERANGE,
                         "a plane of %u tokens of %llu bytes does not fit into a page: raise "
                         "host_page_size above %zu",
                         s->cell_tokens, (unsigned long long)row_max, page_bytes);
    return 0;
}

size_t tsri_shape_token_bytes(const struct tsri_shape *s)
{
    return (size_t)s->n_layers * (s->row_bytes[0] + s->row_bytes[1]);
}

uint32_t tsri_shape_n_cells(const struct tsri_shape *s, uint32_t n_tokens)
{
    return (uint32_t)(((uint64_t)n_tokens + s->cell_tokens - 1) / s->cell_tokens);
}

static void layout_of(const struct tsri_shape *s, uint32_t n_tokens, struct tsri_cell *out)
{
    out->n_tokens = n_tokens;
    out->k_bytes = (uint32_t)tsri_align_up((size_t)n_tokens * s->row_bytes[0], TSRI_CACHE_LINE);
    uint32_t v_bytes = (uint32_t)tsri_align_up((size_t)n_tokens * s->row_bytes[1], TSRI_CACHE_LINE);
    out->layer_bytes = out->k_bytes + v_bytes;
    out->layers_per_page = s->page_bytes / out->layer_bytes;
    out->n_pages = out->layers_per_page
                       ? (s->n_layers + out->layers_per_page - 1) / out->layers_per_page
                       : s->n_layers * s->n_planes;
}

void tsri_cell_layout(const struct tsri_shape *s, uint32_t n_tokens, uint32_t c,
                      struct tsri_cell *out)
{
    uint32_t first = c * s->cell_tokens;
    TSR_ASSERT(first < n_tokens);
    layout_of(s, tsri_min_u32(s->cell_tokens, n_tokens - first), out);
}

uint32_t tsri_shape_n_pages(const struct tsri_shape *s, uint32_t n_tokens)
{
    struct tsri_cell full, last;
    layout_of(s, s->cell_tokens, &full);
    uint64_t n = (uint64_t)(n_tokens / s->cell_tokens) * full.n_pages;
    if (n_tokens % s->cell_tokens) {
        layout_of(s, n_tokens % s->cell_tokens, &last);
        n += last.n_pages;
    }
    return n > UINT32_MAX ? 0 : (uint32_t)n;
}

/* All cells but the last are full, so the pages before cell c are a product. */
static uint32_t pages_before(const struct tsri_shape *s, uint32_t c)
{
    if (c == 0) return 0;
    struct tsri_cell full;
    layout_of(s, s->cell_tokens, &full);
    return c * full.n_pages;
}

static uint8_t *plane_in(uint8_t *pool, const struct tsri_shape *s, const uint32_t *cell_pages,
                         const struct tsri_cell *cell, uint32_t layer, uint32_t plane)
{
    if (cell->layers_per_page == 0)
        return pool + (size_t)cell_pages[layer * s->n_planes + plane] * s->page_bytes;
    uint8_t *page = pool + (size_t)cell_pages[layer / cell->layers_per_page] * s->page_bytes;
    return page + (size_t)(layer % cell->layers_per_page) * cell->layer_bytes +
           (plane ? cell->k_bytes : 0);
}

uint8_t *tsri_plane(uint8_t *pool, const struct tsri_shape *s, const uint32_t *pages,
                    const struct tsri_cell *cell, uint32_t c, uint32_t layer, uint32_t plane)
{
    return plane_in(pool, s, pages + pages_before(s, c), cell, layer, plane);
}

int tsri_view_check(const struct tsri_shape *s, struct tsr_view *v, uint32_t n_tokens,
                    uint32_t n_layers)
{
    if (!v->data) return tsri_fail(TSR_EINVAL, "view: data is NULL");
    size_t row[2] = {s->row_bytes[0], s->row_bytes[1]};
    TSR_ASSERT(s->n_planes <= 2);
    size_t row_max = row[0] > row[1] ? row[0] : row[1];
    if (!v->token_stride && !v->plane_stride && !v->layer_stride) {
        v->plane_stride = n_tokens * row[0];
        v->layer_stride = n_tokens * (row[0] + row[1]);
    }
    if (v->token_stride && v->token_stride < row_max)
        return tsri_fail(TSR_EINVAL, "view: token_stride %zu is less than the row size %zu",
                         v->token_stride, row_max);
    if (n_layers > 1 && v->layer_stride == 0)
        return tsri_fail(TSR_EINVAL, "view: layer_stride is 0 for %u layers", n_layers);
    if (s->n_planes > 1 && v->plane_stride == 0)
        return tsri_fail(TSR_EINVAL, "view: plane_stride is 0, K and V would overlap");
    size_t end = 0;
    for (uint32_t p = 0; p < s->n_planes; p++) {
        size_t stride = v->token_stride ? v->token_stride : row[p], layers, tokens, sum;
        if (__builtin_mul_overflow(v->layer_stride, (size_t)(n_layers - 1), &layers) ||
            __builtin_mul_overflow(stride, (size_t)(n_tokens - 1), &tokens) ||
            __builtin_add_overflow(layers, tokens, &sum) ||
            __builtin_add_overflow(sum, row[p], &sum) ||
            __builtin_add_overflow(sum, p ? v->plane_stride : 0, &sum))
            return tsri_fail(TSR_ERANGE, "view: strides overflow");
        if (sum > end) end = sum;
    }
    if (end > v->bytes)
        return tsri_fail(TSR_ERANGE, "view: needs %zu bytes, the buffer has %zu", end, v->bytes);
    return 0;
}

/* Moves of this much do not fit in the caches anyway. */
#define STREAM_BYTES ((size_t)8 << 20)

struct cell_rows {
    uint8_t *cell, *user;
    uint32_t n;
    size_t row, stride;
};

static void move_rows(const struct cell_rows *r, bool to_user, bool stream)
{
    uint8_t *cell = r->cell, *user = r->user;
    size_t row = r->row, stride = r->stride;
    uint32_t n = r->n;
    if (stride == row) {
        void *dst = to_user ? user : cell;
        const void *src = to_user ? cell : user;
        if (stream)
            tsri_copy_stream(dst, src, n * row);
        else
            memcpy(dst, src, n * row);
        return;
    }
    for (uint32_t t = 0; t < n; t++) {
        if (to_user)
            memcpy(user + t * stride, cell + t * row, row);
        else
            memcpy(cell + t * row, user + t * stride, row);
    }
}

static int read_rows(const struct cell_rows *r, const struct tsri_region *source)
{
    if (r->stride == r->row) return tsri_region_read(source, r->user, r->cell, r->n * r->row);
    int e = 0;
    for (uint32_t t = 0; e == 0 && t < r->n; t++)
        e = tsri_region_read(source, r->user + t * r->stride, r->cell + t * r->row, r->row);
    return e;
}

/* Layer by layer over all cells: the caller's side is then written front to back when it is packed.
 */
static int move_cells(const struct tsri_cell_move *m, const struct tsr_view *view,
                      const struct tsri_region *source)
{
    const struct tsri_shape *s = m->shape;
    uint32_t end = m->offset + m->n_tokens;
    struct tsri_cell full;
    layout_of(s, s->cell_tokens, &full);
    bool stream =
        (size_t)m->n_tokens * m->n_layers * (s->row_bytes[0] + s->row_bytes[1]) >= STREAM_BYTES;
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (uint32_t p = 0; p < s->n_planes; p++) {
            size_t row = s->row_bytes[p], stride = view->token_stride ? view->token_stride : row;
            uint8_t *user = (uint8_t *)view->data + l * view->layer_stride + p * view->plane_stride;
            for (uint32_t t = m->offset; t < end;) {
                uint32_t c = t / s->cell_tokens, in_cell = t % s->cell_tokens;
                struct tsri_cell cell = full;
                if ((c + 1) * s->cell_tokens > m->entry_tokens)
                    tsri_cell_layout(s, m->entry_tokens, c, &cell);
                uint32_t n = tsri_min_u32(cell.n_tokens - in_cell, end - t);
                uint8_t *rows = plane_in(m->pool, s, m->pages + (size_t)c * full.n_pages, &cell,
                                         m->layer_first + l, p) +
                                in_cell * row;
                struct cell_rows r = {rows, user + (t - m->offset) * stride, n, row, stride};
                int e = source ? read_rows(&r, source) : 0;
                if (e) return e;
                if (!source) move_rows(&r, m->to_view, stream);
                t += n;
            }
        }
    return 0;
}

void tsri_cells_move(const struct tsri_cell_move *m, const struct tsr_view *view)
{
    int e = move_cells(m, view, NULL);
    TSR_ASSERT(e == 0);
}

int tsri_cells_read(const struct tsri_cell_move *m, const struct tsr_view *view,
                    const struct tsri_region *source)
{
    TSR_ASSERT(!m->to_view);
    return move_cells(m, view, source);
}
