/* borrow.c - ranges that a server lends, to be read where they lie in its memory: it names the
 * pages under a lease of this borrow alone, and whoever reads them asks afterwards whether the
 * lease still held. What was read while it did not is worth nothing. */
#include "cache/source.h"

#define WANTS_MAX 4096u /* ranges of one request */
#define BORROW_LEASE ((uint64_t)1 << 63)

static uint32_t want_tokens(const struct tsri_borrow_want *w)
{
    return w->n_tokens ? w->n_tokens : w->match->n_tokens - w->offset;
}

/* ---- asking ---- */

/* Ranges from `first` on that fit in one request: those with the same prompt. It is sent when one of
 * them needs it, and then the server compares with it whatever it has to fetch. */
static uint32_t fill_request(struct tsri_borrow *b, const struct tsri_borrow_want *wants,
                             uint32_t first, struct tsri_wire_want *out, struct tsri_request *q)
{
    const struct tsr_prompt *prompt = NULL;
    uint32_t n = 0;
    for (uint32_t i = first; i < b->n && n < WANTS_MAX; i++, n++) {
        const struct tsri_borrow_want *w = &wants[i];
        if (w->prompt != wants[first].prompt) break;
        if (!w->match->verified) prompt = w->prompt;
        out[n] = (struct tsri_wire_want){
            .space = b->ranges[i].number, .offset = w->offset, .n_tokens = want_tokens(w)};
        tsri_wire_match_put(w->match, &out[n].match);
    }
    tsri_request_clear(q, TSRI_WIRE_RETRIEVE);
    q->retrieve = (struct tsri_wire_retrieve){
        .lease = b->lease, .n_wants = n, .wants = out, .has_prompt = prompt != NULL};
    if (prompt)
        memcpy(&q->prompt, prompt,
               prompt->size < sizeof q->prompt ? prompt->size : sizeof q->prompt);
    return n;
}

/* Is what the server says possible, so that nobody reads beyond the mapping? */
static bool is_sound(const struct tsri_borrow *b, const struct tsri_borrow_want *want,
                     const struct tsri_borrowed *r, const struct tsri_wire_lent *w,
                     const uint32_t *pages)
{
    const struct tsri_shape *s = &r->shape;
    uint64_t first = (uint64_t)w->cell_first * s->cell_tokens;
    uint64_t offset = (uint64_t)want->match->entry_offset + want->offset;
    uint64_t end = offset + want_tokens(want);
    if (offset < first || offset - first >= s->cell_tokens || end > w->entry_tokens) return false;
    uint64_t last_cell_end = (end + s->cell_tokens - 1) / s->cell_tokens * s->cell_tokens;
    uint64_t held = last_cell_end < w->entry_tokens ? last_cell_end : w->entry_tokens;
    if (w->n_pages < tsri_shape_n_pages(s, (uint32_t)(held - first))) return false;
    uint64_t n_pages = b->mapping->welcome.pool_bytes / s->page_bytes;
    for (uint32_t p = 0; p < w->n_pages; p++)
        if (pages[p] >= n_pages) return false;
    return true;
}

static int take_lent(struct tsri_borrow *b, const struct tsri_borrow_want *wants, uint32_t first,
                     uint32_t n, const struct tsri_reply *reply)
{
    if (reply->n != n)
        return tsri_fail(TSR_EINVAL, "the server lends %u ranges of %u", reply->n, n);
    uint32_t *pages = tsri_alloc(reply->n_pages, sizeof *pages), at = 0;
    if (!pages) return TSR_ENOMEM;
    if (reply->n_pages) memcpy(pages, reply->pages, reply->n_pages * sizeof *pages);
    b->blocks[b->n_blocks++] = pages;
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_wire_lent *w = &reply->lent[i];
        const struct tsri_borrow_want *want = &wants[first + i];
        struct tsri_borrowed *r = &b->ranges[first + i];
        r->result = w->result;
        if (w->result) continue;
        if (w->n_pages > reply->n_pages - at || !is_sound(b, want, r, w, pages + at)) {
            r->result = TSR_ECORRUPT;
            return tsri_fail(TSR_ECORRUPT, "the server lends pages that cannot be");
        }
        uint32_t skipped = w->cell_first * r->shape.cell_tokens;
        r->pages = pages + at;
        r->n_tokens = want_tokens(want);
        r->offset = want->match->entry_offset + want->offset - skipped;
        r->entry_tokens = w->entry_tokens - skipped;
        r->stands = (int64_t)w->base + want->match->entry_offset + want->offset;
        r->freq_set = w->freq_set;
        at += w->n_pages;
    }
    return 0;
}

static int ask_spaces(struct tsri_borrow *b, const struct tsri_borrow_want *wants,
                      uint64_t until_ns)
{
    for (uint32_t i = 0; i < b->n; i++) {
        struct tsri_seat_space s;
        if (i && wants[i].space == wants[i - 1].space) {
            b->ranges[i].shape = b->ranges[i - 1].shape;
            b->ranges[i].number = b->ranges[i - 1].number;
            continue;
        }
        int e = tsri_seat_space(b->seat, b->session, wants[i].space, until_ns, &s);
        if (e) return e;
        b->ranges[i].shape = s.shape;
        b->ranges[i].number = s.number;
    }
    return 0;
}

static int ask_all(struct tsri_borrow *b, const struct tsri_borrow_want *wants, uint64_t until_ns)
{
    struct tsri_wire_want *some = tsri_alloc(tsri_min_u32(b->n, WANTS_MAX), sizeof *some);
    int e = some ? ask_spaces(b, wants, until_ns) : TSR_ENOMEM;
    for (uint32_t at = 0; e == 0 && at < b->n;) {
        struct tsri_request q;
        struct tsri_answer *a;
        uint32_t n = fill_request(b, wants, at, some, &q);
        e = tsri_link_start(b->seat->link, b->session, &q, until_ns, &a);
        if (e) break;
        e = tsri_link_wait(a, until_ns);
        if (e >= 0) e = take_lent(b, wants, at, n, &a->reply);
        tsri_link_end(a);
        at += n;
    }
    tsri_free(some);
    return e;
}

/* ---- reading ---- */

/* Tokens of the cells that were lent. */
static uint32_t held_tokens(const struct tsri_borrowed *r)
{
    uint64_t cell = r->shape.cell_tokens;
    uint64_t end = ((uint64_t)r->offset + r->n_tokens + cell - 1) / cell * cell;
    return end < r->entry_tokens ? (uint32_t)end : r->entry_tokens;
}

uint32_t tsri_borrow_n_planes(const struct tsri_borrow *b, uint32_t i)
{
    const struct tsri_shape *s = &b->ranges[i].shape;
    return tsri_shape_n_cells(s, held_tokens(&b->ranges[i])) * s->n_layers * s->n_planes;
}

void tsri_borrow_cells(const struct tsri_borrow *b, uint32_t i, void **planes,
                       struct tsr_kv_cells *out)
{
    const struct tsri_borrowed *r = &b->ranges[i];
    const struct tsri_shape *s = &r->shape;
    uint32_t n_tokens = held_tokens(r), n_cells = tsri_shape_n_cells(s, n_tokens);
    for (uint32_t c = 0; c < n_cells; c++) {
        struct tsri_cell cell;
        tsri_cell_layout(s, n_tokens, c, &cell);
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++)
                planes[(l * s->n_planes + p) * n_cells + c] =
                    tsri_plane(b->mapping->pool.data, s, r->pages, &cell, c, l, p);
    }
    *out = (struct tsr_kv_cells){.size = sizeof *out,
                                 .planes = planes,
                                 .n_cells = n_cells,
                                 .cell_tokens = s->cell_tokens,
                                 .n_tokens = n_tokens,
                                 .n_layers = s->n_layers,
                                 .n_planes = s->n_planes,
                                 .memory = TSR_MEMORY_HOST};
}

/* ---- the whole ---- */

int tsri_borrow_init(struct tsri_borrow *b, struct tsri_seat *seat,
                     const struct tsri_borrow_want *wants, uint32_t n, uint64_t until_ns)
{
    *b = (struct tsri_borrow){.seat = seat, .n = n};
    b->session = tsri_link_session(seat->link);
    b->mapping = b->session ? tsri_link_mapping(seat->link, b->session) : NULL;
    if (!b->mapping) return TSR_EAGAIN;
    b->lease = BORROW_LEASE | atomic_fetch_add(&seat->last_lease, 1);
    b->ranges = tsri_alloc(n, sizeof *b->ranges);
    b->blocks = tsri_alloc(n, sizeof *b->blocks);
    int e = b->ranges && b->blocks ? ask_all(b, wants, until_ns) : TSR_ENOMEM;
    if (e) tsri_borrow_fini(b);
    return e;
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
    tsri_free(b->ranges);
    *b = (struct tsri_borrow){0};
}
