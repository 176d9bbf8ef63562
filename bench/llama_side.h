/* llama_side.h - libllama by itself, on the model and threads of bench_blend: what its own users
 * have. Compiled where llama.cpp is installed. */
#ifndef TSRI_LLAMA_SIDE_H
#define TSRI_LLAMA_SIDE_H

#include <stdbool.h>
#include <stdint.h>

struct llama_side;
struct llama_side *llama_side_open(const char *path, uint32_t n_ctx, uint32_t n_threads);
void llama_side_close(struct llama_side *s);
/* Forgets everything, then reads the tokens; logits of the last one, valid until the next call. */
const float *llama_side_prefill(struct llama_side *s, const uint32_t *tokens, uint32_t n);
/* One more token behind what was read. */
const float *llama_side_decode(struct llama_side *s, uint32_t token);
/* Reads a prompt over what the context holds of another one, the way llama-server does it with
 * --cache-reuse 64: the common prefix, then runs of at least 64 tokens that come in the same order
 * in both, moved to their new place; the rest is computed. Returns how many tokens were computed.
 */
uint32_t llama_side_reuse(struct llama_side *s, const uint32_t *tokens, uint32_t n);

#endif
