#include "support/model_kit.h"

#include <stdio.h>
#include <stdlib.h>

#define MUST(x) \
    do { \
        if ((x) < 0) { \
            fprintf(stderr, "%s: %s\n", #x, tsr_errmsg()); \
            abort(); \
        } \
    } while (0)

void model_kit_open(struct model_kit *k, const char *path, uint32_t dtype, uint32_t n_slots)
{
    struct tsr_model_desc config = {.size = sizeof config, .path = path, .kv_dtype = dtype};
    *k = (struct model_kit){.info.size = sizeof k->info};
    MUST(tsr_model_open(&k->model, tsr_executor_tiny(), &config));
    MUST(tsr_model_info(k->model, &k->info));
    MUST(tsr_session_open(&k->session, k->model, n_slots));
}

void model_kit_close(struct model_kit *k)
{
    tsr_session_close(k->session);
    tsr_model_close(k->model);
}

void model_kit_tokens(const struct model_kit *k, uint32_t *tokens, uint32_t n, uint64_t seed)
{
    uint64_t state = seed;
    for (uint32_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (uint32_t)(state >> 33) % k->info.n_vocab;
    }
}

int model_kit_begin(struct model_kit *k, const uint32_t *tokens, uint32_t first, uint32_t n)
{
    struct tsr_model_row *rows = calloc(n, sizeof *rows);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct tsr_model_row){tokens[first + i], first + i, first + i};
    struct tsr_model_group all = {n, 1, {{0, first + n}}};
    struct tsr_model_pass pass = {.size = sizeof pass,
                                  .rows = rows,
                                  .n_rows = n,
                                  .groups = &all,
                                  .n_groups = 1,
                                  .freq_set = k->freq_set};
    int e = tsr_session_begin(k->session, &pass);
    free(rows);
    return e;
}

void model_kit_prefill(struct model_kit *k, const uint32_t *tokens, uint32_t first, uint32_t n,
                       float *logits)
{
    MUST(model_kit_begin(k, tokens, first, n));
    for (uint32_t l = 0; l < k->info.n_layers; l++) {
        struct tsr_model_layer step = {.size = sizeof step, .layer = l};
        MUST(tsr_session_layer(k->session, &step));
    }
    uint32_t last = n - 1;
    MUST(tsr_session_logits(k->session, &last, 1, logits));
    tsr_session_end(k->session);
}

float *model_kit_row(const struct model_kit *k, uint32_t plane, uint32_t layer, uint32_t slot)
{
    const struct tsr_kv_plane *p = &tsr_session_layout(k->session)->planes[plane];
    return (float *)(void *)(tsri_layer_base(p, layer) + slot * p->token_stride);
}

void model_kit_turn(const struct model_kit *k, float *row, int64_t delta)
{
    struct tsri_rope_set set;
    float table[2 * TSRI_ROPE_PAIRS_MAX];
    tsri_rope_set_init(&set, &k->info.rope, k->freq_set);
    tsri_rope_table(&set, delta, table);
    uint32_t n = set.n_pairs, dim = k->info.head_dim;
    bool neox = k->info.rope.pairing == TSR_ROPE_NEOX;
    for (uint32_t h = 0; h < k->info.n_kv_heads; h++)
        for (uint32_t i = 0; i < n; i++) {
            float *a = &row[h * dim + (neox ? i : 2 * i)], *b = a + (neox ? n : 1);
            float x = *a, y = *b;
            *a = x * table[i] - y * table[n + i];
            *b = y * table[i] + x * table[n + i];
        }
}
