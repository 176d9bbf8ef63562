/* cuda_batch.c - a batch of the CUDA device: the tables that kernels read.
 *
 * A batch owns one block of page-locked memory and one of device memory of the same layout. Setting
 * it fills the first (slots, runs, cells, engine pointers) and sends it with one copy on the
 * stream; a small kernel expands runs to tokens and makes the angles. The event behind the copy
 * tells when the page-locked block may be filled again.
 *
 * Cells in page-locked memory are read and written by the kernels themselves, or, where their rows
 * come in long runs, by copy engines through the buffers of the device (cuda_stage.c). */
#include "device/cuda_host.h"

#include <stdlib.h>
#include <string.h>

/* ---- batches ---- */

/* The parts of a batch's block, in the order of struct tsri_cuda_job. */
struct parts {
    size_t slots, runs, cells, layers, freq, sent, where, turns, bytes;
};

#define LAYER_POINTERS (1024u * TSR_KV_PLANES_MAX)
#define PAIRS_MAX 256u

static size_t place_part(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at = (here + bytes + 255) / 256 * 256;
    return here;
}

static struct parts parts_of(uint32_t tokens, uint32_t pointers, uint32_t layers, uint32_t runs,
                             uint32_t pairs)
{
    struct parts p;
    size_t at = 0;
    p.slots = place_part(&at, (size_t)tokens * sizeof(int64_t));
    p.runs = place_part(&at, (size_t)runs * sizeof(struct tsri_cuda_run));
    p.cells = place_part(&at, (size_t)pointers * sizeof(uint64_t));
    p.layers = place_part(&at, (size_t)layers * sizeof(uint64_t));
    p.freq = place_part(&at, (size_t)pairs * sizeof(double));
    p.sent = at; /* what follows is made on the device */
    p.where = place_part(&at, (size_t)tokens * sizeof(struct tsri_cuda_place));
    p.turns = place_part(&at, (size_t)runs * 2 * pairs * sizeof(float));
    p.bytes = at;
    return p;
}

/* What was queued is waited for: its kernels read the tables, and its copies end before `used`. */
void tsri_cuda_batch_close(struct tsr_device *d, struct tsr_device_batch *b)
{
    if (tsri_cuda_enter(d) == 0) {
        enum cudaStreamCaptureMode mode = tsri_cuda_relax();
        if (b->sent) cudaEventSynchronize(b->sent);
        if (b->used) cudaEventSynchronize(b->used);
        if (b->sent) cudaEventDestroy(b->sent);
        if (b->used) cudaEventDestroy(b->used);
        cudaFree(b->device);
        cudaFreeHost(b->host);
        tsri_cuda_restore(mode);
    }
    free(b);
}

int tsri_cuda_batch_open(struct tsr_device *d, struct tsr_device_batch **out,
                         const struct tsr_batch_limits *limits)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    struct tsr_device_batch *b = calloc(1, sizeof *b);
    if (!b) return d->fail(TSR_ENOMEM, "cuda: out of memory");
    b->limits = *limits;
    b->bytes =
        parts_of(limits->tokens, limits->plane_pointers, LAYER_POINTERS, limits->runs, PAIRS_MAX)
            .bytes;
    enum cudaStreamCaptureMode mode = tsri_cuda_relax();
    cudaError_t e = cudaHostAlloc((void **)&b->host, b->bytes, cudaHostAllocPortable);
    if (e == cudaSuccess) e = cudaMalloc((void **)&b->device, b->bytes);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&b->sent, cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&b->used, cudaEventDisableTiming);
    tsri_cuda_restore(mode);
    if (e != cudaSuccess) {
        err = tsri_cuda_failed(d, e, "out of memory for a batch");
        tsri_cuda_batch_close(d, b);
        return err;
    }
    *out = b;
    return 0;
}

/* Mirrors the definitions in <tessera/device.h>. */
static uint32_t quant_group(uint32_t dim)
{
    return dim > 128 && dim % 64 == 0 ? 64 : dim;
}
static uint32_t row_int8(uint32_t n_heads, uint32_t dim)
{
    uint32_t n = n_heads * dim, groups = n_heads * (dim / quant_group(dim));
    return (n + groups * 4 + 15) / 16 * 16;
}

static int multiple(uint64_t a, uint64_t of)
{
    return a % of == 0;
}

/* Whether every vector of every row begins on 16 bytes, on both sides. */
static int is_fast(const struct tsr_batch *batch, const struct tsr_kv_plane *p, uint32_t bytes)
{
    if (p->element_stride != bytes || !multiple((uint64_t)p->dim * bytes, 16)) return 0;
    if (!multiple(p->head_stride | p->token_stride, 16)) return 0;
    if (batch->layout->block_tokens && !multiple(p->block_stride, 16)) return 0;
    if (p->layers ? 0 : !multiple((uintptr_t)p->base | p->layer_stride, 16)) return 0;
    for (uint32_t l = 0; p->layers && l < batch->layout->n_layers; l++)
        if (!multiple((uintptr_t)p->layers[l], 16)) return 0;
    if (!batch->pairing || !p->rope_dims) return 1;
    uint32_t turned = batch->pairing == TSR_ROPE_NEOX ? p->rope_dims / 2 : p->rope_dims;
    return multiple((uint64_t)turned * bytes, 16) && multiple((uint64_t)p->rope_first * bytes, 16);
}

static void set_plane(const struct tsr_batch *batch, uint32_t i, struct tsri_cuda_plane *out)
{
    const struct tsr_kv_plane *p = &batch->layout->planes[i];
    uint32_t bytes = p->dtype == TSR_DTYPE_F32 ? 4 : p->dtype == TSR_DTYPE_OPAQUE ? 1 : 2;
    *out = (struct tsri_cuda_plane){.block_stride = p->block_stride,
                                    .token_stride = p->token_stride,
                                    .head_stride = p->head_stride,
                                    .element_stride = p->element_stride,
                                    .n_heads = p->n_heads,
                                    .dim = p->dim,
                                    .element_bytes = bytes,
                                    .dtype = p->dtype,
                                    .rope_first = p->rope_first,
                                    .rope_dims = p->rope_dims,
                                    .row_bytes = p->n_heads * p->dim * bytes,
                                    .row_bytes_int8 = row_int8(p->n_heads, p->dim),
                                    .quant_group = quant_group(p->dim)};
    out->flat = p->n_heads == 1 || p->head_stride == (uint64_t)p->dim * bytes;
    out->path = is_fast(batch, p, bytes) ? TSRI_CUDA_FAST : TSRI_CUDA_SLOW;
}

/* Copies pointers and collects their bits; four at a time, since a load has thousands. */
static uint64_t copy_pointers(uint64_t *out, void *const *in, size_t n)
{
    uint64_t bits[4] = {0};
    memcpy(out, in, n * sizeof *out);
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (size_t k = 0; k < 4; k++)
            bits[k] |= out[i + k];
    for (; i < n; i++)
        bits[0] |= out[i];
    return bits[0] | bits[1] | bits[2] | bits[3];
}

/* Copies slots and tells whether one of them is -1. */
static uint32_t copy_slots(int64_t *out, const int64_t *in, uint32_t n)
{
    int64_t bits = 0;
    for (uint32_t i = 0; i < n; i++)
        bits |= out[i] = in[i];
    return bits < 0;
}

/* Slots and cells of one run, from token `token` and pointer `first` of the batch on; returns how
 * many pointers it has. `low` collects the low bits of the addresses. */
static uint32_t set_run(struct tsr_device_batch *b, const struct parts *parts,
                        const struct tsr_batch *batch, uint32_t run, uint32_t token, uint32_t first,
                        uint64_t *low)
{
    const struct tsr_kv_run *r = &batch->runs[run];
    const struct tsr_kv_cells *c = r->cells;
    uint32_t flags = (c->int8 ? TSRI_CUDA_RUN_INT8 : 0) | (r->delta ? TSRI_CUDA_RUN_TURN : 0);
    uint32_t cell = r->offset / c->cell_tokens, n_lp = c->n_layers * c->n_planes;
    uint32_t n = (r->offset + r->n_tokens - 1) / c->cell_tokens - cell + 1;
    b->skips |=
        copy_slots((int64_t *)(void *)(b->host + parts->slots) + token, r->slots, r->n_tokens);
    uint64_t *cells = (uint64_t *)(void *)(b->host + parts->cells) + first;
    if (n == c->n_cells)
        *low |= copy_pointers(cells, c->planes, (size_t)n_lp * n);
    else
        for (uint32_t lp = 0; lp < n_lp; lp++)
            *low |= copy_pointers(cells + (size_t)lp * n,
                                  c->planes + (size_t)lp * c->n_cells + cell, n);
    ((struct tsri_cuda_run *)(void *)(b->host + parts->runs))[run] =
        (struct tsri_cuda_run){.cells = first,
                               .n_cells = n,
                               .delta = r->delta,
                               .word = run | flags,
                               .token = token,
                               .n_tokens = r->n_tokens,
                               .row = r->offset % c->cell_tokens,
                               .cell_tokens = c->cell_tokens};
    return n_lp * n;
}

static void set_layers(const struct tsr_batch *batch, uint64_t *out)
{
    const struct tsr_kv_layout *l = batch->layout;
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t i = 0; i < l->n_planes; i++) {
            const struct tsr_kv_plane *p = &l->planes[i];
            *out++ =
                (uint64_t)(uintptr_t)(p->layers ? (uint8_t *)p->layers[layer]
                                                : (uint8_t *)p->base + layer * p->layer_stride);
        }
}

static void set_job(struct tsr_device_batch *b, const struct parts *parts,
                    const struct tsr_batch *batch)
{
    const struct tsr_kv_layout *l = batch->layout;
    struct tsri_cuda_job *job = &b->job;
    uint8_t *d = b->device;
    job->slots = (const int64_t *)(void *)(d + parts->slots);
    job->where = (const struct tsri_cuda_place *)(void *)(d + parts->where);
    job->runs = (const struct tsri_cuda_run *)(void *)(d + parts->runs);
    job->cells = (const uint64_t *)(void *)(d + parts->cells);
    job->layers = (const uint64_t *)(void *)(d + parts->layers);
    job->turns = (const float *)(void *)(d + parts->turns);
    job->freq = (const double *)(void *)(d + parts->freq);
    job->n_tokens = batch->n_tokens;
    job->n_planes = l->n_planes;
    job->pairing = batch->pairing;
    job->block_shift = l->block_tokens ? (uint32_t)__builtin_ctz(l->block_tokens) : 63;
    job->block_mask = l->block_tokens ? l->block_tokens - 1 : 0;
    for (uint32_t i = 0; i < l->n_planes; i++)
        set_plane(batch, i, &job->planes[i]);
}

static uint32_t pairs_of(const struct tsr_kv_layout *l)
{
    for (uint32_t i = 0; i < l->n_planes; i++)
        if (l->planes[i].rope_dims) return l->planes[i].rope_dims / 2;
    return 0;
}

/* Whether the kernel for common cases may be used; planes fall back to the slow path when cells are
 * not aligned. */
static void choose_paths(struct tsr_device_batch *b, const struct tsr_batch *batch,
                         uint64_t cell_or)
{
    struct tsri_cuda_job *job = &b->job;
    uint32_t half = job->n_pairs / 8;
    job->hot = !batch->pairing ||
               (job->pairing == TSR_ROPE_NEOX && half && 32 % half == 0 && job->n_pairs % 8 == 0);
    for (uint32_t i = 0; i < job->n_planes; i++) {
        if (!multiple(cell_or, 16)) job->planes[i].path = TSRI_CUDA_SLOW;
        job->hot = job->hot && job->planes[i].path == TSRI_CUDA_FAST &&
                   job->planes[i].dtype != TSR_DTYPE_F32;
    }
    for (uint32_t run = 0; run < batch->n_runs && job->hot; run++)
        job->hot = !batch->runs[run].cells->int8;
}

static cudaError_t send_batch(struct tsr_device_batch *b, const struct parts *parts,
                              cudaStream_t stream)
{
    cudaError_t e =
        cudaMemcpyAsync(b->device, b->host, parts->sent, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaEventRecord(b->sent, stream);
    if (e == cudaSuccess) e = (cudaError_t)tsri_cuda_expand(&b->job, b->n_runs, stream);
    if (e == cudaSuccess) e = cudaEventRecord(b->used, stream);
    if (e != cudaSuccess) cudaStreamSynchronize(stream); /* the tables may be filled again */
    return e;
}

int tsri_cuda_batch_set(struct tsr_device *d, struct tsr_device_stream *s,
                        const struct tsr_batch *batch)
{
    struct tsr_device_batch *b = batch->device;
    int err = tsri_cuda_enter(d);
    if (err) return err;
    enum cudaStreamCaptureMode mode = tsri_cuda_relax();
    cudaError_t e = cudaEventSynchronize(b->sent);
    tsri_cuda_restore(mode);
    TSRI_CUDA_TRY(d, e, "an earlier batch failed");
    /* The last set may have been for another stream, whose kernels still read the tables. */
    TSRI_CUDA_TRY(d, cudaStreamWaitEvent(tsri_cuda_native(s), b->used, 0),
                  "cannot wait for an event");
    const struct tsr_kv_layout *l = batch->layout;
    uint32_t n_lp = l->n_layers * l->n_planes;
    b->job.n_pairs = pairs_of(l);
    struct parts parts =
        parts_of(batch->n_tokens, n_lp * batch->n_cells, n_lp, batch->n_runs, b->job.n_pairs);
    if (parts.bytes > b->bytes) return d->fail(TSR_ERANGE, "cuda: the batch exceeds its limits");
    set_job(b, &parts, batch);
    uint64_t cell_or = 0;
    uint32_t token = 0, cell = 0;
    b->skips = b->followed = 0;
    for (uint32_t run = 0; run < batch->n_runs; run++) {
        cell += set_run(b, &parts, batch, run, token, cell, &cell_or);
        token += batch->runs[run].n_tokens;
    }
    set_layers(batch, (uint64_t *)(void *)(b->host + parts.layers));
    if (batch->pairing) memcpy(b->host + parts.freq, batch->freq, b->job.n_pairs * sizeof(double));
    choose_paths(b, batch, cell_or);
    b->runs = batch->runs;
    b->n_runs = batch->n_runs;
    b->n_cells = batch->n_cells;
    b->staged_int8 = batch->runs[0].cells->int8 != 0;
    b->staged = (uint32_t)tsri_cuda_wants_stage(b, batch);
    TSRI_CUDA_TRY(d, send_batch(b, &parts, tsri_cuda_native(s)), "cannot send a batch");
    return 0;
}

/* ---- moving ---- */

/* Behind launches that read the tables and gave e. Marked even if one was refused: those before it
 * still run. */
static int mark_used(const struct tsr_device *d, const struct tsr_device_batch *b,
                     cudaStream_t stream, int e, const char *what)
{
    cudaError_t marked = cudaEventRecord(b->used, stream);
    if (e == cudaSuccess && marked == cudaSuccess) return 0;
    cudaStreamSynchronize(stream);
    return tsri_cuda_failed(d, e == cudaSuccess ? marked : (cudaError_t)e, what);
}

/* Without memory for buffers the kernels go over the bus themselves, as they do with small cells. */
static int move_any(struct tsr_device *d, struct tsr_device_stream *s,
                    const struct tsr_batch *batch, const struct tsri_cuda_move *m)
{
    struct tsr_device_batch *b = batch->device;
    cudaStream_t stream = tsri_cuda_native(s);
    const char *what = m->way == TSRI_CUDA_IN ? "scatter" : "gather";
    int err = tsri_cuda_enter(d), e = cudaSuccess;
    if (err) return err;
    int copies = m->way == TSRI_CUDA_IN ? b->staged > 0 : b->staged > 1 && !b->skips;
    if (copies && tsri_cuda_staging_open(d, m->way) == 0) {
        err = tsri_cuda_staged(d, b, stream, m);
        if (err) return err;
    } else if (m->way == TSRI_CUDA_IN) {
        e = tsri_cuda_scatter(&b->job, NULL, m->layer_first, m->n_layers, m->turn, stream);
    } else {
        e = tsri_cuda_gather(&b->job, NULL, m->layer_first, m->n_layers, stream);
    }
    return mark_used(d, b, stream, e, what);
}

int tsri_cuda_batch_scatter(struct tsr_device *d, struct tsr_device_stream *s,
                            const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers)
{
    struct tsri_cuda_move m = {TSRI_CUDA_IN, layer_first, n_layers, 0};
    return move_any(d, s, batch, &m);
}

int tsri_cuda_batch_rotate(struct tsr_device *d, struct tsr_device_stream *s,
                           const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers)
{
    struct tsri_cuda_move m = {TSRI_CUDA_IN, layer_first, n_layers, 1};
    return move_any(d, s, batch, &m);
}

int tsri_cuda_batch_gather(struct tsr_device *d, struct tsr_device_stream *s,
                           const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers)
{
    struct tsri_cuda_move m = {TSRI_CUDA_OUT, layer_first, n_layers, 0};
    return move_any(d, s, batch, &m);
}
