/* compat_kit.h - a configuration for tests of other programs' settings, and the log lines that it
 * leads to. Each test program has its own. */
#ifndef TSRI_TEST_COMPAT_KIT_H
#define TSRI_TEST_COMPAT_KIT_H

#include "config/config.h"
#include "support/test.h"

#define FIXTURES "tests/config/fixtures/"

static struct tsr_config *cfg;
static char lines[64][512];
static int levels[64], n_lines;

static inline void keep_line(void *arg, int level, const char *text)
{
    (void)arg;
    if (n_lines == (int)TSRI_COUNT(lines)) return;
    snprintf(lines[n_lines], sizeof lines[0], "%s", text);
    levels[n_lines++] = level;
}

static inline void reopen(void)
{
    clearenv();
    n_lines = 0;
    tsr_log_set(keep_line, NULL, TSR_LOG_INFO);
    tsr_config_close(cfg);
    CHECK_INT(tsr_config_open(&cfg), 0);
}

/* How many log lines hold the part. */
static inline int logged(const char *part)
{
    int n = 0;
    for (int i = 0; i < n_lines; i++)
        n += strstr(lines[i], part) != NULL;
    return n;
}

/* What is said about settings waits in the configuration: here it is said at once. */
static inline int said(int result)
{
    tsri_config_warn(cfg);
    return result;
}

static inline int load(const char *text)
{
    return said(tsr_config_load_text(cfg, text, strlen(text), "t.yaml"));
}

static inline int set(const char *key, const char *value)
{
    return said(tsr_config_set(cfg, key, value));
}

static inline void check_option(const char *option, const char *value)
{
    CHECK_STR(tsr_config_get(cfg, option), value);
}

#endif
