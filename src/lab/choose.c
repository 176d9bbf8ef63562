/* choose.c - from measured rows to a profile. Sets count alike, however many questions they have.
 * The gate is judged on questions that it was not fitted to: what a fit says about its own data is
 * too good. */
#include "lab/quality.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define FOLDS 5u
#define SETS_MAX 32u
/* Fewer answers are not worth a gate. */
#define CASES_MIN 40u

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
    for (uint32_t context = TSR_CONTEXT_SAME; context <= TSR_CONTEXT_PRIMER; context++)
        for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_NONE; selector++) {
            struct tsri_setting s = {selector, context, ratio, 0, false, {0, 0}, 0};
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

static bool like_chosen(const struct tsri_setting *s, const struct tsri_setting *chosen)
{
    return s->selector == chosen->selector && s->context == chosen->context && !s->int8 &&
           s->layers[0] == chosen->layers[0] && s->layers[1] == chosen->layers[1];
}

/* By the ratio: nothing recomputed, and each ratio that was measured with the selector. */
static void fill_bias(const struct tsri_quality_rows *rows, const struct tsri_setting *chosen,
                      bool rounds, struct tsr_curve *out)
{
    for (size_t i = 0; i < rows->n; i++) {
        struct tsri_setting s = rows->items[i].setting;
        double kl;
        bool none = s.selector == TSR_SELECT_NONE && s.context == chosen->context && !s.int8;
        if ((!none && !like_chosen(&s, chosen)) || (s.n_rounds > 0) != rounds ||
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
            .n_rounds = (uint32_t)s.n_rounds,
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

/* Answers with known labels. A question's answers share a fold, since they resemble each other. */
struct judged {
    struct tsr_gate *gates;
    double *same, *words, *sure;
    uint32_t *folds;
    uint32_t n;
};

static bool judged_init(struct judged *j, size_t n)
{
    *j = (struct judged){malloc(n * sizeof *j->gates), malloc(n * sizeof *j->same),
                         malloc(n * sizeof *j->words), malloc(n * sizeof *j->sure),
                         malloc(n * sizeof *j->folds), 0};
    return j->gates && j->same && j->words && j->sure && j->folds;
}

static void judged_fini(struct judged *j)
{
    free(j->gates);
    free(j->same);
    free(j->words);
    free(j->sure);
    free(j->folds);
}

static uint32_t fold_of(const struct tsri_quality_row *row)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = row->set; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    for (const char *c = row->id; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    return hash % FOLDS;
}

/* Older tables do not know whether an answer says the same in other words. */
static double label_of(const struct tsri_quality_row *row)
{
    return isnan(row->says_same) ? row->same_answer : row->says_same;
}

static void judged_add(struct judged *j, const struct tsri_quality_row *row)
{
    j->gates[j->n] = row->gate;
    j->same[j->n] = label_of(row);
    j->words[j->n] = row->same_answer;
    j->folds[j->n++] = fold_of(row);
}

static void judged_copy(struct judged *to, const struct judged *from, uint32_t i)
{
    to->gates[to->n] = from->gates[i];
    to->same[to->n++] = from->same[i];
}

/* Predicts every answer with what was learned from the other folds. */
static int predict_left_out(struct judged *all, const struct tsr_profile *p)
{
    struct tsr_profile scratch = *p;
    struct judged others;
    if (!judged_init(&others, all->n)) {
        judged_fini(&others);
        return tsri_cli_fail("no memory");
    }
    int e = 0;
    for (uint32_t fold = 0; fold < FOLDS && !e; fold++) {
        others.n = 0;
        for (uint32_t i = 0; i < all->n; i++)
            if (all->folds[i] != fold) judged_copy(&others, all, i);
        if (tsr_gate_fit(&scratch, others.gates, others.same, others.n) < 0) e = tsri_cli_failed();
        for (uint32_t i = 0; i < all->n && !e; i++)
            if (all->folds[i] == fold) all->sure[i] = tsr_gate_predict(&scratch, &all->gates[i]);
    }
    judged_fini(&others);
    return e;
}

static void assess(const struct judged *j, double limit, struct tsri_gate_result *out)
{
    static const double from[TSRI_GATE_BINS] = {0, 0.5, 0.8, 0.9, 0.95};
    double n_same = 0, n_words = 0, n_shown = 0, n_shown_same = 0, n_shown_words = 0;
    for (uint32_t b = 0; b < TSRI_GATE_BINS; b++)
        out->bins[b] = (struct tsri_gate_bin){.from = from[b]};
    for (uint32_t i = 0; i < j->n; i++) {
        uint32_t b = TSRI_GATE_BINS - 1;
        bool shown = j->sure[i] >= limit;
        while (b > 0 && j->sure[i] < from[b])
            b--;
        out->bins[b].n++;
        out->bins[b].n_same += j->same[i];
        out->bins[b].n_words += j->words[i];
        out->bins[b].mean += j->sure[i];
        n_same += j->same[i];
        n_words += j->words[i];
        n_shown += shown;
        n_shown_same += shown ? j->same[i] : 0;
        n_shown_words += shown ? j->words[i] : 0;
    }
    for (uint32_t b = 0; b < TSRI_GATE_BINS; b++)
        if (out->bins[b].n > 0) out->bins[b].mean /= out->bins[b].n;
    out->n = j->n;
    out->same = n_same / j->n;
    out->words = n_words / j->n;
    out->shown = n_shown / j->n;
    out->shown_same = n_shown > 0 ? n_shown_same / n_shown : NAN;
    out->shown_words = n_shown > 0 ? n_shown_words / n_shown : NAN;
}

static bool is_known(const struct tsr_gate *g)
{
    return !isnan(g->moved) && !isnan(g->mass) && !isnan(g->margin);
}

/* An answer that the gate of this profile would have to judge. */
static bool is_judged(const struct tsri_setting *s, const struct tsri_setting *chosen,
                      const struct tsr_profile *p)
{
    bool first = s->n_rounds == 0 && fabs(s->ratio - chosen->ratio) < 1e-9;
    bool later = s->n_rounds > 1 && s->n_rounds <= p->n_rounds &&
                 fabs(s->ratio - p->rounds[(uint32_t)s->n_rounds - 1]) < 1e-9;
    return like_chosen(s, chosen) && (first || later) &&
           fabs(s->bias - tsr_profile_bias(p, s->ratio, 1)) < 1e-9;
}

static int fit_gate(const struct tsri_quality_rows *rows, const struct tsri_setting *s,
                    struct tsr_profile *p, struct tsri_gate_result *out)
{
    struct judged j;
    int e = judged_init(&j, rows->n) ? 0 : tsri_cli_fail("no memory");
    for (size_t i = 0; i < rows->n && !e; i++) {
        const struct tsri_quality_row *row = &rows->items[i];
        if (is_judged(&row->setting, s, p) && is_known(&row->gate) && !isnan(row->same_answer))
            judged_add(&j, row);
    }
    *out = (struct tsri_gate_result){0};
    if (!e && j.n >= CASES_MIN) {
        e = predict_left_out(&j, p);
        if (!e && tsr_gate_fit(p, j.gates, j.same, j.n) < 0) e = tsri_cli_failed();
        if (!e) assess(&j, p->gate_limit, out);
    }
    judged_fini(&j);
    return e;
}

int tsri_choose_profile(const struct tsri_quality_rows *rows, const struct tsri_choose *wanted,
                        struct tsr_profile *out, struct tsri_gate_result *gate)
{
    struct tsri_setting chosen;
    tsr_profile_init(out);
    if (!best_setting(rows, wanted->ratio, &chosen))
        return tsri_cli_fail("no measurements at ratio %g", wanted->ratio);
    out->selector = chosen.selector;
    out->context = chosen.context;
    out->ratio = chosen.ratio;
    if (chosen.layers[1] > 0) memcpy(out->query_layers, chosen.layers, sizeof chosen.layers);
    out->n_rounds = wanted->n_rounds;
    if (wanted->n_rounds) memcpy(out->rounds, wanted->rounds, out->n_rounds * sizeof(double));
    if (wanted->n_rounds) fill_bias(rows, &chosen, true, &out->bias);
    fill_bias(rows, &chosen, false, &out->bias);
    fill_frontier(rows, out);
    out->gate_limit = wanted->gate_limit;
    return fit_gate(rows, &chosen, out, gate);
}
