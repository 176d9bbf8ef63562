/* align.c - the equal tokens of two texts around small edits, outward from a run that both have.
 * The score of a path is 2 for a pair of equal tokens, and 2 x edit_cost less for each token that
 * is replaced (with the 2 of its pair), inserted or deleted (with the 1 of its side); with these
 * numbers the greedy method of Zhang, Schwartz, Wagner and Miller (2000) finds the best path: for
 * each number of edits and each diagonal only the furthest point is kept.
 *
 * The work is limited for any text: at most BAND diagonals on either side; a path that is X_EDITS
 * edits worse than the best one is given up; after LEG_EDITS edits the best path so far is kept and
 * the search goes on from its end; and every step is taken off the caller's budget. Limits cost
 * matches, never correctness: what is returned was compared token by token. */
#include "find/find.h"

#define BAND 16
#define DIAGONALS (2 * BAND + 1)
#define LEG_EDITS 32
#define X_EDITS 6
#define DEAD (INT32_MIN / 4) /* further back than any edit leads out of, and its score fits */
#define NEAR 12 /* tokens in which a leg must find something, at an edit_cost of 3 and more */
/* Comparing ahead is this many times faster than a step. */
#define COMPARED_A_STEP 4u

/* One direction: tokens of a and b from (a, b) on, na and nb of them. */
struct align_side {
    struct tsri_alignment *x;
    const uint32_t *a, *b; /* behind: the ends of what is compared */
    int32_t na, nb;
};
/* Compiled once for each. */
enum direction { BEHIND = -1, AHEAD = 1 };
#define INLINE static inline __attribute__((always_inline))

/* The furthest points of a leg: tokens of a, by edits and diagonal. */
struct leg {
    int32_t reach[LEG_EDITS + 1][DIAGONALS + 2]; /* one dead diagonal at each end */
    int32_t low, high;                           /* diagonals that are alive */
};
struct point {
    int32_t edits, diagonal, i, score;
};

INLINE uint32_t equal_from(const struct align_side *s, enum direction way, int32_t i, int32_t j)
{
    int32_t left = s->na - i < s->nb - j ? s->na - i : s->nb - j;
    const uint32_t *a = s->a + way * i, *b = s->b + way * j;
    if (left <= 0) return 0;
    if (way == AHEAD) return *a == *b ? tsri_same_ahead(a, b, (uint32_t)left) : 0;
    return a[-1] == b[-1] ? tsri_same_behind(a, b, (uint32_t)left) : 0;
}

static void spend(struct tsri_alignment *x, uint64_t n)
{
    x->budget -= n < x->budget ? n : x->budget;
}

/* Where diagonal k is entered with one edit more, from the furthest points with one less, *at on
 * that diagonal; from: the diagonal that it was entered from. Below 0: nowhere. */
INLINE int32_t enter(const struct align_side *s, const int32_t *at, int32_t k, int32_t *from)
{
    int32_t i = at[0] + 1, only_a = at[-1] + 1, only_b = at[1]; /* i: replaced */
    *from = k;
    if (i > s->na || i - k > s->nb) i = DEAD;
    if (only_a > i && only_a <= s->na) {
        i = only_a;
        *from = k - 1;
    }
    if (only_b > i && only_b - k <= s->nb) {
        i = only_b;
        *from = k + 1;
    }
    return i;
}

/* Steps back from a point over its run of equal tokens and the edit before it; returns how long the
 * run is. */
static uint32_t step_back(const struct align_side *s, const struct leg *leg, struct point *p)
{
    const int32_t *before = leg->reach[p->edits - 1];
    int32_t from = 0, begin = enter(s, before + p->diagonal + BAND + 1, p->diagonal, &from);
    uint32_t n = (uint32_t)(p->i - begin);
    p->edits--;
    p->diagonal = from;
    p->i = leg->reach[p->edits][from + BAND + 1];
    return n;
}

static uint32_t equal_on_path(const struct align_side *s, const struct leg *leg, struct point p)
{
    uint32_t n = 0;
    while (p.edits > 0)
        n += step_back(s, leg, &p);
    return n;
}

static void reverse(struct tsri_equal *runs, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        struct tsri_equal t = runs[i];
        runs[i] = runs[n - 1 - i];
        runs[n - 1 - i] = t;
    }
}

/* Adds the runs of equal tokens on the way to a point, nearest first. */
static void keep_path(const struct align_side *s, enum direction way, const struct leg *leg,
                      struct point p)
{
    struct tsri_alignment *x = s->x;
    uint32_t first = x->n;
    while (p.edits > 0) {
        int32_t end = p.i, diagonal = p.diagonal;
        uint32_t n = step_back(s, leg, &p);
        int32_t begin = end - (int32_t)n;
        const uint32_t *a = s->a + (way == AHEAD ? begin : -end);
        const uint32_t *b = s->b + (way == AHEAD ? begin - diagonal : diagonal - end);
        x->n_equal += n;
        if (n >= x->run_min && x->n < x->max)
            x->runs[x->n++] = (struct tsri_equal){(uint32_t)(a - x->a), (uint32_t)(b - x->b), n};
    }
    reverse(x->runs + first, x->n - first);
}

/* One more edit on every diagonal that is still alive; false when none is left. */
INLINE bool go_on(const struct align_side *s, enum direction way, struct leg *leg, int32_t edits,
                  struct point *best, struct point *at_end)
{
    const int32_t cost = 2 * s->x->edit_cost, limit = X_EDITS * cost, spent = edits * cost;
    const int32_t low = leg->low > -BAND ? leg->low - 1 : -BAND;
    const int32_t high = leg->high < BAND ? leg->high + 1 : BAND;
    const int32_t *before = leg->reach[edits - 1] + BAND + 1;
    int32_t *reach = leg->reach[edits] + BAND + 1;
    int32_t floor = best->score - limit;
    uint32_t steps = (uint32_t)(high - low + 1);
    leg->low = BAND + 1;
    leg->high = -BAND - 1;
    reach[low - 1] = reach[high + 1] = DEAD;
    if (low > -BAND) reach[low - 2] = DEAD; /* the next ones look so far */
    if (high < BAND) reach[high + 2] = DEAD;
    for (int32_t k = low; k <= high; k++) {
        int32_t from, i = enter(s, before + k, k, &from);
        uint32_t n = i < 0 ? 0 : equal_from(s, way, i, i - k);
        i += (int32_t)n;
        steps += n / COMPARED_A_STEP;
        int32_t score = 2 * i - k - spent;
        reach[k] = score < floor ? DEAD : i;
        if (score < floor) continue;
        if (k < leg->low) leg->low = k;
        leg->high = k;
        struct point p = {edits, k, i, score};
        if (score > best->score) {
            *best = p;
            floor = score - limit;
        }
        if (i - k == s->nb && (at_end->edits == 0 || score > at_end->score)) *at_end = p;
    }
    spend(s->x, steps);
    return leg->low <= leg->high;
}

/* Whether a leg can lead anywhere. Until its first pair of equal tokens it only gets worse, and is
 * given up after a few edits: the pair stands among as many tokens of either text. Most texts that
 * stop being alike have none there, and that is seen long before the leg would end. */
INLINE bool may_go_on(const struct align_side *s, enum direction way)
{
    const int32_t cost = 2 * s->x->edit_cost;
    /* A leg is given up at X_EDITS x cost, and a replaced token costs 2 less. */
    if (X_EDITS * cost >= (NEAR - 1) * (cost - 2) || s->na < NEAR || s->nb < NEAR) return true;
    const uint32_t *a = way == AHEAD ? s->a : s->a - NEAR, *b = way == AHEAD ? s->b : s->b - NEAR;
    uint32_t n_equal = 0;
    for (int32_t i = 0; i < NEAR; i++)
        for (int32_t j = 0; j < NEAR; j++)
            n_equal += a[i] == b[j];
    spend(s->x, NEAR);
    return n_equal > 0;
}

/* From the side's beginning to the end of its best path: how far that is in a and b, and in a with
 * what is near. */
INLINE void extend(struct align_side s, enum direction way, uint32_t *in_a, uint32_t *in_b,
                   uint32_t *near)
{
    struct leg leg;
    uint32_t through = 0; /* x->n_equal if the path went on to the end of b, at most */
    *in_a = *in_b = *near = 0;
    for (bool more = true; more && may_go_on(&s, way);) {
        struct point best = {0}, at_end = {0};
        for (int32_t k = 0; k < DIAGONALS + 2; k++)
            leg.reach[0][k] = DEAD;
        leg.reach[0][BAND + 1] = leg.low = leg.high = 0;
        more = true;
        for (int32_t edits = 1; more && edits <= LEG_EDITS; edits++)
            more = go_on(&s, way, &leg, edits, &best, &at_end) && s.x->budget > 0;
        if (at_end.edits) {
            uint32_t n_through = s.x->n_equal + equal_on_path(&s, &leg, at_end);
            if (through < n_through) through = n_through;
            if (*near < *in_a + (uint32_t)at_end.i) *near = *in_a + (uint32_t)at_end.i;
        }
        if (best.edits == 0) break;
        keep_path(&s, way, &leg, best);
        int32_t i = best.i, j = best.i - best.diagonal;
        s.a += way * i;
        s.b += way * j;
        s.na -= i;
        s.nb -= j;
        *in_a += (uint32_t)i;
        *in_b += (uint32_t)j;
        if (*near < *in_a) *near = *in_a;
    }
    /* Legs that follow each other may reach the same end: it counts once. */
    if (through > s.x->n_equal) s.x->n_beyond += through - s.x->n_equal;
}

void tsri_align(struct tsri_alignment *x, uint32_t a_at, uint32_t b_at, uint32_t n)
{
    uint32_t in_a, in_b, near;
    x->n = x->n_equal = x->n_beyond = 0;
    /* The given run is made as long as it can be, so that either side begins with an edit. */
    struct align_side behind = {x, x->a + a_at, x->b + b_at, (int32_t)(a_at - x->a_begin),
                                (int32_t)b_at};
    uint32_t more = equal_from(&behind, BEHIND, 0, 0);
    spend(x, more / COMPARED_A_STEP + 1);
    a_at -= more;
    b_at -= more;
    n += more;
    struct align_side ahead = {x, x->a + a_at + n, x->b + b_at + n, (int32_t)(x->a_end - a_at - n),
                               (int32_t)(x->b_end - b_at - n)};
    more = equal_from(&ahead, AHEAD, 0, 0);
    spend(x, more / COMPARED_A_STEP + 1);
    n += more;
    ahead = (struct align_side){x, ahead.a + more, ahead.b + more, ahead.na - (int32_t)more,
                                ahead.nb - (int32_t)more};
    behind = (struct align_side){x, x->a + a_at, x->b + b_at, (int32_t)(a_at - x->a_begin),
                                 (int32_t)b_at};
    extend(behind, BEHIND, &in_a, &in_b, &near);
    reverse(x->runs, x->n);
    x->a_from = a_at - in_a;
    x->a_near_from = a_at - near;
    x->b_from = b_at - in_b;
    x->n_equal += n;
    if (x->n < x->max) x->runs[x->n++] = (struct tsri_equal){a_at, b_at, n};
    extend(ahead, AHEAD, &in_a, &in_b, &near);
    x->a_to = a_at + n + in_a;
    x->a_near_to = a_at + n + near;
    x->b_to = b_at + n + in_b;
}
