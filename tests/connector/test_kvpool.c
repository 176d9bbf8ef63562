/* KV by slots: what a radix-tree engine does with its pool. */
#include "support/connector_kit.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <signal.h>
#include <unistd.h>

#define SLOTS 4096u
#define TOKENS_MAX 1536u

/* The kit's memory as a pool of tokens, no blocks. */
struct pool_kit {
    struct ck k;
    struct tsr_kvpool *p;
    int64_t slots[SLOTS];
};
static uint32_t tokens[TOKENS_MAX];

struct pool_options {
    const char *const *cache; /* "key", "value", .., NULL */
    const struct fakegpu_control *gpu;
    bool default_queue; /* of the gpu is the engine's */
    struct tsr_cache *shared;
};

static void open_pool_with(struct pool_kit *x, const struct pool_options *o)
{
    ck_open(&x->k, &(struct ck_options){.n_blocks = SLOTS / CK_BLOCK,
                                        .cache = o->cache,
                                        .gpu = o->gpu,
                                        .shared = o->shared});
    struct tsr_kv_layout l = x->k.workers[0]->lanes[0].mem[0].layout;
    l.block_tokens = 0;
    for (uint32_t p = 0; p < l.n_planes; p++)
        l.planes[p].block_stride = 0;
    struct tsr_space_desc space = x->k.spaces[0];
    space.block_tokens = CK_CHUNK;
    struct tsr_kvpool_desc d = {.size = sizeof d,
                                .space = &space,
                                .layout = &l,
                                .device = o->gpu ? "fakegpu" : NULL,
                                .stream = o->default_queue ? NULL : x->k.stream,
                                .staging_bytes = 64 << 10,
                                .writes_max = 4};
    CHECK_INT(tsr_kvpool_open(&x->p, x->k.cache, &d), 0);
    for (uint32_t i = 0; i < SLOTS; i++)
        x->slots[i] = (i * 37) % SLOTS; /* scattered */
    for (uint32_t i = 0; i < TOKENS_MAX; i++)
        tokens[i] = i * 7 + 1;
}

static void open_pool(struct pool_kit *x)
{
    open_pool_with(x, &(struct pool_options){0});
}

static uint64_t n_delivered(const struct pool_kit *x)
{
    return tsri_stats_read(tsri_cache_metrics(x->k.cache), TSRI_M_deliveries);
}

static void close_pool(struct pool_kit *x)
{
    tsr_kvpool_close(x->p);
    ck_close(&x->k);
}

static struct tsr_slots_desc slots_of(const struct pool_kit *x, uint32_t n, uint32_t offset,
                                      uint32_t first_slot)
{
    return (struct tsr_slots_desc){.size = sizeof(struct tsr_slots_desc),
                                   .tokens = tokens,
                                   .n_tokens = n,
                                   .offset = offset,
                                   .slots = x->slots + first_slot};
}

static void compute(struct pool_kit *x, uint32_t n, uint32_t first_slot)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        seen = ck_seen(seen, tokens[i]);
        ck_write(&x->k, 0, 0, x->slots[first_slot + i], seen);
    }
}

static bool right(const struct pool_kit *x, uint32_t first, uint32_t end, uint32_t first_slot)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < end; i++) {
        seen = ck_seen(seen, tokens[i]);
        if (i >= first && !ck_right(&x->k, 0, 0, x->slots[first_slot + i - first], seen))
            return false;
    }
    return true;
}

TEST(what_was_stored_is_loaded_into_other_slots)
{
    struct pool_kit x;
    open_pool(&x);
    CHECK_INT(tsr_kvpool_chunk_size(x.p), CK_CHUNK);
    compute(&x, 70, 0);
    struct tsr_slots_desc s = slots_of(&x, 70, 0, 0);
    CHECK_INT(tsr_kvpool_match_prefix(x.p, &s, 0), 0);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 64);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 0);
    CHECK_INT(tsr_kvpool_match_prefix(x.p, &s, 0), 64);
    struct tsr_slots_desc to = slots_of(&x, 70, 0, 100);
    CHECK_INT(tsr_kvpool_load_kv(x.p, &to), 64);
    CHECK(right(&x, 0, 64, 100));
    close_pool(&x);
}

TEST(a_prefix_that_the_engine_has_is_padded_and_not_touched)
{
    struct pool_kit x;
    uint32_t offset, n_pad;
    open_pool(&x);
    compute(&x, 64, 0);
    struct tsr_slots_desc s = slots_of(&x, 64, 0, 0);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 64);
    /* The engine has 20 tokens: the second chunk is asked for with its first 4 slots as -1. */
    tsr_kvpool_align(x.p, 20, &offset, &n_pad);
    CHECK_INT(offset, 16);
    CHECK_INT(n_pad, 4);
    int64_t padded[48];
    for (uint32_t i = 0; i < 48; i++)
        padded[i] = i < n_pad ? -1 : x.slots[100 + i];
    struct tsr_slots_desc to = slots_of(&x, 64, offset, 0);
    to.slots = padded;
    CHECK_INT(tsr_kvpool_load_kv(x.p, &to), 48);
    CHECK(right(&x, 20, 64, 104));
    for (uint32_t i = 0; i < n_pad; i++)
        CHECK(!ck_right(&x.k, 0, 0, x.slots[100 + i], ck_seen(0, tokens[0])));
    to.offset = 5;
    CHECK_INT(tsr_kvpool_load_kv(x.p, &to), TSR_EINVAL);
    close_pool(&x);
}

TEST(a_node_is_locked_until_its_write_is_done)
{
    struct pool_kit x;
    uint64_t nodes[8];
    open_pool(&x);
    compute(&x, 64, 0);
    struct tsr_slots_desc s = slots_of(&x, 64, 0, 0);
    CHECK_INT(tsr_kvpool_store_kv_start(x.p, &s, 5), 0);
    CHECK_INT(tsr_kvpool_store_kv_start(x.p, &s, 5), 0);
    CHECK(tsr_kvpool_locks(x.p, 5) <= 2);
    CHECK_INT(tsr_kvpool_locks(x.p, 6), 0);
    CHECK_INT(tsr_kvpool_drain(x.p, 10000), 0);
    CHECK_INT(tsr_kvpool_locks(x.p, 5), 0);
    CHECK_INT(tsr_kvpool_take_written(x.p, nodes, 8), 2);
    CHECK_INT(nodes[0], 5);
    CHECK_INT(tsr_kvpool_take_written(x.p, nodes, 8), 0);
    CHECK_INT(tsr_kvpool_match_prefix(x.p, &s, 0), 64);
    close_pool(&x);
}

TEST(a_writer_with_too_much_to_do_refuses_and_locks_nothing)
{
    struct pool_kit x;
    open_pool(&x);
    compute(&x, 64, 0);
    struct tsr_slots_desc s = slots_of(&x, 64, 0, 0);
    for (uint64_t node = 1; node <= 4; node++)
        CHECK_INT(tsr_kvpool_store_kv_start(x.p, &s, node), 0);
    CHECK_INT(tsr_kvpool_store_kv_start(x.p, &s, 5), TSR_EAGAIN); /* four are not taken yet */
    CHECK_INT(tsr_kvpool_locks(x.p, 5), 0);
    uint64_t nodes[8];
    CHECK_INT(tsr_kvpool_drain(x.p, 10000), 0);
    CHECK_INT(tsr_kvpool_take_written(x.p, nodes, 8), 4);
    CHECK_INT(tsr_kvpool_store_kv_start(x.p, &s, 5), 0);
    close_pool(&x); /* with a write in the queue */
}

TEST(reset_forgets_everything_and_a_lease_keeps)
{
    struct pool_kit x;
    open_pool(&x);
    compute(&x, 64, 0);
    struct tsr_slots_desc s = slots_of(&x, 64, 0, 0);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 64);
    CHECK_INT(tsr_kvpool_match_prefix(x.p, &s, 77), 64);
    CHECK_INT(tsr_cache_evict(x.k.cache, SIZE_MAX), 0);
    CHECK_INT(tsr_kvpool_release(x.p, 77), 4);
    CHECK_INT(tsr_kvpool_reset(x.p), 4);
    CHECK_INT(tsr_kvpool_match_prefix(x.p, &s, 0), 0);
    close_pool(&x);
}

TEST(another_salt_is_another_text)
{
    struct pool_kit x;
    open_pool(&x);
    compute(&x, 64, 0);
    struct tsr_slots_desc s = slots_of(&x, 64, 0, 0);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 64);
    struct tsr_extra salt = {.kind = TSR_EXTRA_SALT, .bytes = 4, .data = "tnt1"};
    s.extra = &salt;
    s.n_extra = 1;
    CHECK_INT(tsr_kvpool_match_prefix(x.p, &s, 0), 0);
    int64_t none[64];
    memset(none, 0xff, sizeof none);
    s.slots = none;
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), TSR_EINVAL); /* no slot, no KV */
    close_pool(&x);
}

TEST(kv_goes_straight_where_the_cache_has_the_device_of_the_pool)
{
    struct pool_kit x;
    static const char *const cpu[] = {"device", "cpu", NULL};
    const char *const *same[] = {NULL, cpu};
    for (size_t i = 0; i < TSRI_COUNT(same); i++) {
        open_pool_with(&x, &(struct pool_options){.cache = same[i]});
        compute(&x, 64, 0);
        struct tsr_slots_desc s = slots_of(&x, 64, 0, 0), to = slots_of(&x, 64, 0, 100);
        CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 64);
        CHECK_INT(tsr_kvpool_load_kv(x.p, &to), 64);
        CHECK(right(&x, 0, 64, 100));
        CHECK_INT(n_delivered(&x), 4);
        close_pool(&x);
    }
}

TEST(a_text_of_many_chunks_is_stored_and_loaded_whole)
{
    struct pool_kit x;
    open_pool(&x);
    compute(&x, TOKENS_MAX, 0);
    struct tsr_slots_desc s = slots_of(&x, TOKENS_MAX, 0, 0);
    struct tsr_slots_desc to = slots_of(&x, TOKENS_MAX, 0, SLOTS - TOKENS_MAX);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), TOKENS_MAX);
    CHECK_INT(tsr_kvpool_load_kv(x.p, &to), TOKENS_MAX);
    CHECK(right(&x, 0, TOKENS_MAX, SLOTS - TOKENS_MAX));
    close_pool(&x);
}

/* Texts with a common beginning are loaded, computed and stored in a cache that is too small for
 * them. Calls may fail where calls of the device do. */
static void live(struct pool_kit *x, uint32_t n_rounds, bool may_fail)
{
    uint64_t seed = 19;
    for (uint32_t round = 0; round < n_rounds; round++) {
        uint32_t n = CK_CHUNK * (1 + (uint32_t)(test_rand(&seed) % (TOKENS_MAX / CK_CHUNK)));
        uint32_t text = (uint32_t)(test_rand(&seed) % 6), first = (uint32_t)(test_rand(&seed) % 64);
        for (uint32_t i = 0; i < TOKENS_MAX; i++)
            tokens[i] = i < 160 ? i : i * 7 + text;
        struct tsr_slots_desc s = slots_of(x, n, 0, first);
        int loaded = tsr_kvpool_load_kv(x->p, &s);
        CHECK(loaded >= 0 && loaded % (int)CK_CHUNK == 0);
        CHECK(right(x, 0, (uint32_t)loaded, first));
        compute(x, n, first);
        int stored = tsr_kvpool_store_kv(x->p, &s);
        CHECK(stored >= 0 || may_fail);
        if (round % 7 == 6) CHECK(tsr_cache_evict(x->k.cache, 512 << 10) >= 0);
    }
}

TEST(what_the_cache_has_lost_ends_a_load_and_is_stored_again)
{
    struct pool_kit x;
    static const char *const small[] = {"host_size", "1M", NULL};
    open_pool_with(&x, &(struct pool_options){.cache = small});
    live(&x, 60, false);
    CHECK(n_delivered(&x) > 0);
    close_pool(&x);
}

TEST(memory_of_a_device_is_refused_on_the_cpu)
{
    struct pool_kit x;
    struct tsr_kvpool *p;
    open_pool(&x);
    struct tsr_kv_layout l = x.k.workers[0]->lanes[0].mem[0].layout;
    l.memory = TSR_MEMORY_DEVICE;
    struct tsr_kvpool_desc d = {.size = sizeof d, .space = &x.k.spaces[0], .layout = &l};
    CHECK_INT(tsr_kvpool_open(&p, x.k.cache, &d), TSR_EDEVICE);
    CHECK(!p);
    close_pool(&x);
}

/* ---- on a device that queues ---- */

static const char *const on_gpu[] = {"device", "fakegpu", NULL};
static const char *const small_on_gpu[] = {"device", "fakegpu", "host_size", "1M", NULL};

static uint64_t n_staged(const struct pool_kit *x)
{
    return tsri_stats_read(tsri_cache_metrics(x->k.cache), TSRI_M_delivery_misses);
}

/* What the engine's kernels do in their turn. */
struct kernel {
    struct pool_kit *x;
    uint32_t first_slot;
    bool right;
};
static void write_kv(void *arg)
{
    struct kernel *k = arg;
    compute(k->x, 64, k->first_slot);
}
static void read_kv(void *arg)
{
    struct kernel *k = arg;
    k->right = right(k->x, 0, 64, k->first_slot);
}

TEST(a_store_does_not_overtake_the_writers_of_its_slots)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct pool_kit x;
    open_pool_with(&x, &(struct pool_options){.cache = on_gpu, .gpu = gpu});
    WAIT_FOR(gpu->registered_bytes() >= 16 << 20);
    gpu->delay(3, 1, 2000);
    struct kernel write = {.x = &x};
    struct tsr_slots_desc s = slots_of(&x, 64, 0, 0), to = slots_of(&x, 64, 0, 100);
    for (uint32_t i = 0; i < 20; i++) {
        for (uint32_t k = 0; k < 64; k++)
            tokens[k]++;
        gpu->launch(x.k.stream, write_kv, &write);
        CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 64);
        CHECK_INT(tsr_kvpool_load_kv(x.p, &to), 64);
        CHECK(right(&x, 0, 64, 100));
    }
    CHECK_INT(n_staged(&x), 0);
    gpu->reset();
    close_pool(&x);
}

/* Readers of the slots that a load writes are in the queue. */
TEST(a_load_does_not_overtake_the_readers_of_its_slots)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct pool_kit x;
    open_pool_with(&x, &(struct pool_options){.cache = on_gpu, .gpu = gpu});
    WAIT_FOR(gpu->registered_bytes() >= 16 << 20);
    compute(&x, 64, 0);
    struct tsr_slots_desc s = slots_of(&x, 64, 0, 0);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), 64);
    struct kernel read = {.x = &x};
    gpu->delay(5, 1, 2000);
    for (uint32_t i = 0; i < 20; i++) {
        compute(&x, 64, 0);
        gpu->launch(x.k.stream, read_kv, &read);
        struct tsr_slots_desc shifted = slots_of(&x, 64, 0, 1); /* scatters over what is read */
        CHECK_INT(tsr_kvpool_load_kv(x.p, &shifted), 64);
        gpu->stream_sync(x.k.stream);
        CHECK(read.right);
        CHECK(right(&x, 0, 64, 1));
    }
    gpu->reset();
    close_pool(&x);
}

TEST(the_default_queue_of_the_device_does_as_well)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct pool_kit x;
    open_pool_with(
        &x, &(struct pool_options){.cache = small_on_gpu, .gpu = gpu, .default_queue = true});
    gpu->delay(7, 4, 50);
    live(&x, 30, false);
    gpu->reset();
    close_pool(&x);
}

TEST(pages_that_are_not_locked_yet_go_through_staging_memory)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct pool_kit x;
    gpu->register_max(0);
    open_pool_with(&x, &(struct pool_options){.cache = small_on_gpu, .gpu = gpu});
    live(&x, 30, false);
    CHECK(n_staged(&x) > 0);
    CHECK_INT(n_delivered(&x), n_staged(&x));
    /* Nothing is held that was loaded last. */
    struct tsr_slots_desc s = slots_of(&x, 160, 0, 0);
    CHECK_INT(tsr_kvpool_load_kv(x.p, &s), 160);
    CHECK(tsr_cache_evict(x.k.cache, SIZE_MAX) > 0);
    CHECK_INT(tsr_kvpool_match_prefix(x.p, &s, 0), 0);
    gpu->reset();
    close_pool(&x);
}

TEST(no_failure_of_the_device_makes_a_wrong_byte)
{
    static const char *const ops[] = {"scatter",   "gather",      "event_record", "event_wait",
                                      "batch_set", "stream_sync", "event_sync"};
    const struct fakegpu_control *gpu = fakegpu_load();
    for (size_t i = 0; i < TSRI_COUNT(ops); i++) {
        struct pool_kit x;
        open_pool_with(&x, &(struct pool_options){.cache = small_on_gpu, .gpu = gpu});
        gpu->delay(i, 4, 50);
        gpu->fail_often(ops[i], 200);
        live(&x, 25, true);
        gpu->reset();
        live(&x, 5, false);
        close_pool(&x);
    }
}

/* A server lends a client half of its memory at a time. */
TEST(more_than_a_server_lends_at_once_is_loaded_piece_by_piece)
{
    struct served server = {.pid = 0};
    struct kit kit;
    struct pool_kit x;
    static const char *const size[] = {"host_size", "2M", NULL};
    served_start(&server, size);
    served_kit_open(&kit, server.path, NULL);
    open_pool_with(&x, &(struct pool_options){.shared = kit.cache});
    compute(&x, TOKENS_MAX, 0);
    struct tsr_slots_desc s = slots_of(&x, TOKENS_MAX, 0, 0);
    struct tsr_slots_desc to = slots_of(&x, TOKENS_MAX, 0, SLOTS - TOKENS_MAX);
    CHECK_INT(tsr_kvpool_store_kv(x.p, &s), TOKENS_MAX);
    CHECK_INT(tsr_kvpool_load_kv(x.p, &to), TOKENS_MAX);
    CHECK(right(&x, 0, TOKENS_MAX, SLOTS - TOKENS_MAX));
    close_pool(&x);
    kit_close(&kit);
    served_stop(&server, SIGTERM);
    served_end(&server);
}

TEST(a_server_lends_its_memory_and_may_go_away)
{
    const struct fakegpu_control *gpu = fakegpu_load();
    struct served server = {.pid = 0};
    struct kit kit;
    struct pool_kit x;
    static const char *const size[] = {"host_size", "16M", NULL};
    served_start(&server, size);
    served_kit_open(&kit, server.path, on_gpu);
    open_pool_with(&x, &(struct pool_options){.gpu = gpu, .shared = kit.cache});
    live(&x, 20, false);
    CHECK(n_delivered(&x) > n_staged(&x));
    compute(&x, 160, 0);
    struct tsr_slots_desc s = slots_of(&x, 160, 0, 0), to = slots_of(&x, 160, 0, 1000);
    CHECK_INT(tsr_kvpool_load_kv(x.p, &to), 160);
    served_stop(&server, SIGKILL);
    CHECK_INT(tsr_kvpool_load_kv(x.p, &to), 0);
    tokens[0]++;
    CHECK(tsr_kvpool_store_kv(x.p, &s) < 0);
    close_pool(&x);
    kit_close(&kit);
    served_end(&server);
}

int main(void)
{
    RUN(what_was_stored_is_loaded_into_other_slots);
    RUN(a_prefix_that_the_engine_has_is_padded_and_not_touched);
    RUN(a_node_is_locked_until_its_write_is_done);
    RUN(a_writer_with_too_much_to_do_refuses_and_locks_nothing);
    RUN(reset_forgets_everything_and_a_lease_keeps);
    RUN(another_salt_is_another_text);
    RUN(kv_goes_straight_where_the_cache_has_the_device_of_the_pool);
    RUN(a_text_of_many_chunks_is_stored_and_loaded_whole);
    RUN(what_the_cache_has_lost_ends_a_load_and_is_stored_again);
    RUN(memory_of_a_device_is_refused_on_the_cpu);
    RUN(a_store_does_not_overtake_the_writers_of_its_slots);
    RUN(a_load_does_not_overtake_the_readers_of_its_slots);
    RUN(the_default_queue_of_the_device_does_as_well);
    RUN(pages_that_are_not_locked_yet_go_through_staging_memory);
    RUN(no_failure_of_the_device_makes_a_wrong_byte);
    RUN(more_than_a_server_lends_at_once_is_loaded_piece_by_piece);
    RUN(a_server_lends_its_memory_and_may_go_away);
    return test_end();
}
