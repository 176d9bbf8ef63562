/* Put: what a failed write costs, and what it does not. */
#include "support/disk_kit.h"
#include "support/fault_io.h"
#include "support/test.h"

#include <errno.h>

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0};
static const struct kv_shape large = {640, 64, 8, 2, {256, 256}, 0, 0}; /* 2.5 MiB */

static struct disk_kit kit;
static struct fault_io faults;

enum { N = 20 };

/* Puts a batch; returns how many succeeded, each result in results. */
static int put_batch(const struct kv_shape *shape, int *results)
{
    struct kv_entry e[N];
    struct tsr_tier_io io[N];
    for (uint64_t i = 0; i < N; i++) {
        kv_entry_init(&e[i], shape, i);
        io[i] = kv_entry_io(&e[i]);
    }
    int n = tsri_tier_put(kit.tier, io, N);
    for (uint64_t i = 0; i < N; i++) {
        results[i] = io[i].result;
        kv_entry_fini(&e[i]);
    }
    return n;
}

TEST(a_batch_is_written_in_order_into_one_segment)
{
    kit.setup.segment_bytes = 4 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    int results[N];
    CHECK_INT(put_batch(&small, results), N);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 1);
    const struct tsri_disk *d = (const struct tsri_disk *)kit.tier;
    CHECK_INT(d->segments->tail, TSRI_PAGE_BYTES + N * disk_kit_record_bytes(&small));
    CHECK_INT(d->segments->n_live, N);
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), 0);
}

TEST(a_batch_goes_on_in_the_next_segment_when_one_is_full)
{
    kit.setup.segment_bytes = 5 * disk_kit_record_bytes(&small) + 2 * TSRI_PAGE_BYTES;
    CHECK_INT(disk_kit_open(&kit), 0);
    int results[N];
    CHECK_INT(put_batch(&small, results), N);
    CHECK_INT(disk_kit_files(&kit, ".seg"), 4);
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), 0);
}

/* Whatever write fails, what was reported is true, now and after a restart. */
TEST(a_failed_write_costs_its_entry_and_those_behind_it_in_the_batch)
{
    kit.setup.io = &faults.io;
    const enum tsri_aio_mode modes[] = {TSRI_AIO_INLINE, TSRI_AIO_AUTO};
    for (size_t m = 0; m < TSRI_COUNT(modes); m++)
        for (uint32_t nth = 1; nth < 3 * N; nth += 4) {
            kit.setup.mode = modes[m];
            fault_io_set(&faults, FAULT_WRITE, 0, 0, 0);
            CHECK_INT(disk_kit_open(&kit), 0);
            CHECK_INT(kv_tier_put(kit.tier, &small, 1000), 0);
            fault_io_set(&faults, FAULT_WRITE, nth, 0, nth % 3 ? EIO : ENOSPC);
            int results[N];
            int n = put_batch(&small, results);
            CHECK(n <= N);
            bool failed = false;
            for (uint64_t i = 0; i < N; i++) {
                failed |= results[i] != 0;
                if (results[i]) CHECK_INT(results[i], TSR_EIO);
                CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), results[i] ? TSR_ENOENT : 0);
            }
            CHECK_INT(failed, faults.n_failed > 0);
            CHECK_INT(kv_tier_put(kit.tier, &small, 2000), 0);
            CHECK_INT(tsri_tier_flush(kit.tier), 0);
            disk_kit_crash(&kit);
            CHECK_INT(disk_kit_open(&kit), 0);
            for (uint64_t i = 0; i < N; i++)
                CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), results[i] ? TSR_ENOENT : 0);
            CHECK_INT(kv_tier_get(kit.tier, &small, 1000, 0), 0);
            CHECK_INT(kv_tier_get(kit.tier, &small, 2000, 0), 0);
            disk_kit_crash(&kit);
            tmpdir_fini(&kit.dir);
            CHECK_INT(mkdir(kit.dir.path, 0700), 0);
        }
}

TEST(a_replaced_entry_survives_the_failure_of_its_replacement)
{
    kit.setup.io = &faults.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    fault_io_set(&faults, FAULT_WRITE, 3, 100, EIO);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), TSR_EIO);
    fault_io_set(&faults, FAULT_WRITE, 0, 0, 0);
    CHECK_INT(kv_tier_get(kit.tier, &large, 1, 0), 0);
    CHECK_INT(disk_kit_stats(&kit).errors, 1);
}

/* Small ones that follow each other are one write; whichever write fails, none that was told to be
 * there is lost or wrong, and a restart finds as many. */
TEST(small_entries_are_written_together)
{
    static const struct kv_shape tiny = {20, 64, 1, 2, {48, 32}, 10, 0}; /* three pages */
    kit.setup.io = &faults.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    kit.setup.segment_bytes = 4 << 20;
    fault_io_set(&faults, FAULT_WRITE, 0, 0, 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &tiny, 1000), 0);
    fault_io_set(&faults, FAULT_WRITE, 0, 0, 0);
    int results[N];
    CHECK_INT(put_batch(&tiny, results), N);
    CHECK_INT(faults.n_calls, 1);
    struct tsr_tier_stats stats = disk_kit_stats(&kit);
    CHECK_INT(stats.written_bytes, (N + 1) * disk_kit_record_bytes(&tiny));
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_get(kit.tier, &tiny, i, 0), 0);
    fault_io_set(&faults, FAULT_WRITE, 1, 0, EIO); /* put again, and it fails */
    CHECK_INT(put_batch(&tiny, results), 0);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_INT(results[i], TSR_EIO);
        CHECK_INT(kv_tier_get(kit.tier, &tiny, i, 0), 0);
    }
    fault_io_set(&faults, FAULT_WRITE, 1, 0, FAULT_SHORT);
    CHECK_INT(put_batch(&tiny, results), N);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < N; i++)
            CHECK_INT(kv_tier_get(kit.tier, &tiny, i, 0), 0);
        disk_kit_close(&kit);
        CHECK_INT(disk_kit_open(&kit), 0);
        CHECK_INT(disk_kit_stats(&kit).entries, N + 1);
    }
}

TEST(a_late_put_is_not_begun)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    struct kv_entry e;
    kv_entry_init(&e, &small, 1);
    struct tsr_tier_io io[2] = {kv_entry_io(&e), kv_entry_io(&e)};
    io[0].deadline_ns = 1;
    io[1].deadline_ns = tsri_now_ns() + 60000000000u;
    CHECK_INT(tsri_tier_put(kit.tier, io, 2), 1);
    CHECK_INT(io[0].result, TSR_ETIME);
    CHECK_INT(io[1].result, 0);
    kv_entry_fini(&e);
}

/* Two writers at once do not wait for one another's segment. */
struct writer {
    pthread_t thread;
    uint64_t first;
    int n_ok;
};

static void *write_some(void *arg)
{
    struct writer *w = arg;
    for (uint64_t i = 0; i < 10; i++)
        w->n_ok += kv_tier_put(kit.tier, &large, w->first + i) == 0;
    return NULL;
}

TEST(writers_at_once_have_segments_of_their_own)
{
    kit.setup.segment_bytes = 64 << 20;
    kit.n_threads = 3;
    CHECK_INT(disk_kit_open(&kit), 0);
    struct writer w[3];
    for (uint64_t i = 0; i < 3; i++) {
        w[i] = (struct writer){.first = 100 * i};
        CHECK_INT(pthread_create(&w[i].thread, NULL, write_some, &w[i]), 0);
    }
    for (size_t i = 0; i < 3; i++)
        pthread_join(w[i].thread, NULL);
    CHECK(disk_kit_files(&kit, ".seg") <= 3);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_INT(w[i].n_ok, 10);
        for (uint64_t k = 0; k < 10; k++)
            CHECK_INT(kv_tier_get(kit.tier, &large, w[i].first + k, 0), 0);
    }
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
    RUN_KIT(a_batch_is_written_in_order_into_one_segment);
    RUN_KIT(a_batch_goes_on_in_the_next_segment_when_one_is_full);
    RUN_KIT(a_failed_write_costs_its_entry_and_those_behind_it_in_the_batch);
    RUN_KIT(a_replaced_entry_survives_the_failure_of_its_replacement);
    RUN_KIT(small_entries_are_written_together);
    RUN_KIT(a_late_put_is_not_begun);
    RUN_KIT(writers_at_once_have_segments_of_their_own);
    return test_end();
}
