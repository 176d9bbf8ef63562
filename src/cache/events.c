/* events.c - what happened to entries, for who keeps a view of the cache elsewhere (a router, an
 * engine). A bounded ring: when nobody takes events the oldest go. */
#include "cache/events.h"

int tsri_events_init(struct tsri_events *ev, uint32_t max)
{
    memset(ev, 0, sizeof *ev);
    ev->ring = tsri_alloc(max ? max : 1, sizeof ev->ring[0]);
    if (!ev->ring) return TSR_ENOMEM;
    ev->max = max;
    pthread_mutex_init(&ev->lock, NULL);
    return 0;
}

void tsri_events_fini(struct tsri_events *ev)
{
    if (!ev->ring) return;
    pthread_mutex_destroy(&ev->lock);
    tsri_free(ev->ring);
    ev->ring = NULL;
}

bool tsri_events_push(struct tsri_events *ev, const struct tsr_event *event)
{
    if (ev->max == 0) return true;
    pthread_mutex_lock(&ev->lock);
    bool fits = ev->n < ev->max;
    if (!fits) {
        ev->head = (ev->head + 1) % ev->max;
        ev->n--;
    }
    ev->ring[(ev->head + ev->n) % ev->max] = *event;
    ev->n++;
    pthread_mutex_unlock(&ev->lock);
    return fits;
}

uint32_t tsri_events_take(struct tsri_events *ev, struct tsr_event *out, uint32_t max)
{
    pthread_mutex_lock(&ev->lock);
    uint32_t n = tsri_min_u32(ev->n, max);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = ev->ring[ev->head];
        ev->head = (ev->head + 1) % ev->max;
    }
    ev->n -= n;
    pthread_mutex_unlock(&ev->lock);
    return n;
}
