/* passages.c - where a text is cut. Of the places where a passage may end, the one is taken whose
 * surroundings hash lowest: the choice depends on the text there and not on what comes before, so
 * two versions of a file that differ at one place are cut the same again soon behind it. */
#include "search/search.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* A passage ends between these if it can: 350 tokens on average. */
#define BYTES_MIN 700u
#define BYTES_AIM 2000u
/* Bytes on either side of a place that decide about it. */
#define NEAR 24u

enum { PARAGRAPH, LINE, SENTENCE, WORD, N_LEVELS };

static bool blank_line_before(const char *text, size_t at)
{
    if (text[at - 1] != '\n') return false;
    for (size_t i = at - 1; i > 0; i--) {
        if (text[i - 1] == '\n') return true;
        if (text[i - 1] != ' ' && text[i - 1] != '\t') return false;
    }
    return false;
}

/* Whether a passage may end before the byte `at`, which is not the first. */
static bool may_end(const char *text, size_t at, int level)
{
    char before = text[at - 1], second = text[at - 2];
    switch (level) {
    case PARAGRAPH:
        return text[at] != '\n' && blank_line_before(text, at);
    case LINE:
        return before == '\n';
    case SENTENCE:
        /* U+3002 is the full stop of Chinese and Japanese. */
        return (before == ' ' && (second == '.' || second == '!' || second == '?')) ||
               memcmp(text + at - 3, "\xE3\x80\x82", 3) == 0;
    default:
        return before == ' ';
    }
}

/* Low is good. A heading belongs to what follows it. */
static uint64_t score(const char *text, size_t at)
{
    uint64_t hash = XXH3_64bits(text + at - NEAR, 2 * (size_t)NEAR) >> 1;
    return text[at] == '#' ? hash : hash | (uint64_t)1 << 63;
}

static size_t best_end(const char *text, int level)
{
    uint64_t best_score = UINT64_MAX;
    size_t best = 0;
    for (size_t at = BYTES_MIN; at <= BYTES_AIM; at++) {
        if (!may_end(text, at, level)) continue;
        uint64_t here = score(text, at);
        if (here >= best_score) continue;
        best_score = here;
        best = at;
    }
    return best;
}

size_t tsri_passage_bytes(const char *text, size_t bytes)
{
    if (bytes <= TSRI_PASSAGE_BYTES_MAX) return bytes;
    for (int level = PARAGRAPH; level < N_LEVELS; level++) {
        size_t end = best_end(text, level);
        if (end) return end;
        /* One long paragraph is better whole than cut. */
        for (size_t at = BYTES_AIM + 1; level == PARAGRAPH && at <= TSRI_PASSAGE_BYTES_MAX; at++)
            if (may_end(text, at, level)) return at;
    }
    size_t end = BYTES_AIM;
    while (end > BYTES_AIM - 4 && ((unsigned char)text[end] & 0xC0) == 0x80)
        end--;
    return end;
}
