/* The table of requests. */
#include "connector/connector.h"
#include "support/test.h"

TEST(every_request_is_found_by_its_id_and_no_other)
{
    struct tsri_reqs t;
    CHECK_INT(tsri_reqs_init(&t), 0);
    for (uint64_t id = 1; id <= 5000; id++) /* more than buckets: the table grows */
        CHECK(tsri_reqs_add(&t, id * 1024));
    for (uint64_t id = 1; id <= 5000; id++)
        CHECK_INT(tsri_reqs_find(&t, id * 1024)->id, id * 1024);
    CHECK(!tsri_reqs_find(&t, 1023));
    for (uint64_t id = 1; id <= 5000; id += 2)
        tsri_reqs_remove(&t, tsri_reqs_find(&t, id * 1024));
    CHECK_INT(t.n, 2500);
    CHECK(!tsri_reqs_find(&t, 1024));
    CHECK(tsri_reqs_find(&t, 2048));
    tsri_reqs_fini(&t);
}

TEST(tokens_that_are_known_stay_as_they_are)
{
    struct tsri_reqs t;
    CHECK_INT(tsri_reqs_init(&t), 0);
    struct tsri_req *r = tsri_reqs_add(&t, 1);
    uint32_t a[] = {1, 2, 3, 4}, b[] = {9, 9, 5, 6};
    CHECK_INT(tsri_req_tokens(r, 0, a, 4), 0);
    CHECK_INT(tsri_req_tokens(r, 2, b, 4), 0);
    CHECK_INT(r->n_tokens, 6);
    uint32_t all[] = {1, 2, 3, 4, 5, 6};
    CHECK(memcmp(r->tokens, all, sizeof all) == 0);
    CHECK_INT(tsri_req_tokens(r, 0, b, 2), 0);
    CHECK(memcmp(r->tokens, all, sizeof all) == 0);
    CHECK_INT(tsri_req_tokens(r, 8, a, 1), TSR_EINVAL); /* a gap */
    for (uint32_t i = 6; i < 1000; i++)
        CHECK_INT(tsri_req_tokens(r, i, &i, 1), 0);
    CHECK_INT(r->tokens[999], 999);
    tsri_reqs_fini(&t);
}

TEST(blocks_are_added_or_replaced)
{
    struct tsri_reqs t;
    CHECK_INT(tsri_reqs_init(&t), 0);
    struct tsri_req *r = tsri_reqs_add(&t, 1);
    int32_t a[] = {7, 8, 9};
    CHECK_INT(tsri_req_blocks(r, 1, false, a, 3), 0);
    CHECK_INT(tsri_req_blocks(r, 1, false, a + 1, 1), 0);
    CHECK_INT(r->n_blocks[1], 4);
    CHECK_INT(r->blocks[1][3], 8);
    CHECK_INT(tsri_req_blocks(r, 1, true, a + 2, 1), 0);
    CHECK_INT(r->n_blocks[1], 1);
    CHECK_INT(r->blocks[1][0], 9);
    CHECK_INT(r->n_blocks[0], 0);
    uint32_t life = r->life;
    r->upto = 64;
    tsri_req_restart(r);
    CHECK_INT(r->n_blocks[1], 0);
    CHECK_INT(r->upto, 0);
    CHECK_INT(r->life, life + 1);
    tsri_reqs_fini(&t);
}

int main(void)
{
    RUN(every_request_is_found_by_its_id_and_no_other);
    RUN(tokens_that_are_known_stay_as_they_are);
    RUN(blocks_are_added_or_replaced);
    return test_end();
}
