/* ranks.c - the order of one cache, real or shadow. Newcomers live in the window, the most recent
 * last. Who gets to the window's old end moves on to the main part if that has room, or if it is
 * worth more than the one that would leave the main part for it: used more often lately (the sketch
 * knows, also about those that come back after they were evicted), times what a use saves per unit.
 * Else it goes itself. The main part has two queues: who is used there again is protected, and
 * falls back on probation when others are used more. (Einziger, Friedman and Manes, "TinyLFU: a
 * highly efficient cache admission policy", ACM ToS 2017.)
 *
 * A window of the whole capacity makes this plain LRU; a small one keeps only what is asked for
 * again and again. shadow.c finds out which is better.
 *
 * Chains: a block is used whenever one behind it is, and touched after it, so it is neither counted
 * less nor older; the cache lets only leaves go. An entry that is asked for while it may not go
 * moves to the recent end of its queue, as in lru.c. */
#include "policy/ranks.h"

/* Of the main part, in hundredths. */
#define PROTECTED_SHARE 80u
/* Entries that one call moves from queue to queue, or asks for in the main part before it turns to
 * the window: after a new window many are in the wrong place, and nobody should wait for all. */
#define MOVES_MAX 64u
#define LOOKS_MAX 32u

static uint64_t main_capacity(const struct tsri_ranks *r)
{
    return r->capacity > r->window ? r->capacity - r->window : 0;
}

static uint64_t main_units(const struct tsri_ranks *r)
{
    return r->q.queues[TSRI_PROBATION].units + r->q.queues[TSRI_PROTECTED].units;
}

/* Who is protected beyond the share goes back on probation. */
static void balance(struct tsri_ranks *r)
{
    const struct tsri_queue *q = &r->q.queues[TSRI_PROTECTED];
    uint64_t units_max = main_capacity(r) * PROTECTED_SHARE / 100;
    for (uint32_t i = 0; i < MOVES_MAX && q->n && q->units > units_max; i++)
        tsri_queues_move(&r->q, q->oldest, TSRI_PROBATION);
}

void tsri_ranks_touch(struct tsri_ranks *r, uint32_t id)
{
    bool recent = r->q.ranks[id].queue == TSRI_RECENT;
    tsri_queues_move(&r->q, id, recent ? TSRI_RECENT : TSRI_PROTECTED);
    if (!recent) balance(r);
}

void tsri_ranks_refresh(struct tsri_ranks *r, uint32_t id)
{
    tsri_queues_move(&r->q, id, r->q.ranks[id].queue);
}

/* Uses lately times what one saves per unit. */
static uint32_t worth(const struct tsri_ranks *r, uint32_t id)
{
    struct tsri_rank_mark m = tsri_queues_mark(&r->q, id);
    return tsri_sketch_count(r->sketch, m.hash) << m.tag;
}

/* The oldest of a queue that may go; asks for *left at most. The others move to the recent end of
 * their queue, or from the window to the main part: mostly they are blocks whose leaves have come
 * there before them. */
static uint32_t oldest_that_may(struct tsri_ranks *r, uint32_t queue, uint32_t *left,
                                tsri_policy_may_fn may, void *arg)
{
    while (*left) {
        uint32_t id = r->q.queues[queue].oldest;
        --*left;
        if (may(arg, id)) return id;
        tsri_queues_move(&r->q, id, queue == TSRI_RECENT ? TSRI_PROBATION : queue);
    }
    return TSRI_POLICY_NONE;
}

/* One who would leave the main part; looks at `left` entries of each queue, oldest first. */
static uint32_t main_victim(struct tsri_ranks *r, uint32_t left[2], tsri_policy_may_fn may,
                            void *arg)
{
    uint32_t id = oldest_that_may(r, TSRI_PROBATION, &left[0], may, arg);
    if (id == TSRI_POLICY_NONE) id = oldest_that_may(r, TSRI_PROTECTED, &left[1], may, arg);
    return id;
}

/* The old end of the window moves on as long as the main part has room. */
static void fill_main(struct tsri_ranks *r)
{
    const struct tsri_queue *recent = &r->q.queues[TSRI_RECENT];
    for (uint32_t i = 0; i < MOVES_MAX && recent->n; i++) {
        uint32_t units = tsri_mark_units(r->q.ranks[recent->oldest].size);
        if (main_units(r) + units > main_capacity(r)) return;
        tsri_queues_move(&r->q, recent->oldest, TSRI_PROBATION);
    }
}

uint32_t tsri_ranks_victim(struct tsri_ranks *r, tsri_policy_may_fn may, void *arg)
{
    balance(r);
    fill_main(r);
    const struct tsri_queue *q = r->q.queues;
    uint32_t n[2] = {q[TSRI_PROBATION].n, q[TSRI_PROTECTED].n};
    uint32_t looks[2] = {tsri_min_u32(n[0], LOOKS_MAX), tsri_min_u32(n[1], LOOKS_MAX)};
    uint32_t rest[2] = {n[0] - looks[0], n[1] - looks[1]};
    uint32_t victim = main_victim(r, looks, may, arg);
    if (victim != TSRI_POLICY_NONE && main_units(r) > main_capacity(r)) return victim;
    uint32_t left = q[TSRI_RECENT].n;
    uint32_t candidate = oldest_that_may(r, TSRI_RECENT, &left, may, arg);
    if (candidate == TSRI_POLICY_NONE)
        return victim != TSRI_POLICY_NONE ? victim : main_victim(r, rest, may, arg);
    if (victim == TSRI_POLICY_NONE || worth(r, candidate) <= worth(r, victim)) return candidate;
    tsri_queues_move(&r->q, candidate, TSRI_PROBATION);
    return victim;
}
