/* How likely an answer is a prefill's own, and the bias by ratio and chunks. */
#include "blend/blend.h"
#include "support/test.h"

#include <math.h>

TEST(kl_is_zero_for_the_same_and_right_for_two_coins)
{
    const float p[] = {logf(0.5f), logf(0.5f)}, q[] = {logf(0.25f), logf(0.75f)};
    const float shifted[] = {p[0] + 3, p[1] + 3};
    CHECK(fabs(tsr_logits_kl(p, q, 2) - (0.5 * log(2) + 0.5 * log(2.0 / 3))) < 1e-6);
    CHECK(tsr_logits_kl(p, p, 2) == 0);
    CHECK(tsr_logits_kl(p, shifted, 2) < 1e-12);
    uint32_t token;
    CHECK(fabs(tsr_logits_top(q, 2, &token) - 0.75) < 1e-6);
    CHECK_INT(token, 1);
    const float never[] = {0, -INFINITY};
    CHECK(tsr_logits_kl(never, p, 2) > 0.69);
    CHECK(fabs(tsr_logits_entropy(p, 2) - log(2)) < 1e-6);
    CHECK(tsr_logits_entropy(never, 2) == 0);
}

TEST(logits_show_how_sure_the_first_token_is)
{
    const float before[] = {logf(0.2f), logf(0.5f), logf(0.3f)};
    const float after[] = {logf(0.7f), logf(0.1f), logf(0.2f)};
    struct tsr_gate g = TSRI_GATE_UNKNOWN;
    tsri_gate_read(&g, after, NULL, 3);
    CHECK(fabs(g.top - 0.7) < 1e-6 && fabs(g.margin - 0.5) < 1e-6);
    CHECK(isnan(g.moved) && isnan(g.changed));
    tsri_gate_read(&g, after, before, 3);
    CHECK(g.changed == 1 && fabs(g.moved - tsr_logits_kl(before, after, 3)) < 1e-12);
    tsri_gate_read(&g, after, after, 3);
    CHECK(g.changed == 0 && g.moved == 0);
    const float alone[] = {3};
    tsri_gate_read(&g, alone, NULL, 1);
    CHECK(g.top == 1 && g.margin == 1 && g.entropy == 0);
}

TEST(every_weight_has_a_name)
{
    uint32_t n = 0;
    for (; tsr_gate_weight_name(n); n++)
        for (uint32_t i = 0; i < n; i++)
            CHECK(strcmp(tsr_gate_weight_name(i), tsr_gate_weight_name(n)) != 0);
    CHECK(n > 5 && n <= TSR_GATE_WEIGHTS_MAX);
    CHECK(strcmp(tsr_gate_weight_name(0), "constant") == 0);
}

TEST(the_probability_is_the_logistic_of_the_weighted_values)
{
    struct tsr_profile p;
    struct tsr_gate g = TSRI_GATE_UNKNOWN;
    tsr_profile_init(&p);
    CHECK(isnan(tsr_gate_predict(&p, &g))); /* no gate */
    g.entropy = 2;
    for (uint32_t i = 0; tsr_gate_weight_name(i); i++)
        if (strcmp(tsr_gate_weight_name(i), "entropy") == 0) p.gate[i] = -0.5;
    p.gate[0] = 3;
    CHECK(fabs(tsr_gate_predict(&p, &g) - 1 / (1 + exp(-2))) < 1e-12);
    g.entropy = NAN; /* needed, but not known */
    CHECK(isnan(tsr_gate_predict(&p, &g)));
}

/* Prompts of a world where the answer is the same with a probability that is a law of ours. */
#define PROMPTS 2000u
static struct tsr_gate gates[PROMPTS];
static double same[PROMPTS], law[PROMPTS];

static double uniform(uint64_t *state)
{
    return (double)(test_rand(state) >> 11) * 0x1p-53;
}

static void make_world(void)
{
    uint64_t state = 5;
    for (uint32_t i = 0; i < PROMPTS; i++) {
        gates[i] = (struct tsr_gate){.moved = 0.5 * uniform(&state),
                                     .changed = uniform(&state) < 0.2,
                                     .mass = uniform(&state),
                                     .fresh = 0.3,
                                     .entropy = 2 * uniform(&state),
                                     .top = 0.5,
                                     .margin = 0.2,
                                     .chunk_tokens = 100,
                                     .n_chunks = 8,
                                     .ratio = 0.05};
        double sum = -0.7 * log(gates[i].moved + 1e-4) - 2 * gates[i].changed - gates[i].entropy;
        law[i] = 1 / (1 + exp(-sum));
        same[i] = uniform(&state) < law[i];
    }
}

TEST(a_fit_finds_the_law_that_made_the_answers)
{
    struct tsr_profile p;
    double off = 0;
    make_world();
    tsr_profile_init(&p);
    CHECK_INT(tsr_gate_fit(&p, gates, same, PROMPTS), 0);
    for (uint32_t i = 0; i < PROMPTS; i++)
        off += fabs(tsr_gate_predict(&p, &gates[i]) - law[i]) / PROMPTS;
    CHECK(off < 0.03);
    for (uint32_t i = 0; tsr_gate_weight_name(i); i++) {
        const char *name = tsr_gate_weight_name(i);
        if (strcmp(name, "moved") == 0) CHECK(fabs(p.gate[i] + 0.7) < 0.2);
        if (strcmp(name, "changed") == 0) CHECK(fabs(p.gate[i] + 2) < 0.4);
        if (strcmp(name, "fresh") == 0) CHECK(p.gate[i] == 0); /* always the same: says nothing */
    }
}

TEST(a_value_that_no_prompt_has_is_not_learnt)
{
    struct tsr_profile p, without;
    make_world();
    tsr_profile_init(&p);
    tsr_profile_init(&without);
    CHECK_INT(tsr_gate_fit(&p, gates, same, PROMPTS), 0);
    for (uint32_t i = 0; i < PROMPTS; i++)
        gates[i].draft = NAN;
    CHECK_INT(tsr_gate_fit(&without, gates, same, PROMPTS), 0);
    CHECK(memcmp(p.gate, without.gate, sizeof p.gate) == 0);
    gates[7].draft = 0.5; /* now the others lack it */
    CHECK_INT(tsr_gate_fit(&p, gates, same, PROMPTS), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "1 prompts");
}

TEST(answers_that_are_all_the_same_promise_much_and_not_everything)
{
    struct tsr_profile p;
    make_world();
    for (uint32_t i = 0; i < 40; i++)
        same[i] = 1;
    tsr_profile_init(&p);
    CHECK_INT(tsr_gate_fit(&p, gates, same, 40), 0);
    for (uint32_t i = 0; i < 40; i++)
        CHECK(tsr_gate_predict(&p, &gates[i]) > 0.9 && tsr_gate_predict(&p, &gates[i]) < 0.99);
}

TEST(answers_that_a_value_tells_apart_do_not_break_the_fit)
{
    struct tsr_profile p;
    make_world();
    for (uint32_t i = 0; i < 60; i++)
        same[i] = gates[i].entropy < 1;
    tsr_profile_init(&p);
    CHECK_INT(tsr_gate_fit(&p, gates, same, 60), 0);
    for (uint32_t i = 0; tsr_gate_weight_name(i); i++)
        CHECK(isfinite(p.gate[i]));
    struct tsr_gate low = gates[0], high = gates[0];
    low.entropy = 0.1, high.entropy = 1.9;
    CHECK(tsr_gate_predict(&p, &low) > 0.9 && tsr_gate_predict(&p, &high) < 0.1);
}

TEST(too_few_or_senseless_prompts_are_refused)
{
    struct tsr_profile p, before;
    make_world();
    tsr_profile_init(&p);
    before = p;
    CHECK_INT(tsr_gate_fit(&p, gates, same, 13), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "13 prompts");
    for (uint32_t i = 0; i < 30; i++)
        gates[i].mass = NAN; /* left out */
    CHECK_INT(tsr_gate_fit(&p, gates, same, 40), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "10 prompts");
    same[3] = 0.5;
    CHECK_INT(tsr_gate_fit(&p, gates, same, 40), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "prompt 3");
    CHECK(memcmp(&p, &before, sizeof p) == 0);
}

TEST(the_bias_follows_its_curves)
{
    struct tsr_profile p;
    tsr_profile_init(&p);
    CHECK(tsr_profile_bias(&p, 0, 10) == 0);
    p.bias = (struct tsr_curve){.n = 3, .points = {{0, -0.7}, {0.1, -0.3}, {1, 0}}};
    CHECK(fabs(tsr_profile_bias(&p, 0, 10) + 0.7) < 1e-12);
    CHECK(fabs(tsr_profile_bias(&p, 0.05, 10) + 0.5) < 1e-12);
    CHECK(tsr_profile_bias(&p, 1, 10) == 0);
    CHECK(tsr_profile_bias(&p, 5, 10) == 0);
    p.bias_chunks = (struct tsr_curve){.n = 2, .points = {{1, 0}, {9, 1}}};
    CHECK(tsr_profile_bias(&p, 0, 1) == 0);
    CHECK(fabs(tsr_profile_bias(&p, 0, 5) + 0.35) < 1e-12);
    CHECK(fabs(tsr_profile_bias(&p, 0, 100) + 0.7) < 1e-12);
}

int main(void)
{
    RUN(kl_is_zero_for_the_same_and_right_for_two_coins);
    RUN(logits_show_how_sure_the_first_token_is);
    RUN(every_weight_has_a_name);
    RUN(the_probability_is_the_logistic_of_the_weighted_values);
    RUN(a_fit_finds_the_law_that_made_the_answers);
    RUN(a_value_that_no_prompt_has_is_not_learnt);
    RUN(answers_that_are_all_the_same_promise_much_and_not_everything);
    RUN(answers_that_a_value_tells_apart_do_not_break_the_fit);
    RUN(too_few_or_senseless_prompts_are_refused);
    RUN(the_bias_follows_its_curves);
    return test_end();
}
