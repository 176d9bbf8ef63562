/* kvmem.c - the engine's device, and its memory of one group, described by strides, with staging
 * memory beside it in the order in which the cache takes and gives KV: [layer][K, V][token]. For
 * what cannot go straight between the cache's pages and the engine's: moving goes through the
 * device that the engine runs on, which knows how to walk any strides, and the cache's calls see
 * packed memory only. */
#include "connector/connector.h"

#define RUNS_MAX 64u

/* ---- the device ---- */

int tsri_engine_device_open(struct tsri_device **device, struct tsri_device **own,
                            struct tsr_cache *cache, const char *name,
                            const struct tsr_device_desc *desc)
{
    struct tsri_device *of_cache = tsri_cache_device(cache);
    if (!name) name = "cpu";
    *own = NULL;
    /* Threads that the engine asks for are its own. */
    bool threads = of_cache && desc->n_threads && !(tsri_device_caps(of_cache) & TSR_DEVICE_ASYNC);
    if (of_cache && !threads && strcmp(tsri_device_name(of_cache), name) == 0 &&
        tsri_cache_options(cache)->device_number == desc->ordinal) {
        *device = of_cache;
        return 0;
    }
    struct tsr_device_desc mine = *desc;
    if (tsri_cache_options(cache)->device_operators) mine.flags |= TSR_DEVICE_OPERATORS;
    int e = tsri_device_open(own, name, &mine);
    *device = *own;
    return e;
}

bool tsri_engine_device_delivers(const struct tsri_device *device, const struct tsr_cache *cache)
{
    const struct tsri_device *of_cache = tsri_cache_device(cache);
    uint32_t not_cpu = TSR_DEVICE_ASYNC | TSR_DEVICE_SEPARATE;
    if (device == of_cache) return true;
    return !(tsri_device_caps(device) & not_cpu) &&
           (!of_cache || !(tsri_device_caps(of_cache) & not_cpu));
}

/* ---- memory ---- */

/* The caller's arrays of pointers go away. */
static int copy_layout(struct tsri_kvmem *m, const struct tsr_kv_layout *from)
{
    memset(&m->layout, 0, sizeof m->layout);
    memcpy(&m->layout, from, from->size < sizeof m->layout ? from->size : sizeof m->layout);
    m->layout.size = sizeof m->layout;
    if (m->layout.n_planes > TSR_KV_PLANES_MAX || m->layout.n_layers > TSRI_KV_LAYERS_MAX)
        return tsri_fail(TSR_EINVAL, "kv caches: invalid: %u layers of %u planes",
                         m->layout.n_layers, m->layout.n_planes);
    m->layer_pointers =
        tsri_alloc((size_t)TSR_KV_PLANES_MAX * (m->layout.n_layers + 1), sizeof(void *));
    if (!m->layer_pointers) return TSR_ENOMEM;
    for (uint32_t p = 0; p < m->layout.n_planes; p++) {
        void **own = m->layer_pointers + (size_t)p * m->layout.n_layers;
        if (!from->planes[p].layers) continue;
        memcpy(own, from->planes[p].layers, m->layout.n_layers * sizeof *own);
        m->layout.planes[p].layers = own;
    }
    return tsri_layout_check(&m->layout);
}

void tsri_staging_fini(struct tsri_staging *s)
{
    if (s->data) tsri_device_host_free(s->device, s->data);
    *s = (struct tsri_staging){0};
}

int tsri_kvmem_init(struct tsri_kvmem *m, const struct tsri_kvmem_desc *d)
{
    *m = (struct tsri_kvmem){.device = d->device,
                             .stream = d->stream,
                             .shared = d->staging,
                             .runs_max = RUNS_MAX,
                             .run_tokens = d->run_tokens};
    int e = copy_layout(m, d->layout);
    if (!e) e = tsri_shape_fits(d->shape, &m->layout, false);
    for (uint32_t p = 0; !e && p < m->layout.n_planes; p++)
        m->row_bytes += tsri_row_bytes(&m->layout.planes[p]);
    if (e) tsri_kvmem_fini(m);
    return e;
}

void tsri_kvmem_fini(struct tsri_kvmem *m)
{
    tsri_batch_close(m->batch);
    tsri_free(m->planes);
    tsri_free(m->runs);
    tsri_free(m->cells);
    tsri_free(m->layer_pointers);
    *m = (struct tsri_kvmem){0};
}

static int take_staging(struct tsri_staging *s)
{
    void *data = NULL;
    int e = s->data ? 0 : tsri_device_host_alloc(s->device, &data, s->bytes);
    if (data) s->data = data;
    return e;
}

int tsri_kvmem_take(struct tsri_kvmem *m)
{
    if (m->batch) return 0;
    int e = take_staging(m->shared);
    if (e) return e;
    m->staging = m->shared->data;
    uint32_t n_planes = m->layout.n_layers * m->layout.n_planes;
    struct tsr_batch_limits limits = {.runs = RUNS_MAX,
                                      .tokens = RUNS_MAX * m->run_tokens,
                                      .cells = RUNS_MAX,
                                      .plane_pointers = RUNS_MAX * n_planes};
    if (!m->cells) m->cells = tsri_alloc(RUNS_MAX, sizeof *m->cells);
    if (!m->runs) m->runs = tsri_alloc(RUNS_MAX, sizeof *m->runs);
    if (!m->planes) m->planes = tsri_alloc((size_t)RUNS_MAX * n_planes, sizeof *m->planes);
    if (!m->cells || !m->runs || !m->planes) return TSR_ENOMEM;
    return tsri_batch_open(&m->batch, m->device, &limits);
}

uint32_t tsri_kvmem_layers(const struct tsri_kvmem *m, uint32_t n_tokens)
{
    uint64_t n = m->shared->bytes / ((uint64_t)m->row_bytes * n_tokens);
    return n < m->layout.n_layers ? (uint32_t)n : m->layout.n_layers;
}

/* A run as one big cell; planes of layers that are not moved are never looked at. */
static void describe(struct tsri_kvmem *m, uint32_t i, const struct tsri_kvmem_run *run,
                     uint32_t layer_first, uint32_t n_layers)
{
    const struct tsr_kv_layout *l = &m->layout;
    void **planes = m->planes + (size_t)i * l->n_layers * l->n_planes;
    uint8_t *at = m->staging + run->at;
    TSR_ASSERT(run->at + (size_t)run->n_tokens * m->row_bytes * n_layers <= m->shared->bytes);
    for (uint32_t k = 0; k < l->n_layers * l->n_planes; k++)
        planes[k] = at;
    for (uint32_t k = layer_first; k < layer_first + n_layers; k++)
        for (uint32_t p = 0; p < l->n_planes; p++) {
            planes[(size_t)k * l->n_planes + p] = at;
            at += run->n_tokens * tsri_row_bytes(&l->planes[p]);
        }
    bool locked = tsri_device_caps(m->device) & TSR_DEVICE_NEEDS_LOCK;
    m->cells[i] = (struct tsr_kv_cells){.size = sizeof m->cells[i],
                                        .planes = planes,
                                        .n_cells = 1,
                                        .cell_tokens = run->n_tokens,
                                        .n_tokens = run->n_tokens,
                                        .n_layers = l->n_layers,
                                        .n_planes = l->n_planes,
                                        .memory = locked ? TSR_MEMORY_LOCKED : TSR_MEMORY_HOST};
    m->runs[i] =
        (struct tsr_kv_run){.cells = &m->cells[i], .slots = run->slots, .n_tokens = run->n_tokens};
}

int tsri_kvmem_move(struct tsri_kvmem *m, bool to_engine, const struct tsri_kvmem_run *runs,
                    uint32_t n, uint32_t layer_first, uint32_t n_layers)
{
    TSR_ASSERT(n > 0 && n <= m->runs_max);
    int e = tsri_kvmem_take(m);
    if (e) return e;
    for (uint32_t i = 0; i < n; i++)
        describe(m, i, &runs[i], layer_first, n_layers);
    struct tsri_batch_desc desc = {.direction = to_engine ? TSRI_BATCH_SCATTER : TSRI_BATCH_GATHER,
                                   .n_runs = n,
                                   .layout = &m->layout,
                                   .runs = m->runs};
    e = tsri_batch_set(m->batch, m->stream, &desc);
    if (!e)
        e = to_engine ? tsri_batch_scatter(m->batch, layer_first, n_layers)
                      : tsri_batch_gather(m->batch, layer_first, n_layers);
    /* What is queued reads or writes staging memory, which is used again at once. */
    int sync = tsri_stream_sync(m->device, m->stream);
    return e ? e : sync;
}

uint32_t tsri_block_slots(int64_t *out, const int32_t *blocks, uint32_t block_tokens, uint32_t base,
                          uint32_t first, uint32_t n)
{
    uint32_t n_there = 0, first_block = base / block_tokens;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = first + i;
        int32_t block = blocks[token / block_tokens - first_block];
        out[i] = block < 0 ? -1 : (int64_t)block * block_tokens + token % block_tokens;
        n_there += block >= 0;
    }
    return n_there;
}
