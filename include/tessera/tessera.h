/* tessera.h - the KV cache of LLM inference as a library.
 *
 * Tessera stores the attention state (K and V) of text once and finds it again wherever that text
 * appears: as a prefix, bit-exactly, or as a segment at another place in another prompt.
 *
 *   1. tsr_config_open(), tsr_config_set()   say how much memory, which tiers
 *   2. tsr_cache_open()                            reserve everything big
 *   3. tsr_space_open()                      describe the model: what must agree before bytes match
 *   4. tsr_client_open()                     a reader and writer; owns the leases it takes
 *   5. tsr_client_lookup()                          what of this prompt is known?
 *   6. tsr_client_load()                            copy it into my memory
 *   7. tsr_client_store()                           keep what I had to compute
 *
 * Words. A *space* is everything that must agree before two KV bytes may be exchanged. An *entry*
 * is the stored KV of one run of tokens. A *prefix* entry is one block of a chain and is exact at
 * its own position behind its own parent; a *segment* entry was computed alone (pure) or behind a
 * system prompt (its context) and may be used anywhere. A *match* says which tokens of a prompt an
 * entry covers. A *lease* keeps matched entries in place until it is released.
 *
 * Threads: every function may be called from any thread at any time, except that a handle must not
 *          be closed while another thread uses it. Callbacks run on threads of the library; they
 *          may call lookup, contains, release and stats, and must not call close.
 * Memory:  pointers passed in are borrowed until the call returns, or until `done` has run for
 *          calls that take one. Strings handed out are static or live as long as their handle.
 * Errors:  int results are >= 0 on success (0 or a count) and one of enum tsr_err otherwise;
 *          tsr_errmsg() then says in words what happened, per thread. A miss is not an error.
 * Fork:    after fork() the child's handles answer with misses and refuse stores; close is safe.
 *
 * Structs that begin with `size` may grow: set size = sizeof the struct; zero always means default.
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

/* The fixed text of an error number; "unknown error" for others. */
TSR_API const char *tsr_strerror(int err);
/* What the last failed call of this thread said, in words. "" when nothing failed yet. Valid until
 * the next failing call of this thread. */
TSR_API const char *tsr_errmsg(void);
TSR_API const char *tsr_version(void);

/* ---- logging ------------------------------------------------------------------------------ */

enum tsr_log_level { TSR_LOG_ERROR = 0, TSR_LOG_WARN = 1, TSR_LOG_INFO = 2, TSR_LOG_DEBUG = 3 };

typedef void (*tsr_log_fn)(void *arg, int level, const char *text);
/* Where log lines go. NULL (the default): nowhere. tsr_log_stderr writes them to stderr with a
 * level and a time. Process-wide; set it before the first tsr_cache_open(). Tokens and KV are never
 * logged. */
TSR_API void tsr_log_set(tsr_log_fn fn, void *arg, int level_max);
TSR_API void tsr_log_stderr(void *arg, int level, const char *text);

/* ---- configuration ------------------------------------------------------------------------ */

/* All options by name; the table is docs/config.md. Precedence is the order of calls: load the
 * file, then the environment, then the flags. */
struct tsr_config;

TSR_API TSR_MUST int tsr_config_open(struct tsr_config **out);
TSR_API void tsr_config_close(struct tsr_config *cfg);
/* One option. Unknown key, wrong type or out of range: TSR_ECONFIG, the message naming the key and
 * the nearest known one. */
TSR_API TSR_MUST int tsr_config_set(struct tsr_config *cfg, const char *key, const char *value);
/* The value as text (canonical form), or NULL for an unknown key. Owned by cfg until the next
 * set. */
TSR_API const char *tsr_config_get(const struct tsr_config *cfg, const char *key);
/* A YAML file. Errors name file, line and column. */
TSR_API TSR_MUST int tsr_config_load_file(struct tsr_config *cfg, const char *path);
/* The same from memory; `name` stands in for the path in messages. */
TSR_API TSR_MUST int tsr_config_load_text(struct tsr_config *cfg, const char *text, size_t bytes,
                                          const char *name);
/* TESSERA_* and the compatible LMCACHE_* variables; TESSERA_CONFIG_FILE is loaded first. */
TSR_API TSR_MUST int tsr_config_load_env(struct tsr_config *cfg);
/* --key=value and --key value; stops at the first argument that is no option, returns how many
 * were consumed. */
TSR_API TSR_MUST int tsr_config_load_args(struct tsr_config *cfg, int argc, char *const *argv);

/* ---- cache -------------------------------------------------------------------------------- */

struct tsr_cache;

/* Everything big is reserved here. cfg may be NULL (defaults) and is not used afterwards. */
TSR_API TSR_MUST int tsr_cache_open(struct tsr_cache **out, const struct tsr_config *cfg);
/* Writes back what is queued, releases all leases, joins threads. Accepts NULL. All spaces and
 * clients of the cache must be closed first. */
TSR_API void tsr_cache_close(struct tsr_cache *cache);

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

/* A description of the model and the place of this KV in it. Everything here is part of the
 * fingerprint: spaces that differ in one field never share a byte. */
struct tsr_space_desc {
    size_t size;
    const char *model;   /* required: name or path; the weights' identity is `weights` */
    const void *weights; /* optional: fingerprint bytes of the weights */
    size_t weights_bytes;
    const char *tokenizer; /* optional */
    const char *adapter;   /* optional: LoRA baked into the weights, not per request */
    const char *salt;      /* optional: tenant salt, no hits across salts */
    const char *rope;      /* optional: canonical text of the RoPE parameters */
    uint32_t dtype;        /* enum tsr_dtype, required */
    uint32_t layout;       /* enum tsr_layout */
    uint32_t n_layers;     /* required: layers held here (a pipeline stage's) */
    uint32_t layer_first;  /* first of them in the model */
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
/* 16 bytes, the same in every process and on every machine. */
TSR_API void tsr_space_fingerprint(const struct tsr_space *space, uint8_t out[16]);
/* Bytes of one token's KV over all layers. */
TSR_API size_t tsr_space_token_bytes(const struct tsr_space *space);

/* ---- client and leases -------------------------------------------------------------------- */

/* Who asks. Leases belong to a client and are gone when it is closed. */
struct tsr_client;

TSR_API TSR_MUST int tsr_client_open(struct tsr_client **out, struct tsr_cache *cache);
TSR_API void tsr_client_close(struct tsr_client *client);
/* Give up the leases taken under a request id. Idempotent; returns how many entries were let go. */
TSR_API int tsr_client_release(struct tsr_client *client, uint64_t request_id);

/* ---- prompts ------------------------------------------------------------------------------ */

enum tsr_extra_kind {
    TSR_EXTRA_ADAPTER = 1, /* per-request adapter: bytes name it */
    TSR_EXTRA_SALT = 2,    /* cache salt of the request */
    TSR_EXTRA_MEDIA = 3 /* hash of an image or sound that stands at [offset, offset + n_tokens) */
};

/* Identity that tokens do not carry. Part of every key, stored and compared. */
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
    TSR_PROMPT_PREFIX = 1,   /* look for a prefix chain from token 0 */
    TSR_PROMPT_SEGMENTS = 2, /* the `segments` given, or those between separators */
    TSR_PROMPT_CONTEXT = 4,  /* the first segment is a system prompt the others may have seen */
    TSR_PROMPT_BLENDED = 8,  /* also return `blended` entries made with this `recipe` */
    TSR_PROMPT_ANY = 16,     /* also runs of tokens that stand anywhere in stored text */
    TSR_PROMPT_OTHER = 32    /* with ANY: also such that saw other text while they were computed:
                              * segments behind another context, and prefix blocks */
};

/* What ANY finds: of all that the prefix and the segments leave, every run of 63 tokens or more
 * that the prompt has in common with an entry, and many shorter ones down to match_min_tokens. A
 * token that was replaced, inserted or deleted cuts a text into two matches of the same entry;
 * `coverage` tells how much of the entry was found altogether. Tokens are compared, so a match is
 * that text; its KV is what the entry's tokens had when they were computed, at base + entry_offset
 * and behind what stood before them there. Rotate K to its place, and recompute a few tokens at
 * each end and wherever something was edited. Media, and entries with media, are left out. Text
 * that only a lower tier has is no match yet: it is brought up for the next lookup. Option
 * any_offset switches all of this off. */

struct tsr_prompt {
    size_t size;
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t flags; /* enum tsr_prompt_flags; 0: PREFIX */
    /* Explicit segments, ascending and not overlapping. NULL with TSR_PROMPT_SEGMENTS: split on the
     * separators of tsr_separators_set(); the separator belongs to the chunk before it, and what
     * follows the last separator is the question, which is not looked up. */
    const struct tsr_range *segments;
    uint32_t n_segments;
    uint32_t n_extra;
    const struct tsr_extra *extra;
    const void *recipe; /* of blended KV: how it was made */
    size_t recipe_bytes;
};

/* One separator in several spellings (a tokenizer may merge it with its neighbours): spelling i is
 * lengths[i] tokens, one after the other in `tokens`. Replaces earlier ones; n = 0 removes them.
 * Set before looking up with TSR_PROMPT_SEGMENTS; not while lookups of the space run. */
TSR_API TSR_MUST int tsr_separators_set(struct tsr_space *space, const uint32_t *tokens,
                                        const uint32_t *lengths, uint32_t n);
/* Where the separators cut a prompt: fills at most ranges_max chunks (the last one is the question)
 * and returns how many there are. A malformed prompt (no separator, empty chunk, no question, too
 * many) is TSR_EPROMPT and the message gives the token offset. */
TSR_API TSR_MUST int tsr_space_split(const struct tsr_space *space, const uint32_t *tokens,
                                     uint32_t n_tokens, struct tsr_range *ranges,
                                     uint32_t ranges_max);

/* ---- lookup ------------------------------------------------------------------------------- */

enum tsr_kind { TSR_KIND_PREFIX = 1, TSR_KIND_SEGMENT = 2, TSR_KIND_BLENDED = 3 };
enum tsr_context { TSR_CONTEXT_SAME = 1, TSR_CONTEXT_PURE = 2, TSR_CONTEXT_OTHER = 3 };
/* How much of its entry a match has: FULL all of it; PARTIAL, together with the other matches of
 * the entry around edited tokens, at least the option min_match_ratio; RUN less than that. */
enum tsr_coverage { TSR_COVERAGE_FULL = 1, TSR_COVERAGE_PARTIAL = 2, TSR_COVERAGE_RUN = 3 };

/* In base and freq_set of a match that is not verified: only the tier that has the entry knows
 * them. tsr_client_load() tells them, and tsr_delivery_start() (deliver.h) turns K by them; a match
 * that has them has the right ones. */
#define TSR_BASE_UNKNOWN UINT32_MAX

/* What an entry covers of a prompt. `entry` names it as long as it lives, in the one life of the
 * store that `epoch` names, from open to close. A load of an entry that is gone is a miss; so is
 * one with a match of another cache, or from before a restart of the server. */
struct tsr_match {
    uint64_t entry, epoch;  /* opaque */
    uint32_t prompt_offset; /* first token in the prompt */
    uint32_t entry_offset;  /* the same token in the entry */
    uint32_t n_tokens;
    uint8_t kind;          /* enum tsr_kind */
    uint8_t context;       /* enum tsr_context */
    uint8_t tier;          /* 0: host memory; else the fastest tier that has it */
    uint8_t verified;      /* 1: tokens compared; 0: nominated by its key, load compares */
    uint32_t base;         /* position at which the entry's first K was rotated, or _UNKNOWN */
    uint32_t freq_set;     /* frequency set of that rotation, or TSR_BASE_UNKNOWN */
    uint32_t entry_tokens; /* of the whole entry */
    uint8_t coverage;      /* enum tsr_coverage */
    uint8_t reserved[3];
};

struct tsr_lookup_desc {
    size_t size;
    struct tsr_space *const *spaces; /* all of them must have a chunk for it to match */
    uint32_t n_spaces;
    uint32_t matches_max;      /* rows of `matches` */
    struct tsr_match *matches; /* [matches_max][n_spaces], ascending prompt_offset */
    uint64_t request_id;       /* not 0: lease what matches under this id */
    /* results */
    uint32_t n_matches;       /* rows filled */
    uint32_t n_prefix_tokens; /* of them contiguous from token 0, exact */
};

/* What of the prompt is known? Fills matches that do not overlap, exact before approximate, and
 * returns the number of tokens they cover (0: a miss). Never waits for a disk or a network. */
TSR_API TSR_MUST int tsr_client_lookup(struct tsr_client *client, const struct tsr_prompt *prompt,
                                       struct tsr_lookup_desc *lookup);

/* The keys a prompt's chunks have in a space, in the order of lookup; returns how many. */
struct tsr_key {
    uint8_t bytes[16];
};
TSR_API TSR_MUST int tsr_space_keys(struct tsr_space *space, const struct tsr_prompt *prompt,
                                    struct tsr_key *keys, uint32_t keys_max);
/* Which tier has each key: tiers[i] = 0 host, 1.. lower tiers, -1 none. Returns how many are
 * there. */
TSR_API TSR_MUST int tsr_cache_contains(struct tsr_cache *cache, const struct tsr_key *keys,
                                        uint32_t n, int8_t *tiers);

/* ---- load and store ----------------------------------------------------------------------- */

/* Where KV stands in the caller's memory: the row of (layer, K or V, token) begins at
 *   data + layer * layer_stride + plane * plane_stride + token * token_stride
 * with layer and token counted from the first ones asked for, and plane 0 = K, 1 = V. All strides
 * 0: packed as [layer][K, V][token]. token_stride 0: the row size of that plane. KV_2LTD, which is
 * [K, V][layer][token], has a plane_stride of n_layers times the layer_stride. */
struct tsr_view {
    void *data;
    size_t bytes; /* of the caller's buffer; what would lie beyond is refused before a byte moves */
    size_t layer_stride, plane_stride, token_stride;
};

/* One range to load. */
struct tsr_load_desc {
    size_t size;
    struct tsr_space *space;
    const struct tsr_match *match;
    const struct tsr_prompt *prompt; /* needed for matches that are not verified */
    uint32_t offset, n_tokens;       /* within the match; n_tokens 0: to its end */
    uint32_t layer_first, n_layers;  /* n_layers 0: to the last */
    struct tsr_view view;
    int result; /* out: 0, or why the range must be recomputed; nothing of it is then usable */
    /* Out, with result 0: those of the entry, also where the match does not know them. */
    uint32_t base, freq_set;
};

/* Copies each range into the caller's memory. Returns how many of the n ranges were loaded; the
 * others have their result set (TSR_ENOENT when the entry is gone) and must be recomputed. */
TSR_API TSR_MUST int tsr_client_load(struct tsr_client *client, struct tsr_load_desc *loads,
                                     uint32_t n);

/* KV to keep. PREFIX: `tokens` begin at position 0 of the prompt and the view holds KV from token
 * `from` on (a block boundary); whole blocks are stored, each behind the digest of everything
 * before it, and the last partial block if option save_partial says so. SEGMENT, BLENDED: all of
 * the tokens are one entry. */
struct tsr_store_desc {
    size_t size;
    struct tsr_space *space;
    uint32_t kind; /* enum tsr_kind; required */
    uint32_t n_tokens;
    const uint32_t *tokens;
    uint32_t from; /* PREFIX only */
    /* SEGMENT: the system prompt it was computed behind, if any. One that holds media cannot be
     * told by its tokens: store such a segment only when it was computed alone. */
    uint32_t n_context;
    const uint32_t *context;
    uint32_t n_extra;
    uint32_t base; /* SEGMENT: position of its first token when computed; not TSR_BASE_UNKNOWN */
    const struct tsr_extra *extra;
    const void *recipe; /* BLENDED */
    size_t recipe_bytes;
    uint32_t freq_set;
    /* Seconds that computing the KV in `view` took, where somebody has measured it; 0: not known.
     * What is dear for its size is kept longer (policy adaptive). */
    float cost_s;
    struct tsr_view view;
};

/* Stores and returns how many tokens are new (0: all were there already). TSR_EFULL when everything
 * left is pinned, TSR_EFROZEN in freeze mode: lookups go on, nothing was changed. A key becomes
 * visible only when its bytes are complete. */
TSR_API TSR_MUST int tsr_client_store(struct tsr_client *client,
                                      const struct tsr_store_desc *store);

/* The same, layer by layer: reserve, give every layer once in any order, commit. */
struct tsr_put;
TSR_API TSR_MUST int tsr_put_open(struct tsr_put **out, struct tsr_client *client,
                                  const struct tsr_store_desc *store);
/* One layer; the view's layer_stride is not used. */
TSR_API TSR_MUST int tsr_put_layer(struct tsr_put *put, uint32_t layer,
                                   const struct tsr_view *view);
/* Makes it visible and frees the handle; TSR_EINVAL when a layer is missing (then nothing is
 * kept). */
TSR_API TSR_MUST int tsr_put_commit(struct tsr_put *put);
/* Gives everything back. Accepts NULL. */
TSR_API void tsr_put_abort(struct tsr_put *put);

/* Asynchronous forms. What the structs point to stays the caller's and must live until the
 * operation is done; so must the array of loads. TSR_EAGAIN when too many are in flight (option
 * ops_max). */
struct tsr_op;
typedef void (*tsr_done_fn)(void *arg, struct tsr_op *op);
TSR_API TSR_MUST int tsr_client_load_start(struct tsr_op **out, struct tsr_client *client,
                                           struct tsr_load_desc *loads, uint32_t n,
                                           tsr_done_fn done, void *arg);
TSR_API TSR_MUST int tsr_client_store_start(struct tsr_op **out, struct tsr_client *client,
                                            const struct tsr_store_desc *store, tsr_done_fn done,
                                            void *arg);
/* Waits until it is done and returns what the plain call would have; TSR_ETIME after timeout_ms
 * (-1: no limit). */
TSR_API TSR_MUST int tsr_op_wait(struct tsr_op *op, int timeout_ms);
/* Loads go layer by layer over all ranges: waits until layer `layer` of every range that can be
 * loaded has arrived. Ranges whose result is already set failed. */
TSR_API TSR_MUST int tsr_op_wait_layer(struct tsr_op *op, uint32_t layer, int timeout_ms);
/* Waits for the end if need be and frees it. Must not be called from its own done callback. */
TSR_API void tsr_op_close(struct tsr_op *op);

/* ---- keeping and dropping ----------------------------------------------------------------- */

/* Asks the tiers that other caches fill too (a Redis server) for what of the prompt this cache does
 * not know, and waits for their answer: a round trip, and with a server that is down nothing.
 * Lookups find what is there from then on. Returns how many entries were found; 0 where no tier is
 * shared. */
TSR_API TSR_MUST int tsr_client_discover(struct tsr_client *client, struct tsr_space *space,
                                         const struct tsr_prompt *prompt);
/* Brings what matches in lower tiers up to host memory, in the background; returns how many entries
 * were queued. What is not known is looked for in the tiers that others fill too, as
 * tsr_client_discover() does, also in the background. */
TSR_API TSR_MUST int tsr_client_prefetch(struct tsr_client *client, struct tsr_space *space,
                                         const struct tsr_prompt *prompt);
/* Waits until everything stored before the call, by whoever uses the cache, is in the tiers below
 * that want it, and says whether it is: the acknowledgement that survives a crash.
 *
 * 0: all of it is safe, but for what is gone by rule: dropped, cleared, or evicted from a tier at
 * its limit (disk_size). An error: some of it is not; tsr_errmsg() says how much or why. What is
 * still in host memory is then written again by the next flush, of any thread, and every flush
 * fails until that has worked: ask again when the disk has room. What left host memory before it
 * could be written, or found a tier at its limit and nothing there that may go, is lost, which is a
 * miss later; the next flush of every thread says so, once. A thread that first stores after a
 * loss hears of it only if no thread has heard of it yet; with a server, maybe again. */
TSR_API TSR_MUST int tsr_cache_flush(struct tsr_cache *cache);
/* Pinned entries are not evicted until unpinned as often. They return how many entries they
 * changed. Where a cache serves other processes too, at most half of host memory can be pinned. */
TSR_API TSR_MUST int tsr_space_pin(struct tsr_space *space, const struct tsr_prompt *prompt);
TSR_API TSR_MUST int tsr_space_unpin(struct tsr_space *space, const struct tsr_prompt *prompt);
/* Marks the prompt's chunks as just used. */
TSR_API TSR_MUST int tsr_space_touch(struct tsr_space *space, const struct tsr_prompt *prompt);
/* Evicts, in the policy's order, until that many bytes of host memory are free or nothing evictable
 * is left; skips pinned and leased entries. Returns how many entries went. */
TSR_API TSR_MUST int tsr_cache_evict(struct tsr_cache *cache, size_t free_bytes);

struct tsr_clear_desc {
    size_t size;
    struct tsr_space *space;         /* NULL: all spaces */
    const struct tsr_prompt *prompt; /* NULL: all entries; else its chunks (needs space) */
    int32_t tier; /* -1: everywhere; 0: from host memory only, 1.. a lower tier */
};
/* Drops entries that are not pinned or leased and returns how many. A block behind a dropped block
 * goes with it. clear NULL: everything. */
TSR_API TSR_MUST int tsr_cache_clear(struct tsr_cache *cache, const struct tsr_clear_desc *clear);
/* Frozen: lookups and loads go on, stores are refused and nothing is evicted. */
TSR_API void tsr_cache_freeze(struct tsr_cache *cache, int frozen);

/* ---- watching ----------------------------------------------------------------------------- */

struct tsr_stats {
    size_t size;
    uint64_t lookups, tokens_asked, tokens_reused; /* hit rate = tokens_reused / tokens_asked */
    uint64_t loads, load_misses, load_bytes;
    uint64_t stores, stores_new, stores_refused, store_bytes;
    uint64_t evicted, dropped, collisions, corrupt;
    uint64_t entries, pinned;
    uint64_t host_bytes, host_bytes_used;
    uint64_t tier_entries[8], tier_bytes[8];
};
TSR_API TSR_MUST int tsr_cache_stats(struct tsr_cache *cache, struct tsr_stats *out);
/* Every metric as text: format "prometheus" or "json". Returns the length it needs (like
 * snprintf). */
TSR_API TSR_MUST int tsr_cache_stats_text(struct tsr_cache *cache, const char *format, char *buf,
                                          size_t bytes);

enum tsr_event_kind { TSR_EVENT_STORED = 1, TSR_EVENT_EVICTED = 2, TSR_EVENT_DROPPED = 3 };
struct tsr_event {
    struct tsr_key key;
    uint8_t space[16]; /* fingerprint */
    uint32_t n_tokens;
    uint8_t kind, entry_kind, tier, reserved;
};
/* Takes at most `max` events, oldest first; returns how many. When nobody takes them the oldest are
 * dropped and counted (option events_max). */
TSR_API TSR_MUST int tsr_cache_events(struct tsr_cache *cache, struct tsr_event *out, uint32_t max);

#ifdef __cplusplus
}
#endif
#endif
