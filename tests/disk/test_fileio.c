/* The table of system calls, and whole reads and writes through it. */
#include "disk/disk.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>

static struct tmpdir dir;
static int dir_fd;

static ssize_t slow_pwritev(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    int *calls = arg;
    (void)n;
    if (++*calls % 2) {
        errno = EINTR;
        return -1;
    }
    return pwrite(fd, iov->iov_base, iov->iov_len < 7 ? iov->iov_len : 7, offset);
}

static ssize_t slow_preadv(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    (void)arg, (void)n;
    return pread(fd, iov->iov_base, iov->iov_len < 5 ? iov->iov_len : 5, offset);
}

static ssize_t failing_preadv(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    (void)arg, (void)fd, (void)iov, (void)n, (void)offset;
    errno = EIO;
    return -1;
}

TEST(whole_ranges_move_in_as_many_calls_as_it_takes)
{
    int calls = 0;
    struct tsri_fileio io = tsri_fileio_real;
    io.pwritev = slow_pwritev;
    io.preadv = slow_preadv;
    io.arg = &calls;
    int fd = io.open(io.arg, dir_fd, "whole", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    char text[100], back[100];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)i;
    CHECK_INT(tsri_fileio_write(&io, fd, text, sizeof text, 11), 0);
    CHECK_INT(tsri_fileio_read(&io, fd, back, sizeof back, 11), 0);
    CHECK(memcmp(text, back, sizeof text) == 0);
    CHECK_INT(tsri_fileio_read(&io, fd, back, sizeof back, 12), ENODATA);
    io.preadv = failing_preadv;
    CHECK_INT(tsri_fileio_read(&io, fd, back, sizeof back, 0), EIO);
    CHECK_INT(io.close(io.arg, fd), 0);
}

TEST(the_real_calls_do_what_they_are_named_after)
{
    const struct tsri_fileio *io = &tsri_fileio_real;
    int fd = io->open(io->arg, dir_fd, "a", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK_INT(io->fallocate(io->arg, fd, 10000), 0);
    CHECK_INT(lseek(fd, 0, SEEK_END), 10000);
    CHECK_INT(io->ftruncate(io->arg, fd, 100), 0);
    CHECK_INT(lseek(fd, 0, SEEK_END), 100);
    CHECK_INT(io->fdatasync(io->arg, fd), 0);
    CHECK_INT(io->rename(io->arg, dir_fd, "a", "b"), 0);
    CHECK_INT(io->fsync(io->arg, dir_fd), 0);
    CHECK_INT(io->unlink(io->arg, dir_fd, "a"), -1);
    CHECK_INT(io->unlink(io->arg, dir_fd, "b"), 0);
    CHECK_INT(io->close(io->arg, fd), 0);
}

int main(void)
{
    tmpdir_init(&dir);
    dir_fd = open(dir.path, O_RDONLY | O_DIRECTORY);
    RUN(whole_ranges_move_in_as_many_calls_as_it_takes);
    RUN(the_real_calls_do_what_they_are_named_after);
    close(dir_fd);
    tmpdir_fini(&dir);
    return test_end();
}
