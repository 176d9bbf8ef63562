/* manager.c - the tiers below host memory: opening them, taking in what they already hold, and the
 * small facts about who holds what that the writer and the fetchers share. */
#include "cache/manager.h"
#include "find/find.h"
#include "tier/hot.h"

#include <float.h>

/* What a policy of a tier below counts in; host memory counts in its pages. */
#define UNIT_BYTES 4096u

/* ---- who holds what ---- */

static uint32_t tier_units(const struct tsr_cache *c, const struct tsri_entry *e)
{
    const struct tsri_shape *shape = &c->spaces[e->space].shape;
    return (uint32_t)((uint64_t)e->n_tokens * tsri_shape_token_bytes(shape) / UNIT_BYTES) + 1;
}

/* Notes that tier t has the entry; false when that was known. */
static bool note_copy(struct tsr_cache *c, uint32_t id, uint32_t t, tsr_tier_loc loc)
{
    uint8_t before =
        atomic_fetch_or_explicit(&c->entries[id].tiers, (uint8_t)(1u << t), memory_order_relaxed);
    c->manager->lower[t].loc[id] = loc;
    return !(before >> t & 1);
}

/* The policy of tier t learns of it, as of the one used last. */
static void rank_copy(struct tsr_cache *c, uint32_t id, uint32_t t)
{
    struct tsri_lower *l = &c->manager->lower[t];
    const struct tsri_entry *e = &c->entries[id];
    struct tsri_policy_item item = {.hash = tsri_entry_key(e).lo,
                                    .units = tier_units(c, e),
                                    .n_tokens = e->n_tokens,
                                    .parent = e->parent,
                                    .cost_s = e->cost_s};
    l->policy->ops->insert(l->policy, id, &item);
    l->n_entries++;
    l->n_tokens += e->n_tokens;
}

void tsri_manager_holds(struct tsr_cache *c, uint32_t id, uint32_t t, tsr_tier_loc loc)
{
    if (note_copy(c, id, t, loc)) rank_copy(c, id, t);
}

struct tsr_tier_ref tsri_manager_ref(const struct tsr_cache *c, uint32_t id, uint32_t t)
{
    const struct tsri_entry *e = &c->entries[id];
    struct tsri_key key = tsri_entry_key(e);
    struct tsr_tier_ref ref = {.loc = c->manager->lower[t].loc[id]};
    memcpy(&ref.key, &key, sizeof ref.key);
    memcpy(ref.space, c->spaces[e->space].fingerprint, sizeof ref.space);
    return ref;
}

struct tsr_tier_ref tsri_manager_lost(struct tsr_cache *c, uint32_t id, uint32_t t)
{
    struct tsri_lower *l = &c->manager->lower[t];
    struct tsri_entry *e = &c->entries[id];
    struct tsr_tier_ref ref = tsri_manager_ref(c, id, t);
    atomic_fetch_and_explicit(&e->tiers, (uint8_t) ~(1u << t), memory_order_relaxed);
    l->loc[id] = 0;
    l->policy->ops->remove(l->policy, id);
    l->n_entries--;
    l->n_tokens -= e->n_tokens;
    return ref;
}

void tsri_manager_touch_hot(struct tsr_cache *c, const uint32_t *ids, uint32_t n)
{
    const struct tsri_manager *m = c->manager;
    if (!m->hot || n == 0 || pthread_mutex_trylock(&c->lock) != 0) return; /* or at its next use */
    struct tsri_policy *policy = m->lower[m->hot].policy;
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load_explicit(&c->entries[ids[i]].tiers, memory_order_relaxed) >> m->hot & 1)
            policy->ops->touch(policy, &ids[i], 1);
    pthread_mutex_unlock(&c->lock);
}

void tsri_manager_head(struct tsr_cache *c, const struct tsri_entry *e, struct tsr_entry_head *out)
{
    const struct tsr_space *space = &c->spaces[e->space];
    const struct tsri_shape *s = &space->shape;
    struct tsri_key key = tsri_entry_key(e);
    *out = (struct tsr_entry_head){.kind = e->kind,
                                   .n_tokens = e->n_tokens,
                                   .cell_tokens = s->cell_tokens,
                                   .n_layers = s->n_layers,
                                   .n_planes = s->n_planes,
                                   .row_bytes = {s->row_bytes[0], s->row_bytes[1]},
                                   .extra_bytes = e->extra_bytes,
                                   .cost_s = e->cost_s};
    memcpy(&out->key, &key, sizeof out->key);
    memcpy(out->space, space->fingerprint, sizeof out->space);
    if (e->meta) {
        const struct tsri_meta *m = tsri_meta(c, e);
        memcpy(out->digest, &m->digest, sizeof out->digest);
        out->base = m->base;
        out->freq_set = m->freq_set;
    }
    if (e->parent != TSRI_ID_NONE) {
        struct tsri_key parent = tsri_entry_key(&c->entries[e->parent]);
        memcpy(&out->parent, &parent, sizeof out->parent);
    }
}

uint32_t tsri_manager_n_planes(const struct tsr_cache *c, const struct tsri_entry *e)
{
    const struct tsri_shape *s = &c->spaces[e->space].shape;
    return s->n_layers * s->n_planes * tsri_shape_n_cells(s, e->n_tokens);
}

void tsri_manager_planes(const struct tsr_cache *c, const struct tsri_entry *e,
                         struct tsri_meta *meta, void **planes)
{
    const struct tsri_shape *s = &c->spaces[e->space].shape;
    uint32_t n_cells = tsri_shape_n_cells(s, e->n_tokens);
    for (uint32_t cell = 0; cell < n_cells; cell++) {
        struct tsri_cell layout;
        tsri_cell_layout(s, e->n_tokens, cell, &layout);
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++)
                planes[(l * s->n_planes + p) * n_cells + cell] =
                    tsri_plane(c->pool.region.data, s, tsri_meta_pages(meta), &layout, cell, l, p);
    }
}

/* ---- taking in what a tier holds ---- */

struct tier_scan {
    struct tsr_cache *c;
    uint32_t t;
    struct tsri_key *parents; /* by id: key of the block before it */
    uint32_t *order, n;       /* those of tier t, used last first */
    uint64_t n_skipped;
    uint64_t *windows;  /* of one entry; NULL: nobody looks for text at any offset */
    uint32_t *shingles; /* or with frequent edits */
};

static void scan_windows(struct tier_scan *s, uint32_t id, const struct tsr_entry_head *head,
                         tsr_tier_loc loc)
{
    struct tsr_tier_ref ref = {.key = head->key, .loc = loc};
    memcpy(ref.space, head->space, sizeof ref.space);
    struct tsr_tier *tier = s->c->manager->lower[s->t].tier;
    if (head->kind == TSR_KIND_BLENDED) return;
    if (s->windows) {
        uint32_t n = tsri_tier_windows(tier, &ref, s->windows, head->n_tokens / TSRI_WINDOW);
        tsri_windows_add_cold(s->c, id, s->windows, n);
    }
    if (s->shingles) {
        uint32_t n = tsri_tier_shingles(tier, &ref, s->shingles, tsri_n_shingles(head->n_tokens));
        tsri_shingles_add_cold(s->c, id, s->shingles, n);
    }
}

static void scan_copy(struct tier_scan *s, uint32_t id, tsr_tier_loc loc)
{
    if (note_copy(s->c, id, s->t, loc)) s->order[s->n++] = id;
}

/* What there is no place for is left to the tier: 1. */
static int scan_entry(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc,
                      uint64_t bytes)
{
    struct tier_scan *s = arg;
    struct tsr_cache *c = s->c;
    (void)bytes;
    struct tsri_key key;
    memcpy(&key, &head->key, sizeof key);
    uint32_t id = tsri_entry_live(c, key);
    if (id != TSRI_ID_NONE) { /* a tier above has it too */
        scan_copy(s, id, loc);
        return 0;
    }
    if (head->kind < TSR_KIND_PREFIX || head->kind > TSR_KIND_BLENDED) return 1;
    bool room = tsri_entry_can_alloc(c) && head->extra_bytes <= TSRI_EXTRA_BYTES_MAX;
    struct tsr_space *space = room ? tsri_space_slot(c, head->space) : NULL;
    if (!space) {
        s->n_skipped++;
        return 1;
    }
    if (!space->shaped)
        space->shape = (struct tsri_shape){.n_layers = head->n_layers,
                                           .n_planes = head->n_planes,
                                           .row_bytes = {head->row_bytes[0], head->row_bytes[1]},
                                           .cell_tokens = head->cell_tokens,
                                           .page_bytes = (uint32_t)c->options.host_page_size};
    id = tsri_entry_alloc(c);
    struct tsri_entry *e = &c->entries[id];
    atomic_store_explicit(&e->key_lo, key.lo, memory_order_relaxed);
    atomic_store_explicit(&e->key_hi, key.hi, memory_order_relaxed);
    e->n_tokens = head->n_tokens;
    e->space = space->id;
    e->kind = (uint8_t)head->kind;
    e->extra_bytes = head->extra_bytes;
    e->cost_s = head->cost_s >= 0 && head->cost_s <= FLT_MAX ? head->cost_s : 0;
    tsri_entry_publish_cold(c, id);
    scan_copy(s, id, loc);
    scan_windows(s, id, head, loc);
    memcpy(&s->parents[id], &head->parent, sizeof s->parents[id]);
    return 0;
}

/* STRAY: a block before it is not known here. It may be there all the same: the index has no place
 * for it, or it is in a file or a tier that could not be read this time. */
enum { UNKNOWN, SOUND, STRAY, BROKEN, WALKING };

/* The block before an entry, or TSRI_ID_NONE. */
static uint32_t block_before(struct tsr_cache *c, uint32_t id, struct tsri_key key)
{
    uint32_t parent = tsri_entry_live(c, key);
    if (parent == TSRI_ID_NONE) return parent;
    const struct tsri_entry *e = &c->entries[id], *p = &c->entries[parent];
    bool chain = e->kind == TSR_KIND_PREFIX && p->kind == TSR_KIND_PREFIX && e->space == p->space;
    return chain ? parent : TSRI_ID_NONE;
}

/* Follows a chain up to a block of which that is known; one that meets itself is broken. links[id]:
 * lo is the block before it, hi what is known. */
static void judge_chain(struct tsri_key *links, uint32_t id)
{
    uint32_t at = id;
    for (; links[at].hi == UNKNOWN; at = (uint32_t)links[at].lo)
        links[at].hi = WALKING;
    uint64_t verdict = links[at].hi == WALKING ? BROKEN : links[at].hi;
    for (at = id; links[at].hi == WALKING; at = (uint32_t)links[at].lo)
        links[at].hi = verdict;
}

/* Chains can be tied only when all entries are known. A block is of no use now when one before it
 * is not there, but that one may be back at the next open: both are left to the tier. Only what no
 * later open can use is dropped: what follows itself or an entry that is no block,
 * which is nothing that this library has written. Returns how many were left. */
static uint32_t tie_chains(struct tsr_cache *c, struct tsri_key *links)
{
    uint32_t n = c->ids_fresh, n_dropped = 0, n_strays = 0;
    for (uint32_t id = 0; id < n; id++) {
        struct tsri_key key = links[id];
        uint32_t parent = TSRI_ID_NONE;
        uint64_t known = SOUND;
        if (key.lo || key.hi) {
            parent = block_before(c, id, key);
            bool listed = tsri_entry_live(c, key) != TSRI_ID_NONE;
            known = parent != TSRI_ID_NONE ? UNKNOWN : listed ? BROKEN : STRAY;
        }
        links[id] = (struct tsri_key){.lo = parent, .hi = known};
    }
    for (uint32_t id = 0; id < n; id++)
        judge_chain(links, id);
    for (uint32_t id = 0; id < n; id++)
        if (links[id].hi == BROKEN)
            n_dropped += tsri_entry_drop(c, id, TSR_EVENT_DROPPED);
        else if (links[id].hi == STRAY)
            n_strays += tsri_entry_drop(c, id, TSR_EVENT_EVICTED);
        else if (links[id].lo != TSRI_ID_NONE)
            tsri_entry_adopt(c, id, (uint32_t)links[id].lo);
    tsri_stats_add(c->stats, TSRI_M_drops, n_dropped);
    return n_strays;
}

/* From so many entries on, nearly every page of the index gets one. */
#define ENTRIES_MANY 4096u

/* Takes the memory that the entries of a tier will be in, if they are many. */
static void make_place(const struct tier_scan *s)
{
    struct tsr_cache *c = s->c;
    struct tsri_lower *l = &c->manager->lower[s->t];
    struct tsr_tier_stats stats = {0};
    if (tsri_tier_stats(l->tier, &stats) != 0 || stats.entries < ENTRIES_MANY) return;
    size_t n = stats.entries < c->ids_max ? (size_t)stats.entries : c->ids_max;
    tsri_region_take(&c->index.region, c->index.n_lines * sizeof(struct tsri_line));
    tsri_region_take(&c->entries_region, n * sizeof(struct tsri_entry));
    tsri_region_take(&l->loc_region, n * sizeof l->loc[0]);
}

/* What one tier holds. Its policy hears of the entry used last at the end. */
static void scan_tier(struct tier_scan *s)
{
    struct tsr_cache *c = s->c;
    struct tsr_tier *tier = c->manager->lower[s->t].tier;
    s->n = 0;
    make_place(s);
    if (tsri_tier_scan(tier, scan_entry, s) < 0)
        tsri_log(TSR_LOG_WARN, "tier %s: scan: %s", tsri_tier_name(tier), tsr_errmsg());
    while (s->n)
        rank_copy(c, s->order[--s->n], s->t);
}

static int scan_tiers(struct tsri_manager *m)
{
    struct tsr_cache *c = m->c;
    struct tier_scan s = {.c = c};
    struct tsri_region parents, order;
    int e = tsri_region_init(&parents, (size_t)c->ids_max * sizeof s.parents[0]);
    if (e) return e;
    e = tsri_region_init(&order, (size_t)c->ids_max * sizeof s.order[0]);
    if (e) {
        tsri_region_fini(&parents);
        return e;
    }
    s.parents = (struct tsri_key *)(void *)parents.data;
    s.order = (uint32_t *)(void *)order.data;
    if (c->windows.n_buckets)
        s.windows = tsri_alloc(TSRI_ENTRY_TOKENS_MAX / TSRI_WINDOW, sizeof s.windows[0]);
    if (c->shingles.n_buckets)
        s.shingles = tsri_alloc(tsri_n_shingles(TSRI_ENTRY_TOKENS_MAX), sizeof s.shingles[0]);
    pthread_mutex_lock(&c->lock);
    for (s.t = 1; s.t <= m->n_lower; s.t++) {
        if (!tsri_tier_is_shared(m->lower[s.t].tier)) scan_tier(&s); /* asked when it is wanted */
    }
    uint32_t n_strays = tie_chains(c, s.parents);
    pthread_mutex_unlock(&c->lock);
    tsri_region_fini(&parents);
    tsri_region_fini(&order);
    tsri_free(s.windows);
    tsri_free(s.shingles);
    if (s.n_skipped)
        tsri_log(
            TSR_LOG_WARN,
            "%llu stored entries exceed entries_max or spaces_max; they stay on their tier, unused",
            (unsigned long long)s.n_skipped);
    if (n_strays)
        tsri_log(TSR_LOG_WARN,
                 "%u stored blocks are unused because an earlier block is missing; they stay on "
                 "their tier",
                 n_strays);
    return 0;
}

/* Whether a clear of `tier` is one of tier t. */
static bool is_meant(const struct tsri_manager *m, uint32_t t, int32_t tier)
{
    if (tier == TSR_CLEAR_OWN) return !tsri_tier_is_shared(m->lower[t].tier);
    return tier == TSR_CLEAR_ALL || (uint32_t)tier == t;
}

int tsri_manager_purge(struct tsr_cache *c, const uint8_t *space, int32_t tier)
{
    struct tsri_manager *m = c->manager;
    int n = 0;
    bool drained = false;
    for (uint32_t t = 1; t <= m->n_lower; t++) {
        struct tsr_tier *lower = m->lower[t].tier;
        if (!is_meant(m, t, tier) || !tsri_tier_can_purge(lower)) continue;
        if (!drained) tsri_manager_drain(c); /* what is on its way to be unlisted counts */
        drained = true;
        int went = tsri_tier_purge(lower, space);
        if (went < 0) tsri_stats_add(c->stats, TSRI_M_tier_errors, 1);
        n += went > 0 ? went : 0;
    }
    return n;
}

/* Drops one entry that the index does not know from tier t; how many went. */
static int purge_key(struct tsri_manager *m, uint32_t t, const struct tsr_tier_ref *ref)
{
    uint8_t found = 0;
    if (tsri_tier_contains(m->lower[t].tier, ref, 1, &found) <= 0 || !found) return 0;
    int went = tsri_tier_drop(m->lower[t].tier, ref, 1);
    return went > 0 ? went : 0;
}

int tsri_manager_purge_prompt(struct tsr_space *space, const struct tsr_prompt *prompt,
                              uint32_t from, int32_t tier)
{
    struct tsr_cache *c = space->cache;
    struct tsri_manager *m = c->manager;
    uint32_t can = 0;
    for (uint32_t t = 1; t <= m->n_lower; t++)
        if (is_meant(m, t, tier) && tsri_tier_can_purge(m->lower[t].tier)) can |= 1u << t;
    int n_keys = can ? tsri_find_keys(space, prompt, NULL, 0) : 0, n = 0;
    if (n_keys <= 0) return n_keys;
    struct tsr_key *keys = tsri_alloc((size_t)n_keys, sizeof keys[0]);
    if (!keys) return TSR_ENOMEM;
    n_keys = tsri_find_keys(space, prompt, keys, (uint32_t)n_keys);
    tsri_manager_drain(c);
    for (int i = (int)(from / space->block_tokens); i < n_keys; i++) {
        struct tsr_tier_ref ref = {.key = keys[i]};
        struct tsri_key key;
        memcpy(&key, &keys[i], sizeof key);
        memcpy(ref.space, space->fingerprint, sizeof ref.space);
        if (tsri_index_find(&c->index, c->entries, key) != TSRI_ID_NONE) continue;
        for (uint32_t t = 1; t <= m->n_lower; t++)
            if (can >> t & 1) n += purge_key(m, t, &ref);
    }
    tsri_free(keys);
    return n;
}

/* ---- opening ---- */

/* Its size is known once it is open; 0: not known. */
static int open_policy(struct tsri_lower *l, const struct tsri_tier_plan *plan, uint32_t ids_max,
                       const struct tsr_config *cfg)
{
    const struct tsri_policy_ops *ops = tsri_policy_find(plan->policy);
    if (!ops) return tsri_fail(TSR_ECONFIG, "tier %s: unknown policy %s", plan->name, plan->policy);
    struct tsr_tier_stats stats;
    if (tsri_tier_stats(l->tier, &stats) != 0) stats.bytes_max = 0;
    struct tsri_policy_env env = {
        .ids_max = ids_max, .capacity = stats.bytes_max / UNIT_BYTES, .config = cfg};
    return ops->open(&l->policy, &env);
}

static int add_tier(struct tsri_manager *m, const struct tsri_tier_plan *plan,
                    const struct tsr_config *cfg)
{
    struct tsr_cache *c = m->c;
    struct tsri_lower *l = &m->lower[m->n_lower + 1];
    struct tsr_tier_desc env = {.size = sizeof env,
                                .config = cfg,
                                .arg = plan->arg,
                                .n_threads = c->options.io_threads + 1};
    int e = tsri_tier_open(&l->tier, plan->ops, &env);
    if (e) return e;
    m->n_lower++;
    e = open_policy(l, plan, c->ids_max, cfg);
    if (e == 0) e = tsri_region_init(&l->loc_region, (size_t)c->ids_max * sizeof l->loc[0]);
    if (e) return e;
    l->loc = (tsr_tier_loc *)(void *)l->loc_region.data;
    uint8_t bit = (uint8_t)(1u << m->n_lower);
    if (plan->write == TSRI_DISK_WRITE_NONE) return 0;
    if (plan->admission == TSRI_DISK_ADMISSION_SECOND_TOUCH)
        m->takes_used |= bit;
    else
        m->takes_stored |= bit;
    m->through |= plan->write == TSRI_DISK_WRITE_THROUGH;
    return 0;
}

#define POOL_MIN_BYTES ((uint64_t)1 << 20)

/* The size of the pool. A share is of all memory of the device, and leaves a sixteenth of what is
 * free now: copies need some, too. 0: none. */
static uint64_t pool_bytes(const struct tsr_cache *c)
{
    const struct tsri_options *o = &c->options;
    struct tsr_device_info info = {.size = sizeof info};
    double share = tsri_options_pool_share(o);
    if (o->device_pool_size || !(share > 0)) return o->device_pool_size;
    if (tsri_device_info(c->device, &info) != 0) info.bytes_total = info.bytes_free = 0;
    uint64_t most = info.bytes_free - info.bytes_free / 16;
    uint64_t bytes = (uint64_t)(share * (double)info.bytes_total);
    if (bytes <= most && bytes >= POOL_MIN_BYTES) return bytes;
    tsri_log(TSR_LOG_WARN, "device_pool_share: %.0f of %.0f MiB wanted, %.0f MiB free: %s",
             (double)bytes / 0x1p20, (double)info.bytes_total / 0x1p20,
             (double)info.bytes_free / 0x1p20,
             bytes < POOL_MIN_BYTES || most < POOL_MIN_BYTES ? "no pool" : "a smaller pool");
    return bytes < POOL_MIN_BYTES || most < POOL_MIN_BYTES ? 0 : most;
}

/* The pool, as the last of the tiers: their numbers do not depend on it. */
static int add_pool(struct tsri_manager *m, const struct tsr_config *cfg)
{
    struct tsr_cache *c = m->c;
    const struct tsri_options *o = &c->options;
    uint64_t bytes = pool_bytes(c);
    if (!bytes) return 0;
    struct tsri_hot_setup setup = {c->device, bytes, (size_t)o->host_page_size};
    struct tsri_tier_plan plan = {.name = "device",
                                  .ops = &tsri_tier_hot,
                                  .arg = &setup,
                                  .policy = "lru",
                                  .write = TSRI_DISK_WRITE_BACK,
                                  .admission = TSRI_DISK_ADMISSION_SECOND_TOUCH};
    if (m->n_lower + 1 >= TSR_TIERS_MAX)
        return tsri_fail(TSR_ERANGE, "device_pool_size: too many tiers (%u)", m->n_lower);
    uint32_t before = m->n_lower;
    int e = add_tier(m, &plan, cfg);
    if (e == 0) m->hot = m->n_lower;
    if (e && m->n_lower == before && !o->device_pool_size) {
        /* What was free a moment ago is not any more: a share is a wish. */
        tsri_log(TSR_LOG_WARN, "device_pool_share: no pool: %s", tsr_errmsg());
        return 0;
    }
    return e;
}

/* The device, for which host memory is page-locked in the background; then its pool. */
static int add_device(struct tsri_manager *m, const struct tsr_config *cfg)
{
    struct tsr_cache *c = m->c;
    const struct tsri_options *o = &c->options;
    if (!o->device[0] && !o->device_pool_size) {
        /* Files for the chunk cache have it, whether or not there is a device. */
        if (tsri_options_pool_share(o) > 0)
            tsri_log(TSR_LOG_INFO, "device_pool_share: no pool: no device (option device)");
        return 0;
    }
    if (!o->device[0])
        return tsri_fail(TSR_ECONFIG, "device_pool_size: no device is configured (option device)");
    struct tsr_device_desc config = {.size = sizeof config,
                                     .ordinal = o->device_number,
                                     .flags = o->device_operators ? TSR_DEVICE_OPERATORS : 0};
    int e = tsri_device_open(&c->device, o->device, &config);
    if (e) return e;
    if (tsri_device_caps(c->device) & TSR_DEVICE_NEEDS_LOCK) {
        size_t page_bytes = (size_t)1 << c->pool.page_shift;
        e = tsri_locking_open(&c->locking, c->device, c->pool.region.data,
                              c->pool.n_pages * page_bytes, page_bytes);
        if (e) return e;
    }
    return add_pool(m, cfg);
}

static void remove_device(struct tsr_cache *c)
{
    tsri_locking_close(c->locking);
    c->locking = NULL;
    tsri_device_close(c->device);
    c->device = NULL;
}

static int add_tiers(struct tsri_manager *m, const struct tsr_config *cfg)
{
    struct tsri_tier_plan plans[TSRI_LOWER_MAX];
    int n = tsri_tiers_plan(cfg, plans), e = n < 0 ? n : 0;
    for (int i = 0; i < n && e == 0; i++)
        e = add_tier(m, &plans[i], cfg);
    return e ? e : add_device(m, cfg);
}

int tsri_manager_open(struct tsr_cache *c, const struct tsr_config *cfg)
{
    struct tsri_manager *m = tsri_alloc(1, sizeof *m);
    if (!m) return TSR_ENOMEM;
    c->manager = m;
    m->c = c;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->more, NULL);
    tsri_cond_init(&m->done);
    int e = add_tiers(m, cfg);
    if (e || m->n_lower == 0) return e; /* the cache closes what was opened */
    e = tsri_writeback_init(m);
    return e ? e : scan_tiers(m);
}

void tsri_manager_close(struct tsr_cache *c)
{
    struct tsri_manager *m = c->manager;
    if (!m) return;
    tsri_writeback_fini(m);
    for (uint32_t t = 1; t <= m->n_lower; t++) {
        struct tsri_lower *l = &m->lower[t];
        tsri_tier_close(l->tier);
        if (l->policy) l->policy->ops->close(l->policy);
        tsri_region_fini(&l->loc_region);
    }
    pthread_cond_destroy(&m->done);
    pthread_cond_destroy(&m->more);
    pthread_mutex_destroy(&m->lock);
    remove_device(c);
    tsri_free(m);
    c->manager = NULL;
}

/* The metrics of tiers that have their own. */
static void set_gauges(struct tsr_cache *c, const struct tsr_tier *tier, uint64_t n_known,
                       const struct tsr_tier_stats *s)
{
    /* clang-format off */
    static const struct {
        const struct tsr_tier_ops *ops;
        enum tsri_metric entries, used, bytes, unlisted;
    } rows[] = {
        {&tsri_tier_disk, TSRI_M_disk_entries, TSRI_M_disk_used_bytes, TSRI_M_disk_bytes,
         TSRI_M_disk_unlisted_entries},
        {&tsri_tier_disk2, TSRI_M_disk2_entries, TSRI_M_disk2_used_bytes, TSRI_M_disk2_bytes,
         TSRI_M_disk2_unlisted_entries},
        {&tsri_tier_hot, TSRI_M_device_pool_entries, TSRI_M_device_pool_used_bytes,
         TSRI_M_device_pool_bytes, TSRI_M_COUNT},
    };
    /* clang-format on */
    for (size_t i = 0; i < TSRI_COUNT(rows); i++) {
        if (tier->ops != rows[i].ops) continue;
        tsri_stats_gauge_set(c->stats, rows[i].entries, s->entries);
        tsri_stats_gauge_set(c->stats, rows[i].used, s->bytes_used);
        tsri_stats_gauge_set(c->stats, rows[i].bytes, s->bytes_max);
        if (rows[i].unlisted != TSRI_M_COUNT)
            tsri_stats_gauge_set(c->stats, rows[i].unlisted,
                                 s->entries > n_known ? s->entries - n_known : 0);
    }
}

void tsri_manager_stats(struct tsr_cache *c, struct tsr_stats *out)
{
    struct tsri_manager *m = c->manager;
    for (uint32_t t = 1; t <= m->n_lower; t++) {
        struct tsr_tier_stats s;
        pthread_mutex_lock(&c->lock);
        out->tier_entries[t] = m->lower[t].n_entries;
        out->tier_tokens[t] = m->lower[t].n_tokens;
        pthread_mutex_unlock(&c->lock);
        snprintf(out->tier_names[t].text, sizeof out->tier_names[t].text, "%s",
                 m->lower[t].tier->ops->name);
        if (tsri_tier_stats(m->lower[t].tier, &s) != 0) continue;
        out->tier_bytes[t] = s.bytes_used;
        out->tier_bytes_max[t] = s.bytes_max;
        set_gauges(c, m->lower[t].tier, out->tier_entries[t], &s);
    }
    pthread_mutex_lock(&m->lock);
    tsri_stats_gauge_set(c->stats, TSRI_M_io_queue, m->n);
    pthread_mutex_unlock(&m->lock);
}

uint32_t tsri_cache_tiers(struct tsr_cache *c, struct tsri_tier_row out[TSR_TIERS_MAX])
{
    struct tsr_stats stats = {.size = sizeof stats};
    tsri_cache_stats(c, &stats);
    out[0] = (struct tsri_tier_row){"host", stats.tier_entries[0], stats.tier_tokens[0],
                                    stats.host_bytes_used, stats.host_bytes};
    if (!c->manager) return 1;
    for (uint32_t t = 1; t <= c->manager->n_lower; t++) {
        struct tsr_tier *tier = c->manager->lower[t].tier;
        struct tsr_tier_stats s = {0};
        int e = tsri_tier_stats(tier, &s);
        if (e) s = (struct tsr_tier_stats){0}; /* it does not say */
        out[t] = (struct tsri_tier_row){tier->ops->name, stats.tier_entries[t],
                                        stats.tier_tokens[t], s.bytes_used, s.bytes_max};
    }
    return c->manager->n_lower + 1;
}
