/* multiply_kit.h - our kernels against ggml's, for the tests of multiply_x86.c, multiply_k_x86.c and
 * multiply_tiles_x86.c: the same product, and a row that does not depend on its company. */
#ifndef TSRI_TEST_MULTIPLY_KIT_H
#define TSRI_TEST_MULTIPLY_KIT_H

#include "model/compute_kit.h"

#include <stdlib.h>

enum { WIDEST = 4928, OUT = 48, TALL = 96, ROWS_MOST = 51 };

/* A type, how many values a block of it has, and where in it its scale is. With `few`, ggml has other
 * kernels, with other bits, from eight rows on. */
struct kind {
    enum ggml_type type;
    int64_t block;
    size_t scale;
    bool few;
};

static float source[TALL * WIDEST];
static char *memory;
enum { MEMORY = 32 << 20 };

/* A context with a matrix of a type in it, in memory that the host reads. */
struct maths {
    struct ggml_context *ctx;
    struct ggml_tensor *matrix;
    ggml_backend_buffer_t buffer;
};

static struct maths begin(enum ggml_type type, int64_t n_in, int64_t n_out)
{
    struct ggml_init_params params = {.mem_size = MEMORY, .mem_buffer = memory};
    struct maths m = {.ctx = ggml_init(params)};
    CHECK(m.ctx);
    m.matrix = ggml_new_tensor_2d(m.ctx, type, n_in, n_out);
    ggml_quantize_chunk(type, source, m.matrix->data, 0, n_out, n_in, NULL);
    m.buffer = m.matrix->buffer = ggml_backend_cpu_buffer_from_ptr(memory, MEMORY);
    return m;
}

static void end(struct maths *m)
{
    ggml_backend_buffer_free(m->buffer);
    ggml_free(m->ctx);
}

/* Rows of x from `first` on, times the matrix. */
static const float *product(struct maths *m, int64_t first, int64_t n_rows, enum tsri_multiplier by,
                            int threads)
{
    int64_t n_in = m->matrix->ne[0];
    struct ggml_tensor *x = ggml_new_tensor_2d(m->ctx, GGML_TYPE_F32, n_in, n_rows);
    for (int64_t i = 0; i < n_in * n_rows; i++)
        ((float *)x->data)[i] = source[(first * n_in + i) * 7 % (TALL * WIDEST)];
    struct ggml_tensor *input = tsri_multiply_input(m->ctx, by, x);
    struct ggml_tensor *y = tsri_multiply(m->ctx, by, m->matrix, input);
    return kit_compute(m->ctx, y, threads);
}

static void kit_init(void)
{
    memory = aligned_alloc(64, MEMORY);
    uint32_t random = 12345;
    for (size_t i = 0; i < sizeof source / sizeof *source; i++) {
        random = random * 1664525u + 1013904223u;
        source[i] = (float)(random >> 8) / (float)(1 << 23) - 1;
    }
}

static inline bool runs_here(void)
{
    struct maths m = begin(GGML_TYPE_Q5_0, 64, OUT);
    bool can = tsri_multiplier(m.matrix, false, false) == TSRI_BY_BLOCKS;
    end(&m);
    return can;
}

static inline bool same_bits(struct maths *m, int64_t n_rows)
{
    enum tsri_multiplier own = tsri_multiplier(m->matrix, true, false);
    const float *want = product(m, 0, n_rows, TSRI_BY_GGML, 1),
                *got = product(m, 0, n_rows, own, 1);
    return memcmp(got, want, sizeof *got * OUT * (size_t)n_rows) == 0;
}

static inline void check_products(const struct kind *k)
{
    /* One block, a part that is full, one more, and several parts. */
    static const int64_t sizes[] = {32, 256, 2048, 2080, 2304, 4864};
    static const int64_t rows[] = {1, 2, 3, 7, 19};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        if (sizes[s] % k->block != 0) continue;
        struct maths m = begin(k->type, sizes[s], OUT);
        CHECK(tsri_multiplier(m.matrix, true, false) != TSRI_BY_GGML);
        CHECK((tsri_multiplier(m.matrix, false, false) != TSRI_BY_GGML) == !k->few);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            if (rows[r] < 8 || !k->few) CHECK(same_bits(&m, rows[r]));
        end(&m);
    }
}

static inline void check_any_bytes(const struct kind *k)
{
    enum { BLOCKS = 9 };
    struct maths m = begin(k->type, BLOCKS * k->block, OUT);
    size_t bytes = ggml_type_size(k->type);
    uint8_t *data = m.matrix->data;
    uint32_t random = 777;
    for (size_t i = 0; i < bytes * BLOCKS * OUT; i++) {
        random = random * 1664525u + 1013904223u;
        data[i] = (uint8_t)(random >> 24);
    }
    for (size_t i = 0; i < BLOCKS * OUT; i++) { /* neither infinite nor no number */
        data[i * bytes + k->scale + 1] &= 0xBF;
        if (k->type == GGML_TYPE_Q4_K) data[i * bytes + k->scale + 3] &= 0xBF;
    }
    for (int64_t n = 1; n < 8; n++)
        CHECK(same_bits(&m, n));
    end(&m);
}

static inline void check_company(enum ggml_type type, bool tiles)
{
    struct maths m = begin(type, 2304, TALL);
    enum tsri_multiplier own = tsri_multiplier(m.matrix, !tiles, tiles);
    const float *all = product(&m, 0, ROWS_MOST, own, 1);
    for (int64_t r = 0; r < ROWS_MOST; r++) {
        const float *alone = product(&m, r, 1, own, 1);
        CHECK(memcmp(alone, all + r * TALL, TALL * sizeof *all) == 0);
    }
    for (int threads = 2; threads <= 5; threads++) {
        const float *shared = product(&m, 0, ROWS_MOST, own, threads);
        CHECK(memcmp(shared, all, sizeof *all * TALL * ROWS_MOST) == 0);
    }
    end(&m);
}

#endif
