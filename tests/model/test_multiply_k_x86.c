/* test_multiply_k_x86.c - Q6_K: the bits of ggml's kernel for one row. */
#ifdef TSRI_HAVE_LLAMA
#include "model/multiply_kit.h"

static const struct kind six_bits = {GGML_TYPE_Q6_K, 256, 208, true};

TEST(products_have_the_bits_of_ggml)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    check_products(&six_bits);
}

TEST(blocks_of_any_bytes_have_the_bits_of_ggml)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    check_any_bytes(&six_bits);
}

TEST(a_row_depends_neither_on_its_company_nor_on_threads)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    check_company(&six_bits);
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
