/* test_socket.c - where the socket is, and how descriptors travel. */
#include "wire/wire.h"

#include "support/test.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(the_path_is_the_option_or_a_private_place_of_the_user)
{
    char path[TSRI_SOCKET_PATH_BYTES], want[TSRI_SOCKET_PATH_BYTES];
    CHECK_INT(tsri_socket_path("/a/b", path), 0);
    CHECK_STR(path, "/a/b");
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    CHECK_INT(tsri_socket_path("", path), 0);
    CHECK_STR(path, "/run/user/7/tessera/tesserad.sock");
    CHECK_INT(tsri_socket_path("/a/b", path), 0);
    CHECK_STR(path, "/a/b");
    unsetenv("XDG_RUNTIME_DIR");
    CHECK_INT(tsri_socket_path(NULL, path), 0);
    snprintf(want, sizeof want, "/tmp/tessera-%u/tesserad.sock", (unsigned)geteuid());
    CHECK_STR(path, geteuid() == 0 ? "/run/tessera/tesserad.sock" : want);
}

TEST(a_path_that_cannot_be_one_is_refused)
{
    char path[TSRI_SOCKET_PATH_BYTES], text[200];
    CHECK_INT(tsri_socket_path("relative/path", path), TSR_EINVAL);
    memset(text, 'x', sizeof text);
    text[0] = '/';
    text[108] = 0;
    CHECK_INT(tsri_socket_path(text, path), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "107");
    text[107] = 0;
    CHECK_INT(tsri_socket_path(text, path), 0);
}

TEST(where_nobody_listens_connecting_fails_at_once)
{
    struct tmpdir d;
    char path[300];
    tmpdir_init(&d);
    snprintf(path, sizeof path, "%s/none", d.path);
    CHECK_INT(tsri_socket_connect(path, geteuid()), TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), path);
    /* A socket that was left behind. */
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    close(fd);
    CHECK_INT(tsri_socket_connect(path, geteuid()), TSR_EAGAIN);
    tmpdir_fini(&d);
}

/* A socket at `path` that listens; its descriptor. */
static int listen_at(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 8) != 0) abort();
    return fd;
}

TEST(a_socket_in_a_folder_that_others_can_write_to_is_not_connected_to)
{
    struct tmpdir d;
    char path[300], link[300];
    tmpdir_init(&d);
    snprintf(path, sizeof path, "%s/sock", d.path);
    int fd = listen_at(path), c = tsri_socket_connect(path, geteuid());
    CHECK(c >= 0);
    close(c);
    CHECK(chmod(d.path, 0777) == 0);
    CHECK_INT(tsri_socket_connect(path, geteuid()), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "777");
    CHECK(chmod(d.path, 01777) == 0); /* as /tmp itself */
    CHECK_INT(tsri_socket_connect(path, geteuid()), TSR_EPERM);
    CHECK(chmod(d.path, 0700) == 0);
    /* Nor through a link in place of the folder. */
    snprintf(link, sizeof link, "%s/link", d.path);
    CHECK(symlink(d.path, link) == 0);
    strcat(link, "/sock");
    CHECK_INT(tsri_socket_connect(link, geteuid()), TSR_EPERM);
    close(fd);
    tmpdir_fini(&d);
}

/* Somebody else's server, started by a process that has become another user. */
TEST(nothing_is_sent_to_a_server_or_a_folder_of_another_user)
{
    enum { UID = 12345 };
    struct tmpdir d;
    char path[300];
    int ready[2];
    if (geteuid() != 0) SKIP("only root can become another user");
    tmpdir_init(&d);
    snprintf(path, sizeof path, "%s/sock", d.path);
    CHECK(pipe(ready) == 0 && chown(d.path, UID, UID) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) { /* the server; its creator is who calls listen */
        if (setgid(UID) != 0 || setuid(UID) != 0) _exit(1);
        int fd = listen_at(path);
        if (write(ready[1], "x", 1) != 1) _exit(2);
        for (;;) {
            char byte;
            int c = accept(fd, NULL, NULL);
            if (c >= 0 && recv(c, &byte, 1, 0) > 0) _exit(3); /* something was sent */
            if (c >= 0) close(c);
        }
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK_INT(tsri_socket_connect(path, 0), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "12345");
    CHECK(chown(d.path, 0, 0) == 0 && chmod(d.path, 0755) == 0); /* the folder alone is ours */
    CHECK_INT(tsri_socket_connect(path, 0), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "server_owner");
    int fd = tsri_socket_connect(path, UID); /* unless that is who should have it */
    CHECK(fd >= 0);
    close(fd);
    int status;
    CHECK(waitpid(pid, &status, WNOHANG) == 0);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(ready[0]), close(ready[1]);
    tmpdir_fini(&d);
}

TEST(the_owner_is_a_uid_or_this_user)
{
    uint32_t uid = 1;
    CHECK_INT(tsri_socket_owner("", &uid), 0);
    CHECK_INT(uid, geteuid());
    CHECK_INT(tsri_socket_owner("998", &uid), 0);
    CHECK_INT(uid, 998);
    const char *const bad[] = {"x", "-1", "12x", "4294967295", "99999999999", " 1"};
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        CHECK_INT(tsri_socket_owner(bad[i], &uid), TSR_ECONFIG);
}

TEST(descriptors_travel_with_their_bytes)
{
    int pair[2], pipes[2], got[3] = {-1, -1, -1};
    uint32_t n = 0;
    char text[8] = "";
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(pipes) == 0);
    CHECK_INT(tsri_socket_send_fds(pair[0], "hello", 6, pipes, 2), 6);
    CHECK_INT(tsri_socket_recv_fds(pair[1], text, sizeof text, got, 3, &n), 6);
    CHECK_STR(text, "hello");
    CHECK_INT(n, 2);
    CHECK(write(got[1], "x", 1) == 1 && read(pipes[0], text, 1) == 1 && text[0] == 'x');
    CHECK(fcntl(got[0], F_GETFD) & FD_CLOEXEC);
    close(got[0]), close(got[1]);
    /* Without any, and with nothing there: it does not wait. */
    CHECK_INT(tsri_socket_send_fds(pair[0], "abc", 4, NULL, 0), 4);
    n = 0;
    CHECK_INT(tsri_socket_recv_fds(pair[1], text, sizeof text, got, 3, &n), 4);
    CHECK_INT(n, 0);
    CHECK_INT(tsri_socket_recv_fds(pair[1], text, sizeof text, got, 3, &n), -1);
    CHECK_INT(errno, EAGAIN);
    close(pair[0]);
    CHECK_INT(tsri_socket_recv_fds(pair[1], text, sizeof text, got, 3, &n), 0);
    close(pair[1]), close(pipes[0]), close(pipes[1]);
}

static int count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

TEST(descriptors_nobody_asked_for_are_closed)
{
    int pair[2], got[1] = {-1};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int before = count_fds(), fds[4] = {pair[0], pair[0], pair[1], pair[1]};
    char text[4];
    uint32_t n = 0;
    CHECK_INT(tsri_socket_send_fds(pair[0], "abc", 4, fds, 4), 4);
    CHECK_INT(tsri_socket_recv_fds(pair[1], text, sizeof text, got, 1, &n), 4);
    CHECK_INT(n, 1);
    CHECK_INT(count_fds(), before + 1);
    close(got[0]);
    n = 0;
    CHECK_INT(tsri_socket_send_fds(pair[0], "abc", 4, fds, 4), 4);
    CHECK_INT(tsri_socket_recv_fds(pair[1], text, sizeof text, NULL, 0, &n), 4);
    CHECK_INT(count_fds(), before);
    close(pair[0]), close(pair[1]);
}

int main(void)
{
    RUN(the_path_is_the_option_or_a_private_place_of_the_user);
    RUN(a_path_that_cannot_be_one_is_refused);
    RUN(where_nobody_listens_connecting_fails_at_once);
    RUN(a_socket_in_a_folder_that_others_can_write_to_is_not_connected_to);
    RUN(nothing_is_sent_to_a_server_or_a_folder_of_another_user);
    RUN(the_owner_is_a_uid_or_this_user);
    RUN(descriptors_travel_with_their_bytes);
    RUN(descriptors_nobody_asked_for_are_closed);
    return test_end();
}
