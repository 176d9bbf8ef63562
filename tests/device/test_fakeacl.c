/* The fake AscendCL itself: what its callers do wrong ends the process with a line that says what.
 * Each mistake is made in a child. */
#include "device/ascend.h"
#include "support/dies.h"
#include "support/fakeacl.h"

#include <dlfcn.h>

static const struct fakeacl_control *control;
static struct tsri_acl acl;

enum { BYTES = 4096 };

/* Two streams, an event, and memory of each kind. */
static struct {
    void *s[2], *event, *device, *host, *plain;
} rig;

static void rig_open(void)
{
    CHECK_INT(acl.aclInit(NULL), 0);
    CHECK_INT(acl.aclrtSetDevice(0), 0);
    for (int i = 0; i < 2; i++)
        CHECK_INT(acl.aclrtCreateStreamWithConfig(&rig.s[i], 0, 0), 0);
    CHECK_INT(acl.aclrtCreateEventExWithFlag(&rig.event, TSRI_ACL_EVENT_SYNC), 0);
    CHECK_INT(acl.aclrtMalloc(&rig.device, BYTES, TSRI_ACL_HUGE_FIRST), 0);
    CHECK_INT(acl.aclrtMallocHost(&rig.host, BYTES - 8), 0);
    rig.plain = aligned_alloc(4096, BYTES);
}

static void copy(void *dst, const void *src, size_t bytes, uint32_t kind, int stream)
{
    CHECK_INT(acl.aclrtMemcpyAsync(dst, bytes, src, bytes, kind, rig.s[stream]), 0);
}

static void up(size_t at, size_t bytes, int stream)
{
    copy((uint8_t *)rig.device + at, (uint8_t *)rig.host + at, bytes, TSRI_ACL_HOST_TO_DEVICE,
         stream);
}

struct mistake {
    void (*make)(void);
};

static void make_mistake(void *arg)
{
    const struct mistake *m = arg;
    rig_open();
    m->make();
}

static void check_caught(void (*make)(void), const char *words)
{
    check_dies(make_mistake, &(struct mistake){make}, words);
}

/* ---- copies ---- */

static void wrong_kind(void)
{
    copy(rig.device, rig.host, 64, TSRI_ACL_DEVICE_TO_HOST, 0);
}
static void overlap(void)
{
    copy((uint8_t *)rig.device + 64, rig.device, 128, TSRI_ACL_DEVICE_TO_DEVICE, 0);
}
static void odd_address(void)
{
    copy((uint8_t *)rig.device + 1024, (uint8_t *)rig.device + 8, 64, TSRI_ACL_DEVICE_TO_DEVICE, 0);
}
static void beyond(void)
{
    up(0, BYTES, 0);
}
static void plain_memory(void)
{
    copy(rig.device, rig.plain, 64, TSRI_ACL_HOST_TO_DEVICE, 0);
}
static void other_device(void)
{
    CHECK_INT(acl.aclrtSetDevice(1), 0);
    up(0, 64, 0);
}

TEST(copies_of_a_wrong_kind_place_or_device_are_caught)
{
    check_caught(wrong_kind, "wrong kind");
    check_caught(overlap, "source and target overlap");
    check_caught(odd_address, "not multiples of 64");
    check_caught(beyond, "go beyond 4088 bytes of aclrtMallocHost");
    check_caught(plain_memory, "neither device memory nor page-locked");
    check_caught(other_device, "of device 0 on device 1");
}

/* ---- order ---- */

static void no_event(void)
{
    up(0, 64, 0);
    copy(rig.host, rig.device, 64, TSRI_ACL_DEVICE_TO_HOST, 1);
}
/* Also when it has run long ago: nobody knew. */
static void no_event_later(void)
{
    up(0, 64, 0);
    usleep(20000);
    copy((uint8_t *)rig.host + 64, rig.device, 64, TSRI_ACL_DEVICE_TO_HOST, 1);
}
static void source_changes(void)
{
    control->hold(true);
    up(0, 64, 0);
    memset(rig.host, 1, 64);
    control->hold(false);
    CHECK_INT(acl.aclrtSynchronizeStream(rig.s[0]), 0);
}
static void free_in_use(void)
{
    up(0, 64, 0);
    usleep(20000);
    acl.aclrtFree(rig.device);
}
static void destroy_in_use(void)
{
    up(0, 64, 0);
    acl.aclrtDestroyStream(rig.s[0]);
}

TEST(copies_that_nothing_puts_in_order_are_caught)
{
    check_caught(no_event, "no event between");
    check_caught(no_event_later, "no event between");
    check_caught(source_changes, "changed before it ran");
    check_caught(free_in_use, "in use by what was queued");
    check_caught(destroy_in_use, "nobody has waited");
}

/* ---- memory ---- */

static void freed(void)
{
    acl.aclrtFree(rig.device);
    up(0, 64, 0);
}
static void freed_twice(void)
{
    acl.aclrtFreeHost(rig.host);
    acl.aclrtFreeHost(rig.host);
}
static void red_zone(void)
{
    ((uint8_t *)rig.host)[BYTES - 8] = 0;
    acl.aclrtFreeHost(rig.host);
}
static void touch_device(void)
{
    fputs("touched\n", stderr);
    *(volatile uint8_t *)rig.device = 1;
}
static void two_registrations(void)
{
    void *p = aligned_alloc(4096, 8192), *mapped;
    CHECK_INT(acl.aclrtHostRegister(p, 4096, 0, &mapped), 0);
    CHECK_INT(acl.aclrtHostRegister((uint8_t *)p + 4096, 4096, 0, &mapped), 0);
    copy(rig.device, (uint8_t *)p + 4000, 128, TSRI_ACL_HOST_TO_DEVICE, 0);
}
static void leak(void)
{
    control->check_closed();
}

TEST(memory_that_is_gone_or_left_or_written_past_its_end_is_caught)
{
    check_caught(freed, "or were freed");
    check_caught(freed_twice, "or was freed");
    check_caught(red_zone, "byte 4088 of 4088 bytes of aclrtMallocHost was written");
    check_caught(touch_device, "touched");
    check_caught(two_registrations, "go beyond 4096 bytes of registered memory");
    check_caught(leak, "2 streams, 1 events were not closed");
}

/* ---- as it should be ---- */

TEST(operations_run_later_in_order_and_events_order_streams)
{
    rig_open();
    memset(rig.host, 7, 64);
    control->hold(true);
    up(0, 64, 0);
    CHECK_INT(acl.aclrtRecordEvent(rig.event, rig.s[0]), 0);
    CHECK_INT(acl.aclrtStreamWaitEvent(rig.s[1], rig.event), 0);
    copy((uint8_t *)rig.host + 64, rig.device, 64, TSRI_ACL_DEVICE_TO_HOST, 1);
    uint32_t status = 9;
    CHECK_INT(acl.aclrtQueryEventStatus(rig.event, &status), 0);
    CHECK_INT(status, 0);
    CHECK_INT(((uint8_t *)rig.host)[64], 0xdb);
    control->hold(false);
    for (int i = 0; i < 2; i++)
        CHECK_INT(acl.aclrtSynchronizeStream(rig.s[i]), 0);
    CHECK(memcmp(rig.host, (uint8_t *)rig.host + 64, 64) == 0);
    CHECK_INT(acl.aclrtDestroyEvent(rig.event), 0);
    for (int i = 0; i < 2; i++)
        CHECK_INT(acl.aclrtDestroyStream(rig.s[i]), 0);
    CHECK_INT(acl.aclrtFree(rig.device), 0);
    CHECK_INT(acl.aclrtFreeHost(rig.host), 0);
    free(rig.plain);
    control->check_closed();
}

int main(void)
{
    control = fakeacl_load("libascendcl.so");
    void *library = dlopen(getenv("TESSERA_ASCENDCL_LIB"), RTLD_NOW | RTLD_LOCAL);
    if (!library) return 1;
#define FIND(name, result, parameters) *(void **)(void *)&acl.name = dlsym(library, #name);
    TSRI_ACL_NEEDED(FIND)
#undef FIND
    RUN(copies_of_a_wrong_kind_place_or_device_are_caught);
    RUN(copies_that_nothing_puts_in_order_are_caught);
    RUN(memory_that_is_gone_or_left_or_written_past_its_end_is_caught);
    RUN(operations_run_later_in_order_and_events_order_streams);
    return test_end();
}
