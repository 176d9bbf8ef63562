/* learn.c - documents are stored after the answer. The first question about a text is answered by a
 * prefill (TSR_ASK_FIRST); this computes its segments alone, one after another, in a session of its
 * own, so that the dialog's KV stays as it is and the work can stop after any layer. Each segment
 * is a short prompt: the system prompt if it sees that, the segment, and one token for a question.
 */
#include "blend/passes.h"

struct learner {
    struct tsr_blend *blend;
    const struct tsr_ask_desc *ask;
    struct tsr_session *session;
    uint32_t *tokens; /* of the short prompt */
    struct tsr_range ranges[2];
    uint32_t *wanted; /* [n_segments] */
    struct tsr_learn state;
    tsr_learn_fn progress;
    void *arg;
    bool stopped;
};

/* Tokens of the system prompt that a segment's short prompt begins with. */
static uint32_t n_system(const struct learner *l, uint32_t segment)
{
    if (!l->ask->system || (segment && l->blend->primer.n_tokens)) return 0;
    return l->ask->segments[0].n_tokens;
}

/* The short prompt of a segment. */
static struct tsr_ask_desc prompt_of(struct learner *l, uint32_t segment)
{
    const struct tsr_ask_desc *ask = l->ask;
    const struct tsr_range *s = &ask->segments[segment];
    uint32_t n = n_system(l, segment), n_ranges = 0, system = n > 0;
    if (n) l->ranges[n_ranges++] = (struct tsr_range){0, n};
    memcpy(l->tokens, ask->tokens, n * sizeof *l->tokens);
    if (!n || segment) {
        l->ranges[n_ranges++] = (struct tsr_range){n, s->n_tokens};
        memcpy(l->tokens + n, ask->tokens + s->offset, s->n_tokens * sizeof *l->tokens);
        n += s->n_tokens;
    }
    l->tokens[n++] = ask->tokens[ask->n_tokens - 1];
    return (struct tsr_ask_desc){.size = sizeof *ask,
                                 .tokens = l->tokens,
                                 .n_tokens = n,
                                 .segments = l->ranges,
                                 .n_segments = n_ranges,
                                 .system = system,
                                 .timeout_ms = ask->timeout_ms,
                                 .flags = TSR_ASK_LEARN};
}

/* The rope is that of the whole prompt: KV with other frequencies would be of no use in it. */
static int open_run(struct learner *l, const struct tsr_ask_desc *prompt, struct tsr_run **run)
{
    *run = NULL;
    return tsri_run_open(run, l->blend, prompt, tsr_session_layout(l->session), l->ask->n_tokens);
}

static int find_wanted(struct learner *l)
{
    for (uint32_t i = 0; i < l->ask->n_segments; i++) {
        struct tsr_ask_desc prompt = prompt_of(l, i);
        struct tsr_run *run;
        int e = open_run(l, &prompt, &run);
        if (e) return e;
        const struct tsr_range *last = &prompt.segments[prompt.n_segments - 1];
        for (uint32_t p = 0; p < run->plan.n_pieces; p++) {
            const struct tsri_piece *piece = &run->plan.pieces[p];
            if (piece->kind != TSRI_PIECE_FILL || piece->match.prompt_offset != last->offset)
                continue;
            l->wanted[l->state.n_segments++] = i;
            l->state.n_tokens += last->n_tokens;
        }
        tsr_blend_end(run, NULL, NULL);
    }
    l->state.segments = l->wanted;
    return 0;
}

static void tell(struct learner *l)
{
    if (l->progress && !l->stopped) l->stopped = l->progress(l->arg, &l->state) != 0;
}

/* The tokens stored. */
static int learn_one(struct learner *l, uint32_t segment)
{
    struct tsr_ask_desc prompt = prompt_of(l, segment);
    struct tsr_blend_report report = {.size = sizeof report};
    struct tsr_blend_step step;
    struct tsr_run *run;
    uint32_t n = l->ask->segments[segment].n_tokens, before = l->state.n_tokens_done;
    int e = open_run(l, &prompt, &run);
    if (e) return e;
    e = tsri_run_load(run);
    if (e) {
        tsr_blend_end(run, NULL, NULL);
        return e;
    }
    for (int result = 0; !l->stopped && (e = tsr_blend_next(run, result, &step)) > 0;) {
        result = tsri_blend_step(l->session, &step);
        if (step.kind != TSR_STEP_LAYER) continue;
        uint64_t part = (uint64_t)n * step.layer.layer / l->blend->info.n_layers;
        if (!run->fills_primer) l->state.n_tokens_done = before + (uint32_t)part;
        tell(l);
    }
    tsr_session_end(l->session);
    tsr_blend_end(run, NULL, &report);
    if (e < 0 || l->stopped) return e < 0 ? e : 0;
    if (report.reasons & TSR_BLEND_REFUSED)
        return tsri_fail(TSR_EFULL, "learn: the cache has no room for segment %u of %u tokens",
                         segment, n);
    l->state.n_segments_done++;
    l->state.n_tokens_done = before + n;
    return (int)report.n_stored;
}

static int open_learner(struct learner *l)
{
    const struct tsr_ask_desc *ask = l->ask;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < ask->n_segments; i++)
        if (ask->segments[i].n_tokens > longest) longest = ask->segments[i].n_tokens;
    uint32_t n_slots = n_system(l, 0) + longest + 1;
    l->tokens = tsri_alloc(n_slots, sizeof *l->tokens);
    l->wanted = tsri_alloc(ask->n_segments, sizeof *l->wanted);
    if (!l->tokens || !l->wanted) return TSR_ENOMEM;
    n_slots = tsri_min_u32(n_slots + l->blend->primer.n_tokens, l->blend->info.context);
    return tsr_session_open(&l->session, l->blend->model, n_slots);
}

static int learn_all(struct tsr_blend *b, const struct tsr_ask_desc *ask, tsr_learn_fn progress,
                     void *arg)
{
    int e = tsri_ask_check(b, ask, b->info.context);
    if (e || !b->client || !ask->n_segments) return e;
    struct learner l = {.blend = b, .ask = ask, .progress = progress, .arg = arg};
    uint32_t n_stored = 0;
    e = open_learner(&l);
    if (!e) e = find_wanted(&l);
    if (!e && l.state.n_segments) tell(&l);
    for (uint32_t i = 0; e >= 0 && !l.stopped && i < l.state.n_segments; i++) {
        e = learn_one(&l, l.wanted[i]);
        if (e > 0) n_stored += (uint32_t)e;
    }
    tsr_session_close(l.session);
    tsri_free(l.tokens);
    tsri_free(l.wanted);
    return e < 0 ? e : (int)n_stored;
}

int tsr_blend_learn(struct tsr_blend *b, const struct tsr_ask_desc *ask, tsr_learn_fn progress,
                    void *arg)
{
    if (!b || !b->model) return tsri_fail(TSR_EINVAL, "learn: a blend with a model is required");
    struct tsr_ask_desc cut;
    struct tsr_range *chunks;
    int e = tsri_chunked_split(b, ask, &cut, &chunks);
    if (!e) e = learn_all(b, chunks ? &cut : ask, progress, arg);
    tsri_free(chunks);
    return e;
}
