/* sim_print.c - what a simulation found, as tables or as JSON. */
#include "lab/simulate.h"

#include <inttypes.h>

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static bool has_tier(const struct tsri_sim_desc *d, int t)
{
    if (t == TSRI_SIM_DISK) return d->disk;
    if (t == TSRI_SIM_REDIS) return d->n_redis > 0;
    return t != TSRI_SIM_S3 || d->s3;
}

static uint64_t reused(const struct tsri_sim_result *r)
{
    uint64_t n = 0;
    for (int t = 0; t < TSRI_SIM_TIERS; t++)
        n += r->tokens_from[t];
    return n;
}

/* Of the second half: the first one also fills empty caches. */
static double later_rate(const struct tsri_sim_result *r)
{
    double asked = 0, found = 0;
    for (uint32_t i = TSRI_SIM_WINDOWS / 2; i < TSRI_SIM_WINDOWS; i++) {
        asked += (double)r->windows[i].tokens_asked;
        found += (double)r->windows[i].tokens_reused;
    }
    return share(found, asked);
}

static double hot_share(const struct tsri_sim_result *r)
{
    return share((double)r->hot[0], (double)r->requests);
}

static double busiest(double most, double all, double n)
{
    return share(most * n, all);
}

static double redis_moved(const struct tsri_sim_result *r)
{
    return (double)(r->read_bytes[TSRI_SIM_REDIS] + r->write_bytes[TSRI_SIM_REDIS]);
}

/* ---- tables ---- */

static int print_tiers(const struct tsri_sim_report *p)
{
    const struct tsri_sim_result *r = p->result;
    struct tsri_table t;
    tsri_table_init(&t, "lrrrrrr",
                    "tier|hit rate|read|written|entries read|entries written|Gbit/s");
    for (int i = 0; i < TSRI_SIM_TIERS; i++) {
        char read[32], written[32];
        if (!has_tier(p->desc, i)) continue;
        double bits = (double)(r->read_bytes[i] + r->write_bytes[i]) * 8;
        tsri_table_add(&t, "%s", tsri_sim_tier_names[i]);
        tsri_table_add(&t, "%.1f %%",
                       100 * share((double)r->tokens_from[i], (double)r->tokens_asked));
        tsri_table_add(&t, "%s", i ? tsri_cli_size(r->read_bytes[i], read) : "-");
        tsri_table_add(&t, "%s", i ? tsri_cli_size(r->write_bytes[i], written) : "-");
        tsri_table_add(&t, "%" PRIu64, r->reads[i]);
        tsri_table_add(&t, "%" PRIu64, r->writes[i]);
        tsri_table_add(&t, "%.1f", share(bits * 1e-9, r->seconds));
    }
    return tsri_table_print(&t, p->cli);
}

static int print_limits(const struct tsri_sim_report *p)
{
    struct tsri_sim_limit limits[TSRI_SIM_LIMITS_MAX];
    uint32_t n = tsri_sim_limits(p->desc, p->result, &p->index, &p->networks, limits);
    struct tsri_table t;
    tsri_table_init(&t, "lrrlrl", "what breaks first|needed|limit|unit|share|then");
    for (uint32_t i = 0; i < n; i++) {
        tsri_table_add(&t, "%s", limits[i].name);
        tsri_table_add(&t, "%.1f", limits[i].used);
        tsri_table_add(&t, "%.1f", limits[i].limit);
        tsri_table_add(&t, "%s", limits[i].unit);
        tsri_table_add(&t, "%.0f %%", 100 * share(limits[i].used, limits[i].limit));
        tsri_table_add(&t, "%s", limits[i].used > limits[i].limit ? limits[i].then : "");
    }
    return tsri_table_print(&t, p->cli);
}

static void print_loss(const struct tsri_sim_report *p)
{
    struct tsri_sim_loss loss;
    if (!p->desc->lose_engines && !p->desc->lose_redis) return;
    tsri_sim_loss(p->desc, p->result, &loss);
    printf("lost %u engines and %u redis nodes at %.0f s: hit rate %.1f %% before, %.1f %% after, ",
           p->desc->lose_engines, p->desc->lose_redis, p->desc->lose_at * p->result->seconds,
           100 * loss.before, 100 * loss.after);
    if (loss.recovered_s < 0)
        puts("never 95 % of it again");
    else
        printf("95 %% of it again after %.0f s (windows of %.0f s)\n", loss.recovered_s,
               p->result->seconds / TSRI_SIM_WINDOWS);
}

static int print_text(const struct tsri_sim_report *p)
{
    const struct tsri_sim_desc *d = p->desc;
    const struct tsri_sim_result *r = p->result;
    printf("%u engines, %u caches, %u copies of the trace: %" PRIu64 " requests in %.0f s, %" PRIu64
           " tokens\n"
           "hit rate %.1f %%, in the second half %.1f %%\n\n",
           d->n_engines, r->n_caches, d->n_copies, r->requests, r->seconds, r->tokens_asked,
           100 * share((double)reused(r), (double)r->tokens_asked), 100 * later_rate(r));
    int status = print_tiers(p);
    if (status) return status;
    printf("\nindex: %.0f bytes an entry in host memory, %.0f where only a server has it; "
           "%" PRIu64 " and %" PRIu64 " entries in all\n",
           p->index.host_bytes, p->index.cold_bytes, r->host_entries, r->cold_entries);
    printf("hottest text: in %.1f %% of requests; tenth hottest: in %.2f %%\n", 100 * hot_share(r),
           100 * share((double)r->hot[TSRI_SIM_HOT - 1], (double)r->requests));
    printf("busiest cache: %.2f of the mean of requests\n",
           busiest((double)r->engine_requests_max, (double)r->requests, r->n_caches));
    if (d->n_redis)
        printf(
            "busiest redis node: %.2f of the mean of bytes; its hottest entry: %.1f %% of reads; "
            "%" PRIu64 " evicted, %" PRIu64 " loads came too late\n",
            busiest((double)r->redis_node_bytes_max, redis_moved(r), d->n_redis),
            100 * share((double)r->hot_redis_reads, (double)r->reads[TSRI_SIM_REDIS]),
            r->redis_evicted, r->lost);
    print_loss(p);
    puts("");
    return print_limits(p);
}

/* ---- JSON ---- */

static void json_tiers(const struct tsri_sim_report *p)
{
    const struct tsri_sim_result *r = p->result;
    printf(",\n\"tiers\":{");
    for (int i = 0, n = 0; i < TSRI_SIM_TIERS; i++) {
        if (!has_tier(p->desc, i)) continue;
        printf("%s\n\"%s\":{\"tokens\":%" PRIu64 ",\"hit_rate\":%.6f,\"read_bytes\":%" PRIu64
               ",\"write_bytes\":%" PRIu64 ",\"reads\":%" PRIu64 ",\"writes\":%" PRIu64
               ",\"asked\":%" PRIu64 "}",
               n++ ? "," : "", tsri_sim_tier_names[i], r->tokens_from[i],
               share((double)r->tokens_from[i], (double)r->tokens_asked), r->read_bytes[i],
               r->write_bytes[i], r->reads[i], r->writes[i], r->asked[i]);
    }
    putchar('}');
}

static void json_limits(const struct tsri_sim_report *p)
{
    struct tsri_sim_limit limits[TSRI_SIM_LIMITS_MAX];
    uint32_t n = tsri_sim_limits(p->desc, p->result, &p->index, &p->networks, limits);
    printf(",\n\"limits\":[");
    for (uint32_t i = 0; i < n; i++)
        printf("%s\n{\"name\":\"%s\",\"needed\":%.3f,\"limit\":%.3f,\"unit\":\"%s\"}", i ? "," : "",
               limits[i].name, limits[i].used, limits[i].limit, limits[i].unit);
    putchar(']');
}

static void json_loss(const struct tsri_sim_report *p)
{
    struct tsri_sim_loss loss;
    if (!p->desc->lose_engines && !p->desc->lose_redis) return;
    tsri_sim_loss(p->desc, p->result, &loss);
    printf(",\n\"loss\":{\"engines\":%u,\"redis\":%u,\"before\":%.6f,\"after\":%.6f,"
           "\"recovered_s\":%.1f}",
           p->desc->lose_engines, p->desc->lose_redis, loss.before, loss.after, loss.recovered_s);
}

static void print_json(const struct tsri_sim_report *p)
{
    const struct tsri_sim_desc *d = p->desc;
    const struct tsri_sim_result *r = p->result;
    tsri_cli_json("{\"trace\":", p->trace);
    printf(",\"engines\":%u,\"caches\":%u,\"copies\":%u,\"seconds\":%.1f,\"requests\":%" PRIu64
           ",\"tokens_asked\":%" PRIu64 ",\"tokens_reused\":%" PRIu64
           ",\"hit_rate\":%.6f,\"hit_rate_second_half\":%.6f,\"evictions\":%" PRIu64
           ",\"refused\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"texts\":%" PRIu64,
           d->n_engines, r->n_caches, d->n_copies, r->seconds, r->requests, r->tokens_asked,
           reused(r), share((double)reused(r), (double)r->tokens_asked), later_rate(r), r->evicted,
           r->refused, r->lost, r->texts);
    json_tiers(p);
    printf(",\n\"index\":{\"host_entry_bytes\":%.0f,\"cold_entry_bytes\":%.0f,\"host_entries\":"
           "%" PRIu64 ",\"cold_entries\":%" PRIu64 ",\"host_entries_max\":%" PRIu64
           ",\"cold_entries_max\":%" PRIu64 ",\"s3_entries\":%" PRIu64 "}",
           p->index.host_bytes, p->index.cold_bytes, r->host_entries, r->cold_entries,
           r->host_entries_max, r->cold_entries_max, r->s3_entries);
    printf(",\n\"hot\":{\"text\":%.6f,\"tenth\":%.6f,\"cache\":%.4f,\"redis_node\":%.4f,"
           "\"redis_entry\":%.6f,\"redis_evictions\":%" PRIu64 "}",
           hot_share(r), share((double)r->hot[TSRI_SIM_HOT - 1], (double)r->requests),
           busiest((double)r->engine_requests_max, (double)r->requests, r->n_caches),
           busiest((double)r->redis_node_bytes_max, redis_moved(r), d->n_redis),
           share((double)r->hot_redis_reads, (double)r->reads[TSRI_SIM_REDIS]), r->redis_evicted);
    json_loss(p);
    json_limits(p);
    printf(",\n\"windows\":[");
    for (uint32_t i = 0; i < TSRI_SIM_WINDOWS; i++)
        printf("%s%.4f", i ? "," : "",
               share((double)r->windows[i].tokens_reused, (double)r->windows[i].tokens_asked));
    puts("]}");
}

int tsri_sim_print(const struct tsri_sim_report *report)
{
    if (!report->cli->json) return print_text(report);
    print_json(report);
    return 0;
}
