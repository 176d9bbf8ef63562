/* test_shared_pool.c - a server's memory is mapped and page-locked once for all sessions of a cache
 * handle, and let go when the last of them is over. */
#include "served/shared_pool.h"
#include "support/fakegpu.h"
#include "support/lock_kit.h"

enum { BYTES = 4 << 20 };

static const struct fakegpu_control *gpu;

struct rig {
    struct tsri_region server; /* its memory */
    struct tsri_wire_welcome welcome;
    struct tsri_device *device;
    struct tsri_work *work;
    struct tsri_shared_pools *set;
};

static void rig_open(struct rig *x, const char *device)
{
    *x = (struct rig){.welcome = {.pool_bytes = BYTES, .page_bytes = 65536, .boot_id = 7}};
    CHECK_INT(tsri_region_init_shared(&x->server, "tessera-test", BYTES), 0);
    x->server.data[12345] = 42;
    CHECK_INT(tsri_device_open(&x->device, device, NULL), 0);
    CHECK_INT(tsri_work_open(&x->work, "test", 1, 8), 0);
}

static void rig_open_set(struct rig *x)
{
    CHECK_INT(tsri_shared_pools_open(&x->set, x->device, x->work), 0);
}

static struct tsri_shared_pool *take(struct rig *x)
{
    struct tsri_shared_pool *p = NULL;
    CHECK_INT(tsri_shared_pool_take(&p, x->set, &x->welcome, x->server.fd), 0);
    CHECK_INT(p->region.data[12345], 42);
    return p;
}

static void rig_close(struct rig *x)
{
    tsri_work_drain(x->work);
    tsri_shared_pools_close(x->set);
    tsri_work_close(x->work);
    tsri_device_close(x->device);
    tsri_region_fini(&x->server);
}

static bool wait_locked(struct tsri_shared_pool *p)
{
    return tsri_locking_wait(p->locking, SIZE_MAX, tsri_now_ns() + LOCK_SOON_NS);
}

TEST(sessions_share_one_mapping_that_is_locked_once)
{
    struct rig x;
    gpu->reset();
    rig_open(&x, "fakegpu");
    rig_open_set(&x);
    struct tsri_shared_pool *a = take(&x), *b = take(&x);
    CHECK(a == b);
    CHECK(wait_locked(a));
    CHECK_INT(gpu->registered_bytes(), BYTES);
    tsri_shared_pool_release(a);
    CHECK_INT(gpu->registered_bytes(), BYTES);
    CHECK_INT(b->region.data[12345], 42);
    tsri_shared_pool_release(b);
    tsri_work_drain(x.work);
    CHECK_INT(gpu->registered_bytes(), 0);
    a = take(&x); /* begins again */
    CHECK(wait_locked(a));
    tsri_shared_pool_release(a);
    rig_close(&x);
}

TEST(a_server_that_was_started_again_has_other_memory)
{
    struct rig x;
    gpu->reset();
    rig_open(&x, "fakegpu");
    rig_open_set(&x);
    struct tsri_shared_pool *a = take(&x);
    x.welcome.boot_id++;
    struct tsri_shared_pool *b = take(&x);
    CHECK(a != b && a->region.data != b->region.data);
    struct tsri_region other;
    CHECK_INT(tsri_region_init_shared(&other, "tessera-test", BYTES), 0);
    struct tsri_shared_pool *c;
    CHECK_INT(tsri_shared_pool_take(&c, x.set, &x.welcome, other.fd), 0);
    CHECK(c != a && c != b); /* another file, whatever the server says */
    tsri_shared_pool_release(a);
    tsri_shared_pool_release(b);
    tsri_shared_pool_release(c);
    tsri_region_fini(&other);
    rig_close(&x);
    CHECK_INT(gpu->registered_bytes(), 0);
}

TEST(releasing_does_not_wait_for_the_device)
{
    struct rig x;
    rig_open(&x, "cpu");
    lock_kit_reset(0, LOCK_CALLS);
    lock_kit_wrap(x.device);
    rig_open_set(&x);
    tsri_shared_pool_release(take(&x)); /* the device is still at the first piece */
    lock_kit_allow(LOCK_CALLS);
    rig_close(&x);
    CHECK_INT(locks.n_unlocked, locks.n);
}

TEST(a_mapping_outlives_the_set_without_its_locks)
{
    struct rig x;
    gpu->reset();
    rig_open(&x, "fakegpu");
    rig_open_set(&x);
    struct tsri_shared_pool *p = take(&x);
    CHECK(wait_locked(p));
    rig_close(&x);
    CHECK_INT(gpu->registered_bytes(), 0);
    CHECK_INT(p->region.data[12345], 42);
    tsri_shared_pool_release(p);
}

TEST(memory_that_cannot_be_locked_can_be_read)
{
    struct rig x;
    gpu->reset();
    gpu->register_max(0);
    rig_open(&x, "fakegpu");
    rig_open_set(&x);
    struct tsri_shared_pool *p = take(&x);
    CHECK(!wait_locked(p));
    CHECK_INT(tsri_locking_done(p->locking), 0);
    tsri_shared_pool_release(p);
    x.welcome.page_bytes = 3000; /* in no whole pages */
    p = take(&x);
    CHECK(!p->locking);
    tsri_shared_pool_release(p);
    rig_close(&x);
    gpu->reset();
}

TEST(nothing_is_locked_without_a_device_that_needs_it)
{
    struct rig x;
    rig_open(&x, "cpu");
    struct tsri_shared_pool *p = take(&x); /* without a set */
    CHECK(!p->locking);
    tsri_shared_pool_release(p);
    rig_open_set(&x);
    p = take(&x);
    CHECK(!p->locking);
    tsri_shared_pool_release(p);
    struct tsri_shared_pool *none;
    CHECK_INT(tsri_shared_pool_take(&none, x.set, &x.welcome, -1), TSR_EPERM);
    x.welcome.pool_bytes = 2 * BYTES; /* more than there is */
    CHECK_INT(tsri_shared_pool_take(&none, x.set, &x.welcome, x.server.fd), TSR_EPERM);
    CHECK(!none);
    tsri_shared_pool_release(none);
    rig_close(&x);
}

int main(void)
{
    gpu = fakegpu_load();
    RUN(sessions_share_one_mapping_that_is_locked_once);
    RUN(a_server_that_was_started_again_has_other_memory);
    RUN(releasing_does_not_wait_for_the_device);
    RUN(a_mapping_outlives_the_set_without_its_locks);
    RUN(memory_that_cannot_be_locked_can_be_read);
    RUN(nothing_is_locked_without_a_device_that_needs_it);
    return test_end();
}
