/* parts.h - what the parts of the fake GPU (support/fakegpu.h) share. One lock guards everything:
 * it is held for bookkeeping, never while bytes move. Memory belongs to the process, as with CUDA:
 * what one handle has registered, another may use. */
#ifndef TSRI_FAKEGPU_PARTS_H
#define TSRI_FAKEGPU_PARTS_H

#include "device/device.h"
#include "support/fakegpu.h"

#include <pthread.h>

#define FAKE_ORDINALS 2u

struct tsr_device {
    int (*fail)(int err, const char *text);
    uint32_t ordinal;
    uint32_t n_streams, n_events, n_batches; /* that are open */
};

struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t passed; /* an operation has run, a hold has ended */
    bool held, lost;
    uint32_t delay_one_in, delay_us;
    _Atomic uint32_t register_us;
    uint64_t seed;
    uint32_t n_open[FAKE_ORDINALS]; /* handles */
    struct fake_queue *defaults[FAKE_ORDINALS];
    struct fake_queue *queues; /* of all streams */
};
extern struct fake_state fake;

/* The caller broke the contract. */
_Noreturn void fake_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- faults.c: calls that fail on demand, and what they are called ---- */

enum fake_op_name {
    FAKE_OPEN,
    FAKE_ALLOC,
    FAKE_HOST_ALLOC,
    FAKE_HOST_REGISTER,
    FAKE_STREAM_OPEN,
    FAKE_STREAM_SYNC,
    FAKE_EVENT_OPEN,
    FAKE_EVENT_RECORD,
    FAKE_EVENT_WAIT,
    FAKE_EVENT_SYNC,
    FAKE_COPY,
    FAKE_BATCH_OPEN,
    FAKE_BATCH_SET,
    FAKE_GATHER,
    FAKE_SCATTER,
    FAKE_TOP_K,
    FAKE_N_OPS
};
/* Counts a call; not 0: it fails with that error and the message is set. */
int fake_fault(struct tsr_device *d, enum fake_op_name op);
void fake_faults_from_env(void);
void fake_control_fail(const char *op, uint64_t n, int err);
void fake_control_fail_often(const char *op, uint32_t per_1000);
uint64_t fake_control_calls(const char *op);
void fake_faults_reset(void);

/* ---- memory.c: what is allocated and what is registered. All under the lock. ---- */

enum fake_kind { FAKE_DEVICE, FAKE_HOST, FAKE_REGISTERED };

/* Bytes that an operation uses, as its caller named them. */
struct fake_span {
    uintptr_t first;
    size_t bytes;
};
extern uint64_t fake_register_max, fake_registered;
#define FAKE_MEMORY ((uint64_t)1 << 30)
extern uint64_t fake_memory_max, fake_allocated; /* of the devices together */

int fake_memory_add(struct tsr_device *d, enum fake_kind kind, void **out, size_t bytes);
int fake_memory_register(struct tsr_device *d, void *p, size_t bytes);
void fake_memory_remove(struct tsr_device *d, enum fake_kind kind, void *p);
/* Where the host reaches these bytes, which must be device memory, or page-locked in one piece;
 * anything else ends here. */
void *fake_memory_at(const struct tsr_device *d, uint32_t memory, struct fake_span span,
                     const char *what);
/* The same for copies, which also take host memory that the device knows nothing of. */
void *fake_memory_any(const struct tsr_device *d, struct fake_span span, const char *what);
void *fake_control_view(const void *p);
void fake_memory_check_closed(const struct tsr_device *d);

/* ---- queue.c: streams and events ---- */

/* A place in a queue that others wait for. */
struct fake_mark {
    uint32_t refs;
    bool passed;
};

struct fake_op {
    struct fake_op *next;
    const char *what;
    void (*run)(struct fake_op *op); /* NULL: it only marks or waits */
    void (*end)(struct fake_op *op); /* under the lock; frees what is behind arg */
    void *arg;
    struct fake_span *spans; /* owned */
    uint32_t n_spans;
    struct fake_mark *sets, *awaits; /* or NULL; references */
};

struct fake_queue;
struct fake_queue *fake_queue_open(uint32_t ordinal, uint32_t flags);
void fake_queue_close(struct fake_queue *q); /* runs what is queued */
/* Under the lock. The queue owns the op. */
void fake_push(struct fake_queue *q, struct fake_op *op);
/* Under the lock: a mark behind what is queued; the caller has a reference. */
struct fake_mark *fake_mark_push(struct fake_queue *q);
void fake_mark_drop(struct fake_mark *m);
void fake_await_push(struct fake_queue *q, struct fake_mark *m);
void fake_mark_wait(struct fake_mark *m);
/* Under the lock: dies if an operation that has not run uses these bytes. */
void fake_queues_check_unused(struct fake_span span, const char *what);
uint64_t fake_control_queued(void);
struct fake_queue *fake_queue_of(const struct tsr_device *d, const struct tsr_device_stream *s);
void *fake_control_stream_open(uint32_t ordinal);
void fake_control_stream_close(void *native);
void fake_control_stream_sync(void *native);
void fake_control_launch(void *native, void (*fn)(void *arg), void *arg);

int fake_stream_open(struct tsr_device *d, struct tsr_device_stream **out, void *native,
                     uint32_t flags);
void fake_stream_close(struct tsr_device *d, struct tsr_device_stream *s);
int fake_stream_sync(struct tsr_device *d, struct tsr_device_stream *s);
int fake_event_open(struct tsr_device *d, struct tsr_device_event **out);
void fake_event_close(struct tsr_device *d, struct tsr_device_event *e);
int fake_event_record(struct tsr_device *d, struct tsr_device_event *e,
                      struct tsr_device_stream *s);
int fake_event_wait(struct tsr_device *d, struct tsr_device_event *e, struct tsr_device_stream *s);
int fake_event_sync(struct tsr_device *d, struct tsr_device_event *e);

/* ---- moves.c: batches, copies and top k ---- */

int fake_copy(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_copy *copies,
              size_t n);
int fake_top_k(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t);
int fake_batch_open(struct tsr_device *d, struct tsr_device_batch **out,
                    const struct tsr_batch_limits *limits);
void fake_batch_close(struct tsr_device *d, struct tsr_device_batch *b);
int fake_batch_set(struct tsr_device *d, struct tsr_device_stream *s,
                   const struct tsr_batch *batch);
int fake_gather(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch,
                uint32_t layer_first, uint32_t n_layers);
int fake_scatter(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch,
                 uint32_t layer_first, uint32_t n_layers);

#endif
