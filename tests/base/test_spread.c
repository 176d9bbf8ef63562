/* One piece of work for the caller and idle threads. */
#include "base/base.h"
#include "support/test.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

struct items {
    atomic_int counts[100];
    pthread_t caller;
    atomic_int n_helped;
    sem_t *gate; /* the caller's first item waits for it, and a helper's posts it */
};

static void run_item(void *arg, uint32_t i)
{
    struct items *x = arg;
    atomic_fetch_add(&x->counts[i], 1);
    bool helper = !pthread_equal(pthread_self(), x->caller);
    if (helper) atomic_fetch_add(&x->n_helped, 1);
    if (!x->gate) return;
    if (helper)
        sem_post(x->gate);
    else if (atomic_load(&x->n_helped) == 0)
        sem_wait(x->gate);
}

static void check_once(struct items *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        CHECK_INT(atomic_load(&x->counts[i]), 1);
}

TEST(every_item_is_done_once_however_many_help)
{
    struct tsri_work *w;
    CHECK_INT(tsri_work_open(&w, "test", 3, 16), 0);
    static const uint32_t sizes[] = {0, 1, 2, 7, 100};
    for (uint32_t helpers = 0; helpers < 20; helpers += 3)
        for (size_t k = 0; k < TSRI_COUNT(sizes); k++) {
            struct items x = {.caller = pthread_self()};
            tsri_spread(w, helpers, sizes[k], run_item, &x);
            check_once(&x, sizes[k]);
        }
    tsri_work_close(w);
}

TEST(an_idle_thread_helps)
{
    struct tsri_work *w;
    sem_t gate;
    sem_init(&gate, 0, 0);
    CHECK_INT(tsri_work_open(&w, "test", 1, 4), 0);
    struct items x = {.caller = pthread_self(), .gate = &gate};
    tsri_spread(w, 1, 10, run_item, &x);
    check_once(&x, 10);
    CHECK(atomic_load(&x.n_helped) > 0);
    tsri_work_close(w);
    sem_destroy(&gate);
}

struct blocker {
    struct tsri_job job;
    sem_t *gate;
};

static void block(struct tsri_job *job)
{
    sem_wait(((struct blocker *)job)->gate);
}

/* The helper comes when everything is over, and the items are not there any more. */
TEST(a_busy_thread_is_not_waited_for)
{
    struct tsri_work *w;
    sem_t gate;
    sem_init(&gate, 0, 0);
    CHECK_INT(tsri_work_open(&w, "test", 1, 4), 0);
    struct blocker b = {{block, NULL}, &gate};
    CHECK_INT(tsri_work_push(w, &b.job), 0);
    struct items x = {.caller = pthread_self()};
    tsri_spread(w, 3, 10, run_item, &x);
    check_once(&x, 10);
    CHECK_INT(atomic_load(&x.n_helped), 0);
    sem_post(&gate);
    tsri_work_close(w);
    sem_destroy(&gate);
}

int main(void)
{
    RUN(every_item_is_done_once_however_many_help);
    RUN(an_idle_thread_helps);
    RUN(a_busy_thread_is_not_waited_for);
    return test_end();
}
