/* shares.c - what each tenant may have of what all of them share: turns of the loop, workers and
 * places for clients. One rule for all: every tenant has a floor that is always its own, and what
 * is left beyond the floors is a stock for whoever comes first. So a tenant that is alone may use
 * everything but the floors of the others, and one that comes late finds at least its own.
 *
 * Turns are given to tenants in a circle, and by a tenant to its sessions in the order in which
 * they asked: a tenant with a hundred sessions is served as often as one that has a single one.
 *
 * All of it belongs to the loop's thread. */
#include "daemon/daemon.h"

/* ---- the rule ---- */

bool tsri_stock_take(struct tsri_stock *k, uint32_t floor, uint32_t *held)
{
    bool above = *held >= floor;
    if (above && k->used == k->spare) return false;
    k->used += above;
    ++*held;
    return true;
}

void tsri_stock_give(struct tsri_stock *k, uint32_t floor, uint32_t *held)
{
    TSR_ASSERT(*held > 0);
    k->used -= *held > floor;
    --*held;
}

/* ---- lists of sessions ---- */

static void list_init(struct tsri_spot *list)
{
    list->prev = list->next = list;
}

static bool is_listed(const struct tsri_spot *t)
{
    return t->next != NULL;
}

static void list_add(struct tsri_spot *list, struct tsri_spot *t, struct tsri_session *x)
{
    if (is_listed(t)) return;
    *t = (struct tsri_spot){.prev = list->prev, .next = list, .session = x};
    list->prev->next = t;
    list->prev = t;
}

static void list_remove(struct tsri_spot *t)
{
    if (!is_listed(t)) return;
    t->prev->next = t->next;
    t->next->prev = t->prev;
    t->prev = t->next = NULL;
}

static struct tsri_session *list_pop(struct tsri_spot *list)
{
    struct tsri_spot *t = list->next;
    if (t == list) return NULL;
    list_remove(t);
    return t->session;
}

/* ---- places ---- */

int tsri_shares_init(struct tsr_server *s, uint32_t n_workers)
{
    uint32_t n = s->n_tenants;
    TSR_ASSERT(n > 0);
    s->shares = tsri_alloc((size_t)n + 1, sizeof *s->shares);
    if (!s->shares) return TSR_ENOMEM;
    s->n_shares = n + 1;
    for (uint32_t i = 0; i <= n; i++) {
        list_init(&s->shares[i].ready);
        list_init(&s->shares[i].waits);
    }
    /* Half of all places are floors. Those who have not said who they are have one too, so that a
     * tenant with a token finds the door open when another one of its uid has taken all it could.
     */
    uint32_t n_floors = n > 1 ? n + 1 : n, floor = s->roster.max / (2 * n_floors);
    for (uint32_t i = 0; i < n_floors; i++)
        s->shares[i].places_floor = floor;
    s->places.spare = s->roster.max - n_floors * floor;
    /* A tenant that is alone leaves the order to the workers' own queue: nobody is to be kept from
     * anything, and a worker finds its next call without asking the loop. */
    s->workers.spare = n > 1 ? n_workers - 1 : s->roster.max;
    return 0;
}

void tsri_shares_fini(struct tsr_server *s)
{
    tsri_free(s->shares);
    s->shares = NULL;
    s->n_shares = 0;
}

uint32_t tsri_shares_threads(const struct tsr_server *s, uint32_t n_workers)
{
    return n_workers - 1 + s->n_tenants;
}

struct tsri_share *tsri_share_of(const struct tsr_server *s, const struct tsri_tenant *tenant)
{
    return &s->shares[tenant ? (size_t)(tenant - s->tenants) : s->n_tenants];
}

int tsri_share_join(struct tsri_session *x, struct tsri_share *share)
{
    struct tsr_server *s = x->server;
    if (share == x->share) return 0;
    tsri_share_leave(x);
    if (!tsri_stock_take(&s->places, share->places_floor, &share->n_places))
        return tsri_fail(
            TSR_EAGAIN, "its tenant has %u clients; the rest of clients_max is reserved for others",
            share->n_places);
    x->share = share;
    return 0;
}

void tsri_share_unlist(struct tsri_session *x)
{
    list_remove(&x->ready);
    list_remove(&x->waits);
}

void tsri_share_leave(struct tsri_session *x)
{
    if (!x->share) return;
    TSR_ASSERT(!x->running);
    tsri_share_unlist(x);
    tsri_stock_give(&x->server->places, x->share->places_floor, &x->share->n_places);
    x->share = NULL;
}

/* ---- turns of the loop ---- */

void tsri_share_ready(struct tsri_session *x, uint32_t events)
{
    if (x->state == TSRI_SESSION_ENDED) return;
    if (!is_listed(&x->ready)) x->ready_events = 0;
    x->ready_events |= events;
    list_add(&x->share->ready, &x->ready, x);
}

struct tsri_session *tsri_share_turn(struct tsri_share *share)
{
    return list_pop(&share->ready);
}

bool tsri_shares_are_ready(const struct tsr_server *s)
{
    for (uint32_t i = 0; i < s->n_shares; i++)
        if (s->shares[i].ready.next != &s->shares[i].ready) return true;
    return false;
}

/* ---- workers ---- */

/* Every tenant has one worker of its own, whatever the others do: the call of one that has none
 * running never waits for a call of another tenant. */
#define WORKERS_FLOOR 1u

/* Starts calls, a tenant after the other, until all that wait have to. */
static void dispatch(struct tsr_server *s)
{
    for (uint32_t idle = 0; idle < s->n_shares; idle++) {
        struct tsri_share *share = &s->shares[s->share_next];
        s->share_next = (s->share_next + 1) % s->n_shares;
        if (share->waits.next == &share->waits) continue;
        if (!tsri_stock_take(&s->workers, WORKERS_FLOOR, &share->n_running)) continue;
        tsri_lane_start(list_pop(&share->waits));
        idle = UINT32_MAX; /* begins from 0 again */
    }
}

void tsri_share_start(struct tsri_session *x)
{
    list_add(&x->share->waits, &x->waits, x);
    dispatch(x->server);
}

void tsri_share_done(struct tsri_session *x)
{
    tsri_stock_give(&x->server->workers, WORKERS_FLOOR, &x->share->n_running);
    dispatch(x->server);
}
