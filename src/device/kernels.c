/* kernels.c - the inner loops in portable C: what runs where no vector variant fits, and what the
 * vector variants use for the ends of rows. Arithmetic is float, results are rounded once. */
#include "device/device.h"

#include <math.h>

static inline float get_f32(const void *src, size_t i)
{
    return ((const float *)src)[i];
}
static inline float get_f16(const void *src, size_t i)
{
    return tsri_f16_to_f32(((const uint16_t *)src)[i]);
}
static inline float get_bf16(const void *src, size_t i)
{
    return tsri_bf16_to_f32(((const uint16_t *)src)[i]);
}
static inline void put_f32(void *dst, size_t i, float f)
{
    ((float *)dst)[i] = f;
}
static inline void put_f16(void *dst, size_t i, float f)
{
    ((uint16_t *)dst)[i] = tsri_f32_to_f16(f);
}
static inline void put_bf16(void *dst, size_t i, float f)
{
    ((uint16_t *)dst)[i] = tsri_f32_to_bf16(f);
}

typedef float (*get_fn)(const void *src, size_t i);
typedef void (*put_fn)(void *dst, size_t i, float f);

struct access {
    get_fn get;
    put_fn put;
    bool gptj;
};

/* One vector. Inlined with a constant access, so that each dtype gets its own straight loop. */
static inline __attribute__((always_inline)) void turn(uint8_t *out, const uint8_t *in,
                                                       const struct tsri_turn *t, struct access by)
{
    size_t step = by.gptj ? 2 : 1, apart = by.gptj ? 1 : t->n_pairs;
    for (size_t i = 0; i < t->n_pairs; i++) {
        float a = by.get(in, i * step), b = by.get(in, i * step + apart);
        by.put(out, i * step, a * t->cos[i] - b * t->sin[i]);
        by.put(out, i * step + apart, b * t->cos[i] + a * t->sin[i]);
    }
}

#define TURN(name, gptj, get, put) \
    static void name(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t n, \
                     const struct tsri_turn *t) \
    { \
        for (size_t h = 0; h < n; h++) \
            turn((uint8_t *)dst + h * dst_stride, (const uint8_t *)src + h * src_stride, t, \
                 (struct access){get, put, gptj}); \
    }
TURN(neox_f32, false, get_f32, put_f32)
TURN(gptj_f32, true, get_f32, put_f32)
TURN(neox_f16, false, get_f16, put_f16)
TURN(gptj_f16, true, get_f16, put_f16)
TURN(neox_bf16, false, get_bf16, put_bf16)
TURN(gptj_bf16, true, get_bf16, put_bf16)
TURN(neox_wide_f16, false, get_f32, put_f16)
TURN(gptj_wide_f16, true, get_f32, put_f16)
TURN(neox_wide_bf16, false, get_f32, put_bf16)
TURN(gptj_wide_bf16, true, get_f32, put_bf16)

static void widen_int8(float *dst, const int8_t *src, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = (float)src[i] * scale;
}

#define CHANGE(name, get, put) \
    static void widen_##name(float *dst, const void *src, size_t n) \
    { \
        for (size_t i = 0; i < n; i++) \
            dst[i] = get(src, i); \
    } \
    static void narrow_##name(void *dst, const float *src, size_t n) \
    { \
        for (size_t i = 0; i < n; i++) \
            put(dst, i, src[i]); \
    }
CHANGE(f32, get_f32, put_f32)
CHANGE(f16, get_f16, put_f16)
CHANGE(bf16, get_bf16, put_bf16)

/* x - x is 0 for finite x and NaN otherwise: one sum finds whether the group has a scale. */
static float quantise(int8_t *dst, const float *src, size_t n)
{
    float m = 0, odd = 0;
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(src[i]);
        if (a > m) m = a;
        odd += a - a;
    }
    if (odd != 0 || m < 0x1p-120f) {
        memset(dst, 0, n);
        return odd != 0 ? NAN : 0;
    }
    float to_int8 = 127.0f / m;
    for (size_t i = 0; i < n; i++)
        dst[i] = (int8_t)rintf(src[i] * to_int8);
    return m / 127.0f;
}

static bool always(void)
{
    return true;
}

void tsri_turn_rest(uint8_t *out, const uint8_t *in, const struct tsri_turn *t, uint32_t i,
                    struct tsri_width w, bool gptj, tsri_turn_fn plain)
{
    if (gptj) {
        struct tsri_turn rest = {t->cos + i, t->sin + i, t->n_pairs - i};
        plain(out + 2 * i * w.out, 0, in + 2 * i * w.in, 0, 1, &rest);
        return;
    }
    /* The halves of the rest lie n_pairs apart: one pair at a time through a pair of its own. */
    for (; i < t->n_pairs; i++) {
        uint8_t from[8], to[8];
        struct tsri_turn one = {t->cos + i, t->sin + i, 1};
        memcpy(from, in + i * w.in, w.in);
        memcpy(from + w.in, in + (t->n_pairs + i) * w.in, w.in);
        plain(to, 0, from, 0, 1, &one);
        memcpy(out + i * w.out, to, w.out);
        memcpy(out + (t->n_pairs + i) * w.out, to + w.out, w.out);
    }
}

const struct tsri_kernels tsri_kernels_plain = {
    .name = "plain",
    .supported = always,
    .turn = {{neox_f32, gptj_f32}, {neox_f16, gptj_f16}, {neox_bf16, gptj_bf16}},
    .turn_wide = {{neox_f32, gptj_f32},
                  {neox_wide_f16, gptj_wide_f16},
                  {neox_wide_bf16, gptj_wide_bf16}},
    .widen_int8 = widen_int8,
    .widen = {widen_f32, widen_f16, widen_bf16},
    .narrow = {narrow_f32, narrow_f16, narrow_bf16},
    .quantise = quantise,
};
