/* test_lane.c - requests that workers carry out: stores are complete before they can be found, half
 * of one vanishes with its session, what is staged lies in the staging area, and while a worker
 * waits for a tier everybody else is served. */
#include "daemon/daemon.h"

#include "support/fake_tier.h"
#include "support/test.h"
#include "support/wire_client.h"

#include <sys/socket.h>
#include <sys/stat.h>

static struct tsri_request q;

static struct tsri_request *fresh(uint16_t type)
{
    memset(&q, 0, offsetof(struct tsri_request, extra));
    q.type = type;
    return &q;
}

struct ready {
    struct server_kit s;
    struct wire_client c;
    uint32_t space;
};

static void ready_join(struct ready *r)
{
    struct tsr_space_desc desc = kit_desc();
    CHECK(wc_open(&r->c, r->s.path, 1 << 20));
    int space = wc_space(&r->c, &desc);
    CHECK(space >= 0);
    r->space = (uint32_t)space;
}

static void ready_open(struct ready *r, const char *const *options)
{
    server_open(&r->s, options);
    ready_join(r);
}

static bool ready_end(struct ready *r)
{
    wc_close(&r->c);
    return server_end(&r->s);
}

TEST(what_a_client_stores_the_process_finds_and_the_other_way_round)
{
    struct ready r;
    ready_open(&r, NULL);
    uint32_t *tokens = kit_tokens(5, 90);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 90, &range);
    CHECK_INT(wc_store_segment(&r.c, r.s.k.space, r.space, tokens, 90), 90);
    CHECK_INT(wc_store_segment(&r.c, r.s.k.space, r.space, tokens, 90), 0); /* there already */
    CHECK_INT(kit_load_and_check(&r.s.k, &prompt), 90);
    /* The client may do what it likes with its staging area afterwards. */
    memset(r.c.staging.data, 0xee, r.c.staging.bytes);
    CHECK_INT(kit_load_and_check(&r.s.k, &prompt), 90);
    free(tokens);
    CHECK(ready_end(&r));
}

TEST(rows_beyond_the_staging_area_are_refused)
{
    struct ready r;
    ready_open(&r, NULL);
    uint32_t *tokens = kit_tokens(5, 10);
    size_t need = 10 * tsr_space_token_bytes(r.s.k.space), all = r.c.staging.bytes;
    const struct tsri_wire_view bad[] = {
        {.offset = all - need + 1, .bytes = need},
        {.offset = all + 1},
        {.offset = UINT64_MAX, .bytes = need},
        {.offset = 8, .bytes = UINT64_MAX},
        {.bytes = need - 1},
        {.bytes = need, .layer_stride = UINT64_MAX, .plane_stride = 640, .token_stride = 64},
        {.bytes = all, .layer_stride = 1, .plane_stride = all, .token_stride = 64},
    };
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        fresh(TSRI_WIRE_STORE)->space = r.space;
        q.store =
            (struct tsr_store_desc){.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 10};
        q.view = bad[i];
        CHECK_INT(wc_call(&r.c, &q), TSR_ERANGE);
    }
    q.view = (struct tsri_wire_view){.offset = all - need, .bytes = need};
    kit_fill(r.s.k.space, kit_seed(r.s.k.space), tokens, 10, r.c.staging.data + all - need);
    CHECK_INT(wc_call(&r.c, &q), 10);
    CHECK_INT(kit_find_segment(&r.s.k, tokens, 10), 10);
    /* A client without one. */
    struct wire_client bare;
    struct tsr_space_desc desc = kit_desc();
    CHECK(wc_open(&bare, r.s.path, 0) && wc_space(&bare, &desc) == 0);
    q.space = 0, tokens[0]++;
    CHECK_INT(wc_call(&bare, &q), TSR_EINVAL);
    wc_close(&bare);
    free(tokens);
    CHECK(ready_end(&r));
}

static int put_open(struct ready *r, const uint32_t *tokens, uint32_t n)
{
    fresh(TSRI_WIRE_PUT_OPEN)->space = r->space;
    q.store = (struct tsr_store_desc){.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = n};
    int e = wc_call(&r->c, &q);
    return e < 0 ? e : (int)r->c.reply.put;
}

/* Layer by layer, from the front of the staging area. */
static int put_layer(struct ready *r, int put, uint32_t layer, const uint32_t *tokens, uint32_t n)
{
    const struct tsr_space *space = r->s.k.space;
    size_t layer_bytes = n * tsr_space_token_bytes(space) / 2;
    kit_fill(space, kit_seed(space), tokens, n, r->c.staging.data);
    fresh(TSRI_WIRE_PUT_LAYERS);
    q.put = (struct tsri_wire_put_layers){(uint32_t)put, layer, 1};
    q.view = (struct tsri_wire_view){.offset = layer * layer_bytes, .bytes = layer_bytes};
    return wc_call(&r->c, &q);
}

static int put_end(struct ready *r, int put, uint16_t type)
{
    fresh(type)->put.put = (uint32_t)put;
    return wc_call(&r->c, &q);
}

/* Memory that its owner never touched, or gave back, reads as zero and takes none. */
TEST(holes_in_a_staging_area_stay_holes)
{
    struct ready r;
    struct stat before, after;
    ready_open(&r, NULL);
    uint32_t *tokens = kit_tokens(5, 64);
    size_t row = tsr_space_token_bytes(r.s.k.space), all = r.c.staging.bytes;
    CHECK(fstat(r.c.staging.fd, &before) == 0);
    fresh(TSRI_WIRE_STORE)->space = r.space;
    q.store = (struct tsr_store_desc){.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 64};
    q.view = (struct tsri_wire_view){.offset = all - 64 * row, .bytes = 64 * row};
    CHECK_INT(wc_call(&r.c, &q), 64);
    /* Rows far apart, and layer by layer. */
    tokens[0]++;
    q.view = (struct tsri_wire_view){.bytes = all,
                                     .layer_stride = row,
                                     .plane_stride = row / 2,
                                     .token_stride = (all - 2 * row) / 64 / 64 * 64};
    CHECK_INT(wc_call(&r.c, &q), 64);
    tokens[0]++;
    int put;
    CHECK_INT(put = put_open(&r, tokens, 64), 0);
    fresh(TSRI_WIRE_PUT_LAYERS);
    q.put = (struct tsri_wire_put_layers){(uint32_t)put, 0, r.s.k.space->shape.n_layers};
    q.view = (struct tsri_wire_view){.offset = all - 64 * row, .bytes = 64 * row};
    CHECK_INT(wc_call(&r.c, &q), 0);
    uint64_t n_before = server_metric(&r.s, TSRI_M_store_ns);
    CHECK_INT(put_end(&r, put, TSRI_WIRE_PUT_COMMIT), 64);
    CHECK(server_wait_metric(&r.s, TSRI_M_store_ns, n_before + 1));
    CHECK(fstat(r.c.staging.fd, &after) == 0);
    CHECK_INT(after.st_blocks, before.st_blocks);
    free(tokens);
    CHECK(ready_end(&r));
}

TEST(a_put_is_found_when_it_is_committed_and_not_before)
{
    struct ready r;
    ready_open(&r, NULL);
    uint32_t *tokens = kit_tokens(5, 90);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 90, &range);
    int put = put_open(&r, tokens, 90);
    CHECK(put >= 0);
    CHECK_INT(r.c.reply.n_blocks, 1);
    CHECK_INT(put_layer(&r, put, 1, tokens, 90), 0);
    CHECK_INT(kit_find_segment(&r.s.k, tokens, 90), 0);
    CHECK_INT(put_layer(&r, put, 0, tokens, 90), 0);
    CHECK_INT(kit_find_segment(&r.s.k, tokens, 90), 0);
    CHECK_INT(put_end(&r, put, TSRI_WIRE_PUT_COMMIT), 90);
    CHECK_INT(kit_load_and_check(&r.s.k, &prompt), 90);
    CHECK_INT(put_end(&r, put, TSRI_WIRE_PUT_COMMIT), TSR_ENOENT);
    /* There already: nothing to be filled. */
    put = put_open(&r, tokens, 90);
    CHECK(put >= 0);
    CHECK_INT(r.c.reply.n_blocks, 0);
    CHECK_INT(put_end(&r, put, TSRI_WIRE_PUT_ABORT), 0);
    CHECK_INT(put_end(&r, 4711, TSRI_WIRE_PUT_ABORT), TSR_ENOENT);
    free(tokens);
    CHECK(ready_end(&r));
}

TEST(a_put_without_all_its_layers_is_nothing)
{
    struct ready r;
    ready_open(&r, NULL);
    uint32_t *tokens = kit_tokens(5, 90);
    int put = put_open(&r, tokens, 90);
    CHECK(put >= 0);
    CHECK_INT(put_layer(&r, put, 2, tokens, 90), TSR_EINVAL);
    CHECK_INT(put_layer(&r, put, 0, tokens, 90), 0);
    CHECK_INT(put_end(&r, put, TSRI_WIRE_PUT_COMMIT), TSR_EINVAL);
    put = put_open(&r, tokens, 90);
    CHECK_INT(put_layer(&r, put, 0, tokens, 90), 0);
    CHECK_INT(put_end(&r, put, TSRI_WIRE_PUT_ABORT), 0);
    CHECK_INT(kit_find_segment(&r.s.k, tokens, 90), 0);
    CHECK_INT(kit_stats(&r.s.k).host_bytes_used, 0);
    free(tokens);
    CHECK(ready_end(&r));
}

TEST(half_a_store_vanishes_with_its_session)
{
    struct ready r;
    ready_open(&r, NULL);
    uint32_t *tokens[5];
    for (uint64_t i = 0; i < 5; i++) {
        tokens[i] = kit_tokens(20 + i, 64);
        int put = put_open(&r, tokens[i], 64);
        CHECK(put >= 0);
        CHECK_INT(put_layer(&r, put, 0, tokens[i], 64), 0);
    }
    CHECK(kit_stats(&r.s.k).host_bytes_used > 0);
    shutdown(r.c.fd, SHUT_RDWR);
    CHECK(server_wait_sessions(&r.s, 0));
    WAIT_FOR(kit_stats(&r.s.k).host_bytes_used == 0);
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_INT(kit_find_segment(&r.s.k, tokens[i], 64), 0);
        free(tokens[i]);
    }
    CHECK(ready_end(&r));
}

TEST(a_session_has_so_many_puts_open_and_no_more)
{
    struct ready r;
    ready_open(&r, (const char *const[]){"host_size", "4M", NULL});
    for (uint64_t i = 0; i <= TSRI_SESSION_PUTS_MAX; i++) {
        uint32_t *tokens = kit_tokens(20 + i, 16);
        int put = put_open(&r, tokens, 16);
        free(tokens);
        CHECK_INT(put, i < TSRI_SESSION_PUTS_MAX ? (int)i : TSR_EAGAIN);
    }
    CHECK(ready_end(&r));
}

TEST(clear_evict_and_flush_do_as_in_the_process)
{
    struct ready r;
    ready_open(&r, NULL);
    uint32_t *tokens = kit_tokens(5, 90);
    struct tsr_range range;
    CHECK_INT(kit_store_segment(&r.s.k, tokens, 90), 90);
    CHECK_INT(wc_call(&r.c, fresh(TSRI_WIRE_FLUSH)), 0);
    fresh(TSRI_WIRE_EVICT)->bytes = UINT64_MAX;
    CHECK_INT(wc_call(&r.c, &q), 1);
    CHECK_INT(kit_store_segment(&r.s.k, tokens, 90), 90);
    CHECK_INT(kit_store_prefix(&r.s.k, tokens, 90), 80);
    fresh(TSRI_WIRE_CLEAR)->space = r.space;
    q.tier = -1, q.has_prompt = 1, q.prompt = kit_segment_prompt(tokens, 90, &range);
    CHECK_INT(wc_call(&r.c, &q), 1);
    q.has_prompt = 0, q.space = 77;
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    q.space = TSRI_WIRE_SPACE_ALL, q.tier = 99;
    CHECK_INT(wc_call(&r.c, &q), TSR_EINVAL);
    q.tier = -1;
    CHECK_INT(wc_call(&r.c, &q), 5);
    free(tokens);
    CHECK(ready_end(&r));
}

/* Tenants by salt: when all slots have entries a worker makes room, and other calls go on. */
TEST(a_space_too_many_takes_the_place_of_one_that_is_no_longer_open)
{
    struct ready r;
    ready_open(&r, (const char *const[]){"spaces_max", "4", NULL});
    uint32_t *tokens = kit_tokens(5, 90);
    struct tsr_space_desc desc = kit_desc();
    char salt[16];
    desc.salt = salt;
    for (int i = 0; i < 10; i++) {
        snprintf(salt, sizeof salt, "salt %d", i);
        int space = wc_space(&r.c, &desc);
        CHECK_INT(space, 1);
        CHECK_INT(wc_store_segment(&r.c, r.s.k.space, (uint32_t)space, tokens, 90), 90);
        fresh(TSRI_WIRE_SPACE_CLOSE)->space = (uint32_t)space;
        CHECK_INT(wc_call(&r.c, &q), 0);
    }
    CHECK_INT(kit_stats(&r.s.k).evicted, 7);
    CHECK_INT(wc_store_segment(&r.c, r.s.k.space, r.space, tokens, 90), 90);
    /* All open: none is given up. */
    for (int i = 0; i < 4; i++) {
        snprintf(salt, sizeof salt, "open %d", i);
        CHECK_INT(wc_space(&r.c, &desc), i < 3 ? i + 1 : TSR_EAGAIN);
    }
    free(tokens);
    CHECK(ready_end(&r));
}

TEST(a_list_comes_in_parts_and_tells_what_is_where)
{
    struct ready r;
    ready_open(&r, NULL);
    uint32_t *tokens = kit_tokens(6, 64 * 5);
    for (int i = 0; i < 5; i++)
        CHECK_INT(kit_store_segment(&r.s.k, tokens + i * 64, 64), 64);
    int n = 0;
    for (uint32_t next = 0; next != TSRI_WIRE_LIST_END; next = r.c.reply.next) {
        fresh(TSRI_WIRE_LIST)->n = 2, q.value = next;
        CHECK(wc_call(&r.c, &q) >= 0);
        CHECK(r.c.reply.n <= 2);
        for (uint32_t i = 0; i < r.c.reply.n; i++, n++)
            CHECK(r.c.reply.entries[i].n_tokens == 64 && r.c.reply.entries[i].tiers == 1);
    }
    CHECK_INT(n, 5);
    free(tokens);
    CHECK(ready_end(&r));
}

TEST(the_order_of_eviction_comes_in_parts_and_evict_keys_says_what_went)
{
    struct ready r;
    ready_open(&r, (const char *const[]){"policy", "lru", NULL});
    uint32_t *tokens = kit_tokens(6, 64 * 5);
    struct tsr_key order[5];
    for (int i = 0; i < 5; i++)
        CHECK_INT(kit_store_segment(&r.s.k, tokens + i * 64, 64), 64);
    int n = 0;
    for (uint32_t next = 0; next != TSRI_WIRE_LIST_END; next = r.c.reply.next) {
        fresh(TSRI_WIRE_ORDER)->n = 2, q.value = next;
        CHECK_INT(wc_call(&r.c, &q), 5);
        CHECK(r.c.reply.n <= 2);
        for (uint32_t i = 0; i < r.c.reply.n && n < 5; i++, n++)
            memcpy(&order[n], r.c.reply.entries[i].key, sizeof order[n]);
    }
    CHECK_INT(n, 5);
    fresh(TSRI_WIRE_ORDER)->n = TSRI_WIRE_ITEMS_MAX, q.value = UINT32_MAX;
    CHECK_INT(wc_call(&r.c, &q), 5);
    CHECK(r.c.reply.n == 0 && r.c.reply.next == TSRI_WIRE_LIST_END);
    fresh(TSRI_WIRE_EVICT_KEYS)->bytes = UINT64_MAX, q.n = 3;
    CHECK_INT(wc_call(&r.c, &q), 3);
    CHECK(r.c.reply.n == 3 && memcmp(r.c.reply.keys, order, sizeof order[0] * 3) == 0);
    CHECK_INT(wc_call(&r.c, &q), 2);
    CHECK(r.c.reply.n == 2 && memcmp(r.c.reply.keys, order + 3, sizeof order[0] * 2) == 0);
    q.n = 0;
    CHECK_INT(wc_call(&r.c, &q), 0);
    free(tokens);
    CHECK(ready_end(&r));
}

struct tiered {
    struct ready r;
    struct fake_tier_plan plan;
    uint32_t *tokens;
    struct tsri_wire_match match;
};

/* One entry that only the tier below has. */
static void tiered_open(struct tiered *t)
{
    fake_tier_plan_init(&t->plan);
    server_open_tiers(&t->r.s, NULL, &t->plan, 1);
    ready_join(&t->r);
    t->tokens = kit_tokens(6, 90);
    CHECK_INT(wc_store_segment(&t->r.c, t->r.s.k.space, t->r.space, t->tokens, 90), 90);
    CHECK_INT(wc_call(&t->r.c, fresh(TSRI_WIRE_FLUSH)), 0);
    CHECK_INT(kit_evict_all(&t->r.s.k), 1);
    CHECK_INT(wc_find_segment(&t->r.c, t->r.space, t->tokens, 90, 0, &t->match), 90);
    CHECK(t->match.verified == 0 && t->match.tier == 1);
}

static bool tiered_end(struct tiered *t)
{
    bool clean = ready_end(&t->r);
    fake_tier_plan_fini(&t->plan);
    free(t->tokens);
    return clean;
}

TEST(what_a_tier_has_is_brought_up_and_lent)
{
    struct tiered t;
    tiered_open(&t);
    CHECK_INT(wc_borrow(&t.r.c, t.r.s.k.space, t.r.space, &t.match, t.tokens, 3), 0);
    CHECK_INT(server_metric(&t.r.s, TSRI_M_leased_entries), 1);
    CHECK_INT(kit_evict_all(&t.r.s.k), 0);
    CHECK(tiered_end(&t));
}

/* Whoever asks first, and also when its client has connected again. */
TEST(every_session_learns_of_everything_that_was_lost_as_often_as_it_asks)
{
    struct tiered t;
    struct wire_client other;
    tiered_open(&t);
    CHECK(wc_open(&other, t.r.s.path, 1 << 20));
    fake_tier_fail(&t.plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    uint32_t *tokens = kit_tokens(7, 90);
    CHECK_INT(wc_store_segment(&t.r.c, t.r.s.k.space, t.r.space, tokens, 90), 90);
    CHECK_INT(wc_call(&t.r.c, fresh(TSRI_WIRE_FLUSH)), TSR_EIO);
    CHECK_INT(wc_call(&other, fresh(TSRI_WIRE_FLUSH)), TSR_EIO);
    CHECK(kit_evict_all(&t.r.s.k) > 0);
    fake_tier_fail(&t.plan, 0, 0, 0, 0);
    CHECK_INT(wc_call(&t.r.c, fresh(TSRI_WIRE_FLUSH)), 0);
    CHECK_INT(t.r.c.reply.n_lost, 1);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(other.welcome.n_lost, i == 2);
        CHECK_INT(wc_call(&other, fresh(TSRI_WIRE_FLUSH)), 0);
        CHECK_INT(other.reply.n_lost, 1);
        if (i != 1) continue;
        wc_close(&other);
        CHECK(wc_open(&other, t.r.s.path, 1 << 20));
    }
    wc_close(&other);
    free(tokens);
    CHECK(tiered_end(&t));
}

TEST(warm_brings_it_up)
{
    struct tiered t;
    tiered_open(&t);
    CHECK_INT(wc_call(&t.r.c, fresh(TSRI_WIRE_WARM)), 1);
    CHECK_INT(wc_call(&t.r.c, fresh(TSRI_WIRE_WARM)), 0);
    CHECK_INT(wc_find_segment(&t.r.c, t.r.space, t.tokens, 90, 0, &t.match), 90);
    CHECK_INT(t.match.tier, 0);
    CHECK(tiered_end(&t));
}

TEST(a_lookup_may_start_bringing_it_up)
{
    struct tiered t;
    struct tsr_range range;
    tiered_open(&t);
    fresh(TSRI_WIRE_LOOKUP);
    q.lookup = (struct tsri_wire_lookup){
        .n_spaces = 1, .matches_max = 1, .spaces = &t.r.space, .flags = TSRI_WIRE_LOOKUP_PREFETCH};
    q.prompt = kit_segment_prompt(t.tokens, 90, &range);
    CHECK_INT(wc_call(&t.r.c, &q), 90);
    CHECK(server_wait_metric(&t.r.s, TSRI_M_promotions, 1));
    CHECK(tiered_end(&t));
}

TEST(while_one_waits_for_a_tier_all_others_are_served)
{
    struct tiered t;
    struct wire_client b;
    struct tsr_range range;
    tiered_open(&t);
    CHECK(wc_open(&b, t.r.s.path, 1 << 20));
    struct tsr_space_desc desc = kit_desc();
    CHECK_INT(wc_space(&b, &desc), 0);
    fake_tier_gate(&t.plan, FAKE_GET);
    struct tsri_wire_want want = {.match = t.match, .space = t.r.space};
    fresh(TSRI_WIRE_RETRIEVE);
    q.retrieve =
        (struct tsri_wire_retrieve){.lease = 4, .n_wants = 1, .wants = &want, .has_prompt = 1};
    q.prompt = kit_segment_prompt(t.tokens, 90, &range);
    uint64_t id = wc_send(&t.r.c, &q, 0);
    CHECK(id);
    fake_tier_gate_wait(&t.plan, 1);
    CHECK_INT(wc_call(&t.r.c, fresh(TSRI_WIRE_PING)), 0); /* the same client's fast ones too */
    uint32_t *other = kit_tokens(30, 64);
    CHECK_INT(wc_store_segment(&b, t.r.s.k.space, 0, other, 64), 64);
    free(other);
    fake_tier_gate(&t.plan, 0);
    CHECK(wc_receive(&t.r.c));
    CHECK(t.r.c.head.id == id);
    CHECK_INT(t.r.c.reply.status, 1);
    wc_close(&b);
    CHECK(tiered_end(&t));
}

TEST(a_client_that_gives_up_waiting_leaves_nothing_behind)
{
    struct tiered t;
    struct tsr_range range;
    tiered_open(&t);
    fake_tier_gate(&t.plan, FAKE_GET);
    struct tsri_wire_want want = {.match = t.match, .space = t.r.space};
    fresh(TSRI_WIRE_RETRIEVE);
    q.retrieve =
        (struct tsri_wire_retrieve){.lease = 4, .n_wants = 1, .wants = &want, .has_prompt = 1};
    q.prompt = kit_segment_prompt(t.tokens, 90, &range);
    uint64_t first = wc_send(&t.r.c, &q, 0);
    fake_tier_gate_wait(&t.plan, 1);
    /* It lets go what it has not been given yet. */
    const uint64_t lease = 4;
    fresh(TSRI_WIRE_RELEASE)->ids = &lease, q.n = 1;
    CHECK_INT(wc_call(&t.r.c, &q), 1);
    CHECK_INT(server_metric(&t.r.s, TSRI_M_leased_entries), 0);
    /* Or goes altogether, with more of them waiting. */
    fresh(TSRI_WIRE_RETRIEVE);
    q.retrieve =
        (struct tsri_wire_retrieve){.lease = 5, .n_wants = 1, .wants = &want, .has_prompt = 1};
    q.prompt = kit_segment_prompt(t.tokens, 90, &range);
    for (int i = 0; i < 10; i++)
        CHECK(wc_send(&t.r.c, &q, 0) > first);
    CHECK(server_wait_leased(&t.r.s, 10));
    shutdown(t.r.c.fd, SHUT_RDWR);
    CHECK(server_wait_leased(&t.r.s, 0)); /* although its worker still waits */
    fake_tier_gate(&t.plan, 0);
    CHECK(tiered_end(&t));
}

/* So many entries that only the tier has, besides the first one. */
static uint32_t *many_cold(struct tiered *t, uint32_t n)
{
    uint32_t *tokens = kit_tokens(40, n * 16);
    for (uint32_t i = 0; i < n; i++)
        CHECK_INT(kit_store_segment(&t->r.s.k, tokens + (size_t)i * 16, 16), 16);
    CHECK_INT(wc_call(&t->r.c, fresh(TSRI_WIRE_FLUSH)), 0);
    CHECK_INT(kit_evict_all(&t->r.s.k), (int)n);
    return tokens;
}

/* Ends the session while its worker waits for the tier; then lets it go on to its end. */
static bool end_at_the_gate(struct tiered *t)
{
    fake_tier_gate_wait(&t->plan, 1);
    shutdown(t->r.c.fd, SHUT_RDWR);
    bool ended = server_wait_sessions(&t->r.s, 0);
    fake_tier_gate(&t->plan, 0);
    return tiered_end(t) && ended;
}

/* A server that closes must not wait for work that no one waits for. */
TEST(what_a_session_asked_for_is_given_up_when_it_ends)
{
    enum { N = 40, WANTS = 300 };
    struct tiered t;
    struct tsri_wire_match match;
    struct tsr_range ranges[2];
    tiered_open(&t);
    uint32_t *tokens = many_cold(&t, N), both[90 + 16];
    CHECK_INT(wc_find_segment(&t.r.c, t.r.space, tokens, 16, 0, &match), 16);
    memcpy(both, t.tokens, 90 * sizeof *both);
    memcpy(both + 90, tokens, 16 * sizeof *both);
    match.prompt_offset = 90;
    struct tsri_wire_want *wants = calloc(WANTS, sizeof *wants);
    for (uint32_t i = 0; i < WANTS; i++) /* the other entry comes last */
        wants[i] =
            (struct tsri_wire_want){.match = i + 1 < WANTS ? t.match : match, .space = t.r.space};
    fake_tier_gate(&t.plan, FAKE_GET);
    fresh(TSRI_WIRE_RETRIEVE)->prompt = kit_segment_prompt(both, 90 + 16, ranges);
    q.retrieve =
        (struct tsri_wire_retrieve){.lease = 4, .n_wants = WANTS, .wants = wants, .has_prompt = 1};
    ranges[0].n_tokens = 90;
    ranges[1] = (struct tsr_range){90, 16};
    q.prompt.n_segments = 2;
    uint64_t before = atomic_load(&t.plan.n_gets);
    CHECK(wc_send(&t.r.c, &q, 0));
    CHECK(end_at_the_gate(&t));
    CHECK_INT(atomic_load(&t.plan.n_gets), before + 1);
    free(tokens);
    free(wants);

    tiered_open(&t);
    free(many_cold(&t, N));
    fake_tier_gate(&t.plan, FAKE_GET);
    before = atomic_load(&t.plan.n_gets);
    CHECK(wc_send(&t.r.c, fresh(TSRI_WIRE_WARM), 0));
    CHECK(end_at_the_gate(&t));
    CHECK(atomic_load(&t.plan.n_gets) < before + N);
}

int main(void)
{
    RUN(what_a_client_stores_the_process_finds_and_the_other_way_round);
    RUN(rows_beyond_the_staging_area_are_refused);
    RUN(holes_in_a_staging_area_stay_holes);
    RUN(a_put_is_found_when_it_is_committed_and_not_before);
    RUN(a_put_without_all_its_layers_is_nothing);
    RUN(half_a_store_vanishes_with_its_session);
    RUN(a_session_has_so_many_puts_open_and_no_more);
    RUN(clear_evict_and_flush_do_as_in_the_process);
    RUN(a_space_too_many_takes_the_place_of_one_that_is_no_longer_open);
    RUN(a_list_comes_in_parts_and_tells_what_is_where);
    RUN(the_order_of_eviction_comes_in_parts_and_evict_keys_says_what_went);
    RUN(what_a_tier_has_is_brought_up_and_lent);
    RUN(every_session_learns_of_everything_that_was_lost_as_often_as_it_asks);
    RUN(warm_brings_it_up);
    RUN(a_lookup_may_start_bringing_it_up);
    RUN(while_one_waits_for_a_tier_all_others_are_served);
    RUN(a_client_that_gives_up_waiting_leaves_nothing_behind);
    RUN(what_a_session_asked_for_is_given_up_when_it_ends);
    return test_end();
}
