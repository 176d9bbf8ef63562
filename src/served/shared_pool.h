/* shared_pool.h - the memory of a server, as the clients of a cache handle have mapped it. Each
 * client has a session, and each session is given the same memory: it is mapped once and, for a
 * device that needs it, page-locked once, from the first session on. It stays until the last
 * session that knows it is over and nothing reads it any more.
 *
 * What a session gives the server to copy from is a pool of the same set, with one user: it is
 * page-locked when a device first writes there, and its locks end like those of the others.
 *
 * Threads: any.
 * Memory:  a pool outlives the set that it is of, if something still has it, but not its locks.
 */
#ifndef TSRI_SHARED_POOL_H
#define TSRI_SHARED_POOL_H

#include "device/locking.h"
#include "wire/wire.h"

struct tsri_shared_pool {
    struct tsri_region region;    /* the server's: to be read; our own: to be written */
    struct tsri_locking *locking; /* NULL: no device needs it */
    /* shared_pool.c's: */
    struct tsri_shared_pools *set;
    struct tsri_shared_pool *next;
    bool is_own;
    uint64_t boot_id, device_id, inode; /* which memory of a server it is */
    uint32_t refs;                      /* under the set's lock; without a set it has one */
    struct tsri_job job;
};

/* Those of one cache handle. `device` (NULL: none) and `work` stay until close. */
struct tsri_shared_pools;
TSR_MUST int tsri_shared_pools_open(struct tsri_shared_pools **out, struct tsri_device *device,
                                    struct tsri_work *work);
/* Unlocks all of them; nothing may be moving through the device. `work` still runs. Accepts NULL.
 */
void tsri_shared_pools_close(struct tsri_shared_pools *set);

/* The pool that a session was given as fd, which stays the caller's. set NULL: one of its own. */
TSR_MUST int tsri_shared_pool_take(struct tsri_shared_pool **out, struct tsri_shared_pools *set,
                                   const struct tsri_wire_welcome *w, int fd);
/* A pool of our own memory, which is taken over. set NULL: nothing of it is ever locked. */
TSR_MUST int tsri_shared_pool_give(struct tsri_shared_pool **out, struct tsri_shared_pools *set,
                                   struct tsri_region *region);
/* Page-locks a pool of our own in one piece, unless it is: a device may refuse copies that go from
 * one piece into the next. TSR_EUNSUP: it is not by then (tsri_now_ns). */
TSR_MUST int tsri_shared_pool_lock(struct tsri_shared_pool *p, uint64_t until_ns);
/* Never waits for a device: unlocking takes seconds, and is left to `work`. Accepts NULL. */
void tsri_shared_pool_release(struct tsri_shared_pool *p);

#endif
