/* cache_kit.h - a small cache for tests, with KV that is a function of everything its tokens have
 * seen: space, what stood before, the tokens up to their own, layer and plane. So every loaded byte
 * is checked without keeping what was stored, and bytes of another space, position or context are
 * always wrong. What must work for a test to mean anything (opening, memory) stops the program with
 * a line; what is tested returns what the library returned. */
#ifndef TSRI_CACHE_KIT_H
#define TSRI_CACHE_KIT_H

#include "cache/clients.h"
#include "find/find.h"
#include "cache/ops.h"
#include "cache/puts.h"
#include "cache/source.h"

/* Owns its cache, one client and one space; others that a test opens are closed by the test, before
 * kit_close. */
struct kit {
    struct tsr_cache *cache;
    struct tsr_client *client;
    struct tsr_space *space;
};

/* Options: "key", "value", .., NULL; or NULL for none. They come on top of a cache of 64 pages of
 * 16 KiB and blocks of 16 tokens; with kit_desc, an entry of up to 64 tokens takes one page. */
void kit_open(struct kit *k, const char *const *options);
/* The same, with tiers or whatever else the test has put into cfg, which it closes itself. */
void kit_open_config(struct kit *k, struct tsr_config *cfg);
struct tsr_config *kit_config(const char *const *options);
/* The same, with a fake tier over each of the n plans below, in their order. The cache may be
 * closed and opened again over the same plans. */
struct fake_tier_plan;
void kit_open_tiers(struct kit *k, const char *const *options, struct fake_tier_plan *plans,
                    uint32_t n);
void kit_close(struct kit *k);
/* Closes it too, after clearing it and counting: false when a page, a byte of metadata or a pin did
 * not come back. Everything else that a test has opened must be closed and released before. */
bool kit_end(struct kit *k);
struct tsr_stats kit_stats(const struct kit *k);
uint64_t kit_metric(const struct kit *k, enum tsri_metric m);

/* F16, 2 layers, 2 heads of 16: rows of 64 bytes. */
struct tsr_space_desc kit_desc(void);
struct tsr_space *kit_space(struct tsr_cache *c, const struct tsr_space_desc *desc);
struct tsr_client *kit_client(struct tsr_cache *c);

/* The same seed gives the same tokens, and longer runs begin with the shorter ones. free() them. */
uint32_t *kit_tokens(uint64_t seed, uint32_t n);

/* ---- KV ---- */

/* What a run of tokens has seen, as kv_entry.h folds it: start from kit_seed, then go on over every
 * token before the run. */
uint64_t kit_seed(const struct tsr_space *space);
uint64_t kit_seen(uint64_t before, const uint32_t *tokens, uint32_t n);
/* Fills a packed view of all layers; `before` is what the first token has seen. */
void kit_fill(const struct tsr_space *space, uint64_t before, const uint32_t *tokens, uint32_t n,
              void *packed);
/* Whether n_layers layers from layer_first on are right, in any checked view. */
bool kit_right(const struct tsr_space *space, uint64_t before, const uint32_t *tokens, uint32_t n,
               uint32_t layer_first, uint32_t n_layers, const struct tsr_view *view);

/* ---- store ---- */

/* Fills in size, space (when NULL) and a view with the right KV, and stores it. */
int kit_store(struct kit *k, const struct tsr_store_desc *store);
/* The view alone, for puts and asynchronous stores; free() its data. */
struct tsr_view kit_store_view(const struct tsr_store_desc *store);
int kit_store_prefix(struct kit *k, const uint32_t *tokens, uint32_t n);
int kit_store_segment(struct kit *k, const uint32_t *tokens, uint32_t n);
int kit_store_behind(struct kit *k, const uint32_t *context, uint32_t n_context,
                     const uint32_t *tokens, uint32_t n);

/* ---- lookup and load ---- */

#define KIT_ROWS_MAX 512u
struct kit_hits {
    struct tsr_lookup_desc io;
    struct tsr_space *space;
    struct tsr_match matches[KIT_ROWS_MAX];
};
struct tsr_prompt kit_prefix_prompt(const uint32_t *tokens, uint32_t n);
struct tsr_prompt kit_segments_prompt(const uint32_t *tokens, uint32_t n,
                                      const struct tsr_range *segments, uint32_t n_segments);
/* One segment, all of the tokens; *range must live as long as the prompt. */
struct tsr_prompt kit_segment_prompt(const uint32_t *tokens, uint32_t n, struct tsr_range *range);
/* In the kit's space; request_id 0: no leases. */
int kit_lookup(struct kit *k, const struct tsr_prompt *prompt, uint64_t request_id,
               struct kit_hits *hits);
/* Evicts everything that may go from host memory; returns how many entries went. */
int kit_evict_all(struct kit *k);
/* Tokens of the prefix, or of the segment, that a lookup finds. */
int kit_find_prefix(struct kit *k, const uint32_t *tokens, uint32_t n);
int kit_find_segment(struct kit *k, const uint32_t *tokens, uint32_t n);
/* Loads row `row` into packed memory. The tsr_client_load's result, or 0 when every byte is right;
 * a byte that is not stops the program. */
int kit_load(struct kit *k, const struct tsr_prompt *prompt, const struct kit_hits *hits,
             uint32_t row);
/* What the first token of a match has seen. */
uint64_t kit_match_seen(const struct tsr_space *space, const struct tsr_prompt *prompt,
                        const struct tsr_match *m);
/* Looks up, loads every row and checks every byte; returns the tokens loaded. */
int kit_load_and_check(struct kit *k, const struct tsr_prompt *prompt);

/* ---- below the API ---- */

/* A key with the seed in it and nothing behind it, for entries made by hand. */
struct tsri_key kit_key(uint64_t seed);
/* Makes a segment entry (or, behind a parent, a block) of n_tokens in host memory, as a store does;
 * its key is kit_key(seed). TSRI_ID_NONE when there is no room. Takes the cache's lock. */
uint32_t kit_entry(struct kit *k, uint64_t seed, uint32_t n_tokens, uint32_t parent);
/* Reserved but not published: FILLING. */
uint32_t kit_filling(struct kit *k, uint64_t seed, uint32_t n_tokens);
/* Index, entries, pages and memory agree; walks everything. The caller holds the lock. */
bool kit_cache_valid(struct tsr_cache *c);
bool kit_valid(struct kit *k); /* takes the lock */

#endif
