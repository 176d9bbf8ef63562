/* policy.c - the built-in eviction policies, by name. */
#include "cache/cache.h"

static const struct tsr_policy_ops *const policies[] = {&tsri_policy_lru};

const struct tsr_policy_ops *tsri_policy_find(const char *name)
{
    for (size_t i = 0; i < TSRI_COUNT(policies); i++)
        if (strcmp(policies[i]->name, name) == 0) return policies[i];
    return NULL;
}
