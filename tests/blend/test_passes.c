/* The passes of a run, seen through the steps it gives: which rows, what they see, and what follows
 * from gate and bias. */
#include "blend/passes.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

static const uint32_t docs[] = {70, 40, 66};

/* Steps up to the n-th BEGIN; the run is left there. */
static struct tsr_run *run_to_pass(struct blend_kit *k, uint32_t selector, uint32_t flags,
                                   uint32_t n, struct tsr_blend_step *step)
{
    static struct tsr_ask_desc ask;
    struct tsr_run *run;
    int result = 0;
    ask = blend_kit_ask_of(k, selector, 0.25, flags);
    CHECK_INT(tsr_blend_start(&run, k->blend, &ask, NULL), 0);
    while (tsr_blend_next(run, result, step) > 0) {
        if (step->kind == TSR_STEP_BEGIN && --n == 0) return run;
        if (step->kind == TSR_STEP_BEGIN)
            result = tsr_session_begin(ask.session, &step->pass);
        else if (step->kind == TSR_STEP_LAYER)
            result = tsr_session_layer(ask.session, &step->layer);
        else if (step->kind == TSR_STEP_LOGITS)
            result = tsr_session_logits(ask.session, step->keep, step->n_keep, step->logits);
        else
            tsr_session_end(ask.session);
        CHECK_INT(result, 0);
    }
    tsr_blend_end(run, NULL, NULL);
    return NULL;
}

TEST(segments_are_filled_alone_at_their_canonical_place)
{
    struct blend_kit k;
    struct tsr_blend_step step;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 3, NULL);
    struct tsr_run *run = run_to_pass(&k, TSR_SELECT_QUERY, TSR_ASK_FILL, 1, &step);
    CHECK_INT(step.pass.n_rows, 196);
    CHECK_INT(step.pass.n_groups, 4);
    const struct tsr_model_group *g = step.pass.groups;
    CHECK(g[0].n_rows == 20 && g[0].n_ranges == 1 && g[0].sees[0].n_tokens == 20);
    CHECK(g[1].n_rows == 70 && g[1].n_ranges == 1 && g[1].sees[0].n_tokens == 90);
    CHECK(g[2].n_rows == 40 && g[2].n_ranges == 2 && g[2].sees[0].n_tokens == 20);
    CHECK(g[2].sees[1].offset == 90 && g[2].sees[1].n_tokens == 40);
    CHECK_INT(step.pass.rows[90].slot, 90);
    CHECK_INT(step.pass.rows[90].position, 20);
    tsr_blend_end(run, NULL, NULL);
    CHECK(blend_kit_close(&k));
}

TEST(the_question_looks_first_and_asks_for_its_attention)
{
    struct blend_kit k;
    struct tsr_blend_step step;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 2, 20, docs, 3, NULL);
    struct tsr_run *run = run_to_pass(&k, TSR_SELECT_QUERY, TSR_ASK_FILL, 2, &step);
    CHECK_INT(step.pass.n_rows, 12);
    CHECK_INT(step.pass.n_mass_rows, 12);
    CHECK(step.pass.bias == NULL);
    CHECK_INT(step.pass.rows[0].slot, 196);
    tsr_blend_end(run, NULL, NULL);
    /* A seam at each of two chunks; a quarter of 106 tokens in all. */
    run = run_to_pass(&k, TSR_SELECT_QUERY, TSR_ASK_FILL, 2, &step);
    CHECK_INT(step.pass.n_rows, 12 + 27);
    CHECK_INT(tsri_plan_count(&run->plan, TSR_TOKEN_SELECTED), 27 - 2);
    tsr_blend_end(run, NULL, NULL);
    CHECK(blend_kit_close(&k));
}

/* Bits of the layers that are asked for their attention. */
static uint32_t weighed(const char *model, double from, double to)
{
    struct blend_kit k;
    struct tsr_blend_step step;
    uint32_t layers = 0;
    int result;
    blend_kit_open(&k, model, TSR_DTYPE_F16, 0);
    k.profile.query_layers[0] = from, k.profile.query_layers[1] = to;
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 2, 20, docs, 3, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    struct tsr_run *run = run_to_pass(&k, TSR_SELECT_QUERY, 0, 1, &step);
    for (result = tsr_session_begin(k.model.session, &step.pass); result == 0;) {
        if (tsr_blend_next(run, 0, &step) != 1 || step.kind != TSR_STEP_LAYER) break;
        if (step.layer.mass) layers |= 1u << step.layer.layer;
        CHECK_INT(step.layer.n_mass, step.layer.mass ? k.n_tokens : 0);
        result = tsr_session_layer(k.model.session, &step.layer);
    }
    CHECK_INT(result, 0);
    tsr_session_end(k.model.session);
    tsr_blend_end(run, NULL, NULL);
    CHECK(blend_kit_close(&k));
    return layers;
}

TEST(only_the_layers_of_the_profile_are_asked_for_their_attention)
{
    CHECK_INT(weighed("llama layers=6", 0, 1), 0x3f);
    CHECK_INT(weighed("llama layers=6", 0.667, 1), 0x30);
    CHECK_INT(weighed("llama layers=6", 0.333, 0.667), 0x0c);
    CHECK_INT(weighed("llama layers=7", 0.667, 1), 0x70);
    CHECK_INT(weighed("llama layers=3", 0.99, 1), 0x4); /* always one */
    CHECK_INT(weighed("llama layers=3", 0.01, 0.02), 0x1);
}

TEST(much_new_text_is_hidden_from_the_question)
{
    struct blend_kit k;
    struct tsr_blend_step step;
    const uint32_t long_docs[] = {70, 40, 200};
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 3, 20, long_docs, 3, NULL);
    k.n_segments = 3; /* the last document belongs to the question's side now */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    struct tsr_run *run = run_to_pass(&k, TSR_SELECT_QUERY, 0, 1, &step);
    CHECK_INT(step.pass.n_rows, 32);
    CHECK_INT(step.pass.n_bias_rows, 32);
    CHECK(step.pass.bias[20] == 0 && step.pass.bias[129] == 0);
    CHECK(isinf(step.pass.bias[130]) && isinf(step.pass.bias[330 - 21]));
    CHECK(step.pass.bias[step.pass.rows[0].slot] == 0);
    tsr_blend_end(run, NULL, NULL);
    CHECK(blend_kit_close(&k));
}

TEST(the_bias_is_for_the_question_on_what_is_not_exact)
{
    struct blend_kit k;
    struct tsr_blend_step step;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    k.profile.bias = (struct tsr_curve){.n = 2, .points = {{0, -1}, {0.5, 0}}};
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 4, 20, docs, 3, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    struct tsr_run *asks = run_to_pass(&k, TSR_SELECT_QUERY, 0, 1, &step);
    CHECK_INT(step.pass.n_bias_rows, 12); /* of the question's own pass too */
    CHECK(step.pass.bias[89] == 0 && step.pass.bias[92] == -0.5f);
    tsr_blend_end(asks, NULL, NULL);
    for (uint32_t reused = 0; reused < 2; reused++) {
        k.profile.bias_reused = reused;
        k.profile.bias_answer = reused;
        blend_kit_reopen(&k);
        blend_kit_prompt(&k, 4, 20, docs, 3, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_LINK, 0.25, TSR_ASK_FILL), 0);
        CHECK(fabs(k.report.bias + 0.5) < 1e-9);
        uint32_t n;
        CHECK((tsr_blend_bias(k.blend, &n) != NULL) == reused); /* ends with the question */
        CHECK_INT(n, reused ? k.n_tokens : 0);
        struct tsr_run *run = run_to_pass(&k, TSR_SELECT_LINK, TSR_ASK_FILL, 1, &step);
        CHECK_INT(step.pass.n_bias_rows, 12);
        CHECK(step.pass.bias[0] == 0 && step.pass.bias[89] == 0 && step.pass.bias[200] == 0);
        CHECK(step.pass.bias[129] == -0.5f);
        CHECK(step.pass.bias[92] == (reused ? 0 : -0.5f)); /* recomputed */
        tsr_blend_end(run, NULL, NULL);
    }
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_FILL), 0);
    uint32_t n;
    CHECK(tsr_blend_bias(k.blend, &n) == NULL);
    CHECK(blend_kit_close(&k));
}

TEST(a_bias_that_is_given_counts_and_changes_the_answer)
{
    struct blend_kit k;
    float plain[128];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 5, 20, docs, 3, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    memcpy(plain, k.logits, sizeof plain);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_BIAS);
    ask.bias = -0.8;
    CHECK_INT(tsr_blend_ask(k.blend, &ask, k.logits, &k.report), 0);
    CHECK(k.report.bias == -0.8);
    CHECK(memcmp(plain, k.logits, sizeof plain) != 0);
    CHECK(blend_kit_close(&k));
}

TEST(an_answer_that_the_gate_is_not_sure_of_is_computed_whole)
{
    struct blend_kit k;
    float prefill[128];
    blend_kit_open(&k, "qwen2", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 6, 20, docs, 3, NULL);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.1, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK(isnan(k.report.sure) && k.report.reasons == 0); /* no gate */
    k.profile.gate[0] = 1;                                /* always 73 % */
    blend_kit_reopen(&k);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.1, TSR_ASK_FILL), 0);
    CHECK_INT(k.report.reasons, 0); /* not asked to act */
    CHECK(fabs(k.report.sure - 1 / (1 + exp(-1))) < 1e-9);
    CHECK(k.report.gate.mass > 0 && k.report.gate.mass < 1 && k.report.gate.entropy > 0);
    CHECK(k.report.gate.fresh > 0 && k.report.gate.fresh + k.report.gate.mass < 1);
    CHECK(k.report.gate.n_chunks == 2 && k.report.gate.chunk_tokens == 53);
    CHECK(k.report.gate.moved >= 0 && k.report.gate.top > k.report.gate.margin);
    CHECK(k.report.gate.ratio == 0.1);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.1, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK_INT(k.report.reasons, TSR_BLEND_FULL);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK(k.report.sure == 1);
    k.profile.gate_limit = 0.7;
    blend_kit_reopen(&k);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.1, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK_INT(k.report.reasons, 0); /* sure enough */
    CHECK(blend_kit_close(&k));
}

TEST(the_gate_has_nothing_to_judge_by_where_the_question_is_not_asked)
{
    struct blend_kit k;
    blend_kit_open(&k, "qwen2", TSR_DTYPE_F16, 0);
    for (uint32_t i = 0; tsr_gate_weight_name(i); i++)
        k.profile.gate[i] = -1;
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 6, 20, docs, 3, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_LINK, 0.1, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK(isnan(k.report.sure) && k.report.reasons == 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK(k.report.sure == 1);
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(segments_are_filled_alone_at_their_canonical_place);
    RUN(the_question_looks_first_and_asks_for_its_attention);
    RUN(only_the_layers_of_the_profile_are_asked_for_their_attention);
    RUN(much_new_text_is_hidden_from_the_question);
    RUN(the_bias_is_for_the_question_on_what_is_not_exact);
    RUN(a_bias_that_is_given_counts_and_changes_the_answer);
    RUN(an_answer_that_the_gate_is_not_sure_of_is_computed_whole);
    RUN(the_gate_has_nothing_to_judge_by_where_the_question_is_not_asked);
    return test_end();
}
