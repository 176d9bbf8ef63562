/* The size of the device pool: in bytes, or as a share of what a device has. On the fake GPU. */
#include "support/cache_kit.h"
#include "support/fakegpu.h"
#include "support/test.h"

#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)

static const struct fakegpu_control *gpu;
static char logged[1024];

static void keep_line(void *arg, int level, const char *text)
{
    (void)arg;
    if (level <= TSR_LOG_INFO && strstr(text, "pool_share"))
        snprintf(logged, sizeof logged, "%s", text);
}

static uint64_t open_pool(struct kit *k, const char *device, const char *size, const char *share)
{
    const char *const options[] = {
        "device", device, "device_pool_size", size, "device_pool_share", share, "host_page_size",
        "16K",    NULL};
    logged[0] = 0;
    kit_open(k, options);
    (void)kit_stats(k); /* sets the gauges */
    return kit_metric(k, TSRI_M_device_pool_bytes);
}

TEST(a_share_is_of_all_memory_of_the_device)
{
    struct kit k;
    gpu->memory_max(40 * MIB);
    CHECK_INT(open_pool(&k, "fakegpu", "0", "0.25"), 10 * MIB);
    CHECK_STR(logged, "");
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_segment(&k, tokens, 48), 48);
    CHECK(kit_end(&k));
    free(tokens);
    gpu->reset();
}

TEST(the_share_of_chunked_mode_counts_while_that_is_on)
{
    struct kit k;
    for (int on = 0; on < 2; on++) {
        const char *const options[] = {"device",
                                       "fakegpu",
                                       "device_pool_chunked_share",
                                       "0.25",
                                       "host_page_size",
                                       "16K",
                                       "separator",
                                       "##",
                                       "chunked",
                                       on ? "true" : "false",
                                       NULL};
        gpu->memory_max(40 * MIB);
        kit_open(&k, options);
        (void)kit_stats(&k);
        CHECK_INT(kit_metric(&k, TSRI_M_device_pool_bytes), on ? 10 * MIB : 0);
        CHECK(kit_end(&k));
        gpu->reset();
    }
}

TEST(a_size_in_bytes_wins)
{
    struct kit k;
    gpu->memory_max(40 * MIB);
    CHECK_INT(open_pool(&k, "fakegpu", "2M", "0.25"), 2 * MIB);
    CHECK(kit_end(&k));
    CHECK_INT(open_pool(&k, "fakegpu", "0", "0"), 0);
    CHECK(kit_end(&k));
    gpu->reset();
}

/* Somebody else, such as an engine, has most of it. */
TEST(a_share_takes_no_more_than_is_free)
{
    struct kit first, k;
    gpu->memory_max(40 * MIB);
    CHECK_INT(open_pool(&first, "fakegpu", "24M", "0"), 24 * MIB);
    CHECK_INT(open_pool(&k, "fakegpu", "0", "0.5"), 15 * MIB);
    CHECK_HAS(logged, "a smaller pool");
    CHECK(kit_end(&k));
    CHECK(kit_end(&first));
    gpu->reset();
}

TEST(no_room_is_no_pool_and_no_error)
{
    struct kit first, k;
    gpu->memory_max(24 * MIB + MIB / 2);
    CHECK_INT(open_pool(&first, "fakegpu", "24M", "0"), 24 * MIB);
    CHECK_INT(open_pool(&k, "fakegpu", "0", "0.5"), 0);
    CHECK_HAS(logged, "no pool");
    CHECK(kit_end(&k));
    CHECK(kit_end(&first));
    /* The memory was taken meanwhile. */
    gpu->reset();
    gpu->fail("alloc", 1, TSR_ENOMEM);
    CHECK_INT(open_pool(&k, "fakegpu", "0", "0.01"), 0);
    CHECK_HAS(logged, "no pool");
    CHECK(kit_end(&k));
    gpu->reset();
}

TEST(without_a_device_there_is_no_pool)
{
    struct kit k;
    CHECK_INT(open_pool(&k, "", "0", "0.15"), 0);
    CHECK_HAS(logged, "no device");
    CHECK(kit_end(&k));
}

int main(void)
{
    gpu = fakegpu_load();
    tsr_log_set(keep_line, NULL, TSR_LOG_INFO);
    RUN(a_share_is_of_all_memory_of_the_device);
    RUN(the_share_of_chunked_mode_counts_while_that_is_on);
    RUN(a_size_in_bytes_wins);
    RUN(a_share_takes_no_more_than_is_free);
    RUN(no_room_is_no_pool_and_no_error);
    RUN(without_a_device_there_is_no_pool);
    return test_end();
}
