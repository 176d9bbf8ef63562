/* core.h - the cache inside: its memory, and who may touch what when.
 *
 * Three kinds of memory, all reserved at open: an array of 64-byte entries, found through a hash
 * index; an arena with each entry's tokens, digest, extra and page table (its *meta*); and a
 * pool of fixed pages with the KV, arranged in cells of at most 64 tokens.
 *
 * Threads: entries.h says what a pin allows. All else (states, chains, allocators, index writes,
 *          policy) changes under cache->lock. Lock order is client->lock, cache->lock, then the
 *          leaves (events, touch stripes, work queue). Nothing is copied and no tier is called
 *          under cache->lock.
 */
#ifndef TSRI_CORE_H
#define TSRI_CORE_H

#include "cache/cache.h"
#include "cache/events.h"
#include "cache/holds.h"
#include "cache/index.h"
#include "device/locking.h"
#include "policy/policy.h"
#include "cache/pool.h"
#include "cache/shingles.h"
#include "cache/windows.h"

#include <pthread.h>

/* ---- room.c: uses on their way from readers to the policy ---- */

#define TSRI_TOUCH_STRIPES 16u
#define TSRI_TOUCH_IDS 1024u
struct tsri_touch_stripe {
    _Alignas(TSRI_CACHE_LINE) atomic_flag busy;
    uint32_t n;
    uint32_t ids[TSRI_TOUCH_IDS];
};
struct tsri_touch {
    struct tsri_touch_stripe stripes[TSRI_TOUCH_STRIPES];
};

/* ---- losses.c: what was stored and could not be kept ---- */

struct tsri_losses {
    uint64_t number;            /* of the cache, in this process */
    _Atomic uint64_t n, n_told; /* the first n_told were told to some thread */
};
void tsri_losses_init(struct tsri_losses *l);
void tsri_losses_add(struct tsri_losses *l, uint64_t n);
uint64_t tsri_losses_count(const struct tsri_losses *l); /* since init */
/* This thread is about to store something. When it is the first time, it need not be told of what
 * was lost before and told to another thread. */
void tsri_losses_join(const struct tsri_losses *l);
/* How many this thread was not told of; it is now. */
uint64_t tsri_losses_tell(struct tsri_losses *l);

/* ---- the cache ---- */

/* Referenced by every open of the same description; the slot stays as long as it is open or entries
 * name it by number. */
struct tsr_space {
    struct tsr_cache *cache;
    uint8_t fingerprint[16];
    uint16_t id;
    uint32_t refs;                     /* under cache->lock */
    uint32_t n_entries;                /* published and not yet reclaimed, under cache->lock */
    uint64_t closed;                   /* when it was closed last, in closes of the cache */
    bool shaped;                       /* false: seen in a tier, not yet opened here */
    char model[TSRI_SPACE_NAME_BYTES]; /* for people; its beginning, when it is long */
    uint32_t block_tokens;
    struct tsri_shape shape;
    struct tsri_separators *separators;
};

struct tsri_manager;
struct tsri_backend;
struct tsri_served;
struct tsri_seat;

struct tsr_cache {
    const struct tsri_backend *backend;
    struct tsri_options options;
    struct tsri_fork_guard guard;
    struct tsri_stats *stats;
    enum tsri_hash hash;
    uint64_t epoch; /* of this life: drawn at open, in every match that a lookup here makes */

    struct tsri_index index;
    struct tsri_windows windows;
    struct tsri_shingles shingles; /* partial: edits */
    struct tsri_entry *entries;
    struct tsri_region entries_region;
    uint32_t ids_max;
    struct tsri_pool pool;
    struct tsri_arena arena;
    struct tsri_touch *touch;
    struct tsri_holds holds;
    struct tsri_events events;
    struct tsri_losses losses;
    atomic_bool frozen;
    uint64_t key_mask; /* all ones; tests clear bits to make keys collide */

    pthread_mutex_t lock;
    /* under lock: */
    struct tsri_policy *policy;
    uint32_t ids_fresh, ids_free; /* first never used; head of the free list */
    uint32_t n_host, n_cold, n_pinned;
    uint64_t host_tokens, cold_tokens; /* of the entries that n_host and n_cold count */
    struct tsr_space *spaces;
    uint32_t n_spaces;
    uint64_t n_closed; /* closes of spaces by the last who had them open */
    uint32_t n_clients;

    struct tsri_device *device;   /* of the engines here, or NULL */
    struct tsri_locking *locking; /* of the pool, for a device that needs it; NULL: none does */

    struct tsri_manager *manager; /* tiers below, and the I/O threads */
    struct tsri_ops *ops;
    struct tsri_served *served; /* owner: daemon; then nothing above holds entries */
};

static inline struct tsri_meta *tsri_meta(const struct tsr_cache *c, const struct tsri_entry *e)
{
    return (struct tsri_meta *)(void *)(c->arena.region.data + (size_t)e->meta * TSRI_ARENA_UNIT);
}
static inline uint64_t tsri_handle(uint32_t id, uint64_t gen)
{
    return gen << 28 | id;
}
static inline uint32_t tsri_handle_id(uint64_t handle)
{
    return (uint32_t)(handle & (TSRI_IDS_MAX - 1));
}
/* Is the handle's entry still that entry? Ask under lock, or it may change at once. */
static inline bool tsri_entry_is(const struct tsr_cache *c, uint64_t handle)
{
    uint32_t id = tsri_handle_id(handle);
    return id < c->ids_max &&
           tsri_word_gen(atomic_load_explicit(&c->entries[id].word, memory_order_acquire)) ==
               handle >> 28;
}

/* ---- cache.c ---- */

void tsri_cache_close(struct tsr_cache *c);
/* Drops what is unpinned and in the space (NULL: all); in batches, so that readers of the lock wait
 * for a batch only. */
int tsri_cache_clear(struct tsr_cache *c, const struct tsr_space *space, int32_t tier);
/* For tsri_find_each; `tier` is an int32_t. */
int tsri_cache_clear_one(struct tsr_cache *c, uint64_t handle, void *tier);
int tsri_cache_pin_one(struct tsr_cache *c, uint64_t handle, void *unused);
int tsri_cache_unpin_one(struct tsr_cache *c, uint64_t handle, void *unused);
int tsri_cache_touch_one(struct tsr_cache *c, uint64_t handle, void *unused);
void tsri_cache_stats(struct tsr_cache *c, struct tsr_stats *out);
/* In a forked child: counts, and the caller answers with a miss. */
static inline bool tsri_forked(const struct tsr_cache *c)
{
    return !tsri_fork_guard_parent(&c->guard);
}

/* ---- spaces.c ---- */

TSR_MUST int tsri_space_open(struct tsr_space **out, struct tsr_cache *c,
                             const struct tsr_space_desc *desc);
void tsri_space_close(struct tsr_space *space);
/* The slot of a fingerprint seen in a tier; NULL when spaces_max are in use. Under lock. */
struct tsr_space *tsri_space_slot(struct tsr_cache *c, const uint8_t fingerprint[16]);

/* ---- room.c: making room ---- */

/* Takes meta and pages for an entry, evicting what must go; TSR_EFULL or TSR_ERANGE with a message.
 * Under lock. */
TSR_MUST int tsri_room_take(struct tsr_cache *c, const struct tsri_shape *s, uint32_t n_tokens,
                            uint32_t extra_bytes, uint32_t *meta);
void tsri_room_give(struct tsr_cache *c, uint32_t meta);
/* Makes sure that tsri_entry_alloc() can give an entry; TSR_EFULL. Under lock. */
TSR_MUST int tsri_room_id(struct tsr_cache *c);
int tsri_room_evict(struct tsr_cache *c, size_t free_bytes, struct tsr_key *keys,
                    uint32_t keys_max);
/* As tsr_cache_list(). */
int tsri_room_list(struct tsr_cache *c, struct tsr_listed *out, uint32_t max);
/* Tells the policy what readers used. Under lock. */
void tsri_touch_drain(struct tsr_cache *c);
/* Lock-free; the last id is the most recent. */
void tsri_touch_push(struct tsr_cache *c, const uint32_t *ids, uint32_t n);

#endif
