/* compute_kit.h - runs a tensor of a context by ggml on so many threads, for the tests of our kernels. */
#ifndef TSRI_TEST_COMPUTE_KIT_H
#define TSRI_TEST_COMPUTE_KIT_H

#include "model/model.h"
#include "support/test.h"

static const float *kit_compute(struct ggml_context *ctx, struct ggml_tensor *y, int threads)
{
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, y);
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                      "ggml_backend_set_n_threads");
    ggml_backend_set_n_threads_t set_threads;
    memcpy(&set_threads, &address, sizeof set_threads);
    CHECK(backend && set_threads);
    set_threads(backend, threads);
    CHECK_INT(ggml_backend_graph_compute(backend, graph), GGML_STATUS_SUCCESS);
    ggml_backend_free(backend);
    return y->data;
}

#endif
