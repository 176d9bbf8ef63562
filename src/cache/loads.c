/* loads.c - copying matched ranges into the caller's memory. Everything is checked before a byte
 * moves. What is in host memory is copied at once; what only a lower tier has is fetched, all
 * entries in one batch, and handed on layer by layer as it arrives. A range that cannot be had gets
 * its reason and must be recomputed; the others are not held up by it. */
#include "cache/backend.h"
#include "cache/manager.h"

static int fail_range(uint32_t i, int err)
{
    char why[256];
    memcpy(why, tsr_errmsg(), sizeof why - 1);
    why[sizeof why - 1] = 0;
    return tsri_fail(err, "load %u: %s", i, why);
}

static int check_range(struct tsr_cache *c, struct tsri_range_load *r)
{
    const struct tsr_load *load = r->load;
    if (load->size < offsetof(struct tsr_load, result))
        return tsri_fail(TSR_EINVAL, "size is not set");
    if (!load->space || load->space->cache != c)
        return tsri_fail(TSR_ESPACE, "no space of this cache");
    const struct tsri_shape *shape = &load->space->shape;
    const struct tsr_match *m = load->match;
    if (!m || m->n_tokens == 0) return tsri_fail(TSR_EINVAL, "no match");
    if (load->offset >= m->n_tokens || load->n_tokens > m->n_tokens - load->offset)
        return tsri_fail(TSR_EINVAL, "tokens %u + %u of a match of %u", load->offset,
                         load->n_tokens, m->n_tokens);
    if (load->layer_first >= shape->n_layers ||
        load->n_layers > shape->n_layers - load->layer_first)
        return tsri_fail(TSR_EINVAL, "layers %u + %u of %u", load->layer_first, load->n_layers,
                         shape->n_layers);
    if ((uint64_t)m->entry_offset + m->n_tokens > UINT32_MAX ||
        (uint64_t)m->prompt_offset + m->n_tokens > UINT32_MAX)
        return tsri_fail(TSR_EINVAL, "a match that no lookup made");
    if (!m->verified && !load->prompt)
        return tsri_fail(TSR_EINVAL, "the match is not verified and no prompt is given");
    if (load->prompt && load->prompt->size < sizeof load->prompt->size)
        return tsri_fail(TSR_EINVAL, "prompt: size is not set");
    r->offset = m->entry_offset + load->offset;
    r->n_tokens = load->n_tokens ? load->n_tokens : m->n_tokens - load->offset;
    r->layer_first = load->layer_first;
    r->n_layers = load->n_layers ? load->n_layers : shape->n_layers - load->layer_first;
    r->view = load->view;
    return tsri_view_check(shape, &r->view, r->n_tokens, r->n_layers);
}

static bool is_wanted(const struct tsri_range_load *r, const struct tsri_entry *e,
                      struct tsri_meta *meta)
{
    return !r->wanted.prompt || tsri_wanted_is(&r->wanted, e, meta);
}

static void copy_layers(struct tsr_cache *c, const struct tsri_range_load *r,
                        struct tsri_meta *meta, uint32_t layer, uint32_t n_layers)
{
    struct tsri_cell_move move = {.pool = c->pool.region.data,
                                  .shape = &r->load->space->shape,
                                  .pages = tsri_meta_pages(meta),
                                  .entry_tokens = meta->n_tokens,
                                  .offset = r->offset,
                                  .n_tokens = r->n_tokens,
                                  .layer_first = layer,
                                  .n_layers = n_layers,
                                  .to_view = true};
    struct tsr_view view = r->view;
    view.data = (uint8_t *)view.data + (layer - r->layer_first) * view.layer_stride;
    tsri_cells_move(&move, &view);
}

/* Pins and checks what only the entry can tell. */
static void pin_range(struct tsr_cache *c, struct tsri_range_load *r)
{
    r->state = tsri_pin_match(c, r->load->match, &r->id);
    if (r->state == TSRI_FREE) {
        r->load->result = TSR_ENOENT;
        return;
    }
    const struct tsri_entry *e = &c->entries[r->id];
    bool fits = e->space == r->load->space->id && (uint64_t)r->offset + r->n_tokens <= e->n_tokens;
    if (!fits) r->load->result = TSR_ESPACE;
}

/* What host memory has of matches that are not verified is compared; of what lower tiers have, it
 * is found out what to compare it with. */
static void compare(struct tsr_cache *c, struct tsri_loader *loader)
{
    struct tsri_wanted *list = NULL;
    for (uint32_t i = 0; i < loader->n; i++) {
        struct tsri_range_load *r = &loader->ranges[i];
        const struct tsr_load *load = r->load;
        r->wanted = (struct tsri_wanted){
            .space = load->space, .match = load->match, .prompt = load->prompt, .next = list};
        if (load->result == 0 && !load->match->verified) list = &r->wanted;
    }
    (void)tsri_wanted_find(list);
    for (uint32_t i = 0; i < loader->n; i++) {
        struct tsri_range_load *r = &loader->ranges[i];
        if (r->load->result || r->load->match->verified || r->state != TSRI_HOST) continue;
        const struct tsri_entry *e = &c->entries[r->id];
        if (is_wanted(r, e, tsri_meta(c, e))) continue;
        tsri_stats_add(c->stats, TSRI_M_collisions, 1);
        r->load->result = TSR_ECORRUPT;
    }
}

/* ---- from host memory ---- */

static void copy_host(struct tsr_cache *c, struct tsri_loader *loader, bool tell)
{
    uint32_t step = tell ? 1 : loader->n_layers;
    for (uint32_t l = 0; l < loader->n_layers; l += step) {
        for (uint32_t i = 0; i < loader->n; i++) {
            struct tsri_range_load *r = &loader->ranges[i];
            if (r->load->result || r->state != TSRI_HOST || l >= r->n_layers) continue;
            uint32_t n = tsri_min_u32(step, r->n_layers - l);
            copy_layers(c, r, tsri_meta(c, &c->entries[r->id]), r->layer_first + l, n);
        }
        if (tell && loader->layer_done) loader->layer_done(loader, l);
    }
}

/* ---- from lower tiers ---- */

static bool verify_fetch(struct tsri_fetch *f, struct tsri_meta *meta)
{
    struct tsri_range_load *r = f->arg;
    struct tsr_cache *c = tsri_client_cache(r->loader->client);
    return is_wanted(r, &c->entries[r->id], meta);
}

/* Tells how many layers every range that can still be had has. */
static void tell_layers(struct tsri_loader *loader, uint32_t *told)
{
    uint32_t ready = loader->n_layers;
    for (uint32_t i = 0; i < loader->n; i++) {
        const struct tsri_range_load *r = &loader->ranges[i];
        if (r->state == TSRI_COLD && r->load->result == 0 && r->layers_ready < r->n_layers)
            ready = tsri_min_u32(ready, r->layers_ready);
    }
    for (; *told < ready; (*told)++)
        if (loader->layer_done) loader->layer_done(loader, *told);
}

static void layer_fetched(struct tsri_fetch *f, struct tsri_meta *meta, uint32_t layer)
{
    struct tsri_range_load *r = f->arg;
    if (layer < r->layer_first || layer >= r->layer_first + r->n_layers) return;
    copy_layers(tsri_client_cache(r->loader->client), r, meta, layer, 1);
    r->layers_ready = layer - r->layer_first + 1;
    tell_layers(r->loader, &r->loader->layers_told);
}

static int fetch_cold(struct tsr_cache *c, struct tsri_loader *loader, uint32_t n_cold)
{
    struct tsri_fetch *fetches = tsri_alloc(n_cold, sizeof *fetches);
    if (!fetches) return TSR_ENOMEM;
    uint32_t n = 0;
    for (uint32_t i = 0; i < loader->n; i++) {
        struct tsri_range_load *r = &loader->ranges[i];
        if (r->state == TSRI_COLD && r->load->result == 0)
            fetches[n++] = (struct tsri_fetch){
                .id = r->id, .verify = verify_fetch, .layer_done = layer_fetched, .arg = r};
    }
    tsri_manager_fetch(c, fetches, n);
    for (uint32_t i = 0; i < n; i++)
        ((struct tsri_range_load *)fetches[i].arg)->load->result = fetches[i].result;
    tsri_free(fetches);
    tell_layers(loader, &loader->layers_told);
    return 0;
}

/* ---- the whole ---- */

static int prepare(struct tsr_cache *c, struct tsri_loader *loader)
{
    loader->n_layers = 0;
    for (uint32_t i = 0; i < loader->n; i++) {
        struct tsri_range_load *r = &loader->ranges[i];
        *r = (struct tsri_range_load){.loader = loader, .load = &loader->loads[i]};
        int e = check_range(c, r);
        if (e) return fail_range(i, e);
        if (r->n_layers > loader->n_layers) loader->n_layers = r->n_layers;
    }
    return 0;
}

void tsri_load_tell(struct tsr_load *load, uint32_t base, uint32_t freq_set)
{
    if (load->size < offsetof(struct tsr_load, freq_set) + sizeof load->freq_set) return;
    load->base = base;
    load->freq_set = freq_set;
}

static int finish(struct tsr_cache *c, struct tsri_loader *loader)
{
    uint64_t bytes = 0;
    uint32_t n_loaded = 0;
    for (uint32_t i = 0; i < loader->n; i++) {
        struct tsri_range_load *r = &loader->ranges[i];
        if (r->state != TSRI_FREE) {
            const struct tsri_meta *meta = tsri_meta(c, &c->entries[r->id]);
            if (r->load->result == 0) tsri_load_tell(r->load, meta->base, meta->freq_set);
            tsri_unpin(c, r->id);
        }
        if (r->load->result) continue;
        const struct tsri_shape *s = &r->load->space->shape;
        bytes += (uint64_t)r->n_tokens * r->n_layers * (s->row_bytes[0] + s->row_bytes[1]);
        n_loaded++;
    }
    tsri_stats_add(c->stats, TSRI_M_loads, loader->n);
    tsri_stats_add(c->stats, TSRI_M_load_misses, loader->n - n_loaded);
    tsri_stats_add(c->stats, TSRI_M_load_bytes, bytes);
    return (int)n_loaded;
}

int tsri_loader_own(struct tsri_loader *loader)
{
    struct tsr_cache *c = tsri_client_cache(loader->client);
    uint32_t n_cold = 0;
    for (uint32_t i = 0; i < loader->n; i++) {
        loader->loads[i].result = 0;
        pin_range(c, &loader->ranges[i]);
        n_cold += loader->ranges[i].state == TSRI_COLD && loader->loads[i].result == 0;
    }
    compare(c, loader);
    copy_host(c, loader, n_cold == 0 && loader->layer_done);
    if (n_cold) {
        int e = fetch_cold(c, loader, n_cold);
        for (uint32_t i = 0; e && i < loader->n; i++)
            if (loader->ranges[i].state == TSRI_COLD) loader->loads[i].result = e;
    }
    return 0;
}

#define RANGES_ON_STACK 16u

int tsri_loader_run(struct tsri_loader *loader)
{
    struct tsr_cache *c = tsri_client_cache(loader->client);
    struct tsri_range_load few[RANGES_ON_STACK];
    bool many = loader->n > RANGES_ON_STACK;
    loader->ranges = many ? tsri_alloc(loader->n, sizeof few[0]) : few;
    if (!loader->ranges) return TSR_ENOMEM;
    loader->layers_told = 0;
    int e = prepare(c, loader);
    if (e == 0) e = c->backend->load(loader);
    if (e == 0) e = finish(c, loader);
    if (many) tsri_free(loader->ranges);
    return e;
}
