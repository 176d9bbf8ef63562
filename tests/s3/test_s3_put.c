/* Writes: in one request or in parts, all of an entry or nothing, whatever becomes of the server.
 */
#include "support/s3_kit.h"
#include "support/s3_stub.h"
#include "support/test.h"

static const struct kv_shape shape = {200, 64, 4, 2, {256, 256}, 3, 0};
static struct s3_stub stub;
static struct s3_kit kit;

static struct tsri_s3 *tier(void)
{
    return (struct tsri_s3 *)kit.tier;
}

/* upload_bytes: what is larger goes in parts. */
static void open_kit(uint64_t upload_bytes)
{
    s3_stub_heal(&stub);
    kit = (struct s3_kit){.setup = {.timeout_ms = 1000,
                                    .part_bytes = 64 << 10,
                                    .upload_bytes = upload_bytes,
                                    .absent_ms = 1}};
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    CHECK(s3_kit_listed(&kit, 1, 10000));
}

TEST(small_entries_are_one_request_and_large_ones_parts)
{
    open_kit(16 << 20);
    uint64_t puts = atomic_load(&stub.n_put);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(atomic_load(&stub.n_put) - puts, 1);
    CHECK_INT(atomic_load(&stub.n_uploads), 0);
    s3_kit_close(&kit);
    open_kit(50000);
    puts = atomic_load(&stub.n_put);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 2), 0);
    CHECK_INT(atomic_load(&stub.n_uploads), 1);
    CHECK(atomic_load(&stub.n_put) - puts >= 8);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 2, 0), 0);
    s3_kit_close(&kit);
}

TEST(the_same_text_is_not_written_twice)
{
    open_kit(16 << 20);
    uint64_t puts = atomic_load(&stub.n_put);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(atomic_load(&stub.n_put), puts);
    CHECK(kv_tier_has(kit.tier, &shape, 1));
    s3_kit_close(&kit);
}

TEST(a_write_that_fails_leaves_nothing_that_is_seen)
{
    static const struct {
        enum s3_fault fault;
        char method;
        int status;
    } faults[] = {{S3_STATUS, 'P', 500}, {S3_STATUS, 'P', 503}, {S3_STATUS, 'P', 403},
                  {S3_HANG_UP, 'P', 0},  {S3_SILENT, 'P', 0},   {S3_NO_HTTP, 'P', 0}};
    for (int in_parts = 0; in_parts < 2; in_parts++) {
        for (size_t i = 0; i < TSRI_COUNT(faults); i++) {
            uint64_t seed = 100 + 10 * (uint64_t)in_parts + i;
            open_kit(in_parts ? 50000 : 16 << 20);
            uint32_t n_before = s3_stub_count(&stub);
            atomic_store(&stub.status, faults[i].status);
            atomic_store(&stub.code, "AccessDenied");
            s3_stub_fail(&stub, faults[i].fault, faults[i].method, -1);
            uint64_t begin = tsri_now_ns();
            for (int k = 0; k < 5; k++)
                CHECK(kv_tier_put(kit.tier, &shape, seed) < 0);
            CHECK((tsri_now_ns() - begin) / 1000000 < 8000);
            CHECK_INT(s3_stub_count(&stub), n_before);
            s3_stub_heal(&stub);
            CHECK(kv_tier_until(kit.tier, &shape, seed, TSR_ENOENT, 60000));
            WAIT_FOR(kv_tier_put(kit.tier, &shape, seed) == 0);
            CHECK_INT(kv_tier_get(kit.tier, &shape, seed, 0), 0);
            s3_kit_close(&kit);
        }
    }
}

TEST(an_upload_that_fails_at_any_request_is_given_up)
{
    open_kit(50000);
    uint32_t n_before = s3_stub_count(&stub);
    atomic_store(&stub.status, 500);
    atomic_store(&stub.code, "InternalError");
    for (int i = 0; i < 3; i++) { /* its beginning, a part, its end */
        uint64_t aborts = atomic_load(&stub.n_aborts);
        CHECK_INT(s3_stub_count(&stub), n_before);
        if (i == 0) s3_stub_fail(&stub, S3_STATUS, 'P', 1);
        if (i == 1) s3_stub_fail(&stub, S3_LATE_ERROR, 'P', -1);
        if (i == 2) s3_stub_fail(&stub, S3_HANG_UP, 'P', -1);
        CHECK_INT(kv_tier_put(kit.tier, &shape, 200), TSR_EIO);
        s3_stub_heal(&stub);
        if (i == 1) CHECK_INT(atomic_load(&stub.n_aborts), aborts + 1);
        CHECK(kv_tier_until(kit.tier, &shape, 200, TSR_ENOENT, 20000));
    }
    CHECK_INT(kv_tier_put(kit.tier, &shape, 200), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 200, 0), 0);
    s3_kit_close(&kit);
}

TEST(who_may_only_read_reads_on)
{
    open_kit(16 << 20);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 300), 0);
    atomic_store(&stub.status, 403);
    atomic_store(&stub.code, "AccessDenied");
    s3_stub_fail(&stub, S3_STATUS, 'P', -1);
    for (int i = 0; i < 10; i++) {
        CHECK(kv_tier_put(kit.tier, &shape, 301) < 0);
        CHECK_INT(kv_tier_get(kit.tier, &shape, 300, 0), 0);
    }
    CHECK(tsri_breaker_closed(&tier()->reach));
    CHECK(!tsri_breaker_closed(&tier()->writes));
    CHECK_INT(atomic_load(&tier()->writes.n_opened), 1);
    s3_stub_heal(&stub);
    WAIT_FOR(kv_tier_put(kit.tier, &shape, 301) == 0);
    CHECK(tsri_breaker_closed(&tier()->writes));
    CHECK_INT(kv_tier_get(kit.tier, &shape, 301, 0), 0);
    s3_kit_close(&kit);
}

TEST(what_is_dropped_is_gone_and_counted_when_it_was_there)
{
    open_kit(16 << 20);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 400), 0);
    CHECK_INT(kv_tier_drop(kit.tier, &shape, 400), 1);
    CHECK_INT(kv_tier_drop(kit.tier, &shape, 400), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 400, 0), TSR_ENOENT);
    atomic_store(&stub.status, 500);
    s3_stub_fail(&stub, S3_STATUS, 'H', 1);
    CHECK_INT(kv_tier_drop(kit.tier, &shape, 1), TSR_EIO);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    s3_kit_close(&kit);
}

TEST(a_put_past_its_deadline_is_told)
{
    open_kit(16 << 20);
    s3_stub_fail(&stub, S3_SILENT, 'P', -1);
    struct kv_entry e;
    kv_entry_init(&e, &shape, 500);
    struct tsr_tier_io io = kv_entry_io(&e);
    uint64_t begin = tsri_now_ns();
    io.deadline_ns = begin + 200 * 1000000u;
    CHECK_INT(tsri_tier_put(kit.tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ETIME);
    CHECK((tsri_now_ns() - begin) / 1000000 < 1000);
    kv_entry_fini(&e);
    s3_stub_heal(&stub);
    s3_kit_close(&kit);
}

int main(void)
{
    s3_stub_init(&stub);
    RUN(small_entries_are_one_request_and_large_ones_parts);
    RUN(the_same_text_is_not_written_twice);
    RUN(a_write_that_fails_leaves_nothing_that_is_seen);
    RUN(an_upload_that_fails_at_any_request_is_given_up);
    RUN(who_may_only_read_reads_on);
    RUN(what_is_dropped_is_gone_and_counted_when_it_was_there);
    RUN(a_put_past_its_deadline_is_told);
    s3_stub_fini(&stub);
    return test_end();
}
