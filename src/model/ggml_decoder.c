/* ggml_decoder.c - the next token of several sessions. Decoding reads all weights for one row; here
 * they are read once for all rows, and only attention goes session by session. All layers are one
 * graph, which is kept until another set of sessions comes or one of them has grown by TSRI_KV_STEP
 * keys.
 *
 * With TSR_DECODER_ALIKE a row has the bits that it has alone. Filling up to the kernels for many rows
 * would do that too, but takes three times as long for one row. Instead, matrices are multiplied with
 * groups of rows, each as large as rounds like one row; how large that is, is tried out for each kind
 * of matrix when it is first needed. Our own kernel for x86_64 needs no groups. Attention has one row
 * at a time in any case. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(const struct tsr_executor *x)
{
    return tsri_model_fail(x->fail, TSR_ENOMEM, "model: out of memory for a batch");
}

static int make_tensors(struct tsr_executor_decoder *b)
{
    const struct tsri_header *h = &b->x->header;
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true};
    b->tensors = ggml_init(params);
    if (!b->tensors) return no_memory(b->x);
    int64_t n = b->rows_max;
    b->hidden = ggml_new_tensor_2d(b->tensors, GGML_TYPE_F32, h->n_embd, n);
    b->attended =
        ggml_new_tensor_2d(b->tensors, GGML_TYPE_F32, (int64_t)h->head_dim * h->n_heads, n);
    b->positions = ggml_new_tensor_1d(b->tensors, GGML_TYPE_I32, n);
    b->slots = ggml_new_tensor_1d(b->tensors, GGML_TYPE_I64, n);
    b->buffer = ggml_backend_alloc_ctx_tensors(b->tensors, b->queue.backend);
    b->embd = malloc(h->n_embd * sizeof *b->embd);
    if (!b->buffer || !b->embd) return no_memory(b->x);
    ggml_backend_buffer_clear(b->buffer, 0);
    return 0;
}

/* ---- opening ---- */

int tsri_ggml_decoder_open(struct tsr_executor *x, struct tsr_executor_decoder **out,
                           uint32_t rows_max)
{
    struct tsr_executor_decoder *b = calloc(1, sizeof *b);
    if (!b) return no_memory(x);
    b->x = x;
    b->rows_max = rows_max;
    int e = tsri_ggml_backend_open(x, &b->queue.backend);
    if (!e) {
        ggml_backend_buffer_type_t kind = ggml_backend_get_default_buffer_type(b->queue.backend);
        b->queue.apart = !ggml_backend_buft_is_host(kind) || x->apart;
        b->memory = ggml_gallocr_new(kind);
        e = b->memory ? make_tensors(b) : no_memory(x);
    }
    if (e) {
        tsri_ggml_decoder_close(b);
        return e;
    }
    *out = b;
    return 0;
}

void tsri_ggml_decoder_close(struct tsr_executor_decoder *b)
{
    if (!b) return;
    tsri_queue_wait(&b->queue);
    ggml_free(b->graph.ctx);
    if (b->memory) ggml_gallocr_free(b->memory);
    ggml_backend_buffer_free(b->buffer);
    ggml_free(b->tensors);
    ggml_backend_free(b->queue.backend);
    free(b->embd);
    free(b->mask);
    free(b);
}

/* ---- rows that round alike ---- */

static struct tsri_alike_kind kind_of(const struct ggml_tensor *matrix)
{
    return (struct tsri_alike_kind){.type = matrix->type,
                                    .place = ggml_backend_buffer_get_type(matrix->buffer),
                                    .n_in = matrix->ne[0],
                                    .n_out = matrix->ne[1]};
}

static const struct tsri_alike_kind *find_kind(const struct tsr_executor_decoder *d,
                                               const struct ggml_tensor *matrix)
{
    struct tsri_alike_kind k = kind_of(matrix);
    for (uint32_t i = 0; i < d->n_kinds; i++)
        if (d->kinds[i].type == k.type && d->kinds[i].place == k.place &&
            d->kinds[i].n_in == k.n_in && d->kinds[i].n_out == k.n_out)
            return &d->kinds[i];
    return NULL;
}

uint32_t tsri_decoder_group(const struct tsr_executor_decoder *d, const struct ggml_tensor *matrix)
{
    const struct tsri_alike_kind *k = find_kind(d, matrix);
    return k ? k->n_rows : 1;
}

/* The product of a matrix with rows [first, first + n) of x, into out. */
static int product(struct tsr_executor_decoder *d, struct ggml_tensor *matrix,
                   struct ggml_tensor *x, uint32_t first, uint32_t n, float *out)
{
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead() +
                                                  ggml_graph_overhead_custom(8, false),
                                      .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    if (!ctx) return no_memory(d->x);
    struct ggml_cgraph *graph = ggml_new_graph_custom(ctx, 8, false);
    struct ggml_tensor *y =
        ggml_mul_mat(ctx, matrix, ggml_view_2d(ctx, x, x->ne[0], n, x->nb[1], first * x->nb[1]));
    ggml_set_output(y);
    ggml_build_forward_expand(graph, y);
    int e = ggml_gallocr_alloc_graph(d->memory, graph) ? 0 : no_memory(d->x);
    if (!e && tsri_queue_compute(&d->queue, graph))
        e = tsri_model_fail(d->x->fail, TSR_EDEVICE, "model: ggml could not compute");
    if (!e) tsri_queue_get(&d->queue, y, out, n * y->nb[1]);
    ggml_free(ctx);
    return e;
}

/* How many rows of x at once give what each of them gives alone. */
static int try_matrix(struct tsr_executor_decoder *d, struct ggml_tensor *matrix,
                      struct ggml_tensor *x, uint32_t *group)
{
    uint32_t most = d->rows_max < TSRI_ALIKE_ROWS_MAX ? d->rows_max : TSRI_ALIKE_ROWS_MAX;
    size_t row = (size_t)matrix->ne[1];
    float *alone = malloc(2 * most * row * sizeof *alone), *all = alone ? alone + most * row : NULL;
    int e = alone ? 0 : no_memory(d->x);
    for (uint32_t i = 0; !e && i < most; i++)
        e = product(d, matrix, x, i, 1, alone + i * row);
    for (*group = 1; !e && *group < most; ++*group) {
        uint32_t n = *group + 1;
        e = product(d, matrix, x, 0, n, all);
        if (e || memcmp(all, alone, n * row * sizeof *all) != 0) break;
    }
    free(alone);
    return e;
}

static int try_kind(struct tsr_executor_decoder *d, struct ggml_tensor *matrix)
{
    if (!matrix || tsri_multiplier(matrix, true, d->x->tiles) != TSRI_BY_GGML ||
        find_kind(d, matrix) || d->n_kinds == TSRI_ALIKE_KINDS_MAX)
        return 0;
    size_t n = (size_t)matrix->ne[0] * TSRI_ALIKE_ROWS_MAX;
    struct ggml_init_params params = {.mem_size = 2 * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    if (!ctx) return no_memory(d->x);
    struct ggml_tensor *x =
        ggml_new_tensor_2d(ctx, GGML_TYPE_F32, matrix->ne[0], TSRI_ALIKE_ROWS_MAX);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, d->queue.backend);
    float *random = malloc(n * sizeof *random);
    uint64_t seed = 88172645463325252u;
    struct tsri_alike_kind kind = kind_of(matrix);
    int e = buffer && random ? 0 : no_memory(d->x);
    for (size_t i = 0; random && i < n; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        random[i] = (float)(int32_t)(seed >> 32) * 0x1p-30f;
    }
    if (!e) tsri_queue_put(&d->queue, x, random, 0, n * sizeof *random);
    if (!e) e = try_matrix(d, matrix, x, &kind.n_rows);
    if (!e) d->kinds[d->n_kinds++] = kind;
    free(random);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return e;
}

static int try_out(struct tsr_executor_decoder *d)
{
    static const enum tsri_layer_tensor matrices[] = {TSRI_ATTN_Q,   TSRI_ATTN_K,   TSRI_ATTN_V,
                                                      TSRI_ATTN_OUT, TSRI_FFN_GATE, TSRI_FFN_UP,
                                                      TSRI_FFN_DOWN};
    int e = try_kind(d, d->x->weights.output);
    for (uint32_t l = 0; !e && l < d->x->header.n_layers; l++)
        for (size_t i = 0; !e && i < sizeof matrices / sizeof matrices[0]; i++)
            e = try_kind(d, d->x->weights.layers[l][matrices[i]]);
    ggml_free(d->graph.ctx); /* its memory was used */
    d->graph = (struct tsri_graph){0};
    d->tried = !e;
    return e;
}

/* ---- a row of each session ---- */

/* Keys that a row looks at, rounded up as in passes. */
static uint32_t keys_of(const struct tsr_executor_row *row)
{
    uint32_t n = (row->position + TSRI_KV_STEP) / TSRI_KV_STEP * TSRI_KV_STEP;
    return n < row->session->n_slots_padded ? n : row->session->n_slots_padded;
}

/* The graph for these rows: the one that is there, or a new one. */
static int choose_graph(struct tsr_executor_decoder *b, const struct tsr_executor_row *rows,
                        uint32_t n, bool alike)
{
    struct tsri_decoder_shape shape[TSR_DECODER_ROWS_MAX] = {{0}};
    for (uint32_t i = 0; i < n; i++)
        shape[i] = (struct tsri_decoder_shape){rows[i].session->id, keys_of(&rows[i]), 0};
    if (b->graph.ctx && b->n_rows == n && b->alike == alike &&
        memcmp(b->shape, shape, sizeof shape) == 0)
        return 0;
    b->n_rows = n;
    b->alike = alike;
    memcpy(b->shape, shape, sizeof shape);
    for (uint32_t i = 0; i < n; i++)
        b->sessions[i] = rows[i].session;
    int e = tsri_graph_decoder(b);
    if (e) b->n_rows = 0;
    return e;
}

static int put_mask(struct tsr_executor_decoder *b, const struct tsr_executor_row *row, uint32_t i)
{
    size_t n = b->shape[i].n_kv, seen = (size_t)row->position + 1;
    if (n > b->mask_room) {
        free(b->mask);
        b->mask = malloc(n * sizeof *b->mask);
        b->mask_room = b->mask ? n : 0;
        if (!b->mask) return no_memory(b->x);
    }
    memset(b->mask, 0, seen * sizeof *b->mask);
    for (size_t k = 0; k < row->n_bias && k < seen; k++)
        b->mask[k] = ggml_fp32_to_fp16(row->bias[k]);
    for (size_t k = seen; k < n; k++)
        b->mask[k] = TSRI_HIDDEN;
    tsri_queue_put(&b->queue, b->masks[i], b->mask, 0, n * sizeof *b->mask);
    return 0;
}

static int put_row(struct tsr_executor_decoder *b, const struct tsr_executor_row *row, uint32_t i)
{
    uint32_t n_embd = b->x->header.n_embd;
    int64_t slot = row->position;
    size_t bytes = n_embd * sizeof *b->embd;
    tsri_weights_embed(&b->x->weights, row->token, n_embd, b->embd);
    tsri_queue_put(&b->queue, b->hidden, b->embd, i * bytes, bytes);
    tsri_queue_put(&b->queue, b->positions, &row->position, i * sizeof row->position,
                   sizeof row->position);
    tsri_queue_put(&b->queue, b->slots, &slot, i * sizeof slot, sizeof slot);
    return put_mask(b, row, i);
}

int tsri_ggml_decoder_run(struct tsr_executor_decoder *b, const struct tsr_executor_row *rows,
                          uint32_t n, uint32_t flags, float *logits)
{
    bool alike = flags & TSR_DECODER_ALIKE && n > 1;
    int e = alike && !b->tried ? try_out(b) : 0;
    if (!e) e = choose_graph(b, rows, n, alike);
    for (uint32_t i = 0; !e && i < n; i++)
        e = put_row(b, &rows[i], i);
    if (e) return e;
    if (tsri_queue_compute(&b->queue, b->graph.graph))
        return tsri_model_fail(b->x->fail, TSR_EDEVICE, "model: ggml could not decode %u rows", n);
    tsri_queue_get(&b->queue, b->logits, logits, n * b->logits->nb[1]);
    return 0;
}
