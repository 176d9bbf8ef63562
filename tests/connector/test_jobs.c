/* The states of a job, and giving one up. */
#include "connector/connector.h"
#include "support/test.h"

#include <unistd.h>

static struct tsr_worker worker;

static struct tsri_kv_job a_load(void)
{
    return (struct tsri_kv_job){
        .worker = &worker, .load = {.first = 16, .end = 48}, .failed_at = UINT32_MAX};
}

TEST(a_job_that_was_given_up_does_not_touch_memory)
{
    struct tsri_kv_job job = a_load();
    CHECK(tsri_job_touch(&job));
    tsri_job_touched(&job);
    pthread_mutex_lock(&worker.lock);
    tsri_job_give_up(&worker, &job, TSR_ETIME);
    pthread_mutex_unlock(&worker.lock);
    CHECK(!tsri_job_touch(&job));
    CHECK_INT(job.failed_at, 16); /* all of it */
    CHECK_INT(job.result, TSR_ETIME);
    tsri_job_done(&job);
}

static void *touch_for_a_while(void *arg)
{
    struct tsri_kv_job *job = arg;
    usleep(30 * 1000);
    tsri_job_touched(job);
    return NULL;
}

TEST(giving_up_waits_for_a_copy_that_is_under_way)
{
    struct tsri_kv_job job = a_load();
    pthread_t thread;
    CHECK(tsri_job_touch(&job));
    CHECK_INT(pthread_create(&thread, NULL, touch_for_a_while, &job), 0);
    pthread_mutex_lock(&worker.lock);
    tsri_job_give_up(&worker, &job, TSR_ETIME);
    CHECK(!job.touching);
    pthread_mutex_unlock(&worker.lock);
    pthread_join(thread, NULL);
}

TEST(the_first_failure_is_the_one_that_counts)
{
    struct tsri_kv_job job = a_load();
    tsri_job_fail_at(&job, 32, TSR_ENOENT);
    tsri_job_fail_at(&job, 40, TSR_EIO);
    CHECK_INT(job.failed_at, 32);
    CHECK_INT(job.result, TSR_ENOENT);
    tsri_job_fail_at(&job, 24, TSR_EIO);
    CHECK_INT(job.failed_at, 24);
}

TEST(a_save_that_is_done_cannot_be_given_up)
{
    struct tsri_kv_job job = {.worker = &worker, .is_save = true, .failed_at = UINT32_MAX};
    uint64_t before = worker.stats.saves_given_up;
    tsri_job_read(&job);
    tsri_job_done(&job);
    pthread_mutex_lock(&worker.lock);
    tsri_job_give_up(&worker, &job, TSR_ETIME);
    pthread_mutex_unlock(&worker.lock);
    CHECK_INT(job.result, 0);
    CHECK_INT(worker.stats.saves_given_up, before);
}

int main(void)
{
    pthread_mutex_init(&worker.lock, NULL);
    tsri_cond_init(&worker.changed);
    RUN(a_job_that_was_given_up_does_not_touch_memory);
    RUN(giving_up_waits_for_a_copy_that_is_under_way);
    RUN(the_first_failure_is_the_one_that_counts);
    RUN(a_save_that_is_done_cannot_be_given_up);
    return test_end();
}
