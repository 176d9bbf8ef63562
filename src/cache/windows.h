/* windows.h - which entries hold these 32 tokens: the table by which a text is found at any offset.
 *
 * Threads: read without a lock; written under cache->lock. What is found is nominated only: pin,
 *          then compare.
 * Memory:  the table is reserved at init; adding to a full one replaces what is in it, or adds
 *          nothing.
 */
#ifndef TSRI_WINDOWS_H
#define TSRI_WINDOWS_H

#include "base/base.h"
#include "chunk/chunk.h"

#include <tessera/tessera.h>

#define TSRI_WINDOW_CANDIDATES 4u /* at most, for one window */
#define TSRI_WINDOW_BATCH 128u
#define TSRI_WINDOW_GENS 8u
struct tsri_windows {
    struct tsri_region region;
    _Atomic uint64_t *slots;                  /* eight a bucket */
    _Atomic uint64_t *filter;                 /* one a bucket */
    uint32_t n_buckets;                       /* 0: nothing is registered */
    uint32_t mark_bits, number_bits, id_bits; /* of a slot */
    uint32_t epoch_windows;                   /* windows registered until the next epoch */
    uint64_t n_added;                         /* under cache->lock, like all writes */
    uint64_t n_used;                          /* slots in use */
};
/* windows_max 0: no table. */
TSR_MUST int tsri_windows_init(struct tsri_windows *w, uint32_t windows_max, uint32_t ids_max);
void tsri_windows_fini(struct tsri_windows *w);
/* Registers the windows of an entry whose tokens are in memory. Under cache->lock. */
void tsri_windows_add(struct tsr_cache *c, uint32_t id);
/* The same of a COLD entry, with the hashes that a tier has kept (tsri_window_hashes). */
void tsri_windows_add_cold(struct tsr_cache *c, uint32_t id, const uint64_t *hashes, uint32_t n);

/* A window of the prompt that may be one of an entry: pin, then compare the tokens. */
struct tsri_nominee {
    uint32_t at; /* in the prompt */
    uint32_t id, entry_offset;
    uint32_t gen; /* low bits of the entry's generation, modulo TSRI_WINDOW_GENS */
};
/* All windows of a prompt, one batch after the other. Lock-free. */
struct tsri_window_scan {
    const struct tsri_windows *windows;
    uint64_t seed, power;
    const uint32_t *tokens;
    uint32_t end; /* windows end here at the latest */
    uint32_t at;  /* window that `hash` is of */
    uint64_t hash;
    uint64_t hashes[TSRI_WINDOW_BATCH]; /* those of a batch that the filter lets pass */
    uint16_t passed[TSRI_WINDOW_BATCH];
};
void tsri_window_scan_init(struct tsri_window_scan *s, const struct tsri_windows *w, uint64_t seed,
                           const uint32_t *tokens, uint32_t end);
/* Nominees of some windows from `at` on, ascending; at most four for each of TSRI_WINDOW_BATCH.
 * *next: where to go on, s->end when there are no more. */
uint32_t tsri_window_scan_some(struct tsri_window_scan *s, uint32_t at, uint32_t *next,
                               struct tsri_nominee *out);

#endif
