/* fuzz_split.c - any spellings and any prompt are cut as the naive reference cuts them.
 * Input: how many spellings, ranges_max, their lengths, then one byte a token: spellings, prompt.
 */
#include "../support/split_naive.h"

#define TOKENS_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint32_t take(const uint8_t **data, size_t *bytes)
{
    if (!*bytes) return 0;
    --*bytes;
    return *(*data)++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct naive_spellings p;
    static uint32_t tokens[TOKENS_MAX];
    static struct tsr_range got[TOKENS_MAX], want[TOKENS_MAX];
    uint32_t n_spellings = take(&data, &bytes) % (TSRI_SEPARATORS_MAX + 2);
    uint32_t ranges_max = take(&data, &bytes);
    if (ranges_max >= 128) ranges_max = TOKENS_MAX;
    uint32_t lengths[TSRI_SEPARATORS_MAX + 1], total = 0;
    bool valid = n_spellings >= 1 && n_spellings <= TSRI_SEPARATORS_MAX;
    for (uint32_t i = 0; i < n_spellings; i++) {
        lengths[i] = take(&data, &bytes) % (TSRI_SEPARATOR_TOKENS_MAX + 2);
        valid = valid && lengths[i] >= 1 && lengths[i] <= TSRI_SEPARATOR_TOKENS_MAX;
    }
    p.n = 0;
    for (uint32_t i = 0; valid && i < n_spellings; i++) {
        p.lengths[p.n++] = lengths[i];
        for (uint32_t j = 0; j < lengths[i]; j++)
            p.tokens[total++] = take(&data, &bytes);
    }
    struct tsri_separators *s;
    int err = tsri_separators_open(&s, p.tokens, lengths, n_spellings);
    TSR_ASSERT((err == 0) == valid && (s != NULL) == valid);
    if (!valid) return 0;

    uint32_t n = 0;
    while (bytes && n < TOKENS_MAX)
        tokens[n++] = take(&data, &bytes);
    /* The end of the array is the end of the prompt, so that reading on is seen. */
    const uint32_t *prompt = memmove(tokens + TOKENS_MAX - n, tokens, n * sizeof *tokens);
    int a = tsri_split(s, prompt, n, got, ranges_max);
    int b = naive_split(&p, prompt, n, want, ranges_max);
    TSR_ASSERT(a == b);
    TSR_ASSERT(a < 0 || memcmp(got, want, (size_t)a * sizeof *got) == 0);
    tsri_separators_close(s);
    return 0;
}
