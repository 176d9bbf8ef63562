/* test_locking.c - page-locking in the background: what is locked when, what a failed piece leaves,
 * and that all of it is given back. The device only notes its calls. */
#include "support/lock_kit.h"

#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static struct tsri_device device = {.ops = &lock_ops};

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
    const size_t bytes = 2 * LOCK_PIECE + 3 * MIB;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    lock_kit_reset(LOCK_CALLS, LOCK_CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 256 << 10), 0);
    CHECK(tsri_locking_wait(l, SIZE_MAX, tsri_now_ns() + LOCK_SOON_NS));
    CHECK_INT(tsri_locking_done(l), bytes);
    CHECK_INT(locks.n, 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(locks.at[i] == p + i * LOCK_PIECE);
    CHECK_INT(locks.bytes[0], LOCK_PIECE);
    CHECK_INT(locks.bytes[2], 3 * MIB);
    tsri_locking_close(l);
    CHECK_INT(locks.n_unlocked, 3);
    munmap(p, bytes);
}

TEST(opening_does_not_wait_and_the_watermark_follows_the_pieces)
{
    const size_t bytes = 3 * LOCK_PIECE;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    lock_kit_reset(0, LOCK_CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 4096), 0);
    CHECK_INT(tsri_locking_done(l), 0);
    CHECK(!tsri_locking_wait(l, 1, tsri_now_ns() + 10000000));
    lock_kit_allow(2);
    CHECK(tsri_locking_wait(l, LOCK_PIECE + 1, tsri_now_ns() + LOCK_SOON_NS));
    CHECK_INT(tsri_locking_done(l), 2 * LOCK_PIECE);
    CHECK(!tsri_locking_wait(l, bytes, tsri_now_ns() + 10000000));
    lock_kit_allow(3);
    CHECK(tsri_locking_wait(l, bytes, tsri_now_ns() + LOCK_SOON_NS));
    tsri_locking_close(l);
    CHECK_INT(locks.n_unlocked, 3);
    munmap(p, bytes);
}

TEST(a_piece_that_fails_is_one_warning_and_what_was_locked_stays)
{
    const size_t bytes = 4 * LOCK_PIECE;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    lock_kit_reset(LOCK_CALLS, 2);
    listen_to_log();
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 4096), 0);
    CHECK(!tsri_locking_wait(l, bytes, tsri_now_ns() + LOCK_SOON_NS)); /* does not take that long */
    CHECK_INT(tsri_locking_done(l), 2 * LOCK_PIECE);
    CHECK(tsri_locking_wait(l, 2 * LOCK_PIECE, 1));
    CHECK_INT(heard.n_warnings, 1);
    CHECK_INT(heard.n_infos, 0);
    CHECK(strstr(heard.text, "gate: cannot lock"));
    tsri_locking_close(l);
    CHECK_INT(locks.n_unlocked, 2);
    munmap(p, bytes);
}

TEST(the_end_is_told_once)
{
    uint8_t *p = reserve(MIB);
    struct tsri_locking *l;
    lock_kit_reset(LOCK_CALLS, LOCK_CALLS);
    listen_to_log();
    CHECK_INT(tsri_locking_open(&l, &device, p, MIB, 4096), 0);
    CHECK(tsri_locking_wait(l, MIB, tsri_now_ns() + LOCK_SOON_NS));
    tsri_locking_close(l);
    CHECK_INT(heard.n_infos, 1);
    CHECK(strstr(heard.text, "page-locked 1 MiB"));
    munmap(p, MIB);
}

static void *allow_all(void *arg)
{
    (void)arg;
    lock_kit_allow(LOCK_CALLS);
    return NULL;
}

TEST(closing_in_the_middle_unlocks_what_was_locked)
{
    const size_t bytes = 8 * LOCK_PIECE;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    pthread_t helper;
    lock_kit_reset(1, LOCK_CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, 4096), 0);
    CHECK(tsri_locking_wait(l, LOCK_PIECE, tsri_now_ns() + LOCK_SOON_NS));
    CHECK_INT(pthread_create(&helper, NULL, allow_all, NULL), 0); /* or close waits forever */
    tsri_locking_close(l);
    pthread_join(helper, NULL);
    CHECK(locks.n >= 1 && locks.n_unlocked == locks.n);
    munmap(p, bytes);
}

TEST(a_device_that_needs_no_lock_has_everything_locked)
{
    struct tsri_locking *l;
    uint8_t *p = reserve(MIB);
    lock_kit_reset(LOCK_CALLS, LOCK_CALLS);
    lock_ops.caps = 0;
    CHECK_INT(tsri_locking_open(&l, &device, p, MIB, 4096), 0);
    CHECK_INT(tsri_locking_done(l), MIB);
    CHECK(tsri_locking_wait(l, MIB, 1));
    tsri_locking_close(l);
    lock_ops.caps = TSR_DEVICE_NEEDS_LOCK;
    CHECK_INT(locks.n, 0);
    munmap(p, MIB);
}

TEST(units_that_are_larger_than_a_piece_stay_whole)
{
    const size_t unit = 2 * LOCK_PIECE, bytes = 2 * unit;
    uint8_t *p = reserve(bytes);
    struct tsri_locking *l;
    lock_kit_reset(LOCK_CALLS, LOCK_CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, bytes, unit), 0);
    CHECK(tsri_locking_wait(l, bytes, tsri_now_ns() + LOCK_SOON_NS));
    CHECK_INT(locks.n, 2);
    CHECK_INT(locks.bytes[0], unit);
    tsri_locking_close(l);
    munmap(p, bytes);
}

TEST(pages_are_resident_when_the_device_gets_them)
{
    struct tsri_locking *l;
    unsigned char in_core[16];
    uint8_t *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    lock_kit_reset(LOCK_CALLS, LOCK_CALLS);
    CHECK_INT(tsri_locking_open(&l, &device, p, 65536, 4096), 0);
    CHECK(tsri_locking_wait(l, 65536, tsri_now_ns() + LOCK_SOON_NS));
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
