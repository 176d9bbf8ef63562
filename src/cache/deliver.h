/* deliver.h - what the parts of a delivery share: deliver.c moves, origins.c says from where, and
 * lent.c does when a server has the cache.
 *
 * An origin is one range of a delivery and the place it is taken from: the device pool, which
 * touches neither host memory nor the bus, or host memory, after having been fetched if only a
 * lower tier has it. It is pinned from tsri_origin_pin to tsri_origin_let_go, because a device
 * reads it later than it is told to.
 *
 * Threads: those of the delivery, one at a time.
 * Memory:  ranges and prompts are the caller's until the origin is let go.
 * Errors:  a range that cannot be had has its reason in range->result.
 */
#ifndef TSRI_DELIVER_H
#define TSRI_DELIVER_H

#include "cache/manager.h"
#include "cache/source.h"

#include <tessera/deliver.h>

struct tsri_origin {
    struct tsr_delivery_range *range;
    uint32_t id;
    enum tsri_state state; /* FREE: not pinned */
    bool hot;
    struct tsri_hot_pin pin;
    struct tsr_kv_cells cells; /* those that the range touches, when it is not hot */
    uint32_t offset, n_tokens; /* in the entry; from tsri_origin_cells on in the cells */
    uint32_t base, freq_set;
};

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
    struct tsri_origin *origins;                /* [limits.runs] */
    struct tsr_kv_run *runs;                    /* [limits.runs] */
    void **planes;                              /* [limits.plane_pointers] */
    uint32_t n_origins, n_runs, n_planes;
    uint32_t n_queued; /* layers */
    /* of a server's cache: */
    struct tsri_borrow borrow;      /* from start to finish */
    struct tsri_borrow_want *wants; /* [limits.runs] */
    struct tsri_mapping *locked;    /* whose pool is page-locked for the device, or NULL */
};

/* Of a range that has been checked. */
void tsri_origin_pin(struct tsr_cache *c, const struct tsr_space *space, struct tsri_origin *s);
/* Brings up those that only a lower tier has, several at a time. */
void tsri_origins_fetch(struct tsr_cache *c, const struct tsr_space *space,
                        struct tsri_origin *origins, uint32_t n);
/* Describes the cells that hold tokens [s->offset, + n_tokens) of an entry in host memory as if it
 * had no others; planes has room for tsri_origin_n_planes(). */
uint64_t tsri_origin_n_planes(const struct tsri_shape *shape, const struct tsri_origin *s);
void tsri_origin_cells(struct tsr_cache *c, const struct tsr_space *space, struct tsri_origin *s,
                       void **planes, bool int8);
void tsri_origin_let_go(struct tsr_cache *c, struct tsri_origin *s);

/* ---- lent.c: the same of a cache that a server has ---- */

/* Borrows all n origins, which have been checked; those that cannot be had get their result. */
TSR_MUST int tsri_lent_pin(struct tsr_delivery *d, uint32_t n);
/* As tsri_origin_cells, of origin i. */
void tsri_lent_cells(struct tsr_delivery *d, uint32_t i, void **planes);
/* 0, or TSR_ENOENT: the server took back what was being read. */
TSR_MUST int tsri_lent_check(const struct tsr_delivery *d);
/* The same for the last time, then gives back. */
TSR_MUST int tsri_lent_let_go(struct tsr_delivery *d);
void tsri_lent_fini(struct tsr_delivery *d);
/* Fills a put through memory that the device can write. */
TSR_MUST int tsri_lent_collect(struct tsr_delivery *d, struct tsr_put *put, const int64_t *slots,
                               uint32_t n);

#endif
