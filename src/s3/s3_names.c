/* s3_names.c - where objects are: endpoints, buckets and names as URLs. Pure functions. Everything
 * that becomes part of a URL is checked or escaped here, so that no option and no token of a server
 * can make it another one; and it is written as the signature needs it, because libcurl signs path
 * and query as they stand. */
#include "s3/s3.h"

#include <ctype.h>
#include <stdio.h>

/* ---- the bucket ---- */

static bool made_of(const char *text, const char *more, size_t n_min, size_t n_max)
{
    size_t n = strlen(text);
    if (n < n_min || n > n_max) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr(more, text[i])) return false;
    return true;
}

/* "https://host:port" apart: scheme and what is behind it, without a slash at the end. */
static int split_endpoint(const char *endpoint, const char **scheme, char *host, size_t host_bytes)
{
    *scheme = "https://";
    if (strncmp(endpoint, "http://", 7) == 0) {
        *scheme = "http://";
        endpoint += 7;
    } else if (strncmp(endpoint, "https://", 8) == 0) {
        endpoint += 8;
    }
    size_t n = strlen(endpoint);
    while (n && endpoint[n - 1] == '/')
        n--;
    if (n == 0 || n >= host_bytes)
        return tsri_fail(TSR_ECONFIG, "s3_endpoint: host is missing or too long");
    memcpy(host, endpoint, n);
    host[n] = '\0';
    if (!made_of(host, ".-_:[]", 1, host_bytes))
        return tsri_fail(TSR_ECONFIG, "s3_endpoint: must be http://HOST:PORT or https://HOST:PORT");
    return 0;
}

int tsri_s3_base(char out[TSRI_S3_BASE_BYTES], const char *endpoint, const char *region,
                 const char *bucket, bool path_style)
{
    char host[256];
    const char *scheme;
    if (!made_of(bucket, ".-_", 3, 63))
        return tsri_fail(TSR_ECONFIG, "s3_bucket: must be 3 to 63 letters, digits and .-_");
    if (!made_of(region, "-_", 1, 32))
        return tsri_fail(TSR_ECONFIG, "s3_region: must be letters, digits and -");
    if (!endpoint[0]) {
        scheme = "https://";
        snprintf(host, sizeof host, "s3.%s.amazonaws.com", region);
    } else {
        int err = split_endpoint(endpoint, &scheme, host, sizeof host);
        if (err) return err;
    }
    if (path_style)
        snprintf(out, TSRI_S3_BASE_BYTES, "%s%s/%s", scheme, host, bucket);
    else
        snprintf(out, TSRI_S3_BASE_BYTES, "%s%s.%s", scheme, bucket, host);
    return 0;
}

/* ---- names ---- */

int tsri_s3_check_prefix(const char *prefix)
{
    size_t n = strlen(prefix);
    if (made_of(prefix, "_.-/", 1, TSRI_S3_PREFIX_MAX) && prefix[0] != '/' &&
        prefix[n - 1] != '/' && !strstr(prefix, "//") && !strstr(prefix, ".."))
        return 0;
    return tsri_fail(TSR_ECONFIG, "s3_prefix: must be at most %u letters, digits and _.-/",
                     TSRI_S3_PREFIX_MAX);
}

void tsri_s3_name(char name[TSRI_S3_NAME_BYTES], const char *dir, const uint8_t space[16],
                  const struct tsr_key *key)
{
    size_t n = strlen(dir);
    TSR_ASSERT(n <= TSRI_S3_DIR_MAX);
    memcpy(name, dir, n);
    char *at = name + n;
    *at++ = '/';
    at = tsri_hex(at, space, 16);
    *at++ = '/';
    at = tsri_hex(at, key->bytes, sizeof key->bytes);
    *at = '\0';
}

bool tsri_s3_is_entry(const char *name, const char *dir, uint8_t space[16], struct tsr_key *key)
{
    size_t n = strlen(dir);
    /* dir / space / key */
    return strlen(name) == n + 1 + 32 + 1 + 32 && memcmp(name, dir, n) == 0 && name[n] == '/' &&
           name[n + 33] == '/' && tsri_hex_read(name + n + 1, space, 16) &&
           tsri_hex_read(name + n + 34, key->bytes, 16);
}

bool tsri_s3_escape(char *out, size_t out_bytes, const char *text)
{
    size_t n = 0;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = c < 128 && (isalnum(c) || strchr("-_.~", c));
        if (n + (plain ? 1 : 3) >= out_bytes) return false;
        if (plain) {
            out[n++] = (char)c;
            continue;
        }
        out[n++] = '%';
        out[n++] = "0123456789ABCDEF"[c >> 4];
        out[n++] = "0123456789ABCDEF"[c & 15];
    }
    if (n >= out_bytes) return false;
    out[n] = '\0';
    return true;
}
