/* moves.c - batches, copies and top k of the fake GPU, done by the reference when the stream gets
 * to them. Setting a batch copies its tables, as CUDA does; the originals must nevertheless stay in
 * place until the batch is set again or closed, and are compared whenever something is queued or
 * runs. Addresses are checked when a move is queued. */
#include "fakegpu/parts.h"

#include <stdlib.h>

/* One setting of a batch. `given` is what the caller has, `batch` is a copy of it, in which the
 * pointers of layers that were queued are those that the host can use. */
struct tables {
    uint32_t refs;
    struct tsr_batch given, batch;
    struct tsr_kv_layout layout;
    void **layers; /* [plane][layer] */
    struct tsr_kv_run *runs, *given_runs;
    struct tsr_kv_cells *cells, *given_cells; /* [run] */
    void ***planes, ***given_planes;          /* [run][plane pointer] */
    int64_t **slots;                          /* [run] */
    const float **rotations;                  /* [run] */
};

struct tsr_device_batch {
    struct tsr_batch_limits limits;
    struct tables *set;
    struct fake_mark *used; /* behind the last move */
};

static void *copy_of(const void *p, size_t bytes)
{
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy) fake_die("out of memory");
    if (bytes) memcpy(copy, p, bytes);
    return copy;
}

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) fake_die("out of memory");
    return p;
}

/* ---- tables ---- */

static void tables_drop(struct tables *t)
{
    if (!t || --t->refs) return;
    for (uint32_t i = 0; i < t->given.n_runs; i++) {
        free(t->planes[i]);
        free(t->given_planes[i]);
        free(t->slots[i]);
        free((void *)(uintptr_t)t->rotations[i]);
    }
    free(t->layers);
    free(t->runs);
    free(t->given_runs);
    free(t->cells);
    free(t->given_cells);
    free(t->planes);
    free(t->given_planes);
    free(t->slots);
    free(t->rotations);
    free(t);
}

static size_t n_pointers(const struct tsr_kv_cells *c)
{
    return (size_t)c->n_layers * c->n_planes * c->n_cells;
}

static uint32_t rope_dims(const struct tsr_kv_layout *l)
{
    for (uint32_t p = 0; p < l->n_planes; p++)
        if (l->planes[p].rope_dims) return l->planes[p].rope_dims;
    return 0;
}

static void copy_run(struct tables *t, uint32_t i)
{
    const struct tsr_kv_run *r = &t->given_runs[i];
    t->given_cells[i] = t->cells[i] = *r->cells;
    t->planes[i] = copy_of(r->cells->planes, n_pointers(r->cells) * sizeof(void *));
    t->given_planes[i] = copy_of(r->cells->planes, n_pointers(r->cells) * sizeof(void *));
    t->slots[i] = copy_of(r->slots, r->n_tokens * sizeof(int64_t));
    const float *rotation = t->given.rotations ? t->given.rotations[i] : NULL;
    if (rotation) t->rotations[i] = copy_of(rotation, rope_dims(&t->layout) * sizeof(float));
    t->cells[i].planes = t->planes[i];
    t->runs[i].cells = &t->cells[i];
    t->runs[i].slots = t->slots[i];
}

static struct tables *tables_of(const struct tsr_batch *batch)
{
    struct tables *t = zeros(1, sizeof *t);
    uint32_t n = batch->n_runs;
    t->refs = 1;
    t->given = t->batch = *batch;
    t->layout = *batch->layout;
    t->layers = zeros((size_t)t->layout.n_planes * t->layout.n_layers, sizeof *t->layers);
    t->runs = copy_of(batch->runs, n * sizeof *t->runs);
    t->given_runs = copy_of(batch->runs, n * sizeof *t->runs);
    t->cells = zeros(n, sizeof *t->cells);
    t->given_cells = zeros(n, sizeof *t->cells);
    t->planes = zeros(n, sizeof *t->planes);
    t->given_planes = zeros(n, sizeof *t->planes);
    t->slots = zeros(n, sizeof *t->slots);
    t->rotations = zeros(n, sizeof *t->rotations);
    for (uint32_t i = 0; i < n; i++)
        copy_run(t, i);
    for (uint32_t p = 0; p < t->layout.n_planes; p++)
        t->layout.planes[p].layers = t->layers + (size_t)p * t->layout.n_layers;
    t->batch.layout = &t->layout;
    t->batch.runs = t->runs;
    t->batch.rotations = t->rotations;
    return t;
}

static bool same_cells(const struct tsr_kv_cells *a, const struct tsr_kv_cells *b)
{
    return a->planes == b->planes && a->n_cells == b->n_cells && a->cell_tokens == b->cell_tokens &&
           a->n_tokens == b->n_tokens && a->n_layers == b->n_layers && a->n_planes == b->n_planes &&
           a->int8 == b->int8 && a->memory == b->memory;
}

static void check_in_place(const struct tables *t, const char *what)
{
    for (uint32_t i = 0; i < t->given.n_runs; i++) {
        const struct tsr_kv_run *now = &t->given.runs[i], *then = &t->given_runs[i];
        if (now->cells != then->cells || now->slots != then->slots || now->offset != then->offset ||
            now->n_tokens != then->n_tokens || now->delta != then->delta)
            fake_die("%s: run %u of the batch is not what it was set with", what, i);
        if (!same_cells(now->cells, &t->given_cells[i]) ||
            memcmp(now->cells->planes, t->given_planes[i],
                   n_pointers(now->cells) * sizeof(void *)) != 0)
            fake_die("%s: the cells of run %u are not what the batch was set with", what, i);
        if (memcmp(now->slots, t->slots[i], now->n_tokens * sizeof(int64_t)) != 0)
            fake_die("%s: the slots of run %u are not what the batch was set with", what, i);
    }
}

/* ---- batches ---- */

int fake_batch_open(struct tsr_device *d, struct tsr_device_batch **out,
                    const struct tsr_batch_limits *limits)
{
    int e = fake_fault(d, FAKE_BATCH_OPEN);
    if (e) return e;
    struct tsr_device_batch *b = zeros(1, sizeof *b);
    b->limits = *limits;
    pthread_mutex_lock(&fake.lock);
    d->n_batches++;
    pthread_mutex_unlock(&fake.lock);
    *out = b;
    return 0;
}

void fake_batch_close(struct tsr_device *d, struct tsr_device_batch *b)
{
    pthread_mutex_lock(&fake.lock);
    fake_mark_wait(b->used);
    fake_mark_drop(b->used);
    tables_drop(b->set);
    d->n_batches--;
    pthread_mutex_unlock(&fake.lock);
    free(b);
}

int fake_batch_set(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch)
{
    struct tsr_device_batch *b = batch->device;
    int e = fake_fault(d, FAKE_BATCH_SET);
    if (e) return e;
    if (batch->n_runs > b->limits.runs || batch->n_tokens > b->limits.tokens ||
        batch->n_cells > b->limits.cells)
        fake_die("batch_set: beyond the limits of the batch");
    struct tables *t = tables_of(batch);
    pthread_mutex_lock(&fake.lock);
    fake_await_push(fake_queue_of(d, s), b->used);
    tables_drop(b->set);
    b->set = t;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* ---- moving ---- */

struct move {
    struct tables *tables;
    const struct tsr_device_batch *batch;
    bool to_engine;
    uint32_t layer_first, n_layers;
};

static void move_run(struct fake_op *op)
{
    const struct move *m = op->arg;
    const struct tables *t = m->tables;
    /* A batch that was set again has other tables, which may stand where these did. */
    pthread_mutex_lock(&fake.lock);
    bool in_use = m->batch->set == t;
    if (in_use) check_in_place(t, op->what);
    pthread_mutex_unlock(&fake.lock);
    for (uint32_t l = m->layer_first; l < m->layer_first + m->n_layers; l++)
        for (uint32_t p = 0; p < t->layout.n_planes; p++)
            for (uint32_t i = 0; i < t->given.n_runs; i++)
                tsri_reference_move(&t->batch, m->to_engine, l, p, i);
}

static void move_end(struct fake_op *op)
{
    struct move *m = op->arg;
    tables_drop(m->tables);
    free(m);
}

static void add_span(struct fake_op *op, struct fake_span span)
{
    struct fake_span *spans = realloc(op->spans, (op->n_spans + 1) * sizeof span);
    if (!spans) fake_die("out of memory");
    op->spans = spans;
    op->spans[op->n_spans++] = span;
}

/* The rows of one run in each of its cells, in one layer and plane. */
static void find_cells(const struct tsr_device *d, struct fake_op *op, struct tables *t,
                       uint32_t run, uint32_t layer, uint32_t plane)
{
    const struct tsr_kv_run *r = &t->given_runs[run];
    const struct tsr_kv_cells *c = &t->given_cells[run];
    const struct tsr_kv_plane *p = &t->layout.planes[plane];
    size_t row = c->int8 ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
    uint32_t end = r->offset + r->n_tokens;
    for (uint32_t first = r->offset, next; first < end; first = next) {
        uint32_t cell = first / c->cell_tokens;
        next = tsri_min_u32(end, (cell + 1) * c->cell_tokens);
        size_t i = ((size_t)layer * c->n_planes + plane) * c->n_cells + cell;
        size_t skip = first % c->cell_tokens * row;
        struct fake_span span = {(uintptr_t)t->given_planes[run][i] + skip, (next - first) * row};
        t->planes[run][i] = (uint8_t *)fake_memory_at(d, c->memory, span, op->what) - skip;
        add_span(op, span);
    }
}

/* From the first to the last byte that the slots touch, in one layer and plane. */
static void find_engine(const struct tsr_device *d, struct fake_op *op, struct tables *t,
                        uint32_t layer, uint32_t plane)
{
    const struct tsr_kv_plane *p = &t->layout.planes[plane];
    uint64_t low = UINT64_MAX, high = 0;
    for (uint32_t i = 0; i < t->given.n_runs; i++)
        for (uint32_t k = 0; k < t->given_runs[i].n_tokens; k++) {
            if (t->slots[i][k] < 0) continue;
            uint64_t at = tsri_slot_offset(&t->layout, p, (uint64_t)t->slots[i][k]);
            if (at < low) low = at;
            if (at > high) high = at;
        }
    if (low == UINT64_MAX) return;
    uint64_t token = (p->n_heads - 1) * p->head_stride + (p->dim - 1) * p->element_stride +
                     tsri_dtype_bytes(p->dtype);
    const struct tsr_kv_plane *given = &t->given.layout->planes[plane];
    struct fake_span span = {(uintptr_t)tsri_layer_base(given, layer) + low, high - low + token};
    uint8_t *at = fake_memory_at(d, t->layout.memory, span, op->what);
    t->layers[(size_t)plane * t->layout.n_layers + layer] = at - low;
    add_span(op, span);
}

static void queue_move(struct tsr_device *d, struct tsr_device_stream *s,
                       const struct tsr_batch *batch, struct move what)
{
    struct tsr_device_batch *b = batch->device;
    struct fake_op *op = zeros(1, sizeof *op);
    op->what = what.to_engine ? "scatter" : "gather";
    pthread_mutex_lock(&fake.lock);
    struct tables *t = b->set;
    check_in_place(t, op->what);
    for (uint32_t l = what.layer_first; l < what.layer_first + what.n_layers; l++)
        for (uint32_t p = 0; p < t->layout.n_planes; p++) {
            find_engine(d, op, t, l, p);
            for (uint32_t i = 0; i < t->given.n_runs; i++)
                find_cells(d, op, t, i, l, p);
        }
    t->refs++;
    what.tables = t;
    what.batch = b;
    op->arg = copy_of(&what, sizeof what);
    op->run = move_run;
    op->end = move_end;
    fake_push(fake_queue_of(d, s), op);
    fake_mark_drop(b->used);
    b->used = fake_mark_push(fake_queue_of(d, s));
    pthread_mutex_unlock(&fake.lock);
}

int fake_gather(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch,
                uint32_t layer_first, uint32_t n_layers)
{
    int e = fake_fault(d, FAKE_GATHER);
    if (e) n_layers /= 2;
    if (n_layers) queue_move(d, s, batch, (struct move){NULL, NULL, false, layer_first, n_layers});
    return e;
}

int fake_scatter(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch,
                 uint32_t layer_first, uint32_t n_layers)
{
    int e = fake_fault(d, FAKE_SCATTER);
    if (e) n_layers /= 2;
    if (n_layers) queue_move(d, s, batch, (struct move){NULL, NULL, true, layer_first, n_layers});
    return e;
}

/* ---- the other operations ---- */

struct copies {
    size_t n;
    struct tsr_copy list[];
};

static void copies_run(struct fake_op *op)
{
    const struct copies *c = op->arg;
    for (size_t i = 0; i < c->n; i++)
        if (c->list[i].bytes) memcpy(c->list[i].dst, c->list[i].src, c->list[i].bytes);
}

static void arg_end(struct fake_op *op)
{
    free(op->arg);
}

static void push_op(const struct tsr_device *d, const struct tsr_device_stream *s,
                    struct fake_op *op, void (*run)(struct fake_op *op), void *arg)
{
    op->run = run;
    op->end = arg_end;
    op->arg = arg;
    fake_push(fake_queue_of(d, s), op);
}

int fake_copy(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_copy *copies,
              size_t n)
{
    int e = fake_fault(d, FAKE_COPY);
    if (e) return e;
    struct fake_op *op = zeros(1, sizeof *op);
    struct copies *own = zeros(1, sizeof *own + n * sizeof *copies);
    op->what = "copy";
    pthread_mutex_lock(&fake.lock);
    for (size_t i = 0; i < n; i++) {
        struct fake_span dst = {(uintptr_t)copies[i].dst, copies[i].bytes};
        struct fake_span src = {(uintptr_t)copies[i].src, copies[i].bytes};
        if (!copies[i].bytes) continue;
        own->list[own->n++] = (struct tsr_copy){fake_memory_any(d, dst, op->what),
                                                fake_memory_any(d, src, op->what), dst.bytes};
        add_span(op, dst);
        add_span(op, src);
    }
    push_op(d, s, op, copies_run, own);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static void top_k_run(struct fake_op *op)
{
    tsri_reference_top_k(op->arg);
}

int fake_top_k(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t)
{
    int e = fake_fault(d, FAKE_TOP_K);
    if (e) return e;
    struct fake_op *op = zeros(1, sizeof *op);
    struct tsr_top_k *own = copy_of(t, sizeof *t);
    struct fake_span scores = {(uintptr_t)t->scores, t->n * sizeof *t->scores};
    struct fake_span out = {(uintptr_t)t->out, t->k * sizeof *t->out};
    op->what = "top_k";
    pthread_mutex_lock(&fake.lock);
    own->scores = fake_memory_at(d, TSR_MEMORY_DEVICE, scores, op->what);
    own->out = fake_memory_at(d, TSR_MEMORY_DEVICE, out, op->what);
    add_span(op, scores);
    add_span(op, out);
    push_op(d, s, op, top_k_run, own);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}
