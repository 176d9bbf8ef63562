/* Hashes of windows: the golden ones, and what keeps texts apart. */
#include "chunk/chunk.h"
#include "support/golden.h"
#include "support/test.h"

static void fill_tokens(uint32_t *tokens, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i * 2654435761u + seed;
}

TEST(window_hashes_are_the_golden_ones)
{
    struct golden g;
    golden_init(&g, "keys.txt");
    int n = 0;
    for (; golden_next(&g, "window"); n++) {
        uint8_t space[16];
        struct tsri_key extra;
        uint32_t tokens[TSRI_WINDOW];
        CHECK_INT(golden_bytes(&g, 0, space, 16), 16);
        CHECK_INT(golden_bytes(&g, 1, (uint8_t *)&extra, 16), 16);
        fill_tokens(tokens, TSRI_WINDOW, golden_u32(&g, 2));
        uint64_t got;
        tsri_window_hashes(tsri_window_seed(space, extra), tokens, 1, &got);
        CHECK(golden_same(&g, 3, &got, sizeof got));
    }
    golden_fini(&g);
    CHECK(n >= 4);
}

TEST(each_window_has_its_own_hash_and_each_token_counts)
{
    uint32_t tokens[4 * TSRI_WINDOW];
    uint64_t hashes[4], other;
    fill_tokens(tokens, 4 * TSRI_WINDOW, 3);
    tsri_window_hashes(5, tokens, 4, hashes);
    for (uint32_t w = 0; w < 4; w++)
        for (uint32_t i = 0; i < TSRI_WINDOW; i++) {
            uint32_t *t = &tokens[w * TSRI_WINDOW + i];
            *t ^= 1u << i;
            tsri_window_hashes(5, tokens + w * TSRI_WINDOW, 1, &other);
            CHECK(other != hashes[w]);
            *t ^= 1u << i;
        }
    tsri_window_hashes(6, tokens, 1, &other);
    CHECK(other != hashes[0]);
}

TEST(windows_that_repeat_themselves_have_none)
{
    uint32_t tokens[TSRI_WINDOW];
    uint64_t hash;
    for (uint32_t period = 1; period < 12; period++) {
        for (uint32_t i = 0; i < TSRI_WINDOW; i++)
            tokens[i] = 100 + i % period;
        tsri_window_hashes(1, tokens, 1, &hash);
        CHECK((hash == 0) == (period < 8));
        tokens[TSRI_WINDOW - 1] = 7; /* almost is not enough */
        tsri_window_hashes(1, tokens, 1, &hash);
        CHECK(hash != 0);
    }
}

int main(void)
{
    RUN(window_hashes_are_the_golden_ones);
    RUN(each_window_has_its_own_hash_and_each_token_counts);
    RUN(windows_that_repeat_themselves_have_none);
    return test_end();
}
