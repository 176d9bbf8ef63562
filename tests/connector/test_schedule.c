/* The property that matters: whatever an engine's schedule is, no token gets a byte of KV that is
 * not its own. A simulated engine drives both halves through random schedules and looks at every
 * byte (support/engine_sim.h). */
#include "support/engine_sim.h"
#include "support/test.h"

static struct sim_options options(uint64_t seed)
{
    return (struct sim_options){.seed = seed,
                                .kit = {.n_blocks = 3000, .flags = TSR_CONNECTOR_SAVE_DECODE},
                                .n_requests = TEST_SANITIZED ? 300 : 1000,
                                .depth = 1,
                                .n_families = 24,
                                .prompt_max = 120,
                                .output_max = 40,
                                .step_tokens = 600,
                                .running_max = 300,
                                .abort_per_1000 = 4,
                                .preempt_per_1000 = 4,
                                .evict_per_1000 = 200,
                                .lose_per_1000 = 60,
                                .lagging = true};
}

/* Of all depths together. */
static struct sim_result sum;

static void add(const struct sim_result *r)
{
    sum.n_preempted += r->n_preempted;
    sum.n_aborted += r->n_aborted;
    sum.n_rejected += r->n_rejected;
    sum.n_loaded += r->n_loaded;
    sum.n_load_failures += r->n_load_failures;
    sum.n_recomputed += r->n_recomputed;
    sum.n_held += r->n_held;
    sum.n_cached_checked += r->n_cached_checked;
    sum.worker.chunks_gathered += r->worker.chunks_gathered;
    sum.scheduler.chunks_known += r->scheduler.chunks_known;
}

static void run(const struct sim_options *o)
{
    struct sim_result r;
    engine_run(o, &r);
    if (r.wrong[0])
        printf("    seed %llu, depth %u: %s\n", (unsigned long long)o->seed, o->depth, r.wrong);
    CHECK_STR(r.wrong, "");
    CHECK_INT(r.n_finished + r.n_aborted, o->n_requests);
    /* No block is gathered twice, or when its key exists. */
    CHECK_INT(r.worker.chunks_wasted, 0);
    add(&r);
}

/* Nothing wrong, and it was not for want of work. */
static void run_depths(struct sim_options o)
{
    memset(&sum, 0, sizeof sum);
    for (o.depth = 1; o.depth <= SIM_DEPTH_MAX; o.depth++) {
        run(&o);
        o.seed += 100;
    }
    CHECK(sum.n_preempted > 10 && sum.n_aborted > 0 && sum.n_held > 10);
    CHECK(sum.n_loaded > 1000 && sum.n_cached_checked > 1000);
    CHECK(sum.worker.chunks_gathered > 50 && sum.scheduler.chunks_known > 0);
    CHECK(sum.n_load_failures > 0 && sum.n_recomputed > 0);
    CHECK(o.drafts_max == 0 || sum.n_rejected > 100);
}

TEST(no_schedule_gives_a_wrong_byte)
{
    run_depths(options(1));
}

TEST(nor_one_with_drafts_that_are_rejected)
{
    struct sim_options o = options(2);
    o.drafts_max = 3;
    run_depths(o);
}

TEST(nor_one_with_few_blocks)
{
    struct sim_options o = options(3);
    o.drafts_max = 2;
    o.kit.n_blocks = 400;
    o.preempt_per_1000 = 0;
    run_depths(o);
}

TEST(nor_loads_between_steps)
{
    struct sim_options o = options(4);
    o.drafts_max = 2;
    o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
    run_depths(o);
}

TEST(nor_two_ranks_of_which_one_has_evicted)
{
    struct sim_options o = options(5);
    o.drafts_max = 2;
    o.kit.n_ranks = 2;
    run_depths(o);
}

TEST(nor_groups_of_which_one_has_a_window)
{
    struct sim_options o = options(6);
    o.drafts_max = 2;
    o.kit.n_groups = 2;
    o.kit.window_tokens = 48;
    run_depths(o);
}

TEST(nor_saves_that_a_step_waits_for)
{
    struct sim_options o = options(7);
    o.drafts_max = 2;
    o.kit.worker_flags = TSR_WORKER_SAVE_IN_STEP;
    run_depths(o);
}

TEST(nor_the_other_boundary)
{
    struct sim_options o = options(8);
    o.drafts_max = 3;
    o.kit.boundary = TSR_BOUNDARY_PLACEHOLDERS;
    o.lagging = false; /* that is what it asks of an engine */
    run_depths(o);
}

TEST(nor_a_cache_that_is_far_too_small)
{
    static const char *const small[] = {"host_size", "1M", "entries_max", "200", NULL};
    struct sim_options o = options(9);
    o.drafts_max = 2;
    o.kit.cache = small;
    run_depths(o);
}

/* Half the size, because every step waits for threads of the device. */
static struct sim_options on_gpu(uint64_t seed)
{
    static const char *const cache[] = {"device", "fakegpu", NULL};
    struct sim_options o = options(seed);
    o.n_requests /= 2;
    o.no_races = TEST_TSAN;
    o.kit.gpu = fakegpu_load();
    o.kit.cache = cache;
    return o;
}

TEST(nor_the_memory_of_a_gpu)
{
    struct sim_options o = on_gpu(10);
    o.drafts_max = 2;
    o.kit.n_groups = 2;
    o.kit.window_tokens = 48;
    run_depths(o);
}

TEST(nor_loads_between_steps_on_a_gpu)
{
    struct sim_options o = on_gpu(11);
    o.drafts_max = 2;
    o.kit.flags |= TSR_CONNECTOR_LOAD_ASYNC;
    run_depths(o);
}

int main(void)
{
    RUN(no_schedule_gives_a_wrong_byte);
    RUN(nor_one_with_drafts_that_are_rejected);
    RUN(nor_one_with_few_blocks);
    RUN(nor_loads_between_steps);
    RUN(nor_two_ranks_of_which_one_has_evicted);
    RUN(nor_groups_of_which_one_has_a_window);
    RUN(nor_saves_that_a_step_waits_for);
    RUN(nor_the_other_boundary);
    RUN(nor_a_cache_that_is_far_too_small);
    RUN(nor_the_memory_of_a_gpu);
    RUN(nor_loads_between_steps_on_a_gpu);
    return test_end();
}
