/* plan.c - what becomes of each token of a prompt. What a lookup has found, and segments that shall
 * be computed alone, are *pieces*; states of tokens are painted from them. A piece is exact when
 * its KV was computed at this very position after this very text: blocks of the prefix, the system
 * prompt, and the segment that follows the system prompt it was computed after. All others are
 * candidates, but for their seams. */
#include "blend/blend.h"

static uint32_t end_of(struct tsr_range r)
{
    return r.offset + r.n_tokens;
}

/* The position of a segment's first token when it is computed alone. */
static uint32_t base_of(const struct tsri_plan *p, uint32_t offset)
{
    if (offset < p->n_system) return 0;
    return p->n_primer ? p->n_primer : p->same_context ? p->n_system : 0;
}

/* How many segments begin at the token or before it. */
static uint32_t segments_before(const struct tsr_ask_desc *ask, uint32_t token)
{
    uint32_t lo = 0, hi = ask->n_segments;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (ask->segments[mid].offset <= token)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The segment that holds the token; NULL: none. */
static const struct tsr_range *segment_of(const struct tsr_ask_desc *ask, uint32_t token)
{
    uint32_t n = segments_before(ask, token);
    return n && token < end_of(ask->segments[n - 1]) ? &ask->segments[n - 1] : NULL;
}

/* ---- pieces ---- */

static bool is_exact(const struct tsri_plan *p, const struct tsri_plan_desc *d,
                     const struct tsr_match *m)
{
    if (m->context == TSR_CONTEXT_OTHER) return false;
    if (m->kind == TSR_KIND_PREFIX) return m->prompt_offset < d->n_prefix_tokens;
    if (m->kind != TSR_KIND_SEGMENT || m->prompt_offset < m->entry_offset) return false;
    uint32_t start = m->prompt_offset - m->entry_offset;
    /* The rest of a chunk that was found as a whole, or of an entry whose beginning is other text
     * than stands here: with runs at any offset both look the same. */
    if (m->entry_offset && m->verified && d->ask->flags & TSR_ASK_ANY) return false;
    /* Of what only a lower tier has the base is not known yet; the feed refuses another one. */
    if (m->base != TSR_BASE_UNKNOWN && m->base != start) return false;
    if (m->context == TSR_CONTEXT_PURE) return start == 0;
    return m->context == TSR_CONTEXT_SAME && d->same_context && start == p->n_system;
}

/* Blocks of a plain request that followed each other when they were computed. */
static bool follows(const struct tsri_piece *before, const struct tsr_match *m)
{
    const struct tsr_match *b = &before->match;
    return m->context == TSR_CONTEXT_OTHER && b->context == TSR_CONTEXT_OTHER &&
           m->kind == TSR_KIND_PREFIX && b->kind == TSR_KIND_PREFIX &&
           b->prompt_offset + b->n_tokens == m->prompt_offset && m->base != TSR_BASE_UNKNOWN &&
           m->entry_offset == 0 && b->entry_offset + b->n_tokens == b->entry_tokens &&
           b->base + b->entry_tokens == m->base;
}

/* A match that begins between segments keeps what is before the next one, which it must not replace.
 * False: no more than its seams. */
static bool end_before_segment(const struct tsri_plan *p, const struct tsr_ask_desc *ask,
                               struct tsr_match *m)
{
    uint32_t next = segments_before(ask, m->prompt_offset);
    if (next == ask->n_segments) return true;
    uint32_t room = ask->segments[next].offset - m->prompt_offset;
    if (m->n_tokens <= room) return true;
    m->n_tokens = room;
    m->coverage = TSR_COVERAGE_RUN;
    return room > 2 * p->boundary;
}

/* False: of no use here. */
static bool take_match(struct tsri_plan *p, const struct tsri_plan_desc *d, struct tsr_match m)
{
    /* The last token is always computed: its logits are wanted. */
    /* An engine that gives slots for the context computes what follows it. */
    uint32_t max = d->ask->slots ? p->question : p->n_tokens - 1;
    if (m.prompt_offset + m.n_tokens > max) {
        if (m.prompt_offset >= max) return false;
        m.n_tokens = max - m.prompt_offset;
        m.coverage = TSR_COVERAGE_RUN;
    }
    struct tsri_piece piece = {.kind = TSRI_PIECE_LOAD, .exact = is_exact(p, d, &m)};
    uint32_t end = m.prompt_offset + m.n_tokens;
    const struct tsr_range *s = segment_of(d->ask, m.prompt_offset);
    if (!piece.exact) {
        if (m.freq_set != TSR_BASE_UNKNOWN && m.freq_set != d->freq_set) {
            p->reasons |= TSR_BLEND_FREQ;
            return false;
        }
        if (end > p->question) return false;
        /* A system prompt is computed whole: it is exact then, and what is filled after it is kept
         * as having seen that very text. */
        bool apart = p->same_context || p->n_primer;
        if (p->may_fill && apart && m.prompt_offset < p->n_system) return false;
        /* After the primer it is far closer to what a prefill gives. */
        if (p->may_fill && p->n_primer && s && m.context == TSR_CONTEXT_PURE) return false;
        /* A segment of which little is known, or only what saw other text, is better read alone,
         * once. */
        bool little = m.context == TSR_CONTEXT_OTHER || m.coverage == TSR_COVERAGE_RUN;
        if (p->may_fill && little && (s || !end_before_segment(p, d->ask, &m))) return false;
        end = m.prompt_offset + m.n_tokens;
    }
    piece.match = m;
    piece.starts = s && s->offset == m.prompt_offset;
    piece.ends = s && end == end_of(*s);
    piece.follows = p->n_pieces && follows(&p->pieces[p->n_pieces - 1], &m);
    p->pieces[p->n_pieces++] = piece;
    return true;
}

static bool is_system(const struct tsri_plan *p, struct tsr_range s)
{
    return s.offset == 0 && s.n_tokens == p->n_system;
}

/* The primer's KV and positions must fit; what does not is computed in the prompt. */
static bool can_fill(struct tsri_plan *p, struct tsr_range s)
{
    if (!p->may_fill) return false;
    if (!p->n_primer || is_system(p, s) || s.n_tokens <= p->primed_max) return true;
    p->reasons |= TSR_BLEND_ROOM;
    return false;
}

static struct tsri_piece *add_computed(struct tsri_plan *p, struct tsr_range s, uint32_t base,
                                       uint32_t context)
{
    struct tsr_match m = {.prompt_offset = s.offset,
                          .n_tokens = s.n_tokens,
                          .entry_tokens = s.n_tokens,
                          .kind = TSR_KIND_SEGMENT,
                          .context = (uint8_t)context,
                          .verified = 1,
                          .base = base,
                          .coverage = TSR_COVERAGE_FULL};
    struct tsri_piece *piece = &p->pieces[p->n_pieces++];
    *piece = (struct tsri_piece){.match = m, .kind = TSRI_PIECE_FILL, .starts = true, .ends = true};
    return piece;
}

static void add_fill(struct tsri_plan *p, struct tsr_range s)
{
    uint32_t base = base_of(p, s.offset);
    bool system = is_system(p, s), primed = p->n_primer && !system;
    uint32_t context = base && !system ? TSR_CONTEXT_SAME : TSR_CONTEXT_PURE;
    add_computed(p, s, base, context)->exact = base == s.offset && !primed;
}

/* ---- the document that leads ---- */

/* Whether segment s can be exact once it is computed: everything before it is. */
static bool can_lead(const struct tsri_plan *p, const struct tsri_plan_desc *d, uint32_t s)
{
    if (!(d->ask->flags & TSR_ASK_LEAD) || d->rounded || s != (d->ask->system ? 1 : 0))
        return false;
    for (uint32_t i = 0; i < p->n_pieces; i++)
        if (!p->pieces[i].exact) return false;
    return true;
}

/* What is exact at its front is loaded, the rest is computed. *m: the next match. */
static void add_lead(struct tsri_plan *p, const struct tsri_plan_desc *d, struct tsr_range s,
                     uint32_t *m)
{
    uint32_t at = s.offset, end = end_of(s);
    bool cached = false;
    p->leads = true;
    if (p->n_pieces) {
        const struct tsr_match *before = &p->pieces[p->n_pieces - 1].match;
        uint32_t reached = before->prompt_offset + before->n_tokens;
        if (reached > at) at = reached;
    }
    for (; *m < d->n_matches && d->matches[*m].prompt_offset < end; (*m)++) {
        const struct tsr_match *match = &d->matches[*m];
        cached = true;
        if (match->prompt_offset != at || !is_exact(p, d, match) || !take_match(p, d, *match))
            continue;
        at += p->pieces[p->n_pieces - 1].match.n_tokens;
    }
    if (at >= end) return;
    struct tsri_piece *piece =
        add_computed(p, (struct tsr_range){at, end - at}, at, TSR_CONTEXT_OTHER);
    piece->exact = piece->leads = true;
    piece->cached = cached;
}

/* Matches and segments without one, merged in the order of the prompt. */
static void gather(struct tsri_plan *p, const struct tsri_plan_desc *d)
{
    const struct tsr_ask_desc *ask = d->ask;
    uint32_t m = 0;
    for (uint32_t s = 0; s <= ask->n_segments; s++) {
        uint32_t start = s < ask->n_segments ? ask->segments[s].offset : p->n_tokens;
        uint32_t end = s < ask->n_segments ? end_of(ask->segments[s]) : p->n_tokens;
        while (m < d->n_matches && d->matches[m].prompt_offset < start)
            (void)take_match(p, d, d->matches[m++]);
        if (s == ask->n_segments) break;
        if (can_lead(p, d, s)) {
            add_lead(p, d, ask->segments[s], &m);
            continue;
        }
        uint32_t before = p->n_pieces;
        /* A prefix may reach into it from before. */
        bool covered = before && p->pieces[before - 1].match.prompt_offset +
                                         p->pieces[before - 1].match.n_tokens >
                                     start;
        while (m < d->n_matches && d->matches[m].prompt_offset < end)
            covered |= take_match(p, d, d->matches[m++]);
        if (covered || end >= p->n_tokens) continue;
        if (can_fill(p, ask->segments[s]))
            add_fill(p, ask->segments[s]);
        else
            p->n_unfilled += ask->segments[s].n_tokens;
    }
}

/* ---- states ---- */

static void paint_range(struct tsri_plan *p, uint32_t from, uint32_t n, uint8_t state)
{
    memset(p->states + from, state, n);
}

void tsri_plan_paint(struct tsri_plan *p)
{
    memset(p->states, TSR_TOKEN_NEW, p->n_tokens);
    p->n_chunks = p->n_candidates = p->n_always = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const struct tsri_piece *piece = &p->pieces[i];
        uint32_t at = piece->match.prompt_offset, n = piece->match.n_tokens;
        if (piece->kind == TSRI_PIECE_LOST) continue;
        paint_range(p, at, n, piece->exact ? TSR_TOKEN_EXACT : TSR_TOKEN_CANDIDATE);
        if (piece->exact) continue;
        bool joined = piece->follows && piece[-1].kind == TSRI_PIECE_LOAD;
        bool goes_on = i + 1 < p->n_pieces && piece[1].follows && piece[1].kind == TSRI_PIECE_LOAD;
        uint32_t front = joined ? 0 : piece->starts ? p->first_tokens : p->boundary;
        uint32_t back = piece->ends || goes_on ? 0 : tsri_min_u32(p->boundary, n);
        paint_range(p, at, tsri_min_u32(front, n), TSR_TOKEN_ALWAYS);
        paint_range(p, at + n - back, back, TSR_TOKEN_ALWAYS);
        p->n_chunks += !joined;
    }
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        p->n_candidates += p->states[i] == TSR_TOKEN_CANDIDATE;
        p->n_always += p->states[i] == TSR_TOKEN_ALWAYS;
    }
}

void tsri_plan_lose(struct tsri_plan *p, uint32_t i)
{
    struct tsri_piece *piece = &p->pieces[i];
    const struct tsr_match *m = &piece->match;
    piece->failed = true;
    p->reasons |= TSR_BLEND_FAULT;
    bool whole = piece->starts && piece->ends;
    struct tsr_range segment = {m->prompt_offset, m->n_tokens};
    if (!whole || m->kind != TSR_KIND_SEGMENT || !can_fill(p, segment)) {
        piece->kind = TSRI_PIECE_LOST;
        return;
    }
    uint32_t n = p->n_pieces;
    p->n_pieces = i;
    add_fill(p, segment);
    p->pieces[i].failed = true;
    p->n_pieces = n;
}

/* Exact but for being stored as int8. */
static bool only_rounded(const struct tsri_piece *piece)
{
    return piece->exact && piece->match.kind != TSR_KIND_PREFIX && piece->kind != TSRI_PIECE_LOST;
}

bool tsri_plan_is_rounded(const struct tsri_plan *p)
{
    for (uint32_t i = 0; i < p->n_pieces; i++)
        if (only_rounded(&p->pieces[i]) &&
            p->states[p->pieces[i].match.prompt_offset] == TSR_TOKEN_EXACT)
            return true;
    return false;
}

void tsri_plan_drop_rounded(struct tsri_plan *p)
{
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const struct tsr_match *m = &p->pieces[i].match;
        if (only_rounded(&p->pieces[i]))
            paint_range(p, m->prompt_offset, m->n_tokens, TSR_TOKEN_SELECTED);
    }
}

bool tsri_plan_primes(const struct tsri_plan *p)
{
    for (uint32_t i = 0; p->n_primer && i < p->n_pieces; i++)
        if (tsri_piece_is_open(&p->pieces[i]) && p->pieces[i].match.context == TSR_CONTEXT_SAME)
            return true;
    return false;
}

bool tsri_plan_computes(const struct tsri_plan *p, uint32_t token)
{
    uint8_t s = p->states[token];
    return s == TSR_TOKEN_NEW || s == TSR_TOKEN_ALWAYS || s == TSR_TOKEN_SELECTED;
}

uint32_t tsri_plan_count(const struct tsri_plan *p, uint32_t state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_tokens; i++)
        n += p->states[i] == state;
    return n;
}

/* ---- what is worth it ---- */

/* Filling computes all unknown text; then the blend saves at most what is known. With more unknown
 * than known text that is less than half of a prefill, and the answer is still approximate: a
 * prefill is exact, and the text is stored after the answer. Exact pieces do not count. They cost
 * the same either way. */
bool tsri_plan_unknown(const struct tsri_plan *p)
{
    uint64_t n_unknown = p->n_unfilled, n_known = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const struct tsri_piece *piece = &p->pieces[i];
        if (piece->exact) continue;
        if (tsri_piece_is_open(piece) || piece->kind == TSRI_PIECE_LOST)
            n_unknown += piece->match.n_tokens;
        else
            n_known += piece->match.n_tokens;
    }
    return n_unknown > n_known;
}

void tsri_plan_skip_fills(struct tsri_plan *p)
{
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        struct tsri_piece *piece = &p->pieces[i];
        if (tsri_piece_is_open(piece) && !piece->exact) piece->kind = TSRI_PIECE_LOST;
    }
    p->may_fill = false;
    p->reasons |= TSR_BLEND_FIRST;
}

static void keep_exact(struct tsri_plan *p, bool rounded)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        bool bits = !rounded || p->pieces[i].match.kind == TSR_KIND_PREFIX;
        if (p->pieces[i].exact && bits) p->pieces[n_kept++] = p->pieces[i];
    }
    p->n_pieces = n_kept;
}

/* For learning: what is to be filled, and the system prompt that it sees. */
static void keep_fills(struct tsri_plan *p)
{
    uint32_t n_kept = 0, n_fills = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++)
        n_fills += p->pieces[i].kind == TSRI_PIECE_FILL;
    uint32_t n_seen = p->n_primer ? 0 : p->n_system;
    for (uint32_t i = 0; n_fills && i < p->n_pieces; i++)
        if (p->pieces[i].kind == TSRI_PIECE_FILL || p->pieces[i].match.prompt_offset < n_seen)
            p->pieces[n_kept++] = p->pieces[i];
    p->n_pieces = n_kept;
}

/* Blending has a price; for little text plain computing is as fast and exact. */
static void drop_little(struct tsri_plan *p, const struct tsri_plan_desc *d)
{
    uint32_t n_approximate = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++)
        if (!p->pieces[i].exact) n_approximate += p->pieces[i].match.n_tokens;
    bool few = n_approximate < d->min_tokens, costly = n_approximate < d->trial_least;
    if (n_approximate == 0 || (!few && !costly)) return;
    keep_exact(p, d->rounded && !few);
    p->reasons |= few ? TSR_BLEND_FEW : TSR_BLEND_COSTLY;
    if (!few && d->ask->flags & TSR_ASK_LOOK)
        p->n_pieces = 0; /* nobody waits for what it would show */
}

static void drop_useless(struct tsri_plan *p, const struct tsri_plan_desc *d)
{
    if (d->ask->flags & TSR_ASK_LEARN) {
        keep_fills(p);
    } else if (d->ask->flags & TSR_ASK_FIRST && tsri_plan_unknown(p)) {
        tsri_plan_skip_fills(p);
        keep_exact(p, d->rounded);
        /* Nothing to look at: what is exact is for the answer to compute. */
        if (d->ask->flags & TSR_ASK_LOOK) p->n_pieces = 0;
    } else {
        drop_little(p, d);
    }
}

/* ---- the whole ---- */

int tsri_plan_init(struct tsri_plan *p, const struct tsri_plan_desc *d)
{
    const struct tsr_ask_desc *ask = d->ask;
    const struct tsri_selector *selector = tsri_selector_of(d->selector);
    *p = (struct tsri_plan){.n_tokens = ask->n_tokens,
                            .n_system = ask->system ? ask->segments[0].n_tokens : 0,
                            .boundary = d->profile->boundary,
                            .first_tokens = selector->forces ? d->profile->first_tokens : 0,
                            .may_fill = ask->flags & TSR_ASK_FILL,
                            .same_context = d->same_context && ask->system,
                            .n_primer = d->n_primer};
    if (d->n_primer && !d->no_room) p->primed_max = d->context - d->n_primer;
    /* Without segments only the last token is surely no context. */
    p->question = ask->n_segments ? end_of(ask->segments[ask->n_segments - 1]) : ask->n_tokens - 1;
    if (ask->n_context) p->question = ask->n_context;
    p->states = tsri_alloc(ask->n_tokens, 1);
    p->pieces = tsri_alloc((size_t)d->n_matches + ask->n_segments + 1, sizeof *p->pieces);
    if (!p->states || !p->pieces) {
        tsri_plan_fini(p);
        return TSR_ENOMEM;
    }
    gather(p, d);
    drop_useless(p, d);
    tsri_plan_paint(p);
    return 0;
}

void tsri_plan_fini(struct tsri_plan *p)
{
    tsri_free(p->states);
    tsri_free(p->pieces);
    p->states = NULL;
    p->pieces = NULL;
}
