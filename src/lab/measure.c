/* measure.c - one question under many settings, against a full prefill of the same prompt. The
 * documents are read once for each context; every setting then starts from the same stored KV, as
 * it would in use. Times are those of the whole prompt with everything in host memory. */
#include "lab/quality.h"
#include "blend/blend.h"

#include <math.h>
#include <stdlib.h>

#define GOLD_TOKENS_MAX 32u
#define ANSWER_BYTES 4096u

/* What every setting is compared with. */
struct truth {
    struct tsri_dialog dialog;
    uint32_t n_prompt;
    uint32_t gold[GOLD_TOKENS_MAX]; /* a right answer */
    uint32_t n_gold;
    char answer[ANSWER_BYTES]; /* the prefill's own */
    float *logits; /* [n_gold or 1][n_vocab]: of the first answer token, then behind each of gold */
    uint32_t first;
    double gold_ll, seconds;
};

static int make_prompt(struct truth *t, const struct tsri_reader *r, const struct tsri_question *q)
{
    int e = tsri_question_dialog(q, r->model, &t->dialog);
    t->n_prompt = (uint32_t)t->dialog.n_tokens;
    if (e || !q->n_answers) return e;
    int n = tsr_model_tokenize(r->model, q->answers[0], strlen(q->answers[0]), 0, t->gold,
                               GOLD_TOKENS_MAX);
    if (n < 0) return tsri_cli_failed();
    t->n_gold = n < (int)GOLD_TOKENS_MAX ? (uint32_t)n : GOLD_TOKENS_MAX;
    return 0;
}

/* ---- passes behind the prompt ---- */

/* Rows `tokens` behind `held` ones; logits of all of them. */
static int go_on(const struct tsri_reader *r, const struct tsr_blend *blend, const uint32_t *tokens,
                 uint32_t held, uint32_t n, float *logits)
{
    struct tsri_more more = {
        .blend = blend, .tokens = tokens, .held = held, .n = n, .n_logits = n, .logits = logits};
    return tsri_reader_go_on(r, &more);
}

static double log_probability(const float *logits, uint32_t n, uint32_t token)
{
    uint32_t top;
    double p = tsr_logits_top(logits, n, &top);
    return log(p) + (double)logits[token] - (double)logits[top];
}

/* logits[0] is there; adds those behind the gold tokens, and returns their log-likelihood. */
static int read_gold(const struct tsri_reader *r, const struct tsr_blend *blend,
                     const struct truth *t, float *logits, double *ll)
{
    uint32_t v = r->info.n_vocab;
    *ll = 0;
    if (t->n_gold == 0) return 0;
    int e = t->n_gold > 1 ? go_on(r, blend, t->gold, t->n_prompt, t->n_gold - 1, logits + v) : 0;
    for (uint32_t i = 0; i < t->n_gold && !e; i++)
        *ll += log_probability(logits + (size_t)i * v, v, t->gold[i]);
    return e;
}

/* ---- greedy answers ---- */

static int decode(const struct tsri_measure *m, const struct tsr_blend *blend,
                  const struct truth *t, const float *first, const struct tsri_question *q,
                  char text[ANSWER_BYTES])
{
    const struct tsri_reader *r = m->reader;
    size_t bytes = 0;
    int e = 0;
    memcpy(r->logits, first, r->info.n_vocab * sizeof *first);
    for (uint32_t i = 0; i < m->answer_max && !e; i++) {
        uint32_t token;
        tsr_logits_top(r->logits, r->info.n_vocab, &token);
        if (tsr_model_is_end(r->model, token)) break;
        int n =
            tsr_model_detokenize(r->model, &token, 1, 0, text + bytes, ANSWER_BYTES - 1 - bytes);
        if (n < 0 || bytes + (size_t)n >= ANSWER_BYTES) break;
        bytes += (size_t)n;
        /* Without a template nothing else ends an answer. */
        if (q->plain && memchr(text, '\n', bytes)) break;
        if (i + 1 < m->answer_max) e = go_on(r, blend, &token, t->n_prompt + i, 1, r->logits);
    }
    text[bytes] = 0;
    if (q->plain) text[strcspn(text, "\n")] = 0;
    return e;
}

/* Compares an answer with the right ones and with the prefill's own. */
static int answer(const struct tsri_measure *m, const struct tsr_blend *blend,
                  const struct truth *t, const float *first, const struct tsri_question *q,
                  struct tsri_quality_row *row)
{
    char text[ANSWER_BYTES], *own = (char *)t->answer;
    row->exact = row->f1 = row->same_answer = row->says_same = NAN;
    if (!m->answer_max) return 0;
    int e = decode(m, blend, t, first, q, text);
    if (e) return e;
    row->same_answer = tsri_answer_exact(text, &own, 1);
    row->says_same = tsri_fact_words_same(q->question, own, text);
    if (!q->n_answers) return 0;
    row->exact = tsri_answer_exact(text, q->answers, q->n_answers);
    row->f1 = tsri_answer_f1(text, q->answers, q->n_answers);
    return 0;
}

/* ---- the prefill, and the settings ---- */

static struct tsr_ask_desc ask_of(const struct tsri_reader *r, const struct truth *t)
{
    return (struct tsr_ask_desc){.size = sizeof(struct tsr_ask_desc),
                                 .session = r->session,
                                 .tokens = t->dialog.tokens,
                                 .n_tokens = t->n_prompt,
                                 .segments = t->dialog.segments,
                                 .n_segments = (uint32_t)t->dialog.n_segments,
                                 .system = 1};
}

static void start_row(struct tsri_quality_row *row, const struct tsri_question *q,
                      const struct tsri_setting *s, const struct truth *t)
{
    memset(row, 0, sizeof *row);
    snprintf(row->set, sizeof row->set, "%s", q->set);
    snprintf(row->id, sizeof row->id, "%s", q->id);
    row->setting = *s;
    row->full_s = t->seconds;
    row->n_tokens = t->n_prompt;
}

static int prefill(const struct tsri_measure *m, const struct tsri_question *q, struct truth *t,
                   struct tsri_quality_row *row)
{
    const struct tsri_reader *r = m->reader;
    struct tsr_blend *plain;
    struct tsr_blend_desc config = {.size = sizeof config, .model = r->model};
    struct tsr_ask_desc ask = ask_of(r, t);
    ask.selector = TSR_SELECT_FULL;
    if (tsr_blend_open(&plain, &config) < 0) return tsri_cli_failed();
    double start = tsri_cli_now_s();
    int e = tsr_blend_ask(plain, &ask, t->logits, NULL) < 0 ? tsri_cli_failed() : 0;
    t->seconds = tsri_cli_now_s() - start;
    if (!e) e = read_gold(r, plain, t, t->logits, &t->gold_ll);
    tsr_logits_top(t->logits, r->info.n_vocab, &t->first);
    struct tsri_setting full = {
        .selector = TSR_SELECT_FULL, .context = TSR_CONTEXT_SAME, .ratio = 1};
    start_row(row, q, &full, t);
    row->same = 1;
    row->blend_s = t->seconds;
    row->n_recomputed = t->n_prompt;
    row->gate = TSRI_GATE_UNKNOWN;
    if (!e && m->answer_max) e = decode(m, plain, t, t->logits, q, t->answer);
    if (!e) e = answer(m, plain, t, t->logits, q, row);
    tsr_blend_close(plain);
    return e;
}

static int one_setting(const struct tsri_measure *m, struct tsr_blend *blend,
                       const struct tsri_question *q, const struct truth *t, float *logits,
                       struct tsri_quality_row *row)
{
    const struct tsri_reader *r = m->reader;
    struct tsr_blend_report report = {.size = sizeof report};
    struct tsr_ask_desc ask = ask_of(r, t);
    uint32_t v = r->info.n_vocab, first;
    double ll;
    ask.selector = row->setting.selector;
    ask.flags = TSR_ASK_BIAS | (row->setting.n_rounds > 0 ? TSR_ASK_ROUNDS : TSR_ASK_RATIO);
    ask.ratio = row->setting.ratio;
    ask.bias = row->setting.bias;
    double start = tsri_cli_now_s();
    if (tsr_blend_ask(blend, &ask, logits, &report) < 0) return tsri_cli_failed();
    row->blend_s = tsri_cli_now_s() - start;
    if (report.reasons & (TSR_BLEND_UNABLE | TSR_BLEND_FAULT) || report.n_new > t->n_prompt / 2)
        return tsri_cli_fail("%s %s: the documents were not reused", q->set, q->id);
    int e = read_gold(r, blend, t, logits, &ll);
    if (e) return e;
    tsr_logits_top(logits, v, &first);
    row->kl = tsr_logits_kl(t->logits, logits, v);
    row->same = first == t->first;
    row->gold = ll - t->gold_ll;
    row->gate = report.gate;
    row->n_recomputed = report.n_recomputed;
    row->kl_answer = t->n_gold ? 0 : row->kl;
    for (uint32_t i = 0; i < t->n_gold; i++)
        row->kl_answer +=
            tsr_logits_kl(t->logits + (size_t)i * v, logits + (size_t)i * v, v) / t->n_gold;
    return answer(m, blend, t, logits, q, row);
}

static bool is_kind(const struct tsri_setting *s, uint32_t context, bool int8)
{
    return s->context == context && s->int8 == int8;
}

static int open_blend(struct tsr_blend **out, const struct tsri_measure *m,
                      const struct tsri_setting *s)
{
    const struct tsri_reader *r = m->reader;
    struct tsr_profile profile = {.size = sizeof profile};
    tsr_profile_init(&profile);
    profile.context = s->context;
    memcpy(profile.primer, tsr_blend_profile(r->blend)->primer, sizeof profile.primer);
    if (s->layers[1] > 0) memcpy(profile.query_layers, s->layers, sizeof s->layers);
    profile.n_rounds = (uint32_t)s->n_rounds;
    if (s->n_rounds > 0) memcpy(profile.rounds, m->rounds, profile.n_rounds * sizeof *m->rounds);
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .model = r->model,
                                    .cache = r->cache,
                                    .profile = &profile,
                                    .flags = s->int8 ? TSR_BLEND_INT8 : 0,
                                    .blend_min_tokens = UINT32_MAX};
    return tsr_blend_open(out, &config) < 0 ? tsri_cli_failed() : 0;
}

/* The documents are stored as the setting wants them; later asks only load. */
static int fill(const struct tsri_reader *r, struct tsr_blend *blend, const struct truth *t,
                float *logits)
{
    struct tsr_ask_desc ask = ask_of(r, t);
    ask.selector = TSR_SELECT_NONE;
    ask.flags = TSR_ASK_FILL;
    return tsr_blend_ask(blend, &ask, logits, NULL) < 0 ? tsri_cli_failed() : 0;
}

/* All settings of one kind of stored segments; `rows` are in the order of the settings. */
static int one_kind(const struct tsri_measure *m, uint32_t context, bool int8,
                    const struct tsri_question *q, const struct truth *t, float *logits,
                    struct tsri_quality_row *rows)
{
    bool filled = false;
    int e = 0;
    for (uint32_t i = 0; i < m->n_settings && !e; i++) {
        const struct tsri_setting *s = &m->settings[i];
        struct tsr_blend *blend = NULL;
        if (!is_kind(s, context, int8)) continue;
        e = open_blend(&blend, m, s);
        if (!e && !filled) e = fill(m->reader, blend, t, logits);
        filled = true;
        start_row(&rows[i], q, s, t);
        if (!e) e = one_setting(m, blend, q, t, logits, &rows[i]);
        tsr_blend_close(blend);
    }
    return e;
}

/* The reader's own profile may have no primer. */
static size_t primer_room(const struct tsri_measure *m)
{
    for (uint32_t i = 0; i < m->n_settings; i++)
        if (m->settings[i].context == TSR_CONTEXT_PRIMER) return TSR_PRIMER_TOKENS_MAX;
    return 0;
}

int tsri_measure_question(const struct tsri_measure *m, const struct tsri_question *q,
                          struct tsri_quality_row *rows)
{
    struct tsri_reader *r = m->reader;
    struct truth t = {.n_prompt = 0};
    float *logits = NULL;
    int e = make_prompt(&t, r, q);
    size_t slots = t.n_prompt + GOLD_TOKENS_MAX + m->answer_max;
    if (!e && slots > r->info.context)
        e = tsri_cli_fail("%s %s: %zu tokens, the model's context has %u", q->set, q->id, slots,
                          r->info.context);
    if (!e) e = tsri_reader_make_room(r, slots + primer_room(m));
    size_t n_logits = (size_t)(t.n_gold ? t.n_gold : 1) * r->info.n_vocab;
    if (!e) {
        t.logits = malloc(n_logits * sizeof *logits);
        logits = malloc(n_logits * sizeof *logits);
        if (!t.logits || !logits) e = tsri_cli_fail("no memory");
    }
    if (!e && t.logits) e = prefill(m, q, &t, &rows[0]);
    static const uint32_t contexts[] = {TSR_CONTEXT_SAME, TSR_CONTEXT_PURE, TSR_CONTEXT_PRIMER};
    for (uint32_t kind = 0; kind < 2 * TSRI_COUNT(contexts) && !e; kind++)
        e = one_kind(m, contexts[kind / 2], kind % 2, q, &t, logits, rows + 1);
    free(logits);
    free(t.logits);
    tsri_dialog_fini(&t.dialog);
    return e;
}
