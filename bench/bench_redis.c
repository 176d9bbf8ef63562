/* bench_redis - the redis tier on loopback, on a server that it starts itself: writing and reading
 * values of 2 MiB against redis-benchmark with the same size, pipeline and number of connections in
 * turns; a lookup of 64 keys against one PING; and what a dead server costs lookups of the cache.
 */
#include "support/bench.h"
#include "support/redis_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 32,
    TOKENS = 512,
    ROW = 2048, /* of K and of V: a layer is 2 MiB, and so is a part */
    CONNECTIONS = 2,
    PIPELINE = 4,
    ROUNDS = 15,
    KEYS = 64,
};

static const struct kv_shape shape = {TOKENS, 64, LAYERS, 2, {ROW, ROW}, 0, 0};
static const double entry_bytes = (double)LAYERS * TOKENS * ROW * 2;

struct work {
    struct redis_server server;
    struct redis_kit kit;
    struct kv_entry entry, room;
    struct tsr_tier_ref refs[KEYS];
    struct tsri_resp *ping;
    struct tsr_cache *cache[2]; /* without the tier, and with a dead one */
    struct tsr_client *client[2];
    struct tsr_space *space[2];
    uint32_t tokens[KEYS * 64];
    struct tsr_range segments[KEYS];
    uint32_t n_hits;
};

/* ---- values ---- */

static double put_gb_s(struct work *w)
{
    struct tsr_tier_ref ref = kv_entry_ref(&w->entry);
    BENCH_CHECK(tsri_tier_drop(w->kit.tier, &ref, 1) >= 0);
    struct tsr_tier_io io = kv_entry_io(&w->entry);
    uint64_t begin = bench_now_ns();
    BENCH_CHECK(tsri_tier_put(w->kit.tier, &io, 1) == 1);
    return entry_bytes / (double)(bench_now_ns() - begin);
}

static double get_gb_s(struct work *w)
{
    struct tsr_tier_io io = kv_entry_io(&w->room);
    uint64_t begin = bench_now_ns();
    BENCH_CHECK(tsri_tier_get(w->kit.tier, &io, 1) == 1);
    return entry_bytes / (double)(bench_now_ns() - begin);
}

/* What redis-benchmark reaches, or 0. */
static double theirs_gb_s(struct work *w, const char *test)
{
    char command[600], line[400];
    snprintf(command, sizeof command,
             "redis-benchmark -s %s -t %s -d %d -c %d -P %d -n %d --csv 2>/dev/null",
             w->server.unix_ + 5, test, 2 << 20, CONNECTIONS, PIPELINE, 2 * LAYERS);
    FILE *f = popen(command, "r"); /* NOLINT: its words are ours */
    double rate = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *comma = strstr(line, "\",\"");
        if (comma && comma[3] >= '0' && comma[3] <= '9') rate = strtod(comma + 3, NULL);
    }
    if (f) pclose(f);
    return rate * (2 << 20) / 1e9;
}

static void against_theirs(struct work *w, const char *name, const char *test,
                           double (*ours)(struct work *))
{
    double a[ROUNDS], b[ROUNDS], ratio[ROUNDS];
    ours(w);
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 2) b[i] = theirs_gb_s(w, test);
        a[i] = ours(w);
        if (i % 2 == 0) b[i] = theirs_gb_s(w, test);
        BENCH_CHECK(b[i] > 0);
        ratio[i] = a[i] / b[i];
    }
    double value = bench_median(a, ROUNDS);
    bench_report(name, value, "GB/s", value / bench_median(ratio, ROUNDS), 0.85, true);
}

/* ---- lookup ---- */

static void look(void *arg)
{
    struct work *w = arg;
    uint8_t found[KEYS];
    BENCH_CHECK(tsri_tier_contains(w->kit.tier, w->refs, KEYS, found) == KEYS);
}

static void ping(void *arg)
{
    struct work *w = arg;
    redisReply *reply =
        tsri_resp_ask(w->ping, bench_now_ns() + 10000000000u, 1, (const char *[]){"PING"});
    BENCH_CHECK(reply != NULL);
    freeReplyObject(reply);
}

static void put_keys(struct work *w)
{
    const struct kv_shape small = {16, 16, 1, 1, {16, 0}, 0, 0};
    for (uint64_t i = 0; i < KEYS; i++) {
        struct kv_entry e;
        kv_entry_init(&e, &small, 1000 + i);
        w->refs[i] = kv_entry_ref(&e);
        kv_entry_fini(&e);
        BENCH_CHECK(kv_tier_put(w->kit.tier, &small, 1000 + i) == 0);
    }
}

/* ---- a dead server ---- */

static void open_cache(struct work *w, int which, const char *address)
{
    struct tsr_config *cfg;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_size", "64M") == 0);
    if (address) BENCH_CHECK(tsr_config_set(cfg, "redis_address", address) == 0);
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "bench",
                                  .dtype = TSR_DTYPE_F32,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .k_dim = 4};
    BENCH_CHECK(tsr_cache_open(&w->cache[which], cfg) == 0);
    BENCH_CHECK(tsr_space_open(&w->space[which], w->cache[which], &desc) == 0);
    BENCH_CHECK(tsr_client_open(&w->client[which], w->cache[which]) == 0);
    tsr_config_close(cfg);
    static float kv[2 * 64 * 4];
    for (uint32_t i = 0; i < KEYS; i++) {
        w->segments[i] = (struct tsr_range){i * 64, 64};
        struct tsr_store_desc store = {.size = sizeof store,
                                       .space = w->space[which],
                                       .kind = TSR_KIND_SEGMENT,
                                       .tokens = w->tokens + (size_t)i * 64,
                                       .n_tokens = 64,
                                       .view = {.data = kv, .bytes = sizeof kv}};
        if (i % 2 == 0)
            BENCH_CHECK(tsr_client_store(w->client[which], &store) >= 0); /* half are misses */
    }
}

static void lookup_in(struct work *w, int which)
{
    struct tsr_match matches[KEYS];
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = w->tokens,
                                .n_tokens = KEYS * 64,
                                .flags = TSR_PROMPT_SEGMENTS,
                                .segments = w->segments,
                                .n_segments = KEYS};
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = &w->space[which],
                                 .n_spaces = 1,
                                 .matches = matches,
                                 .matches_max = KEYS};
    BENCH_CHECK(tsr_client_lookup(w->client[which], &prompt, &io) == KEYS / 2 * 64);
}

static void lookup_without(void *arg)
{
    lookup_in(arg, 0);
}

static void lookup_dead(void *arg)
{
    lookup_in(arg, 1);
}

static void close_cache(struct work *w, int which)
{
    tsr_client_close(w->client[which]);
    tsr_space_close(w->space[which]);
    tsr_cache_close(w->cache[which]);
}

int main(int argc, char **argv)
{
    bench_init("bench_redis", argc, argv);
    if (redis_kit_missing()) {
        fprintf(stderr, "bench_redis: %s\n", redis_kit_missing());
        return 77;
    }
    static struct work w;
    redis_server_init(&w.server, NULL);
    w.kit.setup = (struct tsri_redis_setup){.connections = CONNECTIONS, .timeout_ms = 10000};
    BENCH_CHECK(redis_kit_open(&w.kit, w.server.unix_) == 0);
    kv_entry_init(&w.entry, &shape, 1);
    kv_entry_init_room(&w.room, &w.entry, 0);
    BENCH_CHECK(kv_tier_put(w.kit.tier, &shape, 1) == 0);
    BENCH_CHECK(kv_tier_get(w.kit.tier, &shape, 1, 0) == 0); /* every byte */
    against_theirs(&w, "write", "set", put_gb_s);
    against_theirs(&w, "read", "get", get_gb_s);

    put_keys(&w);
    struct tsri_login login = {0};
    char why[160];
    BENCH_CHECK(tsri_resp_open(&w.ping, w.server.unix_, &login, bench_now_ns() + 10000000000u, why,
                               sizeof why) == 0);
    bench_pair(NULL, "lookup", look, ping, &w, 0, 3.0);
    tsri_resp_close(w.ping);
    redis_kit_close(&w.kit);
    redis_server_kill(&w.server);

    for (uint32_t i = 0; i < KEYS * 64; i++)
        w.tokens[i] = i * 7 + i / 64;
    open_cache(&w, 0, NULL);
    open_cache(&w, 1, w.server.tcp);
    bench_pair(NULL, "dead", lookup_dead, lookup_without, &w, 101, 1.01);
    close_cache(&w, 0);
    close_cache(&w, 1);
    redis_server_fini(&w.server);
    kv_entry_fini(&w.entry);
    kv_entry_fini(&w.room);
    return bench_end();
}
