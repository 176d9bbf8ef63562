/* stats.h - what happened, in numbers: counters, gauges and duration histograms (the table is
 * metrics.h), and the two texts that report them.
 *
 * A stats handle holds 32 stripes of cache-line aligned words. A thread adds to the stripe that its
 * thread id selects, so threads do not pass cache lines to each other; reading sums the stripes.
 * More threads than stripes share one and stay right, because every add is atomic.
 *
 * Threads: everything may be called from any thread; close when no other thread uses the handle. A
 *          read that runs beside adds sees each of them or not: counters never go back, but two
 *          metrics need not agree.
 * Memory:  36 KiB a handle, taken at open. Texts go to the caller's buffer.
 * Errors:  only open can fail (TSR_ENOMEM).
 */
#ifndef TSRI_STATS_H
#define TSRI_STATS_H

#include "base/base.h"
#include "stats/metrics.h"

enum tsri_metric {
#define TSRI_METRIC_ENUM(name, kind, unit, help) TSRI_M_##name,
    TSRI_METRICS(TSRI_METRIC_ENUM)
#undef TSRI_METRIC_ENUM
        TSRI_M_COUNT
};

enum tsri_metric_kind { TSRI_METRIC_COUNTER, TSRI_METRIC_GAUGE, TSRI_METRIC_HISTOGRAM };

/* A row of the table; the strings are static. */
struct tsri_metric_info {
    const char *name, *unit, *help;
    enum tsri_metric_kind kind;
};
const struct tsri_metric_info *tsri_metric_info(enum tsri_metric m);

/* Bucket i counts durations <= 2^(8+i) ns, from 256 ns to 17 s; the last one counts longer ones. */
#define TSRI_HISTOGRAM_LOG2_MIN 8u
#define TSRI_HISTOGRAM_LOG2_MAX 34u
#define TSRI_HISTOGRAM_BUCKETS (TSRI_HISTOGRAM_LOG2_MAX - TSRI_HISTOGRAM_LOG2_MIN + 2u)

enum {
/* One for each histogram of the table. */
#define TSRI_HISTOGRAM_OF_COUNTER(name)
#define TSRI_HISTOGRAM_OF_GAUGE(name)
#define TSRI_HISTOGRAM_OF_HISTOGRAM(name) TSRI_H_##name,
#define TSRI_HISTOGRAM_ENUM(name, kind, unit, help) TSRI_HISTOGRAM_OF_##kind(name)
    TSRI_METRICS(TSRI_HISTOGRAM_ENUM)
#undef TSRI_HISTOGRAM_ENUM
        TSRI_H_COUNT
};

#define TSRI_STATS_STRIPES 32u

struct tsri_stats_stripe {
    /* Counters and gauges: the sum of adds. Histograms: the sum of nanoseconds. */
    _Alignas(TSRI_CACHE_LINE) _Atomic uint64_t value[TSRI_M_COUNT];
    _Atomic uint64_t bucket[TSRI_H_COUNT][TSRI_HISTOGRAM_BUCKETS];
};

struct tsri_stats {
    struct tsri_stats_stripe stripes[TSRI_STATS_STRIPES];
    _Atomic uint64_t gauge_set[TSRI_M_COUNT]; /* what tsri_stats_gauge_set said last */
    void *block;                              /* the allocation this aligned struct lies in */
};

TSR_MUST int tsri_stats_open(struct tsri_stats **out);
/* Accepts NULL. */
void tsri_stats_close(struct tsri_stats *s);

/* The calling thread's id once it has counted something, else 0. Not initial-exec, although that
 * would save a call at each add: it puts all thread-local memory of the library into what the
 * loader keeps spare, and a process that has loaded torch has too little left to open us. */
extern _Thread_local uint32_t tsri_stats_thread __attribute__((visibility("hidden")));
uint32_t tsri_stats_thread_init(void);

static inline struct tsri_stats_stripe *tsri_stats_stripe(struct tsri_stats *s)
{
    uint32_t id = tsri_stats_thread;
    if (__builtin_expect(id == 0, 0)) id = tsri_stats_thread_init();
    return &s->stripes[id % TSRI_STATS_STRIPES];
}

/* Counts n more of a COUNTER. */
static inline void tsri_stats_add(struct tsri_stats *s, enum tsri_metric m, uint64_t n)
{
    atomic_fetch_add_explicit(&tsri_stats_stripe(s)->value[m], n, memory_order_relaxed);
}
/* Moves a GAUGE up or down. */
static inline void tsri_stats_gauge_add(struct tsri_stats *s, enum tsri_metric m, int64_t n)
{
    tsri_stats_add(s, m, (uint64_t)n);
}
/* Sets a GAUGE. Its value is the last one set plus everything ever added; an owner uses one way. */
static inline void tsri_stats_gauge_set(struct tsri_stats *s, enum tsri_metric m, uint64_t value)
{
    atomic_store_explicit(&s->gauge_set[m], value, memory_order_relaxed);
}
/* One more duration of a HISTOGRAM. */
void tsri_stats_observe_ns(struct tsri_stats *s, enum tsri_metric m, uint64_t ns);

/* The value now: a counter's sum, a gauge's level (0 when adds seen so far make it negative), a
 * histogram's number of observations. */
uint64_t tsri_stats_read(const struct tsri_stats *s, enum tsri_metric m);

struct tsri_histogram {
    uint64_t count, sum_ns;
    uint64_t bucket[TSRI_HISTOGRAM_BUCKETS]; /* not cumulative; they add up to count */
};
void tsri_stats_read_histogram(const struct tsri_stats *s, enum tsri_metric m,
                               struct tsri_histogram *out);

/* Every metric as text. Like snprintf: returns the length needed without the final zero, and writes
 * at most bytes - 1 characters and the zero; buf may be NULL when bytes is 0. */
size_t tsri_stats_text_prometheus(const struct tsri_stats *s, char *buf, size_t bytes);
/* Several handles in one text, each series with the label tenant (NULL: without one). */
size_t tsri_stats_text_tenants(const struct tsri_stats *const *all, const char *const *tenants,
                               uint32_t n, char *buf, size_t bytes);
/* One object: {"version":"..","lookups":3,..,"lookup_ns":{"count":3,"sum":900,"buckets":[[256,1],
 * [512,2]]}}; buckets that are empty are left out, the one without a bound has null. */
size_t tsri_stats_text_json(const struct tsri_stats *s, char *buf, size_t bytes);
/* Either of them, by name: "prometheus" or "json". */
TSR_MUST int tsri_stats_text(const struct tsri_stats *s, const char *format, char *buf,
                             size_t bytes);

/* ---- text: a writer into a buffer that may be too small ---- */

/* `length` counts everything written, also what did not fit; the buffer always ends in a zero. */
struct tsri_text {
    char *buf;
    size_t bytes, length;
};
void tsri_text_init(struct tsri_text *t, char *buf, size_t bytes);
void tsri_text_add(struct tsri_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The string in quotes, as JSON wants it; bytes that are not UTF-8 become U+FFFD. */
void tsri_text_add_json(struct tsri_text *t, const char *s);
/* As Prometheus wants help texts (no quotes) and label values (in quotes). */
void tsri_text_add_help(struct tsri_text *t, const char *s);
void tsri_text_add_label(struct tsri_text *t, const char *s);

#endif
