/* The list that the index is made of, and the questions to a server that was down. */
#include "support/s3_kit.h"
#include "support/s3_stub.h"
#include "support/test.h"

enum { N_ENTRIES = 25 };

static const struct kv_shape shape = {40, 16, 2, 2, {32, 32}, 0, 0};
static struct s3_stub stub;

static void fill(void)
{
    struct s3_kit kit = {.setup = {.timeout_ms = 2000}};
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    for (uint64_t seed = 0; seed < N_ENTRIES; seed++)
        CHECK_INT(kv_tier_put(kit.tier, &shape, seed), 0);
    s3_kit_close(&kit);
}

TEST(after_a_restart_the_list_tells_what_is_there)
{
    static const int pages[] = {1000, 25, 7, 1};
    fill();
    s3_stub_overwrite(&stub, "/" S3_KIT_BUCKET "/tessera/readme.txt", "hello", 5);
    for (size_t i = 0; i < TSRI_COUNT(pages); i++) {
        atomic_store(&stub.page_names, pages[i]);
        struct s3_kit kit = {.setup = {.timeout_ms = 2000}};
        CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
        CHECK(s3_kit_listed(&kit, 1, 10000));
        uint64_t heads = atomic_load(&stub.n_head);
        for (uint64_t seed = 0; seed < N_ENTRIES; seed++)
            CHECK(kv_tier_has(kit.tier, &shape, seed));
        CHECK_INT(atomic_load(&stub.n_head), heads); /* nobody was asked */
        struct tsr_tier_stats stats;
        CHECK_INT(tsri_tier_stats(kit.tier, &stats), 0);
        CHECK_INT(stats.entries, N_ENTRIES);
        CHECK(stats.bytes_used > N_ENTRIES * 40u * 128);
        s3_kit_close(&kit);
    }
    atomic_store(&stub.page_names, 0);
}

TEST(a_list_is_repeated_and_forgets_what_has_gone)
{
    struct s3_kit kit = {.setup = {.timeout_ms = 2000, .list_s = 1}};
    struct s3_kit other = {.setup = {.timeout_ms = 2000}};
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    CHECK_INT(s3_kit_open(&other, stub.endpoint), 0);
    CHECK(s3_kit_listed(&kit, 1, 10000));
    CHECK(kv_tier_has(kit.tier, &shape, 3));
    CHECK_INT(kv_tier_drop(other.tier, &shape, 3), 1);
    CHECK(kv_tier_has(kit.tier, &shape, 3)); /* not known yet: a read would tell */
    struct tsri_s3 *s = (struct tsri_s3 *)kit.tier;
    CHECK(s3_kit_listed(&kit, atomic_load(&s->n_listings) + 2, 10000));
    CHECK(!kv_tier_has(kit.tier, &shape, 3));
    CHECK(kv_tier_has(kit.tier, &shape, 4));
    s3_kit_close(&other);
    s3_kit_close(&kit);
}

TEST(a_list_that_fails_forgets_nothing)
{
    struct s3_kit kit = {.setup = {.timeout_ms = 2000, .list_s = 1}};
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    CHECK(s3_kit_listed(&kit, 1, 10000));
    struct tsri_s3 *s = (struct tsri_s3 *)kit.tier;
    s3_stub_fail(&stub, S3_BAD_LIST, 0, 0);
    WAIT_FOR(atomic_load(&s->errors) > 0);
    usleep(200000); /* for what the end of the list would do */
    CHECK_INT(atomic_load(&s->n_listings), 1);
    uint64_t heads = atomic_load(&stub.n_head);
    for (uint64_t seed = 4; seed < N_ENTRIES; seed++)
        CHECK(kv_tier_has(kit.tier, &shape, seed));
    CHECK_INT(atomic_load(&stub.n_head), heads);
    s3_stub_heal(&stub);
    s3_kit_close(&kit);
}

/* Some servers pass over the token of the next page. */
TEST(a_list_that_does_not_go_on_is_given_up)
{
    struct s3_kit kit = {.setup = {.timeout_ms = 2000}};
    atomic_store(&stub.page_names, 7);
    s3_stub_fail(&stub, S3_SAME_LIST, 0, 0);
    uint64_t lists = atomic_load(&stub.n_list);
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    struct tsri_s3 *s = (struct tsri_s3 *)kit.tier;
    WAIT_FOR(atomic_load(&s->errors) > 0);
    CHECK_INT(atomic_load(&stub.n_list) - lists, 2);
    CHECK_INT(atomic_load(&s->n_listings), 0);
    s3_stub_heal(&stub);
    atomic_store(&stub.page_names, 0);
    s3_kit_close(&kit);
}

TEST(a_server_that_is_down_is_asked_in_the_background_and_said_once)
{
    struct s3_kit kit = {.setup = {.timeout_ms = 300}};
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    CHECK(s3_kit_listed(&kit, 1, 10000));
    s3_kit_log_begin();
    atomic_store(&stub.status, 403);
    atomic_store(&stub.code, "RequestTimeTooSkewed");
    s3_stub_fail(&stub, S3_STATUS, 0, -1);
    CHECK(kv_tier_get(kit.tier, &shape, 5, 0) < 0);
    uint64_t requests = atomic_load(&stub.n_requests);
    uint64_t begin = tsri_now_ns();
    for (int i = 0; i < 1000; i++)
        CHECK_INT(kv_tier_get(kit.tier, &shape, 5, 0), TSR_EIO);
    CHECK((tsri_now_ns() - begin) / 1000000 < 2000);
    usleep(500000);
    uint64_t asked = atomic_load(&stub.n_requests) - requests;
    CHECK(asked >= 1 && asked <= 8); /* 0.1, 0.2, 0.4 s .. and none of the 1000 */
    CHECK_INT(s3_kit_log_lines(1), 1);
    CHECK_HAS(s3_kit_log(), "down (403 RequestTimeTooSkewed)");
    CHECK(strstr(s3_kit_log(), S3_KIT_SECRET) == NULL);
    s3_stub_heal(&stub);
    CHECK(kv_tier_until(kit.tier, &shape, 5, 0, 20000)); /* by itself */
    CHECK_INT(s3_kit_log_lines(2), 2);
    CHECK_HAS(s3_kit_log(), "works again");
    s3_kit_close(&kit);
}

TEST(closing_does_not_wait_for_a_server_that_is_silent)
{
    struct s3_kit kit = {.setup = {.timeout_ms = 60000}};
    s3_stub_fail(&stub, S3_SILENT, 0, -1);
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    usleep(100000);
    uint64_t begin = tsri_now_ns();
    s3_kit_close(&kit);
    CHECK((tsri_now_ns() - begin) / 1000000 < 5000);
    s3_stub_heal(&stub);
}

int main(void)
{
    s3_kit_log_begin();
    s3_stub_init(&stub);
    RUN(after_a_restart_the_list_tells_what_is_there);
    RUN(a_list_is_repeated_and_forgets_what_has_gone);
    RUN(a_list_that_fails_forgets_nothing);
    RUN(a_list_that_does_not_go_on_is_given_up);
    RUN(a_server_that_is_down_is_asked_in_the_background_and_said_once);
    RUN(closing_does_not_wait_for_a_server_that_is_silent);
    s3_stub_fini(&stub);
    return test_end();
}
