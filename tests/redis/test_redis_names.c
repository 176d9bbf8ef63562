#include "redis/redis.h"
#include "support/test.h"

TEST(names_carry_prefix_space_key_nonce_and_part)
{
    uint8_t space[16] = {0xAB}, space2[16];
    struct tsr_key key = {.bytes = {1, 2, 0xFF}}, key2;
    char name[TSRI_REDIS_NAME_BYTES];
    tsri_redis_name(name, "p:q", space, &key, 0x1234, TSRI_REDIS_RECORD);
    CHECK_STR(name, "p:q:ab000000000000000000000000000000:{0102ff00000000000000000000000000}");
    CHECK(tsri_redis_is_record(name, strlen(name), "p:q", space2, &key2));
    CHECK(memcmp(space, space2, 16) == 0 && memcmp(&key, &key2, 16) == 0);
    CHECK(!tsri_redis_is_record(name, strlen(name), "p", space2, &key2));
    CHECK(!tsri_redis_is_record(name, strlen(name) - 1, "p:q", space2, &key2));
    name[6] = 'X';
    CHECK(!tsri_redis_is_record(name, strlen(name), "p:q", space2, &key2));
    tsri_redis_name(name, "p:q", space, &key, 0x1234, 17);
    CHECK_STR(name, "p:q:ab000000000000000000000000000000:{0102ff00000000000000000000000000}:"
                    "0000000000001234:17");
    CHECK(!tsri_redis_is_record(name, strlen(name), "p:q", space2, &key2));
    char longest[TSRI_REDIS_ROOT_MAX + 1];
    memset(longest, 'x', TSRI_REDIS_ROOT_MAX);
    longest[TSRI_REDIS_ROOT_MAX] = '\0';
    tsri_redis_name(name, longest, space, &key, UINT64_MAX, UINT32_MAX - 1);
    CHECK(strlen(name) < TSRI_REDIS_NAME_BYTES - 1);
}

/* The numbers are those of the cluster specification and of CLUSTER KEYSLOT. */
TEST(slots_are_those_of_the_specification)
{
    CHECK_INT(tsri_redis_slot("123456789", 9), 12739);
    CHECK_INT(tsri_redis_slot("foo", 3), 12182);
    CHECK_INT(tsri_redis_slot("{user1000}.following", 20), tsri_redis_slot("user1000", 8));
    CHECK_INT(tsri_redis_slot("foo{}{bar}", 10), 8363);
    CHECK_INT(tsri_redis_slot("foo{{bar}}zap", 13), tsri_redis_slot("{bar", 4));
    CHECK_INT(tsri_redis_slot("foo{bar}{zap}", 13), tsri_redis_slot("bar", 3));
    CHECK_INT(tsri_redis_slot("", 0), 0);
}

TEST(record_and_parts_have_one_slot)
{
    uint8_t space[16] = {9};
    struct tsr_key key = {.bytes = {1, 2, 3}};
    char a[TSRI_REDIS_NAME_BYTES], b[TSRI_REDIS_NAME_BYTES];
    tsri_redis_name(a, "t", space, &key, 0, TSRI_REDIS_RECORD);
    tsri_redis_name(b, "t", space, &key, 99, 3);
    CHECK_INT(tsri_redis_slot(a, strlen(a)), tsri_redis_slot(b, strlen(b)));
}

static const char *address(const char *list, uint32_t i)
{
    static char out[TSRI_REDIS_ADDRESS_BYTES];
    int err;
    if (!tsri_redis_address(list, i, out, &err)) return "none";
    return err ? "error" : out;
}

TEST(addresses_are_read_in_their_usual_forms)
{
    CHECK_STR(address("cache", 0), "cache:6379");
    CHECK_STR(address("cache:1", 0), "cache:1");
    CHECK_STR(address("redis://10.0.0.1:6380/0", 0), "10.0.0.1:6380");
    CHECK_STR(address("[::1]:7000", 0), "[::1]:7000");
    CHECK_STR(address("unix:/run/redis/s", 0), "unix:/run/redis/s");
    CHECK_STR(address("a:1, b:2,c", 1), "b:2");
    CHECK_STR(address("a:1, b:2,c", 2), "c:6379");
    CHECK_STR(address("a:1, b:2,c", 3), "none");
    CHECK_STR(address("", 0), "error");
    CHECK_STR(address("a:0", 0), "error");
    CHECK_STR(address("a:70000", 0), "error");
    CHECK_STR(address("a:b", 0), "error");
    CHECK_STR(address("[::1", 0), "error");
    CHECK_STR(address("unix:relative", 0), "error");
}

TEST(a_password_in_an_address_is_refused_and_not_repeated)
{
    CHECK_STR(address("redis://user:geheim@host:1", 0), "error");
    CHECK(strstr(tsr_errmsg(), "geheim") == NULL);
    CHECK_HAS(tsr_errmsg(), "redis_password");
}

TEST(redirections_are_understood_and_nonsense_is_not)
{
    uint32_t slot;
    char to[TSRI_REDIS_ADDRESS_BYTES];
    CHECK(tsri_redis_redirect("MOVED 3999 127.0.0.1:6381", "x:1", &slot, to));
    CHECK_INT(slot, 3999);
    CHECK_STR(to, "127.0.0.1:6381");
    CHECK(tsri_redis_redirect("ASK 1 :6381", "host:1", &slot, to));
    CHECK_STR(to, "host:6381");
    CHECK(tsri_redis_redirect("MOVED 0 ::1:6381", "x:1", &slot, to));
    CHECK_STR(to, "[::1]:6381");
    CHECK(!tsri_redis_redirect("MOVED 16384 a:1", "x:1", &slot, to));
    CHECK(!tsri_redis_redirect("MOVED a:1", "x:1", &slot, to));
    CHECK(!tsri_redis_redirect("MOVED 1 a", "x:1", &slot, to));
    CHECK(!tsri_redis_redirect("MOVED 1 a:x", "x:1", &slot, to));
    CHECK(!tsri_redis_redirect("ERR", "x:1", &slot, to));
    char text[400] = "MOVED 1 ";
    memset(text + 8, 'h', 300);
    memcpy(text + 308, ":1", 3);
    CHECK(!tsri_redis_redirect(text, "x:1", &slot, to));
}

int main(void)
{
    RUN(names_carry_prefix_space_key_nonce_and_part);
    RUN(slots_are_those_of_the_specification);
    RUN(record_and_parts_have_one_slot);
    RUN(addresses_are_read_in_their_usual_forms);
    RUN(a_password_in_an_address_is_refused_and_not_repeated);
    RUN(redirections_are_understood_and_nonsense_is_not);
    return test_end();
}
