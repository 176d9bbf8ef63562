/* cli_stub.h - for tests that take in a file of src/cli as it is, because the program's files are
 * in no library: what the file needs of the rest of the program. */
#ifndef TSRI_CLI_STUB_H
#define TSRI_CLI_STUB_H

#include "cli/cli.h"

#include <stdarg.h>

static char said[1024]; /* the last complaint */

int tsri_cli_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    return CLI_FAILED;
}

#endif
