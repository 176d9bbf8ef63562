/* test_remote_url.c - LMCache's remote_url becomes the redis or s3 tier, is ignored with a line, or is
 * refused; no message shows a password. */
#include "support/compat_kit.h"

TEST(a_remote_url_becomes_options_of_our_tiers)
{
    reopen();
    CHECK_INT(load("remote_url: redis://cache:6379\n"), 0);
    check_option("redis_address", "cache:6379");
    reopen();
    CHECK_INT(load("remote_url: redis://me:sesame@a:1,b:2/3\n"), 0);
    check_option("redis_address", "a:1,b:2");
    check_option("redis_user", "me");
    check_option("redis_database", "3");
    CHECK_STR(tsri_config_options(cfg)->redis_password, "sesame");
    CHECK_INT(n_lines, 0);
    reopen();
    CHECK_INT(load("remote_url: \"redis://me:open/se@same@a:1/3\"\n"), 0);
    check_option("redis_address", "a:1");
    check_option("redis_database", "3");
    CHECK_STR(tsri_config_options(cfg)->redis_password, "open/se@same");
    reopen();
    CHECK_INT(load("remote_url: \"valkey://:sesame@cache/\"\n"), 0);
    check_option("redis_address", "cache");
    check_option("redis_user", "");
    CHECK_STR(tsri_config_options(cfg)->redis_password, "sesame");
    reopen();
    CHECK_INT(load("remote_url: \"resp://cache:6379\"\nremote_serde: \"naive\"\nextra_config:\n"
                   "  resp_num_threads: 8\n  save_chunk_meta: False\n"
                   "  username: \"me\"\n  password: \"sesame\"\n"),
              0);
    check_option("redis_address", "cache:6379");
    check_option("redis_user", "me");
    CHECK_STR(tsri_config_options(cfg)->redis_password, "sesame");
    CHECK_INT(logged("sesame"), 0);
    CHECK_INT(logged("unknown"), 0);
    CHECK_INT(load("password: open\n"),
              TSR_ECONFIG); /* of anything: only in there it is that of Redis */
    reopen();
    setenv("LMCACHE_RESP_USERNAME", "me", 1);
    setenv("LMCACHE_RESP_PASSWORD", "sesame", 1);
    setenv("LMCACHE_EXTRA_CONFIG", "{\"username\": \"you\"}", 1);
    CHECK_INT(said(tsr_config_load_env(cfg)), 0);
    check_option("redis_user", "me");
    CHECK_STR(tsri_config_options(cfg)->redis_password, "sesame");
    CHECK_INT(n_lines, 0);
    reopen();
    CHECK_INT(load("remote_url: s3://kv-cache\n"), 0);
    check_option("s3_bucket", "kv-cache");
    check_option("s3_endpoint", "");
    reopen();
    CHECK_INT(load("remote_url: s3://kv-cache.s3.eu-central-1.amazonaws.com/\n"), 0);
    check_option("s3_bucket", "kv-cache");
    check_option("s3_region", "eu-central-1");
    reopen();
    CHECK_INT(load("remote_url: s3://store.example:9000/kv-cache\n"), 0);
    check_option("s3_bucket", "kv-cache");
    check_option("s3_endpoint", "store.example:9000");
}

TEST(an_s3_url_may_have_its_bucket_in_the_host_name)
{
    static const struct {
        const char *url, *bucket, *region, *endpoint, *path_style;
    } urls[] = {
        {"kv.cache.s3.eu-central-1.amazonaws.com", "kv.cache", "eu-central-1", "", "auto"},
        {"kv--use1-az4--x-s3.s3express-use1-az4.us-west-2.amazonaws.com", "kv--use1-az4--x-s3",
         "us-west-2", "s3express-use1-az4.us-west-2.amazonaws.com", "no"},
        {"kv-cache.s3.dualstack.eu-west-1.amazonaws.com", "kv-cache", "eu-west-1",
         "s3.dualstack.eu-west-1.amazonaws.com", "no"},
        {"kv-cache.s3.amazonaws.com", "kv-cache", "us-east-1", "s3.amazonaws.com", "no"},
        {"kv-cache.t3.storage.dev", "kv-cache", "us-east-1", "t3.storage.dev", "no"},
        {"kv-cache.store.example:9000/", "kv-cache", "us-east-1", "store.example:9000", "no"}};
    for (size_t i = 0; i < TSRI_COUNT(urls); i++) {
        char text[256];
        reopen();
        snprintf(text, sizeof text, "remote_url: \"s3://%s\"\n", urls[i].url);
        CHECK_INT(load(text), 0);
        check_option("s3_bucket", urls[i].bucket);
        check_option("s3_region", urls[i].region);
        check_option("s3_endpoint", urls[i].endpoint);
        check_option("s3_path_style", urls[i].path_style);
        CHECK_INT(n_lines, strstr(urls[i].url, "s3express") ? 1 : 0);
    }
    reopen();
    CHECK_INT(load("remote_url: \"s3://kv-cache.s3express-use1-az4.us-east-1.amazonaws.com\"\n"
                   "extra_config:\n  s3_num_io_threads: 64\n  s3_region: \"us-east-1\"\n"
                   "  s3_enable_s3express: True\n  aws_access_key_id: \"who\"\n"
                   "  aws_secret_access_key: \"sesame\"\n"),
              0);
    check_option("s3_access_key", "who");
    CHECK_STR(tsri_config_options(cfg)->s3_secret_key, "sesame");
    CHECK_INT(logged("directory buckets of S3 Express were not tested"), 1);
    CHECK_INT(logged("unknown"), 0);
}

TEST(a_remote_url_of_another_kind_is_ignored_and_a_wrong_one_refused)
{
    reopen();
    CHECK_INT(load("remote_url: null\n"), 0);
    CHECK_INT(load("remote_url: None\n"), 0);
    CHECK_INT(n_lines, 0);
    CHECK_INT(load("remote_url: mooncakestore://host:1\n"), 0);
    CHECK_INT(n_lines, 1);
    CHECK_INT(levels[0], TSR_LOG_WARN);
    CHECK_INT(load("remote_url: rediss://me:sesame@cache:6380\n"), 0);
    CHECK_INT(logged("t.yaml:1:13: remote_url: ignored: no TLS to Redis: run a TLS proxy"), 1);
    CHECK_INT(load("remote_url: redis-sentinel://a:26379,b:26379\n"), 0);
    CHECK_INT(logged("remote_url: ignored: sentinels are not asked: write the Redis servers"), 1);
    CHECK_INT(logged("sesame"), 0);
    check_option("redis_address", "");
    check_option("s3_bucket", "");
    static const char *const wrong[] = {"redis://",
                                        "redis://me:sesame@",
                                        "s3://10.0.0.1:9000",
                                        "s3://localhost:9000",
                                        "s3://.host",
                                        "s3://",
                                        "s3://key:sesame@host",
                                        "redis://me:sesame@host/x",
                                        "redis://me:open/sesame@host/x",
                                        "s3://key:open/sesame@host"};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        char text[128];
        snprintf(text, sizeof text, "remote_url: \"%s\"\n", wrong[i]);
        CHECK_INT(load(text), TSR_ECONFIG);
        CHECK(strstr(tsr_errmsg(), "sesame") == NULL);
        CHECK(strncmp(tsr_errmsg(), "t.yaml:1:13: remote_url", 23) == 0);
    }
}

int main(void)
{
    RUN(a_remote_url_becomes_options_of_our_tiers);
    RUN(an_s3_url_may_have_its_bucket_in_the_host_name);
    RUN(a_remote_url_of_another_kind_is_ignored_and_a_wrong_one_refused);
    tsr_log_set(NULL, NULL, 0);
    tsr_config_close(cfg);
    return test_end();
}
