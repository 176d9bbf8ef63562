/* Our kernel against ggml's tiles: the same attention, and a row that does not depend on its company. */
#ifdef TSRI_HAVE_LLAMA
#include "model/attention_kit.h"

static const float *by_ggml(struct maths *m)
{
    struct ggml_tensor *q = ggml_permute(m->ctx, m->q, 0, 2, 1, 3);
    return kit_compute(m->ctx, ggml_flash_attn_ext(m->ctx, q, m->k, m->v, m->mask, m->scale, 0, 0),
                       1);
}

static bool runs_here(void)
{
    struct shape s = {GGML_TYPE_F16, 64, 2, 1, 1, 64, false};
    struct maths m = begin(&s);
    bool can = tsri_attention_can(m.k->view_src, s.dim);
    end(&m);
    return can;
}

static void check_shape(const struct shape *s)
{
    struct maths m = begin(s);
    const float *want = by_ggml(&m), *got = by_us(&m, 0, s->n_rows, 1, false);
    check_same(got, want, (size_t)s->dim * s->n_heads * s->n_rows);
    end(&m);
}

TEST(attention_has_the_bits_of_ggml)
{
    static const uint32_t rows[] = {1, 2, 5, 16, 17, 33, 63, 64, 65, 128, 150, 600};
    static const uint32_t keys[] = {64, 192, 1088};
    if (!runs_here()) SKIP("this processor has no AVX-512");
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            struct shape s = {GGML_TYPE_F16, 64, 7, 1, rows[r], keys[k], true};
            check_shape(&s);
            s.spread = false;
            if (rows[r] <= keys[k]) check_shape(&s);
        }
}

TEST(heads_of_any_size_and_number_have_them)
{
    static const uint32_t dims[] = {16, 48, 64, 80, 128};
    static const uint32_t heads[][2] = {{1, 1}, {4, 4}, {9, 3}, {12, 2}, {14, 2}};
    if (!runs_here()) SKIP("this processor has no AVX-512");
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
            struct shape s = {GGML_TYPE_F16, dims[d], heads[h][0], heads[h][1], 70, 320, true};
            check_shape(&s);
            s.type = GGML_TYPE_F32;
            s.spread = false;
            check_shape(&s);
        }
}

TEST(a_row_depends_neither_on_its_company_nor_on_threads)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 150, 320, true};
    if (!runs_here()) SKIP("this processor has no AVX-512");
    check_company(&s, false);
}

TEST(rows_that_see_nothing_are_zeros)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 3, 128, true};
    if (!runs_here()) SKIP("this processor has no AVX-512");
    check_blind(&s, false);
}

TEST(other_memory_is_left_to_ggml)
{
    struct shape s = {GGML_TYPE_F16, 64, 1, 1, 1, 64, false};
    struct maths m = begin(&s);
    CHECK(!tsri_attention_can(m.k->view_src, 64 + 8));   /* no whole registers */
    CHECK(!tsri_attention_can(m.k->view_src, 128 + 16)); /* too much for the stack */
    m.k->view_src->buffer = NULL;                        /* nobody knows where it is */
    CHECK(!tsri_attention_can(m.k->view_src, 64));
    end(&m);
    s.type = GGML_TYPE_BF16; /* ggml has no tiles for it either */
    m = begin(&s);
    CHECK(!tsri_attention_can(m.k->view_src, 64));
    end(&m);
}

int main(void)
{
    kit_init();
    RUN(attention_has_the_bits_of_ggml);
    RUN(heads_of_any_size_and_number_have_them);
    RUN(a_row_depends_neither_on_its_company_nor_on_threads);
    RUN(rows_that_see_nothing_are_zeros);
    RUN(other_memory_is_left_to_ggml);
    free(memory);
    return test_end();
}
#else
#include "model/absent.h"
#endif
