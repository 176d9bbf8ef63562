/* bulk.c - many ranges that are in memory, moved to the engine's memory by one batch on a device that
 * queues: all layers one after another on a stream of its own, with an event behind each step. One
 * range and layer at a time would wait for the device a thousand times for a prompt of documents.
 *
 * What is queued goes on whatever becomes of it: closing waits for it. */
#include "blend/blend.h"
#include "cache/source.h"

struct tsri_bulk_kit {
    struct tsri_device *device;
    struct tsr_device_stream *stream;
    struct tsri_batch *batch;
    struct tsr_batch_limits limits;   /* of the batch */
    struct tsr_device_event **events; /* [n_layers]: behind the last layer of a step */
    uint32_t n_layers;
};

struct tsri_bulk {
    struct tsri_device *device;
    struct tsri_bulk_spare *spare; /* where the kit goes in the end; NULL: nowhere */
    struct tsri_bulk_kit *kit;
    uint32_t *step_last; /* [n_layers]: of the step that a layer is in */
    uint32_t n_layers, n_queued;
    bool unmarked; /* something was queued without an event behind it */
    struct tsr_kv_layout layout;
    struct tsr_rope rope;
    struct tsr_kv_cells *cells; /* [n_runs] */
    struct tsr_kv_run *runs;    /* [n_runs] */
    uint32_t n_runs;
    void **planes;
};

/* How many positions K moves. */
static int64_t delta_of(const struct tsri_bulk_range *r)
{
    return (int64_t)r->match->prompt_offset - r->match->entry_offset - r->from->base;
}

int tsri_bulk_check(struct tsri_device *device, const struct tsri_bulk_range *r)
{
    bool needs_lock = tsri_device_caps(device) & TSR_DEVICE_NEEDS_LOCK;
    /* Not page-locked yet: computing it is faster than waiting for that. */
    if (needs_lock && !tsri_source_is_locked(r->from)) return TSR_EAGAIN;
    return r->exact && delta_of(r) ? TSR_ESPACE : 0;
}

static int make_runs(struct tsri_bulk *b, const struct tsri_bulk_desc *d,
                     struct tsr_batch_limits *limits)
{
    size_t n_planes = 0;
    for (uint32_t i = 0; i < d->n_ranges; i++)
        n_planes += tsri_source_n_planes(d->ranges[i].from);
    b->cells = tsri_alloc(d->n_ranges, sizeof *b->cells);
    b->runs = tsri_alloc(d->n_ranges, sizeof *b->runs);
    b->planes = tsri_alloc(n_planes + 1, sizeof *b->planes);
    if (!b->cells || !b->runs || !b->planes) return TSR_ENOMEM;
    void **planes = b->planes;
    for (uint32_t i = 0; i < d->n_ranges; i++) {
        const struct tsri_bulk_range *r = &d->ranges[i];
        struct tsr_kv_cells *cells = &b->cells[i];
        uint32_t offset = tsri_source_cells(r->from, planes, cells);
        planes += tsri_source_n_planes(r->from);
        cells->int8 = r->int8;
        b->runs[i] = (struct tsr_kv_run){.cells = cells,
                                         .slots = r->slots,
                                         .offset = offset,
                                         .n_tokens = r->match->n_tokens,
                                         .delta = delta_of(r),
                                         .freq_set = r->from->freq_set};
        limits->tokens += r->match->n_tokens;
        limits->cells += cells->n_cells;
        limits->plane_pointers += cells->n_cells * cells->n_layers * cells->n_planes;
    }
    b->n_runs = limits->runs = d->n_ranges;
    return 0;
}

/* ---- what it has of the device ---- */

static void kit_close(struct tsri_bulk_kit *kit)
{
    if (!kit) return;
    tsri_batch_close(kit->batch);
    for (uint32_t i = 0; kit->events && i < kit->n_layers; i++)
        if (kit->events[i]) tsri_event_close(kit->device, kit->events[i]);
    if (kit->stream) tsri_stream_close(kit->device, kit->stream);
    tsri_free(kit->events);
    tsri_free(kit);
}

/* With room for prompts that are a little longer, so that the next one fits as well. */
static uint32_t roomy(uint32_t n)
{
    uint32_t size = 64;
    while (size < n && size < UINT32_MAX / 2)
        size *= 2;
    return size < n ? n : size;
}

static int kit_open(struct tsri_bulk_kit **out, struct tsri_device *device, uint32_t n_layers,
                    const struct tsr_batch_limits *need)
{
    struct tsri_bulk_kit *kit = tsri_alloc(1, sizeof *kit);
    if (!kit) return TSR_ENOMEM;
    *kit = (struct tsri_bulk_kit){.device = device,
                                  .n_layers = n_layers,
                                  .limits = {roomy(need->runs), roomy(need->tokens),
                                             roomy(need->cells), roomy(need->plane_pointers)},
                                  .events = tsri_alloc(n_layers, sizeof *kit->events)};
    int e = kit->events ? tsri_stream_open(&kit->stream, device, NULL, 0) : TSR_ENOMEM;
    for (uint32_t i = 0; !e && i < n_layers; i++)
        e = tsri_event_open(&kit->events[i], device);
    if (!e) e = tsri_batch_open(&kit->batch, device, &kit->limits);
    if (e) {
        kit_close(kit);
        return e;
    }
    *out = kit;
    return 0;
}

static bool kit_serves(const struct tsri_bulk_kit *kit, const struct tsri_device *device,
                       uint32_t n_layers, const struct tsr_batch_limits *need)
{
    const struct tsr_batch_limits *has = &kit->limits;
    return kit->device == device && kit->n_layers == n_layers && has->runs >= need->runs &&
           has->tokens >= need->tokens && has->cells >= need->cells &&
           has->plane_pointers >= need->plane_pointers;
}

/* The newest that serves. Without one, the newest all the same: larger ones take the place of those
 * that have become too small. NULL: there is none. */
static struct tsri_bulk_kit *spare_take(struct tsri_bulk_spare *s, const struct tsri_bulk *b,
                                        const struct tsr_batch_limits *need)
{
    struct tsri_bulk_kit *kit = NULL;
    if (!s) return NULL;
    pthread_mutex_lock(&s->lock);
    uint32_t i = s->n;
    while (i && !kit_serves(s->kits[i - 1], b->device, b->n_layers, need))
        i--;
    if (s->n) {
        uint32_t at = i ? i - 1 : s->n - 1;
        kit = s->kits[at];
        s->n--;
        memmove(&s->kits[at], &s->kits[at + 1], (s->n - at) * sizeof(struct tsri_bulk_kit *));
    }
    pthread_mutex_unlock(&s->lock);
    return kit;
}

/* Returns the oldest one if there are too many then, or the kit itself if it is not kept. */
static struct tsri_bulk_kit *spare_put(struct tsri_bulk_spare *s, struct tsri_bulk_kit *kit)
{
    struct tsri_bulk_kit *oldest = NULL;
    if (!s) return kit;
    pthread_mutex_lock(&s->lock);
    if (s->n == TSRI_BULK_SPARES) {
        oldest = s->kits[0];
        s->n--;
        memmove(&s->kits[0], &s->kits[1], s->n * sizeof(struct tsri_bulk_kit *));
    }
    s->kits[s->n++] = kit;
    pthread_mutex_unlock(&s->lock);
    return oldest;
}

static int kit_take(struct tsri_bulk *b, const struct tsr_batch_limits *need)
{
    b->kit = spare_take(b->spare, b, need);
    if (b->kit && kit_serves(b->kit, b->device, b->n_layers, need)) return 0;
    kit_close(b->kit);
    b->kit = NULL;
    return kit_open(&b->kit, b->device, b->n_layers, need);
}

void tsri_bulk_spare_init(struct tsri_bulk_spare *s)
{
    *s = (struct tsri_bulk_spare){0};
    pthread_mutex_init(&s->lock, NULL);
}

void tsri_bulk_spare_fini(struct tsri_bulk_spare *s)
{
    while (s->n)
        kit_close(s->kits[--s->n]);
    pthread_mutex_destroy(&s->lock);
}

/* ---- moving ---- */

static int open_queue(struct tsri_bulk *b, const struct tsri_bulk_desc *d,
                      const struct tsr_batch_limits *limits)
{
    b->step_last = tsri_alloc(b->n_layers, sizeof *b->step_last);
    int e = b->step_last ? kit_take(b, limits) : TSR_ENOMEM;
    if (!e && d->after) e = tsri_event_wait(b->device, d->after, b->kit->stream);
    if (e) return e;
    struct tsri_batch_desc batch = {.direction = TSRI_BATCH_SCATTER,
                                    .n_runs = b->n_runs,
                                    .layout = &b->layout,
                                    .runs = b->runs,
                                    .rope = &b->rope,
                                    .freq_set = d->freq_set};
    b->unmarked = true; /* its tables are sent on the stream */
    return tsri_batch_set(b->kit->batch, b->kit->stream, &batch);
}

int tsri_bulk_open(struct tsri_bulk **out, const struct tsri_bulk_desc *d)
{
    *out = NULL;
    struct tsri_bulk *b = tsri_alloc(1, sizeof *b);
    if (!b) return TSR_ENOMEM;
    b->device = d->device;
    b->spare = d->spare;
    b->layout = *d->layout;
    b->rope = *d->rope;
    b->n_layers = d->layout->n_layers;
    struct tsr_batch_limits limits = {0};
    int e = make_runs(b, d, &limits);
    if (!e) e = open_queue(b, d, &limits);
    if (e) {
        tsri_bulk_close(b);
        return e;
    }
    *out = b;
    return 0;
}

int tsri_bulk_queue(struct tsri_bulk *b)
{
    if (b->n_queued == b->n_layers) return (int)b->n_queued;
    uint32_t first = b->n_queued, n = tsri_batch_step(b->kit->batch, first), last = first + n - 1;
    int e = tsri_batch_scatter(b->kit->batch, first, n);
    int mark = tsri_event_record(b->device, b->kit->events[last], b->kit->stream);
    b->unmarked = e || mark;
    if (e || mark) return e ? e : mark;
    for (uint32_t l = first; l <= last; l++)
        b->step_last[l] = last;
    b->n_queued = last + 1;
    return (int)b->n_queued;
}

int tsri_bulk_wait(struct tsri_bulk *b, uint32_t layer)
{
    uint32_t last = b->step_last[layer];
    int e = tsri_event_sync(b->device, b->kit->events[last]);
    return e ? e : (int)last + 1;
}

static int drain(struct tsri_bulk *b)
{
    int e = 0;
    if (b->unmarked)
        e = tsri_stream_sync(b->device, b->kit->stream);
    else if (b->n_queued)
        e = tsri_event_sync(b->device, b->kit->events[b->n_queued - 1]);
    if (e) tsri_log(TSR_LOG_WARN, "device %s: %s", tsri_device_name(b->device), tsr_errmsg());
    b->unmarked = false;
    return e;
}

void tsri_bulk_drain(struct tsri_bulk *b)
{
    (void)drain(b);
}

void tsri_bulk_close(struct tsri_bulk *b)
{
    if (!b) return;
    /* A device that has failed may still be using it: closing it waits in its own way. */
    if (b->kit) kit_close(drain(b) ? b->kit : spare_put(b->spare, b->kit));
    tsri_free(b->step_last);
    tsri_free(b->planes);
    tsri_free(b->runs);
    tsri_free(b->cells);
    tsri_free(b);
}
