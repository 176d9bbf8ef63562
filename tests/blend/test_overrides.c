/* test_overrides.c - blend_* options win over the profile, and what is not set stays. */
#include "blend/blend.h"
#include "support/blend_kit.h"
#include "support/test.h"

static struct tsr_profile p;
static bool primes;

static bool near(double a, double b)
{
    return a > b - 1e-9 && a < b + 1e-9;
}

/* Applies options to a default profile with rounds. */
static int apply(const char *yaml)
{
    struct tsr_config *cfg;
    tsr_profile_init(&p);
    p.n_rounds = 1;
    p.rounds[0] = 0.05;
    p.lead.n_rounds = 1;
    p.lead.rounds[0] = 0.05;
    CHECK_INT(tsr_config_open(&cfg), 0);
    int e = tsr_config_load_text(cfg, yaml, strlen(yaml), "t.yaml");
    CHECK_INT(e, 0);
    CHECK_INT(tsri_config_check(cfg), 0);
    e = tsri_profile_override(&p, tsri_config_options(cfg), primes);
    tsr_config_close(cfg);
    return e;
}

TEST(without_options_a_profile_stays_as_it_is)
{
    struct tsr_profile before;
    CHECK_INT(apply("host_size: 1G\n"), 0);
    tsr_profile_init(&before);
    before.n_rounds = 1;
    before.rounds[0] = 0.05;
    before.lead.n_rounds = 1;
    before.lead.rounds[0] = 0.05;
    CHECK(memcmp(&before, &p, sizeof p) == 0);
}

TEST(check_layers_select_by_deviation_each_with_its_ratio)
{
    CHECK_INT(apply("blend_check_layers: [1, 3]\nblend_recompute_ratios: [0.3, 0.15]\n"), 0);
    CHECK_INT(p.selector, TSR_SELECT_HKVD);
    CHECK_INT(p.n_rounds + p.lead.n_rounds, 0);
    CHECK_INT(p.n_checks, 2);
    CHECK(p.checks[0].layer == 1 && near(p.checks[0].ratio, 0.3));
    CHECK(p.checks[1].layer == 3 && near(p.checks[1].ratio, 0.15));
    CHECK(near(p.ratio, 0.15));
    CHECK_INT(apply("blend_check_layers: [1, 3]\nblend_recompute_ratios: 0.2\n"), 0);
    CHECK(near(p.checks[0].ratio, 0.2) && near(p.checks[1].ratio, 0.2));
    CHECK_INT(apply("blend_check_layers: [1, 2, 3, 4, 5]\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "blend_check_layers: 5 layers, at most 4");
}

TEST(a_ratio_alone_keeps_the_selector)
{
    CHECK_INT(apply("blend_recompute_ratios: [0.25]\n"), 0);
    CHECK_INT(p.selector, TSR_SELECT_QUERY);
    CHECK(near(p.ratio, 0.25));
    CHECK_INT(p.n_rounds + p.lead.n_rounds, 0);
}

TEST(thresholds_and_boundaries_are_taken_over)
{
    CHECK_INT(apply("blend_thresholds: 2.5\nrecompute_boundary: 4\n"), 0);
    CHECK_INT(p.selector, TSR_SELECT_HKVD);
    CHECK_INT(p.n_checks, 1);
    CHECK_INT(p.checks[0].layer, 1);
    CHECK(near(p.checks[0].threshold, 2.5));
    CHECK_INT(p.boundary, 4);
}

TEST(chunked_mode_makes_documents_independent_of_system_prompts)
{
    CHECK_INT(apply("enable_chunk_cache: true\n"), 0);
    CHECK_INT(p.context, TSR_CONTEXT_PURE);
    primes = true;
    CHECK_INT(apply("enable_chunk_cache: true\n"), 0);
    CHECK_INT(p.context, TSR_CONTEXT_PRIMER);
    primes = false;
    CHECK_INT(apply("enable_blending: true\n"), 0);
    CHECK_INT(p.context, TSR_CONTEXT_SAME);
}

/* Through the whole path: the cache's configuration reaches the blend, and rows are recomputed. */
TEST(a_blend_takes_the_options_of_its_cache)
{
    static const uint32_t docs[] = {70, 40};
    static const uint32_t order[] = {1, 0};
    static struct blend_kit k;
    struct tsr_config *cfg;
    struct tsr_cache *cache;
    struct tsr_blend *blend;
    CHECK_INT(tsr_config_open(&cfg), 0);
    CHECK_INT(tsr_config_set(cfg, "host_size", "16M"), 0);
    CHECK_INT(tsr_config_set(cfg, "blend_check_layers", "1"), 0);
    CHECK_INT(tsr_config_set(cfg, "blend_recompute_ratios", "0.5"), 0);
    CHECK_INT(tsr_config_set(cfg, "blend_min_tokens", "111"), 0);
    CHECK_INT(tsr_cache_open(&cache, cfg), 0);
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    struct tsr_blend_desc desc = {.size = sizeof desc, .model = k.model.model, .cache = cache};
    CHECK_INT(tsr_blend_open(&blend, &desc), 0);
    CHECK_INT(tsr_blend_profile(blend)->selector, TSR_SELECT_HKVD);
    blend_kit_prompt(&k, 1, 0, docs, 2, NULL);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, 0, -1, TSR_ASK_FILL);
    k.report.size = sizeof k.report;
    CHECK_INT(tsr_blend_ask(blend, &ask, k.logits, &k.report), 0);
    blend_kit_prompt(&k, 1, 0, docs, 2, order);
    ask = blend_kit_ask_of(&k, 0, -1, TSR_ASK_FILL);
    CHECK_INT(tsr_blend_ask(blend, &ask, k.logits, &k.report), 0);
    CHECK(k.report.reasons & TSR_BLEND_FEW); /* 110 tokens, under blend_min_tokens */
    tsr_blend_close(blend);
    desc.blend_min_tokens = UINT32_MAX; /* what the program says wins */
    CHECK_INT(tsr_blend_open(&blend, &desc), 0);
    CHECK_INT(tsr_blend_ask(blend, &ask, k.logits, &k.report), 0);
    CHECK_INT(k.report.selector, TSR_SELECT_HKVD);
    CHECK(!(k.report.reasons & TSR_BLEND_FEW));
    /* The first document of the prompt is exact at its place; half of the other one is recomputed. */
    CHECK(k.report.n_recomputed > 0 && k.report.n_recomputed <= 56);
    tsr_blend_close(blend);
    tsr_cache_close(cache);
    tsr_config_close(cfg);
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(without_options_a_profile_stays_as_it_is);
    RUN(check_layers_select_by_deviation_each_with_its_ratio);
    RUN(a_ratio_alone_keeps_the_selector);
    RUN(thresholds_and_boundaries_are_taken_over);
    RUN(chunked_mode_makes_documents_independent_of_system_prompts);
    RUN(a_blend_takes_the_options_of_its_cache);
    return test_end();
}
