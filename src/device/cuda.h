/* cuda.h - what the host half (cuda.c) and the kernels (*.cu) of libtessera-cuda.so share: plain C
 * types, device pointers as integers. Kernels hold no policy: the host half decides which path a
 * plane takes and fills the tables; a launcher starts a kernel and returns.
 *
 * Threads: a job belongs to one batch, hence to one thread at a time.
 * Memory:  the tables of a job are device memory owned by its batch.
 * Errors:  launchers return a cudaError_t as int, 0 for success. */
#ifndef TSRI_CUDA_H
#define TSRI_CUDA_H

#include <tessera/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the rows of a plane are moved. FAST: 16-byte vectors; SLOW: element by element, any strides.
 */
enum tsri_cuda_path { TSRI_CUDA_SLOW = 0, TSRI_CUDA_FAST = 1 };

struct tsri_cuda_plane {
    uint64_t block_stride, token_stride, head_stride, element_stride;
    uint32_t n_heads, dim, element_bytes, dtype;
    uint32_t rope_first, rope_dims;
    uint32_t row_bytes, row_bytes_int8, quant_group;
    uint32_t path;
    uint32_t flat; /* heads follow one another without a gap */
};

/* What a token of a batch is: bits of its run word. */
#define TSRI_CUDA_RUN_INT8 0x80000000u
#define TSRI_CUDA_RUN_TURN 0x40000000u
#define TSRI_CUDA_RUN_MASK 0x3fffffffu

/* What the host sends of a run. */
struct tsri_cuda_run {
    uint32_t cells, n_cells; /* its pointers: cells + (layer * n_planes + plane) * n_cells + cell */
    int64_t delta;
    uint32_t word;            /* run and flags */
    uint32_t token, n_tokens; /* in the batch */
    uint32_t row;             /* of its first token in its first cell */
    uint32_t cell_tokens;
    uint32_t reserved;
};

/* Where a token's row is in the cells, made on the device: two loads that depend on each other
 * instead of three by way of the run, and the first of them is one of 16 bytes. A cell may hold any
 * number of tokens (KV_2LTD is one cell), so row has all its bits. */
struct tsri_cuda_place {
    uint32_t first;   /* its pointer is cells[first + (layer * n_planes + plane) * n_cells] */
    uint32_t n_cells; /* of the run */
    uint32_t row;     /* in the cell */
    uint32_t word;    /* run and flags */
};

/* A batch as kernels see it; passed by value. where and turns are made on the device. */
struct tsri_cuda_job {
    const int64_t *slots;                /* [n_tokens], -1: skip */
    const struct tsri_cuda_place *where; /* [n_tokens] */
    const struct tsri_cuda_run *runs;
    const uint64_t *cells;
    const uint64_t *layers; /* [layer * n_planes + plane]: the engine's */
    const float *turns;     /* [run][2 * n_pairs] */
    const double *freq;     /* [n_pairs] */
    uint32_t n_tokens, n_planes, n_pairs;
    uint32_t pairing;
    uint32_t block_shift, block_mask; /* shift 63: contiguous */
    uint32_t hot; /* fast planes of two-byte elements, no int8, NEOX pairs that divide a warp */
    struct tsri_cuda_plane planes[TSR_KV_PLANES_MAX];
};

/* Rows of a batch in a buffer of the device instead of in their cells: those of layer
 * layer_first + l, plane i, token first + k at base + l * layer_bytes + offset[i] + k * row. */
struct tsri_cuda_stage {
    void *base;
    uint64_t offset[TSR_KV_PLANES_MAX];
    uint64_t layer_bytes;
    uint32_t layer_first;
    uint32_t first, n_tokens;
};

/* stream: a cudaStream_t. turn: rotate the runs that ask for it. staged NULL: from the cells, or
 * into them; otherwise the layers begin with the first of the buffer. */
int tsri_cuda_scatter(const struct tsri_cuda_job *job, const struct tsri_cuda_stage *staged,
                      uint32_t layer_first, uint32_t n_layers, int turn, void *stream);
int tsri_cuda_gather(const struct tsri_cuda_job *job, const struct tsri_cuda_stage *staged,
                     uint32_t layer_first, uint32_t n_layers, void *stream);
/* Fills where and turns. */
int tsri_cuda_expand(const struct tsri_cuda_job *job, uint32_t n_runs, void *stream);
int tsri_cuda_top_k(const struct tsr_top_k *t, void *stream);

#ifdef __cplusplus
}
#endif
#endif
