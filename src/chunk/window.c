/* window.c - the hashes by which text is found at any offset: one of every 32 tokens. The hash is a
 * polynomial in 64 bits, so that a prompt's windows cost one multiplication and two sums a token
 * (cache/windows.c rolls it); then space and request-wide extra are mixed in, so that texts of
 * other spaces, adapters and salts do not even nominate each other. Stores keep these hashes
 * (docs/format.md): they are the same in every process. They only nominate, and resist nobody. */
#include "chunk/chunk.h"

#include <string.h>

#define PERIODS 8u /* a window that repeats itself after fewer tokens is not worth registering */

uint64_t tsri_window_hash(const uint32_t *tokens)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < TSRI_WINDOW; i++)
        h = h * TSRI_WINDOW_BASE + tokens[i];
    return h;
}

uint64_t tsri_window_seed(const uint8_t space[16], struct tsri_key extra)
{
    uint64_t fingerprint[2];
    memcpy(fingerprint, space, sizeof fingerprint);
    return (fingerprint[0] ^ extra.lo) + (fingerprint[1] ^ extra.hi) * TSRI_WINDOW_BASE;
}

static bool is_repetitive(const uint32_t *tokens)
{
    for (uint32_t period = 1; period < PERIODS; period++) {
        uint32_t i = period;
        while (i < TSRI_WINDOW && tokens[i] == tokens[i - period])
            i++;
        if (i == TSRI_WINDOW) return true;
    }
    return false;
}

void tsri_window_hashes(uint64_t seed, const uint32_t *tokens, uint32_t n, uint64_t *out)
{
    for (uint32_t i = 0; i < n; i++, tokens += TSRI_WINDOW)
        out[i] = is_repetitive(tokens) ? 0 : tsri_window_finish(tsri_window_hash(tokens), seed);
}
