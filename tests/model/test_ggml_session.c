/* Passes over KV memory: the results are libllama's, or on tiles nearer to the model than those, and do
 * not depend on how a prompt is cut. What every executor promises is in test_contract.c. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "model/session_kit.h"

#include <math.h>

enum { N = 700, LAST = 24 };
#ifndef TILES_ALONE /* tests/faketiles: without what has no part in tiles */
#define TILES_ALONE 0
#endif
static uint32_t tokens[2048];
static float ours[LAST * 65536], theirs[LAST * 65536];

/* Of executors that are opened from now on. */
static void use_tiles(bool yes)
{
    setenv("TESSERA_TILES", yes ? "1" : "0", 1);
}

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
        use_tiles(false);
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
        use_tiles(false);
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
    use_tiles(false);
    kit_open_file(&k, path, 0, N, NULL);
    check_like_llama(&k, &how, 300);
    kit_close(&k);
}

/* ---- on tiles ---- */

/* From the same model in floats. ggml rounds rows to 8 bits below the greatest of 32 values, tiles
 * round each value to 8 bits of its own; less than half of ggml's distance is far from chance. */
static void check_nearer(struct kit *k, const struct kit_reference *how, uint32_t n)
{
    static float exact[LAST * 65536];
    struct tmpdir dir;
    char wide[600];
    tmpdir_init_fast(&dir);
    snprintf(wide, sizeof wide, "%s/wide.gguf", dir.path);
    CHECK(kit_widen(k->path, wide));
    kit_tokens(tokens, n, k->info.n_vocab);
    CHECK(kit_llama_logits(wide, how, tokens, n, LAST, exact));
    CHECK(kit_llama_logits(k->path, how, tokens, n, LAST, theirs));
    kit_prefill(k, tokens, 0, n, LAST, ours);
    double far = kit_kl(exact, theirs, LAST, k->info.n_vocab);
    double near = kit_kl(exact, ours, LAST, k->info.n_vocab);
    if (near > far / 2) printf("    KL to the model: libllama %g, ours %g\n", far, near);
    CHECK(near <= far / 2);
    tmpdir_fini(&dir);
}

TEST(prompts_on_tiles_are_nearer_to_the_model_than_libllama)
{
    static const enum ggml_type types[] = {GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1};
    if (!tsri_tiles_here()) SKIP("this processor has no AMX");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct kit_model m = {.arch = "qwen3", .type = types[i]};
        struct kit_reference how = {0};
        struct kit k;
        use_tiles(true);
        kit_open(&k, &m, TSR_DTYPE_F16, N);
        CHECK_STR(k.info.arithmetic, TSRI_TILES_BITS);
        check_nearer(&k, &how, N);
        kit_close(&k);
    }
}

TEST(a_real_model_on_tiles_is_nearer_than_libllama)
{
    const char *path = kit_smollm();
    if (!tsri_tiles_here()) SKIP("this processor has no AMX");
    if (!path) SKIP("SmolLM2 is not installed: tools/setup --model");
    struct kit k = {0};
    struct kit_reference how = {0};
    snprintf(k.path, sizeof k.path, "%s", path);
    use_tiles(true);
    kit_open_file(&k, path, 0, N, NULL);
    check_nearer(&k, &how, 300);
    kit_close(&k);
}

TEST(without_tiles_nothing_is_said_of_them)
{
    struct kit_model m = {.type = GGML_TYPE_Q8_0};
    struct kit k;
    use_tiles(false);
    kit_open(&k, &m, 0, 64);
    CHECK_STR(k.info.arithmetic, "");
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

/* Rows of `parts` have the bits of `whole`, in K and V of every layer. */
static bool same_kv(struct kit *whole, struct kit *parts, uint32_t n)
{
    for (uint32_t l = 0; l < whole->info.n_layers; l++)
        for (uint32_t s = 0; s < n; s++)
            for (int plane = 0; plane < 2; plane++)
                if (memcmp(kit_row(whole, plane, l, s), kit_row(parts, plane, l, s),
                           kit_row_bytes(whole)) != 0)
                    return false;
    return true;
}

struct cuts {
    struct kit_model model;
    uint32_t dtype, n_threads, n;
    const uint32_t *at;
    uint32_t n_cuts;
};

static void check_cuts_on(const struct cuts *c, bool tiles)
{
    struct kit k;
    use_tiles(tiles);
    kit_open_threads(&k, &c->model, c->dtype, c->n, c->n_threads);
    kit_tokens(tokens, c->n, k.info.n_vocab);
    kit_prefill(&k, tokens, 0, c->n, 1, theirs);
    for (uint32_t i = 0; i < c->n_cuts; i++) {
        struct kit parts = k;
        CHECK_INT(tsr_executor.session_open(parts.x, &parts.s, c->n), 0);
        kit_prefill(&parts, tokens, 0, c->at[i], 0, NULL);
        kit_prefill(&parts, tokens, c->at[i], c->n - c->at[i], 1, ours);
        bool kv = same_kv(&k, &parts, c->n);
        bool logits = memcmp(ours, theirs, sizeof *ours * k.info.n_vocab) == 0;
        if (!kv || !logits)
            printf("    %s, weights %s, KV %u, %u threads: cut at %u of %u, other%s%s\n",
                   k.info.architecture, ggml_type_name(c->model.type), c->dtype, c->n_threads,
                   c->at[i], c->n, kv ? "" : " KV", logits ? "" : " logits");
        CHECK(kv && logits);
        tsr_executor.session_close(parts.s);
    }
    kit_close(&k);
}

static void check_cuts(const struct cuts *c)
{
    if (!TILES_ALONE) check_cuts_on(c, false);
    if (tsri_tiles_here()) check_cuts_on(c, true);
}

static const uint32_t odd_cuts[] = {1, 2, 3, 7, 8, 9, 17, 31, 60, 63, 64, 65, 90, 113, 117, 119};
enum { N_ODD = sizeof odd_cuts / sizeof odd_cuts[0] };

/* What people have: every kind of weights, over every kind of KV. Kinds of processors have kernels
 * of their own for pairs of rows, for fours, and for a row alone, and they round differently. */
TEST(a_prompt_in_two_passes_gives_the_same_bits_as_in_one)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    static const uint32_t dtypes[] = {TSR_DTYPE_F16, TSR_DTYPE_F32, TSR_DTYPE_BF16};
    static const enum ggml_type types[] = {
        GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
        GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_K, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
    enum { TYPES = sizeof types / sizeof types[0] };
    for (int i = 0; i < 3 * TYPES; i++) {
        bool most = i / 3 % 3 == i % 3;
        struct cuts c = {.model = {.arch = archs[(i + i / 3) % 3],
                                   .type = types[i / 3],
                                   .n_layers = 2,
                                   .n_embd = 256,
                                   .tied = i % 2},
                         .dtype = dtypes[i % 3],
                         .n_threads = 1,
                         .n = 120,
                         .at = most ? odd_cuts : odd_cuts + 3 * (i % 3),
                         .n_cuts = most ? N_ODD : 3};
        check_cuts(&c);
    }
}

/* ggml deals a matrix out to its threads, and their number decides which rows are a pair. */
TEST(a_prompt_in_two_passes_gives_the_same_bits_with_any_number_of_threads)
{
    static const uint32_t at[] = {1, 9, 60, 75, 90, 112};
    for (uint32_t n_threads = 2; n_threads <= 7; n_threads++) {
        struct cuts c = {
            .model = {.type = n_threads % 2 ? GGML_TYPE_Q4_1 : GGML_TYPE_Q8_0, .n_layers = 2},
            .n_threads = n_threads,
            .n = 120,
            .at = at,
            .n_cuts = sizeof at / sizeof at[0]};
        check_cuts(&c);
    }
}

/* More than one batch, and more keys than ggml computes in one go. */
TEST(a_long_prompt_in_two_passes_gives_the_same_bits_as_in_one)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    static const uint32_t at[] = {256, 640, 664, 699};
    for (int i = 0; i < 3; i++) {
        struct cuts c = {.model = {.arch = archs[i], .type = GGML_TYPE_Q4_1},
                         .n_threads = 1,
                         .n = N,
                         .at = at,
                         .n_cuts = 4};
        check_cuts(&c);
    }
}

static void run_without_tiles(void)
{
    RUN(logits_are_those_of_libllama_for_every_architecture);
    RUN(logits_are_those_of_libllama_for_every_kind_of_weights);
    RUN(logits_are_those_of_libllama_for_every_kind_of_rope);
    RUN(logits_of_a_real_model_are_those_of_libllama);
    RUN(without_tiles_nothing_is_said_of_them);
    RUN(kv_in_other_dtypes_differs_by_rounding_only);
}

int main(void)
{
    if (!TILES_ALONE) run_without_tiles();
    RUN(prompts_on_tiles_are_nearer_to_the_model_than_libllama);
    RUN(a_real_model_on_tiles_is_nearer_than_libllama);
    RUN(a_prompt_in_two_passes_gives_the_same_bits_as_in_one);
    RUN(a_prompt_in_two_passes_gives_the_same_bits_with_any_number_of_threads);
    RUN(a_long_prompt_in_two_passes_gives_the_same_bits_as_in_one);
    return test_end();
}
#else
#include "model/absent.h"
#endif
