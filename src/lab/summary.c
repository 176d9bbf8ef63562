/* summary.c - what the answers of many questions say: means of every method, and how it differs from
 * the prefill on the same questions. "all" are all questions together, whatever set they are of. */
#include "lab/answers.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define SETS_MAX 32u
#define ALL "all"

/* One question, answered by the prefill and by another method. */
struct answer_pair {
    const struct tsri_response *full, *own;
};
struct answer_pairs {
    struct answer_pair *items;
    size_t n, n_room;
};

struct names {
    const char *items[SETS_MAX];
    uint32_t n;
};

struct summary {
    const struct tsri_cli *cli;
    struct answer_pairs pairs; /* of all sets and methods, each question once */
    struct names sets, methods;
};

/* A method on a set. */
struct score {
    size_t n;
    double exact, f1, right;
    struct tsri_interval exact_more, f1_more, right_more; /* than the prefill */
    struct tsri_interval kept; /* of the prefill's right answers, those that are right here */
    double same_tokens, same_words, says_same, kl, kl_answer, computed, seconds, speedup;
};

#define AT(member) offsetof(struct tsri_response, member)

static double number_of(const struct tsri_response *row, size_t member)
{
    return *(const double *)(const void *)((const char *)row + member);
}

/* ---- pairs ---- */

static void add_name(struct names *n, const char *name)
{
    for (uint32_t i = 0; i < n->n; i++)
        if (strcmp(n->items[i], name) == 0) return;
    if (n->n < SETS_MAX) n->items[n->n++] = name;
}

/* The first row of a question by a method is the one that counts: tables may overlap. */
static int collect(struct summary *s, const struct tsri_responses *r, enum tsri_half half)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct tsri_response *own = &r->items[i];
        if (!tsri_half_has(half, own->set, own->id) ||
            tsri_responses_find(r, own->set, own->id, own->method) != own)
            continue;
        const struct tsri_response *full = tsri_responses_find(r, own->set, own->id, "prefill");
        if (!full) continue;
        void *more = tsri_make_room(s->pairs.items, &s->pairs.n_room, s->pairs.n + 1,
                                    sizeof *s->pairs.items);
        if (!more) return tsri_cli_failed();
        s->pairs.items = more;
        s->pairs.items[s->pairs.n++] = (struct answer_pair){full, own};
        add_name(&s->sets, own->set);
        add_name(&s->methods, own->method);
    }
    if (s->pairs.n == 0) return tsri_cli_fail("no answers of this half");
    if (s->sets.n > 1) add_name(&s->sets, ALL);
    return 0;
}

static bool counts(const struct answer_pair *p, const char *set, const char *method)
{
    return strcmp(p->own->method, method) == 0 &&
           (strcmp(set, ALL) == 0 || strcmp(p->own->set, set) == 0);
}

/* ---- scores ---- */

static double mean_of(const struct answer_pairs *p, size_t member)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        double v = number_of(p->items[i].own, member);
        if (isnan(v)) continue;
        sum += v;
        n++;
    }
    return n ? sum / (double)n : NAN;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values, size_t n)
{
    if (n == 0) return NAN;
    qsort(values, n, sizeof *values, by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/* A measure that is 0 or 1. */
static struct tsri_interval pairs_of(const struct answer_pairs *p, size_t member)
{
    size_t gained = 0, lost = 0, n = 0;
    for (size_t i = 0; i < p->n; i++) {
        double a = number_of(p->items[i].full, member), b = number_of(p->items[i].own, member);
        if (isnan(a) || isnan(b)) continue;
        gained += b > a;
        lost += b < a;
        n++;
    }
    return tsri_interval_of_pairs(gained, lost, n);
}

static struct tsri_interval kept_of(const struct answer_pairs *p)
{
    size_t right = 0, kept = 0;
    for (size_t i = 0; i < p->n; i++) {
        right += p->items[i].full->right == 1;
        kept += p->items[i].full->right == 1 && p->items[i].own->right == 1;
    }
    return tsri_interval_of_share(kept, right);
}

/* `room` has space for a number of each pair. */
static struct score score_of(const struct answer_pairs *p, double *room)
{
    struct score s = {.n = p->n,
                      .exact = mean_of(p, AT(exact)),
                      .f1 = mean_of(p, AT(f1)),
                      .right = mean_of(p, AT(right)),
                      .exact_more = pairs_of(p, AT(exact)),
                      .right_more = pairs_of(p, AT(right)),
                      .kept = kept_of(p),
                      .same_tokens = mean_of(p, AT(same_tokens)),
                      .same_words = mean_of(p, AT(same_words)),
                      .says_same = mean_of(p, AT(says_same)),
                      .kl = mean_of(p, AT(kl)),
                      .kl_answer = mean_of(p, AT(kl_answer))};
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        double more = p->items[i].own->f1 - p->items[i].full->f1;
        if (!isnan(more)) room[n++] = more;
        s.computed += p->items[i].own->n_computed / p->items[i].own->n_tokens / (double)p->n;
    }
    s.f1_more = tsri_interval_of_mean(room, n);
    for (size_t i = 0; i < p->n; i++)
        room[i] = p->items[i].own->seconds;
    s.seconds = median_of(room, p->n);
    for (size_t i = 0; i < p->n; i++)
        room[i] = p->items[i].full->seconds / p->items[i].own->seconds;
    s.speedup = median_of(room, p->n);
    return s;
}

typedef void (*score_fn)(void *arg, const char *set, const char *method, const struct score *s);

static void score_all(const struct summary *s, struct answer_pairs *some, double *room, score_fn fn,
                      void *arg)
{
    for (uint32_t i = 0; i < s->sets.n; i++)
        for (uint32_t k = 0; k < s->methods.n; k++) {
            const char *set = s->sets.items[i], *method = s->methods.items[k];
            some->n = 0;
            for (size_t j = 0; j < s->pairs.n; j++)
                if (counts(&s->pairs.items[j], set, method))
                    some->items[some->n++] = s->pairs.items[j];
            if (some->n == 0) continue;
            struct score score = score_of(some, room);
            fn(arg, set, method, &score);
        }
}

/* Every method on every set. */
static int each_score(const struct summary *s, score_fn fn, void *arg)
{
    double *room = tsri_alloc(s->pairs.n, sizeof *room);
    struct answer_pairs some = {.items = tsri_alloc(s->pairs.n, sizeof *some.items)};
    bool able = room && some.items;
    if (able) score_all(s, &some, room, fn, arg);
    tsri_free(some.items);
    tsri_free(room);
    return able ? 0 : tsri_cli_failed();
}

/* ---- tables ---- */

static void add_number(struct tsri_table *t, const char *format, double v)
{
    char text[32];
    snprintf(text, sizeof text, format, v);
    tsri_table_add(t, "%s", isnan(v) ? "-" : text);
}

static void add_interval(struct tsri_table *t, const char *format, const struct tsri_interval *v,
                         bool shown)
{
    char text[64];
    snprintf(text, sizeof text, format, 100 * v->mean, 100 * v->low, 100 * v->high);
    tsri_table_add(t, "%s", isnan(v->mean) || !shown ? "-" : text);
}

struct two_tables {
    struct tsri_table right, same;
};

static void add_score(void *arg, const char *set, const char *method, const struct score *s)
{
    struct two_tables *t = arg;
    const char *more = "%+.1f (%+.1f to %+.1f)";
    bool other = strcmp(method, "prefill") != 0;
    tsri_table_add(&t->right, "%s", set);
    tsri_table_add(&t->right, "%s", method);
    tsri_table_add(&t->right, "%zu", s->n);
    add_number(&t->right, "%.1f %%", 100 * s->right);
    add_interval(&t->right, more, &s->right_more, other);
    add_interval(&t->right, "%.1f %% (%.1f to %.1f)", &s->kept, other);
    add_number(&t->right, "%.1f", 100 * s->f1);
    add_interval(&t->right, more, &s->f1_more, other);
    add_number(&t->right, "%.1f %%", 100 * s->exact);
    add_interval(&t->right, more, &s->exact_more, other);
    tsri_table_add(&t->same, "%s", set);
    tsri_table_add(&t->same, "%s", method);
    add_number(&t->same, "%.1f %%", 100 * s->same_tokens);
    add_number(&t->same, "%.1f %%", 100 * s->same_words);
    add_number(&t->same, "%.1f %%", 100 * s->says_same);
    add_number(&t->same, "%.4f", s->kl);
    add_number(&t->same, "%.4f", s->kl_answer);
    add_number(&t->same, "%.1f %%", 100 * s->computed);
    add_number(&t->same, "%.3f s", s->seconds);
    add_number(&t->same, "%.1fx", s->speedup);
}

static int print_scores(const struct summary *s)
{
    struct two_tables t;
    tsri_table_init(&t.right, "llrrrrrrrr",
                    "set|method|questions|right|to prefill (95 %)|stays right|F1|to prefill (95 %)|"
                    "exact|to prefill (95 %)");
    tsri_table_init(&t.same, "llrrrrrrrr",
                    "set|method|same tokens|same words|says the same|KL first|KL answer|computed|"
                    "first token|speed-up");
    int e = each_score(s, add_score, &t);
    if (!e) {
        e = tsri_table_print(&t.right, s->cli);
        putchar('\n');
    } else {
        tsri_table_fini(&t.right);
    }
    if (!e) return tsri_table_print(&t.same, s->cli);
    tsri_table_fini(&t.same);
    return e;
}

/* ---- how far the gate can be trusted ---- */

/* The first one: every answer that the gate let pass. */
static const double limits[] = {0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99};

/* Of prompts with a prediction: those computed whole, where there is nothing to trust; and of the
 * others those as sure as wanted, and what became of these. */
struct trust {
    size_t n, n_whole, n_shown;
    size_t n_says, n_words, n_tokens; /* as the prefill */
    size_t n_right, n_kept;           /* the prefill is right; and so are these */
    double sure;                      /* sum */
};

/* Sure as `from` or more, and less than `below`. */
static struct trust trust_of(const struct summary *s, double from, double below)
{
    struct trust t = {0};
    for (size_t i = 0; i < s->pairs.n; i++) {
        const struct tsri_response *own = s->pairs.items[i].own, *full = s->pairs.items[i].full;
        if (strcmp(own->method, "tessera") != 0 || isnan(own->sure)) continue;
        bool whole = ((uint32_t)own->reasons & (TSR_BLEND_FULL | TSR_BLEND_FIRST)) != 0;
        t.n++;
        t.n_whole += whole;
        if (whole || own->sure < from || own->sure >= below) continue;
        t.n_shown++;
        t.n_says += own->says_same == 1;
        t.n_words += own->same_words == 1;
        t.n_tokens += own->same_tokens == 1;
        t.n_right += full->right == 1;
        t.n_kept += full->right == 1 && own->right == 1;
        t.sure += own->sure;
    }
    return t;
}

static void add_share(struct tsri_table *t, size_t k, size_t n)
{
    struct tsri_interval share = tsri_interval_of_share(k, n);
    add_interval(t, "%.1f %% (%.1f to %.1f)", &share, true);
}

static int print_shown(const struct summary *s)
{
    struct tsri_table table;
    tsri_table_init(&table, "lrrrrr", "sure|answers|of all|says the same|same tokens|stays right");
    for (size_t i = 0; i < TSRI_COUNT(limits); i++) {
        struct trust t = trust_of(s, limits[i], INFINITY);
        if (i)
            tsri_table_add(&table, ">= %.2f", limits[i]);
        else
            tsri_table_add(&table, "any");
        tsri_table_add(&table, "%zu", t.n_shown);
        tsri_table_add(&table, "%.1f %%", 100.0 * (double)t.n_shown / (double)t.n);
        add_share(&table, t.n_says, t.n_shown);
        add_share(&table, t.n_tokens, t.n_shown);
        add_share(&table, t.n_kept, t.n_right);
    }
    return tsri_table_print(&table, s->cli);
}

static double upper_limit(size_t i)
{
    return i + 1 < TSRI_COUNT(limits) ? limits[i + 1] : INFINITY;
}

/* A gate is reliable if answers come true as often as it says. */
static int print_reliability(const struct summary *s)
{
    struct tsri_table table;
    tsri_table_init(&table, "rrrrr", "sure from|answers|predicted|says the same|same tokens");
    for (size_t i = 0; i < TSRI_COUNT(limits); i++) {
        struct trust t = trust_of(s, limits[i], upper_limit(i));
        if (t.n_shown == 0) continue;
        tsri_table_add(&table, "%.2f", limits[i]);
        tsri_table_add(&table, "%zu", t.n_shown);
        tsri_table_add(&table, "%.1f %%", 100 * t.sure / (double)t.n_shown);
        add_share(&table, t.n_says, t.n_shown);
        add_share(&table, t.n_tokens, t.n_shown);
    }
    return tsri_table_print(&table, s->cli);
}

static int print_trust(const struct summary *s)
{
    struct trust all = trust_of(s, 0, INFINITY);
    if (all.n == 0) return 0;
    printf("\n%zu of %zu prompts were computed whole; of the others:\n", all.n_whole, all.n);
    int e = print_shown(s);
    if (e || all.n_shown == 0) return e;
    putchar('\n');
    return print_reliability(s);
}

/* ---- JSON ---- */

static void json_number(const char *name, double v)
{
    if (isnan(v) || isinf(v))
        printf(",\"%s\":null", name);
    else
        printf(",\"%s\":%.6g", name, v);
}

static void json_interval(const char *name, const struct tsri_interval *v)
{
    if (isnan(v->mean))
        printf(",\"%s\":null", name);
    else
        printf(",\"%s\":[%.6g,%.6g,%.6g]", name, v->mean, v->low, v->high);
}

static void json_score(void *arg, const char *set, const char *method, const struct score *s)
{
    bool *later = arg;
    fputs(*later ? ",\n" : "", stdout);
    *later = true;
    tsri_cli_json("{\"set\":", set);
    tsri_cli_json(",\"method\":", method);
    printf(",\"questions\":%zu", s->n);
    json_number("right", s->right);
    json_interval("right_more", &s->right_more);
    json_interval("stays_right", &s->kept);
    json_number("f1", s->f1);
    json_interval("f1_more", &s->f1_more);
    json_number("exact", s->exact);
    json_interval("exact_more", &s->exact_more);
    json_number("same_tokens", s->same_tokens);
    json_number("same_words", s->same_words);
    json_number("says_same", s->says_same);
    json_number("kl", s->kl);
    json_number("kl_answer", s->kl_answer);
    json_number("computed", s->computed);
    json_number("seconds", s->seconds);
    json_number("speedup", s->speedup);
    putchar('}');
}

static void json_trust(const struct trust *t)
{
    printf(",\"shown\":%zu,\"says_same\":%zu,\"same_words\":%zu,\"same_tokens\":%zu,"
           "\"right\":%zu,\"stays_right\":%zu}",
           t->n_shown, t->n_says, t->n_words, t->n_tokens, t->n_right, t->n_kept);
}

static int print_json(const struct summary *s, const char *model)
{
    bool later = false;
    tsri_cli_json("{\"model\":", model);
    fputs(",\"scores\":[\n", stdout);
    int e = each_score(s, json_score, &later);
    fputs("],\n\"sure\":[", stdout);
    for (size_t i = 0; i < TSRI_COUNT(limits); i++) {
        struct trust t = trust_of(s, limits[i], INFINITY);
        printf("%s{\"limit\":%g,\"predicted\":%zu,\"whole\":%zu", i ? "," : "", limits[i], t.n,
               t.n_whole);
        json_trust(&t);
    }
    fputs("],\n\"reliability\":[", stdout);
    for (size_t i = 0; i < TSRI_COUNT(limits); i++) {
        struct trust t = trust_of(s, limits[i], upper_limit(i));
        printf("%s{\"from\":%g", i ? "," : "", limits[i]);
        json_number("predicted", t.n_shown ? t.sure / (double)t.n_shown : NAN);
        json_trust(&t);
    }
    puts("]}");
    return e;
}

int tsri_responses_print(const struct tsri_responses *r, enum tsri_half half,
                         const struct tsri_cli *cli)
{
    struct summary s = {.cli = cli};
    int e = collect(&s, r, half);
    if (!e && cli->json) e = print_json(&s, r->model);
    if (!e && !cli->json) {
        e = print_scores(&s);
        if (!e) e = print_trust(&s);
    }
    free(s.pairs.items);
    return e;
}
