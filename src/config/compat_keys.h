/* compat_keys.h - THE table of foreign keys: what LMCache, UCM and chunk-cache users already have
 * in their files and environments, and what becomes of it here. A row sets one of our options, or is
 * accepted and ignored with one log line, so that an existing configuration starts. In the
 * environment a row is LMCACHE_<KEY>; rows of the engine named VLLM_* are variables as they stand. A
 * key that ends in * stands for all keys that begin like it.
 *
 * Row: X(key, owner, action, option, level, note)
 *   action KEEP     the value as it stands
 *          GB       a decimal number of GiB becomes bytes; 0 is the least host memory, no disk_size
 *          DIR      file:// is cut off; false or None is no path; of several paths the first
 *          DIGEST   hash names of Python and vLLM become ours
 *          EVICT    cache policies; those we do not have become adaptive
 *          CHUNKS   sets chunked, and separator to "##" where none is set
 *          BLEND    sets blend, and separator to " # # " where none is set
 *          RUNS     sets match_min_tokens, and blend at any offset and from traffic
 *          ENGINE   the kind of LMCache's server: default, or blend as BLEND does
 *          REMOTE   a URL: redis://, valkey://, resp:// and s3:// become options of those tiers; none
 *                   is off
 *          EXTRA    a mapping of further keys, or the text of one
 *          FILE     the name of a file of theirs, which is loaded; in a file one log line
 *          LINES    a mapping for ucm.c
 *          ALWAYS   what Tessera does in any case; false is refused at level ERROR, else one log line
 *          IGNORE   one log line at `level` (INFO where the value asks for nothing), whole subtree
 *   level  WARN where a feature was asked for by this key: the log that is on by default then names
 *          it, with what to write instead; INFO for parts of such a feature, whose own key warns,
 *          and for keys of the engine
 *   note   the documentation and, for IGNORE, the reason in the log line
 */
#ifndef TSRI_COMPAT_KEYS_H
#define TSRI_COMPAT_KEYS_H

#define TSRI_CHUNK_SEPARATOR "##"
#define TSRI_LMCACHE_SEPARATOR " # # "
#define TSRI_NO_PEERS "engines share KV through tesserad, Redis or S3, not directly"
#define TSRI_ENGINE "an option of the engine, not of the cache"
#define TSRI_ONE_FOLDER "a disk tier has one directory; disk2_path is a second tier"
#define TSRI_TIMEOUTS "set tier_load_ms, tier_store_ms, server_deadline or server_patience"
#define TSRI_PLUGINS "tiers of your own are attached with tsr_tier_attach() (tier.h)"
#define TSRI_ALL_AT_OPEN \
    "memory is reserved at open and touched when it is used; host_size limits it"
#define TSRI_IN_SPACE \
    "remove it: the space describes the model, and engines tell it from their configuration"
#define TSRI_SERVER "the server is tesserad, on the Unix socket server_socket"
#define TSRI_HTTP "http_listen sets the address of tesserad's status page and metrics"
#define TSRI_METRICS \
    "tesserad serves metrics at http_listen; see also tsr_cache_stats_text and tessera stat"

/* clang-format off */
#define TSRI_COMPAT(X) \
    /* LMCache, in-process: memory and disk */ \
    X(chunk_size, LMCACHE, KEEP, "chunk_size", INFO, "tokens per prefix block") \
    X(local_cpu, LMCACHE, ALWAYS, "", WARN, \
      "host memory is always the first tier; host_size limits it") \
    X(max_local_cpu_size, LMCACHE, GB, "host_size", INFO, \
      "in GB of 1024^3 bytes; 0 becomes 256M, with a line") \
    X(local_disk, LMCACHE, DIR, "disk_path", INFO, "a path or file:// URL") \
    X(local_disk_path, CHUNKCACHE, DIR, "disk_path", INFO, "a path or file:// URL") \
    X(enable_disk, CHUNKCACHE, KEEP, "disk_enabled", INFO, \
      "the disk tier also needs its path") \
    X(max_local_disk_size, LMCACHE, GB, "disk_size", INFO, \
      "in GB of 1024^3 bytes; 0 keeps disk_size unchanged") \
    X(local_disk_path_sharding, LMCACHE, IGNORE, "", WARN, TSRI_ONE_FOLDER) \
    X(local_cpu_use_hugepages, LMCACHE, IGNORE, "", WARN, \
      "set the kernel's transparent huge pages instead") \
    X(reserve_local_cpu_size, LMCACHE, IGNORE, "", WARN, "host_size is all that is used") \
    X(lazy_memory_*, LMCACHE, IGNORE, "", INFO, TSRI_ALL_AT_OPEN) \
    X(enable_lazy_memory_allocator, LMCACHE, IGNORE, "", WARN, TSRI_ALL_AT_OPEN) \
    X(gds_*, LMCACHE, IGNORE, "", WARN, "use disk_path; disk_direct bypasses the page cache") \
    X(use_gds, LMCACHE, IGNORE, "", WARN, "use disk_path; disk_direct bypasses the page cache") \
    X(maru_*, LMCACHE, IGNORE, "", WARN, "use disk_path on a file system in that memory") \
    X(save_unfull_chunk, LMCACHE, KEEP, "save_partial", INFO, \
      "also store an incomplete last block") \
    X(save_decode_cache, LMCACHE, KEEP, "save_decode", INFO, "also save generated tokens") \
    X(cache_policy, LMCACHE, EVICT, "policy", INFO, \
      "LRU, LFU, FIFO, MRU; unsupported policies become adaptive") \
    X(pre_caching_hash_algorithm, LMCACHE, DIGEST, "hash", INFO, \
      "sha256 and xxhash variants; builtin differs between processes and becomes sha256") \
    X(cost_aware_*, LMCACHE, IGNORE, "", WARN, "use policy: adaptive") \
    X(numa_mode, LMCACHE, IGNORE, "", WARN, \
      "memory is allocated on the node that first touches it; use numactl") \
    X(use_layerwise, LMCACHE, IGNORE, "", WARN, \
      "loads and stores by layer are always available; vLLM: layerwise: true in kv_connector_extra_config") \
    X(enable_async_loading, LMCACHE, IGNORE, "", WARN, \
      "loads are asynchronous where that is faster; in vLLM load: async makes all of them so") \
    X(enable_freeze_mode, CHUNKCACHE, KEEP, "frozen", INFO, "start frozen") \
    X(min_retrieve_tokens, LMCACHE, IGNORE, "", WARN, "every hit is used; chunk_size is the smallest") \
    X(lookup_timeout_ms, LMCACHE, IGNORE, "", WARN, "lookups wait for a server only: server_deadline") \
    X(lookup_server_worker_ids, LMCACHE, IGNORE, "", INFO, "the scheduler always looks up directly") \
    X(lmcache_rpc_port, LMCACHE, IGNORE, "", INFO, "the scheduler always looks up directly") \
    X(discard_partial_chunks, LMCACHE, IGNORE, "", INFO, "use save_unfull_chunk") \
    X(blocking_timeout_secs, LMCACHE, IGNORE, "", WARN, TSRI_TIMEOUTS) \
    X(pin_timeout_sec, LMCACHE, IGNORE, "", WARN, \
      "leases end with their client, and never during a read; lease_entries_max limits them") \
    X(pin_check_interval_sec, LMCACHE, IGNORE, "", INFO, \
      "leases end with their client, and never during a read") \
    X(enable_scheduler_bypass_lookup, LMCACHE, IGNORE, "", INFO, \
      "the scheduler always looks up directly") \
    X(enable_kv_events, LMCACHE, IGNORE, "", INFO, "events are always recorded; see events_max") \
    X(py_enable_gc, LMCACHE, IGNORE, "", INFO, "Tessera has no garbage collector") \
    X(priority_limit, LMCACHE, IGNORE, "", WARN, "Tessera has no request priorities") \
    X(hit_miss_ratio, LMCACHE, IGNORE, "", WARN, "every hit is used") \
    X(store_location, LMCACHE, IGNORE, "", WARN, "disk_write sets when entries are written to disk") \
    X(retrieve_locations, LMCACHE, IGNORE, "", WARN, \
      "tiers are tried in order, fastest first; tiers sets the order") \
    X(extra_config, LMCACHE, EXTRA, "", INFO, \
      "each key of the mapping as if it stood outside; unknown ones are ignored with a line") \
    X(use_experimental, LMCACHE, IGNORE, "", WARN, \
      "deprecated: remove it, no feature of Tessera depends on it") \
    X(use_gpu_connector_v3, LMCACHE, IGNORE, "", WARN, \
      "remove it, no feature of Tessera depends on it") \
    X(storage_plugins, LMCACHE, IGNORE, "", WARN, TSRI_PLUGINS) \
    X(external_backends, LMCACHE, IGNORE, "", WARN, TSRI_PLUGINS) \
    X(remote_storage_plugins, LMCACHE, IGNORE, "", WARN, TSRI_PLUGINS) \
    X(runtime_plugin_locations, LMCACHE, IGNORE, "", WARN, TSRI_PLUGINS) \
    X(plugin_locations, LMCACHE, IGNORE, "", WARN, TSRI_PLUGINS) \
    X(script_allowed_imports, LMCACHE, IGNORE, "", INFO, "Tessera runs no scripts") \
    X(enable_chunk_statistics, LMCACHE, IGNORE, "", INFO, TSRI_METRICS) \
    X(chunk_statistics_*, LMCACHE, IGNORE, "", INFO, TSRI_METRICS) \
    X(enable_hidden_state_cache, LMCACHE, IGNORE, "", WARN, "Tessera stores KV only") \
    X(hidden_state*, LMCACHE, IGNORE, "", INFO, "Tessera stores KV only") \
    X(max_hidden_state_cpu_size, LMCACHE, IGNORE, "", INFO, "Tessera stores KV only") \
    X(track_usage, LMCACHE, IGNORE, "", INFO, "Tessera does not collect usage data") \
    X(config_file, LMCACHE, IGNORE, "", WARN, \
      "a file cannot name another; the variable LMCACHE_CONFIG_FILE names the file to load if " \
      "TESSERA_CONFIG_FILE is not set") \
    /* LMCache: remote, sharing, servers */ \
    X(remote_url, LMCACHE, REMOTE, "redis_address", WARN, \
      "redis://, valkey:// and resp:// become redis_*, s3:// becomes s3_*; others are ignored") \
    X(extra_config_username, LMCACHE, KEEP, "redis_user", INFO, "username in extra_config") \
    X(extra_config_password, LMCACHE, KEEP, "redis_password", INFO, "password in extra_config") \
    X(extra_config_resp_num_threads, LMCACHE, IGNORE, "", INFO, \
      "redis_connections and io_threads set how many requests run at once") \
    X(resp_username, LMCACHE, KEEP, "redis_user", INFO, "the variable LMCACHE_RESP_USERNAME") \
    X(resp_password, LMCACHE, KEEP, "redis_password", INFO, "the variable LMCACHE_RESP_PASSWORD") \
    X(resp_host, LMCACHE, IGNORE, "", WARN, "set redis_address: HOST:PORT") \
    X(resp_port, LMCACHE, IGNORE, "", INFO, "set redis_address: HOST:PORT") \
    X(extra_config_aws_access_key_id, LMCACHE, KEEP, "s3_access_key", INFO, \
      "aws_access_key_id in extra_config") \
    X(extra_config_aws_secret_access_key, LMCACHE, KEEP, "s3_secret_key", INFO, \
      "aws_secret_access_key in extra_config") \
    X(extra_config_disable_tls, LMCACHE, IGNORE, "", WARN, "write s3_endpoint: http://HOST:PORT") \
    X(extra_config_s3_num_io_threads, LMCACHE, IGNORE, "", INFO, \
      "s3_connections sets how many requests run at once") \
    X(extra_config_s3_prefer_http2, LMCACHE, IGNORE, "", INFO, \
      "requests are HTTP/1.1, s3_connections of them at once") \
    X(extra_config_s3_enable_s3express, LMCACHE, IGNORE, "", WARN, \
      "requests are signed as for other buckets") \
    X(extra_config_save_chunk_meta, LMCACHE, IGNORE, "", INFO, \
      "entries are sent as stored, with checksums") \
    X(remote_serde, LMCACHE, IGNORE, "", INFO, "entries are sent as stored, with checksums") \
    X(remote_config_url, LMCACHE, IGNORE, "", WARN, \
      "settings are read from a file and the environment") \
    X(app_id, LMCACHE, IGNORE, "", INFO, "settings are read from a file and the environment") \
    X(audit_actual_remote_url, LMCACHE, IGNORE, "", WARN, "set redis_address or s3_bucket") \
    X(external_lookup_client, LMCACHE, IGNORE, "", WARN, "set owner: daemon and server_socket") \
    X(mp_*, LMCACHE, IGNORE, "", WARN, "set owner: daemon and server_socket") \
    X(enable_p2p, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(enable_pd, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(enable_xpyd, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(pd_*, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(p2p_*, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(enable_nixl, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(nixl_*, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(controller_*, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(lmcache_worker_*, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(ec_*, LMCACHE, IGNORE, "", WARN, "encoder outputs are not stored") \
    X(transfer_channel, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(enable_controller, LMCACHE, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(lmcache_instance_id, LMCACHE, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(internal_api_server_enabled, LMCACHE, IGNORE, "", WARN, TSRI_METRICS) \
    X(internal_api_server_*, LMCACHE, IGNORE, "", INFO, TSRI_METRICS) \
    /* LMCache, multi-process server */ \
    X(l1_size_gb, LMCACHE, GB, "host_size", INFO, "in GB of 1024^3 bytes; 0 becomes 256M, with a line") \
    X(eviction_policy, LMCACHE, EVICT, "policy", INFO, \
      "LRU, ARC, IsolatedLRU, noop; unsupported policies become adaptive") \
    X(hash_algorithm, LMCACHE, DIGEST, "hash", INFO, "blake3 and builtin become sha256") \
    X(engine_type, LMCACHE, ENGINE, "blend", INFO, "default, or blend; others are refused") \
    X(max_workers, LMCACHE, IGNORE, "", WARN, "server_threads and io_threads set the number of threads") \
    X(port, LMCACHE, IGNORE, "", WARN, TSRI_SERVER) \
    X(http_host, LMCACHE, IGNORE, "", WARN, TSRI_HTTP) \
    X(http_port, LMCACHE, IGNORE, "", WARN, TSRI_HTTP) \
    X(prometheus_port, LMCACHE, IGNORE, "", WARN, TSRI_METRICS) \
    X(metrics_sample_rate, LMCACHE, IGNORE, "", INFO, "every request is counted") \
    X(transfer_mode, LMCACHE, IGNORE, "", INFO, \
      "clients map the server's memory and copy from it") \
    /* LMCache: blending */ \
    X(enable_blending, LMCACHE, BLEND, "blend", INFO, \
      "also sets separator to \" # # \" if it is not set") \
    X(blend_special_str, LMCACHE, KEEP, "separator", INFO, "blanks around it do not count") \
    X(blend_check_layers, LMCACHE, KEEP, "blend_check_layers", INFO, "layers, separated by commas") \
    X(blend_recompute_ratios, LMCACHE, KEEP, "blend_recompute_ratios", INFO, \
      "one, or one per check layer") \
    X(blend_thresholds, LMCACHE, KEEP, "blend_thresholds", INFO, "one, or one per check layer") \
    X(blend_min_tokens, LMCACHE, KEEP, "blend_min_tokens", INFO, "shorter contexts are computed") \
    X(enable_sparse, LMCACHE, ALWAYS, "", WARN, \
      "remove it: only recomputed tokens are queries, and each sees all tokens before it") \
    /* UCM: where KV is kept */ \
    X(UCM_CONFIG_FILE, UCM, FILE, "", WARN, \
      "in the configuration of an engine's connector; ignored in a file, which cannot name another") \
    X(ucm_connector_name, UCM, IGNORE, "", INFO, "the tiers are host memory and disk_path") \
    X(ucm_connector_module_path, UCM, IGNORE, "", WARN, TSRI_PLUGINS) \
    X(store_pipeline, UCM, IGNORE, "", INFO, "the tiers are host memory and disk_path") \
    X(storage_backends, UCM, DIR, "disk_path", INFO, "a path; of several the first, with a line") \
    X(posix_capacity_gb, UCM, GB, "disk_size", INFO, \
      "in GB of 1024^3 bytes; 0 keeps disk_size unchanged") \
    X(storage_capacity, UCM, IGNORE, "", WARN, "set disk_size") \
    X(cache_buffer_capacity_gb, UCM, GB, "host_size", INFO, \
      "in GB of 1024^3 bytes; 0 becomes 256M, with a line") \
    X(io_direct, UCM, KEEP, "disk_direct", INFO, "bypass the page cache") \
    X(use_direct, UCM, KEEP, "disk_direct", INFO, "bypass the page cache") \
    X(timeout_ms, UCM, KEEP, "tier_load_ms", INFO, "milliseconds to load an entry from a lower tier") \
    X(posix_*, UCM, IGNORE, "", INFO, \
      "disk_io and io_threads set how files are read, disk_policy what is evicted") \
    X(stream_number, UCM, IGNORE, "", INFO, "io_threads sets the number of threads") \
    X(buffer_number, UCM, IGNORE, "", INFO, TSRI_ALL_AT_OPEN) \
    X(waiting_queue_depth, UCM, IGNORE, "", INFO, "io_queue_max limits queued jobs") \
    X(cache_io_aggregation, UCM, IGNORE, "", INFO, "the device decides how KV is copied") \
    X(cache_sdma_direct, UCM, IGNORE, "", INFO, "the device decides how KV is copied") \
    X(cache_load_backend_only, UCM, IGNORE, "", WARN, "host memory is always read first") \
    X(share_buffer_enable, UCM, IGNORE, "", INFO, "the workers of an engine share host memory") \
    X(use_gdr, UCM, IGNORE, "", WARN, "KV passes through host memory") \
    X(store_health, UCM, IGNORE, "", INFO, "a tier that fails costs hits; it is used again once it works") \
    X(enable_event_sync, UCM, IGNORE, "", INFO, "copies always wait for the engine's kernels") \
    X(load_only_first_rank, UCM, IGNORE, "", INFO, \
      "ranks with the same KV share one copy, which each of them loads") \
    X(persist_token_threshold, UCM, IGNORE, "", WARN, "prompts of chunk_size tokens and more are stored") \
    X(load_tokens_threshold, UCM, IGNORE, "", INFO, "every hit is used") \
    X(wa_dump_block_wise, UCM, IGNORE, "", INFO, "every block is saved") \
    X(hit_ratio, UCM, IGNORE, "", WARN, "every hit is used") \
    X(use_lite, UCM, IGNORE, "", WARN, "KV is stored and loaded; tessera stat shows the hits") \
    X(enable_record_traces, UCM, IGNORE, "", WARN, "requests are not recorded; " TSRI_METRICS) \
    X(enable_metrics, UCM, IGNORE, "", INFO, TSRI_METRICS) \
    X(metrics_config_path, UCM, IGNORE, "", WARN, TSRI_METRICS) \
    X(use_inference_duration_monitor, UCM, IGNORE, "", WARN, TSRI_METRICS) \
    X(inference_duration_monitor_*, UCM, IGNORE, "", INFO, TSRI_METRICS) \
    X(master_server_address, UCM, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(local_hostname, UCM, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(metadata_server, UCM, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(global_segment_size_gb, UCM, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(replica_num, UCM, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(share_buffer_capacity_gb, UCM, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(yuanrong_host, UCM, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(yuanrong_*, UCM, IGNORE, "", INFO, TSRI_NO_PEERS) \
    X(asu_ips, UCM, IGNORE, "", WARN, TSRI_NO_PEERS) \
    X(asu_*, UCM, IGNORE, "", INFO, TSRI_NO_PEERS) \
    /* UCM blending */ \
    X(ucm_sparse_config_Blend, UCM, LINES, "blend", INFO, \
      "also sets blend_any_offset and blend_from_traffic; compute_meta sets blend_check_layers and " \
      "blend_recompute_ratios") \
    X(ucm_sparse_config_*, UCM, IGNORE, "", WARN, \
      "no attention is made sparse: answers are those of the whole context") \
    X(blend_chunk_size, UCM, RUNS, "match_min_tokens", INFO, \
      "shorter stretches of known text are computed; also sets blend, blend_any_offset and blend_from_traffic") \
    X(min_match_ratio, UCM, KEEP, "min_match_ratio", INFO, \
      "share of equal tokens; text with at least that many is reused around its edits") \
    X(position_correction, UCM, ALWAYS, "", ERROR, \
      "K is always rotated to its new position; false is refused") \
    X(recompute_boundary, UCM, KEEP, "blend_boundary", INFO, "tokens at each edit") \
    X(rope_theta, UCM, IGNORE, "", WARN, TSRI_IN_SPACE) \
    X(head_dim, UCM, IGNORE, "", WARN, TSRI_IN_SPACE) \
    /* the chunk cache for vLLM */ \
    X(enable_chunk_cache, CHUNKCACHE, CHUNKS, "chunked", INFO, \
      "also sets separator to \"##\" if it is not set") \
    X(chunk_separator, CHUNKCACHE, KEEP, "separator", INFO, "text between documents") \
    X(chunk_hash_algo, CHUNKCACHE, DIGEST, "hash", INFO, "xxhash becomes xxh3") \
    X(chunk_cache_gpu_memory_utilization, CHUNKCACHE, KEEP, "device_pool_chunked_share", INFO, \
      "share of device memory; acts if there is a device and enable_chunk_cache is on") \
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
