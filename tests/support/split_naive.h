/* split_naive.h - the rule of tsri_split said as plainly as possible, for tests to compare with: at
 * each place from left to right the longest spelling that stands there. */
#ifndef TSRI_SPLIT_NAIVE_H
#define TSRI_SPLIT_NAIVE_H

#include "chunk/chunk.h"

struct naive_spellings {
    uint32_t tokens[TSRI_SEPARATORS_MAX * TSRI_SEPARATOR_TOKENS_MAX]; /* one after the other */
    uint32_t lengths[TSRI_SEPARATORS_MAX], n;
};

static inline uint32_t naive_spelled(const struct naive_spellings *p, const uint32_t *tokens,
                                     uint32_t n)
{
    uint32_t longest = 0;
    const uint32_t *spelling = p->tokens;
    for (uint32_t i = 0; i < p->n; spelling += p->lengths[i++])
        if (p->lengths[i] > longest && p->lengths[i] <= n &&
            memcmp(spelling, tokens, p->lengths[i] * sizeof *tokens) == 0)
            longest = p->lengths[i];
    return longest;
}

static inline int naive_split(const struct naive_spellings *p, const uint32_t *tokens, uint32_t n,
                              struct tsr_range *ranges, uint32_t ranges_max)
{
    uint32_t begin = 0, n_ranges = 0, at = 0;
    while (at < n) {
        uint32_t length = naive_spelled(p, tokens + at, n - at);
        if (!length) {
            at++;
            continue;
        }
        if (at == begin || n_ranges == ranges_max) return TSR_EPROMPT;
        at += length;
        ranges[n_ranges++] = (struct tsr_range){begin, at - begin};
        begin = at;
    }
    if (!n_ranges || begin == n || n_ranges == ranges_max) return TSR_EPROMPT;
    ranges[n_ranges++] = (struct tsr_range){begin, n - begin};
    return (int)n_ranges;
}

#endif
