/* split.c - where a prompt is cut. The separators of a space are a handful of spellings of a few
 * tokens; the prompt is searched for their first tokens, and only there are spellings compared,
 * longest first. Each distinct first token has a scan of its own, which runs ahead to its next find
 * and waits there, so no token is looked at twice by one scan. A scan looks for the first token
 * alone, the fastest way while that token is rare; when it turns out to be common in this prompt (a
 * newline) the scan goes on with the first two tokens at once.
 *
 * Nothing here depends on the machine but the speed. */
#include "chunk/chunk.h"

#include <wchar.h>

struct spelling {
    uint32_t first; /* index of its first token in separators.firsts */
    uint32_t n;
    uint32_t tokens[TSRI_SEPARATOR_TOKENS_MAX];
};

/* A token that spellings begin with, and the tokens that may follow it in them. */
struct first {
    uint32_t token;
    uint32_t n_seconds; /* 0: it is a spelling by itself */
    uint32_t seconds[TSRI_SEPARATORS_MAX];
};

struct tsri_separators {
    uint32_t n;
    uint32_t n_firsts;
    struct first firsts[TSRI_SEPARATORS_MAX];
    struct spelling spellings[]; /* longest first */
};

static void spelling_add(struct tsri_separators *s, const uint32_t *tokens, uint32_t n)
{
    uint32_t at = s->n++;
    for (; at > 0 && s->spellings[at - 1].n < n; at--)
        s->spellings[at] = s->spellings[at - 1];
    s->spellings[at].n = n;
    memcpy(s->spellings[at].tokens, tokens, n * sizeof *tokens);
}

/* Spellings are sorted longest first: a spelling of one token comes last and clears the seconds. */
static void firsts_fill(struct tsri_separators *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct spelling *p = &s->spellings[i];
        uint32_t k = 0;
        while (k < s->n_firsts && s->firsts[k].token != p->tokens[0])
            k++;
        if (k == s->n_firsts) s->firsts[s->n_firsts++].token = p->tokens[0];
        p->first = k;
        struct first *f = &s->firsts[k];
        if (p->n > 1)
            f->seconds[f->n_seconds++] = p->tokens[1];
        else
            f->n_seconds = 0;
    }
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
    firsts_fill(s);
    *out = s;
    return 0;
}

void tsri_separators_close(struct tsri_separators *s)
{
    tsri_free(s);
}

/* ---- scans ---- */

/* 16 bytes are in the baseline of x86_64 and aarch64 alike. */
typedef uint32_t lanes __attribute__((vector_size(16)));
#define LANES 4
#define STEP 16 /* tokens looked at before the results are gathered */

static bool stands(const struct first *f, const uint32_t *tokens)
{
    if (tokens[0] != f->token) return false;
    for (uint32_t k = 0; k < f->n_seconds; k++)
        if (tokens[1] == f->seconds[k]) return true;
    return !f->n_seconds;
}

static lanes lanes_at(const uint32_t *tokens, uint32_t i)
{
    lanes x;
    memcpy(&x, tokens + i * LANES, sizeof x);
    return x;
}

static bool any_set(lanes x)
{
    uint64_t halves[2];
    memcpy(halves, &x, sizeof halves);
    return (halves[0] | halves[1]) != 0;
}

/* Whether the first token, with a second one behind it, stands at any of STEP tokens. Reads one
 * more. Written out, for compilers do not unroll it at -O2. */
static bool step_has(const struct first *f, const uint32_t *tokens)
{
    const lanes here0 = (lanes)(lanes_at(tokens, 0) == f->token);
    const lanes here1 = (lanes)(lanes_at(tokens, 1) == f->token);
    const lanes here2 = (lanes)(lanes_at(tokens, 2) == f->token);
    const lanes here3 = (lanes)(lanes_at(tokens, 3) == f->token);
    lanes any = {0};
    if (!f->n_seconds) any = here0 | here1 | here2 | here3;
    for (uint32_t k = 0; k < f->n_seconds; k++) {
        any |= here0 & (lanes)(lanes_at(tokens + 1, 0) == f->seconds[k]);
        any |= here1 & (lanes)(lanes_at(tokens + 1, 1) == f->seconds[k]);
        any |= here2 & (lanes)(lanes_at(tokens + 1, 2) == f->seconds[k]);
        any |= here3 & (lanes)(lanes_at(tokens + 1, 3) == f->seconds[k]);
    }
    return any_set(any);
}

static uint32_t find_pair(const struct first *f, const uint32_t *tokens, uint32_t from, uint32_t n)
{
    uint32_t at = from;
    while (n - at > STEP && !step_has(f, tokens + at))
        at += STEP;
    /* The last token has none behind it to look at. */
    while (n - at > 1 && !stands(f, tokens + at))
        at++;
    if (n - at == 1 && (f->n_seconds || tokens[at] != f->token)) at = n;
    return at;
}

/* glibc searches 32-bit values with the widest vectors the machine has, on x86_64. */
#if defined(__x86_64__) && defined(__GLIBC__)
_Static_assert(sizeof(wchar_t) == sizeof(uint32_t), "wmemchr must search tokens");
static uint32_t find_first(const struct first *f, const uint32_t *tokens, uint32_t from, uint32_t n)
{
    const wchar_t *at = wmemchr((const wchar_t *)tokens + from, (wchar_t)f->token, n - from);
    return at ? (uint32_t)(at - (const wchar_t *)tokens) : n;
}
#else
/* Half of what find_pair does, and more of it at once. */
static bool steps_have(uint32_t token, const uint32_t *tokens)
{
    lanes any0 = (lanes)(lanes_at(tokens, 0) == token) | (lanes)(lanes_at(tokens, 1) == token);
    lanes any1 = (lanes)(lanes_at(tokens, 2) == token) | (lanes)(lanes_at(tokens, 3) == token);
    lanes any2 = (lanes)(lanes_at(tokens, 4) == token) | (lanes)(lanes_at(tokens, 5) == token);
    lanes any3 = (lanes)(lanes_at(tokens, 6) == token) | (lanes)(lanes_at(tokens, 7) == token);
    return any_set((any0 | any1) | (any2 | any3));
}

static uint32_t find_first(const struct first *f, const uint32_t *tokens, uint32_t from, uint32_t n)
{
    uint32_t at = from;
    while (n - at >= 2 * STEP && !steps_have(f->token, tokens + at))
        at += 2 * STEP;
    while (at < n && tokens[at] != f->token)
        at++;
    return at;
}
#endif

/* A find that turns out to be no separator costs what find_pair costs more on so many tokens. */
#define MISS_TOKENS 128
#define MISSES_MIN 16

struct scan {
    uint32_t next; /* where the first token stands; n_tokens: no more of it */
    uint32_t misses;
};

struct search {
    const struct tsri_separators *s;
    const uint32_t *tokens;
    uint32_t n_tokens;
    struct scan scans[TSRI_SEPARATORS_MAX]; /* of s->firsts */
};

static void scan_on(struct search *c, uint32_t i, uint32_t from)
{
    const struct first *f = &c->s->firsts[i];
    struct scan *scan = &c->scans[i];
    bool common = scan->misses >= MISSES_MIN && scan->misses > from / MISS_TOKENS;
    scan->next = common ? find_pair(f, c->tokens, from, c->n_tokens)
                        : find_first(f, c->tokens, from, c->n_tokens);
}

/* The length of the longest spelling that stands at `at`, 0 for none. */
static uint32_t spelled(const struct search *c, uint32_t first, uint32_t at)
{
    for (uint32_t i = 0; i < c->s->n; i++) {
        const struct spelling *p = &c->s->spellings[i];
        if (p->first != first || p->n > c->n_tokens - at) continue;
        uint32_t same = 1; /* the first token is known; the rest is short, shorter than a call */
        while (same < p->n && p->tokens[same] == c->tokens[at + same])
            same++;
        if (same == p->n) return same;
    }
    return 0;
}

/* The next separator at or after `from`: its place, and its length in *n; n_tokens when there is
 * none. */
static uint32_t separator_next(struct search *c, uint32_t from, uint32_t *n)
{
    for (;;) {
        uint32_t nearest = 0;
        for (uint32_t i = 0; i < c->s->n_firsts; i++) {
            if (c->scans[i].next < from) scan_on(c, i, from);
            if (c->scans[i].next < c->scans[nearest].next) nearest = i;
        }
        uint32_t at = c->scans[nearest].next;
        if (at == c->n_tokens) return at;
        *n = spelled(c, nearest, at);
        if (*n) return at;
        c->scans[nearest].misses++;
        from = at + 1;
    }
}

static void search_init(struct search *c, const struct tsri_separators *s, const uint32_t *tokens,
                        uint32_t n_tokens)
{
    *c = (struct search){.s = s, .tokens = tokens, .n_tokens = n_tokens};
    for (uint32_t i = 0; i < s->n_firsts && n_tokens; i++)
        scan_on(c, i, 0);
}

bool tsri_separators_seen(const struct tsri_separators *s, const uint32_t *tokens,
                          uint32_t n_tokens)
{
    struct search c;
    uint32_t n_separator;
    search_init(&c, s, tokens, n_tokens);
    return n_tokens && separator_next(&c, 0, &n_separator) < n_tokens;
}

int tsri_split(const struct tsri_separators *s, const uint32_t *tokens, uint32_t n_tokens,
               struct tsr_range *ranges, uint32_t ranges_max)
{
    struct search c;
    search_init(&c, s, tokens, n_tokens);
    if (ranges_max > INT32_MAX) ranges_max = INT32_MAX;
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
