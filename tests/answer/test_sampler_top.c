/* test_sampler_top.c - the most likely token, whatever the vocabulary's size and wherever it is. */
#include "answer/answer.h"

#include "support/test.h"

#include <math.h>

enum { MOST = 37 };

static uint32_t pick(const float *logits, uint32_t n)
{
    struct tsri_sampler s;
    CHECK_INT(tsri_sampler_init(&s, n), 0);
    uint32_t token = tsri_sampler_pick(&s, logits, n);
    tsri_sampler_fini(&s);
    return token;
}

TEST(without_a_temperature_the_most_likely_token_is_picked)
{
    float logits[MOST];
    for (uint32_t n = 1; n <= MOST; n++)
        for (uint32_t at = 0; at < n; at++) {
            for (uint32_t i = 0; i < n; i++)
                logits[i] = -3 - (float)i;
            logits[at] = -2;
            CHECK_INT(pick(logits, n), at);
        }
}

TEST(of_equal_tokens_the_first_is_picked)
{
    float logits[MOST];
    for (uint32_t i = 0; i < MOST; i++)
        logits[i] = i % 5 == 3 ? 7 : -7;
    CHECK_INT(pick(logits, MOST), 3);
    for (uint32_t i = 0; i < MOST; i++)
        logits[i] = i % 2 ? 0.0f : -0.0f;
    CHECK_INT(pick(logits, MOST), 0);
}

TEST(what_is_not_a_number_is_not_picked)
{
    float logits[MOST];
    for (uint32_t i = 0; i < MOST; i++)
        logits[i] = i == 20 ? 1 : i % 3 == 1 ? NAN : 0;
    CHECK_INT(pick(logits, MOST), 20);
    for (uint32_t i = 0; i < MOST; i++)
        logits[i] = NAN;
    CHECK_INT(pick(logits, MOST), TSRI_NO_TOKEN);
    logits[7] = -3;
    CHECK_INT(pick(logits, MOST), 7);
    logits[9] = INFINITY; /* a sum that has overflowed */
    CHECK_INT(pick(logits, MOST), TSRI_NO_TOKEN);
}

int main(void)
{
    RUN(without_a_temperature_the_most_likely_token_is_picked);
    RUN(of_equal_tokens_the_first_is_picked);
    RUN(what_is_not_a_number_is_not_picked);
    return test_end();
}
