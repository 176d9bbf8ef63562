/* attention_kit.h - attention over random numbers, for the tests of attention_x86.c and
 * attention_tiles_x86.c. Those who include it have the same rows, masks and checks. */
#ifndef TSRI_TEST_ATTENTION_KIT_H
#define TSRI_TEST_ATTENTION_KIT_H

#include "model/compute_kit.h"

#include <stdlib.h>

enum { ROWS_MOST = 600, KEYS_MOST = 1088, WIDEST = 32 * 128, SOURCE = 1 << 20 };

static float source[SOURCE];
static char *memory;
#define MEMORY ((size_t)96 << 20)

/* What is computed. Rows sit at the end of the keys, or are spread over them. */
struct shape {
    enum ggml_type type;
    uint32_t dim, n_heads, n_kv_heads, n_rows, n_keys;
    bool spread;
};

/* A context with Q, K, V and a mask in it, for as many rows as ggml's tiles want. */
struct maths {
    struct ggml_context *ctx;
    struct ggml_tensor *q, *k, *v, *mask;
    ggml_backend_buffer_t buffer;
    float scale;
};

/* Random numbers; some rows are large, so that their softmax is nearly all one key. */
static void set_numbers(struct ggml_tensor *t, int64_t from)
{
    float some[WIDEST];
    int64_t n_rows = ggml_nelements(t) / t->ne[0];
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < t->ne[0]; i++)
            some[i] = source[(from + r * t->ne[0] + i) % SOURCE] * (r % 11 == 3 ? 40.0F : 3.0F);
        char *to = (char *)t->data + r * (int64_t)t->nb[1];
        if (t->type == GGML_TYPE_F32)
            memcpy(to, some, (size_t)t->ne[0] * sizeof *some);
        else
            ggml_fp32_to_fp16_row(some, (ggml_fp16_t *)(void *)to, t->ne[0]);
    }
}

static const ggml_fp16_t hidden = 0xFC00;

/* Row r sees the keys up to its own. Some rows see nothing, or not the first 130; some have a bias. */
static void set_mask(struct ggml_tensor *mask, const struct shape *s)
{
    for (uint32_t r = 0; r < mask->ne[1]; r++) {
        ggml_fp16_t *row = (ggml_fp16_t *)mask->data + (size_t)r * s->n_keys;
        uint32_t own = s->spread ? (r + 1) * s->n_keys / s->n_rows : s->n_keys - s->n_rows + r + 1;
        uint32_t first = r % 7 == 5 ? 130 : 0;
        for (uint32_t k = 0; k < s->n_keys; k++) {
            bool sees = r < s->n_rows && k >= first && k < own && r % 23 != 9;
            float bias = r % 5 == 2 && k < 70 ? source[k] : 0;
            row[k] = sees ? ggml_fp32_to_fp16(bias) : hidden;
        }
    }
}

static struct maths begin(const struct shape *s)
{
    struct ggml_init_params params = {.mem_size = MEMORY, .mem_buffer = memory};
    struct maths m = {.ctx = ggml_init(params), .scale = 0.125F};
    CHECK(m.ctx);
    uint32_t filled = s->n_rows < TSRI_TILE_ROWS ? TSRI_TILE_ROWS : s->n_rows;
    m.q = ggml_new_tensor_3d(m.ctx, GGML_TYPE_F32, s->dim, s->n_heads, filled);
    struct ggml_tensor *kv[2];
    for (int i = 0; i < 2; i++) {
        kv[i] = ggml_new_tensor_2d(m.ctx, s->type, s->dim * s->n_kv_heads, s->n_keys);
        set_numbers(kv[i], 1000 + i * 77777);
    }
    m.buffer = kv[0]->buffer = kv[1]->buffer = ggml_backend_cpu_buffer_from_ptr(memory, MEMORY);
    size_t head = ggml_row_size(s->type, s->dim);
    m.k = ggml_view_3d(m.ctx, kv[0], s->dim, s->n_keys, s->n_kv_heads, kv[0]->nb[1], head, 0);
    m.v = ggml_view_3d(m.ctx, kv[1], s->dim, s->n_keys, s->n_kv_heads, kv[1]->nb[1], head, 0);
    m.mask = ggml_new_tensor_2d(m.ctx, GGML_TYPE_F16, s->n_keys, filled);
    set_numbers(m.q, 5);
    set_mask(m.mask, s);
    return m;
}

static void end(struct maths *m)
{
    ggml_backend_buffer_free(m->buffer);
    ggml_free(m->ctx);
}

/* Rows from `first` on. */
static const float *by_us(struct maths *m, uint32_t first, uint32_t n, int threads, bool tiles)
{
    struct ggml_tensor *q = m->q, *mask = m->mask;
    struct tsri_attention a = {
        .q = ggml_view_3d(m->ctx, q, q->ne[0], q->ne[1], n, q->nb[1], q->nb[2], first * q->nb[2]),
        .k = m->k,
        .v = m->v,
        .mask = ggml_view_2d(m->ctx, mask, mask->ne[0], n, mask->nb[1], first * mask->nb[1]),
        .scale = &m->scale,
        .tiles = tiles};
    return kit_compute(m->ctx, tsri_attention(m->ctx, &a), threads);
}

/* Bits of n floats; where they differ, which one is said. */
static void check_same(const float *got, const float *want, size_t n)
{
    size_t i = 0;
    while (i < n && memcmp(got + i, want + i, sizeof *got) == 0)
        i++;
    CHECK_INT(i, n);
}

/* A row alone, in other company and by other threads. */
static void check_company(const struct shape *s, bool tiles)
{
    struct maths m = begin(s);
    size_t row = s->dim * s->n_heads;
    const float *all = by_us(&m, 0, s->n_rows, 1, tiles);
    for (uint32_t first = 0, n = 1; first + n <= s->n_rows; first += n, n = n % 20 + 1)
        check_same(by_us(&m, first, n, 1, tiles), all + first * row, n * row);
    for (int threads = 2; threads <= 5; threads++)
        check_same(by_us(&m, 0, s->n_rows, threads, tiles), all, s->n_rows * row);
    end(&m);
}

/* Rows whose masks hide everything, of all those there are. */
static void check_blind(const struct shape *s, bool tiles)
{
    struct maths m = begin(s);
    ggml_fp16_t *mask = m.mask->data;
    for (uint32_t i = 0; i < s->n_rows * s->n_keys; i++)
        mask[i] = hidden;
    const float *got = by_us(&m, 0, s->n_rows, 1, tiles);
    for (uint32_t i = 0; i < s->n_rows * s->dim * s->n_heads; i++)
        CHECK(got[i] == 0);
    end(&m);
}

static void kit_init(void)
{
    memory = aligned_alloc(64, MEMORY);
    uint32_t random = 12345;
    for (size_t i = 0; i < SOURCE; i++) {
        random = random * 1664525u + 1013904223u;
        source[i] = (float)(random >> 8) / (float)(1 << 23) - 1;
    }
}

#endif
