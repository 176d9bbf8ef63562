/* log.c - one process-wide callback for log lines; silent until somebody sets it. */
#include "base/base.h"

#include <stdio.h>
#include <time.h>

#define LINE_BYTES 1024

/* Set before the first open (tessera.h says so), hence plain. */
static tsr_log_fn log_fn;
static void *log_arg;
static int log_level_max = -1;

void tsr_log_set(tsr_log_fn fn, void *arg, int level_max)
{
    log_fn = fn;
    log_arg = arg;
    log_level_max = fn ? level_max : -1;
}

bool tsri_log_wants(int level)
{
    return level <= log_level_max;
}

void tsri_log(int level, const char *fmt, ...)
{
    if (!tsri_log_wants(level)) return;
    char line[LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log_fn(log_arg, level, tsri_plain(line));
}

void tsr_log_stderr(void *arg, int level, const char *text)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    (void)arg;
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    const char *name = level >= 0 && level < (int)TSRI_COUNT(names) ? names[level] : "?";
    fprintf(stderr, "%s.%03ldZ tessera %s: %s\n", stamp, now.tv_nsec / 1000000, name, text);
}

void tsri_log_hold(void *arg, int level, const char *text)
{
    struct tsri_log_held *h = arg;
    size_t bytes = strlen(text) + 2;
    if (bytes > sizeof h->lines - h->n_bytes) {
        h->n_left_out++;
        return;
    }
    h->lines[h->n_bytes] = (char)level;
    memcpy(h->lines + h->n_bytes + 1, text, bytes - 1);
    h->n_bytes += bytes;
}

void tsri_log_tell(struct tsri_log_held *h, int level_max, tsr_log_fn fn, void *arg)
{
    for (size_t at = 0; at < h->n_bytes; at += strlen(h->lines + at + 1) + 2)
        if (h->lines[at] <= level_max) fn(arg, h->lines[at], h->lines + at + 1);
    char text[64];
    snprintf(text, sizeof text, "%u more log lines were dropped", h->n_left_out);
    if (h->n_left_out && TSR_LOG_WARN <= level_max) fn(arg, TSR_LOG_WARN, text);
    h->n_bytes = h->n_left_out = 0;
}
