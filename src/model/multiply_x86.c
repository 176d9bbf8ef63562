/* multiply_x86.c - a matrix in blocks of 32 small integers times rows, for AVX-512 with VNNI. ggml
 * multiplies Q4_0, Q5_0 and Q8_0 by 256-bit kernels that unpack the matrix again for every four rows;
 * that was half of the time of reading a prompt with the smallest model, and more of that of decoding
 * (docs/performance.md).
 *
 * Here 16 rows of the matrix are unpacked once, in the order in which vpdpbusd takes them: four
 * values of each of the 16 in a register. Then all rows of x go over them, two at a time. The
 * instruction multiplies unsigned with signed bytes, so weights are moved up by 128, and 128 times
 * the four values of x is what a sum begins with. Unpacking costs about as much as three rows of x,
 * so that it pays for a single one, too.
 *
 * The bits are those of ggml's kernel. Sums of four products are exact integers. As there, sum i of
 * each block (0 to 7) is added to float i, and these eight are added up at the end. So a row of the
 * product depends on nothing but the matrix and its row of x: neither on the number of rows nor on
 * that of threads.
 *
 * It is two operations of ggml's graph, which its threads share: x to bytes, and the product. */
#include "model/multiply_x86.h"

#include <string.h>

#if defined(__x86_64__)

#define ROWS 2u         /* rows of x at once: eight sums of each stay in registers */
#define BLOCKS_MAX 256u /* of a row: what is unpacked is on the stack */

/* ---- the matrix ---- */

static size_t block_bytes(enum ggml_type type)
{
    if (type == GGML_TYPE_Q4_0) return sizeof(struct block_4);
    return type == GGML_TYPE_Q5_0 ? sizeof(struct block_5) : sizeof(struct block_8);
}

/* 16 rows: of each block eight registers of values, and its 16 scales. */
struct wide_rows {
    _Alignas(64) uint8_t values[BLOCKS_MAX][FOURS][WIDE][4];
    _Alignas(64) float scales[BLOCKS_MAX][WIDE];
};

/* A block of each of 16 rows, its values moved up by 128. */
INLINE WIDE_VNNI void unpack_8(const uint8_t *from, size_t row_bytes, __m512i values[FOURS])
{
    gather_fours(from, row_bytes, values);
    gather_fours(from + 16, row_bytes, values + 4);
    UNROLL
    for (uint32_t i = 0; i < FOURS; i++)
        values[i] = _mm512_xor_si512(values[i], _mm512_set1_epi8((char)0x80));
}

/* Lower halves of bytes are values 0 to 15, upper ones are 16 to 31. */
INLINE WIDE_VNNI void unpack_low(const uint8_t *from, size_t row_bytes, __m512i values[FOURS])
{
    const __m512i half = _mm512_set1_epi8(15);
    gather_fours(from, row_bytes, values);
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        values[i + 4] = _mm512_and_si512(_mm512_srli_epi16(values[i], 4), half);
        values[i] = _mm512_and_si512(values[i], half);
    }
}

INLINE WIDE_VNNI void unpack_4(const uint8_t *from, size_t row_bytes, __m512i values[FOURS])
{
    unpack_low(from, row_bytes, values);
    UNROLL
    for (uint32_t i = 0; i < FOURS; i++)
        values[i] = _mm512_add_epi8(values[i], _mm512_set1_epi8(128 - 8));
}

/* fifth: 32 bits of each row, one for each value. */
INLINE WIDE_VNNI void unpack_5(const uint8_t *from, size_t row_bytes, __m512i fifth,
                               __m512i values[FOURS])
{
    const __m512i first = _mm512_set1_epi32(0x08040201), next = _mm512_slli_epi32(first, 4);
    const __m512i unset = _mm512_set1_epi8(128 - 16), set = _mm512_set1_epi8((char)128);
    __m512i byte = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    unpack_low(from, row_bytes, values);
    UNROLL
    for (uint32_t i = 0; i < FOURS; i += 2) {
        __m512i eight = _mm512_shuffle_epi8(fifth, byte); /* of each row one byte, four times */
        __mmask64 here = _mm512_test_epi8_mask(eight, first);
        __mmask64 there = _mm512_test_epi8_mask(eight, next);
        values[i] = _mm512_or_si512(values[i], _mm512_mask_mov_epi8(unset, here, set));
        values[i + 1] = _mm512_or_si512(values[i + 1], _mm512_mask_mov_epi8(unset, there, set));
        byte = _mm512_add_epi8(byte, _mm512_set1_epi8(1));
    }
}

INLINE WIDE_VNNI void unpack_as(struct wide_rows *p, const uint8_t *rows, size_t row_bytes,
                                uint32_t n_blocks, enum ggml_type type)
{
    size_t bytes = block_bytes(type);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint8_t *from = rows + b * bytes;
        __m512i head[4], values[FOURS];
        fetch_next(rows, row_bytes, b, bytes);
        gather_fours(from, row_bytes, head);
        _mm512_store_ps(p->scales[b], _mm512_cvtph_ps(_mm512_cvtepi32_epi16(head[0])));
        if (type == GGML_TYPE_Q4_0)
            unpack_4(from + offsetof(struct block_4, low), row_bytes, values);
        if (type == GGML_TYPE_Q5_0)
            unpack_5(
                from + offsetof(struct block_5, low), row_bytes,
                _mm512_or_si512(_mm512_srli_epi32(head[0], 16), _mm512_slli_epi32(head[1], 16)),
                values);
        if (type == GGML_TYPE_Q8_0)
            unpack_8(from + offsetof(struct block_8, values), row_bytes, values);
        UNROLL
        for (uint32_t i = 0; i < FOURS; i++)
            _mm512_store_si512(p->values[b][i], values[i]);
    }
}

WIDE_VNNI static void unpack(struct wide_rows *p, const uint8_t *from, size_t row_bytes,
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
WIDE_VNNI static void narrow(const float *from, int64_t n, struct narrow_block *to)
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

size_t tsri_narrow_bytes(int64_t n)
{
    return (size_t)n / BLOCK * sizeof(struct narrow_block);
}

void tsri_narrow(struct ggml_tensor *dst, int ith, int nth, void *unused)
{
    (void)unused;
    const struct ggml_tensor *x = dst->src[0];
    for (int64_t r = ith; r < x->ne[1]; r += nth)
        narrow((const float *)(const void *)((const char *)x->data + r * (int64_t)x->nb[1]),
               x->ne[0], (void *)((char *)dst->data + r * (int64_t)dst->nb[1]));
}

/* ---- the product ---- */

/* n_rows, at most ROWS, is a constant wherever it is called. y_row: from one row of y to the next. */
INLINE WIDE_VNNI void multiply_rows(const struct wide_rows *w, uint32_t n_blocks,
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

WIDE_VNNI static void multiply_wide(const struct wide_rows *w, uint32_t n_blocks,
                                    const struct ggml_tensor *x, float *y, size_t y_row)
{
    const struct narrow_block *row = x->data;
    int64_t r = 0;
    for (; r + ROWS <= x->ne[1]; r += ROWS, row += ROWS * n_blocks, y += ROWS * y_row)
        multiply_rows(w, n_blocks, row, y, y_row, ROWS);
    if (r < x->ne[1]) multiply_rows(w, n_blocks, row, y, y_row, 1);
}

/* Threads share the rows of the matrix. */
void tsri_multiply_blocks(struct ggml_tensor *dst, int ith, int nth, void *unused)
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

bool tsri_blocks_fit(enum ggml_type type, int64_t n_in)
{
    bool known = type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q8_0;
    return known && n_in % BLOCK == 0 && n_in <= BLOCK * BLOCKS_MAX;
}

#endif
