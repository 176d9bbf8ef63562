/* Engines with a compute of their own: a blend that knows its model by what is said of it, and runs
 * that end where the question begins. The tiny executor plays the engine: it takes the steps, then
 * computes the question as any engine would, and the answer is the one that the whole ask gives. */
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

static const char *const archs[] = {"llama", "qwen2", "qwen3"};
static const uint32_t docs[] = {70, 40, 66, 33};
static const uint32_t order[] = {2, 0, 3, 1};
#define CONTEXT (TSR_ASK_FILL | TSR_ASK_CONTEXT)

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, 128 * sizeof *a) == 0;
}

/* The engine's own part: rows of the question over what stands before them. */
static void answer(struct blend_kit *k, uint32_t first, float *logits)
{
    model_kit_prefill(&k->model, k->tokens, first, k->n_tokens - first, logits);
}

/* As an engine opens it, with info instead of a model. */
static void reopen_with_info(struct blend_kit *k)
{
    struct tsr_model_info info = k->model.info;
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .info = &info,
                                    .cache = k->cache.cache,
                                    .profile = &k->profile,
                                    .blend_min_tokens = UINT32_MAX};
    info.caps = TSR_MODEL_MASS | TSR_MODEL_DEVIATION;
    tsr_blend_close(k->blend);
    CHECK_INT(tsr_blend_open(&k->blend, &config), 0);
}

/* All steps over memory that is only described; returns how many there were, and rows that were
 * begun in *n_rows. */
static uint32_t drive(struct blend_kit *k, const struct tsr_ask_desc *asked, uint32_t *n_rows)
{
    struct tsr_kv_layout layout = *tsr_session_layout(k->model.session);
    struct tsr_ask_desc ask = *asked;
    struct tsr_run *run;
    struct tsr_blend_step step;
    uint32_t n = 0;
    int e, result = 0;
    ask.session = NULL;
    *n_rows = 0;
    k->report = (struct tsr_blend_report){.size = sizeof k->report};
    CHECK_INT(tsr_blend_start(&run, k->blend, &ask, &layout), 0);
    for (; (e = tsr_blend_next(run, result, &step)) > 0; n++) {
        if (step.kind == TSR_STEP_BEGIN) *n_rows += step.pass.n_rows;
        CHECK(step.kind != TSR_STEP_LOGITS); /* those are the engine's */
        result = tsri_blend_step(k->model.session, &step);
        CHECK_INT(result, 0);
    }
    CHECK_INT(e, 0);
    tsr_blend_end(run, NULL, &k->report);
    return n;
}

TEST(context_and_then_the_question_is_the_whole_answer)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++)
        for (uint32_t a = 0; a < 3; a++) {
            struct blend_kit k;
            float whole[128], mine[128];
            uint32_t n_rows;
            blend_kit_open(&k, archs[a], a ? TSR_DTYPE_F32 : TSR_DTYPE_F16, 0);
            for (uint32_t round = 0; round < 3; round++) {
                blend_kit_prompt(&k, selector, 24, docs, 4, round ? order : NULL);
                struct tsr_ask_desc ask = blend_kit_ask_of(&k, selector, 0.2, CONTEXT);
                reopen_with_info(&k);
                drive(&k, &ask, &n_rows);
                CHECK_INT(k.report.n_filled, round ? 0 : 24 + 209);
                CHECK_INT(k.report.n_tokens, 24 + 209);
                CHECK_INT(k.report.n_exact + k.report.n_reused + k.report.n_recomputed, 24 + 209);
                CHECK_INT(k.report.n_new, 0); /* the question is not ours */
                CHECK(k.report.bias == 0);
                answer(&k, 24 + 209, mine);
                blend_kit_reopen(&k);
                CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
                CHECK(same(mine, k.logits));
            }
            blend_kit_prefill(&k, whole);
            CHECK_INT(same(mine, whole), selector == TSR_SELECT_FULL);
            CHECK(blend_kit_close(&k));
        }
}

TEST(what_is_known_and_not_selected_needs_no_pass)
{
    for (uint32_t cold = 0; cold < 2; cold++) {
        struct blend_kit k;
        float mine[128];
        uint32_t n_rows;
        blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 2, 24, docs, 4, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        blend_kit_prompt(&k, 2, 24, docs, 4, order);
        if (cold) blend_kit_make_cold(&k);
        struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, CONTEXT);
        CHECK_INT(drive(&k, &ask, &n_rows), 0);
        CHECK_INT(k.report.n_reused + k.report.n_exact, 24 + 209);
        CHECK_INT(k.report.tier_tokens[cold], 24 + 209);
        answer(&k, 24 + 209, mine);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        CHECK(same(mine, k.logits));
        CHECK(blend_kit_close(&k));
    }
}

TEST(what_is_lost_without_a_pass_is_filled_or_computed)
{
    for (uint32_t fill = 0; fill < 2; fill++) {
        struct blend_kit k;
        float mine[128];
        uint32_t n_rows;
        blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 3, 24, docs, 4, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        blend_kit_make_cold(&k);
        fake_tier_fail(&k.tier, FAKE_GET, 1, 1000, TSR_EIO);
        struct tsr_ask_desc ask =
            blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, fill ? CONTEXT : (uint32_t)TSR_ASK_CONTEXT);
        drive(&k, &ask, &n_rows);
        CHECK(k.report.reasons & TSR_BLEND_FAULT);
        CHECK(k.report.n_failed > 0 && n_rows == k.report.n_failed);
        answer(&k, 24 + 209, mine);
        for (uint32_t i = 0; i < 128; i++)
            CHECK(isfinite(mine[i]));
        if (fill) { /* computed alone as the first time */
            blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
            CHECK(same(mine, k.logits));
        }
        CHECK(blend_kit_close(&k));
    }
}

TEST(hkvd_may_let_every_row_go)
{
    struct blend_kit k;
    float mine[128], none[128];
    uint32_t n_rows;
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    k.profile.n_checks = 1;
    k.profile.checks[0] = (struct tsr_check){.layer = 0};
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 4, 24, docs, 4, order);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    memcpy(none, k.logits, sizeof none);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_HKVD, 0.001, CONTEXT);
    drive(&k, &ask, &n_rows);
    CHECK(n_rows > 100);
    CHECK_INT(k.report.n_recomputed, 0);
    answer(&k, 24 + 209, mine);
    CHECK(same(mine, none)); /* layer 0 was compared, not run */
    CHECK(blend_kit_close(&k));
}

TEST(the_context_may_end_behind_the_last_segment)
{
    struct blend_kit k;
    float mine[128];
    uint32_t n_rows;
    blend_kit_open(&k, "qwen3", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 5, 24, docs, 4, order);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    for (uint32_t n_context = 24 + 209; n_context < k.n_tokens; n_context++) {
        struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, CONTEXT);
        ask.n_context = n_context;
        drive(&k, &ask, &n_rows);
        CHECK_INT(n_rows, n_context - 24 - 209);
        answer(&k, n_context, mine);
        CHECK(same(mine, k.logits));
    }
    CHECK(blend_kit_close(&k));
}

TEST(the_questions_rows_are_never_stored)
{
    struct blend_kit k;
    uint32_t n_rows;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 6, 0, docs, 4, NULL);
    struct tsr_ask_desc ask =
        blend_kit_ask_of(&k, TSR_SELECT_FULL, 1, TSR_ASK_CONTEXT | TSR_ASK_PREFIX);
    drive(&k, &ask, &n_rows);
    CHECK_INT(n_rows, 209);
    CHECK_INT(k.report.n_stored, 208); /* of 221 tokens, 209 of them context */
    CHECK(blend_kit_close(&k));
}

TEST(an_info_gives_the_space_of_its_model)
{
    struct blend_kit k;
    uint8_t model[16], info[16];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    tsr_space_fingerprint(tsr_blend_space(k.blend), model);
    reopen_with_info(&k);
    tsr_space_fingerprint(tsr_blend_space(k.blend), info);
    CHECK(memcmp(model, info, 16) == 0);
    CHECK(blend_kit_close(&k));
}

/* KV with other bits is not shared, but what was measured of the model serves both. */
TEST(another_arithmetic_is_another_space_of_the_same_model)
{
    struct blend_kit k;
    uint8_t space[2][16], model[2][16];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(k.model.info.arithmetic, sizeof k.model.info.arithmetic, "%s", i ? "other" : "");
        reopen_with_info(&k);
        tsr_space_fingerprint(tsr_blend_space(k.blend), space[i]);
        tsr_blend_model(k.blend, model[i]);
        tsri_hex(k.profile.space, model[i], sizeof model[i]); /* checked when it is opened again */
    }
    CHECK(memcmp(space[0], space[1], 16) != 0);
    CHECK(memcmp(model[0], model[1], 16) == 0);
    k.profile.space[0] ^= 1;
    struct tsr_blend *b;
    struct tsr_blend_desc desc = {
        .size = sizeof desc, .info = &k.model.info, .profile = &k.profile};
    CHECK_INT(tsr_blend_open(&b, &desc), TSR_ESPACE);
    CHECK(blend_kit_close(&k));
}

static int open_info(struct blend_kit *k, const struct tsr_model_info *info)
{
    struct tsr_blend *b;
    struct tsr_blend_desc config = {.size = sizeof config, .info = info, .model = NULL};
    (void)k;
    int e = tsr_blend_open(&b, &config);
    tsr_blend_close(b);
    return e;
}

TEST(what_makes_no_sense_is_refused)
{
    struct blend_kit k;
    struct tsr_run *run;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    struct tsr_model_info good = k.model.info, bad = good;
    CHECK_INT(open_info(&k, &good), 0);
    CHECK_INT(open_info(&k, NULL), TSR_EINVAL);
    bad.size = 0;
    CHECK_INT(open_info(&k, &bad), TSR_EINVAL);
    bad = good;
    bad.n_layers = 0;
    CHECK_INT(open_info(&k, &bad), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "0 layers");
    bad = good;
    bad.kv_dtype = TSR_DTYPE_INT8;
    CHECK_INT(open_info(&k, &bad), TSR_EINVAL);
    bad = good;
    memset(bad.architecture, 'x', sizeof bad.architecture);
    CHECK_INT(open_info(&k, &bad), TSR_EINVAL);

    blend_kit_prompt(&k, 7, 24, docs, 4, NULL);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, CONTEXT | TSR_ASK_GATE);
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "gate");
    ask.flags = CONTEXT;
    const uint32_t wrong[] = {1, 24 + 208, k.n_tokens, UINT32_MAX};
    for (uint32_t i = 0; i < 4; i++) {
        ask.n_context = wrong[i];
        CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EPROMPT);
    }
    ask.n_context = 0;
    struct tsr_kv_layout layout = *tsr_session_layout(k.model.session);
    layout.planes[1].n_heads--;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, &layout), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "memory");
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(context_and_then_the_question_is_the_whole_answer);
    RUN(what_is_known_and_not_selected_needs_no_pass);
    RUN(what_is_lost_without_a_pass_is_filled_or_computed);
    RUN(hkvd_may_let_every_row_go);
    RUN(the_context_may_end_behind_the_last_segment);
    RUN(the_questions_rows_are_never_stored);
    RUN(an_info_gives_the_space_of_its_model);
    RUN(another_arithmetic_is_another_space_of_the_same_model);
    RUN(what_makes_no_sense_is_refused);
    return test_end();
}
