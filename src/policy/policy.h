/* policy.h - the policies that come with Tessera; what a policy is, policy.h in include/ says. */
#ifndef TSRI_POLICY_H
#define TSRI_POLICY_H

#include "base/base.h"

#include <tessera/policy.h>

extern const struct tsr_policy_ops tsri_policy_lru, tsri_policy_s3fifo, tsri_policy_adaptive;
/* Built-in policies, by name. */
const struct tsr_policy_ops *tsri_policy_find(const char *name);
void tsri_policy_refresh(struct tsr_policy *policy, const uint32_t *ids, size_t n);

#endif
