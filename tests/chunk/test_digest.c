/* Chains, contexts and recipes. */
#include "chunk/chunk.h"
#include "support/golden.h"
#include "support/test.h"

#include <openssl/sha.h>

static void fill_tokens(uint32_t *tokens, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i * 2654435761u + seed;
}

static enum tsri_hash hash_named(const char *name)
{
    return strcmp(name, "xxh3") == 0 ? TSRI_HASH_XXH3 : TSRI_HASH_SHA256;
}

static bool is_zero(const struct tsri_digest *d)
{
    const struct tsri_digest zero = {{0}};
    return tsri_digest_equal(d, &zero);
}

TEST(chains_are_the_golden_ones)
{
    uint32_t tokens[1024];
    struct golden g;
    golden_init(&g, "keys.txt");
    int n = 0;
    for (; golden_next(&g, "chain"); n++) {
        enum tsri_hash h = hash_named(g.fields[0]);
        uint32_t size = golden_u32(&g, 1), n_tokens = golden_u32(&g, 2), field = 5;
        uint8_t extra[256];
        size_t extra_bytes = golden_bytes(&g, 4, extra, sizeof extra);
        fill_tokens(tokens, n_tokens, golden_u32(&g, 3));
        struct tsri_digest d;
        tsri_digest_root(h, &d);
        CHECK(golden_same(&g, field++, d.bytes, sizeof d.bytes));
        for (uint32_t at = 0, i = 0; at < n_tokens; at += size, i++) {
            uint32_t count = tsri_min_u32(size, n_tokens - at);
            tsri_digest_next(h, &d, tokens + at, count, extra, i % 2 ? extra_bytes : 0, &d);
            CHECK(golden_same(&g, field++, d.bytes, sizeof d.bytes));
        }
        CHECK_INT(field, g.n_fields);
    }
    golden_fini(&g);
    CHECK_INT(n, 8);
}

/* The last bytes fill a block of the hash, leave room for its padding, or leave too little. */
TEST(blocks_of_any_length_are_hashed_as_the_format_says)
{
    uint32_t tokens[600];
    uint8_t bytes[48 + 3 + sizeof tokens] = "tsr.blk\1";
    fill_tokens(tokens, 600, 7);
    struct tsri_digest d, parent, want;
    tsri_digest_root(TSRI_HASH_SHA256, &parent);
    memcpy(bytes + 8, parent.bytes, sizeof parent.bytes);
    for (uint32_t extra_bytes = 0; extra_bytes <= 3; extra_bytes += 3)
        for (uint32_t n = 1; n <= 600; n++) {
            memcpy(bytes + 40, &n, 4);
            memcpy(bytes + 44, &extra_bytes, 4);
            memcpy(bytes + 48, "cat", extra_bytes);
            memcpy(bytes + 48 + extra_bytes, tokens, n * sizeof tokens[0]);
            SHA256(bytes, 48 + extra_bytes + n * sizeof tokens[0], want.bytes);
            tsri_digest_next(TSRI_HASH_SHA256, &parent, tokens, n, (const uint8_t *)"cat",
                             extra_bytes, &d);
            CHECK(tsri_digest_equal(&d, &want));
        }
}

TEST(contexts_and_recipes_are_the_golden_ones)
{
    uint32_t tokens[500];
    struct tsri_digest d;
    struct golden g;
    int n = 0;
    golden_init(&g, "keys.txt");
    for (; golden_next(&g, "context"); n++) {
        fill_tokens(tokens, golden_u32(&g, 1), golden_u32(&g, 2));
        tsri_digest_context(hash_named(g.fields[0]), tokens, golden_u32(&g, 1), &d);
        CHECK(golden_same(&g, 3, d.bytes, sizeof d.bytes));
    }
    golden_fini(&g);
    golden_init(&g, "keys.txt");
    for (; golden_next(&g, "recipe"); n++) {
        uint8_t bytes[256];
        size_t n_bytes = golden_bytes(&g, 1, bytes, sizeof bytes);
        tsri_digest_recipe(hash_named(g.fields[0]), n_bytes ? bytes : NULL, n_bytes, &d);
        CHECK(golden_same(&g, 2, d.bytes, sizeof d.bytes));
    }
    golden_fini(&g);
    CHECK_INT(n, 14);
}

TEST(equal_blocks_behind_different_parents_never_share)
{
    uint32_t a[16], b[16], same[16];
    fill_tokens(a, 16, 1);
    fill_tokens(b, 16, 2);
    fill_tokens(same, 16, 3);
    for (enum tsri_hash h = TSRI_HASH_SHA256; h <= TSRI_HASH_XXH3; h++) {
        struct tsri_digest behind_a, behind_b, chain_a, chain_b;
        tsri_digest_root(h, &behind_a);
        behind_b = behind_a;
        tsri_digest_next(h, &behind_a, a, 16, NULL, 0, &behind_a);
        tsri_digest_next(h, &behind_b, b, 16, NULL, 0, &behind_b);
        CHECK(!tsri_digest_equal(&behind_a, &behind_b));
        struct tsri_key_parts p = {.kind = TSR_KIND_PREFIX, .n_tokens = 16};
        p.tokens = tsri_tokens_hash(same, 16);
        p.digest = behind_a;
        struct tsri_key key_a = tsri_key_make(&p);
        p.digest = behind_b;
        CHECK(!tsri_key_equal(key_a, tsri_key_make(&p)));
        tsri_digest_next(h, &behind_a, same, 16, NULL, 0, &chain_a);
        tsri_digest_next(h, &behind_b, same, 16, NULL, 0, &chain_b);
        CHECK(!tsri_digest_equal(&chain_a, &chain_b));
    }
}

TEST(extras_of_an_earlier_block_reach_every_later_digest)
{
    uint32_t tokens[32];
    fill_tokens(tokens, 32, 1);
    for (enum tsri_hash h = TSRI_HASH_SHA256; h <= TSRI_HASH_XXH3; h++) {
        struct tsri_digest cat, dog, none;
        tsri_digest_root(h, &cat);
        dog = none = cat;
        tsri_digest_next(h, &cat, tokens, 16, (const uint8_t *)"cat", 3, &cat);
        tsri_digest_next(h, &dog, tokens, 16, (const uint8_t *)"dog", 3, &dog);
        tsri_digest_next(h, &none, tokens, 16, NULL, 0, &none);
        tsri_digest_next(h, &cat, tokens + 16, 16, NULL, 0, &cat);
        tsri_digest_next(h, &dog, tokens + 16, 16, NULL, 0, &dog);
        tsri_digest_next(h, &none, tokens + 16, 16, NULL, 0, &none);
        CHECK(!tsri_digest_equal(&cat, &dog));
        CHECK(!tsri_digest_equal(&cat, &none));
        CHECK(!tsri_digest_equal(&dog, &none));
    }
}

TEST(what_is_extra_and_what_is_tokens_cannot_be_confused)
{
    /* The same bytes in the same order, cut between extra and tokens at different places. */
    uint32_t words[4] = {1, 2, 3, 4};
    for (enum tsri_hash h = TSRI_HASH_SHA256; h <= TSRI_HASH_XXH3; h++) {
        struct tsri_digest root, cut[4];
        tsri_digest_root(h, &root);
        for (uint32_t i = 0; i < 4; i++) {
            tsri_digest_next(h, &root, words + i, 4 - i, (const uint8_t *)words, i * 4, &cut[i]);
            for (uint32_t j = 0; j < i; j++)
                CHECK(!tsri_digest_equal(&cut[i], &cut[j]));
        }
    }
}

TEST(one_block_is_not_two_halves)
{
    uint32_t tokens[32];
    fill_tokens(tokens, 32, 1);
    for (enum tsri_hash h = TSRI_HASH_SHA256; h <= TSRI_HASH_XXH3; h++) {
        struct tsri_digest whole, halves;
        tsri_digest_root(h, &whole);
        halves = whole;
        tsri_digest_next(h, &whole, tokens, 32, NULL, 0, &whole);
        tsri_digest_next(h, &halves, tokens, 16, NULL, 0, &halves);
        tsri_digest_next(h, &halves, tokens + 16, 16, NULL, 0, &halves);
        CHECK(!tsri_digest_equal(&whole, &halves));
    }
}

TEST(a_chain_can_be_continued_from_any_stored_digest)
{
    uint32_t tokens[64];
    fill_tokens(tokens, 64, 1);
    struct tsri_digest all[5], again;
    tsri_digest_root(TSRI_HASH_SHA256, &all[0]);
    for (uint32_t i = 0; i < 4; i++)
        tsri_digest_next(TSRI_HASH_SHA256, &all[i], tokens + 16 * i, 16, NULL, 0, &all[i + 1]);
    again = all[2];
    tsri_digest_next(TSRI_HASH_SHA256, &again, tokens + 32, 16, NULL, 0, &again); /* in place */
    CHECK(tsri_digest_equal(&again, &all[3]));
}

TEST(a_pure_context_is_all_zero_and_no_other_digest_is)
{
    uint32_t tokens[4] = {0, 0, 0, 0};
    for (enum tsri_hash h = TSRI_HASH_SHA256; h <= TSRI_HASH_XXH3; h++) {
        struct tsri_digest d;
        memset(&d, 0xff, sizeof d);
        tsri_digest_context(h, NULL, 0, &d);
        CHECK(is_zero(&d));
        tsri_digest_root(h, &d);
        CHECK(!is_zero(&d));
        for (uint32_t n = 1; n <= 4; n++) {
            tsri_digest_context(h, tokens, n, &d);
            CHECK(!is_zero(&d));
        }
        tsri_digest_recipe(h, NULL, 0, &d);
        CHECK(!is_zero(&d));
    }
}

TEST(a_context_a_recipe_and_a_block_of_the_same_bytes_differ)
{
    uint32_t tokens[8];
    fill_tokens(tokens, 8, 1);
    struct tsri_digest d[6], root;
    for (enum tsri_hash h = TSRI_HASH_SHA256; h <= TSRI_HASH_XXH3; h++) {
        struct tsri_digest *at = d + 3 * h;
        tsri_digest_context(h, tokens, 8, &at[0]);
        tsri_digest_recipe(h, tokens, sizeof tokens, &at[1]);
        tsri_digest_root(h, &root);
        tsri_digest_next(h, &root, tokens, 8, NULL, 0, &at[2]);
    }
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++)
            CHECK(!tsri_digest_equal(&d[i], &d[j]));
}

int main(void)
{
    RUN(chains_are_the_golden_ones);
    RUN(blocks_of_any_length_are_hashed_as_the_format_says);
    RUN(contexts_and_recipes_are_the_golden_ones);
    RUN(equal_blocks_behind_different_parents_never_share);
    RUN(extras_of_an_earlier_block_reach_every_later_digest);
    RUN(what_is_extra_and_what_is_tokens_cannot_be_confused);
    RUN(one_block_is_not_two_halves);
    RUN(a_chain_can_be_continued_from_any_stored_digest);
    RUN(a_pure_context_is_all_zero_and_no_other_digest_is);
    RUN(a_context_a_recipe_and_a_block_of_the_same_bytes_differ);
    return test_end();
}
