/* test_deliver_gpu.c - deliveries on a device that queues, of which any call may fail: what arrives
 * is right or is told to be missing, nothing is queued any more when a call says that it is over,
 * and nothing stays pinned. Over a cache of one's own and over a server's. */
#include "support/deliver_kit.h"

static bool served;
static struct server_kit server;

static void open_all(struct rig *r)
{
    rig_open_at(r, served ? &server : NULL);
}

static void close_all(struct rig *r)
{
    gpu->reset();
    rig_close_at(r, served ? &server : NULL);
}

/* Starts, waits for all layers and finishes; 0, or the first error. */
static int deliver_all(struct rig *r, struct ask *a)
{
    int e = tsr_delivery_start(r->delivery, &a->want, 1, 0);
    if (e < 0) return e;
    CHECK_INT(e, 1);
    e = tsr_delivery_wait_layer(r->delivery, 0);
    if (!e) e = tsr_delivery_wait_layer(r->delivery, 1);
    int finished = tsr_delivery_finish(r->delivery);
    return e ? e : finished;
}

/* Every operation waits a while: what returns too early finds it queued. */
static void slow(void)
{
    gpu->delay(1, 1, 2000);
}

/* The n-th call of an operation fails while a segment is delivered; true: that call was made. */
static bool deliver_with_failure(struct rig *r, const char *op, uint32_t n)
{
    static struct ask a;
    ask_for(r, &a, 7);
    forget_engines(r);
    expect(r, r->tokens, SEGMENT, 7);
    slow();
    uint64_t before = gpu->calls(op);
    gpu->fail(op, n, TSR_EDEVICE);
    int e = deliver_all(r, &a);
    bool made = gpu->calls(op) >= before + n;
    gpu->fail(op, 0, 0);
    if (gpu->queued()) printf("    call %u of %s failed\n", n, op);
    CHECK_INT(gpu->queued(), 0);
    CHECK_INT(e, made ? TSR_EDEVICE : 0);
    if (!e) CHECK(same_images(r));
    return made;
}

TEST(any_call_that_fails_is_told_when_nothing_is_queued_any_more)
{
    static const char *const ops[] = {"batch_set", "scatter", "event_record", "event_sync"};
    struct rig r;
    open_all(&r);
    for (size_t i = 0; i < TSRI_COUNT(ops); i++) {
        uint32_t n = 0;
        while (deliver_with_failure(&r, ops[i], n + 1))
            n++;
        CHECK(n > 0);
        check_own(&r, 2); /* and the next is served */
    }
    close_all(&r);
}

static bool collect_with_failure(struct rig *r, const char *op, uint32_t n)
{
    uint32_t *tokens = kit_tokens(50, SEGMENT);
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = r->kit.space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = tokens,
                               .n_tokens = SEGMENT};
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, r->kit.client, &s), 0);
    slow();
    uint64_t before = gpu->calls(op);
    gpu->fail(op, n, TSR_EDEVICE);
    int e = tsr_delivery_collect(r->delivery, put, r->slots, SEGMENT);
    bool made = gpu->calls(op) >= before + n;
    gpu->fail(op, 0, 0);
    CHECK_INT(gpu->queued(), 0);
    CHECK_INT(e, made ? TSR_EDEVICE : 0);
    tsr_put_abort(put);
    free(tokens);
    return made;
}

TEST(a_collect_that_fails_is_told_and_can_be_made_again)
{
    static const char *const ops[] = {"batch_set", "gather", "stream_sync"};
    struct rig r;
    open_all(&r);
    check_own(&r, 0); /* the engine now has the segment's KV in r.slots */
    for (size_t i = 0; i < TSRI_COUNT(ops); i++) {
        uint32_t n = 0;
        while (collect_with_failure(&r, ops[i], n + 1))
            n++;
        CHECK(n > 0);
    }
    uint32_t *other = kit_tokens(2, SEGMENT);
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = r.kit.space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = other,
                               .n_tokens = SEGMENT};
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, r.kit.client, &s), 0);
    CHECK_INT(tsr_delivery_collect(r.delivery, put, r.slots, SEGMENT), 0);
    CHECK_INT(tsr_put_commit(put), SEGMENT);
    static struct ask a;
    CHECK_INT(look_up(&r, &a, other, SEGMENT, 0), SEGMENT);
    forget_engines(&r);
    expect(&r, r.tokens, SEGMENT, 0); /* whose KV it is */
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    CHECK(same_images(&r));
    free(other);
    close_all(&r);
}

TEST(what_is_not_finished_is_waited_for_by_the_next_start_and_by_close)
{
    struct rig r;
    static struct ask a;
    open_all(&r);
    ask_for(&r, &a, 3);
    slow();
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 1);
    CHECK_INT(tsr_delivery_start(r.delivery, NULL, 0, 0), 0);
    CHECK_INT(gpu->queued(), 0);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 1);
    tsr_delivery_close(r.delivery);
    CHECK_INT(gpu->queued(), 0);
    struct tsr_delivery_desc config = config_of(&r);
    CHECK_INT(tsr_delivery_open(&r.delivery, r.kit.client, &config), 0);
    check_own(&r, 4);
    close_all(&r);
}

/* What the engine has queued on its own stream comes first. */
static void write_engine(void *arg)
{
    struct kv_engine *g = arg;
    memset(gpu->view(g->data), 0x3c, g->bytes);
}

TEST(a_delivery_comes_behind_what_the_engine_has_queued)
{
    struct rig r;
    static struct ask a;
    open_all(&r);
    ask_for(&r, &a, 0);
    void *native = gpu->stream_open(0);
    struct tsr_delivery_desc config = config_of(&r);
    struct tsr_delivery *own = r.delivery;
    config.compute = native;
    CHECK_INT(tsr_delivery_open(&r.delivery, r.kit.client, &config), 0);
    write_engine(&r.expected);
    expect(&r, r.tokens, SEGMENT, 0);
    slow();
    gpu->launch(native, write_engine, &r.engine);
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    gpu->stream_sync(native);
    CHECK(same_images(&r));
    tsr_delivery_close(r.delivery);
    gpu->stream_close(native);
    r.delivery = own;
    close_all(&r);
}

/* Failing opens give back what they have taken: the device's close counts. */
TEST(a_delivery_that_cannot_be_opened_leaves_nothing_behind)
{
    static const char *const ops[] = {"batch_open", "stream_open", "event_open"};
    struct rig r;
    open_all(&r);
    struct tsr_delivery_desc config = config_of(&r);
    for (size_t i = 0; i < TSRI_COUNT(ops); i++)
        for (uint32_t n = 1; n <= 3; n++) {
            struct tsr_delivery *d;
            gpu->fail(ops[i], n, TSR_ENOMEM);
            int e = tsr_delivery_open(&d, r.kit.client, &config);
            gpu->fail(ops[i], 0, 0);
            CHECK(e == TSR_ENOMEM || (e == 0 && n > 1));
            tsr_delivery_close(e ? NULL : d);
        }
    check_own(&r, 4);
    close_all(&r);
}

static void run_all(void)
{
    RUN(any_call_that_fails_is_told_when_nothing_is_queued_any_more);
    RUN(a_collect_that_fails_is_told_and_can_be_made_again);
    RUN(what_is_not_finished_is_waited_for_by_the_next_start_and_by_close);
    RUN(a_delivery_comes_behind_what_the_engine_has_queued);
    RUN(a_delivery_that_cannot_be_opened_leaves_nothing_behind);
}

int main(void)
{
    gpu = fakegpu_load();
    device_name = "fakegpu";
    if (tsri_device_open(&device, device_name, NULL) != 0) return 1;
    printf("a cache of one's own:\n");
    run_all();
    served = true;
    printf("a server's:\n");
    run_all();
    tsri_device_close(device);
    return test_end();
}
