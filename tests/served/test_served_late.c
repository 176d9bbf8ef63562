/* test_served_late.c - answers that come late: what a client has on its server, puts and spaces, is
 * not more afterwards than it was told of, and what it could not end ends all the same. */
#include "served/served.h"

#include "support/served_kit.h"
#include "support/test.h"

#include <unistd.h>

/* As many of each as a session may have. */
#define PUTS 64u
#define SPACES 256u
#define N 16u /* tokens of a put: a page */

static const char *const host[] = {"host_size", "4M", NULL};

/* The server answers nothing that changes its cache, and nothing behind it, until _goes_on. */
static void stands_still(struct server_kit *s)
{
    pthread_mutex_lock(&s->k.cache->lock);
}

static void goes_on(struct server_kit *s)
{
    pthread_mutex_unlock(&s->k.cache->lock);
}

static struct tsri_link *link_of(const struct kit *k)
{
    return tsri_client_seat(k->client)->link;
}

/* Have all answers come? */
static bool is_current(const struct kit *k)
{
    uint64_t session = tsri_link_session(link_of(k));
    return session && tsri_link_check(link_of(k), session) == 0;
}

/* Looks up in a space that the session does not know yet, which takes longer than a lookup waits
 * while the server stands still. */
static void miss_deadline(struct kit *k, uint32_t group)
{
    struct tsr_space_desc desc = kit_desc();
    struct kit other = *k;
    uint32_t *tokens = kit_tokens(1, N);
    desc.group = group;
    other.space = kit_space(k->cache, &desc);
    CHECK_INT(kit_find_segment(&other, tokens, N), 0);
    tsr_space_close(other.space);
    free(tokens);
}

static int put_open(struct kit *k, uint32_t seed, struct tsr_put **put)
{
    uint32_t *tokens = kit_tokens(seed, N);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = k->space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = N};
    int e = tsr_put_open(put, k->client, &store);
    free(tokens);
    return e;
}

/* Opens a put and gives it all its layers. */
static int put_fill(struct kit *k, uint32_t seed, struct tsr_put **put)
{
    uint32_t *tokens = kit_tokens(seed, N);
    struct tsr_store_desc store = {
        .space = k->space, .kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = N};
    struct tsr_view all = kit_store_view(&store), layer = all;
    layer.bytes = all.bytes / 2;
    int e = put_open(k, seed, put);
    for (uint32_t l = 0; !e && l < 2; l++) {
        layer.data = (uint8_t *)all.data + l * layer.bytes;
        e = tsr_put_layer(*put, l, &layer);
        if (e) tsr_put_abort(*put);
    }
    free(all.data), free(tokens);
    return e;
}

/* Can it have as many puts as at the beginning? */
static void has_all_puts(struct kit *k)
{
    struct tsr_put *puts[PUTS];
    for (uint32_t i = 0; i < PUTS; i++)
        WAIT_FOR(put_open(k, 1000 + i, &puts[i]) == 0);
    for (uint32_t i = 0; i < PUTS; i++)
        tsr_put_abort(puts[i]);
}

TEST(puts_whose_commit_could_not_be_sent_are_gone_from_the_server)
{
    struct server_kit s;
    struct kit k;
    struct tsr_put *puts[PUTS];
    server_open(&s, host);
    served_kit_open(&k, s.path, (const char *const[]){"server_deadline", "50", NULL});
    WAIT_FOR(put_fill(&k, 0, &puts[0]) == 0); /* its space may open late on a busy machine */
    for (uint32_t i = 1; i < PUTS; i++)
        CHECK_INT(put_fill(&k, i, &puts[i]), 0);
    uint64_t session = tsri_link_session(link_of(&k));
    stands_still(&s);
    miss_deadline(&k, 1);
    for (uint32_t i = 0; i < PUTS; i++)
        CHECK_INT(tsr_put_commit(puts[i]), TSR_EAGAIN);
    goes_on(&s);
    has_all_puts(&k);
    CHECK(tsri_link_session(link_of(&k)) == session);
    for (uint32_t i = 0; i < PUTS; i++) { /* and none was committed all the same */
        uint32_t *tokens = kit_tokens(i, N);
        CHECK_INT(kit_find_segment(&k, tokens, N), 0);
        free(tokens);
    }
    CHECK_INT(kit_stats(&s.k).stores_new, 0);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(puts_may_be_aborted_while_answers_are_late)
{
    struct server_kit s;
    struct kit k;
    struct tsr_put *puts[PUTS];
    server_open(&s, host);
    served_kit_open(&k, s.path, (const char *const[]){"server_deadline", "50", NULL});
    WAIT_FOR(put_open(&k, 0, &puts[0]) == 0);
    for (uint32_t i = 1; i < PUTS; i++)
        CHECK_INT(put_open(&k, i, &puts[i]), 0);
    stands_still(&s);
    miss_deadline(&k, 1);
    for (uint32_t i = 0; i < PUTS; i++)
        tsr_put_abort(puts[i]);
    goes_on(&s);
    has_all_puts(&k);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(a_commit_that_is_answered_late_leaves_an_entry_and_no_put)
{
    struct server_kit s;
    struct kit k;
    struct tsr_put *put;
    struct tsr_range range;
    server_open(&s, host);
    served_kit_open(&k, s.path, (const char *const[]){"server_patience", "500", NULL});
    WAIT_FOR(put_fill(&k, 7, &put) == 0);
    stands_still(&s);
    CHECK_INT(tsr_put_commit(put), TSR_ETIME);
    goes_on(&s);
    uint32_t *tokens = kit_tokens(7, N);
    struct tsr_prompt p = kit_segment_prompt(tokens, N, &range);
    WAIT_FOR(kit_load_and_check(&k, &p) == (int)N);
    has_all_puts(&k);
    free(tokens);
    kit_close(&k);
    CHECK(server_end(&s));
}

/* References that the server's sessions have: to the kit's space, and to all but that. */
static uint32_t refs_of(struct server_kit *s)
{
    pthread_mutex_lock(&s->k.cache->lock);
    uint32_t n = s->k.space->refs - 1; /* the kit's own */
    pthread_mutex_unlock(&s->k.cache->lock);
    return n;
}

static uint32_t other_refs(struct server_kit *s)
{
    uint32_t n = 0;
    pthread_mutex_lock(&s->k.cache->lock);
    for (uint32_t i = 0; i < s->k.cache->n_spaces; i++)
        if (&s->k.cache->spaces[i] != s->k.space) n += s->k.cache->spaces[i].refs;
    pthread_mutex_unlock(&s->k.cache->lock);
    return n;
}

TEST(a_space_that_opens_late_is_opened_once)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, host);
    served_kit_open(&k, s.path, (const char *const[]){"server_deadline", "5", NULL});
    WAIT_FOR(is_current(&k));
    uint64_t session = tsri_link_session(link_of(&k));
    uint32_t *tokens = kit_tokens(1, N);
    for (uint32_t i = 0; i < SPACES + 1; i++) {
        stands_still(&s);
        CHECK_INT(kit_find_segment(&k, tokens, N), 0);
        goes_on(&s);
        WAIT_FOR(is_current(&k));
    }
    WAIT_FOR(kit_store_segment(&k, tokens, N) >= 0);
    WAIT_FOR(kit_find_segment(&k, tokens, N) == (int)N);
    CHECK_INT(refs_of(&s), 1);
    CHECK(tsri_link_session(link_of(&k)) == session);
    free(tokens);
    kit_close(&k);
    WAIT_FOR(refs_of(&s) == 0);
    CHECK(server_end(&s));
}

/* Nobody asks for them a second time. */
TEST(spaces_that_open_late_and_are_closed_are_not_kept)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, host);
    served_kit_open(&k, s.path,
                    (const char *const[]){"server_deadline", "5", "spaces_max", "4", NULL});
    WAIT_FOR(is_current(&k));
    uint64_t session = tsri_link_session(link_of(&k));
    for (uint32_t i = 0; i < SPACES + 1; i++) {
        stands_still(&s);
        miss_deadline(&k, i + 1);
        goes_on(&s);
        WAIT_FOR(is_current(&k));
    }
    uint32_t *tokens = kit_tokens(1, N);
    WAIT_FOR(kit_store_segment(&k, tokens, N) >= 0);
    CHECK_INT(refs_of(&s), 1);
    CHECK(other_refs(&s) < 4);
    CHECK(tsri_link_session(link_of(&k)) == session);
    free(tokens);
    kit_close(&k);
    WAIT_FOR(other_refs(&s) == 0);
    CHECK(server_end(&s));
}

int main(void)
{
    RUN(puts_whose_commit_could_not_be_sent_are_gone_from_the_server);
    RUN(puts_may_be_aborted_while_answers_are_late);
    RUN(a_commit_that_is_answered_late_leaves_an_entry_and_no_put);
    RUN(a_space_that_opens_late_is_opened_once);
    RUN(spaces_that_open_late_and_are_closed_are_not_kept);
    return test_end();
}
