/* bench_chunk.c - what naming the chunks of a prompt costs. A prompt of 32K tokens against one
 * plain XXH3-128 pass over it (what a lookup of segments may be measured by), and a prefix chain of
 * 128 blocks against one SHA-256 pass over the same tokens. The plain pass is the faster of
 * libxxhash's two, so the ratios do not profit from a slow baseline. */
#define OPENSSL_API_COMPAT 0x10100000L
#include "chunk/chunk.h"
#include "support/bench.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <xxhash.h>

#define BENCH "bench_chunk"
#define N_TOKENS 32768u
#define N_SEGMENTS 64u
#define BLOCK_TOKENS 256u
#define N_PAIRS 51

struct work {
    uint32_t *tokens;
    struct tsri_separators *separators;
    struct tsr_range ranges[N_SEGMENTS + 1];
    struct tsr_extra extra[2];
    struct tsr_space_desc desc;
    uint32_t n_extra;
    enum tsri_hash hash;
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Tokens like text: ids up to 50000, with `common` standing at every tenth place or so. */
static void fill_text(struct work *w, uint32_t common)
{
    uint64_t state = 7;
    for (uint32_t i = 0; i < N_TOKENS; i++)
        w->tokens[i] = 100 + (uint32_t)(next_random(&state) % 50000);
    for (uint32_t i = 0; common && i < N_TOKENS; i += 1 + (uint32_t)(next_random(&state) % 19))
        w->tokens[i] = common;
}

/* Ends each of the 63 chunks before the question with one of the spellings. */
static void open_separators(struct work *w, const uint32_t *tokens, const uint32_t *lengths,
                            uint32_t n)
{
    tsri_separators_close(w->separators);
    BENCH_CHECK(tsri_separators_open(&w->separators, tokens, lengths, n) == 0);
    for (uint32_t i = 1; i < N_SEGMENTS; i++) {
        uint32_t k = i % n, from = 0;
        for (uint32_t j = 0; j < k; j++)
            from += lengths[j];
        memcpy(w->tokens + i * (N_TOKENS / N_SEGMENTS) - lengths[k], tokens + from,
               lengths[k] * sizeof *tokens);
    }
    int got = tsri_split(w->separators, w->tokens, N_TOKENS, w->ranges, N_SEGMENTS + 1);
    BENCH_CHECK(got == (int)N_SEGMENTS);
    for (uint32_t i = 0; i < N_SEGMENTS; i++) {
        BENCH_CHECK(w->ranges[i].offset == i * (N_TOKENS / N_SEGMENTS));
        BENCH_CHECK(w->ranges[i].n_tokens == N_TOKENS / N_SEGMENTS);
    }
}

static void plain_pass(void *arg)
{
    struct work *w = arg;
    bench_keep(tsri_tokens_hash(w->tokens, N_TOKENS).lo);
}

static void library_pass(void *arg)
{
    struct work *w = arg;
    bench_keep(XXH3_128bits(w->tokens, N_TOKENS * sizeof *w->tokens).low64);
}

static void sha256_pass(void *arg)
{
    struct work *w = arg;
    uint8_t out[32];
    SHA256((const uint8_t *)w->tokens, N_TOKENS * sizeof *w->tokens, out);
    bench_keep(out[0]);
}

static void split(void *arg)
{
    struct work *w = arg;
    int n = tsri_split(w->separators, w->tokens, N_TOKENS, w->ranges, N_SEGMENTS + 1);
    bench_keep((uint64_t)n);
}

/* The keys of the segments behind a split. */
static void segment_keys(void *arg)
{
    struct work *w = arg;
    struct tsri_key_parts parts = {.kind = TSR_KIND_SEGMENT};
    uint8_t bytes[TSRI_EXTRA_BYTES_MAX];
    for (uint32_t i = 0; i + 1 < N_SEGMENTS; i++) {
        struct tsr_range r = w->ranges[i];
        int n = tsri_extra_encode(w->extra, w->n_extra, r, bytes);
        parts.extra = tsri_extra_hash(bytes, (size_t)n);
        parts.n_tokens = r.n_tokens;
        parts.tokens = tsri_tokens_hash(w->tokens + r.offset, r.n_tokens);
        bench_keep(tsri_key_make(&parts).lo);
    }
}

static void split_and_keys(void *arg)
{
    split(arg);
    segment_keys(arg);
}

static void one_key(void *arg)
{
    struct tsri_key_parts parts = {.kind = TSR_KIND_SEGMENT, .n_tokens = 512};
    memcpy(parts.space, arg, 16);
    bench_keep(tsri_key_make(&parts).lo);
}

/* A chain with the key of every block, as a lookup makes them. */
static void chain(void *arg)
{
    struct work *w = arg;
    struct tsri_digest digest;
    uint8_t bytes[TSRI_EXTRA_BYTES_MAX];
    tsri_digest_root(w->hash, &digest);
    for (uint32_t at = 0; at < N_TOKENS; at += BLOCK_TOKENS) {
        struct tsri_key_parts parts = {.kind = TSR_KIND_PREFIX, .n_tokens = BLOCK_TOKENS};
        int n =
            tsri_extra_encode(w->extra, w->n_extra, (struct tsr_range){at, BLOCK_TOKENS}, bytes);
        parts.extra = tsri_extra_hash(bytes, (size_t)n);
        parts.digest = digest;
        parts.tokens = tsri_tokens_hash(w->tokens + at, BLOCK_TOKENS);
        bench_keep(tsri_key_make(&parts).lo);
        tsri_digest_next(w->hash, &digest, w->tokens + at, BLOCK_TOKENS, bytes, (size_t)n, &digest);
    }
    bench_keep(digest.bytes[0]);
}

static void chain_digests(void *arg)
{
    struct work *w = arg;
    struct tsri_digest digest;
    tsri_digest_root(w->hash, &digest);
    for (uint32_t at = 0; at < N_TOKENS; at += BLOCK_TOKENS)
        tsri_digest_next(w->hash, &digest, w->tokens + at, BLOCK_TOKENS, NULL, 0, &digest);
    bench_keep(digest.bytes[0]);
}

static void fingerprint(void *arg)
{
    struct work *w = arg;
    uint8_t out[16];
    tsri_space_fingerprint(&w->desc, out);
    bench_keep(out[0]);
}

static void bench_split(struct work *w)
{
    static const uint32_t one[] = {2}, one_length[] = {1};
    static const uint32_t two[] = {2, 3, 4, 5}, two_lengths[] = {3, 1};
    static const uint32_t frequent[] = {13, 3, 4}, frequent_length[] = {3};
    uint32_t many[TSRI_SEPARATORS_MAX], many_lengths[TSRI_SEPARATORS_MAX];
    for (uint32_t i = 0; i < TSRI_SEPARATORS_MAX; i++)
        many[i] = 2 + i, many_lengths[i] = 1;

    fill_text(w, 0);
    open_separators(w, many, many_lengths, TSRI_SEPARATORS_MAX);
    bench_pair(BENCH, "split 16 spellings", split, plain_pass, w, N_PAIRS, 0);
    fill_text(w, 13);
    open_separators(w, frequent, frequent_length, 1);
    bench_pair(BENCH, "split 1, common first token", split, plain_pass, w, N_PAIRS, 0);
    fill_text(w, 0);
    open_separators(w, two, two_lengths, 2);
    bench_pair(BENCH, "split 2 spellings", split, plain_pass, w, N_PAIRS, 1.0);
    fill_text(w, 0);
    open_separators(w, one, one_length, 1);
    bench_pair(BENCH, "split 1 spelling", split, plain_pass, w, N_PAIRS, 1.0);
}

static void bench_keys(struct work *w)
{
    bench_pair(BENCH, "plain pass, generic entry", library_pass, plain_pass, w, N_PAIRS, 0);
    bench_pair(BENCH, "keys of 63 segments", segment_keys, plain_pass, w, N_PAIRS, 0);
    /* 2.3: all that a lookup that misses may take, bench_lookup. */
    bench_pair(BENCH, "split + keys", split_and_keys, plain_pass, w, N_PAIRS, 2.3);
    w->n_extra = 2;
    bench_pair(BENCH, "split + keys, salt, image", split_and_keys, plain_pass, w, N_PAIRS, 0);
    w->n_extra = 0;
    uint8_t space[16] = {1};
    bench_run(&(struct bench_case){.name = "one key", .run = one_key, .arg = space});
}

static void bench_digests(struct work *w)
{
    w->hash = TSRI_HASH_SHA256;
    bench_pair(BENCH, "chain sha256", chain_digests, sha256_pass, w, N_PAIRS, 0);
    bench_pair(BENCH, "chain sha256 + keys", chain, sha256_pass, w, N_PAIRS, 1.3);
    w->n_extra = 2;
    bench_pair(BENCH, "chain sha256 + keys, extras", chain, sha256_pass, w, N_PAIRS, 0);
    w->n_extra = 0;
    w->hash = TSRI_HASH_XXH3;
    bench_pair(BENCH, "chain xxh3 + keys", chain, plain_pass, w, N_PAIRS, 0);
    bench_run(&(struct bench_case){.name = "space fingerprint", .run = fingerprint, .arg = w});
}

int main(int argc, char **argv)
{
    struct work w = {0};
    bench_init(BENCH, argc, argv);
    w.tokens = malloc(N_TOKENS * sizeof *w.tokens);
    BENCH_CHECK(w.tokens != NULL);
    w.desc = (struct tsr_space_desc){.size = sizeof w.desc,
                                     .model = "meta-llama/Llama-3.1-8B",
                                     .dtype = TSR_DTYPE_BF16,
                                     .n_layers = 32,
                                     .n_heads = 8,
                                     .k_dim = 128,
                                     .block_tokens = BLOCK_TOKENS};
    BENCH_CHECK(tsri_space_check(&w.desc) == 0);
    w.extra[0] = (struct tsr_extra){.kind = TSR_EXTRA_SALT, .bytes = 8, .data = "tenant-a"};
    w.extra[1] = (struct tsr_extra){TSR_EXTRA_MEDIA, 5000, 600, 32, w.tokens};
    BENCH_CHECK(tsri_extra_check(w.extra, 2, N_TOKENS) == 0);

    bench_split(&w);
    struct tsri_key key = tsri_tokens_hash(w.tokens, N_TOKENS);
    XXH128_hash_t plain = XXH3_128bits(w.tokens, N_TOKENS * sizeof *w.tokens);
    BENCH_CHECK(key.lo == plain.low64 && key.hi == plain.high64);
    bench_keys(&w);
    bench_digests(&w);
    tsri_separators_close(w.separators);
    free(w.tokens);
    return bench_end();
}
