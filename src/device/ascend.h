/* ascend.h - the device "npu" for Ascend NPUs: what its files share. It has never run on an NPU: it
 * is tested against a strict fake (tests/fakeacl), and its declarations are compared with the
 * headers in the wheel of torch_npu.
 *
 * AscendCL, CANN's runtime, is opened with dlopen. The declarations here are our own, so nothing of
 * CANN is needed to build. Enums of AscendCL are passed as uint32_t, handles as void *.
 *
 * Threads: a device is used from any thread. Its staging, its list of locked memory and its own
 *          stream have locks; one stream or event is used by one thread at a time.
 * Memory:  staging belongs to the device and is taken when it is first needed.
 * Errors:  functions return 0 or an error of the library, with its message set.
 */
#ifndef TSRI_ASCEND_H
#define TSRI_ASCEND_H

#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- AscendCL ---- */

enum {
    TSRI_ACL_REPEAT_INITIALIZE = 100002, /* another library of this process was first */
    TSRI_ACL_NOT_SUPPORTED = 207000,
    TSRI_ACL_NO_MEMORY = 207001
};
enum { TSRI_ACL_HBM = 1 };                                          /* aclrtMemAttr */
enum { TSRI_ACL_HUGE_FIRST = 0 };                                   /* aclrtMemMallocPolicy */
enum { TSRI_ACL_REGISTER_MAPPED = 0 };                              /* aclrtHostRegisterType */
enum { TSRI_ACL_REG_MAPPED = 2, TSRI_ACL_REG_PINNED = 0x10000000 }; /* of aclrtHostRegisterV2 */
enum { TSRI_ACL_EVENT_SYNC = 1 };
enum { TSRI_ACL_EVENT_COMPLETE = 1 }; /* aclrtEventRecordedStatus */
enum { TSRI_ACL_STREAM_FAST_LAUNCH = 1, TSRI_ACL_STREAM_FAST_SYNC = 2 };
enum { TSRI_ACL_PRIORITY_LEAST = 7 };
enum tsri_acl_kind { /* aclrtMemcpyKind */
                     TSRI_ACL_HOST_TO_DEVICE = 1,
                     TSRI_ACL_DEVICE_TO_HOST = 2,
                     TSRI_ACL_DEVICE_TO_DEVICE = 3
};
enum { /* aclrtMemLocationType */
       TSRI_ACL_AT_HOST = 0,
       TSRI_ACL_AT_DEVICE = 1,
       TSRI_ACL_AT_NO_DEVICE = 2, /* host memory that is not registered */
       TSRI_ACL_AT_NUMA = 4       /* host memory, of a node */
};
enum { TSRI_ACL_PACKAGE_CANN = 0, TSRI_ACL_PACKAGE_DRIVER = 7 }; /* aclCANNPackageName */

struct tsri_acl_location {
    uint32_t id, type;
};
struct tsri_acl_attributes { /* aclrtPtrAttributes */
    struct tsri_acl_location location;
    uint32_t page_bytes;
    uint32_t reserved[4];
};
struct tsri_acl_batch { /* aclrtMemcpyBatchAttr */
    struct tsri_acl_location dst, src;
    uint8_t reserved[16];
};
#define TSRI_ACL_BATCH struct tsri_acl_batch /* theirs has no tag to stand for it */
struct tsri_acl_version {                    /* aclCANNPackageVersion */
    char version[128];
    char parts[4][64];
    char reserved[128];
};

/* Every function that is called, once: name, result, parameters. Those of the second list may be
 * missing in a runtime, and each has a way round it. */
/* clang-format off */
#define TSRI_ACL_NEEDED(X) \
    X(aclInit, int, (const char *config)) \
    X(aclrtGetVersion, int, (int32_t *major, int32_t *minor, int32_t *patch)) \
    X(aclrtGetDeviceCount, int, (uint32_t *count)) \
    X(aclrtGetDevice, int, (int32_t *device)) \
    X(aclrtSetDevice, int, (int32_t device)) \
    X(aclrtGetMemInfo, int, (uint32_t attr, size_t *left, size_t *total)) \
    X(aclrtMalloc, int, (void **out, size_t bytes, uint32_t policy)) \
    X(aclrtFree, int, (void *p)) \
    X(aclrtMallocHost, int, (void **out, size_t bytes)) \
    X(aclrtFreeHost, int, (void *p)) \
    X(aclrtHostRegister, int, (void *p, uint64_t bytes, uint32_t type, void **device)) \
    X(aclrtHostUnregister, int, (void *p)) \
    X(aclrtCreateStreamWithConfig, int, (void **out, uint32_t priority, uint32_t flags)) \
    X(aclrtDestroyStream, int, (void *stream)) \
    X(aclrtSynchronizeStream, int, (void *stream)) \
    X(aclrtCreateEventExWithFlag, int, (void **out, uint32_t flags)) \
    X(aclrtDestroyEvent, int, (void *event)) \
    X(aclrtRecordEvent, int, (void *event, void *stream)) \
    X(aclrtStreamWaitEvent, int, (void *stream, void *event)) \
    X(aclrtQueryEventStatus, int, (void *event, uint32_t *status)) \
    X(aclrtMemcpyAsync, int, (void *dst, size_t dst_max, const void *src, size_t bytes, \
                              uint32_t kind, void *stream))
#define TSRI_ACL_OPTIONAL(X) \
    X(aclGetRecentErrMsg, const char *, (void)) \
    X(aclrtGetSocName, const char *, (void)) \
    X(aclsysGetCANNVersion, int, (uint32_t package, struct tsri_acl_version *out)) \
    X(aclrtHostRegisterV2, int, (void *p, uint64_t bytes, uint32_t flags)) \
    X(aclrtPointerGetAttributes, int, (const void *p, struct tsri_acl_attributes *out)) \
    X(aclrtMemcpyBatchAsync, int, (void **dsts, size_t *dst_maxs, void **srcs, size_t *sizes, \
                                   size_t n, TSRI_ACL_BATCH *attrs, size_t *attr_indexes, \
                                   size_t n_attrs, size_t *fail_index, void *stream))
/* clang-format on */

#define TSRI_ACL_MEMBER(name, result, parameters) result(*name) parameters;
struct tsri_acl {
    TSRI_ACL_NEEDED(TSRI_ACL_MEMBER)
    TSRI_ACL_OPTIONAL(TSRI_ACL_MEMBER)
};

/* ---- handles ---- */

/* Page-locked memory beyond what callers give: TSRI_ASCEND_BUFFERS of TSRI_ASCEND_BUFFER_BYTES.
 * The processor fills one while copies empty the others. */
#define TSRI_ASCEND_BUFFERS 3u
#define TSRI_ASCEND_BUFFER_BYTES ((size_t)8 << 20)
/* Registering more than 200 to 250 GB in one piece fails on some drivers. */
#define TSRI_ASCEND_PIECE_BYTES ((size_t)64 << 30)
/* Copies of one call to the runtime. */
#define TSRI_ASCEND_COPIES 256u

/* Memory the device was told of or gave out: who owns a pointer decides how it is copied. */
struct tsri_ascend_range {
    struct tsri_ascend_range *next;
    uint8_t *p;
    size_t bytes, piece_bytes;
    uint32_t memory; /* TSR_MEMORY_LOCKED or TSR_MEMORY_DEVICE */
};

struct tsr_device_stream {
    void *native;
    bool owned;
    /* Copies into host memory, counted once they are queued, and how many of them somebody has
     * waited for: the processor must not read what the others write. Threads share the device's own
     * stream, so whoever waits answers only for what was counted before. Streams of the engine
     * share one mark, on the device. */
    atomic_uint host_writes, host_settled;
};

struct tsr_device_event {
    void *native;
    bool recorded, writes_host;
};

/* A buffer of page-locked memory; `used` is behind the last copy that reads or writes it. */
struct tsri_ascend_buffer {
    uint8_t *data;
    struct tsr_device_event used;
};

struct tsr_device {
    struct tsri_acl acl;
    int (*fail)(int err, const char *text);
    int32_t ordinal;
    char soc[32], cann[32], driver[32]; /* as they are called; empty: not told */
    int32_t acl_version[3];             /* of AscendCL: major, minor, patch */
    int32_t major;                      /* of CANN; 0: not told */
    atomic_bool batches;                /* use aclrtMemcpyBatchAsync */
    atomic_bool has_pieces;             /* memory was registered in several pieces */
    atomic_bool engine_writes_host;     /* of its streams; stays */
    atomic_bool lost;                   /* nobody can tell whether its work is done; stays */
    size_t piece_bytes, buffer_bytes;   /* smaller in tests */
    const struct tsri_kernels *kernels; /* NULL: the reference */
    struct tsr_device_stream stream;    /* for callers without one */
    pthread_mutex_t ranges_lock;
    struct tsri_ascend_range *ranges;
    pthread_mutex_t staging_lock; /* all below; held while a piece is filled and queued */
    bool staging_open;
    struct tsri_ascend_buffer buffers[TSRI_ASCEND_BUFFERS];
    uint32_t next;               /* the buffer whose turn it is, modulo their number */
    struct tsri_ascend_ops *ops; /* NULL: no operators (ascend_nn.h) */
    char no_ops[64];             /* why there are none; empty: nobody asked for them */
};

/* ---- ascend_load.c ---- */

/* Opens the runtime, checks its version and fills d->acl. */
int tsri_ascend_load(struct tsr_device *d);
/* Sets the message and returns the library's error for one of AscendCL. */
int tsri_ascend_failed(const struct tsr_device *d, int e, const char *what);
#define TSRI_ACL_TRY(d, call, what) \
    do { \
        int try_e = (call); \
        if (try_e) return tsri_ascend_failed(d, try_e, what); \
    } while (0)

/* ---- ascend.c ---- */

/* Every entry point may be called on a thread that has another device current, or none. A device
 * that is lost refuses: what it gave out may be in use, so nothing is freed or unregistered then. */
int tsri_ascend_enter(struct tsr_device *d);
struct tsr_device_stream *tsri_ascend_stream(struct tsr_device *d, struct tsr_device_stream *s);
int tsri_ascend_sync(struct tsr_device *d, struct tsr_device_stream *s);
/* A copy into host memory was queued. */
void tsri_ascend_writes_host(struct tsr_device *d, struct tsr_device_stream *s);
/* Waits until no queued copy writes host memory that the stream's next operation may read. */
int tsri_ascend_settle(struct tsr_device *d, struct tsr_device_stream *s);
/* After a call that queued a part of its work and failed: nothing of it runs any more, or the device
 * is lost. */
int tsri_ascend_abandon(struct tsr_device *d, struct tsr_device_stream *s, int err);
int tsri_ascend_event_init(struct tsr_device *d, struct tsr_device_event *e);
void tsri_ascend_event_fini(struct tsr_device *d, struct tsr_device_event *e);
int tsri_ascend_record(struct tsr_device *d, struct tsr_device_event *e,
                       struct tsr_device_stream *s);
int tsri_ascend_await(struct tsr_device *d, struct tsr_device_event *e);
/* Whether nothing uses any more what the event is behind. If not, the device is lost. */
bool tsri_ascend_is_idle(struct tsr_device *d, struct tsr_device_event *e);

/* ---- ascend_memory.c ---- */

int tsri_ascend_alloc(struct tsr_device *d, void **out, size_t bytes);
void tsri_ascend_free(struct tsr_device *d, void *p);
int tsri_ascend_host_alloc(struct tsr_device *d, void **out, size_t bytes);
void tsri_ascend_host_free(struct tsr_device *d, void *p);
int tsri_ascend_host_register(struct tsr_device *d, void *p, size_t bytes);
void tsri_ascend_host_unregister(struct tsr_device *d, void *p);
/* What kind of memory p is in, and how many bytes from it on are in one piece. Host memory that this
 * device did not lock is plain. TSR_EDEVICE: nobody can tell. */
int tsri_ascend_memory(struct tsr_device *d, const void *p, uint32_t *memory, size_t *bytes);
/* How many bytes from p on are in one registration; memory of others is one piece. */
size_t tsri_ascend_piece_left(struct tsr_device *d, const void *p);

/* ---- ascend_copy.c ---- */

/* Copies on their way to the runtime, all of one kind and on one stream. */
struct tsri_ascend_list {
    struct tsr_device *d;
    struct tsr_device_stream *s;
    enum tsri_acl_kind kind;
    bool to_buffer; /* of staging, whose `used` guards what is written */
    uint32_t n;
    void *dsts[TSRI_ASCEND_COPIES], *srcs[TSRI_ASCEND_COPIES];
    size_t sizes[TSRI_ASCEND_COPIES];
};
void tsri_ascend_list_init(struct tsri_ascend_list *l, struct tsr_device *d,
                           struct tsr_device_stream *s, enum tsri_acl_kind kind);
int tsri_ascend_list_add(struct tsri_ascend_list *l, void *dst, const void *src, size_t bytes);
int tsri_ascend_list_flush(struct tsri_ascend_list *l);

/* Staging: take the lock, then buffers one after the other. Each is idle when it is given. */
int tsri_ascend_staging_take(struct tsr_device *d);
void tsri_ascend_staging_give(struct tsr_device *d);
int tsri_ascend_buffer(struct tsr_device *d, struct tsri_ascend_buffer **out);
void tsri_ascend_staging_fini(struct tsr_device *d);

int tsri_ascend_copy(struct tsr_device *d, struct tsr_device_stream *s,
                     const struct tsr_copy *copies, size_t n);

/* ---- ascend_move.c ---- */

int tsri_ascend_gather(struct tsr_device *d, struct tsr_device_stream *s,
                       const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers);
int tsri_ascend_scatter(struct tsr_device *d, struct tsr_device_stream *s,
                        const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers);
int tsri_ascend_top_k(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t);

#endif
