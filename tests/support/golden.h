/* golden.h - reading golden vectors: text files in tests/golden, one vector a line, a word that
 * names its kind and then fields separated by single spaces; # begins a comment line. */
#ifndef TSRI_GOLDEN_H
#define TSRI_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define GOLDEN_LINE_BYTES 8192
#define GOLDEN_FIELDS_MAX 64

struct golden {
    FILE *file;
    char line[GOLDEN_LINE_BYTES];
    char *fields[GOLDEN_FIELDS_MAX]; /* without the word; into line */
    uint32_t n_fields;
};

/* A file of tests/golden; ends the program with 1 when it cannot be read. Tests run in the root of
 * the tree. */
void golden_init(struct golden *g, const char *name);
void golden_fini(struct golden *g);
/* The next vector of this kind; false at the end. */
bool golden_next(struct golden *g, const char *word);
uint32_t golden_u32(const struct golden *g, uint32_t field);
/* Hex to bytes, "-" for none; returns how many. */
size_t golden_bytes(const struct golden *g, uint32_t field, uint8_t *out, size_t max);
/* The same for text that is not a whole field. */
size_t golden_hex(const char *text, uint8_t *out, size_t max);
/* Whether a field is these bytes; prints both when not. */
bool golden_same(const struct golden *g, uint32_t field, const void *bytes, size_t n);

#endif
