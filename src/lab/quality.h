/* quality.h - how good blended answers are: questions, what one setting does to one question, and
 * tables of that, for `tessera-lab calibrate`.
 *
 * Errors: 0, or the exit status after having said why, as everywhere in this folder.
 */
#ifndef TSRI_CLI_QUALITY_H
#define TSRI_CLI_QUALITY_H

#include "blend/blend.h"
#include "cli/ask.h"
#include "lab/columns.h"
#include "lab/lab.h"

/* ---- questions.c ---- */

struct tsri_question {
    char *set, *id, *system, *question; /* system NULL: the default one */
    bool plain;                         /* the texts are the prompt, without a chat template */
    char **documents, **answers;
    size_t n_documents, n_answers;
};
struct tsri_questions {
    struct tsri_question *items;
    size_t n;
};
/* The question as the model reads it, with a template or plain. */
int tsri_question_dialog(const struct tsri_question *q, const struct tsr_model *model,
                         struct tsri_dialog *out);
int tsri_questions_load(struct tsri_questions *f, const char *path);
void tsri_questions_fini(struct tsri_questions *f);

/* ---- answers.c: texts compared as question answering does ---- */

/* The better of all right answers: 1 when the words are the same, without case, punctuation and
 * articles; and the harmonic mean of precision and recall of words. */
double tsri_answer_exact(const char *given, char *const *right, size_t n);
double tsri_answer_f1(const char *given, char *const *right, size_t n);
/* 1 when the words of a right answer are somewhere in the given one, in a row: for models that
 * answer in sentences. */
double tsri_answer_right(const char *given, char *const *right, size_t n);

/* ---- measure.c: one question, many settings ---- */

struct tsri_setting {
    uint32_t selector; /* enum tsr_selector */
    uint32_t context;  /* TSR_CONTEXT_SAME, PURE or PRIMER */
    double ratio, bias;
    bool int8;        /* segments are stored as int8 */
    double layers[2]; /* as query_layers of a profile; 0 and 0 where the question is not asked */
    double n_rounds;  /* 0: one round; else the first so many of the rounds, the last at `ratio` */
};

#define TSRI_QUALITY_NAME_BYTES 64u

struct tsri_quality_row {
    char set[TSRI_QUALITY_NAME_BYTES], id[TSRI_QUALITY_NAME_BYTES];
    struct tsri_setting setting;
    double kl;          /* KL(prefill || blend) at the first answer token */
    double kl_answer;   /* mean over the tokens of a right answer */
    double same;        /* 1: the same first token */
    double gold;        /* log-likelihood of a right answer: blend less prefill */
    double exact, f1;   /* of the greedy answer; NAN: not asked for */
    double same_answer; /* 1: its words are those of the prefill's greedy answer */
    double says_same;   /* 1: it says what that says, in whatever words */
    double full_s, blend_s;
    double n_tokens, n_recomputed;
    struct tsr_gate gate;
};

/* What a gate judges an answer by, in every table of answers; AT(member): its place in the row. */
#define TSRI_GATE_COLUMNS(AT) \
    {"moved", AT(gate.moved)}, {"changed", AT(gate.changed)}, {"mass", AT(gate.mass)}, \
        {"fresh", AT(gate.fresh)}, {"entropy", AT(gate.entropy)}, {"top", AT(gate.top)}, \
        {"margin", AT(gate.margin)}, {"chunk_tokens", AT(gate.chunk_tokens)}, \
        {"chunks", AT(gate.n_chunks)}, {"agree", AT(gate.agree)}, {"worst", AT(gate.worst)}, \
        {"doubt", AT(gate.doubt)}, {"low", AT(gate.low)}, \
    { \
        "draft", AT(gate.draft) \
    }

struct tsri_measure {
    struct tsri_reader *reader;
    uint32_t answer_max; /* tokens of greedy answers; 0: none */
    const struct tsri_setting *settings;
    uint32_t n_settings;
    const double *rounds; /* ascending ratios, for settings with n_rounds */
};
/* Rows for every setting, and one of the prefill itself (selector FULL) first: rows has room for
 * n_settings + 1. */
int tsri_measure_question(const struct tsri_measure *m, const struct tsri_question *q,
                          struct tsri_quality_row *rows);

/* ---- quality_file.c: rows as CSV, so that a long run can be continued ---- */

struct tsri_quality_rows {
    struct tsri_quality_row *items;
    size_t n, n_room;
};
int tsri_quality_add(struct tsri_quality_rows *rows, const struct tsri_quality_row *row);
void tsri_quality_fini(struct tsri_quality_rows *rows);
/* Rows of a file; a last line that was cut off is left out. A file that is not there has none. */
int tsri_quality_load(struct tsri_quality_rows *rows, const char *path);
/* Appends; a new file begins with a heading. Refuses a file with other columns. */
int tsri_quality_append(const char *path, const struct tsri_quality_row *rows, size_t n);
bool tsri_quality_has(const struct tsri_quality_rows *rows, const struct tsri_question *q);
bool tsri_setting_same(const struct tsri_setting *a, const struct tsri_setting *b);

/* ---- choose.c: from rows to a profile ---- */

/* How well the gate knows answers that were left out of its fit. */
#define TSRI_GATE_BINS 5u
struct tsri_gate_result {
    uint32_t n; /* answers; 0: too few to fit a gate */
    /* Shares that say what the prefill says, which is what the gate learns; and of these in the same
     * words. */
    double same, words;
    double shown;                   /* share that the gate is sure enough of */
    double shown_same, shown_words; /* of those; NAN: none is shown */
    /* Reliability: answers whose probability is at least `from`, and below that of the next. */
    struct tsri_gate_bin {
        double from, n, n_same, n_words, mean;
    } bins[TSRI_GATE_BINS];
};
struct tsri_choose {
    double ratio;         /* to choose the setting for */
    double gate_limit;    /* of the profile */
    const double *rounds; /* of the profile; the first one is the ratio */
    uint32_t n_rounds;
};
/* The profile that the rows speak for: the setting with the smallest mean KL over answers (sets
 * count alike) at the ratio, its bias curve, the frontier, and a gate for its rounds. */
int tsri_choose_profile(const struct tsri_quality_rows *rows, const struct tsri_choose *wanted,
                        struct tsr_profile *out, struct tsri_gate_result *gate);
/* Mean over sets of the means over their questions; NAN without any. */
double tsri_quality_mean(const struct tsri_quality_rows *rows, const struct tsri_setting *s,
                         size_t offset);

#endif
