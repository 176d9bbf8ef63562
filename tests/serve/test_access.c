/* test_access.c - who may ask. */
#include "serve/access.h"

#include "support/test.h"

TEST(only_the_own_origin_may_send_from_a_page)
{
    CHECK(tsri_origin_is_fine(NULL, "127.0.0.1:7465"));
    CHECK(tsri_origin_is_fine("http://127.0.0.1:7465", "127.0.0.1:7465"));
    CHECK(tsri_origin_is_fine("http://LOCALHOST:7465", "localhost:7465"));
    CHECK(!tsri_origin_is_fine("http://127.0.0.1:7466", "127.0.0.1:7465"));
    CHECK(!tsri_origin_is_fine("https://127.0.0.1:7465", "127.0.0.1:7465"));
    CHECK(!tsri_origin_is_fine("http://127.0.0.1:7465.evil.example", "127.0.0.1:7465"));
    CHECK(!tsri_origin_is_fine("null", "127.0.0.1:7465"));
    CHECK(!tsri_origin_is_fine("", "127.0.0.1:7465"));
    CHECK(!tsri_origin_is_fine("http://127.0.0.1:7465", NULL));
}

TEST(only_the_whole_token_is_a_key)
{
    CHECK(tsri_bearer_is_fine("Bearer 0123456789abcdef", "0123456789abcdef"));
    CHECK(tsri_bearer_is_fine("bearer  0123456789abcdef", "0123456789abcdef"));
    CHECK(!tsri_bearer_is_fine("Bearer 0123456789abcde", "0123456789abcdef"));
    CHECK(!tsri_bearer_is_fine("Bearer 0123456789abcdef0", "0123456789abcdef"));
    CHECK(!tsri_bearer_is_fine("Bearer ", "0123456789abcdef"));
    CHECK(!tsri_bearer_is_fine("Basic 0123456789abcdef", "0123456789abcdef"));
    CHECK(!tsri_bearer_is_fine(NULL, "0123456789abcdef"));
}

TEST(tokens_are_random_and_long)
{
    char one[TSRI_TOKEN_BYTES], other[TSRI_TOKEN_BYTES];
    CHECK(tsri_token_make(one) && tsri_token_make(other));
    CHECK_INT(strlen(one), 32);
    CHECK(strcmp(one, other) != 0);
    CHECK(tsri_token_is_fine(one));
    CHECK(!tsri_token_is_fine("short"));
    CHECK(!tsri_token_is_fine("with a space in it"));
    CHECK(!tsri_token_is_fine(""));
}

int main(void)
{
    RUN(only_the_own_origin_may_send_from_a_page);
    RUN(only_the_whole_token_is_a_key);
    RUN(tokens_are_random_and_long);
    return test_end();
}
