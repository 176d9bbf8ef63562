/* progress.c - one line on stderr that says how far a long command is: nothing where stderr is no
 * terminal, and nothing for the first moment, so that short commands do not flicker. */
#include "cli/replay.h"

#include <stdlib.h>
#include <unistd.h>

#define SHOW_NS 100000000u /* ten times a second */
#define BAR_WIDTH 30u

void tsri_progress_init(struct tsri_progress *p)
{
    const char *term = getenv("TERM");
    p->on = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    p->shown_ns = tsri_now_ns();
}

void tsri_progress_show(struct tsri_progress *p, const char *what, uint64_t n_done, uint64_t n)
{
    if (!p->on || n == 0) return;
    uint64_t now = tsri_now_ns();
    if (now - p->shown_ns < SHOW_NS) return;
    p->shown_ns = now;
    char bar[BAR_WIDTH + 1];
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', BAR_WIDTH * n_done / n);
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r[%s] %3u %%  %s\033[K", bar, (unsigned)(100 * n_done / n), what);
    fflush(stderr);
}

void tsri_progress_fini(struct tsri_progress *p)
{
    if (p->on) fputs("\r\033[K", stderr);
    p->on = false;
}
