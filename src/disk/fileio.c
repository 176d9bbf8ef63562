/* fileio.c - the system calls of the disk tier as one table, so that tests can fail the n-th of
 * them, record what was written, or count. */
#include "disk/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int real_open(void *arg, int dir, const char *name, int flags, mode_t mode)
{
    (void)arg;
    return openat(dir, name, flags | O_CLOEXEC, mode);
}

static int real_close(void *arg, int fd)
{
    (void)arg;
    return close(fd);
}

static ssize_t real_preadv(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    (void)arg;
    return preadv(fd, iov, n, offset);
}

static ssize_t real_pwritev(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    (void)arg;
    return pwritev(fd, iov, n, offset);
}

static int real_fdatasync(void *arg, int fd)
{
    (void)arg;
    return fdatasync(fd);
}

static int real_fsync(void *arg, int fd)
{
    (void)arg;
    return fsync(fd);
}

static int real_rename(void *arg, int dir, const char *from, const char *to)
{
    (void)arg;
    return renameat(dir, from, dir, to);
}

static int real_unlink(void *arg, int dir, const char *name)
{
    (void)arg;
    return unlinkat(dir, name, 0);
}

static int real_ftruncate(void *arg, int fd, off_t bytes)
{
    (void)arg;
    return ftruncate(fd, bytes);
}

/* A file that has its blocks and its size is written at twice the rate of one that grows with
 * every write. Where blocks cannot be reserved, the size alone is set. */
static int real_fallocate(void *arg, int fd, off_t bytes)
{
    (void)arg;
    if (fallocate(fd, 0, 0, bytes) == 0) return 0;
    return errno == EOPNOTSUPP || errno == ENOSYS ? ftruncate(fd, bytes) : -1;
}

const struct tsri_fileio tsri_fileio_real = {
    .open = real_open,
    .close = real_close,
    .preadv = real_preadv,
    .pwritev = real_pwritev,
    .fdatasync = real_fdatasync,
    .fsync = real_fsync,
    .rename = real_rename,
    .unlink = real_unlink,
    .ftruncate = real_ftruncate,
    .fallocate = real_fallocate,
};

int tsri_fileio_read(const struct tsri_fileio *io, int fd, void *buf, size_t bytes, uint64_t offset)
{
    uint8_t *at = buf;
    while (bytes) {
        struct iovec iov = {at, bytes};
        ssize_t n = io->preadv(io->arg, fd, &iov, 1, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return ENODATA;
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

int tsri_fileio_write(const struct tsri_fileio *io, int fd, const void *buf, size_t bytes,
                      uint64_t offset)
{
    const uint8_t *at = buf;
    while (bytes) {
        struct iovec iov = {(void *)(uintptr_t)at, bytes};
        ssize_t n = io->pwritev(io->arg, fd, &iov, 1, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return EIO;
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}
