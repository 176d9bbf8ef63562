/* fakegpu.h - a GPU for machines without one: the device "fakegpu", a plug-in that queues as CUDA
 * does and trusts its callers with nothing (sources in tests/fakegpu).
 *
 * Device memory cannot be touched from the host: an access is a segmentation fault. Every stream
 * runs in a thread of its own, some time after an operation was queued. The plug-in stops the
 * process with a line "fakegpu: ..." when
 *   - an operation reads or writes memory that is not page-locked, was freed, or crosses from one
 *     registration into the next;
 *   - memory is freed, unregistered or unmapped while a queued operation uses it;
 *   - a range is registered twice, or unregistered without having been registered;
 *   - the tables of a batch change or go away before its operations have run;
 *   - something opened on a device is still open when the device is closed.
 *
 * Options from the environment, for programs that cannot call this header:
 *   FAKEGPU_FAIL=scatter:3,event_sync:1   the n-th call of an operation fails
 *   FAKEGPU_REGISTER_MAX=1048576          host_register fails beyond so many bytes
 *   FAKEGPU_SEED=7, FAKEGPU_DELAY_US=100  of the random delays before operations
 *
 * Threads: everything here may be called from any thread.
 */
#ifndef TSRI_FAKEGPU_H
#define TSRI_FAKEGPU_H

#include <stdbool.h>
#include <stdint.h>

/* Exported by the plug-in as fakegpu_control. Operations are named like the members of struct
 * tsr_device_ops. */
struct fakegpu_control {
    /* The n-th call of the operation from now on fails with err, once; n 0: no call does. A failed
     * sync has waited. A failed move of several layers has queued the first half of them. */
    void (*fail)(const char *op, uint64_t n, int err);
    /* Calls fail at random. */
    void (*fail_often)(const char *op, uint32_t per_1000);
    void (*register_max)(uint64_t bytes); /* UINT64_MAX: no limit */
    void (*register_delay)(uint32_t us);  /* of every host_register */
    /* One in so many operations waits up to most_us before it runs. */
    void (*delay)(uint64_t seed, uint32_t one_in, uint32_t most_us);
    /* Nothing that moves bytes starts while held. */
    void (*hold)(bool held);
    /* The device falls off the bus: what is queued never runs, every call fails. */
    void (*lose)(bool lost);
    /* All device memory, 1 GiB at the start; what is allocated is not free. */
    void (*memory_max)(uint64_t bytes);
    /* Failures, limits, delays, holds and counts as at the start. */
    void (*reset)(void);
    uint64_t (*calls)(const char *op);
    uint64_t (*queued)(void);           /* operations on memory that have not run yet */
    uint64_t (*registered_bytes)(void); /* by host_register, now */
    /* The engine's side. Where the host sees device memory, as if it were the device: */
    void *(*view)(const void *device);
    /* A stream of the engine: `native` of stream_open. launch runs fn on it, in order. NULL, for
     * launch and sync: the default one of device 0, while that is open. */
    void *(*stream_open)(uint32_t ordinal);
    void (*stream_close)(void *native);
    void (*stream_sync)(void *native);
    void (*launch)(void *native, void (*fn)(void *arg), void *arg);
};

/* Loads the plug-in, which is built beside the tests, so that options and descs find it by its
 * name; stops the program when it is not there. */
const struct fakegpu_control *fakegpu_load(void);

#endif
