/* ascend_nn.h - CANN's operators (aclnn) for the device "npu", behind the option device_operators.
 * They have never run on an NPU either, so none is trusted: when the device is opened, each one is
 * tried on a few rows and compared with the processor. An operator that is missing, refuses or
 * gives other results is not used, and the processor does its work, as it does without the option.
 *
 *   rotation   Cast to float, RotaryPositionEmbedding, Cast back
 *   int8       Cast to float, Mul by the scales, Cast to the engine's dtype (loads only)
 *   scatter    ScatterPaKvCache: K and V of many tokens to their slots
 *   gather     IndexSelect: rows of many slots
 *
 * Every operator is two calls. The first takes tensors and says how much workspace it wants; the
 * second queues it. The first makes an executor that the second uses up.
 *
 * The declarations are our own, from CANN's documents: torch_npu's wheel has no aclnn headers.
 * tests/device/test_ascend_headers.sh compares them with a CANN toolkit where there is one.
 *
 * Threads: operators are queued under ops->lock, by any thread.
 * Memory:  areas and workspaces belong to the device; an area is idle when it is taken.
 * Errors:  a function that fails has set a message, and has queued a part of its work or nothing.
 */
#ifndef TSRI_ASCEND_NN_H
#define TSRI_ASCEND_NN_H

#include "device/ascend.h"

enum tsri_acl_dtype { /* aclDataType */
                      TSRI_ACL_F32 = 0,
                      TSRI_ACL_F16 = 1,
                      TSRI_ACL_INT8 = 2,
                      TSRI_ACL_INT64 = 9,
                      TSRI_ACL_BF16 = 27
};
enum { TSRI_ACL_ND = 2 };                              /* aclFormat */
enum { TSRI_ACL_ROPE_HALF, TSRI_ACL_ROPE_INTERLEAVE }; /* mode of RotaryPositionEmbedding */

/* Tensors and executors are void *. Everything may be missing. */
/* clang-format off */
#define TSRI_ACLNN_BASE(X) \
    X(aclCreateTensor, void *, (const int64_t *dims, uint64_t n_dims, enum tsri_acl_dtype dtype, \
                                const int64_t *strides, int64_t offset, int format, \
                                const int64_t *storage_dims, uint64_t n_storage_dims, void *data)) \
    X(aclDestroyTensor, int, (const void *tensor)) \
    X(aclSetAclOpExecutorRepeatable, int, (void *executor)) \
    X(aclDestroyAclOpExecutor, int, (void *executor))
/* name, what the first call takes before the two results */
#define TSRI_ACLNN_OPERATORS(X) \
    X(aclnnCast, const void *self, enum tsri_acl_dtype dtype, void *out) \
    X(aclnnMul, const void *self, const void *other, void *out) \
    X(aclnnRotaryPositionEmbedding, const void *x, const void *cos, const void *sin, int64_t mode, \
      void *out) \
    X(aclnnIndexSelect, const void *self, int64_t dim, const void *index, void *out) \
    X(aclnnScatterPaKvCache, const void *key, void *key_cache, const void *slots, \
      const void *value, void *value_cache, const void *compress_lens, \
      const void *compress_offsets, const void *lens, char *cache_mode, char *scatter_mode, \
      const void *strides, const void *offsets)
/* clang-format on */

typedef int (*tsri_aclnn_run_fn)(void *workspace, uint64_t bytes, void *executor, void *stream);

#define TSRI_ACLNN_MEMBERS(name, ...) \
    int (*name##GetWorkspaceSize)(__VA_ARGS__, uint64_t * workspace_bytes, void **executor); \
    tsri_aclnn_run_fn name;
struct tsri_aclnn {
    TSRI_ACLNN_BASE(TSRI_ACL_MEMBER)
    TSRI_ACLNN_OPERATORS(TSRI_ACLNN_MEMBERS)
};

/* What was tried and found right. */
enum tsri_ascend_can {
    TSRI_CAN_ROTATE = 1,
    TSRI_CAN_WIDEN = 2, /* int8 */
    TSRI_CAN_SCATTER = 4,
    TSRI_CAN_GATHER = 8,
    TSRI_CAN_ALL = 15
};

/* Areas of device memory that rows pass through, each with page-locked memory for its slots and
 * tables. `used` is behind the last operation on it. */
#define TSRI_ASCEND_AREAS 2u
#define TSRI_ASCEND_AREA_BYTES ((size_t)16 << 20)
#define TSRI_ASCEND_AREA_SMALL ((size_t)96 << 10) /* with small buffers, in tests */
/* At the begin of an area and in its page-locked memory: slots, cos, sin. */
#define TSRI_ASCEND_TOKENS_MAX 999u /* of one call: RotaryPositionEmbedding takes no more */
#define TSRI_ASCEND_ROPE_MAX 894u   /* elements of a head that it takes */
#define TSRI_ASCEND_TABLE_BYTES ((size_t)4096)
#define TSRI_ASCEND_TABLES_BYTES (8192 + 2 * TSRI_ASCEND_TABLE_BYTES)
#define TSRI_ASCEND_WORKSPACE_MAX ((size_t)256 << 20)
struct tsri_ascend_area {
    uint8_t *data, *host;
    void *workspace;
    size_t workspace_bytes;
    struct tsr_device_event used;
};

struct tsri_ascend_ops {
    struct tsri_aclnn nn;
    atomic_uint can;           /* enum tsri_ascend_can; 0 after one has failed */
    _Atomic(const char *) why; /* none is used any more; a literal */
    pthread_mutex_t lock;      /* all below; held while a run is queued */
    size_t area_bytes;         /* smaller in tests */
    struct tsri_ascend_area areas[TSRI_ASCEND_AREAS];
    uint32_t next;
};

/* ---- ascend_nn.c ---- */

/* Opens the operators' libraries and allocates areas. *out stays NULL where there are none; the
 * reason is the thread's message. */
int tsri_ascend_ops_open(struct tsr_device *d, struct tsri_ascend_ops **out);
void tsri_ascend_ops_close(struct tsr_device *d, struct tsri_ascend_ops *o);
/* Not used any more, whatever the reason. */
void tsri_ascend_ops_stop(struct tsri_ascend_ops *o, const char *why);

/* A view of device memory, strides in elements; at most four axes. */
struct tsri_ascend_tensor {
    void *data;
    enum tsri_acl_dtype dtype;
    uint32_t n_dims;
    int64_t dims[4], strides[4];
    int64_t offset; /* of the first element */
};
/* Without gaps. */
struct tsri_ascend_tensor tsri_ascend_dense(void *data, enum tsri_acl_dtype dtype, uint32_t n_dims,
                                            const int64_t *dims);

/* One operator on a stream; the area's workspace is used. */
struct tsri_ascend_call {
    struct tsr_device *d;
    struct tsr_device_stream *s;
    struct tsri_ascend_area *area;
};
int tsri_ascend_cast(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *from,
                     const struct tsri_ascend_tensor *to);
int tsri_ascend_mul(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *a,
                    const struct tsri_ascend_tensor *b, const struct tsri_ascend_tensor *to);
/* table: cos, sin */
int tsri_ascend_rope(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *from,
                     const struct tsri_ascend_tensor table[2], int64_t mode,
                     const struct tsri_ascend_tensor *to);
int tsri_ascend_select(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *from,
                       const struct tsri_ascend_tensor *index, const struct tsri_ascend_tensor *to);
/* rows and caches: K, V */
int tsri_ascend_paged(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor rows[2],
                      const struct tsri_ascend_tensor *slots,
                      const struct tsri_ascend_tensor caches[2]);

/* ---- ascend_ops.c ---- */

/* What of a batch moves. */
struct tsri_ascend_run {
    const struct tsr_batch *batch;
    bool to_engine;
    uint32_t layer, run;
};
/* Moves a run of one layer, all planes, if operators can and it is worth it; *done: it was. An
 * operator that fails is no error: operators are not used any more, and *done is false. */
int tsri_ascend_ops_move(struct tsr_device *d, struct tsr_device_stream *s,
                         const struct tsri_ascend_run *r, bool *done);

/* ---- ascend_probe.c ---- */

/* Tries every operator, and sets o->can. */
int tsri_ascend_ops_probe(struct tsr_device *d, struct tsri_ascend_ops *o);

#endif
