/* The device "npu" over the fake AscendCL: order. What it shares with other devices is in
 * test_contract.c. Everything also runs with the fake's checks, which stop the process. */
#include "ascend_kit.h"
#include "device/ascend.h"

/* ---- order ---- */

/* Cells are filled by a gather that is still queued, and read on the same stream, on another one that
 * waits for it, by another handle of an engine's stream that waits for it (npu alone has those), or by
 * another handle of the engine's stream that fills them. */
static void gather_then_turn(uint32_t reader, struct result *out, struct tsri_device *d, bool npu)
{
    struct tsr_device_stream *engine;
    struct kv_engine from, to;
    struct kv_cells cells;
    struct tsri_batch *batch[2];
    struct tsr_device_stream *streams[3];
    struct tsr_device_event *e;
    int64_t slots[N_TOKENS];
    struct tsr_batch_limits limits = {2, 200, 100, 1000};
    struct tsr_rope rope = {
        .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = 64, .theta = 10000};
    kv_engine_init(&from, d, &plain_shape);
    kv_engine_init(&to, d, &plain_shape);
    kv_cells_init(&cells, d, &from.layout, N_TOKENS, CELL, false, 3);
    memset(cells.data, 0, cells.bytes);
    for (int64_t i = 0; i < N_TOKENS; i++)
        slots[i] = i * 2;
    struct tsr_kv_run run = {&cells.cells, slots, 0, N_TOKENS, 0, 0, 0}, turned = run;
    turned.delta = 55;
    struct tsri_batch_desc desc[2] = {{TSRI_BATCH_GATHER, 1, &from.layout, &run, NULL, 0},
                                      {TSRI_BATCH_SCATTER, 1, &to.layout, &turned, &rope, 0}};
    CHECK_INT(tsri_event_open(&e, d), 0);
    CHECK_INT(tsri_stream_open(&engine, d, NULL, 0), 0);
    for (int i = 0; i < 2; i++)
        CHECK_INT(tsri_batch_open(&batch[i], d, &limits), 0);
    for (int i = 0; i < 3; i++)
        CHECK_INT(tsri_stream_open(&streams[i], d, i && npu ? engine->native : NULL, 0), 0);
    struct tsr_device_stream *fills = streams[reader < 3 ? 0 : 1];
    struct tsr_device_stream *reads = streams[reader < 3 ? reader : 2];
    CHECK_INT(tsri_batch_set(batch[0], fills, &desc[0]), 0);
    CHECK_INT(tsri_batch_gather(batch[0], 0, 0), 0);
    CHECK_INT(tsri_event_record(d, e, fills), 0);
    if (reader < 3) CHECK_INT(tsri_event_wait(d, e, streams[1]), 0);
    CHECK_INT(tsri_batch_set(batch[1], reads, &desc[1]), 0);
    CHECK_INT(tsri_batch_scatter(batch[1], 0, 0), 0);
    for (int i = 0; i < 3; i++)
        CHECK_INT(tsri_stream_sync(d, streams[i]), 0);
    out->engine = kv_engine_image(&to);
    out->engine_bytes = to.bytes;
    for (int i = 0; i < 2; i++)
        tsri_batch_close(batch[i]);
    for (int i = 0; i < 3; i++)
        tsri_stream_close(d, streams[i]);
    tsri_stream_close(d, engine);
    tsri_event_close(d, e);
    kv_cells_fini(&cells);
    kv_engine_fini(&from);
    kv_engine_fini(&to);
}

TEST(cells_that_a_queued_gather_fills_are_read_when_they_are_full)
{
    for (uint32_t reader = 0; reader < 4; reader++) {
        struct tsri_device *npu = open_device("npu", NULL), *cpu = open_device("cpu", NULL);
        struct result a = {0}, b = {0};
        gather_then_turn(reader, &a, cpu, false);
        acl->lazy(true);
        gather_then_turn(reader, &b, npu, true);
        acl->lazy(false);
        CHECK(memcmp(a.engine, b.engine, a.engine_bytes) == 0);
        result_free(&a);
        result_free(&b);
        tsri_device_close(npu);
        tsri_device_close(cpu);
        acl->check_closed();
    }
}

/* The processor moves KV in host memory, which a queued copy may be about to write. */
TEST(kv_in_host_memory_is_moved_when_nothing_is_queued)
{
    enum { BYTES = 64 * 1024 };
    struct tsri_device *d = open_device("npu", NULL);
    struct tsr_batch_limits limits = {2, 200, 100, 1000};
    struct tsri_batch *batch;
    struct kv_cells cells;
    int64_t slots[N_TOKENS];
    void *kv, *there, *source;
    CHECK_INT(tsri_device_host_alloc(d, &kv, BYTES), 0);
    CHECK_INT(tsri_device_host_alloc(d, &source, BYTES), 0);
    CHECK_INT(tsri_device_alloc(d, &there, BYTES), 0);
    kv_random_bytes(source, BYTES, 6);
    struct tsr_kv_layout layout = {.size = sizeof layout,
                                   .memory = TSR_MEMORY_LOCKED,
                                   .n_layers = 1,
                                   .n_planes = 1,
                                   .n_slots = 128,
                                   .planes[0] = {.base = kv,
                                                 .token_stride = 512,
                                                 .head_stride = 256,
                                                 .element_stride = 2,
                                                 .dtype = TSR_DTYPE_F16,
                                                 .n_heads = 2,
                                                 .dim = 128}};
    kv_cells_init(&cells, d, &layout, N_TOKENS, N_TOKENS, false, 3);
    for (int64_t i = 0; i < N_TOKENS; i++)
        slots[i] = i;
    struct tsr_kv_run run = {&cells.cells, slots, 0, N_TOKENS, 0, 0, 0};
    struct tsri_batch_desc desc = {TSRI_BATCH_GATHER, 1, &layout, &run, NULL, 0};
    CHECK_INT(tsri_batch_open(&batch, d, &limits), 0);
    acl->lazy(true);
    struct tsr_copy copies[] = {{there, source, BYTES}, {kv, there, BYTES}};
    CHECK_INT(tsri_device_copy(d, NULL, copies, 2), 0);
    CHECK_INT(tsri_batch_set(batch, NULL, &desc), 0);
    CHECK_INT(tsri_batch_gather(batch, 0, 0), 0);
    CHECK(memcmp(cells.planes[0], source, (size_t)N_TOKENS * 512) == 0);
    CHECK_INT(tsri_stream_sync(d, NULL), 0);
    acl->lazy(false);
    tsri_batch_close(batch);
    kv_cells_fini(&cells);
    tsri_device_host_free(d, kv);
    tsri_device_host_free(d, source);
    tsri_device_free(d, there);
    tsri_device_close(d);
    acl->check_closed();
}

/* One thread, two devices: each call makes its own current. */
TEST(devices_take_turns_on_one_thread)
{
    struct tsri_device *d[2];
    static uint8_t plain[2][2][4096];
    void *there[2], *locked[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct tsr_device_desc desc = {.size = sizeof desc, .ordinal = i};
        CHECK_INT(tsri_device_open(&d[i], "npu", &desc), 0);
    }
    for (int i = 0; i < 2; i++) {
        kv_random_bytes(plain[i][0], 4096, (uint64_t)i + 1);
        CHECK_INT(tsri_device_alloc(d[i], &there[i], 4096), 0);
        CHECK_INT(tsri_device_host_alloc(d[i], &locked[i], 4096), 0);
        memcpy(locked[i], plain[i][0], 4096);
    }
    for (int k = 0; k < 4; k++) { /* two at a time: where there are batches, they are one */
        struct tsr_copy in[] = {
            {there[k % 2], locked[k % 2], 2048},
            {(uint8_t *)there[k % 2] + 2048, (uint8_t *)locked[k % 2] + 2048, 2048}};
        CHECK_INT(tsri_device_copy(d[k % 2], NULL, in, 2), 0);
    }
    for (int i = 0; i < 2; i++) {
        struct tsr_copy out = {plain[i][1], there[i], 4096};
        CHECK_INT(tsri_device_copy(d[i], NULL, &out, 1), 0);
        CHECK_INT(tsri_stream_sync(d[i], NULL), 0);
        CHECK(memcmp(plain[i][0], plain[i][1], 4096) == 0);
    }
    for (int i = 0; i < 2; i++) {
        tsri_device_free(d[i], there[i]);
        tsri_device_host_free(d[i], locked[i]);
    }
    for (int i = 0; i < 2; i++)
        tsri_device_close(d[i]);
    acl->check_closed();
}

/* A load as the connector makes it: layer by layer, an event behind each. */
TEST(layers_arrive_in_order_and_an_event_tells_when)
{
    enum { LAYERS = 4 };
    struct tsri_device *d = open_device("npu", NULL);
    struct kv_shape shape = plain_shape;
    struct kv_engine engine;
    struct kv_cells cells;
    struct tsri_batch *batch;
    struct tsr_device_stream *s;
    struct tsr_device_event *events[LAYERS];
    struct tsr_batch_limits limits = {2, 200, 100, 1000};
    int64_t slots[N_TOKENS];
    shape.n_layers = LAYERS;
    kv_engine_init(&engine, d, &shape);
    kv_cells_init(&cells, d, &engine.layout, N_TOKENS, N_TOKENS, false, 3);
    for (int64_t i = 0; i < N_TOKENS; i++)
        slots[i] = i;
    struct tsr_kv_run run = {&cells.cells, slots, 0, N_TOKENS, 0, 0, 0};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, 1, &engine.layout, &run, NULL, 0};
    CHECK_INT(tsri_stream_open(&s, d, NULL, 0), 0);
    CHECK_INT(tsri_batch_open(&batch, d, &limits), 0);
    CHECK_INT(tsri_batch_set(batch, s, &desc), 0);
    acl->hold(true);
    for (uint32_t l = 0; l < LAYERS; l++) {
        CHECK_INT(tsri_event_open(&events[l], d), 0);
        CHECK_INT(tsri_batch_scatter(batch, l, 1), 0);
        CHECK_INT(tsri_event_record(d, events[l], s), 0);
    }
    acl->hold(false);
    for (uint32_t l = 0; l < LAYERS; l++) {
        CHECK_INT(tsri_event_sync(d, events[l]), 0);
        const struct tsr_kv_plane *p = &engine.layout.planes[0];
        CHECK(memcmp(acl->view(tsri_layer_base(p, l)), cells.planes[l * 2],
                     N_TOKENS / 16 * 16 * tsri_row_bytes(p)) == 0);
    }
    CHECK_INT(tsri_stream_sync(d, s), 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        tsri_event_close(d, events[l]);
    tsri_batch_close(batch);
    tsri_stream_close(d, s);
    kv_cells_fini(&cells);
    kv_engine_fini(&engine);
    tsri_device_close(d);
    acl->check_closed();
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(cells_that_a_queued_gather_fills_are_read_when_they_are_full);
    RUN(kv_in_host_memory_is_moved_when_nothing_is_queued);
    RUN(devices_take_turns_on_one_thread);
    RUN(layers_arrive_in_order_and_an_event_tells_when);
    return test_end();
}
