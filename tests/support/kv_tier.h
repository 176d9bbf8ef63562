/* kv_tier.h - entries put into any tier, got and dropped by their seeds; every byte that comes back
 * is checked. */
#ifndef TSRI_KV_TIER_H
#define TSRI_KV_TIER_H

#include "support/kv_entry.h"

#define KIT_WRONG 1 /* a get that returned wrong bytes: the one thing that must never be */

struct tsr_tier_ref kv_tier_ref(const struct kv_shape *shape, uint64_t seed);

/* The io's result. */
int kv_tier_put(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed);
/* The io's result, or KIT_WRONG. deadline_ms 0: none. */
int kv_tier_get(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed,
                uint32_t deadline_ms);
int kv_tier_drop(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed);
bool kv_tier_has(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed);
/* Asks again and again until a get returns `result`; false after that many ms. */
bool kv_tier_until(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed, int result,
                   uint32_t ms);

/* Puts n entries, a multiple of 1000, as small as they get: where only their number matters. */
bool kv_tier_fill(struct tsr_tier *tier, uint32_t n);

#endif
