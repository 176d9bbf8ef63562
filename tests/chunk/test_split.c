/* Separators and blocks. */
#include "chunk/chunk.h"
#include "support/split_naive.h"
#include "support/test.h"

#define RANGES_MAX 4096

static struct tsri_separators *separators(const uint32_t *tokens, const uint32_t *lengths,
                                          uint32_t n)
{
    struct tsri_separators *s;
    CHECK_INT(tsri_separators_open(&s, tokens, lengths, n), 0);
    return s;
}

/* One spelling: 7 8. */
static struct tsri_separators *seven_eight(void)
{
    return separators((const uint32_t[]){7, 8}, (const uint32_t[]){2}, 1);
}

static void check_range(struct tsr_range r, uint32_t offset, uint32_t n_tokens)
{
    CHECK_INT(r.offset, offset);
    CHECK_INT(r.n_tokens, n_tokens);
}

TEST(a_separator_belongs_to_the_chunk_before_it_and_the_rest_is_the_question)
{
    const uint32_t prompt[] = {1, 2, 7, 8, 3, 7, 8, 4, 5, 6};
    struct tsr_range r[3];
    struct tsri_separators *s = seven_eight();
    CHECK_INT(tsri_split(s, prompt, 10, r, 3), 3);
    check_range(r[0], 0, 4);
    check_range(r[1], 4, 3);
    check_range(r[2], 7, 3);
    tsri_separators_close(s);
    tsri_separators_close(NULL);
}

TEST(half_a_separator_is_text)
{
    const uint32_t prompt[] = {1, 7, 7, 8, 8, 7, 1, 8, 7};
    struct tsr_range r[3];
    struct tsri_separators *s = seven_eight();
    CHECK_INT(tsri_split(s, prompt, 9, r, 3), 2);
    check_range(r[0], 0, 4);
    check_range(r[1], 4, 5);
    tsri_separators_close(s);
}

TEST(where_spellings_overlap_the_leftmost_wins_then_the_longest)
{
    const uint32_t tokens[] = {7, 7, 8, 8, 9, 7, 8, 9}, lengths[] = {1, 2, 2, 3};
    struct tsri_separators *s = separators(tokens, lengths, 4); /* 7 | 7 8 | 8 9 | 7 8 9 */
    struct tsr_range r[8];
    const uint32_t longest[] = {1, 7, 8, 9, 2};
    CHECK_INT(tsri_split(s, longest, 5, r, 8), 2);
    check_range(r[0], 0, 4);
    const uint32_t shorter[] = {1, 7, 8, 5, 7, 5, 8, 9, 2};
    CHECK_INT(tsri_split(s, shorter, 9, r, 8), 4);
    check_range(r[0], 0, 3);
    check_range(r[1], 3, 2);
    check_range(r[2], 5, 3);
    check_range(r[3], 8, 1);
    tsri_separators_close(s);

    /* 7 8 begins before 8 9 9 9 and so wins, though it is shorter; 9 is then text. */
    const uint32_t cross[] = {7, 8, 8, 9, 9, 9}, cross_lengths[] = {2, 4};
    const uint32_t prompt[] = {1, 7, 8, 9, 9, 9};
    s = separators(cross, cross_lengths, 2);
    CHECK_INT(tsri_split(s, prompt, 6, r, 8), 2);
    check_range(r[0], 0, 3);
    check_range(r[1], 3, 3);
    tsri_separators_close(s);
}

static void refused(const uint32_t *prompt, uint32_t n, uint32_t ranges_max, const char *says)
{
    struct tsr_range r[8];
    struct tsri_separators *s = seven_eight();
    CHECK_INT(tsri_split(s, prompt, n, r, ranges_max), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), says);
    tsri_separators_close(s);
}

TEST(a_malformed_prompt_is_refused_with_its_token_offset)
{
    refused((const uint32_t[]){1, 2, 3}, 3, 8, "no separator in 3 tokens");
    refused((const uint32_t[]){1, 2, 7}, 3, 8, "no separator");
    refused(NULL, 0, 8, "no separator");
    refused((const uint32_t[]){7, 8, 1}, 3, 8,
            "empty chunk: nothing before the separator at token 0");
    refused((const uint32_t[]){1, 7, 8, 7, 8, 1}, 6, 8, "separator at token 3");
    refused((const uint32_t[]){1, 7, 8}, 3, 8, "no question after the last separator, at token 3");
    refused((const uint32_t[]){1, 7, 8, 1, 7, 8}, 6, 8, "at token 6");
    refused((const uint32_t[]){1, 7, 8, 1, 7, 8, 2}, 7, 2,
            "more than 2 chunks: the question at token 6");
    refused((const uint32_t[]){1, 7, 8, 1, 7, 8, 2}, 7, 1,
            "more than 1 chunks: one more at token 3");
    refused((const uint32_t[]){1, 7, 8, 1, 7, 8, 2}, 7, 0,
            "more than 0 chunks: one more at token 0");
}

TEST(bad_separators_are_refused_by_the_number_of_their_spelling)
{
    const uint32_t tokens[200] = {1};
    const uint32_t lengths[TSRI_SEPARATORS_MAX + 1] = {1, 0};
    const uint32_t too_long[] = {1, 2, TSRI_SEPARATOR_TOKENS_MAX + 1};
    struct tsri_separators *s;
    CHECK_INT(tsri_separators_open(&s, tokens, lengths, 0), TSR_EINVAL);
    CHECK(s == NULL);
    CHECK_INT(tsri_separators_open(&s, tokens, lengths, TSRI_SEPARATORS_MAX + 1), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "17 spellings");
    CHECK_INT(tsri_separators_open(&s, tokens, lengths, 2), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "spelling 1 has 0 tokens");
    CHECK_INT(tsri_separators_open(&s, tokens, too_long, 3), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "spelling 2 has 65 tokens");
    CHECK_INT(tsri_separators_open(&s, NULL, lengths, 1), TSR_EINVAL);
    CHECK_INT(tsri_separators_open(&s, tokens, NULL, 1), TSR_EINVAL);
}

TEST(separators_up_to_the_limits_work)
{
    enum { N = TSRI_SEPARATORS_MAX, LONG = TSRI_SEPARATOR_TOKENS_MAX };
    static uint32_t tokens[N * LONG], lengths[N], prompt[N * (LONG + 1) + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < N; i++) {
        lengths[i] = LONG;
        for (uint32_t j = 0; j < LONG; j++)
            tokens[i * LONG + j] = 100 * i + j;
        prompt[n++] = 99;
        memcpy(prompt + n, tokens + i * LONG, LONG * sizeof *tokens);
        n += LONG;
    }
    prompt[n++] = 99;
    struct tsr_range r[N + 1];
    struct tsri_separators *s = separators(tokens, lengths, N);
    CHECK_INT(tsri_split(s, prompt, n, r, N + 1), N + 1);
    for (uint32_t i = 0; i < N; i++)
        check_range(r[i], i * (LONG + 1), LONG + 1);
    tsri_separators_close(s);
}

TEST(token_ids_of_all_32_bits_are_told_apart)
{
    const uint32_t tokens[] = {0, UINT32_MAX, 0x80000000u}, lengths[] = {1, 1, 1};
    const uint32_t prompt[] = {1, 0, 1, UINT32_MAX, 1, 0x80000000u, 0x7fffffffu};
    struct tsri_separators *s = separators(tokens, lengths, 3);
    struct tsr_range r[4];
    CHECK_INT(tsri_split(s, prompt, 7, r, 4), 4);
    check_range(r[3], 6, 1);
    tsri_separators_close(s);
}

/* ---- against a reference ---- */

static uint32_t below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(test_rand(seed) >> 16) % n;
}

/* One random case; returns whether it could be split. */
static bool same_as_naive(uint64_t *seed, uint32_t alphabet, uint32_t length_max, uint32_t n_max)
{
    static uint32_t prompt[2048];
    static struct tsr_range got[RANGES_MAX], want[RANGES_MAX];
    struct naive_spellings p = {.n = 1 + below(seed, 4)};
    uint32_t total = 0;
    for (uint32_t i = 0; i < p.n; i++) {
        p.lengths[i] = 1 + below(seed, length_max);
        for (uint32_t j = 0; j < p.lengths[i]; j++)
            p.tokens[total++] = below(seed, alphabet);
    }
    uint32_t n = below(seed, n_max + 1);
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = below(seed, alphabet);
    uint32_t ranges_max = below(seed, 8) ? RANGES_MAX : below(seed, 6);
    struct tsri_separators *s = separators(p.tokens, p.lengths, p.n);
    int a = tsri_split(s, prompt, n, got, ranges_max);
    int b = naive_split(&p, prompt, n, want, ranges_max);
    tsri_separators_close(s);
    CHECK_INT(a, b);
    if (a > 0) CHECK(memcmp(got, want, (size_t)a * sizeof *got) == 0);
    return a > 0;
}

TEST(random_prompts_are_cut_as_the_naive_reference_cuts_them)
{
    uint64_t seed = 20240607;
    int n_split = 0;
    for (int i = 0; i < 40000; i++)
        n_split += same_as_naive(&seed, 2 + below(&seed, 6), 4, 40);
    CHECK(n_split > 2000); /* enough of them were well-formed to mean something */
}

TEST(long_prompts_with_common_first_tokens_are_cut_as_the_reference_cuts_them)
{
    uint64_t seed = 99;
    int n_split = 0;
    for (int i = 0; i < 3000; i++)
        n_split += same_as_naive(&seed, 3 + below(&seed, 10), 4, 2048);
    for (int i = 0; i < 1000; i++)
        n_split += same_as_naive(&seed, 200, 2, 2048);
    CHECK(n_split > 100);
}

TEST(a_prompt_of_nearly_separators_is_cut_only_at_the_whole_ones)
{
    /* Every other token begins a separator, so that the search turns to pairs; two are whole. */
    enum { N = 5000 };
    static uint32_t prompt[N];
    for (uint32_t i = 0; i < N; i++)
        prompt[i] = i % 2 ? 1 : 7;
    prompt[1001] = 8;
    prompt[N - 3] = 8;
    struct tsri_separators *s = seven_eight();
    struct tsr_range r[3];
    CHECK_INT(tsri_split(s, prompt, N, r, 3), 3);
    check_range(r[0], 0, 1002);
    check_range(r[1], 1002, N - 2 - 1002);
    check_range(r[2], N - 2, 2);
    tsri_separators_close(s);
}

TEST(a_separator_is_found_at_every_place_near_the_end)
{
    for (uint32_t common = 0; common < 2; common++)
        for (uint32_t n = 4; n < 100; n++)
            for (uint32_t at = 1; at + 2 < n; at++) {
                uint32_t prompt[200];
                uint32_t lead = common ? 100 : 0; /* misses enough to turn to pairs */
                for (uint32_t i = 0; i < lead + n; i++)
                    prompt[i] = common && i < lead ? 7 : 1;
                prompt[lead + at] = 7, prompt[lead + at + 1] = 8;
                struct tsr_range r[2];
                struct tsri_separators *s = seven_eight();
                CHECK_INT(tsri_split(s, prompt, lead + n, r, 2), 2);
                check_range(r[0], 0, lead + at + 2);
                tsri_separators_close(s);
            }
}

TEST(blocks_are_counted_whole_and_the_last_partial_one_if_asked)
{
    CHECK_INT(tsri_block_count(0, 256, false), 0);
    CHECK_INT(tsri_block_count(0, 256, true), 0);
    CHECK_INT(tsri_block_count(255, 256, false), 0);
    CHECK_INT(tsri_block_count(255, 256, true), 1);
    CHECK_INT(tsri_block_count(256, 256, true), 1);
    CHECK_INT(tsri_block_count(257, 256, false), 1);
    CHECK_INT(tsri_block_count(257, 256, true), 2);
    CHECK_INT(tsri_block_count(UINT32_MAX, 1, true), UINT32_MAX);
    CHECK_INT(tsri_block_count(UINT32_MAX, 2, true), 1u << 31);
}

int main(void)
{
    RUN(a_separator_belongs_to_the_chunk_before_it_and_the_rest_is_the_question);
    RUN(half_a_separator_is_text);
    RUN(where_spellings_overlap_the_leftmost_wins_then_the_longest);
    RUN(a_malformed_prompt_is_refused_with_its_token_offset);
    RUN(bad_separators_are_refused_by_the_number_of_their_spelling);
    RUN(separators_up_to_the_limits_work);
    RUN(token_ids_of_all_32_bits_are_told_apart);
    RUN(random_prompts_are_cut_as_the_naive_reference_cuts_them);
    RUN(long_prompts_with_common_first_tokens_are_cut_as_the_reference_cuts_them);
    RUN(a_prompt_of_nearly_separators_is_cut_only_at_the_whole_ones);
    RUN(a_separator_is_found_at_every_place_near_the_end);
    RUN(blocks_are_counted_whole_and_the_last_partial_one_if_asked);
    return test_end();
}
