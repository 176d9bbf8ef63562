/* Leases through the public API: what a lookup under a request id keeps in place, for how long, and
 * how much of it. */
#include "support/cache_kit.h"
#include "support/test.h"

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
    CHECK_INT(tsr_evict(k.cache, 1 << 20), 2);
    CHECK_INT(tsr_clear(k.cache, NULL), 0);
    CHECK_INT(kit_load(&k, &pa, &hits, 1), 0);

    /* The same request again: its leases are replaced, not added to. */
    CHECK_INT(kit_lookup(&k, &pa, 7, &hits), 32);
    CHECK_INT(tsr_release(k.client, 7), 2);
    CHECK_INT(tsr_release(k.client, 7), 0);
    CHECK_INT(kit_store_prefix(&k, b, 32), 32);
    CHECK_INT(kit_lookup(&k, &pa, 7, &hits), 32);
    CHECK_INT(kit_lookup(&k, &pb, 7, &hits), 32);
    CHECK_INT(tsr_evict(k.cache, 1 << 20), 2);
    CHECK_INT(kit_find_prefix(&k, a, 32), 0);
    CHECK_INT(kit_find_prefix(&k, b, 32), 32);
    /* A lookup under the id that finds nothing gives up what it had. */
    CHECK_INT(kit_lookup(&k, &pa, 7, &hits), 0);
    CHECK_INT(tsr_evict(k.cache, 1 << 20), 2);
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
    CHECK_INT(tsr_release(second, 1), 3);
    tsr_client_close(second);
    k.client = own;
    CHECK_INT(tsr_evict(k.cache, 1 << 20), 0);
    CHECK_INT(tsr_release(own, 2), 0);
    CHECK_INT(tsr_release(own, 1), 3);
    CHECK_INT(tsr_evict(k.cache, 1 << 20), 3);
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
    CHECK_INT(tsr_release(k.client, 1), 5);
    CHECK_INT(kit_lookup(&k, &prompt, 2, &hits), 80);
    CHECK_INT(tsr_evict(k.cache, 1 << 20), 3);
    CHECK_INT(tsr_release(k.client, 2), 5);
    /* Any number of requests, one after the other. */
    for (uint64_t id = 1; id < 3000; id++) {
        CHECK_INT(kit_lookup(&k, &prompt, id * 0x10001, &hits), 80);
        CHECK_INT(tsr_release(k.client, id * 0x10001), 5);
    }
    free(tokens);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(leased_entries_stay_until_they_are_released);
    RUN(the_leases_of_a_client_go_with_it_and_no_others);
    RUN(a_client_gets_no_more_leases_than_its_limit);
    return test_end();
}
