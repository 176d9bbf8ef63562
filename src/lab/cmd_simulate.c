/* cmd_simulate.c - `tessera-lab simulate`: a fleet of thousands of engines over an access trace,
 * without their machines (simulate.c). Reads the flags, measures the index and prints what was
 * found. */
#include "lab/simulate.h"

#include <math.h>
#include <stdlib.h>

#define RATE 0.3    /* requests per second of an engine, if nobody says */
#define COMMON 0.01 /* share of requests from which on a text is everybody's */
#define REDIS_SIZE_MIN ((uint64_t)1 << 20)
#define REDIS_EXTRA 1700.0 /* measured: docs/scale.md */
#define MEMORY_SHARE 0.05  /* of host memory, for the index */
#define COPIES_MAX 0x1p20

struct sim_plan {
    struct tsri_cli *cli;
    struct tsri_trace trace;
    const char *name;
    struct tsri_sim_desc desc;
    struct tsri_sim_networks networks;
    struct tsri_sim_index index;
    bool index_given;
    struct tsri_sim_result result;
};

/* ---- flags ---- */

/* "16x64G": a count and a size. */
static bool read_pair(const char *text, uint64_t *count, uint64_t *size)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (end == text || *end != 'x' || text[0] == '-' || !tsri_parse_size(end + 1, size))
        return false;
    *count = n;
    return true;
}

static int read_kv(struct sim_plan *p)
{
    const char *kv = tsri_cli_flag(p->cli, "kv");
    uint64_t n = 32, bytes = 2048;
    if (kv && (!read_pair(kv, &n, &bytes) || n < 1 || n > TSRI_SPACE_LAYERS_MAX || bytes < 2 ||
               bytes % 2 || bytes > TSRI_SPACE_DIM_MAX))
        return tsri_cli_usage(p->cli, "--kv=%s: must be LAYERSxBYTES, such as 32x2048", kv);
    p->desc.n_layers = (uint32_t)n;
    p->desc.row_bytes = (uint32_t)bytes;
    return 0;
}

static int read_redis(struct sim_plan *p)
{
    const char *redis = tsri_cli_flag(p->cli, "redis");
    uint64_t n = 0, bytes = 0;
    double extra = REDIS_EXTRA;
    if (redis && (!read_pair(redis, &n, &bytes) || n < 1 || n > TSRI_SIM_REDIS_MAX ||
                  bytes < REDIS_SIZE_MIN))
        return tsri_cli_usage(p->cli, "--redis=%s: must be NODESxSIZE, such as 16x64G", redis);
    int status = tsri_cli_flag_count(p->cli, "redis-extra", 0, 0x1p30, &extra);
    p->desc.n_redis = (uint32_t)n;
    p->desc.redis_bytes = bytes;
    p->desc.redis_extra = (uint64_t)extra;
    return status;
}

static int read_choice(struct sim_plan *p, const char *flag, const char *no, const char *yes,
                       bool *out)
{
    const char *value = tsri_cli_flag(p->cli, flag);
    if (value && strcmp(value, no) != 0 && strcmp(value, yes) != 0)
        return tsri_cli_usage(p->cli, "--%s=%s: must be %s or %s", flag, value, no, yes);
    *out = value && strcmp(value, yes) == 0;
    return 0;
}

static int read_index(struct sim_plan *p)
{
    const char *text = tsri_cli_flag(p->cli, "index-bytes");
    if (!text) return 0;
    char *end;
    p->index.host_bytes = strtod(text, &end);
    if (*end == ',') p->index.cold_bytes = strtod(end + 1, &end);
    if (*end || !(p->index.host_bytes > 0) || !(p->index.cold_bytes > 0))
        return tsri_cli_usage(p->cli, "--index-bytes=%s: must be HOST,COLD", text);
    p->index_given = true;
    return 0;
}

/* How much of the trace's traffic a fleet of this size has. */
static int read_copies(struct sim_plan *p)
{
    double rate = RATE, copies = 0, duration = p->trace.duration_s;
    if (!(duration > 0)) duration = (double)p->trace.n_requests;
    int status = tsri_cli_flag_number(p->cli, "rate", 1e-6, 1e6, &rate);
    if (!status) status = tsri_cli_flag_number(p->cli, "duration", 1e-3, 1e9, &duration);
    if (!status) status = tsri_cli_flag_count(p->cli, "copies", 1, COPIES_MAX, &copies);
    if (status) return status;
    if (copies == 0)
        copies = round(p->desc.n_engines * rate * duration / (double)p->trace.n_requests);
    if (copies > COPIES_MAX)
        return tsri_cli_usage(p->cli, "%.0f copies of the trace: use a lower --rate", copies);
    p->desc.n_copies = copies < 1 ? 1 : (uint32_t)copies;
    p->desc.duration_s = duration;
    return 0;
}

/* Whole numbers and shares. */
static int read_numbers(struct sim_plan *p)
{
    double engines = 1000, per_daemon = 1, seed = 1, lose_engines = 0, lose_redis = 0;
    p->desc.common = COMMON;
    p->desc.lose_at = 0.5;
    p->networks = (struct tsri_sim_networks){25, 25, MEMORY_SHARE};
    struct tsri_cli *cli = p->cli;
    int status = tsri_cli_flag_count(cli, "engines", 1, TSRI_SIM_ENGINES_MAX, &engines);
    if (!status) status = tsri_cli_flag_count(cli, "per-daemon", 1, 1024, &per_daemon);
    if (!status) status = tsri_cli_flag_count(cli, "seed", 0, 0x1p52, &seed);
    if (!status) status = tsri_cli_flag_count(cli, "lose-engines", 0, engines, &lose_engines);
    if (!status)
        status = tsri_cli_flag_count(cli, "lose-redis", 0, TSRI_SIM_REDIS_MAX, &lose_redis);
    if (!status) status = tsri_cli_flag_number(cli, "lose-at", 0.02, 0.98, &p->desc.lose_at);
    if (!status) status = tsri_cli_flag_number(cli, "common", 0, 2, &p->desc.common);
    if (!status)
        status = tsri_cli_flag_number(cli, "engine-gbit", 1e-3, 1e6, &p->networks.engine_gbit);
    if (!status)
        status = tsri_cli_flag_number(cli, "redis-gbit", 1e-3, 1e6, &p->networks.redis_gbit);
    p->desc.n_engines = (uint32_t)engines;
    p->desc.per_cache = (uint32_t)per_daemon;
    p->desc.seed = (uint64_t)seed;
    p->desc.lose_engines = (uint32_t)lose_engines;
    p->desc.lose_redis = (uint32_t)lose_redis;
    return status;
}

/* A tesserad has the memory and the disk of all its engines. */
static int scale_option(struct sim_plan *p, const char *flag, const char *option)
{
    const char *text = tsri_cli_flag(p->cli, flag);
    uint64_t bytes = 0;
    char all[32];
    if (text && !tsri_parse_size(text, &bytes))
        return tsri_cli_usage(p->cli, "--%s=%s: must be a size", flag, text);
    if (!text) bytes = tsri_config_options(p->cli->config)->host_size;
    snprintf(all, sizeof all, "%llu", (unsigned long long)bytes * p->desc.per_cache);
    if (tsr_config_set(p->cli->config, option, all) < 0)
        return tsri_cli_usage(p->cli, "--%s: %s", flag, tsr_errmsg());
    return 0;
}

static int read_plan(struct sim_plan *p)
{
    p->desc.s3 = tsri_cli_flag(p->cli, "s3") != NULL;
    p->desc.disk = tsri_cli_flag(p->cli, "disk-size") != NULL;
    int status = read_numbers(p);
    if (!status) status = read_copies(p);
    if (!status) status = read_kv(p);
    if (!status) status = read_redis(p);
    if (!status) status = read_index(p);
    if (!status) status = read_choice(p, "as", "trace", "prefix", &p->desc.as_prefix);
    if (!status) status = read_choice(p, "route", "spread", "prefix", &p->desc.route_prefix);
    if (!status) status = scale_option(p, "host-size", "host_size");
    if (!status && p->desc.disk) status = scale_option(p, "disk-size", "disk_size");
    if (!status && p->desc.lose_redis > p->desc.n_redis)
        status = tsri_cli_usage(p->cli, "--lose-redis: there are %u nodes", p->desc.n_redis);
    return status;
}

/* ---- the run ---- */

static void show(void *arg, uint64_t n_done, uint64_t n)
{
    (void)arg;
    tsri_cli_progress("requests", n_done, n);
}

static int run(struct sim_plan *p)
{
    p->desc.trace = &p->trace;
    p->desc.config = p->cli->config;
    p->desc.progress = show;
    /* Before the simulation, which makes the process grow too. */
    int err =
        p->index_given
            ? 0
            : tsri_sim_index_measure(&p->index, tsri_config_options(p->cli->config)->chunk_size);
    if (!err) err = tsri_simulate(&p->desc, &p->result);
    tsri_cli_progress_end();
    if (err) return tsri_cli_failed();
    struct tsri_sim_report report = {.cli = p->cli,
                                     .trace = p->name,
                                     .desc = &p->desc,
                                     .result = &p->result,
                                     .index = p->index,
                                     .networks = p->networks};
    return tsri_sim_print(&report);
}

int tsri_cmd_simulate(struct tsri_cli *cli)
{
    double limit = 0x1p52;
    int status = tsri_cli_want_args(cli, 0, 1);
    if (!status) status = tsri_cli_config(cli);
    if (!status) status = tsri_cli_flag_count(cli, "limit", 1, 0x1p52, &limit);
    if (status) return status;
    struct sim_plan *p = tsri_alloc(1, sizeof *p);
    if (!p) return tsri_cli_fail("no memory");
    p->cli = cli;
    p->name = cli->n_args ? cli->args[0] : "built-in";
    int err = cli->n_args ? tsri_trace_load(&p->trace, p->name, (size_t)limit)
                          : tsri_trace_builtin(&p->trace, (size_t)limit);
    status = err ? tsri_cli_failed() : read_plan(p);
    if (!status) status = run(p);
    tsri_trace_fini(&p->trace);
    tsri_free(p);
    return status;
}
