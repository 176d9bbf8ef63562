/* admin.h - look into a cache and manage it: keys, prefetching, pins, eviction, clearing, metrics
 * and events. Engines that only look up, load and store do not need it.
 *
 * Threads, memory, errors, fork: as in tessera.h. */
#ifndef TESSERA_ADMIN_H
#define TESSERA_ADMIN_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- more ways to configure --------------------------------------------------------------- */

/* The value of an option as text, or NULL for an unknown key. Owned by cfg until the next set. */
TSR_API const char *tsr_config_get(const struct tsr_config *cfg, const char *key);
/* Loads YAML text from memory; messages show `name` in place of a path. */
TSR_API TSR_MUST int tsr_config_load_text(struct tsr_config *cfg, const char *text, size_t bytes,
                                          const char *name);
/* Loads --key=value and --key value. Stops at the first argument that is not an option and returns
 * how many arguments were used. */
TSR_API TSR_MUST int tsr_config_load_args(struct tsr_config *cfg, int argc, char *const *argv);

/* ---- what is in the cache ----------------------------------------------------------------- */

/* 16 bytes, the same in every process and on every machine. */
TSR_API void tsr_space_fingerprint(const struct tsr_space *space, uint8_t out[16]);

struct tsr_key {
    uint8_t bytes[16];
};
/* The keys of a prompt's chunks in a space, in the order of lookup; returns how many. */
TSR_API TSR_MUST int tsr_space_keys(struct tsr_space *space, const struct tsr_prompt *prompt,
                                    struct tsr_key *keys, uint32_t keys_max);
/* Which tier has each key: tiers[i] = 0 host memory, else the fastest that has it (the device pool,
 * then the other tiers in their order), -1 none. tier_names of tsr_cache_stats() has their names.
 * Returns how many keys the cache has. */
TSR_API TSR_MUST int tsr_cache_contains(struct tsr_cache *cache, const struct tsr_key *keys,
                                        uint32_t n, int8_t *tiers);

/* ---- bringing entries closer -------------------------------------------------------------- */

/* Asks the tiers that other caches also fill (a Redis server) for the parts of a prompt that this
 * cache does not know, and waits for the answer: one round trip, or no wait if the server is down.
 * Later lookups find what is there. Returns how many entries were found; 0 if no tier is shared. */
TSR_API TSR_MUST int tsr_client_discover(struct tsr_client *client, struct tsr_space *space,
                                         const struct tsr_prompt *prompt);
/* Loads matching entries of lower tiers into host memory, in the background; returns how many were
 * queued. Also asks shared tiers for unknown parts, as tsr_client_discover() does, in the
 * background. */
TSR_API TSR_MUST int tsr_client_prefetch(struct tsr_client *client, struct tsr_space *space,
                                         const struct tsr_prompt *prompt);

/* ---- keeping and removing ----------------------------------------------------------------- */

/* Pinned entries are not evicted until they are unpinned as often. Both calls return how many
 * entries they changed. In a cache that also serves other processes, at most half of host memory
 * can be pinned. */
TSR_API TSR_MUST int tsr_space_pin(struct tsr_space *space, const struct tsr_prompt *prompt);
TSR_API TSR_MUST int tsr_space_unpin(struct tsr_space *space, const struct tsr_prompt *prompt);
/* Marks the prompt's chunks as just used. */
TSR_API TSR_MUST int tsr_space_touch(struct tsr_space *space, const struct tsr_prompt *prompt);
/* Evicts entries, in the order of the policy, until free_bytes of host memory are free or nothing
 * evictable is left. Skips pinned and leased entries. Returns how many were evicted. */
TSR_API TSR_MUST int tsr_cache_evict(struct tsr_cache *cache, size_t free_bytes);

/* The same for at most keys_max entries, and says which: fills their keys in the order in which
 * they went. Call it until it returns less than keys_max. */
TSR_API TSR_MUST int tsr_cache_evict_keys(struct tsr_cache *cache, size_t free_bytes,
                                          struct tsr_key *keys, uint32_t keys_max);
/* The entries in host memory, the next to be evicted first: with policy lru, the least recently used
 * one. Entries in use are listed too, and skipped by an eviction. Fills at most entries_max of them
 * and returns how many there are. A client of a cache server gets the entries of its own tenant, in
 * parts of 65536, between which the order may change; TSR_EUNSUP from a server too old for it, also
 * for the call above. */
struct tsr_listed {
    struct tsr_key key;
    uint8_t space[16]; /* fingerprint */
    uint32_t n_tokens;
    uint32_t pins; /* of users, leases and loads that run */
    uint8_t kind;  /* enum tsr_kind */
    uint8_t reserved[7];
};
TSR_API TSR_MUST int tsr_cache_list(struct tsr_cache *cache, struct tsr_listed *entries,
                                    uint32_t entries_max);

enum tsr_clear_tier {
    TSR_CLEAR_ALL = -1, /* everywhere */
    TSR_CLEAR_OWN = -2  /* everywhere but in tiers that other caches also fill: their copies stay,
                         * and tsr_client_discover() finds them again */
};
struct tsr_clear_desc {
    size_t size;
    struct tsr_space *space;         /* NULL: all spaces */
    const struct tsr_prompt *prompt; /* NULL: all entries; else its chunks (needs space) */
    int32_t tier; /* enum tsr_clear_tier; 0: from host memory only, 1.. a lower tier */
    /* Of a prompt's prefix, the blocks from this token on; a block boundary. TSR_EUNSUP on a client
     * of a cache server if it is not 0. */
    uint32_t from;
};
/* Drops entries that are not pinned or leased and returns how many. A block that follows a dropped
 * block is dropped too. clear NULL: everything. */
TSR_API TSR_MUST int tsr_cache_clear(struct tsr_cache *cache, const struct tsr_clear_desc *clear);
/* Freezes (1) or unfreezes (0) a cache. While it is frozen, lookups and loads work, stores are
 * refused and nothing is evicted. */
TSR_API void tsr_cache_freeze(struct tsr_cache *cache, int frozen);

/* ---- metrics and events ------------------------------------------------------------------- */

/* All metrics as text; format is "prometheus" or "json". Returns the length needed, like
 * snprintf. */
TSR_API TSR_MUST int tsr_cache_stats_text(struct tsr_cache *cache, const char *format, char *buf,
                                          size_t bytes);

enum tsr_event_kind { TSR_EVENT_STORED = 1, TSR_EVENT_EVICTED = 2, TSR_EVENT_DROPPED = 3 };
struct tsr_event {
    struct tsr_key key;
    uint8_t space[16]; /* fingerprint */
    uint32_t n_tokens;
    uint8_t kind, entry_kind, tier, reserved;
};
/* Takes at most `max` events, oldest first; returns how many. If they are not taken in time, the
 * oldest are dropped and counted (option events_max). */
TSR_API TSR_MUST int tsr_cache_events(struct tsr_cache *cache, struct tsr_event *out, uint32_t max);

#ifdef __cplusplus
}
#endif
#endif
