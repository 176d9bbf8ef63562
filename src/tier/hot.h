/* hot.h - the device pool as a tier (hot.c): what it is opened with, and pins, by which a load into
 * an engine on the same device uses an entry's cells where they are.
 *
 * Threads: any.
 * Memory:  what a pin points to stays in place until it is given back; the device is the caller's
 *          and outlives the tier.
 * Errors:  none beyond those of the tier.
 */
#ifndef TSRI_HOT_H
#define TSRI_HOT_H

#include "tier/tier.h"

#include <tessera/device.h>

struct tsri_device;

/* env.arg of tsri_tier_hot. */
struct tsri_hot_setup {
    struct tsri_device *device;
    uint64_t bytes_max;
    size_t page_bytes; /* a power of two; planes do not straddle it */
};

struct tsri_hot_pin {
    struct tsr_kv_cells cells; /* in the memory of the device */
    const struct tsr_entry_head *head;
    const uint32_t *tokens;
    const uint8_t *extra;
    uint32_t number;
};
/* False when the pool has no such entry. Every pin is given back before the tier is closed. */
bool tsri_hot_pin(struct tsr_tier *tier, const struct tsr_key *key, struct tsri_hot_pin *out);
void tsri_hot_unpin(struct tsr_tier *tier, const struct tsri_hot_pin *pin);

extern const struct tsr_tier_ops tsri_tier_hot;

#endif
