/* fault_io.c - system calls of which the n-th fails. */
#include "support/fault_io.h"

#include <errno.h>

/* 0: go on; an errno; or FAULT_SHORT. */
static int fault(struct fault_io *f, uint32_t call)
{
    if (!(f->calls & call)) return 0;
    uint32_t i = atomic_fetch_add(&f->n_calls, 1) + 1;
    if (!f->nth || i < f->nth || i - f->nth > f->again) return 0;
    atomic_fetch_add(&f->n_failed, 1);
    return f->error;
}

/* For calls that cannot be short: those then fail with EIO. */
static bool fails(struct fault_io *f, uint32_t call)
{
    int error = fault(f, call);
    if (!error) return false;
    errno = error == FAULT_SHORT ? EIO : error;
    return true;
}

static int fault_open(void *arg, int dir, const char *name, int flags, mode_t mode)
{
    return fails(arg, FAULT_OPEN) ? -1 : tsri_fileio_real.open(NULL, dir, name, flags, mode);
}

static int fault_close(void *arg, int fd)
{
    (void)arg;
    return tsri_fileio_real.close(NULL, fd);
}

/* Half of what was asked for, in pages where there are several, as the kernel would. */
static size_t half_of(size_t bytes)
{
    return bytes >= 2 * TSRI_PAGE_BYTES ? bytes / 2 / TSRI_PAGE_BYTES * TSRI_PAGE_BYTES : bytes / 2;
}

static ssize_t move_half(bool write, int fd, const struct iovec *iov, int n, off_t offset)
{
    struct iovec part[TSRI_PIECE_IOVS];
    size_t all = 0;
    for (int i = 0; i < n; i++)
        all += iov[i].iov_len;
    size_t left = half_of(all);
    int k = 0;
    for (; k < n && left; k++) {
        part[k] = iov[k];
        if (part[k].iov_len > left) part[k].iov_len = left;
        left -= part[k].iov_len;
    }
    return write ? tsri_fileio_real.pwritev(NULL, fd, part, k, offset)
                 : tsri_fileio_real.preadv(NULL, fd, part, k, offset);
}

static ssize_t fault_preadv(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    int error = fault(arg, FAULT_READ);
    if (error == FAULT_SHORT) return move_half(false, fd, iov, n, offset);
    errno = error;
    return error ? -1 : tsri_fileio_real.preadv(NULL, fd, iov, n, offset);
}

static ssize_t fault_pwritev(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    int error = fault(arg, FAULT_WRITE);
    if (error == FAULT_SHORT) return move_half(true, fd, iov, n, offset);
    errno = error;
    return error ? -1 : tsri_fileio_real.pwritev(NULL, fd, iov, n, offset);
}

static int fault_fdatasync(void *arg, int fd)
{
    return fails(arg, FAULT_SYNC) ? -1 : tsri_fileio_real.fdatasync(NULL, fd);
}

static int fault_fsync(void *arg, int fd)
{
    return fails(arg, FAULT_SYNC) ? -1 : tsri_fileio_real.fsync(NULL, fd);
}

static int fault_rename(void *arg, int dir, const char *from, const char *to)
{
    return fails(arg, FAULT_RENAME) ? -1 : tsri_fileio_real.rename(NULL, dir, from, to);
}

static int fault_unlink(void *arg, int dir, const char *name)
{
    return fails(arg, FAULT_UNLINK) ? -1 : tsri_fileio_real.unlink(NULL, dir, name);
}

static int fault_ftruncate(void *arg, int fd, off_t bytes)
{
    return fails(arg, FAULT_SIZE) ? -1 : tsri_fileio_real.ftruncate(NULL, fd, bytes);
}

static int fault_fallocate(void *arg, int fd, off_t bytes)
{
    return fails(arg, FAULT_SIZE) ? -1 : tsri_fileio_real.fallocate(NULL, fd, bytes);
}

static int fault_outcome(void *arg, bool write, int fd, off_t offset, int result)
{
    (void)fd, (void)offset;
    int error = fault(arg, write ? FAULT_WRITE : FAULT_READ);
    if (!error || result <= 0) return result;
    return error == FAULT_SHORT ? (int)half_of((size_t)result) : -error;
}

void fault_io_init(struct fault_io *f)
{
    memset(f, 0, sizeof *f);
    f->calls = FAULT_ALL;
    f->io = (struct tsri_fileio){.open = fault_open,
                                 .close = fault_close,
                                 .preadv = fault_preadv,
                                 .pwritev = fault_pwritev,
                                 .fdatasync = fault_fdatasync,
                                 .fsync = fault_fsync,
                                 .rename = fault_rename,
                                 .unlink = fault_unlink,
                                 .ftruncate = fault_ftruncate,
                                 .fallocate = fault_fallocate,
                                 .outcome = fault_outcome,
                                 .arg = f};
}

void fault_io_set(struct fault_io *f, uint32_t calls, uint32_t nth, uint32_t again, int error)
{
    atomic_store(&f->n_calls, 0);
    atomic_store(&f->n_failed, 0);
    f->calls = calls;
    f->nth = nth;
    f->again = again;
    f->error = error;
}
