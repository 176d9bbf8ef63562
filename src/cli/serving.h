/* serving.h - one `tessera serve` from inside: cmd_serve.c runs it, folders.c reads its documents.
 *
 * Memory:  embedded in the command's struct; close accepts what was only zeroed.
 * Errors:  0, or the exit status after having said why.
 */
#ifndef TSRI_CLI_SERVING_H
#define TSRI_CLI_SERVING_H

#include "cli/ask.h"
#include "search/search.h"
#include "serve/serve.h"

struct tsri_serving {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsri_serve *serve;
    struct sockaddr_storage address;
    struct tsri_serve_desc limits; /* the part that flags give */
    char host[64], url[128], model_name[256];
    char token_path[4096];
    char *token;
    char page_token[64];  /* of the page, for this life of the server */
    char page_path[4096]; /* a file that leads to the page, of this user alone */
    /* folders.c: */
    const char *folders[TSRI_SEARCH_FOLDERS_MAX];
    uint32_t n_folders;
    struct tsri_search *search; /* NULL without --docs */
    struct tsri_folder_watch *watch;
};

/* Whether a signal has told it to end. */
bool tsri_serving_ends(void);

/* ---- folders.c ---- */

/* Takes the folders of --docs, before anything that takes long. */
int tsri_serving_name_folders(struct tsri_serving *v);
/* Opens them, with what is new in them. */
int tsri_serving_open_folders(struct tsri_serving *v);
void tsri_serving_close_folders(struct tsri_serving *v);
/* Until a signal comes: reads documents ahead of questions, and again what changes. */
void tsri_serving_run(struct tsri_serving *v);

#endif
