/* events.h - a ring of events: what became of entries, for those who ask. The cache has one, and a
 * server one more for each session.
 *
 * Threads: any; it has a lock of its own, which is a leaf.
 * Memory:  taken at init, `max` events; the oldest go first.
 */
#ifndef TSRI_EVENTS_H
#define TSRI_EVENTS_H

#include "base/base.h"

#include <tessera/admin.h>

#include <pthread.h>

struct tsri_events {
    pthread_mutex_t lock;
    struct tsr_event *ring;
    uint32_t max, head, n;
};
TSR_MUST int tsri_events_init(struct tsri_events *ev, uint32_t max);
void tsri_events_fini(struct tsri_events *ev);
/* False when the oldest had to go to make room. */
bool tsri_events_push(struct tsri_events *ev, const struct tsr_event *event);
uint32_t tsri_events_take(struct tsri_events *ev, struct tsr_event *out, uint32_t max);

#endif
