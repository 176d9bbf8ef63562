/* lends.c - entries lent to readers that copy out of the pool themselves: the clients of a server.
 * A reader gets the pages that hold its range and a lease that keeps them in place; nothing is
 * copied here. What only a lower tier has is fetched first, on a thread that may wait. */
#include "cache/clients.h"
#include "cache/source.h"

/* One more pin, as a lease. */
static int lease(struct tsri_source *s, uint64_t request_id, uint32_t id)
{
    if (tsri_pin(s->c, id) == TSRI_FREE) /* dropped since: the first pin keeps only its memory */
        return TSR_ENOENT;
    if (tsri_client_lease(s->client, request_id, &id, 1)) return 0;
    tsri_unpin(s->c, id);
    return TSR_EFULL;
}

uint32_t tsri_lends_open(struct tsri_source *s, uint64_t request_id)
{
    uint32_t n_below = tsri_source_open(s);
    for (uint32_t i = 0; i < s->n; i++) {
        struct tsri_source_range *r = &s->ranges[i];
        if (r->result) continue;
        r->result = lease(s, request_id, r->id);
        if (r->result == 0) continue;
        n_below -= r->where == TSRI_BELOW;
        r->where = TSRI_GONE;
    }
    return n_below;
}

int tsri_lends_fetch(struct tsri_source *s, const struct tsr_prompt *prompt,
                     const atomic_bool *stop)
{
    for (uint32_t i = 0; i < s->n; i++)
        s->ranges[i].wanted.prompt = prompt;
    return tsri_source_fetch(s, stop);
}

int tsri_lends_close(struct tsri_source *s)
{
    uint64_t bytes = 0;
    uint32_t n_lent = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tsri_source_range *r = &s->ranges[i];
        if (r->result || r->where != TSRI_HERE) continue;
        bytes += r->n_tokens * tsri_shape_token_bytes(&r->wanted.space->shape);
        n_lent++;
    }
    tsri_source_close(s);
    tsri_stats_add(s->c->stats, TSRI_M_loads, s->n);
    tsri_stats_add(s->c->stats, TSRI_M_load_misses, s->n - n_lent);
    tsri_stats_add(s->c->stats, TSRI_M_load_bytes, bytes);
    return (int)n_lent;
}
