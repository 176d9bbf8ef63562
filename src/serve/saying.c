/* saying.c - see saying.h. */
#include "serve/saying.h"

#include <stdlib.h>

int tsri_saying_add(struct tsri_saying *s, const char *bytes, size_t n)
{
    size_t before = s->n, first = s->n;
    if (s->stopped) return 0;
    char *more = tsri_make_room(s->text, &s->room, s->n + n + 1, 1);
    if (!more) return TSR_ENOMEM;
    s->text = more;
    memcpy(s->text + s->n, bytes, n);
    s->n += n;
    s->text[s->n] = 0;
    /* The earliest of all: what follows it was not asked for. */
    for (uint32_t i = 0; i < s->n_stops; i++) {
        size_t length = strlen(s->stops[i]);
        size_t from = before >= length ? before - length + 1 : 0;
        const char *at =
            s->n > from ? memmem(s->text + from, s->n - from, s->stops[i], length) : NULL;
        if (!at || (s->stopped && (size_t)(at - s->text) >= first)) continue;
        first = (size_t)(at - s->text);
        s->stopped = true;
    }
    if (s->stopped) {
        s->n = first;
        s->text[first] = 0;
    }
    return 0;
}

/* Bytes at the end that may turn out to be the begin of a stop string. */
static size_t may_stop(const struct tsri_saying *s)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < s->n_stops; i++) {
        size_t n = strlen(s->stops[i]) - 1;
        if (n > s->n) n = s->n;
        for (; n > longest; n--)
            if (memcmp(s->text + s->n - n, s->stops[i], n) == 0) longest = n;
    }
    return longest;
}

size_t tsri_saying_safe(const struct tsri_saying *s, bool last)
{
    if (last || s->stopped || s->n == 0) return s->n;
    size_t n = s->n - may_stop(s);
    n -= tsri_utf8_unfinished(s->text, n);
    return n > s->n_taken ? n : s->n_taken;
}

void tsri_saying_fini(struct tsri_saying *s)
{
    free(s->text);
    memset(s, 0, sizeof *s);
}

char *tsri_utf8_copy(const char *text, size_t n)
{
    char *ended = malloc(n + 1), *out = malloc(3 * n + 1), *to = out;
    if (ended && out) {
        memcpy(ended, text, n);
        ended[n] = 0;
        for (size_t i = 0; i < n;) {
            int length = ended[i] ? tsri_utf8_length(ended + i) : 0;
            if (length == 0) {
                memcpy(to, "\xEF\xBF\xBD", 3);
                to += 3;
                i++;
                continue;
            }
            memcpy(to, ended + i, (size_t)length);
            to += length;
            i += (size_t)length;
        }
        *to = 0;
    } else {
        free(out);
        out = NULL;
    }
    free(ended);
    return out;
}
