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

/* ---- several sequences ---- */

#define TEAM_MAX 16u

struct llama_team {
    struct llama_model *model;
    struct llama_context *ctx;
    struct llama_batch batch;
    uint32_t n[TEAM_MAX]; /* tokens of each sequence */
};

struct llama_team *llama_team_open(const char *path, uint32_t n_sequences, uint32_t n_each,
                                   uint32_t n_threads, void (*loaded)(void))
{
    llama_log_set(quiet, NULL);
    struct llama_team *t = calloc(1, sizeof *t);
    if (!t || n_sequences > TEAM_MAX) abort();
    struct llama_context_params p = llama_context_default_params();
    ggml_backend_dev_t none[] = {NULL};
    struct llama_model_params params = llama_model_default_params();
    params.devices = none;
    t->model = llama_model_load_from_file(path, params);
    if (loaded) loaded();
    p.n_seq_max = n_sequences;
    p.n_ctx = n_sequences * n_each;
    p.n_batch = 2048; /* as llama-server */
    p.n_ubatch = 512;
    p.n_threads = p.n_threads_batch = (int32_t)n_threads;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    t->ctx = t->model ? llama_init_from_model(t->model, p) : NULL;
    t->batch = llama_batch_init(2048, 0, 1);
    if (!t->ctx) abort();
    return t;
}

void llama_team_close(struct llama_team *t)
{
    if (!t) return;
    llama_batch_free(t->batch);
    llama_free(t->ctx);
    llama_model_free(t->model);
    free(t);
}

static void team_row(struct llama_team *t, uint32_t i, uint32_t sequence, uint32_t token,
                     bool logits)
{
    t->batch.token[i] = (llama_token)token;
    t->batch.pos[i] = (llama_pos)t->n[sequence]++;
    t->batch.n_seq_id[i] = 1;
    t->batch.seq_id[i][0] = (llama_seq_id)sequence;
    t->batch.logits[i] = logits;
}

static void team_run(struct llama_team *t, uint32_t n)
{
    t->batch.n_tokens = (int32_t)n;
    if (llama_decode(t->ctx, t->batch) != 0) abort();
    llama_synchronize(t->ctx);
}

void llama_team_prefill(struct llama_team *t, uint32_t sequence, const uint32_t *tokens, uint32_t n)
{
    llama_memory_seq_rm(llama_get_memory(t->ctx), (llama_seq_id)sequence, -1, -1);
    t->n[sequence] = 0;
    for (uint32_t done = 0; done < n;) {
        uint32_t some = n - done < 2048 ? n - done : 2048;
        for (uint32_t i = 0; i < some; i++)
            team_row(t, i, sequence, tokens[done + i], done + i + 1 == n);
        team_run(t, some);
        done += some;
    }
}

const float *llama_team_decode(struct llama_team *t, const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        team_row(t, i, i, tokens[i], true);
    team_run(t, n);
    return llama_get_logits_ith(t->ctx, 0);
}

void llama_team_back(struct llama_team *t, uint32_t n_sequences, uint32_t n)
{
    for (uint32_t i = 0; i < n_sequences; i++) {
        t->n[i] -= n;
        llama_memory_seq_rm(llama_get_memory(t->ctx), (llama_seq_id)i, (llama_pos)t->n[i], -1);
    }
}
#else
typedef int llama_side_needs_llama;
#endif
