/* test_ucm.c - UCM's configurations load: its stores become tiers, its blending becomes ours, and what
 * cannot be understood of that is refused. */
#include "support/compat_kit.h"

TEST(the_ucm_files_load)
{
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "ucm_blend.yaml")), 0);
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK(v->blend && v->blend_any_offset && v->blend_from_traffic);
    CHECK_INT(v->match_min_tokens, 64);
    CHECK_INT(v->blend_boundary.n, 1);
    CHECK_INT(v->blend_boundary.values[0], 2);
    CHECK_INT(logged("(UCM): ignored: remove it: the space describes the model"), 2);
    CHECK_INT(n_lines, 2);
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("min_match_ratio")),
              FIXTURES "ucm_blend.yaml:4");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("blend")),
              FIXTURES "ucm_blend.yaml:3 (blend_chunk_size)");
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "ucm_connector.yaml")), 0);
    CHECK_INT(n_lines, 3);
    CHECK_INT(logged("an option of the engine"), 3);
    CHECK(tsri_config_options(cfg)->blend && tsri_config_options(cfg)->blend_any_offset);
}

TEST(the_file_of_ucms_stores_loads)
{
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "ucm_config.yaml")), 0);
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK_STR(v->disk_path, "/mnt/test");
    CHECK_INT(v->disk_size, (uint64_t)1 << 40);
    CHECK_INT(v->host_size, (uint64_t)64 << 30);
    CHECK_INT(v->tier_load_ms, 5000);
    CHECK(!v->disk_direct && !v->blend);
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("disk_path")),
              FIXTURES "ucm_config.yaml:6 (storage_backends)");
    static const char *const ignored[] = {
        "ucm_connector_name",  "store_pipeline",    "posix_io_engine",
        "store_health",        "enable_event_sync", "load_only_first_rank",
        "metrics_config_path", "hit_ratio",         "use_layerwise"};
    for (size_t i = 0; i < TSRI_COUNT(ignored); i++) {
        char part[64];
        snprintf(part, sizeof part, ": %s (", ignored[i]);
        CHECK_INT(logged(part), 1);
    }
    CHECK_INT(logged("ucm_sparse_config_GSAOnDevice (UCM): ignored: no attention is made sparse"),
              1);
    CHECK_INT(logged("key_of_next_year: ignored: unknown"), 1);
    CHECK_INT(n_lines, (int)TSRI_COUNT(ignored) + 2);
}

TEST(ucms_blending_becomes_ours)
{
    reopen();
    CHECK_INT(said(tsr_config_load_file(cfg, FIXTURES "ucm_sparse.yaml")), 0);
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK(v->blend && v->blend_any_offset && v->blend_from_traffic);
    CHECK_STR(tsr_config_get(cfg, "blend_check_layers"), "1,12");
    CHECK_STR(tsr_config_get(cfg, "blend_recompute_ratios"), "0.2,0.1");
    CHECK_STR(tsr_config_get(cfg, "separator"), "");
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "/mnt/a");
    CHECK_INT(tsri_config_check(cfg), 0);
    CHECK_INT(logged("storage_backends: /mnt/a:/mnt/b: only the first of several paths"), 1);
    CHECK_INT(logged("chunk_end_token_id: ignored: stored text is found without a mark"), 1);
    CHECK_INT(logged("compute_meta.model.layers.1.self_attn.attn.metric: ignored: unknown"), 1);
    CHECK_INT(n_lines, 4); /* and ucm_connector_name */
    reopen();
    CHECK_INT(load("ucm_sparse_config: {Blend: {}}\n"), 0);
    CHECK(tsri_config_options(cfg)->blend);
    CHECK_STR(tsr_config_get(cfg, "blend_check_layers"), "");
}

TEST(what_ucms_blending_cannot_mean_is_refused)
{
    static const struct {
        const char *blend, *message;
    } wrong[] = {
        {"true", "\"true\" is not a mapping"},
        {"{compute_meta: {attn: {ratio: 0.2}}}", "\"attn.ratio\" names no layer"},
        {"{compute_meta: {layers.1x: {ratio: 0.2}}}", "names no layer"},
        {"{compute_meta: {layers.1: {ratio: 0.2}, m.layers.1: {ratio: 0.3}}}", "a layer again"},
        {"{compute_meta: {layers.1: {ratio: much}}}", "\"much\" is not up to 8 numbers"},
        {"{compute_meta: {layers.1: {ratio: 2}}}", "\"2\" is not up to 8 numbers from 0 to 1"},
        {"{compute_meta: {layers.1: {ratio: [1]}}}", "expected a single value"},
        {"{compute_meta: [1]}", "expected a single value"},
        {"{\"a\\nb\": 1}", "a key must be a single word"},
        {"{a: {b: {c: {d: {e: {f: {g: 1}}}}}}}", "nested more than 8 levels deep"}};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        char text[256];
        reopen();
        snprintf(text, sizeof text, "ucm_sparse_config: {Blend: %s}\n", wrong[i].blend);
        CHECK_INT(load(text), TSR_ECONFIG);
        CHECK(strncmp(tsr_errmsg(), "t.yaml:1:", 9) == 0);
        CHECK_HAS(tsr_errmsg(), wrong[i].message);
        CHECK(!tsri_config_options(cfg)->blend);
    }
}

TEST(the_file_that_ucms_key_names_is_loaded_once)
{
    reopen();
    CHECK_INT(set("UCM_CONFIG_FILE", FIXTURES "ucm_config.yaml"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "/mnt/test");
    CHECK_INT(logged("key_of_next_year: ignored: unknown"), 1);
    CHECK_INT(set("UCM_CONFIG_FILE", FIXTURES "none.yaml"), TSR_ENOENT);
    reopen();
    CHECK_INT(load("UCM_CONFIG_FILE: " FIXTURES "ucm_config.yaml\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "");
    CHECK_INT(logged("a file cannot name another"), 1);
}

int main(void)
{
    RUN(the_ucm_files_load);
    RUN(the_file_of_ucms_stores_loads);
    RUN(ucms_blending_becomes_ours);
    RUN(what_ucms_blending_cannot_mean_is_refused);
    RUN(the_file_that_ucms_key_names_is_loaded_once);
    tsr_log_set(NULL, NULL, 0);
    tsr_config_close(cfg);
    return test_end();
}
