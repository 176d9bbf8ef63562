/* What open makes of the files it finds. */
#include "support/disk_kit.h"
#include "support/test.h"

static const struct kv_shape shapes[] = {
    {100, 64, 3, 2, {48, 32}, 10, 0},
    {256, 64, 4, 2, {256, 256}, 0, 0},
    {30, 16, 2, 1, {576, 0}, 3, 0},
};
enum { N = 12 };

static struct disk_kit kit;

static const struct kv_shape *shape_of(uint64_t seed)
{
    return &shapes[seed % TSRI_COUNT(shapes)];
}

static void put_all(void)
{
    for (uint64_t i = 0; i < N; i++)
        CHECK_INT(kv_tier_put(kit.tier, shape_of(i), i), 0);
}

/* How many of the entries are there; a wrong byte fails the test. */
static int count_right(void)
{
    int n = 0;
    for (uint64_t i = 0; i < N; i++) {
        int r = kv_tier_get(kit.tier, shape_of(i), i, 0);
        CHECK(r != KIT_WRONG);
        n += r == 0;
    }
    return n;
}

static void checkpoint_path(char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/checkpoint", kit.dir.path);
}

TEST(entries_are_found_with_and_without_a_checkpoint)
{
    char path[600];
    checkpoint_path(path, sizeof path);
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    CHECK_INT(access(path, F_OK), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count_right(), N);
    disk_kit_close(&kit);
    CHECK_INT(unlink(path), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count_right(), N);
    CHECK_INT(disk_kit_stats(&kit).errors, 0);
}

TEST(a_crash_before_the_checkpoint_loses_nothing_that_is_on_disk)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_files(&kit, "checkpoint"), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count_right(), N);
}

TEST(a_damaged_checkpoint_is_done_without)
{
    char path[600];
    checkpoint_path(path, sizeof path);
    for (int damage = 0; damage < 5; damage++) {
        CHECK_INT(disk_kit_open(&kit), 0);
        put_all();
        disk_kit_close(&kit);
        size_t bytes;
        uint8_t *data = disk_kit_slurp(path, &bytes);
        CHECK(data && bytes > 200);
        if (damage == 0) data[bytes / 2] ^= 1;
        if (damage == 1) data[3] ^= 1;
        if (damage == 2) memset(data, 0, bytes);
        CHECK(disk_kit_spill(path, data, damage == 3 ? bytes / 2 : damage == 4 ? 0 : bytes));
        free(data);
        CHECK_INT(disk_kit_open(&kit), 0);
        CHECK_INT(count_right(), N);
        CHECK_INT(disk_kit_stats(&kit).errors, 1);
        disk_kit_close(&kit);
    }
}

/* A head that is right in itself and speaks of more than the store can have. Read whole, it would
 * take all memory there is. */
TEST(a_checkpoint_larger_than_the_store_allows_is_not_read)
{
    char path[600];
    checkpoint_path(path, sizeof path);
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    static uint8_t head[TSRI_CHECKPOINT_HEAD_BYTES + 32];
    struct tsri_checkpoint c = {.n_segments = 1, .next_seq = 99, .next_segment = 99};
    tsri_checkpoint_seal(head, &c);
    c.n_words = (uint64_t)1 << 37; /* 1 TiB */
    tsri_put64(head + 48, c.n_words);
    tsri_put64(head + 56, tsri_sum(head, 56));
    CHECK(disk_kit_spill(path, head, sizeof head));
    size_t bytes = tsri_checkpoint_bytes(1, 0, c.n_words);
    if (truncate(path, (off_t)bytes) != 0) SKIP("no sparse files of that size here");
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_stats(&kit).errors, 1);
    CHECK_INT(count_right(), N);
    disk_kit_close(&kit);
    struct stat st;
    CHECK_INT(stat(path, &st), 0);
    CHECK(st.st_size < 1 << 20);
}

TEST(a_checkpoint_that_is_no_file_of_ours_is_done_without)
{
    char path[600], victim[600];
    checkpoint_path(path, sizeof path);
    snprintf(victim, sizeof victim, "%s/victim", kit.dir.path);
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    for (int round = 0; round < 3; round++) {
        CHECK_INT(unlink(path), 0);
        CHECK(disk_kit_spill(victim, "precious", 8));
        if (round == 0) CHECK_INT(mkfifo(path, 0600), 0);
        if (round == 1) CHECK_INT(symlink("victim", path), 0);
        if (round == 2) { /* and where the next one is made */
            char tmp[620];
            snprintf(tmp, sizeof tmp, "%s.tmp", path);
            CHECK_INT(symlink("victim", tmp), 0);
            CHECK(disk_kit_spill(path, "x", 1));
        }
        CHECK_INT(disk_kit_open(&kit), 0);
        CHECK_INT(disk_kit_stats(&kit).errors, 1);
        CHECK_INT(count_right(), N);
        disk_kit_close(&kit);
        size_t bytes;
        uint8_t *text = disk_kit_slurp(victim, &bytes);
        CHECK(text && bytes == 8 && memcmp(text, "precious", 8) == 0);
        free(text);
    }
}

TEST(a_store_of_another_version_is_left_alone)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    for (int what = 0; what < 2; what++) {
        char path[600];
        if (what == 0) checkpoint_path(path, sizeof path);
        if (what == 1) CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
        size_t bytes, again;
        uint8_t *old = disk_kit_slurp(path, &bytes), *data = disk_kit_slurp(path, &bytes);
        CHECK(data && old);
        data[8] = 2;
        tsri_put64(data + 56, tsri_sum(data, 56));
        CHECK(disk_kit_spill(path, data, bytes));
        char checkpoint[600];
        checkpoint_path(checkpoint, sizeof checkpoint);
        if (what == 1) CHECK_INT(unlink(checkpoint), 0);
        int n_files = disk_kit_files(&kit, "");
        CHECK_INT(disk_kit_open(&kit), TSR_EVERSION);
        CHECK_HAS(tsr_errmsg(), "version 2");
        CHECK_INT(disk_kit_files(&kit, ""), n_files);
        uint8_t *now = disk_kit_slurp(path, &again);
        CHECK(now && again == bytes && memcmp(now, data, bytes) == 0);
        CHECK(disk_kit_spill(path, old, bytes));
        free(now);
        free(data);
        free(old);
        CHECK_INT(disk_kit_open(&kit), 0);
        CHECK_INT(count_right(), N);
        disk_kit_close(&kit);
    }
}

TEST(foreign_files_are_left_alone_and_counted)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    char path[600];
    static uint8_t zeros[3 * TSRI_PAGE_BYTES];
    const struct {
        const char *name;
        size_t bytes;
        int fill;
        bool counts;
    } files[] = {
        {"00000000000000aa.seg", 0, 0, true},
        {"00000000000000ab.seg", 100, 1, true},
        {"00000000000000ac.seg", sizeof zeros, 0, true},
        {"00000000000000ad.seg", sizeof zeros, 0x5A, true},
        {"ffffffffffffffff.seg", sizeof zeros, 0, false}, /* no id of ours */
        {"1.seg", 4096, 0, false},
        {"notes.txt", 10, 'x', false},
        {"important.tmp", 10, 'x', false},
    };
    for (size_t i = 0; i < TSRI_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", kit.dir.path, files[i].name);
        memset(zeros, files[i].fill, sizeof zeros);
        CHECK(disk_kit_spill(path, zeros, files[i].bytes));
    }
    snprintf(path, sizeof path, "%s/00000000000000ae.seg", kit.dir.path);
    CHECK_INT(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/00000000000000af.seg", kit.dir.path);
    CHECK_INT(symlink("/etc/passwd", path), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count_right(), N);
    CHECK_INT(disk_kit_stats(&kit).errors, 6);
    CHECK_INT(kv_tier_put(kit.tier, &shapes[0], 99), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_close(&kit);
    for (size_t i = 0; i < TSRI_COUNT(files); i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", kit.dir.path, files[i].name);
        CHECK_INT(stat(path, &st), 0);
        CHECK_INT(st.st_size, files[i].bytes);
    }
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shapes[0], 99, 0), 0);
}

TEST(files_that_a_crash_left_half_made_go)
{
    char path[600];
    snprintf(path, sizeof path, "%s/new-0000000000000001.seg.tmp", kit.dir.path);
    CHECK(disk_kit_spill(path, "x", 1));
    checkpoint_path(path, sizeof path);
    CHECK(disk_kit_spill(strcat(path, ".tmp"), "x", 1));
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_files(&kit, ".tmp"), 0);
}

/* Every length a segment may have after a crash, in steps that miss pages and hit them. */
TEST(a_torn_tail_costs_only_what_was_torn)
{
    kit.n_threads = 1;
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    char path[600];
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    size_t bytes;
    uint8_t *data = disk_kit_slurp(path, &bytes);
    CHECK(data);
    int n_last = 0;
    uint64_t state = 11;
    for (size_t cut = 0; cut < bytes; cut += 1 + test_rand(&state) % (bytes / 60)) {
        if (cut % 3 == 0) cut -= cut % TSRI_PAGE_BYTES;
        CHECK(disk_kit_spill(path, data, cut));
        CHECK_INT(disk_kit_open(&kit), 0);
        int n = count_right();
        CHECK(n >= n_last);
        n_last = n;
        disk_kit_crash(&kit);
    }
    free(data);
    CHECK(n_last > 0);
}

/* Heads of records in a segment, in their order; returns how many. */
static int find_heads(const uint8_t *data, size_t bytes, uint64_t *heads, int max)
{
    struct tsri_segment_head head;
    struct tsri_record r;
    int n = 0;
    CHECK_INT(tsri_segment_head_read(data, &head), 0);
    for (uint64_t at = TSRI_PAGE_BYTES; at < bytes && n < max; at += r.bytes) {
        if (tsri_record_read(data + at, head.nonce, at, bytes, &r) != 0) break;
        heads[n++] = at;
    }
    return n;
}

TEST(a_damaged_head_costs_its_own_entry)
{
    kit.n_threads = 1;
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    char path[600], checkpoint[600];
    checkpoint_path(checkpoint, sizeof checkpoint);
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    size_t bytes;
    uint8_t *data = disk_kit_slurp(path, &bytes);
    uint64_t heads[N];
    int n_heads = find_heads(data, bytes, heads, N);
    CHECK(n_heads > 2);
    for (int i = 0; i < n_heads; i++) {
        uint8_t before = data[heads[i] + 64];
        data[heads[i] + 64] ^= 1;
        CHECK(disk_kit_spill(path, data, bytes));
        data[heads[i] + 64] = before;
        unlink(checkpoint);
        CHECK_INT(disk_kit_open(&kit), 0);
        CHECK_INT(count_right(), N - 1);
        /* Behind the last one nothing tells damage from the end. */
        CHECK_INT(disk_kit_stats(&kit).errors, i < n_heads - 1);
        disk_kit_crash(&kit);
    }
    /* All but the last, and what was found is in the next checkpoint. */
    for (int i = 0; i < n_heads - 1; i++)
        data[heads[i]] ^= 1;
    CHECK(disk_kit_spill(path, data, bytes));
    free(data);
    for (int round = 0; round < 2; round++) {
        CHECK_INT(disk_kit_open(&kit), 0);
        CHECK_INT(count_right(), N - n_heads + 1);
        disk_kit_close(&kit);
    }
}

/* KV that holds whole records, as an attacker would store them: each right in itself and for its
 * place, but for the nonce, which is not known outside. Its own head is then damaged. */
TEST(kv_that_imitates_records_is_not_taken_for_them)
{
    static const struct kv_shape page_rows = {16, 16, 4, 1, {4096, 0}, 0, 0}; /* a page a token */
    kit.n_threads = 1;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &page_rows, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shapes[0], 2), 0);
    disk_kit_close(&kit);
    char path[600], checkpoint[600];
    checkpoint_path(checkpoint, sizeof checkpoint);
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    size_t bytes;
    uint8_t *data = disk_kit_slurp(path, &bytes);
    struct kv_entry fake;
    kv_entry_init(&fake, &shapes[0], 3);
    struct tsri_layout l;
    tsri_layout_init(&l, &fake.head);
    uint64_t heads[2];
    CHECK_INT(find_heads(data, bytes, heads, 2), 2);
    struct tsri_record r = {.kind = TSRI_RECORD_ENTRY,
                            .nonce = 0x1122334455667701u,
                            .bytes = l.record_bytes,
                            .seq = 1,
                            .head = fake.head};
    for (uint64_t at = heads[0] + TSRI_PAGE_BYTES; at + 2 * TSRI_PAGE_BYTES < heads[1];
         at += TSRI_PAGE_BYTES) {
        r.offset = at;
        tsri_record_write(data + at, &r);
    }
    /* And a record of this very segment in another place. */
    memcpy(data + heads[1] - TSRI_PAGE_BYTES, data + heads[1], TSRI_PAGE_BYTES);
    memset(data + heads[0], 0xFF, 64);
    CHECK(disk_kit_spill(path, data, bytes));
    unlink(checkpoint);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_stats(&kit).entries, 1);
    CHECK_INT(kv_tier_get(kit.tier, &shapes[0], 2, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &shapes[0], 3, 0), TSR_ENOENT);
    free(data);
    kv_entry_fini(&fake);
}

TEST(what_was_dropped_does_not_come_back_without_a_checkpoint)
{
    char path[600];
    checkpoint_path(path, sizeof path);
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    for (uint64_t i = 0; i < N; i += 2)
        CHECK_INT(kv_tier_drop(kit.tier, shape_of(i), i), 1);
    CHECK_INT(kv_tier_put(kit.tier, shape_of(0), 0), 0); /* and one is put again */
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    unlink(path);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(count_right(), N / 2 + 1);
    CHECK_INT(kv_tier_get(kit.tier, shape_of(0), 0, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, shape_of(2), 2, 0), TSR_ENOENT);
}

TEST(drops_after_the_checkpoint_hold)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_drop(kit.tier, shape_of(5), 5), 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_get(kit.tier, shape_of(5), 5, 0), TSR_ENOENT);
    CHECK_INT(count_right(), N - 1);
}

TEST(a_segment_that_was_removed_costs_its_own_entries)
{
    kit.setup.segment_bytes = 256 << 10;
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    int n_files = disk_kit_files(&kit, ".seg");
    CHECK(n_files > 2);
    char path[600];
    CHECK(disk_kit_path(&kit, ".seg", 1, path, sizeof path));
    CHECK_INT(unlink(path), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    int n = count_right();
    CHECK(n > 0 && n < N);
    CHECK_INT(disk_kit_stats(&kit).entries, n);
    CHECK_INT(kv_tier_put(kit.tier, shape_of(1), 1), 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_get(kit.tier, shape_of(1), 1, 0), 0);
}

TEST(a_segment_under_another_ones_name_is_no_segment)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    put_all();
    disk_kit_close(&kit);
    char path[600], other[600];
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    snprintf(other, sizeof other, "%s/00000000000000aa.seg", kit.dir.path);
    CHECK_INT(rename(path, other), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK(count_right() < N);
}

TEST(more_segments_than_files_may_be_open)
{
    const struct kv_shape shape = {64, 64, 2, 2, {256, 256}, 0, 0}; /* 68 KiB: a segment each */
    kit.setup.segment_bytes = 16 * TSRI_PAGE_BYTES;
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < 200; i++)
        CHECK_INT(kv_tier_put(kit.tier, &shape, i), 0);
    CHECK(disk_kit_files(&kit, ".seg") >= 190);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    for (uint64_t i = 0; i < 200; i++)
        CHECK_INT(kv_tier_get(kit.tier, &shape, i, 0), 0);
    CHECK(((struct tsri_disk *)kit.tier)->n_fds <= 135);
    disk_kit_crash(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK(((struct tsri_disk *)kit.tier)->n_fds <= 145);
    for (uint64_t i = 0; i < 200; i++)
        CHECK_INT(kv_tier_get(kit.tier, &shape, i, 0), 0);
}

#define RUN_KIT(promise) \
    do { \
        disk_kit_init_fast(&kit); \
        RUN(promise); \
        disk_kit_fini(&kit); \
    } while (0)

int main(void)
{
    RUN_KIT(entries_are_found_with_and_without_a_checkpoint);
    RUN_KIT(a_crash_before_the_checkpoint_loses_nothing_that_is_on_disk);
    RUN_KIT(a_damaged_checkpoint_is_done_without);
    RUN_KIT(a_checkpoint_larger_than_the_store_allows_is_not_read);
    RUN_KIT(a_checkpoint_that_is_no_file_of_ours_is_done_without);
    RUN_KIT(a_store_of_another_version_is_left_alone);
    RUN_KIT(foreign_files_are_left_alone_and_counted);
    RUN_KIT(files_that_a_crash_left_half_made_go);
    RUN_KIT(a_torn_tail_costs_only_what_was_torn);
    RUN_KIT(a_damaged_head_costs_its_own_entry);
    RUN_KIT(kv_that_imitates_records_is_not_taken_for_them);
    RUN_KIT(what_was_dropped_does_not_come_back_without_a_checkpoint);
    RUN_KIT(drops_after_the_checkpoint_hold);
    RUN_KIT(a_segment_that_was_removed_costs_its_own_entries);
    RUN_KIT(a_segment_under_another_ones_name_is_no_segment);
    RUN_KIT(more_segments_than_files_may_be_open);
    return test_end();
}
