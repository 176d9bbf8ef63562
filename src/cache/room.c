/* room.c - making room: taking memory for an entry by evicting others in the policy's order, and
 * telling the policy what readers used.
 *
 * Readers must not wait for the policy's lock, so they leave the ids they used in one of several
 * small buffers (by thread) and whoever next holds the lock empties them. A buffer that is full or
 * busy loses the note, which costs a little recency and nothing else. */
#include "cache/manager.h"

/* ---- uses on their way to the policy ---- */

static struct tsri_touch_stripe *my_stripe(struct tsr_cache *c)
{
    uint32_t id = tsri_stats_thread ? tsri_stats_thread : tsri_stats_thread_init();
    return &c->touch->stripes[id % TSRI_TOUCH_STRIPES];
}

static bool stripe_try(struct tsri_touch_stripe *s)
{
    return !atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire);
}

static void stripe_leave(struct tsri_touch_stripe *s)
{
    atomic_flag_clear_explicit(&s->busy, memory_order_release);
}

void tsri_touch_push(struct tsr_cache *c, const uint32_t *ids, uint32_t n)
{
    struct tsri_touch_stripe *s = my_stripe(c);
    if (n > TSRI_TOUCH_IDS) {
        ids += n - TSRI_TOUCH_IDS;
        n = TSRI_TOUCH_IDS;
    }
    bool kept = false;
    for (int attempt = 0; attempt < 2 && !kept; attempt++) {
        if (stripe_try(s)) {
            if (s->n + n <= TSRI_TOUCH_IDS) {
                memcpy(s->ids + s->n, ids, n * sizeof ids[0]);
                s->n += n;
                kept = true;
            }
            stripe_leave(s);
        }
        if (kept || attempt || pthread_mutex_trylock(&c->lock) != 0) break;
        tsri_touch_drain(c);
        pthread_mutex_unlock(&c->lock);
    }
    if (!kept) tsri_stats_add(c->stats, TSRI_M_touches_dropped, n);
}

void tsri_touch_drain(struct tsr_cache *c)
{
    for (uint32_t i = 0; i < TSRI_TOUCH_STRIPES; i++) {
        struct tsri_touch_stripe *s = &c->touch->stripes[i];
        if (!stripe_try(s)) continue;
        for (uint32_t j = 0; j < s->n; j++) {
            /* It may have gone since, and its id may stand for another entry now: that one is then
             * thought used once more than it was. */
            uint64_t w = atomic_load_explicit(&c->entries[s->ids[j]].word, memory_order_relaxed);
            if (tsri_word_state(w) == TSRI_HOST) c->policy->ops->touch(c->policy, &s->ids[j], 1);
        }
        s->n = 0;
        stripe_leave(s);
    }
}

/* ---- eviction ---- */

static int may_go(void *arg, uint32_t id)
{
    struct tsr_cache *c = arg;
    const struct tsri_entry *e = &c->entries[id];
    uint64_t w = atomic_load_explicit(&e->word, memory_order_relaxed);
    if (tsri_word_state(w) != TSRI_HOST || tsri_word_pins(w) != 0) return 0;
    /* Leaves first: a block is useless without those before it. One that stays as COLD may go from
     * host memory with others behind it, they all can be read again. */
    uint8_t tiers = atomic_load_explicit(&e->tiers, memory_order_relaxed);
    return e->first_child == TSRI_ID_NONE || (tiers & ~1u) != 0;
}

static struct tsr_key key_of(const struct tsri_entry *e)
{
    struct tsri_key key = tsri_entry_key(e);
    struct tsr_key out;
    memcpy(&out, &key, sizeof out);
    return out;
}

/* Which one went; TSRI_ID_NONE when nothing may go. *key, if it is not NULL, is what it was. */
static uint32_t evict_next(struct tsr_cache *c, struct tsr_key *key)
{
    /* A reader may pin a victim in the moment it is chosen; then the next one is asked for. */
    for (uint32_t tries = 0; tries < 64; tries++) {
        uint32_t id = c->policy->ops->victim(c->policy, may_go, c);
        if (id == TSRI_POLICY_NONE) return id;
        struct tsr_key was = key_of(&c->entries[id]);
        if (!tsri_entry_evict(c, id)) continue;
        if (key) *key = was;
        return id;
    }
    return TSRI_ID_NONE;
}

static bool evict_one(struct tsr_cache *c)
{
    return evict_next(c, NULL) != TSRI_ID_NONE;
}

static int refuse(struct tsr_cache *c, uint32_t n_pages)
{
    return tsri_fail(TSR_EFULL, "no room for %u pages: %u of %u are free, the others are in use",
                     n_pages, tsri_pool_n_free(&c->pool), c->pool.n_pages);
}

int tsri_room_take(struct tsr_cache *c, const struct tsri_shape *s, uint32_t n_tokens,
                   uint32_t extra_bytes, uint32_t *meta_out)
{
    uint32_t n_pages = tsri_shape_n_pages(s, n_tokens), meta;
    size_t bytes = tsri_meta_bytes(n_tokens, n_pages, extra_bytes);
    if (n_pages == 0 || n_pages > c->pool.n_pages || bytes > tsri_arena_bytes_max(&c->arena))
        return tsri_fail(TSR_ERANGE,
                         "an entry of %u tokens needs %llu bytes, host_size is %llu (and "
                         "metadata_size %zu)",
                         n_tokens, (unsigned long long)n_pages << c->pool.page_shift,
                         (unsigned long long)c->pool.n_pages << c->pool.page_shift,
                         c->arena.region.bytes);
    tsri_touch_drain(c);
    bool frozen = atomic_load(&c->frozen);
    while (tsri_pool_n_free(&c->pool) < n_pages)
        if (frozen || !evict_one(c)) return refuse(c, n_pages);
    while (tsri_arena_alloc(&c->arena, bytes, &meta) != 0)
        if (frozen || !evict_one(c))
            return tsri_fail(TSR_EFULL,
                             "no room for %zu bytes of metadata: %zu of %zu (metadata_size) are "
                             "in use",
                             bytes, c->arena.bytes_used, tsri_arena_bytes_max(&c->arena));
    struct tsri_meta *m =
        (struct tsri_meta *)(void *)(c->arena.region.data + (size_t)meta * TSRI_ARENA_UNIT);
    *m = (struct tsri_meta){.n_tokens = n_tokens, .n_pages = n_pages, .extra_bytes = extra_bytes};
    bool have = tsri_pool_alloc(&c->pool, n_pages, tsri_meta_pages(m));
    TSR_ASSERT(have);
    *meta_out = meta;
    return 0;
}

/* What only a lower tier has goes first, where there is enough of it to be met soon: looking for a
 * few among a million would hold the lock for milliseconds. Otherwise the next of host memory goes,
 * and its copies with it. False when nothing may go. */
static bool give_up_one(struct tsr_cache *c)
{
    if (c->n_cold > c->n_host / 16 && tsri_manager_shed(c)) return true;
    uint32_t id = evict_next(c, NULL);
    if (id == TSRI_ID_NONE) return tsri_manager_shed(c);
    const struct tsri_entry *e = &c->entries[id];
    uint64_t w = atomic_load_explicit(&e->word, memory_order_relaxed);
    if (tsri_word_state(w) == TSRI_COLD && e->first_child == TSRI_ID_NONE)
        tsri_entry_drop(c, id, TSR_EVENT_EVICTED);
    return true;
}

int tsri_room_id(struct tsr_cache *c)
{
    bool frozen = atomic_load(&c->frozen);
    while (!tsri_entry_can_alloc(c))
        if (frozen || !give_up_one(c))
            return tsri_fail(TSR_EFULL, "all %u entries are in use (entries_max)", c->ids_max);
    return 0;
}

void tsri_room_give(struct tsr_cache *c, uint32_t meta)
{
    struct tsri_meta *m =
        (struct tsri_meta *)(void *)(c->arena.region.data + (size_t)meta * TSRI_ARENA_UNIT);
    tsri_pool_free(&c->pool, m->n_pages, tsri_meta_pages(m));
    tsri_arena_free(&c->arena, meta, tsri_meta_bytes(m->n_tokens, m->n_pages, m->extra_bytes));
}

#define EVICT_BATCH 256

/* In batches, so that others who want the lock wait for a batch only. */
int tsri_room_evict(struct tsr_cache *c, size_t free_bytes, struct tsr_key *keys, uint32_t keys_max)
{
    size_t page_bytes = (size_t)1 << c->pool.page_shift;
    size_t want = free_bytes / page_bytes + (free_bytes % page_bytes != 0);
    int n = 0;
    for (bool more = true; more && !atomic_load(&c->frozen);) {
        pthread_mutex_lock(&c->lock);
        tsri_touch_drain(c);
        for (int i = 0; more && i < EVICT_BATCH; i++) {
            more = tsri_pool_n_free(&c->pool) < want && (!keys || (uint32_t)n < keys_max) &&
                   evict_next(c, keys ? &keys[n] : NULL) != TSRI_ID_NONE;
            n += more;
        }
        pthread_mutex_unlock(&c->lock);
    }
    return n;
}

int tsri_room_list(struct tsr_cache *c, struct tsr_listed *out, uint32_t max)
{
    size_t want = tsri_min_u32(max, c->ids_max);
    uint32_t *ids = want ? tsri_alloc(want, sizeof *ids) : NULL;
    if (want && !ids) return TSR_ENOMEM;
    pthread_mutex_lock(&c->lock);
    tsri_touch_drain(c);
    uint32_t n_all = c->n_host;
    size_t n = want ? c->policy->ops->order(c->policy, ids, want) : 0;
    for (size_t i = 0; i < n; i++) {
        const struct tsri_entry *e = &c->entries[ids[i]];
        out[i] = (struct tsr_listed){.key = key_of(e),
                                     .n_tokens = e->n_tokens,
                                     .pins = tsri_word_pins(atomic_load(&e->word)),
                                     .kind = e->kind};
        memcpy(out[i].space, c->spaces[e->space].fingerprint, sizeof out[i].space);
    }
    pthread_mutex_unlock(&c->lock);
    tsri_free(ids);
    return (int)n_all;
}
