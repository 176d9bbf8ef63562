/* test_http_address.c - addresses are numbers, loopback is told from the rest, and a Host that a
 * stranger could have made point here is refused. */
#include "daemon/daemon.h"

#include "support/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

TEST(addresses_are_numbers_with_a_port)
{
    struct sockaddr_storage a;
    CHECK_INT(tsri_http_address("127.0.0.1:7464", &a), 0);
    CHECK_INT(ntohs(((struct sockaddr_in *)&a)->sin_port), 7464);
    CHECK_INT(ntohl(((struct sockaddr_in *)&a)->sin_addr.s_addr), 0x7f000001);
    CHECK_INT(tsri_http_address("[::1]:0", &a), 0);
    CHECK_INT(a.ss_family, AF_INET6);
    static const char *const bad[] = {"",
                                      "localhost:1",
                                      "127.0.0.1",
                                      "127.0.0.1:",
                                      "127.0.0.1:65536",
                                      "127.0.0.1:-1",
                                      "::1:80",
                                      "[::1]",
                                      "[::1",
                                      "[::1]80",
                                      "[127.0.0.1]:1",
                                      "1.2.3:4",
                                      "127.0.0.1:1 ",
                                      "127.0.0.1:1:2",
                                      ":80"};
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        CHECK_INT(tsri_http_address(bad[i], &a), TSR_ECONFIG);
    char longest[200];
    memset(longest, '1', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    CHECK_INT(tsri_http_address(longest, &a), TSR_ECONFIG);
}

static bool is_loopback(const char *text)
{
    struct sockaddr_storage a;
    CHECK_INT(tsri_http_address(text, &a), 0);
    return tsri_http_is_loopback(&a);
}

TEST(loopback_is_told_from_the_rest)
{
    CHECK(is_loopback("127.0.0.1:1") && is_loopback("127.9.9.9:1") && is_loopback("[::1]:1"));
    CHECK(!is_loopback("0.0.0.0:1") && !is_loopback("[::]:1") && !is_loopback("10.0.0.1:1"));
    CHECK(!is_loopback("[::ffff:127.0.0.1]:1") && !is_loopback("[fe80::1]:1"));
}

TEST(a_host_is_an_address_or_localhost)
{
    static const char *const fine[] = {"localhost",    "localhost:7464", "127.0.0.1",
                                       "127.0.0.1:80", "[::1]",          "[::1]:7464",
                                       "10.1.2.3:7464"};
    static const char *const not_fine[] = {"",
                                           "evil.example",
                                           "evil.example:7464",
                                           "localhost.evil.example",
                                           "127.0.0.1.evil.example",
                                           "localhost:x",
                                           "[evil]",
                                           "[::1"};
    for (size_t i = 0; i < TSRI_COUNT(fine); i++)
        CHECK(tsri_http_host_is_fine(fine[i]));
    for (size_t i = 0; i < TSRI_COUNT(not_fine); i++)
        CHECK(!tsri_http_host_is_fine(not_fine[i]));
    CHECK(!tsri_http_host_is_fine(NULL));
}

int main(void)
{
    RUN(addresses_are_numbers_with_a_port);
    RUN(loopback_is_told_from_the_rest);
    RUN(a_host_is_an_address_or_localhost);
    return test_end();
}
