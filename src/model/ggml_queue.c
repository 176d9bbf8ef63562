/* ggml_queue.c - what a session sends to its backend: graphs, and bytes to and from tensors. All of
 * it passes through here, for two reasons. Where memory is apart from the host's, graphs are queued
 * and run while the host builds the next one; ggml copies bytes on a stream of its own, so a copy
 * must wait until the graphs before it are done, and here no copy forgets that. And every wait is
 * counted: a wait a layer costs an accelerator more than the layer of a short question. */
#include "model/model.h"

void tsri_queue_wait(struct tsri_ggml_queue *q)
{
    if (!q->busy) return;
    ggml_backend_synchronize(q->backend);
    q->busy = false;
    q->n.waits++;
}

int tsri_queue_compute(struct tsri_ggml_queue *q, struct ggml_cgraph *graph)
{
    q->n.graphs++;
    if (!q->apart)
        return ggml_backend_graph_compute(q->backend, graph) == GGML_STATUS_SUCCESS ? 0
                                                                                    : TSR_EDEVICE;
    q->busy = true;
    return ggml_backend_graph_compute_async(q->backend, graph) == GGML_STATUS_SUCCESS ? 0
                                                                                      : TSR_EDEVICE;
}

void tsri_queue_put(struct tsri_ggml_queue *q, struct ggml_tensor *to, const void *from, size_t at,
                    size_t bytes)
{
    tsri_queue_wait(q);
    q->n.puts++;
    ggml_backend_tensor_set(to, from, at, bytes);
}

void tsri_queue_zero(struct tsri_ggml_queue *q, struct ggml_tensor *t)
{
    tsri_queue_wait(q);
    q->n.puts++;
    ggml_backend_tensor_memset(t, 0, 0, ggml_nbytes(t));
}

void tsri_queue_get(struct tsri_ggml_queue *q, const struct ggml_tensor *from, void *to,
                    size_t bytes)
{
    tsri_queue_wait(q);
    q->n.gets++;
    ggml_backend_tensor_get(from, to, 0, bytes);
}
