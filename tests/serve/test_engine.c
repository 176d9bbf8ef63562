/* Many requests at once: none is lost, each has the answer that it has alone, and turns are fair. */
#include "serve/crowd.h"
#include "serve/task.h"

#include <math.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define VOCAB 128u
#define MODEL "qwen2 layers=2 heads=2 kv_heads=1 head_dim=8 ff=24 vocab=128 context=1024"

/* ---- many at once ---- */

TEST(none_of_200_requests_is_lost_and_each_has_the_answer_it_has_alone)
{
    struct crowd *c = calloc(1, sizeof *c);
    CHECK(c);
    crowd_prompts(c, VOCAB);
    engine_kit_open(&c->kit, MODEL, &(struct tsri_engine_desc){.n_running_max = 1});
    crowd_run(c, 1, false);
    memcpy(c->alone, c->jobs, sizeof c->alone);
    engine_kit_close(&c->kit);
    engine_kit_open(&c->kit, MODEL, &(struct tsri_engine_desc){.n_running_max = 8});
    crowd_run(c, CLIENTS, true);
    crowd_check(c);
    struct tsri_engine_stats stats;
    do /* they are published after a turn */
        tsri_engine_stats(c->kit.engine, &stats);
    while (stats.n_stopped + stats.n_cancelled < JOBS);
    CHECK_INT(stats.n_submitted, JOBS);
    CHECK_INT(stats.n_stopped + stats.n_cancelled, JOBS);
    CHECK(stats.answer_tokens > stats.n_passes);
    engine_kit_close(&c->kit);
    free(c);
}

/* ---- one answer ---- */

/* What a prefill of prompt and answer says, token by token. */
static void greedy(struct engine_kit *k, const uint32_t *prompt, uint32_t n, uint32_t *answer,
                   uint32_t n_answer)
{
    uint32_t tokens[BLEND_KIT_TOKENS_MAX];
    float logits[VOCAB];
    memcpy(tokens, prompt, n * sizeof *tokens);
    for (uint32_t i = 0; i < n_answer; i++) {
        model_kit_prefill(&k->blend.model, tokens, 0, n + i, logits);
        tsr_logits_top(logits, VOCAB, &answer[i]);
        tokens[n + i] = answer[i];
    }
}

TEST(an_answer_is_that_of_the_model)
{
    struct engine_kit k;
    struct engine_job j = {0};
    uint32_t tokens[50], answer[8];
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 50, VOCAB, 3);
    d.n_top = 3;
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    engine_kit_wait(&k, 1);
    greedy(&k, tokens, 50, answer, 8);
    CHECK_INT(j.why, TSRI_END_LENGTH);
    CHECK_INT(j.n_read, 1);
    CHECK_INT(j.n_tokens, 8);
    CHECK(memcmp(j.tokens, answer, sizeof answer) == 0);
    CHECK_INT(j.report.n_tokens, 50);
    CHECK_INT(j.n_top, 3);
    CHECK_INT(j.top_token, j.tokens[7]);
    CHECK(j.top_logprob == j.logprobs[7] && j.top_logprob < 0);
    engine_kit_close(&k);
}

TEST(a_seed_repeats_an_answer)
{
    struct engine_kit k;
    struct engine_job j[3] = {{0}};
    uint32_t tokens[50];
    engine_kit_open(&k, MODEL, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        struct tsri_job_desc d = engine_kit_desc(tokens, 50, VOCAB, 3);
        d.temperature = 1.5;
        d.seed = i / 2;
        d.max_tokens = 32;
        CHECK_INT(engine_kit_submit(&k, &j[i], &d), 0);
    }
    engine_kit_wait(&k, 3);
    CHECK(memcmp(j[0].tokens, j[1].tokens, sizeof j[0].tokens) == 0);
    CHECK(memcmp(j[0].tokens, j[2].tokens, sizeof j[0].tokens) != 0);
    CHECK(isnan(j[0].logprobs[0]));
    engine_kit_close(&k);
}

TEST(an_answer_ends_with_the_context)
{
    struct engine_kit k;
    struct engine_job j = {0};
    uint32_t tokens[1020];
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 1020, VOCAB, 3);
    d.max_tokens = 1000;
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    engine_kit_wait(&k, 1);
    CHECK_INT(j.why, TSRI_END_LENGTH);
    CHECK_INT(j.n_tokens, 4);
    engine_kit_close(&k);
}

/* ---- limits ---- */

TEST(a_full_queue_refuses_and_goes_on)
{
    struct engine_kit k;
    struct engine_job j[40] = {{.holds = true}};
    uint32_t tokens[100], n_taken = 0;
    engine_kit_open(&k, MODEL, &(struct tsri_engine_desc){.n_running_max = 1, .n_queued_max = 3});
    for (uint32_t i = 0; i < 40; i++) {
        struct tsri_job_desc d = engine_kit_desc(tokens, 100, VOCAB, i);
        d.max_tokens = 40;
        int e = engine_kit_submit(&k, &j[n_taken], &d);
        CHECK(e == 0 || e == TSR_EAGAIN);
        if (e) CHECK_HAS(tsr_errmsg(), "3 requests are waiting");
        n_taken += e == 0;
        if (i == 0) engine_kit_await_held(&k);
    }
    CHECK_INT(n_taken, 4); /* one runs */
    engine_kit_release(&k);
    engine_kit_wait(&k, n_taken);
    struct tsri_engine_stats stats;
    tsri_engine_stats(k.engine, &stats);
    CHECK_INT(stats.n_refused, 40 - n_taken);
    struct tsri_job_desc d = engine_kit_desc(tokens, 100, VOCAB, 1);
    CHECK_INT(engine_kit_submit(&k, &j[0], &d), 0);
    engine_kit_wait(&k, n_taken + 1);
    engine_kit_close(&k);
}

TEST(requests_that_cannot_be_answered_are_refused)
{
    struct engine_kit k;
    struct engine_job j = {0};
    static uint32_t tokens[2000];
    engine_kit_open(&k, MODEL, &(struct tsri_engine_desc){.n_slots_max = 512});
    struct tsri_job_desc d = engine_kit_desc(tokens, 1024, VOCAB, 3);
    CHECK_INT(engine_kit_submit(&k, &j, &d), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "context is 1024");
    d.n_tokens = 510;
    CHECK_INT(engine_kit_submit(&k, &j, &d), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "limit 512");
    d.n_tokens = 10;
    d.max_tokens = 0;
    CHECK_INT(engine_kit_submit(&k, &j, &d), TSR_EINVAL);
    d.max_tokens = 1;
    d.n_top = TSRI_ENGINE_TOP_MAX + 1;
    CHECK_INT(engine_kit_submit(&k, &j, &d), TSR_EINVAL);
    d.n_top = 0;
    d.temperature = NAN;
    CHECK_INT(engine_kit_submit(&k, &j, &d), TSR_EINVAL);
    d.temperature = 0;
    struct tsr_range bad = {5, 5};
    d.segments = &bad;
    d.n_segments = 1;
    CHECK_INT(engine_kit_submit(&k, &j, &d), TSR_EPROMPT);
    d.n_segments = 0;
    tokens[3] = VOCAB; /* the run says so */
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    engine_kit_wait(&k, 1);
    CHECK_INT(j.why, TSRI_END_FAILED);
    CHECK_INT(j.err, TSR_EINVAL);
    CHECK_HAS(j.text, "outside the vocabulary");
    engine_kit_close(&k);
}

/* Lets a held engine go on once it is told to close. */
static void *release_when_closing(void *arg)
{
    struct engine_kit *k = arg;
    struct timespec pause = {0, 1000000};
    bool closing = false;
    while (!closing) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&k->engine->lock);
        closing = k->engine->closing;
        pthread_mutex_unlock(&k->engine->lock);
    }
    engine_kit_release(k);
    return NULL;
}

TEST(closing_ends_what_runs_and_what_waits)
{
    struct engine_kit k;
    struct engine_job j[12] = {{.holds = true}};
    uint32_t tokens[200];
    pthread_t releaser;
    struct tsr_range documents = {0, 199};
    engine_kit_open(&k, MODEL, &(struct tsri_engine_desc){.n_running_max = 2});
    for (uint32_t i = 0; i < 12; i++) {
        struct tsri_job_desc d = engine_kit_desc(tokens, 200, VOCAB, i);
        d.max_tokens = 700;
        if (i % 3 == 2) {
            d.mode = TSRI_MODE_LEARN;
            d.segments = &documents;
            d.n_segments = 1;
        }
        CHECK_INT(engine_kit_submit(&k, &j[i], &d), 0);
        if (i == 0) engine_kit_await_held(&k);
    }
    CHECK_INT(pthread_create(&releaser, NULL, release_when_closing, &k), 0);
    tsri_engine_close(k.engine);
    pthread_join(releaser, NULL);
    for (uint32_t i = 0; i < 12; i++) {
        CHECK_INT(j[i].n_ends, 1);
        CHECK_INT(j[i].why, TSRI_END_CANCELLED);
    }
    CHECK(blend_kit_close(&k.blend));
}

/* ---- documents ---- */

static const uint32_t order[] = {2, 0, 1};

static bool has_learned(struct engine_kit *k, uint64_t n_tokens)
{
    struct tsri_engine_stats stats;
    tsri_engine_stats(k->engine, &stats);
    return stats.learned_tokens >= n_tokens && !stats.n_learning;
}

TEST(documents_of_the_first_question_are_stored_after_it)
{
    struct engine_kit k;
    struct engine_job j[4] = {{0}};
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_documents(&k, NULL, TSRI_MODE_AUTO);
    CHECK_INT(engine_kit_submit(&k, &j[0], &d), 0);
    engine_kit_wait(&k, 1);
    CHECK(j[0].report.reasons & TSR_BLEND_FIRST);
    CHECK_INT(j[0].report.n_reused, 0);
    /* The first one, right after the system prompt, is as exact there as alone: it is stored. */
    WAIT_FOR(has_learned(&k, 140 + 166));
    d = engine_kit_documents(&k, order, TSRI_MODE_FAST);
    CHECK_INT(engine_kit_submit(&k, &j[1], &d), 0);
    engine_kit_wait(&k, 2);
    CHECK(j[1].report.n_new < 20 + 12 && j[1].report.n_reused > 0);
    CHECK_INT(j[1].n_tokens, 8);
    /* The same in mode exact: as if nothing were stored. */
    d.mode = TSRI_MODE_EXACT;
    CHECK_INT(engine_kit_submit(&k, &j[2], &d), 0);
    engine_kit_wait(&k, 3);
    CHECK_INT(j[2].report.n_reused, 0);
    uint32_t answer[8];
    greedy(&k, k.blend.tokens, k.blend.n_tokens, answer, 8);
    CHECK(memcmp(j[2].tokens, answer, sizeof answer) == 0);
    /* And once more: the prefix that the last one has left. */
    CHECK_INT(engine_kit_submit(&k, &j[3], &d), 0);
    engine_kit_wait(&k, 4);
    CHECK(j[3].report.n_exact >= 128);
    CHECK(memcmp(j[3].tokens, answer, sizeof answer) == 0);
    engine_kit_close(&k);
}

TEST(documents_are_stored_without_a_question)
{
    struct engine_kit k;
    struct engine_job j[2] = {{0}};
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_documents(&k, NULL, TSRI_MODE_LEARN);
    CHECK_INT(engine_kit_submit(&k, &j[0], &d), 0);
    engine_kit_wait(&k, 1);
    CHECK_INT(j[0].why, TSRI_END_DONE);
    CHECK_INT(j[0].n_learn_events, 4);
    CHECK_INT(j[0].n_read, 0);
    d = engine_kit_documents(&k, order, TSRI_MODE_FAST);
    CHECK_INT(engine_kit_submit(&k, &j[1], &d), 0);
    engine_kit_wait(&k, 2);
    CHECK(j[1].report.n_new < 20 + 12 && j[1].report.n_reused > 0);
    engine_kit_close(&k);
}

/* A client that asks again as soon as it has its answer, so that there is always a request. */
struct steady_client {
    struct tsri_engine *engine;
    struct tsri_job_desc desc;
    atomic_bool stops, was_refused;
    atomic_uint n_answers;
};

static void ask_again(void *arg, const struct tsri_job_event *event)
{
    struct steady_client *c = arg;
    uint64_t id;
    if (event->kind != TSRI_EVENT_END) return;
    atomic_fetch_add(&c->n_answers, 1);
    if (!c->stops && tsri_engine_submit(c->engine, &c->desc, &id)) c->was_refused = true;
}

TEST(documents_are_stored_beside_requests_that_never_pause)
{
    struct engine_kit k;
    struct engine_job j = {0};
    uint32_t tokens[50];
    engine_kit_open(&k, MODEL, NULL);
    struct steady_client c = {.engine = k.engine, .desc = engine_kit_desc(tokens, 50, VOCAB, 7)};
    c.desc.event = ask_again;
    c.desc.arg = &c;
    ask_again(&c, &(struct tsri_job_event){.kind = TSRI_EVENT_END});
    struct tsri_job_desc d = engine_kit_documents(&k, NULL, TSRI_MODE_AUTO);
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    engine_kit_wait(&k, 1);
    CHECK_INT(j.report.n_reused, 0);
    WAIT_FOR(has_learned(&k, 140 + 166));
    unsigned n_until_learned = c.n_answers;
    WAIT_FOR(c.n_answers > n_until_learned + 1); /* it was never without */
    c.stops = true;
    WAIT_FOR(engine_kit_is_idle(&k));
    CHECK(!c.was_refused);
    d = engine_kit_documents(&k, order, TSRI_MODE_FAST);
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    engine_kit_wait(&k, 2);
    CHECK(j.report.n_new < 20 + 12 && j.report.n_reused > 0);
    engine_kit_close(&k);
}

/* ---- fairness ---- */

TEST(a_client_with_many_requests_does_not_keep_another_waiting)
{
    struct engine_kit k;
    struct engine_job greedy_jobs[20] = {{.holds = true}}, j = {0};
    uint32_t tokens[200], n_before = 0;
    engine_kit_open(&k, MODEL, &(struct tsri_engine_desc){.n_running_max = 2});
    for (uint32_t i = 0; i < 20; i++) {
        struct tsri_job_desc d = engine_kit_desc(tokens, 200, VOCAB, i);
        d.max_tokens = 60;
        d.client = 1;
        CHECK_INT(engine_kit_submit(&k, &greedy_jobs[i], &d), 0);
        if (i == 0) engine_kit_await_held(&k);
    }
    struct tsri_job_desc d = engine_kit_desc(tokens, 50, VOCAB, 77);
    d.client = 2;
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    engine_kit_release(&k);
    engine_kit_wait(&k, 21);
    for (uint32_t i = 0; i < 20; i++)
        n_before += greedy_jobs[i].end_at < j.end_at;
    CHECK(n_before <= 6);
    engine_kit_close(&k);
}

/* ---- faults ---- */

static struct tsr_executor_ops faulty;
static uint32_t n_calls, fails_at;

static int faulty_layer(struct tsr_executor_session *s, const struct tsr_model_layer *layer)
{
    uint32_t n = __atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED);
    if (n == __atomic_load_n(&fails_at, __ATOMIC_RELAXED))
        return tsri_fail(TSR_EDEVICE, "call %u fails", n);
    return tsr_executor_tiny()->layer(s, layer);
}

TEST(the_fault_of_one_request_is_not_the_end_of_the_others)
{
    struct engine_kit k;
    struct tsr_model *model;
    struct tsr_blend *blend;
    struct tsr_model_desc md = {.size = sizeof md, .path = MODEL};
    faulty = *tsr_executor_tiny();
    faulty.layer = faulty_layer;
    CHECK_INT(tsr_model_open(&model, &faulty, &md), 0);
    CHECK_INT(tsr_blend_open(&blend, &(struct tsr_blend_desc){.size = sizeof(struct tsr_blend_desc),
                                                              .model = model}),
              0);
    for (uint32_t at = 1; at < 60; at += 7) {
        struct engine_job j[4] = {{0}};
        uint32_t tokens[100], n_failed = 0;
        __atomic_store_n(&n_calls, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&fails_at, at, __ATOMIC_RELAXED);
        engine_kit_init(&k);
        CHECK_INT(
            tsri_engine_open(&k.engine, &(struct tsri_engine_desc){.model = model, .blend = blend}),
            0);
        for (uint32_t i = 0; i < 4; i++) {
            struct tsri_job_desc d = engine_kit_desc(tokens, 20 + i, VOCAB, i);
            CHECK_INT(engine_kit_submit(&k, &j[i], &d), 0);
        }
        engine_kit_wait(&k, 4);
        for (uint32_t i = 0; i < 4; i++) {
            n_failed += j[i].why == TSRI_END_FAILED;
            if (j[i].why == TSRI_END_FAILED) CHECK_HAS(j[i].text, "fails");
            if (j[i].why != TSRI_END_FAILED) CHECK_INT(j[i].n_tokens, 8);
        }
        CHECK(n_failed <= 1); /* a pass that fails is tried again, each alone */
        if (at < 8) CHECK_INT(n_failed, 1);
        tsri_engine_close(k.engine);
    }
    tsr_blend_close(blend);
    tsr_model_close(model);
}

/* Of the call that `fails_at` says: no numbers. */
static int overflowing_logits(struct tsr_executor_session *s, const uint32_t *rows, uint32_t n,
                              float *logits)
{
    int e = tsr_executor_tiny()->logits(s, rows, n, logits);
    if (__atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED) == fails_at)
        for (uint32_t i = 0; i < n * VOCAB; i++)
            logits[i] = NAN;
    return e;
}

TEST(a_prompt_that_overflows_is_a_failure_and_its_session_is_not_used_again)
{
    struct engine_kit k;
    struct engine_job j = {0};
    struct tsr_model_desc md = {.size = sizeof md, .path = MODEL};
    uint32_t tokens[100];
    k.blend = (struct blend_kit){0};
    faulty = *tsr_executor_tiny();
    faulty.logits = overflowing_logits;
    n_calls = 0;
    fails_at = 1;
    CHECK_INT(tsr_model_open(&k.blend.model.model, &faulty, &md), 0);
    struct tsr_blend_desc bd = {.size = sizeof bd, .model = k.blend.model.model};
    CHECK_INT(tsr_blend_open(&k.blend.blend, &bd), 0);
    engine_kit_start(&k, NULL);
    for (int i = 0; i < 2; i++) {
        struct tsri_job_desc d = engine_kit_desc(tokens, 20, VOCAB, 1);
        CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
        engine_kit_wait(&k, (uint32_t)i + 1);
        CHECK_INT(j.why, i ? TSRI_END_LENGTH : TSRI_END_FAILED);
        CHECK_INT(j.n_tokens, i ? 8 : 0);
        if (!i) CHECK_HAS(j.text, "no number");
        WAIT_FOR(engine_kit_is_idle(&k));
        struct tsri_engine_stats stats;
        tsri_engine_stats(k.engine, &stats);
        CHECK_INT(stats.n_slots > 0, i); /* of sessions that are open */
    }
    tsri_engine_close(k.engine);
    tsr_blend_close(k.blend.blend);
    tsr_model_close(k.blend.model.model);
}

/* ---- memory ---- */

static size_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%*u %lu", &pages) == 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Small pieces below one that stays are not given back by free(). */
TEST(what_was_freed_goes_back_when_there_is_nothing_to_do)
{
    enum { N = 2000, BYTES = 16384 };
    static char *pieces[N];
    if (TEST_SANITIZED) SKIP("a sanitizer has an allocator of its own");
    struct engine_kit k;
    struct engine_job j = {0};
    uint32_t tokens[50];
    engine_kit_open(&k, MODEL, NULL);
    for (uint32_t i = 0; i < N; i++)
        pieces[i] = memset(malloc(BYTES), 1, BYTES);
    size_t before = resident_bytes();
    for (uint32_t i = 0; i + 1 < N; i++)
        free(pieces[i]);
    struct tsri_job_desc d = engine_kit_desc(tokens, 50, VOCAB, 3);
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    WAIT_FOR(resident_bytes() + N * BYTES / 2 < before);
    free(pieces[N - 1]);
    engine_kit_close(&k);
}

int main(void)
{
    RUN(none_of_200_requests_is_lost_and_each_has_the_answer_it_has_alone);
    RUN(an_answer_is_that_of_the_model);
    RUN(a_seed_repeats_an_answer);
    RUN(an_answer_ends_with_the_context);
    RUN(a_full_queue_refuses_and_goes_on);
    RUN(requests_that_cannot_be_answered_are_refused);
    RUN(closing_ends_what_runs_and_what_waits);
    RUN(documents_of_the_first_question_are_stored_after_it);
    RUN(documents_are_stored_without_a_question);
    RUN(documents_are_stored_beside_requests_that_never_pause);
    RUN(a_client_with_many_requests_does_not_keep_another_waiting);
    RUN(the_fault_of_one_request_is_not_the_end_of_the_others);
    RUN(a_prompt_that_overflows_is_a_failure_and_its_session_is_not_used_again);
    RUN(what_was_freed_goes_back_when_there_is_nothing_to_do);
    return test_end();
}
