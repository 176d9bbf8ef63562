/* engine_kit.h - an engine over the tiny model, and jobs that remember their events. */
#ifndef TSRI_ENGINE_KIT_H
#define TSRI_ENGINE_KIT_H

#include "serve/engine.h"
#include "support/blend_kit.h"
#include "support/test.h"

#include <pthread.h>

#define KIT_ANSWER_MAX 64u

struct engine_kit {
    struct blend_kit blend;
    struct tsri_engine *engine;
    pthread_mutex_t lock; /* of all jobs */
    pthread_cond_t ended;
    uint32_t n_over, order; /* jobs that have ended; events so far */
    bool held, released;    /* see `holds` of a job */
};

/* A job, and what was told about it. */
struct engine_job {
    struct engine_kit *kit;
    uint64_t id;
    uint32_t tokens[KIT_ANSWER_MAX], n_tokens;
    float logprobs[KIT_ANSWER_MAX], top_logprob;
    uint32_t n_top, top_token;
    uint32_t n_read, n_ends, n_learn_events, n_late; /* n_late: events after the end */
    uint32_t first_at, end_at;                       /* numbers of events */
    enum tsri_end why;
    int err;
    char text[128];
    uint32_t n_pieces, n_first,
        n_there; /* of its prompt: events, and what the first and last said */
    struct tsr_blend_report report;
    uint32_t cancel_after; /* tokens; 0: never */
    /* Stops the engine in the event that its prompt is read, until engine_kit_release(): what a
     * test does meanwhile comes before the next turn, however slow the machine is. */
    bool holds;
};

static void kit_event(void *arg, const struct tsri_job_event *e)
{
    struct engine_job *j = arg;
    bool cancel = false;
    pthread_mutex_lock(&j->kit->lock);
    j->kit->order++;
    j->n_late += j->n_ends;
    if (e->kind == TSRI_EVENT_READ) {
        j->n_read++;
        j->report = *e->report;
        j->kit->held = j->holds;
        pthread_cond_broadcast(&j->kit->ended);
        while (j->holds && !j->kit->released)
            pthread_cond_wait(&j->kit->ended, &j->kit->lock);
    }
    if (e->kind == TSRI_EVENT_PIECE) {
        CHECK(!j->n_read && e->n_done <= e->n_total);
        if (!j->n_pieces++) j->n_first = e->n_done;
        j->n_there = e->n_done;
    }
    if (e->kind == TSRI_EVENT_LEARN) j->n_learn_events++;
    if (e->kind == TSRI_EVENT_TOKEN) {
        if (!j->n_tokens) j->first_at = j->kit->order;
        if (j->n_tokens < KIT_ANSWER_MAX) {
            j->logprobs[j->n_tokens] = e->logprob;
            j->tokens[j->n_tokens++] = e->token;
        }
        j->n_top = e->n_top;
        if (e->n_top) j->top_token = e->top[0].token, j->top_logprob = e->top[0].logprob;
        cancel = j->cancel_after && j->n_tokens == j->cancel_after;
    }
    if (e->kind == TSRI_EVENT_END) {
        j->n_ends++;
        j->why = e->why;
        j->err = e->err;
        snprintf(j->text, sizeof j->text, "%s", e->text);
        j->end_at = j->kit->order;
        j->kit->n_over++;
        pthread_cond_broadcast(&j->kit->ended);
    }
    pthread_mutex_unlock(&j->kit->lock);
    if (cancel) tsri_engine_cancel(j->kit->engine, e->job);
}

static inline void engine_kit_init(struct engine_kit *k)
{
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->ended, NULL);
    k->n_over = k->order = 0;
    k->held = k->released = false;
}

static inline void engine_kit_start(struct engine_kit *k, const struct tsri_engine_desc *limits)
{
    struct tsri_engine_desc d = limits ? *limits : (struct tsri_engine_desc){0};
    d.model = k->blend.model.model;
    d.blend = k->blend.blend;
    engine_kit_init(k);
    CHECK_INT(tsri_engine_open(&k->engine, &d), 0);
}

/* limits may be NULL. */
static inline void engine_kit_open(struct engine_kit *k, const char *model,
                                   const struct tsri_engine_desc *limits)
{
    blend_kit_open(&k->blend, model, TSR_DTYPE_F16, 0);
    engine_kit_start(k, limits);
}

static inline void engine_kit_close(struct engine_kit *k)
{
    tsri_engine_close(k->engine);
    k->engine = NULL;
    CHECK(blend_kit_close(&k->blend));
}

/* Random tokens; the same seed gives the same prompt. */
static inline struct tsri_job_desc engine_kit_desc(uint32_t *tokens, uint32_t n, uint32_t n_vocab,
                                                   uint64_t seed)
{
    seed = seed * 2654435761u + 1;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)(test_rand(&seed) % n_vocab);
    return (struct tsri_job_desc){.tokens = tokens,
                                  .n_tokens = n,
                                  .max_tokens = 8,
                                  .mode = TSRI_MODE_EXACT,
                                  .event = kit_event};
}

#define KIT_SYSTEM 20u
static const uint32_t kit_documents[] = {170, 140, 166};

/* A system prompt, three documents in this order (NULL: 0, 1, 2) and a question. */
static inline struct tsri_job_desc engine_kit_documents(struct engine_kit *k, const uint32_t *order,
                                                        enum tsri_mode mode)
{
    blend_kit_prompt(&k->blend, 5, KIT_SYSTEM, kit_documents, 3, order);
    return (struct tsri_job_desc){.tokens = k->blend.tokens,
                                  .n_tokens = k->blend.n_tokens,
                                  .segments = k->blend.segments,
                                  .n_segments = k->blend.n_segments,
                                  .system = 1,
                                  .max_tokens = 8,
                                  .mode = mode,
                                  .event = kit_event};
}

static inline int engine_kit_submit(struct engine_kit *k, struct engine_job *j,
                                    struct tsri_job_desc *d)
{
    uint32_t cancel_after = j->cancel_after;
    bool holds = j->holds;
    *j = (struct engine_job){.kit = k, .cancel_after = cancel_after, .holds = holds};
    d->arg = j;
    return tsri_engine_submit(k->engine, d, &j->id);
}

/* Until the engine is stopped by a job that holds it. */
static inline void engine_kit_await_held(struct engine_kit *k)
{
    pthread_mutex_lock(&k->lock);
    while (!k->held)
        pthread_cond_wait(&k->ended, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

static inline void engine_kit_release(struct engine_kit *k)
{
    pthread_mutex_lock(&k->lock);
    k->released = true;
    pthread_cond_broadcast(&k->ended);
    pthread_mutex_unlock(&k->lock);
}

/* Nothing is read, written or learned. */
static inline bool engine_kit_is_idle(struct engine_kit *k)
{
    struct tsri_engine_stats stats;
    tsri_engine_stats(k->engine, &stats);
    return !stats.n_learning && !stats.n_reading && !stats.n_writing;
}

/* Until so many jobs of the kit have ended. */
static inline void engine_kit_wait(struct engine_kit *k, uint32_t n)
{
    pthread_mutex_lock(&k->lock);
    while (k->n_over < n)
        pthread_cond_wait(&k->ended, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

#endif
