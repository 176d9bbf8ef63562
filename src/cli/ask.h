/* ask.h - what `tessera ask` and `tessera ingest` share: documents, the prompt they become, the
 * model that reads it, and how an answer is chosen.
 *
 * Memory:  structs here are embedded; fini gives back what they hold and accepts what was only
 *          zeroed.
 * Errors:  0, or the exit status after having said why, as everywhere in this folder.
 */
#ifndef TSRI_CLI_ASK_H
#define TSRI_CLI_ASK_H

#include "cli/cli.h"

#include <tessera/blend.h>

/* ---- documents ---- */

#define TSRI_DOCUMENT_BYTES_MAX ((size_t)16 << 20)
#define TSRI_DOCUMENTS_MAX 4096u
/* Documents are cut into pieces of at most so many bytes, about 1000 tokens: what is edited later
 * costs one piece, and a question needs some of them only. */
#define TSRI_PIECE_BYTES 4096u

struct tsri_document {
    char *name; /* of the file, without folders; "": none */
    char *text; /* UTF-8, lines ended by \n alone, nothing but text at both ends */
    size_t bytes;
};

struct tsri_documents {
    struct tsri_document *items;
    size_t n, n_room;
};

/* One file, or standard input as "-". Empty and binary files are refused. */
int tsri_documents_add_file(struct tsri_documents *d, const char *path);
/* Every file below a folder, in order of its path; hidden ones are left out, and those that are no
 * text are named on stderr and left out. */
int tsri_documents_add_folder(struct tsri_documents *d, const char *path);
/* A text of no name. */
int tsri_documents_add_text(struct tsri_documents *d, const char *text, size_t bytes);
/* A file or a folder. */
int tsri_documents_add_path(struct tsri_documents *d, const char *path);
void tsri_documents_fini(struct tsri_documents *d);
/* The number of bytes of the first piece of a text: ends at a paragraph if there is one to end at,
 * else at a line, a sentence, a word, or a character. */
size_t tsri_piece_bytes(const char *text, size_t bytes);

/* ---- prompts ---- */

/* Tokens of a prompt: system prompt and pieces of documents are segments, the question follows. */
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
};

int tsri_dialog_init(struct tsri_dialog *d, const struct tsr_model *model, const char *system);
int tsri_dialog_init_plain(struct tsri_dialog *d, const struct tsr_model *model,
                           const char *system);
void tsri_dialog_fini(struct tsri_dialog *d);
/* Adds a document after the others, as segments. */
int tsri_dialog_add_document(struct tsri_dialog *d, const struct tsri_document *doc);
/* The question, and everything up to where the answer begins. */
int tsri_dialog_add_question(struct tsri_dialog *d, const char *question);
/* Instead of a question, if only documents are to be read. */
int tsri_dialog_add_nothing(struct tsri_dialog *d);
/* Adds tokens of an answer, then the template text between it and the next question. */
int tsri_dialog_add_answer(struct tsri_dialog *d, const uint32_t *tokens, size_t n);
int tsri_dialog_next_turn(struct tsri_dialog *d);

/* How a prompt is answered unless flags say otherwise. */
#define TSRI_ASK_FLAGS (TSR_ASK_FILL | TSR_ASK_PREFIX | TSR_ASK_GATE | TSR_ASK_FIRST)

/* ---- choosing tokens ---- */

struct tsri_sampler {
    double temperature; /* 0: always the most likely token */
    double top_p;       /* of the probability, 1: all */
    uint64_t state;
    struct tsri_sample *room; /* [n_vocab] */
};

int tsri_sampler_init(struct tsri_sampler *s, struct tsri_cli *cli, uint32_t n_vocab);
void tsri_sampler_fini(struct tsri_sampler *s);
uint32_t tsri_sampler_pick(struct tsri_sampler *s, const float *logits, uint32_t n_vocab);

/* ---- the model and its cache ---- */

struct tsri_reader {
    struct tsr_model *model;
    struct tsr_model_info info;
    struct tsr_cache *cache;
    struct tsr_blend *blend, *plain; /* plain: without a cache, to compare with */
    struct tsr_session *session, *plain_session;
    uint32_t n_slots;
    float *logits;
    double open_s;
    bool profiled;  /* a profile that was measured, or named, is in use */
    bool storeless; /* the store could not be opened: nothing outlives the process */
};

/* Opens model, cache and profile as the flags of the command say. */
int tsri_reader_open(struct tsri_reader *r, struct tsri_cli *cli);
void tsri_reader_close(struct tsri_reader *r);
/* Sessions for prompts and answers of n_slots tokens together, and for the primer of the profile. */
int tsri_reader_make_room(struct tsri_reader *r, size_t n_slots);
/* Tokens after those that the session holds. */
struct tsri_more {
    const struct tsr_blend *blend; /* what the session's prompt was blended by: its bias goes on */
    const uint32_t *tokens;        /* [n] */
    uint32_t held, n;
    uint32_t n_logits;           /* of the last rows */
    float *logits;               /* [n_logits][n_vocab] */
    struct tsr_session *session; /* NULL: the reader's */
};
int tsri_reader_go_on(const struct tsri_reader *r, const struct tsri_more *more);
/* The path of the model that is meant, in buf or not: `named` (NULL: none), that of the environment,
 * or the best of tools/setup --model that is there. `fallback`, if given: it is only the one that
 * is used when no better one could be fetched. */
const char *tsri_reader_model(const char *named, char *buf, size_t bytes, bool *fallback);
/* The models of tools/setup --model: how many there are; the name of one and its path, NULL where it
 * is not installed. */
uint32_t tsri_reader_models(void);
const char *tsri_reader_installed(uint32_t i, char *buf, size_t bytes);
/* The library that runs models, beside the program; NULL: wherever the system finds it. */
const char *tsri_reader_library(char *buf, size_t bytes);
/* The folder of the store, which the configuration may name. */
void tsri_reader_store(const struct tsr_config *config, char *buf, size_t bytes);
/* A file of this model in the folder of the store, named by its space: <space>.<kind>. */
void tsri_reader_beside(const struct tsri_reader *r, struct tsri_cli *cli, const char *kind,
                        char *path, size_t bytes);
/* Where the profile of this model is looked for first: beside the store, named by its space. */
void tsri_reader_profile(const struct tsri_reader *r, struct tsri_cli *cli, char *path,
                         size_t bytes);
void tsri_reader_space(const struct tsri_reader *r, char hex[static 33]);

#endif
