/* spread.c - one piece of work done by the caller and by those threads of a queue that have nothing
 * else to do. Items are claimed one by one, the caller claims too, and waits at the end only for
 * those that a helper is working on: it never waits for a thread that is busy with other things. A
 * helper that comes later finds nothing left and touches nothing but the counter; the last one
 * frees it. */
#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

#define HELPERS_MAX 15u

struct spread_helper {
    struct tsri_job job; /* first */
    struct spread *spread;
};

struct spread {
    tsri_item_fn run;
    void *arg; /* the caller's: until all items are done */
    uint32_t n_items;
    _Atomic uint32_t n_claimed, n_refs;
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t n_done; /* under lock */
    struct spread_helper helpers[HELPERS_MAX];
};

static void unref(struct spread *s)
{
    if (atomic_fetch_sub_explicit(&s->n_refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    tsri_free(s);
}

static void work_on(struct spread *s)
{
    uint32_t n = 0;
    for (;; n++) {
        uint32_t i = atomic_fetch_add_explicit(&s->n_claimed, 1, memory_order_relaxed);
        if (i >= s->n_items) break;
        s->run(s->arg, i);
    }
    if (n == 0) return;
    pthread_mutex_lock(&s->lock);
    s->n_done += n;
    if (s->n_done == s->n_items) pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
}

static void run_helper(struct tsri_job *job)
{
    struct spread *s = ((struct spread_helper *)job)->spread;
    work_on(s);
    unref(s);
}

static void call_helpers(struct spread *s, struct tsri_work *work, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        s->helpers[i] = (struct spread_helper){.job.run = run_helper, .spread = s};
        atomic_fetch_add_explicit(&s->n_refs, 1, memory_order_relaxed);
        if (tsri_work_push_idle(work, &s->helpers[i].job)) continue;
        unref(s);
        return;
    }
}

void tsri_spread(struct tsri_work *work, uint32_t n_helpers, uint32_t n_items, tsri_item_fn run,
                 void *arg)
{
    n_helpers = n_items ? tsri_min_u32(tsri_min_u32(n_helpers, n_items - 1), HELPERS_MAX) : 0;
    struct spread *s = n_helpers ? tsri_alloc(1, sizeof *s) : NULL;
    if (!s) {
        for (uint32_t i = 0; i < n_items; i++)
            run(arg, i);
        return;
    }
    s->run = run;
    s->arg = arg;
    s->n_items = n_items;
    atomic_init(&s->n_refs, 1);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->done, NULL);
    call_helpers(s, work, n_helpers);
    work_on(s);
    pthread_mutex_lock(&s->lock);
    while (s->n_done < s->n_items)
        pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
    unref(s);
}
