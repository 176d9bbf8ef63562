/* cmd_replay.c - `tessera-lab replay`: an access trace against caches of several sizes and policies,
 * each a real one (replay.c); a table of what they found and moved, JSON, or a picture. */
#include "lab/replay.h"

#include <inttypes.h>
#include <stdlib.h>

#define PAGE_SIZE "4K"
#define MEBIBYTE ((uint64_t)1 << 20)
#define SIZES_MAX TSRI_PLOT_SIZES_MAX
#define POLICIES_MAX TSRI_PLOT_LINES_MAX
#define WORD_BYTES 32

/* What is replayed: each size with each policy. */
struct plan {
    struct tsri_cli *cli;
    struct tsri_trace trace;
    const char *name; /* of the trace */
    char sizes[SIZES_MAX][WORD_BYTES], policies[POLICIES_MAX][WORD_BYTES];
    size_t n_sizes, n_policies;
    char *disk;       /* NULL: none */
    const char *keep; /* NULL: it is removed */
    bool as_prefix;
    size_t n_runs; /* done */
    struct run {
        uint64_t host_size;
        const char *policy;
        struct tsri_replay_result r;
    } runs[SIZES_MAX * POLICIES_MAX];
};

/* ---- what was found ---- */

static double hit_rate(const struct tsri_replay_result *r)
{
    return r->tokens_asked ? (double)r->tokens_reused / (double)r->tokens_asked : 0;
}

static int print_table(const struct plan *p)
{
#define HEADS \
    "host size|policy|requests|tokens asked|tokens reused|hit " \
    "rate|stored|loaded|evictions|refused"
    struct tsri_table t;
    if (p->disk)
        tsri_table_init(&t, "rlrrrrrrrrrrr", HEADS "|from disk|disk read|disk written");
    else
        tsri_table_init(&t, "rlrrrrrrrr", HEADS);
    for (size_t i = 0; i < p->n_runs; i++) {
        const struct tsri_replay_result *r = &p->runs[i].r;
        char size[32];
        tsri_table_add(&t, "%s", tsri_cli_size(p->runs[i].host_size, size));
        tsri_table_add(&t, "%s", p->runs[i].policy);
        tsri_table_add(&t, "%" PRIu64, r->requests);
        tsri_table_add(&t, "%" PRIu64, r->tokens_asked);
        tsri_table_add(&t, "%" PRIu64, r->tokens_reused);
        tsri_table_add(&t, "%.1f %%", 100 * hit_rate(r));
        tsri_table_add(&t, "%s", tsri_cli_size(r->host_write_bytes, size));
        tsri_table_add(&t, "%s", tsri_cli_size(r->host_read_bytes, size));
        tsri_table_add(&t, "%" PRIu64, r->evicted);
        tsri_table_add(&t, "%" PRIu64, r->refused);
        if (!p->disk) continue;
        tsri_table_add(&t, "%" PRIu64, r->tokens_from_disk);
        tsri_table_add(&t, "%s", tsri_cli_size(r->disk_read_bytes, size));
        tsri_table_add(&t, "%s", tsri_cli_size(r->disk_write_bytes, size));
    }
    return tsri_table_print(&t, p->cli);
}

static void print_json(const struct plan *p)
{
    const struct tsri_options *o = tsri_config_options(p->cli->config);
    tsri_cli_json("{\"trace\":", p->name);
    printf(",\"as\":\"%s\",\"disk_size\":%" PRIu64 ",\"runs\":[", p->as_prefix ? "prefix" : "trace",
           p->disk ? o->disk_size : 0);
    for (size_t i = 0; i < p->n_runs; i++) {
        const struct tsri_replay_result *r = &p->runs[i].r;
        printf("%s\n{\"host_size\":%" PRIu64 ",\"policy\":\"%s\",\"requests\":%" PRIu64
               ",\"tokens_asked\":%" PRIu64 ",\"tokens_reused\":%" PRIu64
               ",\"tokens_from_disk\":%" PRIu64 ",\"hit_rate\":%.6f",
               i ? "," : "", p->runs[i].host_size, p->runs[i].policy, r->requests, r->tokens_asked,
               r->tokens_reused, r->tokens_from_disk, hit_rate(r));
        printf(",\"host_write_bytes\":%" PRIu64 ",\"host_read_bytes\":%" PRIu64
               ",\"disk_write_bytes\":%" PRIu64 ",\"disk_read_bytes\":%" PRIu64
               ",\"evictions\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"seconds\":%.3f}",
               r->host_write_bytes, r->host_read_bytes, r->disk_write_bytes, r->disk_read_bytes,
               r->evicted, r->refused, r->seconds);
    }
    puts("\n]}");
}

/* Runs are in the order of sizes, then policies. */
static int draw(const struct plan *p, const char *path)
{
    const char *base = strrchr(p->name, '/');
    char note[160], size[32];
    const struct tsri_options *o = tsri_config_options(p->cli->config);
    int n = snprintf(note, sizeof note, "%" PRIu64 " requests, %" PRIu64 " tokens asked",
                     p->runs[0].r.requests, p->runs[0].r.tokens_asked);
    if (p->disk)
        snprintf(note + n, sizeof note - (size_t)n, ", with a disk of %s",
                 tsri_cli_size(o->disk_size, size));
    struct tsri_plot plot = {.title = base ? base + 1 : p->name,
                             .note = note,
                             .n_sizes = p->n_sizes,
                             .n_lines = p->n_policies};
    for (size_t i = 0; i < p->n_runs; i++) {
        size_t s = i / p->n_policies, l = i % p->n_policies;
        plot.sizes[s] = p->runs[i].host_size;
        plot.lines[l].name = p->runs[i].policy;
        plot.lines[l].rates[s] = hit_rate(&p->runs[i].r);
    }
    return tsri_plot_write(&plot, path);
}

/* ---- the plan ---- */

/* The values of a flag, separated by commas, or that of the option alone; each is tried. 0, or the
 * exit status. */
static int read_list(struct plan *p, const char *flag, const char *option,
                     char (*words)[WORD_BYTES], size_t words_max, size_t *n)
{
    struct tsri_cli *cli = p->cli;
    const char *list = tsri_cli_flag(cli, flag);
    char value[WORD_BYTES];
    if (!list) {
        /* The configuration's own text does not outlive the values that are tried. */
        snprintf(value, sizeof value, "%s", tsr_config_get(cli->config, option));
        list = value;
    }
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        if (*n == words_max || length == 0 || length >= WORD_BYTES)
            return tsri_cli_usage(cli, "--%s=%s: must be a list of 1 to %zu values", flag, list,
                                  words_max);
        snprintf(words[*n], WORD_BYTES, "%.*s", (int)length, at);
        if (tsr_config_set(cli->config, option, words[*n]) < 0)
            return tsri_cli_usage(cli, "--%s: %s", flag, tsr_errmsg());
        ++*n;
        at += length;
        if (!*at) return 0;
    }
}

static int read_disk(struct plan *p)
{
    struct tsr_config *cfg = p->cli->config;
    const char *size = tsri_cli_flag(p->cli, "disk-size");
    p->keep = tsri_cli_flag(p->cli, "keep");
    if (p->keep && (!size || p->n_sizes * p->n_policies > 1))
        return tsri_cli_usage(p->cli, "--keep needs --disk-size, one host size and one policy");
    if (!size) return 0;
    if (tsr_config_set(cfg, "disk_size", size) < 0)
        return tsri_cli_usage(p->cli, "--disk-size: %s", tsr_errmsg());
    const char *in = tsr_config_get(cfg, "disk_path"), *tmp = getenv("TMPDIR");
    if (!*in) in = tmp && *tmp ? tmp : "/tmp";
    p->disk = strdup(in);
    return p->disk ? 0 : tsri_cli_fail("no memory");
}

static int read_plan(struct plan *p)
{
    const char *as = tsri_cli_flag(p->cli, "as");
    if (as && strcmp(as, "trace") != 0 && strcmp(as, "prefix") != 0)
        return tsri_cli_usage(p->cli, "--as=%s: must be trace or prefix", as);
    p->as_prefix = as && strcmp(as, "prefix") == 0;
    int status = read_list(p, "host-size", "host_size", p->sizes, SIZES_MAX, &p->n_sizes);
    if (!status)
        status = read_list(p, "policy", "policy", p->policies, POLICIES_MAX, &p->n_policies);
    return status ? status : read_disk(p);
}

/* ---- the runs ---- */

/* Sets an option that the user left alone. */
static int set_default(struct tsr_config *cfg, const char *key, const char *value)
{
    const struct tsri_option *o = tsri_option_find(key);
    /* "call" is what an earlier size set here. */
    const char *origin = tsri_config_origin(cfg, o);
    if (strcmp(origin, "default") != 0 && strcmp(origin, "call") != 0) return 0;
    return tsr_config_set(cfg, key, value);
}

/* The configuration for one run: memory for tokens is derived from host_size with real models in
 * mind, whose KV is a thousand times larger than ours; so is the number of entries. */
static int configure(struct tsr_config *cfg, const char *size, const char *policy)
{
    char metadata[32], segment[32];
    int err = tsr_config_set(cfg, "host_size", size);
    if (!err) err = tsr_config_set(cfg, "policy", policy);
    if (err) return err;
    const struct tsri_options *o = tsri_config_options(cfg);
    uint64_t bytes = o->host_size / 4;
    snprintf(metadata, sizeof metadata, "%" PRIu64, bytes > MEBIBYTE ? bytes : MEBIBYTE);
    snprintf(segment, sizeof segment, "%" PRIu64, o->disk_size / 16);
    err = set_default(cfg, "metadata_size", metadata);
    if (!err && o->disk_size / 16 < o->disk_segment_size)
        err = set_default(cfg, "disk_segment_size", segment);
    /* A trace has no time in which a disk could catch up: each store waits for it. */
    if (!err) err = set_default(cfg, "disk_write", "through");
    if (!err) err = set_default(cfg, "redis_write", "through");
    if (!err) err = set_default(cfg, "s3_write", "through");
    return err ? err : set_default(cfg, "host_page_size", PAGE_SIZE);
}

static void show(void *arg, uint64_t n_done)
{
    struct plan *p = arg;
    size_t n_runs = p->n_sizes * p->n_policies;
    char what[128];
    snprintf(what, sizeof what, "%s, %s (%zu of %zu)", p->sizes[p->n_runs / p->n_policies],
             p->policies[p->n_runs % p->n_policies], p->n_runs + 1, n_runs);
    tsri_cli_progress(what, p->n_runs * p->trace.n_requests + n_done, n_runs * p->trace.n_requests);
}

static int run_one(struct plan *p)
{
    struct tsr_config *cfg = p->cli->config;
    const char *policy = p->policies[p->n_runs % p->n_policies];
    struct run *run = &p->runs[p->n_runs];
    int err = configure(cfg, p->sizes[p->n_runs / p->n_policies], policy);
    if (err) return err;
    run->policy = policy;
    run->host_size = tsri_config_options(cfg)->host_size;
    struct tsri_replay replay = {.trace = &p->trace,
                                 .config = cfg,
                                 .as_prefix = p->as_prefix,
                                 .disk = p->disk,
                                 .keep = p->keep,
                                 .redis = tsri_cli_flag(p->cli, "redis"),
                                 .s3 = tsri_cli_flag(p->cli, "s3"),
                                 .progress = show,
                                 .arg = p};
    err = tsri_replay_run(&replay, &run->r);
    if (err)
        return tsri_fail(err, "replay: request %" PRIu64 ": %s", run->r.requests + 1, tsr_errmsg());
    p->n_runs++;
    return 0;
}

static int run_all(struct plan *p)
{
    const char *path = tsri_cli_flag(p->cli, "plot");
    int err = 0;
    while (!err && p->n_runs < p->n_sizes * p->n_policies)
        err = run_one(p);
    if (!err && path) err = draw(p, path);
    if (err) return tsri_cli_failed();
    if (!p->cli->json) return print_table(p);
    print_json(p);
    return 0;
}

int tsri_cmd_replay(struct tsri_cli *cli)
{
    double limit = 0x1p52;
    int status = tsri_cli_want_args(cli, 0, 1);
    if (!status) status = tsri_cli_config(cli);
    if (status) return status;
    struct plan *p = tsri_alloc(1, sizeof *p);
    if (!p) return tsri_cli_fail("no memory");
    p->cli = cli;
    p->name = cli->n_args ? cli->args[0] : "built-in";
    status = read_plan(p);
    if (!status) status = tsri_cli_flag_count(cli, "limit", 1, 0x1p52, &limit);
    int err = 0;
    if (!status)
        err = cli->n_args ? tsri_trace_load(&p->trace, p->name, (size_t)limit)
                          : tsri_trace_builtin(&p->trace, (size_t)limit);
    if (err)
        status = tsri_cli_failed();
    else if (!status)
        status = run_all(p);
    tsri_trace_fini(&p->trace);
    free(p->disk);
    tsri_free(p);
    return status;
}
