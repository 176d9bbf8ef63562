/* Documents behind a primer, by the executor on ggml, in prompts of several of its batches: what
 * they see is the primer, whatever was in its slots before. */
#ifdef TSRI_HAVE_LLAMA
#include "model/gguf_kit.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <tessera/blend.h>

#include <math.h>

extern const struct tsr_executor_ops tsr_executor;

enum { SYSTEM = 90, DOCS = 7, DOC = 130, QUESTION = 10, TOKENS = SYSTEM + DOCS * DOC + QUESTION };

static struct tsr_model *model;
static struct tsr_model_info info = {.size = sizeof info};
static struct tsr_session *session;
static uint32_t tokens[TOKENS];
static struct tsr_range segments[1 + DOCS];

static void make_prompt(uint64_t seed)
{
    segments[0] = (struct tsr_range){0, SYSTEM};
    for (uint32_t i = 0; i < DOCS; i++)
        segments[1 + i] = (struct tsr_range){SYSTEM + i * DOC, DOC};
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = 3 + (uint32_t)(test_rand(&seed) % (info.n_vocab - 3));
}

/* Fills the documents, without a cache; the report. */
static struct tsr_blend_report fill(uint32_t context, const uint32_t *primer, uint32_t n_primer)
{
    struct tsr_profile profile = {.size = sizeof profile};
    struct tsr_blend_report report = {.size = sizeof report};
    static float logits[KIT_VOCAB];
    struct tsr_blend *blend;
    tsr_profile_init(&profile);
    profile.context = context;
    strcpy(profile.primer, "ab cd");
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .model = model,
                                    .profile = &profile,
                                    .blend_min_tokens = UINT32_MAX,
                                    .primer = primer,
                                    .n_primer = n_primer};
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .session = session,
                               .tokens = tokens,
                               .n_tokens = TOKENS,
                               .segments = segments,
                               .n_segments = 1 + DOCS,
                               .system = 1,
                               .selector = TSR_SELECT_NONE,
                               .flags = TSR_ASK_FILL};
    CHECK_INT(tsr_blend_open(&blend, &config), 0);
    CHECK_INT(tsr_blend_ask(blend, &ask, logits, &report), 0);
    tsr_blend_close(blend);
    return report;
}

/* K and V of the documents, all layers, as floats. */
static float *image(size_t *n)
{
    const struct tsr_kv_layout *l = tsr_session_layout(session);
    size_t row = (size_t)info.n_kv_heads * info.head_dim, at = 0;
    *n = 2 * (size_t)info.n_layers * DOCS * DOC * row;
    float *out = malloc(*n * sizeof *out);
    for (uint32_t i = 0; i < 2 * info.n_layers; i++) {
        const struct tsr_kv_plane *p = &l->planes[i % 2];
        const uint8_t *base = p->layers ? (const uint8_t *)p->layers[i / 2]
                                        : (const uint8_t *)p->base + i / 2 * p->layer_stride;
        for (uint32_t t = SYSTEM; t < SYSTEM + DOCS * DOC; t++, at += row)
            memcpy(out + at, base + t * p->token_stride, row * sizeof *out);
    }
    return out;
}

static double largest_difference(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

TEST(a_primer_that_is_the_system_prompt_gives_the_documents_of_context_same)
{
    size_t n;
    make_prompt(1);
    CHECK_INT(fill(TSR_CONTEXT_SAME, NULL, 0).n_exact, SYSTEM + DOC);
    float *want = image(&n);
    struct tsr_blend_report report = fill(TSR_CONTEXT_PRIMER, tokens, SYSTEM);
    CHECK_INT(report.n_exact, SYSTEM);
    CHECK_INT(report.n_reused, DOCS * DOC);
    float *got = image(&n);
    double apart = largest_difference(want, got, n);
    printf("    largest difference %.2g\n", apart);
    CHECK(apart < 1e-3); /* summed in another order */
    free(want), free(got);
}

TEST(what_was_in_the_slots_of_the_primer_does_not_matter)
{
    size_t n;
    uint32_t primer[SYSTEM];
    make_prompt(2);
    memcpy(primer, tokens, sizeof primer);
    make_prompt(3);
    (void)fill(TSR_CONTEXT_PRIMER, primer, SYSTEM);
    float *want = image(&n);
    (void)fill(TSR_CONTEXT_PRIMER, tokens, SYSTEM); /* another one in the same slots */
    float *other = image(&n);
    (void)fill(TSR_CONTEXT_PRIMER, primer, SYSTEM);
    float *got = image(&n);
    CHECK(memcmp(want, got, n * sizeof *got) == 0);
    CHECK(largest_difference(want, other, n) > 0.01);
    free(want), free(other), free(got);
}

TEST(the_text_of_the_profile_follows_the_opening_of_a_chat)
{
    const struct tsr_chat_message chat[] = {{"system", "You are a helpful assistant."},
                                            {"user", "\x01"}};
    char opening[4096];
    uint32_t given[512];
    size_t n;
    make_prompt(4);
    (void)fill(TSR_CONTEXT_PRIMER, NULL, 0);
    float *text = image(&n);
    int bytes = tsr_model_chat(model, chat, 2, opening, sizeof opening - 1);
    CHECK(bytes > 0 && bytes < (int)sizeof opening);
    opening[bytes] = 0;
    *strchr(opening, '\x01') = 0;
    int n_open = tsr_model_tokenize(model, opening, strlen(opening),
                                    TSR_TEXT_START | TSR_TEXT_SPECIAL, given, 256);
    CHECK(n_open > 0 && n_open < 256);
    int n_text = tsr_model_tokenize(model, "ab cd", 5, 0, given + n_open, 256);
    CHECK(n_text > 0 && n_open + n_text <= SYSTEM);
    (void)fill(TSR_CONTEXT_PRIMER, given, (uint32_t)(n_open + n_text));
    float *same = image(&n);
    CHECK(memcmp(text, same, n * sizeof *text) == 0);
    free(text), free(same);
}

int main(void)
{
    struct tmpdir dir;
    char path[sizeof dir.path + 16];
    tmpdir_init_fast(&dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir.path);
    CHECK(kit_write(path, &(struct kit_model){.arch = "llama"}));
    struct tsr_model_desc config = {
        .size = sizeof config, .path = path, .n_threads = 1, .kv_dtype = TSR_DTYPE_F32};
    CHECK_INT(tsr_model_open(&model, &tsr_executor, &config), 0);
    CHECK_INT(tsr_model_info(model, &info), 0);
    CHECK_INT(tsr_session_open(&session, model, TOKENS + SYSTEM), 0);
    RUN(a_primer_that_is_the_system_prompt_gives_the_documents_of_context_same);
    RUN(what_was_in_the_slots_of_the_primer_does_not_matter);
    RUN(the_text_of_the_profile_follows_the_opening_of_a_chat);
    tsr_session_close(session);
    tsr_model_close(model);
    tmpdir_fini(&dir);
    return test_end();
}
#else
#include "model/absent.h"
#endif
