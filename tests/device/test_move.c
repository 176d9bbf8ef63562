/* The walk over a batch: any cut into token ranges gives the bytes of the whole, and bytes that are
 * no numbers survive it. */
#include "kv.h"

enum { N_TOKENS = 90 };

static struct tsri_device *cpu;

struct walk {
    struct kv_engine engine;
    struct kv_cells cells;
    int64_t slots[N_TOKENS];
    struct tsr_kv_run runs[2];
    const float *rotations[2];
    struct tsr_batch batch;
};

static void walk_init(struct walk *w, enum kv_kind kind)
{
    struct kv_shape shape = {kind, TSR_DTYPE_F16, 2, 2, 32, 32, 0, 32, 8, 128};
    kv_engine_init(&w->engine, cpu, &shape);
    kv_cells_init(&w->cells, cpu, &w->engine.layout, N_TOKENS, 32, false, 4);
    kv_slots(w->slots, N_TOKENS, 128, 9);
    w->runs[0] = (struct tsr_kv_run){&w->cells.cells, w->slots, 0, 37, 0, 0, 0};
    w->runs[1] = (struct tsr_kv_run){&w->cells.cells, w->slots + 37, 37, 53, 0, 0, 0};
    w->rotations[0] = w->rotations[1] = NULL;
    w->batch =
        (struct tsr_batch){&w->engine.layout, w->runs, 2, N_TOKENS, 6, 0, w->rotations, NULL, NULL};
}

static void walk_fini(struct walk *w)
{
    kv_cells_fini(&w->cells);
    kv_engine_fini(&w->engine);
}

TEST(any_cut_into_ranges_gives_the_bytes_of_the_whole)
{
    for (int kind = KV_SPLIT; kind <= KV_PAGES; kind++) {
        struct walk whole, cut;
        walk_init(&whole, (enum kv_kind)kind);
        walk_init(&cut, (enum kv_kind)kind);
        struct tsri_move a = {&whole.batch, &tsri_kernels_plain, true, false};
        struct tsri_move b = {&cut.batch, &tsri_kernels_plain, true, false};
        uint64_t seed = 8;
        for (uint32_t plane = 0; plane < 2; plane++) {
            tsri_move_tokens(&a, 1, plane, 0, N_TOKENS);
            for (uint32_t at = 0; at < N_TOKENS;) {
                uint32_t n = 1 + (uint32_t)(test_rand(&seed) % 13);
                if (n > N_TOKENS - at) n = N_TOKENS - at;
                tsri_move_tokens(&b, 1, plane, at, n);
                at += n;
            }
        }
        CHECK(memcmp(whole.engine.data, cut.engine.data, whole.engine.bytes) == 0);
        walk_fini(&whole);
        walk_fini(&cut);
    }
}

/* Signalling NaN would lose a bit in any conversion. */
TEST(nan_payloads_and_infinities_survive_the_way_there_and_back)
{
    static const uint16_t odd[] = {0x7c01, 0xfdff, 0x7e00, 0x7c00, 0xfc00, 0x0001, 0x8000};
    for (int kind = KV_SPLIT; kind <= KV_PAGES; kind++) {
        struct walk w;
        walk_init(&w, (enum kv_kind)kind);
        uint16_t *row = w.cells.planes[0];
        for (size_t i = 0; i < 32 * 64; i++)
            row[i] = odd[i % TSRI_COUNT(odd)];
        struct tsri_move m = {&w.batch, &tsri_kernels_plain, true, false};
        tsri_move_tokens(&m, 0, 0, 0, N_TOKENS);
        memset(row, 0, 32 * 64 * 2);
        m.to_engine = false;
        tsri_move_tokens(&m, 0, 0, 0, N_TOKENS);
        for (uint32_t t = 0; t < 32; t++)
            for (uint32_t i = 0; i < 64; i++)
                CHECK_INT(row[t * 64 + i],
                          w.slots[t] < 0 ? 0 : odd[(t * 64 + i) % TSRI_COUNT(odd)]);
        walk_fini(&w);
    }
}

/* Partial rotation: what does not turn keeps its bytes, signalling NaN included. */
TEST(elements_beside_the_rotated_ones_keep_their_bytes)
{
    struct walk w;
    float table[16];
    for (int i = 0; i < 8; i++) {
        table[i] = 0.6f;
        table[8 + i] = 0.8f;
    }
    walk_init(&w, KV_HND);
    w.engine.layout.planes[0].rope_first = 8;
    w.engine.layout.planes[0].rope_dims = 16;
    w.rotations[0] = w.rotations[1] = table;
    w.batch.pairing = TSR_ROPE_NEOX;
    uint16_t *row = w.cells.planes[0];
    for (size_t i = 0; i < 32 * 64; i++)
        row[i] = 0x7c01;
    struct tsri_move m = {&w.batch, &tsri_kernels_plain, true, false};
    tsri_move_tokens(&m, 0, 0, 0, N_TOKENS);
    const struct tsr_kv_plane *p = &w.engine.layout.planes[0];
    uint32_t t = w.slots[0] >= 0 ? 0 : 1;
    const uint16_t *head = (const uint16_t *)(const void *)(tsri_layer_base(p, 0) +
                                                            tsri_slot_offset(&w.engine.layout, p,
                                                                             (uint64_t)w.slots[t]) +
                                                            p->head_stride);
    for (uint32_t i = 0; i < 32; i++)
        CHECK_INT(head[i] == 0x7c01, i < 8 || i >= 24);
    walk_fini(&w);
}

static void check_streams(const struct tsri_kernels *k)
{
    if (!k->supported() || !k->stream) return;
    for (int kind = KV_SPLIT; kind <= KV_PAGES; kind++)
        for (int to_engine = 0; to_engine < 2; to_engine++) {
            struct walk plain, past;
            walk_init(&plain, (enum kv_kind)kind);
            walk_init(&past, (enum kv_kind)kind);
            struct tsri_move a = {&plain.batch, k, to_engine, false};
            struct tsri_move b = {&past.batch, k, to_engine, true};
            for (uint32_t plane = 0; plane < 2; plane++) {
                tsri_move_tokens(&a, 1, plane, 3, N_TOKENS - 3);
                tsri_move_tokens(&b, 1, plane, 3, N_TOKENS - 3);
            }
            k->fence();
            CHECK(memcmp(plain.engine.data, past.engine.data, plain.engine.bytes) == 0);
            CHECK(memcmp(plain.cells.data, past.cells.data, plain.cells.bytes) == 0);
            walk_fini(&plain);
            walk_fini(&past);
        }
}

/* Pieces of 64 bytes and of several lines, aligned and not, in numbers that four divides and not.
 */
TEST(copies_past_the_caches_give_the_same_bytes)
{
    for (uint32_t i = 0; tsri_kernels_x86(i); i++)
        check_streams(tsri_kernels_x86(i));
    for (uint32_t i = 0; tsri_kernels_arm(i); i++)
        check_streams(tsri_kernels_arm(i));
}

TEST(top_k_of_many_equal_scores_takes_the_first)
{
    static float scores[5000];
    static uint32_t out[5000];
    for (int i = 0; i < 5000; i++)
        scores[i] = i % 100 == 0 ? 2.0f : 1.0f;
    tsri_move_top_k(&(struct tsr_top_k){scores, out, 5000, 60});
    uint32_t ones = 0;
    for (uint32_t i = 0; i < 60; i++) {
        CHECK(i == 0 || out[i] > out[i - 1]);
        if (scores[out[i]] == 1) {
            ones++;
            CHECK(out[i] <= 10);
        }
    }
    CHECK_INT(ones, 10);
}

int main(void)
{
    if (tsri_device_open(&cpu, "cpu", NULL) != 0) return 1;
    RUN(any_cut_into_ranges_gives_the_bytes_of_the_whole);
    RUN(nan_payloads_and_infinities_survive_the_way_there_and_back);
    RUN(elements_beside_the_rotated_ones_keep_their_bytes);
    RUN(copies_past_the_caches_give_the_same_bytes);
    RUN(top_k_of_many_equal_scores_takes_the_first);
    tsri_device_close(cpu);
    return test_end();
}
