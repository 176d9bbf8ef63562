/* nn.h - what the files of the fake libopapi.so share (support/fakeacl.h): tensors, executors, and what
 * an operator is.
 *
 * Threads: everything is called with fake.lock held, apart from what runs on a stream. */
#ifndef FAKEOPAPI_NN_H
#define FAKEOPAPI_NN_H

#include "device/ascend_nn.h"
#include "fakeacl/parts.h"

#define NN_DIMS 5u
#define NN_TENSORS 5u
#define NN_REFUSED 161002 /* ACLNN_ERR_PARAM_INVALID */

struct nn_tensor {
    uint64_t magic;
    void *data;
    enum tsri_acl_dtype dtype;
    uint32_t n_dims;
    int64_t dims[NN_DIMS], strides[NN_DIMS], offset;
};

struct nn_task;
struct nn_operator {
    const char *name;
    uint32_t n_tensors;
    uint32_t written; /* a bit for each tensor that it writes all of */
    uint32_t paged;   /* a bit for each tensor of which it touches the rows of slots */
    uint32_t slots;   /* which of them those are */
    /* Stops the process at what CANN's documents do not allow; returns bytes of workspace. */
    uint64_t (*check)(const struct nn_task *t);
    void (*run)(const struct nn_task *t);
};

/* An operator with its tensors: an executor, and what is queued in the end. */
struct nn_task {
    uint64_t magic;
    const struct nn_operator *op;
    const struct nn_tensor *given[NN_TENSORS]; /* that must be there at the second call */
    struct nn_tensor tensors[NN_TENSORS];
    uint8_t *bytes[NN_TENSORS]; /* where the host sees each tensor's first element */
    int64_t mode;
    bool wrong;
    bool repeatable;
    uint64_t workspace_bytes;
    uint8_t *workspace;
};

/* ---- tensors.c ---- */

size_t nn_size(enum tsri_acl_dtype dtype);
int64_t nn_count(const struct nn_tensor *t);
bool nn_dense(const struct nn_tensor *t);
bool nn_same_dims(const struct nn_tensor *a, const struct nn_tensor *b);
/* The tensor behind a handle, or the end. */
const struct nn_tensor *nn_tensor(const char *name, const void *handle);
/* From its first to behind its last element. */
struct fake_span nn_span(const struct nn_tensor *t);
/* In elements from the first one, for the i-th in row-major order. Axes of one element are
 * repeated where `as` has more. */
int64_t nn_at(const struct nn_tensor *t, const struct nn_tensor *as, int64_t i);

/* ---- compute.c ---- */

extern const struct nn_operator nn_cast, nn_mul, nn_rope, nn_select, nn_paged;

#endif
