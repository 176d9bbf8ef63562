/* Making room: what lives is kept, what is dead gives its bytes back. */
#include "support/disk_kit.h"
#include "support/fault_io.h"
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0}; /* 52 KiB */

static struct disk_kit kit;
static struct fault_io faults;

static struct tsri_disk *disk(void)
{
    return (struct tsri_disk *)kit.tier;
}

/* Ten entries a segment, one caller. */
static void open_tens(void)
{
    kit.setup.segment_bytes = 10 * disk_kit_record_bytes(&small) + 2 * TSRI_PAGE_BYTES;
    kit.n_threads = 1;
    CHECK_INT(disk_kit_open(&kit), 0);
}

static void put_range(uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
}

static void drop_range(uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        CHECK_INT(kv_tier_drop(kit.tier, &small, i), 1);
}

static void check_range(uint64_t from, uint64_t to, int result)
{
    for (uint64_t i = from; i < to; i++)
        CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), result);
}

static void remove_checkpoint(void)
{
    char path[600];
    snprintf(path, sizeof path, "%s/checkpoint", kit.dir.path);
    unlink(path);
}

TEST(a_segment_without_entries_is_removed_by_the_next_flush)
{
    open_tens();
    put_range(0, 35);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 4);
    drop_range(0, 20);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 2);
    check_range(20, 35, 0);
}

TEST(a_segment_that_is_mostly_dead_is_emptied_one_a_flush)
{
    open_tens();
    put_range(0, 45);
    drop_range(1, 10);
    drop_range(11, 20);
    drop_range(21, 30);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 4);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 3);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 2);
    check_range(0, 1, 0);
    check_range(10, 11, 0);
    check_range(20, 21, 0);
    check_range(30, 45, 0);
    check_range(1, 10, TSR_ENOENT);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 1, 0);
    check_range(10, 11, 0);
    check_range(30, 45, 0);
    CHECK_INT(disk_kit_stats(&kit).entries, 18);
}

/* The tombstone stands in a segment that goes; the entry it speaks of stands in one that stays. */
TEST(tombstones_outlive_their_segment_as_long_as_they_mean_something)
{
    open_tens();
    put_range(0, 15); /* segment 1 full, 2 half */
    drop_range(0, 3); /* the tombstones go to segment 2 */
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    put_range(15, 25);
    drop_range(10, 19); /* segment 2 is dead but for its tombstones */
    CHECK_INT(disk()->segments->next->n_tombs, 3);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 2);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 3, TSR_ENOENT);
    check_range(3, 10, 0);
    check_range(10, 19, TSR_ENOENT);
    check_range(19, 25, 0);
}

TEST(an_entry_dropped_after_it_was_moved_does_not_come_back)
{
    open_tens();
    put_range(0, 15);
    drop_range(1, 10);
    CHECK_INT(tsri_tier_flush(kit.tier), 0); /* 0 moves */
    CHECK_INT(disk_kit_files(&kit, ".seg"), 1);
    drop_range(0, 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 10, TSR_ENOENT);
    check_range(10, 15, 0);
}

/* A crash, here an unlink that fails, between the copy of an entry and the end of the segment it
 * was copied from leaves it there twice. Whichever of the two is taken, its drop must speak of
 * both: the tombstone of one goes when its segment goes. */
TEST(an_entry_that_a_crash_left_twice_does_not_come_back_from_the_other)
{
    kit.setup.io = &faults.io;
    open_tens();
    put_range(0, 18);
    drop_range(1, 10);
    fault_io_set(&faults, FAULT_UNLINK, 1, 1000, EIO);
    CHECK_INT(tsri_tier_flush(kit.tier), 0); /* 0 is copied, segment 1 stays */
    fault_io_set(&faults, 0, 0, 0, 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 2);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 1, 0);
    drop_range(0, 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_close(&kit); /* segments that hold only tombstones go */
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 10, TSR_ENOENT);
    check_range(10, 18, 0);
}

/* The same without a reopen between copy and drop: the old segment is still there. */
TEST(an_entry_that_was_moved_does_not_come_back_from_where_it_was)
{
    kit.setup.io = &faults.io;
    open_tens();
    put_range(0, 18);
    drop_range(1, 10);
    fault_io_set(&faults, FAULT_UNLINK, 1, 1000, EIO);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    drop_range(0, 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 2);
    fault_io_set(&faults, 0, 0, 0, 0);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 10, TSR_ENOENT);
    check_range(10, 18, 0);
}

/* A copy keeps its sequence number, so number and segment name a record only as long as no two
 * segments ever have the same id. */
TEST(a_tombstone_does_not_hit_a_later_segment_of_the_same_id)
{
    const struct kv_shape large = {704, 64, 3, 2, {48, 32}, 10, 0};
    open_tens();
    put_range(0, 5); /* segment 1 stays open */
    CHECK(disk_kit_record_bytes(&large) > 5 * disk_kit_record_bytes(&small));
    CHECK_INT(kv_tier_put(kit.tier, &large, 100), 0); /* does not fit there: segment 2 */
    put_range(5, 8);
    CHECK_INT(disk()->segments->n_live, 4);
    tsri_segment_seal(disk(), disk()->segments);
    CHECK_INT(kv_tier_drop(kit.tier, &large, 100), 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0); /* the rest of 2 moves to 1 */
    CHECK_INT(disk()->n_segments, 1);
    CHECK_INT(disk()->segments->id, 1);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    drop_range(0, 5);
    CHECK_INT(tsri_tier_flush(kit.tier), 0); /* and from 1 to a new one */
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK(disk()->segments->id > 2);
    check_range(5, 8, 0);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 5, TSR_ENOENT);
    check_range(5, 8, 0);
}

/* After a failed sync nobody knows whether the tombstones are on disk; the next flush must not say
 * so. Here they are not. */
TEST(tombstones_in_doubt_are_told_by_the_checkpoint)
{
    kit.setup.io = &faults.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    for (uint32_t nth = 1; nth <= 2; nth++) {
        open_tens();
        put_range(0, 15);
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
        drop_range(0, 2);
        fault_io_set(&faults, FAULT_SYNC, nth, 0, EIO);
        int first = tsri_tier_flush(kit.tier);
        fault_io_set(&faults, 0, 0, 0, 0);
        CHECK(nth > 1 || first == TSR_EIO);
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
        CHECK(first == 0 || disk_kit_files(&kit, "checkpoint") == 1);
        disk_kit_crash(&kit);
        CHECK_INT(disk_kit_open(&kit), 0);
        check_range(0, 2, TSR_ENOENT);
        check_range(2, 15, 0);
        disk_kit_crash(&kit);
        tmpdir_fini(&kit.dir);
        CHECK_INT(mkdir(kit.dir.path, 0700), 0);
    }
}

TEST(a_segment_of_many_entries_is_emptied_with_all_its_tombstones)
{
    enum { N = 3000 };
    const struct kv_shape tiny = {1, 1, 1, 1, {4, 0}, 0, 0};
    kit.setup.segment_bytes = (2 * N + 2) * (uint64_t)disk_kit_record_bytes(&tiny);
    kit.n_threads = 1;
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_put(kit.tier, &tiny, i), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < N; i += 2)
        CHECK_INT(kv_tier_drop(kit.tier, &tiny, i), 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK(!disk()->tombs_lost);
    CHECK_INT(disk()->segments->next ? disk()->segments->next->id : 0, 0);
    disk_kit_crash(&kit);
    remove_checkpoint();
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_get(kit.tier, &tiny, i, 0), i % 2 ? 0 : TSR_ENOENT);
}

/* Tombstones alone are not moved from segment to segment: that would look like room being made. */
TEST(a_segment_of_tombstones_stays_while_they_mean_something)
{
    open_tens();
    put_range(0, 10);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    tsri_segment_seal(disk(), disk()->segments);
    drop_range(0, 2);
    disk_kit_close(&kit); /* leaves one segment of entries and one of tombstones */
    CHECK_INT(disk_kit_files(&kit, ".seg"), 2);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk()->segments->n_tombs, 2);
    uint64_t id = disk()->segments->id;
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk()->segments->id, id);
    CHECK_INT(tsri_disk_make_room(disk()), 1); /* empties the other one */
    check_range(0, 2, TSR_ENOENT);
    check_range(2, 10, 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 1);
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 2, TSR_ENOENT);
    check_range(2, 10, 0);
}

TEST(what_fails_its_checksum_is_not_copied)
{
    open_tens();
    put_range(0, 15);
    char path[600];
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    uint64_t record = disk_kit_record_bytes(&small);
    CHECK_INT(pwrite(fd, "?", 1, TSRI_PAGE_BYTES + (off_t)(record * 2 - TSRI_PAGE_BYTES)), 1);
    CHECK_INT(pwrite(fd, "?", 1, TSRI_PAGE_BYTES + (off_t)record * 2 + 300), 1);
    close(fd);
    drop_range(3, 10);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 1);
    check_range(0, 1, 0);
    check_range(1, 3, TSR_ENOENT);
    check_range(10, 15, 0);
    CHECK_INT(disk_kit_stats(&kit).errors, 2);
}

TEST(a_compaction_that_fails_loses_nothing)
{
    kit.setup.io = &faults.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    for (uint32_t nth = 1; nth < 40; nth++) {
        open_tens();
        put_range(0, 15);
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
        drop_range(3, 10);
        fault_io_set(&faults, FAULT_WRITE | FAULT_SYNC | FAULT_UNLINK, nth, 0, EIO);
        (void)!tsri_tier_flush(kit.tier);
        fault_io_set(&faults, 0, 0, 0, 0);
        check_range(0, 3, 0);
        check_range(10, 15, 0);
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
        check_range(0, 3, 0);
        check_range(10, 15, 0);
        disk_kit_crash(&kit);
        remove_checkpoint();
        CHECK_INT(disk_kit_open(&kit), 0);
        check_range(0, 3, 0);
        check_range(3, 10, TSR_ENOENT);
        check_range(10, 15, 0);
        disk_kit_crash(&kit);
        tmpdir_fini(&kit.dir);
        CHECK_INT(mkdir(kit.dir.path, 0700), 0);
    }
}

/* What lives moves to a segment whose name is not on disk yet: an entry that was acknowledged must
 * not depend on it. */
TEST(a_compaction_into_a_new_segment_loses_nothing_either)
{
    kit.setup.io = &faults.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    for (uint32_t nth = 1; nth < 20; nth++) {
        open_tens();
        put_range(0, 19); /* the second has no room for three */
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
        drop_range(3, 10);
        fault_io_set(&faults, FAULT_SYNC, nth, 0, EIO);
        for (int i = 0; i < 3; i++)
            CHECK(tsri_tier_flush(kit.tier) <= 0);
        fault_io_set(&faults, 0, 0, 0, 0);
        check_range(0, 3, 0);
        check_range(10, 19, 0);
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
        disk_kit_crash(&kit);
        CHECK_INT(disk_kit_open(&kit), 0);
        check_range(0, 3, 0);
        check_range(3, 10, TSR_ENOENT);
        check_range(10, 19, 0);
        disk_kit_crash(&kit);
        tmpdir_fini(&kit.dir);
        CHECK_INT(mkdir(kit.dir.path, 0700), 0);
    }
}

TEST(what_cannot_be_read_stays_where_it_is)
{
    kit.setup.io = &faults.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    open_tens();
    put_range(0, 10);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    drop_range(3, 10);
    fault_io_set(&faults, FAULT_READ, 2, UINT32_MAX - 2, EIO);
    for (int i = 0; i < 3; i++)
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
    fault_io_set(&faults, 0, 0, 0, 0);
    check_range(0, 3, 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 3, 0);
    check_range(3, 10, TSR_ENOENT);
}

TEST(many_small_segments_are_joined)
{
    for (uint64_t i = 0; i < 30; i++) {
        CHECK_INT(disk_kit_open(&kit), 0);
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
        disk_kit_close(&kit);
    }
    CHECK(disk_kit_files(&kit, ".seg") < 15);
    CHECK_INT(disk_kit_open(&kit), 0);
    check_range(0, 30, 0);
}

/* At its limit for long, with entries of any age dropped: never more bytes than allowed, nothing
 * lost that was not dropped. */
TEST(a_full_store_goes_on_and_on)
{
    enum { KEYS = 200 };
    kit.setup.bytes_max = 6 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    static bool there[KEYS];
    memset(there, 0, sizeof there);
    uint64_t state = 21, n_full = 0;
    for (int round = 0; round < 500; round++) {
        uint64_t i = test_rand(&state) % KEYS;
        int r = kv_tier_put(kit.tier, &small, i);
        CHECK(r == 0 || r == TSR_EFULL);
        if (r == 0) there[i] = true;
        while (r == TSR_EFULL) {
            n_full++;
            uint64_t k = test_rand(&state) % KEYS;
            CHECK_INT(kv_tier_drop(kit.tier, &small, k), there[k]);
            there[k] = false;
            r = kv_tier_put(kit.tier, &small, i);
            if (r == 0) there[i] = true;
        }
        CHECK(disk_kit_stats(&kit).bytes_used <= kit.setup.bytes_max);
        if (round % 200 == 199) {
            disk_kit_close(&kit);
            CHECK_INT(disk_kit_open(&kit), 0);
        }
    }
    CHECK(n_full > 50);
    uint64_t n = 0;
    for (uint64_t i = 0; i < KEYS; i++) {
        CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), there[i] ? 0 : TSR_ENOENT);
        n += there[i];
    }
    CHECK(n > 60); /* of about 110 that the bytes would hold */
}

TEST(a_checkpoint_is_written_when_much_has_changed)
{
    const struct kv_shape tiny = {1, 1, 1, 1, {4, 0}, 0, 0};
    kit.setup.segment_bytes = 8 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < 2000; i++)
        CHECK_INT(kv_tier_put(kit.tier, &tiny, i), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, "checkpoint"), 0);
    for (uint64_t i = 2000; i < 4200; i++)
        CHECK_INT(kv_tier_put(kit.tier, &tiny, i), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(disk_kit_files(&kit, "checkpoint"), 1);
    CHECK_INT(disk()->n_changes, 0);
}

#define RUN_KIT(promise) \
    do { \
        disk_kit_init_fast(&kit); \
        fault_io_init(&faults); \
        RUN(promise); \
        disk_kit_fini(&kit); \
    } while (0)

int main(void)
{
    RUN_KIT(a_segment_without_entries_is_removed_by_the_next_flush);
    RUN_KIT(a_segment_that_is_mostly_dead_is_emptied_one_a_flush);
    RUN_KIT(tombstones_outlive_their_segment_as_long_as_they_mean_something);
    RUN_KIT(an_entry_dropped_after_it_was_moved_does_not_come_back);
    RUN_KIT(an_entry_that_a_crash_left_twice_does_not_come_back_from_the_other);
    RUN_KIT(an_entry_that_was_moved_does_not_come_back_from_where_it_was);
    RUN_KIT(a_tombstone_does_not_hit_a_later_segment_of_the_same_id);
    RUN_KIT(tombstones_in_doubt_are_told_by_the_checkpoint);
    RUN_KIT(a_segment_of_many_entries_is_emptied_with_all_its_tombstones);
    RUN_KIT(a_segment_of_tombstones_stays_while_they_mean_something);
    RUN_KIT(what_fails_its_checksum_is_not_copied);
    RUN_KIT(a_compaction_that_fails_loses_nothing);
    RUN_KIT(a_compaction_into_a_new_segment_loses_nothing_either);
    RUN_KIT(what_cannot_be_read_stays_where_it_is);
    RUN_KIT(many_small_segments_are_joined);
    RUN_KIT(a_full_store_goes_on_and_on);
    RUN_KIT(a_checkpoint_is_written_when_much_has_changed);
    return test_end();
}
