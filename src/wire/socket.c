/* socket.c - Unix sockets as both sides use them: where the server's is, and how descriptors travel
 * along with bytes. Descriptors that nobody asked for are closed at once. */
#include "wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int tsri_socket_path(const char *option, char out[TSRI_SOCKET_PATH_BYTES])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int n;
    if (option && *option)
        n = snprintf(out, TSRI_SOCKET_PATH_BYTES, "%s", option);
    else if (runtime && *runtime == '/')
        n = snprintf(out, TSRI_SOCKET_PATH_BYTES, "%s/tessera/tesserad.sock", runtime);
    else if (geteuid() == 0)
        n = snprintf(out, TSRI_SOCKET_PATH_BYTES, "/run/tessera/tesserad.sock");
    else
        n = snprintf(out, TSRI_SOCKET_PATH_BYTES, "/tmp/tessera-%u/tesserad.sock",
                     (unsigned)geteuid());
    if (n < 0 || n >= TSRI_SOCKET_PATH_BYTES)
        return tsri_fail(TSR_ERANGE, "the path of a socket has at most %d bytes: %s",
                         TSRI_SOCKET_PATH_BYTES - 1, option);
    if (out[0] != '/') return tsri_fail(TSR_EINVAL, "%s: the path of a socket begins with /", out);
    return 0;
}

int tsri_socket_connect(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    _Static_assert(sizeof at.sun_path == TSRI_SOCKET_PATH_BYTES, "as the kernel has it");
    if (strlen(path) >= sizeof at.sun_path) return tsri_fail(TSR_ERANGE, "%s: too long", path);
    memcpy(at.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return tsri_fail(TSR_EIO, "socket: %s", strerror(errno));
    /* Does not wait: EAGAIN when the server has no room for another. */
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) != 0) {
        int err = tsri_fail(errno == EACCES || errno == EPERM ? TSR_EPERM : TSR_EAGAIN, "%s: %s",
                            path, strerror(errno));
        close(fd);
        return err;
    }
    tsri_socket_widen(fd);
    return fd;
}

void tsri_socket_widen(int fd)
{
    /* A prompt of 32K tokens in one go; the kernel gives what it allows. */
    int bytes = 1 << 20;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

ssize_t tsri_socket_send_fds(int fd, const void *data, size_t bytes, const int *fds, uint32_t n)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int) * TSRI_SOCKET_FDS_MAX)];
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};
    TSR_ASSERT(n <= TSRI_SOCKET_FDS_MAX);
    if (n) {
        memset(&control, 0, sizeof control);
        msg.msg_control = control.room;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    }
    ssize_t sent;
    do {
        sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

ssize_t tsri_socket_send_parts(int fd, const struct iovec *parts, uint32_t n)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = n};
    ssize_t sent;
    do {
        sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

/* Keeps the first ones as far as there is room; closes the rest. */
static void take_fds(const struct cmsghdr *c, int *fds, uint32_t max, uint32_t *n)
{
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        if (*n < max)
            fds[(*n)++] = fd;
        else
            close(fd);
    }
}

ssize_t tsri_socket_recv_fds(int fd, void *data, size_t bytes, int *fds, uint32_t max, uint32_t *n)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int) * TSRI_SOCKET_FDS_MAX)];
    } control;
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &part,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof control.room};
    ssize_t got;
    do {
        got = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return got;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) take_fds(c, fds, max, n);
    return got;
}
