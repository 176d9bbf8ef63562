/* keeping.c - a save in the background: piece by piece out of the engine's blocks into the cache. A
 * piece is some chunks of one group, and one put: a delivery gathers it straight into the cache's
 * pages, or into the memory that a server copies from. Where that cannot be, it goes chunk by chunk
 * through staging memory. When the last piece has been read the engine may have its blocks back,
 * whatever the cache does with it. An owner that does not answer is left alone for a while, so that
 * blocks are not held for its sake. */
#include "connector/connector.h"
#include "deliver/collect.h"

#define OFF_NS ((uint64_t)2000000000)
/* A put costs some 100 us besides its copy: it should have ms of work. And an engine that wants its
 * blocks back waits for one piece, which should not take long. */
#define PIECE_TOKENS 2048u
#define PIECE_BYTES ((size_t)256 << 20)

struct keeping {
    struct tsri_kv_job *job;
    struct tsri_lane *lane;
    uint32_t n_left; /* chunks of all groups that are still to be read */
    bool taken_back; /* the engine has its memory back */
    struct tsri_chain chains[TSR_GROUPS_MAX];
};

static bool owner_is_away(int err)
{
    return err == TSR_EAGAIN || err == TSR_ETIME || err == TSR_EIO;
}

static bool begin_reading(void *keeping)
{
    struct keeping *k = keeping;
    k->taken_back = !tsri_job_touch(k->job);
    return !k->taken_back;
}

static void end_reading(void *keeping)
{
    struct keeping *k = keeping;
    tsri_job_touched(k->job);
}

/* The engine's memory is not needed any more for so many chunks. */
static void have_read(struct keeping *k, uint32_t n_chunks)
{
    k->n_left -= n_chunks;
    if (n_chunks && k->n_left == 0) tsri_job_read(k->job);
}

/* `n` is what the cache said: tokens that are new, or an error. */
static void count(struct keeping *k, uint32_t n_gathered, int n, size_t token_bytes)
{
    struct tsri_kv_job *job = k->job;
    struct tsr_worker *w = job->worker;
    uint32_t n_new = n > 0 ? (uint32_t)n : 0;
    pthread_mutex_lock(&w->lock);
    w->stats.chunks_gathered += n_gathered;
    if (n >= 0) w->stats.chunks_wasted += n_gathered - n_new / w->terms.chunk_tokens;
    w->stats.tokens_saved += n_new;
    w->stats.bytes_saved += n_new * token_bytes;
    job->n_tokens += n_new;
    if (owner_is_away(n)) w->saves_off_until_ns = tsri_now_ns() + OFF_NS;
    pthread_mutex_unlock(&w->lock);
}

/* Tokens [from, to) of a group as a store without its KV, and their slots. */
static int describe(struct keeping *k, uint32_t group, uint32_t from, uint32_t to,
                    struct tsr_store_desc *store)
{
    struct tsri_kv_job *job = k->job;
    const struct tsri_terms *t = &job->worker->terms;
    uint32_t there =
        tsri_block_slots(k->lane->slots, job->save.tables.blocks[group],
                         t->groups[group].block_tokens, job->save.from, from, to - from);
    if (there < to - from) return tsri_fail(TSR_EINVAL, "save: token %u has no block", from);
    *store = (struct tsr_store_desc){.size = sizeof *store,
                                     .space = t->spaces[job->worker->rank * t->n_groups + group],
                                     .kind = TSR_KIND_PREFIX,
                                     .tokens = job->save.tokens,
                                     .n_tokens = to,
                                     .from = from,
                                     .extra = job->save.extras.items,
                                     .n_extra = tsri_extras_within(&job->save.extras, to)};
    return 0;
}

/* ---- through staging memory ---- */

static int keep_chunk(struct keeping *k, uint32_t group, uint32_t from)
{
    const struct tsri_terms *t = &k->job->worker->terms;
    struct tsri_kvmem *mem = &k->lane->mem[group];
    struct tsr_store_desc store;
    int e = describe(k, group, from, from + t->chunk_tokens, &store);
    if (e) return e;
    struct tsri_kvmem_run run = {.n_tokens = t->chunk_tokens, .slots = k->lane->slots};
    e = tsri_event_wait(mem->device, k->job->written, mem->stream);
    if (e) return e;
    if (!begin_reading(k)) return TSR_ETIME;
    e = tsri_kvmem_move(mem, false, &run, 1, 0, mem->layout.n_layers);
    end_reading(k);
    if (e) return e;
    have_read(k, 1);
    size_t token_bytes = mem->row_bytes * mem->layout.n_layers;
    store.view = (struct tsr_view){.data = mem->staging, .bytes = t->chunk_tokens * token_bytes};
    int n = tsr_client_store(t->client, &store);
    count(k, 1, n, token_bytes);
    return n < 0 ? n : 0;
}

static int keep_chunks(struct keeping *k, uint32_t group, uint32_t from, uint32_t to)
{
    int e = 0;
    for (; !e && from < to; from += k->job->worker->terms.chunk_tokens)
        e = keep_chunk(k, group, from);
    return e;
}

/* ---- straight ---- */

/* Fills an open put, or aborts it. */
static int fill(struct keeping *k, uint32_t group, struct tsr_put *put, uint32_t n_tokens)
{
    struct tsri_reading reading = {
        .after = k->job->written, .begin = begin_reading, .end = end_reading, .arg = k};
    int e =
        tsri_delivery_collect(k->lane->deliveries[group], put, k->lane->slots, n_tokens, &reading);
    if (e) tsr_put_abort(put);
    return e;
}

/* One put from `from` on, of at most [from, to). *end: how far it went. TSR_EUNSUP: it cannot go
 * this way now, but in smaller pieces through staging memory. */
static int keep_put(struct keeping *k, uint32_t group, uint32_t from, uint32_t to, uint32_t *end)
{
    struct tsr_worker *w = k->job->worker;
    uint32_t chunk = w->terms.chunk_tokens;
    struct tsr_store_desc store;
    struct tsr_put *put;
    int e = describe(k, group, from, to, &store);
    if (e) return e;
    e = tsri_cache_put_open(&put, w->terms.client, &store, &k->chains[group]);
    if (e == TSR_EFULL) return TSR_EUNSUP; /* one chunk may find room where many do not */
    if (e) {
        count(k, 0, e, 0);
        return e;
    }
    struct tsri_put_extent extent = tsri_put_extent(put);
    *end = from + extent.n_tokens;
    if (extent.n_blocks == 0) {
        tsr_put_abort(put);
        have_read(k, extent.n_tokens / chunk);
        return 0;
    }
    e = fill(k, group, put, to - from);
    /* The pages are not page-locked yet, or a layer of so many tokens does not fit in the memory
     * that the server copies from. */
    if ((e == TSR_EAGAIN && !extent.sent) || e == TSR_ERANGE) return TSR_EUNSUP;
    uint32_t n_gathered = extent.sent ? (to - from) / chunk : extent.n_blocks;
    if (e) {
        count(k, 0, extent.sent && !k->taken_back ? e : 0, 0);
        return e;
    }
    have_read(k, extent.n_tokens / chunk);
    int n = tsr_put_commit(put);
    count(k, n_gathered, n, tsr_space_token_bytes(store.space));
    return n < 0 ? n : 0;
}

static int keep_piece(struct keeping *k, uint32_t group, uint32_t from, uint32_t to)
{
    int e = tsri_lane_delivery(k->lane, group) ? 0 : TSR_EUNSUP;
    while (!e && from < to) {
        uint32_t end = from;
        e = keep_put(k, group, from, to, &end);
        if (!e) from = end;
    }
    return e == TSR_EUNSUP ? keep_chunks(k, group, from, to) : e;
}

/* ---- states ---- */

/* The last block of a group: the state after all tokens. */
static int describe_state(struct keeping *k, uint32_t group, struct tsr_store_desc *store)
{
    const struct tsri_save_order *o = &k->job->save;
    uint32_t n = k->job->worker->terms.state_tokens;
    int e = describe(k, group, o->to - n, o->to, store);
    if (e) return e;
    store->kind = TSR_KIND_SEGMENT;
    store->from = 0;
    store->tokens = o->tokens + o->to - n;
    store->n_tokens = n;
    store->context = o->tokens;
    store->n_context = store->base = o->to - n;
    return 0;
}

static int keep_state_staged(struct keeping *k, uint32_t group, struct tsr_store_desc *store)
{
    const struct tsri_terms *t = &k->job->worker->terms;
    struct tsri_kvmem *mem = &k->lane->mem[group];
    struct tsri_kvmem_run run = {.n_tokens = t->state_tokens, .slots = k->lane->slots};
    int e = tsri_event_wait(mem->device, k->job->written, mem->stream);
    if (e) return e;
    if (!begin_reading(k)) return TSR_ETIME;
    e = tsri_kvmem_move(mem, false, &run, 1, 0, mem->layout.n_layers);
    end_reading(k);
    if (e) return e;
    size_t token_bytes = mem->row_bytes * mem->layout.n_layers;
    store->view = (struct tsr_view){.data = mem->staging, .bytes = t->state_tokens * token_bytes};
    return tsr_client_store(t->client, store);
}

static int keep_state(struct keeping *k, uint32_t group)
{
    struct tsr_worker *w = k->job->worker;
    struct tsr_store_desc store;
    struct tsr_put *put = NULL;
    int n = describe_state(k, group, &store);
    if (n) return n;
    int e = tsri_lane_delivery(k->lane, group)
                ? tsri_cache_put_open(&put, w->terms.client, &store, NULL)
                : TSR_EUNSUP;
    if (!e && tsri_put_extent(put).n_blocks == 0) { /* it is there */
        tsr_put_abort(put);
        have_read(k, 1);
        return 0;
    }
    if (!e) {
        e = fill(k, group, put, w->terms.state_tokens);
        n = e ? e : tsr_put_commit(put);
    }
    if (e == TSR_EUNSUP || e == TSR_EAGAIN || e == TSR_ERANGE)
        n = k->taken_back ? TSR_ETIME : keep_state_staged(k, group, &store);
    else if (e)
        n = e;
    if (n >= 0) have_read(k, 1);
    pthread_mutex_lock(&w->lock);
    if (n > 0) w->stats.bytes_saved += (uint64_t)n * tsr_space_token_bytes(store.space);
    if (owner_is_away(n)) w->saves_off_until_ns = tsri_now_ns() + OFF_NS;
    pthread_mutex_unlock(&w->lock);
    return n < 0 ? n : 0;
}

/* ---- all of it ---- */

static uint32_t piece_tokens(const struct keeping *k, uint64_t mine)
{
    const struct tsri_terms *t = &k->job->worker->terms;
    size_t token_bytes = 1;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        const struct tsri_kvmem *mem = &k->lane->mem[g];
        size_t bytes = mem->row_bytes * mem->layout.n_layers;
        if (mine >> g & 1 && bytes > token_bytes) token_bytes = bytes;
    }
    size_t n = PIECE_BYTES / token_bytes;
    n = n < PIECE_TOKENS ? n : PIECE_TOKENS;
    uint32_t n_chunks = tsri_min_u32((uint32_t)n / t->chunk_tokens, TSRI_LANE_RUNS);
    return (n_chunks ? n_chunks : 1) * t->chunk_tokens;
}

static int keep_all(struct keeping *k)
{
    struct tsri_kv_job *job = k->job;
    struct tsr_worker *w = job->worker;
    const struct tsri_terms *t = &w->terms;
    uint32_t n_chunks = (job->save.to - job->save.from) / t->chunk_tokens;
    uint64_t mine = job->save.spaces >> (w->rank * t->n_groups);
    for (uint32_t g = 0; g < t->n_groups; g++)
        if (mine >> g & 1) k->n_left += n_chunks;
    pthread_mutex_lock(&w->lock);
    bool off = w->closing || tsri_now_ns() < w->saves_off_until_ns;
    pthread_mutex_unlock(&w->lock);
    if (off && k->n_left) return TSR_EAGAIN;
    uint32_t step = piece_tokens(k, mine);
    int e = 0;
    if (job->save.flags & TSRI_SAVE_STATE) {
        for (uint32_t g = 0; !e && g < t->n_groups; g++)
            if (mine >> g & 1) e = keep_state(k, g);
        return e;
    }
    /* All groups of a piece before the next piece: a lookup needs them all. */
    for (uint32_t from = job->save.from; !e && from < job->save.to; from += step)
        for (uint32_t g = 0; !e && g < t->n_groups; g++)
            if (mine >> g & 1) e = keep_piece(k, g, from, tsri_min_u32(from + step, job->save.to));
    return e;
}

void tsri_keeping_run(struct tsri_job *base)
{
    struct tsri_kv_job *job = (struct tsri_kv_job *)base;
    struct tsr_worker *w = job->worker;
    struct keeping k = {.job = job, .lane = &w->lanes[TSRI_LANE_SAVE]};
    uint64_t start_ns = tsri_now_ns();
    int e = keep_all(&k);
    if (e)
        tsri_log(TSR_LOG_DEBUG, "connector: saving %u tokens failed: %s",
                 job->save.to - job->save.from, tsr_strerror(e));
    pthread_mutex_lock(&w->lock);
    w->stats.saves++;
    job->busy_ns = tsri_now_ns() - start_ns;
    if (e) {
        w->stats.saves_failed++;
        job->result = e;
    }
    pthread_mutex_unlock(&w->lock);
    tsri_job_done(job);
}
