/* collect.h - puts filled from an engine's slots by a caller that must be able to take its memory
 * back: each piece that is read is asked for first, and nothing of the engine's is read while the
 * server is waited for.
 *
 * Threads: those of the delivery, one at a time.
 */
#ifndef TSRI_COLLECT_H
#define TSRI_COLLECT_H

#include "device/device.h"

#include <tessera/deliver.h>

struct tsri_reading {
    /* Of the cache's device: the engine's memory is read behind it. NULL: behind what `compute` has
     * queued. */
    struct tsr_device_event *after;
    bool (*begin)(void *arg); /* false: the engine's memory must not be read any more */
    void (*end)(void *arg);   /* after each begin that was true: what was read is in host memory */
    void *arg;
};
/* As tsr_delivery_collect; reading NULL: without asking. TSR_ETIME: begin was false. */
TSR_MUST int tsri_delivery_collect(struct tsr_delivery *d, struct tsr_put *put,
                                   const int64_t *slots, uint32_t n,
                                   const struct tsri_reading *reading);

#endif
