/* test_room.c - making room: who goes first, what is refused when nobody may go, and how uses find
 * their way from readers to the policy. */
#include "cache/core.h"

#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#define PAGES 64u /* of the kit: an entry of one token takes one */

static uint32_t find(struct kit *k, uint64_t seed)
{
    return tsri_index_find(&k->cache->index, k->cache->entries, kit_key(seed));
}

static bool has(struct kit *k, uint64_t seed)
{
    return find(k, seed) != TSRI_ID_NONE;
}

static int take(struct kit *k, uint32_t n_tokens, uint32_t extra_bytes, uint32_t *meta)
{
    pthread_mutex_lock(&k->cache->lock);
    int e = tsri_room_take(k->cache, &k->space->shape, n_tokens, extra_bytes, meta);
    pthread_mutex_unlock(&k->cache->lock);
    return e;
}

static void give(struct kit *k, uint32_t meta)
{
    pthread_mutex_lock(&k->cache->lock);
    tsri_room_give(k->cache, meta);
    pthread_mutex_unlock(&k->cache->lock);
}

static void drain(struct kit *k)
{
    pthread_mutex_lock(&k->cache->lock);
    tsri_touch_drain(k->cache);
    pthread_mutex_unlock(&k->cache->lock);
}

/* ---- taking and giving ---- */

TEST(what_is_taken_is_described_and_what_is_given_is_free)
{
    struct kit k;
    kit_open(&k, NULL);
    for (uint32_t n = 1; n < 300; n += 7) {
        uint32_t meta;
        CHECK_INT(take(&k, n, n % 50, &meta), 0);
        struct tsri_meta *m = (struct tsri_meta *)(void *)(k.cache->arena.region.data +
                                                           (size_t)meta * TSRI_ARENA_UNIT);
        CHECK_INT(m->n_tokens, n);
        CHECK_INT(m->extra_bytes, n % 50);
        CHECK_INT(m->n_pages, tsri_shape_n_pages(&k.space->shape, n));
        CHECK_INT(tsri_pool_n_free(&k.cache->pool), PAGES - m->n_pages);
        uint64_t seen = 0;
        for (uint32_t p = 0; p < m->n_pages; p++) {
            CHECK(tsri_meta_pages(m)[p] < PAGES);
            CHECK(!(seen >> tsri_meta_pages(m)[p] & 1));
            seen |= (uint64_t)1 << tsri_meta_pages(m)[p];
        }
        memset(tsri_meta_extra(m), 0xFF, m->extra_bytes);
        memset(tsri_meta_tokens(m), 0xFF, n * 4);
        give(&k, meta);
        CHECK_INT(tsri_pool_n_free(&k.cache->pool), PAGES);
        CHECK_INT(k.cache->arena.bytes_used, 0);
        CHECK(kit_valid(&k));
    }
    kit_close(&k);
}

TEST(what_can_never_fit_is_out_of_range)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t meta, old = kit_entry(&k, 1, 1, TSRI_ID_NONE);
    CHECK_INT(take(&k, PAGES * 64 + 1, 0, &meta), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "host_size");
    CHECK_INT(take(&k, UINT32_MAX, 0, &meta), TSR_ERANGE);
    CHECK_INT(find(&k, 1), old); /* nobody had to go for it */
    kit_close(&k);
}

TEST(what_takes_all_of_host_memory_fits)
{
    struct kit k;
    kit_open(&k, NULL);
    for (uint64_t seed = 0; seed < 40; seed++)
        CHECK(kit_entry(&k, seed, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK(kit_entry(&k, 100, PAGES * 64, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK_INT(k.cache->n_host, 1);
    CHECK_INT(tsri_pool_n_free(&k.cache->pool), 0);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

/* ---- who goes first ---- */

TEST(the_longest_unused_goes_first)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t ids[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        ids[i] = kit_entry(&k, i, 1, TSRI_ID_NONE);
    CHECK(kit_entry(&k, 100, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK(!has(&k, 0) && has(&k, 1));
    /* 1 and 2 are used: 3 goes. */
    tsri_touch_push(k.cache, (uint32_t[]){ids[1], ids[2]}, 2);
    CHECK(kit_entry(&k, 101, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK(has(&k, 1) && has(&k, 2) && !has(&k, 3) && has(&k, 4));
    /* No more go than are needed. */
    CHECK_INT(k.cache->n_host, PAGES);
    CHECK_INT(kit_metric(&k, TSRI_M_evictions), 2);
    CHECK_INT(kit_metric(&k, TSRI_M_evicted_bytes), 2 * tsri_shape_token_bytes(&k.space->shape));
    struct tsr_event events[80];
    uint32_t n = tsri_events_take(&k.cache->events, events, 80), n_evicted = 0;
    for (uint32_t i = 0; i < n; i++)
        n_evicted += events[i].kind == TSR_EVENT_EVICTED;
    CHECK_INT(n_evicted, 2);
    kit_close(&k);
}

TEST(what_is_pinned_is_passed_over)
{
    struct kit k;
    kit_open(&k, NULL);
    for (uint32_t i = 0; i < PAGES; i++) {
        uint32_t id = kit_entry(&k, i, 1, TSRI_ID_NONE);
        if (i % 2 == 0) CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST);
    }
    for (uint32_t i = 0; i < PAGES / 2; i++)
        CHECK(kit_entry(&k, 100 + i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    for (uint32_t i = 0; i < PAGES; i++)
        CHECK(has(&k, i) == (i % 2 == 0));
    for (uint32_t i = 0; i < PAGES; i += 2)
        tsri_unpin(k.cache, find(&k, i));
    CHECK(kit_valid(&k));
    kit_close(&k);
}

/* Blocks 0 .. n - 1, each behind the one before. */
static void make_chain(struct kit *k, uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = kit_entry(k, i, 1, i ? ids[i - 1] : TSRI_ID_NONE);
        CHECK(ids[i] != TSRI_ID_NONE);
    }
}

TEST(a_chain_goes_from_its_leaves)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t ids[PAGES], leaf_first[PAGES];
    make_chain(&k, ids, PAGES);
    for (uint32_t i = 0; i < PAGES; i++)
        leaf_first[i] = ids[PAGES - 1 - i];
    tsri_touch_push(k.cache, leaf_first, PAGES); /* as lookups do */
    for (uint32_t i = 0; i < PAGES; i++) {
        CHECK(kit_entry(&k, 100 + i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
        for (uint32_t j = 0; j < PAGES; j++)
            CHECK(has(&k, j) == (j + 1 < PAGES - i));
    }
    CHECK_INT(k.cache->n_host, PAGES);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

TEST(a_block_is_never_gone_before_those_behind_it)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t ids[PAGES];
    make_chain(&k, ids, PAGES);
    uint64_t seed = 6;
    for (uint32_t i = 0; i < 1000; i++) {
        /* Uses in no good order, as from many threads. */
        tsri_touch_push(k.cache, &ids[test_rand(&seed) % PAGES], 1);
        CHECK(kit_entry(&k, 100 + i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
        for (uint32_t j = 1; j < PAGES; j++)
            CHECK(!has(&k, j) || has(&k, j - 1));
    }
    CHECK(kit_valid(&k));
    kit_close(&k);
}

TEST(what_a_lower_tier_has_is_demoted_and_found_again)
{
    struct tsr_config *cfg = kit_config(NULL);
    struct mem_tier_store store;
    mem_tier_store_init(&store, 0);
    CHECK_INT(tsr_tier_attach(cfg, &mem_tier, &store), 0);
    struct kit k;
    kit_open_config(&k, cfg);
    tsr_config_close(cfg);
    uint32_t *tokens = kit_tokens(5, 16 * 80);
    /* More than fits: 80 blocks for 64 pages. What is not below yet must not be lost, so flush. */
    for (uint32_t i = 1; i <= 80; i++) {
        CHECK_INT(kit_store_prefix(&k, tokens, 16 * i), 16);
        CHECK_INT(tsr_cache_flush(k.cache), 0);
    }
    CHECK(kit_metric(&k, TSRI_M_demotions) >= 16);
    CHECK_INT(k.cache->n_host + k.cache->n_cold, 80);
    CHECK(kit_valid(&k));
    CHECK_INT(kit_find_prefix(&k, tokens, 16 * 80), 16 * 80);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 16 * 80);
    CHECK_INT(kit_load_and_check(&k, &prompt), 16 * 80);
    CHECK(kit_valid(&k));
    free(tokens);
    kit_close(&k);
    mem_tier_store_fini(&store);
}

/* ---- refused ---- */

TEST(with_everything_pinned_stores_are_refused_and_lookups_go_on)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_prompt prompts[PAGES];
    struct tsr_range ranges[PAGES];
    uint32_t *tokens[PAGES + 1];
    for (uint32_t i = 0; i <= PAGES; i++)
        tokens[i] = kit_tokens(i, 30);
    for (uint32_t i = 0; i < PAGES; i++) {
        prompts[i] = kit_segment_prompt(tokens[i], 30, &ranges[i]);
        CHECK_INT(kit_store_segment(&k, tokens[i], 30), 30);
        CHECK_INT(tsr_space_pin(k.space, &prompts[i]), 1);
    }
    CHECK_INT(kit_store_segment(&k, tokens[PAGES], 30), TSR_EFULL);
    CHECK_HAS(tsr_errmsg(), "no room for 1 pages: 0 of 64 are free, the others are in use");
    CHECK_INT(kit_metric(&k, TSRI_M_stores_refused), 1);
    CHECK_INT(kit_metric(&k, TSRI_M_evictions), 0);
    for (uint32_t i = 0; i < PAGES; i++)
        CHECK_INT(kit_load_and_check(&k, &prompts[i]), 30);
    CHECK_INT(kit_find_segment(&k, tokens[PAGES], 30), 0);
    CHECK_INT(tsr_space_unpin(k.space, &prompts[9]), 1);
    CHECK_INT(kit_store_segment(&k, tokens[PAGES], 30), 30);
    CHECK_INT(kit_find_segment(&k, tokens[9], 30), 0);
    CHECK(kit_valid(&k));
    for (uint32_t i = 0; i <= PAGES; i++)
        free(tokens[i]);
    kit_close(&k);
}

TEST(when_ids_run_out_the_oldest_goes)
{
    struct kit k;
    kit_open(&k, (const char *[]){"entries_max", "16", NULL});
    for (uint32_t i = 0; i < 16; i++)
        CHECK(kit_entry(&k, i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK(kit_entry(&k, 16, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK(!has(&k, 0) && has(&k, 1) && has(&k, 16));
    for (uint32_t i = 1; i <= 16; i++)
        CHECK_INT(tsri_pin(k.cache, find(&k, i)), TSRI_HOST);
    pthread_mutex_lock(&k.cache->lock);
    CHECK_INT(tsri_room_id(k.cache), TSR_EFULL);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_HAS(tsr_errmsg(), "all 16 entries are in use (entries_max)");
    uint32_t meta; /* what needs no new entry is not held up */
    CHECK_INT(take(&k, 1, 0, &meta), 0);
    give(&k, meta);
    for (uint32_t i = 1; i <= 16; i++)
        tsri_unpin(k.cache, find(&k, i));
    kit_close(&k);
}

/* A kit of 16 entries over a tier, full of segments of 10 tokens that are all written below. */
static void open_full(struct kit *k, struct mem_tier_store *store, uint32_t **tokens, uint32_t n)
{
    struct tsr_config *cfg = kit_config((const char *[]){"entries_max", "16", NULL});
    mem_tier_store_init(store, 0);
    CHECK_INT(tsr_tier_attach(cfg, &mem_tier, store), 0);
    kit_open_config(k, cfg);
    tsr_config_close(cfg);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = kit_tokens(i, 10);
    for (uint32_t i = 0; i < 16; i++)
        CHECK_INT(kit_store_segment(k, tokens[i], 10), 10);
    CHECK_INT(tsr_cache_flush(k->cache), 0);
    CHECK_INT(k->cache->n_host, 16);
}

static void close_full(struct kit *k, struct mem_tier_store *store, uint32_t **tokens, uint32_t n)
{
    CHECK(kit_valid(k));
    for (uint32_t i = 0; i < n; i++)
        free(tokens[i]);
    kit_close(k);
    mem_tier_store_fini(store);
}

TEST(when_ids_run_out_the_oldest_goes_from_below_too)
{
    struct kit k;
    struct mem_tier_store store;
    uint32_t *tokens[20];
    open_full(&k, &store, tokens, 20);
    for (uint32_t i = 16; i < 20; i++) {
        CHECK_INT(kit_store_segment(&k, tokens[i], 10), 10);
        CHECK_INT(tsr_cache_flush(k.cache), 0);
        CHECK_INT(k.cache->n_host, 16); /* one came, one went, nobody else was moved */
        CHECK_INT(k.cache->n_cold, 0);
        CHECK_INT(store.n_items, 16);
    }
    for (uint32_t i = 0; i < 20; i++)
        CHECK_INT(kit_find_segment(&k, tokens[i], 10), i < 4 ? 0 : 10);
    close_full(&k, &store, tokens, 20);
}

TEST(when_ids_run_out_what_only_a_lower_tier_has_goes_first)
{
    struct kit k;
    struct mem_tier_store store;
    uint32_t *tokens[20];
    open_full(&k, &store, tokens, 20);
    CHECK_INT(tsr_cache_evict(k.cache, (size_t)(PAGES - 8) * 16384), 8); /* 0 to 7 are COLD now */
    CHECK_INT(k.cache->n_cold, 8);
    for (uint32_t i = 16; i < 20; i++) {
        CHECK_INT(kit_store_segment(&k, tokens[i], 10), 10);
        CHECK_INT(tsr_cache_flush(k.cache), 0);
    }
    CHECK_INT(k.cache->n_host, 12);
    CHECK_INT(k.cache->n_cold, 4);
    for (uint32_t i = 0; i < 20; i++)
        CHECK_INT(kit_find_segment(&k, tokens[i], 10), i < 4 ? 0 : 10);
    close_full(&k, &store, tokens, 20);
}

TEST(when_ids_run_out_and_host_memory_is_pinned_the_few_below_go)
{
    struct kit k;
    struct mem_tier_store store;
    uint32_t *tokens[18];
    open_full(&k, &store, tokens, 18);
    CHECK_INT(tsr_cache_evict(k.cache, (size_t)(PAGES - 15) * 16384), 1);
    for (uint32_t i = 1; i < 16; i++) {
        struct tsr_range range;
        struct tsr_prompt prompt = kit_segment_prompt(tokens[i], 10, &range);
        CHECK_INT(tsr_space_pin(k.space, &prompt), 1);
    }
    CHECK_INT(kit_store_segment(&k, tokens[16], 10), 10);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(kit_find_segment(&k, tokens[0], 10), 0);
    CHECK_INT(kit_store_segment(&k, tokens[17], 10), 10); /* for the one just stored */
    CHECK_INT(kit_find_segment(&k, tokens[16], 10), 0);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    close_full(&k, &store, tokens, 18);
}

TEST(when_metadata_runs_out_the_oldest_go)
{
    struct kit k;
    /* 1 MiB for tokens, and entries whose extra takes most of it. */
    kit_open(&k, NULL);
    uint32_t metas[400], n = 0;
    while (n < 400 && k.cache->arena.bytes_used + 4096 + 64 + 8 <=
                          tsri_arena_bytes_max(&k.cache->arena) - 64 * 1024)
        CHECK_INT(take(&k, 1, 4096 * 4, &metas[n++]), 0);
    CHECK(n < PAGES); /* pages are not what ends it */
    uint32_t n_before = 0, meta;
    while (k.cache->arena.bytes_used + 1000 < tsri_arena_bytes_max(&k.cache->arena) &&
           n + n_before + 1 < PAGES)
        CHECK(kit_entry(&k, n_before++, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    uint64_t evicted = kit_metric(&k, TSRI_M_evictions);
    size_t need = tsri_arena_bytes_max(&k.cache->arena) - k.cache->arena.bytes_used;
    CHECK_INT(take(&k, 1, (uint32_t)need, &meta), 0);
    CHECK(kit_metric(&k, TSRI_M_evictions) > evicted);
    CHECK(!has(&k, 0));
    uint32_t more;
    CHECK_INT(take(&k, 1, (uint32_t)tsri_arena_bytes_max(&k.cache->arena) - 200, &more), TSR_EFULL);
    CHECK_HAS(tsr_errmsg(), "metadata");
    give(&k, meta);
    while (n > 0)
        give(&k, metas[--n]);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

TEST(a_frozen_cache_evicts_nothing)
{
    struct kit k;
    kit_open(&k, NULL);
    for (uint32_t i = 0; i < PAGES - 1; i++)
        CHECK(kit_entry(&k, i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    tsr_cache_freeze(k.cache, 1);
    uint32_t meta, second;
    CHECK_INT(take(&k, 1, 0, &meta), 0); /* room there is: promotions may use it */
    CHECK_INT(take(&k, 1, 0, &second), TSR_EFULL);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 0);
    CHECK_INT(k.cache->n_host, PAGES - 1);
    tsr_cache_freeze(k.cache, 0);
    CHECK_INT(take(&k, 1, 0, &second), 0);
    CHECK_INT(k.cache->n_host, PAGES - 2);
    give(&k, meta);
    give(&k, second);
    kit_close(&k);
}

/* ---- evict ---- */

TEST(evict_frees_as_many_bytes_as_asked_for_and_no_more)
{
    struct kit k;
    kit_open(&k, NULL);
    for (uint32_t i = 0; i < PAGES; i++)
        CHECK(kit_entry(&k, i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK_INT(tsr_cache_evict(k.cache, 0), 0);
    CHECK_INT(tsr_cache_evict(k.cache, 1), 1);
    CHECK_INT(tsr_cache_evict(k.cache, 1), 0); /* they are free already */
    CHECK_INT(tsr_cache_evict(k.cache, 5 * 16384), 4);
    CHECK_INT(tsr_cache_evict(k.cache, 5 * 16384 + 1), 1);
    CHECK(!has(&k, 5) && has(&k, 6));
    CHECK_INT(tsri_pin(k.cache, find(&k, 20)), TSRI_HOST);
    CHECK_INT(tsr_cache_evict(k.cache, (size_t)1 << 40), (int)PAGES - 7);
    CHECK(has(&k, 20));
    tsri_unpin(k.cache, find(&k, 20));
    kit_close(&k);
}

TEST(the_list_is_the_order_in_which_entries_go_and_evict_names_them)
{
    static const char *const policies[] = {"lru", "s3fifo", "adaptive"};
    for (size_t p = 0; p < TSRI_COUNT(policies); p++) {
        struct kit k;
        struct tsr_listed listed[PAGES];
        struct tsr_key keys[PAGES];
        kit_open(&k, (const char *[]){"policy", policies[p], NULL});
        for (uint32_t i = 0; i < 8; i++)
            CHECK(kit_entry(&k, i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
        CHECK_INT(tsr_cache_list(k.cache, NULL, 0), 8);
        CHECK_INT(tsr_cache_list(k.cache, listed, PAGES), 8);
        CHECK_INT(listed[0].n_tokens, 1);
        CHECK_INT(tsri_pin(k.cache, find(&k, 7)), TSRI_HOST);
        size_t want = (size_t)(PAGES - 8 + 3) * 16384;
        CHECK_INT(tsr_cache_evict_keys(k.cache, want, keys, 2), 2);
        CHECK_INT(tsr_cache_evict_keys(k.cache, want, keys + 2, PAGES - 2), 1);
        if (p == 0)
            for (uint32_t i = 0; i < 3; i++)
                CHECK(memcmp(&keys[i], &listed[i].key, sizeof keys[i]) == 0);
        CHECK_INT(tsr_cache_list(k.cache, listed, PAGES), 5);
        uint32_t n_pinned = 0;
        for (uint32_t i = 0; i < 5; i++)
            n_pinned += listed[i].pins;
        CHECK_INT(n_pinned, 1);
        tsri_unpin(k.cache, find(&k, 7));
        kit_close(&k);
    }
}

TEST(evict_of_more_than_there_is_evicts_everything)
{
    struct kit k;
    kit_open(&k, (const char *[]){"host_size", "16M", NULL}); /* more than one batch */
    for (uint32_t i = 0; i < 600; i++)
        CHECK(kit_entry(&k, i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 600);
    CHECK_INT(k.cache->n_host, 0);
    kit_close(&k);
}

/* ---- uses ---- */

TEST(uses_wait_for_whoever_next_holds_the_lock)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE), b = kit_entry(&k, 2, 1, TSRI_ID_NONE);
    uint32_t order[2];
    tsri_touch_push(k.cache, &a, 1);
    CHECK_INT(k.cache->policy->ops->order(k.cache->policy, order, 2), 2);
    CHECK_INT(order[0], a); /* not yet told */
    drain(&k);
    CHECK_INT(k.cache->policy->ops->order(k.cache->policy, order, 2), 2);
    CHECK_INT(order[0], b);
    drain(&k); /* told once */
    CHECK_INT(k.cache->policy->ops->order(k.cache->policy, order, 2), 2);
    CHECK_INT(order[0], b);
    kit_close(&k);
}

TEST(the_last_of_a_batch_is_the_most_recent)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t ids[8], order[8];
    for (uint32_t i = 0; i < 8; i++)
        ids[i] = kit_entry(&k, i, 1, TSRI_ID_NONE);
    tsri_touch_push(k.cache, (uint32_t[]){ids[5], ids[2], ids[7]}, 3);
    drain(&k);
    CHECK_INT(k.cache->policy->ops->order(k.cache->policy, order, 8), 8);
    CHECK_INT(order[5], ids[5]);
    CHECK_INT(order[6], ids[2]);
    CHECK_INT(order[7], ids[7]);
    kit_close(&k);
}

TEST(uses_of_what_is_gone_are_forgotten)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE);
    kit_entry(&k, 2, 1, TSRI_ID_NONE);
    tsri_touch_push(k.cache, &a, 1);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, -1), 2);
    drain(&k); /* the policy is not asked about ids it does not know */
    uint32_t order[2];
    CHECK_INT(k.cache->policy->ops->order(k.cache->policy, order, 2), 0);
    kit_close(&k);
}

TEST(of_too_many_uses_the_last_are_kept)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE), b = kit_entry(&k, 2, 1, TSRI_ID_NONE);
    uint32_t c = kit_entry(&k, 3, 1, TSRI_ID_NONE);
    static uint32_t ids[TSRI_TOUCH_IDS + 1];
    ids[0] = a;
    for (uint32_t i = 1; i <= TSRI_TOUCH_IDS; i++)
        ids[i] = b;
    tsri_touch_push(k.cache, ids, TSRI_TOUCH_IDS + 1);
    drain(&k);
    uint32_t order[3];
    CHECK_INT(k.cache->policy->ops->order(k.cache->policy, order, 3), 3);
    CHECK_INT(order[0], a);
    CHECK_INT(order[1], c);
    CHECK_INT(order[2], b);
    kit_close(&k);
}

TEST(a_full_buffer_is_emptied_or_the_use_is_counted_as_lost)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE), b = kit_entry(&k, 2, 1, TSRI_ID_NONE);
    static uint32_t ids[TSRI_TOUCH_IDS];
    for (uint32_t i = 0; i < TSRI_TOUCH_IDS; i++)
        ids[i] = a;
    tsri_touch_push(k.cache, ids, TSRI_TOUCH_IDS);
    tsri_touch_push(k.cache, &a, 1); /* the lock is free: the reader empties it himself */
    CHECK_INT(kit_metric(&k, TSRI_M_touches_dropped), 0);
    uint32_t order[2];
    CHECK_INT(k.cache->policy->ops->order(k.cache->policy, order, 2), 2);
    CHECK_INT(order[0], b);
    tsri_touch_push(k.cache, ids, TSRI_TOUCH_IDS);
    pthread_mutex_lock(&k.cache->lock); /* now he may not wait for it */
    tsri_touch_push(k.cache, (uint32_t[]){a, b}, 2);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(kit_metric(&k, TSRI_M_touches_dropped), 2);
    kit_close(&k);
}

#define TOUCHERS 3u

struct toucher {
    struct kit *k;
    uint32_t ids[8];
    atomic_bool *stop;
};

static void *touch_many(void *arg)
{
    struct toucher *t = arg;
    while (!atomic_load(t->stop))
        tsri_touch_push(t->k->cache, t->ids, 8);
    return NULL;
}

TEST(many_threads_use_while_others_make_room)
{
    struct kit k;
    kit_open(&k, NULL);
    atomic_bool stop = false;
    struct toucher touchers[TOUCHERS];
    pthread_t threads[TOUCHERS];
    for (uint32_t i = 0; i < TOUCHERS; i++) {
        touchers[i] = (struct toucher){.k = &k, .stop = &stop};
        for (uint32_t j = 0; j < 8; j++)
            touchers[i].ids[j] = i * 8 + j; /* used or not, ids are what they are */
        CHECK_INT(pthread_create(&threads[i], NULL, touch_many, &touchers[i]), 0);
    }
    bool all = true;
    for (uint64_t seed = 0; seed < (TEST_TSAN ? 300 : 5000); seed++)
        all &= kit_entry(&k, seed, 1, TSRI_ID_NONE) != TSRI_ID_NONE;
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < TOUCHERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(all);
    CHECK(kit_valid(&k));
    CHECK_INT(k.cache->n_host, PAGES);
    kit_close(&k);
}

int main(void)
{
    RUN(what_is_taken_is_described_and_what_is_given_is_free);
    RUN(what_can_never_fit_is_out_of_range);
    RUN(what_takes_all_of_host_memory_fits);
    RUN(the_longest_unused_goes_first);
    RUN(what_is_pinned_is_passed_over);
    RUN(a_chain_goes_from_its_leaves);
    RUN(a_block_is_never_gone_before_those_behind_it);
    RUN(what_a_lower_tier_has_is_demoted_and_found_again);
    RUN(with_everything_pinned_stores_are_refused_and_lookups_go_on);
    RUN(when_ids_run_out_the_oldest_goes);
    RUN(when_ids_run_out_the_oldest_goes_from_below_too);
    RUN(when_ids_run_out_what_only_a_lower_tier_has_goes_first);
    RUN(when_ids_run_out_and_host_memory_is_pinned_the_few_below_go);
    RUN(when_metadata_runs_out_the_oldest_go);
    RUN(a_frozen_cache_evicts_nothing);
    RUN(evict_frees_as_many_bytes_as_asked_for_and_no_more);
    RUN(the_list_is_the_order_in_which_entries_go_and_evict_names_them);
    RUN(evict_of_more_than_there_is_evicts_everything);
    RUN(uses_wait_for_whoever_next_holds_the_lock);
    RUN(the_last_of_a_batch_is_the_most_recent);
    RUN(uses_of_what_is_gone_are_forgotten);
    RUN(of_too_many_uses_the_last_are_kept);
    RUN(a_full_buffer_is_emptied_or_the_use_is_counted_as_lost);
    RUN(many_threads_use_while_others_make_room);
    return test_end();
}
