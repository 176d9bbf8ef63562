/* What a batch refuses before a byte is written, and seed-style loads: padded slots, token offsets,
 * KV_2LTD on one side and pages on the other. */
#include "kv.h"

static struct tsri_device *cpu;

static const struct kv_shape shape = {KV_SPLIT, TSR_DTYPE_F32, 2, 2, 16, 16, 0, 16, 16, 256};

struct fixture {
    struct kv_engine engine;
    struct kv_cells cells;
    struct tsri_batch *batch;
    struct tsr_rope rope;
    int64_t slots[100];
    struct tsr_kv_run runs[2];
    struct tsri_batch_desc desc;
    uint8_t *before;
};

static void open_fixture(struct fixture *f, struct kv_shape s)
{
    struct tsr_batch_limits limits = {2, 128, 8, 64};
    memset(f, 0, sizeof *f);
    kv_engine_init(&f->engine, cpu, &s);
    kv_cells_init(&f->cells, cpu, &f->engine.layout, 100, 64, false, 1);
    CHECK_INT(tsri_batch_open(&f->batch, cpu, &limits), 0);
    for (int i = 0; i < 100; i++)
        f->slots[i] = 100 + i;
    f->rope = (struct tsr_rope){
        .size = sizeof f->rope, .pairing = TSR_ROPE_NEOX, .dims = 16, .theta = 10000};
    f->runs[0] = (struct tsr_kv_run){&f->cells.cells, f->slots, 0, 60, 3, 0, 0};
    f->runs[1] = (struct tsr_kv_run){&f->cells.cells, f->slots + 60, 60, 40, 0, 0, 0};
    f->desc =
        (struct tsri_batch_desc){TSRI_BATCH_SCATTER, 2, &f->engine.layout, f->runs, &f->rope, 0};
    f->before = kv_engine_image(&f->engine);
}

static void close_fixture(struct fixture *f)
{
    tsri_batch_close(f->batch);
    kv_cells_fini(&f->cells);
    kv_engine_fini(&f->engine);
    free(f->before);
}

/* One change to a good batch: refused with these words, nothing written, the batch left empty. */
#define REFUSED(err, words, ...) \
    do { \
        struct fixture f; \
        open_fixture(&f, shape); \
        CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), 0); \
        __VA_ARGS__; \
        CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), err); \
        CHECK_HAS(tsr_errmsg(), words); \
        CHECK_INT(tsri_batch_scatter(f.batch, 0, 0), TSR_EINVAL); \
        CHECK_HAS(tsr_errmsg(), "not set"); \
        uint8_t *after = kv_engine_image(&f.engine); \
        CHECK(memcmp(f.before, after, f.engine.bytes) == 0); \
        free(after); \
        close_fixture(&f); \
    } while (0)

TEST(wrong_slots_are_refused_before_anything_is_written)
{
    REFUSED(TSR_EINVAL, "slot 256", f.slots[50] = 256);
    REFUSED(TSR_EINVAL, "slot -2", f.slots[99] = -2);
    REFUSED(TSR_EINVAL, "duplicate slot", f.slots[50] = f.slots[20]);
    REFUSED(TSR_EINVAL, "duplicate slot", f.slots[70] = f.slots[20]); /* across runs */
}

TEST(wrong_runs_are_refused_before_anything_is_written)
{
    REFUSED(TSR_EINVAL, "no runs", f.desc.n_runs = 0);
    REFUSED(TSR_EINVAL, "no runs", f.desc.runs = NULL);
    REFUSED(TSR_EINVAL, "0 tokens", f.runs[1].n_tokens = 0);
    REFUSED(TSR_EINVAL, "without slots", f.runs[1].slots = NULL);
    REFUSED(TSR_EINVAL, "60 + 41", f.runs[1].n_tokens = 41);
    REFUSED(TSR_EINVAL, "run 1", f.runs[1].offset = UINT32_MAX);
    REFUSED(TSR_EINVAL, "size is not set", f.runs[1].cells = NULL);
    REFUSED(TSR_EINVAL, "direction", f.desc.direction = 3);
    REFUSED(TSR_EINVAL, "layers", f.engine.layout.n_layers = 0);
    REFUSED(TSR_ESPACE, "layers", f.cells.cells.n_layers = 1);
}

TEST(more_than_the_limits_is_refused)
{
    struct tsr_batch_limits none = {0, 0, 0, 0};
    struct tsri_batch *b;
    CHECK_INT(tsri_batch_open(&b, cpu, &none), TSR_EINVAL);
    CHECK(b == NULL);
    struct tsr_kv_run three[3];
    REFUSED(TSR_ERANGE, "3 runs", memcpy(three, f.runs, sizeof f.runs); three[2] = f.runs[1];
            f.desc.runs = three; f.desc.n_runs = 3);
    static int64_t slots[129];
    REFUSED(TSR_ERANGE, "128 tokens", for (int i = 0; i < 129; i++) slots[i] = -1;
            f.cells.cells.n_tokens = 128; f.runs[0].slots = slots; f.runs[0].n_tokens = 128);
}

TEST(rotations_that_cannot_be_are_refused)
{
    REFUSED(TSR_EINVAL, "3 positions", f.desc.rope = NULL);
    REFUSED(TSR_EINVAL, "3 positions", f.desc.direction = TSRI_BATCH_GATHER);
    REFUSED(TSR_EUNSUP, "frequency set 5", f.runs[0].freq_set = 5);
    /* Even where K stays: its frequencies are not the prompt's. */
    REFUSED(TSR_EUNSUP, "frequency set 5", f.runs[1].freq_set = 5);
    REFUSED(TSR_ESPACE, "rotates 16 elements, the rope 8", f.rope.dims = 8);
    REFUSED(TSR_EUNSUP, "no plane", f.engine.layout.planes[0].rope_dims = 0);
    REFUSED(TSR_EINVAL, "theta", f.rope.theta = 0);
}

TEST(opaque_pages_refuse_rotation)
{
    struct fixture f;
    struct kv_shape s = {KV_OPAQUE, TSR_DTYPE_OPAQUE, 2, 1, 512, 0, 0, 0, 1, 256};
    open_fixture(&f, s);
    CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), TSR_EUNSUP);
    f.desc.rope = NULL;
    f.runs[0].delta = 0;
    CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), 0);
    CHECK_INT(tsri_batch_scatter(f.batch, 0, 0), 0);
    close_fixture(&f);
}

TEST(gather_may_read_a_slot_twice_and_not_write_a_row_twice)
{
    struct fixture f;
    open_fixture(&f, shape);
    f.desc.direction = TSRI_BATCH_GATHER;
    f.desc.rope = NULL;
    f.runs[0].delta = 0;
    f.slots[70] = f.slots[20];
    CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), 0);
    CHECK_INT(tsri_batch_gather(f.batch, 0, 0), 0);
    CHECK_INT(tsri_batch_scatter(f.batch, 0, 0), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "direction");
    f.runs[1].offset = 59;
    CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "token 59 is written twice");
    f.slots[59] = -1; /* skipped in one of the two: fine */
    CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), 0);
    close_fixture(&f);
}

TEST(layers_out_of_range_are_refused)
{
    struct fixture f;
    open_fixture(&f, shape);
    CHECK_INT(tsri_batch_scatter(f.batch, 0, 0), TSR_EINVAL); /* not set */
    CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), 0);
    CHECK_INT(tsri_batch_scatter(f.batch, 2, 0), TSR_EINVAL);
    CHECK_INT(tsri_batch_scatter(f.batch, 0, 3), TSR_EINVAL);
    CHECK_INT(tsri_batch_scatter(f.batch, 1, 2), TSR_EINVAL);
    CHECK_INT(tsri_batch_scatter(f.batch, 1, UINT32_MAX), TSR_EINVAL);
    CHECK_INT(tsri_batch_gather(f.batch, 0, 0), TSR_EINVAL);
    CHECK_INT(tsri_batch_scatter(f.batch, 1, 1), 0);
    close_fixture(&f);
}

/* A connector's load: 40 tokens are cached, chunks hold 32, so the load begins at token 32 with 8
 * slots of -1; the chunk comes from one KV_2LTD buffer and lands in pages. */
TEST(a_padded_load_from_2ltd_writes_the_tokens_behind_the_prefix_alone)
{
    struct fixture f;
    open_fixture(&f, shape);
    const struct tsr_kv_layout *l = &f.engine.layout;
    struct tsri_span span = tsri_span_align(40, 64, 32);
    CHECK_INT(span.n_tokens, 32);
    CHECK_INT(span.n_pad, 8);
    int64_t slots[32];
    for (int i = 0; i < 32; i++) /* backwards: every token its own stretch */
        slots[i] = i < 8 ? -1 : 208 - i;
    enum { ROW = 2 * 16 };
    static float data[2 * 2 * 32 * ROW];
    for (size_t i = 0; i < TSRI_COUNT(data); i++)
        data[i] = (float)i;
    struct tsr_kv_cells cells;
    void *planes[4];
    CHECK_INT(kv_cells_2ltd(&cells, planes, data, l, 32), sizeof data);
    struct tsr_kv_run run = {&cells, slots, 0, 32, 0, 0, 0};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, 1, l, &run, NULL, 0};
    CHECK_INT(tsri_batch_set(f.batch, NULL, &desc), 0);
    CHECK_INT(tsri_batch_scatter(f.batch, 0, 0), 0);
    size_t changed = 0;
    uint8_t *after = kv_engine_image(&f.engine);
    for (size_t i = 0; i < f.engine.bytes; i++)
        changed += after[i] != f.before[i];
    CHECK(changed <= sizeof(float) * 24 * 2 * 2 * ROW);
    for (int layer = 0; layer < 2; layer++)
        for (int plane = 0; plane < 2; plane++)
            for (int i = 8; i < 32; i++) {
                const uint8_t *at =
                    after + 64 + (layer * 2 + plane) * 256 * ROW * 4 + slots[i] * ROW * 4;
                CHECK(memcmp(at, data + ((plane * 2 + layer) * 32 + i) * ROW, ROW * 4) == 0);
            }
    free(after);
    close_fixture(&f);
}

TEST(a_batch_is_set_again_and_again_without_growing)
{
    struct fixture f;
    open_fixture(&f, shape);
    for (uint32_t round = 0; round < 1000; round++) {
        f.runs[0].delta = round;
        CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), 0);
        CHECK_INT(tsri_batch_scatter(f.batch, round % 2, 1), 0);
    }
    close_fixture(&f);
}

/* Each run turns by its own delta, also when more of them differ than tables are looked back for.
 */
TEST(steps_grow_where_a_device_queues_and_reads_its_own_memory)
{
    struct fixture f;
    struct kv_shape deep = shape;
    deep.n_layers = 29;
    memset(&f, 0, sizeof f);
    kv_engine_init(&f.engine, cpu, &deep);
    kv_cells_init(&f.cells, cpu, &f.engine.layout, 16, 64, false, 1);
    struct tsr_batch_limits limits = {1, 16, 1, 64};
    CHECK_INT(tsri_batch_open(&f.batch, cpu, &limits), 0);
    CHECK_INT(tsri_batch_step(f.batch, 0), 1); /* not set */
    for (int i = 0; i < 16; i++)
        f.slots[i] = i;
    f.runs[0] = (struct tsr_kv_run){&f.cells.cells, f.slots, 0, 16, 0, 0, 0};
    f.desc = (struct tsri_batch_desc){TSRI_BATCH_SCATTER, 1, &f.engine.layout, f.runs, NULL, 0};
    CHECK_INT(tsri_batch_set(f.batch, NULL, &f.desc), 0);
    f.cells.cells.memory = TSR_MEMORY_DEVICE;
    CHECK_INT(tsri_batch_step(f.batch, 8), 1); /* nothing is queued */
    struct tsr_device_ops queues = *cpu->ops;
    const struct tsr_device_ops *real = cpu->ops;
    queues.caps |= TSR_DEVICE_ASYNC;
    cpu->ops = &queues;
    static const uint32_t steps[] = {1, 1, 2, 4, 8, 8, 5};
    uint32_t layer = 0, wrong = 0;
    for (size_t i = 0; i < TSRI_COUNT(steps); layer += steps[i++])
        wrong += tsri_batch_step(f.batch, layer) != steps[i];
    f.cells.cells.memory = TSR_MEMORY_LOCKED; /* the bus is what takes time there */
    wrong += tsri_batch_step(f.batch, 8) != 1;
    cpu->ops = real;
    CHECK_INT(layer, 29);
    CHECK_INT(wrong, 0);
    close_fixture(&f);
}

TEST(every_run_turns_by_its_own_delta)
{
    enum { N = 24 };
    struct kv_engine g;
    struct kv_cells c;
    struct tsri_batch *b;
    struct tsr_batch_limits limits = {N, N, N, 4 * N};
    struct tsr_kv_run runs[N];
    int64_t slots[N];
    kv_engine_init(&g, cpu, &shape);
    kv_cells_init(&c, cpu, &g.layout, N, 64, false, 1);
    kv_cells_numbers(&c, &g.layout, 3);
    CHECK_INT(tsri_batch_open(&b, cpu, &limits), 0);
    for (int i = 0; i < N; i++) {
        slots[i] = i;
        runs[i] = (struct tsr_kv_run){&c.cells, slots + i, (uint32_t)i, 1, i % 12, 0, 0};
    }
    struct tsr_rope rope = {
        .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = 16, .theta = 10000};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, N, &g.layout, runs, &rope, 0};
    CHECK_INT(tsri_batch_set(b, NULL, &desc), 0);
    CHECK_INT(tsri_batch_scatter(b, 0, 0), 0);
    for (int i = 0; i < N; i++) {
        const float *in = (float *)c.planes[0] + i * 32;
        float out[32];
        memcpy(out, g.data + 64 + i * 128, sizeof out);
        for (int k = 0; k < 8; k++) {
            double angle = (i % 12) * pow(10000, -2.0 * k / 16);
            double want = (double)in[k] * cos(angle) - (double)in[k + 8] * sin(angle);
            CHECK(fabs(want - (double)out[k]) < 1e-6);
        }
    }
    tsri_batch_close(b);
    kv_cells_fini(&c);
    kv_engine_fini(&g);
}

int main(void)
{
    if (tsri_device_open(&cpu, "cpu", NULL) != 0) return 1;
    RUN(wrong_slots_are_refused_before_anything_is_written);
    RUN(wrong_runs_are_refused_before_anything_is_written);
    RUN(more_than_the_limits_is_refused);
    RUN(rotations_that_cannot_be_are_refused);
    RUN(opaque_pages_refuse_rotation);
    RUN(gather_may_read_a_slot_twice_and_not_write_a_row_twice);
    RUN(layers_out_of_range_are_refused);
    RUN(a_padded_load_from_2ltd_writes_the_tokens_behind_the_prefix_alone);
    RUN(a_batch_is_set_again_and_again_without_growing);
    RUN(steps_grow_where_a_device_queues_and_reads_its_own_memory);
    RUN(every_run_turns_by_its_own_delta);
    tsri_device_close(cpu);
    return test_end();
}
