/* served_load.c - loads from a server: it lends the pages that hold the ranges, and they are copied
 * out of the shared mapping here. After each layer the session is asked whether the leases still
 * hold: what was copied while they did not is worth nothing and is reported as gone. */
#include "cache/served.h"

static void fail_all(const struct tsri_loader *loader, int err)
{
    for (uint32_t i = 0; i < loader->n; i++)
        if (loader->loads[i].result == 0) loader->loads[i].result = err;
}

/* n_layers from `layer` on, counted in the range, which has them. */
static void copy(const struct tsri_borrow *b, const struct tsri_range_load *r, uint32_t i,
                 uint32_t layer, uint32_t n_layers)
{
    const struct tsri_borrowed *l = &b->ranges[i];
    struct tsr_view view = r->view;
    view.data = (uint8_t *)view.data + layer * view.layer_stride;
    struct tsri_cell_move move = {.pool = b->mapping->pool.data,
                                  .shape = &l->shape,
                                  .pages = l->pages,
                                  .entry_tokens = l->entry_tokens,
                                  .offset = l->offset,
                                  .n_tokens = r->n_tokens,
                                  .layer_first = r->layer_first + layer,
                                  .n_layers = n_layers,
                                  .to_view = true};
    tsri_cells_move(&move, &view);
}

/* All layers at once where nobody waits for the first. */
static int copy_all(struct tsri_loader *loader, const struct tsri_borrow *b)
{
    bool by_layer = loader->layer_done != NULL;
    for (uint32_t layer = 0; layer < (by_layer ? loader->n_layers : 1); layer++) {
        for (uint32_t i = 0; i < loader->n; i++) {
            const struct tsri_range_load *r = &loader->ranges[i];
            if (loader->loads[i].result) continue;
            if (!by_layer)
                copy(b, r, i, 0, r->n_layers);
            else if (layer < r->n_layers)
                copy(b, r, i, layer, 1);
        }
        if (!tsri_borrow_holds(b)) return tsri_fail(TSR_ENOENT, "the server has ended the session");
        if (by_layer) loader->layer_done(loader, layer);
    }
    return 0;
}

static void take_result(struct tsr_load *load, const struct tsri_borrowed *b)
{
    load->result = b->result;
    int64_t first = (int64_t)load->match->entry_offset + load->offset;
    if (b->result == 0) tsri_load_tell(load, (uint32_t)(b->stands - first), b->freq_set);
}

int tsri_served_load(struct tsri_loader *loader)
{
    struct tsri_seat *seat = tsri_client_seat(loader->client);
    struct tsri_borrow b;
    struct tsri_borrow_want *wants = tsri_alloc(loader->n, sizeof *wants);
    int e = wants ? 0 : TSR_ENOMEM;
    for (uint32_t i = 0; i < loader->n; i++) {
        const struct tsr_load *load = &loader->loads[i];
        loader->loads[i].result = 0;
        if (e == 0)
            wants[i] = (struct tsri_borrow_want){.space = load->space,
                                                 .match = load->match,
                                                 .prompt = load->prompt,
                                                 .offset = load->offset,
                                                 .n_tokens = loader->ranges[i].n_tokens};
    }
    if (e == 0)
        e = tsri_borrow_init(&b, seat, wants, loader->n, tsri_now_ns() + seat->served->patience_ns);
    if (e == 0) {
        for (uint32_t i = 0; i < loader->n; i++)
            take_result(&loader->loads[i], &b.ranges[i]);
        e = copy_all(loader, &b);
        tsri_borrow_fini(&b);
    }
    if (e) fail_all(loader, e == TSR_EAGAIN || e == TSR_ETIME ? TSR_ENOENT : e);
    tsri_free(wants);
    return e == TSR_ENOMEM ? e : 0;
}
