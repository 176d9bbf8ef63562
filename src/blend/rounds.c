/* rounds.c - recomputing more, until the answer can be trusted. Some prompts need nothing, some need
 * half of their tokens. A round selects more tokens by the same scores and computes them all, those
 * of earlier rounds again: what these saw of the new ones was as it was loaded, and keeping it costs
 * more than half of what the round gains (docs/quality.md). So a round gives what one ask at its
 * ratio gives. The gate judges after each round. When it is not sure after the last one, everything
 * that is not exact is computed, as a prefill does. */
#include "blend/passes.h"

#include <math.h>

#define ONE_ROUND UINT32_MAX

/* The only place that knows that prompts with a leading document may have settings of their own. */
static struct tsri_trial trial_of(const struct tsr_profile *p, bool leads)
{
    const struct tsr_lead_profile *lead = &p->lead;
    struct tsri_trial t = {p->rounds,     p->gate,         p->n_rounds,    p->draft_floor,
                           p->gate_limit, p->draft_passes, p->gate_accepts};
    if (!leads) return t;
    if (lead->n_rounds) t.rounds = lead->rounds, t.n_rounds = lead->n_rounds;
    if (tsri_gate_is_fitted(lead->gate)) t.gate = lead->gate;
    if (!isnan(lead->draft_floor)) t.draft_floor = lead->draft_floor;
    if (!isnan(lead->gate_limit)) t.gate_limit = lead->gate_limit;
    if (!isnan(lead->draft_passes)) t.draft_passes = lead->draft_passes;
    if (!isnan(lead->gate_accepts)) t.gate_accepts = lead->gate_accepts;
    return t;
}

/* A trial takes a draft before its round and, where that passes, one after it. It saves all but the
 * round where the answer is accepted, and costs the round where it is not. */
uint32_t tsri_rounds_least(const struct tsr_blend *b, const struct tsr_ask_desc *ask)
{
    bool looks = ask->flags & TSR_ASK_LOOK;
    if (ask->flags & TSR_ASK_RATIO && !looks) return 0; /* what is asked for is done */
    struct tsri_trial t = trial_of(&b->profile, looks || ask->flags & TSR_ASK_LEAD);
    bool gated = ask->flags & (TSR_ASK_GATE | TSR_ASK_LOOK) && tsri_gate_is_fitted(t.gate);
    if (!gated || !t.n_rounds || !(ask->row_s > 0) || !(ask->token_s > 0) || !(t.gate_accepts > 0))
        return 0;
    double drafts_s = (1 + t.draft_passes) * b->profile.draft * ask->token_s;
    double saved = t.gate_accepts - t.draft_passes * t.rounds[0]; /* of a row */
    double least = saved > 0 ? drafts_s / (saved * ask->row_s) : UINT32_MAX;
    return least < UINT32_MAX ? (uint32_t)least + 1 : UINT32_MAX;
}

void tsri_rounds_init(struct tsr_run *run, const struct tsri_selector *selector)
{
    uint32_t flags = run->ask.flags;
    run->trial = trial_of(&run->blend->profile, run->plan.leads);
    const struct tsri_trial *t = &run->trial;
    /* Without a gate nothing would tell when to stop. */
    bool stops = flags & TSR_ASK_ROUNDS || (flags & TSR_ASK_GATE && tsri_gate_is_fitted(t->gate));
    bool able = selector->asks && !(selector->needs & ~run->blend->info.caps);
    run->round = stops && able && t->n_rounds && !(flags & TSR_ASK_RATIO) ? 0 : ONE_ROUND;
    run->ratio = flags & TSR_ASK_RATIO ? run->ask.ratio : run->blend->profile.ratio;
    if (run->round == 0) run->ratio = t->rounds[0];
}

static uint32_t n_more(const struct tsr_run *run)
{
    uint32_t n_selected = tsri_plan_count(&run->plan, TSR_TOKEN_SELECTED);
    uint32_t budget = tsri_select_budget(&run->plan, run->ratio);
    return budget > n_selected ? budget - n_selected : 0;
}

/* The next round that adds a token; false: there is none. */
static bool raise(struct tsr_run *run)
{
    const struct tsri_trial *t = &run->trial;
    while (run->round != ONE_ROUND && run->round + 1 < t->n_rounds) {
        run->ratio = t->rounds[++run->round];
        if (n_more(run)) return true;
    }
    return false;
}

bool tsri_rounds_begin(struct tsr_run *run)
{
    if (run->round != ONE_ROUND) { /* a piece was lost: from the beginning */
        run->round = 0;
        run->ratio = run->trial.rounds[0];
    }
    return n_more(run) || raise(run);
}

/* Everything is exact or computed. */
static bool is_whole(const struct tsr_run *run)
{
    return run->bias == 0 && !tsri_plan_count(&run->plan, TSR_TOKEN_CANDIDATE);
}

static void judge(struct tsr_run *run)
{
    uint64_t start_ns = tsri_now_ns();
    const struct tsri_plan *p = &run->plan;
    struct tsr_gate *g = &run->gate;
    double all = 0, left = 0, fresh = 0;
    *g = TSRI_GATE_UNKNOWN;
    tsri_gate_read(g, run->logits, run->asked ? run->logits_before : NULL,
                   run->blend->info.n_vocab);
    tsri_draft_check(run);
    g->draft = run->asked ? run->draft_worst : NAN;
    g->n_chunks = p->n_chunks;
    g->ratio = run->ratio;
    if (p->n_chunks) g->chunk_tokens = (double)(p->n_candidates + p->n_always) / p->n_chunks;
    if (run->asked) {
        for (uint32_t i = 0; i < p->n_tokens; i++) {
            all += run->mass[i];
            if (p->states[i] == TSR_TOKEN_CANDIDATE) left += run->mass[i];
            if (p->states[i] == TSR_TOKEN_ALWAYS || p->states[i] == TSR_TOKEN_SELECTED)
                fresh += run->mass[i];
        }
        g->mass = all > 0 ? left / all : 0;
        g->fresh = all > 0 ? fresh / all : 0;
    }
    run->sure = tsri_gate_predict(run->trial.gate, g);
    /* The gate knows nothing of rounding. */
    if (is_whole(run) && tsri_gate_is_fitted(run->trial.gate))
        run->sure = run->blend->int8 && tsri_plan_is_rounded(p) ? NAN : 1;
    run->report.judge_s += (double)(tsri_now_ns() - start_ns) * 1e-9;
}

/* Selectors without a question's pass leave the gate nothing to judge by. */
static bool is_enough(const struct tsr_run *run)
{
    const struct tsri_trial *t = &run->trial;
    if (run->ask.flags & TSR_ASK_ROUNDS) return false;
    return !(run->ask.flags & TSR_ASK_GATE) || !tsri_gate_is_fitted(t->gate) ||
           !run->selector->asks || is_whole(run) || run->sure >= t->gate_limit;
}

static void compute_all(struct tsr_run *run)
{
    run->n_draft = 0;
    run->draft_open = false;
    run->selector = tsri_selector_of(TSR_SELECT_FULL);
    run->ratio = 1;
    run->reasons |= TSR_BLEND_FULL;
}

bool tsri_rounds_hopeless(const struct tsr_run *run)
{
    bool first = run->n_rounds == 0 && !(run->ask.flags & TSR_ASK_ROUNDS);
    return first && run->n_draft && run->draft_worst < run->trial.draft_floor;
}

void tsri_rounds_try(struct tsr_run *run)
{
    if (tsri_rounds_hopeless(run)) compute_all(run);
}

bool tsri_rounds_next(struct tsr_run *run)
{
    bool full = run->selector->id == TSR_SELECT_FULL;
    judge(run);
    run->n_rounds += !full;
    if (full || is_enough(run)) return false;
    if (run->asked && raise(run)) {
        run->reasons |= TSR_BLEND_RAISED;
        memcpy(run->logits_before, run->logits,
               run->blend->info.n_vocab * sizeof *run->logits_before);
        return true;
    }
    if (run->ask.flags & TSR_ASK_ROUNDS) return false;
    compute_all(run);
    return true;
}
