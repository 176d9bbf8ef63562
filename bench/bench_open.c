/* bench_open.c - how long a store takes to open: 100000 entries, the index filled and every entry
 * listed, from a checkpoint; and without one, from the headers of all records. */
#include "support/bench.h"
#include "support/kv_tier.h"
#include "support/tmpdir.h"
#include "disk/disk.h"

enum { N_ENTRIES = 100000, N_RUNS = 15 };

static struct tmpdir dir;

static struct tsr_tier *open_tier(bool read_only)
{
    struct tsri_disk_setup setup = {.path = dir.path, .segment_bytes = 256 << 20};
    struct tsr_tier_desc env = {
        .size = sizeof env, .arg = &setup, .read_only = read_only, .n_threads = 2};
    struct tsr_tier *tier;
    BENCH_CHECK(tsri_tier_open(&tier, &tsri_tier_disk, &env) == 0);
    return tier;
}

static int count(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc, uint64_t bytes)
{
    (void)bytes;
    *(uint64_t *)arg += loc ^ head->n_tokens;
    return 0;
}

/* Milliseconds to open and list, the median of several. */
static double measure(void)
{
    double ms[N_RUNS];
    for (int i = 0; i < N_RUNS; i++) {
        uint64_t start = bench_now_ns(), sum = 0;
        struct tsr_tier *tier = open_tier(true);
        BENCH_CHECK(tsri_tier_scan(tier, count, &sum) == N_ENTRIES);
        ms[i] = (double)(bench_now_ns() - start) / 1e6;
        bench_keep(sum);
        tsri_tier_close(tier);
    }
    return bench_median(ms, N_RUNS);
}

int main(int argc, char **argv)
{
    bench_init("bench_open", argc, argv);
    tmpdir_init(&dir);
    struct tsr_tier *tier = open_tier(false);
    BENCH_CHECK(kv_tier_fill(tier, N_ENTRIES));
    tsri_tier_close(tier);
    bench_report("100K entries, checkpoint", measure(), "ms", 0, 50, false);
    char path[300];
    snprintf(path, sizeof path, "%s/checkpoint", dir.path);
    BENCH_CHECK(unlink(path) == 0);
    bench_report("100K entries, headers only", N_ENTRIES / measure() * 1e3, "entries/s", 0, 0,
                 true);
    tmpdir_fini(&dir);
    return bench_end();
}
