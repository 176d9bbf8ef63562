/* test_pool.c - pages are handed out once at a time, all or none, and an unused pool costs no
 * memory; held against a map with one owner a page. */
#include "cache/core.h"

#include "support/cache_kit.h"
#include "support/test.h"

#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
#define PAGES 300u
#define RUNS_MAX 64u

TEST(pages_have_one_owner_and_keep_their_bytes)
{
    struct tsri_pool p;
    CHECK_INT(tsri_pool_init(&p, PAGES * PAGE, PAGE), 0);
    CHECK_INT(p.n_pages, PAGES);
    static uint8_t owner[PAGES];
    static struct {
        uint32_t n, pages[PAGES];
    } runs[RUNS_MAX];
    uint32_t n_free = PAGES, n_refused = 0;
    uint64_t seed = 5;
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t r = (uint32_t)(test_rand(&seed) % RUNS_MAX);
        if (runs[r].n) {
            for (uint32_t i = 0; i < runs[r].n; i++) {
                const uint8_t *page = tsri_pool_page(&p, runs[r].pages[i]);
                CHECK(page[0] == (uint8_t)r && page[PAGE - 1] == (uint8_t)r);
                owner[runs[r].pages[i]] = 0;
            }
            tsri_pool_free(&p, runs[r].n, runs[r].pages);
            n_free += runs[r].n;
            runs[r].n = 0;
        } else {
            uint32_t n = 1 + (uint32_t)(test_rand(&seed) % 17);
            bool had = tsri_pool_alloc(&p, n, runs[r].pages);
            CHECK(had == (n <= n_free));
            n_refused += !had;
            if (!had) continue;
            runs[r].n = n;
            n_free -= n;
            for (uint32_t i = 0; i < n; i++) {
                CHECK(runs[r].pages[i] < PAGES);
                CHECK(owner[runs[r].pages[i]] == 0);
                owner[runs[r].pages[i]] = 1;
                memset(tsri_pool_page(&p, runs[r].pages[i]), (int)r, PAGE);
            }
        }
        CHECK_INT(tsri_pool_n_free(&p), n_free);
        if (step % 100 == 0) CHECK(tsri_pool_is_valid(&p));
    }
    CHECK(n_refused > 0);
    tsri_pool_fini(&p);
}

TEST(too_many_at_once_takes_none)
{
    struct tsri_pool p;
    CHECK_INT(tsri_pool_init(&p, 8 * PAGE, PAGE), 0);
    uint32_t pages[9];
    CHECK(!tsri_pool_alloc(&p, 9, pages));
    CHECK_INT(tsri_pool_n_free(&p), 8);
    CHECK(tsri_pool_alloc(&p, 8, pages));
    CHECK(!tsri_pool_alloc(&p, 1, pages + 8));
    CHECK_INT(tsri_pool_n_free(&p), 0);
    tsri_pool_free(&p, 3, pages);
    CHECK(!tsri_pool_alloc(&p, 4, pages));
    CHECK_INT(tsri_pool_n_free(&p), 3);
    tsri_pool_fini(&p);
}

TEST(neighbours_stay_neighbours)
{
    struct tsri_pool p;
    CHECK_INT(tsri_pool_init(&p, 16 * PAGE, PAGE), 0);
    uint32_t pages[8], again[8];
    CHECK(tsri_pool_alloc(&p, 8, pages));
    for (uint32_t i = 1; i < 8; i++)
        CHECK_INT(pages[i], pages[i - 1] + 1);
    tsri_pool_free(&p, 8, pages);
    CHECK(tsri_pool_alloc(&p, 8, again));
    CHECK(memcmp(pages, again, sizeof pages) == 0);
    tsri_pool_fini(&p);
}

TEST(pages_that_were_never_used_are_not_resident)
{
    struct tsri_pool p;
    size_t bytes = (size_t)64 << 20;
    CHECK_INT(tsri_pool_init(&p, bytes, 256 << 10), 0);
    uint32_t pages[4];
    CHECK(tsri_pool_alloc(&p, 4, pages));
    tsri_pool_free(&p, 4, pages);
    static unsigned char resident[(64 << 20) / 4096];
    CHECK_INT(sysconf(_SC_PAGESIZE) >= 4096, 1);
    CHECK_INT(mincore(p.region.data, bytes, resident), 0);
    size_t n = 0;
    for (size_t i = 0; i < bytes / (size_t)sysconf(_SC_PAGESIZE); i++)
        n += resident[i] & 1;
    CHECK_INT(n, 0);
    tsri_pool_fini(&p);
}

TEST(sizes_that_make_no_pool_are_refused)
{
    struct tsri_pool p;
    CHECK_INT(tsri_pool_init(&p, PAGE - 1, PAGE), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "host_size");
    CHECK_INT(tsri_pool_init(&p, (size_t)1 << 44, PAGE), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "host_page_size");
    CHECK_INT(tsri_pool_init(&p, 2 * PAGE + 1, PAGE), 0);
    CHECK_INT(p.n_pages, 2); /* what is left over is not used */
    tsri_pool_fini(&p);
}

TEST(the_walker_sees_a_page_that_was_never_given_out)
{
    struct tsri_pool p;
    CHECK_INT(tsri_pool_init(&p, 8 * PAGE, PAGE), 0);
    uint32_t pages[2];
    CHECK(tsri_pool_alloc(&p, 2, pages));
    tsri_pool_free(&p, 2, pages);
    CHECK(tsri_pool_is_valid(&p));
    p.stack[0] = 7;
    CHECK(!tsri_pool_is_valid(&p));
    tsri_pool_fini(&p);
}

TEST(a_shared_pool_is_read_by_others_where_it_lies)
{
    struct tsri_pool p;
    struct tsri_region reader;
    uint32_t pages[3];
    CHECK_INT(tsri_pool_init_shared(&p, PAGES * PAGE, PAGE), 0);
    CHECK_INT(p.n_pages, PAGES);
    CHECK(tsri_pool_alloc(&p, 3, pages));
    memset(tsri_pool_page(&p, pages[2]), 5, PAGE);
    CHECK_INT(tsri_region_init_reader(&reader, p.region.fd, PAGES * PAGE), 0);
    CHECK_INT(reader.data[(size_t)pages[2] * PAGE + PAGE - 1], 5);
    CHECK_INT(reader.data[(size_t)pages[1] * PAGE], 0);
    tsri_region_fini(&reader);
    tsri_pool_fini(&p);
    tsri_pool_fini(&p);
}

/* The KV of an entry of a cache opened with owner: embedded stands in memory that a descriptor
 * reaches; without it there is none. */
TEST(a_cache_shares_its_pool_when_it_is_to_serve_others)
{
    struct kit k;
    kit_open(&k, NULL);
    CHECK(!k.cache->pool.region.shared);
    kit_close(&k);
    kit_open(&k, (const char *const[]){"owner", "embedded", NULL});
    uint32_t *tokens = kit_tokens(3, 40);
    CHECK_INT(kit_store_segment(&k, tokens, 40), 40);
    struct kit_hits hits;
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 40, &range);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 40);
    CHECK_INT(kit_load(&k, &prompt, &hits, 0), 0);
    struct tsri_region reader;
    CHECK(k.cache->pool.region.shared);
    CHECK_INT(tsri_region_init_reader(&reader, k.cache->pool.region.fd, k.cache->pool.region.bytes),
              0);
    CHECK(memcmp(reader.data, k.cache->pool.region.data, reader.bytes) == 0);
    size_t n_used = 0;
    for (size_t i = 0; i < reader.bytes; i++)
        n_used += reader.data[i] != 0;
    CHECK(n_used > 0);
    tsri_region_fini(&reader);
    free(tokens);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(pages_have_one_owner_and_keep_their_bytes);
    RUN(too_many_at_once_takes_none);
    RUN(neighbours_stay_neighbours);
    RUN(pages_that_were_never_used_are_not_resident);
    RUN(sizes_that_make_no_pool_are_refused);
    RUN(the_walker_sees_a_page_that_was_never_given_out);
    RUN(a_shared_pool_is_read_by_others_where_it_lies);
    RUN(a_cache_shares_its_pool_when_it_is_to_serve_others);
    return test_end();
}
