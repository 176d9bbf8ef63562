/* boundary.c - which tokens of a request may be saved: those whose values are known and whose KV
 * has been written. Everything that is saved goes through here, whether the engine schedules
 * asynchronously or not; an engine that does not has nothing in flight and gets the same answer by
 * the same lines. docs/engines.md has the reasons for each rule.
 *
 * The counters are the engine's. They may contradict each other for a moment (a placeholder that
 * was taken back twice): a boundary then is lower than it could be, never higher. */
#include "connector/connector.h"

static uint32_t less(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

uint32_t tsri_boundary(uint32_t rule, enum tsri_stage stage, const struct tsri_counters *c)
{
    uint32_t held = rule == TSR_BOUNDARY_PLACEHOLDERS ? c->n_placeholders : c->n_in_flight;
    /* Who is aborted may have any step under way, and nobody will process it. */
    if (stage == TSRI_ABORTED && c->n_placeholders > held) held = c->n_placeholders;
    if (stage == TSRI_ABORTED && c->n_in_flight > held) held = c->n_in_flight;
    uint32_t boundary = tsri_min_u32(less(c->n_computed, held), c->n_tokens);
    if (stage == TSRI_FINISHED) {
        /* The last token sampled has a value and no KV, unless the prompt itself is the end. */
        uint32_t written = less(c->n_tokens, 1);
        if (c->n_prompt > written) written = c->n_prompt;
        boundary = tsri_min_u32(boundary, written);
    }
    TSR_ASSERT(boundary <= c->n_tokens && boundary <= c->n_computed);
    return boundary;
}

uint32_t tsri_window_first(const struct tsr_group *group, uint32_t n_computed)
{
    if (n_computed < group->window_tokens || !group->window_tokens) return 0;
    return (n_computed - group->window_tokens + 1) / group->block_tokens * group->block_tokens;
}
