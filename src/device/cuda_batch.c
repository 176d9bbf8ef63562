/* cuda_batch.c - a batch of the CUDA device: the tables that kernels read, and the staging of cells
 * that come over the bus.
 *
 * A batch owns one block of page-locked memory and one of device memory of the same layout. Setting
 * it fills the first (slots, runs, cells, engine pointers) and sends it with one copy on the
 * stream; a small kernel expands runs to tokens and makes the angles. The event behind the copy
 * tells when the page-locked block may be filled again.
 *
 * Cells in page-locked memory are read by the kernels themselves, or, where their rows come in long
 * runs, copied in batches into one of two buffers while a kernel empties the other: a copy engine
 * moves 98 % of what the bus can, a kernel's loads 91 % (bench_cuda). */
#include "device/cuda_host.h"

#include <stdlib.h>
#include <string.h>

/* Staging: two buffers in turn, so that the bus fills one while a kernel empties the other. Large
 * enough that a copy engine runs at full rate, small enough that nobody misses it. */
#define STAGES 2
#define STAGE_BYTES ((size_t)32 << 20)
#define STAGE_COPIES 4096u
/* Planes begin on 256 bytes in a buffer, wherever the one before ends. */
#define STAGE_ALIGN ((size_t)256)
#define STAGE_ROWS_BYTES (STAGE_BYTES - TSR_KV_PLANES_MAX * STAGE_ALIGN)
/* Runs of rows below this are read by the kernel where they are: a copy engine needs about this
 * much to beat it. */
#define STAGE_COPY_BYTES ((size_t)32 << 10)

struct batch_stage {
    uint8_t *data;
    cudaEvent_t filled, emptied;
};

struct tsr_device_batch {
    struct tsr_batch_limits limits;
    uint8_t *host, *device;
    size_t bytes;
    cudaEvent_t sent, used; /* behind the copy of the tables; behind the last kernel on them */
    struct tsri_cuda_job job;
    int staged;      /* cells come over the bus in copies, not in loads of the kernel */
    int staged_int8; /* all of them in the int8 form, or none */
    const struct tsr_kv_run *runs;
    uint32_t n_runs;
    cudaStream_t bus;
    struct batch_stage stages[STAGES];
    uint32_t next_stage;
    void **dsts;
    const void **srcs;
    size_t *sizes;
};

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

void tsri_cuda_batch_close(struct tsr_device *d, struct tsr_device_batch *b)
{
    if (tsri_cuda_enter(d) == 0) {
        if (b->bus) cudaStreamSynchronize(b->bus);
        for (int i = 0; i < STAGES; i++) {
            if (b->stages[i].filled) cudaEventDestroy(b->stages[i].filled);
            if (b->stages[i].emptied) cudaEventDestroy(b->stages[i].emptied);
            cudaFree(b->stages[i].data);
        }
        if (b->bus) cudaStreamDestroy(b->bus);
        if (b->sent) cudaEventDestroy(b->sent);
        if (b->used) cudaEventDestroy(b->used);
        cudaFree(b->device);
        cudaFreeHost(b->host);
    }
    free(b->dsts);
    free(b->srcs);
    free(b->sizes);
    free(b);
}

static cudaError_t open_stages(struct tsr_device_batch *b)
{
    cudaError_t e = cudaStreamCreateWithFlags(&b->bus, cudaStreamNonBlocking);
    for (int i = 0; i < STAGES && e == cudaSuccess; i++) {
        struct batch_stage *st = &b->stages[i];
        e = cudaMalloc((void **)&st->data, STAGE_BYTES);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&st->filled, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&st->emptied, cudaEventDisableTiming);
    }
    b->dsts = calloc(STAGE_COPIES, sizeof *b->dsts);
    b->srcs = calloc(STAGE_COPIES, sizeof *b->srcs);
    b->sizes = calloc(STAGE_COPIES, sizeof *b->sizes);
    if (!b->dsts || !b->srcs || !b->sizes) return cudaErrorMemoryAllocation;
    return e;
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
    cudaError_t e = cudaHostAlloc((void **)&b->host, b->bytes, cudaHostAllocPortable);
    if (e == cudaSuccess) e = cudaMalloc((void **)&b->device, b->bytes);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&b->sent, cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&b->used, cudaEventDisableTiming);
    if (e == cudaSuccess) e = open_stages(b);
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
    memcpy((int64_t *)(void *)(b->host + parts->slots) + token, r->slots,
           r->n_tokens * sizeof(int64_t));
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

static size_t staged_row(const struct tsr_device_batch *b, uint32_t plane)
{
    const struct tsri_cuda_plane *p = &b->job.planes[plane];
    return b->staged_int8 ? p->row_bytes_int8 : p->row_bytes;
}

/* The rows of one token in a buffer. */
static size_t staged_token(const struct tsr_device_batch *b)
{
    size_t bytes = 0;
    for (uint32_t p = 0; p < b->job.n_planes; p++)
        bytes += staged_row(b, p);
    return bytes;
}

/* Copies pay when all cells are page-locked host memory and their rows come in long runs. In a
 * buffer a token's place is its number times the row, so all rows of a plane must have one size:
 * entries in the int8 form and others are not staged together. */
static int wants_stage(struct tsr_device_batch *b, const struct tsr_batch *batch)
{
    b->staged_int8 = batch->runs[0].cells->int8 != 0;
    if (staged_token(b) > STAGE_ROWS_BYTES) return 0;
    for (uint32_t i = 0; i < batch->n_runs; i++) {
        const struct tsr_kv_cells *c = batch->runs[i].cells;
        uint32_t n =
            c->cell_tokens < batch->runs[i].n_tokens ? c->cell_tokens : batch->runs[i].n_tokens;
        if (c->memory != TSR_MEMORY_LOCKED || (c->int8 != 0) != b->staged_int8 ||
            n * staged_row(b, 0) < STAGE_COPY_BYTES)
            return 0;
    }
    return 1;
}

static int send_batch(struct tsr_device *d, struct tsr_device_batch *b, const struct parts *parts,
                      cudaStream_t stream)
{
    TSRI_CUDA_TRY(d,
                  cudaMemcpyAsync(b->device, b->host, parts->sent, cudaMemcpyHostToDevice, stream),
                  "cannot send a batch");
    TSRI_CUDA_TRY(d, cudaEventRecord(b->sent, stream), "cannot record an event");
    TSRI_CUDA_TRY(d, (cudaError_t)tsri_cuda_expand(&b->job, b->n_runs, stream),
                  "cannot expand a batch");
    /* What filled the cells may be queued on the stream. */
    if (b->staged)
        TSRI_CUDA_TRY(d, cudaStreamWaitEvent(b->bus, b->sent, 0), "cannot wait for an event");
    return 0;
}

int tsri_cuda_batch_set(struct tsr_device *d, struct tsr_device_stream *s,
                        const struct tsr_batch *batch)
{
    struct tsr_device_batch *b = batch->device;
    int err = tsri_cuda_enter(d);
    if (err) return err;
    TSRI_CUDA_TRY(d, cudaEventSynchronize(b->sent), "an earlier batch failed");
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
    for (uint32_t run = 0; run < batch->n_runs; run++) {
        cell += set_run(b, &parts, batch, run, token, cell, &cell_or);
        token += batch->runs[run].n_tokens;
    }
    set_layers(batch, (uint64_t *)(void *)(b->host + parts.layers));
    if (batch->pairing) memcpy(b->host + parts.freq, batch->freq, b->job.n_pairs * sizeof(double));
    choose_paths(b, batch, cell_or);
    b->runs = batch->runs;
    b->n_runs = batch->n_runs;
    b->staged = wants_stage(b, batch);
    return send_batch(d, b, &parts, tsri_cuda_native(s));
}

/* ---- scatter ---- */

int tsri_cuda_batch_used(const struct tsr_device *d, const struct tsr_device_batch *b,
                         const struct tsr_device_stream *s, int e, const char *what)
{
    if (e != cudaSuccess) return tsri_cuda_failed(d, (cudaError_t)e, what);
    TSRI_CUDA_TRY(d, cudaEventRecord(b->used, tsri_cuda_native(s)), "cannot record an event");
    return 0;
}

/* The rows of tokens [first, first + n) of the batch, one layer: as copies, a run of rows of a cell
 * each. Returns how many. */
static size_t list_copies(struct tsr_device_batch *b, uint32_t layer,
                          const struct tsri_cuda_stage *at)
{
    size_t n = 0;
    for (uint32_t p = 0; p < b->job.n_planes; p++) {
        uint32_t token = 0; /* of the batch, at the start of the run */
        for (uint32_t i = 0; i < b->n_runs; token += b->runs[i++].n_tokens) {
            const struct tsr_kv_run *r = &b->runs[i];
            const struct tsr_kv_cells *c = r->cells;
            size_t row = staged_row(b, p);
            uint32_t from = at->first > token ? at->first - token : 0;
            uint32_t end = at->first + at->n_tokens < token + r->n_tokens ? at->first + at->n_tokens
                                                                          : token + r->n_tokens;
            for (uint32_t k = from; token + k < end;) {
                uint32_t t = r->offset + k, in_cell = t % c->cell_tokens;
                uint32_t rows = c->cell_tokens - in_cell;
                if (rows > end - token - k) rows = end - token - k;
                const uint8_t *plane =
                    c->planes[((size_t)layer * c->n_planes + p) * c->n_cells + t / c->cell_tokens];
                b->srcs[n] = plane + in_cell * row;
                b->dsts[n] =
                    (uint8_t *)(uintptr_t)at->base + at->offset[p] + (token + k - at->first) * row;
                b->sizes[n++] = rows * row;
                k += rows;
            }
        }
    }
    return n;
}

static cudaError_t start_copies(struct tsr_device_batch *b, size_t n)
{
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;
    if (n == 0) return cudaSuccess;
    return cudaMemcpyBatchAsync(b->dsts, (const void **)b->srcs, b->sizes, n, &attributes, &first,
                                1, b->bus);
}

/* How many tokens of a layer one buffer and one list of copies hold; at least one. */
static uint32_t piece_tokens(const struct tsr_device_batch *b)
{
    size_t row = staged_token(b);
    uint32_t cell = 64;
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (b->runs[i].cells->cell_tokens < cell) cell = b->runs[i].cells->cell_tokens;
    if (row == 0) return 1; /* never for a checked layout; the analyser cannot know */
    size_t n = STAGE_ROWS_BYTES / row;
    /* Runs may begin and end inside a cell: two more copies each. */
    size_t copies = STAGE_COPIES / (b->job.n_planes ? b->job.n_planes : 1);
    size_t by_copies =
        copies > 2 * (size_t)b->n_runs + 1 ? (copies - 2 * b->n_runs - 1) * cell : cell;
    return (uint32_t)(n < by_copies ? n : by_copies);
}

/* One layer through the two buffers, piece by piece. */
static int scatter_staged(struct tsr_device *d, struct tsr_device_stream *s,
                          struct tsr_device_batch *b, uint32_t layer, int turn)
{
    uint32_t step = piece_tokens(b);
    for (uint32_t first = 0; first < b->job.n_tokens; first += step) {
        struct batch_stage *st = &b->stages[b->next_stage++ % STAGES];
        struct tsri_cuda_stage at = {.base = st->data, .first = first};
        at.n_tokens = b->job.n_tokens - first < step ? b->job.n_tokens - first : step;
        for (uint32_t p = 1; p < b->job.n_planes; p++)
            at.offset[p] =
                (at.offset[p - 1] + at.n_tokens * staged_row(b, p - 1) + STAGE_ALIGN - 1) /
                STAGE_ALIGN * STAGE_ALIGN;
        TSRI_CUDA_TRY(d, cudaStreamWaitEvent(b->bus, st->emptied, 0), "cannot wait for an event");
        TSRI_CUDA_TRY(d, start_copies(b, list_copies(b, layer, &at)),
                      "a batch of copies was refused");
        TSRI_CUDA_TRY(d, cudaEventRecord(st->filled, b->bus), "cannot record an event");
        TSRI_CUDA_TRY(d, cudaStreamWaitEvent(tsri_cuda_native(s), st->filled, 0),
                      "cannot wait for an event");
        TSRI_CUDA_TRY(
            d, (cudaError_t)tsri_cuda_scatter(&b->job, &at, layer, 1, turn, tsri_cuda_native(s)),
            "scatter");
        TSRI_CUDA_TRY(d, cudaEventRecord(st->emptied, tsri_cuda_native(s)),
                      "cannot record an event");
    }
    return 0;
}

static int scatter_any(struct tsr_device *d, struct tsr_device_stream *s,
                       const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers,
                       int turn)
{
    struct tsr_device_batch *b = batch->device;
    int err = tsri_cuda_enter(d);
    if (err) return err;
    int e = cudaSuccess;
    if (!b->staged)
        e = tsri_cuda_scatter(&b->job, NULL, layer_first, n_layers, turn, tsri_cuda_native(s));
    for (uint32_t l = 0; b->staged && l < n_layers && !err; l++)
        err = scatter_staged(d, s, b, layer_first + l, turn);
    return err ? err : tsri_cuda_batch_used(d, b, s, e, "scatter");
}

int tsri_cuda_batch_scatter(struct tsr_device *d, struct tsr_device_stream *s,
                            const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers)
{
    return scatter_any(d, s, batch, layer_first, n_layers, 0);
}

int tsri_cuda_batch_rotate(struct tsr_device *d, struct tsr_device_stream *s,
                           const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers)
{
    return scatter_any(d, s, batch, layer_first, n_layers, 1);
}

const struct tsri_cuda_job *tsri_cuda_batch_job(const struct tsr_device_batch *b)
{
    return &b->job;
}
