/* served_store.c - stores to a server: rows are copied into the staging area that both sides have
 * mapped, and from there the server copies them in. A store that is larger than a part of the
 * staging area goes in pieces of some layers, and while the server copies one the next is filled;
 * a prefix of which not even one layer fits goes some blocks at a time. */
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/puts.h"
#include "served/served.h"

#define PARTS TSRI_STAGE_PARTS
#define LOCKING_NS ((uint64_t)5000000000) /* that page-locking may take, once */

struct served_put {
    struct tsri_put_base base; /* first */
    struct tsri_seat *seat;
    uint64_t session, life;
    struct tsri_shape shape;
    const struct tsr_space *space;
    uint32_t put, n_tokens;
    bool all_there; /* nothing is wanted of it */
};

/* ---- rows into the staging area ---- */

static size_t layer_bytes(const struct tsri_shape *s, uint32_t n_tokens)
{
    return (size_t)n_tokens * (s->row_bytes[0] + s->row_bytes[1]);
}

/* Layers [first, first + n) of a checked view, packed. */
static void pack(const struct tsri_shape *s, const struct tsr_view *view, uint32_t first,
                 uint32_t n, uint32_t n_tokens, uint8_t *to)
{
    bool stream = n * layer_bytes(s, n_tokens) >= (size_t)8 << 20;
    for (uint32_t l = first; l < first + n; l++)
        for (uint32_t p = 0; p < s->n_planes; p++) {
            size_t row = s->row_bytes[p], stride = view->token_stride ? view->token_stride : row;
            const uint8_t *from =
                (const uint8_t *)view->data + l * view->layer_stride + p * view->plane_stride;
            if (stride == row && stream)
                tsri_copy_stream(to, from, n_tokens * row);
            else if (stride == row)
                memcpy(to, from, n_tokens * row);
            else
                for (uint32_t t = 0; t < n_tokens; t++)
                    memcpy(to + t * row, from + t * stride, row);
            to += n_tokens * row;
        }
}

static struct tsri_wire_view staged_view(const struct tsri_shape *s, uint32_t n_tokens,
                                         size_t offset, size_t bytes)
{
    return (struct tsri_wire_view){.offset = offset,
                                   .bytes = bytes,
                                   .layer_stride = layer_bytes(s, n_tokens),
                                   .plane_stride = (uint64_t)n_tokens * s->row_bytes[0]};
}

/* ---- layers of a put, part by part ---- */

/* Under staging_lock. */
static int stage_init(struct tsri_staged_put *s)
{
    size_t part = s->mapping->staging->region.bytes / PARTS;
    s->layer_bytes = layer_bytes(s->shape, s->n_tokens);
    s->part_layers = (uint32_t)tsri_min_u32((uint32_t)(part / s->layer_bytes), s->shape->n_layers);
    if (s->part_layers == 0)
        return tsri_fail(TSR_ERANGE,
                         "a layer has %zu bytes: server_staging must be at least %u times that",
                         s->layer_bytes, PARTS);
    return tsri_link_check(s->seat->link, s->session);
}

static size_t part_at(const struct tsri_staged_put *s, uint32_t part)
{
    return part * (s->mapping->staging->region.bytes / PARTS);
}

static uint32_t part_of(const struct tsri_staged_put *s, uint32_t i)
{
    TSR_ASSERT(s->part_layers > 0); /* stage_init sees to it; the analyser cannot know */
    return i / s->part_layers % PARTS;
}

uint8_t *tsri_staged_layer(const struct tsri_staged_put *s, uint32_t i)
{
    uint32_t part = part_of(s, i);
    return s->mapping->staging->region.data + part_at(s, part) +
           i % s->part_layers * s->layer_bytes;
}

static int end_answer(struct tsri_staged_put *s, uint32_t part)
{
    struct tsri_answer *answer = s->answers[part];
    if (!answer) return 0;
    int e = tsri_link_wait(answer, tsri_now_ns() + s->seat->served->patience_ns);
    tsri_link_end(answer);
    s->answers[part] = NULL;
    return e < 0 ? e : 0;
}

int tsri_staged_wait(struct tsri_staged_put *s, uint32_t i)
{
    return end_answer(s, part_of(s, i));
}

int tsri_staged_send(struct tsri_staged_put *s, uint32_t i, uint32_t n)
{
    uint32_t part = part_of(s, i);
    TSR_ASSERT(n <= s->part_layers && i % s->part_layers == 0 && !s->answers[part]);
    struct tsri_request q;
    tsri_request_clear(&q, TSRI_WIRE_PUT_LAYERS);
    q.put = (struct tsri_wire_put_layers){s->put, s->layer_first + i, n};
    q.view = staged_view(s->shape, s->n_tokens, part_at(s, part), n * s->layer_bytes);
    return tsri_link_start(s->seat->link, s->session, &q,
                           tsri_now_ns() + s->seat->served->patience_ns, &s->answers[part]);
}

/* Waits for what was sent. */
static int stage_finish(struct tsri_staged_put *s, int e)
{
    for (uint32_t part = 0; part < PARTS; part++) {
        int last = end_answer(s, part);
        if (!e) e = last;
    }
    return e;
}

/* All layers of the view, which begins at layer_first. Under staging_lock. */
static int give_layers(struct tsri_staged_put *s, const struct tsr_view *view, uint32_t n_layers)
{
    int e = stage_init(s);
    for (uint32_t l = 0; !e && l < n_layers; l += s->part_layers) {
        uint32_t n = tsri_min_u32(s->part_layers, n_layers - l);
        e = tsri_staged_wait(s, l);
        if (!e) pack(s->shape, view, l, n, s->n_tokens, tsri_staged_layer(s, l));
        if (!e) e = tsri_staged_send(s, l, n);
    }
    return stage_finish(s, e);
}

static int open_put(struct tsri_seat *seat, uint64_t session, const struct tsr_store_desc *store,
                    uint32_t space, uint32_t *put, uint32_t *n_blocks)
{
    struct tsri_request q;
    struct tsri_answer *a;
    uint64_t until_ns = tsri_now_ns() + seat->served->patience_ns;
    tsri_request_clear(&q, TSRI_WIRE_PUT_OPEN)->store = *store;
    q.space = space;
    int e = tsri_link_start(seat->link, session, &q, until_ns, &a);
    if (e) return e;
    e = tsri_link_wait(a, until_ns);
    if (e >= 0) {
        *put = a->reply.put;
        *n_blocks = a->reply.n_blocks;
    }
    tsri_link_end(a);
    /* Nobody would abort a put whose number comes late: it ends with its session. */
    if (e == TSR_ETIME) tsri_link_drop(seat->link, session, "no response to a store");
    return e < 0 ? e : 0;
}

static void abort_put(struct tsri_seat *seat, uint64_t session, uint32_t put)
{
    struct tsri_request q;
    tsri_request_clear(&q, TSRI_WIRE_PUT_ABORT)->put.put = put;
    tsri_link_tell(seat->link, session, &q);
}

/* The server has nothing left of the put, whatever this returns; after TSR_ETIME, or when the
 * connection was lost, it may have committed it. */
static int commit_put(struct tsri_seat *seat, uint64_t session, uint32_t put)
{
    struct tsri_request q;
    struct tsri_answer *a;
    uint64_t until_ns = tsri_now_ns() + seat->served->patience_ns;
    tsri_request_clear(&q, TSRI_WIRE_PUT_COMMIT)->put.put = put;
    int n = tsri_link_start(seat->link, session, &q, until_ns, &a);
    if (n) {
        abort_put(seat, session, put);
        return n;
    }
    n = tsri_link_wait(a, until_ns);
    tsri_link_end(a);
    return n;
}

/* ---- a whole store ---- */

struct storing {
    struct tsri_seat *seat;
    uint64_t session, life;
    struct tsri_mapping *mapping; /* of the session; until end */
    struct tsri_seat_space space;
    const struct tsr_store_desc *store;
    struct tsr_view view; /* checked, of all its tokens */
};

/* All of it in one request. */
static int store_small(const struct storing *x, uint32_t n_tokens)
{
    const struct tsri_shape *s = &x->space.shape;
    struct tsri_request q;
    struct tsri_answer *a;
    uint64_t until_ns = tsri_now_ns() + x->seat->served->patience_ns;
    int n = tsri_link_check(x->seat->link, x->session);
    if (n) return n;
    pack(s, &x->view, 0, s->n_layers, n_tokens, x->mapping->staging->region.data);
    tsri_request_clear(&q, TSRI_WIRE_STORE)->store = *x->store;
    q.space = x->space.number;
    q.view = staged_view(s, n_tokens, 0, s->n_layers * layer_bytes(s, n_tokens));
    n = tsri_link_start(x->seat->link, x->session, &q, until_ns, &a);
    if (n) return n;
    n = tsri_link_wait(a, until_ns);
    tsri_link_end(a);
    return n;
}

static int store_pieces(const struct storing *x, uint32_t n_tokens)
{
    struct tsri_staged_put s = {.seat = x->seat,
                                .session = x->session,
                                .mapping = x->mapping,
                                .shape = &x->space.shape,
                                .n_tokens = n_tokens};
    uint32_t n_blocks;
    int e = open_put(x->seat, x->session, x->store, x->space.number, &s.put, &n_blocks);
    if (e) return e;
    if (n_blocks) e = give_layers(&s, &x->view, s.shape->n_layers);
    if (!e && n_blocks) return commit_put(x->seat, x->session, s.put);
    abort_put(x->seat, x->session, s.put);
    return e;
}

static int store_some(const struct storing *x)
{
    uint32_t n_tokens = x->store->n_tokens - x->store->from;
    size_t bytes = x->space.shape.n_layers * layer_bytes(&x->space.shape, n_tokens);
    size_t part = x->mapping->staging->region.bytes / PARTS;
    return bytes <= part ? store_small(x, n_tokens) : store_pieces(x, n_tokens);
}

/* A long prefix, so many blocks at a time that a layer of them fits. */
static int store_blocks(const struct storing *x)
{
    size_t part = x->mapping->staging->region.bytes / PARTS;
    size_t token = x->space.shape.row_bytes[0] + x->space.shape.row_bytes[1];
    uint32_t block = x->store->space->block_tokens;
    size_t blocks = part / token / block;
    if (blocks == 0)
        return tsri_fail(TSR_ERANGE, "server_staging is too small for a layer of %u tokens", block);
    int n_new = 0;
    for (uint32_t from = x->store->from; from < x->store->n_tokens;) {
        struct tsr_store_desc store = *x->store;
        struct storing some = *x;
        some.store = &store;
        uint64_t end = from + (uint64_t)blocks * block;
        store.from = from;
        if (end < store.n_tokens) store.n_tokens = (uint32_t)end;
        store.cost_s *=
            (float)(store.n_tokens - from) / (float)(x->store->n_tokens - x->store->from);
        size_t skipped = from - x->store->from;
        /* Rows of K and V may have different sizes: without a stride both begin at once. */
        if (x->view.token_stride == 0 && x->space.shape.row_bytes[1] &&
            x->space.shape.row_bytes[0] != x->space.shape.row_bytes[1])
            some.view.plane_stride +=
                skipped * x->space.shape.row_bytes[1] - skipped * x->space.shape.row_bytes[0];
        some.view.data =
            (uint8_t *)x->view.data +
            skipped * (x->view.token_stride ? x->view.token_stride : x->space.shape.row_bytes[0]);
        int n = store_some(&some);
        if (n < 0) return n;
        n_new += n;
        from = store.n_tokens;
    }
    return n_new;
}

static int begin(struct tsr_client *client, const struct tsr_store_desc *store, struct storing *x)
{
    x->seat = tsri_client_seat(client);
    x->store = store;
    x->session = tsri_link_session(x->seat->link);
    if (!x->session) return TSR_EAGAIN;
    x->life = tsri_seat_life(x->seat, x->session);
    if (!store->tokens || store->n_tokens <= store->from || store->n_tokens > INT32_MAX)
        return tsri_fail(TSR_EINVAL, "store: invalid range: %u tokens from %u", store->n_tokens,
                         store->from);
    int e = tsri_extra_check(store->extra, store->n_extra, store->n_tokens);
    if (e) return e;
    uint64_t until_ns = tsri_now_ns() + x->seat->served->deadline_ns;
    e = tsri_seat_space(x->seat, x->session, store->space, until_ns, &x->space);
    if (e) return e;
    x->mapping = tsri_link_mapping(x->seat->link, x->session);
    return x->mapping ? 0 : TSR_EAGAIN;
}

static void end(struct storing *x)
{
    tsri_mapping_release(x->mapping);
}

int tsri_served_store(struct tsr_client *client, const struct tsr_store_desc *store)
{
    struct storing x;
    int e = begin(client, store, &x);
    if (e) return e;
    uint32_t n_tokens = store->n_tokens - store->from;
    x.view = store->view;
    e = tsri_view_check(&x.space.shape, &x.view, n_tokens, x.space.shape.n_layers);
    if (e) {
        end(&x);
        return e;
    }
    size_t part = x.mapping->staging->region.bytes / PARTS;
    bool long_prefix =
        store->kind == TSR_KIND_PREFIX && layer_bytes(&x.space.shape, n_tokens) > part;
    uint64_t start = tsri_now_ns();
    pthread_mutex_lock(&x.seat->staging_lock);
    int n = long_prefix ? store_blocks(&x) : store_some(&x);
    pthread_mutex_unlock(&x.seat->staging_lock);
    end(&x);
    tsri_stats_observe_ns(x.seat->served->c->stats, TSRI_M_store_ns, tsri_now_ns() - start);
    if (n >= 0) tsri_served_stored(x.seat->served, x.life);
    return n;
}

/* ---- puts of the caller's ---- */

int tsri_served_put_open(struct tsr_put **out, struct tsr_client *client,
                         const struct tsr_store_desc *store, struct tsri_chain *chain)
{
    (void)chain; /* the server hashes */
    struct storing x;
    uint32_t n_blocks;
    int e = begin(client, store, &x);
    if (e) return e;
    end(&x); /* its layers come later */
    struct served_put *put = tsri_alloc(1, sizeof *put);
    if (!put) return TSR_ENOMEM;
    *put = (struct served_put){.base = {.client = client, .sent = true},
                               .seat = x.seat,
                               .session = x.session,
                               .life = x.life,
                               .shape = x.space.shape,
                               .space = store->space,
                               .n_tokens = store->n_tokens - store->from};
    e = open_put(x.seat, x.session, store, x.space.number, &put->put, &n_blocks);
    if (e) {
        tsri_free(put);
        return e;
    }
    put->all_there = n_blocks == 0;
    put->base.n_blocks = n_blocks;
    put->base.n_tokens = put->n_tokens;
    *out = (struct tsr_put *)put;
    return 0;
}

static int stage_open(struct tsri_staged_put *s, struct served_put *put, uint32_t layer_first)
{
    *s = (struct tsri_staged_put){.seat = put->seat,
                                  .session = put->session,
                                  .mapping = tsri_link_mapping(put->seat->link, put->session),
                                  .shape = &put->shape,
                                  .put = put->put,
                                  .n_tokens = put->n_tokens,
                                  .layer_first = layer_first};
    if (!s->mapping) return tsri_fail(TSR_EAGAIN, "put: lost the connection to the server");
    pthread_mutex_lock(&s->seat->staging_lock);
    return 0;
}

static void stage_close(struct tsri_staged_put *s)
{
    pthread_mutex_unlock(&s->seat->staging_lock);
    tsri_mapping_release(s->mapping);
}

int tsri_served_put_layer(struct tsr_put *handle, uint32_t layer, const struct tsr_view *view)
{
    struct served_put *put = (struct served_put *)handle;
    struct tsr_view v = *view;
    if (layer >= put->shape.n_layers)
        return tsri_fail(TSR_EINVAL, "put: layer %u of %u", layer, put->shape.n_layers);
    int e = tsri_view_check(&put->shape, &v, put->n_tokens, 1);
    if (e || put->all_there) return e;
    struct tsri_staged_put s;
    e = stage_open(&s, put, layer);
    if (e) return e;
    e = give_layers(&s, &v, 1);
    stage_close(&s);
    return e;
}

/* For the device, once; a device that refuses cannot write there. */
static int lock_staging(struct tsri_mapping *m, struct tsri_device *device)
{
    if (!(tsri_device_caps(device) & TSR_DEVICE_NEEDS_LOCK)) return 0;
    return tsri_shared_pool_lock(m->staging, tsri_now_ns() + LOCKING_NS);
}

int tsri_staged_open(struct tsri_staged_put *s, struct tsr_put *handle, struct tsri_device *device)
{
    struct served_put *put = (struct served_put *)handle;
    int e = stage_open(s, put, 0);
    if (e) return e;
    e = lock_staging(s->mapping, device);
    if (!e) e = stage_init(s);
    if (e) stage_close(s);
    return e;
}

int tsri_staged_close(struct tsri_staged_put *s, int e)
{
    e = stage_finish(s, e);
    stage_close(s);
    return e;
}

int tsri_served_put_check(const struct tsr_put *handle, const struct tsr_client *client,
                          const struct tsr_space *space, uint32_t n_tokens)
{
    const struct served_put *put = (const struct served_put *)handle;
    if (put->base.client != client || put->space != space)
        return tsri_fail(TSR_ESPACE, "collect: the put belongs to another client or space");
    if (put->n_tokens != n_tokens)
        return tsri_fail(TSR_EINVAL, "collect: %u slots for %u tokens", n_tokens, put->n_tokens);
    return put->all_there;
}

int tsri_served_put_commit(struct tsr_put *handle)
{
    struct served_put *put = (struct served_put *)handle;
    int n = 0;
    if (put->all_there)
        abort_put(put->seat, put->session, put->put);
    else
        n = commit_put(put->seat, put->session, put->put);
    if (n >= 0) tsri_served_stored(put->seat->served, put->life);
    tsri_free(put);
    return n;
}

void tsri_served_put_abort(struct tsr_put *handle)
{
    struct served_put *put = (struct served_put *)handle;
    abort_put(put->seat, put->session, put->put);
    tsri_free(put);
}
