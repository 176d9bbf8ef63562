/* entries.h - what the cache knows about the KV of one chunk, and the life of it.
 *
 * An entry is 64 bytes: key, one atomic word of generation, state and pins, its place in a chain,
 * and where its meta is. The meta, in the arena, has tokens, digest, extra and the table of pages.
 *
 *     FREE -> FILLING -> HOST <-> COLD -> FREE          (DYING when dropped while pinned)
 *
 * Threads: who has pinned an entry in state HOST may read its meta and its pages until it unpins,
 *          without a lock. Everything else changes under cache->lock only.
 * Memory:  entries are reserved when the cache is opened. A COLD entry has neither meta nor pages: a
 *          lower tier has them.
 */
#ifndef TSRI_ENTRIES_H
#define TSRI_ENTRIES_H

#include "base/base.h"
#include "chunk/chunk.h"

#include <tessera/tessera.h>

#define TSRI_ID_NONE UINT32_MAX

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

/* ---- entries.c: states, pins, chains; the only file that changes an entry's word ---- */

/* The state it was pinned in (HOST or COLD), or FREE when it cannot be. Lock-free. */
enum tsri_state tsri_pin(struct tsr_cache *c, uint32_t id);
/* By a handle that was made in this life of the cache: when the generation still is the same. */
enum tsri_state tsri_pin_handle(struct tsr_cache *c, uint64_t handle, uint32_t *id);
/* By a match, which may come from anywhere: the one way from a match to its entry. FREE when it is
 * not of this life of this cache. An entry that was dropped while others have it pinned can still
 * be pinned as HOST, if it is in memory. */
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
/* Under cache->lock: calls fn for an entry and all behind it. */
void tsri_entry_each_behind(struct tsr_cache *c, uint32_t id,
                            void (*fn)(struct tsr_cache *c, uint32_t id));
/* True when it, and everything behind it, is unpinned, but for those that wait to be written. */
bool tsri_entry_is_idle(struct tsr_cache *c, uint32_t id);
/* Gives a COLD entry the meta and pages that were filled for it. */
void tsri_entry_warm(struct tsr_cache *c, uint32_t id, uint32_t meta);
uint32_t tsri_entry_live(struct tsr_cache *c,
                         struct tsri_key key); /* id in HOST or COLD, or NONE */

#endif
