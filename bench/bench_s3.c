/* bench_s3 - the s3 tier on loopback, on a server that it starts itself (tools/setup --s3): reading
 * an entry in ranges against the program curl, which fetches the same ranges of the same object
 * with the same number of connections, in turns. Both sign their requests. What
 * curl needs to start (measured by fetching one byte) is taken off its time. Ours also compares
 * every cell with its checksum and puts it where it belongs; curl throws the bytes away. */
#include "support/bench.h"
#include "support/s3_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LAYERS = 32,
    TOKENS = 1024,
    ROW = 2048, /* of K and of V: a layer is 4 MiB */
    CONNECTIONS = 8,
    ROUNDS = 15,
};

static const struct kv_shape shape = {TOKENS, 64, LAYERS, 2, {ROW, ROW}, 0, 0};

struct work {
    struct s3_server server;
    struct s3_kit kit;
    struct kv_entry entry, room;
    struct tsri_parcel cut;
    char ranges[300], one_byte[300]; /* what curl is to do */
};

/* ---- curl ---- */

static void write_range(FILE *f, const struct work *w, uint64_t begin, uint64_t end)
{
    char path[TSRI_S3_URL_BYTES];
    s3_kit_path(&w->kit, &shape, 1, path);
    fprintf(f,
            "url = \"%s%s\"\nrange = \"%llu-%llu\"\noutput = \"/dev/null\"\nsilent\n"
            "aws-sigv4 = \"aws:amz:us-east-1:s3\"\nuser = \"%s:%s\"\nfail\n",
            w->server.endpoint, path, (unsigned long long)begin, (unsigned long long)end - 1,
            S3_KIT_KEY, S3_KIT_SECRET);
}

static void write_orders(struct work *w)
{
    snprintf(w->ranges, sizeof w->ranges, "%s/ranges", w->server.dir.path);
    snprintf(w->one_byte, sizeof w->one_byte, "%s/one-byte", w->server.dir.path);
    FILE *f = fopen(w->ranges, "w");
    BENCH_CHECK(f != NULL);
    for (uint32_t p = 0; p < w->cut.n_parts; p++) {
        struct tsri_extent x = tsri_parcel_part(&w->cut, p);
        if (p) fprintf(f, "next\n");
        write_range(f, w, p ? w->cut.record_bytes + x.begin : 0, w->cut.record_bytes + x.end);
    }
    fclose(f);
    f = fopen(w->one_byte, "w");
    BENCH_CHECK(f != NULL);
    write_range(f, w, 0, 1);
    fclose(f);
}

static double curl_ns(const char *orders)
{
    char command[700];
    snprintf(command, sizeof command,
             "curl -s -Z --parallel-immediate --parallel-max %d -K %s 2>/dev/null", CONNECTIONS,
             orders);
    uint64_t begin = bench_now_ns();
    BENCH_CHECK(system(command) == 0); /* NOLINT: its words are ours */
    return (double)(bench_now_ns() - begin);
}

/* ---- ours ---- */

static double processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double ours_ns(struct work *w, double *processor)
{
    struct tsr_tier_io io = kv_entry_io(&w->room);
    uint64_t begin = bench_now_ns();
    double used = processor_ns();
    BENCH_CHECK(tsri_tier_get(w->kit.tier, &io, 1) == 1);
    *processor = processor_ns() - used;
    return (double)(bench_now_ns() - begin);
}

static void measure_read(struct work *w)
{
    double a[ROUNDS], ratio[ROUNDS], start[ROUNDS], used[ROUNDS];
    double bytes = (double)w->cut.record_bytes + (double)w->cut.kv_bytes;
    for (int i = 0; i < ROUNDS; i++)
        start[i] = curl_ns(w->one_byte);
    double start_ns = bench_median(start, ROUNDS);
    (void)curl_ns(w->ranges);
    for (int i = 0; i < ROUNDS; i++) {
        double theirs = 0;
        if (i % 2) theirs = curl_ns(w->ranges);
        a[i] = bytes / ours_ns(w, &used[i]);
        used[i] /= bytes;
        if (i % 2 == 0) theirs = curl_ns(w->ranges);
        BENCH_CHECK(theirs > start_ns);
        ratio[i] = a[i] / (bytes / (theirs - start_ns));
    }
    double value = bench_median(a, ROUNDS);
    bench_report("read", value, "GB/s", value / bench_median(ratio, ROUNDS), 0.9, true);
    bench_report("read, processor time of the client", bench_median(used, ROUNDS), "s/GB", 0, 0,
                 false);
}

int main(int argc, char **argv)
{
    bench_init("bench_s3", argc, argv);
    if (s3_kit_missing()) {
        fprintf(stderr, "bench_s3: %s\n", s3_kit_missing());
        return 77;
    }
    if (system("curl --version >/dev/null 2>&1") != 0) { /* NOLINT: its words are ours */
        fprintf(stderr, "bench_s3: curl is not installed (tools/setup --s3)\n");
        return 77;
    }
    if (!bench_wanted("read")) return bench_end();
    static struct work w;
    s3_server_init(&w.server);
    w.kit.setup = (struct tsri_s3_setup){.connections = CONNECTIONS, .timeout_ms = 30000};
    BENCH_CHECK(s3_kit_open(&w.kit, w.server.endpoint) == 0);
    kv_entry_init(&w.entry, &shape, 1);
    kv_entry_init_room(&w.room, &w.entry, 0);
    BENCH_CHECK(kv_tier_put(w.kit.tier, &shape, 1) == 0);
    BENCH_CHECK(kv_tier_get(w.kit.tier, &shape, 1, 0) == 0); /* every byte */
    BENCH_CHECK(tsri_parcel_init(&w.cut, &w.entry.head, 0, TSRI_PARCEL_PART_MAX) == 0);
    write_orders(&w);
    measure_read(&w);
    s3_kit_close(&w.kit);
    s3_server_fini(&w.server);
    kv_entry_fini(&w.entry);
    kv_entry_fini(&w.room);
    return bench_end();
}
