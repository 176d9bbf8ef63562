/* answer.h - what every program that answers questions shares: documents, the prompt they become,
 * how tokens are chosen, how long a full read takes and how far an answer can be trusted. Knows
 * nothing of command lines or connections.
 *
 * Threads: a struct belongs to one thread at a time; the functions of speed.c and trust.c keep nothing.
 * Memory:  structs here are embedded; fini gives back what they hold and accepts what was only
 *          zeroed.
 * Errors:  0, or one of enum tsr_err with tsr_errmsg().
 */
#ifndef TSRI_ANSWER_H
#define TSRI_ANSWER_H

#include "base/base.h"

#include <tessera/blend.h>

/* ---- documents ---- */

#define TSRI_DOCUMENT_BYTES_MAX ((size_t)16 << 20)
#define TSRI_DOCUMENTS_MAX 4096u

struct tsri_document {
    char *name; /* of the file, without folders; "": none */
    char *text; /* UTF-8, lines ended by \n alone, nothing but text at both ends */
    size_t bytes;
};

struct tsri_documents {
    struct tsri_document *items;
    size_t n, n_room;
};

/* One file, or standard input as "-": text, or a file of HTML or PDF. Empty and binary files are
 * refused. */
TSR_MUST int tsri_documents_add_file(struct tsri_documents *d, const char *path);
/* A text of no name. */
TSR_MUST int tsri_documents_add_text(struct tsri_documents *d, const char *text, size_t bytes);
void tsri_documents_fini(struct tsri_documents *d);
/* One way to end lines, and nothing around the text, in place: texts that differ in this only are the
 * same. Returns the bytes that are left. */
size_t tsri_text_tidy(char *text, size_t bytes);

/* ---- prompts ---- */

/* Tokens of a prompt: system prompt and passages of documents (search/search.h) are segments, the
 * question follows. */
struct tsri_dialog {
    const struct tsr_model *model;
    uint32_t context; /* tokens that fit */
    uint32_t *tokens;
    size_t n_tokens, n_room;
    struct tsr_range *segments;
    size_t n_segments, n_segments_room;
    char *tail; /* template text behind a question: opens the answer */
    char *turn; /* template text between an answer and the next question */
    bool plain; /* no template, no names, nothing cut: the prompt is its texts, one after another */
    /* A prompt that the context has no room for ends where that is clear: TSR_ERANGE. */
    bool must_fit;
};

/* What is asked for without a system prompt. */
#define TSRI_SYSTEM \
    "You answer questions about the documents that the user gives you. Answer briefly, and only " \
    "from the documents."

TSR_MUST int tsri_dialog_init(struct tsri_dialog *d, const struct tsr_model *model,
                              const char *system);
TSR_MUST int tsri_dialog_init_plain(struct tsri_dialog *d, const struct tsr_model *model,
                                    const char *system);
void tsri_dialog_fini(struct tsri_dialog *d);
/* Tokens of a text after what is there; flags of tsr_model_tokenize(). */
TSR_MUST int tsri_dialog_add_text(struct tsri_dialog *d, const char *text, size_t bytes,
                                  uint32_t flags);
/* What follows token `first` is a segment. */
TSR_MUST int tsri_dialog_end_segment(struct tsri_dialog *d, size_t first);
/* Adds a document after the others, as segments. */
TSR_MUST int tsri_dialog_add_document(struct tsri_dialog *d, const struct tsri_document *doc);
/* The question, and everything up to where the answer begins. */
TSR_MUST int tsri_dialog_add_question(struct tsri_dialog *d, const char *question);
/* Instead of a question, if only documents are to be read. */
TSR_MUST int tsri_dialog_add_nothing(struct tsri_dialog *d);
/* Adds tokens of an answer, then the template text between it and the next question. */
TSR_MUST int tsri_dialog_add_answer(struct tsri_dialog *d, const uint32_t *tokens, size_t n);
TSR_MUST int tsri_dialog_next_turn(struct tsri_dialog *d);

/* One message of a conversation (conversation.c). */
struct tsri_message {
    const char *role; /* "system", "user" or "assistant" */
    /* A text of ours, without documents: part of the template's text, as in tsri_dialog_init(). */
    bool trusted;
    const char *text; /* [bytes], after the documents */
    size_t bytes;
    const struct tsri_document *documents; /* [n_documents] */
    size_t n_documents;
};
/* The prompt of a whole conversation, up to where the next answer begins. With a system prompt, or
 * template text before the first other message, that is segment 0, and `system` of an ask is 1; only
 * a model without a template and a conversation without a system prompt have none, and the first
 * segment does not begin at token 0. It must fit. */
TSR_MUST int tsri_dialog_init_messages(struct tsri_dialog *d, const struct tsr_model *model,
                                       const struct tsri_message *messages, uint32_t n);

/* ---- small folders (whole.c) ---- */

struct tsri_search;
struct tsri_passages;
/* Every passage of folders with n_bytes of text that are small enough to be in each prompt: 1, in the
 * order of tsri_search_list(). 0: they are larger, and a question gets what it is about. */
TSR_MUST int tsri_whole_passages(struct tsri_search *s, const struct tsr_model *model,
                                 uint64_t n_bytes, struct tsri_passages *out);

/* ---- choosing tokens ---- */

struct tsri_sampler {
    double temperature;       /* 0: always the most likely token */
    double top_p;             /* of the probability, 1: all */
    uint64_t state;           /* begins as the seed */
    struct tsri_sample *room; /* [n_vocab] */
};

/* Temperature 0, top_p 1 and state 0, for the caller to change. */
TSR_MUST int tsri_sampler_init(struct tsri_sampler *s, uint32_t n_vocab);
void tsri_sampler_fini(struct tsri_sampler *s);
/* TSRI_NO_TOKEN: the best of the logits is no number, so none of them says anything. */
uint32_t tsri_sampler_pick(struct tsri_sampler *s, const float *logits, uint32_t n_vocab);
#define TSRI_NO_TOKEN UINT32_MAX
#define TSRI_NO_TOKEN_TEXT "the model computed no number for the next token"

/* ---- how long a full read takes (speed.c) ---- */

/* How long a model takes to read a prompt: measured where most of a prompt was computed, and kept in
 * a small file of the store. `how`: what runs the model, no line breaks. */
void tsri_speed_note(const char *path, const char *how, uint32_t n_tokens, double seconds);
/* The same of the tokens that a prompt computed, if they are half of it or more: a row of them also
 * looks at what was cached, so fewer would show a slower read than there is. */
void tsri_speed_note_report(const char *path, const char *how, const struct tsr_blend_report *r);
/* The seconds of a full read, from the measurement with the nearest length, scaled to this one.
 * NAN: none is near enough. */
double tsri_speed_guess(const char *path, const char *how, uint32_t n_tokens);
/* The same of tokens of an answer, one after another; a guess is of one token. */
void tsri_speed_note_answer(const char *path, const char *how, uint32_t n_tokens, double seconds);
double tsri_speed_guess_answer(const char *path, const char *how);

/* ---- trust ---- */

/* The probability that the answer is that of a full read; 1: it is exact, NAN: not known. */
double tsri_trust_sure(const struct tsr_blend_report *r);
/* The same in words. */
const char *tsri_trust_words(double sure);

/* ---- documents in any order (leading.c) ---- */

/* What looking at the documents cost (tsr_blend_look()), and what it stored, is part of the answer's
 * report. */
void tsri_leading_count(struct tsr_blend_report *r, const struct tsr_blend_report *look);

/* ---- comparing answers (fact_words.c) ---- */

/* Whether two answers say the same, in whatever words: neither has a fact that the other lacks. */
bool tsri_fact_words_same(const char *question, const char *one, const char *other);

#endif
