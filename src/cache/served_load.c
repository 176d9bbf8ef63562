/* served_load.c - loads from a server: it lends the pages that hold the ranges, under a lease of
 * this load alone, and they are copied out of the shared mapping here. After each layer the session
 * is asked whether the leases still hold: what was copied while they did not is worth nothing and
 * is reported as gone. */
#include "cache/served.h"

#define WANTS_MAX 4096u /* ranges of one request */
#define LOAD_LEASE ((uint64_t)1 << 63)

/* A range as it was lent. */
struct lent {
    struct tsri_shape shape;
    uint32_t number;
    uint32_t entry_tokens, offset; /* counted from the first cell lent */
    uint32_t *pages;               /* in a block of its request */
};

struct borrow {
    struct tsri_loader *loader;
    struct tsri_seat *seat;
    uint64_t session, lease, until_ns;
    struct tsri_mapping *mapping;
    struct lent *lent;
    struct tsri_wire_want *wants;
};

static struct tsri_range_load *range(const struct borrow *b, uint32_t i)
{
    return &b->loader->ranges[i];
}

static void fail_all(const struct borrow *b, int err)
{
    for (uint32_t i = 0; i < b->loader->n; i++)
        if (b->loader->loads[i].result == 0) b->loader->loads[i].result = err;
}

/* ---- asking ---- */

/* Ranges from `first` on that fit in one request: those whose prompts are the same, or not needed.
 */
static uint32_t fill_request(struct borrow *b, uint32_t first, struct tsri_request *q)
{
    const struct tsr_prompt *prompt = NULL;
    uint32_t n = 0;
    for (uint32_t i = first; i < b->loader->n && n < WANTS_MAX; i++, n++) {
        const struct tsr_load *load = &b->loader->loads[i];
        bool needs = !load->match->verified;
        if (needs && prompt && prompt != load->prompt) break;
        if (needs) prompt = load->prompt;
        b->wants[n] = (struct tsri_wire_want){
            .space = b->lent[i].number, .offset = load->offset, .n_tokens = range(b, i)->n_tokens};
        tsri_wire_match_put(load->match, &b->wants[n].match);
    }
    tsri_request_clear(q, TSRI_WIRE_RETRIEVE);
    q->retrieve = (struct tsri_wire_retrieve){
        .lease = b->lease, .n_wants = n, .wants = b->wants, .has_prompt = prompt != NULL};
    if (prompt)
        memcpy(&q->prompt, prompt,
               prompt->size < sizeof q->prompt ? prompt->size : sizeof q->prompt);
    return n;
}

/* Is what the server says possible, so that no copy leaves the mapping? */
static bool is_sound(const struct borrow *b, uint32_t i, const struct tsri_wire_lent *w,
                     const uint32_t *pages)
{
    const struct tsri_shape *s = &b->lent[i].shape;
    uint64_t first = (uint64_t)w->cell_first * s->cell_tokens;
    const struct tsri_range_load *r = range(b, i);
    uint64_t end = (uint64_t)r->offset + r->n_tokens;
    if (r->offset < first || r->offset - first >= s->cell_tokens || end > w->entry_tokens)
        return false;
    uint64_t last_cell_end = (end + s->cell_tokens - 1) / s->cell_tokens * s->cell_tokens;
    uint64_t held = last_cell_end < w->entry_tokens ? last_cell_end : w->entry_tokens;
    if (w->n_pages < tsri_shape_n_pages(s, (uint32_t)(held - first))) return false;
    uint64_t n_pages = b->mapping->welcome.pool_bytes / s->page_bytes;
    for (uint32_t p = 0; p < w->n_pages; p++)
        if (pages[p] >= n_pages) return false;
    return true;
}

static int take_lent(struct borrow *b, uint32_t first, uint32_t n, const struct tsri_reply *r)
{
    if (r->n != n) return tsri_fail(TSR_EINVAL, "the server lends %u ranges of %u", r->n, n);
    uint32_t *pages = tsri_alloc(r->n_pages, sizeof *pages), at = 0;
    if (!pages) return TSR_ENOMEM;
    if (r->n_pages) memcpy(pages, r->pages, r->n_pages * sizeof *pages);
    b->lent[first].pages = pages; /* the first of a request has the block, for free_pages */
    for (uint32_t i = 0; i < n; i++) {
        const struct tsri_wire_lent *w = &r->lent[i];
        struct lent *l = &b->lent[first + i];
        b->loader->loads[first + i].result = w->result;
        if (w->result) continue;
        if (w->n_pages > r->n_pages - at || !is_sound(b, first + i, w, pages + at)) {
            b->loader->loads[first + i].result = TSR_ECORRUPT;
            return tsri_fail(TSR_ECORRUPT, "the server lends pages that cannot be");
        }
        l->pages = pages + at;
        l->offset = range(b, first + i)->offset - w->cell_first * l->shape.cell_tokens;
        l->entry_tokens = w->entry_tokens - w->cell_first * l->shape.cell_tokens;
        at += w->n_pages;
    }
    return 0;
}

static int ask_spaces(struct borrow *b)
{
    for (uint32_t i = 0; i < b->loader->n; i++) {
        struct tsri_seat_space s;
        struct tsr_space *space = b->loader->loads[i].space;
        if (i && space == b->loader->loads[i - 1].space) {
            b->lent[i].shape = b->lent[i - 1].shape;
            b->lent[i].number = b->lent[i - 1].number;
            continue;
        }
        int e = tsri_seat_space(b->seat, b->session, space, b->until_ns, &s);
        if (e) return e;
        b->lent[i].shape = s.shape;
        b->lent[i].number = s.number;
    }
    return 0;
}

/* blocks[k]: the pages of request k. */
static int ask_all(struct borrow *b, uint32_t **blocks, uint32_t *n_blocks)
{
    int e = ask_spaces(b);
    for (uint32_t at = 0; e == 0 && at < b->loader->n;) {
        struct tsri_request q;
        struct tsri_answer *a;
        uint32_t n = fill_request(b, at, &q);
        e = tsri_link_start(b->seat->link, b->session, &q, b->until_ns, &a);
        if (e) return e;
        e = tsri_link_wait(a, b->until_ns);
        if (e >= 0) {
            e = take_lent(b, at, n, &a->reply);
            if (b->lent[at].pages) blocks[(*n_blocks)++] = b->lent[at].pages;
        }
        tsri_link_end(a);
        at += n;
    }
    return e;
}

/* ---- copying ---- */

static void copy_layer(const struct borrow *b, uint32_t i, uint32_t layer)
{
    const struct tsri_range_load *r = range(b, i);
    const struct lent *l = &b->lent[i];
    struct tsr_view view = r->view;
    view.data = (uint8_t *)view.data + layer * view.layer_stride;
    struct tsri_cell_move move = {.pool = b->mapping->pool.data,
                                  .shape = &l->shape,
                                  .pages = l->pages,
                                  .entry_tokens = l->entry_tokens,
                                  .offset = l->offset,
                                  .n_tokens = r->n_tokens,
                                  .layer_first = r->layer_first + layer,
                                  .n_layers = 1,
                                  .to_view = true};
    tsri_cells_move(&move, &view);
}

/* All layers at once where nobody waits for the first. */
static void copy_whole(const struct borrow *b, uint32_t i)
{
    const struct tsri_range_load *r = range(b, i);
    const struct lent *l = &b->lent[i];
    struct tsri_cell_move move = {.pool = b->mapping->pool.data,
                                  .shape = &l->shape,
                                  .pages = l->pages,
                                  .entry_tokens = l->entry_tokens,
                                  .offset = l->offset,
                                  .n_tokens = r->n_tokens,
                                  .layer_first = r->layer_first,
                                  .n_layers = r->n_layers,
                                  .to_view = true};
    tsri_cells_move(&move, &r->view);
}

static int copy_all(struct borrow *b)
{
    struct tsri_loader *loader = b->loader;
    bool by_layer = loader->layer_done != NULL;
    for (uint32_t layer = 0; layer < (by_layer ? loader->n_layers : 1); layer++) {
        for (uint32_t i = 0; i < loader->n; i++) {
            if (loader->loads[i].result) continue;
            if (!by_layer)
                copy_whole(b, i);
            else if (layer < range(b, i)->n_layers)
                copy_layer(b, i, layer);
        }
        if (!tsri_mapping_holds(b->mapping))
            return tsri_fail(TSR_ENOENT, "the server has ended the session");
        if (by_layer) loader->layer_done(loader, layer);
    }
    return 0;
}

/* ---- the whole ---- */

static void let_go(const struct borrow *b)
{
    struct tsri_request q;
    uint64_t lease = b->lease;
    tsri_request_clear(&q, TSRI_WIRE_RELEASE)->ids = &lease;
    q.n = 1;
    tsri_link_tell(b->seat->link, b->session, &q);
}

int tsri_served_load(struct tsri_loader *loader)
{
    struct borrow b = {.loader = loader, .seat = tsri_client_seat(loader->client)};
    b.session = tsri_link_session(b.seat->link);
    b.until_ns = tsri_now_ns() + b.seat->served->patience_ns;
    b.lease = LOAD_LEASE | atomic_fetch_add(&b.seat->last_lease, 1);
    b.lent = tsri_alloc(loader->n, sizeof *b.lent);
    b.wants = tsri_alloc(tsri_min_u32(loader->n, WANTS_MAX), sizeof *b.wants);
    uint32_t **blocks = tsri_alloc(loader->n, sizeof *blocks), n_blocks = 0;
    int e = b.lent && b.wants && blocks ? 0 : TSR_ENOMEM;
    for (uint32_t i = 0; i < loader->n; i++)
        loader->loads[i].result = 0;
    if (e == 0 && b.session) b.mapping = tsri_link_mapping(b.seat->link, b.session);
    if (e == 0 && !b.mapping) e = TSR_EAGAIN;
    if (e == 0) {
        e = ask_all(&b, blocks, &n_blocks);
        if (e == 0) e = copy_all(&b);
        let_go(&b);
    }
    if (e) fail_all(&b, e == TSR_EAGAIN || e == TSR_ETIME ? TSR_ENOENT : e);
    tsri_mapping_release(b.mapping);
    for (uint32_t i = 0; i < n_blocks; i++)
        tsri_free(blocks[i]);
    tsri_free(blocks);
    tsri_free(b.wants);
    tsri_free(b.lent);
    return e == TSR_ENOMEM ? e : 0;
}
