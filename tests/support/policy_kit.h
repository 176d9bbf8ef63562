/* policy_kit.h - an eviction policy outside a cache: open it, insert entries of one unit, take its
 * victims. For tests. */
#ifndef TSRI_POLICY_KIT_H
#define TSRI_POLICY_KIT_H

#include "policy/policy.h"

struct tsri_policy *policy_open(const struct tsri_policy_ops *ops, uint32_t ids_max,
                                uint64_t capacity);
/* One unit, 64 tokens, no parent; `key` becomes the hash of the key. */
void policy_insert(struct tsri_policy *p, uint32_t id, uint64_t key);
/* The next victim, removed, when all may go; TSRI_POLICY_NONE when it is empty. */
uint32_t policy_evict(struct tsri_policy *p);
/* Hashes of keys as a cache makes them: spread over all bits. */
uint64_t policy_hash(uint64_t key);

#endif
