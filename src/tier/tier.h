/* tier.h - storage below host memory, as the cache sees it: the built-in tiers by name, and one
 * checked function for every member of tsr_tier_ops. Only tier.c calls through the table, so that
 * arguments are checked and optional members get their defaults in one place.
 *
 * Threads: put, get, drop, contains, windows and flush from any thread, as many at once as
 *          env.n_threads; open, scan and close alone.
 * Memory:  an io and everything it points to is borrowed for the call.
 * Errors:  negative enum tsr_err; an io's own outcome is its result.
 */
#ifndef TSRI_TIER_H
#define TSRI_TIER_H

#include "base/base.h"
#include "chunk/chunk.h" /* TSRI_CELL_TOKENS_MAX */

#include <tessera/tier.h>

/* Limits of one entry. Whatever lies beyond is refused before a byte is reserved for it; they keep
 * every product below in 64 bits. */
#define TSRI_ENTRY_TOKENS_MAX (1u << 20)
#define TSRI_ENTRY_LAYERS_MAX 4096u
#define TSRI_ENTRY_PLANES_MAX 2u
#define TSRI_ENTRY_ROW_MAX (1u << 18)
#define TSRI_ENTRY_EXTRA_MAX (1u << 20)

/* Segment files in a directory (disk.c). */
extern const struct tsr_tier_ops tsri_tier_disk, tsri_tier_disk2;
/* Redis or Valkey (redis.c); where the build found hiredis. */
extern const struct tsr_tier_ops tsri_tier_redis;
/* A bucket of an S3 server (s3.c); where the build found libcurl and expat. */
extern const struct tsr_tier_ops tsri_tier_s3;

/* TSR_EVERSION for a table of another abi, TSR_EINVAL for one that lacks a required member. */
TSR_MUST int tsri_tier_open(struct tsr_tier **out, const struct tsr_tier_ops *ops,
                            const struct tsr_tier_desc *desc);
/* Accepts NULL. */
void tsri_tier_close(struct tsr_tier *tier);
const char *tsri_tier_name(const struct tsr_tier *tier);
bool tsri_tier_is_shared(const struct tsr_tier *tier);

/* Return how many ios succeeded, each one's result set; negative when the arguments are wrong, and
 * then nothing was done. */
TSR_MUST int tsri_tier_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
TSR_MUST int tsri_tier_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
TSR_MUST int tsri_tier_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n);
/* Heads that no entry can have are left out. Returns how many entries fn was given. */
TSR_MUST int tsri_tier_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg);
/* A tier that cannot tell is believed to have what it gave a loc for. Returns how many. */
TSR_MUST int tsri_tier_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                                uint8_t *found);
TSR_MUST int tsri_tier_flush(struct tsr_tier *tier);
/* What the tier cannot leave alone it drops. */
TSR_MUST int tsri_tier_unlist(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n);
bool tsri_tier_can_purge(const struct tsr_tier *tier);
TSR_MUST int tsri_tier_purge(struct tsr_tier *tier, const uint8_t *space);
/* The hashes of an entry's windows that the tier knows; how many, at most max. */
uint32_t tsri_tier_windows(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint64_t *out,
                           uint32_t max);
/* And of its shingles. */
uint32_t tsri_tier_shingles(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint32_t *out,
                            uint32_t max);
TSR_MUST int tsri_tier_stats(struct tsr_tier *tier, struct tsr_tier_stats *out);

/* ---- bytes that every format of a tier shares ---- */

/* Fields of the formats: little-endian, as every host this runs on. */
static inline void tsri_put32(uint8_t *at, uint32_t v)
{
    memcpy(at, &v, sizeof v);
}
static inline void tsri_put64(uint8_t *at, uint64_t v)
{
    memcpy(at, &v, sizeof v);
}
static inline uint32_t tsri_get32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
static inline uint64_t tsri_get64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
/* Seconds; what cannot be a cost is read as one that is not known. */
void tsri_put_cost(uint8_t *at, float cost_s);
float tsri_get_cost(const uint8_t *at);
uint64_t tsri_sum(const void *data, size_t bytes);
/* Makes the region at least that large; what was in it may be lost. */
TSR_MUST int tsri_region_need(struct tsri_region *r, size_t bytes);
/* A head as it stands in every format, TSRI_HEAD_BYTES of it (docs/format.md), without its cost.
 * Reading believes everything: the caller has checked a sum, and asks tsri_head_is_valid()
 * afterwards. */
#define TSRI_HEAD_BYTES 120u
void tsri_head_write(uint8_t *to, const struct tsr_entry_head *head);
void tsri_head_read(const uint8_t *from, struct tsr_entry_head *head);

/* Whether an entry may look like this: every count within its limit. */
bool tsri_head_is_valid(const struct tsr_entry_head *head);
/* Whether two heads are of the same entry: all but what it costs. */
bool tsri_head_same(const struct tsr_entry_head *a, const struct tsr_entry_head *b);
/* Whether two heads have KV of the same shape: tokens, cells, layers, planes and rows. */
bool tsri_head_same_shape(const struct tsr_entry_head *a, const struct tsr_entry_head *b);
static inline uint32_t tsri_head_cells(const struct tsr_entry_head *head)
{
    return (head->n_tokens + head->cell_tokens - 1) / head->cell_tokens;
}
/* Tokens of a cell: all but the last are full. */
static inline uint32_t tsri_head_cell_tokens(const struct tsr_entry_head *head, uint32_t cell)
{
    return tsri_min_u32(head->cell_tokens, head->n_tokens - cell * head->cell_tokens);
}

#endif
