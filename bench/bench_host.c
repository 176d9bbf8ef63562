/* bench_host.c - storing to and loading from host memory, cells of an 8B model (32 layers, 8 KV
 * heads of 128 in bf16: 128 KiB a token), against memcpy of the same bytes between the same kinds
 * of memory. Checksums are computed when an entry is written below, not here. */
#include "cache/cache.h"
#include "support/bench.h"

#define N_TOKENS 512u

struct work {
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    struct tsri_region user, other;
    size_t bytes;
    uint32_t tokens[N_TOKENS];
    struct tsr_match match;
};

static void store(void *arg)
{
    struct work *w = arg;
    w->tokens[0]++; /* another text each time; the oldest one is evicted */
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = w->space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = w->tokens,
                               .n_tokens = N_TOKENS,
                               .view = {.data = w->user.data, .bytes = w->bytes}};
    BENCH_CHECK(tsr_client_store(w->client, &s) == (int)N_TOKENS);
}

static void load(void *arg)
{
    struct work *w = arg;
    struct tsr_load_desc l = {.size = sizeof l,
                              .space = w->space,
                              .match = &w->match,
                              .view = {.data = w->user.data, .bytes = w->bytes}};
    BENCH_CHECK(tsr_client_load(w->client, &l, 1) == 1);
}

static void copy_out(void *arg)
{
    struct work *w = arg;
    memcpy(w->other.data, w->user.data, w->bytes);
}

static void copy_in(void *arg)
{
    struct work *w = arg;
    memcpy(w->user.data, w->other.data, w->bytes);
}

static void look_up(struct work *w)
{
    struct tsr_range all = {0, N_TOKENS};
    struct tsr_prompt p = {.size = sizeof p,
                           .tokens = w->tokens,
                           .n_tokens = N_TOKENS,
                           .flags = TSR_PROMPT_SEGMENTS,
                           .segments = &all,
                           .n_segments = 1};
    struct tsr_lookup_desc l = {.size = sizeof l,
                                .spaces = &w->space,
                                .n_spaces = 1,
                                .matches = &w->match,
                                .matches_max = 1};
    BENCH_CHECK(tsr_client_lookup(w->client, &p, &l) == (int)N_TOKENS);
}

int main(int argc, char **argv)
{
    bench_init("bench_host", argc, argv);
    struct work w = {0};
    struct tsr_config *cfg;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_size", "512M") == 0);
    BENCH_CHECK(tsr_cache_open(&w.cache, cfg) == 0);
    tsr_config_close(cfg);
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "8B",
                                  .dtype = TSR_DTYPE_BF16,
                                  .n_layers = 32,
                                  .n_heads = 8,
                                  .k_dim = 128};
    BENCH_CHECK(tsr_space_open(&w.space, w.cache, &desc) == 0);
    BENCH_CHECK(tsr_client_open(&w.client, w.cache) == 0);
    w.bytes = N_TOKENS * tsr_space_token_bytes(w.space);
    BENCH_CHECK(tsri_region_init(&w.user, w.bytes) == 0);
    BENCH_CHECK(tsri_region_init(&w.other, w.bytes) == 0);
    memset(w.other.data, 1, w.bytes);
    for (size_t i = 0; i < w.bytes; i++)
        w.user.data[i] = (uint8_t)(i * 2654435761u >> 13);
    /* Every page of the pool is touched before anything is timed. */
    for (uint32_t i = 0; i < 16; i++)
        store(&w);
    look_up(&w);
    copy_out(&w);
    memset(w.user.data, 0, w.bytes);
    load(&w);
    BENCH_CHECK(memcmp(w.user.data, w.other.data, w.bytes) == 0);

    bench_rate("bench_host", "store 512 tokens", store, copy_out, &w, (double)w.bytes, 0.9);
    look_up(&w);
    bench_rate("bench_host", "load 512 tokens", load, copy_in, &w, (double)w.bytes, 0.9);

    tsri_region_fini(&w.user);
    tsri_region_fini(&w.other);
    tsr_client_close(w.client);
    tsr_space_close(w.space);
    tsr_cache_close(w.cache);
    return bench_end();
}
