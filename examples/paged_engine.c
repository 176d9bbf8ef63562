/* paged_engine.c - an engine with paged KV memory: blocks of 16 tokens, used in any order. A
 * document is computed once and collected from the engine's blocks into the cache. Another prompt
 * has it after other text: it is found there and delivered directly into the blocks of that prompt,
 * layer by layer, with K rotated from its old position to the new one. The result is compared with
 * computing it there. The same calls serve an engine on a GPU: set the option device, and the
 * engine's streams in struct tsr_delivery_desc.
 *
 *     cc paged_engine.c $(pkg-config --cflags --libs tessera) -lm -o paged_engine */
#include <tessera/deliver.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, DIM = 8, BLOCK = 16, BLOCKS = 32, DOCUMENT = 40, AHEAD = 5 };

#define CHECK(call) \
    do { \
        if ((call) < 0) { \
            fprintf(stderr, "%s: %s\n", #call, tsr_errmsg()); \
            exit(1); \
        } \
    } while (0)

static const struct tsr_rope rope = {
    .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = DIM, .theta = 10000};

/* [layer][block][K, V][token][dim] */
static float memory[LAYERS][BLOCKS][2][BLOCK][DIM];

/* Stands for a model: K and V of a token in a layer, K turned to its position. */
static void compute(uint32_t token, uint32_t layer, uint32_t position, float *k, float *v)
{
    for (int i = 0; i < DIM / 2; i++) {
        double a = sin(1.0 * token + layer + i), b = cos(2.0 * token + layer + i);
        double angle = position * pow(rope.theta, -2.0 * i / DIM);
        k[i] = (float)(a * cos(angle) - b * sin(angle));
        k[i + DIM / 2] = (float)(b * cos(angle) + a * sin(angle));
        v[i] = (float)a;
        v[i + DIM / 2] = (float)b;
    }
}

static float *row(uint32_t layer, int64_t slot, int plane)
{
    return memory[layer][slot / BLOCK][plane][slot % BLOCK];
}

static struct tsr_kv_layout describe(void)
{
    struct tsr_kv_layout l = {.size = sizeof l,
                              .memory = TSR_MEMORY_HOST,
                              .n_layers = LAYERS,
                              .n_planes = 2,
                              .block_tokens = BLOCK,
                              .n_slots = BLOCKS * BLOCK};
    for (int i = 0; i < 2; i++)
        l.planes[i] = (struct tsr_kv_plane){.base = memory[0][0][i],
                                            .layer_stride = sizeof memory[0],
                                            .block_stride = sizeof memory[0][0],
                                            .token_stride = sizeof memory[0][0][0][0],
                                            .head_stride = sizeof memory[0][0][0][0],
                                            .element_stride = sizeof(float),
                                            .dtype = TSR_DTYPE_F32,
                                            .n_heads = 1,
                                            .dim = DIM,
                                            .rope_dims = i ? 0 : DIM};
    return l;
}

/* The document alone, in the blocks given: computed, then kept. */
static void keep(struct tsr_delivery *delivery, struct tsr_client *client, struct tsr_space *space,
                 const uint32_t *document, const int64_t *slots)
{
    for (uint32_t t = 0; t < DOCUMENT; t++)
        for (uint32_t l = 0; l < LAYERS; l++)
            compute(document[t], l, t, row(l, slots[t], 0), row(l, slots[t], 1));
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = document,
                                   .n_tokens = DOCUMENT};
    struct tsr_put *put;
    CHECK(tsr_put_open(&put, client, &store));
    CHECK(tsr_delivery_collect(delivery, put, slots, DOCUMENT));
    int n = tsr_put_commit(put);
    CHECK(n);
    printf("%d tokens stored from blocks of the engine\n", n);
}

/* A prompt with the document somewhere in it. */
static void ask(struct tsr_delivery *delivery, struct tsr_client *client, struct tsr_space *space,
                const uint32_t *tokens, const int64_t *slots)
{
    struct tsr_range where = {AHEAD, DOCUMENT};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = tokens,
                                .n_tokens = AHEAD + DOCUMENT,
                                .flags = TSR_PROMPT_SEGMENTS,
                                .segments = &where,
                                .n_segments = 1};
    struct tsr_match match;
    struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                     .spaces = &space,
                                     .n_spaces = 1,
                                     .matches = &match,
                                     .matches_max = 1};
    CHECK(tsr_client_lookup(client, &prompt, &lookup));
    struct tsr_delivery_range range = {
        .size = sizeof range, .match = &match, .prompt = &prompt, .slots = slots + AHEAD};
    uint32_t freq_set;
    CHECK(tsr_rope_choose(&rope, prompt.n_tokens, &freq_set));
    int n = tsr_delivery_start(delivery, &range, lookup.n_matches, freq_set);
    CHECK(n);
    double far = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        CHECK(tsr_delivery_wait_layer(delivery, l)); /* now layer l could be computed */
        for (uint32_t t = AHEAD; t < AHEAD + DOCUMENT; t++) {
            float k[DIM], v[DIM];
            compute(tokens[t], l, t, k, v);
            for (int i = 0; i < DIM; i++) {
                far = fmax(far, fabs((double)(k[i] - row(l, slots[t], 0)[i])));
                far = fmax(far, fabs((double)(v[i] - row(l, slots[t], 1)[i])));
            }
        }
    }
    CHECK(tsr_delivery_finish(delivery));
    printf("%d range of %u tokens delivered to position %u, K at most %.1e off\n", n,
           match.n_tokens, match.prompt_offset, far);
    if (n != 1 || far > 1e-5) exit(1);
}

int main(void)
{
    uint32_t tokens[AHEAD + DOCUMENT];
    for (uint32_t i = 0; i < AHEAD + DOCUMENT; i++)
        tokens[i] = 100 + i * 7 % 31;
    char text[256];
    CHECK(tsr_rope_text(&rope, text, sizeof text));
    struct tsr_space_desc model = {.size = sizeof model,
                                   .model = "tiny",
                                   .rope = text,
                                   .dtype = TSR_DTYPE_F32,
                                   .n_layers = LAYERS,
                                   .n_heads = 1,
                                   .k_dim = DIM};
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    struct tsr_delivery *delivery;
    CHECK(tsr_cache_open(&cache, NULL));
    CHECK(tsr_space_open(&space, cache, &model));
    CHECK(tsr_client_open(&client, cache));
    struct tsr_kv_layout layout = describe();
    struct tsr_delivery_desc config = {
        .size = sizeof config, .space = space, .layout = &layout, .rope = &rope};
    CHECK(tsr_delivery_open(&delivery, client, &config));

    int64_t first[] = {3, 9, 4}, second[] = {30, 12, 7}; /* block tables */
    int64_t slots[AHEAD + DOCUMENT];
    CHECK(tsr_slots_of_blocks(slots, first, 3, BLOCK, 0, DOCUMENT));
    keep(delivery, client, space, tokens + AHEAD, slots);
    CHECK(tsr_slots_of_blocks(slots, second, 3, BLOCK, 0, AHEAD + DOCUMENT));
    ask(delivery, client, space, tokens, slots);

    tsr_delivery_close(delivery);
    tsr_client_close(client);
    tsr_space_close(space);
    tsr_cache_close(cache);
    return 0;
}
