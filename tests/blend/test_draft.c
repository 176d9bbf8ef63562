/* The draft: the answer before a round, compared with what the round says in its place. */
#include "blend/passes.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

static const uint32_t docs[] = {70, 40, 66, 50};
#define VOCAB 128u
#define DRAFT 8u
#define MAX_TOKENS 320u

/* Rounds at these ratios, and a gate that is sure of the last one. */
static void open_kit(struct blend_kit *k, uint64_t seed, const double *ratios, uint32_t n)
{
    blend_kit_open(k, "llama", TSR_DTYPE_F16, 0);
    k->profile.n_rounds = n;
    memcpy(k->profile.rounds, ratios, n * sizeof *ratios);
    k->profile.draft = DRAFT;
    k->profile.gate_limit = 0.5;
    blend_kit_set_weight(k, "constant", -1000 * (ratios[n - 1] - 0.01));
    blend_kit_set_weight(k, "ratio", 1000);
    blend_kit_reopen(k);
    blend_kit_prompt(k, seed, 20, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
}

struct answer {
    uint32_t tokens[DRAFT];
    double margins[DRAFT];
};

/* Decodes after the prompt that the session holds, as its owner would. */
static struct answer decode(struct blend_kit *k)
{
    struct answer a;
    float logits[VOCAB];
    memcpy(logits, k->logits, sizeof logits);
    for (uint32_t i = 0; i < DRAFT; i++) {
        a.margins[i] = tsri_logits_margin(logits, VOCAB, &a.tokens[i]);
        k->tokens[k->n_tokens + i] = a.tokens[i];
        if (i + 1 < DRAFT) model_kit_prefill(&k->model, k->tokens, k->n_tokens + i, 1, logits);
    }
    return a;
}

static struct answer answer_at(struct blend_kit *k, double ratio)
{
    CHECK_INT(blend_kit_ask(k, ratio > 0 ? TSR_SELECT_QUERY : TSR_SELECT_NONE, ratio, 0), 0);
    return decode(k);
}

static uint32_t n_equal(const struct answer *a, const struct answer *b)
{
    uint32_t n = 0;
    while (n < DRAFT && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

/* What the gate is told is what both answers say, whichever round comes last. */
TEST(the_gate_is_told_whether_a_round_changes_the_answer)
{
    const double ratios[] = {0.1, 0.3, 0.7};
    uint32_t n_agreed = 0, n_changed = 0;
    for (uint64_t seed = 1; seed <= 12; seed++)
        for (uint32_t n = 1; n <= 3; n++) {
            struct blend_kit k;
            open_kit(&k, seed, ratios, n);
            struct answer none = answer_at(&k, 0);
            struct answer before = n > 1 ? answer_at(&k, ratios[n - 2]) : none;
            struct answer after = answer_at(&k, ratios[n - 1]);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
            const struct tsr_gate *g = &k.report.gate;
            CHECK_INT(k.report.n_rounds, n);
            uint32_t same = n_equal(&before, &after), looked = same < DRAFT ? same + 1 : DRAFT;
            CHECK_INT((int)g->agree, same == DRAFT);
            double worst = 1, doubt = 0, low = 0;
            for (uint32_t i = 0; i < looked; i++) {
                worst = fmin(worst, after.margins[i]);
                doubt += log(after.margins[i] + 0.02) / looked;
                low += after.margins[i] < 0.2;
            }
            CHECK(fabs(g->worst - worst) < 1e-6 && fabs(g->doubt - doubt) < 1e-5);
            CHECK(g->low == low);
            double first = 1; /* of the answer before all rounds, whichever comes last */
            for (uint32_t i = 0; i < DRAFT; i++)
                first = fmin(first, none.margins[i]);
            CHECK(fabs(g->draft - first) < 1e-6);
            n_agreed += same == DRAFT;
            n_changed += same < DRAFT;
            CHECK(blend_kit_close(&k));
        }
    CHECK(n_agreed > 0 && n_changed > 0); /* otherwise this shows nothing */
}

TEST(a_draft_does_not_change_the_answer)
{
    const double ratios[] = {0.1, 0.3};
    struct blend_kit k;
    float with[VOCAB], prefill[VOCAB];
    open_kit(&k, 3, ratios, 2);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
    memcpy(with, k.logits, sizeof with);
    struct answer drafted = decode(&k);
    k.profile.draft = 0;
    blend_kit_reopen(&k);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
    CHECK(memcmp(with, k.logits, sizeof with) == 0);
    CHECK(k.report.gate.agree == 0 && k.report.gate.worst == k.report.gate.margin);
    CHECK(isnan(k.report.gate.draft));
    struct answer plain = decode(&k);
    CHECK_INT(n_equal(&drafted, &plain), DRAFT);
    /* A gate that is never sure: a prefill, bit by bit. */
    k.profile.draft = DRAFT;
    blend_kit_set_weight(&k, "constant", -1e6);
    blend_kit_reopen(&k);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
    CHECK_INT(k.report.reasons, TSR_BLEND_RAISED | TSR_BLEND_FULL);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK(blend_kit_close(&k));
}

/* Passes of a run whose documents are known; rows of each. */
static uint32_t watch(struct blend_kit *k, uint32_t flags, uint32_t *n_rows, uint32_t max)
{
    struct tsr_ask_desc desc = blend_kit_ask_of(k, TSR_SELECT_QUERY, -1, flags);
    struct tsr_blend_step step;
    struct tsr_run *run;
    uint32_t n = 0;
    int result = 0;
    CHECK_INT(tsr_blend_start(&run, k->blend, &desc, NULL), 0);
    while (tsr_blend_next(run, result, &step) > 0) {
        if (step.kind == TSR_STEP_BEGIN && n < max) n_rows[n++] = step.pass.n_rows;
        result = tsri_blend_step(desc.session, &step);
    }
    CHECK_INT(result, 0);
    tsr_blend_end(run, k->logits, NULL);
    return n;
}

/* Where the draft ends, decoding goes on as if it had decoded all of it. */
TEST(the_draft_is_handed_over)
{
    const double ratios[] = {0.1, 0.3};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct blend_kit k;
        uint32_t n;
        float on[VOCAB], again[VOCAB];
        open_kit(&k, seed, ratios, 2);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
        const uint32_t *draft = tsr_blend_draft(k.blend, &n);
        CHECK(n > 0 && n <= DRAFT);
        memcpy(k.tokens + k.n_tokens, draft, n * sizeof *draft);
        model_kit_prefill(&k.model, k.tokens, k.n_tokens + n - 1, 1, on);
        struct answer a = decode(&k);
        CHECK(memcmp(a.tokens, draft, n * sizeof *draft) == 0);
        model_kit_prefill(&k.model, k.tokens, k.n_tokens + n - 1, 1, again);
        CHECK(memcmp(on, again, sizeof on) == 0);
        /* None after an ask without one, or that computes everything. */
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.1, 0), 0);
        (void)tsr_blend_draft(k.blend, &n);
        CHECK_INT(n, 0);
        blend_kit_set_weight(&k, "constant", -1e6);
        blend_kit_reopen(&k);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
        (void)tsr_blend_draft(k.blend, &n);
        CHECK_INT(n, 0);
        CHECK(blend_kit_close(&k));
    }
}

TEST(a_draft_costs_a_row_a_token)
{
    const double ratios[] = {0.3};
    struct blend_kit k;
    uint32_t n_rows[16];
    open_kit(&k, 3, ratios, 1);
    uint32_t n = watch(&k, TSR_ASK_GATE, n_rows, 16);
    CHECK_INT(n, 1 + (DRAFT - 1) + 1); /* the question, the draft, one round */
    for (uint32_t i = 1; i < DRAFT; i++)
        CHECK_INT(n_rows[i], 1);
    uint32_t with = n_rows[n - 1];
    CHECK_INT(watch(&k, 0, n_rows, 16), 2); /* nothing is judged: no draft */
    k.profile.draft = 1;
    blend_kit_reopen(&k);
    CHECK_INT(watch(&k, TSR_ASK_GATE, n_rows, 16), 2); /* the question's pass gives it */
    CHECK_INT(with, n_rows[1] + DRAFT - 1);
    k.profile.draft = DRAFT;
    k.profile.bias = (struct tsr_curve){.n = 1, .points = {{0, -0.5}}};
    blend_kit_reopen(&k);
    CHECK_INT(watch(&k, TSR_ASK_GATE, n_rows, 16), 2); /* its rows would need none */
    CHECK(blend_kit_close(&k));
}

TEST(a_draft_ends_where_the_slots_do)
{
    const double ratios[] = {0.3};
    for (uint32_t room = 0; room < DRAFT + 2; room++) {
        struct blend_kit k;
        uint32_t n_rows[16];
        open_kit(&k, 3, ratios, 1);
        struct tsr_session *own = k.model.session;
        CHECK_INT(tsr_session_open(&k.model.session, k.model.model, k.n_tokens + room), 0);
        uint32_t drafted = room < DRAFT ? room : DRAFT;
        CHECK_INT(watch(&k, TSR_ASK_GATE, n_rows, 16), 2 + (drafted ? drafted - 1 : 0));
        tsr_session_close(k.model.session);
        k.model.session = own;
        CHECK(blend_kit_close(&k));
    }
}

TEST(an_answer_that_wavers_is_not_tried)
{
    const double ratios[] = {0.1, 0.3};
    struct blend_kit k;
    float prefill[VOCAB];
    uint32_t n_rows[16];
    open_kit(&k, 3, ratios, 2);
    blend_kit_prefill(&k, prefill);
    struct answer plain = answer_at(&k, 0);
    double worst = 1;
    for (uint32_t i = 0; i < DRAFT; i++)
        worst = fmin(worst, plain.margins[i]);
    k.profile.draft_floor = worst * 0.99;
    blend_kit_reopen(&k);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
    CHECK_INT(k.report.n_rounds, 2);
    k.profile.draft_floor = worst * 1.01;
    blend_kit_reopen(&k);
    /* The question, the draft up to the token that wavers, and everything: no round. */
    uint32_t first = 0;
    while (plain.margins[first] >= k.profile.draft_floor)
        first++;
    CHECK(first + 1 < DRAFT); /* otherwise this does not show that the draft ends there */
    CHECK_INT(watch(&k, TSR_ASK_GATE, n_rows, 16), first + 2);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE), 0);
    CHECK(k.report.n_rounds == 0 && k.report.reasons == TSR_BLEND_FULL && k.report.sure == 1);
    CHECK(fabs(k.report.gate.draft - plain.margins[first]) < 1e-6);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_ROUNDS), 0);
    CHECK_INT(k.report.n_rounds, 2); /* measuring goes through all of them */
    CHECK(blend_kit_close(&k));
}

/* The states that a run chooses for its round, and what rows look at, added up apart from it. */
struct looks {
    uint8_t states[MAX_TOKENS];
    float question[MAX_TOKENS], draft[MAX_TOKENS];
    uint32_t n_question, n_draft;
};

static void add_looks(struct looks *l, const struct tsr_model_pass *pass, const float *mass,
                      uint32_t n)
{
    float *sum = pass->flags & TSR_PASS_DECODE ? l->draft : l->question;
    for (uint32_t i = 0; i < n; i++)
        sum[i] += mass[i];
}

static void watch_looks(struct blend_kit *k, struct looks *l)
{
    struct tsr_ask_desc desc = blend_kit_ask_of(k, TSR_SELECT_QUERY, -1, TSR_ASK_GATE);
    struct tsr_blend_step step;
    struct tsr_model_pass pass = {0};
    struct tsr_run *run;
    float mass[MAX_TOKENS];
    int result = 0;
    memset(l, 0, sizeof *l);
    CHECK_INT(tsr_blend_start(&run, k->blend, &desc, NULL), 0);
    while (tsr_blend_next(run, result, &step) > 0) {
        float *wanted = step.kind == TSR_STEP_LAYER ? step.layer.mass : NULL;
        if (step.kind == TSR_STEP_BEGIN) {
            pass = step.pass;
            if (pass.flags & TSR_PASS_DECODE)
                l->n_draft += pass.n_mass_rows;
            else
                l->n_question += pass.n_mass_rows;
        }
        if (wanted) {
            memset(mass, 0, sizeof mass);
            step.layer.mass = mass;
        }
        result = tsri_blend_step(desc.session, &step);
        for (uint32_t i = 0; wanted && i < step.layer.n_mass; i++)
            wanted[i] += mass[i];
        if (wanted) add_looks(l, &pass, mass, step.layer.n_mass);
    }
    CHECK_INT(result, 0);
    memcpy(l->states, tsr_blend_states(run), k->n_tokens);
    tsr_blend_end(run, k->logits, NULL);
}

/* A token that is chosen has no smaller score than one that is not. */
static bool is_best(const struct looks *l, uint32_t n)
{
    float least = INFINITY, most = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        float score = l->question[i] / (float)l->n_question;
        if (l->n_draft) score += l->draft[i] / (float)l->n_draft;
        if (l->states[i] == TSR_TOKEN_SELECTED) least = fminf(least, score);
        if (l->states[i] == TSR_TOKEN_CANDIDATE) most = fmaxf(most, score);
    }
    return isfinite(least) && isfinite(most) && least >= most * (1 - 1e-5f);
}

TEST(what_the_draft_looks_at_is_chosen_too)
{
    const double ratios[] = {0.2};
    uint32_t n_other = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct blend_kit k;
        struct looks alone, both;
        open_kit(&k, seed, ratios, 1);
        CHECK(k.n_tokens <= MAX_TOKENS);
        watch_looks(&k, &alone);
        CHECK_INT(alone.n_draft, 0);
        CHECK(is_best(&alone, k.n_tokens));
        k.profile.draft_selects = 1;
        blend_kit_reopen(&k);
        watch_looks(&k, &both);
        CHECK_INT(both.n_draft, DRAFT - 1);
        CHECK(memcmp(alone.question, both.question, sizeof alone.question) == 0);
        CHECK(is_best(&both, k.n_tokens));
        n_other += memcmp(alone.states, both.states, k.n_tokens) != 0;
        CHECK(blend_kit_close(&k));
    }
    CHECK(n_other > 0);
}

int main(void)
{
    RUN(the_gate_is_told_whether_a_round_changes_the_answer);
    RUN(a_draft_does_not_change_the_answer);
    RUN(the_draft_is_handed_over);
    RUN(a_draft_costs_a_row_a_token);
    RUN(a_draft_ends_where_the_slots_do);
    RUN(an_answer_that_wavers_is_not_tried);
    RUN(what_the_draft_looks_at_is_chosen_too);
    return test_end();
}
