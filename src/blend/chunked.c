/* chunked.c - prompts whose documents are not marked: with option chunked they are cut at the
 * separators of the blend's space. What is before the first separator is the system prompt, what
 * follows the last one is the question. */
#include "blend/blend.h"

int tsri_chunked_split(const struct tsr_blend *b, const struct tsr_ask_desc *ask,
                       struct tsr_ask_desc *cut, struct tsr_range **ranges)
{
    *ranges = NULL;
    if (!ask || ask->size < sizeof *ask) return 0; /* is refused by the caller's own check */
    *cut = *ask;
    bool chunked = b->cache && tsri_cache_options(b->cache)->chunked;
    if (!chunked || ask->n_segments || !ask->tokens || !tsri_space_is_split(b->exact)) return 0;
    uint32_t max = tsri_min_u32(ask->n_tokens, TSRI_SEGMENTS_MAX) + 1;
    struct tsr_range *found = tsri_alloc(max, sizeof *found);
    if (!found) return TSR_ENOMEM;
    int n = tsri_space_has_separator(b->exact, ask->tokens, ask->n_tokens)
                ? tsr_space_split(b->exact, ask->tokens, ask->n_tokens, found, max)
                : 0;
    if (n <= 0) {
        tsri_free(found);
        return n;
    }
    cut->segments = *ranges = found;
    cut->n_segments = (uint32_t)n - 1;
    cut->system = 1;
    return 0;
}
