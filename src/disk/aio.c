/* aio.c - lanes. A lane is one caller's queue of reads and writes: pushed, started together by
 * kick, waited for one by one. Behind it stands a ring of io_uring, a pool of threads that call
 * preadv and pwritev where io_uring is refused (ENOSYS, EPERM, a sandbox), or nothing: INLINE
 * carries each request out as it is pushed, which makes the n-th I/O of a test always the same one.
 *
 * A ring that fails (a sandbox that came later, a descriptor that somebody closed) ends the ring
 * and not the process: its lane carries out the rest in place, as INLINE does.
 *
 * A request is done when all of its bytes have moved; short transfers and interrupted calls go on
 * here. A lane belongs to one caller from take to give, so rings need no lock. */
#include "disk/disk.h"

#include <errno.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>
#ifdef TSRI_HAVE_URING
#include <liburing.h>
#endif

/* Transfers in a row that move nothing before a request is given up: less than a block moved; or
 * interrupted, which a program that is full of signals may be for a while. */
#define STUCK_MAX 8u
#define INTERRUPTED_MAX 10000u
#define POOL_THREADS_MIN 4u
/* Times in a row that a ring may be short of something before it is given up. */
#define BUSY_MAX 100000u
#define NAP_NS 50000
#define LANES_MAX 256u

struct tsri_aio_lane {
    struct tsri_aio *aio;
    uint32_t number;
    bool taken;
    uint32_t n_queued; /* pushed and not yet handed to the kernel */
#ifdef TSRI_HAVE_URING
    struct io_uring ring;
    bool broken;                                     /* nothing more is handed to the ring */
    struct tsri_aio_req *queued[2 * TSRI_AIO_DEPTH]; /* those n_queued, in their order */
#endif
    pthread_mutex_t lock; /* THREADS: done of its requests */
    pthread_cond_t cond;
};

struct tsri_aio {
    const struct tsri_fileio *io;
    enum tsri_aio_mode mode;
    struct tsri_work *work; /* THREADS */
    pthread_mutex_t lock;   /* taken */
    pthread_cond_t given;
    uint32_t n_lanes, n_rings;
    pid_t owner;
    struct tsri_aio_lane lanes[];
};

/* ---- one transfer's result ---- */

static void advance(struct tsri_aio_req *req, size_t n)
{
    req->offset += n;
    req->bytes -= n;
    while (n) {
        size_t step = n < req->iov->iov_len ? n : req->iov->iov_len;
        req->iov->iov_base = (uint8_t *)req->iov->iov_base + step;
        req->iov->iov_len -= step;
        n -= step;
        if (req->iov->iov_len == 0) {
            req->iov++;
            req->n_iov--;
        }
    }
}

static bool give_up(struct tsri_aio_req *req, int error)
{
    req->error = error;
    return true;
}

/* Takes the result of one transfer; false when the request must go on. */
static bool settle(struct tsri_aio_req *req, ssize_t res)
{
    if (res == -EINTR || res == -EAGAIN)
        return ++req->n_stuck > INTERRUPTED_MAX ? give_up(req, (int)-res) : false;
    if (res < 0) return give_up(req, (int)-res);
    if ((size_t)res >= req->bytes) return give_up(req, 0);
    int end = req->write ? EIO : ENODATA;
    if (res == 0) return give_up(req, end);
    /* O_DIRECT cannot go on from the middle of a block: that part moves again. */
    size_t n = (size_t)res - (size_t)res % req->align;
    if (n == 0) return ++req->n_stuck > STUCK_MAX ? give_up(req, end) : false;
    req->n_stuck = 0;
    advance(req, n);
    return false;
}

static void carry_out(const struct tsri_fileio *io, struct tsri_aio_req *req)
{
    ssize_t res;
    do {
        res = req->write
                  ? io->pwritev(io->arg, req->fd, req->iov, (int)req->n_iov, (off_t)req->offset)
                  : io->preadv(io->arg, req->fd, req->iov, (int)req->n_iov, (off_t)req->offset);
        if (res < 0) res = -errno;
    } while (!settle(req, res));
}

/* ---- threads ---- */

static void run_job(struct tsri_job *job)
{
    struct tsri_aio_req *req =
        (struct tsri_aio_req *)(void *)((char *)job - offsetof(struct tsri_aio_req, job));
    struct tsri_aio_lane *lane = req->lane;
    carry_out(lane->aio->io, req);
    pthread_mutex_lock(&lane->lock);
    req->done = true;
    pthread_cond_signal(&lane->cond);
    pthread_mutex_unlock(&lane->lock);
}

static void push_job(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    req->lane = lane;
    req->job.run = run_job;
    /* The queue has room for every lane's depth: a push is never refused. */
    int err = tsri_work_push(lane->aio->work, &req->job);
    TSR_ASSERT(err == 0);
}

static void wait_job(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    pthread_mutex_lock(&lane->lock);
    while (!req->done)
        pthread_cond_wait(&lane->cond, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
}

/* ---- io_uring ---- */

#ifdef TSRI_HAVE_URING

/* The kernel takes them in order: those left in the ring are the last ones. */
static void note_taken(struct tsri_aio_lane *lane)
{
    uint32_t left = tsri_min_u32(io_uring_sq_ready(&lane->ring), lane->n_queued);
    memmove(lane->queued, lane->queued + (lane->n_queued - left), left * sizeof lane->queued[0]);
    lane->n_queued = left;
}

/* What the kernel has taken it still brings to its end, and tells in the memory of the ring. */
static void give_up_ring(struct tsri_aio_lane *lane, int error)
{
    tsri_log(TSR_LOG_WARN, "disk: io_uring failed (%s), continuing with threads", strerror(error));
    lane->broken = true;
    for (uint32_t i = 0; i < lane->n_queued; i++) {
        carry_out(lane->aio->io, lane->queued[i]);
        lane->queued[i]->done = true;
    }
    lane->n_queued = 0;
}

static int enter(struct tsri_aio_lane *lane, unsigned n_wait)
{
    const struct tsri_fileio *io = lane->aio->io;
    int refused = io->refuse_ring ? io->refuse_ring(io->arg) : 0;
    return refused ? -refused : io_uring_submit_and_wait(&lane->ring, n_wait);
}

static void submit(struct tsri_aio_lane *lane, unsigned n_wait)
{
    for (uint32_t n_busy = 0; !lane->broken; n_busy++) {
        int n = enter(lane, n_wait);
        note_taken(lane);
        if (n >= 0) return;
        /* The kernel is short of memory or of room for completions, which clears as they are
         * reaped. */
        bool busy = n == -EINTR || n == -EAGAIN || n == -EBUSY || n == -ENOMEM;
        if (!busy || n_busy == BUSY_MAX) {
            give_up_ring(lane, -n);
            return;
        }
        if (n != -EINTR && io_uring_cq_ready(&lane->ring)) return;
        sched_yield();
    }
}

static void push_ring(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    /* The ring is twice as deep as a lane: there is a place, unless it is broken. */
    struct io_uring_sqe *sqe = lane->broken ? NULL : io_uring_get_sqe(&lane->ring);
    if (!sqe) {
        carry_out(lane->aio->io, req);
        req->done = true;
        return;
    }
    if (req->write)
        io_uring_prep_writev(sqe, req->fd, req->iov, req->n_iov, req->offset);
    else
        io_uring_prep_readv(sqe, req->fd, req->iov, req->n_iov, req->offset);
    io_uring_sqe_set_data(sqe, req);
    lane->queued[lane->n_queued++] = req;
}

static void reap(struct tsri_aio_lane *lane)
{
    const struct tsri_fileio *io = lane->aio->io;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&lane->ring, &cqe) == 0 && cqe) {
        struct tsri_aio_req *req = io_uring_cqe_get_data(cqe);
        int res = cqe->res;
        io_uring_cqe_seen(&lane->ring, cqe);
        if (io->outcome) res = io->outcome(io->arg, req->write, req->fd, (off_t)req->offset, res);
        req->done = settle(req, res);
        if (!req->done) push_ring(lane, req);
    }
}

static void wait_ring(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    reap(lane);
    while (!req->done) {
        submit(lane, 1);
        reap(lane);
        if (!req->done && lane->broken) nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    if (lane->n_queued) submit(lane, 0);
}

static void poll_ring(struct tsri_aio_lane *lane)
{
    reap(lane);
    if (lane->n_queued) submit(lane, 0);
}

/* A ring that answers, or the errno of the refusal. Some sandboxes let a ring be made and refuse
 * its use, hence the try. */
static int init_ring(struct io_uring *ring)
{
    int err = -EINVAL;
#ifdef IORING_SETUP_COOP_TASKRUN
    err = io_uring_queue_init(2 * TSRI_AIO_DEPTH, ring, IORING_SETUP_COOP_TASKRUN);
#endif
    if (err == -EINVAL) err = io_uring_queue_init(2 * TSRI_AIO_DEPTH, ring, 0);
    if (err) return -err;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    struct io_uring_cqe *cqe;
    err = io_uring_submit_and_wait(ring, 1);
    if (err >= 0) err = io_uring_wait_cqe(ring, &cqe);
    if (err < 0) {
        io_uring_queue_exit(ring);
        return -err;
    }
    io_uring_cqe_seen(ring, cqe);
    return 0;
}

static int open_rings(struct tsri_aio *a)
{
    for (; a->n_rings < a->n_lanes; a->n_rings++) {
        int error = init_ring(&a->lanes[a->n_rings].ring);
        if (error) return error;
    }
    return 0;
}

static void close_rings(struct tsri_aio *a)
{
    while (a->n_rings)
        io_uring_queue_exit(&a->lanes[--a->n_rings].ring);
}

#else /* built without liburing */

static void submit(struct tsri_aio_lane *lane, unsigned n_wait)
{
    (void)lane, (void)n_wait;
}
static void push_ring(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    (void)lane, (void)req;
}
static void wait_ring(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    (void)lane, (void)req;
}
static void poll_ring(struct tsri_aio_lane *lane)
{
    (void)lane;
}
static int open_rings(struct tsri_aio *a)
{
    (void)a;
    return ENOSYS;
}
static void close_rings(struct tsri_aio *a)
{
    (void)a;
}

#endif

/* ---- lanes ---- */

static int start(struct tsri_aio *a, enum tsri_aio_mode mode)
{
    if (mode == TSRI_AIO_AUTO || mode == TSRI_AIO_URING) {
        int refused = open_rings(a);
        if (!refused) {
            a->mode = TSRI_AIO_URING;
            return 0;
        }
        close_rings(a);
        if (mode == TSRI_AIO_URING)
            return tsri_fail(TSR_EUNSUP, "io_uring is not available: %s", strerror(refused));
        tsri_log(TSR_LOG_INFO, "disk: io_uring is not available (%s), using threads",
                 strerror(refused));
    }
    a->mode = mode == TSRI_AIO_INLINE ? TSRI_AIO_INLINE : TSRI_AIO_THREADS;
    if (a->mode == TSRI_AIO_INLINE) return 0;
    uint32_t n = a->n_lanes < POOL_THREADS_MIN ? POOL_THREADS_MIN : a->n_lanes;
    return tsri_work_open(&a->work, "tessera-rw", n, a->n_lanes * TSRI_AIO_DEPTH);
}

int tsri_aio_open(struct tsri_aio **out, enum tsri_aio_mode mode, const struct tsri_fileio *io,
                  uint32_t n_lanes)
{
    *out = NULL;
    if (n_lanes == 0 || n_lanes > LANES_MAX)
        return tsri_fail(TSR_EINVAL, "disk: too many concurrent calls (%u)", n_lanes);
    struct tsri_aio *a = tsri_alloc(1, sizeof *a + n_lanes * sizeof a->lanes[0]);
    if (!a) return TSR_ENOMEM;
    a->io = io;
    a->n_lanes = n_lanes;
    a->owner = getpid();
    pthread_mutex_init(&a->lock, NULL);
    tsri_cond_init(&a->given);
    for (uint32_t i = 0; i < n_lanes; i++) {
        a->lanes[i].aio = a;
        a->lanes[i].number = i;
        pthread_mutex_init(&a->lanes[i].lock, NULL);
        pthread_cond_init(&a->lanes[i].cond, NULL);
    }
    int err = start(a, mode);
    if (err) {
        tsri_aio_close(a);
        return err;
    }
    *out = a;
    return 0;
}

void tsri_aio_close(struct tsri_aio *a)
{
    if (!a) return;
    close_rings(a);
    tsri_work_close(a->work);
    /* In a forked child, destroying would wait for threads that waited in the parent. */
    for (uint32_t i = 0; i < a->n_lanes && a->owner == getpid(); i++) {
        pthread_cond_destroy(&a->lanes[i].cond);
        pthread_mutex_destroy(&a->lanes[i].lock);
    }
    if (a->owner == getpid()) {
        pthread_cond_destroy(&a->given);
        pthread_mutex_destroy(&a->lock);
    }
    tsri_free(a);
}

enum tsri_aio_mode tsri_aio_mode(const struct tsri_aio *a)
{
    return a->mode;
}

uint32_t tsri_aio_lane_number(const struct tsri_aio_lane *lane)
{
    return lane->number;
}

struct tsri_aio_lane *tsri_aio_take(struct tsri_aio *a, uint64_t deadline_ns)
{
    struct tsri_aio_lane *lane = NULL;
    pthread_mutex_lock(&a->lock);
    for (bool late = false; !lane && !late;) {
        for (uint32_t i = 0; i < a->n_lanes && !lane; i++)
            if (!a->lanes[i].taken) lane = &a->lanes[i];
        if (!lane) late = !tsri_cond_wait(&a->given, &a->lock, deadline_ns);
    }
    if (lane) lane->taken = true;
    pthread_mutex_unlock(&a->lock);
    return lane;
}

void tsri_aio_give(struct tsri_aio *a, struct tsri_aio_lane *lane)
{
    TSR_ASSERT(lane->n_queued == 0);
    pthread_mutex_lock(&a->lock);
    lane->taken = false;
    pthread_cond_signal(&a->given);
    pthread_mutex_unlock(&a->lock);
}

void tsri_aio_push(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    req->error = 0;
    req->done = false;
    req->n_stuck = 0;
    switch (lane->aio->mode) {
    case TSRI_AIO_URING:
        push_ring(lane, req);
        break;
    case TSRI_AIO_THREADS:
        push_job(lane, req);
        break;
    default:
        carry_out(lane->aio->io, req);
        req->done = true;
    }
}

void tsri_aio_kick(struct tsri_aio_lane *lane)
{
    if (lane->n_queued) submit(lane, 0);
}

void tsri_aio_wait(struct tsri_aio_lane *lane, struct tsri_aio_req *req)
{
    switch (lane->aio->mode) {
    case TSRI_AIO_URING:
        wait_ring(lane, req);
        break;
    case TSRI_AIO_THREADS:
        wait_job(lane, req);
        break;
    default:
        break;
    }
}

void tsri_aio_poll(struct tsri_aio_lane *lane)
{
    if (lane->aio->mode == TSRI_AIO_URING) poll_ring(lane);
}

bool tsri_aio_is_done(struct tsri_aio_lane *lane, const struct tsri_aio_req *req)
{
    if (lane->aio->mode != TSRI_AIO_THREADS) return req->done;
    pthread_mutex_lock(&lane->lock);
    bool done = req->done;
    pthread_mutex_unlock(&lane->lock);
    return done;
}
