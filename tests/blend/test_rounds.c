/* Rounds of recomputing: each recomputes more, and a prefill ends them. */
#include "blend/passes.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

static const uint32_t docs[] = {70, 40, 66, 50};
#define N_DOCS 4u
#define QUESTION (20u + 70 + 40 + 66 + 50)
/* Tokens that are not exact: all but the first document, behind the system prompt. */
#define KNOWN (40u + 66 + 50)

/* Three rounds, and a gate that is sure from a ratio on. */
static void open_kit(struct blend_kit *k, const char *model, uint32_t flags, double sure_from)
{
    blend_kit_open(k, model, TSR_DTYPE_F16, flags);
    k->profile.n_rounds = 3;
    k->profile.rounds[0] = 0.1, k->profile.rounds[1] = 0.25, k->profile.rounds[2] = 0.5;
    k->profile.gate_limit = 0.5;
    blend_kit_set_weight(k, "constant", -100 * sure_from);
    blend_kit_set_weight(k, "ratio", 100);
    blend_kit_reopen(k);
    blend_kit_prompt(k, 3, 20, docs, N_DOCS, NULL);
}

static int ask(struct blend_kit *k, uint32_t flags)
{
    return blend_kit_ask(k, TSR_SELECT_QUERY, -1, TSR_ASK_FILL | flags);
}

static uint32_t n_of(double ratio)
{
    return (uint32_t)floor(ratio * KNOWN + 0.5);
}

TEST(a_sure_answer_stops_the_rounds)
{
    const double ratios[] = {0.1, 0.25, 0.5};
    for (uint32_t i = 0; i < 3; i++) {
        struct blend_kit k;
        open_kit(&k, "llama", 0, ratios[i] - 0.01);
        CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
        CHECK_INT(k.report.n_rounds, i + 1);
        CHECK(k.report.ratio == ratios[i] && k.report.gate.ratio == ratios[i]);
        CHECK(k.report.sure > 0.5 && k.report.sure < 1);
        CHECK_INT(k.report.reasons, i ? TSR_BLEND_RAISED : 0);
        CHECK_INT(k.report.n_recomputed, n_of(ratios[i])); /* each token once */
        CHECK_INT(k.report.n_reused, KNOWN - k.report.n_recomputed);
        CHECK(blend_kit_close(&k));
    }
}

/* The kit's ask, on a machine where a row takes 1 ms and a token of an answer token_s. */
static int ask_with_costs(struct blend_kit *k, uint32_t flags, double token_s)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_QUERY, -1, TSR_ASK_FILL | flags);
    ask.row_s = 1e-3;
    ask.token_s = token_s;
    k->report.size = sizeof k->report;
    return tsr_blend_ask(k->blend, &ask, k->logits, &k->report);
}

/* 156 tokens are approximate. Half of the drafts pass, and 40 % are accepted: a round of a tenth saves
 * .35 of the rows in the mean, for one and a half drafts of 8 tokens. */
TEST(a_trial_that_costs_more_than_it_saves_is_not_made)
{
    const double even_s = KNOWN * 1e-3 * 0.35 / (1.5 * 8);
    for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++) {
        struct blend_kit k;
        float prefill[128];
        open_kit(&k, "llama", flags, 0.05);
        k.profile.draft = 8;
        k.profile.draft_passes = 0.5;
        k.profile.gate_accepts = 0.4;
        blend_kit_reopen(&k);
        CHECK_INT(ask(&k, TSR_ASK_GATE), 0); /* all documents are known from here on */
        blend_kit_prefill(&k, prefill);
        const struct {
            double token_s;
            bool tried;
        } cases[] = {{0, true}, {0.99 * even_s, true}, {1.01 * even_s, false}, {1e6, false}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            CHECK_INT(ask_with_costs(&k, TSR_ASK_GATE, cases[i].token_s), 0);
            CHECK_INT(k.report.n_reused > 0, cases[i].tried);
            CHECK(cases[i].tried || (k.report.draft_s == 0 && k.report.query_s == 0));
            CHECK_INT(k.report.reasons & TSR_BLEND_COSTLY, cases[i].tried ? 0 : TSR_BLEND_COSTLY);
            if (cases[i].tried) continue;
            CHECK_INT(k.report.n_recomputed, 0);
            CHECK(memcmp(k.logits, prefill, k.model.info.n_vocab * sizeof *prefill) == 0);
        }
        /* Without a gate nobody asked for a trial. */
        CHECK_INT(ask_with_costs(&k, 0, 1e6), 0);
        CHECK(k.report.n_reused > 0);
        /* Nor is a ratio that somebody asks for weighed. */
        struct tsr_ask_desc given = blend_kit_ask_of(&k, TSR_SELECT_QUERY, 0.1, TSR_ASK_GATE);
        given.row_s = 1e-3, given.token_s = 1e6;
        CHECK_INT(tsr_blend_ask(k.blend, &given, k.logits, &k.report), 0);
        CHECK_INT(k.report.reasons & TSR_BLEND_COSTLY, 0);
        CHECK(blend_kit_close(&k));
    }
}

TEST(shares_that_never_pay_and_shares_that_are_not_known)
{
    struct blend_kit k;
    open_kit(&k, "llama", 0, 0.05);
    k.profile.draft = 8;
    k.profile.gate_accepts = 0.1; /* as much as the round costs */
    blend_kit_reopen(&k);
    CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
    CHECK_INT(ask_with_costs(&k, TSR_ASK_GATE, 1e-12), 0);
    CHECK_INT(k.report.reasons, TSR_BLEND_COSTLY);
    k.profile.gate_accepts = 0;
    blend_kit_reopen(&k);
    CHECK_INT(ask_with_costs(&k, TSR_ASK_GATE, 1e6), 0);
    CHECK(k.report.n_rounds > 0);
    CHECK(blend_kit_close(&k));
}

/* Nor is there a look for a document that leads. */
TEST(nothing_is_looked_at_for_a_trial_that_is_not_made)
{
    struct blend_kit k;
    double looks[8];
    open_kit(&k, "llama", 0, 0.05);
    k.profile.draft = 8;
    k.profile.gate_accepts = 0.4;
    k.profile.lead.gate_accepts = 0.5;
    blend_kit_reopen(&k);
    CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE);
    ask.row_s = 1e-3;
    const double even_s = KNOWN * 1e-3 * 0.4 / (2 * 8); /* with the shares of lead */
    ask.token_s = 0.99 * even_s;
    CHECK_INT(tsr_blend_look(k.blend, &ask, looks, NULL), 1);
    ask.token_s = 1.01 * even_s;
    CHECK_INT(tsr_blend_look(k.blend, &ask, looks, NULL), 0);
    CHECK(blend_kit_close(&k));
}

TEST(after_the_last_round_comes_a_prefill)
{
    const char *const models[] = {"llama", "qwen2", "qwen3"};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++) {
            struct blend_kit k;
            float prefill[128];
            open_kit(&k, models[i], flags, 0.9);
            k.profile.bias = (struct tsr_curve){.n = 1, .points = {{0, -0.5}}};
            blend_kit_reopen(&k);
            blend_kit_prefill(&k, prefill);
            CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
            CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
            CHECK_INT(k.report.n_rounds, 3);
            CHECK_INT(k.report.reasons, TSR_BLEND_RAISED | TSR_BLEND_FULL);
            CHECK(k.report.sure == 1 && k.report.ratio == 1 && k.report.bias == 0);
            CHECK_INT(k.report.n_reused, 0);
            CHECK_INT(k.report.n_recomputed + k.report.n_exact, QUESTION);
            uint32_t n;
            CHECK(tsr_blend_bias(k.blend, &n) == NULL);
            CHECK(blend_kit_close(&k));
        }
}

TEST(an_answer_over_rounded_text_is_not_called_sure)
{
    for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++) {
        struct blend_kit k;
        float prefill[128];
        open_kit(&k, "llama", flags, 0.9);
        blend_kit_prompt(&k, 3, 60, docs, 0, NULL); /* a system prompt and a question */
        blend_kit_prefill(&k, prefill);
        CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
        CHECK_INT(k.report.n_exact, 60);
        CHECK_INT(k.report.reasons, 0);
        bool exact = memcmp(prefill, k.logits, sizeof prefill) == 0;
        CHECK(exact == !flags);
        CHECK(flags ? isnan(k.report.sure) : k.report.sure == 1);
        CHECK(blend_kit_close(&k));
    }
}

struct pass_seen {
    uint8_t rows[512], states[512]; /* by token: has a row; what the plan says of it */
    float bias[512];
    uint32_t n_rows;
};

/* Every pass of a run whose documents are known. */
static uint32_t watch(struct blend_kit *k, struct pass_seen *seen, uint32_t max)
{
    struct tsr_ask_desc desc = blend_kit_ask_of(k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE);
    struct tsr_blend_step step;
    struct tsr_run *run;
    uint32_t n = 0;
    int result = 0;
    CHECK_INT(tsr_blend_start(&run, k->blend, &desc, NULL), 0);
    while (tsr_blend_next(run, result, &step) > 0) {
        if (step.kind == TSR_STEP_BEGIN && n < max) {
            struct pass_seen *s = &seen[n++];
            *s = (struct pass_seen){.n_rows = step.pass.n_rows};
            for (uint32_t i = 0; i < step.pass.n_rows; i++)
                s->rows[step.pass.rows[i].slot] = 1;
            memcpy(s->states, tsr_blend_states(run), k->n_tokens);
            if (step.pass.bias) memcpy(s->bias, step.pass.bias, k->n_tokens * sizeof *s->bias);
        }
        result = tsri_blend_step(desc.session, &step);
    }
    k->report = (struct tsr_blend_report){.size = sizeof k->report};
    tsr_blend_end(run, k->logits, &k->report);
    return n;
}

TEST(a_round_computes_all_that_is_selected_and_the_question)
{
    static struct pass_seen seen[8];
    struct blend_kit k;
    open_kit(&k, "llama", 0, 0.4);
    k.profile.bias = (struct tsr_curve){.n = 2, .points = {{0, -1}, {1, 0}}};
    blend_kit_reopen(&k);
    CHECK_INT(ask(&k, 0), 0);
    CHECK_INT(watch(&k, seen, 8), 4); /* the question's pass, three rounds */
    CHECK_INT(seen[1].n_rows, n_of(0.1) + 12);
    CHECK_INT(seen[2].n_rows, n_of(0.25) + 12);
    CHECK_INT(seen[3].n_rows, n_of(0.5) + 12);
    for (uint32_t i = 0; i < QUESTION; i++) {
        bool stays = seen[3].states[i] == TSR_TOKEN_CANDIDATE;
        CHECK(fabsf(seen[3].bias[i] - (stays ? -0.5f : 0)) < 1e-6f);
        /* What was selected once stays selected. */
        CHECK(seen[1].rows[i] <= seen[2].rows[i] && seen[2].rows[i] <= seen[3].rows[i]);
    }
    for (uint32_t i = QUESTION; i < k.n_tokens; i++)
        CHECK(seen[1].rows[i] && seen[2].rows[i] && seen[3].rows[i]);
    CHECK_INT(k.report.n_recomputed, n_of(0.5));
    CHECK(blend_kit_close(&k));
}

TEST(a_round_gives_what_one_ask_at_its_ratio_gives)
{
    struct blend_kit k;
    float rounds[128];
    open_kit(&k, "llama", 0, 0.4);
    CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
    CHECK_INT(k.report.n_rounds, 3);
    memcpy(rounds, k.logits, sizeof rounds);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.5, TSR_ASK_FILL), 0);
    CHECK(memcmp(rounds, k.logits, sizeof rounds) == 0);
    CHECK(blend_kit_close(&k));
}

TEST(the_answer_moves_from_round_to_round)
{
    struct blend_kit one, two;
    open_kit(&one, "llama", 0, 0.09);
    open_kit(&two, "llama", 0, 0.24);
    CHECK_INT(ask(&one, TSR_ASK_GATE), 0);
    CHECK_INT(ask(&two, TSR_ASK_GATE), 0);
    double moved = tsr_logits_kl(one.logits, two.logits, 128);
    CHECK(moved > 0 && fabs(two.report.gate.moved - moved) < 1e-12);
    CHECK(two.report.gate.mass < one.report.gate.mass);
    CHECK(two.report.gate.fresh > one.report.gate.fresh);
    CHECK(blend_kit_close(&one));
    CHECK(blend_kit_close(&two));
}

TEST(without_a_gate_or_with_a_ratio_there_is_one_round)
{
    struct blend_kit k;
    open_kit(&k, "llama", 0, 0.09);
    k.profile.ratio = 0.2;
    blend_kit_reopen(&k);
    CHECK_INT(ask(&k, 0), 0); /* the gate is not asked for */
    CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.2 && k.report.sure > 0.5);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.3, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.3);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.05, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK(k.report.n_rounds == 1 && k.report.reasons == TSR_BLEND_FULL); /* not sure of that */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_LINK, -1, TSR_ASK_FILL | TSR_ASK_GATE), 0);
    CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.2 && k.report.reasons == 0);
    memset(k.profile.gate, 0, sizeof k.profile.gate);
    blend_kit_reopen(&k);
    CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
    CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.2 && isnan(k.report.sure));
    CHECK(blend_kit_close(&k));
}

TEST(all_rounds_can_be_asked_for)
{
    struct blend_kit k;
    open_kit(&k, "llama", 0, 0.09);
    for (uint32_t fitted = 0; fitted < 2; fitted++) {
        CHECK_INT(ask(&k, TSR_ASK_ROUNDS), 0);
        CHECK(k.report.n_rounds == 3 && k.report.ratio == 0.5);
        CHECK_INT(k.report.reasons, TSR_BLEND_RAISED);
        memset(k.profile.gate, 0, sizeof k.profile.gate);
        blend_kit_reopen(&k);
    }
    struct tsr_run *run;
    struct tsr_ask_desc bad =
        blend_kit_ask_of(&k, TSR_SELECT_QUERY, -1, TSR_ASK_ROUNDS | TSR_ASK_CONTEXT);
    CHECK_INT(tsr_blend_start(&run, k.blend, &bad, NULL), TSR_EINVAL);
    CHECK(blend_kit_close(&k));
}

/* Of three rounds and a gate that is never sure, to one round and a gate that is sure of it. */
TEST(a_leading_document_has_rounds_and_a_gate_of_its_own)
{
    for (uint32_t primed = 0; primed < 2; primed++) {
        struct blend_kit k;
        open_kit(&k, "llama", 0, 0.9);
        if (primed) {
            k.profile.context = TSR_CONTEXT_PRIMER;
            k.n_primer = 37;
            model_kit_tokens(&k.model, k.primer, k.n_primer, 5001);
            blend_kit_reopen(&k);
        }
        struct tsr_lead_profile *lead = &k.profile.lead;
        CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD), 0); /* nothing is given */
        CHECK(k.report.n_rounds == 3 && k.report.reasons & TSR_BLEND_FULL);
        lead->n_rounds = 1, lead->rounds[0] = 0.2;
        blend_kit_reopen(&k);
        CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD), 0);
        CHECK(k.report.n_rounds == 1 && k.report.reasons == TSR_BLEND_FULL);
        memcpy(lead->gate, k.profile.gate, sizeof lead->gate);
        lead->gate[0] = -19; /* sure from .19 on */
        blend_kit_reopen(&k);
        CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD), 0);
        CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.2 && k.report.reasons == 0);
        CHECK(fabs(k.report.sure - 1 / (1 + exp(-1))) < 1e-9);
        CHECK_INT(ask(&k, TSR_ASK_ROUNDS | TSR_ASK_LEAD), 0);
        CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.2);
        CHECK_INT(ask(&k, TSR_ASK_GATE), 0); /* none leads */
        CHECK(k.report.n_rounds == 3 && k.report.reasons & TSR_BLEND_FULL);
        lead->gate_limit = 0.8;
        blend_kit_reopen(&k);
        CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD), 0);
        CHECK(k.report.n_rounds == 1 && k.report.reasons == TSR_BLEND_FULL);
        lead->gate_limit = 0.7;
        k.profile.draft = 4, k.profile.draft_floor = 1;
        blend_kit_reopen(&k);
        CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD), 0);
        CHECK(k.report.n_rounds == 0 && k.report.reasons == TSR_BLEND_FULL);
        lead->draft_floor = 0;
        memset(k.profile.gate, 0, sizeof k.profile.gate); /* the draft is for its own gate */
        blend_kit_reopen(&k);
        CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD | TSR_ASK_PREFIX), 0);
        CHECK(k.report.n_rounds == 1 && k.report.reasons == 0 && k.report.gate.draft < 1);
        /* Now it is known as a prefix, and still leads. */
        CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD | TSR_ASK_PREFIX), 0);
        CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.2 && k.report.reasons == 0);
        CHECK(blend_kit_close(&k));
    }
}

/* What is before it would be rounded, so it is as any other. */
TEST(where_none_can_lead_its_settings_do_not_act)
{
    struct blend_kit k;
    open_kit(&k, "llama", TSR_BLEND_INT8, 0.9);
    k.profile.lead.gate[0] = 9;
    blend_kit_reopen(&k);
    CHECK_INT(ask(&k, TSR_ASK_GATE | TSR_ASK_LEAD), 0);
    CHECK(k.report.n_rounds == 3 && k.report.reasons & TSR_BLEND_FULL);
    CHECK(blend_kit_close(&k));
}

TEST(rounds_that_add_nothing_are_skipped)
{
    struct blend_kit k;
    float prefill[128];
    open_kit(&k, "llama", 0, 0.24);
    k.profile.first_tokens = 8; /* more than a tenth */
    blend_kit_reopen(&k);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
    CHECK(k.report.n_rounds == 1 && k.report.ratio == 0.25 && k.report.gate.moved >= 0);
    CHECK_INT(k.report.n_recomputed, n_of(0.25));
    /* Nearly all: there is nothing to choose, and nothing to judge by. */
    k.profile.first_tokens = 45;
    blend_kit_set_weight(&k, "mass", -1);
    blend_kit_reopen(&k);
    CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
    CHECK_INT(k.report.reasons, TSR_BLEND_FULL);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK(blend_kit_close(&k));
}

TEST(a_tier_that_fails_costs_its_tokens_and_not_the_answer)
{
    for (uint32_t i = 1; i < 8; i++)
        for (uint32_t sure = 0; sure < 2; sure++) {
            struct blend_kit k;
            float alone[128];
            open_kit(&k, "llama", 0, sure ? 0.4 : 0.9);
            blend_kit_ask_alone(&k, TSR_SELECT_QUERY, -1, TSR_ASK_FILL | TSR_ASK_GATE);
            memcpy(alone, k.logits, sizeof alone);
            struct tsr_blend_report expected = k.report;
            CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
            blend_kit_make_cold(&k);
            fake_tier_fail(&k.tier, FAKE_GET, i, 100, TSR_EIO);
            CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
            CHECK(memcmp(alone, k.logits, sizeof alone) == 0);
            CHECK_INT(k.report.n_rounds, expected.n_rounds);
            CHECK_INT(k.report.n_recomputed, expected.n_recomputed);
            if (i == 1) CHECK(k.report.n_failed > 0);
            CHECK(blend_kit_close(&k));
        }
}

/* Rounds overwrite what was loaded, so nothing may start over once they have begun. It need not: a
 * pass has seen every layer of every piece by then. But a tier may still report trouble after its
 * last layer was copied. */
TEST(trouble_that_a_tier_reports_late_changes_nothing)
{
    struct blend_kit k;
    float expected[128];
    open_kit(&k, "llama", 0, 0.4);
    CHECK_INT(ask(&k, TSR_ASK_GATE), 0);
    memcpy(expected, k.logits, sizeof expected);
    struct tsr_ask_desc desc = blend_kit_ask_of(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE);
    struct tsr_blend_step step;
    struct tsr_run *run;
    int result = 0;
    uint32_t n_layers = 0;
    CHECK_INT(tsr_blend_start(&run, k.blend, &desc, NULL), 0);
    while (tsr_blend_next(run, result, &step) > 0) {
        result = tsri_blend_step(desc.session, &step);
        n_layers += step.kind == TSR_STEP_LAYER;
        if (n_layers == 7 && step.kind == TSR_STEP_LAYER) run->n_lost = -1; /* in round two */
    }
    CHECK_INT(n_layers, 4 * 3);
    tsr_blend_end(run, k.logits, NULL);
    CHECK(memcmp(expected, k.logits, sizeof expected) == 0);
    CHECK(blend_kit_close(&k));
}

/* The last of these rounds recomputes every token, over nothing that was loaded. */
TEST(a_round_of_everything_is_a_prefill)
{
    struct blend_kit k;
    float prefill[128];
    open_kit(&k, "llama", 0, 0.9981);
    k.profile.rounds[2] = 0.998;
    blend_kit_reopen(&k);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(ask(&k, TSR_ASK_ROUNDS | TSR_ASK_PREFIX), 0);
    CHECK_INT(k.report.n_reused, 0);
    CHECK(k.report.sure == 1);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_PREFIX), 0);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0); /* the stored prefix is exact */
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(a_sure_answer_stops_the_rounds);
    RUN(a_trial_that_costs_more_than_it_saves_is_not_made);
    RUN(shares_that_never_pay_and_shares_that_are_not_known);
    RUN(nothing_is_looked_at_for_a_trial_that_is_not_made);
    RUN(after_the_last_round_comes_a_prefill);
    RUN(an_answer_over_rounded_text_is_not_called_sure);
    RUN(a_round_computes_all_that_is_selected_and_the_question);
    RUN(a_round_gives_what_one_ask_at_its_ratio_gives);
    RUN(the_answer_moves_from_round_to_round);
    RUN(without_a_gate_or_with_a_ratio_there_is_one_round);
    RUN(all_rounds_can_be_asked_for);
    RUN(a_leading_document_has_rounds_and_a_gate_of_its_own);
    RUN(where_none_can_lead_its_settings_do_not_act);
    RUN(rounds_that_add_nothing_are_skipped);
    RUN(a_tier_that_fails_costs_its_tokens_and_not_the_answer);
    RUN(trouble_that_a_tier_reports_late_changes_nothing);
    RUN(a_round_of_everything_is_a_prefill);
    return test_end();
}
