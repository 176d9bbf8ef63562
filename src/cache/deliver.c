/* deliver.c - matched ranges into an engine's memory on the cache's device, turned to their new
 * positions on the way: what tsr_load is for callers with plain memory. A range is taken from the
 * device pool when it is there, which touches neither host memory nor the bus; else from host
 * memory, after having been fetched if only a lower tier has it. All ranges of a request are one
 * batch, moved layer by layer.
 *
 * A range that cannot be had gets its reason and is left out; whatever else is wrong fails the call
 * before a byte is queued. Sources are pinned from set to finish, because a device reads them
 * later than it is told to. */
#include "cache/manager.h"
#include "tier/hot.h"

struct source {
    uint32_t id;
    enum tsri_state state; /* FREE: not pinned */
    bool hot;
    struct tsri_hot_pin pin;
    struct tsr_kv_cells cells; /* those that the range touches, when it is not hot */
    uint32_t offset, n_tokens; /* in the entry */
    uint32_t base, freq_set;
};

struct tsri_delivery {
    struct tsr_client *client;
    struct tsr_cache *c;
    struct tsr_batch_limits limits;
    struct tsri_batch *batch;
    struct tsr_device_stream *stream;
    struct tsr_device_event *done;
    bool queued;             /* something was, since set */
    struct source *sources;  /* [limits.runs] */
    struct tsr_kv_run *runs; /* [limits.runs] */
    void **planes;           /* [limits.plane_pointers] */
    uint32_t n_sources, n_runs, n_planes;
};

static struct tsr_tier *pool_of(const struct tsr_cache *c)
{
    return c->manager->hot ? c->manager->lower[c->manager->hot].tier : NULL;
}

/* ---- open and close ---- */

int tsri_delivery_open(struct tsri_delivery **out, struct tsr_client *client, void *stream,
                       const struct tsr_batch_limits *limits)
{
    struct tsr_cache *c = tsri_client_cache(client);
    if (tsri_forked(c)) return tsri_fail(TSR_EFORK, "a cache of the parent process");
    if (!c->device) return tsri_fail(TSR_EDEVICE, "no device is configured (option device)");
    struct tsri_delivery *d = tsri_alloc(1, sizeof *d);
    if (!d) return TSR_ENOMEM;
    d->client = client;
    d->c = c;
    d->limits = *limits;
    int e = tsri_batch_open(&d->batch, c->device, limits);
    if (!e) e = tsri_stream_open(&d->stream, c->device, stream);
    if (!e) e = tsri_event_open(&d->done, c->device);
    if (!e) {
        d->sources = tsri_alloc(limits->runs, sizeof *d->sources);
        d->runs = tsri_alloc(limits->runs, sizeof *d->runs);
        d->planes = tsri_alloc(limits->plane_pointers, sizeof *d->planes);
        e = d->sources && d->runs && d->planes ? 0 : TSR_ENOMEM;
    }
    if (e) {
        tsri_delivery_close(d);
        return e;
    }
    *out = d;
    return 0;
}

static void let_go(struct tsri_delivery *d)
{
    for (uint32_t i = 0; d->sources && i < d->n_sources; i++) {
        struct source *s = &d->sources[i];
        if (s->hot) tsri_hot_unpin(pool_of(d->c), &s->pin);
        if (s->state != TSRI_FREE) tsri_unpin(d->c, s->id);
    }
    d->n_sources = d->n_runs = d->n_planes = 0;
}

int tsri_delivery_finish(struct tsri_delivery *d)
{
    int e = d->queued ? tsri_event_sync(d->c->device, d->done) : 0;
    d->queued = false;
    let_go(d);
    return e;
}

void tsri_delivery_close(struct tsri_delivery *d)
{
    if (!d) return;
    if (tsri_delivery_finish(d) != 0)
        tsri_log(TSR_LOG_WARN, "device %s: %s", tsri_device_name(d->c->device), tsr_errmsg());
    tsri_batch_close(d->batch);
    if (d->done) tsri_event_close(d->c->device, d->done);
    if (d->stream) tsri_stream_close(d->c->device, d->stream);
    tsri_free(d->planes);
    tsri_free(d->runs);
    tsri_free(d->sources);
    tsri_free(d);
}

/* ---- checks ---- */

static int check_shape(const struct tsri_shape *s, const struct tsri_delivery_desc *desc)
{
    const struct tsr_kv_layout *l = desc->layout;
    if (s->n_layers != l->n_layers || s->n_planes != l->n_planes)
        return tsri_fail(TSR_ESPACE, "%u layers of %u planes, the engine has %u of %u", s->n_layers,
                         s->n_planes, l->n_layers, l->n_planes);
    for (uint32_t p = 0; p < s->n_planes; p++) {
        const struct tsr_kv_plane *plane = &l->planes[p];
        size_t row =
            desc->int8 ? tsri_row_bytes_int8(plane->n_heads, plane->dim) : tsri_row_bytes(plane);
        if (row != s->row_bytes[p])
            return tsri_fail(TSR_ESPACE, "plane %u: rows of %u bytes, the engine's have %zu", p,
                             s->row_bytes[p], row);
    }
    return 0;
}

static int check_range(const struct tsri_delivery *d, const struct tsri_delivery_desc *desc,
                       const struct tsri_delivery_range *r, struct source *s)
{
    const struct tsr_match *m = r->match;
    if (!r->space || r->space->cache != d->c)
        return tsri_fail(TSR_ESPACE, "no space of this cache");
    if (!m || m->n_tokens == 0) return tsri_fail(TSR_EINVAL, "no match");
    if (r->offset >= m->n_tokens || r->n_tokens > m->n_tokens - r->offset)
        return tsri_fail(TSR_EINVAL, "tokens %u + %u of a match of %u", r->offset, r->n_tokens,
                         m->n_tokens);
    if ((uint64_t)m->entry_offset + m->n_tokens > UINT32_MAX ||
        (uint64_t)m->prompt_offset + m->n_tokens > UINT32_MAX)
        return tsri_fail(TSR_EINVAL, "a match that no lookup made");
    if (!m->verified && !r->prompt)
        return tsri_fail(TSR_EINVAL, "the match is not verified and no prompt is given");
    if (!r->slots) return tsri_fail(TSR_EINVAL, "no slots");
    *s = (struct source){.offset = m->entry_offset + r->offset,
                         .n_tokens = r->n_tokens ? r->n_tokens : m->n_tokens - r->offset};
    return check_shape(&r->space->shape, desc);
}

static int check(struct tsri_delivery *d, const struct tsri_delivery_desc *desc)
{
    if (desc->n_ranges > d->limits.runs)
        return tsri_fail(TSR_ERANGE, "%u ranges, limit %u", desc->n_ranges, d->limits.runs);
    int e = tsri_layout_check(desc->layout);
    for (uint32_t i = 0; i < desc->n_ranges && !e; i++)
        e = check_range(d, desc, &desc->ranges[i], &d->sources[i]);
    return e;
}

/* ---- from the pool ---- */

/* The tokens as the pool keeps them, in the form in which entries in host memory have them. */
static bool pool_has_wanted(const struct tsri_delivery_range *r, const struct tsri_entry *e,
                            const struct tsri_hot_pin *pin)
{
    const struct tsr_entry_head *h = pin->head;
    struct tsri_meta *meta = tsri_alloc(1, tsri_meta_bytes(h->n_tokens, 0, h->extra_bytes));
    if (!meta) return false;
    *meta = (struct tsri_meta){.n_tokens = h->n_tokens, .extra_bytes = h->extra_bytes};
    memcpy(&meta->digest, h->digest, sizeof meta->digest);
    memcpy(tsri_meta_tokens(meta), pin->tokens, (size_t)h->n_tokens * sizeof(uint32_t));
    memcpy(tsri_meta_extra(meta), pin->extra, h->extra_bytes);
    bool wanted = tsri_match_wanted(r->space, r->match, r->prompt, e, meta);
    tsri_free(meta);
    return wanted;
}

static bool take_hot(struct tsri_delivery *d, struct tsri_delivery_range *r, struct source *s)
{
    struct tsr_cache *c = d->c;
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
    if (h->n_tokens != e->n_tokens ||
        memcmp(h->space, r->space->fingerprint, sizeof h->space) != 0) {
        tsri_hot_unpin(pool_of(c), &s->pin); /* another one of that key, long gone from the index */
        s->hot = false;
        return false;
    }
    s->base = h->base;
    s->freq_set = h->freq_set;
    if (!r->match->verified && !pool_has_wanted(r, e, &s->pin)) {
        tsri_stats_add(c->stats, TSRI_M_collisions, 1);
        r->result = TSR_ECORRUPT;
    }
    return true;
}

/* ---- from host memory ---- */

static void note_meta(struct tsri_delivery *d, struct tsri_delivery_range *r, struct source *s)
{
    const struct tsri_entry *e = &d->c->entries[s->id];
    struct tsri_meta *meta = tsri_meta(d->c, e);
    s->base = meta->base;
    s->freq_set = meta->freq_set;
    if (r->match->verified || tsri_match_wanted(r->space, r->match, r->prompt, e, meta)) return;
    tsri_stats_add(d->c->stats, TSRI_M_collisions, 1);
    r->result = TSR_ECORRUPT;
}

/* The cells that the range touches, as if there were no others. */
static int name_cells(struct tsri_delivery *d, const struct tsri_delivery_desc *desc,
                      const struct tsr_space *space, struct source *s)
{
    const struct tsri_shape *shape = &space->shape;
    struct tsri_meta *meta = tsri_meta(d->c, &d->c->entries[s->id]);
    uint32_t first = s->offset / shape->cell_tokens;
    uint32_t n = (s->offset + s->n_tokens - 1) / shape->cell_tokens - first + 1;
    uint64_t n_planes = (uint64_t)n * shape->n_layers * shape->n_planes;
    if (n_planes > d->limits.plane_pointers - d->n_planes)
        return tsri_fail(TSR_ERANGE, "more than %u plane pointers", d->limits.plane_pointers);
    void **planes = d->planes + d->n_planes;
    d->n_planes += (uint32_t)n_planes;
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_cell cell;
        tsri_cell_layout(shape, meta->n_tokens, first + i, &cell);
        for (uint32_t l = 0; l < shape->n_layers; l++)
            for (uint32_t p = 0; p < shape->n_planes; p++)
                planes[((size_t)l * shape->n_planes + p) * n + i] = tsri_plane(
                    d->c->pool.region.data, shape, tsri_meta_pages(meta), &cell, first + i, l, p);
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
        .int8 = desc->int8,
        .memory = d->c->pool_locked ? TSR_MEMORY_LOCKED : TSR_MEMORY_HOST};
    s->offset -= before;
    return 0;
}

/* ---- from lower tiers ---- */

struct cold {
    struct tsri_delivery *d;
    struct tsri_delivery_range *r;
    struct source *s;
};

static bool verify(struct tsri_fetch *f, struct tsri_meta *meta)
{
    const struct cold *cold = f->arg;
    const struct tsri_delivery_range *r = cold->r;
    return r->match->verified || tsri_match_wanted(r->space, r->match, r->prompt,
                                                   &cold->d->c->entries[cold->s->id], meta);
}

#define FETCHES_MAX 64u

static void fetch_some(struct cold *cold, uint32_t n)
{
    struct tsri_fetch fetches[FETCHES_MAX];
    for (uint32_t i = 0; i < n; i++)
        fetches[i] = (struct tsri_fetch){.id = cold[i].s->id, .verify = verify, .arg = &cold[i]};
    tsri_manager_fetch(cold->d->c, fetches, n);
    for (uint32_t i = 0; i < n; i++) {
        cold[i].r->result = fetches[i].result;
        if (fetches[i].result == 0) note_meta(cold[i].d, cold[i].r, cold[i].s);
    }
}

static void fetch_cold(struct tsri_delivery *d, const struct tsri_delivery_desc *desc)
{
    struct cold cold[FETCHES_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < desc->n_ranges; i++) {
        struct source *s = &d->sources[i];
        if (s->state == TSRI_COLD && !s->hot && desc->ranges[i].result == 0)
            cold[n++] = (struct cold){d, &desc->ranges[i], s};
        if (n == FETCHES_MAX || (n && i + 1 == desc->n_ranges)) {
            fetch_some(cold, n);
            n = 0;
        }
    }
}

/* ---- set ---- */

static void pin(struct tsri_delivery *d, struct tsri_delivery_range *r, struct source *s)
{
    struct tsr_cache *c = d->c;
    r->result = 0;
    s->state = tsri_pin_handle(c, r->match->entry, &s->id);
    if (s->state == TSRI_FREE && tsri_pin_dying(c, r->match->entry, &s->id)) s->state = TSRI_HOST;
    if (s->state == TSRI_FREE) {
        r->result = TSR_ENOENT;
        return;
    }
    const struct tsri_entry *e = &c->entries[s->id];
    if (e->space != r->space->id || (uint64_t)s->offset + s->n_tokens > e->n_tokens) {
        r->result = TSR_ESPACE;
        return;
    }
    if (take_hot(d, r, s)) return;
    if (s->state == TSRI_HOST) note_meta(d, r, s);
}

static bool can_turn(const struct tsri_delivery_desc *desc)
{
    bool any = false;
    for (uint32_t p = 0; p < desc->layout->n_planes; p++)
        any |= desc->layout->planes[p].rope_dims != 0;
    return any && desc->rope;
}

/* How far K must move; false when this prompt cannot have it. */
static bool place(const struct tsri_delivery_desc *desc, const struct tsri_delivery_range *r,
                  const struct source *s, int64_t *delta)
{
    *delta = (int64_t)r->match->prompt_offset - r->match->entry_offset - s->base;
    return s->freq_set == desc->freq_set && (*delta == 0 || can_turn(desc));
}

static int make_runs(struct tsri_delivery *d, const struct tsri_delivery_desc *desc, bool *turns)
{
    for (uint32_t i = 0; i < desc->n_ranges; i++) {
        struct tsri_delivery_range *r = &desc->ranges[i];
        struct source *s = &d->sources[i];
        int64_t delta;
        if (r->result) continue;
        if (!place(desc, r, s, &delta)) {
            r->result = TSR_EUNSUP;
            continue;
        }
        int e = s->hot ? 0 : name_cells(d, desc, r->space, s);
        if (e) return e;
        s->pin.cells.int8 = desc->int8;
        *turns |= delta != 0;
        d->runs[d->n_runs++] = (struct tsr_kv_run){.cells = s->hot ? &s->pin.cells : &s->cells,
                                                   .slots = r->slots,
                                                   .offset = s->offset,
                                                   .n_tokens = s->n_tokens,
                                                   .delta = delta,
                                                   .freq_set = s->freq_set};
    }
    return 0;
}

static void count(struct tsri_delivery *d, const struct tsri_delivery_desc *desc)
{
    uint64_t bytes = 0;
    uint32_t n_missed = 0, n_hot = 0, ids[64];
    for (uint32_t i = 0; i < desc->n_ranges; i++) {
        const struct source *s = &d->sources[i];
        n_missed += desc->ranges[i].result != 0;
        if (desc->ranges[i].result) continue;
        bytes += s->n_tokens * tsri_shape_token_bytes(&desc->ranges[i].space->shape);
        if (s->hot) ids[n_hot++ % TSRI_COUNT(ids)] = s->id;
    }
    tsri_manager_touch_hot(d->c, ids, tsri_min_u32(n_hot, TSRI_COUNT(ids)));
    tsri_stats_add(d->c->stats, TSRI_M_deliveries, desc->n_ranges);
    tsri_stats_add(d->c->stats, TSRI_M_delivery_misses, n_missed);
    tsri_stats_add(d->c->stats, TSRI_M_delivery_pool_hits, n_hot);
    tsri_stats_add(d->c->stats, TSRI_M_delivery_bytes, bytes);
}

int tsri_delivery_set(struct tsri_delivery *d, const struct tsri_delivery_desc *desc)
{
    if (tsri_forked(d->c)) return tsri_fail(TSR_EFORK, "a cache of the parent process");
    int e = tsri_delivery_finish(d);
    if (!e) e = check(d, desc);
    if (e || desc->n_ranges == 0) return e;
    for (uint32_t i = 0; i < desc->n_ranges; i++) {
        pin(d, &desc->ranges[i], &d->sources[i]);
        d->n_sources++;
    }
    fetch_cold(d, desc);
    bool turns = false;
    e = make_runs(d, desc, &turns);
    struct tsri_batch_desc batch = {.direction = TSRI_BATCH_SCATTER,
                                    .n_runs = d->n_runs,
                                    .layout = desc->layout,
                                    .runs = d->runs,
                                    .rope = turns ? desc->rope : NULL,
                                    .freq_set = desc->freq_set};
    if (!e && d->n_runs) e = tsri_batch_set(d->batch, d->stream, &batch);
    if (e) {
        let_go(d);
        return e;
    }
    count(d, desc);
    return (int)d->n_runs;
}

uint32_t tsri_delivery_step(const struct tsri_delivery *d, uint32_t layer)
{
    return d->n_runs ? tsri_batch_step(d->batch, layer) : 1;
}

int tsri_delivery_layers(struct tsri_delivery *d, uint32_t layer_first, uint32_t n_layers)
{
    if (d->n_sources == 0) return tsri_fail(TSR_EINVAL, "delivery: nothing is set");
    if (d->n_runs == 0) return 0; /* every range is to be recomputed */
    /* Queued even when it fails halfway: then finish waits for what was. */
    d->queued = true;
    int e = tsri_batch_scatter(d->batch, layer_first, n_layers);
    int mark = tsri_event_record(d->c->device, d->done, d->stream);
    return e ? e : mark;
}
