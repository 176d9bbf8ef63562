/* cmd_calibrate.c - `tessera-lab calibrate`: measures what blending does to a model's answers, over
 * selectors, contexts, ratios and biases, and writes the profile that `tessera ask` finds. Long
 * work: every question is kept in a table as soon as it is done, and a run goes on where the last
 * one stopped. */
#include "lab/quality.h"
#include "cli/store.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define SETTINGS_MAX 63u /* one more is the prefill */
#define LIST_MAX 16
#define LAYERS_DEFAULT "0.667-1"

struct layer_lists {
    double at[LIST_MAX][2];
    int n;
};

struct calibrating {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsri_questions questions;
    struct tsri_quality_rows rows;
    struct tsri_setting settings[SETTINGS_MAX];
    uint32_t n_settings;
    struct layer_lists layers;
    struct tsri_choose wanted;
    double rounds[LIST_MAX], answer_max, n_questions;
};

/* ---- what to measure ---- */

/* "0,0.05,0.15" */
static int read_numbers(const struct tsri_cli *cli, const char *name, const char *fallback,
                        double min, double max, double out[LIST_MAX])
{
    const char *text = tsri_cli_flag(cli, name), *at = text ? text : fallback;
    int n = 0;
    for (;;) {
        char *end;
        double v = strtod(at, &end);
        if (end == at || v < min || v > max || n == LIST_MAX || (*end && *end != ','))
            return -tsri_cli_usage(cli, "--%s=%s: up to %d numbers from %g to %g", name, text,
                                   LIST_MAX, min, max);
        out[n++] = v;
        if (!*end) return n;
        at = end + 1;
    }
}

/* "0-1,0.667-1" */
static int read_layers(const struct tsri_cli *cli, struct layer_lists *out)
{
    const char *text = tsri_cli_flag(cli, "layers"), *at = text ? text : LAYERS_DEFAULT;
    for (out->n = 0; out->n < LIST_MAX; at++) {
        char *end;
        double from = strtod(at, &end), to = 0;
        bool good = end != at && *end == '-';
        if (good) to = strtod(at = end + 1, &end);
        if (!good || end == at || !(from >= 0 && from < to && to <= 1) || (*end && *end != ','))
            break;
        out->at[out->n][0] = from;
        out->at[out->n++][1] = to;
        if (!*end) return 0;
        at = end;
    }
    return tsri_cli_usage(cli, "--layers=%s: up to %d of FROM-TO, shares of the depth from 0 to 1",
                          text, LIST_MAX);
}

static bool names(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ',')) return true;
    return false;
}

static int add_setting(struct calibrating *x, struct tsri_setting s)
{
    for (uint32_t i = 0; i < x->n_settings; i++)
        if (tsri_setting_same(&x->settings[i], &s)) return 0;
    if (x->n_settings == SETTINGS_MAX)
        return tsri_cli_fail("more than %u settings: give fewer ratios or biases", SETTINGS_MAX);
    x->settings[x->n_settings++] = s;
    return 0;
}

/* Where the question is asked for its attention, once for each of --layers. */
static int add_layers(struct calibrating *x, struct tsri_setting s)
{
    if (s.selector != TSR_SELECT_QUERY) return add_setting(x, s);
    int e = 0;
    for (int i = 0; i < x->layers.n && !e; i++) {
        memcpy(s.layers, x->layers.at[i], sizeof s.layers);
        e = add_setting(x, s);
    }
    return e;
}

static int add_settings(struct calibrating *x, uint32_t context, const char *selectors,
                        const double *ratios, int n_ratios, const double *biases, int n_biases)
{
    int e = 0;
    for (uint32_t s = TSR_SELECT_QUERY; s <= TSR_SELECT_NONE && !e; s++) {
        if (!names(selectors, tsr_selector_name(s))) continue;
        /* The selectors that are there to be compared with run as they were published. */
        bool biased = s == TSR_SELECT_QUERY || s == TSR_SELECT_NONE;
        for (int r = 0; r < n_ratios && !e; r++)
            for (int b = 0; b < n_biases && !e; b++) {
                if ((s == TSR_SELECT_NONE) != (ratios[r] == 0)) continue;
                if (biased || biases[b] == 0)
                    e = add_layers(x, (struct tsri_setting){
                                          s, context, ratios[r], biases[b], false, {0, 0}, 0});
            }
    }
    return e;
}

/* What is asked by the question at the ratio of the first round, with further rounds too. */
static int add_rounds(struct calibrating *x)
{
    int e = 0;
    for (uint32_t i = 0, n = x->n_settings; i < n; i++) {
        struct tsri_setting s = x->settings[i];
        if (s.selector != TSR_SELECT_QUERY || fabs(s.ratio - x->rounds[0]) > 1e-9) continue;
        for (uint32_t k = 2; k <= x->wanted.n_rounds && !e; k++) {
            s.n_rounds = k;
            s.ratio = x->rounds[k - 1];
            e = add_setting(x, s);
        }
    }
    return e;
}

static int read_rounds(struct calibrating *x)
{
    if (!tsri_cli_flag(x->cli, "rounds")) return 0;
    int n = read_numbers(x->cli, "rounds", "", 0, 1, x->rounds);
    if (n < 0) return -n;
    bool good = n <= (int)TSR_PROFILE_ROUNDS_MAX;
    for (int i = 0; good && i < n; i++)
        good = x->rounds[i] > (i ? x->rounds[i - 1] : 0) && x->rounds[i] < 1;
    if (!good)
        return tsri_cli_usage(x->cli, "--rounds=%s: up to %u ratios between 0 and 1, ascending",
                              tsri_cli_flag(x->cli, "rounds"), TSR_PROFILE_ROUNDS_MAX);
    x->wanted.rounds = x->rounds;
    x->wanted.n_rounds = (uint32_t)n;
    x->wanted.ratio = x->rounds[0];
    return 0;
}

/* What is asked by the question at the chosen ratio, over int8 entries too. */
static int add_int8(struct calibrating *x)
{
    int e = 0;
    for (uint32_t i = 0, n = x->n_settings; i < n && !e; i++) {
        struct tsri_setting s = x->settings[i];
        s.int8 = true;
        if (s.selector == TSR_SELECT_QUERY && fabs(s.ratio - x->wanted.ratio) < 1e-9)
            e = add_setting(x, s);
    }
    return e;
}

static int read_flags(struct calibrating *x)
{
    const struct tsri_cli *cli = x->cli;
    double ratios[LIST_MAX], biases[LIST_MAX];
    const char *selectors = tsri_cli_flag(cli, "selectors");
    const char *contexts = tsri_cli_flag(cli, "contexts");
    if (!selectors) selectors = "query,hkvd,link,none";
    if (!contexts) contexts = "primer,same";
    int n_ratios = read_numbers(cli, "ratios", "0,0.05,0.15", 0, 1, ratios);
    if (n_ratios < 0) return -n_ratios;
    int n_biases = read_numbers(cli, "biases", "0,-0.3,-0.7,-1.2", -10, 10, biases);
    if (n_biases < 0) return -n_biases;
    x->wanted = (struct tsri_choose){.ratio = 0.05, .gate_limit = 0.95};
    x->answer_max = 32;
    x->n_questions = 1e9;
    int e = read_layers(cli, &x->layers);
    if (!e) e = read_rounds(x);
    if (!e) e = tsri_cli_flag_number(cli, "ratio", 0, 1, &x->wanted.ratio);
    if (!e && x->wanted.n_rounds && x->wanted.ratio != x->rounds[0])
        e = tsri_cli_usage(cli, "--ratio=%g, but the first of --rounds is %g", x->wanted.ratio,
                           x->rounds[0]);
    if (!e) e = tsri_cli_flag_number(cli, "sure", 0.01, 0.9999, &x->wanted.gate_limit);
    if (!e) e = tsri_cli_flag_count(cli, "limit", 1, 1e9, &x->n_questions);
    if (!e) e = tsri_cli_flag_count(cli, "answers", 0, 256, &x->answer_max);
    for (uint32_t c = TSR_CONTEXT_SAME; c <= TSR_CONTEXT_PRIMER && !e; c++)
        if (tsri_context_name(c) && names(contexts, tsri_context_name(c)))
            e = add_settings(x, c, selectors, ratios, n_ratios, biases, n_biases);
    if (!e && tsri_cli_flag(cli, "int8")) e = add_int8(x);
    if (!e) e = add_rounds(x);
    if (!e && x->n_settings == 0)
        e = tsri_cli_usage(cli, "no settings to measure: selectors are query, hkvd, link and none "
                                "(for ratio 0), contexts are same, pure and primer");
    return e;
}

static bool counts_for(const struct tsri_setting *s, double ratio)
{
    return s->selector != TSR_SELECT_FULL && !s->int8 && fabs(s->ratio - ratio) < 1e-9;
}

/* The profile is for one ratio. That it is measured, now or by the run that wrote the table, is
 * known before hours are spent on the others. */
static int check_ratio(const struct calibrating *x)
{
    for (uint32_t i = 0; i < x->n_settings; i++)
        if (counts_for(&x->settings[i], x->wanted.ratio)) return 0;
    for (size_t i = 0; i < x->rows.n; i++)
        if (counts_for(&x->rows.items[i].setting, x->wanted.ratio)) return 0;
    return tsri_cli_usage(x->cli,
                          "no setting has ratio %g: add it to --ratios (for 0, add selector "
                          "none), or choose another --ratio",
                          x->wanted.ratio);
}

/* ---- measuring ---- */

static int measure_all(struct calibrating *x)
{
    const char *csv = tsri_cli_flag(x->cli, "csv");
    struct tsri_measure m = {.reader = &x->reader,
                             .answer_max = (uint32_t)x->answer_max,
                             .settings = x->settings,
                             .n_settings = x->n_settings,
                             .rounds = x->rounds};
    struct tsri_quality_row rows[SETTINGS_MAX + 1];
    size_t most = (size_t)x->n_questions, n = x->questions.n < most ? x->questions.n : most;
    int e = 0;
    for (size_t i = 0; i < n && !e; i++) {
        const struct tsri_question *q = &x->questions.items[i];
        tsri_cli_progress("calibrate", i, n);
        if (tsri_quality_has(&x->rows, q)) continue;
        e = tsri_measure_question(&m, q, rows);
        for (uint32_t k = 0; k <= x->n_settings && !e; k++)
            e = tsri_quality_add(&x->rows, &rows[k]);
        if (!e && csv) e = tsri_quality_append(csv, rows, x->n_settings + 1);
    }
    tsri_cli_progress("calibrate", n, n);
    return e;
}

/* ---- telling ---- */

static void add_number(struct tsri_table *t, const char *format, double v)
{
    char text[32];
    snprintf(text, sizeof text, format, v);
    tsri_table_add(t, "%s", isnan(v) ? "-" : text);
}

static void add_layers_of(struct tsri_table *t, const struct tsr_frontier *f)
{
    char text[64];
    snprintf(text, sizeof text, "%.3g-%.3g", f->layers_from, f->layers_to);
    tsri_table_add(t, "%s", f->layers_to > 0 ? text : "-");
}

static int print_table(const struct calibrating *x, const struct tsr_profile *p)
{
    struct tsri_table t;
    tsri_table_init(
        &t, "lllrrrrrrrrr",
        "selector|layers|context|rounds|ratio|bias|KL|answer|same first|gold|F1|speed-up");
    for (uint32_t i = 0; i < p->n_frontier; i++) {
        const struct tsr_frontier *f = &p->frontier[i];
        struct tsri_setting s = {.selector = f->selector,
                                 .context = f->context,
                                 .ratio = f->ratio,
                                 .bias = f->bias,
                                 .layers = {f->layers_from, f->layers_to},
                                 .n_rounds = f->n_rounds};
        tsri_table_add(&t, "%s", tsr_selector_name(f->selector));
        add_layers_of(&t, f);
        tsri_table_add(&t, "%s", tsri_context_name(f->context));
        tsri_table_add(&t, "%u", f->n_rounds ? f->n_rounds : f->ratio > 0);
        add_number(&t, "%.3g", f->ratio);
        add_number(&t, "%.2f", f->bias);
        add_number(&t, "%.4f", f->kl);
        add_number(&t, "%.4f",
                   tsri_quality_mean(&x->rows, &s, offsetof(struct tsri_quality_row, kl_answer)));
        add_number(&t, "%.3f", f->agreement);
        add_number(&t, "%+.3f",
                   tsri_quality_mean(&x->rows, &s, offsetof(struct tsri_quality_row, gold)));
        add_number(&t, "%.3f",
                   tsri_quality_mean(&x->rows, &s, offsetof(struct tsri_quality_row, f1)));
        add_number(&t, "%.1fx", f->speedup);
    }
    return tsri_table_print(&t, x->cli);
}

/* On answers that the fit has not seen. */
static void print_gate(const struct tsr_profile *p, const struct tsri_gate_result *g)
{
    if (g->n == 0) {
        printf("no gate: too few questions with an answer\n");
        return;
    }
    printf("gate: %.1f %% of %u answers say what a prefill says (%.1f %% in the same words); ",
           100 * g->same, g->n, 100 * g->words);
    if (isnan(g->shown_same))
        printf("it is sure of none\n");
    else
        printf(
            "it is sure of %.1f %% (probability %g or more), and %.1f %% of these do (%.1f %%)\n",
            100 * g->shown, p->gate_limit, 100 * g->shown_same, 100 * g->shown_words);
    for (uint32_t i = 0; i < TSRI_GATE_BINS; i++) {
        const struct tsri_gate_bin *b = &g->bins[i];
        if (b->n > 0)
            printf("  from %4.2f: %4.0f answers, predicted %5.1f %%, true %5.1f %% (%5.1f %%)\n",
                   b->from, b->n, 100 * b->mean, 100 * b->n_same / b->n, 100 * b->n_words / b->n);
    }
}

/* What storing segments as int8 adds, beside the same setting without. */
static void print_int8(const struct calibrating *x)
{
    for (uint32_t i = 0; i < x->n_settings; i++) {
        struct tsri_setting s = x->settings[i];
        if (!s.int8) continue;
        double kl = tsri_quality_mean(&x->rows, &s, offsetof(struct tsri_quality_row, kl));
        s.int8 = false;
        double plain = tsri_quality_mean(&x->rows, &s, offsetof(struct tsri_quality_row, kl));
        printf("int8 entries: KL %.4f at ratio %g, bias %g, by %s; %.4f without (%+.1f %%)\n", kl,
               s.ratio, s.bias, tsr_selector_name(s.selector), plain, 100 * (kl / plain - 1));
    }
}

static int conclude(struct calibrating *x)
{
    struct tsr_profile p = {.size = sizeof p};
    struct tsri_gate_result gate;
    const char *named = tsri_cli_flag(x->cli, "out");
    char path[4096];
    int e = tsri_choose_profile(&x->rows, &x->wanted, &p, &gate);
    if (e) return e;
    snprintf(p.model, sizeof p.model, "%s", x->reader.info.name);
    memcpy(p.primer, tsr_blend_profile(x->reader.blend)->primer, sizeof p.primer);
    tsri_reader_id(&x->reader, p.space);
    tsri_reader_profile(&x->reader, x->cli, path, sizeof path);
    if (named) snprintf(path, sizeof path, "%s", named);
    if (tsr_profile_save(&p, path) < 0) return tsri_cli_failed();
    if (x->cli->json) {
        tsri_cli_json("{\"profile\":", path);
        printf(",\"selector\":\"%s\",\"context\":\"%s\",\"ratio\":%g,\"bias\":%g,\"rows\":%zu}\n",
               tsr_selector_name(p.selector), tsri_context_name(p.context), p.ratio,
               tsr_profile_bias(&p, p.ratio, 8), x->rows.n);
        return 0;
    }
    e = print_table(x, &p);
    if (e) return e;
    print_gate(&p, &gate);
    print_int8(x);
    printf("%s: selector %s, context %s, ratio %g, bias %g\n", tsri_plain(path),
           tsr_selector_name(p.selector), tsri_context_name(p.context), p.ratio,
           tsr_profile_bias(&p, p.ratio, 8));
    return 0;
}

int tsri_cmd_calibrate(struct tsri_cli *cli)
{
    struct calibrating *x = tsri_alloc(1, sizeof *x);
    if (!x) return tsri_cli_fail("no memory");
    x->cli = cli;
    const char *prompts = tsri_cli_flag(cli, "prompts"), *csv = tsri_cli_flag(cli, "csv");
    int e = tsri_cli_want_args(cli, 0, 0);
    if (!e && !prompts) e = tsri_cli_usage(cli, "--prompts=FILE is needed");
    if (!e) e = read_flags(x);
    if (!e && csv) e = tsri_quality_load(&x->rows, csv);
    if (!e) e = check_ratio(x);
    if (!e) e = tsri_questions_load(&x->questions, prompts);
    if (!e) e = tsri_reader_open(&x->reader, cli);
    if (!e) e = measure_all(x);
    if (!e) e = conclude(x);
    tsri_reader_close(&x->reader);
    tsri_questions_fini(&x->questions);
    tsri_quality_fini(&x->rows);
    tsri_free(x);
    return e;
}
