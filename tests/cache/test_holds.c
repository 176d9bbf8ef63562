/* test_holds.c - in a cache that other processes use no client keeps so much in its place that
 * others find no room: leases, half stores and pins are counted in pages, each entry once. */
#include "cache/clients.h"

#include "support/cache_kit.h"
#include "support/test.h"

#define N_PAGES 64u /* of the kit's pool */

static const char *const serves[] = {"owner", "embedded", NULL};

/* Segments of one page each; the same seed is the same text. */
static int store(struct kit *k, uint64_t seed)
{
    uint32_t *tokens = kit_tokens(seed, 64);
    int n = kit_store_segment(k, tokens, 64);
    free(tokens);
    return n;
}

static int lease(struct kit *k, struct tsr_client *client, uint64_t seed, uint64_t request)
{
    struct kit as = {.cache = k->cache, .client = client, .space = k->space};
    struct kit_hits hits;
    struct tsr_range range;
    uint32_t *tokens = kit_tokens(seed, 64);
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
    int n = kit_lookup(&as, &prompt, request, &hits);
    free(tokens);
    return n;
}

/* Leases one segment after the other until it may not; how many. */
static uint32_t lease_all(struct kit *k, struct tsr_client *client, uint64_t first)
{
    uint32_t n = 0;
    while (first + n <= N_PAGES && lease(k, client, first + n, 1000 + first + n) == 64)
        n++;
    return n;
}

static void fill(struct kit *k)
{
    for (uint64_t i = 1; i <= N_PAGES; i++)
        CHECK_INT(store(k, i), 64);
}

TEST(a_client_that_leases_all_it_can_leaves_room_for_the_stores_of_others)
{
    struct kit k;
    kit_open(&k, serves);
    fill(&k);
    CHECK_INT(lease_all(&k, k.client, 1), N_PAGES / 2);
    CHECK_INT(kit_metric(&k, TSRI_M_lease_refused), 1);
    for (uint64_t i = 0; i < 200; i++)
        CHECK_INT(store(&k, 1000 + i), 64);
    CHECK_INT(lease(&k, k.client, 1, 0), 64); /* what it leases stays */
    CHECK_INT(tsri_client_release_all(k.client), N_PAGES / 2);
    CHECK_INT(k.cache->holds.pages, 0);
    CHECK(kit_end(&k));
}

TEST(those_who_come_later_find_something_and_a_quarter_is_never_leased)
{
    struct kit k;
    kit_open(&k, serves);
    fill(&k);
    struct tsr_client *more[6];
    uint32_t n = lease_all(&k, k.client, 1), before = n;
    for (int i = 0; i < 6; i++) {
        more[i] = kit_client(k.cache);
        uint32_t got = lease_all(&k, more[i], n + 1);
        CHECK(got <= before);
        if (i < 2) CHECK(got >= 3);
        n += got;
        before = got;
    }
    CHECK(n <= N_PAGES * 3 / 4);
    CHECK_INT(k.cache->holds.pages, n);
    for (int i = 0; i < 6; i++)
        tsr_client_close(more[i]);
    CHECK_INT(tsri_client_release_all(k.client), N_PAGES / 2);
    CHECK_INT(k.cache->holds.pages, 0);
    CHECK(kit_end(&k));
}

TEST(what_somebody_holds_already_costs_nothing_more)
{
    struct kit k;
    kit_open(&k, serves);
    fill(&k);
    struct tsr_client *other = kit_client(k.cache);
    CHECK_INT(lease_all(&k, k.client, 1), N_PAGES / 2);
    for (uint64_t i = 1; i <= N_PAGES / 2; i++) {
        CHECK_INT(lease(&k, k.client, i, 5000 + i), 64); /* for another request */
        CHECK_INT(lease(&k, other, i, 7), i ? 64 : 0);   /* instead of the one before */
        CHECK_INT(lease(&k, other, i, 6000 + i), 64);
    }
    CHECK_INT(k.cache->holds.pages, N_PAGES / 2);
    tsri_client_release_all(k.client);
    CHECK_INT(k.cache->holds.pages, N_PAGES / 2); /* the other still has them */
    tsr_client_close(other);
    CHECK_INT(k.cache->holds.pages, 0);
    CHECK(kit_end(&k));
}

TEST(a_prefix_is_leased_as_far_as_there_is_room)
{
    struct kit k;
    struct kit_hits hits;
    kit_open(&k, serves);
    uint32_t *tokens = kit_tokens(3, 16 * 50);
    CHECK_INT(kit_store_prefix(&k, tokens, 16 * 50), 16 * 50);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 16 * 50);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 16 * 50);
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 16 * 32);
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 16 * 32); /* the same request again */
    CHECK_INT(k.cache->holds.pages, 32);
    CHECK_INT(tsr_client_release(k.client, 1), 32);
    CHECK_INT(k.cache->holds.pages, 0);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(text_found_at_any_offset_is_counted_too)
{
    struct kit k;
    struct kit_hits hits;
    kit_open(&k, serves);
    uint32_t *all = kit_tokens(3, 64 * 40);
    for (int i = 0; i < 40; i++)
        CHECK_INT(kit_store_segment(&k, all + (size_t)i * 64, 64), 64);
    struct tsr_prompt prompt = kit_prefix_prompt(all, 64 * 40);
    prompt.flags = TSR_PROMPT_ANY;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 64 * 40);
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 64 * 32);
    CHECK_INT(tsr_client_release(k.client, 1), 32);
    CHECK_INT(k.cache->holds.pages, 0);
    free(all);
    CHECK(kit_end(&k));
}

TEST(an_entry_of_more_than_half_can_be_read_while_nothing_else_is_held)
{
    struct kit k;
    struct kit_hits hits;
    struct tsr_range range;
    kit_open(&k, serves);
    uint32_t *tokens = kit_tokens(3, 64 * 50);
    CHECK_INT(kit_store_segment(&k, tokens, 64 * 50), 64 * 50);
    CHECK_INT(store(&k, 9), 64);
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 64 * 50, &range);
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 64 * 50);
    CHECK_INT(lease(&k, k.client, 9, 2), 0);
    CHECK_INT(tsr_client_release(k.client, 1), 1);
    CHECK_INT(lease(&k, k.client, 9, 2), 64);
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 0);
    CHECK_INT(tsr_client_release(k.client, 2), 1);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(at_most_half_is_pinned_for_good)
{
    struct kit k;
    struct tsr_range range;
    int n = 0;
    kit_open(&k, serves);
    fill(&k);
    for (uint64_t i = 1; i <= N_PAGES; i++) {
        uint32_t *tokens = kit_tokens(i, 64);
        struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
        n += tsr_space_pin(k.space, &prompt);
        if (i == 1) CHECK_INT(tsr_space_pin(k.space, &prompt), 1); /* twice is not more */
        if (i == 1) CHECK_INT(tsr_space_unpin(k.space, &prompt), 1);
        free(tokens);
    }
    CHECK_INT(n, N_PAGES / 2);
    CHECK(lease_all(&k, k.client, N_PAGES / 2 + 1) > 0);
    CHECK_INT(store(&k, 1000), 64);
    tsri_client_release_all(k.client);
    CHECK_INT(k.cache->holds.pages, N_PAGES / 2);
    for (uint64_t i = 1; i <= 4; i++) {
        uint32_t *tokens = kit_tokens(i, 64);
        struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
        CHECK_INT(tsr_space_unpin(k.space, &prompt), 1);
        free(tokens);
    }
    CHECK_INT(k.cache->holds.pages, N_PAGES / 2 - 4);
    /* Pins die with their entry. */
    uint32_t dropped = 0;
    pthread_mutex_lock(&k.cache->lock);
    for (uint32_t id = 0; id < k.cache->ids_fresh; id++)
        if (k.cache->entries[id].user_pins)
            dropped += tsri_entry_drop(k.cache, id, TSR_EVENT_DROPPED);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(dropped, N_PAGES / 2 - 4);
    CHECK_INT(k.cache->holds.pages, 0);
    CHECK_INT(k.cache->holds.pages_pinned, 0);
    CHECK(kit_end(&k));
}

TEST(a_program_that_has_its_cache_for_itself_is_not_limited)
{
    struct kit k;
    kit_open(&k, NULL);
    fill(&k);
    CHECK_INT(lease_all(&k, k.client, 1), N_PAGES);
    CHECK(!k.cache->holds.by_id);
    tsri_client_release_all(k.client);
    CHECK(kit_end(&k));
}

/* Against a count that is kept in the plainest way. */
TEST(whatever_is_held_and_let_go_in_any_order_the_numbers_are_right)
{
    enum { IDS = 40, STEPS = 20000 };
    struct kit k;
    kit_open(&k, serves);
    uint32_t ids[IDS], held[2][IDS] = {{0}};
    struct tsri_holder x[2];
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = kit_entry(&k, 100 + i, i % 5 ? 64 : 100, TSRI_ID_NONE); /* 1 page or 2 */
    for (int h = 0; h < 2; h++)
        CHECK_INT(tsri_holder_init(&x[h], k.cache, IDS), 0);
    uint64_t random = 1, n_refused = 0;
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t h = random >> 40 & 1, i = (uint32_t)(random >> 42) % IDS;
        if (random >> 60 < 9) {
            if (tsri_hold(&x[h], &ids[i], 1))
                held[h][i]++;
            else
                n_refused++;
        } else if (held[h][i]) {
            tsri_unhold(&x[h], &ids[i], 1);
            held[h][i]--;
        }
        uint64_t pages[3] = {0};
        for (uint32_t j = 0; j < IDS; j++) {
            uint32_t n = j % 5 ? 1 : 2;
            pages[0] += held[0][j] ? n : 0;
            pages[1] += held[1][j] ? n : 0;
            pages[2] += held[0][j] || held[1][j] ? n : 0;
        }
        CHECK(pages[0] == x[0].pages && pages[1] == x[1].pages);
        CHECK(pages[2] == k.cache->holds.pages && pages[2] <= N_PAGES * 3 / 4);
    }
    CHECK(n_refused > 0);
    for (int h = 0; h < 2; h++) {
        for (uint32_t i = 0; i < IDS; i++)
            while (held[h][i]--)
                tsri_unhold(&x[h], &ids[i], 1);
        CHECK_INT(x[h].pages, 0);
        tsri_holder_fini(&x[h]);
    }
    CHECK_INT(k.cache->holds.pages, 0);
    kit_close(&k);
}

TEST(leases_go_in_pieces_as_large_as_asked)
{
    struct kit k;
    kit_open(&k, serves);
    fill(&k);
    for (uint64_t i = 1; i <= 20; i++) /* one request has most of them */
        for (int again = 0; again < 10; again++) {
            uint32_t *tokens = kit_tokens(i, 64);
            struct kit_hits hits;
            struct tsr_range range;
            struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
            CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 64);
            uint32_t id;
            CHECK(tsri_pin_match(k.cache, &hits.matches[0], &id) == TSRI_HOST);
            CHECK(tsri_client_lease(k.client, i < 18 ? 1 : i, &id, 1));
            free(tokens);
        }
    CHECK_INT(k.cache->holds.pages, 20);
    int n = 200;
    for (; n > 0; n -= 7) {
        CHECK_INT(kit_metric(&k, TSRI_M_leased_entries), n);
        CHECK_INT(tsri_client_release_some(k.client, 7), n < 7 ? n : 7);
        CHECK(k.cache->holds.pages <= 20);
    }
    CHECK_INT(tsri_client_release_some(k.client, 7), 0);
    CHECK_INT(k.cache->holds.pages, 0);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(a_client_that_leases_all_it_can_leaves_room_for_the_stores_of_others);
    RUN(those_who_come_later_find_something_and_a_quarter_is_never_leased);
    RUN(what_somebody_holds_already_costs_nothing_more);
    RUN(a_prefix_is_leased_as_far_as_there_is_room);
    RUN(text_found_at_any_offset_is_counted_too);
    RUN(an_entry_of_more_than_half_can_be_read_while_nothing_else_is_held);
    RUN(at_most_half_is_pinned_for_good);
    RUN(a_program_that_has_its_cache_for_itself_is_not_limited);
    RUN(whatever_is_held_and_let_go_in_any_order_the_numbers_are_right);
    RUN(leases_go_in_pieces_as_large_as_asked);
    return test_end();
}
