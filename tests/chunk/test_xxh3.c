/* Tokens and bytes are hashed as libxxhash does, whichever loop does it on this machine. */
#include "chunk/chunk.h"
#include "support/test.h"

#include <xxhash.h>

#define BYTES_MAX 8300u

static uint8_t bytes[BYTES_MAX + 16];

static void fill(void)
{
    uint64_t x = 1;
    for (size_t i = 0; i < sizeof bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(x >> 56);
    }
}

TEST(bytes_of_any_length_and_place_have_the_hash_of_libxxhash)
{
    fill();
    for (size_t n = 0; n <= BYTES_MAX; n++) {
        const uint8_t *at = bytes + n % 16;
        CHECK(tsri_bytes_hash(at, n) == XXH3_64bits(at, n));
    }
}

TEST(tokens_of_any_number_have_the_hash_of_libxxhash)
{
    static uint32_t tokens[BYTES_MAX / 4];
    fill();
    memcpy(tokens, bytes, sizeof tokens);
    for (size_t n = 0; n < TSRI_COUNT(tokens); n++) {
        XXH128_hash_t want = XXH3_128bits(tokens, n * 4);
        CHECK(tsri_key_equal(tsri_tokens_hash(tokens, n),
                             (struct tsri_key){want.low64, want.high64}));
    }
}

/* Sums run over, and the halves of a word differ. */
TEST(bytes_that_are_all_ones_or_all_zero_have_the_hash_of_libxxhash)
{
    for (int value = 0; value <= 0xff; value += 0xff) {
        memset(bytes, value, sizeof bytes);
        for (size_t n = 200; n <= BYTES_MAX; n += 37)
            CHECK(tsri_bytes_hash(bytes, n) == XXH3_64bits(bytes, n));
    }
}

int main(void)
{
    RUN(bytes_of_any_length_and_place_have_the_hash_of_libxxhash);
    RUN(tokens_of_any_number_have_the_hash_of_libxxhash);
    RUN(bytes_that_are_all_ones_or_all_zero_have_the_hash_of_libxxhash);
    return test_end();
}
