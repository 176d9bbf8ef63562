/* test_pre_computed.c - the calls of a blend server, each over a real server and over a cache of
 * one's own: what was computed ahead is found wherever it stands, comes turned to its place, and
 * what was blended is found by nobody who did not ask for it. */
#include "support/deliver_kit.h"
#include "support/served_kit.h"

#include <tessera/deliver.h>

static bool served;
static struct server_kit server;
static struct rig r;
static struct tsr_kv_cache *kv;

static void open_all(void)
{
    r = (struct rig){0};
    if (served) {
        server_open(&server, NULL);
        served_kit_open(&r.kit, server.path, NULL);
    } else {
        kit_open(&r.kit, NULL);
    }
    rig_open_engines(&r, TSR_MEMORY_HOST);
    struct tsr_delivery_desc config = config_of(&r);
    CHECK_INT(tsr_kv_cache_register(&kv, r.kit.client, &config), 0);
    r.tokens = kit_tokens(1, SEGMENT);
}

static void close_all(void)
{
    tsr_kv_cache_unregister(kv);
    rig_close_engines(&r);
    free(r.tokens);
    if (served)
        kit_close(&r.kit);
    else
        CHECK(kit_end(&r.kit));
    if (served) CHECK(server_end(&server));
}

/* The engine computes the segment alone: its KV stands in r.slots. */
static void compute(const uint32_t *tokens)
{
    forget_engines(&r);
    expect(&r, tokens, SEGMENT, 0);
    memcpy(r.engine.data, r.expected.data, r.engine.bytes);
}

static int store_ahead(const uint32_t *tokens)
{
    struct tsr_store_desc s = {.size = sizeof s, .tokens = tokens, .n_tokens = SEGMENT};
    compute(tokens);
    return tsr_kv_cache_store(kv, &s, r.slots);
}

/* A prompt in which the segment stands behind `ahead` tokens that nobody knows, and before some. */
static uint32_t prompt_tokens[SLOTS];
static struct tsr_prompt prompt_of(const uint32_t *tokens, uint32_t ahead)
{
    memset(prompt_tokens, 0x55, sizeof prompt_tokens);
    memcpy(prompt_tokens + ahead, tokens, SEGMENT * sizeof *tokens);
    return (struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                               .tokens = prompt_tokens,
                               .n_tokens = ahead + SEGMENT + 9};
}

static uint64_t n_leased(void)
{
    return served ? server_metric(&server, TSRI_M_leased_entries)
                  : tsri_stats_read(r.kit.cache->stats, TSRI_M_leased_entries);
}

TEST(what_is_stored_is_found_at_any_offset_with_leases_and_retrieved_to_its_place)
{
    open_all();
    CHECK_INT(store_ahead(r.tokens), SEGMENT);
    CHECK_INT(store_ahead(r.tokens), 0); /* there already */
    static const uint32_t ahead[] = {0, 3, 77, 200};
    for (size_t i = 0; i < TSRI_COUNT(ahead); i++) {
        struct tsr_match matches[8];
        struct tsr_prompt p = prompt_of(r.tokens, ahead[i]);
        struct tsr_lookup_desc l = {
            .size = sizeof l, .matches = matches, .matches_max = 8, .request_id = 5};
        CHECK_INT(tsr_kv_cache_lookup(kv, &p, &l), SEGMENT);
        CHECK_INT(l.n_matches, 1);
        CHECK_INT(matches[0].prompt_offset, ahead[i]);
        CHECK_INT(n_leased(), 1);
        struct tsr_delivery_range range = {
            .size = sizeof range, .match = &matches[0], .prompt = &p, .slots = r.slots};
        forget_engines(&r);
        expect(&r, r.tokens, SEGMENT, ahead[i]);
        CHECK_INT(tsr_kv_cache_retrieve(kv, &range, 1, 0), 1);
        CHECK(same_images(&r));
        range.position_offset = 11; /* the prompt itself stands behind other text */
        forget_engines(&r);
        expect(&r, r.tokens, SEGMENT, ahead[i] + 11);
        CHECK_INT(tsr_kv_cache_retrieve(kv, &range, 1, 0), 1);
        CHECK(same_images(&r));
        tsr_client_release(r.kit.client, 5);
    }
    if (served) CHECK(server_wait_leased(&server, 0));
    CHECK_INT(n_leased(), 0);
    close_all();
}

TEST(one_round_trip_finds_every_text_of_a_prompt)
{
    enum { N = 6 };
    open_all();
    static uint32_t long_prompt[N * (SEGMENT + 10)];
    memset(long_prompt, 0x66, sizeof long_prompt);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t *tokens = kit_tokens(10 + i, SEGMENT);
        CHECK_INT(store_ahead(tokens), SEGMENT);
        memcpy(long_prompt + (N - 1 - i) * (SEGMENT + 10), tokens, SEGMENT * sizeof *tokens);
        free(tokens);
    }
    struct tsr_match matches[2 * N];
    struct tsr_prompt p = {
        .size = sizeof p, .tokens = long_prompt, .n_tokens = TSRI_COUNT(long_prompt)};
    struct tsr_lookup_desc l = {
        .size = sizeof l, .matches = matches, .matches_max = 2 * N, .request_id = 9};
    uint64_t before = served ? server_metric(&server, TSRI_M_requests) : 0;
    CHECK_INT(tsr_kv_cache_lookup(kv, &p, &l), N * SEGMENT);
    if (served) CHECK_INT(server_metric(&server, TSRI_M_requests), before + 1);
    CHECK_INT(l.n_matches, N);
    CHECK_INT(n_leased(), N);
    CHECK(tsr_client_release(r.kit.client, 9) >= 0);
    l.request_id = 0; /* without a lease it could be gone by the time it is wanted */
    CHECK_INT(tsr_kv_cache_lookup(kv, &p, &l), TSR_EINVAL);
    close_all();
}

TEST(what_was_blended_is_found_by_its_recipe_and_never_as_exact)
{
    open_all();
    struct tsr_range range;
    struct tsr_store_desc s = {.size = sizeof s, .tokens = r.tokens, .n_tokens = SEGMENT};
    compute(r.tokens);
    CHECK_INT(tsr_kv_cache_store_final(kv, &s, r.slots), TSR_EINVAL); /* how was it made? */
    s.recipe = "query 5%";
    s.recipe_bytes = 8;
    CHECK_INT(tsr_kv_cache_store_final(kv, &s, r.slots), SEGMENT);
    CHECK_INT(kit_find_prefix(&r.kit, r.tokens, SEGMENT), 0);
    CHECK_INT(kit_find_segment(&r.kit, r.tokens, SEGMENT), 0);
    struct tsr_match match;
    struct tsr_prompt any = prompt_of(r.tokens, 0);
    struct tsr_lookup_desc l = {
        .size = sizeof l, .matches = &match, .matches_max = 1, .request_id = 3};
    CHECK_INT(tsr_kv_cache_lookup(kv, &any, &l), 0);
    any.flags = TSR_PROMPT_OTHER;
    CHECK_INT(tsr_kv_cache_lookup(kv, &any, &l), 0);
    struct tsr_prompt p = kit_segment_prompt(r.tokens, SEGMENT, &range);
    p.flags = TSR_PROMPT_BLENDED;
    p.recipe = "query 15%";
    p.recipe_bytes = 9;
    CHECK_INT(tsr_kv_cache_lookup(kv, &p, &l), 0);
    p.recipe = "query 5%";
    p.recipe_bytes = 8;
    CHECK_INT(tsr_kv_cache_lookup(kv, &p, &l), SEGMENT);
    CHECK_INT(match.kind, TSR_KIND_BLENDED);
    struct tsr_delivery_range want = {
        .size = sizeof want, .match = &match, .prompt = &p, .slots = r.slots};
    forget_engines(&r);
    expect(&r, r.tokens, SEGMENT, 0);
    CHECK_INT(tsr_kv_cache_retrieve(kv, &want, 1, 0), 1);
    CHECK(same_images(&r));
    CHECK(tsr_client_release(r.kit.client, 3) >= 0);
    close_all();
}

TEST(mistakes_are_told)
{
    open_all();
    struct tsr_kv_cache *none;
    struct tsr_delivery_desc config = config_of(&r);
    CHECK_INT(tsr_kv_cache_register(&none, NULL, &config), TSR_EINVAL);
    config.space = NULL;
    CHECK_INT(tsr_kv_cache_register(&none, r.kit.client, &config), TSR_ESPACE);
    struct tsr_store_desc s = {
        .size = sizeof s, .kind = TSR_KIND_PREFIX, .tokens = r.tokens, .n_tokens = SEGMENT};
    CHECK_INT(tsr_kv_cache_store(kv, &s, r.slots), TSR_EINVAL);
    s.kind = 0;
    CHECK_INT(tsr_kv_cache_store(kv, &s, NULL), TSR_EINVAL);
    r.slots[3] = -1; /* a token that stands nowhere */
    CHECK_INT(tsr_kv_cache_store(kv, &s, r.slots), TSR_EINVAL);
    CHECK_INT(kit_find_segment(&r.kit, r.tokens, SEGMENT), 0);
    close_all();
}

TEST(a_server_that_is_gone_is_a_miss)
{
    if (!served) SKIP("there is no server here");
    open_all();
    CHECK_INT(store_ahead(r.tokens), SEGMENT);
    struct tsr_match match;
    struct tsr_prompt p = prompt_of(r.tokens, 5);
    struct tsr_lookup_desc l = {
        .size = sizeof l, .matches = &match, .matches_max = 1, .request_id = 3};
    CHECK_INT(tsr_kv_cache_lookup(kv, &p, &l), SEGMENT);
    tsr_server_close(server.server);
    struct tsr_delivery_range want = {
        .size = sizeof want, .match = &match, .prompt = &p, .slots = r.slots};
    CHECK_INT(tsr_kv_cache_retrieve(kv, &want, 1, 0), 0);
    CHECK_INT(want.result, TSR_ENOENT);
    CHECK_INT(tsr_kv_cache_lookup(kv, &p, &l), 0);
    CHECK_INT(store_ahead(r.tokens), TSR_EAGAIN);
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_config_set(cfg, "server_socket", server.path), 0);
    CHECK_INT(tsr_server_open(&server.server, server.k.cache, cfg), 0);
    tsr_config_close(cfg);
    close_all();
}

static void run_all(void)
{
    RUN(what_is_stored_is_found_at_any_offset_with_leases_and_retrieved_to_its_place);
    RUN(one_round_trip_finds_every_text_of_a_prompt);
    RUN(what_was_blended_is_found_by_its_recipe_and_never_as_exact);
    RUN(mistakes_are_told);
}

int main(void)
{
    device_name = "cpu";
    if (tsri_device_open(&device, device_name, NULL) != 0) return 1;
    printf("a cache of one's own:\n");
    run_all();
    served = true;
    printf("a server's:\n");
    run_all();
    RUN(a_server_that_is_gone_is_a_miss);
    tsri_device_close(device);
    return test_end();
}
