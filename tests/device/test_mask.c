/* The mask as ranges against an n x n matrix built from the words of the rule. */
#include "device/device.h"
#include "support/test.h"

enum { N_MAX = 96 };

/* The rule, one pair at a time. */
static bool may_see(const struct tsri_mask *m, uint32_t row, uint32_t key)
{
    if (key > row) return false;
    if (m->regime == TSRI_MASK_BLEND) return true;
    for (uint32_t i = 0; i < m->n_chunks; i++) {
        const struct tsr_range *c = &m->chunks[i];
        bool row_in = row >= c->offset && row < c->offset + c->n_tokens;
        bool key_in = key >= c->offset && key < c->offset + c->n_tokens;
        if (row_in) return key_in || (m->context_visible && key < m->n_context);
    }
    return true;
}

static void check_all_pairs(const struct tsri_mask *m, uint32_t n)
{
    CHECK_INT(tsri_mask_check(m), 0);
    for (uint32_t row = 0; row < n; row++) {
        struct tsr_range ranges[TSRI_MASK_RANGES_MAX];
        uint32_t n_ranges = tsri_mask_row(m, row, ranges);
        bool seen[N_MAX] = {false};
        CHECK(n_ranges >= 1 && n_ranges <= TSRI_MASK_RANGES_MAX);
        uint32_t end = 0;
        for (uint32_t i = 0; i < n_ranges; i++) {
            CHECK(ranges[i].n_tokens > 0);
            CHECK(i == 0 || ranges[i].offset > end); /* apart: touching ranges are one */
            end = ranges[i].offset + ranges[i].n_tokens;
            CHECK(end <= row + 1);
            for (uint32_t k = ranges[i].offset; k < end; k++)
                seen[k] = true;
        }
        for (uint32_t key = 0; key < n; key++)
            CHECK_INT(seen[key], may_see(m, row, key));
    }
}

TEST(ranges_equal_the_matrix_for_random_prompts_in_both_regimes)
{
    uint64_t seed = 11;
    for (int round = 0; round < 400; round++) {
        struct tsr_range chunks[N_MAX];
        uint32_t n = 1 + (uint32_t)(test_rand(&seed) % N_MAX);
        struct tsri_mask m = {.regime = round % 2 ? TSRI_MASK_ISOLATE : TSRI_MASK_BLEND,
                              .context_visible = round % 3 != 0,
                              .chunks = chunks};
        m.n_context = (uint32_t)(test_rand(&seed) % (n / 2 + 1));
        for (uint32_t at = m.n_context; at < n;) {
            uint32_t tokens = 1 + (uint32_t)(test_rand(&seed) % 20);
            if (test_rand(&seed) % 4 == 0) at += 1 + (uint32_t)(test_rand(&seed) % 5);
            if (at + tokens > n) break;
            chunks[m.n_chunks++] = (struct tsr_range){at, tokens};
            at += tokens;
        }
        check_all_pairs(&m, n);
    }
}

TEST(a_chunk_behind_the_context_sees_one_range)
{
    struct tsr_range chunks[] = {{10, 5}, {15, 5}}, r[TSRI_MASK_RANGES_MAX];
    struct tsri_mask m = {TSRI_MASK_ISOLATE, 10, true, 2, chunks};
    CHECK_INT(tsri_mask_row(&m, 12, r), 1);
    CHECK_INT(r[0].n_tokens, 13);
    CHECK_INT(tsri_mask_row(&m, 16, r), 2);
    CHECK_INT(r[0].n_tokens, 10);
    CHECK_INT(r[1].offset, 15);
    CHECK_INT(r[1].n_tokens, 2);
    CHECK_INT(tsri_mask_row(&m, 20, r), 1); /* the question */
    CHECK_INT(r[0].n_tokens, 21);
}

TEST(an_invisible_context_hides_from_chunks_alone)
{
    struct tsr_range chunks[] = {{10, 5}}, r[TSRI_MASK_RANGES_MAX];
    struct tsri_mask m = {TSRI_MASK_ISOLATE, 10, false, 1, chunks};
    CHECK_INT(tsri_mask_row(&m, 3, r), 1);
    CHECK_INT(r[0].n_tokens, 4);
    CHECK_INT(tsri_mask_row(&m, 12, r), 1);
    CHECK_INT(r[0].offset, 10);
    CHECK_INT(tsri_mask_row(&m, 15, r), 1);
    CHECK_INT(r[0].offset, 0);
}

TEST(chunks_that_overlap_or_are_empty_are_refused)
{
    struct tsr_range chunks[] = {{10, 5}, {14, 5}};
    struct tsri_mask m = {TSRI_MASK_ISOLATE, 10, true, 2, chunks};
    CHECK_INT(tsri_mask_check(&m), TSR_EINVAL);
    chunks[1] = (struct tsr_range){15, 0};
    CHECK_INT(tsri_mask_check(&m), TSR_EINVAL);
    chunks[1] = (struct tsr_range){UINT32_MAX - 2, 5};
    CHECK_INT(tsri_mask_check(&m), TSR_EINVAL);
    chunks[1] = (struct tsr_range){15, 5};
    m.n_context = 11;
    CHECK_INT(tsri_mask_check(&m), TSR_EINVAL);
    m.n_context = 10;
    m.regime = 0;
    CHECK_INT(tsri_mask_check(&m), TSR_EINVAL);
    m.regime = TSRI_MASK_BLEND;
    CHECK_INT(tsri_mask_check(&m), 0);
}

int main(void)
{
    RUN(ranges_equal_the_matrix_for_random_prompts_in_both_regimes);
    RUN(a_chunk_behind_the_context_sees_one_range);
    RUN(an_invisible_context_hides_from_chunks_alone);
    RUN(chunks_that_overlap_or_are_empty_are_refused);
    return test_end();
}
