/* find_text.c - store the KV of a text once, find it at another position of another prompt.
 * The "KV" here is made up; an engine would pass its own. */
#include <tessera/tessera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call) \
    do { \
        if ((call) < 0) { \
            fprintf(stderr, "%s: %s\n", #call, tsr_errmsg()); \
            exit(1); \
        } \
    } while (0)

int main(void)
{
    /* A cache of 64 MiB, and a model of 4 layers with 2 KV heads of 64 in f16. */
    struct tsr_config *cfg;
    struct tsr_cache *cache;
    CHECK(tsr_config_open(&cfg));
    CHECK(tsr_config_set(cfg, "host_size", "64M"));
    CHECK(tsr_cache_open(&cache, cfg));
    tsr_config_close(cfg);

    struct tsr_space *space;
    struct tsr_client *client;
    CHECK(tsr_space_open(&space, cache,
                         &(struct tsr_space_desc){.size = sizeof(struct tsr_space_desc),
                                                  .model = "example",
                                                  .dtype = TSR_DTYPE_F16,
                                                  .n_layers = 4,
                                                  .n_heads = 2,
                                                  .k_dim = 64}));
    CHECK(tsr_client_open(&client, cache));

    /* A document of 100 tokens and its KV, packed as [layer][K, V][token]. */
    uint32_t document[100];
    for (uint32_t i = 0; i < 100; i++)
        document[i] = 1000 + i;
    size_t kv_bytes = 100 * tsr_space_token_bytes(space);
    unsigned char *kv = malloc(kv_bytes), *again = malloc(kv_bytes);
    if (!kv || !again) return 1;
    for (size_t i = 0; i < kv_bytes; i++)
        kv[i] = (unsigned char)(i * 31 >> 3);
    CHECK(tsr_client_store(client,
                           &(struct tsr_store_desc){.size = sizeof(struct tsr_store_desc),
                                                    .space = space,
                                                    .kind = TSR_KIND_SEGMENT,
                                                    .tokens = document,
                                                    .n_tokens = 100,
                                                    .view = {.data = kv, .bytes = kv_bytes}}));

    /* Another prompt: 7 tokens of its own, the document, a question. */
    uint32_t prompt[7 + 100 + 5] = {1, 2, 3, 4, 5, 6, 7};
    memcpy(prompt + 7, document, sizeof document);
    struct tsr_range segment = {.offset = 7, .n_tokens = 100};
    struct tsr_match match = {0};
    struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                     .spaces = &space,
                                     .n_spaces = 1,
                                     .matches = &match,
                                     .matches_max = 1};
    int n_tokens = tsr_client_lookup(client,
                                     &(struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                                                          .tokens = prompt,
                                                          .n_tokens = 112,
                                                          .flags = TSR_PROMPT_SEGMENTS,
                                                          .segments = &segment,
                                                          .n_segments = 1},
                                     &lookup);
    CHECK(n_tokens);
    printf("%d of 112 tokens are cached; they begin at token %u, K is rotated for position %u\n",
           n_tokens, match.prompt_offset, match.base);

    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = space,
                                 .match = &match,
                                 .view = {.data = again, .bytes = kv_bytes}};
    int n_loaded = tsr_client_load(client, &load, 1);
    CHECK(n_loaded);
    int same = n_loaded == 1 && memcmp(kv, again, kv_bytes) == 0;
    printf("%zu bytes loaded, %s\n", kv_bytes, same ? "all correct" : "WRONG");

    free(kv);
    free(again);
    tsr_client_close(client);
    tsr_space_close(space);
    tsr_cache_close(cache);
    return same ? 0 : 1;
}
