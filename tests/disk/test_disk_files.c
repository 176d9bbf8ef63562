/* Segment files: made, appended to, sealed, synced and removed. */
#include "support/disk_kit.h"
#include "support/fault_io.h"
#include "support/test.h"

#include <errno.h>

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0}; /* 52 KiB */

static struct disk_kit kit;
static struct fault_io faults;

static struct tsri_disk *disk(void)
{
    return (struct tsri_disk *)kit.tier;
}

TEST(names_and_ids_belong_together)
{
    char name[TSRI_SEGMENT_NAME_BYTES];
    tsri_segment_name(0x1234, name);
    CHECK_STR(name, "0000000000001234.seg");
    CHECK_INT(tsri_segment_id(name), 0x1234);
    const char *const others[] = {"",
                                  "seg",
                                  "1234.seg",
                                  "0000000000000000.seg", /* ids begin with 1 */
                                  "0000000000001234.seg~",
                                  "ffffffffffffffff.seg",
                                  "000000000000123G.seg",
                                  "-000000000000123.seg",
                                  "0x00000000001234.seg",
                                  "000000000000ABCD.seg"};
    for (size_t i = 0; i < TSRI_COUNT(others); i++)
        CHECK_INT(tsri_segment_id(others[i]), 0);
}

TEST(a_segment_has_its_size_from_the_start_and_gives_back_the_rest)
{
    char path[600];
    struct stat st;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    CHECK_INT(stat(path, &st), 0);
    CHECK_INT(st.st_size, 1 << 20);
    CHECK_INT(disk_kit_stats(&kit).bytes_used, 1 << 20);
    disk_kit_close(&kit);
    CHECK_INT(stat(path, &st), 0);
    CHECK_INT(st.st_size, TSRI_PAGE_BYTES + disk_kit_record_bytes(&small));
}

TEST(nothing_is_synced_for_a_put_and_all_of_it_by_a_flush)
{
    kit.setup.io = &faults.io;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 0), 0); /* makes the segment */
    fault_io_set(&faults, FAULT_SYNC, 0, 0, 0);
    for (uint64_t i = 1; i < 10; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
    CHECK_INT(faults.n_calls, 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(faults.n_calls, 2); /* the segment, and the directory that got it */
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(faults.n_calls, 2); /* nothing new */
    CHECK_INT(disk()->segments->synced, disk()->segments->tail);
}

/* The kernel may tell of a failed write-back once and never again. */
TEST(what_could_not_be_synced_is_forgotten_not_acknowledged)
{
    kit.setup.io = &faults.io;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 2), 0);
    fault_io_set(&faults, FAULT_SYNC, 1, 0, EIO);
    CHECK_INT(tsri_tier_flush(kit.tier), TSR_EIO);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), TSR_ENOENT);
    CHECK_INT(kv_tier_put(kit.tier, &small, 3), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), TSR_ENOENT);
    CHECK_INT(kv_tier_get(kit.tier, &small, 3, 0), 0);
}

TEST(a_directory_that_could_not_be_synced_takes_the_segments_made_since)
{
    kit.setup.io = &faults.io;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    fault_io_set(&faults, FAULT_SYNC, 2, 0, EIO); /* the segment, then the directory */
    CHECK_INT(tsri_tier_flush(kit.tier), TSR_EIO);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), TSR_ENOENT);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 2), 0);
    fault_io_set(&faults, FAULT_SYNC, 1, UINT32_MAX - 1, EIO);
    CHECK_INT(tsri_tier_flush(kit.tier), TSR_EIO);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0); /* its segment has its name for good */
    CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), TSR_ENOENT);
}

/* Not only a flush syncs. */
TEST(what_another_sync_let_go_of_is_told_by_the_next_flush)
{
    kit.setup.io = &faults.io;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 2), 0);
    fault_io_set(&faults, FAULT_SYNC, 1, 0, EIO);
    pthread_mutex_lock(&disk()->upkeep);
    (void)!tsri_disk_sync(disk());
    pthread_mutex_unlock(&disk()->upkeep);
    CHECK_INT(faults.n_failed, 1);
    CHECK_INT(tsri_tier_flush(kit.tier), TSR_EIO);
    CHECK_HAS(tsr_errmsg(), "1 entries");
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), TSR_ENOENT);
}

TEST(a_segment_that_cannot_be_made_leaves_nothing_behind)
{
    kit.setup.io = &faults.io;
    const uint32_t calls[] = {FAULT_OPEN, FAULT_SIZE, FAULT_WRITE, FAULT_SYNC, FAULT_RENAME};
    for (size_t i = 0; i < TSRI_COUNT(calls); i++) {
        CHECK_INT(disk_kit_open(&kit), 0);
        fault_io_set(&faults, calls[i], 1, 0, i == 1 ? ENOSPC : EIO);
        CHECK_INT(kv_tier_put(kit.tier, &small, 1), TSR_EIO);
        CHECK_INT(disk_kit_files(&kit, ".tmp") + disk_kit_files(&kit, ".seg"), 0);
        CHECK_INT(disk_kit_stats(&kit).bytes_used, 0);
        fault_io_set(&faults, 0, 0, 0, 0);
        CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
        CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
        CHECK_INT(kv_tier_drop(kit.tier, &small, 1), 1);
        disk_kit_close(&kit);
        CHECK_INT(disk_kit_files(&kit, ".seg"), 0);
    }
}

TEST(a_removed_file_is_noticed_by_flush)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    char path[600];
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    CHECK_INT(unlink(path), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), TSR_EIO);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), TSR_ENOENT);
    CHECK_INT(kv_tier_put(kit.tier, &small, 2), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), 0);
}

TEST(tombstones_wait_for_a_flush_and_share_a_page)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < 10; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
    uint64_t tail = disk()->segments->tail;
    for (uint64_t i = 0; i < 9; i++)
        CHECK_INT(kv_tier_drop(kit.tier, &small, i), 1);
    CHECK_INT(disk()->segments->tail, tail);
    CHECK_INT(disk()->n_tombs, 9);
    pthread_mutex_lock(&disk()->upkeep);
    CHECK_INT(tsri_tombs_flush(disk(), disk()->upkeep_lane, disk()->n_tombs), 0);
    pthread_mutex_unlock(&disk()->upkeep);
    CHECK_INT(disk()->n_tombs, 0);
    CHECK_INT(disk()->segments->tail, tail + TSRI_PAGE_BYTES);
    CHECK_INT(disk()->segments->n_tombs, 9);
}

/* More drops than can be kept, on a disk that takes nothing: the checkpoint must say it. */
TEST(drops_that_cannot_be_written_are_told_by_the_checkpoint)
{
    const struct kv_shape tiny = {1, 1, 1, 1, {4, 0}, 0, 0};
    enum { N = TSRI_TOMBS_PENDING + 10 };
    kit.setup.io = &faults.io;
    kit.setup.segment_bytes = 32 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_put(kit.tier, &tiny, i), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    fault_io_set(&faults, FAULT_WRITE | FAULT_OPEN, 1, UINT32_MAX - 1, ENOSPC);
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_drop(kit.tier, &tiny, i), 1);
    CHECK(disk()->tombs_lost);
    CHECK(tsri_tier_flush(kit.tier) < 0);
    fault_io_set(&faults, 0, 0, 0, 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK(!disk()->tombs_lost);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_stats(&kit).entries, 1);
}

#define RUN_KIT(promise) \
    do { \
        disk_kit_init(&kit); \
        fault_io_init(&faults); \
        RUN(promise); \
        disk_kit_fini(&kit); \
    } while (0)

int main(void)
{
    RUN_KIT(names_and_ids_belong_together);
    RUN_KIT(a_segment_has_its_size_from_the_start_and_gives_back_the_rest);
    RUN_KIT(nothing_is_synced_for_a_put_and_all_of_it_by_a_flush);
    RUN_KIT(what_could_not_be_synced_is_forgotten_not_acknowledged);
    RUN_KIT(a_directory_that_could_not_be_synced_takes_the_segments_made_since);
    RUN_KIT(what_another_sync_let_go_of_is_told_by_the_next_flush);
    RUN_KIT(a_segment_that_cannot_be_made_leaves_nothing_behind);
    RUN_KIT(a_removed_file_is_noticed_by_flush);
    RUN_KIT(tombstones_wait_for_a_flush_and_share_a_page);
    RUN_KIT(drops_that_cannot_be_written_are_told_by_the_checkpoint);
    return test_end();
}
