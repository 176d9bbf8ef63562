/* browse.c - a cache as people look at it through a server: its entries one after the other, a
 * space by its fingerprint, and bringing up whatever fits. All of it walks the table of entries in
 * steps, so that whoever else needs the lock waits for one step only. */
#include "cache/manager.h"

#define STEP 256u /* ids looked at under one lock */
#define FETCHES 16u

/* ---- entries ---- */

/* Under lock. */
static bool row_of(struct tsr_cache *c, uint32_t id, struct tsri_entry_row *out)
{
    const struct tsri_entry *e = &c->entries[id];
    uint64_t word = atomic_load(&e->word);
    enum tsri_state state = tsri_word_state(word);
    if (state != TSRI_HOST && state != TSRI_COLD) return false;
    const struct tsr_space *space = &c->spaces[e->space];
    struct tsri_key key = tsri_entry_key(e);
    *out = (struct tsri_entry_row){.entry = tsri_handle(id, tsri_word_gen(word)),
                                   .n_tokens = e->n_tokens,
                                   .pins = tsri_word_pins(word),
                                   .user_pins = e->user_pins,
                                   .kind = e->kind,
                                   .tiers = atomic_load(&e->tiers)};
    memcpy(&out->key, &key, sizeof out->key);
    memcpy(out->space, space->fingerprint, sizeof out->space);
    if (space->shaped) out->bytes = (uint64_t)e->n_tokens * tsri_shape_token_bytes(&space->shape);
    return true;
}

uint32_t tsri_cache_list(struct tsr_cache *c, uint32_t first, struct tsri_entry_row *out,
                         uint32_t max, uint32_t *next)
{
    uint32_t n = 0, id = first, end = UINT32_MAX;
    while (id < end && n < max) {
        pthread_mutex_lock(&c->lock);
        end = c->ids_fresh;
        for (uint32_t k = 0; k < STEP && id < end && n < max; k++, id++)
            n += row_of(c, id, &out[n]);
        pthread_mutex_unlock(&c->lock);
    }
    *next = id < end ? id : TSRI_LIST_END;
    return n;
}

/* In one lock, so that the rows of one call are in the order of one moment. What is behind them is
 * not walked. */
int tsri_cache_order(struct tsr_cache *c, uint32_t first, struct tsri_entry_row *out, uint32_t max,
                     uint32_t *next, uint32_t *total)
{
    uint32_t left = c->ids_max - tsri_min_u32(first, c->ids_max);
    size_t want = (size_t)tsri_min_u32(first, c->ids_max) + tsri_min_u32(max, left);
    uint32_t *ids = want ? tsri_alloc(want, sizeof *ids) : NULL;
    uint32_t n = 0;
    if (want && !ids) return TSR_ENOMEM;
    pthread_mutex_lock(&c->lock);
    tsri_touch_drain(c);
    size_t n_ids = want ? c->policy->ops->order(c->policy, ids, want) : 0;
    *total = c->n_host;
    for (size_t i = first; i < n_ids && n < max; i++)
        n += row_of(c, ids[i], &out[n]);
    pthread_mutex_unlock(&c->lock);
    tsri_free(ids);
    *next = n_ids < *total && n_ids > first ? (uint32_t)n_ids : TSRI_LIST_END;
    return (int)n;
}

/* ---- spaces ---- */

int tsri_space_find(struct tsr_space **out, struct tsr_cache *c, const uint8_t fingerprint[16],
                    bool *shaped)
{
    struct tsr_space *found = NULL;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_spaces && !found; i++) {
        struct tsr_space *s = &c->spaces[i];
        bool is_used = s->refs > 0 || s->n_entries > 0;
        if (is_used && memcmp(s->fingerprint, fingerprint, 16) == 0) found = s;
    }
    if (found) {
        found->refs++;
        *shaped = found->shaped;
    }
    pthread_mutex_unlock(&c->lock);
    *out = found;
    return found ? 0 : tsri_fail(TSR_ENOENT, "no such space");
}

/* ---- bringing up ---- */

/* Under lock: does it fit into what is free, besides `pages` that are promised already? */
static bool fits(struct tsr_cache *c, uint32_t id, uint64_t *pages, uint64_t *bytes)
{
    const struct tsri_entry *e = &c->entries[id];
    const struct tsr_space *space = &c->spaces[e->space];
    if (tsri_word_state(atomic_load(&e->word)) != TSRI_COLD || !space->shaped) return false;
    uint64_t n_pages = tsri_shape_n_pages(&space->shape, e->n_tokens);
    if (*pages + n_pages > tsri_pool_n_free(&c->pool)) return false;
    *pages += n_pages;
    *bytes += n_pages << c->pool.page_shift;
    return true;
}

/* From *id on, entries that fit, pinned. */
static uint32_t take_cold(struct tsr_cache *c, uint32_t *id, uint64_t bytes_max, uint64_t *bytes,
                          struct tsri_fetch *out)
{
    uint32_t n = 0, end = UINT32_MAX;
    uint64_t pages = 0;
    while (*id < end && n < FETCHES && *bytes < bytes_max) {
        pthread_mutex_lock(&c->lock);
        end = c->ids_fresh;
        for (uint32_t k = 0; k < STEP && *id < end && n < FETCHES && *bytes < bytes_max; k++) {
            uint32_t at = (*id)++;
            if (!fits(c, at, &pages, bytes) || tsri_pin(c, at) == TSRI_FREE) continue;
            out[n++] = (struct tsri_fetch){.id = at};
        }
        pthread_mutex_unlock(&c->lock);
    }
    return n;
}

uint32_t tsri_cache_warm(struct tsr_cache *c, uint64_t bytes_max, const atomic_bool *stop)
{
    struct tsri_fetch fetches[FETCHES];
    uint32_t id = 0, n, n_warm = 0;
    uint64_t bytes = 0;
    if (bytes_max == 0) bytes_max = UINT64_MAX;
    while (!(stop && atomic_load(stop)) &&
           (n = take_cold(c, &id, bytes_max, &bytes, fetches)) > 0) {
        tsri_manager_fetch(c, fetches, n);
        for (uint32_t i = 0; i < n; i++) {
            n_warm += fetches[i].result == 0;
            tsri_unpin(c, fetches[i].id);
        }
    }
    return n_warm;
}
