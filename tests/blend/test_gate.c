/* Predicting trouble, and the bias by ratio and chunks. */
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

TEST(a_fit_finds_the_law_that_made_the_errors)
{
    struct tsr_gate gates[200];
    double kl[200];
    uint64_t state = 5;
    for (uint32_t i = 0; i < 200; i++) {
        double u[3];
        for (uint32_t k = 0; k < 3; k++)
            u[k] = (double)(test_rand(&state) >> 11) * 0x1p-53;
        gates[i] = (struct tsr_gate){0.5 * u[0], u[1], 0.3, u[2], 100, 8};
        kl[i] = 0.3 * sqrt(gates[i].moved) * gates[i].mass * gates[i].entropy;
    }
    struct tsr_profile p;
    tsr_profile_init(&p);
    CHECK_INT(tsr_gate_fit(&p, gates, kl, 200), 0);
    uint32_t n_good = 0;
    for (uint32_t i = 0; i < 200; i++) {
        double predicted = tsr_gate_predict(&p, &gates[i]);
        n_good += predicted > kl[i] / 1.6 - 1e-3 && predicted < kl[i] * 1.6 + 1e-3;
    }
    CHECK(n_good >= 180);
    /* Without a question's pass it still knows that an open answer is bad. */
    struct tsr_gate sure = {NAN, NAN, NAN, 0.05, 100, 8}, unsure = {NAN, NAN, NAN, 0.9, 100, 8};
    CHECK(tsr_gate_predict(&p, &sure) < 0.5 * tsr_gate_predict(&p, &unsure));
}

TEST(too_few_or_senseless_prompts_are_refused)
{
    struct tsr_profile p;
    struct tsr_gate gates[20] = {{0}};
    double kl[20] = {0};
    tsr_profile_init(&p);
    CHECK_INT(tsr_gate_fit(&p, gates, kl, 13), TSR_EINVAL);
    CHECK_INT(tsr_gate_fit(&p, gates, kl, 20), 0);
    kl[3] = NAN;
    CHECK_INT(tsr_gate_fit(&p, gates, kl, 20), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "prompt 3");
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
    RUN(a_fit_finds_the_law_that_made_the_errors);
    RUN(too_few_or_senseless_prompts_are_refused);
    RUN(the_bias_follows_its_curves);
    return test_end();
}
