/* The disk tier on a file system that is really full, and gets its room back: nothing acknowledged
 * is given up, nothing dropped comes back, and writing goes on without a restart. */
#include "support/disk_kit.h"
#include "support/full_fs.h"
#include "support/test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0}; /* 52 KiB */
enum { SMALL_KIB = 4 << 10, LARGE_KIB = 16 << 10 };

static struct disk_kit kit;
static bool have_fs;

/* Blocks cannot be reserved on every file system: then it is a write that finds no room. */
static int only_size(void *arg, int fd, off_t bytes)
{
    return tsri_fileio_real.ftruncate(arg, fd, bytes);
}
static struct tsri_fileio sparse;

static void open_kit(bool reserves)
{
    if (!have_fs) SKIP(FULL_FS_REFUSED);
    disk_kit_init(&kit);
    CHECK(full_fs_mount(kit.dir.path, SMALL_KIB));
    sparse = tsri_fileio_real;
    sparse.fallocate = only_size;
    if (!reserves) kit.setup.io = &sparse;
    kit.setup.segment_bytes = 256 << 10;
    CHECK_INT(disk_kit_open(&kit), 0);
}

static void close_kit(void)
{
    disk_kit_crash(&kit);
    full_fs_umount(kit.dir.path);
    disk_kit_fini(&kit);
}

/* Puts entries from `from` on until one finds no room; returns the number of that one. */
static uint64_t fill(uint64_t from)
{
    uint64_t n = from;
    int r = 0;
    while (n < from + 1000 && (r = kv_tier_put(kit.tier, &small, n)) == 0)
        n++;
    CHECK_INT(r, TSR_EIO);
    return n;
}

/* Takes the last bytes of the file system. */
static void take_the_rest(void)
{
    char path[300], page[TSRI_PAGE_BYTES] = {1};
    snprintf(path, sizeof path, "%s/ballast", kit.dir.path);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    while (write(fd, page, sizeof page) == (ssize_t)sizeof page)
        ;
    close(fd);
}

/* Fills it up, to the last byte: no segment has room that is reserved. Returns how many entries. */
static uint64_t fill_to_the_brim(void)
{
    uint64_t n = fill(0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    take_the_rest();
    return n;
}

static uint64_t count(uint64_t from, uint64_t to, uint64_t step)
{
    uint64_t n = 0;
    for (uint64_t i = from; i < to; i += step)
        n += kv_tier_get(kit.tier, &small, i, 0) == 0;
    return n;
}

static void refuse_and_keep(bool reserves)
{
    open_kit(reserves);
    uint64_t n = fill(0);
    CHECK(n > 20);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    take_the_rest();
    for (uint64_t i = 0; i < 300; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, 5000 + i), TSR_EIO);
    (void)!tsri_tier_flush(kit.tier);
    CHECK_INT(count(0, n, 1), n);
    CHECK_INT(disk_kit_files(&kit, ".tmp"), 0);
    CHECK(disk_kit_files(&kit, ".seg") < 40); /* not one for each try */
    /* There is room again, and nothing needs to be opened again. */
    CHECK(full_fs_resize(kit.dir.path, LARGE_KIB));
    for (uint64_t i = 0; i < 50; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, 1000 + i), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count(0, n, 1), n);
    CHECK_INT(count(1000, 1050, 1), 50);
    close_kit();
}

TEST(a_full_file_system_refuses_puts_and_keeps_what_was_acknowledged)
{
    refuse_and_keep(true);
}

TEST(the_same_where_blocks_cannot_be_reserved)
{
    refuse_and_keep(false);
}

/* Not a byte is left for tombstones: what holds nothing goes without them. */
TEST(what_is_dropped_on_a_full_file_system_gives_its_room_back)
{
    open_kit(true);
    uint64_t n = fill_to_the_brim();
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT(kv_tier_drop(kit.tier, &small, i), 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK(disk_kit_stats(&kit).bytes_used < 1 << 20);
    for (uint64_t i = 0; i < n / 2; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, 1000 + i), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count(0, n, 1), 0);
    CHECK_INT(count(1000, 1000 + n / 2, 1), n / 2);
    close_kit();
}

/* Every segment is half dead and nothing can be moved. A flush that cannot write the tombstones
 * says so; one that can, later, means it. */
TEST(drops_on_a_full_file_system_are_acknowledged_when_there_is_room)
{
    open_kit(true);
    uint64_t n = fill_to_the_brim(), n_even = (n + 1) / 2;
    for (uint64_t i = 1; i < n; i += 2)
        CHECK_INT(kv_tier_drop(kit.tier, &small, i), 1);
    int told = tsri_tier_flush(kit.tier);
    for (uint64_t i = 0; i < 20; i++)
        CHECK(kv_tier_put(kit.tier, &small, 5000 + i) <= 0);
    CHECK_INT(count(0, n, 2), n_even);
    if (told != 0) CHECK(full_fs_resize(kit.dir.path, LARGE_KIB));
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count(0, n, 2), n_even);
    CHECK_INT(count(1, n, 2), 0);
    close_kit();
}

TEST(a_checkpoint_that_finds_no_room_leaves_the_old_one)
{
    open_kit(true);
    for (uint64_t i = 0; i < 10; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
    disk_kit_close(&kit); /* writes one */
    char path[300];
    snprintf(path, sizeof path, "%s/checkpoint", kit.dir.path);
    size_t bytes = 0, bytes_after = 0;
    uint8_t *before = disk_kit_slurp(path, &bytes);
    CHECK(before != NULL);
    CHECK_INT(disk_kit_open(&kit), 0);
    uint64_t n = fill(10);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    take_the_rest();
    struct tsri_disk *d = (struct tsri_disk *)kit.tier;
    d->tombs_lost = true; /* it is due */
    CHECK(tsri_tier_flush(kit.tier) < 0);
    CHECK_INT(disk_kit_files(&kit, ".tmp"), 0);
    uint8_t *after = disk_kit_slurp(path, &bytes_after);
    CHECK(after && bytes == bytes_after && memcmp(before, after, bytes) == 0);
    free(before);
    free(after);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count(0, n, 1), n);
    close_kit();
}

/* ---- killed at any moment ---- */

enum { KEYS = 96, FREE_TO_BE_EITHER = 0, THERE = 1, GONE = 2 };

/* Of a process that puts, drops and flushes until it is killed: what must be true of each key. */
static void live(volatile uint8_t *acked, uint64_t seed)
{
    uint8_t held[KEYS] = {0};
    uint64_t state = seed;
    for (;;) {
        uint64_t r = test_rand(&state), key = r % KEYS;
        if ((r >> 32) % 8 == 0) {
            if (tsri_tier_flush(kit.tier) != 0) continue;
            for (uint64_t i = 0; i < KEYS; i++)
                if (held[i]) acked[i] = held[i];
        } else if ((r >> 32) % 8 < 6) {
            if (held[key] == THERE) continue;
            acked[key] = FREE_TO_BE_EITHER;
            held[key] = kv_tier_put(kit.tier, &small, key) == 0 ? THERE : 0;
        } else {
            acked[key] = FREE_TO_BE_EITHER;
            (void)!kv_tier_drop(kit.tier, &small, key);
            held[key] = GONE;
        }
    }
}

static void check_and_note(volatile uint8_t *acked)
{
    for (uint64_t i = 0; i < KEYS; i++) {
        int r = kv_tier_get(kit.tier, &small, i, 0);
        CHECK(r == 0 || r == TSR_ENOENT || (r == TSR_ECORRUPT && acked[i] != THERE));
        if (acked[i] == THERE) CHECK_INT(r, 0);
        if (acked[i] == GONE) CHECK_INT(r, TSR_ENOENT);
    }
}

TEST(killed_at_any_moment_on_a_file_system_that_fills_up_nothing_acknowledged_is_lost)
{
    open_kit(true);
    disk_kit_crash(&kit);
    volatile uint8_t *acked =
        mmap(NULL, KEYS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(acked != MAP_FAILED);
    uint64_t state = 7;
    for (int round = 0; round < (TEST_SANITIZED ? 10 : 40); round++) {
        kit.setup.io = round % 3 == 2 ? &sparse : NULL;
        (void)full_fs_resize(kit.dir.path, round % 2 ? SMALL_KIB + 1024 : SMALL_KIB);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            if (disk_kit_open(&kit) != 0) _exit(1);
            live(acked, (uint64_t)round + 1);
        }
        usleep(3000 + (useconds_t)(test_rand(&state) % 30000));
        kill(pid, SIGKILL);
        CHECK_INT(waitpid(pid, NULL, 0), pid);
        CHECK_INT(disk_kit_open(&kit), 0);
        check_and_note(acked);
        disk_kit_crash(&kit);
    }
    munmap((void *)(uintptr_t)acked, KEYS);
    close_kit();
}

int main(void)
{
    have_fs = full_fs_enter();
    RUN(a_full_file_system_refuses_puts_and_keeps_what_was_acknowledged);
    RUN(the_same_where_blocks_cannot_be_reserved);
    RUN(what_is_dropped_on_a_full_file_system_gives_its_room_back);
    RUN(drops_on_a_full_file_system_are_acknowledged_when_there_is_room);
    RUN(a_checkpoint_that_finds_no_room_leaves_the_old_one);
    RUN(killed_at_any_moment_on_a_file_system_that_fills_up_nothing_acknowledged_is_lost);
    return test_end();
}
