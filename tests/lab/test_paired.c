/* test_paired.c - intervals of 95 %, against known values and by how often they hold. */
#include "lab/answers.h"

#include "support/test.h"

#include <math.h>

static bool near(double a, double b)
{
    return fabs(a - b) < 5e-4;
}

TEST(pairs_of_yes_and_no)
{
    struct tsri_interval v = tsri_interval_of_pairs(5, 15, 100);
    CHECK(near(v.mean, -0.1));
    CHECK(near(v.low, -0.1840) && near(v.high, -0.0121)); /* Agresti and Min's formula by hand */
    v = tsri_interval_of_pairs(0, 0, 200); /* no difference seen is not no difference */
    CHECK(v.mean == 0 && v.low < -0.005 && v.low > -0.02 && near(v.high, -v.low));
    CHECK(isnan(tsri_interval_of_pairs(0, 0, 0).mean));
}

TEST(shares)
{
    struct tsri_interval v = tsri_interval_of_share(98, 100);
    CHECK(near(v.mean, 0.98) && near(v.low, 0.9300) && near(v.high, 0.9945)); /* Wilson, 1927 */
    v = tsri_interval_of_share(100, 100);
    CHECK(v.mean == 1 && v.low > 0.96 && v.low < 0.97 && v.high <= 1 + 1e-12);
    CHECK(isnan(tsri_interval_of_share(0, 0).low));
}

TEST(means_are_resampled_the_same_every_time)
{
    double d[100];
    for (int i = 0; i < 100; i++)
        d[i] = i % 2 ? 1 : -0.5;
    struct tsri_interval a = tsri_interval_of_mean(d, 100), b = tsri_interval_of_mean(d, 100);
    CHECK(near(a.mean, 0.25) && a.low == b.low && a.high == b.high);
    /* 1.96 standard errors of 0.075 */
    CHECK(fabs(a.low - (0.25 - 0.147)) < 0.01 && fabs(a.high - (0.25 + 0.147)) < 0.01);
    d[0] = 3;
    a = tsri_interval_of_mean(d, 1);
    CHECK(a.mean == 3 && a.low == 3 && a.high == 3);
    CHECK(isnan(tsri_interval_of_mean(d, 0).mean));
}

int main(void)
{
    RUN(pairs_of_yes_and_no);
    RUN(shares);
    RUN(means_are_resampled_the_same_every_time);
    return test_end();
}
