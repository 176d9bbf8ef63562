/* multiply_x86.h - what the kernels for matrices have in common: blocks as they are in a file, and, for
 * those with ggml's bits, 16 rows of a matrix at once. Included by them and multiply.c alone. */
#ifndef TSRI_MULTIPLY_X86_H
#define TSRI_MULTIPLY_X86_H

#include "model/wide_x86.h"

#if defined(__x86_64__)

#define BLOCK 32u /* values of a block, of which each has a scale */
#define FOURS 8u  /* of 32 values: what one instruction adds up */

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
/* Q4_K. */
struct block_4_k {
    uint16_t scale, less;
    uint8_t scales[12]; /* of eight parts: six bits of scale, six of what is less */
    uint8_t low[4][32]; /* of parts 2 * i and 2 * i + 1 */
};
/* Q6_K. */
struct block_6 {
    uint8_t low[2][2][32]; /* of each half four bits: of parts 0 and 2, of parts 1 and 3 */
    uint8_t high[2][32];   /* of each half the upper two bits of its four parts */
    int8_t scales[16];     /* of 16 values each */
    uint16_t scale;
};
_Static_assert(sizeof(struct block_4) == 18 && sizeof(struct block_5) == 22 &&
                   sizeof(struct block_8) == 34 && sizeof(struct block_4_k) == 144 &&
                   sizeof(struct block_6) == 210,
               "blocks have no gaps");

/* 16 bytes of each of 16 rows; fours[i]: bytes 4 * i to 4 * i + 3 of each row. */
INLINE WIDE_VNNI void gather_fours(const uint8_t *from, size_t row_bytes, __m512i fours[4])
{
    __m512i r[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++, from += row_bytes) {
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)from));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(from + 4 * row_bytes)), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(from + 8 * row_bytes)), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(from + 12 * row_bytes)), 3);
    }
    __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpacklo_epi32(r[2], r[3]);
    __m512i c = _mm512_unpackhi_epi32(r[0], r[1]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    fours[0] = _mm512_unpacklo_epi64(a, b);
    fours[1] = _mm512_unpackhi_epi64(a, b);
    fours[2] = _mm512_unpacklo_epi64(c, d);
    fours[3] = _mm512_unpackhi_epi64(c, d);
}

/* While a block of 16 rows is unpacked, the same share of the 16 rows after them is fetched: they are
 * read in too many places at once for the processor to see it by itself. */
INLINE WIDE_VNNI void fetch_next(const uint8_t *rows, size_t row_bytes, uint32_t block,
                                 size_t block_bytes)
{
    const uint8_t *share = rows + WIDE * (row_bytes + block * block_bytes);
    for (size_t at = 0; at < WIDE * block_bytes; at += 64)
        _mm_prefetch(share + at, _MM_HINT_T1);
}

/* Sums in the order in which ggml adds up the lanes of a register. */
INLINE WIDE_VNNI __m512 whole(const __m512 *sums)
{
    __m512 a[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        a[i] = _mm512_add_ps(sums[i + 4], sums[i]);
    return _mm512_add_ps(_mm512_add_ps(a[0], a[2]), _mm512_add_ps(a[1], a[3]));
}

/* ---- operations of ggml's graph ---- */

/* multiply_x86.c: Q4_0, Q5_0 and Q8_0 */
bool tsri_blocks_fit(enum ggml_type type, int64_t n_in);
size_t tsri_narrow_bytes(int64_t n); /* of a row of n floats, as the product wants it */
void tsri_narrow(struct ggml_tensor *dst, int ith, int nth, void *unused);
void tsri_multiply_blocks(struct ggml_tensor *dst, int ith, int nth, void *unused);
/* multiply_k_x86.c: Q4_K and Q6_K */
void tsri_multiply_k(struct ggml_tensor *dst, int ith, int nth, void *unused);
/* multiply_tiles_x86.c; the product has the rows of whole tiles */
size_t tsri_tiles_bytes(int64_t n_in, int64_t n_rows);
uint32_t tsri_tiles_of(int64_t n_rows);
void tsri_tiles_spread(struct ggml_tensor *dst, int ith, int nth, void *unused);
void tsri_tiles_multiply(struct ggml_tensor *dst, int ith, int nth, void *unused);

#endif
#endif
