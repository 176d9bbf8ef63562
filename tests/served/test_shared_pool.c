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
    struct tsri_shared_pool *p = take(&x);
    lock_kit_wait_begun(1);
    tsri_shared_pool_release(p); /* the device is still at the first piece */
    lock_kit_allow(LOCK_CALLS);
    rig_close(&x);
    CHECK_INT(locks.n_unlocked, 1);
}

static void *allow_soon(void *unused)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    lock_kit_allow(LOCK_CALLS);
    return unused;
}

/* The device is closed next. */
TEST(closing_the_set_waits_until_what_was_released_is_unlocked)
{
    struct rig x;
    pthread_t thread;
    rig_open(&x, "cpu");
    lock_kit_reset(0, LOCK_CALLS);
    lock_kit_wrap(x.device);
    rig_open_set(&x);
    struct tsri_shared_pool *p = take(&x);
    lock_kit_wait_begun(1);
    tsri_shared_pool_release(p);
    CHECK_INT(pthread_create(&thread, NULL, allow_soon, NULL), 0);
    tsri_shared_pools_close(x.set);
    CHECK_INT(locks.n_unlocked, 1);
    pthread_join(thread, NULL);
    x.set = NULL;
    rig_close(&x);
}

/* ---- memory of our own ---- */

static struct tsri_shared_pool *give(struct tsri_shared_pools *set)
{
    struct tsri_region own;
    struct tsri_shared_pool *p = NULL;
    CHECK_INT(tsri_region_init_shared(&own, "tessera-test", BYTES), 0);
    CHECK_INT(tsri_shared_pool_give(&p, set, &own), 0);
    CHECK(!own.data);
    p->region.data[12345] = 7;
    return p;
}

TEST(memory_of_our_own_is_locked_when_it_is_needed)
{
    struct rig x;
    gpu->reset();
    rig_open(&x, "fakegpu");
    rig_open_set(&x);
    struct tsri_shared_pool *a = give(x.set), *b = give(x.set);
    CHECK(a != b);
    CHECK_INT(gpu->registered_bytes(), 0);
    CHECK_INT(tsri_shared_pool_lock(a, tsri_now_ns() + LOCK_SOON_NS), 0);
    CHECK_INT(tsri_shared_pool_lock(a, tsri_now_ns() + LOCK_SOON_NS), 0);
    CHECK_INT(gpu->registered_bytes(), BYTES);
    CHECK_INT(gpu->calls("host_register"), 1);
    gpu->register_max(BYTES);
    CHECK_INT(tsri_shared_pool_lock(b, tsri_now_ns() + LOCK_SOON_NS), TSR_EUNSUP);
    tsri_shared_pool_release(b);
    rig_close(&x);
    CHECK_INT(gpu->registered_bytes(), 0);
    CHECK_INT(a->region.data[12345], 7); /* outlives the set, too */
    tsri_shared_pool_release(a);
    b = give(NULL);
    CHECK_INT(tsri_shared_pool_lock(b, tsri_now_ns() + LOCK_SOON_NS), TSR_EUNSUP);
    tsri_shared_pool_release(b);
    gpu->reset();
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
    RUN(closing_the_set_waits_until_what_was_released_is_unlocked);
    RUN(memory_of_our_own_is_locked_when_it_is_needed);
    RUN(a_mapping_outlives_the_set_without_its_locks);
    RUN(memory_that_cannot_be_locked_can_be_read);
    RUN(nothing_is_locked_without_a_device_that_needs_it);
    return test_end();
}
