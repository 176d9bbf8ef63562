/* test_ranks.c - with a window of everything it is LRU; with a small one, who is used often stays
 * and who comes once passes through; what a use saves counts as much as how often. */
#include "policy/ranks.h"

#include "support/test.h"

#define IDS 100u

static struct tsri_sketch sketch;
static struct tsri_ranks ranks;

static void init(uint64_t window)
{
    memset(&ranks, 0, sizeof ranks);
    CHECK_INT(tsri_sketch_init(&sketch, 1000), 0);
    CHECK_INT(tsri_queues_init(&ranks.q, IDS), 0);
    ranks.sketch = &sketch;
    ranks.capacity = IDS;
    ranks.window = window;
}

static void fini(void)
{
    tsri_queues_fini(&ranks.q);
    tsri_sketch_fini(&sketch);
}

static void insert(uint32_t id, uint64_t key, uint32_t tag)
{
    struct tsri_rank_mark mark = tsri_mark_make(key * 0x9e3779b97f4a7c15u, 1, tag);
    tsri_queues_insert(&ranks.q, id, mark, TSRI_RECENT);
    tsri_sketch_add(&sketch, mark.hash, IDS);
}

static void use(uint32_t id)
{
    tsri_sketch_add(&sketch, ranks.q.ranks[id].hash, IDS);
    tsri_ranks_touch(&ranks, id);
}

static uint64_t denied[2]; /* by id */

static int may(void *arg, uint32_t id)
{
    CHECK(arg == denied);
    return !(denied[id / 64] >> id % 64 & 1);
}

static uint32_t evict(void)
{
    uint32_t id = tsri_ranks_victim(&ranks, may, denied);
    if (id != TSRI_POLICY_NONE) tsri_queues_remove(&ranks.q, id);
    return id;
}

TEST(a_window_of_everything_is_lru)
{
    init(IDS);
    uint32_t last[IDS], now = 0;
    uint64_t seed = 3;
    for (uint32_t id = 0; id < IDS; id++) {
        insert(id, id, 4);
        last[id] = now++;
    }
    for (uint32_t step = 0; step < 3000; step++) {
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t id = (uint32_t)(test_rand(&seed) % IDS);
            use(id);
            last[id] = now++;
        }
        uint32_t id = evict();
        for (uint32_t other = 0; other < IDS; other++)
            CHECK(last[id] <= last[other]);
        insert(id, 1000 + step, 4);
        last[id] = now++;
    }
    fini();
}

TEST(with_a_small_window_a_scan_passes_through)
{
    init(10);
    for (uint32_t id = 0; id < IDS; id++)
        insert(id, id, 4);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t id = 0; id < 80; id++)
            use(id);
    for (uint32_t i = 0; i < 500; i++) {
        uint32_t id = evict();
        CHECK(id >= 80);
        insert(id, 1000 + i, 4);
    }
    fini();
}

TEST(who_is_used_more_than_the_one_that_would_leave_stays)
{
    init(10);
    for (uint32_t id = 0; id < IDS; id++)
        insert(id, id, 4);
    for (uint32_t i = 0; i < 5; i++) /* a newcomer that is used at once, in the window */
        use(95);
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t id = evict();
        CHECK(id != 95);
        insert(id, 2000 + i, 4);
    }
    CHECK(ranks.q.ranks[95].queue != TSRI_RECENT);
    fini();
}

TEST(what_a_use_saves_counts_as_much_as_how_often)
{
    init(10);
    for (uint32_t id = 0; id < IDS; id++)
        insert(id, id, id < 20 ? 6 : 4);
    /* All were used once, the first 20 are worth four times as much; newcomers used twice push out
     * the others only. */
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t id = evict();
        CHECK(id >= 20);
        insert(id, 3000 + i, 4);
        use(id);
    }
    fini();
}

TEST(who_was_protected_falls_back_when_others_are_used)
{
    init(10);
    for (uint32_t id = 0; id < IDS; id++)
        insert(id, id, 4);
    for (uint32_t i = 0; i < 3; i++) /* by then the main part is filled */
        insert(evict(), 500 + i, 4);
    for (uint32_t id = 0; id < IDS; id++)
        if (ranks.q.ranks[id].queue != TSRI_RECENT) use(id);
    CHECK(ranks.q.queues[TSRI_PROTECTED].n > 60);
    CHECK(ranks.q.queues[TSRI_PROTECTED].n <= 72); /* 80 hundredths of 90 */
    CHECK(ranks.q.queues[TSRI_PROBATION].n >= 18);
    fini();
}

TEST(refresh_changes_the_order_and_nothing_else)
{
    init(IDS);
    for (uint32_t id = 0; id < 10; id++)
        insert(id, id, 4);
    tsri_ranks_refresh(&ranks, 0);
    CHECK_INT(ranks.q.ranks[0].queue, TSRI_RECENT);
    CHECK_INT(tsri_sketch_count(&sketch, ranks.q.ranks[0].hash), 1);
    CHECK_INT(evict(), 1);
    fini();
}

TEST(another_window_takes_effect_soon)
{
    init(IDS);
    for (uint32_t id = 0; id < IDS; id++)
        insert(id, id, 4);
    ranks.window = 10;
    insert(evict(), 500, 4);
    insert(evict(), 501, 4);
    CHECK(ranks.q.queues[TSRI_RECENT].n <= 11);
    /* And a larger one again: the main part gives, until both are as they should be. */
    ranks.window = 60;
    for (uint32_t i = 0; i < 70; i++)
        insert(evict(), 600 + i, 4);
    CHECK(ranks.q.queues[TSRI_RECENT].n >= 59);
    fini();
}

TEST(who_may_not_go_is_passed_over)
{
    init(10);
    for (uint32_t id = 0; id < IDS; id++)
        insert(id, id, 4);
    denied[0] = denied[1] = UINT64_MAX;
    CHECK_INT(evict(), TSRI_POLICY_NONE);
    for (uint32_t id = 0; id < IDS; id++) {
        denied[0] = denied[1] = UINT64_MAX;
        denied[id / 64] &= ~((uint64_t)1 << id % 64);
        CHECK_INT(evict(), id);
        insert(id, id, 4);
    }
    denied[0] = denied[1] = 0;
    fini();
}

int main(void)
{
    RUN(a_window_of_everything_is_lru);
    RUN(with_a_small_window_a_scan_passes_through);
    RUN(who_is_used_more_than_the_one_that_would_leave_stays);
    RUN(what_a_use_saves_counts_as_much_as_how_often);
    RUN(who_was_protected_falls_back_when_others_are_used);
    RUN(refresh_changes_the_order_and_nothing_else);
    RUN(another_window_takes_effect_soon);
    RUN(who_may_not_go_is_passed_over);
    return test_end();
}
