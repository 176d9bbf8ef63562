/* cmd_stat.c - `tessera stat`: the metrics of a cache. The table is read back from the Prometheus
 * text, not from the counters, so that it will look the same for a cache in another process, which
 * can be asked for that text and nothing else. */
#include "cli/remote.h"

#include <tessera/server.h>

#include <stdlib.h>

#define CONNECT_MS 2000

/* The text of a format, allocated; NULL after having said why. */
static char *read_text(struct tsr_cache *cache, const char *format)
{
    int length = tsr_cache_stats_text(cache, format, NULL, 0);
    if (length < 0) {
        tsri_cli_failed();
        return NULL;
    }
    /* Numbers may grow between the two calls. */
    size_t bytes = (size_t)length + 4096;
    char *text = tsri_alloc(bytes, 1);
    if (!text || tsr_cache_stats_text(cache, format, text, bytes) < 0) {
        tsri_cli_failed();
        tsri_free(text);
        return NULL;
    }
    return text;
}

/* Durations as people say them. */
static void add_duration(struct tsri_table *t, double seconds)
{
    if (seconds < 1e-6)
        tsri_table_add(t, "%.0f ns", seconds * 1e9);
    else if (seconds < 1e-3)
        tsri_table_add(t, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        tsri_table_add(t, "%.3g ms", seconds * 1e3);
    else
        tsri_table_add(t, "%.3g s", seconds);
}

/* What is being read: the metric named by the last TYPE line. */
struct reading {
    struct tsri_table *table;
    char name[96], type[16], help[160];
    double count, sum;
    bool all;
};

static bool ends_in(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static void add_row(struct reading *r, const char *value)
{
    char size[32];
    if (!r->all && strtod(value, NULL) == 0) return;
    /* The names people know from the table of metrics, without prefix and suffix. */
    const char *name = r->name + strlen("tessera_");
    size_t length = strlen(name) - (ends_in(name, "_total") ? 6 : 0);
    tsri_table_add(r->table, "%.*s", (int)length, name);
    if (strstr(name, "bytes"))
        tsri_table_add(r->table, "%s", tsri_cli_size(strtoull(value, NULL, 10), size));
    else
        tsri_table_add(r->table, "%s", value);
    tsri_table_add(r->table, "%s", r->help);
}

/* A histogram has one row: how many, and the mean. */
static void add_mean(struct reading *r)
{
    const char *name = r->name + strlen("tessera_");
    if (!r->all && r->count == 0) return;
    tsri_table_add(r->table, "%s", name);
    add_duration(r->table, r->count > 0 ? r->sum / r->count : 0);
    tsri_table_add(r->table, "%s (mean)", r->help);
}

static void read_line(struct reading *r, const char *line)
{
    if (sscanf(line, "# HELP %95s %159[^\n]", r->name, r->help) == 2) return;
    if (sscanf(line, "# TYPE %95s %15s", r->name, r->type) == 2) return;
    const char *space = strrchr(line, ' ');
    if (!space || strncmp(line, r->name, strlen(r->name)) != 0) return;
    const char *suffix = line + strlen(r->name);
    if (suffix == space) {
        add_row(r, space + 1);
    } else if (strncmp(suffix, "_sum ", 5) == 0) {
        r->sum = strtod(space, NULL);
    } else if (strncmp(suffix, "_count ", 7) == 0) {
        r->count = strtod(space, NULL);
        add_mean(r);
    }
}

static int print_table(const struct tsri_cli *cli, char *text)
{
    struct tsri_table t;
    tsri_table_init(&t, "lrl", "metric|value|meaning");
    struct reading r = {.table = &t, .all = tsri_cli_flag(cli, "all") != NULL};
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        read_line(&r, line);
    return tsri_table_print(&t, cli);
}

int tsri_cmd_stat(struct tsri_cli *cli)
{
    bool prometheus = tsri_cli_flag(cli, "prometheus") != NULL;
    int status = tsri_cli_want_args(cli, 0, 0);
    if (status) return status;
    if (prometheus && cli->json)
        return tsri_cli_usage(cli, "stat: use --json or --prometheus, not both");
    status = tsri_remote_wanted(cli) ? tsri_remote_config(cli) : tsri_cli_config(cli);
    if (status) return status;
    struct tsr_cache *cache;
    if (tsr_cache_open(&cache, cli->config) < 0) return tsri_cli_failed();
    if (tsr_cache_connected(cache, CONNECT_MS) <
        0) { /* without a server there is nothing to count */
        tsr_cache_close(cache);
        return tsri_cli_failed();
    }
    char *text = read_text(cache, cli->json ? "json" : "prometheus");
    tsr_cache_close(cache);
    if (!text) return CLI_FAILED;
    if (cli->json || prometheus)
        fputs(text, stdout);
    else
        status = print_table(cli, text);
    tsri_free(text);
    return status;
}
