/* sandbox.h - what a sandbox may refuse and a server needs: shared memory (memfd), which nothing
 * replaces, and pidfds, without which a dead process is noticed later. Tests of them are skipped by
 * name there. */
#ifndef TSRI_SANDBOX_H
#define TSRI_SANDBOX_H

#include <tessera/tessera.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define SANDBOX_NO_MEMFD "shared memory (memfd) is refused here"
#define SANDBOX_NO_PIDFD "pidfds are refused here"

static inline bool sandbox_refuses_memfd(void)
{
    int fd = (int)syscall(SYS_memfd_create, "sandbox", 0);
    if (fd >= 0) close(fd);
    return fd < 0;
}

static inline bool sandbox_refuses_pidfds(void)
{
    int pair[2], fd = -1;
    socklen_t bytes = sizeof fd;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return false;
    if (getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) != 0)
        fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    close(pair[0]);
    close(pair[1]);
    if (fd >= 0) close(fd);
    return fd < 0;
}

/* Ends a program whose kit cannot be set up: skipped as a whole, or a failure. */
static inline void sandbox_stop(void)
{
    if (sandbox_refuses_memfd()) {
        printf("    skipped: " SANDBOX_NO_MEMFD "\n# 0 passed 0 failed 1 skipped\n");
        fflush(stdout);
        _exit(77);
    }
    fflush(stdout);
    abort();
}

#endif
