/* Documents are computed behind a primer: what they are then, that one entry serves every prompt, and
 * that the KV of another text is never taken for it. */
#include "blend/passes.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <pthread.h>

static const char *const archs[] = {"llama", "qwen2", "qwen3"};
static const uint32_t docs[] = {70, 40, 66, 33}, order[] = {2, 0, 3, 1};
enum { DOCS = 70 + 40 + 66 + 33, PRIMER = 37 };

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, 128 * sizeof *a) == 0;
}

/* Another seed is another primer of the same length. */
static void prime(struct blend_kit *k, uint64_t seed)
{
    k->profile.context = TSR_CONTEXT_PRIMER;
    k->n_primer = PRIMER;
    model_kit_tokens(&k->model, k->primer, PRIMER, 5000 + seed);
    blend_kit_reopen(k);
}

static void open_primed(struct blend_kit *k, const char *path, uint32_t dtype, uint32_t flags)
{
    blend_kit_open(k, path, dtype, flags);
    prime(k, 1);
    CHECK_INT(tsr_blend_primer(k->blend), PRIMER);
}

/* Asks step by step; returns how many rows of the primer were computed. */
static uint32_t primer_rows(struct blend_kit *k, uint32_t flags)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_NONE, 0, flags);
    struct tsr_blend_step step;
    struct tsr_run *run;
    uint32_t n = 0;
    k->report = (struct tsr_blend_report){.size = sizeof k->report};
    CHECK_INT(tsr_blend_start(&run, k->blend, &ask, NULL), 0);
    for (int result = 0; tsr_blend_next(run, result, &step) > 0;) {
        for (uint32_t i = 0; step.kind == TSR_STEP_BEGIN && i < step.pass.n_rows; i++)
            n += step.pass.rows[i].slot >= k->n_tokens;
        result = tsri_blend_step(k->model.session, &step);
        CHECK_INT(result, 0);
    }
    tsr_blend_end(run, k->logits, &k->report);
    return n;
}

/* ---- what is computed ---- */

TEST(a_document_is_what_a_prefill_of_primer_and_document_gives)
{
    for (uint32_t a = 0; a < 3; a++) {
        struct blend_kit k;
        struct model_kit plain;
        uint32_t tokens[PRIMER + 70];
        float logits[128];
        char path[64];
        open_primed(&k, archs[a], TSR_DTYPE_F32, 0);
        /* The first document begins where the primer ends, so that nothing is turned. */
        blend_kit_prompt(&k, 1, PRIMER, docs, 4, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        snprintf(path, sizeof path, "head_dim=8 ff=40 %s", archs[a]);
        model_kit_open(&plain, path, TSR_DTYPE_F32, 256);
        memcpy(tokens, k.primer, PRIMER * sizeof *tokens);
        memcpy(tokens + PRIMER, k.tokens + PRIMER, 70 * sizeof *tokens);
        model_kit_prefill(&plain, tokens, 0, PRIMER + 70, logits);
        size_t row = (size_t)plain.info.n_kv_heads * plain.info.head_dim * sizeof(float);
        for (uint32_t l = 0; l < plain.info.n_layers; l++)
            for (uint32_t i = PRIMER; i < PRIMER + 70; i++)
                for (uint32_t p = 0; p < 2; p++)
                    CHECK(memcmp(model_kit_row(&k.model, p, l, i), model_kit_row(&plain, p, l, i),
                                 row) == 0);
        /* Only the system prompt is exact: the primer is not in the prompt. */
        CHECK_INT(k.report.n_exact, PRIMER);
        CHECK_INT(k.report.n_chunks, 4);
        model_kit_close(&plain);
        CHECK(blend_kit_close(&k));
    }
}

TEST(the_first_answer_is_the_second_and_the_one_from_a_tier_and_of_the_next_process)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++)
        for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++) {
            struct blend_kit k;
            float alone[128];
            open_primed(&k, archs[selector % 3], TSR_DTYPE_F16, flags);
            blend_kit_prompt(&k, selector, 24, docs, 4, NULL);
            blend_kit_ask_alone(&k, selector, 0.2, TSR_ASK_FILL);
            memcpy(alone, k.logits, sizeof alone);
            for (uint32_t round = 0; round < 4; round++) {
                CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
                CHECK(same(k.logits, alone));
                CHECK_INT(k.report.n_filled, round == 0 ? 24 + DOCS : 0);
                if (round == 1) blend_kit_make_cold(&k);
                if (round == 2) blend_kit_reopen(&k);
            }
            CHECK(blend_kit_close(&k));
        }
}

TEST(computing_everything_is_bit_equal_to_a_prefill)
{
    struct blend_kit k;
    float prefill[128];
    open_primed(&k, "qwen3", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
    blend_kit_prefill(&k, prefill);
    for (uint32_t round = 0; round < 2; round++) {
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_FILL), 0);
        CHECK(same(k.logits, prefill));
    }
    /* Prefixes are as exact as ever. */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_FILL | TSR_ASK_PREFIX), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_PREFIX), 0);
    CHECK(same(k.logits, prefill));
    CHECK(k.report.n_exact >= k.n_tokens / 16 * 16);
    CHECK(blend_kit_close(&k));
}

/* ---- one entry for every prompt ---- */

TEST(one_entry_serves_every_system_prompt_and_every_place)
{
    for (uint32_t flags = 0; flags <= TSR_BLEND_INT8; flags++) {
        struct blend_kit k;
        open_primed(&k, "llama", TSR_DTYPE_F16, flags);
        blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        CHECK_INT(k.report.n_stored, 20 + DOCS);
        for (uint32_t n_system = 0; n_system <= 31; n_system += 31) {
            blend_kit_prompt(&k, 1, n_system, docs, 4, order);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
            CHECK_INT(k.report.n_filled, n_system);
            CHECK_INT(k.report.n_reused, DOCS);
            CHECK_INT(k.report.n_exact, n_system);
        }
        CHECK(blend_kit_close(&k));
    }
}

static int goes_on(void *arg, const struct tsr_learn *learn)
{
    uint32_t *last = arg;
    CHECK(learn->n_tokens_done >= *last);
    *last = learn->n_tokens_done;
    return 0;
}

TEST(documents_are_stored_after_the_first_question_without_the_system_prompt)
{
    struct blend_kit k;
    float prefill[128], second[128];
    open_primed(&k, "qwen2", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
    blend_kit_prefill(&k, prefill);
    struct tsr_ask_desc ask =
        blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_FIRST);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_FIRST), 0);
    CHECK(same(k.logits, prefill));
    uint32_t last = 0;
    CHECK_INT(tsr_blend_learn(k.blend, &ask, goes_on, &last), DOCS);
    CHECK(last > 0);
    CHECK_INT(tsr_blend_learn(k.blend, &ask, NULL, NULL), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL | TSR_ASK_FIRST), 0);
    CHECK_INT(k.report.n_reused, DOCS);
    CHECK_INT(k.report.n_filled, 0);
    memcpy(second, k.logits, sizeof second);
    blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
    CHECK(same(k.logits, second));
    CHECK(blend_kit_close(&k));
}

/* ---- the primer's own KV ---- */

TEST(the_primer_is_computed_once)
{
    struct blend_kit k;
    float logits[128];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 2, NULL);
    CHECK_INT(primer_rows(&k, TSR_ASK_FILL), PRIMER);
    CHECK_INT(primer_rows(&k, TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 0);
    for (uint64_t seed = 2; seed < 6; seed++) {
        blend_kit_prompt(&k, seed, 20, docs, (uint32_t)seed % 4 + 1, NULL);
        CHECK_INT(primer_rows(&k, TSR_ASK_FILL), 0); /* kept; then stored; then in a tier */
        CHECK(k.report.n_filled > 20);
        memcpy(logits, k.logits, sizeof logits);
        blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
        CHECK(same(k.logits, logits));
        if (seed == 4) blend_kit_make_cold(&k);
        if (seed > 2) blend_kit_reopen(&k);
    }
    CHECK(blend_kit_close(&k));
}

TEST(a_primer_that_cannot_be_loaded_is_computed)
{
    for (uint32_t how = 0; how < 3; how++) {
        struct blend_kit k;
        float logits[128];
        open_primed(&k, "qwen3", TSR_DTYPE_F16, 0);
        blend_kit_prompt(&k, 1, 20, docs, 2, NULL);
        CHECK_INT(primer_rows(&k, TSR_ASK_FILL), PRIMER);
        blend_kit_make_cold(&k);
        blend_kit_reopen(&k);
        blend_kit_prompt(&k, 2, 0, docs, 2, NULL);
        struct tsr_range whole = {0, PRIMER};
        struct tsr_prompt prompt = kit_segments_prompt(k.primer, PRIMER, &whole, 1);
        struct tsr_key key;
        CHECK_INT(tsr_space_keys(tsr_blend_space(k.blend), &prompt, &key, 1), 1);
        if (how == 0) CHECK(mem_tier_store_damage(&k.tier.mem, &key, 4711));
        if (how == 1) fake_tier_fail(&k.tier, FAKE_GET, 1, 100, TSR_EIO);
        if (how == 2) CHECK_INT(tsr_cache_clear(k.cache.cache, NULL), 4);
        CHECK_INT(primer_rows(&k, TSR_ASK_FILL), PRIMER);
        memcpy(logits, k.logits, sizeof logits);
        blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
        CHECK(same(k.logits, logits));
        CHECK(blend_kit_close(&k));
    }
}

struct asker {
    struct blend_kit *k;
    uint64_t seed;
    float logits[4][128];
};

static void *ask_often(void *arg)
{
    struct asker *x = arg;
    /* Not all of it: threads of the cache count in its tier. */
    struct blend_kit own = {.model = x->k->model, .blend = x->k->blend};
    CHECK_INT(tsr_session_open(&own.model.session, own.model.model, BLEND_KIT_TOKENS_MAX), 0);
    for (uint32_t i = 0; i < 4; i++) {
        blend_kit_prompt(&own, x->seed + i, 20, docs, 3, NULL);
        CHECK_INT(blend_kit_ask(&own, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        memcpy(x->logits[i], own.logits, sizeof own.logits);
    }
    tsr_session_close(own.model.session);
    return NULL;
}

TEST(threads_share_one_primer)
{
    static struct asker x[3];
    struct blend_kit k;
    pthread_t threads[3];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    for (uint32_t i = 0; i < 3; i++) {
        x[i] = (struct asker){.k = &k, .seed = 10 * i};
        CHECK_INT(pthread_create(&threads[i], NULL, ask_often, &x[i]), 0);
    }
    for (uint32_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 12; i++) {
        blend_kit_prompt(&k, x[i / 4].seed + i % 4, 20, docs, 3, NULL);
        blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
        CHECK(same(k.logits, x[i / 4].logits[i % 4]));
    }
    CHECK(blend_kit_close(&k));
}

/* ---- never another text's KV ---- */

TEST(another_primer_is_a_miss)
{
    struct blend_kit k;
    float answers[2][128];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        prime(&k, i % 2);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        CHECK_INT(k.report.n_filled, i == 0 ? 20 + DOCS : i == 1 ? DOCS : 0);
        if (i < 2) {
            memcpy(answers[i], k.logits, sizeof answers[i]);
            blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
        }
        CHECK(same(k.logits, answers[i % 2]));
        if (i == 2) blend_kit_make_cold(&k);
    }
    CHECK(!same(answers[0], answers[1]));
    /* The first tokens of a primer are another primer, too. */
    k.n_primer--;
    blend_kit_reopen(&k);
    for (uint32_t flags = 0; flags <= TSR_ASK_ANY; flags += TSR_ASK_ANY) {
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, flags), 0);
        CHECK_INT(k.report.n_reused, 0);
        CHECK_INT(k.report.n_new, k.n_tokens - 20);
    }
    CHECK(blend_kit_close(&k));
}

/* Also when runs at any offset are looked for. */
TEST(what_was_computed_behind_a_system_prompt_or_alone_is_not_taken)
{
    for (uint32_t context = TSR_CONTEXT_SAME; context <= TSR_CONTEXT_PURE; context++)
        for (uint32_t any = 0; any < 2; any++) {
            uint32_t flags = TSR_ASK_FILL | (any ? TSR_ASK_ANY : 0);
            struct blend_kit k;
            float first[128];
            blend_kit_open(&k, "qwen2", TSR_DTYPE_F16, 0);
            k.profile.context = context;
            blend_kit_reopen(&k);
            blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, flags), 0);
            memcpy(first, k.logits, sizeof first);
            prime(&k, 1);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, flags), 0);
            CHECK_INT(k.report.n_filled, DOCS);
            blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
            CHECK(!same(k.logits, first));
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, flags), 0);
            CHECK_INT(k.report.n_filled, 0);
            /* And the other way round. */
            k.profile.context = context;
            blend_kit_reopen(&k);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, flags), 0);
            CHECK(same(k.logits, first));
            CHECK_INT(k.report.n_filled, 0);
            CHECK(blend_kit_close(&k));
        }
}

/* A prompt that begins with the primer's own text has a right to its KV, at token 0 alone. */
TEST(the_primer_as_a_document_is_exact_where_it_was_computed)
{
    struct blend_kit k;
    float prefill[128];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 2, NULL);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    blend_kit_prompt(&k, 1, PRIMER, docs, 0, NULL);
    memcpy(k.tokens, k.primer, PRIMER * sizeof *k.tokens);
    blend_kit_prefill(&k, prefill);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, 0), 0);
    CHECK_INT(k.report.n_exact, PRIMER);
    CHECK(same(k.logits, prefill));
    CHECK(blend_kit_close(&k));
}

TEST(another_tenant_finds_nothing)
{
    struct blend_kit k;
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
    CHECK_INT(primer_rows(&k, TSR_ASK_FILL), PRIMER);
    struct tsr_blend *first = k.blend;
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .model = k.model.model,
                                    .cache = k.cache.cache,
                                    .profile = &k.profile,
                                    .blend_min_tokens = UINT32_MAX,
                                    .salt = "another",
                                    .primer = k.primer,
                                    .n_primer = k.n_primer};
    CHECK_INT(tsr_blend_open(&k.blend, &config), 0);
    CHECK_INT(primer_rows(&k, TSR_ASK_FILL), PRIMER);
    CHECK_INT(k.report.n_filled, 20 + DOCS);
    CHECK_INT(k.report.n_stored, 20 + DOCS);
    tsr_blend_close(first);
    CHECK(blend_kit_close(&k));
}

/* ---- room ---- */

TEST(without_room_for_the_primer_what_is_known_is_reused_and_the_rest_computed)
{
    struct blend_kit k;
    float prefill[128];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    blend_kit_prompt(&k, 1, 20, docs, 4, NULL);
    struct tsr_session *wide = k.model.session;
    for (uint32_t spare = 0; spare <= PRIMER; spare += PRIMER - 1) {
        CHECK_INT(tsr_session_open(&k.model.session, k.model.model, k.n_tokens + spare), 0);
        blend_kit_prefill(&k, prefill);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
        CHECK(same(k.logits, prefill));
        CHECK(k.report.reasons & TSR_BLEND_ROOM);
        CHECK_INT(k.report.n_filled, spare ? 0 : 20); /* the system prompt needs none */
        tsr_session_close(k.model.session);
    }
    /* One slot more is enough. */
    CHECK_INT(tsr_session_open(&k.model.session, k.model.model, k.n_tokens + PRIMER), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, DOCS);
    CHECK(!(k.report.reasons & TSR_BLEND_ROOM));
    tsr_session_close(k.model.session);
    CHECK_INT(tsr_session_open(&k.model.session, k.model.model, k.n_tokens), 0);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_reused, DOCS);
    CHECK(!(k.report.reasons & TSR_BLEND_ROOM));
    tsr_session_close(k.model.session);
    k.model.session = wide;
    CHECK(blend_kit_close(&k));
}

TEST(a_document_too_long_for_the_positions_behind_the_primer_is_computed_in_the_prompt)
{
    static const uint32_t sizes[] = {100 - PRIMER, 100 - PRIMER + 1};
    struct blend_kit k;
    struct model_kit memory; /* an engine's may be longer than the model's context */
    memset(&k, 0, sizeof k);
    model_kit_open(&memory, "llama head_dim=8 ff=40", TSR_DTYPE_F16, 200);
    for (uint32_t i = 0; i < 2; i++) {
        struct tsr_blend_step step;
        struct tsr_run *run;
        model_kit_open(&k.model, "llama head_dim=8 ff=40 context=100", TSR_DTYPE_F16, 100);
        tsr_profile_init(&k.profile);
        prime(&k, 1);
        blend_kit_prompt(&k, 1, 0, &sizes[i], 1, NULL);
        struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
        const struct tsr_kv_layout *layout = tsr_session_layout(memory.session);
        CHECK_INT(tsr_blend_start(&run, k.blend, &ask, layout), 0);
        CHECK_INT(tsr_blend_next(run, 0, &step), 1);
        CHECK_INT(step.pass.n_rows, i == 0 ? PRIMER : k.n_tokens);
        CHECK_INT(run->plan.reasons, i == 0 ? 0 : TSR_BLEND_ROOM);
        tsr_blend_end(run, NULL, NULL);
        tsr_blend_close(k.blend);
        k.blend = NULL;
        model_kit_close(&k.model);
    }
    model_kit_close(&memory);
}

/* ---- opening ---- */

TEST(a_primer_without_tokens_or_with_wrong_ones_is_refused)
{
    struct blend_kit k;
    static uint32_t many[TSR_PRIMER_TOKENS_MAX + 1];
    open_primed(&k, "llama", TSR_DTYPE_F16, 0);
    struct tsr_blend *b;
    struct tsr_blend_desc config = {
        .size = sizeof config, .model = k.model.model, .profile = &k.profile};
    CHECK_INT(tsr_blend_open(&b, &config), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "tokenizer");
    config.primer = many;
    config.n_primer = TSR_PRIMER_TOKENS_MAX + 1;
    CHECK_INT(tsr_blend_open(&b, &config), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "1025 tokens");
    config.n_primer = TSR_PRIMER_TOKENS_MAX;
    CHECK_INT(tsr_blend_open(&b, &config), 0);
    tsr_blend_close(b);
    many[7] = 128;
    CHECK_INT(tsr_blend_open(&b, &config), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "token 7 of the primer");
    k.profile.context = TSR_CONTEXT_SAME; /* then nobody asks */
    CHECK_INT(tsr_blend_open(&b, &config), 0);
    CHECK_INT(tsr_blend_primer(b), 0);
    tsr_blend_close(b);
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(a_document_is_what_a_prefill_of_primer_and_document_gives);
    RUN(the_first_answer_is_the_second_and_the_one_from_a_tier_and_of_the_next_process);
    RUN(computing_everything_is_bit_equal_to_a_prefill);
    RUN(one_entry_serves_every_system_prompt_and_every_place);
    RUN(documents_are_stored_after_the_first_question_without_the_system_prompt);
    RUN(the_primer_is_computed_once);
    RUN(a_primer_that_cannot_be_loaded_is_computed);
    RUN(threads_share_one_primer);
    RUN(another_primer_is_a_miss);
    RUN(what_was_computed_behind_a_system_prompt_or_alone_is_not_taken);
    RUN(the_primer_as_a_document_is_exact_where_it_was_computed);
    RUN(another_tenant_finds_nothing);
    RUN(without_room_for_the_primer_what_is_known_is_reused_and_the_rest_computed);
    RUN(a_document_too_long_for_the_positions_behind_the_primer_is_computed_in_the_prompt);
    RUN(a_primer_without_tokens_or_with_wrong_ones_is_refused);
    return test_end();
}
