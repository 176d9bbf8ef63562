/* simulate.c - the requests of a simulated fleet: copies of a trace, each with users and documents of
 * its own and, of what all of them have in common, the same text. A copy begins anywhere in the
 * trace, so that they are not in step, and goes on at its start as a new population.
 *
 * A text is named by what it is made of: the id in the trace, the population, and which of its tokens.
 * The library's functions make blocks, digests and keys of that as they do of tokens. */
#include "lab/simulate.h"

#include <stdlib.h>

#define NAME_WORDS 6u
#define PROGRESS_EVERY 256u

/* One run: what all caches share, the caches, and the request that is asked now. */
struct fleet {
    struct tsri_sim sim; /* first */
    struct tsri_sim_cache *caches;
    uint32_t n_caches;
    uint64_t *n_chunks; /* that a cache will be asked for; at most as many entries does it need */
    uint8_t *common;    /* of each chunk of the trace */
    struct name {
        struct tsri_key key;
        uint32_t n_tokens;
    } * names; /* of the request's chunks */
    uint32_t *texts, *words;
    uint32_t texts_max, words_max;
    uint64_t n_requests;
};

/* ---- who asks ---- */

struct ask {
    const struct tsri_trace_request *request;
    uint64_t population;
    uint32_t step; /* in the trace's own time */
};

static uint64_t draw(const struct fleet *f, uint64_t what, uint64_t n)
{
    return tsri_sim_mix(tsri_sim_mix(f->sim.desc->seed + what * 0x9E3779B97F4A7C15u) + n);
}

/* Number k of all. */
static struct ask ask_of(const struct fleet *f, uint64_t k)
{
    const struct tsri_sim_desc *d = f->sim.desc;
    size_t n = d->trace->n_requests;
    uint64_t copy = k % d->n_copies, step = k / d->n_copies;
    uint64_t shift = d->n_copies > 1 ? draw(f, 1, copy) % n : 0, at = step + shift;
    return (struct ask){.request = &d->trace->requests[at % n],
                        .population = 1 + copy + at / n * d->n_copies,
                        .step = (uint32_t)step};
}

/* The engine that answers. One copy goes round; several would go round in step with the engines. */
static uint32_t route(const struct fleet *f, uint64_t k, const struct ask *a)
{
    const struct tsri_sim_desc *d = f->sim.desc;
    const struct tsri_trace_request *q = a->request;
    if (d->route_prefix) {
        size_t i = q->chunk_first, end = i + q->n_chunks;
        while (i < end && f->common[i])
            i++;
        if (i < end)
            return (uint32_t)(draw(f, a->population, d->trace->chunks[i].id) % d->n_engines);
    }
    return (uint32_t)((d->n_copies > 1 ? draw(f, 2, k) : k) % d->n_engines);
}

/* ---- what is common ---- */

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Marks the chunks of ids that are in at least a share of all requests. */
static int find_common(struct fleet *f)
{
    const struct tsri_trace *t = f->sim.desc->trace;
    f->common = calloc(t->n_chunks + 1, 1);
    uint64_t *ids = malloc((t->n_chunks + 1) * sizeof *ids);
    if (!ids || !f->common) {
        free(ids);
        return tsri_fail(TSR_ENOMEM, "no memory for the trace");
    }
    /* A request that holds an id twice counts twice: rare, and no matter. */
    for (size_t i = 0; i < t->n_chunks; i++)
        ids[i] = t->chunks[i].id;
    qsort(ids, t->n_chunks, sizeof *ids, by_number);
    /* The list now shrinks to the common ones. */
    size_t n = 0;
    for (size_t i = 0, end; i < t->n_chunks; i = end) {
        for (end = i; end < t->n_chunks && ids[end] == ids[i];)
            end++;
        if ((double)(end - i) >= f->sim.desc->common * (double)t->n_requests) ids[n++] = ids[i];
    }
    for (size_t i = 0; i < t->n_chunks; i++)
        f->common[i] = bsearch(&t->chunks[i].id, ids, n, sizeof *ids, by_number) != NULL;
    free(ids);
    return 0;
}

/* ---- chunks of a request ---- */

static uint32_t chunk_count(const struct fleet *f, const struct tsri_trace_request *q)
{
    const struct tsri_options *o = f->sim.options;
    if (!q->prefix && !f->sim.desc->as_prefix) return q->n_chunks;
    return tsri_block_count(q->n_tokens, o->chunk_size, o->save_partial);
}

/* Stands for tokens [offset, offset + n) of a chunk of the trace. */
static uint32_t *add_name(const struct fleet *f, uint32_t *words, const struct ask *a, size_t chunk,
                          uint32_t offset, uint32_t n)
{
    uint64_t id = f->sim.desc->trace->chunks[chunk].id;
    uint64_t population = f->common[chunk] ? 0 : a->population;
    *words++ = (uint32_t)id;
    *words++ = (uint32_t)(id >> 32);
    *words++ = (uint32_t)population;
    *words++ = (uint32_t)(population >> 32);
    *words++ = offset;
    *words++ = n;
    return words;
}

static void add_key(struct fleet *f, const struct tsri_key_parts *parts, uint32_t i)
{
    f->names[i] = (struct name){tsri_key_make(parts), parts->n_tokens};
    tsri_sim_texts_prefetch(&f->sim.texts, f->names[i].key);
}

/* The numbers of all n chunks, held until the request ends. */
static int hold_texts(struct fleet *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int err =
            tsri_sim_texts_add(&f->sim.texts, f->names[i].key, f->names[i].n_tokens, &f->texts[i]);
        if (err) return err;
        f->sim.texts.all[f->texts[i]].n_asked++;
    }
    return 0;
}

static void name_segments(struct fleet *f, const struct ask *a)
{
    for (uint32_t i = 0; i < a->request->n_chunks; i++) {
        size_t chunk = a->request->chunk_first + i;
        uint32_t n_tokens = f->sim.desc->trace->chunks[chunk].n_tokens;
        add_name(f, f->words, a, chunk, 0, n_tokens);
        struct tsri_key_parts parts = {.kind = TSR_KIND_SEGMENT,
                                       .n_tokens = n_tokens,
                                       .tokens = tsri_tokens_hash(f->words, NAME_WORDS)};
        add_key(f, &parts, i);
    }
}

static void name_blocks(struct fleet *f, const struct ask *a, uint32_t n_blocks)
{
    const struct tsri_options *o = f->sim.options;
    const struct tsri_trace_chunk *chunks = f->sim.desc->trace->chunks;
    size_t chunk = a->request->chunk_first;
    uint32_t passed = 0; /* tokens of the request before `chunk` */
    struct tsri_key_parts parts = {.kind = TSR_KIND_PREFIX};
    tsri_digest_root((enum tsri_hash)o->hash, &parts.digest);
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t at = b * o->chunk_size;
        uint32_t end = at + tsri_min_u32(o->chunk_size, a->request->n_tokens - at);
        uint32_t *to = f->words;
        parts.n_tokens = end - at;
        while (at < end) {
            uint32_t upto = tsri_min_u32(end, passed + chunks[chunk].n_tokens);
            to = add_name(f, to, a, chunk, at - passed, upto - at);
            at = upto;
            if (at == passed + chunks[chunk].n_tokens) passed += chunks[chunk++].n_tokens;
        }
        uint32_t n_words = (uint32_t)(to - f->words);
        parts.tokens = tsri_tokens_hash(f->words, n_words);
        add_key(f, &parts, b);
        tsri_digest_next((enum tsri_hash)o->hash, &parts.digest, f->words, n_words, NULL, 0,
                         &parts.digest);
    }
}

/* ---- caches ---- */

/* As derive_entries of cache/own.c, and no more than there is to hold. */
static uint64_t ids_max(const struct fleet *f, uint32_t cache)
{
    const struct tsri_options *o = f->sim.options;
    uint64_t n = o->host_size / o->host_page_size;
    if (f->sim.desc->disk) n += o->disk_size / o->host_page_size;
    n = n < 1024 ? 1024 : n > 4u << 20 ? 4u << 20 : n;
    if (o->entries_max) n = o->entries_max;
    return n < f->n_chunks[cache] ? n : f->n_chunks[cache];
}

/* A cache has no memory before it is asked. */
static int ready(struct fleet *f, uint32_t i)
{
    struct tsri_sim_cache *c = &f->caches[i];
    return c->s ? 0 : tsri_sim_cache_init(c, &f->sim, ids_max(f, i), f->texts_max);
}

static void lose_caches(struct fleet *f)
{
    const struct tsri_sim_desc *d = f->sim.desc;
    uint32_t n = (d->lose_engines + d->per_cache - 1) / d->per_cache;
    for (uint32_t i = 0; i < n && i < f->n_caches; i++) {
        uint64_t n_requests = f->caches[i].n_requests;
        tsri_sim_cache_forget(&f->caches[i]);
        tsri_sim_cache_fini(&f->caches[i]);
        f->caches[i] = (struct tsri_sim_cache){.n_requests = n_requests};
    }
    for (uint32_t i = 0; i < d->lose_redis && i < d->n_redis; i++)
        tsri_sim_redis_lose(&f->sim, i);
}

static int ask(struct fleet *f, uint64_t k)
{
    const struct tsri_sim_desc *d = f->sim.desc;
    struct tsri_sim_result *r = f->sim.result;
    struct ask a = ask_of(f, k);
    uint32_t n = chunk_count(f, a.request), cache = route(f, k, &a) / d->per_cache;
    bool prefix = a.request->prefix || d->as_prefix;
    uint64_t n_before = f->caches[cache].n_requests;
    f->sim.now_s = (uint32_t)(d->duration_s * a.step / (double)d->trace->n_requests);
    if (prefix)
        name_blocks(f, &a, n);
    else
        name_segments(f, &a);
    int err = ready(f, cache);
    if (!err) err = hold_texts(f, n);
    if (err) return err;
    struct tsri_sim_cache *c = &f->caches[cache];
    if (!c->n_requests) c->n_requests = n_before;
    int64_t reused = tsri_sim_cache_ask(c, f->texts, n, prefix);
    if (reused < 0) return (int)reused;
    for (uint32_t i = 0; i < n; i++)
        tsri_sim_texts_release(&f->sim.texts, f->texts[i]);
    struct tsri_sim_window *w = &r->windows[k * TSRI_SIM_WINDOWS / f->n_requests];
    w->tokens_asked += a.request->n_tokens;
    w->tokens_reused += (uint64_t)reused;
    r->tokens_asked += a.request->n_tokens;
    r->requests++;
    return 0;
}

/* ---- the run ---- */

static int open_fleet(struct fleet *f)
{
    const struct tsri_sim_desc *d = f->sim.desc;
    struct tsr_space_desc space = {.size = sizeof space,
                                   .model = "simulated",
                                   .dtype = TSR_DTYPE_F16,
                                   .n_layers = d->n_layers,
                                   .n_heads = 1,
                                   .k_dim = d->row_bytes / 2};
    f->sim.options = tsri_config_options(d->config);
    int err = tsri_shape_init(&f->sim.shape, &space, f->sim.options->host_page_size);
    if (err) return err;
    f->sim.token_bytes = tsri_shape_token_bytes(&f->sim.shape);
    f->sim.random = tsri_sim_mix(d->seed);
    f->n_caches = (d->n_engines + d->per_cache - 1) / d->per_cache;
    f->n_requests = (uint64_t)d->n_copies * d->trace->n_requests;
    f->texts_max = f->words_max = 1;
    for (size_t i = 0; i < d->trace->n_requests; i++) {
        const struct tsri_trace_request *q = &d->trace->requests[i];
        uint32_t n = chunk_count(f, q);
        if (n > f->texts_max) f->texts_max = n;
        if (q->n_chunks > f->words_max) f->words_max = q->n_chunks;
    }
    f->texts = calloc(f->texts_max, sizeof *f->texts);
    f->names = calloc(f->texts_max, sizeof *f->names);
    f->words = calloc((size_t)f->words_max * NAME_WORDS, sizeof *f->words);
    f->caches = calloc(f->n_caches, sizeof *f->caches);
    f->n_chunks = calloc(f->n_caches, sizeof *f->n_chunks);
    f->sim.redis = calloc(d->n_redis + 1, sizeof *f->sim.redis);
    if (!f->texts || !f->names || !f->words || !f->caches || !f->n_chunks || !f->sim.redis)
        return tsri_fail(TSR_ENOMEM, "no memory for %u caches", f->n_caches);
    return find_common(f);
}

static void close_fleet(struct fleet *f)
{
    for (uint32_t i = 0; f->caches && i < f->n_caches; i++)
        tsri_sim_cache_fini(&f->caches[i]);
    for (uint32_t i = 0; f->sim.redis && i < f->sim.desc->n_redis; i++)
        free(f->sim.redis[i].values);
    tsri_sim_texts_fini(&f->sim.texts);
    free(f->sim.redis);
    free(f->caches);
    free(f->n_chunks);
    free(f->texts);
    free(f->names);
    free(f->words);
    free(f->common);
}

static int play(struct fleet *f)
{
    const struct tsri_sim_desc *d = f->sim.desc;
    for (uint64_t k = 0; k < f->n_requests; k++) {
        struct ask a = ask_of(f, k);
        f->n_chunks[route(f, k, &a) / d->per_cache] += chunk_count(f, a.request);
    }
    uint64_t lose_at = (uint64_t)(d->lose_at * (double)f->n_requests);
    int err = 0;
    for (uint64_t k = 0; !err && k < f->n_requests; k++) {
        if (k == lose_at) lose_caches(f);
        err = ask(f, k);
        if (d->progress && (k % PROGRESS_EVERY == 0 || k + 1 == f->n_requests))
            d->progress(d->arg, k + 1, f->n_requests);
    }
    return err;
}

/* ---- what came of it ---- */

static void count(const struct fleet *f)
{
    struct tsri_sim_result *r = f->sim.result;
    r->seconds = f->sim.desc->duration_s;
    r->texts = f->sim.texts.n_added;
    r->n_caches = f->n_caches;
    for (uint32_t i = 0; i < f->n_caches; i++) {
        const struct tsri_sim_cache *c = &f->caches[i];
        r->host_entries += c->n_host;
        r->cold_entries += c->n_cold;
        if (c->n_host > r->host_entries_max) r->host_entries_max = c->n_host;
        if (c->n_cold > r->cold_entries_max) r->cold_entries_max = c->n_cold;
        if (c->n_requests > r->engine_requests_max) r->engine_requests_max = c->n_requests;
    }
    for (uint32_t i = 0; i < f->sim.desc->n_redis; i++)
        if (f->sim.redis[i].bytes_moved > r->redis_node_bytes_max)
            r->redis_node_bytes_max = f->sim.redis[i].bytes_moved;
    tsri_sim_texts_hot(&f->sim.texts, r->hot, &r->hot_redis_reads);
}

int tsri_simulate(const struct tsri_sim_desc *desc, struct tsri_sim_result *out)
{
    struct fleet f = {.sim.desc = desc, .sim.result = out};
    *out = (struct tsri_sim_result){0};
    int err = open_fleet(&f);
    if (!err) err = play(&f);
    if (!err) count(&f);
    close_fleet(&f);
    return err;
}

void tsri_sim_loss(const struct tsri_sim_desc *desc, const struct tsri_sim_result *r,
                   struct tsri_sim_loss *out)
{
    uint32_t at = (uint32_t)(desc->lose_at * TSRI_SIM_WINDOWS), first = at > 5 ? at - 5 : 0;
    double asked = 0, reused = 0;
    for (uint32_t i = first; i < at; i++) {
        asked += (double)r->windows[i].tokens_asked;
        reused += (double)r->windows[i].tokens_reused;
    }
    *out = (struct tsri_sim_loss){.before = asked > 0 ? reused / asked : 0, .recovered_s = -1};
    for (uint32_t i = at; i < TSRI_SIM_WINDOWS; i++) {
        const struct tsri_sim_window *w = &r->windows[i];
        double rate = w->tokens_asked ? (double)w->tokens_reused / (double)w->tokens_asked : 0;
        if (i == at) out->after = rate;
        if (rate < 0.95 * out->before) continue;
        out->recovered_s = (i - at) * r->seconds / TSRI_SIM_WINDOWS;
        return;
    }
}
