/* bench.c - pairs, medians, and the two ways to print them. See bench.h. */
#include "support/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAIRS_DEFAULT 31
#define PAIRS_MIN 15
#define PAIRS_MAX 1001
#define SAMPLE_NS 1000000u /* about 20000 times the clock's own cost */
#define REPS_MAX 100000000u
#define CHILL_BYTES ((size_t)256 << 20)

static struct {
    const char *bench, *only;
    bool json, list, cpu;
    uint32_t n_pairs; /* 0: as the case says */
    uint32_t n_met, n_missed;
} options;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t bench_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t n, double q)
{
    if (!n) return 0;
    qsort(values, n, sizeof *values, compare);
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n) return values[n - 1];
    return values[i] + (values[i + 1] - values[i]) * (at - (double)i);
}

double bench_median(double *values, size_t n)
{
    return bench_quantile(values, n, 0.5);
}

void bench_check_failed(const char *what, const char *file, int line)
{
    fflush(stdout);
    fprintf(stderr, "%s:%d: wrong result: %s\n", file, line, what);
    exit(1);
}

void bench_chill(void)
{
    static volatile uint8_t *area;
    if (!area) area = calloc(CHILL_BYTES, 1);
    BENCH_CHECK(area != NULL);
    for (size_t i = 0; i < CHILL_BYTES; i += 64)
        area[i]++;
}

static void usage(const char *bench, const char *arg)
{
    fprintf(stderr,
            "%s: unknown flag %s\nusage: %s [--json] [--pairs=N] [--only=TEXT] [--list] [--cpu]\n",
            bench, arg, bench);
    exit(2);
}

void bench_init(const char *bench, int argc, char **argv)
{
    options.bench = bench;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            options.json = true;
        else if (!strcmp(argv[i], "--list"))
            options.list = true;
        else if (!strcmp(argv[i], "--cpu"))
            options.cpu = true;
        else if (!strncmp(argv[i], "--only=", 7))
            options.only = argv[i] + 7;
        else if (!strncmp(argv[i], "--pairs=", 8) && atoi(argv[i] + 8) > 0)
            options.n_pairs = (uint32_t)atoi(argv[i] + 8);
        else
            usage(bench, argv[i]);
    }
    if (!options.json && !options.list)
        printf("%-28s %12s %12s %-9s %8s  %s\n", bench, "value", "baseline", "unit", "ratio",
               "target");
}

/* ---- printing ---- */

/* JSON has no infinities; a measurement that yields one is told as 0. */
static double finite(double x)
{
    return x > -1e300 && x < 1e300 ? x : 0;
}

struct row {
    const char *bench, *name, *unit;
    double value, baseline, ratio, target;
    bool at_least;
};

static bool row_met(const struct row *r)
{
    if (r->target == 0) return true;
    double x = r->baseline != 0 ? r->ratio : r->value;
    return r->at_least ? x >= r->target : x <= r->target;
}

static void row_json(const struct row *r, bool met)
{
    printf("{\"bench\":\"%s\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", r->bench, r->name,
           finite(r->value), r->unit);
    if (r->baseline != 0)
        printf(",\"baseline\":%.6g,\"ratio\":%.4g", finite(r->baseline), finite(r->ratio));
    else
        printf(",\"baseline\":null,\"ratio\":null");
    if (r->target != 0)
        printf(",\"target\":%g,\"met\":%s}\n", r->target, met ? "true" : "false");
    else
        printf(",\"target\":null,\"met\":null}\n");
}

static void row_table(const struct row *r, bool met)
{
    printf("%-28s %12.6g ", r->name, r->value);
    if (r->baseline != 0)
        printf("%12.6g %-9s %7.3fx", r->baseline, r->unit, r->ratio);
    else
        printf("%12s %-9s %8s", "-", r->unit, "-");
    if (r->target != 0)
        printf("  %s %g%s\n", r->at_least ? ">=" : "<=", r->target, met ? "" : "  MISSED");
    else
        printf("  -\n");
}

static bool row_print(const struct row *r)
{
    bool met = row_met(r);
    if (r->target != 0) {
        options.n_met += met;
        options.n_missed += !met;
    }
    if (options.json)
        row_json(r, met);
    else
        row_table(r, met);
    fflush(stdout);
    return met;
}

/* ---- measuring ---- */

static double sample_ns(const struct bench_case *c, bench_fn fn, uint32_t reps)
{
    clockid_t clock = options.cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    if (c->prepare) c->prepare(c->arg);
    uint64_t begin = clock_ns(clock);
    for (uint32_t i = 0; i < reps; i++)
        fn(c->arg);
    uint64_t ns = clock_ns(clock) - begin;
    return (double)(ns ? ns : 1) / reps;
}

/* How many calls make a sample; also warms caches and branch predictors. */
static uint32_t calibrate(const struct bench_case *c, bench_fn fn)
{
    if (c->reps || c->prepare) {
        sample_ns(c, fn, c->reps ? c->reps : 1);
        return c->reps ? c->reps : 1;
    }
    uint32_t reps = 1;
    while (reps < REPS_MAX && sample_ns(c, fn, reps) * reps < SAMPLE_NS)
        reps *= 2;
    return reps;
}

static bool skipped(const struct bench_case *c)
{
    if (options.only && !strstr(c->name, options.only)) return true;
    if (options.list) printf("%s\n", c->name);
    return options.list;
}

static uint32_t pairs_of(const struct bench_case *c)
{
    uint32_t n = options.n_pairs ? options.n_pairs : c->n_pairs ? c->n_pairs : PAIRS_DEFAULT;
    return n < PAIRS_MIN ? PAIRS_MIN : n > PAIRS_MAX ? PAIRS_MAX : n;
}

struct bench_result bench_run(const struct bench_case *c)
{
    struct bench_result r = {0};
    if (skipped(c)) return r;
    uint32_t n = pairs_of(c);
    static double run[PAIRS_MAX], baseline[PAIRS_MAX], ratio[PAIRS_MAX];
    uint32_t run_reps = calibrate(c, c->run);
    uint32_t baseline_reps = c->baseline ? calibrate(c, c->baseline) : 0;
    for (uint32_t i = 0; i < n; i++) {
        /* Alternating who goes first cancels what one leaves behind for the other. */
        if (c->baseline && i % 2) baseline[i] = sample_ns(c, c->baseline, baseline_reps);
        run[i] = sample_ns(c, c->run, run_reps);
        if (c->baseline && i % 2 == 0) baseline[i] = sample_ns(c, c->baseline, baseline_reps);
        if (c->unit) {
            double work = c->work > 0 ? c->work : 1;
            run[i] = work / run[i];
            baseline[i] = c->baseline ? work / baseline[i] : 0;
        }
        ratio[i] = c->baseline ? run[i] / baseline[i] : 0;
    }
    r.ran = true;
    r.value = bench_median(run, n);
    r.baseline = c->baseline ? bench_median(baseline, n) : 0;
    r.ratio = bench_median(ratio, n);
    r.met = row_print(&(struct row){.bench = c->bench ? c->bench : options.bench,
                                    .name = c->name,
                                    .unit = c->unit ? c->unit : "ns",
                                    .value = r.value,
                                    .baseline = r.baseline,
                                    .ratio = r.ratio,
                                    .target = c->target,
                                    .at_least = c->unit != NULL});
    return r;
}

struct bench_result bench_pair(const char *bench, const char *name, bench_fn run, bench_fn baseline,
                               void *arg, uint32_t n_pairs, double target)
{
    return bench_run(&(struct bench_case){.bench = bench,
                                          .name = name,
                                          .run = run,
                                          .baseline = baseline,
                                          .arg = arg,
                                          .n_pairs = n_pairs,
                                          .target = target});
}

struct bench_result bench_rate(const char *bench, const char *name, bench_fn run, bench_fn baseline,
                               void *arg, double bytes, double target)
{
    /* Bytes a nanosecond are gigabytes a second. */
    return bench_run(&(struct bench_case){.bench = bench,
                                          .name = name,
                                          .run = run,
                                          .baseline = baseline,
                                          .arg = arg,
                                          .work = bytes,
                                          .unit = "GB/s",
                                          .target = target});
}

void bench_report(const char *name, double value, const char *unit, double baseline, double target,
                  bool at_least)
{
    if (skipped(&(struct bench_case){.name = name})) return;
    row_print(&(struct row){.bench = options.bench,
                            .name = name,
                            .unit = unit,
                            .value = value,
                            .baseline = baseline,
                            .ratio = baseline != 0 ? value / baseline : 0,
                            .target = target,
                            .at_least = at_least});
}

double bench_best_ns(uint32_t n, bench_fn prepare, bench_fn run, void *arg)
{
    double best = 1e300;
    for (uint32_t i = 0; i < n; i++) {
        if (prepare) prepare(arg);
        uint64_t begin = bench_now_ns();
        run(arg);
        double ns = (double)(bench_now_ns() - begin);
        if (ns < best) best = ns;
    }
    return best;
}

bool bench_wanted(const char *name)
{
    return !skipped(&(struct bench_case){.name = name});
}

int bench_end(void)
{
    if (!options.json && !options.list && options.n_met + options.n_missed)
        printf("%u of %u targets met\n", options.n_met, options.n_met + options.n_missed);
    return 0;
}
