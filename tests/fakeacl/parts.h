/* parts.h - what the files of the fake AscendCL share (support/fakeacl.h), and what the fake operators
 * of tests/fakeopapi use of it.
 *
 * Order is followed with vector clocks. Operations of a stream are numbered; a clock says for each
 * stream up to which number its operations are known to have ended before. A stream has a clock, an
 * event has the one of its last record, and the host has one, which grows when it waits. An
 * operation is known to be over for the host when its number is within the host's clock, however
 * long ago it has in fact run.
 *
 * Threads: everything below is called with fake.lock held, unless it says otherwise. */
#ifndef FAKEACL_PARTS_H
#define FAKEACL_PARTS_H

#include "device/ascend.h"

#include <pthread.h>

#define FAKE_STREAMS 64u
#define FAKE_DEVICES 2u
#define FAKE_MEMORY ((size_t)1 << 30)
#define FAKE_ERROR 507899 /* an error of the driver */

/* The functions, as the device declares them. */
#define FAKE_DECLARE(name, result, parameters) TSR_API result name parameters;
TSRI_ACL_NEEDED(FAKE_DECLARE)
TSRI_ACL_OPTIONAL(FAKE_DECLARE)

struct fake_clock {
    uint64_t n[FAKE_STREAMS];
};

enum fake_where { FAKE_DEVICE, FAKE_HOST, FAKE_REGISTERED };

struct fake_piece {     /* of a copy, or what an operator reads or writes */
    uintptr_t dst, src; /* as the caller named them; 0: none */
    uint8_t *to;        /* where their bytes are */
    const uint8_t *from;
    size_t bytes;
};

struct fake_mark {
    uint32_t refs;
    bool passed;
    struct fake_clock clock;
};

/* Memory of the device that an operator reads or writes. */
struct fake_span {
    uintptr_t first;
    size_t bytes;
    bool writes;
};
#define FAKE_SPANS 2048u

struct fake_work {
    /* What else it touches, known when everything before it on the stream is over; NULL: nothing.
     * Returns how many of at most FAKE_SPANS. */
    uint32_t (*late)(void *arg, struct fake_span *out);
    void (*run)(void *arg); /* without the lock; frees arg */
    void *arg;
};

struct fake_op {
    struct fake_op *next;
    uint64_t number;
    uint32_t n_pieces;
    struct fake_piece *pieces;
    uintptr_t low, high; /* all bytes that it touches are between */
    uint64_t hash;       /* of the source; 0: not known */
    struct fake_mark *sets, *awaits;
    struct fake_work work;   /* run NULL: it copies */
    struct fake_clock clock; /* of its stream when it was queued; of work only */
};

struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fake_clock host;
    bool initialised, held, lazy;
    uint32_t n_waiting; /* for a stream or an event */
    uint64_t n_calls, fails_at, n_batches, n_operators;
    bool fails_on;                   /* with those behind fails_at */
    uint32_t n_tensors, n_executors; /* that are not given back */
};
extern TSR_API struct fake_state fake;

/* Without the lock. */
TSR_API _Noreturn void fake_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Takes the lock; an error: the call fails, and the lock is not held. */
TSR_API int fake_enter(const char *name);
/* The current device of this thread, or the end. */
int32_t fake_device(const char *name);

/* memory.c */
/* Where the bytes are; stops the process unless they are memory of this kind in one piece. */
TSR_API uint8_t *fake_bytes(const char *name, uintptr_t p, size_t bytes, bool device);
void fake_check_edges(void); /* of host memory */
uint32_t fake_registrations(void);
void fake_memory_check_closed(void);
uint32_t fake_memory_forget(void);
void *fake_view(const void *device);

/* queue.c */
/* Whether the host does not know an operation on these bytes to be over. */
bool fake_in_use(uintptr_t first, size_t bytes);
TSR_API void fake_queue_work(const char *name, void *stream, const struct fake_work *work,
                             const struct fake_span *spans, uint32_t n);
void fake_queue_check_closed(void);
uint32_t fake_queue_forget(void); /* without the lock */

#endif
