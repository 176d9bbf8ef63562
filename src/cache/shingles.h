/* shingles.h - which entries hold these 8 tokens: the table by which a text is found around frequent
 * edits, where no window of 32 tokens is left whole.
 *
 * Threads: read without a lock; written under cache->lock. What is found is nominated only: pin,
 *          look for the tokens in the entry, then compare.
 * Memory:  the table is reserved at init; adding to a full one replaces what is in it, or adds
 *          nothing.
 */
#ifndef TSRI_SHINGLES_H
#define TSRI_SHINGLES_H

#include "base/base.h"
#include "chunk/chunk.h"

#include <tessera/tessera.h>

#define TSRI_SHINGLE_CANDIDATES 4u
#define TSRI_SHINGLE_BATCH 64u
#define TSRI_SHINGLE_GENS 4u
#define TSRI_SHINGLE_BETWEEN \
    76u /* tokens from one shingle that stands between the others to the next */

struct tsr_cache;
struct tsri_shingles {
    struct tsri_region region;
    _Atomic uint32_t *slots;    /* sixteen a bucket */
    _Atomic uint64_t *filter;   /* one a bucket */
    uint32_t n_buckets;         /* 0: nothing is registered */
    uint32_t id_bits, tag_bits; /* of a slot */
    uint64_t n_added, n_used;   /* under cache->lock, like all writes */
};
/* For the tokens of so many windows. windows_max 0: no table. */
TSR_MUST int tsri_shingles_init(struct tsri_shingles *t, uint32_t windows_max, uint32_t ids_max);
void tsri_shingles_fini(struct tsri_shingles *t);
/* Registers the shingles of an entry whose tokens are in memory. Under cache->lock. */
void tsri_shingles_add(struct tsr_cache *c, uint32_t id);
/* The same of a COLD entry, with the hashes that a tier has kept (tsri_shingle_hashes). In a table
 * without room they are left out: the tier tells of what was used last first. */
void tsri_shingles_add_cold(struct tsr_cache *c, uint32_t id, const uint32_t *hashes, uint32_t n);
/* Places where an entry may have registered a shingle. */
static inline uint32_t tsri_shingle_places(uint32_t n_tokens)
{
    return n_tokens / TSRI_SHINGLE_STRIDE + n_tokens / TSRI_SHINGLE_BETWEEN + 2;
}
/* Where a registered shingle stands in an entry; UINT32_MAX: nowhere. */
uint32_t tsri_shingle_place(const uint32_t *shingle, const uint32_t *tokens, uint32_t n);

/* A shingle of the prompt that may be one of an entry. */
struct tsri_shingled {
    uint32_t at; /* in the prompt */
    uint32_t id;
    uint32_t gen; /* low bits of the entry's generation, modulo TSRI_SHINGLE_GENS */
};
/* Nominees of the shingles that begin at tokens [at, at + n) of the prompt, ascending, at most four
 * for each; n is at most TSRI_SHINGLE_BATCH, and n + 7 tokens are there. Lock-free. */
uint32_t tsri_shingles_nominate(const struct tsri_shingles *t, uint64_t seed,
                                const uint32_t *tokens, uint32_t at, uint32_t n,
                                struct tsri_shingled *out);

#endif
