/* hot.c - the device pool: a bounded number of entries in a device's memory, as a tier like any
 * other, so that the cache's manager decides what comes here, what must go, and what is forgotten.
 * What makes it worth having is tsri_hot_pin: a load into an engine on the same device takes the
 * cells from here, and neither the host nor the bus sees a byte of them.
 *
 * One block of device memory is taken at open and cut into pages; an entry stands in its pages as
 * it would in host memory (chunk/cells.c). Head, tokens and extra stay on the host, with a table of
 * the cells' device addresses, so that a pinned entry is ready for a batch. Everything but copies
 * happens under one lock; copies have one stream, used by one thread at a time. Device memory is
 * trusted as host memory is: there are no checksums. */
#include "device/locking.h"
#include "tier/hot.h"
#include "chunk/cells.h"
#include "wire/wire.h"

#include <pthread.h>

#define ITEMS_MAX (1u << 20)
#define COPIES 256u

struct item {
    struct tsr_entry_head head;
    struct tsri_shape shape;
    uint32_t *tokens, *pages;
    uint8_t *extra;
    void **planes; /* device addresses, as struct tsr_kv_cells wants them */
    uint32_t n_pages, n_cells;
    uint32_t n_pins;
    uint32_t next; /* in its bucket, or of the free ones */
    bool listed;   /* found by its key */
};

struct hot {
    struct tsr_tier base; /* first */
    struct tsri_device *device;
    struct tsr_device_stream *stream;
    uint8_t *memory;
    size_t page_bytes;
    uint32_t n_pages_max;
    pthread_mutex_t copying; /* who holds it uses the stream; never taken under lock */
    pthread_mutex_t lock;
    /* under lock: */
    struct item *items;
    uint32_t items_max, items_fresh, items_free; /* numbers from 1 on; 0: none */
    uint32_t *buckets, n_buckets;                /* a power of two */
    uint32_t *free_pages, n_free;
    struct tsr_tier_stats stats;
};

static struct hot *hot_of(struct tsr_tier *tier)
{
    return (struct hot *)tier;
}

/* ---- finding, under lock ---- */

static uint32_t *bucket_of(struct hot *h, const struct tsr_key *key)
{
    uint64_t bits;
    memcpy(&bits, key->bytes, sizeof bits);
    return &h->buckets[(bits ^ bits >> 32) & (h->n_buckets - 1)];
}

static uint32_t find(struct hot *h, const struct tsr_key *key)
{
    uint32_t at = *bucket_of(h, key);
    while (at && memcmp(&h->items[at].head.key, key, sizeof *key) != 0)
        at = h->items[at].next;
    return at;
}

static void list(struct hot *h, uint32_t number)
{
    uint32_t *bucket = bucket_of(h, &h->items[number].head.key);
    h->items[number].next = *bucket;
    h->items[number].listed = true;
    *bucket = number;
    h->stats.entries++;
}

static void unlist(struct hot *h, uint32_t number)
{
    uint32_t *at = bucket_of(h, &h->items[number].head.key);
    while (*at != number)
        at = &h->items[*at].next;
    *at = h->items[number].next;
    h->items[number].listed = false;
    h->stats.entries--;
}

/* ---- items, under lock ---- */

static void give_back(struct hot *h, uint32_t number)
{
    struct item *it = &h->items[number];
    for (uint32_t i = 0; i < it->n_pages; i++)
        h->free_pages[h->n_free++] = it->pages[i];
    h->stats.bytes_used -= (uint64_t)it->n_pages * h->page_bytes;
    tsri_free(it->tokens);
    tsri_free(it->pages);
    tsri_free(it->extra);
    tsri_free(it->planes);
    *it = (struct item){.next = h->items_free};
    h->items_free = number;
}

static void unpin(struct hot *h, uint32_t number)
{
    struct item *it = &h->items[number];
    TSR_ASSERT(it->n_pins > 0);
    if (--it->n_pins == 0 && !it->listed) give_back(h, number);
}

/* It can no longer be found; its memory goes when nobody reads it. */
static void drop(struct hot *h, uint32_t number)
{
    unlist(h, number);
    if (h->items[number].n_pins == 0) give_back(h, number);
}

static void name_planes(struct hot *h, struct item *it)
{
    const struct tsri_shape *s = &it->shape;
    for (uint32_t c = 0; c < it->n_cells; c++) {
        struct tsri_cell cell;
        tsri_cell_layout(s, it->head.n_tokens, c, &cell);
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++)
                it->planes[((size_t)l * s->n_planes + p) * it->n_cells + c] =
                    tsri_plane(h->memory, s, it->pages, &cell, c, l, p);
    }
}

/* Memory for an entry, pinned by the caller. TSR_EFULL when pages are missing, TSR_ERANGE when all
 * of them were too few. */
static int take(struct hot *h, const struct tsr_tier_io *io, uint32_t *number)
{
    const struct tsr_entry_head *e = &io->head;
    struct tsri_shape s = {.n_layers = e->n_layers,
                           .n_planes = e->n_planes,
                           .row_bytes = {e->row_bytes[0], e->n_planes > 1 ? e->row_bytes[1] : 0},
                           .cell_tokens = e->cell_tokens,
                           .page_bytes = (uint32_t)h->page_bytes};
    uint32_t row = s.row_bytes[0] > s.row_bytes[1] ? s.row_bytes[0] : s.row_bytes[1];
    uint32_t n_pages = tsri_shape_n_pages(&s, e->n_tokens);
    if ((uint64_t)row * s.cell_tokens > h->page_bytes || n_pages == 0 || n_pages > h->n_pages_max)
        return TSR_ERANGE;
    bool full = n_pages > h->n_free || (!h->items_free && h->items_fresh == h->items_max);
    if (full) return TSR_EFULL;
    struct item it = {.head = *e, .shape = s, .n_cells = io->n_cells, .n_pins = 1};
    it.tokens = tsri_alloc(e->n_tokens, sizeof *it.tokens);
    it.pages = tsri_alloc(n_pages, sizeof *it.pages);
    it.extra = tsri_alloc((size_t)e->extra_bytes + 1, 1);
    it.planes = tsri_alloc((size_t)s.n_layers * s.n_planes * io->n_cells, sizeof *it.planes);
    if (!it.tokens || !it.pages || !it.extra || !it.planes) {
        tsri_free(it.tokens);
        tsri_free(it.pages);
        tsri_free(it.extra);
        tsri_free(it.planes);
        return TSR_ENOMEM;
    }
    memcpy(it.tokens, io->tokens, e->n_tokens * sizeof *it.tokens);
    if (e->extra_bytes) memcpy(it.extra, io->extra, e->extra_bytes);
    for (; it.n_pages < n_pages; it.n_pages++)
        it.pages[it.n_pages] = h->free_pages[--h->n_free];
    h->stats.bytes_used += (uint64_t)n_pages * h->page_bytes;
    name_planes(h, &it);
    *number = h->items_free;
    if (*number)
        h->items_free = h->items[*number].next;
    else
        *number = ++h->items_fresh;
    h->items[*number] = it;
    return 0;
}

/* ---- copies ---- */

struct list {
    struct hot *h;
    struct tsr_copy copies[COPIES];
    size_t n;
    int err;
};

static void flush_list(struct list *l)
{
    if (l->n && !l->err) l->err = tsri_device_copy(l->h->device, l->h->stream, l->copies, l->n);
    l->n = 0;
}

/* A device may refuse a copy that is not in one piece of page-locked memory. */
static bool begins_piece(const void *p)
{
    return (uintptr_t)p % TSRI_LOCKING_ALIGN == 0;
}

/* Planes that follow each other on both sides, as they do when both are pages, are one copy. */
static void add_copy(struct list *l, void *dst, const void *src, size_t bytes)
{
    if (l->n) {
        struct tsr_copy *last = &l->copies[l->n - 1];
        if ((uint8_t *)last->dst + last->bytes == dst &&
            (const uint8_t *)last->src + last->bytes == src && !begins_piece(dst) &&
            !begins_piece(src)) {
            last->bytes += bytes;
            return;
        }
    }
    if (l->n == COPIES) flush_list(l);
    l->copies[l->n++] = (struct tsr_copy){dst, src, bytes};
}

/* Layers [first, first + n) between the planes of an io and those of an item; waits. Planes that
 * are NULL in the io are left out. */
static int copy_layers(struct hot *h, const struct item *it, void *const *planes,
                       struct tsr_range layers, bool in)
{
    struct list l = {.h = h};
    const struct tsri_shape *s = &it->shape;
    pthread_mutex_lock(&h->copying);
    for (uint32_t c = 0; c < it->n_cells; c++)
        for (uint32_t k = layers.offset; k < layers.offset + layers.n_tokens; k++)
            for (uint32_t p = 0; p < s->n_planes; p++) {
                size_t at = ((size_t)k * s->n_planes + p) * it->n_cells + c;
                size_t bytes = (size_t)tsri_head_cell_tokens(&it->head, c) * s->row_bytes[p];
                if (!planes[at]) continue;
                add_copy(&l, in ? it->planes[at] : planes[at], in ? planes[at] : it->planes[at],
                         bytes);
            }
    flush_list(&l);
    /* Also after a failure: what was queued must not go on into memory that is given back. */
    int e = tsri_stream_sync(h->device, h->stream);
    pthread_mutex_unlock(&h->copying);
    return l.err ? l.err : e;
}

/* ---- the table ---- */

static int put_one(struct hot *h, struct tsr_tier_io *io)
{
    uint32_t number = 0;
    if (io->deadline_ns && tsri_now_ns() >= io->deadline_ns) return TSR_ETIME;
    pthread_mutex_lock(&h->lock);
    int e = take(h, io, &number);
    pthread_mutex_unlock(&h->lock);
    if (e) return e;
    struct item *it = &h->items[number];
    struct tsr_range all = {0, it->shape.n_layers};
    e = copy_layers(h, it, io->planes, all, true);
    pthread_mutex_lock(&h->lock);
    if (!e) {
        uint32_t before = find(h, &io->head.key);
        if (before) drop(h, before);
        list(h, number);
        io->loc = number;
        h->stats.written_bytes += (uint64_t)it->n_pages * h->page_bytes;
    }
    h->stats.errors += e != 0;
    unpin(h, number);
    pthread_mutex_unlock(&h->lock);
    return e;
}

static int hot_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    int n_ok = 0;
    for (size_t i = 0; i < n; i++) {
        io[i].result = put_one(hot_of(tier), &io[i]);
        n_ok += io[i].result >= 0;
    }
    return n_ok;
}

static int check_get(const struct hot *h, const struct tsr_tier_io *io, uint32_t number)
{
    const struct tsr_entry_head *e = &h->items[number].head;
    if (number == 0 || memcmp(e->space, io->head.space, sizeof e->space) != 0 ||
        !tsri_head_same_shape(e, &io->head))
        return TSR_ENOENT;
    return e->extra_bytes > io->extra_max ? TSR_ERANGE : 0;
}

static int get_pinned(struct hot *h, struct tsr_tier_io *io, const struct item *it)
{
    io->head = it->head;
    memcpy(io->tokens, it->tokens, it->head.n_tokens * sizeof *it->tokens);
    if (it->head.extra_bytes) memcpy(io->extra, it->extra, it->head.extra_bytes);
    int e = io->head_done ? io->head_done(io) : 0;
    for (uint32_t l = 0; l < it->shape.n_layers && e >= 0; l++) {
        e = copy_layers(h, it, io->planes, (struct tsr_range){l, 1}, false);
        if (e >= 0 && io->layer_done) io->layer_done(io, l);
    }
    return e < 0 ? e : 0;
}

static int get_one(struct hot *h, struct tsr_tier_io *io)
{
    if (io->deadline_ns && tsri_now_ns() >= io->deadline_ns) return TSR_ETIME;
    pthread_mutex_lock(&h->lock);
    uint32_t number = find(h, &io->head.key);
    int e = check_get(h, io, number);
    if (!e) h->items[number].n_pins++;
    pthread_mutex_unlock(&h->lock);
    if (e) return e;
    io->loc = number;
    e = get_pinned(h, io, &h->items[number]);
    pthread_mutex_lock(&h->lock);
    if (e == 0) h->stats.read_bytes += (uint64_t)h->items[number].n_pages * h->page_bytes;
    unpin(h, number);
    pthread_mutex_unlock(&h->lock);
    return e;
}

static int hot_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    int n_ok = 0;
    for (size_t i = 0; i < n; i++) {
        io[i].result = get_one(hot_of(tier), &io[i]);
        n_ok += io[i].result >= 0;
    }
    return n_ok;
}

static int hot_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct hot *h = hot_of(tier);
    int n_dropped = 0;
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < n; i++) {
        uint32_t number = find(h, &refs[i].key);
        if (number) drop(h, number);
        n_dropped += number != 0;
    }
    pthread_mutex_unlock(&h->lock);
    return n_dropped;
}

static int hot_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                        uint8_t *found)
{
    struct hot *h = hot_of(tier);
    int n_found = 0;
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < n; i++) {
        found[i] = find(h, &refs[i].key) != 0;
        n_found += found[i];
    }
    pthread_mutex_unlock(&h->lock);
    return n_found;
}

static int hot_stats(struct tsr_tier *tier, struct tsr_tier_stats *out)
{
    struct hot *h = hot_of(tier);
    pthread_mutex_lock(&h->lock);
    *out = h->stats;
    pthread_mutex_unlock(&h->lock);
    return 0;
}

/* ---- open and close ---- */

static void hot_close(struct tsr_tier *tier)
{
    struct hot *h = hot_of(tier);
    for (uint32_t i = 1; i <= h->items_fresh; i++) {
        TSR_ASSERT(h->items[i].n_pins == 0);
        if (h->items[i].listed) drop(h, i);
    }
    tsri_free(h->free_pages);
    tsri_free(h->buckets);
    tsri_free(h->items);
    if (h->memory) tsri_stream_close(h->device, h->stream);
    tsri_device_free(h->device, h->memory);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->copying);
    tsri_free(h);
}

static int open_tables(struct hot *h)
{
    /* An entry has one page at least. */
    h->items_max = tsri_min_u32(h->n_pages_max, ITEMS_MAX);
    h->n_buckets = 1;
    while (h->n_buckets < h->items_max)
        h->n_buckets *= 2;
    h->items = tsri_alloc((size_t)h->items_max + 1, sizeof *h->items);
    h->buckets = tsri_alloc(h->n_buckets, sizeof *h->buckets);
    h->free_pages = tsri_alloc(h->n_pages_max, sizeof *h->free_pages);
    if (!h->items || !h->buckets || !h->free_pages) return TSR_ENOMEM;
    for (; h->n_free < h->n_pages_max; h->n_free++)
        h->free_pages[h->n_free] = h->n_pages_max - 1 - h->n_free;
    return 0;
}

static int hot_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    const struct tsri_hot_setup *setup = desc->arg;
    uint64_t n_pages = setup->bytes_max / setup->page_bytes;
    if (n_pages == 0 || n_pages > UINT32_MAX)
        return tsri_fail(TSR_ECONFIG, "device pool: invalid size: %llu bytes in pages of %zu",
                         (unsigned long long)setup->bytes_max, setup->page_bytes);
    struct hot *h = tsri_alloc(1, sizeof *h);
    if (!h) return TSR_ENOMEM;
    h->device = setup->device;
    h->page_bytes = setup->page_bytes;
    h->n_pages_max = (uint32_t)n_pages;
    h->stats.bytes_max = n_pages * setup->page_bytes;
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->copying, NULL);
    void *memory = NULL;
    int e = tsri_stream_open(&h->stream, h->device, NULL, 0);
    if (!e) e = tsri_device_alloc(h->device, &memory, (size_t)h->stats.bytes_max);
    if (e && h->stream) tsri_stream_close(h->device, h->stream);
    h->memory = memory;
    if (!e) e = open_tables(h);
    if (e) {
        hot_close(&h->base);
        return e;
    }
    *out = &h->base;
    return 0;
}

const struct tsr_tier_ops tsri_tier_hot = {
    .abi = TSR_TIER_ABI,
    .name = "device",
    .open = hot_open,
    .close = hot_close,
    .put = hot_put,
    .get = hot_get,
    .drop = hot_drop,
    .contains = hot_contains,
    .stats = hot_stats,
};

/* ---- for loads on the device ---- */

bool tsri_hot_pin(struct tsr_tier *tier, const struct tsr_key *key, struct tsri_hot_pin *out)
{
    struct hot *h = hot_of(tier);
    pthread_mutex_lock(&h->lock);
    uint32_t number = find(h, key);
    const struct item *it = &h->items[number];
    if (number) {
        h->items[number].n_pins++;
        *out = (struct tsri_hot_pin){.number = number,
                                     .head = &it->head,
                                     .tokens = it->tokens,
                                     .extra = it->extra,
                                     .cells = {.size = sizeof out->cells,
                                               .planes = it->planes,
                                               .n_cells = it->n_cells,
                                               .cell_tokens = it->shape.cell_tokens,
                                               .n_tokens = it->head.n_tokens,
                                               .n_layers = it->shape.n_layers,
                                               .n_planes = it->shape.n_planes,
                                               .memory = TSR_MEMORY_DEVICE}};
    }
    pthread_mutex_unlock(&h->lock);
    return number != 0;
}

void tsri_hot_unpin(struct tsr_tier *tier, const struct tsri_hot_pin *pin)
{
    struct hot *h = hot_of(tier);
    pthread_mutex_lock(&h->lock);
    unpin(h, pin->number);
    pthread_mutex_unlock(&h->lock);
}
