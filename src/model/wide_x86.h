/* wide_x86.h - what kernels on registers of 512 bits have in common. Included by those of src/model
 * alone. */
#ifndef TSRI_WIDE_X86_H
#define TSRI_WIDE_X86_H

#include "model/model.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define WIDE 16u /* lanes of a register: floats, or rows of a matrix that are taken together */

#define INLINE static inline __attribute__((always_inline))
/* Loops of a known number of turns, at most WIDE: sums must stay in registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* What attention needs of the processor, and what products of 8 bits need. */
#define WIDE_DQ __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#define WIDE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,f16c")))

/* Turns 16 registers of 16 around. */
INLINE __attribute__((target("avx512f,avx512dq"))) void turn(__m512 *r)
{
    __m512 a[WIDE];
    UNROLL
    for (uint32_t i = 0; i < WIDE; i += 2) {
        a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (uint32_t i = 0; i < WIDE; i += 4)
        for (uint32_t j = 0; j < 2; j++) {
            __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + j + 2]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        __m512 x = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        __m512 y = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        __m512 z = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        __m512 w = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(x, z, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(x, z, 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(y, w, 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(y, w, 0xdd);
    }
}

#endif
#endif
