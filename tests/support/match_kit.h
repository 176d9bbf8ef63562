/* match_kit.h - for tests of matching at any offset: documents and prompts made of them by random
 * edits, entries made under the API from given tokens, a naive search for all common runs, and a
 * check of loaded bytes against the stored document rather than the prompt. */
#ifndef TSRI_MATCH_KIT_H
#define TSRI_MATCH_KIT_H

#include "support/cache_kit.h"

/* ---- random text ---- */

struct text {
    uint32_t *tokens;
    uint32_t n, max;
};
uint32_t text_random(uint64_t *seed, uint32_t below);
void text_init(struct text *t, uint32_t max);
void text_fini(struct text *t);
void text_add(struct text *t, const uint32_t *tokens, uint32_t n);
/* Tokens below `vocabulary`. */
void text_add_random(struct text *t, uint64_t *seed, uint32_t n, uint32_t vocabulary);
/* A copy of the tokens with n_edits of them or runs of them replaced, inserted, deleted, moved or
 * repeated. */
void text_add_edited(struct text *t, uint64_t *seed, const uint32_t *tokens, uint32_t n,
                     uint32_t n_edits, uint32_t vocabulary);

/* ---- entries ---- */

/* A pure segment of these tokens, as a store makes it, without KV. Takes the cache's lock. */
uint32_t match_entry(struct kit *k, uint64_t seed, const uint32_t *tokens, uint32_t n,
                     uint32_t kind);

/* The i-th step of a writer beside lookups: an entry of n tokens of one of 11 texts, of which two in
 * three are dropped at once. */
void match_churn(struct kit *k, uint32_t i, uint32_t n);

/* Begins to match a prompt against the kit's space; the memory is freed by match_end. */
struct matching {
    struct tsr_prompt prompt;
    struct tsri_walk walk;
    struct tsri_matcher m;
    void *memory;
};
void match_begin(struct matching *x, struct kit *k, const uint32_t *tokens, uint32_t n,
                 uint32_t flags);
void match_end(struct matching *x);
/* A run is what both have, and, when it shall be maximal, cannot be longer. */
bool match_run_is_right(const struct kit *k, const struct matching *x, const struct tsri_run *r,
                        bool maximal);

/* ---- the naive search ---- */

struct common {
    uint32_t prompt, entry, n;
};
/* All maximal common runs of at least n_min tokens, at most max. */
uint32_t match_naive(const uint32_t *prompt, uint32_t n_prompt, const uint32_t *entry,
                     uint32_t n_entry, uint32_t n_min, struct common *out, uint32_t max);

/* ---- lookups ---- */

/* Opens the kit with room for the texts of these tests, closing it before where it is open. */
void match_reopen(struct kit *k, const char *const *more);
/* The text, looked for at any offset too. */
struct tsr_prompt match_prompt(const struct text *t, uint32_t flags);

/* ---- bytes ---- */

/* Something that was stored: what its first token had seen, and its tokens. */
struct stored {
    uint64_t before;
    const uint32_t *tokens;
    uint32_t n;
    uint32_t kind;
};
/* A segment that was stored alone in the kit's space. */
struct stored match_pure(const struct kit *k, const uint32_t *tokens, uint32_t n);
/* Loads all rows of a lookup and checks every byte, as one of what was stored; and that they ascend,
 * do not overlap, and add up to n_tokens. False, with a line, when one is not. */
bool match_rows_are_right(struct kit *k, const struct kit_hits *hits, int n_tokens,
                          const struct tsr_prompt *prompt, const struct stored *stored, uint32_t n);

#endif
