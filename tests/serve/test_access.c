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

static bool clear(const char *const *headers)
{
    struct tsri_head h = {0};
    for (; headers[0]; headers += 2)
        tsri_head_add(&h, headers[0], headers[1]);
    return tsri_head_is_clear(&h);
}
#define CLEAR(...) clear((const char *const[]){__VA_ARGS__, NULL})

TEST(headers_that_can_be_read_in_two_ways_are_not_clear)
{
    CHECK(CLEAR("Host", "a", "Authorization", "b", "Content-Length", "5"));
    CHECK(CLEAR("Host", "a", "Transfer-Encoding", "Chunked", "Accept", "x", "Accept", "y"));
    CHECK(!CLEAR("Content-Length", "5", "content-length", "5"));
    CHECK(!CLEAR("Content-Length", "5", "Transfer-Encoding", "chunked"));
    CHECK(!CLEAR("Transfer-Encoding", "chunked", "transfer-encoding", "chunked"));
    CHECK(!CLEAR("Transfer-Encoding", "xchunked"));
    CHECK(!CLEAR("Transfer-Encoding", "chunked, identity"));
    CHECK(!CLEAR("Transfer-Encoding", NULL));
    CHECK(!CLEAR("Content-Length ", "5"));
    CHECK(!CLEAR("Host", "a", "HOST", "b"));
    CHECK(!CLEAR("Authorization", "a", "authorization", "a"));
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
    RUN(headers_that_can_be_read_in_two_ways_are_not_clear);
    RUN(tokens_are_random_and_long);
    return test_end();
}
