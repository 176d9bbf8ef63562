/* holds.c - how much of host memory clients keep in its place: entries that they lease, stores that
 * they have begun, and what is pinned for good. None of it can be evicted, so it is counted in
 * pages and bounded, or one client could leave no room for any store.
 *
 * The rule: a client may hold at most twice as much as it leaves to be held by others, and a
 * quarter of the pool is never held at all. So a client that is alone holds half of the pool, those
 * who come later still find something, and there always is something to evict. What somebody holds
 * already costs nothing more: an entry counts once, for a client and for the cache.
 *
 * Only in caches that other processes use. A program that has its cache for itself is limited by
 * lease_entries_max alone, and pays nothing. */
#include "cache/core.h"

/* What one client has of one entry; n 0: an empty slot. */
struct tsri_held {
    uint32_t id, n;
};

int tsri_holds_init(struct tsri_holds *h, uint32_t n_pages, uint32_t ids_max)
{
    int e = tsri_region_init(&h->region, (size_t)ids_max * sizeof *h->by_id);
    if (e) return e;
    h->by_id = (uint32_t *)(void *)h->region.data;
    h->n_pages = n_pages;
    h->pages_max = n_pages - n_pages / 4;
    return 0;
}

void tsri_holds_fini(struct tsri_holds *h)
{
    tsri_region_fini(&h->region);
    h->by_id = NULL;
}

/* ---- one client ---- */

int tsri_holder_init(struct tsri_holder *x, struct tsr_cache *c, uint32_t entries_max)
{
    *x = (struct tsri_holder){.cache = c};
    if (!c->holds.by_id) return 0;
    uint32_t bits = 4;
    while ((1u << bits) < 2 * (uint64_t)entries_max)
        bits++;
    int e = tsri_region_init(&x->region, ((size_t)1 << bits) * sizeof *x->slots);
    if (e) return e;
    x->slots = (struct tsri_held *)(void *)x->region.data;
    x->bits = bits;
    return 0;
}

static uint32_t home(const struct tsri_holder *x, uint32_t id)
{
    return (uint32_t)(id * 0x9E3779B97F4A7C15u >> (64 - x->bits));
}

static uint32_t after(const struct tsri_holder *x, uint32_t at)
{
    return (at + 1) & ((1u << x->bits) - 1);
}

/* Where the entry is, or where it would be. */
static uint32_t find(const struct tsri_holder *x, uint32_t id)
{
    uint32_t at = home(x, id);
    while (x->slots[at].n && x->slots[at].id != id)
        at = after(x, at);
    return at;
}

/* Those behind it move up as far as they may. */
static void remove_at(struct tsri_holder *x, uint32_t at)
{
    uint32_t mask = (1u << x->bits) - 1;
    x->slots[at].n = 0;
    for (uint32_t next = after(x, at); x->slots[next].n; next = after(x, next)) {
        uint32_t wants = home(x, x->slots[next].id);
        if (((next - wants) & mask) < ((next - at) & mask)) continue;
        x->slots[at] = x->slots[next];
        x->slots[next].n = 0;
        at = next;
    }
}

static uint32_t pages_of(const struct tsr_cache *c, uint32_t id)
{
    const struct tsri_entry *e = &c->entries[id];
    return tsri_shape_n_pages(&c->spaces[e->space].shape, e->n_tokens);
}

/* Under lock. The first one is let by, however large: a client must be able to read it. */
static bool take(struct tsri_holds *h, const struct tsri_holder *x, uint64_t n)
{
    bool first = h->pages == 0 && n <= h->n_pages;
    uint64_t left = h->pages + n <= h->pages_max ? h->pages_max - h->pages - n : 0;
    if (!first && x->pages + n > 2 * left) return false;
    h->pages += n;
    return true;
}

static bool hold_one(struct tsri_holds *h, struct tsri_holder *x, uint32_t id)
{
    uint32_t at = find(x, id);
    if (x->slots[at].n) {
        x->slots[at].n++;
        return true;
    }
    uint32_t n = pages_of(x->cache, id);
    if (h->by_id[id] == 0 && !take(h, x, n)) return false;
    h->by_id[id]++;
    x->pages += n;
    x->slots[at] = (struct tsri_held){id, 1};
    return true;
}

static void let_go(struct tsri_holds *h, uint32_t id, uint32_t n_pages)
{
    TSR_ASSERT(h->by_id[id] > 0);
    if (--h->by_id[id] == 0) h->pages -= n_pages;
}

static void unhold_one(struct tsri_holds *h, struct tsri_holder *x, uint32_t id)
{
    uint32_t at = find(x, id);
    TSR_ASSERT(x->slots[at].n > 0);
    if (--x->slots[at].n) return;
    remove_at(x, at);
    uint32_t n = pages_of(x->cache, id);
    x->pages -= n;
    let_go(h, id, n);
}

bool tsri_hold(struct tsri_holder *x, const uint32_t *ids, uint32_t n)
{
    struct tsri_holds *h = &x->cache->holds;
    uint32_t done = 0;
    if (!x->slots) return true;
    pthread_mutex_lock(&h->lock);
    while (done < n && hold_one(h, x, ids[done]))
        done++;
    bool all = done == n;
    while (!all && done > 0)
        unhold_one(h, x, ids[--done]);
    pthread_mutex_unlock(&h->lock);
    return all;
}

void tsri_unhold(struct tsri_holder *x, const uint32_t *ids, uint32_t n)
{
    struct tsri_holds *h = &x->cache->holds;
    if (!x->slots) return;
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < n; i++)
        unhold_one(h, x, ids[i]);
    pthread_mutex_unlock(&h->lock);
}

bool tsri_hold_pages(struct tsri_holder *x, uint64_t n)
{
    struct tsri_holds *h = &x->cache->holds;
    if (!x->slots) return true;
    pthread_mutex_lock(&h->lock);
    bool may = take(h, x, n);
    x->pages += may ? n : 0;
    pthread_mutex_unlock(&h->lock);
    return may;
}

void tsri_unhold_pages(struct tsri_holder *x, uint64_t n)
{
    struct tsri_holds *h = &x->cache->holds;
    if (!x->slots) return;
    pthread_mutex_lock(&h->lock);
    TSR_ASSERT(x->pages >= n && h->pages >= n);
    x->pages -= n;
    h->pages -= n;
    pthread_mutex_unlock(&h->lock);
}

void tsri_holder_fini(struct tsri_holder *x)
{
    tsri_region_fini(&x->region);
    x->slots = NULL;
}

/* ---- for good ---- */

bool tsri_hold_pinned(struct tsr_cache *c, uint32_t id)
{
    struct tsri_holds *h = &c->holds;
    if (!h->by_id) return true;
    uint32_t n = pages_of(c, id);
    pthread_mutex_lock(&h->lock);
    bool may = h->pages_pinned + n <= h->n_pages / 2;
    if (may) {
        h->pages_pinned += n;
        if (h->by_id[id]++ == 0) h->pages += n;
    }
    pthread_mutex_unlock(&h->lock);
    return may;
}

void tsri_unhold_pinned(struct tsr_cache *c, uint32_t id)
{
    struct tsri_holds *h = &c->holds;
    if (!h->by_id) return;
    uint32_t n = pages_of(c, id);
    pthread_mutex_lock(&h->lock);
    h->pages_pinned -= n;
    let_go(h, id, n);
    pthread_mutex_unlock(&h->lock);
}
