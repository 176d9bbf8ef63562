/* fact_words.c - whether two answers say the same, in whatever words. "TM-688" and "The shredder is
 * TM-688." do, "EUR 40" and "$40" do not.
 *
 * What counts are fact words: those of an answer that are neither function words (of, the, is) nor
 * words of the question. Two answers say the same if they have the same fact words, in any order.
 * Words of the question may be left out or repeated, but not exchanged: to "Monday or Tuesday?" the
 * two days are different answers. An answer without any fact word must have the other's words.
 *
 * It errs on the side of a difference. A word is compared without case, and without the endings of
 * plurals and verbs unless it is a name or a number. "two" and "2", or "quick" and "fast", differ. Not
 * noticed: who did what to whom ("Ann met Bo", "Bo met Ann"), and prepositions. */
#include "answer/answer.h"

#include <ctype.h>

/* Longer words are cut into several, so no part of them is lost. */
#define WORD_BYTES 48u
/* Longer answers must be equal to say the same. */
#define WORDS_MAX 256u
#define STEM_MIN 4u

struct fact_word {
    char text[WORD_BYTES]; /* lower case, not ended by a zero */
    uint8_t n, n_stem;     /* bytes; of these, without an ending */
    bool capital, number;
    bool known; /* from the question */
};

struct fact_words {
    struct fact_word items[WORDS_MAX];
    uint32_t n;
};

/* ---- characters ---- */

enum glyph_kind { GLYPH_SPACE, GLYPH_LETTER, GLYPH_DIGIT, GLYPH_JOINT, GLYPH_SIGN };

struct glyph {
    enum glyph_kind kind;
    char as; /* a joint: its ASCII form */
    uint8_t bytes;
};

/* Other characters than ASCII are letters, byte by byte, but for these. */
static const struct {
    const char *bytes;
    struct glyph glyph;
} others[] = {
    {"\xe2\x82\xac", {GLYPH_SIGN, 0, 3}}, /* euro */
    {"\xc2\xa3", {GLYPH_SIGN, 0, 2}},     /* pound */
    {"\xc2\xa5", {GLYPH_SIGN, 0, 2}},     /* yen */
    {"\xc2\xa0", {GLYPH_SPACE, 0, 2}},    /* space that does not break */
    {"\xc2\xab", {GLYPH_SPACE, 0, 2}},    /* angle quotes */
    {"\xc2\xbb", {GLYPH_SPACE, 0, 2}},
    {"\xe2\x80\x90", {GLYPH_JOINT, '-', 3}}, /* hyphens and dashes, up to the en dash */
    {"\xe2\x80\x91", {GLYPH_JOINT, '-', 3}},
    {"\xe2\x80\x92", {GLYPH_JOINT, '-', 3}},
    {"\xe2\x80\x93", {GLYPH_JOINT, '-', 3}},
    {"\xe2\x88\x92", {GLYPH_JOINT, '-', 3}},  /* minus */
    {"\xe2\x80\x98", {GLYPH_JOINT, '\'', 3}}, /* single quotes, apostrophe */
    {"\xe2\x80\x99", {GLYPH_JOINT, '\'', 3}},
};

static struct glyph glyph_at(const char *text)
{
    unsigned char c = (unsigned char)*text;
    if (c >= 128) {
        for (size_t i = 0; i < TSRI_COUNT(others); i++)
            if (strncmp(text, others[i].bytes, others[i].glyph.bytes) == 0) return others[i].glyph;
        /* Quotes, long dashes, thin spaces, the ellipsis. */
        if (strncmp(text, "\xe2\x80", 2) == 0 && ((unsigned char)text[2] & 0xc0) == 0x80)
            return (struct glyph){GLYPH_SPACE, 0, 3};
        return (struct glyph){GLYPH_LETTER, 0, 1};
    }
    if (isdigit(c)) return (struct glyph){GLYPH_DIGIT, 0, 1};
    if (isalpha(c)) return (struct glyph){GLYPH_LETTER, 0, 1};
    if (c == '$' || c == '%') return (struct glyph){GLYPH_SIGN, 0, 1};
    if (c && strchr("-.,:'/", c)) return (struct glyph){GLYPH_JOINT, (char)c, 1};
    return (struct glyph){GLYPH_SPACE, 0, c != 0};
}

static bool is_part(struct glyph g)
{
    return g.kind == GLYPH_LETTER || g.kind == GLYPH_DIGIT;
}

/* ---- words ---- */

static bool ends_in(const struct fact_word *w, const char *ending)
{
    size_t n = strlen(ending);
    return w->n >= n && memcmp(w->text + w->n - n, ending, n) == 0;
}

/* 1,550 becomes 1550; 14,50 stays. */
static void drop_thousands(struct fact_word *w)
{
    uint8_t to = 0;
    for (uint8_t i = 0; i < w->n; i++) {
        uint8_t digits = 0;
        while (i + 1 + digits < w->n && isdigit((unsigned char)w->text[i + 1 + digits]))
            digits++;
        if (w->text[i] != ',' || digits != 3) w->text[to++] = w->text[i];
    }
    w->n = to;
}

static void find_stem(struct fact_word *w)
{
    static const char *const endings[] = {"ing", "ed", "es", "s"};
    /* 1970's is not 1970. */
    if (!w->number && w->n > 2 && ends_in(w, "'s")) w->n -= 2;
    if (w->number) drop_thousands(w);
    w->n_stem = w->n;
    for (size_t i = 0; i < TSRI_COUNT(endings) && !w->number; i++) {
        size_t n = strlen(endings[i]);
        if (w->n < STEM_MIN + n || !ends_in(w, endings[i])) continue;
        w->n_stem = (uint8_t)(w->n - n);
        break;
    }
}

/* False if the word is full. */
static bool add_bytes(struct fact_word *w, const char *bytes, size_t n)
{
    if (w->n + n > sizeof w->text) return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        w->number |= c < 128 && isdigit(c);
        w->text[w->n++] = (char)(c < 128 ? tolower(c) : c);
    }
    return true;
}

/* Characters that are between two parts of one word: 9:40, S-43, o'clock; 3/4, but not and/or. */
static bool joins(const char *at, struct glyph joint, struct glyph before)
{
    struct glyph after = glyph_at(at + joint.bytes);
    if (joint.as == '/') return before.kind == GLYPH_DIGIT && after.kind == GLYPH_DIGIT;
    return is_part(after);
}

/* Goes to the beginning of a word; *minus: it is a number below zero. */
static const char *skip_space(const char *at, bool *minus)
{
    *minus = false;
    for (struct glyph g; *at; at += g.bytes) {
        g = glyph_at(at);
        *minus = g.as == '-' && glyph_at(at + g.bytes).kind == GLYPH_DIGIT;
        if (*minus) return at + g.bytes;
        if (g.kind == GLYPH_SIGN || is_part(g)) break;
    }
    return at;
}

static bool next_word(const char **text, struct fact_word *w)
{
    bool minus;
    const char *at = skip_space(*text, &minus);
    if (!*at) return false;
    struct glyph g = glyph_at(at), before = g;
    memset(w, 0, sizeof *w);
    w->capital = isupper((unsigned char)*at) != 0;
    if (minus) add_bytes(w, "-", 1);
    if (g.kind == GLYPH_SIGN) {
        add_bytes(w, at, g.bytes);
        at += g.bytes;
    }
    for (; before.kind != GLYPH_SIGN; at += g.bytes, before = g) {
        g = glyph_at(at);
        bool joint = g.kind == GLYPH_JOINT && joins(at, g, before);
        if (!(joint || is_part(g)) || !add_bytes(w, joint ? &g.as : at, 1)) break;
    }
    find_stem(w);
    *text = at;
    return true;
}

static bool is_word(const struct fact_word *w, const char *text)
{
    return strlen(text) == w->n && memcmp(w->text, text, w->n) == 0;
}

static bool is_one_of(const struct fact_word *w, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_word(w, list[i])) return true;
    return false;
}

/* Words that carry no fact. No numbers, no negations, and "May" is a month. */
static bool is_function_word(const struct fact_word *w)
{
    static const char *const list[] = {
        "a",     "an",    "the",  "is",    "are",    "was",  "were",  "be",   "been",  "being",
        "am",    "do",    "does", "did",   "has",    "have", "had",   "will", "would", "shall",
        "can",   "could", "may",  "might", "should", "must", "of",    "in",   "on",    "at",
        "to",    "for",   "from", "by",    "with",   "and",  "or",    "as",   "that",  "this",
        "these", "those", "it",   "its",   "he",     "she",  "they",  "his",  "her",   "their",
        "them",  "him",   "who",  "which", "what",   "when", "where", "why",  "how",   "there",
        "than",  "then",  "also", "just",  "about",  "into"};
    if (w->capital && is_word(w, "may")) return false;
    return is_one_of(w, list, TSRI_COUNT(list));
}

/* Counts even where the question has it. */
static bool is_negation(const struct fact_word *w)
{
    static const char *const list[] = {"no",   "not",     "cannot", "never",
                                       "none", "neither", "nor",    "without"};
    return ends_in(w, "n't") || is_one_of(w, list, TSRI_COUNT(list));
}

/* ---- answers ---- */

static bool same_stem(const struct fact_word *a, const struct fact_word *b)
{
    return a->n_stem == b->n_stem && memcmp(a->text, b->text, a->n_stem) == 0;
}

/* Peters is another person than Peter. */
static bool same_word(const struct fact_word *a, const struct fact_word *b)
{
    if (a->n == b->n && memcmp(a->text, b->text, a->n) == 0) return true;
    return !a->capital && !b->capital && same_stem(a, b);
}

/* False if there are too many words. */
static bool collect(struct fact_words *out, const char *text)
{
    struct fact_word w;
    out->n = 0;
    while (next_word(&text, &w)) {
        if (is_function_word(&w)) continue;
        if (out->n == WORDS_MAX) return false;
        out->items[out->n++] = w;
    }
    return true;
}

static void mark_known(struct fact_words *words, const struct fact_word *asked)
{
    for (uint32_t i = 0; i < words->n; i++) {
        struct fact_word *w = &words->items[i];
        w->known |= same_stem(w, asked) && !is_negation(w);
    }
}

/* Whether `b` has the words of `a`: those known from the question, or the facts. */
static bool covers(const struct fact_words *b, const struct fact_words *a, bool known)
{
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t k = 0;
        if (a->items[i].known != known) continue;
        while (k < b->n && !same_word(&a->items[i], &b->items[k]))
            k++;
        if (k == b->n) return false;
    }
    return true;
}

static bool has_facts(const struct fact_words *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (!a->items[i].known) return true;
    return false;
}

bool tsri_fact_words_same(const char *question, const char *one, const char *other)
{
    struct fact_words a, b;
    struct fact_word asked;
    if (!collect(&a, one) || !collect(&b, other)) return strcmp(one, other) == 0;
    while (next_word(&question, &asked)) {
        mark_known(&a, &asked);
        mark_known(&b, &asked);
    }
    if (!covers(&a, &b, false) || !covers(&b, &a, false)) return false;
    bool more = covers(&a, &b, true), less = covers(&b, &a, true);
    return has_facts(&a) ? more || less : more && less;
}
