/* test_endpoint.c - the socket is private from its first moment, is taken over from the dead and
 * not from the living, and knows which process is at its other end. */
#include "daemon/daemon.h"

#include "support/test.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct tmpdir dir;
static char path[TSRI_SOCKET_PATH_BYTES];

static void in_folder(const char *name)
{
    snprintf(path, sizeof path, "%.80s/%s", dir.path, name);
}

static int mode_of(const char *name)
{
    struct stat st;
    return stat(name, &st) == 0 ? (int)(st.st_mode & 07777) : -1;
}

TEST(the_socket_and_its_folder_are_for_their_owner)
{
    struct tsri_endpoint e;
    char folder[sizeof path];
    in_folder("private/sock");
    mode_t old = umask(0);
    CHECK_INT(tsri_endpoint_init(&e, path, false), 0);
    umask(old);
    CHECK_STR(e.path, path);
    CHECK_INT(mode_of(path), 0600);
    snprintf(folder, sizeof folder, "%.80s/private", dir.path);
    CHECK_INT(mode_of(folder), 0700);
    int fd = tsri_socket_connect(path, geteuid());
    CHECK(fd >= 0);
    close(fd);
    tsri_endpoint_fini(&e);
    CHECK_INT(mode_of(path), -1);
    tsri_endpoint_fini(&e);
}

TEST(one_that_is_open_to_all_can_be_reached_by_all)
{
    struct tsri_endpoint e;
    char folder[sizeof path];
    in_folder("open/sock");
    mode_t old = umask(077);
    CHECK_INT(tsri_endpoint_init(&e, path, true), 0);
    umask(old);
    CHECK_INT(mode_of(path), 0666);
    snprintf(folder, sizeof folder, "%.80s/open", dir.path);
    CHECK((mode_of(folder) & 022) == 0);
    tsri_endpoint_fini(&e);
}

TEST(a_folder_that_others_can_write_to_is_refused)
{
    struct tsri_endpoint e;
    char folder[sizeof path];
    snprintf(folder, sizeof folder, "%.80s/wide", dir.path);
    CHECK(mkdir(folder, 0700) == 0 && chmod(folder, 0777) == 0);
    in_folder("wide/sock");
    CHECK_INT(tsri_endpoint_init(&e, path, false), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "777");
    CHECK_INT(tsri_endpoint_init(&e, "/sock", false), TSR_EINVAL);
    in_folder("missing/deeper/sock");
    CHECK_INT(tsri_endpoint_init(&e, path, false), TSR_EIO);
    /* A link that somebody laid in place of the folder. */
    char link[sizeof path];
    snprintf(link, sizeof link, "%.80s/link", dir.path);
    CHECK(symlink(folder, link) == 0);
    in_folder("link/sock");
    CHECK_INT(tsri_endpoint_init(&e, path, false), TSR_EPERM);
}

/* Root may write to every folder, but one of somebody else is not where it listens. */
TEST(a_folder_of_another_user_is_refused)
{
    struct tsri_endpoint e;
    char folder[sizeof path];
    if (geteuid() != 0) SKIP("only root can make a folder of another user");
    snprintf(folder, sizeof folder, "%.80s/other", dir.path);
    CHECK(mkdir(folder, 0700) == 0 && chown(folder, 12345, 12345) == 0);
    in_folder("other/sock");
    CHECK_INT(tsri_endpoint_init(&e, path, false), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "12345");
}

TEST(a_socket_left_behind_is_replaced)
{
    struct tsri_endpoint e, again;
    in_folder("stale/sock");
    CHECK_INT(tsri_endpoint_init(&e, path, false), 0);
    close(e.fd), close(e.lock_fd); /* as a crash does */
    CHECK_INT(mode_of(path), 0600);
    CHECK_INT(tsri_endpoint_init(&again, path, false), 0);
    int fd = tsri_socket_connect(path, geteuid());
    CHECK(fd >= 0);
    close(fd);
    tsri_endpoint_fini(&again);
}

/* An engine that served and then died, while a worker it had forked lives on with all of its
 * descriptors: the socket still connects, but nobody answers. */
TEST(a_socket_that_only_a_forked_child_holds_is_taken_over)
{
    struct tsri_endpoint e, again;
    in_folder("orphan/sock");
    CHECK_INT(tsri_endpoint_init(&e, path, false), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    CHECK(pid > 0);
    close(e.fd), close(e.lock_fd);
    int fd = tsri_socket_connect(path, geteuid());
    CHECK(fd >= 0); /* the child's */
    close(fd);
    CHECK_INT(tsri_endpoint_init(&again, path, false), 0);
    tsri_endpoint_fini(&again);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

TEST(a_socket_that_listens_already_can_be_adopted)
{
    struct tsri_endpoint first, e;
    in_folder("adopt/sock");
    CHECK_INT(tsri_endpoint_init(&first, path, false), 0);
    int copy = dup(first.fd);
    CHECK_INT(tsri_endpoint_adopt(&e, copy), 0);
    CHECK_STR(e.path, path);
    CHECK(fcntl(copy, F_GETFD) & FD_CLOEXEC);
    tsri_endpoint_fini(&e);
    CHECK_INT(mode_of(path), 0600); /* whose it is unlinks it */
    tsri_endpoint_fini(&first);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK_INT(tsri_endpoint_adopt(&e, pair[0]), TSR_EINVAL);
    CHECK_INT(tsri_endpoint_adopt(&e, STDOUT_FILENO), TSR_EINVAL);
    CHECK_INT(tsri_endpoint_adopt(&e, -1), TSR_EINVAL);
    close(pair[0]), close(pair[1]);
}

/* A child connects, forks a grandchild that keeps the socket, and dies. */
static void connect_and_die(void)
{
    int fd = tsri_socket_connect(path, geteuid());
    if (fd < 0) _exit(1);
    if (fork() == 0) {
        sleep(20);
        _exit(0);
    }
    pause();
    _exit(0);
}

TEST(the_peer_is_the_process_that_connected_whoever_holds_the_socket)
{
    struct tsri_endpoint e;
    struct tsri_peer p;
    in_folder("peer/sock");
    CHECK_INT(tsri_endpoint_init(&e, path, false), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        connect_and_die();
    }
    struct pollfd wait = {.fd = e.fd, .events = POLLIN};
    CHECK(poll(&wait, 1, 5000) == 1);
    int fd = accept(e.fd, NULL, NULL);
    CHECK(fd >= 0);
    CHECK_INT(tsri_peer_init(&p, fd), 0);
    CHECK_INT(p.uid, geteuid());
    CHECK_INT(p.pid, pid);
    if (p.pidfd < 0 && sandbox_refuses_pidfds()) SKIP(SANDBOX_NO_PIDFD);
    CHECK(p.pidfd >= 0);
    wait = (struct pollfd){.fd = p.pidfd, .events = POLLIN};
    CHECK_INT(poll(&wait, 1, 100), 0); /* alive */
    kill(pid, SIGKILL);
    CHECK_INT(poll(&wait, 1, 5000), 1); /* dead, although */
    struct pollfd open = {.fd = fd, .events = POLLIN};
    CHECK_INT(poll(&open, 1, 0), 0); /* the socket is open: the grandchild has it */
    waitpid(pid, NULL, 0);
    kill(-pid, SIGKILL);
    tsri_peer_fini(&p);
    tsri_peer_fini(&p);
    close(fd);
    tsri_endpoint_fini(&e);
}

int main(void)
{
    tmpdir_init(&dir);
    RUN(the_socket_and_its_folder_are_for_their_owner);
    RUN(one_that_is_open_to_all_can_be_reached_by_all);
    RUN(a_folder_that_others_can_write_to_is_refused);
    RUN(a_folder_of_another_user_is_refused);
    RUN(a_socket_left_behind_is_replaced);
    RUN(a_socket_that_only_a_forked_child_holds_is_taken_over);
    RUN(a_socket_that_listens_already_can_be_adopted);
    RUN(the_peer_is_the_process_that_connected_whoever_holds_the_socket);
    tmpdir_fini(&dir);
    return test_end();
}
