/* Loading pieces layer by layer, turned to their places. */
#include "cache/manager.h"
#include "support/blend_kit.h"
#include "support/lock_kit.h"
#include "support/test.h"

#include <math.h>

/* A document of 100 tokens, computed alone and stored; its KV in the slots of a session. */
static void store_document(struct blend_kit *k)
{
    blend_kit_prompt(k, 1, 0, (const uint32_t[]){100}, 1, NULL);
    CHECK_INT(blend_kit_ask(k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(k->report.n_stored, 100);
}

/* Looks up tokens [from, from + n) of the document as standing at `at` of a prompt. */
static struct tsri_feed_range range_of(struct blend_kit *k, uint32_t from, uint32_t n, uint32_t at)
{
    struct tsr_space *space = tsr_blend_space(k->blend);
    struct tsr_range segment = {0, 100};
    struct tsr_prompt prompt = kit_segment_prompt(k->tokens, 100, &segment);
    struct tsr_match match;
    struct tsr_lookup_desc io = {
        .size = sizeof io, .spaces = &space, .n_spaces = 1, .matches = &match, .matches_max = 1};
    CHECK_INT(tsr_client_lookup(k->cache.client, &prompt, &io), 100);
    match.entry_offset = from;
    match.prompt_offset = at;
    match.n_tokens = n;
    return (struct tsri_feed_range){.match = match, .space = space};
}

static struct tsri_feed_desc desc_of(struct blend_kit *k, const struct tsr_prompt *prompt,
                                     const struct tsri_feed_range *ranges, uint32_t n)
{
    return (struct tsri_feed_desc){.cache = k->cache.cache,
                                   .prompt = prompt,
                                   .device = k->blend->device,
                                   .layout = tsr_session_layout(k->model.session),
                                   .rope = &k->model.info.rope,
                                   .ranges = ranges,
                                   .n_ranges = n};
}

static struct tsri_feed *feed_of(struct blend_kit *k, const struct tsr_prompt *prompt,
                                 const struct tsri_feed_range *ranges, uint32_t n)
{
    struct tsri_feed_desc d = desc_of(k, prompt, ranges, n);
    struct tsri_feed *f;
    CHECK_INT(tsri_feed_open(&f, &d), 0);
    return f;
}

/* A prompt with tokens [20, 80) of the document from slot 300 on. */
static struct tsr_prompt elsewhere(struct blend_kit *k, uint32_t *tokens)
{
    memset(tokens, 0, 512 * sizeof *tokens);
    memcpy(tokens + 300, k->tokens + 20, 60 * sizeof *tokens);
    return (struct tsr_prompt){
        .size = sizeof(struct tsr_prompt), .tokens = tokens, .n_tokens = 512};
}

/* Waits for each layer of tokens [20, 80) at slot 300, and compares. */
static void check_turned(struct blend_kit *k, struct tsri_feed *f)
{
    for (uint32_t l = 0; l < 3; l++) {
        CHECK_INT(tsri_feed_wait(f, l, 5000), 0);
        for (uint32_t i = 0; i < 60; i++) {
            float row[16];
            memcpy(row, model_kit_row(&k->model, 0, l, 20 + i), sizeof row);
            model_kit_turn(&k->model, row, 280);
            const float *got = model_kit_row(&k->model, 0, l, 300 + i);
            for (uint32_t e = 0; e < 16; e++)
                CHECK(fabsf(row[e] - got[e]) < 1e-5f);
            CHECK(memcmp(model_kit_row(&k->model, 1, l, 20 + i),
                         model_kit_row(&k->model, 1, l, 300 + i), sizeof row) == 0);
        }
    }
    CHECK_INT(tsri_feed_result(f, 0), 0);
}

TEST(k_arrives_turned_and_v_as_it_was)
{
    for (uint32_t cold = 0; cold < 2; cold++) {
        struct blend_kit k;
        uint32_t tokens[512];
        blend_kit_open(&k, "qwen2", TSR_DTYPE_F32, 0);
        store_document(&k);
        struct tsri_feed_range range = range_of(&k, 20, 60, 300);
        if (cold) blend_kit_make_cold(&k);
        struct tsr_prompt prompt = elsewhere(&k, tokens);
        struct tsri_feed *f = feed_of(&k, &prompt, &range, 1);
        check_turned(&k, f);
        tsri_feed_close(f);
        CHECK(blend_kit_close(&k));
    }
}

/* With host memory overwritten, or without the entry in it: neither it nor the tier is read. */
TEST(what_the_device_pool_has_is_taken_from_there)
{
    for (uint32_t cold = 0; cold < 2; cold++) {
        struct blend_kit k;
        uint32_t tokens[512];
        blend_kit_open_pool(&k, "qwen2", TSR_DTYPE_F32);
        store_document(&k);
        CHECK_INT(tsr_cache_flush(k.cache.cache), 0);
        struct tsri_feed_range range = range_of(&k, 20, 60, 300);
        tsri_manager_drain(k.cache.cache); /* promoted, because it was found */
        if (cold)
            blend_kit_make_cold(&k);
        else
            memset(k.cache.cache->pool.region.data, 0xee, k.cache.cache->pool.region.bytes);
        fake_tier_fail(&k.tier, FAKE_GET, 1, 1000, TSR_EIO);
        struct tsr_prompt prompt = elsewhere(&k, tokens);
        struct tsri_feed_desc d = desc_of(&k, &prompt, &range, 1);
        d.device = k.cache.cache->device;
        struct tsri_feed *f;
        CHECK_INT(tsri_feed_open(&f, &d), 0);
        check_turned(&k, f);
        tsri_feed_close(f);
        tokens[305]++;
        CHECK_INT(tsri_feed_open(&f, &d), 0);
        CHECK_INT(tsri_feed_wait(f, 0, 5000), 1);
        CHECK_INT(tsri_feed_result(f, 0), TSR_ECORRUPT);
        CHECK_INT(kit_metric(&k.cache, TSRI_M_collisions), 1);
        tsri_feed_close(f);
        CHECK(blend_kit_close(&k));
    }
}

TEST(what_was_computed_elsewhere_is_not_taken_for_exact)
{
    struct blend_kit k;
    uint32_t tokens[512];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    store_document(&k);
    struct tsri_feed_range range = range_of(&k, 20, 60, 300);
    range.exact = true;
    struct tsr_prompt prompt = elsewhere(&k, tokens);
    struct tsri_feed *f = feed_of(&k, &prompt, &range, 1);
    CHECK_INT(tsri_feed_wait(f, 0, 5000), 1);
    CHECK_INT(tsri_feed_result(f, 0), TSR_ESPACE);
    tsri_feed_close(f);
    CHECK(blend_kit_close(&k));
}

TEST(other_tokens_and_entries_that_are_gone_fail_their_range_alone)
{
    struct blend_kit k;
    uint32_t tokens[512];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    store_document(&k);
    struct tsri_feed_range ranges[4] = {range_of(&k, 20, 60, 300), range_of(&k, 0, 10, 100),
                                        range_of(&k, 20, 10, 320), range_of(&k, 20, 10, 300)};
    struct tsr_prompt prompt = elsewhere(&k, tokens);
    ranges[0].match.n_tokens = 20;
    ranges[2].match.entry_offset = 40;
    ranges[1].match.entry += (uint64_t)1 << 28; /* another generation */
    ranges[3].match.epoch++;                    /* another life */
    struct tsri_feed *f = feed_of(&k, &prompt, ranges, 4);
    CHECK_INT(tsri_feed_wait(f, 2, 5000), 2);
    CHECK_INT(tsri_feed_result(f, 0), 0);
    CHECK_INT(tsri_feed_result(f, 1), TSR_ENOENT);
    CHECK_INT(tsri_feed_result(f, 2), 0);
    CHECK_INT(tsri_feed_result(f, 3), TSR_ENOENT);
    tsri_feed_close(f);
    tokens[305]++;
    f = feed_of(&k, &prompt, ranges, 1);
    CHECK_INT(tsri_feed_wait(f, 0, 5000), 1);
    CHECK_INT(tsri_feed_result(f, 0), TSR_ECORRUPT);
    CHECK_INT(kit_metric(&k.cache, TSRI_M_collisions), 1);
    tsri_feed_close(f);
    blend_kit_make_cold(&k);
    f = feed_of(&k, &prompt, ranges, 1);
    CHECK_INT(tsri_feed_wait(f, 0, 5000), 1);
    CHECK_INT(tsri_feed_result(f, 0), TSR_ENOENT);
    CHECK_INT(kit_metric(&k.cache, TSRI_M_collisions), 2);
    tsri_feed_close(f);
    CHECK(blend_kit_close(&k));
}

TEST(a_feed_that_is_closed_early_leaves_the_memory_alone)
{
    struct blend_kit k;
    uint32_t tokens[512];
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    store_document(&k);
    struct tsri_feed_range range = range_of(&k, 20, 60, 300);
    blend_kit_make_cold(&k);
    struct tsr_prompt prompt = elsewhere(&k, tokens);
    fake_tier_gate(&k.tier, FAKE_GET);
    struct tsri_feed *f = feed_of(&k, &prompt, &range, 1);
    fake_tier_gate_wait(&k.tier, 1);
    CHECK_INT(tsri_feed_wait(f, 0, 10), 1);
    CHECK_INT(tsri_feed_result(f, 0), TSR_ETIME);
    tsri_feed_close(f);
    f = feed_of(&k, &prompt, &range, 1);
    tsri_feed_close(f);
    memset(tokens, 0xff, sizeof tokens); /* the feed has copies */
    fake_tier_gate(&k.tier, 0);
    tsri_work_drain(tsri_ops_work(k.cache.cache->ops));
    for (uint32_t i = 0; i < 60; i++)
        CHECK(model_kit_row(&k.model, 0, 0, 300 + i)[0] == 0);
    CHECK(blend_kit_close(&k));
}

/* Both threads of the cache are stuck with a tier. */
TEST(what_is_in_host_memory_does_not_wait_for_a_tier_that_stalls)
{
    struct blend_kit k;
    uint32_t tokens[512];
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    store_document(&k);
    struct tsri_feed_range cold = range_of(&k, 20, 60, 300);
    struct tsr_prompt prompt = elsewhere(&k, tokens);
    blend_kit_make_cold(&k);
    fake_tier_gate(&k.tier, FAKE_GET);
    struct tsri_feed *stuck[2];
    for (uint32_t i = 0; i < 2; i++)
        stuck[i] = feed_of(&k, &prompt, &cold, 1);
    fake_tier_gate_wait(&k.tier, 1);
    blend_kit_prompt(&k, 2, 0, (const uint32_t[]){100}, 1, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_exact, 100);
    CHECK_INT(k.report.n_failed, 0);
    CHECK_INT(k.report.tier_tokens[0], 100);
    fake_tier_gate(&k.tier, 0);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_INT(tsri_feed_wait(stuck[i], 2, 5000), 0);
        tsri_feed_close(stuck[i]);
    }
    CHECK(blend_kit_close(&k));
}

TEST(memory_of_another_shape_is_refused)
{
    struct blend_kit k;
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    store_document(&k);
    struct tsri_feed_range range = range_of(&k, 0, 100, 0);
    struct tsr_kv_layout layout = *tsr_session_layout(k.model.session);
    struct tsr_prompt prompt = {.size = sizeof prompt, .tokens = k.tokens, .n_tokens = 100};
    struct tsri_feed_desc d = {.cache = k.cache.cache,
                               .prompt = &prompt,
                               .device = k.blend->device,
                               .layout = &layout,
                               .rope = &k.model.info.rope,
                               .ranges = &range,
                               .n_ranges = 1};
    struct tsri_feed *f;
    layout.n_layers = 2;
    CHECK_INT(tsri_feed_open(&f, &d), TSR_ESPACE);
    layout.n_layers = 3;
    range.int8 = true;
    CHECK_INT(tsri_feed_open(&f, &d), TSR_ESPACE);
    tsri_feed_close(NULL);
    CHECK(blend_kit_close(&k));
}

TEST(memory_that_is_not_page_locked_yet_fails_its_range)
{
    struct blend_kit k;
    uint32_t tokens[512];
    blend_kit_open(&k, "qwen2", TSR_DTYPE_F32, 0);
    store_document(&k);
    struct tsri_feed_range range = range_of(&k, 20, 60, 300);
    struct tsr_prompt prompt = elsewhere(&k, tokens);
    const struct tsr_device_ops *ops = k.blend->device->ops;
    lock_kit_wrap(k.blend->device);
    struct tsri_feed *f = feed_of(&k, &prompt, &range, 1);
    CHECK_INT(tsri_feed_wait(f, 0, 5000), 1);
    CHECK_INT(tsri_feed_result(f, 0), TSR_EAGAIN);
    tsri_feed_close(f);
    k.blend->device->ops = ops;
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(memory_that_is_not_page_locked_yet_fails_its_range);
    RUN(k_arrives_turned_and_v_as_it_was);
    RUN(what_the_device_pool_has_is_taken_from_there);
    RUN(what_was_computed_elsewhere_is_not_taken_for_exact);
    RUN(other_tokens_and_entries_that_are_gone_fail_their_range_alone);
    RUN(a_feed_that_is_closed_early_leaves_the_memory_alone);
    RUN(what_is_in_host_memory_does_not_wait_for_a_tier_that_stalls);
    RUN(memory_of_another_shape_is_refused);
    return test_end();
}
