/* KV that was just computed, on its way into the cache. */
#include "support/blend_kit.h"
#include "support/test.h"

/* Fills the second document of a prompt by hand, with random rows. */
static void settle(struct blend_kit *k, bool int8, uint8_t *after, size_t bytes, int *stored)
{
    blend_kit_prompt(k, 1, 24, (const uint32_t[]){30, 50}, 2, NULL);
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
    struct tsri_plan plan;
    struct tsri_plan_desc d = {
        .ask = &ask, .profile = &k->profile, .selector = TSR_SELECT_NONE, .same_context = true};
    CHECK_INT(tsri_plan_init(&plan, &d), 0);
    CHECK_INT(plan.n_pieces, 3);
    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t p = 0; p < 2; p++)
            for (uint32_t i = 0; i < 50 * 16; i++)
                model_kit_row(&k->model, p, l, 54)[i] =
                    (float)((i * 7 + l * 3 + p) % 101) / 101 - 0.5f;
    struct tsri_fill fill = {.client = k->blend->client,
                             .space = k->blend->segments,
                             .device = k->blend->device,
                             .layout = tsr_session_layout(k->model.session),
                             .rope = &k->model.info.rope,
                             .int8 = int8,
                             .context = ask.tokens,
                             .n_context = 24};
    bool placed;
    *stored = tsri_fill_settle(&fill, &ask, &plan, 2, &placed);
    CHECK(placed);
    memcpy(after, model_kit_row(&k->model, 0, 1, 54), bytes);
    tsri_plan_fini(&plan);
}

TEST(what_is_written_back_is_what_a_load_writes)
{
    for (uint32_t int8 = 0; int8 < 2; int8++) {
        struct blend_kit k;
        uint8_t after[50 * 64], loaded[50 * 64];
        int stored;
        blend_kit_open(&k, "llama", TSR_DTYPE_F32, int8 ? TSR_BLEND_INT8 : 0);
        settle(&k, int8, after, sizeof after, &stored);
        CHECK_INT(stored, 50);
        memset(model_kit_row(&k.model, 0, 1, 54), 0, sizeof loaded);
        struct tsr_prompt prompt = {.size = sizeof prompt,
                                    .tokens = k.tokens,
                                    .n_tokens = k.n_tokens,
                                    .segments = k.segments,
                                    .n_segments = 3,
                                    .flags = TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT};
        struct tsr_match m;
        struct tsr_lookup_desc io = {.size = sizeof io,
                                     .spaces = &k.blend->segments,
                                     .n_spaces = 1,
                                     .matches = &m,
                                     .matches_max = 1};
        CHECK_INT(tsr_client_lookup(k.cache.client, &prompt, &io), 50);
        CHECK_INT(m.base, 24);
        CHECK_INT(m.context, TSR_CONTEXT_SAME);
        struct tsri_feed_range range = {.match = m, .space = k.blend->segments, .int8 = int8};
        struct tsri_feed_desc d = {.cache = k.cache.cache,
                                   .prompt = &prompt,
                                   .device = k.blend->device,
                                   .layout = tsr_session_layout(k.model.session),
                                   .rope = &k.model.info.rope,
                                   .ranges = &range,
                                   .n_ranges = 1};
        struct tsri_feed *f;
        CHECK_INT(tsri_feed_open(&f, &d), 0);
        CHECK_INT(tsri_feed_wait(f, 2, 5000), 0);
        memcpy(loaded, model_kit_row(&k.model, 0, 1, 54), sizeof loaded);
        CHECK(memcmp(after, loaded, sizeof loaded) == 0);
        tsri_feed_close(f);
        CHECK(blend_kit_close(&k));
    }
}

TEST(what_cannot_be_kept_is_still_put_in_its_place)
{
    struct blend_kit k;
    uint8_t kept[50 * 64], refused[50 * 64];
    int stored;
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    settle(&k, false, kept, sizeof kept, &stored);
    CHECK_INT(stored, 50);
    tsr_cache_freeze(k.cache.cache, 1);
    settle(&k, false, refused, sizeof refused, &stored);
    CHECK_INT(stored, TSR_EFROZEN);
    CHECK(memcmp(kept, refused, sizeof kept) == 0);
    tsr_cache_freeze(k.cache.cache, 0);
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(what_is_written_back_is_what_a_load_writes);
    RUN(what_cannot_be_kept_is_still_put_in_its_place);
    return test_end();
}
