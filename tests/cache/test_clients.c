/* test_clients.c - leases are pins in the name of a request: they last until the request is
 * released, replaced or its client closed, no longer and no shorter, and one client cannot take
 * what belongs to another. */
#include "cache/clients.h"

#include "support/cache_kit.h"
#include "support/test.h"

static uint32_t pins(const struct kit *k, uint32_t id)
{
    return tsri_word_pins(atomic_load(&k->cache->entries[id].word));
}

/* How many leases the client could take now. */
static uint32_t room(struct kit *k)
{
    uint32_t n = tsri_client_reserve(k->client, UINT64_MAX);
    tsri_client_unreserve(k->client, n);
    return n;
}

/* As a lookup does: pin, then hand the pins over. */
static bool lease(struct kit *k, struct tsr_client *client, uint64_t request, const uint32_t *ids,
                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        CHECK_INT(tsri_pin(k->cache, ids[i]), TSRI_HOST);
    return tsri_client_lease(client, request, ids, n);
}

static void make(struct kit *k, uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = kit_entry(k, i, 1, TSRI_ID_NONE);
        CHECK(ids[i] != TSRI_ID_NONE);
    }
}

TEST(a_lease_lasts_until_its_request_is_released)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t ids[3];
    make(&k, ids, 3);
    CHECK(lease(&k, k.client, 7, ids, 3));
    CHECK(lease(&k, k.client, 8, ids, 1));
    CHECK_INT(kit_metric(&k, TSRI_M_leased_entries), 4);
    CHECK_INT(pins(&k, ids[0]), 2);
    CHECK_INT(pins(&k, ids[2]), 1);
    CHECK_INT(tsri_client_release(k.client, 9), 0); /* a request that has none */
    CHECK_INT(tsri_client_release(k.client, 7), 3);
    CHECK_INT(pins(&k, ids[0]), 1);
    CHECK_INT(pins(&k, ids[2]), 0);
    CHECK_INT(tsri_client_release(k.client, 7), 0); /* once is enough */
    CHECK_INT(pins(&k, ids[0]), 1);
    CHECK_INT(tsri_client_release(k.client, 8), 1);
    CHECK_INT(pins(&k, ids[0]), 0);
    CHECK_INT(kit_metric(&k, TSRI_M_leased_entries), 0);
    kit_close(&k);
}

TEST(a_leased_entry_that_is_dropped_goes_with_its_lease)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id;
    make(&k, &id, 1);
    CHECK(lease(&k, k.client, 7, &id, 1));
    uint32_t n_free = tsri_pool_n_free(&k.cache->pool);
    pthread_mutex_lock(&k.cache->lock);
    CHECK_INT(tsri_entry_drop(k.cache, id, TSR_EVENT_DROPPED), 1);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(tsri_pool_n_free(&k.cache->pool), n_free);
    CHECK_INT(tsri_client_release(k.client, 7), 1);
    CHECK_INT(tsri_pool_n_free(&k.cache->pool), n_free + 1);
    kit_close(&k);
}

TEST(closing_a_client_lets_everything_go)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t ids[20];
    make(&k, ids, 20);
    struct tsr_client *other = kit_client(k.cache);
    for (uint64_t request = 1; request <= 50; request++)
        CHECK(lease(&k, other, request * 977, ids, 20));
    CHECK(lease(&k, k.client, 977, ids, 1));
    CHECK_INT(pins(&k, ids[0]), 51);
    tsri_client_close(other);
    CHECK_INT(pins(&k, ids[0]), 1); /* of the client that is still open, under the same id */
    for (uint32_t i = 1; i < 20; i++)
        CHECK_INT(pins(&k, ids[i]), 0);
    CHECK_INT(kit_metric(&k, TSRI_M_leased_entries), 1);
    kit_close(&k);
}

TEST(a_client_may_hold_so_many_and_the_rest_is_refused)
{
    struct kit k;
    kit_open(&k, (const char *[]){"lease_entries_max", "10", NULL});
    uint32_t ids[12];
    make(&k, ids, 12);
    CHECK_INT(room(&k), 10);
    CHECK(lease(&k, k.client, 1, ids, 7));
    CHECK_INT(room(&k), 3);
    CHECK(!lease(&k, k.client, 2, ids, 4));
    CHECK_INT(kit_metric(&k, TSRI_M_lease_refused), 4);
    CHECK_INT(room(&k), 3); /* nothing changed */
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_INT(pins(&k, ids[i]), 2); /* the pins are still the caller's */
        tsri_unpin(k.cache, ids[i]);
    }
    CHECK_INT(tsri_client_release(k.client, 2), 0);
    CHECK(lease(&k, k.client, 2, ids, 3));
    CHECK_INT(room(&k), 0);
    struct tsr_client *other = kit_client(k.cache); /* has a limit of its own */
    CHECK(lease(&k, other, 2, ids, 10));
    tsri_client_close(other);
    CHECK_INT(tsri_client_release(k.client, 1), 7);
    CHECK_INT(room(&k), 7);
    kit_close(&k);
}

TEST(a_lookup_again_replaces_and_never_lets_go_in_between)
{
    struct kit k;
    kit_open(&k, (const char *[]){"lease_entries_max", "4", NULL});
    uint32_t ids[4];
    make(&k, ids, 4);
    CHECK(lease(&k, k.client, 5, ids, 4));
    for (uint32_t round = 0; round < 100; round++) {
        struct tsri_lease *old = tsri_client_detach(k.client, 5);
        CHECK(old);
        CHECK_INT(room(&k), 4);         /* the old ones do not count any more */
        CHECK_INT(pins(&k, ids[0]), 1); /* but still protect */
        CHECK(lease(&k, k.client, 5, ids, 4));
        CHECK_INT(pins(&k, ids[0]), 2);
        CHECK_INT(tsri_client_let_go(k.client, old), 4);
        CHECK_INT(pins(&k, ids[0]), 1);
    }
    CHECK_INT(kit_metric(&k, TSRI_M_leased_entries), 4);
    CHECK_INT(tsri_client_let_go(k.client, NULL), 0);
    CHECK(tsri_client_detach(k.client, 6) == NULL);
    kit_close(&k);
}

TEST(without_a_record_left_a_lease_is_refused)
{
    struct kit k;
    kit_open(&k, (const char *[]){"lease_entries_max", "4", NULL});
    uint32_t ids[4];
    make(&k, ids, 4);
    CHECK(lease(&k, k.client, 1, ids, 4));
    struct tsri_lease *first = tsri_client_detach(k.client, 1);
    CHECK(lease(&k, k.client, 2, ids, 4));
    struct tsri_lease *second = tsri_client_detach(k.client, 2);
    /* Eight records for four leases are out, held by two lookups that are not done. */
    CHECK_INT(room(&k), 0);
    CHECK(!lease(&k, k.client, 3, ids, 4));
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_INT(pins(&k, ids[i]), 3); /* the pins are still the caller's */
        tsri_unpin(k.cache, ids[i]);
    }
    CHECK_INT(tsri_client_release(k.client, 3), 0);
    CHECK_INT(tsri_client_let_go(k.client, first), 4);
    CHECK_INT(tsri_client_let_go(k.client, second), 4);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_INT(pins(&k, ids[i]), 0);
    CHECK_INT(kit_metric(&k, TSRI_M_leased_entries), 0);
    CHECK_INT(room(&k), 4);
    kit_close(&k);
}

TEST(leases_set_aside_are_nobody_elses)
{
    struct kit k;
    kit_open(&k, (const char *[]){"lease_entries_max", "10", NULL});
    uint32_t ids[6];
    make(&k, ids, 6);
    CHECK_INT(tsri_client_reserve(k.client, 7), 7);
    CHECK_INT(room(&k), 3);
    CHECK_INT(tsri_client_reserve(k.client, UINT64_MAX), 3);
    CHECK(!lease(&k, k.client, 1, ids, 1));
    tsri_unpin(k.cache, ids[0]);
    tsri_client_unreserve(k.client, 3);
    for (uint32_t i = 0; i < 6; i++)
        CHECK_INT(tsri_pin(k.cache, ids[i]), TSRI_HOST);
    tsri_client_lease_reserved(k.client, 1, ids, 6);
    tsri_client_unreserve(k.client, 1);
    CHECK_INT(room(&k), 4);
    CHECK_INT(tsri_client_release(k.client, 1), 6);
    CHECK_INT(room(&k), 10);
    kit_close(&k);
}

TEST(so_many_clients_and_no_more)
{
    struct kit k;
    kit_open(&k, (const char *[]){"clients_max", "3", NULL});
    struct tsr_client *a = kit_client(k.cache), *b = kit_client(k.cache), *c = NULL;
    CHECK_INT(tsri_client_open(&c, k.cache), TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), "clients_max");
    tsri_client_close(a);
    CHECK_INT(tsri_client_open(&c, k.cache), 0);
    CHECK(tsri_client_cache(c) == k.cache);
    tsri_client_close(b);
    tsri_client_close(c);
    kit_close(&k);
}

/* ---- against plain arrays ---- */

#define IDS 8u
#define REQUESTS 64u

/* Requests by number, 16 of each four to the same bucket: times the odd constant of clients.c, they
 * are small. */
static uint64_t request_of(uint32_t r)
{
    uint64_t odd = 0x9E3779B97F4A7C15u, inverse = odd;
    for (int i = 0; i < 6; i++)
        inverse *= 2 - odd * inverse;
    return inverse * ((uint64_t)(r % 4) << 54 | r / 4);
}

TEST(requests_hold_what_a_plain_table_says)
{
    struct kit k;
    kit_open(&k, (const char *[]){"lease_entries_max", "100", NULL});
    uint32_t ids[IDS], held[REQUESTS][IDS] = {{0}}, n_held[REQUESTS] = {0}, n_all = 0;
    make(&k, ids, IDS);
    uint64_t seed = 12;
    for (uint32_t step = 0; step < 30000; step++) {
        uint32_t r = (uint32_t)(test_rand(&seed) % REQUESTS);
        uint64_t request = request_of(r);
        if (test_rand(&seed) % 2) {
            uint32_t n = 1 + (uint32_t)(test_rand(&seed) % 5), take[5];
            for (uint32_t i = 0; i < n; i++)
                take[i] = (uint32_t)(test_rand(&seed) % IDS);
            uint32_t list[5];
            for (uint32_t i = 0; i < n; i++)
                list[i] = ids[take[i]];
            bool had = lease(&k, k.client, request, list, n);
            CHECK(had == (n_all + n <= 100));
            for (uint32_t i = 0; i < n; i++)
                if (had)
                    held[r][take[i]]++;
                else
                    tsri_unpin(k.cache, list[i]);
            n_held[r] += had ? n : 0;
            n_all += had ? n : 0;
        } else {
            CHECK_INT(tsri_client_release(k.client, request), n_held[r]);
            n_all -= n_held[r];
            n_held[r] = 0;
            memset(held[r], 0, sizeof held[r]);
        }
        uint32_t ask = (uint32_t)(test_rand(&seed) % IDS), sum = 0;
        for (uint32_t i = 0; i < REQUESTS; i++)
            sum += held[i][ask];
        CHECK_INT(pins(&k, ids[ask]), sum);
        CHECK_INT(room(&k), 100 - n_all);
    }
    kit_close(&k);
}

/* ---- from many threads ---- */

#define THREADS 3u

struct worker {
    struct kit *k;
    const uint32_t *ids;
    uint64_t seed;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    for (uint32_t i = 0; i < 5000; i++) {
        uint64_t request = 1 + test_rand(&w->seed) % 4; /* the same ones for all */
        struct tsri_lease *old = tsri_client_detach(w->k->client, request);
        for (uint32_t j = 0; j < IDS; j++)
            tsri_pin(w->k->cache, w->ids[j]);
        if (!tsri_client_lease(w->k->client, request, w->ids, IDS))
            for (uint32_t j = 0; j < IDS; j++)
                tsri_unpin(w->k->cache, w->ids[j]);
        tsri_client_let_go(w->k->client, old);
        if (i % 3 == 0) tsri_client_release(w->k->client, request);
    }
    return NULL;
}

TEST(many_threads_share_a_client_and_no_pin_is_lost)
{
    struct kit k;
    kit_open(&k, (const char *[]){"lease_entries_max", "20", NULL});
    uint32_t ids[IDS];
    make(&k, ids, IDS);
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.k = &k, .ids = ids, .seed = i + 1};
        CHECK_INT(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (uint64_t request = 1; request <= 4; request++)
        tsri_client_release(k.client, request);
    for (uint32_t i = 0; i < IDS; i++)
        CHECK_INT(pins(&k, ids[i]), 0);
    CHECK_INT(room(&k), 20);
    CHECK_INT(kit_metric(&k, TSRI_M_leased_entries), 0);
    kit_close(&k);
}

int main(void)
{
    RUN(a_lease_lasts_until_its_request_is_released);
    RUN(a_leased_entry_that_is_dropped_goes_with_its_lease);
    RUN(closing_a_client_lets_everything_go);
    RUN(a_client_may_hold_so_many_and_the_rest_is_refused);
    RUN(a_lookup_again_replaces_and_never_lets_go_in_between);
    RUN(without_a_record_left_a_lease_is_refused);
    RUN(leases_set_aside_are_nobody_elses);
    RUN(so_many_clients_and_no_more);
    RUN(requests_hold_what_a_plain_table_says);
    RUN(many_threads_share_a_client_and_no_pin_is_lost);
    return test_end();
}
