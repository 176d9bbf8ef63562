/* The bytes of the checkpoint. */
#include "disk/disk.h"
#include "support/test.h"

enum { N_SEGMENTS = 3, N_ENTRIES = 5 };

static bool without_windows, with_shingles;

static struct tsri_checkpoint_entry entry_of(uint32_t i)
{
    struct tsri_checkpoint_entry e = {.segment = i % N_SEGMENTS, .page = 10 + i, .seq = 100 + i};
    memset(e.head.key.bytes, (int)i + 1, 16);
    memset(e.head.space, (int)i + 2, 16);
    memset(e.head.digest, (int)i + 3, 32);
    memset(e.head.parent.bytes, (int)i + 4, 16);
    e.head.kind = TSR_KIND_SEGMENT;
    e.head.n_tokens = 65 + i;
    e.head.base = 5;
    e.head.freq_set = 6;
    e.head.cell_tokens = 64;
    e.head.n_layers = 2 + i;
    e.head.n_planes = 2;
    e.head.row_bytes[0] = 96;
    e.head.row_bytes[1] = 64;
    e.head.extra_bytes = i;
    e.n_windows = without_windows ? 0 : i % 3;
    e.shingled = with_shingles && i == 2;
    return e;
}

static uint32_t n_words_of(uint32_t i)
{
    struct tsri_checkpoint_entry e = entry_of(i);
    return tsri_disk_n_words(e.head.n_tokens, e.n_windows, e.shingled);
}

static uint8_t *build(size_t *bytes)
{
    struct tsri_checkpoint c = {
        .next_seq = 1000, .next_segment = 17, .n_segments = N_SEGMENTS, .n_entries = N_ENTRIES};
    for (uint32_t i = 0; i < N_ENTRIES; i++)
        c.n_words += n_words_of(i);
    *bytes = tsri_checkpoint_bytes(N_SEGMENTS, N_ENTRIES, c.n_words);
    uint8_t *buf = malloc(*bytes);
    uint64_t window = 0; /* its number is its hash here */
    for (uint32_t i = 0; i < N_SEGMENTS; i++)
        tsri_checkpoint_put_segment(
            buf, i, &(struct tsri_checkpoint_segment){i + 1, i * 7, (i + 2) * 4096, i});
    for (uint32_t i = 0; i < N_ENTRIES; i++) {
        struct tsri_checkpoint_entry e = entry_of(i);
        tsri_checkpoint_put_entry(buf, N_SEGMENTS, i, &e);
        for (uint32_t k = 0; k < n_words_of(i); k++, window++)
            tsri_checkpoint_put_words(buf, &c, window, &window, 1);
    }
    tsri_checkpoint_seal(buf, &c);
    return buf;
}

static void is_read_as_written(void)
{
    size_t bytes;
    uint8_t *buf = build(&bytes);
    struct tsri_checkpoint c;
    CHECK_INT(tsri_checkpoint_read(buf, bytes, &c), 0);
    CHECK(c.next_seq == 1000 && c.next_segment == 17);
    CHECK(c.n_segments == N_SEGMENTS && c.n_entries == N_ENTRIES);
    CHECK(c.n_words == (with_shingles ? 4 + 3 : 4)); /* 5 shingles of 67 tokens */
    for (uint64_t i = 0; i < c.n_words; i++)
        CHECK(tsri_checkpoint_words(buf, &c)[i] == i);
    for (uint32_t i = 0; i < N_SEGMENTS; i++) {
        struct tsri_checkpoint_segment s;
        tsri_checkpoint_get_segment(buf, i, &s);
        CHECK(s.id == i + 1 && s.nonce == i * 7 && s.covered == (i + 2) * 4096 && s.n_tombs == i);
    }
    for (uint32_t i = 0; i < N_ENTRIES; i++) {
        struct tsri_checkpoint_entry e, want = entry_of(i);
        struct tsri_layout l;
        tsri_layout_init(&l, &want.head);
        want.n_pages = (uint32_t)(l.record_bytes / TSRI_PAGE_BYTES);
        CHECK(tsri_checkpoint_get_entry(buf, &c, i, &e));
        CHECK(memcmp(&e, &want, sizeof e) == 0);
    }
    free(buf);
}

TEST(a_checkpoint_is_read_as_written)
{
    is_read_as_written();
    with_shingles = true;
    is_read_as_written();
    with_shingles = false;
}

TEST(costs_are_kept)
{
    struct tsri_checkpoint c = {.next_seq = 1000, .n_segments = N_SEGMENTS, .n_entries = 2};
    size_t bytes = tsri_checkpoint_bytes(N_SEGMENTS, 2, 0);
    uint8_t *buf = calloc(1, bytes);
    for (uint32_t i = 0; i < 2; i++) {
        struct tsri_checkpoint_entry e = entry_of(i);
        e.head.cost_s = i ? -3 : 0.125f;
        tsri_checkpoint_put_entry(buf, N_SEGMENTS, i, &e);
    }
    tsri_checkpoint_seal(buf, &c);
    CHECK_INT(tsri_checkpoint_read(buf, bytes, &c), 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct tsri_checkpoint_entry e;
        CHECK(tsri_checkpoint_get_entry(buf, &c, i, &e));
        CHECK(e.head.cost_s == (i ? 0 : 0.125f));
    }
    free(buf);
}

TEST(every_bit_and_every_length_counts)
{
    size_t bytes;
    uint8_t *buf = build(&bytes);
    struct tsri_checkpoint c;
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_INT(tsri_checkpoint_read(buf, bytes, &c), TSR_ECORRUPT);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t n = 0; n < bytes; n++)
        CHECK_INT(tsri_checkpoint_read(buf, n, &c), TSR_ECORRUPT);
    free(buf);
}

TEST(another_version_is_told_from_damage)
{
    size_t bytes;
    uint8_t *buf = build(&bytes);
    buf[8] = 9;
    struct tsri_checkpoint c;
    CHECK_INT(tsri_checkpoint_read(buf, bytes, &c), TSR_ECORRUPT);
    tsri_put64(buf + 56, tsri_sum(buf, 56));
    CHECK_INT(tsri_checkpoint_read(buf, bytes, &c), TSR_EVERSION);
    free(buf);
}

TEST(impossible_entries_are_left_out)
{
    size_t bytes;
    uint8_t *buf = build(&bytes);
    struct tsri_checkpoint c;
    CHECK_INT(tsri_checkpoint_read(buf, bytes, &c), 0);
    for (int lie = 0; lie < 4; lie++) {
        struct tsri_checkpoint_entry e = entry_of(1), back;
        if (lie == 0) e.segment = N_SEGMENTS;
        if (lie == 1) e.head.n_tokens = 0;
        if (lie == 2) e.seq = 1000;
        if (lie == 3) {
            e.head.n_tokens = TSRI_ENTRY_TOKENS_MAX;
            e.head.n_layers = TSRI_ENTRY_LAYERS_MAX;
            e.head.row_bytes[0] = TSRI_ENTRY_ROW_MAX;
        }
        tsri_checkpoint_put_entry(buf, N_SEGMENTS, 1, &e);
        CHECK(!tsri_checkpoint_get_entry(buf, &c, 1, &back));
    }
    free(buf);
}

TEST(the_bytes_are_those_of_version_1)
{
    size_t bytes;
    uint8_t *buf = build(&bytes);
    CHECK_INT(bytes, 64 + 3 * 32 + 5 * 144 + 4 * 8);
    CHECK_INT(tsri_sum(buf, bytes), -6020694388425471038);
    free(buf);
}

/* As they were before windows stood in it. */
TEST(a_checkpoint_without_windows_is_read)
{
    size_t bytes;
    without_windows = true;
    uint8_t *buf = build(&bytes);
    without_windows = false;
    CHECK_INT(bytes, 64 + 3 * 32 + 5 * 144);
    CHECK_INT(tsri_sum(buf, bytes), -1005606941409089082);
    struct tsri_checkpoint c;
    CHECK_INT(tsri_checkpoint_read(buf, bytes, &c), 0);
    CHECK(c.n_words == 0 && c.n_entries == N_ENTRIES);
    free(buf);
}

int main(void)
{
    RUN(a_checkpoint_is_read_as_written);
    RUN(costs_are_kept);
    RUN(every_bit_and_every_length_counts);
    RUN(another_version_is_told_from_damage);
    RUN(impossible_entries_are_left_out);
    RUN(the_bytes_are_those_of_version_1);
    RUN(a_checkpoint_without_windows_is_read);
    return test_end();
}
