/* rope_text.c - rotary positions as text: the canonical one of a space's identity, and back, for
 * people who type it. One line of words: rope=llama3 pairing=neox dims=128 theta=500000 factor=8
 * trained=8192 low=1 high=4. What is written has hexadecimal floats; what is read may have decimals.
 * A word that the scaling does not use is refused: it would not act, and nobody would know. */
#include "device/device.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {"plain", "linear", "dynamic", "yarn", "llama3", "longrope"};

/* ---- to text ---- */

/* snprintf that goes on counting behind the end of the buffer. */
static void put(char *buf, size_t bytes, size_t *at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void put(char *buf, size_t bytes, size_t *at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(*at < bytes ? buf + *at : NULL, *at < bytes ? bytes - *at : 0, fmt, ap);
    va_end(ap);
    if (n > 0) *at += (size_t)n;
}

/* Doubles as hexadecimal floats: every bit counts, and no rounding of decimals enters. */
int tsri_rope_text(const struct tsr_rope *r, char *buf, size_t bytes)
{
    int e = tsri_rope_check(r);
    if (e) return e;
    size_t at = 0;
    put(buf, bytes, &at, "rope=%s pairing=%s dims=%u theta=%a", names[r->scaling],
        r->pairing == TSR_ROPE_NEOX ? "neox" : "gptj", r->dims, r->theta);
    if (r->scaling >= TSR_ROPE_LINEAR) put(buf, bytes, &at, " factor=%a", r->factor);
    if (r->scaling >= TSR_ROPE_DYNAMIC) put(buf, bytes, &at, " trained=%u", r->trained);
    if (r->scaling == TSR_ROPE_LLAMA3)
        put(buf, bytes, &at, " low=%a high=%a", r->low_freq_factor, r->high_freq_factor);
    /* As given, not as derived: logarithms differ in the last bit from one libm to the next. */
    if (r->attention_factor > 0 && (r->scaling == TSR_ROPE_YARN || r->scaling == TSR_ROPE_LONGROPE))
        put(buf, bytes, &at, " attention=%a", r->attention_factor);
    else if (r->scaling == TSR_ROPE_YARN && r->mscale > 0 && r->mscale_all_dim > 0)
        put(buf, bytes, &at, " mscale=%a/%a", r->mscale, r->mscale_all_dim);
    if (r->scaling == TSR_ROPE_YARN)
        put(buf, bytes, &at, " fast=%a slow=%a exact=%u", r->beta_fast > 0 ? r->beta_fast : 32,
            r->beta_slow > 0 ? r->beta_slow : 1, r->yarn_exact ? 1u : 0u);
    for (uint32_t i = 0; r->scaling == TSR_ROPE_LONGROPE && i < r->n_factors; i++)
        put(buf, bytes, &at, "%s%a/%a", i ? "," : " factors=", r->short_factors[i],
            r->long_factors[i]);
    return (int)at;
}

/* ---- from text ---- */

#define ALL (~0u)
#define SCALED (ALL & ~(1u << TSR_ROPE_PLAIN))
#define TRAINED (SCALED & ~(1u << TSR_ROPE_LINEAR))
#define ATTENTION (1u << TSR_ROPE_YARN | 1u << TSR_ROPE_LONGROPE)

/* The words, and the scalings that use them. */
static const struct {
    const char *name;
    enum { SCALING, PAIRING, WHOLE, NUMBER, MSCALES, FACTORS } form;
    uint32_t scalings;
    size_t at; /* in struct tsr_rope, of a whole number or another */
} words[] = {
    {"rope", SCALING, ALL, 0},
    {"pairing", PAIRING, ALL, 0},
    {"dims", WHOLE, ALL, offsetof(struct tsr_rope, dims)},
    {"theta", NUMBER, ALL, offsetof(struct tsr_rope, theta)},
    {"factor", NUMBER, SCALED, offsetof(struct tsr_rope, factor)},
    {"trained", WHOLE, TRAINED, offsetof(struct tsr_rope, trained)},
    {"low", NUMBER, 1u << TSR_ROPE_LLAMA3, offsetof(struct tsr_rope, low_freq_factor)},
    {"high", NUMBER, 1u << TSR_ROPE_LLAMA3, offsetof(struct tsr_rope, high_freq_factor)},
    {"attention", NUMBER, ATTENTION, offsetof(struct tsr_rope, attention_factor)},
    {"mscale", MSCALES, 1u << TSR_ROPE_YARN, 0},
    {"fast", NUMBER, 1u << TSR_ROPE_YARN, offsetof(struct tsr_rope, beta_fast)},
    {"slow", NUMBER, 1u << TSR_ROPE_YARN, offsetof(struct tsr_rope, beta_slow)},
    {"exact", WHOLE, 1u << TSR_ROPE_YARN, offsetof(struct tsr_rope, yarn_exact)},
    {"factors", FACTORS, 1u << TSR_ROPE_LONGROPE, 0},
};

static bool read_double(const char **at, double *out)
{
    char *end;
    if (isspace((unsigned char)**at)) return false; /* strtod would skip it */
    *out = strtod(*at, &end);
    bool is_number = end != *at;
    *at = end;
    return is_number;
}

static bool read_quotient(const char **at, double *a, double *b)
{
    if (!read_double(at, a) || **at != '/') return false;
    ++*at;
    return read_double(at, b);
}

static bool read_factors(struct tsri_rope_read *out, const char **at)
{
    uint32_t n = 0;
    do {
        *at += n > 0; /* the comma */
        if (n == TSRI_ROPE_PAIRS_MAX ||
            !read_quotient(at, &out->short_factors[n], &out->long_factors[n]))
            return false;
        n++;
    } while (**at == ',');
    out->rope.n_factors = n;
    out->rope.short_factors = out->short_factors;
    out->rope.long_factors = out->long_factors;
    return true;
}

/* Which of the names the value is; leaves *at behind it. */
static bool read_name(const char **at, const char *const *list, uint32_t n, uint32_t *out)
{
    size_t length = strcspn(*at, " \t");
    for (*out = 0; *out < n; ++*out)
        if (strlen(list[*out]) == length && strncmp(*at, list[*out], length) == 0) break;
    *at += length;
    return *out < n;
}

static bool read_whole(const char **at, uint32_t *out)
{
    double v;
    if (!read_double(at, &v) || !(v >= 0 && v <= UINT32_MAX) || v != (double)(uint32_t)v)
        return false;
    *out = (uint32_t)v;
    return true;
}

static bool read_value(struct tsri_rope_read *out, size_t word, const char **at)
{
    static const char *const pairings[] = {"neox", "gptj"};
    struct tsr_rope *r = &out->rope;
    uint8_t *field = (uint8_t *)r + words[word].at;
    switch (words[word].form) {
    case SCALING:
        return read_name(at, names, TSRI_COUNT(names), &r->scaling);
    case PAIRING: {
        bool known = read_name(at, pairings, TSRI_COUNT(pairings), &r->pairing);
        r->pairing += TSR_ROPE_NEOX;
        return known;
    }
    case WHOLE:
        return read_whole(at, (uint32_t *)(void *)field);
    case NUMBER:
        return read_double(at, (double *)(void *)field);
    case MSCALES:
        return read_quotient(at, &r->mscale, &r->mscale_all_dim);
    case FACTORS:
        return read_factors(out, at);
    }
    return false;
}

int tsri_rope_read(struct tsri_rope_read *out, const char *text, uint32_t dims)
{
    uint32_t seen = 0;
    *out = (struct tsri_rope_read){
        .rope = {.size = sizeof out->rope, .pairing = TSR_ROPE_NEOX, .dims = dims}};
    for (const char *at = text; *(at += strspn(at, " \t"));) {
        const char *begin = at;
        int length = (int)strcspn(at, " \t");
        size_t word = 0, name = strcspn(at, "= \t");
        while (word < TSRI_COUNT(words) &&
               (strlen(words[word].name) != name || strncmp(words[word].name, at, name) != 0))
            word++;
        if (word == TSRI_COUNT(words) || at[name] != '=')
            return tsri_fail(TSR_EINVAL, "rope: unknown word: %.*s", length, begin);
        if (seen >> word & 1)
            return tsri_fail(TSR_EINVAL, "rope: %s is there twice", words[word].name);
        seen |= 1u << word;
        at += name + 1;
        if (!read_value(out, word, &at) || at != begin + length)
            return tsri_fail(TSR_EINVAL, "rope: wrong value: %.*s", length, begin);
    }
    for (size_t w = 0; w < TSRI_COUNT(words); w++)
        if (seen >> w & 1 && !(words[w].scalings >> out->rope.scaling & 1))
            return tsri_fail(TSR_EINVAL, "rope: %s has no meaning for %s", words[w].name,
                             names[out->rope.scaling]);
    return tsri_rope_check(&out->rope);
}
