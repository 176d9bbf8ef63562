/* cuda_select.cu - which tokens to compute again: how far fresh rows are from those in the engine's
 * memory, and the k largest of those distances, in ascending order of token. */
#include "device/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define WARPS 8

/* ---- deviation: a warp a token ---- */

static __device__ float read_float(const uint8_t *at, uint32_t dtype)
{
    if (dtype == TSR_DTYPE_F32) return *(const float *)at;
    if (dtype == TSR_DTYPE_F16) return __half2float(*(const __half *)at);
    return __bfloat162float(*(const __nv_bfloat16 *)at);
}

static __device__ float squared(uint32_t a, uint32_t b, uint32_t dtype)
{
    float2 u, v;
    if (dtype == TSR_DTYPE_F16) {
        u = __half22float2(*(__half2 *)&a);
        v = __half22float2(*(__half2 *)&b);
    } else {
        u = make_float2(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u));
        v = make_float2(__uint_as_float(b << 16), __uint_as_float(b & 0xffff0000u));
    }
    float dx = u.x - v.x, dy = u.y - v.y;
    return dx * dx + dy * dy;
}

__global__ void deviation_kernel(const __grid_constant__ struct tsri_cuda_job job,
                                 struct tsr_deviation v, int wide)
{
    uint32_t token = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= job.n_tokens) return;
    const struct tsri_cuda_plane &p = job.planes[v.plane];
    int64_t slot = job.slots[token];
    float sum = 0;
    if (slot >= 0) {
        uint64_t block = (uint64_t)slot >> job.block_shift;
        uint64_t in_block =
            job.block_shift == 63 ? (uint64_t)slot : (uint64_t)slot & job.block_mask;
        const uint8_t *kept = (const uint8_t *)job.layers[v.layer * job.n_planes + v.plane] +
                              block * p.block_stride + in_block * p.token_stride;
        const uint8_t *fresh = (const uint8_t *)v.fresh + token * v.fresh_stride;
        uint32_t n = p.n_heads * p.dim;
        if (wide) {
            for (uint32_t i = lane; i < n / 8; i += 32) {
                uint32_t e = 8 * i;
                uint4 a = __ldcs((const uint4 *)(fresh + e * 2));
                uint4 b = __ldcs((const uint4 *)(kept + e / p.dim * p.head_stride + e % p.dim * 2));
                sum += squared(a.x, b.x, p.dtype) + squared(a.y, b.y, p.dtype) +
                       squared(a.z, b.z, p.dtype) + squared(a.w, b.w, p.dtype);
            }
        } else {
            for (uint32_t e = lane; e < n; e += 32) {
                float d =
                    read_float(fresh + (size_t)e * p.element_bytes, p.dtype) -
                    read_float(kept + e / p.dim * p.head_stride + e % p.dim * p.element_stride,
                               p.dtype);
                sum += d * d;
            }
        }
    }
    for (int d = 16; d; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) v.out[token] = sum + (v.accumulate ? v.out[token] : 0);
}

int tsri_cuda_deviation(const struct tsri_cuda_job *job, const struct tsr_deviation *v,
                        void *stream)
{
    const struct tsri_cuda_plane *p = &job->planes[v->plane];
    int wide = p->path == TSRI_CUDA_FAST && p->element_bytes == 2 && p->dim % 8 == 0 &&
               v->fresh_stride % 16 == 0 && (uintptr_t)v->fresh % 16 == 0;
    uint32_t blocks = (job->n_tokens + WARPS - 1) / WARPS;
    deviation_kernel<<<blocks, WARPS * 32, 0, (cudaStream_t)stream>>>(*job, *v, wide);
    return (int)cudaGetLastError();
}

/* ---- top-k: one block, radix select over the order-preserving bits, then a stable compaction ----
 */

#define THREADS 1024u
#define BINS 256u

/* Larger scores have larger keys; every NaN is larger than all. */
static __device__ uint32_t key_of(float f)
{
    if (isnan(f)) return 0xffffffffu;
    uint32_t u = __float_as_uint(f == 0 ? 0.0f : f); /* -0 equals 0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Sums over the block; every thread gets how much stands before it. total may be NULL. */
static __device__ uint32_t scan(uint32_t mine, uint32_t *sums, uint32_t *total)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, v = mine;
    for (uint32_t d = 1; d < 32; d *= 2) {
        uint32_t u = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v += u;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        uint32_t w = sums[lane];
        for (uint32_t d = 1; d < 32; d *= 2) {
            uint32_t u = __shfl_up_sync(0xffffffffu, w, d);
            if (lane >= d) w += u;
        }
        sums[lane] = w;
    }
    __syncthreads();
    if (total) *total = sums[31];
    return v - mine + (warp ? sums[warp - 1] : 0);
}

/* The key of rank k, and how many of its equals are taken, into shared memory. */
static __device__ void select_key(const float *scores, uint32_t n, uint32_t k, uint32_t *bins,
                                  uint32_t *prefix, uint32_t *left)
{
    if (threadIdx.x == 0) {
        *prefix = 0;
        *left = k;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
            bins[i] = 0;
        __syncthreads();
        uint32_t seen = shift == 24 ? 0 : ~0u << (shift + 8), want = *prefix;
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            uint32_t key = key_of(scores[i]);
            if ((key & seen) == want) atomicAdd(&bins[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t rest = *left;
            int b = BINS - 1;
            while (bins[b] < rest)
                rest -= bins[b--];
            *prefix = want | (uint32_t)b << shift;
            *left = rest;
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(THREADS) top_k_kernel(struct tsr_top_k t)
{
    __shared__ uint32_t bins[BINS], sums[32], prefix, left;
    select_key(t.scores, t.n, t.k, bins, &prefix, &left);
    uint32_t pivot = prefix, n_equal = left, n_out = 0, n_equal_seen = 0;
    for (uint32_t at = 0; at < t.n; at += THREADS) {
        uint32_t i = at + threadIdx.x, key = i < t.n ? key_of(t.scores[i]) : 0;
        bool equal = i < t.n && key == pivot;
        uint32_t total_equal, total;
        uint32_t before = scan(equal, sums, &total_equal);
        __syncthreads();
        bool taken = i < t.n && (key > pivot || (equal && n_equal_seen + before < n_equal));
        uint32_t where = scan(taken, sums, &total);
        if (taken) t.out[n_out + where] = i;
        n_out += total;
        n_equal_seen += total_equal;
        __syncthreads();
    }
}

int tsri_cuda_top_k(const struct tsr_top_k *t, void *stream)
{
    top_k_kernel<<<1, THREADS, 0, (cudaStream_t)stream>>>(*t);
    return (int)cudaGetLastError();
}
