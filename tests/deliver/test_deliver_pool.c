/* test_deliver_pool.c - where delivered ranges are taken from: the device pool, host memory, lower
 * tiers; promotion, demotion, and threads that evict and clear meanwhile. On every known device
 * that is here. */
#include "support/deliver_kit.h"

#include <pthread.h>

TEST(a_hit_is_promoted_and_then_host_memory_is_not_read)
{
    struct rig r;
    rig_open(&r, "1M", false);
    settle(&r);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0); /* nobody asked for it yet */
    check_own(&r, 0);
    settle(&r);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 1);
    /* Whoever read host memory now would deliver noise. */
    uint64_t before = metric(&r, TSRI_M_delivery_pool_hits);
    memset(r.kit.cache->pool.region.data, 0xEE, r.kit.cache->pool.region.bytes);
    check_own(&r, 0);
    check_own(&r, 19);
    CHECK_INT(metric(&r, TSRI_M_delivery_pool_hits), before + 2);
    rig_close(&r);
}

/* Found once, promoted, and no longer in host memory. */
static void open_pool_only(struct rig *r, struct ask *a)
{
    rig_open(r, "1M", false);
    ask_for(r, a, 0);
    settle(r);
    CHECK_INT(metric(r, TSRI_M_device_pool_entries), 1);
    CHECK_INT(kit_evict_all(&r->kit), 1);
    CHECK_INT(r->kit.cache->n_cold, 1);
}

TEST(what_left_host_memory_is_still_delivered_and_loaded_from_the_pool)
{
    struct rig r;
    static struct ask a;
    open_pool_only(&r, &a);
    check_own(&r, 7); /* not verified by the lookup: by the pool's tokens */
    CHECK_INT(metric(&r, TSRI_M_delivery_pool_hits), 1);
    CHECK_INT(r.kit.cache->n_cold, 1);
    ask_for(&r, &a, 0);
    CHECK_INT(kit_load_and_check(&r.kit, &a.prompt), SEGMENT); /* to plain memory: comes up */
    CHECK_INT(r.kit.cache->n_cold, 0);
    rig_close(&r);
}

/* The pool has the last number of all tiers and is the first to be read. */
TEST(the_pool_is_named_before_a_tier_that_has_the_entry_too)
{
    struct rig r;
    static struct ask a;
    struct tsr_key key;
    int8_t tier = -1;
    rig_open(&r, "1M", true);
    CHECK_INT(tsr_cache_flush(r.kit.cache), 0);
    ask_for(&r, &a, 0);
    settle(&r);
    CHECK_INT(tsr_space_keys(r.kit.space, &a.prompt, &key, 1), 1);
    CHECK_INT(tsr_cache_contains(r.kit.cache, &key, 1, &tier), 1);
    CHECK_INT(tier, 0);
    CHECK_INT(kit_evict_all(&r.kit), 1);
    struct tsr_stats s = kit_stats(&r.kit);
    CHECK(s.tier_entries[1] == 1 && s.tier_entries[2] == 1);
    CHECK_STR(s.tier_names[2].text, "device");
    CHECK_INT(tsr_cache_contains(r.kit.cache, &key, 1, &tier), 1);
    CHECK_INT(tier, 2);
    ask_for(&r, &a, 0);
    CHECK_INT(a.hits.matches[0].tier, 2);
    rig_close(&r);
}

TEST(another_text_is_not_delivered_for_an_unverified_match)
{
    struct rig r;
    static struct ask a;
    open_pool_only(&r, &a);
    ask_for(&r, &a, 0);
    CHECK(!a.hits.matches[0].verified);
    a.tokens[50] ^= 1;
    CHECK_INT(deliver(&r, &a.want, 1), 0);
    CHECK_INT(a.want.result, TSR_ECORRUPT);
    CHECK(same_images(&r));
    CHECK_INT(metric(&r, TSRI_M_collisions), 1);
    CHECK_INT(metric(&r, TSRI_M_delivery_misses), 1);
    rig_close(&r);
}

/* Its entry may have been fetched again since, from a tier that others write to. */
TEST(a_verified_match_is_compared_again_when_it_is_delivered)
{
    for (int place = 0; place < 3; place++) { /* host memory, the pool, a lower tier */
        struct rig r;
        static struct ask a;
        rig_open(&r, place == 1 ? "1M" : "0", place == 2);
        CHECK_INT(tsr_cache_flush(r.kit.cache), 0);
        ask_for(&r, &a, 3);
        settle(&r);
        if (place) CHECK_INT(kit_evict_all(&r.kit), 1);
        CHECK(a.hits.matches[0].verified);
        a.tokens[50] ^= 1;
        CHECK_INT(deliver(&r, &a.want, 1), 0);
        CHECK_INT(a.want.result, place == 2 ? TSR_ENOENT : TSR_ECORRUPT);
        CHECK(same_images(&r));
        CHECK_INT(metric(&r, TSRI_M_collisions), 1);
        a.tokens[50] ^= 1;
        CHECK_INT(deliver(&r, &a.want, 1), 1);
        rig_close(&r);
    }
}

TEST(cleared_and_dropped_entries_leave_the_pool)
{
    struct rig r;
    static struct ask a;
    for (int cold = 0; cold < 2; cold++) {
        open_pool_only(&r, &a);
        if (!cold) CHECK_INT(kit_load_and_check(&r.kit, &a.prompt), SEGMENT);
        CHECK_INT(r.kit.cache->n_cold, cold);
        CHECK_INT(tsr_cache_clear(r.kit.cache, NULL), 1);
        settle(&r);
        CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0);
        CHECK_INT(metric(&r, TSRI_M_device_pool_used_bytes), 0);
        CHECK_INT(deliver(&r, &a.want, 1), 0);
        CHECK_INT(a.want.result, TSR_ENOENT);
        CHECK(same_images(&r));
        rig_close(&r);
    }
}

TEST(clearing_the_pool_alone_leaves_host_memory)
{
    struct rig r;
    rig_open(&r, "1M", false);
    check_own(&r, 0);
    settle(&r);
    struct tsr_clear_desc clear = {.size = sizeof clear,
                                   .tier = 1}; /* the last one: there is no other */
    CHECK_INT(tsr_cache_clear(r.kit.cache, &clear), 1);
    settle(&r);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0);
    check_own(&r, 3);
    rig_close(&r);
}

/* Host memory and pool have 64 pages each, an entry two. */
TEST(the_pool_is_bounded_and_what_leaves_it_goes_down_to_host_memory)
{
    enum { N = 40 };
    struct rig r;
    static struct ask a;
    uint32_t *tokens[N];
    rig_open_empty(&r, "1M", false);
    for (uint64_t i = 0; i < N; i++) {
        tokens[i] = kit_tokens(100 + i, SEGMENT);
        CHECK_INT(kit_store_segment(&r.kit, tokens[i], SEGMENT), SEGMENT);
        CHECK_INT(look_up(&r, &a, tokens[i], SEGMENT, 0), SEGMENT);
        settle(&r);
        CHECK(metric(&r, TSRI_M_device_pool_used_bytes) <= 1 << 20);
        if (i == 31) kit_evict_all(&r.kit); /* 32 entries that only the pool has */
    }
    CHECK(metric(&r, TSRI_M_device_demotions) >= 8);
    CHECK_INT(r.kit.cache->n_host + r.kit.cache->n_cold, N); /* none was lost */
    int n_found = 0;
    for (uint64_t i = 0; i < N; i++) {
        if (look_up(&r, &a, tokens[i], SEGMENT, 0) == 0) continue;
        n_found++;
        check_segment(&r, tokens[i], SEGMENT, 11);
        settle(&r);
    }
    CHECK(n_found >= 32);
    for (uint64_t i = 0; i < N; i++)
        free(tokens[i]);
    rig_close(&r);
}

TEST(what_only_a_lower_tier_has_is_fetched_and_delivered)
{
    struct rig r;
    rig_open(&r, "0", true);
    CHECK_INT(tsr_cache_flush(r.kit.cache), 0);
    kit_evict_all(&r.kit);
    CHECK_INT(r.kit.cache->n_cold, 1);
    check_own(&r, 40);
    CHECK_INT(r.kit.cache->n_cold, 0);
    rig_close(&r);
}

static int refuse_copy(struct tsr_device *d, struct tsr_device_stream *s,
                       const struct tsr_copy *copies, size_t n)
{
    (void)d;
    (void)s;
    (void)copies;
    (void)n;
    return TSR_EDEVICE;
}

TEST(a_lost_device_costs_neither_a_flush_nor_a_load)
{
    struct rig r;
    static struct ask a;
    rig_open_empty(&r, "1M", true);
    struct tsri_device *d = r.kit.cache->device;
    const struct tsr_device_ops *real = d->ops;
    struct tsr_device_ops lost = *real;
    lost.copy = refuse_copy;
    d->ops = &lost;
    r.tokens = kit_tokens(1, SEGMENT);
    kit_store_segment(&r.kit, r.tokens, SEGMENT);
    settle(&r);
    ask_for(&r, &a, 0);
    CHECK_INT(tsr_cache_flush(r.kit.cache), 0);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0);
    CHECK(metric(&r, TSRI_M_tier_errors) > 0);
    CHECK_INT(kit_load_and_check(&r.kit, &a.prompt), SEGMENT);
    settle(&r);
    d->ops = real;
    rig_close(&r);
}

/* ---- threads ---- */

enum { THREADS = 3, ROUNDS = 60, TEXTS = 48 };
struct worker {
    pthread_t thread;
    struct rig *shared;
    uint64_t seed;
    int n_wrong, n_delivered;
};

/* Stores, finds and delivers texts while others clear and evict; what arrives must be right. */
static void *work(void *arg)
{
    struct worker *w = arg;
    struct rig r = {.kit = w->shared->kit};
    struct ask *a = malloc(sizeof *a);
    r.kit.client = kit_client(r.kit.cache);
    rig_open_engines(&r, TSR_MEMORY_DEVICE);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t dice = test_rand(&w->seed);
        uint32_t *tokens = kit_tokens(dice % TEXTS, SEGMENT);
        if (dice >> 40 & 1) kit_store_segment(&r.kit, tokens, SEGMENT);
        if ((dice >> 41) % 16 == 0) kit_evict_all(&r.kit);
        if ((dice >> 41) % 16 == 1 && tsr_cache_clear(r.kit.cache, NULL) < 0) w->n_wrong++;
        if (look_up(&r, a, tokens, SEGMENT, (uint32_t)(dice >> 50) % 8) == SEGMENT) {
            forget_engines(&r);
            if (deliver(&r, &a->want, 1) == 1) {
                expect(&r, tokens, SEGMENT, a->range.offset);
                w->n_delivered++;
            }
            w->n_wrong += !same_images(&r);
        }
        free(tokens);
    }
    rig_close_engines(&r);
    tsr_client_close(r.kit.client);
    free(a);
    return NULL;
}

TEST(threads_deliver_while_others_evict_and_clear)
{
    struct rig r;
    struct worker workers[THREADS];
    rig_open_empty(&r, "1M", false);
    for (uint64_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.shared = &r, .seed = i + 1};
        CHECK_INT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    int n_delivered = 0;
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        CHECK_INT(workers[i].n_wrong, 0);
        n_delivered += workers[i].n_delivered;
    }
    CHECK(n_delivered > 0);
    CHECK(kit_valid(&r.kit));
    rig_close(&r);
}

static void run_all(void)
{
    RUN(a_hit_is_promoted_and_then_host_memory_is_not_read);
    RUN(what_left_host_memory_is_still_delivered_and_loaded_from_the_pool);
    RUN(the_pool_is_named_before_a_tier_that_has_the_entry_too);
    RUN(another_text_is_not_delivered_for_an_unverified_match);
    RUN(a_verified_match_is_compared_again_when_it_is_delivered);
    RUN(cleared_and_dropped_entries_leave_the_pool);
    RUN(clearing_the_pool_alone_leaves_host_memory);
    RUN(the_pool_is_bounded_and_what_leaves_it_goes_down_to_host_memory);
    RUN(what_only_a_lower_tier_has_is_fetched_and_delivered);
    RUN(a_lost_device_costs_neither_a_flush_nor_a_load);
    RUN(threads_deliver_while_others_evict_and_clear);
}

int main(void)
{
    return rig_each_device(run_all);
}
