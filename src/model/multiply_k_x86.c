/* multiply_k_x86.c - a matrix in Q4_K or Q6_K times few rows, for AVX-512 with VNNI: rows of answers.
 * On x86_64 ggml unpacks such a matrix again for every row (docs/performance.md). From eight rows on it
 * has another kernel, which is fast and has other bits; that stays the one for many rows where there
 * are no tiles.
 *
 * As in multiply_x86.c, 16 rows of the matrix are unpacked in the order in which vpdpbusd takes them.
 * A block of 256 values is multiplied with up to ROWS_MOST rows of x while it is in the first-level
 * cache. ggml itself makes x ready (Q8_K).
 *
 * The bits are those of ggml's kernel for one row. Within a block everything is an integer: sum i (0
 * to 7) is that of values 4 * i to 4 * i + 3 of every 32. It is added to float i, and these eight are
 * added up at the end. What values of Q4_K have less is added up apart, in four floats. */
#include "model/multiply_x86.h"

#include <string.h>

#if defined(__x86_64__)

#define VALUES 256u   /* of a block */
#define PARTS 8u      /* of a block: 32 values each, with two scales */
#define ROWS_MOST 16u /* rows of x over which a block is unpacked once */

/* ggml's Q8_K. */
struct block_k {
    float scale;
    int8_t values[VALUES];
    int16_t sums[VALUES / 16];
};
_Static_assert(sizeof(struct block_k) == 292, "blocks have no gaps");

/* A block of each of 16 rows. */
struct wide_block {
    __m512i values[PARTS][FOURS];
    __m512i scales[PARTS][2]; /* in the lower half of a lane: of values 0 to 15, of the others */
    __m512i
        pairs[FOURS];   /* what goes with two sums of x: two scales; in Q4_K what is less, twice */
    __m512 scale, less; /* less: Q4_K */
};
/* Sums of a row of x: those to be added, and what is less. */
struct row_sums {
    __m512 more[FOURS], less[FOURS / 2];
};

INLINE WIDE_VNNI void unpack_half(struct wide_block *p, const uint8_t *from, size_t row_bytes,
                                  uint32_t half)
{
    const __m512i four = _mm512_set1_epi8(15), two = _mm512_set1_epi8(0x30);
    const struct block_6 *first = (const void *)from;
    __m512i(*to)[FOURS] = p->values + half * 4;
    for (uint32_t c = 0; c < 2; c++) {
        __m512i a[4], b[4], h[4];
        gather_fours(first->low[half][0] + c * 16, row_bytes, a);
        gather_fours(first->low[half][1] + c * 16, row_bytes, b);
        gather_fours(first->high[half] + c * 16, row_bytes, h);
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            __m512i h0 = _mm512_and_si512(_mm512_slli_epi16(h[i], 4), two);
            __m512i h1 = _mm512_and_si512(_mm512_slli_epi16(h[i], 2), two);
            __m512i h2 = _mm512_and_si512(h[i], two);
            __m512i h3 = _mm512_and_si512(_mm512_srli_epi16(h[i], 2), two);
            __m512i a2 = _mm512_srli_epi16(a[i], 4), b3 = _mm512_srli_epi16(b[i], 4);
            to[0][c * 4 + i] = _mm512_or_si512(_mm512_and_si512(a[i], four), h0);
            to[1][c * 4 + i] = _mm512_or_si512(_mm512_and_si512(b[i], four), h1);
            to[2][c * 4 + i] = _mm512_or_si512(_mm512_and_si512(a2, four), h2);
            to[3][c * 4 + i] = _mm512_or_si512(_mm512_and_si512(b3, four), h3);
        }
    }
}

/* The byte at `at` of each lane to the upper half of its first 16 bits, that at `other` to that of the
 * others; 128: none. */
INLINE WIDE_VNNI __m512i words(__m512i bytes, uint32_t at, uint32_t other)
{
    const __m512i lanes = _mm512_broadcast_i32x4(_mm_set_epi32(12, 8, 4, 0));
    __m512i places = _mm512_set1_epi32((int)(at << 8 | other << 24 | 0x00800080));
    /* Lanes are at bytes 0, 4, 8 and 12 of each 128 bits. */
    places = _mm512_add_epi8(
        places, _mm512_or_si512(_mm512_slli_epi32(lanes, 8), _mm512_slli_epi32(lanes, 24)));
    return _mm512_srai_epi16(_mm512_shuffle_epi8(bytes, places), 8);
}

WIDE_VNNI static void unpack_6(struct wide_block *p, const uint8_t *from, size_t row_bytes)
{
    const struct block_6 *first = (const void *)from;
    unpack_half(p, from, row_bytes, 0);
    unpack_half(p, from, row_bytes, 1);
    __m512i bytes[4], last[4];
    gather_fours((const void *)first->scales, row_bytes, bytes);
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        p->scales[2 * i][0] = words(bytes[i], 0, 128);
        p->scales[2 * i][1] = words(bytes[i], 1, 128);
        p->scales[2 * i + 1][0] = words(bytes[i], 2, 128);
        p->scales[2 * i + 1][1] = words(bytes[i], 3, 128);
        p->pairs[2 * i] = words(bytes[i], 0, 1);
        p->pairs[2 * i + 1] = words(bytes[i], 2, 3);
    }
    /* The block's scale is in its last two bytes. */
    gather_fours(from + sizeof *first - 16, row_bytes, last);
    p->scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(last[3], 16)));
}

/* Of each byte six bits: the upper two from elsewhere. */
INLINE WIDE_VNNI __m512i six_bits(__m512i low, __m512i high)
{
    high = _mm512_and_si512(_mm512_srli_epi16(high, 2), _mm512_set1_epi8(0x30));
    return _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), high);
}

WIDE_VNNI static void unpack_4(struct wide_block *p, const uint8_t *from, size_t row_bytes)
{
    const struct block_4_k *first = (const void *)from;
    const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15);
    __m512i head[4], scales[2], less[2];
    gather_fours(from, row_bytes,
                 head); /* both scales of the block, and the 12 bytes of its parts */
    p->scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(head[0]));
    p->less = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(head[0], 16)));
    scales[0] = _mm512_and_si512(head[1], six);
    less[0] = _mm512_and_si512(head[2], six);
    scales[1] = six_bits(head[3], head[1]);
    less[1] = six_bits(_mm512_srli_epi16(head[3], 4), head[2]);
    UNROLL
    for (uint32_t i = 0; i < PARTS; i++) {
        p->scales[i][0] = p->scales[i][1] = words(scales[i / 4], i % 4, 128);
        p->pairs[i] = words(less[i / 4], i % 4, i % 4);
    }
    for (uint32_t i = 0; i < PARTS; i++) {
        __m512i fours[4];
        gather_fours(first->low[i / 2] + i % 2 * 16, row_bytes, fours);
        UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            __m512i high = _mm512_srli_epi16(fours[k], 4);
            p->values[i / 2 * 2][i % 2 * 4 + k] = _mm512_and_si512(fours[k], four);
            p->values[i / 2 * 2 + 1][i % 2 * 4 + k] = _mm512_and_si512(high, four);
        }
    }
}

INLINE WIDE_VNNI __m512i four_of(const void *at)
{
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Values of Q6_K are 32 less than they are in the block: what each of the eight sums begins with. */
INLINE WIDE_VNNI void begin_6(const struct wide_block *w, const struct block_k *x,
                              __m512i *whole_sums)
{
    UNROLL
    for (uint32_t i = 0; i < FOURS; i++) {
        __m512i less =
            _mm512_dpwssd_epi32(_mm512_setzero_si512(), w->pairs[i], four_of(&x->sums[2 * i]));
        whole_sums[i] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(less, 5));
    }
}

/* Those of Q4_K are less by a number of each part, which has a scale of its own. */
INLINE WIDE_VNNI void begin_4(const struct wide_block *w, const struct block_k *x,
                              __m512i *whole_sums, struct row_sums *sums)
{
    __m512 scale = _mm512_mul_ps(w->less, _mm512_set1_ps(-x->scale));
    UNROLL
    for (uint32_t i = 0; i < FOURS; i++)
        whole_sums[i] = _mm512_setzero_si512();
    UNROLL
    for (uint32_t i = 0; i < FOURS / 2; i++) {
        __m512i less = _mm512_setzero_si512();
        less = _mm512_dpwssd_epi32(less, w->pairs[2 * i], four_of(&x->sums[4 * i]));
        less = _mm512_dpwssd_epi32(less, w->pairs[2 * i + 1], four_of(&x->sums[4 * i + 2]));
        sums->less[i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(less), sums->less[i]);
    }
}

/* six: of Q6_K, else of Q4_K; a constant wherever it is called. */
INLINE WIDE_VNNI void multiply_block(const struct wide_block *w, const struct block_k *x,
                                     struct row_sums *sums, bool six)
{
    __m512i whole_sums[FOURS];
    __m512 scale = _mm512_mul_ps(w->scale, _mm512_set1_ps(x->scale));
    if (six)
        begin_6(w, x, whole_sums);
    else
        begin_4(w, x, whole_sums, sums);
    for (uint32_t v = 0; v < PARTS; v++) {
        __m512i scales[2] = {w->scales[v][0], w->scales[v][1]};
        UNROLL
        for (uint32_t i = 0; i < FOURS; i++) {
            __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w->values[v][i],
                                              four_of(&x->values[v * 32 + i * 4]));
            whole_sums[i] = _mm512_dpwssd_epi32(whole_sums[i], sum, scales[six ? i / 4 : 0]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < FOURS; i++)
        sums->more[i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(whole_sums[i]), sums->more[i]);
}

WIDE_VNNI static void multiply_block_6(const struct wide_block *w, const struct block_k *x,
                                       struct row_sums *sums)
{
    multiply_block(w, x, sums, true);
}

WIDE_VNNI static void multiply_block_4(const struct wide_block *w, const struct block_k *x,
                                       struct row_sums *sums)
{
    multiply_block(w, x, sums, false);
}

/* 16 rows of a matrix, and what is done with a block of theirs. */
struct k_rows {
    const uint8_t *at;
    size_t row_bytes, block_bytes;
    uint32_t n_blocks;
    void (*unpack)(struct wide_block *p, const uint8_t *from, size_t row_bytes);
    void (*multiply)(const struct wide_block *w, const struct block_k *x, struct row_sums *sums);
};

INLINE WIDE_VNNI __m512 sum_of(const struct row_sums *s, bool six)
{
    const __m512 *m = s->less;
    __m512 less = _mm512_add_ps(_mm512_add_ps(m[0], m[2]), _mm512_add_ps(m[1], m[3]));
    return six ? whole(s->more) : _mm512_add_ps(whole(s->more), less);
}

/* 16 rows of the matrix times n rows of x. */
WIDE_VNNI static void multiply_wide(const struct k_rows *m, const struct block_k *x, uint32_t n,
                                    float *y, size_t y_row)
{
    struct row_sums sums[ROWS_MOST];
    struct wide_block w;
    memset(sums, 0, n * sizeof *sums);
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        fetch_next(m->at, m->row_bytes, b, m->block_bytes);
        m->unpack(&w, m->at + b * m->block_bytes, m->row_bytes);
        for (uint32_t r = 0; r < n; r++)
            m->multiply(&w, &x[r * m->n_blocks + b], &sums[r]);
    }
    for (uint32_t r = 0; r < n; r++)
        _mm512_storeu_ps(y + r * y_row, sum_of(&sums[r], m->unpack == unpack_6));
}

/* Threads share the rows of the matrix. */
void tsri_multiply_k(struct ggml_tensor *dst, int ith, int nth, void *unused)
{
    (void)unused;
    const struct ggml_tensor *m = dst->src[0], *x = dst->src[1];
    uint32_t n_blocks = (uint32_t)(m->ne[0] / VALUES), n_rows = (uint32_t)x->ne[1];
    bool six = m->type == GGML_TYPE_Q6_K;
    struct k_rows rows = {.row_bytes = m->nb[1],
                          .block_bytes = ggml_type_size(m->type),
                          .n_blocks = n_blocks,
                          .unpack = six ? unpack_6 : unpack_4,
                          .multiply = six ? multiply_block_6 : multiply_block_4};
    size_t y_row = dst->nb[1] / sizeof(float);
    int64_t n_wide = m->ne[1] / WIDE, end = n_wide * (ith + 1) / nth;
    for (int64_t i = n_wide * ith / nth; i < end; i++) {
        rows.at = (const uint8_t *)m->data + (size_t)i * WIDE * m->nb[1];
        const struct block_k *row = x->data;
        float *y = (float *)dst->data + i * WIDE;
        for (uint32_t left = n_rows, n; left > 0; left -= n) {
            n = left < ROWS_MOST ? left : ROWS_MOST;
            multiply_wide(&rows, row, n, y, y_row);
            row += n * n_blocks;
            y += n * y_row;
        }
    }
}

#endif
