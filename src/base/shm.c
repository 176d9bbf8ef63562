/* shm.c - memory that one process writes and others read. It is a memfd, sealed once its owner has
 * mapped it: nobody can shrink it under a reader, and nobody but that one mapping can write. A
 * descriptor opened read-only would not do, since its holder can open it again for writing through
 * /proc. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

/* Maps the whole file where huge pages would fit, should the machine give them to shared memory. */
static uint8_t *map_aligned(int fd, size_t bytes)
{
    uint8_t *p = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE_BYTES - (uintptr_t)p % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (head) munmap(p, head);
    if (HUGE_PAGE_BYTES - head) munmap(p + head + bytes, HUGE_PAGE_BYTES - head);
    void *at = mmap(p + head, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                    fd, 0);
    if (at == MAP_FAILED) {
        int err = errno;
        munmap(p + head, bytes);
        errno = err;
        return NULL;
    }
    return at;
}

int tsri_region_init_shared(struct tsri_region *r, const char *name, size_t bytes)
{
    *r = (struct tsri_region){.fd = -1};
    if (bytes > SIZE_MAX / 4) return tsri_fail(TSR_ENOMEM, "cannot share %zu bytes", bytes);
    size_t want = tsri_align_up(bytes ? bytes : 1, HUGE_PAGE_BYTES);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return tsri_fail(TSR_EUNSUP, "cannot create shared memory: memfd: %s", strerror(errno));
    int err;
    if (ftruncate(fd, (off_t)want) != 0) {
        err = tsri_fail(TSR_ENOMEM, "cannot share %zu bytes: %s", bytes, strerror(errno));
        goto out;
    }
    uint8_t *p = map_aligned(fd, want);
    if (!p) {
        err = tsri_fail(TSR_ENOMEM, "cannot map %zu shared bytes: %s", bytes, strerror(errno));
        goto out;
    }
    if (fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        err = tsri_fail(TSR_EUNSUP, "cannot seal shared memory: %s", strerror(errno));
        munmap(p, want);
        goto out;
    }
    if (want >= 8 * HUGE_PAGE_BYTES) madvise(p, want, MADV_HUGEPAGE);
    madvise(p, want, MADV_DONTDUMP);
    *r = (struct tsri_region){.data = p, .bytes = want, .shared = true, .fd = fd};
    return 0;
out:
    close(fd);
    return err;
}

static int check_foreign(int fd, size_t bytes)
{
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    /* A file of huge pages has seals too, but faults where there are not enough of them. */
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
        return tsri_fail(TSR_EPERM, "shared memory is not sealed against shrinking");
    if (fstat(fd, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes || bytes == 0)
        return tsri_fail(TSR_EPERM, "shared memory has %lld bytes, expected %zu",
                         (long long)st.st_size, bytes);
    return 0;
}

int tsri_region_init_remote(struct tsri_region *r, int fd, size_t bytes)
{
    *r = (struct tsri_region){.fd = -1};
    int err = check_foreign(fd, bytes);
    if (err) return err;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return tsri_fail(TSR_ENOMEM, "cannot reserve addresses for %zu shared bytes: %s", bytes,
                         strerror(errno));
    *r = (struct tsri_region){.data = p, .bytes = bytes, .shared = true, .fd = fd};
    return 0;
}

int tsri_region_read(const struct tsri_region *r, const uint8_t *at, void *to, size_t bytes)
{
    size_t offset = (size_t)(at - r->data), done = 0;
    TSR_ASSERT(at >= r->data && offset <= r->bytes && bytes <= r->bytes - offset);
    while (done < bytes) {
        ssize_t got = pread(r->fd, (uint8_t *)to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return tsri_fail(TSR_EIO, "shared memory: %s", got ? strerror(errno) : "end of file");
        done += (size_t)got;
    }
    return 0;
}

int tsri_region_init_reader(struct tsri_region *r, int fd, size_t bytes)
{
    *r = (struct tsri_region){.fd = -1};
    int err = check_foreign(fd, bytes);
    if (err) return err;
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        return tsri_fail(TSR_ENOMEM, "cannot map %zu shared bytes: %s", bytes, strerror(errno));
    madvise(p, bytes, MADV_DONTDUMP);
    r->data = p;
    r->bytes = bytes;
    return 0;
}
