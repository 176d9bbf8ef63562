/* text.c - a writer into a buffer that may be too small: it goes on counting past the end, so that
 * one pass both fills a buffer and says how large it should have been. Knows the escapes of JSON
 * and of the Prometheus text format. */
#include "stats/stats.h"

#include <stdio.h>

void tsri_text_init(struct tsri_text *t, char *buf, size_t bytes)
{
    *t = (struct tsri_text){buf, bytes, 0};
    if (bytes) buf[0] = 0;
}

void tsri_text_add(struct tsri_text *t, const char *fmt, ...)
{
    size_t room = t->length < t->bytes ? t->bytes - t->length : 0;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(room ? t->buf + t->length : NULL, room, fmt, ap);
    va_end(ap);
    TSR_ASSERT(n >= 0);
    t->length += (size_t)n;
}

static void add_char(struct tsri_text *t, char c)
{
    if (t->length + 1 < t->bytes) {
        t->buf[t->length] = c;
        t->buf[t->length + 1] = 0;
    }
    t->length++;
}

static void add_string(struct tsri_text *t, const char *s)
{
    for (; *s; s++)
        add_char(t, *s);
}

void tsri_text_add_json(struct tsri_text *t, const char *s)
{
    add_char(t, '"');
    while (*s) {
        unsigned char c = (unsigned char)*s;
        int n = tsri_utf8_length(s);
        if (n == 0) {
            add_string(t, "\\ufffd");
            s++;
        } else if (c == '"' || c == '\\') {
            add_char(t, '\\');
            add_char(t, *s++);
        } else if (c == '\n') {
            add_string(t, "\\n");
            s++;
        } else if (c == '\t') {
            add_string(t, "\\t");
            s++;
        } else if (tsri_is_control(s)) { /* of two bytes: its number is the second one */
            tsri_text_add(t, "\\u%04x", (unsigned char)s[n - 1]);
            s += n;
        } else {
            while (n-- > 0)
                add_char(t, *s++);
        }
    }
    add_char(t, '"');
}

static void add_prometheus(struct tsri_text *t, const char *s, bool quotes)
{
    for (; *s; s++) {
        if (*s == '\n') {
            add_string(t, "\\n");
            continue;
        }
        if (*s == '\\' || (quotes && *s == '"')) add_char(t, '\\');
        add_char(t, *s);
    }
}

void tsri_text_add_help(struct tsri_text *t, const char *s)
{
    add_prometheus(t, s, false);
}

void tsri_text_add_label(struct tsri_text *t, const char *s)
{
    add_char(t, '"');
    add_prometheus(t, s, true);
    add_char(t, '"');
}
