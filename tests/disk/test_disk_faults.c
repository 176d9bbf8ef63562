/* The disk tier on a disk that fails: every call of a run, a full disk, no rights, no directory,
 * and bits that change by themselves. */
#include "support/disk_script.h"
#include "support/fault_io.h"
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>

static struct disk_kit kit;
static struct fault_io faults;

static bool is_long(void)
{
    const char *text = getenv("TESSERA_TEST_LONG");
    return text && *text && strcmp(text, "0") != 0;
}

/* Every n-th call, or fewer where each takes ten times as long. */
static uint32_t step(uint32_t n)
{
    return is_long() ? 1 : TEST_SANITIZED ? 11 * n : n;
}

/* ---- every n-th call ---- */

/* One run with the n-th call of all failing; then a crash, a healthy disk, and the truth. Returns
 * how many calls the run made. */
static uint32_t run_with_fault(enum tsri_aio_mode mode, uint32_t nth, uint32_t again, int error)
{
    disk_kit_init_fast(&kit);
    fault_io_init(&faults);
    kit.setup.io = &faults.io;
    kit.setup.mode = mode;
    kit.setup.buffered = nth % 2;
    kit.setup.segment_bytes = 96 << 10;
    kit.n_threads = 1;
    struct disk_script script;
    disk_script_init(&script, &kit);
    script.faulty = nth != 0;
    fault_io_set(&faults, FAULT_ALL, nth, again, error);
    if (disk_kit_open(&kit) == 0) disk_script_run(&script);
    uint32_t n_calls = atomic_load(&faults.n_calls);
    fault_io_set(&faults, 0, 0, 0, 0);
    disk_kit_crash(&kit);
    int r = disk_kit_open(&kit);
    script.faulty = false;
    if (r == 0) disk_script_check(&script);
    /* And it is usable again. */
    bool usable = r == 0 && kv_tier_put(kit.tier, disk_script_shape(1), 1) == 0 &&
                  tsri_tier_flush(kit.tier) == 0 &&
                  kv_tier_get(kit.tier, disk_script_shape(1), 1, 0) == 0;
    disk_kit_fini(&kit);
    if (script.wrong || !usable)
        printf("    call %u (+%u) with %d, mode %d: %s\n", nth, again, error, (int)mode,
               script.wrong ? script.wrong : "not usable afterwards");
    CHECK(script.wrong == NULL && usable);
    if (!nth) CHECK_INT(script.n_flushed, 7);
    return n_calls;
}

TEST(whatever_call_fails_nothing_acknowledged_is_lost_and_nothing_wrong_returned)
{
    uint32_t n = run_with_fault(TSRI_AIO_INLINE, 0, 0, 0);
    CHECK(n > 100 && n < 2000);
    const int errors[] = {EIO, ENOSPC, FAULT_SHORT};
    for (size_t e = 0; e < TSRI_COUNT(errors); e++)
        for (uint32_t nth = 1 + (uint32_t)e % step(1); nth <= n; nth += step(1))
            run_with_fault(TSRI_AIO_INLINE, nth, 0, errors[e]);
}

TEST(the_same_through_a_ring)
{
    uint32_t n = run_with_fault(TSRI_AIO_AUTO, 0, 0, 0);
    for (uint32_t nth = 1; nth <= n; nth += step(7))
        run_with_fault(TSRI_AIO_AUTO, nth, 0,
                       nth % 3 == 0   ? EIO
                       : nth % 3 == 1 ? FAULT_SHORT
                                      : ENOSPC);
}

TEST(a_disk_that_fails_for_a_while_or_for_good)
{
    uint32_t n = run_with_fault(TSRI_AIO_INLINE, 0, 0, 0);
    const int errors[] = {EIO, ENOSPC, EDQUOT, EROFS, EFBIG};
    for (uint32_t nth = 1, i = 0; nth <= n; nth += step(5), i++) {
        run_with_fault(TSRI_AIO_INLINE, nth, 4, i % 2 ? EIO : ENOSPC);
        run_with_fault(TSRI_AIO_INLINE, nth, UINT32_MAX - nth - 1, errors[i % 5]);
    }
}

/* ---- a full disk ---- */

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0}; /* 52 KiB */

/* Puts until it is refused, drops some, and goes on. */
static void fill_up(void)
{
    uint64_t n = 0;
    int r;
    while ((r = kv_tier_put(kit.tier, &small, n)) == 0 && n < 1000)
        n++;
    CHECK_INT(r, TSR_EIO); /* to drop something would free nothing */
    CHECK(n > 3);
    CHECK(tsri_tier_flush(kit.tier) == 0);
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), 0);
}

TEST(a_full_disk_refuses_puts_and_keeps_what_it_has)
{
    disk_kit_init_fast(&kit);
    kit.setup.segment_bytes = 256 << 10;
    bool mounted = mount("none", kit.dir.path, "tmpfs", 0, "size=4m,mode=0700") == 0;
    fault_io_init(&faults);
    if (!mounted) kit.setup.io = &faults.io; /* refused: it is full when the calls say so */
    CHECK_INT(disk_kit_open(&kit), 0);
    /* Two segments find room, and no other. */
    if (!mounted) fault_io_set(&faults, FAULT_SIZE, 3, UINT32_MAX - 3, ENOSPC);
    fill_up();
    CHECK_INT(kv_tier_get(kit.tier, &small, 0, 0), 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 0, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 3, 0), 0);
    disk_kit_crash(&kit);
    if (mounted) CHECK_INT(umount2(kit.dir.path, MNT_DETACH), 0);
    disk_kit_fini(&kit);
}

/* ---- no rights, no directory ---- */

/* As somebody who may not write there. */
static int child_without_rights(void)
{
    if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 77;
    if (disk_kit_open(&kit) != TSR_EPERM) return 1;
    if (!strstr(tsr_errmsg(), kit.dir.path)) return 2;
    kit.read_only = true;
    if (disk_kit_open(&kit) != 0) return 3;
    if (kv_tier_get(kit.tier, &small, 1, 0) != 0) return 4;
    if (kv_tier_put(kit.tier, &small, 2) != TSR_EPERM) return 5;
    disk_kit_close(&kit);
    return 0;
}

TEST(a_directory_without_rights_is_refused_clearly_and_may_be_read)
{
    disk_kit_init(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    disk_kit_close(&kit);
    char path[600];
    for (int i = 0; disk_kit_path(&kit, "", i, path, sizeof path); i++)
        if (path[strlen(path) - 1] != '.') CHECK_INT(chmod(path, 0444), 0);
    CHECK_INT(chmod(kit.dir.path, 0555), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(child_without_rights());
    int status;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    chmod(kit.dir.path, 0700);
    disk_kit_fini(&kit);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
}

TEST(a_directory_that_vanishes_costs_misses_and_says_so)
{
    disk_kit_init(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    tmpdir_fini(&kit.dir);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0); /* the file is still open */
    uint64_t i = 2;
    while (kv_tier_put(kit.tier, &small, i) == 0 && i < 100)
        i++;
    CHECK(i < 100); /* no new segment can be made */
    CHECK(tsri_tier_flush(kit.tier) < 0);
    CHECK(tsri_tier_flush(kit.tier) < 0);
    CHECK(kv_tier_get(kit.tier, &small, 1, 0) <= 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0); /* makes it again, empty */
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), TSR_ENOENT);
    disk_kit_fini(&kit);
}

/* ---- bits that change ---- */

static const struct kv_shape tiny = {20, 16, 2, 2, {48, 24}, 5, 0}; /* 9 pages */
enum { N_TINY = 60 };

/* Changes a bit of a file and back. */
static void flip(int fd, uint64_t bit)
{
    uint8_t byte;
    CHECK_INT(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte ^= (uint8_t)(1u << bit % 8);
    CHECK_INT(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
}

static void open_tinies(void)
{
    disk_kit_init_fast(&kit);
    kit.setup.mode = TSRI_AIO_INLINE;
    kit.setup.buffered = true;
    kit.setup.segment_bytes = 4 << 20;
    kit.n_threads = 1;
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < N_TINY; i++)
        CHECK_INT(kv_tier_put(kit.tier, &tiny, i), 0);
}

/* The record is read over and over with one bit of it changed: the bit is padding that nobody
 * reads, or it is noticed. */
TEST(no_changed_bit_of_an_entry_is_ever_handed_on)
{
    open_tinies();
    char path[600];
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    uint64_t n_flips = is_long()        ? 1000000
                       : TEST_SANITIZED ? 10000
                                        : 100000,
             n_unread = 0, n_noticed = 0, state = 1;
    uint64_t record = disk_kit_record_bytes(&tiny);
    uint64_t errors = disk_kit_stats(&kit).errors;
    for (uint64_t i = 0; i < n_flips; i++) {
        uint64_t seed = test_rand(&state) % N_TINY;
        /* Half of them where it hurts: most of a small entry is padding. */
        uint64_t at = test_rand(&state) % (i % 2 ? record : 600);
        uint64_t bit = (TSRI_PAGE_BYTES + seed * record + at) * 8 + test_rand(&state) % 8;
        flip(fd, bit);
        int r = kv_tier_get(kit.tier, &tiny, seed, 0);
        flip(fd, bit);
        CHECK(r == 0 || r == TSR_ECORRUPT);
        n_unread += r == 0;
        n_noticed += r == TSR_ECORRUPT;
    }
    CHECK(n_unread > n_flips / 10 && n_noticed > n_flips / 4);
    CHECK_INT(disk_kit_stats(&kit).errors - errors, n_noticed);
    for (uint64_t i = 0; i < N_TINY; i++)
        CHECK_INT(kv_tier_get(kit.tier, &tiny, i, 0), 0);
    close(fd);
    disk_kit_fini(&kit);
}

/* The same for what open reads: headers of segments and records, and the checkpoint. */
TEST(no_changed_bit_found_by_open_yields_a_wrong_byte)
{
    open_tinies();
    disk_kit_close(&kit);
    char segment[600], checkpoint[600];
    CHECK(disk_kit_path(&kit, ".seg", 0, segment, sizeof segment));
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", kit.dir.path);
    size_t checkpoint_bytes, segment_bytes;
    uint8_t *saved = disk_kit_slurp(checkpoint, &checkpoint_bytes);
    free(disk_kit_slurp(segment, &segment_bytes));
    CHECK(saved != NULL);
    uint64_t state = 5, record = disk_kit_record_bytes(&tiny);
    int n_lost = 0;
    for (int i = 0; i < (is_long() ? 3000 : TEST_SANITIZED ? 60 : 300); i++) {
        bool in_checkpoint = i % 3 == 0, walk = i % 3 == 1;
        const char *path = in_checkpoint ? checkpoint : segment;
        CHECK(disk_kit_spill(checkpoint, saved, checkpoint_bytes));
        if (walk) CHECK_INT(unlink(checkpoint), 0);
        uint64_t at = test_rand(&state) % 64;
        if (in_checkpoint) at = test_rand(&state) % checkpoint_bytes;
        if (!in_checkpoint && i % 2)
            at = TSRI_PAGE_BYTES + test_rand(&state) % N_TINY * record + test_rand(&state) % 600;
        int fd = open(path, O_RDWR | O_CLOEXEC);
        CHECK(fd >= 0);
        uint64_t bit = at * 8 + test_rand(&state) % 8;
        flip(fd, bit);
        int r = disk_kit_open(&kit);
        CHECK(r == 0 || r == TSR_EVERSION);
        for (uint64_t k = 0; k < N_TINY && r == 0; k++) {
            int g = kv_tier_get(kit.tier, &tiny, k, 0);
            CHECK(g == 0 || g == TSR_ECORRUPT || g == TSR_ENOENT);
            n_lost += g != 0;
        }
        disk_kit_crash(&kit);
        flip(fd, bit);
        close(fd);
    }
    CHECK(n_lost > 0);
    CHECK(disk_kit_spill(checkpoint, saved, checkpoint_bytes));
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t k = 0; k < N_TINY; k++)
        CHECK_INT(kv_tier_get(kit.tier, &tiny, k, 0), 0);
    free(saved);
    disk_kit_fini(&kit);
}

int main(void)
{
    RUN(whatever_call_fails_nothing_acknowledged_is_lost_and_nothing_wrong_returned);
    RUN(the_same_through_a_ring);
    RUN(a_disk_that_fails_for_a_while_or_for_good);
    RUN(a_full_disk_refuses_puts_and_keeps_what_it_has);
    RUN(a_directory_without_rights_is_refused_clearly_and_may_be_read);
    RUN(a_directory_that_vanishes_costs_misses_and_says_so);
    RUN(no_changed_bit_of_an_entry_is_ever_handed_on);
    RUN(no_changed_bit_found_by_open_yields_a_wrong_byte);
    return test_end();
}
