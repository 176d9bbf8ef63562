/* bench_lookup.c - what finding a prompt costs. A prompt of 32K tokens in 64 segments, all known or
 * none: parse, hash, index and token verification, against one plain XXH3-128 pass over the same
 * tokens; and a chain of 128 prefix blocks against one SHA-256 pass. The cache holds 16 times as
 * many other segments, so that the index is not a toy. The plain pass is the fastest libxxhash has.
 */
#define OPENSSL_API_COMPAT 0x10100000L
#include "cache/cache.h"
#include "support/bench.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <xxhash.h>

#define N_TOKENS 32768u
#define N_SEGMENTS 64u
#define SEGMENT_TOKENS (N_TOKENS / N_SEGMENTS)
#define N_OTHERS 1024u
#define SEPARATOR 49999u

struct work {
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    uint32_t *known, *unknown; /* prompts: 64 segments and a question of 16 tokens */
    const uint32_t *tokens;    /* the one asked for */
    uint32_t flags;
    struct tsr_match matches[160];
    uint8_t *kv;
    size_t kv_bytes;
    int found;
};

static uint64_t seed = 42;
static uint32_t random_token(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return 100 + (uint32_t)((seed >> 33) % 49000);
}

static uint32_t *make_prompt(void)
{
    uint32_t *t = malloc((N_TOKENS + 16) * sizeof *t);
    BENCH_CHECK(t);
    for (uint32_t i = 0; i < N_TOKENS + 16; i++)
        t[i] = random_token();
    for (uint32_t s = 1; s <= N_SEGMENTS; s++)
        t[s * SEGMENT_TOKENS - 1] = SEPARATOR;
    return t;
}

static void store(struct work *w, uint32_t kind, const uint32_t *tokens, uint32_t n)
{
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = w->space,
                               .kind = kind,
                               .tokens = tokens,
                               .n_tokens = n,
                               .view = {.data = w->kv, .bytes = w->kv_bytes}};
    BENCH_CHECK(tsr_client_store(w->client, &s) == (int)n);
}

static void open_cache(struct work *w)
{
    struct tsr_config *cfg;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_size", "256M") == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_page_size", "4K") == 0);
    BENCH_CHECK(tsr_cache_open(&w->cache, cfg) == 0);
    tsr_config_close(cfg);
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "bench",
                                  .dtype = TSR_DTYPE_F16,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .k_dim = 8};
    BENCH_CHECK(tsr_space_open(&w->space, w->cache, &desc) == 0);
    BENCH_CHECK(tsr_client_open(&w->client, w->cache) == 0);
    uint32_t separator = SEPARATOR, length = 1;
    BENCH_CHECK(tsr_separators_set(w->space, &separator, &length, 1) == 0);
    w->kv_bytes = N_TOKENS * tsr_space_token_bytes(w->space);
    w->kv = calloc(1, w->kv_bytes);
    BENCH_CHECK(w->kv);
    w->known = make_prompt();
    w->unknown = make_prompt();
    uint32_t other[SEGMENT_TOKENS];
    for (uint32_t i = 0; i < N_OTHERS; i++) {
        for (uint32_t t = 0; t < SEGMENT_TOKENS; t++)
            other[t] = random_token();
        store(w, TSR_KIND_SEGMENT, other, SEGMENT_TOKENS);
        if (i % (N_OTHERS / N_SEGMENTS) == 0)
            store(w, TSR_KIND_SEGMENT, w->known + i / (N_OTHERS / N_SEGMENTS) * SEGMENT_TOKENS,
                  SEGMENT_TOKENS);
    }
    store(w, TSR_KIND_PREFIX, w->known, N_TOKENS);
}

static void look_up(void *arg)
{
    struct work *w = arg;
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = w->tokens,
                                .n_tokens =
                                    w->flags == TSR_PROMPT_PREFIX ? N_TOKENS : N_TOKENS + 16,
                                .flags = w->flags};
    struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                     .spaces = &w->space,
                                     .n_spaces = 1,
                                     .matches = w->matches,
                                     .matches_max = 160};
    w->found = tsr_client_lookup(w->client, &prompt, &lookup);
}

static void look_up_any(void *arg)
{
    struct work *w = arg;
    uint32_t flags = w->flags;
    w->flags |= TSR_PROMPT_ANY | TSR_PROMPT_OTHER;
    look_up(w);
    w->flags = flags;
}

/* What looking anywhere adds to a lookup that finds nothing, as a share of the prefill that it then
 * saves nothing of. */
static void bench_any(struct work *w)
{
    struct bench_result r = bench_run(&(struct bench_case){
        .name = "any miss", .run = look_up_any, .baseline = look_up, .arg = w});
    if (!r.ran) return;
    double added_s =
        (bench_best_ns(300, NULL, look_up_any, w) - bench_best_ns(300, NULL, look_up, w)) / 1e9;
    bench_report("any miss, of CPU prefill", added_s / (N_TOKENS / 300.0) * 100, "%", 0, 0.1,
                 false);
    bench_report("any miss, of GPU prefill", added_s / (N_TOKENS / 30000.0) * 100, "%", 0, 0.1,
                 false);
}

static void plain_pass(void *arg)
{
    struct work *w = arg;
    bench_keep(tsri_tokens_hash(w->tokens, N_TOKENS).lo);
}

/* What any program gets that calls libxxhash: Debian builds that entry for SSE2 alone on x86_64,
 * and the library hashes tokens with the one that looks at the processor first. */
static void plain_entry(void *arg)
{
    struct work *w = arg;
    bench_keep(XXH3_128bits(w->tokens, N_TOKENS * sizeof *w->tokens).low64);
}

static void sha256_pass(void *arg)
{
    struct work *w = arg;
    uint8_t digest[32];
    SHA256((const uint8_t *)w->tokens, N_TOKENS * sizeof *w->tokens, digest);
    bench_keep(digest[0]);
}

/* The prompt itself has just been made by a tokenizer, so it is warm; the cache is not. */
static void chill(void *arg)
{
    struct work *w = arg;
    bench_chill();
    plain_pass(w);
}

int main(int argc, char **argv)
{
    bench_init("bench_lookup", argc, argv);
    struct work w = {0};
    open_cache(&w);

    w.tokens = w.known;
    w.flags = TSR_PROMPT_SEGMENTS;
    look_up(&w);
    BENCH_CHECK(w.found == (int)N_TOKENS);
    bench_run(&(struct bench_case){
        .name = "hit hot", .run = look_up, .baseline = plain_entry, .arg = &w, .target = 3.5});
    bench_run(&(struct bench_case){
        .name = "hit hot : fastest hash", .run = look_up, .baseline = plain_pass, .arg = &w});
    bench_run(&(struct bench_case){.name = "hit cold",
                                   .run = look_up,
                                   .baseline = plain_entry,
                                   .arg = &w,
                                   .prepare = chill,
                                   .target = 6});
    bench_run(&(struct bench_case){.name = "hit cold : fastest hash",
                                   .run = look_up,
                                   .baseline = plain_pass,
                                   .arg = &w,
                                   .prepare = chill});
    w.tokens = w.unknown;
    look_up(&w);
    BENCH_CHECK(w.found == 0);
    bench_run(&(struct bench_case){
        .name = "miss", .run = look_up, .baseline = plain_entry, .arg = &w, .target = 2.3});
    bench_run(&(struct bench_case){
        .name = "miss : fastest hash", .run = look_up, .baseline = plain_pass, .arg = &w});

    w.tokens = w.known;
    w.flags = TSR_PROMPT_PREFIX;
    look_up(&w);
    BENCH_CHECK(w.found == (int)N_TOKENS);
    bench_run(&(struct bench_case){
        .name = "prefix", .run = look_up, .baseline = sha256_pass, .arg = &w, .target = 1.5});
    w.tokens = w.unknown;
    look_up(&w);
    BENCH_CHECK(w.found == 0);
    bench_run(&(struct bench_case){
        .name = "prefix miss", .run = look_up, .baseline = sha256_pass, .arg = &w});
    bench_any(&w);

    free(w.known);
    free(w.unknown);
    free(w.kv);
    tsr_client_close(w.client);
    tsr_space_close(w.space);
    tsr_cache_close(w.cache);
    return bench_end();
}
