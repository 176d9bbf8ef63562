/* plain.h - a llama, qwen2 or qwen3 model computed as plainly as can be: in double, one row after
 * the other, straight out of a GGUF file with F32 weights. It shares no code with any executor, so
 * that what an executor reports of its attention can be compared with it. */
#ifndef TSRI_PLAIN_H
#define TSRI_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

struct plain_prompt {
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t n_mass_rows; /* the last so many rows are asked for their attention */
    bool halves;          /* K and V are kept as F16, as most executors keep them */
};

/* Adds the attention of the mass rows to mass[n_tokens], as struct tsr_model_layer says, over all
 * layers. Returns the number of layers, 0 when the file cannot be read. */
uint32_t plain_mass(const char *path, const struct plain_prompt *prompt, double *mass);

#endif
