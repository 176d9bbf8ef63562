/* fake_tier.h - tiers for tests. mem_tier is the reference: it keeps deep copies in memory and does
 * what tier.h says, plainly. fake_tier wraps any tier and makes it slow, faulty, corrupting or
 * stopped at a gate, and counts. null_tier has no room and nothing in it. */
#ifndef TSRI_FAKE_TIER_H
#define TSRI_FAKE_TIER_H

#include <tessera/tier.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The reference. env.arg: NULL, or a struct mem_tier_store that outlives the instance, so that a
 * second open finds what was put. */
extern const struct tsr_tier_ops mem_tier;
struct mem_tier_item;
struct mem_tier_store {
    pthread_mutex_t lock;
    struct mem_tier_item *items;
    uint64_t bytes_max; /* 0: no limit; beyond it TSR_EFULL */
    uint64_t bytes_used, n_items, next_loc;
    uint64_t read_bytes, written_bytes;
};
void mem_tier_store_init(struct mem_tier_store *s, uint64_t bytes_max);
void mem_tier_store_fini(struct mem_tier_store *s);
/* Flips one bit of an entry's stored KV or tokens; false when there is no such key. */
bool mem_tier_store_damage(struct mem_tier_store *s, const struct tsr_key *key, uint64_t bit);

/* Refuses every put with TSR_EFULL, misses every get. */
extern const struct tsr_tier_ops null_tier;

enum fake_call {
    FAKE_PUT = 1,
    FAKE_GET = 2,
    FAKE_DROP = 4,
    FAKE_FLUSH = 8,
    FAKE_CONTAINS = 16,
    FAKE_SCAN = 32,
    FAKE_ALL = 63
};

/* A wrapper over any tier, most often mem_tier. env.arg of fake_tier is one of these; it must outlive
 * the instance. Every field may be changed while it runs. */
struct fake_tier_plan {
    const struct tsr_tier_ops *inner; /* required */
    void *inner_arg;
    struct mem_tier_store mem; /* what mem_tier has, if it is the inner one; ends with the plan */
    /* slow: waited before each call of these kinds, and before each layer of a get */
    _Atomic uint32_t delay_us, delay_calls, layer_delay_us;
    /* faulty: the fail_nth-th call (from 1) of the kinds in fail_calls fails with fail_error; then
     * fail_again of the calls after it as well */
    _Atomic uint32_t fail_nth, fail_again, fail_calls;
    _Atomic int fail_error;
    /* gate: calls of these kinds wait while it is shut (fake_tier_gate) */
    _Atomic uint32_t gate_calls;
    bool gate_shut;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint32_t n_waiting;
    /* counted: calls, and entries they were about */
    _Atomic uint64_t n_calls, n_puts, n_gets, n_drops, n_flushes, n_contains, n_scans;
    _Atomic uint32_t n_counted;        /* calls that fail_nth has seen */
    _Atomic uint32_t n_now, n_now_max; /* calls inside at once */
};
extern const struct tsr_tier_ops fake_tier;
void fake_tier_plan_init(struct fake_tier_plan *p); /* over mem_tier with p->mem */
void fake_tier_plan_init_over(struct fake_tier_plan *p, const struct tsr_tier_ops *inner,
                              void *arg);
void fake_tier_plan_fini(struct fake_tier_plan *p);
/* Starts counting anew: the nth call of these kinds from now on fails with error, and `again` more.
 */
void fake_tier_fail(struct fake_tier_plan *p, uint32_t calls, uint32_t nth, uint32_t again,
                    int error);
/* Shuts (calls != 0) or opens (0) the gate. */
void fake_tier_gate(struct fake_tier_plan *p, uint32_t calls);
/* Waits until n calls stand at the gate. */
void fake_tier_gate_wait(struct fake_tier_plan *p, uint32_t n);

#endif
