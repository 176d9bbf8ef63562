/* texts.c - the texts of a life. Both tenants and all spaces have the same texts; only their KV
 * differs, in every byte, so that a byte of another tenant, space, text or place is always wrong.
 */
#include "life/life.h"

#include "support/kv_entry.h"

#include <stdlib.h>
#include <string.h>

#define FAMILY 3u        /* chains that begin alike */
#define SHARED_BLOCKS 3u /* with so many blocks */

const struct life_shape life_shapes[2] = {
    {.n_layers = 2, .k_dim = 4},
    /* 512 KiB an entry: 64 MiB, the smallest disk, holds 126 of them. */
    {.n_layers = 4, .k_dim = 256, .segment_tokens = 64},
};

size_t life_token_bytes(const struct life_shape *shape)
{
    return (size_t)shape->n_layers * 2 * shape->k_dim * sizeof(float);
}

static void draw_tokens(uint32_t *tokens, uint32_t n, uint64_t seed)
{
    uint64_t x = kv_prefix(seed, 0x11FE);
    for (uint32_t i = 0; i < n; i++) {
        x = kv_prefix(x, i + 1);
        tokens[i] = (uint32_t)(x >> 40);
    }
}

uint32_t life_entry(uint32_t text, uint32_t b)
{
    if (text < LIFE_SEGMENTS) return text;
    uint32_t chain = text - LIFE_SEGMENTS;
    if (b < SHARED_BLOCKS) chain -= chain % FAMILY;
    return LIFE_SEGMENTS + chain * LIFE_BLOCKS + b;
}

void life_text_make(struct life_text *t, const struct life_shape *shape, uint32_t text)
{
    memset(t, 0, sizeof *t);
    if (text >= LIFE_SEGMENTS) {
        t->chain = true;
        t->n_entries = LIFE_BLOCKS;
        t->n_tokens = LIFE_BLOCKS * LIFE_BLOCK_TOKENS;
        for (uint32_t b = 0; b < LIFE_BLOCKS; b++)
            draw_tokens(t->tokens + b * LIFE_BLOCK_TOKENS, LIFE_BLOCK_TOKENS, life_entry(text, b));
        return;
    }
    uint64_t x = kv_prefix(text, 0x1E46);
    uint32_t n = shape->segment_tokens ? shape->segment_tokens : 8 + (uint32_t)(x >> 33) % 120;
    t->n_entries = 1;
    t->base = text % 5 * 100;
    t->n_context = text % 3 == 0 ? 20 : 0;
    t->n_tokens = t->n_context + n;
    draw_tokens(t->tokens, t->n_context, 0xC047E + text % 2);
    draw_tokens(t->tokens + t->n_context, n, text);
}

size_t life_text_bytes(const struct life_shape *shape, uint32_t text)
{
    struct life_text t;
    life_text_make(&t, shape, text);
    return (t.n_tokens - t.n_context) * life_token_bytes(shape);
}

void life_kv(const struct life_shape *shape, uint32_t tenant, uint32_t space,
             const struct life_text *t, uint32_t first, uint32_t n, void *packed)
{
    uint64_t seen = kv_prefix(kv_prefix(0x11FE, tenant + 1), space + 1);
    uint32_t row_bytes = shape->k_dim * (uint32_t)sizeof(float);
    uint8_t *at = packed;
    for (uint32_t i = 0; i < first; i++)
        seen = kv_prefix(seen, t->tokens[i]);
    for (uint32_t i = 0; i < n; i++) {
        seen = kv_prefix(seen, t->tokens[first + i]);
        for (uint32_t l = 0; l < shape->n_layers; l++)
            for (uint32_t plane = 0; plane < 2; plane++)
                kv_row(at + ((size_t)(l * 2 + plane) * n + i) * row_bytes, row_bytes, seen, l,
                       plane);
    }
}
