/* draft.c - does recomputing change the answer? The first token of an answer often says little: the
 * words that matter come later. So the answer is decoded from what is there before a round, and the
 * round computes its tokens along with its own rows: each of them shows what the round would have
 * said in its place. An answer that both give, with no token near to another one, is seldom another
 * than a prefill's (docs/quality.md). A token costs a decoding step, and a row in each round.
 * What the draft looks at is what the answer is made of, so it helps to choose tokens as well. */
#include "blend/passes.h"

#include <math.h>

/* Decoding steps have no bias: it is for rows of the question. */
static bool is_biased(const struct tsr_run *run)
{
    return run->ask.flags & TSR_ASK_BIAS ? run->ask.bias != 0 : run->blend->profile.bias.n > 0;
}

uint32_t tsri_draft_max(const struct tsr_run *run)
{
    uint32_t flags = run->ask.flags, n = run->ask.n_tokens;
    bool judged =
        flags & TSR_ASK_ROUNDS || (flags & TSR_ASK_GATE && tsri_gate_is_fitted(run->trial.gate));
    if (!judged || !run->selector->asks || is_biased(run)) return 0;
    const struct tsr_kv_layout *layout;
    uint64_t first = tsri_run_behind(run, &layout), context = run->blend->info.context - n;
    uint64_t slots = layout->n_slots - first, room = slots < context ? slots : context;
    uint32_t most = tsri_min_u32(run->blend->profile.draft, TSR_PROFILE_DRAFT_MAX);
    return room < most ? (uint32_t)room : most;
}

static bool is_end(const struct tsr_run *run, uint32_t token)
{
    const struct tsr_blend *b = run->blend;
    return b->model && b->info.caps & TSR_MODEL_TEXT && tsr_model_is_end(b->model, token);
}

/* The most likely token, as the answer's token `at`; returns its margin. */
static double put(struct tsr_run *run, uint32_t at, const float *logits)
{
    double margin = tsri_logits_margin(logits, run->blend->info.n_vocab, &run->draft[at]);
    run->n_draft = at + 1;
    run->draft_open = run->n_draft < run->draft_max && !is_end(run, run->draft[at]);
    return margin;
}

void tsri_draft_begin(struct tsr_run *run)
{
    run->n_draft = 0;
    run->draft_open = false;
    run->n_draft_weighed = 0;
    memset(run->draft_mass, 0, run->plan.n_tokens * sizeof *run->draft_mass);
    run->draft_worst = run->draft_max ? put(run, 0, run->logits_before) : NAN;
}

bool tsri_draft_weighs(const struct tsr_run *run)
{
    return run->blend->profile.draft_selects;
}

static void add_row(struct tsr_run *run, uint32_t i)
{
    uint32_t at = run->plan.n_tokens + i;
    run->rows[run->n_rows++] = (struct tsr_model_row){run->draft[i], at, at};
}

void tsri_draft_add_last(struct tsr_run *run)
{
    add_row(run, run->n_draft - 1);
}

void tsri_draft_add(struct tsr_run *run)
{
    run->n_draft_weighed += tsri_draft_weighs(run);
    double margin = put(run, run->n_draft, run->logits);
    if (run->n_rounds == 0) run->draft_worst = fmin(run->draft_worst, margin);
}

/* The last token is only compared: nothing is asked after it. */
uint32_t tsri_draft_rows(const struct tsr_run *run)
{
    return run->n_draft ? run->n_draft - 1 : 0;
}

void tsri_draft_add_rows(struct tsr_run *run)
{
    for (uint32_t i = 0; i < tsri_draft_rows(run); i++)
        add_row(run, i);
}

void tsri_draft_check(struct tsr_run *run)
{
    struct tsr_gate *g = &run->gate;
    uint32_t n_vocab = run->blend->info.n_vocab, n = run->n_draft ? run->n_draft : 1, i = 0;
    bool agree = run->n_draft > 0;
    g->worst = 1;
    g->doubt = g->low = 0;
    do {
        const float *logits = run->logits + (size_t)i * n_vocab;
        uint32_t token = 0;
        double margin = run->n_draft ? tsri_logits_margin(logits, n_vocab, &token) : g->margin;
        g->worst = fmin(g->worst, margin);
        g->doubt += log(margin + TSRI_DOUBT_MIN);
        g->low += margin < TSRI_MARGIN_LOW;
        agree = agree && token == run->draft[i];
        i++;
    } while (agree && i < n);
    g->doubt /= i;
    g->agree = agree;
    run->draft_open = false;
    if (run->n_draft && !agree) (void)put(run, i - 1, run->logits + (size_t)(i - 1) * n_vocab);
}
