/* test_multiply.c - who multiplies with which matrix, by its type, its shape and where it is. */
#ifdef TSRI_HAVE_LLAMA
#include "model/multiply_kit.h"

enum { ANSWERS = 1, PROMPTS = 0 };

static void check(enum ggml_type type, int64_t n_out, bool few, bool tiles,
                  enum tsri_multiplier expected)
{
    struct maths m = begin(type, 256, n_out);
    CHECK_INT(tsri_multiplier(m.matrix, few, tiles), expected);
    m.matrix->buffer = NULL; /* nobody knows where it is */
    CHECK_INT(tsri_multiplier(m.matrix, few, tiles), TSRI_BY_GGML);
    end(&m);
}

static const enum ggml_type blocks[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q5_0, GGML_TYPE_Q8_0};
static const enum ggml_type ks[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};

TEST(answers_keep_the_bits_of_ggml)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    for (int tiles = 0; tiles < 2; tiles++) {
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            check(blocks[i], TALL, ANSWERS, tiles, TSRI_BY_BLOCKS);
        for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
            check(ks[i], TALL, ANSWERS, tiles, TSRI_BY_K);
        check(GGML_TYPE_Q4_1, TALL, ANSWERS, tiles, TSRI_BY_GGML);
    }
}

TEST(prompts_are_computed_on_tiles_where_the_executor_says_so)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        check(blocks[i], TALL, PROMPTS, true, TSRI_BY_TILES);
        check(blocks[i], TALL, PROMPTS, false, TSRI_BY_BLOCKS);
        check(blocks[i], OUT, PROMPTS, true,
              TSRI_BY_BLOCKS); /* rows do not come in pairs of tiles */
    }
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        check(ks[i], TALL, PROMPTS, true, TSRI_BY_TILES);
        check(ks[i], TALL, PROMPTS, false, TSRI_BY_GGML);
    }
    check(GGML_TYPE_Q4_1, TALL, PROMPTS, true, TSRI_BY_TILES);
}

TEST(other_matrices_are_left_to_ggml)
{
    for (int few = 0; few < 2; few++)
        for (int tiles = 0; tiles < 2; tiles++) {
            check(GGML_TYPE_Q5_1, TALL, few, tiles, TSRI_BY_GGML);
            check(GGML_TYPE_F16, TALL, few, tiles, TSRI_BY_GGML);
            check(GGML_TYPE_Q5_0, OUT - 1, few, tiles, TSRI_BY_GGML); /* not in sixteens */
        }
}

int main(void)
{
    kit_init();
    RUN(answers_keep_the_bits_of_ggml);
    RUN(prompts_are_computed_on_tiles_where_the_executor_says_so);
    RUN(other_matrices_are_left_to_ggml);
    free(memory);
    return test_end();
}
#else
#include "model/absent.h"
#endif
