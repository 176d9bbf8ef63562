/* dies.h - work that must end its process with a line that says why. It is done in a child. */
#ifndef TEST_DIES_H
#define TEST_DIES_H

#include "support/test.h"

#include <sys/wait.h>
#include <unistd.h>

/* What the child says on stderr before it dies must have the words. */
static inline void check_dies(void (*work)(void *arg), void *arg, const char *words)
{
    int ends[2];
    char line[512] = "";
    CHECK_INT(pipe(ends), 0);
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        if (setjmp(test_stop)) _exit(0); /* a CHECK failed: nothing was caught */
        work(arg);
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got;
         n < sizeof line - 1 && (got = read(ends[0], line + n, sizeof line - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    int status;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) || (TEST_SANITIZED && WEXITSTATUS(status) != 0));
    CHECK_HAS(line, words);
}

#endif
