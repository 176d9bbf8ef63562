/* test_sim_cache.c - one simulated cache: the same steps as the library's, with results known by hand. */
#include "lab/simulate.h"

#include "support/test.h"

#include <stdlib.h>

#define TOKENS 64u /* of a text: one page */

struct kit {
    struct tsr_config *config;
    struct tsri_sim_desc desc;
    struct tsri_sim_result result;
    struct tsri_sim sim;
    struct tsri_sim_cache cache;
};

/* A cache of 256 pages, least recently used goes first, and texts 0 to 999. */
static void open_kit(struct kit *k, bool disk, bool redis)
{
    struct tsr_space_desc space = {.size = sizeof space,
                                   .model = "x",
                                   .dtype = TSR_DTYPE_F16,
                                   .n_layers = 1,
                                   .n_heads = 1,
                                   .k_dim = 16};
    *k = (struct kit){.desc = {.disk = disk,
                               .n_redis = redis,
                               .redis_bytes = (uint64_t)1 << 30,
                               .n_layers = 1,
                               .row_bytes = 32}};
    CHECK(tsr_config_open(&k->config) == 0);
    CHECK(tsr_config_set(k->config, "host_size", "1M") == 0);
    CHECK(tsr_config_set(k->config, "host_page_size", "4K") == 0);
    CHECK(tsr_config_set(k->config, "disk_size", "64M") == 0);
    CHECK(tsr_config_set(k->config, "policy", "lru") == 0);
    k->desc.config = k->config;
    k->sim = (struct tsri_sim){.desc = &k->desc,
                               .options = tsri_config_options(k->config),
                               .redis = calloc(1, sizeof *k->sim.redis),
                               .result = &k->result};
    CHECK(tsri_shape_init(&k->sim.shape, &space, 4096) == 0);
    k->sim.token_bytes = tsri_shape_token_bytes(&k->sim.shape);
    CHECK(k->sim.token_bytes == 64 && tsri_shape_n_pages(&k->sim.shape, TOKENS) == 1);
    for (uint32_t i = 0, text; i < 1000; i++) {
        struct tsri_key key = {tsri_sim_mix(i + 1), i};
        CHECK(tsri_sim_texts_add(&k->sim.texts, key, TOKENS, &text) == 0);
    }
    CHECK(tsri_sim_cache_init(&k->cache, &k->sim, 1000, 512) == 0);
}

/* The cache and the server let go of every text: only the kit still holds it. */
static void close_kit(struct kit *k)
{
    tsri_sim_cache_forget(&k->cache);
    tsri_sim_cache_fini(&k->cache);
    tsri_sim_redis_lose(&k->sim, 0);
    for (uint32_t i = 0; i < k->sim.texts.n; i++)
        CHECK(k->sim.texts.all[i].n_held == 1);
    free(k->sim.redis->values);
    free(k->sim.redis);
    tsri_sim_texts_fini(&k->sim.texts);
    tsr_config_close(k->config);
}

/* Tokens reused, in texts, of a request for n of them from `first` on. */
static int64_t ask(struct kit *k, uint32_t first, uint32_t n, bool prefix)
{
    uint32_t texts[512];
    for (uint32_t i = 0; i < n; i++)
        texts[i] = first + i;
    int64_t tokens = tsri_sim_cache_ask(&k->cache, texts, n, prefix);
    CHECK(tokens >= 0 && k->cache.pages_used <= k->cache.pages_max);
    CHECK(k->cache.pages_used == k->cache.n_host);
    return tokens / TOKENS;
}

TEST(segments_are_found_again_and_the_oldest_go_first)
{
    struct kit k;
    open_kit(&k, false, false);
    CHECK(ask(&k, 0, 200, false) == 0 && ask(&k, 100, 100, false) == 100);
    CHECK(ask(&k, 200, 100, false) == 0); /* 300 in 256 pages: 0 to 43 are gone */
    CHECK(k.result.evicted == 44);
    CHECK(ask(&k, 44, 1, false) == 1 && ask(&k, 43, 1, false) == 0);
    CHECK(k.result.tokens_from[TSRI_SIM_HOST] == 101 * TOKENS);
    close_kit(&k);
}

TEST(a_prefix_is_found_up_to_its_first_block_that_is_missing)
{
    struct kit k;
    open_kit(&k, false, false);
    uint32_t other[] = {0, 1, 2, 500, 4};
    CHECK(ask(&k, 0, 10, true) == 0 && ask(&k, 0, 10, true) == 10);
    CHECK(tsri_sim_cache_ask(&k.cache, other, 5, true) == 3 * TOKENS);
    CHECK(ask(&k, 1, 5, true) == 5); /* keys say what came before; here a text is its own */
    close_kit(&k);
}

TEST(chains_lose_their_ends_first)
{
    struct kit k;
    open_kit(&k, false, false);
    CHECK(ask(&k, 0, 200, true) == 0);
    CHECK(ask(&k, 300, 100, true) == 0); /* 44 blocks must go */
    CHECK(ask(&k, 0, 156, true) == 156);
    close_kit(&k);
}

TEST(a_prompt_larger_than_memory_keeps_its_beginning)
{
    struct kit k;
    open_kit(&k, false, false);
    CHECK(ask(&k, 0, 300, true) == 0 && k.cache.n_host == 256);
    CHECK(ask(&k, 0, 300, true) == 256);
    close_kit(&k);
}

TEST(what_leaves_host_memory_comes_back_from_the_disk)
{
    struct kit k;
    open_kit(&k, true, false);
    CHECK(ask(&k, 0, 256, false) == 0 && ask(&k, 256, 256, false) == 0);
    CHECK(k.cache.n_cold == 256 && k.result.writes[TSRI_SIM_DISK] == 512);
    CHECK(ask(&k, 0, 100, false) == 100);
    CHECK(k.result.tokens_from[TSRI_SIM_DISK] == 100 * TOKENS && k.result.tokens_from[0] == 0);
    CHECK(k.result.read_bytes[TSRI_SIM_DISK] == 100 * TOKENS * 64);
    CHECK(k.cache.n_cold == 256 && k.cache.n_host == 256);
    close_kit(&k);
}

TEST(a_server_is_asked_for_what_is_not_known_here)
{
    struct kit k;
    open_kit(&k, false, true);
    for (uint32_t i = 0; i < 10; i++)
        CHECK(tsri_sim_write(&k.sim, TSRI_SIM_REDIS, i) == 1); /* by another cache */
    CHECK(ask(&k, 0, 20, true) == 10);
    CHECK(k.result.asked[TSRI_SIM_REDIS] == 20 && k.result.writes[TSRI_SIM_REDIS] == 20);
    CHECK(ask(&k, 0, 20, true) == 20); /* all of it is in host memory now */
    CHECK(k.result.asked[TSRI_SIM_REDIS] == 20 && k.result.reads[TSRI_SIM_REDIS] == 10);
    close_kit(&k);
}

TEST(an_entry_that_the_server_has_lost_is_a_miss_and_then_forgotten)
{
    struct kit k;
    open_kit(&k, false, true);
    CHECK(ask(&k, 0, 256, false) == 0 && ask(&k, 256, 256, false) == 0);
    tsri_sim_redis_lose(&k.sim, 0);
    CHECK(ask(&k, 0, 1, false) == 0 && k.result.lost == 1); /* known, and gone: not stored */
    CHECK(ask(&k, 0, 1, false) == 0 && k.result.lost == 1); /* unknown: stored */
    CHECK(ask(&k, 0, 1, false) == 1);
    close_kit(&k);
}

TEST(an_admission_of_second_touch_writes_what_is_used_again)
{
    struct kit k;
    open_kit(&k, false, true);
    CHECK(tsr_config_set(k.config, "redis_admission", "second_touch") == 0);
    k.sim.options = tsri_config_options(k.config);
    CHECK(ask(&k, 0, 10, true) == 0 && k.result.writes[TSRI_SIM_REDIS] == 0);
    CHECK(ask(&k, 0, 4, true) == 4 && k.result.writes[TSRI_SIM_REDIS] == 4);
    CHECK(ask(&k, 0, 4, true) == 4 && k.result.writes[TSRI_SIM_REDIS] == 4);
    close_kit(&k);
}

TEST(an_index_that_is_full_forgets_what_only_a_server_has)
{
    struct kit k;
    open_kit(&k, false, true);
    tsri_sim_cache_fini(&k.cache);
    CHECK(tsri_sim_cache_init(&k.cache, &k.sim, 300, 512) == 0);
    CHECK(ask(&k, 0, 256, false) == 0 && ask(&k, 256, 256, false) == 0);
    CHECK(k.cache.n_host == 256 && k.cache.n_cold == 44);
    CHECK(ask(&k, 0, 10, false) == 10); /* the server still has them */
    CHECK(k.cache.n_host + k.cache.n_cold <= 300);
    close_kit(&k);
}

int main(void)
{
    RUN(segments_are_found_again_and_the_oldest_go_first);
    RUN(a_prefix_is_found_up_to_its_first_block_that_is_missing);
    RUN(chains_lose_their_ends_first);
    RUN(a_prompt_larger_than_memory_keeps_its_beginning);
    RUN(what_leaves_host_memory_comes_back_from_the_disk);
    RUN(a_server_is_asked_for_what_is_not_known_here);
    RUN(an_entry_that_the_server_has_lost_is_a_miss_and_then_forgotten);
    RUN(an_admission_of_second_touch_writes_what_is_used_again);
    RUN(an_index_that_is_full_forgets_what_only_a_server_has);
    return test_end();
}
