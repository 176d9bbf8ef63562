/* holds.h - pages that clients keep in their place by leases and half-written stores, bounded.
 *
 * Threads: any; the lock is a leaf.
 * Memory:  the tables are reserved at init.
 * Errors:  only init fails; a false says that the limit is reached.
 */
#ifndef TSRI_HOLDS_H
#define TSRI_HOLDS_H

#include "base/base.h"

#include <tessera/tessera.h>

#include <pthread.h>

/* Of a cache that other processes use; by_id NULL: of one that none do, and nothing is counted. */
struct tsri_holds {
    pthread_mutex_t lock; /* a leaf */
    struct tsri_region region;
    uint32_t *by_id;              /* how many hold an entry */
    uint64_t n_pages, pages_max;  /* of the pool, and what of it may be held */
    uint64_t pages, pages_pinned; /* held now, each once; those that tsr_space_pin holds */
};
/* One client. */
struct tsri_holder {
    struct tsr_cache *cache;
    struct tsri_region region;
    struct tsri_held *slots; /* a hash table by entry */
    uint32_t bits;
    uint64_t pages;
};
TSR_MUST int tsri_holds_init(struct tsri_holds *h, uint32_t n_pages, uint32_t ids_max);
void tsri_holds_fini(struct tsri_holds *h);
TSR_MUST int tsri_holder_init(struct tsri_holder *x, struct tsr_cache *c, uint32_t entries_max);
void tsri_holder_fini(struct tsri_holder *x);
/* Entries that the caller has pinned, and has pinned still when it lets them go; the same one as
 * often as it likes. All or none; false: it holds too much. */
TSR_MUST bool tsri_hold(struct tsri_holder *x, const uint32_t *ids, uint32_t n);
void tsri_unhold(struct tsri_holder *x, const uint32_t *ids, uint32_t n);
/* For good, in nobody's name: half of the pool at most. */
TSR_MUST bool tsri_hold_pinned(struct tsr_cache *c, uint32_t id);
void tsri_unhold_pinned(struct tsr_cache *c, uint32_t id);

#endif
