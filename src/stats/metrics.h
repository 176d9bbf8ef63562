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
    X(lookups,              COUNTER,   "calls",   "Lookups asked")                                 \
    X(lookup_tokens_asked,  COUNTER,   "tokens",  "Prompt tokens of all lookups")                  \
    X(lookup_tokens_reused, COUNTER,   "tokens",  "Prompt tokens that lookups found")              \
    X(lookup_hits,          COUNTER,   "calls",   "Lookups that found at least one token")         \
    X(lookup_misses,        COUNTER,   "calls",   "Lookups that found nothing")                    \
    X(lookup_ns,            HISTOGRAM, "ns",      "Time of one lookup")                            \
    X(lookup_tokens_any,    COUNTER,   "tokens",  "Of the tokens found, those found at any offset") \
    X(windows_dropped,      COUNTER,   "windows", "Registered windows lost to others, the table being full") \
    X(windows_false,        COUNTER,   "windows", "Windows of prompts that the table nominated and whose tokens differed") \
    X(windows_cold,         COUNTER,   "windows", "Windows of prompts nominated for entries in lower tiers") \
    X(loads,                COUNTER,   "ranges",  "Ranges asked of load")                          \
    X(load_misses,          COUNTER,   "ranges",  "Ranges that load could not deliver")            \
    X(load_bytes,           COUNTER,   "bytes",   "KV bytes delivered by load")                    \
    X(load_ns,              HISTOGRAM, "ns",      "Time of one load call")                         \
    X(stores,               COUNTER,   "calls",   "Stores asked")                                  \
    X(stores_new,           COUNTER,   "entries", "Entries that stores added")                     \
    X(stores_duplicate,     COUNTER,   "entries", "Entries of stores that were there already")     \
    X(stores_refused,       COUNTER,   "calls",   "Stores refused: full, frozen or busy")          \
    X(store_bytes,          COUNTER,   "bytes",   "KV bytes taken in by stores")                   \
    X(store_ns,             HISTOGRAM, "ns",      "Time of one store call")                        \
    X(evictions,            COUNTER,   "entries", "Entries evicted to make room")                  \
    X(evicted_bytes,        COUNTER,   "bytes",   "KV bytes of evicted entries")                   \
    X(drops,                COUNTER,   "entries", "Entries dropped because parent or data is gone")\
    X(cleared,              COUNTER,   "entries", "Entries removed by clear")                      \
    X(collisions,           COUNTER,   "entries", "Keys that matched while tokens, digest or extra differed") \
    X(corrupt,              COUNTER,   "cells",   "Cells whose checksum did not match")            \
    X(lease_refused,        COUNTER,   "leases",  "Leases refused because a limit was reached")    \
    X(prompts_malformed,    COUNTER,   "prompts", "Chunked prompts that were malformed")           \
    X(separators_unseen,    COUNTER,   "prompts", "Of these, prompts without any separator")       \
    X(touches_dropped,      COUNTER,   "touches", "Uses not told to the eviction policy, its queue being full") \
    X(events_dropped,       COUNTER,   "events",  "Events nobody took in time")                    \
    X(tier_reads,           COUNTER,   "entries", "Entries read from lower tiers")                 \
    X(tier_read_bytes,      COUNTER,   "bytes",   "Bytes read from lower tiers")                   \
    X(tier_writes,          COUNTER,   "entries", "Entries written to lower tiers")                \
    X(tier_write_bytes,     COUNTER,   "bytes",   "Bytes written to lower tiers")                  \
    X(tier_errors,          COUNTER,   "calls",   "Operations of lower tiers that failed")         \
    X(tier_timeouts,        COUNTER,   "calls",   "Operations of lower tiers that were too late")  \
    X(tier_refused,         COUNTER,   "calls",   "Operations not tried: queue full, breaker open, or no block before") \
    X(promotions,           COUNTER,   "entries", "Entries brought up to host memory")             \
    X(demotions,            COUNTER,   "entries", "Entries moved down when they were evicted")     \
    X(discovered,           COUNTER,   "entries", "Entries of other caches found in shared tiers")   \
    X(prefetches,           COUNTER,   "entries", "Entries queued by prefetch")                    \
    X(requests,             COUNTER,   "calls",   "Requests of connected clients")                 \
    X(requests_malformed,   COUNTER,   "calls",   "Requests of connected clients that were none")  \
    X(sessions_opened,      COUNTER,   "sessions", "Connections of clients")                       \
    X(sessions_refused,     COUNTER,   "sessions", "Connections refused: not allowed, no room")    \
    X(deliveries,           COUNTER,   "ranges",  "Ranges to be delivered into an engine's memory on a device") \
    X(delivery_misses,      COUNTER,   "ranges",  "Of these, ranges that could not be delivered")  \
    X(delivery_pool_hits,   COUNTER,   "ranges",  "Of these, ranges taken from the device pool")   \
    X(delivery_bytes,       COUNTER,   "bytes",   "KV bytes delivered into engines' memory")       \
    X(device_demotions,     COUNTER,   "entries", "Entries that left the device pool for host memory") \
    X(device_pool_bytes,    GAUGE,     "bytes",   "Device memory reserved for the pool")           \
    X(device_pool_used_bytes, GAUGE,   "bytes",   "Device memory that holds entries")              \
    X(device_pool_entries,  GAUGE,     "entries", "Entries in the device pool")                    \
    X(disk_entries,         GAUGE,     "entries", "Entries in the first disk tier")                \
    X(disk_unlisted_entries, GAUGE,    "entries", "Of these, entries that have no place in the index") \
    X(disk_used_bytes,      GAUGE,     "bytes",   "Bytes that the files of the first disk tier take") \
    X(disk_bytes,           GAUGE,     "bytes",   "Bytes that the first disk tier may use")        \
    X(disk2_entries,        GAUGE,     "entries", "Entries in the second disk tier")               \
    X(disk2_unlisted_entries, GAUGE,   "entries", "Of these, entries that have no place in the index") \
    X(disk2_used_bytes,     GAUGE,     "bytes",   "Bytes that the files of the second disk tier take") \
    X(disk2_bytes,          GAUGE,     "bytes",   "Bytes that the second disk tier may use")       \
    X(entries,              GAUGE,     "entries", "Entries in host memory")                        \
    X(pinned_entries,       GAUGE,     "entries", "Entries that are pinned")                       \
    X(leased_entries,       GAUGE,     "entries", "Entries held by leases")                        \
    X(host_bytes,           GAUGE,     "bytes",   "Host memory reserved for KV")                   \
    X(host_used_bytes,      GAUGE,     "bytes",   "Host memory that holds KV")                     \
    X(metadata_bytes,       GAUGE,     "bytes",   "Memory reserved for index, tokens and digests") \
    X(metadata_used_bytes,  GAUGE,     "bytes",   "Memory used by index, tokens and digests")      \
    X(windows,              GAUGE,     "windows", "Registered windows, those of entries that are gone included") \
    X(spaces,               GAUGE,     "spaces",  "Open spaces")                                   \
    X(clients,              GAUGE,     "clients", "Open clients")                                  \
    X(sessions,             GAUGE,     "sessions", "Connected clients")                            \
    X(io_queue,             GAUGE,     "jobs",    "Jobs waiting for lower tiers")
/* clang-format on */

#endif
