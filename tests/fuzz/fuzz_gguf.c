/* The header of a model file of any bytes is read. The tensors' data is the same for all inputs, so
 * that a file is as long as its header says more often than not; with an odd first byte it is left
 * out. What is accepted must hold: sizes within their limits, every tensor inside the file and of
 * the shape that its users will read, factors that can be divided by. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"

#include <ggml.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_MAX (64u << 10)
#define DATA_BYTES (64u << 10)

int tsri_model_fail(tsri_fail_fn fail, int err, const char *fmt, ...)
{
    char said[512];
    va_list ap;
    (void)fail;
    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    if (err >= 0 || said[0] == 0) abort();
    return err;
}

static void say_nothing(enum ggml_log_level level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
}

static void must(bool holds)
{
    if (!holds) abort();
}

struct input {
    const struct tsri_header *h;
    const struct gguf_context *gguf;
    const struct ggml_context *tensors;
    size_t bytes;
};

static void check_place(const struct input *r, int64_t id)
{
    if (id < 0) return;
    must(id < gguf_get_n_tensors(r->gguf));
    const struct ggml_tensor *t = ggml_get_tensor((struct ggml_context *)(uintptr_t)r->tensors,
                                                  gguf_get_tensor_name(r->gguf, id));
    must(t && t->ne[0] > 0 && t->ne[1] > 0 && t->ne[2] == 1 && t->ne[3] == 1);
    must(gguf_get_data_offset(r->gguf) + gguf_get_tensor_offset(r->gguf, id) + ggml_nbytes(t) <=
         r->bytes);
}

static void check_header(const struct input *r)
{
    const struct tsri_header *h = r->h;
    must(h->n_layers >= 1 && h->n_layers <= TSRI_LAYERS_MAX);
    must(h->n_vocab >= 1 && h->n_vocab <= TSRI_VOCAB_MAX);
    must(h->context >= 1 && h->context <= TSRI_CONTEXT_MAX);
    must(h->n_kv_heads >= 1 && h->n_heads % h->n_kv_heads == 0);
    must(h->head_dim >= 2 && h->head_dim % 2 == 0 && h->head_dim <= 512);
    must(h->norm_eps > 0 && h->attention_scale > 0 && isfinite(h->attention_scale));
    must(memchr(h->architecture, 0, sizeof h->architecture) && memchr(h->name, 0, sizeof h->name));
    for (int t = 0; t < TSRI_MODEL_TENSORS; t++)
        check_place(r, h->model_tensors[t]);
    for (uint32_t l = 0; l < h->n_layers; l++)
        for (int t = 0; t < TSRI_LAYER_TENSORS; t++)
            check_place(r, h->layer_tensors[l][t]);
    must(h->rope.theta > 1 && isfinite(h->turn.attn_factor) && isfinite(h->turn.freq_scale));
    for (uint32_t i = 0; i < h->rope.n_factors; i++)
        must(h->rope.long_factors[i] > 0 && isfinite(h->rope.long_factors[i]));
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ggml_log_set(say_nothing, NULL);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1 || bytes > INPUT_MAX) return 0;
    size_t n = bytes - 1, total = n + (data[0] & 1 ? 0 : DATA_BYTES);
    float *file = malloc(total + sizeof *file);
    if (!file) return 0;
    for (size_t i = 0; i <= total / sizeof *file; i++)
        file[i] = 1;
    memcpy(file, data + 1, n);
    struct ggml_context *tensors = NULL;
    struct gguf_init_params params = {.no_alloc = true, .ctx = &tensors};
    struct gguf_context *gguf = gguf_init_from_buffer(file, total, params);
    if (gguf && tensors) {
        struct tsri_header h;
        struct input r = {.h = &h, .gguf = gguf, .tensors = tensors, .bytes = total};
        if (tsri_header_init(&h, gguf, tensors, file, total, NULL) == 0) {
            check_header(&r);
            tsri_header_fini(&h);
        }
    }
    gguf_free(gguf);
    ggml_free(tensors);
    free(file);
    return 0;
}
#else
#include <stddef.h>
#include <stdint.h>

/* Without llama.cpp there is nothing that reads such files. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    return 0;
}
#endif
