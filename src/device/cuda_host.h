/* cuda_host.h - what the two host files of the CUDA device share: its handles, and how they report
 * a failed CUDA call. */
#ifndef TSRI_CUDA_HOST_H
#define TSRI_CUDA_HOST_H

#include "device/cuda.h"

#include <cuda_runtime_api.h>

struct tsr_device {
    int (*fail)(int err, const char *text);
    int ordinal;
    struct cudaDeviceProp prop;
};

struct tsr_device_stream {
    cudaStream_t native;
    int owned;
};

struct tsr_device_event {
    cudaEvent_t native;
};

/* Sets the message and returns the error of the library for a CUDA error. */
int tsri_cuda_failed(const struct tsr_device *d, cudaError_t e, const char *what);
#define TSRI_CUDA_TRY(d, call, what) \
    do { \
        cudaError_t try_e = (call); \
        if (try_e != cudaSuccess) return tsri_cuda_failed(d, try_e, what); \
    } while (0)
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
/* Behind a launch that reads the batch's tables and gave e: what the operation returns. */
int tsri_cuda_batch_used(const struct tsr_device *d, const struct tsr_device_batch *b,
                         const struct tsr_device_stream *s, int e, const char *what);
const struct tsri_cuda_job *tsri_cuda_batch_job(const struct tsr_device_batch *b);

#endif
