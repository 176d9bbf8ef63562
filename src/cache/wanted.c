/* wanted.c - is an entry the text that a match stood for in its prompt? Matches that a lookup only
 * nominated by their keys are compared before anybody reads them. The digest of all that comes
 * before a block is part of the answer, so the chunks of the prompt are walked again: once for all
 * matches of a call, in the order of the prompt, however many they are. */
#include "find/find.h"
#include "cache/source.h"

static uint32_t place(const struct tsri_wanted *w)
{
    return w->match->prompt_offset - w->match->entry_offset;
}

static bool is_prefix(const struct tsri_wanted *w)
{
    return w->match->kind == TSR_KIND_PREFIX;
}

/* Are their prompts cut into the same chunks? The chain of a prefix knows nothing of its space but
 * the size of its blocks. */
static bool same_walk(const struct tsri_wanted *a, const struct tsri_wanted *b)
{
    return a->prompt == b->prompt && a->space->block_tokens == b->space->block_tokens &&
           a->space->separators == b->space->separators;
}

/* Those of one walk beside each other, in each walk as it comes by them, and the same match twice
 * beside itself. */
static bool is_before(const struct tsri_wanted *a, const struct tsri_wanted *b)
{
    if (a->prompt != b->prompt) return (uintptr_t)a->prompt < (uintptr_t)b->prompt;
    if (a->space->block_tokens != b->space->block_tokens)
        return a->space->block_tokens < b->space->block_tokens;
    if (a->space->separators != b->space->separators)
        return (uintptr_t)a->space->separators < (uintptr_t)b->space->separators;
    if (is_prefix(a) != is_prefix(b)) return is_prefix(a);
    if (place(a) != place(b)) return place(a) < place(b);
    const struct tsr_match *m = a->match, *o = b->match;
    if (m->entry != o->entry) return m->entry < o->entry;
    return m->kind != o->kind ? m->kind < o->kind : m->context < o->context;
}

static struct tsri_wanted *merge(struct tsri_wanted *a, struct tsri_wanted *b)
{
    struct tsri_wanted *list, **end = &list;
    while (a && b) {
        struct tsri_wanted **first = is_before(b, a) ? &b : &a;
        *end = *first;
        end = &(*first)->next;
        *first = *end;
    }
    *end = a ? a : b;
    return list;
}

/* Runs of 1, 2, 4... wait in their slots until there is another one of their length. */
static struct tsri_wanted *sort(struct tsri_wanted *list)
{
    struct tsri_wanted *runs[33] = {NULL}, *all = NULL;
    while (list) {
        struct tsri_wanted *run = list;
        uint32_t i = 0;
        list = list->next;
        run->next = NULL;
        for (; runs[i]; runs[i++] = NULL)
            run = merge(runs[i], run);
        runs[i] = run;
    }
    for (uint32_t i = 0; i < TSRI_COUNT(runs); i++)
        if (runs[i]) all = all ? merge(runs[i], all) : runs[i];
    return all;
}

static void copy_prompt(struct tsr_prompt *out, const struct tsr_prompt *given)
{
    *out = (struct tsr_prompt){0};
    memcpy(out, given, given->size < sizeof *out ? given->size : sizeof *out);
}

/* A digest that the prompt does not ask for is none: then it has no such chunk. */
static void found(struct tsri_wanted *w, const struct tsri_walk *walk,
                  const struct tsri_chunk *chunk)
{
    bool blended = w->match->kind == TSR_KIND_BLENDED;
    bool context = !blended && w->match->context == TSR_CONTEXT_SAME;
    if (is_prefix(w))
        w->digest = chunk->digest;
    else if ((blended && !walk->blended) || (context && !walk->has_context))
        return;
    else if (blended)
        w->digest = walk->recipe;
    else if (context)
        w->digest = walk->context;
    w->n_tokens = chunk->range.n_tokens;
}

static bool next_chunk(struct tsri_walk *walk, bool prefix, struct tsri_chunk *chunk, bool first)
{
    if (!prefix) return tsri_walk_segment(walk, chunk);
    if (!first) tsri_walk_passed(walk, chunk);
    return tsri_walk_block(walk, chunk);
}

static bool goes_along(const struct tsri_wanted *head, const struct tsri_wanted *w)
{
    return w && same_walk(head, w) && is_prefix(head) == is_prefix(w);
}

/* Those of one kind in one walk; returns the first one behind them. */
static struct tsri_wanted *find_kind(struct tsri_walk *walk, struct tsri_wanted *list)
{
    const struct tsri_wanted *head = list;
    struct tsri_chunk chunk;
    for (bool first = true; goes_along(head, list); first = false) {
        bool ends = !next_chunk(walk, is_prefix(head), &chunk, first);
        for (; goes_along(head, list); list = list->next) {
            if (!ends && place(list) > chunk.range.offset) break;
            if (!ends && place(list) == chunk.range.offset) found(list, walk, &chunk);
        }
    }
    return list;
}

struct tsri_wanted *tsri_wanted_find(struct tsri_wanted *list)
{
    for (struct tsri_wanted *w = list; w; w = w->next) {
        w->digest = (struct tsri_digest){{0}};
        w->n_tokens = 0;
    }
    list = sort(list);
    for (struct tsri_wanted *w = list; w;) {
        const struct tsri_wanted *head = w;
        struct tsr_prompt prompt;
        struct tsri_walk walk;
        copy_prompt(&prompt, w->prompt);
        bool walks = tsri_walk_init(&walk, w->space, &prompt) == 0;
        while (w && same_walk(head, w))
            w = walks ? find_kind(&walk, w) : w->next;
    }
    return list;
}

/* A match verified in host memory: the handle says that it is the same entry still. Its tokens are
 * compared again where the prompt is at hand; every load does that, so nothing is copied for it. */
static bool is_same_run(const struct tsr_match *m, const struct tsr_prompt *prompt,
                        struct tsri_meta *meta)
{
    return prompt->size >= offsetof(struct tsr_prompt, flags) &&
           (uint64_t)m->prompt_offset + m->n_tokens <= prompt->n_tokens &&
           (uint64_t)m->entry_offset + m->n_tokens <= meta->n_tokens &&
           memcmp(tsri_meta_tokens(meta) + m->entry_offset, prompt->tokens + m->prompt_offset,
                  (size_t)m->n_tokens * sizeof(uint32_t)) == 0;
}

bool tsri_wanted_is(const struct tsri_wanted *w, const struct tsri_entry *e, struct tsri_meta *meta)
{
    struct tsr_prompt p;
    uint8_t extra[TSRI_EXTRA_BYTES_MAX];
    if (w->match->verified) return is_same_run(w->match, w->prompt, meta);
    copy_prompt(&p, w->prompt);
    if (w->n_tokens == 0 || w->n_tokens != e->n_tokens || w->match->kind != e->kind ||
        !tsri_digest_equal(&meta->digest, &w->digest) ||
        memcmp(tsri_meta_tokens(meta), p.tokens + place(w), (size_t)e->n_tokens * 4) != 0)
        return false;
    /* Segments with media are not found by their tokens: theirs is what every chunk has. */
    struct tsr_range range = {place(w), is_prefix(w) ? w->n_tokens : 0};
    int n = tsri_extra_encode(p.extra, p.n_extra, range, extra);
    return n >= 0 && meta->extra_bytes == (uint32_t)n &&
           memcmp(tsri_meta_extra(meta), extra, (size_t)n) == 0;
}
