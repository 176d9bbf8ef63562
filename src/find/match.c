/* match.c - the runs of tokens that a prompt and the entries of one space have in common, wherever
 * they stand in either. Windows nominate (windows.c); here the entry is pinned, everything that
 * must agree is compared, and the window grown to the whole run. A run keeps its pin until it is
 * given back.
 *
 * Every common run of 63 tokens is found, or all of its tokens are covered by runs that are at
 * least as good, in work that is linear in the prompt: a window that lies at least 31 tokens deep
 * in what is already covered cannot begin or end anything new and is passed over; so nothing grows
 * twice over the same ground, except where texts repeat themselves at many offsets, and there a
 * budget sends growing back to one window at a time, which still covers everything.
 *
 * Then runs of one entry that follow each other in prompt and entry, with edited tokens between
 * them, are joined into groups; longest groups first, whatever is still free of a run is kept; and
 * what remains of a group tells how much of its entry was found.
 *
 * Threads: a matcher belongs to its lookup; entries are read under their pins, without a lock. Long
 * prompts are scanned by several (slices.c). */
#include "find/find.h"
#include "cache/manager.h"

#include <stdlib.h>

#define RUNS_MAX 65536u
/* A prompt of two slices or more is matched by several threads. A slice takes about 150 us; to wake
 * a thread takes a tenth of that (bench_match, docs/performance.md). */
#define SLICE_TOKENS 32768u
#define MARGIN (TSRI_WINDOW - 1)
/* Around edits: the shortest run worth its ends, and the mean length that there is memory for. */
#define EDIT_RUN_MIN 8u
#define EDIT_RUN 16u
#define RECENT 16u
#define AHEAD 32u
#define SUSPECTS 64u
#define PREFETCHES_MAX 16u

/* An interval of the prompt in which every token belongs to a run. */
struct cover {
    uint32_t begin, end;
};

/* A window of an entry in a lower tier: two on one diagonal are no chance, one alone may be. */
struct suspect {
    uint64_t handle;
    uint32_t diagonal, at; /* at: the first one, in the prompt */
    bool seen, asked;
};

struct run_scan {
    struct tsri_matcher *m;
    struct tsr_range part;
    uint32_t end;
    struct cover covers[3]; /* by rank: of runs that rank so or better */
    struct {
        uint32_t id, diagonal, end;
    } recent[RECENT];
    uint32_t n_recent;
    struct suspect suspects[SUSPECTS];
    uint32_t n_prefetched;
};

/* ---- comparing ---- */

static bool same_tokens(const uint32_t *a, const uint32_t *b, uint32_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* How many of the first n tokens are the same, one after the other. */
uint32_t tsri_same_ahead(const uint32_t *a, const uint32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (n - i >= 64 && same_tokens(a + i, b + i, 64))
        i += 64;
    while (n - i >= 8 && same_tokens(a + i, b + i, 8))
        i += 8;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The same before a and b. */
uint32_t tsri_same_behind(const uint32_t *a, const uint32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (n - i >= 64 && same_tokens(a - i - 64, b - i - 64, 64))
        i += 64;
    while (n - i >= 8 && same_tokens(a - i - 8, b - i - 8, 8))
        i += 8;
    while (i < n && *(a - i - 1) == *(b - i - 1))
        i++;
    return i;
}

/* ---- a matcher ---- */

uint32_t tsri_matcher_runs_max(uint32_t n_tokens, bool edits)
{
    return tsri_min_u32(n_tokens / (edits ? EDIT_RUN : TSRI_WINDOW) + 64, RUNS_MAX);
}

uint32_t tsri_matcher_run_min(const struct tsri_matcher *m)
{
    return tsri_min_u32(EDIT_RUN_MIN, m->min_tokens);
}

static size_t taken_bytes(uint32_t n_tokens)
{
    return ((size_t)n_tokens + 63) / 64 * sizeof(uint64_t);
}

uint64_t tsri_matcher_budget(uint32_t n_tokens)
{
    return (uint64_t)n_tokens * 32 + 65536;
}

static bool finds_edits(const struct tsr_cache *c)
{
    return c->shingles.n_buckets > 0;
}

size_t tsri_matcher_bytes(const struct tsr_cache *c, uint32_t n_tokens)
{
    return taken_bytes(n_tokens) +
           2 * sizeof(struct tsri_run) * tsri_matcher_runs_max(n_tokens, finds_edits(c));
}

void tsri_matcher_init(struct tsri_matcher *m, const struct tsr_space *space,
                       const struct tsri_walk *walk, void *memory)
{
    const struct tsr_prompt *prompt = walk->prompt;
    *m = (struct tsri_matcher){.c = space->cache,
                               .space = space,
                               .prompt = prompt,
                               .extra = walk->common,
                               .extra_bytes = walk->common_bytes,
                               .other = (prompt->flags & TSR_PROMPT_OTHER) != 0,
                               .whole = space->cache->options.partial == TSRI_PARTIAL_OFF,
                               .edits = finds_edits(space->cache),
                               .min_tokens = space->cache->options.match_min_tokens,
                               .seed = tsri_window_seed(space->fingerprint, walk->common_hash),
                               .budget = tsri_matcher_budget(prompt->n_tokens),
                               .edit_budget = (uint64_t)prompt->n_tokens * 16 + 32768,
                               .slice_tokens = SLICE_TOKENS,
                               .taken = memory};
    m->runs_max = tsri_matcher_runs_max(prompt->n_tokens, m->edits);
    memset(m->taken, 0, taken_bytes(prompt->n_tokens));
    m->runs = (struct tsri_run *)(void *)((uint8_t *)memory + taken_bytes(prompt->n_tokens));
    m->chosen = m->runs + m->runs_max;
}

void tsri_matcher_fini(struct tsri_matcher *m)
{
    for (uint32_t i = 0; i < m->n_runs; i++)
        tsri_unpin(m->c, m->runs[i].id);
    for (uint32_t i = 0; i < m->n_chosen; i++)
        tsri_unpin(m->c, m->chosen[i].id);
    m->n_runs = m->n_chosen = 0;
}

/* ---- what is covered ---- */

/* Whether a window at `at` is so deep in a cover that runs through it which reach out of it, on one
 * side or on either, have another window that is not. */
static bool is_deep_left(const struct run_scan *s, const struct cover *c, uint32_t at)
{
    return (at < s->part.offset + MARGIN ? s->part.offset : at - MARGIN) >= c->begin;
}
static bool is_deep_right(const struct run_scan *s, const struct cover *c, uint32_t at)
{
    return tsri_min_u32(at + TSRI_WINDOW + MARGIN, s->end) <= c->end;
}
static bool is_deep(const struct run_scan *s, const struct cover *c, uint32_t at)
{
    return is_deep_left(s, c, at) && is_deep_right(s, c, at);
}

static void cover(struct run_scan *s, uint32_t rank, uint32_t begin, uint32_t end)
{
    for (uint32_t r = rank; r < TSRI_COUNT(s->covers); r++) {
        struct cover *c = &s->covers[r];
        if (begin > c->end) {
            *c = (struct cover){begin, end};
        } else {
            if (begin < c->begin) c->begin = begin;
            if (end > c->end) c->end = end;
        }
    }
}

static uint32_t rank_of(uint8_t context)
{
    return (uint32_t)context - TSR_CONTEXT_SAME;
}

/* ---- runs ---- */

static int longest_first(const void *a, const void *b)
{
    const struct tsri_run *x = a, *y = b;
    if (x->n_tokens != y->n_tokens) return x->n_tokens < y->n_tokens ? 1 : -1;
    return x->prompt_offset < y->prompt_offset ? -1 : x->prompt_offset > y->prompt_offset;
}

void tsri_matcher_keep(struct tsri_matcher *m, const struct tsri_run *run)
{
    if (m->n_runs == m->runs_max) {
        qsort(m->runs, m->n_runs, sizeof m->runs[0], longest_first);
        while (m->n_runs > m->runs_max / 2)
            tsri_unpin(m->c, m->runs[--m->n_runs].id);
    }
    m->runs[m->n_runs++] = *run;
}

/* How far a run may grow on one side. Both sides always get what the guarantee needs. */
static uint32_t reach(struct tsri_matcher *m, uint32_t n)
{
    return m->budget ? n : tsri_min_u32(n, MARGIN);
}

static void spend(struct tsri_matcher *m, uint32_t n)
{
    m->budget -= n < m->budget ? n : m->budget;
}

/* Grows the window to the whole run; false when all of that is covered already, or will be looked
 * at again where it reaches out. The side that may reach out grows first: text that repeats itself
 * has many runs that do not. */
static bool grow(struct run_scan *s, const struct tsri_nominee *n, const uint32_t *tokens,
                 uint32_t entry_tokens, struct tsri_run *run)
{
    struct tsri_matcher *m = s->m;
    const struct cover *c = &s->covers[rank_of(run->context)];
    const uint32_t *prompt = m->prompt->tokens;
    uint32_t at = n->at + TSRI_WINDOW, in_entry = n->entry_offset + TSRI_WINDOW;
    uint32_t ahead = reach(m, tsri_min_u32(s->end - at, entry_tokens - in_entry));
    uint32_t behind = reach(m, tsri_min_u32(n->at - s->part.offset, n->entry_offset));
    bool inside = is_deep_right(s, c, n->at), grown = !inside;
    if (grown) {
        ahead = tsri_same_ahead(prompt + at, tokens + in_entry, ahead);
        spend(m, ahead);
        inside = at + ahead <= c->end;
        if (inside && is_deep_left(s, c, n->at)) return false;
    }
    behind = tsri_same_behind(prompt + n->at, tokens + n->entry_offset, behind);
    spend(m, behind);
    if (inside && n->at - behind >= c->begin) return false;
    if (!grown) {
        ahead = tsri_same_ahead(prompt + at, tokens + in_entry, ahead);
        spend(m, ahead);
    }
    run->prompt_offset = n->at - behind;
    run->entry_offset = n->entry_offset - behind;
    run->n_tokens = behind + TSRI_WINDOW + ahead;
    return true;
}

/* 0: not to be used for this prompt. */
static uint8_t context_of(const struct tsri_matcher *m, const struct tsri_entry *e,
                          const struct tsri_meta *meta)
{
    static const struct tsri_digest pure;
    uint8_t other = m->other ? TSR_CONTEXT_OTHER : 0;
    if (e->kind == TSR_KIND_BLENDED) return 0;
    if (e->kind == TSR_KIND_PREFIX) return other;
    if (tsri_digest_equal(&meta->digest, &pure)) return TSR_CONTEXT_PURE;
    if (m->context && tsri_digest_equal(&meta->digest, m->context)) return TSR_CONTEXT_SAME;
    return other;
}

static bool has_same_extra(const struct tsri_matcher *m, struct tsri_meta *meta)
{
    return meta->extra_bytes == m->extra_bytes &&
           memcmp(tsri_meta_extra(meta), m->extra, m->extra_bytes) == 0;
}

bool tsri_matcher_may_use(const struct tsri_matcher *m, const struct tsri_entry *e,
                          struct tsri_meta *meta, uint8_t *context)
{
    *context = context_of(m, e, meta);
    return *context && e->space == m->space->id && has_same_extra(m, meta);
}

/* Looks at a pinned entry; true when a run was taken, with the pin. */
static bool take(struct run_scan *s, const struct tsri_nominee *n)
{
    struct tsri_matcher *m = s->m;
    const struct tsri_entry *e = &m->c->entries[n->id];
    struct tsri_meta *meta = tsri_meta(m->c, e);
    const uint32_t *tokens = tsri_meta_tokens(meta);
    if (e->space != m->space->id || (uint64_t)n->entry_offset + TSRI_WINDOW > e->n_tokens ||
        !same_tokens(m->prompt->tokens + n->at, tokens + n->entry_offset, TSRI_WINDOW) ||
        !has_same_extra(m, meta)) {
        tsri_stats_add(m->c->stats, TSRI_M_windows_false, 1);
        return false;
    }
    struct tsri_run run = {.id = n->id, .kind = e->kind, .context = context_of(m, e, meta)};
    if (!run.context || is_deep(s, &s->covers[rank_of(run.context)], n->at)) return false;
    if (!grow(s, n, tokens, e->n_tokens, &run)) return false;
    uint32_t end = run.prompt_offset + run.n_tokens;
    bool taken = !m->whole || run.n_tokens == e->n_tokens;
    if (taken) cover(s, rank_of(run.context), run.prompt_offset, end);
    s->recent[s->n_recent % RECENT].id = n->id;
    s->recent[s->n_recent % RECENT].diagonal = n->at - n->entry_offset;
    s->recent[s->n_recent++ % RECENT].end = end;
    if (taken) tsri_matcher_keep(m, &run);
    return taken;
}

/* ---- nominees ---- */

static bool is_in_a_run(const struct run_scan *s, const struct tsri_nominee *n)
{
    for (uint32_t i = 0; i < tsri_min_u32(s->n_recent, RECENT); i++)
        if (s->recent[i].id == n->id && s->recent[i].diagonal == n->at - n->entry_offset &&
            n->at < s->recent[i].end)
            return true;
    return false;
}

static bool is_covered(const struct tsri_matcher *m, uint32_t at)
{
    for (uint32_t i = 0; i < m->n_runs; i++) {
        const struct tsri_run *r = &m->runs[i];
        if (r->prompt_offset <= at && at + TSRI_WINDOW <= r->prompt_offset + r->n_tokens)
            return true;
    }
    return false;
}

/* A prompt asks for an entry once, by windows or by shingles. */
static bool ask_first(struct tsri_matcher *m, uint64_t handle)
{
    for (uint32_t i = 0; i < tsri_min_u32(m->n_asked, TSRI_MATCHER_ASKED); i++)
        if (m->asked[i] == handle) return false;
    m->asked[m->n_asked++ % TSRI_MATCHER_ASKED] = handle;
    return true;
}

void tsri_matcher_ask_for(struct tsri_matcher *m, uint64_t handle)
{
    if (ask_first(m, handle)) tsri_cache_prefetch_one(m->c, handle, NULL);
}

/* A window that stayed alone. Of 63 common tokens no more need be found, so it is not passed over;
 * but the table knows only a part of its hash, and whoever reads the entry asks the tier for all of
 * it first. */
static void doubt(struct run_scan *s, struct suspect *x)
{
    struct tsri_matcher *m = s->m;
    if (!x->seen || x->asked || s->n_prefetched == PREFETCHES_MAX || is_covered(m, x->at)) return;
    x->asked = true;
    s->n_prefetched++;
    struct tsri_window_claim claim = {
        .number = (x->at - x->diagonal) / TSRI_WINDOW,
        .hash = tsri_window_finish(tsri_window_hash(m->prompt->tokens + x->at), m->seed)};
    if (ask_first(m, x->handle)) tsri_manager_prefetch_window(m->c, x->handle, &claim);
}

/* The tokens are in a lower tier and cannot be compared now: no match, but the next prompt shall
 * find them. */
static void suspect(struct run_scan *s, const struct tsri_nominee *n)
{
    struct tsri_matcher *m = s->m;
    uint64_t word = atomic_load_explicit(&m->c->entries[n->id].word, memory_order_relaxed);
    tsri_stats_add(m->c->stats, TSRI_M_windows_cold, 1);
    uint64_t handle = tsri_handle(n->id, tsri_word_gen(word));
    uint32_t diagonal = n->at - n->entry_offset;
    struct suspect *x = &s->suspects[(n->id * 0x9E3779B9u ^ diagonal * 0x85EBCA6Bu) >> 26];
    if (!x->seen || x->handle != handle || x->diagonal != diagonal) {
        doubt(s, x);
        *x = (struct suspect){.handle = handle, .diagonal = diagonal, .at = n->at, .seen = true};
        return;
    }
    if (x->asked || s->n_prefetched == PREFETCHES_MAX) return;
    x->asked = true;
    s->n_prefetched++;
    tsri_matcher_ask_for(m, handle);
}

/* The cover in which no better run can be. */
static const struct cover *best_cover(const struct run_scan *s)
{
    return &s->covers[rank_of(s->m->context ? TSR_CONTEXT_SAME : TSR_CONTEXT_PURE)];
}

/* Pins what may be something new and asks the memory for what will be compared. */
static enum tsri_state pin_nominee(const struct run_scan *s, const struct tsri_nominee *n)
{
    struct tsr_cache *c = s->m->c;
    const struct tsri_entry *e = &c->entries[n->id];
    if (is_deep(s, best_cover(s), n->at) || is_in_a_run(s, n)) return TSRI_FREE;
    uint64_t word = atomic_load_explicit(&e->word, memory_order_relaxed);
    if (tsri_word_gen(word) % TSRI_WINDOW_GENS != n->gen) return TSRI_FREE;
    enum tsri_state state = tsri_pin(c, n->id);
    if (state != TSRI_HOST) return state;
    const struct tsri_meta *meta = tsri_meta(c, e);
    __builtin_prefetch(meta);
    __builtin_prefetch((const uint32_t *)(meta + 1) + n->entry_offset);
    __builtin_prefetch((const uint32_t *)(meta + 1) + n->entry_offset + 16);
    return state;
}

static void consider(struct run_scan *s, const struct tsri_nominee *n, enum tsri_state state)
{
    if (state == TSRI_FREE) return;
    bool is_new = !is_deep(s, best_cover(s), n->at) && !is_in_a_run(s, n);
    if (is_new && state == TSRI_HOST && take(s, n)) return;
    if (is_new && state == TSRI_COLD) suspect(s, n);
    tsri_unpin(s->m->c, n->id);
}

/* All nominees are pinned before the first is looked at, so that their tokens are on the way. */
static void consider_all(struct run_scan *s, const struct tsri_nominee *nominees, uint32_t n)
{
    uint8_t states[AHEAD];
    for (uint32_t i = 0; i < n; i++)
        __builtin_prefetch(&s->m->c->entries[nominees[i].id]);
    for (uint32_t first = 0; first < n; first += AHEAD) {
        uint32_t some = tsri_min_u32(AHEAD, n - first);
        for (uint32_t i = 0; i < some; i++)
            states[i] = (uint8_t)pin_nominee(s, &nominees[first + i]);
        for (uint32_t i = 0; i < some; i++)
            consider(s, &nominees[first + i], (enum tsri_state)states[i]);
    }
}

void tsri_matcher_scan_slice(struct tsri_matcher *m, struct tsr_range part, struct tsr_range slice)
{
    struct run_scan s = {.m = m, .part = part, .end = part.offset + part.n_tokens};
    for (uint32_t r = 0; r < TSRI_COUNT(s.covers); r++)
        s.covers[r] = (struct cover){part.offset, part.offset};
    struct tsri_nominee nominees[TSRI_WINDOW_BATCH * TSRI_WINDOW_CANDIDATES];
    struct tsri_window_scan windows;
    const struct cover *best = best_cover(&s);
    /* The last window begins with the slice's last token. */
    uint32_t end = tsri_min_u32(s.end, slice.offset + slice.n_tokens + TSRI_WINDOW - 1);
    tsri_window_scan_init(&windows, &m->c->windows, m->seed, m->prompt->tokens, end);
    for (uint32_t at = slice.offset; at < end;) {
        uint32_t n = tsri_window_scan_some(&windows, at, &at, nominees);
        consider_all(&s, nominees, n);
        /* On to the first window that reaches out again. */
        if (at < s.end && is_deep(&s, best, at))
            at = best->end == s.end ? s.end : best->end - TSRI_WINDOW - MARGIN + 1;
    }
    for (uint32_t i = 0; i < SUSPECTS; i++)
        doubt(&s, &s.suspects[i]);
}

void tsri_matcher_scan(struct tsri_matcher *m, struct tsr_range part)
{
    if (part.n_tokens < TSRI_WINDOW) return;
    uint32_t first = m->n_runs;
    if (part.n_tokens / 2 < m->slice_tokens || !tsri_slices_scan(m, part))
        tsri_matcher_scan_slice(m, part, part);
    if (m->edits) tsri_edits_scan(m, part, tsri_min_u32(first, m->n_runs));
}

/* ---- joining ---- */

static int by_entry(const struct tsri_run *x, const struct tsri_run *y)
{
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    if (x->edits != y->edits) return x->edits ? -1 : 1;
    if (x->prompt_offset != y->prompt_offset) return x->prompt_offset < y->prompt_offset ? -1 : 1;
    if (x->n_tokens != y->n_tokens) return x->n_tokens > y->n_tokens ? -1 : 1;
    return x->entry_offset < y->entry_offset ? -1 : x->entry_offset > y->entry_offset;
}

/* Whether `next` goes on where `last` was interrupted by an edit: further on in both, with no more
 * inserted than the entry may differ by. */
static bool goes_on(const struct tsri_matcher *m, const struct tsri_run *last,
                    const struct tsri_run *next)
{
    if (next->id != last->id || next->edits != last->edits ||
        next->entry_offset <= last->entry_offset ||
        next->entry_offset + next->n_tokens <= last->entry_offset + last->n_tokens ||
        next->prompt_offset + next->n_tokens <= last->prompt_offset + last->n_tokens)
        return false;
    double edits = (1 - m->c->options.min_match_ratio) * m->c->entries[last->id].n_tokens;
    uint32_t inserted_max = edits > TSRI_WINDOW ? (uint32_t)edits : TSRI_WINDOW;
    uint64_t last_end = (uint64_t)last->prompt_offset + last->n_tokens;
    return next->prompt_offset <= last_end + inserted_max;
}

static bool is_same_run(const struct tsri_run *a, const struct tsri_run *b)
{
    return a->id == b->id && a->prompt_offset == b->prompt_offset &&
           a->entry_offset == b->entry_offset && a->n_tokens == b->n_tokens;
}

/* Two slices find a run that stands in both. */
static void drop_twins(struct tsri_matcher *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_runs; i++)
        if (n && is_same_run(&m->runs[n - 1], &m->runs[i]))
            tsri_unpin(m->c, m->runs[i].id);
        else
            m->runs[n++] = m->runs[i];
    m->n_runs = n;
}

/* Numbers the groups and tells each run how many tokens its group has. */
static void join(struct tsri_matcher *m)
{
    tsri_runs_sort(m->runs, m->n_runs, m->chosen, by_entry);
    drop_twins(m);
    for (uint32_t i = 0, n; i < m->n_runs; i += n) {
        uint64_t sum = m->runs[i].n_tokens;
        for (n = 1; i + n < m->n_runs && goes_on(m, &m->runs[i + n - 1], &m->runs[i + n]); n++)
            sum += m->runs[i + n].n_tokens;
        for (uint32_t k = i; k < i + n; k++) {
            m->runs[k].group = i;
            m->runs[k].group_tokens = sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
        }
    }
}

/* ---- choosing ---- */

/* Runs computed behind other text come last, then the longest groups, then the better context. */
static int best_first(const struct tsri_run *x, const struct tsri_run *y)
{
    bool x_other = x->context == TSR_CONTEXT_OTHER, y_other = y->context == TSR_CONTEXT_OTHER;
    if (x_other != y_other) return x_other ? 1 : -1;
    if (x->group_tokens != y->group_tokens) return x->group_tokens > y->group_tokens ? -1 : 1;
    if (x->context != y->context) return x->context < y->context ? -1 : 1;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->prompt_offset < y->prompt_offset ? -1 : x->prompt_offset > y->prompt_offset;
}

static int by_prompt(const struct tsri_run *x, const struct tsri_run *y)
{
    return x->prompt_offset < y->prompt_offset ? -1 : x->prompt_offset > y->prompt_offset;
}

/* The first token from `at` on, before end, that is taken or not. */
uint32_t tsri_taken_next(const uint64_t *taken, uint32_t at, uint32_t end, bool is_taken)
{
    while (at < end) {
        uint64_t word = is_taken ? taken[at / 64] : ~taken[at / 64];
        word >>= at % 64;
        if (word) return tsri_min_u32(at + (uint32_t)__builtin_ctzll(word), end);
        at = (at / 64 + 1) * 64;
    }
    return end;
}

void tsri_taken_add(uint64_t *taken, uint32_t at, uint32_t end)
{
    while (at < end) {
        uint32_t n = tsri_min_u32(64 - at % 64, end - at);
        taken[at / 64] |= (n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) << at % 64;
        at += n;
    }
}

/* Keeps the parts of the run that are free and long enough. The first has the run's pin. */
static void keep_free(struct tsri_matcher *m, const struct tsri_run *run)
{
    uint32_t end = run->prompt_offset + run->n_tokens;
    uint32_t min = run->edits ? tsri_matcher_run_min(m) : m->min_tokens;
    bool pinned = true;
    for (uint32_t at = run->prompt_offset; at < end;) {
        uint32_t from = tsri_taken_next(m->taken, at, end, false);
        at = tsri_taken_next(m->taken, from, end, true);
        if (at - from < min || m->n_chosen == m->runs_max) continue;
        if (!pinned && tsri_pin(m->c, run->id) != TSRI_HOST) break;
        struct tsri_run *part = &m->chosen[m->n_chosen++];
        *part = *run;
        part->prompt_offset = from;
        part->entry_offset += from - run->prompt_offset;
        part->n_tokens = at - from;
        part->beside = pinned ? run->beside : 0;
        tsri_taken_add(m->taken, from, at);
        pinned = false;
    }
    if (pinned) tsri_unpin(m->c, run->id);
}

double tsri_matcher_ratio(const struct tsri_matcher *m)
{
    double ratio = m->c->options.min_match_ratio;
    return ratio < 0.5 ? 0.5 : ratio;
}

bool tsri_matcher_is_long_enough(const struct tsri_matcher *m, const struct tsri_stretch *s)
{
    double ratio = tsri_matcher_ratio(m);
    uint32_t longer = s->in_prompt > s->in_entry ? s->in_prompt : s->in_entry;
    uint32_t entry_tokens = m->c->entries[s->id].n_tokens;
    if ((double)s->n_equal >= ratio * entry_tokens && longer < entry_tokens) longer = entry_tokens;
    return longer >= m->min_tokens && (double)s->n_equal >= ratio * m->min_tokens;
}

/* What better groups have left of one may be too little to be worth anything. */
static bool is_too_little(const struct tsri_matcher *m, const struct tsri_run *runs, uint32_t n)
{
    const struct tsri_run *last = &runs[n - 1];
    if (m->whole) return runs[0].n_tokens < m->c->entries[runs[0].id].n_tokens;
    if (!runs[0].edits) return false;
    struct tsri_stretch stretch = {
        .id = runs[0].id,
        .in_prompt = last->prompt_offset + last->n_tokens - runs[0].prompt_offset,
        .in_entry = last->entry_offset + last->n_tokens - runs[0].entry_offset};
    for (uint32_t i = 0; i < n; i++)
        stretch.n_equal += (uint64_t)runs[i].n_tokens + runs[i].beside;
    return !tsri_matcher_is_long_enough(m, &stretch);
}

/* Runs of one group stand together here: what is left of them tells how much of the entry is. */
static void tell_coverage(const struct tsri_matcher *m, struct tsri_run *runs, uint32_t n)
{
    uint32_t entry_tokens = m->c->entries[runs[0].id].n_tokens;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (uint64_t)runs[i].n_tokens + runs[i].beside;
    uint8_t coverage = TSR_COVERAGE_RUN;
    if (n == 1 && runs[0].n_tokens == entry_tokens)
        coverage = TSR_COVERAGE_FULL;
    else if ((double)sum >= m->c->options.min_match_ratio * entry_tokens)
        coverage = TSR_COVERAGE_PARTIAL;
    for (uint32_t i = 0; i < n; i++)
        runs[i].coverage = coverage;
}

/* Gives back the chosen runs from `first` on. */
static void let_go(struct tsri_matcher *m, uint32_t first)
{
    while (m->n_chosen > first) {
        const struct tsri_run *r = &m->chosen[--m->n_chosen];
        for (uint32_t at = r->prompt_offset; at < r->prompt_offset + r->n_tokens; at++)
            m->taken[at / 64] &= ~((uint64_t)1 << at % 64);
        tsri_unpin(m->c, r->id);
    }
}

void tsri_matcher_choose(struct tsri_matcher *m)
{
    join(m);
    tsri_runs_sort(m->runs, m->n_runs, m->chosen, best_first);
    for (uint32_t i = 0, first = 0; i < m->n_runs; i++) {
        keep_free(m, &m->runs[i]);
        bool last = i + 1 == m->n_runs || m->runs[i + 1].group != m->runs[i].group;
        if (!last) continue;
        uint32_t n = m->n_chosen - first;
        if (n && is_too_little(m, m->chosen + first, n))
            let_go(m, first);
        else if (n)
            tell_coverage(m, m->chosen + first, n);
        first = m->n_chosen;
    }
    m->n_runs = 0;
    tsri_runs_sort(m->chosen, m->n_chosen, m->runs, by_prompt);
}
