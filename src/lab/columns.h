/* columns.h - tables of rows as comma-separated values: some fields of text, then numbers, which are
 * found by their names in the heading, then perhaps one text in quotes. Rows are appended while a long
 * run goes on, so that a run that was stopped continues with what is missing.
 *
 * Threads: one; a file is written by one process at a time.
 * Memory:  borrowed until a call returns; a table description is constant.
 * Errors:  0, or the exit status after having said why, as everywhere in this folder. */
#ifndef TSRI_LAB_COLUMNS_H
#define TSRI_LAB_COLUMNS_H

#include "cli/cli.h"

/* A number of a row, by its name in the heading and its place in the row's struct. */
struct tsri_column {
    const char *name;
    size_t offset; /* of a double */
};

#define TSRI_COLUMNS_MAX 64u
struct tsri_columns {
    const char *what;         /* the rows are, for messages */
    const char *const *texts; /* [n_texts], the first fields */
    size_t n_texts;
    const struct tsri_column *numbers; /* [n_numbers], at most TSRI_COLUMNS_MAX */
    size_t n_numbers;
    const char *last; /* the field after the numbers; NULL: none */
};
/* The numbers that a file has, in its order. */
struct tsri_columns_order {
    size_t at[TSRI_COLUMNS_MAX], n;
};

/* The next field of a line into room for `bytes`; *line goes past its comma or line end. False: it is
 * too long. */
bool tsri_columns_text(char **line, char *out, size_t bytes);
/* The numbers of a line into the row. Those that the file lacks were not measured when it was written:
 * NAN. */
bool tsri_columns_numbers(const struct tsri_columns *c, const struct tsri_columns_order *o,
                          char **line, void *row);

/* A whole line after the heading; valid during the call that gets it, which may overwrite the text. */
struct tsri_columns_line {
    const char *path;
    size_t number; /* from 1 on, the heading included */
    const struct tsri_columns_order *order;
    char *text;
};
/* 0, or the exit status after having said why; -1: not a valid row, which is said for it. */
typedef int (*tsri_columns_line_fn)(void *arg, const struct tsri_columns_line *line);
/* Reads a file. A last line that was cut off is left out; with `to_append` it is also cut off the file,
 * and a file that is not there has no rows. */
int tsri_columns_load(const struct tsri_columns *c, const char *path, bool to_append,
                      tsri_columns_line_fn take, void *arg);

/* Opens a file for more rows: a new one gets a heading, one with other columns is refused. */
int tsri_columns_open(FILE **out, const struct tsri_columns *c, const char *path);
/* Writes the numbers of a row, a comma before each. */
void tsri_columns_put(FILE *out, const struct tsri_columns *c, const void *row, int digits);
/* Closes the file, also after a failed write. */
int tsri_columns_close(FILE *out, const char *path);

#endif
