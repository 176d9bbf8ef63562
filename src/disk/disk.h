/* disk.h - the parts of the disk tier, for its own files and their tests.
 *
 *   fileio.c      the system calls it makes, in a table that tests replace
 *   aio.c         lanes: reads and writes queued by one caller, by io_uring, threads or in place
 *   segment.c     the bytes of a segment file (docs/format.md): pure functions, fuzzed
 *   checkpoint.c  the bytes of the checkpoint: pure functions, fuzzed
 *   disk_index.c  the entries held, by key
 *   disk_order.c  the same by their last use, and which of them the cache does not know
 *   disk_windows.c  hashes of their text, so that it is found at any offset before it is read
 *   disk_files.c  segment files: make, append to, seal, sync and remove them
 *   pieces.c      cuts an entry's KV into reads and writes that fit the rules of O_DIRECT
 *   disk_get.c, disk_put.c   get and put
 *   recover.c     what open does: checkpoint, then headers
 *   compact.c     upkeep: flush, making room, writing the checkpoint
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

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

enum tsri_aio_mode {
    TSRI_AIO_AUTO, /* io_uring, threads where it is refused */
    TSRI_AIO_URING,
    TSRI_AIO_THREADS,
    TSRI_AIO_INLINE, /* each request is carried out as it is queued: tests count them */
};

/* Everything on disk begins at a multiple of this: what O_DIRECT asks for on any device in use. */
#define TSRI_PAGE_BYTES 4096u

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
    /* Asked before requests are handed to a ring: 0, or an errno with which that fails. NULL: 0. */
    int (*refuse_ring)(void *arg);
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
/* The mode in use, never AUTO. */
enum tsri_aio_mode tsri_aio_mode(const struct tsri_aio *a);
/* Waits for a free lane; NULL after the deadline (0: none). What a lane has under way cannot be
 * taken back: its memory is the kernel's until it is done. */
struct tsri_aio_lane *tsri_aio_take(struct tsri_aio *a, uint64_t deadline_ns);
void tsri_aio_give(struct tsri_aio *a, struct tsri_aio_lane *lane); /* nothing under way */
uint32_t tsri_aio_lane_number(const struct tsri_aio_lane *lane);
/* At most TSRI_AIO_DEPTH at once. Queued requests start with the next kick or wait. */
void tsri_aio_push(struct tsri_aio_lane *lane, struct tsri_aio_req *req);
void tsri_aio_kick(struct tsri_aio_lane *lane);
void tsri_aio_wait(struct tsri_aio_lane *lane, struct tsri_aio_req *req);
/* Without waiting: takes note of what has arrived, then tells of one request. */
void tsri_aio_poll(struct tsri_aio_lane *lane);
bool tsri_aio_is_done(struct tsri_aio_lane *lane, const struct tsri_aio_req *req);

/* ---- segment.c: bytes of a segment file ---- */

#define TSRI_DISK_VERSION 1u
#define TSRI_RECORD_HEAD_BYTES 256u
#define TSRI_TOMBS_MAX ((TSRI_PAGE_BYTES - TSRI_RECORD_HEAD_BYTES) / 40u)

enum tsri_record_kind { TSRI_RECORD_ENTRY = 1, TSRI_RECORD_TOMBS = 2 };

struct tsri_segment_head {
    uint64_t id, nonce, capacity;
};

struct tsri_record {
    uint32_t kind;     /* enum tsri_record_kind */
    uint32_t n_tombs;  /* of TOMBS */
    uint32_t n_copies; /* of ENTRY: how often compaction has copied it */
    uint64_t nonce;    /* of its segment */
    uint64_t offset;   /* in its file */
    uint64_t bytes;    /* whole, a multiple of the page */
    uint64_t seq;
    uint64_t body_sum;
    struct tsr_entry_head head; /* of ENTRY */
};

/* "The record with this number in this segment is dead." It says nothing of other records under the
 * key: each one that dies gets a tombstone of its own, kept while its segment exists. */
struct tsri_tomb {
    struct tsr_key key;
    uint64_t seq, segment;
    bool unlinked; /* its segment was, since: with the next sync of the directory nobody needs it */
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
/* One cell of one plane, where it stands in a record; in memory it is struct tsri_cell (wire.h). */
struct tsri_disk_cell {
    uint32_t layer, plane, cell;
    uint64_t at;            /* from the beginning of the record */
    uint64_t bytes, stride; /* rows, and rows with padding */
};
struct tsri_disk_cell tsri_layout_cell(const struct tsri_layout *l,
                                       const struct tsr_entry_head *head, uint64_t number);

/* 0, TSR_ECORRUPT, or TSR_EVERSION for a good segment of another version. `page` is one page. */
void tsri_segment_head_write(uint8_t *page, const struct tsri_segment_head *h);
TSR_MUST int tsri_segment_head_read(const uint8_t *page, struct tsri_segment_head *h);

/* The head of a record, TSRI_RECORD_HEAD_BYTES. Reading checks everything that can be told from
 * these bytes alone, its place (nonce, offset) and that it ends at or before `end`. */
void tsri_record_write(uint8_t *to, const struct tsri_record *r);
TSR_MUST int tsri_record_read(const uint8_t *from, uint64_t nonce, uint64_t offset, uint64_t end,
                              struct tsri_record *r);
/* Whether the bytes begin as a record in this place does: cheap, and not proven. */
static inline bool tsri_record_is_near(const uint8_t *from, uint64_t nonce, uint64_t offset)
{
    return tsri_get64(from + 8) == nonce && tsri_get64(from + 16) == offset;
}

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
    uint32_t n_windows;
    uint32_t shingled; /* 1: shingles follow its windows */
};
struct tsri_checkpoint {
    uint64_t next_seq, next_segment;
    uint32_t n_segments;
    uint64_t n_entries;
    uint64_t n_words; /* of all entries: windows and shingles */
};
#define TSRI_CHECKPOINT_ENTRIES_MAX ((uint64_t)1 << 31)
#define TSRI_CHECKPOINT_SEGMENTS_MAX (1u << 20)
#define TSRI_CHECKPOINT_WORDS_MAX ((uint64_t)1 << 40)
size_t tsri_checkpoint_bytes(uint32_t n_segments, uint64_t n_entries, uint64_t n_words);
/* Written part by part into a buffer of tsri_checkpoint_bytes, then sealed. */
void tsri_checkpoint_put_segment(uint8_t *buf, uint32_t i, const struct tsri_checkpoint_segment *s);
void tsri_checkpoint_put_entry(uint8_t *buf, uint32_t n_segments, uint64_t i,
                               const struct tsri_checkpoint_entry *e);
/* Words are numbered through, in the order of the entries; of each the windows, then the shingles. */
void tsri_checkpoint_put_words(uint8_t *buf, const struct tsri_checkpoint *c, uint64_t first,
                               const uint64_t *words, uint32_t n);
const uint64_t *tsri_checkpoint_words(const uint8_t *buf, const struct tsri_checkpoint *c);
void tsri_checkpoint_seal(uint8_t *buf, const struct tsri_checkpoint *c);
/* What its first bytes say of a file of that length, before the rest is read; errors as below. */
#define TSRI_CHECKPOINT_HEAD_BYTES 64u
TSR_MUST int tsri_checkpoint_read_head(const uint8_t *head, uint64_t bytes,
                                       struct tsri_checkpoint *c);
/* 0, TSR_ECORRUPT or TSR_EVERSION. After 0 every segment and entry may be read; an entry's fields
 * are in range, its place is not proven. */
TSR_MUST int tsri_checkpoint_read(const uint8_t *buf, size_t bytes, struct tsri_checkpoint *c);
void tsri_checkpoint_get_segment(const uint8_t *buf, uint32_t i, struct tsri_checkpoint_segment *s);
/* Its key alone. */
struct tsr_key tsri_checkpoint_get_key(const uint8_t *buf, const struct tsri_checkpoint *c,
                                       uint64_t i);
/* False for one that cannot be an entry. */
bool tsri_checkpoint_get_entry(const uint8_t *buf, const struct tsri_checkpoint *c, uint64_t i,
                               struct tsri_checkpoint_entry *e);

/* ---- disk_index.c: the entries held ---- */

struct tsri_segment;

#define TSRI_NO_SLOT UINT32_MAX

/* One entry. Its number + 1 is its loc. */
struct tsri_disk_slot {
    struct tsr_entry_head head;
    uint64_t seq;
    struct tsri_segment *segment; /* NULL: free */
    uint32_t page, n_pages;       /* of the record, in its segment */
    uint32_t n_copies;            /* as the record says; known and needed while open recovers */
    uint32_t n_windows;           /* known hashes of its windows, from the first on */
    uint64_t *words;              /* of these, and of its shingles; own, or in the index's region */
    uint32_t next, prev;          /* in the list of its segment; next: in the list of free slots */
    uint32_t newer, older;        /* in the list of its last use */
    bool stray;                   /* which of the two lists */
    bool walked;                  /* not told by the checkpoint; while open recovers */
    bool shingled;                /* its shingles are known, of the same tokens */
};

/* Slots by their last use. */
struct tsri_disk_order {
    uint32_t newest, oldest, n;
};

/* Guarded by the lock of the disk. Slots do not move; the table of keys grows. */
struct tsri_disk_index {
    struct tsri_disk_slot **blocks;
    uint32_t n_blocks, n_slots, free;
    struct tsri_region bulk; /* the first n_bulk blocks, when many were reserved at once */
    uint32_t n_bulk;
    uint32_t n_entries;
    struct tsri_disk_order order[2]; /* [0] what the cache knows, [1] strays */
    struct tsri_region words;        /* those of the checkpoint */
    struct tsri_disk_place {
        uint32_t slot, tag; /* tag: bytes of the key, so that other keys' slots are not touched */
    } * table;              /* open addressing */
    uint32_t mask;
};
TSR_MUST int tsri_disk_index_init(struct tsri_disk_index *x);
void tsri_disk_index_fini(struct tsri_disk_index *x);
struct tsri_disk_slot *tsri_disk_index_at(const struct tsri_disk_index *x, uint32_t slot);
/* Brings the place where a key would be nearer, for a find that follows soon. */
void tsri_disk_index_near(const struct tsri_disk_index *x, const struct tsr_key *key);
uint32_t tsri_disk_index_find(const struct tsri_disk_index *x, const struct tsr_key *key);
/* A new slot for a key that is not there, with its head set; or TSRI_NO_SLOT without memory. */
uint32_t tsri_disk_index_add(struct tsri_disk_index *x, const struct tsr_entry_head *head);
void tsri_disk_index_remove(struct tsri_disk_index *x, uint32_t slot);
/* Makes room for n entries more, so that adding them does not fail. */
TSR_MUST int tsri_disk_index_reserve(struct tsri_disk_index *x, uint64_t n);

/* ---- disk_order.c: entries by their last use ---- */

/* A stray is an entry that the cache has no place for in its index. It stays for a later open, and
 * goes when the tier needs room, before anything else does. The lock of the disk guards all. */
void tsri_order_init(struct tsri_disk_index *x);
void tsri_order_add(struct tsri_disk_index *x, uint32_t slot, bool stray); /* as the newest */
void tsri_order_remove(struct tsri_disk_index *x, uint32_t slot);
void tsri_order_touch(struct tsri_disk_index *x, uint32_t slot, bool stray);
void tsri_order_put_last(struct tsri_disk_index *x, uint32_t slot); /* the oldest that is known */
/* Entries that open has found by walking are newer than all that the checkpoint tells of, in the
 * order in which they were put. */
TSR_MUST int tsri_order_walked(struct tsri_disk_index *x);

/* ---- the disk ---- */

enum tsri_segment_state {
    TSRI_SEGMENT_SEALED, /* only read from */
    TSRI_SEGMENT_OPEN,   /* may be appended to */
    TSRI_SEGMENT_BUSY,   /* is being appended to, by one caller */
    TSRI_SEGMENT_GONE,   /* unlinked; freed with its last reference */
};

/* A segment file. Guarded by the lock of the disk, except that the caller that has it BUSY may read
 * tail. */
struct tsri_segment {
    struct tsri_segment *next; /* descending id */
    uint64_t id, nonce;
    enum tsri_segment_state state;
    bool failed; /* a write or sync failed: nothing more is appended */
    bool unread; /* a read failed: what it holds stays as it is until the next open */
    bool doomed; /* holds nothing; removed after the next sync */
    uint8_t
        unlisted;    /* 1: made after the last sync of the directory; 2: before the one under way */
    int fd;          /* -1: not open now */
    uint32_t n_refs; /* callers that use the fd */
    uint64_t capacity; /* bytes the file takes */
    uint64_t tail;     /* records end here */
    uint64_t synced;   /* records before this survive a crash */
    uint64_t live_bytes;
    uint32_t n_live, first; /* its slots */
    uint32_t n_tombs;
    uint32_t number;  /* in the checkpoint that is being written */
    uint64_t weighed; /* its tombstones meant something when so many segments (+ 1) had gone */
};

/* Pieces a get has in hand: those under way, and half as many that have arrived and wait for their
 * check, so that the disk is busy meanwhile. */
#define TSRI_PIECES (TSRI_AIO_DEPTH + TSRI_AIO_DEPTH / 2)
#define TSRI_PIECE_IOVS 128u
#define TSRI_UNDER_WAY 8u        /* entries a caller has under way at once */
#define TSRI_TOMBS_PENDING 1024u /* drops not yet written */

/* A read or write of whole cells, as one request. */
struct tsri_disk_piece {
    struct tsri_aio_req req;
    struct iovec iov[TSRI_PIECE_IOVS];
    struct tsri_region bounce; /* for what is not aligned; taken when first needed */
    size_t bounce_used;
    uint64_t first, end, next; /* cells [first, end); the piece after it begins with cell `next` */
    uint32_t owner;            /* which entry under way */
    bool is_header;
};

/* What one caller works with. */
struct tsri_disk_lane {
    struct tsri_aio_lane *aio;
    struct tsri_disk_piece pieces[TSRI_PIECES];
    struct tsri_region headers[TSRI_UNDER_WAY];
};

/* What env.arg may point to: overrides the configuration; tests use it. Zero: as configured. */
struct tsri_disk_setup {
    const char *path;
    uint64_t bytes_max, segment_bytes;
    enum tsri_aio_mode mode;
    bool buffered;
    const struct tsri_fileio *io;
};

struct tsri_disk {
    struct tsr_tier base; /* first */
    struct tsri_fileio io;
    struct tsri_aio *aio;
    struct tsri_disk_lane *lanes; /* by number of the aio lane; the last is upkeep's */
    uint32_t n_lanes;
    struct tsri_fork_guard guard;
    char *path;
    int dir_fd, lock_fd;
    bool read_only;
    bool direct;  /* O_DIRECT */
    size_t align; /* what it asks of memory and lengths; 1 where buffered */
    uint64_t bytes_max, live_max, segment_bytes;
    uint32_t open_max; /* segments appended to at once */

    pthread_mutex_t upkeep; /* one flush, compaction or checkpoint at a time; before lock */
    struct tsri_disk_lane *upkeep_lane;

    pthread_mutex_t lock; /* all below; never held over I/O */
    pthread_cond_t changed;
    struct tsri_disk_index index;
    struct tsri_segment *segments;
    uint32_t n_segments, n_open, n_fds; /* n_open: OPEN and BUSY */
    uint64_t bytes_alloc, bytes_live;
    uint64_t next_seq, next_segment;
    struct tsri_tomb tombs[TSRI_TOMBS_PENDING];
    uint32_t n_tombs;
    bool tombs_lost; /* more than that could not be written: the checkpoint must tell */
    bool dir_dirty;
    uint64_t n_doubted; /* entries let go since the last flush because a sync failed */
    uint64_t n_removed; /* segments, since open */
    uint64_t n_changes; /* since the checkpoint */
    bool reordered;     /* entries were used since then */
    uint64_t n_ignored; /* files that are none of ours or damaged */

    _Atomic uint64_t read_bytes, written_bytes, errors, corrupt;
};

/* errno of an operation on a file as enum tsr_err, with a message. */
int tsri_disk_fail(struct tsri_disk *d, int error, const char *what, const char *name);
/* TSR_EPERM unless it is a regular file of this user, or root's. */
TSR_MUST int tsri_disk_check_ours(struct tsri_disk *d, int fd, const char *name, struct stat *st);
/* Opens a file of the store that anybody may have put there: never through a link, never waiting
 * for the other end of a FIFO, and checked as above. TSR_ENOENT when it is not there. */
TSR_MUST int tsri_disk_open_ours(struct tsri_disk *d, const char *name, int flags, struct stat *st,
                                 int *fd);
/* Does this errno say that the file system has no more room for us? */
static inline bool tsri_disk_is_full(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

/* ---- disk_files.c ---- */

#define TSRI_SEGMENT_NAME_BYTES 24u
/* No store counts so far; a file that claims to is not one of ours. */
#define TSRI_SEGMENT_ID_MAX ((uint64_t)1 << 56)
void tsri_segment_name(uint64_t id, char name[TSRI_SEGMENT_NAME_BYTES]);
/* The id of a segment's file name, or 0. */
uint64_t tsri_segment_id(const char *name);
struct tsri_segment *tsri_segment_new(uint64_t id, uint64_t nonce);
/* Into the list of the disk, by id. The lock is held. */
void tsri_segment_insert(struct tsri_disk *d, struct tsri_segment *s);
/* Opens the file if it is not, and keeps it open until put back. */
TSR_MUST int tsri_segment_ref(struct tsri_disk *d, struct tsri_segment *s);
void tsri_segment_unref(struct tsri_disk *d, struct tsri_segment *s);
/* A segment with room for a record of that many bytes, BUSY and referenced. spare: may use the room
 * that is kept for compaction, does not compact, and makes a small segment where the file system
 * has no room for one of the usual size. TSR_EFULL at the limit of the store, TSR_EIO when the file
 * system is full; TSR_ETIME after the deadline (0: none). */
TSR_MUST int tsri_segment_take(struct tsri_disk *d, uint64_t bytes, bool spare,
                               uint64_t deadline_ns, struct tsri_segment **out);
/* The opposite. Seals it when it is full or failed. */
void tsri_segment_give(struct tsri_disk *d, struct tsri_segment *s);
/* Nothing more is appended; its unused bytes go back. Sets OPEN segments SEALED. */
void tsri_segment_seal(struct tsri_disk *d, struct tsri_segment *s);
/* Removes the file of a SEALED segment that holds nothing. */
TSR_MUST int tsri_segment_unlink(struct tsri_disk *d, struct tsri_segment *s);
/* A sync failed: what was written since the last one is not known to be on disk, and a later sync
 * would not tell. It is dropped rather than acknowledged. The lock is held. */
void tsri_segment_doubt(struct tsri_disk *d, struct tsri_segment *s);
/* Everything written so far survives a crash. Upkeep is held. */
TSR_MUST int tsri_disk_sync(struct tsri_disk *d);
/* The names of all files made or removed so far survive a crash; part of the former. */
TSR_MUST int tsri_disk_sync_names(struct tsri_disk *d);
/* One read or write at a time, of whole pages. Returns an errno. */
TSR_MUST int tsri_lane_move(struct tsri_disk *d, struct tsri_disk_lane *lane,
                            const struct tsri_segment *s, bool write, void *buf, size_t bytes,
                            uint64_t offset);
/* The next record at or behind `at`, looked for in every page: for what follows a damaged
 * one. *found is UINT64_MAX when there is none. Returns an errno. The file is open. */
TSR_MUST int tsri_segment_search(struct tsri_disk *d, struct tsri_disk_lane *lane,
                                 const struct tsri_segment *s, uint64_t at, uint64_t *found);

/* Entries and tombstones; the lock is held. */
void tsri_disk_link(struct tsri_disk *d, uint32_t slot, struct tsri_segment *s, uint64_t offset,
                    uint64_t bytes);
void tsri_disk_unlink(struct tsri_disk *d, uint32_t slot); /* from its segment */
void tsri_disk_forget(struct tsri_disk *d, uint32_t slot); /* from everywhere, leaving a tomb */
void tsri_tomb_add(struct tsri_disk *d, const struct tsr_key *key, uint64_t seq, uint64_t segment);
/* Writes the n oldest that are pending. Upkeep is held, the lock is not. */
TSR_MUST int tsri_tombs_flush(struct tsri_disk *d, struct tsri_disk_lane *lane, uint32_t n);

/* ---- pieces.c ---- */

/* The KV of one entry: where it stands in memory and on disk. */
struct tsri_kv {
    struct tsr_entry_head head;
    struct tsri_layout layout;
    void *const *planes; /* as in tsr_tier_io */
    uint64_t offset;     /* of the record in its segment */
    size_t align;        /* what O_DIRECT asks of memory and lengths; 1: nothing */
};
/* The first cell from `from` on that is wanted, or the number of cells. */
uint64_t tsri_piece_skip(const struct tsri_kv *kv, uint64_t from);
/* Fills a piece with cells from `from` on (which is wanted) and prepares its request, all but fd.
 * Bytes that are to be written and are not aligned are copied here. */
TSR_MUST int tsri_piece_cut(struct tsri_disk_piece *p, const struct tsri_kv *kv, uint64_t from,
                            bool write);
/* After a read: brings what was not aligned to its place and compares each cell with its sum. */
TSR_MUST int tsri_piece_check(const struct tsri_disk_piece *p, const struct tsri_kv *kv,
                              const uint64_t *sums);
/* The sums of its cells. */
void tsri_piece_sum(const struct tsri_disk_piece *p, const struct tsri_kv *kv, uint64_t *sums);

/* ---- disk_windows.c ---- */

void tsri_disk_windows_free(const struct tsri_disk_index *x, struct tsri_disk_slot *s);
/* Keeps the hashes of an entry that is held, of as many tokens as are known; of what its first page
 * has. The lock is not held. */
void tsri_disk_learn(struct tsri_disk *d, const struct tsr_entry_head *head, const uint32_t *tokens,
                     uint32_t n_tokens, const uint8_t *extra);
void tsri_disk_learn_page(struct tsri_disk *d, const struct tsr_entry_head *head,
                          const uint8_t *page);
/* Words of an entry's windows and shingles. Two shingles are a word. */
uint32_t tsri_disk_n_words(uint32_t n_tokens, uint32_t n_windows, bool shingled);
int tsri_disk_windows(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint64_t *out,
                      uint32_t max);
int tsri_disk_shingles(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint32_t *out,
                       uint32_t max);

/* ---- disk_order.c, of a whole disk ---- */

/* Members of tsr_tier_ops. */
int tsri_disk_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg);
int tsri_disk_unlist(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n);
int tsri_disk_purge(struct tsr_tier *tier, const uint8_t *space);
/* Drops strays until a record of that many bytes fits; false when that is not enough. Neither lock
 * is held. */
bool tsri_disk_drop_strays(struct tsri_disk *d, uint64_t bytes);

/* ---- disk_get.c, disk_put.c, recover.c, compact.c ---- */

int tsri_disk_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
int tsri_disk_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
/* NULL after the deadline. */
struct tsri_disk_lane *tsri_lane_take(struct tsri_disk *d, uint64_t deadline_ns);
/* The time at which the last of them is late; 0: never. */
uint64_t tsri_disk_deadline(const struct tsr_tier_io *io, size_t n);
void tsri_lane_give(struct tsri_disk *d, struct tsri_disk_lane *lane);

/* Fills the index from the files. */
TSR_MUST int tsri_disk_recover(struct tsri_disk *d);

/* Flush: writes what is pending and syncs; then removes segments that hold nothing, empties one
 * that is mostly dead, and writes the checkpoint when it is due. closing: besides that, nothing is
 * left open and the checkpoint is up to date. Fails, once, also when a sync that failed before made
 * the store let go of entries. */
TSR_MUST int tsri_disk_upkeep(struct tsri_disk *d, bool closing);
/* Writes the tombstones that are pending, after a sync of what took the place of the dead. Upkeep
 * is held. */
TSR_MUST int tsri_disk_bury(struct tsri_disk *d);
/* Gives back the bytes of dead entries. Returns 1 when there is more room now, 0 when not. */
TSR_MUST int tsri_disk_make_room(struct tsri_disk *d);

/* ---- disk.c ---- */

/* "io_uring, O_DIRECT" and the like. */
const char *tsri_disk_mode(const struct tsr_tier *tier);

#endif
