/* kernels.h - what every set of kernels must do: checked against arithmetic in double, over lengths
 * that fill vectors and lengths that do not, with bytes beyond the end that must stay. */
#ifndef TSRI_TEST_KERNELS_H
#define TSRI_TEST_KERNELS_H

#include "kv.h"

static const struct tsri_kernels *kernels;
static const uint32_t kernel_dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};
enum { KERNEL_N_MAX = 300, KERNEL_GUARD = 64 };

/* Two vectors with a gap, from src to dst, both with guards behind. */
static void check_turn(uint32_t kind, uint32_t pairing, uint32_t n_pairs, bool wide)
{
    uint32_t dtype = kernel_dtypes[kind], in_type = wide ? TSR_DTYPE_F32 : dtype;
    size_t in_bytes = tsri_dtype_bytes(in_type), out_bytes = tsri_dtype_bytes(dtype);
    size_t stride_in = 2 * n_pairs * in_bytes + 8, stride_out = 2 * n_pairs * out_bytes + 12;
    uint8_t src[2 * (2 * KERNEL_N_MAX * 4 + 16)], dst[2 * (2 * KERNEL_N_MAX * 4 + 16)];
    float table[2 * KERNEL_N_MAX];
    uint64_t seed = n_pairs + 1;
    for (size_t i = 0; i < 2 * stride_in; i += in_bytes)
        kv_put_normal(src + i, in_type, &seed);
    memset(dst, 0xa5, sizeof dst);
    for (uint32_t i = 0; i < n_pairs; i++) {
        table[i] = (float)cos(i + 0.3);
        table[n_pairs + i] = (float)sin(i + 0.3);
    }
    struct tsri_turn t = {table, table + n_pairs, n_pairs};
    (wide ? kernels->turn_wide : kernels->turn)[kind][pairing](dst, stride_out, src, stride_in, 2,
                                                               &t);
    for (uint32_t v = 0; v < 2; v++)
        for (uint32_t i = 0; i < n_pairs; i++) {
            size_t ia = pairing == TSRI_GPTJ ? 2 * i : i;
            size_t ib = pairing == TSRI_GPTJ ? ia + 1 : ia + n_pairs;
            double a = kv_get(src + v * stride_in + ia * in_bytes, in_type);
            double b = kv_get(src + v * stride_in + ib * in_bytes, in_type);
            double c = (double)table[i], s = (double)table[n_pairs + i];
            double unit = kv_ulp(hypot(a, b), dtype) * (dtype == TSR_DTYPE_F32 ? 4 : 0.6);
            CHECK(fabs(kv_get(dst + v * stride_out + ia * out_bytes, dtype) - (a * c - b * s)) <=
                  unit);
            CHECK(fabs(kv_get(dst + v * stride_out + ib * out_bytes, dtype) - (b * c + a * s)) <=
                  unit);
        }
    for (size_t i = 0; i < 12; i++)
        CHECK_INT(dst[2 * n_pairs * out_bytes + i], 0xa5);
    CHECK_INT(dst[stride_out + 2 * n_pairs * out_bytes], 0xa5);
}

TEST(pairs_turn_within_the_bound_at_every_length)
{
    for (uint32_t n = 1; n <= KERNEL_N_MAX / 2; n += n < 40 ? 1 : 23)
        for (uint32_t kind = 0; kind < TSRI_N_FLOATS; kind++)
            for (uint32_t pairing = 0; pairing < TSRI_N_PAIRINGS; pairing++) {
                check_turn(kind, pairing, n, false);
                check_turn(kind, pairing, n, true);
            }
}

/* Every bit pattern of 16 bits: exact on the way up, and back to itself. */
TEST(widening_is_exact_and_narrowing_undoes_it)
{
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (uint32_t kind = TSRI_F16; kind <= TSRI_BF16; kind++) {
        kernels->widen[kind](wide, all, 65536);
        kernels->narrow[kind](back, wide, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            float want = kind == TSRI_F16 ? tsri_f16_to_f32(all[i]) : tsri_bf16_to_f32(all[i]);
            if (isnan(want)) {
                CHECK(isnan(wide[i]));
                float again =
                    kind == TSRI_F16 ? tsri_f16_to_f32(back[i]) : tsri_bf16_to_f32(back[i]);
                CHECK(isnan(again));
                continue;
            }
            CHECK(memcmp(&want, &wide[i], 4) == 0);
            /* bf16 instructions flush denormals, which the contract allows. */
            bool flushed = kind == TSRI_BF16 && fabsf(want) < 0x1p-126f && !(back[i] & 0x7fff);
            CHECK(back[i] == all[i] || flushed);
        }
    }
}

TEST(narrowing_rounds_to_nearest_and_ties_to_even)
{
    static float src[4096];
    static uint16_t dst[4096];
    uint64_t seed = 17;
    for (uint32_t kind = TSRI_F16; kind <= TSRI_BF16; kind++) {
        for (int i = 0; i < 4096; i++) {
            uint32_t bits = (uint32_t)(test_rand(&seed) >> 32);
            /* Half of them ties or next to ties. */
            if (i % 2 && kind == TSRI_F16) bits = (bits & 0xffffe000u) | (0x1000u + bits % 3 - 1);
            if (i % 2 && kind == TSRI_BF16) bits = (bits & 0xffff0000u) | (0x8000u + bits % 3 - 1);
            if (i % 4 == 3) bits = (bits & 0x8fffffffu) | 0x30000000u; /* near 1 */
            memcpy(&src[i], &bits, 4);
        }
        kernels->narrow[kind](dst, src, 4096);
        for (int i = 0; i < 4096; i++) {
            uint16_t want = kind == TSRI_F16 ? tsri_f32_to_f16(src[i]) : tsri_f32_to_bf16(src[i]);
            bool flushed = kind == TSRI_BF16 && fabsf(src[i]) < 0x1.1p-126f;
            CHECK(isnan(src[i]) || dst[i] == want || flushed);
        }
    }
}

TEST(groups_become_int8_as_the_header_says)
{
    float src[KERNEL_N_MAX];
    int8_t dst[KERNEL_N_MAX + 1];
    uint64_t seed = 9;
    for (uint32_t n = 1; n <= 130; n++) {
        float m = 0;
        for (uint32_t i = 0; i < n; i++) {
            kv_put_normal((uint8_t *)&src[i], TSR_DTYPE_F32, &seed);
            if (fabsf(src[i]) > m) m = fabsf(src[i]);
        }
        dst[n] = 99;
        float scale = kernels->quantise(dst, src, n), by = 127.0f / m;
        CHECK(scale == m / 127.0f);
        CHECK_INT(dst[n], 99);
        for (uint32_t i = 0; i < n; i++)
            CHECK_INT(dst[i], (int)rintf(src[i] * by));
        float back[KERNEL_N_MAX];
        kernels->widen_int8(back, dst, scale, n);
        for (uint32_t i = 0; i < n; i++)
            CHECK(back[i] == (float)dst[i] * scale);
    }
}

TEST(groups_without_a_scale_say_so)
{
    float src[64] = {0};
    int8_t dst[64];
    for (uint32_t n = 1; n <= 64; n += 7) {
        memset(src, 0, sizeof src);
        memset(dst, 1, sizeof dst);
        CHECK(kernels->quantise(dst, src, n) == 0);
        CHECK_INT(dst[n - 1], 0);
        src[n / 2] = 0x1p-121f;
        CHECK(kernels->quantise(dst, src, n) == 0);
        for (int odd = 0; odd < 3; odd++) {
            src[n / 2] = odd == 0 ? NAN : odd == 1 ? INFINITY : -INFINITY;
            memset(dst, 1, sizeof dst);
            CHECK(isnan(kernels->quantise(dst, src, n)));
            CHECK_INT(dst[0], 0);
        }
    }
}

static inline void run_kernels(const struct tsri_kernels *k)
{
    kernels = k;
    printf("%s\n", k->name);
    RUN(pairs_turn_within_the_bound_at_every_length);
    RUN(widening_is_exact_and_narrowing_undoes_it);
    RUN(narrowing_rounds_to_nearest_and_ties_to_even);
    RUN(groups_become_int8_as_the_header_says);
    RUN(groups_without_a_scale_say_so);
}

#endif
