/* sim_limits.c - what a fleet of this size asks of its parts, beside what these can do; the tightest
 * first. Limits of servers are what their makers state: 10000 clients of a Redis node (its default
 * maxclients), 5500 reads and 3500 writes per second of a prefix of a bucket (Amazon's guidelines). */
#include "lab/simulate.h"

#include <stdlib.h>

#define REDIS_CLIENTS_MAX 10000.0
/* TSRI_REDIS_NODES_MAX of redis/redis.h, which cannot be read in a build without hiredis. */
#define REDIS_NODES_MAX 128.0
#define S3_READS_MAX 5500.0
#define S3_WRITES_MAX 3500.0
#define S3_LIST_NAMES 1000.0 /* of one answer */
#define S3_NAME_BYTES 64.0   /* of a known name: config/options.h, s3_index_max */

static double gbit(double bytes, double seconds)
{
    return seconds > 0 ? bytes * 8e-9 / seconds : 0;
}

static int tighter_first(const void *a, const void *b)
{
    const struct tsri_sim_limit *x = a, *y = b;
    double first = x->used / x->limit, second = y->used / y->limit;
    return first > second ? -1 : first < second;
}

static uint32_t redis_limits(const struct tsri_sim_desc *d, const struct tsri_sim_result *r,
                             const struct tsri_sim_networks *net, struct tsri_sim_limit *out)
{
    const struct tsri_options *o = tsri_config_options(d->config);
    double reads = (double)(r->reads[TSRI_SIM_REDIS] ? r->reads[TSRI_SIM_REDIS] : 1);
    double entry_bytes = (double)r->read_bytes[TSRI_SIM_REDIS] / reads;
    uint32_t n = 0;
    out[n++] = (struct tsri_sim_limit){"network of the busiest redis node",
                                       gbit((double)r->redis_node_bytes_max, r->seconds),
                                       net->redis_gbit, "Gbit/s",
                                       "more nodes, or a store that uses RDMA and all NICs "
                                       "(Mooncake)"};
    out[n++] = (struct tsri_sim_limit){"reads of one hot entry from its redis node",
                                       gbit((double)r->hot_redis_reads * entry_bytes, r->seconds),
                                       net->redis_gbit, "Gbit/s",
                                       "more host memory, or routing by prefix: more nodes do not "
                                       "help"};
    out[n++] = (struct tsri_sim_limit){
        "connections to a redis node",
        (double)r->n_caches * o->redis_connections * (o->io_threads + 1), REDIS_CLIENTS_MAX,
        "clients", "a tesserad per machine, and a cluster per group of machines"};
    out[n++] = (struct tsri_sim_limit){"redis nodes of one cluster", d->n_redis, REDIS_NODES_MAX,
                                       "nodes", "a cluster per group of machines"};
    return n;
}

static uint32_t s3_limits(const struct tsri_sim_desc *d, const struct tsri_sim_result *r,
                          struct tsri_sim_limit *out)
{
    const struct tsri_options *o = tsri_config_options(d->config);
    double seconds = r->seconds > 0 ? r->seconds : 1;
    double lists =
        o->s3_list_s ? (double)r->n_caches * ((double)r->s3_entries / S3_LIST_NAMES) / o->s3_list_s
                     : 0;
    uint32_t n = 0;
    out[n++] = (struct tsri_sim_limit){
        "reads and listings of the bucket", (double)r->reads[TSRI_SIM_S3] / seconds + lists,
        S3_READS_MAX, "requests/s", "s3_list_s: 86400, and a prefix per group of machines"};
    out[n++] = (struct tsri_sim_limit){
        "writes to the bucket", (double)r->writes[TSRI_SIM_S3] / seconds, S3_WRITES_MAX,
        "requests/s", "s3_admission: second_touch, larger chunk_size"};
    return n;
}

uint32_t tsri_sim_limits(const struct tsri_sim_desc *d, const struct tsri_sim_result *r,
                         const struct tsri_sim_index *index, const struct tsri_sim_networks *net,
                         struct tsri_sim_limit out[TSRI_SIM_LIMITS_MAX])
{
    const struct tsri_options *o = tsri_config_options(d->config);
    double names = (double)(r->s3_entries < o->s3_index_max ? r->s3_entries : o->s3_index_max);
    double bytes = (double)r->host_entries_max * index->host_bytes +
                   (double)r->cold_entries_max * index->cold_bytes + names * S3_NAME_BYTES;
    double moved = 0;
    uint32_t n = 0;
    for (int t = TSRI_SIM_REDIS; t < TSRI_SIM_TIERS; t++)
        moved += (double)(r->read_bytes[t] + r->write_bytes[t]);
    out[n++] = (struct tsri_sim_limit){
        "network of a machine, mean", gbit(moved / r->n_caches, r->seconds), net->engine_gbit,
        "Gbit/s", "routing by prefix, more host memory, a local disk"};
    out[n++] = (struct tsri_sim_limit){"index of the largest cache", bytes / 0x1p20,
                                       (double)o->host_size * net->memory_share / 0x1p20, "MiB",
                                       "larger chunk_size, smaller s3_index_max"};
    if (d->n_redis) n += redis_limits(d, r, net, out + n);
    if (d->s3) n += s3_limits(d, r, out + n);
    qsort(out, n, sizeof *out, tighter_first);
    return n;
}
