/* methods.c - ways to answer, by their names on the command line and in tables. */
#include "lab/answers.h"

#include <math.h>
#include <stdlib.h>

static const char *const kinds[] = {[TSRI_METHOD_PREFILL] = "prefill",
                                    [TSRI_METHOD_REUSE] = "reuse",
                                    [TSRI_METHOD_CACHEBLEND] = "cacheblend",
                                    [TSRI_METHOD_TESSERA] = "tessera",
                                    [TSRI_METHOD_ROUNDS] = "rounds"};

/* Without a ratio, all but rounds. */
static bool takes(enum tsri_method_kind kind, double ratio)
{
    switch (kind) {
    case TSRI_METHOD_CACHEBLEND:
    case TSRI_METHOD_TESSERA:
        return isnan(ratio) || (ratio >= 0 && ratio <= 1);
    case TSRI_METHOD_ROUNDS:
        return ratio > 0 && ratio < 1;
    default:
        return isnan(ratio);
    }
}

/* NAME or NAME@RATIO. */
static int parse_one(struct tsri_method *m, const char *text, size_t n)
{
    *m = (struct tsri_method){.ratio = NAN};
    if (n == 0 || n >= sizeof m->name) return TSR_EINVAL;
    memcpy(m->name, text, n);
    const char *at = strchr(m->name, '@');
    size_t length = at ? (size_t)(at - m->name) : n;
    for (size_t i = 0; i < TSRI_COUNT(kinds); i++) {
        if (strlen(kinds[i]) != length || memcmp(kinds[i], m->name, length) != 0) continue;
        m->kind = (enum tsri_method_kind)i;
        char *end = m->name + n;
        if (at) m->ratio = strtod(at + 1, &end);
        bool whole = !at || (end != at + 1 && !*end && !isnan(m->ratio));
        return whole && takes(m->kind, m->ratio) ? 0 : TSR_EINVAL;
    }
    return TSR_EINVAL;
}

static bool known(const struct tsri_methods *m, const char *name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->items[i].name, name) == 0) return true;
    return false;
}

int tsri_methods_parse(struct tsri_methods *m, const char *list)
{
    m->n = 1;
    if (parse_one(&m->items[0], "prefill", 7) != 0) return TSR_EINVAL;
    for (const char *at = list;; at++) {
        struct tsri_method one;
        size_t n = strcspn(at, ",");
        if (parse_one(&one, at, n) != 0)
            return tsri_fail(TSR_EINVAL,
                             "%.*s: must be prefill, reuse, cacheblend, tessera, one of the last "
                             "two with a ratio, as tessera@0.05, or rounds with one",
                             (int)n, at);
        if (!known(m, one.name)) {
            if (m->n == TSRI_METHODS_MAX)
                return tsri_fail(TSR_EINVAL, "more than %u methods", TSRI_METHODS_MAX);
            m->items[m->n++] = one;
        }
        at += n;
        if (!*at) return 0;
    }
}
