/* bench_cuda.h - the library as bench_cuda.cu sees it: C behind plain types, since the internal
 * headers are C11 and nvcc compiles C++. */
#ifndef BENCH_CUDA_H
#define BENCH_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_LOCKED = 1, GPU_DEVICE = 2 };

struct gpu;
struct gpu_batch {
    void *const *layers_k, *const *layers_v; /* the engine's, one pair a layer */
    uint32_t n_layers, n_heads, dim, block;
    uint64_t n_slots;
    void *const *planes; /* of the cells, entry after entry */
    uint32_t n_tokens, n_cells, cell_tokens;
    const int64_t *slots;
    uint32_t n_chunks; /* entries that the tokens are cut into, of n_cells / n_chunks cells each */
    int memory, int8, gather;
    int64_t delta;
    /* 0, or bytes of a token in opaque pages: one plane, whose layers are layers_k, and planes of
     * cells for that one */
    uint32_t opaque;
};

/* Opens the CUDA device on the caller's stream (a cudaStream_t). */
int gpu_open(struct gpu **out, void *stream);
/* Another batch on the same device, on another stream of the caller. */
int gpu_open_beside(struct gpu **out, struct gpu *first, void *stream);
void gpu_close(struct gpu *k);
/* Page-locks memory as a cache does. */
int gpu_lock(struct gpu *k, void *p, size_t bytes);
void gpu_unlock(struct gpu *k, void *p);
int gpu_set(struct gpu *k, const struct gpu_batch *b);
int gpu_scatter(struct gpu *k, uint32_t layer, uint32_t n_layers);
/* How many layers from this one on are best moved together. */
uint32_t gpu_step(struct gpu *k, uint32_t layer);
int gpu_gather(struct gpu *k, uint32_t layer, uint32_t n_layers);
int gpu_top_k(struct gpu *k, const float *scores, uint32_t n, uint32_t top, uint32_t *out);
const char *gpu_message(void);

#ifdef __cplusplus
}
#endif
#endif
