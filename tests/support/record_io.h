/* record_io.h - system calls that are carried out and written down, and the states a crash may
 * leave of them: everything synced is there, of everything else any part may be, sector by sector.
 */
#ifndef TSRI_RECORD_IO_H
#define TSRI_RECORD_IO_H

#include "disk/disk.h"

enum record_kind {
    RECORD_CREATE, /* a name for a new, empty file */
    RECORD_WRITE,
    RECORD_SIZE,
    RECORD_SYNC,
    RECORD_SYNC_DIR,
    RECORD_RENAME,
    RECORD_UNLINK,
};

struct record_op {
    enum record_kind kind;
    uint32_t file; /* a number for each file ever made */
    uint64_t offset, bytes;
    uint8_t *data;
    char name[48], to[48];
};

enum { RECORD_FDS = 256, RECORD_NAMES = 64 };

struct record_io {
    struct tsri_fileio io; /* for tsri_disk_setup.io */
    struct record_op *ops;
    size_t n_ops, ops_max;
    uint32_t n_files;
    uint32_t by_fd[RECORD_FDS];
    struct record_name {
        char name[48];
        uint32_t file;
    } names[RECORD_NAMES]; /* the directory as it is now */
    size_t n_names;
};
void record_io_init(struct record_io *r);
void record_io_fini(struct record_io *r);

/* How the unsynced part of a crash state is chosen. */
enum record_luck { RECORD_ALL, RECORD_NONE, RECORD_SOME };
/* Writes into an empty directory what a crash before op `at` may have left there. */
void record_io_replay(const struct record_io *r, size_t at, enum record_luck luck, uint64_t seed,
                      const char *dir);

#endif
