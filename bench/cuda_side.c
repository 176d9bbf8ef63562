/* cuda_side.c - bench_cuda.h over the device layer. */
#include "bench_cuda.h"
#include "device/device.h"

#include <stdlib.h>

#define RUNS_MAX 64u

struct gpu {
    struct tsri_device *device;
    bool beside; /* the device is that of another */
    struct tsr_device_stream *stream;
    struct tsri_batch *batch;
    struct tsr_kv_layout layout;
    struct tsr_kv_cells cells[RUNS_MAX];
    struct tsr_kv_run runs[RUNS_MAX];
    struct tsr_rope rope;
};

static int open_batch(struct gpu **out, struct gpu *k, void *stream)
{
    struct tsr_batch_limits limits = {
        .runs = RUNS_MAX, .tokens = 32768, .cells = 1024, .plane_pointers = 1024 * 64};
    int e = tsri_stream_open(&k->stream, k->device, stream, 0);
    if (e == 0) e = tsri_batch_open(&k->batch, k->device, &limits);
    k->rope = (struct tsr_rope){
        .size = sizeof k->rope, .pairing = TSR_ROPE_NEOX, .dims = 128, .theta = 500000};
    *out = k;
    return e;
}

int gpu_open(struct gpu **out, void *stream)
{
    struct gpu *k = tsri_alloc(1, sizeof *k);
    if (!k) return TSR_ENOMEM;
    const char *library = getenv("TESSERA_CUDA_LIB");
    struct tsr_device_desc config = {.size = sizeof config,
                                     .library = library ? library : "build/lib/libtessera-cuda.so"};
    int e = tsri_device_open(&k->device, "cuda", &config);
    return e ? e : open_batch(out, k, stream);
}

int gpu_open_beside(struct gpu **out, struct gpu *first, void *stream)
{
    struct gpu *k = tsri_alloc(1, sizeof *k);
    if (!k) return TSR_ENOMEM;
    k->device = first->device;
    k->beside = true;
    return open_batch(out, k, stream);
}

void gpu_close(struct gpu *k)
{
    tsri_batch_close(k->batch);
    tsri_stream_close(k->device, k->stream);
    if (!k->beside) tsri_device_close(k->device);
    tsri_free(k);
}

int gpu_lock(struct gpu *k, void *p, size_t bytes)
{
    return tsri_device_host_register(k->device, p, bytes);
}

void gpu_unlock(struct gpu *k, void *p)
{
    tsri_device_host_unregister(k->device, p);
}

static struct tsr_kv_plane plane(const struct gpu_batch *b, void *const *layers, int turned)
{
    uint64_t row = (uint64_t)b->n_heads * b->dim * 2;
    return (struct tsr_kv_plane){.layers = layers,
                                 .block_stride = row * b->block,
                                 .token_stride = row,
                                 .head_stride = (uint64_t)b->dim * 2,
                                 .element_stride = 2,
                                 .dtype = TSR_DTYPE_BF16,
                                 .n_heads = b->n_heads,
                                 .dim = b->dim,
                                 .rope_dims = turned ? b->dim : 0};
}

static struct tsr_kv_plane opaque_plane(const struct gpu_batch *b)
{
    return (struct tsr_kv_plane){.layers = b->layers_k,
                                 .block_stride = (uint64_t)b->opaque * b->block,
                                 .token_stride = b->opaque,
                                 .head_stride = b->opaque,
                                 .element_stride = 1,
                                 .dtype = TSR_DTYPE_OPAQUE,
                                 .n_heads = 1,
                                 .dim = b->opaque};
}

int gpu_set(struct gpu *k, const struct gpu_batch *b)
{
    uint32_t n_planes = b->opaque ? 1 : 2;
    k->rope.dims = b->dim;
    k->layout = (struct tsr_kv_layout){.size = sizeof k->layout,
                                       .memory = TSR_MEMORY_DEVICE,
                                       .n_layers = b->n_layers,
                                       .n_planes = n_planes,
                                       .block_tokens = b->block,
                                       .n_slots = b->n_slots};
    k->layout.planes[0] = b->opaque ? opaque_plane(b) : plane(b, b->layers_k, 1);
    if (!b->opaque) k->layout.planes[1] = plane(b, b->layers_v, 0);
    uint32_t each = b->n_tokens / b->n_chunks, cells = b->n_cells / b->n_chunks;
    for (uint32_t i = 0; i < b->n_chunks; i++) {
        k->cells[i] =
            (struct tsr_kv_cells){.size = sizeof k->cells[i],
                                  .planes = b->planes + (size_t)i * b->n_layers * n_planes * cells,
                                  .n_cells = cells,
                                  .cell_tokens = b->cell_tokens,
                                  .n_tokens = each,
                                  .n_layers = b->n_layers,
                                  .n_planes = n_planes,
                                  .int8 = (uint32_t)b->int8,
                                  .memory = (uint32_t)b->memory};
        k->runs[i] = (struct tsr_kv_run){.cells = &k->cells[i],
                                         .slots = b->slots + (size_t)i * each,
                                         .n_tokens = each,
                                         .delta = b->delta ? b->delta + i : 0};
    }
    struct tsri_batch_desc desc = {.direction = b->gather ? TSRI_BATCH_GATHER : TSRI_BATCH_SCATTER,
                                   .n_runs = b->n_chunks,
                                   .layout = &k->layout,
                                   .runs = k->runs,
                                   .rope = b->delta ? &k->rope : NULL};
    return tsri_batch_set(k->batch, k->stream, &desc);
}

int gpu_scatter(struct gpu *k, uint32_t layer, uint32_t n_layers)
{
    return tsri_batch_scatter(k->batch, layer, n_layers);
}

uint32_t gpu_step(struct gpu *k, uint32_t layer)
{
    return tsri_batch_step(k->batch, layer);
}

int gpu_gather(struct gpu *k, uint32_t layer, uint32_t n_layers)
{
    return tsri_batch_gather(k->batch, layer, n_layers);
}

int gpu_top_k(struct gpu *k, const float *scores, uint32_t n, uint32_t top, uint32_t *out)
{
    struct tsr_top_k t = {.scores = scores, .out = out, .n = n, .k = top};
    return tsri_device_top_k(k->device, k->stream, &t);
}

const char *gpu_message(void)
{
    return tsr_errmsg();
}
