/* Frequencies and rotations against golden vectors of transformers (tests/golden/make_rope.py),
 * and rotation by a difference of positions against rotation at the positions themselves. */
#include "device/device.h"
#include "support/test.h"

#include <math.h>

enum { LINE_MAX_BYTES = 1 << 15, DIM_MAX = 256 };

static double golden_short[24], golden_long[24];

struct golden {
    struct tsr_rope rope;
    uint32_t head_dim;
    uint64_t n_tokens;
    long at[2];
    double scale, freq[DIM_MAX], k[DIM_MAX], turned[2][DIM_MAX];
};

static void read_numbers(FILE *f, double *out, uint32_t n)
{
    char *line = malloc(LINE_MAX_BYTES), *at = line;
    CHECK(line && fgets(line, LINE_MAX_BYTES, f));
    for (uint32_t i = 0; i < n; i++) {
        char *end;
        out[i] = strtod(at, &end);
        CHECK(end != at);
        at = end;
    }
    free(line);
}

static uint32_t scaling_of(const char *name)
{
    static const char *const names[] = {"plain", "linear", "dynamic", "yarn", "llama3", "longrope"};
    for (uint32_t i = 0; i < TSRI_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return i;
    return UINT32_MAX; /* refused by tsri_rope_check */
}

static bool read_golden(FILE *f, struct golden *g)
{
    char line[512], name[16], pairing[16];
    unsigned head_dim, dims, trained, n_tokens, exact;
    double theta, v[8];
    memset(g, 0, sizeof *g);
    do {
        if (!fgets(line, sizeof line, f)) return false;
    } while (line[0] == '#');
    int n =
        sscanf(line, "case %15s %15s %u %u %u %u %lf %lf %lf %lf %lf %lf %lf %lf %lf %u %ld %ld",
               name, pairing, &head_dim, &dims, &trained, &n_tokens, &theta, &v[0], &v[1], &v[2],
               &v[3], &v[4], &v[5], &v[6], &v[7], &exact, &g->at[0], &g->at[1]);
    CHECK_INT(n, 18);
    for (int i = 0; i < 24; i++) {
        golden_short[i] = 1.0 + 0.05 * i;
        golden_long[i] = 1.0 + 0.4 * i;
    }
    g->head_dim = head_dim;
    g->n_tokens = n_tokens;
    g->rope =
        (struct tsr_rope){.size = sizeof g->rope,
                          .pairing = strcmp(pairing, "neox") == 0 ? TSR_ROPE_NEOX : TSR_ROPE_GPTJ,
                          .scaling = scaling_of(name),
                          .dims = dims,
                          .trained = trained,
                          .theta = theta,
                          .factor = v[0],
                          .attention_factor = v[1],
                          .beta_fast = v[2],
                          .beta_slow = v[3],
                          .mscale = v[4],
                          .mscale_all_dim = v[5],
                          .low_freq_factor = v[6],
                          .high_freq_factor = v[7],
                          .yarn_exact = exact,
                          .n_factors = 24,
                          .short_factors = golden_short,
                          .long_factors = golden_long};
    read_numbers(f, &g->scale, 1);
    read_numbers(f, g->freq, dims / 2);
    read_numbers(f, g->k, head_dim);
    read_numbers(f, g->turned[0], head_dim);
    read_numbers(f, g->turned[1], head_dim);
    return true;
}

/* Where the two elements of pair i stand. */
static void pair_at(const struct tsr_rope *r, uint32_t i, uint32_t *a, uint32_t *b)
{
    *a = r->pairing == TSR_ROPE_NEOX ? i : 2 * i;
    *b = r->pairing == TSR_ROPE_NEOX ? i + r->dims / 2 : 2 * i + 1;
}

static void each_golden(void (*check)(const struct golden *g, const struct tsri_rope_set *set))
{
    FILE *f = fopen("tests/golden/rope.txt", "r");
    struct golden g;
    int n = 0;
    CHECK(f != NULL);
    for (; read_golden(f, &g); n++) {
        struct tsri_rope_set set;
        CHECK_INT(tsri_rope_check(&g.rope), 0);
        tsri_rope_set_init(&set, &g.rope, tsri_rope_set_id(&g.rope, g.n_tokens));
        check(&g, &set);
    }
    fclose(f);
    CHECK_INT(n, 18);
}

/* transformers works in float: a power and a few products, less than 16 units of float apart. */
static void check_frequencies(const struct golden *g, const struct tsri_rope_set *set)
{
    CHECK_INT(set->n_pairs, g->rope.dims / 2);
    CHECK(fabs(set->attention_factor / g->scale - 1) < 1e-6);
    for (uint32_t i = 0; i < set->n_pairs; i++)
        CHECK(fabs(set->freq[i] / g->freq[i] - 1) < 16 * 0x1p-24);
}

TEST(frequencies_and_scales_are_those_of_transformers)
{
    each_golden(check_frequencies);
}

/* From k at the first position to k at the second, with the table of a shift: unscaled. */
static void check_shift(const struct golden *g, const struct tsri_rope_set *set)
{
    float table[2 * TSRI_ROPE_PAIRS_MAX];
    tsri_rope_table(set, g->at[1] - g->at[0], table);
    for (uint32_t i = 0; i < set->n_pairs; i++) {
        uint32_t ia, ib;
        pair_at(&g->rope, i, &ia, &ib);
        double c = (double)table[i], s = (double)table[set->n_pairs + i];
        double a = g->turned[0][ia], b = g->turned[0][ib], size = hypot(a, b);
        /* The frequencies' own rounding, times the distance, is the most of it. */
        double bound = size * (16 * 0x1p-24 * g->freq[i] * (double)(g->at[1] - g->at[0]) + 1e-6);
        CHECK(fabs(a * c - b * s - g->turned[1][ia]) <= bound);
        CHECK(fabs(b * c + a * s - g->turned[1][ib]) <= bound);
    }
    for (uint32_t i = g->rope.dims; i < g->head_dim; i++)
        CHECK(g->turned[0][i] == g->turned[1][i] && g->turned[0][i] == g->k[i]);
}

TEST(a_shift_brings_k_from_one_position_to_another)
{
    each_golden(check_shift);
}

static struct tsr_rope plain_rope(uint32_t dims)
{
    return (struct tsr_rope){
        .size = sizeof(struct tsr_rope), .pairing = TSR_ROPE_NEOX, .dims = dims, .theta = 500000};
}

TEST(shifts_add_up_and_undo_each_other)
{
    struct tsr_rope r = plain_rope(128);
    struct tsri_rope_set set;
    float ab[2 * TSRI_ROPE_PAIRS_MAX], a[2 * TSRI_ROPE_PAIRS_MAX], b[2 * TSRI_ROPE_PAIRS_MAX];
    tsri_rope_set_init(&set, &r, 0);
    int64_t deltas[][2] = {{1, 2}, {-5, 131072}, {100000, -100000}, {-3, -4}, {1 << 30, 7}};
    for (size_t d = 0; d < TSRI_COUNT(deltas); d++) {
        tsri_rope_table(&set, deltas[d][0], a);
        tsri_rope_table(&set, deltas[d][1], b);
        tsri_rope_table(&set, deltas[d][0] + deltas[d][1], ab);
        for (uint32_t i = 0; i < 64; i++) {
            double ca = (double)a[i], sa = (double)a[64 + i];
            double cb = (double)b[i], sb = (double)b[64 + i];
            CHECK(fabs(ca * cb - sa * sb - (double)ab[i]) < 4 * 0x1p-24);
            CHECK(fabs(sa * cb + ca * sb - (double)ab[64 + i]) < 4 * 0x1p-24);
        }
    }
}

TEST(tables_are_rounded_once_from_double)
{
    struct tsr_rope r = plain_rope(64);
    struct tsri_rope_set set;
    float table[64];
    tsri_rope_set_init(&set, &r, 0);
    tsri_rope_table(&set, 99999, table);
    for (uint32_t i = 0; i < 32; i++) {
        double angle = 99999 * pow(500000, -2.0 * i / 64);
        CHECK(fabs((double)table[i] - cos(angle)) <= 0x1p-25 + 1e-10);
        CHECK(fabs((double)table[32 + i] - sin(angle)) <= 0x1p-25 + 1e-10);
    }
}

TEST(only_dynamic_and_longrope_change_sets_with_the_length)
{
    struct tsr_rope r = plain_rope(64);
    r.trained = 4096;
    for (uint32_t scaling = TSR_ROPE_PLAIN; scaling <= TSR_ROPE_LONGROPE; scaling++) {
        r.scaling = scaling;
        CHECK_INT(tsri_rope_set_id(&r, 4096), 0);
        uint32_t want = scaling == TSR_ROPE_DYNAMIC ? 4097 : scaling == TSR_ROPE_LONGROPE ? 1 : 0;
        CHECK_INT(tsri_rope_set_id(&r, 4097), want);
    }
    r.scaling = TSR_ROPE_DYNAMIC;
    CHECK(tsri_rope_set_id(&r, 5000) != tsri_rope_set_id(&r, 5001));
}

TEST(parameters_that_make_no_sense_are_refused)
{
    double ok[] = {1, 1}, bad[] = {1, 0};
    struct tsr_rope good = plain_rope(64), r;
    CHECK_INT(tsri_rope_check(&good), 0);
    CHECK_INT(tsri_rope_check(NULL), TSR_EINVAL);
#define REFUSED(...) \
    do { \
        r = good; \
        __VA_ARGS__; \
        CHECK_INT(tsri_rope_check(&r), TSR_EINVAL); \
    } while (0)
    REFUSED(r.size = 8);
    REFUSED(r.pairing = 0);
    REFUSED(r.dims = 63);
    REFUSED(r.dims = 0);
    REFUSED(r.dims = 514);
    REFUSED(r.theta = 1);
    REFUSED(r.theta = NAN);
    REFUSED(r.theta = INFINITY);
    REFUSED(r.scaling = 6);
    REFUSED(r.scaling = TSR_ROPE_LINEAR);
    REFUSED(r.scaling = TSR_ROPE_LINEAR, r.factor = -1);
    REFUSED(r.scaling = TSR_ROPE_DYNAMIC, r.factor = 2);
    REFUSED(r.scaling = TSR_ROPE_DYNAMIC, r.factor = 0.5, r.trained = 4096);
    REFUSED(r.scaling = TSR_ROPE_YARN, r.factor = 2, r.trained = 4096, r.attention_factor = -1);
    REFUSED(r.scaling = TSR_ROPE_YARN, r.factor = 2, r.trained = 4096, r.beta_fast = NAN);
    REFUSED(r.scaling = TSR_ROPE_LLAMA3, r.factor = 8, r.trained = 8192);
    REFUSED(r.scaling = TSR_ROPE_LLAMA3, r.factor = 8, r.trained = 8192, r.low_freq_factor = 4,
            r.high_freq_factor = 4);
    REFUSED(r.scaling = TSR_ROPE_LONGROPE, r.factor = 8, r.trained = 8192);
    REFUSED(r.dims = 4, r.scaling = TSR_ROPE_LONGROPE, r.factor = 8, r.trained = 8192,
            r.n_factors = 2, r.short_factors = ok, r.long_factors = bad);
#undef REFUSED
}

int main(void)
{
    RUN(frequencies_and_scales_are_those_of_transformers);
    RUN(a_shift_brings_k_from_one_position_to_another);
    RUN(shifts_add_up_and_undo_each_other);
    RUN(tables_are_rounded_once_from_double);
    RUN(only_dynamic_and_longrope_change_sets_with_the_length);
    RUN(parameters_that_make_no_sense_are_refused);
    return test_end();
}
