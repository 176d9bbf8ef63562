/* connector_kit.c - see connector_kit.h. */
#include "support/connector_kit.h"
#include "cache/core.h"
#include "device/locking.h"

#include <stdio.h>
#include <stdlib.h>

#define MUST(x) ((x) ? (void)0 : stop(#x, __LINE__))
static void stop(const char *what, int line)
{
    printf("connector_kit.c:%d: %s: %s\n", line, what, tsr_errmsg());
    exit(1);
}

static struct tsr_cache *open_cache(const char *const *options)
{
    struct tsr_config *cfg;
    struct tsr_cache *cache;
    MUST(tsr_config_open(&cfg) == 0);
    MUST(tsr_config_set(cfg, "host_size", "16M") == 0);
    MUST(tsr_config_set(cfg, "host_page_size", "4K") == 0);
    MUST(tsr_config_set(cfg, "any_offset", "false") == 0);
    for (; options && *options; options += 2)
        MUST(tsr_config_set(cfg, options[0], options[1]) == 0);
    MUST(tsr_cache_open(&cache, cfg) == 0);
    tsr_config_close(cfg);
    return cache;
}

static void describe(struct ck *k)
{
    uint32_t n_groups = k->o.n_groups, n_ranks = k->o.n_ranks;
    for (uint32_t r = 0; r < n_ranks; r++)
        for (uint32_t g = 0; g < n_groups; g++)
            k->spaces[r * n_groups + g] = (struct tsr_space_desc){.size = sizeof k->spaces[0],
                                                                  .model = "connector kit",
                                                                  .salt = k->o.salt,
                                                                  .dtype = TSR_DTYPE_F16,
                                                                  .n_layers = CK_LAYERS,
                                                                  .n_heads = 1,
                                                                  .k_dim = CK_ROW_BYTES / 2,
                                                                  .rank = r,
                                                                  .world = n_ranks,
                                                                  .group = g};
    for (uint32_t g = 0; g < n_groups; g++)
        k->groups[g] = (struct tsr_group){.size = sizeof k->groups[0],
                                          .block_tokens = CK_BLOCK,
                                          .window_tokens = g ? k->o.window_tokens : 0,
                                          .draft_tokens = g ? 0 : k->o.draft_tokens,
                                          .flags = g && k->o.states ? TSR_GROUP_STATE : 0};
    k->desc = (struct tsr_connector_desc){.size = sizeof k->desc,
                                          .n_ranks = n_ranks,
                                          .n_groups = n_groups,
                                          .spaces = k->spaces,
                                          .groups = k->groups,
                                          .chunk_tokens =
                                              k->o.chunk_tokens ? k->o.chunk_tokens : CK_CHUNK,
                                          .boundary = k->o.boundary,
                                          .flags = k->o.flags,
                                          .load_timeout_ms = k->o.load_timeout_ms,
                                          .save_timeout_ms = k->o.save_timeout_ms,
                                          .save_wait_ms = k->o.save_wait_ms,
                                          .jobs_max = k->o.jobs_max};
}

static struct tsr_kv_layout layout_of(struct ck *k, uint8_t *memory)
{
    size_t plane = (size_t)k->n_slots * CK_ROW_BYTES;
    struct tsr_kv_layout l = {.size = sizeof l,
                              .n_layers = CK_LAYERS,
                              .n_planes = CK_PLANES,
                              .block_tokens = CK_BLOCK,
                              .n_slots = k->n_slots};
    for (uint32_t p = 0; p < CK_PLANES; p++)
        l.planes[p] = (struct tsr_kv_plane){.base = memory + p * plane,
                                            .layer_stride = CK_PLANES * plane,
                                            .block_stride = CK_BLOCK * CK_ROW_BYTES,
                                            .token_stride = CK_ROW_BYTES,
                                            .head_stride = CK_ROW_BYTES,
                                            .element_stride = 2,
                                            .dtype = TSR_DTYPE_F16,
                                            .n_heads = 1,
                                            .dim = CK_ROW_BYTES / 2};
    return l;
}

/* Of one rank and group; where the engine sees it. */
static uint8_t *take_memory(struct ck *k, uint32_t rank, uint32_t group)
{
    size_t bytes = (size_t)k->n_slots * CK_LAYERS * CK_PLANES * CK_ROW_BYTES;
    void *p = NULL;
    if (k->o.gpu) {
        MUST(tsri_device_alloc(k->device, &p, bytes) == 0);
        k->on_device[rank][group] = p;
        k->memory[rank][group] = k->o.gpu->view(p);
        return p;
    }
    p = calloc(1, bytes);
    MUST(p);
    k->memory[rank][group] = p;
    return p;
}

static void give_memory(struct ck *k, uint32_t rank, uint32_t group)
{
    if (k->o.gpu)
        tsri_device_free(k->device, k->on_device[rank][group]);
    else
        free(k->memory[rank][group]);
}

static void open_worker(struct ck *k, uint32_t rank)
{
    struct tsr_cache *cache = k->o.workers ? k->o.workers : k->cache;
    struct tsr_worker_desc d = {.size = sizeof d,
                                .rank = rank,
                                .flags = k->o.worker_flags,
                                .device = k->o.gpu ? "fakegpu" : NULL,
                                .stream = k->stream,
                                .staging_bytes = 64 << 10};
    MUST(tsr_worker_open(&k->workers[rank], cache, &k->desc, &d) == 0);
    struct tsr_kv_layout layouts[CK_GROUPS_MAX];
    for (uint32_t g = 0; g < k->o.n_groups; g++) {
        layouts[g] = layout_of(k, take_memory(k, rank, g));
        layouts[g].memory = k->o.gpu ? TSR_MEMORY_DEVICE : TSR_MEMORY_HOST;
    }
    MUST(tsr_worker_register_kv_caches(k->workers[rank], layouts, k->o.n_groups) == 0);
}

void ck_open(struct ck *k, const struct ck_options *o)
{
    memset(k, 0, sizeof *k);
    k->o = *o;
    if (!k->o.n_ranks) k->o.n_ranks = 1;
    if (!k->o.n_groups) k->o.n_groups = 1;
    if (!k->o.n_blocks) k->o.n_blocks = 64;
    k->n_slots = k->o.n_blocks * CK_BLOCK;
    k->own_cache = !o->shared;
    k->cache = o->shared ? o->shared : open_cache(o->cache);
    if (k->o.gpu) {
        k->stream = o->default_stream ? NULL : k->o.gpu->stream_open(0);
        MUST(tsri_device_open(&k->device, "fakegpu", NULL) == 0);
    }
    describe(k);
    MUST(tsr_scheduler_open(&k->scheduler, k->cache, &k->desc) == 0);
    for (uint32_t r = 0; r < k->o.n_ranks; r++)
        open_worker(k, r);
}

void ck_close(struct ck *k)
{
    for (uint32_t r = 0; r < k->o.n_ranks; r++) {
        tsr_worker_close(k->workers[r]);
        for (uint32_t g = 0; g < k->o.n_groups; g++)
            give_memory(k, r, g);
    }
    if (k->stream) k->o.gpu->stream_close(k->stream);
    tsri_device_close(k->device);
    tsr_scheduler_close(k->scheduler);
    if (k->own_cache) tsr_cache_close(k->cache);
}

void ck_wait_locked(const struct tsr_cache *c)
{
    if (!c->locking) return;
    MUST(tsri_locking_wait(c->locking, SIZE_MAX, tsri_now_ns() + UINT64_C(10000000000)));
}

void ck_sync(struct ck *k)
{
    if (k->o.gpu) k->o.gpu->stream_sync(k->stream);
}

void ck_number(uint32_t tokens[128], int32_t blocks[64])
{
    for (uint32_t i = 0; i < 128; i++)
        tokens[i] = i * 7 + 1;
    for (int32_t i = 0; i < 64; i++)
        blocks[i] = i;
}

/* ---- memory ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t ck_seen(uint64_t before, uint32_t token)
{
    return mix(before + 0x9E3779B97F4A7C15u * (token + 1u));
}

static uint8_t *row_at(const struct ck *k, uint32_t rank, uint32_t group, uint32_t layer,
                       uint32_t plane, int64_t slot)
{
    size_t row = ((size_t)layer * CK_PLANES + plane) * k->n_slots + (size_t)slot;
    return k->memory[rank][group] + row * CK_ROW_BYTES;
}

static void fill_row(uint64_t row[CK_ROW_BYTES / 8], uint64_t seen, uint32_t place)
{
    for (uint32_t i = 0; i < CK_ROW_BYTES / 8; i++)
        row[i] = mix(seen ^ mix(place * 8 + i + 1));
}

static uint32_t place_of(uint32_t rank, uint32_t group, uint32_t layer, uint32_t plane)
{
    return ((rank * CK_GROUPS_MAX + group) * CK_LAYERS + layer) * CK_PLANES + plane;
}

void ck_write(struct ck *k, uint32_t rank, uint32_t group, int64_t slot, uint64_t seen)
{
    uint64_t row[CK_ROW_BYTES / 8];
    for (uint32_t l = 0; l < CK_LAYERS; l++)
        for (uint32_t p = 0; p < CK_PLANES; p++) {
            fill_row(row, seen, place_of(rank, group, l, p));
            memcpy(row_at(k, rank, group, l, p, slot), row, sizeof row);
        }
}

bool ck_right(const struct ck *k, uint32_t rank, uint32_t group, int64_t slot, uint64_t seen)
{
    uint64_t row[CK_ROW_BYTES / 8];
    for (uint32_t l = 0; l < CK_LAYERS; l++)
        for (uint32_t p = 0; p < CK_PLANES; p++) {
            fill_row(row, seen, place_of(rank, group, l, p));
            if (memcmp(row_at(k, rank, group, l, p, slot), row, sizeof row) != 0) return false;
        }
    return true;
}

void ck_poison(struct ck *k, uint32_t group, int32_t block, uint64_t seed)
{
    for (uint32_t r = 0; r < k->o.n_ranks; r++)
        for (uint32_t i = 0; i < CK_BLOCK; i++)
            ck_write(k, r, group, (int64_t)block * CK_BLOCK + i, mix(seed + i) | 1);
}

void ck_write_all(struct ck *k, const uint32_t *tokens, uint32_t first, uint32_t end,
                  const int32_t *blocks)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < end; i++) {
        seen = ck_seen(seen, tokens[i]);
        for (uint32_t r = 0; i >= first && r < k->o.n_ranks; r++)
            for (uint32_t g = 0; g < k->o.n_groups; g++)
                ck_write(k, r, g, ck_slot(blocks, i), seen);
    }
}

bool ck_right_all(const struct ck *k, const uint32_t *tokens, uint32_t first, uint32_t end,
                  const int32_t *blocks)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < end; i++) {
        seen = ck_seen(seen, tokens[i]);
        for (uint32_t r = 0; i >= first && r < k->o.n_ranks; r++)
            for (uint32_t g = 0; g < k->o.n_groups; g++)
                if (!ck_right(k, r, g, ck_slot(blocks, i), seen)) return false;
    }
    return true;
}

/* ---- steps ---- */

/* Named by all ranks: they answer in the same order in these tests, so it is enough to take what
 * the last one names. */
static void ask_worker(struct ck *k, uint32_t rank, struct ck_answer *answer)
{
    struct tsr_finished f = {.size = sizeof f,
                             .sent = answer->sent,
                             .received = answer->received,
                             .sent_max = 64,
                             .received_max = 64};
    MUST(tsr_worker_get_finished(k->workers[rank], &f) >= 0);
    answer->n_sent = f.n_sent;
    answer->n_received = f.n_received;
    int n = tsr_worker_get_block_ids_with_load_errors(k->workers[rank], answer->bad + answer->n_bad,
                                                      256 - answer->n_bad);
    MUST(n >= 0);
    answer->n_bad += (uint32_t)n;
    const void *meta;
    size_t bytes;
    MUST(tsr_worker_build_connector_worker_meta(k->workers[rank], &meta, &bytes) == 0);
    MUST(tsr_scheduler_update_connector_output(k->scheduler, meta, bytes) == 0);
}

void ck_step(struct ck *k, const struct tsr_step_desc *step, struct ck_answer *answer)
{
    struct tsr_step_desc none = {.size = sizeof none};
    const void *meta;
    size_t bytes;
    struct ck_answer own;
    if (!answer) answer = &own;
    memset(answer, 0, sizeof *answer);
    MUST(tsr_scheduler_build_connector_meta(k->scheduler, step ? step : &none, &meta, &bytes) == 0);
    for (uint32_t r = 0; r < k->o.n_ranks; r++) {
        MUST(tsr_worker_handle_preemptions(k->workers[r], meta, bytes) == 0);
        MUST(tsr_worker_start_load_kv(k->workers[r], meta, bytes) == 0);
    }
    for (uint32_t r = 0; r < k->o.n_ranks; r++) {
        for (uint32_t g = 0; g < k->o.n_groups; g++)
            for (uint32_t l = 0; l < CK_LAYERS; l++) {
                MUST(tsr_worker_wait_for_layer_load(k->workers[r], g, l) == 0);
                MUST(tsr_worker_save_kv_layer(k->workers[r], g, l) == 0);
            }
        MUST(tsr_worker_wait_for_save(k->workers[r]) == 0);
        ask_worker(k, r, answer);
    }
}

void ck_settle(struct ck *k, struct ck_answer *answer)
{
    struct ck_answer all = {0}, one;
    do {
        for (uint32_t r = 0; r < k->o.n_ranks; r++)
            MUST(tsr_worker_drain(k->workers[r], 10000) == 0);
        ck_step(k, NULL, &one);
        for (uint32_t i = 0; i < one.n_sent && all.n_sent < 64; i++)
            all.sent[all.n_sent++] = one.sent[i];
        for (uint32_t i = 0; i < one.n_received && all.n_received < 64; i++)
            all.received[all.n_received++] = one.received[i];
        for (uint32_t i = 0; i < one.n_bad && all.n_bad < 256; i++)
            all.bad[all.n_bad++] = one.bad[i];
    } while (tsr_scheduler_has_pending_work(k->scheduler));
    if (answer) *answer = all;
}

void ck_new(struct ck *k, uint64_t id, const uint32_t *tokens, uint32_t n)
{
    struct tsr_request_desc r = {.size = sizeof r, .id = id, .tokens = tokens, .n_tokens = n};
    MUST(tsr_scheduler_on_new_request(k->scheduler, &r) == 0);
}

int ck_alloc(struct ck *k, uint64_t id, const int32_t *blocks, uint32_t n_blocks,
             uint32_t n_external)
{
    int32_t all[CK_GROUPS_MAX * 64];
    uint32_t n[CK_GROUPS_MAX];
    MUST(n_blocks <= 64);
    for (uint32_t g = 0; g < k->o.n_groups; g++) {
        memcpy(all + (size_t)g * n_blocks, blocks, n_blocks * sizeof *blocks);
        n[g] = n_blocks;
    }
    struct tsr_blocks b = {.blocks = all, .n_blocks = n};
    return tsr_scheduler_update_state_after_alloc(k->scheduler, id, &b, n_external);
}

int ck_finish(struct ck *k, uint64_t id, uint32_t n_tokens, uint32_t n_computed)
{
    struct tsr_finish_desc f = {
        .size = sizeof f, .id = id, .n_tokens = n_tokens, .n_computed = n_computed};
    return tsr_scheduler_request_finished(k->scheduler, &f);
}

void ck_save_prompt(struct ck *k, uint64_t id, const uint32_t *tokens, uint32_t n,
                    int32_t first_block)
{
    int32_t blocks[64];
    for (int32_t i = 0; i < 64; i++)
        blocks[i] = first_block + i;
    uint32_t n_blocks = (n + CK_BLOCK - 1) / CK_BLOCK;
    MUST(n_blocks <= 64);
    ck_new(k, id, tokens, n);
    MUST(ck_alloc(k, id, blocks, n_blocks, 0) == 0);
    ck_write_all(k, tokens, 0, n, blocks);
    MUST(ck_finish(k, id, n, n) >= 0);
    ck_settle(k, NULL);
}

int ck_find(struct ck *k, const uint32_t *tokens, uint32_t n)
{
    uint32_t async;
    ck_new(k, UINT64_MAX, tokens, n);
    int found = tsr_scheduler_get_num_new_matched_tokens(k->scheduler, UINT64_MAX, 0, &async);
    MUST(ck_finish(k, UINT64_MAX, n, 0) == 0);
    return found;
}

struct tsr_connector_stats ck_worker_stats(struct ck *k, uint32_t rank)
{
    struct tsr_connector_stats s = {.size = sizeof s};
    MUST(tsr_worker_stats(k->workers[rank], &s) == 0);
    return s;
}

struct tsr_connector_stats ck_stats(struct ck *k)
{
    struct tsr_connector_stats s = {.size = sizeof s};
    MUST(tsr_scheduler_stats(k->scheduler, &s) == 0);
    return s;
}
