/* test_sim_servers.c - a simulated Redis node holds what fits, evicts values and not entries, and loses
 * all; a bucket keeps everything. */
#include "lab/simulate.h"

#include "support/test.h"

#include <stdlib.h>

#define TOKENS 100u
#define TOKEN_BYTES 64u
#define EXTRA 1000u
#define ENTRY_BYTES (TOKENS * (TOKEN_BYTES + 4) + EXTRA)

/* Servers with n_texts texts that nobody has stored yet. */
struct kit {
    struct tsr_config *config;
    struct tsri_sim_desc desc;
    struct tsri_sim_result result;
    struct tsri_sim sim;
};

static void open_kit(struct kit *k, uint32_t n_redis, uint64_t redis_bytes, uint32_t n_texts)
{
    *k = (struct kit){.desc = {.n_redis = n_redis,
                               .redis_bytes = redis_bytes,
                               .redis_extra = EXTRA,
                               .n_layers = 32,
                               .s3 = true}};
    CHECK(tsr_config_open(&k->config) == 0);
    k->sim = (struct tsri_sim){.desc = &k->desc,
                               .options = tsri_config_options(k->config),
                               .token_bytes = TOKEN_BYTES,
                               .redis = calloc(n_redis, sizeof *k->sim.redis),
                               .result = &k->result};
    for (uint32_t i = 0, text; i < n_texts; i++) {
        struct tsri_key key = {i, tsri_sim_mix(i + 1)};
        CHECK(tsri_sim_texts_add(&k->sim.texts, key, TOKENS, &text) == 0 && text == i);
    }
}

/* The servers let go of every text: only the kit still holds it. */
static void close_kit(struct kit *k)
{
    for (uint32_t i = 0; i < k->desc.n_redis; i++)
        tsri_sim_redis_lose(&k->sim, i);
    for (uint32_t i = 0; i < k->sim.texts.n; i++) {
        tsri_sim_drop(&k->sim, TSRI_SIM_S3, i);
        CHECK(k->sim.texts.all[i].n_held == 1);
    }
    for (uint32_t i = 0; i < k->desc.n_redis; i++)
        free(k->sim.redis[i].values);
    free(k->sim.redis);
    tsri_sim_texts_fini(&k->sim.texts);
    tsr_config_close(k->config);
}

static uint32_t n_readable(struct kit *k, uint32_t n_texts)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_texts; i++)
        n += tsri_sim_read(&k->sim, TSRI_SIM_REDIS, i);
    return n;
}

TEST(what_is_written_is_read_and_counted)
{
    struct kit k;
    open_kit(&k, 1, 10 * ENTRY_BYTES, 10);
    CHECK(!tsri_sim_has(&k.sim, TSRI_SIM_REDIS, 3) && !tsri_sim_read(&k.sim, TSRI_SIM_REDIS, 3));
    for (uint32_t i = 0; i < 10; i++)
        CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, i) == 1);
    CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, 5) == 1); /* it is there: nothing is sent */
    CHECK(k.result.writes[TSRI_SIM_REDIS] == 10 && k.result.redis_evicted == 0);
    CHECK(n_readable(&k, 10) == 10);
    CHECK(k.result.read_bytes[TSRI_SIM_REDIS] == 10 * TOKENS * TOKEN_BYTES);
    CHECK(k.sim.redis[0].bytes_moved == 20 * TOKENS * TOKEN_BYTES);
    CHECK(k.result.redis_entries == 10);
    close_kit(&k);
}

TEST(a_full_node_evicts_values_that_were_not_used_for_longest)
{
    struct kit k;
    open_kit(&k, 1, 100 * ENTRY_BYTES, 300);
    for (uint32_t i = 0; i < 300; i++) {
        k.sim.now_s = i;
        CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, i) == 1);
        CHECK(k.sim.redis[0].bytes_used <= k.desc.redis_bytes);
    }
    CHECK(k.result.redis_evicted > 0);
    uint32_t old = 0, young = 0;
    for (uint32_t i = 0; i < 300; i++)
        if (tsri_sim_read(&k.sim, TSRI_SIM_REDIS, i)) ++*(i < 150 ? &old : &young);
    /* Parts without a record and records without parts take some of the room. */
    CHECK(old <= 5 && young >= 60 && young <= 100);
    CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, 0) == 1 &&
          tsri_sim_read(&k.sim, TSRI_SIM_REDIS, 0));
    close_kit(&k);
}

TEST(an_entry_without_one_of_its_parts_is_found_and_cannot_be_read)
{
    struct kit k;
    open_kit(&k, 1, 100 * ENTRY_BYTES, 1);
    CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, 0) == 1);
    k.sim.redis[0].values[0].n_parts--;
    CHECK(tsri_sim_has(&k.sim, TSRI_SIM_REDIS, 0) && !tsri_sim_read(&k.sim, TSRI_SIM_REDIS, 0));
    tsri_sim_drop(&k.sim, TSRI_SIM_REDIS, 0);
    CHECK(!tsri_sim_has(&k.sim, TSRI_SIM_REDIS, 0) && k.sim.redis[0].n == 0);
    close_kit(&k);
}

TEST(nodes_share_the_entries_and_one_can_be_lost)
{
    struct kit k;
    open_kit(&k, 4, 1000 * ENTRY_BYTES, 400);
    for (uint32_t i = 0; i < 400; i++)
        CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, i) == 1);
    uint32_t n = k.sim.redis[2].n;
    for (uint32_t i = 0; i < 4; i++)
        CHECK(k.sim.redis[i].n > 60 && k.sim.redis[i].n < 140);
    tsri_sim_redis_lose(&k.sim, 2);
    CHECK(k.sim.redis[2].n == 0 && k.sim.redis[2].bytes_used == 0);
    CHECK(n_readable(&k, 400) == 400 - n && k.result.redis_entries == 400 - n);
    close_kit(&k);
}

TEST(an_entry_larger_than_a_node_is_refused)
{
    struct kit k;
    open_kit(&k, 1, ENTRY_BYTES - 1, 1);
    CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, 0) == 0 && k.result.writes[TSRI_SIM_REDIS] == 0);
    close_kit(&k);
}

TEST(a_bucket_keeps_everything)
{
    struct kit k;
    open_kit(&k, 1, ENTRY_BYTES, 50);
    for (uint32_t i = 0; i < 50; i++)
        CHECK(tsri_sim_write(&k.sim, TSRI_SIM_S3, i) == 1);
    for (uint32_t i = 0; i < 50; i++)
        CHECK(tsri_sim_has(&k.sim, TSRI_SIM_S3, i) && tsri_sim_read(&k.sim, TSRI_SIM_S3, i));
    CHECK(k.result.s3_entries == 50 && k.result.asked[TSRI_SIM_S3] == 50);
    tsri_sim_drop(&k.sim, TSRI_SIM_S3, 7);
    CHECK(!tsri_sim_has(&k.sim, TSRI_SIM_S3, 7) && k.result.s3_entries == 49);
    close_kit(&k);
}

int main(void)
{
    RUN(what_is_written_is_read_and_counted);
    RUN(a_full_node_evicts_values_that_were_not_used_for_longest);
    RUN(an_entry_without_one_of_its_parts_is_found_and_cannot_be_read);
    RUN(nodes_share_the_entries_and_one_can_be_lost);
    RUN(an_entry_larger_than_a_node_is_refused);
    RUN(a_bucket_keeps_everything);
    return test_end();
}
