/* Our kernel against ggml's: the same product, and a row that does not depend on its company. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "support/test.h"

#include <stdlib.h>

enum { WIDEST = 4928, OUT = 48, ROWS_MOST = 19 };

static const enum ggml_type types[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q5_0, GGML_TYPE_Q8_0};
static float source[OUT * WIDEST];
static char *memory;
enum { MEMORY = 16 << 20 };

/* A context with a matrix of a type in it, in memory that the host reads. */
struct maths {
    struct ggml_context *ctx;
    struct ggml_tensor *matrix;
    ggml_backend_buffer_t buffer;
};

static struct maths begin(enum ggml_type type, int64_t n_in, int64_t n_out)
{
    struct ggml_init_params params = {.mem_size = MEMORY, .mem_buffer = memory};
    struct maths m = {.ctx = ggml_init(params)};
    CHECK(m.ctx);
    m.matrix = ggml_new_tensor_2d(m.ctx, type, n_in, n_out);
    ggml_quantize_chunk(type, source, m.matrix->data, 0, n_out, n_in, NULL);
    m.buffer = m.matrix->buffer = ggml_backend_cpu_buffer_from_ptr(memory, MEMORY);
    return m;
}

static void end(struct maths *m)
{
    ggml_backend_buffer_free(m->buffer);
    ggml_free(m->ctx);
}

/* Rows of x from `first` on, times the matrix. */
static const float *product(struct maths *m, int64_t first, int64_t n_rows, bool own, int threads)
{
    int64_t n_in = m->matrix->ne[0];
    struct ggml_tensor *x = ggml_new_tensor_2d(m->ctx, GGML_TYPE_F32, n_in, n_rows);
    for (int64_t i = 0; i < n_in * n_rows; i++)
        ((float *)x->data)[i] = source[(first * n_in + i) * 7 % (OUT * WIDEST)];
    struct ggml_tensor *y = own ? tsri_multiply(m->ctx, m->matrix, tsri_multiply_input(m->ctx, x))
                                : ggml_mul_mat(m->ctx, m->matrix, x);
    struct ggml_cgraph *graph = ggml_new_graph(m->ctx);
    ggml_build_forward_expand(graph, y);
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                      "ggml_backend_set_n_threads");
    ggml_backend_set_n_threads_t set_threads;
    memcpy(&set_threads, &address, sizeof set_threads);
    CHECK(backend && set_threads);
    set_threads(backend, threads);
    CHECK_INT(ggml_backend_graph_compute(backend, graph), GGML_STATUS_SUCCESS);
    ggml_backend_free(backend);
    return y->data;
}

static bool runs_here(void)
{
    struct maths m = begin(GGML_TYPE_Q5_0, 64, OUT);
    bool can = tsri_multiply_can(m.matrix);
    end(&m);
    return can;
}

TEST(products_have_the_bits_of_ggml)
{
    /* One block, a part that is full, one more, and several parts. */
    static const int64_t sizes[] = {32, 2048, 2080, 4864};
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct maths m = begin(types[t], sizes[s], OUT);
            const float *want = product(&m, 0, ROWS_MOST, false, 1);
            const float *got = product(&m, 0, ROWS_MOST, true, 1);
            CHECK(memcmp(got, want, sizeof *got * OUT * ROWS_MOST) == 0);
            end(&m);
        }
}

TEST(a_row_depends_neither_on_its_company_nor_on_threads)
{
    if (!runs_here()) SKIP("this processor has no AVX-512 with VNNI");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct maths m = begin(types[t], 2080, OUT);
        const float *all = product(&m, 0, ROWS_MOST, true, 1);
        for (int64_t r = 0; r < ROWS_MOST; r++) {
            const float *alone = product(&m, r, 1, true, 1);
            CHECK(memcmp(alone, all + r * OUT, OUT * sizeof *all) == 0);
        }
        for (int threads = 2; threads <= 5; threads++) {
            const float *shared = product(&m, 0, ROWS_MOST, true, threads);
            CHECK(memcmp(shared, all, sizeof *all * OUT * ROWS_MOST) == 0);
        }
        end(&m);
    }
}

TEST(other_matrices_are_left_to_ggml)
{
    struct maths m = begin(GGML_TYPE_Q4_1, 64, OUT); /* another kind */
    CHECK(!tsri_multiply_can(m.matrix));
    end(&m);
    m = begin(GGML_TYPE_Q5_0, 64, OUT - 1); /* rows that do not come in sixteens */
    CHECK(!tsri_multiply_can(m.matrix));
    end(&m);
    m = begin(GGML_TYPE_Q5_0, 64, OUT);
    m.matrix->buffer = NULL; /* nobody knows where it is */
    CHECK(!tsri_multiply_can(m.matrix));
    end(&m);
}

int main(void)
{
    memory = aligned_alloc(64, MEMORY);
    uint32_t random = 12345;
    for (size_t i = 0; i < sizeof source / sizeof *source; i++) {
        random = random * 1664525u + 1013904223u;
        source[i] = (float)(random >> 8) / (float)(1 << 23) - 1;
    }
    RUN(products_have_the_bits_of_ggml);
    RUN(a_row_depends_neither_on_its_company_nor_on_threads);
    RUN(other_matrices_are_left_to_ggml);
    free(memory);
    return test_end();
}
#else
#include "model/absent.h"
#endif
