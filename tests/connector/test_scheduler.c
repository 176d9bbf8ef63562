/* The scheduler half as an engine sees it. */
#include "support/connector_kit.h"
#include "support/test.h"

static uint32_t tokens[128];
static int32_t blocks[64];

TEST(a_step_with_nothing_to_do_is_a_head)
{
    struct ck k;
    const void *meta;
    size_t bytes, again;
    ck_open(&k, &(struct ck_options){0});
    struct tsr_step_desc s = {.size = sizeof s};
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &s, &meta, &bytes), 0);
    CHECK(bytes > 0 && bytes < 100);
    ck_new(&k, 1, tokens, 100);
    struct tsr_step_row row = {.id = 1, .n_tokens = 100};
    s.rows = &row;
    s.n_rows = 1;
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &s, &meta, &again), 0);
    CHECK_INT(again, bytes);
    CHECK_INT(tsr_scheduler_has_pending_work(k.scheduler), 0);
    ck_close(&k);
}

TEST(tokens_and_blocks_come_with_the_steps)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .flags = TSR_CONNECTOR_SAVE_DECODE});
    ck_new(&k, 1, tokens, 10);
    ck_new(&k, 2, tokens + 50, 10);
    struct tsr_step_row rows[] = {{.id = 1, .n_tokens = 12, .n_new_tokens = 2},
                                  {.id = 2, .n_tokens = 11, .n_new_tokens = 1}};
    uint32_t new_tokens[] = {tokens[10], tokens[11], tokens[60]};
    uint32_t n_new[] = {2, 1, 1, 3};
    int32_t new_blocks[] = {1, 2, 3, 4, 5, 6, 7};
    struct tsr_step_desc s = {.size = sizeof s,
                              .rows = rows,
                              .n_rows = 2,
                              .new_tokens = new_tokens,
                              .n_new_blocks = n_new,
                              .new_blocks = new_blocks};
    ck_step(&k, &s, NULL);
    struct tsri_req *a = tsri_reqs_find(&k.scheduler->reqs, 1);
    struct tsri_req *b = tsri_reqs_find(&k.scheduler->reqs, 2);
    CHECK_INT(a->n_tokens, 12);
    CHECK_INT(b->tokens[10], tokens[60]);
    CHECK_INT(a->n_blocks[0], 2);
    CHECK_INT(a->blocks[1][0], 3);
    CHECK_INT(b->blocks[0][0], 4);
    CHECK_INT(b->blocks[1][2], 7);
    rows[0].flags = TSR_ROW_RESET_BLOCKS;
    rows[0].n_new_tokens = rows[1].n_new_tokens = 0;
    ck_step(&k, &s, NULL);
    CHECK_INT(a->n_blocks[0], 2);
    CHECK_INT(b->n_blocks[0], 2);
    ck_close(&k);
}

TEST(a_preempted_request_begins_anew_and_hits_what_it_saved)
{
    struct ck k;
    uint32_t async;
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_SAVE_DECODE});
    ck_new(&k, 1, tokens, 40);
    CHECK_INT(ck_alloc(&k, 1, blocks, 10, 0), 0);
    ck_write_all(&k, tokens, 0, 70, blocks);
    CHECK_INT(tsr_scheduler_append_tokens(k.scheduler, 1, 40, tokens + 40, 30), 0);
    struct tsr_step_row row = {.id = 1, .n_computed = 69, .n_tokens = 70};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    ck_step(&k, &s, NULL);
    uint64_t id = 1;
    CHECK_INT(tsr_scheduler_handle_preemptions(k.scheduler, &id, 1), 0);
    ck_step(&k, NULL, NULL); /* the workers have read what they were told to save */
    for (int32_t b = 0; b < 10; b++)
        ck_poison(&k, 0, b, 5);
    ck_settle(&k, NULL);
    /* Generated tokens are found, too. */
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 1, 0, &async), 64);
    CHECK_INT(ck_alloc(&k, 1, blocks + 20, 9, 64), 0);
    ck_step(&k, NULL, NULL);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    CHECK_INT(ck_finish(&k, 1, 70, 69), 0); /* nothing new to save, nothing held */
    ck_close(&k);
}

TEST(a_request_that_is_aborted_at_any_moment_leaves_nothing)
{
    for (uint32_t moment = 0; moment < 4; moment++) {
        struct ck k;
        uint32_t async;
        ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_ASYNC});
        ck_save_prompt(&k, 1, tokens, 64, 0);
        ck_new(&k, 2, tokens, 70);
        if (moment > 0)
            CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 64);
        if (moment > 1) CHECK_INT(ck_alloc(&k, 2, blocks + 20, 9, 64), 0);
        struct tsr_step_desc s = {.size = sizeof s};
        const void *meta = NULL;
        size_t bytes = 0;
        if (moment > 2)
            CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &s, &meta, &bytes), 0);
        struct tsr_finish_desc f = {.size = sizeof f, .id = 2, .n_tokens = 70, .aborted = 1};
        CHECK_INT(tsr_scheduler_request_finished(k.scheduler, &f), 0);
        if (meta) {
            CHECK_INT(tsr_worker_start_load_kv(k.workers[0], meta, bytes), 0);
            struct ck_answer answer;
            ck_settle(&k, &answer);
            CHECK_INT(answer.n_received, 1); /* named all the same: the engine holds its blocks */
        }
        ck_settle(&k, NULL);
        CHECK_INT(k.scheduler->reqs.n, 0);
        CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 4); /* no lease is left */
        ck_close(&k);
    }
}

TEST(an_id_that_begins_again_is_another_request)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_new(&k, 1, tokens, 40);
    ck_new(&k, 1, tokens + 10, 20);
    CHECK_INT(k.scheduler->reqs.n, 1);
    CHECK_INT(tsri_reqs_find(&k.scheduler->reqs, 1)->n_tokens, 20);
    ck_close(&k);
}

TEST(events_are_those_of_its_spaces)
{
    struct ck k;
    struct tsr_event events[16];
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 32, 0);
    CHECK_INT(tsr_scheduler_take_events(k.scheduler, events, 16), 2);
    CHECK_INT(events[0].kind, TSR_EVENT_STORED);
    CHECK_INT(events[0].n_tokens, 16);
    CHECK_INT(tsr_scheduler_reset_cache(k.scheduler), 2);
    CHECK_INT(ck_find(&k, tokens, 40), 0);
    ck_close(&k);
}

TEST(keys_name_what_events_speak_of)
{
    struct ck k;
    struct tsr_event events[16];
    struct tsr_key keys[4][2];
    ck_open(&k, &(struct ck_options){.n_ranks = 2});
    ck_save_prompt(&k, 1, tokens, 32, 0);
    CHECK_INT(tsr_scheduler_take_events(k.scheduler, events, 16), 4);
    ck_new(&k, 2, tokens, 40);
    CHECK_INT(tsr_scheduler_keys(k.scheduler, 2, 0, 4, keys[0]), 2);
    for (int i = 0; i < 4; i++) {
        int found = 0;
        for (int chunk = 0; chunk < 2; chunk++)
            for (int rank = 0; rank < 2; rank++)
                found += memcmp(&events[i].key, &keys[chunk][rank], sizeof events[i].key) == 0;
        CHECK_INT(found, 1);
    }
    struct tsr_key second[2];
    CHECK_INT(tsr_scheduler_keys(k.scheduler, 2, 1, 1, second), 1);
    CHECK(memcmp(second, keys[1], sizeof second) == 0);
    CHECK_INT(tsr_scheduler_keys(k.scheduler, 2, 2, 1, second), 0);
    CHECK_INT(tsr_scheduler_keys(k.scheduler, 99, 0, 1, second), 0);
    ck_close(&k);
}

TEST(bytes_that_are_none_change_nothing)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    CHECK(tsr_scheduler_update_connector_output(k.scheduler, "nonsense", 8) < 0);
    CHECK_INT(tsr_scheduler_update_connector_output(k.scheduler, NULL, 0), 0);
    struct tsr_step_row row = {.id = 1, .n_tokens = 3, .n_new_tokens = 5};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1, .new_tokens = tokens};
    const void *meta;
    size_t bytes;
    ck_new(&k, 1, tokens, 3);
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &s, &meta, &bytes), TSR_EINVAL);
    ck_close(&k);
}

int main(void)
{
    ck_number(tokens, blocks);
    RUN(a_step_with_nothing_to_do_is_a_head);
    RUN(tokens_and_blocks_come_with_the_steps);
    RUN(a_preempted_request_begins_anew_and_hits_what_it_saved);
    RUN(a_request_that_is_aborted_at_any_moment_leaves_nothing);
    RUN(an_id_that_begins_again_is_another_request);
    RUN(events_are_those_of_its_spaces);
    RUN(keys_name_what_events_speak_of);
    RUN(bytes_that_are_none_change_nothing);
    return test_end();
}
