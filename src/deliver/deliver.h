/* deliver.h - what the parts of a delivery share: deliver.c moves what a source has (source.h), and
 * collect.c goes the other way.
 *
 * What a delivery has started is pinned until it is finished, because a device reads it later than
 * it is told to.
 *
 * Threads: those of the delivery, one at a time.
 * Memory:  ranges and prompts are the caller's until the start has returned.
 * Errors:  a range that cannot be delivered has its reason in range->result.
 */
#ifndef TSRI_DELIVER_H
#define TSRI_DELIVER_H

#include "cache/manager.h"
#include "cache/source.h"

#include <tessera/deliver.h>

struct tsr_delivery {
    struct tsr_client *client;
    struct tsr_cache *c;
    struct tsr_space *space;
    struct tsr_kv_layout layout;
    struct tsr_rope rope;
    bool has_rope, int8;
    struct tsri_device *device, *own_device; /* own: where the cache has none */
    struct tsr_batch_limits limits;
    struct tsri_batch *batch;
    struct tsr_device_stream *stream, *compute; /* compute NULL: the caller waits */
    struct tsr_device_event *before;            /* what compute had in its queue */
    struct tsr_device_event **events;           /* [n_layers]: behind the last layer of a step */
    uint32_t *step_last;                        /* [n_layers]: of the step that layer l is in */
    struct tsri_source source;                  /* open from start to finish; n 0: nothing is */
    struct tsr_kv_cells *cells;                 /* [limits.runs] */
    struct tsr_kv_run *runs;                    /* [limits.runs] */
    void **planes;                              /* [limits.plane_pointers] */
    uint32_t n_runs, n_planes;
    bool turns; /* some of the runs */
    uint32_t freq_set;
    uint32_t n_queued; /* layers */
    bool unmarked;     /* one of them has no event behind it */
};

/* ---- deliver.c ---- */

/* Is it a delivery, and of this process? */
TSR_MUST int tsri_delivery_check(const struct tsr_delivery *d);
/* Can the device reach where the range is? Host memory must be page-locked for some. */
bool tsri_delivery_reaches(const struct tsr_delivery *d, const struct tsri_source_range *r);
/* The stream goes on behind what the engine has queued so far. */
TSR_MUST int tsri_delivery_follow(struct tsr_delivery *d);

#endif
