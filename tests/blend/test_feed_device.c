/* test_feed_device.c - feeds into the memory of every device that is here, out of host memory of
 * one's own and of a server's, page-locked or not yet. */
#include "blend/blend.h"
#include "support/deliver_kit.h"

static struct server_kit server;

static void close_all(struct rig *r, bool served)
{
    tsri_work_drain(tsri_cache_work(r->kit.cache)); /* jobs of feeds */
    rig_close_at(r, served ? &server : NULL);
}

/* The result of the rig's segment, fed to a place `ahead` of where it was stored. */
static int feed(struct rig *r, uint32_t ahead)
{
    static struct ask a;
    ask_for(r, &a, ahead);
    struct tsri_feed_range range = {
        .match = a.hits.matches[0], .space = r->kit.space, .slots = r->slots};
    struct tsri_feed_desc desc = {.cache = r->kit.cache,
                                  .prompt = &a.prompt,
                                  .device = r->kit.cache->device,
                                  .layout = &r->engine.layout,
                                  .rope = &rope,
                                  .ranges = &range,
                                  .n_ranges = 1};
    struct tsri_feed *f;
    CHECK_INT(tsri_feed_open(&f, &desc), 0);
    for (uint32_t l = 0; l < 2; l++)
        (void)tsri_feed_wait(f, l, 5000);
    int result = tsri_feed_result(f, 0);
    tsri_feed_close(f);
    return result;
}

TEST(what_is_fed_is_what_a_delivery_brings)
{
    for (int served = 0; served < 2; served++) {
        struct rig r;
        rig_open_at(&r, served ? &server : NULL);
        forget_engines(&r);
        expect(&r, r.tokens, SEGMENT, 9);
        CHECK_INT(feed(&r, 9), 0);
        CHECK(same_images(&r));
        close_all(&r, served);
    }
}

TEST(what_cannot_be_locked_is_left_to_be_computed)
{
    const char *const options[] = {"device", device_name, NULL};
    struct rig r = {0};
    gpu->register_max(0);
    kit_open(&r.kit, options);
    CHECK(!tsri_locking_wait(r.kit.cache->locking, 1, tsri_now_ns() + LOCK_SOON_NS));
    gpu->reset();
    rig_open_engines(&r, TSR_MEMORY_DEVICE);
    r.tokens = kit_tokens(1, SEGMENT);
    CHECK_INT(kit_store_segment(&r.kit, r.tokens, SEGMENT), SEGMENT);
    forget_engines(&r);
    CHECK_INT(feed(&r, 9), TSR_EAGAIN);
    CHECK(same_images(&r));
    close_all(&r, false);
}

static void run_all(void)
{
    RUN(what_is_fed_is_what_a_delivery_brings);
    if (strcmp(device_name, "fakegpu") == 0) RUN(what_cannot_be_locked_is_left_to_be_computed);
}

int main(void)
{
    return rig_each_device(run_all);
}
