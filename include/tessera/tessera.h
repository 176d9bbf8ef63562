/* tessera.h - a KV cache for LLM inference, as a library.
 *
 * Tessera stores the attention state (K and V) of text once and reuses it wherever that text
 * appears again: as a prefix, bit-exact, or as a segment at any place in another prompt.
 *
 * Hello, world (examples/hello.c; a test compiles and runs it):
 *
 *     #include <stdio.h>
 *     #include <tessera/tessera.h>
 *
 *     int main(void)
 *     {
 *         uint32_t text[4] = {11, 12, 13, 14};
 *         float kv[2][2][4][8] = {{{{0.5f}}}}, back[2][2][4][8]; // [layer][K, V][token][dim]
 *         struct tsr_cache *cache;
 *         struct tsr_space *space;
 *         struct tsr_client *me;
 *         struct tsr_space_desc m = {.size = sizeof m, .model = "tiny", .dtype = TSR_DTYPE_F32};
 *         m.n_layers = 2, m.n_heads = 1, m.k_dim = 8;
 *         if (tsr_cache_open(&cache, NULL) || tsr_space_open(&space, cache, &m) ||
 *             tsr_client_open(&me, cache) || tsr_text_store(me, space, text, 4, kv, sizeof kv) < 0)
 *             return puts(tsr_errmsg()), 1;
 *         int n = tsr_text_load(me, space, text, 4, back, sizeof back);
 *         printf("%d of 4 tokens from the cache, K[0] = %g\n", n, (double)back[0][0][0][0]);
 *         tsr_client_close(me), tsr_space_close(space), tsr_cache_close(cache);
 *     }
 *
 * A program that serves prompts makes these calls:
 *
 *   1. tsr_config_open(), tsr_config_set()   choose the memory and the tiers
 *   2. tsr_cache_open()                      reserves all large memory
 *   3. tsr_space_open()                      describes the model
 *   4. tsr_client_open()                     a reader and writer, and the owner of its leases
 *   5. tsr_client_lookup()                   finds the cached parts of a prompt
 *   6. tsr_client_load()                     copies them into your memory
 *   7. tsr_client_store()                    stores what you had to compute
 *
 * Other headers: admin.h manages a cache, async.h works in the background and layer by layer,
 * server.h shares a cache between processes, deliver.h loads into an engine's own paged memory,
 * blend.h recomputes a few tokens of reused text, connector.h is for engines that serve many
 * requests, and model.h, device.h and tier.h are for extending Tessera.
 *
 * Terms. A *space* is everything that must be equal before two KV bytes may be exchanged. An
 * *entry* is the stored KV of one run of tokens. A *prefix* entry is one block of a chain; it is
 * exact at its own position after its own parent. A *segment* entry was computed alone (pure) or
 * after a system prompt (its context), and may be used anywhere. A *match* says which tokens of a
 * prompt an entry covers. A *lease* keeps matched entries in the cache until it is released.
 *
 * Threads: every function may be called from any thread at any time, but do not close a handle
 *          while another thread uses it. Callbacks run on threads of the library; they may look
 *          up, release and read statistics, and must not close anything.
 * Memory:  pointers you pass are borrowed until the call returns, or until `done` has run for
 *          calls that take one. Strings you get are static or live as long as their handle.
 * Errors:  int results are >= 0 on success (0 or a count) and one of enum tsr_err otherwise;
 *          tsr_errmsg() then explains the error, per thread. A miss is not an error.
 * Fork:    after fork() the child's handles miss and refuse stores; closing them is safe.
 *
 * Structs that begin with `size` may grow. Set size = sizeof the struct. Zero means the default.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TSR_API __attribute__((visibility("default")))
#define TSR_MUST __attribute__((warn_unused_result))
#else
#define TSR_API
#define TSR_MUST
#endif

/* The version of this header. tsr_version() returns that of the library. */
#define TSR_VERSION_MAJOR 0
#define TSR_VERSION_MINOR 1
#define TSR_VERSION_PATCH 0

/* ---- errors ------------------------------------------------------------------------------- */

/* clang-format off */
#define TSR_ERRORS(X)                                                                           \
    X(EINVAL,   -1,  "invalid argument")                                                        \
    X(ENOMEM,   -2,  "out of memory")                                                           \
    X(EIO,      -3,  "input or output failed")                                                  \
    X(EAGAIN,   -4,  "a queue or table is full, try again later")                               \
    X(EFULL,    -5,  "no room: everything left is pinned or leased")                            \
    X(ENOENT,   -6,  "not found")                                                               \
    X(ERANGE,   -7,  "beyond a limit")                                                          \
    X(ECONFIG,  -8,  "configuration refused")                                                   \
    X(EVERSION, -9,  "unknown version")                                                         \
    X(ETIME,    -10, "deadline passed")                                                         \
    X(EFORK,    -11, "handle belongs to the parent process")                                    \
    X(EPERM,    -12, "not permitted")                                                           \
    X(ECORRUPT, -13, "data failed verification")                                                \
    X(EFROZEN,  -14, "the cache is frozen, stores are refused")                                 \
    X(EUNSUP,   -15, "not supported here")                                                      \
    X(EBUSY,    -16, "in use")                                                                  \
    X(ESPACE,   -17, "handle belongs to another cache or the shapes differ")                    \
    X(EPROMPT,  -18, "malformed chunked prompt")                                                \
    X(EDEVICE,  -19, "device failed or is missing")
/* clang-format on */

enum tsr_err {
    TSR_OK = 0,
#define TSR_ERR_ENUM(name, number, text) TSR_##name = number,
    TSR_ERRORS(TSR_ERR_ENUM)
#undef TSR_ERR_ENUM
};

/* The fixed text of an error number; "unknown error" for any other number. */
TSR_API const char *tsr_strerror(int err);
/* The message of the last failed call of this thread; "" when nothing failed yet. Valid until the
 * next failing call of this thread. */
TSR_API const char *tsr_errmsg(void);
/* "MAJOR.MINOR.PATCH" of the library. */
TSR_API const char *tsr_version(void);

/* ---- logging ------------------------------------------------------------------------------ */

enum tsr_log_level { TSR_LOG_ERROR = 0, TSR_LOG_WARN = 1, TSR_LOG_INFO = 2, TSR_LOG_DEBUG = 3 };

typedef void (*tsr_log_fn)(void *arg, int level, const char *text);
/* Sets the function that gets log lines; NULL, the default, discards them. tsr_log_stderr writes
 * them to stderr with level and time. Process-wide; set it before the first tsr_cache_open().
 * Tokens and KV are never logged. */
TSR_API void tsr_log_set(tsr_log_fn fn, void *arg, int level_max);
TSR_API void tsr_log_stderr(void *arg, int level, const char *text);

/* ---- configuration ------------------------------------------------------------------------ */

/* Options by name; docs/config.md lists them. A later call overrides an earlier one: load the
 * file, then the environment, then set options of your own. */
struct tsr_config;

TSR_API TSR_MUST int tsr_config_open(struct tsr_config **out);
TSR_API void tsr_config_close(struct tsr_config *cfg);
/* Sets one option. Unknown key, wrong type or out of range: TSR_ECONFIG; the message names the key
 * and the nearest known one. */
TSR_API TSR_MUST int tsr_config_set(struct tsr_config *cfg, const char *key, const char *value);
/* Loads a YAML file. Errors name file, line and column. */
TSR_API TSR_MUST int tsr_config_load_file(struct tsr_config *cfg, const char *path);
/* Loads TESSERA_* and the compatible LMCACHE_* variables; TESSERA_CONFIG_FILE is loaded first. */
TSR_API TSR_MUST int tsr_config_load_env(struct tsr_config *cfg);

/* ---- cache -------------------------------------------------------------------------------- */

struct tsr_cache;

/* Opens a cache and reserves all its memory. cfg may be NULL (defaults) and is not used after the
 * call. */
TSR_API TSR_MUST int tsr_cache_open(struct tsr_cache **out, const struct tsr_config *cfg);
/* Writes back what is queued, releases all leases, joins threads. Accepts NULL. Close all spaces
 * and clients of the cache first. */
TSR_API void tsr_cache_close(struct tsr_cache *cache);
/* Waits until everything stored before the call, by any client, is in the tiers below that want
 * it. Use it when data must survive a crash.
 *
 * 0: all of it is safe, except what was removed by rule: dropped, cleared, or evicted from a tier
 * at its limit (disk_size). An error: some of it is not safe; tsr_errmsg() says how much or why.
 * What is still in host memory is written again by the next flush of any thread, and every flush
 * fails until that works: call again when the disk has room. An entry that left host memory before
 * it could be written, or that found a tier full of entries that may not go, is lost and will be a
 * miss; the next flush of every thread that had stored something by then reports it once. On a
 * client of a cache server, that of a later thread may report it too. */
TSR_API TSR_MUST int tsr_cache_flush(struct tsr_cache *cache);

struct tsr_stats {
    size_t size;
    uint64_t lookups, tokens_asked, tokens_reused; /* hit rate = tokens_reused / tokens_asked */
    uint64_t loads, load_misses, load_bytes;
    uint64_t stores, stores_new, stores_refused, store_bytes;
    uint64_t evicted, dropped, collisions, corrupt;
    uint64_t entries, pinned;
    uint64_t host_bytes, host_bytes_used;
    uint64_t tier_entries[8], tier_bytes[8];
    uint64_t tier_bytes_max[8]; /* 0: not known, or there is no such tier */
    struct tsr_tier_name {
        char text[16]; /* "host", "disk", ..; "": there is no such tier */
    } tier_names[8];
    uint64_t lookup_hits, lookup_misses; /* lookups that found at least one token, and none */
    uint64_t tokens_cached;              /* of all `entries`, each counted once */
    uint64_t tier_tokens[8];             /* of tier_entries */
};
/* The main numbers. tsr_cache_stats_text() (admin.h) has all of them. */
TSR_API TSR_MUST int tsr_cache_stats(struct tsr_cache *cache, struct tsr_stats *out);

/* ---- space -------------------------------------------------------------------------------- */

enum tsr_dtype {
    TSR_DTYPE_F16 = 1,
    TSR_DTYPE_BF16 = 2,
    TSR_DTYPE_F32 = 3,
    TSR_DTYPE_INT8 = 4,
    TSR_DTYPE_OPAQUE = 5 /* bytes that are copied and never interpreted */
};

enum tsr_layout {
    TSR_LAYOUT_STANDARD = 0, /* K and V of n_heads x dim, per layer */
    TSR_LAYOUT_MLA = 1,      /* one latent row per layer: k_dim = latent + rope part */
    TSR_LAYOUT_OPAQUE = 2    /* an engine's bytes: k_dim bytes per token and layer */
};

/* Describes the model, and which part of its KV this process holds. Every field is part of the
 * fingerprint: spaces that differ in one field never share a byte. */
struct tsr_space_desc {
    size_t size;
    const char *model;   /* required: name or path; `weights` identifies the weights */
    const void *weights; /* optional: fingerprint bytes of the weights */
    size_t weights_bytes;
    const char *tokenizer; /* optional */
    const char *adapter;   /* optional: LoRA merged into the weights, not one per request */
    const char *salt;      /* optional: tenant salt, no hits across salts */
    const char *rope;      /* optional: RoPE parameters as text, see tsr_rope_text() (deliver.h) */
    uint32_t dtype;        /* enum tsr_dtype, required */
    uint32_t layout;       /* enum tsr_layout */
    uint32_t n_layers;     /* required: layers held here (of a pipeline stage) */
    uint32_t layer_first;  /* number of the first of them in the model */
    uint32_t n_heads;      /* KV heads held by this rank; 1 for MLA and opaque */
    uint32_t k_dim;        /* per head; required */
    uint32_t v_dim;        /* per head; 0 means k_dim for STANDARD, none otherwise */
    uint32_t rank, world;  /* tensor/context parallel; world 0 means 1 */
    uint32_t group;        /* KV group of hybrid models */
    uint32_t block_tokens; /* tokens of a prefix block; 0: option chunk_size */
};

struct tsr_space;

TSR_API TSR_MUST int tsr_space_open(struct tsr_space **out, struct tsr_cache *cache,
                                    const struct tsr_space_desc *desc);
/* Entries stay in the cache. Accepts NULL. */
TSR_API void tsr_space_close(struct tsr_space *space);
/* Bytes of one token's KV over all layers. */
TSR_API size_t tsr_space_token_bytes(const struct tsr_space *space);

/* ---- client and leases -------------------------------------------------------------------- */

/* A user of the cache. Leases belong to a client and end when it is closed. */
struct tsr_client;

TSR_API TSR_MUST int tsr_client_open(struct tsr_client **out, struct tsr_cache *cache);
TSR_API void tsr_client_close(struct tsr_client *client);
/* Releases the leases of a request id. Idempotent; returns how many entries were released. */
TSR_API int tsr_client_release(struct tsr_client *client, uint64_t request_id);

/* ---- one text, one call ------------------------------------------------------------------- */

/* Stores the KV of a text that was computed alone, from position 0, packed as [layer][K, V][token].
 * Returns how many tokens are new (0: it was stored already). tsr_client_store() has more options.
 */
TSR_API TSR_MUST int tsr_text_store(struct tsr_client *client, struct tsr_space *space,
                                    const uint32_t *tokens, uint32_t n_tokens, const void *kv,
                                    size_t bytes);
/* Loads the KV of a text as it was stored, in the same order. Returns n_tokens, or 0 for a miss, in
 * which case what is in kv cannot be used. */
TSR_API TSR_MUST int tsr_text_load(struct tsr_client *client, struct tsr_space *space,
                                   const uint32_t *tokens, uint32_t n_tokens, void *kv,
                                   size_t bytes);

/* ---- prompts ------------------------------------------------------------------------------ */

enum tsr_extra_kind {
    TSR_EXTRA_ADAPTER = 1, /* per-request adapter: its name */
    TSR_EXTRA_SALT = 2,    /* cache salt of the request */
    TSR_EXTRA_MEDIA = 3    /* hash of an image or sound at [offset, offset + n_tokens) */
};

/* Identity that tokens do not carry. It is part of every key, stored and compared. */
struct tsr_extra {
    uint32_t kind;
    uint32_t offset, n_tokens; /* of MEDIA, in tokens of the prompt */
    uint32_t bytes;
    const void *data;
};

/* A run of tokens of a prompt. */
struct tsr_range {
    uint32_t offset, n_tokens;
};

enum tsr_prompt_flags {
    TSR_PROMPT_PREFIX = 1,   /* find a prefix chain from token 0 */
    TSR_PROMPT_SEGMENTS = 2, /* find the given `segments`, or those between separators */
    TSR_PROMPT_CONTEXT = 4,  /* the first segment is a system prompt; the others may have seen it,
                              * or `context` where that is given */
    TSR_PROMPT_BLENDED = 8,  /* also return `blended` entries made with this `recipe` */
    TSR_PROMPT_ANY = 16,     /* also find runs of tokens anywhere in stored text */
    TSR_PROMPT_OTHER = 32    /* with ANY: also runs that saw other text when they were computed:
                              * segments after another context, and prefix blocks */
};

/* What ANY finds, among the tokens not covered by prefix and segments: every run of 63 tokens or
 * more that the prompt shares with an entry, many shorter ones down to match_min_tokens, and text
 * of that length with frequent edits, of which at least min_match_ratio is equal (option partial:
 * edits). A replaced, inserted or deleted token splits a text into two matches of the same entry,
 * down to 8 tokens each; `coverage` says how much of the entry was found in total. Tokens are
 * compared, so a match is that text. Its KV is that of the entry's tokens as computed, at base +
 * entry_offset and after the text that came before them there: rotate K to its new position, and
 * recompute a few tokens at each end and around edits. Media, and entries with media, are left out.
 * Text that only a lower tier has is not a match yet; it is loaded into host memory for the next
 * lookup. Option any_offset turns this off. */

struct tsr_prompt {
    size_t size;
    const uint32_t *tokens;
    uint32_t n_tokens;
    /* enum tsr_prompt_flags. 0: PREFIX; with option chunked, in a space that has separators, also
     * SEGMENTS and CONTEXT if a separator is in the prompt. */
    uint32_t flags;
    /* Explicit segments, ascending and not overlapping. NULL with TSR_PROMPT_SEGMENTS: split at the
     * separators of tsr_separators_set(). A separator belongs to the chunk before it; what follows
     * the last separator is the question, which is not looked up. */
    const struct tsr_range *segments;
    uint32_t n_segments;
    uint32_t n_extra;
    const struct tsr_extra *extra;
    const void *recipe; /* how blended KV was made */
    size_t recipe_bytes;
    /* The text that segments may have seen when they were computed, as in struct tsr_store_desc; it
     * need not be in the prompt. A match with TSR_CONTEXT_SAME saw exactly this text. With
     * TSR_PROMPT_CONTEXT the first segment is left out: it is always computed alone. NULL: the
     * first segment with TSR_PROMPT_CONTEXT, none without. Text only: tokens do not identify
     * media. */
    const uint32_t *context;
    uint32_t n_context;
    uint32_t reserved;
};

/* Sets the separator, in several spellings (a tokenizer may merge it with its neighbours): spelling
 * i is lengths[i] tokens, one after the other in `tokens`. Replaces earlier ones; n = 0 removes
 * them. Call it before lookups with TSR_PROMPT_SEGMENTS, not while lookups of the space run. */
TSR_API TSR_MUST int tsr_separators_set(struct tsr_space *space, const uint32_t *tokens,
                                        const uint32_t *lengths, uint32_t n);
/* Splits a prompt at the separators: fills at most ranges_max chunks (the last one is the question)
 * and returns how many there are. A malformed prompt (no separator, empty chunk, no question, too
 * many chunks) is TSR_EPROMPT, and the message gives the token offset. */
TSR_API TSR_MUST int tsr_space_split(const struct tsr_space *space, const uint32_t *tokens,
                                     uint32_t n_tokens, struct tsr_range *ranges,
                                     uint32_t ranges_max);

/* A part of a prompt's text, in bytes. */
struct tsr_text_part {
    size_t offset, bytes;
};
/* The same for a text that is not tokenized yet: cuts it at a separator, around which blanks do not
 * count, and fills at most parts_max parts without separators: system prompt, documents, question.
 * Returns how many there are. TSR_EPROMPT: no separator, an empty part or too many parts; the message
 * gives the byte. */
TSR_API TSR_MUST int tsr_text_split(const char *text, size_t bytes, const char *separator,
                                    struct tsr_text_part *parts, uint32_t parts_max);

/* ---- lookup ------------------------------------------------------------------------------- */

enum tsr_kind { TSR_KIND_PREFIX = 1, TSR_KIND_SEGMENT = 2, TSR_KIND_BLENDED = 3 };
enum tsr_context {
    TSR_CONTEXT_SAME = 1,
    TSR_CONTEXT_PURE = 2,
    TSR_CONTEXT_OTHER = 3,
    TSR_CONTEXT_PRIMER = 4 /* of profiles (blend.h); matches with it are SAME */
};
/* How much of its entry a match covers. FULL: all of it. PARTIAL: together with the other equal
 * tokens of the entry around edited ones, at least the option min_match_ratio. RUN: less than that.
 */
enum tsr_coverage { TSR_COVERAGE_FULL = 1, TSR_COVERAGE_PARTIAL = 2, TSR_COVERAGE_RUN = 3 };

/* In base and freq_set of a match that is not verified: only the tier that holds the entry knows
 * them. tsr_client_load() returns them, and tsr_delivery_start() (deliver.h) rotates K by them. */
#define TSR_BASE_UNKNOWN UINT32_MAX

/* The tokens of a prompt that an entry covers. `entry` names the entry while it exists, within one
 * life of the store, from open to close, which `epoch` names. Loading an entry that is gone is a
 * miss. So is loading a match of another cache, or one from before a restart of the server. */
struct tsr_match {
    uint64_t entry, epoch;  /* opaque */
    uint32_t prompt_offset; /* first token in the prompt */
    uint32_t entry_offset;  /* the same token in the entry */
    uint32_t n_tokens;
    uint8_t kind;          /* enum tsr_kind */
    uint8_t context;       /* enum tsr_context */
    uint8_t tier;          /* 0: host memory; else the fastest tier that has it */
    uint8_t verified;      /* 1: tokens compared; 0: found by its key, the load compares */
    uint32_t base;         /* position at which the entry's first K was rotated, or _UNKNOWN */
    uint32_t freq_set;     /* frequency set of that rotation, or TSR_BASE_UNKNOWN */
    uint32_t entry_tokens; /* of the whole entry */
    uint8_t coverage;      /* enum tsr_coverage */
    uint8_t edits;         /* 1: fewer than 63 tokens, found around frequent edits */
    uint8_t reserved[2];
};

struct tsr_lookup_desc {
    size_t size;
    struct tsr_space *const *spaces; /* a chunk matches only if all of them have it */
    uint32_t n_spaces;
    uint32_t matches_max;      /* rows of `matches` */
    struct tsr_match *matches; /* [matches_max][n_spaces], ascending prompt_offset */
    uint64_t request_id;       /* not 0: lease what matches under this id */
    /* results */
    uint32_t n_matches;       /* rows filled */
    uint32_t n_prefix_tokens; /* tokens covered contiguously from token 0, exact */
};

/* Finds the cached parts of a prompt. Fills matches that do not overlap, exact before approximate,
 * and returns the number of tokens they cover (0: a miss). Never waits for a disk or a network. */
TSR_API TSR_MUST int tsr_client_lookup(struct tsr_client *client, const struct tsr_prompt *prompt,
                                       struct tsr_lookup_desc *lookup);

/* ---- load and store ----------------------------------------------------------------------- */

/* KV in your memory: the row of (layer, K or V, token) begins at
 *   data + layer * layer_stride + plane * plane_stride + token * token_stride
 * with layer and token counted from the first ones asked for, and plane 0 = K, 1 = V. All strides
 * 0: packed as [layer][K, V][token]. token_stride 0: the row size of that plane. KV_2LTD, which is
 * [K, V][layer][token], has a plane_stride of n_layers times the layer_stride. */
struct tsr_view {
    void *data;
    size_t bytes; /* of your buffer; an access beyond it is refused before a byte moves */
    size_t layer_stride, plane_stride, token_stride;
};

/* One range to load. K arrives as it was stored: rotated to `base` plus the token's place in its
 * entry. A load has no rope and no position offset. struct tsr_delivery_range (deliver.h) rotates K
 * to its place in the prompt, and its position_offset moves it further; over plain memory, too. */
struct tsr_load_desc {
    size_t size;
    struct tsr_space *space;
    const struct tsr_match *match;
    const struct tsr_prompt *prompt; /* needed for matches that are not verified */
    uint32_t offset, n_tokens;       /* within the match; n_tokens 0: to its end */
    uint32_t layer_first, n_layers;  /* n_layers 0: to the last */
    struct tsr_view view;
    int result; /* out: 0, or why the range must be recomputed; none of it is usable then */
    /* Out, with result 0: those of the entry, also where the match does not know them. */
    uint32_t base, freq_set;
};

/* Copies each range into your memory. Returns how many of the n ranges were loaded. The others have
 * their result set (TSR_ENOENT when the entry is gone); recompute them. */
TSR_API TSR_MUST int tsr_client_load(struct tsr_client *client, struct tsr_load_desc *loads,
                                     uint32_t n);

/* KV to store. PREFIX: `tokens` begin at position 0 of the prompt, and the view holds KV from token
 * `from` on (a block boundary). Whole blocks are stored, each with the digest of everything before
 * it, and the last partial block if option save_partial is set. SEGMENT, BLENDED: all tokens are
 * one entry. */
struct tsr_store_desc {
    size_t size;
    struct tsr_space *space;
    uint32_t kind; /* enum tsr_kind; required */
    uint32_t n_tokens;
    const uint32_t *tokens;
    uint32_t from; /* PREFIX only */
    /* SEGMENT: the text it was computed after, if any: a system prompt, or another text that
     * lookups name as `context`. Tokens do not identify media: store a segment only if the text
     * before it has none, or if it was computed alone. */
    uint32_t n_context;
    const uint32_t *context;
    uint32_t n_extra;
    uint32_t base; /* SEGMENT: position of its first token when computed; not TSR_BASE_UNKNOWN */
    const struct tsr_extra *extra;
    const void *recipe; /* BLENDED */
    size_t recipe_bytes;
    uint32_t freq_set;
    /* Seconds it took to compute the KV in `view`; 0: not measured. KV that is expensive for its
     * size is kept longer (policy adaptive). */
    float cost_s;
    struct tsr_view view;
};

/* Stores KV and returns how many tokens are new (0: all were stored already). TSR_EFULL when
 * everything left is pinned, TSR_EFROZEN in freeze mode: nothing was changed, and lookups go on. A
 * key becomes visible only when its bytes are complete. */
TSR_API TSR_MUST int tsr_client_store(struct tsr_client *client,
                                      const struct tsr_store_desc *store);

#ifdef __cplusplus
}
#endif
#endif
