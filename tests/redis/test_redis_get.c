/* What stands on the server need not be what was put there: values vanish, expire, and belong to
 * anybody who can write. A get returns every byte right, or a miss. */
#include "support/redis_kit.h"
#include "support/test.h"

static const struct kv_shape shape = {300, 64, 6, 2, {256, 256}, 20, 0};
static struct redis_server server;
static struct redis_kit kit;

static void fresh(void)
{
    redis_kit_close(&kit);
    CHECK_STR(REDIS_DO(&server, "FLUSHALL"), "+OK");
    kit = (struct redis_kit){.setup = {.part_bytes = 64 << 10, .timeout_ms = 10000}};
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
}

static void name_of(uint64_t seed, uint32_t part, char name[TSRI_REDIS_NAME_BYTES])
{
    redis_kit_name(&kit, &server, &shape, seed, part, name);
}

TEST(a_vanished_part_is_a_miss)
{
    fresh();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    char name[TSRI_REDIS_NAME_BYTES];
    name_of(1, 2, name);
    CHECK_STR(REDIS_DO(&server, "UNLINK", name), ":1");
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ENOENT);
    /* And is healed by the next put. */
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
}

TEST(a_part_of_another_length_or_type_is_never_believed)
{
    static const char *const wrong[] = {"", "short", NULL};
    char name[TSRI_REDIS_NAME_BYTES];
    for (int i = 0; wrong[i]; i++) {
        fresh();
        CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
        name_of(1, 1, name);
        CHECK_STR(REDIS_DO(&server, "SET", name, wrong[i]), "+OK");
        CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ECORRUPT);
    }
    fresh();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    name_of(1, 1, name);
    CHECK_STR(REDIS_DO(&server, "APPEND", name, "x")[0] == ':' ? "" : "no", "");
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ECORRUPT);
    CHECK_STR(REDIS_DO(&server, "DEL", name), ":1");
    CHECK_STR(REDIS_DO(&server, "LPUSH", name, "x"), ":1");
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ECORRUPT);
}

TEST(flipped_bits_are_noticed_wherever_they_are)
{
    fresh();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    char name[TSRI_REDIS_NAME_BYTES], offset[24];
    uint64_t state = 5;
    for (int i = 0; i < 40; i++) {
        uint32_t part = (uint32_t)(test_rand(&state) % 16);
        name_of(1, part, name);
        snprintf(offset, sizeof offset, "%u", (unsigned)(test_rand(&state) % (64 << 13)));
        const char *answer = REDIS_DO(&server, "STRLEN", name);
        if (strcmp(answer, ":0") == 0 || (uint64_t)atoll(offset) / 8 >= (uint64_t)atoll(answer + 1))
            continue;
        answer = REDIS_DO(&server, "GETBIT", name, offset);
        const char *other = answer[1] == '1' ? "0" : "1";
        CHECK(REDIS_DO(&server, "SETBIT", name, offset, other)[0] == ':');
        CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ECORRUPT);
        const char *back = other[0] == '1' ? "0" : "1";
        CHECK(REDIS_DO(&server, "SETBIT", name, offset, back)[0] == ':');
    }
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
}

TEST(a_record_that_a_stranger_wrote_is_no_entry_and_can_be_replaced)
{
    fresh();
    char name[TSRI_REDIS_NAME_BYTES];
    name_of(1, TSRI_REDIS_RECORD, name);
    CHECK_STR(REDIS_DO(&server, "SET", name, "a stranger's"), "+OK");
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ECORRUPT);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    CHECK_STR(REDIS_DO(&server, "DEL", name), ":1");
    CHECK_STR(REDIS_DO(&server, "HSET", name, "a", "b"), ":1");
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ECORRUPT);
    CHECK_INT(kv_tier_drop(kit.tier, &shape, 1), 1);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ENOENT);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
}

TEST(the_record_of_another_entry_is_not_taken_for_this_one)
{
    fresh();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    char one[TSRI_REDIS_NAME_BYTES], two[TSRI_REDIS_NAME_BYTES];
    name_of(1, TSRI_REDIS_RECORD, one);
    name_of(2, TSRI_REDIS_RECORD, two);
    CHECK_STR(REDIS_DO(&server, "COPY", one, two), ":1");
    CHECK_INT(kv_tier_get(kit.tier, &shape, 2, 0), TSR_ENOENT);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
}

TEST(what_expires_is_a_miss_and_the_record_goes_first)
{
    fresh();
    kit.setup.ttl_s = 100;
    redis_kit_close(&kit);
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    char name[TSRI_REDIS_NAME_BYTES];
    name_of(1, TSRI_REDIS_RECORD, name);
    long record_s = atol(REDIS_DO(&server, "TTL", name) + 1);
    name_of(1, 0, name);
    long part_s = atol(REDIS_DO(&server, "TTL", name) + 1);
    CHECK(record_s > 0 && record_s <= 100);
    CHECK(part_s > record_s);
    name_of(1, TSRI_REDIS_RECORD, name);
    CHECK_STR(REDIS_DO(&server, "PEXPIRE", name, "1"), ":1");
    CHECK(kv_tier_until(kit.tier, &shape, 1, TSR_ENOENT, 5000));
    CHECK(!kv_tier_has(kit.tier, &shape, 1));
}

TEST(an_absent_entry_is_asked_for_once)
{
    fresh();
    kit.setup.absent_ms = 60000;
    redis_kit_close(&kit);
    CHECK_INT(redis_kit_open(&kit, server.tcp), 0);
    CHECK(!kv_tier_has(kit.tier, &shape, 7));
    CHECK_STR(REDIS_DO(&server, "CONFIG", "RESETSTAT"), "+OK");
    for (int i = 0; i < 50; i++)
        CHECK(!kv_tier_has(kit.tier, &shape, 7));
    CHECK(strstr(REDIS_DO(&server, "INFO", "commandstats"), "cmdstat_exists") == NULL);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 7), 0);
    CHECK(kv_tier_has(kit.tier, &shape, 7));
}

TEST(two_caches_share_what_either_has_put)
{
    fresh();
    struct redis_kit other = {.setup = {.timeout_ms = 10000}};
    CHECK_INT(redis_kit_open(&other, server.unix_), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK(kv_tier_has(other.tier, &shape, 1));
    CHECK_INT(kv_tier_get(other.tier, &shape, 1, 0), 0);
    CHECK_INT(kv_tier_put(other.tier, &shape, 2), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 2, 0), 0);
    CHECK_INT(kv_tier_drop(other.tier, &shape, 1), 1);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), TSR_ENOENT);
    redis_kit_close(&other);
}

int main(void)
{
    if (redis_kit_missing()) return test_end_without(redis_kit_missing());
    redis_server_init(&server, NULL);
    RUN(a_vanished_part_is_a_miss);
    RUN(a_part_of_another_length_or_type_is_never_believed);
    RUN(flipped_bits_are_noticed_wherever_they_are);
    RUN(a_record_that_a_stranger_wrote_is_no_entry_and_can_be_replaced);
    RUN(the_record_of_another_entry_is_not_taken_for_this_one);
    RUN(what_expires_is_a_miss_and_the_record_goes_first);
    RUN(an_absent_entry_is_asked_for_once);
    RUN(two_caches_share_what_either_has_put);
    redis_kit_close(&kit);
    redis_server_fini(&server);
    return test_end();
}
