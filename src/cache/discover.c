/* discover.c - what other caches have stored in a tier that they share with this one. A lookup
 * never waits for a network, so it knows only what this cache has stored or met; who has a moment
 * to wait (a request in a queue) asks here first: the chunks of the prompt that are not known are
 * looked for in the shared tiers, all in one batch, and those that are there become entries without
 * bytes in memory, as after a restart. The bytes come with the first load, which proves them. */
#include "find/find.h"
#include "cache/manager.h"
#include "cache/ops.h"

#define UNKNOWN_MAX 8192u /* chunks of one prompt that are asked for */

struct unknown {
    struct tsr_tier_ref ref;
    uint32_t n_tokens, extra_bytes;
    uint8_t kind; /* enum tsr_kind */
    bool behind;  /* a prefix block behind another one */
    struct tsri_key parent;
};

struct tsri_discovery {
    struct tsri_job job; /* first */
    struct tsr_cache *c;
    uint32_t space, n;
    bool fetch; /* bring up what was found */
    struct unknown list[];
};

static const struct tsri_digest pure; /* all zero */

static bool any_shared(const struct tsri_manager *m)
{
    for (uint32_t t = 1; m && t <= m->n_lower; t++)
        if (tsri_tier_is_shared(m->lower[t].tier)) return true;
    return false;
}

/* ---- which chunks are not known ---- */

struct gather {
    struct tsr_space *space;
    struct tsri_discovery *d;
    uint32_t n_max;
};

/* A hint, taken without the lock: what is known by now is left out again when it is published. */
static bool is_known(const struct tsr_cache *c, struct tsri_key key)
{
    uint32_t id = tsri_index_find(&c->index, c->entries, key);
    return id != TSRI_ID_NONE && tsri_entry_has_key(&c->entries[id], key);
}

static struct unknown *add_chunk(struct gather *g, const struct tsri_chunk *chunk,
                                 struct tsri_key key)
{
    struct tsri_discovery *d = g->d;
    if (d->n == g->n_max) return NULL;
    struct unknown *u = &d->list[d->n++];
    *u = (struct unknown){.n_tokens = chunk->range.n_tokens,
                          .extra_bytes = chunk->extra_bytes,
                          .kind = (uint8_t)chunk->kind};
    memcpy(&u->ref.key, &key, sizeof u->ref.key);
    memcpy(u->ref.space, g->space->fingerprint, sizeof u->ref.space);
    return u;
}

static void gather_prefix(struct gather *g, struct tsri_walk *w)
{
    struct tsri_chunk chunk;
    struct tsri_key parent = {0, 0};
    bool behind = false, all_known = true;
    while (tsri_walk_block(w, &chunk)) {
        struct tsri_key key = tsri_chunk_key(g->space, &chunk, &chunk.digest);
        all_known = all_known && is_known(g->space->cache, key);
        if (!all_known) {
            struct unknown *u = add_chunk(g, &chunk, key);
            if (!u) return;
            u->behind = behind;
            u->parent = parent;
        }
        behind = true;
        parent = key;
        tsri_walk_passed(w, &chunk);
    }
}

static void gather_segment(struct gather *g, const struct tsri_chunk *chunk,
                           const struct tsri_digest *digest)
{
    struct tsri_key key = tsri_chunk_key(g->space, chunk, digest);
    if (!is_known(g->space->cache, key)) add_chunk(g, chunk, key);
}

static void gather_segments(struct gather *g, struct tsri_walk *w)
{
    struct tsri_chunk chunk;
    while (tsri_walk_segment(w, &chunk)) {
        if (w->has_context && !chunk.system) gather_segment(g, &chunk, &w->context);
        gather_segment(g, &chunk, &pure);
        if (!w->blended) continue;
        chunk.kind = TSR_KIND_BLENDED;
        gather_segment(g, &chunk, &w->recipe);
    }
}

/* NULL with *err 0: nothing to ask. */
static struct tsri_discovery *open_discovery(struct tsr_space *space,
                                             const struct tsr_prompt *prompt, int *err)
{
    struct tsri_walk w;
    *err = 0;
    if (!any_shared(space->cache->manager)) return NULL;
    *err = tsri_walk_init(&w, space, prompt);
    if (*err) return NULL;
    uint64_t n_max = (uint64_t)w.n_blocks + 3 * (uint64_t)w.n_segments;
    if (n_max > UNKNOWN_MAX) n_max = UNKNOWN_MAX;
    struct tsri_discovery *d = tsri_alloc(1, sizeof *d + (size_t)n_max * sizeof d->list[0]);
    if (!d) {
        *err = TSR_ENOMEM;
        return NULL;
    }
    d->c = space->cache;
    d->space = space->id;
    struct gather g = {space, d, (uint32_t)n_max};
    gather_prefix(&g, &w);
    gather_segments(&g, &w);
    if (d->n) return d;
    tsri_free(d);
    return NULL;
}

/* ---- making them known ---- */

/* Under cache->lock. False when there is no room, or its chain is broken. */
static bool publish(struct tsri_discovery *d, const struct unknown *u, uint32_t t, uint32_t *id)
{
    struct tsr_cache *c = d->c;
    struct tsr_space *space = &c->spaces[d->space];
    struct tsri_key key;
    memcpy(&key, &u->ref.key, sizeof key);
    *id = tsri_entry_live(c, key);
    if (*id != TSRI_ID_NONE) {
        tsri_manager_holds(c, *id, t, u->ref.loc);
        return true;
    }
    /* The space may have been closed, and its place taken, while the tier was asked. */
    if (!space->shaped || memcmp(space->fingerprint, u->ref.space, sizeof u->ref.space) != 0)
        return false;
    uint32_t parent = u->behind ? tsri_entry_live(c, u->parent) : TSRI_ID_NONE;
    if (u->behind && parent == TSRI_ID_NONE) return false;
    if (atomic_load(&c->frozen) || tsri_room_id(c) != 0) return false;
    /* Making room may have taken the block before. */
    if (u->behind && tsri_entry_live(c, u->parent) != parent) return false;
    *id = tsri_entry_alloc(c);
    struct tsri_entry *e = &c->entries[*id];
    atomic_store_explicit(&e->key_lo, key.lo, memory_order_relaxed);
    atomic_store_explicit(&e->key_hi, key.hi, memory_order_relaxed);
    e->n_tokens = u->n_tokens;
    e->space = space->id;
    e->kind = u->kind;
    e->extra_bytes = u->extra_bytes;
    tsri_entry_publish_cold(c, *id);
    tsri_manager_holds(c, *id, t, u->ref.loc);
    if (u->behind) tsri_entry_adopt(c, *id, parent);
    return true;
}

static void bring_up(struct tsr_cache *c, uint64_t handle)
{
    struct tsri_fetch f = {.result = 0};
    if (tsri_pin_handle(c, handle, &f.id) == TSRI_FREE) return;
    if (tsri_word_state(atomic_load(&c->entries[f.id].word)) == TSRI_COLD)
        tsri_manager_fetch(c, &f, 1);
    tsri_unpin(c, f.id);
}

/* Asks tier t for what is left; what it has is known afterwards, and off the list. */
static int ask_tier(struct tsri_discovery *d, uint32_t t, struct tsr_tier_ref *refs, uint8_t *found)
{
    struct tsr_cache *c = d->c;
    for (uint32_t i = 0; i < d->n; i++)
        refs[i] = d->list[i].ref;
    if (tsri_tier_contains(c->manager->lower[t].tier, refs, d->n, found) <= 0) return 0;
    int n_known = 0;
    uint32_t left = 0;
    bool chain = true; /* a block is of use only behind all before it */
    for (uint32_t i = 0; i < d->n; i++) {
        struct unknown *u = &d->list[i];
        uint64_t handle = 0;
        bool known = false;
        if (found[i] && (u->kind != TSR_KIND_PREFIX || chain)) {
            uint32_t id;
            pthread_mutex_lock(&c->lock);
            known = publish(d, u, t, &id);
            if (known) handle = tsri_handle(id, tsri_word_gen(atomic_load(&c->entries[id].word)));
            pthread_mutex_unlock(&c->lock);
        }
        if (u->kind == TSR_KIND_PREFIX) chain = chain && known;
        n_known += known;
        if (known && d->fetch) bring_up(c, handle);
        if (!known) d->list[left++] = *u;
    }
    d->n = left;
    return n_known;
}

static int ask_tiers(struct tsri_discovery *d)
{
    struct tsri_manager *m = d->c->manager;
    struct tsr_tier_ref *refs = tsri_alloc(d->n, sizeof *refs);
    uint8_t *found = tsri_alloc(d->n, 1);
    int n_known = 0;
    for (uint32_t t = 1; refs && found && t <= m->n_lower && d->n; t++)
        if (tsri_tier_is_shared(m->lower[t].tier)) n_known += ask_tier(d, t, refs, found);
    tsri_stats_add(d->c->stats, TSRI_M_discovered, (uint64_t)n_known);
    tsri_free(found);
    tsri_free(refs);
    return n_known;
}

int tsri_discover(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    int err;
    struct tsri_discovery *d = open_discovery(space, prompt, &err);
    if (!d) return err;
    int n = ask_tiers(d);
    tsri_free(d);
    return n;
}

static void run_discovery(struct tsri_job *job)
{
    struct tsri_discovery *d = (struct tsri_discovery *)job;
    ask_tiers(d);
    tsri_free(d);
}

int tsri_discover_start(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    int err;
    struct tsri_discovery *d = open_discovery(space, prompt, &err);
    if (!d) return err;
    d->fetch = true;
    d->job.run = run_discovery;
    if (tsri_work_push(tsri_ops_work(d->c->ops), &d->job) == 0) return 0;
    tsri_stats_add(d->c->stats, TSRI_M_tier_refused, 1);
    tsri_free(d);
    return 0;
}
