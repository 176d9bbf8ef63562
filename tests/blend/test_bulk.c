/* test_bulk.c - feeds of several ranges on every device that is here: on one that queues they go in
 * one batch, behind what the engine has queued, and a failure costs them and nothing else. */
#include "blend/blend.h"
#include "support/deliver_kit.h"

enum { HALF = SEGMENT / 2, AHEAD = 9 };

/* Two ranges: both halves of the rig's segment, AHEAD of where it was stored. */
struct halves {
    struct ask ask;
    struct tsri_feed_range ranges[2];
    struct tsri_feed_desc desc;
};

/* Of the engine, as CUDA names it; AscendCL has no such name. */
static void *default_stream(void)
{
    return strcmp(device_name, "npu") == 0 ? NULL : (void *)1; // NOLINT(performance-no-int-to-ptr)
}

static void halves_init(struct halves *h, struct rig *r, void *compute)
{
    ask_for(r, &h->ask, AHEAD);
    for (uint32_t i = 0; i < 2; i++) {
        struct tsr_match m = h->ask.hits.matches[0];
        m.entry_offset += i * HALF;
        m.prompt_offset += i * HALF;
        m.n_tokens = HALF;
        m.coverage = TSR_COVERAGE_RUN;
        h->ranges[i] = (struct tsri_feed_range){
            .match = m, .space = r->kit.space, .slots = r->slots + i * HALF};
    }
    h->desc = (struct tsri_feed_desc){.cache = r->kit.cache,
                                      .prompt = &h->ask.prompt,
                                      .device = r->kit.cache->device,
                                      .layout = &r->engine.layout,
                                      .rope = &rope,
                                      .ranges = h->ranges,
                                      .n_ranges = 2,
                                      .compute = compute};
}

static void end(struct rig *r, struct tsri_feed *f)
{
    tsri_feed_close(f);
    tsri_work_drain(tsri_cache_work(r->kit.cache));
    rig_close(r);
}

TEST(several_ranges_arrive_turned_in_their_blocks)
{
    static struct halves h;
    for (uint32_t pool = 0; pool < 2; pool++) {
        struct rig r;
        struct tsri_feed *f;
        rig_open(&r, pool ? "1M" : "0", false);
        halves_init(&h, &r, pool ? NULL : default_stream());
        if (pool) settle(&r);
        forget_engines(&r);
        expect(&r, r.tokens, SEGMENT, AHEAD);
        CHECK_INT(tsri_feed_open(&f, &h.desc), 0);
        for (uint32_t l = 0; l < 2; l++)
            CHECK_INT(tsri_feed_wait(f, l, 5000), 0);
        CHECK(same_images(&r));
        end(&r, f);
    }
}

TEST(closing_early_leaves_the_memory_alone)
{
    static struct halves h;
    struct rig r;
    struct tsri_feed *f;
    rig_open(&r, "0", false);
    halves_init(&h, &r, NULL);
    CHECK_INT(tsri_feed_open(&f, &h.desc), 0);
    tsri_feed_close(f);
    forget_engines(&r); /* a late copy would be seen */
    tsri_work_drain(tsri_cache_work(r.kit.cache));
    CHECK(same_images(&r));
    rig_close(&r);
}

/* The n-th call of an operation fails; true: that call was made. Whoever is told of a failure may
 * write to the slots: nothing is queued any more. */
static bool feed_with_failure(struct rig *r, struct halves *h, const char *op, uint32_t n)
{
    struct tsri_feed *f;
    uint64_t before = gpu->calls(op);
    forget_engines(r);
    expect(r, r->tokens, SEGMENT, AHEAD);
    before = gpu->calls(op);
    gpu->fail(op, n, TSR_EDEVICE);
    int e = tsri_feed_open(&f, &h->desc);
    int n_failed = e ? 0 : tsri_feed_wait(f, 1, 5000);
    gpu->fail(op, 0, 0);
    bool made = gpu->calls(op) - before >= n;
    CHECK(n_failed == 0 || n_failed == 2);
    if (n_failed) CHECK_INT(gpu->queued(), 0);
    if (!e && !n_failed) CHECK(same_images(r));
    if (!e) tsri_feed_close(f);
    CHECK_INT(gpu->queued(), 0);
    tsri_work_drain(tsri_cache_work(r->kit.cache));
    return made && (e || n_failed);
}

TEST(a_device_that_fails_costs_the_ranges_and_writes_nothing_later)
{
    static const char *const ops[] = {"stream_open", "event_open", "event_record", "event_wait",
                                      "batch_open",  "batch_set",  "scatter",      "event_sync"};
    static struct halves h;
    uint32_t n_failed = 0;
    struct rig r;
    rig_open(&r, "0", false);
    halves_init(&h, &r, default_stream());
    for (uint32_t i = 0; i < TSRI_COUNT(ops); i++)
        for (uint32_t n = 1; n < 8; n++)
            n_failed += feed_with_failure(&r, &h, ops[i], n);
    CHECK(n_failed >= 10);
    struct tsri_bulk_spare spare;
    tsri_bulk_spare_init(&spare);
    h.desc.spare = &spare; /* what is left by a failure serves the next feed, or is closed */
    for (uint32_t i = 0; i < TSRI_COUNT(ops); i++)
        for (uint32_t n = 1; n < 8; n++) {
            (void)feed_with_failure(&r, &h, ops[i], n);
            CHECK(!feed_with_failure(&r, &h, ops[i], UINT32_MAX));
        }
    tsri_bulk_spare_fini(&spare);
    rig_close(&r);
}

/* One range is here and one is below: the latter is copied by a stream that knows nothing of the
 * engine's, so what that has queued is waited for first. When this fails nothing is begun. */
TEST(a_feed_that_could_not_follow_the_engine_queues_nothing)
{
    static const struct tsr_range segments[] = {{AHEAD, SEGMENT}, {AHEAD + SEGMENT, SEGMENT}};
    struct tsr_match matches[4];
    struct tsri_feed_range ranges[2];
    struct tsri_feed *f;
    struct rig r;
    rig_open(&r, "0", true);
    CHECK_INT(tsr_cache_flush(r.kit.cache), 0);
    CHECK_INT(tsr_cache_evict(r.kit.cache, SIZE_MAX), 1);
    uint32_t *tokens = kit_tokens(9, AHEAD + 2 * SEGMENT), *second = kit_tokens(2, SEGMENT);
    CHECK_INT(kit_store_segment(&r.kit, second, SEGMENT), SEGMENT);
    memcpy(tokens + AHEAD, r.tokens, SEGMENT * sizeof *tokens);
    memcpy(tokens + AHEAD + SEGMENT, second, SEGMENT * sizeof *tokens);
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = tokens,
                                .n_tokens = AHEAD + 2 * SEGMENT,
                                .segments = segments,
                                .n_segments = 2,
                                .flags = TSR_PROMPT_SEGMENTS};
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = &r.kit.space,
                                 .n_spaces = 1,
                                 .matches = matches,
                                 .matches_max = 4};
    CHECK_INT(tsr_client_lookup(r.kit.client, &prompt, &io), 2 * SEGMENT);
    CHECK(matches[0].tier != 0 && matches[1].tier == 0);
    for (uint32_t i = 0; i < 2; i++)
        ranges[i] = (struct tsri_feed_range){.match = matches[i], .space = r.kit.space};
    struct tsri_feed_desc desc = {.cache = r.kit.cache,
                                  .prompt = &prompt,
                                  .device = r.kit.cache->device,
                                  .layout = &r.engine.layout,
                                  .rope = &rope,
                                  .ranges = ranges,
                                  .n_ranges = 2,
                                  .compute = default_stream()};
    uint64_t before = gpu->calls("scatter");
    gpu->fail("event_sync", 1, TSR_EDEVICE);
    CHECK_INT(tsri_feed_open(&f, &desc), 0);
    CHECK_INT(tsri_feed_wait(f, 0, 5000), 2);
    CHECK_INT(gpu->calls("scatter") - before, 0);
    gpu->fail("event_sync", 0, 0);
    free(tokens);
    free(second);
    end(&r, f);
}

static uint64_t opened(void)
{
    return gpu->calls("batch_open") + gpu->calls("stream_open") + gpu->calls("event_open");
}

TEST(the_next_feed_opens_nothing_on_the_device)
{
    static struct halves h;
    struct tsri_bulk_spare spare;
    struct rig r;
    rig_open(&r, "0", false);
    halves_init(&h, &r, NULL);
    tsri_bulk_spare_init(&spare);
    h.desc.spare = &spare;
    for (int i = 0; i < 3; i++) {
        struct tsri_feed *f, *beside;
        forget_engines(&r);
        expect(&r, r.tokens, SEGMENT, AHEAD);
        uint64_t before = opened();
        CHECK_INT(tsri_feed_open(&f, &h.desc), 0);
        CHECK_INT(tsri_feed_wait(f, 1, 5000), 0);
        CHECK((opened() == before) == (i > 0));
        CHECK(same_images(&r));
        if (i) { /* one that is open at the same time opens its own, and leaves it, too */
            CHECK_INT(tsri_feed_open(&beside, &h.desc), 0);
            CHECK_INT(tsri_feed_wait(beside, 1, 5000), 0);
            CHECK((opened() > before) == (i == 1));
            tsri_feed_close(beside);
        }
        tsri_feed_close(f);
    }
    /* More at a time than are kept. All have the same slots: one is waited for before the next writes. */
    struct tsri_feed *many[TSRI_BULK_SPARES + 2];
    for (int i = 0; i < 2; i++) {
        for (uint32_t n = 0; n < TSRI_COUNT(many); n++) {
            CHECK_INT(tsri_feed_open(&many[n], &h.desc), 0);
            CHECK_INT(tsri_feed_wait(many[n], 1, 5000), 0);
        }
        for (uint32_t n = 0; n < TSRI_COUNT(many); n++)
            tsri_feed_close(many[n]);
        CHECK_INT(spare.n, TSRI_BULK_SPARES);
    }
    tsri_bulk_spare_fini(&spare);
    tsri_work_drain(tsri_cache_work(r.kit.cache));
    rig_close(&r);
}

static void run_all(void)
{
    RUN(several_ranges_arrive_turned_in_their_blocks);
    RUN(closing_early_leaves_the_memory_alone);
    if (strcmp(device_name, "fakegpu") != 0) return;
    RUN(a_device_that_fails_costs_the_ranges_and_writes_nothing_later);
    RUN(a_feed_that_could_not_follow_the_engine_queues_nothing);
    RUN(the_next_feed_opens_nothing_on_the_device);
}

int main(void)
{
    return rig_each_device(run_all);
}
