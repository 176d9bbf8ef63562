/* Both halves on a device of which any call may fail: when a load or a save is told to be over,
 * nothing of it is queued any more, whatever has become of it; what is loaded is right, and so is
 * what the cache has. Over a cache in the worker's process, and over a server's. */
#include "support/connector_kit.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <unistd.h>

enum { N_TOKENS = 64, N_BLOCKS = N_TOKENS / CK_BLOCK };

static const struct fakegpu_control *gpu;
static const char *const on_gpu[] = {"device", "fakegpu", NULL};
static uint32_t tokens[N_TOKENS + 6];
static int32_t blocks[64];
static bool served;
static struct server_kit server;
static struct kit client;

static void open_all(struct ck *k, struct ck_options o)
{
    o.gpu = gpu;
    o.n_groups = 2;
    o.cache = on_gpu;
    if (served) {
        server_open(&server, NULL);
        served_kit_open(&client, server.path, on_gpu);
        o.shared = server.k.cache;
        o.workers = client.cache;
    }
    ck_open(k, &o);
    /* A server's memory is locked when it is first delivered from. */
    ck_save_prompt(k, 1, tokens, N_TOKENS, 0);
}

static void close_all(struct ck *k)
{
    gpu->reset();
    ck_close(k);
    if (!served) return;
    kit_close(&client);
    CHECK(server_end(&server));
}

/* Everything waits before it runs: what is told too early finds it queued. */
static void slow(void)
{
    gpu->delay(1, 1, 2000);
}

/* Loads the prompt into blocks 20 and on; true: all of it arrived. */
static bool load(struct ck *k, uint64_t id)
{
    struct ck_answer answer, bad = {.n_bad = 0};
    uint32_t async;
    for (int32_t i = 0; i < N_BLOCKS; i++)
        for (uint32_t g = 0; g < 2; g++)
            ck_poison(k, g, 20 + i, id);
    ck_new(k, id, tokens, N_TOKENS + 6);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, 0, &async), N_TOKENS);
    CHECK_INT(ck_alloc(k, id, blocks + 20, N_BLOCKS + 1, N_TOKENS), 0);
    do {
        ck_step(k, NULL, &answer);
        if (answer.n_bad) bad = answer; /* perhaps a step before the request is named */
        if (async && !answer.n_received) usleep(500);
    } while (async && !answer.n_received);
    CHECK_INT(gpu->queued(), 0);
    bool whole = bad.n_bad == 0;
    uint32_t n = whole ? N_TOKENS : (uint32_t)(bad.bad[0].block - 20) * CK_BLOCK;
    for (uint32_t i = 0; i < bad.n_bad; i++)
        CHECK(bad.bad[i].block >= bad.bad[0].block);
    CHECK(ck_right_all(k, tokens, 0, n, blocks + 20));
    CHECK_INT(ck_finish(k, id, N_TOKENS + 6, n), 0);
    ck_settle(k, NULL);
    return whole;
}

static const char *const load_ops[] = {"batch_set",  "scatter",    "event_record", "event_wait",
                                       "event_sync", "event_open", "stream_sync"};

static void check_loads(uint32_t flags)
{
    struct ck k;
    uint64_t id = 100;
    open_all(&k, (struct ck_options){.flags = flags});
    for (int i = 0; i < 200 && !gpu->registered_bytes(); i++) {
        CHECK(load(&k, ++id));
        usleep(1000);
    }
    for (size_t i = 0; i < TSRI_COUNT(load_ops); i++)
        for (uint32_t n = 1; n < 20; n++) {
            uint64_t before = gpu->calls(load_ops[i]);
            slow();
            gpu->fail(load_ops[i], n, TSR_EDEVICE);
            (void)load(&k, ++id);
            bool made = gpu->calls(load_ops[i]) >= before + n;
            gpu->fail(load_ops[i], 0, 0);
            if (!made) break;
            CHECK(load(&k, ++id)); /* the next one is whole */
        }
    close_all(&k);
}

TEST(nothing_is_queued_when_a_load_within_a_step_is_over)
{
    check_loads(TSR_CONNECTOR_LOAD_SYNC);
}

TEST(nothing_is_queued_when_a_load_between_steps_is_over)
{
    check_loads(TSR_CONNECTOR_LOAD_ASYNC);
}

/* ---- saves ---- */

/* Saves a prompt that begins with `first`; when its blocks are given back they are overwritten. */
static void save(struct ck *k, uint64_t id, uint32_t first)
{
    uint32_t others[N_TOKENS];
    struct ck_answer answer = {.n_sent = 0};
    for (uint32_t i = 0; i < N_TOKENS; i++)
        others[i] = first * 1000 + i;
    ck_new(k, id, others, N_TOKENS);
    CHECK_INT(ck_alloc(k, id, blocks + 40, N_BLOCKS, 0), 0);
    ck_write_all(k, others, 0, N_TOKENS, blocks + 40);
    int held = ck_finish(k, id, N_TOKENS, N_TOKENS);
    while (held > 0 && !answer.n_sent)
        ck_step(k, NULL, &answer);
    CHECK_INT(gpu->queued(), 0);
    for (int32_t i = 0; i < N_BLOCKS; i++)
        for (uint32_t g = 0; g < 2; g++)
            ck_poison(k, g, 40 + i, id);
    ck_settle(k, NULL);
}

/* What is found of it is right. */
static void check_saved(struct ck *k, uint64_t id, uint32_t first)
{
    uint32_t others[N_TOKENS + 6], async;
    struct ck_answer answer;
    for (uint32_t i = 0; i < N_TOKENS + 6; i++)
        others[i] = first * 1000 + i;
    ck_new(k, id, others, N_TOKENS + 6);
    int found = tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, 0, &async);
    CHECK(found >= 0 && found <= N_TOKENS);
    if (found) {
        CHECK_INT(ck_alloc(k, id, blocks + 20, N_BLOCKS + 1, (uint32_t)found), 0);
        ck_settle(k, &answer);
        CHECK_INT(answer.n_bad, 0);
        CHECK(ck_right_all(k, others, 0, (uint32_t)found, blocks + 20));
    }
    CHECK_INT(ck_finish(k, id, N_TOKENS + 6, (uint32_t)found), 0);
    ck_settle(k, NULL);
}

TEST(nothing_is_queued_when_a_save_has_read_its_blocks)
{
    static const char *const ops[] = {"batch_set",  "gather",     "event_record",
                                      "event_wait", "event_open", "stream_sync"};
    struct ck k;
    uint64_t id = 100;
    uint32_t text = 10;
    open_all(&k, (struct ck_options){.flags = TSR_CONNECTOR_LOAD_SYNC});
    for (size_t i = 0; i < TSRI_COUNT(ops); i++)
        for (uint32_t n = 1; n < 20; n++) {
            uint64_t before = gpu->calls(ops[i]);
            slow();
            gpu->fail(ops[i], n, TSR_EDEVICE);
            save(&k, ++id, ++text);
            bool made = gpu->calls(ops[i]) >= before + n;
            gpu->fail(ops[i], 0, 0);
            check_saved(&k, ++id, text);
            if (!made) break;
        }
    close_all(&k);
}

/* ---- a device that is gone ---- */

TEST(a_lost_device_costs_loads_and_saves_and_nothing_else)
{
    struct ck k;
    open_all(&k, (struct ck_options){.flags = TSR_CONNECTOR_LOAD_SYNC});
    gpu->lose(true);
    CHECK(!load(&k, 2));
    save(&k, 3, 5);
    gpu->lose(false);
    CHECK(load(&k, 4));
    check_saved(&k, 5, 5);
    close_all(&k);
}

static void run_all(void)
{
    RUN(nothing_is_queued_when_a_load_within_a_step_is_over);
    RUN(nothing_is_queued_when_a_load_between_steps_is_over);
    RUN(nothing_is_queued_when_a_save_has_read_its_blocks);
    RUN(a_lost_device_costs_loads_and_saves_and_nothing_else);
}

int main(void)
{
    gpu = fakegpu_load();
    for (uint32_t i = 0; i < N_TOKENS + 6; i++)
        tokens[i] = i;
    for (int32_t i = 0; i < 64; i++)
        blocks[i] = i;
    printf("a cache of one's own:\n");
    run_all();
    served = true;
    printf("a server's:\n");
    run_all();
    return test_end();
}
