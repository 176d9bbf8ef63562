/* test_sources.c - the environment and flags. */
#include "config/config.h"
#include "support/test.h"

#include <unistd.h>

static struct tsr_config *cfg;

static void reopen(void)
{
    clearenv();
    tsr_config_close(cfg);
    CHECK_INT(tsr_config_open(&cfg), 0);
}

/* Writes a file and returns its path; valid until the next call. */
static const char *file_with(const char *text)
{
    static char path[64];
    strcpy(path, "/tmp/tessera_test_sources_XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    return path;
}

TEST(variables_set_options_and_are_their_origin)
{
    reopen();
    setenv("TESSERA_HOST_SIZE", "3G", 1);
    setenv("TESSERA_FROZEN", "1", 1);
    setenv("TESSERAE", "other", 1);
    setenv("TESSERA_TEST_LONG", "1", 1);
    setenv("HOME", "/root", 1);
    CHECK_INT(tsr_config_load_env(cfg), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "3G");
    CHECK(tsri_config_options(cfg)->frozen);
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("host_size")), "env TESSERA_HOST_SIZE");
}

TEST(an_unknown_variable_is_refused_by_name_with_the_nearest)
{
    reopen();
    setenv("TESSERA_CHUNK_SIZE", "64", 1);
    setenv("TESSERA_HOTS_SIZE", "3G", 1);
    CHECK_INT(tsr_config_load_env(cfg), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "environment variable TESSERA_HOTS_SIZE: unknown key \"hots_size\"; "
                            "did you mean \"TESSERA_HOST_SIZE\"?");
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "256");
    /* Foreign keys have their own prefix. */
    reopen();
    setenv("TESSERA_MAX_LOCAL_CPU_SIZE", "5.0", 1);
    CHECK_INT(tsr_config_load_env(cfg), TSR_ECONFIG);
    reopen();
    setenv("TESSERA_", "5.0", 1);
    CHECK_INT(tsr_config_load_env(cfg), TSR_ECONFIG);
    reopen();
    char name[200];
    memset(name, 'X', sizeof name);
    memcpy(name, "TESSERA_", 8);
    name[sizeof name - 1] = 0;
    setenv(name, "1", 1);
    CHECK_INT(tsr_config_load_env(cfg), TSR_ECONFIG);
}

TEST(a_bad_value_names_the_variable)
{
    reopen();
    setenv("TESSERA_IO_THREADS", "none", 1);
    CHECK_INT(tsr_config_load_env(cfg), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "environment variable TESSERA_IO_THREADS: io_threads: \"none\" is not "
                            "a whole number");
}

TEST(the_file_named_by_a_variable_comes_before_the_variables)
{
    reopen();
    const char *path = file_with("host_size: 2G\nchunk_size: 32\n");
    setenv("TESSERA_CONFIG_FILE", path, 1);
    setenv("TESSERA_HOST_SIZE", "3G", 1);
    CHECK_INT(tsr_config_load_env(cfg), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "3G");
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "32");
    unlink(path);
    reopen();
    setenv("TESSERA_CONFIG_FILE", path, 1);
    CHECK_INT(tsr_config_load_env(cfg), TSR_ENOENT);
    CHECK_HAS(tsr_errmsg(), "configuration file (--config or TESSERA_CONFIG_FILE): ");
    CHECK_HAS(tsr_errmsg(), path);
    setenv("TESSERA_CONFIG_FILE", "", 1);
    CHECK_INT(tsr_config_load_env(cfg), 0);
}

TEST(our_variable_wins_over_a_foreign_one)
{
    reopen();
    setenv("TESSERA_HOST_SIZE", "3G", 1);
    setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "5", 1);
    CHECK_INT(tsr_config_load_env(cfg), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "3G");
    const char *path = file_with("chunk_size: 32\n");
    setenv("LMCACHE_CONFIG_FILE", "/nowhere/at/all.yaml", 1);
    setenv("TESSERA_CONFIG_FILE", path, 1);
    CHECK_INT(tsr_config_load_env(cfg), 0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "32");
    unsetenv("TESSERA_CONFIG_FILE");
    CHECK_INT(tsr_config_load_env(cfg), TSR_ENOENT);
    CHECK_HAS(tsr_errmsg(), "LMCACHE_CONFIG_FILE");
    unlink(path);
}

static int args(int n, const char *a, const char *b, const char *c, const char *d)
{
    char texts[4][64];
    char *argv[4];
    const char *from[4] = {a, b, c, d};
    for (int i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], "%s", from[i]);
        argv[i] = texts[i];
    }
    return tsr_config_load_args(cfg, n, argv);
}

TEST(flags_take_both_forms_and_stop_at_the_first_other_argument)
{
    reopen();
    CHECK_INT(args(4, "--host-size=2G", "--chunk_size", "64", "show"), 3);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "2G");
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "64");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("host_size")), "flag --host-size");
    CHECK_INT(args(2, "show", "--host-size=4G", "", ""), 0);
    CHECK_INT(args(2, "--", "--host-size=4G", "", ""), 0);
    CHECK_INT(args(1, "-h", "", "", ""), 0);
    CHECK_INT(args(0, "", "", "", ""), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "2G");
    CHECK_INT(args(1, "--separator=a=b", "", "", ""), 1);
    CHECK_STR(tsr_config_get(cfg, "separator"), "a=b");
}

TEST(a_boolean_flag_may_stand_alone)
{
    reopen();
    CHECK_INT(args(2, "--frozen", "show", "", ""), 1);
    CHECK(tsri_config_options(cfg)->frozen);
    CHECK_INT(args(3, "--frozen", "off", "show", ""), 2);
    CHECK(!tsri_config_options(cfg)->frozen);
    CHECK_INT(args(3, "--frozen", "--chunk-size", "8", ""), 3);
    CHECK(tsri_config_options(cfg)->frozen);
    CHECK_INT(args(1, "--frozen=maybe", "", "", ""), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "flag --frozen: frozen: \"maybe\" is neither true nor false");
}

TEST(wrong_flags_are_refused_and_change_nothing)
{
    reopen();
    CHECK_INT(args(2, "--host-size=2G", "--hots-size=1G", "", ""), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(),
              "flag --hots-size: unknown key \"hots-size\"; did you mean \"--host-size\"?");
    CHECK_STR(tsr_config_get(cfg, "host_size"), "1G");
    CHECK_INT(args(1, "--host-size", "", "", ""), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "flag --host-size: needs a value");
    CHECK_INT(args(2, "--host-size", "many", "", ""), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "flag --host-size: host_size: \"many\" is not a size");
    CHECK_INT(tsr_config_load_args(NULL, 0, NULL), TSR_EINVAL);
    CHECK_INT(tsr_config_load_args(cfg, 1, NULL), TSR_EINVAL);
    CHECK_INT(tsr_config_load_args(cfg, -1, NULL), TSR_EINVAL);
}

TEST(later_calls_win_over_earlier_ones)
{
    reopen();
    CHECK_INT(tsr_config_load_text(cfg, "chunk_size: 1\nspaces_max: 1\nops_max: 1", 38, "f"), 0);
    setenv("TESSERA_SPACES_MAX", "2", 1);
    setenv("TESSERA_OPS_MAX", "2", 1);
    CHECK_INT(tsr_config_load_env(cfg), 0);
    CHECK_INT(args(1, "--ops-max=3", "", "", ""), 1);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "1");
    CHECK_STR(tsr_config_get(cfg, "spaces_max"), "2");
    CHECK_STR(tsr_config_get(cfg, "ops_max"), "3");
}

int main(void)
{
    RUN(variables_set_options_and_are_their_origin);
    RUN(an_unknown_variable_is_refused_by_name_with_the_nearest);
    RUN(a_bad_value_names_the_variable);
    RUN(the_file_named_by_a_variable_comes_before_the_variables);
    RUN(our_variable_wins_over_a_foreign_one);
    RUN(flags_take_both_forms_and_stop_at_the_first_other_argument);
    RUN(a_boolean_flag_may_stand_alone);
    RUN(wrong_flags_are_refused_and_change_nothing);
    RUN(later_calls_win_over_earlier_ones);
    tsr_config_close(cfg);
    return test_end();
}
