/* Loads into the memory of a device that queues: straight from page-locked pages, behind what the
 * engine had queued, and over when the job says so. */
#include "cache/core.h"
#include "deliver/deliver.h"
#include "device/locking.h"
#include "support/cache_kit.h"
#include "support/connector_kit.h"
#include "support/fake_tier.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <signal.h>
#include <unistd.h>

#define LOADED ((uint64_t)64 * CK_LAYERS * CK_PLANES * CK_ROW_BYTES)
#define SOON_NS UINT64_C(10000000000)

static const struct fakegpu_control *gpu;
static const char *const on_gpu[] = {"device", "fakegpu", NULL};
static uint32_t tokens[128];
static int32_t blocks[64];

/* A cache on the GPU in which a prompt of 64 tokens was saved. */
static void gpu_open(struct ck *k, const struct ck_options *o)
{
    struct ck_options with = *o;
    with.gpu = gpu;
    if (!with.shared && !with.cache) with.cache = on_gpu;
    ck_open(k, &with);
    ck_save_prompt(k, 1, tokens, 64, 0);
}

/* Asks for a load of 64 tokens into blocks 20 and on. */
static void ask(struct ck *k, uint64_t id)
{
    uint32_t async;
    ck_new(k, id, tokens, 70);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, 0, &async), 64);
    CHECK_INT(ck_alloc(k, id, blocks + 20, 9, 64), 0);
}

static void load(struct ck *k, uint64_t id, uint32_t n_bad)
{
    struct ck_answer answer;
    ask(k, id);
    ck_settle(k, &answer);
    CHECK_INT(answer.n_bad, n_bad);
    if (!n_bad) CHECK(ck_right_all(k, tokens, 0, 64, blocks + 20));
}

TEST(loads_go_straight_into_device_memory)
{
    for (uint32_t sync = 0; sync < 2; sync++) {
        struct ck k;
        gpu_open(&k, &(struct ck_options){.n_groups = 2,
                                          .flags = sync ? TSR_CONNECTOR_LOAD_SYNC
                                                        : TSR_CONNECTOR_LOAD_ASYNC});
        ck_wait_locked(k.cache);
        load(&k, 2, 0);
        CHECK_INT(ck_worker_stats(&k, 0).bytes_loaded, 2 * LOADED);
        CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, 0);
        const struct tsri_lane *lane =
            &k.workers[0]->lanes[sync ? TSRI_LANE_LOAD : TSRI_LANE_LOAD_ASYNC];
        CHECK(!lane->staging.data && !lane->mem[0].batch);
        ck_close(&k);
    }
}

TEST(a_load_of_more_rows_than_go_together_takes_several_deliveries)
{
    for (uint32_t rows_max = 1; rows_max <= 3; rows_max++)
        for (uint32_t sync = 0; sync < 2; sync++) {
            struct ck k;
            gpu_open(&k, &(struct ck_options){.n_groups = 2,
                                              .flags = sync ? TSR_CONNECTOR_LOAD_SYNC
                                                            : TSR_CONNECTOR_LOAD_ASYNC});
            ck_wait_locked(k.cache);
            for (uint32_t i = 0; i < TSRI_LANES; i++)
                k.workers[0]->lanes[i].rows_max = rows_max;
            load(&k, 2, 0);
            CHECK_INT(ck_worker_stats(&k, 0).bytes_loaded, 2 * LOADED);
            CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, 0);
            ck_close(&k);
        }
}

TEST(loads_of_a_cache_without_the_device_are_staged)
{
    static const char *const on_cpu[] = {"device", "cpu", NULL};
    static const char *const on_another[] = {"device", "fakegpu", "device_number", "1", NULL};
    static const char *const none[] = {NULL};
    const char *const *const caches[] = {none, on_cpu, on_another};
    for (uint32_t i = 0; i < 3; i++) {
        struct ck k;
        gpu_open(&k, &(struct ck_options){.cache = caches[i]});
        load(&k, 2, 0);
        CHECK_INT(ck_worker_stats(&k, 0).bytes_loaded, LOADED);
        CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, LOADED);
        ck_close(&k);
    }
}

TEST(pages_that_are_not_locked_yet_are_staged_and_the_others_are_not)
{
    struct ck k;
    gpu->register_max(0);
    gpu_open(&k, &(struct ck_options){.n_groups = 2});
    load(&k, 2, 0);
    CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, 2 * LOADED);
    for (uint32_t i = 0; i < TSRI_LANES; i++) /* nothing stays pinned */
        CHECK(!k.workers[0]->lanes[i].deliveries[0] ||
              k.workers[0]->lanes[i].deliveries[0]->source.n == 0);
    gpu->register_max(UINT64_MAX);
    tsri_locking_close(k.cache->locking);
    CHECK_INT(tsri_locking_open(&k.cache->locking, k.cache->device, k.cache->pool.region.data,
                                (size_t)3 * 4096, 4096),
              0);
    ck_wait_locked(k.cache);
    load(&k, 3, 0);
    CHECK_INT(ck_worker_stats(&k, 0).bytes_loaded, 4 * LOADED);
    CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, 2 * LOADED + 2 * LOADED * 5 / 8);
    ck_close(&k);
}

/* ---- behind the engine ---- */

static void write_late(void *arg)
{
    usleep(30 * 1000);
    ck_write_all(arg, tokens + 5, 0, 64, blocks + 20);
}

TEST(blocks_are_loaded_behind_what_the_engine_had_queued)
{
    struct ck k;
    gpu_open(&k, &(struct ck_options){0});
    ck_wait_locked(k.cache);
    for (uint64_t id = 2; id < 4; id++) {
        gpu->launch(k.stream, write_late, &k);
        load(&k, id, 0);
        gpu->stream_sync(k.stream);
        CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    }
    ck_close(&k);
}

static atomic_bool may_write;

static void write_when_told(void *arg)
{
    while (!atomic_load(&may_write))
        usleep(200);
    ck_write_all(arg, tokens + 5, 0, 64, blocks + 20);
}

/* As model runners do that start loads when the forward is queued. */
TEST(a_load_does_not_wait_for_what_is_queued_behind_the_mark)
{
    struct ck k;
    struct tsr_step_desc none = {.size = sizeof none};
    struct ck_answer answer;
    const void *meta;
    size_t bytes;
    gpu_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_ASYNC});
    ck_wait_locked(k.cache);
    ask(&k, 2);
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &none, &meta, &bytes), 0);
    CHECK_INT(tsr_worker_handle_preemptions(k.workers[0], meta, bytes), 0);
    CHECK_INT(tsr_worker_mark_queue(k.workers[0], meta, bytes), 0);
    atomic_store(&may_write, false);
    gpu->launch(k.stream, write_when_told, &k);
    CHECK_INT(tsr_worker_start_load_kv(k.workers[0], meta, bytes), 0);
    WAIT_FOR(ck_worker_stats(&k, 0).loads >= 1);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    atomic_store(&may_write, true);
    gpu->stream_sync(k.stream);
    CHECK(ck_right_all(&k, tokens + 5, 0, 64, blocks + 20));
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_bad, 0);
    ck_close(&k);
}

/* ---- giving up ---- */

static void *let_go(void *unused)
{
    (void)unused;
    usleep(150 * 1000);
    gpu->hold(false);
    return NULL;
}

TEST(giving_up_waits_for_what_was_queued)
{
    struct ck k;
    struct ck_answer answer;
    pthread_t thread;
    gpu_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_ASYNC, .load_timeout_ms = 300});
    ck_wait_locked(k.cache);
    ask(&k, 2);
    gpu->hold(true);
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_received, 0);
    WAIT_FOR(gpu->queued());
    usleep(300 * 1000);
    uint64_t start_ns = tsri_now_ns();
    CHECK_INT(pthread_create(&thread, NULL, let_go, NULL), 0);
    ck_step(&k, NULL, &answer);
    CHECK(tsri_now_ns() - start_ns >= 140 * 1000000u);
    CHECK_INT(gpu->queued(), 0);
    CHECK_INT(answer.n_received, 1);
    CHECK_INT(answer.n_bad, 8);
    pthread_join(thread, NULL);
    ck_write_all(&k, tokens + 3, 0, 64, blocks + 20);
    ck_settle(&k, NULL);
    CHECK(ck_right_all(&k, tokens + 3, 0, 64, blocks + 20));
    CHECK_INT(ck_stats(&k).loads_failed, 1);
    ck_close(&k);
}

TEST(a_load_that_is_given_up_while_its_tier_is_stuck_is_never_queued)
{
    struct fake_tier_plan plan;
    struct kit kit;
    struct ck k;
    struct ck_answer answer;
    fake_tier_plan_init(&plan);
    kit_open_tiers(&kit, on_gpu, &plan, 1);
    gpu_open(&k, &(struct ck_options){
                     .shared = kit.cache, .flags = TSR_CONNECTOR_LOAD_SYNC, .load_timeout_ms = 60});
    ck_wait_locked(kit.cache);
    CHECK_INT(tsr_cache_flush(kit.cache), 0);
    CHECK(kit_evict_all(&kit) >= 4);
    ask(&k, 2);
    fake_tier_gate(&plan, FAKE_GET);
    uint64_t n_before = gpu->calls("scatter");
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_bad, 8);
    ck_write_all(&k, tokens + 3, 0, 64, blocks + 20);
    fake_tier_gate(&plan, 0);
    ck_settle(&k, NULL);
    CHECK(ck_right_all(&k, tokens + 3, 0, 64, blocks + 20));
    CHECK_INT(gpu->calls("scatter"), n_before);
    load(&k, 3, 0); /* and from the tier after all */
    ck_close(&k);
    kit_close(&kit);
    fake_tier_plan_fini(&plan);
}

/* ---- failures ---- */

TEST(a_device_that_fails_is_blocks_to_recompute)
{
    static const char *const ops[] = {"scatter",    "scatter",      "event_wait",   "event_wait",
                                      "event_sync", "event_record", "event_record", "batch_open",
                                      "batch_set",  "host_alloc"};
    /* The first two records and the first wait are of the step. */
    static const uint32_t nth[] = {1, 2, 2, 3, 1, 3, 4, 1, 1, 1};
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (uint32_t sync = 0; sync < 2; sync++) {
            struct ck k;
            struct ck_answer answer;
            gpu_open(&k, &(struct ck_options){.flags = sync ? TSR_CONNECTOR_LOAD_SYNC
                                                            : TSR_CONNECTOR_LOAD_ASYNC});
            ck_wait_locked(k.cache);
            ask(&k, 2);
            gpu->fail(ops[i], nth[i], TSR_EDEVICE);
            ck_settle(&k, &answer);
            CHECK(answer.n_bad == 8 || ck_right_all(&k, tokens, 0, 64, blocks + 20));
            gpu->reset();
            load(&k, 3, 0);
            ck_close(&k);
        }
}

/* The server goes away while the device reads its memory. */
static void lose_server(int how)
{
    struct served s = {.pid = 0};
    struct kit a, b;
    struct ck k;
    struct ck_answer answer;
    served_start(&s, NULL);
    served_kit_open(&a, s.path, NULL);
    served_kit_open(&b, s.path, on_gpu);
    gpu_open(&k, &(struct ck_options){
                     .shared = a.cache, .workers = b.cache, .flags = TSR_CONNECTOR_LOAD_ASYNC});
    /* Until the mapping is page-locked, loads are staged. */
    uint64_t staged = 1, id = 2, until_ns = tsri_now_ns() + SOON_NS;
    for (; staged && tsri_now_ns() < until_ns; id++) {
        staged = ck_worker_stats(&k, 0).bytes_staged;
        load(&k, id, 0);
        CHECK_INT(ck_finish(&k, id, 70, 64), 0);
        staged = ck_worker_stats(&k, 0).bytes_staged - staged;
    }
    CHECK_INT(staged, 0);
    ask(&k, id);
    gpu->hold(true);
    ck_step(&k, NULL, &answer);
    WAIT_FOR(gpu->queued());
    served_stop(&s, how);
    gpu->hold(false);
    ck_settle(&k, &answer);
    /* Memory of a server that was killed stays as it was. */
    CHECK(answer.n_bad == 8 || (how == SIGKILL && ck_right_all(&k, tokens, 0, 64, blocks + 20)));
    ck_close(&k);
    kit_close(&a);
    kit_close(&b);
    served_end(&s);
}

TEST(a_server_that_goes_away_in_mid_load_is_blocks_to_recompute)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    lose_server(SIGTERM);
    lose_server(SIGKILL);
}

/* ---- two users of one server ---- */

struct user {
    struct ck k;
    const uint32_t *as; /* its KV of the prompt is what these tokens have */
    uint32_t n_loaded;
};

static void user_open(struct user *u, const char *salt, struct tsr_cache *cache)
{
    ck_open(&u->k, &(struct ck_options){.salt = salt,
                                        .shared = cache,
                                        .gpu = gpu,
                                        .n_groups = 2,
                                        .flags = TSR_CONNECTOR_LOAD_ASYNC});
    CHECK_INT(ck_find(&u->k, tokens, 70), 0); /* whatever others have saved */
}

static void *save_and_load(void *arg)
{
    struct user *u = arg;
    ck_new(&u->k, 1, tokens, 64);
    (void)ck_alloc(&u->k, 1, blocks, 8, 0);
    ck_write_all(&u->k, u->as, 0, 64, blocks);
    if (ck_finish(&u->k, 1, 64, 64)) ck_settle(&u->k, NULL);
    for (uint64_t id = 2; id < 22; id++) {
        uint32_t async;
        ck_poison(&u->k, 0, 20, id);
        ck_new(&u->k, id, tokens, 70);
        if (tsr_scheduler_get_num_new_matched_tokens(u->k.scheduler, id, 0, &async) != 64) break;
        (void)ck_alloc(&u->k, id, blocks + 20, 9, 64);
        ck_settle(&u->k, NULL);
        u->n_loaded += ck_right_all(&u->k, u->as, 0, 64, blocks + 20);
        (void)ck_finish(&u->k, id, 70, 64);
    }
    return NULL;
}

TEST(salts_share_a_server_and_its_mapping_and_no_entry)
{
    static const char *const options[] = {"host_size", "16M", "host_page_size", "4K", NULL};
    struct server_kit s;
    struct kit client;
    struct user a = {.as = tokens}, b = {.as = tokens + 9}, c = {.as = tokens};
    pthread_t threads[2];
    server_open(&s, options);
    served_kit_open(&client, s.path, on_gpu);
    user_open(&a, "a", client.cache);
    user_open(&b, "b", client.cache);
    gpu->delay(1, 2, 500);
    CHECK_INT(pthread_create(&threads[0], NULL, save_and_load, &a), 0);
    CHECK_INT(pthread_create(&threads[1], NULL, save_and_load, &b), 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    CHECK_INT(a.n_loaded, 20);
    CHECK_INT(b.n_loaded, 20);
    user_open(&c, NULL, client.cache);
    /* What one's scheduler has found the other's worker does not load. */
    struct tsr_step_desc none = {.size = sizeof none};
    const void *meta;
    size_t bytes;
    ask(&a.k, 99);
    CHECK_INT(tsr_scheduler_build_connector_meta(a.k.scheduler, &none, &meta, &bytes), 0);
    CHECK_INT(tsr_worker_start_load_kv(b.k.workers[0], meta, bytes), TSR_ESPACE);
    ck_close(&c.k);
    ck_close(&b.k);
    ck_close(&a.k);
    kit_close(&client);
    CHECK(server_end(&s));
    gpu->reset();
}

int main(void)
{
    gpu = fakegpu_load();
    ck_number(tokens, blocks);
    RUN(loads_go_straight_into_device_memory);
    RUN(a_load_of_more_rows_than_go_together_takes_several_deliveries);
    RUN(loads_of_a_cache_without_the_device_are_staged);
    RUN(pages_that_are_not_locked_yet_are_staged_and_the_others_are_not);
    RUN(blocks_are_loaded_behind_what_the_engine_had_queued);
    RUN(a_load_does_not_wait_for_what_is_queued_behind_the_mark);
    RUN(giving_up_waits_for_what_was_queued);
    RUN(a_load_that_is_given_up_while_its_tier_is_stuck_is_never_queued);
    RUN(a_device_that_fails_is_blocks_to_recompute);
    RUN(a_server_that_goes_away_in_mid_load_is_blocks_to_recompute);
    RUN(salts_share_a_server_and_its_mapping_and_no_entry);
    return test_end();
}
