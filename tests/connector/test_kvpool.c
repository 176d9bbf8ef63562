/* KV by slots: what a radix-tree engine does with its pool. */
#include "support/connector_kit.h"
#include "support/test.h"

#define SLOTS 4096u
#define TOKENS_MAX 1536u

/* The kit's memory as a pool of tokens, no blocks. */
struct pool_kit {
    struct ck k;
    struct tsr_kvpool *p;
    int64_t slots[SLOTS];
};
static uint32_t tokens[TOKENS_MAX];

/* Options of the cache: "key", "value", .., NULL. */
static void open_pool_with(struct pool_kit *x, const char *const *options)
{
    ck_open(&x->k, &(struct ck_options){.n_blocks = SLOTS / CK_BLOCK, .cache = options});
    struct tsr_kv_layout l = x->k.workers[0]->lanes[0].mem[0].layout;
    l.block_tokens = 0;
    for (uint32_t p = 0; p < l.n_planes; p++)
        l.planes[p].block_stride = 0;
    struct tsr_space_desc space = x->k.spaces[0];
    space.block_tokens = CK_CHUNK;
    struct tsr_kvpool_desc d = {.size = sizeof d, .space = &space, .layout = &l, .writes_max = 4};
    CHECK_INT(tsr_kvpool_open(&x->p, x->k.cache, &d), 0);
    for (uint32_t i = 0; i < SLOTS; i++)
        x->slots[i] = (i * 37) % SLOTS; /* scattered */
    for (uint32_t i = 0; i < TOKENS_MAX; i++)
        tokens[i] = i * 7 + 1;
}

static void open_pool(struct pool_kit *x)
{
    open_pool_with(x, NULL);
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
        open_pool_with(&x, same[i]);
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

TEST(what_the_cache_has_lost_ends_a_load_and_is_stored_again)
{
    struct pool_kit x;
    static const char *const small[] = {"host_size", "1M", NULL};
    open_pool_with(&x, small);
    uint64_t seed = 19;
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t n = CK_CHUNK * (1 + (uint32_t)(test_rand(&seed) % (TOKENS_MAX / CK_CHUNK)));
        uint32_t text = (uint32_t)(test_rand(&seed) % 6), first = (uint32_t)(test_rand(&seed) % 64);
        for (uint32_t i = 0; i < TOKENS_MAX; i++)
            tokens[i] = i < 160 ? i : i * 7 + text;
        struct tsr_slots_desc s = slots_of(&x, n, 0, first);
        int loaded = tsr_kvpool_load_kv(x.p, &s);
        CHECK(loaded >= 0 && loaded % (int)CK_CHUNK == 0);
        CHECK(right(&x, 0, (uint32_t)loaded, first));
        compute(&x, n, first);
        CHECK(tsr_kvpool_store_kv(x.p, &s) >= 0);
        if (round % 7 == 6) CHECK(tsr_cache_evict(x.k.cache, 512 << 10) >= 0);
    }
    CHECK(n_delivered(&x) > 0);
    close_pool(&x);
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
    return test_end();
}
