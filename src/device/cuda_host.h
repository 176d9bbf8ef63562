/* cuda_host.h - what the host files of the CUDA device share: its handles, and how they report a
 * failed CUDA call.
 *
 * Threads: a device is used from any thread; only its staging has state that changes, behind a lock
 *          for each direction. A batch is used by one thread at a time.
 * Memory:  staging belongs to the device and is taken when a batch first needs it.
 * Errors:  functions return 0 or an error of the library, with its message set. */
#ifndef TSRI_CUDA_HOST_H
#define TSRI_CUDA_HOST_H

#include "device/cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* Which way rows go over the bus. Both at once is twice the bytes, so each has buffers, a stream and
 * a lock of its own. */
enum tsri_cuda_way { TSRI_CUDA_IN = 0, TSRI_CUDA_OUT = 1, TSRI_CUDA_WAYS = 2 };

/* Device memory that Tessera takes beyond an engine's budget: TSRI_CUDA_BUFFERS of
 * TSRI_CUDA_BUFFER_BYTES for each direction, 96 MiB in all (docs/engines.md says so).
 * 16 MiB is 0.3 ms of the bus, a hundred times what changing buffers costs. The bus fills one
 * buffer while a kernel empties another; the third is for kernels that come late because an engine
 * keeps the multiprocessors busy. */
#define TSRI_CUDA_BUFFERS 3u
#define TSRI_CUDA_BUFFER_BYTES ((size_t)16 << 20)
/* Copies of one piece at most: twice as many as fill a buffer at the least size that is copied. */
#define TSRI_CUDA_COPIES 1024u

struct tsri_cuda_buffer {
    uint8_t *data;
    cudaEvent_t filled, emptied;
};

/* One direction. All but the lock is only touched with the lock held. */
struct tsri_cuda_staging {
    pthread_mutex_t lock;
    int is_open;
    cudaStream_t bus; /* copies over the bus, and nothing else */
    struct tsri_cuda_buffer buffers[TSRI_CUDA_BUFFERS];
    uint32_t next; /* the buffer whose turn it is, modulo their number */
    void *dsts[TSRI_CUDA_COPIES];
    const void *srcs[TSRI_CUDA_COPIES];
    size_t sizes[TSRI_CUDA_COPIES];
};

struct tsr_device {
    int (*fail)(int err, const char *text);
    int ordinal;
    struct cudaDeviceProp prop;
    struct tsri_cuda_staging staging[TSRI_CUDA_WAYS];
};

struct tsr_device_stream {
    cudaStream_t native;
    int owned;
};

struct tsr_device_event {
    cudaEvent_t native;
};

struct tsr_device_batch {
    struct tsr_batch_limits limits;
    uint8_t *host, *device;
    size_t bytes;
    cudaEvent_t sent, used; /* behind the copy of the tables; behind the last kernel on them */
    struct tsri_cuda_job job;
    const struct tsr_kv_run *runs;
    uint32_t n_runs, n_cells;
    uint32_t staged;      /* cells go over the bus in copies, not in loads of a kernel: 0 not, 1 to
                           * the device, 2 both ways */
    uint32_t staged_int8; /* all of them in the int8 form, or none */
    uint32_t skips;       /* a slot is -1: a copy out would write a row that nobody asked for */
    uint32_t followed;    /* the bus waits for what filled the cells */
};

/* Sets the message and returns the error of the library for a CUDA error. */
int tsri_cuda_failed(const struct tsr_device *d, cudaError_t e, const char *what);
#define TSRI_CUDA_TRY(d, call, what) \
    do { \
        cudaError_t try_e = (call); \
        if (try_e != cudaSuccess) return tsri_cuda_failed(d, try_e, what); \
    } while (0)
/* While a thread of the engine captures a graph, calls that take or wait for something are refused
 * on every other thread, and spoil the capture. This says that ours have nothing to do with it;
 * hand the result to tsri_cuda_restore. */
enum cudaStreamCaptureMode tsri_cuda_relax(void);
void tsri_cuda_restore(enum cudaStreamCaptureMode mode);
/* Every entry point may be called on a thread that has another device current. */
int tsri_cuda_enter(const struct tsr_device *d);
static inline cudaStream_t tsri_cuda_native(const struct tsr_device_stream *s)
{
    return s ? s->native : NULL;
}

/* cuda_batch.c */
int tsri_cuda_batch_open(struct tsr_device *d, struct tsr_device_batch **out,
                         const struct tsr_batch_limits *limits);
void tsri_cuda_batch_close(struct tsr_device *d, struct tsr_device_batch *b);
int tsri_cuda_batch_set(struct tsr_device *d, struct tsr_device_stream *s,
                        const struct tsr_batch *batch);
int tsri_cuda_batch_scatter(struct tsr_device *d, struct tsr_device_stream *s,
                            const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers);
int tsri_cuda_batch_rotate(struct tsr_device *d, struct tsr_device_stream *s,
                           const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers);
int tsri_cuda_batch_gather(struct tsr_device *d, struct tsr_device_stream *s,
                           const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers);

/* cuda_stage.c */
void tsri_cuda_staging_init(struct tsr_device *d);
void tsri_cuda_staging_fini(struct tsr_device *d);
/* Takes buffers and stream of a direction unless they are there. 0, or there is no memory. */
int tsri_cuda_staging_open(struct tsr_device *d, enum tsri_cuda_way way);
/* Whether staging the rows of a batch that was set pays: `staged` of it. */
int tsri_cuda_wants_stage(const struct tsr_device_batch *b, const struct tsr_batch *batch);

struct tsri_cuda_move {
    enum tsri_cuda_way way;
    uint32_t layer_first, n_layers;
    int turn;
};
/* Queues layers of a batch through the buffers. What is queued on the stream afterwards comes after
 * them. When it fails, what it had queued has been waited for. */
int tsri_cuda_staged(struct tsr_device *d, struct tsr_device_batch *b, cudaStream_t stream,
                     const struct tsri_cuda_move *m);

#endif
