/* served_load.c - ranges of a cache that a server has (source.h): it lends the pages that hold
 * them, and they are read out of the shared mapping. Whoever reads asks afterwards whether the
 * leases still held: what was read while they did not is worth nothing. */
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/source.h"

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

static void take(struct tsri_source_range *r, const struct tsri_borrowed *b)
{
    r->result = b->result;
    r->where = b->result ? TSRI_GONE : TSRI_HERE;
    if (b->result) return;
    r->base = (uint32_t)(b->stands - r->offset);
    r->freq_set = b->freq_set;
    r->cell_first = (r->offset - b->offset) / b->shape.cell_tokens;
    r->entry_tokens = b->entry_tokens + r->offset - b->offset;
    r->pages = b->pages;
    r->shape = &b->shape;
}

int tsri_source_fetch_served(struct tsri_source *s, const atomic_bool *stop)
{
    (void)stop; /* it waits no longer than server_patience */
    struct tsri_served *served = s->c->served;
    struct tsri_seat *seat = s->client ? tsri_client_seat(s->client) : served->seat;
    struct tsri_borrow_want *wants = tsri_alloc(s->n, sizeof *wants);
    if (!wants) return TSR_ENOMEM;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tsri_source_range *r = &s->ranges[i];
        const struct tsri_wanted *w = &r->wanted;
        wants[i] = (struct tsri_borrow_want){.space = (struct tsr_space *)(uintptr_t)w->space,
                                             .match = w->match,
                                             .prompt = w->prompt,
                                             .offset = r->offset - w->match->entry_offset,
                                             .n_tokens = r->n_tokens};
    }
    int e = tsri_borrow_init(&s->borrow, seat, wants, s->n, tsri_now_ns() + served->patience_ns);
    tsri_free(wants);
    if (e && e != TSR_EAGAIN && e != TSR_ETIME) return e;
    for (uint32_t i = 0; i < s->n && e; i++) { /* away: a miss */
        s->ranges[i].result = TSR_ENOENT;
        s->ranges[i].where = TSRI_GONE;
    }
    if (e) return 0;
    s->memory = s->borrow.mapping->pool.data;
    s->locked = false;
    for (uint32_t i = 0; i < s->n; i++)
        take(&s->ranges[i], &s->borrow.ranges[i]);
    return 0;
}
