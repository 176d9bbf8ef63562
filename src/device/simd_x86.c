/* simd_x86.c - the inner loops for AVX2 with F16C and FMA, for AVX-512, and for AVX-512 with its
 * BF16 conversion. Functions carry their target, so the file needs no special flags and the choice
 * is made at open. A loop is written once for each vector width; how elements are read and written
 * is an argument that disappears by inlining. Ends that fill no vector are masked (AVX-512) or left
 * to the plain loops (AVX2). */
#include "device/device.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/* ---- AVX2: 8 floats ---- */

#define T256 __attribute__((target("avx2,fma,f16c")))

INLINE T256 __m256 get8_f32(const void *p)
{
    return _mm256_loadu_ps(p);
}
INLINE T256 __m256 get8_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
INLINE T256 __m256 get8_bf16(const void *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE T256 void put8_f32(void *p, __m256 v)
{
    _mm256_storeu_ps(p, v);
}
INLINE T256 void put8_f16(void *p, __m256 v)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
/* Half a unit less one, and one more for odd: ties to even. NaN keeps its top bits and turns quiet.
 */
INLINE T256 void put8_bf16(void *p, __m256 v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    near = _mm256_srli_epi32(_mm256_blendv_epi8(near, quiet, is_nan), 16);
    __m256i packed = _mm256_packus_epi32(near, near);
    packed = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(p, _mm256_castsi256_si128(packed));
}

typedef __m256 (*get8_fn)(const void *p);
typedef void (*put8_fn)(void *p, __m256 v);

INLINE T256 void neox8(uint8_t *out, const uint8_t *in, const struct tsri_turn *t,
                       struct tsri_width w, get8_fn get, put8_fn put, tsri_turn_fn plain)
{
    uint32_t i = 0;
    for (; i + 8 <= t->n_pairs; i += 8) {
        __m256 c = _mm256_loadu_ps(t->cos + i), s = _mm256_loadu_ps(t->sin + i);
        __m256 a = get(in + i * w.in), b = get(in + (t->n_pairs + i) * w.in);
        put(out + i * w.out, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        put(out + (t->n_pairs + i) * w.out, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    if (i < t->n_pairs) tsri_turn_rest(out, in, t, i, w, false, plain);
}

INLINE T256 void gptj8(uint8_t *out, const uint8_t *in, const struct tsri_turn *t,
                       struct tsri_width w, get8_fn get, put8_fn put, tsri_turn_fn plain)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    uint32_t i = 0;
    for (; i + 4 <= t->n_pairs; i += 4) {
        __m256 c = _mm256_castps128_ps256(_mm_loadu_ps(t->cos + i));
        __m256 s = _mm256_castps128_ps256(_mm_loadu_ps(t->sin + i));
        __m256 x = get(in + 2 * i * w.in), swapped = _mm256_permute_ps(x, 0xB1);
        c = _mm256_permutevar8x32_ps(c, twice);
        s = _mm256_permutevar8x32_ps(s, twice);
        put(out + 2 * i * w.out, _mm256_fmaddsub_ps(x, c, _mm256_mul_ps(swapped, s)));
    }
    if (i < t->n_pairs) tsri_turn_rest(out, in, t, i, w, true, plain);
}

#define TURN8(name, body, from, to, in_bytes, out_bytes, plain_fn) \
    T256 static void name(void *dst, size_t dst_stride, const void *src, size_t src_stride, \
                          size_t n, const struct tsri_turn *t) \
    { \
        for (size_t h = 0; h < n; h++) \
            body((uint8_t *)dst + h * dst_stride, (const uint8_t *)src + h * src_stride, t, \
                 (struct tsri_width){in_bytes, out_bytes}, get8_##from, put8_##to, \
                 tsri_kernels_plain.plain_fn); \
    }
TURN8(neox8_f32, neox8, f32, f32, 4, 4, turn[TSRI_F32][TSRI_NEOX])
TURN8(gptj8_f32, gptj8, f32, f32, 4, 4, turn[TSRI_F32][TSRI_GPTJ])
TURN8(neox8_f16, neox8, f16, f16, 2, 2, turn[TSRI_F16][TSRI_NEOX])
TURN8(gptj8_f16, gptj8, f16, f16, 2, 2, turn[TSRI_F16][TSRI_GPTJ])
TURN8(neox8_bf16, neox8, bf16, bf16, 2, 2, turn[TSRI_BF16][TSRI_NEOX])
TURN8(gptj8_bf16, gptj8, bf16, bf16, 2, 2, turn[TSRI_BF16][TSRI_GPTJ])
TURN8(neox8_wide_f16, neox8, f32, f16, 4, 2, turn_wide[TSRI_F16][TSRI_NEOX])
TURN8(gptj8_wide_f16, gptj8, f32, f16, 4, 2, turn_wide[TSRI_F16][TSRI_GPTJ])
TURN8(neox8_wide_bf16, neox8, f32, bf16, 4, 2, turn_wide[TSRI_BF16][TSRI_NEOX])
TURN8(gptj8_wide_bf16, gptj8, f32, bf16, 4, 2, turn_wide[TSRI_BF16][TSRI_GPTJ])

T256 static void widen8_int8(float *dst, const int8_t *src, float scale, size_t n)
{
    size_t i = 0;
    __m256 by = _mm256_set1_ps(scale);
    for (; i + 8 <= n; i += 8) {
        __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(src + i)));
        _mm256_storeu_ps(dst + i, _mm256_mul_ps(_mm256_cvtepi32_ps(wide), by));
    }
    tsri_kernels_plain.widen_int8(dst + i, src + i, scale, n - i);
}

T256 static float sum8(__m256 v)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

#define CHANGE8(name, bytes, kind) \
    T256 static void widen8_##name(float *dst, const void *src, size_t n) \
    { \
        size_t i = 0; \
        for (; i + 8 <= n; i += 8) \
            _mm256_storeu_ps(dst + i, get8_##name((const uint8_t *)src + i * bytes)); \
        tsri_kernels_plain.widen[kind](dst + i, (const uint8_t *)src + i * bytes, n - i); \
    } \
    T256 static void narrow8_##name(void *dst, const float *src, size_t n) \
    { \
        size_t i = 0; \
        for (; i + 8 <= n; i += 8) \
            put8_##name((uint8_t *)dst + i * bytes, _mm256_loadu_ps(src + i)); \
        tsri_kernels_plain.narrow[kind]((uint8_t *)dst + i * bytes, src + i, n - i); \
    }
CHANGE8(f32, 4, TSRI_F32)
CHANGE8(f16, 2, TSRI_F16)
CHANGE8(bf16, 2, TSRI_BF16)

/* m of the group, or NaN when something in it is not finite. */
T256 static float largest8(const float *src, size_t n)
{
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 m = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    float lanes[8], largest = 0;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        __m256 a = _mm256_and_ps(_mm256_loadu_ps(src + i), no_sign);
        m = _mm256_max_ps(m, a);
        odd = _mm256_add_ps(odd, _mm256_sub_ps(a, a));
    }
    _mm256_storeu_ps(lanes, m);
    for (size_t i = 0; i < 8; i++)
        if (lanes[i] > largest) largest = lanes[i];
    return largest + sum8(odd);
}

/* Groups are whole vectors in practice; others go the plain way. */
T256 static float quantise8(int8_t *dst, const float *src, size_t n)
{
    if (n % 8) return tsri_kernels_plain.quantise(dst, src, n);
    float m = largest8(src, n);
    if (!(m >= 0x1p-120f)) {
        memset(dst, 0, n);
        return isnan(m) ? NAN : 0;
    }
    __m256 by = _mm256_set1_ps(127.0f / m);
    for (size_t i = 0; i < n; i += 8) {
        __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(src + i), by));
        __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
        _mm_storel_epi64((__m128i *)(dst + i), _mm_packs_epi16(words, words));
    }
    return m / 127.0f;
}

INLINE T256 void stream_line(uint8_t *to, const uint8_t *from)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)from);
    __m256i b = _mm256_loadu_si256((const __m256i *)(from + 32));
    _mm256_stream_si256((__m256i *)to, a);
    _mm256_stream_si256((__m256i *)(to + 32), b);
}

/* Ends that are no whole lines of 64 bytes go the usual way. */
T256 static void stream_one(const struct tsr_copy *c)
{
    enum { LINE = 64 };
    uint8_t *to = c->dst;
    const uint8_t *from = c->src;
    size_t i = (LINE - (uintptr_t)to % LINE) % LINE;
    if (c->bytes < i + LINE) i = c->bytes;
    memcpy(to, from, i);
    for (; i + LINE <= c->bytes; i += LINE)
        stream_line(to + i, from + i);
    memcpy(to + i, from + i, c->bytes - i);
}

/* Four places at once keep four of the processor's readers ahead busy: a quarter more than one
 * after the other. */
T256 static void stream8(const struct tsr_copy c[TSRI_STREAM_PIECES])
{
    uintptr_t ends = c[0].bytes;
    for (uint32_t k = 0; k < 4; k++) {
        ends |= (uintptr_t)c[k].dst;
        if (c[k].bytes != c[0].bytes) ends |= 1;
    }
    if (ends % 64) {
        for (uint32_t k = 0; k < 4; k++)
            stream_one(&c[k]);
        return;
    }
    uint8_t *to[4] = {c[0].dst, c[1].dst, c[2].dst, c[3].dst};
    const uint8_t *from[4] = {c[0].src, c[1].src, c[2].src, c[3].src};
    for (size_t i = 0; i < c[0].bytes; i += 64)
        for (uint32_t k = 0; k < 4; k++)
            stream_line(to[k] + i, from[k] + i);
}

static void fence(void)
{
    _mm_sfence();
}

/* The builtin also asks the system whether it saves the wide registers. */
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static const struct tsri_kernels avx2 = {
    .name = "avx2",
    .supported = has_avx2,
    .turn = {{neox8_f32, gptj8_f32}, {neox8_f16, gptj8_f16}, {neox8_bf16, gptj8_bf16}},
    .turn_wide = {{neox8_f32, gptj8_f32},
                  {neox8_wide_f16, gptj8_wide_f16},
                  {neox8_wide_bf16, gptj8_wide_bf16}},
    .widen_int8 = widen8_int8,
    .widen = {widen8_f32, widen8_f16, widen8_bf16},
    .narrow = {narrow8_f32, narrow8_f16, narrow8_bf16},
    .quantise = quantise8,
    .stream = stream8,
    .fence = fence,
};

/* ---- AVX-512: 16 floats, ends under a mask ---- */

#define T512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define T512BF \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

INLINE T512 __m512 get16_f32(const void *p, __mmask16 m)
{
    return _mm512_maskz_loadu_ps(m, p);
}
INLINE T512 __m512 get16_f16(const void *p, __mmask16 m)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p));
}
INLINE T512 __m512 get16_bf16(const void *p, __mmask16 m)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE T512 void put16_f32(void *p, __mmask16 m, __m512 v)
{
    _mm512_mask_storeu_ps(p, m, v);
}
INLINE T512 void put16_f16(void *p, __mmask16 m, __m512 v)
{
    _mm256_mask_storeu_epi16(p, m, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE T512 void put16_bf16(void *p, __mmask16 m, __m512 v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i near = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    near = _mm512_mask_or_epi32(near, is_nan, u, _mm512_set1_epi32(0x400000));
    _mm256_mask_storeu_epi16(p, m, _mm512_cvtepi32_epi16(_mm512_srli_epi32(near, 16)));
}
INLINE T512BF void put16_bf16_fast(void *p, __mmask16 m, __m512 v)
{
    __m256bh h = _mm512_cvtneps_pbh(v);
    __m256i bits;
    memcpy(&bits, &h, sizeof bits);
    _mm256_mask_storeu_epi16(p, m, bits);
}

typedef __m512 (*get16_fn)(const void *p, __mmask16 m);
typedef void (*put16_fn)(void *p, __mmask16 m, __m512 v);

INLINE __mmask16 first_lanes(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

INLINE T512 void neox16(uint8_t *out, const uint8_t *in, const struct tsri_turn *t,
                        struct tsri_width w, get16_fn get, put16_fn put)
{
    for (uint32_t i = 0; i < t->n_pairs; i += 16) {
        __mmask16 m = first_lanes(t->n_pairs - i);
        __m512 c = _mm512_maskz_loadu_ps(m, t->cos + i), s = _mm512_maskz_loadu_ps(m, t->sin + i);
        __m512 a = get(in + i * w.in, m), b = get(in + (t->n_pairs + i) * w.in, m);
        put(out + i * w.out, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        put(out + (t->n_pairs + i) * w.out, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

INLINE T512 void gptj16(uint8_t *out, const uint8_t *in, const struct tsri_turn *t,
                        struct tsri_width w, get16_fn get, put16_fn put)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for (uint32_t i = 0; i < t->n_pairs; i += 8) {
        uint32_t left = t->n_pairs - i;
        __mmask16 m = first_lanes(2 * (size_t)left);
        __mmask8 half = (__mmask8)(left >= 8 ? 0xffu : (1u << left) - 1);
        __m512 c = _mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, t->cos + i));
        __m512 s = _mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, t->sin + i));
        __m512 x = get(in + 2 * i * w.in, m), swapped = _mm512_permute_ps(x, 0xB1);
        c = _mm512_permutexvar_ps(twice, c);
        s = _mm512_permutexvar_ps(twice, s);
        put(out + 2 * i * w.out, m, _mm512_fmaddsub_ps(x, c, _mm512_mul_ps(swapped, s)));
    }
}

#define TURN16(name, target, body, from, to, in_bytes, out_bytes) \
    target static void name(void *dst, size_t dst_stride, const void *src, size_t src_stride, \
                            size_t n, const struct tsri_turn *t) \
    { \
        for (size_t h = 0; h < n; h++) \
            body((uint8_t *)dst + h * dst_stride, (const uint8_t *)src + h * src_stride, t, \
                 (struct tsri_width){in_bytes, out_bytes}, get16_##from, put16_##to); \
    }
TURN16(neox16_f32, T512, neox16, f32, f32, 4, 4)
TURN16(gptj16_f32, T512, gptj16, f32, f32, 4, 4)
TURN16(neox16_f16, T512, neox16, f16, f16, 2, 2)
TURN16(gptj16_f16, T512, gptj16, f16, f16, 2, 2)
TURN16(neox16_bf16, T512, neox16, bf16, bf16, 2, 2)
TURN16(gptj16_bf16, T512, gptj16, bf16, bf16, 2, 2)
TURN16(neox16_wide_f16, T512, neox16, f32, f16, 4, 2)
TURN16(gptj16_wide_f16, T512, gptj16, f32, f16, 4, 2)
TURN16(neox16_wide_bf16, T512, neox16, f32, bf16, 4, 2)
TURN16(gptj16_wide_bf16, T512, gptj16, f32, bf16, 4, 2)
TURN16(neox16_bf16_fast, T512BF, neox16, bf16, bf16_fast, 2, 2)
TURN16(gptj16_bf16_fast, T512BF, gptj16, bf16, bf16_fast, 2, 2)
TURN16(neox16_wide_bf16_fast, T512BF, neox16, f32, bf16_fast, 4, 2)
TURN16(gptj16_wide_bf16_fast, T512BF, gptj16, f32, bf16_fast, 4, 2)

T512 static void widen16_int8(float *dst, const int8_t *src, float scale, size_t n)
{
    __m512 by = _mm512_set1_ps(scale);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes(n - i);
        __m512i wide = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(m, src + i));
        _mm512_mask_storeu_ps(dst + i, m, _mm512_mul_ps(_mm512_cvtepi32_ps(wide), by));
    }
}

#define CHANGE16(name, bytes) \
    T512 static void widen16_##name(float *dst, const void *src, size_t n) \
    { \
        for (size_t i = 0; i < n; i += 16) { \
            __mmask16 m = first_lanes(n - i); \
            put16_f32(dst + i, m, get16_##name((const uint8_t *)src + i * bytes, m)); \
        } \
    } \
    T512 static void narrow16_##name(void *dst, const float *src, size_t n) \
    { \
        for (size_t i = 0; i < n; i += 16) { \
            __mmask16 m = first_lanes(n - i); \
            put16_##name((uint8_t *)dst + i * bytes, m, get16_f32(src + i, m)); \
        } \
    }
CHANGE16(f32, 4)
CHANGE16(f16, 2)
CHANGE16(bf16, 2)

T512BF static void narrow16_bf16_fast(void *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes(n - i);
        put16_bf16_fast((uint16_t *)dst + i, m, get16_f32(src + i, m));
    }
}

T512 static float quantise16(int8_t *dst, const float *src, size_t n)
{
    __m512 m = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (size_t i = 0; i < n; i += 16) {
        __m512 a = _mm512_abs_ps(get16_f32(src + i, first_lanes(n - i)));
        m = _mm512_max_ps(m, a);
        odd = _mm512_add_ps(odd, _mm512_sub_ps(a, a));
    }
    bool finite = _mm512_reduce_add_ps(odd) == 0;
    float largest = finite ? _mm512_reduce_max_ps(m) : 0;
    if (largest < 0x1p-120f) {
        memset(dst, 0, n);
        return finite ? 0 : NAN;
    }
    __m512 by = _mm512_set1_ps(127.0f / largest);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = first_lanes(n - i);
        __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(get16_f32(src + i, lanes), by));
        _mm_mask_storeu_epi8(dst + i, lanes, _mm512_cvtsepi32_epi8(q));
    }
    return largest / 127.0f;
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

#define AVX512_MEMBERS \
    .widen_int8 = widen16_int8, .widen = {widen16_f32, widen16_f16, widen16_bf16}, \
    .quantise = quantise16, .stream = stream8, .fence = fence

static const struct tsri_kernels avx512 = {
    .name = "avx512",
    .supported = has_avx512,
    .turn = {{neox16_f32, gptj16_f32}, {neox16_f16, gptj16_f16}, {neox16_bf16, gptj16_bf16}},
    .turn_wide = {{neox16_f32, gptj16_f32},
                  {neox16_wide_f16, gptj16_wide_f16},
                  {neox16_wide_bf16, gptj16_wide_bf16}},
    .narrow = {narrow16_f32, narrow16_f16, narrow16_bf16},
    AVX512_MEMBERS,
};

static const struct tsri_kernels avx512bf16 = {
    .name = "avx512bf16",
    .supported = has_avx512bf16,
    .turn = {{neox16_f32, gptj16_f32},
             {neox16_f16, gptj16_f16},
             {neox16_bf16_fast, gptj16_bf16_fast}},
    .turn_wide = {{neox16_f32, gptj16_f32},
                  {neox16_wide_f16, gptj16_wide_f16},
                  {neox16_wide_bf16_fast, gptj16_wide_bf16_fast}},
    .narrow = {narrow16_f32, narrow16_f16, narrow16_bf16_fast},
    AVX512_MEMBERS,
};

const struct tsri_kernels *tsri_kernels_x86(uint32_t i)
{
    static const struct tsri_kernels *const sets[] = {&avx2, &avx512, &avx512bf16};
    return i < TSRI_COUNT(sets) ? sets[i] : NULL;
}

#else

const struct tsri_kernels *tsri_kernels_x86(uint32_t i)
{
    (void)i;
    return NULL;
}

#endif
