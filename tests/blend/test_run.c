/* Whole prompts: whatever is known, lost or chosen, the answer is the one that was promised. */
#include "blend/passes.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

static const char *const archs[] = {"llama", "qwen2", "qwen3"};
static const uint32_t docs[] = {70, 40, 66, 33};
#define ALL_FLAGS (TSR_ASK_FILL | TSR_ASK_ANY | TSR_ASK_PREFIX)

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, 128 * sizeof *a) == 0;
}

TEST(computing_everything_is_bit_equal_to_a_prefill)
{
    const uint32_t dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t t = 0; t < 3; t++) {
            struct blend_kit k;
            float prefill[128];
            blend_kit_open(&k, archs[a], dtypes[t], 0);
            blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
            blend_kit_prefill(&k, prefill);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_FILL), 0);
            CHECK(same(k.logits, prefill));
            CHECK_INT(k.report.n_filled, 20 + 209);
            CHECK_INT(k.report.n_reused, 0);
            blend_kit_prompt(&k, 1, 20, docs, 4, (const uint32_t[]){3, 1, 0, 2});
            blend_kit_prefill(&k, prefill);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 1, TSR_ASK_FILL), 0);
            CHECK(same(k.logits, prefill));
            CHECK_INT(k.report.n_filled, 0);
            CHECK_INT(k.report.selector, TSR_SELECT_FULL);
            CHECK(k.report.bias == 0);
            CHECK(blend_kit_close(&k));
        }
}

TEST(reuse_at_the_same_place_behind_the_same_text_is_bit_equal)
{
    const uint32_t dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16};
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t t = 0; t < 2; t++) {
            struct blend_kit k;
            float prefill[128];
            blend_kit_open(&k, archs[a], dtypes[t], 0);
            blend_kit_prompt(&k, 2, 20, docs, 1, NULL);
            blend_kit_prefill(&k, prefill);
            for (uint32_t round = 0; round < 3; round++) {
                CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
                CHECK(same(k.logits, prefill));
                CHECK_INT(k.report.n_exact, 90);
                CHECK_INT(k.report.n_new, 12);
                if (round == 1) blend_kit_make_cold(&k);
            }
            CHECK_INT(k.report.tier_tokens[1], 90);
            CHECK(blend_kit_close(&k));
        }
}

TEST(exact_prefixes_are_stored_and_reused_bit_equal)
{
    struct blend_kit k;
    float prefill[128];
    blend_kit_open(&k, "qwen2", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 3, 0, docs, 4, NULL);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_PREFIX), 0);
    CHECK(same(k.logits, prefill));
    CHECK_INT(k.report.n_stored, 221 / 16 * 16); /* whole blocks */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_PREFIX), 0);
    CHECK(same(k.logits, prefill));
    CHECK_INT(k.report.n_exact, 208);
    CHECK_INT(k.report.n_new, 221 - 208);
    blend_kit_make_cold(&k);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_PREFIX), 0);
    CHECK(same(k.logits, prefill));
    CHECK_INT(k.report.tier_tokens[1], 208);
    CHECK(blend_kit_close(&k));
}

TEST(the_first_answer_is_the_second_and_the_one_from_a_tier)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++)
        for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++)
            for (uint32_t context = TSR_CONTEXT_SAME; context <= TSR_CONTEXT_PURE; context++) {
                struct blend_kit k;
                float alone[128];
                blend_kit_open(&k, archs[selector % 3], TSR_DTYPE_F16, flags);
                k.profile.context = context;
                k.profile.bias = (struct tsr_curve){.n = 1, .points = {{0, -0.4}}};
                blend_kit_reopen(&k);
                blend_kit_prompt(&k, selector, 24, docs, 4, NULL);
                blend_kit_ask_alone(&k, selector, 0.2, TSR_ASK_FILL);
                memcpy(alone, k.logits, sizeof alone);
                for (uint32_t round = 0; round < 3; round++) {
                    CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
                    CHECK(same(k.logits, alone));
                    CHECK_INT(k.report.n_filled, round == 0 ? 24 + 209 : 0);
                    CHECK_INT(k.report.n_filled_reused,
                              round == 0 ? k.report.n_exact + k.report.n_reused : 0);
                    if (round == 1) blend_kit_make_cold(&k);
                }
                CHECK(blend_kit_close(&k));
            }
}

TEST(a_report_has_the_parts_of_its_time)
{
    struct blend_kit k;
    blend_kit_open(&k, "qwen2", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 3, 24, docs, 4, NULL);
    for (int known = 0; known < 2; known++) {
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL), 0);
        const struct tsr_blend_report *r = &k.report;
        CHECK((r->fill_s > 0) == !known);
        CHECK(r->query_s > 0 && r->blend_s > 0 && r->select_s > 0 && r->judge_s > 0);
        CHECK(r->draft_s == 0);
        CHECK(r->lookup_s + r->wait_s + r->fill_s + r->query_s + r->blend_s + r->select_s +
                  r->judge_s <=
              r->total_s);
    }
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, 0), 0);
    CHECK(k.report.query_s == 0 && k.report.blend_s > 0);
    CHECK(blend_kit_close(&k));
}

/* Mean KL over prompts against a prefill. */
static double mean_kl(const char *path, uint32_t selector, double ratio, uint32_t *n_recomputed)
{
    double sum = 0;
    *n_recomputed = 0;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct blend_kit k;
        float prefill[128];
        blend_kit_open(&k, path, TSR_DTYPE_F32, 0);
        blend_kit_prompt(&k, seed, 16, docs, 4, NULL);
        blend_kit_prefill(&k, prefill);
        CHECK_INT(blend_kit_ask(&k, selector, ratio, TSR_ASK_FILL), 0);
        sum += tsr_logits_kl(prefill, k.logits, 128) / 6;
        *n_recomputed += k.report.n_recomputed;
        CHECK(blend_kit_close(&k));
    }
    return sum;
}

TEST(every_selector_brings_the_answer_nearer_to_a_prefill)
{
    uint32_t n_none, n;
    double none = mean_kl("llama head_dim=16", TSR_SELECT_NONE, 0, &n_none);
    CHECK(none > 1e-4);
    CHECK_INT(n_none, 0);
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_LINK; selector++) {
        double kl = mean_kl("llama head_dim=16", selector, 0.5, &n);
        CHECK(kl < 0.9 * none);
        /* Three of four documents are not exact, half of their tokens. */
        CHECK(n >= 6 * 60 && n <= 6 * 80);
    }
    CHECK(mean_kl("llama head_dim=16", TSR_SELECT_FULL, 1, &n) == 0);
}

TEST(hkvd_narrows_at_every_check)
{
    struct blend_kit k;
    blend_kit_open(&k, "qwen3 layers=5", TSR_DTYPE_F16, 0);
    k.profile.n_checks = 3;
    k.profile.checks[0] = (struct tsr_check){.layer = 1, .ratio = 0.6};
    k.profile.checks[1] = (struct tsr_check){.layer = 2, .ratio = 0.3};
    k.profile.checks[2] = (struct tsr_check){.layer = 3, .threshold = 0.5};
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 4, 16, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_HKVD, 0.2, TSR_ASK_FILL), 0);
    CHECK(k.report.n_recomputed > 0 && k.report.n_recomputed <= (uint32_t)(0.3 * 139 + 1));
    CHECK_INT(k.report.n_reused, 139 - k.report.n_recomputed);
    CHECK(blend_kit_close(&k));
}

TEST(edited_documents_are_computed_at_their_edits)
{
    struct blend_kit k;
    float prefill[128];
    const uint32_t one[] = {30, 200, 40};
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    blend_kit_prompt(&k, 5, 0, one, 3, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_ANY), 0);
    for (uint32_t i = 0; i < 3; i++)
        k.tokens[30 + 100 + i] = (k.tokens[30 + 100 + i] + 1) % 128;
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_ANY), 0);
    CHECK_INT(k.report.n_filled, 0);
    CHECK_INT(k.report.n_new, 12 + 3);
    CHECK_INT(k.report.n_recomputed, 4); /* two on each side of the edit */
    CHECK_INT(k.report.n_exact, 30);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_FILL | TSR_ASK_ANY), 0);
    CHECK(same(k.logits, prefill));
    CHECK(blend_kit_close(&k));
}

/* At its own place, so that nothing is turned: what follows the edit has still seen other text. */
TEST(behind_an_edit_nothing_is_exact)
{
    const uint32_t one[] = {200, 40};
    for (uint32_t n_system = 0; n_system <= 24; n_system += 24) {
        struct blend_kit k;
        float prefill[128];
        blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
        blend_kit_prompt(&k, 5, n_system, one, 2, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_ANY), 0);
        for (uint32_t i = 0; i < 3; i++)
            k.tokens[n_system + 60 + i] = (k.tokens[n_system + 60 + i] + 1) % 128;
        blend_kit_prefill(&k, prefill);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_FILL | TSR_ASK_ANY), 0);
        CHECK_INT(k.report.n_exact, n_system + 60);
        CHECK(same(k.logits, prefill));
        CHECK(blend_kit_close(&k));
    }
}

/* ---- faults ---- */

static void lose(struct blend_kit *k, uint32_t kind, uint32_t n)
{
    switch (kind) {
    case 0:
        fake_tier_fail(&k->tier, FAKE_GET, n, 100, TSR_EIO);
        break;
    case 1:
        fake_tier_fail(&k->tier, FAKE_GET, n, 100, TSR_ENOENT);
        break;
    default:
        fake_tier_fail(&k->tier, FAKE_GET, n, 0, TSR_ETIME);
    }
}

TEST(a_tier_that_fails_costs_its_tokens_and_not_the_answer)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++)
        for (uint32_t kind = 0; kind < 3; kind++) {
            struct blend_kit k;
            float alone[128];
            blend_kit_open(&k, archs[kind], TSR_DTYPE_F16, 0);
            blend_kit_prompt(&k, 6, 24, docs, 4, NULL);
            blend_kit_ask_alone(&k, selector, 0.2, TSR_ASK_FILL);
            memcpy(alone, k.logits, sizeof alone);
            CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
            blend_kit_make_cold(&k);
            lose(&k, kind, 1);
            CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
            CHECK(same(k.logits, alone));
            CHECK(k.report.n_failed > 0);
            CHECK_INT(k.report.n_failed, k.report.n_filled);
            CHECK(k.report.reasons & TSR_BLEND_FAULT);
            lose(&k, kind, 1000000);
            CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
            CHECK(same(k.logits, alone));
            CHECK_INT(k.report.n_failed, 0);
            CHECK(blend_kit_close(&k));
        }
}

TEST(without_filling_lost_tokens_are_computed_in_the_prompt)
{
    struct blend_kit k;
    float prefill[128];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 7, 24, docs, 4, NULL);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    blend_kit_make_cold(&k);
    fake_tier_fail(&k.tier, FAKE_GET, 1, 100, TSR_EIO);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, 0), 0);
    CHECK(same(k.logits, prefill)); /* nothing could be had */
    CHECK_INT(k.report.n_new, k.n_tokens);
    CHECK(blend_kit_close(&k));
}

/* A bit of the stored bytes of one document flips; which layer it is in, every time another. */
/* Of the kit's prompt: its system prompt and documents. */
static int keys_of(const struct blend_kit *k, struct tsr_key *keys, uint32_t max)
{
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = k->tokens,
                                .n_tokens = k->n_tokens,
                                .segments = k->segments,
                                .n_segments = k->n_segments,
                                .flags = TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT};
    return tsr_space_keys(tsr_blend_space(k->blend), &prompt, keys, max);
}

TEST(rubbish_in_any_layer_is_computed_anew)
{
    for (uint32_t round = 0; round < (TEST_SANITIZED ? 5u : 12u); round++) {
        struct blend_kit k;
        float alone[128];
        uint32_t selector = TSR_SELECT_QUERY + round % 5;
        blend_kit_open(&k, archs[round % 3], TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 8, 24, docs, 4, NULL);
        blend_kit_ask_alone(&k, selector, 0.2, TSR_ASK_FILL);
        memcpy(alone, k.logits, sizeof alone);
        CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
        struct tsr_key keys[16];
        int n = keys_of(&k, keys, 16);
        CHECK(n >= 5);
        blend_kit_make_cold(&k);
        uint32_t n_damaged = 0;
        for (int i = 0; i < n; i++)
            n_damaged += i % 2 && mem_tier_store_damage(&k.tier.mem, &keys[i],
                                                        997u * (round + 1) * (uint32_t)(i + 1));
        CHECK(n_damaged > 0);
        CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
        CHECK(same(k.logits, alone));
        CHECK(k.report.n_failed > 0 && k.report.n_failed < 24 + 209);
        CHECK(blend_kit_close(&k));
    }
}

TEST(a_tier_that_stalls_is_not_waited_for_and_never_writes_late)
{
    struct blend_kit k;
    float alone[128];
    blend_kit_open(&k, "qwen3", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 9, 24, docs, 4, NULL);
    blend_kit_ask_alone(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL);
    memcpy(alone, k.logits, sizeof alone);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL), 0);
    blend_kit_make_cold(&k);
    fake_tier_gate(&k.tier, FAKE_GET);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL);
    ask.timeout_ms = 30;
    k.report.size = sizeof k.report;
    CHECK_INT(tsr_blend_ask(k.blend, &ask, k.logits, &k.report), 0);
    CHECK(same(k.logits, alone));
    CHECK_INT(k.report.n_failed, 24 + 209);
    /* The session is another's now; what the tier brings must not reach it. */
    size_t bytes = (size_t)6 * BLEND_KIT_TOKENS_MAX * 32;
    uint8_t *kv = tsr_session_layout(k.model.session)->planes[0].base, *before = malloc(bytes);
    memcpy(before, kv, bytes);
    fake_tier_gate(&k.tier, 0);
    tsri_work_drain(tsri_ops_work(k.cache.cache->ops));
    CHECK(memcmp(before, kv, bytes) == 0);
    free(before);
    CHECK(blend_kit_close(&k));
}

TEST(a_slow_tier_is_waited_for_layer_by_layer)
{
    struct blend_kit k;
    float alone[128];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 10, 24, docs, 4, NULL);
    blend_kit_ask_alone(&k, TSR_SELECT_LINK, 0.2, TSR_ASK_FILL);
    memcpy(alone, k.logits, sizeof alone);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_LINK, 0.2, TSR_ASK_FILL), 0);
    blend_kit_make_cold(&k);
    k.tier.layer_delay_us = 3000;
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_LINK, 0.2, TSR_ASK_FILL), 0);
    CHECK(same(k.logits, alone));
    CHECK_INT(k.report.n_failed, 0);
    CHECK(k.report.wait_s > 0);
    CHECK(blend_kit_close(&k));
}

TEST(a_cache_that_keeps_nothing_changes_nothing)
{
    struct blend_kit k;
    float alone[128];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 11, 24, docs, 4, NULL);
    blend_kit_ask_alone(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL);
    memcpy(alone, k.logits, sizeof alone);
    tsr_cache_freeze(k.cache.cache, 1);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, ALL_FLAGS), 0);
        CHECK(same(k.logits, alone));
        CHECK(k.report.reasons & TSR_BLEND_REFUSED);
        CHECK_INT(k.report.n_stored, 0);
    }
    tsr_cache_freeze(k.cache.cache, 0);
    CHECK(blend_kit_close(&k));
}

/* ---- leaving ---- */

/* Takes at most n_max steps; returns how many there were. */
static uint32_t steps(struct blend_kit *k, uint32_t selector, uint32_t n_max)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, selector, 0.3, ALL_FLAGS);
    struct tsr_kv_layout layout = *tsr_session_layout(k->model.session);
    struct tsr_session *session = ask.session;
    struct tsr_run *run;
    struct tsr_blend_step step;
    uint32_t n = 0;
    int result = 0;
    ask.session = NULL;
    CHECK_INT(tsr_blend_start(&run, k->blend, &ask, &layout), 0);
    while (n < n_max && tsr_blend_next(run, result, &step) > 0) {
        result = tsri_blend_step(session, &step);
        CHECK_INT(result, 0);
        n++;
    }
    tsr_session_end(session);
    tsr_blend_end(run, k->logits, NULL);
    return n;
}

/* Steps of a run, each taken; *waited_s: for loads, before the first pass. */
static uint32_t passes(struct blend_kit *k, uint32_t flags, double *waited_s)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_LINK, 0.2, flags);
    struct tsr_session *session = k->model.session;
    struct tsr_blend_step step;
    struct tsr_run *run;
    uint32_t n_begun = 0;
    int more;
    CHECK_INT(tsr_blend_start(&run, k->blend, &ask, tsr_session_layout(session)), 0);
    for (int result = 0; (more = tsr_blend_next(run, result, &step)) > 0;) {
        if (step.kind == TSR_STEP_BEGIN && !n_begun++) *waited_s = run->report.wait_s;
        do
            result = tsri_blend_step(session, &step);
        while (result > 0);
    }
    CHECK_INT(more, 0);
    k->report.size = sizeof k->report;
    tsr_blend_end(run, k->logits, &k->report);
    return n_begun;
}

TEST(a_pass_may_wait_until_everything_is_loaded)
{
    for (uint32_t loaded = 0; loaded < 2; loaded++)
        for (uint32_t fails = 0; fails < 2; fails++) {
            struct blend_kit k;
            float alone[128];
            double waited_s = -1;
            uint32_t flags = TSR_ASK_FILL | (loaded ? TSR_ASK_LOADED : 0);
            blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
            blend_kit_prompt(&k, 10, 24, docs, 4, NULL);
            blend_kit_ask_alone(&k, TSR_SELECT_LINK, 0.2, TSR_ASK_FILL);
            memcpy(alone, k.logits, sizeof alone);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_LINK, 0.2, TSR_ASK_FILL), 0);
            blend_kit_make_cold(&k);
            k.tier.layer_delay_us = 3000;
            if (fails) {
                struct tsr_key keys[16];
                CHECK(keys_of(&k, keys, 16) >= 5);
                CHECK(mem_tier_store_damage(&k.tier.mem, &keys[3], 997));
            }
            uint32_t n = passes(&k, flags, &waited_s);
            CHECK(same(k.logits, alone));
            CHECK((k.report.n_failed > 0) == fails);
            CHECK((waited_s > 0) == loaded);
            if (loaded)
                CHECK_INT(n, 1 + fails); /* what is lost is filled, and nothing begun twice */
            CHECK(blend_kit_close(&k));
        }
}

TEST(a_run_can_be_left_at_any_step)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++)
        for (uint32_t cold = 0; cold < 2; cold++) {
            struct blend_kit k;
            float whole[128];
            blend_kit_open(&k, "llama layers=4", TSR_DTYPE_F16, 0);
            blend_kit_prompt(&k, 12, 24, docs, 4, NULL);
            uint32_t n = 0, n_steps = 1000;
            for (; n < n_steps && n < 40; n += TEST_SANITIZED ? 4 : cold ? 1 : 3) {
                uint32_t taken = steps(&k, selector, n);
                CHECK(taken <= n);
                if (cold) blend_kit_make_cold(&k);
                if (taken < n) n_steps = taken;
            }
            CHECK(steps(&k, selector, 1000) > 5);
            memcpy(whole, k.logits, sizeof whole);
            CHECK_INT(blend_kit_ask(&k, selector, 0.3, ALL_FLAGS), 0);
            CHECK(same(whole, k.logits));
            CHECK(blend_kit_close(&k));
        }
}

TEST(a_step_that_failed_ends_the_run_with_its_error)
{
    struct blend_kit k;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 13, 24, docs, 4, NULL);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
    struct tsr_run *run;
    struct tsr_blend_step step;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), 0);
    CHECK_INT(tsr_blend_next(run, 0, &step), 1);
    CHECK_INT(step.kind, TSR_STEP_BEGIN);
    CHECK_INT(tsr_blend_next(run, TSR_EDEVICE, &step), TSR_EDEVICE);
    CHECK_INT(tsr_blend_next(run, 0, &step), TSR_EDEVICE);
    k.report = (struct tsr_blend_report){.size = sizeof k.report};
    tsr_blend_end(run, NULL, &k.report);
    CHECK_INT(k.report.n_tokens, 0);
    tsr_blend_end(NULL, NULL, NULL);
    CHECK(blend_kit_close(&k));
}

TEST(prompts_that_cannot_be_answered_are_refused_with_a_reason)
{
    struct blend_kit k;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 14, 24, docs, 4, NULL);
    struct tsr_ask_desc good = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, 0), ask = good;
    struct tsr_run *run;
    ask.n_tokens = k.n_tokens - 12;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "no question");
    struct tsr_range overlap[] = {{0, 24}, {20, 10}};
    ask = good;
    ask.segments = overlap, ask.n_segments = 2;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EPROMPT);
    struct tsr_range late[] = {{4, 24}};
    ask.segments = late, ask.n_segments = 1;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "system");
    ask = good;
    ask.ratio = 1.5;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EINVAL);
    ask = good;
    ask.selector = 77;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EINVAL);
    ask = good;
    k.tokens[5] = 128;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "vocabulary");
    k.tokens[5] = 1;
    struct tsr_session *small;
    CHECK_INT(tsr_session_open(&small, k.model.model, 100), 0);
    ask.session = small;
    CHECK_INT(tsr_blend_ask(k.blend, &ask, k.logits, NULL), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "context limit 100");
    tsr_session_close(small);
    CHECK(blend_kit_close(&k));
}

/* Nothing here can reach it; on the way through a device it is the test of a machine that has one.
 */
TEST(kv_in_device_memory_without_a_device_is_refused)
{
    struct blend_kit k;
    struct tsr_run *run;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
    struct tsr_kv_layout layout = *tsr_session_layout(k.model.session);
    layout.memory = TSR_MEMORY_DEVICE;
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, &layout), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "option device");
    CHECK(run == NULL);
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(computing_everything_is_bit_equal_to_a_prefill);
    RUN(reuse_at_the_same_place_behind_the_same_text_is_bit_equal);
    RUN(exact_prefixes_are_stored_and_reused_bit_equal);
    RUN(the_first_answer_is_the_second_and_the_one_from_a_tier);
    RUN(a_report_has_the_parts_of_its_time);
    RUN(every_selector_brings_the_answer_nearer_to_a_prefill);
    RUN(hkvd_narrows_at_every_check);
    RUN(edited_documents_are_computed_at_their_edits);
    RUN(behind_an_edit_nothing_is_exact);
    RUN(a_tier_that_fails_costs_its_tokens_and_not_the_answer);
    RUN(without_filling_lost_tokens_are_computed_in_the_prompt);
    RUN(rubbish_in_any_layer_is_computed_anew);
    RUN(a_tier_that_stalls_is_not_waited_for_and_never_writes_late);
    RUN(a_slow_tier_is_waited_for_layer_by_layer);
    RUN(a_cache_that_keeps_nothing_changes_nothing);
    RUN(a_pass_may_wait_until_everything_is_loaded);
    RUN(a_run_can_be_left_at_any_step);
    RUN(a_step_that_failed_ends_the_run_with_its_error);
    RUN(prompts_that_cannot_be_answered_are_refused_with_a_reason);
    RUN(kv_in_device_memory_without_a_device_is_refused);
    return test_end();
}
