/* session_pool.c - KV memory of tasks. Opening a session takes memory and time; one that is given back
 * stays open for the next task that fits into it. */
#include "serve/task.h"

#define ROUND 512u /* slots of a session are a multiple, so that tasks fit into those of others */

int tsri_session_pool_init(struct tsri_session_pool *p, struct tsr_model *model,
                           uint32_t n_slots_max, uint32_t sessions_max)
{
    struct tsr_model_info info = {.size = sizeof info};
    int e = tsr_model_info(model, &info);
    if (e) return e;
    *p = (struct tsri_session_pool){
        .model = model, .max = sessions_max, .n_slots_max = n_slots_max, .context = info.context};
    p->items = tsri_alloc(sessions_max, sizeof *p->items);
    return p->items ? 0 : TSR_ENOMEM;
}

static void drop(struct tsri_spare_session *one)
{
    tsr_session_close(one->session);
    *one = (struct tsri_spare_session){0};
}

void tsri_session_pool_fini(struct tsri_session_pool *p)
{
    for (uint32_t i = 0; p->items && i < p->max; i++)
        drop(&p->items[i]);
    tsri_free(p->items);
    *p = (struct tsri_session_pool){0};
}

uint32_t tsri_session_pool_round(const struct tsri_session_pool *p, uint32_t n)
{
    uint64_t up = tsri_align_up(n, ROUND);
    return up < p->context ? (uint32_t)up : p->context;
}

uint32_t tsri_session_pool_slots(const struct tsri_session_pool *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->max; i++)
        n += p->items[i].n_slots;
    return n;
}

bool tsri_session_pool_fits(const struct tsri_session_pool *p, uint32_t n)
{
    uint64_t taken = tsri_session_pool_round(p, n);
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < p->max; i++) {
        if (!p->items[i].taken) continue;
        taken += p->items[i].n_slots;
        n_taken++;
    }
    return n_taken < p->max && taken <= p->n_slots_max;
}

/* The smallest spare one of at least n slots; NULL: none. */
static struct tsri_spare_session *smallest(const struct tsri_session_pool *p, uint32_t n)
{
    struct tsri_spare_session *best = NULL;
    for (uint32_t i = 0; i < p->max; i++) {
        struct tsri_spare_session *one = &p->items[i];
        if (!one->session || one->taken || one->n_slots < n) continue;
        if (!best || one->n_slots < best->n_slots) best = one;
    }
    return best;
}

/* A free entry, after closing spare sessions, those of longest ago first, until n slots fit. */
static struct tsri_spare_session *make_room(struct tsri_session_pool *p, uint32_t n)
{
    for (;;) {
        struct tsri_spare_session *room = NULL, *oldest = NULL;
        for (uint32_t i = 0; i < p->max; i++) {
            struct tsri_spare_session *one = &p->items[i];
            if (!one->session)
                room = one;
            else if (!one->taken && (!oldest || one->given_at < oldest->given_at))
                oldest = one;
        }
        if (room && (uint64_t)tsri_session_pool_slots(p) + n <= p->n_slots_max) return room;
        if (!oldest) return NULL;
        drop(oldest);
    }
}

int tsri_session_pool_take(struct tsri_session_pool *p, uint32_t n, struct tsr_session **out)
{
    uint32_t n_slots = tsri_session_pool_round(p, n);
    struct tsri_spare_session *one = smallest(p, n_slots);
    *out = NULL;
    if (!one) {
        one = make_room(p, n_slots);
        if (!one) return tsri_fail(TSR_EAGAIN, "engine: no room for %u tokens now", n);
        int e = tsr_session_open(&one->session, p->model, n_slots);
        if (e) return e;
        one->n_slots = n_slots;
        tsr_session_cut(one->session, p->n_rows_cut);
    }
    one->taken = true;
    *out = one->session;
    return 0;
}

void tsri_session_pool_give(struct tsri_session_pool *p, struct tsr_session *session, bool spoiled)
{
    for (uint32_t i = 0; session && i < p->max; i++) {
        if (p->items[i].session != session) continue;
        p->items[i].taken = false;
        p->items[i].given_at = ++p->clock;
        if (spoiled) drop(&p->items[i]);
        return;
    }
}
