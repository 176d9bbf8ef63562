/* adaptive.c - the policy that finds out what its traffic is like. A window of recent entries and a
 * main part that admits by how often a key was used (ranks.c, sketch.c); shadows tell how large the
 * window should be, from a hundredth of the cache (documents that are retrieved again and again) to
 * all of it (conversations, where who spoke last speaks next: then it is LRU) (shadow.c).
 *
 * Costs count: uses are weighed by what one saves, the seconds to compute the entry again, per unit
 * of memory that it takes. Where nobody says how long that is, its tokens cost what others' do.
 *
 * The newcomer is never refused: it enters the window, and whoever is worth least leaves, which may
 * be the newcomer itself as soon as room is needed again. A store therefore always stores, and the
 * keys of a long prompt are all counted.
 *
 * 12 bytes an id and 1 for the sketch. */
#include "policy/ranks.h"

#include <math.h>

#define MEAN_OF 64.0     /* entries that a mean is of, about */
#define PEAK_FADES 1024u /* looks for a victim after which an old peak has lost two thirds */
#define WORTH_MIDDLE 4   /* the tag of an entry that is worth the mean; one more is worth twice */

struct adaptive {
    struct tsri_policy base; /* first */
    struct tsri_ranks ranks;
    struct tsri_sketch sketch;
    struct tsri_shadow shadow;
    uint64_t peak;              /* the most units that were in the cache lately */
    double token_s, unit_worth; /* means: seconds a token, and tokens of mean cost a unit */
};

static void adaptive_close(struct tsri_policy *policy)
{
    struct adaptive *p = (struct adaptive *)policy;
    tsri_shadow_fini(&p->shadow);
    tsri_sketch_fini(&p->sketch);
    tsri_queues_fini(&p->ranks.q);
    tsri_free(p);
}

static int adaptive_open(struct tsri_policy **out, const struct tsri_policy_env *env)
{
    struct adaptive *p = tsri_alloc(1, sizeof *p);
    if (!p) return TSR_ENOMEM;
    p->base.ops = &tsri_policy_adaptive;
    p->ranks.sketch = &p->sketch;
    int e = tsri_queues_init(&p->ranks.q, env->ids_max);
    if (e == 0) e = tsri_sketch_init(&p->sketch, env->ids_max);
    if (e == 0) e = tsri_shadow_init(&p->shadow, env->capacity, &p->sketch);
    if (e) {
        adaptive_close(&p->base);
        return e;
    }
    *out = &p->base;
    return 0;
}

/* ---- what an entry is worth ---- */

/* Takes x into a mean that forgets, and returns x relative to it. */
static double relative(double *mean, double x)
{
    *mean += *mean > 0 ? (x - *mean) / MEAN_OF : x;
    return x / *mean;
}

/* As the tag of a rank. */
static uint32_t worth_of(struct adaptive *p, const struct tsri_policy_item *item)
{
    double tokens = item->n_tokens ? item->n_tokens : 1, units = item->units ? item->units : 1;
    double cost = 1;
    if (item->cost_s > 0 && isfinite(item->cost_s))
        cost = relative(&p->token_s, (double)item->cost_s / tokens);
    double step = round(log2(relative(&p->unit_worth, cost * tokens / units))) + WORTH_MIDDLE;
    return step < 0 ? 0 : step > TSRI_TAG_MAX ? TSRI_TAG_MAX : (uint32_t)step;
}

/* ---- the policy ---- */

static void use(struct adaptive *p, struct tsri_rank_mark mark)
{
    tsri_sketch_add(&p->sketch, mark.hash, tsri_queues_n(&p->ranks.q));
    tsri_shadow_use(&p->shadow, mark);
}

static void adaptive_insert(struct tsri_policy *policy, uint32_t id,
                            const struct tsri_policy_item *item)
{
    struct adaptive *p = (struct adaptive *)policy;
    struct tsri_rank_mark mark = tsri_mark_make(item->hash, item->units, worth_of(p, item));
    tsri_queues_insert(&p->ranks.q, id, mark, TSRI_RECENT);
    uint64_t units = tsri_queues_units(&p->ranks.q);
    if (units > p->peak) p->peak = units;
    use(p, mark);
}

static void adaptive_touch(struct tsri_policy *policy, const uint32_t *ids, size_t n)
{
    struct adaptive *p = (struct adaptive *)policy;
    for (size_t i = 0; i < n; i++) {
        use(p, tsri_queues_mark(&p->ranks.q, ids[i]));
        tsri_ranks_touch(&p->ranks, ids[i]);
    }
}

static void adaptive_refresh(struct tsri_policy *policy, const uint32_t *ids, size_t n)
{
    struct adaptive *p = (struct adaptive *)policy;
    for (size_t i = 0; i < n; i++) {
        tsri_ranks_refresh(&p->ranks, ids[i]);
        tsri_shadow_refresh(&p->shadow, p->ranks.q.ranks[ids[i]].hash);
    }
}

static void adaptive_remove(struct tsri_policy *policy, uint32_t id)
{
    struct adaptive *p = (struct adaptive *)policy;
    tsri_queues_remove(&p->ranks.q, id);
}

/* The capacity is what is in the cache when somebody looks for a victim, whatever ran out: pages,
 * ids, or memory for tokens. Memory that a store has taken and not yet filled is missing then, so
 * the most of some time counts. */
static void measure(struct adaptive *p)
{
    p->peak -= (p->peak - tsri_queues_units(&p->ranks.q)) / PEAK_FADES;
    p->ranks.capacity = p->peak;
    p->ranks.window = p->peak * tsri_shadow_window(&p->shadow) / 100;
    uint64_t shadowed = p->shadow.capacity, step = shadowed / 16;
    if (p->peak + step < shadowed || p->peak > shadowed + step)
        tsri_shadow_resize(&p->shadow, p->peak);
}

static uint32_t adaptive_victim(struct tsri_policy *policy, tsri_policy_may_fn may, void *arg)
{
    struct adaptive *p = (struct adaptive *)policy;
    measure(p);
    return tsri_ranks_victim(&p->ranks, may, arg);
}

static size_t adaptive_order(struct tsri_policy *policy, uint32_t *ids, size_t ids_max)
{
    return tsri_queues_order(&((struct adaptive *)policy)->ranks.q, ids, ids_max);
}

const struct tsri_policy_ops tsri_policy_adaptive = {
    .name = "adaptive",
    .open = adaptive_open,
    .close = adaptive_close,
    .insert = adaptive_insert,
    .touch = adaptive_touch,
    .refresh = adaptive_refresh,
    .remove = adaptive_remove,
    .victim = adaptive_victim,
    .order = adaptive_order,
};
