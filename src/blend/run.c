/* run.c - one prompt on its way through its passes, as a machine that says what to do next. The
 * stages of a pass are: begin, the layers (each after the feed has it, with checks before some),
 * logits, end, and what follows from it. When the feed loses a piece, the pass is ended, the plan
 * changed, and everything that is not in place yet starts over. Every piece can be lost once, so it
 * ends. */
#include "blend/passes.h"

#include <math.h>

/* ---- opening ---- */

static int check_segments(const struct tsr_ask_desc *ask)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < ask->n_segments; i++) {
        const struct tsr_range *s = &ask->segments[i];
        if (!s->n_tokens || s->offset < end)
            return tsri_fail(TSR_EPROMPT,
                             "segment %u: %u tokens at %u, but the previous one ends at %llu", i,
                             s->n_tokens, s->offset, (unsigned long long)end);
        end = (uint64_t)s->offset + s->n_tokens;
    }
    if (end >= ask->n_tokens)
        return tsri_fail(TSR_EPROMPT, "no question after the last segment, which ends at %llu",
                         (unsigned long long)end);
    if (ask->n_context && (ask->n_context < end || ask->n_context >= ask->n_tokens))
        return tsri_fail(TSR_EPROMPT,
                         "context of %u tokens in a prompt of %u whose segments end at %llu",
                         ask->n_context, ask->n_tokens, (unsigned long long)end);
    if (ask->system && (!ask->n_segments || ask->segments[0].offset))
        return tsri_fail(TSR_EPROMPT, "the system prompt must be at token 0");
    return 0;
}

int tsri_ask_check(const struct tsr_blend *b, const struct tsr_ask_desc *ask, uint64_t n_slots)
{
    if (!ask || ask->size < sizeof *ask || !ask->tokens || !ask->n_tokens ||
        (ask->n_segments && !ask->segments))
        return tsri_fail(TSR_EINVAL, "ask: size, tokens or segments are missing");
    if (ask->n_segments > TSRI_SEGMENTS_MAX)
        return tsri_fail(TSR_ERANGE, "ask: %u segments, limit %u", ask->n_segments,
                         TSRI_SEGMENTS_MAX);
    uint64_t max = n_slots < b->info.context ? n_slots : b->info.context;
    if (ask->n_tokens > max)
        return tsri_fail(TSR_ERANGE, "prompt of %u tokens, context limit %llu", ask->n_tokens,
                         (unsigned long long)max);
    for (uint32_t i = 0; i < ask->n_tokens; i++)
        if (ask->tokens[i] >= b->info.n_vocab)
            return tsri_fail(TSR_EINVAL, "ask: token %u is %u, outside the vocabulary of %u", i,
                             ask->tokens[i], b->info.n_vocab);
    if (ask->selector && !tsri_selector_of(ask->selector))
        return tsri_fail(TSR_EINVAL, "ask: selector %u", ask->selector);
    if (!(ask->ratio >= 0 && ask->ratio <= 1) || !isfinite(ask->bias))
        return tsri_fail(TSR_EINVAL, "ask: ratio %g, bias %g", ask->ratio, ask->bias);
    if (ask->flags & TSR_ASK_CONTEXT && ask->flags & (TSR_ASK_GATE | TSR_ASK_ROUNDS))
        return tsri_fail(TSR_EINVAL, "ask: a gate and rounds need the logits of the question");
    if (b->traffic && ask->flags & TSR_ASK_PREFIX)
        return tsri_fail(TSR_EINVAL, "ask: prefixes are those of plain requests");
    int e = tsri_extra_check(ask->extra, ask->n_extra, ask->n_tokens);
    for (uint32_t i = 0; !e && i < ask->n_extra; i++)
        if (ask->extra[i].kind == TSR_EXTRA_MEDIA) e = tsri_fail(TSR_EINVAL, "ask: media");
    if (e) return e;
    return check_segments(ask);
}

/* An engine's own memory; that of a session was checked when it was opened. */
static int check_memory(const struct tsr_blend *b, const struct tsr_kv_layout *l)
{
    const struct tsr_model_info *i = &b->info;
    bool fits = l->size >= sizeof *l && l->n_layers == i->n_layers && l->n_planes == 2 &&
                l->planes[0].rope_dims == i->rope.dims && !l->planes[1].rope_dims;
    for (uint32_t p = 0; fits && p < 2; p++)
        fits = l->planes[p].dtype == i->kv_dtype && l->planes[p].n_heads == i->n_kv_heads &&
               l->planes[p].dim == i->head_dim;
    if (!fits) return tsri_fail(TSR_EINVAL, "blend: the memory layout does not match the model");
    return tsri_layout_check(l);
}

/* Memory of an accelerator is reached by the cache's device. */
static int choose_mover(struct tsr_run *run)
{
    const struct tsr_cache *c = run->blend->cache;
    struct tsri_device *device = c ? tsri_cache_device(c) : NULL;
    run->mover = run->blend->device;
    if (run->layout.memory != TSR_MEMORY_DEVICE) return 0;
    if (!c && !(run->ask.flags & TSR_ASK_FILL)) return 0; /* nothing is moved */
    if (!device || !(tsri_device_caps(device) & TSR_DEVICE_SEPARATE))
        return tsri_fail(
            TSR_EDEVICE,
            "blend: KV is in device memory, but the cache has no such device (option device)");
    run->mover = device;
    return 0;
}

uint32_t tsri_run_behind(const struct tsr_run *run, const struct tsr_kv_layout **layout)
{
    *layout = run->ask.slots ? &run->rest : &run->layout;
    return run->ask.slots ? run->ask.n_tokens - run->ask.n_context : run->ask.n_tokens;
}

/* With slots for the context, what follows it is in memory of its own. */
static int check_places(const struct tsr_blend *b, const struct tsr_ask_desc *ask,
                        const struct tsr_kv_layout *layout)
{
    if (!ask->slots) return 0;
    if (!ask->n_context || !ask->rest)
        return tsri_fail(TSR_EINVAL, "ask: slots need n_context and rest");
    int e = tsri_slots_check(ask->slots, ask->n_context, layout->n_slots, NULL);
    if (!e) e = check_memory(b, ask->rest);
    if (e) return e;
    if (ask->rest->memory != layout->memory)
        return tsri_fail(TSR_EINVAL, "ask: rest is in another kind of memory");
    uint32_t n = ask->n_tokens - ask->n_context;
    if (ask->rest->n_slots < n)
        return tsri_fail(TSR_ERANGE, "ask: rest has %llu slots for a question of %u tokens",
                         (unsigned long long)ask->rest->n_slots, n);
    for (uint32_t i = 0; i < ask->n_context; i++)
        if (ask->slots[i] < 0) return tsri_fail(TSR_EINVAL, "ask: token %u has no slot", i);
    return 0;
}

static void resolve(struct tsr_run *run)
{
    const struct tsr_profile *p = &run->blend->profile;
    uint32_t id = run->ask.selector ? run->ask.selector : p->selector;
    tsri_rounds_init(run, tsri_selector_of(id));
    if (run->ratio >= 1) id = TSR_SELECT_FULL;
    if (run->ratio <= 0 && id != TSR_SELECT_FULL) id = TSR_SELECT_NONE;
    run->selector = tsri_selector_of(id);
    if (run->selector->needs & ~run->blend->info.caps) {
        run->selector = tsri_selector_of(TSR_SELECT_LINK);
        run->reasons |= TSR_BLEND_UNABLE;
    }
    if (run->selector->id == TSR_SELECT_FULL) run->ratio = 1;
    if (run->selector->id == TSR_SELECT_NONE) run->ratio = 0;
}

static int allocate(struct tsr_run *run)
{
    size_t n = run->ask.n_tokens, vocab = run->blend->info.n_vocab;
    run->draft_max = tsri_draft_max(run);
    size_t more =
        run->draft_max > run->blend->primer.n_tokens ? run->draft_max : run->blend->primer.n_tokens;
    run->rows = tsri_alloc(n + more, sizeof *run->rows);
    run->groups = tsri_alloc((size_t)run->ask.n_segments + 3, sizeof *run->groups);
    run->keep = tsri_alloc(n + more, 2 * sizeof *run->keep);
    run->mass = tsri_alloc(n, 6 * sizeof(float));
    run->logits = tsri_alloc(vocab, (2 + run->draft_max) * sizeof(float));
    run->draft = tsri_alloc((size_t)run->draft_max + 1, sizeof *run->draft);
    run->scratch = tsri_alloc(1, tsri_select_bytes((uint32_t)n));
    if (!run->rows || !run->groups || !run->keep || !run->mass || !run->logits || !run->scratch ||
        !run->draft)
        return TSR_ENOMEM;
    run->kept = run->keep + n + more;
    run->bias_row = run->mass + n;
    run->dev_k = run->bias_row + n;
    run->dev_v = run->dev_k + n;
    run->draft_mass = run->dev_v + n;
    run->scores = run->draft_mass + n;
    run->logits_before = run->logits + (1 + run->draft_max) * vocab;
    return 0;
}

/* ---- looking up and loading ---- */

static struct tsr_prompt prompt_of(const struct tsr_run *run)
{
    const struct tsr_ask_desc *ask = &run->ask;
    const struct tsri_primer *primer = &run->blend->primer;
    struct tsr_prompt p = {.size = sizeof p,
                           .tokens = ask->tokens,
                           .n_tokens = ask->n_tokens,
                           .segments = ask->segments,
                           .n_segments = ask->n_segments};
    if (ask->n_segments) p.flags |= TSR_PROMPT_SEGMENTS;
    if (primer->n_tokens) {
        p.context = primer->tokens;
        p.n_context = primer->n_tokens;
    }
    if (ask->system && (run->same_context || primer->n_tokens)) p.flags |= TSR_PROMPT_CONTEXT;
    if (ask->flags & TSR_ASK_ANY) p.flags |= TSR_PROMPT_ANY;
    bool apart = run->blend->prefixes != run->blend->segments;
    if (ask->flags & TSR_ASK_PREFIX && !apart) p.flags |= TSR_PROMPT_PREFIX;
    return p;
}

static int make_plan(struct tsr_run *run)
{
    uint32_t n_primer = run->blend->primer.n_tokens;
    struct tsri_known known = {0};
    struct tsr_prompt prompt = prompt_of(run);
    const struct tsr_kv_layout *layout;
    uint64_t first_behind = tsri_run_behind(run, &layout);
    uint64_t t0 = tsri_now_ns();
    int e = run->blend->cache ? tsri_known_find(&known, run->blend, &run->ask, &prompt) : 0;
    run->report.lookup_s = (double)(tsri_now_ns() - t0) * 1e-9;
    run->n_prefix = known.n_prefix;
    struct tsri_plan_desc desc = {.ask = &run->ask,
                                  .profile = &run->blend->profile,
                                  .matches = known.matches,
                                  .n_matches = known.n,
                                  .n_prefix_tokens = known.n_prefix,
                                  .selector = run->selector->id,
                                  .freq_set = run->freq_set,
                                  .min_tokens = run->blend->min_tokens,
                                  .trial_least = tsri_rounds_least(run->blend, &run->ask),
                                  .same_context = run->same_context,
                                  .n_primer = n_primer,
                                  .context = run->blend->info.context,
                                  .no_room = first_behind + n_primer > layout->n_slots,
                                  .rounded = run->blend->int8};
    if (!e) e = tsri_plan_init(&run->plan, &desc);
    tsri_known_fini(&known);
    return e;
}

struct tsri_feed_desc tsri_run_feed(const struct tsr_run *run, const struct tsr_prompt *prompt,
                                    const struct tsri_feed_range *ranges, uint32_t n)
{
    return (struct tsri_feed_desc){.cache = run->blend->cache,
                                   .prompt = prompt,
                                   .device = run->mover,
                                   .layout = &run->layout,
                                   .rope = &run->blend->info.rope,
                                   .freq_set = run->freq_set,
                                   .ranges = ranges,
                                   .n_ranges = n,
                                   .compute = run->ask.compute,
                                   .spare = &run->blend->spare};
}

int tsri_run_load(struct tsr_run *run)
{
    const struct tsri_plan *p = &run->plan;
    const struct tsr_blend *b = run->blend;
    run->feed_pieces = tsri_alloc((size_t)p->n_pieces + 1, sizeof *run->feed_pieces);
    struct tsri_feed_range *ranges = tsri_alloc((size_t)p->n_pieces + 1, sizeof *ranges);
    int e = run->feed_pieces && ranges ? 0 : TSR_ENOMEM;
    for (uint32_t i = 0; !e && i < p->n_pieces; i++) {
        const struct tsri_piece *piece = &p->pieces[i];
        if (piece->kind != TSRI_PIECE_LOAD) continue;
        bool prefix = piece->match.kind == TSR_KIND_PREFIX, plain = prefix && b->traffic;
        ranges[run->n_feed] = (struct tsri_feed_range){.match = piece->match,
                                                       .space = plain    ? b->traffic
                                                                : prefix ? b->prefixes
                                                                         : b->segments,
                                                       .int8 = b->int8 && !prefix,
                                                       .exact = piece->exact,
                                                       .plain = plain};
        if (run->ask.slots) ranges[run->n_feed].slots = run->ask.slots + piece->match.prompt_offset;
        run->feed_pieces[run->n_feed++] = i;
    }
    struct tsr_prompt prompt = prompt_of(run);
    if (run->ask.flags & TSR_ASK_PREFIX) prompt.flags |= TSR_PROMPT_PREFIX;
    struct tsri_feed_desc desc = tsri_run_feed(run, &prompt, ranges, run->n_feed);
    desc.extra = run->ask.extra;
    desc.n_extra = run->ask.n_extra;
    if (!e && run->n_feed) e = tsri_feed_open(&run->feed, &desc);
    tsri_free(ranges);
    return e;
}

/* ---- the run ---- */

static void run_free(struct tsr_run *run)
{
    void *const all[] = {run->rows,    run->groups,      run->keep,  run->mass,  run->logits,
                         run->scratch, run->feed_pieces, run->draft, run->chunks};
    tsri_feed_close(run->feed);
    tsri_plan_fini(&run->plan);
    for (size_t i = 0; i < TSRI_COUNT(all); i++)
        tsri_free(all[i]);
    tsri_free(run);
}

int tsri_run_open(struct tsr_run **out, struct tsr_blend *b, const struct tsr_ask_desc *ask,
                  const struct tsr_kv_layout *layout, uint32_t rope_tokens)
{
    int e = check_memory(b, layout);
    if (!e) e = tsri_ask_check(b, ask, layout->n_slots);
    if (!e) e = check_places(b, ask, layout);
    if (e) return e;
    struct tsr_run *run = tsri_alloc(1, sizeof *run);
    if (!run) return TSR_ENOMEM;
    run->blend = b;
    run->ask = *ask;
    run->layout = *layout;
    if (ask->slots) run->rest = *ask->rest;
    run->started_ns = tsri_now_ns();
    if (ask->flags & TSR_ASK_LEARN) run->ask.flags = TSR_ASK_LEARN | TSR_ASK_FILL | TSR_ASK_CONTEXT;
    if (ask->flags & TSR_ASK_LOOK) tsri_order_look(&run->ask);
    run->freq_set = tsri_rope_set_id(&b->info.rope, rope_tokens);
    run->same_context = b->profile.context == TSR_CONTEXT_SAME;
    run->gate = TSRI_GATE_UNKNOWN;
    run->sure = NAN;
    resolve(run);
    e = choose_mover(run);
    if (!e) e = make_plan(run);
    if (run->plan.leads) resolve(run); /* with rounds and a gate for such prompts */
    if (!e) e = allocate(run);
    if (e) {
        run_free(run);
        return e;
    }
    *out = run;
    return 0;
}

int tsr_blend_start(struct tsr_run **out, struct tsr_blend *b, const struct tsr_ask_desc *ask,
                    const struct tsr_kv_layout *layout)
{
    if (!out || !b) return tsri_fail(TSR_EINVAL, "blend: out or blend is NULL");
    *out = NULL;
    if (!layout && ask && ask->session) layout = tsr_session_layout(ask->session);
    if (!layout) return tsri_fail(TSR_EINVAL, "blend: session or layout is required");
    struct tsr_ask_desc cut;
    struct tsr_range *chunks;
    int e = tsri_chunked_split(b, ask, &cut, &chunks);
    if (e) return e;
    e = tsri_run_open(out, b, chunks ? &cut : ask, layout, ask ? ask->n_tokens : 0);
    if (*out)
        (*out)->chunks = chunks;
    else
        tsri_free(chunks);
    if (!e) e = tsri_run_load(*out);
    if (e && *out) {
        run_free(*out);
        *out = NULL;
    }
    return e;
}

const uint8_t *tsr_blend_states(const struct tsr_run *run)
{
    return run->plan.states;
}

/* ---- losing pieces ---- */

/* Waits for a layer; true when pieces were lost since. Nothing is computed over what is missing. */
static bool lost_pieces(struct tsr_run *run, uint32_t layer)
{
    if (!run->feed || run->loaded) return false;
    uint32_t timeout = run->ask.timeout_ms ? run->ask.timeout_ms : TSRI_TIMEOUT_MS;
    uint64_t t0 = tsri_now_ns();
    int n_failed = tsri_feed_wait(run->feed, layer, timeout);
    run->report.wait_s += (double)(tsri_now_ns() - t0) * 1e-9;
    if (n_failed == run->n_lost) return false;
    run->n_lost = n_failed;
    for (uint32_t i = 0; i < run->n_feed; i++) {
        uint32_t piece = run->feed_pieces[i];
        if (run->plan.pieces[piece].failed || tsri_feed_result(run->feed, i) == 0) continue;
        run->report.n_failed += run->plan.pieces[piece].match.n_tokens;
        tsri_plan_lose(&run->plan, piece);
    }
    return true;
}

/* Without what was lost, most may be unknown. Loads go on, each before its layer is computed, and
 * what they bring is computed like the rest. */
static void answer_first(struct tsr_run *run)
{
    if (!(run->ask.flags & TSR_ASK_FIRST) || !tsri_plan_unknown(&run->plan)) return;
    tsri_plan_skip_fills(&run->plan);
    run->selector = tsri_selector_of(TSR_SELECT_FULL);
    run->ratio = 1;
}

/* ---- steps ---- */

static int give(struct tsr_run *run, struct tsr_blend_step *step, uint32_t kind,
                enum tsri_pass_stage next)
{
    step->kind = kind;
    run->stage = next;
    return 1;
}

static int step_layer(struct tsr_run *run, struct tsr_blend_step *step)
{
    bool checks = run->phase == TSRI_PHASE_BLEND && run->selector->checks && !run->checked &&
                  tsri_pass_check_of(run, run->layer);
    /* What a check compares with must be all there: a piece that is lost later would begin the pass
     * again over rows that this one has overwritten. */
    uint32_t wait = checks ? run->blend->info.n_layers - 1 : run->layer;
    if (lost_pieces(run, wait)) return give(run, step, TSR_STEP_END, TSRI_STAGE_RESTART);
    if (checks) {
        step->deviation = (struct tsr_model_deviation){
            .size = sizeof step->deviation, .layer = run->layer, .k = run->dev_k, .v = run->dev_v};
        return give(run, step, TSR_STEP_DEVIATION, TSRI_STAGE_CHECKED);
    }
    run->checked = false;
    float *mass = tsri_pass_mass(run, run->layer);
    step->layer = (struct tsr_model_layer){.size = sizeof step->layer,
                                           .layer = run->layer++,
                                           .mass = mass,
                                           .n_mass = mass ? run->plan.n_tokens : 0};
    return give(run, step, TSR_STEP_LAYER, TSRI_STAGE_LAYER);
}

/* Nothing is to be computed: what is loaded is all of it, when it is there. */
static int no_pass(struct tsr_run *run)
{
    bool lost = lost_pieces(run, run->blend->info.n_layers - 1);
    run->pass_ns = 0;
    run->stage = lost ? TSRI_STAGE_RESTART : TSRI_STAGE_AFTER;
    return 0;
}

/* 1: a step; 0: go on with the stage that is set now; < 0: failed. */
static int advance(struct tsr_run *run, struct tsr_blend_step *step)
{
    switch (run->stage) {
    case TSRI_STAGE_PASS:
        if (run->ask.flags & TSR_ASK_LOADED && lost_pieces(run, run->blend->info.n_layers - 1)) {
            run->stage = TSRI_STAGE_RESTART;
            return 0;
        }
        if (!tsri_pass_begin(run, &step->pass)) return run->failed ? run->failed : no_pass(run);
        run->layer = 0;
        run->checked = false;
        return give(run, step, TSR_STEP_BEGIN, TSRI_STAGE_LAYER);
    case TSRI_STAGE_LAYER:
        if (run->layer < run->blend->info.n_layers) return step_layer(run, step);
        run->stage = TSRI_STAGE_END;
        if (run->phase == TSRI_PHASE_FILL || run->ask.flags & TSR_ASK_CONTEXT) return 0;
        step->keep = run->keep;
        step->n_keep = 1 + (run->phase == TSRI_PHASE_BLEND ? tsri_draft_rows(run) : 0);
        for (uint32_t i = 0; i < step->n_keep; i++)
            run->keep[i] = run->n_rows - step->n_keep + i;
        step->logits = run->phase == TSRI_PHASE_QUERY ? run->logits_before : run->logits;
        return give(run, step, TSR_STEP_LOGITS, TSRI_STAGE_END);
    case TSRI_STAGE_CHECKED: {
        run->checked = true;
        run->stage = TSRI_STAGE_LAYER;
        int n = tsri_pass_narrow(run);
        /* None is left, and a check has waited for all layers. */
        if (run->n_rows == 0) run->stage = TSRI_STAGE_END;
        if (n <= 0) return n;
        step->keep = run->keep;
        step->n_keep = (uint32_t)n;
        return give(run, step, TSR_STEP_NARROW, TSRI_STAGE_LAYER);
    }
    case TSRI_STAGE_END:
        return give(run, step, TSR_STEP_END, TSRI_STAGE_AFTER);
    case TSRI_STAGE_AFTER:
        return tsri_pass_after(run);
    case TSRI_STAGE_RESTART:
        answer_first(run);
        tsri_plan_paint(&run->plan);
        run->phase = TSRI_PHASE_FILL;
        run->stage = TSRI_STAGE_PASS;
        return 0;
    }
    return tsri_fail(TSR_EINVAL, "blend: no such stage");
}

int tsr_blend_next(struct tsr_run *run, int result, struct tsr_blend_step *step)
{
    if (!run || !step) return tsri_fail(TSR_EINVAL, "blend: run or step is NULL");
    if (result < 0) run->failed = result;
    if (run->failed) return run->failed;
    *step = (struct tsr_blend_step){0};
    while (run->phase != TSRI_PHASE_DONE) {
        int e = advance(run, step);
        if (e < 0) run->failed = e;
        if (e) return e;
    }
    return 0;
}

/* ---- the end ---- */

static void count_piece(struct tsr_blend_report *r, const struct tsri_plan *p,
                        const struct tsri_piece *piece)
{
    const struct tsr_match *m = &piece->match;
    if (piece->kind == TSRI_PIECE_LOAD) r->tier_tokens[m->tier % 8u] += m->n_tokens;
    if (piece->kind == TSRI_PIECE_LOAD && m->context == TSR_CONTEXT_OTHER)
        for (uint32_t i = 0; i < m->n_tokens; i++)
            r->n_other += p->states[m->prompt_offset + i] == TSR_TOKEN_CANDIDATE;
    if (piece->kind != TSRI_PIECE_FILL) return;
    r->n_filled += m->n_tokens;
    for (uint32_t i = m->prompt_offset; i < m->prompt_offset + m->n_tokens && i < r->n_tokens; i++)
        r->n_filled_reused +=
            p->states[i] == TSR_TOKEN_EXACT || p->states[i] == TSR_TOKEN_CANDIDATE;
}

/* Exact, but computed. */
static void count_lead(struct tsr_blend_report *r, const struct tsri_piece *piece)
{
    uint32_t n = piece->match.n_tokens;
    r->n_exact -= n;
    if (piece->cached)
        r->n_recomputed += n;
    else
        r->n_new += n;
}

static void fill_report(struct tsr_run *run, struct tsr_blend_report *out)
{
    struct tsr_blend_report *r = &run->report;
    const struct tsri_plan *p = &run->plan;
    r->n_tokens = run->ask.flags & TSR_ASK_CONTEXT ? p->question : p->n_tokens;
    uint32_t n[TSR_TOKEN_SELECTED + 1] = {0};
    for (uint32_t i = 0; i < r->n_tokens; i++)
        n[p->states[i]]++;
    r->n_exact = n[TSR_TOKEN_EXACT];
    r->n_reused = n[TSR_TOKEN_CANDIDATE];
    r->n_recomputed = n[TSR_TOKEN_ALWAYS] + n[TSR_TOKEN_SELECTED];
    r->n_new = n[TSR_TOKEN_NEW];
    for (uint32_t i = 0; i < p->n_pieces; i++)
        if (p->pieces[i].leads)
            count_lead(r, &p->pieces[i]);
        else
            count_piece(r, p, &p->pieces[i]);
    r->n_chunks = p->n_chunks;
    r->selector = run->selector->id;
    r->reasons = run->reasons | p->reasons;
    r->ratio = run->ratio;
    r->bias = run->bias;
    r->gate = run->gate;
    r->sure = run->sure;
    r->n_rounds = run->n_rounds;
    r->total_s = (double)(tsri_now_ns() - run->started_ns) * 1e-9;
    size_t size = out->size < sizeof *out ? out->size : sizeof *out;
    r->size = out->size;
    memcpy(out, r, size);
}

/* Rows behind the prompt go on with the bias where the profile says so. */
static void keep_bias(struct tsr_run *run)
{
    struct tsr_blend *b = run->blend;
    float *bias = NULL;
    if (run->bias != 0 && b->profile.bias_answer) {
        bias = tsri_alloc(run->plan.n_tokens, sizeof *bias);
        if (bias) memcpy(bias, run->bias_row, run->plan.n_tokens * sizeof *bias);
    }
    pthread_mutex_lock(&b->lock);
    tsri_free(b->bias);
    b->bias = bias;
    b->n_bias = bias ? run->plan.n_tokens : 0;
    pthread_mutex_unlock(&b->lock);
}

static void keep_draft(struct tsr_run *run, bool done)
{
    struct tsr_blend *b = run->blend;
    pthread_mutex_lock(&b->lock);
    b->n_draft = done ? run->n_draft : 0;
    memcpy(b->draft, run->draft, b->n_draft * sizeof *b->draft);
    pthread_mutex_unlock(&b->lock);
}

void tsr_blend_end(struct tsr_run *run, float *logits, struct tsr_blend_report *report)
{
    if (!run) return;
    bool done = run->phase == TSRI_PHASE_DONE && !run->failed;
    bool answers = !(run->ask.flags & (TSR_ASK_LEARN | TSR_ASK_LOOK));
    if (answers) keep_draft(run, done);
    if (done) {
        if (answers) keep_bias(run);
        if (logits && !(run->ask.flags & TSR_ASK_CONTEXT))
            memcpy(logits, run->logits, run->blend->info.n_vocab * sizeof *logits);
        if (report && report->size >= sizeof report->size) fill_report(run, report);
    }
    run_free(run);
}
