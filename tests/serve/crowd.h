/* crowd.h - 200 requests of at most 200 prompt and 16 answer tokens by 32 clients, some of them
 * cancelled. */
#ifndef TSRI_CROWD_H
#define TSRI_CROWD_H

#include "serve/engine_kit.h"

enum { JOBS = 200, CLIENTS = 32, PROMPT = 200, ANSWER = 16 };

struct crowd {
    struct engine_kit kit;
    struct engine_job jobs[JOBS], alone[JOBS]; /* alone: the same, one by one */
    struct tsri_job_desc descs[JOBS];
    uint32_t tokens[JOBS][PROMPT];
    uint32_t next;
    bool cancels;
};

/* One client: its next request comes when the last one has ended. */
static inline void *crowd_client(void *arg)
{
    struct crowd *c = arg;
    for (;;) {
        uint32_t i = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
        if (i >= JOBS) return NULL;
        struct engine_job *j = &c->jobs[i];
        j->cancel_after = c->cancels && i % 5 == 3 ? 1 + i % 7 : 0;
        if (engine_kit_submit(&c->kit, j, &c->descs[i]) < 0) abort();
        if (c->cancels && i % 11 == 5) tsri_engine_cancel(c->kit.engine, j->id);
        pthread_mutex_lock(&c->kit.lock);
        while (!j->n_ends)
            pthread_cond_wait(&c->kit.ended, &c->kit.lock);
        pthread_mutex_unlock(&c->kit.lock);
    }
}

static inline void crowd_prompts(struct crowd *c, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        c->descs[i] = engine_kit_desc(c->tokens[i], 4 + (i * 37) % (PROMPT - 3), n_vocab, i % 150);
        c->descs[i].max_tokens = 1 + i % ANSWER;
        c->descs[i].client = i % CLIENTS;
    }
}

static inline void crowd_run(struct crowd *c, uint32_t n_clients, bool cancels)
{
    pthread_t threads[CLIENTS];
    c->next = 0;
    c->cancels = cancels;
    for (uint32_t i = 0; i < n_clients; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, crowd_client, c), 0);
    for (uint32_t i = 0; i < n_clients; i++)
        pthread_join(threads[i], NULL);
}

/* None is lost, and what was said is what was said alone. */
static inline void crowd_check(const struct crowd *c)
{
    const struct engine_job *alone = c->alone;
    uint32_t n_cancelled = 0;
    for (uint32_t i = 0; i < JOBS; i++) {
        const struct engine_job *j = &c->jobs[i];
        bool whole = j->why == TSRI_END_LENGTH || j->why == TSRI_END_STOP;
        CHECK_INT(j->n_ends, 1);
        CHECK_INT(j->n_late, 0);
        CHECK(whole || j->why == TSRI_END_CANCELLED);
        n_cancelled += !whole;
        if (whole) CHECK_INT(j->n_tokens, alone[i].n_tokens);
        CHECK(j->n_tokens <= alone[i].n_tokens);
        CHECK(memcmp(j->tokens, alone[i].tokens, j->n_tokens * sizeof *j->tokens) == 0);
    }
    CHECK(n_cancelled >= 20 && n_cancelled <= JOBS / 2);
}

#endif
