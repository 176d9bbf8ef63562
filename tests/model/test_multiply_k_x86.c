/* test_multiply_k_x86.c - Q4_K and Q6_K: the bits of ggml's kernel for one row. */
#ifdef TSRI_HAVE_LLAMA
#include "model/multiply_kit.h"

static const struct kind kinds[] = {{GGML_TYPE_Q4_K, 256, 0, true},
                                    {GGML_TYPE_Q6_K, 256, 208, true}};

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
