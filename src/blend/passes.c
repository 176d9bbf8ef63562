/* passes.c - the passes of a run: which rows they compute, what those may see, and what
 * follows. *fill*: segments that are not cached, after the system prompt, the primer or nothing.
 * *query*: the question alone, over what was loaded; its attention says what matters, and its
 * answer is that of r = 0. *draft*: one token of that answer (draft.c). *blend*: everything that must
 * be computed, seeing everything; in rounds (rounds.c). */
#include "blend/passes.h"

#include <math.h>

/* A question's pass takes in other new text up to so many rows; beyond that it is hidden from the
 * question, where the executor can. */
#define QUERY_NEW_MAX 128u

static bool learns(const struct tsr_run *run)
{
    return run->ask.flags & TSR_ASK_LEARN;
}

static bool looks(const struct tsr_run *run)
{
    return run->ask.flags & TSR_ASK_LOOK;
}

static void add_row(struct tsr_run *run, uint32_t token, uint32_t position)
{
    run->rows[run->n_rows++] = (struct tsr_model_row){run->ask.tokens[token], position, token};
}

static void open_pass(struct tsr_run *run, struct tsr_model_pass *pass, uint32_t n_groups)
{
    run->pass_ns = tsri_now_ns();
    run->pass_wait_s = run->report.wait_s;
    *pass = (struct tsr_model_pass){.size = sizeof *pass,
                                    .rows = run->rows,
                                    .n_rows = run->n_rows,
                                    .groups = run->groups,
                                    .n_groups = n_groups,
                                    .freq_set = run->freq_set};
}

static void see_all(struct tsr_run *run, struct tsr_model_pass *pass)
{
    uint32_t end = run->rows[run->n_rows - 1].slot + 1;
    run->groups[0] = (struct tsr_model_group){run->n_rows, 1, {{0, end}}};
    open_pass(run, pass, 1);
}

/* ---- fill ---- */

/* Tokens at the front of the prompt that a segment sees while it is computed. */
static uint32_t n_seen(const struct tsri_plan *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const struct tsri_piece *piece = &p->pieces[i];
        bool behind_system = !p->n_primer && piece->match.context == TSR_CONTEXT_SAME;
        uint32_t end = piece->leads ? piece->match.prompt_offset : behind_system ? p->n_system : 0;
        if (tsri_piece_is_open(piece) && end > n) n = end;
    }
    return n;
}

/* What a segment sees while it is computed alone. */
static struct tsr_model_group fill_group(const struct tsri_plan *p, const struct tsri_piece *piece)
{
    const struct tsr_match *m = &piece->match;
    struct tsr_model_group g = {m->n_tokens, 1, {{m->prompt_offset, m->n_tokens}}};
    if (piece->leads) g.sees[0] = (struct tsr_range){0, m->prompt_offset + m->n_tokens};
    if (m->context != TSR_CONTEXT_SAME) return g;
    if (!p->n_primer && m->prompt_offset == p->n_system) {
        g.sees[0] = (struct tsr_range){0, p->n_system + m->n_tokens};
        return g;
    }
    g.n_ranges = 2;
    g.sees[1] = g.sees[0];
    g.sees[0] = (struct tsr_range){0, p->n_system};
    if (p->n_primer) g.sees[0] = (struct tsr_range){p->n_tokens, p->n_primer};
    return g;
}

/* The primer alone: what sees it comes in the next pass, because its slots are behind theirs. */
static void begin_primer(struct tsr_run *run, struct tsr_model_pass *pass)
{
    const struct tsri_primer *primer = &run->blend->primer;
    uint32_t first = run->plan.n_tokens, n = primer->n_tokens;
    run->n_rows = n;
    for (uint32_t i = 0; i < n; i++)
        run->rows[i] = (struct tsr_model_row){primer->tokens[i], i, first + i};
    run->groups[0] = (struct tsr_model_group){n, 1, {{first, n}}};
    open_pass(run, pass, 1);
}

/* Text from token `from` on that is no piece of its own, and is seen by what comes at `to`. Returns
 * how many groups it makes. */
static uint32_t add_unclaimed(struct tsr_run *run, uint32_t from, uint32_t to, uint32_t n_groups)
{
    uint32_t before = run->n_rows;
    for (uint32_t i = from; i < to; i++)
        if (run->plan.states[i] == TSR_TOKEN_NEW) add_row(run, i, i);
    if (run->n_rows == before) return 0;
    run->groups[n_groups] = (struct tsr_model_group){run->n_rows - before, 1, {{0, to}}};
    return 1;
}

static bool begin_fill(struct tsr_run *run, struct tsr_model_pass *pass)
{
    const struct tsri_plan *p = &run->plan;
    uint32_t n_groups = 0, at = 0, seen = n_seen(p);
    run->n_rows = 0;
    run->fills_primer = tsri_plan_primes(p) && !tsri_primer_place(run);
    if (run->fills_primer) {
        begin_primer(run, pass);
        return true;
    }
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const struct tsri_piece *piece = &p->pieces[i];
        if (!tsri_piece_is_open(piece)) continue;
        n_groups +=
            add_unclaimed(run, at, tsri_min_u32(seen, piece->match.prompt_offset), n_groups);
        at = piece->match.prompt_offset + piece->match.n_tokens;
        run->groups[n_groups++] = fill_group(p, piece);
        for (uint32_t k = 0; k < piece->match.n_tokens; k++)
            add_row(run, piece->match.prompt_offset + k, piece->match.base + k);
    }
    if (!run->n_rows) return false;
    open_pass(run, pass, n_groups);
    return true;
}

struct tsri_fill tsri_pass_fill(const struct tsr_run *run, bool exact)
{
    const struct tsri_primer *primer = &run->blend->primer;
    const struct tsr_blend *b = run->blend;
    return (struct tsri_fill){.client = b->client,
                              .space = exact ? b->prefixes : b->segments,
                              .device = run->mover,
                              .layout = &run->layout,
                              .slots = run->ask.slots,
                              .rope = &b->info.rope,
                              .freq_set = run->freq_set,
                              .int8 = b->int8 && !exact,
                              .context = primer->n_tokens ? primer->tokens : run->ask.tokens,
                              .n_context =
                                  primer->n_tokens ? primer->n_tokens : run->plan.n_system};
}

static int after_fill(struct tsr_run *run)
{
    struct tsri_fill fill = tsri_pass_fill(run, false);
    fill.token_s = (double)(tsri_now_ns() - run->pass_ns) * 1e-9 / run->n_rows;
    if (run->fills_primer) {
        run->phase = TSRI_PHASE_FILL; /* now the segments */
        tsri_primer_keep(run, fill.token_s);
        return 0;
    }
    for (uint32_t i = 0; i < run->plan.n_pieces; i++) {
        struct tsri_piece *piece = &run->plan.pieces[i];
        if (!tsri_piece_is_open(piece)) continue;
        piece->placed = piece->leads;
        if (piece->placed) continue;
        int e = tsri_fill_settle(&fill, &run->ask, &run->plan, i, &piece->placed);
        if (!piece->placed) return e;
        if (e < 0) run->reasons |= TSR_BLEND_REFUSED;
        if (e > 0) run->report.n_stored += (uint32_t)e;
    }
    return 0;
}

/* ---- query ---- */

/* The bias of this run, from what it was asked for or the profile. */
static void choose_bias(struct tsr_run *run)
{
    const struct tsri_plan *p = &run->plan;
    run->bias = run->ask.bias;
    if (!(run->ask.flags & TSR_ASK_BIAS))
        run->bias = tsr_profile_bias(&run->blend->profile, run->ratio, p->n_chunks);
    if (run->selector->id == TSR_SELECT_FULL || p->n_chunks == 0) run->bias = 0;
    bool able = run->blend->info.caps & TSR_MODEL_BIAS && !(run->ask.flags & TSR_ASK_CONTEXT);
    if (run->bias != 0 && !able) {
        run->reasons |= TSR_BLEND_UNABLE;
        run->bias = 0;
    }
}

/* For tokens of pieces that are not exact: all of them, or those that stay as they were loaded. */
static void paint_bias(struct tsr_run *run, bool all)
{
    const struct tsri_plan *p = &run->plan;
    choose_bias(run);
    memset(run->bias_row, 0, p->n_tokens * sizeof *run->bias_row);
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const struct tsri_piece *piece = &p->pieces[i];
        if (piece->exact || piece->kind == TSRI_PIECE_LOST) continue;
        uint32_t at = piece->match.prompt_offset;
        for (uint32_t k = at; k < at + piece->match.n_tokens; k++)
            if (all || p->states[k] == TSR_TOKEN_CANDIDATE) run->bias_row[k] = (float)run->bias;
    }
}

static void give_bias(const struct tsr_run *run, struct tsr_model_pass *pass)
{
    pass->bias = run->bias_row;
    pass->n_bias = run->plan.n_tokens;
    for (uint32_t i = 0; i < run->n_rows; i++)
        pass->n_bias_rows += run->rows[i].slot >= run->plan.question;
}

static bool begin_query(struct tsr_run *run, struct tsr_model_pass *pass)
{
    const struct tsri_plan *p = &run->plan;
    if (!run->selector->asks || !tsri_rounds_begin(run)) return false;
    uint32_t n_new = tsri_plan_count(p, TSR_TOKEN_NEW), n_asked = p->n_tokens - p->question;
    n_asked = tsri_min_u32(n_asked, run->blend->profile.query_rows);
    bool hides = n_new > QUERY_NEW_MAX && run->blend->info.caps & TSR_MODEL_BIAS;
    memset(run->mass, 0, p->n_tokens * sizeof *run->mass);
    paint_bias(run, true);
    run->n_rows = 0;
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        if (p->states[i] != TSR_TOKEN_NEW) continue;
        if (!hides || i >= p->n_tokens - n_asked)
            add_row(run, i, i);
        else
            run->bias_row[i] = -INFINITY;
    }
    if (hides) run->draft_max = 0; /* an answer without that text says nothing */
    see_all(run, pass);
    pass->n_mass_rows = run->n_mass_rows = tsri_min_u32(n_asked, run->n_rows);
    if (hides || run->bias != 0) give_bias(run, pass);
    return true;
}

/* A third is written with three digits: so much below a layer's number still means that layer. */
#define LAYER_SLACK 0.05

static bool weighs(const struct tsr_run *run, uint32_t layer)
{
    const double *share = run->blend->profile.query_layers, n = run->blend->info.n_layers;
    double first = fmin(floor(share[0] * n + LAYER_SLACK), n - 1);
    double end = fmax(floor(share[1] * n + LAYER_SLACK), first + 1);
    return layer >= first && layer < end;
}

float *tsri_pass_mass(const struct tsr_run *run, uint32_t layer)
{
    bool question = run->phase == TSRI_PHASE_QUERY;
    bool draft = run->phase == TSRI_PHASE_DRAFT && tsri_draft_weighs(run);
    if (!(question || draft) || !weighs(run, layer)) return NULL;
    return question ? run->mass : run->draft_mass;
}

/* ---- draft ---- */

static void begin_draft(struct tsr_run *run, struct tsr_model_pass *pass)
{
    run->n_rows = 0;
    tsri_draft_add_last(run);
    see_all(run, pass);
    pass->flags = TSR_PASS_DECODE;
    pass->n_mass_rows = tsri_draft_weighs(run) ? run->n_rows : 0;
}

/* ---- blend ---- */

/* What a row of the question and a token of the draft look at, in the mean of each. */
static void score(struct tsr_run *run)
{
    float of_row = run->n_mass_rows ? 1.0f / (float)run->n_mass_rows : 0;
    float of_token = run->n_draft_weighed ? 1.0f / (float)run->n_draft_weighed : 0;
    for (uint32_t i = 0; i < run->plan.n_tokens; i++)
        run->scores[i] = run->mass[i] * of_row + run->draft_mass[i] * of_token;
}

static int choose(struct tsr_run *run)
{
    uint64_t start_ns = tsri_now_ns();
    struct tsri_select s = {.plan = &run->plan,
                            .device = run->blend->device,
                            .ratio = run->ratio,
                            .scores = run->scores,
                            .memory = run->scratch};
    tsri_plan_paint(&run->plan);
    /* Scores that were not asked for would be all zero. */
    if (run->selector->asks && !run->asked) return 0;
    score(run);
    int e = run->selector->choose(&s);
    if (run->selector->id == TSR_SELECT_FULL && run->blend->int8)
        tsri_plan_drop_rounded(&run->plan);
    run->report.select_s += (double)(tsri_now_ns() - start_ns) * 1e-9;
    return e;
}

static bool begin_blend(struct tsr_run *run, struct tsr_model_pass *pass)
{
    const struct tsri_plan *p = &run->plan;
    uint32_t end = run->ask.flags & TSR_ASK_CONTEXT ? p->question : p->n_tokens;
    run->n_rows = 0;
    for (uint32_t i = 0; i < end; i++)
        if (tsri_plan_computes(p, i)) add_row(run, i, i);
    /* Which rows hkvd lets go is not known yet. */
    paint_bias(run, run->selector->checks || !run->blend->profile.bias_reused);
    if (!run->n_rows) return false;
    tsri_draft_add_rows(run);
    see_all(run, pass);
    if (run->bias != 0) give_bias(run, pass);
    return true;
}

bool tsri_pass_begin(struct tsr_run *run, struct tsr_model_pass *pass)
{
    if (run->phase == TSRI_PHASE_FILL) {
        if (begin_fill(run, pass)) return true;
        run->phase = learns(run) ? TSRI_PHASE_DONE : TSRI_PHASE_QUERY;
        if (learns(run)) return false;
    }
    if (run->phase == TSRI_PHASE_QUERY) {
        run->asked = false;
        if (begin_query(run, pass)) return true;
        run->phase = looks(run) ? TSRI_PHASE_DONE : TSRI_PHASE_BLEND;
        if (looks(run)) return false;
        run->failed = choose(run);
        if (run->failed) return false;
    }
    if (run->phase == TSRI_PHASE_DRAFT) {
        begin_draft(run, pass);
        return true;
    }
    return begin_blend(run, pass);
}

/* ---- checks ---- */

const struct tsr_check *tsri_pass_check_of(const struct tsr_run *run, uint32_t layer)
{
    const struct tsr_profile *p = &run->blend->profile;
    for (uint32_t i = 0; i < p->n_checks; i++)
        if (p->checks[i].layer == layer) return &p->checks[i];
    return NULL;
}

/* Of all candidates, not of those that an earlier check has left. */
static double check_ratio(const struct tsr_run *run, const struct tsr_check *check, uint32_t n)
{
    double ratio = check->ratio > 0 ? check->ratio : run->ratio;
    return n ? ratio * run->plan.n_candidates / n : 0;
}

int tsri_pass_narrow(struct tsr_run *run)
{
    struct tsri_plan *p = &run->plan;
    const struct tsr_check *check = tsri_pass_check_of(run, run->layer);
    float *deviation = run->scratch;
    uint32_t n = 0, n_rows = 0, next = 0;
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (p->states[run->rows[i].slot] == TSR_TOKEN_SELECTED)
            deviation[n++] = run->dev_k[i] + run->dev_v[i];
    int n_kept = tsri_select_check(run->blend->device, check, check_ratio(run, check, n), deviation,
                                   n, run->kept);
    if (n_kept < 0) return n_kept;
    uint32_t candidate = 0;
    for (uint32_t i = 0; i < run->n_rows; i++) {
        uint8_t *state = &p->states[run->rows[i].slot];
        if (*state == TSR_TOKEN_SELECTED) {
            bool stays = next < (uint32_t)n_kept && run->kept[next] == candidate;
            next += stays;
            candidate++;
            if (!stays) {
                *state = TSR_TOKEN_CANDIDATE;
                continue;
            }
        }
        run->rows[n_rows] = run->rows[i];
        run->keep[n_rows++] = i;
    }
    bool all = n_rows == run->n_rows;
    run->n_rows = n_rows;
    return all ? 0 : (int)n_rows;
}

/* ---- afterwards ---- */

/* Tokens at the front whose KV is the same bits as a prefill gives. */
static uint32_t exact_front(const struct tsr_run *run)
{
    const struct tsri_plan *p = &run->plan;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_pieces && run->blend->int8; i++)
        if (p->pieces[i].exact && p->pieces[i].match.kind != TSR_KIND_PREFIX) return 0;
    while (n < p->n_tokens && p->states[n] != TSR_TOKEN_CANDIDATE)
        n++;
    /* Rows of the question that were computed with a bias, or over what was loaded only, are not
     * what a prefill gives. */
    bool question = run->bias == 0 && !(run->ask.flags & TSR_ASK_CONTEXT) && !run->ask.slots;
    return question ? n : tsri_min_u32(n, p->question);
}

static void store_prefix(struct tsr_run *run)
{
    struct tsri_fill fill = tsri_pass_fill(run, true);
    uint32_t n = exact_front(run), block = fill.client ? tsri_space_block_tokens(fill.space) : 0;
    if (!(run->ask.flags & TSR_ASK_PREFIX) || !fill.client) return;
    uint32_t from = run->n_prefix / block * block;
    if (n < from + block) return;
    int e = tsri_fill_prefix(&fill, run->ask.tokens, from, n);
    if (e < 0) run->reasons |= TSR_BLEND_REFUSED;
    if (e > 0) run->report.n_stored += (uint32_t)e;
}

/* With the answer before it, as far as it is wanted. */
static int begin_round(struct tsr_run *run)
{
    if (tsri_rounds_hopeless(run)) run->draft_open = false;
    run->phase = run->draft_open ? TSRI_PHASE_DRAFT : TSRI_PHASE_BLEND;
    if (run->draft_open) return 0;
    tsri_rounds_try(run);
    return choose(run);
}

/* A pass that had rows is over. */
static void count_time(struct tsr_run *run)
{
    struct tsr_blend_report *r = &run->report;
    double *const parts[] = {[TSRI_PHASE_FILL] = &r->fill_s,
                             [TSRI_PHASE_QUERY] = &r->query_s,
                             [TSRI_PHASE_DRAFT] = &r->draft_s,
                             [TSRI_PHASE_BLEND] = &r->blend_s};
    if (!run->pass_ns) return;
    *parts[run->phase] +=
        (double)(tsri_now_ns() - run->pass_ns) * 1e-9 - (r->wait_s - run->pass_wait_s);
}

int tsri_pass_after(struct tsr_run *run)
{
    count_time(run);
    run->stage = TSRI_STAGE_PASS;
    run->loaded = true;
    if (run->phase == TSRI_PHASE_FILL) {
        run->phase = learns(run) ? TSRI_PHASE_DONE : TSRI_PHASE_QUERY;
        return after_fill(run);
    }
    if (run->phase == TSRI_PHASE_DONE) return 0;
    if (run->phase == TSRI_PHASE_QUERY) {
        run->asked = true;
        if (looks(run)) {
            run->phase = TSRI_PHASE_DONE;
            return 0;
        }
        tsri_draft_begin(run);
        return begin_round(run);
    }
    if (run->phase == TSRI_PHASE_DRAFT) {
        tsri_draft_add(run);
        return begin_round(run);
    }
    if (!(run->ask.flags & TSR_ASK_CONTEXT) && tsri_rounds_next(run)) return begin_round(run);
    store_prefix(run);
    run->phase = TSRI_PHASE_DONE;
    return 0;
}
