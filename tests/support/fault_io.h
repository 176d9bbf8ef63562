/* fault_io.h - system calls for the disk tier that count, and of which the n-th fails: with an
 * error, or by moving fewer bytes than asked. */
#ifndef TSRI_FAULT_IO_H
#define TSRI_FAULT_IO_H

#include "disk/disk.h"

enum fault_call {
    FAULT_OPEN = 1,
    FAULT_READ = 2,
    FAULT_WRITE = 4,
    FAULT_SYNC = 8,
    FAULT_RENAME = 16,
    FAULT_UNLINK = 32,
    FAULT_SIZE = 64, /* ftruncate, fallocate */
    FAULT_ALL = 127
};

#define FAULT_SHORT (-1) /* instead of an errno: half the bytes of a read or write */

struct fault_io {
    struct tsri_fileio io;    /* for tsri_disk_setup.io */
    _Atomic uint32_t n_calls; /* of the kinds in `calls` */
    uint32_t calls;           /* enum fault_call */
    uint32_t nth;             /* 0: none fails */
    uint32_t again;           /* and so many after it */
    int error;
    _Atomic uint32_t n_failed;
};
void fault_io_init(struct fault_io *f);
/* Counts anew: the nth call of these kinds from now on fails, and `again` more. */
void fault_io_set(struct fault_io *f, uint32_t calls, uint32_t nth, uint32_t again, int error);

#endif
