/* Masks and batches against the plainest way to say the same. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "support/test.h"

#include <math.h>

enum { SLOTS = 2048 };

static uint32_t slots[SLOTS], groups_of[SLOTS];
static struct tsr_model_group groups[SLOTS];
static ggml_fp16_t bias[SLOTS], mask[512 * SLOTS];
static struct tsri_row_batch batches[SLOTS / 64 + 2];
static const struct tsri_fit fit = {SLOTS, 8, TSRI_BATCH_ROWS};

static bool sees(const struct tsri_sight *s, uint32_t row, uint32_t slot)
{
    const struct tsr_model_group *g = &s->groups[s->groups_of[row]];
    for (uint32_t i = 0; i < g->n_ranges; i++) {
        bool whole = i + 1 < g->n_ranges;
        if (slot >= g->sees[i].offset && slot < g->sees[i].offset + g->sees[i].n_tokens &&
            (whole || slot <= s->slots[row]))
            return true;
    }
    return false;
}

/* Every row in one batch, in order, and every mask as it must be. */
static void check_all(const struct tsri_sight *s, uint32_t n_rows)
{
    uint32_t n = tsri_batches_cut(s, n_rows, &fit, batches, SLOTS / 64 + 2), done = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_row_batch *b = &batches[i];
        CHECK_INT(b->row_first, done);
        CHECK(b->n_rows > 0 && b->n_rows <= TSRI_BATCH_ROWS);
        CHECK(b->n_rows >= TSRI_TILE_ROWS || n_rows < TSRI_TILE_ROWS);
        CHECK(b->n_padded >= b->n_rows && b->kv_first % TSRI_KV_ALIGN == 0);
        CHECK(b->kv_first + b->n_kv <= SLOTS);
        tsri_mask_fill(s, b, mask);
        for (uint32_t r = 0; r < b->n_padded; r++)
            for (uint32_t k = 0; k < SLOTS; k++) {
                uint32_t row = b->row_first + r;
                bool want = r < b->n_rows && sees(s, row, k);
                if (k < b->kv_first || k >= b->kv_first + b->n_kv) {
                    CHECK(!want);
                    continue;
                }
                float got = ggml_fp16_to_fp32(mask[(size_t)r * b->n_kv + k - b->kv_first]);
                float added =
                    row >= s->bias_row_first && k < s->n_bias ? ggml_fp16_to_fp32(bias[k]) : 0;
                CHECK(want ? got == added : isinf(got) && got < 0);
            }
        done += b->n_rows;
    }
    CHECK_INT(done, n_rows);
}

TEST(a_causal_pass_sees_the_past)
{
    static const uint32_t sizes[] = {1, 7, 8, 63, 64, 65, 512, 513, 700, 1500};
    groups[0] = (struct tsr_model_group){0, 1, {{0, SLOTS}}};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        for (uint32_t i = 0; i < sizes[k]; i++) {
            slots[i] = i + (uint32_t)k;
            groups_of[i] = 0;
        }
        struct tsri_sight s = {slots, groups_of, groups, bias, 0, sizes[k]};
        check_all(&s, sizes[k]);
    }
}

TEST(random_groups_biases_and_gaps_are_exact)
{
    uint64_t seed = 7;
    for (int round = 0; round < 12; round++) {
        uint32_t n = 0, g = 0, slot = (uint32_t)(test_rand(&seed) % 100);
        while (slot < SLOTS - 1 && g < 40) {
            uint32_t rows = 1 + (uint32_t)(test_rand(&seed) % (round % 2 ? 20 : 300));
            uint32_t first = slot, begin = (uint32_t)(test_rand(&seed) % (slot + 1));
            for (uint32_t i = 0; i < rows && slot < SLOTS; i++) {
                slots[n] = slot;
                groups_of[n++] = g;
                slot += 1 + (uint32_t)(test_rand(&seed) % 2);
            }
            groups[g] = (struct tsr_model_group){0, 2, {{0, begin / 2}, {begin, SLOTS - begin}}};
            if (begin < 2 || test_rand(&seed) % 3 == 0) {
                groups[g].n_ranges = 1;
                groups[g].sees[0] = (struct tsr_range){first, SLOTS - first};
            } else if (slot < SLOTS - 2 && test_rand(&seed) % 2 == 0) {
                uint32_t behind = slot + 1 + (uint32_t)(test_rand(&seed) % (SLOTS - 1 - slot));
                uint32_t whole = 1 + (uint32_t)(test_rand(&seed) % (SLOTS - behind));
                groups[g].sees[0] = (struct tsr_range){behind, whole};
                groups[g].sees[1] = (struct tsr_range){first, slot - first};
            }
            g++;
        }
        for (uint32_t i = 0; i < SLOTS; i++)
            bias[i] = ggml_fp32_to_fp16(-(float)(i % 16) / 8);
        uint32_t biased = (uint32_t)(test_rand(&seed) % (n + 1));
        uint32_t n_bias = (uint32_t)(test_rand(&seed) % SLOTS);
        struct tsri_sight s = {slots, groups_of, groups, bias, n_bias, n - biased};
        check_all(&s, n);
    }
}

TEST(chunks_for_themselves_scan_only_their_own_keys)
{
    for (uint32_t i = 0; i < 1200; i++) {
        slots[i] = i;
        groups_of[i] = i / 200;
    }
    for (uint32_t g = 0; g < 6; g++)
        groups[g] = (struct tsr_model_group){200, 1, {{200 * g, 200}}};
    struct tsri_sight s = {slots, groups_of, groups, bias, 0, 1200};
    uint32_t n = tsri_batches_cut(&s, 1200, &fit, batches, SLOTS / 64 + 2);
    CHECK_INT(n, 6);
    for (uint32_t i = 0; i < n; i++)
        CHECK(batches[i].n_kv <= 512);
}

int main(void)
{
    RUN(a_causal_pass_sees_the_past);
    RUN(random_groups_biases_and_gaps_are_exact);
    RUN(chunks_for_themselves_scan_only_their_own_keys);
    return test_end();
}
#else
#include "model/absent.h"
#endif
