/* lock_kit.h - a device that needs page-locked memory and notes what it is given, with a gate: it
 * locks so many pieces, then waits, or fails at one of them. Over another device (lock_kit_wrap) it
 * moves KV as that does. */
#ifndef TSRI_LOCK_KIT_H
#define TSRI_LOCK_KIT_H

#include "device/locking.h"
#include "support/test.h"

#include <pthread.h>

#define LOCK_PIECE ((size_t)128 << 20)
#define LOCK_SOON_NS UINT64_C(10000000000) /* for what does not take long */
enum { LOCK_CALLS = 16 };

/* In the order of the calls. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *at[LOCK_CALLS];
    size_t bytes[LOCK_CALLS];
    uint32_t n, n_unlocked, n_allowed, fails_at;
    uint32_t n_begun; /* calls that have come, whether they wait or not */
} locks = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int lock_kit_register(struct tsr_device *d, void *p, size_t bytes)
{
    (void)d;
    pthread_mutex_lock(&locks.lock);
    locks.n_begun++;
    pthread_cond_broadcast(&locks.changed);
    while (locks.n >= locks.n_allowed)
        pthread_cond_wait(&locks.changed, &locks.lock);
    int e = locks.n == locks.fails_at ? tsri_fail(TSR_EDEVICE, "gate: cannot lock") : 0;
    if (!e) {
        locks.at[locks.n] = p;
        locks.bytes[locks.n++] = bytes;
    }
    pthread_mutex_unlock(&locks.lock);
    return e;
}

static void lock_kit_unregister(struct tsr_device *d, void *p)
{
    (void)d;
    pthread_mutex_lock(&locks.lock);
    for (uint32_t i = 0; i < locks.n; i++) {
        if (locks.at[i] != p) continue;
        locks.at[i] = NULL;
        locks.n_unlocked++;
    }
    pthread_mutex_unlock(&locks.lock);
}

static struct tsr_device_ops lock_ops = {.name = "gate",
                                         .caps = TSR_DEVICE_NEEDS_LOCK,
                                         .host_register = lock_kit_register,
                                         .host_unregister = lock_kit_unregister};

static inline void lock_kit_allow(uint32_t n)
{
    pthread_mutex_lock(&locks.lock);
    locks.n_allowed = n;
    pthread_cond_broadcast(&locks.changed);
    pthread_mutex_unlock(&locks.lock);
}

/* Until the device is at a piece, which it then locks even if it is told to stop. */
static inline void lock_kit_wait_begun(uint32_t n)
{
    pthread_mutex_lock(&locks.lock);
    while (locks.n_begun < n)
        pthread_cond_wait(&locks.changed, &locks.lock);
    pthread_mutex_unlock(&locks.lock);
}

static inline void lock_kit_reset(uint32_t n_allowed, uint32_t fails_at)
{
    memset(locks.at, 0, sizeof locks.at);
    locks.n = locks.n_unlocked = locks.n_begun = 0;
    locks.n_allowed = n_allowed;
    locks.fails_at = fails_at;
}

/* From now on the device needs page-locked memory, as the gate gives it. */
static inline void lock_kit_wrap(struct tsri_device *d)
{
    lock_ops = *d->ops;
    lock_ops.caps |= TSR_DEVICE_NEEDS_LOCK;
    lock_ops.host_register = lock_kit_register;
    lock_ops.host_unregister = lock_kit_unregister;
    d->ops = &lock_ops;
}

#endif
