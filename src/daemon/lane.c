/* lane.c - requests that copy KV, ask a tier or walk the whole cache: they are queued, one after
 * the other for each session, and run by workers, so that the loop goes on and sessions do not wait
 * for each other. The reply is made by the worker and sent by the loop. */
#include "daemon/daemon.h"

/* ---- on a worker ---- */

static uint8_t *frame_of(struct tsri_session *x, uint64_t id, struct tsri_reply *r, size_t *bytes)
{
    uint8_t *frame = NULL;
    if (tsri_reply_bytes(r, bytes) == 0) frame = tsri_session_alloc(x, TSRI_SIDE_OUT, *bytes);
    if (frame) tsri_reply_encode(r, id, frame, *bytes);
    return frame;
}

/* Rows in the staging area, which lie in it as far as their offset says; the rest is checked by who
 * reads them. */
static int staged(const struct tsri_session *x, const struct tsri_wire_view *v,
                  struct tsr_view *out)
{
    if (!x->staging.data) return tsri_fail(TSR_EINVAL, "no staging area");
    if (v->offset > x->staging.bytes || v->bytes > x->staging.bytes - v->offset)
        return tsri_fail(TSR_ERANGE, "bytes %llu + %llu are outside the staging area of %zu",
                         (unsigned long long)v->offset, (unsigned long long)v->bytes,
                         x->staging.bytes);
    *out = (struct tsr_view){.data = x->staging.data + v->offset,
                             .bytes = (size_t)v->bytes,
                             .layer_stride = (size_t)v->layer_stride,
                             .plane_stride = (size_t)v->plane_stride,
                             .token_stride = (size_t)v->token_stride};
    return 0;
}

static struct tsr_put **put_of(struct tsri_session *x, uint32_t number)
{
    if (number < TSRI_SESSION_PUTS_MAX && x->puts[number]) return &x->puts[number];
    tsri_fail(TSR_ENOENT, "put %u is not open", number);
    return NULL;
}

static int store(struct tsri_session *x, struct tsri_request *q)
{
    q->store.space = tsri_session_space(x, q->space);
    if (!q->store.space) return TSR_ENOENT;
    int e = staged(x, &q->view, &q->store.view);
    return e ? e : tsri_put_all_from(x->client, &q->store, &x->staging);
}

/* Stores that are half done are pages that nobody else can have: they are held, as leases are. */
static int hold_put(struct tsri_session *x, const struct tsr_store_desc *store, uint64_t *pages)
{
    const struct tsr_space *space = store->space;
    const struct tsri_shape *shape = tsri_space_shape(space);
    uint32_t n = store->n_tokens > store->from ? store->n_tokens - store->from : 0;
    uint32_t block = store->kind == TSR_KIND_PREFIX ? tsri_space_block_tokens(space) : n;
    *pages = block ? (uint64_t)(n / block) * tsri_shape_n_pages(shape, block) : 0;
    if (block && n % block) *pages += tsri_shape_n_pages(shape, n % block);
    if (tsri_hold_pages(tsri_client_holder(x->client), *pages)) return 0;
    return tsri_fail(TSR_EFULL,
                     "leases and unfinished stores leave no room for %llu more of %u pages",
                     (unsigned long long)*pages, tsri_cache_memory(x->tenant->cache).n_pages);
}

static int put_open(struct tsri_session *x, struct tsri_request *q, struct tsri_reply *r)
{
    uint32_t at = 0;
    while (at < TSRI_SESSION_PUTS_MAX && x->puts[at])
        at++;
    if (at == TSRI_SESSION_PUTS_MAX)
        return tsri_fail(TSR_EAGAIN, "too many open puts (%u)", TSRI_SESSION_PUTS_MAX);
    q->store.space = tsri_session_space(x, q->space);
    if (!q->store.space) return TSR_ENOENT;
    int e = hold_put(x, &q->store, &x->put_pages[at]);
    if (e) return e;
    e = tsr_put_open(&x->puts[at], x->client, &q->store);
    if (e) tsri_unhold_pages(tsri_client_holder(x->client), x->put_pages[at]);
    if (e) return e;
    r->put = at;
    r->n_blocks = tsri_put_n_blocks(x->puts[at]);
    return 0;
}

static int put_layers(struct tsri_session *x, const struct tsri_request *q)
{
    struct tsr_put **put = put_of(x, q->put.put);
    struct tsr_view view;
    if (!put) return TSR_ENOENT;
    int e = staged(x, &q->view, &view);
    if (e) return e;
    return tsri_put_layers_from(*put, q->put.layer_first, q->put.n_layers, &view, &x->staging);
}

static int put_end(struct tsri_session *x, const struct tsri_request *q)
{
    struct tsr_put **at = put_of(x, q->put.put), *put;
    if (!at) return TSR_ENOENT;
    put = *at;
    *at = NULL;
    tsri_unhold_pages(tsri_client_holder(x->client), x->put_pages[q->put.put]);
    if (q->type == TSRI_WIRE_PUT_COMMIT) return tsr_put_commit(put);
    tsr_put_abort(put);
    return 0;
}

static int clear(struct tsri_session *x, struct tsri_request *q)
{
    struct tsr_clear_desc what = {.size = sizeof what, .tier = q->tier};
    if (q->space != TSRI_WIRE_SPACE_ALL) {
        /* A prompt is cut into the blocks of its space, which one without a shape does not have. */
        what.space =
            q->has_prompt ? tsri_session_space(x, q->space) : tsri_session_any_space(x, q->space);
        if (!what.space) return TSR_ENOENT;
    }
    if (q->has_prompt) what.prompt = &q->prompt;
    return tsr_cache_clear(x->tenant->cache, &what);
}

static struct tsri_wire_entry wire_entry(const struct tsri_entry_row *row)
{
    struct tsri_wire_entry out = {.entry = row->entry,
                                  .bytes = row->bytes,
                                  .n_tokens = row->n_tokens,
                                  .pins = row->pins,
                                  .user_pins = row->user_pins,
                                  .kind = row->kind,
                                  .tiers = row->tiers};
    memcpy(out.key, &row->key, sizeof out.key);
    memcpy(out.space, row->space, sizeof out.space);
    return out;
}

static int list(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                void **memory)
{
    struct tsri_entry_row rows[64];
    struct tsri_wire_entry *out = tsri_alloc(q->n, sizeof *out);
    if (!out) return TSR_ENOMEM;
    *memory = out;
    r->entries = out;
    r->next = q->value;
    while (r->n < q->n && r->next != TSRI_LIST_END) {
        uint32_t room = tsri_min_u32(TSRI_COUNT(rows), q->n - r->n);
        uint32_t n = tsri_cache_list(x->tenant->cache, r->next, rows, room, &r->next);
        for (uint32_t i = 0; i < n; i++)
            out[r->n++] = wire_entry(&rows[i]);
    }
    return (int)r->n;
}
/* The rows first and then what goes over the wire, of which there may be 65536. */
static int order(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                 void **memory)
{
    uint32_t total = 0;
    struct tsri_entry_row *rows = tsri_alloc(q->n, sizeof *rows);
    struct tsri_wire_entry *out = rows ? tsri_alloc(q->n, sizeof *out) : NULL;
    int n = TSR_ENOMEM;
    *memory = out;
    if (out) n = tsri_cache_order(x->tenant->cache, q->value, rows, q->n, &r->next, &total);
    for (int i = 0; i < n; i++)
        out[r->n++] = wire_entry(&rows[i]);
    tsri_free(rows);
    r->entries = out;
    return n < 0 ? n : (int)total;
}
_Static_assert(TSRI_LIST_END == TSRI_WIRE_LIST_END, "one end of lists");

static int evict_keys(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                      void **memory)
{
    struct tsr_key *gone = tsri_alloc(q->n, sizeof *gone);
    if (!gone) return TSR_ENOMEM;
    *memory = gone;
    size_t bytes = q->bytes > SIZE_MAX ? SIZE_MAX : (size_t)q->bytes;
    int n = tsr_cache_evict_keys(x->tenant->cache, bytes, gone, q->n);
    r->n = n < 0 ? 0 : (uint32_t)n;
    r->keys = gone;
    return n;
}

static int discover(struct tsri_session *x, const struct tsri_request *q)
{
    struct tsr_space *space = tsri_session_space(x, q->space);
    return space ? tsr_client_discover(x->client, space, &q->prompt) : TSR_ENOENT;
}

/* All that were ever lost: the client knows how many there were before it stored, also when it has
 * connected again since. */
static int flush(const struct tsri_session *x, struct tsri_reply *r)
{
    return tsri_cache_flush(x->tenant->cache, &r->n_lost);
}

/* What is on the whole cache, or was too long for the loop. */
static int perform_more(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                        void **memory)
{
    switch (q->type) {
    case TSRI_WIRE_LOOKUP:
        return tsri_lookup(x, q, r, memory);
    case TSRI_WIRE_KEYS:
        return tsri_keys(x, q, r, memory);
    case TSRI_WIRE_CONTAINS:
        return tsri_contains(x, q, r, memory);
    case TSRI_WIRE_RELEASE:
        return tsri_release(x, q);
    case TSRI_WIRE_LIST:
        return list(x, q, r, memory);
    case TSRI_WIRE_ORDER:
        return order(x, q, r, memory);
    case TSRI_WIRE_EVICT_KEYS:
        return evict_keys(x, q, r, memory);
    case TSRI_WIRE_DISCOVER:
        return discover(x, q);
    case TSRI_WIRE_SPACE_OPEN: /* it is opened in the loop, where numbers are given out */
        return tsri_spaces_make_room(x->tenant->cache) ? 0 : TSR_EAGAIN;
    case TSRI_WIRE_WARM:
        return (int)tsri_cache_warm(x->tenant->cache, q->bytes, &x->ended);
    case TSRI_WIRE_EVICT:
        return tsr_cache_evict(x->tenant->cache, q->bytes > SIZE_MAX ? SIZE_MAX : (size_t)q->bytes);
    case TSRI_WIRE_FLUSH:
        return flush(x, r);
    default:
        return tsri_mark(x, q);
    }
}

static int perform(struct tsri_session *x, struct tsri_request *q, struct tsri_reply *r,
                   void **memory)
{
    switch (q->type) {
    case TSRI_WIRE_STORE:
        return store(x, q);
    case TSRI_WIRE_PUT_OPEN:
        return put_open(x, q, r);
    case TSRI_WIRE_PUT_LAYERS:
        return put_layers(x, q);
    case TSRI_WIRE_PUT_COMMIT:
    case TSRI_WIRE_PUT_ABORT:
        return put_end(x, q);
    case TSRI_WIRE_CLEAR:
        return clear(x, q);
    default:
        return perform_more(x, q, r, memory);
    }
}

static void let_go(struct tsri_call *call)
{
    tsri_lends_free(call->session, call->lends);
    call->lends = NULL;
}

/* The reply is NULL when there is no memory for it. */
static int retrieve(struct tsri_call *call, const struct tsri_request *q)
{
    struct tsri_session *x = call->session;
    if (!call->lends) {
        int n_cold = tsri_lend_all(x, q, &call->lends);
        if (n_cold < 0) return n_cold;
    }
    int e = tsri_lends_fetch(call->lends, q->retrieve.has_prompt ? &q->prompt : NULL, &x->ended);
    if (e == 0)
        call->reply = tsri_retrieve_reply(x, call->head.id, call->lends, &call->reply_bytes);
    let_go(call);
    return e || call->reply ? e : TSR_ENOMEM;
}

/* Nothing comes of it but an answer: in vain when the session has ended. Stores and clears are
 * carried out all the same once they have their worker. */
static bool is_question(uint16_t type)
{
    switch (type) {
    case TSRI_WIRE_LOOKUP:
    case TSRI_WIRE_RETRIEVE:
    case TSRI_WIRE_KEYS:
    case TSRI_WIRE_CONTAINS:
    case TSRI_WIRE_LIST:
    case TSRI_WIRE_ORDER:
    case TSRI_WIRE_DISCOVER:
    case TSRI_WIRE_PREFETCH:
    case TSRI_WIRE_WARM:
        return true;
    default:
        return false;
    }
}

static void run(struct tsri_job *job)
{
    struct tsri_call *call = (struct tsri_call *)job;
    struct tsri_session *x = call->session;
    struct tsri_request q;
    struct tsri_reply r = {.type = call->head.type};
    if (atomic_load(&x->ended) && is_question(call->head.type)) {
        tsri_server_finished(x->server, call);
        return;
    }
    /* Decoded once more: what was decoded in the loop pointed into the loop's buffer. */
    int e = tsri_request_decode(&q, call->head.type, call->body, call->head.body_bytes);
    if (e == 0 && call->head.type == TSRI_WIRE_RETRIEVE)
        e = retrieve(call, &q);
    else if (e == 0)
        e = perform(x, &q, &r, &call->memory);
    if (!call->reply) {
        const char *text = "";
        r.status = e;
        if (r.status < 0) {
            text = tsr_errmsg();
            r.version_min = TSRI_WIRE_VERSION_MIN;
            r.version_max = TSRI_WIRE_VERSION_MAX;
            r.text = text;
            r.text_bytes = (uint32_t)strlen(text);
        }
        call->reply = frame_of(x, call->head.id, &r, &call->reply_bytes);
    }
    tsri_free(call->memory);
    call->memory = NULL;
    tsri_server_finished(x->server, call);
}

/* ---- in the loop ---- */

static void call_close(struct tsri_call *call)
{
    if (call->lends) let_go(call);
    tsri_session_free(call->session, TSRI_SIDE_IN, call->body, call->head.body_bytes);
    tsri_session_free(call->session, TSRI_SIDE_OUT, call->reply, call->reply_bytes);
    tsri_free(call);
}

/* There is at most one job a session, also of those that have ended, and room for one of each. */
void tsri_lane_start(struct tsri_session *x)
{
    struct tsri_call *call = x->calls;
    x->running = true;
    int e = tsri_work_push(x->server->work, &call->job);
    TSR_ASSERT(e == 0);
}

void tsri_lane_push(struct tsri_session *x, const struct tsri_wire_head *head, const uint8_t *body,
                    struct tsri_source *lends)
{
    struct tsri_call *call = tsri_alloc(1, sizeof *call);
    uint8_t *copy =
        call && head->body_bytes ? tsri_session_alloc(x, TSRI_SIDE_IN, head->body_bytes) : NULL;
    if (!call || (head->body_bytes && !copy)) {
        struct tsri_call lost = {.session = x, .lends = lends};
        if (lends) let_go(&lost);
        tsri_free(call);
        tsri_session_fail(x, head, tsri_fail(TSR_EAGAIN, "out of memory to queue the request"));
        return;
    }
    if (copy) memcpy(copy, body, head->body_bytes);
    *call = (struct tsri_call){.job.run = run,
                               .session = x,
                               .head = *head,
                               .body = copy,
                               .start_ns = tsri_now_ns(),
                               .lends = lends};
    call->leasing = head->type == TSRI_WIRE_LOOKUP || (head->type == TSRI_WIRE_RETRIEVE && !lends);
    *x->calls_end = call;
    x->calls_end = &call->next;
    x->n_calls++;
    x->n_leasing += call->leasing;
    if (!x->running) tsri_share_start(x);
}

void tsri_lane_finish(struct tsri_call *call)
{
    struct tsri_session *x = call->session;
    TSR_ASSERT(x->running && x->calls == call);
    tsri_share_done(x);
    x->n_leasing -= call->leasing;
    x->running = false;
    x->calls = call->next;
    if (!x->calls) x->calls_end = &x->calls;
    x->n_calls--;
    bool quiet = call->head.status == TSRI_WIRE_QUIET;
    tsri_session_took(x, call->head.type, call->start_ns);
    if (x->state == TSRI_SESSION_ENDED) {
        call_close(call);
        tsri_session_retire(x);
        return;
    }
    if (call->head.type == TSRI_WIRE_SPACE_OPEN)
        tsri_space_again(x, &call->head, call->body);
    else if (!call->reply)
        tsri_session_end(x, "out of memory for its replies");
    else if (!quiet)
        tsri_session_send(x, call->reply, call->reply_bytes);
    call_close(call);
    if (x->state == TSRI_SESSION_ENDED) return;
    if (x->calls) tsri_share_start(x);
    tsri_session_settle(x);
    tsri_session_flush(x); /* and if it was too full to be listened to, it gets a turn */
}

void tsri_lane_clear(struct tsri_session *x)
{
    struct tsri_call **at = x->running ? &x->calls->next : &x->calls;
    while (*at) {
        struct tsri_call *call = *at;
        *at = call->next;
        x->n_calls--;
        x->n_leasing -= call->leasing;
        call_close(call);
    }
    x->calls_end = at;
}
