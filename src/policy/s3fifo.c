/* s3fifo.c - three queues: newcomers pass through a small first-in first-out queue, those used
 * there more than once go on to the main one, and ghosts remember what left the small queue lately,
 * so that whoever comes back goes to the main queue at once. (Yang et al., "FIFO queues are all you
 * need for cache eviction", SOSP 2023.) Sizes vary here, so shares are counted in units.
 *
 * 12 bytes an id and 1 for the ghosts, of which there are at most as many as entries in the main
 * queue. An entry that is asked for while it may not go is in use: it moves to the recent end of
 * its queue, as in lru.c, and is passed over once. */
#include "policy/ranks.h"

#define SMALL_PERCENT 10u
#define USED_MAX 3u
#define BUSY 4u /* was asked for and may not go */
#define GHOST_WAYS 4u
#define GHOST_TICKS 64u /* of the time that a ghost lasts */

enum { SMALL, MAIN };

/* What is left of an entry: enough of its hash, and when it went. Mark 0: nothing. */
struct ghost {
    uint16_t mark, tick;
};

struct s3fifo {
    struct tsri_policy base; /* first */
    struct tsri_queues q;    /* a tag is how often the entry was used, or BUSY */
    struct tsri_region region;
    struct ghost *ghosts;
    uint32_t n_sets;
    uint32_t n_since_tick;
    uint16_t tick;
};

/* ---- ghosts ---- */

static struct ghost *ghost_set(struct s3fifo *p, uint32_t hash, uint16_t *mark)
{
    uint64_t mix = tsri_mark_mix(hash, 1);
    *mark = (uint16_t)(mix | 1);
    return &p->ghosts[(((mix >> 32) * p->n_sets) >> 32) * GHOST_WAYS];
}

/* The newest stands first in its set and pushes the oldest out. */
static void ghost_add(struct s3fifo *p, uint32_t hash)
{
    uint16_t mark;
    struct ghost *set = ghost_set(p, hash, &mark);
    memmove(set + 1, set, (GHOST_WAYS - 1) * sizeof *set);
    set[0] = (struct ghost){mark, p->tick};
    if ((uint64_t)++p->n_since_tick * GHOST_TICKS < p->q.queues[MAIN].n) return;
    p->n_since_tick = 0;
    p->tick++;
}

static bool ghost_take(struct s3fifo *p, uint32_t hash)
{
    uint16_t mark;
    struct ghost *set = ghost_set(p, hash, &mark);
    for (uint32_t i = 0; i < GHOST_WAYS; i++)
        if (set[i].mark == mark) {
            set[i].mark = 0;
            return (uint16_t)(p->tick - set[i].tick) <= GHOST_TICKS;
        }
    return false;
}

/* ---- the policy ---- */

static void s3fifo_close(struct tsri_policy *policy)
{
    struct s3fifo *p = (struct s3fifo *)policy;
    tsri_region_fini(&p->region);
    tsri_queues_fini(&p->q);
    tsri_free(p);
}

static int s3fifo_open(struct tsri_policy **out, const struct tsri_policy_env *env)
{
    struct s3fifo *p = tsri_alloc(1, sizeof *p);
    if (!p) return TSR_ENOMEM;
    p->base.ops = &tsri_policy_s3fifo;
    p->n_sets = env->ids_max / (GHOST_WAYS * (uint32_t)sizeof(struct ghost)) + 16;
    int e = tsri_queues_init(&p->q, env->ids_max);
    if (e == 0)
        e = tsri_region_init(&p->region, (size_t)p->n_sets * GHOST_WAYS * sizeof p->ghosts[0]);
    if (e) {
        s3fifo_close(&p->base);
        return e;
    }
    p->ghosts = (struct ghost *)(void *)p->region.data;
    *out = &p->base;
    return 0;
}

static void s3fifo_insert(struct tsri_policy *policy, uint32_t id,
                          const struct tsri_policy_item *item)
{
    struct s3fifo *p = (struct s3fifo *)policy;
    struct tsri_rank_mark mark = tsri_mark_make(item->hash, item->units, 0);
    tsri_queues_insert(&p->q, id, mark, ghost_take(p, mark.hash) ? MAIN : SMALL);
}

static void s3fifo_touch(struct tsri_policy *policy, const uint32_t *ids, size_t n)
{
    struct s3fifo *p = (struct s3fifo *)policy;
    for (size_t i = 0; i < n; i++) {
        uint32_t used = p->q.ranks[ids[i]].tag;
        tsri_queues_tag(&p->q, ids[i], used == BUSY ? 1 : tsri_min_u32(used + 1, USED_MAX));
    }
}

/* Blocks came in root first; they should go out leaf first. */
static void s3fifo_refresh(struct tsri_policy *policy, const uint32_t *ids, size_t n)
{
    struct s3fifo *p = (struct s3fifo *)policy;
    for (size_t i = 0; i < n; i++)
        tsri_queues_move(&p->q, ids[i], p->q.ranks[ids[i]].queue);
}

static void s3fifo_remove(struct tsri_policy *policy, uint32_t id)
{
    struct s3fifo *p = (struct s3fifo *)policy;
    tsri_queues_remove(&p->q, id);
    if (p->q.ranks[id].queue == SMALL) ghost_add(p, p->q.ranks[id].hash);
}

static void move(struct s3fifo *p, uint32_t id, uint32_t queue, uint32_t used)
{
    tsri_queues_tag(&p->q, id, used);
    tsri_queues_move(&p->q, id, queue);
}

/* One step at the old end of a queue; true: that one goes. In the last round those that were used
 * are asked for too. */
static bool step(struct s3fifo *p, uint32_t queue, bool last_round, tsri_policy_may_fn may,
                 void *arg)
{
    uint32_t id = p->q.queues[queue].oldest, used = p->q.ranks[id].tag;
    if (used == BUSY) {
        move(p, id, queue, 1);
    } else if (!last_round && queue == SMALL && used > 1) {
        move(p, id, MAIN, 0);
    } else if (!last_round && queue == MAIN && used > 0) {
        move(p, id, MAIN, used - 1);
    } else {
        if (may(arg, id)) return true;
        move(p, id, queue, BUSY);
    }
    return false;
}

static uint32_t s3fifo_victim(struct tsri_policy *policy, tsri_policy_may_fn may, void *arg)
{
    struct s3fifo *p = (struct s3fifo *)policy;
    const struct tsri_queue *queues = p->q.queues;
    /* Of what is there: when somebody asks, the cache is full, whatever it is that ran out. */
    uint64_t small_units = tsri_queues_units(&p->q) * SMALL_PERCENT / 100;
    for (uint32_t round = 0; round < 2; round++) {
        uint32_t left[2] = {queues[SMALL].n, queues[MAIN].n};
        for (;;) {
            uint32_t q = queues[SMALL].units > small_units ? SMALL : MAIN;
            if (left[q] == 0) q ^= 1u;
            if (left[q] == 0) break;
            left[q]--;
            if (step(p, q, round == 1, may, arg)) return queues[q].oldest;
        }
    }
    return TSRI_POLICY_NONE;
}

static size_t s3fifo_order(struct tsri_policy *policy, uint32_t *ids, size_t ids_max)
{
    return tsri_queues_order(&((struct s3fifo *)policy)->q, ids, ids_max);
}

const struct tsri_policy_ops tsri_policy_s3fifo = {
    .name = "s3fifo",
    .open = s3fifo_open,
    .close = s3fifo_close,
    .insert = s3fifo_insert,
    .touch = s3fifo_touch,
    .refresh = s3fifo_refresh,
    .remove = s3fifo_remove,
    .victim = s3fifo_victim,
    .order = s3fifo_order,
};
