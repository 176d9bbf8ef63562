/* policy_kit.c - see policy_kit.h. */
#include "support/policy_kit.h"

#include <stdio.h>
#include <stdlib.h>

struct tsri_policy *policy_open(const struct tsri_policy_ops *ops, uint32_t ids_max,
                                uint64_t capacity)
{
    struct tsri_policy *p = NULL;
    struct tsri_policy_env env = {.ids_max = ids_max, .capacity = capacity};
    if (ops->open(&p, &env) != 0) {
        fprintf(stderr, "policy_kit: %s does not open\n", ops->name);
        exit(1);
    }
    return p;
}

uint64_t policy_hash(uint64_t key)
{
    uint64_t x = (key + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void policy_insert(struct tsri_policy *p, uint32_t id, uint64_t key)
{
    struct tsri_policy_item item = {
        .hash = policy_hash(key), .units = 1, .n_tokens = 64, .parent = TSRI_POLICY_NONE};
    p->ops->insert(p, id, &item);
}

static int all_may(void *unused, uint32_t id)
{
    (void)unused;
    (void)id;
    return 1;
}

uint32_t policy_evict(struct tsri_policy *p)
{
    uint32_t id = p->ops->victim(p, all_may, NULL);
    if (id != TSRI_POLICY_NONE) p->ops->remove(p, id);
    return id;
}
