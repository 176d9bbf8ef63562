/* Error numbers, their texts, and the per-thread message. */
#include "base/base.h"
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

struct row {
    int number;
    const char *text;
};
#define ROW(name, number, text) {number, text},
static const struct row rows[] = {TSR_ERRORS(ROW)};
#undef ROW

TEST(every_error_has_its_own_number_below_zero_and_its_own_text)
{
    for (size_t i = 0; i < TSRI_COUNT(rows); i++) {
        CHECK(rows[i].number < 0);
        CHECK_STR(tsr_strerror(rows[i].number), rows[i].text);
        for (size_t j = 0; j < i; j++) {
            CHECK(rows[i].number != rows[j].number);
            CHECK(strcmp(rows[i].text, rows[j].text) != 0);
        }
    }
}

/* Programs and other languages hold these numbers: they are never reused or moved. */
TEST(the_numbers_are_those_of_the_first_release)
{
    CHECK_INT(TSR_OK, 0);
    CHECK_INT(TSR_EINVAL, -1);
    CHECK_INT(TSR_ENOMEM, -2);
    CHECK_INT(TSR_EIO, -3);
    CHECK_INT(TSR_EAGAIN, -4);
    CHECK_INT(TSR_EFULL, -5);
    CHECK_INT(TSR_ENOENT, -6);
    CHECK_INT(TSR_ERANGE, -7);
    CHECK_INT(TSR_ECONFIG, -8);
    CHECK_INT(TSR_EVERSION, -9);
    CHECK_INT(TSR_ETIME, -10);
    CHECK_INT(TSR_EFORK, -11);
    CHECK_INT(TSR_EPERM, -12);
    CHECK_INT(TSR_ECORRUPT, -13);
    CHECK_INT(TSR_EFROZEN, -14);
    CHECK_INT(TSR_EUNSUP, -15);
    CHECK_INT(TSR_EBUSY, -16);
    CHECK_INT(TSR_ESPACE, -17);
    CHECK_INT(TSR_EPROMPT, -18);
    CHECK_INT(TSR_EDEVICE, -19);
}

TEST(success_and_unknown_numbers_have_a_text_too)
{
    CHECK_STR(tsr_strerror(0), "success");
    CHECK_STR(tsr_strerror(12), "success");
    CHECK_STR(tsr_strerror(-1000), "unknown error");
}

TEST(fail_returns_its_number_and_sets_the_message)
{
    CHECK_INT(tsri_fail(TSR_ERANGE, "%s is %d", "it", 7), TSR_ERANGE);
    CHECK_STR(tsr_errmsg(), "it is 7");
}

TEST(a_message_may_wrap_the_one_before)
{
    tsri_fail(TSR_EIO, "the cause");
    CHECK_INT(tsri_fail(TSR_EIO, "the act: %s", tsr_errmsg()), TSR_EIO);
    CHECK_STR(tsr_errmsg(), "the act: the cause");
}

TEST(a_message_that_is_too_long_is_cut_and_ended)
{
    char text[4096];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK_INT(tsri_fail(TSR_EINVAL, "%s", text), TSR_EINVAL);
    size_t n = strlen(tsr_errmsg());
    CHECK(n >= 255 && n < sizeof text - 1);
    CHECK(strspn(tsr_errmsg(), "x") == n);
}

static void *look_from_another_thread(void *arg)
{
    char *seen = arg;
    snprintf(seen, 32, "[%s]", tsr_errmsg());
    tsri_fail(TSR_EINVAL, "of the other thread");
    return NULL;
}

TEST(a_message_belongs_to_the_thread_that_failed)
{
    char seen[32] = "";
    pthread_t t;
    tsri_fail(TSR_EINVAL, "of this thread");
    CHECK_INT(pthread_create(&t, NULL, look_from_another_thread, seen), 0);
    pthread_join(t, NULL);
    CHECK_STR(seen, "[]");
    CHECK_STR(tsr_errmsg(), "of this thread");
}

TEST(the_version_is_three_numbers)
{
    int major = -1, minor = -1, patch = -1;
    char rest;
    CHECK_INT(sscanf(tsr_version(), "%d.%d.%d%c", &major, &minor, &patch, &rest), 3);
    CHECK(major >= 0 && minor >= 0 && patch >= 0);
}

TEST(a_broken_assertion_says_where_and_aborts)
{
    int fds[2];
    CHECK_INT(pipe(fds), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(fds[1], STDERR_FILENO);
        int two = 2;
        TSR_ASSERT(two == 2);
        TSR_ASSERT(two == 3);
        _exit(0);
    }
    close(fds[1]);
    char text[512] = "";
    ssize_t n = read(fds[0], text, sizeof text - 1);
    close(fds[0]);
    int status = 0;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(n > 0);
    CHECK_HAS(text, "two == 3");
    CHECK_HAS(text, "test_error.c");
}

int main(void)
{
    RUN(every_error_has_its_own_number_below_zero_and_its_own_text);
    RUN(the_numbers_are_those_of_the_first_release);
    RUN(success_and_unknown_numbers_have_a_text_too);
    RUN(fail_returns_its_number_and_sets_the_message);
    RUN(a_message_may_wrap_the_one_before);
    RUN(a_message_that_is_too_long_is_cut_and_ended);
    RUN(a_message_belongs_to_the_thread_that_failed);
    RUN(the_version_is_three_numbers);
    RUN(a_broken_assertion_says_where_and_aborts);
    return test_end();
}
