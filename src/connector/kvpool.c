/* kvpool.c - KV by slots, for engines that keep a pool of tokens and a radix tree over it: load
 * what is known of a prompt into slots, store what slots hold, at once or behind the engine's back.
 * The same pieces as the worker half has, without halves: every rank looks up for itself, and the
 * engine agrees on the length.
 *
 * KV goes straight between slots and the cache's pages (deliver.h) when the cache has the pool's
 * device. Chunks whose pages the device cannot reach yet, and all chunks of other caches, go through
 * staging memory.
 *
 * A write that is queued has copied everything but the KV. Until it is done its node has a lock,
 * which is a number in a table: the engine asks before it frees slots, or takes the nodes whose
 * writes have ended and undoes its own reference. */
#include "connector/connector.h"
#include "deliver/collect.h"
#include "deliver/steps.h"

#define STAGING_BYTES ((uint64_t)64 << 20)
#define WRITES_MAX 256u
#define STAGED_MAX 64u
/* Of one delivery: enough that what lies between two of them does not count. */
#define LOAD_TOKENS 65536u
#define LOAD_CHUNKS 1024u
/* Of one put: 2 ms of a bus, and no more of the cache than that is taken and not yet found. */
#define PUT_BYTES ((uint64_t)128 << 20)
#define PUT_CHUNKS 64u

struct write {
    struct tsri_job job; /* first */
    struct tsr_kvpool *pool;
    struct write *next; /* of those that have ended */
    uint64_t node;
    struct tsr_slots_desc x; /* what it points to lies behind */
    struct tsri_extras extras;
    uint32_t *tokens;
    int64_t *slots;
};

struct node {
    uint64_t id;
    uint32_t n_locks; /* 0: free */
};

/* One direction, for one user at a time. */
struct side {
    pthread_mutex_t lock;
    struct tsr_delivery *delivery; /* NULL: all of it goes through staging memory */
    uint32_t chunks_max;           /* of one delivery */
    struct tsri_kvmem mem;
    struct tsri_staging staging;
    struct tsr_device_stream *stream; /* of what goes through staging memory */
    struct tsr_device_stream *engine; /* NULL: the device's default queue */
    struct tsr_device_event *behind;  /* what the engine has queued */
};

struct tsr_kvpool {
    struct tsr_cache *cache;
    struct tsr_client *client;
    struct tsr_space *space;
    struct tsri_device *device, *own_device; /* own: where the cache has another one, or none */
    uint32_t chunk_tokens, writes_max;
    size_t chunk_bytes;
    struct side loading, storing;
    struct tsr_delivery_range *ranges; /* [loading.chunks_max] */
    struct tsri_work *writer;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    /* under lock: */
    uint32_t n_writes;
    struct node *nodes; /* [writes_max]: as many as there are writes */
    struct write *ended, **ended_tail;
    uint32_t n_ended;
};

static int no_pool(void)
{
    return tsri_fail(TSR_EINVAL, "kvpool: pool or slots are missing");
}

/* ---- open and close ---- */

static int open_device(struct tsr_kvpool *p, const struct tsr_kvpool_desc *d)
{
    struct tsr_device_desc config = {
        .size = sizeof config, .ordinal = d->device_number, .n_threads = d->n_threads};
    int e = tsri_engine_device_open(&p->device, &p->own_device, p->cache, d->device, &config);
    if (e) return e;
    bool separate = tsri_device_caps(p->device) & TSR_DEVICE_SEPARATE;
    if (d->layout->memory != TSR_MEMORY_DEVICE || separate) return 0;
    return tsri_fail(TSR_EDEVICE, "kvpool: device %s has no memory of its own",
                     tsri_device_name(p->device));
}

static void open_delivery(struct side *s, struct tsr_kvpool *p)
{
    struct tsr_delivery_desc config = {.size = sizeof config,
                                       .space = p->space,
                                       .layout = &s->mem.layout,
                                       .ranges_max = s->chunks_max,
                                       .tokens_max = s->chunks_max * p->chunk_tokens};
    if (s == &p->storing) config.flags = TSR_DELIVERY_LOW_PRIORITY;
    if (!tsri_engine_device_delivers(p->device, p->cache)) return;
    if (tsr_delivery_open(&s->delivery, p->client, &config) != 0)
        tsri_log(TSR_LOG_INFO, "kvpool: KV goes through staging memory: %s", tsr_errmsg());
}

/* Behind what the engine has computed and is still queued, and done when a call returns: a queue of
 * our own that waits for the engine's. */
static int side_init(struct side *s, struct tsr_kvpool *p, const struct tsr_kvpool_desc *d)
{
    uint64_t bytes = d->staging_bytes ? d->staging_bytes : STAGING_BYTES;
    bytes = tsri_align_up(bytes > p->chunk_bytes ? bytes : p->chunk_bytes, 4096);
    s->staging = (struct tsri_staging){.device = p->device, .bytes = bytes};
    uint32_t flags = s == &p->storing ? TSR_STREAM_LOW : 0;
    int e = tsri_stream_open(&s->stream, p->device, NULL, flags);
    if (!e && d->stream) e = tsri_stream_open(&s->engine, p->device, d->stream, 0);
    if (!e) e = tsri_event_open(&s->behind, p->device);
    struct tsri_kvmem_desc mem = {.device = p->device,
                                  .stream = s->stream,
                                  .layout = d->layout,
                                  .shape = tsri_space_shape(p->space),
                                  .run_tokens = p->chunk_tokens,
                                  .staging = &s->staging};
    if (!e) e = tsri_kvmem_init(&s->mem, &mem);
    if (!e) open_delivery(s, p);
    return e;
}

static void side_fini(struct side *s, struct tsr_kvpool *p)
{
    tsr_delivery_close(s->delivery);
    tsri_kvmem_fini(&s->mem);
    if (s->behind) tsri_event_close(p->device, s->behind);
    if (s->engine) tsri_stream_close(p->device, s->engine);
    if (s->stream) tsri_stream_close(p->device, s->stream);
    tsri_staging_fini(&s->staging);
    pthread_mutex_destroy(&s->lock);
}

static uint32_t chunks_within(uint64_t n, uint32_t max)
{
    if (n > max) return max;
    return n ? (uint32_t)n : 1;
}

static int open_parts(struct tsr_kvpool *p, const struct tsr_kvpool_desc *d)
{
    int e = tsr_space_open(&p->space, p->cache, d->space);
    if (e) return e;
    p->chunk_tokens = tsri_space_block_tokens(p->space);
    p->chunk_bytes = p->chunk_tokens * tsr_space_token_bytes(p->space);
    p->loading.chunks_max = chunks_within(LOAD_TOKENS / p->chunk_tokens, LOAD_CHUNKS);
    p->storing.chunks_max = chunks_within(PUT_BYTES / p->chunk_bytes, PUT_CHUNKS);
    e = open_device(p, d);
    if (!e) e = tsr_client_open(&p->client, p->cache);
    if (!e) e = side_init(&p->loading, p, d);
    if (!e) e = side_init(&p->storing, p, d);
    p->ranges = tsri_alloc(p->loading.chunks_max, sizeof *p->ranges);
    p->nodes = tsri_alloc(p->writes_max, sizeof *p->nodes);
    if (!e && (!p->ranges || !p->nodes)) e = TSR_ENOMEM;
    return e ? e : tsri_work_open(&p->writer, "tessera-store", 1, p->writes_max);
}

int tsr_kvpool_open(struct tsr_kvpool **out, struct tsr_cache *cache,
                    const struct tsr_kvpool_desc *desc)
{
    if (!out) return no_pool();
    *out = NULL;
    if (!cache || !desc || desc->size < sizeof *desc || !desc->space || !desc->layout)
        return tsri_fail(TSR_EINVAL, "kvpool: cache, size, space or layout is missing");
    if (desc->writes_max > 65536)
        return tsri_fail(TSR_ERANGE, "kvpool: %u writes", desc->writes_max);
    struct tsr_kvpool *p = tsri_alloc(1, sizeof *p);
    if (!p) return TSR_ENOMEM;
    p->cache = cache;
    p->writes_max = desc->writes_max ? desc->writes_max : WRITES_MAX;
    p->ended_tail = &p->ended;
    pthread_mutex_init(&p->lock, NULL);
    tsri_cond_init(&p->idle);
    pthread_mutex_init(&p->loading.lock, NULL);
    pthread_mutex_init(&p->storing.lock, NULL);
    int e = open_parts(p, desc);
    if (e) {
        tsr_kvpool_close(p);
        return e;
    }
    *out = p;
    return 0;
}

static void write_free(struct write *x)
{
    tsri_extras_fini(&x->extras);
    tsri_free(x->tokens);
    tsri_free(x->slots);
    tsri_free(x);
}

void tsr_kvpool_close(struct tsr_kvpool *p)
{
    if (!p) return;
    tsri_work_close(p->writer);
    while (p->ended) {
        struct write *x = p->ended;
        p->ended = x->next;
        write_free(x);
    }
    side_fini(&p->loading, p);
    side_fini(&p->storing, p);
    if (p->client) tsr_client_close(p->client);
    if (p->space) tsr_space_close(p->space);
    tsri_device_close(p->own_device);
    tsri_free(p->ranges);
    tsri_free(p->nodes);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    tsri_free(p);
}

uint32_t tsr_kvpool_chunk_size(const struct tsr_kvpool *p)
{
    return p ? p->chunk_tokens : 0;
}

void tsr_kvpool_align(const struct tsr_kvpool *p, uint32_t n_cached, uint32_t *offset,
                      uint32_t *n_pad)
{
    struct tsri_span span = tsri_span_align(n_cached, UINT32_MAX, p->chunk_tokens);
    *offset = span.first;
    *n_pad = span.n_pad;
}

/* ---- lookup ---- */

static int check(const struct tsr_kvpool *p, const struct tsr_slots_desc *x, bool needs_slots)
{
    if (!p || !x || x->size < sizeof *x || !x->tokens) return no_pool();
    if (x->n_tokens == 0 || x->n_tokens > TSRI_META_TOKENS_MAX)
        return tsri_fail(TSR_ERANGE, "kvpool: %u tokens", x->n_tokens);
    if (needs_slots && (!x->slots || x->offset % p->chunk_tokens || x->offset >= x->n_tokens))
        return tsri_fail(TSR_EINVAL, "kvpool: token %u of %u does not begin a chunk of %u",
                         x->offset, x->n_tokens, p->chunk_tokens);
    return 0;
}

/* Whole chunks from 0 on that the cache has; *rows is the caller's to free. */
static int find(struct tsr_kvpool *p, const struct tsr_slots_desc *x,
                const struct tsri_extras *extras, uint64_t lease, struct tsr_match **rows)
{
    uint32_t n_chunks = x->n_tokens / p->chunk_tokens, whole = n_chunks * p->chunk_tokens;
    *rows = NULL;
    if (!n_chunks) return 0;
    *rows = tsri_alloc(n_chunks, sizeof **rows);
    if (!*rows) return TSR_ENOMEM;
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = x->tokens,
                                .n_tokens = whole,
                                .flags = TSR_PROMPT_PREFIX,
                                .extra = extras->items,
                                .n_extra = tsri_extras_within(extras, whole)};
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = &p->space,
                                 .n_spaces = 1,
                                 .matches_max = n_chunks,
                                 .matches = *rows,
                                 .request_id = lease};
    int n = tsr_client_lookup(p->client, &prompt, &io);
    return n < 0 ? n : (int)io.n_prefix_tokens;
}

int tsr_kvpool_match_prefix(struct tsr_kvpool *p, const struct tsr_slots_desc *x, uint64_t lease)
{
    int e = check(p, x, false);
    struct tsri_extras extras = {0};
    struct tsr_match *rows = NULL;
    if (!e) e = tsri_extras_init(&extras, x->extra, x->n_extra, x->n_tokens, p->chunk_tokens);
    if (e) return e;
    int n = find(p, x, &extras, lease, &rows);
    tsri_free(rows);
    tsri_extras_fini(&extras);
    return n;
}

int tsr_kvpool_release(struct tsr_kvpool *p, uint64_t lease)
{
    return p ? tsr_client_release(p->client, lease) : 0;
}

/* ---- behind the engine ---- */

/* Everything here goes behind this mark: slots may have readers and writers in the queue. */
static int mark_engine(struct tsr_kvpool *p, struct side *s)
{
    return tsri_event_record(p->device, s->behind, s->engine);
}

/* What goes through staging memory. */
static int follow_engine(struct tsr_kvpool *p, struct side *s)
{
    int e = mark_engine(p, s);
    return e ? e : tsri_event_wait(p->device, s->behind, s->stream);
}

/* ---- load ---- */

/* What a load wants: chunks that rows were found for, in the order of the prompt. */
struct pool_load {
    const struct tsr_slots_desc *x;
    const struct tsr_match *rows;
    struct tsr_prompt prompt;
};

static const int64_t *chunk_slots(const struct tsr_kvpool *p, const struct pool_load *w, uint32_t i)
{
    return w->x->slots + (size_t)i * p->chunk_tokens - w->x->offset;
}

/* Chunks [i, i + n) straight out of the cache's pages; p->ranges tells what came of each. */
static void deliver(struct tsr_kvpool *p, const struct pool_load *w, uint32_t i, uint32_t n)
{
    struct tsr_delivery *d = p->loading.delivery;
    for (uint32_t k = 0; k < n; k++)
        p->ranges[k] = (struct tsr_delivery_range){.size = sizeof p->ranges[k],
                                                   .match = &w->rows[i + k],
                                                   .prompt = &w->prompt,
                                                   .slots = chunk_slots(p, w, i + k),
                                                   .result = d ? 0 : TSR_EAGAIN};
    if (!d) return;
    int n_coming = tsri_delivery_prepare(d, p->ranges, n, 0);
    int e = n_coming < 0 ? n_coming : 0;
    if (n_coming > 0) {
        e = mark_engine(p, &p->loading);
        if (!e) e = tsri_delivery_begin(d, p->loading.behind);
        if (!e) e = tsr_delivery_finish(d);
    }
    /* Waits for what was queued before an error, and lets go what none of was delivered. */
    (void)tsri_delivery_drop(d);
    for (uint32_t k = 0; e && k < n; k++)
        if (p->ranges[k].result == 0) p->ranges[k].result = e;
    if (e) tsri_log(TSR_LOG_INFO, "kvpool: load: %s", tsr_errmsg());
}

/* The device cannot reach its pages, now (not page-locked yet) or ever (cells of another size). */
static bool wants_staging(const struct tsr_delivery_range *range)
{
    return range->result == TSR_EAGAIN || range->result == TSR_EUNSUP;
}

/* Chunks [i, i + n) through staging memory; returns how many, contiguously. */
static uint32_t load_staged(struct tsr_kvpool *p, const struct pool_load *w, uint32_t i, uint32_t n)
{
    struct tsr_load_desc loads[STAGED_MAX];
    struct tsri_kvmem_run runs[STAGED_MAX];
    struct tsri_kvmem *mem = &p->loading.mem;
    if (tsri_kvmem_take(mem) != 0) return 0;
    for (uint32_t k = 0; k < n; k++) {
        size_t at = k * p->chunk_bytes;
        loads[k] =
            (struct tsr_load_desc){.size = sizeof loads[k],
                                   .space = p->space,
                                   .match = &w->rows[i + k],
                                   .prompt = &w->prompt,
                                   .view = {.data = mem->staging + at, .bytes = p->chunk_bytes}};
        runs[k] = (struct tsri_kvmem_run){
            .at = at, .n_tokens = p->chunk_tokens, .slots = chunk_slots(p, w, i + k)};
    }
    uint32_t n_good = 0;
    int e = tsr_client_load(p->client, loads, n);
    while (e >= 0 && n_good < n && loads[n_good].result == 0)
        n_good++;
    e = n_good ? follow_engine(p, &p->loading) : 0;
    if (!e && n_good) e = tsri_kvmem_move(mem, true, runs, n_good, 0, mem->layout.n_layers);
    return e ? 0 : n_good;
}

/* Chunks [i, i + n) into the pool; returns how many, contiguously. */
static uint32_t load_some(struct tsr_kvpool *p, const struct pool_load *w, uint32_t i, uint32_t n)
{
    uint32_t fits = (uint32_t)(p->loading.staging.bytes / p->chunk_bytes), k = 0;
    fits = tsri_min_u32(fits, STAGED_MAX);
    deliver(p, w, i, n);
    while (k < n) {
        uint32_t n_staged = 0;
        while (k + n_staged < n && n_staged < fits && wants_staging(&p->ranges[k + n_staged]))
            n_staged++;
        if (!n_staged && p->ranges[k].result) break;
        uint32_t n_loaded = n_staged ? load_staged(p, w, i + k, n_staged) : 1;
        k += n_loaded;
        if (n_loaded < n_staged) break;
    }
    return k;
}

int tsr_kvpool_load_kv(struct tsr_kvpool *p, const struct tsr_slots_desc *x)
{
    int e = check(p, x, true);
    struct tsri_extras extras = {0};
    struct tsr_match *rows = NULL;
    if (!e) e = tsri_extras_init(&extras, x->extra, x->n_extra, x->n_tokens, p->chunk_tokens);
    if (e) return e;
    int found = find(p, x, &extras, 0, &rows);
    if (found < 0) {
        tsri_log(TSR_LOG_INFO, "kvpool: lookup: %s", tsr_errmsg());
        found = 0;
    }
    uint32_t i = x->offset / p->chunk_tokens, end = (uint32_t)found / p->chunk_tokens;
    uint32_t whole = x->n_tokens / p->chunk_tokens * p->chunk_tokens;
    struct pool_load w = {.x = x,
                          .rows = rows,
                          .prompt = {.size = sizeof w.prompt,
                                     .tokens = x->tokens,
                                     .n_tokens = whole,
                                     .flags = TSR_PROMPT_PREFIX,
                                     .extra = extras.items,
                                     .n_extra = tsri_extras_within(&extras, whole)}};
    pthread_mutex_lock(&p->loading.lock);
    while (i < end) {
        uint32_t n_loaded = load_some(p, &w, i, tsri_min_u32(end - i, p->loading.chunks_max));
        i += n_loaded;
        if (!n_loaded) break; /* fewer than asked for: a server lends only so much at once */
    }
    pthread_mutex_unlock(&p->loading.lock);
    tsri_free(rows);
    tsri_extras_fini(&extras);
    uint32_t loaded = i * p->chunk_tokens;
    return loaded > x->offset ? (int)(loaded - x->offset) : 0;
}

/* ---- store ---- */

/* Nothing is taken back: slots stay until the store has ended. */
static bool may_read(void *pool)
{
    (void)pool;
    return true;
}

static void have_read(void *pool)
{
    (void)pool;
}

/* Straight into the cache's pages, or a server's. *n_done: tokens that are taken care of, which may
 * be fewer than were given. TSR_EUNSUP: it cannot go this way now, but chunk by chunk through
 * staging memory. */
static int store_straight(struct tsr_kvpool *p, const struct tsr_store_desc *store,
                          const int64_t *slots, uint32_t *n_done)
{
    struct tsri_reading reading = {
        .after = p->storing.behind, .begin = may_read, .end = have_read, .arg = p};
    struct tsr_put *put;
    int e = mark_engine(p, &p->storing);
    if (!e) e = tsr_put_open(&put, p->client, store);
    if (e == TSR_EFULL) return TSR_EUNSUP; /* one chunk may find room where many do not */
    if (e) return e;
    struct tsri_put_extent extent = tsri_put_extent(put);
    *n_done = extent.n_tokens;
    if (extent.n_blocks)
        e = tsri_delivery_collect(p->storing.delivery, put, slots, store->n_tokens - store->from,
                                  &reading);
    if (!e && extent.n_blocks) return tsr_put_commit(put);
    tsr_put_abort(put);
    return e == TSR_EAGAIN && !extent.sent ? TSR_EUNSUP : e; /* not page-locked yet */
}

/* One chunk, through staging memory. */
static int store_staged(struct tsr_kvpool *p, const struct tsr_store_desc *store,
                        const int64_t *slots)
{
    struct tsri_kvmem *mem = &p->storing.mem;
    struct tsri_kvmem_run run = {.n_tokens = p->chunk_tokens, .slots = slots};
    int e = follow_engine(p, &p->storing);
    if (!e) e = tsri_kvmem_move(mem, false, &run, 1, 0, mem->layout.n_layers);
    if (e) return e;
    struct tsr_store_desc packed = *store;
    packed.view = (struct tsr_view){.data = mem->staging, .bytes = p->chunk_bytes};
    return tsr_client_store(p->client, &packed);
}

/* Chunks from token `from` on, *n_tokens of them at most; set to how many are taken care of. */
static int store_some(struct tsr_kvpool *p, const struct tsr_slots_desc *x,
                      const struct tsri_extras *extras, uint32_t from, uint32_t *n_tokens)
{
    const int64_t *slots = x->slots + from - x->offset;
    for (uint32_t i = 0; i < *n_tokens; i++)
        if (slots[i] < 0)
            return tsri_fail(TSR_EINVAL, "kvpool: token %u has no slot to store from", from + i);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = p->space,
                                   .kind = TSR_KIND_PREFIX,
                                   .tokens = x->tokens,
                                   .n_tokens = from + *n_tokens,
                                   .from = from,
                                   .extra = extras->items,
                                   .n_extra = tsri_extras_within(extras, from + *n_tokens)};
    int n = p->storing.delivery ? store_straight(p, &store, slots, n_tokens) : TSR_EUNSUP;
    if (n != TSR_EUNSUP) return n;
    *n_tokens = p->chunk_tokens;
    store.n_tokens = from + p->chunk_tokens;
    store.n_extra = tsri_extras_within(extras, store.n_tokens);
    return store_staged(p, &store, slots);
}

static int store_all(struct tsr_kvpool *p, const struct tsr_slots_desc *x,
                     const struct tsri_extras *extras)
{
    struct tsr_match *rows;
    int n_new = 0, found = find(p, x, extras, 0, &rows);
    tsri_free(rows);
    if (found < 0) return found;
    uint32_t whole = x->n_tokens / p->chunk_tokens * p->chunk_tokens;
    uint32_t from = (uint32_t)found > x->offset ? (uint32_t)found : x->offset;
    uint32_t n_max = p->storing.chunks_max * p->chunk_tokens, n_tokens;
    pthread_mutex_lock(&p->storing.lock);
    for (; from < whole; from += n_tokens) {
        n_tokens = tsri_min_u32(n_max, whole - from);
        int n = store_some(p, x, extras, from, &n_tokens);
        if (n < 0) {
            n_new = n_new ? n_new : n;
            break;
        }
        n_new += n;
    }
    pthread_mutex_unlock(&p->storing.lock);
    return n_new;
}

int tsr_kvpool_store_kv(struct tsr_kvpool *p, const struct tsr_slots_desc *x)
{
    int e = check(p, x, true);
    struct tsri_extras extras = {0};
    if (!e) e = tsri_extras_init(&extras, x->extra, x->n_extra, x->n_tokens, p->chunk_tokens);
    if (e) return e;
    int n = store_all(p, x, &extras);
    tsri_extras_fini(&extras);
    return n;
}

/* ---- the writer ---- */

static struct node *find_node(struct tsr_kvpool *p, uint64_t id)
{
    for (uint32_t i = 0; i < p->writes_max; i++)
        if (p->nodes[i].n_locks && p->nodes[i].id == id) return &p->nodes[i];
    return NULL;
}

static void run_write(struct tsri_job *job)
{
    struct write *x = (struct write *)job;
    struct tsr_kvpool *p = x->pool;
    int n = store_all(p, &x->x, &x->extras);
    if (n < 0) tsri_log(TSR_LOG_DEBUG, "kvpool: a write failed: %s", tsr_errmsg());
    pthread_mutex_lock(&p->lock);
    find_node(p, x->node)->n_locks--;
    p->n_writes--;
    *p->ended_tail = x;
    p->ended_tail = &x->next;
    p->n_ended++;
    pthread_cond_broadcast(&p->idle);
    pthread_mutex_unlock(&p->lock);
}

/* Under lock. There are as many places as writes, so one is free. */
static void lock_node(struct tsr_kvpool *p, uint64_t id)
{
    struct node *n = find_node(p, id);
    for (uint32_t i = 0; !n; i++)
        if (!p->nodes[i].n_locks) n = &p->nodes[i];
    n->id = id;
    n->n_locks++;
    p->n_writes++;
}

static int copy_slots(struct write *w, const struct tsr_kvpool *p, const struct tsr_slots_desc *x)
{
    uint32_t n_slots = x->n_tokens - x->offset;
    w->tokens = tsri_alloc(x->n_tokens, sizeof *w->tokens);
    w->slots = tsri_alloc(n_slots, sizeof *w->slots);
    if (!w->tokens || !w->slots) return TSR_ENOMEM;
    memcpy(w->tokens, x->tokens, x->n_tokens * sizeof *w->tokens);
    memcpy(w->slots, x->slots, n_slots * sizeof *w->slots);
    w->x = *x;
    w->x.tokens = w->tokens;
    w->x.slots = w->slots;
    return tsri_extras_init(&w->extras, x->extra, x->n_extra, x->n_tokens, p->chunk_tokens);
}

int tsr_kvpool_store_kv_start(struct tsr_kvpool *p, const struct tsr_slots_desc *x, uint64_t node)
{
    int e = check(p, x, true);
    if (e) return e;
    struct write *w = tsri_alloc(1, sizeof *w);
    if (!w) return TSR_ENOMEM;
    *w = (struct write){.job.run = run_write, .pool = p, .node = node};
    e = copy_slots(w, p, x);
    if (e) {
        write_free(w);
        return e;
    }
    pthread_mutex_lock(&p->lock);
    bool full = p->n_writes + p->n_ended >= p->writes_max;
    if (!full) lock_node(p, node);
    pthread_mutex_unlock(&p->lock);
    if (full) {
        write_free(w);
        return tsri_fail(TSR_EAGAIN, "kvpool: %u writes are queued or not collected",
                         p->writes_max);
    }
    e = tsri_work_push(p->writer, &w->job); /* its queue has room for all there can be */
    TSR_ASSERT(e == 0);
    return 0;
}

uint32_t tsr_kvpool_locks(struct tsr_kvpool *p, uint64_t node)
{
    if (!p) return 0;
    pthread_mutex_lock(&p->lock);
    const struct node *n = find_node(p, node);
    uint32_t n_locks = n ? n->n_locks : 0;
    pthread_mutex_unlock(&p->lock);
    return n_locks;
}

int tsr_kvpool_take_written(struct tsr_kvpool *p, uint64_t *nodes, uint32_t max)
{
    if (!p || (!nodes && max)) return no_pool();
    uint32_t n = 0;
    pthread_mutex_lock(&p->lock);
    while (p->ended && n < max) {
        struct write *x = p->ended;
        nodes[n++] = x->node;
        p->ended = x->next;
        if (!p->ended) p->ended_tail = &p->ended;
        p->n_ended--;
        write_free(x);
    }
    pthread_mutex_unlock(&p->lock);
    return (int)n;
}

int tsr_kvpool_drain(struct tsr_kvpool *p, int timeout_ms)
{
    if (!p) return no_pool();
    uint64_t until_ns = timeout_ms < 0 ? 0 : tsri_now_ns() + (uint64_t)timeout_ms * 1000000 + 1;
    bool in_time = true;
    pthread_mutex_lock(&p->lock);
    while (p->n_writes && in_time)
        in_time = tsri_cond_wait(&p->idle, &p->lock, until_ns);
    bool idle = p->n_writes == 0;
    pthread_mutex_unlock(&p->lock);
    return idle ? 0 : tsri_fail(TSR_ETIME, "kvpool: writes are still queued");
}

int tsr_kvpool_reset(struct tsr_kvpool *p)
{
    int e = tsr_kvpool_drain(p, -1);
    if (e) return e;
    struct tsr_clear_desc what = {.size = sizeof what, .space = p->space, .tier = -1};
    return tsr_cache_clear(p->cache, &what);
}
