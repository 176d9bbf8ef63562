/* redis.c - the redis tier: a Redis or Valkey server, one with replicas, or a cluster, that many
 * caches may share. Open asks nothing of the server that could fail it: one that is down is asked
 * again in the background, and until it answers everything is a miss. In a forked child every call
 * is refused and close only frees memory. */
#include "redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ABSENT_SLOTS (1u << 16)
#define WRITES_WAIT_MS 250u

int tsri_redis_usable(struct tsri_redis *r)
{
    if (!tsri_fork_guard_parent(&r->guard))
        return tsri_fail(TSR_EFORK, "redis: not usable after fork");
    if (atomic_load_explicit(&r->cluster, memory_order_relaxed)) return 0;
    uint32_t node = atomic_load_explicit(&r->slots[0], memory_order_relaxed);
    if (tsri_breaker_closed(&r->nodes[node].reach)) return 0;
    return tsri_fail(TSR_EIO, "redis: %s is down", r->nodes[node].address);
}

/* ---- lanes ---- */

struct tsri_redis_lane *tsri_redis_lane_take(struct tsri_redis *r, uint64_t deadline_ns)
{
    struct tsri_redis_lane *lane = NULL;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        for (uint32_t i = 0; i < r->n_lanes && !lane; i++)
            if (!r->lanes[i].taken) lane = &r->lanes[i];
        if (lane || !tsri_cond_wait(&r->freed, &r->lock, deadline_ns)) break;
    }
    if (lane) lane->taken = true;
    pthread_mutex_unlock(&r->lock);
    return lane;
}

void tsri_redis_lane_give(struct tsri_redis *r, struct tsri_redis_lane *lane)
{
    pthread_mutex_lock(&r->lock);
    lane->taken = false;
    pthread_cond_signal(&r->freed);
    pthread_mutex_unlock(&r->lock);
}

static int open_lanes(struct tsri_redis *r, uint32_t n)
{
    r->lanes = tsri_alloc(n, sizeof r->lanes[0]);
    if (!r->lanes) return TSR_ENOMEM;
    r->n_lanes = n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < TSRI_REDIS_REQS; k++) {
            r->lanes[i].reqs[k].next = r->lanes[i].free;
            r->lanes[i].free = &r->lanes[i].reqs[k];
        }
    return 0;
}

static void close_lanes(struct tsri_redis *r)
{
    for (uint32_t i = 0; r->lanes && i < r->n_lanes; i++) {
        struct tsri_redis_lane *lane = &r->lanes[i];
        for (uint32_t node = 0; node < TSRI_REDIS_NODES_MAX; node++)
            for (uint32_t k = 0; k < TSRI_REDIS_SHARE_MAX; k++)
                tsri_resp_close(lane->conns[node][k]);
        for (uint32_t k = 0; k < TSRI_REDIS_JOBS; k++) {
            tsri_region_fini(&lane->records[k]);
            tsri_region_fini(&lane->olds[k]);
        }
    }
    tsri_free(r->lanes);
}

/* ---- open and close ---- */

static const char *set_or(const char *set, const char *configured)
{
    return set ? set : configured;
}

/* The configuration, with what tests give instead. */
static void configure(const struct tsr_tier_desc *desc, struct tsri_redis_setup *set)
{
    if (desc->arg) *set = *(const struct tsri_redis_setup *)desc->arg;
    if (desc->config) {
        const struct tsri_options *o = tsri_config_options(desc->config);
        set->address = set_or(set->address, o->redis_address);
        set->prefix = set_or(set->prefix, o->redis_prefix);
        set->user = set_or(set->user, o->redis_user);
        set->password = set_or(set->password, o->redis_password);
        set->password_file = set_or(set->password_file, o->redis_password_file);
        if (!set->database) set->database = o->redis_database;
        if (!set->connections) set->connections = o->redis_connections;
        if (!set->timeout_ms) set->timeout_ms = o->redis_timeout_ms;
        if (!set->ttl_s) set->ttl_s = o->redis_ttl_s;
        if (!set->absent_ms) set->absent_ms = o->redis_absent_ms;
        if (!set->part_bytes) set->part_bytes = o->redis_part_size;
        if (!set->bytes_per_s) set->bytes_per_s = o->redis_bandwidth;
    }
    if (!set->prefix || !set->prefix[0]) set->prefix = "tessera";
    if (!set->connections) set->connections = 2;
    if (!set->timeout_ms) set->timeout_ms = 1000;
    if (!set->part_bytes) set->part_bytes = (uint64_t)2 << 20;
}

/* A prefix stands in patterns and between colons. */
static int check_prefix(const char *prefix)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_.-:/";
    size_t n = strlen(prefix);
    if (n <= TSRI_REDIS_PREFIX_MAX && strspn(prefix, allowed) == n) return 0;
    return tsri_fail(TSR_ECONFIG, "redis_prefix: must be at most %u letters, digits and _.-:/",
                     TSRI_REDIS_PREFIX_MAX);
}

static char *copy_text(const char *text)
{
    return text && text[0] ? tsri_strdup(text) : NULL;
}

static char *join_root(const char *prefix, const char *tenant)
{
    char root[TSRI_REDIS_ROOT_MAX + 1];
    snprintf(root, sizeof root, "%s:%s", prefix, tenant);
    return tsri_strdup(root);
}

static int take_setup(struct tsri_redis *r, const struct tsri_redis_setup *set, const char *tenant)
{
    int err = check_prefix(set->prefix);
    if (err) return err;
    if (!set->address || !set->address[0])
        return tsri_fail(TSR_ECONFIG, "redis: redis_address is not set");
    r->root = join_root(set->prefix, tenant);
    r->addresses = tsri_strdup(set->address);
    r->login = (struct tsri_login){copy_text(set->user), copy_text(set->password), set->database};
    if (!r->root || !r->addresses || (set->password && set->password[0] && !r->login.password))
        return TSR_ENOMEM;
    bool in_file = !r->login.password && set->password_file && set->password_file[0];
    if (in_file)
        err = tsri_secret_line("redis_password_file", set->password_file, &r->login.password);
    if (err) return err;
    r->share = tsri_min_u32(set->connections, TSRI_REDIS_SHARE_MAX);
    r->timeout_ms = set->timeout_ms;
    r->ttl_s = set->ttl_s;
    r->part_bytes = set->part_bytes;
    tsri_throttle_init(&r->throttle, set->bytes_per_s);
    return tsri_absent_init(&r->absent, ABSENT_SLOTS, set->absent_ms);
}

static void close_redis(struct tsri_redis *r)
{
    close_lanes(r);
    tsri_redis_nodes_fini(r);
    tsri_absent_fini(&r->absent);
    tsri_throttle_fini(&r->throttle);
    tsri_breaker_fini(&r->writes);
    /* In a child the thread that waits there does not exist: destroying would wait for it. */
    if (r->guard.page && tsri_fork_guard_parent(&r->guard)) {
        pthread_cond_destroy(&r->upkeep_more);
        pthread_cond_destroy(&r->freed);
    }
    tsri_fork_guard_fini(&r->guard);
    pthread_mutex_destroy(&r->upkeep_lock);
    pthread_mutex_destroy(&r->lock);
    tsri_secret_free(&r->login.password);
    tsri_free(r->login.user);
    tsri_free(r->addresses);
    tsri_free(r->root);
    tsri_free(r);
}

static int redis_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    struct tsri_redis *r = tsri_alloc(1, sizeof *r);
    if (!r) return TSR_ENOMEM;
    pthread_mutex_init(&r->lock, NULL);
    tsri_cond_init(&r->freed);
    pthread_mutex_init(&r->upkeep_lock, NULL);
    tsri_cond_init(&r->upkeep_more);
    tsri_breaker_init(&r->writes, 1, WRITES_WAIT_MS, "rejects writes");
    r->read_only = desc->read_only != 0;
    atomic_store(&r->nonce, tsri_nonce());
    struct tsri_redis_setup set = {0};
    configure(desc, &set);
    int err = take_setup(r, &set, desc->tenant);
    if (!err) err = tsri_fork_guard_init(&r->guard);
    if (!err) err = open_lanes(r, desc->n_threads);
    if (!err) err = tsri_redis_nodes_init(r);
    if (err) {
        close_redis(r);
        return err;
    }
    tsri_breaker_name(&r->writes, "redis %s", r->addresses);
    r->nodes[0].in_use = true;
    if (tsri_redis_survey(r) == 0)
        tsri_log(TSR_LOG_INFO, "redis %s: %s, prefix %s", r->addresses,
                 atomic_load(&r->cluster) ? "a cluster" : "one server", r->root);
    err = tsri_redis_upkeep_start(r);
    if (err) {
        close_redis(r);
        return err;
    }
    *out = &r->base;
    return 0;
}

static void redis_close(struct tsr_tier *tier)
{
    struct tsri_redis *r = (struct tsri_redis *)tier;
    if (tsri_fork_guard_parent(&r->guard)) tsri_redis_upkeep_stop(r);
    close_redis(r);
}

static int redis_stats(struct tsr_tier *tier, struct tsr_tier_stats *out)
{
    struct tsri_redis *r = (struct tsri_redis *)tier;
    out->entries = atomic_load(&r->entries);
    out->bytes_used = atomic_load(&r->bytes);
    out->read_bytes = atomic_load(&r->read_bytes);
    out->written_bytes = atomic_load(&r->written_bytes);
    out->errors = atomic_load(&r->errors) + atomic_load(&r->corrupt);
    return 0;
}

const struct tsr_tier_ops tsri_tier_redis = {
    .abi = TSR_TIER_ABI,
    .caps = TSR_TIER_SHARED,
    .name = "redis",
    .open = redis_open,
    .close = redis_close,
    .put = tsri_redis_put,
    .get = tsri_redis_get,
    .drop = tsri_redis_drop,
    .scan = tsri_redis_scan,
    .contains = tsri_redis_contains,
    .stats = redis_stats,
};
