#include "tier/parcel.h"
#include "support/test.h"

TEST(without_a_limit_nobody_waits)
{
    struct tsri_throttle t;
    tsri_throttle_init(&t, 0);
    CHECK_INT(tsri_throttle_take(&t, UINT64_MAX / 4), 0);
    tsri_throttle_fini(&t);
}

TEST(beyond_a_burst_waits_make_the_rate)
{
    struct tsri_throttle t;
    tsri_throttle_init(&t, 1000000);
    CHECK_INT(tsri_throttle_take(&t, 50000), 0); /* a twentieth of a second */
    uint64_t wait = 0;
    for (int i = 0; i < 100; i++)
        wait = tsri_throttle_take(&t, 10000);
    /* 1050000 bytes are 1.05 s, of which 0.1 s may come at once. */
    CHECK(wait > 800000000 && wait <= 950000000);
    tsri_throttle_fini(&t);
}

int main(void)
{
    RUN(without_a_limit_nobody_waits);
    RUN(beyond_a_burst_waits_make_the_rate);
    return test_end();
}
