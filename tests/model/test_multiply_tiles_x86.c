/* test_multiply_tiles_x86.c - products on AMX's tiles: those of both sides rounded to bf16, for every
 * type of matrix; and a row that does not depend on its company. */
#ifdef TSRI_HAVE_LLAMA
#include "model/multiply_kit.h"
#include "model/tiles_kit.h"

#include <math.h>

static const enum ggml_type types[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
                                       GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};

static bool skipped(void)
{
    return !tsri_tiles_here();
}

/* To numbers of 8 bits. */
static void round_all(float *x, int64_t n)
{
    ggml_bf16_t *narrow = malloc((size_t)n * sizeof *narrow);
    ggml_fp32_to_bf16_row_ref(x, narrow, n);
    ggml_bf16_to_fp32_row(narrow, x, n);
    free(narrow);
}

/* As product() gives them to the matrix, rounded. */
static float *inputs(int64_t n_in, int64_t n_rows)
{
    float *x = malloc((size_t)(n_in * n_rows) * sizeof *x);
    for (int64_t i = 0; i < n_in * n_rows; i++)
        x[i] = source[i * 7 % (TALL * WIDEST)];
    round_all(x, n_in * n_rows);
    return x;
}

/* Sums of products of numbers with 8 bits are exact but for the rounding of each step of a sum. The
 * matrix is scaled in one step here, in up to three by ggml: one of 2^8 numbers may be rounded to its
 * other neighbour. */
static double error_of(struct maths *m, int64_t n_rows)
{
    int64_t n_in = m->matrix->ne[0], n_out = m->matrix->ne[1];
    const float *got = product(m, 0, n_rows, TSRI_BY_TILES, 1);
    float *row = malloc((size_t)n_in * sizeof *row), *x = inputs(n_in, n_rows);
    double worst = 0;
    for (int64_t o = 0; o < n_out; o++) {
        const char *data = (const char *)m->matrix->data + o * (int64_t)m->matrix->nb[1];
        ggml_get_type_traits(m->matrix->type)->to_float(data, row, n_in);
        round_all(row, n_in);
        for (int64_t r = 0; r < n_rows; r++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < n_in; i++) {
                double term = (double)row[i] * (double)x[r * n_in + i];
                sum += term;
                size += fabs(term);
            }
            worst = fmax(worst, fabs(got[r * n_out + o] - sum) / (size + 1e-30));
        }
    }
    free(row);
    free(x);
    return worst;
}

TEST(products_are_those_of_numbers_with_8_bits)
{
    if (skipped()) SKIP("this processor has no AMX");
    /* One block, a chunk, one more block, several chunks. */
    static const int64_t sizes[] = {32, 256, 1024, 1056, 2304, 4864};
    static const int64_t rows[] = {1, 16, 17, 33, ROWS_MOST};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            if (sizes[s] % ggml_blck_size(types[t]) != 0) continue;
            struct maths m = begin(types[t], sizes[s], TALL);
            CHECK_INT(tsri_multiplier(m.matrix, false, true), TSRI_BY_TILES);
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                double error = error_of(&m, rows[r]);
                if (error > 2e-5)
                    printf("    %s, %d values, %d rows: %g\n", ggml_type_name(types[t]),
                           (int)sizes[s], (int)rows[r], error);
                CHECK(error <= 2e-5);
            }
            end(&m);
        }
}

TEST(a_row_depends_neither_on_its_company_nor_on_threads)
{
    if (skipped()) SKIP("this processor has no AMX");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        check_company(types[t], true);
}

#ifdef TSRI_TEST_FAKETILES_H
/* A matrix of whole numbers, each row of blocks with scales of its own: no rounding of ggml's in it. */
static void set_whole_numbers(struct ggml_tensor *matrix)
{
    struct block {
        ggml_fp16_t scale;
        int8_t values[32];
    } *b = matrix->data;
    for (size_t i = 0; i < ggml_nbytes(matrix) / sizeof *b; i++) {
        b[i].scale = (ggml_fp16_t)(0x2c00 + i * 37 % 0x400);
        for (size_t k = 0; k < 32; k++)
            b[i].values[k] = (int8_t)((i * 31 + k * 73) % 255 - 127);
    }
}

/* KV in stores goes by the name of this arithmetic (TSRI_TILES_BITS): other bits need another name.
 * On fake tiles, which every processor with AVX-512 has, and whose bits are those of the manual. */
TEST(bits_are_those_of_the_name_that_is_stored_with_kv)
{
    if (skipped()) SKIP("this processor has no AMX");
    struct maths m = begin(GGML_TYPE_Q8_0, 1056, TALL);
    set_whole_numbers(m.matrix);
    kit_check_bits(product(&m, 0, 40, TSRI_BY_TILES, 1), (size_t)TALL * 40, 0x55f2a0bfad731a90);
    end(&m);
}
#endif

TEST(tiles_that_others_have_set_up_are_there_afterwards)
{
    if (skipped()) SKIP("this processor has no AMX");
    struct maths m = begin(types[0], 256, TALL);
    kit_set_other_tiles();
    product(&m, 0, 16, TSRI_BY_TILES, 1);
    CHECK(kit_are_other_tiles());
    end(&m);
}

int main(void)
{
    kit_init();
    RUN(products_are_those_of_numbers_with_8_bits);
    RUN(a_row_depends_neither_on_its_company_nor_on_threads);
#ifdef TSRI_TEST_FAKETILES_H
    RUN(bits_are_those_of_the_name_that_is_stored_with_kv);
#endif
    RUN(tiles_that_others_have_set_up_are_there_afterwards);
    free(memory);
    return test_end();
}
#else
#include "model/absent.h"
#endif
