/* lent.c - deliveries of a cache that a server has. What they move out of the memory that the server
 * shares is page-locked for the device the first time it is needed. */
#include "deliver/deliver.h"
#include "served/link.h"

void tsri_lent_unlock(struct tsr_delivery *d)
{
    if (!d->locked) return;
    tsri_device_host_unregister(d->device, d->locked->pool.data);
    tsri_mapping_release(d->locked);
    d->locked = NULL;
}

/* Another session has another mapping. */
int tsri_lent_lock(struct tsr_delivery *d)
{
    struct tsri_mapping *m = d->source.borrow.mapping;
    if (!m || !(tsri_device_caps(d->device) & TSR_DEVICE_NEEDS_LOCK)) return 0;
    if (d->locked != m) {
        tsri_lent_unlock(d);
        int e = tsri_device_host_register(d->device, m->pool.data, m->pool.bytes);
        if (e) return e;
        atomic_fetch_add(&m->refs, 1);
        d->locked = m;
    }
    d->source.locked = true;
    return 0;
}
