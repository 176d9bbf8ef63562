/* tier.h - write a storage tier (a disk, a server, another process); users of the cache need only
 * tessera.h. docs/backends.md writes one in a hundred lines; tests/tier/test_contract.c is the
 * suite that every tier must pass.
 *
 * A tier keeps entries below host memory. The cache calls it from its own I/O threads, several at
 * once, and never while holding a lock or on the path of a lookup; a slow or broken tier costs
 * misses, nothing else. The cache decides what is stored and what is dropped; the tier moves bytes
 * and proves that what it returns is what it was given.
 *
 * Threads: put, get, drop, contains, windows and flush may run at the same time on several
 *          threads; open, scan and close run alone.
 * Memory:  everything in an io is borrowed for the call.
 * Errors:  negative enum tsr_err. TSR_ENOENT: not there. TSR_ECORRUPT: there, but not what was
 *          stored; the cache then drops it. TSR_EFULL: the tier is at its own limit; the cache
 *          drops something and tries again, so it must not be said where that makes no room (a full
 *          file system). TSR_EIO, TSR_ETIME: a miss now, maybe not later.
 */
#ifndef TESSERA_TIER_H
#define TESSERA_TIER_H

#include <tessera/admin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSR_TIER_ABI 2u
#define TSR_TIERS_MAX 8u /* host memory included: tier 0 */

/* An entry without its KV. The KV of an entry is split into cells of cell_tokens tokens
 * (the last may hold fewer); in a cell, each of the n_layers x n_planes planes is a run of rows,
 * one a token, of row_bytes[plane] bytes. */
struct tsr_entry_head {
    struct tsr_key key;
    uint8_t space[16];     /* fingerprint of its space */
    uint8_t digest[32];    /* parent chain of a prefix block, context of a segment; zero: none */
    struct tsr_key parent; /* key of the block before a prefix block; zero: none */
    uint32_t kind;         /* enum tsr_kind */
    uint32_t n_tokens;
    uint32_t base, freq_set;
    uint32_t cell_tokens; /* a power of two, at most 64 */
    uint32_t n_layers, n_planes;
    uint32_t row_bytes[2];
    uint32_t extra_bytes;
    float cost_s; /* seconds to compute it again, for policies; 0: not known, or not kept */
};

/* The tier's own short name for an entry it holds, 0 = none; handed back on every later call, so
 * that a tier with fixed places needs no index of its own. */
typedef uint64_t tsr_tier_loc;

/* One entry on its way to or from a tier. */
struct tsr_tier_io {
    struct tsr_entry_head
        head;         /* put: given. get: key, space, n_tokens and shape given, the rest filled */
    tsr_tier_loc loc; /* get: given. put: set by the tier */
    uint32_t *tokens; /* n_tokens */
    uint8_t *extra;   /* put: head.extra_bytes; get: room for extra_max */
    uint32_t extra_max;
    uint32_t n_cells;
    /* planes[(layer * n_planes + plane) * n_cells + cell]: rows of that cell. get: NULL for cells
     * that are not wanted. */
    void *const *planes;
    /* CLOCK_MONOTONIC; 0: none. After it, return TSR_ETIME. A tier that takes longer
     * blocks the thread that asked, and gets no more requests until it answers. */
    uint64_t deadline_ns;
    /* get, both optional. head_done comes once, before any layer, when head, tokens and extra are
     * filled and proven; a negative answer stops the get with that error. layer_done comes for each
     * layer in ascending order, proven, as early as the tier can. */
    int (*head_done)(struct tsr_tier_io *io);
    void (*layer_done)(struct tsr_tier_io *io, uint32_t layer);
    void *arg; /* the caller's */
    int result;
};

/* Which entry: what a tier needs to find its name. */
struct tsr_tier_ref {
    struct tsr_key key;
    tsr_tier_loc loc;
    uint8_t space[16]; /* fingerprint of the entry's space */
};

struct tsr_tier_stats {
    uint64_t entries, bytes_used, bytes_max;
    uint64_t read_bytes, written_bytes, errors;
};

/* Parameters of open. */
struct tsr_tier_desc {
    size_t size;
    const struct tsr_config *config; /* ask it by name: tsr_config_get(). Borrowed for open */
    void *arg;                       /* given to tsr_tier_attach() */
    uint32_t read_only;              /* another process writes: see a consistent past */
    uint32_t n_threads;              /* how many calls may run at once */
    /* Whose entries these are: letters, digits, _ - and dots, at most 96. A tier that others use
     * too puts it in its names: what is another tenant's is not found, listed or dropped. */
    const char *tenant;
};

/* Every implementation's instance begins with this. */
struct tsr_tier {
    const struct tsr_tier_ops *ops;
};

typedef int (*tsr_tier_scan_fn)(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc,
                                uint64_t bytes);

enum tsr_tier_caps {
    /* Other caches use it too: what this one forgets for want of room stays there, what it does not
     * know may be there (contains), and what is there is not listed at open. */
    TSR_TIER_SHARED = 1
};

struct tsr_tier_ops {
    uint32_t abi;     /* TSR_TIER_ABI, or 1 without the members below that line */
    uint32_t caps;    /* enum tsr_tier_caps */
    const char *name; /* "disk" */
    int (*open)(struct tsr_tier **out, const struct tsr_tier_desc *desc);
    void (*close)(struct tsr_tier *tier);
    /* Each io's result is set; the return value is how many succeeded. After a put that succeeded a
     * get finds the entry; it need not survive a crash before flush has returned. Putting a key
     * again replaces it. */
    int (*put)(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
    int (*get)(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
    /* Returns how many were there. */
    int (*drop)(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n);

    /* (optional) every entry held, once, after open; a negative answer of fn ends it. Those used
     * last come first, and a block of a prefix after the one before it: that order decides what
     * goes next, and what the cache takes when its index is smaller than the tier. A positive
     * answer: there is no place for it, as if it were unlisted (below). Default: none; what was put
     * in this run is all there is. The tokens of the entries are not read. */
    int (*scan)(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg);
    /* (optional) found[i] = 1 when the tier has refs[i]; for tiers that others fill too. Default:
     * what the cache itself remembers. */
    int (*contains)(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                    uint8_t *found);
    /* (optional) returns when everything put before survives a crash. After an error the tier has
     * dropped what it cannot be sure of, and contains says so; or it keeps trying, and the next
     * flush that succeeds covers it. Default: nothing to do. */
    int (*flush)(struct tsr_tier *tier);
    /* (optional) default: zeros. */
    int (*stats)(struct tsr_tier *tier, struct tsr_tier_stats *out);
    /* (optional) hashes of the entry's windows of 32 tokens, from the first on and at most max, as
     * far as the tier has them at hand; returns how many. docs/format.md says how they are made.
     * With them text is found at any offset before it was read. Called beside scan, and at any time
     * like contains. Default: none, such text is found at any offset after it was read once. */
    int (*windows)(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint64_t *out,
                   uint32_t max);
    /* (optional) The cache has no place for these in its index any more and will not ask for them.
     * They stay, for a later scan, and go before others when the tier has no room. Returns how many
     * were there. Default: drop. */
    int (*unlist)(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n);
    /* (optional) Drops what the cache does not know (unlisted, or not taken by a scan) of the space
     * with this fingerprint, or of all (NULL). Returns how many. Default: there is nothing. */
    int (*purge)(struct tsr_tier *tier, const uint8_t *space);
    /* members above belong to abi 1 */
    /* (optional) the same as windows for text with frequent edits: hashes of 8 tokens in every 12.
     * Default: none, such text is found after it was read once. */
    int (*shingles)(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint32_t *out,
                    uint32_t max);
    /* members above belong to abi 2; append below, never reorder */
};

/* Puts a tier of your own below the built-in ones of a configuration, in the order of the calls.
 * `ops` and `arg` must outlive every cache opened with cfg. */
TSR_API TSR_MUST int tsr_tier_attach(struct tsr_config *cfg, const struct tsr_tier_ops *ops,
                                     void *arg);

#ifdef __cplusplus
}
#endif
#endif
