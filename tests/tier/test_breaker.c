#include "tier/parcel.h"
#include "support/test.h"

#include <unistd.h>

static int n_lines;
static char last_line[256];

static void count_line(void *arg, int level, const char *text)
{
    (void)arg, (void)level;
    n_lines++;
    snprintf(last_line, sizeof last_line, "%s", text);
}

static struct tsri_breaker b;

static void fresh(uint32_t limit, uint32_t wait_ms)
{
    tsri_breaker_init(&b, limit, wait_ms, "down");
    tsri_breaker_name(&b, "redis %s", "here");
    n_lines = 0;
    tsr_log_set(count_line, NULL, TSR_LOG_DEBUG);
}

TEST(it_opens_after_so_many_failures_in_a_row)
{
    fresh(3, 10);
    tsri_breaker_failed(&b, false, "a");
    tsri_breaker_failed(&b, false, "b");
    CHECK(tsri_breaker_closed(&b));
    tsri_breaker_worked(&b);
    tsri_breaker_failed(&b, false, "a");
    tsri_breaker_failed(&b, false, "b");
    CHECK(tsri_breaker_closed(&b));
    tsri_breaker_failed(&b, false, "c");
    CHECK(!tsri_breaker_closed(&b));
    CHECK(tsri_breaker_retry_ns(&b) > 0);
}

TEST(a_failure_without_doubt_opens_it_at_once)
{
    fresh(3, 10);
    tsri_breaker_failed(&b, true, "refused");
    CHECK(!tsri_breaker_closed(&b));
}

TEST(each_change_is_one_line)
{
    fresh(1, 1);
    for (int i = 0; i < 100; i++)
        tsri_breaker_failed(&b, true, "refused");
    CHECK_INT(n_lines, 1);
    CHECK_HAS(last_line, "redis here: down (refused)");
    for (int i = 0; i < 100; i++)
        tsri_breaker_worked(&b);
    CHECK_INT(n_lines, 2);
    CHECK_HAS(last_line, "works again");
}

TEST(while_open_one_caller_at_a_time_may_try_and_ever_more_rarely)
{
    fresh(1, 2);
    tsri_breaker_failed(&b, true, "refused");
    CHECK(!tsri_breaker_try(&b));
    uint64_t before = 0;
    for (int i = 0; i < 4; i++) {
        while (!tsri_breaker_try(&b))
            usleep(200);
        CHECK(!tsri_breaker_try(&b));
        uint64_t wait = tsri_breaker_retry_ns(&b) - tsri_now_ns();
        CHECK(i == 0 || wait > before);
        before = wait;
    }
    tsri_breaker_worked(&b);
    CHECK(tsri_breaker_try(&b) && tsri_breaker_try(&b));
    CHECK_INT(tsri_breaker_retry_ns(&b), 0);
}

int main(void)
{
    RUN(it_opens_after_so_many_failures_in_a_row);
    RUN(a_failure_without_doubt_opens_it_at_once);
    RUN(each_change_is_one_line);
    RUN(while_open_one_caller_at_a_time_may_try_and_ever_more_rarely);
    return test_end();
}
