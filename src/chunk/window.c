/* window.c - the hashes by which text is found at any offset: one of every 32 tokens, and for text
 * with frequent edits one of 8 tokens in every 12 (a shingle). The hash is a
 * polynomial in 64 bits, so that a prompt's windows cost one multiplication and two sums a token
 * (cache/windows.c rolls it); then space and request-wide extra are mixed in, so that texts of
 * other spaces, adapters and salts do not even nominate each other. Stores keep these hashes
 * (docs/format.md): they are the same in every process. They only nominate, and resist nobody. */
#include "chunk/chunk.h"

#include <string.h>

/* What repeats itself after fewer tokens is not worth registering. */
#define WINDOW_PERIODS 8u
#define SHINGLE_PERIODS 4u

static inline uint64_t hash_of(const uint32_t *tokens, uint32_t n)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++)
        h = h * TSRI_WINDOW_BASE + tokens[i];
    return h;
}

uint64_t tsri_window_hash(const uint32_t *tokens)
{
    return hash_of(tokens, TSRI_WINDOW);
}

uint64_t tsri_shingle_hash(const uint32_t *tokens)
{
    return hash_of(tokens, TSRI_SHINGLE);
}

uint64_t tsri_window_seed(const uint8_t space[16], struct tsri_key extra)
{
    uint64_t fingerprint[2];
    memcpy(fingerprint, space, sizeof fingerprint);
    return (fingerprint[0] ^ extra.lo) + (fingerprint[1] ^ extra.hi) * TSRI_WINDOW_BASE;
}

static bool is_repetitive(const uint32_t *tokens, uint32_t n, uint32_t periods)
{
    for (uint32_t period = 1; period < periods; period++) {
        uint32_t i = period;
        while (i < n && tokens[i] == tokens[i - period])
            i++;
        if (i == n) return true;
    }
    return false;
}

void tsri_window_hashes(uint64_t seed, const uint32_t *tokens, uint32_t n, uint64_t *out)
{
    for (uint32_t i = 0; i < n; i++, tokens += TSRI_WINDOW)
        out[i] = is_repetitive(tokens, TSRI_WINDOW, WINDOW_PERIODS)
                     ? 0
                     : tsri_window_finish(tsri_window_hash(tokens), seed);
}

void tsri_shingle_hashes(uint64_t seed, const uint32_t *tokens, uint32_t n, uint32_t *out)
{
    for (uint32_t i = 0; i < n; i++, tokens += TSRI_SHINGLE_STRIDE)
        out[i] = is_repetitive(tokens, TSRI_SHINGLE, SHINGLE_PERIODS)
                     ? 0
                     : tsri_shingle_finish(tsri_shingle_hash(tokens), seed);
}
