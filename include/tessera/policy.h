/* policy.h - for those who write an eviction policy; users of the cache choose one by name (option
 * `policy`).
 *
 * A policy ranks the entries of one tier. It sees ids and sizes, never KV. Which entries may go at
 * all (not pinned, not leased, no block behind them) is the cache's business and asked through a
 * callback.
 *
 * Threads: every call is made under the cache's policy lock, one at a time.
 * Memory:  all of it is taken in open; no other call may allocate or fail.
 * Errors:  only open can fail.
 */
#ifndef TESSERA_POLICY_H
#define TESSERA_POLICY_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSR_POLICY_ABI 1u
#define TSR_POLICY_NONE UINT32_MAX

struct tsr_policy_env {
    size_t size;
    uint32_t ids_max; /* ids are below this */
    uint32_t reserved;
    uint64_t capacity; /* in units of item sizes; 0: not known */
    const struct tsr_config *config;
};

struct tsr_policy_item {
    uint64_t hash;  /* of the key: the same text has the same hash after it was evicted */
    uint32_t units; /* how much of the capacity it takes */
    uint32_t n_tokens;
    uint32_t parent; /* id of the block before it, or TSR_POLICY_NONE */
    float cost_s;    /* seconds to compute it again; 0: not known */
};

/* Every implementation's instance begins with this. */
struct tsr_policy {
    const struct tsr_policy_ops *ops;
};

/* May this entry go now? */
typedef int (*tsr_policy_may_fn)(void *arg, uint32_t id);

struct tsr_policy_ops {
    uint32_t abi; /* TSR_POLICY_ABI */
    const char *name;
    int (*open)(struct tsr_policy **out, const struct tsr_policy_env *env);
    void (*close)(struct tsr_policy *policy);
    void (*insert)(struct tsr_policy *policy, uint32_t id, const struct tsr_policy_item *item);
    /* Used again, in this order; the last one is the most recent. Chains are touched leaf first, so
     * that a block never ranks below one behind it. */
    void (*touch)(struct tsr_policy *policy, const uint32_t *ids, size_t n);
    void (*remove)(struct tsr_policy *policy, uint32_t id);
    /* The next to go among those that may, or TSR_POLICY_NONE; it stays until remove. Must end
     * after asking about each entry at most once. */
    uint32_t (*victim)(struct tsr_policy *policy, tsr_policy_may_fn may, void *arg);
    /* (optional) A store put new blocks behind a chain: all of it, the new ones included, leaf
     * first. Nothing of it was used once more, only the order is to be as after a touch. Default:
     * touch. */
    void (*refresh)(struct tsr_policy *policy, const uint32_t *ids, size_t n);
    /* (optional) ids in the order they would go; returns how many. Default: 0. */
    size_t (*order)(struct tsr_policy *policy, uint32_t *ids, size_t ids_max);
    /* members above belong to abi 1; append below, never reorder */
};

#ifdef __cplusplus
}
#endif
#endif
