/* tiles_x86.h - AMX: eight registers of 16 rows of 64 bytes, and products of two of them added up in a
 * third. The kernels on them keep all eight at their full size:
 *
 *   c[i][j] += a[i][2k] * b[k][2j] + a[i][2k + 1] * b[k][2j + 1]   for i, j, k < 16
 *
 * where a and b are bf16 and c is float. So the columns of b hold pairs, and a column of c depends on
 * the same column of b alone. Included by multiply_tiles_x86.c and attention_tiles_x86.c. */
#ifndef TSRI_TILES_X86_H
#define TSRI_TILES_X86_H

#include "model/wide_x86.h"

#if defined(__x86_64__)

#define TILE_BYTES 1024u
#define TILE_ROW 64u
#define PAIRED 32u /* bf16 values of a row of a tile: what one instruction adds up */

#define TILES \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c,amx-tile,amx-" \
                          "bf16")))

/* What a thread's tiles are: of which size each is. As ldtilecfg and sttilecfg have it in memory. */
struct tile_sizes {
    uint8_t palette, start_row, reserved[14]; /* palette 0: there are none */
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* gcc 12 takes it that ldtilecfg reads 8 bytes (its bug 114098): say that all are needed. */
INLINE TILES void load_sizes(const struct tile_sizes *s)
{
    __asm__ volatile("" ::"m"(*s) : "memory");
    _tile_loadconfig(s);
}

/* Each thread, around its products. *before: for tiles_end(). */
INLINE TILES void tiles_begin(struct tile_sizes *before)
{
    struct tile_sizes whole = {.palette = 1};
    for (int i = 0; i < 8; i++)
        whole.row_bytes[i] = TILE_ROW, whole.rows[i] = 16;
    _tile_storeconfig(before);
    __asm__ volatile("" : "+m"(*before)::"memory"); /* all of it was written */
    load_sizes(&whole);
}

/* Other kernels in this thread find the sizes that they have left: ggml sets its own once a thread. */
INLINE TILES void tiles_end(const struct tile_sizes *before)
{
    if (before->palette)
        load_sizes(before);
    else
        _tile_release();
}

/* Before tiles are loaded from what was just written: their intrinsics do not say that they read it. */
INLINE void tiles_written(void)
{
    __asm__ volatile("" ::: "memory");
}

/* 32 floats as a row of a tile, rounded to the nearest even. */
INLINE TILES __m512i paired(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

#endif
#endif
