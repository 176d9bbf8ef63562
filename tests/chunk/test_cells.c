/* test_cells.c - the address arithmetic of entries over many shapes: planes never overlap and never
 * straddle a page, every move lands where the words of tessera.h say and touches nothing else, and
 * no view passes the check that would let a move write outside its buffer. */
#include "cache/core.h"

#include "support/test.h"

/* A pool of pages in plain memory, and a page table in no order. */
struct bed {
    struct tsri_pool pool;
    struct tsri_shape shape;
    uint32_t *pages, n_pages, n_tokens;
};

static struct tsr_space_desc opaque(uint32_t n_layers, uint32_t k, uint32_t v)
{
    return (struct tsr_space_desc){.size = sizeof(struct tsr_space_desc),
                                   .model = "m",
                                   .dtype = TSR_DTYPE_OPAQUE,
                                   .layout = v ? TSR_LAYOUT_STANDARD : TSR_LAYOUT_OPAQUE,
                                   .n_layers = n_layers,
                                   .n_heads = 1,
                                   .k_dim = k,
                                   .v_dim = v};
}

static void open_bed(struct bed *b, const struct tsr_space_desc *d, size_t page_bytes,
                     uint32_t n_tokens)
{
    memset(b, 0, sizeof *b);
    CHECK_INT(tsri_shape_init(&b->shape, d, page_bytes), 0);
    b->n_tokens = n_tokens;
    b->n_pages = tsri_shape_n_pages(&b->shape, n_tokens);
    CHECK(b->n_pages > 0);
    CHECK_INT(tsri_pool_init(&b->pool, b->n_pages * page_bytes, page_bytes), 0);
    b->pages = malloc(b->n_pages * sizeof b->pages[0]);
    CHECK(b->pages);
    for (uint32_t i = 0; i < b->n_pages; i++)
        b->pages[i] = i;
    uint64_t seed = 1 + n_tokens;
    for (uint32_t i = b->n_pages; i > 1; i--) {
        uint32_t j = (uint32_t)(test_rand(&seed) % i), t = b->pages[i - 1];
        b->pages[i - 1] = b->pages[j];
        b->pages[j] = t;
    }
}

static void close_bed(struct bed *b)
{
    tsri_pool_fini(&b->pool);
    free(b->pages);
}

/* ---- shapes ---- */

struct shape_case {
    uint32_t dtype, layout, n_layers, n_heads, k_dim, v_dim;
    size_t page_bytes;
};

static const struct shape_case cases[] = {
    {TSR_DTYPE_F16, TSR_LAYOUT_STANDARD, 32, 8, 128, 0, 256 << 10},  /* two layers to a page */
    {TSR_DTYPE_BF16, TSR_LAYOUT_STANDARD, 80, 8, 128, 0, 128 << 10}, /* a plane fills a page */
    {TSR_DTYPE_F32, TSR_LAYOUT_STANDARD, 3, 2, 16, 0, 64 << 10},     /* all in a page */
    {TSR_DTYPE_F16, TSR_LAYOUT_STANDARD, 5, 3, 20, 12, 16 << 10},    /* V rows are shorter */
    {TSR_DTYPE_F16, TSR_LAYOUT_STANDARD, 5, 3, 12, 20, 8 << 10},     /* V rows are longer */
    {TSR_DTYPE_BF16, TSR_LAYOUT_MLA, 27, 1, 576, 0, 256 << 10},      /* one plane */
    {TSR_DTYPE_BF16, TSR_LAYOUT_MLA, 61, 1, 576, 0, 128 << 10},
    {TSR_DTYPE_OPAQUE, TSR_LAYOUT_OPAQUE, 7, 1, 1, 0, 4096}, /* rows of one byte */
    {TSR_DTYPE_OPAQUE, TSR_LAYOUT_OPAQUE, 1, 1, 63, 0, 4096},
    {TSR_DTYPE_INT8, TSR_LAYOUT_STANDARD, 4, 1, 65, 0, 8 << 10},
    {TSR_DTYPE_F32, TSR_LAYOUT_STANDARD, 2, 64, 512, 0, 256 << 10},   /* cells of two tokens */
    {TSR_DTYPE_F32, TSR_LAYOUT_STANDARD, 3, 64, 1024, 64, 256 << 10}, /* cells of one token */
    {TSR_DTYPE_F32, TSR_LAYOUT_STANDARD, 2, 40, 256, 0, 1 << 20},
};

static struct tsr_space_desc desc_of(const struct shape_case *c)
{
    return (struct tsr_space_desc){.size = sizeof(struct tsr_space_desc),
                                   .model = "m",
                                   .dtype = c->dtype,
                                   .layout = c->layout,
                                   .n_layers = c->n_layers,
                                   .n_heads = c->n_heads,
                                   .k_dim = c->k_dim,
                                   .v_dim = c->v_dim};
}

/* Marks the bytes of every plane; a byte marked twice, or out of its page, fails. */
static void check_planes(struct bed *b)
{
    const struct tsri_shape *s = &b->shape;
    uint8_t *used = calloc(b->n_pages, s->page_bytes);
    uint32_t *of_page = calloc(b->n_pages, sizeof of_page[0]);
    CHECK(used && of_page);
    uint32_t n_cells = tsri_shape_n_cells(s, b->n_tokens), n_rows = 0;
    for (uint32_t c = 0; c < n_cells; c++) {
        struct tsri_cell cell;
        tsri_cell_layout(s, b->n_tokens, c, &cell);
        n_rows += cell.n_tokens;
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++) {
                uint8_t *at = tsri_plane(b->pool.region.data, s, b->pages, &cell, c, l, p);
                size_t first = (size_t)(at - b->pool.region.data);
                size_t bytes = (size_t)cell.n_tokens * s->row_bytes[p];
                CHECK(first % TSRI_CACHE_LINE == 0);
                CHECK(first + bytes <= (size_t)b->n_pages * s->page_bytes);
                CHECK(first / s->page_bytes == (first + bytes - 1) / s->page_bytes);
                for (size_t i = first; i < first + bytes; i++)
                    CHECK(!used[i]++);
                of_page[first / s->page_bytes]++;
            }
    }
    CHECK_INT(n_rows, b->n_tokens);
    for (uint32_t i = 0; i < b->n_pages; i++)
        CHECK(of_page[i] > 0); /* no page is asked for in vain */
    free(used);
    free(of_page);
}

TEST(planes_never_overlap_and_never_straddle_a_page)
{
    for (size_t i = 0; i < TSRI_COUNT(cases); i++) {
        struct tsr_space_desc d = desc_of(&cases[i]);
        struct tsri_shape s;
        CHECK_INT(tsri_shape_init(&s, &d, cases[i].page_bytes), 0);
        uint32_t cell = s.cell_tokens;
        uint32_t lengths[] = {1, cell, cell + 1, 2 * cell, 3 * cell - 1};
        for (size_t n = 0; n < TSRI_COUNT(lengths); n++) {
            struct bed b;
            open_bed(&b, &d, cases[i].page_bytes, lengths[n]);
            check_planes(&b);
            close_bed(&b);
        }
    }
}

TEST(random_shapes_never_overlap_either)
{
    uint64_t seed = 21;
    for (uint32_t round = 0; round < 300; round++) {
        struct tsr_space_desc d =
            opaque(1 + (uint32_t)(test_rand(&seed) % 12), 1 + (uint32_t)(test_rand(&seed) % 300),
                   (uint32_t)(test_rand(&seed) % 3 * (test_rand(&seed) % 200)));
        uint32_t row = d.k_dim > d.v_dim ? d.k_dim : d.v_dim;
        size_t page = tsri_pow2_up((uint64_t)row * 64 < 4096 ? 4096 : (uint64_t)row * 64)
                      << test_rand(&seed) % 3;
        struct bed b;
        open_bed(&b, &d, page, 1 + (uint32_t)(test_rand(&seed) % 200));
        check_planes(&b);
        close_bed(&b);
    }
}

TEST(a_cell_has_as_many_tokens_as_a_plane_allows)
{
    static const struct {
        uint32_t row, cell_tokens;
    } rows[] = {{1, 64},    {4096, 64},  {4097, 32},  {8192, 32},
                {8193, 16}, {131072, 2}, {131073, 1}, {262144, 1}};
    for (size_t i = 0; i < TSRI_COUNT(rows); i++) {
        struct tsr_space_desc d = opaque(2, rows[i].row, 0);
        struct tsri_shape s;
        CHECK_INT(tsri_shape_init(&s, &d, 256 << 10), 0);
        CHECK_INT(s.cell_tokens, rows[i].cell_tokens);
        CHECK_INT(s.n_planes, 1);
        CHECK_INT(s.row_bytes[0], rows[i].row);
        CHECK_INT(s.row_bytes[1], 0);
    }
}

TEST(shapes_that_do_not_fit_are_refused_in_words)
{
    struct tsri_shape s;
    struct tsr_space_desc d = opaque(2, 262145, 0);
    CHECK_INT(tsri_shape_init(&s, &d, 64 << 20), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "262145 bytes per token and layer exceed the limit of 262144");
    d = opaque(2, 100, 262145); /* V alone is too large */
    CHECK_INT(tsri_shape_init(&s, &d, 64 << 20), TSR_ERANGE);
    d = opaque(2, 65, 0);
    CHECK_INT(tsri_shape_init(&s, &d, 4096), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "raise host_page_size above 4096");
    d = opaque(2, 64, 65);
    CHECK_INT(tsri_shape_init(&s, &d, 4096), TSR_ERANGE);
    d = opaque(2, 64, 0);
    CHECK_INT(tsri_shape_init(&s, &d, 4096), 0);
    /* The largest numbers a description may have do not wrap around. */
    d = opaque(2, TSRI_SPACE_DIM_MAX, TSRI_SPACE_DIM_MAX);
    d.n_heads = TSRI_SPACE_HEADS_MAX;
    d.dtype = TSR_DTYPE_F32;
    CHECK_INT(tsri_shape_init(&s, &d, 64 << 20), TSR_ERANGE);
}

TEST(pages_that_cannot_be_counted_are_none)
{
    struct tsri_shape s;
    struct tsr_space_desc d = opaque(TSRI_SPACE_LAYERS_MAX, 262144, 262144);
    CHECK_INT(tsri_shape_init(&s, &d, 256 << 10), 0);
    CHECK_INT(s.cell_tokens, 1);
    CHECK_INT(tsri_shape_n_pages(&s, 1), 2 * TSRI_SPACE_LAYERS_MAX);
    CHECK_INT(tsri_shape_n_pages(&s, (1u << 19) - 1), UINT32_MAX - 2 * TSRI_SPACE_LAYERS_MAX + 1);
    CHECK_INT(tsri_shape_n_pages(&s, 1u << 19), 0);
    CHECK_INT(tsri_shape_n_pages(&s, UINT32_MAX), 0);
    CHECK_INT(tsri_shape_n_pages(&s, 0), 0);
    CHECK_INT(tsri_shape_n_cells(&s, UINT32_MAX), UINT32_MAX);
}

/* ---- moves ---- */

/* The byte that belongs to (layer, plane, token, i). */
static uint8_t want(uint32_t layer, uint32_t plane, uint32_t token, uint32_t i)
{
    uint32_t x = (((layer * 2 + plane) * 4099 + token) * 8191 + i) * 2654435761u;
    return (uint8_t)(x >> 24);
}

/* Straight into the planes, without tsri_cells_move. */
static void fill_bed(struct bed *b)
{
    const struct tsri_shape *s = &b->shape;
    for (uint32_t t = 0; t < b->n_tokens; t++) {
        struct tsri_cell cell;
        tsri_cell_layout(s, b->n_tokens, t / s->cell_tokens, &cell);
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++) {
                uint8_t *row =
                    tsri_plane(b->pool.region.data, s, b->pages, &cell, t / s->cell_tokens, l, p) +
                    (size_t)(t % s->cell_tokens) * s->row_bytes[p];
                for (uint32_t i = 0; i < s->row_bytes[p]; i++)
                    row[i] = want(l, p, t, i);
            }
    }
}

/* Ways to lay out a view; 0 is packed. Rows never overlap. */
#define LAYOUTS 5u

static struct tsr_view view_of(const struct tsri_shape *s, uint32_t layout, uint32_t n_tokens,
                               uint32_t n_layers)
{
    size_t k = s->row_bytes[0], v = s->row_bytes[1], row = k > v ? k : v;
    struct tsr_view view = {.data = NULL};
    switch (layout) {
    case 0: /* packed */
        view.bytes = (size_t)n_tokens * n_layers * (k + v);
        return view;
    case 1: /* [K, V][layer][token], rows with a gap */
        view.token_stride = row + 3;
        view.layer_stride = view.token_stride * n_tokens + 5;
        view.plane_stride = view.layer_stride * n_layers + 1;
        break;
    case 2: /* [token][layer][K, V], as some engines have it */
        view.plane_stride = row;
        view.layer_stride = row * 2;
        view.token_stride = view.layer_stride * n_layers;
        break;
    case 3: /* rows packed by their own size, layers apart */
        view.plane_stride = k * n_tokens + 7;
        view.layer_stride = view.plane_stride + v * n_tokens + 11;
        break;
    default: /* [layer][token][K, V] */
        view.plane_stride = row;
        view.token_stride = row * 2;
        view.layer_stride = view.token_stride * n_tokens;
    }
    size_t stride_k = view.token_stride ? view.token_stride : k;
    size_t stride_v = view.token_stride ? view.token_stride : v;
    size_t end_k = (n_tokens - 1) * stride_k + k;
    size_t end_v = view.plane_stride + (n_tokens - 1) * stride_v + v;
    view.bytes =
        (n_layers - 1) * view.layer_stride + (s->n_planes > 1 && end_v > end_k ? end_v : end_k);
    return view;
}

static size_t row_offset(const struct tsri_shape *s, const struct tsr_view *v, uint32_t l,
                         uint32_t p, uint32_t t)
{
    return l * v->layer_stride + p * v->plane_stride +
           t * (v->token_stride ? v->token_stride : s->row_bytes[p]);
}

/* To the view, checked byte by byte with what is between rows; then back into blank pages. */
static void check_move(struct bed *b, uint32_t layout, uint32_t offset, uint32_t n,
                       uint32_t layer_first, uint32_t n_layers)
{
    const struct tsri_shape *s = &b->shape;
    static uint8_t got[1 << 20], expect[1 << 20];
    struct tsr_view view = view_of(s, layout, n, n_layers);
    CHECK(view.bytes <= sizeof got);
    view.data = got;
    CHECK_INT(tsri_view_check(s, &view, n, n_layers), 0);
    memset(got, 0xA5, view.bytes);
    memset(expect, 0xA5, view.bytes);
    for (uint32_t l = 0; l < n_layers; l++)
        for (uint32_t p = 0; p < s->n_planes; p++)
            for (uint32_t t = 0; t < n; t++)
                for (uint32_t i = 0; i < s->row_bytes[p]; i++)
                    expect[row_offset(s, &view, l, p, t) + i] =
                        want(layer_first + l, p, offset + t, i);
    struct tsri_cell_move move = {.pool = b->pool.region.data,
                                  .shape = s,
                                  .pages = b->pages,
                                  .entry_tokens = b->n_tokens,
                                  .offset = offset,
                                  .n_tokens = n,
                                  .layer_first = layer_first,
                                  .n_layers = n_layers,
                                  .to_view = true};
    tsri_cells_move(&move, &view);
    CHECK(memcmp(got, expect, view.bytes) == 0);
}

/* What was moved out goes back in, into pages that were blank; nothing else there changes. */
static void check_back(struct bed *b, uint32_t layout, uint32_t offset, uint32_t n,
                       uint32_t layer_first, uint32_t n_layers)
{
    const struct tsri_shape *s = &b->shape;
    size_t bytes = (size_t)b->n_pages * s->page_bytes;
    uint8_t *before = malloc(bytes);
    CHECK(before);
    memcpy(before, b->pool.region.data, bytes);
    static uint8_t rows[1 << 20];
    struct tsr_view view = view_of(s, layout, n, n_layers);
    view.data = rows;
    CHECK_INT(tsri_view_check(s, &view, n, n_layers), 0);
    struct tsri_cell_move move = {.pool = b->pool.region.data,
                                  .shape = s,
                                  .pages = b->pages,
                                  .entry_tokens = b->n_tokens,
                                  .offset = offset,
                                  .n_tokens = n,
                                  .layer_first = layer_first,
                                  .n_layers = n_layers,
                                  .to_view = true};
    tsri_cells_move(&move, &view);
    /* Blank exactly the rows that were moved. */
    for (uint32_t t = offset; t < offset + n; t++) {
        struct tsri_cell cell;
        tsri_cell_layout(s, b->n_tokens, t / s->cell_tokens, &cell);
        for (uint32_t l = layer_first; l < layer_first + n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++)
                memset(
                    tsri_plane(b->pool.region.data, s, b->pages, &cell, t / s->cell_tokens, l, p) +
                        (size_t)(t % s->cell_tokens) * s->row_bytes[p],
                    0, s->row_bytes[p]);
    }
    move.to_view = false;
    tsri_cells_move(&move, &view);
    CHECK(memcmp(before, b->pool.region.data, bytes) == 0);
    free(before);
}

TEST(every_offset_length_and_layer_range_moves_there_and_back)
{
    /* K and V rows of different size, and one plane; cells of 64 with a short last one. */
    struct tsr_space_desc descs[] = {opaque(3, 5, 3), opaque(3, 3, 7), opaque(2, 4, 0)};
    for (size_t d = 0; d < TSRI_COUNT(descs); d++) {
        struct bed b;
        open_bed(&b, &descs[d], 4096, 133);
        fill_bed(&b);
        for (uint32_t offset = 0; offset < b.n_tokens; offset++)
            for (uint32_t n = 1; n <= b.n_tokens - offset; n += offset % 3 ? 7u : 1u)
                check_move(&b, (offset + n) % LAYOUTS, offset, n, offset % descs[d].n_layers,
                           1 + (n % (descs[d].n_layers - offset % descs[d].n_layers)));
        for (uint32_t layout = 0; layout < LAYOUTS; layout++)
            for (uint32_t first = 0; first < descs[d].n_layers; first++)
                for (uint32_t n = 1; n <= descs[d].n_layers - first; n++)
                    for (uint32_t offset = 0; offset < b.n_tokens; offset += 31) {
                        check_move(&b, layout, offset, b.n_tokens - offset, first, n);
                        check_back(&b, layout, offset, b.n_tokens - offset, first, n);
                    }
        close_bed(&b);
    }
}

TEST(cells_of_few_tokens_move_there_and_back)
{
    struct tsr_space_desc d = opaque(2, 20000, 9000); /* cells of 8 */
    struct bed b;
    open_bed(&b, &d, 256 << 10, 11);
    CHECK_INT(b.shape.cell_tokens, 8);
    fill_bed(&b);
    for (uint32_t layout = 0; layout < LAYOUTS; layout++)
        for (uint32_t offset = 0; offset < b.n_tokens; offset++)
            for (uint32_t n = 1; n <= b.n_tokens - offset; n += 3)
                check_move(&b, layout, offset, n, n % 2, 1);
    check_back(&b, 0, 5, 5, 0, 2);
    check_back(&b, 2, 7, 4, 1, 1);
    close_bed(&b);
}

/* ---- views ---- */

/* The rules of tessera.h in arithmetic that cannot wrap around. */
static bool may_pass(const struct tsri_shape *s, const struct tsr_view *v, uint32_t n_tokens,
                     uint32_t n_layers)
{
    __extension__ typedef unsigned __int128 wide;
    size_t row_max = s->row_bytes[0] > s->row_bytes[1] ? s->row_bytes[0] : s->row_bytes[1];
    bool packed = !v->layer_stride && !v->plane_stride && !v->token_stride;
    if (packed) return (wide)n_tokens * n_layers * (s->row_bytes[0] + s->row_bytes[1]) <= v->bytes;
    if (v->token_stride && v->token_stride < row_max) return false;
    if ((n_layers > 1 && !v->layer_stride) || (s->n_planes > 1 && !v->plane_stride)) return false;
    for (uint32_t p = 0; p < s->n_planes; p++) {
        size_t row = s->row_bytes[p];
        wide end = (wide)v->layer_stride * (n_layers - 1) + (p ? v->plane_stride : 0) +
                   (wide)(v->token_stride ? v->token_stride : row) * (n_tokens - 1) + row;
        if (end > v->bytes) return false;
    }
    return true;
}

static size_t draw_stride(uint64_t *seed)
{
    switch (test_rand(seed) % 6) {
    case 0:
        return 0;
    case 1:
        return SIZE_MAX - test_rand(seed) % 64;
    case 2:
        return ((size_t)1 << 63) + test_rand(seed) % 64 - 32;
    case 3:
        return test_rand(seed) >> test_rand(seed) % 64;
    default:
        return test_rand(seed) % 300;
    }
}

TEST(a_view_passes_exactly_when_every_row_lies_in_its_buffer)
{
    uint64_t seed = 8;
    uint32_t n_passed = 0;
    char byte;
    for (uint32_t round = 0; round < 400000; round++) {
        struct tsri_shape s = {.n_layers = 4, .n_planes = 1 + (uint32_t)(test_rand(&seed) % 2)};
        s.row_bytes[0] = 1 + (uint32_t)(test_rand(&seed) % 40);
        s.row_bytes[1] = s.n_planes > 1 ? 1 + (uint32_t)(test_rand(&seed) % 40) : 0;
        uint32_t n_tokens = 1 + (uint32_t)(test_rand(&seed) % 5), n_layers = 1 + round % 4;
        if (round % 16 == 0) n_tokens = INT32_MAX;
        struct tsr_view v = {.data = &byte,
                             .bytes = test_rand(&seed) % 2 ? test_rand(&seed) % 3000
                                                           : draw_stride(&seed),
                             .layer_stride = draw_stride(&seed),
                             .plane_stride = draw_stride(&seed),
                             .token_stride = draw_stride(&seed)};
        bool may = may_pass(&s, &v, n_tokens, n_layers);
        int e = tsri_view_check(&s, &v, n_tokens, n_layers);
        CHECK(e == 0 || e == TSR_EINVAL || e == TSR_ERANGE);
        CHECK((e == 0) == may);
        n_passed += may;
    }
    CHECK(n_passed > 1000);
}

TEST(a_view_one_byte_too_short_is_refused)
{
    struct tsr_space_desc d = opaque(3, 5, 3);
    struct tsri_shape s;
    CHECK_INT(tsri_shape_init(&s, &d, 4096), 0);
    char byte;
    for (uint32_t layout = 0; layout < LAYOUTS; layout++) {
        struct tsr_view v = view_of(&s, layout, 10, 3), w = v;
        v.data = w.data = &byte;
        CHECK_INT(tsri_view_check(&s, &v, 10, 3), 0);
        w.bytes--;
        CHECK_INT(tsri_view_check(&s, &w, 10, 3), TSR_ERANGE);
        CHECK_HAS(tsr_errmsg(), "view: needs ");
    }
}

TEST(views_that_cannot_be_meant_are_refused_in_words)
{
    struct tsr_space_desc d = opaque(3, 5, 3);
    struct tsri_shape s;
    CHECK_INT(tsri_shape_init(&s, &d, 4096), 0);
    char byte;
    struct tsr_view v = {.data = NULL, .bytes = 1000};
    CHECK_INT(tsri_view_check(&s, &v, 10, 3), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "NULL");
    v = (struct tsr_view){
        .data = &byte, .bytes = 1000, .token_stride = 4, .plane_stride = 50, .layer_stride = 100};
    CHECK_INT(tsri_view_check(&s, &v, 10, 3), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "token_stride 4 is less than the row size 5");
    v = (struct tsr_view){.data = &byte, .bytes = 1000, .plane_stride = 50};
    CHECK_INT(tsri_view_check(&s, &v, 10, 3), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "layer_stride");
    CHECK_INT(tsri_view_check(&s, &v, 10, 1), 0);
    v = (struct tsr_view){.data = &byte, .bytes = 1000, .layer_stride = 100};
    CHECK_INT(tsri_view_check(&s, &v, 10, 3), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "plane_stride");
}

int main(void)
{
    RUN(planes_never_overlap_and_never_straddle_a_page);
    RUN(random_shapes_never_overlap_either);
    RUN(a_cell_has_as_many_tokens_as_a_plane_allows);
    RUN(shapes_that_do_not_fit_are_refused_in_words);
    RUN(pages_that_cannot_be_counted_are_none);
    RUN(every_offset_length_and_layer_range_moves_there_and_back);
    RUN(cells_of_few_tokens_move_there_and_back);
    RUN(a_view_passes_exactly_when_every_row_lies_in_its_buffer);
    RUN(a_view_one_byte_too_short_is_refused);
    RUN(views_that_cannot_be_meant_are_refused_in_words);
    return test_end();
}
