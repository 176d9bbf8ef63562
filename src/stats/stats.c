/* stats.c - the stripes: how threads find theirs, how they are summed, and the two reports made of
 * the sums. The table of metrics is walked by index, so nothing here names a metric. */
#include "stats/stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define TEXT_NAME_BYTES 64

_Thread_local uint32_t tsri_stats_thread;

static const struct tsri_metric_info infos[TSRI_M_COUNT] = {
#define INFO(name, kind, unit, help) {#name, unit, help, TSRI_METRIC_##kind},
    TSRI_METRICS(INFO)
#undef INFO
};

/* Which histogram a metric is; the others share 0 and never look. */
#define INDEX_COUNTER(name) 0
#define INDEX_GAUGE(name) 0
#define INDEX_HISTOGRAM(name) TSRI_H_##name
static const uint8_t histogram_index[TSRI_M_COUNT] = {
#define INDEX(name, kind, unit, help) INDEX_##kind(name),
    TSRI_METRICS(INDEX)
#undef INDEX
};

const struct tsri_metric_info *tsri_metric_info(enum tsri_metric m)
{
    TSR_ASSERT((unsigned)m < TSRI_M_COUNT);
    return &infos[m];
}

/* Thread ids are handed out in sequence, so the threads of a pool get stripes of their own without
 * a counter shared by the whole process. */
uint32_t tsri_stats_thread_init(void)
{
    tsri_stats_thread = (uint32_t)gettid();
    return tsri_stats_thread;
}

int tsri_stats_open(struct tsri_stats **out)
{
    *out = NULL;
    void *block = tsri_alloc(1, sizeof(struct tsri_stats) + TSRI_CACHE_LINE);
    if (!block) return TSR_ENOMEM;
    uintptr_t at = tsri_align_up((uintptr_t)block, TSRI_CACHE_LINE);
    struct tsri_stats *s = (struct tsri_stats *)at;
    s->block = block;
    *out = s;
    return 0;
}

void tsri_stats_close(struct tsri_stats *s)
{
    if (s) tsri_free(s->block);
}

static uint32_t bucket_of(uint64_t ns)
{
    if (ns <= (1u << TSRI_HISTOGRAM_LOG2_MIN)) return 0;
    uint32_t log2_up = 64 - (uint32_t)__builtin_clzll(ns - 1);
    return tsri_min_u32(log2_up - TSRI_HISTOGRAM_LOG2_MIN, TSRI_HISTOGRAM_BUCKETS - 1);
}

void tsri_stats_observe_ns(struct tsri_stats *s, enum tsri_metric m, uint64_t ns)
{
    TSR_ASSERT((unsigned)m < TSRI_M_COUNT && infos[m].kind == TSRI_METRIC_HISTOGRAM);
    struct tsri_stats_stripe *stripe = tsri_stats_stripe(s);
    atomic_fetch_add_explicit(&stripe->bucket[histogram_index[m]][bucket_of(ns)], 1,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&stripe->value[m], ns, memory_order_relaxed);
}

static uint64_t sum_of(const struct tsri_stats *s, enum tsri_metric m)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < TSRI_STATS_STRIPES; i++)
        sum += atomic_load_explicit(&s->stripes[i].value[m], memory_order_relaxed);
    return sum;
}

void tsri_stats_read_histogram(const struct tsri_stats *s, enum tsri_metric m,
                               struct tsri_histogram *out)
{
    TSR_ASSERT((unsigned)m < TSRI_M_COUNT && infos[m].kind == TSRI_METRIC_HISTOGRAM);
    memset(out, 0, sizeof *out);
    out->sum_ns = sum_of(s, m);
    for (uint32_t i = 0; i < TSRI_STATS_STRIPES; i++)
        for (uint32_t b = 0; b < TSRI_HISTOGRAM_BUCKETS; b++)
            out->bucket[b] += atomic_load_explicit(&s->stripes[i].bucket[histogram_index[m]][b],
                                                   memory_order_relaxed);
    /* Not a counter of its own: readers of Prometheus text want it to agree with the buckets. */
    for (uint32_t b = 0; b < TSRI_HISTOGRAM_BUCKETS; b++)
        out->count += out->bucket[b];
}

uint64_t tsri_stats_read(const struct tsri_stats *s, enum tsri_metric m)
{
    TSR_ASSERT((unsigned)m < TSRI_M_COUNT);
    struct tsri_histogram h;
    switch (infos[m].kind) {
    case TSRI_METRIC_HISTOGRAM:
        tsri_stats_read_histogram(s, m, &h);
        return h.count;
    case TSRI_METRIC_GAUGE: {
        /* An add of one thread may be summed before the opposite, earlier one of another. */
        uint64_t level =
            sum_of(s, m) + atomic_load_explicit(&s->gauge_set[m], memory_order_relaxed);
        return (int64_t)level < 0 ? 0 : level;
    }
    case TSRI_METRIC_COUNTER:
        break;
    }
    return sum_of(s, m);
}

/* ---- Prometheus text format 0.0.4 ---- */

static void metric_name(enum tsri_metric m, char *out, size_t bytes)
{
    const char *name = infos[m].name;
    int stem = (int)strlen(name) - 3; /* without _ns */
    switch (infos[m].kind) {
    case TSRI_METRIC_COUNTER:
        snprintf(out, bytes, "tessera_%s_total", name);
        break;
    case TSRI_METRIC_GAUGE:
        snprintf(out, bytes, "tessera_%s", name);
        break;
    case TSRI_METRIC_HISTOGRAM:
        snprintf(out, bytes, "tessera_%.*s_seconds", stem, name);
        break;
    }
}

/* Whole numbers on both sides of the point: exact, and the same in every locale. */
static void add_seconds(struct tsri_text *t, uint64_t ns)
{
    tsri_text_add(t, "%" PRIu64 ".%09" PRIu64, ns / 1000000000u, ns % 1000000000u);
}

/* {tenant="..",le=".."}, or what of it there is. */
static void add_labels(struct tsri_text *t, const char *tenant, uint64_t le_ns)
{
    if (!tenant && !le_ns) return;
    tsri_text_add(t, "{");
    if (tenant) {
        tsri_text_add(t, "tenant=");
        tsri_text_add_label(t, tenant);
        if (le_ns) tsri_text_add(t, ",");
    }
    if (le_ns == UINT64_MAX) {
        tsri_text_add(t, "le=\"+Inf\"");
    } else if (le_ns) {
        tsri_text_add(t, "le=\"");
        add_seconds(t, le_ns);
        tsri_text_add(t, "\"");
    }
    tsri_text_add(t, "}");
}

static void add_bucket(struct tsri_text *t, const char *name, const char *tenant, uint64_t le_ns,
                       uint64_t count)
{
    tsri_text_add(t, "%s_bucket", name);
    add_labels(t, tenant, le_ns);
    tsri_text_add(t, " %" PRIu64 "\n", count);
}

static void add_histogram(struct tsri_text *t, const char *name, const char *tenant,
                          const struct tsri_histogram *h)
{
    uint64_t below = 0;
    for (uint32_t b = 0; b + 1 < TSRI_HISTOGRAM_BUCKETS; b++) {
        below += h->bucket[b];
        add_bucket(t, name, tenant, (uint64_t)1 << (TSRI_HISTOGRAM_LOG2_MIN + b), below);
    }
    add_bucket(t, name, tenant, UINT64_MAX, h->count);
    tsri_text_add(t, "%s_sum", name);
    add_labels(t, tenant, 0);
    tsri_text_add(t, " ");
    add_seconds(t, h->sum_ns);
    tsri_text_add(t, "\n%s_count", name);
    add_labels(t, tenant, 0);
    tsri_text_add(t, " %" PRIu64 "\n", h->count);
}

static void add_series(struct tsri_text *t, const char *name, const char *tenant,
                       const struct tsri_stats *s, enum tsri_metric m)
{
    if (infos[m].kind == TSRI_METRIC_HISTOGRAM) {
        struct tsri_histogram h;
        tsri_stats_read_histogram(s, m, &h);
        add_histogram(t, name, tenant, &h);
    } else {
        tsri_text_add(t, "%s", name);
        add_labels(t, tenant, 0);
        tsri_text_add(t, " %" PRIu64 "\n", tsri_stats_read(s, m));
    }
}

size_t tsri_stats_text_tenants(const struct tsri_stats *const *all, const char *const *tenants,
                               uint32_t n, char *buf, size_t bytes)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    struct tsri_text t;
    tsri_text_init(&t, buf, bytes);
    tsri_text_add(&t, "# HELP tessera_build_info Version of the library\n"
                      "# TYPE tessera_build_info gauge\ntessera_build_info{version=");
    tsri_text_add_label(&t, TSR_VERSION);
    tsri_text_add(&t, "} 1\n");
    for (enum tsri_metric m = 0; m < TSRI_M_COUNT; m++) {
        char name[TEXT_NAME_BYTES];
        metric_name(m, name, sizeof name);
        tsri_text_add(&t, "# HELP %s ", name);
        tsri_text_add_help(&t, infos[m].help);
        tsri_text_add(&t, "\n# TYPE %s %s\n", name, types[infos[m].kind]);
        for (uint32_t i = 0; i < n; i++)
            add_series(&t, name, tenants[i], all[i], m);
    }
    return t.length;
}

size_t tsri_stats_text_prometheus(const struct tsri_stats *s, char *buf, size_t bytes)
{
    const char *no_tenant = NULL;
    return tsri_stats_text_tenants(&s, &no_tenant, 1, buf, bytes);
}

/* ---- JSON ---- */

static void add_histogram_json(struct tsri_text *t, const struct tsri_histogram *h)
{
    tsri_text_add(t, "{\"count\":%" PRIu64 ",\"sum\":%" PRIu64 ",\"buckets\":[", h->count,
                  h->sum_ns);
    const char *comma = "";
    for (uint32_t b = 0; b < TSRI_HISTOGRAM_BUCKETS; b++) {
        if (h->bucket[b] == 0) continue;
        if (b + 1 < TSRI_HISTOGRAM_BUCKETS)
            tsri_text_add(t, "%s[%" PRIu64 ",%" PRIu64 "]", comma,
                          (uint64_t)1 << (TSRI_HISTOGRAM_LOG2_MIN + b), h->bucket[b]);
        else
            tsri_text_add(t, "%s[null,%" PRIu64 "]", comma, h->bucket[b]);
        comma = ",";
    }
    tsri_text_add(t, "]}");
}

size_t tsri_stats_text_json(const struct tsri_stats *s, char *buf, size_t bytes)
{
    struct tsri_text t;
    tsri_text_init(&t, buf, bytes);
    tsri_text_add(&t, "{\"version\":");
    tsri_text_add_json(&t, TSR_VERSION);
    for (enum tsri_metric m = 0; m < TSRI_M_COUNT; m++) {
        tsri_text_add(&t, ",");
        tsri_text_add_json(&t, infos[m].name);
        tsri_text_add(&t, ":");
        if (infos[m].kind == TSRI_METRIC_HISTOGRAM) {
            struct tsri_histogram h;
            tsri_stats_read_histogram(s, m, &h);
            add_histogram_json(&t, &h);
        } else {
            tsri_text_add(&t, "%" PRIu64, tsri_stats_read(s, m));
        }
    }
    tsri_text_add(&t, "}\n");
    return t.length;
}

int tsri_stats_text(const struct tsri_stats *s, const char *format, char *buf, size_t bytes)
{
    if (strcmp(format, "prometheus") == 0) return (int)tsri_stats_text_prometheus(s, buf, bytes);
    if (strcmp(format, "json") == 0) return (int)tsri_stats_text_json(s, buf, bytes);
    return tsri_fail(TSR_EINVAL, "unknown format %s: use prometheus or json", format);
}
