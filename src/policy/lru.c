/* lru.c - least recently used: a doubly linked list over ids, 8 bytes an entry. An entry that is
 * asked for while it may not go (pinned, leased, or with blocks behind it) is in use, and moves to
 * the recent end; so a scan does not meet it again and again. */
#include "policy/policy.h"

struct lru {
    struct tsri_policy base; /* first */
    struct tsri_region region;
    struct link {
        uint32_t prev, next;
    } * links;
    uint32_t oldest, newest, n;
    uint32_t ids_max;
};

static int lru_open(struct tsri_policy **out, const struct tsri_policy_env *env)
{
    struct lru *p = tsri_alloc(1, sizeof *p);
    if (!p) return TSR_ENOMEM;
    int e = tsri_region_init(&p->region, (size_t)env->ids_max * sizeof p->links[0]);
    if (e) {
        tsri_free(p);
        return e;
    }
    p->base.ops = &tsri_policy_lru;
    p->links = (struct link *)(void *)p->region.data;
    p->oldest = p->newest = TSRI_POLICY_NONE;
    p->ids_max = env->ids_max;
    *out = &p->base;
    return 0;
}

static void lru_close(struct tsri_policy *policy)
{
    struct lru *p = (struct lru *)policy;
    tsri_region_fini(&p->region);
    tsri_free(p);
}

static void list_remove(struct lru *p, uint32_t id)
{
    struct link *l = &p->links[id];
    if (l->prev != TSRI_POLICY_NONE)
        p->links[l->prev].next = l->next;
    else
        p->oldest = l->next;
    if (l->next != TSRI_POLICY_NONE)
        p->links[l->next].prev = l->prev;
    else
        p->newest = l->prev;
}

static void list_add(struct lru *p, uint32_t id)
{
    p->links[id] = (struct link){p->newest, TSRI_POLICY_NONE};
    if (p->newest != TSRI_POLICY_NONE)
        p->links[p->newest].next = id;
    else
        p->oldest = id;
    p->newest = id;
}

static void lru_insert(struct tsri_policy *policy, uint32_t id, const struct tsri_policy_item *item)
{
    struct lru *p = (struct lru *)policy;
    (void)item;
    TSR_ASSERT(id < p->ids_max);
    list_add(p, id);
    p->n++;
}

static void lru_touch(struct tsri_policy *policy, const uint32_t *ids, size_t n)
{
    struct lru *p = (struct lru *)policy;
    for (size_t i = 0; i < n; i++) {
        if (p->newest == ids[i]) continue;
        list_remove(p, ids[i]);
        list_add(p, ids[i]);
    }
}

static void lru_remove(struct tsri_policy *policy, uint32_t id)
{
    struct lru *p = (struct lru *)policy;
    list_remove(p, id);
    p->n--;
}

static uint32_t lru_victim(struct tsri_policy *policy, tsri_policy_may_fn may, void *arg)
{
    struct lru *p = (struct lru *)policy;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t id = p->oldest;
        if (may(arg, id)) return id;
        lru_touch(policy, &id, 1);
    }
    return TSRI_POLICY_NONE;
}

static size_t lru_order(struct tsri_policy *policy, uint32_t *ids, size_t ids_max)
{
    struct lru *p = (struct lru *)policy;
    size_t n = 0;
    for (uint32_t id = p->oldest; id != TSRI_POLICY_NONE && n < ids_max; id = p->links[id].next)
        ids[n++] = id;
    return n;
}

const struct tsri_policy_ops tsri_policy_lru = {
    .name = "lru",
    .open = lru_open,
    .close = lru_close,
    .insert = lru_insert,
    .touch = lru_touch,
    .remove = lru_remove,
    .victim = lru_victim,
    .order = lru_order,
};
