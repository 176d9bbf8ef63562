/* paired.c - how sure a difference is. Every question is answered by both methods, so differences of
 * pairs are looked at: what makes a question hard for both does not count. */
#include "lab/answers.h"

#include <math.h>
#include <stdlib.h>

#define RESAMPLES 10000u
#define Z 1.959964 /* 95 % of a normal distribution */

/* splitmix64 */
static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct tsri_interval tsri_interval_of_mean(const double *differences, size_t n)
{
    struct tsri_interval out = {NAN, NAN, NAN};
    double *means = n ? malloc(RESAMPLES * sizeof *means) : NULL;
    uint64_t state = 1;
    if (!means) return out;
    out.mean = 0;
    for (size_t i = 0; i < n; i++)
        out.mean += differences[i] / (double)n;
    for (uint32_t k = 0; k < RESAMPLES; k++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += differences[(next(&state) >> 32) * n >> 32];
        means[k] = sum / (double)n;
    }
    qsort(means, RESAMPLES, sizeof *means, by_value);
    out.low = means[RESAMPLES / 40];
    out.high = means[RESAMPLES - 1 - RESAMPLES / 40];
    free(means);
    return out;
}

struct tsri_interval tsri_interval_of_pairs(size_t gained, size_t lost, size_t n)
{
    if (n == 0) return (struct tsri_interval){NAN, NAN, NAN};
    /* Half a pair more of each of the four kinds. */
    double b = (double)gained + 0.5, c = (double)lost + 0.5, m = (double)n + 2;
    double middle = (b - c) / m, error = sqrt(b + c - (b - c) * (b - c) / m) / m;
    return (struct tsri_interval){((double)gained - (double)lost) / (double)n, middle - Z * error,
                                  middle + Z * error};
}

struct tsri_interval tsri_interval_of_share(size_t k, size_t n)
{
    if (n == 0) return (struct tsri_interval){NAN, NAN, NAN};
    double m = (double)n, p = (double)k / m, w = 1 + Z * Z / m;
    double middle = (p + Z * Z / (2 * m)) / w;
    double half = Z / w * sqrt(p * (1 - p) / m + Z * Z / (4 * m * m));
    return (struct tsri_interval){p, middle - half, middle + half};
}
