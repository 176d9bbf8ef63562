/* compat_keys.h - THE table of foreign keys: what LMCache, UCM and chunk-cache users already have
 * in their files and environments, and what becomes of it here. Every row is either mapped to one
 * of our options or accepted and ignored with one log line, so that an existing configuration
 * starts. In the environment a row is LMCACHE_<KEY>; rows of the engine named VLLM_* are variables
 * as they stand.
 *
 * Row: X(key, owner, action, option, level, note)
 *   action KEEP     the value as it stands
 *          GB       a decimal number of GiB becomes bytes
 *          DIR      file:// is cut off; false or None is no path; of several paths the first
 *          DIGEST   hash names of Python and vLLM become ours
 *          EVICT    cache policies; those we do not have become adaptive
 *          CHUNKS   sets chunked, and separator to "##" where none is set
 *          REMOTE   a URL: redis://, valkey:// and s3:// become options of those tiers; none is off
 *          IGNORE   one log line at `level` (INFO where the value asks for nothing), whole subtree
 *   level  WARN where somebody may miss what is ignored, INFO where nothing is lost
 *   note   the documentation and, for IGNORE, the reason in the log line
 */
#ifndef TSRI_COMPAT_KEYS_H
#define TSRI_COMPAT_KEYS_H

#define TSRI_BLEND "for vLLM: blend in kv_connector_extra_config (docs/engines.md); in C: blend.h"
#define TSRI_PROFILE "part of a profile, which tessera-lab calibrate creates for a model"
#define TSRI_NO_PEERS "engines share KV through tesserad, Redis or S3, not directly"
#define TSRI_ENGINE "an option of the engine, not of the cache"
#define TSRI_IN_SPACE "the space describes the model"
#define TSRI_SERVER "the server is tesserad, on the Unix socket server_socket"
#define TSRI_HTTP "http_listen sets the address of tesserad's status page and metrics"
#define TSRI_METRICS \
    "tesserad serves metrics at http_listen; see also tsr_cache_stats_text and tessera stat"

/* clang-format off */
#define TSRI_COMPAT(X) \
    /* LMCache, in-process: memory and disk */ \
    X(chunk_size, LMCACHE, KEEP, "chunk_size", INFO, "tokens per prefix block") \
    X(local_cpu, LMCACHE, IGNORE, "", WARN, \
      "host memory is always the first tier; host_size limits it") \
    X(max_local_cpu_size, LMCACHE, GB, "host_size", INFO, \
      "in GB of 1024^3 bytes") \
    X(local_disk, LMCACHE, DIR, "disk_path", INFO, "a path or file:// URL") \
    X(local_disk_path, CHUNKCACHE, DIR, "disk_path", INFO, "a path or file:// URL") \
    X(enable_disk, CHUNKCACHE, KEEP, "disk_enabled", INFO, \
      "the disk tier also needs its path") \
    X(max_local_disk_size, LMCACHE, GB, "disk_size", INFO, \
      "in GB of 1024^3 bytes; 0 keeps disk_size unchanged") \
    X(local_disk_path_sharding, LMCACHE, IGNORE, "", INFO, \
      "a disk tier has one directory; disk2_path is a second tier") \
    X(save_unfull_chunk, LMCACHE, KEEP, "save_partial", INFO, \
      "also store an incomplete last block") \
    X(save_decode_cache, LMCACHE, IGNORE, "", WARN, \
      "the engine's connector decides what is stored") \
    X(cache_policy, LMCACHE, EVICT, "policy", INFO, \
      "LRU, LFU, FIFO, MRU; unsupported policies become adaptive") \
    X(pre_caching_hash_algorithm, LMCACHE, DIGEST, "hash", INFO, \
      "sha256 and xxhash variants; builtin differs between processes and becomes sha256") \
    X(numa_mode, LMCACHE, IGNORE, "", INFO, "memory is allocated on the node that first touches it") \
    X(use_layerwise, LMCACHE, IGNORE, "", INFO, \
      "layer-by-layer loads and stores are always available") \
    X(enable_async_loading, LMCACHE, IGNORE, "", INFO, \
      "the caller chooses asynchronous loads") \
    X(enable_freeze_mode, CHUNKCACHE, KEEP, "frozen", INFO, "start frozen") \
    X(min_retrieve_tokens, LMCACHE, IGNORE, "", WARN, "every hit is reported; the caller decides") \
    X(lookup_timeout_ms, LMCACHE, IGNORE, "", INFO, "lookups do not wait") \
    X(blocking_timeout_secs, LMCACHE, IGNORE, "", INFO, "every wait has its own timeout") \
    X(pin_timeout_sec, LMCACHE, IGNORE, "", INFO, \
      "leases end with their client, and never during a read") \
    X(enable_scheduler_bypass_lookup, LMCACHE, IGNORE, "", INFO, \
      "the scheduler always looks up directly") \
    X(enable_kv_events, LMCACHE, IGNORE, "", INFO, "events are always recorded; see events_max") \
    X(py_enable_gc, LMCACHE, IGNORE, "", INFO, "Tessera has no garbage collector") \
    X(priority_limit, LMCACHE, IGNORE, "", WARN, "Tessera has no request priorities") \
    X(hit_miss_ratio, LMCACHE, IGNORE, "", WARN, "every hit is reported; the caller decides") \
    X(store_location, LMCACHE, IGNORE, "", WARN, "disk_write sets when entries are written to disk") \
    X(retrieve_locations, LMCACHE, IGNORE, "", WARN, "tiers are tried in order, fastest first") \
    X(extra_config, LMCACHE, IGNORE, "", WARN, "settings for LMCache's own backends") \
    X(use_experimental, LMCACHE, IGNORE, "", INFO, "no feature of Tessera depends on it") \
    X(track_usage, LMCACHE, IGNORE, "", INFO, "Tessera does not collect usage data") \
    X(config_file, LMCACHE, IGNORE, "", WARN, \
      "a file cannot name another; the variable LMCACHE_CONFIG_FILE names the file to load if " \
      "TESSERA_CONFIG_FILE is not set") \
    /* LMCache: remote, sharing, servers */ \
    X(remote_url, LMCACHE, REMOTE, "redis_address", WARN, \
      "redis:// and valkey:// become redis_*, s3:// becomes s3_*; others are ignored") \
    X(remote_serde, LMCACHE, IGNORE, "", INFO, "entries are sent as stored, with checksums") \
    X(remote_config_url, LMCACHE, IGNORE, "", WARN, \
      "settings are read from a file and the environment") \
    X(enable_p2p, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(enable_pd, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(pd_allocation_timeout_sec, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(enable_nixl, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(transfer_channel, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(enable_controller, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(lmcache_instance_id, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(internal_api_server_enabled, LMCACHE, IGNORE, "", INFO, TSRI_METRICS) \
    X(internal_api_server_host, LMCACHE, IGNORE, "", INFO, TSRI_METRICS) \
    X(internal_api_server_port_start, LMCACHE, IGNORE, "", INFO, TSRI_METRICS) \
    /* LMCache, multi-process server */ \
    X(l1_size_gb, LMCACHE, GB, "host_size", INFO, "in GB of 1024^3 bytes") \
    X(eviction_policy, LMCACHE, EVICT, "policy", INFO, \
      "LRU, ARC, IsolatedLRU, noop; unsupported policies become adaptive") \
    X(hash_algorithm, LMCACHE, DIGEST, "hash", INFO, "blake3 and builtin become sha256") \
    X(engine_type, LMCACHE, IGNORE, "", WARN, TSRI_BLEND) \
    X(max_workers, LMCACHE, IGNORE, "", INFO, "server_threads and io_threads set the number of threads") \
    X(port, LMCACHE, IGNORE, "", WARN, TSRI_SERVER) \
    X(http_host, LMCACHE, IGNORE, "", WARN, TSRI_HTTP) \
    X(http_port, LMCACHE, IGNORE, "", WARN, TSRI_HTTP) \
    X(prometheus_port, LMCACHE, IGNORE, "", WARN, TSRI_METRICS) \
    X(metrics_sample_rate, LMCACHE, IGNORE, "", INFO, "every request is counted") \
    X(transfer_mode, LMCACHE, IGNORE, "", INFO, \
      "clients map the server's memory and copy from it") \
    /* LMCache: blending */ \
    X(enable_blending, LMCACHE, IGNORE, "", WARN, TSRI_BLEND) \
    X(blend_special_str, LMCACHE, KEEP, "separator", INFO, \
      "this option " TSRI_IDLE_NOTE) \
    X(blend_check_layers, LMCACHE, IGNORE, "", INFO, TSRI_PROFILE) \
    X(blend_recompute_ratios, LMCACHE, IGNORE, "", INFO, TSRI_BLEND) \
    X(blend_thresholds, LMCACHE, IGNORE, "", INFO, TSRI_PROFILE) \
    X(blend_min_tokens, LMCACHE, IGNORE, "", INFO, TSRI_BLEND) \
    X(enable_sparse, LMCACHE, IGNORE, "", INFO, TSRI_ENGINE) \
    /* UCM blending */ \
    X(blend_chunk_size, UCM, IGNORE, "", INFO, "documents of any length are stored whole") \
    X(min_match_ratio, UCM, KEEP, "min_match_ratio", INFO, \
      "share of an entry that a partial match must cover") \
    X(position_correction, UCM, IGNORE, "", INFO, "blending always rotates K to its new position") \
    X(recompute_boundary, UCM, IGNORE, "", INFO, TSRI_PROFILE) \
    X(rope_theta, UCM, IGNORE, "", INFO, TSRI_IN_SPACE) \
    X(head_dim, UCM, IGNORE, "", INFO, TSRI_IN_SPACE) \
    /* the chunk cache for vLLM */ \
    X(enable_chunk_cache, CHUNKCACHE, CHUNKS, "chunked", INFO, \
      "also sets separator to \"##\" if it is not set; " TSRI_IDLE_NOTE) \
    X(chunk_separator, CHUNKCACHE, KEEP, "separator", INFO, \
      "this option " TSRI_IDLE_NOTE) \
    X(chunk_hash_algo, CHUNKCACHE, DIGEST, "hash", INFO, "xxhash becomes xxh3") \
    X(chunk_cache_gpu_memory_utilization, CHUNKCACHE, IGNORE, "", WARN, \
      "device_pool_size sets the size of the pool in device memory, in bytes") \
    /* engines */ \
    X(kv_connector, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(kv_connector_module_path, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(kv_role, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(use_async_scheduling, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(scheduler_use_async_scheduling, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(enable_async_scheduling, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(enable_chunked_prefill, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(enable_prefix_caching, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(enable_lmcache_connector, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(enforce_eager, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(gpu_memory_utilization, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(max_model_len, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(max_num_batched_tokens, ENGINE, IGNORE, "", INFO, TSRI_ENGINE) \
    X(vllm_attention_backend, ENGINE, IGNORE, "", INFO, TSRI_ENGINE)
/* clang-format on */

#endif
