/* ascend_move.c - gather and scatter of the device "npu". Rows that stay as they are go in copies
 * between the cells and the engine's memory: one for each stretch of tokens whose slots follow each
 * other in a block and whose rows follow each other in a cell. Rows that are computed (rotated, or
 * in the int8 form) pass through page-locked buffers, in parts of one run, one layer and one plane:
 *     scatter: the processor writes rows of the engine's dtype to the buffer, copies bring them in
 *     gather:  copies bring the engine's rows to the buffer, the processor writes the cells
 * A buffer holds such rows without gaps, as an engine with contiguous memory would: the loops of
 * the cpu device see it as that, and compute what they compute there.
 *
 * With the option device_operators, a run first goes to ascend_ops.c, which may move it by operators.
 *
 * A scatter returns when its copies are queued. A gather of int8 rows returns when the cells are
 * written, since the processor writes them. */
#include "device/ascend_nn.h"

#define DEVICE_ALIGN 64u /* of copies within device memory */
/* Tokens of a part at most, and parts that wait in one buffer. */
#define PART_TOKENS 1024u
#define PARTS 64u

/* Tokens [first, first + n) of a run, in one layer and plane. */
struct npu_part {
    uint32_t layer, plane, run, first, n;
    uint8_t *rows;  /* in the buffer, in the engine's dtype */
    uint8_t *cells; /* in the buffer, as in the cells; NULL: the cells are host memory */
};

struct mover {
    struct tsr_device *d;
    struct tsr_device_stream *s;
    const struct tsr_batch *batch;
    bool to_engine;
    struct tsri_ascend_list direct;    /* between cells and engine */
    struct tsri_ascend_list down, up;  /* out of device memory into a buffer, and back */
    struct tsri_ascend_buffer *buffer; /* NULL: none taken yet */
    bool staging;                      /* the lock of staging is held */
    size_t at;                         /* in the buffer */
    uint32_t n_parts;                  /* of a gather, that wait for their rows */
    struct npu_part parts[PARTS];
    int64_t slots[PART_TOKENS];
};

/* ---- addresses ---- */

static const struct tsr_kv_plane *plane_of(const struct mover *m, const struct npu_part *p)
{
    return &m->batch->layout->planes[p->plane];
}

static size_t cell_row(const struct mover *m, const struct npu_part *p)
{
    const struct tsr_kv_plane *plane = plane_of(m, p);
    return m->batch->runs[p->run].cells->int8 ? tsri_row_bytes_int8(plane->n_heads, plane->dim)
                                              : tsri_row_bytes(plane);
}

/* The pointers to the cells of a run in one layer and plane. */
static void *const *cells_of(const struct mover *m, const struct npu_part *p)
{
    const struct tsr_kv_cells *c = m->batch->runs[p->run].cells;
    return c->planes + ((size_t)p->layer * c->n_planes + p->plane) * c->n_cells;
}

/* How many tokens from i on have slots that follow each other in a block and rows that follow each
 * other in a cell; in_block false: only that none is skipped. */
static uint32_t stretch_tokens(const struct mover *m, const struct npu_part *p, uint32_t i,
                               bool in_block)
{
    const struct tsr_kv_run *r = &m->batch->runs[p->run];
    uint32_t block = m->batch->layout->block_tokens, most = p->first + p->n - i, n = 1;
    uint32_t in_cell = r->cells->cell_tokens - (r->offset + i) % r->cells->cell_tokens;
    int64_t slot = r->slots[i];
    if (in_cell < most) most = in_cell;
    if (in_block && block) {
        uint32_t left = block - (uint32_t)((uint64_t)slot & (block - 1));
        if (left < most) most = left;
    }
    while (n < most && (in_block ? r->slots[i + n] == slot + n : r->slots[i + n] >= 0))
        n++;
    return n;
}

/* ---- copies of rows ---- */

/* The engine's side of n tokens, and rows without gaps on the other side. */
struct npu_stretch {
    const struct tsr_kv_plane *p;
    uint8_t *engine, *rows;
    uint32_t n;
};

static int add_copy(struct tsri_ascend_list *l, bool to_engine, uint8_t *engine, uint8_t *row,
                    size_t bytes)
{
    return to_engine ? tsri_ascend_list_add(l, engine, row, bytes)
                     : tsri_ascend_list_add(l, row, engine, bytes);
}

/* As many bytes at a time as lie together on both sides. */
static int copy_stretch(struct tsri_ascend_list *l, bool to_engine, const struct npu_stretch *s)
{
    const struct tsr_kv_plane *p = s->p;
    size_t element = tsri_dtype_bytes(p->dtype), head = p->dim * element, row = p->n_heads * head;
    bool dense_heads = p->element_stride == element || p->dim == 1;
    bool dense_rows = dense_heads && (p->head_stride == head || p->n_heads == 1);
    int err = 0;
    if (dense_rows && (p->token_stride == row || s->n == 1))
        return add_copy(l, to_engine, s->engine, s->rows, s->n * row);
    for (uint32_t t = 0; t < s->n && !err; t++) {
        uint8_t *engine = s->engine + t * p->token_stride, *rows = s->rows + t * row;
        if (dense_rows) err = add_copy(l, to_engine, engine, rows, row);
        for (uint32_t h = 0; h < p->n_heads && !dense_rows && !err; h++) {
            uint8_t *at = engine + h * p->head_stride;
            if (dense_heads) err = add_copy(l, to_engine, at, rows + h * head, head);
            for (uint32_t i = 0; i < p->dim && !dense_heads && !err; i++)
                err = add_copy(l, to_engine, at + i * p->element_stride,
                               rows + h * head + i * element, element);
        }
    }
    return err;
}

/* Between the engine and the cells, or the rows of the part in its buffer. */
static int copy_engine(struct mover *m, struct tsri_ascend_list *l, const struct npu_part *p)
{
    const struct tsr_kv_run *r = &m->batch->runs[p->run];
    const struct tsr_kv_plane *plane = plane_of(m, p);
    uint8_t *base = tsri_layer_base(plane, p->layer);
    size_t row = tsri_row_bytes(plane);
    int err = 0;
    for (uint32_t i = p->first; i < p->first + p->n && !err;) {
        if (r->slots[i] < 0) {
            i++;
            continue;
        }
        uint32_t token = r->offset + i, in_cell = token % r->cells->cell_tokens;
        uint8_t *cell = cells_of(m, p)[token / r->cells->cell_tokens];
        struct npu_stretch s = {
            plane, base + tsri_slot_offset(m->batch->layout, plane, (uint64_t)r->slots[i]),
            p->rows ? p->rows + (i - p->first) * row : cell + in_cell * row,
            stretch_tokens(m, p, i, true)};
        err = copy_stretch(l, m->to_engine, &s);
        i += s.n;
    }
    return err;
}

/* Between cells in device memory and the part's buffer. */
static int copy_cells(struct mover *m, struct tsri_ascend_list *l, const struct npu_part *p)
{
    const struct tsr_kv_run *r = &m->batch->runs[p->run];
    size_t row = cell_row(m, p);
    int err = 0;
    for (uint32_t i = p->first; i < p->first + p->n && !err;) {
        if (r->slots[i] < 0) {
            i++;
            continue;
        }
        uint32_t token = r->offset + i, n = stretch_tokens(m, p, i, false);
        uint8_t *cell = (uint8_t *)cells_of(m, p)[token / r->cells->cell_tokens] +
                        token % r->cells->cell_tokens * row;
        uint8_t *staged = p->cells + (i - p->first) * row;
        err = add_copy(l, m->to_engine, staged, cell, n * row);
        i += n;
    }
    return err;
}

/* ---- computing ---- */

/* The part by the loops of the cpu device, between its rows in the buffer and its cells. */
static void compute(struct mover *m, const struct npu_part *p)
{
    const struct tsr_kv_run *r = &m->batch->runs[p->run];
    const struct tsr_kv_plane *plane = plane_of(m, p);
    size_t element = tsri_dtype_bytes(plane->dtype);
    struct tsr_kv_layout layout = {
        .size = sizeof layout, .n_layers = 1, .n_planes = 1, .n_slots = p->n, .planes[0] = *plane};
    layout.planes[0].base = p->rows;
    layout.planes[0].layers = NULL;
    layout.planes[0].element_stride = element;
    layout.planes[0].head_stride = plane->dim * element;
    layout.planes[0].token_stride = tsri_row_bytes(plane);
    struct tsr_kv_cells cells = *r->cells;
    void *staged = p->cells;
    cells.n_layers = cells.n_planes = 1;
    cells.planes = cells_of(m, p);
    if (staged) {
        cells.planes = &staged;
        cells.n_cells = 1;
        cells.cell_tokens = cells.n_tokens = p->n;
    }
    for (uint32_t i = 0; i < p->n; i++)
        m->slots[i] = r->slots[p->first + i] < 0 ? -1 : (int64_t)i;
    struct tsr_kv_run run = {.cells = &cells,
                             .slots = m->slots,
                             .n_tokens = p->n,
                             .offset = staged ? 0 : r->offset + p->first};
    const float *table = m->batch->rotations ? m->batch->rotations[p->run] : NULL;
    struct tsr_batch batch = {.layout = &layout,
                              .runs = &run,
                              .n_runs = 1,
                              .n_tokens = p->n,
                              .pairing = m->batch->pairing,
                              .rotations = &table};
    struct tsri_move move = {&batch, m->d->kernels, m->to_engine, false};
    if (m->d->kernels)
        tsri_move_tokens(&move, 0, 0, 0, p->n);
    else
        tsri_reference_move(&batch, m->to_engine, 0, 0, 0);
}

/* ---- parts through buffers ---- */

/* The rows of a gather are there: writes the cells, and sends those in device memory on. */
static int finish_gather(struct mover *m)
{
    int err = 0;
    if (m->n_parts == 0) return 0;
    if (!err) err = tsri_ascend_list_flush(&m->down);
    if (!err) err = tsri_ascend_record(m->d, &m->buffer->used, m->s);
    if (!err) err = tsri_ascend_await(m->d, &m->buffer->used);
    for (uint32_t i = 0; i < m->n_parts && !err; i++) {
        compute(m, &m->parts[i]);
        if (m->parts[i].cells) err = copy_cells(m, &m->up, &m->parts[i]);
    }
    m->n_parts = 0;
    return err ? err : tsri_ascend_list_flush(&m->up);
}

/* The buffer is full, or the call ends: its rows are on their way, and `used` is behind them. */
static int leave_buffer(struct mover *m)
{
    if (!m->buffer) return 0;
    int err = finish_gather(m);
    if (!err) err = tsri_ascend_list_flush(&m->up);
    if (!err) err = tsri_ascend_record(m->d, &m->buffer->used, m->s);
    m->buffer = NULL;
    return err;
}

/* Room for a part in the buffer. */
static int reserve(struct mover *m, size_t bytes, uint8_t **out)
{
    int err = 0;
    if (!m->staging) err = tsri_ascend_staging_take(m->d);
    if (err) return err;
    m->staging = true;
    bytes = tsri_align_up(bytes, DEVICE_ALIGN);
    if (m->buffer && (m->at + bytes > m->d->buffer_bytes || m->n_parts == PARTS))
        err = leave_buffer(m);
    if (!err && !m->buffer) {
        err = tsri_ascend_buffer(m->d, &m->buffer);
        m->at = 0;
    }
    if (err) return err;
    *out = m->buffer->data + m->at;
    m->at += bytes;
    return 0;
}

/* Cells that lie in device memory come down first, and are waited for if they are computed on. */
static int scatter_part(struct mover *m, struct npu_part *p, bool computed)
{
    int err = 0;
    if (p->cells) {
        err = copy_cells(m, &m->down, p);
        if (!err) err = tsri_ascend_list_flush(&m->down);
        if (!err && computed) err = tsri_ascend_record(m->d, &m->buffer->used, m->s);
        if (!err && computed) err = tsri_ascend_await(m->d, &m->buffer->used);
    } else {
        err = tsri_ascend_settle(m->d, m->s);
    }
    if (err) return err;
    if (computed) compute(m, p);
    return copy_engine(m, &m->up, p);
}

static int gather_part(struct mover *m, const struct npu_part *p, bool computed)
{
    int err = copy_engine(m, &m->down, p);
    if (err) return err;
    if (computed) {
        m->parts[m->n_parts++] = *p;
        return 0;
    }
    err = tsri_ascend_list_flush(&m->down);
    return err ? err : copy_cells(m, &m->up, p);
}

/* A run through buffers, in parts that fit. Rows that are not computed are the same on both sides
 * of the buffer. */
static int move_staged(struct mover *m, struct npu_part whole, bool computed)
{
    const struct tsr_kv_run *r = &m->batch->runs[whole.run];
    bool on_device = r->cells->memory == TSR_MEMORY_DEVICE;
    size_t row = tsri_row_bytes(plane_of(m, &whole)), in_cell = cell_row(m, &whole);
    size_t room = m->d->buffer_bytes / 2 / (row + in_cell);
    uint32_t most = room < PART_TOKENS ? (uint32_t)room : PART_TOKENS;
    if (most == 0) return m->d->fail(TSR_ERANGE, "npu: a row is longer than a buffer");
    int err = 0;
    for (uint32_t i = 0; i < r->n_tokens && !err; i += most) {
        struct npu_part p = whole;
        p.first = i;
        p.n = tsri_min_u32(most, r->n_tokens - i);
        size_t rows = tsri_align_up(p.n * row, DEVICE_ALIGN);
        err = reserve(m, rows + (on_device && computed ? p.n * in_cell : 0), &p.rows);
        if (err) return err;
        if (on_device) p.cells = computed ? p.rows + rows : p.rows;
        err = m->to_engine ? scatter_part(m, &p, computed) : gather_part(m, &p, computed);
    }
    return err;
}

/* ---- what goes which way ---- */

/* Whether every copy between the cells and the engine begins on addresses that copies within
 * device memory take. */
static bool all_aligned(const struct mover *m, const struct npu_part *p)
{
    const struct tsr_kv_plane *plane = plane_of(m, p);
    const struct tsr_kv_cells *c = m->batch->runs[p->run].cells;
    size_t element = tsri_dtype_bytes(plane->dtype);
    if (plane->dim > 1 && plane->element_stride != element) return false;
    uint64_t bits =
        (uintptr_t)tsri_layer_base(plane, p->layer) | plane->token_stride | tsri_row_bytes(plane);
    if (m->batch->layout->block_tokens) bits |= plane->block_stride;
    if (plane->n_heads > 1) bits |= plane->head_stride | plane->dim * element;
    for (uint32_t i = 0; i < c->n_cells; i++)
        bits |= (uintptr_t)cells_of(m, p)[i];
    return bits % DEVICE_ALIGN == 0;
}

static int move_run(struct mover *m, struct npu_part p)
{
    const struct tsr_kv_run *r = &m->batch->runs[p.run];
    bool turns = m->to_engine && plane_of(m, &p)->rope_dims && m->batch->rotations[p.run];
    bool on_device = r->cells->memory == TSR_MEMORY_DEVICE;
    bool computed = turns || r->cells->int8;
    if (computed || (on_device && !all_aligned(m, &p))) return move_staged(m, p, computed);
    enum tsri_acl_kind kind = on_device      ? TSRI_ACL_DEVICE_TO_DEVICE
                              : m->to_engine ? TSRI_ACL_HOST_TO_DEVICE
                                             : TSRI_ACL_DEVICE_TO_HOST;
    int err = kind == m->direct.kind ? 0 : tsri_ascend_list_flush(&m->direct);
    m->direct.kind = kind;
    return err ? err : copy_engine(m, &m->direct, &p);
}

/* An engine whose KV is page-locked host memory: the processor's, as soon as nothing is queued. */
static int move_on_host(struct mover *m, uint32_t layer_first, uint32_t n_layers)
{
    const struct tsr_batch *b = m->batch;
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (b->runs[i].cells->memory == TSR_MEMORY_DEVICE)
            return m->d->fail(TSR_EUNSUP, "npu: cells in device memory for KV in host memory");
    int err = tsri_ascend_sync(m->d, m->s);
    struct tsri_move move = {b, m->d->kernels ? m->d->kernels : &tsri_kernels_plain, m->to_engine,
                             false};
    for (uint32_t i = 0; i < n_layers * b->layout->n_planes && !err; i++)
        tsri_move_tokens(&move, layer_first + i / b->layout->n_planes, i % b->layout->n_planes, 0,
                         b->n_tokens);
    return err;
}

static int move_layers(struct mover *m, uint32_t layer_first, uint32_t n_layers)
{
    int err = 0;
    if (m->batch->layout->memory != TSR_MEMORY_DEVICE)
        return move_on_host(m, layer_first, n_layers);
    for (uint32_t l = layer_first; l < layer_first + n_layers; l++)
        for (uint32_t r = 0; r < m->batch->n_runs && !err; r++) {
            bool done = false;
            struct tsri_ascend_run run = {m->batch, m->to_engine, l, r};
            if (m->d->ops) err = tsri_ascend_ops_move(m->d, m->s, &run, &done);
            for (uint32_t p = 0; p < m->batch->layout->n_planes && !done && !err; p++)
                err = move_run(
                    m, (struct npu_part){
                           .layer = l, .plane = p, .run = r, .n = m->batch->runs[r].n_tokens});
        }
    if (!err) err = leave_buffer(m);
    return err ? err : tsri_ascend_list_flush(&m->direct);
}

static int move(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch,
                bool to_engine, struct tsr_range layers)
{
    struct mover m = {
        .d = d, .s = tsri_ascend_stream(d, s), .batch = batch, .to_engine = to_engine};
    int err = tsri_ascend_enter(d);
    if (err) return err;
    tsri_ascend_list_init(&m.direct, d, m.s, TSRI_ACL_HOST_TO_DEVICE);
    tsri_ascend_list_init(&m.down, d, m.s, TSRI_ACL_DEVICE_TO_HOST);
    tsri_ascend_list_init(&m.up, d, m.s, TSRI_ACL_HOST_TO_DEVICE);
    m.down.to_buffer = true;
    err = tsri_ascend_abandon(d, m.s, move_layers(&m, layers.offset, layers.n_tokens));
    if (m.staging) tsri_ascend_staging_give(d);
    return err;
}

int tsri_ascend_gather(struct tsr_device *d, struct tsr_device_stream *s,
                       const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers)
{
    return move(d, s, batch, false, (struct tsr_range){layer_first, n_layers});
}

int tsri_ascend_scatter(struct tsr_device *d, struct tsr_device_stream *s,
                        const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers)
{
    return move(d, s, batch, true, (struct tsr_range){layer_first, n_layers});
}

/* ---- selection ---- */

/* On the processor, and waited for: scores of a blend are few. */
int tsri_ascend_top_k(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t)
{
    size_t in = (size_t)t->n * sizeof *t->scores, out = (size_t)t->k * sizeof *t->out;
    struct tsri_ascend_list down, up;
    uint8_t *host = NULL;
    s = tsri_ascend_stream(d, s);
    int err = tsri_ascend_enter(d);
    if (err) return err;
    int e = d->acl.aclrtMallocHost((void **)&host, in + out);
    if (e) return tsri_ascend_failed(d, e, "no page-locked memory for scores");
    tsri_ascend_list_init(&down, d, s, TSRI_ACL_DEVICE_TO_HOST);
    tsri_ascend_list_init(&up, d, s, TSRI_ACL_HOST_TO_DEVICE);
    struct tsr_top_k here = {(const float *)(const void *)host, (uint32_t *)(void *)(host + in),
                             t->n, t->k};
    err = tsri_ascend_list_add(&down, host, t->scores, in);
    if (!err) err = tsri_ascend_list_flush(&down);
    if (!err) err = tsri_ascend_sync(d, s);
    if (!err) {
        tsri_move_top_k(&here);
        err = tsri_ascend_list_add(&up, t->out, here.out, out);
    }
    if (!err) err = tsri_ascend_list_flush(&up);
    if (!err) err = tsri_ascend_sync(d, s);
    err = tsri_ascend_abandon(d, s, err);
    if (!atomic_load(&d->lost)) d->acl.aclrtFreeHost(host);
    return err;
}
