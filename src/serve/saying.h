/* saying.h - the text of an answer on its way out. Tokens are bytes that may end in the middle of a
 * character, and a stop string may be spread over several of them: what is taken out is whole
 * characters of UTF-8 that no later token takes back.
 *
 * Memory:  embedded; fini accepts what was only zeroed. Stop strings are the caller's.
 * Errors:  enum tsr_err.
 */
#ifndef TSRI_SERVE_SAYING_H
#define TSRI_SERVE_SAYING_H

#include "base/base.h"

struct tsri_saying {
    char *text; /* [n], and a zero */
    size_t n, room;
    size_t n_taken;
    const char *const *stops;
    uint32_t n_stops;
    bool stopped; /* at a stop string, which is not part of the text */
};

/* Adds the bytes of a token; after a stop nothing is added. */
TSR_MUST int tsri_saying_add(struct tsri_saying *s, const char *bytes, size_t n);
/* How far the text may be taken now: all of it after the `last` token. */
size_t tsri_saying_safe(const struct tsri_saying *s, bool last);
void tsri_saying_fini(struct tsri_saying *s);
/* A copy in which bytes that are no UTF-8 are U+FFFD, ended by a zero; free() it. NULL: no memory. */
char *tsri_utf8_copy(const char *text, size_t n);

#endif
