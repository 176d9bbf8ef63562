/* progress.c - one line on stderr that says how far a long command is: nothing where stderr is no
 * terminal, and nothing for the first moment, so that short commands do not flicker. */
#include "cli/cli.h"

#include <stdlib.h>
#include <unistd.h>

#define SHOW_NS 100000000u /* ten times a second */
#define BAR_WIDTH 30u

static uint64_t shown_ns; /* 0: nothing was reported yet */
static bool on;           /* the bar is on the line */

static bool can_show(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

void tsri_cli_progress(const char *what, uint64_t n_done, uint64_t n)
{
    uint64_t now = tsri_now_ns();
    if (n_done >= n) {
        tsri_cli_progress_end();
        return;
    }
    /* A command that reports before its first step has long ones. */
    bool soon = shown_ns == 0 ? n_done > 0 : now - shown_ns < SHOW_NS;
    if (shown_ns == 0 || !soon) shown_ns = now;
    if (soon || !can_show()) return;
    char bar[BAR_WIDTH + 1];
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', BAR_WIDTH * n_done / n);
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r[%s] %3u %%  %s\033[K", bar, (unsigned)(100 * n_done / n), what);
    fflush(stderr);
    on = true;
}

void tsri_cli_progress_end(void)
{
    if (on) fputs("\r\033[K", stderr);
    on = false;
    shown_ns = 0;
}
