/* test_calls.c - requests that the loop answers itself: they give what the calls of the same name
 * give in the process, leases belong to their session, and numbers that mean nothing are refused.
 */
#include "daemon/daemon.h"

#include "support/test.h"
#include "support/wire_client.h"

#include <sys/socket.h>

static struct tsri_request q;

static struct tsri_request *fresh(uint16_t type)
{
    memset(&q, 0, offsetof(struct tsri_request, extra));
    q.type = type;
    return &q;
}

/* A server with one segment of 100 tokens in it and a client that has opened the kit's space. */
struct ready {
    struct server_kit s;
    struct wire_client c;
    uint32_t space;
    uint32_t *tokens;
    struct tsr_range range;
    struct tsr_prompt prompt;
};

static void ready_open(struct ready *r)
{
    struct tsr_space_desc desc = kit_desc();
    server_open(&r->s, NULL);
    CHECK(wc_open(&r->c, r->s.path, 1 << 20));
    int space = wc_space(&r->c, &desc);
    CHECK(space >= 0);
    r->space = (uint32_t)space;
    r->tokens = kit_tokens(7, 100);
    r->prompt = kit_segment_prompt(r->tokens, 100, &r->range);
    CHECK_INT(kit_store_segment(&r->s.k, r->tokens, 100), 100);
}

static bool ready_end(struct ready *r)
{
    wc_close(&r->c);
    free(r->tokens);
    return server_end(&r->s);
}

TEST(ping_is_answered)
{
    struct ready r;
    ready_open(&r);
    CHECK_INT(wc_call(&r.c, fresh(TSRI_WIRE_PING)), 0);
    CHECK(ready_end(&r));
}

TEST(a_space_is_the_one_that_its_description_makes)
{
    struct ready r;
    ready_open(&r);
    struct tsr_space_desc desc = kit_desc(), bad = desc;
    int again = wc_space(&r.c, &desc);
    CHECK(again >= 0 && again != (int)r.space);
    const struct tsri_wire_space *got = &r.c.reply.space;
    uint8_t fingerprint[16];
    tsr_space_fingerprint(r.s.k.space, fingerprint);
    CHECK(memcmp(got->fingerprint, fingerprint, 16) == 0);
    CHECK(got->n_layers == 2 && got->n_planes == 2 && got->row_bytes[0] == 64);
    CHECK(got->cell_tokens == 64 && got->page_bytes == 16384 && got->block_tokens == 16);
    bad.n_layers = 0;
    CHECK_INT(wc_space(&r.c, &bad), TSR_EINVAL);
    bad = desc, bad.model = NULL;
    CHECK_INT(wc_space(&r.c, &bad), TSR_EINVAL);
    fresh(TSRI_WIRE_SPACE_CLOSE)->space = (uint32_t)again;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    q.space = 4711;
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    CHECK(ready_end(&r));
}

TEST(spaces_are_listed_and_found_by_their_fingerprint)
{
    struct ready r;
    ready_open(&r);
    CHECK_INT(wc_call(&r.c, fresh(TSRI_WIRE_SPACES)), 1);
    struct tsri_wire_space_row row = r.c.reply.spaces[0];
    CHECK_STR(row.model, kit_desc().model);
    CHECK(row.entries == 1 && row.refs == 2);
    CHECK_INT(row.token_bytes, tsr_space_token_bytes(r.s.k.space));
    memcpy(fresh(TSRI_WIRE_SPACE_FIND)->fingerprint, row.fingerprint, 16);
    CHECK_INT(wc_call(&r.c, &q), 0);
    uint32_t found = r.c.reply.space.space;
    CHECK(found != r.space && r.c.reply.space.n_layers == 2);
    struct tsri_wire_match match;
    CHECK_INT(wc_find_segment(&r.c, found, r.tokens, 100, 0, &match), 100);
    memset(fresh(TSRI_WIRE_SPACE_FIND)->fingerprint, 9, 16);
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    CHECK(ready_end(&r));
}

/* After a restart the disk knows fingerprints, and nobody has said what they are of. */
TEST(a_space_that_only_a_tier_knows_can_be_cleared_and_nothing_else)
{
    struct ready r;
    ready_open(&r);
    struct tsri_wire_match match;
    struct tsr_space *bare;
    uint8_t fingerprint[16] = {1, 2, 3};
    pthread_mutex_lock(&r.s.k.cache->lock);
    bare = tsri_space_slot(r.s.k.cache, fingerprint);
    bare->n_entries = 1; /* as if a scan had found one */
    pthread_mutex_unlock(&r.s.k.cache->lock);
    memcpy(fresh(TSRI_WIRE_SPACE_FIND)->fingerprint, fingerprint, 16);
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK_INT(r.c.reply.space.n_layers, 0);
    uint32_t space = r.c.reply.space.space;
    CHECK_INT(wc_find_segment(&r.c, space, r.tokens, 100, 0, &match), TSR_ENOENT);
    CHECK_INT(wc_store_segment(&r.c, r.s.k.space, space, r.tokens, 100), TSR_ENOENT);
    fresh(TSRI_WIRE_PIN)->space = space, q.prompt = r.prompt;
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    fresh(TSRI_WIRE_CLEAR)->space = space, q.tier = -1, q.has_prompt = 1, q.prompt = r.prompt;
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    q.prompt.flags = TSR_PROMPT_PREFIX;
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    CHECK_INT(tsri_find_keys(bare, &q.prompt, NULL, 0), TSR_ENOENT);
    fresh(TSRI_WIRE_CLEAR)->space = space, q.tier = -1;
    CHECK_INT(wc_call(&r.c, &q), 0);
    fresh(TSRI_WIRE_SPACE_CLOSE)->space = space;
    CHECK_INT(wc_call(&r.c, &q), 0);
    struct tsr_space_desc desc = kit_desc(); /* the number is free for one with a shape */
    CHECK_INT(wc_space(&r.c, &desc), space);
    CHECK_INT(wc_find_segment(&r.c, space, r.tokens, 100, 0, &match), 100);
    pthread_mutex_lock(&r.s.k.cache->lock);
    bare->n_entries = 0;
    pthread_mutex_unlock(&r.s.k.cache->lock);
    CHECK(ready_end(&r));
}

TEST(a_session_opens_so_many_spaces_and_no_more)
{
    struct ready r;
    ready_open(&r);
    struct tsr_space_desc desc = kit_desc();
    for (uint32_t i = 1; i < TSRI_SESSION_SPACES_MAX; i++)
        CHECK(wc_space(&r.c, &desc) >= 0);
    CHECK_INT(wc_space(&r.c, &desc), TSR_EAGAIN);
    fresh(TSRI_WIRE_SPACE_CLOSE)->space = 17;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK_INT(wc_space(&r.c, &desc), 17);
    CHECK(ready_end(&r));
}

TEST(a_lookup_finds_what_it_finds_in_the_process)
{
    struct ready r;
    struct kit_hits hits;
    ready_open(&r);
    CHECK_INT(kit_lookup(&r.s.k, &r.prompt, 0, &hits), 100);
    struct tsri_wire_match match;
    CHECK_INT(wc_find_segment(&r.c, r.space, r.tokens, 100, 0, &match), 100);
    struct tsr_match got;
    tsri_wire_match_get(&match, &got);
    CHECK(got.entry == hits.matches[0].entry && got.n_tokens == 100 && got.verified == 1);
    CHECK(got.kind == TSR_KIND_SEGMENT && got.context == hits.matches[0].context);
    /* A prefix in several spaces at once: a row has one match for each. */
    struct tsr_space_desc desc = kit_desc();
    desc.rank = 1, desc.world = 2;
    struct tsr_space *other = kit_space(r.s.k.cache, &desc);
    int second = wc_space(&r.c, &desc);
    CHECK(second >= 0);
    CHECK_INT(kit_store_prefix(&r.s.k, r.tokens, 48), 48);
    CHECK_INT(kit_store(&r.s.k, &(struct tsr_store_desc){.space = other,
                                                         .kind = TSR_KIND_PREFIX,
                                                         .tokens = r.tokens,
                                                         .n_tokens = 32}),
              32);
    uint32_t spaces[2] = {r.space, (uint32_t)second};
    fresh(TSRI_WIRE_LOOKUP);
    q.lookup = (struct tsri_wire_lookup){.n_spaces = 2, .matches_max = 10, .spaces = spaces};
    q.prompt = kit_prefix_prompt(r.tokens, 100);
    CHECK_INT(wc_call(&r.c, &q), 32);
    CHECK(r.c.reply.n == 2 && r.c.reply.n_spaces == 2 && r.c.reply.n_prefix_tokens == 32);
    CHECK(r.c.reply.matches[3].prompt_offset == 16 && r.c.reply.matches[3].n_tokens == 16);
    CHECK(r.c.reply.matches[2].entry != r.c.reply.matches[3].entry);
    q.lookup.matches_max = 1;
    CHECK_INT(wc_call(&r.c, &q), 16);
    /* What cannot be looked up. */
    q.lookup.n_spaces = 0;
    CHECK_INT(wc_call(&r.c, &q), TSR_EINVAL);
    spaces[1] = 200, q.lookup.n_spaces = 2;
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    q.lookup.n_spaces = 1, q.prompt.n_tokens = 0;
    CHECK_INT(wc_call(&r.c, &q), TSR_EINVAL);
    tsr_space_close(other);
    CHECK(ready_end(&r));
}

TEST(leases_belong_to_their_session)
{
    struct ready r;
    struct wire_client b;
    struct tsri_wire_match match;
    ready_open(&r);
    CHECK(wc_open(&b, r.s.path, 0));
    CHECK_INT(wc_find_segment(&r.c, r.space, r.tokens, 100, 5, &match), 100);
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 1);
    CHECK_INT(kit_evict_all(&r.s.k), 0);
    const uint64_t ids[2] = {5, 6};
    fresh(TSRI_WIRE_RELEASE)->ids = ids, q.n = 2;
    CHECK_INT(wc_call(&b, &q), 0); /* another one's 5 */
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 1);
    CHECK_INT(wc_call(&r.c, &q), 1);
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK_INT(kit_evict_all(&r.s.k), 1);
    wc_close(&b);
    CHECK(ready_end(&r));
}

TEST(what_is_retrieved_is_read_where_it_lies)
{
    struct ready r;
    struct tsri_wire_match match;
    ready_open(&r);
    CHECK_INT(wc_find_segment(&r.c, r.space, r.tokens, 100, 0, &match), 100);
    CHECK_INT(wc_borrow(&r.c, r.s.k.space, r.space, &match, r.tokens, 9), 0);
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 1);
    CHECK(server_wait_metric(&r.s, TSRI_M_load_ns, 1)); /* observed once */
    /* It goes with the session. */
    shutdown(r.c.fd, SHUT_RDWR);
    CHECK(server_wait_leased(&r.s, 0));
    CHECK(!wc_holds(&r.c));
    CHECK(ready_end(&r));
}

TEST(a_retrieve_that_makes_no_sense_is_refused_and_holds_nothing)
{
    struct ready r;
    struct tsri_wire_match match;
    ready_open(&r);
    CHECK_INT(wc_find_segment(&r.c, r.space, r.tokens, 100, 0, &match), 100);
    CHECK_INT(wc_borrow(&r.c, r.s.k.space, r.space, &match, r.tokens, 0), TSR_EINVAL);
    CHECK_INT(wc_borrow(&r.c, r.s.k.space, 99, &match, r.tokens, 9), TSR_ENOENT);
    struct tsri_wire_want wants[2] = {{.match = match, .space = r.space},
                                      {.match = match, .space = r.space, .offset = 100}};
    fresh(TSRI_WIRE_RETRIEVE);
    q.retrieve = (struct tsri_wire_retrieve){.lease = 9, .n_wants = 2, .wants = wants};
    CHECK_INT(wc_call(&r.c, &q), TSR_EINVAL);
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 0);
    /* An entry of before, or of nowhere. */
    for (uint64_t bits = 1; bits; bits <<= 3) {
        struct tsri_wire_match odd = match;
        odd.entry ^= bits;
        int e = wc_borrow(&r.c, r.s.k.space, r.space, &odd, r.tokens, 9);
        CHECK(e == TSR_ENOENT || e == TSR_ESPACE);
    }
    CHECK_INT(kit_evict_all(&r.s.k), 1);
    CHECK_INT(wc_borrow(&r.c, r.s.k.space, r.space, &match, r.tokens, 9), TSR_ENOENT);
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 0);
    CHECK(ready_end(&r));
}

TEST(keys_and_contains_agree_with_the_process)
{
    struct ready r;
    struct tsr_key keys[4] = {0};
    ready_open(&r);
    CHECK_INT(kit_store_prefix(&r.s.k, r.tokens, 32), 32);
    struct tsr_prompt prompt = kit_prefix_prompt(r.tokens, 64);
    CHECK_INT(tsr_space_keys(r.s.k.space, &prompt, keys, 4), 4);
    fresh(TSRI_WIRE_KEYS)->space = r.space;
    q.n = 3, q.prompt = prompt;
    CHECK_INT(wc_call(&r.c, &q), 4);
    CHECK_INT(r.c.reply.n, 3);
    CHECK(memcmp(r.c.reply.keys, keys, 3 * sizeof *keys) == 0);
    fresh(TSRI_WIRE_CONTAINS)->keys = keys;
    q.n = 4;
    CHECK_INT(wc_call(&r.c, &q), 2);
    CHECK(r.c.reply.tiers[0] == 0 && r.c.reply.tiers[1] == 0);
    CHECK(r.c.reply.tiers[2] == -1 && r.c.reply.tiers[3] == -1);
    q.n = 0;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK(ready_end(&r));
}

TEST(pins_touches_and_prefetches_count_entries)
{
    struct ready r;
    ready_open(&r);
    fresh(TSRI_WIRE_PIN)->space = r.space;
    q.prompt = r.prompt;
    CHECK_INT(wc_call(&r.c, &q), 1);
    CHECK_INT(kit_evict_all(&r.s.k), 0);
    q.type = TSRI_WIRE_TOUCH;
    CHECK_INT(wc_call(&r.c, &q), 1);
    q.type = TSRI_WIRE_PREFETCH;
    CHECK_INT(wc_call(&r.c, &q), 0);
    q.type = TSRI_WIRE_UNPIN;
    CHECK_INT(wc_call(&r.c, &q), 1);
    CHECK_INT(kit_evict_all(&r.s.k), 1);
    q.space = 99;
    CHECK_INT(wc_call(&r.c, &q), TSR_ENOENT);
    CHECK(ready_end(&r));
}

TEST(freezing_refuses_stores)
{
    struct ready r;
    ready_open(&r);
    fresh(TSRI_WIRE_FREEZE)->value = 1;
    CHECK_INT(wc_call(&r.c, &q), 0);
    uint32_t *other = kit_tokens(8, 20);
    CHECK_INT(wc_store_segment(&r.c, r.s.k.space, r.space, other, 20), TSR_EFROZEN);
    fresh(TSRI_WIRE_FREEZE)->value = 0;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK_INT(wc_store_segment(&r.c, r.s.k.space, r.space, other, 20), 20);
    free(other);
    CHECK(ready_end(&r));
}

TEST(stats_come_as_numbers_and_as_texts)
{
    struct ready r;
    ready_open(&r);
    struct tsr_stats stats = kit_stats(&r.s.k);
    fresh(TSRI_WIRE_STATS)->value = TSRI_WIRE_STATS_NUMBERS;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK_INT(r.c.reply.n, sizeof stats / 8 - 1);
    CHECK(memcmp(r.c.reply.numbers, &stats.lookups, r.c.reply.n * sizeof(uint64_t)) == 0);
    q.value = TSRI_WIRE_STATS_PROMETHEUS;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK(memmem(r.c.reply.text, r.c.reply.text_bytes, "tessera_stores", 14));
    q.value = TSRI_WIRE_STATS_JSON;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK(r.c.reply.text[0] == '{' && r.c.reply.text[r.c.reply.text_bytes - 1] != 0);
    q.value = TSRI_WIRE_STATS_STATUS;
    CHECK_INT(wc_call(&r.c, &q), 0);
    CHECK(memmem(r.c.reply.text, r.c.reply.text_bytes, "\"tenants\":[{\"name\":", 19));
    q.value = 4;
    CHECK_INT(wc_call(&r.c, &q), TSR_EINVAL);
    CHECK(ready_end(&r));
}

TEST(every_session_that_asks_gets_every_event)
{
    struct ready r;
    struct wire_client b;
    ready_open(&r);
    CHECK(wc_open(&b, r.s.path, 0));
    fresh(TSRI_WIRE_EVENTS)->n = 100;
    CHECK_INT(wc_call(&r.c, &q), 0); /* from now on */
    CHECK_INT(wc_call(&b, &q), 0);
    uint32_t *other = kit_tokens(8, 20);
    CHECK_INT(wc_store_segment(&r.c, r.s.k.space, r.space, other, 20), 20);
    CHECK_INT(kit_evict_all(&r.s.k), 2);
    fresh(TSRI_WIRE_EVENTS)->n = 2;
    CHECK_INT(wc_call(&r.c, &q), 2);
    CHECK(r.c.reply.events[0].kind == TSR_EVENT_STORED && r.c.reply.events[0].n_tokens == 20);
    CHECK_INT(wc_call(&r.c, &q), 1);
    CHECK_INT(wc_call(&r.c, &q), 0);
    q.n = 100;
    CHECK_INT(wc_call(&b, &q), 3);
    CHECK_INT(b.reply.n, 3);
    free(other);
    wc_close(&b);
    CHECK(ready_end(&r));
}

TEST(a_request_that_wants_no_reply_gets_none)
{
    struct ready r;
    struct tsri_wire_match match;
    ready_open(&r);
    CHECK_INT(wc_find_segment(&r.c, r.space, r.tokens, 100, 5, &match), 100);
    const uint64_t id = 5;
    fresh(TSRI_WIRE_RELEASE)->ids = &id, q.n = 1;
    CHECK(wc_send(&r.c, &q, TSRI_WIRE_QUIET) != 0);
    fresh(TSRI_WIRE_SPACE_CLOSE)->space = 99; /* nor an error */
    CHECK(wc_send(&r.c, &q, TSRI_WIRE_QUIET) != 0);
    fresh(TSRI_WIRE_FLUSH);
    CHECK(wc_send(&r.c, &q, TSRI_WIRE_QUIET) != 0);
    uint64_t ping = wc_send(&r.c, fresh(TSRI_WIRE_PING), 0);
    CHECK(wc_receive(&r.c));
    CHECK(r.c.head.id == ping);
    CHECK_INT(server_metric(&r.s, TSRI_M_leased_entries), 0);
    CHECK(ready_end(&r));
}

int main(void)
{
    RUN(ping_is_answered);
    RUN(a_space_is_the_one_that_its_description_makes);
    RUN(spaces_are_listed_and_found_by_their_fingerprint);
    RUN(a_space_that_only_a_tier_knows_can_be_cleared_and_nothing_else);
    RUN(a_session_opens_so_many_spaces_and_no_more);
    RUN(a_lookup_finds_what_it_finds_in_the_process);
    RUN(leases_belong_to_their_session);
    RUN(what_is_retrieved_is_read_where_it_lies);
    RUN(a_retrieve_that_makes_no_sense_is_refused_and_holds_nothing);
    RUN(keys_and_contains_agree_with_the_process);
    RUN(pins_touches_and_prefetches_count_entries);
    RUN(freezing_refuses_stores);
    RUN(stats_come_as_numbers_and_as_texts);
    RUN(every_session_that_asks_gets_every_event);
    RUN(a_request_that_wants_no_reply_gets_none);
    return test_end();
}
