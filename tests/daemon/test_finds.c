/* test_finds.c - lookups and retrieves of any size: those that the loop leaves to a worker give
 * what the short ones give, hold up nobody, and leave no lease behind; a space that is given up
 * stays what it was until nothing uses it. */
#include "daemon/daemon.h"

#include "support/fake_tier.h"
#include "support/test.h"
#include "support/wire_client.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct tsri_request q;

static struct tsri_request *fresh(uint16_t type)
{
    memset(&q, 0, offsetof(struct tsri_request, extra));
    q.type = type;
    return &q;
}

enum { SHORT = 100, LONG = 400000 };

struct ready {
    struct server_kit s;
    struct wire_client c;
    uint32_t space;
    uint32_t *tokens; /* LONG of them; the first SHORT are a segment that is stored */
    struct tsr_range range;
};

static void ready_open(struct ready *r)
{
    struct tsr_space_desc desc = kit_desc();
    server_open(&r->s, NULL);
    CHECK(wc_open(&r->c, r->s.path, 1 << 20));
    CHECK_INT(wc_space(&r->c, &desc), 0);
    r->space = 0;
    r->tokens = kit_tokens(7, LONG);
    CHECK_INT(kit_store_segment(&r->s.k, r->tokens, SHORT), SHORT);
}

static bool ready_end(struct ready *r)
{
    wc_close(&r->c);
    free(r->tokens);
    return server_end(&r->s);
}

/* The stored segment in a prompt of n tokens. */
static struct tsri_request *lookup(struct ready *r, uint32_t n, uint64_t lease)
{
    fresh(TSRI_WIRE_LOOKUP);
    r->range = (struct tsr_range){0, SHORT};
    q.prompt = (struct tsr_prompt){.size = sizeof q.prompt,
                                   .tokens = r->tokens,
                                   .n_tokens = n,
                                   .flags = TSR_PROMPT_SEGMENTS,
                                   .segments = &r->range,
                                   .n_segments = 1};
    q.lookup = (struct tsri_wire_lookup){
        .lease = lease, .n_spaces = 1, .matches_max = UINT32_MAX, .spaces = &r->space};
    return &q;
}

TEST(a_lookup_of_any_length_finds_the_same)
{
    struct ready r;
    ready_open(&r);
    static const uint32_t lengths[] = {SHORT, 1000, 131000, 140000, LONG};
    for (size_t i = 0; i < TSRI_COUNT(lengths); i++) {
        CHECK_INT(wc_call(&r.c, lookup(&r, lengths[i], 0)), SHORT);
        CHECK_INT(r.c.reply.n, 1);
        CHECK_INT(r.c.reply.matches[0].n_tokens, SHORT);
    }
    struct tsri_wire_match match = r.c.reply.matches[0];
    CHECK_INT(wc_borrow(&r.c, r.s.k.space, r.space, &match, r.tokens, 5), 0);
    CHECK(ready_end(&r));
}

TEST(what_a_long_lookup_leases_its_release_behind_it_lets_go)
{
    struct ready r;
    ready_open(&r);
    const uint64_t lease = 9;
    for (int i = 0; i < 20; i++) {
        CHECK(wc_send(&r.c, lookup(&r, LONG, lease), 0));
        fresh(TSRI_WIRE_RELEASE)->ids = &lease, q.n = 1;
        CHECK_INT(wc_call(&r.c, &q), 1);
        CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 0);
    }
    CHECK(wc_send(&r.c, lookup(&r, LONG, lease), 0)); /* and one goes in the middle of it */
    CHECK(ready_end(&r));
}

/* Whoever asks for much waits for it alone. */
TEST(while_long_lookups_run_others_are_answered)
{
    struct ready r;
    struct wire_client b;
    bool overtook = false;
    ready_open(&r);
    CHECK(wc_open(&b, r.s.path, 0));
    for (int round = 0; round < 10 && !overtook; round++) { /* this process may be held up, too */
        uint64_t last = 0, before = server_metric(&r.s, TSRI_M_lookups);
        for (int i = 0; i < 30; i++) {
            lookup(&r, LONG, 0);
            q.prompt.flags |= TSR_PROMPT_ANY | TSR_PROMPT_PREFIX;
            CHECK((last = wc_send(&r.c, &q, 0)) != 0);
        }
        CHECK_INT(wc_call(&b, fresh(TSRI_WIRE_PING)), 0);
        overtook = server_metric(&r.s, TSRI_M_lookups) < before + 30;
        while (wc_receive(&r.c) && r.c.head.id != last) {
        }
        CHECK_INT(r.c.reply.status, SHORT);
    }
    CHECK(overtook);
    wc_close(&b);
    CHECK(ready_end(&r));
}

TEST(a_retrieve_of_many_ranges_lends_them_all_and_each_counts)
{
    enum { N = 20000 };
    struct ready r;
    ready_open(&r);
    CHECK_INT(wc_call(&r.c, lookup(&r, SHORT, 0)), SHORT);
    struct tsri_wire_want *wants = calloc(N, sizeof *wants);
    for (uint32_t i = 0; i < N; i++)
        wants[i] = (struct tsri_wire_want){.match = r.c.reply.matches[0], .n_tokens = 1};
    fresh(TSRI_WIRE_RETRIEVE);
    q.retrieve = (struct tsri_wire_retrieve){.lease = 4, .n_wants = N, .wants = wants};
    CHECK_INT(wc_call(&r.c, &q), N);
    CHECK_INT(r.c.reply.n, N);
    CHECK(r.c.reply.lent[N - 1].result == 0 && r.c.reply.lent[N - 1].entry_tokens == SHORT);
    const uint64_t lease = 4;
    fresh(TSRI_WIRE_RELEASE)->ids = &lease, q.n = 1;
    CHECK_INT(wc_call(&r.c, &q), N);
    wants[7].space = 200; /* one that is not open: nothing is lent at all */
    fresh(TSRI_WIRE_RETRIEVE);
    q.retrieve = (struct tsri_wire_retrieve){.lease = 4, .n_wants = N, .wants = wants};
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 0);
    WAIT_FOR(atomic_load(&r.s.server->allowance.used) == 0);
    free(wants);
    CHECK(ready_end(&r));
}

/* Matches that are not verified are compared with the prompt, which is walked once for all. */
TEST(a_retrieve_of_many_unverified_ranges_holds_up_nobody)
{
    enum { N = 4000, STORED = 20, BLOCKS = 50000 };
    struct ready r;
    struct wire_client b;
    struct tsr_space_desc desc = kit_desc();
    desc.block_tokens = 1;
    desc.model = "blocks of a token";
    ready_open(&r);
    CHECK(wc_open(&b, r.s.path, 0));
    CHECK_INT(wc_space(&r.c, &desc), 1);
    struct tsr_space *space = kit_space(r.s.k.cache, &desc), *first = r.s.k.space;
    r.s.k.space = space;
    CHECK_INT(kit_store_prefix(&r.s.k, r.tokens, STORED), STORED);
    r.s.k.space = first;
    const uint32_t number = 1;
    fresh(TSRI_WIRE_LOOKUP)->prompt = kit_prefix_prompt(r.tokens, STORED);
    q.lookup = (struct tsri_wire_lookup){.n_spaces = 1, .matches_max = STORED, .spaces = &number};
    CHECK_INT(wc_call(&r.c, &q), STORED);
    CHECK_INT(r.c.reply.n, STORED);
    struct tsri_wire_want *wants = calloc(N, sizeof *wants);
    for (uint32_t i = 0; i < N; i++) { /* one in eight is where it is said to be */
        wants[i] = (struct tsri_wire_want){.match = r.c.reply.matches[i * 7 % STORED], .space = 1};
        wants[i].match.verified = 0;
        if (i % 8) wants[i].match.prompt_offset = i % 8 == 1 ? STORED + i : BLOCKS - i % 8;
    }
    fresh(TSRI_WIRE_RETRIEVE)->prompt = kit_prefix_prompt(r.tokens, BLOCKS);
    q.retrieve =
        (struct tsri_wire_retrieve){.lease = 4, .n_wants = N, .wants = wants, .has_prompt = 1};
    uint64_t start_ns = tsri_now_ns(), id = wc_send(&r.c, &q, 0);
    CHECK(id != 0);
    CHECK_INT(wc_call(&b, fresh(TSRI_WIRE_PING)), 0);
    CHECK(wc_receive(&r.c) && r.c.head.id == id);
    CHECK(tsri_now_ns() - start_ns < 1000000000u); /* 150 million blocks would take longer */
    CHECK_INT(r.c.reply.status, N / 8);
    for (uint32_t i = 0; i < N; i++)
        CHECK_INT(r.c.reply.lent[i].result, i % 8 ? TSR_ECORRUPT : 0);
    free(wants);
    wc_close(&b);
    tsr_space_close(space);
    CHECK(ready_end(&r));
}

TEST(the_other_long_calls_give_what_short_ones_give)
{
    struct ready r;
    ready_open(&r);
    static const uint16_t types[] = {TSRI_WIRE_PREFETCH, TSRI_WIRE_TOUCH, TSRI_WIRE_PIN,
                                     TSRI_WIRE_UNPIN};
    for (size_t i = 0; i < TSRI_COUNT(types); i++) {
        lookup(&r, LONG, 0);
        q.type = types[i], q.space = r.space;
        CHECK_INT(wc_call(&r.c, &q), types[i] == TSRI_WIRE_PREFETCH ? 0 : 1);
    }
    lookup(&r, LONG, 0);
    q.type = TSRI_WIRE_KEYS, q.n = 4;
    CHECK_INT(wc_call(&r.c, &q), 1);
    struct tsr_key *keys = calloc(65536, sizeof *keys);
    keys[65535] = r.c.reply.keys[0];
    fresh(TSRI_WIRE_CONTAINS)->keys = keys, q.n = 65536;
    CHECK_INT(wc_call(&r.c, &q), 1);
    CHECK(r.c.reply.n == 65536 && r.c.reply.tiers[65535] == 0 && r.c.reply.tiers[0] == -1);
    free(keys);
    CHECK(ready_end(&r));
}

/* ---- spaces that are given up ---- */

static struct tsr_space_desc other_desc(int i)
{
    static char name[32];
    struct tsr_space_desc desc = kit_desc();
    snprintf(name, sizeof name, "model %d", i);
    desc.model = name;
    desc.n_layers = 1 + (uint32_t)i % 3; /* a put into the wrong one would not fit */
    return desc;
}

/* Its place in the cache must not become another space's while half a store points there. */
TEST(a_space_with_half_a_store_keeps_its_place)
{
    struct server_kit s;
    struct wire_client c, d;
    server_open(&s, (const char *const[]){"spaces_max", "8", NULL});
    CHECK(wc_open(&c, s.path, 1 << 20) && wc_open(&d, s.path, 0));
    struct tsr_space_desc desc = kit_desc();
    desc.model = "to be given up";
    int space = wc_space(&c, &desc);
    CHECK(space >= 0);
    uint32_t *tokens = kit_tokens(8, 64);
    fresh(TSRI_WIRE_PUT_OPEN)->space = (uint32_t)space;
    q.store = (struct tsr_store_desc){.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 64};
    CHECK_INT(wc_call(&c, &q), 0);
    uint32_t put = c.reply.put;
    fresh(TSRI_WIRE_SPACE_CLOSE)->space = (uint32_t)space;
    CHECK_INT(wc_call(&c, &q), 0);
    CHECK_INT(wc_call(&c, &q), TSR_ENOENT); /* nobody can name it any more */
    int n_open = 0;
    for (int i = 0; i < 20; i++) { /* as many others as there is room for, and more */
        struct tsr_space_desc more = other_desc(i);
        n_open += wc_space(&d, &more) >= 0;
    }
    CHECK_INT(n_open, 6); /* of 8: the kit's, and the one that is still in use */
    fresh(TSRI_WIRE_PUT_LAYERS)->put = (struct tsri_wire_put_layers){put, 0, 2};
    q.view.bytes = 64 * tsr_space_token_bytes(s.k.space);
    CHECK_INT(wc_call(&c, &q), 0);
    fresh(TSRI_WIRE_PUT_ABORT)->put.put = put;
    CHECK_INT(wc_call(&c, &q), 0);
    struct tsr_space_desc more = other_desc(100);
    WAIT_FOR(wc_space(&d, &more) >= 0); /* now there is room for one more */
    free(tokens);
    wc_close(&c), wc_close(&d);
    CHECK(server_end(&s));
}

TEST(a_session_that_ends_gives_up_spaces_it_had_closed)
{
    struct server_kit s;
    struct wire_client c;
    server_open(&s, (const char *const[]){"spaces_max", "2", NULL});
    struct tsr_space_desc desc = kit_desc();
    desc.model = "another";
    uint32_t *tokens = kit_tokens(8, 64);
    for (int i = 0; i < 20; i++) {
        int space = -1;
        CHECK(wc_open(&c, s.path, 1 << 20));
        desc.n_layers = 1 + (uint32_t)i; /* another space each time, for which one place is left */
        WAIT_FOR((space = wc_space(&c, &desc)) >= 0);
        fresh(TSRI_WIRE_PUT_OPEN)->space = (uint32_t)space;
        q.store =
            (struct tsr_store_desc){.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 64};
        CHECK_INT(wc_call(&c, &q), 0);
        fresh(TSRI_WIRE_SPACE_CLOSE)->space = (uint32_t)space;
        CHECK_INT(wc_call(&c, &q), 0);
        wc_close(&c);
    }
    free(tokens);
    CHECK(server_end(&s));
}

TEST(a_session_that_ends_with_a_great_many_leases_leaves_none)
{
    enum { N = 20000 };
    struct ready r;
    ready_open(&r);
    CHECK_INT(wc_call(&r.c, lookup(&r, SHORT, 7)), SHORT);
    struct tsri_wire_want *wants = calloc(N, sizeof *wants);
    for (uint32_t i = 0; i < N; i++)
        wants[i] = (struct tsri_wire_want){.match = r.c.reply.matches[0], .n_tokens = 1};
    fresh(TSRI_WIRE_RETRIEVE);
    q.retrieve = (struct tsri_wire_retrieve){.lease = 4, .n_wants = N, .wants = wants};
    CHECK_INT(wc_call(&r.c, &q), N);
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), N + 1);
    q.retrieve.lease = 5;
    CHECK(wc_send(&r.c, &q, 0)); /* and takes more while it ends */
    shutdown(r.c.fd, SHUT_RDWR);
    CHECK(server_wait_sessions(&r.s, 0));
    CHECK(server_wait_leased(&r.s, 0));
    free(wants);
    CHECK(ready_end(&r));
}

int main(void)
{
    RUN(a_lookup_of_any_length_finds_the_same);
    RUN(what_a_long_lookup_leases_its_release_behind_it_lets_go);
    RUN(while_long_lookups_run_others_are_answered);
    RUN(a_retrieve_of_many_ranges_lends_them_all_and_each_counts);
    RUN(a_retrieve_of_many_unverified_ranges_holds_up_nobody);
    RUN(the_other_long_calls_give_what_short_ones_give);
    RUN(a_space_with_half_a_store_keeps_its_place);
    RUN(a_session_that_ends_gives_up_spaces_it_had_closed);
    RUN(a_session_that_ends_with_a_great_many_leases_leaves_none);
    return test_end();
}
