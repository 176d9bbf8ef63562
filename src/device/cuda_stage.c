/* cuda_stage.c - the buffers of the CUDA device between cells and kernels. A copy engine moves 98 %
 * of what the bus can, a kernel's loads and stores 91 to 94 % (bench_cuda), and while a kernel waits
 * for the bus it holds multiprocessors that an engine could use. So where rows come in long runs,
 * copy engines move them between the cells and a buffer, and a kernel moves them between the buffer
 * and the engine's memory.
 *
 * A direction has a few buffers that take turns, and one stream, the bus, that only copies. All
 * batches of a device share them, piece by piece. A piece is what one buffer holds: layers of all
 * tokens, or tokens of one layer. The lock of the direction is held while one piece is queued, so
 * pieces of several threads follow one another on the bus; nothing waits for the device meanwhile.
 *
 * Two events a buffer keep the order. In (load), on the bus and the batch's stream:
 *     bus:    wait emptied, copy cells to buffer, record filled
 *     stream: wait filled, kernel reads buffer, record emptied
 * Out (save):
 *     stream: wait emptied, kernel writes buffer, record filled
 *     bus:    wait filled, copy buffer to cells, record emptied
 * A wait means the latest record before it, and all records of a piece are made under its lock. So
 * `emptied` is always the one of the piece that had the buffer last, of whatever batch. Every wait
 * is for something that was queued before it: however threads interleave, there is no cycle.
 *
 * What the caller queues on the stream afterwards must come after the copies. In does that by
 * itself: the kernel waits for them. Out makes the stream wait for the last `emptied` of a call: the
 * bus works in order, so that one covers the others. It is not done after every piece, because the
 * next kernel would then not run beside the copies.
 *
 * When a call fails, the piece may be queued by half, and a mark be missing that the next user of
 * the buffer relies on. Then both streams are waited for before the lock is released: the buffer is
 * idle, old marks are true again, and the caller's cells are no longer in use. */
#include "device/cuda_host.h"

#include <stdlib.h>
#include <string.h>

/* Planes begin on 256 bytes in a buffer, wherever the one before ends. */
#define ALIGN ((size_t)256)
/* Copies below this are left to the kernel: a copy engine needs about this much to beat it. To the
 * host an H200 copies 64 KiB at a time at 0.87 of the bus, 256 KiB at 0.98, and its kernels write
 * there at 0.94; to the device 64 KiB are enough for 0.97. */
#define COPY_IN_BYTES ((size_t)32 << 10)
#define COPY_OUT_BYTES ((size_t)128 << 10)
/* Copies of one call to the driver. It holds a lock of the context meanwhile, which an engine's
 * launches need: 256 copies take it about 0.1 ms. */
#define CALL_COPIES 256u

/* ---- open and close ---- */

void tsri_cuda_staging_init(struct tsr_device *d)
{
    for (int i = 0; i < TSRI_CUDA_WAYS; i++)
        pthread_mutex_init(&d->staging[i].lock, NULL);
}

/* Leaves it as it was before it was opened. */
static void close_staging(struct tsri_cuda_staging *g)
{
    if (g->bus) cudaStreamSynchronize(g->bus);
    for (uint32_t i = 0; i < TSRI_CUDA_BUFFERS; i++) {
        struct tsri_cuda_buffer *b = &g->buffers[i];
        if (b->emptied) cudaEventSynchronize(b->emptied);
        if (b->filled) cudaEventDestroy(b->filled);
        if (b->emptied) cudaEventDestroy(b->emptied);
        if (b->data) cudaFree(b->data);
    }
    if (g->bus) cudaStreamDestroy(g->bus);
    memset(g->buffers, 0, sizeof g->buffers);
    g->bus = NULL;
    g->is_open = 0;
}

void tsri_cuda_staging_fini(struct tsr_device *d)
{
    int usable = tsri_cuda_enter(d) == 0;
    for (int i = 0; i < TSRI_CUDA_WAYS; i++) {
        enum cudaStreamCaptureMode mode = tsri_cuda_relax();
        if (usable) close_staging(&d->staging[i]);
        tsri_cuda_restore(mode);
        pthread_mutex_destroy(&d->staging[i].lock);
    }
}

static cudaError_t open_buffers(struct tsri_cuda_staging *g)
{
    cudaError_t e = cudaStreamCreateWithFlags(&g->bus, cudaStreamNonBlocking);
    for (uint32_t i = 0; i < TSRI_CUDA_BUFFERS && e == cudaSuccess; i++) {
        struct tsri_cuda_buffer *b = &g->buffers[i];
        e = cudaMalloc((void **)&b->data, TSRI_CUDA_BUFFER_BYTES);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&b->filled, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&b->emptied, cudaEventDisableTiming);
    }
    return e;
}

int tsri_cuda_staging_open(struct tsr_device *d, enum tsri_cuda_way way)
{
    struct tsri_cuda_staging *g = &d->staging[way];
    int err = 0;
    pthread_mutex_lock(&g->lock);
    if (!g->is_open) {
        enum cudaStreamCaptureMode mode = tsri_cuda_relax();
        cudaError_t e = open_buffers(g);
        if (e != cudaSuccess) {
            err = tsri_cuda_failed(d, e, "no memory for buffers");
            close_staging(g);
        }
        g->is_open = e == cudaSuccess;
        tsri_cuda_restore(mode);
    }
    pthread_mutex_unlock(&g->lock);
    return err;
}

/* ---- what fits ---- */

static size_t staged_row(const struct tsr_device_batch *b, uint32_t plane)
{
    const struct tsri_cuda_plane *p = &b->job.planes[plane];
    return b->staged_int8 ? p->row_bytes_int8 : p->row_bytes;
}

/* The rows of one token of a layer. */
static size_t staged_token(const struct tsr_device_batch *b)
{
    size_t bytes = 0;
    for (uint32_t p = 0; p < b->job.n_planes; p++)
        bytes += staged_row(b, p);
    return bytes;
}

/* Places the planes of n tokens of a layer in a buffer; returns the bytes of a layer. */
static size_t place_planes(const struct tsr_device_batch *b, uint32_t n,
                           uint64_t offset[TSR_KV_PLANES_MAX])
{
    size_t at = 0;
    for (uint32_t p = 0; p < b->job.n_planes; p++) {
        offset[p] = at;
        at = (at + n * staged_row(b, p) + ALIGN - 1) / ALIGN * ALIGN;
    }
    return at;
}

/* Tokens of one layer that fit into a buffer, whatever alignment adds. */
static uint32_t tokens_max(const struct tsr_device_batch *b)
{
    size_t room = TSRI_CUDA_BUFFER_BYTES, token = staged_token(b);
    for (uint32_t p = 0; p < b->job.n_planes; p++)
        if (staged_row(b, p) % ALIGN) room -= ALIGN;
    return token ? (uint32_t)(room / token) : 0;
}

/* Copies pay when all cells are page-locked host memory and a copy is long on average. In a buffer
 * a token's place is its number times the row, so all rows of a plane must have one size: entries
 * in the int8 form and others are not staged together. */
int tsri_cuda_wants_stage(const struct tsr_device_batch *b, const struct tsr_batch *batch)
{
    size_t copies = (size_t)batch->n_cells * b->job.n_planes;
    if (tokens_max(b) == 0 || copies == 0) return 0;
    for (uint32_t i = 0; i < batch->n_runs; i++) {
        const struct tsr_kv_cells *c = batch->runs[i].cells;
        if (c->memory != TSR_MEMORY_LOCKED || (c->int8 != 0) != b->staged_int8) return 0;
    }
    size_t average = batch->n_tokens * staged_token(b) / copies;
    return average >= COPY_OUT_BYTES ? 2 : average >= COPY_IN_BYTES;
}

/* ---- pieces ---- */

/* Where a walk over the tokens of a batch is. */
struct cursor {
    uint32_t run;   /* n_runs: at the end */
    uint32_t row;   /* token of the run */
    uint32_t token; /* of the batch */
};

/* The rows from here on that lie in one cell, at most n. */
static uint32_t part_rows(const struct tsr_device_batch *b, const struct cursor *c, uint32_t n)
{
    const struct tsr_kv_run *r = &b->runs[c->run];
    uint32_t left = r->n_tokens - c->row;
    uint32_t in_cell = r->cells->cell_tokens - (r->offset + c->row) % r->cells->cell_tokens;
    if (in_cell < left) left = in_cell;
    return left < n ? left : n;
}

static void advance(const struct tsr_device_batch *b, struct cursor *c, uint32_t rows)
{
    c->token += rows;
    c->row += rows;
    if (c->row < b->runs[c->run].n_tokens) return;
    c->row = 0;
    c->run++;
}

/* One buffer full: tokens [from.token, from.token + at.n_tokens) of n_layers layers. */
struct piece {
    struct tsri_cuda_stage at;
    struct cursor from;
    uint32_t n_layers;
    int last; /* of its call */
};

/* How many of n layers go together: as many as fit with all their tokens, at least one. */
static uint32_t layers_together(const struct tsr_device_batch *b, uint32_t n)
{
    uint64_t offset[TSR_KV_PLANES_MAX];
    size_t layer_bytes = place_planes(b, b->job.n_tokens, offset);
    size_t by_bytes = layer_bytes ? TSRI_CUDA_BUFFER_BYTES / layer_bytes : 0;
    size_t copies = (size_t)b->n_cells * b->job.n_planes;
    size_t by_copies = copies ? TSRI_CUDA_COPIES / copies : 0;
    size_t fit = by_bytes < by_copies ? by_bytes : by_copies;
    if (fit == 0) return 1;
    return fit < n ? (uint32_t)fit : n;
}

/* The piece that begins at p->from: as many tokens as the buffer and the list of copies hold.
 * Returns where the next one begins. */
static struct cursor cut_piece(const struct tsr_device_batch *b, struct piece *p)
{
    struct cursor to = p->from;
    uint32_t tokens = tokens_max(b), planes = b->job.n_planes * p->n_layers;
    uint32_t copies = planes ? TSRI_CUDA_COPIES / planes : 0;
    while (to.run < b->n_runs && tokens && copies) {
        uint32_t rows = part_rows(b, &to, tokens);
        advance(b, &to, rows);
        tokens -= rows;
        copies--;
    }
    p->at.first = p->from.token;
    p->at.n_tokens = to.token - p->from.token;
    p->at.layer_bytes = place_planes(b, p->at.n_tokens, p->at.offset);
    return to;
}

/* The copies of one plane of one layer, behind the n that the list has; returns their new number. */
static size_t list_plane(struct tsri_cuda_staging *g, const struct tsr_device_batch *b,
                         const struct piece *p, enum tsri_cuda_way way, uint32_t lp, size_t n)
{
    uint32_t layer = lp / b->job.n_planes, plane = lp % b->job.n_planes;
    size_t row = staged_row(b, plane);
    uint8_t *staged = (uint8_t *)p->at.base + layer * p->at.layer_bytes + p->at.offset[plane];
    struct cursor c = p->from;
    for (uint32_t left = p->at.n_tokens; left;) {
        const struct tsr_kv_run *r = &b->runs[c.run];
        const struct tsr_kv_cells *cells = r->cells;
        uint32_t rows = part_rows(b, &c, left), t = r->offset + c.row;
        size_t idx =
            ((size_t)(p->at.layer_first + layer) * cells->n_planes + plane) * cells->n_cells +
            t / cells->cell_tokens;
        uint8_t *cell = (uint8_t *)cells->planes[idx] + t % cells->cell_tokens * row;
        g->dsts[n] = way == TSRI_CUDA_IN ? staged : cell;
        g->srcs[n] = way == TSRI_CUDA_IN ? cell : staged;
        g->sizes[n++] = rows * row;
        staged += rows * row;
        left -= rows;
        advance(b, &c, rows);
    }
    return n;
}

static cudaError_t start_copies(struct tsri_cuda_staging *g, size_t n)
{
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < n && e == cudaSuccess; i += CALL_COPIES)
        e = cudaMemcpyBatchAsync(g->dsts + i, g->srcs + i, g->sizes + i,
                                 n - i < CALL_COPIES ? n - i : CALL_COPIES, &attributes, &first, 1,
                                 g->bus);
    return e;
}

/* ---- queueing ---- */

static cudaError_t queue_in(struct tsri_cuda_staging *g, struct tsri_cuda_buffer *buffer,
                            const struct tsr_device_batch *b, const struct piece *p,
                            size_t n_copies, int turn, cudaStream_t stream)
{
    cudaError_t e = cudaStreamWaitEvent(g->bus, buffer->emptied, 0);
    if (e == cudaSuccess) e = start_copies(g, n_copies);
    if (e == cudaSuccess) e = cudaEventRecord(buffer->filled, g->bus);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(stream, buffer->filled, 0);
    if (e == cudaSuccess)
        e = (cudaError_t)tsri_cuda_scatter(&b->job, &p->at, p->at.layer_first, p->n_layers, turn,
                                           stream);
    if (e == cudaSuccess) e = cudaEventRecord(buffer->emptied, stream);
    return e;
}

static cudaError_t queue_out(struct tsri_cuda_staging *g, struct tsri_cuda_buffer *buffer,
                             const struct tsr_device_batch *b, const struct piece *p,
                             size_t n_copies, cudaStream_t stream)
{
    cudaError_t e = cudaStreamWaitEvent(stream, buffer->emptied, 0);
    if (e == cudaSuccess)
        e = (cudaError_t)tsri_cuda_gather(&b->job, &p->at, p->at.layer_first, p->n_layers, stream);
    if (e == cudaSuccess) e = cudaEventRecord(buffer->filled, stream);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(g->bus, buffer->filled, 0);
    if (e == cudaSuccess) e = start_copies(g, n_copies);
    if (e == cudaSuccess) e = cudaEventRecord(buffer->emptied, g->bus);
    if (e == cudaSuccess && p->last) e = cudaStreamWaitEvent(stream, buffer->emptied, 0);
    return e;
}

/* With the lock held. What filled the cells may be queued on the stream the batch was set on: the
 * bus waits for the tables, which were sent after it, before the batch's first copy. */
static cudaError_t queue_piece(struct tsri_cuda_staging *g, struct tsr_device_batch *b,
                               cudaStream_t stream, const struct tsri_cuda_move *m, struct piece *p)
{
    struct tsri_cuda_buffer *buffer = &g->buffers[g->next++ % TSRI_CUDA_BUFFERS];
    cudaError_t e = cudaSuccess;
    p->at.base = buffer->data;
    size_t n = 0;
    for (uint32_t lp = 0; lp < p->n_layers * b->job.n_planes; lp++)
        n = list_plane(g, b, p, m->way, lp, n);
    if (m->way == TSRI_CUDA_IN && !b->followed) e = cudaStreamWaitEvent(g->bus, b->sent, 0);
    if (e == cudaSuccess && m->way == TSRI_CUDA_IN) {
        b->followed = 1;
        e = queue_in(g, buffer, b, p, n, m->turn, stream);
    } else if (e == cudaSuccess) {
        e = queue_out(g, buffer, b, p, n, stream);
    }
    if (e != cudaSuccess) {
        enum cudaStreamCaptureMode mode = tsri_cuda_relax();
        cudaStreamSynchronize(g->bus);
        cudaStreamSynchronize(stream);
        tsri_cuda_restore(mode);
    }
    return e;
}

int tsri_cuda_staged(struct tsr_device *d, struct tsr_device_batch *b, cudaStream_t stream,
                     const struct tsri_cuda_move *m)
{
    struct tsri_cuda_staging *g = &d->staging[m->way];
    uint32_t together = layers_together(b, m->n_layers), end = m->layer_first + m->n_layers;
    cudaError_t e = cudaSuccess;
    for (uint32_t layer = m->layer_first; layer < end && e == cudaSuccess; layer += together) {
        struct piece p = {.at.layer_first = layer,
                          .n_layers = end - layer < together ? end - layer : together};
        while (p.from.run < b->n_runs && e == cudaSuccess) {
            struct cursor to = cut_piece(b, &p);
            p.last = to.run == b->n_runs && end - layer <= together;
            pthread_mutex_lock(&g->lock);
            e = queue_piece(g, b, stream, m, &p);
            pthread_mutex_unlock(&g->lock);
            p.from = to;
        }
    }
    if (e == cudaSuccess) return 0;
    return tsri_cuda_failed(d, e,
                            m->way == TSRI_CUDA_IN ? "scatter by copies" : "gather by copies");
}
