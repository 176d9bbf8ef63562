/* repeat.h - text that repeats itself. Pure functions over the bytes of an answer. */
#ifndef TSRI_ANSWER_REPEAT_H
#define TSRI_ANSWER_REPEAT_H

#include <stddef.h>

/* The longest text whose repetition is noticed. */
#define TSRI_REPEAT_CYCLE_MAX 1024u
/* A text has to fill so many bytes with its repetitions: three times a sentence, but more often a
 * word, a table's empty cell, or a short line of code. */
#define TSRI_REPEAT_BYTES 120u
/* The same without a letter: rows of numbers, lines of dashes. */
#define TSRI_REPEAT_BYTES_NO_WORD 1000u

/* Whether the text ends in the same words three times or more. Returns how much of it to keep: the
 * first of them, up to its sentence's end; n: it does not repeat itself. */
size_t tsri_repeat_cut(const char *text, size_t n);
/* What of a text may be shown before the rest is known: no later cut is before it. */
size_t tsri_repeat_safe(const char *text, size_t n);

#endif
