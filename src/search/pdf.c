/* pdf.c - the text of a PDF, by pdftotext (poppler-utils) where it is installed. A PDF is a program
 * for a large reader, and ours to distrust: it is read in a process of its own, without a shell, with
 * limits on time, memory and output, and with nothing of ours open but the file. */
#include "search/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY_MAX ((rlim_t)2 << 30)

/* The first pdftotext of PATH, in absolute folders only. */
static bool find_program(char *path, size_t room)
{
    const char *at = getenv("PATH");
    if (!at || !*at) at = "/usr/local/bin:/usr/bin:/bin";
    while (*at) {
        size_t n = strcspn(at, ":");
        struct stat st;
        if (*at == '/' && snprintf(path, room, "%.*s/pdftotext", (int)n, at) < (int)room &&
            stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0)
            return true;
        at += n + (at[n] == ':');
    }
    return false;
}

static void limit(int what, rlim_t value)
{
    struct rlimit l = {value, value};
    (void)setrlimit((__rlimit_resource_t)what, &l);
}

/* In the child: only calls that are safe after the fork of a process with threads. */
static void become(const char *path, char *const *env, int in, int out, uint32_t seconds)
{
    static char *const args[] = {(char *)(uintptr_t) "pdftotext",
                                 (char *)(uintptr_t) "-q",
                                 (char *)(uintptr_t) "-enc",
                                 (char *)(uintptr_t) "UTF-8",
                                 (char *)(uintptr_t) "-",
                                 (char *)(uintptr_t) "-",
                                 NULL};
    sigset_t none;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0)
        _exit(127);
    close_range(3, ~0u, 0);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_AS, MEMORY_MAX);
    limit(RLIMIT_CPU, seconds + 1);
    execve(path, args, env);
    _exit(127);
}

static int take_output(int fd, const struct tsri_pdf_limits *limits, struct tsri_prose *out)
{
    uint64_t end = tsri_now_ns() + (uint64_t)limits->wait_ms * 1000000;
    char buf[65536];
    for (;;) {
        uint64_t now = tsri_now_ns();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = now < end ? poll(&p, 1, (int)((end - now) / 1000000 + 1)) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0)
            return tsri_fail(TSR_ETIME, "pdftotext took more than %u s", limits->wait_ms / 1000);
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tsri_fail(TSR_EIO, "pdftotext: %s", strerror(errno));
        if (n == 0) return 0;
        if (out->bytes + (size_t)n > limits->bytes_max)
            return tsri_fail(TSR_ERANGE, "has more than %zu MB of text", limits->bytes_max >> 20);
        int err = tsri_prose_add(out, buf, (size_t)n);
        if (err) return err;
    }
}

/* Ends it, however it stands; its status. */
static int finish(pid_t child, bool kills)
{
    int status = 0;
    if (kills) kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return status;
}

int tsri_pdf_text(int fd, const struct tsri_pdf_limits *limits, struct tsri_prose *out)
{
    char path[4096];
    /* Nothing of ours: a locale could change what it writes, a library path what it is. */
    static char *const env[] = {(char *)(uintptr_t) "LC_ALL=C.UTF-8",
                                (char *)(uintptr_t) "PATH=/usr/bin:/bin", NULL};
    int pipes[2];
    if (!find_program(path, sizeof path))
        return tsri_fail(TSR_EUNSUP, "needs pdftotext (package poppler-utils)");
    if (lseek(fd, 0, SEEK_SET) < 0 || pipe2(pipes, O_CLOEXEC) != 0)
        return tsri_fail(TSR_EIO, "pdftotext: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) become(path, env, fd, pipes[1], limits->wait_ms / 1000);
    close(pipes[1]);
    int err = child < 0 ? tsri_fail(TSR_EIO, "pdftotext: %s", strerror(errno))
                        : take_output(pipes[0], limits, out);
    close(pipes[0]);
    if (child < 0) return err;
    int status = finish(child, err != 0);
    if (!err && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        err = tsri_fail(TSR_EIO, "pdftotext cannot read it");
    return err;
}
