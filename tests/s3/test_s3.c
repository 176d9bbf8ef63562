/* A real server that checks signatures and clocks: down at the start, killed in the middle, slow,
 * another key, another time, an object that somebody else has written. Each is a miss in time, the
 * tier heals by itself, and each change is one line in the log. */
#include "config/config.h"
#include "support/proxy.h"
#include "support/s3_kit.h"
#include "support/test.h"

#include <sys/wait.h>
#include <time.h>

static const struct kv_shape shape = {300, 64, 6, 2, {512, 512}, 4, 0};
/* 18 MiB: in parts, and long enough on its way to be interrupted. */
static const struct kv_shape large = {2304, 64, 8, 2, {512, 512}, 0, 0};
static struct s3_server server;

/* libcurl dates its signatures with time(); this process may live in another one. */
static _Atomic long skew_s;

__attribute__((visibility("default"))) time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time_t t = now.tv_sec + atomic_load(&skew_s);
    if (out) *out = t;
    return t;
}

static void open_at(struct s3_kit *kit, const char *endpoint, uint32_t timeout_ms)
{
    kit->setup.timeout_ms = timeout_ms;
    kit->setup.absent_ms = 1;
    s3_kit_log_begin();
    CHECK_INT(s3_kit_open(kit, endpoint), 0);
}

TEST(entries_written_by_one_cache_are_read_by_another)
{
    struct s3_kit a = {.setup = {.upload_bytes = 5 << 20, .part_bytes = 1 << 20}}, b = {0};
    open_at(&a, server.endpoint, 20000);
    open_at(&b, server.endpoint, 20000);
    CHECK_INT(kv_tier_put(a.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_put(a.tier, &large, 2), 0); /* in parts */
    CHECK_INT(kv_tier_get(b.tier, &shape, 1, 0), 0);
    CHECK_INT(kv_tier_get(b.tier, &large, 2, 0), 0);
    CHECK_INT(kv_tier_get(b.tier, &shape, 3, 0), TSR_ENOENT); /* 404 */
    s3_kit_close(&b);
    open_at(&b, server.endpoint, 20000);
    CHECK(s3_kit_listed(&b, 1, 20000));
    struct tsri_s3 *s = (struct tsri_s3 *)b.tier;
    uint64_t n = atomic_load(&s->n_requests);
    CHECK(kv_tier_has(b.tier, &shape, 1)); /* the list of the real server told */
    CHECK_INT(atomic_load(&s->n_requests), n);
    CHECK_STR(s3_kit_log(), "");
    s3_kit_close(&a);
    s3_kit_close(&b);
}

TEST(buckets_may_be_host_names)
{
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "http://localhost:%d", server.port);
    struct s3_kit kit = {.setup = {.path_style = 2}};
    open_at(&kit, endpoint, 20000);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    CHECK(s3_kit_listed(&kit, 1, 20000));
    CHECK(((struct tsri_s3 *)kit.tier)->index.n >= 2);
    s3_kit_close(&kit);
}

TEST(a_wrong_key_is_a_miss_and_one_line_without_it)
{
    static const struct {
        const char *key, *secret, *says;
    } wrong[] = {{S3_KIT_KEY, "wrong-secret-guess", "SignatureDoesNotMatch"},
                 {"nobody", "wrong-secret-guess", "InvalidAccessKeyId"}};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        struct s3_kit kit = {.setup = {.access_key = wrong[i].key, .secret_key = wrong[i].secret}};
        open_at(&kit, server.endpoint, 5000);
        for (int k = 0; k < 20; k++) {
            CHECK(kv_tier_get(kit.tier, &shape, 1, 2000) < 0);
            CHECK(kv_tier_put(kit.tier, &shape, 50) < 0);
        }
        CHECK_INT(s3_kit_log_lines(1), 1);
        CHECK_HAS(s3_kit_log(), wrong[i].says);
        CHECK(strstr(s3_kit_log(), "wrong-secret-guess") == NULL);
        CHECK(strstr(tsr_errmsg(), "wrong-secret-guess") == NULL);
        s3_kit_close(&kit);
    }
}

TEST(who_may_not_write_reads)
{
    struct s3_kit kit = {.setup = {.access_key = "reader", .secret_key = S3_KIT_SECRET}};
    open_at(&kit, server.endpoint, 20000);
    for (int k = 0; k < 5; k++) {
        CHECK(kv_tier_put(kit.tier, &shape, 51) < 0);
        CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    }
    CHECK_INT(s3_kit_log_lines(1), 1);
    CHECK_HAS(s3_kit_log(), "rejects writes");
    s3_kit_close(&kit);
}

TEST(a_clock_that_differs_is_a_miss_until_it_is_right)
{
    struct s3_kit kit = {0};
    open_at(&kit, server.endpoint, 5000);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    static const long skews[] = {3600, -3600};
    for (size_t i = 0; i < TSRI_COUNT(skews); i++) {
        s3_kit_log_begin();
        atomic_store(&skew_s, skews[i]);
        for (int k = 0; k < 10; k++)
            CHECK(kv_tier_get(kit.tier, &shape, 1, 2000) < 0);
        CHECK_INT(s3_kit_log_lines(1), 1);
        CHECK_HAS(s3_kit_log(), "RequestTimeTooSkewed");
        atomic_store(&skew_s, 0);
        CHECK(kv_tier_until(kit.tier, &shape, 1, 0, 30000));
        CHECK_INT(s3_kit_log_lines(2), 2);
    }
    s3_kit_close(&kit);
}

TEST(an_object_that_a_stranger_overwrote_is_corrupt)
{
    struct s3_kit kit = {0};
    char path[TSRI_S3_URL_BYTES];
    open_at(&kit, server.endpoint, 20000);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 60), 0);
    s3_kit_path(&kit, &shape, 60, path);
    static char junk[700000];
    memset(junk, 'j', sizeof junk);
    static const size_t sizes[] = {1, 5000, sizeof junk};
    for (size_t i = 0; i < TSRI_COUNT(sizes); i++) {
        CHECK_INT(s3_server_do(server.endpoint, TSRI_S3_HTTP_PUT, path, junk, sizes[i], NULL, 0),
                  200);
        CHECK_INT(kv_tier_get(kit.tier, &shape, 60, 0), TSR_ECORRUPT);
    }
    CHECK_INT(kv_tier_put(kit.tier, &shape, 60), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 60, 0), 0);
    s3_kit_close(&kit);
}

TEST(a_slow_wire_is_a_miss_at_the_deadline_and_heals)
{
    struct proxy wire;
    proxy_init(&wire, server.port);
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", wire.port);
    struct s3_kit kit = {.setup = {.part_bytes = 64 << 10}};
    open_at(&kit, endpoint, 10000);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    atomic_store(&wire.bytes_per_s, 20000); /* 1.8 MB would take more than a minute */
    uint64_t begin = tsri_now_ns();
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 500), TSR_ETIME);
    CHECK((tsri_now_ns() - begin) / 1000000 < 2500);
    proxy_heal(&wire);
    CHECK(kv_tier_until(kit.tier, &shape, 1, 0, 30000));
    atomic_store(&wire.delay_ms, 300);
    begin = tsri_now_ns();
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 100), TSR_ETIME);
    CHECK((tsri_now_ns() - begin) / 1000000 < 1500);
    proxy_heal(&wire);
    CHECK(kv_tier_until(kit.tier, &shape, 1, 0, 30000));
    s3_kit_close(&kit);
    proxy_fini(&wire);
}

/* Another thread's call, while the server goes. */
struct call {
    struct s3_kit *kit;
    bool write;
    _Atomic bool stop;
    _Atomic int n_right, n_wrong, n_missed;
    pthread_t thread;
};

static void *call_again_and_again(void *arg)
{
    struct call *c = arg;
    for (uint64_t seed = 1000; !atomic_load(&c->stop); seed++) {
        int result = c->write ? kv_tier_put(c->kit->tier, &large, seed)
                              : kv_tier_get(c->kit->tier, &large, 2, 5000);
        c->n_right += result == 0;
        c->n_wrong += result > 0;
        c->n_missed += result < 0;
        if (result < 0) usleep(1000);
    }
    return NULL;
}

static void kill_in_the_middle(bool write)
{
    struct s3_kit kit = {.setup = {.upload_bytes = 5 << 20, .part_bytes = 256 << 10}};
    struct call c = {.kit = &kit, .write = write};
    open_at(&kit, server.endpoint, 3000);
    CHECK_INT(pthread_create(&c.thread, NULL, call_again_and_again, &c), 0);
    WAIT_FOR(atomic_load(&c.n_right) > 0);
    usleep(300000);
    s3_server_kill(&server);
    usleep(500000);
    atomic_store(&c.stop, true);
    pthread_join(c.thread, NULL);
    CHECK_INT(c.n_wrong, 0);
    CHECK(c.n_right > 0);
    CHECK(c.n_missed > 0);
    CHECK_INT(s3_kit_log_lines(1), 1);
    CHECK_HAS(s3_kit_log(), "down");
    s3_server_start(&server);
    CHECK(kv_tier_until(kit.tier, &large, 2, 0, 60000));
    /* What was being written is all there or not at all. */
    for (uint64_t seed = 1000; write && seed < 1000 + (uint64_t)(c.n_right + 2); seed++) {
        int result = kv_tier_get(kit.tier, &large, seed, 0);
        CHECK(result == 0 || result == TSR_ENOENT);
    }
    CHECK_HAS(s3_kit_log(), "works again");
    s3_kit_close(&kit);
}

TEST(a_server_killed_in_the_middle_of_reads_costs_misses)
{
    kill_in_the_middle(false);
}

TEST(a_server_killed_in_the_middle_of_writes_leaves_all_or_nothing)
{
    kill_in_the_middle(true);
}

TEST(a_server_that_is_down_at_start_is_found_later)
{
    s3_server_kill(&server);
    struct s3_kit kit = {0};
    uint64_t begin = tsri_now_ns();
    open_at(&kit, server.endpoint, 3000);
    for (int i = 0; i < 100; i++)
        CHECK(kv_tier_get(kit.tier, &shape, 1, 1000) < 0);
    /* A second for each, were they not refused at once. */
    CHECK((tsri_now_ns() - begin) / 1000000 < 50000);
    CHECK_INT(s3_kit_log_lines(1), 1);
    s3_server_start(&server);
    CHECK(kv_tier_until(kit.tier, &shape, 1, 0, 60000));
    CHECK(s3_kit_listed(&kit, 1, 60000)); /* what could not be listed at the start is now */
    CHECK_INT(s3_kit_log_lines(2), 2);
    s3_kit_close(&kit);
}

TEST(a_forked_child_is_refused_and_may_close)
{
    struct s3_kit kit = {0};
    open_at(&kit, server.endpoint, 20000);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool right = kv_tier_get(kit.tier, &shape, 1, 0) == TSR_EFORK &&
                     kv_tier_put(kit.tier, &shape, 2) == TSR_EFORK &&
                     !kv_tier_has(kit.tier, &shape, 1);
        s3_kit_close(&kit);
        _exit(right ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK_INT(status, 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    s3_kit_close(&kit);
}

/* ---- without a server ---- */

static int open_with(const char *key, const char *value)
{
    struct tsr_config *cfg;
    CHECK_INT(tsr_config_open(&cfg), 0);
    CHECK_INT(tsr_config_set(cfg, "s3_bucket", "kv-cache"), 0);
    CHECK_INT(tsr_config_set(cfg, "s3_endpoint", "http://127.0.0.1:1"), 0);
    int err = key ? tsr_config_set(cfg, key, value) : 0;
    struct tsr_tier *tier = NULL;
    struct tsr_tier_desc env = {.size = sizeof env, .config = cfg, .n_threads = 1};
    if (!err) err = tsri_tier_open(&tier, &tsri_tier_s3, &env);
    tsri_tier_close(tier);
    tsr_config_close(cfg);
    return err;
}

TEST(what_the_configuration_says_wrong_is_refused_by_name)
{
    CHECK_INT(open_with(NULL, NULL), 0); /* nobody there: not an error of the configuration */
    CHECK_INT(open_with("s3_bucket", ""), TSR_ECONFIG);
    CHECK_INT(open_with("s3_bucket", "no spaces"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "s3_bucket");
    CHECK_INT(open_with("s3_prefix", "a b"), TSR_ECONFIG);
    CHECK_INT(open_with("s3_endpoint", "http://host/path"), TSR_ECONFIG);
    CHECK_INT(open_with("s3_secret_key", "without-an-access-key"), TSR_ECONFIG);
    CHECK_INT(open_with("s3_credentials_file", "/nonexistent"), TSR_ECONFIG);
}

int main(void)
{
    s3_kit_log_begin();
    RUN(what_the_configuration_says_wrong_is_refused_by_name);
    if (s3_kit_missing()) return test_end_without(s3_kit_missing());
    s3_server_init(&server);
    RUN(entries_written_by_one_cache_are_read_by_another);
    RUN(buckets_may_be_host_names);
    RUN(a_wrong_key_is_a_miss_and_one_line_without_it);
    RUN(who_may_not_write_reads);
    RUN(a_clock_that_differs_is_a_miss_until_it_is_right);
    RUN(an_object_that_a_stranger_overwrote_is_corrupt);
    RUN(a_slow_wire_is_a_miss_at_the_deadline_and_heals);
    RUN(a_server_killed_in_the_middle_of_reads_costs_misses);
    RUN(a_server_killed_in_the_middle_of_writes_leaves_all_or_nothing);
    RUN(a_server_that_is_down_at_start_is_found_later);
    RUN(a_forked_child_is_refused_and_may_close);
    s3_server_fini(&server);
    return test_end();
}
