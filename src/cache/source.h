/* source.h - matched ranges of entries, read where they are: the one way to the KV of a match.
 * Loads copy it, deliveries and feeds move it to a device, lends tell a client of the server where
 * it is.
 *
 *     want    what is to be read: the one check of a match
 *     open    pins what is here and compares it with the prompt; never waits
 *     fetch   brings up the rest, from lower tiers or from the server; waits
 *     cells   describes a range for a device; copy moves it to plain memory
 *     holds   asked after reading: was it all still there?
 *     close   lets go
 *
 * A range is taken from the device pool, if the reader can read that; from host memory; from a
 * lower tier, through host memory; or from pages that a server lends. Readers see the difference in
 * `where` alone.
 *
 * What is compared: a match that a lookup only nominated, with the chunk of the prompt that it
 * stands for; a verified one, where a prompt is given, with the tokens it covers, because its entry
 * may have been fetched again since. Every range that fails is counted (`collisions`).
 *
 * Threads: one at a time calls these functions; ranges that are here may be read by several.
 * Memory:  ranges, matches and prompts are the caller's until close.
 * Errors:  a range that cannot be read has its reason in `result`.
 */
#ifndef TSRI_SOURCE_H
#define TSRI_SOURCE_H

#include "cache/cache.h"
#include "tier/hot.h"

struct tsri_entry;
struct tsri_locking;
struct tsri_meta;

/* ---- wanted.c: what matches stand for in their prompts ---- */

struct tsri_wanted {
    const struct tsr_space *space;
    const struct tsr_match *match;
    const struct tsr_prompt *prompt;
    struct tsri_wanted *next;
    struct tsri_digest digest; /* of the chunk at its place, and its tokens; 0: there is none */
    uint32_t n_tokens;
};
/* Finds the chunks of matches that are not verified, all in one walk. The list in another order. */
struct tsri_wanted *tsri_wanted_find(struct tsri_wanted *list);
/* Is the entry, whose meta is in memory, what was wanted? */
bool tsri_wanted_is(const struct tsri_wanted *w, const struct tsri_entry *e,
                    struct tsri_meta *meta);

/* ---- borrow.c: what the source of a served cache has borrowed ---- */

struct tsri_borrow {
    struct tsri_seat *seat;
    uint64_t session, lease;
    struct tsri_mapping *mapping;   /* NULL: nothing is borrowed */
    struct tsri_seat_space *spaces; /* of each range */
    uint32_t **blocks;              /* the pages of each request */
    uint32_t n_blocks;
};
/* Asked after reading: false when it was in vain. */
bool tsri_borrow_holds(const struct tsri_borrow *b);
/* Accepts one that holds nothing. */
void tsri_borrow_fini(struct tsri_borrow *b);

/* ---- source.c ---- */

enum tsri_where {
    TSRI_GONE = 0,  /* not to be had: see the result */
    TSRI_BELOW = 1, /* a lower tier or the server has it: fetch */
    TSRI_HERE = 2,  /* in pages that are known */
    TSRI_HOT = 3    /* in the device pool */
};

struct tsri_want {
    const struct tsr_space *space;
    const struct tsr_match *match;
    const struct tsr_prompt *prompt; /* needed for matches that are not verified */
    uint32_t offset, n_tokens;       /* within the match; n_tokens 0: to its end */
};

struct tsri_source_range {
    struct tsri_source *source;
    struct tsri_wanted wanted; /* its space, match and prompt */
    uint32_t offset, n_tokens; /* in the entry */
    int result;
    uint32_t id; /* pinned until close; TSRI_ID_NONE: not */
    enum tsri_where where;
    /* HERE, HOT and, while its layers arrive, BELOW: */
    uint32_t base, freq_set, entry_tokens;
    /* HERE and BELOW: the pages of those cells that hold the range */
    uint32_t cell_first, n_pages;
    const uint32_t *pages;
    const struct tsri_shape *shape; /* in which they are laid out */
};

struct tsri_source {
    struct tsr_cache *c;
    struct tsr_client *client; /* whose connection is used; NULL: the cache's own */
    struct tsri_source_range *ranges;
    uint32_t n;
    struct tsri_hot_pin *pins; /* [n], of those that are HOT; NULL: the pool is not asked */
    uint64_t compare_max;      /* tokens of verified matches here that are compared; 0: all */
    /* (optional) layer `layer` of a BELOW range is in its pages, proven. Layers ascend, each comes
     * once, and all have the same base and freq_set. */
    void (*layer_done)(struct tsri_source_range *r, uint32_t layer);
    void *arg;
    /* the source's: */
    uint8_t *memory;                    /* that the pages are of */
    const struct tsri_locking *locking; /* of it; NULL: the device needs none, or there is none */
    struct tsri_borrow borrow;          /* of a server, from fetch on */
};

/* Is it a match of this cache that a lookup could have made, and do its offsets fit? TSR_EINVAL or
 * TSR_ESPACE. */
TSR_MUST int tsri_source_want(struct tsri_source_range *r, const struct tsr_cache *c,
                              const struct tsri_want *want);
/* All ranges are set by _want. Returns how many are BELOW. */
uint32_t tsri_source_open(struct tsri_source *s);
/* Afterwards none is BELOW. An error is one of the call, not of a range: all that were BELOW have
 * it as their result. When *stop becomes true (may be NULL) the rest is given up (TSR_EAGAIN). */
TSR_MUST int tsri_source_fetch(struct tsri_source *s, const atomic_bool *stop);
/* What was read before this call is right; always, where no server can take it back. */
static inline bool tsri_source_holds(const struct tsri_source *s)
{
    return !s->borrow.mapping || tsri_borrow_holds(&s->borrow);
}
/* Layers [first, + n) of a range that is HERE, or whose layers have arrived. */
void tsri_source_copy(const struct tsri_source_range *r, uint32_t first, uint32_t n,
                      const struct tsr_view *view);
/* Are all of its pages page-locked for the device of the cache? From then on they are. */
bool tsri_source_is_locked(const struct tsri_source_range *r);
/* Describes the cells that hold a range as if the entry had no others, in `planes`, which has room
 * for _n_planes pointers; a HOT one as all of its entry, which needs none. Returns where in them
 * the range begins. Whether they are in the int8 form is the caller's to say. */
uint32_t tsri_source_n_planes(const struct tsri_source_range *r);
uint32_t tsri_source_cells(const struct tsri_source_range *r, void **planes,
                           struct tsr_kv_cells *out);
/* Makes *r all of an entry of a put, which the caller fills in its place. It is not pinned. */
void tsri_source_filling(struct tsri_source *s, struct tsri_source_range *r,
                         const struct tsr_space *space, uint32_t id);
void tsri_source_close(struct tsri_source *s);

/* ---- own.c's and served.c's part of it (backend.h) ---- */

uint32_t tsri_source_open_own(struct tsri_source *s);
TSR_MUST int tsri_source_fetch_own(struct tsri_source *s, const atomic_bool *stop);
uint32_t tsri_source_open_served(struct tsri_source *s);
TSR_MUST int tsri_source_fetch_served(struct tsri_source *s, const atomic_bool *stop);

/* ---- loads.c: several ranges together, one layer after the other ---- */

struct tsri_loader {
    struct tsr_client *client;
    struct tsr_load_desc *loads;
    uint32_t n;
    /* (optional) layer l of every range that can be loaded is in place */
    void (*layer_done)(struct tsri_loader *loader, uint32_t layer);
    void *arg;
};
/* Runs it to the end in the calling thread; returns how many ranges were loaded. */
TSR_MUST int tsri_loader_run(struct tsri_loader *loader);

/* ---- lends.c: ranges for readers that copy out of the pool themselves ---- */

/* Opens the source and leases each entry to the request of s->client besides. Never waits. Returns
 * how many are BELOW. */
uint32_t tsri_lends_open(struct tsri_source *s, uint64_t request_id);
/* As tsri_source_fetch; the prompt of all ranges may stand elsewhere now. */
TSR_MUST int tsri_lends_fetch(struct tsri_source *s, const struct tsr_prompt *prompt,
                              const atomic_bool *stop);
/* Closes it; the leases stay. Counts, and returns how many were lent. */
int tsri_lends_close(struct tsri_source *s);

#endif
