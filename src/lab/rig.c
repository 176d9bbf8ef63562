/* rig.c - what `tessera-lab bench` and bench_copy measure with: an engine's paged memory (blocks of
 * 16 tokens in random order, K and V of a block side by side, one tensor for each layer), an
 * entry's cells of 64 tokens, and the batch that moves between them on a device. Beside it lie two
 * flat pieces of the same kinds of memory and as many bytes: one plain copy between those is what a
 * move is compared with. */
#include "lab/lab.h"

enum { BLOCK = 16, CELL = 64 };

/* ---- memory ---- */

static int memory_init(struct tsri_rig *r, struct tsri_rig_memory *m, uint32_t kind, size_t bytes)
{
    void *data = NULL;
    int e;
    if (kind == TSR_MEMORY_HOST) {
        e = tsri_region_init(&m->region, bytes);
        data = m->region.data;
    } else if (kind == TSR_MEMORY_LOCKED) {
        e = tsri_device_host_alloc(r->device, &data, bytes);
    } else {
        e = tsri_device_alloc(r->device, &data, bytes);
    }
    if (e) return e;
    m->data = data;
    m->bytes = bytes;
    m->kind = kind;
    return 0;
}

static void memory_fini(struct tsri_rig *r, struct tsri_rig_memory *m)
{
    if (!m->data) return;
    if (m->kind == TSR_MEMORY_HOST)
        tsri_region_fini(&m->region);
    else if (m->kind == TSR_MEMORY_LOCKED)
        tsri_device_host_free(r->device, m->data);
    else
        tsri_device_free(r->device, m->data);
    m->data = NULL;
}

static int copy_and_wait(struct tsri_rig *r, void *dst, const void *src, size_t bytes)
{
    struct tsr_copy copy = {dst, src, bytes};
    int e = tsri_device_copy(r->device, r->stream, &copy, 1);
    return e ? e : tsri_stream_sync(r->device, r->stream);
}

/* Bits that are small numbers in every dtype, and small scales in int8 rows. */
static int memory_fill(struct tsri_rig *r, struct tsri_rig_memory *m, uint32_t first)
{
    struct tsri_region host = {0};
    uint8_t *data = m->data;
    if (m->kind == TSR_MEMORY_DEVICE) {
        int e = tsri_region_init(&host, m->bytes);
        if (e) return e;
        data = host.data;
    }
    for (size_t i = 0; i < m->bytes / 4; i++)
        ((uint32_t *)(void *)data)[i] = first + (uint32_t)(i % 97);
    if (m->kind != TSR_MEMORY_DEVICE) return 0;
    int e = copy_and_wait(r, m->data, data, m->bytes);
    tsri_region_fini(&host);
    return e;
}

/* ---- an engine and its cells ---- */

static int make_engine(struct tsri_rig *r, const struct tsri_rig_desc *s, uint32_t kind)
{
    uint64_t e = tsri_dtype_bytes(s->dtype), head = s->dim * e, row = s->n_heads * head;
    uint64_t layer = 2 * s->n_tokens * row;
    r->bytes = (size_t)(s->n_layers * layer);
    int err = memory_init(r, &r->engine, kind, r->bytes);
    if (!err) err = memory_fill(r, &r->engine, 0x01010101u);
    if (err) return err;
    r->layout = (struct tsr_kv_layout){.size = sizeof r->layout,
                                       .memory = kind,
                                       .n_layers = s->n_layers,
                                       .n_planes = 2,
                                       .block_tokens = BLOCK,
                                       .n_slots = s->n_tokens};
    for (uint32_t p = 0; p < 2; p++) {
        r->layers[p] = tsri_alloc(s->n_layers, sizeof(void *));
        if (!r->layers[p]) return TSR_ENOMEM;
        for (uint32_t i = 0; i < s->n_layers; i++)
            r->layers[p][i] = r->engine.data + i * layer + p * BLOCK * row;
        r->layout.planes[p] = (struct tsr_kv_plane){.layers = r->layers[p],
                                                    .block_stride = 2 * BLOCK * row,
                                                    .token_stride = s->hnd ? head : row,
                                                    .head_stride = s->hnd ? BLOCK * head : head,
                                                    .element_stride = e,
                                                    .dtype = s->dtype,
                                                    .n_heads = s->n_heads,
                                                    .dim = s->dim,
                                                    .rope_dims = p ? 0 : s->dim};
    }
    return 0;
}

/* Cells as a pool gives them: each with all its planes, cell after cell. */
static int make_cells(struct tsri_rig *r, const struct tsri_rig_desc *s, uint32_t kind)
{
    const struct tsr_kv_plane *p = &r->layout.planes[0];
    size_t row = s->int8 ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
    uint32_t n_cells = s->n_tokens / CELL, n_planes = 2 * s->n_layers;
    int e = memory_init(r, &r->cells, kind, (size_t)n_cells * n_planes * CELL * row);
    if (!e) e = memory_fill(r, &r->cells, 0x3c003c00u);
    if (e) return e;
    r->planes = tsri_alloc((size_t)n_cells * n_planes, sizeof(void *));
    if (!r->planes) return TSR_ENOMEM;
    for (uint32_t c = 0; c < n_cells; c++)
        for (uint32_t i = 0; i < n_planes; i++)
            r->planes[(size_t)i * n_cells + c] =
                r->cells.data + ((size_t)c * n_planes + i) * CELL * row;
    r->entry = (struct tsr_kv_cells){.size = sizeof r->entry,
                                     .planes = r->planes,
                                     .n_cells = n_cells,
                                     .cell_tokens = CELL,
                                     .n_tokens = s->n_tokens,
                                     .n_layers = s->n_layers,
                                     .n_planes = 2,
                                     .int8 = s->int8,
                                     .memory = kind};
    return 0;
}

/* Every block once, in random order. */
static int make_slots(struct tsri_rig *r, const struct tsri_rig_desc *s)
{
    uint32_t n_blocks = s->n_tokens / BLOCK;
    uint32_t *blocks = tsri_alloc(n_blocks, sizeof *blocks);
    uint64_t state = 88172645463325252u;
    r->slots = tsri_alloc(s->n_tokens, sizeof *r->slots);
    if (!blocks || !r->slots) {
        tsri_free(blocks);
        return TSR_ENOMEM;
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t k = (uint32_t)((state >> 33) % (i + 1));
        blocks[i] = blocks[k];
        blocks[k] = i;
    }
    for (uint32_t i = 0; i < s->n_tokens; i++)
        r->slots[i] = (int64_t)blocks[i / BLOCK] * BLOCK + i % BLOCK;
    tsri_free(blocks);
    return 0;
}

static int make_batch(struct tsri_rig *r, const struct tsri_rig_desc *s)
{
    struct tsr_batch_limits limits = {1, s->n_tokens, s->n_tokens / CELL,
                                      s->n_tokens / CELL * s->n_layers * 2};
    struct tsr_rope rope = {.size = sizeof rope,
                            .pairing = s->pairing ? s->pairing : TSR_ROPE_NEOX,
                            .dims = s->dim,
                            .theta = 500000};
    r->run = (struct tsr_kv_run){&r->entry, r->slots, 0, s->n_tokens, s->delta, 0, 0};
    r->direction = s->direction;
    struct tsri_batch_desc desc = {
        s->direction, 1, &r->layout, &r->run, s->delta ? &rope : NULL, 0};
    int e = tsri_batch_open(&r->batch, r->device, &limits);
    return e ? e : tsri_batch_set(r->batch, r->stream, &desc);
}

static int make_all(struct tsri_rig *r, const struct tsri_rig_desc *s)
{
    bool apart = tsri_device_caps(r->device) & TSR_DEVICE_SEPARATE;
    uint32_t engine = apart ? TSR_MEMORY_DEVICE : TSR_MEMORY_HOST;
    uint32_t cells = !apart ? TSR_MEMORY_HOST : s->near ? TSR_MEMORY_DEVICE : TSR_MEMORY_LOCKED;
    int e = tsri_stream_open(&r->stream, r->device, NULL, 0);
    if (e) return e;
    r->has_stream = true;
    e = make_engine(r, s, engine);
    if (!e) e = make_cells(r, s, cells);
    if (!e) e = make_slots(r, s);
    if (!e) e = memory_init(r, &r->flat_engine, engine, r->bytes);
    if (!e) e = memory_init(r, &r->flat_cells, cells, r->bytes);
    if (!e) e = memory_fill(r, &r->flat_engine, 0);
    if (!e) e = memory_fill(r, &r->flat_cells, 1);
    return e ? e : make_batch(r, s);
}

int tsri_rig_init(struct tsri_rig *r, const struct tsri_rig_desc *s)
{
    *r = (struct tsri_rig){.direction = s->direction};
    if (s->n_tokens == 0 || s->n_tokens % CELL)
        return tsri_fail(TSR_EINVAL, "%u tokens are no whole cells", s->n_tokens);
    struct tsr_device_desc config = {
        .size = sizeof config, .variant = s->variant, .n_threads = s->n_threads};
    int e = tsri_device_open(&r->device, s->device, &config);
    if (!e) e = make_all(r, s);
    if (e) tsri_rig_fini(r);
    return e;
}

void tsri_rig_fini(struct tsri_rig *r)
{
    if (!r->device) return;
    if (r->has_stream && tsri_stream_sync(r->device, r->stream) != 0)
        tsri_log(TSR_LOG_WARN, "device %s: %s", tsri_device_name(r->device), tsr_errmsg());
    tsri_batch_close(r->batch);
    memory_fini(r, &r->flat_cells);
    memory_fini(r, &r->flat_engine);
    memory_fini(r, &r->cells);
    memory_fini(r, &r->engine);
    tsri_free(r->slots);
    tsri_free(r->planes);
    tsri_free(r->layers[0]);
    tsri_free(r->layers[1]);
    if (r->has_stream) tsri_stream_close(r->device, r->stream);
    tsri_device_close(r->device);
    *r = (struct tsri_rig){0};
}

/* ---- what is timed ---- */

int tsri_rig_move(struct tsri_rig *r)
{
    return r->direction == TSRI_BATCH_SCATTER ? tsri_batch_scatter(r->batch, 0, 0)
                                              : tsri_batch_gather(r->batch, 0, 0);
}

int tsri_rig_copy(struct tsri_rig *r)
{
    bool load = r->direction == TSRI_BATCH_SCATTER;
    struct tsr_copy copy = {load ? r->flat_engine.data : r->flat_cells.data,
                            load ? r->flat_cells.data : r->flat_engine.data, r->bytes};
    return tsri_device_copy(r->device, r->stream, &copy, 1);
}

int tsri_rig_wait(struct tsri_rig *r)
{
    return tsri_stream_sync(r->device, r->stream);
}

/* Rows of V that are copied must be equal on both sides, whichever way they went. */
static int compare_token(struct tsri_rig *r, uint32_t layer, uint32_t token)
{
    uint8_t bytes[2][1024];
    const struct tsr_kv_plane *p = &r->layout.planes[1];
    size_t n = (size_t)p->dim * tsri_dtype_bytes(p->dtype);
    TSR_ASSERT(n <= sizeof bytes[0]);
    const uint8_t *engine =
        tsri_layer_base(p, layer) + tsri_slot_offset(&r->layout, p, (uint64_t)r->slots[token]);
    const uint8_t *row =
        (const uint8_t *)r->planes[(size_t)(2 * layer + 1) * r->entry.n_cells + token / CELL] +
        token % CELL * tsri_row_bytes(p);
    int e = copy_and_wait(r, bytes[0], engine, n);
    if (!e) e = copy_and_wait(r, bytes[1], row, n);
    if (e) return e;
    return memcmp(bytes[0], bytes[1], n) == 0
               ? 0
               : tsri_fail(TSR_ECORRUPT, "device %s: layer %u, token %u: wrong bytes",
                           tsri_device_name(r->device), layer, token);
}

int tsri_rig_check(struct tsri_rig *r)
{
    int e = tsri_rig_move(r);
    if (!e) e = tsri_rig_wait(r);
    if (r->entry.int8) return e;
    uint32_t last = r->entry.n_tokens - 1;
    for (uint32_t layer = 0; layer < r->layout.n_layers && !e; layer++) {
        e = compare_token(r, layer, layer * 37 % last);
        if (!e) e = compare_token(r, layer, last);
    }
    return e;
}
