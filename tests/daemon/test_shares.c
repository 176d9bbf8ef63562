/* test_shares.c - whatever one tenant does, another has its turns, a worker and places for its
 * clients; and a tenant that is alone has all of it but the floors of the others. */
#include "daemon/daemon.h"

#include "support/fake_tier.h"
#include "support/test.h"
#include "support/wire_client.h"

#include <unistd.h>

/* ---- the rule ---- */

TEST(a_floor_is_kept_and_the_rest_is_for_whoever_comes_first)
{
    struct tsri_stock k = {.spare = 3};
    uint32_t greedy = 0, modest = 0;
    for (int i = 0; i < 5; i++)
        CHECK(tsri_stock_take(&k, 2, &greedy));
    CHECK(!tsri_stock_take(&k, 2, &greedy)); /* 2 of its own, and all of the stock */
    CHECK(tsri_stock_take(&k, 2, &modest));
    CHECK(tsri_stock_take(&k, 2, &modest));
    CHECK(!tsri_stock_take(&k, 2, &modest));
    tsri_stock_give(&k, 2, &greedy);
    CHECK(tsri_stock_take(&k, 2, &modest));
    while (greedy)
        tsri_stock_give(&k, 2, &greedy);
    while (modest)
        tsri_stock_give(&k, 2, &modest);
    CHECK_INT(k.used, 0);
}

TEST(turns_go_round_by_tenant_and_not_by_session)
{
    static const struct tsri_tenant tenants[2];
    static struct tsri_session many[5], one;
    struct tsr_server s = {.tenants = tenants, .n_tenants = 2, .roster.max = 100};
    CHECK_INT(tsri_shares_init(&s, 4), 0);
    one.server = &s;
    CHECK_INT(tsri_share_join(&one, tsri_share_of(&s, &tenants[1])), 0);
    for (int i = 0; i < 5; i++) {
        many[i].server = &s;
        CHECK_INT(tsri_share_join(&many[i], tsri_share_of(&s, &tenants[0])), 0);
        tsri_share_ready(&many[i], 1);
    }
    tsri_share_ready(&one, 1);
    tsri_share_ready(&one, 4);
    for (int i = 0; i < 5; i++) {
        CHECK(tsri_shares_are_ready(&s));
        CHECK(tsri_share_turn(&s.shares[0]) == &many[i]);
        CHECK(tsri_share_turn(&s.shares[1]) == &one);
        CHECK_INT(one.ready_events, i ? 2 : 5);
        CHECK(tsri_share_turn(&s.shares[1]) == NULL);
        tsri_share_ready(&one, 2);
    }
    tsri_share_leave(&one); /* out of the list, too */
    CHECK(!tsri_shares_are_ready(&s));
    for (int i = 0; i < 5; i++)
        tsri_share_leave(&many[i]);
    CHECK_INT(s.places.used, 0);
    tsri_shares_fini(&s);
}

/* ---- a server for two ---- */

#define SESSIONS 6

static struct tsri_request q;

static struct tsri_request *fresh(uint16_t type)
{
    memset(&q, 0, offsetof(struct tsri_request, extra));
    q.type = type;
    return &q;
}

/* The first tenant is who has this uid, with a tier that a gate can stop; the second has a token.
 */
struct two {
    struct kit a, b;
    struct fake_tier_plan plan;
    struct tsri_tenant tenants[2];
    struct tmpdir dir;
    char path[TSRI_SOCKET_PATH_BYTES];
    struct tsr_server *server;
};

static void two_open(struct two *t, const char *const *options)
{
    tmpdir_init(&t->dir);
    snprintf(t->path, sizeof t->path, "%.80s/s/sock", t->dir.path);
    fake_tier_plan_init(&t->plan);
    struct tsr_config *cfg = kit_config(options);
    CHECK_INT(tsr_config_set(cfg, "owner", "embedded"), 0);
    CHECK_INT(tsr_config_set(cfg, "server_socket", t->path), 0);
    kit_open_config(&t->b, cfg);
    CHECK_INT(tsr_tier_attach(cfg, &fake_tier, &t->plan), 0);
    kit_open_config(&t->a, cfg);
    t->tenants[0] = (struct tsri_tenant){.cache = t->a.cache, .uid = geteuid(), .name = "a"};
    t->tenants[1] =
        (struct tsri_tenant){.cache = t->b.cache, .uid = UINT32_MAX, .token = "b", .name = "b"};
    struct tsri_server_desc desc = {.tenants = t->tenants, .n_tenants = 2, .listen_fd = -1};
    CHECK_INT(tsri_server_open(&t->server, &desc, tsri_config_options(cfg)), 0);
    tsr_config_close(cfg);
}

static bool two_end(struct two *t)
{
    tsr_server_close(t->server);
    bool clean = kit_end(&t->b);
    clean &= kit_end(&t->a);
    fake_tier_plan_fini(&t->plan);
    tmpdir_fini(&t->dir);
    return clean;
}

/* The status of its hello. */
static int join(struct two *t, struct wire_client *c, const char *token)
{
    CHECK(wc_connect(c, t->path) && wc_stage(c, 1 << 20));
    return wc_hello(c, token);
}

/* An entry that only the tier has, and a session that waits for it there. */
static void stick(struct two *t, struct wire_client *c, uint64_t seed)
{
    struct tsr_space_desc desc = kit_desc();
    struct tsri_wire_match match;
    struct tsr_range range;
    uint32_t space = 0, *tokens = kit_tokens(seed, 40);
    CHECK_INT(join(t, c, NULL), 0);
    CHECK_INT(wc_space(c, &desc), 0);
    CHECK_INT(wc_find_segment(c, space, tokens, 40, 0, &match), 40);
    struct tsri_wire_want want = {.match = match, .space = space};
    fresh(TSRI_WIRE_RETRIEVE)->retrieve =
        (struct tsri_wire_retrieve){.lease = 4, .n_wants = 1, .wants = &want, .has_prompt = 1};
    q.prompt = kit_segment_prompt(tokens, 40, &range);
    CHECK(wc_send(c, &q, 0));
    free(tokens);
}

static void two_stick(struct two *t, struct wire_client *c)
{
    for (uint64_t i = 0; i < SESSIONS; i++) {
        uint32_t *tokens = kit_tokens(100 + i, 40);
        CHECK_INT(kit_store_segment(&t->a, tokens, 40), 40);
        free(tokens);
    }
    CHECK_INT(tsr_cache_flush(t->a.cache), 0);
    CHECK_INT(kit_evict_all(&t->a), SESSIONS);
    fake_tier_gate(&t->plan, FAKE_GET);
    for (uint64_t i = 0; i < SESSIONS; i++)
        stick(t, &c[i], 100 + i);
}

TEST(calls_of_one_tenant_never_keep_those_of_another_from_a_worker)
{
    struct two t;
    struct wire_client a[SESSIONS], b;
    struct tsr_space_desc desc = kit_desc();
    two_open(&t, (const char *const[]){"server_threads", "2", NULL});
    two_stick(&t, a);
    fake_tier_gate_wait(&t.plan, 2); /* its own worker and the one that is for all */
    CHECK_INT(join(&t, &b, "b"), 0);
    CHECK_INT(wc_space(&b, &desc), 0);
    uint32_t *tokens = kit_tokens(9, 64);
    CHECK_INT(wc_store_segment(&b, t.b.space, 0, tokens, 64), 64);
    free(tokens);
    wc_close(&a[SESSIONS - 1]); /* still waits for a worker */
    fake_tier_gate(&t.plan, 0);
    for (int i = 0; i < SESSIONS - 1; i++) {
        CHECK(wc_receive(&a[i]));
        CHECK_INT(a[i].reply.status, 1);
        wc_close(&a[i]);
    }
    wc_close(&b);
    CHECK(two_end(&t));
}

TEST(a_tenant_that_is_alone_has_all_workers)
{
    struct two t;
    struct wire_client a[SESSIONS];
    two_open(&t, (const char *const[]){"server_threads", "5", NULL});
    two_stick(&t, a);
    fake_tier_gate_wait(&t.plan, 5);
    fake_tier_gate(&t.plan, 0);
    for (int i = 0; i < SESSIONS; i++) {
        CHECK(wc_receive(&a[i]));
        wc_close(&a[i]);
    }
    CHECK(two_end(&t));
}

/* The next reply is to the ping behind it, so it was not answered in the loop. */
static bool is_queued(struct wire_client *c, struct tsri_request *r)
{
    static struct tsri_request ping = {.type = TSRI_WIRE_PING};
    uint64_t id = wc_send(c, r, 0), ping_id = wc_send(c, &ping, 0);
    return id && ping_id && wc_receive(c) && c->head.id == ping_id;
}

TEST(what_takes_many_steps_is_not_done_in_the_loop_however_few_its_bytes)
{
    struct two t;
    struct wire_client a[SESSIONS];
    struct tsr_space_desc desc = kit_desc();
    desc.block_tokens = 1;
    two_open(&t, NULL);
    two_stick(&t, a); /* what a session queues stays there */
    uint32_t number, many[64], *tokens = kit_tokens(9, TSRI_INLINE_STEPS + 1);
    for (int i = 0; i < SESSIONS; i++) {
        CHECK((number = (uint32_t)wc_space(&a[i], &desc)) == 1);
        fresh(TSRI_WIRE_LOOKUP)->lookup =
            (struct tsri_wire_lookup){.n_spaces = 1, .matches_max = 64, .spaces = &number};
        q.prompt = kit_prefix_prompt(tokens, TSRI_INLINE_STEPS);
        CHECK(!is_queued(&a[i], &q) && wc_receive(&a[i]));
        q.prompt.n_tokens++;
        if (i == 0) CHECK(is_queued(&a[i], &q));
        for (int k = 0; k < 64; k++)
            many[k] = number;
        q.lookup.n_spaces = 64, q.lookup.spaces = many;
        q.prompt.n_tokens = TSRI_INLINE_STEPS / 64 + 1;
        if (i == 1) CHECK(is_queued(&a[i], &q));
        static const uint16_t types[] = {TSRI_WIRE_TOUCH, TSRI_WIRE_PIN, TSRI_WIRE_KEYS};
        if (i < 2 || i - 2 >= (int)TSRI_COUNT(types)) continue;
        fresh(types[i - 2])->space = number;
        q.n = 1;
        q.prompt = kit_prefix_prompt(tokens, TSRI_INLINE_STEPS + 1);
        CHECK(is_queued(&a[i], &q));
    }
    free(tokens);
    fake_tier_gate(&t.plan, 0);
    for (int i = 0; i < SESSIONS; i++)
        wc_close(&a[i]);
    CHECK(two_end(&t));
}

TEST(clients_of_one_tenant_leave_places_to_the_other)
{
    struct two t;
    struct wire_client a[12], b[3];
    two_open(&t, (const char *const[]){"clients_max", "12", NULL});
    int n = 0;
    while (n < 11 && join(&t, &a[n], NULL) == 0)
        n++;
    CHECK_INT(n, 8); /* its own 2, and 6 that are for all */
    wc_close(&a[n]);
    for (int i = 0; i < 2; i++)
        CHECK_INT(join(&t, &b[i], "b"), 0);
    CHECK_INT(join(&t, &b[2], "b"), TSR_EAGAIN);
    for (int i = 0; i < n; i++)
        wc_close(&a[i]);
    for (int i = 0; i < 3; i++)
        wc_close(&b[i]);
    CHECK(two_end(&t));
}

int main(void)
{
    RUN(a_floor_is_kept_and_the_rest_is_for_whoever_comes_first);
    RUN(turns_go_round_by_tenant_and_not_by_session);
    RUN(calls_of_one_tenant_never_keep_those_of_another_from_a_worker);
    RUN(a_tenant_that_is_alone_has_all_workers);
    RUN(what_takes_many_steps_is_not_done_in_the_loop_however_few_its_bytes);
    RUN(clients_of_one_tenant_leave_places_to_the_other);
    return test_end();
}
