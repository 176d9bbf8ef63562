/* Leases through the public API: what a lookup under a request id keeps in place, for how long, and
 * how much of it. */
#include "support/cache_kit.h"
#include "support/test.h"

#include <pthread.h>
#include <sched.h>

TEST(leased_entries_stay_until_they_are_released)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *a = kit_tokens(1, 32), *b = kit_tokens(2, 32);
    CHECK_INT(kit_store_prefix(&k, a, 32), 32);
    CHECK_INT(kit_store_prefix(&k, b, 32), 32);
    struct tsr_prompt pa = kit_prefix_prompt(a, 32), pb = kit_prefix_prompt(b, 32);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &pa, 7, &hits), 32);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 2);
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 0);
    CHECK_INT(kit_load(&k, &pa, &hits, 1), 0);

    /* The same request again: its leases are replaced, not added to. */
    CHECK_INT(kit_lookup(&k, &pa, 7, &hits), 32);
    CHECK_INT(tsr_client_release(k.client, 7), 2);
    CHECK_INT(tsr_client_release(k.client, 7), 0);
    CHECK_INT(kit_store_prefix(&k, b, 32), 32);
    CHECK_INT(kit_lookup(&k, &pa, 7, &hits), 32);
    CHECK_INT(kit_lookup(&k, &pb, 7, &hits), 32);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 2);
    CHECK_INT(kit_find_prefix(&k, a, 32), 0);
    CHECK_INT(kit_find_prefix(&k, b, 32), 32);
    /* A lookup under the id that finds nothing gives up what it had. */
    CHECK_INT(kit_lookup(&k, &pa, 7, &hits), 0);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 2);
    free(a), free(b);
    CHECK(kit_end(&k));
}

TEST(the_leases_of_a_client_go_with_it_and_no_others)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    struct kit_hits hits;
    struct tsr_client *own = k.client, *second = kit_client(k.cache);
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 48);
    k.client = second;
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 48);
    CHECK_INT(kit_lookup(&k, &prompt, 2, &hits), 48);
    CHECK_INT(tsr_client_release(second, 1), 3);
    tsr_client_close(second);
    k.client = own;
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 0);
    CHECK_INT(tsr_client_release(own, 2), 0);
    CHECK_INT(tsr_client_release(own, 1), 3);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 3);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_client_gets_no_more_leases_than_its_limit)
{
    struct kit k;
    kit_open(&k, (const char *const[]){"lease_entries_max", "5", NULL});
    uint32_t *tokens = kit_tokens(1, 128);
    CHECK_INT(kit_store_prefix(&k, tokens, 128), 128);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 128);
    struct kit_hits hits;
    /* What cannot be leased is not reported: the caller may rely on every row. */
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 80);
    CHECK_INT(kit_lookup(&k, &prompt, 1, &hits), 80);
    CHECK_INT(kit_lookup(&k, &prompt, 2, &hits), 0);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 128);
    CHECK_INT(tsr_client_release(k.client, 1), 5);
    CHECK_INT(kit_lookup(&k, &prompt, 2, &hits), 80);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 3);
    CHECK_INT(tsr_client_release(k.client, 2), 5);
    /* Any number of requests, one after the other. */
    for (uint64_t id = 1; id < 3000; id++) {
        CHECK_INT(kit_lookup(&k, &prompt, id * 0x10001, &hits), 80);
        CHECK_INT(tsr_client_release(k.client, id * 0x10001), 5);
    }
    free(tokens);
    CHECK(kit_end(&k));
}

/* ---- a client that many threads use ---- */

struct sharer {
    struct kit *k;
    uint64_t id;
    atomic_bool *stop;
    uint64_t n_rows, n_lost;
};

/* Every row that a lookup reports under a request id is leased: it must be there until release. */
static void *lookup_and_load(void *arg)
{
    struct sharer *s = arg;
    uint32_t *tokens = kit_tokens(s->id, 64);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64);
    while (!atomic_load(s->stop)) {
        struct kit_hits hits;
        (void)!kit_store_prefix(s->k, tokens, 64);
        (void)!kit_lookup(s->k, &prompt, s->id, &hits);
        sched_yield();
        for (uint32_t i = 0; i < hits.io.n_matches; i++, s->n_rows++)
            s->n_lost += kit_load(s->k, &prompt, &hits, i) != 0;
        if (s->n_rows % 3 == 0) tsr_client_release(s->k->client, s->id);
    }
    free(tokens);
    return NULL;
}

TEST(threads_that_share_a_client_get_no_row_without_its_lease)
{
    enum { N = 6 };
    struct kit k;
    kit_open(&k, (const char *const[]){"lease_entries_max", "6", NULL});
    struct sharer sharers[N];
    pthread_t threads[N];
    atomic_bool stop = false;
    for (uint64_t i = 0; i < N; i++) {
        sharers[i] = (struct sharer){.k = &k, .id = i + 1, .stop = &stop};
        pthread_create(&threads[i], NULL, lookup_and_load, &sharers[i]);
    }
    uint64_t until = tsri_now_ns() + 1000000000;
    while (tsri_now_ns() < until)
        CHECK(kit_evict_all(&k) >= 0);
    atomic_store(&stop, true);
    uint64_t n_rows = 0, n_lost = 0;
    for (uint64_t i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        n_rows += sharers[i].n_rows;
        n_lost += sharers[i].n_lost;
        tsr_client_release(k.client, i + 1);
    }
    CHECK(n_rows > 100);
    CHECK_INT(n_lost, 0);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(leased_entries_stay_until_they_are_released);
    RUN(the_leases_of_a_client_go_with_it_and_no_others);
    RUN(a_client_gets_no_more_leases_than_its_limit);
    RUN(threads_that_share_a_client_get_no_row_without_its_lease);
    return test_end();
}
