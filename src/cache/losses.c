/* losses.c - what was stored and could not be kept, counted; and which threads know of it. A flush
 * answers for what its caller stored, whoever asked first: so every thread that asks is told of
 * every loss, once.
 *
 * Threads have places in a small table. One whose place another has taken is told again: that is
 * the safe side. */
#include "cache/cache.h"

#include <unistd.h>

/* The number of this thread. The kernel gives the numbers of threads that ended to others, so the
 * time is part of it. */
static uint64_t my_number(void)
{
    static _Thread_local uint64_t number;
    if (!number) number = (tsri_now_ns() << 20 ^ (uint64_t)gettid()) | 1;
    return number;
}

static struct tsri_told *my_place(struct tsri_losses *l)
{
    return &l->told[my_number() * 0x9E3779B97F4A7C15u >> 56];
}

void tsri_losses_init(struct tsri_losses *l)
{
    _Static_assert(TSRI_COUNT(l->told) == 256, "a place is the upper byte of a hash");
    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
}

void tsri_losses_fini(struct tsri_losses *l)
{
    pthread_mutex_destroy(&l->lock);
}

void tsri_losses_add(struct tsri_losses *l, uint64_t n)
{
    pthread_mutex_lock(&l->lock);
    l->n += n;
    pthread_mutex_unlock(&l->lock);
}

uint64_t tsri_losses_count(struct tsri_losses *l)
{
    pthread_mutex_lock(&l->lock);
    uint64_t n = l->n;
    pthread_mutex_unlock(&l->lock);
    return n;
}

/* Before the first loss nobody needs a place: those who have none were told of none. */
void tsri_losses_join(struct tsri_losses *l)
{
    pthread_mutex_lock(&l->lock);
    struct tsri_told *t = my_place(l);
    if (l->n && t->thread != my_number()) *t = (struct tsri_told){.thread = my_number(), .n = l->n};
    pthread_mutex_unlock(&l->lock);
}

uint64_t tsri_losses_tell(struct tsri_losses *l)
{
    pthread_mutex_lock(&l->lock);
    struct tsri_told *t = my_place(l);
    uint64_t n = l->n - (t->thread == my_number() ? t->n : 0);
    if (n) *t = (struct tsri_told){.thread = my_number(), .n = l->n};
    pthread_mutex_unlock(&l->lock);
    return n;
}
