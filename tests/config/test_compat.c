/* test_compat.c - files and environments written for LMCache, UCM and the chunk cache of vLLM load,
 * and every key of theirs is mapped or ignored with one line that says why. The fixtures are such
 * files as their users have them. */
#include "support/compat_kit.h"

#include <strings.h>
#include <unistd.h>

/* Sets the variables of a shell file of `export NAME=VALUE  # comment` lines. */
static void load_exports(const char *path)
{
    FILE *f = fopen(path, "r");
    CHECK(f);
    char line[512], name[128], value[256];
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "export %127[A-Z_]=\"%255[^\"]\"", name, value) == 2 ||
            sscanf(line, "export %127[A-Z_]='%255[^']'", name, value) == 2 ||
            sscanf(line, "export %127[A-Z_]=%255[^ \n]", name, value) == 2) {
            setenv(name, value, 1);
            n++;
        }
    }
    fclose(f);
    CHECK(n > 0);
}

TEST(every_row_maps_to_an_option_or_says_why_not)
{
    for (size_t i = 0; i < tsri_compat_count(); i++) {
        const struct tsri_compat *c = tsri_compat_at(i);
        CHECK(tsri_compat_find(c->key) == c); /* no key twice */
        CHECK(strlen(c->note) > 3);
        bool ignored = c->action == TSRI_COMPAT_IGNORE;
        bool sets_none = ignored || c->action == TSRI_COMPAT_ALWAYS ||
                         c->action == TSRI_COMPAT_EXTRA || c->action == TSRI_COMPAT_FILE;
        CHECK(sets_none == !*c->option);
        CHECK(sets_none || tsri_option_find(c->option));
        /* Ours come first in lookups: a foreign key of the same name must mean the same. */
        const struct tsri_option *ours = tsri_option_find(c->key);
        CHECK(!ours || (c->action == TSRI_COMPAT_KEEP && strcmp(c->option, c->key) == 0));
    }
}

TEST(every_key_users_have_is_mapped_or_ignored)
{
    static const char *const keys[] = {
        /* LMCache with SGLang and asynchronous scheduling */
        "chunk_size", "local_cpu", "max_local_cpu_size", "use_layerwise", "enable_nixl",
        "use_experimental", "config_file", "use_async_scheduling", "enable_async_scheduling",
        /* CacheBlend */
        "enable_blending", "blend_special_str", "blend_check_layers", "blend_recompute_ratios",
        "blend_thresholds", "blend_min_tokens", "save_unfull_chunk", "extra_config",
        "enable_sparse", "vllm_attention_backend", "enable_prefix_caching", "enforce_eager",
        "gpu_memory_utilization", "max_model_len",
        /* UCM */
        "blend_chunk_size", "min_match_ratio", "position_correction", "recompute_boundary",
        "rope_theta", "head_dim", "kv_connector", "kv_connector_module_path", "kv_role",
        /* the chunk cache */
        "enable_chunk_cache", "chunk_separator", "chunk_cache_gpu_memory_utilization",
        "enable_disk", "max_local_disk_size", "local_disk_path", "chunk_hash_algo",
        "enable_async_loading", "enable_freeze_mode",
        /* the common ones of LMCache */
        "local_disk", "local_disk_path_sharding", "remote_url", "remote_serde", "save_decode_cache",
        "cache_policy", "numa_mode", "lookup_timeout_ms", "min_retrieve_tokens",
        "enable_scheduler_bypass_lookup", "lmcache_rpc_port", "discard_partial_chunks",
        "internal_api_server_port_start", "py_enable_gc", "pin_timeout_sec", "enable_kv_events",
        "pd_allocation_timeout_sec", "pre_caching_hash_algorithm", "track_usage", "enable_p2p",
        "enable_pd", "port", "max_workers", "hash_algorithm", "engine_type", "l1_size_gb",
        "eviction_policy", "http_port", "prometheus_port", "metrics_sample_rate"};
    for (size_t i = 0; i < TSRI_COUNT(keys); i++) {
        const struct tsri_compat *c = tsri_compat_find(keys[i]);
        if (!c) printf("    unknown: %s\n", keys[i]);
        CHECK(c);
        if (c->action != TSRI_COMPAT_IGNORE) continue;
        char text[128];
        reopen();
        snprintf(text, sizeof text, "%s: 1\n", keys[i]);
        CHECK_INT(load(text), 0);
        CHECK_INT(n_lines, 1);
        CHECK_HAS(lines[0], keys[i]);
        CHECK_HAS(lines[0], c->note);
        CHECK_INT(levels[0], c->level);
    }
}

TEST(the_lmcache_file_for_sglang_loads)
{
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "lmcache_config.yaml")), 0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "64");
    CHECK_STR(tsr_config_get(cfg, "host_size"), "60G");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("host_size")),
              FIXTURES "lmcache_config.yaml:6 (max_local_cpu_size)");
    CHECK_INT(n_lines, 0);
    CHECK_INT(load("local_cpu: false\n"), 0);
    CHECK_INT(logged("local_cpu: false: has no effect: host memory is always the first tier"), 1);
    CHECK_INT(levels[0], TSR_LOG_WARN);
}

TEST(the_lmcache_environment_for_sglang_loads_its_file)
{
    reopen();
    load_exports(FIXTURES "lmcache_sglang.env");
    CHECK_STR(getenv("LMCACHE_CONFIG_FILE"), "lmcache_config.yaml");
    setenv("LMCACHE_CONFIG_FILE", FIXTURES "lmcache_config.yaml", 1);
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "64");
    CHECK_INT(logged("use_experimental"), 1);
}

TEST(the_lmcache_environment_for_blending_loads)
{
    reopen();
    load_exports(FIXTURES "lmcache_blend.env");
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "256");
    CHECK_STR(tsr_config_get(cfg, "host_size"), "5G");
    CHECK_STR(tsr_config_get(cfg, "separator"), " # # ");
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK(v->blend && !v->chunked && !v->blend_any_offset);
    CHECK_INT(v->blend_check_layers.n, 1);
    CHECK_INT(v->blend_check_layers.values[0], 1);
    CHECK_INT(v->blend_recompute_ratios.n, 1);
    CHECK(v->blend_recompute_ratios.values[0] > 0.149 &&
          v->blend_recompute_ratios.values[0] < 0.151);
    CHECK_INT(v->blend_min_tokens, 256);
    CHECK_INT(tsri_config_check(cfg), 0);
    CHECK_INT(logged("VLLM_ATTENTION_BACKEND"), 1);
    CHECK_INT(logged("LMCACHE_USE_LAYERWISE"), 1);
    CHECK_INT(n_lines, 2);
}

TEST(the_lmcache_environment_for_asynchronous_scheduling_loads)
{
    reopen();
    load_exports(FIXTURES "lmcache_async.env");
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("chunk_size")), "env LMCACHE_CHUNK_SIZE");
    CHECK_INT(n_lines, 1);
}

TEST(the_engine_file_for_asynchronous_scheduling_loads)
{
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "vllm_async.yaml")), 0);
    CHECK_INT(n_lines, 2);
    CHECK_INT(logged("an option of the engine"), 2);
}

TEST(the_chunk_cache_file_loads)
{
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "chunk_cache.yaml")), 0);
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK(!v->chunked && !v->disk_enabled && !v->frozen);
    CHECK_STR(v->separator, "##");
    CHECK_STR(v->disk_path, "");
    CHECK_INT(v->host_size, (uint64_t)5 << 30);
    CHECK_INT(v->disk_size, (uint64_t)16 << 30);
    /* The feature is off, and with it its share of the GPU. */
    CHECK(v->device_pool_share == 0 && v->device_pool_chunked_share == 0.15);
    CHECK(tsri_options_pool_share(v) == 0);
    CHECK_INT(v->hash, TSRI_HASH_XXH3);
    CHECK_INT(tsri_config_check(cfg), 0);
}

TEST(the_share_of_the_chunk_cache_counts_while_it_is_on)
{
    reopen();
    CHECK_INT(load("chunk_cache_gpu_memory_utilization: 0.15\nenable_chunk_cache: true\n"), 0);
    CHECK(tsri_options_pool_share(tsri_config_options(cfg)) == 0.15);
    CHECK_INT(set("device_pool_share", "0.3"), 0);
    CHECK(tsri_options_pool_share(tsri_config_options(cfg)) == 0.3);
    CHECK_INT(set("enable_chunk_cache", "false"), 0);
    CHECK(tsri_options_pool_share(tsri_config_options(cfg)) == 0.3);
    CHECK_INT(set("device_pool_share", "0"), 0);
    CHECK(tsri_options_pool_share(tsri_config_options(cfg)) == 0);
}

TEST(the_chunk_cache_environment_loads)
{
    reopen();
    load_exports(FIXTURES "chunk_cache.env");
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK(v->chunked && v->disk_enabled && v->frozen);
    CHECK_STR(v->separator, "##");
    CHECK_STR(v->disk_path, "/var/cache/kv");
    CHECK(tsri_options_pool_share(v) == 0.15);
    CHECK_INT(v->chunk_size, 128);
    CHECK_INT(v->host_size, (uint64_t)5 << 29);
    CHECK_INT(v->disk_size, (uint64_t)20 << 30);
    CHECK_INT(v->hash, TSRI_HASH_XXH3);
    CHECK_INT(tsri_config_check(cfg), 0);
}

TEST(keys_behind_lmcaches_prefix_are_its_keys)
{
    reopen();
    CHECK_INT(set("lmcache.max_local_cpu_size", "2"), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "2G");
    CHECK_INT(load("kv_connector_extra_config:\n"
                   "  lmcache.chunk_size: 64\n"
                   "  lmcache.extra_config: {enable_blending: true}\n"),
              0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "64");
    CHECK(tsri_config_options(cfg)->blend);
    CHECK_INT(n_lines, 0);
    CHECK_INT(set("lmcache.chunk_size", "none of it"), TSR_ECONFIG);
    CHECK_INT(set("lmcache.invented_next_year", "1"), 0);
    CHECK_INT(logged("lmcache.invented_next_year: ignored: unknown"), 1);
    CHECK_INT(levels[0], TSR_LOG_WARN);
    CHECK_INT(set("invented_next_year", "1"), TSR_ECONFIG);
    CHECK_INT(set("lmcache.", "1"), 0);
    CHECK_INT(load("lmcache.invented: 1\n"), 0); /* in a file as in a call */
    CHECK_INT(logged("t.yaml:1:1: invented: ignored: unknown"), 1);
}

TEST(sizes_in_gb_become_bytes)
{
    reopen();
    CHECK_INT(set("max_local_cpu_size", "0.5"), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "512M");
    CHECK_INT(set("max_local_cpu_size", "5"), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "5G");
    CHECK_INT(set("max_local_cpu_size", "five"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "max_local_cpu_size (host_size here): \"five\" is not a number of GB");
    CHECK_INT(set("max_local_cpu_size", "-1"), TSR_ECONFIG);
    CHECK_INT(set("max_local_cpu_size", "0.0001"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "is out of range (1M to 16T)");
    CHECK_INT(set("max_local_cpu_size", "1e30"), TSR_ECONFIG);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "5G");
}

/* LMCache's engines for prompts and for answers turn host memory off; here all KV passes through it. */
TEST(no_host_memory_becomes_the_least_with_a_warning)
{
    static const char *const keys[] = {"max_local_cpu_size", "l1_size_gb"};
    for (size_t i = 0; i < TSRI_COUNT(keys); i++) {
        reopen();
        CHECK_INT(set(keys[i], "0"), 0);
        CHECK_STR(tsr_config_get(cfg, "host_size"), "256M");
        CHECK_INT(n_lines, 1);
        CHECK_HAS(lines[0], "0: host memory is always the first tier: using 256M; write host_size");
        CHECK_INT(levels[0], TSR_LOG_WARN);
    }
    reopen();
    setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.0", 1);
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "256M");
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "lmcache_decoder.yaml")), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "256M");
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "");
    CHECK_INT(tsri_config_check(cfg), 0);
    CHECK_INT(logged("lmcache_decoder.yaml:2:21: max_local_cpu_size: 0: host memory"), 1);
    CHECK_INT(logged("enable_nixl (LMCache): ignored: engines share KV through"), 1);
}

TEST(disk_paths_lose_their_scheme)
{
    reopen();
    CHECK_INT(load("local_disk: \"file:///mnt/kv/\"\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "/mnt/kv/");
    CHECK_INT(load("local_disk: /a,/b\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "/a");
    CHECK_INT(logged("only the first of several paths"), 1);
    CHECK_INT(load("local_disk: null\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "");
    CHECK_INT(load("local_disk: True\n"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "t.yaml:1:13: local_disk (disk_path here): \"True\" is not a path");
    CHECK_INT(load("local_disk: {path: /c}\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "/c");
}

TEST(hash_names_become_ours)
{
    static const char *const names[][2] = {{"xxhash", "xxh3"},    {"xxhash_cbor", "xxh3"},
                                           {"sha256", "sha256"},  {"sha256_cbor", "sha256"},
                                           {"builtin", "sha256"}, {"blake3", "sha256"}};
    reopen();
    for (size_t i = 0; i < TSRI_COUNT(names); i++) {
        CHECK_INT(set("chunk_hash_algo", names[i][0]), 0);
        CHECK_STR(tsr_config_get(cfg, "hash"), names[i][1]);
    }
    CHECK_INT(logged("using sha256 instead"), 2);
    CHECK_INT(set("chunk_hash_algo", "md5"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "chunk_hash_algo (hash here): \"md5\" is not one of sha256, xxh3");
}

TEST(policies_we_do_not_have_become_adaptive_with_a_warning)
{
    reopen();
    CHECK_INT(set("cache_policy", "LRU"), 0);
    CHECK_INT(n_lines, 0);
    CHECK_INT(set("cache_policy", "LFU"), 0);
    CHECK_INT(logged("cache_policy: LFU: is not a policy here: using adaptive"), 1);
    CHECK_INT(levels[0], TSR_LOG_WARN);
    CHECK_INT(set("cache_policy", "best"), TSR_ECONFIG);
}

TEST(switching_the_chunk_cache_on_brings_its_separator)
{
    reopen();
    CHECK_INT(load("enable_chunk_cache: true\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "##");
    reopen();
    CHECK_INT(load("chunk_separator: '@@'\nenable_chunk_cache: true\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "@@");
    reopen();
    CHECK_INT(load("enable_chunk_cache: true\nchunk_separator: '@@'\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "@@");
    reopen();
    CHECK_INT(load("enable_chunk_cache: false\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "");
}

/* Such claims outlive what they were true of: a note says what to use instead. */
TEST(no_note_speaks_of_what_this_build_lacks)
{
    static const char *const stale[] = {"in this build", "no server", "no pool in",
                                        "set by the profile"};
    for (size_t i = 0; i < tsri_compat_count(); i++)
        for (size_t k = 0; k < TSRI_COUNT(stale); k++) {
            if (strstr(tsri_compat_at(i)->note, stale[k]))
                printf("    %s\n", tsri_compat_at(i)->key);
            CHECK(!strstr(tsri_compat_at(i)->note, stale[k]));
        }
}

TEST(of_an_alias_and_our_name_the_last_one_wins)
{
    reopen();
    CHECK_INT(load("host_size: 2G\nmax_local_cpu_size: 3\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "3G");
    CHECK_INT(load("max_local_cpu_size: 3\nhost_size: 2G\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "2G");
}

TEST(what_asks_for_nothing_is_no_warning)
{
    reopen();
    CHECK_INT(load("enable_pd: true\n"), 0);
    CHECK_INT(levels[0], TSR_LOG_WARN);
    CHECK_INT(load("enable_pd: false\n"), 0);
    CHECK_INT(levels[1], TSR_LOG_INFO);
    CHECK_INT(load("remote_config_url: null\n"), 0);
    CHECK_INT(levels[2], TSR_LOG_INFO);
    CHECK_INT(load("remote_config_url: http://config\n"), 0);
    CHECK_INT(levels[3], TSR_LOG_WARN);
}

TEST(an_ignored_key_may_hold_a_tree)
{
    reopen();
    CHECK_INT(load("transfer_channel: {enable_sparse: true, deep: [1, {a: b}]}\nhash: xxh3\n"), 0);
    CHECK_INT(n_lines, 1);
    CHECK_STR(tsr_config_get(cfg, "hash"), "xxh3");
}

TEST(keys_in_extra_config_count_and_unknown_ones_are_named)
{
    reopen();
    CHECK_INT(
        load("extra_config: {enable_sparse: true, blend_check_layers: [1, 2], nothing_known: 1,\n"
             "  deep: [1, {a: b}], map: {a: 1}}\nhash: xxh3\n"),
        0);
    CHECK_STR(tsr_config_get(cfg, "blend_check_layers"), "1,2");
    CHECK_STR(tsr_config_get(cfg, "hash"), "xxh3");
    CHECK_INT(n_lines, 3);
    CHECK_INT(logged(": extra_config: nothing_known: ignored: unknown"), 1);
    CHECK_INT(logged("extra_config: deep: ignored: unknown"), 1);
    CHECK_INT(logged("extra_config: map_a: ignored: unknown"), 1);
    CHECK_INT(levels[0], TSR_LOG_WARN);
    reopen();
    setenv("LMCACHE_EXTRA_CONFIG", "{\"max_local_cpu_size\": 2, \"my_own\": true}", 1);
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "2G");
    CHECK_INT(logged(": extra_config: my_own: ignored: unknown"), 1);
    CHECK_INT(set("extra_config", "null"), 0);
    CHECK_INT(set("extra_config", "just words"), TSR_ECONFIG);
    CHECK_INT(set("extra_config", "{chunk_size: 64, hash: md5}"), TSR_ECONFIG);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "256"); /* nothing of it */
    static const char *const deep[] = {"extra_config: {extra_config: {a: 1}}\n",
                                       "extra_config: {extra: {config: '{a: 1}'}}\n",
                                       "extra_config: \"extra_config: '{a: 1}'\"\n",
                                       "extra_config: \"extra: {config: '{a: 1}'}\"\n"};
    for (size_t i = 0; i < TSRI_COUNT(deep); i++) {
        CHECK_INT(load(deep[i]), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), "extra_config inside extra_config");
    }
    CHECK_INT(load("extra_config: {a: 1}\nextra_config: {a: 2}\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "t.yaml:2:1: extra_config: duplicate key, first on line 1");
}

TEST(blending_is_turned_on_as_lmcache_does_it)
{
    reopen();
    CHECK_INT(load("enable_blending: true\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "blend"), "true");
    CHECK_STR(tsr_config_get(cfg, "separator"), " # # ");
    reopen();
    CHECK_INT(load("enable_blending: true\nblend_special_str: '@@'\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "@@");
    reopen();
    CHECK_INT(load("enable_blending: false\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "");
    CHECK_INT(load("engine_type: default\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "blend"), "false");
    CHECK_INT(load("engine_type: blend\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "blend"), "true");
    CHECK_STR(tsr_config_get(cfg, "separator"), " # # ");
    CHECK_INT(load("engine_type: other\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "engine_type (blend here): \"other\" is not an engine here");
    CHECK_INT(n_lines, 0);
}

/* A log that is on by default shows warnings. They say what to write instead. */
TEST(a_feature_that_was_asked_for_and_is_ignored_warns_once)
{
    static const struct {
        const char *key, *instead;
    } keys[] = {{"use_layerwise", "layerwise: true in kv_connector_extra_config"},
                {"enable_async_loading", "load: async"},
                {"rope_theta", "remove it"},
                {"head_dim", "remove it"},
                {"use_experimental", "remove it"},
                {"use_gds", "use disk_path"}};
    for (size_t i = 0; i < TSRI_COUNT(keys); i++) {
        char text[128];
        reopen();
        snprintf(text, sizeof text, "%s: 1\n%s: 1\n", keys[i].key, keys[i].key);
        CHECK_INT(load(text), TSR_ECONFIG); /* twice in one file is a mistake */
        snprintf(text, sizeof text, "%s: 1\n", keys[i].key);
        CHECK_INT(load(text), 0);
        CHECK_INT(n_lines, 1);
        CHECK_HAS(lines[0], keys[i].key);
        CHECK_HAS(lines[0], keys[i].instead);
        CHECK_INT(levels[0], TSR_LOG_WARN);
        snprintf(text, sizeof text, "%s: false\n", keys[i].key);
        reopen();
        CHECK_INT(load(text), 0);
        CHECK_INT(levels[0], TSR_LOG_INFO); /* asks for nothing */
    }
}

TEST(position_correction_cannot_be_turned_off)
{
    reopen();
    CHECK_INT(load("position_correction: true\n"), 0);
    CHECK_INT(n_lines, 0);
    CHECK_INT(load("enable_sparse: false\n"), 0);
    CHECK_INT(logged("enable_sparse: false: has no effect: remove it"), 1);
    CHECK_INT(levels[0], TSR_LOG_WARN);
    CHECK_INT(load("position_correction: false\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "t.yaml:1:22: position_correction: false is not possible: K is always");
}

TEST(ratios_and_thresholds_go_with_their_check_layers)
{
    reopen();
    CHECK_INT(load("blend_check_layers: [1, 4]\nblend_recompute_ratios: [0.3, 0.15]\n"
                   "blend_thresholds: [2]\n"),
              0);
    CHECK_INT(tsri_config_check(cfg), 0);
    CHECK_STR(tsr_config_get(cfg, "blend_recompute_ratios"), "0.3,0.15");
    CHECK_INT(load("blend_recompute_ratios: [0.3, 0.2, 0.1]\n"), 0);
    CHECK_INT(tsri_config_check(cfg), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "blend_recompute_ratios: 3 numbers for 2 blend_check_layers");
    CHECK_INT(load("blend_recompute_ratios: null\nblend_check_layers: 4, 1\n"), 0);
    CHECK_INT(tsri_config_check(cfg), TSR_ECONFIG);
    CHECK_INT(load("blend_check_layers: 1.5\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "\"1.5\" is not up to 8 whole numbers from 0 to 4096");
    CHECK_INT(load("recompute_boundary: [1, 2]\n"), TSR_ECONFIG);
}

TEST(the_command_line_of_the_chunk_cache_works)
{
    char *argv[] = {"--enable-chunk-cache",
                    "--chunk-separator",
                    "@@",
                    "--chunk-size",
                    "128",
                    "--max-local-cpu-size=2.5",
                    "--enable-disk",
                    "--local-disk-path",
                    "/var/cache/kv",
                    "--max-local-disk-size",
                    "20",
                    "--chunk-hash-algo",
                    "sha256",
                    "--enable-async-loading",
                    "--enable-freeze-mode",
                    "false",
                    "a question"};
    int n = (int)TSRI_COUNT(argv);
    reopen();
    CHECK_INT(said(tsr_config_load_args(cfg, n, argv)), n - 1);
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK(v->chunked && v->disk_enabled && !v->frozen);
    CHECK_STR(v->separator, "@@");
    CHECK_STR(v->disk_path, "/var/cache/kv");
    CHECK_INT(v->chunk_size, 128);
    CHECK_INT(v->host_size, (uint64_t)5 << 29);
    CHECK_INT(v->hash, TSRI_HASH_SHA256);
    CHECK_INT(tsri_config_check(cfg), 0);
    CHECK_INT(n_lines, 1); /* enable_async_loading */
    CHECK_INT(levels[0], TSR_LOG_WARN);
}

TEST(a_key_is_spoken_of_once)
{
    reopen();
    setenv("LMCACHE_ENABLE_P2P", "true", 1);
    CHECK_INT(tsr_config_load_env(cfg), 0);
    CHECK_INT(tsr_config_load_text(cfg, "enable_p2p: true\n", 17, "t.yaml"), 0);
    CHECK_INT(n_lines, 0); /* no log is on yet */
    tsri_config_warn(cfg);
    tsri_config_warn(cfg);
    CHECK_INT(logged("enable_p2p"), 1);
    CHECK_INT(logged("engines share KV through tesserad, Redis or S3"), 1);
}

TEST(keys_of_one_kind_share_a_row)
{
    reopen();
    CHECK_INT(load("pd_peer_host: a\npd_role: sender\nnixl_buffer_size: 5\n"), 0);
    CHECK_INT(n_lines, 3);
    CHECK_INT(logged("t.yaml:1:15: pd_peer_host (LMCache): ignored: "), 1);
    CHECK_INT(load("pdx: 1\n"), TSR_ECONFIG);
}

TEST(unknown_lmcache_variables_are_ignored_with_a_line)
{
    reopen();
    setenv("LMCACHE_SOMETHING_NEW", "1", 1);
    setenv("VLLM_USE_V1", "1", 1);
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    CHECK_INT(n_lines, 1);
    CHECK_STR(lines[0], "environment variable LMCACHE_SOMETHING_NEW: ignored: unknown");
}

/* Their names are theirs to invent, wherever they stand: variables, keys with their prefix, files. */
TEST(an_unknown_key_in_a_file_of_theirs_is_ignored_with_a_line)
{
    static const char *const theirs[] = {
        "async_loading: false\nlocal_cpu: true\n", /* before the key that tells */
        "local_cpu: true\nasync_loading: [a, {b: [c]}]\n",
        "local_cpu: true\nasync_loading: {b: 1}\n",
        "lmcache: {chunk_size: 64, async_loading: 1}\n",
        "ucm_connector_config: {async_loading: 1}\n",
        "extra_config: {a: 1}\nasync_loading: 1\n",
        "enable_nixl: {a: 1}\nasync_loading: 1\n"};
    for (size_t i = 0; i < TSRI_COUNT(theirs); i++) {
        reopen();
        CHECK_INT(load(theirs[i]), 0);
        CHECK_INT(logged(": async_loading"), 1);
        CHECK_INT(logged("ignored: unknown"), i == 5 ? 2 : 1);
        CHECK_INT(levels[0], TSR_LOG_WARN);
    }
    reopen();
    CHECK_INT(load("local_cpu: true\nmax_local_cpu_sise: 5\n"), 0);
    CHECK_STR(lines[0], "t.yaml:2:1: max_local_cpu_sise: ignored: unknown; did you mean "
                        "\"max_local_cpu_size\"?");
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "lmcache_resp.yaml")), 0);
    CHECK_STR(tsr_config_get(cfg, "redis_address"), "localhost:6379");
    CHECK_INT(logged("lmcache_resp.yaml:5:1: async_loading: ignored: unknown"), 1);
}

TEST(an_unknown_key_in_any_other_file_is_refused)
{
    static const char *const ours[] = {
        "hots_size: 1G\nlocal_cpu: true\ndisk_path: /kv\n", /* ours, with a key of theirs */
        "tessera: {chunk_size: 64, hots_size: 1G}\nlocal_cpu: true\n",
        "chunk_size: 64\nhots_size: 1G\n", /* nobody's */
        "kv_connector: TesseraConnector\nhots_size: 1G\n",
        "kv_connector_extra_config: {hots_size: 1G}\n"};
    for (size_t i = 0; i < TSRI_COUNT(ours); i++) {
        reopen();
        CHECK_INT(load(ours[i]), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), "unknown key \"hots_size\"; did you mean \"host_size\"?");
        CHECK_STR(tsr_config_get(cfg, "chunk_size"), "256");
        CHECK_INT(n_lines, 0);
    }
}

TEST(a_file_that_lmcaches_variable_names_is_theirs)
{
    char path[] = "/tmp/tessera_test_compat_XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    static const char text[] = "chunk_size: 64\ndistributed_url: localhost\n";
    CHECK_INT(write(fd, text, strlen(text)), (long)strlen(text));
    close(fd);
    reopen();
    setenv("LMCACHE_CONFIG_FILE", path, 1);
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "64");
    CHECK_INT(logged(":2:1: distributed_url: ignored: unknown"), 1);
    reopen();
    setenv("TESSERA_CONFIG_FILE", path, 1);
    CHECK_INT(said(tsr_config_load_env(cfg)), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "unknown key \"distributed_url\"");
    unlink(path);
}

TEST(a_misspelt_foreign_key_is_refused_with_the_nearest)
{
    reopen();
    CHECK_INT(load("max_local_cpu_sise: 5\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "did you mean \"max_local_cpu_size\"?");
}

int main(void)
{
    RUN(every_row_maps_to_an_option_or_says_why_not);
    RUN(every_key_users_have_is_mapped_or_ignored);
    RUN(the_lmcache_file_for_sglang_loads);
    RUN(the_lmcache_environment_for_sglang_loads_its_file);
    RUN(the_lmcache_environment_for_blending_loads);
    RUN(the_lmcache_environment_for_asynchronous_scheduling_loads);
    RUN(the_engine_file_for_asynchronous_scheduling_loads);
    RUN(the_chunk_cache_file_loads);
    RUN(the_share_of_the_chunk_cache_counts_while_it_is_on);
    RUN(the_chunk_cache_environment_loads);
    RUN(keys_behind_lmcaches_prefix_are_its_keys);
    RUN(sizes_in_gb_become_bytes);
    RUN(no_host_memory_becomes_the_least_with_a_warning);
    RUN(disk_paths_lose_their_scheme);
    RUN(hash_names_become_ours);
    RUN(policies_we_do_not_have_become_adaptive_with_a_warning);
    RUN(switching_the_chunk_cache_on_brings_its_separator);
    RUN(no_note_speaks_of_what_this_build_lacks);
    RUN(of_an_alias_and_our_name_the_last_one_wins);
    RUN(what_asks_for_nothing_is_no_warning);
    RUN(an_ignored_key_may_hold_a_tree);
    RUN(keys_in_extra_config_count_and_unknown_ones_are_named);
    RUN(blending_is_turned_on_as_lmcache_does_it);
    RUN(a_feature_that_was_asked_for_and_is_ignored_warns_once);
    RUN(position_correction_cannot_be_turned_off);
    RUN(ratios_and_thresholds_go_with_their_check_layers);
    RUN(the_command_line_of_the_chunk_cache_works);
    RUN(a_key_is_spoken_of_once);
    RUN(keys_of_one_kind_share_a_row);
    RUN(unknown_lmcache_variables_are_ignored_with_a_line);
    RUN(an_unknown_key_in_a_file_of_theirs_is_ignored_with_a_line);
    RUN(an_unknown_key_in_any_other_file_is_refused);
    RUN(a_file_that_lmcaches_variable_names_is_theirs);
    RUN(a_misspelt_foreign_key_is_refused_with_the_nearest);
    tsr_log_set(NULL, NULL, 0);
    tsr_config_close(cfg);
    return test_end();
}
