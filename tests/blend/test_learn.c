/* The first question about a text is answered by a prefill; its documents are stored afterwards. */
#include "support/blend_kit.h"
#include "support/test.h"

static const char *const archs[] = {"llama", "qwen2", "qwen3"};
static const uint32_t docs[] = {70, 40, 66, 33};
static const uint32_t order[] = {2, 0, 3, 1};
#define FIRST (TSR_ASK_FILL | TSR_ASK_FIRST)

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, 128 * sizeof *a) == 0;
}

/* Learns the kit's prompt, without its session. */
static int learn(struct blend_kit *k, tsr_learn_fn progress, void *arg)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_QUERY, 0.2, FIRST);
    ask.session = NULL;
    return tsr_blend_learn(k->blend, &ask, progress, arg);
}

/* ---- the first question ---- */

TEST(the_first_question_is_a_prefill_to_the_last_bit)
{
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++)
            for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_NONE; selector++) {
                struct blend_kit k;
                float prefill[128];
                blend_kit_open(&k, archs[a], TSR_DTYPE_F16, flags);
                blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
                blend_kit_prefill(&k, prefill);
                CHECK_INT(blend_kit_ask(&k, selector, 0.2, FIRST), 0);
                CHECK(same(k.logits, prefill));
                CHECK(k.report.reasons & TSR_BLEND_FIRST);
                CHECK_INT(k.report.n_reused + k.report.n_recomputed, 0);
                CHECK_INT(k.report.n_exact + k.report.n_new, k.n_tokens);
                CHECK(blend_kit_close(&k));
            }
}

TEST(without_a_cache_every_question_is_the_first)
{
    struct blend_kit k;
    float prefill[128];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
    blend_kit_prefill(&k, prefill);
    blend_kit_ask_alone(&k, TSR_SELECT_QUERY, 0.2, FIRST);
    CHECK(same(k.logits, prefill));
    CHECK(blend_kit_close(&k));
}

TEST(exact_prefixes_are_stored_and_reused_by_first_questions)
{
    struct blend_kit k;
    float prefill[128];
    blend_kit_open(&k, "qwen2", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 2, 20, docs, 2, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, FIRST | TSR_ASK_PREFIX), 0);
    CHECK(k.report.n_stored >= 128);
    /* The same two documents, and two more that are longer. */
    const uint32_t more[] = {70, 40, 90, 90};
    blend_kit_prompt(&k, 2, 20, more, 4, NULL);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, FIRST | TSR_ASK_PREFIX), 0);
    CHECK(same(k.logits, prefill));
    CHECK(k.report.reasons & TSR_BLEND_FIRST);
    CHECK(k.report.n_exact >= 128);
    /* And the whole of it, once more. */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, FIRST | TSR_ASK_PREFIX), 0);
    CHECK(same(k.logits, prefill));
    CHECK(!(k.report.reasons & TSR_BLEND_FIRST));
    CHECK(k.report.n_exact >= 304);
    CHECK(blend_kit_close(&k));
}

/* Documents of 50 tokens, `known` of them stored; then `asked` of them, the known ones last. */
static uint32_t reasons_with(uint32_t known, uint32_t asked)
{
    static const uint32_t fifties[] = {50, 50, 50, 50, 50, 50, 50};
    struct blend_kit k;
    float prefill[128];
    uint32_t at[7];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 3, 20, fifties, known, NULL);
    CHECK(learn(&k, NULL, NULL) >= 0);
    for (uint32_t i = 0; i < asked; i++)
        at[i] = asked - 1 - i;
    blend_kit_prompt(&k, 3, 20, fifties, asked, at);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, FIRST), 0);
    CHECK(same(k.logits, prefill) == !!(k.report.reasons & TSR_BLEND_FIRST));
    CHECK(blend_kit_close(&k));
    return k.report.reasons;
}

TEST(a_prompt_is_blended_once_half_of_its_text_is_known)
{
    CHECK(reasons_with(1, 6) & TSR_BLEND_FIRST);
    CHECK(reasons_with(2, 6) & TSR_BLEND_FIRST);
    CHECK(!(reasons_with(3, 6) & TSR_BLEND_FIRST));
    CHECK(!(reasons_with(5, 6) & TSR_BLEND_FIRST));
    CHECK(!(reasons_with(6, 6) & TSR_BLEND_FIRST));
}

TEST(text_that_may_not_be_filled_is_unknown_too)
{
    struct blend_kit k;
    float prefill[128];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 13, 20, docs, 2, NULL);
    CHECK(learn(&k, NULL, NULL) > 0);
    blend_kit_prompt(&k, 13, 20, docs, 4, (const uint32_t[]){2, 3, 1, 0});
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FIRST), 0);
    CHECK(!(k.report.reasons & TSR_BLEND_FIRST)); /* 99 tokens are not known, 110 are */
    blend_kit_prompt(&k, 13, 20, docs, 4, (const uint32_t[]){2, 3, 1, 0});
    k.segments[4].n_tokens -= 15; /* now it is another document */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FIRST), 0);
    CHECK(k.report.reasons & TSR_BLEND_FIRST);
    CHECK(same(k.logits, prefill));
    CHECK(blend_kit_close(&k));
}

TEST(what_a_tier_loses_makes_it_a_first_question)
{
    for (uint32_t a = 0; a < 3; a++) {
        struct blend_kit k;
        float prefill[128];
        blend_kit_open(&k, archs[a], TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 4, 24, docs, 4, NULL);
        CHECK(learn(&k, NULL, NULL) > 0);
        blend_kit_make_cold(&k);
        blend_kit_prompt(&k, 4, 24, docs, 4, order);
        blend_kit_prefill(&k, prefill);
        fake_tier_fail(&k.tier, FAKE_GET, 1, 100, TSR_EIO);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, FIRST), 0);
        CHECK(k.report.n_failed > 0);
        CHECK(k.report.reasons & TSR_BLEND_FIRST);
        CHECK(k.report.reasons & TSR_BLEND_FAULT);
        CHECK(same(k.logits, prefill));
        CHECK(blend_kit_close(&k));
    }
}

/* ---- learning ---- */

TEST(after_learning_the_answer_is_the_one_of_filled_documents)
{
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++) {
            struct blend_kit k;
            float filled[128];
            blend_kit_open(&k, archs[a], TSR_DTYPE_F16, flags);
            blend_kit_prompt(&k, 5, 20, docs, 4, order);
            blend_kit_ask_alone(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL);
            memcpy(filled, k.logits, sizeof filled);
            blend_kit_prompt(&k, 5, 20, docs, 4, NULL);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, FIRST), 0);
            int stored = (int)k.report.n_stored;
            CHECK_INT(learn(&k, NULL, NULL) + stored, 20 + 209);
            blend_kit_prompt(&k, 5, 20, docs, 4, order);
            for (uint32_t round = 0; round < 2; round++) {
                CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, FIRST), 0);
                /* With int8 a document sees the system prompt as it was stored, rounded. */
                CHECK(flags || same(k.logits, filled));
                CHECK_INT(k.report.n_filled, 0);
                CHECK(k.report.n_reused > 100);
                CHECK(!(k.report.reasons & TSR_BLEND_FIRST));
                blend_kit_make_cold(&k);
            }
            CHECK(blend_kit_close(&k));
        }
}

TEST(kv_is_learnt_with_the_frequencies_of_the_prompt)
{
    struct blend_kit k;
    blend_kit_open(&k, "llama dynamic=2 trained=100", TSR_DTYPE_F32, 0);
    blend_kit_prompt(&k, 6, 20, docs, 4, NULL);
    CHECK_INT(learn(&k, NULL, NULL), 20 + 209);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, FIRST), 0);
    CHECK(!(k.report.reasons & TSR_BLEND_FREQ));
    CHECK_INT(k.report.n_filled, 0);
    CHECK(blend_kit_close(&k));
}

TEST(the_session_and_the_bias_of_the_dialog_stay_as_they_are)
{
    struct blend_kit k;
    uint32_t n_bias;
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    k.profile.bias = (struct tsr_curve){.n = 1, .points = {{0, -0.5}}};
    k.profile.bias_answer = 1;
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 7, 20, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    const float *bias = tsr_blend_bias(k.blend, &n_bias);
    CHECK(bias && n_bias == k.n_tokens);
    size_t bytes = (size_t)k.n_tokens * 16 * sizeof(float);
    float *held = malloc(bytes);
    memcpy(held, model_kit_row(&k.model, 0, 1, 0), bytes);
    uint32_t n_held = k.n_tokens;
    blend_kit_prompt(&k, 8, 20, docs, 4, NULL);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, FIRST);
    CHECK_INT(tsr_blend_learn(k.blend, &ask, NULL, NULL), 20 + 209);
    CHECK(memcmp(held, model_kit_row(&k.model, 0, 1, 0), bytes) == 0);
    CHECK(tsr_blend_bias(k.blend, &n_bias) == bias && n_bias == n_held);
    free(held);
    CHECK(blend_kit_close(&k));
}

/* ---- progress ---- */

struct watch {
    uint32_t n_calls, n_segments, n_tokens, done, stop_after; /* segments; UINT32_MAX: never */
    bool steady;
};

static int watch(void *arg, const struct tsr_learn *learn)
{
    struct watch *w = arg;
    w->steady &= learn->n_tokens_done >= w->done && learn->n_tokens_done <= learn->n_tokens;
    w->steady &= learn->n_segments > 0 && learn->segments[0] < 5;
    w->steady &= w->n_calls++ > 0 || learn->n_tokens_done == 0;
    w->n_segments = learn->n_segments;
    w->n_tokens = learn->n_tokens;
    w->done = learn->n_tokens_done;
    return learn->n_segments_done >= w->stop_after;
}

TEST(learning_tells_how_far_it_is_and_stops_when_told)
{
    struct blend_kit k;
    struct watch w = {.stop_after = 2, .steady = true};
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 9, 20, docs, 4, NULL);
    CHECK_INT(learn(&k, watch, &w), 20 + 70);
    CHECK(w.steady);
    CHECK_INT(w.n_segments, 5);
    CHECK_INT(w.n_tokens, 20 + 209);
    /* The rest, the next time. */
    w = (struct watch){.stop_after = UINT32_MAX, .steady = true};
    CHECK_INT(learn(&k, watch, &w), 209 - 70);
    CHECK(w.steady);
    CHECK_INT(w.n_segments, 3);
    CHECK(w.n_calls > 3 * 3);
    /* And then nothing. */
    w = (struct watch){.stop_after = 0};
    CHECK_INT(learn(&k, watch, &w), 0);
    CHECK_INT(w.n_calls, 0);
    CHECK(blend_kit_close(&k));
}

TEST(stopping_at_once_stores_nothing)
{
    struct blend_kit k;
    struct watch w = {.stop_after = 0, .steady = true};
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 9, 20, docs, 4, NULL);
    CHECK_INT(learn(&k, watch, &w), 0);
    CHECK_INT(w.n_calls, 1);
    CHECK(blend_kit_close(&k));
}

TEST(a_cache_without_room_ends_learning)
{
    struct blend_kit k;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 10, 20, docs, 4, NULL);
    tsr_cache_freeze(k.cache.cache, 1);
    CHECK_INT(learn(&k, NULL, NULL), TSR_EFULL);
    tsr_cache_freeze(k.cache.cache, 0);
    CHECK_INT(learn(&k, NULL, NULL), 20 + 209);
    CHECK(blend_kit_close(&k));
}

/* ---- engines ---- */

static int do_step(struct tsr_session *s, const struct tsr_blend_step *step)
{
    CHECK(step->kind != TSR_STEP_LOGITS);
    if (step->kind == TSR_STEP_BEGIN) return tsr_session_begin(s, &step->pass);
    if (step->kind == TSR_STEP_LAYER) return tsr_session_layer(s, &step->layer);
    tsr_session_end(s);
    return 0;
}

/* All steps of a run over memory that is only described. */
static void drive(struct blend_kit *k, uint32_t flags)
{
    struct tsr_kv_layout layout = *tsr_session_layout(k->model.session);
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_QUERY, 0.2, flags);
    struct tsr_run *run;
    struct tsr_blend_step step;
    int e, result = 0;
    ask.session = NULL;
    k->report = (struct tsr_blend_report){.size = sizeof k->report};
    CHECK_INT(tsr_blend_start(&run, k->blend, &ask, &layout), 0);
    while ((e = tsr_blend_next(run, result, &step)) > 0)
        result = do_step(k->model.session, &step);
    CHECK_INT(e, 0);
    tsr_blend_end(run, NULL, &k->report);
}

TEST(an_engine_gets_the_first_context_exact_and_learns_in_steps)
{
    struct blend_kit k;
    float prefill[128], answer[128];
    blend_kit_open(&k, "qwen3", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 11, 20, docs, 4, NULL);
    blend_kit_prefill(&k, prefill);
    drive(&k, FIRST | TSR_ASK_CONTEXT);
    CHECK(k.report.reasons & TSR_BLEND_FIRST);
    uint32_t question = k.n_tokens - 12;
    model_kit_prefill(&k.model, k.tokens, question, 12, answer);
    CHECK(same(answer, prefill));
    uint32_t stored = k.report.n_stored;
    drive(&k, TSR_ASK_LEARN | TSR_ASK_GATE);
    CHECK_INT(k.report.n_stored + stored, 20 + 209);
    drive(&k, TSR_ASK_LEARN);
    CHECK_INT(k.report.n_stored, 0);
    blend_kit_prompt(&k, 11, 20, docs, 4, order);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, FIRST), 0);
    CHECK_INT(k.report.n_filled, 0);
    CHECK(blend_kit_close(&k));
}

TEST(what_cannot_be_learnt_is_refused)
{
    struct blend_kit k;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 12, 20, docs, 4, NULL);
    CHECK_INT(tsr_blend_learn(NULL, NULL, NULL, NULL), TSR_EINVAL);
    CHECK_INT(tsr_blend_learn(k.blend, NULL, NULL, NULL), TSR_EINVAL);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, 0);
    ask.segments = NULL;
    CHECK_INT(tsr_blend_learn(k.blend, &ask, NULL, NULL), TSR_EINVAL);
    ask.n_segments = 0;
    ask.system = 0;
    CHECK_INT(tsr_blend_learn(k.blend, &ask, NULL, NULL), 0);
    struct tsr_blend *with_model = k.blend;
    struct tsr_model_info info = k.model.info;
    struct tsr_blend_desc desc = {.size = sizeof desc, .info = &info, .cache = k.cache.cache};
    CHECK_INT(tsr_blend_open(&k.blend, &desc), 0);
    CHECK_INT(learn(&k, NULL, NULL), TSR_EINVAL);
    tsr_blend_close(k.blend);
    k.blend = with_model;
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(the_first_question_is_a_prefill_to_the_last_bit);
    RUN(without_a_cache_every_question_is_the_first);
    RUN(exact_prefixes_are_stored_and_reused_by_first_questions);
    RUN(a_prompt_is_blended_once_half_of_its_text_is_known);
    RUN(text_that_may_not_be_filled_is_unknown_too);
    RUN(what_a_tier_loses_makes_it_a_first_question);
    RUN(after_learning_the_answer_is_the_one_of_filled_documents);
    RUN(kv_is_learnt_with_the_frequencies_of_the_prompt);
    RUN(the_session_and_the_bias_of_the_dialog_stay_as_they_are);
    RUN(learning_tells_how_far_it_is_and_stops_when_told);
    RUN(stopping_at_once_stores_nothing);
    RUN(a_cache_without_room_ends_learning);
    RUN(an_engine_gets_the_first_context_exact_and_learns_in_steps);
    RUN(what_cannot_be_learnt_is_refused);
    return test_end();
}
