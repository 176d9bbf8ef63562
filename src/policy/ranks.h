/* ranks.h - what the policies s3fifo and adaptive are made of: queues over ids, a sketch of how
 * often keys were used, the order of a cache with a window, and small shadows of the cache that
 * tell which window would have been best.
 *
 * Threads: none of it locks; a policy is called under the cache's lock.
 * Memory:  12 bytes an id for the queues and 1 for the sketch, taken at open; the shadows take
 *          90 KiB whatever the size of the cache. */
#ifndef TSRI_RANKS_H
#define TSRI_RANKS_H

#include "policy/policy.h"

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
struct tsri_rank_mark {
    uint32_t hash;
    uint8_t size, tag;
};
struct tsri_rank_mark tsri_mark_make(uint64_t hash, uint32_t units, uint32_t tag);
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
void tsri_queues_insert(struct tsri_queues *q, uint32_t id, struct tsri_rank_mark mark,
                        uint32_t queue);
void tsri_queues_remove(struct tsri_queues *q, uint32_t id);
/* To the recent end of a queue, perhaps another one. */
void tsri_queues_move(struct tsri_queues *q, uint32_t id, uint32_t queue);
void tsri_queues_tag(struct tsri_queues *q, uint32_t id, uint32_t tag);
struct tsri_rank_mark tsri_queues_mark(const struct tsri_queues *q, uint32_t id);
uint64_t tsri_queues_units(const struct tsri_queues *q);
uint32_t tsri_queues_n(const struct tsri_queues *q);
/* All ids, queue by queue, oldest first; returns how many, ids_max at most. */
size_t tsri_queues_order(const struct tsri_queues *q, uint32_t *ids, size_t ids_max);

/* ---- sketch.c: how often a key was used lately ---- */

#define TSRI_SKETCH_MAX 15u
/* Counters of 4 bits, four for a key, all in one cache line. They are halved from time to time, so
 * that who was popular long ago is forgotten. */
struct tsri_sketch {
    struct tsri_region region;
    uint64_t *words;
    uint32_t n_lines;
    uint64_t n_adds; /* since the counts were halved, half of those before included */
};
TSR_MUST int tsri_sketch_init(struct tsri_sketch *s, uint32_t keys_max);
void tsri_sketch_fini(struct tsri_sketch *s);
/* n_entries: keys that matter now, which sets the time after which counts are halved. */
void tsri_sketch_add(struct tsri_sketch *s, uint32_t hash, uint32_t n_entries);
/* At least the true count since the last halvings, at most TSRI_SKETCH_MAX. */
uint32_t tsri_sketch_count(const struct tsri_sketch *s, uint32_t hash);

/* ---- ranks.c: a window in which newcomers live, and the main part that they must earn ---- */

enum { TSRI_RECENT, TSRI_PROBATION, TSRI_PROTECTED };

/* New ids go to the queue TSRI_RECENT. A tag is what a use saves per unit, as a power of two. */
struct tsri_ranks {
    struct tsri_queues q;
    const struct tsri_sketch *sketch;
    uint64_t capacity, window; /* in units; what is not window is main */
};
void tsri_ranks_touch(struct tsri_ranks *r, uint32_t id);
/* Only to the recent end of where it is. */
void tsri_ranks_refresh(struct tsri_ranks *r, uint32_t id);
/* As in policy.h. */
uint32_t tsri_ranks_victim(struct tsri_ranks *r, tsri_policy_may_fn may, void *arg);

/* ---- shadow.c: which window would have been best ---- */

#define TSRI_SHADOWS 4u
#define TSRI_SHADOW_ENTRIES 1024u
struct tsri_shadow_cache {
    struct tsri_ranks ranks;
    double score;           /* what it has saved lately */
    uint32_t ids_free;      /* the first */
    uint16_t *heads, *next; /* ids by hash; of a free one: the next free */
};
/* Keys are sampled by their hash, 1 of 2^shift of them; what a shadow can hold is the cache's
 * capacity by the same factor. */
struct tsri_shadow {
    struct tsri_shadow_cache caches[TSRI_SHADOWS];
    void *memory;
    uint64_t capacity;
    uint32_t shift, best;
    uint32_t n_scored; /* uses behind the scores */
};
TSR_MUST int tsri_shadow_init(struct tsri_shadow *s, uint64_t capacity,
                              const struct tsri_sketch *sketch);
void tsri_shadow_fini(struct tsri_shadow *s);
void tsri_shadow_use(struct tsri_shadow *s, struct tsri_rank_mark mark);
/* A chain was put in order: to the recent end, without having been used. */
void tsri_shadow_refresh(struct tsri_shadow *s, uint32_t hash);
/* The cache turned out to hold more or less than was said. */
void tsri_shadow_resize(struct tsri_shadow *s, uint64_t capacity);
/* The share of the capacity that the window should have now, in hundredths. */
uint32_t tsri_shadow_window(const struct tsri_shadow *s);

#endif
