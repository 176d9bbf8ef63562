/* test_shadow.c - the shadows find the window that the traffic wants, follow it when it changes,
 * and stay small whatever the size of the cache. */
#include "policy/ranks.h"

#include "support/test.h"

static struct tsri_sketch sketch;
static struct tsri_shadow shadow;

static void init(uint64_t capacity)
{
    CHECK_INT(tsri_sketch_init(&sketch, 100000), 0);
    CHECK_INT(tsri_shadow_init(&shadow, capacity, &sketch), 0);
}

static void fini(void)
{
    tsri_shadow_fini(&shadow);
    tsri_sketch_fini(&sketch);
}

static void use(uint64_t key, uint32_t units, uint32_t tag, uint32_t n_entries)
{
    uint64_t hash = (key + 1) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
    struct tsri_rank_mark mark = tsri_mark_make(hash, units, tag);
    tsri_sketch_add(&sketch, mark.hash, n_entries);
    tsri_shadow_use(&shadow, mark);
}

/* Every key is used four times, `distance` others apart, and never again: only recency helps. */
static void conversations(uint64_t n, uint64_t distance, uint32_t n_entries)
{
    static uint64_t first;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t turn = 0; turn < 4; turn++)
            use((uint64_t)1 << 40 | (first + i - turn * distance), 1, 4, n_entries);
    first += n + 10000;
}

/* A tenth of all uses goes to each of few keys in turn; the others come once. */
static void documents(uint64_t n, uint64_t n_popular, uint32_t n_entries)
{
    static uint64_t once;
    for (uint64_t i = 0; i < n; i++) {
        if (i % 10 == 0)
            use((uint64_t)2 << 40 | i / 10 % n_popular, 1, 4, n_entries);
        else
            use((uint64_t)3 << 40 | once++, 1, 4, n_entries);
    }
}

TEST(it_begins_with_a_hundredth)
{
    init(500);
    CHECK_INT(tsri_shadow_window(&shadow), 1);
    fini();
}

TEST(conversations_get_a_large_window_and_documents_a_small_one)
{
    init(500);
    conversations(4000, 100, 500);
    CHECK_INT(tsri_shadow_window(&shadow), 100);
    documents(60000, 300, 500);
    CHECK(tsri_shadow_window(&shadow) <= 10);
    conversations(4000, 100, 500);
    CHECK_INT(tsri_shadow_window(&shadow), 100);
    fini();
}

TEST(a_large_cache_is_shadowed_by_a_sample)
{
    init(50000);
    conversations(100000, 10000, 50000);
    CHECK_INT(tsri_shadow_window(&shadow), 100);
    CHECK(shadow.shift >= 5 && shadow.shift <= 8);
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++) {
        const struct tsri_ranks *r = &shadow.caches[i].ranks;
        CHECK_INT(r->capacity, 50000 >> shadow.shift);
        CHECK(tsri_queues_units(&r->q) <= r->capacity);
        CHECK(tsri_queues_n(&r->q) < TSRI_SHADOW_ENTRIES);
    }
    fini();
}

TEST(a_small_cache_is_shadowed_whole)
{
    init(1000);
    conversations(4000, 100, 1000);
    CHECK_INT(shadow.shift, 0);
    fini();
}

TEST(another_capacity_takes_effect_at_once)
{
    init(800);
    conversations(2000, 100, 800);
    tsri_shadow_resize(&shadow, 80);
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++)
        CHECK(tsri_queues_units(&shadow.caches[i].ranks.q) <= 80);
    /* Turns are now further apart than anything stays. */
    CHECK_INT(shadow.capacity, 80);
    fini();
}

TEST(what_is_larger_than_the_cache_is_not_in_it)
{
    init(10);
    for (uint64_t i = 0; i < 100; i++) {
        use(i % 3, 20, 4, 10);
        use(50, 1, 4, 10);
    }
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++) {
        CHECK_INT(tsri_queues_n(&shadow.caches[i].ranks.q), 1);
        CHECK(shadow.caches[i].score > 0);
    }
    fini();
}

TEST(what_a_use_saves_is_its_units_by_their_worth)
{
    init(100);
    use(1, 3, 4, 10);
    CHECK(shadow.caches[0].score == 0);
    use(1, 3, 4, 10);
    CHECK(shadow.caches[0].score == 3 * 16);
    use(2, 5, 1, 10);
    use(2, 5, 1, 10);
    CHECK(shadow.caches[0].score == 3 * 16 + 5 * 2);
    fini();
}

TEST(refresh_is_no_use)
{
    init(100);
    use(1, 3, 4, 10);
    tsri_shadow_refresh(&shadow, shadow.caches[0].ranks.q.ranks[0].hash);
    tsri_shadow_refresh(&shadow, 12345);
    CHECK(shadow.caches[0].score == 0);
    CHECK_INT(tsri_queues_n(&shadow.caches[0].ranks.q), 1);
    fini();
}

int main(void)
{
    RUN(it_begins_with_a_hundredth);
    RUN(conversations_get_a_large_window_and_documents_a_small_one);
    RUN(a_large_cache_is_shadowed_by_a_sample);
    RUN(a_small_cache_is_shadowed_whole);
    RUN(another_capacity_takes_effect_at_once);
    RUN(what_is_larger_than_the_cache_is_not_in_it);
    RUN(what_a_use_saves_is_its_units_by_their_worth);
    RUN(refresh_is_no_use);
    return test_end();
}
