/* test_browse.c - looking at a whole cache: a list that misses nothing and repeats nothing, spaces
 * by their fingerprint, and bringing up what fits without pushing anything out. */
#include "cache/manager.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

static struct fake_tier_plan plan;

static void tiered_open(struct kit *k)
{
    fake_tier_plan_init(&plan);
    kit_open_tiers(k, NULL, &plan, 1);
}

static void tiered_end(struct kit *k)
{
    CHECK(kit_end(k));
    fake_tier_plan_fini(&plan);
}

TEST(a_list_in_steps_of_any_length_has_every_entry_once)
{
    enum { N = 40 };
    struct kit k;
    struct tsri_entry_row rows[N + 8];
    kit_open(&k, NULL);
    for (uint64_t i = 0; i < N; i++)
        CHECK(kit_entry(&k, 1 + i, 20, TSRI_ID_NONE) != TSRI_ID_NONE);
    for (uint32_t step = 1; step < N + 8; step += 3) {
        uint32_t n = 0, next = 0;
        while (next != TSRI_LIST_END) {
            CHECK(n < N + 8);
            uint32_t room = tsri_min_u32(step, N + 8 - n);
            n += tsri_cache_list(k.cache, next, rows + n, room, &next);
        }
        CHECK_INT(n, N);
        for (uint64_t i = 0; i < N; i++) {
            struct tsri_key key = kit_key(1 + i);
            int seen = 0;
            for (uint32_t r = 0; r < n; r++)
                seen += memcmp(&rows[r].key, &key, sizeof key) == 0;
            CHECK_INT(seen, 1);
        }
    }
    CHECK_INT(rows[0].n_tokens, 20);
    CHECK_INT(rows[0].bytes, 20 * tsr_space_token_bytes(k.space));
    CHECK(rows[0].kind == TSR_KIND_SEGMENT && rows[0].tiers == 1 && rows[0].pins == 0);
    CHECK(kit_end(&k));
}

TEST(an_empty_cache_lists_nothing_and_says_so)
{
    struct kit k;
    struct tsri_entry_row row;
    uint32_t next = 7;
    kit_open(&k, NULL);
    CHECK_INT(tsri_cache_list(k.cache, 0, &row, 1, &next), 0);
    CHECK_INT(next, TSRI_LIST_END);
    CHECK_INT(tsri_cache_list(k.cache, UINT32_MAX - 1, &row, 1, &next), 0);
    CHECK_INT(next, TSRI_LIST_END);
    CHECK(kit_end(&k));
}

TEST(pins_and_tiers_are_told)
{
    struct kit k;
    struct tsri_entry_row row;
    struct tsr_range range;
    uint32_t next;
    tiered_open(&k);
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_prompt p = kit_segment_prompt(tokens, 64, &range);
    CHECK_INT(kit_store_segment(&k, tokens, 64), 64);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(tsr_space_pin(k.space, &p), 1);
    CHECK_INT(tsri_cache_list(k.cache, 0, &row, 1, &next), 1);
    CHECK(row.tiers == 3 && row.user_pins == 1 && row.pins == 1);
    CHECK_INT(tsr_space_unpin(k.space, &p), 1);
    CHECK_INT(kit_evict_all(&k), 1);
    CHECK_INT(tsri_cache_list(k.cache, 0, &row, 1, &next), 1);
    CHECK(row.tiers == 2 && row.pins == 0);
    free(tokens);
    tiered_end(&k);
}

TEST(a_space_is_found_by_its_fingerprint_and_kept)
{
    struct kit k;
    struct tsr_space *found;
    bool shaped = false;
    uint8_t fingerprint[16];
    kit_open(&k, NULL);
    tsr_space_fingerprint(k.space, fingerprint);
    CHECK_INT(tsri_space_find(&found, k.cache, fingerprint, &shaped), 0);
    CHECK(found == k.space && shaped);
    CHECK_INT(k.space->refs, 2);
    tsr_space_close(found);
    fingerprint[0] ^= 1;
    CHECK_INT(tsri_space_find(&found, k.cache, fingerprint, &shaped), TSR_ENOENT);
    CHECK(kit_end(&k));
}

TEST(what_fits_is_brought_up_and_nothing_is_pushed_out)
{
    enum { N = 70 }; /* the kit has 64 pages, and each takes one */
    struct kit k;
    tiered_open(&k);
    uint32_t *tokens = kit_tokens(4, N * 64);
    for (uint32_t i = 0; i < N; i++) {
        CHECK_INT(kit_store_segment(&k, tokens + i * 64, 64), 64);
        CHECK_INT(tsr_cache_flush(k.cache), 0); /* what waits to be written cannot go */
    }
    CHECK(kit_evict_all(&k) > 0);
    CHECK_INT(tsri_cache_warm(k.cache, 1, NULL), 1); /* so many bytes are soon too many */
    CHECK_INT(kit_stats(&k).tier_entries[0], 1);
    uint64_t evicted = kit_stats(&k).evicted;
    CHECK_INT(tsri_cache_warm(k.cache, 0, NULL), 63);
    CHECK_INT(kit_stats(&k).tier_entries[0], 64);
    CHECK_INT(kit_stats(&k).evicted, evicted);
    CHECK_INT(tsri_cache_warm(k.cache, 0, NULL), 0);
    for (uint32_t i = 0; i < N; i++)
        CHECK_INT(kit_find_segment(&k, tokens + i * 64, 64), 64);
    CHECK(kit_valid(&k));
    free(tokens);
    tiered_end(&k);
}

TEST(a_tier_that_fails_brings_nothing_and_keeps_nothing)
{
    struct kit k;
    tiered_open(&k);
    uint32_t *tokens = kit_tokens(5, 64);
    CHECK_INT(kit_store_segment(&k, tokens, 64), 64);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(kit_evict_all(&k), 1);
    fake_tier_fail(&plan, FAKE_GET, 1, 100, TSR_EIO);
    CHECK_INT(tsri_cache_warm(k.cache, 0, NULL), 0);
    CHECK(kit_valid(&k));
    free(tokens);
    tiered_end(&k);
}

int main(void)
{
    RUN(a_list_in_steps_of_any_length_has_every_entry_once);
    RUN(an_empty_cache_lists_nothing_and_says_so);
    RUN(pins_and_tiers_are_told);
    RUN(a_space_is_found_by_its_fingerprint_and_kept);
    RUN(what_fits_is_brought_up_and_nothing_is_pushed_out);
    RUN(a_tier_that_fails_brings_nothing_and_keeps_nothing);
    return test_end();
}
