/* test_slow.c - the slowest calls of the last hour are kept, in order; fast ones never enter, old
 * ones leave. */
#include "daemon/daemon.h"

#include "support/test.h"

#define MS ((uint64_t)1000000)
#define HOUR (3600000 * MS)

static struct tsri_slow s;
static struct tsri_slow_call out[TSRI_SLOW_MAX];

static void note(uint64_t ms, uint64_t end_ns)
{
    struct tsri_slow_call call = {.ns = ms * MS, .end_ns = end_ns};
    tsri_slow_note(&s, &call);
}

TEST(what_is_fast_does_not_enter)
{
    tsri_slow_init(&s);
    struct tsri_slow_call fast = {.ns = TSRI_SLOW_NS - 1, .end_ns = 5};
    tsri_slow_note(&s, &fast);
    CHECK_INT(tsri_slow_list(&s, 5, out), 0);
    fast.ns++;
    tsri_slow_note(&s, &fast);
    CHECK_INT(tsri_slow_list(&s, 5, out), 1);
    tsri_slow_fini(&s);
}

TEST(the_slowest_stay_slowest_first_whatever_the_order_they_came_in)
{
    for (uint32_t stride = 1; stride < 101; stride += 7) {
        tsri_slow_init(&s);
        for (uint32_t i = 0; i < 101; i++) /* 101 is prime: every number once */
            note(1 + i * stride % 101, 1000);
        CHECK_INT(tsri_slow_list(&s, 1000, out), TSRI_SLOW_MAX);
        for (uint32_t i = 0; i < TSRI_SLOW_MAX; i++)
            CHECK_INT(out[i].ns, (101 - i) * MS);
        tsri_slow_fini(&s);
    }
}

TEST(a_call_is_forgotten_after_an_hour_and_makes_room)
{
    tsri_slow_init(&s);
    for (uint32_t i = 0; i < TSRI_SLOW_MAX; i++)
        note(100 + i, 1000 + i);
    note(2, 1000 + HOUR + 3); /* the first three are too old by now */
    uint32_t n = tsri_slow_list(&s, 1000 + HOUR + 3, out);
    CHECK_INT(n, TSRI_SLOW_MAX - 3 + 1);
    CHECK_INT(out[n - 1].ns, 2 * MS);
    CHECK_INT(out[n - 2].ns, 103 * MS);
    CHECK_INT(tsri_slow_list(&s, 3 * HOUR, out), 0);
    tsri_slow_fini(&s);
}

int main(void)
{
    RUN(what_is_fast_does_not_enter);
    RUN(the_slowest_stay_slowest_first_whatever_the_order_they_came_in);
    RUN(a_call_is_forgotten_after_an_hour_and_makes_room);
    return test_end();
}
