/* disk_files.c - the segment files of a store. A segment is made beside (`new-*.tmp`) and takes its
 * name once its first page is on disk, so a file with a segment's name is one. It is appended to by
 * one caller at a time, record after record without holes, so that a walk over its headers never
 * stops before something that was acknowledged; callers that write at once have segments of their
 * own. A sealed segment is given back its unused bytes and only read from then on. */
#include "disk/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files kept open; beyond it those not in use are closed. A store of 16 TB has 65536 segments. */
#define FDS_MAX 128u
/* Segments that one put may compact before it gives up: eight of them that are dead by an eighth
 * make one. */
#define ROOMS_MAX 8u
#define SEARCH_BYTES ((size_t)256 << 10) /* read at once when a record is looked for */
/* What is made instead of a segment of the usual size for upkeep that finds the file system full:
 * tombstones need a page, and compaction what lives. */
#define SHRUNK_BYTES (16u * TSRI_PAGE_BYTES)

void tsri_segment_name(uint64_t id, char name[TSRI_SEGMENT_NAME_BYTES])
{
    snprintf(name, TSRI_SEGMENT_NAME_BYTES, "%016llx.seg", (unsigned long long)id);
}

uint64_t tsri_segment_id(const char *name)
{
    char again[TSRI_SEGMENT_NAME_BYTES];
    uint64_t id = strtoull(name, NULL, 16);
    tsri_segment_name(id, again);
    return strcmp(name, again) == 0 && id <= TSRI_SEGMENT_ID_MAX ? id : 0;
}

struct tsri_segment *tsri_segment_new(uint64_t id, uint64_t nonce)
{
    struct tsri_segment *s = tsri_alloc(1, sizeof *s);
    if (!s) return NULL;
    s->id = id;
    s->nonce = nonce;
    s->fd = -1;
    s->first = TSRI_NO_SLOT;
    s->tail = s->synced = s->capacity = TSRI_PAGE_BYTES;
    return s;
}

void tsri_segment_insert(struct tsri_disk *d, struct tsri_segment *s)
{
    struct tsri_segment **at = &d->segments;
    while (*at && (*at)->id > s->id)
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    d->n_segments++;
}

/* ---- descriptors ---- */

int tsri_disk_check_ours(struct tsri_disk *d, int fd, const char *name, struct stat *st)
{
    if (fstat(fd, st) != 0) return tsri_disk_fail(d, errno, "cannot open", name);
    const char *wrong = NULL;
    if (!S_ISREG(st->st_mode))
        wrong = "is not a regular file";
    else if (!tsri_file_is_ours(st))
        wrong = "belongs to another user";
    return wrong ? tsri_fail(TSR_EPERM, "disk: %s/%s %s", d->path, name, wrong) : 0;
}

int tsri_disk_open_ours(struct tsri_disk *d, const char *name, int flags, struct stat *st, int *fd)
{
    *fd = d->io.open(d->io.arg, d->dir_fd, name, flags | TSRI_FILE_SAFE, 0600);
    if (*fd < 0 && errno == ENOENT) return tsri_fail(TSR_ENOENT, "disk: no %s/%s", d->path, name);
    if (*fd < 0 && (errno == ELOOP || errno == ENXIO || errno == EISDIR))
        return tsri_fail(TSR_EPERM, "disk: %s/%s is not a regular file", d->path, name);
    if (*fd < 0) return tsri_disk_fail(d, errno, "cannot open", name);
    int err = tsri_disk_check_ours(d, *fd, name, st);
    if (!err) return 0;
    d->io.close(d->io.arg, *fd);
    *fd = -1;
    return err;
}

/* Closes one file that nobody uses, when there are many. A sync opens it again if it has to. The
 * lock is held. */
static void close_one(struct tsri_disk *d)
{
    if (d->n_fds <= FDS_MAX) return;
    for (struct tsri_segment *s = d->segments; s; s = s->next)
        if (s->fd >= 0 && s->n_refs == 0 && s->state == TSRI_SEGMENT_SEALED) {
            d->io.close(d->io.arg, s->fd);
            s->fd = -1;
            d->n_fds--;
            return;
        }
}

int tsri_segment_ref(struct tsri_disk *d, struct tsri_segment *s)
{
    pthread_mutex_lock(&d->lock);
    s->n_refs++;
    bool is_open = s->fd >= 0;
    pthread_mutex_unlock(&d->lock);
    if (is_open) return 0;
    char name[TSRI_SEGMENT_NAME_BYTES];
    tsri_segment_name(s->id, name);
    struct stat st;
    int fd, flags = (d->read_only ? O_RDONLY : O_RDWR) | (d->direct ? O_DIRECT : 0);
    int err = tsri_disk_open_ours(d, name, flags, &st, &fd);
    pthread_mutex_lock(&d->lock);
    if (fd >= 0 && s->fd >= 0) d->io.close(d->io.arg, fd); /* another caller was faster */
    if (fd >= 0 && s->fd < 0) {
        s->fd = fd;
        d->n_fds++;
        close_one(d);
    }
    is_open = s->fd >= 0;
    pthread_mutex_unlock(&d->lock);
    if (is_open) return 0;
    tsri_segment_unref(d, s);
    if (err == TSR_ENOENT) atomic_fetch_add(&d->errors, 1); /* somebody removed it */
    return err;
}

void tsri_segment_unref(struct tsri_disk *d, struct tsri_segment *s)
{
    pthread_mutex_lock(&d->lock);
    TSR_ASSERT(s->n_refs > 0);
    bool last = --s->n_refs == 0 && s->state == TSRI_SEGMENT_GONE;
    if (last && s->fd >= 0) d->n_fds--;
    pthread_mutex_unlock(&d->lock);
    if (!last) return;
    if (s->fd >= 0) d->io.close(d->io.arg, s->fd);
    tsri_free(s);
}

int tsri_lane_move(struct tsri_disk *d, struct tsri_disk_lane *lane, const struct tsri_segment *s,
                   bool write, void *buf, size_t bytes, uint64_t offset)
{
    struct iovec iov = {buf, bytes};
    struct tsri_aio_req req = {.fd = s->fd,
                               .write = write,
                               .offset = offset,
                               .iov = &iov,
                               .n_iov = 1,
                               .bytes = bytes,
                               .align = d->align};
    tsri_aio_push(lane->aio, &req);
    tsri_aio_wait(lane->aio, &req);
    if (!req.error) atomic_fetch_add(write ? &d->written_bytes : &d->read_bytes, bytes);
    return req.error;
}

/* ---- finding records ---- */

/* Where the file has data at or behind `at`; UINT64_MAX when there is none up to its end. What was
 * reserved and never written is not read. */
static uint64_t next_data(const struct tsri_segment *s, uint64_t at)
{
    off_t data = lseek(s->fd, (off_t)at, SEEK_DATA);
    if (data < 0) return errno == ENXIO ? UINT64_MAX : at; /* or the file system cannot tell */
    return (uint64_t)data - (uint64_t)data % TSRI_PAGE_BYTES;
}

int tsri_segment_search(struct tsri_disk *d, struct tsri_disk_lane *lane,
                        const struct tsri_segment *s, uint64_t at, uint64_t *found)
{
    *found = UINT64_MAX;
    if (tsri_region_need(&lane->headers[2], SEARCH_BYTES) != 0) return ENOMEM;
    const uint8_t *buf = lane->headers[2].data;
    while ((at = next_data(s, at)) < s->capacity) {
        uint64_t left = (s->capacity - at) / TSRI_PAGE_BYTES * TSRI_PAGE_BYTES;
        size_t bytes = left < SEARCH_BYTES ? (size_t)left : SEARCH_BYTES;
        if (bytes == 0) return 0;
        int error = tsri_lane_move(d, lane, s, false, lane->headers[2].data, bytes, at);
        if (error) return error;
        for (size_t i = 0; i < bytes; i += TSRI_PAGE_BYTES) {
            struct tsri_record r;
            if (!tsri_record_is_near(buf + i, s->nonce, at + i)) continue;
            if (tsri_record_read(buf + i, s->nonce, at + i, s->capacity, &r) != 0) continue;
            *found = at + i;
            return 0;
        }
        at += bytes;
    }
    return 0;
}

/* ---- making a segment ---- */

/* The file is complete before it has a segment's name. */
static int write_new_file(struct tsri_disk *d, struct tsri_segment *s, const char *tmp)
{
    int flags = O_RDWR | O_CREAT | O_EXCL | (d->direct ? O_DIRECT : 0);
    s->fd = d->io.open(d->io.arg, d->dir_fd, tmp, flags, 0600);
    if (s->fd < 0) return errno;
    if (d->io.fallocate(d->io.arg, s->fd, (off_t)s->capacity) != 0) return errno;
    struct tsri_region page;
    if (tsri_region_init(&page, TSRI_PAGE_BYTES) != 0) return ENOMEM;
    struct tsri_segment_head head = {s->id, s->nonce, s->capacity};
    tsri_segment_head_write(page.data, &head);
    int error = tsri_fileio_write(&d->io, s->fd, page.data, TSRI_PAGE_BYTES, 0);
    tsri_region_fini(&page);
    if (error) return error;
    return d->io.fdatasync(d->io.arg, s->fd) == 0 ? 0 : errno;
}

/* Returns an errno, and nothing is left then. */
static int make_file(struct tsri_disk *d, struct tsri_segment *s)
{
    char name[TSRI_SEGMENT_NAME_BYTES], tmp[40];
    tsri_segment_name(s->id, name);
    snprintf(tmp, sizeof tmp, "new-%s.tmp", name);
    int error = write_new_file(d, s, tmp);
    if (!error && d->io.rename(d->io.arg, d->dir_fd, tmp, name) != 0) error = errno;
    if (!error) return 0;
    if (s->fd >= 0) {
        d->io.close(d->io.arg, s->fd);
        s->fd = -1;
        d->io.unlink(d->io.arg, d->dir_fd, tmp);
    }
    return error;
}

/* A new segment, BUSY and referenced, its bytes and its place among the open ones taken already.
 * Returns an errno. */
static int make_segment(struct tsri_disk *d, uint64_t id, uint64_t capacity,
                        struct tsri_segment **out)
{
    /* One that could be guessed would let KV pass for records. */
    struct tsri_segment *s = tsri_segment_new(id, tsri_nonce());
    int error = s ? 0 : ENOMEM;
    if (s) {
        s->capacity = capacity;
        s->state = TSRI_SEGMENT_BUSY;
        s->n_refs = 1;
        s->unlisted = 1;
        error = make_file(d, s);
    }
    pthread_mutex_lock(&d->lock);
    if (error) {
        d->bytes_alloc -= capacity;
        d->n_open--;
        pthread_cond_broadcast(&d->changed);
    } else {
        d->n_fds++;
        close_one(d);
        d->dir_dirty = true;
        tsri_segment_insert(d, s);
    }
    pthread_mutex_unlock(&d->lock);
    if (error) tsri_free(s);
    *out = error ? NULL : s;
    return error;
}

/* ---- taking a segment to append to ---- */

enum { TAKE_SEALS = 1, TAKE_MAKES = 2, TAKE_NEEDS_ROOM = 3 };

/* What is wanted of a segment that is to be appended to. */
struct wish {
    uint64_t bytes;    /* of the record */
    uint64_t capacity; /* of the segment, if one must be made */
    uint64_t deadline_ns;
    bool spare;
};

/* Finds a segment to append to, or says what must be done first. The lock is held; *out is the
 * segment to take (0) or to seal. */
static int choose(struct tsri_disk *d, const struct wish *w, struct tsri_segment **out)
{
    /* Room for one segment is kept for compaction: without it nothing could be moved any more. */
    uint64_t kept = w->spare ? 0 : d->segment_bytes;
    for (;;) {
        if (d->bytes_max && d->bytes_alloc + kept > d->bytes_max) return TAKE_NEEDS_ROOM;
        struct tsri_segment *fullest = NULL;
        uint32_t n_seen = 0; /* those open are the newest: the walk is short */
        for (struct tsri_segment *s = d->segments; s && n_seen < d->n_open; s = s->next) {
            n_seen += s->state != TSRI_SEGMENT_SEALED;
            if (s->state != TSRI_SEGMENT_OPEN || s->failed) continue;
            *out = s;
            if (s->capacity - s->tail >= w->bytes) return 0;
            if (!fullest || s->capacity - s->tail < fullest->capacity - fullest->tail) fullest = s;
        }
        *out = fullest;
        if (d->n_open < d->open_max || w->bytes + TSRI_PAGE_BYTES > d->segment_bytes) break;
        if (fullest) return TAKE_SEALS;
        if (!tsri_cond_wait(&d->changed, &d->lock, w->deadline_ns)) return TSR_ETIME;
    }
    if (d->bytes_max && d->bytes_alloc + w->capacity + kept > d->bytes_max) return TAKE_NEEDS_ROOM;
    return TAKE_MAKES;
}

static uint64_t capacity_for(uint64_t bytes, uint64_t least)
{
    return bytes + TSRI_PAGE_BYTES > least ? bytes + TSRI_PAGE_BYTES : least;
}

/* Makes the segment that was chosen to be made. Returns 0; 1 when it is worth another try, since
 * the file system was full and a smaller one may do, or there is more room now; or the error. */
static int make_or_shrink(struct tsri_disk *d, struct wish *w, uint64_t id, uint32_t *n_rooms,
                          struct tsri_segment **out)
{
    int error = make_segment(d, id, w->capacity, out);
    if (!error) return 0;
    uint64_t least = capacity_for(w->bytes, SHRUNK_BYTES);
    if (tsri_disk_is_full(error) && w->spare && w->capacity > least) {
        w->capacity = least;
        return 1;
    }
    /* Nothing that lives is given up for it: only what is dead, or reserved and not used. */
    if (tsri_disk_is_full(error) && !w->spare && (*n_rooms)++ < ROOMS_MAX &&
        tsri_disk_make_room(d) == 1)
        return 1;
    return tsri_disk_fail(d, error, "cannot make", "a segment");
}

int tsri_segment_take(struct tsri_disk *d, uint64_t bytes, bool spare, uint64_t deadline_ns,
                      struct tsri_segment **out)
{
    struct wish w = {bytes, capacity_for(bytes, d->segment_bytes), deadline_ns, spare};
    struct tsri_segment *s = NULL;
    for (uint32_t n_rooms = 0;;) {
        if (!spare && !tsri_disk_drop_strays(d, bytes))
            return tsri_fail(TSR_EFULL, "disk: %s is full", d->path);
        pthread_mutex_lock(&d->lock);
        int what = choose(d, &w, &s);
        uint64_t id = 0;
        if (what == 0) {
            s->state = TSRI_SEGMENT_BUSY;
            s->n_refs++; /* OPEN segments are open files */
        } else if (what == TAKE_MAKES) {
            d->bytes_alloc += w.capacity;
            d->n_open++;
            id = d->next_segment++;
        }
        pthread_mutex_unlock(&d->lock);
        *out = s;
        if (what == TSR_ETIME) return tsri_fail(what, "disk: timed out waiting for a segment");
        if (what == 0) return 0;
        if (what == TAKE_MAKES) {
            int err = make_or_shrink(d, &w, id, &n_rooms, out);
            if (err <= 0) return err;
        } else if (what == TAKE_SEALS) {
            tsri_segment_seal(d, s);
        } else {
            int r = spare || n_rooms++ == ROOMS_MAX ? 0 : tsri_disk_make_room(d);
            if (r < 0) return r;
            if (r == 0) return tsri_fail(TSR_EFULL, "disk: %s is full", d->path);
        }
    }
}

void tsri_segment_give(struct tsri_disk *d, struct tsri_segment *s)
{
    pthread_mutex_lock(&d->lock);
    bool finished = s->failed || s->capacity - s->tail < d->segment_bytes / 64;
    s->state = TSRI_SEGMENT_OPEN;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    if (finished) tsri_segment_seal(d, s);
    tsri_segment_unref(d, s);
}

/* ---- sealing and removing ---- */

void tsri_segment_seal(struct tsri_disk *d, struct tsri_segment *s)
{
    pthread_mutex_lock(&d->lock);
    bool mine = s->state == TSRI_SEGMENT_OPEN;
    if (mine) {
        s->state = TSRI_SEGMENT_SEALED;
        s->n_refs++;
        d->n_open--;
        pthread_cond_broadcast(&d->changed);
    }
    uint64_t tail = s->tail;
    pthread_mutex_unlock(&d->lock);
    if (!mine) return; /* another caller has taken or sealed it */
    int cut = d->io.ftruncate(d->io.arg, s->fd, (off_t)tail);
    pthread_mutex_lock(&d->lock);
    if (cut == 0) {
        d->bytes_alloc -= s->capacity - tail;
        s->capacity = tail;
    }
    pthread_mutex_unlock(&d->lock);
    tsri_segment_unref(d, s);
}

int tsri_segment_unlink(struct tsri_disk *d, struct tsri_segment *s)
{
    char name[TSRI_SEGMENT_NAME_BYTES];
    tsri_segment_name(s->id, name);
    if (d->io.unlink(d->io.arg, d->dir_fd, name) != 0 && errno != ENOENT)
        return tsri_disk_fail(d, errno, "cannot remove", name);
    pthread_mutex_lock(&d->lock);
    TSR_ASSERT(s->state == TSRI_SEGMENT_SEALED && s->n_live == 0);
    struct tsri_segment **at = &d->segments;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    d->n_segments--;
    d->bytes_alloc -= s->capacity;
    d->dir_dirty = true;
    d->n_changes++;
    d->n_removed++;
    s->state = TSRI_SEGMENT_GONE;
    s->n_refs++;
    for (uint32_t i = 0; i < d->n_tombs; i++)
        d->tombs[i].unlinked |= d->tombs[i].segment == s->id;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    tsri_segment_unref(d, s);
    return 0;
}

/* ---- entries and tombstones ---- */

void tsri_disk_link(struct tsri_disk *d, uint32_t slot, struct tsri_segment *s, uint64_t offset,
                    uint64_t bytes)
{
    struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, slot);
    e->segment = s;
    e->page = (uint32_t)(offset / TSRI_PAGE_BYTES);
    e->n_pages = (uint32_t)(bytes / TSRI_PAGE_BYTES);
    e->prev = TSRI_NO_SLOT;
    e->next = s->first;
    if (s->first != TSRI_NO_SLOT) tsri_disk_index_at(&d->index, s->first)->prev = slot;
    s->first = slot;
    s->n_live++;
    s->live_bytes += bytes;
    d->bytes_live += bytes;
    d->n_changes++;
}

void tsri_disk_unlink(struct tsri_disk *d, uint32_t slot)
{
    struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, slot);
    struct tsri_segment *s = e->segment;
    uint64_t bytes = (uint64_t)e->n_pages * TSRI_PAGE_BYTES;
    if (e->prev != TSRI_NO_SLOT)
        tsri_disk_index_at(&d->index, e->prev)->next = e->next;
    else
        s->first = e->next;
    if (e->next != TSRI_NO_SLOT) tsri_disk_index_at(&d->index, e->next)->prev = e->prev;
    s->n_live--;
    s->live_bytes -= bytes;
    d->bytes_live -= bytes;
    d->n_changes++;
}

void tsri_disk_forget(struct tsri_disk *d, uint32_t slot)
{
    struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, slot);
    tsri_tomb_add(d, &e->head.key, e->seq, e->segment->id);
    tsri_disk_unlink(d, slot);
    tsri_disk_index_remove(&d->index, slot);
}

void tsri_tomb_add(struct tsri_disk *d, const struct tsr_key *key, uint64_t seq, uint64_t segment)
{
    if (d->read_only) return;
    d->n_changes++;
    if (d->n_tombs == TSRI_TOMBS_PENDING) {
        d->tombs_lost = true;
        return;
    }
    d->tombs[d->n_tombs++] = (struct tsri_tomb){.key = *key, .seq = seq, .segment = segment};
}

int tsri_tombs_flush(struct tsri_disk *d, struct tsri_disk_lane *lane, uint32_t n_all)
{
    struct tsri_tomb tombs[TSRI_TOMBS_MAX];
    for (uint32_t n; n_all; n_all -= n) {
        n = tsri_min_u32(n_all, TSRI_TOMBS_MAX);
        pthread_mutex_lock(&d->lock);
        TSR_ASSERT(n <= d->n_tombs);
        memcpy(tombs, d->tombs, n * sizeof tombs[0]);
        pthread_mutex_unlock(&d->lock);
        struct tsri_segment *s = NULL;
        int err = tsri_region_need(&lane->headers[0], TSRI_PAGE_BYTES);
        if (!err) err = tsri_segment_take(d, TSRI_PAGE_BYTES, true, 0, &s);
        if (err) return err;
        TSR_ASSERT(s);
        pthread_mutex_lock(&d->lock);
        struct tsri_record r = {.nonce = s->nonce, .offset = s->tail, .seq = d->next_seq++};
        pthread_mutex_unlock(&d->lock);
        uint8_t *page = lane->headers[0].data;
        tsri_tombs_write(page, tombs, n, &r);
        int error = tsri_lane_move(d, lane, s, true, page, TSRI_PAGE_BYTES, r.offset);
        pthread_mutex_lock(&d->lock);
        if (error) {
            s->failed = true;
        } else {
            s->tail += TSRI_PAGE_BYTES;
            s->n_tombs += n;
            d->n_tombs -= n;
            memmove(d->tombs, d->tombs + n, d->n_tombs * sizeof tombs[0]);
        }
        pthread_mutex_unlock(&d->lock);
        tsri_segment_give(d, s);
        if (error) return tsri_disk_fail(d, error, "cannot write", "tombstones");
    }
    return 0;
}

/* ---- sync ---- */

void tsri_segment_doubt(struct tsri_disk *d, struct tsri_segment *s)
{
    if (s->n_tombs) d->tombs_lost = true;
    for (uint32_t slot = s->first; slot != TSRI_NO_SLOT;) {
        struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, slot);
        uint32_t next = e->next;
        if ((uint64_t)e->page * TSRI_PAGE_BYTES >= s->synced) {
            tsri_disk_forget(d, slot);
            d->n_doubted++;
        }
        slot = next;
    }
    s->failed = true;
    s->synced = s->tail;
}

static int sync_segment(struct tsri_disk *d, struct tsri_segment *s)
{
    struct stat st;
    pthread_mutex_lock(&d->lock);
    uint64_t tail = s->tail;
    pthread_mutex_unlock(&d->lock);
    int error = d->io.fdatasync(d->io.arg, s->fd) == 0 ? 0 : errno;
    if (!error && fstat(s->fd, &st) == 0 && st.st_nlink == 0) error = ENOENT;
    pthread_mutex_lock(&d->lock);
    bool seal = false;
    if (error) {
        tsri_segment_doubt(d, s);
        seal = s->state == TSRI_SEGMENT_OPEN;
    } else if (s->synced < tail) {
        s->synced = tail;
    }
    pthread_mutex_unlock(&d->lock);
    if (seal) tsri_segment_seal(d, s);
    char name[TSRI_SEGMENT_NAME_BYTES];
    tsri_segment_name(s->id, name);
    return error ? tsri_disk_fail(d, error, "cannot sync", name) : 0;
}

/* A directory whose sync failed may have lost the names of the segments made since the last one,
 * and a later sync would not tell: with the names go all their entries. */
static void doubt_unlisted(struct tsri_disk *d)
{
    for (;;) {
        pthread_mutex_lock(&d->lock);
        struct tsri_segment *s = d->segments;
        while (s && !s->unlisted)
            s = s->next;
        bool seal = s && s->state == TSRI_SEGMENT_OPEN;
        if (s) {
            s->synced = TSRI_PAGE_BYTES;
            tsri_segment_doubt(d, s);
            s->unlisted = 0; /* nothing is left in it to lose */
        }
        pthread_mutex_unlock(&d->lock);
        if (!s) return;
        if (seal) tsri_segment_seal(d, s);
    }
}

/* Segments are made meanwhile. */
int tsri_disk_sync_names(struct tsri_disk *d)
{
    struct stat st;
    pthread_mutex_lock(&d->lock);
    bool dirty = d->dir_dirty;
    d->dir_dirty = false;
    for (struct tsri_segment *s = d->segments; s && dirty; s = s->next)
        if (s->unlisted) s->unlisted = 2;
    pthread_mutex_unlock(&d->lock);
    int error = fstat(d->dir_fd, &st) == 0 && st.st_nlink == 0 ? ENOENT : 0;
    if (!error && dirty && d->io.fsync(d->io.arg, d->dir_fd) != 0) error = errno;
    pthread_mutex_lock(&d->lock);
    for (struct tsri_segment *s = d->segments; s && dirty && !error; s = s->next)
        if (s->unlisted == 2) s->unlisted = 0;
    d->dir_dirty |= error != 0;
    pthread_mutex_unlock(&d->lock);
    if (!error) return 0;
    doubt_unlisted(d);
    return tsri_disk_fail(d, error, "cannot sync", "the directory");
}

int tsri_disk_sync(struct tsri_disk *d)
{
    int result = 0;
    for (uint64_t before = UINT64_MAX;;) {
        /* By id, since the list may change between two of them. Only upkeep removes segments, and
         * upkeep is us. */
        struct tsri_segment *s;
        pthread_mutex_lock(&d->lock);
        for (s = d->segments; s && (s->id >= before || s->synced == s->tail); s = s->next)
            ;
        pthread_mutex_unlock(&d->lock);
        if (!s) break;
        before = s->id;
        int err = tsri_segment_ref(d, s);
        if (!err) {
            err = sync_segment(d, s);
            tsri_segment_unref(d, s);
        } else if (err == TSR_ENOENT) {
            pthread_mutex_lock(&d->lock);
            tsri_segment_doubt(d, s);
            pthread_mutex_unlock(&d->lock);
        }
        if (err) result = err;
    }
    int err = tsri_disk_sync_names(d);
    return result ? result : err;
}
