/* jobs.c - the states of a worker's jobs. A lane's thread does a job; the engine's thread waits for
 * it, asks what has become of it, or gives it up. Giving up is what makes every wait end: from then
 * on the job may go on waiting for a disk or a server, but it never touches the engine's memory
 * again, so the engine may do with its blocks what it likes. A device that queues cannot be stopped:
 * giving up then waits until it has done what was queued. That is bounded by the bus, because
 * nothing is queued before all of it is in memory. */
#include "connector/connector.h"

/* Under lock. Only for the engine's thread, and only if it waits for this job: a step may load for a
 * thousand requests, and each wake-up costs it more than looking at a job. */
static void wake(const struct tsri_kv_job *job)
{
    if (job->worker->awaited == job) pthread_cond_broadcast(&job->worker->changed);
}

bool tsri_job_await(struct tsri_kv_job *job, uint64_t until_ns)
{
    struct tsr_worker *w = job->worker;
    w->awaited = job;
    bool in_time = tsri_cond_wait(&w->changed, &w->lock, until_ns);
    w->awaited = NULL;
    return in_time;
}

bool tsri_job_touch(struct tsri_kv_job *job)
{
    struct tsr_worker *w = job->worker;
    pthread_mutex_lock(&w->lock);
    bool may = !job->given_up;
    if (may) job->touching = true;
    pthread_mutex_unlock(&w->lock);
    return may;
}

void tsri_job_touched(struct tsri_kv_job *job)
{
    struct tsr_worker *w = job->worker;
    pthread_mutex_lock(&w->lock);
    job->touching = false;
    wake(job);
    pthread_mutex_unlock(&w->lock);
}

void tsri_job_layers(struct tsri_kv_job *job, uint32_t group, uint32_t n_layers)
{
    struct tsr_worker *w = job->worker;
    pthread_mutex_lock(&w->lock);
    job->layers_ready[group] = n_layers;
    wake(job);
    pthread_mutex_unlock(&w->lock);
}

void tsri_job_queued(struct tsri_kv_job *job)
{
    struct tsr_worker *w = job->worker;
    pthread_mutex_lock(&w->lock);
    job->queued = true;
    wake(job);
    pthread_mutex_unlock(&w->lock);
}

void tsri_job_fail_at(struct tsri_kv_job *job, uint32_t token, int err)
{
    struct tsr_worker *w = job->worker;
    pthread_mutex_lock(&w->lock);
    if (token < job->failed_at) job->failed_at = token;
    if (!job->result) job->result = err;
    pthread_mutex_unlock(&w->lock);
}

static void advance(struct tsri_kv_job *job, enum tsri_job_state state)
{
    struct tsr_worker *w = job->worker;
    pthread_mutex_lock(&w->lock);
    TSR_ASSERT(state > job->state && !job->touching);
    job->state = state;
    wake(job);
    /* Who reads DONE may free the job. */
    pthread_mutex_unlock(&w->lock);
}

void tsri_job_read(struct tsri_kv_job *job)
{
    advance(job, TSRI_JOB_READ);
}

void tsri_job_done(struct tsri_kv_job *job)
{
    advance(job, TSRI_JOB_DONE);
}

void tsri_job_give_up(struct tsr_worker *w, struct tsri_kv_job *job, int err)
{
    job->given_up = true;
    while (job->touching)
        (void)tsri_job_await(job, 0);
    if (job->state == TSRI_JOB_DONE) return;
    if (!job->result) job->result = err;
    /* Which of its layers are in place is no longer of interest. */
    if (!job->is_save) job->failed_at = job->load.first;
    if (job->is_save) w->stats.saves_given_up++;
}
