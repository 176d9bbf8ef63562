/* Crashes that lose what was not synced. A process that is killed leaves everything it wrote in the
 * page cache; a machine that loses power does not. So a run is recorded, and at each of its syncs
 * the directory is made anew as a crash might have left it: all that was synced, and of the rest
 * any part, sector by sector and name by name. */
#include "support/disk_script.h"
#include "support/record_io.h"
#include "support/test.h"

static struct record_io record;

/* What must survive a crash from op `at` on. */
struct snapshot {
    size_t at;
    uint8_t acked[SCRIPT_KEYS];
};
static struct snapshot snapshots[4096];
static size_t n_snapshots;

static void take_snapshot(struct disk_script *s, void *arg)
{
    (void)arg;
    if (n_snapshots == TSRI_COUNT(snapshots)) abort();
    struct snapshot *snap = &snapshots[n_snapshots++];
    snap->at = record.n_ops;
    memcpy(snap->acked, s->acked, sizeof snap->acked);
}

/* The scripted run, or one drawn from a seed. */
static void record_run(uint64_t segment_bytes, uint64_t seed)
{
    struct disk_kit kit;
    disk_kit_init_fast(&kit);
    record_io_init(&record);
    n_snapshots = 0;
    kit.setup.io = &record.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    kit.setup.buffered = true;
    kit.setup.segment_bytes = segment_bytes;
    kit.n_threads = 1;
    struct disk_script script;
    disk_script_init(&script, &kit);
    script.note = take_snapshot;
    take_snapshot(&script, NULL);
    CHECK_INT(disk_kit_open(&kit), 0);
    if (seed)
        disk_script_run_random(&script, seed, 60);
    else
        disk_script_run(&script);
    disk_kit_fini(&kit);
    if (script.wrong) printf("    %s\n", script.wrong);
    CHECK(script.wrong == NULL);
}

/* Opens one crash state, reads everything, lets it compact and close, and reads everything again.
 */
static void check_state(size_t at, enum record_luck luck, uint64_t seed)
{
    struct disk_kit kit;
    disk_kit_init_fast(&kit);
    record_io_replay(&record, at, luck, seed, kit.dir.path);
    kit.setup.mode = TSRI_AIO_INLINE;
    kit.setup.segment_bytes = 96 << 10;
    kit.n_threads = 1;
    struct disk_script script;
    disk_script_init(&script, &kit);
    for (size_t i = 0; i < n_snapshots && snapshots[i].at <= at; i++)
        memcpy(script.acked, snapshots[i].acked, sizeof script.acked);
    const char *when = "open";
    bool opened = disk_kit_open(&kit) == 0;
    if (opened) disk_script_check(&script);
    if (opened && !script.wrong) {
        when = "after a flush, a close and an open";
        opened = tsri_tier_flush(kit.tier) == 0;
        disk_kit_close(&kit);
        opened = opened && disk_kit_open(&kit) == 0;
        if (opened) disk_script_check(&script);
    }
    if (script.wrong || !opened)
        printf("    crash before op %zu of %zu, luck %d, seed %llu, %s: %s\n", at, record.n_ops,
               (int)luck, (unsigned long long)seed, when,
               script.wrong ? script.wrong : tsr_errmsg());
    disk_kit_fini(&kit);
    CHECK(opened && !script.wrong);
}

/* Every sync of the run that was recorded. */
static void check_syncs(uint64_t n_seeds)
{
    size_t n_syncs = 0;
    for (size_t at = 0; at <= record.n_ops; at++) {
        enum record_kind kind = at < record.n_ops ? record.ops[at].kind : RECORD_SYNC_DIR;
        bool after = at && (record.ops[at - 1].kind == RECORD_SYNC ||
                            record.ops[at - 1].kind == RECORD_SYNC_DIR);
        bool before = kind == RECORD_SYNC || kind == RECORD_SYNC_DIR;
        if (!before && !after) continue;
        n_syncs++;
        check_state(at, RECORD_ALL, 0);
        check_state(at, RECORD_NONE, 0);
        for (uint64_t seed = 0; seed < n_seeds; seed++)
            check_state(at, RECORD_SOME, seed + at * 1000);
    }
    CHECK(n_syncs > 5);
    record_io_fini(&record);
}

static void check_all(uint64_t segment_bytes, uint64_t run_seed, uint64_t n_seeds)
{
    record_run(segment_bytes, run_seed);
    check_syncs(n_seeds);
}

/* ---- another caller in the middle of a flush ---- */

/* Puts something again, all of it, before the call with that number that upkeep makes. */
static struct meddler {
    struct tsri_fileio io;
    struct disk_script *script;
    bool armed;
    uint32_t n_calls, at;
    uint64_t key;
} meddler;

static void meddle(void)
{
    if (!meddler.armed || meddler.n_calls++ != meddler.at) return;
    meddler.armed = false;
    disk_script_put(meddler.script, meddler.key);
}

static ssize_t meddled_pwritev(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    meddle();
    return record.io.pwritev(arg, fd, iov, n, offset);
}
static int meddled_fdatasync(void *arg, int fd)
{
    meddle();
    return record.io.fdatasync(arg, fd);
}
static int meddled_fsync(void *arg, int fd)
{
    meddle();
    return record.io.fsync(arg, fd);
}
static int meddled_rename(void *arg, int dir, const char *from, const char *to)
{
    meddle();
    return record.io.rename(arg, dir, from, to);
}

/* False when upkeep made fewer calls. */
static bool record_meddled(uint32_t at, uint64_t key)
{
    struct disk_kit kit;
    struct disk_script script;
    disk_kit_init_fast(&kit);
    record_io_init(&record);
    n_snapshots = 0;
    disk_script_init(&script, &kit);
    meddler = (struct meddler){.io = record.io, .script = &script, .at = at, .key = key};
    meddler.io.pwritev = meddled_pwritev;
    meddler.io.fdatasync = meddled_fdatasync;
    meddler.io.fsync = meddled_fsync;
    meddler.io.rename = meddled_rename;
    kit.setup.io = &meddler.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    kit.setup.buffered = true;
    kit.setup.segment_bytes = 96 << 10;
    kit.n_threads = 1;
    script.note = take_snapshot;
    take_snapshot(&script, NULL);
    CHECK_INT(disk_kit_open(&kit), 0);
    disk_script_put_batch(&script, 0, 12);
    disk_script_flush(&script);
    for (uint64_t i = 4; i < 12; i++)
        disk_script_drop(&script, i);
    meddler.armed = true;
    disk_script_flush(&script); /* removes what is dead */
    disk_kit_close(&kit);       /* writes the checkpoint */
    bool met = !meddler.armed;
    meddler.armed = false;
    disk_kit_fini(&kit);
    if (script.wrong) printf("    %s\n", script.wrong);
    CHECK(script.wrong == NULL);
    return met;
}

static bool is_long(void)
{
    const char *text = getenv("TESSERA_TEST_LONG");
    return text && *text && strcmp(text, "0") != 0;
}

TEST(a_power_cut_at_any_sync_loses_nothing_acknowledged)
{
    check_all(96 << 10, 0, is_long() ? 100 : TEST_SANITIZED ? 0 : 4);
}

TEST(the_same_with_segments_of_one_entry_each)
{
    check_all(16 * TSRI_PAGE_BYTES, 0, is_long() ? 50 : TEST_SANITIZED ? 0 : 2);
}

TEST(the_same_in_one_large_segment)
{
    check_all(4 << 20, 0, is_long() ? 50 : TEST_SANITIZED ? 0 : 2);
}

TEST(the_same_in_runs_drawn_at_random)
{
    for (uint64_t seed = 1; seed <= (is_long() ? 60 : TEST_SANITIZED ? 2 : 6); seed++)
        check_all((uint64_t)65536 << seed % 3, seed, is_long() ? 10 : 1);
}

TEST(what_is_put_again_during_a_flush_or_a_close_is_not_lost_either)
{
    uint32_t n = 0;
    for (uint64_t key = 0; key < 2; key++) {
        for (n = 0; record_meddled(n, key); n++)
            check_syncs(0);
        record_io_fini(&record);
        CHECK(n > 8);
    }
}

int main(void)
{
    RUN(a_power_cut_at_any_sync_loses_nothing_acknowledged);
    RUN(the_same_with_segments_of_one_entry_each);
    RUN(the_same_in_one_large_segment);
    RUN(the_same_in_runs_drawn_at_random);
    RUN(what_is_put_again_during_a_flush_or_a_close_is_not_lost_either);
    return test_end();
}
