/* folding.c - from text to the words that the index has. FTS5 splits words, folds case and accents
 * and takes English endings off (docs/architecture.md); here is what it cannot do: writing without
 * spaces, and questions that people type. */
#include "search/inside.h"

#include <stdlib.h>
#include <strings.h>

#define TERMS_MAX 64u
#define TERM_BYTES_MAX 128u
#define QUESTION_BYTES_MAX ((size_t)64 << 10) /* a search looks at no more of a question */

/* ---- writing without spaces ---- */

static uint32_t code_point(const char *s, int n)
{
    const unsigned char *u = (const unsigned char *)s;
    if (n == 2) return (uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3F);
    if (n == 3) return (uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (u[2] & 0x3F);
    if (n == 4)
        return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 |
               (uint32_t)(u[2] & 0x3F) << 6 | (u[3] & 0x3F);
    return u[0];
}

/* Kana, Han and Hangul. Korean has spaces, and endings that stand in the way of whole words. */
static bool is_unspaced(uint32_t c)
{
    return (c >= 0x3040 && c <= 0x30FF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7AF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0xFF66 && c <= 0xFF9F) ||
           (c >= 0x20000 && c <= 0x3FFFF);
}

/* Bytes of the character here, 0 if it is another kind of text or none is left. */
static size_t unspaced(const char *text, size_t at, size_t bytes)
{
    if (at >= bytes || (unsigned char)text[at] < 0xE0) return 0;
    int n = tsri_utf8_length(text + at);
    return n >= 3 && at + (size_t)n <= bytes && is_unspaced(code_point(text + at, n)) ? (size_t)n
                                                                                      : 0;
}

int tsri_fold(struct tsri_prose *out, const char *text, size_t bytes)
{
    int err = 0;
    size_t plain = 0; /* from here on the text is taken as it is */
    for (size_t i = 0; i < bytes && !err;) {
        size_t here = unspaced(text, i, bytes);
        if (!here) {
            i++;
            continue;
        }
        err = tsri_prose_add(out, text + plain, i - plain);
        size_t next = unspaced(text, i + here, bytes);
        do {
            if (!err) err = tsri_prose_add(out, " ", 1);
            if (!err) err = tsri_prose_add(out, text + i, here + next);
            i += here;
            here = next;
            next = unspaced(text, i + here, bytes);
        } while (next && !err);
        i += here; /* the last one is part of the last pair */
        if (!err) err = tsri_prose_add(out, " ", 1);
        plain = i;
    }
    return err ? err : tsri_prose_add(out, text + plain, bytes - plain);
}

/* ---- questions ---- */

/* Words that most passages have and no question is about. Left out of queries, unless a question has
 * no others: they would be harmless, and slow. Sorted. */
static const char *const common[] = {
    "a",    "about",  "after", "all",  "also", "am",     "an",    "and",   "any",   "are",
    "as",   "at",     "be",    "been", "but",  "by",     "can",   "could", "d",     "did",
    "do",   "does",   "for",   "from", "get",  "give",   "had",   "has",   "have",  "he",
    "her",  "his",    "how",   "i",    "if",   "in",     "into",  "is",    "it",    "its",
    "ll",   "m",      "may",   "me",   "my",   "no",     "not",   "of",    "on",    "or",
    "our",  "please", "re",    "s",    "she",  "should", "so",    "t",     "tell",  "than",
    "that", "the",    "their", "them", "then", "there",  "these", "they",  "this",  "those",
    "to",   "ve",     "was",   "we",   "were", "what",   "when",  "where", "which", "who",
    "whom", "whose",  "why",   "will", "with", "would",  "you",   "your",
};

struct term {
    const char *text;
    size_t bytes;
};

static int by_word(const void *term, const void *word)
{
    const struct term *t = term;
    const char *w = *(const char *const *)word;
    int order = strncasecmp(t->text, w, t->bytes);
    return order ? order : -(w[t->bytes] != 0);
}

static bool is_common(const struct term *t)
{
    return bsearch(t, common, TSRI_COUNT(common), sizeof common[0], by_word) != NULL;
}

/* Punctuation of Unicode that joins words if it is not taken for what it is. */
static bool is_mark(uint32_t c)
{
    return (c >= 0x80 && c <= 0xBF) || (c >= 0x2000 && c <= 0x206F) ||
           (c >= 0x2E00 && c <= 0x2E7F) || (c >= 0x3000 && c <= 0x303F) ||
           (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF0F) ||
           (c >= 0xFF1A && c <= 0xFF20);
}

/* Bytes of the character here; *part: it belongs to a word. What is no UTF-8 separates. */
static size_t character(const char *s, bool *part)
{
    int n = tsri_utf8_length(s);
    unsigned char c = (unsigned char)*s;
    *part = n > 1 ? !is_mark(code_point(s, n))
                  : n == 1 && ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                               (c >= 'a' && c <= 'z'));
    return n ? (size_t)n : 1;
}

/* The next word from *at on; false at the end. */
static bool next_term(const struct tsri_prose *t, size_t *at, struct term *out)
{
    bool part = false;
    size_t n = 0;
    while (*at < t->bytes && (n = character(t->data + *at, &part), !part))
        *at += n;
    out->text = t->data + *at;
    out->bytes = 0;
    while (*at < t->bytes && (n = character(t->data + *at, &part), part)) {
        *at += n;
        out->bytes += n;
    }
    return out->bytes > 0;
}

static bool is_known(const struct term *terms, size_t n, const struct term *t)
{
    for (size_t i = 0; i < n; i++)
        if (terms[i].bytes == t->bytes && strncasecmp(terms[i].text, t->text, t->bytes) == 0)
            return true;
    return false;
}

static size_t terms_of(const struct tsri_prose *folded, bool with_common, struct term *terms)
{
    struct term t;
    size_t n = 0;
    for (size_t at = 0; n < TERMS_MAX && next_term(folded, &at, &t);) {
        if (t.bytes > TERM_BYTES_MAX || is_known(terms, n, &t)) continue;
        if (with_common || !is_common(&t)) terms[n++] = t;
    }
    return n;
}

bool tsri_search_has_subject(const char *question)
{
    struct tsri_prose folded = {0};
    struct term terms[TERMS_MAX];
    bool has = tsri_fold(&folded, question, strnlen(question, QUESTION_BYTES_MAX)) == 0 &&
               tsri_prose_add(&folded, "", 0) == 0 && terms_of(&folded, false, terms) > 0;
    tsri_prose_fini(&folded);
    return has;
}

int tsri_query(struct tsri_prose *out, const char *question)
{
    struct tsri_prose folded = {0};
    struct term terms[TERMS_MAX];
    int err = tsri_fold(&folded, question, strnlen(question, QUESTION_BYTES_MAX));
    if (!err) err = tsri_prose_add(out, "", 0);
    size_t n = err ? 0 : terms_of(&folded, false, terms);
    if (!err && n == 0) n = terms_of(&folded, true, terms);
    for (size_t i = 0; i < n && !err; i++) {
        err = tsri_prose_add(out, i ? " OR \"" : "\"", i ? 5 : 1);
        if (!err) err = tsri_prose_add(out, terms[i].text, terms[i].bytes);
        if (!err) err = tsri_prose_add(out, "\"", 1);
    }
    tsri_prose_fini(&folded);
    return err;
}
