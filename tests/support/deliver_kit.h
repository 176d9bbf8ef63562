/* deliver_kit.h - a cache on a device, and an engine on the same device to deliver into. What
 * arrives is compared with what a batch over the same KV in plain cells writes. main() of a test is
 * rig_each_device. */
#ifndef TSRI_DELIVER_KIT_H
#define TSRI_DELIVER_KIT_H

#include "cache/clients.h"
#include "deliver/deliver.h"
#include "device/kv.h"
#include "served/served.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/fakeacl.h"
#include "support/fakegpu.h"
#include "support/lock_kit.h"
#include "support/served_kit.h"

enum { SLOTS = 1024, SEGMENT = 100, PREFIX = 64 };

static const char *device_name;
static struct tsri_device *device; /* the tests' own */
static const struct fakegpu_control *gpu;

static const struct kv_shape engine_shape = {.kind = KV_BLOCKS,
                                             .dtype = TSR_DTYPE_F16,
                                             .n_layers = 2,
                                             .n_heads = 2,
                                             .k_dim = 16,
                                             .v_dim = 16,
                                             .rope_dims = 16,
                                             .block_tokens = 16,
                                             .n_slots = SLOTS};
static const struct tsr_rope rope = {
    .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = 16, .theta = 10000};
static const struct tsr_batch_limits limits = {64, 8192, 1024, 8192};

struct rig {
    struct kit kit;
    struct tsr_delivery *delivery;
    struct kv_engine engine, expected;
    int64_t slots[SLOTS];
    uint32_t *tokens; /* of the segment that rig_open has stored */
    struct fake_tier_plan below;
    bool has_below;
};

static inline struct tsr_delivery_desc config_of(const struct rig *r)
{
    return (struct tsr_delivery_desc){.size = sizeof(struct tsr_delivery_desc),
                                      .space = r->kit.space,
                                      .layout = &r->engine.layout,
                                      .rope = &rope,
                                      .ranges_max = 64,
                                      .tokens_max = 8192};
}

/* What every thread of a test has for itself; the kit is there already. */
static inline void rig_open_engines(struct rig *r, enum tsr_memory memory)
{
    kv_engine_init(&r->engine, device, &engine_shape);
    kv_engine_init(&r->expected, device, &engine_shape);
    r->engine.layout.memory = memory;
    for (uint32_t i = 0; i < SLOTS; i++)
        r->slots[i] = i ^ 0x30; /* blocks out of order */
    struct tsr_delivery_desc config = config_of(r);
    CHECK_INT(tsr_delivery_open(&r->delivery, r->kit.client, &config), 0);
}

static inline void rig_close_engines(struct rig *r)
{
    tsr_delivery_close(r->delivery);
    kv_engine_fini(&r->engine);
    kv_engine_fini(&r->expected);
}

/* Until host memory, or that of the server, is page-locked for the device, if that needs it. */
static inline void rig_wait_locked(struct rig *r)
{
    struct tsr_cache *c = r->kit.cache;
    if (!(tsri_device_caps(c->device) & TSR_DEVICE_NEEDS_LOCK)) return;
    struct tsri_link *link = c->served ? tsri_client_seat(r->kit.client)->link : NULL;
    struct tsri_mapping *m = link ? tsri_link_mapping(link, tsri_link_session(link)) : NULL;
    struct tsri_locking *locking = m ? m->pool->locking : c->locking;
    CHECK(locking && tsri_locking_wait(locking, SIZE_MAX, tsri_now_ns() + LOCK_SOON_NS));
    tsri_mapping_release(m);
}

/* A client on the device of the server at that path, and nothing in it. */
static inline void rig_open_served(struct rig *r, const char *path, const char *const *options)
{
    *r = (struct rig){0};
    served_kit_open(&r->kit, path, options);
    rig_wait_locked(r);
    rig_open_engines(r, TSR_MEMORY_DEVICE);
}

static inline void rig_close_served(struct rig *r)
{
    rig_close_engines(r);
    kit_close(&r->kit);
    free(r->tokens);
}

/* A cache on the device with a pool of that size, perhaps a tier in memory below it, and nothing in
 * it. */
static inline void rig_open_empty(struct rig *r, const char *pool, bool below)
{
    const char *const options[] = {"device", device_name, "device_pool_size", pool, "chunk_size",
                                   "16",     NULL};
    *r = (struct rig){.has_below = below};
    if (below) fake_tier_plan_init(&r->below);
    kit_open_tiers(&r->kit, options, &r->below, below);
    rig_wait_locked(r);
    rig_open_engines(r, TSR_MEMORY_DEVICE);
}

/* The same with one segment in it. */
static inline void rig_open(struct rig *r, const char *pool, bool below)
{
    rig_open_empty(r, pool, below);
    r->tokens = kit_tokens(1, SEGMENT);
    CHECK_INT(kit_store_segment(&r->kit, r->tokens, SEGMENT), SEGMENT);
}

static inline void rig_close(struct rig *r)
{
    rig_close_engines(r);
    CHECK(kit_end(&r->kit));
    free(r->tokens);
    if (!r->has_below) return;
    fake_tier_plan_fini(&r->below);
}

/* The same over a server that is opened here, or with NULL over a cache of one's own. */
static inline void rig_open_at(struct rig *r, struct server_kit *server)
{
    const char *const options[] = {"device", device_name, NULL};
    if (!server) {
        rig_open(r, "0", false);
        return;
    }
    server_open(server, NULL);
    rig_open_served(r, server->path, options);
    r->tokens = kit_tokens(1, SEGMENT);
    CHECK_INT(kit_store_segment(&r->kit, r->tokens, SEGMENT), SEGMENT);
}

static inline void rig_close_at(struct rig *r, struct server_kit *server)
{
    if (!server) {
        rig_close(r);
        return;
    }
    rig_close_served(r);
    CHECK(server_end(server));
}

/* From now on the device of the cache needs page-locked memory, and nothing is locked before
 * lock_kit_allow. For devices without a need of their own. */
static inline void rig_close_gate(struct rig *r)
{
    struct tsr_cache *c = r->kit.cache;
    size_t page_bytes = (size_t)1 << c->pool.page_shift;
    lock_kit_reset(0, LOCK_CALLS);
    lock_kit_wrap(c->device);
    CHECK_INT(tsri_locking_open(&c->locking, c->device, c->pool.region.data,
                                c->pool.n_pages * page_bytes, page_bytes),
              0);
}

static inline void rig_open_gate(struct rig *r)
{
    lock_kit_allow(LOCK_CALLS);
    CHECK(tsri_locking_wait(r->kit.cache->locking, SIZE_MAX, tsri_now_ns() + LOCK_SOON_NS));
}

/* Until what lookups asked to be promoted is in the pool. */
static inline void settle(struct rig *r)
{
    tsri_manager_drain(r->kit.cache);
}

static inline uint64_t metric(struct rig *r, enum tsri_metric m)
{
    kit_stats(&r->kit); /* sets the gauges */
    return tsri_stats_read(r->kit.cache->stats, m);
}

/* What the segment's KV, moved by delta, looks like in an engine. */
static inline void expect(struct rig *r, const uint32_t *tokens, uint32_t n, int64_t delta)
{
    size_t bytes = (size_t)n * tsri_shape_token_bytes(&r->kit.space->shape);
    uint8_t *packed = malloc(bytes);
    kit_fill(r->kit.space, kit_seed(r->kit.space), tokens, n, packed);
    void *data, *planes[4];
    CHECK_INT(tsri_device_host_alloc(device, &data, bytes), 0);
    for (uint32_t l = 0; l < 2; l++) /* packed is [layer][plane], cells_2ltd [plane][layer] */
        for (uint32_t p = 0; p < 2; p++)
            memcpy((uint8_t *)data + (p * 2 + l) * bytes / 4, packed + (l * 2 + p) * bytes / 4,
                   bytes / 4);
    struct tsr_kv_cells cells;
    CHECK_INT(kv_cells_2ltd(&cells, planes, data, &r->expected.layout, n), bytes);
    cells.memory = TSR_MEMORY_LOCKED;
    struct tsr_kv_run run = {&cells, r->slots, 0, n, delta, 0, 0};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, 1, &r->expected.layout, &run, &rope, 0};
    struct tsri_batch *batch;
    CHECK_INT(tsri_batch_open(&batch, device, &limits), 0);
    CHECK_INT(tsri_batch_set(batch, NULL, &desc), 0);
    CHECK_INT(tsri_batch_scatter(batch, 0, 0), 0);
    CHECK_INT(tsri_stream_sync(device, NULL), 0);
    tsri_batch_close(batch);
    tsri_device_host_free(device, data);
    free(packed);
}

static inline bool same_images(struct rig *r)
{
    uint8_t *a = kv_engine_image(&r->engine), *b = kv_engine_image(&r->expected);
    bool same = memcmp(a, b, r->engine.bytes) == 0;
    free(a);
    free(b);
    return same;
}

static inline void forget_engines(struct rig *r)
{
    kv_engine_fill(&r->engine, 7);
    kv_engine_fill(&r->expected, 7);
}

/* A segment behind `ahead` tokens of something else. */
struct ask {
    uint32_t tokens[SLOTS];
    struct tsr_range range;
    struct tsr_prompt prompt;
    struct kit_hits hits;
    struct tsr_delivery_range want;
};

static inline int look_up(struct rig *r, struct ask *a, const uint32_t *tokens, uint32_t n,
                          uint32_t ahead)
{
    memset(a->tokens, 0x77, sizeof a->tokens);
    memcpy(a->tokens + ahead, tokens, n * sizeof tokens[0]);
    a->range = (struct tsr_range){ahead, n};
    a->prompt = (struct tsr_prompt){.size = sizeof a->prompt,
                                    .tokens = a->tokens,
                                    .n_tokens = ahead + n,
                                    .flags = TSR_PROMPT_SEGMENTS,
                                    .segments = &a->range,
                                    .n_segments = 1};
    int found = kit_lookup(&r->kit, &a->prompt, 0, &a->hits);
    a->want = (struct tsr_delivery_range){.size = sizeof a->want,
                                          .match = &a->hits.matches[0],
                                          .prompt = &a->prompt,
                                          .slots = r->slots};
    return found;
}

/* The rig's own segment, which is there. */
static inline void ask_for(struct rig *r, struct ask *a, uint32_t ahead)
{
    CHECK_INT(look_up(r, a, r->tokens, SEGMENT, ahead), SEGMENT);
}

static inline int deliver(struct rig *r, struct tsr_delivery_range *ranges, uint32_t n)
{
    int e = tsr_delivery_start(r->delivery, ranges, n, 0);
    if (e < 0) return e;
    for (uint32_t l = 0; l < 2; l++)
        CHECK_INT(tsr_delivery_wait_layer(r->delivery, l), 0);
    CHECK_INT(tsr_delivery_finish(r->delivery), 0);
    return e;
}

/* Found, delivered and right, `ahead` positions further on than it was stored. */
static inline void check_segment(struct rig *r, const uint32_t *tokens, uint32_t n, uint32_t ahead)
{
    static struct ask a;
    CHECK_INT(look_up(r, &a, tokens, n, ahead), n);
    forget_engines(r);
    expect(r, tokens, n, ahead);
    CHECK_INT(deliver(r, &a.want, 1), 1);
    CHECK_INT(a.want.result, 0);
    CHECK(same_images(r));
}

static inline void check_own(struct rig *r, uint32_t ahead)
{
    check_segment(r, r->tokens, SEGMENT, ahead);
}

static inline void rig_on_device(const char *name, void (*run_all)(void))
{
    device_name = name;
    printf("%s:\n", name);
    if (tsri_device_open(&device, name, NULL) != 0) {
        printf("    skipped: %s\n", tsr_errmsg());
        test_n_skipped++;
        return;
    }
    run_all();
    tsri_device_close(device);
}

/* Once for every known device that is here, and for one that queues on any machine. */
static inline int rig_each_device(void (*run_all)(void))
{
    const char *name;
    gpu = fakegpu_load();
    fakeacl_load("libascendcl.so"); /* "npu" is one of the known names */
    for (uint32_t i = 0; (name = tsri_device_known(i)) != NULL; i++)
        rig_on_device(name, run_all);
    rig_on_device("fakegpu", run_all);
    return test_end();
}

#endif
