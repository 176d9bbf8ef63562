/* ranks.h - queues over ids, what the policy s3fifo is made of.
 *
 * Threads: none of it locks; a policy is called under the cache's lock.
 * Memory:  12 bytes an id, taken at open. */
#ifndef TSRI_RANKS_H
#define TSRI_RANKS_H

#include "cache/cache.h"

/* ---- queues.c: a few queues over ids, oldest first ---- */

#define TSRI_QUEUES 3u
#define TSRI_RANK_NONE 0x1fffffffu /* no id; ids are below */
#define TSRI_TAG_MAX 7u

/* What a policy knows about an entry. */
struct tsri_rank {
    uint32_t prev : 29, queue : 3;
    uint32_t next : 29, tag : 3; /* the tag is the policy's */
    uint32_t hash : 24, size : 8;
};
_Static_assert(sizeof(struct tsri_rank) == 12, "an entry's rank is 12 bytes");

struct tsri_queue {
    uint32_t oldest, newest, n;
    uint64_t units;
};
struct tsri_queues {
    struct tsri_region region;
    struct tsri_rank *ranks; /* by id */
    uint32_t ids_max;
    struct tsri_queue queues[TSRI_QUEUES];
};

/* What is kept of an entry's key and size: 24 bits of the hash, and the units with five bits, which
 * is exact below 32, within 1/32 above, and ends at half a million. */
struct tsri_mark {
    uint32_t hash;
    uint8_t size, tag;
};
struct tsri_mark tsri_mark_make(uint64_t hash, uint32_t units, uint32_t tag);
static inline uint32_t tsri_mark_units(uint8_t size)
{
    return size < 32 ? size : (16u + (size & 15u)) << (size / 16 - 1);
}
/* Spreads a kept hash over 64 bits; another salt spreads it in another way. */
static inline uint64_t tsri_mark_mix(uint32_t hash, uint32_t salt)
{
    uint64_t x = ((uint64_t)salt << 32 | hash) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

TSR_MUST int tsri_queues_init(struct tsri_queues *q, uint32_t ids_max);
void tsri_queues_fini(struct tsri_queues *q);
/* A new id, at the recent end of a queue. */
void tsri_queues_insert(struct tsri_queues *q, uint32_t id, struct tsri_mark mark, uint32_t queue);
void tsri_queues_remove(struct tsri_queues *q, uint32_t id);
/* To the recent end of a queue, perhaps another one. */
void tsri_queues_move(struct tsri_queues *q, uint32_t id, uint32_t queue);
void tsri_queues_tag(struct tsri_queues *q, uint32_t id, uint32_t tag);
struct tsri_mark tsri_queues_mark(const struct tsri_queues *q, uint32_t id);
uint64_t tsri_queues_units(const struct tsri_queues *q);
uint32_t tsri_queues_n(const struct tsri_queues *q);
/* All ids, queue by queue, oldest first; returns how many, ids_max at most. */
size_t tsri_queues_order(const struct tsri_queues *q, uint32_t *ids, size_t ids_max);

#endif
