/* known.c - the text of a prompt that the cache has: in the blend's own spaces, and in the space in
 * which an engine keeps what plain requests compute. The latter were computed wherever they stood,
 * so only their exact prefix is as good as computing it. All else of them saw other text: it takes
 * the places that the blend's own entries leave. */
#include "blend/blend.h"

static int look(const struct tsr_blend *b, struct tsr_space *space, const struct tsr_prompt *prompt,
                struct tsri_known *k)
{
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = &space,
                                 .n_spaces = 1,
                                 .matches = k->matches + k->n,
                                 .matches_max = k->max - k->n};
    int e = tsr_client_lookup(b->client, prompt, &io);
    if (e < 0) return e;
    k->n += io.n_matches;
    if (io.n_prefix_tokens) k->n_prefix = io.n_prefix_tokens;
    return 0;
}

static uint32_t end_of(const struct tsr_match *m)
{
    return m->prompt_offset + m->n_tokens;
}

/* What is left of a match from a token of the prompt on. */
static void skip_to(struct tsr_match *m, uint32_t token)
{
    uint32_t by =
        token > m->prompt_offset ? tsri_min_u32(token - m->prompt_offset, m->n_tokens) : 0;
    m->prompt_offset += by;
    m->entry_offset += by;
    m->n_tokens -= by;
    if (by) m->coverage = TSR_COVERAGE_RUN;
}

/* The prefix is looked up in a space of its own: what it covers is cut off the others. */
static void cut(struct tsri_known *k, uint32_t first)
{
    uint32_t n = first;
    for (uint32_t i = first; i < k->n; i++) {
        struct tsr_match m = k->matches[i];
        skip_to(&m, k->n_prefix);
        if (m.n_tokens) k->matches[n++] = m;
    }
    k->n = n;
}

/* The prompt for the space of plain requests. */
static struct tsr_prompt plain_prompt(const struct tsr_ask_desc *ask)
{
    return (struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                               .tokens = ask->tokens,
                               .n_tokens = ask->n_tokens,
                               .flags = TSR_PROMPT_PREFIX | TSR_PROMPT_ANY | TSR_PROMPT_OTHER,
                               .extra = ask->extra,
                               .n_extra = ask->n_extra};
}

static void put(struct tsri_known *k, struct tsr_match m, uint32_t end)
{
    if (end < end_of(&m)) {
        m.n_tokens = end - m.prompt_offset;
        m.coverage = TSR_COVERAGE_RUN;
    }
    if (m.n_tokens && k->n < k->max) k->matches[k->n++] = m;
}

/* Both in the order of the prompt, and of `plain` what is between the others. */
static int merge(struct tsri_known *k, uint32_t n_plain)
{
    struct tsri_known all = {.max = k->max, .n_prefix = k->n_prefix};
    const struct tsr_match *own = k->matches + n_plain, *own_end = k->matches + k->n;
    all.matches = tsri_alloc(all.max, sizeof *all.matches);
    if (!all.matches) return TSR_ENOMEM;
    uint32_t own_until = 0;
    for (uint32_t i = 0; i < n_plain; i++) {
        struct tsr_match m = k->matches[i];
        skip_to(&m, own_until);
        for (; m.n_tokens && own < own_end && own->prompt_offset < end_of(&m); own++) {
            if (own->prompt_offset > m.prompt_offset) put(&all, m, own->prompt_offset);
            put(&all, *own, UINT32_MAX);
            own_until = end_of(own);
            skip_to(&m, own_until);
        }
        put(&all, m, UINT32_MAX);
    }
    for (; own < own_end; own++)
        put(&all, *own, UINT32_MAX);
    tsri_free(k->matches);
    *k = all;
    return 0;
}

int tsri_known_find(struct tsri_known *k, const struct tsr_blend *b, const struct tsr_ask_desc *ask,
                    const struct tsr_prompt *prompt)
{
    bool plain = b->traffic && ask->flags & TSR_ASK_ANY;
    int e = 0;
    *k = (struct tsri_known){.max = 2 * ask->n_segments + ask->n_tokens / 8 + 16};
    k->matches = tsri_alloc(k->max, sizeof *k->matches);
    if (!k->matches) return TSR_ENOMEM;
    if (plain) {
        struct tsr_prompt traffic = plain_prompt(ask);
        e = look(b, b->traffic, &traffic, k);
    } else if (b->prefixes != b->segments && ask->flags & TSR_ASK_PREFIX) {
        struct tsr_prompt prefix = *prompt;
        prefix.flags = TSR_PROMPT_PREFIX;
        e = look(b, b->prefixes, &prefix, k);
    }
    uint32_t n_first = k->n, n_prefix = k->n_prefix;
    if (!e && prompt->flags) e = look(b, b->segments, prompt, k);
    if (n_first && n_prefix) k->n_prefix = n_prefix;
    if (!e && n_first && k->n_prefix) cut(k, n_first);
    if (!e && plain && n_first) e = merge(k, n_first);
    return e;
}

void tsri_known_fini(struct tsri_known *k)
{
    tsri_free(k->matches);
    *k = (struct tsri_known){0};
}
