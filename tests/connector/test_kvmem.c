/* The engine's memory by strides: what is gathered in one layout is scattered into any other. */
#include "connector/connector.h"
#include "support/test.h"

#define LAYERS 3u
#define HEADS 2u
#define DIM 4u
#define BLOCKS 6u
#define BLOCK 8u
#define SLOTS (BLOCKS * BLOCK)
#define TOKENS 16u

static uint16_t memory_a[LAYERS * 2 * SLOTS * HEADS * DIM];
static uint16_t memory_b[LAYERS * 2 * SLOTS * HEADS * DIM];
static const struct tsri_shape shape = {
    .n_layers = LAYERS, .n_planes = 2, .row_bytes = {HEADS * DIM * 2, HEADS *DIM * 2}};

/* Strides in elements: block, token, head, element; planes `plane` apart. */
static struct tsr_kv_layout layout(uint16_t *base, const size_t s[4], size_t plane)
{
    struct tsr_kv_layout l = {.size = sizeof l,
                              .n_layers = LAYERS,
                              .n_planes = 2,
                              .block_tokens = BLOCK,
                              .n_slots = SLOTS};
    for (uint32_t p = 0; p < 2; p++)
        l.planes[p] = (struct tsr_kv_plane){.base = base + p * plane,
                                            .layer_stride = 2 * SLOTS * HEADS * DIM * 2,
                                            .block_stride = s[0] * 2,
                                            .token_stride = s[1] * 2,
                                            .head_stride = s[2] * 2,
                                            .element_stride = s[3] * 2,
                                            .dtype = TSR_DTYPE_F16,
                                            .n_heads = HEADS,
                                            .dim = DIM};
    return l;
}

static uint16_t *at(const struct tsr_kv_layout *l, uint32_t layer, uint32_t p, int64_t slot,
                    uint32_t head, uint32_t i)
{
    const struct tsr_kv_plane *x = &l->planes[p];
    return (uint16_t *)(void *)(tsri_layer_base(x, layer) + tsri_slot_offset(l, x, (uint64_t)slot) +
                                head * x->head_stride + i * x->element_stride);
}

static uint16_t value(uint32_t layer, uint32_t p, uint32_t token, uint32_t head, uint32_t i)
{
    return (uint16_t)((((layer * 2 + p) * TOKENS + token) * HEADS + head) * DIM + i + 1);
}

TEST(every_layout_is_the_same_kv)
{
    /* NHD, HND, K and V side by side in a block, and column-major within a head. */
    static const size_t strides[][4] = {
        {BLOCK * HEADS * DIM, HEADS * DIM, DIM, 1},
        {BLOCK * HEADS * DIM, DIM, BLOCK * DIM, 1},
        {2 * BLOCK * HEADS * DIM, 2 * HEADS * DIM, 2 * DIM, 1},
        {BLOCK * HEADS * DIM, 1, BLOCK * DIM, BLOCK},
    };
    static const size_t planes[] = {SLOTS * HEADS * DIM, SLOTS * HEADS * DIM, DIM,
                                    SLOTS * HEADS * DIM};
    static const int64_t from[TOKENS] = {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7};
    int64_t to[TOKENS];
    struct tsri_device *device;
    CHECK_INT(tsri_device_open(&device, "cpu", NULL), 0);
    struct tsri_staging staging = {.device = device,
                                   .bytes = TOKENS * LAYERS * 2 * HEADS * DIM * 2};
    for (uint32_t t = 0; t < TOKENS; t++)
        to[t] = 24 + t;
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < 4; b++) {
            memset(memory_a, 0, sizeof memory_a);
            memset(memory_b, 0, sizeof memory_b);
            struct tsr_kv_layout la = layout(memory_a, strides[a], planes[a]);
            struct tsr_kv_layout lb = layout(memory_b, strides[b], planes[b]);
            struct tsri_kvmem ma, mb;
            struct tsri_kvmem_desc d = {.device = device,
                                        .layout = &la,
                                        .shape = &shape,
                                        .run_tokens = TOKENS,
                                        .staging = &staging};
            CHECK_INT(tsri_kvmem_init(&ma, &d), 0);
            d.layout = &lb;
            CHECK_INT(tsri_kvmem_init(&mb, &d), 0);
            CHECK(!mb.batch && !mb.staging);
            for (uint32_t i = 0; i < LAYERS * 2 * TOKENS * HEADS * DIM; i++) {
                uint32_t e = i % DIM, h = i / DIM % HEADS, t = i / DIM / HEADS % TOKENS;
                uint32_t p = i / DIM / HEADS / TOKENS % 2, l = i / DIM / HEADS / TOKENS / 2;
                *at(&la, l, p, from[t], h, e) = value(l, p, t, h, e);
            }
            struct tsri_kvmem_run run = {.n_tokens = TOKENS, .slots = from};
            CHECK_INT(tsri_kvmem_move(&ma, false, &run, 1, 0, LAYERS), 0);
            run.slots = to;
            CHECK_INT(tsri_kvmem_move(&mb, true, &run, 1, 0, LAYERS), 0);
            for (uint32_t i = 0; i < LAYERS * 2 * TOKENS * HEADS * DIM; i++) {
                uint32_t e = i % DIM, h = i / DIM % HEADS, t = i / DIM / HEADS % TOKENS;
                uint32_t p = i / DIM / HEADS / TOKENS % 2, l = i / DIM / HEADS / TOKENS / 2;
                CHECK_INT(*at(&lb, l, p, to[t], h, e), value(l, p, t, h, e));
            }
            CHECK(ma.staging && ma.staging == mb.staging && ma.staging == staging.data);
            tsri_kvmem_fini(&ma);
            tsri_kvmem_fini(&mb);
        }
    tsri_staging_fini(&staging);
    CHECK(!staging.data);
    tsri_device_close(device);
}

TEST(rows_that_differ_from_the_space_are_refused)
{
    struct tsri_device *device;
    static const size_t strides[4] = {BLOCK * HEADS * DIM, HEADS * DIM, DIM, 1};
    struct tsr_kv_layout l = layout(memory_a, strides, SLOTS * HEADS * DIM);
    struct tsri_shape other = shape;
    struct tsri_kvmem m;
    CHECK_INT(tsri_device_open(&device, "cpu", NULL), 0);
    struct tsri_kvmem_desc d = {.device = device, .layout = &l, .shape = &other, .run_tokens = 16};
    other.row_bytes[1] *= 2;
    CHECK_INT(tsri_kvmem_init(&m, &d), TSR_ESPACE);
    other = shape;
    other.n_layers++;
    CHECK_INT(tsri_kvmem_init(&m, &d), TSR_ESPACE);
    other = shape;
    l.planes[0].base = NULL;
    CHECK_INT(tsri_kvmem_init(&m, &d), TSR_EINVAL);
    tsri_device_close(device);
}

TEST(slots_follow_the_block_table)
{
    int32_t blocks[] = {5, -1, 7};
    int64_t slots[24];
    /* The table begins with the block of token 16. */
    CHECK_INT(tsri_block_slots(slots, blocks, 8, 20, 22, 12), 4);
    CHECK_INT(slots[0], 5 * 8 + 6);
    CHECK_INT(slots[1], 5 * 8 + 7);
    for (uint32_t i = 2; i < 10; i++)
        CHECK_INT(slots[i], -1);
    CHECK_INT(slots[10], 7 * 8);
    CHECK_INT(slots[11], 7 * 8 + 1);
}

int main(void)
{
    RUN(every_layout_is_the_same_kv);
    RUN(rows_that_differ_from_the_space_are_refused);
    RUN(slots_follow_the_block_table);
    return test_end();
}
