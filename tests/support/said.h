/* said.h - what code of the programs wrote to standard error, for tests that look at it: said_init()
 * first, then said() is the last message. */
#ifndef TSRI_TEST_SAID_H
#define TSRI_TEST_SAID_H

#include <stdio.h>

static char said_text[4096];

static inline void said_init(void)
{
    stderr = fmemopen(said_text, sizeof said_text, "w");
}

/* The next message begins where this one did. */
static inline const char *said(void)
{
    rewind(stderr); /* flushes it too, and ends it with a zero */
    return said_text;
}

#endif
