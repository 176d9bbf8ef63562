/* multiply_x86.c - a matrix in blocks of 32 small integers times many rows, for AVX-512 with VNNI. ggml
 * multiplies Q4_0, Q5_0 and Q8_0 by 256-bit kernels that unpack the matrix again for every four rows;
 * that was half of the time of reading a prompt with the smallest model (docs/performance.md).
 *
 * Here 16 rows of the matrix are unpacked once, in the order in which vpdpbusd takes them: four
 * values of each of the 16 in a register. Then all rows of x go over them, two at a time. The
 * instruction multiplies unsigned with signed bytes, so weights are moved up by 128, and 128 times
 * the four values of x is what a sum begins with.
 *
 * The bits are those of ggml's kernel. Sums of four products are exact integers. As there, sum i of
 * each block (0 to 7) is added to float i, and these eight are added up at the end. So a row of the
 * product depends on nothing but the matrix and its row of x: neither on the number of rows nor on
 * that of threads.
 *
 * It is two operations of ggml's graph, which its threads share: x to bytes, and the product. */
#include "model/model.h"

#include <string.h>

#if defined(__x86_64__)

#include <immintrin.h>

#define BLOCK 32u       /* values of a block, of which each has a scale */
#define FOURS 8u        /* of a block: what one instruction adds up */
#define WIDE 16u        /* rows of the matrix at once */
#define ROWS 2u         /* rows of x at once: eight sums of each stay in registers */
#define BLOCKS_MAX 256u /* of a row: what is unpacked is on the stack */

#define INLINE static inline __attribute__((always_inline))
/* Loops of a known number of turns: sums must stay in registers. */
#define UNROLL _Pragma("GCC unroll 8")
#define T512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,f16c")))

/* ---- the matrix ---- */

/* Blocks as they are in the file. */
struct block_4 {
    uint16_t scale;
    uint8_t low[16]; /* values 0 to 15 in the lower halves, 16 to 31 in the upper ones */
};
struct block_5 {
    uint16_t scale;
    uint8_t fifth[4], low[16]; /* the fifth bits, and the lower four as above */
};
struct block_8 {
    uint16_t scale;
    int8_t values[BLOCK];
};
_Static_assert(sizeof(struct block_4) == 18 && sizeof(struct block_5) == 22 &&
                   sizeof(struct block_8) == 34,
               "blocks have no gaps");

static size_t block_bytes(enum ggml_type type)
{
    if (type == GGML_TYPE_Q4_0) return sizeof(struct block_4);
    return type == GGML_TYPE_Q5_0 ? sizeof(struct block_5) : sizeof(struct block_8);
}

INLINE T512 __m256i halves(const uint8_t *low)
{
    __m128i both = _mm_loadu_si128((const __m128i *)low), four = _mm_set1_epi8(15);
    __m128i upper = _mm_and_si128(_mm_srli_epi16(both, 4), four);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_and_si128(both, four)), upper, 1);
}

/* The values of a block, moved up by 128. */
INLINE T512 __m256i unpacked(const uint8_t *block, enum ggml_type type)
{
    if (type == GGML_TYPE_Q4_0)
        return _mm256_add_epi8(halves(((const struct block_4 *)block)->low),
                               _mm256_set1_epi8(128 - 8));
    if (type == GGML_TYPE_Q8_0) {
        __m256i v = _mm256_loadu_si256((const __m256i *)((const struct block_8 *)block)->values);
        return _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
    }
    uint32_t fifth;
    memcpy(&fifth, ((const struct block_5 *)block)->fifth, sizeof fifth);
    __m256i v =
        _mm256_add_epi8(halves(((const struct block_5 *)block)->low), _mm256_set1_epi8(128 - 16));
    return _mm256_mask_add_epi8(v, fifth, v, _mm256_set1_epi8(16));
}

/* 16 rows: of each block eight registers of values, and its 16 scales. */
struct wide_rows {
    _Alignas(64) uint8_t values[BLOCKS_MAX][FOURS][WIDE][4];
    _Alignas(64) float scales[BLOCKS_MAX][WIDE];
};

INLINE T512 void unpack_as(struct wide_rows *p, const uint8_t *from, size_t row_bytes,
                           uint32_t n_blocks, enum ggml_type type)
{
    const __m256i places = _mm256_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112);
    size_t bytes = block_bytes(type);
    for (uint32_t b = 0; b < n_blocks; b++, from += bytes) {
        for (uint32_t r = 0; r < WIDE; r++) {
            const uint8_t *block = from + r * row_bytes;
            uint16_t scale;
            memcpy(&scale, block, sizeof scale);
            p->scales[b][r] = _cvtsh_ss(scale);
            _mm256_i32scatter_epi32(p->values[b][0][r], places, unpacked(block, type), 4);
        }
    }
}

T512 static void unpack(struct wide_rows *p, const uint8_t *from, size_t row_bytes,
                        uint32_t n_blocks, enum ggml_type type)
{
    if (type == GGML_TYPE_Q4_0) unpack_as(p, from, row_bytes, n_blocks, GGML_TYPE_Q4_0);
    if (type == GGML_TYPE_Q5_0) unpack_as(p, from, row_bytes, n_blocks, GGML_TYPE_Q5_0);
    if (type == GGML_TYPE_Q8_0) unpack_as(p, from, row_bytes, n_blocks, GGML_TYPE_Q8_0);
}

/* ---- rows of x ---- */

/* A block of a row: its bytes, what each sum of four begins with, and its scale. */
struct narrow_block {
    int8_t values[FOURS][4];
    int32_t begins[FOURS];
    float scale;
};

/* Rounded as ggml does it for such a matrix: the scale to 16 bits, values to the nearest even. */
T512 static void narrow(const float *from, int64_t n, struct narrow_block *to)
{
    const __m256i ones = _mm256_set1_epi8(1), by_128 = _mm256_set1_epi32(-128);
    for (int64_t b = 0; b < n / BLOCK; b++, from += BLOCK) {
        __m512 x = _mm512_loadu_ps(from), y = _mm512_loadu_ps(from + 16);
        float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x), _mm512_abs_ps(y)));
        __m512 by = _mm512_set1_ps(most != 0 ? 127 / most : 0);
        __m128i low = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, by)));
        __m128i high = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(y, by)));
        __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, all);
        _mm256_storeu_si256((__m256i *)(void *)to[b].values, all);
        _mm256_storeu_si256((__m256i *)(void *)to[b].begins, _mm256_mullo_epi32(sums, by_128));
        to[b].scale = _cvtsh_ss(_cvtss_sh(most / 127, _MM_FROUND_TO_NEAREST_INT));
    }
}

static void narrow_all(struct ggml_tensor *dst, int ith, int nth, void *unused)
{
    (void)unused;
    const struct ggml_tensor *x = dst->src[0];
    for (int64_t r = ith; r < x->ne[1]; r += nth)
        narrow((const float *)(const void *)((const char *)x->data + r * (int64_t)x->nb[1]),
               x->ne[0], (void *)((char *)dst->data + r * (int64_t)dst->nb[1]));
}

/* ---- the product ---- */

/* Sums in the order in which ggml adds up the lanes of a register. */
INLINE T512 __m512 whole(const __m512 *sums)
{
    __m512 a[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        a[i] = _mm512_add_ps(sums[i + 4], sums[i]);
    return _mm512_add_ps(_mm512_add_ps(a[0], a[2]), _mm512_add_ps(a[1], a[3]));
}

/* n_rows, at most ROWS, is a constant wherever it is called. y_row: from one row of y to the next. */
INLINE T512 void multiply_rows(const struct wide_rows *w, uint32_t n_blocks,
                               const struct narrow_block *x, float *y, size_t y_row,
                               uint32_t n_rows)
{
    __m512 sums[ROWS][FOURS];
    UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        UNROLL
    for (uint32_t i = 0; i < FOURS; i++)
        sums[r][i] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < n_blocks; b++) {
        __m512 scales[ROWS];
        UNROLL
        for (uint32_t r = 0; r < n_rows; r++)
            scales[r] = _mm512_mul_ps(_mm512_load_ps(w->scales[b]),
                                      _mm512_set1_ps(x[r * n_blocks + b].scale));
        UNROLL
        for (uint32_t i = 0; i < FOURS; i++) {
            __m512i values = _mm512_load_si512(w->values[b][i]);
            UNROLL
            for (uint32_t r = 0; r < n_rows; r++) {
                const struct narrow_block *at = &x[r * n_blocks + b];
                int32_t four;
                memcpy(&four, at->values[i], sizeof four);
                __m512i sum = _mm512_dpbusd_epi32(_mm512_set1_epi32(at->begins[i]), values,
                                                  _mm512_set1_epi32(four));
                sums[r][i] = _mm512_fmadd_ps(scales[r], _mm512_cvtepi32_ps(sum), sums[r][i]);
            }
        }
    }
    UNROLL
    for (uint32_t r = 0; r < n_rows; r++)
        _mm512_storeu_ps(y + r * y_row, whole(sums[r]));
}

T512 static void multiply_wide(const struct wide_rows *w, uint32_t n_blocks,
                               const struct ggml_tensor *x, float *y, size_t y_row)
{
    const struct narrow_block *row = x->data;
    int64_t r = 0;
    for (; r + ROWS <= x->ne[1]; r += ROWS, row += ROWS * n_blocks, y += ROWS * y_row)
        multiply_rows(w, n_blocks, row, y, y_row, ROWS);
    if (r < x->ne[1]) multiply_rows(w, n_blocks, row, y, y_row, 1);
}

/* Threads share the rows of the matrix. */
static void multiply_all(struct ggml_tensor *dst, int ith, int nth, void *unused)
{
    (void)unused;
    const struct ggml_tensor *m = dst->src[0], *x = dst->src[1];
    uint32_t n_blocks = (uint32_t)(m->ne[0] / BLOCK);
    int64_t n_wide = m->ne[1] / WIDE, end = n_wide * (ith + 1) / nth;
    struct wide_rows w;
    for (int64_t i = n_wide * ith / nth; i < end; i++) {
        unpack(&w, (const uint8_t *)m->data + (size_t)i * WIDE * m->nb[1], m->nb[1], n_blocks,
               m->type);
        multiply_wide(&w, n_blocks, x, (float *)dst->data + i * WIDE, dst->nb[1] / sizeof(float));
    }
}

bool tsri_multiply_can(const struct ggml_tensor *matrix)
{
    bool kind = matrix->type == GGML_TYPE_Q4_0 || matrix->type == GGML_TYPE_Q5_0 ||
                matrix->type == GGML_TYPE_Q8_0;
    /* Memory of ggml's special kinds has another order, and says that the host cannot read it. */
    return kind && matrix->ne[0] % BLOCK == 0 && matrix->ne[0] <= BLOCK * BLOCKS_MAX &&
           matrix->ne[1] % WIDE == 0 && matrix->buffer &&
           ggml_backend_buffer_is_host(matrix->buffer) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

struct ggml_tensor *tsri_multiply_input(struct ggml_context *ctx, struct ggml_tensor *x)
{
    return ggml_custom_4d(ctx, GGML_TYPE_I8,
                          x->ne[0] / BLOCK * (int64_t)sizeof(struct narrow_block), x->ne[1], 1, 1,
                          &x, 1, narrow_all, GGML_N_TASKS_MAX, NULL);
}

struct ggml_tensor *tsri_multiply(struct ggml_context *ctx, struct ggml_tensor *matrix,
                                  struct ggml_tensor *narrowed)
{
    struct ggml_tensor *both[] = {matrix, narrowed};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, matrix->ne[1], narrowed->ne[1], 1, 1, both, 2,
                          multiply_all, GGML_N_TASKS_MAX, NULL);
}

#else

bool tsri_multiply_can(const struct ggml_tensor *matrix)
{
    (void)matrix;
    return false;
}

struct ggml_tensor *tsri_multiply_input(struct ggml_context *ctx, struct ggml_tensor *x)
{
    (void)ctx;
    return x;
}

struct ggml_tensor *tsri_multiply(struct ggml_context *ctx, struct ggml_tensor *matrix,
                                  struct ggml_tensor *narrowed)
{
    return ggml_mul_mat(ctx, matrix, narrowed);
}

#endif
