/* The network between: cut in the middle of a read or a write, slow, silent, refused. Requests end
 * within their deadlines as misses, nothing wrong is returned, and it heals by itself with one line
 * in the log for each change. */
#include "support/proxy.h"
#include "support/redis_kit.h"
#include "support/test.h"

static const struct kv_shape shape = {300, 64, 6, 2, {256, 256}, 20, 0};  /* 900 KiB */
static const struct kv_shape large = {1024, 64, 16, 2, {512, 512}, 0, 0}; /* 16 MiB */
static struct redis_server server;
static struct proxy proxy;
static struct redis_kit kit;
static _Atomic int n_lines;

static void count_line(void *arg, int level, const char *text)
{
    (void)arg, (void)text;
    if (level <= TSR_LOG_WARN) atomic_fetch_add(&n_lines, 1);
}

static void fresh(uint32_t timeout_ms)
{
    redis_kit_close(&kit);
    proxy_heal(&proxy);
    CHECK_STR(REDIS_DO(&server, "FLUSHALL"), "+OK");
    kit = (struct redis_kit){.setup = {.part_bytes = 256 << 10, .timeout_ms = timeout_ms}};
    CHECK_INT(redis_kit_open(&kit, proxy.address), 0);
    atomic_store(&n_lines, 0);
}

static uint64_t ms_since(uint64_t ns)
{
    return (tsri_now_ns() - ns) / 1000000;
}

TEST(a_connection_cut_at_any_byte_of_a_read_is_a_miss)
{
    fresh(5000);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    for (int64_t at = 0; at < 1000000; at = at < 64 ? at + 7 : at * 2 + 13) {
        atomic_store(&proxy.cut_down, at);
        int got = kv_tier_get(kit.tier, &shape, 1, 0);
        CHECK(got == TSR_EIO || (got == 0 && at > 800000));
        proxy_heal(&proxy);
        CHECK(kv_tier_until(kit.tier, &shape, 1, 0, 20000));
    }
}

TEST(a_connection_cut_at_any_byte_of_a_write_leaves_nothing_half)
{
    fresh(5000);
    uint64_t seed = 10;
    for (int64_t at = 1; at < 1000000; at = at * 2 + 29, seed++) {
        atomic_store(&proxy.cut_up, at);
        int put = kv_tier_put(kit.tier, &shape, seed);
        proxy_heal(&proxy);
        int want = put == 0 ? 0 : TSR_ENOENT;
        CHECK(kv_tier_until(kit.tier, &shape, seed, want, 20000));
        /* And can be written now. */
        uint64_t until = tsri_now_ns() + 20000000000u;
        while ((put = kv_tier_put(kit.tier, &shape, seed)) != 0 && tsri_now_ns() < until)
            usleep(10000);
        CHECK_INT(put, 0);
        CHECK_INT(kv_tier_get(kit.tier, &shape, seed, 0), 0);
    }
}

TEST(a_silent_server_counts_as_down_and_heals)
{
    fresh(300);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    atomic_store(&proxy.mute, true);
    uint64_t begin = tsri_now_ns();
    for (int i = 0; i < 4; i++)
        CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_EIO);
    CHECK(ms_since(begin) < 5000);
    /* Open now: no request waits, and none is logged. */
    struct tsr_tier_ref ref = {.loc = 1};
    uint8_t found;
    begin = tsri_now_ns();
    for (int i = 0; i < 1000; i++)
        CHECK_INT(tsri_tier_contains(kit.tier, &ref, 1, &found), TSR_EIO);
    CHECK(ms_since(begin) < 1000);
    CHECK_INT(atomic_load(&n_lines), 1);
    proxy_heal(&proxy);
    CHECK(kv_tier_until(kit.tier, &shape, 1, 0, 20000));
    CHECK_INT(atomic_load(&n_lines), 2);
}

TEST(a_slow_server_is_a_miss_at_the_deadline)
{
    fresh(5000);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    atomic_store(&proxy.bytes_per_s, 1000000);
    uint64_t begin = tsri_now_ns();
    CHECK_INT(kv_tier_get(kit.tier, &large, 1, 300), TSR_ETIME);
    CHECK(ms_since(begin) < 2000);
    proxy_heal(&proxy);
    CHECK(kv_tier_until(kit.tier, &large, 1, 0, 20000));
}

TEST(a_delay_costs_time_and_nothing_else)
{
    fresh(5000);
    atomic_store(&proxy.delay_ms, 20);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    CHECK(kv_tier_has(kit.tier, &shape, 1));
}

TEST(a_server_killed_and_started_again_is_found_again)
{
    fresh(2000);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    redis_server_kill(&server);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 1000), TSR_EIO);
    for (int i = 0; i < 100; i++) {
        CHECK_INT(kv_tier_put(kit.tier, &shape, 2), TSR_EIO);
        CHECK(!kv_tier_has(kit.tier, &shape, 1));
        CHECK_INT(kv_tier_drop(kit.tier, &shape, 1), TSR_EIO);
    }
    CHECK_INT(atomic_load(&n_lines), 1);
    redis_server_start(&server);
    CHECK(kv_tier_until(kit.tier, &shape, 1, TSR_ENOENT, 20000)); /* it has kept nothing */
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    CHECK_INT(atomic_load(&n_lines), 2);
}

TEST(a_connection_that_was_idle_too_long_is_made_anew)
{
    fresh(2000);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK(REDIS_DO(&server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")[0] == ':');
    usleep(50000);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    CHECK_INT(atomic_load(&n_lines), 0);
}

TEST(a_limit_on_bandwidth_is_kept)
{
    fresh(5000);
    kit.setup.bytes_per_s = 8 << 20;
    redis_kit_close(&kit);
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    uint64_t begin = tsri_now_ns();
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0); /* 16 MiB */
    CHECK(ms_since(begin) >= 1500);
}

TEST(what_a_late_get_was_to_fill_is_not_touched_afterwards)
{
    fresh(5000);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &large, 1);
    atomic_store(&proxy.bytes_per_s, 20000000);
    struct tsr_tier_io io = kv_entry_io(&room);
    io.deadline_ns = tsri_now_ns() + 150000000;
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ETIME);
    kv_entry_blank(&room);
    proxy_heal(&proxy);
    CHECK(kv_tier_until(kit.tier, &large, 1, 0, 20000));
    usleep(100000);
    for (size_t i = 0; i < room.data_bytes; i += 4096)
        CHECK_INT(room.data[i], 0xA5);
    kv_entry_fini(&room);
}

int main(void)
{
    if (redis_kit_missing()) return test_end_without(redis_kit_missing());
    tsr_log_set(count_line, NULL, TSR_LOG_INFO);
    redis_server_init(&server, NULL);
    proxy_init(&proxy, server.port);
    RUN(a_connection_cut_at_any_byte_of_a_read_is_a_miss);
    RUN(a_connection_cut_at_any_byte_of_a_write_leaves_nothing_half);
    RUN(a_silent_server_counts_as_down_and_heals);
    RUN(a_slow_server_is_a_miss_at_the_deadline);
    RUN(a_delay_costs_time_and_nothing_else);
    RUN(a_server_killed_and_started_again_is_found_again);
    RUN(a_connection_that_was_idle_too_long_is_made_anew);
    RUN(a_limit_on_bandwidth_is_kept);
    RUN(what_a_late_get_was_to_fill_is_not_touched_afterwards);
    redis_kit_close(&kit);
    proxy_fini(&proxy);
    redis_server_fini(&server);
    return test_end();
}
