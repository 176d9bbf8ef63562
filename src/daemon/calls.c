/* calls.c - requests that are answered in the loop, because they neither copy KV nor wait: lookups,
 * leases, lending what is in memory, keys, pins, numbers. Whatever may take its time goes to
 * lane.c. */
#include "daemon/daemon.h"

struct tsr_space *tsri_session_any_space(struct tsri_session *x, uint32_t number)
{
    struct tsr_space *space = NULL;
    if (number < TSRI_SESSION_SPACES_MAX) space = atomic_load(&x->spaces[number]);
    if (!space) tsri_fail(TSR_ENOENT, "space %u is not open", number);
    return space;
}

struct tsr_space *tsri_session_space(struct tsri_session *x, uint32_t number)
{
    struct tsr_space *space = tsri_session_any_space(x, number);
    if (!space || !(atomic_load(&x->bare[number / 64]) >> number % 64 & 1)) return space;
    tsri_fail(TSR_ENOENT, "space %u is known only from a tier", number);
    return NULL;
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

/* A number that is free, or TSRI_SESSION_SPACES_MAX with a message. */
static uint32_t free_number(struct tsri_session *x)
{
    uint32_t at = 0;
    while (at < TSRI_SESSION_SPACES_MAX && atomic_load(&x->spaces[at]))
        at++;
    if (at == TSRI_SESSION_SPACES_MAX)
        tsri_fail(TSR_EAGAIN, "too many open spaces (%u)", TSRI_SESSION_SPACES_MAX);
    return at;
}

/* Gives the space its number, and tells what it is like. A bare one has no shape yet. */
static void enter_space(struct tsri_session *x, const struct tsri_wire_head *head, uint32_t at,
                        struct tsr_space *space, bool shaped)
{
    uint64_t bit = (uint64_t)1 << at % 64;
    if (shaped)
        atomic_fetch_and(&x->bare[at / 64], ~bit);
    else
        atomic_fetch_or(&x->bare[at / 64], bit);
    atomic_store(&x->spaces[at], space);
    struct tsri_reply r = {.type = head->type, .space.space = at};
    if (shaped) {
        const struct tsri_shape *s = tsri_space_shape(space);
        r.space = (struct tsri_wire_space){.space = at,
                                           .block_tokens = tsri_space_block_tokens(space),
                                           .n_layers = s->n_layers,
                                           .n_planes = s->n_planes,
                                           .row_bytes = {s->row_bytes[0], s->row_bytes[1]},
                                           .cell_tokens = s->cell_tokens,
                                           .page_bytes = s->page_bytes};
    }
    tsr_space_fingerprint(space, r.space.fingerprint);
    tsri_session_reply(x, head->id, &r);
}

/* With a body, one for which there is no slot goes to a worker that makes room. */
static void space_open(struct tsri_session *x, const struct tsri_wire_head *head,
                       const uint8_t *body, const struct tsri_request *q)
{
    struct tsr_space *space;
    bool shaped = true;
    uint32_t at = free_number(x);
    int e = at < TSRI_SESSION_SPACES_MAX ? 0 : TSR_EAGAIN;
    if (e == 0 && q->type == TSRI_WIRE_SPACE_OPEN)
        e = tsri_space_open_now(&space, x->tenant->cache, &q->desc);
    else if (e == 0)
        e = tsri_space_find(&space, x->tenant->cache, q->fingerprint, &shaped);
    if (e == TSR_EAGAIN && body && at < TSRI_SESSION_SPACES_MAX)
        tsri_lane_push(x, head, body, NULL);
    else if (e)
        tsri_session_fail(x, head, e);
    else
        enter_space(x, head, at, space, shaped);
}

void tsri_space_again(struct tsri_session *x, const struct tsri_wire_head *head,
                      const uint8_t *body)
{
    struct tsri_request *q = &x->server->request;
    int e = tsri_request_decode(q, head->type, body, head->body_bytes);
    if (e)
        tsri_session_fail(x, head, e);
    else
        space_open(x, head, NULL, q);
}

/* Nobody can name it any more, but calls that wait and stores that are half done may still use it:
 * were it closed now, its place in the cache could become another space's under them. */
static void space_close(struct tsri_session *x, const struct tsri_wire_head *head,
                        const struct tsri_request *q)
{
    struct tsr_space *space = tsri_session_any_space(x, q->space);
    int e = space ? 0 : TSR_ENOENT;
    if (space && x->n_closed == TSRI_SESSION_SPACES_MAX)
        e = tsri_fail(TSR_EAGAIN, "unfinished stores hold %u spaces", x->n_closed);
    if (e == 0) {
        atomic_store(&x->spaces[q->space], NULL);
        x->closed[x->n_closed++] = space;
        tsri_session_settle(x);
    }
    answer(x, head, e);
}

void tsri_session_settle(struct tsri_session *x)
{
    if (x->n_closed == 0 || x->n_calls) return;
    for (uint32_t i = 0; i < TSRI_SESSION_PUTS_MAX; i++)
        if (x->puts[i]) return;
    while (x->n_closed)
        tsr_space_close(x->closed[--x->n_closed]);
}

static void spaces(struct tsri_session *x, const struct tsri_wire_head *head)
{
    uint32_t max = tsri_cache_options(x->tenant->cache)->spaces_max;
    struct tsri_space_row *rows = tsri_alloc(max, sizeof *rows);
    struct tsri_wire_space_row *out = tsri_alloc(max, sizeof *out);
    if (!rows || !out) {
        tsri_session_fail(x, head, TSR_ENOMEM);
    } else {
        uint32_t n = tsri_cache_spaces(x->tenant->cache, rows, max);
        for (uint32_t i = 0; i < n; i++) {
            out[i].token_bytes = rows[i].token_bytes;
            out[i].refs = rows[i].refs;
            out[i].entries = rows[i].entries;
            memcpy(out[i].fingerprint, rows[i].fingerprint, sizeof out[i].fingerprint);
            memcpy(out[i].model, rows[i].model, strlen(rows[i].model));
        }
        struct tsri_reply r = {.type = head->type, .status = (int32_t)n, .n = n, .spaces = out};
        tsri_session_reply(x, head->id, &r);
    }
    tsri_free(rows);
    tsri_free(out);
}

/* ---- leases and keys ---- */

int tsri_release(struct tsri_session *x, const struct tsri_request *q)
{
    int n = 0;
    for (uint32_t i = 0; i < q->n; i++)
        n += tsr_client_release(x->client, q->ids[i]);
    return n;
}

/* KEYS, CONTAINS. *memory holds what the reply points to. */
int tsri_keys(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
              void **memory)
{
    struct tsr_space *space = tsri_session_space(x, q->space);
    struct tsr_key *found = space ? tsri_alloc(q->n, sizeof *found) : NULL;
    if (!found) return space ? TSR_ENOMEM : TSR_ENOENT;
    *memory = found;
    int n = tsr_space_keys(space, &q->prompt, found, q->n);
    r->n = tsri_min_u32(n < 0 ? 0 : (uint32_t)n, q->n);
    r->keys = found;
    return n;
}

int tsri_contains(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                  void **memory)
{
    int8_t *tiers = tsri_alloc(q->n, 1);
    if (!tiers) return TSR_ENOMEM;
    *memory = tiers;
    r->n = q->n;
    r->tiers = tiers;
    return tsr_cache_contains(x->tenant->cache, q->keys, q->n, tiers);
}

static void keys(struct tsri_session *x, const struct tsri_wire_head *head,
                 const struct tsri_request *q)
{
    void *memory = NULL;
    struct tsri_reply r = {.type = head->type};
    r.status =
        q->type == TSRI_WIRE_KEYS ? tsri_keys(x, q, &r, &memory) : tsri_contains(x, q, &r, &memory);
    if (r.status < 0)
        tsri_session_fail(x, head, r.status);
    else
        tsri_session_reply(x, head->id, &r);
    tsri_free(memory);
}

int tsri_mark(struct tsri_session *x, const struct tsri_request *q)
{
    struct tsr_space *space = tsri_session_space(x, q->space);
    if (!space) return TSR_ENOENT;
    switch (q->type) {
    case TSRI_WIRE_PREFETCH:
        return tsr_client_prefetch(x->client, space, &q->prompt);
    case TSRI_WIRE_PIN:
        return tsr_space_pin(space, &q->prompt);
    case TSRI_WIRE_UNPIN:
        return tsr_space_unpin(space, &q->prompt);
    default:
        return tsr_space_touch(space, &q->prompt);
    }
}

/* ---- watching ---- */

static void stats_text(struct tsri_session *x, const struct tsri_wire_head *head,
                       const char *format)
{
    struct tsr_cache *c = x->tenant->cache;
    int n = tsr_cache_stats_text(c, format, NULL, 0);
    size_t room = n < 0 ? 0 : (size_t)n + 4096; /* numbers may grow meanwhile */
    char *text = room ? tsri_alloc(1, room) : NULL;
    if (text) n = tsr_cache_stats_text(c, format, text, room);
    if (!text || n < 0 || (size_t)n >= room) {
        tsri_session_fail(x, head, n < 0 ? n : TSR_ENOMEM);
    } else {
        struct tsri_reply r = {.type = head->type, .text = text, .text_bytes = (uint32_t)n};
        tsri_session_reply(x, head->id, &r);
    }
    tsri_free(text);
}

/* The server's owner sees all tenants, the others see themselves. */
static void status_text(struct tsri_session *x, const struct tsri_wire_head *head)
{
    struct tsr_server *s = x->server;
    const struct tsri_tenant *only = x->tenant == &s->tenants[0] ? NULL : x->tenant;
    size_t room = tsri_status_json(s, only, NULL, 0) + 4096; /* numbers may grow meanwhile */
    char *text = tsri_alloc(1, room);
    size_t n = text ? tsri_status_json(s, only, text, room) : 0;
    if (n == 0 || n >= room) {
        tsri_session_fail(x, head, TSR_ENOMEM);
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
        int e = tsr_cache_stats(x->tenant->cache, &numbers);
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
    case TSRI_WIRE_STATS_STATUS:
        status_text(x, head);
        return;
    default:
        tsri_session_fail(x, head, tsri_fail(TSR_EINVAL, "stats: unknown format %u", q->value));
    }
}

static bool wants_events(const struct tsri_session *x, const struct tsri_tenant *tenant)
{
    return x->tenant == tenant && x->events.max && x->state == TSRI_SESSION_OPEN;
}

/* Every session that has asked gets every event: they are taken from the cache for all of them. */
static void share_events(struct tsri_session *x)
{
    struct tsr_event some[64];
    int n;
    uint32_t turns = tsri_cache_options(x->tenant->cache)->events_max / TSRI_COUNT(some) + 1;
    while (turns-- && (n = tsr_cache_events(x->tenant->cache, some, TSRI_COUNT(some))) > 0)
        for (struct tsri_session *y = x->server->sessions; y; y = y->next)
            for (int i = 0; wants_events(y, x->tenant) && i < n; i++)
                if (!tsri_events_push(&y->events, &some[i]))
                    tsri_stats_add(tsri_cache_metrics(x->tenant->cache), TSRI_M_events_dropped, 1);
}

static void events(struct tsri_session *x, const struct tsri_wire_head *head,
                   const struct tsri_request *q)
{
    uint32_t max = tsri_cache_options(x->tenant->cache)->events_max;
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
    case TSRI_WIRE_SPACE_FIND:
        space_open(x, head, q->type == TSRI_WIRE_SPACE_OPEN ? body : NULL, q);
        return;
    case TSRI_WIRE_SPACE_CLOSE:
        space_close(x, head, q);
        return;
    case TSRI_WIRE_SPACES:
        spaces(x, head);
        return;
    case TSRI_WIRE_LOOKUP:
        tsri_lookup_answer(x, head, q);
        return;
    case TSRI_WIRE_RETRIEVE:
        tsri_retrieve_answer(x, head, body, q);
        return;
    case TSRI_WIRE_RELEASE:
        answer(x, head, tsri_release(x, q));
        return;
    case TSRI_WIRE_KEYS:
    case TSRI_WIRE_CONTAINS:
        keys(x, head, q);
        return;
    case TSRI_WIRE_PREFETCH:
    case TSRI_WIRE_PIN:
    case TSRI_WIRE_UNPIN:
    case TSRI_WIRE_TOUCH:
        answer(x, head, tsri_mark(x, q));
        return;
    case TSRI_WIRE_FREEZE:
        tsr_cache_freeze(x->tenant->cache, q->value != 0);
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
    case TSRI_WIRE_DISCOVER:
    case TSRI_WIRE_LIST:
    case TSRI_WIRE_ORDER:
    case TSRI_WIRE_EVICT_KEYS:
    case TSRI_WIRE_WARM:
        tsri_lane_push(x, head, body, NULL);
        return;
    }
}

/* Chunks of the prompt, which are as many places in the index: blocks may be a token long. */
static uint64_t prompt_steps(struct tsri_session *x, uint32_t number, const struct tsr_prompt *p)
{
    const struct tsr_space *space = tsri_session_space(x, number);
    uint64_t n = 0;
    if (!space) return 0; /* is refused at once */
    if (p->flags & TSR_PROMPT_PREFIX) n += p->n_tokens / tsri_space_block_tokens(space);
    if (p->flags & TSR_PROMPT_SEGMENTS) n += p->n_segments;
    return n;
}

/* Of a retrieve: its matches that are not verified are compared with the prompt, which is walked
 * once for all that are of one space. A segment may be as long as the prompt. Verified ones are
 * compared without a walk. */
static uint64_t retrieve_steps(struct tsri_session *x, const struct tsri_request *q, uint64_t *work)
{
    const struct tsri_wire_retrieve *t = &q->retrieve;
    uint64_t n = t->n_wants;
    for (uint32_t i = 0, last = UINT32_MAX; i < t->n_wants && n <= TSRI_INLINE_STEPS; i++) {
        const struct tsri_wire_want *w = &t->wants[i];
        if (t->has_prompt && w->match.verified) *work += w->match.n_tokens;
        if (!t->has_prompt || w->match.verified) continue;
        n += q->prompt.n_extra;
        if (w->match.kind != TSR_KIND_PREFIX || w->space != last)
            *work += (uint64_t)q->prompt.n_tokens * 4;
        if (w->space != last) n += prompt_steps(x, w->space, &q->prompt);
        last = w->space;
    }
    return n;
}

/* Does it take so long that others would notice? Work grows with the bytes of a request and with
 * the steps it takes, both with the spaces it is asked in, and bytes some times more when text is
 * looked for at any offset. Leases that a call before this one may still take must not outlive
 * their release. */
static bool is_long(struct tsri_session *x, const struct tsri_wire_head *head,
                    const struct tsri_request *q)
{
    uint64_t work = head->body_bytes, steps = 0;
    switch (q->type) {
    case TSRI_WIRE_LOOKUP:
        work *= q->lookup.n_spaces;
        if (q->prompt.flags & TSR_PROMPT_ANY) work *= 4;
        if (q->lookup.n_spaces)
            steps = prompt_steps(x, q->lookup.spaces[0], &q->prompt) * q->lookup.n_spaces;
        break;
    case TSRI_WIRE_RELEASE:
        if (x->n_leasing) return true;
        steps = q->n;
        break;
    case TSRI_WIRE_RETRIEVE:
        steps = retrieve_steps(x, q, &work);
        break;
    case TSRI_WIRE_CONTAINS:
        steps = q->n;
        break;
    case TSRI_WIRE_KEYS:
    case TSRI_WIRE_PREFETCH:
    case TSRI_WIRE_PIN:
    case TSRI_WIRE_UNPIN:
    case TSRI_WIRE_TOUCH:
        steps = prompt_steps(x, q->space, &q->prompt);
        break;
    default:
        return false;
    }
    return work > TSRI_INLINE_WORK || steps > TSRI_INLINE_STEPS;
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
        refuse(x, head, tsri_fail(TSR_EPERM, is_new ? "expected hello first" : "duplicate hello"));
        return;
    }
    if (!is_new && head->version != TSRI_WIRE_VERSION_MAX) {
        refuse(x, head, tsri_fail(TSR_EVERSION, "version %u was not negotiated", head->version));
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
    } else if (is_long(x, head, q)) {
        tsri_lane_push(x, head, body, NULL);
    } else {
        open_call(x, head, body, q);
    }
}
