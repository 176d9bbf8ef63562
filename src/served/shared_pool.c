/* shared_pool.c - one mapping of a server's memory for all sessions of a cache handle. A pool is
 * known by the server's life and by the file behind the descriptor, so a server that was started
 * again has another. */
#include "served/shared_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

struct tsri_shared_pools {
    struct tsri_work *work;
    pid_t owner;
    pthread_mutex_t lock;
    /* under lock: */
    struct tsri_device *device; /* NULL: nothing is to be locked, or no longer */
    struct tsri_shared_pool *pools;
    uint32_t refs; /* of its owner and of each pool */
};

/* ---- the set ---- */

int tsri_shared_pools_open(struct tsri_shared_pools **out, struct tsri_device *device,
                           struct tsri_work *work)
{
    *out = NULL;
    struct tsri_shared_pools *set = tsri_alloc(1, sizeof *set);
    if (!set) return TSR_ENOMEM;
    bool needed = device && tsri_device_caps(device) & TSR_DEVICE_NEEDS_LOCK;
    set->device = needed ? device : NULL;
    set->work = work;
    set->owner = getpid();
    set->refs = 1;
    pthread_mutex_init(&set->lock, NULL);
    *out = set;
    return 0;
}

static void leave(struct tsri_shared_pools *set)
{
    pthread_mutex_lock(&set->lock);
    bool last = --set->refs == 0;
    pthread_mutex_unlock(&set->lock);
    if (!last) return;
    pthread_mutex_destroy(&set->lock);
    tsri_free(set);
}

void tsri_shared_pools_close(struct tsri_shared_pools *set)
{
    if (!set) return;
    pthread_mutex_lock(&set->lock);
    set->device = NULL;
    for (struct tsri_shared_pool *p = set->pools; p; p = p->next) {
        tsri_locking_close(p->locking);
        p->locking = NULL;
    }
    pthread_mutex_unlock(&set->lock);
    leave(set);
}

/* ---- a pool ---- */

static void pool_free(struct tsri_shared_pool *p)
{
    struct tsri_shared_pools *set = p->set;
    tsri_locking_close(p->locking);
    tsri_region_fini(&p->region);
    tsri_free(p);
    if (set) leave(set);
}

static void run_end(struct tsri_job *job)
{
    pool_free((struct tsri_shared_pool *)((uint8_t *)job - offsetof(struct tsri_shared_pool, end)));
}

static struct tsri_shared_pool *find(struct tsri_shared_pools *set,
                                     const struct tsri_shared_pool *like, uint64_t bytes)
{
    for (struct tsri_shared_pool *p = set->pools; p; p = p->next)
        if (p->boot_id == like->boot_id && p->device_id == like->device_id &&
            p->inode == like->inode && p->region.bytes == bytes)
            return p;
    return NULL;
}

static int map(struct tsri_shared_pool **out, const struct tsri_shared_pool *like, int fd,
               size_t bytes)
{
    struct tsri_shared_pool *p = tsri_alloc(1, sizeof *p);
    if (!p) return TSR_ENOMEM;
    *p = *like;
    int e = tsri_region_init_reader(&p->region, fd, bytes);
    if (e) {
        tsri_free(p);
        return e;
    }
    p->refs = 1;
    *out = p;
    return 0;
}

/* Without locks everything goes through other memory: slower, and right. */
static void begin_locking(struct tsri_shared_pool *p, struct tsri_device *device, size_t page_bytes)
{
    if (!device) return;
    if (tsri_locking_open(&p->locking, device, p->region.data, p->region.bytes, page_bytes) != 0)
        tsri_log(TSR_LOG_WARN, "device %s: the server's memory is not page-locked: %s",
                 tsri_device_name(device), tsr_errmsg());
}

int tsri_shared_pool_take(struct tsri_shared_pool **out, struct tsri_shared_pools *set,
                          const struct tsri_wire_welcome *w, int fd)
{
    struct stat st;
    *out = NULL;
    if (fstat(fd, &st) != 0)
        return tsri_fail(TSR_EPERM, "shared memory of the server: %s", strerror(errno));
    struct tsri_shared_pool like = {
        .set = set, .boot_id = w->boot_id, .device_id = st.st_dev, .inode = st.st_ino};
    if (!set) return map(out, &like, fd, (size_t)w->pool_bytes);
    int e = 0;
    pthread_mutex_lock(&set->lock);
    struct tsri_shared_pool *p = find(set, &like, w->pool_bytes);
    if (p) {
        p->refs++;
    } else {
        e = map(&p, &like, fd, (size_t)w->pool_bytes);
        if (e == 0) {
            begin_locking(p, set->device, w->page_bytes);
            p->next = set->pools;
            set->pools = p;
            set->refs++;
        }
    }
    pthread_mutex_unlock(&set->lock);
    if (e == 0) *out = p;
    return e;
}

void tsri_shared_pool_release(struct tsri_shared_pool *p)
{
    if (!p) return;
    struct tsri_shared_pools *set = p->set;
    if (!set) {
        pool_free(p);
        return;
    }
    if (set->owner != getpid()) return; /* a forked child: locks and threads are the parent's */
    pthread_mutex_lock(&set->lock);
    bool last = --p->refs == 0;
    for (struct tsri_shared_pool **at = &set->pools; last && *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pthread_mutex_unlock(&set->lock);
    if (!last) return;
    p->end = (struct tsri_job){.run = run_end};
    if (!p->locking || tsri_work_push(set->work, &p->end) != 0) pool_free(p);
}
