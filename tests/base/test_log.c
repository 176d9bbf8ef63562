/* The log hook: silent by default, filtered by level, one line at a time. */
#include "base/base.h"
#include "support/test.h"

#include <unistd.h>

struct seen {
    int n, level;
    char text[2048];
};

static void keep(void *arg, int level, const char *text)
{
    struct seen *s = arg;
    s->n++;
    s->level = level;
    snprintf(s->text, sizeof s->text, "%s", text);
}

TEST(nothing_is_wanted_and_nothing_breaks_before_a_hook_is_set)
{
    for (int level = TSR_LOG_ERROR; level <= TSR_LOG_DEBUG; level++)
        CHECK(!tsri_log_wants(level));
    tsri_log(TSR_LOG_ERROR, "to nobody %d", 1);
}

TEST(a_line_reaches_the_hook_formatted_with_its_level_and_argument)
{
    struct seen s = {0};
    tsr_log_set(keep, &s, TSR_LOG_INFO);
    tsri_log(TSR_LOG_WARN, "%d of %s", 3, "four");
    tsr_log_set(NULL, NULL, 0);
    CHECK_INT(s.n, 1);
    CHECK_INT(s.level, TSR_LOG_WARN);
    CHECK_STR(s.text, "3 of four");
}

TEST(levels_above_the_limit_are_neither_wanted_nor_sent)
{
    struct seen s = {0};
    tsr_log_set(keep, &s, TSR_LOG_WARN);
    bool wants_warn = tsri_log_wants(TSR_LOG_WARN), wants_info = tsri_log_wants(TSR_LOG_INFO);
    tsri_log(TSR_LOG_INFO, "not this");
    tsri_log(TSR_LOG_DEBUG, "nor this");
    tsri_log(TSR_LOG_ERROR, "but this");
    tsr_log_set(NULL, NULL, 0);
    CHECK(wants_warn && !wants_info);
    CHECK_INT(s.n, 1);
    CHECK_STR(s.text, "but this");
}

TEST(a_hook_that_is_taken_away_is_not_called_again)
{
    struct seen s = {0};
    tsr_log_set(keep, &s, TSR_LOG_DEBUG);
    tsr_log_set(NULL, &s, TSR_LOG_DEBUG);
    tsri_log(TSR_LOG_ERROR, "to nobody");
    CHECK(!tsri_log_wants(TSR_LOG_ERROR));
    CHECK_INT(s.n, 0);
}

TEST(a_line_that_is_too_long_is_cut_and_ended)
{
    static struct seen s;
    char text[4096];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tsr_log_set(keep, &s, TSR_LOG_DEBUG);
    tsri_log(TSR_LOG_INFO, "%s", text);
    tsr_log_set(NULL, NULL, 0);
    size_t n = strlen(s.text);
    CHECK(n >= 512 && n < sizeof text - 1);
    CHECK(strspn(s.text, "y") == n);
}

/* What fn writes to stderr, at most bytes - 1 characters of it. */
static void capture_stderr(void (*fn)(void), char *out, size_t bytes)
{
    int fds[2], old = dup(STDERR_FILENO);
    CHECK(old >= 0);
    CHECK_INT(pipe(fds), 0);
    fflush(stderr);
    dup2(fds[1], STDERR_FILENO);
    fn();
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    close(fds[1]);
    ssize_t n = read(fds[0], out, bytes - 1);
    close(fds[0]);
    out[n > 0 ? n : 0] = 0;
}

static void write_two_levels(void)
{
    tsr_log_stderr(NULL, TSR_LOG_ERROR, "disk on fire");
    tsr_log_stderr(NULL, 99, "odd level");
}

TEST(the_stderr_hook_writes_time_level_and_text)
{
    char text[512];
    capture_stderr(write_two_levels, text, sizeof text);
    int year, month, day, hour, minute, second, ms;
    CHECK_INT(
        sscanf(text, "%d-%d-%dT%d:%d:%d.%dZ", &year, &month, &day, &hour, &minute, &second, &ms),
        7);
    CHECK(year >= 2024 && month >= 1 && month <= 12);
    CHECK_HAS(text, "Z tessera error: disk on fire\n");
    CHECK_HAS(text, "tessera ?: odd level\n");
}

struct told {
    uint32_t n;
    char text[1024];
};

static void note(void *arg, int level, const char *text)
{
    struct told *t = arg;
    size_t used = strlen(t->text);
    t->n++;
    snprintf(t->text + used, sizeof t->text - used, "%d %.40s,", level, text);
}

TEST(held_lines_are_told_in_order_up_to_the_level_and_once)
{
    static struct tsri_log_held held;
    struct told told = {0};
    tsr_log_set(tsri_log_hold, &held, TSR_LOG_DEBUG);
    tsri_log(TSR_LOG_WARN, "one");
    tsri_log(TSR_LOG_DEBUG, "two");
    tsri_log(TSR_LOG_ERROR, "three");
    tsr_log_set(NULL, NULL, 0);
    tsri_log_tell(&held, TSR_LOG_WARN, note, &told);
    CHECK_STR(told.text, "1 one,0 three,");
    tsri_log_tell(&held, TSR_LOG_DEBUG, note, &told);
    CHECK_INT(told.n, 2);
}

TEST(held_lines_that_do_not_fit_are_counted)
{
    static struct tsri_log_held held;
    struct told told = {0};
    char line[1000];
    memset(line, 'z', sizeof line - 1);
    line[sizeof line - 1] = 0;
    for (int i = 0; i < 100; i++)
        tsri_log_hold(&held, TSR_LOG_INFO, line);
    tsri_log_tell(&held, TSR_LOG_ERROR, note, &told);
    CHECK_INT(told.n, 0);
    for (int i = 0; i < 100; i++)
        tsri_log_hold(&held, TSR_LOG_INFO, line);
    tsri_log_tell(&held, TSR_LOG_INFO, note, &told);
    CHECK_INT(told.n, sizeof held.lines / 1001 + 1);
    tsri_log_hold(&held, TSR_LOG_WARN, "after");
    told = (struct told){0};
    tsri_log_tell(&held, TSR_LOG_WARN, note, &told);
    CHECK_STR(told.text, "1 after,");
}

int main(void)
{
    RUN(nothing_is_wanted_and_nothing_breaks_before_a_hook_is_set);
    RUN(a_line_reaches_the_hook_formatted_with_its_level_and_argument);
    RUN(levels_above_the_limit_are_neither_wanted_nor_sent);
    RUN(a_hook_that_is_taken_away_is_not_called_again);
    RUN(a_line_that_is_too_long_is_cut_and_ended);
    RUN(the_stderr_hook_writes_time_level_and_text);
    RUN(held_lines_are_told_in_order_up_to_the_level_and_once);
    RUN(held_lines_that_do_not_fit_are_counted);
    return test_end();
}
