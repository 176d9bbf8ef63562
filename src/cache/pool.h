/* pool.h - the two allocators of a cache: an arena of 64-byte units for the meta of entries, and a
 * pool of pages of one size for their KV.
 *
 * Threads: neither locks; callers hold cache->lock.
 * Memory:  reserved at init, touched only when used.
 * Errors:  no room is an answer, not a message.
 */
#ifndef TSRI_POOL_H
#define TSRI_POOL_H

#include "base/base.h"

/* ---- arena.c ---- */

#define TSRI_ARENA_UNIT 64u
#define TSRI_ARENA_UNITS_MAX (1u << 31)
#define TSRI_ARENA_CLASSES 240u
struct tsri_arena {
    struct tsri_region region, marks_region;
    uint8_t *marks; /* by unit: first or last of a free block */
    uint32_t n_units;
    size_t bytes_used;
    uint64_t map[(TSRI_ARENA_CLASSES + 63) / 64]; /* classes that have a free block */
    uint32_t heads[TSRI_ARENA_CLASSES];
};
TSR_MUST int tsri_arena_init(struct tsri_arena *a, size_t bytes);
void tsri_arena_fini(struct tsri_arena *a);
/* TSR_EFULL: not now; TSR_ERANGE: never. No message is set. */
TSR_MUST int tsri_arena_alloc(struct tsri_arena *a, size_t bytes, uint32_t *unit);
void tsri_arena_free(struct tsri_arena *a, uint32_t unit, size_t bytes);
/* The largest block an empty arena can give. */
size_t tsri_arena_bytes_max(const struct tsri_arena *a);
bool tsri_arena_is_valid(const struct tsri_arena *a);

/* ---- pool.c ---- */

struct tsri_pool {
    struct tsri_region region, stack_region;
    uint32_t *stack; /* pages given back */
    uint32_t page_shift, n_pages, n_fresh, n_stack;
};
TSR_MUST int tsri_pool_init(struct tsri_pool *p, size_t bytes, size_t page_bytes);
/* The same in memory that other processes can read: p->region.fd. */
TSR_MUST int tsri_pool_init_shared(struct tsri_pool *p, size_t bytes, size_t page_bytes);
void tsri_pool_fini(struct tsri_pool *p);
/* All or none. */
bool tsri_pool_alloc(struct tsri_pool *p, uint32_t n, uint32_t *pages);
void tsri_pool_free(struct tsri_pool *p, uint32_t n, const uint32_t *pages);
bool tsri_pool_is_valid(const struct tsri_pool *p);
static inline uint32_t tsri_pool_n_free(const struct tsri_pool *p)
{
    return p->n_pages - p->n_fresh + p->n_stack;
}
static inline uint8_t *tsri_pool_page(const struct tsri_pool *p, uint32_t page)
{
    return p->region.data + ((size_t)page << p->page_shift);
}

#endif
