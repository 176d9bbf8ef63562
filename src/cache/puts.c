/* puts.c - storing: reserve memory for the entries of a store, copy the caller's rows in without a
 * lock, then make them visible all at once. Until commit nothing of it can be found; abort gives
 * everything back. A prefix becomes one entry a block; a segment is one entry. */
#include "cache/puts.h"
#include "cache/clients.h"
#include "cache/ops.h"
#include "find/find.h"
#include "cache/manager.h"

#include <math.h>

/* What a client has staged is read by idle I/O threads too, from this much on: one thread reads
 * less than a device writes. */
#define SPREAD_BYTES ((size_t)4 << 20)

struct block {
    uint32_t id, n_tokens;
    uint32_t offset; /* of its first token in the caller's view */
    struct tsri_key key;
};

struct tsr_put {
    struct tsri_put_base base; /* first */
    struct tsr_cache *c;
    struct tsr_space *space;
    struct tsr_view view; /* of the whole store, when given at open */
    uint32_t kind;
    uint32_t view_tokens;
    bool has_parent;
    struct tsri_key parent_key; /* block before the first, pinned as parent_id */
    uint32_t parent_id;
    uint32_t n_blocks, n_reserved;
    _Atomic uint64_t *layers; /* bit map of those that have arrived, perhaps from many threads */
    struct block blocks[];
};

static int check_store(const struct tsr_store_desc *s, const struct tsr_space *space)
{
    if (!s->tokens || s->n_tokens == 0) return tsri_fail(TSR_EINVAL, "store: no tokens");
    if (s->n_tokens > INT32_MAX) return tsri_fail(TSR_ERANGE, "store: %u tokens", s->n_tokens);
    if (s->kind < TSR_KIND_PREFIX || s->kind > TSR_KIND_BLENDED)
        return tsri_fail(TSR_EINVAL, "store: unknown kind %u", s->kind);
    if (s->kind != TSR_KIND_PREFIX && s->from)
        return tsri_fail(TSR_EINVAL, "store: `from` is only for prefixes");
    if (s->kind == TSR_KIND_PREFIX && (s->n_context || s->base))
        return tsri_fail(TSR_EINVAL, "store: a prefix has no context and no base");
    if (s->kind == TSR_KIND_PREFIX && (s->from >= s->n_tokens || s->from % space->block_tokens))
        return tsri_fail(TSR_EINVAL, "store: from %u is not a block boundary before token %u",
                         s->from, s->n_tokens);
    if (s->base > UINT32_MAX - s->n_tokens || s->freq_set == TSR_BASE_UNKNOWN)
        return tsri_fail(TSR_ERANGE,
                         "store: %u tokens at position %u, frequency set %u, out of range",
                         s->n_tokens, s->base, s->freq_set);
    if (s->n_context && (!s->context || s->kind != TSR_KIND_SEGMENT))
        return tsri_fail(TSR_EINVAL, "store: a context is only for segments and needs its tokens");
    if ((s->kind == TSR_KIND_BLENDED) != (s->recipe && s->recipe_bytes))
        return tsri_fail(TSR_EINVAL, "store: blended KV needs a recipe, and other kinds have none");
    if (!(s->cost_s >= 0) || isinf(s->cost_s))
        return tsri_fail(TSR_EINVAL, "store: invalid cost of %g seconds", (double)s->cost_s);
    int e = tsri_extra_check(s->extra, s->n_extra, s->n_tokens);
    if (e) return e;
    if (s->kind != TSR_KIND_PREFIX &&
        tsri_extra_has_media(s->extra, s->n_extra, (struct tsr_range){0, s->n_tokens}))
        return tsri_fail(TSR_EINVAL, "store: a segment must not cover media tokens");
    return 0;
}

/* Tokens the view holds KV for. */
static uint32_t put_tokens(const struct tsr_store_desc *s)
{
    return s->n_tokens - s->from;
}

/* Takes memory for one entry and fills in everything but its KV. 1: it is there already. */
static int reserve(struct tsr_put *put, const struct tsr_store_desc *store,
                   const struct tsri_chunk *chunk, const struct tsri_digest *digest)
{
    struct tsr_cache *c = put->c;
    struct block *b = &put->blocks[put->n_blocks];
    b->key = tsri_chunk_key(put->space, chunk, digest);
    b->n_tokens = chunk->range.n_tokens;
    b->offset = chunk->range.offset - store->from;
    pthread_mutex_lock(&c->lock);
    uint32_t meta, existing = tsri_entry_live(c, b->key);
    int e = 0;
    if (existing != TSRI_ID_NONE) {
        e = 1;
        goto out;
    }
    e = tsri_room_take(c, &put->space->shape, b->n_tokens, chunk->extra_bytes, &meta);
    if (e) goto out;
    e = tsri_room_id(c);
    if (e) {
        tsri_room_give(c, meta);
        goto out;
    }
    b->id = tsri_entry_alloc(c);
    c->entries[b->id].meta = meta;
    put->n_blocks++;
out:
    pthread_mutex_unlock(&c->lock);
    if (e) return e;
    struct tsri_entry *entry = &c->entries[b->id];
    atomic_store_explicit(&entry->key_lo, b->key.lo, memory_order_relaxed);
    atomic_store_explicit(&entry->key_hi, b->key.hi, memory_order_relaxed);
    entry->n_tokens = b->n_tokens;
    entry->space = put->space->id;
    entry->kind = chunk->kind;
    entry->extra_bytes = chunk->extra_bytes;
    entry->cost_s = store->cost_s * ((float)b->n_tokens / (float)put_tokens(store));
    struct tsri_meta *m = tsri_meta(c, entry);
    m->digest = *digest;
    m->base = chunk->kind == TSR_KIND_PREFIX ? chunk->range.offset : store->base;
    m->freq_set = store->freq_set;
    memcpy(tsri_meta_tokens(m), store->tokens + chunk->range.offset,
           b->n_tokens * sizeof(uint32_t));
    memcpy(tsri_meta_extra(m), chunk->extra, chunk->extra_bytes);
    return 0;
}

/* The block before the first one stored must be there and stay until commit. */
static int pin_parent(struct tsr_put *put, const struct tsri_chunk *parent)
{
    put->has_parent = true;
    put->parent_key = tsri_chunk_key(put->space, parent, &parent->digest);
    pthread_mutex_lock(&put->c->lock);
    uint32_t id = tsri_entry_live(put->c, put->parent_key);
    if (id != TSRI_ID_NONE && tsri_pin(put->c, id) == TSRI_FREE) id = TSRI_ID_NONE;
    pthread_mutex_unlock(&put->c->lock);
    put->parent_id = id;
    if (id == TSRI_ID_NONE)
        return tsri_fail(TSR_ENOENT, "store: the block before token %u is not in the cache",
                         parent->range.offset + parent->range.n_tokens);
    return 0;
}

/* A block of the store that was there when we passed it has gone since. */
enum { RETRY = 2, RETRIES_MAX = 8 };

/* Blocks that are there already are passed over as long as they come first; the first new one fixes
 * the parent. Blocks for which there is no room end the store: the leading ones are worth keeping.
 */
static int reserve_block(struct tsr_put *put, const struct tsr_store_desc *store,
                         const struct tsri_chunk *chunk, const struct tsri_chunk *before)
{
    if (put->n_blocks == 0) {
        struct tsri_key key = tsri_chunk_key(put->space, chunk, &chunk->digest);
        if (tsri_index_find(&put->c->index, put->c->entries, key) != TSRI_ID_NONE) {
            tsri_stats_add(put->c->stats, TSRI_M_stores_duplicate, 1);
            return 0;
        }
        int e = before && !put->has_parent ? pin_parent(put, before) : 0;
        if (e && before->range.offset >= store->from) return RETRY;
        if (e) return e;
    }
    int e = reserve(put, store, chunk, &chunk->digest);
    /* Somebody else is storing the same chain, or there is no more room: what we have ends here. */
    return e && put->n_blocks ? 1 : e;
}

/* *chain is left before the last block that was looked at: a store that goes on behind it needs the
 * key of that block, its parent. */
static int reserve_prefix(struct tsr_put *put, const struct tsr_store_desc *store,
                          struct tsri_walk *w, struct tsri_chain *chain)
{
    struct tsri_chunk chunk, before;
    bool have_before = false;
    if (chain && chain->n_tokens && chain->n_tokens < store->from) {
        w->block = chain->n_tokens / w->block_tokens;
        w->chain = chain->digest;
    }
    while (tsri_walk_block(w, &chunk)) {
        if (chain) *chain = (struct tsri_chain){chunk.digest, chunk.range.offset};
        if (chunk.range.offset >= store->from) {
            int e = reserve_block(put, store, &chunk, have_before ? &before : NULL);
            if (e) return e == 1 ? 0 : e;
        }
        before = chunk;
        have_before = true;
        tsri_walk_passed(w, &chunk);
    }
    return 0;
}

static int reserve_segment(struct tsr_put *put, const struct tsr_store_desc *store,
                           struct tsri_walk *w)
{
    struct tsri_chunk chunk;
    bool have = tsri_walk_segment(w, &chunk);
    TSR_ASSERT(have);
    chunk.kind = (uint8_t)store->kind;
    struct tsri_digest digest = {{0}};
    if (store->kind == TSR_KIND_BLENDED)
        tsri_digest_recipe(put->c->hash, store->recipe, store->recipe_bytes, &digest);
    else if (store->n_context)
        tsri_digest_context(put->c->hash, store->context, store->n_context, &digest);
    int e = reserve(put, store, &chunk, &digest);
    if (e == 1) tsri_stats_add(put->c->stats, TSRI_M_stores_duplicate, 1);
    return e < 0 ? e : 0;
}

static int reserve_all(struct tsr_put *put, const struct tsr_store_desc *store,
                       struct tsri_chain *chain)
{
    struct tsri_walk w;
    struct tsr_range all = {0, store->n_tokens};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = store->tokens,
                                .n_tokens = store->n_tokens,
                                .flags = TSR_PROMPT_PREFIX,
                                .extra = store->extra,
                                .n_extra = store->n_extra};
    if (store->kind != TSR_KIND_PREFIX) {
        prompt.flags = TSR_PROMPT_SEGMENTS;
        prompt.segments = &all;
        prompt.n_segments = 1;
    }
    int e = RETRY;
    for (int i = 0; e == RETRY && i < RETRIES_MAX; i++) {
        put->has_parent = false;
        e = tsri_walk_init(&w, put->space, &prompt);
        if (e) return e;
        e = store->kind == TSR_KIND_PREFIX ? reserve_prefix(put, store, &w, chain)
                                           : reserve_segment(put, store, &w);
    }
    return e == RETRY ? tsri_fail(TSR_EAGAIN, "store: the chain changed during the store") : e;
}

int tsri_put_open(struct tsr_put **out, struct tsr_client *client,
                  const struct tsr_store_desc *store, bool use_view, struct tsri_chain *chain)
{
    struct tsr_cache *c = tsri_client_cache(client);
    struct tsr_space *space = store->space;
    int e = check_store(store, space);
    if (e) return e;
    tsri_stats_add(c->stats, TSRI_M_stores, 1);
    if (atomic_load(&c->frozen)) {
        tsri_stats_add(c->stats, TSRI_M_stores_refused, 1);
        return tsri_fail(TSR_EFROZEN, "the cache is frozen");
    }
    uint32_t n_blocks = 1, n_layers = space->shape.n_layers;
    struct tsr_view view = store->view;
    e = use_view ? tsri_view_check(&space->shape, &view, put_tokens(store), n_layers) : 0;
    if (e) return e;
    if (store->kind == TSR_KIND_PREFIX)
        n_blocks = tsri_block_count(put_tokens(store), space->block_tokens, true);
    n_blocks = tsri_min_u32(n_blocks, c->pool.n_pages); /* a block takes a page at least */
    /* One more, for the block that finds no room. */
    size_t n_slots = (size_t)n_blocks + 1, words = (n_layers + 63) / 64;
    struct tsr_put *put = tsri_alloc(1, sizeof *put + n_slots * sizeof put->blocks[0] + words * 8);
    if (!put) return TSR_ENOMEM;
    put->base.client = client;
    put->c = c;
    put->space = space;
    put->kind = store->kind;
    put->parent_id = TSRI_ID_NONE;
    put->layers = (_Atomic uint64_t *)(void *)(put->blocks + n_slots);
    put->view_tokens = put_tokens(store);
    put->view = view;
    bool too_short =
        store->kind != TSR_KIND_PREFIX && store->n_tokens < c->options.segment_min_tokens;
    e = too_short ? 0 : tsri_manager_reserve(c, n_blocks);
    if (e == 0 && !too_short) {
        put->n_reserved = n_blocks;
        e = reserve_all(put, store, chain);
    }
    if (e) {
        if (e == TSR_EFULL || e == TSR_EAGAIN) tsri_stats_add(c->stats, TSRI_M_stores_refused, 1);
        goto out;
    }
    const struct block *last = &put->blocks[put->n_blocks - (put->n_blocks > 0)];
    put->base.n_blocks = put->n_blocks;
    put->base.n_tokens = put->n_blocks ? last->offset + last->n_tokens : put->view_tokens;
    *out = put;
    return 0;
out:
    tsri_put_abort(put);
    return e;
}

static int refuse_child(void)
{
    return tsri_fail(TSR_EFORK, "put: the cache belongs to the parent process");
}

static void note_layers(struct tsr_put *put, uint32_t first, uint32_t n)
{
    for (uint32_t l = first; l < first + n; l++)
        atomic_fetch_or_explicit(&put->layers[l / 64], (uint64_t)1 << l % 64, memory_order_release);
}

/* Layers of a put on their way into its blocks, perhaps by several threads. */
struct filling {
    struct tsr_put *put;
    struct tsr_view view; /* checked; begins at layer `first` */
    const struct tsri_region *source;
    uint32_t first, n;
    bool by_layer; /* an item is one layer of a block; else all of them */
    atomic_int result;
};

static void fill_item(void *arg, uint32_t i)
{
    struct filling *f = arg;
    struct tsr_put *put = f->put;
    const struct tsri_shape *shape = &put->space->shape;
    uint32_t layer = f->by_layer ? i % f->n : 0;
    const struct block *b = &put->blocks[f->by_layer ? i / f->n : i];
    if (atomic_load_explicit(&f->result, memory_order_relaxed)) return;
    struct tsri_meta *m = tsri_meta(put->c, &put->c->entries[b->id]);
    struct tsri_cell_move move = {.pool = put->c->pool.region.data,
                                  .shape = shape,
                                  .pages = tsri_meta_pages(m),
                                  .entry_tokens = b->n_tokens,
                                  .n_tokens = b->n_tokens,
                                  .layer_first = f->first + layer,
                                  .n_layers = f->by_layer ? 1 : f->n};
    struct tsr_view part = f->view;
    size_t stride = part.token_stride ? part.token_stride : shape->row_bytes[0];
    part.data = (uint8_t *)part.data + b->offset * stride + layer * part.layer_stride;
    /* With a stride of its own each plane's rows are apart; packed K and V rows may differ in size.
     */
    if (!part.token_stride && shape->n_planes > 1)
        part.plane_stride += (size_t)b->offset * shape->row_bytes[1] - b->offset * stride;
    int e = 0;
    if (f->source)
        e = tsri_cells_read(&move, &part, f->source);
    else
        tsri_cells_move(&move, &part);
    if (e) atomic_store_explicit(&f->result, e, memory_order_relaxed);
}

int tsri_put_layers(struct tsr_put *put, uint32_t first, uint32_t n, const struct tsr_view *given)
{
    return tsri_put_layers_from(put, first, n, given, NULL);
}

int tsri_put_layers_from(struct tsr_put *put, uint32_t first, uint32_t n,
                         const struct tsr_view *given, const struct tsri_region *source)
{
    const struct tsri_shape *shape = &put->space->shape;
    if (tsri_forked(put->c)) return refuse_child();
    if (n == 0 || first >= shape->n_layers || n > shape->n_layers - first)
        return tsri_fail(TSR_EINVAL, "put: layers %u to %u of %u", first, first + n,
                         shape->n_layers);
    struct tsr_view view = given ? *given : put->view;
    int e = tsri_view_check(shape, &view, put->view_tokens, n);
    if (e) return e;
    struct filling f = {.put = put, .view = view, .source = source, .first = first, .n = n};
    size_t bytes = (size_t)put->view_tokens * n * (shape->row_bytes[0] + shape->row_bytes[1]);
    if (source && bytes >= SPREAD_BYTES) {
        f.by_layer = true;
        tsri_spread(tsri_ops_work(put->c->ops), put->c->options.io_threads, put->n_blocks * n,
                    fill_item, &f);
    } else {
        for (uint32_t i = 0; i < put->n_blocks; i++)
            fill_item(&f, i);
    }
    e = atomic_load(&f.result);
    if (e == 0) note_layers(put, first, n);
    return e ? tsri_fail(e, "put: the rows cannot be read") : 0;
}

uint32_t tsri_put_n_blocks(const struct tsr_put *put)
{
    return put->n_blocks;
}

struct tsri_put_extent tsri_put_extent(const struct tsr_put *put)
{
    const struct tsri_put_base *base = (const struct tsri_put_base *)put;
    return (struct tsri_put_extent){base->n_blocks, base->n_tokens, base->sent};
}

struct tsri_put_block tsri_put_block(const struct tsr_put *put, uint32_t i)
{
    const struct block *b = &put->blocks[i];
    return (struct tsri_put_block){b->id, b->n_tokens, b->offset};
}

const struct tsr_space *tsri_put_space(const struct tsr_put *put)
{
    return put->space;
}

uint32_t tsri_put_n_tokens(const struct tsr_put *put)
{
    return put->view_tokens;
}

void tsri_put_filled(struct tsr_put *put)
{
    note_layers(put, 0, put->space->shape.n_layers);
}

/* Publishes block i behind `parent`; where somebody was faster, theirs is the parent of the next.
 */
static uint32_t publish(struct tsr_put *put, uint32_t i, uint32_t parent, uint64_t *n_tokens)
{
    struct tsr_cache *c = put->c;
    struct block *b = &put->blocks[i];
    uint32_t existing = tsri_entry_live(c, b->key);
    if (existing != TSRI_ID_NONE) {
        tsri_stats_add(c->stats, TSRI_M_stores_duplicate, 1);
        tsri_entry_abandon(c, b->id);
        return existing;
    }
    tsri_entry_publish(c, b->id, parent);
    tsri_manager_stored(c, b->id);
    put->n_reserved--;
    *n_tokens += b->n_tokens;
    tsri_stats_add(c->stats, TSRI_M_stores_new, 1);
    return b->id;
}

/* New blocks came behind others: tells the policy the order, leaf first, root last. */
static void refresh_chain(struct tsr_cache *c, uint32_t id)
{
    uint32_t ids[64], n = 0;
    for (; id != TSRI_ID_NONE; id = c->entries[id].parent) {
        if (tsri_word_state(atomic_load(&c->entries[id].word)) != TSRI_HOST) continue;
        ids[n++] = id;
        if (n < TSRI_COUNT(ids)) continue;
        tsri_policy_refresh(c->policy, ids, n);
        n = 0;
    }
    if (n) tsri_policy_refresh(c->policy, ids, n);
}

static bool all_layers(const struct tsr_put *put)
{
    for (uint32_t l = 0; l < put->space->shape.n_layers; l++)
        if (!(atomic_load_explicit(&put->layers[l / 64], memory_order_acquire) >> l % 64 & 1))
            return false;
    return true;
}

int tsri_put_commit(struct tsr_put *put)
{
    struct tsr_cache *c = put->c;
    if (tsri_forked(c)) {
        tsri_put_abort(put);
        return refuse_child();
    }
    if (!all_layers(put)) {
        tsri_put_abort(put);
        return tsri_fail(TSR_EINVAL, "put: layers are missing");
    }
    uint64_t n_tokens = 0;
    pthread_mutex_lock(&c->lock);
    uint32_t parent = put->parent_id;
    /* Dropped while we were filling (its pin keeps only the memory): then so is what comes behind.
     */
    if (put->has_parent && tsri_entry_live(c, put->parent_key) != parent) put->has_parent = false;
    bool orphans = put->parent_id != TSRI_ID_NONE && !put->has_parent;
    for (uint32_t i = 0; i < put->n_blocks && !orphans; i++)
        parent = publish(put, i, put->kind == TSR_KIND_PREFIX ? parent : TSRI_ID_NONE, &n_tokens);
    if (!orphans && put->kind == TSR_KIND_PREFIX) refresh_chain(c, parent);
    for (uint32_t i = 0; i < put->n_blocks && orphans; i++)
        tsri_entry_abandon(c, put->blocks[i].id);
    put->n_blocks = 0;
    pthread_mutex_unlock(&c->lock);
    tsri_stats_add(c->stats, TSRI_M_store_bytes,
                   n_tokens * tsri_shape_token_bytes(&put->space->shape));
    tsri_put_abort(put);
    if (n_tokens && c->manager->through) tsri_manager_drain(c);
    return (int)n_tokens;
}

void tsri_put_abort(struct tsr_put *put)
{
    struct tsr_cache *c = put->c;
    if (tsri_forked(c)) { /* what it holds is the parent's, and so may be the lock */
        tsri_free(put);
        return;
    }
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < put->n_blocks; i++)
        tsri_entry_abandon(c, put->blocks[i].id);
    if (put->parent_id != TSRI_ID_NONE) tsri_unpin_locked(c, put->parent_id);
    pthread_mutex_unlock(&c->lock);
    tsri_manager_unreserve(c, put->n_reserved);
    tsri_free(put);
}

int tsri_put_all(struct tsr_client *client, const struct tsr_store_desc *store)
{
    return tsri_put_all_from(client, store, NULL);
}

int tsri_put_all_from(struct tsr_client *client, const struct tsr_store_desc *store,
                      const struct tsri_region *source)
{
    struct tsr_put *put;
    uint64_t start = tsri_now_ns();
    int e = tsri_put_open(&put, client, store, true, NULL);
    if (e) return e;
    if (put->n_blocks == 0) {
        tsri_put_abort(put);
        return 0;
    }
    e = tsri_put_layers_from(put, 0, put->space->shape.n_layers, NULL, source);
    if (e) {
        tsri_put_abort(put);
        return e;
    }
    struct tsri_stats *stats = put->c->stats;
    e = tsri_put_commit(put);
    tsri_stats_observe_ns(stats, TSRI_M_store_ns, tsri_now_ns() - start);
    return e;
}
