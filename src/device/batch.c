/* batch.c - a load or a save: runs of tokens of several entries, exchanged with one engine layout
 * in one go. Setting a batch checks everything that could be wrong and makes the rotation tables,
 * once for all layers; moving a layer then checks only its number. All memory is taken at open. */
#include "device/device.h"

struct tsri_batch {
    struct tsri_device *device;
    struct tsr_batch_limits limits;
    struct tsr_batch view; /* what the device sees */
    struct tsr_device_stream *stream;
    uint32_t direction; /* 0: empty */
    bool rotates;
    struct tsri_slot_set slots;
    struct tsri_rope_set set;
    const float **rotations; /* [limits.runs] */
    int64_t *deltas;         /* [limits.runs]: of the tables made so far */
    float *tables;           /* [limits.runs][2 * TSRI_ROPE_PAIRS_MAX] */
};

#define TABLE_FLOATS (2 * TSRI_ROPE_PAIRS_MAX)
/* Limits of the limits: enough for a prompt of 4M tokens. */
#define RUNS_MAX (1u << 16)
#define TOKENS_MAX (1u << 22)

int tsri_batch_open(struct tsri_batch **out, struct tsri_device *d,
                    const struct tsr_batch_limits *limits)
{
    *out = NULL;
    if (!limits->runs || !limits->tokens || !limits->cells || !limits->plane_pointers ||
        limits->runs > RUNS_MAX || limits->tokens > TOKENS_MAX || limits->cells > TOKENS_MAX)
        return tsri_fail(TSR_EINVAL, "batch: invalid limits: %u runs, %u tokens, %u cells",
                         limits->runs, limits->tokens, limits->cells);
    struct tsri_batch *b = tsri_alloc(1, sizeof *b);
    if (!b) return TSR_ENOMEM;
    b->device = d;
    b->limits = *limits;
    b->rotations = tsri_alloc(limits->runs, sizeof *b->rotations);
    b->deltas = tsri_alloc(limits->runs, sizeof *b->deltas);
    b->tables = tsri_alloc(limits->runs, TABLE_FLOATS * sizeof *b->tables);
    int e = b->rotations && b->deltas && b->tables ? 0 : TSR_ENOMEM;
    if (!e) e = tsri_slot_set_init(&b->slots, limits->tokens);
    if (!e && d->ops->batch_open) e = d->ops->batch_open(d->impl, &b->view.device, limits);
    if (e) {
        tsri_batch_close(b);
        return e;
    }
    *out = b;
    return 0;
}

void tsri_batch_close(struct tsri_batch *b)
{
    if (!b) return;
    if (b->view.device) b->device->ops->batch_close(b->device->impl, b->view.device);
    tsri_slot_set_fini(&b->slots);
    tsri_free(b->tables);
    tsri_free(b->deltas);
    tsri_free(b->rotations);
    tsri_free(b);
}

/* ---- checks ---- */

static int check_rope(const struct tsri_batch_desc *desc)
{
    int e = tsri_rope_check(desc->rope);
    if (e) return e;
    uint32_t n_rotated = 0;
    for (uint32_t i = 0; i < desc->layout->n_planes; i++) {
        uint32_t dims = desc->layout->planes[i].rope_dims;
        if (!dims) continue;
        n_rotated++;
        if (dims != desc->rope->dims)
            return tsri_fail(TSR_ESPACE, "plane %u rotates %u elements, the rope %u", i, dims,
                             desc->rope->dims);
    }
    if (!n_rotated) return tsri_fail(TSR_EUNSUP, "no plane of this layout can be rotated");
    return 0;
}

static int check_memory(const struct tsri_device *d, const struct tsri_batch_desc *desc)
{
    uint32_t caps = d->ops->caps;
    if ((caps & TSR_DEVICE_SEPARATE) && desc->layout->memory == TSR_MEMORY_HOST)
        return tsri_fail(TSR_EINVAL, "device %s cannot access pageable host memory", d->ops->name);
    if (!(caps & TSR_DEVICE_NEEDS_LOCK)) return 0;
    for (uint32_t i = 0; i < desc->n_runs; i++)
        if (desc->runs[i].cells->memory == TSR_MEMORY_HOST)
            return tsri_fail(TSR_EINVAL, "run %u: device %s needs page-locked cells", i,
                             d->ops->name);
    return 0;
}

static int check_run(const struct tsri_batch_desc *desc, uint32_t i)
{
    const struct tsr_kv_run *r = &desc->runs[i];
    if (!r->n_tokens || !r->slots)
        return tsri_fail(TSR_EINVAL, "run %u: %u tokens%s", i, r->n_tokens,
                         r->slots ? "" : " without slots");
    /* Runs of one entry usually follow each other. */
    if (i == 0 || r->cells != r[-1].cells) {
        int e = tsri_cells_check(r->cells, desc->layout);
        if (e) return e;
    }
    if ((uint64_t)r->offset + r->n_tokens > r->cells->n_tokens)
        return tsri_fail(TSR_EINVAL, "run %u: tokens %u + %u are outside the entry of %u", i,
                         r->offset, r->n_tokens, r->cells->n_tokens);
    if (r->delta && (!desc->rope || desc->direction == TSRI_BATCH_GATHER))
        return tsri_fail(TSR_EINVAL, "run %u: cannot rotate K by %lld positions", i,
                         (long long)r->delta);
    if (desc->rope && r->freq_set != desc->freq_set)
        return tsri_fail(TSR_EUNSUP, "run %u: K has frequency set %u, the prompt %u", i,
                         r->freq_set, desc->freq_set);
    return 0;
}

/* Rows of cells that are written twice: rows of one size that are apart begin in different
 * multiples of that size. */
static int check_rows_once(struct tsri_batch *b, const struct tsri_batch_desc *desc, uint32_t i)
{
    const struct tsr_kv_run *r = &desc->runs[i];
    const struct tsr_kv_cells *c = r->cells;
    const struct tsr_kv_plane *p = &desc->layout->planes[0];
    size_t row = c->int8 ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
    for (uint32_t k = 0; k < r->n_tokens; k++) {
        uint32_t token = r->offset + k;
        uintptr_t at = (uintptr_t)c->planes[token / c->cell_tokens] +
                       (uintptr_t)(token % c->cell_tokens) * row;
        uint64_t id = at / row, form = (uint64_t)(c->int8 != 0) << 63; /* rows of another size */
        if (r->slots[k] != -1 &&
            tsri_slot_set_add(&b->slots, id >> 6 | form, (uint64_t)1 << (id & 63)))
            return tsri_fail(TSR_EINVAL, "run %u: the row of token %u is written twice", i, token);
    }
    return 0;
}

static int check_runs(struct tsri_batch *b, const struct tsri_batch_desc *desc)
{
    uint64_t tokens = 0, cells = 0;
    tsri_slot_set_clear(&b->slots);
    for (uint32_t i = 0; i < desc->n_runs; i++) {
        const struct tsr_kv_run *r = &desc->runs[i];
        int e = check_run(desc, i);
        if (e) return e;
        tokens += r->n_tokens;
        uint32_t per_cell = r->cells->cell_tokens;
        cells += (r->offset + r->n_tokens - 1) / per_cell - r->offset / per_cell + 1;
        if (tokens > b->limits.tokens || cells > b->limits.cells)
            return tsri_fail(TSR_ERANGE, "batch: run %u: more than %u tokens or %u cells", i,
                             b->limits.tokens, b->limits.cells);
        bool scatter = desc->direction == TSRI_BATCH_SCATTER;
        e = tsri_slots_check(r->slots, r->n_tokens, desc->layout->n_slots,
                             scatter ? &b->slots : NULL);
        if (!e && !scatter) e = check_rows_once(b, desc, i);
        if (e) return e;
    }
    if (cells * desc->layout->n_layers * desc->layout->n_planes > b->limits.plane_pointers)
        return tsri_fail(TSR_ERANGE, "batch: more than %u plane pointers",
                         b->limits.plane_pointers);
    b->view.n_tokens = (uint32_t)tokens;
    b->view.n_cells = (uint32_t)cells;
    return 0;
}

static int check_desc(struct tsri_batch *b, const struct tsri_batch_desc *desc)
{
    if (desc->direction != TSRI_BATCH_SCATTER && desc->direction != TSRI_BATCH_GATHER)
        return tsri_fail(TSR_EINVAL, "batch: direction %u", desc->direction);
    if (!desc->n_runs || !desc->runs) return tsri_fail(TSR_EINVAL, "batch: no runs");
    if (desc->n_runs > b->limits.runs)
        return tsri_fail(TSR_ERANGE, "batch: %u runs, limit %u", desc->n_runs, b->limits.runs);
    int e = tsri_layout_check(desc->layout);
    if (!e && desc->rope) e = check_rope(desc);
    if (!e) e = check_runs(b, desc);
    if (!e) e = check_memory(b->device, desc);
    return e;
}

/* ---- tables ---- */

/* Chunks of one document move by one delta: tables are shared, looking back over the last few. */
#define LOOK_BACK 8u

static void make_tables(struct tsri_batch *b, const struct tsri_batch_desc *desc)
{
    uint32_t n_tables = 0;
    bool own_angles = b->device->ops->caps & TSR_DEVICE_OWN_ANGLES;
    b->rotates = false;
    b->view.freq = NULL;
    for (uint32_t i = 0; i < desc->n_runs; i++) {
        int64_t delta = desc->runs[i].delta;
        b->rotations[i] = NULL;
        if (!delta) continue;
        if (!b->rotates) tsri_rope_set_init(&b->set, desc->rope, desc->freq_set);
        b->rotates = true;
        b->view.freq = b->set.freq;
        if (own_angles) continue;
        uint32_t k = n_tables, last = n_tables > LOOK_BACK ? n_tables - LOOK_BACK : 0;
        while (k > last && b->deltas[k - 1] != delta)
            k--;
        if (k == last) {
            k = ++n_tables;
            b->deltas[k - 1] = delta;
            tsri_rope_table(&b->set, delta, b->tables + (size_t)(k - 1) * TABLE_FLOATS);
        }
        b->rotations[i] = b->tables + (size_t)(k - 1) * TABLE_FLOATS;
    }
    b->view.pairing = b->rotates ? desc->rope->pairing : 0;
}

int tsri_batch_set(struct tsri_batch *b, struct tsr_device_stream *s,
                   const struct tsri_batch_desc *desc)
{
    const struct tsr_device_ops *ops = b->device->ops;
    b->direction = 0;
    int e = check_desc(b, desc);
    if (e) return e;
    make_tables(b, desc);
    if (b->rotates && !ops->scatter_rotate)
        return tsri_fail(TSR_EUNSUP, "device %s cannot rotate", ops->name);
    b->view.layout = desc->layout;
    b->view.runs = desc->runs;
    b->view.n_runs = desc->n_runs;
    b->view.rotations = ops->caps & TSR_DEVICE_OWN_ANGLES ? NULL : b->rotations;
    if (ops->batch_set && (e = ops->batch_set(b->device->impl, s, &b->view)) != 0) return e;
    b->stream = s;
    b->direction = desc->direction;
    return 0;
}

/* ---- moving ---- */

static int check_layers(const struct tsri_batch *b, uint32_t direction, uint32_t first, uint32_t *n)
{
    if (b->direction != direction)
        return tsri_fail(TSR_EINVAL, "batch: %s",
                         b->direction ? "set for the other direction" : "not set");
    uint32_t n_layers = b->view.layout->n_layers;
    if (first < n_layers && !*n) *n = n_layers - first;
    if (first >= n_layers || *n > n_layers - first)
        return tsri_fail(TSR_EINVAL, "batch: layers %u + %u of %u", first, *n, n_layers);
    return 0;
}

int tsri_batch_scatter(struct tsri_batch *b, uint32_t layer_first, uint32_t n_layers)
{
    int e = check_layers(b, TSRI_BATCH_SCATTER, layer_first, &n_layers);
    if (e) return e;
    const struct tsr_device_ops *ops = b->device->ops;
    return (b->rotates ? ops->scatter_rotate : ops->scatter)(b->device->impl, b->stream, &b->view,
                                                             layer_first, n_layers);
}

/* So that an engine waits for a quarter of a model of 32 layers at most. */
#define STEP_MAX 8u

uint32_t tsri_batch_step(const struct tsri_batch *b, uint32_t layer)
{
    if (!b->direction || !(b->device->ops->caps & TSR_DEVICE_ASYNC)) return 1;
    for (uint32_t i = 0; i < b->view.n_runs; i++)
        if (b->view.runs[i].cells->memory != TSR_MEMORY_DEVICE) return 1;
    uint32_t n_layers = b->view.layout->n_layers, step = 1;
    while (step * 2 <= layer && step < STEP_MAX)
        step *= 2;
    return layer < n_layers ? tsri_min_u32(step, n_layers - layer) : 1;
}

int tsri_batch_gather(struct tsri_batch *b, uint32_t layer_first, uint32_t n_layers)
{
    int e = check_layers(b, TSRI_BATCH_GATHER, layer_first, &n_layers);
    if (e) return e;
    return b->device->ops->gather(b->device->impl, b->stream, &b->view, layer_first, n_layers);
}
