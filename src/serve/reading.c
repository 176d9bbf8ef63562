/* reading.c - a prompt, step by step. Between two steps others have their turns: a step is a layer, or
 * a piece of one where the prompt is long. The run of the blend says which steps there are; what comes
 * from the cache, what is computed, and how far an answer is to be trusted is decided there. */
#include "blend/blend.h"
#include "serve/task.h"

#include <math.h>

#define PIECE_NS 200000000u /* between two events about pieces */
/* Lower tiers may keep a layer waiting for so long; running answers wait with it. */
#define TIER_WAIT_MS 1000u

uint32_t tsri_reading_slots(const struct tsri_engine *e, const struct tsri_job_desc *d)
{
    /* The slots after the prompt hold the primer first, then the gate's draft, then the answer. */
    bool answers = d->mode != TSRI_MODE_LEARN && d->mode != TSRI_MODE_KEEP;
    uint32_t behind = answers ? d->max_tokens : 0;
    uint32_t draft = d->mode == TSRI_MODE_AUTO ? tsr_blend_profile(e->blend)->draft : 0;
    bool exact = d->mode == TSRI_MODE_EXACT || d->mode == TSRI_MODE_KEEP;
    uint32_t primer = exact ? 0 : tsr_blend_primer(e->blend);
    if (behind < draft) behind = draft;
    if (behind < primer) behind = primer;
    uint32_t n = d->n_tokens;
    if (d->mode == TSRI_MODE_LEARN) {
        uint32_t longest = 0;
        for (uint32_t i = 0; i < d->n_segments; i++)
            if (d->segments[i].n_tokens > longest) longest = d->segments[i].n_tokens;
        n = longest + 1 + (d->system && d->n_segments ? d->segments[0].n_tokens : 0);
    }
    return tsri_min_u32(behind, e->info.context - n) + n;
}

static bool wants_to_look(const struct tsri_task *t)
{
    bool blends = t->desc.mode == TSRI_MODE_AUTO || t->desc.mode == TSRI_MODE_FAST;
    return t->desc.free_order && blends && !t->looked;
}

static struct tsr_ask_desc ask_of(const struct tsri_engine *e, const struct tsri_task *t)
{
    const struct tsri_job_desc *d = &t->desc;
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .session = t->session,
                               .tokens = d->tokens,
                               .n_tokens = d->n_tokens,
                               .segments = d->segments,
                               .n_segments = d->n_segments,
                               .system = d->system,
                               .timeout_ms = TIER_WAIT_MS,
                               .flags = TSR_ASK_FILL | TSR_ASK_PREFIX | TSR_ASK_FIRST};
    if (d->mode == TSRI_MODE_AUTO) {
        ask.flags |= TSR_ASK_GATE;
        ask.row_s = d->full_s / d->n_tokens;
        ask.token_s = e->token_s;
    }
    if (wants_to_look(t)) ask.flags |= TSR_ASK_LOOK;
    if (t->leads) ask.flags |= TSR_ASK_LEAD;
    if (d->mode == TSRI_MODE_EXACT || d->mode == TSRI_MODE_KEEP) {
        /* Documents are text like any other. A system prompt is at the front wherever it is used. */
        ask.flags = TSR_ASK_PREFIX;
        ask.selector = TSR_SELECT_FULL;
        ask.n_segments = d->system ? 1 : 0;
    }
    if (d->mode == TSRI_MODE_EXACT && d->fresh) {
        ask.flags = 0;
        ask.n_segments = ask.system = 0;
    }
    return ask;
}

/* A segment as a prompt of its own, as in tsr_blend_learn(): the system prompt where the profile
 * computes documents after it, the segment, and one token as the question. */
static struct tsr_ask_desc short_ask(const struct tsri_engine *e, struct tsri_task *t)
{
    const struct tsri_job_desc *d = &t->desc;
    uint32_t i = t->n_learned, n = 0, n_ranges = 0;
    bool after_system = d->system && (i == 0 || !tsr_blend_primer(e->blend));
    if (after_system && i > 0) {
        n = d->segments[0].n_tokens;
        memcpy(t->short_prompt, d->tokens, n * sizeof *t->short_prompt);
        t->shorts[n_ranges++] = (struct tsr_range){0, n};
    }
    t->shorts[n_ranges++] = (struct tsr_range){n, d->segments[i].n_tokens};
    memcpy(t->short_prompt + n, d->tokens + d->segments[i].offset,
           d->segments[i].n_tokens * sizeof *t->short_prompt);
    n += d->segments[i].n_tokens;
    t->short_prompt[n++] = d->tokens[d->n_tokens - 1];
    return (struct tsr_ask_desc){.size = sizeof(struct tsr_ask_desc),
                                 .session = t->session,
                                 .tokens = t->short_prompt,
                                 .n_tokens = n,
                                 .segments = t->shorts,
                                 .n_segments = n_ranges,
                                 .system = after_system,
                                 .timeout_ms = TIER_WAIT_MS,
                                 .flags = TSR_ASK_LEARN};
}

static int begin(struct tsri_engine *e, struct tsri_task *t)
{
    int r = 0;
    if (!t->session) r = tsri_session_pool_take(&e->sessions, t->n_slots, &t->session);
    bool learns = t->desc.mode == TSRI_MODE_LEARN;
    if (!r && learns && !t->short_prompt) {
        t->short_prompt = tsri_alloc(t->n_slots, sizeof *t->short_prompt);
        if (!t->short_prompt) return TSR_ENOMEM;
    }
    if (r) return r;
    t->ask = learns ? short_ask(e, t) : ask_of(e, t);
    t->in_step = false;
    t->result = 0;
    t->n_row_layers = t->told_ns = 0;
    return tsr_blend_start(&t->run, e->blend, &t->ask, NULL);
}

/* 1: more is left, 0: the run is at its end. */
static int advance(struct tsri_task *t)
{
    if (!t->in_step) {
        int r = tsr_blend_next(t->run, t->result, &t->step);
        if (r <= 0) return r;
        t->in_step = true;
    }
    t->result = tsri_blend_step(t->session, &t->step);
    if (t->result > 0) return 1;
    t->in_step = false;
    if (t->step.kind == TSR_STEP_BEGIN) t->n_rows = t->step.pass.n_rows;
    if (t->step.kind == TSR_STEP_NARROW) t->n_rows = t->step.n_keep;
    if (t->step.kind == TSR_STEP_LAYER) t->n_row_layers += t->n_rows;
    return 1;
}

static void tell_piece(const struct tsri_engine *e, struct tsri_task *t)
{
    uint64_t now_ns = tsri_now_ns();
    if (!t->desc.tells_pieces || now_ns - t->told_ns < PIECE_NS) return;
    if (!t->told_ns) {
        const uint8_t *states = tsr_blend_states(t->run);
        t->n_known = 0;
        for (uint32_t i = 0; i < t->desc.n_tokens; i++)
            t->n_known += states[i] != TSR_TOKEN_NEW;
    }
    uint64_t n = t->n_known + t->n_row_layers / e->info.n_layers;
    struct tsri_job_event event = {.kind = TSRI_EVENT_PIECE,
                                   .job = t->id,
                                   .logprob = NAN,
                                   .n_done =
                                       (uint32_t)(n < t->desc.n_tokens ? n : t->desc.n_tokens),
                                   .n_total = t->desc.n_tokens};
    t->told_ns = now_ns;
    t->desc.event(t->desc.arg, &event);
}

static void finish(struct tsri_task *t, float *logits)
{
    tsr_session_end(t->session);
    t->report = (struct tsr_blend_report){.size = sizeof t->report};
    tsr_blend_end(t->run, logits, &t->report);
    t->run = NULL;
}

/* The question has looked at the documents: one of them leads now, or none. */
static int order(struct tsri_task *t)
{
    struct tsri_job_desc *d = &t->desc;
    double *looks = tsri_alloc((size_t)d->n_segments + 1, sizeof *looks);
    if (!looks) return TSR_ENOMEM;
    int r = tsr_blend_looks(t->run, looks);
    finish(t, NULL);
    t->look = t->report;
    t->looked = true;
    if (r > 0)
        t->leads = tsr_segments_lead((uint32_t *)(uintptr_t)d->tokens,
                                     (struct tsr_range *)(uintptr_t)d->segments, d->n_segments,
                                     d->system, looks) >= 0;
    tsri_free(looks);
    return r < 0 ? r : 1;
}

int tsri_reading_piece(struct tsri_engine *e, struct tsri_task *t)
{
    int r = t->run ? 0 : begin(e, t);
    if (!r) r = advance(t);
    if (r > 0) tell_piece(e, t);
    if (r) return r;
    if (t->ask.flags & TSR_ASK_LOOK) return order(t);
    finish(t, e->logits);
    tsri_leading_count(&t->report, &t->look);
    return 0;
}

int tsri_reading_learn(struct tsri_engine *e, struct tsri_task *t)
{
    if (t->n_learned == t->desc.n_segments) return 0;
    int r = t->run ? 0 : begin(e, t);
    if (!r) r = advance(t);
    if (r) return r;
    finish(t, NULL);
    if (t->report.reasons & TSR_BLEND_REFUSED)
        return tsri_fail(TSR_EFULL, "learn: the cache has no room for segment %u of %u tokens",
                         t->n_learned, t->desc.segments[t->n_learned].n_tokens);
    t->n_learned++;
    e->now.learned_tokens += t->report.n_stored;
    return t->n_learned < t->desc.n_segments;
}

int tsri_reading_keep(struct tsri_engine *e, struct tsri_task *t)
{
    int r = t->run ? 0 : begin(e, t);
    if (!r) r = advance(t);
    if (r) return r;
    finish(t, NULL);
    e->now.kept_tokens += t->report.n_stored;
    return 0;
}

void tsri_reading_stop(struct tsri_engine *e, struct tsri_task *t)
{
    if (t->session) tsr_session_end(t->session);
    tsr_blend_end(t->run, NULL, NULL);
    t->run = NULL;
    tsri_session_pool_give(&e->sessions, t->session, t->spoiled);
    t->session = NULL;
}
