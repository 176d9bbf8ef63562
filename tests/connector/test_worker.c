/* The worker half: what it is told to load arrives, what it is told to save is found again, and
 * what cannot be done is reported. */
#include "support/connector_kit.h"
#include "support/test.h"

static void make_tokens(uint32_t *tokens, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = seed * 1000 + i;
}

TEST(a_saved_prompt_is_loaded_into_other_blocks)
{
    struct ck k;
    uint32_t tokens[50];
    make_tokens(tokens, 50, 1);
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 48, 0);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 3);
    ck_new(&k, 2, tokens, 50);
    uint32_t async;
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 48);
    CHECK_INT(async, 0);
    int32_t blocks[] = {40, 33, 50, 21, 22, 63, 30};
    CHECK_INT(ck_alloc(&k, 2, blocks, 7, 48), 0);
    struct ck_answer answer;
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(&k, tokens, 0, 48, blocks));
    ck_close(&k);
}

TEST(a_full_hit_leaves_one_token_to_compute)
{
    struct ck k;
    uint32_t tokens[32];
    make_tokens(tokens, 32, 1);
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 32, 0);
    CHECK_INT(ck_find(&k, tokens, 32), 31);
    ck_close(&k);
}

TEST(a_load_between_steps_is_named_when_it_has_ended)
{
    struct ck k;
    uint32_t tokens[40];
    make_tokens(tokens, 40, 1);
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_ASYNC});
    ck_save_prompt(&k, 1, tokens, 32, 0);
    ck_new(&k, 2, tokens, 40);
    uint32_t async;
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 32);
    CHECK_INT(async, 1);
    int32_t blocks[] = {40, 33, 50, 21, 22};
    CHECK_INT(ck_alloc(&k, 2, blocks, 5, 32), 0);
    struct ck_answer answer;
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_received, 1);
    CHECK_INT(answer.received[0], 2);
    CHECK_INT(ck_alloc(&k, 2, blocks, 5, 0), 0);
    CHECK(ck_right_all(&k, tokens, 0, 32, blocks));
    ck_close(&k);
}

TEST(blocks_of_a_request_that_ended_are_named_when_they_were_read)
{
    struct ck k;
    uint32_t tokens[32];
    int32_t blocks[] = {3, 4, 5, 6};
    make_tokens(tokens, 32, 1);
    ck_open(&k, &(struct ck_options){0});
    ck_new(&k, 7, tokens, 32);
    CHECK_INT(ck_alloc(&k, 7, blocks, 4, 0), 0);
    ck_write_all(&k, tokens, 0, 32, blocks);
    CHECK_INT(ck_finish(&k, 7, 32, 32), 1);
    CHECK_INT(tsr_scheduler_has_pending_work(k.scheduler), 1);
    struct ck_answer answer;
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_sent, 1);
    CHECK_INT(answer.sent[0], 7);
    CHECK_INT(ck_finish(&k, 7, 32, 32), 0); /* nobody knows it any more */
    ck_close(&k);
}

TEST(what_was_dropped_after_it_was_found_is_named_as_blocks_to_recompute)
{
    struct ck k;
    uint32_t tokens[50];
    make_tokens(tokens, 50, 1);
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 48, 0);
    ck_new(&k, 2, tokens, 50);
    uint32_t async;
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 48);
    int32_t blocks[] = {40, 33, 50, 21, 22, 63, 30};
    CHECK_INT(ck_alloc(&k, 2, blocks, 7, 48), 0);
    /* The lease is gone, as with a server that was started anew. */
    tsr_client_release(k.scheduler->terms.client, 2);
    struct tsr_prompt tail = {.size = sizeof tail, .tokens = tokens, .n_tokens = 48};
    struct tsr_clear_desc clear = {
        .size = sizeof clear, .space = k.scheduler->terms.spaces[0], .prompt = &tail, .tier = -1};
    CHECK(tsr_cache_clear(k.cache, &clear) > 0);
    struct ck_answer answer;
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_bad, 6);
    CHECK_INT(answer.bad[0].block, 40);
    CHECK_INT(answer.bad[5].block, 63);
    CHECK_INT(ck_stats(&k).loads_failed, 1);
    /* Nothing else was touched, and the request goes on as one that was never looked up. */
    CHECK_INT(ck_find(&k, tokens, 50), 0);
    ck_close(&k);
}

TEST(bytes_of_another_connector_are_refused)
{
    struct ck a, b;
    const void *meta;
    size_t bytes;
    ck_open(&a, &(struct ck_options){0});
    ck_open(&b, &(struct ck_options){.n_ranks = 2});
    struct tsr_step_desc step = {.size = sizeof step};
    CHECK_INT(tsr_scheduler_build_connector_meta(a.scheduler, &step, &meta, &bytes), 0);
    CHECK_INT(tsr_worker_start_load_kv(a.workers[0], meta, bytes), 0);
    CHECK_INT(tsr_worker_start_load_kv(b.workers[0], meta, bytes), TSR_ESPACE);
    CHECK_INT(tsr_worker_handle_preemptions(b.workers[0], meta, bytes), TSR_ESPACE);
    CHECK_INT(tsr_worker_start_load_kv(a.workers[0], meta, bytes - 1), TSR_EINVAL);
    ck_close(&b);
    ck_close(&a);
}

TEST(a_worker_closes_with_saves_in_its_queue)
{
    struct ck k;
    uint32_t tokens[256];
    int32_t blocks[32];
    for (int32_t i = 0; i < 32; i++)
        blocks[i] = i;
    make_tokens(tokens, 256, 1);
    ck_open(&k, &(struct ck_options){0});
    ck_new(&k, 7, tokens, 256);
    CHECK_INT(ck_alloc(&k, 7, blocks, 32, 0), 0);
    ck_write_all(&k, tokens, 0, 256, blocks);
    CHECK_INT(ck_finish(&k, 7, 256, 256), 1);
    ck_step(&k, NULL, NULL);
    ck_close(&k);
}

TEST(a_layer_that_is_none_is_refused)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    CHECK_INT(tsr_worker_wait_for_layer_load(k.workers[0], 0, CK_LAYERS), TSR_EINVAL);
    CHECK_INT(tsr_worker_save_kv_layer(k.workers[0], 1, 0), TSR_EINVAL);
    CHECK_INT(tsr_worker_save_kv_layer(k.workers[0], 0, 0), 0);
    ck_close(&k);
}

int main(void)
{
    RUN(a_saved_prompt_is_loaded_into_other_blocks);
    RUN(a_full_hit_leaves_one_token_to_compute);
    RUN(a_load_between_steps_is_named_when_it_has_ended);
    RUN(blocks_of_a_request_that_ended_are_named_when_they_were_read);
    RUN(what_was_dropped_after_it_was_found_is_named_as_blocks_to_recompute);
    RUN(bytes_of_another_connector_are_refused);
    RUN(a_worker_closes_with_saves_in_its_queue);
    RUN(a_layer_that_is_none_is_refused);
    return test_end();
}
