/* metrics.h - THE table of metrics: name, kind, unit, help. One row makes the enum value
 * TSRI_M_<name>, the storage, the Prometheus lines and the JSON member, so a metric that is not
 * here does not exist and one that is here is always reported.
 *
 * Kinds: COUNTER only grows. GAUGE is a level: either set by its owner or moved by adds from
 * anywhere. HISTOGRAM counts durations in power-of-two nanosecond buckets; its name ends in _ns
 * here and in _seconds towards Prometheus, which asks for base units. */
#ifndef TSRI_METRICS_H
#define TSRI_METRICS_H

/* clang-format off */
#define TSRI_METRICS(X)                                                                            \
    X(lookups,              COUNTER,   "calls",   "Lookups")                                       \
    X(lookup_tokens_asked,  COUNTER,   "tokens",  "Prompt tokens in all lookups")                  \
    X(lookup_tokens_reused, COUNTER,   "tokens",  "Prompt tokens found by lookups")                \
    X(lookup_hits,          COUNTER,   "calls",   "Lookups that found at least one token")         \
    X(lookup_misses,        COUNTER,   "calls",   "Lookups that found nothing")                    \
    X(lookup_ns,            HISTOGRAM, "ns",      "Duration of a lookup")                          \
    X(lookup_tokens_any,    COUNTER,   "tokens",  "Prompt tokens found by any-offset matching")    \
    X(windows_dropped,      COUNTER,   "windows", "Windows overwritten because the table was full") \
    X(windows_false,        COUNTER,   "windows", "Window candidates rejected because their tokens differed") \
    X(windows_cold,         COUNTER,   "windows", "Window candidates in lower tiers")              \
    X(lookup_tokens_edits,  COUNTER,   "tokens",  "Prompt tokens found around frequent edits, in runs of fewer than 63") \
    X(edit_matches,         COUNTER,   "matches", "Partial matches found around frequent edits") \
    X(shingles_dropped,     COUNTER,   "shingles", "Shingles not indexed or overwritten because there was no room") \
    X(shingles_false,       COUNTER,   "shingles", "Shingle candidates rejected because their tokens differed") \
    X(loads,                COUNTER,   "ranges",  "Ranges requested by loads")                     \
    X(load_misses,          COUNTER,   "ranges",  "Ranges that a load could not deliver")          \
    X(load_bytes,           COUNTER,   "bytes",   "KV bytes delivered by loads")                   \
    X(load_ns,              HISTOGRAM, "ns",      "Duration of a load call; in a server, of lending what a client copies") \
    X(stores,               COUNTER,   "calls",   "Store calls")                                   \
    X(stores_new,           COUNTER,   "entries", "Entries added by stores")                       \
    X(stores_duplicate,     COUNTER,   "entries", "Entries not stored because they already existed") \
    X(stores_refused,       COUNTER,   "calls",   "Stores refused: full, frozen or busy")          \
    X(store_bytes,          COUNTER,   "bytes",   "KV bytes accepted by stores")                   \
    X(store_ns,             HISTOGRAM, "ns",      "Duration of a store call; in a server, of committing what a client wrote") \
    X(evictions,            COUNTER,   "entries", "Entries evicted to make room")                  \
    X(evicted_bytes,        COUNTER,   "bytes",   "KV bytes of evicted entries")                   \
    X(drops,                COUNTER,   "entries", "Entries dropped because their parent or data was lost") \
    X(cleared,              COUNTER,   "entries", "Entries removed by clear")                      \
    X(collisions,           COUNTER,   "entries", "Key matches rejected because tokens, digest or extra differed") \
    X(corrupt,              COUNTER,   "cells",   "Cells with a wrong checksum")                   \
    X(lease_refused,        COUNTER,   "leases",  "Leases refused because a limit was reached")    \
    X(prompts_malformed,    COUNTER,   "prompts", "Malformed chunked prompts")                     \
    X(separators_unseen,    COUNTER,   "prompts", "Malformed chunked prompts without any separator") \
    X(touches_dropped,      COUNTER,   "touches", "Uses the eviction policy missed because its queue was full") \
    X(events_dropped,       COUNTER,   "events",  "Events dropped because no client read them in time") \
    X(tier_reads,           COUNTER,   "entries", "Entries read from lower tiers")                 \
    X(tier_read_bytes,      COUNTER,   "bytes",   "Bytes read from lower tiers")                   \
    X(tier_writes,          COUNTER,   "entries", "Entries written to lower tiers")                \
    X(tier_write_bytes,     COUNTER,   "bytes",   "Bytes written to lower tiers")                  \
    X(tier_errors,          COUNTER,   "calls",   "Failed operations on lower tiers")              \
    X(tier_timeouts,        COUNTER,   "calls",   "Lower-tier operations that missed their deadline") \
    X(tier_refused,         COUNTER,   "calls",   "Lower-tier operations not attempted: queue full, breaker open, or previous block missing") \
    X(promotions,           COUNTER,   "entries", "Entries copied up to host memory")              \
    X(demotions,            COUNTER,   "entries", "Entries moved to a lower tier on eviction")     \
    X(discovered,           COUNTER,   "entries", "Entries stored by other caches and found in shared tiers") \
    X(prefetches,           COUNTER,   "entries", "Entries queued for prefetch")                   \
    X(requests,             COUNTER,   "calls",   "Client requests")                               \
    X(requests_malformed,   COUNTER,   "calls",   "Malformed client requests")                     \
    X(sessions_opened,      COUNTER,   "sessions", "Client connections accepted")                  \
    X(sessions_refused,     COUNTER,   "sessions", "Client connections refused: not allowed, or no room") \
    X(deliveries,           COUNTER,   "ranges",  "Ranges requested for delivery into engine memory on a device") \
    X(delivery_misses,      COUNTER,   "ranges",  "Requested ranges that could not be delivered")  \
    X(delivery_pool_hits,   COUNTER,   "ranges",  "Requested ranges served from the device pool")  \
    X(delivery_bytes,       COUNTER,   "bytes",   "KV bytes delivered into engine memory")         \
    X(device_demotions,     COUNTER,   "entries", "Entries moved from the device pool to host memory") \
    X(device_pool_bytes,    GAUGE,     "bytes",   "Device memory reserved for the pool")           \
    X(device_pool_used_bytes, GAUGE,   "bytes",   "Device memory in use by the pool")              \
    X(device_pool_entries,  GAUGE,     "entries", "Entries in the device pool")                    \
    X(disk_entries,         GAUGE,     "entries", "Entries in the first disk tier")                \
    X(disk_unlisted_entries, GAUGE,    "entries", "Entries in the first disk tier that are not in the index") \
    X(disk_used_bytes,      GAUGE,     "bytes",   "Size of the files of the first disk tier")      \
    X(disk_bytes,           GAUGE,     "bytes",   "Maximum size of the first disk tier")           \
    X(disk2_entries,        GAUGE,     "entries", "Entries in the second disk tier")               \
    X(disk2_unlisted_entries, GAUGE,   "entries", "Entries in the second disk tier that are not in the index") \
    X(disk2_used_bytes,     GAUGE,     "bytes",   "Size of the files of the second disk tier")     \
    X(disk2_bytes,          GAUGE,     "bytes",   "Maximum size of the second disk tier")          \
    X(entries,              GAUGE,     "entries", "Entries in host memory")                        \
    X(host_tokens,          GAUGE,     "tokens",  "Tokens of the entries in host memory")         \
    X(cached_tokens,        GAUGE,     "tokens",  "Tokens of all entries in the index, each counted once, whatever tiers have it") \
    X(pinned_entries,       GAUGE,     "entries", "Pinned entries")                                \
    X(leased_entries,       GAUGE,     "entries", "Leased entries")                                \
    X(host_bytes,           GAUGE,     "bytes",   "Host memory reserved for KV")                   \
    X(host_used_bytes,      GAUGE,     "bytes",   "Host memory in use by KV")                      \
    X(host_locked_bytes,    GAUGE,     "bytes",   "Host memory that is page-locked for the device") \
    X(metadata_bytes,       GAUGE,     "bytes",   "Memory reserved for index, tokens and digests") \
    X(metadata_used_bytes,  GAUGE,     "bytes",   "Memory in use by index, tokens and digests")    \
    X(windows,              GAUGE,     "windows", "Indexed windows, including those of removed entries") \
    X(shingles,             GAUGE,     "shingles", "Indexed shingles, including those of removed entries") \
    X(spaces,               GAUGE,     "spaces",  "Open spaces")                                   \
    X(clients,              GAUGE,     "clients", "Open clients")                                  \
    X(sessions,             GAUGE,     "sessions", "Connected clients")                            \
    X(io_queue,             GAUGE,     "jobs",    "Jobs waiting for lower tiers")
/* clang-format on */

#endif
