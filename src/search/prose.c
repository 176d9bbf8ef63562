/* prose.c - text that grows, and what counts as text. */
#include "search/inside.h"

#include <stdlib.h>

int tsri_prose_add(struct tsri_prose *t, const char *data, size_t bytes)
{
    if (t->bytes + bytes + 1 > t->room) {
        size_t room = t->room * 2 > t->bytes + bytes + 1 ? t->room * 2 : t->bytes + bytes + 256;
        char *more = realloc(t->data, room);
        if (!more) return tsri_fail(TSR_ENOMEM, "search: no memory for %zu bytes of text", room);
        t->data = more;
        t->room = room;
    }
    if (bytes) memcpy(t->data + t->bytes, data, bytes);
    t->bytes += bytes;
    t->data[t->bytes] = 0;
    return 0;
}

void tsri_prose_fini(struct tsri_prose *t)
{
    free(t->data);
    memset(t, 0, sizeof *t);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

void tsri_prose_tidy(struct tsri_prose *t)
{
    char *text = t->data;
    size_t from = 0, n = 0;
    if (!text) return;
    if (t->bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) from = 3;
    while (from < t->bytes && is_space(text[from]))
        from++;
    for (; from < t->bytes; from++) {
        if (text[from] == '\r' && from + 1 < t->bytes && text[from + 1] == '\n') continue;
        /* A page ends with a form feed; there are at least as many bytes read as written. */
        text[n++] = text[from] == '\r' || text[from] == '\f' ? '\n' : text[from];
    }
    while (n > 0 && is_space(text[n - 1]))
        n--;
    text[n] = 0;
    t->bytes = n;
}

bool tsri_is_utf8(const char *data, size_t bytes)
{
    /* No zero follows: without this, the last character could be read beyond its end. */
    if (tsri_utf8_unfinished(data, bytes)) return false;
    for (size_t i = 0; i < bytes;) {
        int n = tsri_utf8_length(data + i);
        if (n == 0 || data[i] == 0) return false;
        i += (size_t)n;
    }
    return true;
}

const char *tsri_prose_flaw(const struct tsri_prose *t)
{
    bool something = false;
    for (size_t i = 0; i < t->bytes;) {
        int n = tsri_utf8_length(t->data + i);
        if (t->data[i] == 0) return "is binary";
        if (n == 0) return "is not UTF-8 text";
        something |= !is_space(t->data[i]);
        i += (size_t)n;
    }
    return something ? NULL : "is empty";
}
