/* Lanes of reads and writes, in each of the ways they can be carried out. */
#include "disk/disk.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>

enum { BLOCK = 64 * 1024, N_BLOCKS = 40 };

/* Moves at most `most` bytes at a time, and is interrupted every third call. */
struct faults {
    struct tsri_fileio io;
    size_t most;
    unsigned n_calls;
    int error;
};

static ssize_t meddle(struct faults *f,
                      ssize_t (*real)(void *, int, const struct iovec *, int, off_t), int fd,
                      const struct iovec *iov, int n, off_t offset)
{
    unsigned call = __atomic_add_fetch(&f->n_calls, 1, __ATOMIC_RELAXED);
    errno = f->error ? f->error : EINTR;
    if (f->error || call % 3 == 0) return -1;
    struct iovec part = iov[0];
    if (f->most && part.iov_len > f->most) part.iov_len = f->most;
    return f->most ? real(NULL, fd, &part, 1, offset) : real(NULL, fd, iov, n, offset);
}

static ssize_t short_preadv(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    return meddle(arg, tsri_fileio_real.preadv, fd, iov, n, offset);
}

static ssize_t short_pwritev(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    return meddle(arg, tsri_fileio_real.pwritev, fd, iov, n, offset);
}

static int short_outcome(void *arg, bool write, int fd, off_t offset, int res)
{
    struct faults *f = arg;
    (void)write, (void)fd, (void)offset;
    f->n_calls++;
    if (f->error) return -f->error;
    if (f->n_calls % 3 == 0) return -EINTR;
    return f->most && res > (int)f->most ? (int)f->most : res;
}

static void faults_init(struct faults *f, size_t most)
{
    memset(f, 0, sizeof *f);
    f->io = tsri_fileio_real;
    f->io.preadv = short_preadv;
    f->io.pwritev = short_pwritev;
    f->io.outcome = short_outcome;
    f->io.arg = f;
    f->most = most;
}

static const enum tsri_aio_mode modes[] = {TSRI_AIO_URING, TSRI_AIO_THREADS, TSRI_AIO_INLINE};

static struct tmpdir dir;
static int fd;

static void open_file(int flags)
{
    char path[300];
    snprintf(path, sizeof path, "%s/file", dir.path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600);
    CHECK(fd >= 0);
}

static uint8_t *blocks(size_t bytes, int fill)
{
    void *p = NULL;
    CHECK_INT(posix_memalign(&p, TSRI_PAGE_BYTES, bytes), 0);
    memset(p, fill, bytes);
    return p;
}

/* Moves all blocks, each in three pieces of memory, a lane's depth under way at a time. */
static int move_all(struct tsri_aio *a, uint8_t *data, bool write, size_t align)
{
    struct tsri_aio_lane *lane = tsri_aio_take(a, 0);
    struct tsri_aio_req reqs[TSRI_AIO_DEPTH];
    struct iovec iov[TSRI_AIO_DEPTH][3];
    int error = 0;
    for (uint32_t i = 0; i < N_BLOCKS + TSRI_AIO_DEPTH; i++) {
        struct tsri_aio_req *r = &reqs[i % TSRI_AIO_DEPTH];
        if (i >= TSRI_AIO_DEPTH) {
            tsri_aio_wait(lane, r);
            if (r->error) error = r->error;
        }
        if (i >= N_BLOCKS) continue;
        uint8_t *at = data + (size_t)i * BLOCK;
        struct iovec *v = iov[i % TSRI_AIO_DEPTH];
        v[0] = (struct iovec){at, 8192};
        v[1] = (struct iovec){at + 8192, 4096};
        v[2] = (struct iovec){at + 12288, BLOCK - 12288};
        *r = (struct tsri_aio_req){.fd = fd,
                                   .write = write,
                                   .offset = (uint64_t)i * BLOCK,
                                   .iov = v,
                                   .n_iov = 3,
                                   .bytes = BLOCK,
                                   .align = align};
        tsri_aio_push(lane, r);
        tsri_aio_kick(lane);
    }
    tsri_aio_give(a, lane);
    return error;
}

/* False: io_uring is refused here. */
static bool check_round_trip(const struct tsri_fileio *io, enum tsri_aio_mode mode, size_t align)
{
    struct tsri_aio *a;
    int err = tsri_aio_open(&a, mode, io, 2);
    if (err == TSR_EUNSUP && mode == TSRI_AIO_URING) return false;
    CHECK_INT(err, 0);
    CHECK_INT(tsri_aio_mode(a), mode);
    size_t bytes = (size_t)N_BLOCKS * BLOCK;
    uint8_t *data = blocks(bytes, 0), *back = blocks(bytes, 0xA5);
    uint64_t state = 9;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(test_rand(&state) >> 50);
    CHECK_INT(ftruncate(fd, 0), 0);
    CHECK_INT(move_all(a, data, true, align), 0);
    CHECK_INT(move_all(a, back, false, align), 0);
    CHECK(memcmp(data, back, bytes) == 0);
    free(data);
    free(back);
    tsri_aio_close(a);
    return true;
}

TEST(what_is_written_is_read_in_every_mode)
{
    for (size_t m = 0; m < TSRI_COUNT(modes); m++)
        check_round_trip(&tsri_fileio_real, modes[m], 1);
}

TEST(short_and_interrupted_transfers_go_on)
{
    const size_t most[] = {5000, 1, 8192, 0};
    for (size_t m = 0; m < TSRI_COUNT(modes); m++)
        for (size_t k = 0; k < TSRI_COUNT(most); k++) {
            if (most[k] == 1 && modes[m] != TSRI_AIO_URING) continue; /* as many calls as bytes */
            struct faults f;
            faults_init(&f, most[k] == 1 ? 511 : most[k]);
            if (check_round_trip(&f.io, modes[m], 1)) CHECK(f.n_calls > N_BLOCKS);
        }
}

TEST(direct_transfers_go_on_at_whole_blocks)
{
    close(fd);
    char path[300];
    snprintf(path, sizeof path, "%s/file", dir.path);
    fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        open_file(0);
        SKIP("no O_DIRECT here");
    }
    for (size_t m = 0; m < TSRI_COUNT(modes); m++) {
        struct faults f;
        faults_init(&f, modes[m] == TSRI_AIO_URING ? 5000 : 8192);
        check_round_trip(&f.io, modes[m], TSRI_PAGE_BYTES);
    }
    close(fd);
    open_file(0);
}

static int read_one(struct tsri_aio *a, uint64_t offset, size_t bytes, bool write)
{
    uint8_t *buf = blocks(bytes, 1);
    struct iovec iov = {buf, bytes};
    struct tsri_aio_req r = {.fd = fd,
                             .write = write,
                             .offset = offset,
                             .iov = &iov,
                             .n_iov = 1,
                             .bytes = bytes,
                             .align = 1};
    struct tsri_aio_lane *lane = tsri_aio_take(a, 0);
    tsri_aio_push(lane, &r);
    tsri_aio_wait(lane, &r);
    tsri_aio_give(a, lane);
    free(buf);
    return r.error;
}

TEST(the_end_of_a_file_is_told)
{
    for (size_t m = 0; m < TSRI_COUNT(modes); m++) {
        struct tsri_aio *a;
        if (tsri_aio_open(&a, modes[m], &tsri_fileio_real, 1) != 0) continue;
        CHECK_INT(ftruncate(fd, 10000), 0);
        CHECK_INT(read_one(a, 0, 10000, false), 0);
        CHECK_INT(read_one(a, 0, 10001, false), ENODATA);
        CHECK_INT(read_one(a, 20000, 1, false), ENODATA);
        tsri_aio_close(a);
    }
}

TEST(errors_come_back_with_their_number)
{
    for (size_t m = 0; m < TSRI_COUNT(modes); m++) {
        struct faults f;
        faults_init(&f, 0);
        struct tsri_aio *a;
        if (tsri_aio_open(&a, modes[m], &f.io, 1) != 0) continue;
        const int errors[] = {EIO, ENOSPC, EINTR, EAGAIN};
        for (size_t i = 0; i < TSRI_COUNT(errors); i++) {
            f.error = errors[i]; /* for ever: even the ones that are tried again give up */
            CHECK_INT(read_one(a, 0, 100, false), errors[i]);
            CHECK_INT(read_one(a, 0, 100, true), errors[i]);
        }
        tsri_aio_close(a);
    }
}

/* The nth time that requests are handed to the kernel fails, and those after it. */
struct refusal {
    struct tsri_fileio io;
    unsigned n_calls, nth;
    int error;
};

static int refuse_nth(void *arg)
{
    struct refusal *r = arg;
    return ++r->n_calls >= r->nth ? r->error : 0;
}

TEST(a_ring_that_fails_is_done_without)
{
    const int errors[] = {EBADF, EINVAL, EPERM, ENXIO, ENOMEM};
    for (size_t i = 0; i < TSRI_COUNT(errors); i++)
        for (unsigned nth = 1; nth < 40; nth += 1 + nth / 4) {
            struct refusal r = {.io = tsri_fileio_real, .nth = nth, .error = errors[i]};
            r.io.refuse_ring = refuse_nth;
            r.io.arg = &r;
            if (!check_round_trip(&r.io, TSRI_AIO_URING, 1)) SKIP("io_uring is refused here");
            CHECK(r.n_calls >= nth);
        }
}

/* As a program does that closes all descriptors it does not know. */
TEST(a_ring_whose_descriptor_was_closed_is_done_without)
{
    struct tsri_aio *a;
    int before = dup(fd);
    close(before);
    if (tsri_aio_open(&a, TSRI_AIO_URING, &tsri_fileio_real, 1) != 0)
        SKIP("io_uring is refused here");
    uint8_t *data = blocks((size_t)N_BLOCKS * BLOCK, 7);
    CHECK_INT(ftruncate(fd, 0), 0);
    CHECK_INT(move_all(a, data, true, 1), 0);
    close(before); /* the lowest number that was free: the ring's */
    CHECK_INT(move_all(a, data, false, 1), 0);
    for (size_t i = 0; i < (size_t)N_BLOCKS * BLOCK; i++)
        CHECK_INT(data[i], 7);
    free(data);
    tsri_aio_close(a);
}

struct taker {
    struct tsri_aio *aio;
    atomic_int *n_now, *n_max;
};

static void *take_and_give(void *arg)
{
    struct taker *t = arg;
    for (int i = 0; i < 500; i++) {
        struct tsri_aio_lane *lane = tsri_aio_take(t->aio, 0);
        int now = atomic_fetch_add(t->n_now, 1) + 1, max = atomic_load(t->n_max);
        while (now > max && !atomic_compare_exchange_weak(t->n_max, &max, now))
            ;
        sched_yield();
        atomic_fetch_sub(t->n_now, 1);
        tsri_aio_give(t->aio, lane);
    }
    return NULL;
}

TEST(there_are_never_more_callers_than_lanes)
{
    struct tsri_aio *a;
    CHECK_INT(tsri_aio_open(&a, TSRI_AIO_AUTO, &tsri_fileio_real, 2), 0);
    CHECK(tsri_aio_mode(a) != TSRI_AIO_AUTO);
    atomic_int n_now = 0, n_max = 0;
    struct taker t = {a, &n_now, &n_max};
    pthread_t threads[5];
    for (size_t i = 0; i < 5; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, take_and_give, &t), 0);
    for (size_t i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    CHECK(atomic_load(&n_max) <= 2);
    tsri_aio_close(a);
}

TEST(absurd_counts_are_refused)
{
    struct tsri_aio *a;
    CHECK_INT(tsri_aio_open(&a, TSRI_AIO_AUTO, &tsri_fileio_real, 0), TSR_EINVAL);
    CHECK_INT(tsri_aio_open(&a, TSRI_AIO_AUTO, &tsri_fileio_real, 100000), TSR_EINVAL);
    CHECK(a == NULL);
    tsri_aio_close(NULL);
}

TEST(who_waits_for_a_lane_waits_until_its_deadline)
{
    struct tsri_aio *a;
    CHECK_INT(tsri_aio_open(&a, TSRI_AIO_INLINE, &tsri_fileio_real, 1), 0);
    struct tsri_aio_lane *lane = tsri_aio_take(a, tsri_now_ns() + 1);
    CHECK(lane != NULL); /* one that is free needs no time */
    uint64_t until = tsri_now_ns() + 5000000;
    CHECK(tsri_aio_take(a, until) == NULL);
    CHECK(tsri_now_ns() >= until);
    tsri_aio_give(a, lane);
    lane = tsri_aio_take(a, 1);
    CHECK(lane != NULL);
    tsri_aio_give(a, lane);
    tsri_aio_close(a);
}

int main(void)
{
    tmpdir_init(&dir);
    open_file(0);
    RUN(what_is_written_is_read_in_every_mode);
    RUN(short_and_interrupted_transfers_go_on);
    RUN(direct_transfers_go_on_at_whole_blocks);
    RUN(the_end_of_a_file_is_told);
    RUN(errors_come_back_with_their_number);
    RUN(a_ring_that_fails_is_done_without);
    RUN(a_ring_whose_descriptor_was_closed_is_done_without);
    RUN(there_are_never_more_callers_than_lanes);
    RUN(absurd_counts_are_refused);
    close(fd);
    tmpdir_fini(&dir);
    RUN(who_waits_for_a_lane_waits_until_its_deadline);
    return test_end();
}
