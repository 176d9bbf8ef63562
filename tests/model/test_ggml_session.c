/* Passes over KV memory: the results are libllama's, and do not depend on how a prompt is cut. */
#ifdef TSRI_HAVE_LLAMA
#include "model/session_kit.h"

#include <math.h>

enum { N = 700, LAST = 24 };
static uint32_t tokens[2048];
static float ours[LAST * 65536], theirs[LAST * 65536];

/* The bounds: 1e-3 in any logit, 1e-6 in KL. */
static void check_like_llama(struct kit *k, const struct kit_reference *how, uint32_t n)
{
    kit_tokens(tokens, n, k->info.n_vocab);
    CHECK(k->info.n_vocab <= 65536);
    CHECK(kit_llama_logits(k->path, how, tokens, n, LAST, theirs));
    kit_prefill(k, tokens, 0, n, LAST, ours);
    double max = kit_max_difference(ours, theirs, (size_t)LAST * k->info.n_vocab);
    double kl = kit_kl(theirs, ours, LAST, k->info.n_vocab);
    if (max > 1e-3 || fabs(kl) > 1e-6) printf("    max difference %g, KL %g\n", max, kl);
    CHECK(max <= 1e-3);
    CHECK(fabs(kl) <= 1e-6);
}

TEST(logits_are_those_of_libllama_for_every_architecture)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (int i = 0; i < 6; i++) {
        struct kit_model m = {
            .arch = archs[i % 3], .tied = i >= 3, .head_dim = i < 3 || i == 4 ? 32 : 64};
        struct kit_reference how = {0};
        struct kit k;
        kit_open(&k, &m, TSR_DTYPE_F16, N);
        check_like_llama(&k, &how, N);
        kit_close(&k);
    }
}

TEST(logits_are_those_of_libllama_for_every_kind_of_weights)
{
    static const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct kit_model m = {.arch = "qwen3", .type = types[i]};
        struct kit_reference how = {0};
        struct kit k;
        kit_open(&k, &m, 0, N);
        check_like_llama(&k, &how, N);
        kit_close(&k);
    }
}

TEST(logits_are_those_of_libllama_for_every_kind_of_rope)
{
    for (int i = KIT_LINEAR; i <= KIT_LONGROPE; i++) {
        struct kit_model m = {.rope = (enum kit_rope)i};
        struct kit_reference how = {.n_ctx = 2048}; /* all of it: LongRoPE's long factors */
        struct kit k;
        kit_open(&k, &m, 0, N);
        check_like_llama(&k, &how, N);
        kit_close(&k);
    }
}

TEST(logits_of_a_real_model_are_those_of_libllama)
{
    const char *path = kit_smollm();
    if (!path) SKIP("SmolLM2 is not installed: tools/setup --model");
    struct kit k = {0};
    struct kit_reference how = {0};
    snprintf(k.path, sizeof k.path, "%s", path);
    kit_open_file(&k, path, 0, N, NULL);
    check_like_llama(&k, &how, 300);
    kit_close(&k);
}

/* libllama rounds K and V to 16 bits before attention whatever its cache holds. */
TEST(kv_in_other_dtypes_differs_by_rounding_only)
{
    static const uint32_t dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        struct kit_model m = {.arch = "qwen2"};
        struct kit_reference how = {0};
        struct kit k;
        kit_open(&k, &m, dtypes[i], N);
        kit_tokens(tokens, N, k.info.n_vocab);
        CHECK(kit_llama_logits(k.path, &how, tokens, N, LAST, theirs));
        kit_prefill(&k, tokens, 0, N, LAST, ours);
        CHECK(fabs(kit_kl(theirs, ours, LAST, k.info.n_vocab)) < (i ? 1e-3 : 1e-5));
        kit_close(&k);
    }
}

/* ---- how a prompt is cut does not matter ---- */

static void check_cut(const struct kit_model *m, uint32_t dtype, uint32_t cut)
{
    struct kit k, parts;
    kit_open(&k, m, dtype, N);
    kit_tokens(tokens, N, k.info.n_vocab);
    kit_prefill(&k, tokens, 0, N, LAST, theirs);
    kit_open(&parts, m, dtype, N);
    kit_prefill(&parts, tokens, 0, cut, 0, NULL);
    kit_prefill(&parts, tokens, cut, N - cut, LAST, ours);
    CHECK(memcmp(ours, theirs, sizeof *ours * LAST * k.info.n_vocab) == 0);
    for (uint32_t l = 0; l < k.info.n_layers; l++)
        for (uint32_t s = 0; s < N; s++)
            for (int plane = 0; plane < 2; plane++)
                CHECK(memcmp(kit_row(&k, plane, l, s), kit_row(&parts, plane, l, s),
                             kit_row_bytes(&k)) == 0);
    kit_close(&k);
    kit_close(&parts);
}

TEST(a_prompt_in_two_passes_gives_the_same_bits_as_in_one)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    static const uint32_t dtypes[] = {TSR_DTYPE_F16, TSR_DTYPE_F32, TSR_DTYPE_BF16};
    for (int i = 0; i < 9; i++) {
        struct kit_model m = {.arch = archs[i % 3], .type = i < 3 ? GGML_TYPE_Q4_1 : GGML_TYPE_F32};
        check_cut(&m, dtypes[i / 3], i % 2 ? 256 : 640);
    }
    struct kit_model q8 = {.type = GGML_TYPE_Q8_0}, f16 = {.type = GGML_TYPE_F16};
    check_cut(&q8, 0, 512);
    check_cut(&f16, 0, 664);
}

TEST(one_token_at_a_time_is_close_to_all_at_once)
{
    struct kit_model m = {.arch = "qwen2"};
    struct kit k;
    kit_open(&k, &m, TSR_DTYPE_F32, N);
    kit_tokens(tokens, N, k.info.n_vocab);
    kit_prefill(&k, tokens, 0, N, 20, theirs);
    kit_prefill(&k, tokens, 0, N - 20, 0, NULL);
    for (uint32_t i = 0; i < 20; i++)
        kit_prefill(&k, tokens, N - 20 + i, 1, 1, ours + i * k.info.n_vocab);
    CHECK(kit_max_difference(ours, theirs, (size_t)20 * k.info.n_vocab) < 1e-3);
    kit_close(&k);
}

/* ---- visibility ---- */

TEST(groups_see_only_their_ranges)
{
    enum { A = 100, B = 150, Q = 30 };
    struct kit_model m = {0};
    struct kit k, alone;
    struct tsr_model_row rows[A + B + Q];
    kit_open(&k, &m, 0, A + B + Q);
    kit_open(&alone, &m, 0, B);
    kit_tokens(tokens, A + B + Q, k.info.n_vocab);
    for (uint32_t i = 0; i < A + B + Q; i++)
        rows[i] = (struct tsr_model_row){tokens[i], i >= A && i < A + B ? i - A : i, i};
    /* A for itself, B for itself at position 0, the question over both */
    struct tsr_model_group groups[] = {
        {A, 1, {{0, A}}}, {B, 1, {{A, B}}}, {Q, 2, {{0, A}, {A, B + Q}}}};
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = rows, .n_rows = A + B + Q, .n_groups = 3, .groups = groups};
    CHECK_INT(tsr_executor.begin(k.s, &pass), 0);
    kit_layers(&k, NULL, 0);
    tsr_executor.end(k.s);
    kit_prefill(&alone, tokens + A, 0, B, 0, NULL);
    double max = 0;
    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t s = 0; s < B; s++) {
            float a[64], b[64];
            ggml_fp16_to_fp32_row((ggml_fp16_t *)(void *)kit_row(&k, 0, l, A + s), a, 64);
            ggml_fp16_to_fp32_row((ggml_fp16_t *)(void *)kit_row(&alone, 0, l, s), b, 64);
            max = fmax(max, kit_max_difference(a, b, 64));
        }
    /* Other positions of the keys in memory: other tiles, other rounding, nothing more. */
    CHECK(max < 0.02);
    kit_close(&k);
    kit_close(&alone);
}

TEST(recomputing_some_rows_over_their_own_kv_changes_nothing_but_rounding)
{
    struct kit_model m = {.arch = "qwen3"};
    struct kit k;
    uint32_t n = 300, last = 99;
    struct tsr_model_row rows[100];
    kit_open(&k, &m, TSR_DTYPE_F32, n);
    kit_tokens(tokens, n, k.info.n_vocab);
    kit_prefill(&k, tokens, 0, n, 1, theirs);
    for (uint32_t i = 0; i < 100; i++)
        rows[i] = (struct tsr_model_row){tokens[3 * i + 2], 3 * i + 2, 3 * i + 2};
    struct tsr_model_group group = {100, 1, {{0, n}}};
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = rows, .n_rows = 100, .n_groups = 1, .groups = &group};
    CHECK_INT(tsr_executor.begin(k.s, &pass), 0);
    kit_layers(&k, NULL, 0);
    CHECK_INT(tsr_executor.logits(k.s, &last, 1, ours), 0);
    tsr_executor.end(k.s);
    CHECK(memcmp(ours, theirs, sizeof *ours * k.info.n_vocab) == 0);
    kit_close(&k);
}

/* ---- attention ---- */

TEST(attention_of_a_row_adds_up_to_one_and_a_bias_moves_it)
{
    enum { ROWS = 300, ASKED = 40 };
    struct kit_model m = {0};
    struct kit k;
    struct tsr_model_row rows[ROWS];
    static float mass[2][ROWS], bias[ROWS / 2];
    kit_open(&k, &m, 0, ROWS);
    kit_tokens(tokens, ROWS, k.info.n_vocab);
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (struct tsr_model_row){tokens[i], i, i};
    for (uint32_t i = 0; i < ROWS / 2; i++)
        bias[i] = -2;
    struct tsr_model_group group = {ROWS, 1, {{0, ROWS}}};
    for (int biased = 0; biased < 2; biased++) {
        struct tsr_model_pass pass = {.size = sizeof pass,
                                      .rows = rows,
                                      .n_rows = ROWS,
                                      .n_groups = 1,
                                      .groups = &group,
                                      .n_mass_rows = ASKED,
                                      .bias = biased ? bias : NULL,
                                      .n_bias = biased ? ROWS / 2 : 0,
                                      .n_bias_rows = biased ? ASKED : 0};
        CHECK_INT(tsr_executor.begin(k.s, &pass), 0);
        kit_layers(&k, mass[biased], ROWS);
        tsr_executor.end(k.s);
        double sum = 0;
        for (int i = 0; i < ROWS; i++) {
            CHECK(mass[biased][i] >= 0);
            sum += (double)mass[biased][i];
        }
        CHECK(fabs(sum - 3.0 * ASKED) < 1e-2); /* over three layers */
    }
    double before = 0, after = 0;
    for (int i = 0; i < ROWS / 2; i++) {
        before += (double)mass[0][i];
        after += (double)mass[1][i];
    }
    CHECK(after < 0.5 * before);
    kit_close(&k);
}

TEST(deviation_is_zero_where_kv_is_what_it_would_be_and_narrow_keeps_rows)
{
    enum { ROWS = 200 };
    struct kit_model m = {.arch = "qwen2"};
    struct kit k;
    struct tsr_model_row rows[ROWS];
    static float dk[ROWS], dv[ROWS];
    uint32_t keep[60], last = 59;
    kit_open(&k, &m, 0, ROWS);
    kit_tokens(tokens, ROWS, k.info.n_vocab);
    kit_prefill(&k, tokens, 0, ROWS, 1, theirs);
    memset(kit_row(&k, 0, 1, 77), 0, kit_row_bytes(&k)); /* spoil one K of layer 1 */
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (struct tsr_model_row){tokens[i], i, i};
    struct tsr_model_group group = {ROWS, 1, {{0, ROWS}}};
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = rows, .n_rows = ROWS, .n_groups = 1, .groups = &group};
    struct tsr_model_layer layer = {.size = sizeof layer};
    struct tsr_model_deviation deviation = {.size = sizeof deviation, .layer = 1, .k = dk, .v = dv};
    CHECK_INT(tsr_executor.begin(k.s, &pass), 0);
    CHECK_INT(tsr_executor.layer(k.s, &layer), 0);
    CHECK_INT(tsr_executor.deviation(k.s, &deviation), 0);
    for (uint32_t i = 0; i < ROWS; i++) {
        CHECK((dk[i] != 0) == (i == 77));
        CHECK(dv[i] == 0);
    }
    for (uint32_t i = 0; i < 60; i++)
        keep[i] = i < 59 ? 30 + i : ROWS - 1; /* with 77, and the last */
    CHECK_INT(tsr_executor.narrow(k.s, keep, 60), 0);
    for (layer.layer = 1; layer.layer < 3; layer.layer++)
        CHECK_INT(tsr_executor.layer(k.s, &layer), 0);
    CHECK_INT(tsr_executor.logits(k.s, &last, 1, ours), 0);
    tsr_executor.end(k.s);
    CHECK(kit_max_difference(ours, theirs, k.info.n_vocab) < 1e-3);
    kit_close(&k);
}

int main(void)
{
    RUN(logits_are_those_of_libllama_for_every_architecture);
    RUN(logits_are_those_of_libllama_for_every_kind_of_weights);
    RUN(logits_are_those_of_libllama_for_every_kind_of_rope);
    RUN(logits_of_a_real_model_are_those_of_libllama);
    RUN(kv_in_other_dtypes_differs_by_rounding_only);
    RUN(a_prompt_in_two_passes_gives_the_same_bits_as_in_one);
    RUN(one_token_at_a_time_is_close_to_all_at_once);
    RUN(groups_see_only_their_ranges);
    RUN(recomputing_some_rows_over_their_own_kv_changes_nothing_but_rounding);
    RUN(attention_of_a_row_adds_up_to_one_and_a_bias_moves_it);
    RUN(deviation_is_zero_where_kv_is_what_it_would_be_and_narrow_keeps_rows);
    return test_end();
}
#else
#include "model/absent.h"
#endif
