/* ggml_session.c - KV memory for one sequence, and passes over rows of it. Row s of a layer's K and
 * V is slot s, all heads of a token side by side, in one allocation that outlives every graph. A
 * pass keeps its rows' numbers and hidden states here, so that a graph of any layer can be run at
 * any time; its rows are cut into batches (ggml_mask.c), and each layer runs batch after batch,
 * which keeps a layer's weights in the caches of the processor.
 *
 * Results of a row do not depend on the other rows of its pass nor on how many there are. Only rows
 * of an answer (TSR_PASS_DECODE), one or a few at a time, use other kernels of ggml, which are
 * faster for them and round differently. */
#include "model/model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Elements of masks kept for a pass; more are made for each layer. Where memory is apart, that is a
 * wait and a copy a layer: there all masks of 16K rows fit. */
#define MASK_ROOM_MAX ((size_t)24 << 20)
#define MASK_ROOM_MAX_APART ((size_t)128 << 20)
#define HUGE_PAGE ((size_t)2 << 20)

static int no_memory(const struct tsr_executor *x, const char *what)
{
    return tsri_model_fail(x->fail, TSR_ENOMEM, "model: out of memory for %s", what);
}

/* ---- opening ---- */

int tsri_ggml_backend_open(struct tsr_executor *x, ggml_backend_t *out)
{
    *out = ggml_backend_dev_init(x->weights.device, NULL);
    if (!*out)
        return tsri_model_fail(x->fail, TSR_EDEVICE, "model: device %s cannot be used",
                               ggml_backend_dev_name(x->weights.device));
    void *address = ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(x->weights.device), "ggml_backend_set_n_threads");
    ggml_backend_set_n_threads_t set_threads;
    memcpy(&set_threads, &address, sizeof set_threads);
    if (set_threads) set_threads(*out, (int)x->n_threads);
    return 0;
}

static int make_backend(struct tsr_executor_session *s)
{
    struct tsr_executor *x = s->x;
    int e = tsri_ggml_backend_open(x, &s->queue.backend);
    if (e) return e;
    ggml_backend_buffer_type_t kind = ggml_backend_get_default_buffer_type(s->queue.backend);
    s->host = ggml_backend_buft_is_host(kind) && !x->apart;
    s->queue.apart = !s->host;
    s->rows_max = s->host ? TSRI_BATCH_ROWS : TSRI_BATCH_ROWS_APART;
    s->memory = ggml_gallocr_new(kind);
    for (int i = 0; i < TSRI_SHAPES; i++) {
        s->shapes[i].memory = ggml_gallocr_new(kind);
        s->shapes[i].graphs = calloc(x->header.n_layers, sizeof *s->shapes[i].graphs);
        if (!s->shapes[i].memory || !s->shapes[i].graphs) return no_memory(x, "graphs");
    }
    s->scratch_bytes = tsri_graph_scratch_bytes();
    s->scratch = malloc(s->scratch_bytes);
    return s->memory && s->scratch ? 0 : no_memory(x, "graphs");
}

/* What is copied to the device, from memory that its copy engines reach where there is some. */
static int make_staging(struct tsr_executor_session *s, size_t n_batch)
{
    size_t mask_rows = n_batch < TSRI_TILE_ROWS ? TSRI_TILE_ROWS : n_batch;
    size_t mask_bytes = mask_rows * s->n_slots_padded * sizeof *s->mask_host;
    size_t embd_bytes = n_batch * s->x->header.n_embd * sizeof *s->embd;
    ggml_backend_buffer_type_t kind = ggml_backend_dev_host_buffer_type(s->x->weights.device);
    if (kind && !s->host)
        s->staging = ggml_backend_buft_alloc_buffer(kind, mask_bytes + embd_bytes);
    if (s->staging) {
        s->mask_host = ggml_backend_buffer_get_base(s->staging);
        s->embd = (float *)(void *)((uint8_t *)s->mask_host + mask_bytes);
        return 0;
    }
    s->embd = malloc(embd_bytes + 1);
    if (!s->host) s->mask_host = malloc(mask_bytes + 1);
    return s->embd && (s->host || s->mask_host) ? 0 : no_memory(s->x, "a session");
}

static int make_arrays(struct tsr_executor_session *s)
{
    const struct tsri_header *h = &s->x->header;
    size_t n = s->n_slots, n_batch = n < s->rows_max ? n : s->rows_max;
    s->k = calloc(h->n_layers, sizeof *s->k);
    s->v = calloc(h->n_layers, sizeof *s->v);
    s->k_data = calloc(h->n_layers, sizeof *s->k_data);
    s->v_data = calloc(h->n_layers, sizeof *s->v_data);
    s->slots = malloc(n * sizeof *s->slots);
    s->positions = malloc(n * sizeof *s->positions);
    s->groups_of = malloc(n * sizeof *s->groups_of);
    s->numbers = malloc(n * sizeof *s->numbers);
    s->groups = malloc(n * sizeof *s->groups);
    s->bias = malloc(n * sizeof *s->bias);
    s->batches_max = s->n_slots / TSRI_TILE_ROWS + 2;
    s->batches = malloc(s->batches_max * sizeof *s->batches);
    s->mass_host = malloc(s->n_slots_padded * sizeof *s->mass_host);
    if (!s->k || !s->v || !s->k_data || !s->v_data || !s->slots || !s->positions || !s->groups_of ||
        !s->numbers || !s->groups || !s->bias || !s->batches || !s->mass_host)
        return no_memory(s->x, "a session");
    return make_staging(s, n_batch);
}

/* K and V of all layers, one tensor after the other. */
static int make_kv(struct tsr_executor_session *s)
{
    const struct tsri_header *h = &s->x->header;
    int64_t row = (int64_t)h->n_kv_heads * h->head_dim;
    size_t bytes = ggml_row_size(s->x->kv_type, row) * s->n_slots_padded;
    struct ggml_init_params params = {.mem_size = 2 * h->n_layers * ggml_tensor_overhead() +
                                                  16 * ggml_tensor_overhead(),
                                      .no_alloc = true};
    s->tensors = ggml_init(params);
    if (!s->tensors) return no_memory(s->x, "a session");
    for (uint32_t l = 0; l < h->n_layers; l++) {
        s->k[l] = ggml_new_tensor_2d(s->tensors, s->x->kv_type, row, s->n_slots_padded);
        s->v[l] = ggml_new_tensor_2d(s->tensors, s->x->kv_type, row, s->n_slots_padded);
    }
    if (s->host) {
        s->kv_map_bytes = bytes * 2 * h->n_layers + HUGE_PAGE;
        s->kv_map = mmap(NULL, s->kv_map_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (s->kv_map == MAP_FAILED) {
            s->kv_map = NULL;
            return no_memory(s->x, "KV");
        }
        (void)madvise(s->kv_map, s->kv_map_bytes, MADV_HUGEPAGE); /* faster where there are some */
        s->kv_buffer = ggml_backend_cpu_buffer_from_ptr(s->kv_map, s->kv_map_bytes);
    } else {
        s->kv_buffer = ggml_backend_alloc_ctx_tensors(s->tensors, s->queue.backend);
    }
    if (!s->kv_buffer) return no_memory(s->x, "KV");
    if (!s->host) ggml_backend_buffer_clear(s->kv_buffer, 0);
    uint8_t *at = s->kv_map;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        if (s->host && (ggml_backend_tensor_alloc(s->kv_buffer, s->k[l], at) ||
                        ggml_backend_tensor_alloc(s->kv_buffer, s->v[l], at + bytes)))
            return no_memory(s->x, "KV");
        if (s->host) at += 2 * bytes;
        s->k_data[l] = s->k[l]->data;
        s->v_data[l] = s->v[l]->data;
    }
    return 0;
}

static int make_inputs(struct tsr_executor_session *s)
{
    const struct tsri_header *h = &s->x->header;
    struct tsri_inputs *in = &s->in;
    uint64_t n = s->n_slots, batch = n < s->rows_max ? n : s->rows_max;
    uint64_t mask = (uint64_t)s->n_slots_padded * s->n_slots_padded;
    if (batch < TSRI_TILE_ROWS) batch = TSRI_TILE_ROWS;
    size_t room_max = s->host ? MASK_ROOM_MAX : MASK_ROOM_MAX_APART;
    s->mask_room = mask < room_max ? (size_t)mask : room_max;
    /* The context holds K and V too, which have their memory; only the new ones get some here. */
    in->hidden = ggml_new_tensor_2d(s->tensors, GGML_TYPE_F32, h->n_embd, (int64_t)n);
    in->positions = ggml_new_tensor_1d(s->tensors, GGML_TYPE_I32, (int64_t)n);
    in->slots = ggml_new_tensor_1d(s->tensors, GGML_TYPE_I64, (int64_t)n);
    in->picks = ggml_new_tensor_1d(s->tensors, GGML_TYPE_I32, (int64_t)n);
    in->numbers = ggml_new_tensor_1d(s->tensors, GGML_TYPE_I32, (int64_t)n);
    in->mask = ggml_new_tensor_1d(s->tensors, GGML_TYPE_F16, (int64_t)s->mask_room);
    in->mask_scratch =
        ggml_new_tensor_1d(s->tensors, GGML_TYPE_F16, (int64_t)(batch * s->n_slots_padded));
    in->mass_q = ggml_new_tensor_2d(s->tensors, GGML_TYPE_F32, (int64_t)h->head_dim * h->n_heads,
                                    TSRI_MASS_ROWS_MAX);
    in->mass = ggml_new_tensor_1d(s->tensors, GGML_TYPE_F32, (int64_t)s->n_slots_padded);
    s->in_buffer = ggml_backend_alloc_ctx_tensors(s->tensors, s->queue.backend);
    return s->in_buffer ? 0 : no_memory(s->x, "a session");
}

static atomic_uint_fast64_t next_id = 1;

int tsri_ggml_session_open(struct tsr_executor *x, struct tsr_executor_session **out,
                           uint32_t n_slots)
{
    struct tsr_executor_session *s = calloc(1, sizeof *s);
    if (!s) return no_memory(x, "a session");
    s->x = x;
    s->id = atomic_fetch_add(&next_id, 1);
    s->n_slots = n_slots;
    s->n_slots_padded = (n_slots + TSRI_KV_STEP - 1) / TSRI_KV_STEP * TSRI_KV_STEP;
    int e = make_backend(s);
    if (!e) e = make_arrays(s);
    if (!e) e = make_kv(s);
    if (!e) e = make_inputs(s);
    if (e) {
        tsri_ggml_session_close(s);
        return e;
    }
    *out = s;
    return 0;
}

void tsri_ggml_session_close(struct tsr_executor_session *s)
{
    if (!s) return;
    tsri_queue_wait(&s->queue);
    tsri_graph_forget(s);
    for (int i = 0; i < TSRI_SHAPES; i++) {
        if (s->shapes[i].memory) ggml_gallocr_free(s->shapes[i].memory);
        free(s->shapes[i].graphs);
    }
    if (s->memory) ggml_gallocr_free(s->memory);
    ggml_backend_buffer_free(s->in_buffer);
    ggml_backend_buffer_free(s->kv_buffer);
    if (s->kv_map) munmap(s->kv_map, s->kv_map_bytes);
    ggml_free(s->tensors);
    ggml_backend_free(s->queue.backend);
    if (s->staging) s->embd = NULL, s->mask_host = NULL;
    ggml_backend_buffer_free(s->staging);
    void *memory[] = {s->scratch, s->k,         s->v,       s->k_data,    s->v_data,
                      s->slots,   s->positions, s->numbers, s->groups_of, s->groups,
                      s->bias,    s->batches,   s->embd,    s->mask_host, s->mass_host};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
    free(s);
}

void tsri_ggml_session_layout(struct tsr_executor_session *s, struct tsr_kv_layout *out)
{
    const struct tsri_header *h = &s->x->header;
    size_t element = ggml_type_size(s->x->kv_type);
    *out = (struct tsr_kv_layout){.size = sizeof *out,
                                  .memory = s->host ? TSR_MEMORY_HOST : TSR_MEMORY_DEVICE,
                                  .n_layers = h->n_layers,
                                  .n_planes = 2,
                                  .n_slots = s->n_slots};
    for (int p = 0; p < 2; p++)
        out->planes[p] =
            (struct tsr_kv_plane){.layers = p == 0 ? s->k_data : s->v_data,
                                  .layer_bytes = (uint64_t)s->n_slots_padded * s->k[0]->nb[1],
                                  .token_stride = s->k[0]->nb[1],
                                  .head_stride = h->head_dim * element,
                                  .element_stride = element,
                                  .dtype = s->x->kv_dtype,
                                  .n_heads = h->n_kv_heads,
                                  .dim = h->head_dim,
                                  .rope_dims = p == 0 ? h->rope.dims : 0};
}

/* ---- a pass ---- */

static struct tsri_sight sight_of(const struct tsr_executor_session *s)
{
    return (struct tsri_sight){.slots = s->slots,
                               .groups_of = s->groups_of,
                               .groups = s->groups,
                               .bias = s->bias,
                               .n_bias = s->n_bias,
                               .bias_row_first = s->n_rows - s->n_bias_rows};
}

/* Fills a batch's mask, at its own place or in the scratch. */
static void put_mask(struct tsr_executor_session *s, const struct tsri_sight *sight,
                     const struct tsri_row_batch *b)
{
    bool own = b->mask_at != TSRI_MASK_NONE;
    struct ggml_tensor *t = own ? s->in.mask : s->in.mask_scratch;
    size_t at = own ? b->mask_at : 0, n = (size_t)b->n_padded * b->n_kv;
    ggml_fp16_t *to = s->host ? (ggml_fp16_t *)t->data + at : s->mask_host;
    tsri_mask_fill(sight, b, to);
    if (!s->host) tsri_queue_put(&s->queue, t, to, at * sizeof *to, n * sizeof *to);
}

/* Cuts the current rows into batches and hands their numbers and masks to the graphs. */
static void lay_out(struct tsr_executor_session *s)
{
    struct tsri_sight sight = sight_of(s);
    s->n_batches = tsri_batches_cut(&sight, s->n_rows, &s->fit, s->batches, s->batches_max);
    size_t used = 0;
    for (uint32_t i = 0; i < s->n_batches; i++) {
        struct tsri_row_batch *b = &s->batches[i];
        size_t n = (size_t)b->n_padded * b->n_kv;
        if (n > s->mask_room - used) continue;
        b->mask_at = used;
        used += n;
        put_mask(s, &sight, b);
    }
    tsri_queue_put(&s->queue, s->in.positions, s->positions, 0, s->n_rows * sizeof *s->positions);
    for (uint32_t i = 0; i < s->n_rows; i++)
        s->numbers[i] = s->slots[i];
    tsri_queue_put(&s->queue, s->in.slots, s->numbers, 0, s->n_rows * sizeof *s->numbers);
}

static void embed(struct tsr_executor_session *s, const struct tsr_model_row *rows)
{
    const struct tsr_executor *x = s->x;
    size_t row = x->header.n_embd * sizeof(float);
    for (uint32_t first = 0; first < s->n_rows; first += s->rows_max) {
        uint32_t n = s->n_rows - first < s->rows_max ? s->n_rows - first : s->rows_max;
        for (uint32_t i = 0; i < n; i++)
            tsri_weights_embed(&x->weights, rows[first + i].token, x->header.n_embd,
                               s->embd + (size_t)i * x->header.n_embd);
        tsri_queue_put(&s->queue, s->in.hidden, s->embd, first * row, n * row);
    }
}

int tsri_ggml_session_begin(struct tsr_executor_session *s, const struct tsr_model_pass *pass)
{
    if (pass->n_mass_rows > TSRI_MASS_ROWS_MAX)
        return tsri_model_fail(s->x->fail, TSR_ERANGE,
                               "model: attention of %u rows requested, limit %u", pass->n_mass_rows,
                               TSRI_MASS_ROWS_MAX);
    if (pass->n_groups > s->n_slots)
        return tsri_model_fail(s->x->fail, TSR_ERANGE, "model: %u groups for %u slots",
                               pass->n_groups, s->n_slots);
    bool decode = (pass->flags & TSR_PASS_DECODE) && pass->n_rows < TSRI_DECODE_ROWS_END;
    uint32_t rows_max = s->cut && s->cut < s->rows_max ? s->cut : s->rows_max;
    if (rows_max < TSRI_TILE_ROWS) rows_max = TSRI_TILE_ROWS;
    s->fit = (struct tsri_fit){s->n_slots_padded, decode ? 0 : s->x->rows_least, rows_max};
    s->batch_at = 0;
    s->n_rows = pass->n_rows;
    s->n_mass = pass->n_mass_rows;
    s->n_bias = pass->bias ? (pass->n_bias < s->n_slots ? pass->n_bias : s->n_slots) : 0;
    s->n_bias_rows = pass->bias ? pass->n_bias_rows : 0;
    for (uint32_t i = 0; i < s->n_bias; i++)
        s->bias[i] = ggml_fp32_to_fp16(pass->bias[i]);
    memcpy(s->groups, pass->groups, pass->n_groups * sizeof *pass->groups);
    for (uint32_t i = 0, g = 0, left = pass->groups[0].n_rows; i < s->n_rows; i++, left--) {
        while (left == 0)
            left = pass->groups[++g].n_rows;
        s->groups_of[i] = g;
        s->slots[i] = pass->rows[i].slot;
        s->positions[i] = pass->rows[i].position;
    }
    embed(s, pass->rows);
    lay_out(s);
    if (s->n_mass && s->queue.apart) tsri_queue_zero(&s->queue, s->in.mass);
    return 0;
}

/* ---- layers ---- */

/* Adds rows of attention weights, as means over heads, to the caller's slots. */
static void add_mass(const struct tsr_executor_session *s, const struct tsri_row_batch *b,
                     const float *weights, uint32_t n_rows, const struct tsr_model_layer *layer)
{
    if (layer->n_mass <= b->kv_first) return;
    uint32_t n_kv = layer->n_mass - b->kv_first < b->n_kv ? layer->n_mass - b->kv_first : b->n_kv;
    float *mass = layer->mass + b->kv_first, share = 1.0f / (float)s->x->header.n_heads;
    for (size_t r = 0; r < n_rows; r++) {
        const float *row = weights + r * b->n_kv;
        for (uint32_t i = 0; i < n_kv; i++)
            mass[i] += share * row[i];
    }
}

/* What a device has added up since the pass began, to the caller's slots. */
static void hand_over_mass(struct tsr_executor_session *s)
{
    if (!s->mass_to) return;
    uint32_t n = s->n_mass_to < s->n_slots_padded ? s->n_mass_to : s->n_slots_padded;
    float share = 1.0f / (float)s->x->header.n_heads;
    tsri_queue_get(&s->queue, s->in.mass, s->mass_host, n * sizeof *s->mass_host);
    for (uint32_t i = 0; i < n; i++)
        s->mass_to[i] += share * s->mass_host[i];
    s->mass_to = NULL;
}

/* The sums of a pass go to one place. A caller that names another one gets those so far first. */
static void take_mass(struct tsr_executor_session *s, const struct tsr_model_layer *layer)
{
    bool same = s->mass_to == layer->mass && s->n_mass_to == layer->n_mass;
    if (!layer->mass || !s->queue.apart || same) return;
    if (s->mass_to) {
        hand_over_mass(s);
        tsri_queue_zero(&s->queue, s->in.mass);
    }
    s->mass_to = layer->mass;
    s->n_mass_to = layer->n_mass;
}

/* On the host: rows of the batch whose Q the layer has left. */
static int read_mass(struct tsr_executor_session *s, const struct tsri_layer_spec *spec,
                     const struct tsr_model_layer *layer)
{
    for (uint32_t done = 0; done < spec->n_mass; done += TSRI_MASS_STEP) {
        uint32_t n = spec->n_mass - done < TSRI_MASS_STEP ? spec->n_mass - done : TSRI_MASS_STEP;
        struct tsri_mass_spec mass = {.layer = layer->layer,
                                      .batch = spec->batch,
                                      .first = spec->mass_at + done,
                                      .n = n,
                                      .mask_row = spec->mass_first + done};
        const float *weights = tsri_graph_mass(s, &mass);
        if (!weights) return tsri_model_fail(s->x->fail, TSR_EDEVICE, "model: no attention");
        add_mass(s, spec->batch, weights, s->x->header.n_heads * n, layer);
    }
    return 0;
}

static int run_batch(struct tsr_executor_session *s, const struct tsri_row_batch *b,
                     const struct tsr_model_layer *layer)
{
    uint32_t mass_rows = layer->mass ? s->n_mass : 0, mass_begin = s->n_rows - mass_rows;
    struct tsri_layer_spec spec = {.layer = layer->layer, .batch = b};
    if (b->row_first + b->n_rows > mass_begin) {
        spec.mass_first = mass_begin > b->row_first ? mass_begin - b->row_first : 0;
        spec.n_mass = b->n_rows - spec.mass_first;
        spec.mass_at = b->row_first + spec.mass_first - mass_begin;
    }
    if (b->mask_at == TSRI_MASK_NONE) {
        struct tsri_sight sight = sight_of(s);
        put_mask(s, &sight, b);
    }
    int e = tsri_graph_layer(s, &spec);
    return e || s->queue.apart ? e : read_mass(s, &spec, layer);
}

int tsri_ggml_session_layer(struct tsr_executor_session *s, const struct tsr_model_layer *layer)
{
    uint32_t n = 0;
    take_mass(s, layer);
    while (s->batch_at < s->n_batches) {
        const struct tsri_row_batch *b = &s->batches[s->batch_at];
        if (n && s->cut && n + b->n_rows > s->cut) return 1;
        int e = run_batch(s, b, layer);
        if (e) return e;
        n += b->n_rows;
        s->batch_at++;
    }
    s->batch_at = 0;
    return 0;
}

void tsri_ggml_session_cut(struct tsr_executor_session *s, uint32_t n_rows)
{
    s->cut = n_rows;
}

/* Numbers below 2^31, the same bits signed and unsigned. */
static void put_i32(struct tsr_executor_session *s, struct ggml_tensor *to, const uint32_t *from,
                    uint32_t n)
{
    tsri_queue_put(&s->queue, to, from, 0, n * sizeof *from);
}

int tsri_ggml_session_deviation(struct tsr_executor_session *s, const struct tsr_model_deviation *d)
{
    put_i32(s, s->in.numbers, s->slots, s->n_rows);
    for (uint32_t i = 0; i < s->n_batches; i++) {
        int e = tsri_graph_deviation(s, d->layer, &s->batches[i], d->k, d->v);
        if (e) return e;
    }
    return 0;
}

int tsri_ggml_session_narrow(struct tsr_executor_session *s, const uint32_t *keep, uint32_t n)
{
    put_i32(s, s->in.picks, keep, n);
    int e = tsri_graph_narrow(s, n);
    if (e) return e;
    uint32_t mass_begin = s->n_rows - s->n_mass, bias_begin = s->n_rows - s->n_bias_rows;
    s->n_mass = s->n_bias_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->n_mass += keep[i] >= mass_begin;
        s->n_bias_rows += keep[i] >= bias_begin;
        s->slots[i] = s->slots[keep[i]];
        s->positions[i] = s->positions[keep[i]];
        s->groups_of[i] = s->groups_of[keep[i]];
    }
    s->n_rows = n;
    lay_out(s);
    return 0;
}

/* Logits of at most TSRI_LOGITS_STEP rows. */
static int some_logits(struct tsr_executor_session *s, const uint32_t *rows, uint32_t n,
                       float *logits)
{
    uint32_t slots[TSRI_LOGITS_STEP], positions[TSRI_LOGITS_STEP], groups_of[TSRI_LOGITS_STEP];
    uint32_t n_bias_rows = 0;
    struct tsri_sight sight = sight_of(s);
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = s->slots[rows[i]];
        positions[i] = s->positions[rows[i]];
        groups_of[i] = s->groups_of[rows[i]];
        n_bias_rows += rows[i] >= sight.bias_row_first;
    }
    sight.slots = slots;
    sight.groups_of = groups_of;
    sight.bias_row_first = n - n_bias_rows;
    struct tsri_row_batch batch;
    if (tsri_batches_cut(&sight, n, &s->fit, &batch, 1) != 1 || batch.n_rows != n)
        return tsri_model_fail(s->x->fail, TSR_EINVAL, "model: logits of %u rows", n);
    put_mask(s, &sight, &batch);
    put_i32(s, s->in.picks, rows, n);
    put_i32(s, s->in.numbers, positions, n);
    return tsri_graph_logits(s, &batch, logits);
}

int tsri_ggml_session_logits(struct tsr_executor_session *s, const uint32_t *rows, uint32_t n,
                             float *logits)
{
    for (uint32_t done = 0; done < n; done += TSRI_LOGITS_STEP) {
        uint32_t some = n - done < TSRI_LOGITS_STEP ? n - done : TSRI_LOGITS_STEP;
        int e = some_logits(s, rows + done, some, logits + (size_t)done * s->x->header.n_vocab);
        if (e) return e;
    }
    hand_over_mass(s);
    return 0;
}

/* Sessions whose layers are cut are many that take turns: each would keep the work memory of its
 * longest pass. The next pass takes some again, which is little beside its work. */
static void release(struct tsr_executor_session *s)
{
    ggml_backend_buffer_type_t kind = ggml_backend_get_default_buffer_type(s->queue.backend);
    tsri_graph_forget(s);
    for (int i = -1; i < TSRI_SHAPES; i++) {
        ggml_gallocr_t *memory = i < 0 ? &s->memory : &s->shapes[i].memory;
        ggml_gallocr_t fresh = ggml_gallocr_new(kind);
        if (!fresh) return; /* keeps what it has */
        ggml_gallocr_free(*memory);
        *memory = fresh;
        *(i < 0 ? &s->room : &s->shapes[i].room) = (struct tsri_room){0};
    }
}

/* What the pass has written is in place when it has ended: others read it. */
void tsri_ggml_session_end(struct tsr_executor_session *s)
{
    hand_over_mass(s);
    tsri_queue_wait(&s->queue);
    s->n_rows = s->n_mass = s->n_batches = 0;
    /* Rows of a draft come one by one, and keep their graphs. */
    if (s->cut && s->fit.rows_least) release(s);
}
