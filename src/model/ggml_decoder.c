/* ggml_decoder.c - the next token of several sessions. Decoding reads all weights for one row; here they
 * are read once for all rows, and only attention goes session by session. All layers are one graph,
 * which is kept until another set of sessions comes or one of them has grown by TSRI_KV_STEP keys.
 *
 * With TSR_DECODER_ALIKE matrices are multiplied with as many rows as take the kernels for many
 * (tsri_rows_wide), so that a row has the same bits in any company. Attention has one row at a time
 * in any case. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#define HIDDEN ((ggml_fp16_t)0xFC00) /* minus infinity */

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
    int64_t n = b->wide_max;
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

int tsri_ggml_decoder_open(struct tsr_executor *x, struct tsr_executor_decoder **out,
                           uint32_t rows_max)
{
    struct tsr_executor_decoder *b = calloc(1, sizeof *b);
    if (!b) return no_memory(x);
    b->x = x;
    b->rows_max = rows_max;
    b->wide_max = tsri_rows_wide(x->rows_least, rows_max);
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

/* Keys that a row looks at, rounded up as in passes. */
static uint32_t keys_of(const struct tsr_executor_row *row)
{
    uint32_t n = (row->position + TSRI_KV_STEP) / TSRI_KV_STEP * TSRI_KV_STEP;
    return n < row->session->n_slots_padded ? n : row->session->n_slots_padded;
}

/* The graph for these rows: the one that is there, or a new one. */
static int choose_graph(struct tsr_executor_decoder *b, const struct tsr_executor_row *rows,
                        uint32_t n, uint32_t n_wide)
{
    struct tsri_decoder_shape shape[TSR_DECODER_ROWS_MAX] = {{0}};
    for (uint32_t i = 0; i < n; i++)
        shape[i] = (struct tsri_decoder_shape){rows[i].session->id, keys_of(&rows[i]), 0};
    if (b->graph.ctx && b->n_rows == n && b->n_wide == n_wide &&
        memcmp(b->shape, shape, sizeof shape) == 0)
        return 0;
    b->n_rows = n;
    b->n_wide = n_wide;
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
        b->mask[k] = HIDDEN;
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
    uint32_t n_wide = flags & TSR_DECODER_ALIKE ? tsri_rows_wide(b->x->rows_least, n) : n;
    int e = choose_graph(b, rows, n, n_wide);
    for (uint32_t i = 0; !e && i < n; i++)
        e = put_row(b, &rows[i], i);
    if (e) return e;
    if (tsri_queue_compute(&b->queue, b->graph.graph))
        return tsri_model_fail(b->x->fail, TSR_EDEVICE, "model: ggml could not decode %u rows", n);
    tsri_queue_get(&b->queue, b->logits, logits, n * b->logits->nb[1]);
    return 0;
}
