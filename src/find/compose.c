/* compose.c - adds what is found at any offset to the rows of a lookup. The parts of the prompt
 * that no row covers and that hold no media are scanned in the first space; in the others, when
 * there is something to agree on; a row is what all spaces have. Rows end up in the order of the
 * prompt. Each row has pins of its own, the matchers' go at the end. */
#include "find/find.h"

#include <stdlib.h>

/* A prompt of 4K tokens needs no memory but the stack's. */
#define STACK_BYTES 24576u

/* ---- the parts of the prompt that are free ---- */

struct gaps {
    const struct tsr_lookup_desc *io;
    uint32_t row, media, n_media;
    uint32_t at, n_tokens;
    uint32_t system_end; /* no part goes on over this */
    struct tsr_range blocked[TSRI_EXTRA_ITEMS_MAX];
};

static uint32_t end_of(struct tsr_range r)
{
    return r.offset + r.n_tokens;
}

static int by_offset(const void *a, const void *b)
{
    const struct tsr_range *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void parts_init(struct gaps *p, const struct tsri_walk *w, const struct tsr_lookup_desc *io)
{
    const struct tsr_prompt *prompt = w->prompt;
    p->io = io;
    p->row = p->media = p->n_media = p->at = 0;
    p->n_tokens = prompt->n_tokens;
    p->system_end = w->has_system ? end_of(w->segments[0]) : 0;
    for (uint32_t i = 0; w->has_media && i < prompt->n_extra; i++)
        if (prompt->extra[i].kind == TSR_EXTRA_MEDIA)
            p->blocked[p->n_media++] =
                (struct tsr_range){prompt->extra[i].offset, prompt->extra[i].n_tokens};
    if (p->n_media) qsort(p->blocked, p->n_media, sizeof p->blocked[0], by_offset);
}

/* Moves on over a range that is not free, or stops before it. True when it moved. */
static bool avoid(struct gaps *p, struct tsr_range range, uint32_t *stop)
{
    if (range.offset <= p->at) {
        if (end_of(range) > p->at) p->at = end_of(range);
        return true;
    }
    *stop = tsri_min_u32(*stop, range.offset);
    return false;
}

static bool next_part(struct gaps *p, struct tsr_range *out)
{
    const struct tsr_lookup_desc *io = p->io;
    while (p->at < p->n_tokens) {
        uint32_t stop = p->n_tokens;
        while (p->row < io->n_matches) {
            const struct tsr_match *m = &io->matches[(size_t)p->row * io->n_spaces];
            if (!avoid(p, (struct tsr_range){m->prompt_offset, m->n_tokens}, &stop)) break;
            p->row++;
        }
        bool moved = false;
        while (p->media < p->n_media && avoid(p, p->blocked[p->media], &stop)) {
            p->media++;
            moved = true;
        }
        if (moved) continue; /* perhaps into a row */
        if (p->at < p->system_end) stop = tsri_min_u32(stop, p->system_end);
        *out = (struct tsr_range){p->at, stop - p->at};
        p->at = stop;
        if (out->n_tokens >= TSRI_WINDOW) return true;
    }
    return false;
}

/* ---- what all spaces have ---- */

struct composing {
    const struct tsri_compose *q;
    struct tsri_matcher *matchers; /* one a space */
    void **memory;                 /* of each, NULL for the stack's */
    uint32_t n_matchers;
    struct tsr_range *pieces;
    uint32_t n_pieces, pieces_max;
};

static void scan(struct composing *x, struct tsri_matcher *m)
{
    const struct tsri_walk *w = x->q->walk;
    struct gaps parts;
    struct tsr_range part;
    parts_init(&parts, w, x->q->io);
    while (next_part(&parts, &part)) {
        m->context = w->has_context && part.offset >= parts.system_end ? &w->context : NULL;
        tsri_matcher_scan(m, part);
    }
    tsri_matcher_choose(m);
}

/* The pieces stand where the first matcher had the runs that it has chosen from. */
static void first_pieces(struct composing *x)
{
    const struct tsri_matcher *m = &x->matchers[0];
    x->pieces = (struct tsr_range *)(void *)m->runs;
    x->pieces_max = (uint32_t)((size_t)m->runs_max * sizeof m->runs[0] / sizeof x->pieces[0]);
    for (uint32_t i = 0; i < m->n_chosen; i++)
        x->pieces[x->n_pieces++] =
            (struct tsr_range){m->chosen[i].prompt_offset, m->chosen[i].n_tokens};
}

/* Cuts the pieces down to what the matcher has as well. A piece may fall apart; there is room for
 * as many as both lists have. */
static void intersect(struct composing *x, const struct tsri_matcher *m)
{
    struct tsr_range *in = x->pieces + (x->pieces_max - x->n_pieces);
    uint32_t n_in = x->n_pieces, n = 0;
    memmove(in, x->pieces, n_in * sizeof in[0]);
    for (uint32_t i = 0, k = 0; i < n_in && k < m->n_chosen;) {
        const struct tsri_run *run = &m->chosen[k];
        uint32_t run_end = run->prompt_offset + run->n_tokens, piece_end = end_of(in[i]);
        uint32_t from = in[i].offset > run->prompt_offset ? in[i].offset : run->prompt_offset;
        uint32_t to = tsri_min_u32(run_end, piece_end);
        uint32_t min = run->edits ? tsri_matcher_run_min(m) : m->min_tokens;
        if (piece_end <= run_end) i++;
        if (run_end <= piece_end) k++;
        if (from < to && to - from >= min && &x->pieces[n] < &in[i])
            x->pieces[n++] = (struct tsr_range){from, to - from};
    }
    x->n_pieces = n;
}

static int longest_first(const void *a, const void *b)
{
    const struct tsr_range *x = a, *y = b;
    if (x->n_tokens != y->n_tokens) return x->n_tokens > y->n_tokens ? -1 : 1;
    return by_offset(a, b);
}

static void keep_longest(struct composing *x, uint32_t n)
{
    if (x->n_pieces <= n) return;
    qsort(x->pieces, x->n_pieces, sizeof x->pieces[0], longest_first);
    x->n_pieces = n;
    qsort(x->pieces, x->n_pieces, sizeof x->pieces[0], by_offset);
}

/* ---- rows ---- */

static uint8_t coverage_of(const struct tsri_run *run, uint32_t n_tokens, uint32_t entry_tokens,
                           double ratio)
{
    if (run->coverage != TSR_COVERAGE_FULL || n_tokens == entry_tokens) return run->coverage;
    return n_tokens >= ratio * entry_tokens ? TSR_COVERAGE_PARTIAL : TSR_COVERAGE_RUN;
}

static void fill(struct tsr_cache *c, const struct tsri_run *run, struct tsr_range piece,
                 struct tsr_match *out)
{
    const struct tsri_entry *e = &c->entries[run->id];
    const struct tsri_meta *meta = tsri_meta(c, e);
    uint64_t gen = tsri_word_gen(atomic_load_explicit(&e->word, memory_order_relaxed));
    *out = (struct tsr_match){
        .entry = tsri_handle(run->id, gen),
        .epoch = c->epoch,
        .prompt_offset = piece.offset,
        .entry_offset = run->entry_offset + (piece.offset - run->prompt_offset),
        .n_tokens = piece.n_tokens,
        .kind = run->kind,
        .context = run->context,
        .verified = 1,
        .base = meta->base,
        .freq_set = meta->freq_set,
        .entry_tokens = e->n_tokens,
        .coverage = coverage_of(run, piece.n_tokens, e->n_tokens, c->options.min_match_ratio),
        .edits = run->aligned};
}

/* One more pin on each entry of a row; all or none. */
static bool pin_row(struct composing *x, const struct tsri_run *const *runs, uint32_t n)
{
    struct tsr_cache *c = x->matchers[0].c;
    uint32_t ids[TSRI_LOOKUP_SPACES_MAX], n_pinned = 0;
    /* Dropped since: our own pin keeps its memory, but nobody else may have it. */
    while (n_pinned < n && tsri_pin(c, runs[n_pinned]->id) == TSRI_HOST) {
        ids[n_pinned] = runs[n_pinned]->id;
        n_pinned++;
    }
    if (n_pinned == n && x->q->may(x->q->arg, ids, n)) return true;
    while (n_pinned > 0)
        tsri_unpin(c, ids[--n_pinned]);
    return false;
}

/* Counts a row that was found around edits; `group` is the last of which a match was counted. */
static void count_edits(struct tsr_cache *c, const struct tsri_run *run, uint32_t n_tokens,
                        uint32_t *group)
{
    if (!run->aligned) return;
    tsri_stats_add(c->stats, TSRI_M_lookup_tokens_edits, n_tokens);
    if (run->coverage != TSR_COVERAGE_PARTIAL || run->group == *group) return;
    tsri_stats_add(c->stats, TSRI_M_edit_matches, 1);
    *group = run->group;
}

/* Writes the pieces behind the rows there are; returns how many tokens. */
static uint32_t add_rows(struct composing *x)
{
    struct tsr_lookup_desc *io = x->q->io;
    struct tsr_cache *c = x->matchers[0].c;
    uint32_t n_tokens = 0, group = UINT32_MAX, at[TSRI_LOOKUP_SPACES_MAX] = {0};
    for (uint32_t i = 0; i < x->n_pieces; i++) {
        const struct tsri_run *runs[TSRI_LOOKUP_SPACES_MAX];
        for (uint32_t s = 0; s < io->n_spaces; s++) {
            const struct tsri_run *all = x->matchers[s].chosen;
            while (all[at[s]].prompt_offset + all[at[s]].n_tokens <= x->pieces[i].offset)
                at[s]++;
            runs[s] = &all[at[s]];
        }
        if (!pin_row(x, runs, io->n_spaces)) continue;
        struct tsr_match *row = io->matches + (size_t)io->n_matches++ * io->n_spaces;
        for (uint32_t s = 0; s < io->n_spaces; s++) {
            fill(c, runs[s], x->pieces[i], &row[s]);
            x->q->took(x->q->arg, runs[s]->id);
        }
        count_edits(c, runs[0], x->pieces[i].n_tokens, &group);
        n_tokens += x->pieces[i].n_tokens;
    }
    return n_tokens;
}

static int by_prompt_offset(const void *a, const void *b)
{
    const struct tsr_match *x = a, *y = b;
    return x->prompt_offset < y->prompt_offset ? -1 : x->prompt_offset > y->prompt_offset;
}

static uint32_t compose(struct composing *x, void *stack)
{
    struct tsr_lookup_desc *io = x->q->io;
    uint32_t n_tokens = x->q->walk->prompt->n_tokens;
    size_t bytes = tsri_matcher_bytes(io->spaces[0]->cache, n_tokens);
    for (uint32_t s = 0; s < io->n_spaces && (s == 0 || x->n_pieces); s++) {
        struct tsri_matcher *m = &x->matchers[s];
        bool fits = s == 0 && bytes <= STACK_BYTES;
        x->memory[s] = fits ? NULL : tsri_alloc(1, bytes);
        if (!fits && !x->memory[s]) return 0; /* without memory it is a miss */
        tsri_matcher_init(m, io->spaces[s], x->q->walk, fits ? stack : x->memory[s]);
        x->n_matchers++;
        scan(x, m);
        if (s == 0)
            first_pieces(x);
        else
            intersect(x, m);
    }
    if (x->n_pieces == 0) return 0;
    keep_longest(x, io->matches_max - io->n_matches);
    keep_longest(x, x->q->grant(x->q->arg, x->n_pieces));
    bool merge = io->n_matches > 0;
    n_tokens = add_rows(x);
    if (merge)
        qsort(io->matches, io->n_matches, io->n_spaces * sizeof io->matches[0], by_prompt_offset);
    return n_tokens;
}

uint32_t tsri_compose(const struct tsri_compose *q)
{
    if (q->io->spaces[0]->cache->windows.n_buckets == 0 || q->io->n_matches == q->io->matches_max)
        return 0;
    struct tsri_matcher matchers[TSRI_LOOKUP_SPACES_MAX];
    void *memory[TSRI_LOOKUP_SPACES_MAX];
    uint64_t stack[STACK_BYTES / sizeof(uint64_t)];
    struct composing x = {.q = q, .matchers = matchers, .memory = memory};
    uint32_t n = compose(&x, stack);
    for (uint32_t s = 0; s < x.n_matchers; s++) {
        tsri_matcher_fini(&x.matchers[s]);
        tsri_free(x.memory[s]);
    }
    return n;
}
