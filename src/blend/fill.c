/* fill.c - KV that was just computed, on its way into the cache. A segment that was computed alone
 * stands in the slots of its place in the prompt, with K turned as if it stood at its canonical
 * base; its rows are gathered, stored, and written back turned to the place. What is written back
 * is what a load would write, int8 rounding included: the first answer from a document is the same
 * as the second. Exact prefixes are gathered and stored as they are. */
#include "blend/blend.h"

void tsri_rows_fini(struct tsri_rows *r)
{
    if (r->device)
        tsri_device_host_free(r->device, r->data);
    else
        tsri_free(r->data);
    tsri_free(r->planes);
    tsri_free(r->slots);
}

static int rows_alloc(struct tsri_rows *r, struct tsri_device *device)
{
    void *data;
    if (!(tsri_device_caps(device) & TSR_DEVICE_NEEDS_LOCK)) {
        r->data = tsri_alloc(r->bytes, 1);
        return r->data ? 0 : TSR_ENOMEM;
    }
    int e = tsri_device_host_alloc(device, &data, r->bytes);
    if (e) return e;
    r->data = data;
    r->device = device;
    return 0;
}

int tsri_rows_init(struct tsri_rows *r, const struct tsri_fill *f, uint32_t first, uint32_t n)
{
    const struct tsr_kv_layout *l = f->layout;
    size_t row[2], token = 0;
    for (uint32_t p = 0; p < 2; p++) {
        const struct tsr_kv_plane *plane = &l->planes[p];
        row[p] = f->int8 ? tsri_row_bytes_int8(plane->n_heads, plane->dim) : tsri_row_bytes(plane);
        token += row[p];
    }
    *r = (struct tsri_rows){.bytes = token * l->n_layers * n};
    int e = rows_alloc(r, f->device);
    if (e) return e;
    r->planes = tsri_alloc(2 * (size_t)l->n_layers, sizeof *r->planes);
    r->slots = tsri_alloc(n, sizeof *r->slots);
    if (!r->planes || !r->slots) {
        tsri_rows_fini(r);
        return TSR_ENOMEM;
    }
    for (uint32_t i = 0; i < 2 * l->n_layers; i++)
        r->planes[i] = r->data + (i / 2 * token + (i % 2 ? row[0] : 0)) * n;
    for (uint32_t i = 0; i < n; i++)
        r->slots[i] = f->slots ? f->slots[first + i] : (int64_t)first + i;
    r->cells = (struct tsr_kv_cells){.size = sizeof r->cells,
                                     .planes = r->planes,
                                     .n_cells = 1,
                                     .cell_tokens = n,
                                     .n_tokens = n,
                                     .n_layers = l->n_layers,
                                     .n_planes = 2,
                                     .int8 = f->int8,
                                     .memory = r->device ? TSR_MEMORY_LOCKED : TSR_MEMORY_HOST};
    return 0;
}

int tsri_rows_move(const struct tsri_fill *f, struct tsri_rows *r, uint32_t direction,
                   int64_t delta)
{
    struct tsr_kv_run run = {.cells = &r->cells,
                             .slots = r->slots,
                             .n_tokens = r->cells.n_tokens,
                             .delta = delta,
                             .freq_set = f->freq_set};
    struct tsr_batch_limits limits = {.runs = 1,
                                      .tokens = r->cells.n_tokens,
                                      .cells = 1,
                                      .plane_pointers = 2 * r->cells.n_layers};
    struct tsri_batch_desc desc = {.direction = direction,
                                   .n_runs = 1,
                                   .layout = f->layout,
                                   .runs = &run,
                                   .rope = delta ? f->rope : NULL,
                                   .freq_set = f->freq_set};
    struct tsri_batch *batch;
    int e = tsri_batch_open(&batch, f->device, &limits);
    if (e) return e;
    e = tsri_batch_set(batch, NULL, &desc);
    if (!e)
        e = direction == TSRI_BATCH_GATHER ? tsri_batch_gather(batch, 0, 0)
                                           : tsri_batch_scatter(batch, 0, 0);
    if (!e && tsri_device_caps(f->device) & TSR_DEVICE_ASYNC) e = tsri_stream_sync(f->device, NULL);
    tsri_batch_close(batch);
    return e;
}

int tsri_fill_settle(const struct tsri_fill *f, const struct tsr_ask_desc *ask,
                     const struct tsri_plan *plan, uint32_t i, bool *placed)
{
    const struct tsr_match *m = &plan->pieces[i].match;
    int64_t delta = (int64_t)m->prompt_offset - m->base;
    struct tsri_rows rows;
    *placed = false;
    int e = tsri_rows_init(&rows, f, m->prompt_offset, m->n_tokens);
    if (e) return e;
    int n_stored = 0;
    e = tsri_rows_move(f, &rows, TSRI_BATCH_GATHER, 0);
    if (!e && f->client) {
        struct tsr_store_desc store = {.size = sizeof store,
                                       .space = f->space,
                                       .kind = TSR_KIND_SEGMENT,
                                       .n_tokens = m->n_tokens,
                                       .tokens = ask->tokens + m->prompt_offset,
                                       .base = m->base,
                                       .freq_set = f->freq_set,
                                       .cost_s = (float)(f->token_s * m->n_tokens),
                                       .view = {.data = rows.data, .bytes = rows.bytes}};
        if (m->context == TSR_CONTEXT_SAME) {
            store.context = f->context;
            store.n_context = f->n_context;
        }
        n_stored = tsr_client_store(f->client, &store);
    }
    if (!e && (delta || f->int8)) e = tsri_rows_move(f, &rows, TSRI_BATCH_SCATTER, delta);
    tsri_rows_fini(&rows);
    *placed = e == 0;
    return e ? e : n_stored;
}

int tsri_fill_prefix(const struct tsri_fill *f, const uint32_t *tokens, uint32_t from,
                     uint32_t n_tokens)
{
    struct tsri_rows rows;
    int e = tsri_rows_init(&rows, f, from, n_tokens - from);
    if (e) return e;
    e = tsri_rows_move(f, &rows, TSRI_BATCH_GATHER, 0);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = f->space,
                                   .kind = TSR_KIND_PREFIX,
                                   .n_tokens = n_tokens,
                                   .tokens = tokens,
                                   .from = from,
                                   .freq_set = f->freq_set,
                                   .view = {.data = rows.data, .bytes = rows.bytes}};
    if (!e) e = tsr_client_store(f->client, &store);
    tsri_rows_fini(&rows);
    return e;
}
