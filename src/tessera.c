/* tessera.c - the public entry points: check arguments, answer for a forked child, count, call
 * inside. Nothing is decided here that a caller inside the library would have to know. */
#include "cache/backend.h"
#include "cache/clients.h"
#include "find/find.h"
#include "cache/manager.h"
#include "cache/ops.h"
#include "cache/puts.h"
#include "cache/source.h"
#include "served/link.h"

/* A struct of the caller's, completed with zeros to the one this library knows. Nothing is copied
 * beyond what the caller's own size says it has. */
#define COMPLETE(own, theirs) \
    memcpy(&(own), (theirs), (theirs)->size < sizeof(own) ? (theirs)->size : sizeof(own))
#define SIZE_MIN sizeof(size_t)
/* No struct will ever be larger; where one is written to, a size beyond this was never set. */
#define SIZE_MAX_SANE ((size_t)64 << 10)

static int no_handle(const char *what)
{
    return tsri_fail(TSR_EINVAL, "%s is NULL", what);
}

static int bad_size(const char *what)
{
    return tsri_fail(TSR_EINVAL, "%s: size is not set", what);
}

static int refuse_child(void)
{
    return tsri_fail(TSR_EFORK, "the cache belongs to the parent process");
}

/* ---- cache, space, client ---- */

int tsr_cache_open(struct tsr_cache **out, const struct tsr_config *cfg)
{
    if (!out) return no_handle("out");
    *out = NULL;
    if (cfg) tsri_config_warn(cfg);
    return tsri_cache_open(out, cfg);
}

void tsr_cache_close(struct tsr_cache *cache)
{
    if (cache) tsri_cache_close(cache);
}

int tsr_space_open(struct tsr_space **out, struct tsr_cache *cache,
                   const struct tsr_space_desc *desc)
{
    if (!out) return no_handle("out");
    *out = NULL;
    if (!cache || !desc) return no_handle("cache or desc");
    if (desc->size < SIZE_MIN) return bad_size("space description");
    if (tsri_forked(cache)) return refuse_child();
    return tsri_space_open(out, cache, desc);
}

void tsr_space_close(struct tsr_space *space)
{
    if (space) tsri_space_close(space);
}

void tsr_space_fingerprint(const struct tsr_space *space, uint8_t out[16])
{
    if (!out) return;
    memset(out, 0, 16);
    if (space) memcpy(out, space->fingerprint, 16);
}

size_t tsr_space_token_bytes(const struct tsr_space *space)
{
    return space ? tsri_shape_token_bytes(&space->shape) : 0;
}

int tsr_client_open(struct tsr_client **out, struct tsr_cache *cache)
{
    if (!out) return no_handle("out");
    *out = NULL;
    if (!cache) return no_handle("cache");
    if (tsri_forked(cache)) return refuse_child();
    return tsri_client_open(out, cache);
}

void tsr_client_close(struct tsr_client *client)
{
    if (client) tsri_client_close(client);
}

int tsr_client_release(struct tsr_client *client, uint64_t request_id)
{
    if (!client) return no_handle("client");
    struct tsr_cache *c = tsri_client_cache(client);
    return tsri_forked(c) ? 0 : c->backend->release(client, request_id);
}

/* ---- separators ---- */

int tsr_separators_set(struct tsr_space *space, const uint32_t *tokens, const uint32_t *lengths,
                       uint32_t n)
{
    if (!space) return no_handle("space");
    struct tsr_cache *c = space->cache;
    if (tsri_forked(c)) return refuse_child();
    struct tsri_separators *next = NULL;
    if (n) {
        int e = tsri_separators_open(&next, tokens, lengths, n);
        if (e) return e;
    }
    pthread_mutex_lock(&c->lock);
    struct tsri_separators *old = space->separators;
    space->separators = next;
    pthread_mutex_unlock(&c->lock);
    tsri_separators_close(old);
    return 0;
}

int tsr_space_split(const struct tsr_space *space, const uint32_t *tokens, uint32_t n_tokens,
                    struct tsr_range *ranges, uint32_t ranges_max)
{
    if (!space || !tokens || !ranges) return no_handle("space, tokens or ranges");
    if (!space->separators) return tsri_fail(TSR_EINVAL, "no separators are set");
    return tsri_split(space->separators, tokens, n_tokens, ranges, ranges_max);
}

int tsr_text_split(const char *text, size_t bytes, const char *separator,
                   struct tsr_text_part *parts, uint32_t parts_max)
{
    if (!text || !separator || !parts) return no_handle("text, separator or parts");
    return tsri_text_split(text, bytes, separator, parts, parts_max);
}

/* ---- lookup ---- */

/* What a prompt without flags asks for, of lookups and of every other call. */
static uint32_t default_flags(const struct tsr_space *space, const struct tsr_prompt *p)
{
    bool chunked = space->cache->options.chunked && !p->segments && p->tokens &&
                   tsri_space_has_separator(space, p->tokens, p->n_tokens);
    return chunked ? TSR_PROMPT_PREFIX | TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT
                   : TSR_PROMPT_PREFIX;
}

/* The caller's prompt, completed and with its flags. */
static struct tsr_prompt whole_prompt(const struct tsr_space *space,
                                      const struct tsr_prompt *theirs)
{
    struct tsr_prompt p = {0};
    COMPLETE(p, theirs);
    if (!p.flags) p.flags = default_flags(space, &p);
    return p;
}

static int check_lookup(struct tsr_client *client, const struct tsr_prompt *prompt,
                        const struct tsr_lookup_desc *io)
{
    if (!client || !prompt || !io) return no_handle("client, prompt or lookup");
    if (prompt->size < SIZE_MIN) return bad_size("prompt");
    if (io->size < sizeof *io) return bad_size("lookup");
    if (!io->spaces || io->n_spaces == 0 || io->n_spaces > TSRI_LOOKUP_SPACES_MAX)
        return tsri_fail(TSR_EINVAL, "lookup: %u spaces, from 1 to %u", io->n_spaces,
                         TSRI_LOOKUP_SPACES_MAX);
    if (!io->matches && io->matches_max) return no_handle("lookup: matches");
    for (uint32_t s = 0; s < io->n_spaces; s++) {
        if (!io->spaces[s] || io->spaces[s]->cache != tsri_client_cache(client))
            return tsri_fail(TSR_ESPACE, "lookup: space %u is not of this cache", s);
        if (io->spaces[s]->block_tokens != io->spaces[0]->block_tokens)
            return tsri_fail(TSR_ESPACE, "lookup: space %u has another block size than the first",
                             s);
    }
    return 0;
}

int tsr_client_lookup(struct tsr_client *client, const struct tsr_prompt *prompt,
                      struct tsr_lookup_desc *lookup)
{
    int n = check_lookup(client, prompt, lookup);
    if (n) return n;
    struct tsr_cache *c = tsri_client_cache(client);
    lookup->n_matches = lookup->n_prefix_tokens = 0;
    if (tsri_forked(c)) return 0;
    struct tsr_prompt p = whole_prompt(lookup->spaces[0], prompt);
    uint64_t start = tsri_now_ns();
    n = c->backend->lookup(client, &p, lookup);
    if (n < 0) return n;
    struct tsri_stats *s = c->stats;
    tsri_stats_add(s, TSRI_M_lookups, 1);
    tsri_stats_add(s, n ? TSRI_M_lookup_hits : TSRI_M_lookup_misses, 1);
    tsri_stats_add(s, TSRI_M_lookup_tokens_asked, p.n_tokens);
    tsri_stats_add(s, TSRI_M_lookup_tokens_reused, (uint64_t)n);
    tsri_stats_observe_ns(s, TSRI_M_lookup_ns, tsri_now_ns() - start);
    return n;
}

static int mark(struct tsr_space *space, const struct tsr_prompt *prompt, enum tsri_mark how)
{
    if (!space || !prompt) return no_handle("space or prompt");
    if (prompt->size < SIZE_MIN) return bad_size("prompt");
    if (tsri_forked(space->cache)) return 0;
    struct tsr_prompt p = whole_prompt(space, prompt);
    return space->cache->backend->mark(space, &p, how);
}

int tsr_space_keys(struct tsr_space *space, const struct tsr_prompt *prompt, struct tsr_key *keys,
                   uint32_t keys_max)
{
    if (!space || !prompt || (!keys && keys_max)) return no_handle("space, prompt or keys");
    if (prompt->size < SIZE_MIN) return bad_size("prompt");
    struct tsr_prompt p = whole_prompt(space, prompt);
    return space->cache->backend->keys(space, &p, keys, keys_max);
}

int tsr_cache_contains(struct tsr_cache *cache, const struct tsr_key *keys, uint32_t n,
                       int8_t *tiers)
{
    if (!cache || ((!keys || !tiers) && n)) return no_handle("cache, keys or tiers");
    if (n > INT32_MAX) return tsri_fail(TSR_ERANGE, "contains: %u keys", n);
    if (!tsri_forked(cache)) return cache->backend->contains(cache, keys, n, tiers);
    if (n) memset(tiers, -1, n);
    return 0;
}

/* ---- load and store ---- */

int tsr_client_load(struct tsr_client *client, struct tsr_load_desc *loads, uint32_t n)
{
    if (!client || (!loads && n)) return no_handle("client or loads");
    if (n > INT32_MAX) return tsri_fail(TSR_ERANGE, "load: %u ranges", n);
    struct tsr_cache *c = tsri_client_cache(client);
    if (tsri_forked(c)) {
        for (uint32_t i = 0; i < n; i++)
            loads[i].result = TSR_ENOENT;
        return 0;
    }
    uint64_t start = tsri_now_ns();
    struct tsri_loader loader = {.client = client, .loads = loads, .n = n};
    int e = tsri_loader_run(&loader);
    tsri_stats_observe_ns(c->stats, TSRI_M_load_ns, tsri_now_ns() - start);
    return e;
}

static int check_store(struct tsr_client *client, const struct tsr_store_desc *store)
{
    if (!client || !store) return no_handle("client or store");
    if (store->size < offsetof(struct tsr_store_desc, view)) return bad_size("store");
    struct tsr_cache *c = tsri_client_cache(client);
    if (tsri_forked(c)) return refuse_child();
    if (!store->space || store->space->cache != c)
        return tsri_fail(TSR_ESPACE, "store: the space is not of this cache");
    return 0;
}

int tsr_client_store(struct tsr_client *client, const struct tsr_store_desc *store)
{
    int e = check_store(client, store);
    if (e) return e;
    struct tsr_store_desc s = {0};
    COMPLETE(s, store);
    struct tsr_cache *c = tsri_client_cache(client);
    tsri_losses_join(&c->losses);
    return c->backend->store(client, &s);
}

int tsr_put_open(struct tsr_put **out, struct tsr_client *client,
                 const struct tsr_store_desc *store)
{
    if (!out) return no_handle("out");
    *out = NULL;
    int e = check_store(client, store);
    if (e) return e;
    struct tsr_store_desc s = {0};
    COMPLETE(s, store);
    struct tsr_cache *c = tsri_client_cache(client);
    tsri_losses_join(&c->losses);
    return c->backend->put_open(out, client, &s, NULL);
}

static struct tsr_cache *put_cache(const struct tsr_put *put)
{
    return tsri_client_cache(((const struct tsri_put_base *)put)->client);
}

int tsr_put_layer(struct tsr_put *put, uint32_t layer, const struct tsr_view *view)
{
    if (!put || !view) return no_handle("put or view");
    struct tsr_cache *c = put_cache(put);
    return tsri_forked(c) ? refuse_child() : c->backend->put_layer(put, layer, view);
}

int tsr_put_commit(struct tsr_put *put)
{
    if (!put) return no_handle("put");
    struct tsr_cache *c = put_cache(put);
    tsri_losses_join(&c->losses); /* maybe not the thread that opened it */
    return c->backend->put_commit(put);
}

void tsr_put_abort(struct tsr_put *put)
{
    if (put) put_cache(put)->backend->put_abort(put);
}

int tsr_client_load_start(struct tsr_op **out, struct tsr_client *client,
                          struct tsr_load_desc *loads, uint32_t n, tsr_done_fn done, void *arg)
{
    if (!out) return no_handle("out");
    *out = NULL;
    if (!client || !loads || n == 0) return no_handle("client or loads");
    struct tsr_cache *c = tsri_client_cache(client);
    if (tsri_forked(c)) return refuse_child();
    struct tsri_op_desc desc = {
        .client = client, .loads = loads, .n_loads = n, .done = done, .arg = arg};
    return tsri_op_start(out, c->ops, &desc);
}

int tsr_client_store_start(struct tsr_op **out, struct tsr_client *client,
                           const struct tsr_store_desc *store, tsr_done_fn done, void *arg)
{
    if (!out) return no_handle("out");
    *out = NULL;
    int e = check_store(client, store);
    if (e) return e;
    struct tsr_store_desc s = {0};
    COMPLETE(s, store);
    if (s.kind == 0) return tsri_fail(TSR_EINVAL, "store: no kind");
    struct tsri_op_desc desc = {.client = client, .store = &s, .done = done, .arg = arg};
    struct tsr_cache *c = tsri_client_cache(client);
    tsri_losses_join(&c->losses); /* here: the caller is to be told, not the worker */
    return tsri_op_start(out, c->ops, &desc);
}

/* ---- one text ---- */

int tsr_text_store(struct tsr_client *client, struct tsr_space *space, const uint32_t *tokens,
                   uint32_t n_tokens, const void *kv, size_t bytes)
{
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = n_tokens,
                                   /* A store only reads its view. */
                                   .view = {.data = (void *)(uintptr_t)kv, .bytes = bytes}};
    return tsr_client_store(client, &store);
}

int tsr_text_load(struct tsr_client *client, struct tsr_space *space, const uint32_t *tokens,
                  uint32_t n_tokens, void *kv, size_t bytes)
{
    struct tsr_range all = {0, n_tokens};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = tokens,
                                .n_tokens = n_tokens,
                                .flags = TSR_PROMPT_SEGMENTS,
                                .segments = &all,
                                .n_segments = 1};
    struct tsr_match match = {0};
    struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                     .spaces = &space,
                                     .n_spaces = 1,
                                     .matches_max = 1,
                                     .matches = &match};
    int n = tsr_client_lookup(client, &prompt, &lookup);
    if (n < 0 || match.n_tokens != n_tokens) return n < 0 ? n : 0;
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = space,
                                 .match = &match,
                                 .prompt = &prompt,
                                 .view = {.data = kv, .bytes = bytes}};
    n = tsr_client_load(client, &load, 1);
    if (n != 1) return n;
    /* tsr_client_store() may have stored the text at another position, which this call cannot tell. */
    return load.base == 0 && load.freq_set == 0 ? (int)n_tokens : 0;
}

/* ---- keeping and dropping ---- */

int tsr_client_discover(struct tsr_client *client, struct tsr_space *space,
                        const struct tsr_prompt *prompt)
{
    if (!client) return no_handle("client");
    if (!space || !prompt) return no_handle("space or prompt");
    if (prompt->size < SIZE_MIN) return bad_size("prompt");
    if (tsri_forked(space->cache)) return 0;
    struct tsr_prompt p = whole_prompt(space, prompt);
    return space->cache->backend->discover(client, space, &p);
}

int tsr_client_prefetch(struct tsr_client *client, struct tsr_space *space,
                        const struct tsr_prompt *prompt)
{
    if (!client) return no_handle("client");
    return mark(space, prompt, TSRI_MARK_PREFETCH);
}

int tsr_cache_flush(struct tsr_cache *cache)
{
    if (!cache) return no_handle("cache");
    return tsri_forked(cache) ? refuse_child() : cache->backend->flush(cache);
}

int tsr_space_pin(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    return mark(space, prompt, TSRI_MARK_PIN);
}

int tsr_space_unpin(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    return mark(space, prompt, TSRI_MARK_UNPIN);
}

int tsr_space_touch(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    return mark(space, prompt, TSRI_MARK_TOUCH);
}

int tsr_cache_evict(struct tsr_cache *cache, size_t free_bytes)
{
    if (!cache) return no_handle("cache");
    return tsri_forked(cache) ? 0 : cache->backend->evict(cache, free_bytes, NULL, 0);
}

int tsr_cache_evict_keys(struct tsr_cache *cache, size_t free_bytes, struct tsr_key *keys,
                         uint32_t keys_max)
{
    if (!cache || !keys) return no_handle("cache or keys");
    if (keys_max > INT32_MAX) return tsri_fail(TSR_ERANGE, "evict: %u keys", keys_max);
    return tsri_forked(cache) ? 0 : cache->backend->evict(cache, free_bytes, keys, keys_max);
}

int tsr_cache_list(struct tsr_cache *cache, struct tsr_listed *entries, uint32_t entries_max)
{
    if (!cache || (!entries && entries_max)) return no_handle("cache or entries");
    return tsri_forked(cache) ? 0 : cache->backend->list(cache, entries, entries_max);
}

int tsr_cache_clear(struct tsr_cache *cache, const struct tsr_clear_desc *clear)
{
    if (!cache) return no_handle("cache");
    struct tsr_clear_desc what = {.tier = TSR_CLEAR_ALL};
    if (clear) {
        if (clear->size < SIZE_MIN) return bad_size("clear");
        COMPLETE(what, clear);
    }
    if (what.tier < TSR_CLEAR_OWN || what.tier >= (int32_t)TSR_TIERS_MAX)
        return tsri_fail(TSR_EINVAL, "clear: no tier %d", what.tier);
    if (what.space && what.space->cache != cache)
        return tsri_fail(TSR_ESPACE, "clear: the space is not of this cache");
    if (what.prompt && !what.space) return tsri_fail(TSR_EINVAL, "clear: a prompt needs a space");
    if (what.from && (!what.prompt || what.from % what.space->block_tokens))
        return tsri_fail(TSR_EINVAL, "clear: from token %u, which no block begins with", what.from);
    struct tsr_prompt p = {0};
    if (what.prompt) {
        if (what.prompt->size < SIZE_MIN) return bad_size("prompt");
        p = whole_prompt(what.space, what.prompt);
        what.prompt = &p;
    }
    return tsri_forked(cache) ? 0 : cache->backend->clear(cache, &what);
}

void tsr_cache_freeze(struct tsr_cache *cache, int frozen)
{
    if (cache && !tsri_forked(cache)) cache->backend->freeze(cache, frozen != 0);
}

/* ---- watching ---- */

int tsr_cache_stats(struct tsr_cache *cache, struct tsr_stats *out)
{
    if (!cache || !out) return no_handle("cache or out");
    size_t size = out->size;
    if (size < SIZE_MIN || size > SIZE_MAX_SANE) return bad_size("stats");
    struct tsr_stats own = {0};
    int e = tsri_forked(cache) ? 0 : cache->backend->stats(cache, &own);
    if (e < 0) return e;
    memset(out, 0, size);
    memcpy(out, &own, size < sizeof own ? size : sizeof own);
    out->size = size;
    return 0;
}

int tsr_cache_stats_text(struct tsr_cache *cache, const char *format, char *buf, size_t bytes)
{
    if (!cache || !format || (!buf && bytes)) return no_handle("cache, format or buf");
    if (tsri_forked(cache)) return tsri_stats_text(cache->stats, format, buf, bytes);
    return cache->backend->stats_text(cache, format, buf, bytes);
}

int tsr_cache_events(struct tsr_cache *cache, struct tsr_event *out, uint32_t max)
{
    if (!cache || (!out && max)) return no_handle("cache or out");
    return tsri_forked(cache) ? 0 : cache->backend->events(cache, out, max);
}

/* ---- caches that a server has ---- */

int tsr_cache_connected(struct tsr_cache *cache, int timeout_ms)
{
    if (!cache) return no_handle("cache");
    if (tsri_forked(cache)) return refuse_child();
    uint64_t wait_ns = timeout_ms > 0 ? (uint64_t)timeout_ms * 1000000 : 0;
    return cache->backend->connected(cache, tsri_now_ns() + wait_ns);
}

int tsr_shared_open(struct tsr_client *client, struct tsr_shared *out)
{
    if (!client || !out) return no_handle("client or out");
    if (out->size < sizeof *out) return bad_size("shared");
    struct tsr_cache *c = tsri_client_cache(client);
    return tsri_forked(c) ? refuse_child() : c->backend->shared(client, out);
}

void tsr_shared_close(struct tsr_shared *shared)
{
    if (!shared) return;
    tsri_mapping_release(shared->handle);
    shared->handle = NULL;
    shared->data = NULL;
}
