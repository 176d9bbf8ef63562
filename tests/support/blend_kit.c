#include "support/blend_kit.h"
#include "support/sandbox.h"

#include <stdio.h>
#include <stdlib.h>

#define MUST(x) \
    do { \
        if ((x) < 0) { \
            fprintf(stderr, "%s: %s\n", #x, tsr_errmsg()); \
            sandbox_stop(); \
        } \
    } while (0)

void blend_kit_reopen(struct blend_kit *k)
{
    tsr_blend_close(k->blend);
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .model = k->model.model,
                                    .cache = k->cache.cache,
                                    .profile = &k->profile,
                                    .flags = k->flags,
                                    .blend_min_tokens = UINT32_MAX,
                                    .primer = k->primer,
                                    .n_primer = k->n_primer,
                                    .prefix_block_tokens = k->prefix_block,
                                    .traffic = k->traffic.size ? &k->traffic : NULL};
    MUST(tsr_blend_open(&k->blend, &config));
}

static void open_with(struct blend_kit *k, const char *path, uint32_t dtype, uint32_t flags,
                      const char *const *options)
{
    char small[256];
    memset(k, 0, sizeof *k);
    snprintf(small, sizeof small, "head_dim=8 ff=40 %s", path);
    model_kit_open(&k->model, small, dtype, BLEND_KIT_TOKENS_MAX);
    fake_tier_plan_init(&k->tier);
    kit_open_tiers(&k->cache, options, &k->tier, 1);
    tsr_profile_init(&k->profile);
    k->flags = flags;
    blend_kit_reopen(k);
}

void blend_kit_open(struct blend_kit *k, const char *path, uint32_t dtype, uint32_t flags)
{
    static const char *const options[] = {"host_size", "16M", "host_page_size", "16K", "chunk_size",
                                          "16",        NULL};
    open_with(k, path, dtype, flags, options);
}

void blend_kit_open_pool(struct blend_kit *k, const char *path, uint32_t dtype)
{
    static const char *const options[] = {
        "host_size", "16M", "host_page_size",   "16K", "chunk_size", "16",
        "device",    "cpu", "device_pool_size", "4M",  NULL};
    open_with(k, path, dtype, 0, options);
}

bool blend_kit_close(struct blend_kit *k)
{
    tsr_blend_close(k->blend);
    tsri_work_drain(tsri_ops_work(k->cache.cache->ops));
    bool clean = kit_end(&k->cache);
    fake_tier_plan_fini(&k->tier);
    model_kit_close(&k->model);
    return clean;
}

static void append(struct blend_kit *k, uint64_t seed, uint32_t n, bool segment)
{
    if (k->n_tokens + n > BLEND_KIT_TOKENS_MAX) abort();
    model_kit_tokens(&k->model, k->tokens + k->n_tokens, n, seed);
    if (segment) k->segments[k->n_segments++] = (struct tsr_range){k->n_tokens, n};
    k->n_tokens += n;
}

void blend_kit_prompt(struct blend_kit *k, uint64_t seed, uint32_t n_system, const uint32_t *docs,
                      uint32_t n_docs, const uint32_t *order)
{
    k->n_tokens = k->n_segments = 0;
    k->has_system = n_system > 0;
    if (n_system) append(k, seed * 100 + 1, n_system, true);
    for (uint32_t i = 0; i < n_docs; i++) {
        uint32_t d = order ? order[i] : i;
        append(k, seed * 100 + 10 + d, docs[d], true);
    }
    append(k, seed * 100 + 2, 12, false);
}

void blend_kit_set_weight(struct blend_kit *k, const char *name, double weight)
{
    for (uint32_t i = 0; tsr_gate_weight_name(i); i++)
        if (strcmp(tsr_gate_weight_name(i), name) == 0) k->profile.gate[i] = weight;
}

struct tsr_ask_desc blend_kit_ask_of(struct blend_kit *k, uint32_t selector, double ratio,
                                     uint32_t flags)
{
    return (struct tsr_ask_desc){.size = sizeof(struct tsr_ask_desc),
                                 .session = k->model.session,
                                 .tokens = k->tokens,
                                 .n_tokens = k->n_tokens,
                                 .segments = k->segments,
                                 .n_segments = k->n_segments,
                                 .system = k->has_system,
                                 .flags = flags | (ratio < 0 ? 0 : TSR_ASK_RATIO),
                                 .selector = selector,
                                 .ratio = ratio < 0 ? 0 : ratio,
                                 .extra = &k->extra,
                                 .n_extra = k->extra.kind != 0};
}

int blend_kit_ask(struct blend_kit *k, uint32_t selector, double ratio, uint32_t flags)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, selector, ratio, flags);
    k->report = (struct tsr_blend_report){.size = sizeof k->report};
    return tsr_blend_ask(k->blend, &ask, k->logits, &k->report);
}

void blend_kit_ask_alone(struct blend_kit *k, uint32_t selector, double ratio, uint32_t flags)
{
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .model = k->model.model,
                                    .profile = &k->profile,
                                    .flags = k->flags,
                                    .blend_min_tokens = UINT32_MAX,
                                    .primer = k->primer,
                                    .n_primer = k->n_primer};
    struct tsr_blend *with_cache = k->blend;
    MUST(tsr_blend_open(&k->blend, &config));
    MUST(blend_kit_ask(k, selector, ratio, flags));
    tsr_blend_close(k->blend);
    k->blend = with_cache;
}

void blend_kit_prefill(struct blend_kit *k, float *logits)
{
    struct tsr_session *own = k->model.session;
    MUST(tsr_session_open(&k->model.session, k->model.model, BLEND_KIT_TOKENS_MAX));
    k->model.freq_set = tsri_rope_set_id(&k->model.info.rope, k->n_tokens);
    model_kit_prefill(&k->model, k->tokens, 0, k->n_tokens, logits);
    tsr_session_close(k->model.session);
    k->model.session = own;
}

uint32_t blend_kit_plain(struct blend_kit *k, uint32_t n_tokens, const struct tsr_extra *extra,
                         uint32_t n_extra)
{
    struct tsr_session *own = k->model.session;
    struct tsri_rows rows;
    float logits[128];
    MUST(tsr_session_open(&k->model.session, k->model.model, BLEND_KIT_TOKENS_MAX));
    k->model.freq_set = tsri_rope_set_id(&k->model.info.rope, k->n_tokens);
    model_kit_prefill(&k->model, k->tokens, 0, k->n_tokens, logits);
    struct tsri_fill fill = {.client = k->blend->client,
                             .space = k->blend->traffic,
                             .device = k->blend->device,
                             .layout = tsr_session_layout(k->model.session),
                             .rope = &k->model.info.rope};
    MUST(tsri_rows_init(&rows, &fill, 0, n_tokens));
    MUST(tsri_rows_move(&fill, &rows, TSRI_BATCH_GATHER, 0));
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = fill.space,
                                   .kind = TSR_KIND_PREFIX,
                                   .n_tokens = n_tokens,
                                   .tokens = k->tokens,
                                   .extra = extra,
                                   .n_extra = n_extra,
                                   .view = {.data = rows.data, .bytes = rows.bytes}};
    int n = tsr_client_store(fill.client, &store);
    MUST(n);
    tsri_rows_fini(&rows);
    tsr_session_close(k->model.session);
    k->model.session = own;
    return (uint32_t)n;
}

void blend_kit_make_cold(struct blend_kit *k)
{
    /* Jobs of feeds that were closed early let go their pins when they end. */
    tsri_work_drain(tsri_ops_work(k->cache.cache->ops));
    MUST(tsr_cache_flush(k->cache.cache));
    (void)kit_evict_all(&k->cache);
}
