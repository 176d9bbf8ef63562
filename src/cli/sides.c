/* sides.c - two texts beside each other, to be compared by eye: wrapped at words into two columns.
 * Characters are counted as one column each. Terminals that are too narrow, files and pipes get one
 * text below the other. */
#include "cli/asking.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define COLUMN_MIN 30u
#define COLUMN_MAX 60u
#define GAP "  |  "

uint32_t tsri_sides_width(int fd)
{
    struct winsize size = {0};
    if (!isatty(fd)) return 0;
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || !size.ws_col) return 80;
    return size.ws_col;
}

/* Bytes of the next line of a text, and its columns; *skip: bytes to leave out after it. */
static size_t next_line(const char *text, uint32_t width, uint32_t *columns, size_t *skip)
{
    size_t n = 0, word_end = 0;
    uint32_t at = 0, word_columns = 0;
    while (text[n] && text[n] != '\n') {
        if (text[n] == ' ') {
            word_end = n;
            word_columns = at;
        }
        if (at == width) {
            bool words = word_end > 0;
            *columns = words ? word_columns : at;
            *skip = words;
            return words ? word_end : n;
        }
        int bytes = tsri_utf8_length(text + n);
        n += bytes > 0 ? (size_t)bytes : 1;
        at++;
    }
    *columns = at;
    *skip = text[n] == '\n';
    return n;
}

/* One line of a column, filled up with spaces; returns the rest of the text. */
static const char *put_line(FILE *out, const char *text, uint32_t width, bool fill)
{
    uint32_t columns;
    size_t skip, n = next_line(text, width, &columns, &skip);
    for (size_t i = 0; i < n; i++) {
        bool control = tsri_is_control(text + i);
        fputc(text[i] == '\t' ? ' ' : control ? '?' : text[i], out);
        i += control && text[i] == (char)0xC2;
    }
    for (; fill && columns < width; columns++)
        fputc(' ', out);
    return text + n + skip;
}

static void put_below(FILE *out, const struct tsri_sides *s)
{
    for (int i = 0; i < 2; i++) {
        fprintf(out, "%s%s:\n", i ? "\n" : "", s->heads[i]);
        for (const char *text = s->texts[i]; *text;) {
            text = put_line(out, text, UINT32_MAX, false);
            fputc('\n', out);
        }
    }
}

void tsri_sides_print(FILE *out, const struct tsri_sides *s, uint32_t width)
{
    uint32_t column = width > strlen(GAP) ? (width - (uint32_t)strlen(GAP)) / 2 : 0;
    if (column < COLUMN_MIN) {
        put_below(out, s);
        return;
    }
    if (column > COLUMN_MAX) column = COLUMN_MAX;
    const char *left = s->heads[0], *right = s->heads[1];
    for (int part = 0; part < 2; part++) {
        while (*left || *right) {
            left = put_line(out, left, column, true);
            fputs(*right ? GAP : "  |", out);
            right = put_line(out, right, column, false);
            fputc('\n', out);
        }
        if (part == 1) break;
        for (uint32_t i = 0; i < column; i++)
            fputc('-', out);
        fputs("--+--", out);
        for (uint32_t i = 0; i < column; i++)
            fputc('-', out);
        fputc('\n', out);
        left = s->texts[0];
        right = s->texts[1];
    }
}
