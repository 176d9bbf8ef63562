/* json.h - JSON files read by jansson: one object, or one object a line.
 *
 * Threads: one.
 * Memory:  what is returned is released with json_decref().
 * Errors:  negative, or NULL, with a message that names file, line and column. A member that is there
 *          twice is refused, wherever it is.
 * Limits:  the caller says how large a document may be; jansson refuses more than 2048 levels. */
#ifndef TSRI_CLI_JSON_H
#define TSRI_CLI_JSON_H

#include "cli/cli.h"

#include <jansson.h>

/* The object that `text` is, found at this line of the file `name`. */
json_t *tsri_json_parse(const char *text, size_t bytes, const char *name, size_t line);
/* The object that a file is. */
json_t *tsri_json_load(const char *path, size_t bytes_max);

/* A file of one object a line; empty lines are passed over. */
struct tsri_json_lines {
    FILE *file;
    const char *path;
    size_t bytes_max; /* of a line */
    size_t number;    /* of the line read last, from 1 */
    char *text;
    size_t room;
};
TSR_MUST int tsri_json_lines_open(struct tsri_json_lines *l, const char *path, size_t bytes_max);
void tsri_json_lines_close(struct tsri_json_lines *l);
/* 1 and the next object, 0 at the end, or an error. */
TSR_MUST int tsri_json_lines_next(struct tsri_json_lines *l, json_t **out);

/* The first name of a member that is none of these, or NULL. */
const char *tsri_json_unknown(const json_t *object, const char *const *names, size_t n);

#endif
