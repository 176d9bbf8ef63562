/* engine.h - many answers at once from one model. Prompts are read from the cache or computed, in
 * pieces, while the answers of others go on.
 *
 * One thread of the engine's own runs the model, in turns. A turn decodes one token of every answer
 * that is being written, in one pass over the weights, and then gives time to the prompt whose turn it
 * is. When there is nothing to answer, documents are stored for later questions.
 *
 * Turns are fair between clients: the one that has had the least time is next. Within a client,
 * requests are admitted in order.
 *
 * Threads: submit, cancel and stats may be called from any thread, also within an event. Events come
 *          on the engine's thread, one at a time, in order for each job; they must not wait.
 * Memory:  what a desc points to is copied. Jobs are named by number, never by pointer: cancel() of
 *          one that has ended does nothing. What an event points to is valid until it returns.
 * Errors:  enum tsr_err. TSR_EAGAIN: the queue is full, try later. TSR_ERANGE: the prompt is too long,
 *          and tsr_errmsg() names the limit.
 */
#ifndef TSRI_ENGINE_H
#define TSRI_ENGINE_H

#include "base/base.h"

#include <tessera/blend.h>

#include <stdbool.h>

enum tsri_mode {
    TSRI_MODE_AUTO = 0, /* the gate of the profile decides */
    /* Only KV that has the bits of a prefill. The answer does not depend on what else is running. */
    TSRI_MODE_EXACT,
    TSRI_MODE_FAST, /* documents as they are stored, with the profile's ratio; no gate */
    /* No answer: the documents of the prompt are stored, beside other requests in a small share of
     * the time. One token must follow the last one, any. max_tokens and everything that chooses
     * tokens is not used. */
    TSRI_MODE_LEARN,
    TSRI_MODE_KEEP /* the engine's own, see enum tsri_keeping */
};

/* What becomes of an answer. The next prompt of a conversation has this one and its answer at its
 * front. Decoding rounds differently than reading, so the KV of an answer is not that of a prompt:
 * later, in the time that is left or a small share of it, prompt and answer are read as the next
 * prompt would read them, and stored as an exact prefix. */
enum tsri_keeping {
    TSRI_KEEP_NOTHING = 0,
    TSRI_KEEP_EXACT, /* if the prompt was read exactly: only the answer is left to compute */
    TSRI_KEEP_ALWAYS /* also after a blend, whose prompt is then computed whole */
};

#define TSRI_ENGINE_TOP_MAX 20u

struct tsri_engine_desc {
    struct tsr_model *model; /* outlives the engine, as does blend */
    struct tsr_blend *blend; /* of that model, with a cache or without */
    uint32_t n_running_max;  /* answers at once, up to TSR_DECODER_ROWS_MAX; 0: 4 */
    uint32_t n_queued_max;   /* 0: 64; documents to store have a queue of their own, as long */
    uint32_t n_slots_max;    /* tokens of all running jobs together; 0: 4 contexts, at most 32768 */
};

struct tsri_job_event;
typedef void (*tsri_job_event_fn)(void *arg, const struct tsri_job_event *event);

struct tsri_job_desc {
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t n_segments;
    const struct tsr_range *segments; /* as in struct tsr_ask_desc */
    uint32_t system;                  /* likewise */
    uint32_t max_tokens;              /* of the answer, at least 1; less if the context ends */
    enum tsri_mode mode;
    uint32_t n_top;    /* likely tokens beside the chosen one; up to TSRI_ENGINE_TOP_MAX */
    bool logprobs;     /* of the chosen tokens; implied by n_top */
    bool tells_pieces; /* TSRI_EVENT_PIECE is wanted */
    bool ignore_end;   /* the token that ends an answer is one like others */
    bool free_order;   /* segments after the system prompt may change places; modes AUTO and FAST */
    enum tsri_keeping keeps;
    bool fresh;         /* mode EXACT: nothing comes from the cache, and nothing goes into it */
    double temperature; /* 0: always the most likely token */
    double top_p;       /* 0 and 1: all */
    uint64_t seed;
    uint64_t client; /* turns are fair between clients */
    double full_s;   /* what a full read takes, as far as known, else 0: see tsr_ask_desc.row_s */
    tsri_job_event_fn event;
    void *arg;
};

enum tsri_event_kind {
    TSRI_EVENT_READ = 1, /* the prompt is read, the first token follows: report */
    TSRI_EVENT_TOKEN,    /* token, logprob, top */
    TSRI_EVENT_LEARN, /* mode LEARN: n_done of n_total documents are stored; report of the last */
    TSRI_EVENT_END,   /* the last one: why, err, text */
    /* Before READ, the first time when it is known what is cached: n_done of n_total tokens of the
     * prompt are cached or computed. A guess: what is computed twice counts once. */
    TSRI_EVENT_PIECE
};

enum tsri_end {
    TSRI_END_STOP = 1, /* the model ended its answer */
    TSRI_END_LENGTH,   /* max_tokens, or the end of the context */
    TSRI_END_DONE,     /* of mode LEARN: everything is stored */
    TSRI_END_CANCELLED,
    TSRI_END_FAILED /* err and text */
};

struct tsri_token_chance {
    uint32_t token;
    float logprob;
};

struct tsri_job_event {
    enum tsri_event_kind kind;
    enum tsri_end why;
    uint64_t job;
    const struct tsr_blend_report *report;
    double queued_s, read_s; /* READ: time in the queue; time from then on, with that of others */
    uint32_t token;
    float logprob;                       /* NAN if not asked for */
    const struct tsri_token_chance *top; /* [n_top], best first */
    uint32_t n_top;
    uint32_t n_tokens; /* of the answer so far, this one included */
    uint32_t n_done, n_total;
    int err;          /* enum tsr_err */
    const char *text; /* what failed */
};

struct tsri_engine_stats {
    uint32_t n_queued, n_reading, n_writing, n_learning; /* now */
    uint32_t n_slots, n_slots_max;                       /* of open sessions */
    uint64_t n_submitted, n_refused, n_stopped, n_cancelled, n_failed;
    uint64_t prompt_tokens, exact_tokens, reused_tokens, recomputed_tokens, new_tokens;
    uint64_t answer_tokens, learned_tokens;
    uint64_t kept_tokens;    /* of prompts with their answers, stored as exact prefixes */
    uint64_t n_passes;       /* that decoded answers: answer_tokens by them is the mean batch */
    double read_s, decode_s; /* of the engine's thread */
    double gap_max_s, gap_s; /* time between two tokens of an answer: longest, and sum of all */
};

struct tsri_engine;
TSR_MUST int tsri_engine_open(struct tsri_engine **out, const struct tsri_engine_desc *desc);
/* Ends all jobs as cancelled, with their events, and joins the thread. Not within an event. Accepts
 * NULL. */
void tsri_engine_close(struct tsri_engine *e);
TSR_MUST int tsri_engine_submit(struct tsri_engine *e, const struct tsri_job_desc *desc,
                                uint64_t *job);
/* The job ends soon, with its event, unless it has ended before. */
void tsri_engine_cancel(struct tsri_engine *e, uint64_t job);
void tsri_engine_stats(struct tsri_engine *e, struct tsri_engine_stats *out);

#endif
