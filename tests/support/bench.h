/* bench.h - how every bench measures. A case is a function against its own baseline, run in turns
 * within one process: each pair yields one ratio and the median of the ratios is the result, so a
 * machine that slows down or is shared slows both sides of a pair. A sample repeats its function
 * until it is long enough for the clock. The bench checks its results itself, with BENCH_CHECK,
 * before it times anything.
 *
 *   int main(int argc, char **argv)
 *   {
 *       bench_init("bench_chunk", argc, argv);
 *       BENCH_CHECK(answer(&work) == 42);
 *       bench_pair("bench_chunk", "split", split, hash_pass, &work, 31, 1.0);
 *       return bench_end();
 *   }
 *
 * Flags: --json one JSON object a line (bench, case, value, unit, baseline, ratio, target, met),
 * else a table; --pairs=N overrides the pairs of every case; --only=TEXT runs the cases whose name
 *        holds it; --list names the cases and runs none; --cpu times pairs by the processor time of
 *        the process: on a busy machine a sample longer than a time slice is otherwise mostly waiting,
 *        on one side of the pair or the other. Not for what waits, such as disks and servers.
 * Threads: one bench thread. Benches print and exit; nothing here is part of the library. */
#ifndef TSRI_BENCH_H
#define TSRI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*bench_fn)(void *arg);

/* Zero always means default. */
struct bench_case {
    const char *bench; /* default: the name given to bench_init */
    const char *name;
    bench_fn run;      /* what is measured */
    bench_fn baseline; /* what it is compared with; NULL: no ratio, only the value */
    void *arg;         /* for both, and for prepare */
    bench_fn prepare;  /* before every sample of either side, not timed: evict caches, reset */
    uint32_t reps;     /* calls in a sample; default: enough for 1 ms, or 1 with prepare */
    uint32_t n_pairs;  /* default 31, at least 15 */
    double work;       /* with unit: work of one call; value = work / ns, so bytes give GB/s */
    const char *unit;  /* NULL: the value is ns a call, less is better; else more is better */
    double target;     /* 0: none; of the ratio: at most this for ns, at least this with a unit */
};

/* What one case measured. */
struct bench_result {
    double value, baseline; /* medians, in ns a call or in `unit` */
    double ratio;           /* median of the pairs' ratios, value : baseline; 0 without baseline */
    bool ran, met;          /* met: no target, or within it */
};

/* Parses the flags (unknown ones end the program with 2) and prints the table's head. */
void bench_init(const char *bench, int argc, char **argv);
/* Measures and prints one case. */
struct bench_result bench_run(const struct bench_case *c);
/* The common case: nanoseconds a call of run against baseline, ratio <= target. */
struct bench_result bench_pair(const char *bench, const char *name, bench_fn run, bench_fn baseline,
                               void *arg, uint32_t n_pairs, double target);
/* The same in GB/s for calls that move `bytes`, ratio >= target. */
struct bench_result bench_rate(const char *bench, const char *name, bench_fn run, bench_fn baseline,
                               void *arg, double bytes, double target);
/* A value measured some other way, printed in the same form; baseline 0: no ratio. The target is
 * an upper bound of the ratio (of the value, without baseline), or a lower one if at_least. */
void bench_report(const char *name, double value, const char *unit, double baseline, double target,
                  bool at_least);
/* The best of n calls, in ns: what it takes when nobody else uses the machine. `prepare` before each,
 * not timed; NULL: nothing. */
double bench_best_ns(uint32_t n, bench_fn prepare, bench_fn run, void *arg);
/* For cases that are measured some other way: whether to measure this one. With --list it is named,
 * and not wanted. */
bool bench_wanted(const char *name);
/* Ends the table with how many targets were met; the exit status for main: 0. Benches report, they
 * do not judge: a loaded machine is not a broken build. */
int bench_end(void);

/* Ends the program with 1 and the place, when a result is not right. */
#define BENCH_CHECK(x) ((x) ? (void)0 : bench_check_failed(#x, __FILE__, __LINE__))
void bench_check_failed(const char *what, const char *file, int line) __attribute__((noreturn));

/* Monotonic nanoseconds. */
uint64_t bench_now_ns(void);
/* The median of n values; sorts them. */
double bench_median(double *values, size_t n);
/* The value at quantile q (0..1) of n values; sorts them. */
double bench_quantile(double *values, size_t n, double q);
/* Makes the compiler believe that the result is used. */
static inline void bench_keep(uint64_t value)
{
    __asm__ volatile("" : : "r"(value) : "memory");
}
/* Evicts the caches: writes over more memory than they hold. For `prepare` of cold cases. */
void bench_chill(void);

#endif
