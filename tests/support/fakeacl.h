/* fakeacl.h - AscendCL for machines without an NPU: libascendcl.so and its functions as the device
 * "npu" calls them, over plain memory (sources in tests/fakeacl). It trusts its callers with
 * nothing.
 *
 * Device memory cannot be touched from the host: an access is a segmentation fault. Every stream
 * runs in a thread of its own, some time after an operation was queued. What the host writes to
 * must not be read by a queued copy, and what a copy will write holds 0xdb until it has. The process
 * stops with a line "fakeacl: ..." when
 *   - a copy has the wrong kind, overlaps itself, leaves its allocation or registration, or is
 *     within device memory at an address that is no multiple of 64;
 *   - a copy reads or writes memory that is not page-locked, was freed, or has another device;
 *   - a copy meets another one of another stream with no event between them;
 *   - the source of a copy changes before it has run;
 *   - memory, a stream or an event goes while something is queued that the caller has not waited
 *     for;
 *   - bytes around an allocation of host memory were written.
 * fakeacl_control.check_closed stops it when something was not given back.
 *
 * Options from the environment:
 *   FAKEACL_CANN=8.3.RC1     the version it says it is; 9.0.0
 *   FAKEACL_DRIVER=24.1.rc3  the driver's; 25.2.0; none: it does not tell
 *   FAKEACL_SOC=Ascend310P3  the chip; Ascend910B3
 *   FAKEACL_LOCATION=9       what aclrtPointerGetAttributes says of any memory
 *   FAKEACL_NO_BATCH=1       aclrtMemcpyBatchAsync says it is not supported
 *   FAKEACL_FAILS=aclrtMalloc  a call that fails
 *   FAKEACL_CHECK=1          check_closed when the process ends
 *
 * Threads: everything here may be called from any thread.
 */
#ifndef TSRI_FAKEACL_H
#define TSRI_FAKEACL_H

#include <stdbool.h>
#include <stdint.h>

/* Exported by the library as fakeacl_control. */
struct fakeacl_control {
    /* The n-th call from now on that can fail does so, once; 0: none does. */
    void (*fail)(uint64_t n);
    void (*fail_from)(uint64_t n); /* the n-th and all that follow, until reset */
    uint64_t (*calls)(void);       /* that can fail, since the last reset */
    /* Nothing that moves bytes starts while held. */
    void (*hold)(bool held);
    /* Nothing that moves bytes starts unless somebody waits for a stream or asks for an event. */
    void (*lazy)(bool lazy);
    /* Where the host sees device memory, as if it were the device. */
    void *(*view)(const void *device);
    uint64_t (*registrations)(void); /* now */
    uint64_t (*batches)(void);       /* calls of aclrtMemcpyBatchAsync since the last reset */
    uint64_t (*operators)(void);     /* that were queued since the last reset */
    void (*reset)(void);
    void (*check_closed)(void);
    /* Waits for all that is queued, and forgets what was not given back: how many streams, events,
     * allocations and registrations that was. Nothing may be used any more. */
    uint32_t (*forget)(void);
};

/* The fake operators, libopapi.so (sources in tests/fakeopapi), stop the process when
 *   - a tensor, an executor or a workspace is used after it went or was used up, or is left behind;
 *   - a workspace is smaller than what was asked for, or not device memory;
 *   - shapes, dtypes or strides are not what CANN's documents allow, or an engine's cache has gaps;
 *   - a slot is negative, beyond the cache, or there twice;
 *   - an operator meets what another stream does, with no event between them: paged operators look
 *     at the rows that their slots name.
 * What they write to a workspace is garbage. Options from the environment:
 *   FAKEACL_WORKSPACE=300000000  bytes that each wants besides its own
 *   FAKEACL_REFUSES=aclnnMul  an operator whose first call fails
 *   FAKEACL_WRONG=aclnnMul    an operator that gets one bit wrong
 *   FAKEACL_FMA=1             RotaryPositionEmbedding does not round between product and sum */

/* Points the device "npu" to the fake and loads both; stops the program when one is not there.
 * file: "libascendcl.so", or another of the folder. */
const struct fakeacl_control *fakeacl_load(const char *file);

#endif
