/* prompt_file.h - documents and a prompt from a file, for `tessera inspect`.
 *
 * Threads: one.
 * Memory:  everything is the struct's, until its fini.
 * Errors:  enum tsr_err. */
#ifndef TSRI_CLI_PROMPT_FILE_H
#define TSRI_CLI_PROMPT_FILE_H

#include "cli/cli.h"

#define TSRI_PROMPT_TOKENS_MAX ((size_t)1 << 22) /* of a document or the prompt */

/* Tokens, and the text they were cut from when they were given as text. */
struct tsri_prompt_text {
    uint32_t *tokens;
    size_t n_tokens, tokens_room;
    char *bytes;    /* NULL: the tokens were given */
    uint32_t *ends; /* by token: where it ends in bytes */
    size_t n_bytes, bytes_room;
};
struct tsri_prompt_document {
    struct tsri_prompt_text text, behind; /* behind: the system prompt it was computed after */
    bool prefix;                          /* stored as prefix blocks, not as a segment */
};
struct tsri_prompt_file {
    struct tsri_prompt_document *documents;
    size_t n_documents;
    struct tsri_prompt_text system; /* no tokens: none */
    struct tsri_prompt_text prompt; /* the system prompt included */
    struct tsr_range *parts;        /* of the prompt, the system prompt first; NULL: one text */
    uint32_t n_parts;
};
/* Errors name the file, and the line or the member; then there is nothing to free. */
TSR_MUST int tsri_prompt_file_load(struct tsri_prompt_file *f, const char *path);
void tsri_prompt_file_fini(struct tsri_prompt_file *f);

#endif
