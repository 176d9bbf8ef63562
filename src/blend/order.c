/* order.c - documents in any order. What a document saw when it was stored is not what is before it in
 * this prompt; only what stands first, behind the system prompt, is computed as a prefill computes it,
 * and at the price of one document. Where the caller leaves the order free, that place belongs to the
 * document that the answer is taken from: the one that the question looks at most (docs/quality.md). */
#include "blend/passes.h"

/* A document with so much of the text would leave too little to reuse. */
#define LEAD_SHARE_MAX 0.5

void tsri_order_look(struct tsr_ask_desc *ask)
{
    uint32_t cache = TSR_ASK_FILL | TSR_ASK_ANY | TSR_ASK_PREFIX | TSR_ASK_FIRST;
    ask->flags = (ask->flags & cache) | TSR_ASK_LOOK | TSR_ASK_CONTEXT | TSR_ASK_RATIO;
    ask->selector = TSR_SELECT_QUERY;
    ask->ratio = 0.5; /* nothing is chosen; it only has to be more than none, and less than all */
}

int tsr_blend_looks(const struct tsr_run *run, double *looks)
{
    if (!run || !looks || !(run->ask.flags & TSR_ASK_LOOK) || run->phase != TSRI_PHASE_DONE)
        return tsri_fail(TSR_EINVAL, "looks: not a run with TSR_ASK_LOOK that is at its end");
    const struct tsr_ask_desc *ask = &run->ask;
    double all = 0;
    for (uint32_t i = 0; i < ask->n_tokens; i++)
        all += run->mass[i];
    if (!run->asked || !(all > 0)) return 0;
    for (uint32_t s = 0; s < ask->n_segments; s++) {
        const float *mass = run->mass + ask->segments[s].offset;
        looks[s] = 0;
        for (uint32_t i = 0; i < ask->segments[s].n_tokens; i++)
            looks[s] += mass[i] / all;
    }
    return 1;
}

int tsr_blend_look(struct tsr_blend *b, const struct tsr_ask_desc *ask, double *looks,
                   struct tsr_blend_report *report)
{
    struct tsr_run *run;
    if (!ask || ask->size < sizeof *ask || !ask->session || !looks)
        return tsri_fail(TSR_EINVAL, "look: size, session or looks are missing");
    struct tsr_ask_desc look = *ask;
    look.flags |= TSR_ASK_LOOK;
    int e = tsr_blend_start(&run, b, &look, NULL);
    if (e) return e;
    e = tsri_blend_steps(ask->session, run);
    if (!e) e = tsr_blend_looks(run, looks);
    tsr_blend_end(run, NULL, report);
    return e;
}

/* One after another, without other text between them. */
static bool are_joined(const struct tsr_range *documents, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (documents[i].offset != documents[i - 1].offset + documents[i - 1].n_tokens)
            return false;
    return true;
}

/* The last of n documents before the others. */
static void move_to_front(uint32_t *tokens, struct tsr_range *documents, uint32_t n)
{
    uint32_t first = documents[0].offset, length = documents[n - 1].n_tokens;
    uint32_t n_before = documents[n - 1].offset - first;
    tsri_reverse_u32(tokens + first, n_before);
    tsri_reverse_u32(tokens + first + n_before, length);
    tsri_reverse_u32(tokens + first, n_before + length);
    for (uint32_t i = n - 1; i > 0; i--)
        documents[i] =
            (struct tsr_range){documents[i - 1].offset + length, documents[i - 1].n_tokens};
    documents[0] = (struct tsr_range){first, length};
}

int tsr_segments_lead(uint32_t *tokens, struct tsr_range *segments, uint32_t n_segments,
                      uint32_t system, const double *looks)
{
    if (!tokens || !segments || !looks || n_segments > TSRI_SEGMENTS_MAX || system > n_segments)
        return tsri_fail(TSR_EINVAL, "lead: tokens, segments or looks are missing");
    uint64_t n_tokens = 0;
    uint32_t lead = system;
    for (uint32_t i = system; i < n_segments; i++) {
        n_tokens += segments[i].n_tokens;
        if (looks[i] > looks[lead]) lead = i;
    }
    if (n_segments - system < 2 || segments[lead].n_tokens >= LEAD_SHARE_MAX * (double)n_tokens)
        return TSR_ENOENT;
    uint32_t n_moved = lead - system + 1;
    if (!are_joined(segments + system, n_moved)) return TSR_ENOENT;
    move_to_front(tokens, segments + system, n_moved);
    return (int)lead;
}
