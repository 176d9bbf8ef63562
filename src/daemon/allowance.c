/* allowance.c - how much memory clients may make the server hold: requests that have not come to
 * their end or wait for a worker, and replies that are not fetched. Both are bounded by
 * server_memory, in three steps.
 *
 * Each side of a session, what it sends and what it does not fetch, has a floor that nothing else
 * can use up: small requests are taken and answered whatever others do, also others of the same
 * tenant. Beyond that a tenant has a floor, half of all divided by their number, which its sessions
 * share. Beyond that there is a stock for whoever comes first. */
#include "daemon/daemon.h"

#include <stdlib.h>

/* Half a request or reply of some size, and not so little that hello would not fit. */
#define FLOOR_MIN ((uint64_t)8 << 10)
#define FLOOR_MAX ((uint64_t)64 << 10)

int tsri_allowance_init(struct tsri_allowance *a, uint64_t memory, uint32_t n_tenants,
                        uint32_t n_sessions)
{
    *a = (struct tsri_allowance){.tenant_floor = memory / 2 / (n_tenants ? n_tenants : 1)};
    pthread_mutex_init(&a->lock, NULL);
    uint64_t n_sides = (uint64_t)n_sessions * TSRI_SIDES, quarter = memory / 4;
    uint64_t floor = quarter / (n_sides ? n_sides : 1);
    a->floor = floor < FLOOR_MIN ? FLOOR_MIN : floor > FLOOR_MAX ? FLOOR_MAX : floor;
    uint64_t floors = a->floor * n_sides;
    a->stock = memory - memory / 2 - (floors < quarter ? floors : quarter);
    a->tenants = tsri_alloc(n_tenants, sizeof *a->tenants);
    return a->tenants ? 0 : TSR_ENOMEM;
}

void tsri_allowance_fini(struct tsri_allowance *a)
{
    if (!a->tenants) return;
    tsri_free(a->tenants);
    a->tenants = NULL;
    pthread_mutex_destroy(&a->lock);
}

static uint64_t beyond(uint64_t used, uint64_t floor)
{
    return used > floor ? used - floor : 0;
}

bool tsri_allowance_take(struct tsri_allowance *a, uint64_t *side, uint32_t tenant, uint64_t bytes)
{
    bool granted = false;
    pthread_mutex_lock(&a->lock);
    uint64_t more = beyond(*side + bytes, a->floor) - beyond(*side, a->floor);
    if (more == 0) {
        granted = true;
    } else if (tenant != TSRI_TENANT_NONE) {
        uint64_t *held = &a->tenants[tenant], floor = a->tenant_floor;
        uint64_t stock = beyond(*held + more, floor) - beyond(*held, floor);
        granted = stock <= a->stock - a->stock_used;
        if (granted) {
            *held += more;
            a->stock_used += stock;
        }
    }
    if (granted) {
        *side += bytes;
        atomic_fetch_add(&a->used, bytes);
    }
    pthread_mutex_unlock(&a->lock);
    return granted;
}

void tsri_allowance_give(struct tsri_allowance *a, uint64_t *side, uint32_t tenant, uint64_t bytes)
{
    pthread_mutex_lock(&a->lock);
    TSR_ASSERT(bytes <= *side);
    uint64_t less = beyond(*side, a->floor) - beyond(*side - bytes, a->floor);
    if (less) {
        TSR_ASSERT(tenant != TSRI_TENANT_NONE && less <= a->tenants[tenant]);
        uint64_t *held = &a->tenants[tenant], floor = a->tenant_floor;
        a->stock_used -= beyond(*held, floor) - beyond(*held - less, floor);
        *held -= less;
    }
    *side -= bytes;
    atomic_fetch_sub(&a->used, bytes);
    pthread_mutex_unlock(&a->lock);
}

/* ---- of a session ---- */

static uint32_t tenant_of(const struct tsri_session *x)
{
    return x->tenant ? (uint32_t)(x->tenant - x->server->tenants) : TSRI_TENANT_NONE;
}

void *tsri_session_grow(struct tsri_session *x, enum tsri_side side, void *p, size_t old_bytes,
                        size_t bytes)
{
    struct tsri_allowance *a = &x->server->allowance;
    uint64_t more = bytes - old_bytes;
    TSR_ASSERT(bytes >= old_bytes);
    bool granted = tsri_allowance_take(a, &x->held[side], tenant_of(x), more);
    void *grown = granted ? realloc(p, bytes ? bytes : 1) : NULL;
    if (granted && !grown) tsri_allowance_give(a, &x->held[side], tenant_of(x), more);
    if (!grown) tsri_fail(TSR_EAGAIN, "this client's share of server_memory is used up");
    return grown;
}

void *tsri_session_alloc(struct tsri_session *x, enum tsri_side side, size_t bytes)
{
    return tsri_session_grow(x, side, NULL, 0, bytes);
}

void tsri_session_free(struct tsri_session *x, enum tsri_side side, void *p, size_t bytes)
{
    if (!p) return;
    free(p);
    tsri_allowance_give(&x->server->allowance, &x->held[side], tenant_of(x), bytes);
}
