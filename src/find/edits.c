/* edits.c - stored text with frequent small edits, in what a scan of the windows has left of a
 * prompt. Shingles of 8 tokens nominate entries (cache/shingles.c), and so do the runs that windows
 * have found, since a text may be edited more often further on. Then the entry is pinned, what must
 * agree is compared, and prompt and entry are aligned token by token around that place (align.c).
 *
 * What is alike enough is taken: min_match_ratio of the longer of the two stretches is equal, and
 * that stretch, edits included, has match_min_tokens, or the entry has and is found as a whole. It
 * becomes runs of equal tokens, each with a pin, like those of the windows; the edits between them
 * belong to no run and are computed. Runs of fewer than 8
 * tokens are counted and left out: whoever reuses a run computes a few tokens at its ends.
 *
 * Work is limited for any text: a place that was looked at together with an entry is not looked at
 * again, tokens that are covered ask for nothing, and aligning and looking for shingles in entries
 * share a budget that is linear in the prompt. Then the rest of the prompt goes without.
 *
 * Threads: one, the lookup's; entries are read under their pins, without a lock. */
#include "find/find.h"

#define TRIED 16u
#define COLD_SEEN 16u
#define PREFETCHES_MAX 4u

/* An entry that was aligned with a stretch of the prompt. */
struct tried {
    uint32_t id, begin, end;
};
/* An entry in a lower tier, and the last shingle that nominated it. */
struct cold_seen {
    uint64_t handle;
    uint32_t at;
    bool asked;
};

struct edit_scan {
    struct tsri_matcher *m;
    struct tsr_range part;
    uint32_t end;
    struct tried tried[TRIED];
    uint32_t n_tried;
    struct cold_seen cold[COLD_SEEN];
    uint32_t n_cold, n_prefetched;
    struct tsri_equal *best, *other; /* runs of two alignments, half of `max` each */
    uint32_t max;
};

/* What a place of the prompt is aligned with. */
struct edit_place {
    uint32_t id, at, entry_offset, n_tokens;
    uint8_t kind, context;
};

/* ---- aligning ---- */

static bool was_tried(const struct edit_scan *s, uint32_t id, uint32_t at)
{
    for (uint32_t i = 0; i < tsri_min_u32(s->n_tried, TRIED); i++)
        if (s->tried[i].id == id && s->tried[i].begin <= at && at < s->tried[i].end) return true;
    return false;
}

/* How many equal tokens must make up for an edit, so that a stretch is alike enough. */
static int32_t edit_cost(double ratio)
{
    double cost = ratio < 1 ? 1 / (1 - ratio) : 64;
    return cost > 64 ? 64 : (int32_t)cost;
}

/* Aligns the entry, which is pinned, at a place. False when that is not alike enough. */
static bool align(struct edit_scan *s, const struct edit_place *p, struct tsri_alignment *x)
{
    struct tsri_matcher *m = s->m;
    const struct tsri_entry *e = &m->c->entries[p->id];
    double ratio = tsri_matcher_ratio(m);
    *x = (struct tsri_alignment){.a = m->prompt->tokens,
                                 .b = tsri_meta_tokens(tsri_meta(m->c, e)),
                                 .a_begin = s->part.offset,
                                 .a_end = s->end,
                                 .b_end = e->n_tokens,
                                 .edit_cost = edit_cost(ratio),
                                 .run_min = tsri_matcher_run_min(m),
                                 .budget = m->edit_budget,
                                 .runs = s->other,
                                 .max = s->max};
    tsri_align(x, p->at, p->entry_offset, p->n_tokens);
    m->edit_budget = x->budget;
    s->tried[s->n_tried++ % TRIED] = (struct tried){p->id, x->a_near_from, x->a_near_to};
    uint32_t in_prompt = x->a_to - x->a_from, in_entry = x->b_to - x->b_from;
    double longer = in_prompt > in_entry ? in_prompt : in_entry;
    struct tsri_stretch stretch = {p->id, x->n_equal + x->n_beyond, in_prompt, in_entry};
    return x->n_equal >= ratio * longer && tsri_matcher_is_long_enough(m, &stretch);
}

/* Nothing better is looked for in what is covered. */
static void cover(struct tsri_matcher *m, const struct tsri_run *r)
{
    if (r->context != TSR_CONTEXT_OTHER)
        tsri_taken_add(m->taken, r->prompt_offset, r->prompt_offset + r->n_tokens);
}

/* Turns an alignment into runs; the entry is pinned once more for each. */
static void keep(struct edit_scan *s, const struct edit_place *p, const struct tsri_alignment *x)
{
    struct tsri_matcher *m = s->m;
    uint32_t n_in_runs = 0;
    for (uint32_t i = 0; i < x->n; i++)
        n_in_runs += x->runs[i].n;
    for (uint32_t i = 0; i < x->n; i++) {
        const struct tsri_equal *r = &x->runs[i];
        struct tsri_run run = {.id = p->id,
                               .prompt_offset = r->a,
                               .entry_offset = r->b,
                               .n_tokens = r->n,
                               .beside = i == 0 ? x->n_equal - n_in_runs + x->n_beyond : 0,
                               .kind = p->kind,
                               .context = p->context,
                               .edits = true,
                               .aligned = r->n < 2 * TSRI_WINDOW - 1};
        /* Dropped since: our own pin keeps its memory, but nobody else may have it. */
        if (tsri_pin(m->c, p->id) != TSRI_HOST) return;
        tsri_matcher_keep(m, &run);
        cover(m, &run);
    }
}

/* ---- runs of windows ---- */

/* What stands around a run that is not all of its entry. */
static void follow_run(struct edit_scan *s, uint32_t i)
{
    struct tsri_matcher *m = s->m;
    const struct tsri_run *r = &m->runs[i];
    if (r->n_tokens == m->c->entries[r->id].n_tokens || was_tried(s, r->id, r->prompt_offset))
        return;
    struct edit_place p = {r->id,       r->prompt_offset, r->entry_offset,
                           r->n_tokens, r->kind,          r->context};
    struct tsri_alignment x;
    if (!align(s, &p, &x)) return;
    if (x.n_equal + x.n_beyond > r->n_tokens)
        keep(s, &p, &x);
    else
        m->runs[i].edits = true; /* nothing more, but it may be joined to what has */
}

/* ---- shingles ---- */

/* The tokens are in a lower tier. Two shingles are no chance: the next prompt shall find them. */
static void remember_cold(struct edit_scan *s, const struct tsri_shingled *n)
{
    struct tsr_cache *c = s->m->c;
    uint64_t word = atomic_load_explicit(&c->entries[n->id].word, memory_order_relaxed);
    uint64_t handle = tsri_handle(n->id, tsri_word_gen(word));
    for (uint32_t i = 0; i < tsri_min_u32(s->n_cold, COLD_SEEN); i++) {
        struct cold_seen *x = &s->cold[i];
        if (x->handle != handle) continue;
        if (x->asked || n->at < x->at + TSRI_SHINGLE || s->n_prefetched == PREFETCHES_MAX) return;
        x->asked = true;
        s->n_prefetched++;
        tsri_matcher_ask_for(s->m, handle);
        return;
    }
    s->cold[s->n_cold++ % COLD_SEEN] = (struct cold_seen){.handle = handle, .at = n->at};
}

/* Finds the shingle in a pinned entry that may be used for this prompt. */
static bool place_of(struct edit_scan *s, const struct tsri_shingled *n, struct edit_place *p)
{
    struct tsri_matcher *m = s->m;
    const struct tsri_entry *e = &m->c->entries[n->id];
    struct tsri_meta *meta = tsri_meta(m->c, e);
    uint64_t steps = tsri_shingle_places(e->n_tokens) + 14;
    if (steps > m->edit_budget || !tsri_matcher_may_use(m, e, meta, &p->context)) return false;
    m->edit_budget -= steps;
    p->entry_offset =
        tsri_shingle_place(m->prompt->tokens + n->at, tsri_meta_tokens(meta), e->n_tokens);
    if (p->entry_offset == UINT32_MAX) {
        tsri_stats_add(m->c->stats, TSRI_M_shingles_false, 1);
        return false;
    }
    p->id = n->id;
    p->at = n->at;
    p->n_tokens = TSRI_SHINGLE;
    p->kind = e->kind;
    return true;
}

/* The nominees of one shingle; of those that are alike enough the one with most equal tokens. */
static void consider(struct edit_scan *s, const struct tsri_shingled *nominees, uint32_t n)
{
    struct tsri_matcher *m = s->m;
    struct edit_place p, best_place = {.id = TSRI_ID_NONE};
    struct tsri_alignment x, best = {0};
    for (uint32_t i = 0; i < n && m->edit_budget; i++) {
        const struct tsri_shingled *one = &nominees[i];
        uint64_t word = atomic_load_explicit(&m->c->entries[one->id].word, memory_order_relaxed);
        if (tsri_word_gen(word) % TSRI_SHINGLE_GENS != one->gen || was_tried(s, one->id, one->at))
            continue;
        enum tsri_state state = tsri_pin(m->c, one->id);
        if (state == TSRI_FREE) continue;
        if (state == TSRI_COLD) remember_cold(s, one);
        bool good = state == TSRI_HOST && place_of(s, one, &p) && align(s, &p, &x) &&
                    x.n_equal > best.n_equal;
        if (!good) {
            tsri_unpin(m->c, one->id);
            continue;
        }
        if (best_place.id != TSRI_ID_NONE) tsri_unpin(m->c, best_place.id);
        best_place = p;
        best = x;
        s->other = s->best;
        s->best = x.runs;
    }
    if (best_place.id == TSRI_ID_NONE) return;
    keep(s, &best_place, &best);
    tsri_unpin(m->c, best_place.id);
}

/* The shingles that begin at the n tokens from `from` on. */
static void scan_some(struct edit_scan *s, uint32_t from, uint32_t n)
{
    struct tsri_matcher *m = s->m;
    struct tsri_shingled nominees[TSRI_SHINGLE_BATCH * TSRI_SHINGLE_CANDIDATES];
    uint32_t n_nominees =
        tsri_shingles_nominate(&m->c->shingles, m->seed, m->prompt->tokens, from, n, nominees);
    for (uint32_t i = 0, k; i < n_nominees; i += k) {
        uint32_t at = nominees[i].at;
        for (k = 1; i + k < n_nominees && nominees[i + k].at == at; k++)
            ;
        /* An alignment may have covered it since. */
        if (tsri_taken_next(m->taken, at, at + TSRI_SHINGLE, true) == at + TSRI_SHINGLE)
            consider(s, nominees + i, k);
    }
}

/* The shingles in what nothing covers. */
static void scan_gaps(struct edit_scan *s)
{
    const struct tsri_matcher *m = s->m;
    for (uint32_t at = s->part.offset; at < s->end && m->edit_budget;) {
        uint32_t from = tsri_taken_next(m->taken, at, s->end, false);
        uint32_t most = tsri_min_u32(s->end - from, TSRI_SHINGLE_BATCH + TSRI_SHINGLE - 1);
        uint32_t to = tsri_taken_next(m->taken, from, from + most, true);
        at = to;
        if (to - from < TSRI_SHINGLE) continue;
        at -= TSRI_SHINGLE - 1;
        scan_some(s, from, at - from);
    }
}

void tsri_edits_scan(struct tsri_matcher *m, struct tsr_range part, uint32_t first_run)
{
    uint32_t n_runs = m->n_runs, end = part.offset + part.n_tokens;
    struct edit_scan s = {.m = m, .part = part, .end = end};
    /* Nothing is chosen yet. */
    s.max = (uint32_t)((size_t)m->runs_max * sizeof m->chosen[0] / sizeof s.best[0] / 2);
    s.best = (struct tsri_equal *)(void *)m->chosen;
    s.other = s.best + s.max;
    for (uint32_t i = first_run; i < n_runs; i++)
        cover(m, &m->runs[i]);
    /* When there are too many runs the shorter half goes: there is no telling which are left. */
    for (uint32_t i = first_run; i < n_runs && m->n_runs >= n_runs && m->edit_budget; i++)
        follow_run(&s, i);
    scan_gaps(&s);
    uint32_t first_word = part.offset / 64;
    memset(m->taken + first_word, 0, ((end + 63) / 64 - first_word) * sizeof m->taken[0]);
}
