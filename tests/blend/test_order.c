/* Documents in any order: what the question looks at, which document goes first, and that it is exact
 * there. */
#include "blend/passes.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

static const char *const archs[] = {"llama", "qwen2", "qwen3"};
static const uint32_t docs[] = {70, 40, 66, 33};
enum { SYSTEM = 20, DOCS = 70 + 40 + 66 + 33, PRIMER = 37 };
#define LEAD (TSR_ASK_FILL | TSR_ASK_LEAD)

static void open_primed(struct blend_kit *k, const char *path, uint32_t dtype, uint32_t flags)
{
    blend_kit_open(k, path, dtype, flags);
    k->profile.context = TSR_CONTEXT_PRIMER;
    k->n_primer = PRIMER;
    model_kit_tokens(&k->model, k->primer, PRIMER, 5001);
    blend_kit_reopen(k);
}

static int look(struct blend_kit *k, uint32_t flags, double *looks)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_NONE, 0, flags);
    k->report = (struct tsr_blend_report){.size = sizeof k->report};
    return tsr_blend_look(k->blend, &ask, looks, &k->report);
}

/* All rows of both planes, by token. */
static float *rows_of(const struct blend_kit *k, size_t *token)
{
    size_t row = (size_t)k->model.info.n_kv_heads * k->model.info.head_dim;
    uint32_t n_layers = k->model.info.n_layers;
    *token = 2 * n_layers * row;
    float *all = malloc(k->n_tokens * *token * sizeof *all), *to = all;
    for (uint32_t i = 0; i < k->n_tokens; i++)
        for (uint32_t p = 0; p < 2 * n_layers; p++, to += row)
            memcpy(to, model_kit_row(&k->model, p % 2, p / 2, i), row * sizeof *to);
    return all;
}

/* How many tokens from the front on the session holds as a prefill gives them, bit for bit. The
 * prefill is in its place then. */
static uint32_t n_exact(struct blend_kit *k)
{
    size_t token;
    float logits[128], *mine = rows_of(k, &token);
    model_kit_prefill(&k->model, k->tokens, 0, k->n_tokens, logits);
    float *prefill = rows_of(k, &token);
    uint32_t n = 0;
    while (n < k->n_tokens &&
           memcmp(mine + n * token, prefill + n * token, token * sizeof *mine) == 0)
        n++;
    free(mine);
    free(prefill);
    return n;
}

/* ---- looking ---- */

TEST(looks_are_shares_of_the_questions_attention)
{
    for (uint32_t a = 0; a < 3; a++) {
        struct blend_kit k;
        double looks[5] = {-1, -1, -1, -1, -1}, again[5], sum = 0;
        open_primed(&k, archs[a], TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
        CHECK_INT(look(&k, TSR_ASK_FILL, looks), 1);
        CHECK_INT(k.report.n_stored, SYSTEM + DOCS);
        for (uint32_t i = 0; i < 5; i++) {
            CHECK(looks[i] > 0 && looks[i] < 1);
            sum += looks[i];
        }
        CHECK(sum < 1); /* the rest is on the question itself */
        /* The same from the cache. */
        CHECK_INT(look(&k, TSR_ASK_FILL, again), 1);
        CHECK_INT(k.report.n_stored, 0);
        for (uint32_t i = 0; i < 5; i++)
            CHECK(fabs(looks[i] - again[i]) < 1e-6);
        CHECK(blend_kit_close(&k));
    }
}

TEST(looks_follow_the_attention_of_an_ask)
{
    struct blend_kit k;
    struct tsr_run *run;
    double looks[5];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
    CHECK_INT(look(&k, TSR_ASK_FILL, looks), 1);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_QUERY, 0.2, TSR_ASK_FILL);
    CHECK_INT(tsr_blend_start(&run, k.blend, &ask, NULL), 0);
    CHECK_INT(tsr_blend_looks(run, looks), TSR_EINVAL); /* it does not look */
    CHECK_INT(tsri_blend_steps(k.model.session, run), 0);
    double all = 0, share[5] = {0};
    for (uint32_t i = 0; i < k.n_tokens; i++)
        all += run->mass[i];
    for (uint32_t s = 0; s < 5; s++) {
        for (uint32_t i = 0; i < k.segments[s].n_tokens; i++)
            share[s] += run->mass[k.segments[s].offset + i] / all;
        CHECK(fabs(looks[s] - share[s]) < 1e-6);
    }
    tsr_blend_end(run, NULL, NULL);
    CHECK(blend_kit_close(&k));
}

TEST(nothing_is_looked_at_where_most_is_unknown)
{
    struct blend_kit k;
    double looks[5] = {0};
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
    CHECK_INT(look(&k, TSR_ASK_FILL | TSR_ASK_FIRST, looks), 0);
    CHECK_INT(k.report.n_filled + k.report.n_stored, 0); /* nor computed */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(look(&k, TSR_ASK_FILL | TSR_ASK_FIRST, looks), 1);
    CHECK(looks[1] > 0);
    CHECK(blend_kit_close(&k));
}

TEST(a_look_leaves_the_last_answer_alone)
{
    struct blend_kit k;
    uint32_t n_before, n_after, before[TSR_PROFILE_DRAFT_MAX];
    double looks[5];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    k.profile.draft = 8;
    k.profile.n_rounds = 1;
    k.profile.rounds[0] = 0.2;
    blend_kit_reopen(&k);
    blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, TSR_ASK_FILL | TSR_ASK_ROUNDS), 0);
    const uint32_t *draft = tsr_blend_draft(k.blend, &n_before);
    CHECK(n_before > 0);
    memcpy(before, draft, n_before * sizeof *before);
    CHECK_INT(look(&k, TSR_ASK_FILL | TSR_ASK_LEAD, looks), 1);
    draft = tsr_blend_draft(k.blend, &n_after);
    CHECK_INT(n_after, n_before);
    CHECK(memcmp(draft, before, n_before * sizeof *before) == 0);
    CHECK(blend_kit_close(&k));
}

/* ---- leading ---- */

TEST(the_first_document_is_exact_when_it_leads)
{
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t n_system = 0; n_system <= SYSTEM; n_system += SYSTEM) {
            struct blend_kit k;
            open_primed(&k, archs[a], TSR_DTYPE_F32, 0);
            blend_kit_prompt(&k, a, n_system, docs, 4, NULL);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
            CHECK_INT(k.report.n_exact, n_system);
            CHECK_INT(n_exact(&k), n_system);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, LEAD), 0);
            CHECK_INT(k.report.n_exact, n_system);
            CHECK_INT(k.report.n_recomputed, 70);
            CHECK_INT(k.report.n_reused, DOCS - 70);
            CHECK_INT(k.report.n_filled, 0);
            CHECK_INT(k.report.n_stored, 0);
            CHECK_INT(n_exact(&k), n_system + 70); /* the others are as they were stored */
            CHECK(blend_kit_close(&k));
        }
}

TEST(a_document_that_leads_and_is_not_cached_is_new)
{
    struct blend_kit k;
    open_primed(&k, "qwen2", TSR_DTYPE_F32, 0);
    blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, LEAD), 0);
    CHECK_INT(k.report.n_new, 70 + k.n_tokens - SYSTEM - DOCS);
    CHECK_INT(k.report.n_filled, SYSTEM + DOCS - 70);
    CHECK_INT(k.report.n_stored, SYSTEM + DOCS - 70);
    CHECK_INT(k.report.n_recomputed, 0);
    CHECK_INT(n_exact(&k), SYSTEM + 70);
    CHECK(blend_kit_close(&k));
}

TEST(with_a_document_that_leads_everything_is_still_bit_equal_to_a_prefill)
{
    for (uint32_t a = 0; a < 3; a++) {
        struct blend_kit k;
        float prefill[128];
        open_primed(&k, archs[a], TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
        blend_kit_prefill(&k, prefill);
        for (uint32_t round = 0; round < 2; round++) {
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, LEAD), 0);
            CHECK(memcmp(k.logits, prefill, sizeof prefill) == 0);
        }
        CHECK(blend_kit_close(&k));
    }
}

TEST(what_leads_is_found_as_a_prefix_the_next_time)
{
    struct blend_kit k;
    open_primed(&k, "llama", TSR_DTYPE_F32, 0);
    blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, LEAD | TSR_ASK_PREFIX), 0);
    CHECK_INT(k.report.n_stored, (SYSTEM + 70) / 16 * 16);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, LEAD | TSR_ASK_PREFIX), 0);
    CHECK_INT(k.report.n_exact, (SYSTEM + 70) / 16 * 16);
    CHECK_INT(k.report.n_recomputed, (SYSTEM + 70) % 16);
    CHECK_INT(n_exact(&k), SYSTEM + 70);
    CHECK(blend_kit_close(&k));
}

TEST(nothing_leads_behind_what_is_rounded)
{
    struct blend_kit k;
    open_primed(&k, "llama", TSR_DTYPE_F16, TSR_BLEND_INT8);
    blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, LEAD), 0);
    CHECK_INT(k.report.n_reused, DOCS);
    CHECK(blend_kit_close(&k));
}

/* The system prompt is lost while the document behind it is computed. */
TEST(a_failing_tier_costs_no_bit_of_what_leads)
{
    for (uint32_t fails = 1; fails <= 6; fails++) {
        struct blend_kit k;
        open_primed(&k, "llama", TSR_DTYPE_F32, 0);
        blend_kit_prompt(&k, 1, SYSTEM, docs, 4, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        blend_kit_make_cold(&k);
        fake_tier_fail(&k.tier, FAKE_GET, fails, fails % 2 ? 100 : 0, TSR_EIO);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, LEAD), 0);
        CHECK(fails > 1 || k.report.n_failed > 0);
        CHECK_INT(n_exact(&k), SYSTEM + 70);
        CHECK(blend_kit_close(&k));
    }
}

/* ---- moving ---- */

TEST(the_document_that_is_looked_at_most_moves_to_the_front)
{
    uint32_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    struct tsr_range segments[] = {{0, 2}, {2, 3}, {5, 2}, {7, 3}};
    const double looks[] = {0.9, 0.1, 0.3, 0.2};
    CHECK_INT(tsr_segments_lead(tokens, segments, 4, 1, looks), 2);
    const uint32_t moved[] = {0, 1, 5, 6, 2, 3, 4, 7, 8, 9, 10, 11};
    const struct tsr_range ranges[] = {{0, 2}, {2, 2}, {4, 3}, {7, 3}};
    CHECK(memcmp(tokens, moved, sizeof moved) == 0);
    CHECK(memcmp(segments, ranges, sizeof ranges) == 0);
    /* It is there now. */
    const double now[] = {0.9, 0.3, 0.1, 0.2};
    CHECK_INT(tsr_segments_lead(tokens, segments, 4, 1, now), 1);
    CHECK(memcmp(tokens, moved, sizeof moved) == 0);
}

TEST(nothing_moves_where_it_would_not_pay)
{
    uint32_t tokens[12] = {0};
    const double looks[] = {0.1, 0.2, 0.4};
    struct tsr_range large[] = {{0, 2}, {2, 4}, {6, 4}}, apart[] = {{0, 3}, {4, 3}, {7, 2}};
    CHECK_INT(tsr_segments_lead(tokens, large, 3, 1, looks), TSR_ENOENT); /* half of the text */
    CHECK_INT(tsr_segments_lead(tokens, large, 2, 1, looks), TSR_ENOENT); /* the only one */
    CHECK_INT(tsr_segments_lead(tokens, large, 1, 1, looks), TSR_ENOENT); /* none */
    CHECK_INT(tsr_segments_lead(tokens, apart, 3, 0, looks), TSR_ENOENT); /* text between them */
    CHECK_INT(tsr_segments_lead(tokens, apart, 3, 4, looks), TSR_EINVAL);
    CHECK_INT(tsr_segments_lead(tokens, apart, 3, 0, NULL), TSR_EINVAL);
    CHECK_INT(apart[2].offset, 7);
}

int main(void)
{
    RUN(looks_are_shares_of_the_questions_attention);
    RUN(looks_follow_the_attention_of_an_ask);
    RUN(nothing_is_looked_at_where_most_is_unknown);
    RUN(a_look_leaves_the_last_answer_alone);
    RUN(the_first_document_is_exact_when_it_leads);
    RUN(a_document_that_leads_and_is_not_cached_is_new);
    RUN(with_a_document_that_leads_everything_is_still_bit_equal_to_a_prefill);
    RUN(what_leads_is_found_as_a_prefix_the_next_time);
    RUN(nothing_leads_behind_what_is_rounded);
    RUN(a_failing_tier_costs_no_bit_of_what_leads);
    RUN(the_document_that_is_looked_at_most_moves_to_the_front);
    RUN(nothing_moves_where_it_would_not_pay);
    return test_end();
}
