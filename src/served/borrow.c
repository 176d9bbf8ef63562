/* borrow.c - ranges that a server lends, to be read where they are in its memory: the source
 * (source.h) of a cache that a server has. It names the pages under a lease of this source alone,
 * and whoever reads them asks afterwards whether the lease still held. What was read while it did
 * not is worth nothing. */
#include "cache/clients.h"
#include "cache/core.h"
#include "served/served.h"
#include "cache/source.h"

#define WANTS_MAX 4096u /* ranges of one request */
#define BORROW_LEASE ((uint64_t)1 << 63)

static uint32_t offset_in_match(const struct tsri_source_range *r)
{
    return r->offset - r->wanted.match->entry_offset;
}

/* ---- asking ---- */

/* A match that is not verified is compared with all of its prompt. Of verified ones it is the tokens
 * that they cover, so that what is before and behind them need not be sent. */
static void cut_prompt(struct tsri_request *q, struct tsri_wire_want *wants, uint32_t n)
{
    uint64_t begin = UINT32_MAX, end = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_wire_match *m = &wants[i].match;
        if (!m->verified) return;
        if (m->prompt_offset < begin) begin = m->prompt_offset;
        if ((uint64_t)m->prompt_offset + m->n_tokens > end)
            end = (uint64_t)m->prompt_offset + m->n_tokens;
    }
    if (end > q->prompt.n_tokens) return; /* not of this prompt, as the server will say */
    q->prompt = (struct tsr_prompt){.size = sizeof q->prompt,
                                    .tokens = q->prompt.tokens + begin,
                                    .n_tokens = (uint32_t)(end - begin)};
    for (uint32_t i = 0; i < n; i++)
        wants[i].match.prompt_offset -= (uint32_t)begin;
}

/* Ranges from `first` on that fit in one request: those with the same prompt. */
static uint32_t fill_request(const struct tsri_source *s, uint32_t first,
                             struct tsri_wire_want *out, struct tsri_request *q)
{
    const struct tsr_prompt *prompt = s->ranges[first].wanted.prompt;
    uint32_t n = 0;
    for (uint32_t i = first; i < s->n && n < WANTS_MAX; i++, n++) {
        const struct tsri_source_range *r = &s->ranges[i];
        if (r->wanted.prompt != prompt) break;
        out[n] = (struct tsri_wire_want){.space = s->borrow.spaces[i].number,
                                         .offset = offset_in_match(r),
                                         .n_tokens = r->n_tokens};
        tsri_wire_match_put(r->wanted.match, &out[n].match);
    }
    tsri_request_clear(q, TSRI_WIRE_RETRIEVE);
    q->retrieve = (struct tsri_wire_retrieve){
        .lease = s->borrow.lease, .n_wants = n, .wants = out, .has_prompt = prompt != NULL};
    if (prompt) {
        memcpy(&q->prompt, prompt,
               prompt->size < sizeof q->prompt ? prompt->size : sizeof q->prompt);
        cut_prompt(q, out, n);
    }
    return n;
}

/* Is what the server says possible, so that nobody reads beyond the mapping? */
static bool is_sound(const struct tsri_borrow *b, const struct tsri_source_range *r,
                     const struct tsri_wire_lent *w, const uint32_t *pages)
{
    const struct tsri_shape *s = r->shape;
    uint64_t first = (uint64_t)w->cell_first * s->cell_tokens;
    uint64_t end = (uint64_t)r->offset + r->n_tokens;
    if (r->offset < first || r->offset - first >= s->cell_tokens || end > w->entry_tokens)
        return false;
    uint64_t last_cell_end = (end + s->cell_tokens - 1) / s->cell_tokens * s->cell_tokens;
    uint64_t held = last_cell_end < w->entry_tokens ? last_cell_end : w->entry_tokens;
    uint32_t needed = tsri_shape_n_pages(s, (uint32_t)(held - first));
    if (needed == 0 || w->n_pages < needed) return false;
    uint64_t n_pages = b->mapping->welcome.pool_bytes / s->page_bytes;
    for (uint32_t p = 0; p < w->n_pages; p++)
        if (pages[p] >= n_pages) return false;
    return true;
}

static int take_lent(struct tsri_source *s, uint32_t first, uint32_t n,
                     const struct tsri_reply *reply)
{
    struct tsri_borrow *b = &s->borrow;
    if (reply->n != n)
        return tsri_fail(TSR_EINVAL, "the server lends %u ranges, expected %u", reply->n, n);
    uint32_t *pages = tsri_alloc(reply->n_pages, sizeof *pages), at = 0;
    if (!pages) return TSR_ENOMEM;
    if (reply->n_pages) memcpy(pages, reply->pages, reply->n_pages * sizeof *pages);
    b->blocks[b->n_blocks++] = pages;
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_wire_lent *w = &reply->lent[i];
        struct tsri_source_range *r = &s->ranges[first + i];
        r->shape = &b->spaces[first + i].shape;
        r->result = w->result;
        r->where = w->result ? TSRI_GONE : TSRI_HERE;
        if (w->result) continue;
        if (w->n_pages > reply->n_pages - at || !is_sound(b, r, w, pages + at)) {
            r->result = TSR_ECORRUPT;
            return tsri_fail(TSR_ECORRUPT, "the server lends invalid pages");
        }
        r->base = w->base;
        r->freq_set = w->freq_set;
        r->entry_tokens = w->entry_tokens;
        r->cell_first = w->cell_first;
        r->n_pages = w->n_pages;
        r->pages = pages + at;
        at += w->n_pages;
    }
    return 0;
}

static int ask_spaces(struct tsri_source *s, uint64_t until_ns)
{
    struct tsri_borrow *b = &s->borrow;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tsr_space *space = s->ranges[i].wanted.space;
        if (i && space == s->ranges[i - 1].wanted.space) {
            b->spaces[i] = b->spaces[i - 1];
            continue;
        }
        int e = tsri_seat_space(b->seat, b->session, space, until_ns, &b->spaces[i]);
        if (e) return e;
    }
    return 0;
}

static int ask_all(struct tsri_source *s, uint64_t until_ns)
{
    struct tsri_borrow *b = &s->borrow;
    struct tsri_wire_want *some = tsri_alloc(tsri_min_u32(s->n, WANTS_MAX), sizeof *some);
    int e = some ? ask_spaces(s, until_ns) : TSR_ENOMEM;
    for (uint32_t at = 0; e == 0 && at < s->n;) {
        struct tsri_request q;
        struct tsri_answer *a;
        uint32_t n = fill_request(s, at, some, &q);
        e = tsri_link_start(b->seat->link, b->session, &q, until_ns, &a);
        if (e) break;
        e = tsri_link_wait(a, until_ns);
        if (e >= 0) e = take_lent(s, at, n, &a->reply);
        tsri_link_end(a);
        at += n;
    }
    tsri_free(some);
    return e;
}

static int borrow(struct tsri_source *s, uint64_t until_ns)
{
    struct tsri_borrow *b = &s->borrow;
    b->session = tsri_link_session(b->seat->link);
    b->mapping = b->session ? tsri_link_mapping(b->seat->link, b->session) : NULL;
    if (!b->mapping) return TSR_EAGAIN;
    b->lease = BORROW_LEASE | atomic_fetch_add(&b->seat->last_lease, 1);
    b->spaces = tsri_alloc(s->n, sizeof *b->spaces);
    b->blocks = tsri_alloc(s->n, sizeof *b->blocks);
    return b->spaces && b->blocks ? ask_all(s, until_ns) : TSR_ENOMEM;
}

/* ---- as a source ---- */

uint32_t tsri_source_open_served(struct tsri_source *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct tsri_source_range *r = &s->ranges[i];
        r->source = s;
        r->result = 0;
        r->where = TSRI_BELOW;
    }
    return s->n;
}

static void fail_all(struct tsri_source *s, int err)
{
    for (uint32_t i = 0; i < s->n; i++) {
        s->ranges[i].result = err;
        s->ranges[i].where = TSRI_GONE;
    }
}

int tsri_source_fetch_served(struct tsri_source *s, const atomic_bool *stop)
{
    (void)stop; /* it waits no longer than server_patience */
    struct tsri_served *served = s->c->served;
    s->borrow =
        (struct tsri_borrow){.seat = s->client ? tsri_client_seat(s->client) : served->seat};
    int e = borrow(s, tsri_now_ns() + served->patience_ns);
    if (e) {
        tsri_borrow_fini(&s->borrow);
        bool away = e == TSR_EAGAIN || e == TSR_ETIME; /* not there, or not in time: a miss */
        fail_all(s, away ? TSR_ENOENT : e);
        return away ? 0 : e;
    }
    s->memory = s->borrow.mapping->pool->region.data;
    s->locking = s->borrow.mapping->pool->locking;
    return 0;
}

bool tsri_borrow_holds(const struct tsri_borrow *b)
{
    return tsri_mapping_holds(b->mapping);
}

void tsri_borrow_fini(struct tsri_borrow *b)
{
    struct tsri_request q;
    if (!b->mapping) return;
    tsri_request_clear(&q, TSRI_WIRE_RELEASE)->ids = &b->lease;
    q.n = 1;
    tsri_link_tell(b->seat->link, b->session, &q);
    tsri_mapping_release(b->mapping);
    for (uint32_t i = 0; b->blocks && i < b->n_blocks; i++)
        tsri_free(b->blocks[i]);
    tsri_free(b->blocks);
    tsri_free(b->spaces);
    *b = (struct tsri_borrow){0};
}
