/* options.h - THE table of options. One row makes the field of struct tsri_options, its default,
 * its range, the YAML key, the TESSERA_* variable, the --flag, `tessera config show`, the man page
 * and docs/config.md. To add an option, add a row; to add a name to an ENUM, add it to its list.
 *
 * Row: X(name, TYPE, default, min, max, flags, help)
 *   BOOL    true or false                          (min and max unused)
 *   COUNT   a whole number, a uint32_t field
 *   SIZE    bytes with K, M, G or T (binary), a uint64_t field
 *   FLOAT   a decimal number, a double field       (min and max are numbers)
 *   ENUM    one name of TSRI_ENUM_<name>, an int field (min and max unused)
 *   LIST    up to TSRI_LIST_MAX decimal numbers from min to max, separated by commas; empty: none
 *   STRING  text of min to max bytes
 *   PATH    a path of min to max bytes; ~/ at its start is the home folder
 * Names are words joined by '_', so that `host: {size: 1G}` in YAML is host_size.
 */
#ifndef TSRI_OPTIONS_H
#define TSRI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define TSRI_KIB ((uint64_t)1 << 10)
#define TSRI_MIB ((uint64_t)1 << 20)
#define TSRI_GIB ((uint64_t)1 << 30)
#define TSRI_TIB ((uint64_t)1 << 40)

/* flags */
enum {
    TSRI_OPT_RELOAD = 1, /* takes effect while running; all others at open */
    TSRI_OPT_POW2 = 2,   /* a power of two */
    TSRI_OPT_SECRET = 8, /* the value is never shown */
    TSRI_OPT_ZERO = 4,   /* 0 is allowed below min: derived from the other options */
    TSRI_OPT_WHOLE = 16, /* LIST: whole numbers */
    TSRI_OPT_ONE = 32,   /* LIST: at most one number */
};

#define TSRI_LIST_MAX 8u
struct tsri_list {
    uint32_t n;
    double values[TSRI_LIST_MAX];
};

/* ---- the names of ENUM options; the first is number 0 ---- */

/* clang-format off */
#define TSRI_ENUM_hash(N)           N(HASH_SHA256, "sha256") N(HASH_XXH3, "xxh3")
#define TSRI_ENUM_partial(N)        N(PARTIAL_OFF, "off") N(PARTIAL_RUNS, "runs") \
                                    N(PARTIAL_EDITS, "edits")
#define TSRI_ENUM_policy(N)         N(POLICY_LRU, "lru") N(POLICY_S3FIFO, "s3fifo") \
                                    N(POLICY_ADAPTIVE, "adaptive")
#define TSRI_ENUM_owner(N)          N(OWNER_PROCESS, "process") N(OWNER_EMBEDDED, "embedded") \
                                    N(OWNER_DAEMON, "daemon")
#define TSRI_ENUM_log_level(N)      N(LOG_LEVEL_ERROR, "error") N(LOG_LEVEL_WARN, "warn") \
                                    N(LOG_LEVEL_INFO, "info") N(LOG_LEVEL_DEBUG, "debug")
#define TSRI_ENUM_disk_admission(N) N(DISK_ADMISSION_ALWAYS, "always") \
                                    N(DISK_ADMISSION_SECOND_TOUCH, "second_touch")
#define TSRI_ENUM_disk_io(N)        N(DISK_IO_AUTO, "auto") N(DISK_IO_URING, "io_uring") \
                                    N(DISK_IO_THREADS, "threads")
#define TSRI_ENUM_disk_write(N)     N(DISK_WRITE_BACK, "back") N(DISK_WRITE_THROUGH, "through") \
                                    N(DISK_WRITE_NONE, "none")
#define TSRI_ENUM_s3_path_style(N)  N(S3_PATH_STYLE_AUTO, "auto") N(S3_PATH_STYLE_YES, "yes") \
                                    N(S3_PATH_STYLE_NO, "no")
/* disk2_*, redis_*, s3_* and attached_* have the names of disk_*, and every *_policy those of
 * policy (option.c). */

/* ---- the options ---- */

#define TSRI_OPTIONS(X) \
    X(host_size, SIZE, "1G", TSRI_MIB, 16 * TSRI_TIB, 0, \
      "host memory for KV") \
    X(host_page_size, SIZE, "256K", 4 * TSRI_KIB, 64 * TSRI_MIB, TSRI_OPT_POW2, \
      "allocation unit of host memory; a plane (one layer's K or V of a cell) never crosses a page") \
    X(metadata_size, SIZE, "0", TSRI_MIB, 128 * TSRI_GIB, TSRI_OPT_ZERO, \
      "memory for tokens and cell tables; 0: derived from host_size") \
    X(entries_max, COUNT, "0", 16, (uint64_t)1 << 28, TSRI_OPT_ZERO, \
      "maximum number of entries in the index; 0: derived from host_size") \
    X(spaces_max, COUNT, "256", 1, 4096, 0, \
      "maximum number of spaces (models, ranks, KV groups, tenants) that are open or have entries") \
    X(clients_max, COUNT, "1024", 1, 65536, 0, \
      "maximum number of open clients") \
    X(lease_entries_max, COUNT, "65536", 1, (uint64_t)1 << 28, 0, \
      "maximum number of entries that one client may lease") \
    X(chunk_size, COUNT, "256", 1, 65536, 0, \
      "tokens per prefix block") \
    X(save_partial, BOOL, "false", 0, 0, 0, \
      "also store an incomplete last block") \
    X(hash, ENUM, "sha256", 0, 0, 0, \
      "hash function for prefix chains and contexts") \
    X(chunked, BOOL, "false", 0, 0, 0, \
      "split prompts at the separator and reuse each document at any place, as blend does") \
    X(separator, STRING, "", 0, 255, 0, \
      "text between documents: SYSTEM sep DOCUMENT sep DOCUMENT sep QUESTION; empty: none") \
    X(blend, BOOL, "false", 0, 0, 0, \
      "engines: reuse documents at any place of a prompt and recompute a few tokens (engines.md)") \
    X(blend_any_offset, BOOL, "false", 0, 0, 0, \
      "engines: with blend, also reuse stored text that nothing in the prompt marks") \
    X(blend_from_traffic, BOOL, "false", 0, 0, 0, \
      "engines: with blend_any_offset, also reuse what plain requests have computed") \
    X(blend_min_tokens, COUNT, "256", 0, 1048576, 0, \
      "compute a prompt if fewer tokens than this could be blended") \
    X(blend_check_layers, LIST, "", 0, 4096, TSRI_OPT_WHOLE, \
      "select tokens by deviation (hkvd) at these layers, at most 4; empty: as the profile says") \
    X(blend_recompute_ratios, LIST, "", 0, 1, 0, \
      "share of reused tokens to recompute: one, or one per check layer; empty: the profile's") \
    X(blend_thresholds, LIST, "", 0, 1000000, 0, \
      "recompute tokens whose deviation is above so many times the mean: one, or one per check layer") \
    X(blend_boundary, LIST, "", 0, 1024, TSRI_OPT_WHOLE | TSRI_OPT_ONE, \
      "tokens to recompute at each edit inside a document; empty: the profile's") \
    X(save_decode, BOOL, "false", 0, 0, 0, \
      "engines: also save generated tokens, not only prompts") \
    X(segments_max, COUNT, "4096", 1, 4096, 0, \
      "maximum number of segments in one prompt") \
    X(segment_min_tokens, COUNT, "0", 0, 1048576, 0, \
      "do not store segments with fewer tokens") \
    X(any_offset, BOOL, "true", 0, 0, 0, \
      "index windows of tokens, so that lookups find stored text at any offset of a prompt") \
    X(windows_max, COUNT, "0", 1024, (uint64_t)1 << 30, TSRI_OPT_ZERO, \
      "maximum number of windows (32 tokens, 14 bytes; edits: 29) in the index; 0: from metadata_size") \
    X(partial, ENUM, "edits", 0, 0, 0, \
      "text to find at any offset: off (whole entries), runs (63 equal tokens), edits (any small edits)") \
    X(match_min_tokens, COUNT, "32", 1, 1048576, 0, \
      "ignore matches at any offset that are shorter, edited tokens between equal ones included") \
    X(min_match_ratio, FLOAT, "0.8", 0, 1, 0, \
      "share of equal tokens that makes edited text a match, and a match of an entry a partial one") \
    X(policy, ENUM, "adaptive", 0, 0, 0, \
      "eviction policy: lru, s3fifo (entries used only once go first), adaptive (follows the traffic)") \
    X(owner, ENUM, "process", 0, 0, 0, \
      "cache owner: process (this process), embedded (it also serves others), daemon (a server)") \
    X(frozen, BOOL, "false", 0, 0, TSRI_OPT_RELOAD, \
      "start frozen: allow lookups and loads only, refuse stores, evict nothing") \
    X(io_threads, COUNT, "2", 1, 64, 0, \
      "threads for asynchronous loads and stores") \
    X(io_queue_max, COUNT, "1024", 1, 65536, 0, \
      "maximum number of queued jobs for these threads; further jobs are refused") \
    X(ops_max, COUNT, "256", 1, 65536, 0, \
      "maximum number of asynchronous operations in flight; further ones are refused") \
    X(events_max, COUNT, "4096", 1, 1048576, 0, \
      "maximum number of unread events; the oldest are dropped and counted") \
    X(disk_path, PATH, "", 0, 4095, 0, \
      "directory of the disk tier; empty: no disk tier") \
    X(disk_enabled, BOOL, "true", 0, 0, 0, \
      "false: no disk tier, even if disk_path is set") \
    X(disk_size, SIZE, "16G", 64 * TSRI_MIB, 1024 * TSRI_TIB, 0, \
      "maximum size of the disk tier") \
    X(disk_segment_size, SIZE, "256M", TSRI_MIB, 64 * TSRI_GIB, 0, \
      "size at which the disk tier starts a new segment file") \
    X(disk_admission, ENUM, "always", 0, 0, 0, \
      "entries to write to disk: always (all), second_touch (those used twice)") \
    X(disk_direct, BOOL, "true", 0, 0, 0, \
      "bypass the page cache (O_DIRECT) where the file system allows it") \
    X(disk_io, ENUM, "auto", 0, 0, 0, \
      "I/O method of the disk tier; auto: io_uring, or threads if the kernel refuses it") \
    X(disk_write, ENUM, "back", 0, 0, 0, \
      "when to write entries to disk: back (background), through (before the store returns), none") \
    X(disk_policy, ENUM, "lru", 0, 0, 0, \
      "eviction policy of the disk tier") \
    X(disk2_path, PATH, "", 0, 4095, 0, \
      "directory of a second disk tier, usually larger and slower; empty: none") \
    X(disk2_size, SIZE, "64G", 64 * TSRI_MIB, 1024 * TSRI_TIB, 0, \
      "maximum size of the second disk tier") \
    X(disk2_admission, ENUM, "always", 0, 0, 0, \
      "entries to write to the second disk tier: always (all), second_touch (those used twice)") \
    X(disk2_write, ENUM, "back", 0, 0, 0, \
      "when to write entries to the second disk tier, like disk_write") \
    X(disk2_policy, ENUM, "lru", 0, 0, 0, \
      "eviction policy of the second disk tier") \
    X(attached_admission, ENUM, "always", 0, 0, 0, \
      "entries to write to attached tiers (tier.h): always (all), second_touch (those used twice)") \
    X(attached_write, ENUM, "back", 0, 0, 0, \
      "when to write entries to attached tiers, like disk_write") \
    X(attached_policy, ENUM, "lru", 0, 0, 0, \
      "eviction policy of attached tiers") \
    X(tiers, STRING, "", 0, 255, 0, \
      "order of the tiers below host memory, by name; empty: disk, disk2, redis, s3, attached tiers") \
    X(tier_load_ms, COUNT, "30000", 0, 86400000, 0, \
      "milliseconds to load an entry from a lower tier, after that it is a miss; 0: no limit") \
    X(tier_store_ms, COUNT, "60000", 0, 86400000, 0, \
      "milliseconds to store an entry in a lower tier, after that it is given up; 0: no limit") \
    X(server_socket, PATH, "", 0, 107, 0, \
      "Unix socket of the server; empty: tessera/tesserad.sock in XDG_RUNTIME_DIR or /run") \
    X(server_owner, STRING, "", 0, 10, 0, \
      "clients: uid that the server must run as; empty: this user; root is always accepted") \
    X(server_allow, STRING, "", 0, 255, 0, \
      "tesserad: further uids that may connect, separated by commas; each gets its own cache") \
    X(server_tokens, PATH, "", 0, 4095, 0, \
      "tesserad: file of tenants, one name and token per line; only its owner may have access") \
    X(server_threads, COUNT, "4", 1, 64, 0, \
      "server threads that copy and wait for tiers; each further tenant adds one") \
    X(server_memory, SIZE, "256M", TSRI_MIB, TSRI_TIB, 0, \
      "memory for requests and replies in flight, shared out among clients and tenants") \
    X(server_staging_max, SIZE, "1G", TSRI_MIB, TSRI_TIB, 0, \
      "maximum size of a client's staging area") \
    X(server_token, STRING, "", 0, 256, TSRI_OPT_SECRET, \
      "clients: token of the tenant; empty: the uid is the tenant") \
    X(server_staging, SIZE, "128M", TSRI_MIB, TSRI_TIB, 0, \
      "clients: size of the shared memory for stores") \
    X(server_deadline, COUNT, "100", 1, 60000, 0, \
      "clients: milliseconds a lookup waits for the server before it misses") \
    X(server_patience, COUNT, "10000", 1, 600000, 0, \
      "clients: milliseconds that loads, stores and flush wait before they give up on the server") \
    X(device, STRING, "", 0, 32, 0, \
      "device of engines: cpu, cuda, npu (both keep host_size resident), libtessera-NAME.so; empty: none") \
    X(device_number, COUNT, "0", 0, 255, 0, \
      "number of the device, if the machine has several") \
    X(device_operators, BOOL, "false", 0, 0, 0, \
      "npu: rotate, widen int8 and move scattered tokens by operators of CANN, after a self-test") \
    X(device_pool_size, SIZE, "0", TSRI_MIB, 16 * TSRI_TIB, TSRI_OPT_ZERO, \
      "device memory for copies of reused entries; 0: device_pool_share") \
    X(device_pool_share, FLOAT, "0", 0, 1, 0, \
      "device_pool_size as a share of the device's memory, as far as that is free; 0: no pool") \
    X(device_pool_chunked_share, FLOAT, "0", 0, 1, 0, \
      "device_pool_share while chunked is on and device_pool_share is 0; 0: no pool") \
    X(http_listen, STRING, "127.0.0.1:7464", 0, 63, 0, \
      "tesserad: address of status page and metrics, or off; non-loopback requires http_token") \
    X(http_token, PATH, "", 0, 4095, 0, \
      "tesserad: file with the token for status page and metrics; only its owner may have access") \
    X(prefill_rate, COUNT, "10000", 1, 1000000000, 0, \
      "prefill speed of the engine in tokens per second, used to report time saved") \
    X(tenant, STRING, "", 0, 96, 0, \
      "tenant on redis and s3; caches with the same tenant share entries; empty: uid-N of the user") \
    X(redis_address, STRING, "", 0, 1023, 0, \
      "servers of the redis tier: HOST:PORT or unix:/PATH, separated by commas; empty: none") \
    X(redis_user, STRING, "", 0, 255, 0, \
      "user name to log in with; empty: the default user") \
    X(redis_password, STRING, "", 0, 255, TSRI_OPT_SECRET, \
      "password; prefer the environment (TESSERA_REDIS_PASSWORD) to a file") \
    X(redis_password_file, PATH, "", 0, 4095, 0, \
      "file that holds only the password, readable by its owner alone; used if no password is set") \
    X(redis_database, COUNT, "0", 0, 65535, 0, \
      "database number; a cluster has only 0") \
    X(redis_prefix, STRING, "tessera", 1, 64, 0, \
      "prefix of all key names: letters, digits and _.-:/") \
    X(redis_connections, COUNT, "2", 1, 8, 0, \
      "connections per I/O thread and server") \
    X(redis_timeout_ms, COUNT, "1000", 10, 600000, 0, \
      "treat a server that does not respond for this long as down") \
    X(redis_ttl_s, COUNT, "0", 0, 315360000, 0, \
      "seconds until an entry expires on the server; 0: only when the server evicts it") \
    X(redis_absent_ms, COUNT, "1000", 0, 3600000, 0, \
      "milliseconds before asking again for an entry that the server did not have") \
    X(redis_part_size, SIZE, "2M", 4 * TSRI_KIB, 8 * TSRI_MIB, 0, \
      "target size of the values of an entry; values hold whole layers if these fit") \
    X(redis_admission, ENUM, "always", 0, 0, 0, \
      "entries to write to the redis tier: always (all), second_touch (those used twice)") \
    X(redis_write, ENUM, "back", 0, 0, 0, \
      "when to write entries to the redis tier, like disk_write") \
    X(redis_bandwidth, SIZE, "0", TSRI_MIB, TSRI_TIB, TSRI_OPT_ZERO, \
      "bandwidth limit in bytes per second, both directions; 0: no limit") \
    X(s3_bucket, STRING, "", 0, 63, 0, \
      "bucket of the s3 tier; empty: none") \
    X(s3_endpoint, STRING, "", 0, 255, 0, \
      "http://HOST:PORT or https://HOST:PORT of the S3 server; empty: Amazon's endpoint for the region") \
    X(s3_region, STRING, "us-east-1", 1, 32, 0, \
      "region used to sign requests") \
    X(s3_path_style, ENUM, "auto", 0, 0, 0, \
      "bucket in the path (yes) or in the host name (no); auto: yes if an endpoint is set") \
    X(s3_access_key, STRING, "", 0, 255, 0, \
      "access key; empty: taken from s3_credentials_file or AWS_ACCESS_KEY_ID") \
    X(s3_secret_key, STRING, "", 0, 255, TSRI_OPT_SECRET, \
      "secret key; prefer the environment (TESSERA_S3_SECRET_KEY) to a file") \
    X(s3_session_token, STRING, "", 0, 4095, TSRI_OPT_SECRET, \
      "session token for temporary keys") \
    X(s3_credentials_file, PATH, "", 0, 4095, 0, \
      "file of keys in the format of aws configure, readable by its owner alone") \
    X(s3_ca_file, PATH, "", 0, 4095, 0, \
      "CA certificates to trust instead of the system's") \
    X(s3_prefix, STRING, "tessera", 1, 64, 0, \
      "prefix of all object names: letters, digits and _.-/") \
    X(s3_connections, COUNT, "8", 1, 64, 0, \
      "maximum number of connections and concurrent requests") \
    X(s3_timeout_ms, COUNT, "5000", 10, 600000, 0, \
      "treat a server that does not respond for this long as down") \
    X(s3_absent_ms, COUNT, "1000", 0, 3600000, 0, \
      "milliseconds before asking again for an entry that the server did not have") \
    X(s3_list_s, COUNT, "3600", 0, 31536000, 0, \
      "seconds between listings of the bucket, which refresh the index; 0: list once") \
    X(s3_index_max, COUNT, "1048576", 0, 268435456, 0, \
      "maximum number of bucket entries to remember, 64 bytes each; 0: every lookup asks the server") \
    X(s3_part_size, SIZE, "8M", 4 * TSRI_KIB, 8 * TSRI_MIB, 0, \
      "target size of the ranges read from an entry; ranges hold whole layers if these fit") \
    X(s3_upload_size, SIZE, "16M", 5 * TSRI_MIB, 4 * TSRI_GIB, 0, \
      "part size for multipart uploads of larger entries") \
    X(s3_admission, ENUM, "always", 0, 0, 0, \
      "entries to write to the s3 tier: always (all), second_touch (those used twice)") \
    X(s3_write, ENUM, "back", 0, 0, 0, \
      "when to write entries to the s3 tier, like disk_write") \
    X(s3_bandwidth, SIZE, "0", TSRI_MIB, TSRI_TIB, TSRI_OPT_ZERO, \
      "bandwidth limit in bytes per second, both directions; 0: no limit") \
    X(log_level, ENUM, "warn", 0, 0, TSRI_OPT_RELOAD, \
      "lowest level of log lines to write")
/* clang-format on */

#define TSRI_ENUM_ITEM(constant, text) TSRI_##constant,
enum tsri_hash { TSRI_ENUM_hash(TSRI_ENUM_ITEM) };
enum { TSRI_ENUM_partial(TSRI_ENUM_ITEM) };
enum { TSRI_ENUM_policy(TSRI_ENUM_ITEM) };
enum tsri_owner { TSRI_ENUM_owner(TSRI_ENUM_ITEM) };
enum tsri_log_level { TSRI_ENUM_log_level(TSRI_ENUM_ITEM) };
enum tsri_disk_admission { TSRI_ENUM_disk_admission(TSRI_ENUM_ITEM) };
enum tsri_disk_io { TSRI_ENUM_disk_io(TSRI_ENUM_ITEM) };
enum tsri_disk_write { TSRI_ENUM_disk_write(TSRI_ENUM_ITEM) };
enum tsri_s3_path_style { TSRI_ENUM_s3_path_style(TSRI_ENUM_ITEM) };
#undef TSRI_ENUM_ITEM

#define TSRI_FIELD_BOOL bool
#define TSRI_FIELD_COUNT uint32_t
#define TSRI_FIELD_SIZE uint64_t
#define TSRI_FIELD_FLOAT double
#define TSRI_FIELD_ENUM int
#define TSRI_FIELD_LIST struct tsri_list
#define TSRI_FIELD_STRING const char *
#define TSRI_FIELD_PATH const char *

/* The values as plain fields, all of them valid. Text is borrowed from the configuration: copy what
 * must outlive it. */
struct tsri_options {
#define TSRI_FIELD(name, type, def, min, max, flags, help) TSRI_FIELD_##type name;
    TSRI_OPTIONS(TSRI_FIELD)
#undef TSRI_FIELD
};

#endif
