/* respond.c - one question by every method, as a user would get the answer: greedy, with the
 * documents known. The prefill comes first; all others are compared with it.
 *
 * The tokens of the prefill's answer are read once more after each method's prompt, in one pass.
 * That gives the KL over the answer, and the method's own answer up to where it says something else;
 * only what follows is decoded token by token. */
#include "lab/answers.h"

#include <math.h>
#include <stdlib.h>

/* An answer that may not be complete yet. */
struct said {
    uint32_t tokens[TSRI_RESPONSE_TOKENS_MAX]; /* an end token is the last one */
    uint32_t n;
    bool ended;
};

/* The prefill, and what the methods need to be compared with it. */
struct spoken {
    const struct tsri_question *question;
    struct tsri_dialog dialog;
    uint32_t n_prompt;
    double look_s; /* what finding the document that leads took */
    bool leads;
    struct said said;
    float *logits;                          /* [said.n][n_vocab], each before its token */
    uint32_t top[TSRI_RESPONSE_TOKENS_MAX]; /* of these logits */
    char text[TSRI_RESPONSE_BYTES];
    bool lost; /* the cache did not give the documents back: nothing can be compared */
};

static uint32_t top_of(const float *logits, uint32_t n)
{
    uint32_t top;
    (void)tsr_logits_top(logits, n, &top);
    return top;
}

/* ---- answers ---- */

static int to_text(const struct tsri_reader *r, const struct said *a, bool plain, char *text)
{
    uint32_t n = a->n;
    size_t bytes = 0;
    text[0] = 0;
    if (a->ended && n && tsr_model_is_end(r->model, a->tokens[n - 1])) n--;
    for (uint32_t i = 0; i < n; i++) {
        size_t room = TSRI_RESPONSE_BYTES - 1 - bytes;
        int got = tsr_model_detokenize(r->model, &a->tokens[i], 1, 0, text + bytes, room);
        if (got < 0) return tsri_cli_failed();
        if ((size_t)got > room) break;
        bytes += (size_t)got;
    }
    text[bytes] = 0;
    if (plain) text[strcspn(text, "\n")] = 0;
    return 0;
}

/* Adds a token; without a template, nothing but the end of a line ends an answer. */
static int say(const struct tsri_reader *r, struct said *a, uint32_t token, bool plain)
{
    char text[256];
    a->tokens[a->n++] = token;
    a->ended = tsr_model_is_end(r->model, token);
    if (!plain || a->ended) return 0;
    int n = tsr_model_detokenize(r->model, &token, 1, 0, text, sizeof text);
    if (n < 0) return tsri_cli_failed();
    a->ended = n <= (int)sizeof text && memchr(text, '\n', (size_t)n) != NULL;
    return 0;
}

/* Goes on to the end; `logits` are those of the next token. */
static int decode(const struct tsri_responder *p, const struct tsr_blend *blend,
                  const struct spoken *full, const float *logits, struct said *a)
{
    struct tsri_reader *r = p->reader;
    bool plain = full->question->plain;
    int e = 0;
    while (!e && a->n < p->answer_max && !a->ended) {
        e = say(r, a, top_of(logits, r->info.n_vocab), plain);
        if (e || a->ended || a->n == p->answer_max) break;
        struct tsri_more more = {.blend = blend,
                                 .tokens = &a->tokens[a->n - 1],
                                 .held = full->n_prompt + a->n - 1,
                                 .n = 1,
                                 .n_logits = 1,
                                 .logits = r->logits};
        e = tsri_reader_go_on(r, &more);
        logits = r->logits;
    }
    return e;
}

/* logits[0] is there; reads the prefill's answer after the prompt for the others. */
static int follow(const struct tsri_responder *p, const struct tsr_blend *blend,
                  const struct spoken *full, float *logits)
{
    uint32_t n = full->said.n;
    if (n < 2) return 0;
    struct tsri_more more = {.blend = blend,
                             .tokens = full->said.tokens,
                             .held = full->n_prompt,
                             .n = n - 1,
                             .n_logits = n - 1,
                             .logits = logits + p->reader->info.n_vocab};
    return tsri_reader_go_on(p->reader, &more);
}

/* ---- prompts ---- */

static struct tsr_ask_desc ask_of(const struct tsri_responder *p, const struct spoken *full)
{
    return (struct tsr_ask_desc){.size = sizeof(struct tsr_ask_desc),
                                 .session = p->reader->session,
                                 .tokens = full->dialog.tokens,
                                 .n_tokens = full->n_prompt,
                                 .segments = full->dialog.segments,
                                 .n_segments = (uint32_t)full->dialog.n_segments,
                                 .system = 1};
}

static struct tsr_blend *blend_of(const struct tsri_responder *p, const struct tsri_method *m)
{
    switch (m->kind) {
    case TSRI_METHOD_PREFILL:
        return p->plain;
    case TSRI_METHOD_TESSERA:
        return p->reader->blend;
    case TSRI_METHOD_ROUNDS:
        return p->rounds[m - p->methods.items];
    default:
        return p->same;
    }
}

/* By the model's profile, as `tessera ask` does it. */
static bool is_ours(const struct tsri_method *m)
{
    return m->kind == TSRI_METHOD_TESSERA || m->kind == TSRI_METHOD_ROUNDS;
}

static void choose(const struct tsri_method *m, struct tsr_ask_desc *ask)
{
    bool given = !isnan(m->ratio);
    switch (m->kind) {
    case TSRI_METHOD_PREFILL:
        ask->selector = TSR_SELECT_FULL;
        break;
    case TSRI_METHOD_REUSE:
        ask->selector = TSR_SELECT_NONE;
        ask->flags = TSR_ASK_RATIO | TSR_ASK_BIAS;
        break;
    case TSRI_METHOD_CACHEBLEND:
        ask->selector = TSR_SELECT_HKVD;
        ask->flags = TSR_ASK_RATIO | TSR_ASK_BIAS;
        ask->ratio = given ? m->ratio : 0.15;
        break;
    case TSRI_METHOD_TESSERA:
        /* Prefixes are left out where the ratio is given: the same prompt may have been asked. */
        ask->flags = given ? TSR_ASK_RATIO : TSRI_ASK_FLAGS;
        ask->ratio = given ? m->ratio : 0;
        if (given && m->ratio == 0) ask->selector = TSR_SELECT_NONE;
        break;
    case TSRI_METHOD_ROUNDS:
        ask->flags = TSR_ASK_ROUNDS;
    }
}

/* The document that the question looks at most to the front, for all methods: they are compared with
 * a prefill of the same prompt. The documents are stored before, so that only looking is timed. */
static int lead(const struct tsri_responder *p, struct spoken *full)
{
    struct tsr_blend *blend = p->reader->blend;
    struct tsri_dialog *d = &full->dialog;
    uint32_t n = (uint32_t)d->n_segments;
    struct tsr_ask_desc ask = ask_of(p, full);
    ask.flags = TSR_ASK_FILL;
    double *looks = malloc(n * sizeof *looks);
    if (!looks) return tsri_cli_fail("no memory");
    int e = tsr_blend_learn(blend, &ask, NULL, NULL);
    double start = tsri_cli_now_s();
    if (e >= 0) e = tsr_blend_look(blend, &ask, looks, NULL);
    full->look_s = tsri_cli_now_s() - start;
    full->leads = e > 0 && tsr_segments_lead(d->tokens, d->segments, n, 1, looks) >= 0;
    free(looks);
    return e < 0 ? tsri_cli_failed() : 0;
}

/* Stores the documents as the method wants them, then asks. */
static int read_prompt(const struct tsri_responder *p, const struct tsri_method *m,
                       struct spoken *full, float *logits, struct tsri_response *row)
{
    struct tsr_blend *blend = blend_of(p, m);
    struct tsr_blend_report report = {.size = sizeof report};
    struct tsr_ask_desc ask = ask_of(p, full);
    choose(m, &ask);
    bool cached = m->kind != TSRI_METHOD_PREFILL, ours = is_ours(m);
    if (ours && full->leads) ask.flags |= TSR_ASK_LEAD;
    if (cached && tsr_blend_learn(blend, &ask, NULL, NULL) < 0) return tsri_cli_failed();
    if (p->speed_path && m->kind == TSRI_METHOD_TESSERA)
        tsri_reader_weigh(p->reader, p->speed_path, &ask);
    double start = tsri_cli_now_s();
    if (tsr_blend_ask(blend, &ask, logits, &report) < 0) return tsri_cli_failed();
    /* `ask` does not look for an order either where a trial does not pay. */
    bool looked = ours && !(report.reasons & TSR_BLEND_COSTLY);
    row->seconds = tsri_cli_now_s() - start + (looked ? full->look_s : 0);
    row->n_tokens = full->n_prompt;
    row->n_computed = full->n_prompt - report.n_exact - report.n_reused;
    row->n_recomputed = report.n_recomputed;
    row->sure = report.sure;
    row->rounds = report.n_rounds;
    row->reasons = report.reasons;
    row->gate = report.gate;
    bool reused = !(report.reasons & (TSR_BLEND_UNABLE | TSR_BLEND_FAULT)) &&
                  report.n_new <= full->n_prompt / 2;
    full->lost = cached && !ours && !reused;
    if (full->lost)
        tsri_cli_note(
            "%s %s: left out: documents were not reused (%u of %u tokens new, reasons %u)",
            row->set, row->id, report.n_new, full->n_prompt, report.reasons);
    return 0;
}

/* ---- rows ---- */

static void start_row(struct tsri_response *row, const struct tsri_question *q,
                      const struct tsri_method *m)
{
    memset(row, 0, sizeof *row);
    snprintf(row->set, sizeof row->set, "%s", q->set);
    snprintf(row->id, sizeof row->id, "%s", q->id);
    memcpy(row->method, m->name, sizeof row->method);
    row->gate = TSRI_GATE_UNKNOWN;
}

static void judge(struct tsri_response *row, const struct spoken *full)
{
    const struct tsri_question *q = full->question;
    char *said[] = {(char *)full->text};
    row->same_words = tsri_answer_exact(row->text, said, 1);
    row->says_same = tsri_fact_words_same(q->question, full->text, row->text);
    row->exact = row->f1 = row->right = NAN;
    if (!q->n_answers) return;
    row->exact = tsri_answer_exact(row->text, q->answers, q->n_answers);
    row->f1 = tsri_answer_f1(row->text, q->answers, q->n_answers);
    row->right = tsri_answer_right(row->text, q->answers, q->n_answers);
}

/* What `ask` notes of a prompt that was computed whole. The first token took no pass of its own. */
static void note_times(const struct tsri_responder *p, const struct spoken *full, double full_s,
                       double answer_s)
{
    const char *how = p->reader->info.device;
    if (!p->speed_path) return;
    tsri_speed_note(p->speed_path, how, full->n_prompt, full_s);
    if (full->said.n) tsri_speed_note_answer(p->speed_path, how, full->said.n - 1, answer_s);
}

static int respond_full(struct tsri_responder *p, struct spoken *full, struct tsri_response *row)
{
    const struct tsri_reader *r = p->reader;
    uint32_t v = r->info.n_vocab;
    const struct tsri_method *m = &p->methods.items[0];
    start_row(row, full->question, m);
    int e = read_prompt(p, m, full, full->logits, row);
    double start = tsri_cli_now_s();
    if (!e) e = decode(p, p->plain, full, full->logits, &full->said);
    if (!e) note_times(p, full, row->seconds, tsri_cli_now_s() - start);
    /* In the same kind of pass as the methods, which may round otherwise than single tokens. */
    if (!e) e = follow(p, p->plain, full, full->logits);
    for (uint32_t i = 0; i < full->said.n && !e; i++)
        full->top[i] = top_of(full->logits + (size_t)i * v, v);
    if (!e) e = to_text(r, &full->said, full->question->plain, full->text);
    if (e) return e;
    memcpy(row->text, full->text, sizeof row->text);
    row->same_tokens = 1;
    judge(row, full);
    return 0;
}

static int respond_method(struct tsri_responder *p, const struct tsri_method *m,
                          struct spoken *full, float *logits, struct tsri_response *row)
{
    const struct tsri_reader *r = p->reader;
    const struct tsr_blend *blend = blend_of(p, m);
    uint32_t v = r->info.n_vocab, n = full->said.n, agreed = 0;
    struct said said = {.n = 0};
    start_row(row, full->question, m);
    int e = read_prompt(p, m, full, logits, row);
    if (!e && !full->lost) e = follow(p, blend, full, logits);
    if (e || full->lost) return e;
    for (uint32_t i = 0; i < n; i++) {
        const float *own = logits + (size_t)i * v;
        double kl = tsr_logits_kl(full->logits + (size_t)i * v, own, v);
        uint32_t top = top_of(own, v);
        if (i == 0) row->kl = kl;
        row->kl_answer += kl / n;
        if (agreed == i && (top == full->top[i] || top == full->said.tokens[i])) agreed++;
    }
    row->same_tokens = agreed == n;
    said.n = agreed;
    memcpy(said.tokens, full->said.tokens, agreed * sizeof *said.tokens);
    said.ended = agreed == n && full->said.ended;
    if (agreed < n) e = decode(p, blend, full, logits + (size_t)agreed * v, &said);
    if (!e) e = to_text(r, &said, full->question->plain, row->text);
    if (!e) judge(row, full);
    return e;
}

/* ---- a question ---- */

/* The reader's profile, with one round of the method's ratio. */
static int open_rounds(const struct tsri_reader *reader, const struct tsri_method *m,
                       struct tsr_blend **out)
{
    struct tsr_profile profile = *tsr_blend_profile(reader->blend);
    struct tsr_blend_desc config = {
        .size = sizeof config, .model = reader->model, .cache = reader->cache, .profile = &profile};
    profile.n_rounds = 1;
    profile.rounds[0] = m->ratio;
    profile.lead.n_rounds = 0;
    if (tsr_blend_open(out, &config) < 0) return tsri_cli_failed();
    const struct tsr_profile *own = tsr_blend_profile(*out);
    if (own->n_rounds && own->selector == TSR_SELECT_QUERY) return 0;
    return tsri_cli_fail("%s: rounds need selector query, and no blend_* option in its place",
                         m->name);
}

int tsri_responder_init(struct tsri_responder *p, struct tsri_reader *reader,
                        const struct tsri_methods *methods, uint32_t answer_max)
{
    struct tsr_profile profile = {.size = sizeof profile};
    struct tsr_blend_desc config = {.size = sizeof config, .model = reader->model};
    *p = (struct tsri_responder){.reader = reader, .methods = *methods, .answer_max = answer_max};
    TSR_ASSERT(answer_max <= TSRI_RESPONSE_TOKENS_MAX);
    if (tsr_blend_open(&p->plain, &config) < 0) return tsri_cli_failed();
    tsr_profile_init(&profile);
    profile.context = TSR_CONTEXT_SAME;
    config.cache = reader->cache;
    config.profile = &profile;
    config.blend_min_tokens = UINT32_MAX;
    if (tsr_blend_open(&p->same, &config) < 0) return tsri_cli_failed();
    int e = 0;
    for (uint32_t i = 0; i < methods->n && !e; i++)
        if (methods->items[i].kind == TSRI_METHOD_ROUNDS)
            e = open_rounds(reader, &methods->items[i], &p->rounds[i]);
    return e;
}

void tsri_responder_fini(struct tsri_responder *p)
{
    for (uint32_t i = 0; i < TSRI_METHODS_MAX; i++)
        tsr_blend_close(p->rounds[i]);
    tsr_blend_close(p->plain);
    tsr_blend_close(p->same);
    memset(p, 0, sizeof *p);
}

/* Everything that all methods share: the prompt, and room for it. */
static int prepare(struct tsri_responder *p, struct spoken *full, bool *fits)
{
    struct tsri_reader *r = p->reader;
    const struct tsri_question *q = full->question;
    int e = tsri_question_dialog(q, r->model, &full->dialog);
    if (e) return e;
    full->n_prompt = (uint32_t)full->dialog.n_tokens;
    size_t slots = (size_t)full->n_prompt + p->answer_max;
    *fits = slots <= r->info.context;
    if (!*fits)
        tsri_cli_note("%s %s: left out: %zu tokens, the model's context has %u", q->set, q->id,
                      slots, r->info.context);
    /* The gate drafts answers after the prompt; `tessera ask` has room for that. */
    uint32_t draft = tsr_blend_profile(r->blend)->draft;
    if (draft > p->answer_max) slots += draft - p->answer_max;
    if (!*fits) return 0;
    e = tsri_reader_make_room(r, slots);
    return !e && p->free_order ? lead(p, full) : e;
}

int tsri_respond(struct tsri_responder *p, const struct tsri_question *q,
                 struct tsri_response *rows, uint32_t *n)
{
    size_t bytes = (size_t)p->answer_max * p->reader->info.n_vocab * sizeof(float);
    struct spoken full = {.question = q, .logits = malloc(bytes)};
    float *logits = malloc(bytes);
    bool fits = false;
    int e = full.logits && logits ? prepare(p, &full, &fits) : tsri_cli_fail("no memory");
    *n = 0;
    if (!e && fits) e = respond_full(p, &full, &rows[(*n)++]);
    for (uint32_t i = 1; i < p->methods.n && !e && fits && !full.lost; i++)
        e = respond_method(p, &p->methods.items[i], &full, logits, &rows[(*n)++]);
    if (full.lost) *n = 0;
    tsri_dialog_fini(&full.dialog);
    free(full.logits);
    free(logits);
    return e;
}
