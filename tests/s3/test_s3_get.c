/* Reads of a server that fails in every way there is: a miss each time, never a wrong byte, and all
 * is well when the server is. */
#include "support/s3_kit.h"
#include "support/s3_stub.h"
#include "support/test.h"

static const struct kv_shape shape = {300, 64, 6, 2, {256, 256}, 9, 0};
static struct s3_stub stub;
static struct s3_kit kit;

static struct tsri_s3 *tier(void)
{
    return (struct tsri_s3 *)kit.tier;
}

static void open_kit(void)
{
    s3_stub_heal(&stub);
    kit = (struct s3_kit){.setup = {.timeout_ms = 1000, .part_bytes = 64 << 10, .absent_ms = 200}};
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    CHECK(s3_kit_listed(&kit, 1, 10000));
}

/* An entry in several ranges, all at once: what it takes is one round trip. */
TEST(an_entry_is_read_in_ranges_without_waiting_for_its_record)
{
    open_kit();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    uint64_t before = atomic_load(&stub.n_get);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    struct kv_entry e;
    kv_entry_init(&e, &shape, 1);
    struct tsri_parcel cut;
    CHECK_INT(tsri_parcel_init(&cut, &e.head, 0, 64 << 10), 0);
    kv_entry_fini(&e);
    CHECK(cut.n_parts > 3);
    CHECK_INT(atomic_load(&stub.n_get) - before, cut.n_parts);
    s3_kit_close(&kit);
}

TEST(extra_bytes_that_were_not_expected_cost_a_second_try)
{
    open_kit();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 2), 0);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &shape, 2);
    uint8_t extra[64];
    struct tsr_tier_io io = kv_entry_io(&room);
    io.extra = extra;
    io.extra_max = sizeof extra; /* more room than it has */
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 1);
    CHECK_INT(io.head.extra_bytes, shape.extra_bytes);
    memcpy(room.extra, extra, shape.extra_bytes);
    room.head = io.head;
    CHECK(kv_entry_right(&room, &shape, 2));
    kv_entry_fini(&room);
    s3_kit_close(&kit);
}

static uint32_t n_refused;

static int refuse_head(struct tsr_tier_io *io)
{
    (void)io;
    n_refused++;
    return TSR_ENOENT;
}

TEST(of_what_is_not_wanted_little_is_read)
{
    open_kit();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 3), 0);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &shape, 3);
    struct tsr_tier_io io = kv_entry_io(&room);
    size_t n = (size_t)io.n_cells * shape.n_layers * shape.n_planes;
    void **planes = calloc(n, sizeof planes[0]);
    planes[2] = io.planes[2]; /* one cell of the first layer */
    io.planes = planes;
    uint64_t before = atomic_load(&tier()->read_bytes);
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 1);
    uint64_t read = atomic_load(&tier()->read_bytes) - before;
    CHECK(read < 64u * 256 * 4 + 8192); /* the record and three cells of the one layer */
    free(planes);
    io = kv_entry_io(&room);
    io.head_done = refuse_head;
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ENOENT);
    CHECK_INT(n_refused, 1);
    kv_entry_fini(&room);
    s3_kit_close(&kit);
}

static const struct {
    const char *name;
    enum s3_fault fault;
    int status;
    const char *code;
} faults[] = {
    {"500", S3_STATUS, 500, "InternalError"},
    {"503", S3_STATUS, 503, "SlowDown"},
    {"429", S3_STATUS, 429, "TooManyRequests"},
    {"404", S3_STATUS, 404, "NoSuchKey"},
    {"403", S3_STATUS, 403, "AccessDenied"},
    {"a redirection", S3_STATUS, 301, "PermanentRedirect"},
    {"no such bucket", S3_STATUS, 404, "NoSuchBucket"},
    {"a body cut off", S3_CUT, 0, ""},
    {"hanging up", S3_HANG_UP, 0, ""},
    {"silence", S3_SILENT, 0, ""},
    {"another protocol", S3_NO_HTTP, 0, ""},
    {"other bytes", S3_OTHER_RANGE, 0, ""},
    {"no ranges", S3_NO_RANGE, 0, ""},
    {"a flipped bit", S3_FLIP, 0, ""},
    {"replaced all the time", S3_REPLACED, 0, ""},
};

TEST(every_fault_is_a_miss_in_time_and_heals)
{
    open_kit();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 4), 0);
    for (size_t i = 0; i < TSRI_COUNT(faults); i++) {
        atomic_store(&stub.status, faults[i].status);
        atomic_store(&stub.code, faults[i].code);
        s3_stub_fail(&stub, faults[i].fault, 0, -1);
        uint64_t begin = tsri_now_ns();
        for (int k = 0; k < 6; k++) {
            int result = kv_tier_get(kit.tier, &shape, 4, 400);
            if (result >= 0) printf("    %s: %d\n", faults[i].name, result);
            CHECK(result < 0);
        }
        CHECK((tsri_now_ns() - begin) / 1000000 < 6 * 400 + 2000);
        s3_stub_heal(&stub);
        bool heals = kv_tier_until(kit.tier, &shape, 4, 0, 20000);
        if (!heals) printf("    after %s\n", faults[i].name);
        CHECK(heals);
    }
    s3_kit_close(&kit);
}

TEST(one_fault_among_many_ranges_spoils_the_entry_and_no_other)
{
    open_kit();
    for (uint64_t seed = 10; seed < 14; seed++)
        CHECK_INT(kv_tier_put(kit.tier, &shape, seed), 0);
    static const enum s3_fault some[] = {S3_CUT, S3_FLIP, S3_STATUS, S3_HANG_UP};
    atomic_store(&stub.status, 500);
    for (size_t i = 0; i < TSRI_COUNT(some); i++) {
        struct kv_entry rooms[4];
        struct tsr_tier_io io[4];
        for (uint64_t k = 0; k < 4; k++) {
            kv_entry_init_room_seed(&rooms[k], &shape, 10 + k);
            io[k] = kv_entry_io(&rooms[k]);
        }
        s3_stub_fail(&stub, some[i], 'G', 1);
        int n = tsri_tier_get(kit.tier, io, 4), n_right = 0;
        for (uint64_t k = 0; k < 4; k++) {
            rooms[k].head = io[k].head;
            n_right += io[k].result == 0 && kv_entry_right(&rooms[k], &shape, 10 + k);
            kv_entry_fini(&rooms[k]);
        }
        CHECK_INT(n_right, n);
        CHECK(n >= 3);
        CHECK(tsri_breaker_closed(&tier()->reach));
    }
    s3_kit_close(&kit);
}

TEST(what_a_stranger_wrote_is_corrupt_and_replaced_by_the_next_put)
{
    open_kit();
    char path[TSRI_S3_URL_BYTES];
    static const size_t sizes[] = {0, 1, 100, 300, 5000, 400000};
    uint8_t *junk = malloc(400000);
    for (size_t i = 0; i < 400000; i++)
        junk[i] = (uint8_t)(i * 7);
    s3_kit_path(&kit, &shape, 5, path);
    for (size_t i = 0; i < TSRI_COUNT(sizes); i++) {
        CHECK_INT(kv_tier_put(kit.tier, &shape, 5), 0);
        CHECK_INT(kv_tier_get(kit.tier, &shape, 5, 0), 0);
        s3_stub_overwrite(&stub, path, junk, sizes[i]);
        CHECK_INT(kv_tier_get(kit.tier, &shape, 5, 0), TSR_ECORRUPT);
    }
    free(junk);
    CHECK(tsri_breaker_closed(&tier()->reach)); /* the server is not to blame */
    CHECK_INT(kv_tier_put(kit.tier, &shape, 5), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 5, 0), 0);
    s3_kit_close(&kit);
}

TEST(every_byte_of_an_object_is_proven)
{
    static const struct kv_shape small = {20, 16, 2, 2, {32, 16}, 5, 0};
    open_kit();
    CHECK_INT(kv_tier_put(kit.tier, &small, 6), 0);
    char path[TSRI_S3_URL_BYTES];
    s3_kit_path(&kit, &small, 6, path);
    static char whole[65536], broken[65536];
    CHECK_INT(s3_server_do(stub.endpoint, TSRI_S3_HTTP_GET, path, "", 0, whole, sizeof whole), 200);
    struct kv_entry e;
    kv_entry_init(&e, &small, 6);
    struct tsri_parcel r;
    CHECK_INT(tsri_parcel_init(&r, &e.head, 0, 64 << 10), 0);
    kv_entry_fini(&e);
    size_t n = r.record_bytes + r.kv_bytes, step = TEST_SANITIZED ? 17 : 3;
    for (size_t i = 0; i < n; i += step) {
        memcpy(broken, whole, n);
        broken[i] ^= 0x10;
        s3_stub_overwrite(&stub, path, broken, n);
        int result = kv_tier_get(kit.tier, &small, 6, 0);
        if (result >= 0) printf("    byte %zu of %zu: %d\n", i, n, result);
        CHECK(result < 0);
    }
    for (size_t cut = 0; cut < n; cut += n / 50) { /* a shorter object, well formed by HTTP */
        s3_stub_overwrite(&stub, path, whole, cut);
        CHECK(kv_tier_get(kit.tier, &small, 6, 0) < 0);
    }
    s3_stub_overwrite(&stub, path, whole, n);
    CHECK_INT(kv_tier_get(kit.tier, &small, 6, 0), 0);
    s3_kit_close(&kit);
}

TEST(lookups_ask_for_what_is_not_known_and_for_that_once)
{
    open_kit();
    CHECK_INT(kv_tier_put(kit.tier, &shape, 7), 0);
    uint64_t before = atomic_load(&stub.n_head);
    CHECK(kv_tier_has(kit.tier, &shape, 7)); /* written here: known */
    CHECK_INT(atomic_load(&stub.n_head), before);
    CHECK(!kv_tier_has(kit.tier, &shape, 99));
    CHECK(!kv_tier_has(kit.tier, &shape, 99)); /* absent a moment ago */
    CHECK_INT(atomic_load(&stub.n_head), before + 1);
    usleep(250000);
    CHECK(!kv_tier_has(kit.tier, &shape, 99));
    CHECK_INT(atomic_load(&stub.n_head), before + 2);
    struct s3_kit other = {.setup = {.timeout_ms = 1000}};
    CHECK_INT(s3_kit_open(&other, stub.endpoint), 0);
    CHECK_INT(kv_tier_put(other.tier, &shape, 99), 0);
    usleep(250000);
    CHECK(kv_tier_has(kit.tier, &shape, 99)); /* another cache has put it there */
    before = atomic_load(&stub.n_head);
    CHECK(kv_tier_has(kit.tier, &shape, 99));
    CHECK_INT(atomic_load(&stub.n_head), before);
    /* It goes again: the read is a miss, and then it is known. */
    CHECK_INT(kv_tier_drop(other.tier, &shape, 99), 1);
    CHECK(kv_tier_has(kit.tier, &shape, 99));
    CHECK_INT(kv_tier_get(kit.tier, &shape, 99, 0), TSR_ENOENT);
    CHECK(!kv_tier_has(kit.tier, &shape, 99));
    s3_kit_close(&other);
    s3_kit_close(&kit);
}

int main(void)
{
    s3_stub_init(&stub);
    RUN(an_entry_is_read_in_ranges_without_waiting_for_its_record);
    RUN(extra_bytes_that_were_not_expected_cost_a_second_try);
    RUN(of_what_is_not_wanted_little_is_read);
    RUN(every_fault_is_a_miss_in_time_and_heals);
    RUN(one_fault_among_many_ranges_spoils_the_entry_and_no_other);
    RUN(what_a_stranger_wrote_is_corrupt_and_replaced_by_the_next_put);
    RUN(every_byte_of_an_object_is_proven);
    RUN(lookups_ask_for_what_is_not_known_and_for_that_once);
    s3_stub_fini(&stub);
    return test_end();
}
