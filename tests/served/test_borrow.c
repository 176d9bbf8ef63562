/* test_borrow.c - ranges lent by a server: the pages are those that hold the tokens, they stay
 * while they are borrowed, and who reads them learns when it was in vain. */
#include "cache/source.h"
#include "support/served_kit.h"
#include "support/test.h"

static struct server_kit s;
static struct kit k;
static uint32_t *tokens;
static struct kit_hits hits;
static struct tsr_range range;
static struct tsr_prompt prompt;
static struct tsri_source source;
static struct tsri_source_range ranges[3];

static void fresh(void)
{
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    tokens = kit_tokens(4, 200);
    prompt = kit_segment_prompt(tokens, 200, &range);
    CHECK_INT(kit_store_segment(&k, tokens, 200), 200);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 200);
}

static void done(void)
{
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

static int borrow(struct tsri_source_range *at, const struct tsri_want *wants, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        CHECK_INT(tsri_source_want(&at[i], k.cache, &wants[i]), 0);
    source = (struct tsri_source){.c = k.cache, .client = k.client, .ranges = at, .n = n};
    CHECK_INT(tsri_source_open(&source), n);
    return tsri_source_fetch(&source, NULL);
}

/* All layers of a borrowed range, read where it is. */
static bool is_right(const struct tsri_source_range *r)
{
    size_t bytes = r->n_tokens * tsr_space_token_bytes(k.space);
    struct tsr_view view = {.data = malloc(bytes), .bytes = bytes};
    CHECK_INT(tsri_view_check(r->shape, &view, r->n_tokens, r->shape->n_layers), 0);
    tsri_source_copy(r, 0, r->shape->n_layers, &view);
    bool right = kit_right(k.space, kit_seen(kit_seed(k.space), tokens, r->offset),
                           tokens + r->offset, r->n_tokens, 0, r->shape->n_layers, &view);
    free(view.data);
    return right;
}

TEST(any_part_is_lent_with_the_cells_that_hold_it)
{
    fresh();
    for (uint32_t first = 0; first < 200; first += 23)
        for (uint32_t n = 1; first + n <= 200; n += 31) {
            struct tsri_want want = {
                .space = k.space, .match = &hits.matches[0], .offset = first, .n_tokens = n};
            CHECK_INT(borrow(ranges, &want, 1), 0);
            CHECK_INT(ranges[0].result, 0);
            CHECK_INT(ranges[0].base, 0);
            CHECK_INT(ranges[0].cell_first, first / 64);
            CHECK_INT(ranges[0].n_pages, (first + n - 1) / 64 - first / 64 + 1);
            CHECK(is_right(&ranges[0]));
            CHECK(tsri_source_holds(&source));
            tsri_source_close(&source);
        }
    done();
}

TEST(what_is_borrowed_is_not_evicted_and_can_go_afterwards)
{
    fresh();
    struct tsri_want want = {.space = k.space, .match = &hits.matches[0]};
    CHECK_INT(borrow(ranges, &want, 1), 0);
    CHECK_INT(kit_evict_all(&s.k), 0);
    CHECK(is_right(&ranges[0]));
    tsri_source_close(&source);
    tsri_source_close(&source); /* holds nothing any more */
    CHECK(server_wait_leased(&s, 0));
    CHECK_INT(kit_evict_all(&s.k), 1);
    CHECK_INT(borrow(ranges, &want, 1), 0); /* gone: told for its range */
    CHECK_INT(ranges[0].result, TSR_ENOENT);
    tsri_source_close(&source);
    done();
}

TEST(the_end_of_the_session_is_seen_by_who_still_reads)
{
    fresh();
    struct tsri_want want = {.space = k.space, .match = &hits.matches[0]};
    CHECK_INT(borrow(ranges, &want, 1), 0);
    CHECK(tsri_source_holds(&source));
    tsr_server_close(s.server);
    CHECK(!tsri_source_holds(&source));
    (void)is_right(&ranges[0]); /* it can still be read, in vain */
    tsri_source_close(&source);
    CHECK_INT(borrow(ranges, &want, 1), 0); /* a miss */
    CHECK_INT(ranges[0].result, TSR_ENOENT);
    tsri_source_close(&source);
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_config_set(cfg, "server_socket", s.path), 0);
    CHECK_INT(tsr_server_open(&s.server, s.k.cache, cfg), 0);
    tsr_config_close(cfg);
    done();
}

TEST(more_ranges_than_one_request_takes_are_asked_in_several)
{
    enum { N = 9000 };
    fresh();
    struct tsri_want *wants = calloc(N, sizeof *wants);
    struct tsri_source_range *many = calloc(N, sizeof *many);
    for (uint32_t i = 0; i < N; i++)
        wants[i] = (struct tsri_want){
            .space = k.space, .match = &hits.matches[0], .offset = i % 199, .n_tokens = 1};
    CHECK_INT(borrow(many, wants, N), 0);
    for (uint32_t i = 0; i < N; i += 97)
        CHECK(many[i].result == 0 && is_right(&many[i]));
    tsri_source_close(&source);
    CHECK(server_wait_leased(&s, 0));
    free(many);
    free(wants);
    done();
}

/* The server compares with the one prompt of a request, so no other may travel with it. */
TEST(ranges_of_several_prompts_are_each_compared_with_their_own)
{
    fresh();
    struct tsr_match verified = hits.matches[0], nominated = hits.matches[0];
    nominated.verified = 0;
    uint32_t *others = kit_tokens(5, 200);
    struct tsr_prompt other = kit_segment_prompt(others, 200, &range);
    struct tsri_want wants[3] = {{.space = k.space, .match = &nominated, .prompt = &prompt},
                                 {.space = k.space, .match = &verified},
                                 {.space = k.space, .match = &nominated, .prompt = &other}};
    CHECK_INT(borrow(ranges, wants, 3), 0);
    CHECK(ranges[0].result == 0 && is_right(&ranges[0]));
    CHECK(ranges[1].result == 0 && is_right(&ranges[1]));
    CHECK_INT(ranges[2].result, TSR_ECORRUPT);
    tsri_source_close(&source);
    free(others);
    done();
}

int main(void)
{
    RUN(any_part_is_lent_with_the_cells_that_hold_it);
    RUN(what_is_borrowed_is_not_evicted_and_can_go_afterwards);
    RUN(the_end_of_the_session_is_seen_by_who_still_reads);
    RUN(more_ranges_than_one_request_takes_are_asked_in_several);
    RUN(ranges_of_several_prompts_are_each_compared_with_their_own);
    return test_end();
}
