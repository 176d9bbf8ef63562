/* bench_cuda.cu - the CUDA device against the copies the driver itself makes, an 8B model's KV (32
 * layers, 8 heads of 128, bf16) in paged memory of 16-token blocks at random places. Timed with
 * CUDA events, in interleaved pairs. Skips with one line where there is no GPU.
 *
 * The library is looked for in build/lib, or where TESSERA_CUDA_LIB says. */
extern "C" {
#include "support/bench.h"
}
#include "bench_cuda.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <vector>

#define N_LAYERS 32u
#define N_HEADS 8u
#define DIM 128u
#define ROW (N_HEADS * DIM * 2u)
#define ROW_INT8 (N_HEADS * DIM + N_HEADS * 4u)
#define CELL 64u
#define BLOCK 16u
#define N_PAIRS 21

#define CK(x) \
    do { \
        cudaError_t ck_e = (x); \
        if (ck_e) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(ck_e)); \
            exit(1); \
        } \
    } while (0)
#define OK(x) \
    do { \
        if ((x) < 0) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, gpu_message()); \
            exit(1); \
        } \
    } while (0)

typedef std::function<void()> fn;

static cudaStream_t stream;
static cudaEvent_t before, after;

static double time_ms(const fn &f)
{
    CK(cudaEventRecord(before, stream));
    f();
    CK(cudaEventRecord(after, stream));
    CK(cudaEventSynchronize(after));
    float ms;
    CK(cudaEventElapsedTime(&ms, before, after));
    return ms;
}

/* Rates in GB/s of `bytes`, ours against theirs. */
static void pair(const char *name, double bytes, const fn &ours, const fn &theirs, double target)
{
    std::vector<double> a, b;
    for (int i = 0; i < N_PAIRS + 2; i++) {
        double x = time_ms(ours), y = time_ms(theirs);
        if (i < 2) continue; /* warm */
        a.push_back(x);
        b.push_back(y);
    }
    double rate = bytes / bench_median(a.data(), a.size()) / 1e6;
    double base = bytes / bench_median(b.data(), b.size()) / 1e6;
    bench_report(name, rate, "GB/s", base, target, true);
}

/* An engine's memory and cells for n tokens. */
struct setup {
    uint32_t n_tokens, n_cells;
    std::vector<void *> layers_k, layers_v;
    std::vector<int64_t> slots;
    size_t bytes;
};

static setup make_engine(uint32_t n_tokens)
{
    setup s;
    s.n_tokens = n_tokens;
    s.n_cells = n_tokens / CELL;
    s.bytes = (size_t)n_tokens * N_LAYERS * 2 * ROW;
    uint32_t n_blocks = n_tokens / BLOCK * 2;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        void *p;
        CK(cudaMalloc(&p, (size_t)n_blocks * BLOCK * ROW * 2));
        CK(cudaMemset(p, 0, (size_t)n_blocks * BLOCK * ROW * 2));
        s.layers_k.push_back(p);
        s.layers_v.push_back((uint8_t *)p + (size_t)n_blocks * BLOCK * ROW);
    }
    std::vector<uint32_t> blocks(n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = i;
    uint64_t seed = 7;
    for (uint32_t i = n_blocks - 1; i > 0; i--) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(blocks[i], blocks[(seed >> 33) % (i + 1)]);
    }
    for (uint32_t t = 0; t < n_tokens; t++)
        s.slots.push_back((int64_t)blocks[t / BLOCK] * BLOCK + t % BLOCK);
    return s;
}

static void free_engine(setup &s)
{
    for (void *p : s.layers_k)
        CK(cudaFree(p));
}

/* Plane pointers of n_chunks entries, whose cells lie one after the other, each [layer][K,
 * V][token][row].
 */
static std::vector<void *> plane_pointers(uint8_t *data, uint32_t n_cells, size_t row,
                                          uint32_t n_chunks = 1)
{
    std::vector<void *> p((size_t)N_LAYERS * 2 * n_cells);
    uint32_t each = n_cells / n_chunks;
    for (uint32_t c = 0; c < n_cells; c++)
        for (uint32_t lp = 0; lp < N_LAYERS * 2; lp++)
            p[((size_t)c / each * N_LAYERS * 2 + lp) * each + c % each] =
                data + ((size_t)c * N_LAYERS * 2 + lp) * CELL * row;
    return p;
}

static struct gpu *gpu;

static void set(setup &s, std::vector<void *> &planes, uint32_t n_chunks, int memory, int int8,
                int64_t delta, int gather)
{
    struct gpu_batch b = {};
    b.layers_k = s.layers_k.data();
    b.layers_v = s.layers_v.data();
    b.n_layers = N_LAYERS, b.n_heads = N_HEADS, b.dim = DIM, b.block = BLOCK;
    b.n_slots = (uint64_t)s.n_tokens * 2;
    b.planes = planes.data();
    b.n_tokens = s.n_tokens, b.n_cells = s.n_cells, b.cell_tokens = CELL;
    b.slots = s.slots.data();
    b.n_chunks = n_chunks;
    b.memory = memory, b.int8 = int8, b.delta = delta, b.gather = gather;
    OK(gpu_set(gpu, &b));
}

/* What a kernel reaches that does nothing but copy, 64 bytes a thread: blocks of 16 rows in order
 * (places NULL), or to the places a table says. The second is what a scatter has to do at least. */
__global__ void copy_blocks(uint4 *dst, const uint4 *src, const uint32_t *places)
{
    const uint32_t per_block = BLOCK * ROW / 16, per_group = 4 * blockDim.x;
    size_t first = (size_t)blockIdx.x * per_group;
    size_t to =
        places ? (size_t)__ldg(places + first / per_block) * per_block + first % per_block : first;
    uint4 v[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        v[k] = __ldg(src + first + k * blockDim.x + threadIdx.x);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        dst[to + k * blockDim.x + threadIdx.x] = v[k];
}

static void bench_plain_copies(uint8_t *copy, const uint8_t *cells, size_t bytes, const fn &theirs)
{
    uint32_t n = (uint32_t)(bytes / (BLOCK * ROW)), *places;
    std::vector<uint32_t> order(n);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    uint64_t seed = 9;
    for (uint32_t i = n - 1; i > 0; i--) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[i], order[(seed >> 33) % (i + 1)]);
    }
    CK(cudaMalloc(&places, n * sizeof *places));
    CK(cudaMemcpy(places, order.data(), n * sizeof *places, cudaMemcpyHostToDevice));
    for (int random = 0; random < 2; random++)
        pair(
            random ? "a plain kernel, blocks at random" : "a plain kernel, blocks in order",
            2.0 * (double)bytes,
            [&] {
                copy_blocks<<<(uint32_t)(bytes / 16384), 256, 0, stream>>>(
                    (uint4 *)copy, (const uint4 *)cells, random ? places : NULL);
                CK(cudaGetLastError());
            },
            theirs, 0);
    CK(cudaFree(places));
}

static void bench_device_to_device(uint32_t n_tokens)
{
    setup s = make_engine(n_tokens);
    uint8_t *cells, *copy;
    CK(cudaMalloc(&cells, s.bytes));
    CK(cudaMalloc(&copy, s.bytes));
    CK(cudaMemset(cells, 0x3c, s.bytes));
    std::vector<void *> planes = plane_pointers(cells, s.n_cells, ROW);
    set(s, planes, 1, GPU_DEVICE, 0, 777, 0);
    fn theirs = [&] {
        CK(cudaMemcpyAsync(copy, cells, s.bytes, cudaMemcpyDeviceToDevice, stream));
    };
    fn ours = [&] { OK(gpu_scatter(gpu, 0, N_LAYERS)); };
    char name[64];
    snprintf(name, sizeof name, "scatter + rotate, %uK tokens", n_tokens / 1024);
    pair(name, 2.0 * (double)s.bytes, ours, theirs, 0.95);
    set(s, planes, 1, GPU_DEVICE, 0, 0, 0);
    snprintf(name, sizeof name, "scatter, %uK tokens", n_tokens / 1024);
    pair(name, 2.0 * (double)s.bytes, ours, theirs, 0);
    bench_plain_copies(copy, cells, s.bytes, theirs);
    CK(cudaFree(cells));
    CK(cudaFree(copy));
    free_engine(s);
}

static void bench_host(uint32_t n_tokens)
{
    setup s = make_engine(n_tokens);
    uint8_t *host, *host8, *flat, *device;
    size_t bytes8 = (size_t)n_tokens * N_LAYERS * 2 * ROW_INT8;
    CK(cudaHostAlloc((void **)&host, s.bytes, cudaHostAllocPortable));
    CK(cudaHostAlloc((void **)&flat, s.bytes, cudaHostAllocPortable));
    CK(cudaHostAlloc((void **)&host8, bytes8, cudaHostAllocPortable));
    CK(cudaMalloc(&device, s.bytes));
    memset(host, 0x3c, s.bytes);
    memset(flat, 0x3c, s.bytes);
    memset(host8, 1, bytes8);
    std::vector<void *> planes = plane_pointers(host, s.n_cells, ROW);
    std::vector<void *> planes8 = plane_pointers(host8, s.n_cells, ROW_INT8);
    fn by_layer = [&] {
        for (uint32_t l = 0; l < N_LAYERS; l++)
            OK(gpu_scatter(gpu, l, 1));
    };
    set(s, planes, 1, GPU_LOCKED, 0, 777, 0);
    pair(
        "h2d by layer + rotate, 4K tokens", (double)s.bytes, by_layer,
        [&] { CK(cudaMemcpyAsync(device, flat, s.bytes, cudaMemcpyHostToDevice, stream)); }, 0.95);
    std::vector<double> wide, narrow;
    for (int i = 0; i < N_PAIRS; i++) {
        set(s, planes8, 1, GPU_LOCKED, 1, 777, 0);
        narrow.push_back(time_ms(by_layer));
        set(s, planes, 1, GPU_LOCKED, 0, 777, 0);
        wide.push_back(time_ms(by_layer));
    }
    bench_report("h2d int8 + rotate, effective",
                 (double)s.bytes / bench_median(narrow.data(), narrow.size()) / 1e6, "GB/s",
                 (double)s.bytes / bench_median(wide.data(), wide.size()) / 1e6, 1.8, true);
    set(s, planes, 1, GPU_LOCKED, 0, 0, 1);
    pair(
        "d2h gather by layer, 4K tokens", (double)s.bytes,
        [&] {
            for (uint32_t l = 0; l < N_LAYERS; l++)
                OK(gpu_gather(gpu, l, 1));
        },
        [&] { CK(cudaMemcpyAsync(flat, device, s.bytes, cudaMemcpyDeviceToHost, stream)); }, 0.9);
    CK(cudaFreeHost(host));
    CK(cudaFreeHost(host8));
    CK(cudaFreeHost(flat));
    CK(cudaFree(device));
    free_engine(s);
}

__global__ void nothing() {}

/* Host time of a load of 64 chunks from page-locked cells, which come in batches of copies: one for
 * each cell, layer and plane, so that chunks of one cell make 4096 of them. */
static void bench_launch_copies(uint32_t chunk_tokens, double target_ms)
{
    setup s = make_engine(64 * chunk_tokens);
    uint8_t *cells;
    CK(cudaHostAlloc((void **)&cells, s.bytes, cudaHostAllocPortable));
    std::vector<void *> planes = plane_pointers(cells, s.n_cells, ROW, 64);
    std::vector<double> ms;
    for (int i = 0; i < 7; i++) {
        CK(cudaStreamSynchronize(stream));
        uint64_t t = bench_now_ns();
        set(s, planes, 64, GPU_LOCKED, 0, 777, 0);
        for (uint32_t l = 0; l < N_LAYERS; l++)
            OK(gpu_scatter(gpu, l, 1));
        ms.push_back((double)(bench_now_ns() - t) / 1e6);
    }
    CK(cudaStreamSynchronize(stream));
    char name[64];
    snprintf(name, sizeof name, "launch, %u copies", s.n_cells * N_LAYERS * 2);
    bench_report(name, bench_median(ms.data(), ms.size()), "ms", 0, target_ms, false);
    CK(cudaFreeHost(cells));
    free_engine(s);
}

/* Host time of a load of 64 chunks of 32 layers, batch included, against as many empty launches as
 * there are layers: as the library would do it (gpu_step), and with a launch for every layer. */
static void bench_launch()
{
    setup s = make_engine(64 * 256);
    uint8_t *cells;
    CK(cudaMalloc(&cells, s.bytes));
    std::vector<void *> planes = plane_pointers(cells, s.n_cells, ROW, 64);
    std::vector<double> ours, by_layer, theirs, sets;
    for (int i = 0; i < N_PAIRS; i++) {
        CK(cudaStreamSynchronize(stream));
        uint64_t t = bench_now_ns();
        for (uint32_t l = 0; l < N_LAYERS; l++)
            nothing<<<1, 32, 0, stream>>>();
        theirs.push_back((double)(bench_now_ns() - t));
        CK(cudaStreamSynchronize(stream));
        t = bench_now_ns();
        set(s, planes, 64, GPU_DEVICE, 0, 777, 0);
        sets.push_back((double)(bench_now_ns() - t));
        for (uint32_t l = 0; l < N_LAYERS; l++)
            OK(gpu_scatter(gpu, l, 1));
        by_layer.push_back((double)(bench_now_ns() - t));
        CK(cudaStreamSynchronize(stream));
        t = bench_now_ns();
        set(s, planes, 64, GPU_DEVICE, 0, 777, 0);
        for (uint32_t l = 0, n; l < N_LAYERS; l += n) {
            n = gpu_step(gpu, l);
            OK(gpu_scatter(gpu, l, n));
        }
        ours.push_back((double)(bench_now_ns() - t));
    }
    CK(cudaStreamSynchronize(stream));
    double empty = bench_median(theirs.data(), theirs.size());
    bench_report("launch, 64 chunks x 32 layers", bench_median(ours.data(), ours.size()), "ns",
                 empty, 1.5, false);
    bench_report("the same, layer by layer", bench_median(by_layer.data(), by_layer.size()), "ns",
                 empty, 0, false);
    bench_report("of that, setting the batch", bench_median(sets.data(), sets.size()), "ns", 0, 0,
                 false);
    CK(cudaFree(cells));
    free_engine(s);
    bench_launch_copies(CELL, 2.5);
    bench_launch_copies(256, 0);
}

static void bench_select()
{
    const uint32_t n = 32768;
    float *scores;
    uint32_t *top;
    CK(cudaMalloc(&scores, n * sizeof(float)));
    CK(cudaMemset(scores, 0x3c, n * sizeof(float)));
    CK(cudaMalloc(&top, n * sizeof(uint32_t)));
    std::vector<double> ms;
    for (int i = 0; i < N_PAIRS; i++)
        ms.push_back(time_ms([&] { OK(gpu_top_k(gpu, scores, n, n * 15 / 100, top)); }));
    bench_report("top 15 % of 32K", bench_median(ms.data(), ms.size()), "ms", 0, 0.2, false);
    CK(cudaFree(scores));
    CK(cudaFree(top));
}

int main(int argc, char **argv)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("bench_cuda: skipped, no CUDA device here\n");
        return 0;
    }
    bench_init("bench_cuda", argc, argv);
    CK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CK(cudaEventCreate(&before));
    CK(cudaEventCreate(&after));
    OK(gpu_open(&gpu, stream));
    bench_device_to_device(4096);
    bench_device_to_device(16384);
    bench_host(4096);
    bench_launch();
    bench_select();
    gpu_close(gpu);
    return bench_end();
}
