/* split.c - where a prompt is cut. The separators of a space are a handful of spellings of a few
 * tokens; the prompt is searched for their first tokens, and only there are spellings compared,
 * longest first. The search is wmemchr, libc's vectorised scan for a 32-bit value, once for each
 * distinct first token; each scan runs ahead to its next find and waits there, so every token is
 * looked at once per distinct first token and never again. */
#include "chunk/chunk.h"

#include <wchar.h>

_Static_assert(sizeof(wchar_t) == sizeof(uint32_t), "wmemchr must search tokens");

struct spelling {
    uint32_t first; /* index of its first token in separators.firsts */
    uint32_t n;
    uint32_t tokens[TSRI_SEPARATOR_TOKENS_MAX];
};

struct tsri_separators {
    uint32_t n;
    uint32_t n_firsts;
    uint32_t firsts[TSRI_SEPARATORS_MAX]; /* distinct first tokens */
    struct spelling spellings[];          /* longest first */
};

static uint32_t first_add(struct tsri_separators *s, uint32_t token)
{
    uint32_t i = 0;
    while (i < s->n_firsts && s->firsts[i] != token)
        i++;
    if (i == s->n_firsts) s->firsts[s->n_firsts++] = token;
    return i;
}

static void spelling_add(struct tsri_separators *s, const uint32_t *tokens, uint32_t n)
{
    uint32_t at = s->n++;
    for (; at > 0 && s->spellings[at - 1].n < n; at--)
        s->spellings[at] = s->spellings[at - 1];
    s->spellings[at].first = first_add(s, tokens[0]);
    s->spellings[at].n = n;
    memcpy(s->spellings[at].tokens, tokens, n * sizeof *tokens);
}

int tsri_separators_open(struct tsri_separators **out, const uint32_t *tokens,
                         const uint32_t *lengths, uint32_t n)
{
    *out = NULL;
    if (!tokens || !lengths) return tsri_fail(TSR_EINVAL, "separators: tokens or lengths are NULL");
    if (n < 1 || n > TSRI_SEPARATORS_MAX)
        return tsri_fail(TSR_EINVAL, "separators: %u spellings, not 1 to %u", n,
                         (unsigned)TSRI_SEPARATORS_MAX);
    for (uint32_t i = 0; i < n; i++)
        if (lengths[i] < 1 || lengths[i] > TSRI_SEPARATOR_TOKENS_MAX)
            return tsri_fail(TSR_EINVAL, "separators: spelling %u has %u tokens, not 1 to %u", i,
                             lengths[i], (unsigned)TSRI_SEPARATOR_TOKENS_MAX);
    struct tsri_separators *s = tsri_alloc(1, sizeof *s + n * sizeof s->spellings[0]);
    if (!s) return TSR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        spelling_add(s, tokens, lengths[i]);
        tokens += lengths[i];
    }
    *out = s;
    return 0;
}

void tsri_separators_close(struct tsri_separators *s)
{
    tsri_free(s);
}

/* The scans of one split: where each distinct first token comes next. */
struct scan {
    const struct tsri_separators *s;
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t next[TSRI_SEPARATORS_MAX]; /* n_tokens: no more of it */
};

static uint32_t find(const struct scan *c, uint32_t first, uint32_t from)
{
    const wchar_t *tokens = (const wchar_t *)c->tokens;
    const wchar_t *at = wmemchr(tokens + from, (wchar_t)c->s->firsts[first], c->n_tokens - from);
    return at ? (uint32_t)(at - tokens) : c->n_tokens;
}

/* The length of the longest spelling that stands at `at`, 0 for none. */
static uint32_t spelled(const struct scan *c, uint32_t first, uint32_t at)
{
    for (uint32_t i = 0; i < c->s->n; i++) {
        const struct spelling *p = &c->s->spellings[i];
        if (p->first == first && p->n <= c->n_tokens - at &&
            memcmp(p->tokens, c->tokens + at, p->n * sizeof *c->tokens) == 0)
            return p->n;
    }
    return 0;
}

/* The next separator at or after `from`: its place, and its length in *n; n_tokens when there is
 * none. */
static uint32_t separator_next(struct scan *c, uint32_t from, uint32_t *n)
{
    for (;;) {
        uint32_t first = 0;
        for (uint32_t i = 0; i < c->s->n_firsts; i++) {
            if (c->next[i] < from) c->next[i] = find(c, i, from);
            if (c->next[i] < c->next[first]) first = i;
        }
        uint32_t at = c->next[first];
        if (at == c->n_tokens) return at;
        *n = spelled(c, first, at);
        if (*n) return at;
        from = at + 1;
    }
}

int tsri_split(const struct tsri_separators *s, const uint32_t *tokens, uint32_t n_tokens,
               struct tsr_range *ranges, uint32_t ranges_max)
{
    struct scan c = {.s = s, .tokens = tokens, .n_tokens = n_tokens};
    if (ranges_max > INT32_MAX) ranges_max = INT32_MAX;
    for (uint32_t i = 0; i < s->n_firsts && n_tokens; i++)
        c.next[i] = find(&c, i, 0);
    uint32_t begin = 0, n = 0, n_separator = 0;
    while (begin < n_tokens) {
        uint32_t at = separator_next(&c, begin, &n_separator);
        if (at == n_tokens) break;
        if (at == begin)
            return tsri_fail(TSR_EPROMPT, "empty chunk: nothing before the separator at token %u",
                             at);
        if (n == ranges_max)
            return tsri_fail(TSR_EPROMPT, "more than %u chunks: one more at token %u", ranges_max,
                             begin);
        ranges[n++] = (struct tsr_range){begin, at + n_separator - begin};
        begin = at + n_separator;
    }
    if (!n) return tsri_fail(TSR_EPROMPT, "no separator in %u tokens from token 0", n_tokens);
    if (begin == n_tokens)
        return tsri_fail(TSR_EPROMPT, "no question after the last separator, at token %u", begin);
    if (n == ranges_max)
        return tsri_fail(TSR_EPROMPT, "more than %u chunks: the question at token %u", ranges_max,
                         begin);
    ranges[n++] = (struct tsr_range){begin, n_tokens - begin};
    return (int)n;
}

uint32_t tsri_block_count(uint32_t n_tokens, uint32_t block_tokens, bool partial)
{
    TSR_ASSERT(block_tokens > 0);
    return n_tokens / block_tokens + (partial && n_tokens % block_tokens ? 1 : 0);
}
