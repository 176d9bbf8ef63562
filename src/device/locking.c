/* locking.c - a thread that page-locks a mapping for a device, piece by piece. */
#include "device/locking.h"

#include <pthread.h>
#include <sys/mman.h>

/* Drivers hold a lock while they pin a piece, and launches of other threads wait for it: 128 MiB
 * that are resident already take 9 ms on an H200, and untouched ones several times that. Much
 * smaller pieces would be thousands of entries in the driver's tables, and more than 200 GB in one
 * piece fail on some drivers. */
#define PIECE_BYTES ((size_t)128 << 20)
#define PAGE_BYTES 4096u

struct tsri_locking {
    struct tsri_device *device;
    uint8_t *data;
    size_t bytes, piece_bytes;
    bool needed; /* false: everything counts as locked */
    bool has_thread;
    pthread_t thread;
    _Atomic size_t done; /* written under lock */
    atomic_bool closing;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended; /* under lock: `done` does not grow any more */
};

/* Makes the pages resident before the driver is called, which takes most of the time. A mapping of
 * somebody else's memory can only be read. What fails here fails in the driver too, with a
 * message. */
static void make_resident(void *p, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(p, bytes, MADV_POPULATE_WRITE) != 0) (void)madvise(p, bytes, MADV_POPULATE_READ);
#else
    (void)p;
    (void)bytes;
#endif
}

static void set_done(struct tsri_locking *l, size_t done, bool ended)
{
    pthread_mutex_lock(&l->lock);
    atomic_store_explicit(&l->done, done, memory_order_release);
    l->ended = ended;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static void *lock_pieces(void *arg)
{
    struct tsri_locking *l = arg;
    uint64_t begin_ns = tsri_now_ns();
    size_t done = 0;
    int e = 0;
    while (done < l->bytes && !atomic_load(&l->closing)) {
        size_t left = l->bytes - done, n = left < l->piece_bytes ? left : l->piece_bytes;
        make_resident(l->data + done, n);
        e = tsri_device_host_register(l->device, l->data + done, n);
        if (e) break;
        done += n;
        if (done < l->bytes) set_done(l, done, false);
    }
    if (e)
        tsri_log(TSR_LOG_WARN,
                 "device %s: cannot page-lock more than %zu of %zu MiB of host memory; the rest is "
                 "copied through other memory: %s",
                 tsri_device_name(l->device), done >> 20, l->bytes >> 20, tsr_errmsg());
    else if (done == l->bytes)
        tsri_log(TSR_LOG_INFO, "device %s: page-locked %zu MiB of host memory in %.1f s",
                 tsri_device_name(l->device), done >> 20,
                 (double)(tsri_now_ns() - begin_ns) * 1e-9);
    set_done(l, done, true);
    return NULL;
}

static int start_thread(struct tsri_locking *l)
{
    int e = tsri_thread_start(&l->thread, "tessera-lock", lock_pieces, l);
    if (e) return tsri_fail(TSR_ENOMEM, "cannot start a thread: %s", strerror(e));
    l->has_thread = true;
    return 0;
}

int tsri_locking_open(struct tsri_locking **out, struct tsri_device *device, void *data,
                      size_t bytes, size_t unit_bytes)
{
    *out = NULL;
    if (!data || !bytes || ((uintptr_t)data | bytes | unit_bytes) % PAGE_BYTES || !unit_bytes ||
        unit_bytes & (unit_bytes - 1))
        return tsri_fail(TSR_EINVAL, "page-locking: %zu bytes at %p in units of %zu", bytes, data,
                         unit_bytes);
    struct tsri_locking *l = tsri_alloc(1, sizeof *l);
    if (!l) return TSR_ENOMEM;
    l->device = device;
    l->data = data;
    l->bytes = bytes;
    l->piece_bytes = unit_bytes > PIECE_BYTES ? unit_bytes : PIECE_BYTES;
    l->needed = tsri_device_caps(device) & TSR_DEVICE_NEEDS_LOCK;
    l->ended = !l->needed;
    atomic_init(&l->done, l->needed ? 0 : bytes);
    atomic_init(&l->closing, false);
    pthread_mutex_init(&l->lock, NULL);
    tsri_cond_init(&l->changed);
    int e = l->needed ? start_thread(l) : 0;
    if (e)
        tsri_locking_close(l);
    else
        *out = l;
    return e;
}

void tsri_locking_close(struct tsri_locking *l)
{
    if (!l) return;
    atomic_store(&l->closing, true);
    if (l->has_thread) pthread_join(l->thread, NULL);
    size_t done = l->needed ? tsri_locking_done(l) : 0;
    for (size_t at = 0; at < done; at += l->piece_bytes)
        tsri_device_host_unregister(l->device, l->data + at);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    tsri_free(l);
}

size_t tsri_locking_done(const struct tsri_locking *l)
{
    return l ? atomic_load_explicit(&l->done, memory_order_acquire) : 0;
}

bool tsri_locking_wait(struct tsri_locking *l, size_t bytes, uint64_t until_ns)
{
    size_t wanted = bytes < l->bytes ? bytes : l->bytes;
    bool in_time = true;
    pthread_mutex_lock(&l->lock);
    while (tsri_locking_done(l) < wanted && !l->ended && in_time)
        in_time = tsri_cond_wait(&l->changed, &l->lock, until_ns);
    bool locked = tsri_locking_done(l) >= wanted;
    pthread_mutex_unlock(&l->lock);
    return locked;
}
