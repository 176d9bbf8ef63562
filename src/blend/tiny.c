/* tiny.c - the plain executor: a llama-family transformer as C loops in float, with weights made
 * from a seed. It is right by definition and slow; tests of the blend, and of other executors, are
 * measured against it. Each row is computed alone and in a fixed order, so a row's bits depend on
 * nothing but its token, its position and the keys it sees.
 *
 * A session owns its KV memory, [plane][layer][slot][head][element], and the hidden state of the
 * open pass. Nothing is allocated after session_open. */
#include "blend/blend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum tiny_arch { ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3, N_ARCHS };
static const char *const arch_names[N_ARCHS] = {"llama", "qwen2", "qwen3"};

#define NORM_EPS 1e-5f
#define HEAD_DIM_MAX 256u
#define WEIGHTS_MAX ((size_t)1 << 28)

struct tiny_layer {
    float *attn_norm, *q, *k, *v, *out;
    float *q_bias, *k_bias, *v_bias; /* qwen2 */
    float *q_norm, *k_norm;          /* qwen3 */
    float *ffn_norm, *gate, *up, *down;
};

struct tsr_executor {
    enum tiny_arch arch;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_ff, n_vocab, context;
    uint32_t kv_dtype;
    uint64_t seed;
    double theta, dynamic;
    uint32_t trained;
    struct tsr_rope rope;
    float *weights;
    size_t n_weights;
    float *embd, *head, *out_norm;
    struct tiny_layer *layers;
    int (*fail)(int err, const char *text);
};

struct tsr_executor_session {
    struct tsr_executor *x;
    uint32_t n_slots;
    uint8_t *kv;
    size_t row_bytes, plane_bytes; /* of a layer's K or V */
    /* the open pass: */
    uint32_t n_rows, n_bias, n_bias_rows, n_mass_rows;
    uint32_t seen_end; /* no row sees a slot from here on */
    uint32_t cut;      /* rows of a layer at once; 0: all */
    uint32_t row_at;   /* the next row of the layer; its K and V are written */
    struct tsr_model_row *rows;
    struct tsr_range (*sees)[TSR_MODEL_RANGES_MAX];
    float *bias; /* [n_slots] */
    bool has_bias;
    struct tsri_rope_set freq;
    float *hidden; /* [n_slots][n_embd] */
    float *scores; /* [n_slots] */
    float *wide;   /* [K, V][n_slots][row]: the layer that is computed, as float */
    float *normed, *q, *k, *v, *mixed, *gate, *up; /* one row each */
};

/* ---- the description ---- */

static int refuse(const struct tsr_executor *x, int err, const char *what, const char *word)
{
    char text[160];
    snprintf(text, sizeof text, "tiny: %s: %.80s", what, word);
    return x->fail(err, text);
}

static int set_word(struct tsr_executor *x, const char *word)
{
    for (int a = 0; a < N_ARCHS; a++)
        if (strcmp(word, arch_names[a]) == 0) {
            x->arch = (enum tiny_arch)a;
            return 0;
        }
    const struct {
        const char *name;
        uint32_t *value, max;
    } counts[] = {{"layers", &x->n_layers, 256},
                  {"heads", &x->n_heads, 256},
                  {"kv_heads", &x->n_kv_heads, 256},
                  {"head_dim", &x->head_dim, HEAD_DIM_MAX},
                  {"ff", &x->n_ff, 65536},
                  {"vocab", &x->n_vocab, 1u << 20},
                  {"context", &x->context, 1u << 24},
                  {"trained", &x->trained, 1u << 24}};
    const char *equals = strchr(word, '=');
    if (!equals) return refuse(x, TSR_EUNSUP, "unknown architecture", word);
    size_t n = (size_t)(equals - word);
    char *end;
    double value = strtod(equals + 1, &end);
    if (end == equals + 1 || *end || !(value > 0))
        return refuse(x, TSR_EINVAL, "not a positive number", word);
    for (size_t i = 0; i < TSRI_COUNT(counts); i++)
        if (strlen(counts[i].name) == n && strncmp(word, counts[i].name, n) == 0) {
            if (value > counts[i].max || value != floor(value))
                return refuse(x, TSR_ERANGE, "not a whole number in range", word);
            *counts[i].value = (uint32_t)value;
            return 0;
        }
    if (n == 4 && strncmp(word, "seed", n) == 0 && value < 9e15)
        x->seed = (uint64_t)value;
    else if (n == 5 && strncmp(word, "theta", n) == 0)
        x->theta = value;
    else if (n == 7 && strncmp(word, "dynamic", n) == 0)
        x->dynamic = value;
    else
        return refuse(x, TSR_EINVAL, "unknown word", word);
    return 0;
}

static int describe(struct tsr_executor *x, const char *text)
{
    char word[64];
    x->arch = N_ARCHS;
    while (*(text += strspn(text, " ")) != '\0') {
        size_t n = strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
        int e = set_word(x, word);
        if (e) return e;
        text += n;
    }
    if (x->arch == N_ARCHS) return refuse(x, TSR_EUNSUP, "no architecture given", "");
    if (x->n_heads % x->n_kv_heads || x->head_dim % 2)
        return refuse(x, TSR_EINVAL, "heads do not divide evenly, or head_dim is odd", "");
    x->n_embd = x->n_heads * x->head_dim;
    return 0;
}

/* ---- weights ---- */

static uint64_t mix(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Walks over all tensors: without memory it counts, with memory it places and fills them. */
struct maker {
    float *at;
    size_t n;
    uint64_t state;
};

static float *make(struct maker *m, size_t rows, size_t cols, float mean, float spread)
{
    float *p = m->at;
    m->n += rows * cols;
    if (!p) return NULL;
    for (size_t i = 0; i < rows * cols; i++)
        p[i] = mean + spread * ((float)(mix(&m->state) >> 40) * 0x1p-23f - 1.0f);
    m->at += rows * cols;
    return p;
}

static float *make_matrix(struct maker *m, size_t rows, size_t cols, float gain)
{
    return make(m, rows, cols, 0.0f, gain * sqrtf(3.0f / (float)cols));
}

static void make_layer(struct tsr_executor *x, struct maker *m, struct tiny_layer *l)
{
    size_t d = x->n_embd, kv = (size_t)x->n_kv_heads * x->head_dim, ff = x->n_ff;
    l->attn_norm = make(m, 1, d, 1.0f, 0.2f);
    /* Attention of random weights is flat; this gain makes rows choose. */
    l->q = make_matrix(m, d, d, 1.7f);
    l->k = make_matrix(m, kv, d, 1.7f);
    l->v = make_matrix(m, kv, d, 1.0f);
    l->out = make_matrix(m, d, d, 1.0f);
    if (x->arch == ARCH_QWEN2) {
        l->q_bias = make(m, 1, d, 0.0f, 0.5f);
        l->k_bias = make(m, 1, kv, 0.0f, 0.5f);
        l->v_bias = make(m, 1, kv, 0.0f, 0.2f);
    }
    if (x->arch == ARCH_QWEN3) {
        l->q_norm = make(m, 1, x->head_dim, 1.6f, 0.2f);
        l->k_norm = make(m, 1, x->head_dim, 1.6f, 0.2f);
    }
    l->ffn_norm = make(m, 1, d, 1.0f, 0.2f);
    l->gate = make_matrix(m, ff, d, 1.0f);
    l->up = make_matrix(m, ff, d, 1.0f);
    l->down = make_matrix(m, d, ff, 1.0f);
}

static void make_all(struct tsr_executor *x, struct maker *m)
{
    struct tiny_layer counted;
    x->embd = make_matrix(m, x->n_vocab, x->n_embd, 1.0f);
    for (uint32_t l = 0; l < x->n_layers; l++)
        make_layer(x, m, x->layers ? &x->layers[l] : &counted);
    x->out_norm = make(m, 1, x->n_embd, 1.0f, 0.2f);
    x->head = x->arch == ARCH_LLAMA ? x->embd : make_matrix(m, x->n_vocab, x->n_embd, 1.0f);
}

static void tiny_close(struct tsr_executor *x)
{
    tsri_free(x->weights);
    tsri_free(x->layers);
    tsri_free(x);
}

static int tiny_open(struct tsr_executor **out, const struct tsr_model_desc *desc)
{
    struct tsr_executor *x = tsri_alloc(1, sizeof *x);
    if (!x) return TSR_ENOMEM;
    *x = (struct tsr_executor){.n_layers = 3,
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .head_dim = 16,
                               .n_ff = 96,
                               .n_vocab = 128,
                               .context = 4096,
                               .theta = 10000,
                               .seed = 1,
                               .fail = desc->fail,
                               .kv_dtype = desc->kv_dtype};
    struct maker m = {.n = 0};
    int e = describe(x, desc->path);
    if (!e) {
        make_all(x, &m);
        if (m.n > WEIGHTS_MAX) e = refuse(x, TSR_ERANGE, "too many weights", desc->path);
    }
    if (!e) {
        x->n_weights = m.n;
        x->weights = tsri_alloc(m.n, sizeof(float));
        x->layers = tsri_alloc(x->n_layers, sizeof *x->layers);
        if (!x->weights || !x->layers) e = TSR_ENOMEM;
    }
    if (e) {
        tiny_close(x);
        return e;
    }
    m = (struct maker){.at = x->weights, .state = x->seed};
    make_all(x, &m);
    x->rope = (struct tsr_rope){.size = sizeof x->rope,
                                .pairing = x->arch == ARCH_LLAMA ? TSR_ROPE_GPTJ : TSR_ROPE_NEOX,
                                .scaling = x->dynamic > 0 ? TSR_ROPE_DYNAMIC : TSR_ROPE_PLAIN,
                                .dims = x->head_dim,
                                .trained = x->trained ? x->trained : x->context,
                                .theta = x->theta,
                                .factor = x->dynamic};
    *out = x;
    return 0;
}

static int tiny_info(struct tsr_executor *x, struct tsr_model_info *out)
{
    snprintf(out->architecture, sizeof out->architecture, "%s", arch_names[x->arch]);
    snprintf(out->name, sizeof out->name, "tiny-%s-%llu", arch_names[x->arch],
             (unsigned long long)x->seed);
    snprintf(out->device, sizeof out->device, "plain C, 1 thread");
    out->caps = TSR_MODEL_MASS | TSR_MODEL_DEVIATION | TSR_MODEL_BIAS;
    out->n_layers = x->n_layers;
    out->n_heads = x->n_heads;
    out->n_kv_heads = x->n_kv_heads;
    out->head_dim = x->head_dim;
    out->n_embd = x->n_embd;
    out->n_vocab = x->n_vocab;
    out->context = x->context;
    out->kv_dtype = x->kv_dtype;
    out->token_bos = UINT32_MAX;
    out->weight_bytes = x->n_weights * sizeof(float);
    struct tsri_key key =
        tsri_extra_hash((const uint8_t *)x->weights, x->n_weights * sizeof(float));
    memcpy(out->weights, &key, sizeof key);
    out->rope = x->rope;
    return 0;
}

/* ---- sessions ---- */

static void tiny_session_close(struct tsr_executor_session *s)
{
    void *const all[] = {s->kv,     s->rows, s->sees,   s->bias, s->hidden,
                         s->scores, s->wide, s->normed, s};
    for (size_t i = 0; i < TSRI_COUNT(all); i++)
        tsri_free(all[i]);
}

static int tiny_session_open(struct tsr_executor *x, struct tsr_executor_session **out,
                             uint32_t n_slots)
{
    struct tsr_executor_session *s = tsri_alloc(1, sizeof *s);
    if (!s) return TSR_ENOMEM;
    size_t d = x->n_embd, kv = (size_t)x->n_kv_heads * x->head_dim;
    s->x = x;
    s->n_slots = n_slots;
    s->row_bytes = kv * tsri_dtype_bytes(x->kv_dtype);
    s->plane_bytes = s->row_bytes * n_slots;
    s->kv = tsri_alloc(2 * (size_t)x->n_layers, s->plane_bytes);
    s->rows = tsri_alloc(n_slots, sizeof *s->rows);
    s->sees = tsri_alloc(n_slots, sizeof *s->sees);
    s->bias = tsri_alloc(n_slots, sizeof(float));
    s->hidden = tsri_alloc(n_slots, d * sizeof(float));
    s->scores = tsri_alloc(n_slots, sizeof(float));
    s->wide = tsri_alloc(n_slots, 2 * kv * sizeof(float));
    s->normed = tsri_alloc(3 * d + 2 * kv + 2 * (size_t)x->n_ff, sizeof(float));
    if (!s->kv || !s->rows || !s->sees || !s->bias || !s->hidden || !s->scores || !s->wide ||
        !s->normed) {
        tiny_session_close(s);
        return TSR_ENOMEM;
    }
    s->q = s->normed + d;
    s->mixed = s->q + d;
    s->k = s->mixed + d;
    s->v = s->k + kv;
    s->gate = s->v + kv;
    s->up = s->gate + x->n_ff;
    *out = s;
    return 0;
}

static void tiny_session_layout(struct tsr_executor_session *s, struct tsr_kv_layout *out)
{
    const struct tsr_executor *x = s->x;
    size_t es = tsri_dtype_bytes(x->kv_dtype);
    out->memory = TSR_MEMORY_HOST;
    out->n_layers = x->n_layers;
    out->n_planes = 2;
    out->n_slots = s->n_slots;
    for (uint32_t p = 0; p < 2; p++)
        out->planes[p] = (struct tsr_kv_plane){.base = s->kv + p * x->n_layers * s->plane_bytes,
                                               .layer_bytes = x->n_layers * s->plane_bytes,
                                               .layer_stride = s->plane_bytes,
                                               .token_stride = s->row_bytes,
                                               .head_stride = x->head_dim * es,
                                               .element_stride = es,
                                               .dtype = x->kv_dtype,
                                               .n_heads = x->n_kv_heads,
                                               .dim = x->head_dim,
                                               .rope_dims = p == 0 ? x->rope.dims : 0};
}

static uint8_t *kv_row(const struct tsr_executor_session *s, uint32_t plane, uint32_t layer,
                       uint32_t slot)
{
    return s->kv + ((size_t)plane * s->x->n_layers + layer) * s->plane_bytes + slot * s->row_bytes;
}

/* ---- arithmetic ---- */

static float read_float(const uint8_t *row, uint32_t dtype, size_t i)
{
    float f;
    uint16_t h;
    if (dtype == TSR_DTYPE_F32) {
        memcpy(&f, row + 4 * i, 4);
        return f;
    }
    memcpy(&h, row + 2 * i, 2);
    return dtype == TSR_DTYPE_F16 ? tsri_f16_to_f32(h) : tsri_bf16_to_f32(h);
}

static void write_float(uint8_t *row, uint32_t dtype, size_t i, float f)
{
    if (dtype == TSR_DTYPE_F32) {
        memcpy(row + 4 * i, &f, 4);
        return;
    }
    uint16_t h = dtype == TSR_DTYPE_F16 ? tsri_f32_to_f16(f) : tsri_f32_to_bf16(f);
    memcpy(row + 2 * i, &h, 2);
}

static void norm(float *out, const float *in, const float *weight, size_t n)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += in[i] * in[i];
    float scale = 1.0f / sqrtf(sum / (float)n + NORM_EPS);
    for (size_t i = 0; i < n; i++)
        out[i] = in[i] * scale * weight[i];
}

/* Arithmetic on memory of one session alone: the thread sanitizer has nothing to find in it and
 * would make it twenty times slower. */
#define PRIVATE_MATH __attribute__((no_sanitize("thread")))

/* out = w in + bias, w as [rows][cols]. */
PRIVATE_MATH
static void multiply(float *out, const float *w, const float *in, const float *bias, size_t rows,
                     size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        float sum = 0;
        for (size_t c = 0; c < cols; c++)
            sum += w[r * cols + c] * in[c];
        out[r] = bias ? sum + bias[r] : sum;
    }
}

static void turn(const struct tsr_executor_session *s, float *head, uint32_t position)
{
    float table[HEAD_DIM_MAX];
    uint32_t n = s->freq.n_pairs;
    uint32_t step = s->x->rope.pairing == TSR_ROPE_NEOX ? 1 : 2;
    uint32_t apart = s->x->rope.pairing == TSR_ROPE_NEOX ? n : 1;
    tsri_rope_table(&s->freq, position, table);
    for (uint32_t i = 0; i < n; i++) {
        float *a = &head[i * step], *b = a + apart;
        float x = *a, y = *b;
        *a = x * table[i] - y * table[n + i];
        *b = y * table[i] + x * table[n + i];
    }
}

static void heads_norm_turn(const struct tsr_executor_session *s, float *heads, uint32_t n_heads,
                            const float *weight, uint32_t position)
{
    uint32_t dim = s->x->head_dim;
    for (uint32_t h = 0; h < n_heads; h++) {
        if (weight) norm(heads + h * dim, heads + h * dim, weight, dim);
        turn(s, heads + h * dim, position);
    }
}

/* K and V of row i into s->k and s->v; its normed hidden state stays in s->normed. */
static void row_kv(struct tsr_executor_session *s, const struct tiny_layer *l, uint32_t i)
{
    const struct tsr_executor *x = s->x;
    size_t d = x->n_embd, kv = (size_t)x->n_kv_heads * x->head_dim;
    norm(s->normed, s->hidden + i * d, l->attn_norm, d);
    multiply(s->k, l->k, s->normed, l->k_bias, kv, d);
    multiply(s->v, l->v, s->normed, l->v_bias, kv, d);
    heads_norm_turn(s, s->k, x->n_kv_heads, l->k_norm, s->rows[i].position);
}

PRIVATE_MATH
static float *wide_row(const struct tsr_executor_session *s, uint32_t plane, uint32_t slot)
{
    size_t kv = (size_t)s->x->n_kv_heads * s->x->head_dim;
    return s->wide + (plane * (size_t)s->n_slots + slot) * kv;
}

/* The layer's rows up to the last one that is seen, as the memory holds them. */
static void widen(struct tsr_executor_session *s, uint32_t layer)
{
    size_t kv = (size_t)s->x->n_kv_heads * s->x->head_dim;
    for (uint32_t plane = 0; plane < 2; plane++)
        for (uint32_t t = 0; t < s->seen_end; t++)
            for (size_t e = 0; e < kv; e++)
                wide_row(s, plane, t)[e] =
                    read_float(kv_row(s, plane, layer, t), s->x->kv_dtype, e);
}

/* Softmax weights of one head over the slots that the row sees. */
PRIVATE_MATH
static void attend_scores(const struct tsr_executor_session *s, uint32_t i, uint32_t head)
{
    const struct tsr_executor *x = s->x;
    uint32_t dim = x->head_dim, kv_head = head / (x->n_heads / x->n_kv_heads);
    bool biased = s->has_bias && i >= s->n_rows - s->n_bias_rows;
    float scale = 1.0f / sqrtf((float)dim), top = -INFINITY, sum = 0;
    for (uint32_t r = 0; r < TSR_MODEL_RANGES_MAX; r++) {
        const struct tsr_range *to = &s->sees[i][r];
        for (uint32_t t = to->offset; t < to->offset + to->n_tokens; t++) {
            const float *k = wide_row(s, 0, t) + kv_head * dim;
            float dot = 0;
            for (uint32_t e = 0; e < dim; e++)
                dot += s->q[head * dim + e] * k[e];
            dot *= scale;
            if (biased && t < s->n_bias) dot += s->bias[t];
            s->scores[t] = dot;
            if (dot > top) top = dot;
        }
    }
    for (uint32_t r = 0; r < TSR_MODEL_RANGES_MAX; r++) {
        const struct tsr_range *to = &s->sees[i][r];
        for (uint32_t t = to->offset; t < to->offset + to->n_tokens; t++)
            sum += s->scores[t] = expf(s->scores[t] - top);
    }
    for (uint32_t r = 0; r < TSR_MODEL_RANGES_MAX; r++) {
        const struct tsr_range *to = &s->sees[i][r];
        for (uint32_t t = to->offset; t < to->offset + to->n_tokens; t++)
            s->scores[t] /= sum;
    }
}

PRIVATE_MATH
static void attend(struct tsr_executor_session *s, const struct tsr_model_layer *step, uint32_t i)
{
    const struct tsr_executor *x = s->x;
    uint32_t dim = x->head_dim;
    bool mass = step->mass && i >= s->n_rows - s->n_mass_rows;
    for (uint32_t head = 0; head < x->n_heads; head++) {
        uint32_t kv_head = head / (x->n_heads / x->n_kv_heads);
        attend_scores(s, i, head);
        float *out = s->mixed + head * dim;
        memset(out, 0, dim * sizeof(float));
        for (uint32_t r = 0; r < TSR_MODEL_RANGES_MAX; r++) {
            const struct tsr_range *to = &s->sees[i][r];
            for (uint32_t t = to->offset; t < to->offset + to->n_tokens; t++) {
                const float *v = wide_row(s, 1, t) + kv_head * dim;
                for (uint32_t e = 0; e < dim; e++)
                    out[e] += s->scores[t] * v[e];
                if (mass && t < step->n_mass) step->mass[t] += s->scores[t] / (float)x->n_heads;
            }
        }
    }
}

/* ---- passes ---- */

/* The group's ranges, the last one up to the row's own slot; those it does not have are empty. */
static void see(struct tsr_executor_session *s, uint32_t row, const struct tsr_model_group *group)
{
    for (uint32_t r = 0; r < TSR_MODEL_RANGES_MAX; r++) {
        struct tsr_range range = {0, 0};
        if (r < group->n_ranges) range = group->sees[r];
        if (r + 1 == group->n_ranges) range.n_tokens = s->rows[row].slot + 1 - range.offset;
        s->sees[row][r] = range;
        if (range.offset + range.n_tokens > s->seen_end)
            s->seen_end = range.offset + range.n_tokens;
    }
}

static int tiny_begin(struct tsr_executor_session *s, const struct tsr_model_pass *pass)
{
    const struct tsr_executor *x = s->x;
    s->n_rows = pass->n_rows;
    s->row_at = 0;
    s->n_bias_rows = pass->n_bias_rows;
    s->n_mass_rows = pass->n_mass_rows;
    s->has_bias = pass->bias != NULL;
    s->n_bias = tsri_min_u32(pass->n_bias, s->n_slots);
    if (pass->bias) memcpy(s->bias, pass->bias, s->n_bias * sizeof(float));
    tsri_rope_set_init(&s->freq, &x->rope, pass->freq_set);
    memcpy(s->rows, pass->rows, pass->n_rows * sizeof *s->rows);
    uint32_t row = 0;
    s->seen_end = 0;
    for (uint32_t g = 0; g < pass->n_groups; g++)
        for (uint32_t i = 0; i < pass->groups[g].n_rows; i++, row++)
            see(s, row, &pass->groups[g]);
    for (uint32_t i = 0; i < s->n_rows; i++)
        memcpy(s->hidden + (size_t)i * x->n_embd, x->embd + (size_t)s->rows[i].token * x->n_embd,
               x->n_embd * sizeof(float));
    return 0;
}

static void write_kv(struct tsr_executor_session *s, uint32_t layer, uint32_t slot)
{
    const struct tsr_executor *x = s->x;
    uint8_t *k = kv_row(s, 0, layer, slot), *v = kv_row(s, 1, layer, slot);
    for (size_t e = 0; e < (size_t)x->n_kv_heads * x->head_dim; e++) {
        write_float(k, x->kv_dtype, e, s->k[e]);
        write_float(v, x->kv_dtype, e, s->v[e]);
    }
}

static void feed_forward(struct tsr_executor_session *s, const struct tiny_layer *l, float *hidden)
{
    const struct tsr_executor *x = s->x;
    norm(s->normed, hidden, l->ffn_norm, x->n_embd);
    multiply(s->gate, l->gate, s->normed, NULL, x->n_ff, x->n_embd);
    multiply(s->up, l->up, s->normed, NULL, x->n_ff, x->n_embd);
    for (uint32_t i = 0; i < x->n_ff; i++)
        s->gate[i] = s->gate[i] / (1.0f + expf(-s->gate[i])) * s->up[i];
    multiply(s->mixed, l->down, s->gate, NULL, x->n_embd, x->n_ff);
    for (uint32_t i = 0; i < x->n_embd; i++)
        hidden[i] += s->mixed[i];
}

static int tiny_layer(struct tsr_executor_session *s, const struct tsr_model_layer *step)
{
    const struct tsr_executor *x = s->x;
    const struct tiny_layer *l = &x->layers[step->layer];
    for (uint32_t i = 0; i < s->n_rows && s->row_at == 0; i++) {
        row_kv(s, l, i);
        write_kv(s, step->layer, s->rows[i].slot);
    }
    uint32_t end = s->cut && s->row_at + s->cut < s->n_rows ? s->row_at + s->cut : s->n_rows;
    widen(s, step->layer);
    for (uint32_t i = s->row_at; i < end; i++) {
        float *hidden = s->hidden + (size_t)i * x->n_embd;
        norm(s->normed, hidden, l->attn_norm, x->n_embd);
        multiply(s->q, l->q, s->normed, l->q_bias, x->n_embd, x->n_embd);
        heads_norm_turn(s, s->q, x->n_heads, l->q_norm, s->rows[i].position);
        attend(s, step, i);
        multiply(s->normed, l->out, s->mixed, NULL, x->n_embd, x->n_embd);
        for (uint32_t e = 0; e < x->n_embd; e++)
            hidden[e] += s->normed[e];
        feed_forward(s, l, hidden);
    }
    s->row_at = end < s->n_rows ? end : 0;
    return s->row_at > 0;
}

static void tiny_cut(struct tsr_executor_session *s, uint32_t n_rows)
{
    s->cut = n_rows;
}

/* Compared as the memory would hold them, so that what is the same differs by nothing. */
static float distance(const struct tsr_executor *x, const uint8_t *old, const float *fresh)
{
    float sum = 0;
    for (size_t e = 0; e < (size_t)x->n_kv_heads * x->head_dim; e++) {
        uint8_t rounded[4];
        write_float(rounded, x->kv_dtype, 0, fresh[e]);
        float d = read_float(rounded, x->kv_dtype, 0) - read_float(old, x->kv_dtype, e);
        sum += d * d;
    }
    return sum;
}

static int tiny_deviation(struct tsr_executor_session *s, const struct tsr_model_deviation *d)
{
    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint32_t slot = s->rows[i].slot;
        row_kv(s, &s->x->layers[d->layer], i);
        if (d->k) d->k[i] = distance(s->x, kv_row(s, 0, d->layer, slot), s->k);
        if (d->v) d->v[i] = distance(s->x, kv_row(s, 1, d->layer, slot), s->v);
    }
    return 0;
}

static int tiny_narrow(struct tsr_executor_session *s, const uint32_t *keep, uint32_t n)
{
    size_t d = s->x->n_embd;
    uint32_t bias_from = s->n_rows - s->n_bias_rows, mass_from = s->n_rows - s->n_mass_rows;
    s->n_bias_rows = s->n_mass_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->n_bias_rows += keep[i] >= bias_from;
        s->n_mass_rows += keep[i] >= mass_from;
        s->rows[i] = s->rows[keep[i]];
        memcpy(s->sees[i], s->sees[keep[i]], sizeof s->sees[0]);
        memmove(s->hidden + i * d, s->hidden + keep[i] * d, d * sizeof(float));
    }
    s->n_rows = n;
    return 0;
}

static int tiny_logits(struct tsr_executor_session *s, const uint32_t *rows, uint32_t n,
                       float *logits)
{
    const struct tsr_executor *x = s->x;
    for (uint32_t i = 0; i < n; i++) {
        norm(s->normed, s->hidden + (size_t)rows[i] * x->n_embd, x->out_norm, x->n_embd);
        multiply(logits + (size_t)i * x->n_vocab, x->head, s->normed, NULL, x->n_vocab, x->n_embd);
    }
    return 0;
}

static void tiny_end(struct tsr_executor_session *s)
{
    s->n_rows = 0;
}

const struct tsr_executor_ops *tsr_executor_tiny(void)
{
    static const struct tsr_executor_ops ops = {.abi = TSR_EXECUTOR_ABI,
                                                .name = "tiny",
                                                .open = tiny_open,
                                                .close = tiny_close,
                                                .info = tiny_info,
                                                .session_open = tiny_session_open,
                                                .session_close = tiny_session_close,
                                                .session_layout = tiny_session_layout,
                                                .begin = tiny_begin,
                                                .layer = tiny_layer,
                                                .deviation = tiny_deviation,
                                                .narrow = tiny_narrow,
                                                .logits = tiny_logits,
                                                .end = tiny_end,
                                                .cut = tiny_cut};
    return &ops;
}
