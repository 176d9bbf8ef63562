/* hits.c - what the scheduler half can load for a request: looked up in the spaces of all ranks and
 * groups at once (a hit is a hit in every one of them, and all load the same tokens), leased under
 * the request's id, sent to the workers when the engine has taken it, and let go when every worker
 * has reported. A lookup promises nothing to the engine but the lease: it may be asked for again,
 * taken in part, or never.
 *
 * States (TSR_GROUP_STATE) are not chained: the state after n tokens is an entry of its own, a
 * segment of its last block computed after all tokens before, which are part of its identity. A hit
 * ends where every such group has one, as far as the chunks of all others go. */
#include "connector/connector.h"

#define STATES_TRIED_MAX 64u /* ends of chunks at which states are looked for, from the last on */

static void let_go(struct tsr_scheduler *s, struct tsri_req *r)
{
    tsr_client_release(s->terms.client, r->id);
    if (s->terms.n_states) tsr_client_release(s->terms.state_client, r->id);
    r->load_state = TSRI_LOAD_NONE;
    r->n_rows = 0;
}

void tsri_hits_drop(struct tsr_scheduler *s, struct tsri_req *r)
{
    if (r->load_state == TSRI_LOAD_FOUND || r->load_state == TSRI_LOAD_READY) let_go(s, r);
}

/* Rows that were found in some of the spaces, as rows of all of them: in the others there is none. */
static void spread_rows(const struct tsri_terms *t, struct tsri_req *r, uint32_t n_found)
{
    static const struct tsr_match none = {.verified = 1};
    for (uint32_t i = r->n_rows; i-- > 0;) {
        uint32_t k = n_found;
        for (uint32_t space = t->n_spaces; space-- > 0;) {
            struct tsr_match *to = &r->rows[(size_t)i * t->n_spaces + space];
            *to = tsri_is_state(t, space) ? none : r->rows[(size_t)i * n_found + --k];
        }
    }
}

/* All chunks of what is known that every space has; 0 when the owner is away. */
static uint32_t look_up(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_tokens)
{
    const struct tsri_terms *t = &s->terms;
    uint32_t n_chunks = n_tokens / t->chunk_tokens;
    if (tsri_grow(&r->rows, &r->rows_max, n_chunks * t->n_spaces, sizeof *r->rows)) return 0;
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = r->tokens,
                                .n_tokens = n_tokens,
                                .flags = TSR_PROMPT_PREFIX,
                                .extra = r->extras.items,
                                .n_extra = tsri_extras_within(&r->extras, n_tokens)};
    struct tsr_space *spaces[TSR_RANKS_MAX];
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = spaces,
                                 .n_spaces = tsri_terms_spaces(t, false, spaces),
                                 .matches_max = n_chunks,
                                 .matches = r->rows,
                                 .request_id = r->id};
    int n = tsr_client_lookup(t->client, &prompt, &io);
    if (n < 0) {
        tsri_log(TSR_LOG_WARN, "connector: request %llu: lookup: %s", (unsigned long long)r->id,
                 tsr_errmsg());
        return 0;
    }
    TSR_ASSERT(io.n_prefix_tokens <= n_tokens && io.n_prefix_tokens % t->chunk_tokens == 0);
    r->n_rows = io.n_prefix_tokens / t->chunk_tokens;
    if (t->n_states) spread_rows(t, r, io.n_spaces);
    return io.n_prefix_tokens;
}

/* The states after `at` tokens into their row, leased; false: some space has none. */
static bool look_up_states(struct tsr_scheduler *s, struct tsri_req *r, uint32_t at)
{
    const struct tsri_terms *t = &s->terms;
    struct tsr_space *spaces[TSR_RANKS_MAX];
    struct tsr_match found[TSR_RANKS_MAX] = {{0}};
    struct tsr_range last = {at - t->state_tokens, t->state_tokens};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = r->tokens,
                                .n_tokens = at,
                                .flags = TSR_PROMPT_SEGMENTS,
                                .segments = &last,
                                .n_segments = 1,
                                .extra = r->extras.items,
                                .n_extra = tsri_extras_within(&r->extras, at),
                                .context = r->tokens,
                                .n_context = last.offset};
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = spaces,
                                 .n_spaces = tsri_terms_spaces(t, true, spaces),
                                 .matches_max = 1,
                                 .matches = found,
                                 .request_id = r->id};
    int n = tsr_client_lookup(t->state_client, &prompt, &io);
    uint32_t k = 0;
    /* The same text after other text, or after none, is another state. */
    uint8_t context = last.offset ? TSR_CONTEXT_SAME : TSR_CONTEXT_PURE;
    for (uint32_t i = 0; n > 0 && i < io.n_spaces; i++)
        if (found[i].context != context || found[i].n_tokens != t->state_tokens ||
            found[i].kind != TSR_KIND_SEGMENT)
            n = 0;
    if (n <= 0) return false;
    struct tsr_match *row = &r->rows[(size_t)(at / t->chunk_tokens - 1) * t->n_spaces];
    for (uint32_t i = 0; i < t->n_spaces; i++)
        if (tsri_is_state(t, i)) row[i] = found[k++];
    return true;
}

/* The last end of a chunk up to `end` at which all states are there; 0: there is none. */
static uint32_t find_states(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed,
                            uint32_t end)
{
    uint32_t chunk = s->terms.chunk_tokens, at = end / chunk * chunk;
    for (uint32_t i = 0; i < STATES_TRIED_MAX && at > n_computed; i++, at -= chunk)
        if (look_up_states(s, r, at)) return at;
    return 0;
}

/* Where a load of what was found may end. */
static uint32_t usable(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed, bool async)
{
    const struct tsri_terms *t = &s->terms;
    uint32_t end = r->found;
    if (t->draft_block) end = end > t->draft_block ? end - t->draft_block : 0;
    /* Within a step something must be left to compute; between steps the engine sees to it, but a
     * state cannot be taken back by a token. */
    if (!async || t->n_states) end = tsri_min_u32(end, r->n_tokens - 1);
    return t->n_states ? find_states(s, r, n_computed, end) : end;
}

/* Is there anything that would be waited for? */
static bool is_slow(const struct tsri_terms *t, const struct tsri_req *r, uint32_t first_row)
{
    for (size_t i = (size_t)first_row * t->n_spaces; i < (size_t)r->n_rows * t->n_spaces; i++)
        if (r->rows[i].tier || !r->rows[i].verified) return true;
    return false;
}

/* May it be within a step of which the engine has to know at once that it succeeds? */
static bool is_sure(const struct tsr_scheduler *s, const struct tsri_req *r, uint32_t n_computed)
{
    const struct tsri_terms *t = &s->terms;
    uint64_t token_bytes = 0;
    if (tsri_cache_options(t->cache)->owner == TSRI_OWNER_DAEMON ||
        is_slow(t, r, n_computed / t->chunk_tokens))
        return false;
    for (uint32_t g = 0; g < t->n_groups; g++)
        token_bytes +=
            tsr_space_token_bytes(t->spaces[g]); /* states count for more than they are */
    return s->n_live == 1 || (r->found - n_computed) * token_bytes <= s->sure_bytes;
}

int tsri_hits_find(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed,
                   uint32_t *load_async)
{
    const struct tsri_terms *t = &s->terms;
    if (r->load_state == TSRI_LOAD_SENT) return 0; /* one load of a request at a time */
    tsri_hits_drop(s, r);
    r->asked_computed = n_computed;
    if (tsri_resets_on(s)) return 0;
    uint32_t whole = r->n_tokens / t->chunk_tokens * t->chunk_tokens;
    if (r->no_load || (t->flags & TSR_CONNECTOR_NO_LOAD) || whole <= n_computed) return 0;
    if (tsri_waits_on(s, r)) return TSR_EAGAIN;
    r->found = look_up(s, r, whole);
    if (r->found < whole && tsri_waits_begin(s, r, n_computed)) {
        let_go(s, r);
        return TSR_EAGAIN;
    }
    bool any = r->found > n_computed;
    /* Before it is asked how slow it is to have. */
    uint32_t states = any && t->n_states ? usable(s, r, n_computed, true) : 0;
    bool async = any && is_slow(t, r, n_computed / t->chunk_tokens);
    r->load_sure = any && (t->flags & TSR_CONNECTOR_LOAD_SURE) && is_sure(s, r, n_computed);
    if (t->flags & TSR_CONNECTOR_LOAD_SURE) async = !r->load_sure;
    if (t->flags & TSR_CONNECTOR_LOAD_SYNC) async = false;
    if (t->flags & TSR_CONNECTOR_LOAD_ASYNC) async = true;
    uint32_t end = t->n_states ? states : any ? usable(s, r, n_computed, async) : 0;
    if (tsri_log_wants(TSR_LOG_DEBUG))
        tsri_log(TSR_LOG_DEBUG, "connector: request %llu: %u of %u tokens found, %u computed%s",
                 (unsigned long long)r->id, r->found, r->n_tokens, n_computed,
                 async ? ", between steps" : "");
    if (end <= n_computed) {
        let_go(s, r);
        return 0;
    }
    r->load_state = TSRI_LOAD_FOUND;
    r->load_first = n_computed;
    r->load_end = end;
    r->load_async = async;
    *load_async = async;
    return (int)(end - n_computed);
}

static bool has_blocks(const struct tsri_terms *t, const struct tsri_req *r, uint32_t end)
{
    for (uint32_t g = 0; g < t->n_groups; g++)
        if ((uint64_t)r->n_blocks[g] * t->groups[g].block_tokens < end) return false;
    return true;
}

/* Blocks are loaded whole: inside of one an engine may keep tokens in any order, so that a part of
 * an opaque page is no part of its tokens. What is loaded beyond `end` the engine computes, and
 * writes over it. */
static uint32_t whole_blocks(const struct tsri_terms *t, const struct tsri_req *r, uint32_t end)
{
    uint32_t whole = end;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        uint32_t block = t->groups[g].block_tokens;
        if (whole < (end + block - 1) / block * block) whole = (end + block - 1) / block * block;
    }
    return tsri_min_u32(whole, r->found);
}

int tsri_hits_take(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_external)
{
    if (r->load_state == TSRI_LOAD_SENT) return 0; /* told again, when the load has ended */
    if (r->load_state != TSRI_LOAD_FOUND || n_external == 0) {
        if (n_external)
            return tsri_fail(TSR_EINVAL, "request %llu: %u tokens to load, but none were found",
                             (unsigned long long)r->id, n_external);
        tsri_hits_drop(s, r);
        return 0;
    }
    if (n_external > r->load_end - r->load_first)
        return tsri_fail(TSR_EINVAL, "request %llu: %u tokens to load, but %u were found",
                         (unsigned long long)r->id, n_external, r->load_end - r->load_first);
    if (s->terms.n_states && n_external < r->load_end - r->load_first)
        return tsri_fail(TSR_EINVAL, "request %llu: %u tokens to load, but states after %u",
                         (unsigned long long)r->id, n_external, r->load_end - r->load_first);
    if (!has_blocks(&s->terms, r, r->load_first + n_external))
        return tsri_fail(TSR_EINVAL, "request %llu: %u tokens to load, but too few blocks",
                         (unsigned long long)r->id, n_external);
    int e = tsri_grow(&s->ready, &s->ready_max, s->n_ready + 1, sizeof *s->ready);
    if (e) return e;
    s->ready[s->n_ready++] = r->id;
    r->load_end = whole_blocks(&s->terms, r, r->load_first + n_external);
    r->load_state = TSRI_LOAD_READY;
    s->stats.tokens_hit += n_external;
    /* Every chunk that was found is there: nothing of it need be saved. */
    if (r->found > r->upto) r->upto = r->found;
    if (r->found > r->saved) r->saved = r->found;
    return 0;
}

static void send(struct tsr_scheduler *s, struct tsri_req *r)
{
    const struct tsri_terms *t = &s->terms;
    uint32_t first_row = r->load_first / t->chunk_tokens;
    uint32_t end_row = (r->load_end + t->chunk_tokens - 1) / t->chunk_tokens;
    TSR_ASSERT(r->load_first < r->load_end && end_row <= r->n_rows);
    struct tsri_load_order o = {.request = r->id,
                                .load = ++s->last_load,
                                .flags = r->load_async  ? TSRI_LOAD_ASYNC
                                         : r->load_sure ? TSRI_LOAD_SURE
                                                        : 0,
                                .first = r->load_first,
                                .end = r->load_end,
                                .n_rows = end_row - first_row,
                                .rows = r->rows + (size_t)first_row * t->n_spaces};
    for (size_t i = 0; i < (size_t)o.n_rows * t->n_spaces; i++)
        if (!o.rows[i].verified) o.n_tokens = end_row * t->chunk_tokens;
    if (o.n_tokens) {
        o.tokens = r->tokens;
        o.extras = r->extras;
        o.extras.n = tsri_extras_within(&r->extras, o.n_tokens);
    }
    for (uint32_t g = 0; g < t->n_groups; g++)
        o.tables.blocks[g] = r->blocks[g] + r->load_first / t->groups[g].block_tokens;
    tsri_meta_put_load(&s->loads, t, &o);
    r->load = o.load;
    r->load_state = TSRI_LOAD_SENT;
    r->n_load_reports = t->n_ranks;
    s->n_loads_sent++;
    s->stats.loads++;
}

void tsri_hits_send(struct tsr_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_ready; i++) {
        struct tsri_req *r = tsri_reqs_find(&s->reqs, s->ready[i]);
        if (!r || r->load_state != TSRI_LOAD_READY) continue;
        /* The engine computes as if they were loaded: blocks must be there for them. */
        TSR_ASSERT(has_blocks(&s->terms, r, r->load_end));
        send(s, r);
    }
    s->n_ready = 0;
}

void tsri_hits_report(struct tsr_scheduler *s, const struct tsri_load_report *report)
{
    struct tsri_req *r = tsri_reqs_find(&s->reqs, report->request);
    if (!r || r->load_state != TSRI_LOAD_SENT || r->load != report->load) return;
    if (report->result) {
        s->stats.loads_failed++;
        tsri_log(TSR_LOG_INFO, "connector: request %llu: load failed at token %u: %s",
                 (unsigned long long)r->id, report->loaded, tsr_strerror(report->result));
        /* What could not be loaded is computed, and may then be saved. */
        uint32_t chunk = s->terms.chunk_tokens, good = report->loaded / chunk * chunk;
        if (good < r->upto) {
            r->upto = good;
            r->saved = tsri_min_u32(r->saved, good);
            r->chain.n_tokens = 0;
        }
    }
    if (--r->n_load_reports) return;
    if (r->load_sure) s->sure_ns = tsri_now_ns();
    tsri_resets_ended(s, &r->load_old);
    let_go(s, r);
    TSR_ASSERT(s->n_loads_sent > 0);
    s->n_loads_sent--;
    tsri_scheduler_settle(s, r);
}
