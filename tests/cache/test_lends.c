/* test_lends.c - entries lent to readers that copy out of the pool themselves: the pages named hold
 * exactly the range asked for, they stay until the lease is released, what only a lower tier has
 * is fetched and compared, and what cannot be lent says why. */
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/source.h"

#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#define N 150u

static const char *const embedded[] = {"owner", "embedded", NULL};

struct lent {
    struct kit k;
    struct tsri_region reader;
    uint32_t *tokens;
    struct tsr_range range;
    struct tsr_prompt prompt;
    struct kit_hits hits;
    struct tsri_source lends;
    struct tsri_source_range ranges[100];
};

static void lent_open(struct lent *f, const char *const *options, struct fake_tier_plan *plan)
{
    kit_open_tiers(&f->k, options, plan, plan ? 1 : 0);
    const struct tsri_region *pool = &f->k.cache->pool.region;
    CHECK_INT(tsri_region_init_reader(&f->reader, pool->fd, pool->bytes), 0);
    f->tokens = kit_tokens(11, N);
    f->prompt = kit_segment_prompt(f->tokens, N, &f->range);
    CHECK_INT(kit_store_segment(&f->k, f->tokens, N), (int)N);
}

static void lent_look(struct lent *f)
{
    CHECK_INT(kit_lookup(&f->k, &f->prompt, 0, &f->hits), (int)N);
    CHECK_INT(f->hits.io.n_matches, 1);
}

static bool lent_end(struct lent *f)
{
    tsri_region_fini(&f->reader);
    free(f->tokens);
    return kit_end(&f->k);
}

static struct tsri_want want_of(struct lent *f, uint32_t offset, uint32_t n)
{
    return (struct tsri_want){
        .space = f->k.space, .match = &f->hits.matches[0], .offset = offset, .n_tokens = n};
}

/* Lends what is wanted, as the server does; how many only a lower tier has. */
static uint32_t lend(struct lent *f, uint64_t request_id, const struct tsr_prompt *prompt,
                     const struct tsri_want *wants, uint32_t n)
{
    CHECK(n <= TSRI_COUNT(f->ranges));
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_want want = wants[i];
        want.prompt = prompt;
        CHECK_INT(tsri_source_want(&f->ranges[i], f->k.cache, &want), 0);
    }
    f->lends =
        (struct tsri_source){.c = f->k.cache, .client = f->k.client, .ranges = f->ranges, .n = n};
    return tsri_lends_open(&f->lends, request_id);
}

/* Copies what was lent, as another process would: with nothing but the reader's mapping, the shape
 * and the pages. */
static bool reads_right(struct lent *f, const struct tsri_source_range *l)
{
    static uint8_t kv[N * 256];
    const struct tsri_shape *shape = &f->k.space->shape;
    uint32_t skip = l->cell_first * shape->cell_tokens;
    uint32_t n = l->n_tokens;
    struct tsr_view view = {.data = kv, .bytes = sizeof kv};
    if (tsri_view_check(shape, &view, n, shape->n_layers) != 0) return false;
    struct tsri_cell_move move = {.pool = f->reader.data,
                                  .shape = shape,
                                  .pages = l->pages,
                                  .entry_tokens = l->entry_tokens - skip,
                                  .offset = l->offset - skip,
                                  .n_tokens = n,
                                  .n_layers = shape->n_layers,
                                  .to_view = true};
    memset(kv, 0xee, sizeof kv);
    tsri_cells_move(&move, &view);
    return kit_right(f->k.space, kit_seen(kit_seed(f->k.space), f->tokens, l->offset),
                     f->tokens + l->offset, n, 0, shape->n_layers, &view);
}

TEST(the_pages_lent_hold_the_range_and_no_more)
{
    struct lent f;
    lent_open(&f, embedded, NULL);
    lent_look(&f);
    uint64_t seed = 3;
    for (int round = 0; round < 300; round++) {
        uint32_t offset = (uint32_t)(test_rand(&seed) % N);
        uint32_t n = 1 + (uint32_t)(test_rand(&seed) % (N - offset));
        struct tsri_want want = want_of(&f, offset, offset + n == N && round % 2 ? 0 : n);
        const struct tsri_source_range *l = &f.ranges[0];
        CHECK_INT(lend(&f, 7, NULL, &want, 1), 0);
        CHECK_INT(l->result, 0);
        CHECK_INT(l->entry_tokens, N);
        CHECK_INT(l->cell_first, offset / 64);
        CHECK_INT(l->n_pages, (offset + n - 1) / 64 - offset / 64 + 1); /* one page a cell here */
        CHECK(reads_right(&f, l));
        CHECK_INT(tsri_lends_close(&f.lends), 1);
        CHECK_INT(tsr_client_release(f.k.client, 7), 1);
    }
    CHECK(kit_stats(&f.k).loads == 300);
    CHECK(lent_end(&f));
}

TEST(what_is_lent_stays_until_it_is_released)
{
    struct lent f;
    lent_open(&f, embedded, NULL);
    lent_look(&f);
    struct tsri_want want = want_of(&f, 0, 0);
    CHECK_INT(lend(&f, 7, NULL, &want, 1), 0);
    struct tsri_source_range kept = f.ranges[0]; /* what went over the wire */
    CHECK_INT(tsri_lends_close(&f.lends), 1);
    CHECK_INT(kit_evict_all(&f.k), 0);
    CHECK_INT(tsr_cache_clear(f.k.cache, NULL), 0);
    for (uint64_t i = 0; i < 80; i++) { /* more than the pool holds */
        uint32_t *other = kit_tokens(100 + i, 64);
        int n = kit_store_segment(&f.k, other, 64);
        CHECK(n == 64 || n == TSR_EFULL);
        free(other);
    }
    CHECK(reads_right(&f, &kept));
    CHECK_INT(tsr_client_release(f.k.client, 7), 1);
    CHECK(kit_evict_all(&f.k) > 0);
    CHECK_INT(kit_find_segment(&f.k, f.tokens, N), 0);
    /* A match of something that is gone is a miss. */
    CHECK_INT(lend(&f, 7, NULL, &want, 1), 0);
    CHECK_INT(f.ranges[0].result, TSR_ENOENT);
    CHECK_INT(tsri_lends_close(&f.lends), 0);
    CHECK_INT(tsr_client_release(f.k.client, 7), 0);
    CHECK(lent_end(&f));
}

TEST(one_request_may_borrow_often_and_lets_go_all_at_once)
{
    struct lent f;
    lent_open(&f, embedded, NULL);
    lent_look(&f);
    struct tsri_want wants[3] = {want_of(&f, 0, 10), want_of(&f, 60, 10), want_of(&f, 140, 0)};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(lend(&f, 9, NULL, wants, 3), 0);
        for (uint32_t r = 0; r < 3; r++)
            CHECK(reads_right(&f, &f.ranges[r]));
        CHECK_INT(tsri_lends_close(&f.lends), 3);
    }
    CHECK_INT(tsr_client_release(f.k.client, 8), 0);
    CHECK_INT(tsr_client_release(f.k.client, 9), 6);
    CHECK(lent_end(&f));
}

TEST(a_client_borrows_no_more_than_its_leases)
{
    struct lent f;
    lent_open(&f, (const char *const[]){"owner", "embedded", "lease_entries_max", "2", NULL}, NULL);
    lent_look(&f);
    struct tsri_want wants[3] = {want_of(&f, 0, 10), want_of(&f, 60, 10), want_of(&f, 140, 0)};
    CHECK_INT(lend(&f, 9, NULL, wants, 3), 0);
    CHECK(f.ranges[0].result == 0 && f.ranges[1].result == 0);
    CHECK_INT(f.ranges[2].result, TSR_EFULL);
    CHECK_INT(tsri_lends_close(&f.lends), 2);
    CHECK_INT(tsri_client_release_all(f.k.client), 2);
    CHECK_INT(tsri_client_release_all(f.k.client), 0);
    CHECK(lent_end(&f));
}

TEST(what_only_the_entry_can_tell_concerns_its_range_alone)
{
    struct lent f;
    lent_open(&f, embedded, NULL);
    lent_look(&f);
    struct tsr_space_desc desc = kit_desc();
    desc.n_layers = 3;
    struct tsr_space *wider = kit_space(f.k.cache, &desc);
    struct tsr_match odd = f.hits.matches[0];
    struct tsri_want wants[3] = {want_of(&f, 0, 10), want_of(&f, 0, 10), want_of(&f, 0, 10)};
    wants[1].space = wider;
    odd.n_tokens = N + 1, wants[2].match = &odd, wants[2].offset = N, wants[2].n_tokens = 1;
    CHECK_INT(lend(&f, 5, NULL, wants, 3), 0);
    CHECK_INT(f.ranges[0].result, 0);
    CHECK_INT(f.ranges[1].result, TSR_ESPACE);
    CHECK_INT(f.ranges[2].result, TSR_ESPACE);
    CHECK_INT(tsri_lends_close(&f.lends), 1);
    CHECK_INT(tsr_client_release(f.k.client, 5), 1);
    tsr_space_close(wider);
    CHECK(lent_end(&f));
}

/* Verified or not: what is fetched may not be what was found. */
TEST(what_a_lower_tier_has_is_fetched_and_compared)
{
    struct lent f;
    struct fake_tier_plan plan;
    fake_tier_plan_init(&plan);
    lent_open(&f, embedded, &plan);
    CHECK_INT(tsr_cache_flush(f.k.cache), 0);
    uint32_t *wrong = kit_tokens(12, N);
    struct tsr_range range;
    struct tsr_prompt other = kit_segment_prompt(wrong, N, &range);
    for (int verified = 0; verified < 2; verified++) {
        if (verified) lent_look(&f); /* it has come up */
        CHECK_INT(kit_evict_all(&f.k), 1);
        if (!verified) lent_look(&f);
        CHECK_INT(f.hits.matches[0].verified, verified);
        struct tsri_want want = want_of(&f, 70, 20);
        CHECK_INT(lend(&f, 3, &other, &want, 1), 1); /* the key would have had to collide */
        CHECK_INT(tsri_lends_fetch(&f.lends, &other, NULL), 0);
        CHECK(f.ranges[0].result < 0);
        CHECK_INT(tsri_lends_close(&f.lends), 0);
        CHECK_INT(tsr_client_release(f.k.client, 3), 1);
        CHECK_INT(kit_stats(&f.k).collisions, verified + 1);

        CHECK_INT(lend(&f, 3, &f.prompt, &want, 1), 1);
        struct tsr_prompt moved = f.prompt; /* a request is read again on the worker */
        CHECK_INT(tsri_lends_fetch(&f.lends, &moved, NULL), 0);
        CHECK_INT(f.ranges[0].result, 0);
        CHECK(reads_right(&f, &f.ranges[0]));
        CHECK_INT(tsri_lends_close(&f.lends), 1);
        CHECK_INT(tsr_client_release(f.k.client, 3), 1);
    }
    free(wrong);
    CHECK(lent_end(&f));
    fake_tier_plan_fini(&plan);
}

TEST(what_is_here_and_another_text_is_not_counted_as_lent)
{
    struct lent f;
    lent_open(&f, embedded, NULL);
    lent_look(&f);
    uint32_t *wrong = kit_tokens(12, N);
    struct tsr_range range;
    struct tsr_prompt other = kit_segment_prompt(wrong, N, &range);
    struct tsri_want want = want_of(&f, 0, 20);
    CHECK_INT(lend(&f, 3, &other, &want, 1), 0);
    CHECK_INT(f.ranges[0].result, TSR_ECORRUPT);
    CHECK_INT(tsri_lends_close(&f.lends), 0);
    CHECK_INT(kit_stats(&f.k).load_misses, 1);
    free(wrong);
    CHECK(lent_end(&f));
}

TEST(a_fetch_that_fails_is_told_of_its_range)
{
    struct lent f;
    struct fake_tier_plan plan;
    fake_tier_plan_init(&plan);
    lent_open(&f, embedded, &plan);
    CHECK_INT(tsr_cache_flush(f.k.cache), 0);
    CHECK_INT(kit_evict_all(&f.k), 1);
    lent_look(&f);
    struct tsri_want wants[100];
    for (uint32_t i = 0; i < 100; i++) /* more than one batch of fetches */
        wants[i] = want_of(&f, i, 1);
    for (int works = 0; works < 2; works++) {
        fake_tier_fail(&plan, works ? 0 : FAKE_GET, 1, works ? 0 : 1000, works ? 0 : TSR_EIO);
        CHECK_INT(lend(&f, 3, &f.prompt, wants, 100), 100);
        CHECK_INT(tsri_lends_fetch(&f.lends, &f.prompt, NULL), 0);
        for (uint32_t i = 0; i < 100; i++)
            CHECK(works ? f.ranges[i].result == 0 && reads_right(&f, &f.ranges[i])
                        : f.ranges[i].result < 0);
        CHECK_INT(tsri_lends_close(&f.lends), works ? 100 : 0);
        CHECK_INT(tsr_client_release(f.k.client, 3), 100);
    }
    CHECK(lent_end(&f));
    fake_tier_plan_fini(&plan);
}

int main(void)
{
    RUN(the_pages_lent_hold_the_range_and_no_more);
    RUN(what_is_lent_stays_until_it_is_released);
    RUN(one_request_may_borrow_often_and_lets_go_all_at_once);
    RUN(a_client_borrows_no_more_than_its_leases);
    RUN(what_only_the_entry_can_tell_concerns_its_range_alone);
    RUN(what_a_lower_tier_has_is_fetched_and_compared);
    RUN(what_is_here_and_another_text_is_not_counted_as_lent);
    RUN(a_fetch_that_fails_is_told_of_its_range);
    return test_end();
}
