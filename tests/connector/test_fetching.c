/* Loads in the background, and what becomes of them when a tier or the owner fails: blocks to
 * recompute, in time, and never a byte into the engine's memory afterwards. */
#include "support/connector_kit.h"
#include "support/fake_tier.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <signal.h>
#include <unistd.h>

static uint32_t tokens[128];
static int32_t blocks[64];

/* A cache with a tier below, in which a prompt of 64 tokens was saved and is no longer in host
 * memory. */
struct cold {
    struct fake_tier_plan plan;
    struct kit kit;
    struct ck k;
};

static void cold_open(struct cold *c, const struct ck_options *o)
{
    fake_tier_plan_init(&c->plan);
    kit_open_tiers(&c->kit, NULL, &c->plan, 1);
    struct ck_options with = *o;
    with.shared = c->kit.cache;
    ck_open(&c->k, &with);
    ck_save_prompt(&c->k, 1, tokens, 64, 0);
    CHECK_INT(tsr_cache_flush(c->kit.cache), 0);
    CHECK(kit_evict_all(&c->kit) >= 4);
}

static void cold_close(struct cold *c)
{
    ck_close(&c->k);
    kit_close(&c->kit);
    fake_tier_plan_fini(&c->plan);
}

/* Asks for a load of 64 tokens into blocks 20 and on. */
static uint32_t ask(struct ck *k)
{
    uint32_t async = 9;
    ck_new(k, 2, tokens, 70);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k->scheduler, 2, 0, &async), 64);
    CHECK_INT(ck_alloc(k, 2, blocks + 20, 9, 64), 0);
    return async;
}

TEST(what_is_in_a_lower_tier_is_loaded_between_steps)
{
    struct cold c;
    struct ck_answer answer;
    cold_open(&c, &(struct ck_options){0});
    CHECK_INT(ask(&c.k), 1);
    ck_settle(&c.k, &answer);
    CHECK_INT(answer.n_received, 1);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(&c.k, tokens, 0, 64, blocks + 20));
    cold_close(&c);
}

#define LOADED ((uint64_t)64 * CK_LAYERS * CK_PLANES * CK_ROW_BYTES)

TEST(a_load_goes_straight_where_the_cache_can_deliver)
{
    struct ck k;
    struct ck_answer answer;
    ck_open(&k, &(struct ck_options){.n_groups = 2});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ask(&k);
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    CHECK_INT(ck_worker_stats(&k, 0).bytes_loaded, 2 * LOADED);
    CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, 0);
    ck_close(&k);
}

/* As it is on a device that the cache has not got. */
TEST(without_deliveries_loads_go_through_staging_memory)
{
    struct ck k;
    struct ck_answer answer;
    for (uint32_t sync = 0; sync < 2; sync++) {
        ck_open(&k,
                &(struct ck_options){.n_groups = 2, .flags = sync ? TSR_CONNECTOR_LOAD_SYNC : 0});
        for (uint32_t i = 0; i < TSRI_LANES; i++)
            memset(k.workers[0]->lanes[i].has_asked, true, sizeof k.workers[0]->lanes[i].has_asked);
        ck_save_prompt(&k, 1, tokens, 64, 0);
        ask(&k);
        ck_settle(&k, &answer);
        CHECK_INT(answer.n_bad, 0);
        CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
        CHECK_INT(ck_worker_stats(&k, 0).bytes_loaded, 2 * LOADED);
        CHECK_INT(ck_worker_stats(&k, 0).bytes_staged, 2 * LOADED);
        ck_close(&k);
    }
}

TEST(a_tier_that_fails_is_blocks_to_recompute)
{
    struct cold c;
    struct ck_answer answer;
    cold_open(&c, &(struct ck_options){0});
    CHECK_INT(ask(&c.k), 1);
    fake_tier_fail(&c.plan, FAKE_GET, 1, 1000, TSR_EIO);
    ck_settle(&c.k, &answer);
    CHECK_INT(answer.n_received, 1);
    CHECK_INT(answer.n_bad, 8);
    CHECK_INT(answer.bad[0].block, 20);
    CHECK_INT(ck_stats(&c.k).loads_failed, 1);
    cold_close(&c);
}

TEST(a_damaged_entry_is_blocks_to_recompute)
{
    struct cold c;
    struct ck_answer answer;
    struct tsr_key keys[4];
    cold_open(&c, &(struct ck_options){0});
    struct tsr_prompt p = {.size = sizeof p, .tokens = tokens, .n_tokens = 64};
    CHECK_INT(tsr_space_keys(c.k.scheduler->terms.spaces[0], &p, keys, 4), 4);
    CHECK(mem_tier_store_damage(&c.plan.mem, &keys[2], 5));
    CHECK_INT(ask(&c.k), 1);
    ck_settle(&c.k, &answer);
    CHECK_INT(answer.n_received, 1);
    CHECK_INT(answer.n_bad, 4); /* from the third chunk on */
    CHECK_INT(answer.bad[0].block, 24);
    CHECK(ck_right_all(&c.k, tokens, 0, 32, blocks + 20));
    cold_close(&c);
}

TEST(a_step_waits_for_a_stuck_tier_only_so_long)
{
    struct cold c;
    struct ck_answer answer;
    cold_open(&c, &(struct ck_options){.flags = TSR_CONNECTOR_LOAD_SYNC, .load_timeout_ms = 80});
    CHECK_INT(ask(&c.k), 0);
    fake_tier_gate(&c.plan, FAKE_GET);
    uint64_t start = tsri_now_ns();
    ck_step(&c.k, NULL, &answer);
    CHECK((tsri_now_ns() - start) / 1000000 >= 70);
    CHECK((tsri_now_ns() - start) / 1000000 < 5000);
    CHECK_INT(answer.n_bad, 8);
    /* The engine has its blocks back and computes: nothing is written there when the tier answers
     * after all. */
    ck_write_all(&c.k, tokens + 3, 0, 64, blocks + 20);
    fake_tier_gate(&c.plan, 0);
    ck_settle(&c.k, NULL);
    CHECK(ck_right_all(&c.k, tokens + 3, 0, 64, blocks + 20));
    CHECK_INT(ck_stats(&c.k).loads_failed, 1);
    cold_close(&c);
}

TEST(a_load_between_steps_that_is_stuck_is_named_in_time)
{
    struct cold c;
    struct ck_answer answer;
    cold_open(&c, &(struct ck_options){.load_timeout_ms = 50});
    CHECK_INT(ask(&c.k), 1);
    fake_tier_gate(&c.plan, FAKE_GET);
    ck_step(&c.k, NULL, &answer);
    CHECK_INT(answer.n_received, 0);
    usleep(80 * 1000);
    ck_step(&c.k, NULL, &answer);
    CHECK_INT(answer.n_received, 1);
    CHECK_INT(answer.n_bad, 8);
    fake_tier_gate(&c.plan, 0);
    ck_settle(&c.k, &answer);
    CHECK_INT(answer.n_received, 0); /* once */
    cold_close(&c);
}

/* Both halves as clients of a server in another process. */
static void served_halves(struct served *s, struct kit *a, struct kit *b, struct ck *k)
{
    served_start(s, NULL);
    served_kit_open(a, s->path, NULL);
    served_kit_open(b, s->path, NULL);
    ck_open(k, &(struct ck_options){.shared = a->cache, .workers = b->cache});
}

TEST(halves_in_other_processes_than_the_owner_work_alike)
{
    struct served s = {.pid = 0};
    struct kit a, b;
    struct ck k;
    struct ck_answer answer;
    served_halves(&s, &a, &b, &k);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 4);
    ask(&k);
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    ck_save_prompt(&k, 3, tokens, 64, 0); /* known: not gathered */
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 4);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_wasted, 0);
    ck_close(&k);
    kit_close(&a);
    kit_close(&b);
    served_stop(&s, SIGTERM);
    served_end(&s);
}

/* Both caches have an entry in each of the places that the scheduler names. */
TEST(what_was_found_in_another_life_is_blocks_to_recompute)
{
    struct kit a, b;
    struct ck k, other;
    struct ck_answer answer;
    uint32_t others[70];
    for (uint32_t i = 0; i < 70; i++)
        others[i] = tokens[i] + 1;
    kit_open(&a, NULL);
    kit_open(&b, NULL);
    ck_open(&other, &(struct ck_options){.shared = b.cache});
    ck_save_prompt(&other, 1, others, 64, 0);
    CHECK_INT(ck_find(&other, others, 70), 64);
    ck_close(&other);
    ck_open(&other, &(struct ck_options){.shared = a.cache});
    ck_save_prompt(&other, 1, tokens, 64, 0);
    ck_close(&other);
    ck_open(&k, &(struct ck_options){.shared = a.cache, .workers = b.cache});
    ck_write_all(&k, tokens, 0, 64, blocks);
    ask(&k);
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_bad, 8);
    ck_close(&k);
    kit_close(&a);
    kit_close(&b);
}

/* Bad blocks of a step that a worker is given on its own. */
static int give(struct ck *k, const void *meta, size_t bytes)
{
    struct tsr_bad_block bad[64];
    CHECK_INT(tsr_worker_start_load_kv(k->workers[0], meta, bytes), 0);
    for (uint32_t l = 0; l < CK_LAYERS; l++)
        CHECK_INT(tsr_worker_wait_for_layer_load(k->workers[0], 0, l), 0);
    CHECK_INT(tsr_worker_wait_for_save(k->workers[0]), 0);
    return tsr_worker_get_block_ids_with_load_errors(k->workers[0], bad, 64);
}

/* An engine that is slow, or that repeats itself: the same bytes, before and after. */
TEST(bytes_from_before_a_restart_of_the_owner_are_blocks_to_recompute)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    struct served s = {.pid = 0};
    struct kit a, b;
    struct ck k;
    struct tsr_step_desc none = {.size = sizeof none};
    const void *meta;
    size_t bytes;
    uint32_t others[70];
    for (uint32_t i = 0; i < 70; i++)
        others[i] = tokens[i] + 1;
    served_halves(&s, &a, &b, &k);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ask(&k);
    CHECK_INT(tsr_scheduler_build_connector_meta(k.scheduler, &none, &meta, &bytes), 0);
    void *kept = malloc(bytes);
    memcpy(kept, meta, bytes);
    CHECK_INT(give(&k, kept, bytes), 0);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    ck_settle(&k, NULL);
    CHECK_INT(tsr_cache_clear(a.cache, NULL), 4); /* so that the disk does not bring it back */
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    served_stop(&s, SIGTERM);
    served_start(&s, NULL);
    /* Through the same connections, until they are there again. */
    uint64_t id = 10, until_ns = tsri_now_ns() + 20000000000u;
    while (ck_find(&k, others, 70) != 64 && tsri_now_ns() < until_ns) {
        usleep(2000);
        ck_save_prompt(&k, id++, others, 64, 30);
    }
    CHECK(tsri_now_ns() < until_ns);
    CHECK_INT(give(&k, kept, bytes), 8);
    ck_settle(&k, NULL);
    free(kept);
    ck_close(&k);
    kit_close(&a);
    kit_close(&b);
    served_stop(&s, SIGTERM);
    served_end(&s);
}

TEST(an_owner_that_dies_is_blocks_to_recompute_and_then_misses)
{
    struct served s = {.pid = 0};
    struct kit a, b;
    struct ck k;
    struct ck_answer answer;
    served_halves(&s, &a, &b, &k);
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ask(&k);
    served_stop(&s, SIGKILL);
    uint64_t start = tsri_now_ns();
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_bad, 8);
    CHECK_INT(ck_find(&k, tokens, 70), 0);
    ck_save_prompt(&k, 4, tokens, 64, 30); /* nothing is kept, nothing is held */
    CHECK((tsri_now_ns() - start) / 1000000 < 8000);
    ck_close(&k);
    kit_close(&a);
    kit_close(&b);
    served_end(&s);
}

int main(void)
{
    ck_number(tokens, blocks);
    RUN(what_is_in_a_lower_tier_is_loaded_between_steps);
    RUN(a_load_goes_straight_where_the_cache_can_deliver);
    RUN(without_deliveries_loads_go_through_staging_memory);
    RUN(a_tier_that_fails_is_blocks_to_recompute);
    RUN(a_damaged_entry_is_blocks_to_recompute);
    RUN(a_step_waits_for_a_stuck_tier_only_so_long);
    RUN(a_load_between_steps_that_is_stuck_is_named_in_time);
    RUN(halves_in_other_processes_than_the_owner_work_alike);
    RUN(what_was_found_in_another_life_is_blocks_to_recompute);
    RUN(bytes_from_before_a_restart_of_the_owner_are_blocks_to_recompute);
    RUN(an_owner_that_dies_is_blocks_to_recompute_and_then_misses);
    return test_end();
}
