/* parts_x86.h - floats for tiles of bf16: as two parts, a high one and a low one, whose sum is within
 * 2^-18 of the number; numbers in f16 are their sum exactly. And powers of two, cheap beside products of
 * tiles. Included by attention_tiles_x86.c. */
#ifndef TSRI_PARTS_X86_H
#define TSRI_PARTS_X86_H

#include "model/tiles_x86.h"

#if defined(__x86_64__)

#define SIXTEENTHS 0x1.8p19F /* a sum with it has no smaller parts */

struct two_parts {
    __m512 high, low;
};

/* Pairs of the upper halves. */
INLINE TILES __m512i upper(__m512i first, __m512i second)
{
    const __m512i mask = _mm512_set1_epi32((int)0xffff0000);
    const __m512i down = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1));
    return _mm512_ternarylogic_epi32(_mm512_shuffle_epi8(first, down), second, mask, 0xf8);
}

/* To the nearest number of 8 bits, with others below it. What is no number stays none: added to, it
 * could become a zero. */
INLINE TILES __m512i rounded(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
    return _mm512_mask_add_epi32(bits, number, bits, _mm512_set1_epi32(0x8000));
}

/* Both parts of two registers, in pairs, rounded to the nearest. */
INLINE TILES struct two_parts parts_of(__m512 first, __m512 second)
{
    const __m512i mask = _mm512_set1_epi32((int)0xffff0000), half = _mm512_set1_epi32(0x8000);
    __m512i a = rounded(first), b = rounded(second);
    __m512 c = _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_and_si512(a, mask)));
    __m512 d = _mm512_sub_ps(second, _mm512_castsi512_ps(_mm512_and_si512(b, mask)));
    __m512i low = upper(_mm512_add_epi32(_mm512_castps_si512(c), half),
                        _mm512_add_epi32(_mm512_castps_si512(d), half));
    return (struct two_parts){_mm512_castsi512_ps(upper(a, b)), _mm512_castsi512_ps(low)};
}

INLINE TILES __m512 widened(const char *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
}

/* 2 to the power of x - top; 0 where that is below -100, and no number where x is none. Off by 2^-21 at
 * most. `shift` is SIXTEENTHS - top, and tops are whole, so that x is rounded to sixteenths on the way.
 * They select from a table, because ports for that are free: while tiles are multiplied, only one does
 * sums and products. */
INLINE TILES __m512 power(__m512 x, __m512 shift)
{
    /* 2^(i / 16), less what shifting i to the exponent will add. */
    const __m512i table =
        _mm512_setr_epi32(0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532,
                          0x3f75fed7, 0x3f75583f, 0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c,
                          0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d);
    __m512 z = _mm512_add_ps(x, shift);
    __m512 b = _mm512_sub_ps(x, _mm512_sub_ps(z, shift));
    __mmask16 some = _mm512_cmp_ps_mask(z, _mm512_set1_ps(SIXTEENTHS - 100), _CMP_NLT_UQ);
    __m512i n = _mm512_castps_si512(z);
    __m512i whole = _mm512_add_epi32(_mm512_permutexvar_epi32(n, table), _mm512_slli_epi32(n, 19));
    __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(0x1.ebf82ep-3f), b, _mm512_set1_ps(0x1.62e984p-1f));
    y = _mm512_fmadd_ps(y, b, _mm512_set1_ps(1.0F));
    return _mm512_maskz_mul_ps(some, y, _mm512_castsi512_ps(whole));
}

#endif
#endif
