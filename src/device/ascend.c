/* ascend.c - the device "npu": streams, events and the table of operations. Memory is in
 * ascend_memory.c, copies in ascend_copy.c, gather and scatter in ascend_move.c, the runtime's loading
 * in ascend_load.c. Built as libtessera-ascend.so. It has never run on an NPU.
 *
 * What is copied goes as it is, in copies of the runtime on the caller's stream. What is computed
 * (rotation, int8) is computed by the processor in page-locked staging, with the loops of the cpu
 * device, so that its results are those of the cpu device bit for bit. Computing reads host memory
 * while the call lasts, so copies into host memory that are still queued on the stream are waited
 * for first; `host_writes` of streams and `writes_host` of events follow them.
 *
 * What copies use may be freed when a wait says that they are over. A wait that fails is tried once
 * more. If that fails too, nobody knows what still runs: the device is lost, refuses everything, and
 * leaves all of its memory, streams and events to the end of the process. */
#include "device/ascend_nn.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* As for CUDA: what is over soon is looked at all the time, the rest every now and then. */
#define SPIN_NS 100000u
#define PAUSE_NS 50000

int tsri_ascend_enter(struct tsr_device *d)
{
    int32_t now = -1;
    if (atomic_load(&d->lost))
        return d->fail(TSR_EDEVICE, "npu: a failure left work of which nobody can tell whether it "
                                    "is done; the device is not used any more");
    if (d->acl.aclrtGetDevice(&now) == 0 && now == d->ordinal) return 0;
    TSRI_ACL_TRY(d, d->acl.aclrtSetDevice(d->ordinal), "cannot use the device");
    return 0;
}

/* ---- open and close ---- */

/* Code paths for tests: "reference" computes with the plain loops that are right by definition,
 * "plain" copies one by one where the runtime could take many, "small" has small buffers and
 * registers memory in small pieces, "operators" is the option device_operators, "operators_plain"
 * has plain loops beside it and no self-test, "operators_small" plain loops and small buffers. */
static int choose_variant(struct tsr_device *d, const char *variant)
{
    const struct tsri_kernels *k = &tsri_kernels_plain, *more;
    for (uint32_t i = 0; (more = tsri_kernels_x86(i)) != NULL; i++)
        if (more->supported()) k = more;
    for (uint32_t i = 0; (more = tsri_kernels_arm(i)) != NULL; i++)
        if (more->supported()) k = more;
    d->kernels = k;
    d->piece_bytes = TSRI_ASCEND_PIECE_BYTES;
    d->buffer_bytes = TSRI_ASCEND_BUFFER_BYTES;
    if (!variant) return 0;
    if (strncmp(variant, "operators_", 10) == 0) d->kernels = &tsri_kernels_plain;
    if (strcmp(variant, "reference") == 0)
        d->kernels = NULL;
    else if (strcmp(variant, "plain") == 0)
        atomic_store(&d->batches, false);
    else if (strcmp(variant, "small") == 0 || strcmp(variant, "operators_small") == 0)
        d->piece_bytes = d->buffer_bytes = (size_t)64 << 10;
    else if (strcmp(variant, "operators") != 0 && strcmp(variant, "operators_plain") != 0)
        return d->fail(TSR_EINVAL, "npu: no such variant");
    return 0;
}

static int open_stream(struct tsr_device *d, struct tsr_device_stream *s, uint32_t priority)
{
    s->owned = true;
    TSRI_ACL_TRY(d,
                 d->acl.aclrtCreateStreamWithConfig(
                     &s->native, priority, TSRI_ACL_STREAM_FAST_LAUNCH | TSRI_ACL_STREAM_FAST_SYNC),
                 "cannot create a stream");
    return 0;
}

/* Operators that cannot be had are no error: the processor does their work. */
static void open_operators(struct tsr_device *d, bool trusted)
{
    int err = tsri_ascend_ops_open(d, &d->ops);
    if (!err && trusted) atomic_store(&d->ops->can, TSRI_CAN_ALL);
    if (!err && !trusted) err = tsri_ascend_ops_probe(d, d->ops);
    if (!err) return;
    snprintf(d->no_ops, sizeof d->no_ops, "%s",
             err == TSR_ENOMEM ? "no memory"
             : d->major == 0   ? "CANN of unknown version"
             : d->ops          ? atomic_load(&d->ops->why)
                               : "no libopapi.so");
    tsri_ascend_ops_close(d, d->ops);
    d->ops = NULL;
}

/* Of AscendCL, the first of two tries. */
static int empty_stream(struct tsr_device *d, const struct tsr_device_stream *s)
{
    int e = d->acl.aclrtSynchronizeStream(s->native);
    if (e && d->acl.aclrtSynchronizeStream(s->native) != 0) atomic_store(&d->lost, true);
    return e;
}

/* A stream may not go while it has work. */
static void close_stream(struct tsr_device *d, struct tsr_device_stream *s)
{
    if (tsri_ascend_enter(d) != 0) return;
    (void)empty_stream(d, s);
    if (!atomic_load(&d->lost)) d->acl.aclrtDestroyStream(s->native);
}

static void ascend_close(struct tsr_device *d)
{
    tsri_ascend_ops_close(d, d->ops);
    tsri_ascend_staging_fini(d);
    close_stream(d, &d->stream);
    for (struct tsri_ascend_range *r = d->ranges, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    pthread_mutex_destroy(&d->staging_lock);
    pthread_mutex_destroy(&d->ranges_lock);
    free(d);
}

static int ascend_open(struct tsr_device **out, const struct tsr_device_desc *desc)
{
    struct tsr_device *d = calloc(1, sizeof *d);
    if (!d) return desc->fail(TSR_ENOMEM, "npu: out of memory");
    d->fail = desc->fail;
    d->ordinal = (int32_t)desc->ordinal;
    uint32_t n = 0;
    int err = tsri_ascend_load(d);
    if (!err) err = choose_variant(d, desc->variant);
    if (!err) {
        int e = d->acl.aclrtGetDeviceCount(&n);
        if (e) err = tsri_ascend_failed(d, e, "no usable driver");
    }
    if (!err && desc->ordinal >= n) err = d->fail(TSR_EDEVICE, "npu: no such device number");
    if (!err) err = tsri_ascend_enter(d);
    if (!err) err = open_stream(d, &d->stream, 0);
    if (err) {
        free(d);
        return err;
    }
    pthread_mutex_init(&d->ranges_lock, NULL);
    pthread_mutex_init(&d->staging_lock, NULL);
    bool flags = desc->size >= sizeof *desc; /* an older core has none */
    if ((flags && desc->flags & TSR_DEVICE_OPERATORS) ||
        (desc->variant && strncmp(desc->variant, "operators", 9) == 0))
        open_operators(d, desc->variant && strcmp(desc->variant, "operators_plain") == 0);
    err = tsri_ascend_enter(d); /* the self-test of operators may lose it */
    if (err)
        ascend_close(d);
    else
        *out = d;
    return err;
}

/* Of the operators that are used, or why there are none; nothing if nobody asked. */
static void name_operators(struct tsr_device *d, char *out, size_t bytes)
{
    uint32_t can = d->ops ? atomic_load(&d->ops->can) : 0;
    if (can == TSRI_CAN_ALL)
        snprintf(out, bytes, ", all operators");
    else if (can)
        snprintf(out, bytes, ", operators:%s%s%s%s", can & TSRI_CAN_ROTATE ? " rotate" : "",
                 can & TSRI_CAN_WIDEN ? " int8" : "", can & TSRI_CAN_SCATTER ? " scatter" : "",
                 can & TSRI_CAN_GATHER ? " gather" : "");
    else if (d->ops || d->no_ops[0])
        snprintf(out, bytes, ", no operators: %.31s",
                 d->ops ? atomic_load(&d->ops->why) : d->no_ops);
    else
        out[0] = '\0';
}

static int ascend_info(struct tsr_device *d, struct tsr_device_info *out)
{
    int err = tsri_ascend_enter(d);
    if (err) return err;
    size_t n_free = 0, n_total = 0;
    TSRI_ACL_TRY(d, d->acl.aclrtGetMemInfo(TSRI_ACL_HBM, &n_free, &n_total),
                 "cannot read free memory");
    char operators[64];
    name_operators(d, operators, sizeof operators);
    snprintf(out->text, sizeof out->text, "%.15s, CANN %.11s, %s copies%s; never run on an NPU",
             d->soc[0] ? d->soc : "unnamed NPU", d->cann[0] ? d->cann : "not named",
             d->batches ? "batched" : "single", operators);
    out->bytes_total = n_total;
    out->bytes_free = n_free;
    if (out->size >= sizeof *out) /* an older core has no room */
        snprintf(out->driver, sizeof out->driver, "driver %s, AscendCL %d.%d.%d",
                 d->driver[0] ? d->driver : "not named", d->acl_version[0], d->acl_version[1],
                 d->acl_version[2]);
    return 0;
}

/* ---- streams and events ---- */

struct tsr_device_stream *tsri_ascend_stream(struct tsr_device *d, struct tsr_device_stream *s)
{
    return s ? s : &d->stream;
}

static int ascend_stream_open(struct tsr_device *d, struct tsr_device_stream **out, void *native,
                              uint32_t flags)
{
    int err = tsri_ascend_enter(d);
    if (err) return err;
    struct tsr_device_stream *s = calloc(1, sizeof *s);
    if (!s) return d->fail(TSR_ENOMEM, "npu: out of memory");
    if (native)
        s->native = native;
    else
        err = open_stream(d, s, flags & TSR_STREAM_LOW ? TSRI_ACL_PRIORITY_LEAST : 0);
    if (err) {
        free(s);
        return err;
    }
    *out = s;
    return 0;
}

static void ascend_stream_close(struct tsr_device *d, struct tsr_device_stream *s)
{
    if (s->owned) close_stream(d, s);
    free(s);
}

int tsri_ascend_sync(struct tsr_device *d, struct tsr_device_stream *s)
{
    unsigned queued = atomic_load(&s->host_writes);
    TSRI_ACL_TRY(d, empty_stream(d, s), "the stream failed");
    unsigned settled = atomic_load(&s->host_settled);
    while ((int)(queued - settled) > 0 &&
           !atomic_compare_exchange_weak(&s->host_settled, &settled, queued)) {
    }
    return 0;
}

/* An engine's stream may have several handles, so the mark is not theirs. */
void tsri_ascend_writes_host(struct tsr_device *d, struct tsr_device_stream *s)
{
    atomic_fetch_add(&s->host_writes, 1);
    if (!s->owned) atomic_store(&d->engine_writes_host, true);
}

static bool may_write_host(struct tsr_device *d, struct tsr_device_stream *s)
{
    return atomic_load(&s->host_writes) != atomic_load(&s->host_settled) ||
           (!s->owned && atomic_load(&d->engine_writes_host));
}

int tsri_ascend_settle(struct tsr_device *d, struct tsr_device_stream *s)
{
    return may_write_host(d, s) ? tsri_ascend_sync(d, s) : 0;
}

int tsri_ascend_abandon(struct tsr_device *d, struct tsr_device_stream *s, int err)
{
    if (err) (void)empty_stream(d, s);
    return err;
}

static int ascend_stream_sync(struct tsr_device *d, struct tsr_device_stream *s)
{
    int err = tsri_ascend_enter(d);
    return err ? err : tsri_ascend_sync(d, tsri_ascend_stream(d, s));
}

int tsri_ascend_event_init(struct tsr_device *d, struct tsr_device_event *e)
{
    *e = (struct tsr_device_event){0};
    TSRI_ACL_TRY(d, d->acl.aclrtCreateEventExWithFlag(&e->native, TSRI_ACL_EVENT_SYNC),
                 "cannot create an event");
    return 0;
}

void tsri_ascend_event_fini(struct tsr_device *d, struct tsr_device_event *e)
{
    if (e->native) d->acl.aclrtDestroyEvent(e->native);
    e->native = NULL;
}

int tsri_ascend_record(struct tsr_device *d, struct tsr_device_event *e,
                       struct tsr_device_stream *s)
{
    TSRI_ACL_TRY(d, d->acl.aclrtRecordEvent(e->native, s->native), "cannot record an event");
    e->recorded = true;
    e->writes_host = may_write_host(d, s);
    return 0;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int tsri_ascend_await(struct tsr_device *d, struct tsr_device_event *e)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    uint64_t spin_until = now_ns() + SPIN_NS;
    uint32_t status = 0;
    if (!e->recorded) return 0; /* what the runtime says of such an event is not documented */
    for (;;) {
        int failed = d->acl.aclrtQueryEventStatus(e->native, &status);
        if (failed && d->acl.aclrtQueryEventStatus(e->native, &status) != 0) {
            atomic_store(&d->lost, true);
            return tsri_ascend_failed(d, failed, "an event failed");
        }
        if (status == TSRI_ACL_EVENT_COMPLETE) return 0;
        if (now_ns() > spin_until) nanosleep(&pause, NULL);
    }
}

bool tsri_ascend_is_idle(struct tsr_device *d, struct tsr_device_event *e)
{
    return !atomic_load(&d->lost) && tsri_ascend_await(d, e) == 0;
}

static int ascend_event_open(struct tsr_device *d, struct tsr_device_event **out)
{
    int err = tsri_ascend_enter(d);
    if (err) return err;
    struct tsr_device_event *e = calloc(1, sizeof *e);
    if (!e) return d->fail(TSR_ENOMEM, "npu: out of memory");
    err = tsri_ascend_event_init(d, e);
    if (err) {
        free(e);
        return err;
    }
    *out = e;
    return 0;
}

static void ascend_event_close(struct tsr_device *d, struct tsr_device_event *e)
{
    if (tsri_ascend_enter(d) == 0) tsri_ascend_event_fini(d, e);
    free(e);
}

static int ascend_event_record(struct tsr_device *d, struct tsr_device_event *e,
                               struct tsr_device_stream *s)
{
    int err = tsri_ascend_enter(d);
    return err ? err : tsri_ascend_record(d, e, tsri_ascend_stream(d, s));
}

static int ascend_event_wait(struct tsr_device *d, struct tsr_device_event *e,
                             struct tsr_device_stream *s)
{
    struct tsr_device_stream *to = tsri_ascend_stream(d, s);
    int err = tsri_ascend_enter(d);
    if (err || !e->recorded) return err;
    TSRI_ACL_TRY(d, d->acl.aclrtStreamWaitEvent(to->native, e->native), "cannot wait for an event");
    if (e->writes_host) tsri_ascend_writes_host(d, to);
    return 0;
}

static int ascend_event_sync(struct tsr_device *d, struct tsr_device_event *e)
{
    int err = tsri_ascend_enter(d);
    return err ? err : tsri_ascend_await(d, e);
}

extern const struct tsr_device_ops tsr_device_npu;
TSR_API const struct tsr_device_ops tsr_device_npu = {
    .abi = TSR_DEVICE_ABI,
    .caps = TSR_DEVICE_ASYNC | TSR_DEVICE_SEPARATE | TSR_DEVICE_NEEDS_LOCK,
    .name = "npu",
    .open = ascend_open,
    .close = ascend_close,
    .info = ascend_info,
    .alloc = tsri_ascend_alloc,
    .free = tsri_ascend_free,
    .host_alloc = tsri_ascend_host_alloc,
    .host_free = tsri_ascend_host_free,
    .host_register = tsri_ascend_host_register,
    .host_unregister = tsri_ascend_host_unregister,
    .stream_open = ascend_stream_open,
    .stream_close = ascend_stream_close,
    .stream_sync = ascend_stream_sync,
    .event_open = ascend_event_open,
    .event_close = ascend_event_close,
    .event_record = ascend_event_record,
    .event_wait = ascend_event_wait,
    .event_sync = ascend_event_sync,
    .copy = tsri_ascend_copy,
    .gather = tsri_ascend_gather,
    .scatter = tsri_ascend_scatter,
    .scatter_rotate = tsri_ascend_scatter,
    .top_k = tsri_ascend_top_k,
};
