/* test_served_blend.c - blend.h on a client of a server: the answers, bit for bit, and the reports
 * are those of a cache of one's own, from the server's memory and from its tiers; and a server that
 * goes away costs computing, never an answer. */
#include "blend/blend.h"
#include "support/blend_kit.h"
#include "support/served_kit.h"
#include "support/test.h"

static const uint32_t docs[] = {70, 45, 64, 30};
static const uint32_t order[] = {2, 0, 3, 1};
static struct server_kit server;

/* As blend_kit_open, on the client of a server that has the kit's tier below. */
static void open_all(struct blend_kit *k, const char *path, uint32_t flags)
{
    static const char *const options[] = {"host_size", "16M", "host_page_size", "16K", "chunk_size",
                                          "16",        NULL};
    char small[256];
    memset(k, 0, sizeof *k);
    snprintf(small, sizeof small, "head_dim=8 ff=40 %s", path);
    model_kit_open(&k->model, small, TSR_DTYPE_F16, BLEND_KIT_TOKENS_MAX);
    fake_tier_plan_init(&k->tier);
    server_open_tiers(&server, options, &k->tier, 1);
    served_kit_open(&k->cache, server.path, options);
    tsr_profile_init(&k->profile);
    k->flags = flags;
    blend_kit_reopen(k);
}

static void close_all(struct blend_kit *k)
{
    tsr_blend_close(k->blend);
    tsri_work_drain(tsri_ops_work(k->cache.cache->ops));
    kit_close(&k->cache);
    CHECK(server_end(&server));
    fake_tier_plan_fini(&k->tier);
    model_kit_close(&k->model);
}

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, 128 * sizeof *a) == 0;
}

static void prime(struct blend_kit *k, uint64_t seed)
{
    k->profile.context = TSR_CONTEXT_PRIMER;
    k->n_primer = 40;
    model_kit_tokens(&k->model, k->primer, 40, seed);
    blend_kit_reopen(k);
}

TEST(answers_and_reports_are_those_of_a_cache_of_ones_own)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++)
        for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++) {
            struct blend_kit own, k;
            blend_kit_open(&own, "llama", TSR_DTYPE_F16, flags);
            open_all(&k, "llama", flags);
            if (selector % 2) prime(&own, 1), prime(&k, 1);
            for (uint32_t round = 0; round < 4; round++) {
                const uint32_t *how = round == 0 ? NULL : order; /* the documents change places */
                blend_kit_prompt(&own, selector, 24, docs, 4, how);
                blend_kit_prompt(&k, selector, 24, docs, 4, how);
                CHECK_INT(blend_kit_ask(&own, selector, 0.2, TSR_ASK_FILL), 0);
                CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
                CHECK(same(k.logits, own.logits));
                CHECK_INT(k.report.n_reused, own.report.n_reused);
                CHECK_INT(k.report.n_recomputed, own.report.n_recomputed);
                CHECK_INT(k.report.n_filled, own.report.n_filled);
                CHECK_INT(k.report.n_filled, round == 0 ? 24 + 209 : 0);
                CHECK_INT(k.report.reasons, own.report.reasons);
                CHECK_INT(k.report.n_failed, 0);
                if (round != 2) continue;
                CHECK_INT(tsr_cache_flush(k.cache.cache), 0);
                tsri_work_drain(tsri_ops_work(k.cache.cache->ops));
                CHECK(server_wait_leased(&server, 0));
                CHECK(kit_evict_all(&server.k) > 0); /* the last round comes from the tier */
                blend_kit_make_cold(&own);
            }
            CHECK(k.report.tier_tokens[1] > 0);
            CHECK_INT(k.report.tier_tokens[1], own.report.tier_tokens[1]);
            CHECK(blend_kit_close(&own));
            close_all(&k);
        }
}

TEST(another_primer_is_a_miss_through_a_server)
{
    struct blend_kit k;
    float answers[2][128];
    open_all(&k, "qwen3", 0);
    blend_kit_prompt(&k, 1, 24, docs, 4, NULL);
    for (uint32_t i = 0; i < 6; i++) {
        prime(&k, i % 2);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        CHECK_INT(k.report.n_filled, i == 0 ? 24 + 209 : i == 1 ? 209 : 0);
        if (i < 2) {
            memcpy(answers[i], k.logits, sizeof answers[i]);
            blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
        }
        CHECK(same(k.logits, answers[i % 2]));
        if (i != 3) continue;
        CHECK_INT(tsr_cache_flush(k.cache.cache), 0);
        tsri_work_drain(tsri_ops_work(k.cache.cache->ops));
        CHECK(server_wait_leased(&server, 0));
        CHECK(kit_evict_all(&server.k) > 0);
    }
    CHECK(!same(answers[0], answers[1]));
    close_all(&k);
}

static void use_traffic(struct blend_kit *k)
{
    k->traffic =
        (struct tsr_space_desc){.size = sizeof k->traffic, .model = "plain", .block_tokens = 64};
    blend_kit_reopen(k);
}

/* A plain request, and then its documents in another order and behind other text. */
static void ask_after_plain(struct blend_kit *k, const struct tsr_extra *salt)
{
    static const uint32_t longer[] = {200, 230}, back[] = {1, 0};
    k->extra = (struct tsr_extra){0};
    blend_kit_prompt(k, 3, 30, longer, 2, NULL);
    CHECK_INT(blend_kit_plain(k, k->n_tokens, salt, 1), k->n_tokens / 64 * 64);
    blend_kit_prompt(k, 3, 45, longer, 2, back);
    k->n_segments = 0;
    k->has_system = false;
    CHECK_INT(blend_kit_ask(k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
    CHECK_INT(k->report.n_other, 0); /* of another salt */
    k->extra = *salt;
    CHECK_INT(blend_kit_ask(k, TSR_SELECT_QUERY, 0.2, TSR_ASK_ANY), 0);
}

TEST(text_of_plain_requests_is_found_through_a_server)
{
    struct tsr_extra salt = {.kind = TSR_EXTRA_SALT, .bytes = 4, .data = "mine"};
    struct blend_kit own, k;
    blend_kit_open(&own, "llama", TSR_DTYPE_F16, 0);
    open_all(&k, "llama", 0);
    use_traffic(&own);
    use_traffic(&k);
    ask_after_plain(&own, &salt);
    ask_after_plain(&k, &salt);
    CHECK(k.report.n_other > 200);
    CHECK_INT(k.report.n_other, own.report.n_other);
    CHECK(same(k.logits, own.logits));
    CHECK(blend_kit_close(&own));
    close_all(&k);
}

/* As an engine's worker has it: what the server lends is all there is to do. */
TEST(context_from_a_server_is_complete_without_a_pass)
{
    struct blend_kit k;
    struct tsr_run *run;
    struct tsr_blend_step step;
    float mine[128];
    open_all(&k, "llama", 0);
    blend_kit_prompt(&k, 9, 24, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    for (uint32_t round = 0; round < 2; round++) {
        blend_kit_prompt(&k, 9, 24, docs, 4, order);
        struct tsr_ask_desc ask =
            blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_CONTEXT);
        k.report = (struct tsr_blend_report){.size = sizeof k.report};
        CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), 0);
        CHECK_INT(tsr_blend_next(run, 0, &step), 0);
        tsr_blend_end(run, NULL, &k.report);
        CHECK_INT(k.report.tier_tokens[round], 24 + 209);
        model_kit_prefill(&k.model, k.tokens, 24 + 209, 12, mine);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        CHECK(same(mine, k.logits));
        CHECK_INT(tsr_cache_flush(k.cache.cache), 0);
        tsri_work_drain(tsri_ops_work(k.cache.cache->ops));
        CHECK(server_wait_leased(&server, 0));
        CHECK(kit_evict_all(&server.k) > 0); /* the second time from its tier */
    }
    close_all(&k);
}

TEST(exact_prefixes_are_bit_equal)
{
    struct blend_kit k;
    float prefill[128];
    open_all(&k, "qwen2", 0);
    blend_kit_prompt(&k, 3, 0, docs, 4, NULL);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_PREFIX), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_PREFIX), 0);
    CHECK(same(k.logits, prefill));
    CHECK_INT(k.report.n_exact, 208);
    close_all(&k);
}

TEST(text_is_reused_at_any_offset)
{
    struct blend_kit k;
    const uint32_t one[] = {30, 200, 40};
    open_all(&k, "llama", 0);
    blend_kit_prompt(&k, 5, 0, one, 3, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_ANY), 0);
    for (uint32_t i = 0; i < 3; i++)
        k.tokens[30 + 100 + i] = (k.tokens[30 + 100 + i] + 1) % 128;
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_ANY), 0);
    CHECK_INT(k.report.n_filled, 0);
    CHECK_INT(k.report.n_new, 12 + 3);
    CHECK_INT(k.report.n_recomputed, 4);
    close_all(&k);
}

TEST(a_server_that_goes_away_costs_computing_and_never_an_answer)
{
    struct blend_kit k;
    float known[128];
    open_all(&k, "llama", 0);
    blend_kit_prompt(&k, 7, 24, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL), 0);
    memcpy(known, k.logits, sizeof known);
    tsr_server_close(server.server);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL), 0);
    CHECK(same(k.logits, known)); /* computed alone again, as it was the first time */
    CHECK_INT(k.report.n_filled, 24 + 209);
    CHECK_INT(k.report.n_stored, 0);
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_config_set(cfg, "server_socket", server.path), 0);
    CHECK_INT(tsr_server_open(&server.server, server.k.cache, cfg), 0);
    tsr_config_close(cfg);
    close_all(&k);
}

/* The tier of the server fails, or sits on what it has: those tokens are computed. */
TEST(a_tier_of_the_server_that_fails_is_computed_around)
{
    struct blend_kit k;
    float known[128];
    open_all(&k, "llama", 0);
    blend_kit_prompt(&k, 8, 24, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL), 0);
    memcpy(known, k.logits, sizeof known);
    CHECK_INT(tsr_cache_flush(k.cache.cache), 0);
    tsri_work_drain(tsri_ops_work(k.cache.cache->ops));
    CHECK(server_wait_leased(&server, 0));
    CHECK(kit_evict_all(&server.k) > 0);
    fake_tier_fail(&k.tier, FAKE_GET, 1, 1000, TSR_EIO);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL), 0);
    CHECK(k.report.reasons & TSR_BLEND_FAULT);
    CHECK(k.report.n_failed > 0);
    CHECK(tsr_logits_kl(known, k.logits, 128) < 1);
    close_all(&k);
}

int main(void)
{
    RUN(answers_and_reports_are_those_of_a_cache_of_ones_own);
    RUN(another_primer_is_a_miss_through_a_server);
    RUN(text_of_plain_requests_is_found_through_a_server);
    RUN(context_from_a_server_is_complete_without_a_pass);
    RUN(exact_prefixes_are_bit_equal);
    RUN(text_is_reused_at_any_offset);
    RUN(a_server_that_goes_away_costs_computing_and_never_an_answer);
    RUN(a_tier_of_the_server_that_fails_is_computed_around);
    return test_end();
}
