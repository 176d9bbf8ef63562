/* What the scheduler half tells the workers to save. */
#include "support/connector_kit.h"
#include "support/test.h"

static uint32_t tokens[128];
static int32_t blocks[64];

/* One step of one request; returns how many saves the workers are told. */
static uint64_t step(struct ck *k, uint64_t id, uint32_t n_computed, uint32_t n_in_flight,
                     uint32_t n_tokens)
{
    struct tsr_step_row row = {
        .id = id, .n_computed = n_computed, .n_in_flight = n_in_flight, .n_tokens = n_tokens};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    uint64_t before = ck_stats(k).saves;
    ck_step(k, &s, NULL);
    return ck_stats(k).saves - before;
}

static void begin(struct ck *k, uint64_t id, uint32_t n)
{
    ck_new(k, id, tokens, n);
    CHECK_INT(ck_alloc(k, id, blocks, (n + CK_BLOCK - 1) / CK_BLOCK, 0), 0);
}

TEST(chunks_are_saved_once_their_kv_is_written)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    begin(&k, 1, 100);
    ck_write_all(&k, tokens, 0, 100, blocks);
    CHECK_INT(step(&k, 1, 0, 0, 100), 0);
    CHECK_INT(step(&k, 1, 40, 40, 100), 0); /* in flight */
    CHECK_INT(step(&k, 1, 80, 40, 100), 1); /* two chunks of 16 */
    CHECK_INT(step(&k, 1, 80, 40, 100), 0); /* once */
    CHECK_INT(step(&k, 1, 100, 20, 100), 1);
    ck_settle(&k, NULL);
    CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 80);
    CHECK_INT(ck_find(&k, tokens, 100), 80);
    ck_close(&k);
}

TEST(only_prompts_are_saved_unless_asked)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    begin(&k, 1, 20);
    ck_write_all(&k, tokens, 0, 20, blocks);
    CHECK_INT(tsr_scheduler_append_tokens(k.scheduler, 1, 20, tokens + 20, 44), 0);
    CHECK_INT(ck_alloc(&k, 1, blocks, 8, 0), 0);
    CHECK_INT(step(&k, 1, 63, 0, 64), 1);
    ck_settle(&k, NULL);
    CHECK_INT(ck_find(&k, tokens, 64), 16);
    ck_close(&k);
}

TEST(what_a_request_leaves_is_saved_with_the_next_step_although_it_has_no_tokens)
{
    struct ck k;
    struct ck_answer answer;
    ck_open(&k, &(struct ck_options){0});
    begin(&k, 1, 64);
    ck_write_all(&k, tokens, 0, 64, blocks);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 1);
    ck_step(&k, NULL, &answer);
    CHECK_INT(tsr_worker_drain(k.workers[0], 10000), 0);
    CHECK_INT(ck_find(&k, tokens, 70), 64); /* before any report */
    if (!answer.n_sent) ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_sent, 1);
    ck_close(&k);
}

TEST(two_requests_with_the_same_beginning_save_it_once)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    begin(&k, 1, 64);
    begin(&k, 2, 64);
    ck_write_all(&k, tokens, 0, 64, blocks);
    struct tsr_step_row rows[] = {{.id = 1, .n_computed = 64, .n_tokens = 64},
                                  {.id = 2, .n_computed = 64, .n_tokens = 64}};
    struct tsr_step_desc s = {.size = sizeof s, .rows = rows, .n_rows = 2};
    ck_step(&k, &s, NULL);
    CHECK_INT(ck_stats(&k).saves, 1);
    CHECK_INT(ck_stats(&k).chunks_known, 4);
    ck_settle(&k, NULL);
    begin(&k, 3, 64); /* and not when it is there */
    CHECK_INT(step(&k, 3, 64, 0, 64), 0);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 4);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_wasted, 0);
    ck_close(&k);
}

TEST(only_the_rank_that_lacks_it_saves)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_ranks = 2});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    struct tsr_prompt p = {.size = sizeof p, .tokens = tokens, .n_tokens = 64};
    struct tsr_clear_desc clear = {
        .size = sizeof clear, .space = k.scheduler->terms.spaces[1], .prompt = &p, .tier = -1};
    CHECK_INT(tsr_cache_clear(k.cache, &clear), 4);
    ck_save_prompt(&k, 2, tokens, 64, 20);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 4);
    CHECK_INT(ck_worker_stats(&k, 1).chunks_gathered, 8);
    CHECK_INT(ck_find(&k, tokens, 70), 64);
    ck_close(&k);
}

TEST(what_has_left_a_window_is_not_saved)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .window_tokens = 32});
    begin(&k, 1, 100);
    ck_write_all(&k, tokens, 0, 100, blocks);
    CHECK_INT(step(&k, 1, 32, 0, 100), 1);
    CHECK_INT(step(&k, 1, 48, 0, 100), 1);
    /* A step that goes so far that the window has passed chunks nobody had saved. */
    CHECK_INT(step(&k, 1, 100, 0, 100), 0);
    CHECK_INT(step(&k, 1, 100, 0, 100), 0);
    ck_settle(&k, NULL);
    CHECK_INT(ck_find(&k, tokens, 100), 48);
    ck_close(&k);
}

/* Its blocks went when it had come furthest; that drafts were refused does not bring them back. */
TEST(what_has_left_a_window_is_not_saved_after_tokens_were_taken_back)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .window_tokens = 32});
    begin(&k, 1, 100);
    ck_write_all(&k, tokens, 0, 100, blocks);
    CHECK_INT(step(&k, 1, 16, 0, 100), 1);
    CHECK_INT(step(&k, 1, 55, 39, 100), 0); /* token 55 sees 24 and on: block 2 is free */
    for (uint32_t i = 0; i < 3; i++)
        ck_poison(&k, 1, blocks[i], i);
    CHECK_INT(step(&k, 1, 48, 0, 100), 0);
    ck_settle(&k, NULL);
    CHECK_INT(ck_find(&k, tokens, 100), 16);
    ck_close(&k);
}

/* A step as long as the window: all that the step sees is there while it runs. */
TEST(what_a_window_still_has_is_saved_however_long_the_steps_are)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .window_tokens = 32});
    begin(&k, 1, 100);
    ck_write_all(&k, tokens, 0, 100, blocks);
    CHECK_INT(step(&k, 1, 32, 0, 100), 1);
    CHECK_INT(step(&k, 1, 64, 0, 100), 1);
    CHECK_INT(step(&k, 1, 96, 0, 100), 1);
    ck_settle(&k, NULL);
    CHECK_INT(ck_find(&k, tokens, 100), 96);
    ck_close(&k);
}

TEST(a_save_of_a_windowed_group_is_read_within_its_step)
{
    struct ck k;
    const void *meta;
    size_t bytes;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .window_tokens = 64});
    begin(&k, 1, 48);
    ck_write_all(&k, tokens, 0, 48, blocks);
    struct tsr_step_row row = {.id = 1, .n_computed = 48, .n_tokens = 48};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &s, &meta, &bytes), 0);
    CHECK_INT(tsr_worker_start_load_kv(k.workers[0], meta, bytes), 0);
    CHECK_INT(k.workers[0]->n_step_saves, 1);
    CHECK_INT(tsr_worker_wait_for_save(k.workers[0]), 0);
    CHECK(k.workers[0]->jobs->state >= TSRI_JOB_READ);
    ck_close(&k);
}

TEST(a_block_that_is_none_ends_the_saves_of_its_request)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    int32_t holes[] = {1, 2, -1, 4, 5, 6};
    ck_new(&k, 1, tokens, 48);
    CHECK_INT(ck_alloc(&k, 1, holes, 6, 0), 0);
    CHECK_INT(step(&k, 1, 48, 0, 48), 0);
    CHECK_INT(ck_finish(&k, 1, 48, 48), 0);
    ck_close(&k);
}

static uint32_t finish(struct ck *k, uint64_t id, uint32_t n, int held)
{
    uint32_t n_saved = UINT32_MAX;
    struct tsr_finish_desc f = {
        .size = sizeof f, .id = id, .n_tokens = n, .n_computed = n, .n_saved = &n_saved};
    CHECK_INT(tsr_scheduler_request_finished(k->scheduler, &f), held);
    return n_saved;
}

TEST(an_ended_request_says_what_of_it_is_saved)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.jobs_max = 2});
    begin(&k, 1, 70);
    ck_write_all(&k, tokens, 0, 70, blocks);
    CHECK_INT(finish(&k, 1, 70, 1), 64); /* being saved */
    ck_settle(&k, NULL);
    begin(&k, 2, 70);
    CHECK_INT(finish(&k, 2, 70, 0), 64); /* there already */
    CHECK_INT(finish(&k, 99, 70, 0), 0);
    /* A block that is gone, and a save for which there is no place. */
    int32_t holes[] = {1, 2, -1, 4, 5, 6};
    ck_new(&k, 3, tokens + 1, 48);
    CHECK_INT(ck_alloc(&k, 3, holes, 6, 0), 0);
    CHECK_INT(finish(&k, 3, 48, 0), 0);
    for (uint64_t id = 4; id <= 6; id++) {
        ck_new(&k, id, tokens + id, 16);
        CHECK_INT(ck_alloc(&k, id, blocks + id * 2, 2, 0), 0);
        CHECK_INT(finish(&k, id, 16, id < 6), id < 6 ? 16 : 0);
    }
    ck_settle(&k, NULL);
    ck_close(&k);
}

TEST(a_save_that_failed_is_not_told)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    begin(&k, 1, 100);
    ck_write_all(&k, tokens, 0, 100, blocks);
    CHECK_INT(step(&k, 1, 40, 0, 100), 1);
    ck_settle(&k, NULL);
    /* A step that no worker hears of: its save cannot end before it is said to have failed. */
    struct tsr_step_row row = {.id = 1, .n_computed = 80, .n_tokens = 100};
    struct tsr_step_desc untold = {.size = sizeof untold, .rows = &row, .n_rows = 1};
    const void *meta;
    size_t bytes;
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &untold, &meta, &bytes), 0);
    CHECK(k.scheduler->savings_first != TSRI_NO_SAVING);
    const struct tsri_saving *x = &k.scheduler->savings[k.scheduler->savings_first];
    struct tsri_save_report report = {.job = x->id, .result = TSR_EFULL};
    tsri_saves_report(k.scheduler, &report);
    CHECK_INT(finish(&k, 1, 100, 0), 32);
    ck_settle(&k, NULL);
    ck_close(&k);
}

TEST(too_many_saves_are_skipped_and_counted)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.jobs_max = 2});
    for (uint64_t id = 1; id <= 4; id++) {
        uint32_t own[16];
        for (uint32_t i = 0; i < 16; i++)
            own[i] = (uint32_t)id * 100 + i;
        ck_new(&k, id, own, 16);
        CHECK_INT(ck_alloc(&k, id, blocks + id * 2, 2, 0), 0);
        CHECK_INT(ck_finish(&k, id, 16, 16), id <= 2);
    }
    CHECK_INT(ck_stats(&k).saves_skipped, 2);
    ck_settle(&k, NULL);
    CHECK_INT(ck_stats(&k).jobs_in_flight, 0);
    ck_close(&k);
}

TEST(a_consumer_saves_nothing)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_NO_SAVE});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ck_stats(&k).saves, 0);
    ck_close(&k);
}

int main(void)
{
    ck_number(tokens, blocks);
    RUN(chunks_are_saved_once_their_kv_is_written);
    RUN(only_prompts_are_saved_unless_asked);
    RUN(what_a_request_leaves_is_saved_with_the_next_step_although_it_has_no_tokens);
    RUN(two_requests_with_the_same_beginning_save_it_once);
    RUN(only_the_rank_that_lacks_it_saves);
    RUN(what_has_left_a_window_is_not_saved);
    RUN(what_has_left_a_window_is_not_saved_after_tokens_were_taken_back);
    RUN(what_a_window_still_has_is_saved_however_long_the_steps_are);
    RUN(a_save_of_a_windowed_group_is_read_within_its_step);
    RUN(a_block_that_is_none_ends_the_saves_of_its_request);
    RUN(an_ended_request_says_what_of_it_is_saved);
    RUN(a_save_that_failed_is_not_told);
    RUN(too_many_saves_are_skipped_and_counted);
    RUN(a_consumer_saves_nothing);
    return test_end();
}
