/* keeping.c - a save in the background: chunk by chunk out of the engine's blocks into staging
 * memory, and from there into the cache. When the last chunk has been read the engine may have its
 * blocks back, whatever the cache does with it. An owner that does not answer is left alone for a
 * while, so that blocks are not held for its sake. */
#include "connector/connector.h"

#define OFF_NS ((uint64_t)2000000000)

struct keeping {
    struct tsri_kv_job *job;
    struct tsri_lane *lane;
    uint32_t n_left; /* chunks of all groups that are still to be read */
};

static bool owner_is_away(int err)
{
    return err == TSR_EAGAIN || err == TSR_ETIME || err == TSR_EIO;
}

static int read_chunk(struct keeping *k, uint32_t group, uint32_t from)
{
    struct tsri_kv_job *job = k->job;
    const struct tsri_terms *t = &job->worker->terms;
    struct tsri_kvmem *mem = &k->lane->mem[group];
    uint32_t n = t->chunk_tokens;
    uint32_t there = tsri_block_slots(k->lane->slots, job->save.tables.blocks[group],
                                      t->groups[group].block_tokens, job->save.from, from, n);
    if (there < n) return tsri_fail(TSR_EINVAL, "save: token %u has no block", from);
    struct tsri_kvmem_run run = {.n_tokens = n, .slots = k->lane->slots};
    if (!tsri_job_touch(job)) return TSR_ETIME;
    int e = tsri_kvmem_move(mem, false, &run, 1, 0, mem->layout.n_layers);
    tsri_job_touched(job);
    if (!e && --k->n_left == 0) tsri_job_read(job);
    return e;
}

static int keep_chunk(struct keeping *k, uint32_t group, uint32_t from)
{
    struct tsri_kv_job *job = k->job;
    struct tsr_worker *w = job->worker;
    const struct tsri_terms *t = &w->terms;
    struct tsri_kvmem *mem = &k->lane->mem[group];
    int e = read_chunk(k, group, from);
    if (e) return e;
    uint32_t to = from + t->chunk_tokens;
    struct tsr_store_desc store = {
        .size = sizeof store,
        .space = t->spaces[w->rank * t->n_groups + group],
        .kind = TSR_KIND_PREFIX,
        .tokens = job->save.tokens,
        .n_tokens = to,
        .from = from,
        .extra = job->save.extras.items,
        .n_extra = tsri_extras_within(&job->save.extras, to),
        .view = {.data = mem->staging,
                 .bytes = (size_t)t->chunk_tokens * mem->row_bytes * mem->layout.n_layers}};
    int n = tsr_client_store(t->client, &store);
    pthread_mutex_lock(&w->lock);
    w->stats.chunks_gathered++;
    if (n == 0) w->stats.chunks_wasted++;
    if (n > 0) {
        w->stats.tokens_saved += (uint32_t)n;
        w->stats.bytes_saved += store.view.bytes;
        job->n_tokens += (uint32_t)n;
    }
    if (owner_is_away(n)) w->saves_off_until_ns = tsri_now_ns() + OFF_NS;
    pthread_mutex_unlock(&w->lock);
    return n < 0 ? n : 0;
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
    int e = tsri_event_wait(w->device, w->written, k->lane->stream);
    /* All groups of a chunk before the next chunk: a lookup needs them all. */
    for (uint32_t from = job->save.from; !e && from < job->save.to; from += t->chunk_tokens)
        for (uint32_t g = 0; !e && g < t->n_groups; g++)
            if (mine >> g & 1) e = keep_chunk(k, g, from);
    return e;
}

void tsri_keeping_run(struct tsri_job *base)
{
    struct tsri_kv_job *job = (struct tsri_kv_job *)base;
    struct tsr_worker *w = job->worker;
    struct keeping k = {.job = job, .lane = &w->lanes[TSRI_LANE_SAVE]};
    int e = keep_all(&k);
    if (e)
        tsri_log(TSR_LOG_DEBUG, "connector: saving %u tokens failed: %s",
                 job->save.to - job->save.from, tsr_strerror(e));
    pthread_mutex_lock(&w->lock);
    w->stats.saves++;
    if (e) {
        w->stats.saves_failed++;
        job->result = e;
    }
    pthread_mutex_unlock(&w->lock);
    tsri_job_done(job);
}
