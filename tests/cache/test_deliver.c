/* Ranges delivered into an engine's memory on a device, from host memory, from lower tiers and from
 * the device pool. Runs on every known device that is here. What arrives is compared with what a
 * batch over the same KV in plain cells writes on the same device. */
#include "cache/manager.h"
#include "device/kv.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"

#include <pthread.h>

enum { SLOTS = 1024, SEGMENT = 100, PREFIX = 64, PAGE = 16 << 10 };

static const char *device_name;
static struct tsri_device *device; /* the tests' own */

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
    struct tsri_delivery *delivery;
    struct kv_engine engine, expected;
    int64_t slots[SLOTS];
};

static void rig_open(struct rig *r, const char *pool, struct fake_tier_plan *below)
{
    const char *const options[] = {"device", device_name, "device_pool_size", pool, "chunk_size",
                                   "16",     NULL};
    kit_open_tiers(&r->kit, options, below, below ? 1 : 0);
    CHECK_INT(tsri_delivery_open(&r->delivery, r->kit.client, NULL, &limits), 0);
    kv_engine_init(&r->engine, device, &engine_shape);
    kv_engine_init(&r->expected, device, &engine_shape);
    for (uint32_t i = 0; i < SLOTS; i++)
        r->slots[i] = i ^ 0x30; /* blocks out of order */
}

static void rig_close(struct rig *r)
{
    tsri_delivery_close(r->delivery);
    kv_engine_fini(&r->engine);
    kv_engine_fini(&r->expected);
    CHECK(kit_end(&r->kit));
}

/* Until what lookups asked to be promoted is in the pool. */
static void settle(struct rig *r)
{
    tsri_manager_drain(r->kit.cache);
}

static uint64_t metric(struct rig *r, enum tsri_metric m)
{
    kit_stats(&r->kit); /* sets the gauges */
    return tsri_stats_read(r->kit.cache->stats, m);
}

/* What the segment's KV, moved by delta, looks like in an engine. */
static void expect(struct rig *r, const uint32_t *tokens, uint32_t n, int64_t delta)
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
    CHECK_INT(tsri_cells_2ltd(&cells, planes, data, bytes, &r->expected.layout, n), 0);
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

static bool same_images(struct rig *r)
{
    uint8_t *a = kv_engine_image(&r->engine), *b = kv_engine_image(&r->expected);
    bool same = memcmp(a, b, r->engine.bytes) == 0;
    free(a);
    free(b);
    return same;
}

static void forget_engines(struct rig *r)
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
    struct tsri_delivery_range want;
};

static int look_up(struct rig *r, struct ask *a, const uint32_t *tokens, uint32_t n, uint32_t ahead)
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
    a->want = (struct tsri_delivery_range){.space = r->kit.space,
                                           .match = &a->hits.matches[0],
                                           .prompt = &a->prompt,
                                           .slots = r->slots};
    return found;
}

static int deliver(struct rig *r, struct tsri_delivery_range *ranges, uint32_t n)
{
    struct tsri_delivery_desc desc = {
        .layout = &r->engine.layout, .rope = &rope, .ranges = ranges, .n_ranges = n};
    int e = tsri_delivery_set(r->delivery, &desc);
    if (e < 0) return e;
    for (uint32_t l = 0, n_layers; l < 2; l += n_layers) {
        n_layers = tsri_delivery_step(r->delivery, l);
        CHECK_INT(tsri_delivery_layers(r->delivery, l, n_layers), 0);
    }
    CHECK_INT(tsri_delivery_finish(r->delivery), 0);
    return e;
}

/* Found, delivered and right, `ahead` positions further on than it was stored. */
static void check_segment(struct rig *r, const uint32_t *tokens, uint32_t n, uint32_t ahead)
{
    static struct ask a;
    CHECK_INT(look_up(r, &a, tokens, n, ahead), n);
    forget_engines(r);
    expect(r, tokens, n, ahead);
    CHECK_INT(deliver(r, &a.want, 1), 1);
    CHECK_INT(a.want.result, 0);
    CHECK(same_images(r));
}

TEST(a_range_of_host_memory_arrives_turned_to_its_place)
{
    struct rig r;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "0", NULL);
    CHECK_INT(kit_store_segment(&r.kit, tokens, SEGMENT), SEGMENT);
    check_segment(&r, tokens, SEGMENT, 0);
    check_segment(&r, tokens, SEGMENT, 33);
    CHECK_INT(metric(&r, TSRI_M_deliveries), 2);
    CHECK_INT(metric(&r, TSRI_M_delivery_pool_hits), 0);
    CHECK_INT(metric(&r, TSRI_M_delivery_bytes),
              2 * SEGMENT * tsri_shape_token_bytes(&r.kit.space->shape));
    free(tokens);
    rig_close(&r);
}

TEST(a_part_of_a_match_arrives_and_nothing_else_is_written)
{
    struct rig r;
    static struct ask a;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "0", NULL);
    kit_store_segment(&r.kit, tokens, SEGMENT);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 5), SEGMENT);
    /* The whole, with slots for tokens 70 .. 89 alone, and those tokens by offset. */
    int64_t slots[SEGMENT];
    for (int64_t i = 0; i < SEGMENT; i++)
        slots[i] = i >= 70 && i < 90 ? r.slots[i] : -1;
    a.want.slots = slots;
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    uint8_t *whole = kv_engine_image(&r.engine);
    forget_engines(&r);
    a.want.slots = r.slots + 70;
    a.want.offset = 70;
    a.want.n_tokens = 20;
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    uint8_t *part = kv_engine_image(&r.engine);
    CHECK(memcmp(whole, part, r.engine.bytes) == 0);
    free(whole);
    free(part);
    free(tokens);
    rig_close(&r);
}

TEST(a_hit_is_promoted_and_then_host_memory_is_not_read)
{
    struct rig r;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "1M", NULL);
    kit_store_segment(&r.kit, tokens, SEGMENT);
    settle(&r);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0); /* nobody asked for it yet */
    check_segment(&r, tokens, SEGMENT, 0);
    settle(&r);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 1);
    /* Whoever read host memory now would deliver noise. */
    uint64_t before = metric(&r, TSRI_M_delivery_pool_hits);
    memset(r.kit.cache->pool.region.data, 0xEE, r.kit.cache->pool.region.bytes);
    check_segment(&r, tokens, SEGMENT, 0);
    check_segment(&r, tokens, SEGMENT, 19);
    CHECK_INT(metric(&r, TSRI_M_delivery_pool_hits), before + 2);
    free(tokens);
    rig_close(&r);
}

TEST(what_left_host_memory_is_still_delivered_and_loaded_from_the_pool)
{
    struct rig r;
    static struct ask a;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "1M", NULL);
    kit_store_segment(&r.kit, tokens, SEGMENT);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 0), SEGMENT);
    settle(&r);
    CHECK_INT(kit_evict_all(&r.kit), 1);
    CHECK_INT(r.kit.cache->n_cold, 1);
    check_segment(&r, tokens, SEGMENT, 7); /* not verified by the lookup: by the pool's tokens */
    CHECK_INT(metric(&r, TSRI_M_delivery_pool_hits), 1);
    CHECK_INT(r.kit.cache->n_cold, 1);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 0), SEGMENT);
    CHECK_INT(kit_load_and_check(&r.kit, &a.prompt), SEGMENT); /* to plain memory: comes up */
    CHECK_INT(r.kit.cache->n_cold, 0);
    free(tokens);
    rig_close(&r);
}

TEST(another_text_is_not_delivered_for_an_unverified_match)
{
    struct rig r;
    static struct ask a;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "1M", NULL);
    kit_store_segment(&r.kit, tokens, SEGMENT);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 0), SEGMENT);
    settle(&r);
    kit_evict_all(&r.kit);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 0), SEGMENT);
    CHECK(!a.hits.matches[0].verified);
    a.tokens[50] ^= 1;
    CHECK_INT(deliver(&r, &a.want, 1), 0);
    CHECK_INT(a.want.result, TSR_ECORRUPT);
    CHECK(same_images(&r));
    CHECK_INT(metric(&r, TSRI_M_collisions), 1);
    CHECK_INT(metric(&r, TSRI_M_delivery_misses), 1);
    free(tokens);
    rig_close(&r);
}

TEST(cleared_and_dropped_entries_leave_the_pool)
{
    struct rig r;
    static struct ask a;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "1M", NULL);
    for (int cold = 0; cold < 2; cold++) {
        kit_store_segment(&r.kit, tokens, SEGMENT);
        CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 0), SEGMENT);
        settle(&r);
        CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 1);
        if (cold) kit_evict_all(&r.kit);
        CHECK_INT(tsr_clear(r.kit.cache, NULL), 1);
        settle(&r);
        CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0);
        CHECK_INT(metric(&r, TSRI_M_device_pool_used_bytes), 0);
        CHECK_INT(deliver(&r, &a.want, 1), 0);
        CHECK_INT(a.want.result, TSR_ENOENT);
    }
    CHECK(same_images(&r));
    free(tokens);
    rig_close(&r);
}

TEST(clearing_the_pool_alone_leaves_host_memory)
{
    struct rig r;
    static struct ask a;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "1M", NULL);
    kit_store_segment(&r.kit, tokens, SEGMENT);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 0), SEGMENT);
    settle(&r);
    struct tsr_clear clear = {.size = sizeof clear,
                              .tier = 1}; /* the last one: there is no other */
    CHECK_INT(tsr_clear(r.kit.cache, &clear), 1);
    settle(&r);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0);
    check_segment(&r, tokens, SEGMENT, 3);
    free(tokens);
    rig_close(&r);
}

/* Host memory and pool have 64 pages each, an entry two. */
TEST(the_pool_is_bounded_and_what_leaves_it_goes_down_to_host_memory)
{
    enum { N = 40 };
    struct rig r;
    static struct ask a;
    uint32_t *tokens[N];
    rig_open(&r, "1M", NULL);
    for (uint64_t i = 0; i < N; i++) {
        tokens[i] = kit_tokens(100 + i, SEGMENT);
        CHECK_INT(kit_store_segment(&r.kit, tokens[i], SEGMENT), SEGMENT);
        CHECK_INT(look_up(&r, &a, tokens[i], SEGMENT, 0), SEGMENT);
        settle(&r);
        CHECK(metric(&r, TSRI_M_device_pool_used_bytes) <= 1 << 20);
        if (i == 31) kit_evict_all(&r.kit); /* 32 entries that only the pool has */
    }
    CHECK(metric(&r, TSRI_M_device_demotions) >= 8);
    CHECK_INT(r.kit.cache->n_host + r.kit.cache->n_cold, N); /* none was lost */
    int n_found = 0;
    for (uint64_t i = 0; i < N; i++) {
        if (look_up(&r, &a, tokens[i], SEGMENT, 0) == 0) continue;
        n_found++;
        check_segment(&r, tokens[i], SEGMENT, 11);
        settle(&r);
    }
    CHECK(n_found >= 32);
    for (uint64_t i = 0; i < N; i++)
        free(tokens[i]);
    rig_close(&r);
}

TEST(what_only_a_lower_tier_has_is_fetched_and_delivered)
{
    struct mem_tier_store store;
    struct fake_tier_plan plan;
    mem_tier_store_init(&store, 0);
    fake_tier_plan_init(&plan, &mem_tier, &store);
    struct rig r;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "0", &plan);
    kit_store_segment(&r.kit, tokens, SEGMENT);
    CHECK_INT(tsr_flush(r.kit.cache), 0);
    kit_evict_all(&r.kit);
    CHECK_INT(r.kit.cache->n_cold, 1);
    check_segment(&r, tokens, SEGMENT, 40);
    CHECK_INT(r.kit.cache->n_cold, 0);
    free(tokens);
    rig_close(&r);
    fake_tier_plan_fini(&plan);
    mem_tier_store_fini(&store);
}

static int refuse_copy(struct tsr_device *d, struct tsr_device_stream *s,
                       const struct tsr_copy *copies, size_t n)
{
    (void)d;
    (void)s;
    (void)copies;
    (void)n;
    return TSR_EDEVICE;
}

TEST(a_lost_device_costs_neither_a_flush_nor_a_load)
{
    struct mem_tier_store store;
    struct fake_tier_plan plan;
    mem_tier_store_init(&store, 0);
    fake_tier_plan_init(&plan, &mem_tier, &store);
    struct rig r;
    static struct ask a;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "1M", &plan);
    struct tsri_device *d = r.kit.cache->device;
    const struct tsr_device_ops *real = d->ops;
    struct tsr_device_ops lost = *real;
    lost.copy = refuse_copy;
    d->ops = &lost;
    kit_store_segment(&r.kit, tokens, SEGMENT);
    settle(&r);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 0), SEGMENT);
    CHECK_INT(tsr_flush(r.kit.cache), 0);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 0);
    CHECK(metric(&r, TSRI_M_tier_errors) > 0);
    CHECK_INT(kit_load_and_check(&r.kit, &a.prompt), SEGMENT);
    settle(&r);
    d->ops = real;
    free(tokens);
    rig_close(&r);
    fake_tier_plan_fini(&plan);
    mem_tier_store_fini(&store);
}

TEST(prefix_blocks_are_delivered_without_turning)
{
    struct rig r;
    uint32_t *tokens = kit_tokens(5, PREFIX);
    rig_open(&r, "1M", NULL);
    CHECK_INT(kit_store_prefix(&r.kit, tokens, PREFIX), PREFIX);
    for (int round = 0; round < 2; round++) {
        struct tsr_prompt prompt = kit_prefix_prompt(tokens, PREFIX);
        static struct kit_hits hits;
        CHECK_INT(kit_lookup(&r.kit, &prompt, 0, &hits), PREFIX);
        struct tsri_delivery_range ranges[PREFIX / 16];
        uint32_t n = 0, at = 0;
        for (; at < PREFIX; n++) {
            const struct tsr_match *m = &hits.matches[n];
            ranges[n] = (struct tsri_delivery_range){
                .space = r.kit.space, .match = m, .prompt = &prompt, .slots = r.slots + at};
            at += m->n_tokens;
        }
        forget_engines(&r);
        expect(&r, tokens, PREFIX, 0);
        CHECK_INT(deliver(&r, ranges, n), n);
        CHECK(same_images(&r));
        settle(&r);
    }
    CHECK(metric(&r, TSRI_M_delivery_pool_hits) >= PREFIX / 16);
    free(tokens);
    rig_close(&r);
}

TEST(what_is_wrong_is_told_before_anything_is_written)
{
    struct rig r;
    static struct ask a;
    uint32_t *tokens = kit_tokens(1, SEGMENT);
    rig_open(&r, "0", NULL);
    kit_store_segment(&r.kit, tokens, SEGMENT);
    CHECK_INT(look_up(&r, &a, tokens, SEGMENT, 9), SEGMENT);
    struct tsri_delivery_desc desc = {
        .layout = &r.engine.layout, .rope = &rope, .ranges = &a.want, .n_ranges = 1};
    /* What this range cannot have */
    desc.rope = NULL;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), 0);
    CHECK_INT(a.want.result, TSR_EUNSUP);
    CHECK_INT(tsri_delivery_layers(r.delivery, 0, 0), 0);
    desc.rope = &rope;
    desc.freq_set = 1;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), 0);
    CHECK_INT(a.want.result, TSR_EUNSUP);
    desc.freq_set = 0;
    /* What no range can have */
    int64_t twice[SEGMENT] = {0};
    a.want.slots = twice;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), TSR_EINVAL);
    twice[0] = SLOTS;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), TSR_EINVAL);
    a.want.slots = NULL;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), TSR_EINVAL);
    a.want.slots = r.slots;
    desc.int8 = true;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), TSR_ESPACE);
    desc.int8 = false;
    r.engine.layout.n_layers = 1;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), TSR_ESPACE);
    r.engine.layout.n_layers = 2;
    a.want.n_tokens = SEGMENT + 1;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), TSR_EINVAL);
    a.want.n_tokens = 0;
    desc.n_ranges = limits.runs + 1;
    CHECK_INT(tsri_delivery_set(r.delivery, &desc), TSR_ERANGE);
    CHECK_INT(tsri_delivery_layers(r.delivery, 0, 0), TSR_EINVAL);
    CHECK(same_images(&r));
    free(tokens);
    rig_close(&r);
}

TEST(a_device_that_is_not_there_is_told_at_open)
{
    const char *const options[][5] = {{"device_pool_size", "1M", NULL}, {"device", "nosuch", NULL}};
    static const int errors[] = {TSR_ECONFIG, TSR_EDEVICE};
    static const char *const parts[] = {"option device", "device nosuch"};
    for (size_t i = 0; i < TSRI_COUNT(options); i++) {
        struct tsr_config *cfg = kit_config(options[i]);
        struct tsr_cache *c;
        CHECK_INT(tsr_open(&c, cfg), errors[i]);
        CHECK_HAS(tsr_errmsg(), parts[i]);
        tsr_config_close(cfg);
    }
    struct kit k;
    struct tsri_delivery *d;
    kit_open(&k, NULL);
    CHECK_INT(tsri_delivery_open(&d, k.client, NULL, &limits), TSR_EDEVICE);
    kit_close(&k);
}

/* ---- threads ---- */

enum { THREADS = 3, ROUNDS = 60, TEXTS = 48 };
struct worker {
    pthread_t thread;
    struct rig *shared;
    uint64_t seed;
    int n_wrong, n_delivered;
};

/* Stores, finds and delivers texts while others clear and evict; what arrives must be right. */
static void *work(void *arg)
{
    struct worker *w = arg;
    struct rig r = {.kit = w->shared->kit};
    struct ask *a = malloc(sizeof *a);
    r.kit.client = kit_client(r.kit.cache);
    memcpy(r.slots, w->shared->slots, sizeof r.slots);
    CHECK_INT(tsri_delivery_open(&r.delivery, r.kit.client, NULL, &limits), 0);
    kv_engine_init(&r.engine, device, &engine_shape);
    kv_engine_init(&r.expected, device, &engine_shape);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t dice = test_rand(&w->seed);
        uint32_t *tokens = kit_tokens(dice % TEXTS, SEGMENT);
        if (dice >> 40 & 1) kit_store_segment(&r.kit, tokens, SEGMENT);
        if ((dice >> 41) % 16 == 0) kit_evict_all(&r.kit);
        if ((dice >> 41) % 16 == 1 && tsr_clear(r.kit.cache, NULL) < 0) w->n_wrong++;
        if (look_up(&r, a, tokens, SEGMENT, (uint32_t)(dice >> 50) % 8) == SEGMENT) {
            forget_engines(&r);
            if (deliver(&r, &a->want, 1) == 1) {
                expect(&r, tokens, SEGMENT, a->range.offset);
                w->n_delivered++;
            }
            w->n_wrong += !same_images(&r);
        }
        free(tokens);
    }
    tsri_delivery_close(r.delivery);
    tsr_client_close(r.kit.client);
    kv_engine_fini(&r.engine);
    kv_engine_fini(&r.expected);
    free(a);
    return NULL;
}

TEST(threads_deliver_while_others_evict_and_clear)
{
    struct rig r;
    struct worker workers[THREADS];
    rig_open(&r, "1M", NULL);
    for (uint64_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.shared = &r, .seed = i + 1};
        CHECK_INT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    int n_delivered = 0;
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        CHECK_INT(workers[i].n_wrong, 0);
        n_delivered += workers[i].n_delivered;
    }
    CHECK(n_delivered > 0);
    CHECK(kit_valid(&r.kit));
    rig_close(&r);
}

static void run_all(void)
{
    RUN(a_range_of_host_memory_arrives_turned_to_its_place);
    RUN(a_part_of_a_match_arrives_and_nothing_else_is_written);
    RUN(a_hit_is_promoted_and_then_host_memory_is_not_read);
    RUN(what_left_host_memory_is_still_delivered_and_loaded_from_the_pool);
    RUN(another_text_is_not_delivered_for_an_unverified_match);
    RUN(cleared_and_dropped_entries_leave_the_pool);
    RUN(clearing_the_pool_alone_leaves_host_memory);
    RUN(the_pool_is_bounded_and_what_leaves_it_goes_down_to_host_memory);
    RUN(what_only_a_lower_tier_has_is_fetched_and_delivered);
    RUN(a_lost_device_costs_neither_a_flush_nor_a_load);
    RUN(prefix_blocks_are_delivered_without_turning);
    RUN(what_is_wrong_is_told_before_anything_is_written);
    RUN(a_device_that_is_not_there_is_told_at_open);
    RUN(threads_deliver_while_others_evict_and_clear);
}

int main(void)
{
    for (uint32_t i = 0; (device_name = tsri_device_known(i)) != NULL; i++) {
        printf("%s:\n", device_name);
        if (tsri_device_open(&device, device_name, NULL) != 0) {
            printf("    skipped: %s\n", tsr_errmsg());
            test_n_skipped++;
            continue;
        }
        run_all();
        tsri_device_close(device);
    }
    return test_end();
}
