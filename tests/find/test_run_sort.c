/* Sorting runs, against a sort by insertion. */
#include "find/find.h"

#include "support/test.h"

#define MAX 600u

static uint32_t n_compared;
static int by_prompt(const struct tsri_run *x, const struct tsri_run *y)
{
    n_compared++;
    return x->prompt_offset < y->prompt_offset ? -1 : x->prompt_offset > y->prompt_offset;
}

static void sort_slowly(struct tsri_run *runs, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = i; k > 0 && by_prompt(&runs[k - 1], &runs[k]) > 0; k--) {
            struct tsri_run t = runs[k];
            runs[k] = runs[k - 1];
            runs[k - 1] = t;
        }
}

/* Runs are numbered by id, so that equal ones can be told apart. */
static void check_sorted(const uint32_t *offsets, uint32_t n)
{
    static struct tsri_run runs[MAX], expected[MAX], scratch[MAX];
    for (uint32_t i = 0; i < n; i++)
        runs[i] = expected[i] = (struct tsri_run){.id = i, .prompt_offset = offsets[i]};
    sort_slowly(expected, n);
    n_compared = 0;
    tsri_runs_sort(runs, n, scratch, by_prompt);
    for (uint32_t i = 0; i < n; i++)
        CHECK_INT(runs[i].id, expected[i].id);
}

static uint64_t state = 1;
static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

TEST(any_order_of_few)
{
    uint32_t offsets[5];
    for (uint32_t n = 0; n <= 5; n++)
        for (uint32_t code = 0; code < 3125; code++) {
            for (uint32_t i = 0, rest = code; i < n; i++, rest /= 5)
                offsets[i] = rest % 5;
            check_sorted(offsets, n);
        }
}

TEST(random_runs_equal_ones_as_they_were)
{
    uint32_t offsets[MAX];
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n = below(MAX + 1), kinds = 1 + below(round % 2 ? 8 : 100000);
        for (uint32_t i = 0; i < n; i++)
            offsets[i] = below(kinds);
        check_sorted(offsets, n);
    }
}

TEST(stretches_in_order)
{
    uint32_t offsets[MAX];
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t at = 0, left = 0;
        for (uint32_t i = 0; i < MAX; i++, left--) {
            if (!left) {
                at = below(1000000);
                left = 1 + below(60);
            }
            offsets[i] = at += below(3);
        }
        check_sorted(offsets, MAX);
    }
}

TEST(what_is_in_order_is_compared_once)
{
    uint32_t offsets[MAX];
    for (uint32_t i = 0; i < MAX; i++)
        offsets[i] = i;
    check_sorted(offsets, MAX);
    CHECK_INT(n_compared, MAX - 1);
    /* Ten stretches of sixty, the last one first. */
    for (uint32_t i = 0; i < MAX; i++)
        offsets[i] = 600 - i / 60 * 60 + i % 60;
    check_sorted(offsets, MAX);
    CHECK(n_compared < 2 * MAX);
}

int main(void)
{
    RUN(any_order_of_few);
    RUN(random_runs_equal_ones_as_they_were);
    RUN(stretches_in_order);
    RUN(what_is_in_order_is_compared_once);
    return test_end();
}
