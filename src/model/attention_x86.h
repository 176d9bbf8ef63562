/* attention_x86.h - what the kernels of attention_x86.c and attention_tiles_x86.c have in common: what
 * they work on, its lanes, its masks, and how threads share it. Included by these two alone.
 *
 * A lane is one row of Q in one head. The lanes of a head of K stand side by side, all heads of a row
 * first, so that few rows fill registers too. A block is some lanes that are computed together, by 64
 * keys at a time. */
#ifndef TSRI_ATTENTION_X86_H
#define TSRI_ATTENTION_X86_H

#include "model/wide_x86.h"

#if defined(__x86_64__)

#define KEYS 64u     /* of a tile, as in ggml */
#define DIM_MAX 128u /* of a head: blocks are on the stack */

/* What an operation works on, as a thread sees it. */
struct attention {
    const struct ggml_tensor *q, *k, *v, *mask;
    struct ggml_tensor *out;
    uint32_t dim, n_kv;
    uint32_t per_kv;  /* heads that share one of K */
    uint32_t n_lanes; /* of a head of K */
    float scale;
};

/* Of a block. */
struct lanes {
    uint32_t first, n;
};

/* ---- lanes ---- */

/* Those of a block, of which all but the last have `most` lanes. */
INLINE struct lanes lanes_of(const struct attention *a, uint32_t block, uint32_t most)
{
    uint32_t left = a->n_lanes - block * most;
    return (struct lanes){block * most, left < most ? left : most};
}

/* The lane at a place of a block. Where lanes end, the last one fills the register. */
INLINE uint32_t lane_at(struct lanes l, uint32_t i)
{
    return l.first + (i < l.n ? i : l.n - 1);
}

/* Its numbers in Q or in the result. */
INLINE float *lane_of(const struct ggml_tensor *t, const struct attention *a, uint32_t kv_head,
                      uint32_t lane)
{
    size_t head = (size_t)kv_head * a->per_kv + lane % a->per_kv;
    return (float *)(void *)((char *)t->data + lane / a->per_kv * t->nb[2] + head * t->nb[1]);
}

/* ---- masks ---- */

/* What a row adds to the scores of 16 keys. */
INLINE WIDE_DQ __m256i mask_at(const struct attention *a, uint32_t row, uint32_t key)
{
    const char *from = (const char *)a->mask->data + row * a->mask->nb[1];
    return _mm256_loadu_si256((const void *)(from + key * sizeof(ggml_fp16_t)));
}

/* How many of 64 keys a block's lanes see, in sixteens; *plain: all of them, with nothing to add. */
INLINE WIDE_DQ uint32_t seen(struct lanes l, const struct attention *a, uint32_t key, bool *plain)
{
    const __m256i hidden = _mm256_set1_epi16((short)TSRI_HIDDEN);
    __m256i others = _mm256_setzero_si256();
    uint32_t n = 0, last = lane_at(l, l.n) / a->per_kv;
    for (uint32_t i = 0; i < KEYS; i += WIDE) {
        __m256i part = _mm256_setzero_si256();
        __mmask16 visible = 0;
        for (uint32_t r = l.first / a->per_kv; r <= last; r++) {
            __m256i m = mask_at(a, r, key + i);
            part = _mm256_or_si256(part, m);
            visible |= _mm256_cmpneq_epi16_mask(m, hidden);
        }
        others = _mm256_or_si256(others, part);
        if (!visible) continue;
        n = i + WIDE;
        *plain = _mm256_testz_si256(others, others);
    }
    return n;
}

/* ---- the operation ---- */

/* Computes n blocks of a head of K, over all keys. */
typedef void (*attend_fn)(const struct attention *a, uint32_t kv_head, uint32_t first, uint32_t n);

/* Blocks of lanes that a thread computes in one turn. They share what is made of keys, so a turn has
 * `least` of them if that leaves one to every thread. */
struct turns {
    uint32_t block_lanes, least, most;
};

/* Threads take turns. Later rows see more keys, so every other turn goes the other way. */
static inline void take_turns(const struct attention *a, uint32_t ith, uint32_t nth, struct turns t,
                              attend_fn attend)
{
    uint32_t n_kv_heads = (uint32_t)a->k->ne[2], turn_of = 0;
    uint32_t n_blocks = (a->n_lanes + t.block_lanes - 1) / t.block_lanes;
    uint32_t share = n_blocks * n_kv_heads / nth, step = share / 4;
    if (step < t.least) step = share < t.least ? share : t.least;
    step = step > t.most ? t.most : step < 1 ? 1 : step;
    for (uint32_t head = 0; head < n_kv_heads; head++)
        for (uint32_t first = 0; first < n_blocks; first += step, turn_of++) {
            uint32_t n = n_blocks - first < step ? n_blocks - first : step;
            uint32_t at = turn_of % nth, back = turn_of / nth % 2;
            if ((back ? nth - 1 - at : at) == ith) attend(a, head, first, n);
        }
}

INLINE struct attention attention_of(struct ggml_tensor *dst, const float *scale)
{
    struct attention a = {.q = dst->src[0],
                          .k = dst->src[1],
                          .v = dst->src[2],
                          .mask = dst->src[3],
                          .out = dst,
                          .scale = *scale};
    a.dim = (uint32_t)a.k->ne[0];
    a.n_kv = (uint32_t)a.k->ne[1];
    a.per_kv = (uint32_t)(a.q->ne[1] / a.k->ne[2]);
    a.n_lanes = (uint32_t)a.q->ne[2] * a.per_kv;
    return a;
}

/* By tiles (attention_tiles_x86.c): an operation of ggml's graph. */
void tsri_attention_tiles(struct ggml_tensor *dst, int ith, int nth, void *scale);

#endif
#endif
