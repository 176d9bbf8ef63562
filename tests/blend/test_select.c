/* Which candidates are computed anew. */
#include "blend/blend.h"
#include "support/test.h"

static uint8_t states[100];
static struct tsri_piece pieces[2];
static uint8_t scratch[4096];

/* Two chunks: tokens 10 .. 49 and 50 .. 89, two seams at the front of each. */
static struct tsri_plan plan_of(void)
{
    struct tsri_plan p = {.n_tokens = 100,
                          .question = 90,
                          .states = states,
                          .pieces = pieces,
                          .n_pieces = 2,
                          .first_tokens = 2};
    for (uint32_t i = 0; i < 2; i++)
        pieces[i] = (struct tsri_piece){
            .match = {.prompt_offset = 10 + 40 * i, .n_tokens = 40, .kind = TSR_KIND_SEGMENT},
            .kind = TSRI_PIECE_LOAD,
            .starts = true,
            .ends = true};
    tsri_plan_paint(&p);
    return p;
}

static int choose(uint32_t id, struct tsri_plan *p, double ratio, const float *scores)
{
    struct tsri_device *device;
    CHECK_INT(tsri_device_open(&device, "cpu", NULL), 0);
    CHECK(tsri_select_bytes(100) <= sizeof scratch);
    struct tsri_select s = {
        .plan = p, .device = device, .ratio = ratio, .scores = scores, .memory = scratch};
    int e = tsri_selector_of(id)->choose(&s);
    tsri_device_close(device);
    return e;
}

TEST(names_and_numbers_agree)
{
    for (uint32_t i = TSR_SELECT_QUERY; i <= TSR_SELECT_FULL; i++)
        CHECK_INT(tsr_selector_find(tsr_selector_name(i)), i);
    CHECK(tsr_selector_name(0) == NULL);
    CHECK_INT(tsr_selector_find("best"), -1);
    CHECK_INT(tsr_selector_find(NULL), -1);
}

TEST(a_budget_counts_the_seams)
{
    struct tsri_plan p = plan_of();
    CHECK_INT(p.n_always, 4);
    CHECK_INT(tsri_select_budget(&p, 0), 0);
    CHECK_INT(tsri_select_budget(&p, 0.05), 0);
    CHECK_INT(tsri_select_budget(&p, 0.1), 4);
    CHECK_INT(tsri_select_budget(&p, 1), 76);
}

TEST(query_takes_what_the_question_looks_at)
{
    struct tsri_plan p = plan_of();
    float scores[100] = {0};
    scores[5] = 9, scores[95] = 9, scores[10] = 9; /* no candidates */
    scores[33] = 3, scores[71] = 2, scores[72] = 1, scores[20] = 0.5f;
    CHECK_INT(choose(TSR_SELECT_QUERY, &p, 7.0 / 80, scores), 0);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_SELECTED), 3);
    CHECK_INT(states[33], TSR_TOKEN_SELECTED);
    CHECK_INT(states[71], TSR_TOKEN_SELECTED);
    CHECK_INT(states[72], TSR_TOKEN_SELECTED);
}

TEST(a_larger_ratio_adds_to_what_is_selected)
{
    struct tsri_plan p = plan_of();
    float scores[100] = {0};
    for (uint32_t i = 0; i < 100; i++)
        scores[i] = (float)((i * 37) % 100);
    uint8_t before[100];
    CHECK_INT(choose(TSR_SELECT_QUERY, &p, 14.0 / 80, scores), 0);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_SELECTED), 10);
    memcpy(before, states, sizeof before);
    CHECK_INT(choose(TSR_SELECT_QUERY, &p, 34.0 / 80, scores), 0);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_SELECTED), 30);
    for (uint32_t i = 0; i < 100; i++)
        if (before[i] == TSR_TOKEN_SELECTED) CHECK_INT(states[i], TSR_TOKEN_SELECTED);
    memcpy(before, states, sizeof before);
    CHECK_INT(choose(TSR_SELECT_QUERY, &p, 14.0 / 80, scores), 0); /* nothing is taken back */
    CHECK(memcmp(before, states, sizeof before) == 0);
    /* The same as at once. */
    tsri_plan_paint(&p);
    CHECK_INT(choose(TSR_SELECT_QUERY, &p, 34.0 / 80, scores), 0);
    CHECK(memcmp(before, states, sizeof before) == 0);
}

TEST(link_takes_the_front_of_every_chunk)
{
    struct tsri_plan p = plan_of();
    CHECK_INT(choose(TSR_SELECT_LINK, &p, 0.1, NULL), 0);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_SELECTED), 4);
    CHECK(states[12] == TSR_TOKEN_SELECTED && states[13] == TSR_TOKEN_SELECTED);
    CHECK(states[52] == TSR_TOKEN_SELECTED && states[54] == TSR_TOKEN_CANDIDATE);
}

TEST(none_takes_nothing_and_full_everything)
{
    struct tsri_plan p = plan_of();
    CHECK_INT(choose(TSR_SELECT_NONE, &p, 0.5, NULL), 0);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_SELECTED), 0);
    CHECK_INT(choose(TSR_SELECT_FULL, &p, 0.5, NULL), 0);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), 0);
}

TEST(checks_keep_by_ratio_or_by_threshold)
{
    struct tsri_device *device;
    CHECK_INT(tsri_device_open(&device, "cpu", NULL), 0);
    const float deviation[] = {1, 5, 0, 2, 4, 0, 0, 0};
    uint32_t keep[8];
    struct tsr_check check = {.layer = 1};
    CHECK_INT(tsri_select_check(device, &check, 0.25, deviation, 8, keep), 2);
    CHECK(keep[0] == 1 && keep[1] == 4);
    CHECK_INT(tsri_select_check(device, &check, 2, deviation, 8, keep), 8);
    CHECK_INT(tsri_select_check(device, &check, 0, deviation, 8, keep), 0);
    check.threshold = 1.1; /* the mean is 1.5 */
    CHECK_INT(tsri_select_check(device, &check, 0.25, deviation, 8, keep), 3);
    CHECK(keep[0] == 1 && keep[1] == 3 && keep[2] == 4);
    CHECK_INT(tsri_select_check(device, &check, 0.25, deviation, 0, keep), 0);
    tsri_device_close(device);
}

int main(void)
{
    RUN(names_and_numbers_agree);
    RUN(a_budget_counts_the_seams);
    RUN(query_takes_what_the_question_looks_at);
    RUN(a_larger_ratio_adds_to_what_is_selected);
    RUN(link_takes_the_front_of_every_chunk);
    RUN(none_takes_nothing_and_full_everything);
    RUN(checks_keep_by_ratio_or_by_threshold);
    return test_end();
}
