/* cache.c - opening and closing a cache, and what concerns all of its entries: clearing, pinning
 * for good, the numbers. Everything big is reserved in open, in the order of the struct, and given
 * back in reverse. */
#include "cache/backend.h"
#include "cache/manager.h"
#include "cache/ops.h"

#include <stdlib.h>

static int open_parts(struct tsr_cache *c, const struct tsr_config *cfg)
{
    int e = tsri_fork_guard_init(&c->guard);
    if (e == 0) e = tsri_stats_open(&c->stats);
    if (e == 0) e = tsri_events_init(&c->events, c->options.events_max);
    if (e) return e;
    c->touch = aligned_alloc(TSRI_CACHE_LINE, sizeof *c->touch);
    c->spaces = tsri_alloc(c->options.spaces_max, sizeof *c->spaces);
    if (!c->touch || !c->spaces) return tsri_fail(TSR_ENOMEM, "out of memory for a cache");
    memset(c->touch, 0, sizeof *c->touch);
    e = tsri_ops_open(&c->ops, c);
    return e ? e : c->backend->open(c, cfg);
}

int tsri_cache_open(struct tsr_cache **out, const struct tsr_config *cfg)
{
    struct tsr_config *own = NULL;
    int e = cfg ? 0 : tsr_config_open(&own);
    if (e) return e;
    if (!cfg) cfg = own;
    struct tsr_cache *c = tsri_alloc(1, sizeof *c);
    e = c ? tsri_config_check(cfg) : TSR_ENOMEM;
    if (e) goto out;
    c->options = *tsri_config_options(cfg);
    c->hash = (enum tsri_hash)c->options.hash;
    c->key_mask = UINT64_MAX;
    c->epoch = tsri_nonce();
    c->backend = c->options.owner == TSRI_OWNER_DAEMON ? &tsri_backend_served : &tsri_backend_own;
    atomic_init(&c->frozen, c->options.frozen);
    pthread_mutex_init(&c->lock, NULL);
    tsri_losses_init(&c->losses);
    pthread_mutex_init(&c->holds.lock, NULL);
    e = open_parts(c, cfg);
    /* Borrowed from the configuration, which is the caller's. */
    c->options.disk_path = c->options.separator = c->options.device = "";
    c->options.server_socket = c->options.server_allow = "";
    c->options.server_tokens = c->options.server_token = "";
    c->options.http_listen = c->options.http_token = "";
    if (e) {
        tsri_cache_close(c);
        c = NULL;
    }
out:
    tsr_config_close(own);
    if (e)
        tsri_free(c);
    else
        *out = c;
    return e;
}

void tsri_cache_close(struct tsr_cache *c)
{
    /* A forked child has none of the threads, and locks in any state: it lets go the memory that is
     * only its own and touches nothing else. */
    bool forked = c->guard.page && tsri_forked(c);
    if (!forked) {
        if (c->ops) tsri_work_drain(tsri_ops_work(c->ops));
        c->backend->close(c);
        tsri_ops_close(c->ops);
        tsri_events_fini(&c->events);
        pthread_mutex_destroy(&c->holds.lock);
        pthread_mutex_destroy(&c->lock);
        tsri_stats_close(c->stats);
        tsri_free(c->spaces);
        free(c->touch);
    }
    tsri_holds_fini(&c->holds);
    tsri_shingles_fini(&c->shingles);
    tsri_windows_fini(&c->windows);
    tsri_arena_fini(&c->arena);
    tsri_pool_fini(&c->pool);
    tsri_region_fini(&c->entries_region);
    tsri_index_fini(&c->index);
    tsri_fork_guard_fini(&c->guard);
    tsri_free(c);
}

/* ---- what the rest of the library may know ---- */

const struct tsri_options *tsri_cache_options(const struct tsr_cache *c)
{
    return &c->options;
}

struct tsri_stats *tsri_cache_metrics(const struct tsr_cache *c)
{
    return c->stats;
}

struct tsri_device *tsri_cache_device(const struct tsr_cache *c)
{
    return c->device;
}

struct tsri_work *tsri_cache_work(const struct tsr_cache *c)
{
    return tsri_ops_work(c->ops);
}

bool tsri_cache_is_forked(const struct tsr_cache *c)
{
    return tsri_forked(c);
}

int tsri_cache_lacking(struct tsr_space *const *spaces, uint32_t n_spaces,
                       const struct tsr_prompt *prompt, uint32_t from, struct tsri_chain *chain,
                       struct tsr_key *keys, uint64_t *lacking)
{
    const struct tsri_backend *backend = spaces[0]->cache->backend;
    return backend->lacking(spaces, n_spaces, prompt, from, chain, keys, lacking);
}

int tsri_cache_put_open(struct tsr_put **out, struct tsr_client *client,
                        const struct tsr_store_desc *store, struct tsri_chain *chain)
{
    struct tsr_cache *c = tsri_client_cache(client);
    *out = NULL;
    if (tsri_forked(c)) return tsri_fail(TSR_EFORK, "the cache belongs to the parent process");
    tsri_losses_join(&c->losses);
    return c->backend->put_open(out, client, store, chain);
}

void tsri_cache_bring_up(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    space->cache->backend->bring_up(space, prompt);
}

struct tsri_cache_memory tsri_cache_memory(const struct tsr_cache *c)
{
    return (struct tsri_cache_memory){.fd = c->pool.region.shared ? c->pool.region.fd : -1,
                                      .n_pages = c->pool.n_pages,
                                      .page_bytes = 1u << c->pool.page_shift};
}

uint64_t tsri_cache_n_lost(const struct tsr_cache *c)
{
    return tsri_losses_count(&c->losses);
}

/* ---- all entries, or those of a prompt ---- */

/* Under lock. An entry of the space (NULL: of any); returns how many went. */
static uint32_t clear_entry(struct tsr_cache *c, uint32_t id, const struct tsr_space *space,
                            int32_t tier)
{
    struct tsri_entry *e = &c->entries[id];
    enum tsri_state state = tsri_word_state(atomic_load(&e->word));
    /* The other fields of an entry that is being filled are not written under the lock. */
    if (state != TSRI_HOST && state != TSRI_COLD) return 0;
    if (space && e->space != space->id) return 0;
    if (tier == 0) {
        if (state != TSRI_HOST) return 0;
        bool stays = (atomic_load_explicit(&e->tiers, memory_order_relaxed) & ~1u) != 0;
        if (stays) return tsri_entry_evict(c, id);
    }
    if (tier > 0) return tsri_manager_drop_copy(c, id, (uint32_t)tier);
    if (!tsri_entry_is_idle(c, id)) return 0;
    if (tier == TSR_CLEAR_OWN) tsri_entry_each_behind(c, id, tsri_manager_spare);
    return tsri_entry_drop(c, id, TSR_EVENT_DROPPED);
}

#define CLEAR_BATCH 256u

int tsri_cache_clear(struct tsr_cache *c, const struct tsr_space *space, int32_t tier)
{
    int n = 0;
    for (uint32_t id = 0, end = UINT32_MAX; id < end;) {
        pthread_mutex_lock(&c->lock);
        end = c->ids_fresh;
        uint32_t stop = tsri_min_u32(end, id + CLEAR_BATCH);
        for (; id < stop; id++)
            n += (int)clear_entry(c, id, space, tier);
        pthread_mutex_unlock(&c->lock);
    }
    if (tier != 0) n += tsri_manager_purge(c, space ? space->fingerprint : NULL, tier);
    tsri_stats_add(c->stats, TSRI_M_cleared, (uint64_t)n);
    return n;
}

int tsri_cache_clear_one(struct tsr_cache *c, uint64_t handle, void *tier)
{
    uint32_t id = tsri_handle_id(handle);
    pthread_mutex_lock(&c->lock);
    uint32_t n = tsri_entry_is(c, handle) ? clear_entry(c, id, NULL, *(int32_t *)tier) : 0;
    pthread_mutex_unlock(&c->lock);
    tsri_stats_add(c->stats, TSRI_M_cleared, n);
    return (int)n;
}

int tsri_cache_pin_one(struct tsr_cache *c, uint64_t handle, void *unused)
{
    (void)unused;
    uint32_t id;
    pthread_mutex_lock(&c->lock);
    int pinned = tsri_pin_handle(c, handle, &id) != TSRI_FREE;
    struct tsri_entry *e = &c->entries[id];
    bool first = pinned && e->user_pins == 0;
    if (pinned && (e->user_pins == UINT16_MAX || (first && !tsri_hold_pinned(c, id)))) {
        tsri_unpin_locked(c, id);
        pinned = 0;
    }
    if (pinned && e->user_pins++ == 0) c->n_pinned++;
    pthread_mutex_unlock(&c->lock);
    return pinned;
}

int tsri_cache_unpin_one(struct tsr_cache *c, uint64_t handle, void *unused)
{
    (void)unused;
    uint32_t id = tsri_handle_id(handle);
    pthread_mutex_lock(&c->lock);
    struct tsri_entry *e = &c->entries[id];
    int had = tsri_entry_is(c, handle) && e->user_pins > 0;
    if (had) {
        if (--e->user_pins == 0) {
            c->n_pinned--;
            tsri_unhold_pinned(c, id);
        }
        tsri_unpin_locked(c, id);
    }
    pthread_mutex_unlock(&c->lock);
    return had;
}

int tsri_cache_touch_one(struct tsr_cache *c, uint64_t handle, void *unused)
{
    (void)unused;
    uint32_t id = tsri_handle_id(handle);
    tsri_touch_push(c, &id, 1);
    return 1;
}

/* ---- numbers ---- */

void tsri_cache_stats(struct tsr_cache *c, struct tsr_stats *out)
{
    struct tsri_stats *s = c->stats;
    pthread_mutex_lock(&c->lock);
    uint64_t used = (uint64_t)(c->pool.n_pages - tsri_pool_n_free(&c->pool)) << c->pool.page_shift;
    uint64_t host = (uint64_t)c->pool.n_pages << c->pool.page_shift;
    tsri_stats_gauge_set(s, TSRI_M_entries, c->n_host);
    tsri_stats_gauge_set(s, TSRI_M_host_tokens, c->host_tokens);
    tsri_stats_gauge_set(s, TSRI_M_cached_tokens, c->host_tokens + c->cold_tokens);
    tsri_stats_gauge_set(s, TSRI_M_pinned_entries, c->n_pinned);
    tsri_stats_gauge_set(s, TSRI_M_host_bytes, host);
    tsri_stats_gauge_set(s, TSRI_M_host_used_bytes, used);
    tsri_stats_gauge_set(s, TSRI_M_host_locked_bytes, tsri_locking_done(c->locking));
    tsri_stats_gauge_set(s, TSRI_M_metadata_bytes, c->arena.region.bytes);
    tsri_stats_gauge_set(s, TSRI_M_metadata_used_bytes, c->arena.bytes_used);
    tsri_stats_gauge_set(s, TSRI_M_windows, c->windows.n_used);
    tsri_stats_gauge_set(s, TSRI_M_shingles, c->shingles.n_used);
    tsri_stats_gauge_set(s, TSRI_M_spaces, c->n_spaces);
    tsri_stats_gauge_set(s, TSRI_M_clients, c->n_clients);
    out->tier_entries[0] = c->n_host;
    out->tier_tokens[0] = c->host_tokens;
    out->tier_bytes[0] = used;
    out->tier_bytes_max[0] = host;
    snprintf(out->tier_names[0].text, sizeof out->tier_names[0].text, "host");
    out->entries = (uint64_t)c->n_host + c->n_cold;
    out->tokens_cached = c->host_tokens + c->cold_tokens;
    out->pinned = c->n_pinned;
    pthread_mutex_unlock(&c->lock);
    out->host_bytes = host;
    out->host_bytes_used = used;
    out->lookups = tsri_stats_read(s, TSRI_M_lookups);
    out->tokens_asked = tsri_stats_read(s, TSRI_M_lookup_tokens_asked);
    out->tokens_reused = tsri_stats_read(s, TSRI_M_lookup_tokens_reused);
    out->lookup_hits = tsri_stats_read(s, TSRI_M_lookup_hits);
    out->lookup_misses = tsri_stats_read(s, TSRI_M_lookup_misses);
    out->loads = tsri_stats_read(s, TSRI_M_loads);
    out->load_misses = tsri_stats_read(s, TSRI_M_load_misses);
    out->load_bytes = tsri_stats_read(s, TSRI_M_load_bytes);
    out->stores = tsri_stats_read(s, TSRI_M_stores);
    out->stores_new = tsri_stats_read(s, TSRI_M_stores_new);
    out->stores_refused = tsri_stats_read(s, TSRI_M_stores_refused);
    out->store_bytes = tsri_stats_read(s, TSRI_M_store_bytes);
    out->evicted = tsri_stats_read(s, TSRI_M_evictions);
    out->dropped = tsri_stats_read(s, TSRI_M_drops) + tsri_stats_read(s, TSRI_M_cleared);
    out->collisions = tsri_stats_read(s, TSRI_M_collisions);
    out->corrupt = tsri_stats_read(s, TSRI_M_corrupt);
    tsri_manager_stats(c, out);
}
