/* disk_script.h - a fixed run of puts, drops, flushes, gets and restarts on a disk tier, with a
 * model beside it of what a crash at any moment may leave: what was acknowledged by a flush and not
 * touched since must be there (or be gone, when it was dropped); everything else may be either; a
 * wrong byte is never allowed. */
#ifndef TSRI_DISK_SCRIPT_H
#define TSRI_DISK_SCRIPT_H

#include "support/disk_kit.h"

enum { SCRIPT_KEYS = 24 };
enum script_state { SCRIPT_GONE, SCRIPT_THERE, SCRIPT_EITHER };

struct disk_script {
    struct disk_kit *kit;
    bool put[SCRIPT_KEYS];    /* put, and not dropped since: if it is gone, a fault took it */
    bool unseen[SCRIPT_KEYS]; /* not found by an open that met a fault; may be found by the next */
    bool held[SCRIPT_KEYS];   /* what the running tier is believed to hold */
    uint8_t acked[SCRIPT_KEYS]; /* what must survive a crash now: enum script_state */
    /* Called before and after each change of `acked`. */
    void (*note)(struct disk_script *s, void *arg);
    void *arg;
    uint32_t n_flushed; /* flushes that succeeded */
    bool faulty;        /* the disk may fail: a miss is not yet a loss */
    const char *wrong;  /* the first thing that must not be; NULL: none */
};

void disk_script_init(struct disk_script *s, struct disk_kit *kit);
/* The steps; each may fail, the model follows. */
void disk_script_put(struct disk_script *s, uint64_t key);
void disk_script_put_batch(struct disk_script *s, uint64_t from, uint64_t to);
void disk_script_drop(struct disk_script *s, uint64_t key);
void disk_script_flush(struct disk_script *s);
/* All of it, on a tier that is open; leaves it open or, after a failed reopen, closed. */
void disk_script_run(struct disk_script *s);
/* The same with steps drawn from the seed. */
void disk_script_run_random(struct disk_script *s, uint64_t seed, int n_steps);
/* Reads everything from an open tier and compares it with what must have survived. */
void disk_script_check(struct disk_script *s);
const struct kv_shape *disk_script_shape(uint64_t key);

#endif
