/* find.h - from a prompt to entries: its chunks one after the other, what the index has of them,
 * and the runs of tokens that entries have in common with it at any offset.
 *
 * Threads: any. What is found is pinned without a lock.
 * Memory:  a walk and a matcher are the caller's.
 */
#ifndef TSRI_FIND_H
#define TSRI_FIND_H

#include "cache/core.h"

/* ---- chunks.c: the chunks of a prompt, one after the other ---- */

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
    struct tsri_digest context; /* of the prompt's context, or of the first segment */
    bool has_context;           /* segments may have seen it */
    bool has_system;            /* the first segment is a system prompt */
    bool has_media, blended;
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

/* ---- align.c: the equal tokens of two texts around small edits ---- */

struct tsri_equal {
    uint32_t a, b, n; /* where in a, where in b, how many */
};
struct tsri_alignment {
    const uint32_t *a, *b;
    uint32_t a_begin, a_end, b_end; /* what may be compared: a from a_begin on, b from 0 on */
    int32_t edit_cost;              /* equal tokens that must make up for an edit, at most 64 */
    uint32_t run_min;               /* shorter runs are counted in n_equal only */
    uint64_t budget;                /* steps of about a nanosecond; what is used is taken off */
    struct tsri_equal *runs;        /* ascending in both, the caller's */
    uint32_t n, max;
    uint32_t n_equal;
    uint32_t n_beyond; /* more of them up to the ends of b, where those are near but do not pay */
    uint32_t a_near_from, a_near_to;     /* what the path with those runs through */
    uint32_t a_from, a_to, b_from, b_to; /* what the path runs through */
};
/* Follows both texts from a run of n equal tokens in both directions, as far as it pays. */
void tsri_align(struct tsri_alignment *x, uint32_t a_at, uint32_t b_at, uint32_t n);

/* ---- match.c: runs of tokens that a prompt and the entries of one space have in common ---- */

/* How many of the n tokens from a and b on, or before a and b, are the same one after the other. */
uint32_t tsri_same_ahead(const uint32_t *a, const uint32_t *b, uint32_t n);
uint32_t tsri_same_behind(const uint32_t *a, const uint32_t *b, uint32_t n);

struct tsri_run {
    uint32_t id; /* pinned */
    uint32_t prompt_offset, entry_offset, n_tokens;
    uint32_t group, group_tokens;    /* runs of one entry around edits, and their tokens */
    uint32_t beside;                 /* equal tokens around it, in runs too short to be worth it */
    uint8_t kind, context, coverage; /* enum tsr_kind, tsr_context, tsr_coverage */
    bool edits;                      /* edits.c has looked around it: joined to others like it */
    bool aligned;                    /* of an alignment, and shorter than windows promise */
};
#define TSRI_MATCHER_ASKED 16u
struct tsri_matcher {
    struct tsr_cache *c;
    const struct tsr_space *space;
    const struct tsr_prompt *prompt;
    const uint8_t *extra; /* request-wide, in the walk */
    uint32_t extra_bytes;
    const struct tsri_digest *context; /* what SAME means where it scans; NULL: nothing */
    bool other;                        /* takes runs computed behind other text */
    bool whole;                        /* takes nothing but whole entries */
    bool edits;                        /* looks for text with frequent edits, too */
    uint32_t min_tokens;
    uint64_t seed, budget, edit_budget;
    struct tsri_run *runs, *chosen;
    uint32_t n_runs, n_chosen, runs_max;
    uint32_t slice_tokens;              /* what one thread takes at a time */
    uint64_t *taken;                    /* a bit for each token of the prompt */
    uint64_t asked[TSRI_MATCHER_ASKED]; /* entries of lower tiers that were asked for last */
    uint32_t n_asked;
};
/* Memory a matcher needs for a prompt; the caller's, until fini. */
size_t tsri_matcher_bytes(const struct tsr_cache *c, uint32_t n_tokens);
void tsri_matcher_init(struct tsri_matcher *m, const struct tsr_space *space,
                       const struct tsri_walk *walk, void *memory);
void tsri_matcher_fini(struct tsri_matcher *m);
/* Adds the runs inside a part of the prompt to `runs`; they may overlap. Parts ascend. */
void tsri_matcher_scan(struct tsri_matcher *m, struct tsr_range part);
/* Of those, what begins in windows of a slice of the part. */
void tsri_matcher_scan_slice(struct tsri_matcher *m, struct tsr_range part, struct tsr_range slice);
/* Takes over a run with its pin. When there are too many the shorter half goes. */
void tsri_matcher_keep(struct tsri_matcher *m, const struct tsri_run *run);
uint32_t tsri_matcher_runs_max(uint32_t n_tokens, bool edits);
/* Has an entry of a lower tier loaded for the next lookup, unless it was asked for already. */
void tsri_matcher_ask_for(struct tsri_matcher *m, uint64_t handle);
/* The share of a stretch that must be equal. Less than half is never taken for the same text,
 * whatever min_match_ratio says. */
double tsri_matcher_ratio(const struct tsri_matcher *m);
/* A stretch of text with edits: how long it is in prompt and entry, and how much of it is equal. */
struct tsri_stretch {
    uint32_t id;
    uint64_t n_equal;
    uint32_t in_prompt, in_entry;
};
/* Whether a stretch has match_min_tokens, edited ones included. One of an entry that is found as a
 * whole is as long as the entry: its first and last tokens may be edited. */
bool tsri_matcher_is_long_enough(const struct tsri_matcher *m, const struct tsri_stretch *s);
/* The fewest tokens that a run around edits may have. */
uint32_t tsri_matcher_run_min(const struct tsri_matcher *m);
/* Whether a pinned entry may be used for this prompt; context: enum tsr_context. */
bool tsri_matcher_may_use(const struct tsri_matcher *m, const struct tsri_entry *e,
                          struct tsri_meta *meta, uint8_t *context);
/* Tokens that runs may grow over before they grow window by window. */
uint64_t tsri_matcher_budget(uint32_t n_tokens);
/* slices.c: tsri_matcher_scan in several threads; false without memory, and then nothing is done */
bool tsri_slices_scan(struct tsri_matcher *m, struct tsr_range part);
/* edits.c: adds what is found around frequent edits in a part, where the windows of the part have
 * found the runs from first_run on */
void tsri_edits_scan(struct tsri_matcher *m, struct tsr_range part, uint32_t first_run);
/* A bit for each token: the first from `at` on, before end, that is set or not; set some. */
uint32_t tsri_taken_next(const uint64_t *taken, uint32_t at, uint32_t end, bool is_taken);
void tsri_taken_add(uint64_t *taken, uint32_t at, uint32_t end);
/* run_sort.c: sorts n runs, equal ones as they were; scratch has room for as many */
typedef int tsri_run_order(const struct tsri_run *x, const struct tsri_run *y);
void tsri_runs_sort(struct tsri_run *runs, uint32_t n, struct tsri_run *scratch,
                    tsri_run_order *compare);
/* Turns `runs` into `chosen`: they do not overlap and ascend. */
void tsri_matcher_choose(struct tsri_matcher *m);

/* ---- compose.c: what is found at any offset, between what a lookup has found already ---- */

struct tsri_compose {
    const struct tsri_walk *walk;
    struct tsr_lookup_desc *io; /* rows are added to it, in their places */
    /* How many of so many rows may be added, for reasons other than matches_max. */
    uint32_t (*grant)(void *arg, uint32_t n_rows);
    /* May a row's entries, which are pinned, be taken? Then `took` gets each with its pin. */
    bool (*may)(void *arg, const uint32_t *ids, uint32_t n);
    void (*took)(void *arg, uint32_t id);
    void *arg;
};
/* Returns how many tokens the added rows have. */
uint32_t tsri_compose(const struct tsri_compose *q);

/* ---- find.c ---- */

/* One chunk found in one space, pinned by the finder; id TSRI_ID_NONE: not found. */
struct tsri_found {
    uint32_t id;
    uint8_t state, context;
};
TSR_MUST int tsri_find(struct tsr_client *client, const struct tsr_prompt *prompt,
                       struct tsr_lookup_desc *lookup);
/* Calls fn for every chunk of the prompt that the space has and adds up what it returns. A prefix
 * ends at its first missing block. The entry is not pinned: it may be gone when fn looks. */
typedef int (*tsri_each_fn)(struct tsr_cache *c, uint64_t handle, void *arg);
TSR_MUST int tsri_find_each(struct tsr_space *space, const struct tsr_prompt *prompt, uint32_t from,
                            tsri_each_fn fn, void *arg);
/* As tsri_cache_lacking, where the entries are here: without a call for each space, and the chain
 * goes on from where it was left. */
TSR_MUST int tsri_find_lacking(struct tsr_space *const *spaces, uint32_t n_spaces,
                               const struct tsr_prompt *prompt, uint32_t from,
                               struct tsri_chain *chain, struct tsr_key *keys, uint64_t *lacking);
TSR_MUST int tsri_find_keys(struct tsr_space *space, const struct tsr_prompt *prompt,
                            struct tsr_key *keys, uint32_t keys_max);

#endif
