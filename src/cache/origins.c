/* origins.c - where the ranges of a delivery are taken from: pinned where they are, in the device
 * pool or in host memory, or fetched from a lower tier. What was not verified by the lookup is
 * verified here, against the tokens that the place keeps. */
#include "cache/deliver.h"

static struct tsr_tier *pool_of(const struct tsr_cache *c)
{
    return c->manager->hot ? c->manager->lower[c->manager->hot].tier : NULL;
}

static void collide(struct tsr_cache *c, struct tsri_origin *s)
{
    tsri_stats_add(c->stats, TSRI_M_collisions, 1);
    s->range->result = TSR_ECORRUPT;
}

/* ---- from the pool ---- */

/* The tokens as the pool keeps them, in the form in which entries in host memory have them. */
static bool pool_has_wanted(const struct tsr_space *space, const struct tsri_origin *s,
                            const struct tsri_entry *e)
{
    const struct tsr_entry_head *h = s->pin.head;
    const struct tsr_delivery_range *r = s->range;
    struct tsri_meta *meta = tsri_alloc(1, tsri_meta_bytes(h->n_tokens, 0, h->extra_bytes));
    if (!meta) return false;
    *meta = (struct tsri_meta){.n_tokens = h->n_tokens, .extra_bytes = h->extra_bytes};
    memcpy(&meta->digest, h->digest, sizeof meta->digest);
    memcpy(tsri_meta_tokens(meta), s->pin.tokens, (size_t)h->n_tokens * sizeof(uint32_t));
    memcpy(tsri_meta_extra(meta), s->pin.extra, h->extra_bytes);
    bool wanted = tsri_match_wanted(space, r->match, r->prompt, e, meta);
    tsri_free(meta);
    return wanted;
}

static bool take_hot(struct tsr_cache *c, const struct tsr_space *space, struct tsri_origin *s)
{
    const struct tsri_entry *e = &c->entries[s->id];
    struct tsri_key key = tsri_entry_key(e);
    struct tsr_key name;
    memcpy(&name, &key, sizeof name);
    if (!c->manager->hot ||
        !(atomic_load_explicit(&e->tiers, memory_order_relaxed) >> c->manager->hot & 1))
        return false;
    s->hot = tsri_hot_pin(pool_of(c), &name, &s->pin);
    if (!s->hot) return false;
    const struct tsr_entry_head *h = s->pin.head;
    if (h->n_tokens != e->n_tokens || memcmp(h->space, space->fingerprint, sizeof h->space) != 0) {
        tsri_hot_unpin(pool_of(c), &s->pin); /* another one of that key, long gone from the index */
        s->hot = false;
        return false;
    }
    s->base = h->base;
    s->freq_set = h->freq_set;
    if (!s->range->match->verified && !pool_has_wanted(space, s, e)) collide(c, s);
    return true;
}

/* ---- from host memory ---- */

static void note_meta(struct tsr_cache *c, const struct tsr_space *space, struct tsri_origin *s)
{
    const struct tsri_entry *e = &c->entries[s->id];
    struct tsri_meta *meta = tsri_meta(c, e);
    const struct tsr_delivery_range *r = s->range;
    s->base = meta->base;
    s->freq_set = meta->freq_set;
    if (!r->match->verified && !tsri_match_wanted(space, r->match, r->prompt, e, meta))
        collide(c, s);
}

void tsri_origin_pin(struct tsr_cache *c, const struct tsr_space *space, struct tsri_origin *s)
{
    s->range->result = 0;
    s->state = tsri_pin_match(c, s->range->match, &s->id);
    if (s->state == TSRI_FREE) {
        s->range->result = TSR_ENOENT;
        return;
    }
    const struct tsri_entry *e = &c->entries[s->id];
    if (e->space != space->id || (uint64_t)s->offset + s->n_tokens > e->n_tokens) {
        s->range->result = TSR_ESPACE;
        return;
    }
    if (take_hot(c, space, s)) return;
    if (s->state == TSRI_HOST) note_meta(c, space, s);
}

static uint32_t n_cells_of(const struct tsri_shape *shape, const struct tsri_origin *s)
{
    return (s->offset + s->n_tokens - 1) / shape->cell_tokens - s->offset / shape->cell_tokens + 1;
}

uint64_t tsri_origin_n_planes(const struct tsri_shape *shape, const struct tsri_origin *s)
{
    return s->hot ? 0 : (uint64_t)n_cells_of(shape, s) * shape->n_layers * shape->n_planes;
}

void tsri_origin_cells(struct tsr_cache *c, const struct tsr_space *space, struct tsri_origin *s,
                       void **planes, bool int8)
{
    const struct tsri_shape *shape = &space->shape;
    struct tsri_meta *meta = tsri_meta(c, &c->entries[s->id]);
    uint32_t first = s->offset / shape->cell_tokens, n = n_cells_of(shape, s);
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_cell cell;
        tsri_cell_layout(shape, meta->n_tokens, first + i, &cell);
        for (uint32_t l = 0; l < shape->n_layers; l++)
            for (uint32_t p = 0; p < shape->n_planes; p++)
                planes[((size_t)l * shape->n_planes + p) * n + i] = tsri_plane(
                    c->pool.region.data, shape, tsri_meta_pages(meta), &cell, first + i, l, p);
    }
    uint32_t before = first * shape->cell_tokens;
    s->cells = (struct tsr_kv_cells){
        .size = sizeof s->cells,
        .planes = planes,
        .n_cells = n,
        .cell_tokens = shape->cell_tokens,
        .n_tokens = tsri_min_u32(n * shape->cell_tokens, meta->n_tokens - before),
        .n_layers = shape->n_layers,
        .n_planes = shape->n_planes,
        .int8 = int8,
        .memory = c->pool_locked ? TSR_MEMORY_LOCKED : TSR_MEMORY_HOST};
    s->offset -= before;
}

void tsri_origin_let_go(struct tsr_cache *c, struct tsri_origin *s)
{
    if (s->hot) tsri_hot_unpin(pool_of(c), &s->pin);
    if (s->state != TSRI_FREE) tsri_unpin(c, s->id);
    s->hot = false;
    s->state = TSRI_FREE;
}

/* ---- from lower tiers ---- */

#define FETCHES_MAX 64u

struct cold {
    struct tsr_cache *c;
    const struct tsr_space *space;
    struct tsri_origin *s;
};

static bool verify(struct tsri_fetch *f, struct tsri_meta *meta)
{
    const struct cold *cold = f->arg;
    const struct tsr_delivery_range *r = cold->s->range;
    return r->match->verified || tsri_match_wanted(cold->space, r->match, r->prompt,
                                                   &cold->c->entries[cold->s->id], meta);
}

static void fetch_some(struct cold *cold, uint32_t n)
{
    struct tsri_fetch fetches[FETCHES_MAX];
    for (uint32_t i = 0; i < n; i++)
        fetches[i] = (struct tsri_fetch){.id = cold[i].s->id, .verify = verify, .arg = &cold[i]};
    tsri_manager_fetch(cold->c, fetches, n);
    for (uint32_t i = 0; i < n; i++) {
        cold[i].s->range->result = fetches[i].result;
        if (fetches[i].result == 0) note_meta(cold->c, cold->space, cold[i].s);
    }
}

void tsri_origins_fetch(struct tsr_cache *c, const struct tsr_space *space,
                        struct tsri_origin *origins, uint32_t n_origins)
{
    struct cold cold[FETCHES_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_origins; i++) {
        struct tsri_origin *s = &origins[i];
        if (s->state == TSRI_COLD && !s->hot && s->range->result == 0)
            cold[n++] = (struct cold){c, space, s};
        if (n == FETCHES_MAX || (n && i + 1 == n_origins)) {
            fetch_some(cold, n);
            n = 0;
        }
    }
}
