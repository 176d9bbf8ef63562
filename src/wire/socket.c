/* socket.c - Unix sockets as both sides use them: where the server's is, whose it may be, and how
 * descriptors travel along with bytes. Descriptors that nobody asked for are closed at once.
 *
 * The default place may be in /tmp, where anybody can make a folder first. So the folder of a
 * socket must belong to who is trusted and be writable by nobody else, and the process that listens
 * must be theirs too, before a byte is sent: hello has a token in it, and prompts follow. */
#include "wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
        return tsri_fail(TSR_ERANGE, "socket path is longer than %d bytes: %s",
                         TSRI_SOCKET_PATH_BYTES - 1, option);
    if (out[0] != '/') return tsri_fail(TSR_EINVAL, "%s: socket path must begin with /", out);
    return 0;
}

int tsri_socket_owner(const char *option, uint32_t *uid)
{
    char *end;
    *uid = geteuid();
    if (!*option) return 0;
    errno = 0;
    unsigned long number = strtoul(option, &end, 10);
    if (*option < '0' || *option > '9' || *end || errno || number >= UINT32_MAX)
        return tsri_fail(TSR_ECONFIG, "server_owner: \"%s\" is not a uid", option);
    *uid = (uint32_t)number;
    return 0;
}

int tsri_socket_check_folder(const char *path, const uint32_t *uids, uint32_t n)
{
    char folder[TSRI_SOCKET_PATH_BYTES];
    struct stat st;
    bool trusted = false;
    snprintf(folder, sizeof folder, "%s", path);
    char *end = strrchr(folder, '/');
    if (!end || end == folder)
        return tsri_fail(TSR_EINVAL, "%s: a socket needs its own directory", path);
    *end = 0;
    if (lstat(folder, &st) != 0)
        return tsri_fail(errno == ENOENT || errno == ENOTDIR ? TSR_EAGAIN : TSR_EPERM, "%s: %s",
                         folder, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return tsri_fail(TSR_EPERM, "%s: not a folder", folder);
    for (uint32_t i = 0; i < n; i++)
        trusted |= st.st_uid == uids[i];
    if (!trusted) return tsri_fail(TSR_EPERM, "%s: belongs to uid %u", folder, (unsigned)st.st_uid);
    if (st.st_mode & 022)
        return tsri_fail(TSR_EPERM, "%s: writable by others (mode %o)", folder,
                         (unsigned)st.st_mode & 07777);
    return 0;
}

/* Who called listen. */
static int check_peer(int fd, const char *path, const uint32_t *uids, uint32_t n)
{
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
        return tsri_fail(TSR_EPERM, "%s: credentials: %s", path, strerror(errno));
    for (uint32_t i = 0; i < n; i++)
        if (cred.uid == uids[i]) return 0;
    return tsri_fail(TSR_EPERM, "%s: its server runs as uid %u (see server_owner)", path,
                     (unsigned)cred.uid);
}

int tsri_socket_connect(const char *path, uint32_t owner)
{
    const uint32_t trusted[] = {0, geteuid(), owner};
    int err = tsri_socket_check_folder(path, trusted, TSRI_COUNT(trusted));
    if (err) return err;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    _Static_assert(sizeof at.sun_path == TSRI_SOCKET_PATH_BYTES, "as the kernel has it");
    if (strlen(path) >= sizeof at.sun_path) return tsri_fail(TSR_ERANGE, "%s: too long", path);
    memcpy(at.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return tsri_fail(TSR_EIO, "socket: %s", strerror(errno));
    /* Does not wait: EAGAIN when the server has no room for another. */
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) != 0) {
        err = tsri_fail(errno == EACCES || errno == EPERM ? TSR_EPERM : TSR_EAGAIN, "%s: %s", path,
                        strerror(errno));
        close(fd);
        return err;
    }
    err = check_peer(fd, path, trusted, TSRI_COUNT(trusted));
    if (err) {
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
