/* cuda_kv.cu - moving KV between cells and an engine's paged memory: scatter, scatter with
 * rotation, gather, and the int8 forms of them. Cells may be device memory or page-locked host
 * memory: the same kernel reads or writes the latter over the bus. Where copy engines are to move the
 * bytes, the rows of a piece are in a buffer of the device instead (struct tsri_cuda_stage).
 *
 * A warp takes a few consecutive tokens of one (layer, plane). On the fast path each lane moves
 * 16-byte vectors; for NEOX pairs a lane holds the vector of the first elements and the one half a
 * head later, so rotation costs no exchange between lanes, and since all tokens of a run turn by
 * the same angle the cosines stay in registers. Planes that do not fit (odd strides, odd sizes) go
 * element by element. */
#include "device/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

/* Measured on an H200: one to sixteen tokens a warp and two to eight blocks a multiprocessor, with
 * every cache hint, with the next tokens asked for ahead, and by bulk copies through shared memory;
 * these move the most bytes (docs/performance.md). */
#define WARPS 8
#define TOKENS_PER_WARP 8
#define BLOCKS 3

struct bf16 {
    static __device__ float2 widen(uint32_t v)
    {
        return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
    }
    static __device__ uint32_t narrow(float a, float b)
    {
        __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
        return *(uint32_t *)&v;
    }
};

struct f16 {
    static __device__ float2 widen(uint32_t v)
    {
        return __half22float2(*(__half2 *)&v);
    }
    static __device__ uint32_t narrow(float a, float b)
    {
        __half2 v = __floats2half2_rn(a, b);
        return *(uint32_t *)&v;
    }
};

struct f32 {
};

/* ---- where a token's rows are ---- */

struct place {
    uint8_t *engine;
    uint8_t *cell;
    uint32_t run; /* with flags */
};

/* Rows in a buffer; base NULL: in their cells. */
typedef tsri_cuda_stage stage;

/* The place of one token; engine NULL for one that is skipped. Loads that depend on each other, so
 * the lanes of a warp do this for its tokens all at once; those that do not are asked for together,
 * before the slot is looked at. */
static __device__ place find(const tsri_cuda_job &job, const stage &st, uint32_t token,
                             uint32_t layer, uint32_t plane)
{
    place out = {NULL, NULL, 0};
    const tsri_cuda_plane &p = job.planes[plane];
    uint32_t lp = layer * job.n_planes + plane;
    int64_t slot = __ldg(job.slots + token);
    uint4 where = __ldg((const uint4 *)job.where + token); /* struct tsri_cuda_place */
    out.run = where.w;
    if (slot < 0) return out;
    uint64_t block = (uint64_t)slot >> job.block_shift;
    uint64_t in_block = job.block_shift == 63 ? (uint64_t)slot : (uint64_t)slot & job.block_mask;
    out.engine =
        (uint8_t *)__ldg(job.layers + lp) + block * p.block_stride + in_block * p.token_stride;
    uint32_t row = out.run & TSRI_CUDA_RUN_INT8 ? p.row_bytes_int8 : p.row_bytes;
    if (st.base)
        out.cell = (uint8_t *)st.base + (layer - st.layer_first) * st.layer_bytes +
                   st.offset[plane] + (size_t)(token - st.first) * row;
    else
        out.cell =
            (uint8_t *)__ldg(job.cells + where.x + (size_t)lp * where.y) + (size_t)where.z * row;
    return out;
}

static __device__ uint8_t *pick(uint8_t *p, int lane)
{
    return (uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)p, lane);
}

static __device__ place pick(const place &mine, int lane)
{
    place out;
    out.engine = pick(mine.engine, lane);
    out.cell = pick(mine.cell, lane);
    out.run = __shfl_sync(0xffffffffu, mine.run, lane);
    return out;
}

/* ---- rotation of vectors ---- */

/* Cosines and sines of the eight pairs a lane turns. */
struct angles {
    float c[8], s[8];
};

static __device__ void load_angles(angles &a, const float *table, uint32_t n_pairs, uint32_t first)
{
    const float4 *c = (const float4 *)(table + first),
                 *s = (const float4 *)(table + n_pairs + first);
    float4 v[4] = {__ldg(c), __ldg(c + 1), __ldg(s), __ldg(s + 1)};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        a.c[4 * i] = v[i].x, a.c[4 * i + 1] = v[i].y, a.c[4 * i + 2] = v[i].z,
                a.c[4 * i + 3] = v[i].w;
        a.s[4 * i] = v[2 + i].x, a.s[4 * i + 1] = v[2 + i].y, a.s[4 * i + 2] = v[2 + i].z,
                a.s[4 * i + 3] = v[2 + i].w;
    }
}

/* Eight pairs: the first elements in lo, the second ones in hi. */
template <class T> static __device__ void turn_pairs(uint4 &lo, uint4 &hi, const angles &a)
{
    uint32_t *x = &lo.x, *y = &hi.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 u = T::widen(x[i]), v = T::widen(y[i]);
        float c0 = a.c[2 * i], c1 = a.c[2 * i + 1], s0 = a.s[2 * i], s1 = a.s[2 * i + 1];
        x[i] = T::narrow(u.x * c0 - v.x * s0, u.y * c1 - v.y * s1);
        y[i] = T::narrow(v.x * c0 + u.x * s0, v.y * c1 + u.y * s1);
    }
}

/* Four float pairs. */
static __device__ void turn_floats(uint4 &lo, uint4 &hi, const float *table, uint32_t n_pairs,
                                   uint32_t first)
{
    uint32_t *x = &lo.x, *y = &hi.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float u = __uint_as_float(x[i]), v = __uint_as_float(y[i]);
        float c = __ldg(table + first + i), s = __ldg(table + n_pairs + first + i);
        x[i] = __float_as_uint(u * c - v * s);
        y[i] = __float_as_uint(v * c + u * s);
    }
}

/* Pairs side by side in one vector (GPTJ). */
template <class T>
static __device__ void turn_adjacent(uint4 &v, const float *table, uint32_t n_pairs, uint32_t first)
{
    uint32_t *x = &v.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 u = T::widen(x[i]);
        float c = __ldg(table + first + i), s = __ldg(table + n_pairs + first + i);
        x[i] = T::narrow(u.x * c - u.y * s, u.y * c + u.x * s);
    }
}

template <>
__device__ void turn_adjacent<f32>(uint4 &v, const float *table, uint32_t n_pairs, uint32_t first)
{
    uint32_t *x = &v.x;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float a = __uint_as_float(x[2 * i]), b = __uint_as_float(x[2 * i + 1]);
        float c = __ldg(table + first + i), s = __ldg(table + n_pairs + first + i);
        x[2 * i] = __float_as_uint(a * c - b * s);
        x[2 * i + 1] = __float_as_uint(b * c + a * s);
    }
}

/* ---- the fast path ---- */

/* Nobody writes what is read here while the kernel runs, so these loads need not wait for stores.
 */
static __device__ uint4 load16(const void *p)
{
    uint4 v;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}
static __device__ void store16(void *p, uint4 v)
{
    *(uint4 *)p = v;
}

/* Vector j of a row in the engine's memory. */
static __device__ uint8_t *vector_at(const tsri_cuda_plane &p, uint8_t *engine, uint32_t j)
{
    if (p.flat) return engine + 16 * j;
    uint32_t per_head = p.dim * p.element_bytes / 16;
    return engine + j / per_head * p.head_stride + j % per_head * 16;
}

static __device__ void copy_row(const tsri_cuda_plane &p, uint8_t *engine, uint8_t *cell,
                                uint32_t lane, bool to_engine)
{
    uint32_t n = p.row_bytes / 16;
    for (uint32_t i = lane; i < n; i += 128) {
        uint4 v[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            if (i + 32 * k < n)
                v[k] =
                    load16(to_engine ? cell + 16 * (i + 32 * k) : vector_at(p, engine, i + 32 * k));
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            if (i + 32 * k < n)
                store16(to_engine ? vector_at(p, engine, i + 32 * k) : cell + 16 * (i + 32 * k),
                        v[k]);
    }
}

/* What a head has outside its rotated elements is copied. */
static __device__ void copy_rest(const tsri_cuda_plane &p, const place &at, uint32_t lane)
{
    uint32_t per_head = p.dim * p.element_bytes / 16;
    uint32_t first = p.rope_first * p.element_bytes / 16;
    uint32_t turned = p.rope_dims * p.element_bytes / 16, rest = per_head - turned;
    if (!rest) return;
    for (uint32_t i = lane; i < p.n_heads * rest; i += 32) {
        uint32_t h = i / rest, j = i % rest;
        if (j >= first) j += turned;
        store16(at.engine + h * p.head_stride + j * 16, load16(at.cell + (h * per_head + j) * 16));
    }
}

/* A lane's pairs of a row: NEOX, two-byte elements. `kept` holds the angles while the run stays. */
template <class T, bool KEEPS>
static __device__ void turn_row_neox(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                     const place &at, const float *table, uint32_t lane,
                                     const angles &kept)
{
    uint32_t per_head = p.dim / 8, first = p.rope_first / 8, half = job.n_pairs / 8;
    uint32_t n = p.n_heads * half;
    /* Where the angles are kept, half divides 32. */
    uint32_t shift = 31 - __clz(half);
    for (uint32_t i = lane; i < n; i += 64) {
        uint4 lo[2], hi[2];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t item = i + 32 * k, h = KEEPS ? item >> shift : item / half;
            uint32_t j = item - h * half;
            const uint8_t *src = at.cell + (h * per_head + first + j) * 16;
            if (item < n) {
                lo[k] = load16(src);
                hi[k] = load16(src + half * 16);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t item = i + 32 * k, h = KEEPS ? item >> shift : item / half;
            uint32_t j = item - h * half;
            if (item >= n) continue;
            if constexpr (KEEPS) {
                turn_pairs<T>(lo[k], hi[k], kept);
            } else {
                angles a;
                load_angles(a, table, job.n_pairs, 8 * j);
                turn_pairs<T>(lo[k], hi[k], a);
            }
            uint8_t *dst = at.engine + h * p.head_stride + (first + j) * 16;
            store16(dst, lo[k]);
            store16(dst + half * 16, hi[k]);
        }
    }
}

static __device__ void turn_row_neox_f32(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                         const place &at, const float *table, uint32_t lane)
{
    uint32_t per_head = p.dim / 4, first = p.rope_first / 4, half = job.n_pairs / 4;
    for (uint32_t i = lane; i < p.n_heads * half; i += 32) {
        uint32_t h = i / half, j = i % half;
        const uint8_t *src = at.cell + (h * per_head + first + j) * 16;
        uint4 lo = load16(src), hi = load16(src + half * 16);
        turn_floats(lo, hi, table, job.n_pairs, 4 * j);
        uint8_t *dst = at.engine + h * p.head_stride + (first + j) * 16;
        store16(dst, lo);
        store16(dst + half * 16, hi);
    }
}

template <class T>
static __device__ void turn_row_gptj(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                     const place &at, const float *table, uint32_t lane)
{
    uint32_t per_vector = 16 / p.element_bytes, per_head = p.dim / per_vector;
    uint32_t first = p.rope_first / per_vector, n = p.rope_dims / per_vector;
    for (uint32_t i = lane; i < p.n_heads * n; i += 32) {
        uint32_t h = i / n, j = i % n;
        uint4 v = load16(at.cell + (h * per_head + first + j) * 16);
        turn_adjacent<T>(v, table, job.n_pairs, j * per_vector / 2);
        store16(at.engine + h * p.head_stride + (first + j) * 16, v);
    }
}

/* ---- int8 rows, two-byte elements, 16-byte vectors ---- */

template <class T> static __device__ uint4 widen8(uint2 q, float scale)
{
    uint4 v;
    uint32_t *x = &v.x, b[2] = {q.x, q.y};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w = b[i / 2] >> (16 * (i % 2));
        x[i] = T::narrow((float)(int8_t)(w & 255) * scale, (float)(int8_t)(w >> 8 & 255) * scale);
    }
    return v;
}

template <class T>
static __device__ void turn8(uint2 a, uint2 b, float sa, float sb, const angles &t, uint4 &lo,
                             uint4 &hi)
{
    uint32_t *x = &lo.x, *y = &hi.x, qa[2] = {a.x, a.y}, qb[2] = {b.x, b.y};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t wa = qa[i / 2] >> (16 * (i % 2)), wb = qb[i / 2] >> (16 * (i % 2));
        float a0 = (float)(int8_t)(wa & 255) * sa, a1 = (float)(int8_t)(wa >> 8 & 255) * sa;
        float b0 = (float)(int8_t)(wb & 255) * sb, b1 = (float)(int8_t)(wb >> 8 & 255) * sb;
        x[i] =
            T::narrow(a0 * t.c[2 * i] - b0 * t.s[2 * i], a1 * t.c[2 * i + 1] - b1 * t.s[2 * i + 1]);
        y[i] =
            T::narrow(b0 * t.c[2 * i] + a0 * t.s[2 * i], b1 * t.c[2 * i + 1] + a1 * t.s[2 * i + 1]);
    }
}

/* Scales stand behind an odd number of elements now and then. */
static __device__ float scale_of(const tsri_cuda_plane &p, const uint8_t *row, uint32_t element)
{
    const uint8_t *at = row + p.n_heads * p.dim + element / p.quant_group * 4;
    if (((uintptr_t)at & 3) == 0) return *(const float *)at;
    return __uint_as_float(at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24);
}

static __device__ void put_scale(uint8_t *at, float scale)
{
    uint32_t u = __float_as_uint(scale);
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(u >> 8 * i);
}

/* Eight elements at a time; NEOX halves together when the run turns. */
template <class T>
static __device__ void scatter_row_int8(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                        const place &at, const float *table, uint32_t lane)
{
    uint32_t per_head = p.dim / 8;
    uint32_t first = table ? p.rope_first / 8 : 0, half = table ? job.n_pairs / 8 : 0;
    uint32_t rest = per_head - 2 * half;
    for (uint32_t i = lane; i < p.n_heads * half; i += 32) {
        uint32_t h = i / half, j = i % half, e = h * p.dim + p.rope_first + 8 * j;
        uint2 a = *(const uint2 *)(at.cell + e), b = *(const uint2 *)(at.cell + e + job.n_pairs);
        angles t;
        load_angles(t, table, job.n_pairs, 8 * j);
        uint4 lo, hi;
        turn8<T>(a, b, scale_of(p, at.cell, e), scale_of(p, at.cell, e + job.n_pairs), t, lo, hi);
        uint8_t *dst = at.engine + h * p.head_stride + (first + j) * 16;
        store16(dst, lo);
        store16(dst + half * 16, hi);
    }
    for (uint32_t i = lane; i < p.n_heads * rest; i += 32) {
        uint32_t h = i / rest, j = i % rest;
        if (half && j >= first) j += 2 * half;
        uint32_t e = h * p.dim + 8 * j;
        store16(at.engine + h * p.head_stride + j * 16,
                widen8<T>(*(const uint2 *)(at.cell + e), scale_of(p, at.cell, e)));
    }
}

/* ---- the slow path: any strides, one element or pair a lane ---- */

static __device__ float read_float(const uint8_t *at, uint32_t dtype)
{
    if (dtype == TSR_DTYPE_F32) return *(const float *)at;
    if (dtype == TSR_DTYPE_F16) return __half2float(*(const __half *)at);
    return __bfloat162float(*(const __nv_bfloat16 *)at);
}

static __device__ void write_float(uint8_t *at, uint32_t dtype, float v)
{
    if (dtype == TSR_DTYPE_F32)
        *(float *)at = v;
    else if (dtype == TSR_DTYPE_F16)
        *(__half *)at = __float2half_rn(v);
    else
        *(__nv_bfloat16 *)at = __float2bfloat16_rn(v);
}

static __device__ float read_cell(const tsri_cuda_plane &p, const place &at, uint32_t e)
{
    if (at.run & TSRI_CUDA_RUN_INT8) return (float)(int8_t)at.cell[e] * scale_of(p, at.cell, e);
    return read_float(at.cell + (size_t)e * p.element_bytes, p.dtype);
}

static __device__ void copy_element(const tsri_cuda_plane &p, const place &at, uint32_t h,
                                    uint32_t i, bool to_engine)
{
    uint32_t e = h * p.dim + i;
    uint8_t *engine = at.engine + h * p.head_stride + i * p.element_stride;
    if (at.run & TSRI_CUDA_RUN_INT8) {
        write_float(engine, p.dtype, read_cell(p, at, e));
        return;
    }
    uint8_t *cell = at.cell + (size_t)e * p.element_bytes;
    uint8_t *dst = to_engine ? engine : cell, *src = to_engine ? cell : engine;
    if (p.element_bytes == 4)
        *(uint32_t *)dst = *(uint32_t *)src;
    else if (p.element_bytes == 2)
        *(uint16_t *)dst = *(uint16_t *)src;
    else
        *dst = *src;
}

static __device__ void move_row_slow(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                     const place &at, const float *table, uint32_t lane,
                                     bool to_engine)
{
    for (uint32_t e = lane; e < p.n_heads * p.dim; e += 32) {
        uint32_t h = e / p.dim, i = e % p.dim;
        if (table && i >= p.rope_first && i < p.rope_first + p.rope_dims) continue;
        copy_element(p, at, h, i, to_engine);
    }
    if (!table) return;
    for (uint32_t k = lane; k < p.n_heads * job.n_pairs; k += 32) {
        uint32_t h = k / job.n_pairs, i = k % job.n_pairs;
        bool neox = job.pairing == TSR_ROPE_NEOX;
        uint32_t ia = p.rope_first + (neox ? i : 2 * i), ib = neox ? ia + job.n_pairs : ia + 1;
        float a = read_cell(p, at, h * p.dim + ia), b = read_cell(p, at, h * p.dim + ib);
        float c = table[i], s = table[job.n_pairs + i];
        uint8_t *out = at.engine + h * p.head_stride;
        write_float(out + ia * p.element_stride, p.dtype, a * c - b * s);
        write_float(out + ib * p.element_stride, p.dtype, b * c + a * s);
    }
}

/* One group a warp at a time: the largest magnitude by exchange, then eight bits. */
static __device__ void quantise_row(const tsri_cuda_plane &p, uint8_t *row, const uint8_t *engine,
                                    uint32_t lane)
{
    uint32_t n = p.n_heads * p.dim, n_groups = n / p.quant_group;
    for (uint32_t g = 0; g < n_groups; g++) {
        float m = 0;
        bool finite = true;
        for (uint32_t i = lane; i < p.quant_group; i += 32) {
            uint32_t e = g * p.quant_group + i;
            float v = read_float(engine + e / p.dim * p.head_stride + e % p.dim * p.element_stride,
                                 p.dtype);
            finite = finite && isfinite(v);
            m = fmaxf(m, fabsf(v));
        }
        for (int d = 16; d; d /= 2)
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
        finite = __all_sync(0xffffffffu, finite);
        bool zero = !finite || m < 0x1p-120f;
        float to_int8 = zero ? 0 : __fdiv_rn(127.0f, m);
        for (uint32_t i = lane; i < p.quant_group; i += 32) {
            uint32_t e = g * p.quant_group + i;
            float v =
                zero ? 0
                     : read_float(engine + e / p.dim * p.head_stride + e % p.dim * p.element_stride,
                                  p.dtype);
            row[e] = (uint8_t)(int8_t)rintf(v * to_int8);
        }
        float scale = finite ? (zero ? 0 : __fdiv_rn(m, 127.0f)) : __int_as_float(0x7fc00000);
        if (lane == 0) put_scale(row + n + g * 4, scale);
    }
    for (uint32_t i = n + n_groups * 4 + lane; i < p.row_bytes_int8; i += 32)
        row[i] = 0;
}

/* ---- kernels ---- */

template <class T>
static __device__ void scatter_token(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                     const place &at, const float *table, uint32_t lane)
{
    bool int8 = at.run & TSRI_CUDA_RUN_INT8;
    if (p.path == TSRI_CUDA_SLOW || (int8 && table && job.pairing != TSR_ROPE_NEOX)) {
        move_row_slow(job, p, at, table, lane, true);
    } else if (int8) {
        scatter_row_int8<T>(job, p, at, table, lane);
    } else if (!table) {
        copy_row(p, at.engine, at.cell, lane, true);
    } else {
        if (job.pairing == TSR_ROPE_NEOX)
            turn_row_neox<T, false>(job, p, at, table, lane, angles());
        else
            turn_row_gptj<T>(job, p, at, table, lane);
        copy_rest(p, at, lane);
    }
}

template <>
__device__ void scatter_token<f32>(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                   const place &at, const float *table, uint32_t lane)
{
    if (p.path == TSRI_CUDA_SLOW || at.run & TSRI_CUDA_RUN_INT8) {
        move_row_slow(job, p, at, table, lane, true);
    } else if (!table) {
        copy_row(p, at.engine, at.cell, lane, true);
    } else {
        if (job.pairing == TSR_ROPE_NEOX)
            turn_row_neox_f32(job, p, at, table, lane);
        else
            turn_row_gptj<f32>(job, p, at, table, lane);
        copy_rest(p, at, lane);
    }
}

/* The paths that most loads take and nothing else: half the registers, twice the warps in flight.
 */
template <class T>
static __device__ void scatter_token_hot(const tsri_cuda_job &job, const tsri_cuda_plane &p,
                                         const place &at, const float *table, uint32_t lane,
                                         const angles &kept)
{
    if (!table) {
        copy_row(p, at.engine, at.cell, lane, true);
        return;
    }
    turn_row_neox<T, true>(job, p, at, table, lane, kept);
    copy_rest(p, at, lane);
}

template <class T, bool HOT>
__global__ void __launch_bounds__(WARPS * 32, HOT ? BLOCKS : 2)
    scatter_kernel(const __grid_constant__ tsri_cuda_job job, const __grid_constant__ stage st,
                   uint32_t layer_first, uint32_t plane_first, uint32_t n_planes, int turn)
{
    uint32_t lane = threadIdx.x % 32;
    uint32_t layer = layer_first + blockIdx.y / n_planes;
    uint32_t plane = plane_first + blockIdx.y % n_planes;
    const tsri_cuda_plane &p = job.planes[plane];
    uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * TOKENS_PER_WARP;
    uint32_t held = 0xffffffffu;
    angles kept;
    place mine = {NULL, NULL, 0};
    if (lane < TOKENS_PER_WARP && first + lane < st.n_tokens)
        mine = find(job, st, st.first + first + lane, layer, plane);
#pragma unroll 1
    for (int t = 0; t < TOKENS_PER_WARP; t++) {
        place at = pick(mine, t);
        if (!at.engine) continue;
        const float *table = NULL;
        if (turn && p.rope_dims && at.run & TSRI_CUDA_RUN_TURN) {
            uint32_t run = at.run & TSRI_CUDA_RUN_MASK;
            table = job.turns + (size_t)run * 2 * job.n_pairs;
            if (HOT && run != held) {
                load_angles(kept, table, job.n_pairs, 8 * (lane % (job.n_pairs / 8)));
                held = run;
            }
        }
        if constexpr (HOT)
            scatter_token_hot<T>(job, p, at, table, lane, kept);
        else
            scatter_token<T>(job, p, at, table, lane);
    }
}

__global__ void __launch_bounds__(WARPS * 32)
    gather_kernel(const __grid_constant__ tsri_cuda_job job, const __grid_constant__ stage st,
                  uint32_t layer_first)
{
    uint32_t lane = threadIdx.x % 32;
    uint32_t layer = layer_first + blockIdx.y / job.n_planes, plane = blockIdx.y % job.n_planes;
    const tsri_cuda_plane &p = job.planes[plane];
    uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * TOKENS_PER_WARP;
    place mine = {NULL, NULL, 0};
    if (lane < TOKENS_PER_WARP && first + lane < st.n_tokens)
        mine = find(job, st, st.first + first + lane, layer, plane);
    for (int t = 0; t < TOKENS_PER_WARP; t++) {
        place at = pick(mine, t);
        if (!at.engine) continue;
        if (at.run & TSRI_CUDA_RUN_INT8)
            quantise_row(p, at.cell, at.engine, lane);
        else if (p.path == TSRI_CUDA_FAST)
            copy_row(p, at.engine, at.cell, lane, false);
        else
            move_row_slow(job, p, at, NULL, lane, false);
    }
}

/* What kernels want to know of every token and every angle, from what the host knows of every run:
 * a block a run. cos and sin are made in double and rounded once, as the host would. */
__global__ void expand_kernel(const __grid_constant__ tsri_cuda_job job,
                              struct tsri_cuda_place *where, float *turns)
{
    const tsri_cuda_run r = job.runs[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < r.n_tokens; i += blockDim.x) {
        uint32_t t = r.row + i;
        where[r.token + i] = {r.cells + t / r.cell_tokens, r.n_cells, t % r.cell_tokens, r.word};
    }
    if (!(r.word & TSRI_CUDA_RUN_TURN)) return;
    for (uint32_t i = threadIdx.x; i < job.n_pairs; i += blockDim.x) {
        double c, s;
        sincos((double)r.delta * job.freq[i], &s, &c);
        turns[(size_t)blockIdx.x * 2 * job.n_pairs + i] = (float)c;
        turns[(size_t)blockIdx.x * 2 * job.n_pairs + job.n_pairs + i] = (float)s;
    }
}

/* ---- launchers ---- */

static dim3 grid_of(uint32_t n_tokens, uint32_t rows)
{
    uint32_t per_block = WARPS * TOKENS_PER_WARP;
    return dim3((n_tokens + per_block - 1) / per_block, rows);
}

struct span {
    uint32_t layer_first, n_layers, plane_first, n_planes;
};

template <class T>
static void scatter_planes(const tsri_cuda_job *job, const stage &st, const span &at, int turn,
                           cudaStream_t stream)
{
    dim3 grid = grid_of(st.n_tokens, at.n_layers * at.n_planes);
    if constexpr (!std::is_same<T, f32>::value)
        if (job->hot) {
            scatter_kernel<T, true><<<grid, WARPS * 32, 0, stream>>>(
                *job, st, at.layer_first, at.plane_first, at.n_planes, turn);
            return;
        }
    scatter_kernel<T, false><<<grid, WARPS * 32, 0, stream>>>(*job, st, at.layer_first,
                                                              at.plane_first, at.n_planes, turn);
}

/* All of the batch, in its cells. */
static stage no_stage(const tsri_cuda_job *job)
{
    stage st = {};
    st.n_tokens = job->n_tokens;
    return st;
}

/* Planes of one dtype go in one launch; usually that is all of them. */
int tsri_cuda_scatter(const struct tsri_cuda_job *job, const struct tsri_cuda_stage *staged,
                      uint32_t layer_first, uint32_t n_layers, int turn, void *stream)
{
    cudaStream_t s = (cudaStream_t)stream;
    stage st = staged ? *staged : no_stage(job);
    for (uint32_t p = 0; p < job->n_planes;) {
        uint32_t n = 1, dtype = job->planes[p].dtype;
        while (p + n < job->n_planes && job->planes[p + n].dtype == dtype)
            n++;
        span at = {layer_first, n_layers, p, n};
        if (dtype == TSR_DTYPE_F32)
            scatter_planes<f32>(job, st, at, turn, s);
        else if (dtype == TSR_DTYPE_F16)
            scatter_planes<f16>(job, st, at, turn, s);
        else
            scatter_planes<bf16>(job, st, at, turn, s);
        p += n;
    }
    return (int)cudaGetLastError();
}

int tsri_cuda_gather(const struct tsri_cuda_job *job, const struct tsri_cuda_stage *staged,
                     uint32_t layer_first, uint32_t n_layers, void *stream)
{
    stage st = staged ? *staged : no_stage(job);
    dim3 grid = grid_of(st.n_tokens, n_layers * job->n_planes);
    gather_kernel<<<grid, WARPS * 32, 0, (cudaStream_t)stream>>>(*job, st, layer_first);
    return (int)cudaGetLastError();
}

int tsri_cuda_expand(const struct tsri_cuda_job *job, uint32_t n_runs, void *stream)
{
    expand_kernel<<<n_runs, 256, 0, (cudaStream_t)stream>>>(
        *job, (struct tsri_cuda_place *)job->where, (float *)job->turns);
    return (int)cudaGetLastError();
}
