/* multiply_tiles_x86.c - a matrix of small integers times rows, on AMX's tiles. 16 rows of the matrix,
 * 32 values of each, are multiplied with as many values of 16 rows of x in 16 cycles: four times what
 * AVX-512 with VNNI does, and nothing is scaled in between. The matrix is scaled while it is unpacked.
 *
 * Both sides are rounded to bf16 (8 bits), sums are floats. ggml rounds x to 8 bits below the greatest
 * of 32 values, which is coarser, and the matrix not at all. So the bits are not ggml's, and results
 * are no worse (docs/performance.md has both distances).
 *
 * The matrix is the first factor, so that its rows are unpacked as they lie; rows of x are turned around
 * once for all matrices. A column of a product depends on one column of the second factor, and sums are
 * added up in the order of blocks: a row of the result depends on the matrix and its row of x alone.
 *
 * 32 rows of the matrix are unpacked for 1024 values (64 KB), and multiplied with all rows of x while
 * these 1024 values of theirs are in the second-level cache (1 MB of 512 rows). Meanwhile sums are in
 * the result, each 16 by 16 of them turned around where they belong. */
#include "model/multiply_x86.h"
#include "model/tiles_x86.h"

#include <string.h>

#if defined(__x86_64__)

#define GROUP 32u /* rows of the matrix at once: two tiles */
#define CHUNK 32u /* blocks of PAIRED values that are unpacked at once */
#define K_VALUES 256u
#define K_BLOCKS (K_VALUES / PAIRED)

struct panel {
    _Alignas(64) uint8_t tiles[GROUP / WIDE][CHUNK][TILE_BYTES];
};

/* ---- the matrix ---- */

/* As it is in the file. */
struct block_4_1 {
    uint16_t scale, plus;
    uint8_t low[16];
};
_Static_assert(sizeof(struct block_4_1) == 20, "blocks have no gaps");

INLINE TILES float half(uint16_t h)
{
    return _cvtsh_ss(h);
}

/* A row of a tile: integers times a scale for each half, and a number more. */
INLINE TILES void put(uint8_t *to, __m256i values, float low, float high, float plus)
{
    __m512 a = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(values)));
    __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(values, 1)));
    a = _mm512_fmadd_ps(a, _mm512_set1_ps(low), _mm512_set1_ps(plus));
    b = _mm512_fmadd_ps(b, _mm512_set1_ps(high), _mm512_set1_ps(plus));
    _mm512_store_si512(to, paired(a, b));
}

/* Lower halves of 16 bytes, then the upper ones. */
INLINE TILES __m256i halves(const uint8_t *from)
{
    __m128i both = _mm_loadu_si128((const void *)from);
    __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1);
    return _mm256_and_si256(all, _mm256_set1_epi8(15));
}

TILES static void unpack_4_0(uint8_t *to, const uint8_t *from, uint32_t n)
{
    for (const struct block_4 *b = (const void *)from; n > 0; n--, b++, to += TILE_BYTES) {
        float scale = half(b->scale);
        put(to, _mm256_sub_epi8(halves(b->low), _mm256_set1_epi8(8)), scale, scale, 0);
    }
}

TILES static void unpack_4_1(uint8_t *to, const uint8_t *from, uint32_t n)
{
    for (const struct block_4_1 *b = (const void *)from; n > 0; n--, b++, to += TILE_BYTES) {
        float scale = half(b->scale);
        put(to, halves(b->low), scale, scale, half(b->plus));
    }
}

TILES static void unpack_5_0(uint8_t *to, const uint8_t *from, uint32_t n)
{
    const __m256i unset = _mm256_set1_epi8(16);
    for (const struct block_5 *b = (const void *)from; n > 0; n--, b++, to += TILE_BYTES) {
        float scale = half(b->scale);
        __mmask32 fifth;
        memcpy(&fifth, b->fifth, sizeof fifth);
        __m256i low = halves(b->low);
        put(to, _mm256_mask_sub_epi8(low, ~fifth, low, unset), scale, scale, 0);
    }
}

TILES static void unpack_8_0(uint8_t *to, const uint8_t *from, uint32_t n)
{
    for (const struct block_8 *b = (const void *)from; n > 0; n--, b++, to += TILE_BYTES) {
        float scale = half(b->scale);
        put(to, _mm256_loadu_si256((const void *)b->values), scale, scale, 0);
    }
}

/* The six bits of a part: of its scale, and of what is less. */
static void six_bits(const uint8_t s[12], uint32_t part, uint32_t *scale, uint32_t *less)
{
    if (part < 4) {
        *scale = s[part] & 63;
        *less = s[part + 4] & 63;
    } else {
        *scale = (s[part + 4] & 15u) | (uint32_t)s[part - 4] >> 6 << 4;
        *less = (uint32_t)s[part + 4] >> 4 | (uint32_t)s[part] >> 6 << 4;
    }
}

TILES static void unpack_4_k(uint8_t *to, const uint8_t *from, uint32_t n)
{
    const struct block_4_k *b = (const void *)from;
    for (uint32_t at = 0; at < n; b++)
        for (uint32_t part = 0; part < K_BLOCKS && at < n; part++, at++, to += TILE_BYTES) {
            uint32_t scale, less;
            six_bits(b->scales, part, &scale, &less);
            __m256i both = _mm256_loadu_si256((const void *)b->low[part / 2]);
            if (part % 2) both = _mm256_srli_epi16(both, 4);
            float by = half(b->scale) * (float)scale, minus = half(b->less) * (float)less;
            put(to, _mm256_and_si256(both, _mm256_set1_epi8(15)), by, by, -minus);
        }
}

TILES static void unpack_6_k(uint8_t *to, const uint8_t *from, uint32_t n)
{
    const __m256i four = _mm256_set1_epi8(15), two = _mm256_set1_epi8(0x30);
    const struct block_6 *b = (const void *)from;
    for (uint32_t at = 0; at < n; b++)
        for (uint32_t part = 0; part < K_BLOCKS && at < n; part++, at++, to += TILE_BYTES) {
            uint32_t h = part / 4, p = part % 4;
            __m256i low = _mm256_loadu_si256((const void *)b->low[h][p % 2]);
            __m256i high = _mm256_loadu_si256((const void *)b->high[h]);
            if (p >= 2) low = _mm256_srli_epi16(low, 4);
            high = p < 2 ? _mm256_sll_epi16(high, _mm_cvtsi32_si128(4 - 2 * (int)p))
                         : _mm256_srl_epi16(high, _mm_cvtsi32_si128(2 * (int)p - 4));
            low = _mm256_or_si256(_mm256_and_si256(low, four), _mm256_and_si256(high, two));
            float scale = half(b->scale);
            put(to, _mm256_sub_epi8(low, _mm256_set1_epi8(32)), scale * (float)b->scales[part * 2],
                scale * (float)b->scales[part * 2 + 1], 0);
        }
}

struct tile_type {
    enum ggml_type type;
    uint32_t values; /* of a block */
    void (*unpack)(uint8_t *to, const uint8_t *from, uint32_t n);
};

static const struct tile_type types[] = {
    {GGML_TYPE_Q4_0, PAIRED, unpack_4_0},   {GGML_TYPE_Q4_1, PAIRED, unpack_4_1},
    {GGML_TYPE_Q5_0, PAIRED, unpack_5_0},   {GGML_TYPE_Q8_0, PAIRED, unpack_8_0},
    {GGML_TYPE_Q4_K, K_VALUES, unpack_4_k}, {GGML_TYPE_Q6_K, K_VALUES, unpack_6_k}};

static const struct tile_type *type_of(enum ggml_type type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) return &types[i];
    return NULL;
}

bool tsri_tiles_fit(enum ggml_type type, int64_t n_in, int64_t n_out)
{
    const struct tile_type *t = type_of(type);
    return t && n_in % t->values == 0 && n_out % GROUP == 0;
}

/* ---- rows of x ---- */

/* ggml aligns tensors to 32 bytes, and a row of a tile that lies in two lines takes two loads. */
size_t tsri_tiles_bytes(int64_t n_in, int64_t n_rows)
{
    return (size_t)n_in / PAIRED * tsri_tiles_of(n_rows) * TILE_BYTES + TILE_ROW;
}

uint32_t tsri_tiles_of(int64_t n_rows)
{
    return (uint32_t)(n_rows + WIDE - 1) / WIDE;
}

static uint8_t *tiles_at(const struct ggml_tensor *input)
{
    uintptr_t at = (uintptr_t)input->data;
    return (uint8_t *)input->data + (TILE_ROW - at % TILE_ROW) % TILE_ROW;
}

/* A tile: of 16 rows a block each, pairs of values side by side. Rows that there are not are zeros. */
TILES static void spread(uint8_t *to, const struct ggml_tensor *x, uint32_t tile, uint32_t block)
{
    __m512 r[WIDE];
    const char *from = (const char *)x->data + block * PAIRED * sizeof(float);
    for (uint32_t i = 0; i < WIDE; i++) {
        int64_t row = (int64_t)tile * WIDE + i;
        const char *at = from + row * (int64_t)x->nb[1];
        r[i] = row < x->ne[1]
                   ? _mm512_castsi512_ps(paired(_mm512_loadu_ps(at), _mm512_loadu_ps(at + 64)))
                   : _mm512_setzero_ps();
    }
    turn(r);
    UNROLL
    for (uint32_t i = 0; i < WIDE; i++)
        _mm512_store_ps(to + i * TILE_ROW, r[i]);
}

void tsri_tiles_spread(struct ggml_tensor *dst, int ith, int nth, void *unused)
{
    (void)unused;
    const struct ggml_tensor *x = dst->src[0];
    uint32_t n_blocks = (uint32_t)(x->ne[0] / PAIRED);
    uint64_t n = (uint64_t)tsri_tiles_of(x->ne[1]) * n_blocks;
    uint64_t end = n * ((uint32_t)ith + 1) / (uint32_t)nth;
    for (uint64_t i = n * (uint32_t)ith / (uint32_t)nth; i < end; i++)
        spread(tiles_at(dst) + i * TILE_BYTES, x, (uint32_t)(i / n_blocks),
               (uint32_t)(i % n_blocks));
}

/* ---- the product ---- */

/* Of a group of the matrix and one or two tiles of x, a chunk of blocks. */
struct tile_part {
    const struct panel *w;
    const uint8_t *x; /* the first tile; the next one is x_tile further */
    size_t x_tile;
    uint32_t n_blocks;
    float *y;
    size_t y_row; /* in bytes */
    bool first, last;
};

/* Tiles of sums. What is added to later is kept in the result as it is, the wrong way around; what is
 * whole goes through here, because a tile that is stored to memory far away is loaded slowly. */
struct tile_sums {
    _Alignas(64) float tiles[4][WIDE][WIDE];
};

TILES static void turn_sums(float (*tile)[WIDE], float *y, size_t y_row)
{
    __m512 r[WIDE];
    UNROLL
    for (uint32_t i = 0; i < WIDE; i++)
        r[i] = _mm512_load_ps(tile[i]);
    turn(r);
    UNROLL
    for (uint32_t i = 0; i < WIDE; i++)
        _mm512_storeu_ps((char *)y + i * y_row, r[i]);
}

/* The sums of 32 rows of the matrix with 32 rows of x. */
TILES static void multiply_two(const struct tile_part *p)
{
    float *y[4] = {p->y, (float *)(void *)((char *)p->y + WIDE * p->y_row), p->y + WIDE,
                   (float *)(void *)((char *)p->y + WIDE * p->y_row) + WIDE};
    if (p->first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, y[0], p->y_row);
        _tile_loadd(1, y[1], p->y_row);
        _tile_loadd(2, y[2], p->y_row);
        _tile_loadd(3, y[3], p->y_row);
    }
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const uint8_t *x = p->x + b * TILE_BYTES;
        _tile_loadd(4, p->w->tiles[0][b], TILE_ROW);
        _tile_loadd(6, x, TILE_ROW);
        _tile_loadd(5, p->w->tiles[1][b], TILE_ROW);
        _tile_loadd(7, x + p->x_tile, TILE_ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    if (!p->last) {
        _tile_stored(0, y[0], p->y_row);
        _tile_stored(1, y[1], p->y_row);
        _tile_stored(2, y[2], p->y_row);
        _tile_stored(3, y[3], p->y_row);
        return;
    }
    struct tile_sums sums;
    _tile_stored(0, sums.tiles[0], TILE_ROW);
    _tile_stored(1, sums.tiles[1], TILE_ROW);
    _tile_stored(2, sums.tiles[2], TILE_ROW);
    _tile_stored(3, sums.tiles[3], TILE_ROW);
    for (uint32_t i = 0; i < 4; i++)
        turn_sums(sums.tiles[i], y[i], p->y_row);
}

/* The same with 16 rows of x. */
TILES static void multiply_one(const struct tile_part *p)
{
    if (p->first) {
        _tile_zero(0);
        _tile_zero(2);
    } else {
        _tile_loadd(0, p->y, p->y_row);
        _tile_loadd(2, p->y + WIDE, p->y_row);
    }
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        _tile_loadd(6, p->x + b * TILE_BYTES, TILE_ROW);
        _tile_loadd(4, p->w->tiles[0][b], TILE_ROW);
        _tile_loadd(5, p->w->tiles[1][b], TILE_ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
    }
    if (!p->last) {
        _tile_stored(0, p->y, p->y_row);
        _tile_stored(2, p->y + WIDE, p->y_row);
        return;
    }
    struct tile_sums sums;
    _tile_stored(0, sums.tiles[0], TILE_ROW);
    _tile_stored(2, sums.tiles[1], TILE_ROW);
    for (uint32_t i = 0; i < 2; i++)
        turn_sums(sums.tiles[i], p->y + i * WIDE, p->y_row);
}

/* A chunk of a group of the matrix's rows, from block `at` on, times all of x. */
static void multiply_group(struct panel *w, struct ggml_tensor *dst, uint32_t group, uint32_t at)
{
    const struct ggml_tensor *m = dst->src[0], *x = dst->src[1];
    const struct tile_type *type = type_of(m->type);
    uint32_t n_blocks = (uint32_t)(m->ne[0] / PAIRED), left = n_blocks - at;
    uint32_t n = left < CHUNK ? left : CHUNK;
    const uint8_t *rows = (const uint8_t *)m->data + (size_t)group * GROUP * m->nb[1];
    size_t skip = at * PAIRED / type->values * ggml_type_size(m->type);
    for (uint32_t r = 0; r < GROUP; r++)
        type->unpack(w->tiles[r / WIDE][0] + r % WIDE * TILE_ROW, rows + r * m->nb[1] + skip, n);
    tiles_written();
    struct tile_part p = {.w = w,
                          .x = tiles_at(x) + (size_t)at * TILE_BYTES,
                          .x_tile = (size_t)n_blocks * TILE_BYTES,
                          .n_blocks = n,
                          .y = (float *)dst->data + (size_t)group * GROUP,
                          .y_row = dst->nb[1],
                          .first = at == 0,
                          .last = n == left};
    for (int64_t row = 0; row < dst->ne[1]; row += 2 * WIDE) {
        if (row + WIDE < dst->ne[1])
            multiply_two(&p);
        else
            multiply_one(&p);
        p.x += 2 * p.x_tile;
        p.y = (float *)(void *)((char *)p.y + 2 * WIDE * p.y_row);
    }
}

/* Threads share the rows of the matrix. */
TILES void tsri_tiles_multiply(struct ggml_tensor *dst, int ith, int nth, void *unused)
{
    (void)unused;
    uint32_t n_blocks = (uint32_t)(dst->src[0]->ne[0] / PAIRED);
    int64_t n = dst->ne[0] / GROUP, first = n * ith / nth, end = n * (ith + 1) / nth;
    struct panel w;
    struct tile_sizes before_us;
    tiles_begin(&before_us);
    for (uint32_t at = 0; at < n_blocks; at += CHUNK)
        for (int64_t group = first; group < end; group++)
            multiply_group(&w, dst, (uint32_t)group, at);
    tiles_end(&before_us);
}

#else

bool tsri_tiles_fit(enum ggml_type type, int64_t n_in, int64_t n_out)
{
    (void)type;
    (void)n_in;
    (void)n_out;
    return false;
}

#endif
