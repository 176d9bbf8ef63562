/* Loads within a step that cannot fail: which ones they are, and that on a device that queues the
 * engine's stream waits for them while the engine's thread goes on. */
#include "support/connector_kit.h"
#include "support/fake_tier.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <unistd.h>

static uint32_t tokens[128];
static int32_t blocks[64];

static const char *const on_gpu[] = {"device", "fakegpu", NULL};

/* Asks for a load of 64 tokens into blocks 20 and on, or what was found of them. */
static uint32_t ask(struct ck *k, uint64_t id)
{
    uint32_t async = 9;
    ck_new(k, id, tokens, 70);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, 0, &async), 64);
    CHECK_INT(ck_alloc(k, id, blocks + 20, 9, 64), 0);
    return async;
}

TEST(the_only_request_loads_within_its_step)
{
    struct ck k;
    struct ck_answer answer;
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_SURE});
    k.scheduler->sure_bytes = 0;
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ask(&k, 2), 0);
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    CHECK_INT(ck_stats(&k).tokens_hit, 64);
    ck_close(&k);
}

TEST(beside_others_only_little_is_loaded_within_a_step)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_SURE});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ck_new(&k, 9, tokens + 64, 20);
    size_t token_bytes = tsr_space_token_bytes(k.scheduler->terms.spaces[0]);
    k.scheduler->sure_bytes = 64 * token_bytes - 1;
    CHECK_INT(ask(&k, 2), 1);
    ck_settle(&k, NULL);
    CHECK_INT(ck_finish(&k, 2, 64, 70), 0);
    k.scheduler->sure_bytes = 64 * token_bytes;
    CHECK_INT(ask(&k, 3), 0);
    ck_settle(&k, NULL);
    CHECK_INT(ck_finish(&k, 3, 64, 70), 0);
    CHECK_INT(ck_finish(&k, 9, 0, 20), 0);
    k.scheduler->sure_bytes = 0;
    CHECK_INT(ask(&k, 4), 0); /* the others have ended */
    ck_settle(&k, NULL);
    ck_close(&k);
}

TEST(what_a_tier_has_is_not_sure)
{
    struct fake_tier_plan plan;
    struct kit kit;
    struct ck k;
    fake_tier_plan_init(&plan);
    kit_open_tiers(&kit, NULL, &plan, 1);
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_SURE, .shared = kit.cache});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(tsr_cache_flush(kit.cache), 0);
    CHECK(kit_evict_all(&kit) >= 4);
    CHECK_INT(ask(&k, 2), 1);
    ck_settle(&k, NULL);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    ck_close(&k);
    kit_close(&kit);
    fake_tier_plan_fini(&plan);
}

/* ---- on a device that queues ---- */

struct look {
    struct ck *k;
    bool right;
};
/* What a kernel of the engine would see. */
static void look(void *arg)
{
    struct look *l = arg;
    l->right = ck_right_all(l->k, tokens, 0, 64, blocks + 20);
}

TEST(the_engines_stream_waits_and_not_its_thread)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct ck k;
    struct ck_answer answer;
    ck_open(&k, &(struct ck_options){
                    .flags = TSR_CONNECTOR_LOAD_SURE, .n_groups = 2, .cache = on_gpu, .gpu = gpu});
    ck_wait_locked(k.cache);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ask(&k, 2), 0);
    gpu->hold(true);
    ck_step(&k, NULL, &answer); /* returns while nothing moves .. */
    CHECK_INT(answer.n_bad, 0);
    CHECK(!ck_right_all(&k, tokens, 0, 64, blocks + 20));
    /* .. and has been reported: what the request computes next may be saved. */
    CHECK_INT(tsr_scheduler_has_pending_work(k.scheduler), 0);
    struct look seen = {.k = &k};
    gpu->launch(k.stream, look, &seen);
    gpu->hold(false);
    gpu->stream_sync(k.stream);
    CHECK(seen.right);
    CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, 0);
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_bad, 0);
    ck_close(&k);
}

TEST(the_pages_stay_while_the_device_reads_them)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct ck k;
    ck_open(&k,
            &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_SURE, .cache = on_gpu, .gpu = gpu});
    ck_wait_locked(k.cache);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ask(&k, 2), 0);
    gpu->hold(true);
    ck_step(&k, NULL, NULL);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 0); /* reported, but still being read */
    gpu->hold(false);
    ck_settle(&k, NULL);
    WAIT_FOR(tsr_cache_evict(k.cache, SIZE_MAX) != 0);
    gpu->stream_sync(k.stream);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    ck_close(&k);
}

TEST(loads_and_saves_follow_the_mark_of_their_step)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct ck k;
    const void *meta;
    size_t bytes;
    ck_open(&k,
            &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_ASYNC, .cache = on_gpu, .gpu = gpu});
    ck_wait_locked(k.cache);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ask(&k, 2), 1);
    struct tsr_step_desc step = {.size = sizeof step};
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &step, &meta, &bytes), 0);
    uint64_t n = gpu->calls("event_record");
    CHECK_INT(tsr_worker_mark_queue(k.workers[0], meta, bytes), 0);
    CHECK_INT(gpu->calls("event_record"), n + 1);
    CHECK_INT(tsr_worker_mark_queue(k.workers[0], meta, bytes), 0);
    CHECK_INT(gpu->calls("event_record"), n + 1); /* once a step */
    CHECK_INT(tsr_worker_mark_queue(k.workers[0], "?", 1), TSR_EINVAL);
    CHECK_INT(tsr_worker_mark_queue(NULL, meta, bytes), TSR_EINVAL);
    CHECK_INT(tsr_worker_start_load_kv(k.workers[0], meta, bytes), 0);
    ck_settle(&k, NULL);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    ck_close(&k);
}

/* A step that was marked and never started: its mark says nothing about what was queued since. */
TEST(a_mark_is_of_one_step_only)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct ck k;
    const void *meta;
    size_t bytes;
    ck_open(&k,
            &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_ASYNC, .cache = on_gpu, .gpu = gpu});
    ck_wait_locked(k.cache);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    uint64_t n = gpu->calls("event_record");
    for (uint64_t id = 2; id < 4; id++) {
        CHECK_INT(ask(&k, id), 1);
        struct tsr_step_desc step = {.size = sizeof step};
        CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &step, &meta, &bytes), 0);
        CHECK_INT(tsr_worker_mark_queue(k.workers[0], meta, bytes), 0);
        CHECK_INT(gpu->calls("event_record"), ++n);
    }
    CHECK_INT(tsr_worker_start_load_kv(k.workers[0], meta, bytes), 0);
    ck_close(&k);
}

static void *let_go(void *gpu)
{
    usleep(50 * 1000);
    ((const struct fakegpu_control *)gpu)->hold(false);
    return NULL;
}

/* What a server lends it may take back, so the engine must not go on before it is there. */
TEST(a_worker_whose_cache_is_a_servers_is_waited_for)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct server_kit server;
    struct kit client;
    struct ck k;
    struct ck_answer answer;
    pthread_t thread;
    server_open(&server, (const char *const[]){"host_size", "16M", "host_page_size", "4K", NULL});
    served_kit_open(&client, server.path, on_gpu);
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_SURE,
                                     .shared = server.k.cache,
                                     .workers = client.cache,
                                     .gpu = gpu});
    ck_wait_locked(k.cache);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ask(&k, 2), 0);
    gpu->hold(true);
    CHECK_INT(pthread_create(&thread, NULL, let_go, (void *)(uintptr_t)gpu), 0);
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    pthread_join(thread, NULL);
    ck_close(&k);
    kit_close(&client);
    CHECK(server_end(&server));
}

/* Cannot be, as long as leases hold; the engine hears of it before it computes on what is not there.
 */
TEST(what_is_gone_all_the_same_is_told_within_the_step)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct ck k;
    struct ck_answer answer;
    uint32_t async;
    ck_open(&k,
            &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_SURE, .cache = on_gpu, .gpu = gpu});
    ck_wait_locked(k.cache);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ck_new(&k, 3, tokens, 40);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 3, 0, &async), 32);
    CHECK_INT(ask(&k, 2), 0);
    tsr_client_release(k.scheduler->terms.client, 2);
    struct tsr_prompt all = {.size = sizeof all, .tokens = tokens, .n_tokens = 64};
    struct tsr_clear_desc clear = {
        .size = sizeof clear, .space = k.scheduler->terms.spaces[0], .prompt = &all, .tier = -1};
    CHECK_INT(tsr_cache_clear(k.cache, &clear), 2); /* the other request's stay */
    gpu->delay(1, 1, 3000);
    ck_step(&k, NULL, &answer);
    gpu->reset();
    CHECK_INT(answer.n_bad, 4);
    CHECK_INT(answer.bad[0].block, 24);
    CHECK(ck_right_all(&k, tokens, 0, 32, blocks + 20));
    ck_close(&k);
}

int main(void)
{
    ck_number(tokens, blocks);
    RUN(the_only_request_loads_within_its_step);
    RUN(beside_others_only_little_is_loaded_within_a_step);
    RUN(what_a_tier_has_is_not_sure);
    RUN(the_engines_stream_waits_and_not_its_thread);
    RUN(the_pages_stay_while_the_device_reads_them);
    RUN(loads_and_saves_follow_the_mark_of_their_step);
    RUN(a_mark_is_of_one_step_only);
    RUN(a_worker_whose_cache_is_a_servers_is_waited_for);
    RUN(what_is_gone_all_the_same_is_told_within_the_step);
    return test_end();
}
