/* disk_kit.h - a disk tier in a directory of its own, entries put and got by their seeds, and the
 * files looked at and damaged behind its back. */
#ifndef TSRI_DISK_KIT_H
#define TSRI_DISK_KIT_H

#include "support/kv_tier.h"
#include "support/tmpdir.h"
#include "disk/disk.h"

struct disk_kit {
    struct tmpdir dir;
    struct tsri_disk_setup setup;
    struct tsr_tier *tier;
    uint32_t n_threads;
    bool read_only;
};

/* An empty directory; setup is the caller's to change before open. */
void disk_kit_init(struct disk_kit *kit);
void disk_kit_init_fast(struct disk_kit *kit); /* in memory where that is possible */
void disk_kit_fini(struct disk_kit *kit);      /* closes */
int disk_kit_open(struct disk_kit *kit);
void disk_kit_close(struct disk_kit *kit);
/* Closes as a crash would: without a flush, a checkpoint or a seal. */
void disk_kit_crash(struct disk_kit *kit);

struct tsr_tier_stats disk_kit_stats(struct disk_kit *kit);
uint64_t disk_kit_record_bytes(const struct kv_shape *shape);

/* Files whose name ends so. */
int disk_kit_files(const struct disk_kit *kit, const char *suffix);
/* The path of the i-th such file, by name; false when there are fewer. */
bool disk_kit_path(const struct disk_kit *kit, const char *suffix, int i, char *path, size_t bytes);
/* The whole of a file; the caller frees it. NULL when it cannot be read. */
uint8_t *disk_kit_slurp(const char *path, size_t *bytes);
bool disk_kit_spill(const char *path, const void *data, size_t bytes);

#endif
