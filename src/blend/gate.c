/* gate.c - is this the answer that a prefill gives? What a run knows anyway says how likely: how far
 * the last round of recomputing moved the answer and whether its first token changed, how much
 * attention is on tokens that stayed as they were loaded and on recomputed ones, how open the first
 * token is, and how the context is cut. A logistic regression, fitted to prompts where both answers
 * are known, makes a probability of it. Also here: the bias by ratio and chunks. */
#include "blend/blend.h"

#include <math.h>

/* ---- rows of logits ---- */

/* What a row says. Vocabularies have 150,000 tokens: each exponential is taken once. */
struct logits_row {
    uint32_t token; /* the most likely one */
    float top, second;
    double sum, mean; /* of exp(logit - top), and of logit - top weighted by that */
};

static struct logits_row read_row(const float *logits, uint32_t n)
{
    struct logits_row r = {.top = n ? logits[0] : -INFINITY, .second = -INFINITY};
    for (uint32_t i = 1; i < n; i++) {
        if (!(logits[i] > r.second)) continue;
        bool first = logits[i] > r.top;
        r.second = first ? r.top : logits[i];
        if (!first) continue;
        r.top = logits[i];
        r.token = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        double below = (double)logits[i] - r.top, weight = exp(below);
        r.sum += weight;
        if (weight > 0) r.mean += weight * below;
    }
    return r;
}

/* How far the second token is below the first, as a share of the first one's probability. */
static double gap(const struct logits_row *r)
{
    return 1 - exp((double)r->second - r->top);
}

static double entropy(const struct logits_row *r)
{
    return log(r->sum) - r->mean / r->sum;
}

/* of_q: what q's row says. */
static double divergence(const float *p, const float *q, const struct logits_row *of_q, uint32_t n)
{
    double top = -INFINITY, sum = 0, apart = 0;
    for (uint32_t i = 0; i < n; i++)
        if (p[i] > top) top = p[i];
    for (uint32_t i = 0; i < n; i++) {
        double weight = exp(p[i] - top);
        sum += weight;
        if (weight > 0) apart += weight * ((double)p[i] - q[i]);
    }
    if (!(sum > 0)) return 0;
    double kl = apart / sum - (top + log(sum)) + (of_q->top + log(of_q->sum));
    return kl > 0 ? kl : 0;
}

double tsr_logits_kl(const float *p, const float *q, uint32_t n)
{
    struct logits_row of_q = read_row(q, n);
    return n ? divergence(p, q, &of_q, n) : 0;
}

double tsr_logits_top(const float *logits, uint32_t n, uint32_t *token)
{
    struct logits_row r = read_row(logits, n);
    if (token) *token = r.token;
    return 1 / r.sum;
}

double tsr_logits_entropy(const float *logits, uint32_t n)
{
    struct logits_row r = read_row(logits, n);
    return n ? entropy(&r) : 0;
}

double tsri_logits_margin(const float *logits, uint32_t n, uint32_t *token)
{
    struct logits_row r = read_row(logits, n);
    *token = r.token;
    return gap(&r) / r.sum;
}

static uint32_t most_likely(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

void tsri_gate_read(struct tsr_gate *g, const float *logits, const float *before, uint32_t n)
{
    struct logits_row r = read_row(logits, n);
    g->top = 1 / r.sum;
    g->entropy = entropy(&r);
    g->margin = gap(&r) / r.sum;
    if (!before) return;
    g->moved = divergence(before, logits, &r, n);
    g->changed = r.token != most_likely(before, n);
}

/* ---- features ---- */

/* Keeps logarithms of zero finite. */
#define LOG_MIN 1e-4

static double plain(double value)
{
    return value;
}

static double logarithm(double value)
{
    return log(fmax(value, 0) + LOG_MIN);
}

static double one(double value)
{
    (void)value;
    return 1;
}

/* What the weights of a profile belong to, by name. A feature more is a line here. */
struct feature {
    const char *name;
    size_t offset; /* of a double in struct tsr_gate */
    double (*shape)(double value);
};
#define GATE(member) offsetof(struct tsr_gate, member)
static const struct feature features[] = {
    {"constant", 0, one}, /* first */
    {"moved", GATE(moved), logarithm},
    {"changed", GATE(changed), plain},
    {"mass", GATE(mass), plain},
    {"fresh", GATE(fresh), plain},
    {"entropy", GATE(entropy), plain},
    {"top", GATE(top), plain},
    {"margin", GATE(margin), plain},
    {"chunk_tokens", GATE(chunk_tokens), logarithm},
    {"n_chunks", GATE(n_chunks), logarithm},
    {"ratio", GATE(ratio), plain},
    {"agree", GATE(agree), plain},
    {"worst", GATE(worst), plain},
    {"doubt", GATE(doubt), plain},
    {"low", GATE(low), plain},
    {"draft", GATE(draft), plain},
};
#define N TSRI_COUNT(features)
_Static_assert(N <= TSR_GATE_WEIGHTS_MAX, "struct tsr_profile has a weight for each feature");

const char *tsr_gate_weight_name(uint32_t weight)
{
    return weight < N ? features[weight].name : NULL;
}

static double feature_of(const struct tsr_gate *g, size_t i)
{
    double value;
    memcpy(&value, (const char *)g + features[i].offset, sizeof value);
    return features[i].shape(value);
}

/* All of these features. */
static bool is_known(const struct tsr_gate *g, const bool wanted[N])
{
    for (size_t i = 0; i < N; i++)
        if (wanted[i] && !isfinite(feature_of(g, i))) return false;
    return true;
}

/* ---- predicting ---- */

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

bool tsri_gate_is_fitted(const double *weights)
{
    for (size_t i = 0; i < N; i++)
        if (weights[i] != 0) return true;
    return false;
}

double tsri_gate_predict(const double *weights, const struct tsr_gate *g)
{
    double sum = 0;
    if (!tsri_gate_is_fitted(weights)) return NAN;
    for (size_t i = 0; i < N; i++)
        if (weights[i] != 0) sum += weights[i] * feature_of(g, i);
    return logistic(sum);
}

double tsr_gate_predict(const struct tsr_profile *p, const struct tsr_gate *g)
{
    return tsri_gate_predict(p->gate, g);
}

/* ---- fitting ---- */

/* As if so many prompts spoke for a weight of zero. */
#define RIDGE 1.0
#define CONSTANT_RIDGE 1e-6
#define STEPS_MAX 50
#define HALVINGS_MAX 30u
#define GAIN_MIN 1e-9
#define WIDTH_MIN 1e-9

/* Features of the prompts, moved and scaled so that the ridge weighs on all of them alike. */
struct gate_cases {
    double (*x)[N];
    double *y; /* the probability to come near to */
    uint32_t n;
    double mean[N], width[N];
};

static void standardise(struct gate_cases *c)
{
    for (size_t k = 1; k < N; k++) {
        double sum = 0, squares = 0;
        for (uint32_t i = 0; i < c->n; i++)
            sum += c->x[i][k] / c->n;
        for (uint32_t i = 0; i < c->n; i++)
            squares += (c->x[i][k] - sum) * (c->x[i][k] - sum) / c->n;
        c->mean[k] = sum;
        c->width[k] = sqrt(squares);
        for (uint32_t i = 0; i < c->n; i++)
            c->x[i][k] = c->width[k] > WIDTH_MIN ? (c->x[i][k] - sum) / c->width[k] : 0;
    }
}

static double ridge_of(size_t k)
{
    return k ? RIDGE : CONSTANT_RIDGE;
}

static double sum_of(const double x[N], const double w[N])
{
    double sum = 0;
    for (size_t k = 0; k < N; k++)
        sum += w[k] * x[k];
    return sum;
}

/* What the fit makes small: minus the log-likelihood, and the ridge. */
static double loss(const struct gate_cases *c, const double w[N])
{
    double sum = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        double s = sum_of(c->x[i], w);
        sum += fmax(s, 0) + log1p(exp(-fabs(s))) - c->y[i] * s;
    }
    for (size_t k = 0; k < N; k++)
        sum += 0.5 * ridge_of(k) * w[k] * w[k];
    return sum;
}

/* Gauss with the largest pivot; the ridge keeps it solvable. */
static void solve(double a[N][N + 1], double out[N])
{
    for (size_t c = 0; c < N; c++) {
        size_t best = c;
        for (size_t r = c + 1; r < N; r++)
            if (fabs(a[r][c]) > fabs(a[best][c])) best = r;
        for (size_t k = 0; k <= N; k++) {
            double t = a[c][k];
            a[c][k] = a[best][k];
            a[best][k] = t;
        }
        for (size_t r = 0; r < N; r++) {
            if (r == c) continue;
            double by = a[r][c] / a[c][c];
            for (size_t k = c; k <= N; k++)
                a[r][k] -= by * a[c][k];
        }
    }
    for (size_t i = 0; i < N; i++)
        out[i] = a[i][N] / a[i][i];
}

static void newton_step(const struct gate_cases *c, const double w[N], double step[N])
{
    double a[N][N + 1] = {{0}};
    for (size_t k = 0; k < N; k++) {
        a[k][k] = ridge_of(k);
        a[k][N] = -ridge_of(k) * w[k];
    }
    for (uint32_t i = 0; i < c->n; i++) {
        const double *x = c->x[i];
        double p = logistic(sum_of(x, w));
        for (size_t r = 0; r < N; r++) {
            for (size_t k = 0; k < N; k++)
                a[r][k] += p * (1 - p) * x[r] * x[k];
            a[r][N] += (c->y[i] - p) * x[r];
        }
    }
    solve(a, step);
}

/* Halves a step that leads too far. */
static void descend(const struct gate_cases *c, double w[N])
{
    double now = loss(c, w), step[N], next[N], then = 0;
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        uint32_t n_halved = 0;
        newton_step(c, w, step);
        for (; n_halved < HALVINGS_MAX; n_halved++) {
            for (size_t k = 0; k < N; k++)
                next[k] = w[k] + ldexp(step[k], -(int)n_halved);
            if ((then = loss(c, next)) < now) break;
        }
        if (n_halved == HALVINGS_MAX) return;
        memcpy(w, next, sizeof next);
        if (now - then < GAIN_MIN) return;
        now = then;
    }
}

/* Prompts whose features are known, but for those that no prompt has: a run without a draft, or a
 * table from before there was such a value, teaches the others. A share of 0 or 1 is not believed
 * to the end (Platt's targets): thirty equal answers out of thirty do not promise the next one for
 * sure. */
static void gather(struct gate_cases *c, const struct tsr_gate *gates, const double *same,
                   uint32_t n)
{
    double n_same = 0;
    bool wanted[N] = {false};
    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < N; k++)
            wanted[k] |= isfinite(feature_of(&gates[i], k));
    for (uint32_t i = 0; i < n; i++) {
        if (!is_known(&gates[i], wanted)) continue;
        for (size_t k = 0; k < N; k++)
            c->x[c->n][k] = wanted[k] ? feature_of(&gates[i], k) : 0;
        n_same += same[i] > 0;
        c->y[c->n++] = same[i];
    }
    for (uint32_t i = 0; i < c->n; i++)
        c->y[i] = c->y[i] > 0 ? (n_same + 1) / (n_same + 2) : 1 / (c->n - n_same + 2);
}

int tsr_gate_fit(struct tsr_profile *profile, const struct tsr_gate *gates, const double *same,
                 uint32_t n)
{
    if (!profile || !gates || !same)
        return tsri_fail(TSR_EINVAL, "gate: profile, gates or answers are missing");
    for (uint32_t i = 0; i < n; i++)
        if (same[i] != 0 && same[i] != 1)
            return tsri_fail(TSR_EINVAL, "gate: prompt %u: %g is neither 0 nor 1", i, same[i]);
    struct gate_cases c = {.x = tsri_alloc((size_t)n + 1, sizeof *c.x),
                           .y = tsri_alloc((size_t)n + 1, sizeof *c.y)};
    int e = c.x && c.y ? 0 : TSR_ENOMEM;
    if (!e) gather(&c, gates, same, n);
    if (!e && c.n < 2 * N)
        e = tsri_fail(TSR_EINVAL, "gate: %u prompts are too few to learn from", c.n);
    if (!e) {
        double w[N] = {0};
        standardise(&c);
        descend(&c, w);
        memset(profile->gate, 0, sizeof profile->gate);
        profile->gate[0] = w[0];
        for (size_t k = 1; k < N; k++) {
            if (c.width[k] > WIDTH_MIN) profile->gate[k] = w[k] / c.width[k];
            profile->gate[0] -= profile->gate[k] * c.mean[k];
        }
    }
    tsri_free(c.x);
    tsri_free(c.y);
    return e;
}

/* ---- the bias ---- */

static double curve_at(const struct tsr_curve *c, double at)
{
    if (c->n == 0) return 0;
    if (at <= c->points[0].at) return c->points[0].value;
    for (uint32_t i = 1; i < c->n; i++) {
        const struct tsr_curve_point *a = &c->points[i - 1], *b = &c->points[i];
        if (at < b->at) return a->value + (b->value - a->value) * (at - a->at) / (b->at - a->at);
    }
    return c->points[c->n - 1].value;
}

double tsr_profile_bias(const struct tsr_profile *p, double ratio, uint32_t n_chunks)
{
    double share = p->bias_chunks.n ? curve_at(&p->bias_chunks, n_chunks) : 1;
    return curve_at(&p->bias, ratio) * share;
}
