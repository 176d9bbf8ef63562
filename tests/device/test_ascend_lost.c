/* The device "npu" when waits fail over the fake AscendCL: a failed call leaves nothing running, or
 * the device is lost. A lost device refuses everything and leaves what may be in use: the fake stops
 * the process when memory, a stream or an event goes that nobody has waited for. */
#include "ascend_kit.h"

static bool is_lost(struct tsri_device *d)
{
    struct tsr_device_info info = {.size = sizeof info};
    int e = tsri_device_info(d, &info);
    if (!e) return false;
    CHECK_INT(e, TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "npu: a failure left work");
    return true;
}

/* Whatever it is asked for. */
static void check_refuses(struct tsri_device *d)
{
    uint8_t a[8] = {0}, b[8];
    struct tsr_copy copy = {b, a, sizeof a};
    struct tsr_device_stream *s;
    struct tsr_device_event *e;
    void *p;
    CHECK(is_lost(d));
    CHECK_INT(tsri_device_alloc(d, &p, 64), TSR_EDEVICE);
    CHECK_INT(tsri_device_host_alloc(d, &p, 64), TSR_EDEVICE);
    CHECK_INT(tsri_device_copy(d, NULL, &copy, 1), TSR_EDEVICE);
    CHECK_INT(tsri_stream_open(&s, d, NULL, 0), TSR_EDEVICE);
    CHECK_INT(tsri_stream_sync(d, NULL), TSR_EDEVICE);
    CHECK_INT(tsri_event_open(&e, d), TSR_EDEVICE);
}

/* The end of a device that may be lost: what it left is forgotten. */
static bool end(struct tsri_device *d)
{
    bool lost = is_lost(d);
    if (lost) check_refuses(d);
    tsri_device_close(d);
    if (lost) CHECK(acl->forget() > 0);
    acl->check_closed();
    return lost;
}

/* ---- a failed move ---- */

struct scene {
    struct kv_engine engine;
    struct kv_cells cells;
    struct tsri_batch *batch;
    int64_t slots[N_TOKENS];
    struct tsr_kv_run run;
    struct tsr_rope rope;
    struct tsri_batch_desc desc;
    void *moved;
};

/* Moves through buffers: rotated, or int8 cells in device memory. */
static void scene_init(struct scene *s, struct tsri_device *d, bool gather)
{
    struct tsr_batch_limits limits = {2, 200, 100, 1000};
    s->rope = (struct tsr_rope){
        .size = sizeof s->rope, .pairing = TSR_ROPE_NEOX, .dims = 64, .theta = 10000};
    kv_engine_init(&s->engine, d, &plain_shape);
    kv_cells_init(&s->cells, d, &s->engine.layout, N_TOKENS, CELL, gather, 3);
    kv_cells_numbers(&s->cells, &s->engine.layout, 4);
    kv_slots(s->slots, N_TOKENS, plain_shape.n_slots, 77);
    s->moved = gather ? kv_cells_to_device(&s->cells, 4) : NULL;
    s->run = (struct tsr_kv_run){&s->cells.cells, s->slots, 0, N_TOKENS, gather ? 0 : 9, 0, 0};
    s->desc = (struct tsri_batch_desc){gather ? TSRI_BATCH_GATHER : TSRI_BATCH_SCATTER,
                                       1,
                                       &s->engine.layout,
                                       &s->run,
                                       gather ? NULL : &s->rope,
                                       0};
    CHECK_INT(tsri_batch_open(&s->batch, d, &limits), 0);
    CHECK_INT(tsri_batch_set(s->batch, NULL, &s->desc), 0);
}

static int scene_move(struct scene *s, bool gather)
{
    return gather ? tsri_batch_gather(s->batch, 0, 0) : tsri_batch_scatter(s->batch, 0, 0);
}

static void scene_fini(struct scene *s, struct tsri_device *d)
{
    tsri_batch_close(s->batch);
    tsri_device_free(d, s->moved);
    kv_cells_fini(&s->cells);
    kv_engine_fini(&s->engine);
}

/* From the n-th call on everything fails, or only that one. Nobody waits before it all goes: after an
 * error nothing may be running. */
static void fail_moves(const char *variant, bool gather, bool all, uint32_t *n_failed,
                       uint32_t *n_lost)
{
    for (uint64_t n = 1; n < 60; n += n < 20 ? 1 + 3 * TEST_SANITIZED : 7) {
        struct tsri_device *d = open_device("npu", variant);
        struct scene s;
        scene_init(&s, d, gather);
        acl->lazy(true); /* so that asking for an event is one call */
        acl->reset();
        (all ? acl->fail_from : acl->fail)(n);
        int e = scene_move(&s, gather);
        acl->reset();
        acl->lazy(false);
        *n_failed += e != 0;
        if (!e && !is_lost(d)) CHECK_INT(tsri_stream_sync(d, NULL), 0);
        scene_fini(&s, d);
        *n_lost += end(d);
    }
}

TEST(after_one_failure_nothing_of_a_move_runs)
{
    uint32_t n_failed = 0, n_lost = 0;
    for (int k = 0; k < 4; k++)
        fail_moves(k & 1 ? "small" : NULL, k & 2, false, &n_failed, &n_lost);
    CHECK(n_failed > (TEST_SANITIZED ? 0 : 5));
    CHECK_INT(n_lost, 0);
}

TEST(a_device_whose_calls_all_fail_is_lost_and_frees_nothing)
{
    uint32_t n_failed = 0, n_lost = 0;
    for (int k = 0; k < 4; k++)
        fail_moves(k & 1 ? "small" : "operators_plain", k & 2, true, &n_failed, &n_lost);
    CHECK(n_lost > 5);
}

/* ---- waits ---- */

/* Buffers take turns: the fourth part asks for the event of the first. */
TEST(an_event_that_cannot_be_asked_loses_the_device)
{
    struct tsri_device *d = open_device("npu", NULL);
    static uint8_t plain[4096];
    void *p;
    CHECK_INT(tsri_device_alloc(d, &p, sizeof plain), 0);
    struct tsr_copy copies[] = {{p, plain, 64},
                                {(uint8_t *)p + 64, plain, 64},
                                {(uint8_t *)p + 128, plain, 64},
                                {(uint8_t *)p + 192, plain, 64}};
    setenv("FAKEACL_FAILS", "aclrtQueryEventStatus", 1);
    CHECK_INT(tsri_device_copy(d, NULL, copies, TSRI_COUNT(copies)), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "npu: an event failed: error 507899");
    unsetenv("FAKEACL_FAILS");
    check_refuses(d);
    tsri_device_free(d, p);
    CHECK(end(d));
}

/* Buffers whose events cannot be asked stay when the device goes. */
TEST(buffers_that_may_be_in_use_stay)
{
    struct tsri_device *d = open_device("npu", NULL);
    static uint8_t plain[4096];
    void *p;
    CHECK_INT(tsri_device_alloc(d, &p, sizeof plain), 0);
    struct tsr_copy copy = {p, plain, sizeof plain};
    CHECK_INT(tsri_device_copy(d, NULL, &copy, 1), 0);
    setenv("FAKEACL_FAILS", "aclrtQueryEventStatus", 1);
    tsri_device_close(d);
    unsetenv("FAKEACL_FAILS");
    /* what was not freed here, three buffers with their events, and the stream */
    CHECK_INT(acl->forget(), 1 + 6 + 1);
    acl->check_closed();
}

/* A queued copy, then a close: it waits, and if it cannot, the stream stays. */
static void close_a_busy_stream(bool fails)
{
    struct tsri_device *d = open_device("npu", NULL);
    struct tsr_device_stream *s;
    void *p, *locked;
    CHECK_INT(tsri_stream_open(&s, d, NULL, 0), 0);
    CHECK_INT(tsri_device_alloc(d, &p, 4096), 0);
    CHECK_INT(tsri_device_host_alloc(d, &locked, 4096), 0);
    struct tsr_copy copy = {p, locked, 4096};
    CHECK_INT(tsri_device_copy(d, s, &copy, 1), 0);
    if (fails) setenv("FAKEACL_FAILS", "aclrtSynchronizeStream", 1);
    tsri_stream_close(d, s);
    unsetenv("FAKEACL_FAILS");
    tsri_device_free(d, p);
    tsri_device_host_free(d, locked);
    CHECK_INT(end(d), fails);
}

TEST(closing_a_stream_waits_for_it_or_leaves_it)
{
    close_a_busy_stream(false);
    close_a_busy_stream(true);
}

static void close_a_busy_device(bool fails)
{
    struct tsri_device *d = open_device("npu", NULL);
    void *p, *locked = aligned_alloc(4096, 4096);
    CHECK_INT(tsri_device_alloc(d, &p, 4096), 0);
    CHECK_INT(tsri_device_host_register(d, locked, 4096), 0);
    struct tsr_copy copy = {p, locked, 4096};
    CHECK_INT(tsri_device_copy(d, NULL, &copy, 1), 0);
    if (fails) setenv("FAKEACL_FAILS", "aclrtSynchronizeStream", 1);
    CHECK_INT(tsri_stream_sync(d, NULL), fails ? TSR_EDEVICE : 0);
    unsetenv("FAKEACL_FAILS");
    tsri_device_free(d, p);
    tsri_device_host_unregister(d, locked);
    CHECK_INT(end(d), fails);
    free(locked);
}

TEST(memory_stays_registered_when_nobody_can_wait)
{
    close_a_busy_device(false);
    close_a_busy_device(true);
}

TEST(top_k_leaves_its_memory_when_nobody_can_wait)
{
    struct tsri_device *d = open_device("npu", NULL);
    void *scores, *out;
    CHECK_INT(tsri_device_alloc(d, &scores, 400), 0);
    CHECK_INT(tsri_device_alloc(d, &out, 40), 0);
    struct tsr_top_k t = {scores, out, 100, 10};
    setenv("FAKEACL_FAILS", "aclrtSynchronizeStream", 1);
    CHECK_INT(tsri_device_top_k(d, NULL, &t), TSR_EDEVICE);
    unsetenv("FAKEACL_FAILS");
    tsri_device_free(d, scores);
    tsri_device_free(d, out);
    CHECK(end(d));
}

/* With the self-test of operators. */
TEST(a_device_that_is_lost_while_it_opens_is_refused)
{
    uint32_t n_lost = 0;
    for (uint64_t n = 1; n < 3000;
         n += n < 40 ? 1 + 5 * TEST_SANITIZED : 97 + 500 * TEST_SANITIZED) {
        struct tsr_device_desc desc = {.size = sizeof desc, .variant = "operators"};
        struct tsri_device *d;
        acl->reset();
        acl->fail_from(n);
        int e = tsri_device_open(&d, "npu", &desc);
        acl->reset();
        if (!e) tsri_device_close(d);
        n_lost += acl->forget() > 0;
    }
    CHECK(n_lost > 2);
    acl->check_closed();
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(after_one_failure_nothing_of_a_move_runs);
    RUN(a_device_whose_calls_all_fail_is_lost_and_frees_nothing);
    RUN(an_event_that_cannot_be_asked_loses_the_device);
    RUN(buffers_that_may_be_in_use_stay);
    RUN(closing_a_stream_waits_for_it_or_leaves_it);
    RUN(memory_stays_registered_when_nobody_can_wait);
    RUN(top_k_leaves_its_memory_when_nobody_can_wait);
    RUN(a_device_that_is_lost_while_it_opens_is_refused);
    return test_end();
}
