/* Endpoints, buckets and names as URLs. */
#include "support/test.h"
#include "s3/s3.h"

static char base[TSRI_S3_BASE_BYTES];

static int make(const char *endpoint, const char *bucket, bool path_style)
{
    base[0] = '\0';
    return tsri_s3_base(base, endpoint, "eu-central-1", bucket, path_style);
}

TEST(buckets_stand_in_the_path_or_in_the_host_name)
{
    CHECK_INT(make("", "kv-cache", false), 0);
    CHECK_STR(base, "https://kv-cache.s3.eu-central-1.amazonaws.com");
    CHECK_INT(make("", "kv-cache", true), 0);
    CHECK_STR(base, "https://s3.eu-central-1.amazonaws.com/kv-cache");
    CHECK_INT(make("http://10.0.0.1:8333", "kv-cache", true), 0);
    CHECK_STR(base, "http://10.0.0.1:8333/kv-cache");
    CHECK_INT(make("https://store.example/", "kv-cache", false), 0);
    CHECK_STR(base, "https://kv-cache.store.example");
    CHECK_INT(make("store.example:9000", "kv-cache", true), 0); /* never in the clear by default */
    CHECK_STR(base, "https://store.example:9000/kv-cache");
    CHECK_INT(make("http://[::1]:8333", "kv-cache", true), 0);
    CHECK_STR(base, "http://[::1]:8333/kv-cache");
}

TEST(what_would_make_another_url_is_refused_by_name)
{
    static const char *const endpoints[] = {"http://",          "http://a b",    "http://user@host",
                                            "http://host/path", "http://host?x", "ftp://host"};
    static const char *const buckets[] = {"", "ab", "a/b/c", "a?b=c", "a b c", "kv#1"};
    for (size_t i = 0; i < TSRI_COUNT(endpoints); i++) {
        CHECK_INT(make(endpoints[i], "kv-cache", true), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), "s3_endpoint");
    }
    for (size_t i = 0; i < TSRI_COUNT(buckets); i++) {
        CHECK_INT(make("http://host", buckets[i], true), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), "s3_bucket");
    }
    CHECK_INT(tsri_s3_base(base, "", "eu/x", "kv-cache", true), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "s3_region");
    static const char *const prefixes[] = {"", "/a", "a/", "a//b", "a/../b", "a b", "a%2F"};
    for (size_t i = 0; i < TSRI_COUNT(prefixes); i++) {
        CHECK_INT(tsri_s3_check_prefix(prefixes[i]), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), "s3_prefix");
    }
    CHECK_INT(tsri_s3_check_prefix("team-a/tessera_1.0"), 0);
}

TEST(a_name_tells_its_space_and_key_and_other_names_are_none)
{
    uint8_t space[16], space2[16];
    struct tsr_key key, key2;
    for (int i = 0; i < 16; i++) {
        space[i] = (uint8_t)(i * 17);
        key.bytes[i] = (uint8_t)(255 - i * 13);
    }
    char name[TSRI_S3_NAME_BYTES];
    tsri_s3_name(name, "a/b", space, &key);
    CHECK_STR(name, "a/b/00112233445566778899aabbccddeeff/fff2e5d8cbbeb1a4978a7d706356493c");
    CHECK_INT(strlen(name), 3 + 1 + 32 + 1 + 32);
    CHECK(tsri_s3_is_entry(name, "a/b", space2, &key2));
    CHECK(memcmp(space, space2, 16) == 0);
    CHECK(memcmp(&key, &key2, sizeof key) == 0);
    CHECK(!tsri_s3_is_entry(name, "a/c", space2, &key2));
    CHECK(!tsri_s3_is_entry(name, "a", space2, &key2));
    char wrong[TSRI_S3_NAME_BYTES];
    for (size_t i = 3; name[i]; i++) {
        memcpy(wrong, name, sizeof wrong);
        wrong[i] = 'G'; /* no digit, no slash */
        CHECK(!tsri_s3_is_entry(wrong, "a/b", space2, &key2));
    }
    name[strlen(name) - 1] = '\0';
    CHECK(!tsri_s3_is_entry(name, "a/b", space2, &key2));
}

TEST(text_in_a_query_is_escaped_or_refused)
{
    char out[32];
    CHECK(tsri_s3_escape(out, sizeof out, "aZ09-_.~"));
    CHECK_STR(out, "aZ09-_.~");
    CHECK(tsri_s3_escape(out, sizeof out, "a/b=c&d \xc3\xa4"));
    CHECK_STR(out, "a%2Fb%3Dc%26d%20%C3%A4");
    CHECK(!tsri_s3_escape(out, 4, "////"));
    CHECK(!tsri_s3_escape(out, 4, "abcd"));
    CHECK(tsri_s3_escape(out, 5, "abcd"));
}

int main(void)
{
    RUN(buckets_stand_in_the_path_or_in_the_host_name);
    RUN(what_would_make_another_url_is_refused_by_name);
    RUN(a_name_tells_its_space_and_key_and_other_names_are_none);
    RUN(text_in_a_query_is_escaped_or_refused);
    return test_end();
}
