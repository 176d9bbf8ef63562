/* lent.c - deliveries of a cache that a server has. The memory that the server shares is page-locked
 * for the device in the background, from the first delivery on. */
#include "deliver/deliver.h"
#include "device/locking.h"
#include "served/link.h"

void tsri_lent_unlock(struct tsr_delivery *d)
{
    if (!d->locked) return;
    tsri_locking_close(d->locking);
    tsri_mapping_release(d->locked);
    d->locking = NULL;
    d->locked = NULL;
}

/* Another session has another mapping. */
int tsri_lent_lock(struct tsr_delivery *d)
{
    struct tsri_mapping *m = d->source.borrow.mapping;
    if (!m || !(tsri_device_caps(d->device) & TSR_DEVICE_NEEDS_LOCK)) return 0;
    if (d->locked != m) {
        tsri_lent_unlock(d);
        int e = tsri_locking_open(&d->locking, d->device, m->pool.data, m->pool.bytes,
                                  m->welcome.page_bytes);
        if (e) return e;
        atomic_fetch_add(&m->refs, 1);
        d->locked = m;
    }
    d->source.locking = d->locking;
    return 0;
}
