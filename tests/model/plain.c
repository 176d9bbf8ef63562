/* plain.c - see plain.h. */
#ifdef TSRI_HAVE_LLAMA
#include "model/plain.h"

#include <ggml.h>
#include <gguf.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROPE_BASE 10000.0 /* what gguf_kit.c writes */
#define NORM_EPS 1e-5

struct plain {
    struct gguf_context *file;
    struct ggml_context *tensors;
    bool neox; /* pairs of a rope are halves of a head, not neighbours */
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff;
    const struct plain_prompt *prompt;
    uint32_t layer;
    double *hidden;  /* [n_tokens][n_embd] */
    double *k, *v;   /* [n_tokens][n_kv_heads x head_dim], of the layer in work */
    double *scratch; /* [4][widest row] */
    double *scores;  /* [n_tokens] */
};

static uint32_t number(const struct plain *p, const char *name)
{
    char key[96];
    const char *arch = gguf_get_val_str(p->file, gguf_find_key(p->file, "general.architecture"));
    snprintf(key, sizeof key, "%s.%s", arch, name);
    return gguf_get_val_u32(p->file, gguf_find_key(p->file, key));
}

/* A tensor of the layer in work, or NULL. */
static const float *weight(const struct plain *p, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%u.%s", p->layer, name);
    struct ggml_tensor *t = ggml_get_tensor(p->tensors, full);
    return t ? t->data : NULL;
}

static void norm(double *out, const double *x, const float *w, uint32_t n)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / n + NORM_EPS);
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * scale * (double)w[i];
}

static void multiply(double *out, const float *w, const float *bias, const double *x,
                     uint32_t n_out, uint32_t n_in)
{
    for (uint32_t o = 0; o < n_out; o++) {
        const float *row = w + (size_t)o * n_in;
        double sum = bias ? (double)bias[o] : 0;
        for (uint32_t i = 0; i < n_in; i++)
            sum += (double)row[i] * x[i];
        out[o] = sum;
    }
}

/* Norms heads where the model does, and turns them to their position. */
static void finish_heads(const struct plain *p, double *x, uint32_t n_heads, const float *norm_w,
                         uint32_t position)
{
    uint32_t d = p->head_dim, step = p->neox ? d / 2 : 1;
    for (uint32_t h = 0; h < n_heads; h++, x += d) {
        if (norm_w) norm(x, x, norm_w, d);
        for (uint32_t i = 0; i < d / 2; i++) {
            double angle = position * pow(ROPE_BASE, -2.0 * i / d), *a = x + (p->neox ? i : 2 * i);
            double re = a[0] * cos(angle) - a[step] * sin(angle);
            a[step] = a[0] * sin(angle) + a[step] * cos(angle);
            a[0] = re;
        }
    }
}

static void keep(const struct plain *p, double *kept, uint32_t n)
{
    for (uint32_t i = 0; p->prompt->halves && i < n; i++)
        kept[i] = (double)ggml_fp16_to_fp32(ggml_fp32_to_fp16((float)kept[i]));
}

static void attend(struct plain *p, double *out, const double *q, uint32_t row, double *mass)
{
    uint32_t d = p->head_dim, width = p->n_kv_heads * d, group = p->n_heads / p->n_kv_heads;
    memset(out, 0, (size_t)p->n_heads * d * sizeof *out);
    for (uint32_t h = 0; h < p->n_heads; h++) {
        double top = -INFINITY, sum = 0;
        for (uint32_t s = 0; s <= row; s++) {
            const double *k = p->k + (size_t)s * width + h / group * d;
            p->scores[s] = 0;
            for (uint32_t i = 0; i < d; i++)
                p->scores[s] += q[h * d + i] * k[i];
            p->scores[s] /= sqrt(d);
            top = fmax(top, p->scores[s]);
        }
        for (uint32_t s = 0; s <= row; s++)
            sum += p->scores[s] = exp(p->scores[s] - top);
        for (uint32_t s = 0; s <= row; s++) {
            const double *v = p->v + (size_t)s * width + h / group * d;
            double share = p->scores[s] / sum;
            if (mass) mass[s] += share / p->n_heads;
            for (uint32_t i = 0; i < d; i++)
                out[h * d + i] += share * v[i];
        }
    }
}

static void add(double *x, const double *more, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += more[i];
}

static void feed_forward(struct plain *p, double *x, double *normed, double *gate, double *up)
{
    norm(normed, x, weight(p, "ffn_norm.weight"), p->n_embd);
    multiply(gate, weight(p, "ffn_gate.weight"), NULL, normed, p->n_ff, p->n_embd);
    multiply(up, weight(p, "ffn_up.weight"), NULL, normed, p->n_ff, p->n_embd);
    for (uint32_t i = 0; i < p->n_ff; i++)
        gate[i] *= up[i] / (1 + exp(-gate[i]));
    multiply(normed, weight(p, "ffn_down.weight"), NULL, gate, p->n_embd, p->n_ff);
    add(x, normed, p->n_embd);
}

static uint32_t widest(const struct plain *p)
{
    uint32_t n = p->n_heads * p->head_dim;
    if (n < p->n_embd) n = p->n_embd;
    return n < p->n_ff ? p->n_ff : n;
}

static void layer(struct plain *p, double *mass)
{
    uint32_t width = p->n_kv_heads * p->head_dim, wide = widest(p), n = p->prompt->n_tokens;
    double *normed = p->scratch, *q = normed + wide, *mixed = q + wide, *up = mixed + wide;
    for (uint32_t row = 0; row < n; row++) {
        double *x = p->hidden + (size_t)row * p->n_embd;
        double *k = p->k + (size_t)row * width, *v = p->v + (size_t)row * width;
        norm(normed, x, weight(p, "attn_norm.weight"), p->n_embd);
        multiply(q, weight(p, "attn_q.weight"), weight(p, "attn_q.bias"), normed,
                 p->n_heads * p->head_dim, p->n_embd);
        multiply(k, weight(p, "attn_k.weight"), weight(p, "attn_k.bias"), normed, width, p->n_embd);
        multiply(v, weight(p, "attn_v.weight"), weight(p, "attn_v.bias"), normed, width, p->n_embd);
        finish_heads(p, q, p->n_heads, weight(p, "attn_q_norm.weight"), row);
        finish_heads(p, k, p->n_kv_heads, weight(p, "attn_k_norm.weight"), row);
        keep(p, k, width);
        keep(p, v, width);
        attend(p, mixed, q, row, row + p->prompt->n_mass_rows >= n ? mass : NULL);
        multiply(normed, weight(p, "attn_output.weight"), NULL, mixed, p->n_embd,
                 p->n_heads * p->head_dim);
        add(x, normed, p->n_embd);
        feed_forward(p, x, normed, mixed, up);
    }
}

static bool open_file(struct plain *p, const char *path)
{
    struct gguf_init_params params = {.no_alloc = false, .ctx = &p->tensors};
    p->file = gguf_init_from_file(path, params);
    if (!p->file) return false;
    const char *arch = gguf_get_val_str(p->file, gguf_find_key(p->file, "general.architecture"));
    p->neox = strcmp(arch, "llama") != 0;
    p->n_layers = number(p, "block_count");
    p->n_embd = number(p, "embedding_length");
    p->n_ff = number(p, "feed_forward_length");
    p->n_heads = number(p, "attention.head_count");
    p->n_kv_heads = number(p, "attention.head_count_kv");
    p->head_dim = number(p, "attention.key_length");
    return true;
}

uint32_t plain_mass(const char *path, const struct plain_prompt *prompt, double *mass)
{
    struct plain p = {.prompt = prompt};
    if (!open_file(&p, path)) return 0;
    uint32_t n = prompt->n_tokens;
    size_t width = (size_t)p.n_kv_heads * p.head_dim;
    p.hidden = malloc((size_t)n * p.n_embd * sizeof *p.hidden);
    p.k = malloc(n * width * sizeof *p.k);
    p.v = malloc(n * width * sizeof *p.v);
    p.scratch = malloc((size_t)4 * widest(&p) * sizeof *p.scratch);
    p.scores = malloc(n * sizeof *p.scores);
    if (!p.hidden || !p.k || !p.v || !p.scratch || !p.scores) abort();
    const float *embeddings = ggml_get_tensor(p.tensors, "token_embd.weight")->data;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = 0; e < p.n_embd; e++)
            p.hidden[(size_t)i * p.n_embd + e] =
                (double)embeddings[(size_t)prompt->tokens[i] * p.n_embd + e];
    for (p.layer = 0; p.layer < p.n_layers; p.layer++)
        layer(&p, mass);
    void *const memory[] = {p.hidden, p.k, p.v, p.scratch, p.scores};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
    gguf_free(p.file);
    ggml_free(p.tensors);
    return p.n_layers;
}
#else
typedef int plain_needs_llama; /* a file must not be empty */
#endif
