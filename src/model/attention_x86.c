/* attention_x86.c - softmax(Q K + mask) V of many rows, for AVX-512. ggml takes 64 rows of a head by
 * 64 keys at a time. For each such tile it turns keys around, widens the mask and looks for the
 * greatest score value by value, which is more than half of its time (docs/performance.md).
 *
 * Here the lanes of a register are those of attention_x86.h. A tile of 64 keys is widened once for up
 * to 256 lanes. Q is turned around once, and so is the result; keys and values are read as they lie,
 * one number for 16 lanes. Keys that no lane of a block sees are left out by sixteens.
 *
 * The bits are those of ggml's tiles. A score is a chain of products with one rounding each, in the
 * order of dimensions, and a sum of values one in the order of keys. The softmax goes by tiles:
 * exp() is ggml's polynomial, 16 weights are added up as the lanes of a register are, and four such
 * sums in doubles. A weight of 0 changes no sum. So a lane depends on its row and its keys alone:
 * neither on other rows nor on the number of threads.
 *
 * It is one operation of ggml's graph, which its threads share. */
#include "model/attention_x86.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)

#define PARTS 4u  /* registers of a block */
#define LANES 64u /* of a block */
#define BLOCKS 4u /* that share a tile of keys; they are on the stack: 350 KB */
#define SUMS 16u  /* registers of them */

/* 64 lanes: rows of Q turned around, and how far their attention is. */
struct lane_block {
    _Alignas(64) float q[DIM_MAX][LANES];
    _Alignas(64) float values[DIM_MAX][LANES];
    _Alignas(64) float most[LANES], total[LANES], again[LANES];
    struct lanes lanes;
};

/* Keys and values of a tile, and the scores of a block, which are its mask before. */
struct key_tile {
    _Alignas(64) float k[KEYS * DIM_MAX];
    _Alignas(64) float v[KEYS * DIM_MAX];
    _Alignas(64) float scores[KEYS][LANES];
};

/* ---- in and out ---- */

WIDE_DQ static void begin(struct lane_block *b, const struct attention *a, uint32_t kv_head)
{
    for (uint32_t part = 0; part < b->lanes.n; part += WIDE)
        for (uint32_t d = 0; d < a->dim; d += WIDE) {
            __m512 r[WIDE];
            for (uint32_t i = 0; i < WIDE; i++)
                r[i] = _mm512_loadu_ps(lane_of(a->q, a, kv_head, lane_at(b->lanes, part + i)) + d);
            turn(r);
            UNROLL
            for (uint32_t i = 0; i < WIDE; i++)
                _mm512_store_ps(&b->q[d + i][part], r[i]);
        }
    memset(b->values, 0, a->dim * sizeof b->values[0]);
    for (uint32_t i = 0; i < LANES; i++)
        b->most[i] = -INFINITY, b->total[i] = 0;
}

WIDE_DQ static void finish(struct lane_block *b, const struct attention *a, uint32_t kv_head)
{
    for (uint32_t part = 0; part < b->lanes.n; part += WIDE) {
        __m512 total = _mm512_load_ps(&b->total[part]);
        __mmask16 any = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        __m512 by = _mm512_maskz_div_ps(any, _mm512_set1_ps(1), total);
        for (uint32_t d = 0; d < a->dim; d += WIDE) {
            __m512 r[WIDE];
            UNROLL
            for (uint32_t i = 0; i < WIDE; i++)
                r[i] = _mm512_mul_ps(_mm512_load_ps(&b->values[d + i][part]), by);
            turn(r);
            for (uint32_t i = 0; i < WIDE && part + i < b->lanes.n; i++)
                _mm512_storeu_ps(lane_of(a->out, a, kv_head, b->lanes.first + part + i) + d, r[i]);
        }
    }
}

INLINE WIDE_DQ void widen_as(float *to, const struct ggml_tensor *t, const char *from, uint32_t dim,
                             bool wide)
{
    for (uint32_t i = 0; i < KEYS; i++, from += t->nb[1])
        for (uint32_t d = 0; d < dim; d += WIDE, to += WIDE)
            _mm512_store_ps(to, wide ? _mm512_loadu_ps(from + d * sizeof(float))
                                     : _mm512_cvtph_ps(_mm256_loadu_si256(
                                           (const void *)(from + d * sizeof(ggml_fp16_t)))));
}

/* A tile of keys or values of a head, as floats. */
WIDE_DQ static void widen(float *to, const struct ggml_tensor *t, uint32_t key, uint32_t head,
                          uint32_t dim)
{
    const char *from = (const char *)t->data + key * t->nb[1] + head * t->nb[2];
    if (t->type == GGML_TYPE_F32)
        widen_as(to, t, from, dim, true);
    else
        widen_as(to, t, from, dim, false);
}

/* ---- masks ---- */

/* The mask of a block, turned around, to where its scores will be. */
WIDE_DQ static void lay_mask(struct key_tile *t, const struct lane_block *b,
                             const struct attention *a, uint32_t key, uint32_t n_keys)
{
    for (uint32_t part = 0; part < b->lanes.n; part += WIDE)
        for (uint32_t k = 0; k < n_keys; k += WIDE) {
            __m512 r[WIDE];
            for (uint32_t i = 0; i < WIDE; i++)
                r[i] =
                    _mm512_cvtph_ps(mask_at(a, lane_at(b->lanes, part + i) / a->per_kv, key + k));
            turn(r);
            UNROLL
            for (uint32_t i = 0; i < WIDE; i++)
                _mm512_store_ps(&t->scores[k + i][part], r[i]);
        }
}

/* ---- a block and a tile ---- */

/* Keys, or dimensions of values, that are added up together. */
INLINE uint32_t at_once(uint32_t n_parts)
{
    return n_parts > 2 ? 4 : SUMS / n_parts;
}

/* Numbers of a tile: (i, j) is at[i * step_i + j * step_j]. */
struct factors {
    const float *at;
    size_t step_i, step_j;
};

/* Adds n products to each sum, of a number (i, j) and the lanes at with[j]. n_i and n_parts are
 * constants wherever it is called. */
INLINE WIDE_DQ void add_products(__m512 *sums, struct factors f, const float (*with)[LANES],
                                 uint32_t n, uint32_t n_i, uint32_t n_parts)
{
    for (uint32_t j = 0; j < n; j++) {
        __m512 lanes[PARTS];
        UNROLL
        for (uint32_t p = 0; p < n_parts; p++)
            lanes[p] = _mm512_load_ps(&with[j][p * WIDE]);
        UNROLL
        for (uint32_t i = 0; i < n_i; i++) {
            __m512 one = _mm512_set1_ps(f.at[i * f.step_i + j * f.step_j]);
            UNROLL
            for (uint32_t p = 0; p < n_parts; p++)
                sums[i * n_parts + p] = _mm512_fmadd_ps(lanes[p], one, sums[i * n_parts + p]);
        }
    }
}

/* exp() of numbers that are not above 0, as ggml computes it. */
INLINE WIDE_DQ __m512 power(__m512 x)
{
    const __m512 shift = _mm512_set1_ps(0x1.8p23f);
    __m512 z = _mm512_fmadd_ps(x, _mm512_set1_ps(0x1.715476p+0f), shift);
    __m512 n = _mm512_sub_ps(z, shift);
    __m512 b = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f),
                                _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x));
    __mmask16 some = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-192), _CMP_NLT_UQ);
    __m512 u = _mm512_mul_ps(b, b);
    __m512 j = _mm512_fmadd_ps(
        _mm512_fmadd_ps(
            _mm512_fmadd_ps(_mm512_set1_ps(0x1.0e4020p-7f), b, _mm512_set1_ps(0x1.573e2ep-5f)), u,
            _mm512_fmadd_ps(_mm512_set1_ps(0x1.555e66p-3f), b, _mm512_set1_ps(0x1.fffdb6p-2f))),
        u, _mm512_fmadd_ps(_mm512_set1_ps(0x1.ffffecp-1f), b, _mm512_set1_ps(1.0F)));
    return _mm512_maskz_scalef_ps(some, j, n);
}

/* Scores of n_keys keys and the greatest one of each lane. */
INLINE WIDE_DQ void score(struct key_tile *t, const struct lane_block *b, const struct attention *a,
                          uint32_t n_keys, bool plain, __m512 *most, uint32_t n_parts)
{
    const uint32_t step = at_once(n_parts);
    __m512 by = _mm512_set1_ps(a->scale);
    UNROLL
    for (uint32_t p = 0; p < n_parts; p++)
        most[p] = _mm512_set1_ps(-INFINITY);
    for (uint32_t k = 0; k < n_keys; k += step) {
        struct factors keys = {t->k + k * a->dim, a->dim, 1};
        __m512 sums[SUMS];
        UNROLL
        for (uint32_t i = 0; i < step * n_parts; i++)
            sums[i] = _mm512_setzero_ps();
        add_products(sums, keys, b->q, a->dim, step, n_parts);
        UNROLL
        for (uint32_t i = 0; i < step * n_parts; i++) {
            float *at = &t->scores[k + i / n_parts][i % n_parts * WIDE];
            __m512 s = _mm512_mul_ps(sums[i], by);
            if (!plain) s = _mm512_add_ps(s, _mm512_load_ps(at));
            most[i % n_parts] = _mm512_max_ps(most[i % n_parts], s);
            _mm512_store_ps(at, s);
        }
    }
}

/* Scores of 16 lanes become weights. `most` is the greatest score of the tile; what was added up with
 * a smaller one is multiplied by `again`. */
WIDE_DQ static void weigh(struct key_tile *t, struct lane_block *b, uint32_t n_keys, uint32_t part,
                          __m512 most)
{
    __m512 old = _mm512_load_ps(&b->most[part]), none = _mm512_set1_ps(-INFINITY);
    __mmask16 more = _mm512_cmp_ps_mask(most, old, _CMP_GT_OQ);
    most = _mm512_mask_mov_ps(old, more, most);
    _Alignas(64) float now[WIDE];
    _mm512_store_ps(now, most);
    _mm512_store_ps(&b->again[part], _mm512_set1_ps(1));
    for (uint32_t left = more; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(left);
        b->again[part + i] = expf(b->most[part + i] - now[i]);
    }
    _mm512_store_ps(&b->most[part], most);
    /* Lanes that have seen nothing yet have weights of 0. */
    __m512 top = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(most, none, _CMP_NEQ_UQ), most);
    __m512d low = _mm512_setzero_pd(), high = low;
    for (uint32_t k = 0; k < n_keys; k += WIDE) {
        __m512 w[WIDE];
        UNROLL
        for (uint32_t i = 0; i < WIDE; i++) {
            float *at = &t->scores[k + i][part];
            w[i] = power(_mm512_sub_ps(_mm512_load_ps(at), top));
            _mm512_store_ps(at, w[i]);
        }
        UNROLL
        for (uint32_t n = WIDE / 2; n > 0; n /= 2)
            UNROLL
        for (uint32_t i = 0; i < n; i++)
            w[i] = _mm512_add_ps(w[i], w[i + n]);
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(w[0])));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(w[0], 1)));
    }
    __m512 total = _mm512_mul_ps(_mm512_load_ps(&b->total[part]), _mm512_load_ps(&b->again[part]));
    low = _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(total)), low);
    high = _mm512_add_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(total, 1)), high);
    total =
        _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
    _mm512_store_ps(&b->total[part], total);
}

/* Adds the values of n_keys keys, times their weights. */
INLINE WIDE_DQ void add_values(struct lane_block *b, const struct key_tile *t,
                               const struct attention *a, uint32_t n_keys, uint32_t n_parts)
{
    const uint32_t step = at_once(n_parts);
    for (uint32_t d = 0; d < a->dim; d += step) {
        struct factors values = {t->v + d, 1, a->dim};
        __m512 sums[SUMS];
        UNROLL
        for (uint32_t i = 0; i < step * n_parts; i++) {
            uint32_t part = i % n_parts * WIDE;
            sums[i] = _mm512_mul_ps(_mm512_load_ps(&b->values[d + i / n_parts][part]),
                                    _mm512_load_ps(&b->again[part]));
        }
        add_products(sums, values, t->scores, n_keys, step, n_parts);
        UNROLL
        for (uint32_t i = 0; i < step * n_parts; i++)
            _mm512_store_ps(&b->values[d + i / n_parts][i % n_parts * WIDE], sums[i]);
    }
}

INLINE WIDE_DQ void attend_parts(struct key_tile *t, struct lane_block *b,
                                 const struct attention *a, uint32_t n_keys, bool plain,
                                 uint32_t n_parts)
{
    __m512 most[PARTS];
    score(t, b, a, n_keys, plain, most, n_parts);
    for (uint32_t p = 0; p < n_parts; p++)
        weigh(t, b, n_keys, p * WIDE, most[p]);
    add_values(b, t, a, n_keys, n_parts);
}

WIDE_DQ static void attend(struct key_tile *t, struct lane_block *b, const struct attention *a,
                           uint32_t n_keys, bool plain)
{
    switch ((b->lanes.n + WIDE - 1) / WIDE) {
    case 1:
        attend_parts(t, b, a, n_keys, plain, 1);
        break;
    case 2:
        attend_parts(t, b, a, n_keys, plain, 2);
        break;
    case 3:
        attend_parts(t, b, a, n_keys, plain, 3);
        break;
    default:
        attend_parts(t, b, a, n_keys, plain, 4);
    }
}

/* ---- the operation ---- */

/* n blocks of lanes of a head of K over all keys. */
WIDE_DQ static void attend_blocks(const struct attention *a, uint32_t kv_head, uint32_t first,
                                  uint32_t n)
{
    struct lane_block blocks[BLOCKS];
    struct key_tile t;
    for (uint32_t i = 0; i < n; i++) {
        blocks[i].lanes = lanes_of(a, first + i, LANES);
        begin(&blocks[i], a, kv_head);
    }
    for (uint32_t key = 0; key < a->n_kv; key += KEYS) {
        bool widened = false;
        for (uint32_t i = 0; i < n; i++) {
            bool plain = false;
            uint32_t n_keys = seen(blocks[i].lanes, a, key, &plain);
            if (n_keys == 0) continue;
            if (!widened) {
                widen(t.k, a->k, key, kv_head, a->dim);
                widen(t.v, a->v, key, kv_head, a->dim);
                widened = true;
            }
            if (!plain) lay_mask(&t, &blocks[i], a, key, n_keys);
            attend(&t, &blocks[i], a, n_keys, plain);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        finish(&blocks[i], a, kv_head);
}

static void attend_all(struct ggml_tensor *dst, int ith, int nth, void *scale)
{
    struct attention a = attention_of(dst, scale);
    take_turns(&a, (uint32_t)ith, (uint32_t)nth, (struct turns){LANES, 1, BLOCKS}, attend_blocks);
}

bool tsri_attention_can(const struct ggml_tensor *kv, uint32_t head_dim)
{
    return (kv->type == GGML_TYPE_F16 || kv->type == GGML_TYPE_F32) && head_dim % WIDE == 0 &&
           head_dim <= DIM_MAX && kv->buffer && ggml_backend_buffer_is_host(kv->buffer) &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

struct ggml_tensor *tsri_attention(struct ggml_context *ctx, const struct tsri_attention *a)
{
    struct ggml_tensor *all[] = {a->q, a->k, a->v, a->mask};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, a->q->ne[0], a->q->ne[1], a->q->ne[2], 1, all, 4,
                          a->tiles ? tsri_attention_tiles : attend_all, GGML_N_TASKS_MAX, a->scale);
}

#else

bool tsri_attention_can(const struct ggml_tensor *kv, uint32_t head_dim)
{
    (void)kv;
    (void)head_dim;
    return false;
}

struct ggml_tensor *tsri_attention(struct ggml_context *ctx, const struct tsri_attention *a)
{
    return ggml_flash_attn_ext(ctx, ggml_permute(ctx, a->q, 0, 2, 1, 3), a->k, a->v, a->mask,
                               *a->scale, 0, 0);
}

#endif
