/* calls.c - requests that are answered in the loop, because they neither copy KV nor wait: lookups,
 * leases, lending what is in memory, keys, pins, numbers. Whatever may take its time goes to
 * lane.c. */
#include "daemon/daemon.h"

struct tsr_space *tsri_session_space(struct tsri_session *x, uint32_t number)
{
    struct tsr_space *space = NULL;
    if (number < TSRI_SESSION_SPACES_MAX) space = atomic_load(&x->spaces[number]);
    if (!space) tsri_fail(TSR_ENOENT, "no space %u is open here", number);
    return space;
}

static void answer(struct tsri_session *x, const struct tsri_wire_head *head, int status)
{
    if (status < 0) {
        tsri_session_fail(x, head, status);
        return;
    }
    if (head->status == TSRI_WIRE_QUIET) return;
    struct tsri_reply r = {.type = head->type, .status = status};
    tsri_session_reply(x, head->id, &r);
}

/* ---- spaces ---- */

static void space_open(struct tsri_session *x, const struct tsri_wire_head *head,
                       struct tsri_request *q)
{
    struct tsr_space *space;
    uint32_t at = 0;
    while (at < TSRI_SESSION_SPACES_MAX && atomic_load(&x->spaces[at]))
        at++;
    int e = at < TSRI_SESSION_SPACES_MAX
                ? tsr_space_open(&space, x->tenant->cache, &q->desc)
                : tsri_fail(TSR_EAGAIN, "%u spaces are open", TSRI_SESSION_SPACES_MAX);
    if (e) {
        tsri_session_fail(x, head, e);
        return;
    }
    atomic_store(&x->spaces[at], space);
    const struct tsri_shape *s = &space->shape;
    struct tsri_reply r = {.type = head->type,
                           .space = {.space = at,
                                     .block_tokens = space->block_tokens,
                                     .n_layers = s->n_layers,
                                     .n_planes = s->n_planes,
                                     .row_bytes = {s->row_bytes[0], s->row_bytes[1]},
                                     .cell_tokens = s->cell_tokens,
                                     .page_bytes = s->page_bytes}};
    tsr_space_fingerprint(space, r.space.fingerprint);
    tsri_session_reply(x, head->id, &r);
}

/* A worker that has taken the space already may go on: the cache keeps it. */
static void space_close(struct tsri_session *x, const struct tsri_wire_head *head,
                        struct tsri_request *q)
{
    struct tsr_space *space = tsri_session_space(x, q->space);
    if (space) {
        atomic_store(&x->spaces[q->space], NULL);
        tsr_space_close(space);
    }
    answer(x, head, space ? 0 : TSR_ENOENT);
}

/* ---- lookup ---- */

/* Starts bringing up what only lower tiers have, so that it is there when it is asked for. */
static void start_prefetch(struct tsr_cache *c, const struct tsr_match *matches, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (matches[i].tier) tsri_manager_prefetch_one(c, matches[i].entry, NULL);
}

static void lookup(struct tsri_session *x, const struct tsri_wire_head *head,
                   struct tsri_request *q)
{
    struct tsr_server *s = x->server;
    struct tsr_space *spaces[TSRI_WIRE_SPACES_MAX];
    uint32_t n_spaces = q->lookup.n_spaces;
    for (uint32_t i = 0; i < n_spaces; i++) {
        spaces[i] = tsri_session_space(x, q->lookup.spaces[i]);
        if (!spaces[i]) {
            tsri_session_fail(x, head, TSR_ENOENT);
            return;
        }
    }
    struct tsr_match *matches = (struct tsr_match *)(void *)s->matches.data;
    struct tsr_lookup io = {.size = sizeof io,
                            .spaces = spaces,
                            .n_spaces = n_spaces,
                            .matches = matches,
                            .matches_max = q->lookup.matches_max,
                            .request_id = q->lookup.lease};
    if (n_spaces) io.matches_max = tsri_min_u32(io.matches_max, TSRI_MATCHES_MAX / n_spaces);
    int n = tsr_lookup(x->client, &q->prompt, &io);
    if (n < 0) {
        tsri_session_fail(x, head, n);
        return;
    }
    size_t n_matches = (size_t)io.n_matches * n_spaces;
    if (q->lookup.flags & TSRI_WIRE_LOOKUP_PREFETCH)
        start_prefetch(x->tenant->cache, matches, n_matches);
    struct tsri_wire_match *out = (struct tsri_wire_match *)(void *)s->wire_matches.data;
    for (size_t i = 0; i < n_matches; i++)
        tsri_wire_match_put(&matches[i], &out[i]);
    struct tsri_reply r = {.type = head->type,
                           .status = n,
                           .n = io.n_matches,
                           .n_prefix_tokens = io.n_prefix_tokens,
                           .n_spaces = n_spaces,
                           .matches = out};
    tsri_session_reply(x, head->id, &r);
}

/* ---- retrieve ---- */

uint8_t *tsri_retrieve_reply(struct tsri_session *x, uint64_t id, const struct tsri_lend *lends,
                             uint32_t n, size_t *bytes)
{
    size_t n_pages = 0;
    int n_lent = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_pages += lends[i].result ? 0 : lends[i].n_pages;
        n_lent += lends[i].result == 0;
    }
    size_t list_bytes = n * sizeof(struct tsri_wire_lent) + n_pages * sizeof(uint32_t);
    if (list_bytes > TSRI_REPLY_MAX) {
        tsri_fail(TSR_ERANGE, "%u ranges of %zu pages are too many at once", n, n_pages);
        return NULL;
    }
    struct tsri_wire_lent *lent = tsri_alloc(1, list_bytes);
    if (!lent) return NULL;
    uint32_t *pages = (uint32_t *)(lent + n), *end = pages;
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_lend *l = &lends[i];
        lent[i].result = l->result;
        if (l->result) continue;
        lent[i] = (struct tsri_wire_lent){.entry_tokens = l->entry_tokens,
                                          .cell_first = l->cell_first,
                                          .n_pages = l->n_pages,
                                          .base = l->base,
                                          .freq_set = l->freq_set};
        memcpy(end, l->pages, l->n_pages * sizeof *end);
        end += l->n_pages;
    }
    struct tsri_reply r = {.type = TSRI_WIRE_RETRIEVE,
                           .status = n_lent,
                           .n = n,
                           .lent = lent,
                           .n_pages = (uint32_t)n_pages,
                           .pages = pages};
    uint8_t *frame = NULL;
    if (tsri_reply_bytes(&r, bytes) == 0) frame = tsri_server_alloc(x->server, *bytes);
    if (frame) tsri_reply_encode(&r, id, frame, *bytes);
    tsri_free(lent);
    return frame;
}

/* How many of them only a lower tier has. */
static int lend_all(struct tsri_session *x, const struct tsri_request *q, struct tsri_lend *lends)
{
    const struct tsri_wire_retrieve *t = &q->retrieve;
    struct tsr_match *matches = (struct tsr_match *)(void *)(lends + t->n_wants);
    if (t->lease == 0) return tsri_fail(TSR_EINVAL, "retrieve: needs a lease");
    for (uint32_t i = 0; i < t->n_wants; i++) {
        const struct tsri_wire_want *w = &t->wants[i];
        tsri_wire_match_get(&w->match, &matches[i]);
        lends[i] = (struct tsri_lend){.space = tsri_session_space(x, w->space),
                                      .match = &matches[i],
                                      .offset = w->offset,
                                      .n_tokens = w->n_tokens};
        if (!lends[i].space) return TSR_ENOENT;
    }
    return tsri_lends_init(x->client, t->lease, t->has_prompt ? &q->prompt : NULL, lends,
                           t->n_wants);
}

static void retrieve(struct tsri_session *x, const struct tsri_wire_head *head, const uint8_t *body,
                     struct tsri_request *q)
{
    uint32_t n = q->retrieve.n_wants;
    struct tsri_lend *lends = tsri_alloc(n, sizeof *lends + sizeof(struct tsr_match));
    int n_cold = lends ? lend_all(x, q, lends) : TSR_ENOMEM;
    if (n_cold > 0) {
        tsri_lane_push(x, head, body, lends, n);
        return;
    }
    size_t bytes = 0;
    uint8_t *frame = NULL;
    if (n_cold == 0) {
        frame = tsri_retrieve_reply(x, head->id, lends, n, &bytes);
        tsri_lends_fini(x->client, lends, n);
    }
    tsri_free(lends);
    if (frame) {
        tsri_session_send(x, frame, bytes);
        tsri_server_free(x->server, frame, bytes);
    } else {
        tsri_session_fail(x, head, n_cold < 0 ? n_cold : TSR_ENOMEM);
    }
}

static void release(struct tsri_session *x, const struct tsri_wire_head *head,
                    const struct tsri_request *q)
{
    int n = 0;
    for (uint32_t i = 0; i < q->n; i++)
        n += tsr_release(x->client, q->ids[i]);
    answer(x, head, n);
}

/* ---- keys ---- */

static void keys(struct tsri_session *x, const struct tsri_wire_head *head, struct tsri_request *q)
{
    struct tsr_space *space = tsri_session_space(x, q->space);
    struct tsr_key *found = space ? tsri_alloc(q->n, sizeof *found) : NULL;
    if (!found) {
        tsri_session_fail(x, head, space ? TSR_ENOMEM : TSR_ENOENT);
        return;
    }
    int n = tsr_keys(space, &q->prompt, found, q->n);
    if (n < 0) {
        tsri_session_fail(x, head, n);
    } else {
        struct tsri_reply r = {
            .type = head->type, .status = n, .n = tsri_min_u32((uint32_t)n, q->n), .keys = found};
        tsri_session_reply(x, head->id, &r);
    }
    tsri_free(found);
}

static void contains(struct tsri_session *x, const struct tsri_wire_head *head,
                     struct tsri_request *q)
{
    int8_t *tiers = tsri_alloc(q->n, 1);
    int n = tiers ? tsr_contains(x->tenant->cache, q->keys, q->n, tiers) : TSR_ENOMEM;
    if (n < 0) {
        tsri_session_fail(x, head, n);
    } else {
        struct tsri_reply r = {.type = head->type, .status = n, .n = q->n, .tiers = tiers};
        tsri_session_reply(x, head->id, &r);
    }
    tsri_free(tiers);
}

/* PREFETCH, PIN, UNPIN, TOUCH. */
static int mark(struct tsri_session *x, struct tsri_request *q)
{
    struct tsr_space *space = tsri_session_space(x, q->space);
    if (!space) return TSR_ENOENT;
    switch (q->type) {
    case TSRI_WIRE_PREFETCH:
        return tsr_prefetch(x->client, space, &q->prompt);
    case TSRI_WIRE_PIN:
        return tsr_pin(space, &q->prompt);
    case TSRI_WIRE_UNPIN:
        return tsr_unpin(space, &q->prompt);
    default:
        return tsr_touch(space, &q->prompt);
    }
}

/* ---- watching ---- */

static void stats_text(struct tsri_session *x, const struct tsri_wire_head *head,
                       const char *format)
{
    struct tsr_cache *c = x->tenant->cache;
    int n = tsr_stats_text(c, format, NULL, 0);
    size_t room = n < 0 ? 0 : (size_t)n + 4096; /* numbers may grow meanwhile */
    char *text = room ? tsri_alloc(1, room) : NULL;
    if (text) n = tsr_stats_text(c, format, text, room);
    if (!text || n < 0 || (size_t)n >= room) {
        tsri_session_fail(x, head, n < 0 ? n : TSR_ENOMEM);
    } else {
        struct tsri_reply r = {.type = head->type, .text = text, .text_bytes = (uint32_t)n};
        tsri_session_reply(x, head->id, &r);
    }
    tsri_free(text);
}

static void stats(struct tsri_session *x, const struct tsri_wire_head *head,
                  const struct tsri_request *q)
{
    struct tsr_stats numbers = {.size = sizeof numbers};
    switch (q->value) {
    case TSRI_WIRE_STATS_NUMBERS: {
        int e = tsr_stats_get(x->tenant->cache, &numbers);
        if (e) {
            tsri_session_fail(x, head, e);
            return;
        }
        const uint64_t *first = (const uint64_t *)(const void *)&numbers;
        struct tsri_reply r = {
            .type = head->type, .n = sizeof numbers / sizeof *first - 1, .numbers = first + 1};
        tsri_session_reply(x, head->id, &r);
        return;
    }
    case TSRI_WIRE_STATS_PROMETHEUS:
        stats_text(x, head, "prometheus");
        return;
    case TSRI_WIRE_STATS_JSON:
        stats_text(x, head, "json");
        return;
    default:
        tsri_session_fail(x, head, tsri_fail(TSR_EINVAL, "stats: no form %u", q->value));
    }
}

/* Every session that has asked gets every event: they are taken from the cache for all of them. */
static void share_events(struct tsri_session *x)
{
    struct tsr_event some[64];
    int n;
    uint32_t turns = x->tenant->cache->options.events_max / TSRI_COUNT(some) + 1;
    while (turns-- && (n = tsr_events(x->tenant->cache, some, TSRI_COUNT(some))) > 0)
        for (struct tsri_session *y = x->server->sessions; y; y = y->next)
            for (int i = 0; y->tenant == x->tenant && y->events.max && i < n; i++)
                if (!tsri_events_push(&y->events, &some[i]))
                    tsri_stats_add(x->tenant->cache->stats, TSRI_M_events_dropped, 1);
}

static void events(struct tsri_session *x, const struct tsri_wire_head *head,
                   const struct tsri_request *q)
{
    uint32_t max = x->tenant->cache->options.events_max;
    share_events(x);
    int e = x->events.max ? 0 : tsri_events_init(&x->events, max);
    struct tsr_event *out = e ? NULL : tsri_alloc(tsri_min_u32(q->n, max), sizeof *out);
    if (!out) {
        tsri_session_fail(x, head, TSR_ENOMEM);
        return;
    }
    uint32_t n = tsri_events_take(&x->events, out, tsri_min_u32(q->n, max));
    struct tsri_reply r = {.type = head->type, .status = (int32_t)n, .n = n, .events = out};
    tsri_session_reply(x, head->id, &r);
    tsri_free(out);
}

/* ---- dispatch ---- */

static void open_call(struct tsri_session *x, const struct tsri_wire_head *head,
                      const uint8_t *body, struct tsri_request *q)
{
    switch ((enum tsri_wire_type)q->type) {
    case TSRI_WIRE_HELLO:
        return; /* dealt with before */
    case TSRI_WIRE_PING:
        answer(x, head, 0);
        return;
    case TSRI_WIRE_SPACE_OPEN:
        space_open(x, head, q);
        return;
    case TSRI_WIRE_SPACE_CLOSE:
        space_close(x, head, q);
        return;
    case TSRI_WIRE_LOOKUP:
        lookup(x, head, q);
        return;
    case TSRI_WIRE_RETRIEVE:
        retrieve(x, head, body, q);
        return;
    case TSRI_WIRE_RELEASE:
        release(x, head, q);
        return;
    case TSRI_WIRE_KEYS:
        keys(x, head, q);
        return;
    case TSRI_WIRE_CONTAINS:
        contains(x, head, q);
        return;
    case TSRI_WIRE_PREFETCH:
    case TSRI_WIRE_PIN:
    case TSRI_WIRE_UNPIN:
    case TSRI_WIRE_TOUCH:
        answer(x, head, mark(x, q));
        return;
    case TSRI_WIRE_FREEZE:
        tsr_freeze(x->tenant->cache, q->value != 0);
        answer(x, head, 0);
        return;
    case TSRI_WIRE_STATS:
        stats(x, head, q);
        return;
    case TSRI_WIRE_EVENTS:
        events(x, head, q);
        return;
    case TSRI_WIRE_STORE:
    case TSRI_WIRE_PUT_OPEN:
    case TSRI_WIRE_PUT_LAYERS:
    case TSRI_WIRE_PUT_COMMIT:
    case TSRI_WIRE_PUT_ABORT:
    case TSRI_WIRE_CLEAR:
    case TSRI_WIRE_EVICT:
    case TSRI_WIRE_FLUSH:
        tsri_lane_push(x, head, body, NULL, 0);
        return;
    }
}

/* Answers, then cuts it off. */
static void refuse(struct tsri_session *x, const struct tsri_wire_head *head, int err)
{
    tsri_stats_add(tsri_server_stats(x->server), TSRI_M_requests_malformed, 1);
    tsri_session_fail(x, head, err);
    tsri_session_flush(x);
    tsri_session_end(x, tsr_errmsg());
}

void tsri_call_answer(struct tsri_session *x, const struct tsri_wire_head *head,
                      const uint8_t *body)
{
    struct tsri_request *q = &x->server->request;
    struct tsri_stats *numbers = tsri_server_stats(x->server);
    bool is_new = x->state == TSRI_SESSION_NEW, is_hello = head->type == TSRI_WIRE_HELLO;
    tsri_stats_add(numbers, TSRI_M_requests, 1);
    if (is_new != is_hello) {
        refuse(x, head, tsri_fail(TSR_EPERM, is_new ? "say hello first" : "a second hello"));
        return;
    }
    if (!is_new && head->version != TSRI_WIRE_VERSION_MAX) {
        refuse(x, head, tsri_fail(TSR_EVERSION, "version %u was not agreed on", head->version));
        return;
    }
    int e = tsri_request_decode(q, head->type, body, head->body_bytes);
    if (e && is_new) {
        refuse(x, head, e);
    } else if (e) {
        tsri_stats_add(numbers, TSRI_M_requests_malformed, 1);
        tsri_session_fail(x, head, e);
    } else if (is_hello) {
        tsri_hello(x, head, q);
    } else {
        open_call(x, head, body, q);
    }
}
