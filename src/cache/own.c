/* own.c - the backend of a cache whose entries are here: in host memory, with tiers below. Most
 * calls are those of the folder as they are; the rest is put together here. */
#include "cache/backend.h"
#include "cache/clients.h"
#include "find/find.h"
#include "cache/manager.h"
#include "cache/puts.h"
#include "cache/source.h"

#include <stdlib.h>

/* An entry takes at least one page in host memory; more of them than this would not fit anyway. */
static uint32_t derive_entries(const struct tsri_options *o)
{
    if (o->entries_max) return o->entries_max;
    uint64_t n = o->host_size / o->host_page_size;
    if (o->disk_enabled && o->disk_path[0]) n += o->disk_size / o->host_page_size;
    if (o->disk_enabled && o->disk2_path[0]) n += o->disk2_size / o->host_page_size;
    if (n < 1024) n = 1024;
    if (n > 4u << 20) n = 4u << 20;
    return (uint32_t)n;
}

/* Tokens are 4 bytes beside at least a few hundred bytes of KV; a 64th leaves room for tiny models.
 */
static size_t derive_metadata(const struct tsri_options *o)
{
    if (o->metadata_size) return o->metadata_size;
    const size_t least = (size_t)4 << 20, most = (size_t)TSRI_ARENA_UNITS_MAX * TSRI_ARENA_UNIT;
    size_t bytes = o->host_size / 64;
    return bytes < least ? least : bytes > most ? most : bytes;
}

/* As many as the tokens that fit in the metadata have. */
static uint32_t derive_windows(const struct tsri_options *o)
{
    if (!o->any_offset) return 0;
    if (o->windows_max) return o->windows_max;
    uint64_t n = derive_metadata(o) / (TSRI_WINDOW * sizeof(uint32_t));
    return n < 1u << 30 ? (uint32_t)n : 1u << 30;
}

static int open_memory(struct tsr_cache *c)
{
    const struct tsri_options *o = &c->options;
    c->ids_max = derive_entries(o);
    c->ids_free = TSRI_ID_NONE;
    int e = tsri_index_init(&c->index, c->ids_max);
    if (e == 0)
        e = tsri_region_init(&c->entries_region, (size_t)c->ids_max * sizeof(struct tsri_entry));
    if (e) return e;
    c->entries = (struct tsri_entry *)(void *)c->entries_region.data;
    e = o->owner == TSRI_OWNER_EMBEDDED
            ? tsri_pool_init_shared(&c->pool, o->host_size, o->host_page_size)
            : tsri_pool_init(&c->pool, o->host_size, o->host_page_size);
    if (e == 0 && c->pool.region.shared)
        e = tsri_holds_init(&c->holds, c->pool.n_pages, c->ids_max);
    if (e == 0) e = tsri_arena_init(&c->arena, derive_metadata(o));
    if (e == 0) e = tsri_windows_init(&c->windows, derive_windows(o), c->ids_max);
    if (e == 0 && o->partial == TSRI_PARTIAL_EDITS)
        e = tsri_shingles_init(&c->shingles, derive_windows(o), c->ids_max);
    return e;
}

static int open_policy(struct tsr_cache *c, const struct tsr_config *cfg)
{
    const char *name = tsr_config_get(cfg, "policy");
    const struct tsri_policy_ops *ops = tsri_policy_find(name);
    if (!ops) return tsri_fail(TSR_ECONFIG, "policy: unknown policy %s", name);
    struct tsri_policy_env env = {
        .ids_max = c->ids_max, .capacity = c->pool.n_pages, .config = cfg};
    return ops->open(&c->policy, &env);
}

static int own_open(struct tsr_cache *c, const struct tsr_config *cfg)
{
    int e = open_memory(c);
    if (e == 0) e = open_policy(c, cfg);
    return e ? e : tsri_manager_open(c, cfg);
}

static void own_close(struct tsr_cache *c)
{
    tsri_manager_close(c);
    if (c->policy) c->policy->ops->close(c->policy);
    c->policy = NULL;
}

static int own_space_open(struct tsr_space *space, const struct tsr_space_desc *desc)
{
    (void)space, (void)desc;
    return 0;
}

static int own_client_open(struct tsri_seat **seat, struct tsr_cache *c)
{
    (void)c;
    *seat = NULL;
    return 0;
}

static int own_contains(struct tsr_cache *c, const struct tsr_key *keys, uint32_t n, int8_t *tiers)
{
    int found = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_key key;
        memcpy(&key, &keys[i], sizeof key);
        uint32_t id = tsri_index_find(&c->index, c->entries, key);
        tiers[i] = -1;
        if (id == TSRI_ID_NONE) continue;
        uint8_t mask = atomic_load_explicit(&c->entries[id].tiers, memory_order_relaxed);
        if (!mask) continue;
        tiers[i] = (int8_t)tsri_tier_fastest(c, mask);
        found++;
    }
    return found;
}

static int own_mark(struct tsr_space *space, const struct tsr_prompt *prompt, enum tsri_mark mark)
{
    static const tsri_each_fn fns[] = {[TSRI_MARK_PIN] = tsri_cache_pin_one,
                                       [TSRI_MARK_UNPIN] = tsri_cache_unpin_one,
                                       [TSRI_MARK_TOUCH] = tsri_cache_touch_one,
                                       [TSRI_MARK_PREFETCH] = tsri_cache_prefetch_one};
    if (mark == TSRI_MARK_PREFETCH) {
        int e = tsri_discover_start(space, prompt);
        if (e < 0) return e;
    }
    return tsri_find_each(space, prompt, 0, fns[mark], NULL);
}

static void own_bring_up(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    int n_queued = own_mark(space, prompt, TSRI_MARK_PREFETCH);
    (void)n_queued; /* nothing depends on it */
}

static int own_discover(struct tsr_client *client, struct tsr_space *space,
                        const struct tsr_prompt *prompt)
{
    (void)client;
    return tsri_discover(space, prompt);
}

static int own_put_open(struct tsr_put **out, struct tsr_client *client,
                        const struct tsr_store_desc *store, struct tsri_chain *chain)
{
    return tsri_put_open(out, client, store, false, chain);
}

static int own_put_layer(struct tsr_put *put, uint32_t layer, const struct tsr_view *view)
{
    return tsri_put_layers(put, layer, 1, view);
}

/* Also what tiers have of it although the index has no place for it. */
static int clear_prompt(const struct tsr_clear_desc *what)
{
    int32_t tier = what->tier;
    int n = tsri_find_each(what->space, what->prompt, what->from, tsri_cache_clear_one, &tier);
    if (n < 0 || tier == 0) return n;
    int more = tsri_manager_purge_prompt(what->space, what->prompt, what->from, tier);
    return more < 0 ? more : n + more;
}

static int own_clear(struct tsr_cache *c, const struct tsr_clear_desc *what)
{
    int32_t tier = what->tier;
    /* Some tiers alone: what waits to be written must have got to its place first. */
    if (tier != TSR_CLEAR_ALL) tsri_manager_drain(c);
    int n = what->prompt ? clear_prompt(what) : tsri_cache_clear(c, what->space, tier);
    /* What was cleared is gone from the tiers, too, and does not come back after a restart. */
    if (n > 0) tsri_manager_drain(c);
    return n;
}

static void own_freeze(struct tsr_cache *c, bool frozen)
{
    atomic_store(&c->frozen, frozen);
}

static int own_stats(struct tsr_cache *c, struct tsr_stats *out)
{
    tsri_cache_stats(c, out);
    return 0;
}

static int own_flush(struct tsr_cache *c)
{
    return tsri_cache_flush(c, NULL);
}

static int own_stats_text(struct tsr_cache *c, const char *format, char *buf, size_t bytes)
{
    struct tsr_stats current = {0};
    tsri_cache_stats(c, &current); /* brings the gauges up to date */
    return tsri_stats_text(c->stats, format, buf, bytes);
}

static int own_events(struct tsr_cache *c, struct tsr_event *out, uint32_t max)
{
    return (int)tsri_events_take(&c->events, out, max);
}

static int own_connected(struct tsr_cache *c, uint64_t until_ns)
{
    (void)c, (void)until_ns;
    return 0;
}

static int own_shared(struct tsr_client *client, struct tsr_shared *out)
{
    (void)client, (void)out;
    return tsri_fail(TSR_EUNSUP, "this cache has no shared memory");
}

const struct tsri_backend tsri_backend_own = {
    .open = own_open,
    .close = own_close,
    .space_open = own_space_open,
    .client_open = own_client_open,
    .lookup = tsri_find,
    .release = tsri_client_release,
    .keys = tsri_find_keys,
    .contains = own_contains,
    .lacking = tsri_find_lacking,
    .bring_up = own_bring_up,
    .mark = own_mark,
    .discover = own_discover,
    .source_open = tsri_source_open_own,
    .source_fetch = tsri_source_fetch_own,
    .store = tsri_put_all,
    .put_open = own_put_open,
    .put_layer = own_put_layer,
    .put_commit = tsri_put_commit,
    .put_abort = tsri_put_abort,
    .flush = own_flush,
    .evict = tsri_room_evict,
    .list = tsri_room_list,
    .clear = own_clear,
    .freeze = own_freeze,
    .stats = own_stats,
    .stats_text = own_stats_text,
    .events = own_events,
    .connected = own_connected,
    .shared = own_shared,
};
