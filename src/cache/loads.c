/* loads.c - copying matched ranges into the caller's memory. Everything is checked before a byte
 * moves. What is in host memory is copied at once; what only a lower tier has is fetched, all
 * entries in one batch, and handed on layer by layer as it arrives. A range that cannot be had gets
 * its reason and must be recomputed; the others are not held up by it. */
#include "cache/clients.h"
#include "cache/source.h"

/* What of a range is loaded, and to where. */
struct part {
    uint32_t layer_first, n_layers;
    uint32_t n_ready; /* layers */
    struct tsr_view view;
};

struct load {
    struct tsri_loader *loader;
    struct tsri_source source;
    struct part *parts; /* [n] */
    uint32_t n_layers;  /* the most any range has */
    uint32_t n_told;    /* those that layer_done was called for */
    bool lost;          /* a server has taken back what was being copied */
};

/* ---- before anything is done ---- */

static int fail_range(uint32_t i, int err)
{
    char why[256];
    memcpy(why, tsr_errmsg(), sizeof why - 1);
    why[sizeof why - 1] = 0;
    return tsri_fail(err, "load %u: %s", i, why);
}

static int check_range(struct load *x, uint32_t i)
{
    const struct tsr_load_desc *load = &x->loader->loads[i];
    struct tsri_source_range *r = &x->source.ranges[i];
    struct part *part = &x->parts[i];
    if (load->size < offsetof(struct tsr_load_desc, result))
        return tsri_fail(TSR_EINVAL, "size is not set");
    struct tsri_want want = {load->space, load->match, load->prompt, load->offset, load->n_tokens};
    int e = tsri_source_want(r, x->source.c, &want);
    if (e) return e;
    const struct tsri_shape *shape = &load->space->shape;
    if (load->layer_first >= shape->n_layers ||
        load->n_layers > shape->n_layers - load->layer_first)
        return tsri_fail(TSR_EINVAL, "layers %u + %u of %u", load->layer_first, load->n_layers,
                         shape->n_layers);
    *part = (struct part){.layer_first = load->layer_first,
                          .n_layers =
                              load->n_layers ? load->n_layers : shape->n_layers - load->layer_first,
                          .view = load->view};
    if (part->n_layers > x->n_layers) x->n_layers = part->n_layers;
    return tsri_view_check(shape, &part->view, r->n_tokens, part->n_layers);
}

/* ---- copying ---- */

/* n layers from `layer` on, counted in the part. */
static void copy(const struct tsri_source_range *r, struct part *part, uint32_t layer, uint32_t n)
{
    struct tsr_view view = part->view;
    view.data = (uint8_t *)view.data + layer * view.layer_stride;
    tsri_source_copy(r, part->layer_first + layer, n, &view);
    part->n_ready = layer + n;
}

/* Written only when it changes: a caller that was told of a layer may be reading it. */
static void set_result(struct tsr_load_desc *load, int result)
{
    if (load->result != result) load->result = result;
}

/* Reports how many layers all ranges that have not failed have, and which ranges have. */
static void tell_layers(struct load *x)
{
    uint32_t ready = x->n_layers;
    if (!x->loader->layer_done || x->lost) return;
    for (uint32_t i = 0; i < x->source.n; i++) {
        const struct part *part = &x->parts[i];
        set_result(&x->loader->loads[i], x->source.ranges[i].result);
        if (x->source.ranges[i].result == 0 && part->n_ready < part->n_layers)
            ready = tsri_min_u32(ready, part->n_ready);
    }
    for (; x->n_told < ready; x->n_told++)
        x->loader->layer_done(x->loader, x->n_told);
}

/* What is here and was not copied yet; all layers at once where nobody waits for the first. */
static void copy_here(struct load *x, bool by_layer)
{
    uint32_t step = by_layer ? 1 : x->n_layers;
    for (uint32_t l = 0; l < x->n_layers; l += step) {
        for (uint32_t i = 0; i < x->source.n; i++) {
            const struct tsri_source_range *r = &x->source.ranges[i];
            struct part *part = &x->parts[i];
            if (r->result || r->where != TSRI_HERE || l >= part->n_layers || l < part->n_ready)
                continue;
            copy(r, part, l, tsri_min_u32(step, part->n_layers - l));
        }
        x->lost = !tsri_source_holds(&x->source);
        if (x->lost) return;
        tell_layers(x);
    }
}

static void layer_fetched(struct tsri_source_range *r, uint32_t layer)
{
    struct load *x = r->source->arg;
    struct part *part = &x->parts[r - r->source->ranges];
    if (layer < part->layer_first || layer >= part->layer_first + part->n_layers) return;
    copy(r, part, layer - part->layer_first, 1);
    tell_layers(x);
}

/* ---- the whole ---- */

/* What a range that was loaded says of its entry, when there is room for it. */
static void tell_entry(struct tsr_load_desc *load, const struct tsri_source_range *r)
{
    if (load->size < offsetof(struct tsr_load_desc, freq_set) + sizeof load->freq_set) return;
    load->base = r->base;
    load->freq_set = r->freq_set;
}

static int finish(struct load *x)
{
    struct tsri_stats *stats = x->source.c->stats;
    uint64_t bytes = 0;
    uint32_t n_loaded = 0;
    for (uint32_t i = 0; i < x->source.n; i++) {
        const struct tsri_source_range *r = &x->source.ranges[i];
        struct tsr_load_desc *load = &x->loader->loads[i];
        set_result(load, r->result ? r->result : x->lost ? TSR_ENOENT : 0);
        if (load->result) continue;
        tell_entry(load, r);
        const struct tsri_shape *shape = &load->space->shape;
        bytes += (uint64_t)r->n_tokens * x->parts[i].n_layers *
                 (shape->row_bytes[0] + shape->row_bytes[1]);
        n_loaded++;
    }
    tsri_stats_add(stats, TSRI_M_loads, x->source.n);
    tsri_stats_add(stats, TSRI_M_load_misses, x->source.n - n_loaded);
    tsri_stats_add(stats, TSRI_M_load_bytes, bytes);
    return (int)n_loaded;
}

static int run(struct load *x)
{
    for (uint32_t i = 0; i < x->source.n; i++) {
        int e = check_range(x, i);
        if (e) return fail_range(i, e);
    }
    uint32_t n_below = tsri_source_open(&x->source);
    bool by_layer = x->loader->layer_done != NULL;
    copy_here(x, by_layer && n_below == 0);
    int e = n_below ? tsri_source_fetch(&x->source, NULL) : 0;
    if (n_below && e == 0) copy_here(x, by_layer);
    tell_layers(x);
    int n = finish(x);
    tsri_source_close(&x->source);
    return e == TSR_ENOMEM ? e : n;
}

#define RANGES_ON_STACK 16u

int tsri_loader_run(struct tsri_loader *loader)
{
    struct tsri_source_range few_ranges[RANGES_ON_STACK];
    struct part few_parts[RANGES_ON_STACK];
    bool many = loader->n > RANGES_ON_STACK;
    struct load x = {.loader = loader,
                     .source = {.c = tsri_client_cache(loader->client),
                                .client = loader->client,
                                .ranges = few_ranges,
                                .n = loader->n,
                                .layer_done = layer_fetched,
                                .arg = &x},
                     .parts = few_parts};
    if (many) {
        x.source.ranges = tsri_alloc(loader->n, sizeof few_ranges[0]);
        x.parts = tsri_alloc(loader->n, sizeof few_parts[0]);
    }
    int e = x.source.ranges && x.parts ? run(&x) : TSR_ENOMEM;
    if (many) {
        tsri_free(x.source.ranges);
        tsri_free(x.parts);
    }
    return e;
}
