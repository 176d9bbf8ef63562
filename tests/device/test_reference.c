/* The reference is right by definition; these are the definitions, by hand. */
#include "kv.h"

TEST(half_precision_is_ieee)
{
    static const struct {
        uint16_t bits;
        float value;
    } known[] = {{0x0000, 0},           {0x8000, -0.0f},    {0x3c00, 1},
                 {0xc000, -2},          {0x7bff, 65504},    {0x7c00, INFINITY},
                 {0x0400, 0x1p-14f},    {0x0001, 0x1p-24f}, {0x03ff, 0x3ffp-24f},
                 {0x3555, 0x1.554p-2f}, {0xfc00, -INFINITY}};
    for (size_t i = 0; i < TSRI_COUNT(known); i++) {
        CHECK(tsri_f16_to_f32(known[i].bits) == known[i].value);
        CHECK_INT(tsri_f32_to_f16(known[i].value), known[i].bits);
    }
    CHECK_INT(tsri_f32_to_f16(65519.9f), 0x7bff);
    CHECK_INT(tsri_f32_to_f16(65520), 0x7c00);
    CHECK_INT(tsri_f32_to_f16(0x1p-25f), 0);   /* a tie, to even */
    CHECK_INT(tsri_f32_to_f16(0x1.8p-24f), 2); /* a tie, to even */
    CHECK_INT(tsri_f32_to_f16(0x1.000002p-25f), 1);
    CHECK_INT(tsri_f32_to_f16(0x1.ffcp-1f + 0x1p-12f), 0x3c00);
    CHECK((tsri_f32_to_f16(NAN) & 0x7fff) > 0x7c00);
    CHECK(isnan(tsri_f16_to_f32(0x7c01)));
}

TEST(bf16_is_the_upper_half_of_a_float)
{
    CHECK_INT(tsri_f32_to_bf16(1), 0x3f80);
    CHECK_INT(tsri_f32_to_bf16(0x1.01p0f), 0x3f80); /* a tie, to even */
    CHECK_INT(tsri_f32_to_bf16(0x1.03p0f), 0x3f82); /* a tie, to even */
    CHECK_INT(tsri_f32_to_bf16(3.4e38f), 0x7f80);   /* rounds over the end */
    CHECK((tsri_f32_to_bf16(NAN) & 0x7fff) > 0x7f80);
    for (uint32_t i = 0; i < 65536; i++) {
        float f = tsri_bf16_to_f32((uint16_t)i);
        if (!isnan(f)) CHECK_INT(tsri_f32_to_bf16(f), i);
    }
}

TEST(an_int8_row_is_values_then_scales_then_zeros)
{
    float row[6] = {1, -2, 0.5f, 0, 0, 0}, back[6];
    uint8_t out[16];
    struct tsr_kv_plane p = {.dtype = TSR_DTYPE_F32, .n_heads = 2, .dim = 3};
    memset(out, 0xee, sizeof out);
    kv_move_int8(out, row, 1, &p, false);
    CHECK_INT((int8_t)out[0], 64); /* 63.5, to even */
    CHECK_INT((int8_t)out[1], -127);
    CHECK_INT((int8_t)out[2], 32);
    CHECK_INT(out[5], 0);
    float scales[2];
    memcpy(scales, out + 6, sizeof scales);
    CHECK(scales[0] == 2 / 127.0f && scales[1] == 0);
    CHECK_INT(out[14], 0);
    CHECK_INT(out[15], 0);
    kv_move_int8(out, back, 1, &p, true);
    CHECK(back[1] == -2.0f && back[0] == (float)(64 * (double)scales[0]) && back[4] == 0);
}

TEST(a_quarter_turn_swaps_pairs_of_either_kind)
{
    /* cos 0, sin 1: (a, b) becomes (-b, a). */
    float table[4] = {0, 0, 1, 1}, in[4] = {1, 2, 3, 4}, out[4];
    void *plane[1] = {in};
    struct tsr_kv_cells c = {.size = sizeof c,
                             .planes = plane,
                             .n_cells = 1,
                             .cell_tokens = 1,
                             .n_tokens = 1,
                             .n_layers = 1,
                             .n_planes = 1};
    struct tsr_kv_layout l = {.size = sizeof l, .n_layers = 1, .n_planes = 1, .n_slots = 1};
    l.planes[0] = (struct tsr_kv_plane){.base = out,
                                        .token_stride = 16,
                                        .head_stride = 16,
                                        .element_stride = 4,
                                        .dtype = TSR_DTYPE_F32,
                                        .n_heads = 1,
                                        .dim = 4,
                                        .rope_dims = 4};
    int64_t slot = 0;
    struct tsr_kv_run run = {&c, &slot, 0, 1, 1, 0, 0};
    const float *rotations[1] = {table};
    struct tsr_batch b = {&l, &run, 1, 1, 1, TSR_ROPE_NEOX, rotations, NULL, NULL};
    tsri_reference_move(&b, true, 0, 0, 0);
    CHECK(out[0] == -3 && out[1] == -4 && out[2] == 1 && out[3] == 2);
    b.pairing = TSR_ROPE_GPTJ;
    tsri_reference_move(&b, true, 0, 0, 0);
    CHECK(out[0] == -2 && out[1] == 1 && out[2] == -4 && out[3] == 3);
}

TEST(top_k_ranks_nan_first_and_takes_the_first_of_equals)
{
    float scores[] = {1, NAN, 3, 3, -INFINITY, 2};
    uint32_t out[6];
    tsri_reference_top_k(&(struct tsr_top_k){scores, out, 6, 2});
    CHECK(out[0] == 1 && out[1] == 2);
    tsri_reference_top_k(&(struct tsr_top_k){scores, out, 6, 4});
    CHECK(out[0] == 1 && out[1] == 2 && out[2] == 3 && out[3] == 5);
    tsri_reference_top_k(&(struct tsr_top_k){scores, out, 6, 6});
    for (uint32_t i = 0; i < 6; i++)
        CHECK_INT(out[i], i);
}

int main(void)
{
    RUN(half_precision_is_ieee);
    RUN(bf16_is_the_upper_half_of_a_float);
    RUN(an_int8_row_is_values_then_scales_then_zeros);
    RUN(a_quarter_turn_swaps_pairs_of_either_kind);
    RUN(top_k_ranks_nan_first_and_takes_the_first_of_equals);
    return test_end();
}
