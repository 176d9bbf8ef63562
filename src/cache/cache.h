/* cache.h - the cache inside: entries, where their bytes are, and who may touch what when.
 *
 * Three kinds of memory, all reserved at open: an array of 64-byte entries, found through a hash
 * index; an arena with each entry's tokens, digest, extra and page table (its *meta*); and a
 * pool of fixed pages with the KV, arranged in cells of at most 64 tokens.
 *
 * The life of an entry is one atomic word: generation, state and number of pins.
 *
 *     FREE -> FILLING -> HOST <-> COLD -> FREE          (DYING when dropped while pinned)
 *
 * Who has pinned an entry in state HOST may read its meta and its pages until it unpins; nobody
 * needs a lock for that. Everything else (states, chains, allocators, index writes, policy) changes
 * under cache->lock only. COLD entries have neither meta nor pages: a lower tier has them.
 *
 * Threads: lock order is client->lock, cache->lock, then the leaves (events, touch stripes, work
 * queue). Nothing is copied and no tier is called under cache->lock.
 */
#ifndef TSRI_CACHE_H
#define TSRI_CACHE_H

#include "base/base.h"
#include "chunk/chunk.h"
#include "config/config.h"
#include "device/device.h"
#include "stats/stats.h"
#include "tier/tier.h"
#include "wire/wire.h"

#include <tessera/policy.h>
#include <tessera/tier.h>

#include <pthread.h>

#define TSRI_ID_NONE UINT32_MAX

/* ---- entries ---- */

enum tsri_state {
    TSRI_FREE = 0,
    TSRI_FILLING = 1, /* reserved by a store, invisible */
    TSRI_HOST = 2,
    TSRI_COLD = 3, /* known, but only a lower tier has it */
    TSRI_DYING = 4 /* out of the index, freed by the last unpin */
};

#define TSRI_PIN_BITS 24u
#define TSRI_PINS_MAX ((1u << TSRI_PIN_BITS) - 1u)
#define TSRI_STATE_BITS 4u
#define TSRI_GEN_SHIFT (TSRI_PIN_BITS + TSRI_STATE_BITS)
#define TSRI_GEN_MAX (UINT64_MAX >> TSRI_GEN_SHIFT)
#define TSRI_IDS_MAX (1u << 28)

static inline uint32_t tsri_word_pins(uint64_t w)
{
    return (uint32_t)w & TSRI_PINS_MAX;
}
static inline enum tsri_state tsri_word_state(uint64_t w)
{
    return (enum tsri_state)((w >> TSRI_PIN_BITS) & 15u);
}
static inline uint64_t tsri_word_gen(uint64_t w)
{
    return w >> TSRI_GEN_SHIFT;
}
static inline uint64_t tsri_word_make(uint64_t gen, enum tsri_state state, uint32_t pins)
{
    return gen << TSRI_GEN_SHIFT | (uint64_t)state << TSRI_PIN_BITS | pins;
}

/* One cache line. Key halves are atomic because a reader may look at an entry that is being reused;
 * once it is pinned they stand still. The rest is read by who has pinned it or holds the lock. */
struct tsri_entry {
    _Atomic uint64_t key_lo, key_hi;
    _Atomic uint64_t word;
    uint32_t meta; /* in the arena, in units; valid in FILLING and HOST */
    uint32_t n_tokens;
    uint32_t parent, first_child, next_sibling; /* chain of prefix blocks, by id */
    uint16_t space;
    uint8_t kind;
    _Atomic uint8_t tiers; /* bit t: tier t has it; bit 0 is host */
    uint16_t user_pins;
    uint16_t flags;        /* TSRI_ENTRY_*, under lock */
    uint32_t prev_sibling; /* of a FREE entry: the next free one */
    uint32_t extra_bytes;  /* of its meta, for when it is COLD */
    float cost_s;          /* to compute it again; 0: not known */
};
_Static_assert(sizeof(struct tsri_entry) == 64, "an entry is one cache line");

enum {
    TSRI_ENTRY_QUEUED = 1,  /* waits for write-back or is being written; one pin is for that */
    TSRI_ENTRY_WRITING = 2, /* is being written: the writer reads its meta and pages */
    TSRI_ENTRY_REFUSED = 4  /* could not be written, so blocks behind it are not either */
};

static inline bool tsri_entry_has_key(const struct tsri_entry *e, struct tsri_key key)
{
    return atomic_load_explicit(&e->key_lo, memory_order_relaxed) == key.lo &&
           atomic_load_explicit(&e->key_hi, memory_order_relaxed) == key.hi;
}
static inline struct tsri_key tsri_entry_key(const struct tsri_entry *e)
{
    return (struct tsri_key){atomic_load_explicit(&e->key_lo, memory_order_relaxed),
                             atomic_load_explicit(&e->key_hi, memory_order_relaxed)};
}

/* What stands in the arena for each entry: this, tokens[n_tokens], pages[n_pages], extra bytes. */
struct tsri_meta {
    struct tsri_digest digest;
    uint32_t base, freq_set;
    uint32_t n_pages, extra_bytes;
    uint32_t n_tokens, reserved[3];
};
_Static_assert(sizeof(struct tsri_meta) == 64, "tokens begin on a cache line");

static inline uint32_t *tsri_meta_tokens(struct tsri_meta *m)
{
    return (uint32_t *)(void *)(m + 1);
}
static inline uint32_t *tsri_meta_pages(struct tsri_meta *m)
{
    return tsri_meta_tokens(m) + m->n_tokens;
}
static inline uint8_t *tsri_meta_extra(struct tsri_meta *m)
{
    return (uint8_t *)(tsri_meta_pages(m) + m->n_pages);
}
static inline size_t tsri_meta_bytes(uint32_t n_tokens, uint32_t n_pages, uint32_t extra_bytes)
{
    return sizeof(struct tsri_meta) + ((size_t)n_tokens + n_pages) * 4 + extra_bytes;
}

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

/* ---- index.c ---- */

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

/* ---- windows.c: which entries hold these 32 tokens ---- */

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

/* ---- events.c ---- */

struct tsri_events {
    pthread_mutex_t lock;
    struct tsr_event *ring;
    uint32_t max, head, n;
};
TSR_MUST int tsri_events_init(struct tsri_events *ev, uint32_t max);
void tsri_events_fini(struct tsri_events *ev);
/* False when the oldest had to go to make room. */
bool tsri_events_push(struct tsri_events *ev, const struct tsr_event *event);
uint32_t tsri_events_take(struct tsri_events *ev, struct tsr_event *out, uint32_t max);

/* ---- holds.c: pages that clients keep in their place, bounded ---- */

/* Of a cache that other processes use; by_id NULL: of one that none do, and nothing is counted. */
struct tsri_holds {
    pthread_mutex_t lock; /* a leaf */
    struct tsri_region region;
    uint32_t *by_id;              /* how many hold an entry */
    uint64_t n_pages, pages_max;  /* of the pool, and what of it may be held */
    uint64_t pages, pages_pinned; /* held now, each once; those that tsr_pin holds */
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
/* Pages that are no entry yet. */
TSR_MUST bool tsri_hold_pages(struct tsri_holder *x, uint64_t n);
void tsri_unhold_pages(struct tsri_holder *x, uint64_t n);
/* For good, in nobody's name: half of the pool at most. */
TSR_MUST bool tsri_hold_pinned(struct tsr_cache *c, uint32_t id);
void tsri_unhold_pinned(struct tsr_cache *c, uint32_t id);

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

/* ---- policy.c, lru.c, s3fifo.c, adaptive.c ---- */

extern const struct tsr_policy_ops tsri_policy_lru, tsri_policy_s3fifo, tsri_policy_adaptive;
/* Built-in policies, by name. */
const struct tsr_policy_ops *tsri_policy_find(const char *name);
void tsri_policy_refresh(struct tsr_policy *policy, const uint32_t *ids, size_t n);

/* ---- the cache ---- */

/* Referenced by every open of the same description; the slot stays as long as it is open or entries
 * name it by number. */
#define TSRI_SPACE_NAME_BYTES 64

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
    struct tsr_policy *policy;
    uint32_t ids_fresh, ids_free; /* first never used; head of the free list */
    uint32_t n_host, n_cold, n_pinned;
    struct tsr_space *spaces;
    uint32_t n_spaces;
    uint64_t n_closed; /* closes of spaces by the last who had them open */
    uint32_t n_clients;

    struct tsri_device *device; /* of the engines here, or NULL */
    bool pool_locked;           /* the pool's pages are page-locked for it */

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

/* cache.c */
TSR_MUST int tsri_cache_open(struct tsr_cache **out, const struct tsr_config *cfg);
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

/* spaces.c */
TSR_MUST int tsri_space_open(struct tsr_space **out, struct tsr_cache *c,
                             const struct tsr_space_desc *desc);
/* The same without tsri_spaces_make_room: never waits. */
TSR_MUST int tsri_space_open_now(struct tsr_space **out, struct tsr_cache *c,
                                 const struct tsr_space_desc *desc);
/* Drops the entries of the space that was closed longest ago and of which nothing is in use, so
 * that another can have its slot. Walks all entries; false when there is none. */
bool tsri_spaces_make_room(struct tsr_cache *c);
void tsri_space_close(struct tsr_space *space);
/* The slot of a fingerprint seen in a tier; NULL when spaces_max are in use. Under lock. */
struct tsr_space *tsri_space_slot(struct tsr_cache *c, const uint8_t fingerprint[16]);
/* Spaces that are open or have entries, for people to look at. */
struct tsri_space_row {
    char model[TSRI_SPACE_NAME_BYTES]; /* "": seen in a tier only */
    uint8_t fingerprint[16];
    uint32_t refs, entries;
    uint64_t token_bytes; /* of KV */
};
/* At most max of them, most entries first; returns how many. */
uint32_t tsri_cache_spaces(struct tsr_cache *c, struct tsri_space_row *out, uint32_t max);

/* browse.c: entries one after the other, from id `first` on; *next is where to go on. Returns how
 * many. */
uint32_t tsri_cache_list(struct tsr_cache *c, uint32_t first, struct tsri_wire_entry *out,
                         uint32_t max, uint32_t *next);
/* Opens a space that is there already. One that is not *shaped is known from a tier alone: its
 * entries can be cleared and nothing else. */
TSR_MUST int tsri_space_find(struct tsr_space **out, struct tsr_cache *c,
                             const uint8_t fingerprint[16], bool *shaped);
/* Brings up what only lower tiers have, as long as host memory is free and at most about so many
 * bytes (0: all). Waits for the tiers, until *stop is true (may be NULL); how many came. */
uint32_t tsri_cache_warm(struct tsr_cache *c, uint64_t bytes_max, const atomic_bool *stop);

/* entries.c: states, pins, chains; the only file that changes an entry's word */
/* The state it was pinned in (HOST or COLD), or FREE when it cannot be. Lock-free. */
enum tsri_state tsri_pin(struct tsr_cache *c, uint32_t id);
/* By a handle that was made in this life of the cache: when the generation still is the same. */
enum tsri_state tsri_pin_handle(struct tsr_cache *c, uint64_t handle, uint32_t *id);
/* By a match, which may come from anywhere: the one way from a match to its entry. FREE when it is
 * not of this life of this cache. An entry that was dropped while others have it pinned can still
 * be had as HOST, when it is in memory. */
enum tsri_state tsri_pin_match(struct tsr_cache *c, const struct tsr_match *m, uint32_t *id);
void tsri_unpin(struct tsr_cache *c, uint32_t id);
/* Under lock from here on. */
void tsri_unpin_locked(struct tsr_cache *c, uint32_t id);
bool tsri_entry_can_alloc(const struct tsr_cache *c);
uint32_t tsri_entry_alloc(struct tsr_cache *c);            /* FILLING; when it can */
void tsri_entry_abandon(struct tsr_cache *c, uint32_t id); /* FILLING back to FREE, memory too */
void tsri_entry_publish(struct tsr_cache *c, uint32_t id, uint32_t parent);
void tsri_entry_publish_cold(struct tsr_cache *c, uint32_t id);
/* Ties a block without a parent to one. */
void tsri_entry_adopt(struct tsr_cache *c, uint32_t id, uint32_t parent);
/* HOST and unpinned: frees its pages; it stays as COLD when a lower tier has it and goes otherwise.
 */
bool tsri_entry_evict(struct tsr_cache *c, uint32_t id);
/* Out of the index with everything behind it; pinned ones die when let go. Returns how many. */
uint32_t tsri_entry_drop(struct tsr_cache *c, uint32_t id, enum tsr_event_kind why);
/* True when it, and everything behind it, is unpinned, but for those that wait to be written. */
bool tsri_entry_is_idle(struct tsr_cache *c, uint32_t id);
/* Gives a COLD entry the meta and pages that were filled for it. */
void tsri_entry_warm(struct tsr_cache *c, uint32_t id, uint32_t meta);
uint32_t tsri_entry_live(struct tsr_cache *c,
                         struct tsri_key key); /* id in HOST or COLD, or NONE */
bool tsri_cache_is_valid(struct tsr_cache *c); /* walks everything */

/* room.c: making room */
/* Takes meta and pages for an entry, evicting what must go; TSR_EFULL or TSR_ERANGE with a message.
 * Under lock. */
TSR_MUST int tsri_room_take(struct tsr_cache *c, const struct tsri_shape *s, uint32_t n_tokens,
                            uint32_t extra_bytes, uint32_t *meta);
void tsri_room_give(struct tsr_cache *c, uint32_t meta);
/* Sees to it that an entry can be had; TSR_EFULL. Under lock. */
TSR_MUST int tsri_room_id(struct tsr_cache *c);
int tsri_room_evict(struct tsr_cache *c, size_t free_bytes);
/* Tells the policy what readers used. Under lock. */
void tsri_touch_drain(struct tsr_cache *c);
/* Lock-free; the last id is the most recent. */
void tsri_touch_push(struct tsr_cache *c, const uint32_t *ids, uint32_t n);

/* chunks.c: the chunks of a prompt, one after the other */
#define TSRI_SEGMENTS_MAX 4096u
struct tsri_chunk {
    struct tsr_range range;
    uint8_t kind; /* enum tsr_kind */
    bool system;  /* the system prompt of TSR_PROMPT_CONTEXT: always pure */
    struct tsri_key tokens_hash, extra_hash;
    uint32_t extra_bytes;
    const uint8_t *extra;      /* in the walk */
    struct tsri_digest digest; /* PREFIX: of everything before it; BLENDED: of the recipe */
};
struct tsri_walk {
    const struct tsr_prompt *prompt;
    enum tsri_hash hash;
    uint32_t block_tokens, n_blocks, block; /* next prefix block */
    struct tsri_digest chain;               /* of the blocks before it */
    const struct tsr_range *segments;
    uint32_t n_segments, segment;
    struct tsri_digest context; /* of the first segment; zero without TSR_PROMPT_CONTEXT */
    bool has_context, has_media, blended;
    struct tsri_digest recipe;
    uint32_t common_bytes;
    struct tsri_key common_hash;
    uint8_t common[TSRI_EXTRA_BYTES_MAX]; /* extras that every chunk has */
    uint8_t block_extra[TSRI_EXTRA_BYTES_MAX];
    struct tsr_range ranges[TSRI_SEGMENTS_MAX];
};
/* Checks the prompt. TSR_EPROMPT when it does not split. */
TSR_MUST int tsri_walk_init(struct tsri_walk *w, const struct tsr_space *space,
                            const struct tsr_prompt *prompt);
/* The next block of the prefix chain; false at its end. The chain is advanced by _passed, which
 * costs a digest: call it only when the block after it is wanted. */
bool tsri_walk_block(struct tsri_walk *w, struct tsri_chunk *out);
void tsri_walk_passed(struct tsri_walk *w, const struct tsri_chunk *block);
/* The next segment; false at the end. */
bool tsri_walk_segment(struct tsri_walk *w, struct tsri_chunk *out);
struct tsri_key tsri_chunk_key(const struct tsr_space *space, const struct tsri_chunk *chunk,
                               const struct tsri_digest *digest);

/* match.c: runs of tokens that a prompt and the entries of one space have in common */
struct tsri_run {
    uint32_t id; /* pinned */
    uint32_t prompt_offset, entry_offset, n_tokens;
    uint32_t group, group_tokens;    /* runs of one entry around edits, and their tokens */
    uint8_t kind, context, coverage; /* enum tsr_kind, tsr_context, tsr_coverage */
};
struct tsri_matcher {
    struct tsr_cache *c;
    const struct tsr_space *space;
    const struct tsr_prompt *prompt;
    const uint8_t *extra; /* request-wide, in the walk */
    uint32_t extra_bytes;
    const struct tsri_digest *context; /* what SAME means where it scans; NULL: nothing */
    bool other;                        /* takes runs computed behind other text */
    uint32_t min_tokens;
    uint64_t seed, budget;
    struct tsri_run *runs, *chosen;
    uint32_t n_runs, n_chosen, runs_max;
    uint32_t slice_tokens; /* what one thread takes at a time */
    uint64_t *taken;       /* a bit for each token of the prompt */
};
/* Memory a matcher needs for a prompt; the caller's, until fini. */
size_t tsri_matcher_bytes(uint32_t n_tokens);
void tsri_matcher_init(struct tsri_matcher *m, const struct tsr_space *space,
                       const struct tsri_walk *walk, void *memory);
void tsri_matcher_fini(struct tsri_matcher *m);
/* Adds the runs inside a part of the prompt to `runs`; they may overlap. Parts ascend. */
void tsri_matcher_scan(struct tsri_matcher *m, struct tsr_range part);
/* Of those, what begins in windows of a slice of the part. */
void tsri_matcher_scan_slice(struct tsri_matcher *m, struct tsr_range part, struct tsr_range slice);
/* Takes over a run with its pin. When there are too many the shorter half goes. */
void tsri_matcher_keep(struct tsri_matcher *m, const struct tsri_run *run);
uint32_t tsri_matcher_runs_max(uint32_t n_tokens);
/* Tokens that runs may grow over before they grow window by window. */
uint64_t tsri_matcher_budget(uint32_t n_tokens);
/* slices.c: tsri_matcher_scan in several threads; false without memory, and then nothing is done */
bool tsri_slices_scan(struct tsri_matcher *m, struct tsr_range part);
/* Turns `runs` into `chosen`: they do not overlap and ascend. */
void tsri_matcher_choose(struct tsri_matcher *m);

/* compose.c: what is found at any offset, between what a lookup has found already */
struct tsri_compose {
    const struct tsri_walk *walk;
    struct tsr_lookup *io; /* rows are added to it, in their places */
    /* How many of so many rows may be added, for reasons other than matches_max. */
    uint32_t (*grant)(void *arg, uint32_t n_rows);
    /* May a row's entries, which are pinned, be taken? Then `took` gets each with its pin. */
    bool (*may)(void *arg, const uint32_t *ids, uint32_t n);
    void (*took)(void *arg, uint32_t id);
    void *arg;
};
/* Returns how many tokens the added rows have. */
uint32_t tsri_compose(const struct tsri_compose *q);

/* find.c */
#define TSRI_LOOKUP_SPACES_MAX 64u
/* One chunk found in one space, pinned by the finder; id TSRI_ID_NONE: not found. */
struct tsri_found {
    uint32_t id;
    uint8_t state, context;
};
TSR_MUST int tsri_find(struct tsr_client *client, const struct tsr_prompt *prompt,
                       struct tsr_lookup *lookup);
/* Calls fn for every chunk of the prompt that the space has and adds up what it returns. A prefix
 * ends at its first missing block. The entry is not pinned: it may be gone when fn looks. */
typedef int (*tsri_each_fn)(struct tsr_cache *c, uint64_t handle, void *arg);
TSR_MUST int tsri_find_each(struct tsr_space *space, const struct tsr_prompt *prompt,
                            tsri_each_fn fn, void *arg);
TSR_MUST int tsri_find_keys(struct tsr_space *space, const struct tsr_prompt *prompt,
                            struct tsr_key *keys, uint32_t keys_max);
/* Does the pinned HOST entry hold exactly this text? */
bool tsri_entry_holds(struct tsr_cache *c, uint32_t id, const struct tsri_chunk *chunk,
                      const struct tsri_digest *digest, const uint32_t *tokens);

/* clients.c: leases */
struct tsr_client;
TSR_MUST int tsri_client_open(struct tsr_client **out, struct tsr_cache *c);
void tsri_client_close(struct tsr_client *client);
struct tsr_cache *tsri_client_cache(const struct tsr_client *client);
/* Its connection, when a server has the cache. */
struct tsri_seat *tsri_client_seat(const struct tsr_client *client);
/* A lookup under a request id replaces what the id had: detach the old leases, lease what was
 * found, then let the old ones go, so that nothing is unprotected in between. */
struct tsri_lease;
struct tsri_lease *tsri_client_detach(struct tsr_client *client, uint64_t request_id);
int tsri_client_let_go(struct tsr_client *client, struct tsri_lease *list);
/* Sets leases aside, so that what a lookup reports is leased whoever else uses the client: as many
 * as there are, at most n. What is not used is given back. */
uint32_t tsri_client_reserve(struct tsr_client *client, uint64_t n);
void tsri_client_unreserve(struct tsr_client *client, uint32_t n);
/* What leases and stores of it hold. */
struct tsri_holder *tsri_client_holder(struct tsr_client *client);
/* Takes over pins as leases of the request, out of those set aside; they are held (tsri_hold). */
void tsri_client_lease_reserved(struct tsr_client *client, uint64_t request_id, const uint32_t *ids,
                                uint32_t n);
/* The same without setting aside and holding before; false when there is no room, then nothing
 * changed. */
bool tsri_client_lease(struct tsr_client *client, uint64_t request_id, const uint32_t *ids,
                       uint32_t n);
int tsri_client_release(struct tsr_client *client, uint64_t request_id);
/* Those of every request; _some: at most so many of them. */
int tsri_client_release_some(struct tsr_client *client, uint32_t max);
int tsri_client_release_all(struct tsr_client *client);

/* puts.c */
/* Every put begins with this. */
struct tsri_put_base {
    struct tsr_client *client;
};
TSR_MUST int tsri_put_open(struct tsr_put **out, struct tsr_client *client,
                           const struct tsr_store *store, bool use_view);
/* Copies layers [first, first + n) from a view whose strides are set; the view begins at `first`.
 */
TSR_MUST int tsri_put_layers(struct tsr_put *put, uint32_t first, uint32_t n,
                             const struct tsr_view *view);
/* `source`: the region of tsri_region_init_remote in which the view lies; NULL: it is memory. */
TSR_MUST int tsri_put_layers_from(struct tsr_put *put, uint32_t first, uint32_t n,
                                  const struct tsr_view *view, const struct tsri_region *source);
TSR_MUST int tsri_put_commit(struct tsr_put *put);
void tsri_put_abort(struct tsr_put *put);
/* Entries to be filled; 0: everything is there already. */
uint32_t tsri_put_n_blocks(const struct tsr_put *put);
/* For those who fill them where they stand (deliver.c), and then say so. */
struct tsri_put_block {
    uint32_t id, n_tokens;
    uint32_t offset; /* of its first token in what is put */
};
struct tsri_put_block tsri_put_block(const struct tsr_put *put, uint32_t i);
const struct tsr_space *tsri_put_space(const struct tsr_put *put);
uint32_t tsri_put_n_tokens(const struct tsr_put *put);
void tsri_put_filled(struct tsr_put *put);
/* All of it in one go. */
TSR_MUST int tsri_put_all(struct tsr_client *client, const struct tsr_store *store);
TSR_MUST int tsri_put_all_from(struct tsr_client *client, const struct tsr_store *store,
                               const struct tsri_region *source);

/* ops.c: asynchronous operations */
struct tsri_ops;
TSR_MUST int tsri_ops_open(struct tsri_ops **out, struct tsr_cache *c);
void tsri_ops_close(struct tsri_ops *ops);
struct tsri_work *tsri_ops_work(struct tsri_ops *ops);
struct tsri_op_desc {
    struct tsr_client *client;
    struct tsr_load *loads; /* a load, or */
    uint32_t n_loads;
    const struct tsr_store *store; /* a store */
    tsr_done_fn done;
    void *arg;
};
TSR_MUST int tsri_op_start(struct tsr_op **out, struct tsri_ops *ops,
                           const struct tsri_op_desc *desc);

#endif
