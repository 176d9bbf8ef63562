/* A prompt in pieces: as many slots as it needs, and running answers go on between the pieces. */
#include "serve/engine_kit.h"
#include "serve/task.h"

#include <time.h>

#define MODEL "qwen2 layers=2 heads=2 kv_heads=1 head_dim=8 ff=24 vocab=128 context=1024"
#define BLOCK 16u /* tokens that prefixes are stored by */
#define LONG_MODEL "qwen2 layers=2 heads=2 kv_heads=1 head_dim=8 ff=24 vocab=128 context=8192"

TEST(slots_hold_the_prompt_and_what_follows_it)
{
    struct engine_kit k;
    uint32_t tokens[1000];
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 100, 128, 1);
    CHECK_INT(tsri_reading_slots(k.engine, &d), 108);
    d.max_tokens = 5000;
    CHECK_INT(tsri_reading_slots(k.engine, &d), 1024);
    struct tsr_range documents[2] = {{0, 10}, {10, 50}};
    d.segments = documents;
    d.n_segments = 2;
    d.mode = TSRI_MODE_LEARN;
    CHECK_INT(tsri_reading_slots(k.engine, &d), 51 + tsr_blend_primer(k.blend.blend));
    engine_kit_close(&k);
}

TEST(an_answer_goes_on_while_a_long_prompt_is_read)
{
    struct engine_kit k;
    struct engine_job answer = {.holds = true}, prompt = {0};
    uint32_t tokens[64];
    static uint32_t many[3000];
    engine_kit_open(&k, LONG_MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 64, 128, 1);
    d.max_tokens = 4000;
    CHECK_INT(engine_kit_submit(&k, &answer, &d), 0);
    engine_kit_await_held(&k);
    struct tsri_job_desc long_one = engine_kit_desc(many, 3000, 128, 2);
    long_one.max_tokens = 1;
    CHECK_INT(engine_kit_submit(&k, &prompt, &long_one), 0);
    uint32_t before = k.order; /* the engine is held */
    engine_kit_release(&k);
    pthread_mutex_lock(&k.lock);
    while (!prompt.n_ends)
        pthread_cond_wait(&k.ended, &k.lock);
    pthread_mutex_unlock(&k.lock);
    /* Two layers of 3000 rows are 48 pieces of 128, and a turn takes one or more of them. Read in
     * one turn, the prompt would be second or third. */
    CHECK(prompt.first_at - before >= 5);
    tsri_engine_cancel(k.engine, answer.id);
    engine_kit_wait(&k, 2);
    engine_kit_close(&k);
}

TEST(a_fresh_read_takes_nothing_from_the_cache)
{
    struct engine_kit k;
    struct engine_job jobs[3] = {0};
    uint32_t tokens[600];
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 600, 128, 3);
    for (uint32_t i = 0; i < 3; i++) {
        d.fresh = i == 2;
        CHECK_INT(engine_kit_submit(&k, &jobs[i], &d), 0);
        engine_kit_wait(&k, i + 1);
    }
    CHECK(jobs[1].report.n_exact > 0); /* of the first one */
    CHECK_INT(jobs[2].report.n_exact, 0);
    CHECK_INT(jobs[2].report.n_new, 600);
    CHECK(memcmp(jobs[0].tokens, jobs[2].tokens, sizeof jobs[0].tokens) == 0);
    engine_kit_close(&k);
}

/* ---- documents in any order ---- */

static void answer(struct engine_kit *k, struct tsri_job_desc *d, struct engine_job *j,
                   uint32_t nth)
{
    CHECK_INT(engine_kit_submit(k, j, d), 0);
    engine_kit_wait(k, nth);
}

/* Behind the system prompt, documents are stored as they are there: the one that leads is exact. */
TEST(where_the_order_is_free_the_document_that_is_looked_at_leads)
{
    struct engine_kit k;
    struct engine_job j[5] = {{0}};
    double looks[4];
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_documents(&k, NULL, TSRI_MODE_LEARN);
    answer(&k, &d, &j[0], 1);
    struct tsr_ask_desc ask = blend_kit_ask_of(&k.blend, TSR_SELECT_NONE, 0, 0);
    CHECK_INT(tsr_blend_look(k.blend.blend, &ask, looks, NULL), 1);
    uint32_t most = 1;
    for (uint32_t i = 2; i < 4; i++)
        if (looks[i] > looks[most]) most = i;
    /* The others first, so that it must move. */
    const uint32_t last[] = {most % 3, (most + 1) % 3, most - 1};
    d = engine_kit_documents(&k, last, TSRI_MODE_FAST);
    answer(&k, &d, &j[1], 2);
    CHECK_INT(j[1].report.n_exact, KIT_SYSTEM + kit_documents[last[0]]);
    d.free_order = true;
    answer(&k, &d, &j[2], 3);
    CHECK_INT(j[2].report.n_exact, KIT_SYSTEM + kit_documents[most - 1]);
    CHECK(j[2].report.query_s > j[1].report.query_s);
    CHECK_INT(j[2].report.n_tokens, j[1].report.n_tokens);
    /* The same as a request that gives this order. */
    const uint32_t moved[] = {last[2], last[0], last[1]};
    d = engine_kit_documents(&k, moved, TSRI_MODE_FAST);
    answer(&k, &d, &j[3], 4);
    CHECK_INT(j[3].n_tokens, j[2].n_tokens);
    CHECK(memcmp(j[3].tokens, j[2].tokens, sizeof j[2].tokens) == 0);
    engine_kit_close(&k);
}

TEST(in_mode_exact_nothing_is_moved)
{
    struct engine_kit k;
    struct engine_job j[3] = {{0}};
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_documents(&k, NULL, TSRI_MODE_LEARN);
    answer(&k, &d, &j[0], 1);
    d.mode = TSRI_MODE_EXACT;
    for (uint32_t i = 1; i < 3; i++) {
        d.free_order = i == 2;
        answer(&k, &d, &j[i], i + 1);
    }
    CHECK(memcmp(j[1].tokens, j[2].tokens, sizeof j[1].tokens) == 0);
    CHECK(j[2].report.query_s == 0);
    engine_kit_close(&k);
}

TEST(the_first_question_about_documents_of_free_order_is_read_in_full)
{
    struct engine_kit k;
    struct engine_job j[1] = {{0}};
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_documents(&k, NULL, TSRI_MODE_AUTO);
    d.free_order = true;
    answer(&k, &d, &j[0], 1);
    CHECK(j[0].report.reasons & TSR_BLEND_FIRST);
    CHECK_INT(j[0].report.n_reused, 0);
    engine_kit_close(&k);
}

/* ---- conversations ---- */

/* The second prompt of a conversation: the first one, its answer, and a question. */
static struct tsri_job_desc second_turn(uint32_t *tokens, const struct tsri_job_desc *first,
                                        const struct engine_job *answer)
{
    struct tsri_job_desc d = *first;
    uint32_t n = first->n_tokens;
    memcpy(tokens, first->tokens, n * sizeof *tokens);
    memcpy(tokens + n, answer->tokens, answer->n_tokens * sizeof *tokens);
    n += answer->n_tokens;
    for (uint32_t i = 0; i < 20; i++)
        tokens[n++] = 5 + i;
    d.tokens = tokens;
    d.n_tokens = n;
    return d;
}

/* Asks in two turns; the second answer and its report are in jobs[1]. */
static void two_turns(enum tsri_mode mode, enum tsri_keeping keeps, bool fresh,
                      struct engine_job jobs[2])
{
    struct engine_kit k;
    uint32_t tokens[300], more[500];
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 300, 128, 9);
    d.mode = mode;
    d.keeps = keeps;
    d.fresh = fresh;
    d.max_tokens = 60;
    d.ignore_end = true;
    d.logprobs = true;
    CHECK_INT(engine_kit_submit(&k, &jobs[0], &d), 0);
    engine_kit_wait(&k, 1);
    WAIT_FOR(engine_kit_is_idle(&k));
    d = second_turn(more, &d, &jobs[0]);
    CHECK_INT(engine_kit_submit(&k, &jobs[1], &d), 0);
    engine_kit_wait(&k, 2);
    CHECK_INT(jobs[1].why, TSRI_END_LENGTH);
    engine_kit_close(&k);
}

static bool same_answers(const struct engine_job *one, const struct engine_job *other)
{
    return one->n_tokens == other->n_tokens &&
           memcmp(one->tokens, other->tokens, sizeof one->tokens) == 0 &&
           memcmp(one->logprobs, other->logprobs, one->n_tokens * sizeof *one->logprobs) == 0;
}

TEST(the_next_turn_finds_the_answer_with_the_bits_of_a_full_read)
{
    static const enum tsri_mode modes[] = {TSRI_MODE_EXACT, TSRI_MODE_AUTO};
    struct engine_job full[2] = {0}, jobs[2] = {0};
    two_turns(TSRI_MODE_EXACT, TSRI_KEEP_NOTHING, true, full);
    CHECK_INT(full[1].report.n_exact, 0);
    for (uint32_t i = 0; i < TSRI_COUNT(modes); i++) {
        two_turns(modes[i], TSRI_KEEP_EXACT, false, jobs);
        /* Whole blocks of 16 tokens; the last one has the question in it. */
        CHECK_INT(jobs[1].report.n_exact, (300 + 60) / BLOCK * BLOCK);
        CHECK(same_answers(&jobs[1], &full[1]));
    }
    two_turns(TSRI_MODE_EXACT, TSRI_KEEP_NOTHING, false, jobs);
    CHECK_INT(jobs[1].report.n_exact, 300 / BLOCK * BLOCK);
    CHECK(same_answers(&jobs[1], &full[1]));
}

TEST(progress_is_told_to_those_who_want_it)
{
    struct engine_kit k;
    struct engine_job jobs[3] = {0};
    uint32_t tokens[300];
    engine_kit_open(&k, MODEL, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        struct tsri_job_desc d = engine_kit_desc(tokens, 300, 128, 9);
        d.tells_pieces = i > 0;
        d.fresh = i == 1;
        CHECK_INT(engine_kit_submit(&k, &jobs[i], &d), 0);
        engine_kit_wait(&k, i + 1);
    }
    engine_kit_close(&k);
    CHECK_INT(jobs[0].n_pieces, 0);
    CHECK(jobs[1].n_pieces > 0 && jobs[2].n_pieces > 0);
    CHECK_INT(jobs[1].n_first, 0);
    CHECK(jobs[1].n_there >= jobs[1].n_first);
    /* What is cached is there at once. */
    CHECK_INT(jobs[2].n_first, 300 / BLOCK * BLOCK);
}

int main(void)
{
    RUN(slots_hold_the_prompt_and_what_follows_it);
    RUN(an_answer_goes_on_while_a_long_prompt_is_read);
    RUN(a_fresh_read_takes_nothing_from_the_cache);
    RUN(where_the_order_is_free_the_document_that_is_looked_at_leads);
    RUN(in_mode_exact_nothing_is_moved);
    RUN(the_first_question_about_documents_of_free_order_is_read_in_full);
    RUN(progress_is_told_to_those_who_want_it);
    RUN(the_next_turn_finds_the_answer_with_the_bits_of_a_full_read);
    return test_end();
}
