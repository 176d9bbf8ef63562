/* bench_cuda.cu - the CUDA device against the copies the driver itself makes, an 8B model's KV (32
 * layers, 8 heads of 128, bf16) in paged memory of 16-token blocks at random places. Timed with
 * CUDA events, in interleaved pairs; then whole pages as vLLM's connector moves them, both ways,
 * what that does to an engine's launches, and page-locking. Skips with one line where there is no GPU.
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
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
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

/* ---- whole pages, as vLLM's connector moves them ---- */

#define PAGE_ROW (2u * ROW)

/* n tokens of opaque pages of an engine, and page-locked cells, [cell][layer][token][row]. */
struct page_setup {
    setup engine;
    uint8_t *cells;
    std::vector<void *> planes;
};

static page_setup make_pages(uint32_t n_tokens)
{
    page_setup p;
    p.engine = make_engine(n_tokens);
    CK(cudaHostAlloc((void **)&p.cells, p.engine.bytes, cudaHostAllocPortable));
    memset(p.cells, 0x3c, p.engine.bytes);
    uint32_t n = p.engine.n_cells;
    p.planes.resize((size_t)N_LAYERS * n);
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t l = 0; l < N_LAYERS; l++)
            p.planes[(size_t)l * n + c] = p.cells + ((size_t)c * N_LAYERS + l) * CELL * PAGE_ROW;
    return p;
}

static void free_pages(page_setup &p)
{
    CK(cudaFreeHost(p.cells));
    free_engine(p.engine);
}

static void set_pages(struct gpu *k, page_setup &p, int gather)
{
    struct gpu_batch b = {};
    b.layers_k = p.engine.layers_k.data();
    b.n_layers = N_LAYERS, b.block = BLOCK, b.opaque = PAGE_ROW;
    b.n_slots = (uint64_t)p.engine.n_tokens * 2;
    b.planes = p.planes.data();
    b.n_tokens = p.engine.n_tokens, b.n_cells = p.engine.n_cells, b.cell_tokens = CELL;
    b.slots = p.engine.slots.data();
    b.n_chunks = 1;
    b.memory = GPU_LOCKED, b.gather = gather;
    OK(gpu_set(k, &b));
}

static void bench_pages(uint32_t n_tokens)
{
    page_setup p = make_pages(n_tokens);
    uint8_t *device;
    char name[64];
    CK(cudaMalloc(&device, p.engine.bytes));
    set_pages(gpu, p, 0);
    snprintf(name, sizeof name, "h2d pages by layer, %uK tokens", n_tokens / 1024);
    pair(
        name, (double)p.engine.bytes,
        [&] {
            for (uint32_t l = 0; l < N_LAYERS; l++)
                OK(gpu_scatter(gpu, l, 1));
        },
        [&] {
            CK(cudaMemcpyAsync(device, p.cells, p.engine.bytes, cudaMemcpyHostToDevice, stream));
        },
        0.95);
    set_pages(gpu, p, 1);
    snprintf(name, sizeof name, "d2h pages, %uK tokens", n_tokens / 1024);
    pair(
        name, (double)p.engine.bytes, [&] { OK(gpu_gather(gpu, 0, N_LAYERS)); },
        [&] {
            CK(cudaMemcpyAsync(p.cells, device, p.engine.bytes, cudaMemcpyDeviceToHost, stream));
        },
        0.95);
    CK(cudaFree(device));
    free_pages(p);
}

/* A load and a save at once, on two threads and streams, against a copy in each direction at once.
 * Bytes are those of both. */
static void bench_both_ways(uint32_t n_tokens)
{
    page_setup in = make_pages(n_tokens), out = make_pages(n_tokens);
    uint8_t *device;
    cudaStream_t beside;
    cudaEvent_t fork, join;
    struct gpu *saver;
    CK(cudaMalloc(&device, 2 * in.engine.bytes));
    CK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    CK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    OK(gpu_open_beside(&saver, gpu, beside));
    set_pages(gpu, in, 0);
    set_pages(saver, out, 1);
    auto both = [&](const fn &load, const fn &save) {
        CK(cudaEventRecord(fork, stream));
        CK(cudaStreamWaitEvent(beside, fork, 0));
        std::thread thread(save);
        load();
        thread.join();
        CK(cudaEventRecord(join, beside));
        CK(cudaStreamWaitEvent(stream, join, 0));
    };
    size_t bytes = in.engine.bytes;
    char name[64];
    snprintf(name, sizeof name, "both ways at once, %uK tokens", n_tokens / 1024);
    pair(
        name, 2.0 * (double)bytes,
        [&] {
            both([&] { OK(gpu_scatter(gpu, 0, N_LAYERS)); },
                 [&] { OK(gpu_gather(saver, 0, N_LAYERS)); });
        },
        [&] {
            both(
                [&] {
                    CK(cudaMemcpyAsync(device, in.cells, bytes, cudaMemcpyHostToDevice, stream));
                },
                [&] {
                    CK(cudaMemcpyAsync(out.cells, device + bytes, bytes, cudaMemcpyDeviceToHost,
                                       beside));
                });
        },
        0.95);
    gpu_close(saver);
    CK(cudaEventDestroy(fork));
    CK(cudaEventDestroy(join));
    CK(cudaStreamDestroy(beside));
    CK(cudaFree(device));
    free_pages(in);
    free_pages(out);
}

/* How long an engine's launches take on their thread while another queues a load and a save of 32K
 * tokens: the driver has one lock for both. Microseconds, 99 of 100 below. */
static void bench_launch_beside(uint32_t n_tokens)
{
    page_setup p = make_pages(n_tokens);
    cudaStream_t engine;
    CK(cudaStreamCreateWithFlags(&engine, cudaStreamNonBlocking));
    double p99[2], worst[2];
    for (int busy = 0; busy < 2; busy++) {
        std::vector<double> us;
        std::atomic<bool> done(busy == 0);
        std::thread thread([&] {
            if (!busy) return;
            set_pages(gpu, p, 0);
            OK(gpu_scatter(gpu, 0, N_LAYERS));
            set_pages(gpu, p, 1);
            OK(gpu_gather(gpu, 0, N_LAYERS));
            done = true;
        });
        for (int i = 0; i < 2000 || !done; i++) {
            uint64_t t = bench_now_ns();
            nothing<<<1, 32, 0, engine>>>();
            us.push_back((double)(bench_now_ns() - t) / 1e3);
            if (i % 64 == 63) CK(cudaStreamSynchronize(engine));
        }
        thread.join();
        CK(cudaStreamSynchronize(stream));
        std::sort(us.begin(), us.end());
        p99[busy] = us[us.size() * 99 / 100];
        worst[busy] = us.back();
    }
    bench_report("launch beside a queued load, p99", p99[1], "us", p99[0], 0, false);
    bench_report("launch beside a queued load, worst", worst[1], "us", worst[0], 0, false);
    CK(cudaStreamDestroy(engine));
    free_pages(p);
}

/* ---- page-locking ---- */

/* Seconds for each GB that page-locking takes in pieces, of memory nobody has touched: mapped to
 * write, or only to read. Returns the mapping, still locked; NULL where it is refused. */
static uint8_t *lock_memfd(int fd, size_t bytes, bool writes, const char *name)
{
    const size_t piece = (size_t)256 << 20;
    int prot = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    void *p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) exit(1);
    uint64_t t = bench_now_ns();
    for (size_t at = 0; at < bytes; at += piece)
        if (gpu_lock(gpu, (uint8_t *)p + at, piece) < 0) {
            fprintf(stderr, "%s: refused: %s\n", name, gpu_message());
            return NULL;
        }
    bench_report(name, (double)(bench_now_ns() - t) / 1e6 / ((double)bytes / 1e9), "ms/GB", 0, 0,
                 false);
    return (uint8_t *)p;
}

static void unlock_memfd(uint8_t *p, size_t bytes)
{
    const size_t piece = (size_t)256 << 20;
    for (size_t at = 0; p && at < bytes; at += piece)
        gpu_unlock(gpu, p + at);
    if (p) munmap(p, bytes);
}

/* 1 when a batch of copies from p arrives. */
static int copies_arrive(const uint8_t *p, size_t bytes)
{
    uint8_t *device;
    std::vector<uint8_t> back(bytes);
    CK(cudaMalloc(&device, bytes));
    void *dsts[2] = {device, device + bytes / 2};
    const void *srcs[2] = {p, p + bytes / 2};
    size_t sizes[2] = {bytes / 2, bytes / 2}, first = 0;
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    cudaError_t e = cudaMemcpyBatchAsync(dsts, srcs, sizes, 2, &attributes, &first, 1, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (e == cudaSuccess) e = cudaMemcpy(back.data(), device, bytes, cudaMemcpyDeviceToHost);
    if (e != cudaSuccess) fprintf(stderr, "copies from locked memory: %s\n", cudaGetErrorString(e));
    cudaGetLastError();
    CK(cudaFree(device));
    return e == cudaSuccess && memcmp(back.data(), p, bytes) == 0;
}

static void bench_locking()
{
    const size_t bytes = (size_t)2 << 30, some = (size_t)8 << 20;
    int fd = memfd_create("bench_cuda", 0), fresh = memfd_create("bench_cuda", 0);
    if (fd < 0 || fresh < 0 || ftruncate(fd, (off_t)bytes) || ftruncate(fresh, (off_t)bytes)) {
        fprintf(stderr, "page-locking: no memfd here\n");
        return;
    }
    uint8_t *rw = lock_memfd(fd, bytes, true, "page-lock, untouched, to write");
    uint8_t *ro = lock_memfd(fresh, bytes, false, "page-lock, untouched, to read");
    unlock_memfd(ro, bytes);
    for (size_t i = 0; rw && i < some; i++)
        rw[i] = (uint8_t)(i * 7 + i / 4096);
    ro = lock_memfd(fd, bytes, false, "page-lock, touched, to read");
    if (rw)
        bench_report("copies from memory locked to write", copies_arrive(rw, some), "", 0, 1, true);
    if (ro)
        bench_report("copies from memory locked to read", copies_arrive(ro, some), "", 0, 1, true);
    unlock_memfd(ro, bytes);
    unlock_memfd(rw, bytes);
    close(fd);
    close(fresh);
}

/* An engine captures a graph while another thread page-locks memory: both must succeed. */
static void bench_lock_in_capture()
{
    const size_t bytes = (size_t)64 << 20;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cudaStream_t engine;
    cudaGraph_t graph = NULL;
    int locked = -1;
    if (p == MAP_FAILED) exit(1);
    CK(cudaStreamCreateWithFlags(&engine, cudaStreamNonBlocking));
    CK(cudaStreamBeginCapture(engine, cudaStreamCaptureModeGlobal));
    nothing<<<1, 32, 0, engine>>>();
    std::thread thread([&] {
        locked = gpu_lock(gpu, p, bytes);
        if (locked == 0) gpu_unlock(gpu, p);
    });
    thread.join();
    nothing<<<1, 32, 0, engine>>>();
    cudaError_t e = cudaStreamEndCapture(engine, &graph);
    if (locked < 0) fprintf(stderr, "page-lock in a capture: refused\n");
    if (e != cudaSuccess) fprintf(stderr, "capture: %s\n", cudaGetErrorString(e));
    cudaGetLastError();
    bench_report("page-lock while a graph is captured", locked == 0 && e == cudaSuccess, "", 0, 1,
                 true);
    if (graph) CK(cudaGraphDestroy(graph));
    CK(cudaStreamDestroy(engine));
    munmap(p, bytes);
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
    bench_pages(8192);
    bench_pages(32768);
    bench_both_ways(8192);
    bench_launch();
    bench_launch_beside(32768);
    bench_locking();
    bench_lock_in_capture();
    bench_select();
    gpu_close(gpu);
    return bench_end();
}
