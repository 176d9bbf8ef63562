/* ask.h - what `tessera ask`, `tessera ingest` and `tessera serve` share: the model, its cache and its
 * profile, opened as the command line says.
 *
 * Memory:  structs here are embedded; fini gives back what they hold and accepts what was only
 *          zeroed.
 * Errors:  0, or the exit status after having said why, as everywhere in this folder.
 */
#ifndef TSRI_CLI_ASK_H
#define TSRI_CLI_ASK_H

#include "answer/answer.h"
#include "cli/cli.h"
#include "search/search.h"

/* How a prompt is answered unless flags say otherwise. */
#define TSRI_ASK_FLAGS (TSR_ASK_FILL | TSR_ASK_PREFIX | TSR_ASK_GATE | TSR_ASK_FIRST)

/* Temperature, top-p and seed of the command line; without a seed, one of its own. */
int tsri_ask_sampler(struct tsri_sampler *s, struct tsri_cli *cli, uint32_t n_vocab);
/* ---- folders (ask_folders.c) ---- */

struct tsri_folders {
    const char *names[TSRI_SEARCH_FOLDERS_MAX];
    uint32_t n;
    struct tsri_search *search; /* NULL without folders */
    struct tsri_search_stats stats;
};

/* The name is kept. */
int tsri_folders_add(struct tsri_folders *f, const char *name);
/* Looks through the folders for what is new. `stores`: the database is beside the store, else in
 * memory. */
int tsri_folders_open(struct tsri_folders *f, struct tsri_cli *cli, bool stores);
void tsri_folders_fini(struct tsri_folders *f);
/* Every passage, in order, until `each` is not 0. */
int tsri_folders_each(struct tsri_folders *f, int (*each)(void *arg, const struct tsri_passage *p),
                      void *arg);
/* A passage as a document by the name of its file. */
int tsri_folders_take(struct tsri_documents *d, const struct tsri_passage *p);

/* ---- the model and its cache ---- */

struct tsri_reader {
    struct tsr_model *model;
    struct tsr_model_info info;
    struct tsr_cache *cache;
    struct tsr_server *server; /* NULL: the store is not shared, or another process serves it */
    struct tsri_heir *heir;    /* of a client: serves the store when that process ends */
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
/* What the gate's trial is weighed with: the times of this machine at `speed_path`
 * (tsri_speed_note()), 0 where they are not known or there is no gate. */
void tsri_reader_weigh(const struct tsri_reader *r, const char *speed_path,
                       struct tsr_ask_desc *ask);
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
/* A file of this model in the folder of the store, named by tsr_blend_model(): <model>.<kind>. */
void tsri_reader_beside(const struct tsri_reader *r, struct tsri_cli *cli, const char *kind,
                        char *path, size_t bytes);
/* Where the profile of this model is looked for first: beside the store. */
void tsri_reader_profile(const struct tsri_reader *r, struct tsri_cli *cli, char *path,
                         size_t bytes);
void tsri_reader_id(const struct tsri_reader *r, char hex[static 33]);

#endif
