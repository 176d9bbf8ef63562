/* The property of test_schedule.c on a device that queues: whatever an engine's schedule is, and
 * whatever the device is late with or fails at, no token gets a byte of KV that is not its own. The
 * engine runs on the fake GPU, which besides stops the process when memory is used, freed or
 * unlocked at the wrong time (support/fakegpu.h). Over a cache in the worker's process, and over a
 * server's.
 *
 *   test_gpu_schedule [seed]    from this seed on; each test has a range of its own */
#include "support/engine_sim.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <unistd.h>

static const struct fakegpu_control *gpu;
static const char *const on_gpu[] = {"device", "fakegpu", NULL};
static uint64_t first_seed;
#define POOL_BYTES (16u << 20) /* of connector_kit.c */
/* Of the device's operations: one in so many waits up to so long. */
static struct {
    uint32_t one_in, most_us;
} delays;

static struct sim_options options(uint64_t seed)
{
    delays.one_in = 4;
    delays.most_us = 300;
    return (struct sim_options){
        .seed = first_seed + seed * 1000,
        .kit = {.n_blocks = 1000, .flags = TSR_CONNECTOR_SAVE_DECODE, .gpu = gpu, .cache = on_gpu},
        .n_requests = TEST_SANITIZED ? 60 : 150,
        .depth = 1,
        .drafts_max = 2,
        .n_families = 12,
        .prompt_max = 120,
        .output_max = 40,
        .step_tokens = 600,
        .running_max = 100,
        .abort_per_1000 = 4,
        .preempt_per_1000 = 8,
        .evict_per_1000 = 200,
        .lose_per_1000 = 60,
        .no_races = TEST_TSAN};
}

static void set_failures(uint32_t per_1000)
{
    static const char *const ops[] = {"batch_set",  "scatter",    "gather",      "event_record",
                                      "event_wait", "event_sync", "stream_sync", "event_open"};
    for (size_t i = 0; i < TSRI_COUNT(ops); i++)
        gpu->fail_often(ops[i], per_1000);
}

static void fail_often(void)
{
    set_failures(20);
}

/* Of all runs of a test. */
static struct sim_result sum;

static void run(const struct sim_options *o)
{
    struct sim_result r;
    gpu->delay(o->seed, delays.one_in, delays.most_us);
    engine_run(o, &r);
    set_failures(0);
    if (r.wrong[0])
        printf("    seed %llu, depth %u: %s\n", (unsigned long long)o->seed, o->depth, r.wrong);
    CHECK_STR(r.wrong, "");
    CHECK_INT(r.n_finished + r.n_aborted, o->n_requests);
    sum.n_preempted += r.n_preempted;
    sum.n_aborted += r.n_aborted;
    sum.n_loaded += r.n_loaded;
    sum.n_load_failures += r.n_load_failures;
    sum.n_cached_checked += r.n_cached_checked;
    sum.worker.chunks_gathered += r.worker.chunks_gathered;
    sum.worker.bytes_loaded += r.worker.bytes_loaded;
    sum.worker.bytes_staged += r.worker.bytes_staged;
    sum.worker.saves_failed += r.worker.saves_failed;
    sum.worker.saves_given_up += r.worker.saves_given_up;
}

static void run_all_depths(struct sim_options o)
{
    memset(&sum, 0, sizeof sum);
    for (o.depth = 1; o.depth <= SIM_DEPTH_MAX; o.depth++) {
        run(&o);
        o.seed += 100;
    }
    gpu->reset();
}

/* Nothing wrong, and it was not for want of work. */
static void run_depths(struct sim_options o)
{
    run_all_depths(o);
    CHECK(sum.n_preempted > 10 && sum.n_aborted > 0);
    CHECK(sum.worker.chunks_gathered > 50 && sum.n_cached_checked > 500);
    CHECK(sum.n_loaded > 500);
}

static void await_locks(void)
{
    while (gpu->registered_bytes() < POOL_BYTES)
        usleep(100);
}

TEST(no_load_within_a_step_gives_a_wrong_byte)
{
    struct sim_options o = options(1);
    o.opened = await_locks;
    run_depths(o);
    CHECK_INT(sum.worker.bytes_staged, 0);
}

TEST(nor_one_between_steps)
{
    struct sim_options o = options(2);
    o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
    run_depths(o);
}

TEST(nor_one_that_the_engines_queue_waits_for)
{
    struct sim_options o = options(3);
    o.kit.flags |= TSR_CONNECTOR_LOAD_SURE;
    o.lose_per_1000 = 300; /* what was sure may be gone all the same */
    run_depths(o);
}

/* As vLLM's model runner V2 does. */
TEST(nor_loads_and_saves_that_start_when_the_step_is_queued)
{
    struct sim_options o = options(8);
    o.late_start = true;
    o.kit.n_blocks = 300; /* blocks have another owner soon */
    o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
    run_depths(o);
    o = options(9);
    o.late_start = true;
    o.kit.n_blocks = 300;
    o.kit.flags |= TSR_CONNECTOR_LOAD_SURE;
    run_depths(o);
}

TEST(nor_an_engine_on_the_default_queue)
{
    struct sim_options o = options(16);
    o.kit.default_stream = true;
    o.kit.flags |= TSR_CONNECTOR_LOAD_SURE;
    run_depths(o);
}

TEST(nor_few_blocks)
{
    struct sim_options o = options(4);
    o.kit.n_blocks = 200;
    o.preempt_per_1000 = 0;
    o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
    run_depths(o);
}

TEST(nor_two_ranks_and_a_group_with_a_window)
{
    struct sim_options o = options(5);
    o.kit.n_ranks = o.kit.n_groups = 2;
    o.kit.window_tokens = 48;
    run_depths(o);
}

TEST(nor_saves_that_a_step_waits_for)
{
    struct sim_options o = options(6);
    o.kit.worker_flags = TSR_WORKER_SAVE_IN_STEP;
    run_depths(o);
}

/* Entries leave host memory as fast as they come. */
TEST(nor_a_cache_that_is_far_too_small)
{
    static const char *const small[] = {"device",      "fakegpu", "host_size", "1M",
                                        "entries_max", "100",     NULL};
    struct sim_options o = options(7);
    o.kit.cache = small;
    run_depths(o);
}

/* ---- late and failing devices ---- */

/* How many depends on the machine. */
TEST(nor_loads_and_saves_that_are_given_up)
{
    for (uint32_t async = 0; async < 2; async++) {
        struct sim_options o = options(10 + async);
        if (async) o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
        o.kit.load_timeout_ms = o.kit.save_timeout_ms = 1;
        o.n_requests /= 2;
        delays.one_in = 1;
        delays.most_us = 1500;
        run_all_depths(o);
        CHECK(sum.n_load_failures > 0 || sum.worker.saves_given_up > 0);
    }
}

TEST(nor_a_device_of_which_calls_fail)
{
    for (uint32_t async = 0; async < 2; async++) {
        struct sim_options o = options(12 + async);
        if (async) o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
        o.opened = fail_often;
        o.kit.n_groups = 2;
        o.kit.n_blocks = 200; /* what is written too late meets the next owner */
        delays.one_in = 2;
        delays.most_us = 1000;
        run_depths(o);
        CHECK(sum.n_load_failures > 10 && sum.worker.saves_failed > 10);
    }
}

TEST(nor_a_pool_that_is_page_locked_late_or_never)
{
    gpu->register_delay(50000); /* in the middle of a run, more or less */
    run_depths(options(14));
    gpu->register_max(0);
    run_depths(options(15));
    CHECK_INT(sum.worker.bytes_staged, sum.worker.bytes_loaded);
}

/* ---- a server's cache ---- */

static void run_served(struct sim_options o)
{
    static const char *const server_options[] = {
        "host_size",     "16M", "host_page_size", "4K",   "any_offset", "false",
        "metadata_size", "8M",  "entries_max",    "8192", NULL};
    struct server_kit server;
    struct kit client;
    server_open(&server, server_options);
    served_kit_open(&client, server.path, on_gpu);
    o.kit.cache = NULL;
    o.kit.shared = server.k.cache;
    o.kit.workers = client.cache;
    run_all_depths(o);
    kit_close(&client);
    CHECK(server_end(&server));
    CHECK(sum.worker.chunks_gathered > 50 && sum.n_cached_checked > 500 && sum.n_loaded > 500);
}

TEST(nor_the_cache_of_a_server)
{
    struct sim_options o = options(20);
    run_served(o);
    o = options(21);
    o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
    run_served(o);
}

TEST(nor_that_with_a_device_of_which_calls_fail)
{
    struct sim_options o = options(22);
    o.opened = fail_often;
    run_served(o);
}

int main(int argc, char **argv)
{
    gpu = fakegpu_load();
    if (argc > 1) first_seed = strtoull(argv[1], NULL, 10);
    RUN(no_load_within_a_step_gives_a_wrong_byte);
    RUN(nor_one_between_steps);
    RUN(nor_one_that_the_engines_queue_waits_for);
    RUN(nor_loads_and_saves_that_start_when_the_step_is_queued);
    RUN(nor_an_engine_on_the_default_queue);
    RUN(nor_few_blocks);
    RUN(nor_two_ranks_and_a_group_with_a_window);
    RUN(nor_saves_that_a_step_waits_for);
    RUN(nor_a_cache_that_is_far_too_small);
    RUN(nor_loads_and_saves_that_are_given_up);
    RUN(nor_a_device_of_which_calls_fail);
    RUN(nor_a_pool_that_is_page_locked_late_or_never);
    RUN(nor_the_cache_of_a_server);
    RUN(nor_that_with_a_device_of_which_calls_fail);
    return test_end();
}
