/* redis_names.c - text of the redis tier: names of keys, the slots a cluster keeps them in, and
 * addresses. Pure functions; what comes from a server or a configuration is bounded and checked. */
#include "redis/redis.h"

#include <stdio.h>
#include <stdlib.h>

#define PORT_DEFAULT 6379

void tsri_redis_name(char name[TSRI_REDIS_NAME_BYTES], const char *root, const uint8_t space[16],
                     const struct tsr_key *key, uint64_t nonce, uint32_t part)
{
    size_t n = strlen(root);
    TSR_ASSERT(n <= TSRI_REDIS_ROOT_MAX);
    memcpy(name, root, n);
    char *at = name + n;
    *at++ = ':';
    at = tsri_hex(at, space, 16);
    *at++ = ':';
    *at++ = '{';
    at = tsri_hex(at, key->bytes, sizeof key->bytes);
    *at++ = '}';
    *at = '\0';
    if (part != TSRI_REDIS_RECORD)
        snprintf(at, TSRI_REDIS_NAME_BYTES - (size_t)(at - name), ":%016llx:%u",
                 (unsigned long long)nonce, part);
}

bool tsri_redis_is_record(const char *name, size_t bytes, const char *root, uint8_t space[16],
                          struct tsr_key *key)
{
    size_t n = strlen(root);
    /* root : space : { key } */
    return bytes == n + 1 + 32 + 2 + 32 + 1 && memcmp(name, root, n) == 0 && name[n] == ':' &&
           name[n + 33] == ':' && name[n + 34] == '{' && name[bytes - 1] == '}' &&
           tsri_hex_read(name + n + 1, space, 16) && tsri_hex_read(name + n + 35, key->bytes, 16);
}

/* CRC16-CCITT (XMODEM), as the cluster specification says. */
static uint16_t crc16(const char *data, size_t bytes)
{
    uint16_t crc = 0;
    for (size_t i = 0; i < bytes; i++) {
        crc = (uint16_t)(crc ^ ((unsigned)(uint8_t)data[i] << 8));
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? (unsigned)crc << 1 ^ 0x1021 : (unsigned)crc << 1);
    }
    return crc;
}

uint32_t tsri_redis_slot(const char *name, size_t bytes)
{
    const char *open = memchr(name, '{', bytes);
    if (open) {
        size_t left = bytes - (size_t)(open + 1 - name);
        const char *end = memchr(open + 1, '}', left);
        if (end && end > open + 1)
            return crc16(open + 1, (size_t)(end - open - 1)) % TSRI_REDIS_SLOTS;
    }
    return crc16(name, bytes) % TSRI_REDIS_SLOTS;
}

/* ---- addresses ---- */

static bool parse_port(const char *text, int *port)
{
    char *end;
    long v = strtol(text, &end, 10);
    *port = (int)v;
    return *text >= '0' && *text <= '9' && *end == '\0' && v > 0 && v < 65536;
}

int tsri_redis_address_split(const char *address, char host[TSRI_REDIS_ADDRESS_BYTES], int *port)
{
    size_t n = strlen(address);
    *port = 0;
    if (n == 0 || n >= TSRI_REDIS_ADDRESS_BYTES)
        return tsri_fail(TSR_ECONFIG, "redis: address too long (%zu bytes)", n);
    if (strncmp(address, "unix:", 5) == 0) {
        memcpy(host, address + 5, n - 4);
        if (host[0] == '/') return 0;
        return tsri_fail(TSR_ECONFIG, "redis: %s: not an absolute path", address);
    }
    const char *begin = address, *colon = strrchr(address, ':');
    size_t host_bytes = colon ? (size_t)(colon - address) : n;
    if (address[0] == '[') {
        const char *end = strchr(address, ']');
        if (!end || (end[1] && end[1] != ':'))
            return tsri_fail(TSR_ECONFIG, "redis: %s: not an address", address);
        begin = address + 1;
        host_bytes = (size_t)(end - begin);
        colon = end[1] ? end + 1 : NULL;
    }
    memcpy(host, begin, host_bytes);
    host[host_bytes] = '\0';
    *port = PORT_DEFAULT;
    if (host_bytes == 0 || (colon && !parse_port(colon + 1, port)))
        return tsri_fail(TSR_ECONFIG, "redis: %s: not HOST:PORT and not unix:/PATH", address);
    return 0;
}

/* The one way to write an address, so that nodes can be compared. */
static void join_address(char out[TSRI_REDIS_ADDRESS_BYTES], const char *host, int port)
{
    bool v6 = strchr(host, ':') != NULL;
    int n = snprintf(out, TSRI_REDIS_ADDRESS_BYTES, "%s%s%s:%d", v6 ? "[" : "", host, v6 ? "]" : "",
                     port);
    if (n < 0 || n >= (int)TSRI_REDIS_ADDRESS_BYTES) out[0] = '\0';
}

bool tsri_redis_address(const char *list, uint32_t i, char out[TSRI_REDIS_ADDRESS_BYTES], int *err)
{
    *err = 0;
    for (; i && list; i--) {
        list = strchr(list, ',');
        if (list) list++;
    }
    if (!list) return false;
    list += strspn(list, " ");
    if (strncmp(list, "redis://", 8) == 0) list += 8;
    size_t n = strcspn(list, ", /");
    if (strncmp(list, "unix:", 5) == 0) n = strcspn(list, ", ");
    char text[TSRI_REDIS_ADDRESS_BYTES], host[TSRI_REDIS_ADDRESS_BYTES];
    int port;
    *err = TSR_ECONFIG;
    /* What comes before an @ may be a password, and is not repeated in a message. */
    if (memchr(list, '@', n))
        return tsri_fail(
                   TSR_ECONFIG,
                   "redis: address contains a user or password: use redis_user and redis_password"),
               true;
    if (n >= sizeof text)
        return tsri_fail(TSR_ECONFIG, "redis: address too long (%zu bytes)", n), true;
    memcpy(text, list, n);
    text[n] = '\0';
    *err = tsri_redis_address_split(text, host, &port);
    if (*err) return true;
    if (port)
        join_address(out, host, port);
    else
        memcpy(out, text, n + 1);
    return true;
}

bool tsri_redis_redirect(const char *text, const char *from, uint32_t *slot,
                         char address[TSRI_REDIS_ADDRESS_BYTES])
{
    const char *at = strncmp(text, "MOVED ", 6) == 0 ? text + 6
                     : strncmp(text, "ASK ", 4) == 0 ? text + 4
                                                     : NULL;
    if (!at) return false;
    char *end, host[TSRI_REDIS_ADDRESS_BYTES], own[TSRI_REDIS_ADDRESS_BYTES];
    unsigned long number = strtoul(at, &end, 10);
    const char *colon = strrchr(end, ':');
    int port, own_port;
    if (end == at || *end != ' ' || number >= TSRI_REDIS_SLOTS || !colon) return false;
    size_t n = (size_t)(colon - end) - 1;
    if (n >= sizeof host || !parse_port(colon + 1, &port)) return false;
    memcpy(host, end + 1, n);
    host[n] = '\0';
    if (n == 0) { /* the same host, another port */
        if (tsri_redis_address_split(from, own, &own_port) != 0 || !own_port) return false;
        memcpy(host, own, sizeof own);
    }
    *slot = (uint32_t)number;
    join_address(address, host, port);
    return address[0] != '\0';
}
