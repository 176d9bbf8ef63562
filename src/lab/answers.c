/* answers.c - compares answers as the question answering field does: lower case, no punctuation, no
 * articles, words apart by one space; then equality, or overlap of words. */
#include "lab/quality.h"

#include <ctype.h>
#include <stdlib.h>

#define WORDS_MAX 256u

struct words {
    char *text; /* cut into words by zeros */
    const char *word[WORDS_MAX];
    uint32_t n;
};

static bool is_article(const char *w)
{
    return strcmp(w, "a") == 0 || strcmp(w, "an") == 0 || strcmp(w, "the") == 0;
}

/* False without memory. Bytes of other than ASCII characters are parts of words. */
static bool words_init(struct words *w, const char *text)
{
    w->n = 0;
    w->text = strdup(text);
    if (!w->text) return false;
    char *to = w->text;
    for (const char *from = text; *from; from++) {
        unsigned char c = (unsigned char)*from;
        if (c < 128 && ispunct(c)) continue;
        *to++ = (char)(c < 128 ? tolower(c) : c);
    }
    *to = 0;
    char *rest = NULL;
    for (char *t = strtok_r(w->text, " \t\r\n\f\v", &rest); t && w->n < WORDS_MAX;
         t = strtok_r(NULL, " \t\r\n\f\v", &rest))
        if (!is_article(t)) w->word[w->n++] = t;
    return true;
}

static bool same_words(const struct words *a, const struct words *b)
{
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (strcmp(a->word[i], b->word[i]) != 0) return false;
    return true;
}

static double overlap(const struct words *a, const struct words *b)
{
    bool used[WORDS_MAX] = {false};
    uint32_t common = 0;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t k = 0; k < b->n; k++)
            if (!used[k] && strcmp(a->word[i], b->word[k]) == 0) {
                used[k] = true;
                common++;
                break;
            }
    return a->n + b->n ? 2.0 * common / (a->n + b->n) : 1;
}

static double best(const char *given, char *const *right, size_t n, bool exact)
{
    struct words a, b;
    double top = 0;
    if (!words_init(&a, given)) return 0;
    for (size_t i = 0; i < n; i++) {
        if (!words_init(&b, right[i])) continue;
        double score = exact ? same_words(&a, &b) : overlap(&a, &b);
        if (score > top) top = score;
        free(b.text);
    }
    free(a.text);
    return top;
}

static bool holds(const struct words *text, const struct words *part)
{
    for (uint32_t at = 0; part->n && at + part->n <= text->n; at++) {
        uint32_t i = 0;
        while (i < part->n && strcmp(text->word[at + i], part->word[i]) == 0)
            i++;
        if (i == part->n) return true;
    }
    return false;
}

double tsri_answer_right(const char *given, char *const *right, size_t n)
{
    struct words a, b;
    bool found = false;
    if (!words_init(&a, given)) return 0;
    for (size_t i = 0; i < n && !found; i++) {
        if (!words_init(&b, right[i])) continue;
        found = holds(&a, &b);
        free(b.text);
    }
    free(a.text);
    return found;
}

double tsri_answer_exact(const char *given, char *const *right, size_t n)
{
    return best(given, right, n, true);
}

double tsri_answer_f1(const char *given, char *const *right, size_t n)
{
    return best(given, right, n, false);
}
