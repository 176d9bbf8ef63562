/* disk.h - the parts of the disk tier, for its own files and their tests.
 *
 *   fileio.c      the system calls it makes, in a table that tests replace
 *   aio.c         lanes: reads and writes queued by one caller, by io_uring, threads or in place
 *   segment.c     the bytes of a segment file (docs/format.md): pure functions, fuzzed
 *   checkpoint.c  the bytes of the checkpoint: pure functions, fuzzed
 *   disk_index.c  the entries held, by key
 *   disk_log.c    segment files: append to one, make, seal, sync and remove them
 *   disk_pieces.c cuts an entry's KV into reads and writes that fit the rules of O_DIRECT
 *   disk_read.c, disk_write.c   get and put
 *   recover.c     what open does: checkpoint, then headers
 *   compact.c     makes room
 *   disk.c        the table of operations
 *
 * Threads: as each part says; struct tsri_disk has one lock, never held over I/O, and `upkeep`,
 *          taken before it, which lets one flush, compaction or checkpoint run at a time.
 * Memory:  a lane and its buffers belong to one caller between take and give.
 * Errors:  enum tsr_err, except that fileio and aio speak errno.
 */
#ifndef TSRI_DISK_H
#define TSRI_DISK_H

#include "tier/tier.h"

#include <pthread.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Everything on disk begins at a multiple of this: what O_DIRECT asks for on any device in use. */
#define TSRI_PAGE_BYTES 4096u

/* Fields of the formats: little-endian, as every host this runs on. */
static inline void tsri_put32(uint8_t *at, uint32_t v)
{
    memcpy(at, &v, sizeof v);
}
static inline void tsri_put64(uint8_t *at, uint64_t v)
{
    memcpy(at, &v, sizeof v);
}
static inline uint32_t tsri_get32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}
static inline uint64_t tsri_get64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* ---- fileio.c ---- */

/* As the system calls of these names: -1 and errno. Tests put their own in front. */
struct tsri_fileio {
    int (*open)(void *arg, int dir, const char *name, int flags, mode_t mode);
    int (*close)(void *arg, int fd);
    ssize_t (*preadv)(void *arg, int fd, const struct iovec *iov, int n, off_t offset);
    ssize_t (*pwritev)(void *arg, int fd, const struct iovec *iov, int n, off_t offset);
    int (*fdatasync)(void *arg, int fd);
    int (*fsync)(void *arg, int fd); /* of the directory */
    int (*rename)(void *arg, int dir, const char *from, const char *to);
    int (*unlink)(void *arg, int dir, const char *name);
    int (*ftruncate)(void *arg, int fd, off_t bytes);
    int (*fallocate)(void *arg, int fd, off_t bytes); /* reserves and sets the size */
    /* The ring's reads and writes do not come through the table; this sees each of their results
     * and may change it. NULL: leave them. */
    int (*outcome)(void *arg, bool write, int fd, off_t offset, int result);
    void *arg;
};
extern const struct tsri_fileio tsri_fileio_real;

/* Whole ranges through the table, for files that are not segments: 0 or an errno. Reading beyond
 * the end is ENODATA. */
TSR_MUST int tsri_fileio_read(const struct tsri_fileio *io, int fd, void *buf, size_t bytes,
                              uint64_t offset);
TSR_MUST int tsri_fileio_write(const struct tsri_fileio *io, int fd, const void *buf, size_t bytes,
                               uint64_t offset);

/* ---- aio.c ---- */

enum tsri_aio_mode {
    TSRI_AIO_AUTO, /* io_uring, threads where it is refused */
    TSRI_AIO_URING,
    TSRI_AIO_THREADS,
    TSRI_AIO_INLINE, /* each request is carried out as it is queued: tests count them */
};

#define TSRI_AIO_DEPTH 16u /* requests a lane has under way; more brought nothing (bench_disk) */

/* One read or write. The caller fills the first part and keeps everything in place until done. */
struct tsri_aio_req {
    int fd;
    bool write;
    uint64_t offset;
    struct iovec *iov; /* consumed */
    uint32_t n_iov;
    size_t bytes;
    size_t
        align; /* a short transfer goes on at a multiple of this: 1, or the file's for O_DIRECT */

    int error; /* once done: 0, or an errno; ENODATA: the file ends before */
    bool done;
    uint32_t n_stuck; /* transfers in a row that moved nothing */
    struct tsri_job job;
    struct tsri_aio_lane *lane;
};

struct tsri_aio;
struct tsri_aio_lane;
TSR_MUST int tsri_aio_open(struct tsri_aio **out, enum tsri_aio_mode mode,
                           const struct tsri_fileio *io, uint32_t n_lanes);
void tsri_aio_close(struct tsri_aio *a);
/* The mode in use, never AUTO; why io_uring was refused (an errno), or 0. */
enum tsri_aio_mode tsri_aio_mode(const struct tsri_aio *a);
int tsri_aio_refused(const struct tsri_aio *a);
/* Waits for a free lane. */
struct tsri_aio_lane *tsri_aio_take(struct tsri_aio *a);
void tsri_aio_give(struct tsri_aio *a, struct tsri_aio_lane *lane); /* nothing under way */
uint32_t tsri_aio_lane_number(const struct tsri_aio_lane *lane);
/* At most TSRI_AIO_DEPTH at once. Queued requests start with the next kick or wait. */
void tsri_aio_push(struct tsri_aio_lane *lane, struct tsri_aio_req *req);
void tsri_aio_kick(struct tsri_aio_lane *lane);
void tsri_aio_wait(struct tsri_aio_lane *lane, struct tsri_aio_req *req);

/* ---- segment.c: bytes of a segment file ---- */

#define TSRI_DISK_VERSION 1u
#define TSRI_RECORD_HEAD_BYTES 256u
#define TSRI_TOMBS_MAX ((TSRI_PAGE_BYTES - TSRI_RECORD_HEAD_BYTES) / 40u)

enum tsri_record_kind { TSRI_RECORD_ENTRY = 1, TSRI_RECORD_TOMBS = 2 };

struct tsri_segment_head {
    uint64_t id, nonce, capacity;
};

struct tsri_record {
    uint32_t kind;    /* enum tsri_record_kind */
    uint32_t n_tombs; /* of TOMBS */
    uint64_t nonce;   /* of its segment */
    uint64_t offset;  /* in its file */
    uint64_t bytes;   /* whole, a multiple of the page */
    uint64_t seq;
    uint64_t body_sum;
    struct tsr_entry_head head; /* of ENTRY */
};

/* "The record of this key and everything older under the key is gone." Kept while the segment that
 * held the record exists. */
struct tsri_tomb {
    struct tsr_key key;
    uint64_t seq, segment;
};

/* Where the parts of an entry's record stand, from its beginning. */
struct tsri_layout {
    uint32_t n_cells;
    uint64_t tokens_at, extra_at, sums_at, body_end; /* within the header */
    uint64_t header_bytes, record_bytes;
    uint64_t layer_bytes, plane_at[TSRI_ENTRY_PLANES_MAX];
    uint64_t cell_bytes[TSRI_ENTRY_PLANES_MAX];  /* of a full cell's rows */
    uint64_t cell_stride[TSRI_ENTRY_PLANES_MAX]; /* the same up to the page */
    uint64_t last_bytes[TSRI_ENTRY_PLANES_MAX];  /* of the last cell's rows */
};
/* The head must be valid. */
void tsri_layout_init(struct tsri_layout *l, const struct tsr_entry_head *head);
/* Cells are numbered as in tsr_tier_io.planes. */
static inline uint64_t tsri_layout_cells(const struct tsri_layout *l,
                                         const struct tsr_entry_head *head)
{
    return (uint64_t)head->n_layers * head->n_planes * l->n_cells;
}
struct tsri_cell {
    uint32_t layer, plane, cell;
    uint64_t at;            /* from the beginning of the record */
    uint64_t bytes, stride; /* rows, and rows with padding */
};
struct tsri_cell tsri_layout_cell(const struct tsri_layout *l, const struct tsr_entry_head *head,
                                  uint64_t number);

/* 0, TSR_ECORRUPT, or TSR_EVERSION for a good segment of another version. `page` is one page. */
void tsri_segment_head_write(uint8_t *page, const struct tsri_segment_head *h);
TSR_MUST int tsri_segment_head_read(const uint8_t *page, struct tsri_segment_head *h);

/* The head of a record, TSRI_RECORD_HEAD_BYTES. Reading checks everything that can be told from
 * these bytes alone, its place (nonce, offset) and that it ends at or before `end`. */
void tsri_record_write(uint8_t *to, const struct tsri_record *r);
TSR_MUST int tsri_record_read(const uint8_t *from, uint64_t nonce, uint64_t offset, uint64_t end,
                              struct tsri_record *r);

/* A whole header of an entry. fill leaves out the sums, which are set as they become known; seal
 * computes the body's checksum and writes the record's head. */
void tsri_header_fill(uint8_t *header, const struct tsri_layout *l, const struct tsr_entry_head *h,
                      const uint32_t *tokens, const uint8_t *extra);
void tsri_header_seal(uint8_t *header, const struct tsri_layout *l, struct tsri_record *r);
/* TSR_ECORRUPT unless the body is the one whose checksum r has. */
TSR_MUST int tsri_header_check(const uint8_t *header, const struct tsri_layout *l,
                               const struct tsri_record *r);
static inline uint64_t *tsri_header_sums(uint8_t *header, const struct tsri_layout *l)
{
    return (uint64_t *)(void *)(header + l->sums_at);
}
uint64_t tsri_sum(const void *data, size_t bytes);

/* One page of tombstones. */
void tsri_tombs_write(uint8_t *page, const struct tsri_tomb *tombs, uint32_t n,
                      struct tsri_record *r);
TSR_MUST int tsri_tombs_read(const uint8_t *page, const struct tsri_record *r,
                             struct tsri_tomb *tombs); /* room for TSRI_TOMBS_MAX */

/* ---- checkpoint.c: bytes of the checkpoint ---- */

struct tsri_checkpoint_segment {
    uint64_t id, nonce;
    uint64_t covered; /* records before this offset are told of here */
    uint32_t n_tombs; /* tombstones among them */
};
struct tsri_checkpoint_entry {
    uint32_t segment; /* index into the segments of the checkpoint */
    uint32_t page, n_pages;
    uint64_t seq;
    struct tsr_entry_head head;
};
struct tsri_checkpoint {
    uint64_t next_seq, next_segment;
    uint32_t n_segments;
    uint64_t n_entries;
};
#define TSRI_CHECKPOINT_ENTRIES_MAX ((uint64_t)1 << 31)
#define TSRI_CHECKPOINT_SEGMENTS_MAX (1u << 20)
size_t tsri_checkpoint_bytes(uint32_t n_segments, uint64_t n_entries);
/* Written part by part into a buffer of tsri_checkpoint_bytes, then sealed. */
void tsri_checkpoint_put_segment(uint8_t *buf, uint32_t i, const struct tsri_checkpoint_segment *s);
void tsri_checkpoint_put_entry(uint8_t *buf, uint32_t n_segments, uint64_t i,
                               const struct tsri_checkpoint_entry *e);
void tsri_checkpoint_seal(uint8_t *buf, const struct tsri_checkpoint *c);
/* 0, TSR_ECORRUPT or TSR_EVERSION. After 0 every segment and entry may be read; an entry's fields
 * are in range, its place is not proven. */
TSR_MUST int tsri_checkpoint_read(const uint8_t *buf, size_t bytes, struct tsri_checkpoint *c);
void tsri_checkpoint_get_segment(const uint8_t *buf, uint32_t i, struct tsri_checkpoint_segment *s);
/* False for one that cannot be an entry. */
bool tsri_checkpoint_get_entry(const uint8_t *buf, const struct tsri_checkpoint *c, uint64_t i,
                               struct tsri_checkpoint_entry *e);

#endif
