/* test_multiply_x86.c - blocks of 32: ggml's bits. */
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

int main(void)
{
    kit_init();
    RUN(products_have_the_bits_of_ggml);
    RUN(blocks_of_any_bytes_have_the_bits_of_ggml);
    RUN(a_row_depends_neither_on_its_company_nor_on_threads);
    free(memory);
    return test_end();
}
#else
#include "model/absent.h"
#endif
