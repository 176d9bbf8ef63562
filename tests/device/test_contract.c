/* Every operation of every device, and of every variant of the cpu, against the reference: over
 * shapes, dtypes and layouts. Copies must agree in every byte, also in those that nobody asked to
 * touch; what is computed must agree within the bounds of <tessera/device.h>. A device that is not
 * there is skipped with one line. */
#include "kv.h"
#include "support/fakeacl.h"
#include "support/fakegpu.h"

static struct tsri_device *reference, *subject;

/* Blocks of 16 tokens, small models, odd sizes that leave ends of vectors, partial rotation. */
static const struct kv_shape shapes[] = {
    {KV_SPLIT, 0, 2, 3, 64, 64, 0, 64, 16, 256},
    {KV_BLOCKS, 0, 2, 2, 128, 128, 0, 128, 16, 256},
    {KV_HND, 0, 2, 3, 64, 64, 0, 64, 16, 256},
    {KV_ROWS, 0, 2, 2, 96, 64, 0, 96, 8, 256},
    {KV_PACKED, 0, 2, 4, 32, 32, 0, 32, 32, 256},
    {KV_COLUMN, 0, 2, 2, 64, 64, 0, 64, 16, 256},
    {KV_FLAT, 0, 3, 3, 64, 64, 0, 64, 1, 250},
    {KV_PAGES, 0, 3, 2, 64, 64, 0, 64, 16, 256},
    {KV_LATENT, 0, 2, 1, 576, 0, 512, 64, 64, 256},
    {KV_SPLIT, 0, 1, 2, 80, 80, 0, 32, 1, 256}, /* partial rotation */
    {KV_HND, 0, 1, 2, 20, 20, 4, 14, 2, 256},   /* seven pairs in the middle of a head */
    {KV_COLUMN, 0, 1, 1, 20, 20, 0, 10, 128, 256},
    {KV_BLOCKS, 0, 1, 3, 256, 256, 0, 256, 16, 256},
};
/* Runs of rows long enough that a device may bring them in copies instead of reading them where
 * they are; the second has rows of K behind which V does not begin on a round address. */
static const struct kv_shape long_shapes[] = {
    {KV_SPLIT, TSR_DTYPE_BF16, 2, 16, 128, 128, 0, 128, 16, 160},
    {KV_SPLIT, TSR_DTYPE_F16, 2, 1, 1001, 1024, 0, 64, 16, 160},
};
static const uint32_t dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
/* For each shape, in turn: a variant of a device that has seen all, and whatever a sanitizer slows. */
static bool one_dtype = TEST_SANITIZED;

/* One move, done twice: by the reference and by the subject, on memory with the same bytes. */
struct twin {
    struct tsri_device *device;
    struct kv_engine engine;
    struct kv_cells cells[2];
    struct tsri_batch *batch;
};
struct scene {
    struct kv_shape shape;
    bool int8, numbers;
    bool mixed;           /* the second entry is not in the int8 form */
    bool odd_scales;      /* some are NaN or infinite; NaN are all alike then */
    uint32_t cell_tokens; /* 0: CELL_TOKENS */
    uint32_t direction, pairing;
    int64_t slots[2][100];
    struct tsr_kv_run runs[2]
                          [3]; /* in turn: those of a batch stay in place until it is set again */
    uint32_t n_set;
    struct tsr_rope rope;
    struct twin twins[2];
};
enum { N_TOKENS = 100, CELL_TOKENS = 24 };

static void scene_open_twin(struct scene *s, struct twin *t)
{
    struct tsr_batch_limits limits = {4, 400, 200, 1000};
    kv_engine_init(&t->engine, t->device, &s->shape);
    for (int i = 0; i < 2; i++) {
        kv_cells_init(&t->cells[i], t->device, &t->engine.layout, N_TOKENS,
                      s->cell_tokens ? s->cell_tokens : CELL_TOKENS, s->int8 && !(s->mixed && i),
                      (uint64_t)i + 1);
        if (s->numbers) kv_cells_numbers(&t->cells[i], &t->engine.layout, (uint64_t)i + 5);
        if (s->odd_scales) kv_cells_odd_scales(&t->cells[i], &t->engine.layout);
    }
    CHECK_INT(tsri_batch_open(&t->batch, t->device, &limits), 0);
}

/* Three runs: most of one entry, a piece of it again, and the middle of another. */
static void scene_set(struct scene *s, struct twin *t, struct tsr_device_stream *stream,
                      const int64_t deltas[3])
{
    struct tsr_kv_run *runs = s->runs[s->n_set++ % 2];
    runs[0] = (struct tsr_kv_run){&t->cells[0].cells, s->slots[0], 0, 70, deltas[0], 0, 0};
    runs[1] = (struct tsr_kv_run){&t->cells[0].cells, s->slots[0] + 70, 71, 29, deltas[1], 0, 0};
    runs[2] = (struct tsr_kv_run){&t->cells[1].cells, s->slots[1], 33, 50, deltas[2], 0, 0};
    bool rotates = deltas[0] || deltas[1] || deltas[2];
    struct tsri_batch_desc desc = {
        s->direction, 3, &t->engine.layout, runs, rotates ? &s->rope : NULL, 0};
    CHECK_INT(tsri_batch_set(t->batch, stream, &desc), 0);
}

static void scene_open(struct scene *s)
{
    int64_t all[150];
    kv_slots(all, 150, s->shape.n_slots, 99);
    memcpy(s->slots[0], all, 100 * sizeof *all);
    memcpy(s->slots[1], all + 100, 50 * sizeof *all);
    s->rope = (struct tsr_rope){.size = sizeof s->rope,
                                .pairing = s->pairing ? s->pairing : TSR_ROPE_NEOX,
                                .dims = s->shape.rope_dims,
                                .theta = 10000};
    s->twins[0].device = reference;
    s->twins[1].device = subject;
    for (int i = 0; i < 2; i++)
        scene_open_twin(s, &s->twins[i]);
}

static void scene_close(struct scene *s)
{
    for (int i = 0; i < 2; i++) {
        tsri_batch_close(s->twins[i].batch);
        kv_cells_fini(&s->twins[i].cells[0]);
        kv_cells_fini(&s->twins[i].cells[1]);
        kv_engine_fini(&s->twins[i].engine);
    }
}

/* Sets and moves both twins: all layers at once, or one after the other from the last. */
static void scene_move(struct scene *s, const int64_t deltas[3], bool by_layer)
{
    for (int i = 0; i < 2; i++) {
        struct twin *t = &s->twins[i];
        scene_set(s, t, NULL, deltas);
        int (*move)(struct tsri_batch *, uint32_t, uint32_t) =
            s->direction == TSRI_BATCH_SCATTER ? tsri_batch_scatter : tsri_batch_gather;
        for (uint32_t k = by_layer ? s->shape.n_layers : 0; k > 0; k--)
            CHECK_INT(move(t->batch, k - 1, 1), 0);
        if (!by_layer) CHECK_INT(move(t->batch, 0, 0), 0);
        CHECK_INT(tsri_stream_sync(t->device, NULL), 0);
    }
}

static void check_same_engines(const struct scene *s)
{
    uint8_t *a = kv_engine_image(&s->twins[0].engine), *b = kv_engine_image(&s->twins[1].engine);
    bool same = memcmp(a, b, s->twins[0].engine.bytes) == 0;
    free(a);
    free(b);
    if (!same)
        printf("    %s, dtype %u%s\n", kv_kind_names[s->shape.kind], s->shape.dtype,
               s->int8 ? ", int8" : "");
    CHECK(same);
}

static void check_same_cells(const struct scene *s)
{
    for (int i = 0; i < 2; i++) {
        const struct kv_cells *a = &s->twins[0].cells[i], *b = &s->twins[1].cells[i];
        CHECK_INT(a->bytes, b->bytes);
        if (memcmp(a->data, b->data, a->bytes) != 0)
            printf("    %s, dtype %u%s\n", kv_kind_names[s->shape.kind], s->shape.dtype,
                   s->int8 ? ", int8" : "");
        CHECK(memcmp(a->data, b->data, a->bytes) == 0);
    }
}

static const int64_t no_deltas[3];

static void copy_cells(uint32_t direction, struct kv_shape shape, bool by_layer,
                       uint32_t cell_tokens)
{
    struct scene s = {.shape = shape, .direction = direction, .cell_tokens = cell_tokens};
    scene_open(&s);
    scene_move(&s, no_deltas, by_layer);
    check_same_engines(&s);
    check_same_cells(&s);
    scene_close(&s);
}

static void copy_scene(uint32_t direction, struct kv_shape shape, bool by_layer)
{
    copy_cells(direction, shape, by_layer, 0);
}

static void each_shape(void (*check)(struct kv_shape shape))
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++)
        for (size_t k = 0; k < (one_dtype ? 1 : TSRI_COUNT(dtypes)); k++) {
            struct kv_shape shape = shapes[i];
            shape.dtype = dtypes[(i + k) % TSRI_COUNT(dtypes)];
            check(shape);
        }
}

static void scatter_copies(struct kv_shape shape)
{
    copy_scene(TSRI_BATCH_SCATTER, shape, false);
    copy_scene(TSRI_BATCH_SCATTER, shape, true);
}

static void gather_copies(struct kv_shape shape)
{
    copy_scene(TSRI_BATCH_GATHER, shape, false);
    copy_scene(TSRI_BATCH_GATHER, shape, true);
}

/* The memory is random bytes: NaN with every payload and infinities are among them. */
TEST(scatter_copies_every_byte_and_touches_no_other)
{
    each_shape(scatter_copies);
}

TEST(gather_copies_every_byte_and_touches_no_other)
{
    each_shape(gather_copies);
}

TEST(opaque_pages_are_copied_both_ways)
{
    struct kv_shape pages = {KV_OPAQUE, TSR_DTYPE_OPAQUE, 2, 1, 1000, 0, 0, 0, 1, 256};
    copy_scene(TSRI_BATCH_SCATTER, pages, false);
    copy_scene(TSRI_BATCH_GATHER, pages, true);
}

/* ---- rotation ---- */

static double tolerance(double size, uint32_t dtype, bool int8)
{
    /* Both sides may be off by what the contract allows. */
    double units = dtype == TSR_DTYPE_F32 ? 5 + int8 : 1.2;
    return units * kv_ulp(size, dtype) + (dtype == TSR_DTYPE_BF16 ? 0x1p-126 : 0);
}

/* One NaN for all, in an image of the engine whose memory is that of the first twin. */
static void unify_nan(const struct scene *s, uint8_t *image)
{
    const struct tsr_kv_layout *l = &s->twins[0].engine.layout;
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t k = 0; k < l->n_planes; k++) {
            const struct tsr_kv_plane *p = &l->planes[k];
            uint8_t *base = image + (size_t)(tsri_layer_base(p, layer) - s->twins[0].engine.data);
            for (uint64_t i = 0; i < l->n_slots * p->n_heads * p->dim; i++) {
                uint64_t head = i / p->dim % p->n_heads;
                uint8_t *at = base + tsri_slot_offset(l, p, i / p->dim / p->n_heads) +
                              head * p->head_stride + i % p->dim * p->element_stride;
                if (isnan(kv_get(at, p->dtype))) memset(at, 0xff, tsri_dtype_bytes(p->dtype));
            }
        }
}

/* Of the bytes that a rotated plane has: close. Everything else: the same. */
static void check_close(const struct scene *s)
{
    const struct tsr_kv_layout *l = &s->twins[0].engine.layout;
    const struct tsr_kv_plane *p = &l->planes[0];
    uint8_t *a = kv_engine_image(&s->twins[0].engine), *b = kv_engine_image(&s->twins[1].engine);
    uint32_t n_pairs = p->rope_dims / 2, bytes = tsri_dtype_bytes(p->dtype), far = 0;
    if (s->odd_scales) unify_nan(s, a);
    if (s->odd_scales) unify_nan(s, b);
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint64_t slot = 0; slot < l->n_slots; slot++)
            for (uint64_t k = 0; k < (uint64_t)p->n_heads * n_pairs; k++) {
                uint64_t head = k / n_pairs, i = k % n_pairs;
                uint64_t ia = p->rope_first + (s->pairing == TSR_ROPE_GPTJ ? 2 * i : i);
                uint64_t ib = s->pairing == TSR_ROPE_GPTJ ? ia + 1 : ia + n_pairs;
                size_t at = (size_t)(tsri_layer_base(p, layer) - s->twins[0].engine.data) +
                            tsri_slot_offset(l, p, slot) + head * p->head_stride;
                size_t at_a = at + ia * p->element_stride, at_b = at + ib * p->element_stride;
                if (memcmp(a + at_a, b + at_a, bytes) == 0 &&
                    memcmp(a + at_b, b + at_b, bytes) == 0)
                    continue;
                double size = hypot(kv_get(a + at_a, p->dtype), kv_get(a + at_b, p->dtype));
                double bound = tolerance(size, p->dtype, s->int8);
                for (int j = 0; j < 2; j++) {
                    size_t e = j ? at_b : at_a;
                    double d = kv_get(a + e, p->dtype) - kv_get(b + e, p->dtype);
                    if (!(fabs(d) <= bound) && memcmp(a + e, b + e, bytes) != 0) far++;
                    memcpy(b + e, a + e, bytes);
                }
            }
    bool rest_same = memcmp(a, b, s->twins[0].engine.bytes) == 0;
    free(a);
    free(b);
    if (far || !rest_same)
        printf("    %s, dtype %u%s, pairing %u: %u far\n", kv_kind_names[s->shape.kind],
               s->shape.dtype, s->int8 ? ", int8" : "", s->pairing, far);
    CHECK_INT(far, 0);
    CHECK(rest_same);
}

/* s says what is special; the rest is set here. */
static void rotate_as(struct scene s)
{
    static const int64_t deltas[3] = {1234, 0, -77777};
    s.direction = TSRI_BATCH_SCATTER;
    s.numbers = true;
    scene_open(&s);
    scene_move(&s, deltas, false);
    check_close(&s);
    scene_close(&s);
}

static void rotate_scene(struct kv_shape shape, uint32_t pairing, bool int8)
{
    rotate_as((struct scene){.shape = shape, .pairing = pairing, .int8 = int8});
}

static void scatter_rotates(struct kv_shape shape)
{
    rotate_scene(shape, TSR_ROPE_NEOX, false);
    rotate_scene(shape, TSR_ROPE_GPTJ, false);
}

TEST(scatter_rotates_k_within_the_bounds_and_copies_the_rest)
{
    each_shape(scatter_rotates);
}

static void scatter_rotates_int8(struct kv_shape shape)
{
    rotate_scene(shape, TSR_ROPE_NEOX, true);
    rotate_scene(shape, TSR_ROPE_GPTJ, true);
}

TEST(int8_cells_are_widened_and_rotated_in_one_go)
{
    each_shape(scatter_rotates_int8);
}

static void int8_cells(struct kv_shape shape)
{
    for (uint32_t direction = TSRI_BATCH_SCATTER; direction <= TSRI_BATCH_GATHER; direction++) {
        struct scene s = {.shape = shape, .direction = direction, .int8 = true, .numbers = true};
        scene_open(&s);
        scene_move(&s, no_deltas, true);
        if (direction == TSRI_BATCH_GATHER) check_same_cells(&s);
        check_close(&s);
        scene_close(&s);
    }
}

/* Engines begin with random bytes: groups with NaN and infinities are among what is quantised. */
TEST(int8_cells_are_filled_and_read_without_rotation)
{
    each_shape(int8_cells);
}

static void odd_scales(struct kv_shape shape)
{
    struct scene s = {.shape = shape,
                      .direction = TSRI_BATCH_SCATTER,
                      .int8 = true,
                      .numbers = true,
                      .odd_scales = true};
    scene_open(&s);
    scene_move(&s, no_deltas, true);
    check_close(&s);
    scene_close(&s);
    for (uint32_t pairing = TSR_ROPE_NEOX; pairing <= TSR_ROPE_GPTJ; pairing++)
        rotate_as(
            (struct scene){.shape = shape, .pairing = pairing, .int8 = true, .odd_scales = true});
}

/* A store may hold any bytes: a scale that is no number is no reason for another result. */
TEST(scales_that_are_nan_or_infinite_give_what_their_products_give)
{
    each_shape(odd_scales);
}

/* ---- cells of every kind ---- */

static void one_cell(struct kv_shape shape)
{
    copy_cells(TSRI_BATCH_SCATTER, shape, true, N_TOKENS);
    copy_cells(TSRI_BATCH_GATHER, shape, false, N_TOKENS);
    for (int int8 = 0; int8 < 2; int8++)
        rotate_as((struct scene){
            .shape = shape, .pairing = TSR_ROPE_NEOX, .int8 = int8, .cell_tokens = N_TOKENS});
}

/* The caller's own order KV_2LTD is one cell of all its tokens. */
TEST(a_cell_may_hold_any_number_of_tokens)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        struct kv_shape shape = shapes[i];
        shape.dtype = dtypes[i % TSRI_COUNT(dtypes)];
        one_cell(shape);
    }
    copy_cells(TSRI_BATCH_SCATTER,
               (struct kv_shape){KV_BLOCKS, TSR_DTYPE_F16, 2, 2, 64, 64, 0, 64, 16, 256}, false, 1);
}

TEST(long_rows_are_moved_as_short_ones_are)
{
    for (size_t i = 0; i < TSRI_COUNT(long_shapes); i++) {
        copy_scene(TSRI_BATCH_SCATTER, long_shapes[i], true);
        copy_scene(TSRI_BATCH_GATHER, long_shapes[i], false);
        rotate_scene(long_shapes[i], TSR_ROPE_NEOX, false);
        rotate_scene(long_shapes[i], TSR_ROPE_NEOX, true);
    }
}

TEST(entries_with_and_without_int8_share_a_batch)
{
    for (size_t i = 0; i < TSRI_COUNT(long_shapes); i++)
        for (uint32_t cell_tokens = 0; cell_tokens <= N_TOKENS; cell_tokens += N_TOKENS)
            rotate_as((struct scene){.shape = long_shapes[i],
                                     .pairing = TSR_ROPE_NEOX,
                                     .int8 = true,
                                     .mixed = true,
                                     .cell_tokens = cell_tokens});
}

/* What the first set has queued must not be disturbed by the second. */
TEST(a_batch_may_be_set_again_on_another_stream)
{
    static const int64_t deltas[2][3] = {{5, 6, 7}, {-9, 0, 11}};
    struct scene s = {.shape = long_shapes[0],
                      .direction = TSRI_BATCH_SCATTER,
                      .pairing = TSR_ROPE_NEOX,
                      .numbers = true};
    scene_open(&s);
    for (int i = 0; i < 2; i++) {
        struct twin *t = &s.twins[i];
        struct tsr_device_stream *streams[2];
        for (int k = 0; k < 2; k++) {
            CHECK_INT(tsri_stream_open(&streams[k], t->device, NULL, 0), 0);
            scene_set(&s, t, streams[k], deltas[k]);
            CHECK_INT(tsri_batch_scatter(t->batch, (uint32_t)k, 1), 0);
        }
        for (int k = 0; k < 2; k++) {
            CHECK_INT(tsri_stream_sync(t->device, streams[k]), 0);
            tsri_stream_close(t->device, streams[k]);
        }
    }
    check_close(&s);
    scene_close(&s);
}

/* Moves cells of the subject to memory that the device has only been told of. */
TEST(cells_in_registered_memory_are_as_good_as_the_devices_own)
{
    for (uint32_t direction = TSRI_BATCH_SCATTER; direction <= TSRI_BATCH_GATHER; direction++) {
        struct scene s = {.shape = long_shapes[0], .direction = direction};
        scene_open(&s);
        struct kv_cells *c = &s.twins[1].cells[0];
        uint8_t *own = c->data;
        size_t bytes = tsri_align_up(c->bytes, 4096);
        size_t n_planes = (size_t)c->cells.n_layers * c->cells.n_planes * c->cells.n_cells;
        uint8_t *told = aligned_alloc(4096, bytes);
        memcpy(told, own, c->bytes);
        CHECK_INT(tsri_device_host_register(subject, told, bytes), 0);
        for (size_t i = 0; i < n_planes; i++)
            c->planes[i] = told + ((uint8_t *)c->planes[i] - own);
        c->data = told;
        scene_move(&s, no_deltas, false);
        check_same_engines(&s);
        check_same_cells(&s);
        tsri_device_host_unregister(subject, told);
        c->data = own;
        free(told);
        scene_close(&s);
    }
}

/* The subject's cells in its own memory, as a device pool has them. */
static void device_cells(struct scene s, bool rotates, size_t shift)
{
    static const int64_t deltas[3] = {1234, 0, -77777};
    void *moved[2];
    s.pairing = TSR_ROPE_NEOX;
    s.numbers = true;
    scene_open(&s);
    for (int i = 0; i < 2; i++)
        moved[i] = kv_cells_to_device(&s.twins[1].cells[i], shift);
    scene_move(&s, rotates ? deltas : no_deltas, false);
    for (int i = 0; i < 2; i++)
        kv_cells_from_device(&s.twins[1].cells[i], moved[i], shift);
    check_close(&s);
    check_same_cells(&s);
    scene_close(&s);
}

/* Also where they do not begin on a round address. */
TEST(cells_in_device_memory_are_as_good_as_in_host_memory)
{
    static const uint32_t which[] = {0, 5, 8};
    for (size_t i = 0; i < TSRI_COUNT(which); i++)
        for (size_t shift = 0; shift <= 16; shift += 16)
            for (int int8 = 0; int8 < 2; int8++) {
                struct scene s = {
                    .shape = shapes[which[i]], .direction = TSRI_BATCH_SCATTER, .int8 = int8};
                s.shape.dtype = dtypes[(i + 1) % TSRI_COUNT(dtypes)];
                device_cells(s, false, shift);
                device_cells(s, true, shift);
                s.direction = TSRI_BATCH_GATHER;
                device_cells(s, false, shift);
            }
}

TEST(a_delta_of_zero_copies_bytes_beside_runs_that_rotate)
{
    static const int64_t deltas[3] = {0, 5, 0};
    struct scene s = {
        .shape = shapes[0], .direction = TSRI_BATCH_SCATTER, .pairing = TSR_ROPE_NEOX};
    s.shape.dtype = TSR_DTYPE_BF16;
    scene_open(&s);
    /* Random bytes in the runs that stay, numbers in the cell that turns. */
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++)
            memset(s.twins[i].cells[0].planes[k * 5 + 3], 0x3c, 24 * 3 * 64 * 2);
    scene_move(&s, deltas, false);
    const struct tsr_kv_plane *p = &s.twins[1].engine.layout.planes[0];
    uint8_t *image = kv_engine_image(&s.twins[1].engine);
    for (uint32_t i = 0; i < 50; i++) {
        if (s.slots[1][i] < 0) continue;
        uint32_t token = 33 + i;
        const uint8_t *row = (uint8_t *)s.twins[1].cells[1].planes[token / CELL_TOKENS] +
                             token % CELL_TOKENS * tsri_row_bytes(p);
        CHECK(memcmp(image + 64 +
                         tsri_slot_offset(&s.twins[1].engine.layout, p, (uint64_t)s.slots[1][i]),
                     row, tsri_row_bytes(p)) == 0);
    }
    free(image);
    scene_close(&s);
}

/* ---- the rest ---- */

TEST(batches_of_copies_move_every_byte)
{
    enum { N = 40, BYTES = 5000 };
    uint8_t *from[2], *to[2];
    for (int i = 0; i < 2; i++) {
        void *a, *b;
        struct tsri_device *d = i ? subject : reference;
        CHECK_INT(tsri_device_host_alloc(d, &a, BYTES), 0);
        CHECK_INT(tsri_device_host_alloc(d, &b, BYTES), 0);
        from[i] = a;
        to[i] = b;
        struct tsr_copy copies[N];
        uint64_t seed = 5;
        for (int k = 0; k < BYTES; k++)
            from[i][k] = (uint8_t)(kv_random(&seed) >> 32);
        memset(to[i], 0, BYTES);
        for (int k = 0; k < N; k++)
            copies[k] =
                (struct tsr_copy){to[i] + k * 125, from[i] + (N - 1 - k) * 125, (size_t)(k * 3)};
        CHECK_INT(tsri_device_copy(d, NULL, copies, N), 0);
        CHECK_INT(tsri_stream_sync(d, NULL), 0);
    }
    CHECK(memcmp(to[0], to[1], BYTES) == 0);
    for (int i = 0; i < 2; i++) {
        tsri_device_host_free(i ? subject : reference, from[i]);
        tsri_device_host_free(i ? subject : reference, to[i]);
    }
}

static void top_k_agrees(const float *scores, uint32_t n, uint32_t k)
{
    uint32_t *picked[2];
    for (int i = 0; i < 2; i++) {
        struct tsri_device *d = i ? subject : reference;
        void *in, *out;
        picked[i] = malloc(k * sizeof(uint32_t));
        CHECK_INT(tsri_device_alloc(d, &in, n * sizeof(float)), 0);
        CHECK_INT(tsri_device_alloc(d, &out, k * sizeof(uint32_t)), 0);
        struct tsr_copy to = {in, scores, n * sizeof(float)};
        struct tsr_copy from = {picked[i], out, k * sizeof(uint32_t)};
        struct tsr_top_k t = {in, out, n, k};
        CHECK_INT(tsri_device_copy(d, NULL, &to, 1), 0);
        CHECK_INT(tsri_device_top_k(d, NULL, &t), 0);
        CHECK_INT(tsri_device_copy(d, NULL, &from, 1), 0);
        CHECK_INT(tsri_stream_sync(d, NULL), 0);
        tsri_device_free(d, in);
        tsri_device_free(d, out);
    }
    CHECK(memcmp(picked[0], picked[1], k * sizeof(uint32_t)) == 0);
    free(picked[0]);
    free(picked[1]);
}

TEST(top_k_takes_the_same_ones_whatever_the_scores)
{
    enum { N = 1000 };
    static float scores[N];
    uint64_t seed = 41;
    for (int kind = 0; kind < 5; kind++) {
        for (int i = 0; i < N; i++) {
            uint32_t bits = (uint32_t)(kv_random(&seed) >> 32);
            if (kind == 0) memcpy(&scores[i], &bits, 4);   /* NaN, infinities, everything */
            if (kind == 1) scores[i] = (float)(bits % 5);  /* many ties */
            if (kind == 2) scores[i] = bits % 3 ? NAN : 1; /* more NaN than asked for */
            if (kind == 3) scores[i] = 0 * (bits % 2 ? -1.0f : 1.0f);
            if (kind == 4) scores[i] = (float)i;
        }
        uint32_t ks[] = {1, 2, 150, 300, N - 1, N};
        for (size_t i = 0; i < TSRI_COUNT(ks); i++)
            top_k_agrees(scores, N, ks[i]);
        top_k_agrees(scores, 1, 1);
    }
}

TEST(streams_and_events_order_work)
{
    struct tsr_device_stream *s;
    struct tsr_device_event *e;
    CHECK_INT(tsri_stream_open(&s, subject, NULL, TSR_STREAM_LOW), 0);
    CHECK_INT(tsri_event_open(&e, subject), 0);
    void *a, *b;
    CHECK_INT(tsri_device_host_alloc(subject, &a, 4096), 0);
    CHECK_INT(tsri_device_host_alloc(subject, &b, 4096), 0);
    memset(a, 7, 4096);
    memset(b, 0, 4096);
    struct tsr_copy copy = {b, a, 4096};
    CHECK_INT(tsri_device_copy(subject, s, &copy, 1), 0);
    CHECK_INT(tsri_event_record(subject, e, s), 0);
    CHECK_INT(tsri_event_wait(subject, e, NULL), 0);
    CHECK_INT(tsri_event_sync(subject, e), 0);
    CHECK(memcmp(a, b, 4096) == 0);
    tsri_device_host_free(subject, a);
    tsri_device_host_free(subject, b);
    tsri_event_close(subject, e);
    tsri_stream_close(subject, s);
}

/* ---- the devices ---- */

static void run_contract(void)
{
    RUN(scatter_copies_every_byte_and_touches_no_other);
    RUN(gather_copies_every_byte_and_touches_no_other);
    RUN(opaque_pages_are_copied_both_ways);
    RUN(scatter_rotates_k_within_the_bounds_and_copies_the_rest);
    RUN(int8_cells_are_widened_and_rotated_in_one_go);
    RUN(int8_cells_are_filled_and_read_without_rotation);
    RUN(scales_that_are_nan_or_infinite_give_what_their_products_give);
    RUN(a_cell_may_hold_any_number_of_tokens);
    RUN(long_rows_are_moved_as_short_ones_are);
    RUN(entries_with_and_without_int8_share_a_batch);
    RUN(a_batch_may_be_set_again_on_another_stream);
    RUN(cells_in_registered_memory_are_as_good_as_the_devices_own);
    RUN(cells_in_device_memory_are_as_good_as_in_host_memory);
    RUN(a_delta_of_zero_copies_bytes_beside_runs_that_rotate);
    RUN(batches_of_copies_move_every_byte);
    RUN(top_k_takes_the_same_ones_whatever_the_scores);
    RUN(streams_and_events_order_work);
}

static const char *device_name, *device_variant;
static uint32_t device_threads;

TEST(the_device_opens)
{
    struct tsr_device_desc config = {
        .size = sizeof config, .variant = device_variant, .n_threads = device_threads};
    int e = tsri_device_open(&subject, device_name, &config);
    char why[256];
    snprintf(why, sizeof why, "device %s %s: %s", device_name, device_variant ? device_variant : "",
             tsr_errmsg());
    if (e == TSR_EDEVICE || e == TSR_EUNSUP) SKIP(why);
    CHECK_INT(e, 0);
}

static void run_device(const char *name, const char *variant, uint32_t n_threads)
{
    printf("%s %s, %u threads\n", name, variant ? variant : "", n_threads);
    device_name = name;
    device_variant = variant;
    device_threads = n_threads;
    subject = NULL;
    RUN(the_device_opens);
    if (!subject) return;
    run_contract();
    tsri_device_close(subject);
}

/* One thread each: nothing for the thread sanitizer, which would take minutes over them. */
static void run_variants(void)
{
    run_device("cpu", "plain", 0);
    for (uint32_t i = 0; tsri_kernels_x86(i); i++)
        run_device("cpu", tsri_kernels_x86(i)->name, 0);
    for (uint32_t i = 0; tsri_kernels_arm(i); i++)
        run_device("cpu", tsri_kernels_arm(i)->name, 0);
}

/* The device "npu" over the fake AscendCL: as it is, with operators, with buffers that rows do not
 * fit into together and, if all is asked for, with both, with operators that round otherwise,
 * without batches of copies, with the reference's loops and over a runtime that has only what it
 * must. Every other one runs nothing until somebody waits, so that a missing wait shows each time.
 * The fake is slow: behind the first two, every shape has one dtype. */
static void run_npu(bool all)
{
    static const char *const variants[] = {NULL,    "operators", "small", "operators_small",
                                           "plain", "reference"};
    const struct fakeacl_control *acl = fakeacl_load("libascendcl.so");
    for (size_t i = 0; i < (all ? TSRI_COUNT(variants) : 3); i++) {
        one_dtype = TEST_SANITIZED || i >= 2;
        acl->lazy(i % 2 == 0);
        run_device("npu", variants[i], 0);
        acl->lazy(false);
        acl->check_closed();
    }
    if (!all) return;
    setenv("FAKEACL_FMA", "1", 1);
    run_device("npu", "operators", 0);
    unsetenv("FAKEACL_FMA");
    acl->check_closed();
    acl = fakeacl_load("libascendcl-bare.so");
    run_device("npu", NULL, 0);
    acl->check_closed();
}

/* With TESSERA_TEST_NPU, a real one. */
static void run_npu_alone(bool all)
{
    if (getenv("TESSERA_TEST_NPU")) {
        run_device("npu", NULL, 0);
        run_device("npu", "operators", 0);
    } else {
        run_npu(all);
    }
}

static void run_others(void)
{
    if (!TEST_TSAN) run_variants();
    run_device("cpu", NULL, 3);
    for (uint32_t i = 0; tsri_device_known(i); i++)
        if (strcmp(tsri_device_known(i), "cpu") != 0) run_device(tsri_device_known(i), NULL, 0);
    fakegpu_load();
    run_device("fakegpu", NULL, 0);
}

/* No argument: all devices but "npu" over its fake, which test_contract_npu.sh asks for. "npu": that
 * one; "npu some": three of its variants. */
int main(int argc, char **argv)
{
    struct tsr_device_desc config = {.size = sizeof config, .variant = "reference"};
    if (tsri_device_open(&reference, "cpu", &config) != 0) return 1;
    if (argc > 1 && strcmp(argv[1], "npu") == 0)
        run_npu_alone(argc == 2);
    else
        run_others();
    tsri_device_close(reference);
    return test_end();
}
