/* work.c - a bounded queue of jobs served by a fixed number of named threads. Threads are started
 * at open and joined at close; a full queue refuses, it never grows. */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define THREADS_MAX 256u

void tsri_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool tsri_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    if (!deadline_ns) return pthread_cond_wait(cond, lock) == 0;
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                             .tv_nsec = (long)(deadline_ns % 1000000000)};
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

int tsri_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
    sigset_t all, old;
    char shown[16]; /* a longer name would be refused */
    snprintf(shown, sizeof shown, "%s", name);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!e) pthread_setname_np(*thread, shown);
    return e;
}

struct tsri_work {
    pthread_mutex_t lock;
    pthread_cond_t more, idle;
    struct tsri_job *head, **tail;
    uint32_t n_queued, queue_max;
    uint32_t n_busy;
    bool closing;
    uint32_t n_threads;
    pid_t owner;
    char name[16];
    pthread_t threads[];
};

static void *worker(void *arg)
{
    struct tsri_work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->head && !w->closing)
            pthread_cond_wait(&w->more, &w->lock);
        struct tsri_job *job = w->head;
        if (!job) break;
        w->head = job->next;
        if (!w->head) w->tail = &w->head;
        w->n_queued--;
        w->n_busy++;
        pthread_mutex_unlock(&w->lock);
        job->run(job);
        pthread_mutex_lock(&w->lock);
        w->n_busy--;
        if (!w->head && !w->n_busy) pthread_cond_broadcast(&w->idle);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int start_thread(struct tsri_work *w, uint32_t i)
{
    char name[32];
    snprintf(name, sizeof name, "%s-%u", w->name, i);
    int e = tsri_thread_start(&w->threads[i], name, worker, w);
    return e ? tsri_fail(TSR_ENOMEM, "cannot start a thread: %s", strerror(e)) : 0;
}

int tsri_work_open(struct tsri_work **out, const char *name, uint32_t n_threads, uint32_t queue_max)
{
    *out = NULL;
    if (n_threads == 0 || n_threads > THREADS_MAX || queue_max == 0)
        return tsri_fail(TSR_EINVAL, "invalid number of threads (%u) or queue size (%u)", n_threads,
                         queue_max);
    struct tsri_work *w = tsri_alloc(1, sizeof *w + n_threads * sizeof w->threads[0]);
    if (!w) return TSR_ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    pthread_cond_init(&w->idle, NULL);
    w->tail = &w->head;
    w->queue_max = queue_max;
    w->owner = getpid();
    snprintf(w->name, sizeof w->name, "%s", name);
    for (; w->n_threads < n_threads; w->n_threads++) {
        int e = start_thread(w, w->n_threads);
        if (e) {
            tsri_work_close(w);
            return e;
        }
    }
    *out = w;
    return 0;
}

void tsri_work_close(struct tsri_work *w)
{
    if (!w) return;
    if (w->owner != getpid()) { /* the threads are the parent's, and so is who holds the lock */
        tsri_free(w);
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->idle);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    tsri_free(w);
}

/* False when the queue is full or, with `idle`, when no thread would take it at once. */
static bool push(struct tsri_work *w, struct tsri_job *job, bool idle)
{
    job->next = NULL;
    pthread_mutex_lock(&w->lock);
    bool may = idle ? w->n_queued + w->n_busy < w->n_threads : w->n_queued < w->queue_max;
    if (may) {
        *w->tail = job;
        w->tail = &job->next;
        w->n_queued++;
        pthread_cond_signal(&w->more);
    }
    pthread_mutex_unlock(&w->lock);
    return may;
}

int tsri_work_push(struct tsri_work *w, struct tsri_job *job)
{
    if (push(w, job, false)) return 0;
    return tsri_fail(TSR_EAGAIN, "%s: queue of %u jobs is full", w->name, w->queue_max);
}

bool tsri_work_push_idle(struct tsri_work *w, struct tsri_job *job)
{
    return push(w, job, true);
}

void tsri_work_drain(struct tsri_work *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->head || w->n_busy)
        pthread_cond_wait(&w->idle, &w->lock);
    pthread_mutex_unlock(&w->lock);
}
