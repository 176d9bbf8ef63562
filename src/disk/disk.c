/* disk.c - the disk tier: a directory of segment files that survives restarts, crashes and faults.
 * Open takes the lock of the one writer (or reads only), finds out how it may read and write here,
 * and recovers the index; close seals and writes a checkpoint. In a forked child every call is
 * refused and close only frees memory. */
#include "disk/disk.h"
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SEGMENT_BYTES_MIN (16u * TSRI_PAGE_BYTES)
#define LOCK_TRIES 8 /* of locking a file that has lost its name meanwhile */

/* A full file system is TSR_EIO. TSR_EFULL would make the cache drop entries, and that gives no
 * byte back: they stand in files with others. */
int tsri_disk_fail(struct tsri_disk *d, int error, const char *what, const char *name)
{
    int err = TSR_EIO;
    if (error == EACCES || error == EPERM || error == EROFS) err = TSR_EPERM;
    if (error == ENOMEM) err = TSR_ENOMEM;
    atomic_fetch_add(&d->errors, 1);
    return tsri_fail(err, "disk: %s: %s %s: %s", d->path, what, name, strerror(error));
}

/* ---- lanes ---- */

uint64_t tsri_disk_deadline(const struct tsr_tier_io *io, size_t n)
{
    uint64_t last = 0;
    for (size_t i = 0; i < n; i++) {
        if (!io[i].deadline_ns) return 0;
        if (io[i].deadline_ns > last) last = io[i].deadline_ns;
    }
    return last;
}

struct tsri_disk_lane *tsri_lane_take(struct tsri_disk *d, uint64_t deadline_ns)
{
    struct tsri_aio_lane *aio = tsri_aio_take(d->aio, deadline_ns);
    if (!aio) return NULL;
    struct tsri_disk_lane *lane = &d->lanes[tsri_aio_lane_number(aio)];
    lane->aio = aio;
    return lane;
}

void tsri_lane_give(struct tsri_disk *d, struct tsri_disk_lane *lane)
{
    tsri_aio_give(d->aio, lane->aio);
}

static void close_lanes(struct tsri_disk *d)
{
    for (uint32_t i = 0; d->lanes && i < d->n_lanes; i++) {
        for (uint32_t k = 0; k < TSRI_PIECES; k++)
            tsri_region_fini(&d->lanes[i].pieces[k].bounce);
        for (uint32_t k = 0; k < TSRI_UNDER_WAY; k++)
            tsri_region_fini(&d->lanes[i].headers[k]);
    }
    tsri_free(d->lanes);
}

/* ---- directory and lock ---- */

/* The directory and those above it that are missing, for the owner alone. */
static int make_directories(const char *path)
{
    char part[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) return ENAMETOOLONG;
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
            return errno;
    }
    return 0;
}

static int open_directory(struct tsri_disk *d)
{
    int error = d->read_only ? 0 : make_directories(d->path);
    if (error) return tsri_disk_fail(d, error, "cannot make", "the directory");
    d->dir_fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->dir_fd < 0) return tsri_disk_fail(d, errno, "cannot open", "the directory");
    struct stat st;
    if (fstat(d->dir_fd, &st) != 0) return 0;
    if (st.st_mode & 077)
        tsri_log(TSR_LOG_WARN, "disk: %s is accessible to other users (mode %o)", d->path,
                 (unsigned)(st.st_mode & 0777));
    if (!tsri_file_is_ours(&st))
        tsri_log(TSR_LOG_WARN, "disk: %s belongs to user %u, who can delete its contents", d->path,
                 (unsigned)st.st_uid);
    return 0;
}

/* The process that has locked the store, as its file says: digits and nothing else, since the text
 * goes to a terminal. */
static void read_owner(const struct tsri_disk *d, char *pid, size_t bytes)
{
    ssize_t n = pread(d->lock_fd, pid, bytes - 1, 0);
    pid[n > 0 ? n : 0] = '\0';
    pid[strspn(pid, "0123456789")] = '\0';
    if (!pid[0]) snprintf(pid, bytes, "?");
}

/* 0, EWOULDBLOCK or another errno. The directory itself is locked, so that it does not matter who
 * removes or replaces the file; and the file too, for file systems where a directory cannot be
 * locked (NFS) and for older versions, which know only the file. */
static int try_locks(const struct tsri_disk *d)
{
    if (flock(d->dir_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EBADF && errno != EINVAL && errno != ENOLCK && errno != EOPNOTSUPP)
            return errno;
        tsri_log(TSR_LOG_INFO, "disk: %s: cannot lock the directory (%s), locking only the file",
                 d->path, strerror(errno));
    }
    return flock(d->lock_fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

/* Whether the file that we have locked is the one that the next process will find. */
static bool lock_is_in_place(const struct tsri_disk *d, struct stat *st)
{
    struct stat named;
    return fstat(d->lock_fd, st) == 0 &&
           fstatat(d->dir_fd, "lock", &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_ino == st->st_ino && named.st_dev == st->st_dev;
}

/* One writer. The locks belong to the open files and go with the process; its number in the file
 * is for people. */
static int lock_directory(struct tsri_disk *d)
{
    struct stat st;
    char pid[16];
    for (int i = 0; i < LOCK_TRIES; i++) {
        d->lock_fd = openat(d->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | TSRI_FILE_SAFE, 0600);
        if (d->lock_fd < 0) return tsri_disk_fail(d, errno, "cannot open", "lock");
        int err = tsri_disk_check_ours(d, d->lock_fd, "lock", &st);
        if (err) return err;
        int error = try_locks(d);
        if (error && error != EWOULDBLOCK) return tsri_disk_fail(d, error, "cannot lock", "lock");
        if (error) {
            read_owner(d, pid, sizeof pid);
            return tsri_fail(TSR_EBUSY,
                             "disk: %s is in use by process %s: a store has one writer; use a "
                             "server (tesserad, owner=daemon) to share it",
                             d->path, pid);
        }
        if (lock_is_in_place(d, &st)) {
            int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
            /* A file with a second name may be anything: it is locked and not written to. */
            if (st.st_nlink != 1 || ftruncate(d->lock_fd, 0) != 0 ||
                pwrite(d->lock_fd, pid, (size_t)n, 0) != n)
                tsri_log(TSR_LOG_DEBUG, "disk: %s: the lock file does not name its owner", d->path);
            return 0;
        }
        close(d->lock_fd);
        d->lock_fd = -1;
    }
    return tsri_fail(TSR_EBUSY, "disk: %s: another process keeps removing the lock", d->path);
}

/* ---- how files may be read and written here ---- */

/* What O_DIRECT asks of this file; 0 where it does not say no, and does not work. */
static size_t direct_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && (st.stx_mask & STATX_DIOALIGN)) {
        size_t align = st.stx_dio_mem_align > st.stx_dio_offset_align ? st.stx_dio_mem_align
                                                                      : st.stx_dio_offset_align;
        return align > TSRI_PAGE_BYTES ? 0 : align;
    }
#endif
    (void)fd;
    return TSRI_PAGE_BYTES;
}

/* Tried on the lock, which every store has. Returns an errno, and the alignment. */
static int try_direct(int dir_fd, size_t *align)
{
    *align = 1;
    int fd = openat(dir_fd, "lock", O_RDONLY | O_DIRECT | O_CLOEXEC | TSRI_FILE_SAFE);
    if (fd < 0) return errno;
    size_t a = direct_align(fd);
    close(fd);
    if (!a) return EINVAL;
    *align = a;
    return 0;
}

const char *tsri_disk_mode(const struct tsr_tier *tier)
{
    const struct tsri_disk *d = (const struct tsri_disk *)tier;
    static const char *const names[2][4] = {
        {"?", "io_uring, buffered", "threads, buffered", "inline, buffered"},
        {"?", "io_uring, O_DIRECT", "threads, O_DIRECT", "inline, O_DIRECT"},
    };
    return names[d->direct][tsri_aio_mode(d->aio)];
}

/* ---- open ---- */

/* The configuration of the first or the second disk tier, with what tests give instead. */
static int configure(struct tsri_disk *d, const struct tsr_tier_desc *desc, bool second,
                     struct tsri_disk_setup *set)
{
    if (desc->arg) *set = *(const struct tsri_disk_setup *)desc->arg;
    if (desc->config) {
        const struct tsri_options *o = tsri_config_options(desc->config);
        static const enum tsri_aio_mode modes[] = {[TSRI_DISK_IO_AUTO] = TSRI_AIO_AUTO,
                                                   [TSRI_DISK_IO_URING] = TSRI_AIO_URING,
                                                   [TSRI_DISK_IO_THREADS] = TSRI_AIO_THREADS};
        if (!set->path) set->path = second ? o->disk2_path : o->disk_path;
        if (!set->bytes_max) set->bytes_max = second ? o->disk2_size : o->disk_size;
        if (!set->segment_bytes) set->segment_bytes = o->disk_segment_size;
        if (!set->mode) set->mode = modes[o->disk_io];
        set->buffered |= !o->disk_direct;
    }
    if (!set->path || !set->path[0])
        return tsri_fail(TSR_ECONFIG, "disk: %s is not set", second ? "disk2_path" : "disk_path");
    if (!set->segment_bytes) set->segment_bytes = (uint64_t)256 << 20;
    d->path = tsri_strdup(set->path);
    d->io = set->io ? *set->io : tsri_fileio_real;
    d->read_only = desc->read_only != 0;
    d->open_max = desc->n_threads + 1; /* one for upkeep */
    d->n_lanes = desc->n_threads + 1;
    return d->path ? 0 : TSR_ENOMEM;
}

/* Of a small store an eighth is kept for segments that are filling, and another for dead entries;
 * with segments much smaller than the store, only the latter counts. */
static void set_limits(struct tsri_disk *d, const struct tsri_disk_setup *set)
{
    uint64_t segment = set->segment_bytes;
    uint64_t n_filling = d->open_max + 1;
    if (set->bytes_max && segment > set->bytes_max / 8 / n_filling)
        segment = set->bytes_max / 8 / n_filling;
    segment -= segment % TSRI_PAGE_BYTES;
    if (segment < SEGMENT_BYTES_MIN) segment = SEGMENT_BYTES_MIN;
    d->segment_bytes = segment;
    d->bytes_max = set->bytes_max;
    uint64_t kept = set->bytes_max / 8 + segment * n_filling;
    d->live_max = set->bytes_max > kept ? set->bytes_max - kept : 0;
}

static int start_io(struct tsri_disk *d, const struct tsri_disk_setup *set)
{
    int refused = set->buffered ? EINVAL : try_direct(d->dir_fd, &d->align);
    d->direct = !refused;
    if (refused) d->align = 1;
    if (refused && !set->buffered)
        tsri_log(TSR_LOG_INFO, "disk: %s: O_DIRECT is not available (%s), using the page cache",
                 d->path, strerror(refused));
    d->lanes = tsri_alloc(d->n_lanes, sizeof d->lanes[0]);
    if (!d->lanes) return TSR_ENOMEM;
    int err = tsri_aio_open(&d->aio, set->mode, &d->io, d->n_lanes);
    if (!err) d->upkeep_lane = tsri_lane_take(d, 0);
    return err;
}

static void close_disk(struct tsri_disk *d)
{
    /* In a forked child locks may be held, and waited for, by threads of the parent. */
    bool in_child = d->guard.page && !tsri_fork_guard_parent(&d->guard);
    if (d->upkeep_lane && !in_child) tsri_lane_give(d, d->upkeep_lane);
    tsri_aio_close(d->aio);
    close_lanes(d);
    for (struct tsri_segment *s = d->segments, *next; s; s = next) {
        next = s->next;
        if (s->fd >= 0) d->io.close(d->io.arg, s->fd);
        tsri_free(s);
    }
    tsri_disk_index_fini(&d->index);
    if (d->lock_fd >= 0) close(d->lock_fd);
    if (d->dir_fd >= 0) close(d->dir_fd);
    tsri_fork_guard_fini(&d->guard);
    if (!in_child) pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->upkeep);
    tsri_free(d->path);
    tsri_free(d);
}

static int open_disk(struct tsr_tier **out, const struct tsr_tier_desc *desc, bool second)
{
    struct tsri_disk *d = tsri_alloc(1, sizeof *d);
    if (!d) return TSR_ENOMEM;
    d->dir_fd = d->lock_fd = -1;
    d->next_seq = d->next_segment = 1;
    pthread_mutex_init(&d->upkeep, NULL);
    pthread_mutex_init(&d->lock, NULL);
    tsri_cond_init(&d->changed);
    struct tsri_disk_setup set = {0};
    int err = configure(d, desc, second, &set);
    if (!err) set_limits(d, &set);
    if (!err) err = tsri_fork_guard_init(&d->guard);
    if (!err) err = tsri_disk_index_init(&d->index);
    if (!err) err = open_directory(d);
    if (!err && !d->read_only) err = lock_directory(d);
    if (!err) err = start_io(d, &set);
    if (!err) err = tsri_disk_recover(d);
    if (err) {
        close_disk(d);
        return err;
    }
    tsri_log(TSR_LOG_INFO, "disk: %s: %u entries in %u segments; %s", d->path, d->index.n_entries,
             d->n_segments, tsri_disk_mode(&d->base));
    *out = &d->base;
    return 0;
}

static int disk_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    return open_disk(out, desc, false);
}

static int disk2_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    return open_disk(out, desc, true);
}

/* ---- the other operations ---- */

static int disk_flush(struct tsr_tier *tier)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!tsri_fork_guard_parent(&d->guard))
        return tsri_fail(TSR_EFORK, "disk: not usable after fork");
    return d->read_only ? 0 : tsri_disk_upkeep(d, false);
}

static void disk_close(struct tsr_tier *tier)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!d->read_only && tsri_fork_guard_parent(&d->guard) && tsri_disk_upkeep(d, true) != 0)
        tsri_log(TSR_LOG_WARN, "disk: %s: close: %s", d->path, tsr_errmsg());
    close_disk(d);
}

static int disk_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!tsri_fork_guard_parent(&d->guard))
        return tsri_fail(TSR_EFORK, "disk: not usable after fork");
    int n_dropped = 0;
    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&d->lock);
        uint32_t slot = tsri_disk_index_find(&d->index, &refs[i].key);
        if (slot != TSRI_NO_SLOT) {
            tsri_disk_forget(d, slot);
            n_dropped++;
        }
        bool many = d->n_tombs > TSRI_TOMBS_PENDING / 2;
        pthread_mutex_unlock(&d->lock);
        if (!many) continue;
        /* Without success they stay pending, and the flush that needs them tells. */
        pthread_mutex_lock(&d->upkeep);
        if (tsri_disk_bury(d) != 0)
            tsri_log(TSR_LOG_DEBUG, "disk: %s: drop: %s", d->path, tsr_errmsg());
        pthread_mutex_unlock(&d->upkeep);
    }
    return n_dropped;
}

static int disk_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                         uint8_t *found)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!tsri_fork_guard_parent(&d->guard))
        return tsri_fail(TSR_EFORK, "disk: not usable after fork");
    int n_found = 0;
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < n; i++) {
        found[i] = tsri_disk_index_find(&d->index, &refs[i].key) != TSRI_NO_SLOT;
        n_found += found[i];
    }
    pthread_mutex_unlock(&d->lock);
    return n_found;
}

static int disk_stats(struct tsr_tier *tier, struct tsr_tier_stats *out)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!tsri_fork_guard_parent(&d->guard))
        return tsri_fail(TSR_EFORK, "disk: not usable after fork");
    pthread_mutex_lock(&d->lock);
    out->entries = d->index.n_entries;
    out->bytes_used = d->bytes_alloc;
    out->bytes_max = d->bytes_max;
    out->errors = d->n_ignored;
    pthread_mutex_unlock(&d->lock);
    out->errors += atomic_load(&d->errors) + atomic_load(&d->corrupt);
    out->read_bytes = atomic_load(&d->read_bytes);
    out->written_bytes = atomic_load(&d->written_bytes);
    return 0;
}

/* clang-format off */
#define DISK_OPS(name_, open_) \
    { \
        .abi = TSR_TIER_ABI, .name = name_, .open = open_, .close = disk_close, \
        .put = tsri_disk_put, .get = tsri_disk_get, .drop = disk_drop, .scan = tsri_disk_scan, \
        .contains = disk_contains, .flush = disk_flush, .stats = disk_stats, \
        .windows = tsri_disk_windows, .shingles = tsri_disk_shingles, .unlist = tsri_disk_unlist, .purge = tsri_disk_purge, \
    }
/* clang-format on */
const struct tsr_tier_ops tsri_tier_disk = DISK_OPS("disk", disk_open);
const struct tsr_tier_ops tsri_tier_disk2 = DISK_OPS("disk2", disk2_open);
