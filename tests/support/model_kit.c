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
    struct tsr_model_config config = {.size = sizeof config, .path = path, .kv_dtype = dtype};
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

static int begin(struct model_kit *k, const uint32_t *tokens, struct tsr_range range,
                 const struct tsr_model_pass *more)
{
    struct tsr_model_row *rows = calloc(range.n_tokens, sizeof *rows);
    for (uint32_t i = 0; i < range.n_tokens; i++)
        rows[i] =
            (struct tsr_model_row){tokens[range.offset + i], range.offset + i, range.offset + i};
    struct tsr_model_group all = {range.n_tokens, 1, {{0, range.offset + range.n_tokens}}};
    struct tsr_model_pass pass = *more;
    pass.size = sizeof pass;
    pass.rows = rows;
    pass.n_rows = range.n_tokens;
    pass.groups = &all;
    pass.n_groups = 1;
    pass.freq_set = k->freq_set;
    int e = tsr_session_begin(k->session, &pass);
    free(rows);
    return e;
}

int model_kit_begin(struct model_kit *k, const uint32_t *tokens, uint32_t first, uint32_t n)
{
    return begin(k, tokens, (struct tsr_range){first, n}, &(struct tsr_model_pass){0});
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

void model_kit_mass(struct model_kit *k, const uint32_t *tokens, uint32_t n, const float *bias,
                    uint32_t n_bias, float *mass)
{
    struct tsr_model_pass more = {
        .bias = bias, .n_bias = n_bias, .n_bias_rows = bias ? 4 : 0, .n_mass_rows = 4};
    MUST(begin(k, tokens, (struct tsr_range){0, n}, &more));
    for (uint32_t l = 0; l < k->info.n_layers; l++) {
        struct tsr_model_layer step = {.size = sizeof step, .layer = l, .mass = mass, .n_mass = n};
        MUST(tsr_session_layer(k->session, &step));
    }
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
