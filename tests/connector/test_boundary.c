/* Which tokens may be saved, line by line; test_schedule.c proves that the rules are enough. */
#include "connector/connector.h"
#include "support/test.h"

static uint32_t running(uint32_t rule, uint32_t computed, uint32_t placeholders, uint32_t in_flight,
                        uint32_t tokens)
{
    struct tsri_counters c = {.n_computed = computed,
                              .n_placeholders = placeholders,
                              .n_in_flight = in_flight,
                              .n_tokens = tokens,
                              .n_prompt = 10};
    return tsri_boundary(rule, TSRI_RUNNING, &c);
}

static uint32_t ended(enum tsri_stage stage, uint32_t computed, uint32_t placeholders,
                      uint32_t in_flight, uint32_t tokens)
{
    struct tsri_counters c = {.n_computed = computed,
                              .n_placeholders = placeholders,
                              .n_in_flight = in_flight,
                              .n_tokens = tokens,
                              .n_prompt = 10};
    return tsri_boundary(TSR_BOUNDARY_IN_FLIGHT, stage, &c);
}

TEST(what_is_in_flight_is_not_saved)
{
    CHECK_INT(running(TSR_BOUNDARY_IN_FLIGHT, 100, 1, 100, 100), 0);
    CHECK_INT(running(TSR_BOUNDARY_IN_FLIGHT, 101, 1, 1, 101), 100);
    CHECK_INT(running(TSR_BOUNDARY_IN_FLIGHT, 103, 3, 3, 101), 100);
}

TEST(placeholders_are_not_saved_under_the_other_rule)
{
    CHECK_INT(running(TSR_BOUNDARY_PLACEHOLDERS, 103, 3, 3, 101), 100);
    CHECK_INT(running(TSR_BOUNDARY_PLACEHOLDERS, 105, 3, 3, 103), 102);
    CHECK_INT(running(TSR_BOUNDARY_PLACEHOLDERS, 64, 0, 32, 100), 64);
}

TEST(without_asynchronous_scheduling_both_rules_are_one)
{
    for (uint32_t computed = 0; computed < 50; computed++)
        CHECK_INT(running(TSR_BOUNDARY_IN_FLIGHT, computed, 0, 0, 40),
                  running(TSR_BOUNDARY_PLACEHOLDERS, computed, 0, 0, 40));
}

TEST(nothing_is_saved_beyond_what_is_known)
{
    CHECK_INT(running(TSR_BOUNDARY_IN_FLIGHT, 120, 0, 0, 110), 110);
}

TEST(counters_that_contradict_each_other_save_less)
{
    CHECK_INT(running(TSR_BOUNDARY_IN_FLIGHT, 5, 0, 9, 100), 0);
    CHECK_INT(running(TSR_BOUNDARY_PLACEHOLDERS, 5, 9, 0, 100), 0);
}

TEST(the_last_token_sampled_has_no_kv)
{
    CHECK_INT(ended(TSRI_FINISHED, 16, 0, 0, 16), 15);
    CHECK_INT(ended(TSRI_FINISHED, 10, 0, 0, 10), 10); /* a prompt alone */
    CHECK_INT(ended(TSRI_FINISHED, 18, 1, 2, 17), 16);
}

TEST(who_is_aborted_saves_nothing_that_is_under_way)
{
    CHECK_INT(ended(TSRI_ABORTED, 40, 2, 5, 38), 35);
    CHECK_INT(ended(TSRI_ABORTED, 40, 5, 2, 38), 35);
    CHECK_INT(ended(TSRI_ABORTED, 3, 5, 2, 38), 0);
}

TEST(a_window_keeps_its_last_tokens)
{
    struct tsr_group g = {.block_tokens = 1};
    CHECK_INT(tsri_window_first(&g, 1000), 0); /* no window */
    g.window_tokens = 64;
    CHECK_INT(tsri_window_first(&g, 63), 0);
    CHECK_INT(tsri_window_first(&g, 64), 1); /* token 64 sees 1 to 64 */
    CHECK_INT(tsri_window_first(&g, 100), 37);
    CHECK_INT(tsri_window_first(&g, UINT32_MAX), UINT32_MAX - 63);
    /* A block goes when all of it has left. */
    g.block_tokens = 16;
    CHECK_INT(tsri_window_first(&g, 64), 0);
    CHECK_INT(tsri_window_first(&g, 78), 0);
    CHECK_INT(tsri_window_first(&g, 79), 16);
}

int main(void)
{
    RUN(what_is_in_flight_is_not_saved);
    RUN(placeholders_are_not_saved_under_the_other_rule);
    RUN(without_asynchronous_scheduling_both_rules_are_one);
    RUN(nothing_is_saved_beyond_what_is_known);
    RUN(counters_that_contradict_each_other_save_less);
    RUN(the_last_token_sampled_has_no_kv);
    RUN(who_is_aborted_saves_nothing_that_is_under_way);
    RUN(a_window_keeps_its_last_tokens);
    return test_end();
}
