/* test_borrow.c - ranges lent by a server: the pages are those that hold the tokens, they stay
 * while they are borrowed, and who reads them learns when it was in vain. */
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/source.h"
#include "support/served_kit.h"
#include "support/test.h"

static struct server_kit s;
static struct kit k;
static uint32_t *tokens;
static struct kit_hits hits;
static struct tsr_range range;
static struct tsr_prompt prompt;

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

static int borrow(struct tsri_borrow *b, const struct tsri_borrow_want *wants, uint32_t n)
{
    return tsri_borrow_init(b, tsri_client_seat(k.client), wants, n, tsri_now_ns() + 5000000000u);
}

/* All layers of a borrowed range, read where it lies. */
static bool is_right(const struct tsri_borrow *b, uint32_t i, uint32_t first)
{
    const struct tsri_borrowed *r = &b->ranges[i];
    size_t bytes = r->n_tokens * tsr_space_token_bytes(k.space);
    struct tsr_view view = {.data = malloc(bytes), .bytes = bytes};
    CHECK_INT(tsri_view_check(&r->shape, &view, r->n_tokens, r->shape.n_layers), 0);
    struct tsri_cell_move move = {.pool = b->mapping->pool.data,
                                  .shape = &r->shape,
                                  .pages = r->pages,
                                  .entry_tokens = r->entry_tokens,
                                  .offset = r->offset,
                                  .n_tokens = r->n_tokens,
                                  .n_layers = r->shape.n_layers,
                                  .to_view = true};
    tsri_cells_move(&move, &view);
    bool right = kit_right(k.space, kit_seen(kit_seed(k.space), tokens, first), tokens + first,
                           r->n_tokens, 0, r->shape.n_layers, &view);
    free(view.data);
    return right;
}

TEST(any_part_is_lent_with_the_cells_that_hold_it)
{
    fresh();
    for (uint32_t first = 0; first < 200; first += 23)
        for (uint32_t n = 1; first + n <= 200; n += 31) {
            struct tsri_borrow b;
            struct tsri_borrow_want want = {
                .space = k.space, .match = &hits.matches[0], .offset = first, .n_tokens = n};
            CHECK_INT(borrow(&b, &want, 1), 0);
            CHECK_INT(b.ranges[0].result, 0);
            CHECK_INT(b.ranges[0].stands, first);
            CHECK(is_right(&b, 0, first));
            void *planes[64];
            struct tsr_kv_cells cells;
            CHECK(tsri_borrow_n_planes(&b, 0) <= 64);
            tsri_borrow_cells(&b, 0, planes, &cells);
            CHECK_INT(cells.n_cells, (first + n - 1) / 64 - first / 64 + 1);
            CHECK(b.ranges[0].offset + n <= cells.n_tokens);
            CHECK(tsri_borrow_holds(&b));
            tsri_borrow_fini(&b);
        }
    done();
}

TEST(what_is_borrowed_is_not_evicted_and_can_go_afterwards)
{
    fresh();
    struct tsri_borrow b;
    struct tsri_borrow_want want = {.space = k.space, .match = &hits.matches[0]};
    CHECK_INT(borrow(&b, &want, 1), 0);
    CHECK_INT(kit_evict_all(&s.k), 0);
    CHECK(is_right(&b, 0, 0));
    tsri_borrow_fini(&b);
    tsri_borrow_fini(&b); /* holds nothing any more */
    CHECK(server_wait_leased(&s, 0));
    CHECK_INT(kit_evict_all(&s.k), 1);
    CHECK_INT(borrow(&b, &want, 1), 0); /* gone: told for its range */
    CHECK_INT(b.ranges[0].result, TSR_ENOENT);
    tsri_borrow_fini(&b);
    done();
}

TEST(the_end_of_the_session_is_seen_by_who_still_reads)
{
    fresh();
    struct tsri_borrow b;
    struct tsri_borrow_want want = {.space = k.space, .match = &hits.matches[0]};
    CHECK_INT(borrow(&b, &want, 1), 0);
    CHECK(tsri_borrow_holds(&b));
    tsr_server_close(s.server);
    CHECK(!tsri_borrow_holds(&b));
    (void)is_right(&b, 0, 0); /* it can still be read, in vain */
    tsri_borrow_fini(&b);
    CHECK_INT(borrow(&b, &want, 1), TSR_EAGAIN);
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
    struct tsri_borrow b;
    struct tsri_borrow_want *wants = calloc(N, sizeof *wants);
    for (uint32_t i = 0; i < N; i++)
        wants[i] = (struct tsri_borrow_want){
            .space = k.space, .match = &hits.matches[0], .offset = i % 199, .n_tokens = 1};
    CHECK_INT(borrow(&b, wants, N), 0);
    for (uint32_t i = 0; i < N; i += 97)
        CHECK(b.ranges[i].result == 0 && is_right(&b, i, i % 199));
    tsri_borrow_fini(&b);
    CHECK(server_wait_leased(&s, 0));
    free(wants);
    done();
}

int main(void)
{
    RUN(any_part_is_lent_with_the_cells_that_hold_it);
    RUN(what_is_borrowed_is_not_evicted_and_can_go_afterwards);
    RUN(the_end_of_the_session_is_seen_by_who_still_reads);
    RUN(more_ranges_than_one_request_takes_are_asked_in_several);
    return test_end();
}
