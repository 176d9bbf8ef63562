/* Our kernel on AMX tiles against attention in doubles, and a row that does not depend on its company. */
#ifdef TSRI_HAVE_LLAMA
#include "model/attention_kit.h"
#include "model/tiles_kit.h"

#include <math.h>

#define NO_TILES "this processor has no AMX for bf16, or the kernel does not lend its tiles"

enum { DIM_MOST = 128 };

static bool runs_here(void)
{
    struct shape s = {GGML_TYPE_F16, 64, 2, 1, 1, 64, false};
    struct maths m = begin(&s);
    bool can = tsri_attention_tiles_can(m.k->view_src, s.dim);
    end(&m);
    return can;
}

/* A number of K or V, which are views of [dim, keys, heads]. */
static double number(const struct ggml_tensor *t, uint32_t d, uint32_t key, uint32_t head)
{
    const char *row = (const char *)t->data + key * t->nb[1] + head * t->nb[2];
    ggml_fp16_t x;
    memcpy(&x, row + d * sizeof x, sizeof x);
    return (double)ggml_fp16_to_fp32(x);
}

/* One lane in doubles, and how far off the kernel may be. */
struct truth {
    double out[DIM_MOST], may_err[DIM_MOST];
};

/* How far: Q and K as two bf16 each, without the product of low parts, make a score that is off by
 * 2^-17 of the sum of absolute products, and adding them up in floats by about as much: d = 2^-16 of
 * it, in logarithms of weights. Weights p that are off by factors exp(+-d) change a sum of p * v by at
 * most exp(2 * max d) * (sum of p * d * |v| + sum of p * d * sum of p * |v|). Weights and V, multiplied in
 * the same way, and the power of two are off by 2^-16 of the sum of p * |v|. */
static void find_truth(struct truth *t, const struct maths *m, uint32_t row, uint32_t head)
{
    static double p[KEYS_MOST], off[KEYS_MOST];
    uint32_t dim = (uint32_t)m->k->ne[0], n_keys = (uint32_t)m->k->ne[1];
    uint32_t kv = head / (uint32_t)(m->q->ne[1] / m->k->ne[2]);
    const float *q = (const float *)m->q->data + (row * (size_t)m->q->ne[1] + head) * dim;
    const ggml_fp16_t *mask = (const ggml_fp16_t *)m->mask->data + (size_t)row * n_keys;
    double most = -INFINITY, total = 0, mean_off = 0, most_off = 0;
    for (uint32_t k = 0; k < n_keys; k++) {
        p[k] = (double)ggml_fp16_to_fp32(mask[k]), off[k] = 0;
        if (isinf(p[k])) continue;
        off[k] = fabs(p[k]);
        for (uint32_t d = 0; d < dim; d++) {
            double x = (double)q[d] * number(m->k, d, k, kv) * (double)m->scale;
            p[k] += x, off[k] += fabs(x);
        }
        off[k] *= 0x1p-16;
        most = fmax(most, p[k]);
    }
    for (uint32_t k = 0; k < n_keys; k++)
        total += p[k] = isinf(p[k]) ? 0 : exp(p[k] - most);
    for (uint32_t k = 0; k < n_keys; k++) {
        if (p[k] == 0) continue;
        p[k] /= total;
        mean_off += p[k] * off[k];
        most_off = fmax(most_off, off[k]);
    }
    for (uint32_t d = 0; d < dim; d++) {
        double sum = 0, absolute = 0, moved = 0;
        for (uint32_t k = 0; k < n_keys; k++) {
            double v = p[k] == 0 ? 0 : p[k] * number(m->v, d, k, kv);
            sum += v, absolute += fabs(v), moved += fabs(v) * off[k];
        }
        t->out[d] = sum;
        t->may_err[d] = exp(2 * most_off) * (moved + mean_off * absolute) + 0x1p-16 * absolute;
    }
}

/* Every step-th row and its heads in turn. */
static void check_truth(struct maths *m, const struct shape *s, uint32_t step)
{
    const float *got = by_us(m, 0, s->n_rows, 1, true);
    for (uint32_t r = 0; r < s->n_rows; r += step)
        for (uint32_t h = r % 3; h < s->n_heads; h += 3) {
            struct truth t;
            find_truth(&t, m, r, h);
            const float *lane = got + ((size_t)r * s->n_heads + h) * s->dim;
            for (uint32_t d = 0; d < s->dim; d++) {
                if (!(fabs((double)lane[d] - t.out[d]) <= t.may_err[d])) {
                    fprintf(stderr, "row %u head %u dim %u: %g, not %g within %g\n", r, h, d,
                            (double)lane[d], t.out[d], t.may_err[d]);
                    CHECK(fabs((double)lane[d] - t.out[d]) <= t.may_err[d]);
                }
            }
        }
}

static void check_shape(const struct shape *s)
{
    struct maths m = begin(s);
    check_truth(&m, s, 1 + s->n_rows * s->n_keys / 8000);
    end(&m);
}

TEST(attention_is_as_exact_as_two_parts_of_bf16_allow)
{
    static const uint32_t rows[] = {1, 2, 5, 33, 150, 600};
    static const uint32_t keys[] = {64, 192, 1088};
    if (!runs_here()) SKIP(NO_TILES);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            struct shape s = {GGML_TYPE_F16, 64, 14, 2, rows[r], keys[k], true};
            check_shape(&s);
            s.spread = false;
            if (rows[r] <= keys[k]) check_shape(&s);
        }
}

TEST(heads_of_any_size_and_number_are)
{
    static const uint32_t dims[] = {32, 64, 96, 128};
    static const uint32_t heads[][2] = {{1, 1}, {9, 3}, {12, 2}, {14, 2}, {32, 32}};
    if (!runs_here()) SKIP(NO_TILES);
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
            struct shape s = {GGML_TYPE_F16, dims[d], heads[h][0], heads[h][1], 70, 320, true};
            check_shape(&s);
        }
}

/* As in Qwen2.5: the same few dimensions are large in all keys. */
TEST(large_numbers_in_keys_hide_no_small_ones)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 100, 576, true};
    if (!runs_here()) SKIP(NO_TILES);
    struct maths m = begin(&s);
    for (uint32_t key = 0; key < s.n_keys; key++)
        for (uint32_t head = 0; head < s.n_kv_heads; head++) {
            ggml_fp16_t *k = (void *)((char *)m.k->data + key * m.k->nb[1] + head * m.k->nb[2]);
            k[13] = ggml_fp32_to_fp16(300 + source[key]);
            k[46] = ggml_fp32_to_fp16(-250 + source[key + 99]);
        }
    check_truth(&m, &s, 3);
    end(&m);
}

TEST(a_row_depends_neither_on_its_company_nor_on_threads)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 150, 320, true};
    if (!runs_here()) SKIP(NO_TILES);
    check_company(&s, true);
    s = (struct shape){GGML_TYPE_F16, 128, 12, 2, 90, 576, false};
    check_company(&s, true);
}

/* What is in their place does not matter. */
TEST(hidden_keys_change_nothing)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 40, 320, false};
    if (!runs_here()) SKIP(NO_TILES);
    struct maths m = begin(&s);
    ggml_fp16_t *mask = m.mask->data;
    for (uint32_t i = 0; i < s.n_rows * s.n_keys; i++)
        if (i % s.n_keys % 71 < 9 || i % s.n_keys >= 290) mask[i] = hidden;
    size_t n = s.dim * s.n_heads * s.n_rows;
    float *before =
        memcpy(malloc(n * sizeof *before), by_us(&m, 0, s.n_rows, 1, true), n * sizeof *before);
    for (uint32_t key = 0; key < s.n_keys; key++)
        if (key % 71 < 9 || key >= 290)
            for (uint32_t d = 0; d < s.dim * s.n_kv_heads; d++)
                for (int i = 0; i < 2; i++) {
                    struct ggml_tensor *t = i ? m.v->view_src : m.k->view_src;
                    uint16_t large = 0x7800, none = 0x7e00; /* which hidden values must not be */
                    ((ggml_fp16_t *)(void *)((char *)t->data + key * t->nb[1]))[d] =
                        i || key % 2 ? large : none;
                }
    check_same(by_us(&m, 0, s.n_rows, 1, true), before, n);
    free(before);
    end(&m);
}

/* A score that is no number must not pass for none: the others would be weighed without it. */
TEST(a_key_that_is_no_number_is_not_passed_over)
{
    static const ggml_fp16_t bad[] = {0x7e00, 0xfe00, 0x7c00, 0xfc00,
                                      0x7fff, 0xffff, 0x7ffc}; /* CUDA's, and of bytes 0xff */
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 40, 320, false};
    if (!runs_here()) SKIP(NO_TILES);
    for (size_t b = 0; b < sizeof bad / sizeof *bad; b++)
        for (uint32_t key = 3; key < s.n_keys; key += 45) {
            struct maths m = begin(&s);
            size_t n = s.dim * s.n_heads * s.n_rows;
            float *before = memcpy(malloc(n * sizeof *before), by_us(&m, 0, s.n_rows, 1, true),
                                   n * sizeof *before);
            struct ggml_tensor *k = m.k->view_src;
            for (uint32_t d = 0; d < s.dim * s.n_kv_heads; d++)
                ((ggml_fp16_t *)(void *)((char *)k->data + key * k->nb[1]))[d] = bad[b];
            const float *got = by_us(&m, 0, s.n_rows, 1, true);
            for (size_t i = 0; i < n; i++) {
                const ggml_fp16_t *mask = (const ggml_fp16_t *)m.mask->data;
                bool sees = mask[i / (s.dim * s.n_heads) * s.n_keys + key] != hidden;
                if (sees)
                    CHECK(!isfinite(got[i]));
                else
                    check_same(got + i, before + i, 1);
            }
            free(before);
            end(&m);
        }
}

#ifdef TSRI_TEST_FAKETILES_H
/* As in test_multiply_tiles_x86.c. */
TEST(bits_are_those_of_the_name_that_is_stored_with_kv)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 40, 320, true};
    if (!runs_here()) SKIP(NO_TILES);
    struct maths m = begin(&s);
    kit_check_bits(by_us(&m, 0, s.n_rows, 1, true), (size_t)s.dim * s.n_heads * s.n_rows,
                   0x144046d29851e92d);
    end(&m);
}
#endif

TEST(tiles_that_others_have_set_up_are_there_afterwards)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 40, 320, false};
    if (!runs_here()) SKIP(NO_TILES);
    struct maths m = begin(&s);
    kit_set_other_tiles();
    by_us(&m, 0, s.n_rows, 1, true);
    CHECK(kit_are_other_tiles());
    end(&m);
}

TEST(rows_that_see_nothing_are_zeros)
{
    struct shape s = {GGML_TYPE_F16, 64, 14, 2, 3, 128, true};
    if (!runs_here()) SKIP(NO_TILES);
    check_blind(&s, true);
}

TEST(other_types_and_sizes_are_left_to_other_kernels)
{
    struct shape s = {GGML_TYPE_F16, 64, 1, 1, 1, 64, false};
    struct maths m = begin(&s);
    CHECK(!tsri_attention_tiles_can(m.k->view_src, 64 + 16));
    CHECK(!tsri_attention_tiles_can(m.k->view_src, 128 + 32));
    m.k->view_src->buffer = NULL; /* nobody knows where it is */
    CHECK(!tsri_attention_tiles_can(m.k->view_src, 64));
    end(&m);
    s.type = GGML_TYPE_F32;
    m = begin(&s);
    CHECK(!tsri_attention_tiles_can(m.k->view_src, 64));
    end(&m);
}

int main(void)
{
    kit_init();
    RUN(attention_is_as_exact_as_two_parts_of_bf16_allow);
    RUN(heads_of_any_size_and_number_are);
    RUN(large_numbers_in_keys_hide_no_small_ones);
    RUN(a_row_depends_neither_on_its_company_nor_on_threads);
    RUN(hidden_keys_change_nothing);
    RUN(a_key_that_is_no_number_is_not_passed_over);
#ifdef TSRI_TEST_FAKETILES_H
    RUN(bits_are_those_of_the_name_that_is_stored_with_kv);
#endif
    RUN(tiles_that_others_have_set_up_are_there_afterwards);
    RUN(rows_that_see_nothing_are_zeros);
    RUN(other_types_and_sizes_are_left_to_other_kernels);
    free(memory);
    return test_end();
}
#else
#include "model/absent.h"
#endif
