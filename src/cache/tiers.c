/* tiers.c - which tiers stand below host memory, in which order, and how each is used: those that
 * the configuration names (disk_*, disk2_*, redis_*, s3_*) and those that the program has attached
 * to it. Reads the configuration, opens nothing. */
#include "cache/manager.h"

/* Every tier that is part of the library, fastest first. */
static const struct tsr_tier_ops *const built_in[] = {
    &tsri_tier_disk,
    &tsri_tier_disk2,
#ifdef TSRI_HAVE_REDIS
    &tsri_tier_redis,
#endif
#ifdef TSRI_HAVE_S3
    &tsri_tier_s3,
#endif
};

const struct tsr_tier_ops *tsri_tier_find(const char *name)
{
    for (size_t i = 0; i < TSRI_COUNT(built_in); i++)
        if (strcmp(built_in[i]->name, name) == 0) return built_in[i];
    return NULL;
}

/* Built-in tiers and attached ones together, before their order is known. */
#define CANDIDATES_MAX (TSRI_ATTACHED_MAX + 4u)

struct candidates {
    struct tsri_tier_plan plans[CANDIDATES_MAX];
    bool taken[CANDIDATES_MAX];
    uint32_t n;
};

static int add_built_in(struct candidates *all, const struct tsri_tier_plan *plan)
{
    struct tsri_tier_plan *p = &all->plans[all->n];
    *p = *plan;
    p->ops = tsri_tier_find(p->name);
    if (!p->ops) return tsri_fail(TSR_EUNSUP, "this build has no %s tier", p->name);
    all->n++;
    return 0;
}

static int find_candidates(const struct tsr_config *cfg, struct candidates *all)
{
    const struct tsri_options *o = tsri_config_options(cfg);
    int e = 0;
    if (o->disk_enabled && o->disk_path[0])
        e = add_built_in(all, &(struct tsri_tier_plan){.name = "disk",
                                                       .policy = tsr_config_get(cfg, "disk_policy"),
                                                       .write = o->disk_write,
                                                       .admission = o->disk_admission});
    if (!e && o->disk_enabled && o->disk2_path[0])
        e = add_built_in(all,
                         &(struct tsri_tier_plan){.name = "disk2",
                                                  .policy = tsr_config_get(cfg, "disk2_policy"),
                                                  .write = o->disk2_write,
                                                  .admission = o->disk2_admission});
    if (!e && o->redis_address[0])
        e = add_built_in(all, &(struct tsri_tier_plan){.name = "redis",
                                                       .policy = "lru",
                                                       .write = o->redis_write,
                                                       .admission = o->redis_admission});
    if (!e && o->s3_bucket[0])
        e = add_built_in(all, &(struct tsri_tier_plan){.name = "s3",
                                                       .policy = "lru",
                                                       .write = o->s3_write,
                                                       .admission = o->s3_admission});
    const struct tsri_attached *attached;
    size_t n = e ? 0 : tsri_config_attached(cfg, &attached);
    for (size_t i = 0; i < n; i++) {
        const struct tsr_tier_ops *ops = attached[i].ops;
        all->plans[all->n++] =
            (struct tsri_tier_plan){.name = ops->name,
                                    .ops = ops,
                                    .arg = attached[i].arg,
                                    .policy = tsr_config_get(cfg, "attached_policy"),
                                    .write = o->attached_write,
                                    .admission = o->attached_admission};
    }
    return e;
}

/* Of several with one name (a program may attach the same tier twice) the first not yet taken. */
static struct tsri_tier_plan *take(struct candidates *all, const char *name, size_t n)
{
    for (uint32_t i = 0; i < all->n; i++) {
        const char *has = all->plans[i].name;
        if (all->taken[i] || strlen(has) != n || memcmp(has, name, n) != 0) continue;
        all->taken[i] = true;
        return &all->plans[i];
    }
    return NULL;
}

int tsri_tiers_plan(const struct tsr_config *cfg, struct tsri_tier_plan plans[TSRI_LOWER_MAX])
{
    struct candidates all = {.n = 0};
    int e = find_candidates(cfg, &all);
    if (e) return e;
    const char *order = tsri_config_options(cfg)->tiers;
    uint32_t n = 0;
    if (!order[0]) {
        if (all.n > TSRI_LOWER_MAX)
            return tsri_fail(TSR_ERANGE, "%u tiers below host memory, limit %u", all.n,
                             TSRI_LOWER_MAX);
        memcpy(plans, all.plans, all.n * sizeof plans[0]);
        return (int)all.n;
    }
    for (const char *at = order + strspn(order, ", "); *at; at += strspn(at, ", ")) {
        size_t len = strcspn(at, ", ");
        const struct tsri_tier_plan *p = take(&all, at, len);
        if (!p)
            return tsri_fail(TSR_ECONFIG, "tiers: unknown tier %.*s, or its path is not set",
                             (int)len, at);
        if (n == TSRI_LOWER_MAX)
            return tsri_fail(TSR_ERANGE, "tiers: more than %u", TSRI_LOWER_MAX);
        plans[n++] = *p;
        at += len;
    }
    return (int)n;
}
