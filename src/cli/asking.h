/* asking.h - one `tessera ask` from inside: cmd_ask.c runs it, choosing.c chooses what the prompt
 * has, decode.c writes answers, cost.c says what they cost, storing.c stores documents after them.
 *
 * Memory:  embedded in the command's struct; fini accepts what was only zeroed.
 * Errors:  0, or the exit status after having said why.
 */
#ifndef TSRI_CLI_ASKING_H
#define TSRI_CLI_ASKING_H

#include "cli/ask.h"

/* ---- decode.c ---- */

enum tsri_ended {
    TSRI_ENDED_STOP = 0, /* the model ended its answer */
    TSRI_ENDED_LENGTH,   /* at --max, or at the end of the context */
    TSRI_ENDED_REPEAT    /* it repeated itself */
};

struct tsri_told {
    uint32_t *tokens;
    size_t *ends; /* [n_tokens]: bytes of text up to a token and with it */
    uint32_t n_tokens, n_max;
    char *text; /* [n_text], and a zero */
    size_t n_text, n_shown, n_room;
    double ttft_s, answer_s; /* until the first token; from there to the last */
    enum tsri_ended ended;
};

struct tsri_decode {
    const struct tsri_reader *reader;
    struct tsr_session *session;   /* holds n_prompt tokens; reader->logits are of the last one */
    const struct tsr_blend *blend; /* what they were blended by */
    struct tsri_sampler *sampler;
    uint32_t n_prompt, n_max; /* n_max: tokens of the answer */
    const uint32_t *draft;    /* [n_draft]: how the answer begins, if it is known */
    uint32_t n_draft;
    double start_s; /* when the question was asked */
    bool shows;     /* to standard output, as it comes */
    bool may_repeat;
};

int tsri_told_init(struct tsri_told *a, uint32_t n_max);
void tsri_told_fini(struct tsri_told *a);
/* The KV of all tokens but the last is then after the prompt in the session. */
int tsri_told_decode(struct tsri_told *a, const struct tsri_decode *d);

/* ---- the command ---- */

struct tsri_asking {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsri_documents documents;
    struct tsri_folders folders;
    bool all;              /* everything in them goes into the prompt, however large */
    bool free_order;       /* documents may change places */
    bool chooses;          /* they are too large for that: each question gets its passages */
    uint32_t passages_max; /* of a question */
    struct tsri_dialog dialog;
    size_t *ends; /* [documents.n]: segments of the dialog up to a document and with it */
    size_t n_ends;
    struct tsri_sampler sampler;
    struct tsr_ask_desc ask;
    uint32_t answer_max;
    bool compare, stats, may_repeat, stores;
    char *system; /* of a chunked prompt, NULL without one */
    FILE *chat;   /* where questions come from, NULL without --chat */
    const char *chat_name;
    uint32_t n_turns;
    uint32_t n_held;    /* tokens of the dialog that the session has */
    uint32_t n_drafted; /* of the answer, known before it began */
    bool blended;       /* they were computed over approximate KV */
    /* this turn: */
    const char *question;
    struct tsri_passages found;    /* what was chosen for its question */
    struct tsri_told answer, full; /* full: of a prefill, with --compare */
    double kl;                     /* of the first token, KL(full || answer) */
    float *first_logits;           /* what the first token was chosen from */
    double full_guess_s;           /* the time of a full read as far as known, else NAN */
    struct tsr_blend_report report;
};

/* ---- choosing.c ---- */

/* The documents of the flags into the dialog, and the folders if they are small enough. */
int tsri_choosing_begin(struct tsri_asking *a);
/* The passages that a question is about into the dialog, where the folders are too large. */
int tsri_choosing_find(struct tsri_asking *a, const char *question);
/* The document that the question looks at most to the front, where the order is free; the ask then
 * has TSR_ASK_LEAD. *look: what that cost. */
int tsri_choosing_lead(struct tsri_asking *a, struct tsr_blend_report *look);

/* ---- storing.c ---- */

/* Stores the documents of the dialog that are not stored yet, after the answer. Ctrl-C stops it;
 * complete documents stay. That it fails is said, and no reason to fail: the answer is given. */
void tsri_storing_finish(struct tsri_asking *a);
/* The same without a word, until a line can be read from standard input. False: Ctrl-C. */
bool tsri_storing_wait(struct tsri_asking *a);

/* ---- cost.c ---- */

/* On standard error, after the answer. */
void tsri_cost_line(const struct tsri_asking *a);
/* Which passages the answer is from, where some were chosen. */
void tsri_cost_passages(const struct tsri_asking *a);
void tsri_cost_stats(const struct tsri_asking *a);
void tsri_cost_json(const struct tsri_asking *a);
/* Both answers of --compare, on standard output. */
void tsri_cost_both(const struct tsri_asking *a);

/* ---- sides.c ---- */

/* Two texts in two columns on `width` columns, or one below the other where that is too narrow. */
struct tsri_sides {
    const char *heads[2], *texts[2];
};
void tsri_sides_print(FILE *out, const struct tsri_sides *s, uint32_t width);
/* Columns of the terminal that `fd` is; 0: it is none. */
uint32_t tsri_sides_width(int fd);

#endif
