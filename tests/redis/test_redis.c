/* Opening, logging in, and what is never written down. */
#include "support/redis_kit.h"
#include "support/test.h"
#include "config/config.h"

#include <sys/wait.h>

static const struct kv_shape shape = {100, 64, 2, 2, {64, 64}, 0, 0};
static struct redis_server server; /* wants a password */
static char lines[16384];

static void keep_line(void *arg, int level, const char *text)
{
    (void)arg, (void)level;
    size_t n = strlen(lines);
    snprintf(lines + n, sizeof lines - n, "%s\n", text);
}

TEST(the_right_password_opens_and_a_wrong_one_is_a_miss)
{
    struct redis_kit kit = {.setup = {.password = "sesame-street", .timeout_ms = 5000}};
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    redis_kit_close(&kit);
    static const char *const wrong[] = {"wrong-guess", ""};
    for (int i = 0; i < 2; i++) {
        lines[0] = '\0';
        kit.setup.password = wrong[i];
        CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
        for (int k = 0; k < 20; k++)
            CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 1000), TSR_EIO);
        redis_kit_close(&kit);
        CHECK_HAS(lines, "down");
        /* one line, however often it is tried */
        CHECK(strchr(lines, '\n') == strrchr(lines, '\n'));
        CHECK(strstr(lines, "wrong-guess") == NULL);
        CHECK(strstr(tsr_errmsg(), "wrong-guess") == NULL);
    }
}

TEST(a_password_may_stand_in_a_file_that_nobody_else_reads)
{
    char path[300];
    struct tmpdir dir;
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/password", dir.path);
    FILE *f = fopen(path, "w");
    fputs("sesame-street\n", f);
    fclose(f);
    chmod(path, 0600);
    struct redis_kit kit = {.setup = {.password_file = path, .timeout_ms = 5000}};
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 2), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 2, 0), 0);
    redis_kit_close(&kit);
    CHECK_INT(redis_kit_open(&kit, server.unix_), 0); /* over the Unix socket too */
    CHECK_INT(kv_tier_get(kit.tier, &shape, 2, 0), 0);
    redis_kit_close(&kit);
    chmod(path, 0640);
    CHECK_INT(redis_kit_open(&kit, server.tcp), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "redis_password_file");
    kit.setup.password = "sesame-street"; /* given: the file is not looked at */
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    redis_kit_close(&kit);
    tmpdir_fini(&dir);
}

TEST(users_of_the_server_may_be_named)
{
    struct redis_kit kit = {.setup = {.password = "sesame-street", .timeout_ms = 5000}};
    struct redis_kit other = kit;
    other.setup.user = "cache";
    other.setup.password = "another-one";
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    redis_kit_close(&kit);
    CHECK_INT(redis_kit_open(&other, server.tcp), 0);
    CHECK_INT(kv_tier_put(other.tier, &shape, 3), 0);
    CHECK_INT(kv_tier_get(other.tier, &shape, 3, 0), 0);
    redis_kit_close(&other);
}

TEST(users_of_the_server_may_be_kept_to_the_names_of_a_tenant)
{
    struct redis_kit kit = {.setup = {.user = "fleet",
                                      .password = "of-the-fleet",
                                      .timeout_ms = 5000,
                                      .part_bytes = 4096},
                            .tenant = "fleet"};
    static const char *const own[] = {"fleet", "fleet.alice"};
    static const char *const not_own[] = {"fleet2", "others", "uid-0"};
    for (int i = 0; i < 2; i++) {
        kit.tenant = own[i];
        CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
        CHECK_INT(kv_tier_put(kit.tier, &shape, 4), 0);
        CHECK_INT(kv_tier_put(kit.tier, &shape, 4), 0);
        CHECK(kv_tier_has(kit.tier, &shape, 4));
        CHECK_INT(kv_tier_get(kit.tier, &shape, 4, 0), 0);
        CHECK_INT(kv_tier_drop(kit.tier, &shape, 4), 1);
        redis_kit_close(&kit);
    }
    for (int i = 0; i < 3; i++) {
        kit.tenant = not_own[i];
        CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
        CHECK(kv_tier_put(kit.tier, &shape, 4) < 0);
        CHECK(kv_tier_get(kit.tier, &shape, 4, 0) < 0);
        redis_kit_close(&kit);
    }
}

/* As many names in one command as there may be, and each as long as it gets. */
TEST(the_longest_names_have_room)
{
    char prefix[TSRI_REDIS_PREFIX_MAX + 1] = "", tenant[TSRI_TENANT_MAX + 1] = "";
    memset(prefix, 'p', TSRI_REDIS_PREFIX_MAX);
    memset(tenant, 't', TSRI_TENANT_MAX);
    tenant[31] = tenant[63] = '.';
    struct redis_kit kit = {.setup = {.password = "sesame-street",
                                      .prefix = prefix,
                                      .timeout_ms = 5000,
                                      .part_bytes = 4096},
                            .tenant = tenant};
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 33), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 33, 0), 0);
    struct tsr_tier_ref refs[64];
    uint8_t found[64];
    for (uint64_t i = 0; i < 64; i++)
        refs[i] = kv_tier_ref(&shape, i);
    CHECK_INT(tsri_tier_contains(kit.tier, refs, 64, found), 1);
    CHECK(found[33]);
    CHECK_INT(kv_tier_drop(kit.tier, &shape, 33), 1);
    redis_kit_close(&kit);
}

TEST(a_server_that_is_down_at_start_is_found_later)
{
    struct redis_server late;
    redis_server_init(&late, NULL);
    redis_server_kill(&late);
    struct redis_kit kit = {.setup = {.timeout_ms = 2000}};
    uint64_t begin = tsri_now_ns();
    CHECK_INT(redis_kit_open(&kit, late.tcp), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_EIO);
    CHECK(tsri_now_ns() - begin < 5000000000u);
    redis_server_start(&late);
    CHECK(kv_tier_until(kit.tier, &shape, 1, TSR_ENOENT, 20000));
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    redis_kit_close(&kit);
    redis_server_fini(&late);
}

static int open_with(const char *key, const char *value)
{
    struct tsr_config *cfg;
    CHECK_INT(tsr_config_open(&cfg), 0);
    CHECK_INT(tsr_config_set(cfg, "redis_address", "127.0.0.1:1"), 0);
    int err = key ? tsr_config_set(cfg, key, value) : 0;
    struct tsr_tier *tier = NULL;
    struct tsr_tier_desc env = {.size = sizeof env, .config = cfg, .n_threads = 1};
    if (!err) err = tsri_tier_open(&tier, &tsri_tier_redis, &env);
    tsri_tier_close(tier);
    tsr_config_close(cfg);
    return err;
}

TEST(what_the_configuration_says_wrong_is_refused_by_name)
{
    CHECK_INT(open_with(NULL, NULL), 0); /* nobody there: not an error of the configuration */
    CHECK_INT(open_with("redis_address", ""), TSR_ECONFIG);
    CHECK_INT(open_with("redis_address", "host:port"), TSR_ECONFIG);
    CHECK_INT(open_with("redis_prefix", "a b"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "redis_prefix");
    CHECK_INT(open_with("redis_prefix", "a*"), TSR_ECONFIG);
}

TEST(a_forked_child_is_refused_and_may_close)
{
    struct redis_kit kit = {.setup = {.password = "sesame-street"}};
    CHECK_INT(redis_kit_open(&kit, server.unix_), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool right = kv_tier_get(kit.tier, &shape, 1, 0) == TSR_EFORK &&
                     kv_tier_put(kit.tier, &shape, 2) == TSR_EFORK &&
                     !kv_tier_has(kit.tier, &shape, 1);
        redis_kit_close(&kit);
        _exit(right ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK_INT(status, 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    redis_kit_close(&kit);
}

int main(void)
{
    if (redis_kit_missing()) return test_end_without(redis_kit_missing());
    tsr_log_set(keep_line, NULL, TSR_LOG_WARN);
    redis_server_init(&server, NULL);
    CHECK_STR(REDIS_DO(&server, "ACL", "SETUSER", "cache", "on", ">another-one", "~*", "+@all"),
              "+OK");
    /* As docs/remote.md says it: the names of one tenant and nothing else. */
    CHECK_STR(REDIS_DO(&server, "ACL", "SETUSER", "fleet", "on", ">of-the-fleet",
                       "~tessera:fleet:*", "~tessera:fleet.*", "-@all", "+@read", "+@write",
                       "+@connection", "-@dangerous", "+role", "+cluster|slots"),
              "+OK");
    CHECK_STR(REDIS_DO(&server, "CONFIG", "SET", "requirepass", "sesame-street"), "+OK");
    RUN(the_right_password_opens_and_a_wrong_one_is_a_miss);
    RUN(a_password_may_stand_in_a_file_that_nobody_else_reads);
    RUN(users_of_the_server_may_be_named);
    RUN(users_of_the_server_may_be_kept_to_the_names_of_a_tenant);
    RUN(the_longest_names_have_room);
    RUN(a_server_that_is_down_at_start_is_found_later);
    RUN(what_the_configuration_says_wrong_is_refused_by_name);
    RUN(a_forked_child_is_refused_and_may_close);
    redis_server_fini(&server);
    return test_end();
}
