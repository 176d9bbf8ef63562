/* The fake GPU itself: what its callers do wrong ends the process with a line that says what, and
 * calls fail when they are told to. Each mistake is made in a child. */
#include "kv.h"
#include "support/dies.h"
#include "support/fakegpu.h"

#include <sys/mman.h>

static const struct fakegpu_control *gpu;

/* A device with an engine of one layout, cells in host_alloc memory and a batch. */
struct rig {
    struct tsri_device *d;
    struct tsr_device_stream *stream;
    struct kv_engine engine;
    struct kv_cells cells;
    struct tsri_batch *batch;
    int64_t slots[32];
    struct tsr_kv_run run;
};

static void rig_open(struct rig *r)
{
    static const struct kv_shape shape = {KV_SPLIT, TSR_DTYPE_BF16, 2, 1, 16, 16, 0, 16, 16, 64};
    struct tsr_batch_limits limits = {4, 64, 64, 256};
    memset(r, 0, sizeof *r);
    CHECK_INT(tsri_device_open(&r->d, "fakegpu", NULL), 0);
    CHECK_INT(tsri_stream_open(&r->stream, r->d, NULL, 0), 0);
    kv_engine_init(&r->engine, r->d, &shape);
    kv_cells_init(&r->cells, r->d, &r->engine.layout, 32, 8, false, 5);
    CHECK_INT(tsri_batch_open(&r->batch, r->d, &limits), 0);
    for (int64_t i = 0; i < 32; i++)
        r->slots[i] = 63 - i;
    r->run = (struct tsr_kv_run){&r->cells.cells, r->slots, 0, 32, 0, 0, 0};
}

static void rig_close(struct rig *r)
{
    tsri_batch_close(r->batch);
    kv_cells_fini(&r->cells);
    kv_engine_fini(&r->engine);
    tsri_stream_close(r->d, r->stream);
    tsri_device_close(r->d);
}

static int rig_set(struct rig *r)
{
    struct tsri_batch_desc desc = {
        .direction = TSRI_BATCH_SCATTER, .n_runs = 1, .layout = &r->engine.layout, .runs = &r->run};
    return tsri_batch_set(r->batch, r->stream, &desc);
}

/* Sets and queues all layers. */
static void rig_scatter(struct rig *r)
{
    CHECK_INT(rig_set(r), 0);
    CHECK_INT(tsri_batch_scatter(r->batch, 0, 0), 0);
}

static void *pages(size_t n)
{
    void *p = mmap(NULL, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* The cells' bytes moved to other memory. */
static void move_cells(struct rig *r, uint8_t *to)
{
    size_t n = (size_t)r->cells.cells.n_layers * r->cells.cells.n_planes * r->cells.cells.n_cells;
    for (size_t i = 0; i < n; i++)
        r->cells.planes[i] = to + ((uint8_t *)r->cells.planes[i] - r->cells.data);
}

struct mistake {
    void (*make)(struct rig *r);
};

static void make_mistake(void *arg)
{
    const struct mistake *m = arg;
    struct rig r;
    rig_open(&r);
    m->make(&r);
}

static void check_caught(void (*make)(struct rig *r), const char *words)
{
    check_dies(make_mistake, &(struct mistake){make}, words);
}

/* ---- memory ---- */

static void plain_cells(struct rig *r)
{
    move_cells(r, pages(64));
    rig_scatter(r);
}

static void freed_cells(struct rig *r)
{
    CHECK_INT(rig_set(r), 0);
    tsri_device_host_free(r->d, r->cells.data);
    CHECK_INT(tsri_batch_scatter(r->batch, 0, 0), 0);
}

static void half_registered(struct rig *r)
{
    uint8_t *p = pages(64);
    CHECK_INT(tsri_device_host_register(r->d, p, 4096), 0);
    CHECK_INT(tsri_device_host_register(r->d, p + 4096, 63 * 4096), 0);
    move_cells(r, p + 4096 - 16);
    rig_scatter(r);
}

static void beyond_the_allocation(struct rig *r)
{
    r->engine.layout.planes[1].base = r->engine.data + r->engine.bytes - 1536;
    rig_scatter(r);
}

TEST(cells_that_are_not_page_locked_in_one_piece_are_caught)
{
    check_caught(plain_cells, "scatter: 256 bytes");
    check_caught(plain_cells, "neither device memory nor page-locked");
    check_caught(freed_cells, "were host_alloc and are no more");
    check_caught(half_registered, "go beyond the 258048 bytes of registered memory");
}

TEST(slots_beyond_an_allocation_are_caught)
{
    check_caught(beyond_the_allocation, "of device memory");
}

static void registered_twice(struct rig *r)
{
    uint8_t *p = pages(4);
    CHECK_INT(tsri_device_host_register(r->d, p, 2 * 4096), 0);
    (void)!tsri_device_host_register(r->d, p + 4096, 2 * 4096);
}

static void unregistered_twice(struct rig *r)
{
    uint8_t *p = pages(1);
    CHECK_INT(tsri_device_host_register(r->d, p, 4096), 0);
    tsri_device_host_unregister(r->d, p);
    tsri_device_host_unregister(r->d, p);
}

static void unmapped_before_unregistered(struct rig *r)
{
    uint8_t *p = pages(1);
    CHECK_INT(tsri_device_host_register(r->d, p, 4096), 0);
    munmap(p, 4096);
    tsri_device_host_unregister(r->d, p);
}

TEST(registrations_that_overlap_or_end_in_the_wrong_order_are_caught)
{
    check_caught(registered_twice, "are registered memory already");
    check_caught(unregistered_twice, "which it is not");
    check_caught(unmapped_before_unregistered, "unmapped before");
}

static void touch_device_memory(struct rig *r)
{
    fputs("touched\n", stderr);
    r->engine.data[0] = 1;
}

TEST(the_host_cannot_touch_device_memory)
{
    check_caught(touch_device_memory, "touched");
}

/* ---- too early ---- */

static void unregister_while_queued(struct rig *r)
{
    uint8_t *p = pages(64);
    CHECK_INT(tsri_device_host_register(r->d, p, 64 * 4096), 0);
    move_cells(r, p);
    gpu->hold(true);
    rig_scatter(r);
    tsri_device_host_unregister(r->d, p);
}

static void free_while_queued(struct rig *r)
{
    gpu->hold(true);
    rig_scatter(r);
    tsri_device_free(r->d, r->engine.data);
}

static void change_slots(struct rig *r)
{
    gpu->hold(true);
    rig_scatter(r);
    r->slots[4] = 1;
    gpu->hold(false);
    (void)!tsri_stream_sync(r->d, r->stream);
}

static void change_cells(struct rig *r)
{
    CHECK_INT(rig_set(r), 0);
    r->cells.planes[2] = r->cells.data;
    CHECK_INT(tsri_batch_scatter(r->batch, 0, 0), 0);
}

TEST(memory_and_tables_that_go_before_the_stream_has_passed_are_caught)
{
    check_caught(unregister_while_queued, "while a queued scatter uses them");
    check_caught(free_while_queued, "while a queued scatter uses them");
    check_caught(change_slots, "slots of run 0 are not what the batch was set with");
    check_caught(change_cells, "cells of run 0 are not what the batch was set with");
}

static void leave_a_stream(struct rig *r)
{
    tsri_batch_close(r->batch);
    kv_cells_fini(&r->cells);
    kv_engine_fini(&r->engine);
    tsri_device_close(r->d);
}

static void leave_memory(struct rig *r)
{
    tsri_batch_close(r->batch);
    kv_engine_fini(&r->engine);
    tsri_stream_close(r->d, r->stream);
    tsri_device_close(r->d);
}

TEST(what_is_left_at_close_is_caught)
{
    check_caught(leave_a_stream, "1 streams, 0 events, 0 batches were not closed");
    check_caught(leave_memory, "of host_alloc");
}

/* ---- as it should be ---- */

TEST(operations_run_later_and_in_order)
{
    struct rig r;
    rig_open(&r);
    struct tsr_device_event *e;
    CHECK_INT(tsri_event_open(&e, r.d), 0);
    gpu->hold(true);
    uint8_t *before = malloc(r.engine.bytes);
    memcpy(before, gpu->view(r.engine.data), r.engine.bytes);
    rig_scatter(&r);
    CHECK_INT(tsri_event_record(r.d, e, r.stream), 0);
    CHECK(gpu->queued() > 0);
    CHECK(memcmp(before, gpu->view(r.engine.data), r.engine.bytes) == 0);
    gpu->hold(false);
    CHECK_INT(tsri_event_sync(r.d, e), 0);
    CHECK(memcmp(before, gpu->view(r.engine.data), r.engine.bytes) != 0);
    free(before);
    tsri_event_close(r.d, e);
    rig_close(&r);
}

/* A wait is for the mark that it saw. */
TEST(an_event_recorded_again_does_not_hold_up_who_waited_before)
{
    struct rig r;
    rig_open(&r);
    struct tsr_device_event *e;
    struct tsr_device_stream *other;
    CHECK_INT(tsri_event_open(&e, r.d), 0);
    CHECK_INT(tsri_stream_open(&other, r.d, NULL, 0), 0);
    CHECK_INT(tsri_event_sync(r.d, e), 0); /* never recorded: passed */
    CHECK_INT(tsri_event_record(r.d, e, r.stream), 0);
    CHECK_INT(tsri_event_wait(r.d, e, other), 0);
    gpu->hold(true);
    rig_scatter(&r);
    CHECK_INT(tsri_event_record(r.d, e, r.stream), 0);
    CHECK_INT(tsri_stream_sync(r.d, other), 0);
    gpu->hold(false);
    CHECK_INT(tsri_event_sync(r.d, e), 0);
    tsri_stream_close(r.d, other);
    tsri_event_close(r.d, e);
    rig_close(&r);
}

TEST(calls_fail_when_they_are_told_to)
{
    struct rig r;
    rig_open(&r);
    gpu->fail("batch_set", 2, TSR_ENOMEM);
    CHECK_INT(rig_set(&r), 0);
    CHECK_INT(rig_set(&r), TSR_ENOMEM);
    CHECK_HAS(tsr_errmsg(), "fakegpu: batch_set: failed as it was told to");
    CHECK_INT(rig_set(&r), 0);
    gpu->fail("event_open", 1, TSR_EDEVICE);
    struct tsr_device_event *e;
    CHECK_INT(tsri_event_open(&e, r.d), TSR_EDEVICE);
    gpu->reset();
    rig_close(&r);
}

TEST(registering_fails_beyond_a_limit)
{
    struct rig r;
    rig_open(&r);
    uint8_t *p = pages(4);
    gpu->register_max(2 * 4096);
    CHECK_INT(tsri_device_host_register(r.d, p, 4096), 0);
    CHECK_INT(tsri_device_host_register(r.d, p + 4096, 2 * 4096), TSR_ENOMEM);
    CHECK_INT(tsri_device_host_register(r.d, p + 4096, 4096), 0);
    CHECK_INT(gpu->registered_bytes(), 2 * 4096);
    tsri_device_host_unregister(r.d, p);
    tsri_device_host_unregister(r.d, p + 4096);
    gpu->reset();
    munmap(p, 4 * 4096);
    rig_close(&r);
}

TEST(a_lost_device_runs_nothing_and_fails_everything)
{
    struct rig r;
    rig_open(&r);
    gpu->hold(true);
    rig_scatter(&r);
    gpu->lose(true);
    CHECK_INT(tsri_stream_sync(r.d, r.stream), TSR_EDEVICE);
    CHECK_INT(rig_set(&r), TSR_EDEVICE);
    rig_close(&r);
    gpu->reset();
}

static void set_flag(void *arg)
{
    *(int *)arg += 1;
}

TEST(an_engine_has_a_stream_of_its_own)
{
    struct rig r;
    int flag = 0;
    rig_open(&r);
    void *native = gpu->stream_open(0);
    struct tsr_device_stream *s;
    struct tsr_device_event *e;
    CHECK_INT(tsri_stream_open(&s, r.d, native, 0), 0);
    CHECK_INT(tsri_event_open(&e, r.d), 0);
    gpu->launch(native, set_flag, &flag);
    CHECK_INT(tsri_event_record(r.d, e, s), 0);
    CHECK_INT(tsri_event_sync(r.d, e), 0);
    CHECK_INT(flag, 1);
    tsri_event_close(r.d, e);
    tsri_stream_close(r.d, s);
    gpu->stream_close(native);
    rig_close(&r);
}

int main(void)
{
    gpu = fakegpu_load();
    RUN(cells_that_are_not_page_locked_in_one_piece_are_caught);
    RUN(slots_beyond_an_allocation_are_caught);
    RUN(registrations_that_overlap_or_end_in_the_wrong_order_are_caught);
    RUN(the_host_cannot_touch_device_memory);
    RUN(memory_and_tables_that_go_before_the_stream_has_passed_are_caught);
    RUN(what_is_left_at_close_is_caught);
    RUN(operations_run_later_and_in_order);
    RUN(an_event_recorded_again_does_not_hold_up_who_waited_before);
    RUN(calls_fail_when_they_are_told_to);
    RUN(registering_fails_beyond_a_limit);
    RUN(a_lost_device_runs_nothing_and_fails_everything);
    RUN(an_engine_has_a_stream_of_its_own);
    return test_end();
}
