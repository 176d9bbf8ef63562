/* cache_sim.h - replays a trace through an eviction policy in a cache that is only counted: no KV,
 * no threads, the rules of the real one. A request first asks (what it finds is in use until the
 * request ends), then stores what was missing. Blocks of a chain go leaves first, and a block
 * counts as found only behind all those before it. Tests and benches only. */
#ifndef TSRI_CACHE_SIM_H
#define TSRI_CACHE_SIM_H

#include "support/trace.h"

#include "policy/policy.h"

/* A piece takes a unit for each 16 tokens or part of them. */
#define SIM_UNIT_TOKENS 16u

struct sim_result {
    uint64_t tokens_asked, tokens_reused;
    uint64_t units_stored, n_evicted;
};

static inline double sim_rate(const struct sim_result *r)
{
    return r->tokens_asked ? (double)r->tokens_reused / (double)r->tokens_asked : 0;
}

/* Units that all pieces asked for take together. */
uint64_t sim_footprint(const struct trace *t);
struct sim_result sim_run(const struct trace *t, const struct tsri_policy_ops *ops,
                          uint64_t capacity);
/* What could be reached by who knows the future: whatever is needed again last goes first, and what
 * is needed later than all of that, or never, is not stored. Close to the optimum, which for sizes
 * that differ is hard to find. */
struct sim_result sim_belady(const struct trace *t, uint64_t capacity);

#endif
