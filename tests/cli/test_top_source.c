/* test_top_source.c - which server is meant, and the replies of one that speaks HTTP; that both ways
 * reach a real server is in test_cmd_top.sh. */
#include "cli/top.h"

#include "support/test.h"

TEST(addresses_are_host_and_port)
{
    static const struct {
        const char *url, *host, *port;
    } good[] = {
        {"http://127.0.0.1:7464", "127.0.0.1", "7464"},
        {"http://localhost:80/", "localhost", "80"},
        {"http://[::1]:7465/metrics", "::1", "7465"},
    };
    static const char *const bad[] = {"",
                                      "127.0.0.1:7464",
                                      "https://a:1",
                                      "http://",
                                      "http://a",
                                      "http://:80",
                                      "http://a:",
                                      "http://a:b",
                                      "http://a:1b",
                                      "http://[::1:1",
                                      "http://a:123456",
                                      "http://a b:1",
                                      "http://a@b:1"};
    char host[256], port[8];
    for (size_t i = 0; i < TSRI_COUNT(good); i++) {
        CHECK(tsri_top_url_parse(good[i].url, host, port));
        CHECK_STR(host, good[i].host);
        CHECK_STR(port, good[i].port);
    }
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        CHECK(!tsri_top_url_parse(bad[i], host, port));
}

TEST(a_host_that_is_too_long_is_refused)
{
    char url[400] = "http://", host[256], port[8];
    memset(url + 7, 'a', 256);
    strcpy(url + 7 + 256, ":1");
    CHECK(!tsri_top_url_parse(url, host, port));
    strcpy(url + 7 + 255, ":1");
    CHECK(tsri_top_url_parse(url, host, port));
}

TEST(a_reply_has_a_status_and_a_body)
{
    static const char reply[] = "HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}",
                      refusal[] = "HTTP/1.0 401 x\r\n\r\n";
    int status = 0;
    size_t n = 99;
    const char *body = tsri_top_http_body(reply, sizeof reply - 1, &status, &n);
    CHECK(body && n == 2 && status == 200 && memcmp(body, "{}", 2) == 0);
    body = tsri_top_http_body(refusal, sizeof refusal - 1, &status, &n);
    CHECK(body && n == 0 && status == 401);
}

TEST(what_is_no_reply_has_no_body)
{
    static const char *const none[] = {"",
                                       "H",
                                       "HTTP/1.1 200",
                                       "HTTP/1.1 200 OK\r\nA: b\r\n",
                                       "SSH-2.0\r\n\r\n",
                                       "HTTP/2 200\r\n\r\n",
                                       "HTTP/1.1 x\r\n\r\n",
                                       "HTTP/1.1 -12\r\n\r\n",
                                       "HTTP/1.1\r\n\r\n-8",
                                       "HTTP/1.1\r\n\r\n200"};
    int status;
    size_t n;
    for (size_t i = 0; i < TSRI_COUNT(none); i++)
        CHECK(!tsri_top_http_body(none[i], strlen(none[i]), &status, &n));
}

int main(void)
{
    RUN(addresses_are_host_and_port);
    RUN(a_host_that_is_too_long_is_refused);
    RUN(a_reply_has_a_status_and_a_body);
    RUN(what_is_no_reply_has_no_body);
    return test_end();
}
