/* The hashes by which text on disk is found at any offset: known after a put, a restart, a crash
 * and a read, and always those of the tokens. */
#include "support/disk_kit.h"
#include "support/test.h"

static const struct kv_shape shape = {2048, 64, 2, 2, {16, 16}, 0, 0};
static const struct kv_shape with_extra = {200, 64, 1, 1, {16, 0}, 10, 0};
static const struct kv_shape tiny = {31, 64, 1, 1, {16, 0}, 0, 0};

static struct disk_kit kit;
static tsr_tier_loc loc;

static int find_loc(void *arg, const struct tsr_entry_head *head, tsr_tier_loc at, uint64_t bytes)
{
    (void)bytes;
    if (memcmp(&head->key, arg, sizeof head->key) == 0) loc = at;
    return 0;
}

/* How many windows the tier knows of the entry; -1 when one is wrong, or a shingle of the same
 * tokens is, or one is lacking. */
static int n_known(const struct kv_shape *s, uint64_t seed)
{
    struct kv_entry e;
    uint64_t got[64], want[64];
    uint32_t shingles[200], want_shingles[200];
    kv_entry_init(&e, s, seed);
    struct tsr_tier_ref ref = kv_entry_ref(&e);
    loc = 0;
    CHECK(tsri_tier_scan(kit.tier, find_loc, &ref.key) >= 0);
    ref.loc = loc;
    int n = (int)tsri_tier_windows(kit.tier, &ref, got, 64);
    tsri_window_hashes(tsri_window_seed(e.head.space, tsri_extra_hash(e.extra, e.head.extra_bytes)),
                       e.tokens, s->n_tokens / TSRI_WINDOW, want);
    uint32_t known = n == (int)s->n_tokens / 32 ? s->n_tokens : (uint32_t)n * 32;
    uint32_t n_shingles = loc ? tsri_n_shingles(known) : 0;
    tsri_shingle_hashes(
        tsri_window_seed(e.head.space, tsri_extra_hash(e.extra, e.head.extra_bytes)), e.tokens,
        n_shingles, want_shingles);
    if (tsri_tier_shingles(kit.tier, &ref, shingles, 200) != n_shingles ||
        memcmp(shingles, want_shingles, n_shingles * sizeof shingles[0]) != 0 ||
        memcmp(got, want, (size_t)n * sizeof got[0]) != 0)
        n = -1;
    kv_entry_fini(&e);
    return n;
}

static void reopen(void)
{
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
}

TEST(what_is_put_has_its_windows_at_once_and_after_a_restart)
{
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &with_extra, 2), 0);
    CHECK_INT(kv_tier_put(kit.tier, &tiny, 3), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(n_known(&shape, 1), 64);
        CHECK_INT(n_known(&with_extra, 2), 6);
        CHECK_INT(n_known(&tiny, 3), 0);
        reopen();
    }
}

TEST(a_reader_has_them_too)
{
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    disk_kit_close(&kit);
    kit.read_only = true;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(n_known(&shape, 1), 64);
    kit.read_only = false;
    reopen();
}

TEST(without_a_checkpoint_those_of_the_first_page_are_known_and_a_read_completes_them)
{
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &with_extra, 2), 0);
    disk_kit_close(&kit);
    char path[600];
    CHECK(disk_kit_path(&kit, "checkpoint", 0, path, sizeof path));
    CHECK_INT(unlink(path), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(n_known(&shape, 1), (4096 - 256) / 4 / 32);
    CHECK_INT(n_known(&with_extra, 2), 6);
    reopen(); /* a checkpoint of what was known */
    CHECK_INT(n_known(&shape, 1), 30);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 1, 0), 0);
    CHECK_INT(n_known(&shape, 1), 64);
    reopen();
    CHECK_INT(n_known(&shape, 1), 64);
}

TEST(a_crash_costs_none_of_the_first_page)
{
    CHECK_INT(kv_tier_put(kit.tier, &with_extra, 2), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(n_known(&with_extra, 2), 6);
}

TEST(they_go_with_their_entry_and_come_again_with_it)
{
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    reopen(); /* now they stand in the checkpoint's region */
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(n_known(&shape, 1), 64);
    CHECK_INT(kv_tier_drop(kit.tier, &shape, 1), 1);
    CHECK_INT(n_known(&shape, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &with_extra, 2), 0); /* the same slot */
    CHECK_INT(n_known(&with_extra, 2), 6);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK_INT(n_known(&shape, 1), 64);
    reopen();
    CHECK_INT(n_known(&shape, 1), 64);
    CHECK_INT(n_known(&with_extra, 2), 6);
}

/* Puts an entry with this extra or kind and counts. */
static uint32_t n_of(uint32_t kind, const uint8_t *extra, uint32_t n)
{
    struct kv_entry e;
    uint64_t out[64];
    kv_entry_init(&e, &shape, 9);
    e.head.kind = kind;
    struct tsr_tier_io io = kv_entry_io(&e);
    io.head.extra_bytes = n;
    uint8_t bytes[64] = {0};
    if (n) memcpy(bytes, extra, n);
    io.extra = bytes;
    io.extra_max = sizeof bytes;
    CHECK_INT(tsri_tier_put(kit.tier, &io, 1), 1);
    struct tsr_tier_ref ref = kv_entry_ref(&e);
    ref.loc = io.loc;
    uint32_t known = tsri_tier_windows(kit.tier, &ref, out, 64);
    CHECK_INT(tsri_tier_drop(kit.tier, &ref, 1), 1);
    kv_entry_fini(&e);
    return known;
}

TEST(blended_entries_and_those_with_media_have_none)
{
    static const uint8_t salt[] = {1, TSR_EXTRA_SALT, 1, 0, 's'};
    static const uint8_t media[] = {1, TSR_EXTRA_MEDIA, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 'm'};
    CHECK_INT(n_of(TSR_KIND_SEGMENT, NULL, 0), 64);
    CHECK_INT(n_of(TSR_KIND_PREFIX, salt, sizeof salt), 64);
    CHECK_INT(n_of(TSR_KIND_BLENDED, NULL, 0), 0);
    CHECK_INT(n_of(TSR_KIND_SEGMENT, media, sizeof media), 0);
}

TEST(fewer_are_given_where_there_is_less_room)
{
    struct kv_entry e;
    uint64_t out[64] = {0};
    kv_entry_init(&e, &shape, 1);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    struct tsr_tier_ref ref = kv_entry_ref(&e);
    CHECK(tsri_tier_scan(kit.tier, find_loc, &ref.key) >= 0);
    ref.loc = loc;
    uint32_t some[3];
    CHECK_INT(tsri_tier_windows(kit.tier, &ref, out, 3), 3);
    CHECK_INT(tsri_tier_shingles(kit.tier, &ref, some, 3), 3);
    CHECK(out[2] != 0 && out[3] == 0);
    ref.loc = 1000;
    CHECK_INT(tsri_tier_windows(kit.tier, &ref, out, 3), 0);
    kv_entry_fini(&e);
}

#define RUN_KIT(name) \
    do { \
        disk_kit_init_fast(&kit); \
        if (disk_kit_open(&kit) != 0) return 1; \
        RUN(name); \
        disk_kit_fini(&kit); \
    } while (0)

int main(void)
{
    RUN_KIT(what_is_put_has_its_windows_at_once_and_after_a_restart);
    RUN_KIT(a_reader_has_them_too);
    RUN_KIT(without_a_checkpoint_those_of_the_first_page_are_known_and_a_read_completes_them);
    RUN_KIT(a_crash_costs_none_of_the_first_page);
    RUN_KIT(they_go_with_their_entry_and_come_again_with_it);
    RUN_KIT(blended_entries_and_those_with_media_have_none);
    RUN_KIT(fewer_are_given_where_there_is_less_room);
    return test_end();
}
