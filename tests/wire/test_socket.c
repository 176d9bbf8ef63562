/* test_socket.c - where the socket is, and how descriptors travel. */
#include "wire/wire.h"

#include "support/test.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
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
    CHECK_INT(tsri_socket_connect(path), TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), path);
    /* A socket that was left behind. */
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    close(fd);
    CHECK_INT(tsri_socket_connect(path), TSR_EAGAIN);
    tmpdir_fini(&d);
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
    RUN(descriptors_travel_with_their_bytes);
    RUN(descriptors_nobody_asked_for_are_closed);
    return test_end();
}
