/* writing.c - answers, one token of each at a time. All of them are decoded in one pass over the
 * weights; each then chooses its own token. */
#include "serve/task.h"

#include <math.h>

/* ---- events ---- */

static void tell(const struct tsri_task *t, struct tsri_job_event *event)
{
    event->job = t->id;
    if (t->desc.event) t->desc.event(t->desc.arg, event);
}

void tsri_writing_end(struct tsri_engine *e, struct tsri_task *t, enum tsri_end why, int err,
                      const char *text)
{
    if (t->state == TSRI_TASK_OVER) return;
    t->state = TSRI_TASK_OVER;
    t->why = why;
    e->now.n_stopped += why == TSRI_END_STOP || why == TSRI_END_LENGTH || why == TSRI_END_DONE;
    e->now.n_cancelled += why == TSRI_END_CANCELLED;
    e->now.n_failed += why == TSRI_END_FAILED;
    struct tsri_job_event event = {.kind = TSRI_EVENT_END,
                                   .why = why,
                                   .n_tokens = t->n_written,
                                   .n_done = t->n_learned,
                                   .n_total = t->desc.n_segments,
                                   .logprob = NAN,
                                   .err = err,
                                   .text = text ? text : ""};
    tell(t, &event);
}

/* ---- choosing ---- */

static uint32_t choose(struct tsri_engine *e, struct tsri_task *t, const float *logits)
{
    struct tsri_sampler *s = &e->sampler;
    s->temperature = t->desc.temperature;
    s->top_p = t->desc.top_p > 0 ? t->desc.top_p : 1;
    s->state = t->random;
    uint32_t token = tsri_sampler_pick(s, logits, e->info.n_vocab);
    t->random = s->state;
    return token;
}

/* The logarithm of what all probabilities are to be divided by. */
static double log_sum(const float *logits, uint32_t n)
{
    uint32_t top = 0;
    double sum = 1; /* of the top one */
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[top]) top = i;
    for (uint32_t i = 0; i < n; i++)
        if (i != top) sum += (double)expf(logits[i] - logits[top]);
    return (double)logits[top] + log(sum);
}

/* The n most likely tokens, best first; equal ones by their number. */
static uint32_t likely(const float *logits, uint32_t n_vocab, double all, uint32_t n,
                       struct tsri_token_chance *top)
{
    uint32_t n_top = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        float p = (float)((double)logits[i] - all);
        if (n_top == n && !(p > top[n - 1].logprob)) continue;
        uint32_t at = n_top < n ? n_top++ : n - 1;
        for (; at > 0 && p > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct tsri_token_chance){i, p};
    }
    return n_top;
}

/* Gives a token to the client, or ends the answer. logits NULL: they are not wanted. */
static void put(struct tsri_engine *e, struct tsri_task *t, uint32_t token, const float *logits)
{
    if (!t->desc.ignore_end && tsr_model_is_end(e->model, token)) {
        tsri_writing_end(e, t, TSRI_END_STOP, 0, NULL);
        return;
    }
    struct tsri_token_chance top[TSRI_ENGINE_TOP_MAX];
    struct tsri_job_event event = {
        .kind = TSRI_EVENT_TOKEN, .token = token, .logprob = NAN, .top = top};
    if (logits && (t->desc.logprobs || t->desc.n_top)) {
        double all = log_sum(logits, e->info.n_vocab);
        event.logprob = (float)((double)logits[token] - all);
        if (t->desc.n_top) event.n_top = likely(logits, e->info.n_vocab, all, t->desc.n_top, top);
    }
    uint64_t now = tsri_now_ns();
    double gap_s = t->n_written ? (double)(now - t->written_ns) * 1e-9 : 0;
    e->now.gap_s += gap_s;
    if (gap_s > e->now.gap_max_s) e->now.gap_max_s = gap_s;
    t->written_ns = now;
    t->token = token;
    if (t->desc.keeps) ((uint32_t *)(uintptr_t)t->desc.tokens)[t->n_prompt + t->n_written] = token;
    event.n_tokens = ++t->n_written;
    e->now.answer_tokens++;
    tell(t, &event);
    if (t->n_written >= t->max_tokens) tsri_writing_end(e, t, TSRI_END_LENGTH, 0, NULL);
}

/* What is no number in KV would be in the sums of the next prompt in this session, even where it is
 * hidden: the session is not used again. */
static void put_next(struct tsri_engine *e, struct tsri_task *t, const float *logits)
{
    uint32_t token = choose(e, t, logits);
    t->spoiled = token == TSRI_NO_TOKEN;
    if (t->spoiled)
        tsri_writing_end(e, t, TSRI_END_FAILED, TSR_EDEVICE, TSRI_NO_TOKEN_TEXT);
    else
        put(e, t, token, logits);
}

/* ---- the first token ---- */

/* What the blend leaves for decoding is of its last ask: it must be taken at once. */
static int take_rest(struct tsri_engine *e, struct tsri_task *t)
{
    uint32_t n;
    const float *bias = tsr_blend_bias(e->blend, &n);
    if (bias && n) {
        t->bias = tsri_alloc(n, sizeof *bias);
        if (!t->bias) return TSR_ENOMEM;
        memcpy(t->bias, bias, n * sizeof *bias);
        t->n_bias = n;
    }
    /* A draft has no logits, and is what a greedy answer says. */
    const uint32_t *draft = tsr_blend_draft(e->blend, &n);
    if (!n || t->desc.temperature > 0 || t->desc.logprobs || t->desc.n_top) return 0;
    t->draft = tsri_alloc(n, sizeof *draft);
    if (!t->draft) return TSR_ENOMEM;
    memcpy(t->draft, draft, n * sizeof *draft);
    t->n_draft = n;
    return 0;
}

void tsri_writing_begin(struct tsri_engine *e, struct tsri_task *t)
{
    const struct tsr_blend_report *r = &t->report;
    e->now.prompt_tokens += r->n_tokens;
    e->now.exact_tokens += r->n_exact;
    e->now.reused_tokens += r->n_reused;
    e->now.recomputed_tokens += r->n_recomputed;
    e->now.new_tokens += r->n_new;
    t->state = TSRI_TASK_WRITING;
    if (take_rest(e, t)) {
        tsri_writing_end(e, t, TSRI_END_FAILED, TSR_ENOMEM, tsr_errmsg());
        return;
    }
    struct tsri_job_event event = {.kind = TSRI_EVENT_READ,
                                   .report = r,
                                   .logprob = NAN,
                                   .queued_s = (double)(t->started_ns - t->queued_ns) * 1e-9,
                                   .read_s = (double)(tsri_now_ns() - t->started_ns) * 1e-9};
    tell(t, &event);
    if (!t->n_draft) put_next(e, t, e->logits);
    for (uint32_t i = 0; i < t->n_draft && t->state == TSRI_TASK_WRITING; i++)
        put(e, t, t->draft[i], NULL);
}

/* ---- the others ---- */

static struct tsr_decoder_row row_of(const struct tsri_task *t)
{
    return (struct tsr_decoder_row){.session = t->session,
                                    .token = t->token,
                                    .position = t->desc.n_tokens + t->n_written - 1,
                                    .bias = t->bias,
                                    .n_bias = t->n_bias};
}

/* When a pass fails, each is decoded alone: the fault of one is not the end of the others. */
static void each_alone(struct tsri_engine *e, struct tsri_task **tasks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_decoder_row row = row_of(tasks[i]);
        uint32_t flags = tasks[i]->desc.mode == TSRI_MODE_EXACT ? TSR_DECODER_ALIKE : 0;
        int r = tsr_decoder_run(e->decoder, &row, 1, flags, e->logits);
        if (r)
            tsri_writing_end(e, tasks[i], TSRI_END_FAILED, r, tsr_errmsg());
        else
            put_next(e, tasks[i], e->logits);
    }
}

void tsri_writing_all(struct tsri_engine *e, struct tsri_task **tasks, uint32_t n)
{
    struct tsr_decoder_row rows[TSR_DECODER_ROWS_MAX];
    uint32_t flags = 0;
    uint64_t start_ns = tsri_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = row_of(tasks[i]);
        if (tasks[i]->desc.mode == TSRI_MODE_EXACT) flags = TSR_DECODER_ALIKE;
    }
    if (tsr_decoder_run(e->decoder, rows, n, flags, e->logits) < 0)
        each_alone(e, tasks, n);
    else
        for (uint32_t i = 0; i < n; i++)
            put_next(e, tasks[i], e->logits + (size_t)i * e->info.n_vocab);
    e->decode_s = (double)(tsri_now_ns() - start_ns) * 1e-9;
    e->now.decode_s += e->decode_s;
    if (n == 1) e->token_s = e->token_s > 0 ? 0.9 * e->token_s + 0.1 * e->decode_s : e->decode_s;
    e->now.n_passes++;
}
