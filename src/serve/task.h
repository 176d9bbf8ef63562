/* task.h - the engine from inside: a request that is answered, and the parts of the engine that work
 * on it. engine.c takes requests and gives turns, turns.c says whose turn it is, session_pool.c keeps
 * KV memory, reading.c runs prompts, writing.c decodes answers.
 *
 * Threads: what is under the engine's lock says so; everything else belongs to the engine's thread.
 * Memory:  a task belongs to the list that it is in, and is freed after its last event.
 * Errors:  enum tsr_err.
 */
#ifndef TSRI_TASK_H
#define TSRI_TASK_H

#include "answer/answer.h"
#include "serve/engine.h"

#include <pthread.h>

/* ---- turns.c: time is shared between clients ---- */

/* A client that has tasks. Who comes new begins with the least time that anybody has had: nobody can
 * save up turns. Under the engine's lock. */
struct tsri_client_turn {
    uint64_t client, used_ns;
    uint32_t n_tasks; /* 0: the entry is free */
};
struct tsri_turns {
    struct tsri_client_turn *items; /* [max]: as many as there can be tasks */
    uint32_t max;
};
TSR_MUST int tsri_turns_init(struct tsri_turns *t, uint32_t tasks_max);
void tsri_turns_fini(struct tsri_turns *t);
/* One more task of a client; its entry stays in place until the last of them leaves. */
struct tsri_client_turn *tsri_turns_enter(struct tsri_turns *t, uint64_t client);
void tsri_turns_leave(struct tsri_client_turn *turn);

/* ---- session_pool.c: KV memory ---- */

struct tsri_spare_session {
    struct tsr_session *session; /* NULL: the entry is free */
    uint32_t n_slots;
    bool taken;
    uint64_t given_at; /* when it was last given back, as a number that grows */
};
/* Sessions stay open for the next task, up to n_slots_max slots of all of them together. */
struct tsri_session_pool {
    struct tsr_model *model;
    struct tsri_spare_session *items; /* [max] */
    uint32_t max, n_slots_max, context;
    uint32_t n_rows_cut; /* see tsr_session_cut() */
    uint64_t clock;
};
TSR_MUST int tsri_session_pool_init(struct tsri_session_pool *p, struct tsr_model *model,
                                    uint32_t n_slots_max, uint32_t sessions_max);
void tsri_session_pool_fini(struct tsri_session_pool *p);
/* The slots of a session that has at least n. */
uint32_t tsri_session_pool_round(const struct tsri_session_pool *p, uint32_t n);
/* Whether there is a session of n slots now. */
bool tsri_session_pool_fits(const struct tsri_session_pool *p, uint32_t n);
/* A spare one that is large enough, or a new one; spare ones are closed for it where they must be.
 * TSR_EAGAIN if it does not fit. */
TSR_MUST int tsri_session_pool_take(struct tsri_session_pool *p, uint32_t n,
                                    struct tsr_session **out);
/* Accepts NULL. spoiled: nobody is to have it again. */
void tsri_session_pool_give(struct tsri_session_pool *p, struct tsr_session *session, bool spoiled);
/* Slots of all open sessions. */
uint32_t tsri_session_pool_slots(const struct tsri_session_pool *p);

/* ---- a task ---- */

enum tsri_task_state { TSRI_TASK_QUEUED = 0, TSRI_TASK_READING, TSRI_TASK_WRITING, TSRI_TASK_OVER };

struct tsri_task {
    struct tsri_task *next; /* in a queue, under lock */
    uint64_t id;
    /* Tokens and segments are its own. Of one that may be kept, the answer follows the prompt. */
    struct tsri_job_desc desc;
    struct tsri_client_turn *turn; /* under lock */
    bool cancelled;                /* under lock */
    bool gone;                     /* the same, as the engine's thread has seen it */
    enum tsri_task_state state;
    enum tsri_end why; /* OVER */
    uint32_t n_slots;  /* that it needs */
    uint64_t queued_ns, started_ns;
    struct tsr_session *session;
    /* reading: */
    struct tsr_ask_desc ask; /* of the run */
    struct tsr_run *run;
    struct tsr_blend_step step;
    bool in_step; /* `step` is not done */
    int result;   /* of the last step */
    struct tsr_blend_report report, look;
    bool looked, leads; /* documents of free order: were looked at, and one of them leads */
    bool learns;        /* after it is kept: its documents are to be stored, too */
    uint32_t n_prompt;  /* tokens without the answer */
    /* with tells_pieces: */
    uint32_t n_known, n_rows; /* tokens that are not computed; rows of the pass that runs */
    uint64_t n_row_layers;    /* computed so far */
    uint64_t told_ns;
    /* learning: */
    uint32_t n_learned;         /* segments that are done */
    uint32_t *short_prompt;     /* the segment that is computed, alone */
    struct tsr_range shorts[2]; /* its segments */
    /* writing: */
    uint32_t token, n_written; /* the last token, whose KV is not there yet */
    bool spoiled;              /* it was no number */
    uint32_t max_tokens;
    uint64_t random;     /* state of the sampler */
    uint64_t written_ns; /* when the last token came */
    float *bias;         /* [n_bias], or NULL */
    uint32_t n_bias;
    uint32_t *draft; /* [n_draft]: the first tokens, if they are known; or NULL */
    uint32_t n_draft;
};

struct tsri_task_list {
    struct tsri_task *first, *last;
    uint32_t n;
};

struct tsri_engine {
    struct tsr_model *model;
    struct tsr_blend *blend;
    struct tsr_model_info info;
    uint32_t n_running_max, n_queued_max;
    struct tsr_decoder *decoder;
    struct tsri_session_pool sessions;
    struct tsri_sampler sampler;
    float *logits;              /* [n_running_max][n_vocab] */
    struct tsri_task **running; /* [n_running]; changed under lock, too */
    uint32_t n_running;
    struct tsri_task *learner; /* documents that are being stored; changed under lock, too */
    int64_t learn_ns;          /* that it may take beside requests; below 0: it took longer */
    double decode_s;           /* of the last pass */
    double token_s;            /* of a pass for one answer alone, lately; 0: there was none */
    struct tsri_engine_stats now;

    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t wake;
    bool has_thread, closing;
    uint64_t next_id;
    struct tsri_turns turns;
    struct tsri_task_list queue, learning;
    struct tsri_engine_stats stats; /* what `now` was after the last turn */
};

/* ---- reading.c ---- */

/* Slots that a task needs, its answer included. */
uint32_t tsri_reading_slots(const struct tsri_engine *e, const struct tsri_job_desc *desc);
/* One piece of the prompt: a step, or a part of a layer. 1: more is left; 0: it is read, and
 * e->logits are those of its last token. */
TSR_MUST int tsri_reading_piece(struct tsri_engine *e, struct tsri_task *t);
/* The same for documents that are to be stored, and for a prompt with its answer. 0: all are. */
TSR_MUST int tsri_reading_learn(struct tsri_engine *e, struct tsri_task *t);
TSR_MUST int tsri_reading_keep(struct tsri_engine *e, struct tsri_task *t);
/* Gives up what is read, and the session. */
void tsri_reading_stop(struct tsri_engine *e, struct tsri_task *t);

/* ---- writing.c ---- */

/* The prompt is read: tells so and gives the first token. */
void tsri_writing_begin(struct tsri_engine *e, struct tsri_task *t);
/* One token for each of n tasks that write. */
void tsri_writing_all(struct tsri_engine *e, struct tsri_task **tasks, uint32_t n);
/* The last event, once; the state is OVER. */
void tsri_writing_end(struct tsri_engine *e, struct tsri_task *t, enum tsri_end why, int err,
                      const char *text);

#endif
