/* test_allowance.c - memory for what clients send and do not fetch: floors that nobody else can use
 * up, for each side of a session and for each tenant, and a stock for all. */
#include "daemon/daemon.h"

#include "support/test.h"

#define MIB ((uint64_t)1 << 20)

/* As much as it gets, in pieces. */
static uint64_t take_all(struct tsri_allowance *a, uint64_t *side, uint32_t tenant)
{
    uint64_t got = 0;
    for (uint64_t bytes = MIB << 10; bytes; bytes /= 2)
        while (tsri_allowance_take(a, side, tenant, bytes))
            got += bytes;
    return got;
}

TEST(everything_together_is_server_memory)
{
    struct tsri_allowance a;
    uint64_t sides[2][16] = {{0}}, sum = 0;
    CHECK_INT(tsri_allowance_init(&a, 64 * MIB, 2, 16), 0);
    for (uint32_t i = 0; i < 16; i++)
        for (int k = 0; k < 2; k++)
            sum += take_all(&a, &sides[k][i], i % 2);
    CHECK_INT(sum, 64 * MIB);
    CHECK_INT(a.used, 64 * MIB);
    for (uint32_t i = 0; i < 16; i++)
        for (int k = 0; k < 2; k++)
            tsri_allowance_give(&a, &sides[k][i], i % 2, sides[k][i]);
    CHECK(a.used == 0 && a.stock_used == 0 && a.tenants[0] == 0 && a.tenants[1] == 0);
    tsri_allowance_fini(&a);
}

TEST(a_tenant_that_takes_everything_leaves_the_floor_of_another)
{
    struct tsri_allowance a;
    uint64_t greedy = 0, other = 0;
    CHECK_INT(tsri_allowance_init(&a, 256 * MIB, 2, 1024), 0);
    CHECK(take_all(&a, &greedy, 0) > 100 * MIB);
    CHECK_INT(take_all(&a, &other, 1), 64 * MIB + a.floor);
    tsri_allowance_fini(&a);
}

TEST(a_session_that_takes_everything_leaves_the_floor_of_its_neighbours)
{
    struct tsri_allowance a;
    uint64_t greedy = 0, other = 0, stranger = 0;
    CHECK_INT(tsri_allowance_init(&a, 256 * MIB, 1, 1024), 0);
    CHECK(take_all(&a, &greedy, 0) > 128 * MIB);
    CHECK_INT(a.floor, 32 << 10);
    CHECK_INT(take_all(&a, &other, 0), a.floor);
    /* And who has not said who it is gets no more than that at any time. */
    tsri_allowance_give(&a, &greedy, 0, greedy);
    CHECK_INT(take_all(&a, &stranger, TSRI_TENANT_NONE), a.floor);
    tsri_allowance_fini(&a);
}

TEST(what_is_given_back_may_be_had_again_in_any_order)
{
    struct tsri_allowance a;
    uint64_t sides[4] = {0}, random = 12345;
    CHECK_INT(tsri_allowance_init(&a, MIB, 2, 2), 0);
    for (int i = 0; i < 100000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t k = (uint32_t)(random >> 33) % 4;
        uint64_t bytes = (random >> 40) % 200000;
        if (random >> 63)
            (void)!tsri_allowance_take(&a, &sides[k], k % 2, bytes);
        else
            tsri_allowance_give(&a, &sides[k], k % 2, bytes < sides[k] ? bytes : sides[k]);
        CHECK(a.used <= MIB && a.stock_used <= a.stock);
    }
    for (uint32_t k = 0; k < 4; k++)
        tsri_allowance_give(&a, &sides[k], k % 2, sides[k]);
    CHECK(a.used == 0 && a.stock_used == 0 && a.tenants[0] == 0 && a.tenants[1] == 0);
    tsri_allowance_fini(&a);
}

int main(void)
{
    RUN(everything_together_is_server_memory);
    RUN(a_tenant_that_takes_everything_leaves_the_floor_of_another);
    RUN(a_session_that_takes_everything_leaves_the_floor_of_its_neighbours);
    RUN(what_is_given_back_may_be_had_again_in_any_order);
    return test_end();
}
