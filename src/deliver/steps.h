/* steps.h - a delivery in two steps, for callers that must know when an engine's memory is written.
 * Everything that may wait for a disk or a server is in the first, and everything that writes is
 * behind the second:
 *
 *     prepare  finds and fetches the ranges; writes and queues nothing
 *     begin    hands the layers to the device, or, where nothing is queued, lets wait_layer copy
 *     drop     lets go; what is queued is waited for, the rest is never queued
 *
 * After begin: tsr_delivery_wait_layer and tsr_delivery_finish. tsr_delivery_start is prepare and
 * begin in one call.
 *
 * Threads: those of the delivery, one at a time.
 * Memory:  ranges and prompts are the caller's until finish, drop or the next prepare.
 * Errors:  as tsr_delivery_start.
 */
#ifndef TSRI_STEPS_H
#define TSRI_STEPS_H

#include "device/device.h"

#include <tessera/deliver.h>

/* Returns how many ranges will arrive; the others have their result set. After an error nothing is
 * prepared. */
TSR_MUST int tsri_delivery_prepare(struct tsr_delivery *d, struct tsr_delivery_range *ranges,
                                   uint32_t n, uint32_t freq_set);
/* `after`: an event of the cache's device behind which the layers go; NULL: behind what `compute`
 * has queued. Waits for nothing. After an error some layers may have been queued: drop. */
TSR_MUST int tsri_delivery_begin(struct tsr_delivery *d, struct tsr_device_event *after);
/* After begin, on a device that queues: the stream goes on when all layers are in place. */
TSR_MUST int tsri_delivery_hold(struct tsr_delivery *d, struct tsr_device_stream *stream);
/* 0, or an error of the device. */
int tsri_delivery_drop(struct tsr_delivery *d);

#endif
