/* gguf_kit.c - see gguf_kit.h. */
#ifdef TSRI_HAVE_LLAMA
#include "model/gguf_kit.h"

#include <ggml.h>
#include <llama.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- numbers ---- */

static uint64_t state;

static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

static float gauss(void)
{
    return (float)(sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform()));
}

/* ---- the header ---- */

static struct kit_model filled(const struct kit_model *given)
{
    struct kit_model m = *given;
    if (!m.arch) m.arch = "llama";
    if (!m.n_layers) m.n_layers = 3;
    if (!m.n_embd) m.n_embd = 128;
    if (!m.n_heads) m.n_heads = 4;
    if (!m.n_kv_heads) m.n_kv_heads = 2;
    if (!m.n_ff) m.n_ff = 256;
    if (!m.context) m.context = 2048;
    if (!m.head_dim) m.head_dim = m.n_embd / m.n_heads;
    return m;
}

static void set_u32(struct gguf_context *g, const char *arch, const char *name, uint32_t value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gguf_set_val_u32(g, key, value);
}

static void set_f32(struct gguf_context *g, const char *arch, const char *name, float value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gguf_set_val_f32(g, key, value);
}

static void set_str(struct gguf_context *g, const char *arch, const char *name, const char *value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gguf_set_val_str(g, key, value);
}

/* A sentencepiece vocabulary: three special tokens, the bytes, the two marks of a chat, letters. */
static void set_vocab(struct gguf_context *g)
{
    static char text[KIT_VOCAB][16];
    static const char *tokens[KIT_VOCAB];
    static float scores[KIT_VOCAB];
    static int32_t types[KIT_VOCAB];
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    for (uint32_t i = 0; i < KIT_VOCAB; i++) {
        types[i] = 1;
        if (i < 3) {
            snprintf(text[i], sizeof text[i], "%s", special[i]);
            types[i] = i == 0 ? 2 : 3;
        } else if (i < 259) {
            snprintf(text[i], sizeof text[i], "<0x%02X>", i - 3);
            types[i] = 6;
        } else if (i < 261) {
            snprintf(text[i], sizeof text[i], i == 259 ? "<|im_start|>" : "<|im_end|>");
            types[i] = 3;
        } else if (i == 261) {
            snprintf(text[i], sizeof text[i], "\xe2\x96\x81");
        } else if (i < 262 + 26) {
            snprintf(text[i], sizeof text[i], "%c", 'a' + (int)(i - 262));
        } else {
            snprintf(text[i], sizeof text[i], "%c%c", 'a' + (int)(i % 26), 'a' + (int)(i / 26));
        }
        tokens[i] = text[i];
        scores[i] = -(float)i;
    }
    gguf_set_val_str(g, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, KIT_VOCAB);
    gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, KIT_VOCAB);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, KIT_VOCAB);
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_u32(g, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_str(g, "tokenizer.chat_template",
                     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                     "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}");
}

static void set_rope(struct gguf_context *g, const struct kit_model *m)
{
    set_f32(g, m->arch, "rope.freq_base", 10000);
    if (m->rope == KIT_LINEAR) {
        set_str(g, m->arch, "rope.scaling.type", "linear");
        set_f32(g, m->arch, "rope.scaling.factor", 4);
    } else if (m->rope == KIT_YARN) {
        set_str(g, m->arch, "rope.scaling.type", "yarn");
        set_f32(g, m->arch, "rope.scaling.factor", 4);
        set_u32(g, m->arch, "rope.scaling.original_context_length", m->context / 4);
    } else if (m->rope == KIT_LONGROPE) {
        set_str(g, m->arch, "rope.scaling.type", "longrope");
        set_f32(g, m->arch, "rope.scaling.attn_factor", 1.19f);
        set_u32(g, m->arch, "rope.scaling.original_context_length", m->context / 4);
    }
}

struct gguf_context *kit_header(const struct kit_model *given)
{
    struct kit_model m = filled(given);
    struct gguf_context *g = gguf_init_empty();
    gguf_set_val_str(g, "general.architecture", m.arch);
    gguf_set_val_str(g, "general.name", "random");
    set_u32(g, m.arch, "vocab_size", KIT_VOCAB);
    set_u32(g, m.arch, "block_count", m.n_layers);
    set_u32(g, m.arch, "embedding_length", m.n_embd);
    set_u32(g, m.arch, "feed_forward_length", m.n_ff);
    set_u32(g, m.arch, "context_length", m.context);
    set_u32(g, m.arch, "attention.head_count", m.n_heads);
    set_u32(g, m.arch, "attention.head_count_kv", m.n_kv_heads);
    set_u32(g, m.arch, "attention.key_length", m.head_dim);
    set_u32(g, m.arch, "attention.value_length", m.head_dim);
    set_u32(g, m.arch, "rope.dimension_count", m.head_dim);
    set_f32(g, m.arch, "attention.layer_norm_rms_epsilon", 1e-5f);
    set_rope(g, &m);
    if (!m.plain) set_vocab(g);
    return g;
}

/* ---- tensors ---- */

struct writer {
    const struct kit_model *m;
    struct gguf_context *g;
    struct ggml_context *ctx;
};

/* A matrix of n1 rows of n0, or a vector around `mean` when n1 is 0. NULL: it is left out. */
static struct ggml_tensor *add(struct writer *w, const char *name, int64_t n0, int64_t n1,
                               float spread, float mean)
{
    if (w->m->without && strcmp(name, w->m->without) == 0) return NULL;
    if (w->m->widen && strcmp(name, w->m->widen) == 0) n1 ? n1++ : n0++;
    enum ggml_type type = n1 ? w->m->type : GGML_TYPE_F32;
    int64_t rows = n1 ? n1 : 1;
    struct ggml_tensor *t = ggml_new_tensor_2d(w->ctx, type, n0, rows);
    ggml_set_name(t, name);
    float *row = malloc((size_t)n0 * sizeof *row);
    if (!row) abort();
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n0; i++)
            row[i] = mean + spread * gauss();
        uint8_t *to = (uint8_t *)t->data + (size_t)r * ggml_row_size(type, n0);
        if (type == GGML_TYPE_F32)
            memcpy(to, row, (size_t)n0 * sizeof *row);
        else
            ggml_quantize_chunk(type, row, to, 0, 1, n0, NULL);
    }
    free(row);
    gguf_add_tensor(w->g, t);
    return t;
}

/* A bias of heads, with a spike where RoPE turns least: it moves all slots alike. */
static void add_bias(struct writer *w, const char *name, int64_t n, float spike)
{
    struct ggml_tensor *t = add(w, name, n, 0, 0.3f, 0);
    for (int64_t i = w->m->head_dim / 2 - 1; t && spike > 0 && i < n; i += w->m->head_dim)
        ((float *)t->data)[i] = spike;
}

static void add_layer(struct writer *w, uint32_t layer)
{
    const struct kit_model *m = w->m;
    int64_t d = m->n_embd, q = (int64_t)m->n_heads * m->head_dim;
    int64_t kv = (int64_t)m->n_kv_heads * m->head_dim;
    float sd = 1 / sqrtf((float)d);
    char name[64];
#define NAME(tail) (snprintf(name, sizeof name, "blk.%u." tail, layer), name)
    add(w, NAME("attn_norm.weight"), d, 0, 0.05f, 1);
    add(w, NAME("attn_q.weight"), d, q, 1.6f * sd, 0); /* peaky, as real attention is */
    add(w, NAME("attn_k.weight"), d, kv, 1.6f * sd, 0);
    add(w, NAME("attn_v.weight"), d, kv, sd, 0);
    if (strcmp(m->arch, "qwen2") == 0) {
        add_bias(w, NAME("attn_q.bias"), q, m->q_spike);
        add_bias(w, NAME("attn_k.bias"), kv, m->k_spike);
        add_bias(w, NAME("attn_v.bias"), kv, 0);
    }
    if (strcmp(m->arch, "qwen3") == 0) {
        add(w, NAME("attn_q_norm.weight"), m->head_dim, 0, 0.05f, 1);
        add(w, NAME("attn_k_norm.weight"), m->head_dim, 0, 0.05f, 1);
    }
    add(w, NAME("attn_output.weight"), q, d, sd, 0);
    add(w, NAME("ffn_norm.weight"), d, 0, 0.05f, 1);
    add(w, NAME("ffn_gate.weight"), d, m->n_ff, sd, 0);
    add(w, NAME("ffn_up.weight"), d, m->n_ff, sd, 0);
    add(w, NAME("ffn_down.weight"), m->n_ff, d, 1 / sqrtf((float)m->n_ff), 0);
#undef NAME
}

static void add_all(struct writer *w)
{
    const struct kit_model *m = w->m;
    add(w, "token_embd.weight", m->n_embd, KIT_VOCAB, m->tied ? 2 / sqrtf((float)m->n_embd) : 1, 0);
    add(w, "output_norm.weight", m->n_embd, 0, 0.05f, 1);
    if (!m->tied) add(w, "output.weight", m->n_embd, KIT_VOCAB, 2 / sqrtf((float)m->n_embd), 0);
    if (m->rope == KIT_LLAMA3) add(w, "rope_freqs.weight", m->head_dim / 2, 0, 0.3f, 3);
    if (m->rope == KIT_LONGROPE) {
        add(w, "rope_factors_short.weight", m->head_dim / 2, 0, 0.05f, 1);
        add(w, "rope_factors_long.weight", m->head_dim / 2, 0, 0.3f, 3);
    }
    for (uint32_t l = 0; l < m->n_layers; l++)
        add_layer(w, l);
    if (m->more) add(w, m->more, 32, 32, 1, 0);
}

bool kit_write(const char *path, const struct kit_model *given)
{
    struct kit_model m = filled(given);
    size_t q = (size_t)m.n_heads * m.head_dim;
    size_t floats = (size_t)m.n_layers * m.n_embd * (4 * q + 3 * (size_t)m.n_ff + 64) +
                    2 * (size_t)m.n_embd * (KIT_VOCAB + 2);
    struct ggml_init_params params = {.mem_size = floats * sizeof(float) + (16u << 20)};
    struct writer w = {&m, kit_header(&m), ggml_init(params)};
    state = 88172645463325252u;
    add_all(&w);
    if (m.edit) m.edit(w.g);
    bool ok = gguf_write_to_file(w.g, path, false);
    gguf_free(w.g);
    ggml_free(w.ctx);
    return ok;
}

static void widen(struct ggml_tensor *to, const struct ggml_tensor *from)
{
    size_t n = (size_t)ggml_nelements(from);
    if (from->type == GGML_TYPE_F32)
        memcpy(to->data, from->data, n * sizeof(float));
    else
        ggml_get_type_traits(from->type)->to_float(from->data, to->data, (int64_t)n);
    ggml_set_name(to, from->name);
}

bool kit_widen(const char *from, const char *to)
{
    struct ggml_context *read = NULL;
    struct gguf_context *g = gguf_init_from_file(from, (struct gguf_init_params){.ctx = &read});
    if (!g) return false;
    struct gguf_context *wide = gguf_init_empty();
    gguf_set_kv(wide, g);
    size_t bytes = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(read); t; t = ggml_get_next_tensor(read, t))
        bytes += (size_t)ggml_nelements(t) * sizeof(float) + 2 * ggml_tensor_overhead();
    struct ggml_context *made = ggml_init((struct ggml_init_params){.mem_size = bytes});
    for (int64_t i = 0; i < gguf_get_n_tensors(g); i++) {
        struct ggml_tensor *t = ggml_get_tensor(read, gguf_get_tensor_name(g, i));
        struct ggml_tensor *w = ggml_new_tensor(made, GGML_TYPE_F32, ggml_n_dims(t), t->ne);
        widen(w, t);
        gguf_add_tensor(wide, w);
    }
    bool ok = gguf_write_to_file(wide, to, false);
    gguf_free(wide);
    gguf_free(g);
    ggml_free(made);
    ggml_free(read);
    return ok;
}

/* ---- the rest ---- */

char kit_said[512];

int kit_fail(int err, const char *text)
{
    snprintf(kit_said, sizeof kit_said, "%s", text);
    return err;
}

const char *kit_smollm(void)
{
    static char path[4096];
    const char *deps = getenv("TESSERA_DEPS_DIR"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    static const char file[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (deps)
        snprintf(path, sizeof path, "%s/%s", deps, file);
    else if (cache)
        snprintf(path, sizeof path, "%s/tessera/%s", cache, file);
    else
        snprintf(path, sizeof path, "%s/.cache/tessera/%s", home ? home : "", file);
    return access(path, R_OK) == 0 ? path : NULL;
}

bool kit_llama_logits(const char *path, const struct kit_reference *how, const uint32_t *tokens,
                      uint32_t n, uint32_t n_last, float *logits)
{
    ggml_backend_dev_t none[] = {NULL}; /* on the CPU, whatever else is here */
    struct llama_model_params params = llama_model_default_params();
    params.devices = none;
    struct llama_model *model = llama_model_load_from_file(path, params);
    if (!model) return false;
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = how->n_ctx ? how->n_ctx : n < 64 ? 64 : n;
    p.n_batch = n;
    p.n_ubatch = 512;
    p.n_threads = p.n_threads_batch = 1;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    struct llama_context *ctx = llama_init_from_model(model, p);
    struct llama_batch b = llama_batch_init((int32_t)n, 0, 1);
    for (uint32_t i = 0; i < n; i++) {
        b.token[i] = (llama_token)tokens[i];
        b.pos[i] = (llama_pos)i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = i + n_last >= n;
    }
    b.n_tokens = (int32_t)n;
    int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    bool ok = ctx && llama_decode(ctx, b) == 0;
    for (uint32_t i = 0; ok && i < n_last; i++)
        memcpy(logits + (size_t)i * (size_t)n_vocab,
               llama_get_logits_ith(ctx, (int32_t)(n - n_last + i)),
               (size_t)n_vocab * sizeof *logits);
    llama_batch_free(b);
    llama_free(ctx);
    llama_model_free(model);
    return ok;
}

double kit_max_difference(const float *a, const float *b, size_t n)
{
    double max = 0;
    for (size_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)a[i] - (double)b[i]));
    return max;
}

static double log_sum(const float *x, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

double kit_kl(const float *a, const float *b, uint32_t n_rows, uint32_t n_vocab)
{
    double kl = 0;
    for (uint32_t r = 0; r < n_rows; r++, a += n_vocab, b += n_vocab) {
        double za = log_sum(a, n_vocab), zb = log_sum(b, n_vocab);
        for (uint32_t i = 0; i < n_vocab; i++) {
            double la = (double)a[i] - za, lb = (double)b[i] - zb;
            kl += exp(la) * (la - lb);
        }
    }
    return kl / n_rows;
}
#else
typedef int kit_needs_llama; /* a file must not be empty */
#endif
