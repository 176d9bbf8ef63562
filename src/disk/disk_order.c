/* disk_order.c - the entries of a disk tier by their last use: put or got. The checkpoint lists
 * them in this order, so that a cache evicts after a restart what it would have evicted before.
 *
 * There are two lists. The cache may have no place in its index for all that is on disk; those
 * entries, the strays, are left alone: a later open may have room for them. They are the first to
 * go when the tier itself has no more room, since nobody can ask for them now. A scan lists a block
 * behind the one before it, and strays are kept in that order too: a chain goes from its end. */
#include "disk/disk.h"

#include <stdlib.h>

/* ---- the lists ---- */

static struct tsri_disk_order *list_of(struct tsri_disk_index *x, bool stray)
{
    return &x->order[stray ? 1 : 0];
}

void tsri_order_init(struct tsri_disk_index *x)
{
    for (uint32_t i = 0; i < TSRI_COUNT(x->order); i++)
        x->order[i] = (struct tsri_disk_order){TSRI_NO_SLOT, TSRI_NO_SLOT, 0};
}

void tsri_order_add(struct tsri_disk_index *x, uint32_t slot, bool stray)
{
    struct tsri_disk_order *o = list_of(x, stray);
    struct tsri_disk_slot *s = tsri_disk_index_at(x, slot);
    s->stray = stray;
    s->newer = TSRI_NO_SLOT;
    s->older = o->newest;
    if (o->newest != TSRI_NO_SLOT)
        tsri_disk_index_at(x, o->newest)->newer = slot;
    else
        o->oldest = slot;
    o->newest = slot;
    o->n++;
}

static void add_last(struct tsri_disk_index *x, uint32_t slot, bool stray)
{
    struct tsri_disk_order *o = list_of(x, stray);
    struct tsri_disk_slot *s = tsri_disk_index_at(x, slot);
    s->stray = stray;
    s->older = TSRI_NO_SLOT;
    s->newer = o->oldest;
    if (o->oldest != TSRI_NO_SLOT)
        tsri_disk_index_at(x, o->oldest)->older = slot;
    else
        o->newest = slot;
    o->oldest = slot;
    o->n++;
}

void tsri_order_remove(struct tsri_disk_index *x, uint32_t slot)
{
    const struct tsri_disk_slot *s = tsri_disk_index_at(x, slot);
    struct tsri_disk_order *o = list_of(x, s->stray);
    if (s->newer != TSRI_NO_SLOT)
        tsri_disk_index_at(x, s->newer)->older = s->older;
    else
        o->newest = s->older;
    if (s->older != TSRI_NO_SLOT)
        tsri_disk_index_at(x, s->older)->newer = s->newer;
    else
        o->oldest = s->newer;
    o->n--;
}

void tsri_order_touch(struct tsri_disk_index *x, uint32_t slot, bool stray)
{
    tsri_order_remove(x, slot);
    tsri_order_add(x, slot, stray);
}

void tsri_order_put_last(struct tsri_disk_index *x, uint32_t slot)
{
    tsri_order_remove(x, slot);
    add_last(x, slot, false);
}

/* ---- after open ---- */

struct walked {
    uint64_t seq;
    uint32_t slot;
};

static int by_seq(const void *a, const void *b)
{
    const struct walked *x = a, *y = b;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

int tsri_order_walked(struct tsri_disk_index *x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n_slots; i++) {
        const struct tsri_disk_slot *s = tsri_disk_index_at(x, i);
        n += s->segment && s->walked;
    }
    if (n == 0) return 0;
    struct walked *list = tsri_alloc(n, sizeof list[0]);
    if (!list) return TSR_ENOMEM;
    n = 0;
    for (uint32_t i = 0; i < x->n_slots; i++) {
        struct tsri_disk_slot *s = tsri_disk_index_at(x, i);
        if (s->segment && s->walked) list[n++] = (struct walked){s->seq, i};
        s->walked = false;
    }
    qsort(list, n, sizeof list[0], by_seq);
    for (uint32_t i = 0; i < n; i++)
        tsri_order_touch(x, list[i].slot, false);
    tsri_free(list);
    return 0;
}

/* ---- scan ---- */

/* The block before a block of a prefix, or TSRI_NO_SLOT. */
static uint32_t block_before(const struct tsri_disk_index *x, uint32_t slot)
{
    static const struct tsr_key none;
    const struct tsr_entry_head *h = &tsri_disk_index_at(x, slot)->head;
    if (h->kind != TSR_KIND_PREFIX || memcmp(&h->parent, &none, sizeof none) == 0)
        return TSRI_NO_SLOT;
    return tsri_disk_index_find(x, &h->parent);
}

/* Lists a slot behind the blocks before it that are not listed yet; a chain that meets itself ends
 * there. Returns how many are listed then. */
static uint32_t list_chain(const struct tsri_disk_index *x, uint32_t slot, uint8_t *listed,
                           uint32_t *out, uint32_t n)
{
    uint32_t first = n;
    for (; slot != TSRI_NO_SLOT && !listed[slot]; slot = block_before(x, slot)) {
        listed[slot] = 1;
        out[n++] = slot;
    }
    for (uint32_t i = first, k = n; i + 1 < k; i++) {
        uint32_t swap = out[i];
        out[i] = out[--k];
        out[k] = swap;
    }
    return n;
}

/* Most recently used first, strays last. What fn has no place for is a stray from now on. Runs
 * alone: the index does not change. */
static int scan_order(struct tsri_disk_index *x, uint8_t *listed, uint32_t *out,
                      tsr_tier_scan_fn fn, void *arg)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < TSRI_COUNT(x->order); k++)
        for (uint32_t slot = x->order[k].newest; slot != TSRI_NO_SLOT;
             slot = tsri_disk_index_at(x, slot)->older)
            n = list_chain(x, slot, listed, out, n);
    TSR_ASSERT(n == x->n_entries);
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_disk_slot *s = tsri_disk_index_at(x, out[i]);
        uint64_t bytes = (uint64_t)s->n_pages * TSRI_PAGE_BYTES;
        int r = fn(arg, &s->head, (tsr_tier_loc)out[i] + 1, bytes);
        if (r < 0) return r;
        listed[out[i]] = r > 0;
    }
    tsri_order_init(x);
    for (uint32_t i = 0; i < n; i++)
        add_last(x, out[i], listed[out[i]]);
    return 0;
}

int tsri_disk_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    struct tsri_disk_index *x = &d->index;
    if (x->n_entries == 0) return 0;
    uint32_t *out = tsri_alloc(x->n_entries, sizeof out[0]);
    uint8_t *listed = tsri_alloc(x->n_slots, 1);
    int err = out && listed ? scan_order(x, listed, out, fn, arg) : TSR_ENOMEM;
    tsri_free(listed);
    tsri_free(out);
    return err;
}

/* ---- strays ---- */

int tsri_disk_unlist(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!tsri_fork_guard_parent(&d->guard))
        return tsri_fail(TSR_EFORK, "disk: not usable after fork");
    int n_found = 0;
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = tsri_disk_index_find(&d->index, &refs[i].key);
        if (slot == TSRI_NO_SLOT) continue;
        tsri_order_touch(&d->index, slot, true);
        n_found++;
    }
    d->reordered |= n_found > 0;
    pthread_mutex_unlock(&d->lock);
    return n_found;
}

/* Writes tombstones where many wait. Neither lock is held. */
static int bury_some(struct tsri_disk *d)
{
    pthread_mutex_lock(&d->upkeep);
    int err = tsri_disk_bury(d);
    pthread_mutex_unlock(&d->upkeep);
    return err;
}

#define BURY_AT (TSRI_TOMBS_PENDING / 2)

int tsri_disk_purge(struct tsr_tier *tier, const uint8_t *space)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!tsri_fork_guard_parent(&d->guard))
        return tsri_fail(TSR_EFORK, "disk: not usable after fork");
    int n = 0;
    for (bool more = true; more;) {
        more = false;
        pthread_mutex_lock(&d->lock);
        for (uint32_t slot = d->index.order[1].oldest, newer; slot != TSRI_NO_SLOT; slot = newer) {
            const struct tsri_disk_slot *s = tsri_disk_index_at(&d->index, slot);
            newer = s->newer;
            if (space && memcmp(s->head.space, space, sizeof s->head.space) != 0) continue;
            more = d->n_tombs >= BURY_AT;
            if (more) break;
            tsri_disk_forget(d, slot);
            n++;
        }
        pthread_mutex_unlock(&d->lock);
        int err = more ? bury_some(d) : 0;
        if (err) return err;
    }
    return n;
}

bool tsri_disk_drop_strays(struct tsri_disk *d, uint64_t bytes)
{
    for (;;) {
        pthread_mutex_lock(&d->lock);
        struct tsri_disk_order *strays = &d->index.order[1];
        while (d->bytes_max && d->bytes_live + bytes > d->live_max && strays->n &&
               d->n_tombs < BURY_AT)
            tsri_disk_forget(d, strays->oldest);
        bool fits = !d->bytes_max || d->bytes_live + bytes <= d->live_max, more = strays->n > 0;
        pthread_mutex_unlock(&d->lock);
        if (fits || !more) return fits;
        if (bury_some(d) != 0) return false;
    }
}
