/* http_address.c - where the page may be reached and under which names. Addresses are numbers: a
 * name could resolve to something else tomorrow. */
#include "daemon/daemon.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#define ADDRESS_MAX 64

/* Cuts "address:port" or "[address]:port" in two; the port may be missing. */
static bool cut(char *text, char **address, char **port)
{
    char *end;
    *address = text;
    if (*text == '[') {
        *address = text + 1;
        end = strchr(text, ']');
        if (!end) return false;
        *end++ = 0;
    } else {
        end = text + strcspn(text, ":");
    }
    if (*end && *end != ':') return false;
    *port = *end ? end + 1 : end;
    *end = 0;
    return true;
}

static bool parse_port(const char *text, uint16_t *out)
{
    char *end;
    unsigned long port = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || port > 65535) return false;
    *out = (uint16_t)port;
    return true;
}

int tsri_http_address(const char *text, struct sockaddr_storage *out)
{
    char copy[ADDRESS_MAX], *address, *port_text;
    uint16_t port;
    size_t n = strlen(text);
    memset(out, 0, sizeof *out);
    if (n >= sizeof copy) return tsri_fail(TSR_ECONFIG, "http_listen: too long");
    memcpy(copy, text, n + 1);
    if (cut(copy, &address, &port_text) && parse_port(port_text, &port)) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
        if (*text != '[' && inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = htons(port);
            return 0;
        }
        if (*text == '[' && inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons(port);
            return 0;
        }
    }
    return tsri_fail(
        TSR_ECONFIG,
        "http_listen: \"%s\" is not an address like 127.0.0.1:7464 or [::1]:7464, nor off", text);
}

bool tsri_http_is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    return address->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

bool tsri_http_host_is_fine(const char *host)
{
    char copy[ADDRESS_MAX], *address, *port;
    struct in_addr v4;
    struct in6_addr v6;
    size_t n = host ? strlen(host) : sizeof copy;
    if (n >= sizeof copy) return false;
    memcpy(copy, host, n + 1);
    uint16_t number;
    if (!cut(copy, &address, &port) || (*port && !parse_port(port, &number))) return false;
    if (*host == '[') return inet_pton(AF_INET6, address, &v6) == 1;
    return strcmp(address, "localhost") == 0 || inet_pton(AF_INET, address, &v4) == 1;
}
