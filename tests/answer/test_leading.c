/* What looking cost is part of the answer's report, and what the answer itself was stays. */
#include "answer/answer.h"
#include "support/test.h"

TEST(time_and_what_was_stored_add_up)
{
    struct tsr_blend_report look = {.size = sizeof look,
                                    .n_tokens = 100,
                                    .n_reused = 90,
                                    .n_filled = 40,
                                    .n_filled_reused = 40,
                                    .n_stored = 40,
                                    .n_failed = 3,
                                    .reasons = TSR_BLEND_FAULT | TSR_BLEND_FEW,
                                    .lookup_s = 1,
                                    .wait_s = 2,
                                    .fill_s = 3,
                                    .query_s = 4,
                                    .total_s = 10};
    struct tsr_blend_report r = {.size = sizeof r,
                                 .n_tokens = 100,
                                 .n_reused = 60,
                                 .n_stored = 16,
                                 .reasons = TSR_BLEND_RAISED,
                                 .query_s = 1,
                                 .total_s = 5};
    tsri_leading_count(&r, &look);
    CHECK_INT(r.n_tokens, 100);
    CHECK_INT(r.n_reused, 60); /* of the prompt that was answered */
    CHECK_INT(r.n_filled, 40);
    CHECK_INT(r.n_filled_reused, 40);
    CHECK_INT(r.n_stored, 56);
    CHECK_INT(r.n_failed, 3);
    CHECK_INT(r.reasons, TSR_BLEND_RAISED | TSR_BLEND_FAULT);
    CHECK(r.lookup_s == 1 && r.wait_s == 2 && r.fill_s == 3 && r.query_s == 5 && r.total_s == 15);
}

TEST(what_was_filled_and_is_not_reused_does_not_count_as_reused)
{
    struct tsr_blend_report look = {.size = sizeof look, .n_filled = 90, .n_filled_reused = 90};
    struct tsr_blend_report r = {.size = sizeof r, .n_tokens = 100, .n_exact = 20, .n_new = 80};
    tsri_leading_count(&r, &look);
    CHECK_INT(r.n_filled, 90);
    CHECK_INT(r.n_filled_reused, 20);
}

int main(void)
{
    RUN(what_was_filled_and_is_not_reused_does_not_count_as_reused);
    RUN(time_and_what_was_stored_add_up);
    return test_end();
}
