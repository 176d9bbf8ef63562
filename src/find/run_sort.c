/* run_sort.c - sorts runs. They come in stretches that are in order, because alignments and scans go
 * forward: stretches are found by comparing few of their runs and moved as a whole. For any others
 * it is an ordinary merge sort. qsort moves every run by itself, and allocates memory to do so. */
#include "find/find.h"

/* How many of n sorted runs come before x, or are equal to it where `ties`. */
static uint32_t n_before(const struct tsri_run *runs, uint32_t n, const struct tsri_run *x,
                         tsri_run_order *compare, bool ties)
{
    uint32_t low = 0, step = 1; /* below low all come before it */
    const int most = ties ? 0 : -1;
    while (step <= n - low && compare(&runs[low + step - 1], x) <= most) {
        low += step;
        step *= 2;
    }
    uint32_t high = low + step <= n ? low + step - 1 : n; /* from high on none does */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare(&runs[middle], x) <= most)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Two sorted halves; of equal runs the left one comes first. */
static void merge(struct tsri_run *runs, uint32_t half, uint32_t n, struct tsri_run *scratch,
                  tsri_run_order *compare)
{
    uint32_t from = n_before(runs, half, &runs[half], compare, true), n_left = half - from;
    uint32_t n_right = n - half;
    const struct tsri_run *left = scratch, *right = runs + half;
    struct tsri_run *out = runs + from;
    if (n_left) memcpy(scratch, out, n_left * sizeof *out);
    while (n_left && n_right) {
        uint32_t k = n_before(right, n_right, left, compare, false);
        memmove(out, right, k * sizeof *out);
        out += k, right += k, n_right -= k;
        if (!n_right) break;
        k = n_before(left, n_left, right, compare, true);
        memcpy(out, left, k * sizeof *out);
        out += k, left += k, n_left -= k;
    }
    if (n_left) memcpy(out, left, n_left * sizeof *out);
}

void tsri_runs_sort(struct tsri_run *runs, uint32_t n, struct tsri_run *scratch,
                    tsri_run_order *compare)
{
    if (n < 2) return;
    uint32_t half = n / 2;
    tsri_runs_sort(runs, half, scratch, compare);
    tsri_runs_sort(runs + half, n - half, scratch, compare);
    if (compare(&runs[half - 1], &runs[half]) > 0) merge(runs, half, n, scratch, compare);
}
