/* endpoint.c - the socket a server listens at, and who is at the other end of a connection. The
 * folder is private to its owner, so that nobody else can put a socket in the same place; a lock
 * beside the socket says whether its server still lives, so that one left behind by a crash is
 * taken over and one in use is not. */
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128
#define ANSWER_MS 500
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* The folder of the socket: ours, and nobody else writes there. */
static int check_folder(const char *path, bool open_to_all)
{
    char folder[TSRI_SOCKET_PATH_BYTES];
    const uint32_t us = geteuid();
    memcpy(folder, path, strlen(path) + 1);
    char *end = strrchr(folder, '/');
    if (end == folder) return tsri_fail(TSR_EINVAL, "%s: a socket needs its own directory", path);
    *end = 0;
    if (mkdir(folder, open_to_all ? 0711 : 0700) != 0 && errno != EEXIST)
        return tsri_fail(TSR_EIO, "%s: cannot create the directory: %s", folder, strerror(errno));
    return tsri_socket_check_folder(path, &us, 1);
}

/* Does a server answer there? A socket that only connects may be one whose server has died while a
 * forked child holds it open. Before hello a ping is refused, which is answer enough. */
static bool answers(const char *path)
{
    int fd = tsri_socket_connect(path, geteuid());
    if (fd < 0) return false;
    uint8_t frame[TSRI_WIRE_HEAD_BYTES];
    struct tsri_wire_head ping = {.version = TSRI_WIRE_VERSION_MAX, .type = TSRI_WIRE_PING};
    tsri_wire_head_put(&ping, frame);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    bool alive = tsri_socket_send_fds(fd, frame, sizeof frame, NULL, 0) > 0 &&
                 poll(&wait, 1, ANSWER_MS) > 0 && recv(fd, frame, sizeof frame, 0) > 0;
    close(fd);
    return alive;
}

/* The lock is held by the server's process and every child it has forked, so that it can outlive
 * the server: then it is left to them and another one made. */
static int take_lock(struct tsri_endpoint *e)
{
    char path[TSRI_SOCKET_PATH_BYTES + 8];
    snprintf(path, sizeof path, "%s.lock", e->path);
    for (int round = 0; round < 2; round++) {
        e->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (e->lock_fd < 0) return tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
        if (flock(e->lock_fd, LOCK_EX | LOCK_NB) == 0) return 0;
        if (round == 1 || answers(e->path)) break;
        close(e->lock_fd);
        unlink(path);
    }
    return tsri_fail(TSR_EBUSY, "%s: another server is running", e->path);
}

static int listen_at(struct tsri_endpoint *e, bool open_to_all)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    memcpy(at.sun_path, e->path, strlen(e->path) + 1);
    e->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (e->fd < 0) return tsri_fail(TSR_EIO, "socket: %s", strerror(errno));
    /* Before bind: the mode then holds from the first moment, whatever the umask allows more. */
    if (fchmod(e->fd, open_to_all ? 0666 : 0600) != 0)
        return tsri_fail(TSR_EIO, "%s: %s", e->path, strerror(errno));
    if (unlink(e->path) != 0 && errno != ENOENT)
        return tsri_fail(TSR_EIO, "%s: %s", e->path, strerror(errno));
    if (bind(e->fd, (const struct sockaddr *)&at, sizeof at) != 0)
        return tsri_fail(TSR_EIO, "%s: %s", e->path, strerror(errno));
    if (open_to_all && chmod(e->path, 0666) != 0) /* the umask took something away */
        return tsri_fail(TSR_EIO, "%s: %s", e->path, strerror(errno));
    if (listen(e->fd, BACKLOG) != 0) return tsri_fail(TSR_EIO, "%s: %s", e->path, strerror(errno));
    return 0;
}

int tsri_endpoint_init(struct tsri_endpoint *e, const char *path, bool open_to_all)
{
    *e = (struct tsri_endpoint){.fd = -1, .lock_fd = -1};
    int err = tsri_socket_path(path, e->path);
    if (err == 0) err = check_folder(e->path, open_to_all);
    if (err == 0) err = take_lock(e);
    if (err) { /* the socket in this place is not ours */
        if (e->lock_fd >= 0) close(e->lock_fd);
        e->lock_fd = -1;
        return err;
    }
    err = listen_at(e, open_to_all);
    if (err) tsri_endpoint_fini(e);
    return err;
}

int tsri_endpoint_adopt(struct tsri_endpoint *e, int fd)
{
    struct sockaddr_un at;
    socklen_t bytes = sizeof at;
    int listens = 0;
    socklen_t n = sizeof listens;
    *e = (struct tsri_endpoint){.fd = -1, .lock_fd = -1};
    memset(&at, 0, sizeof at);
    if (getsockname(fd, (struct sockaddr *)&at, &bytes) != 0 || at.sun_family != AF_UNIX ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) != 0 || !listens)
        return tsri_fail(TSR_EINVAL, "descriptor %d is not a listening Unix socket", fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return tsri_fail(TSR_EIO, "descriptor %d: %s", fd, strerror(errno));
    at.sun_path[sizeof at.sun_path - 1] = 0;
    memcpy(e->path, at.sun_path, sizeof e->path);
    e->fd = fd;
    return 0;
}

void tsri_endpoint_fini(struct tsri_endpoint *e)
{
    if (e->lock_fd >= 0 && e->fd >= 0) unlink(e->path);
    if (e->fd >= 0) close(e->fd);
    if (e->lock_fd >= 0) close(e->lock_fd);
    e->fd = e->lock_fd = -1;
}

/* ---- peers ---- */

static int pidfd_of(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t bytes = sizeof pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0) return pidfd;
    if (errno == EMFILE || errno == ENFILE) return -1;
    /* Older kernels: by number, which could only be another process's by now when this one has
     * died, and then the connection ends as well. */
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

int tsri_peer_init(struct tsri_peer *p, int fd)
{
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    *p = (struct tsri_peer){.pidfd = -1};
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
        return tsri_fail(TSR_EIO, "credentials: %s", strerror(errno));
    p->uid = cred.uid;
    p->pid = cred.pid;
    if (cred.pid <= 0) return 0; /* of a pid namespace that we cannot see */
    p->pidfd = pidfd_of(fd, cred.pid);
    if (p->pidfd >= 0) return 0;
    if (errno == EMFILE || errno == ENFILE)
        return tsri_fail(TSR_EAGAIN, "out of file descriptors: %s", strerror(errno));
    if (errno == ESRCH) return tsri_fail(TSR_ENOENT, "process %d no longer exists", (int)p->pid);
    return 0;
}

void tsri_peer_fini(struct tsri_peer *p)
{
    if (p->pidfd >= 0) close(p->pidfd);
    p->pidfd = -1;
}
