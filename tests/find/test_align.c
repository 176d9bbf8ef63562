/* Aligning two texts around edits, against the plain method that fills a table of n x m scores. */
#include "support/match_kit.h"
#include "support/test.h"

#include <stdlib.h>

#define COST 5
#define MAX 160u
#define PLENTY ((uint64_t)1 << 40)

static struct tsri_equal runs[4096];

static struct tsri_alignment aligned(const uint32_t *a, uint32_t na, const uint32_t *b, uint32_t nb)
{
    return (struct tsri_alignment){.a = a,
                                   .b = b,
                                   .a_end = na,
                                   .b_end = nb,
                                   .edit_cost = COST,
                                   .run_min = 1,
                                   .budget = PLENTY,
                                   .runs = runs,
                                   .max = TSRI_COUNT(runs)};
}

/* The best score of any path from the beginning of both texts. */
static int32_t best_score(const uint32_t *a, uint32_t na, const uint32_t *b, uint32_t nb)
{
    static int32_t s[MAX + 1][MAX + 1];
    int32_t best = 0;
    CHECK(na <= MAX && nb <= MAX);
    for (uint32_t i = 0; i <= na; i++)
        for (uint32_t j = 0; j <= nb; j++) {
            int32_t x = i || j ? INT32_MIN / 2 : 0;
            if (i && s[i - 1][j] + 1 - 2 * COST > x) x = s[i - 1][j] + 1 - 2 * COST;
            if (j && s[i][j - 1] + 1 - 2 * COST > x) x = s[i][j - 1] + 1 - 2 * COST;
            if (i && j) {
                int32_t pair = s[i - 1][j - 1] + 2 - (a[i - 1] == b[j - 1] ? 0 : 2 * COST);
                if (pair > x) x = pair;
            }
            s[i][j] = x;
            if (x > best) best = x;
        }
    return best;
}

/* Every pair is equal, they ascend in both texts, and they are as many as was said. */
static void check_runs(const struct tsri_alignment *x)
{
    uint32_t a = x->a_from, b = x->b_from, sum = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        const struct tsri_equal *r = &x->runs[i];
        CHECK(r->a >= a && r->b >= b && r->n > 0);
        CHECK(memcmp(x->a + r->a, x->b + r->b, r->n * sizeof x->a[0]) == 0);
        a = r->a + r->n;
        b = r->b + r->n;
        sum += r->n;
    }
    CHECK(a <= x->a_to && b <= x->b_to && x->a_to <= x->a_end && x->b_to <= x->b_end);
    CHECK(x->a_from >= x->a_begin);
    if (x->run_min == 1 && x->n < x->max) CHECK_INT(sum, x->n_equal);
}

/* What the path of an alignment from (0, 0) is worth: every token that is not equal costs, and one
 * that is replaced counts once. */
static int32_t score_of(const struct tsri_alignment *x)
{
    int32_t score = 0;
    uint32_t a = x->a_from, b = x->b_from;
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t da = x->runs[i].a - a, db = x->runs[i].b - b, edits = da > db ? da : db;
        score += (int32_t)(da + db + 2 * x->runs[i].n) - (int32_t)(2 * COST * edits);
        a = x->runs[i].a + x->runs[i].n;
        b = x->runs[i].b + x->runs[i].n;
    }
    return score;
}

TEST(random_small_texts_get_the_best_score_there_is)
{
    uint64_t seed = 7;
    uint32_t n_best = 0, n_all = 0;
    for (uint32_t round = 0; round < 4000; round++) {
        struct text a, b;
        uint32_t n = 20 + text_random(&seed, 80), vocabulary = round % 2 ? 50000 : 4;
        text_init(&a, MAX);
        text_init(&b, MAX);
        text_add_random(&b, &seed, n, vocabulary);
        /* Both begin with the same eight tokens, which no other text has. */
        for (uint32_t i = 0; i < 8; i++)
            b.tokens[i] = 100000 + i;
        text_add(&a, b.tokens, 8);
        for (uint32_t at = 8; at < n;) {
            uint32_t keep = tsri_min_u32(n - at, 1 + text_random(&seed, 24));
            text_add(&a, b.tokens + at, keep);
            at += keep;
            uint32_t form = text_random(&seed, 3), few = 1 + text_random(&seed, 3);
            if (form != 1) at += few;                                   /* deleted, replaced */
            if (form != 2) text_add_random(&a, &seed, few, vocabulary); /* inserted, replaced */
        }
        struct tsri_alignment x = aligned(a.tokens, a.n, b.tokens, b.n);
        tsri_align(&x, 0, 0, 8);
        check_runs(&x);
        int32_t best = best_score(a.tokens, a.n, b.tokens, b.n), got = score_of(&x);
        CHECK(got <= best);
        n_best += got == best;
        n_all++;
        text_fini(&a);
        text_fini(&b);
    }
    /* The few others lead through more edits than a path may be behind. */
    if (n_best < n_all * 99 / 100) printf("    %u of %u\n", n_best, n_all);
    CHECK(n_best >= n_all * 99 / 100);
}

/* Texts of 200 tokens; tokens 0 to 199, each there once. */
static void fill(uint32_t *tokens, uint32_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = first + i;
}

TEST(an_alignment_goes_both_ways_from_where_it_begins)
{
    uint32_t a[200], b[200];
    fill(a, 200, 1000);
    fill(b, 200, 1000);
    for (uint32_t i = 10; i < 200; i += 20)
        a[i] = i;
    struct tsri_alignment x = aligned(a, 200, b, 200);
    tsri_align(&x, 100, 100, 8);
    check_runs(&x);
    CHECK_INT(x.n_equal, 190);
    CHECK_INT(x.n, 11);
    CHECK_INT(x.a_from, 0);
    CHECK_INT(x.a_to, 200);
    CHECK_INT(x.b_from, 0);
    CHECK_INT(x.b_to, 200);
}

TEST(inserted_and_deleted_tokens_move_the_rest)
{
    uint32_t a[300], b[200];
    fill(b, 200, 1000);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 200; i++) {
        if (i % 40 == 20) continue;                               /* deleted */
        if (i % 40 == 0 && i) a[n++] = 5, a[n++] = 6, a[n++] = 7; /* inserted */
        a[n++] = b[i];
    }
    struct tsri_alignment x = aligned(a, n, b, 200);
    tsri_align(&x, 0, 0, 8);
    check_runs(&x);
    CHECK_INT(x.n_equal, 195);
    CHECK_INT(x.a_to, n);
    CHECK_INT(x.b_to, 200);
}

TEST(text_without_end_is_followed_leg_by_leg)
{
    enum { N = 40000 };
    uint32_t *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
    CHECK(a && b);
    fill(a, N, 1000);
    fill(b, N, 1000);
    for (uint32_t i = 19; i < N; i += 20)
        a[i] = 1;
    struct tsri_alignment x = aligned(a, N, b, N);
    tsri_align(&x, N / 2, N / 2, 8);
    check_runs(&x);
    CHECK_INT(x.n_equal, N - N / 20);
    CHECK_INT(x.a_from, 0);
    CHECK_INT(x.a_to, N - 1);
    free(a);
    free(b);
}

TEST(text_that_goes_on_otherwise_ends_the_path_at_once)
{
    uint32_t a[1000], b[1000];
    fill(a, 1000, 1000);
    fill(b, 1000, 5000);
    fill(b + 400, 50, 1000 + 400);
    struct tsri_alignment x = aligned(a, 1000, b, 1000);
    tsri_align(&x, 410, 410, 8);
    check_runs(&x);
    CHECK_INT(x.n, 1);
    CHECK_INT(x.a_from, 400);
    CHECK_INT(x.a_to, 450);
    CHECK(PLENTY - x.budget < 500);
}

TEST(eight_replaced_tokens_are_passed_and_nine_are_not)
{
    for (uint32_t n_replaced = 1; n_replaced <= 10; n_replaced++) {
        uint32_t a[200], b[200];
        fill(a, 200, 0);
        fill(b, 200, 0);
        fill(b + 60 - n_replaced, n_replaced, 1000);
        fill(b + 140, n_replaced, 2000);
        struct tsri_alignment x = aligned(a, 200, b, 200);
        tsri_align(&x, 100, 100, 8);
        check_runs(&x);
        CHECK_INT(x.a_from, n_replaced <= 8 ? 0 : 60);
        CHECK_INT(x.a_to, n_replaced <= 8 ? 200 : 140);
    }
}

TEST(short_runs_are_counted_and_not_returned)
{
    uint32_t a[64], b[64];
    fill(a, 64, 1000);
    fill(b, 64, 1000);
    a[5] = a[11] = a[17] = a[60] = 1;
    struct tsri_alignment x = aligned(a, 64, b, 64);
    x.run_min = 8;
    tsri_align(&x, 30, 30, 8);
    check_runs(&x);
    CHECK_INT(x.n, 1);
    CHECK_INT(x.runs[0].a, 18);
    CHECK_INT(x.runs[0].n, 42);
    /* The last three do not pay for the edit before them, but are of the same text. */
    CHECK_INT(x.n_equal, 42 + 3 * 5);
    CHECK_INT(x.n_beyond, 3);
}

/* The leg of 32 edits and the one after it both end where the texts do. */
TEST(an_end_that_two_legs_reach_counts_once)
{
    enum { N = 8 + 31 * 6 + 1 + 3 };
    uint32_t a[N], b[N];
    fill(a, N, 1000);
    fill(b, N, 1000);
    for (uint32_t i = 8; i < N; i += 6)
        a[i] = 1;
    struct tsri_alignment x = aligned(a, N, b, N);
    tsri_align(&x, 0, 0, 8);
    check_runs(&x);
    CHECK_INT(x.n_equal, 8 + 31 * 5);
    CHECK_INT(x.n_beyond, 3);
}

TEST(an_alignment_stays_where_it_may_look)
{
    uint32_t a[200], b[200];
    fill(a, 200, 1000);
    fill(b, 200, 1000);
    a[70] = a[120] = 1;
    struct tsri_alignment x = aligned(a, 200, b, 200);
    x.a_begin = 50;
    x.a_end = 150;
    tsri_align(&x, 100, 100, 8);
    check_runs(&x);
    CHECK_INT(x.a_from, 50);
    CHECK_INT(x.a_to, 150);
    CHECK_INT(x.n_equal, 98);
    x = aligned(a, 200, b, 200);
    x.max = 1; /* no room: what there is no room for is counted */
    tsri_align(&x, 100, 100, 8);
    CHECK_INT(x.n, 1);
    CHECK_INT(x.n_equal, 198);
}

/* All tokens equal, periods, and periods that do not fit: every diagonal goes on for ever. */
TEST(no_text_takes_more_than_its_budget)
{
    enum { N = 200000 };
    uint32_t *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
    CHECK(a && b);
    for (uint32_t form = 0; form < 6; form++) {
        for (uint32_t i = 0; i < N; i++) {
            a[i] = form < 3 ? i % (form + 1) : i % (5u * form);
            b[i] = form < 3 ? i % (form + 1) : i % (5u * form + form % 2);
            if (i % 7 == 3 && form != 4) a[i] = 77;
        }
        struct tsri_alignment x = aligned(a, N, b, N);
        x.budget = 1u << 20;
        uint64_t begin = tsri_now_ns();
        tsri_align(&x, 0, 0, 1);
        double s = (double)(tsri_now_ns() - begin) / 1e9; /* 3 ms on an idle machine */
        check_runs(&x);
        CHECK(s < 2);
    }
    free(a);
    free(b);
}

int main(void)
{
    RUN(random_small_texts_get_the_best_score_there_is);
    RUN(an_alignment_goes_both_ways_from_where_it_begins);
    RUN(inserted_and_deleted_tokens_move_the_rest);
    RUN(text_without_end_is_followed_leg_by_leg);
    RUN(text_that_goes_on_otherwise_ends_the_path_at_once);
    RUN(eight_replaced_tokens_are_passed_and_nine_are_not);
    RUN(short_runs_are_counted_and_not_returned);
    RUN(an_end_that_two_legs_reach_counts_once);
    RUN(an_alignment_stays_where_it_may_look);
    RUN(no_text_takes_more_than_its_budget);
    return test_end();
}
