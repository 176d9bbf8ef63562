/* error.c - error texts, and the detail of the last failure of each thread. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

#define MESSAGE_BYTES 512

static _Thread_local char message[MESSAGE_BYTES];

int(tsri_fail)(int err, const char *fmt, ...) /* in parentheses: base.h may have a macro of it */
{
    va_list ap;
    va_start(ap, fmt);
    /* Formatted aside first: an argument may be the message itself, when a cause is wrapped. */
    char text[MESSAGE_BYTES];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(message, tsri_plain(text), sizeof message);
    return err;
}

const char *tsr_errmsg(void)
{
    return message;
}

const char *tsr_strerror(int err)
{
    if (err >= 0) return "success";
    switch (err) {
#define TEXT(name, number, text) \
    case number: \
        return text;
        TSR_ERRORS(TEXT)
#undef TEXT
    }
    return "unknown error";
}

const char *tsr_version(void)
{
    return TSR_VERSION;
}

void tsri_assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "tessera: %s:%d: assertion failed: %s\n", file, line, what);
    abort();
}
