/* test_locking.c - page-locking in the background: what is locked when, what a failed piece leaves,
 * and that all of it is given back. The device is a table here that notes its calls. */
#include "device/locking.h"
#include "support/test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20, PIECE = 128 * MIB, CALLS = 16 };
#define SECOND UINT64_C(1000000000)

/* Of the mapping, in address order; how many may be registered before a call waits or fails. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *at[CALLS];
    size_t bytes[CALLS];
    uint32_t n, n_unlocked, n_allowed, fails_at;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int fake_register(struct tsr_device *d, void *p, size_t bytes)
{
    (void)d;
    pthread_mutex_lock(&fake.lock);
    while (fake.n >= fake.n_allowed)
        pthread_cond_wait(&fake.changed, &fake.lock);
    int e = fake.n == fake.fails_at ? tsri_fail(TSR_EDEVICE, "fake: cannot lock") : 0;
    if (!e) {
        fake.at[fake.n] = p;
        fake.bytes[fake.n++] = bytes;
    }
    pthread_mutex_unlock(&fake.lock);
    return e;
}

static void fake_unregister(struct tsr_device *d, void *p)
{
    (void)d;
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < fake.n; i++) {
        if (fake.at[i] != p) continue;
        fake.at[i] = NULL;
        fake.n_unlocked++;
    }
    pthread_mutex_unlock(&fake.lock);
}

static struct tsr_device_ops ops = {.name = "fake",
                                    .caps = TSR_DEVICE_NEEDS_LOCK,
                                    .host_register = fake_register,
                                    .host_unregister = fake_unregister};
static struct tsri_device device = {.ops = &ops};

static void allow(uint32_t n)
{
    pthread_mutex_lock(&fake.lock);
    fake.n_allowed = n;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static void fake_reset(uint32_t n_allowed, uint32_t fails_at)
{
    memset(fake.at, 0, sizeof fake.at);
    fake.n = fake.n_unlocked = 0;
    fake.n_allowed = n_allowed;
    fake.fails_at = fails_at;
}

/* Addresses alone: nothing can be made resident in them, and nothing needs to be. */
static uint8_t *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static struct {
    uint32_t n_warnings, n_infos;
    char text[256];
} heard;

static void hear(void *arg, int level, const char *text)
{
    (void)arg;
    heard.n_warnings += level == TSR_LOG_WARN;
    heard.n_infos += level == TSR_LOG_INFO;
    snprintf(heard.text, sizeof heard.text, "%s", text);
}

static void listen_to_log(void)
{
    memset(&heard, 0, sizeof heard);
    tsr_log_set(hear, NULL, TSR_LOG_INFO);
}

TEST(a_mapping_is_locked_in_pieces_in_address_order)
{
    const size_t bytes = 2 * (size_t)PIECE + 3 * MIB;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    fake_reset(CALLS, CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 256 << 10), 0);
    CHECK(tsri_locking_wait(l, SIZE_MAX, tsri_now_ns() + 10 * SECOND));
    CHECK_INT(tsri_locking_done(l), bytes);
    CHECK_INT(fake.n, 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(fake.at[i] == p + i * (size_t)PIECE);
    CHECK_INT(fake.bytes[0], PIECE);
    CHECK_INT(fake.bytes[2], 3 * MIB);
    tsri_locking_close(l);
    CHECK_INT(fake.n_unlocked, 3);
    munmap(p, bytes);
}

TEST(opening_does_not_wait_and_the_watermark_follows_the_pieces)
{
    const size_t bytes = 3 * (size_t)PIECE;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    fake_reset(0, CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 4096), 0);
    CHECK_INT(tsri_locking_done(l), 0);
    CHECK(!tsri_locking_wait(l, 1, tsri_now_ns() + SECOND / 100));
    allow(2);
    CHECK(tsri_locking_wait(l, PIECE + 1, tsri_now_ns() + 10 * SECOND));
    CHECK_INT(tsri_locking_done(l), 2 * (size_t)PIECE);
    CHECK(!tsri_locking_wait(l, bytes, tsri_now_ns() + SECOND / 100));
    allow(3);
    CHECK(tsri_locking_wait(l, bytes, tsri_now_ns() + 10 * SECOND));
    tsri_locking_close(l);
    CHECK_INT(fake.n_unlocked, 3);
    munmap(p, bytes);
}

TEST(a_piece_that_fails_is_one_warning_and_what_was_locked_stays)
{
    const size_t bytes = 4 * (size_t)PIECE;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    fake_reset(CALLS, 2);
    listen_to_log();
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 4096), 0);
    CHECK(!tsri_locking_wait(l, bytes, tsri_now_ns() + 10 * SECOND)); /* does not take that long */
    CHECK_INT(tsri_locking_done(l), 2 * (size_t)PIECE);
    CHECK(tsri_locking_wait(l, 2 * (size_t)PIECE, 1));
    CHECK_INT(heard.n_warnings, 1);
    CHECK_INT(heard.n_infos, 0);
    CHECK(strstr(heard.text, "fake: cannot lock"));
    tsri_locking_close(l);
    CHECK_INT(fake.n_unlocked, 2);
    munmap(p, bytes);
}

TEST(the_end_is_told_once)
{
    uint8_t *p = reserve(MIB);
    struct tsri_locking *l;
    fake_reset(CALLS, CALLS);
    listen_to_log();
    CHECK_INT(tsri_locking_open(&l, &device, p, MIB, 4096), 0);
    CHECK(tsri_locking_wait(l, MIB, tsri_now_ns() + 10 * SECOND));
    tsri_locking_close(l);
    CHECK_INT(heard.n_infos, 1);
    CHECK(strstr(heard.text, "page-locked 1 MiB"));
    munmap(p, MIB);
}

static void *allow_all(void *arg)
{
    (void)arg;
    allow(CALLS);
    return NULL;
}

TEST(closing_in_the_middle_unlocks_what_was_locked)
{
    const size_t bytes = 8 * (size_t)PIECE;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    pthread_t helper;
    fake_reset(1, CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 4096), 0);
    CHECK(tsri_locking_wait(l, PIECE, tsri_now_ns() + 10 * SECOND));
    CHECK_INT(pthread_create(&helper, NULL, allow_all, NULL), 0); /* or close waits forever */
    tsri_locking_close(l);
    pthread_join(helper, NULL);
    CHECK(fake.n >= 1 && fake.n_unlocked == fake.n);
    munmap(p, bytes);
}

TEST(a_device_that_needs_no_lock_has_everything_locked)
{
    struct tsri_locking *l;
    uint8_t *p = reserve(MIB);
    fake_reset(CALLS, CALLS);
    ops.caps = 0;
    CHECK_INT(tsri_locking_open(&l, &device, p, MIB, 4096), 0);
    CHECK_INT(tsri_locking_done(l), MIB);
    CHECK(tsri_locking_wait(l, MIB, 1));
    tsri_locking_close(l);
    ops.caps = TSR_DEVICE_NEEDS_LOCK;
    CHECK_INT(fake.n, 0);
    munmap(p, MIB);
}

TEST(units_that_are_larger_than_a_piece_stay_whole)
{
    const size_t unit = 2 * (size_t)PIECE, bytes = 2 * unit;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    fake_reset(CALLS, CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, unit), 0);
    CHECK(tsri_locking_wait(l, bytes, tsri_now_ns() + 10 * SECOND));
    CHECK_INT(fake.n, 2);
    CHECK_INT(fake.bytes[0], unit);
    tsri_locking_close(l);
    munmap(p, bytes);
}

TEST(pages_are_resident_when_the_device_gets_them)
{
    struct tsri_locking *l;
    unsigned char in_core[16];
    uint8_t *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    fake_reset(CALLS, CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, 65536, 4096), 0);
    CHECK(tsri_locking_wait(l, 65536, tsri_now_ns() + 10 * SECOND));
#ifdef MADV_POPULATE_WRITE
    if (madvise(p, 65536, MADV_POPULATE_WRITE) == 0) { /* since Linux 5.14 */
        CHECK_INT(mincore(p, 65536, in_core), 0);
        for (uint32_t i = 0; i < 16 && sysconf(_SC_PAGESIZE) == 4096; i++)
            CHECK(in_core[i] & 1);
    }
#endif
    (void)in_core;
    tsri_locking_close(l);
    munmap(p, 65536);
}

TEST(what_is_not_whole_pages_is_refused)
{
    static _Alignas(4096) uint8_t memory[8192];
    struct tsri_locking *l;
    CHECK_INT(tsri_locking_open(&l, &device, memory + 1, 4096, 4096), TSR_EINVAL);
    CHECK_INT(tsri_locking_open(&l, &device, memory, 4097, 4096), TSR_EINVAL);
    CHECK_INT(tsri_locking_open(&l, &device, memory, 0, 4096), TSR_EINVAL);
    CHECK_INT(tsri_locking_open(&l, &device, memory, 8192, 0), TSR_EINVAL);
    CHECK_INT(tsri_locking_open(&l, &device, memory, 8192, 12288), TSR_EINVAL);
    CHECK(!l);
    tsri_locking_close(l);
    CHECK_INT(tsri_locking_done(NULL), 0);
}

int main(void)
{
    RUN(a_mapping_is_locked_in_pieces_in_address_order);
    RUN(opening_does_not_wait_and_the_watermark_follows_the_pieces);
    RUN(a_piece_that_fails_is_one_warning_and_what_was_locked_stays);
    RUN(the_end_is_told_once);
    RUN(closing_in_the_middle_unlocks_what_was_locked);
    RUN(a_device_that_needs_no_lock_has_everything_locked);
    RUN(units_that_are_larger_than_a_piece_stay_whole);
    RUN(pages_are_resident_when_the_device_gets_them);
    RUN(what_is_not_whole_pages_is_refused);
    return test_end();
}
