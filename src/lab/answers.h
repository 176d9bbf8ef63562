/* answers.h - how many answers stay right when documents are reused: every question answered by a
 * prefill and by other methods, tables of that, and what they say, for `tessera-lab answers`.
 *
 * Memory:  structs here are embedded; fini gives back what they hold.
 * Errors:  0, or the exit status after having said why, as everywhere in this folder.
 */
#ifndef TSRI_LAB_ANSWERS_H
#define TSRI_LAB_ANSWERS_H

#include "lab/quality.h"

/* ---- halves.c: one half of every set chooses settings, the other one reports ---- */

enum tsri_half { TSRI_HALF_TUNE, TSRI_HALF_TEST, TSRI_HALF_ALL };
/* "tune", "test", "all"; -1 for anything else. */
int tsri_half_find(const char *name);
/* By SHA-256 of "set/id" as a number: even is tune, odd is test (bench/quality/halves.py). */
bool tsri_half_has(enum tsri_half half, const char *set, const char *id);

/* ---- methods.c: ways to answer ---- */

#define TSRI_METHODS_MAX 16u
#define TSRI_METHOD_NAME_BYTES 32u

enum tsri_method_kind {
    TSRI_METHOD_PREFILL,    /* everything is computed */
    TSRI_METHOD_REUSE,      /* documents read after the system prompt, nothing recomputed */
    TSRI_METHOD_CACHEBLEND, /* the same, and 15 % of the tokens recomputed (hkvd) */
    TSRI_METHOD_TESSERA,    /* as `tessera ask` does it: the model's profile and gate */
    TSRI_METHOD_ROUNDS      /* the same with one round of a ratio, whatever the gate says */
};
struct tsri_method {
    char name[TSRI_METHOD_NAME_BYTES];
    enum tsri_method_kind kind;
    double ratio; /* NAN: the method's own; else the gate does not act */
};
struct tsri_methods {
    struct tsri_method items[TSRI_METHODS_MAX];
    uint32_t n;
};
/* "prefill,reuse,cacheblend,tessera,tessera@0.05,rounds@0.05"; prefill comes first, named or not.
 * An error of the library. */
int tsri_methods_parse(struct tsri_methods *m, const char *list);

/* ---- respond.c: one question by all methods ---- */

#define TSRI_RESPONSE_TOKENS_MAX 256u
#define TSRI_RESPONSE_BYTES 512u

struct tsri_response {
    char set[TSRI_QUALITY_NAME_BYTES], id[TSRI_QUALITY_NAME_BYTES];
    char method[TSRI_METHOD_NAME_BYTES];
    double n_tokens, n_computed, n_recomputed; /* of the prompt; recomputed: of those known */
    double seconds;                            /* to the first token */
    double exact, f1, right;                   /* NAN: no right answer is known */
    double same_tokens, same_words;            /* as the prefill's answer */
    double says_same;                          /* the same facts as that, in whatever words */
    double kl, kl_answer; /* KL(prefill || this): first token; mean over the prefill's answer */
    double sure, rounds;  /* NAN: not predicted */
    double reasons;       /* enum tsr_blend_reason */
    struct tsr_gate gate; /* after the last round */
    char text[TSRI_RESPONSE_BYTES];
};

struct tsri_responder {
    struct tsri_reader *reader;
    struct tsri_methods methods;
    uint32_t answer_max;
    bool free_order;                /* see tsr_segments_lead() */
    const char *speed_path;         /* times of the prefills are kept there; NULL: no weighing */
    struct tsr_blend *plain, *same; /* without a cache; documents after the system prompt */
    /* Of methods of kind ROUNDS. They share cache and space with the reader's, so documents are
     * stored once. */
    struct tsr_blend *rounds[TSRI_METHODS_MAX];
};
int tsri_responder_init(struct tsri_responder *p, struct tsri_reader *reader,
                        const struct tsri_methods *methods, uint32_t answer_max);
void tsri_responder_fini(struct tsri_responder *p);
/* rows[methods.n], in the order of the methods; *n are 0 if the model's context is too short for the
 * question. The documents are stored before a method is timed. */
int tsri_respond(struct tsri_responder *p, const struct tsri_question *q,
                 struct tsri_response *rows, uint32_t *n);

/* ---- responses_file.c: rows as CSV, so that a long run can be continued ---- */

/* Columns are found by the heading; what a table lacks was not measured then, and is NAN. */

struct tsri_responses {
    char model[128]; /* "": no rows yet */
    struct tsri_response *items;
    size_t n, n_room;
};
void tsri_responses_fini(struct tsri_responses *r);
int tsri_responses_add(struct tsri_responses *r, const struct tsri_response *row);
const struct tsri_response *tsri_responses_find(const struct tsri_responses *r, const char *set,
                                                const char *id, const char *method);
/* Adds the rows of a file; a last line that was cut off is left out. With `to_append`, it is cut off
 * the file too, and a file that is not there has no rows. */
int tsri_responses_load(struct tsri_responses *r, const char *path, bool to_append);
/* Appends; a new file begins with a heading. Refuses a file with other columns. */
int tsri_responses_append(const struct tsri_responses *r, const char *path,
                          const struct tsri_response *rows, size_t n);

/* ---- paired.c: intervals of 95 % ---- */

struct tsri_interval {
    double mean, low, high; /* NAN without numbers */
};
/* The mean of differences of pairs, by 10000 resamples from a fixed seed. */
struct tsri_interval tsri_interval_of_mean(const double *differences, size_t n);
/* Of pairs of yes and no: `gained` went from no to yes, `lost` from yes to no (Agresti and Min,
 * 2005: also right where few pairs or none differ). */
struct tsri_interval tsri_interval_of_pairs(size_t gained, size_t lost, size_t n);
/* A share (Wilson). */
struct tsri_interval tsri_interval_of_share(size_t k, size_t n);

/* ---- summary.c: what the rows say ---- */

/* Tables or JSON of every set and of all questions, and of how far the gate can be trusted; `half`
 * leaves out the others. */
int tsri_responses_print(const struct tsri_responses *r, enum tsri_half half,
                         const struct tsri_cli *cli);

#endif
