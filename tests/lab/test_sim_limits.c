/* test_sim_limits.c - the tightest limit comes first, and numbers are those of the result. */
#include "lab/simulate.h"

#include "support/test.h"

#include <math.h>

static const struct tsri_sim_limit *find(const struct tsri_sim_limit *limits, uint32_t n,
                                         const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(limits[i].name, name) == 0) return &limits[i];
    return NULL;
}

TEST(what_is_needed_most_beside_its_limit_comes_first)
{
    struct tsr_config *config;
    struct tsri_sim_limit limits[TSRI_SIM_LIMITS_MAX];
    CHECK(tsr_config_open(&config) == 0);
    struct tsri_sim_desc d = {.config = config, .n_redis = 4, .s3 = true};
    struct tsri_sim_result r = {.n_caches = 100, .seconds = 10, .hot_redis_reads = 3};
    r.redis_node_bytes_max = 25000000000u;       /* 20 Gbit/s */
    r.read_bytes[TSRI_SIM_REDIS] = 50000000000u; /* 0.4 Gbit/s of a machine */
    r.reads[TSRI_SIM_REDIS] = 50;                /* 1 GB each, 3 of the hot one: 2.4 Gbit/s */
    r.reads[TSRI_SIM_S3] = 110000;               /* 11000 a second, and no listings */
    struct tsri_sim_index index = {1000, 100};
    struct tsri_sim_networks net = {10, 25, 0.05};
    uint32_t n = tsri_sim_limits(&d, &r, &index, &net, limits);
    CHECK(n == 8);
    for (uint32_t i = 0; i + 1 < n; i++)
        CHECK(limits[i].used / limits[i].limit >= limits[i + 1].used / limits[i + 1].limit);
    CHECK(strcmp(limits[0].name, "reads and listings of the bucket") == 0);
    CHECK(fabs(limits[0].used - 11000) < 1e-6 && limits[0].limit == 5500);
    CHECK(strcmp(limits[1].name, "network of the busiest redis node") == 0);
    CHECK(fabs(limits[1].used - 20) < 1e-9 && limits[1].limit == 25);
    const struct tsri_sim_limit *l = find(limits, n, "reads of one hot entry from its redis node");
    CHECK(l && fabs(l->used - 2.4) < 1e-9);
    l = find(limits, n, "network of a machine, mean");
    CHECK(l && fabs(l->used - 0.4) < 1e-9 && l->limit == 10);
    l = find(limits, n, "connections to a redis node");
    CHECK(l && l->used == 100 * 2 * 3); /* redis_connections, io_threads and the writer */
    d.n_redis = 0;
    d.s3 = false;
    CHECK(tsri_sim_limits(&d, &r, &index, &net, limits) == 2);
    tsr_config_close(config);
}

int main(void)
{
    RUN(what_is_needed_most_beside_its_limit_comes_first);
    return test_end();
}
