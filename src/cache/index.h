/* index.h - from a key to an entry: a hash table of cache lines with seven slots each.
 *
 * Threads: found without a lock; written under cache->lock.
 * Memory:  reserved at init for all keys there may be.
 */
#ifndef TSRI_INDEX_H
#define TSRI_INDEX_H

#include "cache/entries.h"

#define TSRI_LINE_SLOTS 7u
struct tsri_line {
    _Alignas(TSRI_CACHE_LINE) _Atomic uint64_t slots[TSRI_LINE_SLOTS];
    _Atomic uint32_t n_passed; /* keys that went on from here because the line was full */
};
struct tsri_index {
    struct tsri_region region;
    struct tsri_line *lines;
    uint32_t n_lines;
};
TSR_MUST int tsri_index_init(struct tsri_index *x, uint32_t keys_max);
void tsri_index_fini(struct tsri_index *x);
/* Lock-free. The entry may be gone by the time the caller looks: pin it, then compare the key
 * again. */
uint32_t tsri_index_find(const struct tsri_index *x, const struct tsri_entry *entries,
                         struct tsri_key key);
/* For batches: an id that may have the key, its entry on the way to the cache; compare before use.
 */
uint32_t tsri_index_nominate(const struct tsri_index *x, const struct tsri_entry *entries,
                             struct tsri_key key);
void tsri_index_insert(struct tsri_index *x, struct tsri_key key, uint32_t id);
void tsri_index_remove(struct tsri_index *x, struct tsri_key key, uint32_t id);
/* The line where a key would like to live. */
static inline uint32_t tsri_index_home(const struct tsri_index *x, struct tsri_key key)
{
    return (uint32_t)((key.lo >> 32) * x->n_lines >> 32);
}
static inline void tsri_index_prefetch(const struct tsri_index *x, struct tsri_key key)
{
    __builtin_prefetch(&x->lines[tsri_index_home(x, key)]);
}

#endif
