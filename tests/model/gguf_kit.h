/* gguf_kit.h - small models with random weights, written as GGUF files: every architecture, kind of
 * weights and RoPE that the executor runs, and with a vocabulary of its own so that libllama loads
 * them too. What they say makes no sense; that two programs say the same does. */
#ifndef TSRI_GGUF_KIT_H
#define TSRI_GGUF_KIT_H

#include <tessera/model.h>

#include <gguf.h>

#include <stdbool.h>

enum kit_rope { KIT_PLAIN, KIT_LINEAR, KIT_YARN, KIT_LLAMA3, KIT_LONGROPE };

struct kit_model {
    const char *arch;                                              /* NULL: llama */
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, n_ff, context; /* 0: 3, 128, 4, 2, 256, 2048 */
    uint32_t head_dim;                                             /* 0: n_embd / n_heads */
    enum ggml_type type;                                           /* of matrices; 0: F32 */
    enum kit_rope rope;
    /* qwen2: one large bias in each head of Q and of K, so that their products are beyond what 16
     * bits hold, as in real models; 0: none */
    float q_spike, k_spike;
    bool tied;  /* no output.weight */
    bool plain; /* no vocabulary: libllama refuses such files */
    /* (optional) Changes the header before it is written. */
    void (*edit)(struct gguf_context *g);
    const char *without; /* (optional) a tensor to leave out */
    const char *widen;   /* (optional) a tensor to write with one row too many */
    const char *more;    /* (optional) a tensor to add */
};

#define KIT_VOCAB 384u

/* Writes the file; false when it cannot be written. */
bool kit_write(const char *path, const struct kit_model *model);
/* The same model with the numbers of its matrices as floats: what an executor without any rounding
 * would compute with. */
bool kit_widen(const char *from, const char *to);
/* The header alone, as it would be written. */
struct gguf_context *kit_header(const struct kit_model *model);

/* For struct tsr_model_desc: keeps the words. */
int kit_fail(int err, const char *text);
extern char kit_said[512];

/* The SmolLM2 of tools/setup --model, or NULL. */
const char *kit_smollm(void);

/* libllama, plainly: logits of the last n_last of n tokens; false when the file is refused. */
struct kit_reference {
    uint32_t n_ctx; /* 0: as many as there are tokens, at least 64 */
};
bool kit_llama_logits(const char *path, const struct kit_reference *how, const uint32_t *tokens,
                      uint32_t n, uint32_t n_last, float *logits);

/* Largest difference, and mean KL divergence of b from a. */
double kit_max_difference(const float *a, const float *b, size_t n);
double kit_kl(const float *a, const float *b, uint32_t n_rows, uint32_t n_vocab);

#endif
