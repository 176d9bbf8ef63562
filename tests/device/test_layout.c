/* What makes a layout or a set of cells acceptable, and KV_2LTD as cells. */
#include "kv.h"

static struct tsri_device *cpu;

static const struct kv_shape shape = {KV_BLOCKS, TSR_DTYPE_F16, 3, 4, 64, 64, 0, 64, 16, 320};

/* An engine of a kind whose layout a test then spoils. */
static struct kv_engine engine_of(struct kv_shape s)
{
    struct kv_engine g;
    kv_engine_init(&g, cpu, &s);
    for (uint32_t i = 0; i < g.layout.n_planes; i++) /* the copy has pointers of its own */
        if (g.layout.planes[i].layers) g.layout.planes[i].layers = NULL;
    return g;
}

TEST(every_kind_of_engine_is_accepted)
{
    for (int kind = 0; kind < KV_N_KINDS; kind++) {
        struct kv_shape s = shape;
        s.kind = (enum kv_kind)kind;
        if (kind == KV_LATENT || kind == KV_OPAQUE) s.v_dim = 0;
        if (kind == KV_LATENT || kind == KV_OPAQUE) s.n_heads = 1;
        if (kind == KV_OPAQUE) {
            s.rope_dims = 0;
            s.block_tokens = 1;
            s.dtype = TSR_DTYPE_OPAQUE;
        }
        struct kv_engine g;
        kv_engine_init(&g, cpu, &s);
        if (tsri_layout_check(&g.layout) != 0)
            printf("    %s: %s\n", kv_kind_names[kind], tsr_errmsg());
        CHECK_INT(tsri_layout_check(&g.layout), 0);
        kv_engine_fini(&g);
    }
}

TEST(heads_of_k_and_v_may_differ_in_length_side_by_side)
{
    for (int kind = KV_SPLIT; kind <= KV_PAGES; kind++) {
        struct kv_shape s = shape;
        s.kind = (enum kv_kind)kind;
        s.k_dim = 192;
        s.v_dim = 128;
        struct kv_engine g;
        kv_engine_init(&g, cpu, &s);
        CHECK_INT(tsri_layout_check(&g.layout), 0);
        kv_engine_fini(&g);
    }
}

/* One change to a good layout, and it is refused with these words. */
#define REFUSED(words, ...) \
    do { \
        struct kv_engine g; \
        kv_engine_init(&g, cpu, &shape); \
        struct tsr_kv_layout *l = &g.layout; \
        struct tsr_kv_plane *k = &l->planes[0], *v = &l->planes[1]; \
        (void)k; \
        (void)v; \
        __VA_ARGS__; \
        CHECK_INT(tsri_layout_check(l), TSR_EINVAL); \
        CHECK_HAS(tsr_errmsg(), words); \
        kv_engine_fini(&g); \
    } while (0)

TEST(counts_out_of_range_are_refused)
{
    CHECK_INT(tsri_layout_check(NULL), TSR_EINVAL);
    REFUSED("size", l->size = 4);
    REFUSED("0 layers", l->n_layers = 0);
    REFUSED("layers", l->n_layers = 1025);
    REFUSED("0 planes", l->n_planes = 0);
    REFUSED("5 planes", l->n_planes = 5);
    REFUSED("memory", l->memory = 3);
    REFUSED("power of two", l->block_tokens = 24);
    REFUSED("slots", l->n_slots = 0);
    REFUSED("slots", l->n_slots = 321);
    REFUSED("slots", l->n_slots = UINT64_MAX / 16 * 16);
    REFUSED("dtype", k->dtype = 0);
    REFUSED("dtype", k->dtype = TSR_DTYPE_INT8);
    REFUSED("heads", k->n_heads = 0);
    REFUSED("heads", v->dim = 0);
    REFUSED("heads", v->n_heads = 1u << 20, v->dim = 1u << 20);
}

TEST(parts_that_cannot_turn_are_refused)
{
    REFUSED("rotated", k->rope_dims = 63);
    REFUSED("rotated", k->rope_first = 1);
    REFUSED("rotated", k->rope_first = UINT32_MAX);
    REFUSED("opaque", k->dtype = TSR_DTYPE_OPAQUE);
    REFUSED("opaque bytes", v->dtype = TSR_DTYPE_OPAQUE, v->element_stride = 2);
}

TEST(missing_and_unaligned_pointers_are_refused)
{
    REFUSED("no base", k->base = NULL, k->layers = NULL);
    REFUSED("layer 1: no pointer", g.layers[0][1] = NULL);
    REFUSED("layer 2: unaligned", g.layers[0][2] = (uint8_t *)g.layers[0][2] + 1);
    REFUSED("multiple", k->token_stride += 1);
}

TEST(strides_that_overlap_are_refused)
{
    REFUSED("overlap", k->head_stride = 126);
    REFUSED("overlap", k->token_stride = 0);
    REFUSED("overlap", k->block_stride -= 2);
    REFUSED("overlap", v->element_stride = 0);
    REFUSED("large", k->block_stride = UINT64_MAX - 1);
    REFUSED("large", k->block_stride = UINT64_MAX / 8 * 2);
    /* V on K, one element into K, and K of the next block under V. */
    REFUSED("planes 0 and 1", memcpy(g.layers[1], g.layers[0], sizeof g.layers[0]));
    REFUSED("planes 0 and 1 overlap in layer 2", g.layers[1][2] = (uint8_t *)g.layers[1][2] - 2);
    REFUSED("planes 0 and 1 overlap in layer 0", g.layers[1][0] = (uint8_t *)g.layers[1][0] + 2);
}

/* From the layer's address on, `n` bytes further, with both planes. */
static void shift_layer(struct kv_engine *g, uint32_t layer, int64_t n)
{
    for (int i = 0; i < 2; i++)
        g->layers[i][layer] = (uint8_t *)g->layers[i][layer] + n;
}

TEST(layers_by_pointer_must_be_apart)
{
    REFUSED("plane 1: layers 0 and 2 overlap", g.layers[1][2] = g.layers[1][0]);
    REFUSED("planes 0 and 1 of layers 0 and 1 overlap", shift_layer(&g, 1, -16));
    REFUSED("planes 0 and 1 of layers 1 and 2 overlap", shift_layer(&g, 1, 64));
    REFUSED("planes 0 and 1 of layers 0 and 1 overlap", g.layers[1][0] = g.layers[0][1]);
    /* One block too near: all but one of the blocks coincide with the neighbour's. */
    REFUSED("plane 0: layers 0 and 1 overlap", shift_layer(&g, 1, -(int64_t)k->block_stride));
}

TEST(layers_by_pointer_may_stand_in_any_order_and_between_each_other)
{
    struct kv_shape s = shape;
    struct kv_engine g;
    s.kind = KV_PAGES; /* all layers of a block side by side */
    kv_engine_init(&g, cpu, &s);
    for (int i = 0; i < 2; i++) {
        struct tsr_kv_plane *p = &g.layout.planes[i];
        for (uint32_t k = 0; k < 3; k++)
            g.layers[i][k] = (uint8_t *)p->base + (2 - k) * p->layer_stride;
        p->layers = g.layers[i];
    }
    CHECK_INT(tsri_layout_check(&g.layout), 0);
    shift_layer(&g, 1, 2);
    CHECK_INT(tsri_layout_check(&g.layout), TSR_EINVAL);
    kv_engine_fini(&g);
}

TEST(planes_in_one_allocation_are_checked_with_their_layers)
{
    struct kv_shape s = shape;
    s.kind = KV_PAGES;
    struct kv_engine g = engine_of(s);
    CHECK_INT(tsri_layout_check(&g.layout), 0);
    g.layout.planes[1].base = (uint8_t *)g.layout.planes[1].base + 2;
    CHECK_INT(tsri_layout_check(&g.layout), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "overlap");
    kv_engine_fini(&g);
}

TEST(memory_that_does_not_suffice_is_refused)
{
    struct kv_engine g;
    kv_engine_init(&g, cpu, &shape);
    uint64_t need = 19 * 16 * 4 * 128 * 2 + 16 * 4 * 64 * 2; /* to the end of the last K block */
    g.layout.planes[0].layer_bytes = need;
    CHECK_INT(tsri_layout_check(&g.layout), 0);
    g.layout.planes[0].layer_bytes = need - 1;
    CHECK_INT(tsri_layout_check(&g.layout), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "needs ");
    kv_engine_fini(&g);
}

TEST(cells_must_fit_the_layout)
{
    struct kv_engine g;
    struct kv_cells c;
    kv_engine_init(&g, cpu, &shape);
    kv_cells_init(&c, cpu, &g.layout, 100, 24, false, 1);
    CHECK_INT(tsri_cells_check(&c.cells, &g.layout), 0);
    struct tsr_kv_cells bad;
#define REFUSED_CELLS(err, ...) \
    do { \
        bad = c.cells; \
        __VA_ARGS__; \
        CHECK_INT(tsri_cells_check(&bad, &g.layout), err); \
    } while (0)
    CHECK_INT(tsri_cells_check(NULL, &g.layout), TSR_EINVAL);
    REFUSED_CELLS(TSR_EINVAL, bad.size = 0);
    REFUSED_CELLS(TSR_EINVAL, bad.n_tokens = 0);
    REFUSED_CELLS(TSR_EINVAL, bad.cell_tokens = 0);
    REFUSED_CELLS(TSR_EINVAL, bad.n_cells = 4);
    REFUSED_CELLS(TSR_EINVAL, bad.n_tokens = 121);
    REFUSED_CELLS(TSR_ESPACE, bad.n_layers = 2);
    REFUSED_CELLS(TSR_ESPACE, bad.n_planes = 1);
    REFUSED_CELLS(TSR_EINVAL, bad.planes = NULL);
    REFUSED_CELLS(TSR_EINVAL, bad.memory = 9);
    void *was = c.planes[17];
    c.planes[17] = NULL;
    REFUSED_CELLS(TSR_EINVAL, (void)0);
    CHECK_HAS(tsr_errmsg(), "layer 1, plane 1, cell 2: no pointer");
    c.planes[17] = (uint8_t *)was + 1;
    REFUSED_CELLS(TSR_EINVAL, (void)0);
    c.planes[17] = (uint8_t *)was + 2; /* enough for f16, not for the scales of int8 */
    CHECK_INT(tsri_cells_check(&c.cells, &g.layout), 0);
    REFUSED_CELLS(TSR_EINVAL, bad.int8 = 1);
#undef REFUSED_CELLS
    kv_cells_fini(&c);
    kv_engine_fini(&g);
}

TEST(opaque_bytes_have_no_int8_form)
{
    struct kv_engine g;
    struct kv_cells c;
    kv_engine_init(&g, cpu,
                   &(struct kv_shape){KV_OPAQUE, TSR_DTYPE_OPAQUE, 2, 1, 64, 0, 0, 0, 1, 16});
    kv_cells_init(&c, cpu, &g.layout, 8, 8, false, 1);
    c.cells.int8 = 1;
    CHECK_INT(tsri_cells_check(&c.cells, &g.layout), TSR_EUNSUP);
    kv_cells_fini(&c);
    kv_engine_fini(&g);
}

TEST(int8_rows_hold_values_scales_and_padding)
{
    CHECK_INT(tsri_quant_group(64), 64);
    CHECK_INT(tsri_quant_group(128), 128);
    CHECK_INT(tsri_quant_group(576), 64); /* the rope part of MLA has a group of its own */
    CHECK_INT(tsri_quant_group(160), 160);
    CHECK_INT(tsri_row_bytes_int8(8, 128), 1024 + 32);
    CHECK_INT(tsri_row_bytes_int8(3, 64), 192 + 12 + 4);
    CHECK_INT(tsri_row_bytes_int8(1, 576), 576 + 36 + 12);
}

int main(void)
{
    if (tsri_device_open(&cpu, "cpu", NULL) != 0) return 1;
    RUN(every_kind_of_engine_is_accepted);
    RUN(heads_of_k_and_v_may_differ_in_length_side_by_side);
    RUN(counts_out_of_range_are_refused);
    RUN(parts_that_cannot_turn_are_refused);
    RUN(missing_and_unaligned_pointers_are_refused);
    RUN(strides_that_overlap_are_refused);
    RUN(layers_by_pointer_must_be_apart);
    RUN(layers_by_pointer_may_stand_in_any_order_and_between_each_other);
    RUN(planes_in_one_allocation_are_checked_with_their_layers);
    RUN(memory_that_does_not_suffice_is_refused);
    RUN(cells_must_fit_the_layout);
    RUN(opaque_bytes_have_no_int8_form);
    RUN(int8_rows_hold_values_scales_and_padding);
    tsri_device_close(cpu);
    return test_end();
}
