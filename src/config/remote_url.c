/* remote_url.c - LMCache's remote_url as options of our tiers: redis://, valkey:// and resp:// become
 * redis_*, s3:// becomes s3_*. Others are ignored with a note that says what to write instead. No
 * message shows the URL: it may hold a password, or a key and its secret. */
#include "config/config.h"

#include <strings.h>

#define URL_MAX 1024u

struct url {
    struct tsr_config *cfg;
    const struct tsri_place *place;
};

static int put_option(const struct url *u, const char *option, const char *value)
{
    return tsri_config_put(u->cfg, option, value, u->place);
}

/* Without the value, which may hold a password or a key and its secret. */
static int refuse_url(const struct url *u, const char *why)
{
    char where[TSRI_PLACE_BYTES];
    return tsri_fail(TSR_ECONFIG, "%sremote_url: %s",
                     tsri_place_text(u->place, where, sizeof where), why);
}

static int note_url(const struct url *u, const char *what)
{
    char where[TSRI_PLACE_BYTES], text[TSRI_PLACE_BYTES + 256];
    snprintf(text, sizeof text, "%sremote_url: %s", tsri_place_text(u->place, where, sizeof where),
             what);
    return tsri_config_note(u->cfg, "remote_url", TSR_LOG_WARN, text);
}

/* "user:password@hosts/database", each but the hosts optional; the text is taken apart. */
static int put_redis_url(const struct url *u, char *rest)
{
    char *hosts = strrchr(rest, '@'); /* a password may hold any other character */
    int err = 0;
    if (hosts) {
        *hosts++ = '\0';
        char *password = strchr(rest, ':');
        if (password) *password++ = '\0';
        if (rest[0]) err = put_option(u, "redis_user", rest);
        if (!err && password && password[0]) err = put_option(u, "redis_password", password);
    } else {
        hosts = rest;
    }
    char *slash = strchr(hosts, '/');
    if (slash) *slash++ = '\0';
    if (!err && slash && slash[0]) err = put_option(u, "redis_database", slash);
    if (!err && !hosts[0]) err = refuse_url(u, "no server given");
    return err ? err : put_option(u, "redis_address", hosts);
}

/* The host of a bucket, BUCKET.HOST, as LMCache writes it; the text is taken apart. A name of
 * Amazon's has the region as well: s3_region implies the endpoint s3.REGION.amazonaws.com. */
static int put_s3_host(const struct url *u, char *bucket)
{
    static const char amazon[] = ".amazonaws.com";
    char *host = strstr(bucket, ".s3.");
    if (!host) host = strstr(bucket, ".s3express-");
    if (!host) host = strchr(bucket, '.');
    *host++ = '\0';
    int err = put_option(u, "s3_bucket", bucket);
    if (!err && strncmp(host, "s3express-", 10) == 0)
        err = note_url(u, "directory buckets of S3 Express were not tested: requests are signed as "
                          "for other buckets");
    size_t n = strlen(host), tail = sizeof amazon - 1;
    const char *region = NULL;
    if (!err && n > tail && strcmp(host + n - tail, amazon) == 0) {
        host[n - tail] = '\0';
        char *dot = strrchr(host, '.');
        region = dot ? dot + 1 : NULL; /* s3.amazonaws.com has none */
        if (region) err = put_option(u, "s3_region", region);
        if (!err && region == host + 3 && strncmp(host, "s3.", 3) == 0) return 0;
        host[n - tail] = '.';
    }
    if (!err) err = put_option(u, "s3_endpoint", host);
    return err ? err : put_option(u, "s3_path_style", "no");
}

/* "bucket", "bucket.host" as above, or "host:port/bucket" of a server that has buckets in paths. */
static int put_s3_url(const struct url *u, char *rest)
{
    char *slash = strchr(rest, '/');
    if (strchr(rest, '@')) return refuse_url(u, "an s3 URL holds no keys: set s3_access_key");
    if (slash && slash[1] == '\0') *slash = '\0';
    if (slash && *slash) {
        *slash++ = '\0';
        int err = put_option(u, "s3_endpoint", rest);
        return err ? err : put_option(u, "s3_bucket", slash);
    }
    bool number = !rest[strspn(rest, "0123456789.:")]; /* an address, no name */
    const char *dot = strchr(rest, '.');
    if (!rest[0] || dot == rest || (number && dot) || (!dot && strchr(rest, ':')))
        return refuse_url(u, "no bucket given: set s3_bucket and s3_endpoint");
    return dot ? put_s3_host(u, rest) : put_option(u, "s3_bucket", rest);
}

int tsri_remote_url_put(struct tsr_config *cfg, const char *value, const struct tsri_place *place)
{
    static const struct {
        const char *scheme;
        int (*put)(const struct url *u, char *rest); /* NULL: ignored, for the reason */
        const char *why;
    } known[] = {
        {"redis://", put_redis_url, NULL},
        {"valkey://", put_redis_url, NULL},
        {"resp://", put_redis_url, NULL},
        {"s3://", put_s3_url, NULL},
        {"rediss://", NULL,
         "ignored: no TLS to Redis: run a TLS proxy such as stunnel beside the engine; its address "
         "is redis_address then"},
        {"redis-sentinel://", NULL,
         "ignored: sentinels are not asked: write the Redis servers themselves as redis_address, "
         "HOST:PORT separated by commas; the master among them is found, also after a failover"},
        {"", NULL,
         "ignored: only redis://, valkey://, resp:// and s3:// are supported; a server of ours is "
         "owner: daemon"}};
    char rest[URL_MAX];
    struct url u = {cfg, place};
    for (size_t i = 0; i < TSRI_COUNT(known); i++) {
        size_t n = strlen(known[i].scheme);
        if (strncasecmp(value, known[i].scheme, n) != 0) continue;
        if (!known[i].put) return note_url(&u, known[i].why);
        if (strlen(value + n) >= sizeof rest) return refuse_url(&u, "too long");
        memcpy(rest, value + n, strlen(value + n) + 1);
        int err = known[i].put(&u, rest);
        explicit_bzero(rest, sizeof rest); /* it may hold a password */
        return err;
    }
    return 0;
}
