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
