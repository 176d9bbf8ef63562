/* model_kit.h - a tiny model and a session, and the passes that tests need again and again. Calls
 * that must not fail abort. */
#ifndef TSRI_MODEL_KIT_H
#define TSRI_MODEL_KIT_H

#include "blend/blend.h"

struct model_kit {
    struct tsr_model *model;
    struct tsr_model_info info;
    struct tsr_session *session;
    uint32_t freq_set;
};
/* path: of the tiny executor, "llama layers=2" */
void model_kit_open(struct model_kit *k, const char *path, uint32_t dtype, uint32_t n_slots);
void model_kit_close(struct model_kit *k);
/* Random tokens of the vocabulary. */
void model_kit_tokens(const struct model_kit *k, uint32_t *tokens, uint32_t n, uint64_t seed);
/* Begins a causal pass of tokens [first, first + n) at their own positions. */
int model_kit_begin(struct model_kit *k, const uint32_t *tokens, uint32_t first, uint32_t n);
/* The whole of it; logits of its last row. */
void model_kit_prefill(struct model_kit *k, const uint32_t *tokens, uint32_t first, uint32_t n,
                       float *logits);
/* The row of a plane (0 K, 1 V) in the session's memory. */
float *model_kit_row(const struct model_kit *k, uint32_t plane, uint32_t layer, uint32_t slot);
/* Turns a float row of K on by so many positions. */
void model_kit_turn(const struct model_kit *k, float *row, int64_t delta);

#endif
