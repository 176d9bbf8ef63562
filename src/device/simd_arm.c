/* simd_arm.c - the inner loops for Arm's NEON, which every aarch64 processor has, and the same with
 * the BF16 conversion of Armv8.6 and the long multiplication of f16 that comes with it, found at run
 * time. Built as simd_x86.c is: the loop once, the way elements are read and written as an argument
 * that disappears by inlining. */
#include "device/device.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <float.h>
#include <math.h>
#include <sys/auxv.h>

#ifndef HWCAP_ASIMDFHM
#define HWCAP_ASIMDFHM (1u << 23)
#endif
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1u << 14)
#endif

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define WITH_BF16 __attribute__((target("bf16,fp16fml")))
#else
#define WITH_BF16 __attribute__((target("arch=armv8.2-a+bf16+fp16fml")))
#endif

/* Eight elements as two vectors of floats. */
struct f8 {
    float32x4_t lo, hi;
};

INLINE struct f8 get8_f32(const void *p)
{
    return (struct f8){vld1q_f32(p), vld1q_f32((const float *)p + 4)};
}
INLINE struct f8 get8_f16(const void *p)
{
    float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
    return (struct f8){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
/* As -0 + h * 1, which is h, the sign of 0 included. A Neoverse-V1 converts one vector in a cycle, and
 * that limits a rotation; it multiplies four. */
INLINE WITH_BF16 struct f8 get8_f16_fast(const void *p)
{
    uint16x8_t h = vld1q_u16(p), one = vdupq_n_u16(0x3c00);
    struct f8 v = {vdupq_n_f32(-0.0f), vdupq_n_f32(-0.0f)};
    __asm__("fmlal %0.4s, %2.4h, %3.4h\n\tfmlal2 %1.4s, %2.4h, %3.4h"
            : "+&w"(v.lo), "+&w"(v.hi)
            : "w"(h), "w"(one));
    return v;
}
INLINE struct f8 get8_bf16(const void *p)
{
    uint16x8_t h = vld1q_u16(p);
    return (struct f8){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                       vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}
INLINE void put8_f32(void *p, struct f8 v)
{
    vst1q_f32(p, v.lo);
    vst1q_f32((float *)p + 4, v.hi);
}
INLINE void put8_f16(void *p, struct f8 v)
{
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.lo), v.hi)));
}
/* The upper halves of eight floats, rounded to nearest, ties to even. All steps are on halves: eight
 * elements in an instruction, where those on floats take four. */
struct halves {
    uint16x8_t high, rounded;
};
INLINE struct halves round_bf16(struct f8 v)
{
    uint16x8_t lo = vreinterpretq_u16_f32(v.lo), hi = vreinterpretq_u16_f32(v.hi);
    uint16x8_t low = vuzp1q_u16(lo, hi), high = vuzp2q_u16(lo, hi);
    uint16x8_t odd = vandq_u16(high, vdupq_n_u16(1));
    uint16x8_t up = vcgtq_u16(vqaddq_u16(low, odd), vdupq_n_u16(0x8000)); /* -1 */
    return (struct halves){high, vsubq_u16(high, up)};
}
/* NaN keeps its top bits and turns quiet. */
INLINE void put8_bf16(void *p, struct f8 v)
{
    struct halves h = round_bf16(v);
    uint16x8_t number = vuzp1q_u16(vreinterpretq_u16_u32(vceqq_f32(v.lo, v.lo)),
                                   vreinterpretq_u16_u32(vceqq_f32(v.hi, v.hi)));
    vst1q_u16(p, vbslq_u16(number, h.rounded, vorrq_u16(h.high, vdupq_n_u16(0x40))));
}
/* The same for what arithmetic has made of bf16: its NaN are quiet, and their lower halves are those
 * of a bf16 or of the processor's own NaN, 0. So rounding leaves them alone. */
INLINE void put8_bf16_computed(void *p, struct f8 v)
{
    vst1q_u16(p, round_bf16(v).rounded);
}
/* In assembly: the intrinsic's type has had several spellings, the instruction has one. */
INLINE WITH_BF16 void put8_bf16_fast(void *p, struct f8 v)
{
    uint16x8_t out;
    __asm__("bfcvtn %0.4h, %1.4s\n\tbfcvtn2 %0.8h, %2.4s" : "=&w"(out) : "w"(v.lo), "w"(v.hi));
    vst1q_u16(p, out);
}

typedef struct f8 (*get8_fn)(const void *p);
typedef void (*put8_fn)(void *p, struct f8 v);

/* a c - b s and b c + a s */
INLINE float32x4_t less(float32x4_t a, float32x4_t c, float32x4_t b, float32x4_t s)
{
    return vfmsq_f32(vmulq_f32(a, c), b, s);
}
INLINE float32x4_t more(float32x4_t b, float32x4_t c, float32x4_t a, float32x4_t s)
{
    return vfmaq_f32(vmulq_f32(b, c), a, s);
}

struct pair8 {
    struct f8 a, b;
};
INLINE struct pair8 turn8(struct pair8 x, struct f8 c, struct f8 s)
{
    return (struct pair8){{less(x.a.lo, c.lo, x.b.lo, s.lo), less(x.a.hi, c.hi, x.b.hi, s.hi)},
                          {more(x.b.lo, c.lo, x.a.lo, s.lo), more(x.b.hi, c.hi, x.a.hi, s.hi)}};
}

/* Two vectors of each half at a time, all reads before the writes: so compilers make loads and stores
 * of pairs. */
INLINE void neox8(uint8_t *out, const uint8_t *in, const struct tsri_turn *t, struct tsri_width w,
                  get8_fn get, put8_fn put, tsri_turn_fn plain)
{
    const uint8_t *in_b = in + t->n_pairs * w.in;
    uint8_t *out_b = out + t->n_pairs * w.out;
    uint32_t i = 0;
    for (; i + 16 <= t->n_pairs; i += 16) {
        uint32_t k = i + 8;
        struct f8 c0 = get8_f32(t->cos + i), c1 = get8_f32(t->cos + k);
        struct f8 s0 = get8_f32(t->sin + i), s1 = get8_f32(t->sin + k);
        struct f8 a0 = get(in + i * w.in), a1 = get(in + k * w.in);
        struct f8 b0 = get(in_b + i * w.in), b1 = get(in_b + k * w.in);
        struct pair8 x = turn8((struct pair8){a0, b0}, c0, s0);
        struct pair8 y = turn8((struct pair8){a1, b1}, c1, s1);
        put(out + i * w.out, x.a);
        put(out + k * w.out, y.a);
        put(out_b + i * w.out, x.b);
        put(out_b + k * w.out, y.b);
    }
    for (; i + 8 <= t->n_pairs; i += 8) {
        struct pair8 x = turn8((struct pair8){get(in + i * w.in), get(in_b + i * w.in)},
                               get8_f32(t->cos + i), get8_f32(t->sin + i));
        put(out + i * w.out, x.a);
        put(out_b + i * w.out, x.b);
    }
    if (i < t->n_pairs) tsri_turn_rest(out, in, t, i, w, false, plain);
}

INLINE struct f8 gptj4(struct f8 x, float32x4_t c, float32x4_t s)
{
    float32x4_t a = vuzp1q_f32(x.lo, x.hi), b = vuzp2q_f32(x.lo, x.hi);
    float32x4_t turned_a = less(a, c, b, s), turned_b = more(b, c, a, s);
    return (struct f8){vzip1q_f32(turned_a, turned_b), vzip2q_f32(turned_a, turned_b)};
}

INLINE void gptj8(uint8_t *out, const uint8_t *in, const struct tsri_turn *t, struct tsri_width w,
                  get8_fn get, put8_fn put, tsri_turn_fn plain)
{
    uint32_t i = 0;
    for (; i + 8 <= t->n_pairs; i += 8) {
        struct f8 c = get8_f32(t->cos + i), s = get8_f32(t->sin + i);
        struct f8 x = get(in + 2 * i * w.in), y = get(in + (2 * i + 8) * w.in);
        x = gptj4(x, c.lo, s.lo);
        y = gptj4(y, c.hi, s.hi);
        put(out + 2 * i * w.out, x);
        put(out + (2 * i + 8) * w.out, y);
    }
    for (; i + 4 <= t->n_pairs; i += 4)
        put(out + 2 * i * w.out,
            gptj4(get(in + 2 * i * w.in), vld1q_f32(t->cos + i), vld1q_f32(t->sin + i)));
    if (i < t->n_pairs) tsri_turn_rest(out, in, t, i, w, true, plain);
}

#define TURN8(name, target, body, from, to, in_bytes, out_bytes, plain_fn) \
    target static void name(void *dst, size_t dst_stride, const void *src, size_t src_stride, \
                            size_t n, const struct tsri_turn *t) \
    { \
        for (size_t h = 0; h < n; h++) \
            body((uint8_t *)dst + h * dst_stride, (const uint8_t *)src + h * src_stride, t, \
                 (struct tsri_width){in_bytes, out_bytes}, get8_##from, put8_##to, \
                 tsri_kernels_plain.plain_fn); \
    }
#define ANY
TURN8(neox8_f32, ANY, neox8, f32, f32, 4, 4, turn[TSRI_F32][TSRI_NEOX])
TURN8(gptj8_f32, ANY, gptj8, f32, f32, 4, 4, turn[TSRI_F32][TSRI_GPTJ])
TURN8(neox8_f16, ANY, neox8, f16, f16, 2, 2, turn[TSRI_F16][TSRI_NEOX])
TURN8(gptj8_f16, ANY, gptj8, f16, f16, 2, 2, turn[TSRI_F16][TSRI_GPTJ])
TURN8(neox8_bf16, ANY, neox8, bf16, bf16_computed, 2, 2, turn[TSRI_BF16][TSRI_NEOX])
TURN8(gptj8_bf16, ANY, gptj8, bf16, bf16_computed, 2, 2, turn[TSRI_BF16][TSRI_GPTJ])
TURN8(neox8_wide_f16, ANY, neox8, f32, f16, 4, 2, turn_wide[TSRI_F16][TSRI_NEOX])
TURN8(gptj8_wide_f16, ANY, gptj8, f32, f16, 4, 2, turn_wide[TSRI_F16][TSRI_GPTJ])
TURN8(neox8_wide_bf16, ANY, neox8, f32, bf16, 4, 2, turn_wide[TSRI_BF16][TSRI_NEOX])
TURN8(gptj8_wide_bf16, ANY, gptj8, f32, bf16, 4, 2, turn_wide[TSRI_BF16][TSRI_GPTJ])
TURN8(neox8_f16_fast, WITH_BF16, neox8, f16_fast, f16, 2, 2, turn[TSRI_F16][TSRI_NEOX])
TURN8(gptj8_f16_fast, WITH_BF16, gptj8, f16_fast, f16, 2, 2, turn[TSRI_F16][TSRI_GPTJ])
TURN8(neox8_bf16_fast, WITH_BF16, neox8, bf16, bf16_fast, 2, 2, turn[TSRI_BF16][TSRI_NEOX])
TURN8(gptj8_bf16_fast, WITH_BF16, gptj8, bf16, bf16_fast, 2, 2, turn[TSRI_BF16][TSRI_GPTJ])
TURN8(neox8_wide_bf16_fast, WITH_BF16, neox8, f32, bf16_fast, 4, 2, turn_wide[TSRI_BF16][TSRI_NEOX])
TURN8(gptj8_wide_bf16_fast, WITH_BF16, gptj8, f32, bf16_fast, 4, 2, turn_wide[TSRI_BF16][TSRI_GPTJ])

static void widen8_int8(float *dst, const int8_t *src, float scale, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        int16x8_t wide = vmovl_s8(vld1_s8(src + i));
        vst1q_f32(dst + i, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), scale));
        vst1q_f32(dst + i + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(wide)), scale));
    }
    tsri_kernels_plain.widen_int8(dst + i, src + i, scale, n - i);
}

#define NARROW8(suffix, target, bytes, kind) \
    target static void narrow8_##suffix(void *dst, const float *src, size_t n) \
    { \
        size_t i = 0; \
        for (; i + 8 <= n; i += 8) \
            put8_##suffix((uint8_t *)dst + i * bytes, get8_f32(src + i)); \
        tsri_kernels_plain.narrow[kind]((uint8_t *)dst + i * bytes, src + i, n - i); \
    }
#define CHANGE8(name, bytes, kind) \
    NARROW8(name, ANY, bytes, kind) \
    static void widen8_##name(float *dst, const void *src, size_t n) \
    { \
        size_t i = 0; \
        for (; i + 8 <= n; i += 8) \
            put8_f32(dst + i, get8_##name((const uint8_t *)src + i * bytes)); \
        tsri_kernels_plain.widen[kind](dst + i, (const uint8_t *)src + i * bytes, n - i); \
    }
CHANGE8(f32, 4, TSRI_F32)
CHANGE8(f16, 2, TSRI_F16)
CHANGE8(bf16, 2, TSRI_BF16)
NARROW8(bf16_fast, WITH_BF16, 2, TSRI_BF16)

/* Groups are whole vectors in practice; others go the plain way. */
static float quantise8(int8_t *dst, const float *src, size_t n)
{
    if (n % 8) return tsri_kernels_plain.quantise(dst, src, n);
    float32x4_t m0 = vdupq_n_f32(0), m1 = m0;
    for (size_t i = 0; i < n; i += 8) {
        m0 = vmaxq_f32(m0, vabsq_f32(vld1q_f32(src + i)));
        m1 = vmaxq_f32(m1, vabsq_f32(vld1q_f32(src + i + 4)));
    }
    float largest = vmaxvq_f32(vmaxq_f32(m0, m1)); /* NaN if there is one */
    bool finite = largest <= FLT_MAX;
    if (!finite) largest = 0;
    if (largest < 0x1p-120f) {
        memset(dst, 0, n);
        return finite ? 0 : NAN;
    }
    float by = 127.0f / largest;
    for (size_t i = 0; i < n; i += 8) {
        int32x4_t lo = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(src + i), by));
        int32x4_t hi = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(src + i + 4), by));
        vst1_s8(dst + i, vqmovn_s16(vqmovn_high_s32(vqmovn_s32(lo), hi)));
    }
    return largest / 127.0f;
}

/* Pairs of loads and stores, in assembly because gcc 12 makes single ones of the intrinsics. A
 * Neoverse-N1 notices lines that are written whole and does not read them first, as long as one piece
 * follows the other: prefetching the next piece, copying several side by side and zeroing lines before
 * they are written (dc zva) all made it slower (docs/performance.md). */
INLINE void copy_pairs(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t whole = bytes & ~(size_t)127;
    for (uint8_t *end = to + whole; to < end;)
        __asm__ volatile("ldp q0, q1, [%1]\n\t"
                         "ldp q2, q3, [%1, 32]\n\t"
                         "ldp q4, q5, [%1, 64]\n\t"
                         "ldp q6, q7, [%1, 96]\n\t"
                         "stp q0, q1, [%0]\n\t"
                         "stp q2, q3, [%0, 32]\n\t"
                         "stp q4, q5, [%0, 64]\n\t"
                         "stp q6, q7, [%0, 96]\n\t"
                         "add %0, %0, 128\n\t"
                         "add %1, %1, 128"
                         : "+r"(to), "+r"(from)
                         :
                         : "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7");
    memcpy(to, from, bytes - whole);
}

static void copy_in_turn(const struct tsr_copy c[TSRI_STREAM_PIECES])
{
    for (uint32_t i = 0; i < TSRI_STREAM_PIECES; i++)
        copy_pairs(c[i].dst, c[i].src, c[i].bytes);
}

static void no_fence(void) {}

static bool always(void)
{
    return true;
}

static bool has_bf16(void)
{
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) && (getauxval(AT_HWCAP) & HWCAP_ASIMDFHM);
}

#define NEON_MEMBERS \
    .widen_int8 = widen8_int8, .widen = {widen8_f32, widen8_f16, widen8_bf16}, \
    .quantise = quantise8, .stream = copy_in_turn, .fence = no_fence

static const struct tsri_kernels neon = {
    .name = "neon",
    .supported = always,
    .turn = {{neox8_f32, gptj8_f32}, {neox8_f16, gptj8_f16}, {neox8_bf16, gptj8_bf16}},
    .turn_wide = {{neox8_f32, gptj8_f32},
                  {neox8_wide_f16, gptj8_wide_f16},
                  {neox8_wide_bf16, gptj8_wide_bf16}},
    .narrow = {narrow8_f32, narrow8_f16, narrow8_bf16},
    NEON_MEMBERS,
};

static const struct tsri_kernels neon_bf16 = {
    .name = "neon_bf16",
    .supported = has_bf16,
    .turn = {{neox8_f32, gptj8_f32},
             {neox8_f16_fast, gptj8_f16_fast},
             {neox8_bf16_fast, gptj8_bf16_fast}},
    .turn_wide = {{neox8_f32, gptj8_f32},
                  {neox8_wide_f16, gptj8_wide_f16},
                  {neox8_wide_bf16_fast, gptj8_wide_bf16_fast}},
    .narrow = {narrow8_f32, narrow8_f16, narrow8_bf16_fast},
    NEON_MEMBERS,
};

const struct tsri_kernels *tsri_kernels_arm(uint32_t i)
{
    static const struct tsri_kernels *const sets[] = {&neon, &neon_bf16};
    return i < TSRI_COUNT(sets) ? sets[i] : NULL;
}

#else

const struct tsri_kernels *tsri_kernels_arm(uint32_t i)
{
    (void)i;
    return NULL;
}

#endif
