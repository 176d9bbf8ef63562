/* Gather and scatter of the device "npu" are those of the cpu, bit for bit; whichever call fails, a
 * move is an error or right. */
#include "ascend_kit.h"

static const struct kv_shape shapes[] = {
    {KV_SPLIT, TSR_DTYPE_BF16, 2, 2, 64, 64, 0, 64, 16, 128},
    {KV_HND, TSR_DTYPE_F16, 2, 2, 64, 64, 0, 64, 16, 128},
    {KV_COLUMN, TSR_DTYPE_F32, 1, 2, 32, 32, 0, 32, 16, 128},
    {KV_LATENT, TSR_DTYPE_BF16, 2, 1, 576, 0, 512, 64, 64, 128}, /* MLA */
    {KV_SPLIT, TSR_DTYPE_F16, 1, 1, 20, 20, 4, 14, 16, 128}, /* rows that are no multiple of 64 */
};

static void each_job(const char *variant)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++)
        for (int k = 0; k < 24; k++) {
            struct job j = {.shape = shapes[i], .int8 = k & 1, .on_device = k & 2};
            j.gather = k / 4 % 3 == 2;
            j.rotates = k / 4 % 3 == 1;
            j.shift = j.on_device && k >= 12 ? 4 : 0;
            check_same(variant, &j);
        }
}

TEST(moves_are_those_of_the_cpu_bit_for_bit)
{
    each_job(NULL);
}

TEST(moves_are_those_of_the_reference_bit_for_bit)
{
    each_job("reference");
}

TEST(rows_that_fill_several_buffers_are_the_same)
{
    each_job("small");
}

/* The same batch again and again, with the n-th call failing: error or right, and then right. */
static void fail_each_move(bool int8, bool gather, bool on_device)
{
    struct tsri_device *d = open_device("npu", NULL);
    struct kv_engine engine;
    struct kv_cells cells;
    struct tsri_batch *batch;
    struct tsr_batch_limits limits = {2, 200, 100, 1000};
    struct tsr_rope rope = {
        .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = 64, .theta = 10000};
    int64_t slots[N_TOKENS];
    kv_engine_init(&engine, d, &plain_shape);
    kv_cells_init(&cells, d, &engine.layout, N_TOKENS, CELL, int8, 3);
    kv_cells_numbers(&cells, &engine.layout, 4);
    void *moved = on_device ? kv_cells_to_device(&cells, 4) : NULL;
    kv_slots(slots, N_TOKENS, plain_shape.n_slots, 77);
    struct tsr_kv_run run = {&cells.cells, slots, 0, N_TOKENS, gather ? 0 : 9, 0, 0};
    struct tsri_batch_desc desc = {gather ? TSRI_BATCH_GATHER : TSRI_BATCH_SCATTER,
                                   1,
                                   &engine.layout,
                                   &run,
                                   gather ? NULL : &rope,
                                   0};
    CHECK_INT(tsri_batch_open(&batch, d, &limits), 0);
    const struct job j = {.gather = gather};
    CHECK_INT(tsri_batch_set(batch, NULL, &desc), 0);
    CHECK_INT(move_all(batch, &j, d), 0);
    uint8_t *want = gather ? cells_image(&cells, moved ? (uint8_t *)moved + 4 : cells.data)
                           : kv_engine_image(&engine);
    size_t bytes = gather ? cells.bytes : engine.bytes;
    uint64_t n_failed = 0;
    for (uint64_t n = 1; n < 60; n++) {
        acl->reset();
        acl->fail(n);
        int e = tsri_batch_set(batch, NULL, &desc);
        if (!e) e = move_all(batch, &j, d);
        n_failed += e != 0;
        if (e) CHECK_HAS(tsr_errmsg(), "npu: ");
        acl->reset();
        if (e) { /* again, as a caller would */
            CHECK_INT(tsri_batch_set(batch, NULL, &desc), 0);
            CHECK_INT(move_all(batch, &j, d), 0);
        }
        uint8_t *got = gather ? cells_image(&cells, moved ? (uint8_t *)moved + 4 : cells.data)
                              : kv_engine_image(&engine);
        CHECK(memcmp(want, got, bytes) == 0);
        free(got);
    }
    CHECK(n_failed >= 2);
    free(want);
    tsri_batch_close(batch);
    tsri_device_free(d, moved);
    kv_cells_fini(&cells);
    kv_engine_fini(&engine);
    tsri_device_close(d);
    acl->check_closed();
}

TEST(whichever_call_fails_a_move_is_an_error_or_right)
{
    for (int k = 0; k < 8; k++)
        fail_each_move(k & 1, k & 2, k & 4);
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(moves_are_those_of_the_cpu_bit_for_bit);
    RUN(moves_are_those_of_the_reference_bit_for_bit);
    RUN(rows_that_fill_several_buffers_are_the_same);
    RUN(whichever_call_fails_a_move_is_an_error_or_right);
    return test_end();
}
