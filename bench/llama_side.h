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

/* Several sequences in one context, as llama-server has them: n_each tokens for each. `loaded` (or NULL)
 * is called when the weights are there and nothing else. */
struct llama_team;
struct llama_team *llama_team_open(const char *path, uint32_t n_sequences, uint32_t n_each,
                                   uint32_t n_threads, void (*loaded)(void));
void llama_team_close(struct llama_team *t);
/* Forgets a sequence, then reads the tokens. */
void llama_team_prefill(struct llama_team *t, uint32_t sequence, const uint32_t *tokens,
                        uint32_t n);
/* One more token of each of the first n sequences, in one batch; logits of the first. */
const float *llama_team_decode(struct llama_team *t, const uint32_t *tokens, uint32_t n);
/* Forgets the last n tokens of each of the first sequences. */
void llama_team_back(struct llama_team *t, uint32_t n_sequences, uint32_t n);

#endif
