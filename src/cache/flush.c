/* flush.c - the acknowledgement that survives a crash, and what stands in its way.
 *
 * A tier is owed an entry that it should have and has not: a put failed, or the tier let go of it
 * because a sync failed (after that the kernel may have dropped the bytes, and a later sync would
 * not tell). While such an entry is in host memory every flush writes it again, and fails until
 * that has worked. When it leaves host memory for want of room it is lost: a miss later, of which
 * every thread that flushes is told once (losses.c). What is dropped or cleared is owed no longer.
 */
#include "cache/manager.h"

#define CHECK_AT_ONCE 256u

/* ---- what is owed; under cache->lock ---- */

void tsri_owed_set(struct tsri_manager *m, uint32_t id, uint8_t tiers)
{
    if (m->owed[id]) m->n_owed--;
    if (tiers) m->n_owed++;
    m->owed[id] = tiers;
}

void tsri_owed_left(struct tsr_cache *c, uint32_t id, bool dropped)
{
    struct tsri_manager *m = c->manager;
    if (!m || !m->n_owed || !m->owed[id]) return;
    tsri_owed_set(m, id, 0);
    if (!dropped) tsri_losses_add(&m->c->losses, 1);
}

/* ---- after a flush of a tier has failed ---- */

/* Tier t no longer has what we know as id. Under cache->lock. */
static void let_go(struct tsri_manager *m, uint32_t t, uint32_t id, const struct tsr_tier_ref *ref)
{
    struct tsr_cache *c = m->c;
    struct tsri_entry *e = &c->entries[id];
    if (!(atomic_load_explicit(&e->tiers, memory_order_relaxed) >> t & 1)) return;
    struct tsr_tier_ref now = tsri_manager_ref(c, id, t);
    if (now.loc != ref->loc || memcmp(&now.key, &ref->key, sizeof now.key) != 0) return;
    tsri_manager_lost(c, id, t);
    uint8_t left = atomic_load_explicit(&e->tiers, memory_order_relaxed);
    if (tsri_word_state(atomic_load(&e->word)) == TSRI_HOST) {
        tsri_owed_set(m, id, (uint8_t)(m->owed[id] | 1u << t));
        return;
    }
    uint32_t n = left ? 1 : tsri_entry_drop(c, id, TSR_EVENT_DROPPED);
    if (!left) tsri_stats_add(c->stats, TSRI_M_drops, n);
    tsri_losses_add(&m->c->losses, n);
}

/* Entries from *id on that tier t should have. Under cache->lock. */
static uint32_t list_held(struct tsri_manager *m, uint32_t t, uint32_t *id, uint32_t *ids,
                          struct tsr_tier_ref *refs)
{
    const struct tsr_cache *c = m->c;
    uint32_t n = 0;
    for (; *id < c->ids_fresh && n < CHECK_AT_ONCE; ++*id) {
        const struct tsri_entry *e = &c->entries[*id];
        enum tsri_state state = tsri_word_state(atomic_load(&e->word));
        if (state != TSRI_HOST && state != TSRI_COLD) continue;
        if (!(atomic_load_explicit(&e->tiers, memory_order_relaxed) >> t & 1)) continue;
        refs[n] = tsri_manager_ref(c, *id, t);
        ids[n++] = *id;
    }
    return n;
}

void tsri_flush_check(struct tsri_manager *m, uint32_t t)
{
    struct tsr_cache *c = m->c;
    struct tsr_tier_ref refs[CHECK_AT_ONCE];
    uint32_t ids[CHECK_AT_ONCE];
    uint8_t found[CHECK_AT_ONCE];
    for (uint32_t id = 0, n = 1; n;) {
        pthread_mutex_lock(&c->lock);
        n = list_held(m, t, &id, ids, refs);
        pthread_mutex_unlock(&c->lock);
        if (!n || tsri_tier_contains(m->lower[t].tier, refs, n, found) < 0) continue;
        pthread_mutex_lock(&c->lock);
        for (uint32_t i = 0; i < n; i++)
            if (!found[i]) let_go(m, t, ids[i], &refs[i]);
        pthread_mutex_unlock(&c->lock);
    }
}

/* The writer does it, between two puts: what it has put it has noted then. */
static void check_below(struct tsri_manager *m, uint32_t t)
{
    pthread_mutex_lock(&m->lock);
    m->to_check |= (uint8_t)(1u << t);
    uint64_t until = ++m->n_checks;
    pthread_cond_signal(&m->more);
    while (m->n_checked < until)
        pthread_cond_wait(&m->done, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

/* ---- flush ---- */

/* Queues what is owed from *id on, no more than may wait at once; returns how many. */
static uint32_t queue_owed(struct tsri_manager *m, uint32_t *id)
{
    struct tsr_cache *c = m->c;
    uint32_t n = 0;
    pthread_mutex_lock(&c->lock);
    for (; m->n_owed && *id < c->ids_fresh && n < m->puts_max; ++*id) {
        if (!m->owed[*id]) continue;
        tsri_writeback_queue(m, *id, m->owed[*id]);
        n++;
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

static uint32_t count_owed(struct tsri_manager *m)
{
    pthread_mutex_lock(&m->c->lock);
    uint32_t n = m->n_owed;
    pthread_mutex_unlock(&m->c->lock);
    return n;
}

/* Once each; where a whole round brings nothing, the rest is not tried. */
static void write_owed(struct tsri_manager *m)
{
    uint32_t before = count_owed(m);
    for (uint32_t id = 0; before && queue_owed(m, &id);) {
        tsri_manager_drain(m->c);
        uint32_t now = count_owed(m);
        if (now >= before) break;
        before = now;
    }
}

int tsri_cache_flush(struct tsr_cache *c, uint64_t *n_lost)
{
    struct tsri_manager *m = c->manager;
    if (n_lost) *n_lost = 0;
    if (m->n_lower == 0) return 0;
    tsri_manager_drain(c);
    write_owed(m);
    int err = 0;
    for (uint32_t t = 1; t <= m->n_lower; t++) {
        int e = tsri_tier_flush(m->lower[t].tier);
        if (e < 0 && t != m->hot && !tsri_tier_is_shared(m->lower[t].tier)) check_below(m, t);
        if (e < 0 && err == 0) err = e;
    }
    uint64_t n_owed = count_owed(m);
    uint64_t n_told = n_lost ? 0 : tsri_losses_tell(&m->c->losses);
    if (n_lost) *n_lost = tsri_losses_count(&m->c->losses);
    if (err) return err;
    if (n_owed) {
        char why[sizeof m->why];
        pthread_mutex_lock(&m->lock);
        memcpy(why, m->why, sizeof why);
        pthread_mutex_unlock(&m->lock);
        return tsri_fail(TSR_EIO, "%llu entries could not be written to lower tiers%s%s",
                         (unsigned long long)n_owed + n_told, why[0] ? ": " : "", why);
    }
    return n_told ? tsri_fail(TSR_EIO,
                              "%llu entries were lost before they were written to lower tiers",
                              (unsigned long long)n_told)
                  : 0;
}
