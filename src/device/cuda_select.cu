/* cuda_select.cu - which tokens to recompute: the k largest of n scores, in ascending order of token. */
#include "device/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

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

/* Sums over the block; every thread gets the sum of those before it. total may be NULL. */
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
