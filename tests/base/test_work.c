/* The bounded job queue and its threads. */
#include "base/base.h"
#include "support/test.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>
#include <sys/wait.h>

struct counted {
    struct tsri_job job;
    atomic_int *count;
    sem_t *gate;
};

static void count_up(struct tsri_job *job)
{
    struct counted *c = (struct counted *)job;
    if (c->gate) sem_wait(c->gate);
    atomic_fetch_add(c->count, 1);
}

TEST(every_pushed_job_runs_once_before_drain_returns)
{
    struct tsri_work *w;
    atomic_int count = 0;
    struct counted jobs[100];
    CHECK_INT(tsri_work_open(&w, "test", 3, 100), 0);
    for (int i = 0; i < 100; i++) {
        jobs[i] = (struct counted){{count_up, NULL}, &count, NULL};
        CHECK_INT(tsri_work_push(w, &jobs[i].job), 0);
    }
    tsri_work_drain(w);
    CHECK_INT(atomic_load(&count), 100);
    tsri_work_close(w);
}

TEST(a_full_queue_refuses_and_goes_on_later)
{
    struct tsri_work *w;
    atomic_int count = 0;
    sem_t gate;
    sem_init(&gate, 0, 0);
    struct counted jobs[8];
    CHECK_INT(tsri_work_open(&w, "test", 1, 2), 0);
    int accepted = 0, refused = 0;
    for (int i = 0; i < 8; i++) {
        jobs[i] = (struct counted){{count_up, NULL}, &count, &gate};
        int e = tsri_work_push(w, &jobs[i].job);
        if (e == 0) accepted++;
        if (e == TSR_EAGAIN) refused++;
    }
    CHECK(accepted >= 2 && accepted <= 3);
    CHECK_INT(accepted + refused, 8);
    CHECK_HAS(tsr_errmsg(), "full");
    for (int i = 0; i < accepted; i++)
        sem_post(&gate);
    tsri_work_drain(w);
    CHECK_INT(atomic_load(&count), accepted);
    tsri_work_close(w);
    sem_destroy(&gate);
}

TEST(close_runs_what_is_queued)
{
    struct tsri_work *w;
    atomic_int count = 0;
    struct counted jobs[50];
    CHECK_INT(tsri_work_open(&w, "test", 1, 50), 0);
    for (int i = 0; i < 50; i++) {
        jobs[i] = (struct counted){{count_up, NULL}, &count, NULL};
        CHECK_INT(tsri_work_push(w, &jobs[i].job), 0);
    }
    tsri_work_close(w);
    CHECK_INT(atomic_load(&count), 50);
    tsri_work_close(NULL);
}

TEST(close_in_a_forked_child_waits_for_nobody)
{
    struct tsri_work *w;
    CHECK_INT(tsri_work_open(&w, "test", 2, 4), 0);
    tsri_work_drain(w);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(20);
        tsri_work_close(w);
        _exit(0);
    }
    int status;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tsri_work_close(w);
}

struct asks_its_name {
    struct tsri_job job;
    pthread_barrier_t *all; /* NULL: it asks alone */
    char name[16];
};

static void ask_name(struct tsri_job *job)
{
    struct asks_its_name *a = (struct asks_its_name *)job;
    if (a->all) pthread_barrier_wait(a->all);
    pthread_getname_np(pthread_self(), a->name, sizeof a->name);
}

TEST(threads_have_the_whole_name)
{
    struct tsri_work *w;
    struct asks_its_name a = {.job.run = ask_name};
    CHECK_INT(tsri_work_open(&w, "tessera-fetch", 1, 1), 0);
    CHECK_INT(tsri_work_push(w, &a.job), 0);
    tsri_work_close(w);
    CHECK_STR(a.name, "tessera-fetch-0");
}

TEST(threads_whose_name_is_too_long_have_the_beginning_of_it)
{
    enum { N = 101 };
    struct tsri_work *w;
    struct asks_its_name a[N];
    pthread_barrier_t all;
    pthread_barrier_init(&all, NULL, N); /* each of them runs one job */
    CHECK_INT(tsri_work_open(&w, "tessera-fetch", N, N), 0);
    for (int i = 0; i < N; i++) {
        a[i] = (struct asks_its_name){.job.run = ask_name, .all = &all};
        CHECK_INT(tsri_work_push(w, &a[i].job), 0);
    }
    tsri_work_close(w);
    for (int i = 0; i < N; i++)
        CHECK_HAS(a[i].name, "tessera-fetch-");
    pthread_barrier_destroy(&all);
}

TEST(absurd_sizes_are_refused)
{
    struct tsri_work *w;
    CHECK_INT(tsri_work_open(&w, "test", 0, 1), TSR_EINVAL);
    CHECK_INT(tsri_work_open(&w, "test", 1, 0), TSR_EINVAL);
    CHECK_INT(tsri_work_open(&w, "test", 100000, 1), TSR_EINVAL);
    CHECK(w == NULL);
}

TEST(a_wait_ends_at_its_deadline)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    tsri_cond_init(&cond);
    pthread_mutex_lock(&lock);
    uint64_t until = tsri_now_ns() + 3000000;
    while (tsri_cond_wait(&cond, &lock, until))
        ;
    CHECK(tsri_now_ns() >= until);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
}

TEST(a_job_for_idle_threads_is_not_queued_behind_others)
{
    struct tsri_work *w;
    atomic_int count = 0;
    sem_t gate;
    sem_init(&gate, 0, 0);
    struct counted jobs[3];
    for (int i = 0; i < 3; i++)
        jobs[i] = (struct counted){{count_up, NULL}, &count, &gate};
    CHECK_INT(tsri_work_open(&w, "test", 2, 16), 0);
    CHECK(tsri_work_push_idle(w, &jobs[0].job));
    CHECK(tsri_work_push_idle(w, &jobs[1].job));
    CHECK(!tsri_work_push_idle(w, &jobs[2].job));
    sem_post(&gate);
    sem_post(&gate);
    tsri_work_drain(w);
    CHECK_INT(atomic_load(&count), 2);
    tsri_work_close(w);
    sem_destroy(&gate);
}

int main(void)
{
    RUN(every_pushed_job_runs_once_before_drain_returns);
    RUN(a_full_queue_refuses_and_goes_on_later);
    RUN(close_runs_what_is_queued);
    RUN(close_in_a_forked_child_waits_for_nobody);
    RUN(threads_have_the_whole_name);
    RUN(threads_whose_name_is_too_long_have_the_beginning_of_it);
    RUN(absurd_sizes_are_refused);
    RUN(a_wait_ends_at_its_deadline);
    RUN(a_job_for_idle_threads_is_not_queued_behind_others);
    return test_end();
}
