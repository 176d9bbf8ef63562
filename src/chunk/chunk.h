/* chunk.h - from tokens to chunks, keys and digests. A prompt is cut at separators or into fixed
 * blocks; every chunk gets a 128-bit key to be found by, and a digest that says what stood before
 * it. All of it is a pure function of its arguments and gives the same bytes in every process and
 * on every machine; docs/format.md ("Keys and digests") writes the encodings down byte by byte and
 * tests/golden holds them to it.
 *
 * Threads: everything here may be called from any thread; there is no shared state.
 * Memory:  nothing is kept of what is passed in; only tsri_separators_open allocates.
 * Errors:  int results are >= 0 on success; the message names the field, item or token offset.
 */
#ifndef TSRI_CHUNK_H
#define TSRI_CHUNK_H

#include "base/base.h"
#include "config/options.h" /* enum tsri_hash */

/* ---- keys ---- */

/* XXH3-128. As bytes: lo, then hi, both little-endian. */
struct tsri_key {
    uint64_t lo, hi;
};

#define TSRI_DIGEST_BYTES 32
/* All zero: none (a pure context). */
struct tsri_digest {
    uint8_t bytes[TSRI_DIGEST_BYTES];
};

/* T of the design: XXH3-128 of the tokens as little-endian uint32. */
struct tsri_key tsri_tokens_hash(const uint32_t *tokens, size_t n);
/* XXH3-64 with seed 0, as fast as the machine allows: the checksum of what crosses from disk. */
uint64_t tsri_bytes_hash(const void *data, size_t bytes);
#if defined(__aarch64__)
/* xxh3.c: what the two above call on Arm. */
uint64_t tsri_xxh3_64(const void *data, size_t bytes);
struct tsri_key tsri_xxh3_128(const void *data, size_t bytes);
#endif

/* Everything a key depends on. */
struct tsri_key_parts {
    uint32_t kind; /* enum tsr_kind */
    uint32_t n_tokens;
    uint8_t space[16];         /* fingerprint of the space */
    struct tsri_digest digest; /* parent of a block, context of a segment, recipe of blended KV */
    struct tsri_key extra;     /* tsri_extra_hash */
    struct tsri_key tokens;    /* tsri_tokens_hash */
};
struct tsri_key tsri_key_make(const struct tsri_key_parts *parts);

static inline bool tsri_key_equal(struct tsri_key a, struct tsri_key b)
{
    return a.lo == b.lo && a.hi == b.hi;
}
static inline bool tsri_digest_equal(const struct tsri_digest *a, const struct tsri_digest *b)
{
    return memcmp(a->bytes, b->bytes, TSRI_DIGEST_BYTES) == 0;
}

/* ---- extra: identity that tokens do not carry ---- */

/* A prompt's extras are at most this many items, and at most this many bytes when all are encoded:
 * 95 images named by 32-byte hashes. The encoding of any range then fits. */
#define TSRI_EXTRA_ITEMS_MAX 256
#define TSRI_EXTRA_BYTES_MAX 4096

/* TSR_EINVAL naming the item: unknown kind, no data, a range that is empty or beyond the prompt, a
 * range on an item that has none; TSR_ERANGE: over a limit. */
TSR_MUST int tsri_extra_check(const struct tsr_extra *extra, uint32_t n_extra, uint32_t n_tokens);
/* The canonical bytes of the extras that matter to the tokens of `range`: the request-wide items,
 * and the media that overlap it, with offsets relative to it; sorted, so that the order of the
 * array does not matter. An empty range gets the request-wide items alone. Returns how many bytes,
 * 0 for none. Cannot fail for extras that passed tsri_extra_check. */
int tsri_extra_encode(const struct tsr_extra *extra, uint32_t n_extra, struct tsr_range range,
                      uint8_t out[TSRI_EXTRA_BYTES_MAX]);
bool tsri_extra_has_media(const struct tsr_extra *extra, uint32_t n_extra, struct tsr_range range);
/* Whether what tsri_extra_encode wrote names media. */
bool tsri_extra_holds_media(const uint8_t *bytes, size_t n);
/* The zero key for n = 0. */
struct tsri_key tsri_extra_hash(const uint8_t *bytes, size_t n);

/* ---- digests ---- */

/* A prefix chain: the root, then one step a block. */
void tsri_digest_root(enum tsri_hash h, struct tsri_digest *out);
/* The digest of the chain including this block; out may be parent. extra: tsri_extra_encode. */
void tsri_digest_next(enum tsri_hash h, const struct tsri_digest *parent, const uint32_t *tokens,
                      uint32_t n, const uint8_t *extra, size_t extra_bytes,
                      struct tsri_digest *out);
/* What a segment saw while it was computed, a system prompt; n = 0: pure, all zero. */
void tsri_digest_context(enum tsri_hash h, const uint32_t *tokens, uint32_t n,
                         struct tsri_digest *out);
/* How blended KV was made. */
void tsri_digest_recipe(enum tsri_hash h, const void *bytes, size_t n, struct tsri_digest *out);

/* ---- space ---- */

#define TSRI_SPACE_TEXT_MAX 4096 /* bytes of each text, and of `weights` */
#define TSRI_SPACE_LAYERS_MAX 4096
#define TSRI_SPACE_HEADS_MAX 4096
#define TSRI_SPACE_DIM_MAX (1u << 20)
#define TSRI_SPACE_RANKS_MAX 65536
#define TSRI_SPACE_BLOCK_MAX (1u << 20)

/* TSR_EINVAL naming the field: a required one missing, an unknown dtype or layout, an absurd count.
 * Both take a desc that the caller has completed: fields beyond desc->size are zero, and
 * block_tokens is what will be used (0 is a value of its own here, not an option's default). */
TSR_MUST int tsri_space_check(const struct tsr_space_desc *desc);
/* Of a checked desc. Fields left at their default and fields set to it give the same bytes; any
 * other difference gives others. */
void tsri_space_fingerprint(const struct tsr_space_desc *desc, uint8_t out[16]);

/* ---- windows ---- */

#define TSRI_WINDOW 32u
#define TSRI_WINDOW_BASE 0xD6E8FEB86659FD93u
/* Of TSRI_WINDOW tokens: the sum of token[i] x BASE^(31-i). */
uint64_t tsri_window_hash(const uint32_t *tokens);
/* What the hashes of an entry are mixed with. */
uint64_t tsri_window_seed(const uint8_t space[16], struct tsri_key extra);
static inline uint64_t tsri_window_finish(uint64_t hash, uint64_t seed)
{
    /* The high half of a product depends on all bits, the low one does not. */
    uint64_t x = (hash ^ seed) * 0xA0761D6478BD642Fu;
    return x ^ x >> 32;
}
/* The hashes of the first n windows of an entry, one every TSRI_WINDOW tokens; 0 for one that
 * repeats itself after fewer than 8 tokens, which is not registered. */
void tsri_window_hashes(uint64_t seed, const uint32_t *tokens, uint32_t n, uint64_t *out);

/* ---- shingles ---- */

#define TSRI_SHINGLE 8u         /* tokens */
#define TSRI_SHINGLE_STRIDE 12u /* tokens from one that is registered to the next */
static inline uint32_t tsri_n_shingles(uint32_t n_tokens)
{
    return n_tokens < TSRI_SHINGLE ? 0 : (n_tokens - TSRI_SHINGLE) / TSRI_SHINGLE_STRIDE + 1;
}
/* As of windows, of TSRI_SHINGLE tokens. */
uint64_t tsri_shingle_hash(const uint32_t *tokens);
/* Half of it: a table has no use for more. */
static inline uint32_t tsri_shingle_finish(uint64_t hash, uint64_t seed)
{
    return (uint32_t)(tsri_window_finish(hash, seed) >> 32);
}
/* The hashes of the first n shingles of an entry, one every TSRI_SHINGLE_STRIDE tokens; 0 for one
 * that repeats itself after fewer than 4 tokens, which is not registered. */
void tsri_shingle_hashes(uint64_t seed, const uint32_t *tokens, uint32_t n, uint32_t *out);

/* ---- chunks ---- */

#define TSRI_SEPARATORS_MAX 16
#define TSRI_SEPARATOR_TOKENS_MAX 64

/* The spellings of a separator. Immutable after open. */
struct tsri_separators;
/* Spelling i is lengths[i] tokens, one after the other in `tokens`. TSR_EINVAL naming the spelling:
 * none or too many of them, empty or too long. */
TSR_MUST int tsri_separators_open(struct tsri_separators **out, const uint32_t *tokens,
                                  const uint32_t *lengths, uint32_t n);
/* Accepts NULL. */
void tsri_separators_close(struct tsri_separators *s);
/* The chunks of a prompt. A separator belongs to the chunk before it; what follows the last one is
 * the question, the last range. Where spellings overlap the leftmost wins, then the longest.
 * Returns the number of ranges. TSR_EPROMPT with the token offset: no separator, an empty chunk
 * (nothing but a separator), no question, more than ranges_max; `ranges` may then be half
 * filled. */
TSR_MUST int tsri_split(const struct tsri_separators *s, const uint32_t *tokens, uint32_t n_tokens,
                        struct tsr_range *ranges, uint32_t ranges_max);
/* Whether a prompt has a separator anywhere: without one nothing was marked, or its spelling is
 * none of those that were set. */
bool tsri_separators_seen(const struct tsri_separators *s, const uint32_t *tokens,
                          uint32_t n_tokens);

/* ---- parts.c ---- */

/* The separator without blanks around it, as texts are searched for it; all blanks: as it is. */
const char *tsri_separator_core(const char *separator, size_t *bytes);
TSR_MUST int tsri_text_split(const char *text, size_t bytes, const char *separator,
                             struct tsr_text_part *parts, uint32_t parts_max);

/* The KV of an entry stands in cells of at most so many tokens, in memory and in files. */
#define TSRI_CELL_TOKENS_MAX 64u
/* How many blocks of block_tokens: the whole ones, and the partial one at the end if asked. */
uint32_t tsri_block_count(uint32_t n_tokens, uint32_t block_tokens, bool partial);

#endif
