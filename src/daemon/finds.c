/* finds.c - lookup and retrieve. Both are answered in the loop, where the request lies; those of
 * very long prompts, or of a great many ranges, and what only a lower tier has, by a worker. */
#include "daemon/daemon.h"

/* ---- lookup ---- */

/* Starts bringing up what only lower tiers have, so that it is there when it is asked for. */
static void start_prefetch(struct tsr_cache *c, const struct tsr_match *matches, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (matches[i].tier) tsri_cache_prefetch_one(c, matches[i].entry, NULL);
}

/* Rows there can be: a match has one token at least. */
static uint32_t rows_max(const struct tsri_request *q)
{
    uint32_t n = tsri_min_u32(q->lookup.matches_max, q->prompt.n_tokens);
    return q->lookup.n_spaces ? tsri_min_u32(n, TSRI_MATCHES_MAX / q->lookup.n_spaces) : n;
}

/* Into matches and out, of rows_max x n_spaces. The status; fills the reply. */
static int look_up(struct tsri_session *x, const struct tsri_request *q, struct tsr_match *matches,
                   struct tsri_wire_match *out, struct tsri_reply *r)
{
    struct tsr_space *spaces[TSRI_WIRE_SPACES_MAX];
    uint32_t n_spaces = q->lookup.n_spaces;
    for (uint32_t i = 0; i < n_spaces; i++) {
        spaces[i] = tsri_session_space(x, q->lookup.spaces[i]);
        if (!spaces[i]) return TSR_ENOENT;
    }
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = spaces,
                                 .n_spaces = n_spaces,
                                 .matches = matches,
                                 .matches_max = rows_max(q),
                                 .request_id = q->lookup.lease};
    int n = tsr_client_lookup(x->client, &q->prompt, &io);
    if (n < 0) return n;
    size_t n_matches = (size_t)io.n_matches * n_spaces;
    if (q->lookup.flags & TSRI_WIRE_LOOKUP_PREFETCH)
        start_prefetch(x->tenant->cache, matches, n_matches);
    for (size_t i = 0; i < n_matches; i++)
        tsri_wire_match_put(&matches[i], &out[i]);
    r->n = io.n_matches;
    r->n_prefix_tokens = io.n_prefix_tokens;
    r->n_spaces = n_spaces;
    r->matches = out;
    return n;
}

void tsri_lookup_answer(struct tsri_session *x, const struct tsri_wire_head *head,
                        const struct tsri_request *q)
{
    struct tsr_server *s = x->server;
    struct tsri_reply r = {.type = head->type};
    r.status = look_up(x, q, (struct tsr_match *)(void *)s->matches.data,
                       (struct tsri_wire_match *)(void *)s->wire_matches.data, &r);
    if (r.status < 0)
        tsri_session_fail(x, head, r.status);
    else
        tsri_session_reply(x, head->id, &r);
}

int tsri_lookup(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                void **memory)
{
    size_t n = (size_t)rows_max(q) * q->lookup.n_spaces;
    struct tsr_match *matches = tsri_alloc(n, sizeof *matches + sizeof(struct tsri_wire_match));
    if (!matches) return TSR_ENOMEM;
    *memory = matches;
    return look_up(x, q, matches, (struct tsri_wire_match *)(void *)(matches + n), r);
}

/* ---- retrieve ---- */

/* Verified matches are compared with the prompt, if there is one. Those of a lookup cover a token
 * once in each space; who names more is not served with what is more. */
#define COMPARES_MAX TSRI_LOOKUP_SPACES_MAX

/* A source, its ranges, and their matches. */
struct lends {
    struct tsri_source source; /* first */
    struct tsri_source_range ranges[];
};

static size_t lends_bytes(uint32_t n)
{
    return sizeof(struct lends) + n * (sizeof(struct tsri_source_range) + sizeof(struct tsr_match));
}

uint8_t *tsri_retrieve_reply(struct tsri_session *x, uint64_t id, const struct tsri_source *lends,
                             size_t *bytes)
{
    size_t n_pages = 0;
    int n_lent = 0;
    uint32_t n = lends->n;
    for (uint32_t i = 0; i < n; i++) {
        n_pages += lends->ranges[i].result ? 0 : lends->ranges[i].n_pages;
        n_lent += lends->ranges[i].result == 0;
    }
    size_t list_bytes = n * sizeof(struct tsri_wire_lent) + n_pages * sizeof(uint32_t);
    if (list_bytes > TSRI_REPLY_MAX) {
        tsri_fail(TSR_ERANGE, "%u ranges of %zu pages are too many for one request", n, n_pages);
        return NULL;
    }
    struct tsri_wire_lent *lent = tsri_alloc(1, list_bytes);
    if (!lent) return NULL;
    uint32_t *pages = (uint32_t *)(lent + n), *end = pages;
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_source_range *l = &lends->ranges[i];
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
    if (tsri_reply_bytes(&r, bytes) == 0) frame = tsri_session_alloc(x, TSRI_SIDE_OUT, *bytes);
    if (frame) tsri_reply_encode(&r, id, frame, *bytes);
    tsri_free(lent);
    return frame;
}

int tsri_lend_all(struct tsri_session *x, const struct tsri_request *q, struct tsri_source **out)
{
    const struct tsri_wire_retrieve *t = &q->retrieve;
    *out = NULL;
    if (t->lease == 0) return tsri_fail(TSR_EINVAL, "retrieve: needs a lease");
    struct lends *l = tsri_session_alloc(x, TSRI_SIDE_IN, lends_bytes(t->n_wants));
    if (!l) return TSR_EAGAIN;
    l->source = (struct tsri_source){.c = tsri_client_cache(x->client),
                                     .client = x->client,
                                     .ranges = l->ranges,
                                     .n = t->n_wants,
                                     .compare_max = (uint64_t)q->prompt.n_tokens * COMPARES_MAX};
    struct tsr_match *matches = (struct tsr_match *)(void *)(l->ranges + t->n_wants);
    int e = 0;
    for (uint32_t i = 0; i < t->n_wants && e == 0; i++) {
        const struct tsri_wire_want *w = &t->wants[i];
        struct tsri_want want = {tsri_session_space(x, w->space), &matches[i],
                                 t->has_prompt ? &q->prompt : NULL, w->offset, w->n_tokens};
        tsri_wire_match_get(&w->match, &matches[i]);
        e = want.space ? tsri_source_want(&l->ranges[i], l->source.c, &want) : TSR_ENOENT;
    }
    if (e) {
        tsri_session_free(x, TSRI_SIDE_IN, l, lends_bytes(t->n_wants));
        return e;
    }
    *out = &l->source;
    return (int)tsri_lends_open(&l->source, t->lease);
}

void tsri_lends_free(struct tsri_session *x, struct tsri_source *lends)
{
    if (!lends) return;
    uint32_t n = lends->n;
    tsri_lends_close(lends);
    tsri_session_free(x, TSRI_SIDE_IN, lends, lends_bytes(n));
}

void tsri_retrieve_answer(struct tsri_session *x, const struct tsri_wire_head *head,
                          const uint8_t *body, const struct tsri_request *q)
{
    struct tsri_source *lends;
    int n_cold = tsri_lend_all(x, q, &lends);
    if (n_cold > 0) {
        tsri_lane_push(x, head, body, lends);
        return;
    }
    if (n_cold < 0) {
        tsri_session_fail(x, head, n_cold);
        return;
    }
    size_t bytes = 0;
    uint8_t *frame = tsri_retrieve_reply(x, head->id, lends, &bytes);
    tsri_lends_free(x, lends);
    if (frame) {
        tsri_session_send(x, frame, bytes);
        tsri_session_free(x, TSRI_SIDE_OUT, frame, bytes);
    } else {
        tsri_session_fail(x, head, TSR_ENOMEM);
    }
}
