/* losses.c - what was stored and could not be kept, counted; and what each thread knows of it. A
 * flush answers for what its caller stored, whoever asked first: every thread that asks is told of
 * every loss, once. A thread whose first store comes after a loss hears of it only if no thread has:
 * those who stored may have ended, and every loss is told to someone.
 *
 * A thread remembers for itself how much it was told, for a few caches. Of one that it may have
 * forgotten it is told everything again: never too little. */
#include "cache/core.h"

#define CACHES_KNOWN 16u

/* Numbers of caches only grow: one above `forgotten` and without a place was never stored to by
 * this thread. */
static _Thread_local struct told {
    uint64_t number, n; /* of a cache, 0: none; was told of its first n losses */
} places[CACHES_KNOWN];
static _Thread_local uint64_t forgotten;

static struct told *find_place(const struct tsri_losses *l)
{
    for (uint32_t i = 0; i < CACHES_KNOWN; i++)
        if (places[i].number == l->number) return &places[i];
    return NULL;
}

/* An empty one, or that of the oldest cache. */
static struct told *take_place(const struct tsri_losses *l)
{
    struct told *oldest = &places[0];
    for (uint32_t i = 1; i < CACHES_KNOWN; i++)
        if (places[i].number < oldest->number) oldest = &places[i];
    if (oldest->number > forgotten) forgotten = oldest->number;
    *oldest = (struct told){.number = l->number};
    return oldest;
}

void tsri_losses_init(struct tsri_losses *l)
{
    static _Atomic uint64_t last;
    l->number = atomic_fetch_add(&last, 1) + 1;
    atomic_init(&l->n, 0);
    atomic_init(&l->n_told, 0);
}

void tsri_losses_add(struct tsri_losses *l, uint64_t n)
{
    atomic_fetch_add(&l->n, n);
}

uint64_t tsri_losses_count(const struct tsri_losses *l)
{
    return atomic_load(&l->n);
}

/* Marks the first n losses as told to some thread. */
static void note_told(struct tsri_losses *l, uint64_t n)
{
    uint64_t before = atomic_load(&l->n_told);
    while (before < n && !atomic_compare_exchange_weak(&l->n_told, &before, n))
        continue;
}

void tsri_losses_join(const struct tsri_losses *l)
{
    if (find_place(l) || l->number <= forgotten) return;
    take_place(l)->n = atomic_load(&l->n_told);
}

uint64_t tsri_losses_tell(struct tsri_losses *l)
{
    struct told *t = find_place(l);
    if (!t) t = take_place(l);
    uint64_t before = t->n;
    t->n = atomic_load(&l->n);
    note_told(l, t->n);
    return t->n - before;
}
