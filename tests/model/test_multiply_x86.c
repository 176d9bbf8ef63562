/* test_multiply_x86.c - blocks of 32: ggml's bits, and whose matrices they are not. */
#ifdef TSRI_HAVE_LLAMA
#include "model/multiply_kit.h"

static const struct kind kinds[] = {
    {GGML_TYPE_Q4_0, 32, 0, false}, {GGML_TYPE_Q5_0, 32, 0, false}, {GGML_TYPE_Q8_0, 32, 0, false}};

TEST(products_have_the_bits_of_ggml)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        check_products(&kinds[k]);
}

TEST(blocks_of_any_bytes_have_the_bits_of_ggml)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        check_any_bytes(&kinds[k]);
}

TEST(a_row_depends_neither_on_its_company_nor_on_threads)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        check_company(kinds[k].type, false);
}

TEST(other_matrices_are_left_to_ggml)
{
    struct maths m = begin(GGML_TYPE_Q4_1, 64, OUT); /* another kind */
    CHECK_INT(tsri_multiplier(m.matrix, true, false), TSRI_BY_GGML);
    end(&m);
    m = begin(GGML_TYPE_Q5_0, 64, OUT - 1); /* rows that do not come in sixteens */
    CHECK_INT(tsri_multiplier(m.matrix, true, false), TSRI_BY_GGML);
    end(&m);
    m = begin(GGML_TYPE_Q5_0, 64, OUT);
    m.matrix->buffer = NULL; /* nobody knows where it is */
    CHECK_INT(tsri_multiplier(m.matrix, true, false), TSRI_BY_GGML);
    end(&m);
}

int main(void)
{
    kit_init();
    RUN(products_have_the_bits_of_ggml);
    RUN(blocks_of_any_bytes_have_the_bits_of_ggml);
    RUN(a_row_depends_neither_on_its_company_nor_on_threads);
    RUN(other_matrices_are_left_to_ggml);
    free(memory);
    return test_end();
}
#else
#include "model/absent.h"
#endif
