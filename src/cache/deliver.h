/* deliver.h - what the two halves of a delivery share: deliver.c moves, origins.c says from where.
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
#include "tier/hot.h"

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

#endif
