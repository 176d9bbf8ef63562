/* Counters, gauges, histograms, and the two texts. */
#include "stats/stats.h"
#include "support/test.h"

#include <ctype.h>
#include <pthread.h>

static struct tsri_stats *stats;
static char text[64 << 10];

static void begin(void)
{
    CHECK_INT(tsri_stats_open(&stats), 0);
}
static void end(void)
{
    tsri_stats_close(stats);
    stats = NULL;
}

/* ---- numbers ---- */

#define N_THREADS 16
#define N_ADDS 20000

static void *add_many(void *arg)
{
    (void)arg;
    for (uint64_t i = 0; i < N_ADDS; i++) {
        tsri_stats_add(stats, TSRI_M_lookups, 1);
        tsri_stats_add(stats, TSRI_M_load_bytes, i);
        tsri_stats_gauge_add(stats, TSRI_M_leased_entries, 2);
        tsri_stats_gauge_add(stats, TSRI_M_leased_entries, -1);
        tsri_stats_observe_ns(stats, TSRI_M_lookup_ns, i);
        tsri_stats_gauge_set(stats, TSRI_M_io_queue, 7);
        if (i % 1000 == 0) tsri_stats_text_json(stats, NULL, 0);
    }
    return NULL;
}

TEST(sixteen_threads_lose_no_count)
{
    begin();
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, add_many, NULL), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    uint64_t sum = (uint64_t)N_THREADS * N_ADDS * (N_ADDS - 1) / 2;
    CHECK_INT(tsri_stats_read(stats, TSRI_M_lookups), N_THREADS * N_ADDS);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_load_bytes), sum);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_leased_entries), N_THREADS * N_ADDS);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_lookup_ns), N_THREADS * N_ADDS);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_io_queue), 7);
    struct tsri_histogram h;
    tsri_stats_read_histogram(stats, TSRI_M_lookup_ns, &h);
    CHECK_INT(h.sum_ns, sum);
    end();
}

static void *add_one(void *arg)
{
    (void)arg;
    tsri_stats_add(stats, TSRI_M_loads, 1);
    return NULL;
}

TEST(more_threads_than_stripes_share_and_threads_spread)
{
    begin();
    for (uint32_t i = 0; i < 2 * TSRI_STATS_STRIPES; i++) {
        pthread_t thread;
        CHECK_INT(pthread_create(&thread, NULL, add_one, NULL), 0);
        pthread_join(thread, NULL);
    }
    CHECK_INT(tsri_stats_read(stats, TSRI_M_loads), 2 * TSRI_STATS_STRIPES);
    uint32_t used = 0;
    for (uint32_t i = 0; i < TSRI_STATS_STRIPES; i++)
        used += atomic_load(&stats->stripes[i].value[TSRI_M_loads]) > 0;
    CHECK(used > 1);
    end();
}

TEST(stripes_do_not_share_cache_lines)
{
    begin();
    CHECK_INT((uintptr_t)stats->stripes % TSRI_CACHE_LINE, 0);
    CHECK_INT(sizeof(struct tsri_stats_stripe) % TSRI_CACHE_LINE, 0);
    CHECK(sizeof(struct tsri_stats) <= 48 << 10);
    end();
    tsri_stats_close(NULL);
}

TEST(handles_do_not_share_counts)
{
    struct tsri_stats *other;
    begin();
    CHECK_INT(tsri_stats_open(&other), 0);
    tsri_stats_add(stats, TSRI_M_stores, 3);
    CHECK_INT(tsri_stats_read(other, TSRI_M_stores), 0);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_stores), 3);
    tsri_stats_close(other);
    end();
}

TEST(a_gauge_is_what_was_set_plus_what_was_added_and_never_negative)
{
    begin();
    tsri_stats_gauge_set(stats, TSRI_M_entries, 10);
    tsri_stats_gauge_set(stats, TSRI_M_entries, 4);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_entries), 4);
    tsri_stats_gauge_add(stats, TSRI_M_entries, -3);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_entries), 1);
    tsri_stats_gauge_add(stats, TSRI_M_entries, -3);
    CHECK_INT(tsri_stats_read(stats, TSRI_M_entries), 0);
    end();
}

TEST(a_duration_falls_into_the_smallest_bucket_that_holds_it)
{
    static const struct {
        uint64_t ns;
        uint32_t bucket;
    } cases[] = {{0, 0},
                 {1, 0},
                 {256, 0},
                 {257, 1},
                 {512, 1},
                 {513, 2},
                 {(uint64_t)1 << 33, 25},
                 {((uint64_t)1 << 33) + 1, 26},
                 {(uint64_t)1 << 34, 26},
                 {((uint64_t)1 << 34) + 1, 27},
                 {UINT64_MAX, 27}};
    CHECK_INT(TSRI_HISTOGRAM_BUCKETS, 28);
    for (size_t i = 0; i < TSRI_COUNT(cases); i++) {
        struct tsri_histogram h;
        begin();
        tsri_stats_observe_ns(stats, TSRI_M_store_ns, cases[i].ns);
        tsri_stats_read_histogram(stats, TSRI_M_store_ns, &h);
        CHECK_INT(h.bucket[cases[i].bucket], 1);
        CHECK_INT(h.count, 1);
        CHECK_INT(h.sum_ns, cases[i].ns);
        tsri_stats_read_histogram(stats, TSRI_M_load_ns, &h);
        CHECK_INT(h.count, 0);
        end();
    }
}

TEST(every_row_has_a_valid_name_and_a_help_line)
{
    for (enum tsri_metric m = 0; m < TSRI_M_COUNT; m++) {
        const struct tsri_metric_info *info = tsri_metric_info(m);
        size_t length = strlen(info->name);
        CHECK(length > 3 && length < 40 && strlen(info->help) > 5 && strlen(info->unit) > 0);
        for (const char *c = info->name; *c; c++)
            CHECK(islower((unsigned char)*c) || *c == '_' ||
                  (c > info->name && isdigit((unsigned char)*c)));
        bool ns = strcmp(info->name + length - 3, "_ns") == 0;
        CHECK(ns == (info->kind == TSRI_METRIC_HISTOGRAM));
    }
}

/* ---- texts ---- */

static void fill(void)
{
    tsri_stats_add(stats, TSRI_M_lookups, 3);
    tsri_stats_add(stats, TSRI_M_store_bytes, UINT64_MAX);
    tsri_stats_gauge_set(stats, TSRI_M_entries, 42);
    tsri_stats_observe_ns(stats, TSRI_M_lookup_ns, 100);
    tsri_stats_observe_ns(stats, TSRI_M_lookup_ns, 300);
    tsri_stats_observe_ns(stats, TSRI_M_lookup_ns, 310);
    tsri_stats_observe_ns(stats, TSRI_M_lookup_ns, (uint64_t)40 * 1000000000u);
}

/* Reads the rest of a line, checks that it is a number, and returns it. */
static double number(const char *s, const char *line_end)
{
    char *end_of_number;
    double v = strtod(s, &end_of_number);
    CHECK(end_of_number == line_end);
    return v;
}

/* One metric's lines after its TYPE: returns where the next metric begins. */
static const char *check_samples(const char *at, const char *name, const char *type, int *samples)
{
    size_t length = strlen(name);
    double below = 0, le_before = 0, total = -1;
    while (*at && *at != '#') {
        const char *line_end = strchr(at, '\n');
        CHECK(line_end != NULL);
        CHECK(strncmp(at, name, length) == 0);
        const char *rest = at + length;
        if (strcmp(type, "histogram") != 0) {
            CHECK(*rest == ' ' || strncmp(rest, "{version=\"", 10) == 0);
            number(strchr(at, ' ') + 1, line_end);
        } else if (strncmp(rest, "_bucket{le=\"", 12) == 0) {
            double le = strtod(rest + 12, NULL); /* takes +Inf too */
            double n = number(strstr(rest, "\"} ") + 3, line_end);
            CHECK(le > le_before && n >= below);
            le_before = le;
            below = n;
            if (strncmp(rest + 12, "+Inf", 4) == 0) total = n;
        } else if (strncmp(rest, "_count ", 7) == 0) {
            CHECK(number(rest + 7, line_end) == total);
        } else {
            CHECK(strncmp(rest, "_sum ", 5) == 0);
            number(rest + 5, line_end);
        }
        ++*samples;
        at = line_end + 1;
    }
    return at;
}

TEST(prometheus_text_is_valid_line_by_line)
{
    begin();
    fill();
    size_t length = tsri_stats_text_prometheus(stats, text, sizeof text);
    CHECK(length < sizeof text);
    CHECK_INT(strlen(text), length);
    CHECK(text[length - 1] == '\n');
    int metrics = 0, samples = 0;
    for (const char *at = text; *at; metrics++) {
        char name[64], type[16], other[64];
        CHECK_INT(sscanf(at, "# HELP %63[a-z0-9_] ", name), 1);
        at = strchr(at, '\n') + 1;
        CHECK_INT(sscanf(at, "# TYPE %63[a-z0-9_] %15[a-z]\n", other, type), 2);
        CHECK_STR(other, name);
        size_t n = strlen(name);
        bool total = n > 6 && strcmp(name + n - 6, "_total") == 0;
        CHECK(total == (strcmp(type, "counter") == 0));
        CHECK(strcmp(type, "counter") == 0 || strcmp(type, "gauge") == 0 ||
              strcmp(type, "histogram") == 0);
        at = strchr(at, '\n') + 1;
        int before = samples;
        at = check_samples(at, name, type, &samples);
        int want = strcmp(type, "histogram") == 0 ? (int)TSRI_HISTOGRAM_BUCKETS + 2 : 1;
        CHECK_INT(samples - before, want);
    }
    CHECK_INT(metrics, TSRI_M_COUNT + 1);
    end();
}

TEST(prometheus_text_has_the_right_values)
{
    begin();
    fill();
    tsri_stats_text_prometheus(stats, text, sizeof text);
    CHECK_HAS(text, "tessera_build_info{version=\"" TSR_VERSION "\"} 1\n");
    CHECK_HAS(text, "# HELP tessera_lookups_total Lookups\n"
                    "# TYPE tessera_lookups_total counter\ntessera_lookups_total 3\n");
    CHECK_HAS(text, "tessera_store_bytes_total 18446744073709551615\n");
    CHECK_HAS(text, "# TYPE tessera_entries gauge\ntessera_entries 42\n");
    CHECK_HAS(text, "# TYPE tessera_lookup_seconds histogram\n"
                    "tessera_lookup_seconds_bucket{le=\"0.000000256\"} 1\n"
                    "tessera_lookup_seconds_bucket{le=\"0.000000512\"} 3\n"
                    "tessera_lookup_seconds_bucket{le=\"0.000001024\"} 3\n");
    CHECK_HAS(text, "tessera_lookup_seconds_bucket{le=\"17.179869184\"} 3\n"
                    "tessera_lookup_seconds_bucket{le=\"+Inf\"} 4\n"
                    "tessera_lookup_seconds_sum 40.000000710\n"
                    "tessera_lookup_seconds_count 4\n");
    end();
}

/* Steps over one JSON value; NULL when it is none. No spaces: the text has none inside. */
static const char *json_value(const char *at)
{
    if (*at == '"') {
        for (at++; *at && *at != '"'; at++)
            if ((unsigned char)*at < 0x20 || *at == '\\') return NULL;
        return *at ? at + 1 : NULL;
    }
    if (*at == '{' || *at == '[') {
        char open = *at++, close = open == '{' ? '}' : ']';
        if (*at == close) return at + 1;
        for (;;) {
            if (open == '{') {
                if (*at != '"' || !(at = json_value(at)) || *at++ != ':') return NULL;
            }
            if (!(at = json_value(at))) return NULL;
            if (*at == close) return at + 1;
            if (*at++ != ',') return NULL;
        }
    }
    if (strncmp(at, "null", 4) == 0) return at + 4;
    size_t digits = strspn(at, "0123456789");
    return digits && (digits == 1 || *at != '0') ? at + digits : NULL;
}

/* Prometheus wants all series of a metric in one place. */
TEST(tenants_share_one_text_metric_by_metric)
{
    static char both_text[256 << 10];
    struct tsri_stats *all[2];
    static const char *const names[] = {"a", "b\"c"};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tsri_stats_open(&all[i]), 0);
        tsri_stats_add(all[i], TSRI_M_lookups, 3 + (uint64_t)i);
        tsri_stats_observe_ns(all[i], TSRI_M_lookup_ns, 1000);
    }
    const struct tsri_stats *both[] = {all[0], all[1]};
    size_t n = tsri_stats_text_tenants(both, names, 2, both_text, sizeof both_text);
    CHECK(n < sizeof both_text && strlen(both_text) == n);
    CHECK(strstr(both_text, "tessera_lookups_total{tenant=\"a\"} 3\n"
                            "tessera_lookups_total{tenant=\"b\\\"c\"} 4\n"));
    CHECK(strstr(both_text, "tessera_lookup_seconds_bucket{tenant=\"a\",le=\"0.000001024\"} 1\n"));
    CHECK(strstr(both_text, "tessera_lookup_seconds_sum{tenant=\"a\"} 0.000001000\n"));
    for (int i = 0; i < 2; i++)
        tsri_stats_close(all[i]);
}

TEST(json_text_is_one_object_with_every_metric)
{
    begin();
    fill();
    size_t length = tsri_stats_text_json(stats, text, sizeof text);
    CHECK_INT(strlen(text), length);
    const char *rest = json_value(text);
    CHECK_STR(rest, "\n");
    CHECK(text[0] == '{');
    for (enum tsri_metric m = 0; m < TSRI_M_COUNT; m++) {
        char member[64];
        snprintf(member, sizeof member, ",\"%s\":", tsri_metric_info(m)->name);
        CHECK_HAS(text, member);
    }
    CHECK_HAS(text, "{\"version\":\"" TSR_VERSION "\",\"lookups\":3,");
    CHECK_HAS(text, "\"store_bytes\":18446744073709551615,");
    CHECK_HAS(text, "\"entries\":42,");
    CHECK_HAS(text, "\"lookup_ns\":{\"count\":4,\"sum\":40000000710,"
                    "\"buckets\":[[256,1],[512,2],[null,1]]}");
    CHECK_HAS(text, "\"load_ns\":{\"count\":0,\"sum\":0,\"buckets\":[]}");
    end();
}

TEST(texts_say_the_length_they_need_and_never_write_past_the_end)
{
    begin();
    size_t (*const formats[])(const struct tsri_stats *, char *,
                              size_t) = {tsri_stats_text_prometheus, tsri_stats_text_json};
    for (size_t f = 0; f < TSRI_COUNT(formats); f++) {
        size_t length = formats[f](stats, NULL, 0);
        CHECK(length > 0);
        for (size_t bytes = 1; bytes <= length + 1; bytes += 97) {
            char *exact = malloc(bytes); /* the sanitizer watches its end */
            CHECK(exact != NULL);
            CHECK_INT(formats[f](stats, exact, bytes), length);
            CHECK_INT(strlen(exact), bytes - 1);
            free(exact);
        }
    }
    end();
}

int main(void)
{
    RUN(sixteen_threads_lose_no_count);
    RUN(more_threads_than_stripes_share_and_threads_spread);
    RUN(stripes_do_not_share_cache_lines);
    RUN(handles_do_not_share_counts);
    RUN(a_gauge_is_what_was_set_plus_what_was_added_and_never_negative);
    RUN(a_duration_falls_into_the_smallest_bucket_that_holds_it);
    RUN(every_row_has_a_valid_name_and_a_help_line);
    RUN(prometheus_text_is_valid_line_by_line);
    RUN(prometheus_text_has_the_right_values);
    RUN(tenants_share_one_text_metric_by_metric);
    RUN(json_text_is_one_object_with_every_metric);
    RUN(texts_say_the_length_they_need_and_never_write_past_the_end);
    return test_end();
}
