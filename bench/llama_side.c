/* llama_side.c - see llama_side.h. */
#ifdef TSRI_HAVE_LLAMA
#include "llama_side.h"

#include <llama.h>

#include <stdlib.h>
#include <string.h>

#define REUSE_MIN 64u

struct llama_side {
    struct llama_model *model;
    struct llama_context *ctx;
    struct llama_batch batch;
    uint32_t *tokens; /* what the context holds */
    uint32_t n, n_ctx;
};

static void quiet(enum ggml_log_level level, const char *text, void *arg)
{
    (void)level;
    (void)text;
    (void)arg;
}

struct llama_side *llama_side_open(const char *path, uint32_t n_ctx, uint32_t n_threads)
{
    llama_log_set(quiet, NULL);
    struct llama_side *s = calloc(1, sizeof *s);
    if (!s) abort();
    struct llama_context_params p = llama_context_default_params();
    ggml_backend_dev_t none[] = {NULL}; /* on the CPU, whatever else is here */
    struct llama_model_params params = llama_model_default_params();
    params.devices = none;
    s->model = llama_model_load_from_file(path, params);
    p.n_ctx = p.n_batch = s->n_ctx = n_ctx;
    p.n_ubatch = 512;
    p.n_threads = p.n_threads_batch = (int32_t)n_threads;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    s->ctx = s->model ? llama_init_from_model(s->model, p) : NULL;
    s->batch = llama_batch_init((int32_t)n_ctx, 0, 1);
    s->tokens = calloc(n_ctx, sizeof *s->tokens);
    if (!s->ctx || !s->tokens) abort();
    return s;
}

void llama_side_close(struct llama_side *s)
{
    if (!s) return;
    llama_batch_free(s->batch);
    llama_free(s->ctx);
    llama_model_free(s->model);
    free(s->tokens);
    free(s);
}

static const float *read_tokens(struct llama_side *s, const uint32_t *tokens, uint32_t n)
{
    struct llama_batch *b = &s->batch;
    for (uint32_t i = 0; i < n; i++) {
        b->token[i] = (llama_token)tokens[i];
        b->pos[i] = (llama_pos)(s->n + i);
        b->n_seq_id[i] = 1;
        b->seq_id[i][0] = 0;
        b->logits[i] = i + 1 == n;
        s->tokens[s->n + i] = tokens[i];
    }
    b->n_tokens = (int32_t)n;
    if (llama_decode(s->ctx, *b) != 0) abort();
    llama_synchronize(s->ctx);
    s->n += n;
    return llama_get_logits_ith(s->ctx, -1);
}

const float *llama_side_prefill(struct llama_side *s, const uint32_t *tokens, uint32_t n)
{
    llama_memory_clear(llama_get_memory(s->ctx), true);
    s->n = 0;
    return read_tokens(s, tokens, n);
}

const float *llama_side_decode(struct llama_side *s, uint32_t token)
{
    return read_tokens(s, &token, 1);
}

uint32_t llama_side_reuse(struct llama_side *s, const uint32_t *tokens, uint32_t n)
{
    llama_memory_t memory = llama_get_memory(s->ctx);
    uint32_t from = 0, to = 0, held = s->n;
    while (to < held && to + 1 < n && s->tokens[to] == tokens[to])
        to++;
    from = to;
    while (from < held && to + 1 < n) {
        uint32_t run = 0;
        while (from + run < held && to + run + 1 < n && s->tokens[from + run] == tokens[to + run])
            run++;
        if (run < REUSE_MIN) {
            from++;
            continue;
        }
        llama_pos shift = (llama_pos)to - (llama_pos)from;
        llama_memory_seq_rm(memory, 0, (llama_pos)to, (llama_pos)from);
        llama_memory_seq_add(memory, 0, (llama_pos)from, (llama_pos)(from + run), shift);
        memcpy(s->tokens + to, tokens + to, run * sizeof *tokens);
        from += run;
        to += run;
    }
    llama_memory_seq_rm(memory, 0, (llama_pos)to, -1);
    s->n = to;
    (void)read_tokens(s, tokens + to, n - to);
    return n - to;
}
#else
typedef int llama_side_needs_llama;
#endif
