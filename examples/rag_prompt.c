/* rag_prompt.c - prompts of a retrieval system: a system prompt, documents in any order, a
 * question, with a separator after each part but the last. Cached parts are loaded, the others are
 * "computed" and stored. The second prompt has the same documents in another order and finds them
 * all. */
#include <tessera/tessera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATOR 2u
#define PARTS_MAX 16
#define CHECK(call) \
    do { \
        if ((call) < 0) { \
            fprintf(stderr, "%s: %s\n", #call, tsr_errmsg()); \
            exit(1); \
        } \
    } while (0)

static struct tsr_space *space;
static struct tsr_client *client;

/* Stands for a model: fills the KV of tokens that were not known. */
static void compute(const uint32_t *tokens, uint32_t n, unsigned char *kv)
{
    size_t bytes = n * tsr_space_token_bytes(space);
    for (size_t i = 0; i < bytes; i++)
        kv[i] = (unsigned char)(tokens[i % n] + i / n);
}

static void store(const uint32_t *tokens, struct tsr_range part, unsigned char *kv)
{
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = tokens + part.offset,
                               .n_tokens = part.n_tokens,
                               .view = {kv, part.n_tokens * tsr_space_token_bytes(space), 0, 0, 0}};
    CHECK(tsr_client_store(client, &s));
}

/* One prompt: look up, load, compute and store the rest. */
static void run(const uint32_t *tokens, uint32_t n)
{
    struct tsr_match matches[PARTS_MAX];
    struct tsr_range parts[PARTS_MAX];
    struct tsr_prompt prompt = {
        .size = sizeof prompt, .tokens = tokens, .n_tokens = n, .flags = TSR_PROMPT_SEGMENTS};
    struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                     .spaces = &space,
                                     .n_spaces = 1,
                                     .matches = matches,
                                     .matches_max = PARTS_MAX,
                                     .request_id =
                                         1}; /* a lease: nothing found goes before we load it */
    int known = tsr_client_lookup(client, &prompt, &lookup);
    CHECK(known);
    int n_parts = tsr_space_split(space, tokens, n, parts, PARTS_MAX);
    CHECK(n_parts);
    printf("%u tokens in %d parts: %d cached\n", n, n_parts, known);
    uint32_t m = 0;
    for (int i = 0; i < n_parts; i++) {
        size_t bytes = parts[i].n_tokens * tsr_space_token_bytes(space);
        unsigned char *kv = malloc(bytes);
        if (!kv) exit(1);
        const char *how = "computed";
        if (m < lookup.n_matches && matches[m].prompt_offset == parts[i].offset) {
            struct tsr_load_desc load = {.size = sizeof load,
                                         .space = space,
                                         .match = &matches[m++],
                                         .view = {kv, bytes, 0, 0, 0}};
            int loaded = tsr_client_load(client, &load, 1);
            CHECK(loaded);
            if (loaded == 1) how = "loaded";
        }
        if (how[0] == 'c') compute(tokens + parts[i].offset, parts[i].n_tokens, kv);
        if (how[0] == 'c' && i < n_parts - 1) store(tokens, parts[i], kv);
        printf("  tokens %3u to %3u %s%s\n", parts[i].offset, parts[i].offset + parts[i].n_tokens,
               how, i == n_parts - 1 ? " (the question)" : "");
        free(kv);
    }
    tsr_client_release(client, 1);
}

/* Appends a part of n tokens that begin with `first`, and a separator. */
static uint32_t add(uint32_t *tokens, uint32_t at, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[at++] = first + i;
    tokens[at++] = SEPARATOR;
    return at;
}

int main(void)
{
    struct tsr_cache *cache;
    CHECK(tsr_cache_open(&cache, NULL));
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "example",
                                  .dtype = TSR_DTYPE_BF16,
                                  .n_layers = 8,
                                  .n_heads = 4,
                                  .k_dim = 64};
    CHECK(tsr_space_open(&space, cache, &desc));
    CHECK(tsr_client_open(&client, cache));
    CHECK(tsr_separators_set(space, (uint32_t[]){SEPARATOR}, (uint32_t[]){1}, 1));

    uint32_t tokens[512], n = add(tokens, 0, 100, 20);
    n = add(tokens, add(tokens, n, 1000, 90), 2000, 70);
    run(tokens, add(tokens, n, 5000, 8) - 1);
    n = add(tokens, 0, 100, 20);
    n = add(tokens, add(tokens, n, 2000, 70), 1000, 90);
    run(tokens, add(tokens, n, 6000, 11) - 1);

    tsr_client_close(client);
    tsr_space_close(space);
    tsr_cache_close(cache);
    return 0;
}
