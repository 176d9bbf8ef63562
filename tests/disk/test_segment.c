/* The bytes of a segment file. */
#include "disk/disk.h"
#include "support/test.h"

#include <float.h>
#include <math.h>

static const struct tsr_entry_head shapes[] = {
    {.n_tokens = 1, .cell_tokens = 1, .n_layers = 1, .n_planes = 1, .row_bytes = {1, 0}},
    {.n_tokens = 100, .cell_tokens = 64, .n_layers = 3, .n_planes = 2, .row_bytes = {48, 32}},
    {.n_tokens = 128, .cell_tokens = 64, .n_layers = 2, .n_planes = 2, .row_bytes = {2048, 1024}},
    {.n_tokens = 4097,
     .cell_tokens = 64,
     .n_layers = 32,
     .n_planes = 2,
     .row_bytes = {2048, 2048},
     .extra_bytes = 77},
    {.n_tokens = 65, .cell_tokens = 16, .n_layers = 61, .n_planes = 1, .row_bytes = {1152, 0}},
};

static struct tsri_record record_of(const struct tsr_entry_head *head)
{
    struct tsri_layout l;
    tsri_layout_init(&l, head);
    struct tsri_record r = {.kind = TSRI_RECORD_ENTRY,
                            .nonce = 0x1122334455667788,
                            .offset = 5 * TSRI_PAGE_BYTES,
                            .bytes = l.record_bytes,
                            .seq = 42,
                            .body_sum = 7,
                            .head = *head};
    for (size_t i = 0; i < 16; i++) {
        r.head.key.bytes[i] = (uint8_t)(i + 1);
        r.head.space[i] = (uint8_t)(i + 17);
        r.head.parent.bytes[i] = (uint8_t)(i + 33);
        r.head.digest[2 * i] = (uint8_t)(i + 65);
    }
    r.head.kind = TSR_KIND_PREFIX;
    r.head.base = 9;
    r.head.freq_set = 3;
    return r;
}

TEST(cells_fill_a_record_in_order_page_by_page)
{
    for (size_t s = 0; s < TSRI_COUNT(shapes); s++) {
        const struct tsr_entry_head *h = &shapes[s];
        struct tsri_layout l;
        tsri_layout_init(&l, h);
        CHECK_INT(l.header_bytes % TSRI_PAGE_BYTES, 0);
        CHECK(l.tokens_at + h->n_tokens * 4 <= l.extra_at);
        CHECK(l.extra_at + h->extra_bytes <= l.sums_at);
        uint64_t at = l.header_bytes, rows = 0;
        for (uint64_t i = 0; i < tsri_layout_cells(&l, h); i++) {
            struct tsri_disk_cell c = tsri_layout_cell(&l, h, i);
            CHECK_INT(c.at, at);
            CHECK_INT(((uint64_t)c.layer * h->n_planes + c.plane) * l.n_cells + c.cell, i);
            CHECK(c.bytes > 0 && c.bytes <= c.stride && c.stride - c.bytes < TSRI_PAGE_BYTES);
            at += c.stride;
            rows += c.bytes / h->row_bytes[c.plane];
        }
        CHECK_INT(at, l.record_bytes);
        CHECK_INT(rows, (uint64_t)h->n_tokens * h->n_layers * h->n_planes);
    }
}

TEST(a_segment_head_is_read_as_written_and_every_bit_counts)
{
    uint8_t page[TSRI_PAGE_BYTES];
    struct tsri_segment_head h = {3, 0xABCDEF, 1 << 20}, back;
    tsri_segment_head_write(page, &h);
    CHECK_INT(tsri_segment_head_read(page, &back), 0);
    CHECK(back.id == 3 && back.nonce == 0xABCDEF && back.capacity == 1 << 20);
    for (size_t bit = 0; bit < 64 * 8; bit++) {
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_INT(tsri_segment_head_read(page, &back), TSR_ECORRUPT);
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

TEST(a_segment_of_another_version_is_told_from_a_damaged_one)
{
    uint8_t page[TSRI_PAGE_BYTES];
    struct tsri_segment_head h = {3, 4, 5};
    tsri_segment_head_write(page, &h);
    page[8] = 2;
    CHECK_INT(tsri_segment_head_read(page, &h), TSR_ECORRUPT);
    tsri_put64(page + 56, tsri_sum(page, 56));
    CHECK_INT(tsri_segment_head_read(page, &h), TSR_EVERSION);
    CHECK_HAS(tsr_errmsg(), "version 2");
}

TEST(a_record_is_read_as_written_and_every_bit_counts)
{
    for (size_t s = 0; s < TSRI_COUNT(shapes); s++) {
        struct tsri_record r = record_of(&shapes[s]), back;
        uint8_t page[TSRI_PAGE_BYTES] = {0};
        tsri_record_write(page, &r);
        uint64_t end = r.offset + r.bytes;
        CHECK_INT(tsri_record_read(page, r.nonce, r.offset, end, &back), 0);
        CHECK(memcmp(&r, &back, sizeof r) == 0);
        for (size_t bit = 0; bit < TSRI_RECORD_HEAD_BYTES * 8; bit++) {
            page[bit / 8] ^= (uint8_t)(1u << bit % 8);
            CHECK_INT(tsri_record_read(page, r.nonce, r.offset, end, &back), TSR_ECORRUPT);
            page[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

TEST(a_record_at_another_place_is_no_record)
{
    struct tsri_record r = record_of(&shapes[1]), back;
    uint8_t page[TSRI_PAGE_BYTES] = {0};
    tsri_record_write(page, &r);
    uint64_t end = r.offset + r.bytes;
    CHECK_INT(tsri_record_read(page, r.nonce + 1, r.offset, end, &back), TSR_ECORRUPT);
    CHECK_INT(tsri_record_read(page, r.nonce, r.offset + 4096, end + 4096, &back), TSR_ECORRUPT);
    CHECK_INT(tsri_record_read(page, r.nonce, r.offset, end - 1, &back), TSR_ECORRUPT);
    CHECK_INT(tsri_record_read(page, r.nonce, r.offset, 0, &back), TSR_ECORRUPT);
}

TEST(a_record_that_lies_about_its_shape_is_no_record)
{
    uint8_t page[TSRI_PAGE_BYTES] = {0};
    struct tsri_record back;
    for (int lie = 0; lie < 6; lie++) {
        struct tsri_record r = record_of(&shapes[1]);
        if (lie == 0) r.bytes += TSRI_PAGE_BYTES;
        if (lie == 1) r.head.n_tokens = 0;
        if (lie == 2) r.head.n_layers = 0xFFFFFFFF;
        if (lie == 3) r.head.cell_tokens = 0;
        if (lie == 4) r.head.n_planes = 3;
        if (lie == 5) r.kind = 9;
        tsri_record_write(page, &r);
        CHECK_INT(tsri_record_read(page, r.nonce, r.offset, UINT64_MAX, &back), TSR_ECORRUPT);
    }
}

TEST(the_body_of_a_header_is_checked)
{
    struct tsri_record r = record_of(&shapes[3]);
    struct tsri_layout l;
    tsri_layout_init(&l, &r.head);
    uint8_t *header = malloc(l.header_bytes), extra[77];
    uint32_t *tokens = malloc(r.head.n_tokens * 4);
    memset(extra, 5, sizeof extra);
    for (uint32_t i = 0; i < r.head.n_tokens; i++)
        tokens[i] = i * 3;
    tsri_header_fill(header, &l, &r.head, tokens, extra);
    for (uint64_t i = 0; i < tsri_layout_cells(&l, &r.head); i++)
        tsri_header_sums(header, &l)[i] = i;
    tsri_header_seal(header, &l, &r);
    CHECK_INT(tsri_header_check(header, &l, &r), 0);
    uint64_t state = 5;
    for (int i = 0; i < 1000; i++) {
        uint64_t bit = TSRI_RECORD_HEAD_BYTES * 8 +
                       test_rand(&state) % ((l.body_end - TSRI_RECORD_HEAD_BYTES) * 8);
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_INT(tsri_header_check(header, &l, &r), TSR_ECORRUPT);
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK(memcmp(header + l.tokens_at, tokens, r.head.n_tokens * 4) == 0);
    free(tokens);
    free(header);
}

TEST(a_cost_is_kept_and_one_that_cannot_be_is_not_known)
{
    const float costs[][2] = {{0, 0},        {2.5f, 2.5f}, {FLT_MAX, FLT_MAX}, {-1, 0}, {-0.f, 0},
                              {INFINITY, 0}, {NAN, 0}};
    for (size_t i = 0; i < TSRI_COUNT(costs); i++) {
        struct tsri_record r = record_of(&shapes[1]), back;
        uint8_t page[TSRI_PAGE_BYTES] = {0};
        r.head.cost_s = costs[i][0];
        tsri_record_write(page, &r);
        CHECK_INT(tsri_record_read(page, r.nonce, r.offset, UINT64_MAX, &back), 0);
        CHECK(back.head.cost_s == costs[i][1]);
        /* It tells two heads of one entry apart in nothing. */
        CHECK(tsri_head_same(&r.head, &back.head));
        back.head.base++;
        CHECK(!tsri_head_same(&r.head, &back.head));
    }
}

TEST(tombstones_are_read_as_written)
{
    uint8_t page[TSRI_PAGE_BYTES];
    struct tsri_tomb tombs[TSRI_TOMBS_MAX], back[TSRI_TOMBS_MAX];
    for (uint32_t i = 0; i < TSRI_TOMBS_MAX; i++) {
        tombs[i] = (struct tsri_tomb){.seq = i, .segment = 1000 + i};
        memset(&tombs[i].key, (int)i, sizeof tombs[i].key);
    }
    struct tsri_record r = {.nonce = 1, .offset = 4096, .seq = 9}, seen;
    tsri_tombs_write(page, tombs, TSRI_TOMBS_MAX, &r);
    CHECK_INT(tsri_record_read(page, 1, 4096, 8192, &seen), 0);
    CHECK_INT(seen.kind, TSRI_RECORD_TOMBS);
    CHECK_INT(tsri_tombs_read(page, &seen, back), 0);
    for (uint32_t i = 0; i < TSRI_TOMBS_MAX; i++)
        CHECK(memcmp(&tombs[i].key, &back[i].key, sizeof back[i].key) == 0 &&
              tombs[i].seq == back[i].seq && tombs[i].segment == back[i].segment &&
              !back[i].unlinked);
    page[TSRI_RECORD_HEAD_BYTES + 40 * 3] ^= 1;
    CHECK_INT(tsri_tombs_read(page, &seen, back), TSR_ECORRUPT);
}

/* The format is a promise to files that exist: these numbers change only with the version. */
TEST(the_bytes_are_those_of_version_1)
{
    CHECK_INT(TSRI_DISK_VERSION, 1);
    uint8_t page[TSRI_PAGE_BYTES];
    struct tsri_segment_head h = {3, 0xABCDEF, 1 << 20};
    tsri_segment_head_write(page, &h);
    CHECK_INT(tsri_sum(page, sizeof page), 9207819573778141102);
    struct tsri_record r = record_of(&shapes[3]);
    memset(page, 0, sizeof page);
    tsri_record_write(page, &r);
    CHECK_INT(tsri_sum(page, sizeof page), -1031832809619610564);
    struct tsri_tomb tomb = {.seq = 5, .segment = 6};
    tomb.key.bytes[0] = 1;
    r = (struct tsri_record){.nonce = 1, .offset = 4096, .seq = 9};
    tsri_tombs_write(page, &tomb, 1, &r);
    CHECK_INT(tsri_sum(page, sizeof page), -8292835855359813408);
    struct tsri_layout l;
    tsri_layout_init(&l, &shapes[3]);
    CHECK_INT(l.header_bytes, 53248);
    CHECK_INT(l.record_bytes, 537186304);
}

int main(void)
{
    RUN(cells_fill_a_record_in_order_page_by_page);
    RUN(a_segment_head_is_read_as_written_and_every_bit_counts);
    RUN(a_segment_of_another_version_is_told_from_a_damaged_one);
    RUN(a_record_is_read_as_written_and_every_bit_counts);
    RUN(a_record_at_another_place_is_no_record);
    RUN(a_record_that_lies_about_its_shape_is_no_record);
    RUN(the_body_of_a_header_is_checked);
    RUN(a_cost_is_kept_and_one_that_cannot_be_is_not_known);
    RUN(tombstones_are_read_as_written);
    RUN(the_bytes_are_those_of_version_1);
    return test_end();
}
