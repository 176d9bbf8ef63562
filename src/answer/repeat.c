/* repeat.c - notices that an answer repeats itself. Small models that always take the most likely
 * token fall into loops: the same sentence until the answer is full. Lists and code repeat too, but
 * not the very same words three times in a row over a sentence's length.
 *
 * A text that repeats with a cycle of q bytes equals itself moved by q. So for each q we count the
 * bytes at the end that equal those q before them: this *run* is everything behind the first time
 * that the cycle is said. */
#include "answer/repeat.h"

#include <ctype.h>
#include <stdbool.h>

static size_t run_of(const char *text, size_t n, size_t q)
{
    size_t run = 0;
    while (run + q < n && text[n - 1 - run] == text[n - 1 - run - q])
        run++;
    return run;
}

/* Bytes of other alphabets count as letters. */
static bool has_letter(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isalpha((unsigned char)text[i]) || (unsigned char)text[i] >= 0x80) return true;
    return false;
}

static bool ends_sentence(char c)
{
    return c == '.' || c == '!' || c == '?' || c == '\n';
}

/* A run begins anywhere in a sentence: the first end of one from `at` on, if there is one. */
static size_t whole_sentence(const char *text, size_t at, size_t end)
{
    if (at && ends_sentence(text[at - 1])) return at;
    for (size_t i = at; i < end; i++)
        if (ends_sentence(text[i]) && (i + 1 == end || isspace((unsigned char)text[i + 1])))
            return i + 1;
    return at;
}

size_t tsri_repeat_cut(const char *text, size_t n)
{
    for (size_t q = 1; q <= TSRI_REPEAT_CYCLE_MAX && 3 * q <= n; q++) {
        size_t run = run_of(text, n, q), repeated = run + q;
        if (repeated < 3 * q || repeated < TSRI_REPEAT_BYTES) continue;
        if (repeated < TSRI_REPEAT_BYTES_NO_WORD && !has_letter(text + n - q, q)) continue;
        size_t keep = whole_sentence(text, n - run, n - run + q);
        while (keep < n && ((unsigned char)text[keep] & 0xC0) == 0x80)
            keep++;
        return keep;
    }
    return n;
}

size_t tsri_repeat_safe(const char *text, size_t n)
{
    size_t longest = 0;
    for (size_t q = 1; q <= TSRI_REPEAT_CYCLE_MAX && q < n; q++) {
        size_t run = run_of(text, n, q);
        if (run > longest) longest = run;
    }
    return n - longest;
}
