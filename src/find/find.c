/* find.c - lookup. A hash only nominates: tokens, digest and extra are compared on every hit that
 * is in memory. No lock is taken and nothing is allocated.
 *
 * Segments are looked up in batches of 16 and in stages (key, slot, entry, tokens), each stage
 * asking the memory for what the next one needs, so that a cold index costs a few round trips to
 * memory for the batch and not for every segment. A prefix is a chain: each block's key needs the
 * digest of those before, and that is computed while the block's own slot is on its way. */
#include "find/find.h"
#include "cache/clients.h"
#include "cache/manager.h"

/* Enough to keep the memory busy, few enough that the tokens just hashed are still near when they
 * are compared: 64 is 4 % slower on a warm cache (bench_lookup). */
#define BATCH 16u
/* Beyond this much of one entry the hardware has caught on. */
#define PREFETCH_BYTES 4096u

/* What is looked for in one space; `found` keeps the pins. */
struct probe {
    const struct tsri_chunk *chunk;
    const struct tsri_digest *digest;
    struct tsri_key key;
    struct tsri_found found;
};

static const struct tsri_digest pure; /* all zero */

/* Does the pinned HOST entry hold exactly this text? */
static bool entry_holds(struct tsr_cache *c, uint32_t id, const struct tsri_chunk *chunk,
                        const struct tsri_digest *digest, const uint32_t *tokens)
{
    const struct tsri_entry *e = &c->entries[id];
    struct tsri_meta *m = tsri_meta(c, e);
    return e->n_tokens == chunk->range.n_tokens && e->kind == chunk->kind &&
           m->extra_bytes == chunk->extra_bytes &&
           memcmp(tsri_meta_tokens(m), tokens, (size_t)e->n_tokens * sizeof tokens[0]) == 0 &&
           memcmp(&m->digest, digest, sizeof *digest) == 0 &&
           memcmp(tsri_meta_extra(m), chunk->extra, chunk->extra_bytes) == 0;
}

/* Pins the entry when it is live and has this key. */
static void pin_probe(struct tsr_cache *c, const struct tsr_space *space, struct probe *p)
{
    if (p->found.id == TSRI_ID_NONE) return;
    const struct tsri_entry *e = &c->entries[p->found.id];
    enum tsri_state state = tsri_pin(c, p->found.id);
    if (state == TSRI_FREE) {
        p->found.id = TSRI_ID_NONE;
        return;
    }
    if (!tsri_entry_has_key(e, p->key) || e->space != space->id) {
        tsri_unpin(c, p->found.id);
        p->found.id = TSRI_ID_NONE;
        return;
    }
    p->found.state = (uint8_t)state;
    if (state == TSRI_HOST) __builtin_prefetch(tsri_meta(c, e));
}

/* Asks for the tokens of an entry while those of the one before are compared: on a cold cache the
 * hardware would notice each run only when it is half over. */
static void prefetch_tokens(struct tsr_cache *c, const struct probe *p)
{
    if (p->found.id == TSRI_ID_NONE || p->found.state != TSRI_HOST) return;
    const struct tsri_entry *e = &c->entries[p->found.id];
    const uint8_t *at = (const uint8_t *)tsri_meta(c, e);
    size_t bytes = sizeof(struct tsri_meta) + (size_t)e->n_tokens * sizeof(uint32_t);
    if (bytes > PREFETCH_BYTES) bytes = PREFETCH_BYTES;
    for (size_t i = 0; i < bytes; i += TSRI_CACHE_LINE)
        __builtin_prefetch(at + i);
}

static void verify_probe(struct tsr_cache *c, const uint32_t *tokens, struct probe *p)
{
    uint32_t id = p->found.id;
    if (id == TSRI_ID_NONE) return;
    bool same = p->found.state == TSRI_HOST
                    ? entry_holds(c, id, p->chunk, p->digest, tokens + p->chunk->range.offset)
                    : c->entries[id].n_tokens == p->chunk->range.n_tokens;
    if (same) return;
    tsri_stats_add(c->stats, TSRI_M_collisions, 1);
    tsri_unpin(c, id);
    p->found.id = TSRI_ID_NONE;
}

static void run_probes(struct tsr_cache *c, const struct tsr_space *space, const uint32_t *tokens,
                       struct probe *probes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        probes[i].key = tsri_chunk_key(space, probes[i].chunk, probes[i].digest);
        tsri_index_prefetch(&c->index, probes[i].key);
    }
    for (uint32_t i = 0; i < n; i++)
        probes[i].found.id = tsri_index_nominate(&c->index, c->entries, probes[i].key);
    for (uint32_t i = 0; i < n; i++) {
        if (probes[i].found.id != TSRI_ID_NONE &&
            !tsri_entry_has_key(&c->entries[probes[i].found.id], probes[i].key))
            probes[i].found.id = tsri_index_find(&c->index, c->entries, probes[i].key);
        pin_probe(c, space, &probes[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n) prefetch_tokens(c, &probes[i + 1]);
        verify_probe(c, tokens, &probes[i]);
    }
}

/* ---- one lookup ---- */

struct lookup {
    struct tsr_cache *c;
    const struct tsr_prompt *prompt;
    struct tsr_lookup_desc *io;
    struct tsri_walk walk;
    struct tsri_chunk chunks[BATCH];
    struct tsri_found found[TSRI_LOOKUP_SPACES_MAX][BATCH];
    uint32_t covered; /* tokens at the front that the prefix has */
    uint32_t n_tokens;
    uint32_t ids[1024]; /* pins to be leased or let go, and uses to be told */
    uint32_t n_ids;
    uint32_t lease_room; /* set aside and not yet used */
};

static void fill_match(struct lookup *l, const struct tsri_chunk *chunk,
                       const struct tsri_found *found, uint32_t skip, struct tsr_match *m)
{
    const struct tsri_entry *e = &l->c->entries[found->id];
    uint8_t tiers = atomic_load_explicit(&e->tiers, memory_order_relaxed);
    *m = (struct tsr_match){.entry = tsri_handle(found->id, tsri_word_gen(atomic_load(&e->word))),
                            .epoch = l->c->epoch,
                            .prompt_offset = chunk->range.offset + skip,
                            .entry_offset = skip,
                            .n_tokens = chunk->range.n_tokens - skip,
                            .kind = e->kind, /* the chunk may be blended in this space alone */
                            .context = found->context,
                            .verified = found->state == TSRI_HOST,
                            .entry_tokens = chunk->range.n_tokens,
                            .coverage = TSR_COVERAGE_FULL};
    if (skip)
        m->coverage = m->n_tokens >= l->c->options.min_match_ratio * m->entry_tokens
                          ? TSR_COVERAGE_PARTIAL
                          : TSR_COVERAGE_RUN;
    if (found->state == TSRI_HOST) {
        const struct tsri_meta *meta = tsri_meta(l->c, e);
        m->base = meta->base;
        m->freq_set = meta->freq_set;
        return;
    }
    /* A block stands at its own place. Of the rest nobody here knows before it is read. */
    m->base = m->kind == TSR_KIND_PREFIX ? chunk->range.offset : TSR_BASE_UNKNOWN;
    m->freq_set = TSR_BASE_UNKNOWN;
    if (tiers & ~1u) m->tier = tsri_tier_fastest(l->c, tiers & (uint8_t)~1u);
}

/* Takes the ids gathered so far off the lookup: tells the policy, and leases or lets go. */
static void settle(struct lookup *l, struct tsr_client *client)
{
    if (l->n_ids == 0) return;
    tsri_touch_push(l->c, l->ids, l->n_ids);
    tsri_manager_used(l->c, l->ids, l->n_ids);
    if (l->io->request_id) tsri_client_lease_reserved(client, l->io->request_id, l->ids, l->n_ids);
    for (uint32_t i = 0; !l->io->request_id && i < l->n_ids; i++)
        tsri_unpin(l->c, l->ids[i]);
    l->n_ids = 0;
}

/* Is there room for leases of chunk i, in all spaces? They are held then. */
static bool may_lease(const struct lookup *l, struct tsr_client *client, uint32_t i)
{
    uint32_t ids[TSRI_LOOKUP_SPACES_MAX], n_spaces = l->io->n_spaces;
    if (l->lease_room < n_spaces) return false;
    for (uint32_t s = 0; s < n_spaces; s++)
        ids[s] = l->found[s][i].id;
    return tsri_hold(tsri_client_holder(client), ids, n_spaces);
}

/* Adds a row for chunk i of the batch when every space has it and there is room; lets go its pins
 * otherwise. False when it did not count as found. */
static bool take_row(struct lookup *l, struct tsr_client *client, uint32_t i)
{
    const struct tsri_chunk *chunk = &l->chunks[i];
    uint32_t n_spaces = l->io->n_spaces, end = chunk->range.offset + chunk->range.n_tokens;
    bool all = true;
    for (uint32_t s = 0; s < n_spaces; s++)
        all &= l->found[s][i].id != TSRI_ID_NONE;
    uint32_t skip = 0;
    if (chunk->kind != TSR_KIND_PREFIX && chunk->range.offset < l->covered)
        skip = tsri_min_u32(l->covered - chunk->range.offset, chunk->range.n_tokens);
    bool fits = all && end > l->covered && l->io->n_matches < l->io->matches_max;
    if (fits && l->io->request_id && !may_lease(l, client, i)) {
        tsri_stats_add(l->c->stats, TSRI_M_lease_refused, 1);
        fits = false;
    }
    if (!fits) {
        for (uint32_t s = 0; s < n_spaces; s++)
            if (l->found[s][i].id != TSRI_ID_NONE) tsri_unpin(l->c, l->found[s][i].id);
        return false;
    }
    if (l->n_ids + n_spaces > TSRI_COUNT(l->ids)) settle(l, client);
    struct tsr_match *row = l->io->matches + (size_t)l->io->n_matches * n_spaces;
    for (uint32_t s = 0; s < n_spaces; s++) {
        fill_match(l, chunk, &l->found[s][i], skip, &row[s]);
        l->ids[l->n_ids++] = l->found[s][i].id;
    }
    l->lease_room -= l->io->request_id ? n_spaces : 0;
    l->io->n_matches++;
    l->n_tokens += chunk->range.n_tokens - skip;
    return true;
}

static void find_prefix(struct lookup *l, struct tsr_client *client)
{
    struct tsri_chunk *chunk = &l->chunks[0];
    while (tsri_walk_block(&l->walk, chunk)) {
        struct probe p[TSRI_LOOKUP_SPACES_MAX];
        struct tsri_digest digest = chunk->digest;
        for (uint32_t s = 0; s < l->io->n_spaces; s++) {
            p[s] = (struct probe){.chunk = chunk, .digest = &digest};
            p[s].key = tsri_chunk_key(l->io->spaces[s], chunk, &digest);
            tsri_index_prefetch(&l->c->index, p[s].key);
        }
        /* The chain's next digest takes longer than memory. The first block goes without: most
         * misses are found there, and should cost nothing. */
        bool ahead = chunk->range.offset != 0;
        if (ahead) tsri_walk_passed(&l->walk, chunk);
        for (uint32_t s = 0; s < l->io->n_spaces; s++) {
            p[s].found.id = tsri_index_find(&l->c->index, l->c->entries, p[s].key);
            pin_probe(l->c, l->io->spaces[s], &p[s]);
            verify_probe(l->c, l->prompt->tokens, &p[s]);
            p[s].found.context = TSR_CONTEXT_SAME;
            l->found[s][0] = p[s].found;
        }
        if (!take_row(l, client, 0)) break;
        l->covered = chunk->range.offset + chunk->range.n_tokens;
        if (!ahead) tsri_walk_passed(&l->walk, chunk);
    }
    l->io->n_prefix_tokens = l->covered;
    /* Leaf first, so that a block never ranks below the one behind it. */
    tsri_reverse_u32(l->ids, l->n_ids);
    settle(l, client);
}

/* The digests a segment may have been stored under, in the order they are tried. */
static uint32_t candidates(const struct lookup *l, const struct tsri_chunk *chunk,
                           const struct tsri_digest **digests, uint8_t *contexts)
{
    uint32_t n = 0;
    if (l->walk.has_context && !chunk->system) {
        digests[n] = &l->walk.context;
        contexts[n++] = TSR_CONTEXT_SAME;
    }
    digests[n] = &pure;
    contexts[n++] = TSR_CONTEXT_PURE;
    return n;
}

/* One batch in one space: first with the context, then what is still missing without. */
static void find_batch(struct lookup *l, uint32_t s, uint32_t n)
{
    struct probe probes[BATCH];
    uint32_t where[BATCH];
    for (uint32_t i = 0; i < n; i++)
        l->found[s][i].id = TSRI_ID_NONE;
    uint32_t n_rounds = l->walk.has_context ? 2 : 1;
    for (uint32_t round = 0; round < n_rounds; round++) {
        uint32_t n_probes = 0;
        for (uint32_t i = 0; i < n; i++) {
            const struct tsri_digest *digests[2];
            uint8_t contexts[2];
            uint32_t n_digests = candidates(l, &l->chunks[i], digests, contexts);
            if (round >= n_digests || l->found[s][i].id != TSRI_ID_NONE) continue;
            where[n_probes] = i;
            probes[n_probes++] = (struct probe){
                .chunk = &l->chunks[i], .digest = digests[round], .found.context = contexts[round]};
        }
        if (n_probes == 0) return;
        run_probes(l->c, l->io->spaces[s], l->prompt->tokens, probes, n_probes);
        for (uint32_t i = 0; i < n_probes; i++)
            l->found[s][where[i]] = probes[i].found;
    }
}

/* Blended KV stands under its recipe and is asked for by name only. */
static void find_blended(struct lookup *l, uint32_t s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (l->found[s][i].id != TSRI_ID_NONE) continue;
        struct tsri_chunk blended = l->chunks[i];
        blended.kind = TSR_KIND_BLENDED;
        struct probe p = {.chunk = &blended, .digest = &l->walk.recipe};
        p.found.context = TSR_CONTEXT_SAME;
        run_probes(l->c, l->io->spaces[s], l->prompt->tokens, &p, 1);
        l->found[s][i] = p.found;
    }
}

static void find_segments(struct lookup *l, struct tsr_client *client)
{
    for (;;) {
        uint32_t n = 0;
        while (n < BATCH && tsri_walk_segment(&l->walk, &l->chunks[n]))
            n++;
        if (n == 0) break;
        for (uint32_t s = 0; s < l->io->n_spaces; s++) {
            find_batch(l, s, n);
            if (l->walk.blended) find_blended(l, s, n);
        }
        for (uint32_t i = 0; i < n; i++)
            take_row(l, client, i);
    }
    settle(l, client);
}

struct taking {
    struct lookup *l;
    struct tsr_client *client;
};

/* Leases for rows that are about to be added; how many of them may be. */
static uint32_t grant(void *arg, uint32_t n_rows)
{
    struct taking *t = arg;
    uint32_t n_spaces = t->l->io->n_spaces;
    if (!t->l->io->request_id) return n_rows;
    t->l->lease_room += tsri_client_reserve(t->client, (uint64_t)n_rows * n_spaces);
    uint32_t granted = tsri_min_u32(n_rows, t->l->lease_room / n_spaces);
    tsri_stats_add(t->l->c->stats, TSRI_M_lease_refused, n_rows - granted);
    return granted;
}

static bool may_take(void *arg, const uint32_t *ids, uint32_t n)
{
    struct taking *t = arg;
    if (!t->l->io->request_id || tsri_hold(tsri_client_holder(t->client), ids, n)) return true;
    tsri_stats_add(t->l->c->stats, TSRI_M_lease_refused, 1);
    return false;
}

static void took(void *arg, uint32_t id)
{
    struct taking *t = arg;
    if (t->l->n_ids == TSRI_COUNT(t->l->ids)) settle(t->l, t->client);
    t->l->ids[t->l->n_ids++] = id;
    t->l->lease_room -= t->l->io->request_id ? 1 : 0;
}

/* Whatever else of the prompt stands somewhere in stored text. */
static void find_any(struct lookup *l, struct tsr_client *client)
{
    struct taking t = {l, client};
    struct tsri_compose q = {
        .walk = &l->walk, .io = l->io, .grant = grant, .may = may_take, .took = took, .arg = &t};
    uint32_t n = tsri_compose(&q);
    l->n_tokens += n;
    if (n) tsri_stats_add(l->c->stats, TSRI_M_lookup_tokens_any, n);
    settle(l, client);
}

int tsri_find(struct tsr_client *client, const struct tsr_prompt *prompt,
              struct tsr_lookup_desc *io)
{
    struct lookup l;
    l.c = tsri_client_cache(client);
    l.prompt = prompt;
    l.io = io;
    l.covered = l.n_tokens = l.n_ids = 0;
    io->n_matches = io->n_prefix_tokens = 0;
    int e = tsri_walk_init(&l.walk, io->spaces[0], prompt);
    if (e) return e;
    struct tsri_lease *old = NULL;
    l.lease_room = 0;
    if (io->request_id) {
        old = tsri_client_detach(client, io->request_id);
        uint64_t n_chunks = (uint64_t)l.walk.n_blocks + l.walk.n_segments;
        l.lease_room = tsri_client_reserve(client, n_chunks * io->n_spaces);
    }
    find_prefix(&l, client);
    find_segments(&l, client);
    if (prompt->flags & TSR_PROMPT_ANY) find_any(&l, client);
    if (io->request_id) tsri_client_unreserve(client, l.lease_room);
    tsri_client_let_go(client, old);
    return (int)l.n_tokens;
}

/* ---- everything a prompt has in one space ---- */

static int each_chunk(struct tsr_space *space, struct tsri_walk *w, const struct tsri_chunk *chunk,
                      const struct tsri_digest *digest, tsri_each_fn fn, void *arg)
{
    struct probe p = {.chunk = chunk, .digest = digest};
    run_probes(space->cache, space, w->prompt->tokens, &p, 1);
    if (p.found.id == TSRI_ID_NONE) return -1;
    uint64_t word = atomic_load(&space->cache->entries[p.found.id].word);
    tsri_unpin(space->cache, p.found.id);
    return fn(space->cache, tsri_handle(p.found.id, tsri_word_gen(word)), arg);
}

int tsri_find_each(struct tsr_space *space, const struct tsr_prompt *prompt, uint32_t from,
                   tsri_each_fn fn, void *arg)
{
    struct tsri_walk w;
    struct tsri_chunk chunk;
    int e = tsri_walk_init(&w, space, prompt), n, sum = 0;
    if (e) return e;
    while (tsri_walk_block(&w, &chunk)) {
        struct tsri_digest digest = chunk.digest;
        n = chunk.range.offset < from ? 0 : each_chunk(space, &w, &chunk, &digest, fn, arg);
        if (n < 0) break;
        sum += n;
        tsri_walk_passed(&w, &chunk);
    }
    while (tsri_walk_segment(&w, &chunk)) {
        n = w.has_context && !chunk.system ? each_chunk(space, &w, &chunk, &w.context, fn, arg)
                                           : -1;
        if (n < 0) n = each_chunk(space, &w, &chunk, &pure, fn, arg);
        if (n > 0) sum += n;
        if (!w.blended) continue;
        chunk.kind = TSR_KIND_BLENDED;
        n = each_chunk(space, &w, &chunk, &w.recipe, fn, arg);
        if (n > 0) sum += n;
    }
    return sum;
}

int tsri_find_keys(struct tsr_space *space, const struct tsr_prompt *prompt, struct tsr_key *keys,
                   uint32_t keys_max)
{
    struct tsri_walk w;
    struct tsri_chunk chunk;
    int e = tsri_walk_init(&w, space, prompt);
    if (e) return e;
    uint32_t n = 0;
    struct tsri_key key;
    while (tsri_walk_block(&w, &chunk)) {
        key = tsri_chunk_key(space, &chunk, &chunk.digest);
        if (n < keys_max) memcpy(&keys[n], &key, sizeof key);
        n++;
        tsri_walk_passed(&w, &chunk);
    }
    while (tsri_walk_segment(&w, &chunk)) {
        bool alone = !w.has_context || chunk.system;
        key = tsri_chunk_key(space, &chunk, alone ? &pure : &w.context);
        if (n < keys_max) memcpy(&keys[n], &key, sizeof key);
        n++;
    }
    return (int)n;
}

int tsri_find_lacking(struct tsr_space *const *spaces, uint32_t n_spaces,
                      const struct tsr_prompt *prompt, uint32_t from, struct tsri_chain *chain,
                      struct tsr_key *keys, uint64_t *lacking)
{
    const struct tsr_cache *c = spaces[0]->cache;
    uint32_t block_tokens = spaces[0]->block_tokens, n = prompt->n_tokens / block_tokens;
    struct tsri_walk w;
    struct tsri_chunk chunk;
    int e = tsri_walk_init(&w, spaces[0], prompt);
    if (e) return e;
    if (chain->n_tokens && chain->n_tokens <= from) {
        w.block = chain->n_tokens / block_tokens;
        w.chain = chain->digest;
    }
    w.n_blocks++; /* so that the last block's digest is made, too: the next call begins there */
    while (w.block < n && tsri_walk_block(&w, &chunk)) {
        struct tsri_digest digest = chunk.digest;
        uint32_t i = chunk.range.offset / block_tokens;
        for (uint32_t k = 0; chunk.range.offset >= from && k < n_spaces; k++) {
            struct tsri_key key = tsri_chunk_key(spaces[k], &chunk, &digest);
            if (k == 0) memcpy(&keys[i], &key, sizeof key);
            if (tsri_index_find(&c->index, c->entries, key) == TSRI_ID_NONE)
                lacking[i] |= (uint64_t)1 << k;
        }
        tsri_walk_passed(&w, &chunk);
    }
    *chain = (struct tsri_chain){.digest = w.chain, .n_tokens = prompt->n_tokens};
    return 0;
}
