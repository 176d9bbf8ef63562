/* session_kit.h - a model and a session of the executor, driven through its table as the core does
 * it. */
#ifndef TSRI_SESSION_KIT_H
#define TSRI_SESSION_KIT_H

#include "model/gguf_kit.h"
#include "support/test.h"
#include "support/tmpdir.h"

extern const struct tsr_executor_ops tsr_executor;

struct kit {
    struct tmpdir dir;
    char path[512];
    struct tsr_executor *x;
    struct tsr_executor_session *s;
    struct tsr_model_info info;
};

static inline void kit_open_config(struct kit *k, const struct tsr_model_desc *desc,
                                   uint32_t n_slots)
{
    CHECK_INT(tsr_executor.open(&k->x, desc), 0);
    k->info.size = sizeof k->info;
    CHECK_INT(tsr_executor.info(k->x, &k->info), 0);
    CHECK_INT(tsr_executor.session_open(k->x, &k->s, n_slots), 0);
}

static inline void kit_open_file(struct kit *k, const char *path, uint32_t kv_dtype,
                                 uint32_t n_slots, const char *weights)
{
    struct tsr_model_desc config = {.size = sizeof config,
                                    .path = path,
                                    .n_threads = 1,
                                    .kv_dtype = kv_dtype,
                                    .weights = weights,
                                    .fail = kit_fail};
    kit_open_config(k, &config, n_slots);
}

static inline void kit_open_threads(struct kit *k, const struct kit_model *m, uint32_t kv_dtype,
                                    uint32_t n_slots, uint32_t n_threads)
{
    memset(k, 0, sizeof *k);
    tmpdir_init_fast(&k->dir);
    snprintf(k->path, sizeof k->path, "%s/m.gguf", k->dir.path);
    CHECK(kit_write(k->path, m));
    struct tsr_model_desc config = {.size = sizeof config,
                                    .path = k->path,
                                    .n_threads = n_threads,
                                    .kv_dtype = kv_dtype,
                                    .fail = kit_fail};
    kit_open_config(k, &config, n_slots);
}

static inline void kit_open(struct kit *k, const struct kit_model *m, uint32_t kv_dtype,
                            uint32_t n_slots)
{
    kit_open_threads(k, m, kv_dtype, n_slots, 1);
}

static inline void kit_close(struct kit *k)
{
    tsr_executor.session_close(k->s);
    tsr_executor.close(k->x);
    if (k->dir.path[0]) tmpdir_fini(&k->dir);
}

/* Tokens that repeat with every run of a test. */
static inline void kit_tokens(uint32_t *tokens, uint32_t n, uint32_t n_vocab)
{
    uint64_t seed = 12345;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = 3 + (uint32_t)(test_rand(&seed) % (n_vocab - 3));
}

/* All layers of a pass; mass is NULL or has n_mass floats. */
static inline void kit_layers(struct kit *k, float *mass, uint32_t n_mass)
{
    for (uint32_t l = 0; l < k->info.n_layers; l++) {
        struct tsr_model_layer layer = {
            .size = sizeof layer, .layer = l, .mass = mass, .n_mass = n_mass};
        CHECK_INT(tsr_executor.layer(k->s, &layer), 0);
    }
}

/* Rows [first, first + n), causal, and the logits of the last n_last; flags: enum tsr_pass_flags.
 */
static inline void kit_pass(struct kit *k, const uint32_t *tokens, uint32_t first, uint32_t n,
                            uint32_t flags, uint32_t n_last, float *logits)
{
    struct tsr_model_row *rows = calloc(n, sizeof *rows);
    uint32_t *last = calloc(n_last + 1, sizeof *last);
    CHECK(rows && last);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct tsr_model_row){tokens[first + i], first + i, first + i};
    for (uint32_t i = 0; i < n_last; i++)
        last[i] = n - n_last + i;
    struct tsr_model_group group = {.n_rows = n, .n_ranges = 1, .sees = {{0, first + n}}};
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = rows, .n_rows = n, .n_groups = 1, .groups = &group};
    pass.flags = flags;
    CHECK_INT(tsr_executor.begin(k->s, &pass), 0);
    kit_layers(k, NULL, 0);
    if (n_last) CHECK_INT(tsr_executor.logits(k->s, last, n_last, logits), 0);
    tsr_executor.end(k->s);
    free(rows);
    free(last);
}

static inline void kit_prefill(struct kit *k, const uint32_t *tokens, uint32_t first, uint32_t n,
                               uint32_t n_last, float *logits)
{
    kit_pass(k, tokens, first, n, 0, n_last, logits);
}

/* One row of an answer, and its logits. */
static inline void kit_decode(struct kit *k, const uint32_t *tokens, uint32_t at, float *logits)
{
    kit_pass(k, tokens, at, 1, TSR_PASS_DECODE, 1, logits);
}

/* Bytes of K (plane 0) or V (1) of a slot. */
static inline uint8_t *kit_row(struct kit *k, int plane, uint32_t layer, uint32_t slot)
{
    struct tsr_kv_layout layout;
    tsr_executor.session_layout(k->s, &layout);
    return (uint8_t *)layout.planes[plane].layers[layer] + slot * layout.planes[plane].token_stride;
}

static inline size_t kit_row_bytes(struct kit *k)
{
    struct tsr_kv_layout layout;
    tsr_executor.session_layout(k->s, &layout);
    return layout.planes[0].n_heads * layout.planes[0].head_stride;
}

#endif
