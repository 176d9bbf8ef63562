/* gguf.c - what a GGUF file says about its model, checked before anything is loaded. ggml parses
 * the file; here every number is held against the others: shapes of tensors against the sizes in
 * the header, ends of tensors against the end of the file. One table names the tensors of a layer
 * and which architecture has them, so that an architecture is a row and not a function. Whatever a
 * file has beyond that (experts, sliding windows, other attention) is refused by its name: a model
 * that is run without one of its parts gives wrong answers silently.
 *
 * Keys and defaults are those of llama.cpp (MIT), which defines what such files mean. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- architectures ---- */

enum { LLAMA = 1, QWEN2 = 2, QWEN3 = 4, ALL = LLAMA | QWEN2 | QWEN3 };

struct arch {
    const char *name;
    uint32_t bit;
    int turn; /* how rotary pairs lie */
};

static const struct arch archs[] = {
    {"llama", LLAMA, GGML_ROPE_TYPE_NORMAL},
    {"qwen2", QWEN2, GGML_ROPE_TYPE_NEOX},
    {"qwen3", QWEN3, GGML_ROPE_TYPE_NEOX},
};

/* A dimension of a tensor, by what it must be equal to. */
enum dim { ONE, EMBD, HEADS, KV, HEAD, FF, VOCAB, PAIRS, N_DIMS };

struct tensor_row {
    const char *name;
    uint8_t ne0, ne1;          /* enum dim */
    uint8_t required, allowed; /* by architecture */
};

/* clang-format off */
static const struct tensor_row layer_rows[TSRI_LAYER_TENSORS] = {
    [TSRI_ATTN_NORM]   = {"attn_norm.weight",   EMBD,  ONE,   ALL,   ALL},
    [TSRI_ATTN_Q]      = {"attn_q.weight",      EMBD,  HEADS, ALL,   ALL},
    [TSRI_ATTN_K]      = {"attn_k.weight",      EMBD,  KV,    ALL,   ALL},
    [TSRI_ATTN_V]      = {"attn_v.weight",      EMBD,  KV,    ALL,   ALL},
    [TSRI_ATTN_Q_BIAS] = {"attn_q.bias",        HEADS, ONE,   QWEN2, ALL},
    [TSRI_ATTN_K_BIAS] = {"attn_k.bias",        KV,    ONE,   QWEN2, ALL},
    [TSRI_ATTN_V_BIAS] = {"attn_v.bias",        KV,    ONE,   QWEN2, ALL},
    [TSRI_ATTN_Q_NORM] = {"attn_q_norm.weight", HEAD,  ONE,   QWEN3, QWEN3},
    [TSRI_ATTN_K_NORM] = {"attn_k_norm.weight", HEAD,  ONE,   QWEN3, QWEN3},
    [TSRI_ATTN_OUT]    = {"attn_output.weight", HEADS, EMBD,  ALL,   ALL},
    [TSRI_FFN_NORM]    = {"ffn_norm.weight",    EMBD,  ONE,   ALL,   ALL},
    [TSRI_FFN_GATE]    = {"ffn_gate.weight",    EMBD,  FF,    ALL,   ALL},
    [TSRI_FFN_UP]      = {"ffn_up.weight",      EMBD,  FF,    ALL,   ALL},
    [TSRI_FFN_DOWN]    = {"ffn_down.weight",    FF,    EMBD,  ALL,   ALL},
};
static const struct tensor_row model_rows[TSRI_MODEL_TENSORS] = {
    [TSRI_TOKEN_EMBD]  = {"token_embd.weight",         EMBD,  VOCAB, ALL, ALL},
    [TSRI_OUTPUT_NORM] = {"output_norm.weight",        EMBD,  ONE,   ALL, ALL},
    [TSRI_OUTPUT]      = {"output.weight",             EMBD,  VOCAB, 0,   ALL},
    [TSRI_ROPE_FREQS]  = {"rope_freqs.weight",         PAIRS, ONE,   0,   LLAMA},
    [TSRI_ROPE_SHORT]  = {"rope_factors_short.weight", PAIRS, ONE,   0,   LLAMA},
    [TSRI_ROPE_LONG]   = {"rope_factors_long.weight",  PAIRS, ONE,   0,   LLAMA},
};

/* Keys that change how a model computes, and what to call that. A value of 0, false or "" is as if
 * the key were not there. */
static const struct {
    const char *key, *what;
} refused[] = {
    {"expert_count",               "experts (a mixture-of-experts model)"},
    {"attention.sliding_window",   "a sliding window"},
    {"rope.dimension_sections",    "M-RoPE"},
    {"attention.max_alibi_bias",   "ALiBi"},
    {"attention.clamp_kqv",        "clamped attention"},
    {"attention.key_length_mla",   "latent attention (MLA)"},
    {"attention.kv_lora_rank",     "latent attention (MLA)"},
    {"ssm.state_size",             "state-space layers (a hybrid model)"},
    {"full_attention_interval",    "layers without attention (a hybrid model)"},
    {"attn_logit_softcapping",     "soft-capped attention"},
    {"final_logit_softcapping",    "soft-capped logits"},
    {"logit_scale",                "scaled logits"},
    {"embedding_scale",            "scaled embeddings"},
    {"residual_scale",             "scaled residuals"},
    {"attention.temperature_length", "attention temperature"},
    {"nextn_predict_layers",       "layers that predict extra tokens"},
};
/* clang-format on */

/* ---- reading ---- */

struct gguf_reader {
    struct tsri_header *h;
    const struct arch *arch;
    const struct gguf_context *gguf;
    const struct ggml_context *tensors;
    const uint8_t *data;
    size_t bytes;
    tsri_fail_fn fail;
};

/* The key `architecture.name`, or -1. */
static int64_t find(const struct gguf_reader *r, const char *name)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", r->arch->name, name);
    return gguf_find_key(r->gguf, key);
}

/* Any number as a double; false when the key holds something else. */
static bool number(const struct gguf_context *g, int64_t id, double *out)
{
    switch (gguf_get_kv_type(g, id)) {
    case GGUF_TYPE_UINT8:
        *out = gguf_get_val_u8(g, id);
        return true;
    case GGUF_TYPE_INT8:
        *out = gguf_get_val_i8(g, id);
        return true;
    case GGUF_TYPE_UINT16:
        *out = gguf_get_val_u16(g, id);
        return true;
    case GGUF_TYPE_INT16:
        *out = gguf_get_val_i16(g, id);
        return true;
    case GGUF_TYPE_UINT32:
        *out = gguf_get_val_u32(g, id);
        return true;
    case GGUF_TYPE_INT32:
        *out = gguf_get_val_i32(g, id);
        return true;
    case GGUF_TYPE_UINT64:
        *out = (double)gguf_get_val_u64(g, id);
        return true;
    case GGUF_TYPE_INT64:
        *out = (double)gguf_get_val_i64(g, id);
        return true;
    case GGUF_TYPE_FLOAT32:
        *out = (double)gguf_get_val_f32(g, id);
        return true;
    case GGUF_TYPE_FLOAT64:
        *out = gguf_get_val_f64(g, id);
        return true;
    case GGUF_TYPE_BOOL:
        *out = gguf_get_val_bool(g, id);
        return true;
    default:
        return false;
    }
}

/* A whole number in 1..max; one that is missing is *out when that is not 0. */
static int count(const struct gguf_reader *r, const char *name, uint32_t max, uint32_t *out)
{
    int64_t id = find(r, name);
    double value = *out;
    if (id >= 0 && !number(r->gguf, id, &value))
        return tsri_model_fail(r->fail, TSR_EUNSUP, "model: %s.%s is a %s, not a number",
                               r->arch->name, name, gguf_type_name(gguf_get_kv_type(r->gguf, id)));
    if (id < 0 && *out == 0)
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: %s.%s is missing", r->arch->name,
                               name);
    if (!(value >= 1) || value > max || value != floor(value))
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: %s.%s is %g, not in 1..%u",
                               r->arch->name, name, value, max);
    *out = (uint32_t)value;
    return 0;
}

/* A finite number; one that is missing leaves *out. */
static int real(const struct gguf_reader *r, const char *name, double *out)
{
    int64_t id = find(r, name);
    if (id < 0) return 0;
    if (!number(r->gguf, id, out) || !isfinite(*out))
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: %s.%s is not a number", r->arch->name,
                               name);
    return 0;
}

static const char *text(const struct gguf_context *g, int64_t id)
{
    return id >= 0 && gguf_get_kv_type(g, id) == GGUF_TYPE_STRING ? gguf_get_val_str(g, id) : NULL;
}

/* ---- architecture and sizes ---- */

static int read_arch(struct gguf_reader *r)
{
    const char *name = text(r->gguf, gguf_find_key(r->gguf, "general.architecture"));
    if (!name)
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: general.architecture is missing");
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strcmp(archs[i].name, name) == 0) r->arch = &archs[i];
    if (!r->arch)
        return tsri_model_fail(
            r->fail, TSR_EUNSUP,
            "model: architecture '%.40s' is not supported; llama, qwen2 and qwen3 are", name);
    snprintf(r->h->architecture, sizeof r->h->architecture, "%s", name);
    const char *title = text(r->gguf, gguf_find_key(r->gguf, "general.name"));
    snprintf(r->h->name, sizeof r->h->name, "%s", title ? title : name);
    return 0;
}

static int refuse_features(const struct gguf_reader *r)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        int64_t id = find(r, refused[i].key);
        double value = 1;
        if (id < 0 || (number(r->gguf, id, &value) && value == 0)) continue;
        return tsri_model_fail(r->fail, TSR_EUNSUP, "model: has %s (%s.%s), which is not supported",
                               refused[i].what, r->arch->name, refused[i].key);
    }
    double causal = 1;
    int e = real(r, "attention.causal", &causal);
    if (e) return e;
    if (causal == 0)
        return tsri_model_fail(
            r->fail, TSR_EUNSUP,
            "model: attends to later tokens (%s.attention.causal is false), which is not supported",
            r->arch->name);
    return 0;
}

static int read_head_dim(struct gguf_reader *r)
{
    struct tsri_header *h = r->h;
    uint32_t v_dim, turned;
    h->head_dim = h->n_embd % h->n_heads ? 0 : h->n_embd / h->n_heads;
    int e = count(r, "attention.key_length", 1024, &h->head_dim);
    v_dim = turned = h->head_dim;
    if (!e) e = count(r, "attention.value_length", 1024, &v_dim);
    if (!e) e = count(r, "rope.dimension_count", 1024, &turned);
    if (e) return e;
    if (v_dim != h->head_dim)
        return tsri_model_fail(r->fail, TSR_EUNSUP,
                               "model: heads with %u elements of K and %u of V are not supported",
                               h->head_dim, v_dim);
    if (turned != h->head_dim)
        return tsri_model_fail(r->fail, TSR_EUNSUP,
                               "model: rotating %u of %u elements of a head is not supported",
                               turned, h->head_dim);
    if (h->head_dim % 2 || h->head_dim > 512)
        return tsri_model_fail(r->fail, TSR_EUNSUP, "model: heads of %u elements are not supported",
                               h->head_dim);
    return 0;
}

static int read_sizes(struct gguf_reader *r)
{
    struct tsri_header *h = r->h;
    int64_t embd = gguf_find_tensor(r->gguf, model_rows[TSRI_TOKEN_EMBD].name);
    if (embd < 0)
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: tensor %s is missing",
                               model_rows[TSRI_TOKEN_EMBD].name);
    const struct ggml_tensor *t = ggml_get_tensor((struct ggml_context *)(uintptr_t)r->tensors,
                                                  model_rows[TSRI_TOKEN_EMBD].name);
    if (!t || t->ne[1] < 1 || t->ne[1] > TSRI_VOCAB_MAX)
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: a vocabulary of %lld tokens",
                               t ? (long long)t->ne[1] : 0);
    h->n_vocab = (uint32_t)t->ne[1];
    int e = count(r, "block_count", TSRI_LAYERS_MAX, &h->n_layers);
    if (!e) e = count(r, "embedding_length", 1 << 20, &h->n_embd);
    if (!e) e = count(r, "feed_forward_length", 1 << 22, &h->n_ff);
    if (!e) e = count(r, "context_length", TSRI_CONTEXT_MAX, &h->context);
    if (!e) e = count(r, "attention.head_count", 1024, &h->n_heads);
    h->n_kv_heads = h->n_heads;
    if (!e) e = count(r, "attention.head_count_kv", 1024, &h->n_kv_heads);
    if (!e) e = read_head_dim(r);
    if (e) return e;
    if (h->n_heads % h->n_kv_heads)
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: %u heads over %u heads of KV",
                               h->n_heads, h->n_kv_heads);
    double eps = 0, scale = 0;
    e = real(r, "attention.layer_norm_rms_epsilon", &eps);
    if (!e) e = real(r, "attention.scale", &scale);
    if (e) return e;
    if (!(eps > 0) || eps > 1)
        return tsri_model_fail(r->fail, TSR_ECORRUPT,
                               "model: %s.attention.layer_norm_rms_epsilon is %g", r->arch->name,
                               eps);
    h->norm_eps = (float)eps;
    h->attention_scale = scale > 0 ? (float)scale : 1.0f / sqrtf((float)h->head_dim);
    return 0;
}

/* ---- tensors ---- */

static int64_t dim_of(const struct tsri_header *h, uint8_t dim)
{
    const int64_t sizes[N_DIMS] = {
        [ONE] = 1,
        [EMBD] = h->n_embd,
        [HEADS] = (int64_t)h->n_heads * h->head_dim,
        [KV] = (int64_t)h->n_kv_heads * h->head_dim,
        [HEAD] = h->head_dim,
        [FF] = h->n_ff,
        [VOCAB] = h->n_vocab,
        [PAIRS] = h->head_dim / 2,
    };
    return sizes[dim];
}

/* Shape, type and place of one tensor; *id is its index in the file, -1 when it may be absent. */
static int check_tensor(const struct gguf_reader *r, const struct tensor_row *row, const char *name,
                        int64_t *id)
{
    *id = gguf_find_tensor(r->gguf, name);
    if (*id < 0) {
        if (!(row->required & r->arch->bit)) return 0;
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: tensor %s is missing", name);
    }
    if (!(row->allowed & r->arch->bit))
        return tsri_model_fail(r->fail, TSR_EUNSUP,
                               "model: tensor %s is not supported in a %s model", name,
                               r->arch->name);
    const struct ggml_tensor *t =
        ggml_get_tensor((struct ggml_context *)(uintptr_t)r->tensors, name);
    int64_t ne0 = dim_of(r->h, row->ne0), ne1 = dim_of(r->h, row->ne1);
    if (!t || t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != 1 || t->ne[3] != 1)
        return tsri_model_fail(r->fail, TSR_ECORRUPT,
                               "model: tensor %s is %lld x %lld, not %lld x %lld", name,
                               t ? (long long)t->ne[0] : 0, t ? (long long)t->ne[1] : 0,
                               (long long)ne0, (long long)ne1);
    if (row->ne1 == ONE && t->type != GGML_TYPE_F32)
        return tsri_model_fail(r->fail, TSR_EUNSUP, "model: tensor %s is %s, not f32", name,
                               ggml_type_name(t->type));
    size_t first = gguf_get_data_offset(r->gguf), offset = gguf_get_tensor_offset(r->gguf, *id);
    size_t bytes = ggml_nbytes(t);
    if (first > r->bytes || offset > r->bytes - first || bytes > r->bytes - first - offset)
        return tsri_model_fail(r->fail, TSR_ECORRUPT,
                               "model: the file ends within tensor %s; is it truncated?", name);
    return 0;
}

/* Every tensor of the file must be one that the graphs use. */
static int refuse_tensors(const struct gguf_reader *r, int64_t n_known)
{
    int64_t n = gguf_get_n_tensors(r->gguf);
    if (n == n_known) return 0;
    for (int64_t i = 0; i < n; i++) {
        const char *name = gguf_get_tensor_name(r->gguf, i);
        bool known = false;
        for (int t = 0; t < TSRI_MODEL_TENSORS; t++)
            known |= r->h->model_tensors[t] == i;
        for (uint32_t l = 0; l < r->h->n_layers && !known; l++)
            for (int t = 0; t < TSRI_LAYER_TENSORS; t++)
                known |= r->h->layer_tensors[l][t] == i;
        if (!known)
            return tsri_model_fail(r->fail, TSR_EUNSUP,
                                   "model: tensor %.60s is not supported in a %s model", name,
                                   r->arch->name);
    }
    return 0;
}

static int read_tensors(struct gguf_reader *r)
{
    struct tsri_header *h = r->h;
    int64_t n_known = 0;
    h->layer_tensors = calloc(h->n_layers, sizeof *h->layer_tensors);
    if (!h->layer_tensors) return tsri_model_fail(r->fail, TSR_ENOMEM, "model: out of memory");
    for (int t = 0; t < TSRI_MODEL_TENSORS; t++) {
        int e = check_tensor(r, &model_rows[t], model_rows[t].name, &h->model_tensors[t]);
        if (e) return e;
        n_known += h->model_tensors[t] >= 0;
    }
    for (uint32_t l = 0; l < h->n_layers; l++)
        for (int t = 0; t < TSRI_LAYER_TENSORS; t++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s", l, layer_rows[t].name);
            int e = check_tensor(r, &layer_rows[t], name, &h->layer_tensors[l][t]);
            if (e) return e;
            n_known += h->layer_tensors[l][t] >= 0;
        }
    return refuse_tensors(r, n_known);
}

/* ---- RoPE ---- */

/* Factors of a tensor as doubles, and that they are positive. */
static int read_factors(const struct gguf_reader *r, int which, double *out)
{
    const uint8_t *at = r->data + gguf_get_data_offset(r->gguf) +
                        gguf_get_tensor_offset(r->gguf, r->h->model_tensors[which]);
    for (uint32_t i = 0; i < r->h->head_dim / 2; i++) {
        float f;
        memcpy(&f, at + i * sizeof f, sizeof f);
        if (!(f > 0) || !isfinite(f))
            return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: factor %u of %s is %g", i,
                                   model_rows[which].name, (double)f);
        out[i] = (double)f;
    }
    return 0;
}

/* Files hold the factors of llama3 scaling, not the numbers that made them. In tsr_rope that is
 * LONGROPE with the same factors for short and long prompts and no attention factor. LongRoPE
 * itself has two sets, by the length of a prompt; the long one is used for all, as llama.cpp does
 * when it is given all of the model's context: KV of short and long prompts can then be exchanged.
 */
static int describe_factors(struct gguf_reader *r, int tensor)
{
    struct tsri_header *h = r->h;
    uint32_t n = h->head_dim / 2;
    h->factors = calloc(n, sizeof *h->factors);
    if (!h->factors) return tsri_model_fail(r->fail, TSR_ENOMEM, "model: out of memory");
    int e = read_factors(r, tensor, h->factors);
    if (e) return e;
    h->rope.scaling = TSR_ROPE_LONGROPE;
    h->rope.factor = 1;
    h->rope.trained = h->context < 2 ? 2 : h->context;
    h->rope.attention_factor = (double)h->turn.attn_factor;
    h->rope.n_factors = n;
    h->rope.short_factors = h->rope.long_factors = h->factors;
    return 0;
}

static float yarn_mscale(float factor, float mscale)
{
    return factor <= 1 ? 1 : 0.1f * mscale * logf(factor) + 1;
}

/* As llama.cpp reads them: ggml_rope_ext multiplies cos and sin by 1 + 0.1 log(factor) itself,
 * which the attention factor takes back where a model has its own. */
static int read_yarn(struct gguf_reader *r, double factor)
{
    struct tsri_ggml_rope *t = &r->h->turn;
    struct tsr_rope *rope = &r->h->rope;
    double ext = 1, log_mul = 0, fast = 32, slow = 1, attn = (double)t->attn_factor;
    int e = real(r, "rope.scaling.yarn_ext_factor", &ext);
    if (!e) e = real(r, "rope.scaling.yarn_log_multiplier", &log_mul);
    if (!e) e = real(r, "rope.scaling.yarn_beta_fast", &fast);
    if (!e) e = real(r, "rope.scaling.yarn_beta_slow", &slow);
    if (e) return e;
    if (ext != 1 || !(fast > slow) || !(slow > 0) || log_mul < 0)
        return tsri_model_fail(
            r->fail, TSR_EUNSUP,
            "model: YaRN with extrapolation %g, betas %g and %g, multiplier %g is not supported",
            ext, fast, slow, log_mul);
    float scale = log_mul > 0 ? 1.0f : yarn_mscale((float)factor, 1.0f);
    if (log_mul > 0)
        scale = yarn_mscale((float)factor, 1.0f) / yarn_mscale((float)factor, (float)log_mul);
    t->ext_factor = 1;
    t->beta_fast = (float)fast;
    t->beta_slow = (float)slow;
    t->attn_factor = scale / (1.0f + 0.1f * logf((float)factor)) * (float)attn;
    rope->scaling = TSR_ROPE_YARN;
    rope->beta_fast = fast;
    rope->beta_slow = slow;
    rope->attention_factor = (double)scale * attn;
    return 0;
}

static int read_rope(struct gguf_reader *r)
{
    struct tsri_header *h = r->h;
    double base = 10000, factor = 0, attn = 1;
    uint32_t trained = h->context;
    int e = real(r, "rope.freq_base", &base);
    if (!e) e = real(r, "rope.scale_linear", &factor);
    if (!e) e = real(r, "rope.scaling.factor", &factor);
    if (!e) e = real(r, "rope.scaling.attn_factor", &attn);
    if (!e) e = count(r, "rope.scaling.original_context_length", TSRI_CONTEXT_MAX, &trained);
    if (e) return e;
    int64_t id = find(r, "rope.scaling.type");
    const char *kind = id < 0 ? "linear" : text(r->gguf, id);
    if (!(base > 1) || base > 1e12 || factor < 0 || factor > 1e6 || !(attn > 0) || !kind)
        return tsri_model_fail(r->fail, TSR_ECORRUPT,
                               "model: RoPE base %g, factor %g, attention factor %g", base, factor,
                               attn);
    bool stretched = factor != 0 && factor != 1 && strcmp(kind, "none") != 0;
    h->turn = (struct tsri_ggml_rope){.mode = r->arch->turn,
                                      .n_dims = (int)h->head_dim,
                                      .n_ctx_orig = (int)trained,
                                      .freq_base = (float)base,
                                      .freq_scale = stretched ? (float)(1 / factor) : 1.0f,
                                      .attn_factor = (float)attn,
                                      .beta_fast = 32,
                                      .beta_slow = 1};
    h->rope = (struct tsr_rope){.size = sizeof h->rope,
                                .pairing = r->arch->turn == GGML_ROPE_TYPE_NEOX ? TSR_ROPE_NEOX
                                                                                : TSR_ROPE_GPTJ,
                                .scaling = stretched ? TSR_ROPE_LINEAR : TSR_ROPE_PLAIN,
                                .dims = h->head_dim,
                                .trained = trained,
                                .theta = (double)(float)base,
                                .factor = stretched ? factor : 0};
    const int64_t *t = h->model_tensors;
    bool factors = t[TSRI_ROPE_FREQS] >= 0 || t[TSRI_ROPE_SHORT] >= 0 || t[TSRI_ROPE_LONG] >= 0;
    bool yarn = strcmp(kind, "yarn") == 0, longrope = strcmp(kind, "longrope") == 0;
    if (!yarn && !longrope && strcmp(kind, "linear") != 0 && strcmp(kind, "none") != 0)
        return tsri_model_fail(r->fail, TSR_EUNSUP, "model: RoPE scaling '%.30s' is not supported",
                               kind);
    if (factors && (stretched || yarn))
        return tsri_model_fail(r->fail, TSR_EUNSUP,
                               "model: RoPE with factors and %s scaling is not supported", kind);
    if (yarn) return factor > 1 ? read_yarn(r, factor) : 0;
    if (t[TSRI_ROPE_FREQS] >= 0) return describe_factors(r, TSRI_ROPE_FREQS);
    if (t[TSRI_ROPE_SHORT] >= 0 && t[TSRI_ROPE_LONG] >= 0)
        return describe_factors(r, TSRI_ROPE_LONG);
    if (factors || longrope)
        return tsri_model_fail(r->fail, TSR_ECORRUPT, "model: longrope without its factors");
    return 0;
}

int tsri_header_init(struct tsri_header *h, const struct gguf_context *gguf,
                     const struct ggml_context *tensors, const void *data, size_t bytes,
                     tsri_fail_fn fail)
{
    memset(h, 0, sizeof *h);
    struct gguf_reader r = {
        .h = h, .gguf = gguf, .tensors = tensors, .data = data, .bytes = bytes, .fail = fail};
    int e = read_arch(&r);
    if (!r.arch) return e;
    if (!e) e = refuse_features(&r);
    if (!e) e = read_sizes(&r);
    if (!e) e = read_tensors(&r);
    if (!e) e = read_rope(&r);
    if (e) tsri_header_fini(h);
    return e;
}

void tsri_header_fini(struct tsri_header *h)
{
    free(h->factors);
    free(h->layer_tensors);
    h->factors = NULL;
    h->layer_tensors = NULL;
}
