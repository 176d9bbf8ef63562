/* Puts: nothing is left behind, nothing is written twice, and a server that takes no writes costs
 * misses and no more. */
#include "support/proxy.h"
#include "support/redis_kit.h"
#include "support/test.h"

static const struct kv_shape shape = {300, 64, 6, 2, {256, 256}, 20, 0};
static const struct kv_shape large = {1024, 64, 8, 2, {512, 512}, 0, 0}; /* 8 MiB */
static struct redis_server server;
static struct redis_kit kit;

static void fresh(const struct redis_server *s)
{
    redis_kit_close(&kit);
    if (s == &server) CHECK_STR(REDIS_DO(&server, "FLUSHALL"), "+OK");
    kit = (struct redis_kit){.setup = {.part_bytes = 64 << 10, .timeout_ms = 10000}};
    CHECK_INT(redis_kit_open(&kit, s->tcp), 0);
}

TEST(dropping_leaves_nothing_behind)
{
    fresh(&server);
    for (uint64_t seed = 0; seed < 5; seed++)
        CHECK_INT(kv_tier_put(kit.tier, &shape, seed), 0);
    CHECK(strcmp(REDIS_DO(&server, "DBSIZE"), ":0") != 0);
    for (uint64_t seed = 0; seed < 5; seed++)
        CHECK_INT(kv_tier_drop(kit.tier, &shape, seed), 1);
    CHECK_STR(REDIS_DO(&server, "DBSIZE"), ":0");
}

TEST(what_is_replaced_leaves_no_parts_behind)
{
    fresh(&server);
    struct kv_entry a, b;
    kv_entry_init(&a, &shape, 1);
    kv_entry_init(&b, &shape, 2);
    b.head.key = a.head.key; /* another text under the same key */
    struct tsr_tier_io io = kv_entry_io(&a);
    CHECK_INT(tsri_tier_put(kit.tier, &io, 1), 1);
    char size[32];
    snprintf(size, sizeof size, "%s", REDIS_DO(&server, "DBSIZE"));
    for (int i = 0; i < 6; i++) {
        io = kv_entry_io(i % 2 ? &a : &b);
        CHECK_INT(tsri_tier_put(kit.tier, &io, 1), 1);
        CHECK_STR(REDIS_DO(&server, "DBSIZE"), size);
    }
    kv_entry_fini(&a);
    kv_entry_fini(&b);
}

TEST(the_same_text_is_not_written_again)
{
    fresh(&server);
    struct redis_kit other = {.setup = {.part_bytes = 64 << 10}};
    CHECK_INT(redis_kit_open(&other, server.tcp), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_put(other.tier, &shape, 1), 0);
    struct tsr_tier_stats stats;
    CHECK_INT(tsri_tier_stats(other.tier, &stats), 0);
    CHECK_INT(stats.written_bytes, 0);
    redis_kit_close(&other);
}

TEST(parts_stay_only_once_their_record_is_there)
{
    fresh(&server);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    char name[TSRI_REDIS_NAME_BYTES];
    redis_kit_name(&kit, &server, &shape, 1, 0, name);
    CHECK_STR(REDIS_DO(&server, "TTL", name), ":-1");
}

TEST(a_writer_that_died_leaves_only_what_expires)
{
    fresh(&server);
    struct proxy proxy;
    proxy_init(&proxy, server.port);
    redis_kit_close(&kit);
    CHECK_INT(redis_kit_open(&kit, proxy.address), 0);
    /* How much of what was on its way the server still sees is up to the kernel. */
    for (int64_t at = 400000; strcmp(REDIS_DO(&server, "DBSIZE"), ":0") == 0; at += 50000) {
        CHECK(at < 900000);
        atomic_store(&proxy.cut_up, at);
        CHECK_INT(kv_tier_put(kit.tier, &shape, 1), TSR_EIO);
        proxy_heal(&proxy);
        CHECK(kv_tier_until(kit.tier, &shape, 1, TSR_ENOENT, 20000));
    }
    for (int i = 0; i < 20; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s", REDIS_DO(&server, "RANDOMKEY") + 1);
        long ttl_s = atol(REDIS_DO(&server, "TTL", name) + 1);
        CHECK(ttl_s > 0 && ttl_s <= 600);
    }
    redis_kit_close(&kit);
    proxy_fini(&proxy);
}

static void expect_refused(const struct redis_server *s, int error)
{
    fresh(s);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), error);
    CHECK_INT(kv_tier_get(kit.tier, &large, 1, 0), TSR_ENOENT);
    /* Refused without asking, until it is time to try again. */
    uint64_t before = tsri_now_ns();
    int n_asked = 0;
    for (int i = 0; i < 20; i++)
        n_asked += kv_tier_put(kit.tier, &large, 1) == error;
    CHECK(n_asked <= 7); /* each after twice the time; the limit below allows no more */
    CHECK(tsri_now_ns() - before < 10000000000u);
}

static bool put_until(int result, uint32_t ms)
{
    uint64_t until = tsri_now_ns() + (uint64_t)ms * 1000000;
    while (kv_tier_put(kit.tier, &large, 1) != result) {
        if (tsri_now_ns() > until) return false;
        usleep(20000);
    }
    return true;
}

TEST(a_server_out_of_memory_is_told_and_left_clean)
{
    struct redis_server full;
    redis_server_init(&full, (const char *const[]){"--maxmemory", "4mb", "--maxmemory-policy",
                                                   "noeviction", NULL});
    expect_refused(&full, TSR_EFULL);
    CHECK_STR(REDIS_DO(&full, "DBSIZE"), ":0"); /* no orphans */
    CHECK_STR(REDIS_DO(&full, "CONFIG", "SET", "maxmemory", "100mb"), "+OK");
    CHECK(put_until(0, 20000));
    CHECK_INT(kv_tier_get(kit.tier, &large, 1, 0), 0);
    redis_kit_close(&kit);
    redis_server_fini(&full);
}

TEST(a_server_that_evicts_costs_misses_and_never_bytes)
{
    struct redis_server small;
    redis_server_init(&small, (const char *const[]){"--maxmemory", "24mb", "--maxmemory-policy",
                                                    "allkeys-lru", NULL});
    fresh(&small);
    int n_missing = 0;
    for (uint64_t seed = 0; seed < 12; seed++)
        CHECK(kv_tier_put(kit.tier, &large, seed) <= 0);
    for (uint64_t seed = 0; seed < 12; seed++) {
        int got = kv_tier_get(kit.tier, &large, seed, 0);
        CHECK(got == 0 || got == TSR_ENOENT);
        n_missing += got != 0;
    }
    CHECK(n_missing > 0);
    redis_kit_close(&kit);
    redis_server_fini(&small);
}

TEST(a_read_only_replica_is_read_and_not_written)
{
    fresh(&server);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 2), 0);
    CHECK_INT(kv_tier_drop(kit.tier, &large, 1), 1);
    char port[16];
    snprintf(port, sizeof port, "%d", server.port);
    struct redis_server replica;
    redis_server_init(&replica, (const char *const[]){"--replicaof", "127.0.0.1", port,
                                                      "--repl-diskless-sync-delay", "0", NULL});
    WAIT_FOR(strstr(REDIS_DO(&replica, "INFO", "replication"), "master_link_status:up"));
    /* Its master dies, so that nothing but the replica is left. */
    redis_server_kill(&server);
    expect_refused(&replica, TSR_EPERM);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 2, 0), 0);
    CHECK_STR(REDIS_DO(&replica, "REPLICAOF", "NO", "ONE"), "+OK");
    CHECK(put_until(0, 20000));
    redis_kit_close(&kit);
    redis_server_fini(&replica);
    redis_server_start(&server);
}

int main(void)
{
    if (redis_kit_missing()) return test_end_without(redis_kit_missing());
    redis_server_init(&server, NULL);
    RUN(dropping_leaves_nothing_behind);
    RUN(what_is_replaced_leaves_no_parts_behind);
    RUN(the_same_text_is_not_written_again);
    RUN(parts_stay_only_once_their_record_is_there);
    RUN(a_writer_that_died_leaves_only_what_expires);
    RUN(a_server_out_of_memory_is_told_and_left_clean);
    RUN(a_server_that_evicts_costs_misses_and_never_bytes);
    RUN(a_read_only_replica_is_read_and_not_written);
    redis_kit_close(&kit);
    redis_server_fini(&server);
    return test_end();
}
