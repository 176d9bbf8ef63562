/* plain.c - text from outside (a file's name, a model's, a server's answer) on its way into a
 * message: one line of UTF-8 in which nothing is a command to the terminal that shows it or a
 * second line to the log that keeps it. */
#include "base/base.h"

int tsri_utf8_length(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned low = 0x80, high = 0xBF; /* bounds of the second byte */
    int n;
    if (u[0] < 0x80) return 1;
    if (u[0] >= 0xC2 && u[0] <= 0xDF)
        n = 2;
    else if (u[0] >= 0xE0 && u[0] <= 0xEF)
        n = 3;
    else if (u[0] >= 0xF0 && u[0] <= 0xF4)
        n = 4;
    else
        return 0;
    if (u[0] == 0xE0) low = 0xA0;
    if (u[0] == 0xED) high = 0x9F;
    if (u[0] == 0xF0) low = 0x90;
    if (u[0] == 0xF4) high = 0x8F;
    if (u[1] < low || u[1] > high) return 0;
    for (int i = 2; i < n; i++)
        if ((u[i] & 0xC0) != 0x80) return 0;
    return n;
}

size_t tsri_utf8_unfinished(const char *text, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)text[n - back];
        if ((c & 0xC0) == 0x80) continue;
        size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        return want > back ? back : 0;
    }
    return 0;
}

bool tsri_is_control(const char *s)
{
    unsigned char c = (unsigned char)*s;
    /* U+0080 to U+009F, some of which begin a command as ESC does, are C2 80 to C2 9F. */
    return (c && c < 0x20) || c == 0x7F || (c == 0xC2 && ((unsigned char)s[1] & 0xE0) == 0x80);
}

char *tsri_plain(char *text)
{
    for (char *s = text; *s;) {
        int n = tsri_utf8_length(s);
        bool shown = n > 0 && !tsri_is_control(s);
        for (n = n ? n : 1; n > 0; n--, s++)
            if (!shown) *s = '?';
    }
    return text;
}
