/* roster.c - the list of a server's sessions. What epoll reports is the number of a row and its
 * generation, never a pointer: a batch of events may tell of a session that an earlier event of the
 * same batch has ended, and a number can be found to mean nothing where a pointer cannot. The
 * generation grows when a row is given back, so that an old number never means its next session.
 *
 * A row is held until its session is freed, also while that only waits for its worker. So there are
 * never more jobs than rows, whatever clients do. */
#include "daemon/daemon.h"

#define KIND_BITS 2u

int tsri_roster_init(struct tsri_roster *p, uint32_t max)
{
    *p = (struct tsri_roster){.max = max};
    TSR_ASSERT(max <= UINT32_MAX >> KIND_BITS);
    p->list = tsri_alloc(max, sizeof *p->list);
    if (!p->list) return TSR_ENOMEM;
    for (uint32_t i = 0; i < max; i++)
        p->list[i].next_free = i + 1;
    return 0;
}

void tsri_roster_fini(struct tsri_roster *p)
{
    tsri_free(p->list);
    *p = (struct tsri_roster){0};
}

bool tsri_roster_take(struct tsri_roster *p, struct tsri_session *x, uint32_t *row)
{
    if (p->n_used == p->max) return false;
    *row = p->first_free;
    p->first_free = p->list[*row].next_free;
    p->list[*row].session = x;
    p->n_used++;
    return true;
}

void tsri_roster_give(struct tsri_roster *p, uint32_t row)
{
    struct tsri_roster_row *at = &p->list[row];
    TSR_ASSERT(row < p->max && at->session);
    at->session = NULL;
    at->generation++;
    at->next_free = p->first_free;
    p->first_free = row;
    p->n_used--;
}

uint64_t tsri_roster_event(const struct tsri_roster *p, uint32_t row, enum tsri_watch kind)
{
    return (uint64_t)p->list[row].generation << 32 | row << KIND_BITS | kind;
}

enum tsri_watch tsri_event_watch(uint64_t event)
{
    return (enum tsri_watch)(event & ((1u << KIND_BITS) - 1));
}

struct tsri_session *tsri_roster_at(const struct tsri_roster *p, uint64_t event)
{
    uint32_t row = (uint32_t)event >> KIND_BITS;
    if (row >= p->max || p->list[row].generation != (uint32_t)(event >> 32)) return NULL;
    return p->list[row].session;
}
