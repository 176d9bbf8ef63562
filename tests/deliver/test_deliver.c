/* Ranges delivered into an engine's memory on a device, layer by layer, and collected from it
 * again; what is refused. On every known device that is here. */
#include "deliver/steps.h"
#include "support/deliver_kit.h"

#include <sys/wait.h>
#include <unistd.h>

TEST(a_range_of_host_memory_arrives_turned_to_its_place)
{
    struct rig r;
    rig_open(&r, "0", false);
    check_own(&r, 0);
    check_own(&r, 33);
    CHECK_INT(metric(&r, TSRI_M_deliveries), 2);
    CHECK_INT(metric(&r, TSRI_M_delivery_pool_hits), 0);
    CHECK_INT(metric(&r, TSRI_M_delivery_bytes),
              2 * SEGMENT * tsri_shape_token_bytes(&r.kit.space->shape));
    rig_close(&r);
}

TEST(a_part_of_a_match_arrives_and_nothing_else_is_written)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    ask_for(&r, &a, 5);
    /* The whole, with slots for tokens 70 .. 89 alone, and those tokens by offset. */
    int64_t slots[SEGMENT];
    for (int64_t i = 0; i < SEGMENT; i++)
        slots[i] = i >= 70 && i < 90 ? r.slots[i] : -1;
    a.want.slots = slots;
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    uint8_t *whole = kv_engine_image(&r.engine);
    forget_engines(&r);
    a.want.slots = r.slots + 70;
    a.want.offset = 70;
    a.want.n_tokens = 20;
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    uint8_t *part = kv_engine_image(&r.engine);
    CHECK(memcmp(whole, part, r.engine.bytes) == 0);
    free(whole);
    free(part);
    rig_close(&r);
}

/* What has been queued on the engine's stream, which images are not taken on, has run. */
static void sync_engine(bool fake, void *stream)
{
    if (fake) gpu->stream_sync(stream);
}

/* 1 is CUDA's name of the stream on which images are taken; the cpu has no streams. */
TEST(the_engines_stream_waits_for_a_layer_and_the_caller_does_not)
{
    struct rig r;
    static struct ask a;
    if (strcmp(device_name, "npu") == 0) SKIP("an engine's stream on npu: vllm/test_npu.py");
    rig_open(&r, "0", false);
    ask_for(&r, &a, 12);
    struct tsr_delivery_desc config = config_of(&r);
    struct tsr_delivery *own = r.delivery;
    bool fake = strcmp(device_name, "fakegpu") == 0;
    config.compute = fake ? gpu->stream_open(0) : (void *)1; // NOLINT(performance-no-int-to-ptr)
    CHECK_INT(tsr_delivery_open(&r.delivery, r.kit.client, &config), 0);
    forget_engines(&r);
    expect(&r, r.tokens, SEGMENT, 12);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 1);
    CHECK_INT(tsr_delivery_wait_layer(r.delivery, 0), 0);
    sync_engine(fake, config.compute);
    size_t first = 64 + (r.engine.bytes - 128) / 2; /* the next layer is still being written */
    uint8_t *got = kv_engine_image_of(&r.engine, first), *right = kv_engine_image(&r.expected);
    CHECK(memcmp(got, right, first) == 0);
    free(got);
    CHECK_INT(tsr_delivery_wait_layer(r.delivery, 1), 0);
    sync_engine(fake, config.compute);
    got = kv_engine_image(&r.engine);
    CHECK(memcmp(got, right, r.engine.bytes) == 0);
    free(got);
    free(right);
    CHECK_INT(tsr_delivery_wait_layer(r.delivery, 2), TSR_EINVAL);
    tsr_delivery_close(r.delivery); /* without finish */
    if (fake) gpu->stream_close(config.compute);
    r.delivery = own;
    rig_close(&r);
}

TEST(finish_brings_the_layers_that_nobody_waited_for)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    ask_for(&r, &a, 3);
    forget_engines(&r);
    expect(&r, r.tokens, SEGMENT, 3);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 1);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    CHECK(same_images(&r));
    CHECK_INT(tsr_delivery_finish(r.delivery), 0); /* nothing is started */
    rig_close(&r);
}

/* Nothing is written before begin; what is dropped before it never is, and is not pinned either
 * (rig_close counts). */
TEST(what_is_prepared_and_dropped_is_never_written)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    ask_for(&r, &a, 3);
    forget_engines(&r);
    CHECK_INT(tsri_delivery_prepare(r.delivery, &a.want, 1, 0), 1);
    CHECK(same_images(&r));
    CHECK_INT(tsri_delivery_drop(r.delivery), 0);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    CHECK(same_images(&r));
    CHECK_INT(tsri_delivery_prepare(r.delivery, &a.want, 1, 0), 1);
    struct tsr_device_event *event;
    CHECK_INT(tsri_event_open(&event, r.kit.cache->device), 0);
    CHECK_INT(tsri_event_record(r.kit.cache->device, event, NULL), 0);
    CHECK_INT(tsri_delivery_begin(r.delivery, event), 0);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    expect(&r, r.tokens, SEGMENT, 3);
    CHECK(same_images(&r));
    tsri_event_close(r.kit.cache->device, event);
    rig_close(&r);
}

/* ---- devices that fail ---- */

static int refuse_layers(struct tsr_device *d, struct tsr_device_stream *s,
                         const struct tsr_batch *batch, uint32_t first, uint32_t n)
{
    (void)d;
    (void)s;
    (void)batch;
    (void)n;
    return first ? TSR_EDEVICE : 0;
}

/* Whoever waits is told, nothing stays pinned (rig_close counts), and the next start is served. */
TEST(a_device_that_fails_on_the_way_is_told_and_lets_go)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    ask_for(&r, &a, 1);
    struct tsri_device *d = r.kit.cache->device;
    const struct tsr_device_ops *real = d->ops;
    struct tsr_device_ops lost = *real;
    lost.scatter_rotate = refuse_layers;
    d->ops = &lost;
    int e = tsr_delivery_start(r.delivery, &a.want, 1, 0);
    if (e == 1) e = tsr_delivery_wait_layer(r.delivery, 0); /* a device that does not queue */
    if (e == 0) e = tsr_delivery_finish(r.delivery);
    CHECK_INT(e, TSR_EDEVICE);
    d->ops = real;
    check_own(&r, 1);
    rig_close(&r);
}

/* ---- prefixes, and the way back ---- */

/* Ranges for every block of a prefix that is there; returns how many. */
static uint32_t ask_prefix(struct rig *r, const struct tsr_prompt *prompt, struct kit_hits *hits,
                           struct tsr_delivery_range ranges[PREFIX / 16])
{
    CHECK_INT(kit_lookup(&r->kit, prompt, 0, hits), PREFIX);
    uint32_t n = 0, at = 0;
    for (; at < PREFIX; n++) {
        const struct tsr_match *m = &hits->matches[n];
        ranges[n] = (struct tsr_delivery_range){
            .size = sizeof ranges[n], .match = m, .prompt = prompt, .slots = r->slots + at};
        at += m->n_tokens;
    }
    return n;
}

TEST(prefix_blocks_are_delivered_without_turning)
{
    struct rig r;
    rig_open_empty(&r, "1M", false);
    r.tokens = kit_tokens(5, PREFIX);
    CHECK_INT(kit_store_prefix(&r.kit, r.tokens, PREFIX), PREFIX);
    for (int round = 0; round < 2; round++) {
        struct tsr_prompt prompt = kit_prefix_prompt(r.tokens, PREFIX);
        static struct kit_hits hits;
        struct tsr_delivery_range ranges[PREFIX / 16];
        uint32_t n = ask_prefix(&r, &prompt, &hits, ranges);
        forget_engines(&r);
        expect(&r, r.tokens, PREFIX, 0);
        CHECK_INT(deliver(&r, ranges, n), n);
        CHECK(same_images(&r));
        settle(&r);
    }
    CHECK(metric(&r, TSRI_M_delivery_pool_hits) >= PREFIX / 16);
    rig_close(&r);
}

/* The engine holds the KV of the tokens at the rig's slots; an empty cache gets it from there. */
static int collect(struct rig *r, struct tsr_delivery *d, uint32_t kind, uint32_t n)
{
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = r->kit.space,
                                   .kind = kind,
                                   .tokens = r->tokens,
                                   .n_tokens = n};
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, r->kit.client, &store), 0);
    CHECK_INT(tsr_delivery_collect(d, put, r->slots, n - 1), TSR_EINVAL);
    int64_t slots[SLOTS];
    memcpy(slots, r->slots, sizeof slots);
    slots[n / 2] = -1;
    CHECK_INT(tsr_delivery_collect(d, put, slots, n), TSR_EINVAL);
    slots[n / 2] = SLOTS;
    CHECK_INT(tsr_delivery_collect(d, put, slots, n), TSR_EINVAL);
    CHECK_INT(tsr_delivery_collect(d, put, r->slots, n), 0);
    return tsr_put_commit(put);
}

TEST(a_segment_is_collected_from_the_engines_slots)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    check_own(&r, 0); /* now the engine has it */
    CHECK_INT(tsr_cache_clear(r.kit.cache, NULL), 1);
    CHECK_INT(collect(&r, r.delivery, TSR_KIND_SEGMENT, SEGMENT), SEGMENT);
    ask_for(&r, &a, 0);
    CHECK_INT(kit_load_and_check(&r.kit, &a.prompt), SEGMENT);
    rig_close(&r);
}

TEST(a_prefix_is_collected_in_as_many_batches_as_it_takes)
{
    struct rig r;
    rig_open_empty(&r, "0", false);
    r.tokens = kit_tokens(5, PREFIX);
    CHECK_INT(kit_store_prefix(&r.kit, r.tokens, PREFIX), PREFIX);
    struct tsr_prompt prompt = kit_prefix_prompt(r.tokens, PREFIX);
    static struct kit_hits hits;
    struct tsr_delivery_range ranges[PREFIX / 16];
    uint32_t n = ask_prefix(&r, &prompt, &hits, ranges);
    CHECK_INT(deliver(&r, ranges, n), n);
    CHECK_INT(tsr_cache_clear(r.kit.cache, NULL), n);
    static const uint32_t most[][2] = {{3, 8192}, {64, 33}, {64, 8}};
    for (size_t i = 0; i < TSRI_COUNT(most); i++) {
        struct tsr_delivery_desc config = config_of(&r);
        struct tsr_delivery *d;
        config.ranges_max = most[i][0];
        config.tokens_max = most[i][1];
        CHECK_INT(tsr_delivery_open(&d, r.kit.client, &config), 0);
        if (most[i][1] >= 16) {
            CHECK_INT(collect(&r, d, TSR_KIND_PREFIX, PREFIX), PREFIX);
            CHECK_INT(kit_load_and_check(&r.kit, &prompt), PREFIX);
            CHECK_INT(tsr_cache_clear(r.kit.cache, NULL), n);
        } else { /* a block is more than it can take */
            struct tsr_put *put;
            struct tsr_store_desc store = {.size = sizeof store,
                                           .space = r.kit.space,
                                           .kind = TSR_KIND_PREFIX,
                                           .tokens = r.tokens,
                                           .n_tokens = PREFIX};
            CHECK_INT(tsr_put_open(&put, r.kit.client, &store), 0);
            CHECK_INT(tsr_delivery_collect(d, put, r.slots, PREFIX), TSR_ERANGE);
            CHECK_INT(tsr_put_commit(put), TSR_EINVAL);
        }
        tsr_delivery_close(d);
    }
    rig_close(&r);
}

/* As another engine's int8 rows would be: collected, delivered, and within half a step of what was
 * there. */
TEST(int8_spaces_are_collected_quantised_and_delivered_widened)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    struct tsr_space_desc desc = kit_desc();
    desc.dtype = TSR_DTYPE_INT8;
    desc.n_heads = 1;
    desc.k_dim = tsr_int8_row_bytes(2, 16);
    desc.v_dim = desc.k_dim;
    struct tsr_space *plain = r.kit.space, *int8 = kit_space(r.kit.cache, &desc);
    struct tsr_delivery_desc config = config_of(&r);
    struct tsr_delivery *d, *own = r.delivery;
    config.space = int8;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &config), TSR_ESPACE);
    config.flags = TSR_DELIVERY_INT8;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &config), 0);
    check_own(&r, 0);
    uint8_t *before = kv_engine_image(&r.engine);
    r.kit.space = int8;
    CHECK_INT(collect(&r, d, TSR_KIND_SEGMENT, SEGMENT), SEGMENT);
    ask_for(&r, &a, 0);
    forget_engines(&r);
    r.delivery = d;
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    uint8_t *after = kv_engine_image(&r.engine);
    uint32_t n_off = 0;
    for (size_t i = 64; i + 64 < r.engine.bytes; i += 32) { /* a head: one group, one scale */
        double most = 0, sum = 0;
        for (size_t k = 0; k < 32; k += 2) {
            most = fmax(most, fabs(kv_get(before + i + k, TSR_DTYPE_F16)));
            sum += kv_get(before + i + k, TSR_DTYPE_F16); /* NaN and infinities stay in it */
        }
        double step = most / 127 + 2 * kv_ulp(most, TSR_DTYPE_F16);
        for (size_t k = 0; k < 32; k += 2) {
            double x = kv_get(before + i + k, TSR_DTYPE_F16);
            double y = kv_get(after + i + k, TSR_DTYPE_F16);
            n_off += isfinite(sum) && !(fabs(x - y) <= step);
        }
    }
    CHECK_INT(n_off, 0);
    CHECK(memcmp(before, after, r.engine.bytes) != 0);
    free(before);
    free(after);
    tsr_delivery_close(d);
    r.delivery = own;
    r.kit.space = plain;
    tsr_space_close(int8);
    rig_close(&r);
}

/* ---- what is refused ---- */

TEST(what_a_range_cannot_have_is_its_result)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    ask_for(&r, &a, 9);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 1), 0); /* another frequency set */
    CHECK_INT(a.want.result, TSR_EUNSUP);
    CHECK_INT(tsr_delivery_wait_layer(r.delivery, 0), 0);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    struct tsr_delivery_desc config = config_of(&r);
    struct tsr_delivery *d;
    config.rope = NULL;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &config), 0);
    CHECK_INT(tsr_delivery_start(d, &a.want, 1, 0), 0);
    CHECK_INT(a.want.result, TSR_EUNSUP);
    tsr_delivery_close(d);
    a.hits.matches[0].epoch++; /* of another cache, or another life of this one */
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 0);
    CHECK_INT(a.want.result, TSR_ENOENT);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    CHECK(same_images(&r));
    rig_close(&r);
}

TEST(what_is_wrong_is_told_before_anything_is_written)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    ask_for(&r, &a, 9);
    const struct tsr_delivery_range right = a.want;
    int64_t twice[SEGMENT] = {0}, beyond[SEGMENT] = {SLOTS};
    struct tsr_delivery_range wrong[6];
    for (int i = 0; i < 6; i++)
        wrong[i] = right;
    wrong[0].slots = twice;
    wrong[1].slots = beyond;
    wrong[2].slots = NULL;
    wrong[3].n_tokens = SEGMENT + 1;
    wrong[4].match = NULL;
    wrong[5].size = 0;
    for (int i = 0; i < 6; i++)
        CHECK_INT(tsr_delivery_start(r.delivery, &wrong[i], 1, 0), TSR_EINVAL);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 65, 0), TSR_ERANGE);
    CHECK_INT(tsr_delivery_start(r.delivery, NULL, 1, 0), TSR_EINVAL);
    struct tsr_delivery_range both[2] = {right, right}; /* the same slots for both */
    CHECK_INT(tsr_delivery_start(r.delivery, both, 2, 0), TSR_EINVAL);
    CHECK(same_images(&r));
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 0, 0), 0);
    rig_close(&r);
}

TEST(what_does_not_fit_the_space_is_told_at_open)
{
    struct rig r;
    rig_open_empty(&r, "0", false);
    struct tsr_delivery *d;
    struct tsr_kv_layout other = r.engine.layout;
    const struct tsr_delivery_desc right = config_of(&r);
    struct tsr_delivery_desc wrong = right;
    wrong.layout = &other;
    other.n_layers = 1;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &wrong), TSR_ESPACE);
    other.n_layers = 2;
    other.planes[0].n_heads = 1;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &wrong), TSR_ESPACE);
    wrong = right;
    wrong.flags = 8;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &wrong), TSR_EINVAL);
    wrong = right;
    wrong.space = NULL;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &wrong), TSR_ESPACE);
    wrong = right;
    wrong.size = 0;
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &wrong), TSR_EINVAL);
    wrong = right;
    wrong.tokens_max = UINT32_MAX;
    CHECK(tsr_delivery_open(&d, r.kit.client, &wrong) < 0);
    CHECK(d == NULL);
    rig_close(&r);
}

TEST(a_device_that_is_not_there_is_told_at_open)
{
    const char *const options[][5] = {{"device_pool_size", "1M", NULL}, {"device", "nosuch", NULL}};
    static const int errors[] = {TSR_ECONFIG, TSR_EDEVICE};
    static const char *const parts[] = {"option device", "device nosuch"};
    for (size_t i = 0; i < TSRI_COUNT(options); i++) {
        struct tsr_config *cfg = kit_config(options[i]);
        struct tsr_cache *c;
        CHECK_INT(tsr_cache_open(&c, cfg), errors[i]);
        CHECK_HAS(tsr_errmsg(), parts[i]);
        tsr_config_close(cfg);
    }
}

/* Without the option the cpu serves engines in host memory, and no others. */
TEST(an_engine_in_host_memory_needs_no_device)
{
    if (strcmp(device_name, "cpu") != 0) SKIP("engines in host memory are the cpu's");
    struct rig r = {.tokens = kit_tokens(1, SEGMENT)};
    struct tsr_delivery *d;
    kit_open(&r.kit, NULL);
    kv_engine_init(&r.engine, device, &engine_shape);
    struct tsr_delivery_desc config = config_of(&r);
    CHECK_INT(tsr_delivery_open(&d, r.kit.client, &config), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "option device");
    kv_engine_fini(&r.engine);
    rig_open_engines(&r, TSR_MEMORY_HOST);
    CHECK_INT(kit_store_segment(&r.kit, r.tokens, SEGMENT), SEGMENT);
    check_own(&r, 21);
    rig_close(&r);
}

TEST(a_forked_child_is_refused)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    ask_for(&r, &a, 0);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 1);
    pid_t child = fork();
    if (child == 0) {
        bool refused = tsr_delivery_start(r.delivery, &a.want, 1, 0) == TSR_EFORK &&
                       tsr_delivery_wait_layer(r.delivery, 0) == TSR_EFORK &&
                       tsr_delivery_finish(r.delivery) == TSR_EFORK;
        tsr_delivery_close(r.delivery);
        _exit(refused ? 0 : 1);
    }
    int status;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    rig_close(&r);
}

TEST(frequency_sets_texts_and_slots_are_there_for_callers)
{
    struct tsr_rope dynamic = rope;
    uint32_t set = 7;
    dynamic.scaling = TSR_ROPE_DYNAMIC;
    dynamic.factor = 4;
    dynamic.trained = 4096;
    CHECK_INT(tsr_rope_choose(&rope, 1 << 20, &set), 0);
    CHECK_INT(set, 0);
    CHECK_INT(tsr_rope_choose(&dynamic, 5000, &set), 0);
    CHECK_INT(set, 5000);
    CHECK_INT(tsr_rope_choose(NULL, 1, &set), TSR_EINVAL);
    char text[256];
    CHECK(tsr_rope_text(&rope, text, sizeof text) > 0);
    CHECK_HAS(text, "rope=plain pairing=neox dims=16");
    int64_t slots[5], blocks[2] = {9, 4};
    CHECK_INT(tsr_slots_of_blocks(slots, blocks, 2, 4, 2, 5), 0);
    CHECK(slots[0] == 38 && slots[1] == 39 && slots[2] == 16 && slots[4] == 18);
    CHECK_INT(tsr_slots_of_blocks(slots, blocks, 2, 4, 5, 5), TSR_EINVAL);
    CHECK_INT(tsr_slots_of_blocks(slots, NULL, 2, 4, 0, 5), TSR_EINVAL);
    CHECK_INT(tsr_int8_row_bytes(8, 128), 8 * 128 + 8 * 4);
    CHECK_INT(tsr_int8_row_bytes(8, 4096), 0);
}

TEST(what_is_not_page_locked_yet_is_told_and_left_alone)
{
    struct rig r;
    static struct ask a;
    rig_open(&r, "0", false);
    rig_close_gate(&r);
    ask_for(&r, &a, 5);
    forget_engines(&r);
    CHECK_INT(deliver(&r, &a.want, 1), 0);
    CHECK_INT(a.want.result, TSR_EAGAIN);
    CHECK(same_images(&r));
    CHECK_INT(metric(&r, TSRI_M_host_locked_bytes), 0);
    rig_open_gate(&r);
    CHECK_INT(metric(&r, TSRI_M_host_locked_bytes), metric(&r, TSRI_M_host_bytes));
    check_own(&r, 5);
    rig_close(&r);
    CHECK_INT(locks.n_unlocked, locks.n);
}

static void run_all(void)
{
    if (!(tsri_device_caps(device) & TSR_DEVICE_NEEDS_LOCK))
        RUN(what_is_not_page_locked_yet_is_told_and_left_alone);
    RUN(a_range_of_host_memory_arrives_turned_to_its_place);
    RUN(a_part_of_a_match_arrives_and_nothing_else_is_written);
    RUN(the_engines_stream_waits_for_a_layer_and_the_caller_does_not);
    RUN(finish_brings_the_layers_that_nobody_waited_for);
    RUN(what_is_prepared_and_dropped_is_never_written);
    RUN(a_device_that_fails_on_the_way_is_told_and_lets_go);
    RUN(prefix_blocks_are_delivered_without_turning);
    RUN(a_segment_is_collected_from_the_engines_slots);
    RUN(a_prefix_is_collected_in_as_many_batches_as_it_takes);
    RUN(int8_spaces_are_collected_quantised_and_delivered_widened);
    RUN(what_a_range_cannot_have_is_its_result);
    RUN(what_is_wrong_is_told_before_anything_is_written);
    RUN(what_does_not_fit_the_space_is_told_at_open);
    RUN(a_device_that_is_not_there_is_told_at_open);
    RUN(an_engine_in_host_memory_needs_no_device);
    RUN(a_forked_child_is_refused);
    RUN(frequency_sets_texts_and_slots_are_there_for_callers);
}

int main(void)
{
    return rig_each_device(run_all);
}
