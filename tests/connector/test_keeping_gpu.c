/* Saves out of the memory of a device that queues: straight into page-locked pages, or into the
 * memory that a server copies from; behind what the engine had queued, and the blocks are free as
 * soon as they were read. */
#include "cache/core.h"
#include "support/cache_kit.h"
#include "support/connector_kit.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <unistd.h>

static const struct fakegpu_control *gpu;
static const char *const on_gpu[] = {"device", "fakegpu", NULL};
static uint32_t tokens[128];
static int32_t blocks[64];

static void gpu_open(struct ck *k, const struct ck_options *o)
{
    struct ck_options with = *o;
    with.gpu = gpu;
    if (!with.shared && !with.cache) with.cache = on_gpu;
    ck_open(k, &with);
    ck_wait_locked(k->cache);
}

/* What was saved is loaded into other blocks, and right. */
static void check_saved(struct ck *k, uint64_t id, uint32_t n)
{
    struct ck_answer answer;
    uint32_t async;
    ck_new(k, id, tokens, n + 6);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, 0, &async), n);
    CHECK_INT(ck_alloc(k, id, blocks + 30, n / CK_BLOCK + 1, n), 0);
    ck_settle(k, &answer);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(k, tokens, 0, n, blocks + 30));
}

static bool is_staged(const struct ck *k)
{
    return k->workers[0]->lanes[TSRI_LANE_SAVE].staging.data != NULL;
}

TEST(saves_go_straight_into_page_locked_pages)
{
    struct ck k;
    gpu_open(&k, &(struct ck_options){.n_groups = 2});
    ck_save_prompt(&k, 1, tokens, 128, 0);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 16);
    CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 256);
    CHECK(!is_staged(&k));
    check_saved(&k, 2, 112);
    ck_close(&k);
}

TEST(saves_into_pages_that_are_not_locked_are_staged)
{
    struct ck k;
    gpu->register_max(0);
    static const char *const none[] = {NULL};
    for (uint32_t i = 0; i < 2; i++) { /* cannot be locked; no device */
        struct ck_options o = {.gpu = gpu, .cache = i ? none : on_gpu};
        ck_open(&k, &o);
        ck_save_prompt(&k, 1, tokens, 64, 0);
        CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 64);
        CHECK(is_staged(&k));
        check_saved(&k, 2, 64);
        ck_close(&k);
    }
    gpu->reset();
}

static void write_late(void *arg)
{
    usleep(30 * 1000);
    ck_write_all(arg, tokens, 0, 64, blocks);
}

TEST(blocks_are_read_behind_what_the_engine_had_queued)
{
    struct ck k;
    gpu_open(&k, &(struct ck_options){0});
    ck_new(&k, 1, tokens, 64);
    CHECK_INT(ck_alloc(&k, 1, blocks, 8, 0), 0);
    gpu->launch(k.stream, write_late, &k);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 1);
    ck_settle(&k, NULL);
    check_saved(&k, 2, 64);
    ck_close(&k);
}

/* ---- giving up ---- */

static void *let_go(void *unused)
{
    (void)unused;
    usleep(100 * 1000);
    gpu->hold(false);
    return NULL;
}

/* Its blocks are another's then: nothing is read later. */
TEST(a_save_that_is_given_up_reads_no_more_and_is_not_found)
{
    struct ck k;
    struct ck_answer answer;
    pthread_t thread;
    gpu_open(&k, &(struct ck_options){.n_groups = 2, .save_timeout_ms = 50});
    ck_new(&k, 1, tokens, 64);
    CHECK_INT(ck_alloc(&k, 1, blocks, 8, 0), 0);
    ck_write_all(&k, tokens, 0, 64, blocks);
    gpu->hold(true);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 1);
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_sent, 0);
    usleep(60 * 1000);
    CHECK_INT(pthread_create(&thread, NULL, let_go, NULL), 0);
    ck_step(&k, NULL, &answer); /* waits for what was queued */
    CHECK_INT(gpu->queued(), 0);
    pthread_join(thread, NULL);
    CHECK_INT(answer.n_sent, 1);
    ck_write_all(&k, tokens + 3, 0, 64, blocks);
    ck_settle(&k, NULL);
    CHECK_INT(ck_worker_stats(&k, 0).saves_failed, 1);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 4); /* the first group's were under way */
    CHECK_INT(ck_find(&k, tokens, 70), 0);
    ck_close(&k);
}

/* ---- failures ---- */

TEST(a_device_that_fails_saves_nothing_wrong)
{
    static const char *const ops[] = {"gather",      "gather",    "event_wait", "event_record",
                                      "stream_sync", "batch_set", "batch_open", "host_alloc"};
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (uint32_t n = 1; n <= 3; n++) {
            struct ck k;
            gpu_open(&k, &(struct ck_options){.n_groups = 2});
            ck_new(&k, 1, tokens, 64);
            CHECK_INT(ck_alloc(&k, 1, blocks, 8, 0), 0);
            ck_write_all(&k, tokens, 0, 64, blocks);
            gpu->fail(ops[i], n, TSR_EDEVICE);
            if (ck_finish(&k, 1, 64, 64)) ck_settle(&k, NULL);
            gpu->reset();
            int found = ck_find(&k, tokens, 70);
            CHECK(found == 0 || found == 64);
            if (found) check_saved(&k, 9, 64);
            CHECK_INT(ck_stats(&k).jobs_in_flight, 0);
            ck_close(&k);
        }
}

/* ---- with a server ---- */

static void save_to_server(const char *const *options, bool straight)
{
    struct server_kit s;
    struct kit a, b;
    struct ck k;
    server_open(&s, (const char *const[]){"host_size", "16M", "host_page_size", "4K", NULL});
    served_kit_open(&a, s.path, NULL);
    served_kit_open(&b, s.path, options);
    gpu_open(&k, &(struct ck_options){.shared = a.cache, .workers = b.cache, .n_groups = 2});
    ck_save_prompt(&k, 1, tokens, 128, 0);
    CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 256);
    CHECK(is_staged(&k) != straight);
    check_saved(&k, 2, 112);
    ck_close(&k);
    kit_close(&b);
    kit_close(&a);
    CHECK(server_end(&s));
}

TEST(with_a_server_the_device_writes_where_the_server_reads)
{
    save_to_server(on_gpu, true);
    CHECK_INT(gpu->registered_bytes(), 0);
}

TEST(what_cannot_be_locked_goes_to_the_server_through_staging_memory)
{
    static const char *const none[] = {NULL};
    save_to_server(none, false);
    gpu->register_max(0);
    save_to_server(on_gpu, false);
    gpu->reset();
}

int main(void)
{
    ck_number(tokens, blocks);
    gpu = fakegpu_load();
    RUN(saves_go_straight_into_page_locked_pages);
    RUN(saves_into_pages_that_are_not_locked_are_staged);
    RUN(blocks_are_read_behind_what_the_engine_had_queued);
    RUN(a_save_that_is_given_up_reads_no_more_and_is_not_found);
    RUN(a_device_that_fails_saves_nothing_wrong);
    RUN(with_a_server_the_device_writes_where_the_server_reads);
    RUN(what_cannot_be_locked_goes_to_the_server_through_staging_memory);
    return test_end();
}
