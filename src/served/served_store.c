/* served_store.c - stores to a server: rows are copied into the staging area that both sides have
 * mapped, and from there the server copies them in. A store that is larger than a part of the
 * staging area goes in pieces of some layers, and while the server copies one the next is filled;
 * a prefix of which not even one layer fits goes some blocks at a time. */
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/puts.h"
#include "served/served.h"

#define PARTS 4u /* of the staging area */

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

/* ---- one put, piece by piece ---- */

struct pieces {
    struct tsri_seat *seat;
    uint64_t session;
    const struct tsri_region *staging;
    const struct tsri_shape *shape;
    const struct tsr_view *view;
    uint32_t put, layer_first, n_layers, n_tokens;
};

static struct tsri_wire_view staged_view(const struct tsri_shape *s, uint32_t n_tokens,
                                         size_t offset, size_t bytes)
{
    return (struct tsri_wire_view){.offset = offset,
                                   .bytes = bytes,
                                   .layer_stride = layer_bytes(s, n_tokens),
                                   .plane_stride = (uint64_t)n_tokens * s->row_bytes[0]};
}

/* Under staging_lock; all layers of the view, which begins at layer_first. */
static int give_layers(const struct pieces *x)
{
    const struct tsri_region *staging = x->staging;
    size_t part = staging->bytes / PARTS, layer = layer_bytes(x->shape, x->n_tokens);
    size_t at_once = part / layer;
    if (at_once == 0)
        return tsri_fail(TSR_ERANGE,
                         "a layer has %zu bytes: server_staging must be at least %u times that",
                         layer, PARTS);
    struct tsri_answer *answers[PARTS] = {NULL};
    uint64_t patience_ns = x->seat->served->patience_ns;
    int e = tsri_link_may_stage(x->seat->link, x->session);
    for (uint32_t l = 0, k = 0; e >= 0 && l < x->n_layers; k = (k + 1) % PARTS) {
        uint32_t n = at_once < x->n_layers - l ? (uint32_t)at_once : x->n_layers - l;
        uint64_t until_ns = tsri_now_ns() + patience_ns;
        if (answers[k]) { /* the server has copied what stands in this part */
            e = tsri_link_wait(answers[k], until_ns);
            tsri_link_end(answers[k]);
            answers[k] = NULL;
            if (e < 0) break;
        }
        pack(x->shape, x->view, l, n, x->n_tokens, staging->data + k * part);
        struct tsri_request q;
        tsri_request_clear(&q, TSRI_WIRE_PUT_LAYERS);
        q.put = (struct tsri_wire_put_layers){x->put, x->layer_first + l, n};
        q.view = staged_view(x->shape, x->n_tokens, k * part, n * layer);
        e = tsri_link_start(x->seat->link, x->session, &q, until_ns, &answers[k]);
        l += n;
    }
    for (uint32_t k = 0; k < PARTS; k++) {
        if (!answers[k]) continue;
        int last = tsri_link_wait(answers[k], tsri_now_ns() + patience_ns);
        if (e >= 0 && last < 0) e = last;
        tsri_link_end(answers[k]);
    }
    return e < 0 ? e : 0;
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

static int end_put(struct tsri_seat *seat, uint64_t session, uint32_t put, bool commit)
{
    struct tsri_request q;
    struct tsri_answer *a;
    uint64_t until_ns = tsri_now_ns() + seat->served->patience_ns;
    tsri_request_clear(&q, commit ? TSRI_WIRE_PUT_COMMIT : TSRI_WIRE_PUT_ABORT)->put.put = put;
    if (!commit) return tsri_link_tell(seat->link, session, &q);
    int n = tsri_link_start(seat->link, session, &q, until_ns, &a);
    if (n) return n;
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
    int n = tsri_link_may_stage(x->seat->link, x->session);
    if (n) return n;
    pack(s, &x->view, 0, s->n_layers, n_tokens, x->mapping->staging.data);
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
    struct pieces p = {.seat = x->seat,
                       .session = x->session,
                       .staging = &x->mapping->staging,
                       .shape = &x->space.shape,
                       .view = &x->view,
                       .n_layers = x->space.shape.n_layers,
                       .n_tokens = n_tokens};
    uint32_t n_blocks;
    int e = open_put(x->seat, x->session, x->store, x->space.number, &p.put, &n_blocks);
    if (e) return e;
    if (n_blocks) e = give_layers(&p);
    if (e || n_blocks == 0) {
        end_put(x->seat, x->session, p.put, false);
        return e;
    }
    return end_put(x->seat, x->session, p.put, true);
}

static int store_some(const struct storing *x)
{
    uint32_t n_tokens = x->store->n_tokens - x->store->from;
    size_t bytes = x->space.shape.n_layers * layer_bytes(&x->space.shape, n_tokens);
    size_t part = x->mapping->staging.bytes / PARTS;
    return bytes <= part ? store_small(x, n_tokens) : store_pieces(x, n_tokens);
}

/* A long prefix, so many blocks at a time that a layer of them fits. */
static int store_blocks(const struct storing *x)
{
    size_t part = x->mapping->staging.bytes / PARTS;
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
    size_t part = x.mapping->staging.bytes / PARTS;
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
                         const struct tsr_store_desc *store)
{
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

int tsri_served_put_layer(struct tsr_put *handle, uint32_t layer, const struct tsr_view *view)
{
    struct served_put *put = (struct served_put *)handle;
    struct tsr_view v = *view;
    if (layer >= put->shape.n_layers)
        return tsri_fail(TSR_EINVAL, "put: layer %u of %u", layer, put->shape.n_layers);
    int e = tsri_view_check(&put->shape, &v, put->n_tokens, 1);
    if (e || put->all_there) return e;
    struct tsri_mapping *mapping = tsri_link_mapping(put->seat->link, put->session);
    if (!mapping) return tsri_fail(TSR_EAGAIN, "put: lost the connection to the server");
    struct pieces p = {.seat = put->seat,
                       .session = put->session,
                       .staging = &mapping->staging,
                       .shape = &put->shape,
                       .view = &v,
                       .put = put->put,
                       .layer_first = layer,
                       .n_layers = 1,
                       .n_tokens = put->n_tokens};
    pthread_mutex_lock(&put->seat->staging_lock);
    e = give_layers(&p);
    pthread_mutex_unlock(&put->seat->staging_lock);
    tsri_mapping_release(mapping);
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
    return 0;
}

int tsri_served_put_commit(struct tsr_put *handle)
{
    struct served_put *put = (struct served_put *)handle;
    int n = end_put(put->seat, put->session, put->put, !put->all_there);
    if (put->all_there) n = 0;
    if (n >= 0) tsri_served_stored(put->seat->served, put->life);
    tsri_free(put);
    return n;
}

void tsri_served_put_abort(struct tsr_put *handle)
{
    struct served_put *put = (struct served_put *)handle;
    end_put(put->seat, put->session, put->put, false);
    tsri_free(put);
}
