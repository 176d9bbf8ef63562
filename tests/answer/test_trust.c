/* test_trust.c - how far an answer can be trusted, in words. */
#include "answer/answer.h"

#include "support/test.h"

#include <math.h>

TEST(what_was_not_approximated_is_exact)
{
    struct tsr_blend_report r = {.n_tokens = 10, .n_new = 10, .sure = NAN};
    CHECK(tsri_trust_sure(&r) == 1);
    r = (struct tsr_blend_report){.n_exact = 4, .n_recomputed = 6, .sure = NAN};
    CHECK(tsri_trust_sure(&r) == 1);
    r = (struct tsr_blend_report){.n_reused = 1, .n_new = 9, .sure = NAN};
    CHECK(isnan(tsri_trust_sure(&r)));
    r.sure = 0.97;
    CHECK(tsri_trust_sure(&r) == 0.97);
    r.sure = 1;
    CHECK_STR(tsri_trust_words(tsri_trust_sure(&r)), "same answer as a full read: very likely");
    r = (struct tsr_blend_report){.n_recomputed = 9, .n_reused = 1, .n_rounds = 2, .sure = 0.9};
    CHECK(tsri_trust_sure(&r) == 0.9);
    r.n_reused = 0; /* the last round computed everything */
    CHECK(tsri_trust_sure(&r) == 1);
    r = (struct tsr_blend_report){.n_new = 10, .bias = -0.5, .sure = NAN};
    CHECK(isnan(tsri_trust_sure(&r)));
}

TEST(trust_has_words)
{
    CHECK_STR(tsri_trust_words(1), "exactly the answer of a full read");
    CHECK_STR(tsri_trust_words(0.999), "same answer as a full read: very likely");
    CHECK_STR(tsri_trust_words(0.95), "same answer as a full read: very likely");
    CHECK_STR(tsri_trust_words(0.9), "same answer as a full read: likely");
    CHECK_STR(tsri_trust_words(0.6), "same answer as a full read: uncertain");
    CHECK_STR(tsri_trust_words(0.1), "same answer as a full read: unlikely");
    CHECK_STR(tsri_trust_words(NAN), "same answer as a full read: not calibrated for this model");
}

int main(void)
{
    RUN(what_was_not_approximated_is_exact);
    RUN(trust_has_words);
    return test_end();
}
