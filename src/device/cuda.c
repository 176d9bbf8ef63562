/* cuda.c - the CUDA device's host half: memory, streams, events and the table of operations;
 * batches are in cuda_batch.c, the buffers they share in cuda_stage.c. Built into
 * libtessera-cuda.so with the kernels of cuda_kv.cu and cuda_select.cu; the core loads it with
 * dlopen and finds tsr_device_cuda. Nothing here waits for the device except where the name says
 * so. */
#include "device/cuda_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The runtime's own waits hold a core for as long as they last, and a load of 32K tokens lasts 80
 * ms. What is over soon is looked at all the time, the rest every now and then. */
#define SPIN_NS 100000
#define PAUSE_NS 50000

/* ---- errors ---- */

static int code_of(cudaError_t e)
{
    if (e == cudaErrorMemoryAllocation) return TSR_ENOMEM;
    return TSR_EDEVICE;
}

int tsri_cuda_failed(const struct tsr_device *d, cudaError_t e, const char *what)
{
    char text[256];
    snprintf(text, sizeof text, "cuda: %s: %s", what, cudaGetErrorString(e));
    cudaGetLastError(); /* not sticky errors are forgotten, so that the next call starts clean */
    return d->fail(code_of(e), text);
}

int tsri_cuda_enter(const struct tsr_device *d)
{
    TSRI_CUDA_TRY(d, cudaSetDevice(d->ordinal), "cannot use the device");
    return 0;
}

enum cudaStreamCaptureMode tsri_cuda_relax(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void tsri_cuda_restore(enum cudaStreamCaptureMode mode)
{
    cudaThreadExchangeStreamCaptureMode(&mode);
}

/* A call that takes, gives back or waits for something. */
#define RELAXED(call) \
    do { \
        enum cudaStreamCaptureMode relaxed_mode = tsri_cuda_relax(); \
        (call); \
        tsri_cuda_restore(relaxed_mode); \
    } while (0)

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Until the event, or without one the stream, has passed. */
static cudaError_t await(cudaStream_t stream, cudaEvent_t event)
{
    int64_t spin_until = now_ns() + SPIN_NS;
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    cudaError_t e;
    for (;;) {
        RELAXED(e = event ? cudaEventQuery(event) : cudaStreamQuery(stream));
        if (e != cudaErrorNotReady) return e;
        cudaGetLastError(); /* not ready is remembered like an error */
        if (now_ns() > spin_until) nanosleep(&pause, NULL);
    }
}

/* ---- open ---- */

static int cuda_open(struct tsr_device **out, const struct tsr_device_desc *desc)
{
    struct tsr_device *d = calloc(1, sizeof *d);
    if (!d) return desc->fail(TSR_ENOMEM, "cuda: out of memory");
    d->fail = desc->fail;
    d->ordinal = (int)desc->ordinal;
    int n = 0, err = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess)
        err = tsri_cuda_failed(d, e, "no usable driver");
    else if (d->ordinal >= n)
        err = desc->fail(TSR_EDEVICE, "cuda: no such device number");
    if (!err) err = tsri_cuda_enter(d);
    if (!err) {
        e = cudaGetDeviceProperties(&d->prop, d->ordinal);
        if (e != cudaSuccess) err = tsri_cuda_failed(d, e, "cannot read the device's properties");
    }
    if (err) {
        free(d);
        return err;
    }
    tsri_cuda_staging_init(d);
    *out = d;
    return 0;
}

static void cuda_close(struct tsr_device *d)
{
    tsri_cuda_staging_fini(d);
    free(d);
}

static int cuda_info(struct tsr_device *d, struct tsr_device_info *out)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    size_t n_free = 0, n_total = 0;
    TSRI_CUDA_TRY(d, cudaMemGetInfo(&n_free, &n_total), "cannot read free memory");
    int driver = 0;
    TSRI_CUDA_TRY(d, cudaDriverGetVersion(&driver), "cannot ask the driver");
    snprintf(out->text, sizeof out->text, "%.40s, sm_%d%d, %d multiprocessors, driver %d.%d",
             d->prop.name, d->prop.major, d->prop.minor, d->prop.multiProcessorCount, driver / 1000,
             driver % 1000 / 10);
    out->bytes_total = n_total;
    out->bytes_free = n_free;
    return 0;
}

/* ---- memory ---- */

static int cuda_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    cudaError_t e;
    RELAXED(e = cudaMalloc(out, bytes));
    TSRI_CUDA_TRY(d, e, "cannot allocate device memory");
    return 0;
}

static void cuda_free(struct tsr_device *d, void *p)
{
    if (tsri_cuda_enter(d) == 0) RELAXED(cudaFree(p));
}

static int cuda_host_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    cudaError_t e;
    RELAXED(e = cudaHostAlloc(out, bytes, cudaHostAllocPortable));
    TSRI_CUDA_TRY(d, e, "cannot allocate page-locked memory");
    return 0;
}

static void cuda_host_free(struct tsr_device *d, void *p)
{
    if (tsri_cuda_enter(d) == 0) RELAXED(cudaFreeHost(p));
}

/* A pool that another process owns is mapped read-only, and only the read-only flag can lock that.
 */
static int cuda_host_register(struct tsr_device *d, void *p, size_t bytes)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    cudaError_t e;
    RELAXED(e = cudaHostRegister(p, bytes, flags));
    if (e == cudaSuccess) return 0;
    cudaGetLastError();
    RELAXED(e = cudaHostRegister(p, bytes, flags | cudaHostRegisterReadOnly));
    TSRI_CUDA_TRY(d, e, "cannot page-lock memory");
    return 0;
}

static void cuda_host_unregister(struct tsr_device *d, void *p)
{
    if (tsri_cuda_enter(d) == 0) RELAXED(cudaHostUnregister(p));
}

/* ---- streams and events ---- */

/* On current devices the lowest priority is also the default, which most engines use: a stream
 * cannot have less than they have. It gives way to streams that asked for more. What keeps saves out
 * of an engine's way everywhere is that copy engines move their bytes. */
static cudaError_t new_stream(cudaStream_t *out, uint32_t flags)
{
    int lowest = 0, highest = 0;
    cudaError_t e = cudaSuccess;
    if (flags & TSR_STREAM_LOW) e = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    if (e != cudaSuccess) return e;
    return cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, lowest);
}

static int cuda_stream_open(struct tsr_device *d, struct tsr_device_stream **out, void *native,
                            uint32_t flags)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    struct tsr_device_stream *s = calloc(1, sizeof *s);
    if (!s) return d->fail(TSR_ENOMEM, "cuda: out of memory");
    s->native = (cudaStream_t)native;
    s->owned = !native;
    cudaError_t e = native ? cudaSuccess : new_stream(&s->native, flags);
    if (e != cudaSuccess) {
        free(s);
        return tsri_cuda_failed(d, e, "cannot create a stream");
    }
    *out = s;
    return 0;
}

static void cuda_stream_close(struct tsr_device *d, struct tsr_device_stream *s)
{
    if (s->owned && tsri_cuda_enter(d) == 0) cudaStreamDestroy(s->native);
    free(s);
}

static int cuda_stream_sync(struct tsr_device *d, struct tsr_device_stream *s)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    TSRI_CUDA_TRY(d, await(tsri_cuda_native(s), NULL), "the stream failed");
    return 0;
}

static int cuda_event_open(struct tsr_device *d, struct tsr_device_event **out)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    struct tsr_device_event *event = calloc(1, sizeof *event);
    if (!event) return d->fail(TSR_ENOMEM, "cuda: out of memory");
    cudaError_t e = cudaEventCreateWithFlags(&event->native, cudaEventDisableTiming);
    if (e != cudaSuccess) {
        free(event);
        return tsri_cuda_failed(d, e, "cannot create an event");
    }
    *out = event;
    return 0;
}

static void cuda_event_close(struct tsr_device *d, struct tsr_device_event *e)
{
    if (tsri_cuda_enter(d) == 0) cudaEventDestroy(e->native);
    free(e);
}

static int cuda_event_record(struct tsr_device *d, struct tsr_device_event *e,
                             struct tsr_device_stream *s)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    TSRI_CUDA_TRY(d, cudaEventRecord(e->native, tsri_cuda_native(s)), "cannot record an event");
    return 0;
}

static int cuda_event_wait(struct tsr_device *d, struct tsr_device_event *e,
                           struct tsr_device_stream *s)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    TSRI_CUDA_TRY(d, cudaStreamWaitEvent(tsri_cuda_native(s), e->native, 0),
                  "cannot wait for an event");
    return 0;
}

static int cuda_event_sync(struct tsr_device *d, struct tsr_device_event *e)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    TSRI_CUDA_TRY(d, await(NULL, e->native), "an event failed");
    return 0;
}

static int cuda_copy(struct tsr_device *d, struct tsr_device_stream *s,
                     const struct tsr_copy *copies, size_t n)
{
    int err = tsri_cuda_enter(d);
    for (size_t i = 0; i < n && !err; i++) {
        cudaError_t e = cudaMemcpyAsync(copies[i].dst, copies[i].src, copies[i].bytes,
                                        cudaMemcpyDefault, tsri_cuda_native(s));
        if (e != cudaSuccess) err = tsri_cuda_failed(d, e, "a copy was refused");
    }
    return err;
}

/* ---- operations ---- */

static int launched(const struct tsr_device *d, int e, const char *what)
{
    return e == cudaSuccess ? 0 : tsri_cuda_failed(d, (cudaError_t)e, what);
}

static int cuda_top_k(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t)
{
    int err = tsri_cuda_enter(d);
    if (err) return err;
    return launched(d, tsri_cuda_top_k(t, tsri_cuda_native(s)), "top-k");
}

extern const struct tsr_device_ops tsr_device_cuda;
TSR_API const struct tsr_device_ops tsr_device_cuda = {
    .abi = TSR_DEVICE_ABI,
    .caps = TSR_DEVICE_ASYNC | TSR_DEVICE_SEPARATE | TSR_DEVICE_NEEDS_LOCK | TSR_DEVICE_OWN_ANGLES,
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_sync = cuda_stream_sync,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .copy = cuda_copy,
    .batch_open = tsri_cuda_batch_open,
    .batch_close = tsri_cuda_batch_close,
    .batch_set = tsri_cuda_batch_set,
    .gather = tsri_cuda_batch_gather,
    .scatter = tsri_cuda_batch_scatter,
    .scatter_rotate = tsri_cuda_batch_rotate,
    .top_k = cuda_top_k,
};
