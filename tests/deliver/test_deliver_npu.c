/* test_deliver_npu.c - the sections of the plan that support for Ascend began with, on the device "npu"
 * over the fake AscendCL: its configuration, two pools with budgets, freeze mode, and loading that
 * holds nobody. Its MLA layouts are in device/test_ascend_ops.c and in vllm/test_npu.py. */
#include "support/deliver_kit.h"

#define GIB ((uint64_t)1 << 30) /* what the fake has of device memory */

static const struct fakeacl_control *acl;

/* As in docs/ascend.md, with less host memory. */
static void open_plan(struct rig *r, const char *frozen)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "device: npu\nenable_chunk_cache: true\nchunk_separator: \"##\"\n"
                     "chunk_size: 256\nmax_local_cpu_size: 0.015625\n"
                     "chunk_cache_gpu_memory_utilization: 0.15\nenable_freeze_mode: %s\n",
                     frozen);
    *r = (struct rig){0};
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_config_load_text(cfg, text, (size_t)n, "plan.yaml"), 0);
    CHECK_STR(tsri_config_options(cfg)->separator, "##"); /* for connectors, not for the cache */
    kit_open_config(&r->kit, cfg);
    tsr_config_close(cfg);
    rig_wait_locked(r);
    rig_open_engines(r, TSR_MEMORY_DEVICE);
}

static void store_own(struct rig *r)
{
    r->tokens = kit_tokens(1, SEGMENT);
    CHECK_INT(kit_store_segment(&r->kit, r->tokens, SEGMENT), SEGMENT);
}

TEST(the_plans_configuration_gives_two_pools_within_their_budgets)
{
    struct rig r;
    open_plan(&r, "false");
    const struct tsri_options *o = tsri_cache_options(r.kit.cache);
    CHECK(o->chunked && !o->frozen);
    CHECK_INT(o->chunk_size, 256);
    CHECK_INT(o->host_size, (uint64_t)16 << 20);
    uint64_t pool = metric(&r, TSRI_M_device_pool_bytes);
    CHECK(pool > GIB / 100 * 14 && pool <= GIB / 100 * 15);
    store_own(&r);
    check_own(&r, 0);
    settle(&r);
    CHECK_INT(metric(&r, TSRI_M_device_pool_entries), 1);
    CHECK(metric(&r, TSRI_M_device_pool_used_bytes) <= pool);
    check_own(&r, 19); /* from the pool, at another position */
    rig_close(&r);
}

TEST(a_frozen_cache_delivers_and_refuses_stores)
{
    struct rig r;
    open_plan(&r, "false");
    store_own(&r);
    uint32_t *other = kit_tokens(2, SEGMENT);
    tsr_cache_freeze(r.kit.cache, 1);
    CHECK_INT(kit_store_segment(&r.kit, other, SEGMENT), TSR_EFROZEN);
    check_own(&r, 0);
    check_own(&r, 19);
    tsr_cache_freeze(r.kit.cache, 0);
    CHECK_INT(kit_store_segment(&r.kit, other, SEGMENT), SEGMENT);
    check_segment(&r, other, SEGMENT, 7);
    free(other);
    rig_close(&r);
}

TEST(a_cache_that_starts_frozen_takes_nothing_until_it_is_told_to)
{
    struct rig r;
    open_plan(&r, "true");
    r.tokens = kit_tokens(1, SEGMENT);
    CHECK_INT(kit_store_segment(&r.kit, r.tokens, SEGMENT), TSR_EFROZEN);
    tsr_cache_freeze(r.kit.cache, 0);
    CHECK_INT(kit_store_segment(&r.kit, r.tokens, SEGMENT), SEGMENT);
    check_own(&r, 0);
    rig_close(&r);
}

/* The device moves nothing while it is held: a load that waited for it would never return. */
TEST(a_load_returns_before_anything_has_arrived)
{
    struct rig r;
    static struct ask a;
    open_plan(&r, "false");
    store_own(&r);
    ask_for(&r, &a, 0);
    forget_engines(&r);
    expect(&r, r.tokens, SEGMENT, 0);
    uint8_t *before = kv_engine_image(&r.engine);
    acl->hold(true);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 1);
    CHECK(memcmp(acl->view(r.engine.data), before, r.engine.bytes) == 0);
    acl->hold(false);
    for (uint32_t l = 0; l < 2; l++)
        CHECK_INT(tsr_delivery_wait_layer(r.delivery, l), 0);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    CHECK(same_images(&r));
    free(before);
    rig_close(&r);
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    device_name = "npu";
    if (tsri_device_open(&device, device_name, NULL) != 0) return 1;
    RUN(the_plans_configuration_gives_two_pools_within_their_budgets);
    RUN(a_frozen_cache_delivers_and_refuses_stores);
    RUN(a_cache_that_starts_frozen_takes_nothing_until_it_is_told_to);
    RUN(a_load_returns_before_anything_has_arrived);
    tsri_device_close(device);
    acl->check_closed();
    return test_end();
}
