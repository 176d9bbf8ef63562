/* ggml_graph.c - the graphs of a llama-like model, one layer at a time. A graph reads and writes
 * tensors of the session that outlive it (hidden rows, positions, slots, mask, KV), so that one
 * built for a small pass is run again for the next pass of the same shape: decoding builds no
 * graphs, it only fills those tensors. Graphs of large passes are built for each use, which is
 * nothing beside their work.
 *
 * Operations and their order are those of llama.cpp's llama, qwen2 and qwen3 (MIT), so that results
 * agree with it to the last bits. Two differences save time: the sums of a layer are written over
 * the hidden rows in place, and the last layer computes only K and V until somebody asks for
 * logits, and then the rest for those rows alone. A third makes a row independent of its company:
 * matrices are multiplied with rows filled up to a size that always takes the same kernels. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#define NODES 96u      /* of a graph; a layer has at most 60 */
#define MASS_NODES 16u /* more for TSRI_MASS_STEP rows whose attention is added up in it */

static uint32_t mass_steps(uint32_t n_mass)
{
    return (n_mass + TSRI_MASS_STEP - 1) / TSRI_MASS_STEP;
}

static size_t bytes_of(uint32_t n_nodes)
{
    return 2 * n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false);
}

size_t tsri_graph_scratch_bytes(void)
{
    return bytes_of(NODES + mass_steps(TSRI_MASS_ROWS_MAX) * MASS_NODES);
}

/* ---- building blocks ---- */

/* A graph under construction. */
struct work {
    const struct tsr_executor *x;
    struct tsr_executor_session *s; /* NULL: of a batch */
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    const struct tsri_header *h;
    struct ggml_tensor *const *w; /* the layer's weights */
    uint32_t layer;
    uint32_t rows_least;                  /* see struct tsri_fit */
    struct tsr_executor_decoder *alike;   /* a matrix has its rows in groups; NULL: all at once */
    struct ggml_tensor *input_of, *input; /* rows as tsri_multiply() wants them: the last ones */
    enum tsri_multiplier input_by;
};

static bool work_init(struct work *b, struct tsr_executor_session *s, uint32_t layer,
                      uint32_t n_nodes, void *memory)
{
    struct ggml_init_params params = {
        .mem_size = bytes_of(n_nodes), .mem_buffer = memory, .no_alloc = true};
    *b = (struct work){
        .x = s->x, .s = s, .h = &s->x->header, .layer = layer, .rows_least = s->fit.rows_least};
    b->w = s->x->weights.layers[layer];
    b->ctx = ggml_init(params);
    if (!b->ctx) return false;
    b->graph = ggml_new_graph_custom(b->ctx, n_nodes, false);
    return true;
}

static void also(struct work *b, struct ggml_tensor *t)
{
    ggml_build_forward_expand(b->graph, t);
}

static struct ggml_tensor *norm(struct work *b, struct ggml_tensor *x, struct ggml_tensor *weight)
{
    return ggml_mul(b->ctx, ggml_rms_norm(b->ctx, x, b->h->norm_eps), weight);
}

/* n rows of a two-dimensional tensor from `first` on. */
static struct ggml_tensor *rows(struct work *b, struct ggml_tensor *t, uint32_t first, uint32_t n)
{
    return ggml_view_2d(b->ctx, t, t->ne[0], n, t->nb[1], first * t->nb[1]);
}

static struct ggml_tensor *items(struct work *b, struct ggml_tensor *t, uint32_t first, uint32_t n)
{
    return ggml_view_1d(b->ctx, t, n, first * t->nb[0]);
}

/* Rows filled up with zeros to as many as matrices are multiplied with. */
static struct ggml_tensor *filled(struct work *b, struct ggml_tensor *x)
{
    uint32_t n = (uint32_t)x->ne[1], wide = b->rows_least ? tsri_rows_wide(b->rows_least, n) : n;
    return wide > n ? ggml_pad(b->ctx, x, 0, (int)(wide - n), 0, 0) : x;
}

/* Groups of rows so small that each row has the bits that it has alone. */
static struct ggml_tensor *multiply_alike(struct work *b, struct ggml_tensor *matrix,
                                          struct ggml_tensor *x)
{
    uint32_t n = (uint32_t)x->ne[1], most = tsri_decoder_group(b->alike, matrix);
    struct ggml_tensor *y = NULL;
    for (uint32_t done = 0, left = n; left > 0; left = n - done) {
        uint32_t some = left < most ? left : most;
        struct ggml_tensor *part = ggml_mul_mat(b->ctx, matrix, rows(b, x, done, some));
        y = y ? ggml_concat(b->ctx, y, part, 1) : part;
        done += some;
    }
    return y;
}

/* A matrix times the rows of x, which are filled; the first n rows of the product. Every
 * multiplication with weights is done here. Several matrices are multiplied with the same rows, which
 * are made ready once. */
static struct ggml_tensor *multiply(struct work *b, struct ggml_tensor *matrix,
                                    struct ggml_tensor *x, int64_t n)
{
    enum tsri_multiplier by = tsri_multiplier(matrix, b->rows_least == 0, b->x->tiles);
    if (b->alike && by == TSRI_BY_GGML) return multiply_alike(b, matrix, x);
    if (b->input_of != x || b->input_by != by) b->input = tsri_multiply_input(b->ctx, by, x);
    b->input_of = x;
    b->input_by = by;
    struct ggml_tensor *y = tsri_multiply(b->ctx, by, matrix, b->input);
    return y->ne[1] > n ? rows(b, y, 0, (uint32_t)n) : y;
}

static struct ggml_tensor *project(struct work *b, enum tsri_layer_tensor weight,
                                   enum tsri_layer_tensor bias, struct ggml_tensor *x, int64_t n)
{
    struct ggml_tensor *y = multiply(b, b->w[weight], x, n);
    return b->w[bias] ? ggml_add(b->ctx, y, b->w[bias]) : y;
}

/* x below is normed and filled; there are as many rows as positions.
 *
 * Q or K: heads apart, normed where the model does, turned to their positions. */
static struct ggml_tensor *turned(struct work *b, struct ggml_tensor *y, uint32_t n_heads,
                                  struct ggml_tensor *norm_weight, struct ggml_tensor *positions)
{
    const struct tsri_ggml_rope *t = &b->h->turn;
    const struct tsri_weights *w = &b->x->weights;
    struct ggml_tensor *factors = w->rope_freqs ? w->rope_freqs : w->rope_long;
    y = ggml_reshape_3d(b->ctx, y, b->h->head_dim, n_heads, positions->ne[0]);
    if (norm_weight) y = norm(b, y, norm_weight);
    return ggml_rope_ext(b->ctx, y, positions, factors, t->n_dims, t->mode, t->n_ctx_orig,
                         t->freq_base, t->freq_scale, t->ext_factor, t->attn_factor, t->beta_fast,
                         t->beta_slow);
}

static struct ggml_tensor *make_q(struct work *b, struct ggml_tensor *x,
                                  struct ggml_tensor *positions)
{
    return turned(b, project(b, TSRI_ATTN_Q, TSRI_ATTN_Q_BIAS, x, positions->ne[0]), b->h->n_heads,
                  b->w[TSRI_ATTN_Q_NORM], positions);
}

static struct ggml_tensor *make_k(struct work *b, struct ggml_tensor *x,
                                  struct ggml_tensor *positions)
{
    struct ggml_tensor *k =
        turned(b, project(b, TSRI_ATTN_K, TSRI_ATTN_K_BIAS, x, positions->ne[0]), b->h->n_kv_heads,
               b->w[TSRI_ATTN_K_NORM], positions);
    return ggml_reshape_2d(b->ctx, k, k->ne[0] * k->ne[1], k->ne[2]);
}

static struct ggml_tensor *make_v(struct work *b, struct ggml_tensor *x, int64_t n)
{
    return project(b, TSRI_ATTN_V, TSRI_ATTN_V_BIAS, x, n);
}

/* Keys or values of n slots from `first` on: [head_dim, n, n_kv_heads]. */
static struct ggml_tensor *slots_of(struct work *b, struct ggml_tensor *kv, uint32_t first,
                                    uint32_t n)
{
    size_t head = ggml_row_size(kv->type, b->h->head_dim);
    return ggml_view_3d(b->ctx, kv, b->h->head_dim, n, b->h->n_kv_heads, kv->nb[1], head,
                        first * kv->nb[1]);
}

/* Those of a batch. */
static struct ggml_tensor *kept(struct work *b, struct ggml_tensor *kv,
                                const struct tsri_row_batch *batch)
{
    return slots_of(b, kv, batch->kv_first, batch->n_kv);
}

static struct ggml_tensor *mask_rows(struct work *b, const struct tsri_row_batch *batch,
                                     uint32_t first, uint32_t n)
{
    struct tsri_inputs *in = &b->s->in;
    bool own = batch->mask_at != TSRI_MASK_NONE;
    size_t at = (own ? batch->mask_at : 0) + (size_t)first * batch->n_kv;
    return ggml_view_2d(b->ctx, own ? in->mask : in->mask_scratch, batch->n_kv, n,
                        batch->n_kv * sizeof(ggml_fp16_t), at * sizeof(ggml_fp16_t));
}

/* Newer versions of ggml have another name for it and still know these. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void in_full_precision(struct ggml_tensor *a)
{
    if (a->op == GGML_OP_FLASH_ATTN_EXT)
        ggml_flash_attn_ext_set_prec(a, GGML_PREC_F32);
    else
        ggml_mul_mat_set_prec(a, GGML_PREC_F32);
}
#pragma GCC diagnostic pop

/* softmax(Q K + mask) V by ggml, for as many rows as the batch is filled up to. */
static struct ggml_tensor *attend_filled(struct work *b, struct ggml_tensor *q,
                                         const struct tsri_row_batch *batch)
{
    int64_t n = q->ne[2];
    if (batch->n_padded > n) q = ggml_pad(b->ctx, q, 0, 0, (int)(batch->n_padded - n), 0);
    struct ggml_tensor *a =
        ggml_flash_attn_ext(b->ctx, ggml_permute(b->ctx, q, 0, 2, 1, 3),
                            kept(b, b->s->k[b->layer], batch), kept(b, b->s->v[b->layer], batch),
                            mask_rows(b, batch, 0, batch->n_padded), b->h->attention_scale, 0, 0);
    in_full_precision(a);
    return a;
}

static bool on_tiles(const struct work *b)
{
    return b->x->tiles && tsri_attention_tiles_can(b->s->k[b->layer], b->h->head_dim);
}

/* By our own kernel, which has no use for more rows than there are. */
static struct ggml_tensor *attend_own(struct work *b, struct ggml_tensor *q,
                                      const struct tsri_row_batch *batch)
{
    struct tsri_attention a = {.q = q,
                               .k = kept(b, b->s->k[b->layer], batch),
                               .v = kept(b, b->s->v[b->layer], batch),
                               .mask = mask_rows(b, batch, 0, (uint32_t)q->ne[2]),
                               .tiles = on_tiles(b),
                               .scale = &b->s->x->header.attention_scale};
    return tsri_attention(b->ctx, &a);
}

/* softmax(Q K + mask) V, projected. */
static struct ggml_tensor *attention(struct work *b, struct ggml_tensor *q,
                                     const struct tsri_row_batch *batch)
{
    int64_t n = q->ne[2];
    bool own = b->rows_least && tsri_attention_can(b->s->k[b->layer], b->h->head_dim);
    struct ggml_tensor *a = own ? attend_own(b, q, batch) : attend_filled(b, q, batch);
    a = ggml_reshape_2d(b->ctx, a, a->ne[0] * a->ne[1], a->ne[2]);
    /* Rows that attention was filled up with are zeros, too. */
    if (a->ne[1] > batch->n_wide)
        a = rows(b, a, 0, batch->n_wide);
    else if (a->ne[1] < batch->n_wide)
        a = filled(b, a->ne[1] > n ? rows(b, a, 0, (uint32_t)n) : a);
    return multiply(b, b->w[TSRI_ATTN_OUT], a, n);
}

static struct ggml_tensor *feed_forward(struct work *b, struct ggml_tensor *x)
{
    struct ggml_tensor *h = filled(b, norm(b, x, b->w[TSRI_FFN_NORM]));
    struct ggml_tensor *up = multiply(b, b->w[TSRI_FFN_UP], h, h->ne[1]);
    struct ggml_tensor *gate = multiply(b, b->w[TSRI_FFN_GATE], h, h->ne[1]);
    return multiply(b, b->w[TSRI_FFN_DOWN], ggml_swiglu_split(b->ctx, gate, up), x->ne[1]);
}

static int failed(struct tsr_executor_session *s, const char *what)
{
    const char *why = tsri_model_complaint();
    return tsri_model_fail(s->x->fail, TSR_EDEVICE, "model: ggml could not %s%s%s", what,
                           why[0] ? ": " : "", why);
}

static int compute(struct tsr_executor_session *s, struct ggml_cgraph *graph)
{
    return tsri_queue_compute(&s->queue, graph) == 0 ? 0 : failed(s, "compute");
}

/* Allocates and runs a graph that is not kept; its results are valid until the next one. */
static int compute_once(struct work *b)
{
    int e = ggml_gallocr_alloc_graph(b->s->memory, b->graph) ? 0 : failed(b->s, "reserve memory");
    return e ? e : compute(b->s, b->graph);
}

/* Memory that may be too small is replaced by more: graphs that are queued must not be reading it
 * then. All layers of a pass need the same, so this waits for the first of them at most. */
static void make_room(struct tsr_executor_session *s, struct tsri_room *room,
                      const struct tsri_layer_spec *spec)
{
    const struct tsri_row_batch *batch = spec->batch;
    uint64_t rows = batch->n_padded > batch->n_wide ? batch->n_padded : batch->n_wide;
    uint64_t step = spec->n_mass < TSRI_MASS_STEP ? spec->n_mass : TSRI_MASS_STEP;
    uint64_t mass = s->queue.apart ? step * batch->n_kv : 0;
    if (rows <= room->rows && mass <= room->mass) return;
    tsri_queue_wait(&s->queue);
    if (rows > room->rows) room->rows = rows;
    if (mass > room->mass) room->mass = mass;
}

/* ---- one layer ---- */

/* K and V of the batch's rows, into their slots. */
static void write_kv(struct work *b, struct ggml_tensor *h, struct ggml_tensor *positions,
                     struct ggml_tensor *slots)
{
    also(b, ggml_set_rows(b->ctx, b->s->k[b->layer], make_k(b, h, positions), slots));
    also(b, ggml_set_rows(b->ctx, b->s->v[b->layer], make_v(b, h, slots->ne[0]), slots));
}

/* softmax(Q K + mask) of n rows of q from `first` on, for each head: [n_kv, n, n_heads]. */
static struct ggml_tensor *weights_of(struct work *b, struct ggml_tensor *q, uint32_t first,
                                      uint32_t n, struct ggml_tensor *mask,
                                      const struct tsri_row_batch *batch)
{
    q = ggml_view_3d(b->ctx, q, q->ne[0], q->ne[1], n, q->nb[1], q->nb[2], first * q->nb[2]);
    q = ggml_permute(b->ctx, q, 0, 2, 1, 3);
    /* Products of Q and K are beyond 16 bits in real models. CUDA adds them up in 16 bits unless it
     * is told otherwise, and so do Arm processors wherever keys are of that type. */
    struct ggml_tensor *k = kept(b, b->s->k[b->layer], batch);
    bool cpu = ggml_backend_dev_type(b->s->x->weights.device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    if (cpu && k->type != GGML_TYPE_F32) k = ggml_cast(b->ctx, k, GGML_TYPE_F32);
    struct ggml_tensor *kq = ggml_mul_mat(b->ctx, k, q);
    in_full_precision(kq);
    return ggml_soft_max_ext(b->ctx, kq, mask, b->h->attention_scale, 0);
}

/* Adds the attention of rows of q from `first` on, the batch's rows from mass_first on, to the sums
 * of the pass: nothing is brought to the host before the pass is over. */
static void add_up(struct work *b, const struct tsri_layer_spec *spec, struct ggml_tensor *q,
                   uint32_t first)
{
    const struct tsri_row_batch *batch = spec->batch;
    struct ggml_tensor *sums = items(b, b->s->in.mass, batch->kv_first, batch->n_kv);
    for (uint32_t done = 0; done < spec->n_mass; done += TSRI_MASS_STEP) {
        uint32_t n = spec->n_mass - done < TSRI_MASS_STEP ? spec->n_mass - done : TSRI_MASS_STEP;
        struct ggml_tensor *mask = mask_rows(b, batch, spec->mass_first + done, n);
        struct ggml_tensor *w = weights_of(b, q, first + done, n, mask, batch);
        w = ggml_reshape_2d(b->ctx, w, w->ne[0], w->ne[1] * w->ne[2]);
        w = ggml_sum_rows(b->ctx, ggml_cont(b->ctx, ggml_transpose(b->ctx, w)));
        sums = ggml_add_inplace(b->ctx, sums, ggml_reshape_1d(b->ctx, w, batch->n_kv));
        also(b, sums);
    }
}

/* Q of some rows, to be asked for attention later. */
static void leave_q(struct work *b, const struct tsri_layer_spec *spec, struct ggml_tensor *q,
                    uint32_t first)
{
    q = ggml_reshape_2d(b->ctx, q, q->ne[0] * q->ne[1], q->ne[2]);
    q = rows(b, q, first, spec->n_mass);
    also(b, ggml_cpy(b->ctx, q, rows(b, b->s->in.mass_q, spec->mass_at, spec->n_mass)));
}

/* The rows that are asked for their attention begin at `first` of q. */
static void weigh(struct work *b, const struct tsri_layer_spec *spec, struct ggml_tensor *q,
                  uint32_t first)
{
    if (!spec->n_mass) return;
    if (b->s->queue.apart)
        add_up(b, spec, q, first);
    else
        leave_q(b, spec, q, first);
}

static void build_layer(struct work *b, const struct tsri_layer_spec *spec)
{
    const struct tsri_row_batch *batch = spec->batch;
    struct tsri_inputs *in = &b->s->in;
    uint32_t n = batch->n_rows;
    struct ggml_tensor *x = rows(b, in->hidden, batch->row_first, n);
    struct ggml_tensor *positions = items(b, in->positions, batch->row_first, n);
    struct ggml_tensor *slots = items(b, in->slots, batch->row_first, n);
    struct ggml_tensor *h = filled(b, norm(b, x, b->w[TSRI_ATTN_NORM]));
    if (spec->layer + 1 == b->h->n_layers) {
        write_kv(b, h, positions, slots);
        if (spec->n_mass)
            weigh(
                b, spec,
                make_q(b, filled(b, rows(b, h, spec->mass_first, spec->n_mass)),
                       items(b, in->positions, batch->row_first + spec->mass_first, spec->n_mass)),
                0);
        return;
    }
    struct ggml_tensor *q = make_q(b, h, positions);
    also(b, q);
    write_kv(b, h, positions, slots);
    weigh(b, spec, q, spec->mass_first);
    struct ggml_tensor *r = ggml_add_inplace(b->ctx, x, attention(b, q, batch));
    also(b, ggml_add_inplace(b->ctx, r, feed_forward(b, r)));
}

static void drop_graphs(struct tsri_shape_cache *c, uint32_t n_layers)
{
    for (uint32_t l = 0; l < n_layers; l++) {
        ggml_free(c->graphs[l].ctx);
        c->graphs[l].ctx = NULL;
    }
}

void tsri_graph_forget(struct tsr_executor_session *s)
{
    for (int i = 0; i < TSRI_SHAPES; i++)
        if (s->shapes[i].graphs) drop_graphs(&s->shapes[i], s->x->header.n_layers);
}

/* The cache of a shape, the one used longest ago emptied for it where it has none. */
static struct tsri_shape_cache *cache_of(struct tsr_executor_session *s,
                                         const struct tsri_layer_spec *spec)
{
    const struct tsri_row_batch *b = spec->batch;
    struct tsri_graph_shape shape = {.n_rows = b->n_rows,
                                     .n_padded = b->n_padded,
                                     .n_wide = b->n_wide,
                                     .kv_first = b->kv_first,
                                     .n_kv = b->n_kv,
                                     .n_mass = spec->n_mass,
                                     .filled = 1,
                                     .mask_at = b->mask_at};
    struct tsri_shape_cache *oldest = &s->shapes[0];
    for (int i = 0; i < TSRI_SHAPES; i++) {
        struct tsri_shape_cache *c = &s->shapes[i];
        if (memcmp(&c->shape, &shape, sizeof shape) == 0) {
            c->used = ++s->clock;
            return c;
        }
        if (c->used < oldest->used) oldest = c;
    }
    drop_graphs(oldest, s->x->header.n_layers);
    oldest->shape = shape;
    oldest->used = ++s->clock;
    return oldest;
}

/* Graphs of one shape share memory: they run one after the other. Should one of them need more, its
 * siblings' pointers would be stale; they are built again. */
static int build_kept(struct tsri_shape_cache *c, struct work *b, struct tsri_graph *g)
{
    size_t before = ggml_gallocr_get_buffer_size(c->memory, 0);
    if (!ggml_gallocr_alloc_graph(c->memory, b->graph)) {
        ggml_free(b->ctx);
        return failed(b->s, "reserve memory");
    }
    if (ggml_gallocr_get_buffer_size(c->memory, 0) != before) drop_graphs(c, b->h->n_layers);
    g->ctx = b->ctx;
    g->graph = b->graph;
    return 0;
}

int tsri_graph_layer(struct tsr_executor_session *s, const struct tsri_layer_spec *spec)
{
    struct work b;
    uint32_t n_nodes = NODES + (s->queue.apart ? mass_steps(spec->n_mass) * MASS_NODES : 0);
    /* Only a pass of one small batch: its tensors begin at row 0. */
    if (s->n_batches == 1 && spec->batch->n_rows <= TSRI_TILE_ROWS) {
        struct tsri_shape_cache *c = cache_of(s, spec);
        struct tsri_graph *g = &c->graphs[spec->layer];
        if (!g->ctx) {
            if (!work_init(&b, s, spec->layer, n_nodes, NULL)) return failed(s, "build a graph");
            build_layer(&b, spec);
            make_room(s, &c->room, spec);
            int e = build_kept(c, &b, g);
            if (e) return e;
        }
        return compute(s, g->graph);
    }
    if (!work_init(&b, s, spec->layer, n_nodes, s->scratch)) return failed(s, "build a graph");
    build_layer(&b, spec);
    make_room(s, &s->room, spec);
    int e = compute_once(&b);
    ggml_free(b.ctx);
    return e;
}

/* ---- the others ---- */

const float *tsri_graph_mass(struct tsr_executor_session *s, const struct tsri_mass_spec *spec)
{
    struct work b;
    if (!work_init(&b, s, spec->layer, NODES, s->scratch)) return NULL;
    struct ggml_tensor *q = rows(&b, s->in.mass_q, spec->first, spec->n);
    q = ggml_reshape_3d(b.ctx, q, b.h->head_dim, b.h->n_heads, spec->n);
    struct ggml_tensor *mask = mask_rows(&b, spec->batch, spec->mask_row, spec->n);
    struct ggml_tensor *weights = weights_of(&b, q, 0, spec->n, mask, spec->batch);
    ggml_set_output(weights);
    also(&b, weights);
    int e = compute_once(&b);
    const float *result = e ? NULL : weights->data;
    ggml_free(b.ctx);
    return result;
}

/* Squared distance of fresh rows, rounded as they would be stored, to those in their slots. */
static struct ggml_tensor *distance(struct work *b, struct ggml_tensor *fresh,
                                    struct ggml_tensor *stored, struct ggml_tensor *slots)
{
    if (stored->type != GGML_TYPE_F32)
        fresh = ggml_cast(b->ctx, ggml_cast(b->ctx, fresh, stored->type), GGML_TYPE_F32);
    struct ggml_tensor *old = ggml_get_rows(b->ctx, stored, slots);
    struct ggml_tensor *d = ggml_sum_rows(b->ctx, ggml_sqr(b->ctx, ggml_sub(b->ctx, fresh, old)));
    ggml_set_output(d);
    also(b, d);
    return d;
}

int tsri_graph_deviation(struct tsr_executor_session *s, uint32_t layer,
                         const struct tsri_row_batch *batch, float *k, float *v)
{
    struct work b;
    uint32_t n = batch->n_rows;
    if (!work_init(&b, s, layer, NODES, s->scratch)) return failed(s, "build a graph");
    struct ggml_tensor *h =
        filled(&b, norm(&b, rows(&b, s->in.hidden, batch->row_first, n), b.w[TSRI_ATTN_NORM]));
    struct ggml_tensor *positions = items(&b, s->in.positions, batch->row_first, n);
    struct ggml_tensor *slots = items(&b, s->in.numbers, batch->row_first, n);
    struct ggml_tensor *dk = NULL, *dv = NULL;
    if (k) dk = distance(&b, make_k(&b, h, positions), s->k[layer], slots);
    if (v) dv = distance(&b, make_v(&b, h, n), s->v[layer], slots);
    int e = compute_once(&b);
    if (!e && dk) tsri_queue_get(&s->queue, dk, k + batch->row_first, n * sizeof *k);
    if (!e && dv) tsri_queue_get(&s->queue, dv, v + batch->row_first, n * sizeof *v);
    ggml_free(b.ctx);
    return e;
}

int tsri_graph_narrow(struct tsr_executor_session *s, uint32_t n)
{
    struct work b;
    if (!work_init(&b, s, 0, NODES, s->scratch)) return failed(s, "build a graph");
    struct ggml_tensor *some =
        ggml_get_rows(b.ctx, rows(&b, s->in.hidden, 0, s->n_rows), items(&b, s->in.picks, 0, n));
    also(&b, ggml_cpy(b.ctx, some, rows(&b, s->in.hidden, 0, n)));
    int e = compute_once(&b);
    ggml_free(b.ctx);
    return e;
}

int tsri_graph_logits(struct tsr_executor_session *s, const struct tsri_row_batch *batch,
                      float *logits)
{
    struct work b;
    uint32_t n = batch->n_rows;
    const struct tsri_weights *w = &s->x->weights;
    if (!work_init(&b, s, s->x->header.n_layers - 1, NODES, s->scratch))
        return failed(s, "build a graph");
    struct ggml_tensor *x =
        ggml_get_rows(b.ctx, rows(&b, s->in.hidden, 0, s->n_rows), items(&b, s->in.picks, 0, n));
    struct ggml_tensor *q =
        make_q(&b, filled(&b, norm(&b, x, b.w[TSRI_ATTN_NORM])), items(&b, s->in.numbers, 0, n));
    struct ggml_tensor *r = ggml_add(b.ctx, attention(&b, q, batch), x);
    r = ggml_add(b.ctx, feed_forward(&b, r), r);
    /* The head is a large matrix: few rows do, and their logits are not made in vain. */
    if (b.rows_least) b.rows_least = tsri_rows_least(s->x->n_threads, s->x->header.n_vocab);
    struct ggml_tensor *head = filled(&b, norm(&b, r, w->output_norm));
    struct ggml_tensor *out = multiply(&b, w->output, head, head->ne[1]);
    ggml_set_output(out);
    also(&b, out);
    int e = compute_once(&b);
    if (!e) tsri_queue_get(&s->queue, out, logits, n * out->nb[1]);
    ggml_free(b.ctx);
    return e;
}

/* ---- rows of several sessions ---- */

#define SHARED_NODES 48u /* of a layer, for all rows */
#define ROW_NODES 40u    /* of a layer, more for each row */

static bool batch_init(struct work *w, struct tsr_executor_decoder *b)
{
    uint32_t n_nodes = b->x->header.n_layers * (SHARED_NODES + b->n_rows * ROW_NODES) + NODES;
    struct ggml_init_params params = {.mem_size = bytes_of(n_nodes), .no_alloc = true};
    *w = (struct work){.x = b->x, .h = &b->x->header, .alike = b->alike ? b : NULL};
    w->ctx = ggml_init(params);
    if (!w->ctx) return false;
    w->graph = ggml_new_graph_custom(w->ctx, n_nodes, false);
    return true;
}

/* Attention of one row over the KV of its session; its K and V go there first. */
static void attend_row(struct work *w, struct tsr_executor_decoder *b, uint32_t i,
                       struct ggml_tensor *const qkv[3])
{
    struct tsr_executor_session *s = b->sessions[i];
    struct ggml_tensor *slot = items(w, b->slots, i, 1), *q = qkv[0];
    also(w, ggml_set_rows(w->ctx, s->k[w->layer], rows(w, qkv[1], i, 1), slot));
    also(w, ggml_set_rows(w->ctx, s->v[w->layer], rows(w, qkv[2], i, 1), slot));
    q = ggml_view_3d(w->ctx, q, q->ne[0], q->ne[1], 1, q->nb[1], q->nb[2], i * q->nb[2]);
    uint32_t n_kv = b->shape[i].n_kv;
    struct ggml_tensor *a = ggml_flash_attn_ext(
        w->ctx, ggml_permute(w->ctx, q, 0, 2, 1, 3), slots_of(w, s->k[w->layer], 0, n_kv),
        slots_of(w, s->v[w->layer], 0, n_kv), b->masks[i], w->h->attention_scale, 0, 0);
    in_full_precision(a);
    a = ggml_reshape_2d(w->ctx, a, a->ne[0] * a->ne[1], 1);
    also(w, ggml_cpy(w->ctx, a, rows(w, b->attended, i, 1)));
}

/* Matrices are multiplied with all rows; attention goes row by row, each over its own session. */
static struct ggml_tensor *batch_layer(struct work *w, struct tsr_executor_decoder *b,
                                       struct ggml_tensor *x)
{
    struct ggml_tensor *positions = items(w, b->positions, 0, b->n_rows);
    struct ggml_tensor *h = norm(w, x, w->w[TSRI_ATTN_NORM]);
    struct ggml_tensor *qkv[3] = {make_q(w, h, positions), make_k(w, h, positions),
                                  make_v(w, h, b->n_rows)};
    for (uint32_t i = 0; i < 3; i++)
        also(w, qkv[i]);
    for (uint32_t i = 0; i < b->n_rows; i++)
        attend_row(w, b, i, qkv);
    struct ggml_tensor *a =
        multiply(w, w->w[TSRI_ATTN_OUT], rows(w, b->attended, 0, b->n_rows), b->n_rows);
    struct ggml_tensor *r = ggml_add(w->ctx, a, x);
    return ggml_add(w->ctx, feed_forward(w, r), r);
}

int tsri_graph_decoder(struct tsr_executor_decoder *b)
{
    struct work w;
    ggml_free(b->graph.ctx);
    b->graph = (struct tsri_graph){0};
    if (!batch_init(&w, b)) return tsri_model_fail(b->x->fail, TSR_ENOMEM, "model: no memory");
    for (uint32_t i = 0; i < b->n_rows; i++) {
        b->masks[i] = ggml_new_tensor_2d(w.ctx, GGML_TYPE_F16, b->shape[i].n_kv, 1);
        ggml_set_input(b->masks[i]);
    }
    struct ggml_tensor *x = rows(&w, b->hidden, 0, b->n_rows);
    for (w.layer = 0; w.layer < w.h->n_layers; w.layer++) {
        w.w = b->x->weights.layers[w.layer];
        x = batch_layer(&w, b, x);
    }
    struct ggml_tensor *head = norm(&w, x, b->x->weights.output_norm);
    b->logits = multiply(&w, b->x->weights.output, head, b->n_rows);
    ggml_set_output(b->logits);
    also(&w, b->logits);
    b->graph = (struct tsri_graph){w.ctx, w.graph};
    return ggml_gallocr_alloc_graph(b->memory, w.graph)
               ? 0
               : tsri_model_fail(b->x->fail, TSR_ENOMEM, "model: no memory for %u rows", b->n_rows);
}
