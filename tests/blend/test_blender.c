/* A model and a cache together: spaces, profiles, and random prompts that go through everything. */
#include "cache/cache.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

static int open_with(struct blend_kit *k, struct tsr_blend **out, const char *salt)
{
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .model = k->model.model,
                                    .cache = k->cache.cache,
                                    .profile = &k->profile,
                                    .salt = salt};
    return tsr_blend_open(out, &config);
}

TEST(models_and_tenants_have_spaces_of_their_own)
{
    struct blend_kit k;
    struct tsr_blend *other, *again;
    uint8_t mine[16], salted[16], same[16];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    CHECK_INT(open_with(&k, &other, "somebody"), 0);
    CHECK_INT(open_with(&k, &again, NULL), 0);
    tsr_space_fingerprint(tsr_blend_space(k.blend), mine);
    tsr_space_fingerprint(tsr_blend_space(other), salted);
    tsr_space_fingerprint(tsr_blend_space(again), same);
    CHECK(memcmp(mine, salted, 16) != 0);
    CHECK(memcmp(mine, same, 16) == 0);
    tsr_blend_close(other);
    tsr_blend_close(again);
    CHECK(blend_kit_close(&k));
}

TEST(a_space_has_the_name_of_its_model)
{
    struct blend_kit k;
    struct tsri_space_row rows[4];
    char label[256];
    bool found = false;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    snprintf(label, sizeof label, "%s (llama)", k.model.info.name);
    uint32_t n = tsri_cache_spaces(k.cache.cache, rows, 4);
    for (uint32_t i = 0; i < n && i < 4; i++)
        found |= strcmp(rows[i].model, label) == 0;
    CHECK(found);
    CHECK(blend_kit_close(&k));
}

TEST(a_profile_for_another_model_is_refused)
{
    struct blend_kit k;
    struct tsr_blend *b;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    strcpy(k.profile.space, "00112233445566778899aabbccddeeff");
    CHECK_INT(open_with(&k, &b, NULL), TSR_ESPACE);
    CHECK_HAS(tsr_errmsg(), "00112233445566778899aabbccddeeff");
    k.profile.space[0] = 0;
    k.profile.checks[0].layer = 3;
    CHECK_INT(open_with(&k, &b, NULL), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "layer 3 of 3");
    tsr_blend_close(NULL);
    CHECK(blend_kit_close(&k));
}

TEST(numbers_that_no_profile_may_have_are_refused)
{
    const struct {
        size_t offset;
        double value;
        bool counts;
    } numbers[] = {{offsetof(struct tsr_profile, query_rows), 0, true},
                   {offsetof(struct tsr_profile, draft), TSR_PROFILE_DRAFT_MAX + 1, true},
                   {offsetof(struct tsr_profile, ratio), NAN, false},
                   {offsetof(struct tsr_profile, ratio), 1.5, false},
                   {offsetof(struct tsr_profile, draft_floor), NAN, false},
                   {offsetof(struct tsr_profile, gate_limit), -0.1, false},
                   {offsetof(struct tsr_profile, lead.draft_floor), 1.5, false},
                   {offsetof(struct tsr_profile, lead.gate_limit), -0.1, false},
                   {offsetof(struct tsr_profile, lead.n_rounds), 9, true}};
    struct blend_kit k;
    struct tsr_blend *b;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    CHECK_INT(open_with(&k, &b, NULL), 0);
    tsr_blend_close(b);
    for (size_t i = 0; i < TSRI_COUNT(numbers); i++) {
        struct tsr_profile good = k.profile;
        uint32_t count = (uint32_t)(numbers[i].counts ? numbers[i].value : 0);
        char *at = (char *)&k.profile + numbers[i].offset;
        if (numbers[i].counts)
            memcpy(at, &count, sizeof count);
        else
            memcpy(at, &numbers[i].value, sizeof numbers[i].value);
        CHECK_INT(open_with(&k, &b, NULL), TSR_EINVAL);
        tsr_blend_close(b);
        k.profile = good;
    }
    CHECK(blend_kit_close(&k));
}

TEST(little_text_is_not_blended)
{
    struct blend_kit k;
    struct tsr_blend *b;
    float prefill[128];
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, (const uint32_t[]){50, 60, 70}, 3, NULL);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) != 0);
    CHECK_INT(open_with(&k, &b, NULL), 0); /* at least 256 tokens */
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
    CHECK_INT(tsr_blend_ask(b, &ask, k.logits, &k.report), 0);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK_INT(k.report.reasons, TSR_BLEND_FEW);
    CHECK_INT(k.report.n_exact, 70);
    tsr_blend_close(b);
    CHECK(blend_kit_close(&k));
}

TEST(an_executor_without_attention_links_instead)
{
    struct blend_kit k;
    blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
    k.blend->info.caps = 0;
    k.profile.bias = (struct tsr_curve){.n = 1, .points = {{0, -1}}};
    k.blend->profile = k.profile;
    blend_kit_prompt(&k, 2, 20, (const uint32_t[]){50, 60, 70}, 3, NULL);
    for (uint32_t s = TSR_SELECT_QUERY; s <= TSR_SELECT_HKVD; s++) {
        CHECK_INT(blend_kit_ask(&k, s, 0.2, TSR_ASK_FILL), 0);
        CHECK_INT(k.report.selector, TSR_SELECT_LINK);
        CHECK_INT(k.report.reasons, TSR_BLEND_UNABLE);
        CHECK(k.report.bias == 0);
    }
    CHECK(blend_kit_close(&k));
}

TEST(int8_entries_are_near_and_prefixes_stay_exact)
{
    struct blend_kit k;
    float prefill[128], f16[128];
    blend_kit_open(&k, "qwen3", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 3, 20, (const uint32_t[]){50, 60, 70}, 3, NULL);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    memcpy(f16, k.logits, sizeof f16);
    k.flags = TSR_BLEND_INT8;
    blend_kit_reopen(&k);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_PREFIX), 0);
    CHECK_INT(k.report.n_filled, 200); /* a space of its own */
    CHECK_INT(k.report.n_stored, 200); /* nothing of it is an exact prefix */
    double kl = tsr_logits_kl(f16, k.logits, 128);
    CHECK(kl > 0 && kl < 0.02);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_PREFIX), 0);
    blend_kit_prompt(&k, 4, 0, (const uint32_t[]){50, 60}, 2, NULL);
    blend_kit_prefill(&k, prefill);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_PREFIX), 0);
        CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
        CHECK_INT(k.report.n_exact, i ? 112 : 0);
    }
    CHECK(blend_kit_close(&k));
}

TEST(prefixes_may_have_blocks_of_their_own)
{
    struct blend_kit k;
    float prefill[128];
    blend_kit_open(&k, "qwen3", TSR_DTYPE_F16, 0);
    k.prefix_block = 4;
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 4, 20, (const uint32_t[]){50, 61}, 2, NULL);
    blend_kit_prefill(&k, prefill);
    uint32_t n = (k.n_tokens - 1) / 4 * 4;
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_PREFIX), 0);
        CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
        CHECK_INT(k.report.n_exact, i ? n : 0);
        blend_kit_make_cold(&k);
    }
    /* Documents are where they were, and a prefix ends within one. */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 20 + 50 + 61);
    k.tokens[20 + 30] ^= 1;
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_PREFIX | TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_exact, (20 + 30) / 4 * 4);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK(blend_kit_close(&k));
}

/* Every prefix and segment that the cache has of a prompt is what a prefill, or computing alone,
 * gives, bit by bit: nothing that was blended is among them. */
static void check_stored(struct blend_kit *k)
{
    struct tsr_space *space = tsr_blend_space(k->blend);
    size_t row = k->model.info.n_kv_heads * k->model.info.head_dim * 2u;
    struct tsr_prompt prompt = {
        .size = sizeof prompt, .tokens = k->tokens, .n_tokens = k->n_tokens};
    struct tsr_match matches[64];
    struct tsr_lookup_desc io = {
        .size = sizeof io, .spaces = &space, .n_spaces = 1, .matches = matches, .matches_max = 64};
    CHECK(tsr_client_lookup(k->cache.client, &prompt, &io) >= 0);
    float logits[128];
    struct tsr_session *own = k->model.session, *plain;
    CHECK_INT(tsr_session_open(&plain, k->model.model, BLEND_KIT_TOKENS_MAX), 0);
    k->model.session = plain;
    model_kit_prefill(&k->model, k->tokens, 0, k->n_tokens, logits);
    for (uint32_t i = 0; i < io.n_matches; i++) {
        const struct tsr_match *m = &matches[i];
        size_t bytes = m->n_tokens * row * 2 * k->model.info.n_layers;
        uint8_t *kv = malloc(bytes);
        struct tsr_load_desc load = {.size = sizeof load,
                                     .space = space,
                                     .match = m,
                                     .prompt = &prompt,
                                     .view = {.data = kv, .bytes = bytes}};
        CHECK_INT(tsr_client_load(k->cache.client, &load, 1), 1);
        for (uint32_t l = 0; l < k->model.info.n_layers; l++)
            for (uint32_t p = 0; p < 2; p++)
                CHECK(memcmp(kv + (l * 2 + p) * m->n_tokens * row,
                             model_kit_row(&k->model, p, l, m->prompt_offset),
                             m->n_tokens * row) == 0);
        free(kv);
    }
    k->model.session = own;
    tsr_session_close(plain);
}

TEST(what_was_blended_is_never_stored_as_a_prefix)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++) {
        struct blend_kit k;
        blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
        k.profile.bias = (struct tsr_curve){.n = 1, .points = {{0, -0.5}}};
        blend_kit_reopen(&k);
        for (uint32_t i = 0; i < 3; i++) {
            blend_kit_prompt(&k, 7, 20, (const uint32_t[]){50, 60, 70}, 3,
                             (const uint32_t[][3]){{0, 1, 2}, {0, 2, 1}, {2, 1, 0}}[i]);
            for (uint32_t again = 0; again < 2; again++) {
                double ratio = selector == TSR_SELECT_LINK && again ? 0.99 : 0.3;
                CHECK_INT(
                    blend_kit_ask(&k, selector, ratio, TSR_ASK_FILL | TSR_ASK_PREFIX | TSR_ASK_ANY),
                    0);
                check_stored(&k);
            }
        }
        CHECK(blend_kit_close(&k));
    }
}

/* A document comes back with a token changed in every 20: all but the edits and two tokens on either
 * side of them is reused, and recomputing everything is a prefill. */
TEST(a_document_with_frequent_edits_is_reused_around_them)
{
    for (uint32_t cold = 0; cold < 2; cold++) {
        struct blend_kit k;
        float prefill[128];
        blend_kit_open(&k, "llama", TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 7, 0, (const uint32_t[]){60, 200}, 2, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        blend_kit_prompt(&k, 7, 0, (const uint32_t[]){60, 200}, 2, (const uint32_t[]){1, 0});
        for (uint32_t i = 10; i < 200; i += 20)
            k.tokens[i] ^= 1;
        if (cold) {
            blend_kit_make_cold(&k);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
            /* If not found already, it is on its way into memory for the next prompt. */
            tsri_work_drain(tsri_ops_work(k.cache.cache->ops));
        }
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
        CHECK_INT(k.report.n_new, 10 + k.n_tokens - 260);
        CHECK(k.report.n_reused >= 260 - 10 - 10 * 4 - 8);
        blend_kit_prefill(&k, prefill);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_ANY), 0);
        CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
        CHECK(blend_kit_close(&k));
    }
}

/* Random documents, orders, edits, losses and selectors: recomputing everything is a prefill, and
 * the second answer is the first. */
TEST(random_prompts_keep_every_promise)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "llama dynamic=2 trained=150"};
    uint64_t state = 2024;
    for (uint32_t round = 0; round < (TEST_SANITIZED ? 6u : 16u); round++) {
        struct blend_kit k;
        float prefill[128], first[128];
        blend_kit_open(&k, archs[round % 4], round % 2 ? TSR_DTYPE_F16 : TSR_DTYPE_F32, 0);
        k.profile.context = 1 + round / 2 % 2;
        k.prefix_block = round / 4 % 2 ? 5 : 0;
        blend_kit_reopen(&k);
        uint32_t docs[4], order[4] = {0, 1, 2, 3};
        for (uint32_t i = 0; i < 4; i++)
            docs[i] = 1 + (uint32_t)(test_rand(&state) >> 40) % 90;
        for (uint32_t ask = 0; ask < 5; ask++) {
            uint32_t r = (uint32_t)(test_rand(&state) >> 32);
            uint32_t swap = order[r % 4];
            order[r % 4] = order[0], order[0] = swap;
            blend_kit_prompt(&k, 50 + round, r / 8 % 3 * 15, docs, 1 + r / 64 % 4, order);
            if (r / 256 % 3 == 0) k.tokens[r % k.n_tokens] ^= 1;
            uint32_t flags = r / 1024 % 8;
            uint32_t selector = TSR_SELECT_QUERY + r / 8192 % 4;
            if (r / 65536 % 2) blend_kit_make_cold(&k);
            CHECK_INT(blend_kit_ask(&k, selector, 0.3, flags), 0);
            memcpy(first, k.logits, sizeof first);
            CHECK_INT(k.report.n_exact + k.report.n_reused + k.report.n_recomputed + k.report.n_new,
                      k.n_tokens);
            for (uint32_t i = 0; i < 128; i++)
                CHECK(isfinite(first[i]));
            if ((flags & (TSR_ASK_ANY | TSR_ASK_PREFIX)) == 0) {
                CHECK_INT(blend_kit_ask(&k, selector, 0.3, flags), 0);
                CHECK(memcmp(first, k.logits, sizeof first) == 0);
            }
            blend_kit_prefill(&k, prefill);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, flags), 0);
            CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
        }
        CHECK(blend_kit_close(&k));
    }
}

int main(void)
{
    RUN(models_and_tenants_have_spaces_of_their_own);
    RUN(a_space_has_the_name_of_its_model);
    RUN(a_profile_for_another_model_is_refused);
    RUN(numbers_that_no_profile_may_have_are_refused);
    RUN(little_text_is_not_blended);
    RUN(an_executor_without_attention_links_instead);
    RUN(int8_entries_are_near_and_prefixes_stay_exact);
    RUN(prefixes_may_have_blocks_of_their_own);
    RUN(what_was_blended_is_never_stored_as_a_prefix);
    RUN(a_document_with_frequent_edits_is_reused_around_them);
    RUN(random_prompts_keep_every_promise);
    return test_end();
}
