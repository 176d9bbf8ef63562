/* gate.c - does this answer deserve trust? Three things that cost nothing show trouble: how far
 * recomputing some tokens has moved the answer, how much attention rests on tokens that stayed as
 * they were loaded, and how unsure the model is. The logarithm of the error is predicted as a
 * linear function of their logarithms (so products are among the things it can learn), fitted by
 * ridge regression to prompts where the error is known. */
#include "blend/blend.h"

#include <math.h>

#define N_FEATURES 4
/* Keeps logarithms of zero finite; errors below it do not matter. */
#define TINY 1e-6
#define RIDGE 1e-2

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

static void features(const struct tsr_gate *g, bool plain, double out[N_FEATURES])
{
    out[0] = 1;
    out[1] = plain ? 0 : log(g->moved + TINY);
    out[2] = plain ? 0 : log(g->mass + TINY);
    out[3] = log(g->doubt + TINY);
}

static bool is_plain(const struct tsr_gate *g)
{
    return isnan(g->moved) || isnan(g->mass);
}

double tsr_gate_predict(const struct tsr_profile *profile, const struct tsr_gate *g)
{
    double x[N_FEATURES], sum = 0;
    bool plain = is_plain(g);
    const double *weights = plain ? profile->gate_plain : profile->gate;
    features(g, plain, x);
    for (int i = 0; i < N_FEATURES; i++)
        sum += weights[i] * x[i];
    return exp(sum);
}

/* Gauss with the largest pivot; the ridge keeps it solvable. */
static void solve(double a[N_FEATURES][N_FEATURES + 1], double out[N_FEATURES])
{
    for (int c = 0; c < N_FEATURES; c++) {
        int best = c;
        for (int r = c + 1; r < N_FEATURES; r++)
            if (fabs(a[r][c]) > fabs(a[best][c])) best = r;
        for (int k = 0; k <= N_FEATURES; k++) {
            double t = a[c][k];
            a[c][k] = a[best][k];
            a[best][k] = t;
        }
        for (int r = 0; r < N_FEATURES; r++) {
            if (r == c) continue;
            double by = a[r][c] / a[c][c];
            for (int k = c; k <= N_FEATURES; k++)
                a[r][k] -= by * a[c][k];
        }
    }
    for (int i = 0; i < N_FEATURES; i++)
        out[i] = a[i][N_FEATURES] / a[i][i];
}

static void fit(const struct tsr_gate *gates, const double *kl, uint32_t n, bool plain,
                double out[N_FEATURES])
{
    double a[N_FEATURES][N_FEATURES + 1] = {{0}};
    for (int i = 0; i < N_FEATURES; i++)
        a[i][i] = i ? RIDGE * n : TINY;
    for (uint32_t s = 0; s < n; s++) {
        double x[N_FEATURES];
        if (!plain && is_plain(&gates[s])) continue;
        features(&gates[s], plain, x);
        for (int i = 0; i < N_FEATURES; i++) {
            for (int k = 0; k < N_FEATURES; k++)
                a[i][k] += x[i] * x[k];
            a[i][N_FEATURES] += x[i] * log(kl[s] + TINY);
        }
    }
    solve(a, out);
}

int tsr_gate_fit(struct tsr_profile *profile, const struct tsr_gate *gates, const double *kl,
                 uint32_t n)
{
    if (!profile || !gates || !kl || n < 2 * N_FEATURES)
        return tsri_fail(TSR_EINVAL, "gate: %u prompts are too few to learn from", n);
    for (uint32_t i = 0; i < n; i++)
        if (!(kl[i] >= 0) || !isfinite(kl[i]) || !(gates[i].doubt >= 0))
            return tsri_fail(TSR_EINVAL, "gate: prompt %u has KL %g and doubt %g", i, kl[i],
                             gates[i].doubt);
    fit(gates, kl, n, false, profile->gate);
    fit(gates, kl, n, true, profile->gate_plain);
    return 0;
}

/* ---- the bias ---- */

double tsri_curve_at(const struct tsr_curve *c, double at)
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
    double share = p->bias_chunks.n ? tsri_curve_at(&p->bias_chunks, n_chunks) : 1;
    return tsri_curve_at(&p->bias, ratio) * share;
}
