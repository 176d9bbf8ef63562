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
    pthread_cond_t changed;
    /* under lock: */
    struct tsri_device *device; /* NULL: nothing is to be locked, or no longer */
    struct tsri_shared_pool *pools;
    uint32_t refs;     /* of its owner and of each pool */
    uint32_t n_ending; /* pools that `work` is to unlock */
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
    tsri_cond_init(&set->changed);
    *out = set;
    return 0;
}

static void leave(struct tsri_shared_pools *set)
{
    pthread_mutex_lock(&set->lock);
    bool last = --set->refs == 0;
    pthread_mutex_unlock(&set->lock);
    if (!last) return;
    pthread_cond_destroy(&set->changed);
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
    while (set->n_ending)
        pthread_cond_wait(&set->changed, &set->lock);
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

/* Of a pool that is locked and no longer in the set. */
static void end(struct tsri_shared_pool *p)
{
    struct tsri_shared_pools *set = p->set;
    tsri_locking_close(p->locking);
    p->locking = NULL;
    pthread_mutex_lock(&set->lock);
    set->n_ending--;
    pthread_cond_broadcast(&set->changed);
    pthread_mutex_unlock(&set->lock);
    pool_free(p);
}

static void run_end(struct tsri_job *job)
{
    end((struct tsri_shared_pool *)((uint8_t *)job - offsetof(struct tsri_shared_pool, job)));
}

static struct tsri_shared_pool *find(struct tsri_shared_pools *set,
                                     const struct tsri_shared_pool *like, uint64_t bytes)
{
    for (struct tsri_shared_pool *p = set->pools; p; p = p->next)
        if (!p->is_own && p->boot_id == like->boot_id && p->device_id == like->device_id &&
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

/* Under lock. */
static void add(struct tsri_shared_pools *set, struct tsri_shared_pool *p)
{
    p->next = set->pools;
    set->pools = p;
    set->refs++;
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
            add(set, p);
        }
    }
    pthread_mutex_unlock(&set->lock);
    if (e == 0) *out = p;
    return e;
}

int tsri_shared_pool_give(struct tsri_shared_pool **out, struct tsri_shared_pools *set,
                          struct tsri_region *region)
{
    struct tsri_shared_pool *p = tsri_alloc(1, sizeof *p);
    *out = p;
    if (!p) return TSR_ENOMEM;
    *p = (struct tsri_shared_pool){.region = *region, .set = set, .is_own = true, .refs = 1};
    *region = (struct tsri_region){.fd = -1};
    if (!set) return 0;
    pthread_mutex_lock(&set->lock);
    add(set, p);
    pthread_mutex_unlock(&set->lock);
    return 0;
}

int tsri_shared_pool_lock(struct tsri_shared_pool *p, uint64_t until_ns)
{
    struct tsri_shared_pools *set = p->set;
    size_t bytes = p->region.bytes;
    int e = 0;
    if (set) {
        pthread_mutex_lock(&set->lock);
        if (!p->locking && set->device)
            e = tsri_locking_open(&p->locking, set->device, p->region.data, bytes,
                                  tsri_pow2_up(bytes));
        pthread_mutex_unlock(&set->lock);
    }
    if (e) return e;
    if (p->locking && tsri_locking_wait(p->locking, bytes, until_ns)) return 0;
    return tsri_fail(TSR_EUNSUP, "%zu MiB of shared memory are not page-locked", bytes >> 20);
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
    bool locked = last && p->locking;
    set->n_ending += locked;
    pthread_mutex_unlock(&set->lock);
    if (!last) return;
    p->job = (struct tsri_job){.run = run_end};
    if (!locked)
        pool_free(p);
    else if (tsri_work_push(set->work, &p->job) != 0)
        end(p);
}
