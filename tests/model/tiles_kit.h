/* tiles_kit.h - for the tests of kernels on tiles: their bits, and tiles of other sizes than ours, as
 * ggml's own kernels leave them in a thread. */
#ifndef TSRI_TEST_TILES_KIT_H
#define TSRI_TEST_TILES_KIT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a of n floats, as `want`. */
static inline void kit_check_bits(const float *x, size_t n, uint64_t want)
{
    const unsigned char *bytes = (const unsigned char *)x;
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < n * sizeof *x; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    if (hash != want)
        printf("    0x%016llx: other bits: is TSRI_TILES_BITS new?\n", (unsigned long long)hash);
    CHECK(hash == want);
}

#if defined(__x86_64__)
#include <immintrin.h>

#define KIT_TILES __attribute__((target("amx-tile")))

struct kit_tile_sizes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

static const struct kit_tile_sizes kit_other_tiles = {
    .palette = 1, .row_bytes = {64, 64, 32, 32}, .rows = {8, 8, 16, 16}};

KIT_TILES static void kit_set_other_tiles(void)
{
    struct kit_tile_sizes s = kit_other_tiles;
    __asm__ volatile("" ::"m"(s) : "memory");
    _tile_loadconfig(&s);
}

/* And there are none afterwards. */
KIT_TILES static bool kit_are_other_tiles(void)
{
    struct kit_tile_sizes s;
    _tile_storeconfig(&s);
    __asm__ volatile("" : "+m"(s)::"memory");
    _tile_release();
    return memcmp(&s, &kit_other_tiles, sizeof s) == 0;
}

#else

static inline void kit_set_other_tiles(void) {}

static inline bool kit_are_other_tiles(void)
{
    return true;
}

#endif
#endif
