/* tiles.h - AMX's tiles in memory, for processors that have AVX-512 and no AMX. Forced before the first
 * line of the kernels on tiles (Makefile), so that they call these in place of the instructions. They do
 * what Intel's manual says of those, and end the program where a processor would fault; and sanitizers
 * see which bytes a tile is loaded from, which they do not of an instruction. */
#ifndef TSRI_TEST_FAKETILES_H
#define TSRI_TEST_FAKETILES_H

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_WIDE __attribute__((unused, target("avx512f,avx512bw,avx512dq,avx512vl")))

enum { FAKE_TILES = 8, FAKE_ROWS = 16, FAKE_ROW_BYTES = 64, FAKE_PAIRS = 16 };

struct fake_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct fake_config) == 64, "as ldtilecfg reads it");

/* One for each thread, in here.c: the kernels and their tests have the same. */
struct fake_tiles {
    uint8_t data[FAKE_TILES][FAKE_ROWS][FAKE_ROW_BYTES];
    struct fake_config config;
    int whole; /* configured as the kernels want it */
};
extern _Thread_local struct fake_tiles fake_tiles;

__attribute__((unused)) static void fake_configure(const void *from)
{
    struct fake_config *c = &fake_tiles.config;
    memcpy(c, from, sizeof *c);
    fake_tiles.whole = c->palette == 1 && c->start_row == 0;
    for (int i = 0; i < FAKE_TILES; i++)
        fake_tiles.whole &= c->rows[i] == FAKE_ROWS && c->row_bytes[i] == FAKE_ROW_BYTES;
    memset(fake_tiles.data, 0, sizeof fake_tiles.data);
}

__attribute__((unused)) static uint8_t (*fake_tile(int i))[FAKE_ROW_BYTES]
{
    if (!fake_tiles.whole) {
        fputs("fake tiles: used outside tiles_begin and tiles_end\n", stderr);
        abort();
    }
    return fake_tiles.data[i];
}

__attribute__((unused)) static void fake_load(int tile, const void *from, size_t stride)
{
    for (size_t i = 0; i < FAKE_ROWS; i++)
        memcpy(fake_tile(tile)[i], (const uint8_t *)from + i * stride, FAKE_ROW_BYTES);
}

__attribute__((unused)) static void fake_store(int tile, void *to, size_t stride)
{
    for (size_t i = 0; i < FAKE_ROWS; i++)
        memcpy((uint8_t *)to + i * stride, fake_tile(tile)[i], FAKE_ROW_BYTES);
}

/* Numbers too small for a normal float count as 0, before and after. */
FAKE_WIDE static __m512 fake_flushed(__m512 x)
{
    __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7f800000));
    return _mm512_maskz_mov_ps(_mm512_test_epi32_mask(exponent, exponent), x);
}

FAKE_WIDE static __m512 fake_sum(__m512 a, __m512 b, __m512 to)
{
    return fake_flushed(_mm512_fmadd_ps(fake_flushed(a), fake_flushed(b), to));
}

/* Even and odd values of pairs are added up apart, and then to what is there. */
FAKE_WIDE static void fake_dpbf16ps(int c, int a, int b)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    for (int i = 0; i < FAKE_ROWS; i++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < FAKE_PAIRS; k++) {
            uint32_t pair;
            memcpy(&pair, fake_tile(a)[i] + 4 * k, sizeof pair);
            __m512i x = _mm512_set1_epi32((int)pair), y = _mm512_loadu_si512(fake_tile(b)[k]);
            even = fake_sum(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                            _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), even);
            odd = fake_sum(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                           _mm512_castsi512_ps(_mm512_and_si512(y, high)), odd);
        }
        __m512 to = fake_flushed(_mm512_loadu_ps((void *)fake_tile(c)[i]));
        to = fake_flushed(_mm512_add_ps(to, fake_flushed(_mm512_add_ps(even, odd))));
        _mm512_storeu_ps((void *)fake_tile(c)[i], to);
    }
}

/* 16 floats as bf16 in the upper halves, rounded to the nearest even; what is no number stays none. */
FAKE_WIDE static __m512i fake_rounded(__m512 x)
{
    __m512i bits = _mm512_castps_si512(fake_flushed(x));
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
    __m512i none = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), none);
}

FAKE_WIDE static __m512i fake_cvtne2ps_pbh(__m512 high, __m512 low)
{
    __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(fake_rounded(high), 16));
    __m256i l = _mm512_cvtepi32_epi16(_mm512_srli_epi32(fake_rounded(low), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(l), h, 1);
}

/* The names are the compiler's own, for that is what they stand in for. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
#undef _tile_loadconfig
#undef _tile_storeconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _mm512_cvtne2ps_pbh
#define _tile_loadconfig(from) fake_configure(from)
#define _tile_storeconfig(to) memcpy(to, &fake_tiles.config, sizeof fake_tiles.config)
#define _tile_release() fake_configure(&(struct fake_config){0})
#define _tile_zero(i) memset(fake_tile(i), 0, sizeof fake_tiles.data[0])
#define _tile_loadd(i, from, stride) fake_load(i, from, stride)
#define _tile_stored(i, to, stride) fake_store(i, to, stride)
#define _tile_dpbf16ps(c, a, b) fake_dpbf16ps(c, a, b)
#define _mm512_cvtne2ps_pbh(high, low) fake_cvtne2ps_pbh(high, low)
/* NOLINTEND(bugprone-reserved-identifier) */

#endif
#endif
