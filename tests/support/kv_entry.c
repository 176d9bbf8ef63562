/* kv_entry.c - entries whose every byte follows from their tokens. */
#include "support/kv_entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES 4096u

static void *must_alloc(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, ALIGN_BYTES, bytes ? bytes : 1) != 0) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        abort();
    }
    return p;
}

static uint64_t draw(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15u;
    return kv_prefix(*state, 0);
}

uint64_t kv_prefix(uint64_t before, uint32_t token)
{
    uint64_t x = (before ^ token) * 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 32);
}

void kv_row(uint8_t *row, uint32_t bytes, uint64_t prefix, uint32_t layer, uint32_t plane)
{
    uint64_t x = kv_prefix(prefix, layer * 2 + plane + 1);
    for (uint32_t i = 0; i < bytes; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint64_t word = x ^ (x >> 33);
        memcpy(row + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static uint32_t cell_rows(const struct tsr_entry_head *h, uint32_t cell)
{
    uint32_t left = h->n_tokens - cell * h->cell_tokens;
    return left < h->cell_tokens ? left : h->cell_tokens;
}

/* Everything but the contents of tokens, extra and KV. */
static void shape_up(struct kv_entry *e, const struct kv_shape *s)
{
    memset(e, 0, sizeof *e);
    struct tsr_entry_head *h = &e->head;
    h->kind = TSR_KIND_SEGMENT;
    h->n_tokens = s->n_tokens;
    h->cell_tokens = s->cell_tokens;
    h->n_layers = s->n_layers;
    h->n_planes = s->n_planes;
    h->row_bytes[0] = s->row_bytes[0];
    h->row_bytes[1] = s->n_planes > 1 ? s->row_bytes[1] : 0;
    h->extra_bytes = s->extra_bytes;
    e->n_cells = (s->n_tokens + s->cell_tokens - 1) / s->cell_tokens;
    e->tokens = must_alloc(s->n_tokens * sizeof e->tokens[0]);
    e->extra = must_alloc(s->extra_bytes);
    size_t cell_bytes =
        (size_t)s->cell_tokens * s->n_layers * ((size_t)h->row_bytes[0] + h->row_bytes[1]);
    e->data_bytes = cell_bytes * e->n_cells;
    e->block = must_alloc(e->data_bytes + s->skew);
    e->data = e->block + s->skew;
    e->planes = must_alloc((size_t)s->n_layers * s->n_planes * e->n_cells * sizeof e->planes[0]);
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t p = 0; p < s->n_planes; p++)
            for (uint32_t c = 0; c < e->n_cells; c++)
                e->planes[((size_t)l * s->n_planes + p) * e->n_cells + c] =
                    e->data + c * cell_bytes +
                    (size_t)s->cell_tokens *
                        ((size_t)l * ((size_t)h->row_bytes[0] + h->row_bytes[1]) +
                         (p ? h->row_bytes[0] : 0));
}

/* What a seed says about tokens, extra and the fields of the head. */
static void draw_tokens(struct kv_entry *e, uint64_t seed)
{
    uint64_t state = seed * 2 + 0x1234567;
    for (uint32_t i = 0; i < e->head.n_tokens; i++)
        e->tokens[i] = (uint32_t)(draw(&state) >> 40);
    for (uint32_t i = 0; i < e->head.extra_bytes; i++)
        e->extra[i] = (uint8_t)(draw(&state) >> 56);
    uint64_t word[10];
    for (size_t i = 0; i < 10; i++)
        word[i] = draw(&state);
    memcpy(e->head.key.bytes, &word[0], 16);
    memset(e->head.space, 0x5E, sizeof e->head.space);
    memcpy(e->head.digest, &word[2], 32);
    memcpy(e->head.parent.bytes, &word[6], 16);
    e->head.base = (uint32_t)(word[8] >> 44);
    e->head.freq_set = (uint32_t)(word[9] >> 60);
}

void kv_entry_init(struct kv_entry *e, const struct kv_shape *shape, uint64_t seed)
{
    shape_up(e, shape);
    draw_tokens(e, seed);
    const struct tsr_entry_head *h = &e->head;
    uint64_t prefix = 0;
    for (uint32_t t = 0; t < h->n_tokens; t++) {
        prefix = kv_prefix(prefix, e->tokens[t]);
        for (uint32_t l = 0; l < h->n_layers; l++)
            for (uint32_t p = 0; p < h->n_planes; p++) {
                uint8_t *cell =
                    e->planes[((size_t)l * h->n_planes + p) * e->n_cells + t / h->cell_tokens];
                kv_row(cell + (size_t)(t % h->cell_tokens) * h->row_bytes[p], h->row_bytes[p],
                       prefix, l, p);
            }
    }
}

void kv_entry_blank(struct kv_entry *e)
{
    memset(e->tokens, 0xA5, e->head.n_tokens * sizeof e->tokens[0]);
    memset(e->extra, 0xA5, e->head.extra_bytes);
    memset(e->data, 0xA5, e->data_bytes);
    memset(e->head.digest, 0xA5, sizeof e->head.digest);
    memset(e->head.parent.bytes, 0xA5, sizeof e->head.parent.bytes);
    e->head.kind = e->head.base = e->head.freq_set = 0xA5A5A5A5u;
}

void kv_entry_init_room(struct kv_entry *e, const struct kv_entry *like, uint32_t skew)
{
    const struct tsr_entry_head *h = &like->head;
    struct kv_shape s = {h->n_tokens,
                         h->cell_tokens,
                         h->n_layers,
                         h->n_planes,
                         {h->row_bytes[0], h->row_bytes[1]},
                         h->extra_bytes,
                         skew};
    shape_up(e, &s);
    e->head.key = h->key;
    memcpy(e->head.space, h->space, sizeof h->space);
    e->loc = like->loc;
    kv_entry_blank(e);
}

void kv_entry_init_room_seed(struct kv_entry *e, const struct kv_shape *shape, uint64_t seed)
{
    shape_up(e, shape);
    draw_tokens(e, seed);
    kv_entry_blank(e);
}

void kv_entry_fini(struct kv_entry *e)
{
    free(e->tokens);
    free(e->extra);
    free(e->block);
    free(e->planes);
    memset(e, 0, sizeof *e);
}

struct tsr_tier_io kv_entry_io(struct kv_entry *e)
{
    struct tsr_tier_io io = {0};
    io.head = e->head;
    io.loc = e->loc;
    io.tokens = e->tokens;
    io.extra = e->extra;
    io.extra_max = e->head.extra_bytes;
    io.n_cells = e->n_cells;
    io.planes = e->planes;
    return io;
}

struct tsr_tier_ref kv_entry_ref(const struct kv_entry *e)
{
    struct tsr_tier_ref ref = {.key = e->head.key, .loc = e->loc};
    memcpy(ref.space, e->head.space, sizeof ref.space);
    return ref;
}

bool kv_entry_head_right(const struct kv_entry *e, const struct kv_shape *shape, uint64_t seed)
{
    struct kv_entry want;
    struct kv_shape small = *shape;
    small.n_layers = 1; /* its KV is not looked at */
    shape_up(&want, &small);
    draw_tokens(&want, seed);
    want.head.n_layers = shape->n_layers;
    const struct tsr_entry_head *a = &e->head, *b = &want.head;
    bool right = a->n_tokens == b->n_tokens && a->extra_bytes == b->extra_bytes &&
                 memcmp(&a->key, &b->key, sizeof a->key) == 0 &&
                 memcmp(a->space, b->space, sizeof a->space) == 0 &&
                 memcmp(a->digest, b->digest, sizeof a->digest) == 0 &&
                 memcmp(&a->parent, &b->parent, sizeof a->parent) == 0 && a->kind == b->kind &&
                 a->base == b->base && a->freq_set == b->freq_set &&
                 a->cell_tokens == b->cell_tokens && a->n_layers == b->n_layers &&
                 a->n_planes == b->n_planes && a->row_bytes[0] == b->row_bytes[0] &&
                 a->row_bytes[1] == b->row_bytes[1] &&
                 memcmp(e->tokens, want.tokens, a->n_tokens * sizeof e->tokens[0]) == 0 &&
                 memcmp(e->extra, want.extra, a->extra_bytes) == 0;
    kv_entry_fini(&want);
    return right;
}

bool kv_entry_layer_right(const struct kv_entry *e, uint32_t layer)
{
    const struct tsr_entry_head *h = &e->head;
    uint8_t *row =
        must_alloc(h->row_bytes[0] > h->row_bytes[1] ? h->row_bytes[0] : h->row_bytes[1]);
    bool right = true;
    uint64_t prefix = 0;
    for (uint32_t c = 0; c < e->n_cells && right; c++)
        for (uint32_t i = 0; i < cell_rows(h, c) && right; i++) {
            prefix = kv_prefix(prefix, e->tokens[c * h->cell_tokens + i]);
            for (uint32_t p = 0; p < h->n_planes && right; p++) {
                const uint8_t *cell = e->planes[((size_t)layer * h->n_planes + p) * e->n_cells + c];
                if (!cell) continue;
                kv_row(row, h->row_bytes[p], prefix, layer, p);
                right = memcmp(cell + (size_t)i * h->row_bytes[p], row, h->row_bytes[p]) == 0;
            }
        }
    free(row);
    return right;
}

bool kv_entry_right(const struct kv_entry *e, const struct kv_shape *shape, uint64_t seed)
{
    if (!kv_entry_head_right(e, shape, seed)) return false;
    for (uint32_t l = 0; l < e->head.n_layers; l++)
        if (!kv_entry_layer_right(e, l)) return false;
    return true;
}
