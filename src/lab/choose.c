/* choose.c - from measured rows to a profile. Sets count alike, however many questions they have.
 * The gate is judged on questions that it was not fitted to: what a fit says about its own data is
 * too good. */
#include "lab/quality.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define FOLDS 5u
#define SETS_MAX 32u
#define RECALL_WANTED 0.9
/* Three times the usual ratio, once. Beyond that a prefill is nearly as fast, and only answers that
 * are far off are worth one. */
#define GATE_RATIO_MAX 0.15
#define GATE_FULL_FACTOR 10

/* ---- means ---- */

struct set_mean {
    const char *name;
    double sum, n;
};

double tsri_quality_mean(const struct tsri_quality_rows *rows, const struct tsri_setting *s,
                         size_t offset)
{
    struct set_mean sets[SETS_MAX];
    uint32_t n_sets = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const struct tsri_quality_row *row = &rows->items[i];
        double value = *(const double *)(const void *)((const char *)row + offset);
        if (!tsri_setting_same(&row->setting, s) || isnan(value)) continue;
        uint32_t k = 0;
        while (k < n_sets && strcmp(sets[k].name, row->set) != 0)
            k++;
        if (k == SETS_MAX) continue;
        if (k == n_sets) sets[n_sets++] = (struct set_mean){row->set, 0, 0};
        sets[k].sum += value;
        sets[k].n++;
    }
    double mean = 0;
    for (uint32_t k = 0; k < n_sets; k++)
        mean += sets[k].sum / sets[k].n / n_sets;
    return n_sets ? mean : NAN;
}

static double mean_kl(const struct tsri_quality_rows *rows, const struct tsri_setting *s)
{
    return tsri_quality_mean(rows, s, offsetof(struct tsri_quality_row, kl));
}

/* What is chosen by: an answer is more than its first token, and settings that repair that one can
 * harm those behind it. Without right answers the two are the same. */
static double mean_answer(const struct tsri_quality_rows *rows, const struct tsri_setting *s)
{
    return tsri_quality_mean(rows, s, offsetof(struct tsri_quality_row, kl_answer));
}

/* ---- the setting ---- */

static bool is_first(const struct tsri_quality_rows *rows, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (tsri_setting_same(&rows->items[i].setting, &rows->items[at].setting)) return false;
    return true;
}

/* The best bias for a selector, context and ratio, and the best layers unless they are given; false
 * when nothing was measured there. */
static bool best_bias(const struct tsri_quality_rows *rows, struct tsri_setting *s, bool any_layers,
                      double *kl)
{
    struct tsri_setting wanted = *s;
    bool found = false;
    for (size_t i = 0; i < rows->n; i++) {
        struct tsri_setting one = rows->items[i].setting;
        wanted.bias = one.bias;
        if (any_layers) memcpy(wanted.layers, one.layers, sizeof one.layers);
        if (!tsri_setting_same(&one, &wanted) || !is_first(rows, i)) continue;
        double mean = mean_answer(rows, &one);
        if (found && mean >= *kl) continue;
        found = true;
        *kl = mean;
        *s = one;
    }
    return found;
}

static bool best_setting(const struct tsri_quality_rows *rows, double ratio,
                         struct tsri_setting *out)
{
    double best = INFINITY;
    for (uint32_t context = TSR_CONTEXT_SAME; context <= TSR_CONTEXT_PURE; context++)
        for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_NONE; selector++) {
            struct tsri_setting s = {selector, context, ratio, 0, false, {0, 0}};
            double kl;
            if (!best_bias(rows, &s, true, &kl) || kl >= best) continue;
            best = kl;
            *out = s;
        }
    return best < INFINITY;
}

static void add_point(struct tsr_curve *c, double at, double value)
{
    uint32_t i = c->n;
    if (c->n == TSR_PROFILE_POINTS_MAX) return;
    for (; i > 0 && c->points[i - 1].at > at; i--)
        c->points[i] = c->points[i - 1];
    c->points[i] = (struct tsr_curve_point){at, value};
    c->n++;
}

static bool has_point(const struct tsr_curve *c, double at)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (fabs(c->points[i].at - at) < 1e-9) return true;
    return false;
}

/* By the ratio: nothing recomputed, and each ratio that was measured with the selector. */
static void fill_bias(const struct tsri_quality_rows *rows, const struct tsri_setting *chosen,
                      struct tsr_curve *out)
{
    for (size_t i = 0; i < rows->n; i++) {
        struct tsri_setting s = rows->items[i].setting;
        double kl;
        bool none = s.selector == TSR_SELECT_NONE;
        bool like_chosen = s.selector == chosen->selector && s.layers[0] == chosen->layers[0] &&
                           s.layers[1] == chosen->layers[1];
        if (s.context != chosen->context || s.int8 || (!none && !like_chosen) ||
            has_point(out, s.ratio) || !best_bias(rows, &s, false, &kl))
            continue;
        add_point(out, s.ratio, s.bias);
    }
}

static void fill_frontier(const struct tsri_quality_rows *rows, struct tsr_profile *p)
{
    for (size_t i = 0; i < rows->n && p->n_frontier < TSR_PROFILE_FRONTIER_MAX; i++) {
        struct tsri_setting s = rows->items[i].setting;
        if (s.selector == TSR_SELECT_FULL || s.int8 || !is_first(rows, i)) continue;
        uint32_t n = 0;
        double full = 0, blend = 0;
        for (size_t k = 0; k < rows->n; k++) {
            if (!tsri_setting_same(&rows->items[k].setting, &s)) continue;
            full += rows->items[k].full_s;
            blend += rows->items[k].blend_s;
            n++;
        }
        p->frontier[p->n_frontier++] = (struct tsr_frontier){
            .selector = s.selector,
            .context = s.context,
            .n_prompts = n,
            .ratio = s.ratio,
            .bias = s.bias,
            .layers_from = s.layers[0],
            .layers_to = s.layers[1],
            .kl = mean_kl(rows, &s),
            .agreement = tsri_quality_mean(rows, &s, offsetof(struct tsri_quality_row, same)),
            .speedup = blend > 0 ? full / blend : 0};
    }
}

/* ---- the gate ---- */

struct cases {
    struct tsr_gate *gates;
    double *kl, *predicted;
    uint32_t n;
};

/* Predicts every case with what was learned from the other folds. */
static int predict_left_out(struct cases *c, struct tsr_profile *scratch)
{
    struct tsr_gate *gates = malloc(c->n * sizeof *gates);
    double *kl = malloc(c->n * sizeof *kl);
    if (!gates || !kl) {
        free(gates);
        free(kl);
        return tsri_cli_fail("no memory");
    }
    int e = 0;
    for (uint32_t fold = 0; fold < FOLDS && !e; fold++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < c->n; i++) {
            if (i % FOLDS == fold) continue;
            gates[n] = c->gates[i];
            kl[n++] = c->kl[i];
        }
        if (tsr_gate_fit(scratch, gates, kl, n) < 0) e = tsri_cli_failed();
        for (uint32_t i = fold; i < c->n && !e; i += FOLDS)
            c->predicted[i] = tsr_gate_predict(scratch, &c->gates[i]);
    }
    free(gates);
    free(kl);
    return e;
}

static void judge(const struct cases *c, double kl_limit, double limit,
                  struct tsri_gate_result *out)
{
    double bad = 0, caught = 0, alarms = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        bool is_bad = c->kl[i] > kl_limit, alarm = c->predicted[i] > limit;
        bad += is_bad;
        caught += is_bad && alarm;
        alarms += !is_bad && alarm;
    }
    out->bad = bad / c->n;
    out->recall = bad > 0 ? caught / bad : 1;
    out->false_alarms = bad < c->n ? alarms / (c->n - bad) : 0;
}

/* The highest limit that still catches enough. */
static double best_limit(const struct cases *c, double kl_limit)
{
    double best = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        struct tsri_gate_result r;
        double limit = c->predicted[i] * (1 - 1e-9); /* this one is caught */
        judge(c, kl_limit, limit, &r);
        if (r.recall >= RECALL_WANTED && limit > best) best = limit;
    }
    return best;
}

static int fit_gate(const struct tsri_quality_rows *rows, const struct tsri_setting *s,
                    double kl_limit, struct tsr_profile *p, struct tsri_gate_result *out)
{
    struct cases c = {malloc(rows->n * sizeof *c.gates), malloc(rows->n * sizeof *c.kl),
                      malloc(rows->n * sizeof *c.predicted), 0};
    if (!c.gates || !c.kl || !c.predicted) {
        free(c.gates);
        free(c.kl);
        free(c.predicted);
        return tsri_cli_fail("no memory");
    }
    int e = 0;
    for (size_t i = 0; i < rows->n; i++) {
        if (!tsri_setting_same(&rows->items[i].setting, s)) continue;
        c.gates[c.n] = rows->items[i].gate;
        c.kl[c.n++] = rows->items[i].kl;
    }
    *out = (struct tsri_gate_result){NAN, NAN, NAN};
    struct tsr_profile scratch = *p;
    if (c.n >= 4 * FOLDS) {
        e = predict_left_out(&c, &scratch);
        if (!e && tsr_gate_fit(p, c.gates, c.kl, c.n) < 0) e = tsri_cli_failed();
        p->gate_limit = e ? 0 : best_limit(&c, kl_limit);
        p->gate_ratio_max = GATE_RATIO_MAX;
        p->gate_full = GATE_FULL_FACTOR * p->gate_limit;
        if (!e) judge(&c, kl_limit, p->gate_limit, out);
    }
    free(c.gates);
    free(c.kl);
    free(c.predicted);
    return e;
}

int tsri_choose_profile(const struct tsri_quality_rows *rows, double ratio, double kl_limit,
                        struct tsr_profile *out, struct tsri_gate_result *gate)
{
    struct tsri_setting chosen;
    tsr_profile_init(out);
    if (!best_setting(rows, ratio, &chosen))
        return tsri_cli_fail("no measurements at ratio %g", ratio);
    out->selector = chosen.selector;
    out->context = chosen.context;
    out->ratio = chosen.ratio;
    if (chosen.layers[1] > 0) memcpy(out->query_layers, chosen.layers, sizeof chosen.layers);
    fill_bias(rows, &chosen, &out->bias);
    fill_frontier(rows, out);
    return fit_gate(rows, &chosen, kl_limit, out, gate);
}
