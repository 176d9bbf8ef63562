/* source.c - where matched ranges are read from: the part that all readers have in common, and that
 * of a cache whose entries are here. Those of a server are in borrow.c. */
#include "cache/source.h"
#include "cache/backend.h"
#include "cache/manager.h"

int tsri_source_want(struct tsri_source_range *r, const struct tsr_cache *c,
                     const struct tsri_want *want)
{
    const struct tsr_match *m = want->match;
    const struct tsr_prompt *prompt = want->prompt;
    if (!want->space || want->space->cache != c)
        return tsri_fail(TSR_ESPACE, "the space is not of this cache");
    if (!m || m->n_tokens == 0) return tsri_fail(TSR_EINVAL, "match is NULL");
    if (want->offset >= m->n_tokens || want->n_tokens > m->n_tokens - want->offset)
        return tsri_fail(TSR_EINVAL, "tokens %u + %u are outside the match of %u", want->offset,
                         want->n_tokens, m->n_tokens);
    if ((uint64_t)m->entry_offset + m->n_tokens > UINT32_MAX ||
        (uint64_t)m->prompt_offset + m->n_tokens > UINT32_MAX)
        return tsri_fail(TSR_EINVAL, "the match does not come from a lookup");
    if (!m->verified && !prompt)
        return tsri_fail(TSR_EINVAL, "the match is not verified, so a prompt is required");
    if (prompt && prompt->size < sizeof prompt->size)
        return tsri_fail(TSR_EINVAL, "prompt: size is not set");
    if (prompt && prompt->size >= offsetof(struct tsr_prompt, flags) && prompt->n_tokens &&
        !prompt->tokens)
        return tsri_fail(TSR_EINVAL, "prompt: no tokens");
    *r = (struct tsri_source_range){.wanted = {.space = want->space, .match = m, .prompt = prompt},
                                    .offset = m->entry_offset + want->offset,
                                    .n_tokens = want->n_tokens ? want->n_tokens
                                                               : m->n_tokens - want->offset,
                                    .id = TSRI_ID_NONE};
    return 0;
}

/* ---- one range ---- */

/* The pages that hold the range. All cells but the last have as many pages as the first. */
static void place(struct tsri_source_range *r, struct tsri_meta *meta)
{
    const struct tsri_shape *shape = r->shape;
    r->entry_tokens = meta->n_tokens;
    r->base = meta->base;
    r->freq_set = meta->freq_set;
    r->cell_first = 0;
    r->n_pages = meta->n_pages;
    r->pages = tsri_meta_pages(meta);
    if (r->n_tokens == meta->n_tokens) return; /* all of them, as most are */
    uint32_t last = (r->offset + r->n_tokens - 1) / shape->cell_tokens;
    uint32_t per_cell = tsri_shape_n_pages(shape, shape->cell_tokens);
    r->cell_first = r->offset / shape->cell_tokens;
    r->n_pages = tsri_min_u32((last + 1) * per_cell, meta->n_pages) - r->cell_first * per_cell;
    r->pages += r->cell_first * per_cell;
}

static struct tsr_tier *pool_of(const struct tsr_cache *c)
{
    return c->manager->lower[c->manager->hot].tier;
}

static bool pin_hot(struct tsri_source *s, struct tsri_source_range *r)
{
    struct tsr_cache *c = s->c;
    const struct tsri_entry *e = &c->entries[r->id];
    struct tsri_hot_pin *pin = s->pins ? &s->pins[r - s->ranges] : NULL;
    struct tsri_key key = tsri_entry_key(e);
    struct tsr_key name;
    memcpy(&name, &key, sizeof name);
    if (!pin || !c->manager->hot ||
        !(atomic_load_explicit(&e->tiers, memory_order_relaxed) >> c->manager->hot & 1) ||
        !tsri_hot_pin(pool_of(c), &name, pin))
        return false;
    const struct tsr_entry_head *h = pin->head;
    if (h->n_tokens != e->n_tokens ||
        memcmp(h->space, r->wanted.space->fingerprint, sizeof h->space) != 0) {
        tsri_hot_unpin(pool_of(c), pin); /* another one of that key, long gone from the index */
        return false;
    }
    r->where = TSRI_HOT;
    r->base = h->base;
    r->freq_set = h->freq_set;
    r->entry_tokens = h->n_tokens;
    return true;
}

/* Pins, and checks what only the entry can tell. */
static void pin(struct tsri_source *s, struct tsri_source_range *r)
{
    struct tsr_cache *c = s->c;
    const struct tsr_space *space = r->wanted.space;
    enum tsri_state state = tsri_pin_match(c, r->wanted.match, &r->id);
    r->where = TSRI_GONE;
    r->result = 0;
    if (state == TSRI_FREE) {
        r->id = TSRI_ID_NONE;
        r->result = TSR_ENOENT;
        return;
    }
    struct tsri_entry *e = &c->entries[r->id];
    if (e->space != space->id || (uint64_t)r->offset + r->n_tokens > e->n_tokens) {
        r->result = TSR_ESPACE;
        return;
    }
    r->shape = &space->shape;
    if (pin_hot(s, r)) return;
    r->where = state == TSRI_HOST ? TSRI_HERE : TSRI_BELOW;
    if (state == TSRI_HOST) place(r, tsri_meta(c, e));
}

/* ---- comparing ---- */

static struct tsri_source_range *range_of(struct tsri_wanted *w)
{
    return (struct tsri_source_range *)((uintptr_t)w - offsetof(struct tsri_source_range, wanted));
}

/* The tokens as the pool keeps them, in the form in which entries in host memory have them. */
static bool hot_is_wanted(const struct tsri_source_range *r, const struct tsri_entry *e)
{
    const struct tsri_hot_pin *pin = &r->source->pins[r - r->source->ranges];
    const struct tsr_entry_head *h = pin->head;
    struct tsri_meta *meta = tsri_alloc(1, tsri_meta_bytes(h->n_tokens, 0, h->extra_bytes));
    if (!meta) return false;
    *meta = (struct tsri_meta){.n_tokens = h->n_tokens, .extra_bytes = h->extra_bytes};
    memcpy(&meta->digest, h->digest, sizeof meta->digest);
    memcpy(tsri_meta_tokens(meta), pin->tokens, (size_t)h->n_tokens * sizeof(uint32_t));
    memcpy(tsri_meta_extra(meta), pin->extra, h->extra_bytes);
    bool wanted = tsri_wanted_is(&r->wanted, e, meta);
    tsri_free(meta);
    return wanted;
}

static bool is_wanted(const struct tsri_source_range *r)
{
    struct tsr_cache *c = r->source->c;
    const struct tsri_entry *e = &c->entries[r->id];
    if (!r->wanted.prompt) return true; /* verified, and nothing to compare it with */
    if (r->where == TSRI_HOT) return hot_is_wanted(r, e);
    return tsri_wanted_is(&r->wanted, e, tsri_meta(c, e));
}

static void compare_one(struct tsri_source_range *r, bool is)
{
    if (is) return;
    tsri_stats_add(r->source->c->stats, TSRI_M_collisions, 1);
    r->result = TSR_ECORRUPT;
}

/* Finds out what ranges that are there, or that are below, are to be compared with; in the order of
 * the prompt. */
static struct tsri_wanted *find_wanted(struct tsri_source *s, bool below)
{
    struct tsri_wanted *list = NULL;
    for (uint32_t i = s->n; i-- > 0;) {
        struct tsri_source_range *r = &s->ranges[i];
        if (r->result || (r->where == TSRI_BELOW) != below || r->wanted.match->verified) continue;
        r->wanted.next = list;
        list = &r->wanted;
    }
    return list ? tsri_wanted_find(list) : NULL;
}

static bool same(const struct tsri_source_range *a, const struct tsri_source_range *b)
{
    const struct tsr_match *m = a->wanted.match, *o = b->wanted.match;
    return a->id == b->id && a->wanted.prompt == b->wanted.prompt && m->kind == o->kind &&
           m->context == o->context && a->where == b->where &&
           m->prompt_offset - m->entry_offset == o->prompt_offset - o->entry_offset;
}

/* Matches that are not verified and of what is here. An entry is compared once, however many ranges
 * of it are asked for. */
static void compare_nominated(struct tsri_source *s)
{
    const struct tsri_source_range *last = NULL;
    for (struct tsri_wanted *w = find_wanted(s, false); w; w = w->next) {
        struct tsri_source_range *r = range_of(w);
        compare_one(r, last && same(last, r) ? last->result == 0 : is_wanted(r));
        last = r;
    }
}

static bool same_run(const struct tsri_source_range *a, const struct tsri_source_range *b)
{
    const struct tsr_match *m = a->wanted.match, *o = b->wanted.match;
    return same(a, b) && m->entry_offset == o->entry_offset && m->n_tokens == o->n_tokens;
}

/* Verified ones: their entries may have been fetched again since. */
static void compare_verified(struct tsri_source *s)
{
    const struct tsri_source_range *last = NULL;
    uint64_t n_compared = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        struct tsri_source_range *r = &s->ranges[i];
        const struct tsr_match *m = r->wanted.match;
        if (r->result || r->where == TSRI_BELOW || !m->verified || !r->wanted.prompt) continue;
        bool again = last && same_run(last, r);
        if (!again) n_compared += m->n_tokens;
        if (s->compare_max && n_compared > s->compare_max)
            r->result = TSR_ERANGE;
        else
            compare_one(r, again ? last->result == 0 : is_wanted(r));
        last = r;
    }
}

/* What was found in the device pool leaves it last. */
static void touch_hot(struct tsri_source *s)
{
    uint32_t ids[64], n = 0;
    for (uint32_t i = 0; i < s->n && n < TSRI_COUNT(ids); i++)
        if (s->ranges[i].where == TSRI_HOT && s->ranges[i].result == 0) ids[n++] = s->ranges[i].id;
    tsri_manager_touch_hot(s->c, ids, n);
}

static void use_pool(struct tsri_source *s)
{
    s->memory = s->c->pool.region.data;
    s->locking = s->c->locking;
}

uint32_t tsri_source_open_own(struct tsri_source *s)
{
    uint32_t n_below = 0;
    use_pool(s);
    for (uint32_t i = 0; i < s->n; i++) {
        s->ranges[i].source = s;
        pin(s, &s->ranges[i]);
        n_below += s->ranges[i].where == TSRI_BELOW;
    }
    compare_nominated(s);
    compare_verified(s);
    if (s->pins) touch_hot(s);
    return n_below;
}

/* ---- from lower tiers ---- */

#define FETCHES_MAX 64u

static bool verify(struct tsri_fetch *f, struct tsri_meta *meta)
{
    struct tsri_source_range *r = f->arg;
    if (r->wanted.prompt && !tsri_wanted_is(&r->wanted, &r->source->c->entries[r->id], meta))
        return false;
    place(r, meta);
    return true;
}

static void layer_fetched(struct tsri_fetch *f, struct tsri_meta *meta, uint32_t layer)
{
    (void)meta;
    struct tsri_source_range *r = f->arg;
    if (r->source->layer_done) r->source->layer_done(r, layer);
}

static void fetch_some(struct tsri_source *s, struct tsri_fetch *fetches, uint32_t n,
                       const atomic_bool *stop)
{
    bool stopped = stop && atomic_load(stop);
    if (!stopped) tsri_manager_fetch(s->c, fetches, n);
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_source_range *r = fetches[i].arg;
        r->result = stopped ? TSR_EAGAIN : fetches[i].result;
        r->where = r->result ? TSRI_GONE : TSRI_HERE;
    }
}

int tsri_source_fetch_own(struct tsri_source *s, const atomic_bool *stop)
{
    struct tsri_fetch fetches[FETCHES_MAX];
    uint32_t n = 0;
    (void)find_wanted(s, true);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].where == TSRI_BELOW)
            fetches[n++] = (struct tsri_fetch){.id = s->ranges[i].id,
                                               .verify = verify,
                                               .layer_done = layer_fetched,
                                               .arg = &s->ranges[i]};
        if (n == FETCHES_MAX || (n && i + 1 == s->n)) {
            fetch_some(s, fetches, n, stop);
            n = 0;
        }
    }
    return 0;
}

/* ---- for every backend ---- */

uint32_t tsri_source_open(struct tsri_source *s)
{
    return s->c->backend->source_open(s);
}

int tsri_source_fetch(struct tsri_source *s, const atomic_bool *stop)
{
    int e = s->c->backend->source_fetch(s, stop);
    for (uint32_t i = 0; e && i < s->n; i++) {
        if (s->ranges[i].where != TSRI_BELOW) continue;
        s->ranges[i].where = TSRI_GONE;
        s->ranges[i].result = e;
    }
    return e;
}

void tsri_source_copy(const struct tsri_source_range *r, uint32_t first, uint32_t n,
                      const struct tsr_view *view)
{
    uint32_t skipped = r->cell_first * r->shape->cell_tokens;
    struct tsri_cell_move move = {.pool = r->source->memory,
                                  .shape = r->shape,
                                  .pages = r->pages,
                                  .entry_tokens = r->entry_tokens - skipped,
                                  .offset = r->offset - skipped,
                                  .n_tokens = r->n_tokens,
                                  .layer_first = first,
                                  .n_layers = n,
                                  .to_view = true};
    tsri_cells_move(&move, view);
}

/* Tokens of the entry in the cells that hold the range. */
static uint32_t held_tokens(const struct tsri_source_range *r)
{
    uint64_t cell = r->shape->cell_tokens, first = r->cell_first * cell;
    uint64_t end = ((uint64_t)r->offset + r->n_tokens + cell - 1) / cell * cell;
    return (uint32_t)((end < r->entry_tokens ? end : r->entry_tokens) - first);
}

bool tsri_source_is_locked(const struct tsri_source_range *r)
{
    if (r->where == TSRI_HOT) return true;
    size_t locked = tsri_locking_done(r->source->locking) / r->shape->page_bytes;
    for (uint32_t i = 0; i < r->n_pages; i++)
        if (r->pages[i] >= locked) return false;
    return true;
}

uint32_t tsri_source_n_planes(const struct tsri_source_range *r)
{
    const struct tsri_shape *s = r->shape;
    if (r->where == TSRI_HOT) return 0;
    return tsri_shape_n_cells(s, held_tokens(r)) * s->n_layers * s->n_planes;
}

uint32_t tsri_source_cells(const struct tsri_source_range *r, void **planes,
                           struct tsr_kv_cells *out)
{
    const struct tsri_source *source = r->source;
    const struct tsri_shape *s = r->shape;
    if (r->where == TSRI_HOT) {
        *out = source->pins[r - source->ranges].cells;
        return r->offset;
    }
    uint32_t n_tokens = held_tokens(r), n_cells = tsri_shape_n_cells(s, n_tokens);
    for (uint32_t c = 0; c < n_cells; c++) {
        struct tsri_cell cell;
        tsri_cell_layout(s, n_tokens, c, &cell);
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++)
                planes[((size_t)l * s->n_planes + p) * n_cells + c] =
                    tsri_plane(source->memory, s, r->pages, &cell, c, l, p);
    }
    *out = (struct tsr_kv_cells){.size = sizeof *out,
                                 .planes = planes,
                                 .n_cells = n_cells,
                                 .cell_tokens = s->cell_tokens,
                                 .n_tokens = n_tokens,
                                 .n_layers = s->n_layers,
                                 .n_planes = s->n_planes,
                                 .memory = tsri_source_is_locked(r) ? TSR_MEMORY_LOCKED
                                                                    : TSR_MEMORY_HOST};
    return r->offset - r->cell_first * s->cell_tokens;
}

void tsri_source_filling(struct tsri_source *s, struct tsri_source_range *r,
                         const struct tsr_space *space, uint32_t id)
{
    struct tsri_meta *meta = tsri_meta(s->c, &s->c->entries[id]);
    use_pool(s);
    *r = (struct tsri_source_range){.source = s,
                                    .n_tokens = meta->n_tokens,
                                    .id = TSRI_ID_NONE,
                                    .where = TSRI_HERE,
                                    .shape = &space->shape};
    place(r, meta);
}

int tsri_shape_fits(const struct tsri_shape *s, const struct tsr_kv_layout *l, bool int8)
{
    if (s->n_layers != l->n_layers || s->n_planes != l->n_planes)
        return tsri_fail(TSR_ESPACE, "%u layers of %u planes, but the engine has %u of %u",
                         s->n_layers, s->n_planes, l->n_layers, l->n_planes);
    for (uint32_t p = 0; p < s->n_planes; p++) {
        const struct tsr_kv_plane *plane = &l->planes[p];
        size_t row = int8 ? tsri_row_bytes_int8(plane->n_heads, plane->dim) : tsri_row_bytes(plane);
        if (row != s->row_bytes[p])
            return tsri_fail(TSR_ESPACE, "plane %u: rows have %u bytes, the engine's %zu", p,
                             s->row_bytes[p], row);
    }
    return 0;
}

void tsri_source_close(struct tsri_source *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct tsri_source_range *r = &s->ranges[i];
        if (r->where == TSRI_HOT) tsri_hot_unpin(pool_of(s->c), &s->pins[i]);
        if (r->id != TSRI_ID_NONE) tsri_unpin(s->c, r->id);
        r->where = TSRI_GONE;
        r->id = TSRI_ID_NONE;
    }
    tsri_borrow_fini(&s->borrow);
}
