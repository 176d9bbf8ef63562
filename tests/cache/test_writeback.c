/* What goes down to a tier: when entries are written, what flush promises, what happens when the
 * queue or the tier is full, when entries are dropped while they wait, and when any one call of the
 * tier fails. Lookups never notice; a store may be refused; nothing is written twice, lost without
 * a word or left behind. */
#include "cache/manager.h"
#include "cache/ops.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#include <sched.h>

enum { TIERS_MAX = 2 };
struct below {
    struct kit k;
    struct fake_tier_plan plans[TIERS_MAX];
};

static void below_open(struct below *b, const char *const *options, uint32_t n_tiers)
{
    for (uint32_t i = 0; i < TIERS_MAX; i++)
        fake_tier_plan_init(&b->plans[i]);
    kit_open_tiers(&b->k, options, b->plans, n_tiers);
}

static void below_fini(struct below *b)
{
    for (uint32_t i = 0; i < TIERS_MAX; i++)
        fake_tier_plan_fini(&b->plans[i]);
}

/* True when nothing is left anywhere. */
static bool below_end(struct below *b)
{
    bool ended = kit_end(&b->k) && b->plans[0].mem.n_items == 0 && b->plans[1].mem.n_items == 0;
    below_fini(b);
    return ended;
}

static int store_nth(struct below *b, uint64_t nth, uint32_t n)
{
    uint32_t *tokens = kit_tokens(nth, n);
    int stored = kit_store_segment(&b->k, tokens, n);
    free(tokens);
    return stored;
}

static int load_nth(struct below *b, uint64_t nth, uint32_t n)
{
    uint32_t *tokens = kit_tokens(nth, n);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, n, &range);
    int loaded = kit_load_and_check(&b->k, &prompt);
    free(tokens);
    return loaded;
}

static int find_nth(struct below *b, uint64_t nth, uint32_t n)
{
    uint32_t *tokens = kit_tokens(nth, n);
    int found = kit_find_segment(&b->k, tokens, n);
    free(tokens);
    return found;
}

static uint64_t counter(const struct below *b, enum tsri_metric m)
{
    return tsri_stats_read(b->k.cache->stats, m);
}

/* ---- written ---- */

TEST(flush_returns_when_everything_stored_is_below)
{
    struct below b;
    below_open(&b, NULL, 2);
    atomic_store(&b.plans[1].delay_us, 2000);
    for (uint64_t i = 0; i < 20; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 20);
    CHECK_INT(b.plans[1].mem.n_items, 20);
    CHECK_INT(b.plans[0].n_flushes, 1);
    struct tsr_stats s = kit_stats(&b.k);
    CHECK_INT(s.tier_entries[0], 20);
    CHECK_INT(s.tier_entries[1], 20);
    CHECK_INT(s.tier_entries[2], 20);
    CHECK_INT(s.tier_bytes[1], b.plans[0].mem.bytes_used);
    CHECK_INT(s.entries, 20);
    CHECK_INT(counter(&b, TSRI_M_tier_writes), 40);
    CHECK_INT(counter(&b, TSRI_M_tier_write_bytes), 40 * 30 * 256);
    /* Nothing is written twice: not again by flush, not when it comes back up. */
    CHECK_INT(kit_evict_all(&b.k), 20);
    for (uint64_t i = 0; i < 20; i++)
        CHECK_INT(load_nth(&b, i, 30), 30);
    CHECK_INT(store_nth(&b, 3, 30), 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].n_puts, 20);
    CHECK(below_end(&b));
}

TEST(close_writes_what_is_queued)
{
    struct below b;
    below_open(&b, NULL, 1);
    atomic_store(&b.plans[0].delay_us, 1000);
    for (uint64_t i = 0; i < 20; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    kit_close(&b.k);
    CHECK_INT(b.plans[0].mem.n_items, 20);
    below_fini(&b);
}

TEST(written_through_means_below_when_store_returns)
{
    struct below b;
    below_open(&b, (const char *const[]){"attached_write", "through", NULL}, 1);
    atomic_store(&b.plans[0].delay_us, 1000);
    for (uint64_t i = 0; i < 10; i++) {
        CHECK_INT(store_nth(&b, i, 30), 30);
        CHECK_INT(b.plans[0].mem.n_items, i + 1);
    }
    CHECK(below_end(&b));
}

TEST(an_entry_that_is_not_written_in_time_is_given_up_and_told)
{
    struct below b;
    below_open(&b, (const char *const[]){"tier_store_ms", "10", NULL}, 1);
    atomic_store(&b.plans[0].delay_calls, FAKE_PUT);
    atomic_store(&b.plans[0].delay_us, 30000);
    CHECK_INT(store_nth(&b, 1, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK_INT(tsri_stats_read(b.k.cache->stats, TSRI_M_tier_timeouts), 2); /* flush tries again */
    CHECK_INT(b.plans[0].mem.n_items, 0);
    atomic_store(&b.plans[0].delay_us, 0);
    CHECK_INT(store_nth(&b, 2, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 2);
    CHECK(below_end(&b));
}

TEST(a_tier_that_takes_no_writes_gets_none)
{
    struct below b;
    below_open(&b, (const char *const[]){"attached_write", "none", NULL}, 1);
    CHECK_INT(store_nth(&b, 1, 30), 30);
    CHECK_INT(load_nth(&b, 1, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].n_puts, 0);
    CHECK_INT(kit_evict_all(&b.k), 1);
    CHECK_INT(find_nth(&b, 1, 30), 0);
    CHECK(below_end(&b));
}

TEST(second_touch_writes_what_is_used_again_and_nothing_else)
{
    struct below b;
    below_open(&b, (const char *const[]){"attached_admission", "second_touch", NULL}, 1);
    for (uint64_t i = 0; i < 6; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 0);
    for (uint64_t i = 0; i < 3; i++)
        for (int again = 0; again < 3; again++) {
            CHECK_INT(load_nth(&b, i, 30), 30);
            /* A use while the writer has the lock counts the next time. */
            CHECK_INT(tsr_cache_flush(b.k.cache), 0);
        }
    CHECK_INT(b.plans[0].mem.n_items, 3);
    CHECK_INT(b.plans[0].n_puts, 3);
    CHECK_INT(kit_evict_all(&b.k), 6);
    for (uint64_t i = 0; i < 6; i++)
        CHECK_INT(load_nth(&b, i, 30), i < 3 ? 30 : 0);
    CHECK(below_end(&b));
}

/* One tier has it, the other one would like to, but it is not in memory to be written. */
TEST(an_entry_that_is_below_is_not_pinned_by_a_tier_that_lacks_it)
{
    struct below b;
    below_open(&b, (const char *const[]){"attached_admission", "second_touch", NULL}, 2);
    CHECK_INT(store_nth(&b, 1, 30), 30);
    CHECK_INT(find_nth(&b, 1, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    const struct tsr_clear_desc second = {.size = sizeof second, .tier = 2};
    CHECK_INT(tsr_cache_clear(b.k.cache, &second), 1);
    CHECK_INT(kit_evict_all(&b.k), 1);
    for (int i = 0; i < 5; i++)
        CHECK_INT(find_nth(&b, 1, 30), 30);
    /* Once it is in memory again, it goes where it is missing. */
    CHECK_INT(load_nth(&b, 1, 30), 30);
    CHECK_INT(find_nth(&b, 1, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[1].mem.n_items, 1);
    CHECK(below_end(&b));
}

/* ---- full queues ---- */

TEST(a_full_queue_refuses_stores_and_nothing_else)
{
    struct below b;
    below_open(&b, (const char *const[]){"io_queue_max", "4", NULL}, 1);
    fake_tier_gate(&b.plans[0], FAKE_PUT);
    CHECK_INT(store_nth(&b, 0, 30), 30);
    fake_tier_gate_wait(&b.plans[0], 1); /* in the writer's hands, no longer in the queue */
    uint64_t n = 1;
    int stored = 30;
    for (; n < 20 && stored == 30; n++)
        stored = store_nth(&b, n, 30);
    CHECK_INT(stored, TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), "io_queue_max");
    CHECK_INT(n, 6);
    CHECK_INT(kit_stats(&b.k).stores_refused, 1);
    CHECK_INT(kit_stats(&b.k).entries, 5);
    for (uint64_t i = 0; i < 5; i++)
        CHECK_INT(load_nth(&b, i, 30), 30);
    CHECK_INT(find_nth(&b, 5, 30), 0);
    CHECK_INT(store_nth(&b, 0, 30), TSR_EAGAIN); /* even of what is there: it is not asked */
    fake_tier_gate(&b.plans[0], 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(store_nth(&b, 5, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 6);
    CHECK(below_end(&b));
}

TEST(a_store_of_more_blocks_than_the_queue_holds_is_written_whole)
{
    struct below b;
    below_open(&b, (const char *const[]){"io_queue_max", "2", NULL}, 1);
    uint32_t *tokens = kit_tokens(1, 320);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 320), 320);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 20);
    CHECK_INT(kit_evict_all(&b.k), 20);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 320);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 320);
    free(tokens);
    CHECK(below_end(&b));
}

TEST(clear_empties_a_tier_behind_a_small_queue)
{
    struct below b;
    below_open(&b, (const char *const[]){"io_queue_max", "1", NULL}, 1);
    for (uint64_t i = 0; i < 50; i++) {
        CHECK_INT(store_nth(&b, i, 30), 30);
        CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    }
    uint32_t *tokens = kit_tokens(1000, 160);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 160), 160);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 60);
    atomic_store(&b.plans[0].delay_us, 100);
    CHECK_INT(tsr_cache_clear(b.k.cache, NULL), 60);
    CHECK_INT(b.plans[0].mem.n_items, 0);
    CHECK_INT(kit_stats(&b.k).dropped, 60);
    free(tokens);
    CHECK(below_end(&b));
}

/* ---- dropped while they wait ---- */

TEST(what_waits_to_be_written_can_be_cleared)
{
    struct below b;
    below_open(&b, NULL, 1);
    fake_tier_gate(&b.plans[0], FAKE_PUT);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    fake_tier_gate_wait(&b.plans[0], 1);
    /* The one that is being written and one that waits. Clear returns when they are gone below. */
    fake_tier_gate(&b.plans[0], 0);
    struct tsr_range range;
    for (uint64_t i = 0; i < 2; i++) {
        uint32_t *tokens = kit_tokens(i, 30);
        struct tsr_prompt prompt = kit_segment_prompt(tokens, 30, &range);
        const struct tsr_clear_desc clear = {
            .size = sizeof clear, .space = b.k.space, .prompt = &prompt, .tier = -1};
        CHECK_INT(tsr_cache_clear(b.k.cache, &clear), 1);
        CHECK_INT(kit_find_segment(&b.k, tokens, 30), 0);
        free(tokens);
    }
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 1);
    CHECK_INT(load_nth(&b, 2, 30), 30);
    CHECK(below_end(&b));
}

/* Drops an entry by its key as clear does, without waiting for the tier. */
static void drop_now(struct below *b, uint64_t nth, uint32_t n)
{
    uint32_t *tokens = kit_tokens(nth, n);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, n, &range);
    struct tsr_key bytes;
    CHECK_INT(tsr_space_keys(b->k.space, &prompt, &bytes, 1), 1);
    struct tsri_key key;
    memcpy(&key, &bytes, sizeof key);
    pthread_mutex_lock(&b->k.cache->lock);
    uint32_t id = tsri_entry_live(b->k.cache, key);
    if (id != TSRI_ID_NONE) tsri_entry_drop(b->k.cache, id, TSR_EVENT_DROPPED);
    pthread_mutex_unlock(&b->k.cache->lock);
    CHECK(id != TSRI_ID_NONE);
    free(tokens);
}

TEST(dropped_while_it_is_written_it_goes_below_too)
{
    struct below b;
    below_open(&b, NULL, 1);
    fake_tier_gate(&b.plans[0], FAKE_PUT);
    CHECK_INT(store_nth(&b, 1, 30), 30);
    CHECK_INT(store_nth(&b, 2, 30), 30);
    fake_tier_gate_wait(&b.plans[0], 1);
    drop_now(&b, 1, 30); /* being written */
    drop_now(&b, 2, 30); /* waiting */
    CHECK_INT(find_nth(&b, 1, 30), 0);
    /* Stored again before the writer has got anywhere. */
    CHECK_INT(store_nth(&b, 1, 30), 30);
    CHECK_INT(store_nth(&b, 3, 30), 30);
    drop_now(&b, 3, 30);
    fake_tier_gate(&b.plans[0], 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 1);
    CHECK_INT(kit_evict_all(&b.k), 1);
    CHECK_INT(load_nth(&b, 1, 30), 30);
    CHECK_INT(kit_stats(&b.k).tier_entries[1], 1);
    CHECK(below_end(&b));
}

TEST(host_memory_comes_back_before_a_slow_tier_has_dropped_its_copies)
{
    struct below b;
    below_open(&b, NULL, 1);
    for (uint64_t i = 0; i < 64; i++) /* all of host memory */
        CHECK_INT(store_nth(&b, i, 64), 64);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    fake_tier_gate(&b.plans[0], FAKE_DROP);
    for (uint64_t i = 0; i < 64; i++)
        drop_now(&b, i, 64);
    CHECK_INT(kit_stats(&b.k).host_bytes_used, 0);
    CHECK_INT(store_nth(&b, 100, 64), 64);
    fake_tier_gate(&b.plans[0], 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 1);
    CHECK(below_end(&b));
}

/* ---- full tiers ---- */

TEST(a_full_tier_gives_up_what_was_used_least_recently)
{
    struct below b;
    below_open(&b, NULL, 1);
    CHECK_INT(store_nth(&b, 0, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    b.plans[0].mem.bytes_max = b.plans[0].mem.bytes_used * 10;
    for (uint64_t i = 1; i < 10; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(kit_evict_all(&b.k), 10);
    CHECK_INT(load_nth(&b, 0, 30), 30); /* the oldest is used again */
    CHECK_INT(kit_evict_all(&b.k), 1);
    for (uint64_t i = 10; i < 15; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(kit_evict_all(&b.k), 5);
    CHECK_INT(b.plans[0].mem.n_items, 10);
    for (uint64_t i = 0; i < 15; i++)
        CHECK_INT(load_nth(&b, i, 30), i >= 1 && i <= 5 ? 0 : 30);
    CHECK_INT(kit_stats(&b.k).tier_entries[1], 10);
    CHECK(below_end(&b));
}

TEST(a_full_tier_gives_up_chains_from_their_ends)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *tokens = kit_tokens(1, 160);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 160), 160);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    b.plans[0].mem.bytes_max = b.plans[0].mem.bytes_used;
    CHECK_INT(kit_evict_all(&b.k), 10);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 160);
    /* Newcomers take the places of the last blocks, and what is left is a run from token 0. */
    int before = 160;
    for (uint64_t i = 0; i < 8; i++) {
        CHECK_INT(store_nth(&b, 100 + i, 16), 16);
        CHECK_INT(tsr_cache_flush(b.k.cache), 0);
        int left = kit_find_prefix(&b.k, tokens, 160);
        CHECK(left <= before && left % 16 == 0);
        CHECK(b.plans[0].mem.n_items <= 10);
        before = left;
    }
    CHECK(before > 0 && before < 128);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), before);
    free(tokens);
    CHECK(below_end(&b));
}

/* All of it stays in host memory, so only copies go, and any of them might. */
TEST(a_chain_larger_than_a_tier_keeps_its_front)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *tokens = kit_tokens(1, 640);
    CHECK_INT(store_nth(&b, 100, 16), 16);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 16), 16);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    b.plans[0].mem.bytes_max = b.plans[0].mem.bytes_used * 5; /* ten blocks */
    CHECK_INT(kit_store_prefix(&b.k, tokens, 320), 304);
    CHECK(tsr_cache_flush(b.k.cache) < 0); /* it is not all below, and that is said */
    CHECK_INT(kit_store_prefix(&b.k, tokens, 640), 320);
    CHECK(tsr_cache_flush(b.k.cache) < 0);
    CHECK_INT(kit_find_prefix(&b.k, tokens, 640), 640);
    CHECK_INT(b.plans[0].mem.n_items, 10);
    kit_close(&b.k);
    kit_open_tiers(&b.k, NULL, b.plans, 1);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 640);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 160);
    CHECK_INT(kit_find_prefix(&b.k, tokens, 640), 160);
    /* What was used last stays whole: another chain takes the place of its end. */
    uint32_t *other = kit_tokens(2, 64);
    CHECK_INT(kit_store_prefix(&b.k, other, 64), 64);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(kit_evict_all(&b.k) > 0, 1);
    CHECK_INT(kit_find_prefix(&b.k, other, 64), 64);
    CHECK_INT(kit_find_prefix(&b.k, tokens, 640), 96);
    free(tokens), free(other);
    CHECK(below_end(&b));
}

/* Two chains of five blocks in a tier of ten: the one used longer ago goes, whole, from its end. */
TEST(of_two_chains_the_one_used_longer_ago_goes_first)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *chains[3];
    for (uint64_t i = 0; i < 3; i++)
        chains[i] = kit_tokens(10 + i, 80);
    for (int i = 0; i < 2; i++)
        CHECK_INT(kit_store_prefix(&b.k, chains[i], 80), 80);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    b.plans[0].mem.bytes_max = b.plans[0].mem.bytes_used;
    CHECK_INT(kit_evict_all(&b.k), 10);
    struct tsr_prompt first = kit_prefix_prompt(chains[0], 80);
    CHECK_INT(kit_load_and_check(&b.k, &first), 80);
    CHECK_INT(kit_evict_all(&b.k), 5);
    for (uint32_t n = 16; n <= 80; n += 16) {
        CHECK_INT(kit_store_prefix(&b.k, chains[2], n), 16);
        CHECK_INT(tsr_cache_flush(b.k.cache), 0);
        CHECK_INT(kit_find_prefix(&b.k, chains[0], 80), 80);
        CHECK_INT(kit_find_prefix(&b.k, chains[1], 80), 80 - n);
    }
    for (int i = 0; i < 3; i++)
        free(chains[i]);
    CHECK(below_end(&b));
}

/* Its copy was cleared: a block that comes behind it takes it along. */
TEST(a_block_that_lost_its_copy_is_written_again_before_the_next)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *tokens = kit_tokens(1, 96);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 64), 64);
    CHECK_INT(
        tsr_cache_clear(b.k.cache,
                        &(struct tsr_clear_desc){.size = sizeof(struct tsr_clear_desc), .tier = 1}),
        4);
    CHECK_INT(b.plans[0].mem.n_items, 0);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 96), 32);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 6);
    kit_close(&b.k);
    kit_open_tiers(&b.k, NULL, b.plans, 1);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 96);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 96);
    free(tokens);
    CHECK(below_end(&b));
}

TEST(a_tier_without_any_room_costs_only_its_place)
{
    struct kit k;
    struct fake_tier_plan plan;
    fake_tier_plan_init_over(&plan, &null_tier, NULL);
    kit_open_tiers(&k, NULL, &plan, 1);
    uint32_t *tokens = kit_tokens(1, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK(tsr_cache_flush(k.cache) < 0);
    CHECK_HAS(tsr_errmsg(), "4 entries");
    CHECK_INT(tsr_cache_flush(k.cache), 0); /* said once */
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64);
    CHECK_INT(kit_load_and_check(&k, &prompt), 64);
    CHECK_INT(kit_stats(&k).tier_entries[1], 0);
    CHECK_INT(kit_evict_all(&k), 4);
    CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    free(tokens);
    CHECK(kit_end(&k));
    fake_tier_plan_fini(&plan);
}

TEST(more_entries_below_than_the_index_holds_make_way_for_new_ones)
{
    struct below b;
    below_open(&b, (const char *const[]){"entries_max", "16", NULL}, 1);
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_INT(store_nth(&b, i, 30), 30);
        CHECK_INT(tsr_cache_flush(b.k.cache), 0);
        if (i % 8 == 7) CHECK(kit_evict_all(&b.k) > 0);
    }
    CHECK(kit_valid(&b.k));
    CHECK_INT(load_nth(&b, 99, 30), 30);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, kit_stats(&b.k).entries);
    CHECK(below_end(&b));
}

TEST(small_entries_go_down_together_and_each_has_its_own_result)
{
    struct below b;
    below_open(&b, NULL, 1);
    fake_tier_gate(&b.plans[0], FAKE_PUT);
    CHECK_INT(store_nth(&b, 0, 30), 30);
    fake_tier_gate_wait(&b.plans[0], 1);
    for (uint64_t i = 1; i < 9; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    b.plans[0].mem.bytes_max =
        1; /* full: every one of them must make room, and there is too little */
    fake_tier_gate(&b.plans[0], 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK_INT(b.plans[0].mem.n_items, 0);
    b.plans[0].mem.bytes_max = 0;
    fake_tier_gate(&b.plans[0], FAKE_PUT);
    CHECK_INT(store_nth(&b, 10, 30), 30);
    fake_tier_gate_wait(&b.plans[0], 1);
    uint64_t n_calls = b.plans[0].n_calls;
    for (uint64_t i = 11; i < 20; i++)
        CHECK_INT(store_nth(&b, i, 30), 30);
    fake_tier_gate(&b.plans[0], 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].n_calls - n_calls, 2); /* one put, one flush */
    CHECK_INT(b.plans[0].mem.n_items, 10);
    CHECK_INT(kit_evict_all(&b.k), 19);
    for (uint64_t i = 10; i < 20; i++)
        CHECK_INT(load_nth(&b, i, 30), 30);
    CHECK(below_end(&b));
}

/* ---- failures ---- */

TEST(flush_says_how_many_entries_could_not_be_written)
{
    struct below b;
    below_open(&b, NULL, 1);
    fake_tier_fail(&b.plans[0], FAKE_PUT, 2, UINT32_MAX - 2, TSR_EIO);
    fake_tier_gate(&b.plans[0], FAKE_PUT);
    CHECK_INT(store_nth(&b, 0, 30), 30);
    fake_tier_gate_wait(&b.plans[0], 1);
    for (uint64_t i = 1; i < 5; i++) /* go down together */
        CHECK_INT(store_nth(&b, i, 30), 30);
    fake_tier_gate(&b.plans[0], 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK_HAS(tsr_errmsg(), "4 entries");
    fake_tier_fail(&b.plans[0], 0, 0, 0, 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 5);
    fake_tier_fail(&b.plans[0], FAKE_FLUSH, 1, 0, TSR_EIO);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK(below_end(&b));
}

/* One run with everything in it. Each step may fail or miss because of the tier, and whatever is
 * loaded has been checked byte by byte. */
static void script(struct below *b)
{
    struct tsr_range range;
    uint32_t *tokens = kit_tokens(1, 96);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, 96);
    struct tsr_prompt segment = kit_segment_prompt(tokens, 96, &range);
    for (int round = 0; round < 2; round++) {
        int n = kit_store_prefix(&b->k, tokens, 96);
        CHECK(n >= 0 && n <= 96 && n % 16 == 0);
        n = kit_store_segment(&b->k, tokens, 96);
        CHECK(n == 0 || n == 96);
        int flushed = tsr_cache_flush(b->k.cache);
        CHECK(flushed <= 0);
        CHECK(kit_evict_all(&b->k) >= 0);
        n = kit_load_and_check(&b->k, &prefix);
        CHECK(n >= 0 && n % 16 == 0);
        if (flushed == 0 && round == 0 && !atomic_load(&b->plans[0].fail_nth)) CHECK_INT(n, 96);
        n = kit_load_and_check(&b->k, &segment);
        CHECK(n == 0 || n == 96);
        CHECK(kit_evict_all(&b->k) >= 0);
        CHECK(tsr_client_prefetch(b->k.client, b->k.space, &prefix) >= 0);
        CHECK(kit_load_and_check(&b->k, &prefix) >= 0);
        tsri_work_drain(tsri_ops_work(b->k.cache->ops));
        struct tsr_clear_desc clear = {
            .size = sizeof clear, .space = b->k.space, .prompt = &segment};
        clear.tier = round ? 0 : 1;
        CHECK(tsr_cache_clear(b->k.cache, &clear) >= 0);
        n = kit_load_and_check(&b->k, &segment);
        CHECK(n == 0 || n == 96);
        CHECK(kit_valid(&b->k));
    }
    free(tokens);
}

TEST(any_one_call_of_a_tier_may_fail)
{
    static const int errors[] = {TSR_EIO, TSR_ENOENT, TSR_ECORRUPT, TSR_EFULL, TSR_ETIME};
    struct below b;
    below_open(&b, NULL, 1);
    script(&b);
    uint32_t n_calls = (uint32_t)b.plans[0].n_calls;
    CHECK(below_end(&b));
    CHECK(n_calls > 20);
    for (uint32_t nth = 1; nth <= n_calls; nth++)
        for (size_t e = 0; e < TSRI_COUNT(errors); e++) {
            below_open(&b, NULL, 1);
            fake_tier_fail(&b.plans[0], FAKE_ALL, nth, nth % 3, errors[e]);
            script(&b);
            fake_tier_fail(&b.plans[0], 0, 0, 0, 0);
            /* A drop that failed leaves something below; nothing else does. */
            CHECK(kit_end(&b.k));
            below_fini(&b);
        }
}

TEST(a_tier_that_always_fails_is_as_good_as_none)
{
    struct below b;
    below_open(&b, NULL, 1);
    fake_tier_fail(&b.plans[0], FAKE_ALL, 1, UINT32_MAX, TSR_EIO);
    for (uint64_t i = 0; i < 200; i++) {
        CHECK_INT(store_nth(&b, i, 64), 64);
        CHECK_INT(load_nth(&b, i, 64), 64);
        if (i % 16 == 15) CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    }
    CHECK_INT(b.plans[0].mem.n_items, 0);
    CHECK(below_end(&b));
}

int main(void)
{
    RUN(flush_returns_when_everything_stored_is_below);
    RUN(close_writes_what_is_queued);
    RUN(written_through_means_below_when_store_returns);
    RUN(an_entry_that_is_not_written_in_time_is_given_up_and_told);
    RUN(a_tier_that_takes_no_writes_gets_none);
    RUN(second_touch_writes_what_is_used_again_and_nothing_else);
    RUN(an_entry_that_is_below_is_not_pinned_by_a_tier_that_lacks_it);
    RUN(a_full_queue_refuses_stores_and_nothing_else);
    RUN(a_store_of_more_blocks_than_the_queue_holds_is_written_whole);
    RUN(clear_empties_a_tier_behind_a_small_queue);
    RUN(what_waits_to_be_written_can_be_cleared);
    RUN(dropped_while_it_is_written_it_goes_below_too);
    RUN(host_memory_comes_back_before_a_slow_tier_has_dropped_its_copies);
    RUN(a_full_tier_gives_up_what_was_used_least_recently);
    RUN(a_full_tier_gives_up_chains_from_their_ends);
    RUN(a_chain_larger_than_a_tier_keeps_its_front);
    RUN(of_two_chains_the_one_used_longer_ago_goes_first);
    RUN(a_block_that_lost_its_copy_is_written_again_before_the_next);
    RUN(a_tier_without_any_room_costs_only_its_place);
    RUN(more_entries_below_than_the_index_holds_make_way_for_new_ones);
    RUN(small_entries_go_down_together_and_each_has_its_own_result);
    RUN(flush_says_how_many_entries_could_not_be_written);
    RUN(any_one_call_of_a_tier_may_fail);
    RUN(a_tier_that_always_fails_is_as_good_as_none);
    return test_end();
}
