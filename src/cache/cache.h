/* cache.h - a cache as the rest of the library sees it: handles, and functions that say what of it
 * they need. What is inside, core.h has; blend, connector, daemon and cli do not include that
 * (tools/check-tree.sh).
 *
 * Threads: all of it from any thread, unless it says otherwise.
 * Memory:  pointers that are returned are valid as long as the cache or the space is open.
 * Errors:  as in tessera.h.
 */
#ifndef TSRI_CACHE_H
#define TSRI_CACHE_H

#include "base/base.h"
#include "chunk/chunk.h"
#include "config/config.h"
#include "device/device.h"
#include "stats/stats.h"
#include "tier/tier.h"
#include "wire/wire.h"

#include <tessera/policy.h>
#include <tessera/tier.h>

#define TSRI_SPACE_NAME_BYTES 64
#define TSRI_SEGMENTS_MAX 4096u /* of a prompt */

/* Spaces that are open or have entries, for people to look at. */
struct tsri_space_row {
    char model[TSRI_SPACE_NAME_BYTES]; /* "": seen in a tier only */
    uint8_t fingerprint[16];
    uint32_t refs, entries;
    uint64_t token_bytes; /* of KV */
};
/* At most max of them, most entries first; returns how many. */
uint32_t tsri_cache_spaces(struct tsr_cache *c, struct tsri_space_row *out, uint32_t max);

/* source.c: can entries of this shape, perhaps in the int8 form, be exchanged with that memory? TSR_ESPACE. */
TSR_MUST int tsri_shape_fits(const struct tsri_shape *s, const struct tsr_kv_layout *l, bool int8);

/* browse.c: entries one after the other, from id `first` on; *next is where to go on. Returns how
 * many. */
uint32_t tsri_cache_list(struct tsr_cache *c, uint32_t first, struct tsri_wire_entry *out,
                         uint32_t max, uint32_t *next);
/* Opens a space that is there already. One that is not *shaped is known from a tier alone: its
 * entries can be cleared and nothing else. */
TSR_MUST int tsri_space_find(struct tsr_space **out, struct tsr_cache *c,
                             const uint8_t fingerprint[16], bool *shaped);
/* Brings up what only lower tiers have, as long as host memory is free and at most about so many
 * bytes (0: all). Waits for the tiers, until *stop is true (may be NULL); how many came. */
uint32_t tsri_cache_warm(struct tsr_cache *c, uint64_t bytes_max, const atomic_bool *stop);

#endif
