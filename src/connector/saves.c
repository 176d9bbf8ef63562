/* saves.c - which chunks the workers are told to save: whole ones up to the boundary, of which some
 * space lacks its part, and which no save in flight has already. Chunks in flight are known by
 * their key in the first space, so that two requests with the same beginning do not gather it
 * twice; what is in the cache is asked of its owner, for each space, because ranks may have evicted
 * different entries. A save is one run of chunks that the same spaces lack.
 *
 * States (TSR_GROUP_STATE) go by themselves: those of the tokens that are computed now, if these are
 * whole chunks, within the step, because the engine has them no longer. Whether the cache has them
 * is found out by the store.
 *
 * A save counts as in flight until every rank has reported. When one fails, nothing more of its
 * request is saved: the chain behind it would have no parent. */
#include "connector/connector.h"

#define NONE TSRI_NO_SAVING
#define PENDING_PER_JOB 16u

int tsri_saves_init(struct tsr_scheduler *s)
{
    uint32_t n_jobs = s->terms.jobs_max;
    uint64_t n = tsri_pow2_up((uint64_t)n_jobs * PENDING_PER_JOB);
    s->pending_max = (uint32_t)n;
    s->savings = tsri_alloc(n_jobs, sizeof *s->savings);
    s->pending = tsri_alloc(s->pending_max, sizeof *s->pending);
    s->pending_buckets = tsri_alloc(s->pending_max, sizeof *s->pending_buckets);
    if (!s->savings || !s->pending || !s->pending_buckets) return TSR_ENOMEM;
    for (uint32_t i = 0; i < n_jobs; i++)
        s->savings[i].next = i + 1 < n_jobs ? i + 1 : NONE;
    s->savings_first = s->savings_last = NONE;
    for (uint32_t i = 0; i < s->pending_max; i++) {
        s->pending[i].of_saving = i + 1 < s->pending_max ? i + 1 : NONE;
        s->pending_buckets[i] = NONE;
    }
    return 0;
}

void tsri_saves_fini(struct tsr_scheduler *s)
{
    tsri_free(s->lacking);
    tsri_free(s->keys);
    tsri_free(s->pending_buckets);
    tsri_free(s->pending);
    tsri_free(s->savings);
}

/* ---- chunks in flight ---- */

static uint32_t *bucket(const struct tsr_scheduler *s, struct tsri_key key)
{
    return &s->pending_buckets[(key.lo ^ key.lo >> 32) & (s->pending_max - 1)];
}

static bool is_pending(const struct tsr_scheduler *s, struct tsri_key key)
{
    uint32_t i = *bucket(s, key);
    while (i != NONE && (s->pending[i].key.lo != key.lo || s->pending[i].key.hi != key.hi))
        i = s->pending[i].next;
    return i != NONE;
}

static bool add_pending(struct tsr_scheduler *s, struct tsri_saving *saving, struct tsri_key key)
{
    uint32_t i = s->pending_free;
    if (i == NONE) return false;
    struct tsri_pending *p = &s->pending[i];
    s->pending_free = p->of_saving;
    p->key = key;
    p->next = *bucket(s, key);
    *bucket(s, key) = i;
    p->of_saving = saving->chunks;
    saving->chunks = i;
    return true;
}

static void remove_pending(struct tsr_scheduler *s, struct tsri_saving *saving)
{
    while (saving->chunks != NONE) {
        uint32_t i = saving->chunks;
        struct tsri_pending *p = &s->pending[i];
        uint32_t *at = bucket(s, p->key);
        while (*at != i)
            at = &s->pending[*at].next;
        *at = p->next;
        saving->chunks = p->of_saving;
        p->of_saving = s->pending_free;
        s->pending_free = i;
    }
}

/* ---- what is lacking ---- */

static struct tsr_prompt prompt_of(const struct tsri_req *r, uint32_t n_tokens)
{
    return (struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                               .tokens = r->tokens,
                               .n_tokens = n_tokens,
                               .flags = TSR_PROMPT_PREFIX,
                               .extra = r->extras.items,
                               .n_extra = tsri_extras_within(&r->extras, n_tokens)};
}

/* Room for n chunks. */
static int make_room(struct tsr_scheduler *s, uint32_t n)
{
    uint32_t max = s->keys_max, max_lacking = max;
    int e = tsri_grow(&s->keys, &max, n, sizeof *s->keys);
    if (!e) e = tsri_grow(&s->lacking, &max_lacking, n, sizeof *s->lacking);
    if (!e) s->keys_max = max;
    return e;
}

int tsri_saves_keys(struct tsr_scheduler *s, const struct tsri_req *r, uint32_t first, uint32_t n,
                    struct tsr_key *keys)
{
    const struct tsri_terms *t = &s->terms;
    uint32_t whole = r->n_tokens / t->chunk_tokens;
    if (first >= whole) return 0;
    n = tsri_min_u32(n, whole - first);
    int e = make_room(s, first + n);
    if (e) return e;
    struct tsr_prompt prompt = prompt_of(r, (first + n) * t->chunk_tokens);
    for (uint32_t k = 0; k < t->n_spaces; k++) {
        int got = tsr_space_keys(t->spaces[k], &prompt, s->keys, first + n);
        if (got < (int)(first + n)) return got < 0 ? got : 0;
        for (uint32_t i = 0; i < n; i++)
            keys[(size_t)i * t->n_spaces + k] = s->keys[first + i];
    }
    return (int)n;
}

/* Bits of the spaces that hold no states, as bits of all spaces. */
static uint64_t among_all(const struct tsri_terms *t, uint64_t bits)
{
    uint64_t all = 0;
    for (uint32_t i = 0, k = 0; i < t->n_spaces; i++)
        if (!tsri_is_state(t, i)) all |= (bits >> k++ & 1) << i;
    return all;
}

/* Fills keys and lacking of chunks [upto, to). */
static int ask(struct tsr_scheduler *s, struct tsri_req *r, uint32_t to)
{
    uint32_t n = to / s->terms.chunk_tokens;
    int e = make_room(s, n);
    if (e) return e;
    uint32_t first = r->upto / s->terms.chunk_tokens;
    memset(s->lacking + first, 0, (n - first) * sizeof *s->lacking);
    struct tsr_prompt prompt = prompt_of(r, to);
    struct tsr_space *spaces[TSR_RANKS_MAX];
    uint32_t n_spaces = tsri_terms_spaces(&s->terms, false, spaces);
    e = tsri_cache_lacking(spaces, n_spaces, &prompt, r->upto, &r->chain, s->keys, s->lacking);
    for (uint32_t i = first; !e && n_spaces < s->terms.n_spaces && i < n; i++)
        s->lacking[i] = among_all(&s->terms, s->lacking[i]);
    for (uint32_t i = first; !e && i < n; i++)
        s->lacking[i] &= ~s->terms.copies;
    return e;
}

/* ---- orders ---- */

static struct tsri_saving *take_saving(struct tsr_scheduler *s)
{
    uint32_t i = s->savings_free;
    if (i == NONE) return NULL;
    struct tsri_saving *x = &s->savings[i];
    s->savings_free = x->next;
    *x = (struct tsri_saving){.id = ++s->last_saving * s->terms.jobs_max + i,
                              .n_reports = s->terms.n_ranks,
                              .chunks = NONE,
                              .prev = s->savings_last,
                              .next = NONE};
    *(x->prev == NONE ? &s->savings_first : &s->savings[x->prev].next) = i;
    s->savings_last = i;
    s->n_savings++;
    return x;
}

static void give_saving(struct tsr_scheduler *s, struct tsri_saving *x)
{
    remove_pending(s, x);
    *(x->prev == NONE ? &s->savings_first : &s->savings[x->prev].next) = x->next;
    *(x->next == NONE ? &s->savings_last : &s->savings[x->next].prev) = x->prev;
    x->id = 0;
    x->next = s->savings_free;
    s->savings_free = (uint32_t)(x - s->savings);
    s->n_savings--;
}

static void send(struct tsr_scheduler *s, struct tsri_req *r, const struct tsri_saving *x,
                 uint64_t spaces, uint32_t flags)
{
    const struct tsri_terms *t = &s->terms;
    struct tsri_save_order o = {.job = x->id,
                                .request = r->id,
                                .spaces = spaces,
                                .flags = flags,
                                .from = x->from,
                                .to = x->to,
                                .tokens = r->tokens,
                                .extras = r->extras};
    o.extras.n = tsri_extras_within(&r->extras, o.to);
    for (uint32_t g = 0; g < t->n_groups; g++)
        o.tables.blocks[g] = r->blocks[g] + o.from / t->groups[g].block_tokens;
    tsri_meta_put_save(&s->saves, t, &o);
    s->n_saves_out++;
    r->n_saves++;
    r->n_saves_now++;
    s->stats.saves++;
}

/* Chunks [from, to), in chunks. */
static bool order(struct tsr_scheduler *s, struct tsri_req *r, uint32_t from, uint32_t to,
                  uint64_t spaces)
{
    const struct tsri_terms *t = &s->terms;
    struct tsri_saving *x = take_saving(s);
    if (!x) return false;
    x->request = r->id;
    x->life = r->life;
    x->from = from * t->chunk_tokens;
    x->to = to * t->chunk_tokens;
    for (uint32_t i = from; i < to; i++) {
        struct tsri_key key;
        memcpy(&key, &s->keys[i], sizeof key);
        if (add_pending(s, x, key)) continue;
        give_saving(s, x);
        return false;
    }
    uint32_t flags = 0;
    /* The engine frees blocks that leave a window without telling anybody. */
    for (uint32_t g = 0; g < t->n_groups; g++)
        if (t->groups[g].window_tokens) flags = TSRI_SAVE_IN_STEP;
    send(s, r, x, spaces, flags);
    return true;
}

static void order_runs(struct tsr_scheduler *s, struct tsri_req *r, uint32_t to)
{
    uint32_t chunk = s->terms.chunk_tokens, n = to / chunk;
    for (uint32_t i = r->upto / chunk; i < n;) {
        struct tsri_key key;
        memcpy(&key, &s->keys[i], sizeof key);
        if (!s->lacking[i] || is_pending(s, key)) {
            s->stats.chunks_known++;
            i++;
            continue;
        }
        uint32_t end = i + 1;
        for (; end < n && s->lacking[end] == s->lacking[i]; end++) {
            memcpy(&key, &s->keys[end], sizeof key);
            if (is_pending(s, key)) break;
        }
        if (!order(s, r, i, end, s->lacking[i])) {
            s->stats.saves_skipped++;
            r->no_save = true; /* what comes behind would have no parent */
            r->saved = i * chunk;
            return;
        }
        i = end;
    }
    r->saved = to;
}

/* Whole blocks of every group, and none of them lost to a window. */
static bool has_blocks(const struct tsri_terms *t, const struct tsri_req *r, uint32_t to)
{
    for (uint32_t g = 0; g < t->n_groups; g++) {
        uint32_t n = t->groups[g].block_tokens;
        if ((uint64_t)r->n_blocks[g] * n < to) return false;
        if (t->groups[g].flags & TSR_GROUP_STATE) continue;
        for (uint32_t i = r->upto / n; i < to / n; i++)
            if (r->blocks[g][i] < 0) return false;
    }
    return true;
}

/* Up to where a request is saved if so much of it is written. */
static uint32_t limit_of(const struct tsri_terms *t, const struct tsri_req *r, uint32_t boundary)
{
    if (t->draft_tokens > 1) /* the draft model will compute them again */
        boundary -= tsri_min_u32(boundary, t->draft_tokens - 1);
    if (t->flags & TSR_CONNECTOR_SAVE_DECODE) return boundary;
    return tsri_min_u32(boundary, r->n_prompt);
}

/* KV computed behind a load is worth what the load is. */
static bool may_save(struct tsr_scheduler *s, const struct tsri_req *r)
{
    return !r->no_save && !(s->terms.flags & TSR_CONNECTOR_NO_SAVE) &&
           r->load_state != TSRI_LOAD_READY && r->load_state != TSRI_LOAD_SENT &&
           !tsri_resets_on(s);
}

/* Blocks for so many tokens in every group, and states after them. */
static bool has_blocks_for(const struct tsri_terms *t, const struct tsri_req *r, uint32_t at)
{
    for (uint32_t g = 0; g < t->n_groups; g++) {
        uint32_t n = t->groups[g].block_tokens;
        if ((uint64_t)r->n_blocks[g] * n < at) return false;
        if (t->groups[g].flags & TSR_GROUP_STATE && r->blocks[g][at / n - 1] < 0) return false;
    }
    return true;
}

void tsri_saves_states(struct tsr_scheduler *s, struct tsri_req *r, uint32_t at, uint32_t boundary)
{
    const struct tsri_terms *t = &s->terms;
    if (!at || at % t->chunk_tokens || at > limit_of(t, r, boundary) || at == r->state_at ||
        !may_save(s, r) || !has_blocks_for(t, r, at))
        return;
    uint64_t spaces = 0;
    for (uint32_t i = 0; i < t->n_spaces; i++)
        if (tsri_is_state(t, i)) spaces |= UINT64_C(1) << i;
    struct tsri_saving *x = take_saving(s);
    r->state_at = at;
    if (!x) {
        s->stats.saves_skipped++;
        return;
    }
    x->request = r->id;
    x->life = r->life;
    x->states = true;
    x->from = at - t->chunk_tokens;
    x->to = at;
    send(s, r, x, spaces, TSRI_SAVE_IN_STEP | TSRI_SAVE_STATE);
}

void tsri_saves_plan(struct tsr_scheduler *s, struct tsri_req *r, uint32_t boundary,
                     uint32_t first_kept)
{
    const struct tsri_terms *t = &s->terms;
    uint32_t to = limit_of(t, r, boundary) / t->chunk_tokens * t->chunk_tokens;
    if (to <= r->upto || !may_save(s, r)) return;
    TSR_ASSERT(to <= boundary && boundary <= r->n_tokens && r->upto % t->chunk_tokens == 0);
    bool kept = first_kept <= r->upto && has_blocks(t, r, to);
    if (tsri_log_wants(TSR_LOG_DEBUG))
        tsri_log(TSR_LOG_DEBUG,
                 "connector: request %llu: boundary %u of %u tokens: save [%u, %u)%s",
                 (unsigned long long)r->id, boundary, r->n_tokens, r->upto, to,
                 kept ? "" : ", but blocks were freed");
    if (!kept) {
        r->no_save = true;
        return;
    }
    int e = ask(s, r, to);
    if (e) { /* the owner is away: nothing is saved, and it is not asked again for this request */
        tsri_log(TSR_LOG_DEBUG, "connector: request %llu: not saved: %s", (unsigned long long)r->id,
                 tsr_errmsg());
        r->no_save = true;
        return;
    }
    order_runs(s, r, to);
    r->upto = to;
}

void tsri_saves_report(struct tsr_scheduler *s, const struct tsri_save_report *report)
{
    struct tsri_saving *x = &s->savings[report->job % s->terms.jobs_max];
    if (!x->id || x->id != report->job) return;
    struct tsri_req *r = tsri_reqs_find(&s->reqs, x->request);
    s->stats.tokens_saved += report->n_tokens;
    if (report->result && !x->failed) {
        x->failed = true;
        s->stats.saves_failed++;
        if (r && r->life == x->life && !x->states) {
            r->no_save = true;
            r->saved = tsri_min_u32(r->saved, x->from);
        }
        tsri_log(TSR_LOG_DEBUG, "connector: request %llu: save failed: %s",
                 (unsigned long long)x->request, tsr_strerror(report->result));
    }
    if (report->busy_us > x->busy_us) x->busy_us = report->busy_us;
    if (--x->n_reports) return;
    if (!x->failed && !x->states) tsri_waits_saved(s, x->to - x->from, x->busy_us * (uint64_t)1000);
    bool now = r && r->life == x->life;
    tsri_resets_ended(s, &x->old);
    give_saving(s, x);
    if (!r) return;
    TSR_ASSERT(r->n_saves > 0 && (!now || r->n_saves_now > 0));
    r->n_saves--;
    r->n_saves_now -= now;
    tsri_scheduler_settle(s, r);
}
