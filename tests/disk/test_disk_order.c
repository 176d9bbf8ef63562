/* Entries by their last use: in which order a scan lists them, what survives a restart of it, and
 * which of those that the cache does not know go when there is no room. */
#include "support/disk_kit.h"
#include "support/test.h"

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0};
enum { N = 12 };

static struct disk_kit kit;

/* ---- what a scan lists ---- */

struct listing {
    struct tsr_key keys[256];
    uint32_t n;
    uint32_t taken_max; /* there is no place for more */
};

static int list_one(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc, uint64_t bytes)
{
    struct listing *l = arg;
    (void)loc, (void)bytes;
    l->keys[l->n++] = head->key;
    return l->n > l->taken_max;
}

static struct listing list(uint32_t taken_max)
{
    struct listing l = {.taken_max = taken_max};
    CHECK(tsri_tier_scan(kit.tier, list_one, &l) >= 0);
    return l;
}

static struct tsr_key key_of(uint64_t seed)
{
    return kv_tier_ref(&small, seed).key;
}

static void check_order(const struct listing *l, const uint64_t *seeds, uint32_t n)
{
    CHECK_INT(l->n, n);
    for (uint32_t i = 0; i < n && i < l->n; i++) {
        struct tsr_key key = key_of(seeds[i]);
        CHECK(memcmp(&l->keys[i], &key, sizeof key) == 0);
    }
}

static void put_all(void)
{
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
}

/* With a checkpoint the order of use, without one that of the puts. */
TEST(what_was_used_last_is_listed_first_also_after_a_restart)
{
    static const uint64_t used[N] = {0, 5, 11, 10, 9, 8, 7, 6, 4, 3, 2, 1};
    static const uint64_t put[N] = {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    struct listing l = list(N);
    check_order(&l, put, N);
    CHECK_INT(kv_tier_get(kit.tier, &small, 5, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 0, 0), 0);
    for (int round = 0; round < 2; round++) {
        disk_kit_close(&kit); /* nothing but the order has changed */
        CHECK_INT(disk_kit_open(&kit), 0);
        l = list(N);
        check_order(&l, used, N);
    }
    disk_kit_crash(&kit);
    char path[600];
    snprintf(path, sizeof path, "%s/checkpoint", kit.dir.path);
    CHECK_INT(unlink(path), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    l = list(N);
    check_order(&l, put, N);
}

/* What was put since the checkpoint is newer than all it tells of. */
TEST(after_a_crash_what_was_put_since_the_checkpoint_comes_first)
{
    static const uint64_t order[] = {14, 13, 12, 2, 11, 10, 9, 8, 7, 6, 5, 4, 3, 1, 0};
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = N; i < N + 3; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    struct listing l = list(N + 3);
    check_order(&l, order, N + 3);
}

/* Compaction moves records and not their turn. */
TEST(the_order_survives_compaction)
{
    static const uint64_t order[] = {100, 80, 60, 40, 20, 0};
    kit.n_threads = 1;
    kit.setup.segment_bytes = 1 << 16;
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < 120; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
    for (uint64_t i = 0; i < 120; i++)
        if (i % 20) CHECK_INT(kv_tier_drop(kit.tier, &small, i), 1);
    for (int i = 0; i < 40; i++)
        CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK(disk_kit_files(&kit, ".seg") < 8);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    struct listing l = list(6);
    check_order(&l, order, 6);
}

/* Blocks of a chain: number i has number i - 1 before it. */
static int put_block(uint64_t first, uint64_t i)
{
    struct kv_entry e;
    kv_entry_init(&e, &small, first + i);
    e.head.kind = TSR_KIND_PREFIX;
    if (i) e.head.parent = key_of(first + i - 1);
    struct tsr_tier_io io = kv_entry_io(&e);
    CHECK(tsri_tier_put(kit.tier, &io, 1) >= 0);
    kv_entry_fini(&e);
    return io.result;
}

TEST(a_block_is_listed_behind_the_one_before_it)
{
    static const uint64_t order[] = {3, 0, 1, 2, 100, 101};
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < 2; i++)
        CHECK_INT(put_block(100, i), 0);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_INT(put_block(0, i), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 3), 0);
    for (int round = 0; round < 2; round++) {
        struct listing l = list(6);
        check_order(&l, order, 6);
        disk_kit_close(&kit);
        CHECK_INT(disk_kit_open(&kit), 0);
    }
}

/* ---- strays ---- */

/* Room for `n` entries. */
static void open_small(uint32_t n)
{
    uint64_t bytes = disk_kit_record_bytes(&small) * n;
    kit.n_threads = 1;
    kit.setup.segment_bytes = 1 << 16;
    kit.setup.bytes_max = bytes * 8 / 7 + (4 << 16);
    while (disk_kit_open(&kit) == 0 &&
           ((struct tsri_disk *)kit.tier)->live_max / disk_kit_record_bytes(&small) < n) {
        disk_kit_close(&kit);
        kit.setup.bytes_max += 1 << 16;
    }
}

static uint64_t room(void)
{
    return ((struct tsri_disk *)kit.tier)->live_max / disk_kit_record_bytes(&small);
}

TEST(what_is_unlisted_stays_and_goes_first_when_there_is_no_room)
{
    open_small(60);
    uint64_t n = room();
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, n), TSR_EFULL);
    struct tsr_tier_ref refs[4];
    for (uint64_t i = 0; i < 4; i++)
        refs[i] = kv_tier_ref(&small, i + 10);
    CHECK_INT(tsri_tier_unlist(kit.tier, refs, 4), 4);
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 13), 0); /* the cache knows it again; 10 makes room */
    for (uint64_t i = 0; i < 3; i++)                 /* one takes the place of the older 13 */
        CHECK_INT(kv_tier_put(kit.tier, &small, n + i), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, n + 3), TSR_EFULL);
    for (uint64_t i = 0; i < n + 3; i++)
        CHECK_INT(kv_tier_get(kit.tier, &small, i, 0), i >= 10 && i < 13 ? TSR_ENOENT : 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_stats(&kit).entries, n);
}

/* The cache has room for five in its index; the others stay for a run that has more. */
TEST(what_a_scan_finds_no_place_for_stays)
{
    open_small(60);
    uint64_t n = room();
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT(put_block(0, i), 0);
    for (int round = 0; round < 3; round++) {
        struct listing l = list(5);
        CHECK_INT(l.n, n);
        disk_kit_close(&kit);
        CHECK_INT(disk_kit_open(&kit), 0);
    }
    /* Full: the chain goes from its end, and what the cache knows stays. */
    (void)list(5);
    for (uint64_t i = 0; i < n - 10; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, 1000 + i), 0);
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT(kv_tier_has(kit.tier, &small, i), i < 10);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(list((uint32_t)n).n, n);
}

TEST(strays_are_purged_by_space_or_all)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    (void)list(2); /* 11 and 10 are known */
    struct kv_entry e;
    kv_entry_init(&e, &small, 1);
    uint8_t other[16] = {1, 2, 3};
    CHECK_INT(tsri_tier_purge(kit.tier, other), 0);
    CHECK_INT(tsri_tier_purge(kit.tier, e.head.space), N - 2);
    CHECK_INT(tsri_tier_purge(kit.tier, NULL), 0);
    kv_entry_fini(&e);
    CHECK_INT(kv_tier_get(kit.tier, &small, 11, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), TSR_ENOENT);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_stats(&kit).entries, 2);
}

/* More than wait at once for their tombstone. */
TEST(many_strays_go_at_once)
{
    enum { MANY = 3000 };
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK(kv_tier_fill(kit.tier, MANY));
    struct tsri_disk *d = (struct tsri_disk *)kit.tier;
    for (uint32_t slot = 0; slot < MANY; slot++)
        tsri_order_touch(&d->index, slot, true);
    CHECK_INT(tsri_tier_purge(kit.tier, NULL), MANY);
    CHECK(!d->tombs_lost);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK(disk_kit_stats(&kit).entries <= TSRI_TOMBS_PENDING);
}

#define RUN_KIT(promise) \
    do { \
        disk_kit_init_fast(&kit); \
        RUN(promise); \
        disk_kit_fini(&kit); \
    } while (0)

int main(void)
{
    RUN_KIT(what_was_used_last_is_listed_first_also_after_a_restart);
    RUN_KIT(after_a_crash_what_was_put_since_the_checkpoint_comes_first);
    RUN_KIT(the_order_survives_compaction);
    RUN_KIT(a_block_is_listed_behind_the_one_before_it);
    RUN_KIT(what_is_unlisted_stays_and_goes_first_when_there_is_no_room);
    RUN_KIT(what_a_scan_finds_no_place_for_stays);
    RUN_KIT(strays_are_purged_by_space_or_all);
    RUN_KIT(many_strays_go_at_once);
    return test_end();
}
