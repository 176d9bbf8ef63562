/* test_served_spaces.c - the spaces of a client and what its session calls them. */
#include "served/served.h"

#include "support/lying_server.h"
#include "support/served_kit.h"
#include "support/test.h"

TEST(spaces_come_and_go_and_are_told_apart)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, (const char *const[]){"spaces_max", "2", NULL});
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    struct kit other = k;
    for (uint32_t i = 0; i < 20; i++) { /* the same slot here, another space each time */
        struct tsr_space_desc desc = kit_desc();
        desc.group = i % 5 + 1;
        other.space = kit_space(k.cache, &desc);
        CHECK_INT(kit_find_prefix(&other, tokens, 64), i < 5 ? 0 : 64);
        if (i < 5) CHECK_INT(kit_store_prefix(&other, tokens, 64), 64);
        CHECK_INT(kit_load_and_check(&other, &p), 64);
        tsr_space_close(other.space);
    }
    CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

/* References that the server's sessions have to the kit's space. */
static uint32_t refs_of(struct server_kit *s)
{
    pthread_mutex_lock(&s->k.cache->lock);
    uint32_t n = s->k.space->refs - 1; /* the kit's own */
    pthread_mutex_unlock(&s->k.cache->lock);
    return n;
}

TEST(a_call_of_the_session_before_forgets_no_space_of_this_one)
{
    struct server_kit s;
    struct kit k;
    struct tsri_seat_space space, same;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    struct tsri_seat *seat = tsri_client_seat(k.client);
    uint64_t until_ns = tsri_now_ns() + 60000000000u;
    CHECK_INT(tsri_link_await(seat->link, until_ns), 0);
    uint64_t old = tsri_link_session(seat->link);
    CHECK_INT(tsri_seat_space(seat, old, k.space, until_ns, &space), 0);
    tsri_link_drop(seat->link, old, "the test wants another one");
    CHECK_INT(tsri_link_await(seat->link, until_ns), 0);
    uint64_t session = tsri_link_session(seat->link);
    CHECK_INT(tsri_seat_space(seat, session, k.space, until_ns, &space), 0);
    CHECK_INT(tsri_seat_space(seat, old, k.space, until_ns, &same), TSR_EAGAIN);
    CHECK_INT(tsri_seat_space(seat, session, k.space, until_ns, &same), 0);
    CHECK_INT(same.number, space.number);
    WAIT_FOR(refs_of(&s) == 1); /* that of the old session is gone */
    kit_close(&k);
    CHECK(server_end(&s));
}

/* A server that lays spaces out in another way. */
static void answer_other_rows(struct lying_server *s, struct tsri_reply *r)
{
    atomic_int *n_opened = s->arg;
    if (r->type == TSRI_WIRE_SPACE_OPEN) atomic_fetch_add(n_opened, 1);
    if (r->type == TSRI_WIRE_SPACE_CLOSE) atomic_fetch_sub(n_opened, 1);
}

TEST(a_space_that_the_server_describes_in_another_way_has_one_number_at_most)
{
    atomic_int n_opened = 0;
    struct kit k;
    struct lying_server s = {.answer = answer_other_rows, .arg = &n_opened};
    lying_server_open(&s);
    served_kit_open(&k, s.path, (const char *const[]){"server_deadline", "20000", NULL});
    CHECK_INT(tsri_link_await(tsri_client_seat(k.client)->link, tsri_now_ns() + 60000000000u), 0);
    uint32_t *tokens = kit_tokens(1, 16);
    for (uint32_t i = 0; i < 5; i++)
        CHECK_INT(kit_store_segment(&k, tokens, 16), TSR_ESPACE);
    CHECK_INT(atomic_load(&n_opened), 1);
    free(tokens);
    kit_close(&k);
    lying_server_close(&s);
}

int main(void)
{
    RUN(spaces_come_and_go_and_are_told_apart);
    RUN(a_call_of_the_session_before_forgets_no_space_of_this_one);
    RUN(a_space_that_the_server_describes_in_another_way_has_one_number_at_most);
    return test_end();
}
