/* entries.c - the life of entries: states, pins and the chains of prefix blocks. The only file that
 * changes an entry's word. A pin is one compare-and-swap and needs no lock; everything that makes
 * an entry appear, change its place or vanish runs under the cache's lock. */
#include "cache/manager.h"

static struct tsri_entry *entry(struct tsr_cache *c, uint32_t id)
{
    TSR_ASSERT(id < c->ids_max);
    return &c->entries[id];
}

static uint64_t word_of(const struct tsri_entry *e)
{
    return atomic_load_explicit(&e->word, memory_order_relaxed);
}

/* Changes the state and keeps pins and generation; returns the word before. */
static uint64_t set_state(struct tsri_entry *e, enum tsri_state state)
{
    uint64_t w = word_of(e);
    while (!atomic_compare_exchange_weak_explicit(
        &e->word, &w, tsri_word_make(tsri_word_gen(w), state, tsri_word_pins(w)),
        memory_order_acq_rel, memory_order_relaxed)) {
    }
    return w;
}

/* ---- pins ---- */

static enum tsri_state pin_word(struct tsri_entry *e, bool any_gen, uint64_t gen)
{
    uint64_t w = word_of(e);
    for (;;) {
        enum tsri_state state = tsri_word_state(w);
        if (state != TSRI_HOST && state != TSRI_COLD) return TSRI_FREE;
        if (!any_gen && tsri_word_gen(w) != gen) return TSRI_FREE;
        if (tsri_word_pins(w) == TSRI_PINS_MAX) return TSRI_FREE;
        if (atomic_compare_exchange_weak_explicit(&e->word, &w, w + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return state;
    }
}

enum tsri_state tsri_pin(struct tsr_cache *c, uint32_t id)
{
    return pin_word(entry(c, id), true, 0);
}

enum tsri_state tsri_pin_handle(struct tsr_cache *c, uint64_t handle, uint32_t *id)
{
    *id = tsri_handle_id(handle);
    if (*id >= c->ids_max) return TSRI_FREE;
    return pin_word(entry(c, *id), false, handle >> 28);
}

/* Out of the index, but in place as long as somebody has it pinned: a lease taken in the moment in
 * which the entry was dropped still is a lease. */
static bool pin_dying(struct tsr_cache *c, uint64_t handle, uint32_t *id)
{
    *id = tsri_handle_id(handle);
    if (*id >= c->ids_max) return false;
    struct tsri_entry *e = entry(c, *id);
    /* Under the lock, as who drops it: what the entry still has is settled then. Rare enough. */
    pthread_mutex_lock(&c->lock);
    uint64_t w = word_of(e);
    bool pinned = false;
    while (!pinned && tsri_word_state(w) == TSRI_DYING && tsri_word_gen(w) == handle >> 28 &&
           tsri_word_pins(w) != 0 && tsri_word_pins(w) != TSRI_PINS_MAX && e->meta)
        pinned = atomic_compare_exchange_weak_explicit(&e->word, &w, w + 1, memory_order_acquire,
                                                       memory_order_relaxed);
    pthread_mutex_unlock(&c->lock);
    return pinned;
}

enum tsri_state tsri_pin_match(struct tsr_cache *c, const struct tsr_match *m, uint32_t *id)
{
    *id = TSRI_ID_NONE;
    if (m->epoch != c->epoch) return TSRI_FREE;
    enum tsri_state state = tsri_pin_handle(c, m->entry, id);
    return state == TSRI_FREE && pin_dying(c, m->entry, id) ? TSRI_HOST : state;
}

/* An entry that has used up its generations is never used again: its first handles would come to
 * life with it. That is one entry for every 68 thousand million stores into the same place. */
static void reclaim(struct tsr_cache *c, uint32_t id)
{
    struct tsri_entry *e = entry(c, id);
    uint64_t w = word_of(e);
    TSR_ASSERT(tsri_word_pins(w) == 0);
    if (tsri_word_state(w) != TSRI_FILLING) c->spaces[e->space].n_entries--;
    if (e->meta) tsri_room_give(c, e->meta);
    e->meta = 0;
    uint64_t gen = tsri_word_gen(w);
    if (gen < TSRI_GEN_MAX) {
        e->prev_sibling = c->ids_free;
        c->ids_free = id;
        gen++;
    }
    atomic_store_explicit(&e->word, tsri_word_make(gen, TSRI_FREE, 0), memory_order_release);
}

/* True when the caller let go the last pin of an entry that only waited for that. */
static bool let_go(struct tsri_entry *e)
{
    uint64_t w = atomic_fetch_sub_explicit(&e->word, 1, memory_order_acq_rel);
    TSR_ASSERT(tsri_word_pins(w) > 0);
    return tsri_word_state(w) == TSRI_DYING && tsri_word_pins(w) == 1;
}

void tsri_unpin(struct tsr_cache *c, uint32_t id)
{
    if (!let_go(entry(c, id))) return;
    pthread_mutex_lock(&c->lock);
    reclaim(c, id);
    pthread_mutex_unlock(&c->lock);
}

void tsri_unpin_locked(struct tsr_cache *c, uint32_t id)
{
    if (let_go(entry(c, id))) reclaim(c, id);
}

/* ---- how many there are ---- */

static void count_host(struct tsr_cache *c, uint32_t id)
{
    c->n_host++;
    c->host_tokens += entry(c, id)->n_tokens;
}

static void uncount_host(struct tsr_cache *c, uint32_t id)
{
    c->n_host--;
    c->host_tokens -= entry(c, id)->n_tokens;
}

static void count_cold(struct tsr_cache *c, uint32_t id)
{
    c->n_cold++;
    c->cold_tokens += entry(c, id)->n_tokens;
}

static void uncount_cold(struct tsr_cache *c, uint32_t id)
{
    c->n_cold--;
    c->cold_tokens -= entry(c, id)->n_tokens;
}

/* ---- birth ---- */

bool tsri_entry_can_alloc(const struct tsr_cache *c)
{
    return c->ids_free != TSRI_ID_NONE || c->ids_fresh < c->ids_max;
}

uint32_t tsri_entry_alloc(struct tsr_cache *c)
{
    uint32_t id = c->ids_free;
    if (id != TSRI_ID_NONE)
        c->ids_free = entry(c, id)->prev_sibling;
    else
        id = c->ids_fresh++;
    struct tsri_entry *e = entry(c, id);
    TSR_ASSERT(tsri_word_state(word_of(e)) == TSRI_FREE);
    e->parent = e->first_child = e->next_sibling = e->prev_sibling = TSRI_ID_NONE;
    e->meta = 0;
    e->user_pins = 0;
    e->flags = 0;
    e->cost_s = 0;
    atomic_store_explicit(&e->tiers, 0, memory_order_relaxed);
    set_state(e, TSRI_FILLING);
    return id;
}

void tsri_entry_abandon(struct tsr_cache *c, uint32_t id)
{
    TSR_ASSERT(tsri_word_state(word_of(entry(c, id))) == TSRI_FILLING);
    reclaim(c, id);
}

static void link_parent(struct tsr_cache *c, uint32_t id, uint32_t parent)
{
    struct tsri_entry *e = entry(c, id);
    e->parent = parent;
    if (parent == TSRI_ID_NONE) return;
    struct tsri_entry *p = entry(c, parent);
    e->next_sibling = p->first_child;
    if (p->first_child != TSRI_ID_NONE) entry(c, p->first_child)->prev_sibling = id;
    p->first_child = id;
}

static void unlink_parent(struct tsr_cache *c, uint32_t id)
{
    struct tsri_entry *e = entry(c, id);
    if (e->parent == TSRI_ID_NONE) return;
    if (e->prev_sibling != TSRI_ID_NONE)
        entry(c, e->prev_sibling)->next_sibling = e->next_sibling;
    else
        entry(c, e->parent)->first_child = e->next_sibling;
    if (e->next_sibling != TSRI_ID_NONE) entry(c, e->next_sibling)->prev_sibling = e->prev_sibling;
    e->parent = TSRI_ID_NONE;
}

static void tell(struct tsr_cache *c, const struct tsri_entry *e, enum tsr_event_kind kind)
{
    struct tsri_key key = tsri_entry_key(e);
    struct tsr_event event = {
        .n_tokens = e->n_tokens, .kind = (uint8_t)kind, .entry_kind = e->kind};
    memcpy(event.key.bytes, &key, sizeof event.key.bytes);
    memcpy(event.space, c->spaces[e->space].fingerprint, sizeof event.space);
    if (!tsri_events_push(&c->events, &event)) tsri_stats_add(c->stats, TSRI_M_events_dropped, 1);
}

static void rank(struct tsr_cache *c, uint32_t id)
{
    struct tsri_entry *e = entry(c, id);
    struct tsri_policy_item item = {.hash = tsri_entry_key(e).lo,
                                    .units = tsri_meta(c, e)->n_pages,
                                    .n_tokens = e->n_tokens,
                                    .parent = e->parent,
                                    .cost_s = e->cost_s};
    c->policy->ops->insert(c->policy, id, &item);
    count_host(c, id);
}

static void unrank(struct tsr_cache *c, uint32_t id)
{
    c->policy->ops->remove(c->policy, id);
    uncount_host(c, id);
}

void tsri_entry_publish(struct tsr_cache *c, uint32_t id, uint32_t parent)
{
    struct tsri_entry *e = entry(c, id);
    TSR_ASSERT(e->meta != 0);
    c->spaces[e->space].n_entries++;
    link_parent(c, id, parent);
    atomic_store_explicit(&e->tiers, 1, memory_order_relaxed);
    set_state(e, TSRI_HOST);
    tsri_index_insert(&c->index, tsri_entry_key(e), id);
    rank(c, id);
    tsri_windows_add(c, id);
    tsri_shingles_add(c, id);
    tell(c, e, TSR_EVENT_STORED);
}

void tsri_entry_adopt(struct tsr_cache *c, uint32_t id, uint32_t parent)
{
    if (entry(c, id)->parent == TSRI_ID_NONE) link_parent(c, id, parent);
}

void tsri_entry_publish_cold(struct tsr_cache *c, uint32_t id)
{
    struct tsri_entry *e = entry(c, id);
    c->spaces[e->space].n_entries++;
    set_state(e, TSRI_COLD);
    tsri_index_insert(&c->index, tsri_entry_key(e), id);
    count_cold(c, id);
}

void tsri_entry_warm(struct tsr_cache *c, uint32_t id, uint32_t meta)
{
    struct tsri_entry *e = entry(c, id);
    TSR_ASSERT(tsri_word_state(word_of(e)) == TSRI_COLD && e->meta == 0);
    e->meta = meta;
    atomic_fetch_or_explicit(&e->tiers, 1, memory_order_relaxed);
    set_state(e, TSRI_HOST);
    uncount_cold(c, id);
    rank(c, id);
    tsri_windows_add(c, id);
    tsri_shingles_add(c, id);
}

uint32_t tsri_entry_live(struct tsr_cache *c, struct tsri_key key)
{
    return tsri_index_find(&c->index, c->entries, key);
}

/* ---- death ---- */

/* Out of every structure; memory is freed when no pin is left. */
static void bury(struct tsr_cache *c, uint32_t id, enum tsr_event_kind why)
{
    struct tsri_entry *e = entry(c, id);
    tsri_index_remove(&c->index, tsri_entry_key(e), id);
    unlink_parent(c, id);
    tell(c, e, why);
    if (e->user_pins) {
        c->n_pinned--;
        tsri_unhold_pinned(c, id);
        /* The pins that tsr_space_pin took die with the entry. */
        atomic_fetch_sub_explicit(&e->word, e->user_pins, memory_order_acq_rel);
        e->user_pins = 0;
    }
    uint64_t before = set_state(e, TSRI_DYING);
    if (tsri_word_state(before) == TSRI_HOST)
        unrank(c, id);
    else
        uncount_cold(c, id);
    if (tsri_word_pins(before) == 0) {
        reclaim(c, id);
    } else if (tsri_word_pins(before) == 1 && e->meta &&
               (e->flags & (TSRI_ENTRY_QUEUED | TSRI_ENTRY_WRITING)) == TSRI_ENTRY_QUEUED) {
        /* Nobody but the writer has it, and will find that there is nothing to write. */
        tsri_room_give(c, e->meta);
        e->meta = 0;
    }
}

bool tsri_entry_evict(struct tsr_cache *c, uint32_t id)
{
    struct tsri_entry *e = entry(c, id);
    uint64_t w = word_of(e);
    if (tsri_word_state(w) != TSRI_HOST || tsri_word_pins(w) != 0) return false;
    bool stays = (atomic_load_explicit(&e->tiers, memory_order_relaxed) & ~1u) != 0;
    /* From here on nobody can pin it in host memory. */
    enum tsri_state next = stays ? TSRI_COLD : TSRI_DYING;
    if (!atomic_compare_exchange_strong_explicit(&e->word, &w,
                                                 tsri_word_make(tsri_word_gen(w), next, 0),
                                                 memory_order_acq_rel, memory_order_relaxed))
        return false;
    tsri_stats_add(c->stats, TSRI_M_evictions, 1);
    tsri_stats_add(c->stats, TSRI_M_evicted_bytes,
                   (uint64_t)e->n_tokens * tsri_shape_token_bytes(&c->spaces[e->space].shape));
    unrank(c, id);
    tsri_owed_left(c, id, false);
    if (stays) {
        tsri_stats_add(c->stats, TSRI_M_demotions, 1);
        count_cold(c, id);
        tsri_room_give(c, e->meta);
        e->meta = 0;
        atomic_fetch_and_explicit(&e->tiers, (uint8_t)~1u, memory_order_relaxed);
        return true;
    }
    TSR_ASSERT(e->first_child == TSRI_ID_NONE);
    tsri_index_remove(&c->index, tsri_entry_key(e), id);
    unlink_parent(c, id);
    tell(c, e, TSR_EVENT_EVICTED);
    reclaim(c, id);
    return true;
}

uint32_t tsri_entry_drop(struct tsr_cache *c, uint32_t id, enum tsr_event_kind why)
{
    uint32_t n = 0;
    for (uint32_t at = id;;) {
        while (entry(c, at)->first_child != TSRI_ID_NONE)
            at = entry(c, at)->first_child;
        uint32_t parent = entry(c, at)->parent;
        tsri_manager_forget(c, at, why);
        bury(c, at, why);
        n++;
        if (at == id) return n;
        at = parent;
    }
}

/* The entry that comes after `at` among an entry and all behind it; TSRI_ID_NONE: it was the last. */
static uint32_t next_behind(struct tsr_cache *c, uint32_t id, uint32_t at)
{
    uint32_t next = entry(c, at)->first_child;
    while (next == TSRI_ID_NONE && at != id) {
        next = entry(c, at)->next_sibling;
        if (next == TSRI_ID_NONE) at = entry(c, at)->parent;
    }
    return next;
}

/* Stops at the first that is pinned. */
bool tsri_entry_is_idle(struct tsr_cache *c, uint32_t id)
{
    for (uint32_t at = id; at != TSRI_ID_NONE; at = next_behind(c, id, at)) {
        const struct tsri_entry *e = entry(c, at);
        if (tsri_word_pins(word_of(e)) > (e->flags & TSRI_ENTRY_QUEUED ? 1u : 0u)) return false;
    }
    return true;
}

void tsri_entry_each_behind(struct tsr_cache *c, uint32_t id,
                            void (*fn)(struct tsr_cache *, uint32_t))
{
    for (uint32_t at = id; at != TSRI_ID_NONE; at = next_behind(c, id, at))
        fn(c, at);
}
