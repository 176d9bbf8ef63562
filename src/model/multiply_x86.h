/* multiply_x86.h - what the kernels of multiply_x86.c and multiply_k_x86.c have in common: both take
 * 16 rows of a matrix at once, and add up in ggml's order. Included by these two alone. */
#ifndef TSRI_MULTIPLY_X86_H
#define TSRI_MULTIPLY_X86_H

#include "model/wide_x86.h"

#if defined(__x86_64__)

#define FOURS 8u /* of 32 values: what one instruction adds up */

#define T512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,f16c")))

/* 16 bytes of each of 16 rows; fours[i]: bytes 4 * i to 4 * i + 3 of each row. */
INLINE T512 void gather_fours(const uint8_t *from, size_t row_bytes, __m512i fours[4])
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
INLINE T512 void fetch_next(const uint8_t *rows, size_t row_bytes, uint32_t block,
                            size_t block_bytes)
{
    const uint8_t *share = rows + WIDE * (row_bytes + block * block_bytes);
    for (size_t at = 0; at < WIDE * block_bytes; at += 64)
        _mm_prefetch(share + at, _MM_HINT_T1);
}

/* Sums in the order in which ggml adds up the lanes of a register. */
INLINE T512 __m512 whole(const __m512 *sums)
{
    __m512 a[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        a[i] = _mm512_add_ps(sums[i + 4], sums[i]);
    return _mm512_add_ps(_mm512_add_ps(a[0], a[2]), _mm512_add_ps(a[1], a[3]));
}

/* The product with a matrix in Q6_K: an operation of ggml's graph. */
void tsri_multiply_k(struct ggml_tensor *dst, int ith, int nth, void *unused);

#endif
#endif
