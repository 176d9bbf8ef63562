/* policy.c - the built-in eviction policies, by name, and the defaults of what they may leave out.
 */
#include "policy/policy.h"

static const struct tsri_policy_ops *const policies[] = {&tsri_policy_lru, &tsri_policy_s3fifo,
                                                         &tsri_policy_adaptive};

const struct tsri_policy_ops *tsri_policy_find(const char *name)
{
    for (size_t i = 0; i < TSRI_COUNT(policies); i++)
        if (strcmp(policies[i]->name, name) == 0) return policies[i];
    return NULL;
}

void tsri_policy_refresh(struct tsri_policy *policy, const uint32_t *ids, size_t n)
{
    const struct tsri_policy_ops *ops = policy->ops;
    (ops->refresh ? ops->refresh : ops->touch)(policy, ids, n);
}
