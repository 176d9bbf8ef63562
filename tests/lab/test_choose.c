/* test_choose.c - the profile is the one that the rows speak for. */
#include "lab/quality.h"
#include "blend/blend.h"

#include "support/said.h"
#include "support/test.h"

#include <math.h>
#include <stddef.h>

static struct tsri_quality_rows rows;
static const struct tsri_choose wanted = {.ratio = 0.05, .gate_limit = 0.8};

static double mean_kl(const struct tsri_setting *s)
{
    return tsri_quality_mean(&rows, s, offsetof(struct tsri_quality_row, kl));
}

static void add_rows(const char *set, uint32_t n, struct tsri_setting s, double kl)
{
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_quality_row r = {
            .setting = s, .kl = kl, .kl_answer = kl, .full_s = 10, .blend_s = 2, .same = 1};
        snprintf(r.set, sizeof r.set, "%s", set);
        snprintf(r.id, sizeof r.id, "%u", i);
        r.gate = TSRI_GATE_UNKNOWN;
        r.same_answer = r.says_same = NAN;
        CHECK_INT(tsri_quality_add(&rows, &r), 0);
    }
}

static struct tsri_setting setting(uint32_t selector, uint32_t context, double ratio, double bias)
{
    return (struct tsri_setting){selector, context, ratio, bias, false, {0, 0}, 0};
}

TEST(sets_count_alike_however_many_questions_they_have)
{
    struct tsri_setting s = setting(TSR_SELECT_QUERY, TSR_CONTEXT_SAME, 0.05, 0);
    add_rows("large", 9, s, 1);
    add_rows("small", 1, s, 3);
    CHECK(fabs(mean_kl(&s) - 2) < 1e-12);
    s.bias = -1;
    CHECK(isnan(mean_kl(&s)));
    tsri_quality_fini(&rows);
}

TEST(the_best_setting_at_the_ratio_wins_with_a_bias_for_each_ratio)
{
    struct tsr_profile p = {.size = sizeof p};
    struct tsri_gate_result gate;
    add_rows("a", 2, setting(TSR_SELECT_NONE, TSR_CONTEXT_PURE, 0, 0), 0.9);
    add_rows("a", 2, setting(TSR_SELECT_NONE, TSR_CONTEXT_PURE, 0, -0.7), 0.5);
    add_rows("a", 2, setting(TSR_SELECT_QUERY, TSR_CONTEXT_PURE, 0.05, 0), 0.3);
    add_rows("a", 2, setting(TSR_SELECT_QUERY, TSR_CONTEXT_PURE, 0.05, -0.3), 0.1);
    add_rows("a", 2, setting(TSR_SELECT_QUERY, TSR_CONTEXT_PURE, 0.15, 0), 0.01);
    add_rows("a", 2, setting(TSR_SELECT_QUERY, TSR_CONTEXT_SAME, 0.05, -0.3), 0.2);
    add_rows("a", 2, setting(TSR_SELECT_HKVD, TSR_CONTEXT_SAME, 0.05, 0), 0.15);
    CHECK_INT(tsri_choose_profile(&rows, &wanted, &p, &gate), 0);
    CHECK(p.selector == TSR_SELECT_QUERY && p.context == TSR_CONTEXT_PURE && p.ratio == 0.05);
    CHECK(tsr_profile_bias(&p, 0, 4) == -0.7 && tsr_profile_bias(&p, 0.05, 4) == -0.3);
    CHECK(tsr_profile_bias(&p, 0.15, 4) == 0);
    CHECK_INT(p.n_frontier, 7);
    CHECK(p.frontier[3].kl == 0.1 && p.frontier[3].speedup == 5 && p.frontier[3].n_prompts == 2);
    CHECK(gate.n == 0 && isnan(tsr_gate_predict(&p, &rows.items[0].gate))); /* too few */
    struct tsri_choose half = {.ratio = 0.5, .gate_limit = 0.95};
    CHECK_INT(tsri_choose_profile(&rows, &half, &p, &gate), CLI_FAILED);
    CHECK_HAS(said(), "ratio 0.5");
    tsri_quality_fini(&rows);
}

TEST(the_layers_that_chose_best_are_in_the_profile)
{
    struct tsr_profile p = {.size = sizeof p};
    struct tsri_gate_result gate;
    struct tsri_setting all = setting(TSR_SELECT_QUERY, TSR_CONTEXT_SAME, 0.05, 0), late = all;
    all.layers[1] = 1;
    late.layers[0] = 0.75, late.layers[1] = 1;
    add_rows("a", 2, all, 0.3);
    add_rows("a", 2, late, 0.1);
    all.ratio = late.ratio = 0.15;
    all.bias = -1;
    add_rows("a", 2, all, 0.01); /* of other layers: no point of the curve */
    add_rows("a", 2, late, 0.02);
    CHECK_INT(tsri_choose_profile(&rows, &wanted, &p, &gate), 0);
    CHECK(p.query_layers[0] == 0.75 && p.query_layers[1] == 1);
    CHECK(tsr_profile_bias(&p, 0.15, 4) == 0);
    CHECK_INT(p.n_frontier, 4);
    CHECK(p.frontier[0].layers_to == 1 && p.frontier[1].layers_from == 0.75);
    tsri_quality_fini(&rows);
}

/* A world in which entropy says it all: the gate must find it, also for questions it has not seen.
 */
TEST(the_gate_learns_what_can_be_learned)
{
    struct tsr_profile p = {.size = sizeof p};
    struct tsri_gate_result gate;
    add_rows("a", 100, setting(TSR_SELECT_QUERY, TSR_CONTEXT_SAME, 0.05, 0), 0);
    for (uint32_t i = 0; i < 100; i++) {
        double entropy = 2.0 * ((i * 37) % 100) / 100.0;
        rows.items[i].gate = (struct tsr_gate){.moved = 0.1, .mass = 0.1, .entropy = entropy};
        rows.items[i].same_answer = entropy < 1;
    }
    CHECK_INT(tsri_choose_profile(&rows, &wanted, &p, &gate), 0);
    CHECK_INT(gate.n, 100);
    CHECK(fabs(gate.same - 0.5) < 1e-9);
    CHECK(gate.shown > 0.3 && gate.shown <= 0.5 && gate.shown_same > 0.95);
    double n = 0;
    for (uint32_t i = 0; i < TSRI_GATE_BINS; i++)
        n += gate.bins[i].n;
    CHECK(n == 100 && gate.bins[0].n_same / gate.bins[0].n < 0.1);
    CHECK(gate.bins[TSRI_GATE_BINS - 1].mean >= 0.95);
    struct tsr_gate sure = {.moved = 0.1, .mass = 0.1, .entropy = 0.1}, unsure = sure;
    unsure.entropy = 1.9;
    CHECK(p.gate_limit == 0.8);
    CHECK(tsr_gate_predict(&p, &sure) > 0.9 && tsr_gate_predict(&p, &unsure) < 0.1);
    tsri_quality_fini(&rows);
}

/* What an answer says counts, not its words; a table without that has only the words. */
TEST(the_gate_learns_what_answers_say)
{
    struct tsr_profile p = {.size = sizeof p};
    struct tsri_gate_result gate;
    add_rows("a", 100, setting(TSR_SELECT_QUERY, TSR_CONTEXT_SAME, 0.05, 0), 0);
    for (uint32_t i = 0; i < 100; i++) {
        double entropy = 2.0 * ((i * 37) % 100) / 100.0;
        rows.items[i].gate = (struct tsr_gate){.moved = 0.1, .mass = 0.1, .entropy = entropy};
        rows.items[i].says_same = i < 10 ? NAN : entropy < 1;
        rows.items[i].same_answer = i < 10 ? entropy < 1 : i % 4 == 0;
    }
    CHECK_INT(tsri_choose_profile(&rows, &wanted, &p, &gate), 0);
    CHECK_INT(gate.n, 100);
    CHECK(fabs(gate.same - 0.5) < 1e-9 && gate.words < 0.35);
    CHECK(gate.shown > 0.3 && gate.shown_same > 0.95 && gate.shown_words < 0.5);
    double n_words = 0;
    for (uint32_t i = 0; i < TSRI_GATE_BINS; i++)
        n_words += gate.bins[i].n_words;
    CHECK(fabs(n_words - 100 * gate.words) < 1e-9);
    tsri_quality_fini(&rows);
}

/* Round one knows nothing, round two everything: both are learned from, by what they moved. */
TEST(the_gate_learns_from_every_round)
{
    const double ratios[] = {0.05, 0.2};
    struct tsri_choose two = {.ratio = 0.05, .gate_limit = 0.8, .rounds = ratios, .n_rounds = 2};
    struct tsr_profile p = {.size = sizeof p};
    struct tsri_gate_result gate;
    struct tsri_setting one = setting(TSR_SELECT_QUERY, TSR_CONTEXT_SAME, 0.05, 0), second = one;
    second.ratio = 0.2, second.n_rounds = 2;
    struct tsri_setting other = second; /* at once: no round of the profile */
    other.n_rounds = 0;
    add_rows("a", 50, one, 0.5);
    add_rows("a", 50, second, 0.1);
    add_rows("a", 50, other, 0.1);
    for (uint32_t i = 0; i < 150; i++) {
        bool later = i >= 50;
        rows.items[i].gate = (struct tsr_gate){.moved = later ? 0.001 : 0.5};
        rows.items[i].same_answer = later;
    }
    CHECK_INT(tsri_choose_profile(&rows, &two, &p, &gate), 0);
    CHECK_INT(gate.n, 100);
    CHECK(fabs(gate.shown - 0.5) < 1e-9 && gate.shown_same == 1);
    CHECK(p.n_rounds == 2 && p.rounds[1] == 0.2 && p.ratio == 0.05);
    CHECK_INT(p.n_frontier, 3);
    CHECK_INT(p.frontier[1].n_rounds, 2);
    tsri_quality_fini(&rows);
}

int main(void)
{
    said_init();
    RUN(sets_count_alike_however_many_questions_they_have);
    RUN(the_best_setting_at_the_ratio_wins_with_a_bias_for_each_ratio);
    RUN(the_layers_that_chose_best_are_in_the_profile);
    RUN(the_gate_learns_what_can_be_learned);
    RUN(the_gate_learns_what_answers_say);
    RUN(the_gate_learns_from_every_round);
    return test_end();
}
