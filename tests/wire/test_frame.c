/* test_frame.c - the head of a frame is 24 bytes as written down, and the codec believes no length
 * before it has compared it with what is left. */
#include "wire/wire.h"

#include "support/test.h"

TEST(a_head_is_these_24_bytes)
{
    struct tsri_wire_head head = {.version = 1,
                                  .type = TSRI_WIRE_LOOKUP | TSRI_WIRE_REPLY,
                                  .id = 0x1122334455667788u,
                                  .body_bytes = 0x0a0b0c08,
                                  .status = -5},
                          back;
    static const uint8_t want[24] = {'T',  'S',  'R',  'W',  1,    0,    5,    0x80,
                                     0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
                                     0x08, 0x0c, 0x0b, 0x0a, 0xfb, 0xff, 0xff, 0xff};
    uint8_t bytes[TSRI_WIRE_HEAD_BYTES];
    tsri_wire_head_put(&head, bytes);
    CHECK(memcmp(bytes, want, sizeof want) == 0);
    CHECK_INT(tsri_wire_head_get(bytes, &back), 0);
    CHECK_INT(back.version, 1);
    CHECK_INT(back.type, 0x8005);
    CHECK(back.id == head.id);
    CHECK_INT(back.body_bytes, 0x0a0b0c08);
    CHECK_INT(back.status, -5);
}

TEST(bytes_that_are_no_frame_are_refused)
{
    struct tsri_wire_head head = {.version = 1, .type = TSRI_WIRE_PING, .body_bytes = 8}, back;
    uint8_t bytes[TSRI_WIRE_HEAD_BYTES];
    for (int i = 0; i < 4; i++) {
        tsri_wire_head_put(&head, bytes);
        bytes[i] ^= 1;
        CHECK_INT(tsri_wire_head_get(bytes, &back), TSR_EINVAL);
    }
    for (uint32_t n = 1; n < 8; n++) {
        tsri_wire_head_put(&head, bytes);
        bytes[16] = (uint8_t)(8 + n);
        CHECK_INT(tsri_wire_head_get(bytes, &back), TSR_EINVAL);
        CHECK_HAS(tsr_errmsg(), "multiple of 8");
    }
}

TEST(every_type_has_a_name_and_no_other_number_does)
{
    int n = 0;
    for (uint32_t type = 0; type < 65536; type++)
        n += tsri_wire_name((uint16_t)type) != NULL;
    int n_types = 0;
#define COUNT_TYPE(NAME, number, name) n_types++;
    TSRI_WIRE_TYPES(COUNT_TYPE)
#undef COUNT_TYPE
    CHECK_INT(n, 2 * n_types); /* requests and replies */
    CHECK_STR(tsri_wire_name(TSRI_WIRE_PUT_LAYERS), "put_layers");
    CHECK_STR(tsri_wire_name(TSRI_WIRE_PUT_LAYERS | TSRI_WIRE_REPLY), "put_layers");
}

/* A body as a test wants it, on a boundary of 8. */
struct body {
    _Alignas(8) uint8_t bytes[64];
};

TEST(an_array_is_filled_up_with_zeros_and_read_where_it_stands)
{
    struct body b;
    struct tsri_wire w;
    const uint32_t three[3] = {1, 2, 0xfffffffe};
    memset(&b, 0xee, sizeof b);
    tsri_wire_write_init(&w, b.bytes, sizeof b.bytes);
    CHECK(tsri_wire_array(&w, three, 3, 4) == three);
    CHECK(tsri_wire_done(&w));
    CHECK_INT(w.at, 16);
    CHECK(b.bytes[12] == 0 && b.bytes[15] == 0 && b.bytes[16] == 0xee);
    tsri_wire_read_init(&w, b.bytes, 16);
    const uint32_t *at = tsri_wire_array(&w, NULL, 3, 4);
    CHECK((const uint8_t *)at == b.bytes);
    CHECK(at[0] == 1 && at[2] == 0xfffffffe);
    CHECK(tsri_wire_done(&w));
    b.bytes[14] = 1; /* filling that is not zero */
    tsri_wire_read_init(&w, b.bytes, 16);
    CHECK(tsri_wire_array(&w, NULL, 3, 4) == NULL);
    CHECK(!tsri_wire_done(&w));
}

TEST(a_count_beyond_the_body_reads_nothing)
{
    static const size_t counts[] = {5, 1u << 30, SIZE_MAX / 4, SIZE_MAX / 4 + 1, SIZE_MAX};
    struct body b = {{0}};
    struct tsri_wire w;
    for (size_t i = 0; i < TSRI_COUNT(counts); i++) {
        tsri_wire_read_init(&w, b.bytes, 16);
        CHECK(tsri_wire_array(&w, NULL, counts[i], 4) == NULL);
        CHECK(w.bad);
        uint32_t v = 7;
        tsri_wire_u32(&w, &v); /* and nothing after it either */
        CHECK_INT(v, 0);
        CHECK(!tsri_wire_done(&w));
    }
}

TEST(bytes_left_over_are_not_done)
{
    struct body b = {{0}};
    struct tsri_wire w;
    uint32_t v;
    tsri_wire_read_init(&w, b.bytes, 8);
    tsri_wire_u32(&w, &v);
    CHECK(!tsri_wire_done(&w));
    tsri_wire_u32(&w, &v);
    CHECK(tsri_wire_done(&w));
    tsri_wire_u32(&w, &v);
    CHECK(!tsri_wire_done(&w));
}

TEST(writing_beyond_the_room_writes_nothing_there)
{
    struct body b;
    struct tsri_wire w;
    const uint64_t two[2] = {3, 4};
    memset(&b, 0xee, sizeof b);
    tsri_wire_write_init(&w, b.bytes, 8);
    tsri_wire_array(&w, two, 2, 8);
    CHECK(!tsri_wire_done(&w));
    CHECK(b.bytes[0] == 0xee && b.bytes[8] == 0xee);
}

TEST(without_a_buffer_the_length_is_counted)
{
    struct tsri_wire w;
    const uint8_t seven[7] = {0};
    tsri_wire_write_init(&w, NULL, 0);
    tsri_wire_array(&w, seven, 7, 1);
    uint32_t v = 1;
    tsri_wire_u32(&w, &v);
    tsri_wire_zero_u32(&w);
    CHECK(tsri_wire_done(&w));
    CHECK_INT(w.at, 16);
}

TEST(a_field_without_meaning_must_be_zero)
{
    struct body b = {{0}};
    struct tsri_wire w;
    tsri_wire_read_init(&w, b.bytes, 4);
    tsri_wire_zero_u32(&w);
    CHECK(tsri_wire_done(&w));
    b.bytes[3] = 1;
    tsri_wire_read_init(&w, b.bytes, 4);
    tsri_wire_zero_u32(&w);
    CHECK(!tsri_wire_done(&w));
}

int main(void)
{
    RUN(a_head_is_these_24_bytes);
    RUN(bytes_that_are_no_frame_are_refused);
    RUN(every_type_has_a_name_and_no_other_number_does);
    RUN(an_array_is_filled_up_with_zeros_and_read_where_it_stands);
    RUN(a_count_beyond_the_body_reads_nothing);
    RUN(bytes_left_over_are_not_done);
    RUN(writing_beyond_the_room_writes_nothing_there);
    RUN(without_a_buffer_the_length_is_counted);
    RUN(a_field_without_meaning_must_be_zero);
    return test_end();
}
