/* throttle.c - a limit on bytes a second over all callers of a tier: each byte that moved pushes
 * the time at which the line is free again; who finds that time too far ahead waits. */
#include "tier/parcel.h"

#define BURST_NS 100000000u /* what may pass at once after a pause */

void tsri_throttle_init(struct tsri_throttle *t, uint64_t bytes_per_s)
{
    t->bytes_per_s = bytes_per_s;
    t->free_ns = 0;
    pthread_mutex_init(&t->lock, NULL);
}

void tsri_throttle_fini(struct tsri_throttle *t)
{
    pthread_mutex_destroy(&t->lock);
}

uint64_t tsri_throttle_take(struct tsri_throttle *t, uint64_t bytes)
{
    if (!t->bytes_per_s) return 0;
    uint64_t now = tsri_now_ns();
    uint64_t cost = (uint64_t)((double)bytes * 1e9 / (double)t->bytes_per_s);
    pthread_mutex_lock(&t->lock);
    if (t->free_ns < now) t->free_ns = now;
    t->free_ns += cost;
    uint64_t ahead = t->free_ns - now;
    pthread_mutex_unlock(&t->lock);
    return ahead > BURST_NS ? ahead - BURST_NS : 0;
}
