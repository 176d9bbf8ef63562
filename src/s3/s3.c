/* s3.c - the s3 tier: a bucket of Amazon S3 or of a server that speaks like it (SeaweedFS, Ceph,
 * MinIO), which many caches may share. Open asks nothing of the server: one that is down is asked
 * again in the background, and until it answers everything is a miss. In a forked child every call
 * is refused and close only frees memory. */
#include "s3/s3.h"

#include <stdio.h>
#include <unistd.h>

#define ABSENT_SLOTS (1u << 16)
#define FAILURES 3u /* in a row, of the kind that may pass */
#define REACH_WAIT_MS 100u
#define WRITES_WAIT_MS 250u

/* ---- what it is opened with ---- */

static const char *set_or(const char *set, const char *configured)
{
    return set ? set : configured;
}

static void configure_texts(struct tsri_s3_setup *set, const struct tsri_options *o)
{
    set->endpoint = set_or(set->endpoint, o->s3_endpoint);
    set->bucket = set_or(set->bucket, o->s3_bucket);
    set->region = set_or(set->region, o->s3_region);
    set->prefix = set_or(set->prefix, o->s3_prefix);
    set->access_key = set_or(set->access_key, o->s3_access_key);
    set->secret_key = set_or(set->secret_key, o->s3_secret_key);
    set->token = set_or(set->token, o->s3_session_token);
    set->credentials_file = set_or(set->credentials_file, o->s3_credentials_file);
    set->ca_file = set_or(set->ca_file, o->s3_ca_file);
}

/* The configuration, with what tests give instead. */
static void configure(const struct tsr_tier_desc *desc, struct tsri_s3_setup *set)
{
    if (desc->arg) *set = *(const struct tsri_s3_setup *)desc->arg;
    if (desc->config) {
        const struct tsri_options *o = tsri_config_options(desc->config);
        configure_texts(set, o);
        if (!set->path_style) set->path_style = (uint32_t)o->s3_path_style;
        if (!set->connections) set->connections = o->s3_connections;
        if (!set->timeout_ms) set->timeout_ms = o->s3_timeout_ms;
        if (!set->absent_ms) set->absent_ms = o->s3_absent_ms;
        if (!set->list_s) set->list_s = o->s3_list_s;
        if (!set->index_max) set->index_max = o->s3_index_max;
        if (!set->part_bytes) set->part_bytes = o->s3_part_size;
        if (!set->upload_bytes) set->upload_bytes = o->s3_upload_size;
        if (!set->bytes_per_s) set->bytes_per_s = o->s3_bandwidth;
    }
    if (!set->endpoint) set->endpoint = "";
    if (!set->bucket) set->bucket = "";
    if (!set->region || !set->region[0]) set->region = "us-east-1";
    if (!set->prefix || !set->prefix[0]) set->prefix = "tessera";
    /* Amazon answers to bucket names as host names, most others to paths. */
    if (!set->path_style) set->path_style = set->endpoint[0] ? 1 : 2;
    if (!set->connections) set->connections = 8;
    if (!set->timeout_ms) set->timeout_ms = 5000;
    if (!set->index_max) set->index_max = 1u << 20;
    if (!set->part_bytes) set->part_bytes = TSRI_PARCEL_PART_MAX;
    if (!set->upload_bytes) set->upload_bytes = (uint64_t)16 << 20;
}

static char *join_dir(const char *prefix, const char *tenant)
{
    char dir[TSRI_S3_DIR_MAX + 1];
    snprintf(dir, sizeof dir, "%s/%s", prefix, tenant);
    return tsri_strdup(dir);
}

static int take_setup(struct tsri_s3 *s, const struct tsri_s3_setup *set, const char *tenant)
{
    s->path_style = set->path_style == 1;
    int err = tsri_s3_base(s->url, set->endpoint, set->region, set->bucket, s->path_style);
    if (!err) err = tsri_s3_check_prefix(set->prefix);
    if (!err)
        err = tsri_s3_login_init(&s->login, set->access_key, set->secret_key, set->token,
                                 set->credentials_file);
    if (err) return err;
    s->dir = join_dir(set->prefix, tenant);
    if (!s->dir) return TSR_ENOMEM;
    s->connections = set->connections;
    s->timeout_ms = set->timeout_ms;
    s->list_s = set->list_s;
    s->part_bytes = set->part_bytes;
    s->upload_bytes = set->upload_bytes;
    tsri_throttle_init(&s->throttle, set->bytes_per_s);
    tsri_s3_index_init(&s->index, set->index_max);
    tsri_breaker_name(&s->reach, "s3 %s", s->url);
    tsri_breaker_name(&s->writes, "s3 %s", s->url);
    return tsri_absent_init(&s->absent, ABSENT_SLOTS, set->absent_ms);
}

/* ---- open and close ---- */

static void close_s3(struct tsri_s3 *s)
{
    bool in_child = s->guard.page && !tsri_fork_guard_parent(&s->guard);
    tsri_s3_http_close(s->http, in_child);
    /* In a child the threads that wait there do not exist: destroying would wait for them. */
    if (!in_child) {
        tsri_s3_lanes_fini(s);
        pthread_cond_destroy(&s->upkeep_more);
        pthread_cond_destroy(&s->freed);
    }
    tsri_s3_index_fini(&s->index);
    tsri_absent_fini(&s->absent);
    tsri_throttle_fini(&s->throttle);
    tsri_breaker_fini(&s->writes);
    tsri_breaker_fini(&s->reach);
    tsri_fork_guard_fini(&s->guard);
    pthread_mutex_destroy(&s->upkeep_lock);
    pthread_mutex_destroy(&s->lock);
    tsri_s3_login_fini(&s->login);
    tsri_free(s->dir);
    tsri_free(s);
}

static int s3_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    struct tsri_s3 *s = tsri_alloc(1, sizeof *s);
    if (!s) return TSR_ENOMEM;
    pthread_mutex_init(&s->lock, NULL);
    tsri_cond_init(&s->freed);
    pthread_mutex_init(&s->upkeep_lock, NULL);
    tsri_cond_init(&s->upkeep_more);
    tsri_breaker_init(&s->reach, FAILURES, REACH_WAIT_MS, "down");
    tsri_breaker_init(&s->writes, 1, WRITES_WAIT_MS, "rejects writes");
    s->read_only = desc->read_only != 0;
    atomic_store(&s->nonce, tsri_nonce());
    struct tsri_s3_setup set = {0};
    configure(desc, &set);
    int err = set.bucket[0] ? take_setup(s, &set, desc->tenant)
                            : tsri_fail(TSR_ECONFIG, "s3: s3_bucket is not set");
    if (!err) err = tsri_fork_guard_init(&s->guard);
    if (!err) err = tsri_s3_lanes_init(s, desc->n_threads);
    if (!err) {
        struct tsri_s3_http_setup http = {.login = &s->login,
                                          .region = set.region,
                                          .ca_file = set.ca_file,
                                          .connections = s->connections,
                                          .timeout_ms = s->timeout_ms,
                                          .throttle = &s->throttle};
        err = tsri_s3_http_open(&s->http, &http);
    }
    if (!err) err = tsri_s3_upkeep_start(s);
    if (err) {
        close_s3(s);
        return err;
    }
    *out = &s->base;
    return 0;
}

static void s3_close(struct tsr_tier *tier)
{
    struct tsri_s3 *s = (struct tsri_s3 *)tier;
    if (tsri_fork_guard_parent(&s->guard)) tsri_s3_upkeep_stop(s);
    close_s3(s);
}

static int s3_stats(struct tsr_tier *tier, struct tsr_tier_stats *out)
{
    struct tsri_s3 *s = (struct tsri_s3 *)tier;
    pthread_mutex_lock(&s->index.lock);
    out->entries = s->index.n;
    out->bytes_used = s->index.bytes;
    pthread_mutex_unlock(&s->index.lock);
    out->read_bytes = atomic_load(&s->read_bytes);
    out->written_bytes = atomic_load(&s->written_bytes);
    out->errors = atomic_load(&s->errors) + atomic_load(&s->corrupt);
    return 0;
}

const struct tsr_tier_ops tsri_tier_s3 = {
    .abi = TSR_TIER_ABI,
    .caps = TSR_TIER_SHARED,
    .name = "s3",
    .open = s3_open,
    .close = s3_close,
    .put = tsri_s3_put,
    .get = tsri_s3_get,
    .drop = tsri_s3_drop,
    .scan = tsri_s3_scan,
    .contains = tsri_s3_contains,
    .stats = s3_stats,
};
