/* gate.c - does this answer deserve trust? What costs nothing shows trouble: how far recomputing
 * some tokens has moved the answer, how much attention rests on tokens that stayed as they were
 * loaded and on those that were computed anew, how open the answer is, and how the context is cut.
 * The logarithm of the error is predicted as a linear function of their logarithms (so products are
 * among the things it can learn), fitted by ridge regression to prompts where the error is known.
 */
#include "blend/blend.h"

#include <math.h>

#define N TSR_GATE_TERMS
/* Keep logarithms of zero finite. Smaller errors do not matter, and shall not draw the fit. */
#define FEATURE_MIN 1e-4
#define KL_MIN 1e-3
/* As if so many prompts spoke for a term of zero. */
#define RIDGE 3.0

double tsr_logits_kl(const float *p, const float *q, uint32_t n)
{
    double top_p = -INFINITY, top_q = -INFINITY, sum_p = 0, sum_q = 0, kl = 0;
    if (n == 0) return 0;
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] > top_p) top_p = p[i];
        if (q[i] > top_q) top_q = q[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        sum_p += exp(p[i] - top_p);
        sum_q += exp(q[i] - top_q);
    }
    double norm_p = top_p + log(sum_p), norm_q = top_q + log(sum_q);
    for (uint32_t i = 0; i < n; i++) {
        double weight = exp(p[i] - norm_p);
        if (weight > 0) kl += weight * ((p[i] - norm_p) - (q[i] - norm_q));
    }
    return kl > 0 ? kl : 0;
}

double tsr_logits_top(const float *logits, uint32_t n, uint32_t *token)
{
    uint32_t best = 0;
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - logits[best]);
    if (token) *token = best;
    return 1 / sum;
}

double tsr_logits_entropy(const float *logits, uint32_t n)
{
    double top = -INFINITY, sum = 0, mean = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > top) top = logits[i];
    for (uint32_t i = 0; i < n; i++) {
        double weight = exp(logits[i] - top);
        sum += weight;
        if (weight > 0) mean += weight * (logits[i] - top);
    }
    return n ? log(sum) - mean / sum : 0;
}

static bool is_plain(const struct tsr_gate *g)
{
    return isnan(g->moved) || isnan(g->mass) || isnan(g->fresh);
}

static void features(const struct tsr_gate *g, bool plain, double out[N])
{
    const double values[N - 1] = {g->moved,   g->mass,         g->fresh,
                                  g->entropy, g->chunk_tokens, g->n_chunks};
    out[0] = 1;
    for (int i = 1; i < N; i++)
        out[i] = plain && i <= 3 ? 0 : log(fmax(values[i - 1], 0) + FEATURE_MIN);
}

double tsr_gate_predict(const struct tsr_profile *profile, const struct tsr_gate *g)
{
    double x[N], sum = 0;
    bool plain = is_plain(g);
    const double *weights = plain ? profile->gate_plain : profile->gate;
    features(g, plain, x);
    for (int i = 0; i < N; i++)
        sum += weights[i] * x[i];
    return exp(sum);
}

/* Gauss with the largest pivot; the ridge keeps it solvable. */
static void solve(double a[N][N + 1], double out[N])
{
    for (int c = 0; c < N; c++) {
        int best = c;
        for (int r = c + 1; r < N; r++)
            if (fabs(a[r][c]) > fabs(a[best][c])) best = r;
        for (int k = 0; k <= N; k++) {
            double t = a[c][k];
            a[c][k] = a[best][k];
            a[best][k] = t;
        }
        for (int r = 0; r < N; r++) {
            if (r == c) continue;
            double by = a[r][c] / a[c][c];
            for (int k = c; k <= N; k++)
                a[r][k] -= by * a[c][k];
        }
    }
    for (int i = 0; i < N; i++)
        out[i] = a[i][N] / a[i][i];
}

/* Where the features lie, so that the ridge weighs on all of them alike. */
struct scale {
    double mean[N], width[N];
    uint32_t n;
};

static struct scale scale_of(const struct tsr_gate *gates, uint32_t n, bool plain)
{
    struct scale s = {.n = 0};
    double x[N];
    for (uint32_t i = 0; i < n; i++) {
        if (!plain && is_plain(&gates[i])) continue;
        features(&gates[i], plain, x);
        s.n++;
        for (int k = 1; k < N; k++) {
            double before = s.mean[k];
            s.mean[k] += (x[k] - before) / s.n;
            s.width[k] += (x[k] - before) * (x[k] - s.mean[k]);
        }
    }
    for (int k = 1; k < N; k++)
        s.width[k] = s.n ? sqrt(s.width[k] / s.n) : 0;
    return s;
}

static void fit(const struct tsr_gate *gates, const double *kl, uint32_t n, bool plain,
                double out[N])
{
    struct scale s = scale_of(gates, n, plain);
    double a[N][N + 1] = {{0}}, x[N];
    a[0][0] = 1e-6;
    for (int i = 1; i < N; i++)
        a[i][i] = RIDGE;
    for (uint32_t r = 0; r < n; r++) {
        if (!plain && is_plain(&gates[r])) continue;
        features(&gates[r], plain, x);
        for (int k = 1; k < N; k++)
            x[k] = s.width[k] > 1e-9 ? (x[k] - s.mean[k]) / s.width[k] : 0;
        for (int i = 0; i < N; i++) {
            for (int k = 0; k < N; k++)
                a[i][k] += x[i] * x[k];
            a[i][N] += x[i] * log(kl[r] + KL_MIN);
        }
    }
    solve(a, out);
    for (int k = 1; k < N; k++) {
        out[k] = s.width[k] > 1e-9 ? out[k] / s.width[k] : 0;
        out[0] -= out[k] * s.mean[k];
    }
}

int tsr_gate_fit(struct tsr_profile *profile, const struct tsr_gate *gates, const double *kl,
                 uint32_t n)
{
    if (!profile || !gates || !kl || n < 2 * N)
        return tsri_fail(TSR_EINVAL, "gate: %u prompts are too few to learn from", n);
    for (uint32_t i = 0; i < n; i++)
        if (!(kl[i] >= 0) || !isfinite(kl[i]) || !(gates[i].entropy >= 0))
            return tsri_fail(TSR_EINVAL, "gate: prompt %u: invalid KL %g or entropy %g", i, kl[i],
                             gates[i].entropy);
    fit(gates, kl, n, false, profile->gate);
    fit(gates, kl, n, true, profile->gate_plain);
    return 0;
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
