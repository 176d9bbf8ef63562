#include "tier/parcel.h"
#include "support/kv_entry.h"
#include "support/test.h"

static const struct kv_shape shapes[] = {
    {1, 64, 1, 1, {4, 0}, 0, 0},       {100, 64, 3, 2, {48, 32}, 10, 0},
    {256, 64, 7, 2, {256, 256}, 0, 0}, {77, 16, 5, 2, {512, 64}, 33, 0},
    {130, 64, 5, 1, {1152, 0}, 7, 0},  {3, 1, 2, 2, {1, 1}, 1, 0},
};
static const uint64_t part_sizes[] = {4096, 65536, 2 << 20, 8 << 20};

static uint8_t *record_of(const struct kv_entry *e, struct tsri_parcel *r, uint64_t part_bytes)
{
    CHECK_INT(tsri_parcel_init(r, &e->head, 77, part_bytes), 0);
    uint8_t *record = malloc(r->record_bytes);
    tsri_parcel_fill(record, r, e->tokens, e->extra);
    tsri_parcel_sum(record, r, e->planes, 0, tsri_parcel_cells(r));
    tsri_parcel_seal(record, r);
    return record;
}

TEST(parts_cover_every_byte_once_in_order)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++)
        for (size_t k = 0; k < TSRI_COUNT(part_sizes); k++) {
            struct kv_entry e;
            kv_entry_init_room_seed(&e, &shapes[i], i);
            struct tsri_parcel r;
            CHECK_INT(tsri_parcel_init(&r, &e.head, 1, part_sizes[k]), 0);
            uint64_t at = 0;
            for (uint32_t p = 0; p < r.n_parts; p++) {
                struct tsri_extent x = tsri_parcel_part(&r, p);
                CHECK_INT(x.begin, at);
                CHECK(x.end > x.begin && x.end - x.begin <= TSRI_PARCEL_PART_MAX);
                at = x.end;
            }
            CHECK_INT(at, r.kv_bytes);
            at = 0;
            for (uint64_t cell = 0; cell < tsri_parcel_cells(&r); cell++) {
                CHECK_INT(tsri_parcel_cell(&r, cell).begin, at);
                at = tsri_parcel_cell(&r, cell).end;
            }
            CHECK_INT(at, r.kv_bytes);
            kv_entry_fini(&e);
        }
}

TEST(layers_larger_than_a_part_may_be_are_cut)
{
    struct tsr_entry_head head = {.n_tokens = 4096,
                                  .cell_tokens = 64,
                                  .n_layers = 3,
                                  .n_planes = 2,
                                  .row_bytes = {3000, 3000}};
    struct tsri_parcel r;
    CHECK_INT(tsri_parcel_init(&r, &head, 1, 2 << 20), 0);
    CHECK(r.layer_bytes > 2 * TSRI_PARCEL_PART_MAX);
    uint64_t at = 0;
    for (uint32_t p = 0; p < r.n_parts; p++) {
        struct tsri_extent x = tsri_parcel_part(&r, p);
        CHECK_INT(x.begin, at);
        CHECK(x.end - x.begin <= TSRI_PARCEL_PART_MAX);
        /* none runs over into the next layer */
        CHECK_INT(x.begin / r.layer_bytes, (x.end - 1) / r.layer_bytes);
        at = x.end;
    }
    CHECK_INT(at, r.kv_bytes);
}

TEST(an_entry_too_large_for_a_server_is_refused)
{
    struct tsr_entry_head head = {.n_tokens = 1 << 20,
                                  .cell_tokens = 1,
                                  .n_layers = 4096,
                                  .n_planes = 2,
                                  .row_bytes = {1 << 18, 1 << 18}};
    struct tsri_parcel r;
    CHECK_INT(tsri_parcel_init(&r, &head, 1, 2 << 20), TSR_ERANGE);
}

/* Streams of every part, moved in odd steps, carry exactly the cells. */
TEST(streams_carry_the_cells_and_nothing_else)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        struct kv_entry from, to;
        kv_entry_init(&from, &shapes[i], i);
        kv_entry_init_room(&to, &from, 3);
        to.planes[0] = NULL; /* nobody wants the first cell */
        struct tsri_parcel r;
        uint8_t *record = record_of(&from, &r, 4096), waste[100];
        for (uint32_t p = 0; p < r.n_parts; p++) {
            struct tsri_extent x = tsri_parcel_part(&r, p);
            struct tsri_stream s = tsri_stream_kv(&r, from.planes, x),
                               d = tsri_stream_kv(&r, to.planes, x);
            while (s.left) {
                struct iovec iov[3];
                int n = tsri_stream_iov(&s, iov, 3, NULL, 0);
                CHECK(n > 0);
                for (int k = 0; k < n; k++) {
                    size_t half = iov[k].iov_len > 7 ? iov[k].iov_len / 2 : iov[k].iov_len;
                    tsri_stream_give(&d, iov[k].iov_base, half);
                    tsri_stream_advance(&s, half);
                    if (half != iov[k].iov_len) break;
                }
            }
            CHECK_INT(d.left, 0);
        }
        struct tsri_stream none = tsri_stream_flat(NULL, 250);
        struct iovec one;
        CHECK_INT(tsri_stream_iov(&none, &one, 1, waste, sizeof waste), 1);
        CHECK_INT(one.iov_len, sizeof waste);
        struct tsri_extent all = {0, tsri_parcel_cells(&r)};
        CHECK_INT(tsri_parcel_check(record, &r, to.planes, all, NULL), 0);
        if (r.n_parts > 1 || all.end > 1) {
            *(uint8_t *)to.planes[all.end - 1] ^= 1;
            CHECK_INT(tsri_parcel_check(record, &r, to.planes, all, NULL), TSR_ECORRUPT);
        }
        free(record);
        kv_entry_fini(&from);
        kv_entry_fini(&to);
    }
}

/* From byte `begin` on, in steps of 999 bytes. */
static void give_all(const struct tsri_parcel *r, const struct kv_entry *from, struct kv_entry *to,
                     uint64_t begin, uint64_t *sums)
{
    struct tsri_extent x = {begin, r->kv_bytes};
    struct tsri_stream s = tsri_stream_kv(r, from->planes, x), d = tsri_stream_kv(r, to->planes, x);
    d.sums = sums;
    for (struct iovec iov; tsri_stream_iov(&s, &iov, 1, NULL, 0) == 1;) {
        size_t n = iov.iov_len < 999 ? iov.iov_len : 999;
        tsri_stream_give(&d, iov.iov_base, n);
        tsri_stream_advance(&s, n);
    }
    CHECK_INT(d.left, 0);
}

TEST(streams_leave_the_sums_of_cells_that_they_have_given_whole)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        struct kv_entry from, to;
        struct tsri_parcel r;
        kv_entry_init(&from, &shapes[i], i);
        kv_entry_init_room(&to, &from, 3);
        uint8_t *record = record_of(&from, &r, 4096);
        uint64_t n = tsri_parcel_cells(&r), *sums = calloc(n, sizeof sums[0]);
        give_all(&r, &from, &to, 0, sums);
        for (uint64_t k = 0; k < n; k++)
            CHECK_INT(sums[k], tsri_get64(record + r.sums_at + k * 8));
        bool cut = tsri_parcel_cell(&r, 0).end > 1;
        give_all(&r, &from, &to, 1, sums); /* the first cell from its second byte on */
        for (uint64_t k = 0; k < n; k++)
            CHECK_INT(sums[k], k || !cut ? tsri_get64(record + r.sums_at + k * 8) : 0);
        to.planes[n - 1] = NULL; /* nobody wants it */
        give_all(&r, &from, &to, 0, sums);
        CHECK_INT(sums[n - 1], 0);
        free(sums);
        free(record);
        kv_entry_fini(&from);
        kv_entry_fini(&to);
    }
}

TEST(cells_are_proven_by_the_sums_that_are_known)
{
    struct kv_entry from, to;
    struct tsri_parcel r;
    kv_entry_init(&from, &shapes[3], 5);
    kv_entry_init_room(&to, &from, 3);
    uint8_t *record = record_of(&from, &r, 4096);
    uint64_t n = tsri_parcel_cells(&r), *sums = calloc(n, sizeof sums[0]);
    struct tsr_tier_io io = kv_entry_io(&to);
    for (int round = 0; round < 4; round++) {
        struct tsri_arrivals a = {.sums = sums};
        *(uint8_t *)from.planes[n - 1] ^= round == 1; /* on its way */
        give_all(&r, &from, &to, 0, sums);
        *(uint8_t *)from.planes[n - 1] ^= round == 1;
        if (round == 2) sums[0] = 0; /* not known: made from the cell */
        if (round == 3) sums[0] ^= 1;
        for (uint32_t p = 0; p < r.n_parts; p++)
            tsri_arrivals_note(&a, p);
        CHECK_INT(tsri_arrivals_prove(&a, record, &r, &io), round % 2 ? TSR_ECORRUPT : 0);
    }
    free(sums);
    free(record);
    kv_entry_fini(&from);
    kv_entry_fini(&to);
}

TEST(a_record_says_what_was_written)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        struct kv_entry e, room;
        kv_entry_init(&e, &shapes[i], i);
        struct tsri_parcel r, back;
        uint8_t *record = record_of(&e, &r, 65536);
        CHECK_INT(tsri_parcel_read(record, r.record_bytes, &back), 0);
        CHECK_INT(back.nonce, 77);
        CHECK_INT(back.n_parts, r.n_parts);
        kv_entry_init_room_seed(&room, &shapes[i], i);
        struct tsr_tier_io io = kv_entry_io(&room);
        CHECK_INT(tsri_parcel_deliver(record, &back, &io), 0);
        room.head = io.head;
        CHECK(kv_entry_head_right(&room, &shapes[i], i));
        io.head.space[3] ^= 1;
        CHECK_INT(tsri_parcel_deliver(record, &back, &io), TSR_ENOENT);
        free(record);
        kv_entry_fini(&e);
        kv_entry_fini(&room);
    }
}

TEST(a_flipped_bit_anywhere_or_a_missing_byte_is_noticed)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[3], 9);
    struct tsri_parcel r, back;
    uint8_t *record = record_of(&e, &r, 65536);
    for (uint64_t bit = 0; bit < r.record_bytes * 8; bit++) {
        record[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_INT(tsri_parcel_read(record, r.record_bytes, &back), TSR_ECORRUPT);
        record[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (uint64_t bytes = 0; bytes < r.record_bytes; bytes++)
        CHECK_INT(tsri_parcel_read(record, bytes, &back), TSR_ECORRUPT);
    CHECK_INT(tsri_parcel_read(record, r.record_bytes, &back), 0);
    free(record);
    kv_entry_fini(&e);
}

TEST(another_version_is_left_alone)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[1], 9);
    struct tsri_parcel r, back;
    uint8_t *record = record_of(&e, &r, 65536);
    tsri_put32(record + 8, TSRI_PARCEL_VERSION + 1);
    tsri_put64(record + 248, tsri_sum(record, 248));
    CHECK_INT(tsri_parcel_read(record, r.record_bytes, &back), TSR_EVERSION);
    free(record);
    kv_entry_fini(&e);
}

TEST(the_same_text_is_known_whoever_wrote_it)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[1], 9);
    struct tsri_parcel r;
    uint8_t *a = record_of(&e, &r, 65536), *b = malloc(r.record_bytes);
    r.nonce = 5;
    tsri_parcel_fill(b, &r, e.tokens, e.extra); /* no sums yet */
    CHECK(tsri_parcel_same_text(a, b, &r));
    b[r.tokens_at] ^= 1;
    CHECK(!tsri_parcel_same_text(a, b, &r));
    free(a);
    free(b);
    kv_entry_fini(&e);
}

TEST(of_a_part_only_what_lies_between_wanted_cells_is_wanted)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[2], 5);
    struct tsri_parcel r;
    CHECK_INT(tsri_parcel_init(&r, &e.head, 1, 8 << 20), 0);
    CHECK_INT(r.n_parts, 1);
    uint64_t n = tsri_parcel_cells(&r);
    void **planes = calloc(n, sizeof planes[0]);
    struct tsri_extent x = tsri_parcel_wanted(&r, planes, 0);
    CHECK_INT(x.begin, x.end);
    planes[3] = e.planes[3];
    planes[9] = e.planes[9];
    x = tsri_parcel_wanted(&r, planes, 0);
    CHECK_INT(x.begin, tsri_parcel_cell(&r, 3).begin);
    CHECK_INT(x.end, tsri_parcel_cell(&r, 9).end);
    x = tsri_parcel_wanted(&r, e.planes, 0);
    CHECK_INT(x.begin, 0);
    CHECK_INT(x.end, r.kv_bytes);
    free(planes);
    kv_entry_fini(&e);
}

static uint32_t n_handed_on;

static void count_layer(struct tsr_tier_io *io, uint32_t layer)
{
    (void)io;
    CHECK_INT(layer, n_handed_on);
    n_handed_on++;
}

TEST(parts_that_arrive_in_any_order_are_proven_and_handed_on_in_order)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[2], 6);
    struct tsri_parcel r;
    uint8_t *record = record_of(&e, &r, 64 << 10); /* a part is half a layer or less */
    CHECK(r.n_parts >= 7 && r.n_parts <= TSRI_ARRIVALS_AHEAD);
    struct tsr_tier_io io = kv_entry_io(&e);
    io.layer_done = count_layer;
    struct tsri_arrivals a = {0};
    n_handed_on = 0;
    for (uint32_t p = r.n_parts - 1; p > 0; p--) {
        tsri_arrivals_note(&a, p);
        CHECK_INT(tsri_arrivals_prove(&a, record, &r, &io), 0);
        CHECK_INT(n_handed_on, 0);
    }
    tsri_arrivals_note(&a, 0);
    CHECK_INT(tsri_arrivals_prove(&a, record, &r, &io), 0);
    CHECK_INT(n_handed_on, shapes[2].n_layers);
    a = (struct tsri_arrivals){0};
    n_handed_on = 0;
    ((uint8_t *)e.planes[0])[7] ^= 1;
    tsri_arrivals_note(&a, 0);
    CHECK_INT(tsri_arrivals_prove(&a, record, &r, &io), TSR_ECORRUPT);
    CHECK_INT(n_handed_on, 0);
    free(record);
    kv_entry_fini(&e);
}

int main(void)
{
    RUN(of_a_part_only_what_lies_between_wanted_cells_is_wanted);
    RUN(parts_that_arrive_in_any_order_are_proven_and_handed_on_in_order);
    RUN(parts_cover_every_byte_once_in_order);
    RUN(layers_larger_than_a_part_may_be_are_cut);
    RUN(an_entry_too_large_for_a_server_is_refused);
    RUN(streams_carry_the_cells_and_nothing_else);
    RUN(streams_leave_the_sums_of_cells_that_they_have_given_whole);
    RUN(cells_are_proven_by_the_sums_that_are_known);
    RUN(a_record_says_what_was_written);
    RUN(a_flipped_bit_anywhere_or_a_missing_byte_is_noticed);
    RUN(another_version_is_left_alone);
    RUN(the_same_text_is_known_whoever_wrote_it);
    return test_end();
}
