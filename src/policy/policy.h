/* policy.h - eviction policies, chosen by name (option `policy`).
 *
 * A policy ranks the entries of one tier. It sees ids and sizes, never KV. Which entries may be
 * evicted at all (not pinned, not leased, no block after them) is decided by the cache and asked
 * through a callback.
 *
 * Threads: every call is made under the cache's policy lock, one at a time.
 * Memory:  all of it is allocated in open; no other call may allocate or fail.
 * Errors:  only open can fail.
 */
#ifndef TSRI_POLICY_H
#define TSRI_POLICY_H

#include "base/base.h"

#define TSRI_POLICY_NONE UINT32_MAX

struct tsri_policy_env {
    uint32_t ids_max;  /* ids are below this */
    uint64_t capacity; /* in units of item sizes; 0: not known */
    const struct tsr_config *config;
};

struct tsri_policy_item {
    uint64_t hash;  /* of the key: the same text has the same hash after it was evicted */
    uint32_t units; /* how much of the capacity it takes */
    uint32_t n_tokens;
    uint32_t parent; /* id of the block before it, or TSRI_POLICY_NONE */
    float cost_s;    /* seconds to compute it again; 0: not known */
};

/* Every implementation's instance begins with this. */
struct tsri_policy {
    const struct tsri_policy_ops *ops;
};

/* May this entry go now? */
typedef int (*tsri_policy_may_fn)(void *arg, uint32_t id);

struct tsri_policy_ops {
    const char *name;
    int (*open)(struct tsri_policy **out, const struct tsri_policy_env *env);
    void (*close)(struct tsri_policy *policy);
    void (*insert)(struct tsri_policy *policy, uint32_t id, const struct tsri_policy_item *item);
    /* Used again, in this order; the last one is the most recent. Chains are touched leaf first, so
     * that a block never ranks below one behind it. */
    void (*touch)(struct tsri_policy *policy, const uint32_t *ids, size_t n);
    void (*remove)(struct tsri_policy *policy, uint32_t id);
    /* The next to go among those that may, or TSRI_POLICY_NONE; it stays until remove. Must end
     * after asking about each entry at most once. */
    uint32_t (*victim)(struct tsri_policy *policy, tsri_policy_may_fn may, void *arg);
    /* (optional) A store put new blocks behind a chain: all of it, the new ones included, leaf
     * first. Nothing of it was used once more, only the order is to be as after a touch. Default:
     * touch. */
    void (*refresh)(struct tsri_policy *policy, const uint32_t *ids, size_t n);
    /* (optional) For tests: ids in the order they would go; returns how many. */
    size_t (*order)(struct tsri_policy *policy, uint32_t *ids, size_t ids_max);
};

/* ---- the built-in ones ---- */

extern const struct tsri_policy_ops tsri_policy_lru, tsri_policy_s3fifo, tsri_policy_adaptive;
/* NULL: there is none with this name. */
const struct tsri_policy_ops *tsri_policy_find(const char *name);
void tsri_policy_refresh(struct tsri_policy *policy, const uint32_t *ids, size_t n);

#endif
