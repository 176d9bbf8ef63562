/* multiply.c - who multiplies with a matrix: a kernel of our own where there is one for its type on
 * this processor, else ggml. Each of ours is two operations of ggml's graph, which its threads share:
 * rows are made ready, once for all matrices of a kind, and multiplied. */
#include "model/model.h"

#if defined(__x86_64__)

#include "model/multiply_x86.h"

static bool vnni_here(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

enum tsri_multiplier tsri_multiplier(const struct ggml_tensor *matrix, bool few, bool tiles)
{
    /* Memory of ggml's special kinds has another order, and says that the host cannot read it. */
    if (!matrix->buffer || !ggml_backend_buffer_is_host(matrix->buffer)) return TSRI_BY_GGML;
    if (tiles && !few && tsri_tiles_fit(matrix->type, matrix->ne[0], matrix->ne[1]))
        return TSRI_BY_TILES;
    bool rows_fit = matrix->ne[1] % WIDE == 0 && vnni_here();
    if (rows_fit && tsri_blocks_fit(matrix->type, matrix->ne[0])) return TSRI_BY_BLOCKS;
    bool by_k = matrix->type == GGML_TYPE_Q4_K || matrix->type == GGML_TYPE_Q6_K;
    if (rows_fit && few && by_k) return TSRI_BY_K;
    return TSRI_BY_GGML;
}

struct ggml_tensor *tsri_multiply_input(struct ggml_context *ctx, enum tsri_multiplier by,
                                        struct ggml_tensor *x)
{
    switch (by) {
    case TSRI_BY_BLOCKS:
        return ggml_custom_4d(ctx, GGML_TYPE_I8, (int64_t)tsri_narrow_bytes(x->ne[0]), x->ne[1], 1,
                              1, &x, 1, tsri_narrow, GGML_N_TASKS_MAX, NULL);
    case TSRI_BY_K:
        return ggml_cast(ctx, x, GGML_TYPE_Q8_K);
    case TSRI_BY_TILES:
        return ggml_custom_4d(ctx, GGML_TYPE_I8, (int64_t)tsri_tiles_bytes(x->ne[0], x->ne[1]), 1,
                              1, 1, &x, 1, tsri_tiles_spread, GGML_N_TASKS_MAX, NULL);
    default:
        return x;
    }
}

struct ggml_tensor *tsri_multiply(struct ggml_context *ctx, enum tsri_multiplier by,
                                  struct ggml_tensor *matrix, struct ggml_tensor *input)
{
    static const ggml_custom_op_t kernels[] = {[TSRI_BY_BLOCKS] = tsri_multiply_blocks,
                                               [TSRI_BY_K] = tsri_multiply_k,
                                               [TSRI_BY_TILES] = tsri_tiles_multiply};
    if (by == TSRI_BY_GGML) return ggml_mul_mat(ctx, matrix, input);
    struct ggml_tensor *both[] = {matrix, input};
    int64_t n_rows =
        by == TSRI_BY_TILES ? tsri_tiles_of(input->src[0]->ne[1]) * WIDE : input->ne[1];
    return ggml_custom_4d(ctx, GGML_TYPE_F32, matrix->ne[1], n_rows, 1, 1, both, 2, kernels[by],
                          GGML_N_TASKS_MAX, NULL);
}

#else

enum tsri_multiplier tsri_multiplier(const struct ggml_tensor *matrix, bool few, bool tiles)
{
    (void)matrix;
    (void)few;
    (void)tiles;
    return TSRI_BY_GGML;
}

struct ggml_tensor *tsri_multiply_input(struct ggml_context *ctx, enum tsri_multiplier by,
                                        struct ggml_tensor *x)
{
    (void)ctx;
    (void)by;
    return x;
}

struct ggml_tensor *tsri_multiply(struct ggml_context *ctx, enum tsri_multiplier by,
                                  struct ggml_tensor *matrix, struct ggml_tensor *input)
{
    (void)by;
    return ggml_mul_mat(ctx, matrix, input);
}

#endif
