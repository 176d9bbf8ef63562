/* cache_kit.c - a small cache for tests, and KV that follows from everything its tokens have seen.
 */
#include "support/cache_kit.h"
#include "support/sandbox.h"

#include "support/fake_tier.h"
#include "support/kv_entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void stop(const char *what)
{
    printf("cache_kit: %s: %s\n", what, tsr_errmsg());
    sandbox_stop();
}

static void must(int result, const char *what)
{
    if (result < 0) stop(what);
}

static void *must_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) stop("no memory");
    return p;
}

/* ---- opening ---- */

/* Small, and with a server that may be slow: on a busy machine an answer takes longer than the 100
 * ms after which a client goes on without it. */
struct tsr_config *kit_config(const char *const *options)
{
    static const char *const usual[][2] = {{"host_size", "1M"},
                                           {"host_page_size", "16K"},
                                           {"metadata_size", "1M"},
                                           {"entries_max", "1024"},
                                           {"server_deadline", "10000"}};
    struct tsr_config *cfg;
    must(tsr_config_open(&cfg), "config");
    for (size_t i = 0; i < TSRI_COUNT(usual); i++)
        must(tsr_config_set(cfg, usual[i][0], usual[i][1]), "config");
    for (const char *const *o = options; o && *o; o += 2)
        must(tsr_config_set(cfg, o[0], o[1]), "config");
    return cfg;
}

void kit_open_config(struct kit *k, struct tsr_config *cfg)
{
    must(tsr_cache_open(&k->cache, cfg), "open");
    struct tsr_space_desc desc = kit_desc();
    k->space = kit_space(k->cache, &desc);
    k->client = kit_client(k->cache);
}

void kit_open(struct kit *k, const char *const *options)
{
    struct tsr_config *cfg = kit_config(options);
    kit_open_config(k, cfg);
    tsr_config_close(cfg);
}

void kit_open_tiers(struct kit *k, const char *const *options, struct fake_tier_plan *plans,
                    uint32_t n)
{
    struct tsr_config *cfg = kit_config(options);
    for (uint32_t i = 0; i < n; i++)
        must(tsr_tier_attach(cfg, &fake_tier, &plans[i]), "attach");
    kit_open_config(k, cfg);
    tsr_config_close(cfg);
}

void kit_close(struct kit *k)
{
    tsr_client_close(k->client);
    tsr_space_close(k->space);
    tsr_cache_close(k->cache);
    memset(k, 0, sizeof *k);
}

uint64_t kit_metric(const struct kit *k, enum tsri_metric m)
{
    return tsri_stats_read(k->cache->stats, m);
}

struct tsr_stats kit_stats(const struct kit *k)
{
    struct tsr_stats s = {.size = sizeof s};
    must(tsr_cache_stats(k->cache, &s), "stats");
    return s;
}

/* A thread of the cache may hold an entry a moment longer than the call that it worked for. */
static struct tsr_stats clear_all(struct kit *k)
{
    uint64_t until = tsri_now_ns() + 10000000000u;
    struct tsr_stats s;
    for (;; usleep(10000)) {
        must(tsr_cache_clear(k->cache, NULL), "clear");
        s = kit_stats(k);
        if (!(s.entries || s.host_bytes_used || k->cache->arena.bytes_used || s.pinned) ||
            tsri_now_ns() > until)
            return s;
    }
}

bool kit_end(struct kit *k)
{
    struct tsr_cache *c = k->cache;
    bool valid = kit_valid(k);
    struct tsr_stats s = clear_all(k);
    if (!valid || !kit_valid(k))
        printf("cache_kit: the cache is not valid\n");
    else if (s.entries || s.host_bytes_used || c->arena.bytes_used || s.pinned)
        printf("cache_kit: left: %llu entries, %llu bytes, %zu bytes of metadata, %llu pinned\n",
               (unsigned long long)s.entries, (unsigned long long)s.host_bytes_used,
               c->arena.bytes_used, (unsigned long long)s.pinned);
    else
        return kit_close(k), true;
    kit_close(k);
    return false;
}

struct tsr_space_desc kit_desc(void)
{
    return (struct tsr_space_desc){.size = sizeof(struct tsr_space_desc),
                                   .model = "kit",
                                   .dtype = TSR_DTYPE_F16,
                                   .n_layers = 2,
                                   .n_heads = 2,
                                   .k_dim = 16,
                                   .block_tokens = 16};
}

struct tsr_space *kit_space(struct tsr_cache *c, const struct tsr_space_desc *desc)
{
    struct tsr_space *space;
    must(tsr_space_open(&space, c, desc), "space");
    return space;
}

struct tsr_client *kit_client(struct tsr_cache *c)
{
    struct tsr_client *client;
    must(tsr_client_open(&client, c), "client");
    return client;
}

uint32_t *kit_tokens(uint64_t seed, uint32_t n)
{
    uint32_t *tokens = must_alloc((size_t)n * sizeof tokens[0]);
    uint64_t x = kv_prefix(seed, 0x70CE);
    for (uint32_t i = 0; i < n; i++) {
        x = kv_prefix(x, i + 1);
        tokens[i] = (uint32_t)(x >> 40);
    }
    return tokens;
}

/* ---- KV ---- */

uint64_t kit_seed(const struct tsr_space *space)
{
    uint64_t x;
    memcpy(&x, space->fingerprint, sizeof x);
    return x;
}

/* Adapters and salts change every byte too; media do not. */
static uint64_t kit_extra(uint64_t before, const struct tsr_extra *extra, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t b = 0; extra[i].kind != TSR_EXTRA_MEDIA && b < extra[i].bytes; b++)
            before = kv_prefix(before, extra[i].kind << 8 | ((const uint8_t *)extra[i].data)[b]);
    return before;
}

uint64_t kit_seen(uint64_t before, const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        before = kv_prefix(before, tokens[i]);
    return before;
}

/* Where a row stands, by the words of tessera.h and nothing else. */
static uint8_t *row_at(const struct tsri_shape *s, const struct tsr_view *v, uint32_t n,
                       uint32_t layer, uint32_t plane, uint32_t token)
{
    size_t k = s->row_bytes[0], row = s->row_bytes[plane];
    bool packed = !v->layer_stride && !v->plane_stride && !v->token_stride;
    size_t layer_stride = packed ? n * tsri_shape_token_bytes(s) / s->n_layers : v->layer_stride;
    size_t plane_stride = packed ? n * k : v->plane_stride;
    size_t token_stride = v->token_stride ? v->token_stride : row;
    return (uint8_t *)v->data + layer * layer_stride + plane * plane_stride + token * token_stride;
}

void kit_fill(const struct tsr_space *space, uint64_t before, const uint32_t *tokens, uint32_t n,
              void *packed)
{
    const struct tsri_shape *s = &space->shape;
    struct tsr_view view = {.data = packed};
    for (uint32_t t = 0; t < n; t++) {
        before = kv_prefix(before, tokens[t]);
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t p = 0; p < s->n_planes; p++)
                kv_row(row_at(s, &view, n, l, p, t), s->row_bytes[p], before, l, p);
    }
}

bool kit_right(const struct tsr_space *space, uint64_t before, const uint32_t *tokens, uint32_t n,
               uint32_t layer_first, uint32_t n_layers, const struct tsr_view *view)
{
    const struct tsri_shape *s = &space->shape;
    uint32_t row_max = s->row_bytes[0] > s->row_bytes[1] ? s->row_bytes[0] : s->row_bytes[1];
    uint8_t *want = must_alloc(row_max);
    bool right = true;
    for (uint32_t t = 0; t < n && right; t++) {
        before = kv_prefix(before, tokens[t]);
        for (uint32_t l = 0; l < n_layers && right; l++)
            for (uint32_t p = 0; p < s->n_planes && right; p++) {
                kv_row(want, s->row_bytes[p], before, layer_first + l, p);
                right = memcmp(want, row_at(s, view, n, l, p, t), s->row_bytes[p]) == 0;
            }
    }
    free(want);
    return right;
}

/* ---- store ---- */

/* What the first token of the store has seen. */
static uint64_t store_before(const struct tsr_store_desc *s)
{
    uint64_t seed = kit_extra(kit_seed(s->space), s->extra, s->n_extra);
    if (s->kind == TSR_KIND_PREFIX) return kit_seen(seed, s->tokens, s->from);
    if (s->kind == TSR_KIND_BLENDED) return ~seed;
    return kit_seen(seed, s->context, s->n_context);
}

struct tsr_view kit_store_view(const struct tsr_store_desc *s)
{
    uint32_t n = s->n_tokens - s->from;
    size_t bytes = (size_t)n * tsri_shape_token_bytes(&s->space->shape);
    struct tsr_view view = {.data = must_alloc(bytes), .bytes = bytes};
    kit_fill(s->space, store_before(s), s->tokens + s->from, n, view.data);
    return view;
}

int kit_store(struct kit *k, const struct tsr_store_desc *store)
{
    struct tsr_store_desc s = *store;
    s.size = sizeof s;
    if (!s.space) s.space = k->space;
    s.view = kit_store_view(&s);
    int n = tsr_client_store(k->client, &s);
    free(s.view.data);
    return n;
}

int kit_store_prefix(struct kit *k, const uint32_t *tokens, uint32_t n)
{
    return kit_store(
        k, &(struct tsr_store_desc){.kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = n});
}

int kit_store_behind(struct kit *k, const uint32_t *context, uint32_t n_context,
                     const uint32_t *tokens, uint32_t n)
{
    return kit_store(k, &(struct tsr_store_desc){.kind = TSR_KIND_SEGMENT,
                                                 .tokens = tokens,
                                                 .n_tokens = n,
                                                 .context = context,
                                                 .n_context = n_context,
                                                 .base = n_context});
}

int kit_store_segment(struct kit *k, const uint32_t *tokens, uint32_t n)
{
    return kit_store_behind(k, NULL, 0, tokens, n);
}

/* ---- lookup and load ---- */

struct tsr_prompt kit_prefix_prompt(const uint32_t *tokens, uint32_t n)
{
    return (struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                               .tokens = tokens,
                               .n_tokens = n,
                               .flags = TSR_PROMPT_PREFIX};
}

struct tsr_prompt kit_segments_prompt(const uint32_t *tokens, uint32_t n,
                                      const struct tsr_range *segments, uint32_t n_segments)
{
    return (struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                               .tokens = tokens,
                               .n_tokens = n,
                               .flags = TSR_PROMPT_SEGMENTS,
                               .segments = segments,
                               .n_segments = n_segments};
}

struct tsr_prompt kit_segment_prompt(const uint32_t *tokens, uint32_t n, struct tsr_range *range)
{
    *range = (struct tsr_range){0, n};
    return kit_segments_prompt(tokens, n, range, 1);
}

int kit_lookup(struct kit *k, const struct tsr_prompt *prompt, uint64_t request_id,
               struct kit_hits *hits)
{
    hits->space = k->space;
    hits->io = (struct tsr_lookup_desc){.size = sizeof hits->io,
                                        .spaces = &hits->space,
                                        .n_spaces = 1,
                                        .matches_max = KIT_ROWS_MAX,
                                        .matches = hits->matches,
                                        .request_id = request_id};
    return tsr_client_lookup(k->client, prompt, &hits->io);
}

int kit_evict_all(struct kit *k)
{
    return tsr_cache_evict(k->cache, k->cache->options.host_size);
}

int kit_find_prefix(struct kit *k, const uint32_t *tokens, uint32_t n)
{
    struct kit_hits hits;
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, n);
    return kit_lookup(k, &prompt, 0, &hits);
}

int kit_find_segment(struct kit *k, const uint32_t *tokens, uint32_t n)
{
    struct kit_hits hits;
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, n, &range);
    return kit_lookup(k, &prompt, 0, &hits);
}

/* Everything before it, or its context, and what of its own entry comes before it. */
uint64_t kit_match_seen(const struct tsr_space *space, const struct tsr_prompt *prompt,
                        const struct tsr_match *m)
{
    uint64_t seed = kit_extra(kit_seed(space), prompt->extra, prompt->n_extra);
    if (m->kind == TSR_KIND_PREFIX) return kit_seen(seed, prompt->tokens, m->prompt_offset);
    if (m->kind == TSR_KIND_BLENDED) seed = ~seed;
    if (m->kind == TSR_KIND_SEGMENT && m->context == TSR_CONTEXT_SAME && prompt->n_context) {
        seed = kit_seen(seed, prompt->context, prompt->n_context);
    } else if (m->kind == TSR_KIND_SEGMENT && m->context == TSR_CONTEXT_SAME) {
        if (!prompt->segments) stop("a context needs explicit segments here");
        const struct tsr_range *system = &prompt->segments[0];
        seed = kit_seen(seed, prompt->tokens + system->offset, system->n_tokens);
    }
    return kit_seen(seed, prompt->tokens + m->prompt_offset - m->entry_offset, m->entry_offset);
}

int kit_load(struct kit *k, const struct tsr_prompt *prompt, const struct kit_hits *hits,
             uint32_t row)
{
    const struct tsr_match *m = &hits->matches[row];
    size_t bytes = (size_t)m->n_tokens * tsri_shape_token_bytes(&hits->space->shape);
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = hits->space,
                                 .match = m,
                                 .prompt = prompt,
                                 .view = {.data = must_alloc(bytes), .bytes = bytes}};
    memset(load.view.data, 0xA5, bytes);
    int n = tsr_client_load(k->client, &load, 1);
    if (n == 1 && !kit_right(hits->space, kit_match_seen(hits->space, prompt, m),
                             prompt->tokens + m->prompt_offset, m->n_tokens, 0,
                             hits->space->shape.n_layers, &load.view)) {
        printf("cache_kit: row %u of a load has wrong bytes\n", row);
        fflush(stdout);
        abort();
    }
    free(load.view.data);
    return n == 1 ? 0 : n < 0 ? n : load.result;
}

int kit_load_and_check(struct kit *k, const struct tsr_prompt *prompt)
{
    struct kit_hits hits;
    int n = kit_lookup(k, prompt, 0, &hits);
    if (n < 0) return n;
    int loaded = 0;
    for (uint32_t row = 0; row < hits.io.n_matches; row++)
        if (kit_load(k, prompt, &hits, row) == 0) loaded += (int)hits.matches[row].n_tokens;
    return loaded;
}

/* ---- below the API ---- */

struct tsri_key kit_key(uint64_t seed)
{
    return (struct tsri_key){kv_prefix(seed, 1), kv_prefix(seed, 2)};
}

uint32_t kit_filling(struct kit *k, uint64_t seed, uint32_t n_tokens)
{
    struct tsr_cache *c = k->cache;
    uint32_t meta, id = TSRI_ID_NONE;
    pthread_mutex_lock(&c->lock);
    bool room = tsri_room_take(c, &k->space->shape, n_tokens, 0, &meta) == 0;
    if (room && tsri_room_id(c) != 0) {
        tsri_room_give(c, meta);
        room = false;
    }
    if (room) {
        id = tsri_entry_alloc(c);
        struct tsri_entry *e = &c->entries[id];
        struct tsri_key key = kit_key(seed);
        e->meta = meta;
        e->n_tokens = n_tokens;
        e->space = k->space->id;
        e->kind = TSR_KIND_SEGMENT;
        e->extra_bytes = 0;
        atomic_store_explicit(&e->key_lo, key.lo, memory_order_relaxed);
        atomic_store_explicit(&e->key_hi, key.hi, memory_order_relaxed);
    }
    pthread_mutex_unlock(&c->lock);
    return id;
}

uint32_t kit_entry(struct kit *k, uint64_t seed, uint32_t n_tokens, uint32_t parent)
{
    uint32_t id = kit_filling(k, seed, n_tokens);
    if (id == TSRI_ID_NONE) return id;
    struct tsr_cache *c = k->cache;
    pthread_mutex_lock(&c->lock);
    if (parent != TSRI_ID_NONE) c->entries[id].kind = TSR_KIND_PREFIX;
    tsri_entry_publish(c, id, parent);
    pthread_mutex_unlock(&c->lock);
    return id;
}

bool kit_cache_valid(struct tsr_cache *c)
{
    uint32_t n_host = 0, n_cold = 0, n_dying = 0, n_named = 0;
    uint64_t host_tokens = 0, cold_tokens = 0;
    size_t pages = 0;
    for (uint32_t id = 0; id < c->ids_fresh; id++) {
        const struct tsri_entry *e = &c->entries[id];
        enum tsri_state state = tsri_word_state(atomic_load(&e->word));
        if (e->meta) pages += tsri_meta(c, e)->n_pages;
        n_dying += state == TSRI_DYING;
        if (state != TSRI_HOST && state != TSRI_COLD) continue;
        n_host += state == TSRI_HOST;
        n_cold += state == TSRI_COLD;
        *(state == TSRI_HOST ? &host_tokens : &cold_tokens) += e->n_tokens;
        if ((state == TSRI_HOST) != (e->meta != 0)) return false;
        if (tsri_index_find(&c->index, c->entries, tsri_entry_key(e)) != id) return false;
        if (e->first_child != TSRI_ID_NONE && c->entries[e->first_child].parent != id) return false;
    }
    for (uint32_t i = 0; i < c->n_spaces; i++)
        n_named += c->spaces[i].n_entries;
    size_t used = (size_t)c->pool.n_pages - tsri_pool_n_free(&c->pool);
    return n_host == c->n_host && n_cold == c->n_cold && n_named == n_host + n_cold + n_dying &&
           host_tokens == c->host_tokens && cold_tokens == c->cold_tokens && pages <= used &&
           tsri_pool_is_valid(&c->pool) && tsri_arena_is_valid(&c->arena);
}

bool kit_valid(struct kit *k)
{
    pthread_mutex_lock(&k->cache->lock);
    bool valid = kit_cache_valid(k->cache);
    pthread_mutex_unlock(&k->cache->lock);
    return valid;
}
