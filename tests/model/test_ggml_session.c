/* Passes over KV memory: the results are libllama's, and do not depend on how a prompt is cut. What
 * every executor promises is in test_contract.c. */
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

int main(void)
{
    RUN(logits_are_those_of_libllama_for_every_architecture);
    RUN(logits_are_those_of_libllama_for_every_kind_of_weights);
    RUN(logits_are_those_of_libllama_for_every_kind_of_rope);
    RUN(logits_of_a_real_model_are_those_of_libllama);
    RUN(kv_in_other_dtypes_differs_by_rounding_only);
    RUN(a_prompt_in_two_passes_gives_the_same_bits_as_in_one);
    return test_end();
}
#else
#include "model/absent.h"
#endif
