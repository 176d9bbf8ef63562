/* Caches that share a tier: what one has stored the other finds when it asks, and what one forgets
 * the other keeps. */
#include "cache/manager.h"
#include "cache/ops.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/served_kit.h"
#include "support/test.h"

enum { N = 160 };

static struct tsr_tier_ops shared_ops;
static struct mem_tier_store store;
static struct fake_tier_plan plans[2];
static struct kit a, b;

static void open_one(struct kit *k, struct fake_tier_plan *plan)
{
    struct tsr_config *cfg = kit_config((const char *const[]){"entries_max", "256", NULL});
    fake_tier_plan_init_over(plan, &mem_tier, &store);
    shared_ops = fake_tier;
    shared_ops.caps = TSR_TIER_SHARED;
    CHECK_INT(tsr_tier_attach(cfg, &shared_ops, plan), 0);
    kit_open_config(k, cfg);
    tsr_config_close(cfg);
}

static void fresh(void)
{
    mem_tier_store_init(&store, 0);
    open_one(&a, &plans[0]);
    open_one(&b, &plans[1]);
}

static void done(void)
{
    CHECK(kit_end(&a));
    CHECK(kit_end(&b));
    fake_tier_plan_fini(&plans[0]);
    fake_tier_plan_fini(&plans[1]);
    mem_tier_store_fini(&store);
}

TEST(what_another_cache_stored_is_found_after_asking)
{
    fresh();
    uint32_t *tokens = kit_tokens(1, N);
    struct tsr_range range;
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, N),
                      segment = kit_segment_prompt(tokens, N, &range);
    CHECK_INT(kit_store_prefix(&a, tokens, N), N);
    CHECK_INT(kit_store_segment(&a, tokens, N), N);
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    CHECK_INT(kit_find_prefix(&b, tokens, N), 0);
    CHECK_INT(tsr_client_discover(b.client, b.space, &prefix), N / 16);
    CHECK_INT(kit_find_prefix(&b, tokens, N), N);
    CHECK_INT(kit_load_and_check(&b, &prefix), N);
    CHECK_INT(tsr_client_discover(b.client, b.space, &segment), 1);
    CHECK_INT(kit_load_and_check(&b, &segment), N);
    /* Known now: nobody is asked again. */
    uint64_t before = atomic_load(&plans[1].n_contains);
    CHECK_INT(tsr_client_discover(b.client, b.space, &prefix), 0);
    CHECK_INT(atomic_load(&plans[1].n_contains), before);
    CHECK(kit_valid(&b));
    free(tokens);
    done();
}

TEST(lookups_ask_nobody)
{
    fresh();
    uint32_t *tokens = kit_tokens(2, N);
    for (int i = 0; i < 10; i++)
        CHECK_INT(kit_find_prefix(&b, tokens, N), 0);
    CHECK_INT(atomic_load(&plans[1].n_contains), 0);
    free(tokens);
    done();
}

TEST(of_a_chain_only_what_is_whole_from_its_beginning_is_taken)
{
    fresh();
    uint32_t *tokens = kit_tokens(3, N);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, N);
    CHECK_INT(kit_store_prefix(&a, tokens, N), N);
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    struct tsr_key keys[N / 16];
    CHECK_INT(tsr_space_keys(a.space, &prefix, keys, N / 16), N / 16);
    struct tsr_tier *tier = a.cache->manager->lower[1].tier;
    struct tsr_tier_ref ref = {.key = keys[4]};
    CHECK_INT(tsri_tier_drop(tier, &ref, 1), 1);
    CHECK_INT(tsr_client_discover(b.client, b.space, &prefix), 4);
    CHECK_INT(kit_find_prefix(&b, tokens, N), 4 * 16);
    CHECK_INT(kit_load_and_check(&b, &prefix), 4 * 16);
    free(tokens);
    done();
}

TEST(another_space_finds_nothing)
{
    fresh();
    uint32_t *tokens = kit_tokens(4, N);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, N);
    CHECK_INT(kit_store_prefix(&a, tokens, N), N);
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    struct tsr_space_desc desc = kit_desc();
    desc.salt = "another tenant";
    struct tsr_space *space = kit_space(b.cache, &desc);
    CHECK_INT(tsr_client_discover(b.client, space, &prefix), 0);
    tsr_space_close(space);
    free(tokens);
    done();
}

TEST(what_one_forgets_for_want_of_room_the_other_still_finds)
{
    fresh();
    /* So many that the index of a is full several times over. */
    uint64_t n = 3 * (uint64_t)a.cache->ids_max, forgotten = n;
    for (uint64_t seed = 0; seed < n; seed++) {
        uint32_t *tokens = kit_tokens(seed, 16);
        int stored = kit_store_segment(&a, tokens, 16);
        if (stored == TSR_EAGAIN || stored == TSR_EFULL) { /* they wait to be written */
            CHECK_INT(tsr_cache_flush(a.cache), 0);
            stored = kit_store_segment(&a, tokens, 16);
        }
        CHECK_INT(stored, 16);
        free(tokens);
    }
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    CHECK_INT(store.n_items, n);
    for (uint64_t seed = 0; seed < n; seed++) {
        uint32_t *tokens = kit_tokens(seed, 16);
        if (kit_find_segment(&a, tokens, 16) == 0) forgotten = seed;
        free(tokens);
    }
    CHECK(forgotten < n);
    uint32_t *tokens = kit_tokens(forgotten, 16);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 16, &range);
    CHECK_INT(tsr_client_discover(b.client, b.space, &prompt), 1);
    CHECK_INT(kit_load_and_check(&b, &prompt), 16);
    /* And so does a, when it asks. */
    CHECK_INT(tsr_client_discover(a.client, a.space, &prompt), 1);
    CHECK_INT(kit_load_and_check(&a, &prompt), 16);
    CHECK(kit_valid(&a));
    free(tokens);
    done();
}

TEST(what_is_cleared_is_gone_for_all)
{
    fresh();
    uint32_t *tokens = kit_tokens(6, 64);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
    CHECK_INT(kit_store_segment(&a, tokens, 64), 64);
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    CHECK_INT(tsr_cache_clear(a.cache, NULL), 1);
    CHECK_INT(tsr_client_discover(b.client, b.space, &prompt), 0);
    free(tokens);
    done();
}

/* Of a prompt, of a space and of everything; with what follows a block. */
TEST(what_is_cleared_from_ones_own_tiers_stays_in_shared_ones)
{
    for (uint32_t how = 0; how < 3; how++) {
        fresh();
        uint32_t *tokens = kit_tokens(8, N);
        struct tsr_range range;
        struct tsr_prompt prefix = kit_prefix_prompt(tokens, N),
                          segment = kit_segment_prompt(tokens, N, &range);
        CHECK_INT(kit_store_prefix(&a, tokens, N), N);
        CHECK_INT(kit_store_segment(&a, tokens, N), N);
        struct tsr_clear_desc own = {.size = sizeof own, .tier = TSR_CLEAR_OWN};
        if (how < 2) own.space = a.space;
        if (how == 0) own.prompt = &prefix;
        CHECK_INT(tsr_cache_clear(a.cache, &own), how == 0 ? N / 16 : N / 16 + 1);
        CHECK_INT(kit_find_prefix(&a, tokens, N), 0);
        CHECK_INT(kit_find_segment(&a, tokens, N), how == 0 ? N : 0);
        CHECK_INT(store.n_items, N / 16 + 1);
        CHECK_INT(tsr_cache_clear(a.cache, &own), 0);
        CHECK_INT(tsr_client_discover(b.client, b.space, &prefix), N / 16);
        CHECK_INT(tsr_client_discover(b.client, b.space, &segment), 1);
        CHECK_INT(kit_load_and_check(&b, &prefix), N);
        /* And a finds it, too, when it asks. */
        CHECK_INT(tsr_client_discover(a.client, a.space, &prefix), N / 16);
        CHECK_INT(kit_load_and_check(&a, &prefix), N);
        CHECK(kit_valid(&a));
        own.prompt = NULL;
        own.tier = TSR_CLEAR_ALL;
        CHECK(tsr_cache_clear(a.cache, &own) > 0);
        own.tier = TSR_CLEAR_OWN - 1;
        CHECK_INT(tsr_cache_clear(a.cache, &own), TSR_EINVAL);
        free(tokens);
        done();
    }
}

TEST(prefetch_asks_and_brings_up_in_the_background)
{
    fresh();
    uint32_t *tokens = kit_tokens(7, N);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, N);
    CHECK_INT(kit_store_prefix(&a, tokens, N), N);
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    CHECK(tsr_client_prefetch(b.client, b.space, &prefix) >=
          0); /* some of it may be known by now */
    tsri_work_drain(tsri_ops_work(b.cache->ops));
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&b, &prefix, 0, &hits), N);
    for (uint32_t i = 0; i < hits.io.n_matches; i++)
        CHECK_INT(hits.matches[i].tier, 0);
    CHECK_INT(kit_load_and_check(&b, &prefix), N);
    free(tokens);
    done();
}

TEST(a_tier_that_fails_is_a_miss)
{
    fresh();
    uint32_t *tokens = kit_tokens(8, N);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, N);
    CHECK_INT(kit_store_prefix(&a, tokens, N), N);
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    fake_tier_fail(&plans[1], FAKE_CONTAINS, 1, 0, TSR_EIO);
    CHECK_INT(tsr_client_discover(b.client, b.space, &prefix), 0);
    CHECK_INT(tsr_client_discover(b.client, b.space, &prefix), N / 16);
    free(tokens);
    done();
}

TEST(without_a_shared_tier_there_is_nothing_to_ask)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(9, N);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, N);
    CHECK_INT(tsr_client_discover(k.client, k.space, &prefix), 0);
    CHECK_INT(tsr_client_discover(NULL, k.space, &prefix), TSR_EINVAL);
    CHECK_INT(tsr_client_discover(k.client, NULL, &prefix), TSR_EINVAL);
    CHECK_INT(tsr_client_discover(k.client, k.space, NULL), TSR_EINVAL);
    free(tokens);
    CHECK(kit_end(&k));
}

/* The client of a server asks through it. */
TEST(a_served_cache_asks_the_tiers_of_its_server)
{
    struct server_kit s;
    struct kit k;
    mem_tier_store_init(&store, 0);
    open_one(&a, &plans[0]);
    tmpdir_init(&s.dir);
    snprintf(s.path, sizeof s.path, "%.80s/s/sock", s.dir.path);
    struct tsr_config *cfg = kit_config((const char *const[]){"owner", "embedded", NULL});
    fake_tier_plan_init_over(&plans[1], &mem_tier, &store);
    CHECK_INT(tsr_config_set(cfg, "server_socket", s.path), 0);
    CHECK_INT(tsr_tier_attach(cfg, &shared_ops, &plans[1]), 0);
    kit_open_config(&s.k, cfg);
    CHECK_INT(tsr_server_open(&s.server, s.k.cache, cfg), 0);
    tsr_config_close(cfg);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(1, N);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, N);
    CHECK_INT(kit_store_prefix(&a, tokens, N), N);
    CHECK_INT(tsr_cache_flush(a.cache), 0);
    CHECK_INT(kit_find_prefix(&k, tokens, N), 0);
    CHECK_INT(tsr_client_discover(k.client, k.space, &prefix), N / 16);
    CHECK_INT(kit_load_and_check(&k, &prefix), N);
    CHECK_INT(tsr_client_discover(k.client, k.space, &prefix), 0);
    tsr_server_close(s.server);
    CHECK_INT(tsr_client_discover(k.client, k.space, &prefix),
              0); /* one that is gone knows nothing */
    kit_close(&k);
    CHECK(kit_end(&s.k));
    CHECK(kit_end(&a));
    tmpdir_fini(&s.dir);
    fake_tier_plan_fini(&plans[0]);
    fake_tier_plan_fini(&plans[1]);
    mem_tier_store_fini(&store);
    free(tokens);
}

int main(void)
{
    RUN(a_served_cache_asks_the_tiers_of_its_server);
    RUN(what_another_cache_stored_is_found_after_asking);
    RUN(lookups_ask_nobody);
    RUN(of_a_chain_only_what_is_whole_from_its_beginning_is_taken);
    RUN(another_space_finds_nothing);
    RUN(what_one_forgets_for_want_of_room_the_other_still_finds);
    RUN(what_is_cleared_is_gone_for_all);
    RUN(what_is_cleared_from_ones_own_tiers_stays_in_shared_ones);
    RUN(prefetch_asks_and_brings_up_in_the_background);
    RUN(a_tier_that_fails_is_a_miss);
    RUN(without_a_shared_tier_there_is_nothing_to_ask);
    return test_end();
}
