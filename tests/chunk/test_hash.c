/* Token hashes, keys, and the canonical bytes of extras. */
#include "chunk/chunk.h"
#include "support/golden.h"
#include "support/test.h"

#include <xxhash.h>

static void fill_tokens(uint32_t *tokens, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i * 2654435761u + seed;
}

TEST(token_hashes_are_the_golden_ones)
{
    static uint32_t tokens[32768];
    struct golden g;
    golden_init(&g, "keys.txt");
    int n = 0;
    for (; golden_next(&g, "tokens"); n++) {
        uint32_t n_tokens = golden_u32(&g, 0);
        CHECK(n_tokens <= TSRI_COUNT(tokens));
        fill_tokens(tokens, n_tokens, golden_u32(&g, 1));
        struct tsri_key got = tsri_tokens_hash(tokens, n_tokens);
        CHECK(golden_same(&g, 2, &got, sizeof got));
    }
    golden_fini(&g);
    CHECK(n >= 10);
}

TEST(keys_are_the_golden_ones)
{
    struct golden g;
    golden_init(&g, "keys.txt");
    int n = 0;
    for (; golden_next(&g, "key"); n++) {
        struct tsri_key_parts p = {.kind = golden_u32(&g, 0), .n_tokens = golden_u32(&g, 1)};
        CHECK_INT(golden_bytes(&g, 2, p.space, 16), 16);
        CHECK_INT(golden_bytes(&g, 3, p.digest.bytes, 32), 32);
        CHECK_INT(golden_bytes(&g, 4, (uint8_t *)&p.extra, 16), 16);
        CHECK_INT(golden_bytes(&g, 5, (uint8_t *)&p.tokens, 16), 16);
        struct tsri_key got = tsri_key_make(&p);
        CHECK(golden_same(&g, 6, &got, sizeof got));
    }
    golden_fini(&g);
    CHECK(n >= 5);
}

TEST(a_change_of_any_byte_of_the_parts_changes_the_key)
{
    struct tsri_key_parts p;
    memset(&p, 0x5a, sizeof p);
    struct tsri_key base = tsri_key_make(&p);
    for (size_t i = 0; i < sizeof p; i++) {
        ((uint8_t *)&p)[i] ^= 1;
        CHECK(!tsri_key_equal(tsri_key_make(&p), base));
        ((uint8_t *)&p)[i] ^= 1;
    }
    CHECK(tsri_key_equal(tsri_key_make(&p), base));
}

TEST(a_change_of_any_token_or_of_their_number_changes_the_hash)
{
    enum { N = 600 };
    uint32_t tokens[N + 1];
    fill_tokens(tokens, N, 3);
    tokens[N] = 0;
    struct tsri_key base = tsri_tokens_hash(tokens, N);
    for (int i = 0; i < N; i++) {
        tokens[i] ^= 1;
        CHECK(!tsri_key_equal(tsri_tokens_hash(tokens, N), base));
        tokens[i] ^= 1;
    }
    CHECK(!tsri_key_equal(tsri_tokens_hash(tokens, N - 1), base));
    CHECK(!tsri_key_equal(tsri_tokens_hash(tokens, N + 1), base));
}

/* ---- extra ---- */

#define SALT(text) \
    { \
        .kind = TSR_EXTRA_SALT, .bytes = (uint32_t)strlen(text), .data = (text) \
    }
#define ADAPTER(text) \
    { \
        .kind = TSR_EXTRA_ADAPTER, .bytes = (uint32_t)strlen(text), .data = (text) \
    }
#define MEDIA(at, n, text) \
    { \
        .kind = TSR_EXTRA_MEDIA, .offset = (at), .n_tokens = (n), .bytes = (uint32_t)strlen(text), \
        .data = (text) \
    }

static const struct tsr_range range_100 = {100, 100};

TEST(encoded_extras_are_the_golden_ones)
{
    struct golden g;
    golden_init(&g, "keys.txt");
    int n = 0;
    for (; golden_next(&g, "extra"); n++) {
        static uint8_t data[8][512];
        struct tsr_extra items[8];
        struct tsr_range range = {golden_u32(&g, 0), golden_u32(&g, 1)};
        uint32_t n_items = g.n_fields - 4;
        CHECK(n_items <= 8);
        for (uint32_t i = 0; i < n_items; i++) {
            char hex[1100];
            CHECK_INT(sscanf(g.fields[2 + i], "%u:%u:%u:%1099s", &items[i].kind, &items[i].offset,
                             &items[i].n_tokens, hex),
                      4);
            items[i].bytes = (uint32_t)golden_hex(hex, data[i], sizeof data[i]);
            items[i].data = data[i];
        }
        CHECK_INT(tsri_extra_check(items, n_items, 1000), 0);
        uint8_t bytes[TSRI_EXTRA_BYTES_MAX];
        int got = tsri_extra_encode(items, n_items, range, bytes);
        CHECK(golden_same(&g, g.n_fields - 2, bytes, (size_t)got));
        struct tsri_key hash = tsri_extra_hash(bytes, (size_t)got);
        CHECK(golden_same(&g, g.n_fields - 1, &hash, sizeof hash));
    }
    golden_fini(&g);
    CHECK(n >= 8);
}

static struct tsri_key extra_key(const struct tsr_extra *items, uint32_t n, struct tsr_range range)
{
    uint8_t bytes[TSRI_EXTRA_BYTES_MAX];
    CHECK_INT(tsri_extra_check(items, n, 1000), 0);
    int got = tsri_extra_encode(items, n, range, bytes);
    CHECK(got >= 0);
    struct tsri_key_parts p = {.kind = TSR_KIND_PREFIX, .n_tokens = range.n_tokens};
    p.extra = tsri_extra_hash(bytes, (size_t)got);
    return tsri_key_make(&p);
}

TEST(requests_that_differ_in_image_adapter_or_salt_never_share_a_key)
{
    const struct tsr_extra sets[][3] = {
        {{0}},
        {SALT("a")},
        {SALT("b")},
        {SALT("ab")},
        {ADAPTER("a")},
        {ADAPTER("b")},
        {ADAPTER("a"), SALT("a")},
        {ADAPTER("a"), SALT("b")},
        {ADAPTER("b"), SALT("a")},
        {SALT("a"), SALT("a")},
        {SALT("a"), SALT("b")},
        {MEDIA(110, 10, "cat")},
        {MEDIA(110, 10, "dog")},
        {MEDIA(111, 10, "cat")},
        {MEDIA(110, 11, "cat")},
        {MEDIA(90, 30, "cat")},
        {MEDIA(110, 10, "cat"), MEDIA(150, 10, "dog")},
        {MEDIA(110, 10, "dog"), MEDIA(150, 10, "cat")},
        {MEDIA(110, 10, "cat"), MEDIA(150, 10, "dog"), SALT("a")},
        {MEDIA(110, 10, "cat"), SALT("a")},
        {MEDIA(110, 10, "cat"), ADAPTER("a")},
        {MEDIA(110, 10, "catd"), MEDIA(150, 10, "og")},
    };
    struct tsri_key keys[TSRI_COUNT(sets)];
    for (size_t i = 0; i < TSRI_COUNT(sets); i++) {
        uint32_t n = 0;
        while (n < 3 && sets[i][n].kind)
            n++;
        keys[i] = extra_key(sets[i], n, range_100);
        for (size_t j = 0; j < i; j++)
            CHECK(!tsri_key_equal(keys[i], keys[j]));
    }
}

TEST(bytes_that_look_like_another_item_are_still_data)
{
    /* One salt whose data ends with what an adapter's item would be, against both. */
    const char inside[] = {'s', 1, 1, 0, 'a'};
    struct tsr_extra one[] = {{.kind = TSR_EXTRA_SALT, .bytes = sizeof inside, .data = inside}};
    struct tsr_extra two[] = {SALT("s"), ADAPTER("a")};
    CHECK(!tsri_key_equal(extra_key(one, 1, range_100), extra_key(two, 2, range_100)));
}

TEST(the_order_of_extras_does_not_matter)
{
    const struct tsr_extra items[] = {ADAPTER("a"),
                                      SALT("x"),
                                      SALT("y"),
                                      MEDIA(100, 5, "cat"),
                                      MEDIA(100, 5, "dog"),
                                      MEDIA(100, 6, "a"),
                                      MEDIA(150, 5, "bird"),
                                      MEDIA(199, 3, "last")};
    enum { N = TSRI_COUNT(items) };
    struct tsri_key base = extra_key(items, N, range_100);
    uint64_t seed = 11;
    for (int round = 0; round < 500; round++) {
        struct tsr_extra shuffled[N];
        memcpy(shuffled, items, sizeof items);
        for (uint32_t i = N - 1; i > 0; i--) {
            uint32_t j = (uint32_t)(test_rand(&seed) % (i + 1));
            struct tsr_extra t = shuffled[i];
            shuffled[i] = shuffled[j];
            shuffled[j] = t;
        }
        CHECK(tsri_key_equal(extra_key(shuffled, N, range_100), base));
    }
}

TEST(only_media_that_overlap_a_range_matter_to_it)
{
    const struct tsr_extra outside[] = {MEDIA(0, 100, "before"), MEDIA(200, 1, "after")};
    const struct tsr_extra edges[] = {MEDIA(0, 101, "before"), MEDIA(199, 2, "after")};
    uint8_t bytes[TSRI_EXTRA_BYTES_MAX];
    CHECK_INT(tsri_extra_encode(outside, 2, range_100, bytes), 0);
    CHECK(!tsri_extra_has_media(outside, 2, range_100));
    struct tsri_key none = tsri_extra_hash(bytes, 0);
    CHECK(none.lo == 0 && none.hi == 0);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(tsri_extra_has_media(&edges[i], 1, range_100));
        CHECK(tsri_extra_encode(&edges[i], 1, range_100, bytes) > 0);
    }
    const struct tsr_extra salt[] = {SALT("a")};
    CHECK(!tsri_extra_has_media(salt, 1, range_100));
    CHECK(tsri_extra_encode(salt, 1, range_100, bytes) > 0);
}

TEST(an_empty_range_gets_the_request_wide_items_alone)
{
    const struct tsr_extra items[] = {SALT("a"), MEDIA(0, 500, "cat")};
    uint8_t alone[TSRI_EXTRA_BYTES_MAX], bytes[TSRI_EXTRA_BYTES_MAX];
    int n = tsri_extra_encode(items, 1, range_100, alone);
    for (uint32_t at = 0; at <= 500; at += 250) {
        struct tsr_range empty = {at, 0};
        CHECK(!tsri_extra_has_media(items, 2, empty));
        CHECK_INT(tsri_extra_encode(items, 2, empty, bytes), n);
        CHECK(memcmp(bytes, alone, (size_t)n) == 0);
    }
}

TEST(the_same_image_at_the_same_place_in_a_chunk_encodes_the_same_anywhere)
{
    const struct tsr_extra here[] = {MEDIA(110, 10, "cat")}, there[] = {MEDIA(510, 10, "cat")};
    struct tsri_key a = extra_key(here, 1, range_100);
    CHECK(tsri_key_equal(a, extra_key(there, 1, (struct tsr_range){500, 100})));
    CHECK(!tsri_key_equal(a, extra_key(there, 1, (struct tsr_range){499, 100})));
}

TEST(the_second_block_of_an_image_differs_from_the_first)
{
    const struct tsr_extra image[] = {MEDIA(100, 200, "cat")};
    struct tsri_key first = extra_key(image, 1, range_100);
    CHECK(!tsri_key_equal(first, extra_key(image, 1, (struct tsr_range){200, 100})));
}

TEST(a_bad_extra_is_refused_by_its_number)
{
    const struct {
        struct tsr_extra item;
        int err;
        const char *says;
    } bad[] = {
        {{.kind = 0, .bytes = 1, .data = "x"}, TSR_EINVAL, "extra 1: unknown kind 0"},
        {{.kind = 4, .bytes = 1, .data = "x"}, TSR_EINVAL, "extra 1: unknown kind 4"},
        {{.kind = TSR_EXTRA_SALT, .bytes = 1}, TSR_EINVAL, "extra 1: no data"},
        {{.kind = TSR_EXTRA_SALT, .data = "x"}, TSR_EINVAL, "extra 1: no data"},
        {{TSR_EXTRA_SALT, 1, 0, 1, "x"}, TSR_EINVAL, "extra 1: only media"},
        {{TSR_EXTRA_ADAPTER, 0, 1, 1, "x"}, TSR_EINVAL, "extra 1: only media"},
        {MEDIA(5, 0, "x"), TSR_EINVAL, "extra 1: media without tokens"},
        {MEDIA(1000, 1, "x"), TSR_EINVAL, "extra 1: media at token 1000 + 1"},
        {MEDIA(999, 2, "x"), TSR_EINVAL, "the prompt has 1000"},
        {MEDIA(1, UINT32_MAX, "x"), TSR_EINVAL, "extra 1: media at"},
        {{TSR_EXTRA_SALT, 0, 0, 5000, "x"}, TSR_ERANGE, "extra 1: 5000 bytes"},
    };
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        struct tsr_extra items[] = {SALT("fine"), bad[i].item};
        CHECK_INT(tsri_extra_check(items, 2, 1000), bad[i].err);
        CHECK_HAS(tsr_errmsg(), bad[i].says);
    }
    CHECK_INT(tsri_extra_check(NULL, 1, 1000), TSR_EINVAL);
    CHECK_INT(tsri_extra_check(NULL, 0, 0), 0);
}

TEST(extras_up_to_the_limits_encode_and_beyond_them_are_refused)
{
    static uint8_t data[TSRI_EXTRA_BYTES_MAX];
    uint8_t out[TSRI_EXTRA_BYTES_MAX];
    struct tsr_extra full = {TSR_EXTRA_SALT, 0, 0, TSRI_EXTRA_BYTES_MAX - 4, data};
    CHECK_INT(tsri_extra_check(&full, 1, 1000), 0);
    CHECK_INT(tsri_extra_encode(&full, 1, range_100, out), TSRI_EXTRA_BYTES_MAX);
    full.bytes++;
    CHECK_INT(tsri_extra_check(&full, 1, 1000), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "4097 bytes encoded, limit 4096");

    struct tsr_extra many[TSRI_EXTRA_ITEMS_MAX + 1];
    for (uint32_t i = 0; i <= TSRI_EXTRA_ITEMS_MAX; i++)
        many[i] = (struct tsr_extra){TSR_EXTRA_MEDIA, 199 - i % 100, 1, 1, data};
    CHECK_INT(tsri_extra_check(many, TSRI_EXTRA_ITEMS_MAX, 1000), 0);
    CHECK_INT(tsri_extra_encode(many, TSRI_EXTRA_ITEMS_MAX, range_100, out),
              1 + 12 * TSRI_EXTRA_ITEMS_MAX);
    CHECK_INT(tsri_extra_check(many, TSRI_EXTRA_ITEMS_MAX + 1, 1000), TSR_ERANGE);
    CHECK_INT(tsri_extra_check(many, 1, UINT32_MAX), TSR_ERANGE);
}

TEST(images_named_by_32_bytes_fit_95_times)
{
    static const uint8_t hash[32] = {1};
    struct tsr_extra images[96];
    for (uint32_t i = 0; i < 96; i++)
        images[i] = (struct tsr_extra){TSR_EXTRA_MEDIA, i * 10, 10, 32, hash};
    CHECK_INT(tsri_extra_check(images, 95, 1000), 0);
    CHECK_INT(tsri_extra_check(images, 96, 1000), TSR_ERANGE);
}

TEST(an_encoding_tells_whether_it_names_media)
{
    uint8_t bytes[TSRI_EXTRA_BYTES_MAX];
    /* The data of the others hold the number of the kind, too. */
    struct tsr_extra items[] = {{TSR_EXTRA_SALT, 0, 0, 3, "\3\3\3"},
                                {TSR_EXTRA_ADAPTER, 0, 0, 300, NULL},
                                {TSR_EXTRA_MEDIA, 10, 4, 5, "image"}};
    uint8_t adapter[300];
    memset(adapter, 3, sizeof adapter);
    items[1].data = adapter;
    for (uint32_t n = 0; n <= 3; n++) {
        int length = tsri_extra_encode(items, n, (struct tsr_range){0, 100}, bytes);
        CHECK_INT(tsri_extra_holds_media(bytes, (size_t)length), n == 3);
    }
    int length = tsri_extra_encode(items, 3, (struct tsr_range){20, 100}, bytes);
    CHECK(!tsri_extra_holds_media(bytes, (size_t)length));
}

/* Files and other machines have it: it must be XXH3-64, whichever way it is computed. */
TEST(the_hash_of_bytes_is_xxh3)
{
    uint8_t bytes[3000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n <= sizeof bytes; n += n < 300 ? 1 : 100)
        CHECK(tsri_bytes_hash(bytes, n) == XXH3_64bits(bytes, n));
}

int main(void)
{
    RUN(token_hashes_are_the_golden_ones);
    RUN(keys_are_the_golden_ones);
    RUN(a_change_of_any_byte_of_the_parts_changes_the_key);
    RUN(a_change_of_any_token_or_of_their_number_changes_the_hash);
    RUN(encoded_extras_are_the_golden_ones);
    RUN(requests_that_differ_in_image_adapter_or_salt_never_share_a_key);
    RUN(bytes_that_look_like_another_item_are_still_data);
    RUN(the_order_of_extras_does_not_matter);
    RUN(only_media_that_overlap_a_range_matter_to_it);
    RUN(an_empty_range_gets_the_request_wide_items_alone);
    RUN(the_same_image_at_the_same_place_in_a_chunk_encodes_the_same_anywhere);
    RUN(the_second_block_of_an_image_differs_from_the_first);
    RUN(a_bad_extra_is_refused_by_its_number);
    RUN(extras_up_to_the_limits_encode_and_beyond_them_are_refused);
    RUN(images_named_by_32_bytes_fit_95_times);
    RUN(an_encoding_tells_whether_it_names_media);
    RUN(the_hash_of_bytes_is_xxh3);
    return test_end();
}
