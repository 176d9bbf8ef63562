/* test_config.c - setting, reading and checking a configuration through calls. */
#include "config/config.h"
#include "support/test.h"

static struct tsr_config *cfg;

static void reopen(void)
{
    tsr_config_close(cfg);
    CHECK_INT(tsr_config_open(&cfg), 0);
}

TEST(a_new_configuration_holds_the_defaults_of_the_table)
{
    reopen();
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        CHECK_STR(tsr_config_get(cfg, o->name), o->def);
        CHECK_STR(tsri_config_origin(cfg, o), "default");
    }
    const struct tsri_options *v = tsri_config_options(cfg);
    CHECK_INT(v->host_size, 1 << 30);
    CHECK_INT(v->host_page_size, 256 << 10);
    CHECK_INT(v->chunk_size, 256);
    CHECK_INT(v->hash, TSRI_HASH_SHA256);
    CHECK_INT(v->log_level, TSR_LOG_WARN);
    CHECK(v->disk_direct && !v->frozen);
    CHECK_STR(v->disk_path, "");
    CHECK_INT(tsri_config_check(cfg), 0);
}

TEST(a_set_value_reads_back_in_canonical_form)
{
    reopen();
    CHECK_INT(tsr_config_set(cfg, "host_size", "2048MiB"), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "2G");
    CHECK_INT(tsri_config_options(cfg)->host_size, (uint64_t)2 << 30);
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("host_size")), "call");
    CHECK_INT(tsr_config_set(cfg, "frozen", "Yes"), 0);
    CHECK_STR(tsr_config_get(cfg, "frozen"), "true");
    CHECK_INT(tsr_config_set(cfg, "io-threads", "007"), 0);
    CHECK_STR(tsr_config_get(cfg, "io_threads"), "7");
    CHECK_INT(tsri_config_options(cfg)->io_threads, 7);
    CHECK_INT(tsr_config_set(cfg, "separator", " # # "), 0);
    CHECK_STR(tsri_config_options(cfg)->separator, " # # ");
    CHECK_INT(tsr_config_set(cfg, "separator", ""), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "");
}

TEST(a_path_may_begin_at_the_home_folder)
{
    reopen();
    CHECK_INT(setenv("HOME", "/h/me", 1), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_path", "~/kv"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "/h/me/kv");
    CHECK_STR(tsri_config_options(cfg)->disk_path, "/h/me/kv");
    CHECK_INT(tsr_config_set(cfg, "disk_path", "~other/kv"), 0); /* of nobody: a name like others */
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "~other/kv");
    CHECK_INT(tsr_config_set(cfg, "disk_path", "dir/~/kv"), 0);
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "dir/~/kv");
    CHECK_INT(tsr_config_set(cfg, "separator", "~/"), 0); /* no path */
    CHECK_STR(tsr_config_get(cfg, "separator"), "~/");
    char home[6000] = "/";
    memset(home + 1, 'h', sizeof home - 2);
    CHECK_INT(setenv("HOME", home, 1), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_path", "~/kv"), TSR_ECONFIG);
    CHECK_INT(unsetenv("HOME"), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_path", "~/kv"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "disk_path: ~ is the folder HOME, which is not set");
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "dir/~/kv");
}

TEST(unknown_key_is_refused_by_name_with_the_nearest)
{
    reopen();
    CHECK_INT(tsr_config_set(cfg, "hots_size", "1G"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "unknown key \"hots_size\"; did you mean \"host_size\"?");
    CHECK_INT(tsr_config_set(cfg, "zzzzzzzzzzzz", "1"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "unknown key \"zzzzzzzzzzzz\"");
    CHECK_INT(tsr_config_set(cfg, "", "1"), TSR_ECONFIG);
    CHECK(!tsr_config_get(cfg, "hots_size"));
}

TEST(a_refused_value_names_key_and_reason_and_changes_nothing)
{
    reopen();
    CHECK_INT(tsr_config_set(cfg, "chunk_size", "64"), 0);
    CHECK_INT(tsr_config_set(cfg, "chunk_size", "sixty"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "chunk_size: \"sixty\" is not a whole number");
    CHECK_INT(tsr_config_set(cfg, "chunk_size", "70000"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "chunk_size: 70000 is out of range (1 to 65536)");
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "64");
    CHECK_INT(tsri_config_options(cfg)->chunk_size, 64);
}

TEST(null_arguments_are_refused)
{
    reopen();
    CHECK_INT(tsr_config_open(NULL), TSR_EINVAL);
    CHECK_INT(tsr_config_set(NULL, "hash", "xxh3"), TSR_EINVAL);
    CHECK_INT(tsr_config_set(cfg, NULL, "xxh3"), TSR_EINVAL);
    CHECK_INT(tsr_config_set(cfg, "hash", NULL), TSR_EINVAL);
    CHECK(!tsr_config_get(NULL, "hash") && !tsr_config_get(cfg, NULL));
    tsr_config_close(NULL);
}

static int fill_then_fail(struct tsr_config *draft, void *arg)
{
    CHECK_INT(tsr_config_set(draft, "separator", "##"), 0);
    CHECK_INT(tsr_config_set(draft, "chunk_size", "16"), 0);
    return *(int *)arg;
}

TEST(a_failed_load_leaves_every_value_as_it_was)
{
    reopen();
    CHECK_INT(tsr_config_set(cfg, "separator", "--"), 0);
    int result = TSR_EIO;
    CHECK_INT(tsri_config_try(cfg, fill_then_fail, &result), TSR_EIO);
    CHECK_STR(tsri_config_options(cfg)->separator, "--");
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "256");
    result = 5;
    CHECK_INT(tsri_config_try(cfg, fill_then_fail, &result), 5);
    CHECK_STR(tsri_config_options(cfg)->separator, "##");
    CHECK_INT(tsri_config_options(cfg)->chunk_size, 16);
    CHECK_INT(tsri_config_options(cfg)->host_size, 1 << 30);
}

TEST(rules_between_options_are_checked)
{
    reopen();
    CHECK_INT(tsr_config_set(cfg, "chunked", "true"), 0);
    CHECK_INT(tsri_config_check(cfg), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "chunked: separator is empty");
    CHECK_INT(tsr_config_set(cfg, "separator", "##"), 0);
    CHECK_INT(tsri_config_check(cfg), 0);
    CHECK_INT(tsr_config_set(cfg, "host_size", "1M"), 0);
    CHECK_INT(tsr_config_set(cfg, "host_page_size", "2M"), 0);
    CHECK_INT(tsri_config_check(cfg), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "host_page_size: 2M is larger than host_size, 1M");
    reopen();
    CHECK_INT(tsr_config_set(cfg, "disk_size", "64M"), 0);
    CHECK_INT(tsri_config_check(cfg), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_path", "/var/lib/kv"), 0);
    CHECK_INT(tsri_config_check(cfg), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "disk_segment_size");
    CHECK_INT(tsr_config_set(cfg, "disk_enabled", "no"), 0);
    CHECK_INT(tsri_config_check(cfg), 0);
}

static char warning[640];
static int n_warnings;

static void keep_warning(void *arg, int level, const char *text)
{
    (void)arg;
    if (level != TSR_LOG_WARN) return;
    snprintf(warning, sizeof warning, "%s", text);
    n_warnings++;
}

TEST(an_ignored_key_is_warned_about_once_when_a_cache_opens)
{
    struct tsr_cache *cache = NULL;
    reopen();
    tsr_log_set(keep_warning, NULL, TSR_LOG_WARN);
    CHECK_INT(tsr_config_set(cfg, "host_size", "4M"), 0);
    CHECK_INT(tsr_config_set(cfg, "separator", "##"), 0);
    CHECK_INT(tsr_cache_open(&cache, cfg), 0);
    tsr_cache_close(cache);
    CHECK_INT(n_warnings, 0);
    CHECK_INT(tsr_config_set(cfg, "enable_p2p", "true"), 0);
    CHECK_INT(n_warnings, 0);
    CHECK_INT(tsr_cache_open(&cache, cfg), 0);
    tsr_cache_close(cache);
    CHECK_INT(n_warnings, 1);
    CHECK_HAS(warning, "enable_p2p (LMCache): ignored: ");
    CHECK_INT(tsr_cache_open(&cache, cfg), 0);
    tsr_cache_close(cache);
    CHECK_INT(n_warnings, 1); /* once */
    tsr_log_set(NULL, NULL, 0);
}

int main(void)
{
    RUN(a_new_configuration_holds_the_defaults_of_the_table);
    RUN(a_set_value_reads_back_in_canonical_form);
    RUN(a_path_may_begin_at_the_home_folder);
    RUN(unknown_key_is_refused_by_name_with_the_nearest);
    RUN(a_refused_value_names_key_and_reason_and_changes_nothing);
    RUN(null_arguments_are_refused);
    RUN(a_failed_load_leaves_every_value_as_it_was);
    RUN(rules_between_options_are_checked);
    RUN(an_ignored_key_is_warned_about_once_when_a_cache_opens);
    tsr_config_close(cfg);
    return test_end();
}
