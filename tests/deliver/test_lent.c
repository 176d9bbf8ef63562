/* test_lent.c - deliveries out of a server's memory, on every device that is here: what arrives is
 * what a cache of one's own delivers, what is collected is stored, and a session that ends on the
 * way is told. */
#include "support/deliver_kit.h"

static struct server_kit server;
static struct fake_tier_plan plan;

/* A rig whose cache the server has, with a segment in it. */
static void open_with(struct rig *r, const char *staging)
{
    const char *const options[] = {"device", device_name, "server_staging", staging, NULL};
    fake_tier_plan_init(&plan);
    server_open_tiers(&server, NULL, &plan, 1);
    rig_open_served(r, server.path, options);
    r->tokens = kit_tokens(1, SEGMENT);
    CHECK_INT(kit_store_segment(&r->kit, r->tokens, SEGMENT), SEGMENT);
}

static void open_all(struct rig *r)
{
    open_with(r, "1M");
}

static void close_all(struct rig *r)
{
    rig_close_served(r);
    CHECK(server_end(&server));
    fake_tier_plan_fini(&plan);
}

TEST(what_the_server_has_arrives_turned_to_its_place)
{
    struct rig r;
    open_all(&r);
    static const uint32_t ahead[] = {0, 1, 5, 100};
    for (size_t i = 0; i < TSRI_COUNT(ahead); i++)
        check_own(&r, ahead[i]);
    CHECK(server_wait_leased(&server, 0)); /* given back each time */
    close_all(&r);
}

TEST(part_of_a_match_arrives_and_the_rest_is_left_alone)
{
    struct rig r;
    static struct ask a;
    open_all(&r);
    ask_for(&r, &a, 9);
    forget_engines(&r);
    a.want.offset = 70;
    a.want.n_tokens = 25; /* over the end of a cell would be 128: from the second cell alone */
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    /* The same tokens, delivered as all of it, stand at slots 70 further on. */
    uint8_t *part = kv_engine_image(&r.engine);
    forget_engines(&r);
    a.want.offset = 0;
    a.want.n_tokens = 0;
    int64_t slots[SEGMENT];
    for (uint32_t i = 0; i < SEGMENT; i++)
        slots[i] = i >= 70 && i < 95 ? r.slots[i - 70] : -1;
    a.want.slots = slots;
    CHECK_INT(deliver(&r, &a.want, 1), 1);
    uint8_t *all = kv_engine_image(&r.engine);
    CHECK(memcmp(part, all, r.engine.bytes) == 0);
    free(part);
    free(all);
    close_all(&r);
}

TEST(what_only_a_tier_of_the_server_has_is_fetched)
{
    struct rig r;
    open_all(&r);
    CHECK_INT(tsr_cache_flush(r.kit.cache), 0);
    CHECK_INT(kit_evict_all(&server.k), 1);
    check_own(&r, 3);
    CHECK_INT(server_metric(&server, TSRI_M_promotions), 1);
    close_all(&r);
}

TEST(what_is_collected_from_slots_is_stored)
{
    struct rig r;
    struct kit_hits hits;
    struct tsr_range range;
    open_all(&r);
    check_own(&r, 0); /* the engine now has the segment's KV in r.slots */
    uint32_t *other = kit_tokens(2, SEGMENT);
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = r.kit.space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = other,
                               .n_tokens = SEGMENT};
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, r.kit.client, &s), 0);
    CHECK_INT(tsr_delivery_collect(r.delivery, put, r.slots, SEGMENT - 1), TSR_EINVAL);
    CHECK_INT(tsr_delivery_collect(r.delivery, put, r.slots, SEGMENT), 0);
    CHECK_INT(tsr_put_commit(put), SEGMENT);
    struct tsr_prompt p = kit_segment_prompt(other, SEGMENT, &range);
    CHECK_INT(kit_lookup(&r.kit, &p, 0, &hits), SEGMENT);
    size_t bytes = SEGMENT * tsr_space_token_bytes(r.kit.space);
    struct tsr_view view = {.data = malloc(bytes), .bytes = bytes};
    struct tsr_load_desc load = {
        .size = sizeof load, .space = r.kit.space, .match = &hits.matches[0], .view = view};
    CHECK_INT(tsr_client_load(r.kit.client, &load, 1), 1);
    uint8_t *want = malloc(bytes);
    kit_fill(r.kit.space, kit_seed(r.kit.space), r.tokens, SEGMENT, want);
    CHECK(memcmp(want, view.data, bytes) == 0);
    free(want);
    free(view.data);
    free(other);
    close_all(&r);
}

/* The server's memory may hold anything by then: who asks at the end is told. */
TEST(a_session_that_ends_on_the_way_is_told_and_the_next_one_works)
{
    struct rig r;
    static struct ask a;
    open_all(&r);
    ask_for(&r, &a, 7);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 1);
    CHECK_INT(tsr_delivery_wait_layer(r.delivery, 0), 0);
    tsr_server_close(server.server);
    CHECK_INT(tsr_delivery_finish(r.delivery), TSR_ENOENT);
    CHECK_INT(tsr_delivery_start(r.delivery, &a.want, 1, 0), 0); /* nobody there: to be computed */
    CHECK_INT(a.want.result, TSR_ENOENT);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_config_set(cfg, "server_socket", server.path), 0);
    CHECK_INT(tsr_server_open(&server.server, server.k.cache, cfg), 0);
    tsr_config_close(cfg);
    WAIT_FOR(look_up(&r, &a, r.tokens, SEGMENT, 7) != 0);
    rig_wait_locked(&r);
    check_own(&r, 7); /* another session, and another mapping of its memory */
    close_all(&r);
}

TEST(ranges_that_are_gone_are_left_out)
{
    struct rig r;
    static struct ask a;
    open_all(&r);
    ask_for(&r, &a, 7);
    struct tsr_delivery_range ranges[3] = {a.want, a.want, a.want};
    struct tsr_match gone = *a.want.match, foreign = gone;
    gone.entry ^= (uint64_t)1 << 40; /* of another generation */
    foreign.epoch++;                 /* of another life */
    ranges[0].match = &gone;
    ranges[2].match = &foreign;
    CHECK_INT(tsr_delivery_start(r.delivery, ranges, 3, 0), 1);
    CHECK_INT(ranges[0].result, TSR_ENOENT);
    CHECK_INT(ranges[1].result, 0);
    CHECK_INT(ranges[2].result, TSR_ENOENT);
    CHECK_INT(tsr_delivery_finish(r.delivery), 0);
    close_all(&r);
}

/* Two deliveries of a client, and one of another client of the same cache handle. */
TEST(the_memory_of_a_server_is_locked_once)
{
    struct rig r;
    open_all(&r);
    struct rig other = {.kit = r.kit};
    CHECK_INT(tsr_client_open(&other.kit.client, r.kit.cache), 0);
    rig_open_engines(&other, TSR_MEMORY_DEVICE);
    struct tsr_delivery_desc config = config_of(&r);
    struct tsr_delivery *first = r.delivery;
    CHECK_INT(tsr_delivery_open(&r.delivery, r.kit.client, &config), 0);
    check_own(&r, 5);
    other.tokens = r.tokens;
    check_own(&other, 6);
    CHECK_INT(gpu->registered_bytes(), tsri_cache_memory(server.k.cache).n_pages *
                                           (uint64_t)tsri_cache_memory(server.k.cache).page_bytes);
    tsr_delivery_close(first);
    rig_close_engines(&other);
    tsr_client_close(other.kit.client);
    check_own(&r, 7);
    close_all(&r);
    CHECK_INT(gpu->registered_bytes(), 0);
}

/* The engine's KV of the segment, as another one's. */
static void collect(struct rig *r, uint64_t seed)
{
    uint32_t *other = kit_tokens(seed, SEGMENT);
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = r->kit.space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = other,
                               .n_tokens = SEGMENT};
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, r->kit.client, &s), 0);
    CHECK_INT(tsr_delivery_collect(r->delivery, put, r->slots, SEGMENT), 0);
    CHECK_INT(tsr_put_commit(put), SEGMENT);
    free(other);
}

/* Then the device is closed, and what was page-locked for it must not be. */
TEST(a_handle_of_the_servers_memory_may_outlive_the_cache)
{
    struct rig r;
    struct tsr_shared shared = {.size = sizeof shared};
    open_all(&r);
    collect(&r, 2);
    CHECK_INT(tsr_shared_open(r.kit.client, &shared), 0);
    close_all(&r);
    CHECK_INT(gpu->registered_bytes(), 0);
    CHECK_INT(((const uint8_t *)shared.data)[shared.bytes - 1], 0); /* still mapped */
    tsr_shared_close(&shared);
}

/* Rows lie anywhere in it, and a copy must not go from one piece into the next. */
TEST(a_large_staging_area_is_locked_in_one_piece)
{
    struct rig r;
    open_with(&r, "130M");
    uint64_t n = gpu->calls("host_register"), bytes = gpu->registered_bytes();
    collect(&r, 2);
    CHECK_INT(gpu->calls("host_register"), n + 1);
    CHECK_INT(gpu->registered_bytes(), bytes + (130u << 20));
    close_all(&r);
}

static void run_all(void)
{
    if (strcmp(device_name, "fakegpu") == 0) {
        RUN(the_memory_of_a_server_is_locked_once);
        RUN(a_handle_of_the_servers_memory_may_outlive_the_cache);
        RUN(a_large_staging_area_is_locked_in_one_piece);
    }
    RUN(what_the_server_has_arrives_turned_to_its_place);
    RUN(part_of_a_match_arrives_and_the_rest_is_left_alone);
    RUN(what_only_a_tier_of_the_server_has_is_fetched);
    RUN(what_is_collected_from_slots_is_stored);
    RUN(a_session_that_ends_on_the_way_is_told_and_the_next_one_works);
    RUN(ranges_that_are_gone_are_left_out);
}

int main(void)
{
    return rig_each_device(run_all);
}
