/* cache.h - a cache as the rest of the library sees it: handles, and functions that say what of it
 * they need. What is inside, core.h has; blend, connector, daemon and cli do not include that
 * (tools/check-tree.sh).
 *
 * Threads: all of it from any thread, unless it says otherwise.
 * Memory:  pointers that are returned are valid as long as the cache or the space is open.
 * Errors:  as in tessera.h.
 */
#ifndef TSRI_CACHE_H
#define TSRI_CACHE_H

#include "base/base.h"
#include "chunk/chunk.h"
#include "config/config.h"
#include "device/device.h"
#include "stats/stats.h"
#include "tier/tier.h"
#include "chunk/cells.h"

#include <tessera/async.h>
#include <tessera/tier.h>

struct tsri_holder;

/* ---- the cache ---- */

TSR_MUST int tsri_cache_open(struct tsr_cache **out, const struct tsr_config *cfg);
/* Texts in it that were borrowed from a configuration are empty. */
const struct tsri_options *tsri_cache_options(const struct tsr_cache *c);
struct tsri_stats *tsri_cache_metrics(const struct tsr_cache *c);
/* Of the engines here, or NULL. */
struct tsri_device *tsri_cache_device(const struct tsr_cache *c);
/* Its threads, for work beside that of the cache. */
struct tsri_work *tsri_cache_work(const struct tsr_cache *c);
/* Is this a forked child, which must leave it alone? */
bool tsri_cache_is_forked(const struct tsr_cache *c);
/* Host memory with KV, and its descriptor for other processes. */
struct tsri_cache_memory {
    int fd; /* -1: it is not shared */
    uint32_t n_pages, page_bytes;
};
struct tsri_cache_memory tsri_cache_memory(const struct tsr_cache *c);
/* Entries that were stored and could not be kept, since open. */
uint64_t tsri_cache_n_lost(const struct tsr_cache *c);
/* As tsr_cache_flush(). n_lost: how many entries were lost since open, for a caller that keeps
 * count of what it has told; NULL: this thread is told, by an error. */
TSR_MUST int tsri_cache_flush(struct tsr_cache *c, uint64_t *n_lost);
/* Host memory and the tiers below it, for people to look at. */
struct tsri_tier_row {
    const char *name; /* static */
    uint64_t entries, tokens, bytes_used, bytes_max;
};
/* Returns how many, host memory first. */
uint32_t tsri_cache_tiers(struct tsr_cache *c, struct tsri_tier_row out[TSR_TIERS_MAX]);
/* Starts to bring up an entry that only lower tiers have. */
int tsri_cache_prefetch_one(struct tsr_cache *c, uint64_t handle, void *unused);

/* ---- tiers.c ---- */

/* The built-in tier of that name, or NULL. */
const struct tsr_tier_ops *tsri_tier_find(const char *name);

/* ---- spaces ---- */

#define TSRI_SPACE_NAME_BYTES 64

/* As tsr_space_open without tsri_spaces_make_room: never waits. */
TSR_MUST int tsri_space_open_now(struct tsr_space **out, struct tsr_cache *c,
                                 const struct tsr_space_desc *desc);
/* Drops the entries of the space that was closed longest ago and of which nothing is in use, so
 * that another can have its slot. Walks all entries; false when there is none. */
bool tsri_spaces_make_room(struct tsr_cache *c);
/* Opens a space that is there already. One that is not *shaped is known from a tier alone: its
 * entries can be cleared and nothing else. */
TSR_MUST int tsri_space_find(struct tsr_space **out, struct tsr_cache *c,
                             const uint8_t fingerprint[16], bool *shaped);
/* Do separators cut its prompts into segments? */
bool tsri_space_is_split(const struct tsr_space *space);
/* Is one of them in this prompt? */
bool tsri_space_has_separator(const struct tsr_space *space, const uint32_t *tokens, uint32_t n);
uint32_t tsri_space_block_tokens(const struct tsr_space *space);
const struct tsri_shape *tsri_space_shape(const struct tsr_space *space);
/* Spaces that are open or have entries, for people to look at. */
struct tsri_space_row {
    char model[TSRI_SPACE_NAME_BYTES]; /* "": seen in a tier only */
    uint8_t fingerprint[16];
    uint32_t refs, entries;
    uint64_t token_bytes; /* of KV */
};
/* At most max of them, most entries first; returns how many. */
uint32_t tsri_cache_spaces(struct tsr_cache *c, struct tsri_space_row *out, uint32_t max);

/* Can entries of this shape, perhaps in the int8 form, be exchanged with that memory?
 * TSR_ESPACE. */
TSR_MUST int tsri_shape_fits(const struct tsri_shape *s, const struct tsr_kv_layout *l, bool int8);

/* ---- clients and stores, for a server ---- */

struct tsr_cache *tsri_client_cache(const struct tsr_client *client);
/* Leases of all requests, at most so many of them; how many went. */
int tsri_client_release_some(struct tsr_client *client, uint32_t max);
/* What leases and stores of it hold. */
struct tsri_holder *tsri_client_holder(struct tsr_client *client);
/* Pages that are no entry yet. */
TSR_MUST bool tsri_hold_pages(struct tsri_holder *x, uint64_t n);
void tsri_unhold_pages(struct tsri_holder *x, uint64_t n);
/* Entries to be filled; 0: everything is there already. */
uint32_t tsri_put_n_blocks(const struct tsr_put *put);
/* What an open put takes in: entries to be filled, and tokens from its first one on that are there
 * once it is committed; fewer than were given when there is no room for more. Of a put that a server
 * has, all tokens. */
struct tsri_put_extent {
    uint32_t n_blocks, n_tokens;
    bool sent; /* to a server */
};
struct tsri_put_extent tsri_put_extent(const struct tsr_put *put);
/* As tsr_put_layer, of several layers; the view begins at the first of them. `source`: the
 * region of tsri_region_init_remote in which the view lies; NULL: it is memory. */
TSR_MUST int tsri_put_layers_from(struct tsr_put *put, uint32_t first, uint32_t n,
                                  const struct tsr_view *view, const struct tsri_region *source);
TSR_MUST int tsri_put_all_from(struct tsr_client *client, const struct tsr_store_desc *store,
                               const struct tsri_region *source);

/* ---- entries, for people to look at ---- */

struct tsri_entry_row {
    uint64_t entry; /* as in a match */
    struct tsr_key key;
    uint8_t space[16]; /* its fingerprint */
    uint64_t bytes;    /* of KV; 0: how large a token is, is not known yet */
    uint32_t n_tokens, pins;
    uint16_t user_pins;
    uint8_t kind, tiers; /* bit t: tier t has it; bit 0 is host memory */
};
#define TSRI_LIST_END UINT32_MAX
/* Entries one after the other, from id `first` on. *next is where to go on, or TSRI_LIST_END.
 * Returns how many. */
uint32_t tsri_cache_list(struct tsr_cache *c, uint32_t first, struct tsri_entry_row *out,
                         uint32_t max, uint32_t *next);
/* Entries of host memory, the next to be evicted first, without the first `first` of them. *next is
 * where to go on, or TSRI_LIST_END; the order may change meanwhile. *total: how many there are in
 * all. Returns how many rows, or TSR_ENOMEM. */
TSR_MUST int tsri_cache_order(struct tsr_cache *c, uint32_t first, struct tsri_entry_row *out,
                              uint32_t max, uint32_t *next, uint32_t *total);
/* Brings up what only lower tiers have, as long as host memory is free and at most about so many
 * bytes (0: all). Waits for the tiers, until *stop is true (may be NULL); how many came. */
uint32_t tsri_cache_warm(struct tsr_cache *c, uint64_t bytes_max, const atomic_bool *stop);

/* ---- chunks of a prompt ---- */

#define TSRI_SEGMENTS_MAX 4096u    /* of a prompt */
#define TSRI_LOOKUP_SPACES_MAX 64u /* in one lookup */
/* Where a walk along a chain has come: what is before it need not be hashed again. */
struct tsri_chain {
    struct tsri_digest digest; /* of the blocks before it */
    uint32_t n_tokens;         /* in them; 0: it begins */
};
/* Which whole blocks of a prompt, from token `from` on, are not known: bit k of lacking[i], which
 * was 0, when spaces[k] has not got block i; keys[i] is the key in the first. The spaces are of one
 * cache and have blocks of one size. *chain is taken up where it is not behind `from`, and left at
 * the prompt's end. A server that does not answer is an error. */
TSR_MUST int tsri_cache_lacking(struct tsr_space *const *spaces, uint32_t n_spaces,
                                const struct tsr_prompt *prompt, uint32_t from,
                                struct tsri_chain *chain, struct tsr_key *keys, uint64_t *lacking);
/* As tsr_put_open of a prefix, for stores that go on where the last one ended: *chain, which begins
 * empty and belongs to one text in one space, saves hashing what is before them again. */
TSR_MUST int tsri_cache_put_open(struct tsr_put **out, struct tsr_client *client,
                                 const struct tsr_store_desc *store, struct tsri_chain *chain);
/* A lookup has found something of the prompt: what of it is in lower tiers alone is brought up in
 * the background. */
void tsri_cache_bring_up(struct tsr_space *space, const struct tsr_prompt *prompt);

/* ---- texts.c: entries without KV ---- */

/* Makes an entry of a text whose KV is elsewhere, so that lookups find it as they would find the
 * entry it is a copy of; its pages mean nothing. `read` fills tokens and extra, of the lengths in
 * the head. */
typedef int (*tsri_read_text_fn)(void *arg, uint32_t *tokens, uint8_t *extra);
TSR_MUST int tsri_texts_add(struct tsr_space *space, const struct tsr_entry_head *head,
                            tsri_read_text_fn read, void *arg, uint64_t *handle);
/* What such an entry takes of metadata_size, without what the allocator adds. */
size_t tsri_texts_bytes(uint32_t n_tokens, uint32_t n_pages, uint32_t extra_bytes);
/* A space in which nothing is stored yet takes the place of another. */
void tsri_texts_space(struct tsr_space *space, const uint8_t fingerprint[16],
                      uint32_t block_tokens);

#endif
