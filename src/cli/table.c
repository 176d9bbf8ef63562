/* table.c - tables, colours and JSON strings on stdout. A table keeps its cells until it is
 * printed, because a column is as wide as its widest cell. */
#include "cli/cli.h"
#include "stats/stats.h"

#include <stdlib.h>

const char *tsri_cli_color(const struct tsri_cli *cli, enum tsri_color color)
{
    static const char *const escapes[] = {"\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m"};
    return cli->color ? escapes[color] : "";
}

const char *tsri_cli_plain(const struct tsri_cli *cli)
{
    return cli->color ? "\033[0m" : "";
}

void tsri_cli_json(const char *before, const char *s)
{
    struct tsri_text t;
    fputs(before, stdout);
    tsri_text_init(&t, NULL, 0);
    tsri_text_add_json(&t, s);
    size_t bytes = t.length + 1;
    char *buf = tsri_alloc(bytes, 1);
    if (!buf) {
        fputs("null", stdout);
        return;
    }
    tsri_text_init(&t, buf, bytes);
    tsri_text_add_json(&t, s);
    fputs(buf, stdout);
    tsri_free(buf);
}

void tsri_cli_put_text(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c[2] = {bytes[i], i + 1 < n ? bytes[i + 1] : '\0'};
        bool plain = (c[0] && !tsri_is_control(c)) || c[0] == '\n' || c[0] == '\t';
        putchar(plain ? c[0] : '?');
        i += !plain && c[0] == (char)0xC2;
    }
}

const char *tsri_cli_size(uint64_t bytes, char buf[static 32])
{
    static const char units[] = "KMGTPE";
    if (bytes < 1024) {
        snprintf(buf, 32, "%u B", (unsigned)bytes);
        return buf;
    }
    size_t unit = 0;
    double n = (double)bytes / 1024;
    for (; n >= 1023.95 && unit + 2 < sizeof units; unit++)
        n /= 1024;
    snprintf(buf, 32, "%.1f %ciB", n, units[unit]);
    return buf;
}

void tsri_table_init(struct tsri_table *t, const char *align, const char *heads)
{
    *t = (struct tsri_table){.align = align};
    tsri_table_row(t, "%s", heads);
}

void tsri_table_fini(struct tsri_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (struct tsri_table){0};
}

void tsri_table_add(struct tsri_table *t, const char *fmt, ...)
{
    char **cells = tsri_make_room(t->cells, &t->n_room, t->n_cells + 1, sizeof *cells),
         *cell = NULL;
    if (cells) t->cells = cells;
    va_list ap;
    va_start(ap, fmt);
    if (cells && vasprintf(&cell, fmt, ap) >= 0)
        t->cells[t->n_cells++] = tsri_plain(cell);
    else
        t->align = ""; /* print says so */
    va_end(ap);
}

void tsri_table_row(struct tsri_table *t, const char *fmt, ...)
{
    char line[1024], *cell = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (size_t left = strlen(t->align); left > 0; left--) {
        size_t n = strcspn(cell, left > 1 ? "|" : "");
        tsri_table_add(t, "%.*s", (int)n, cell);
        cell += n + (cell[n] == '|');
    }
}

/* Columns that the text takes on a terminal: bytes that continue a UTF-8 sequence take none. */
static int width_of(const char *s)
{
    int width = 0;
    for (; *s; s++)
        width += ((unsigned char)*s & 0xC0) != 0x80;
    return width;
}

static void print_cells(const struct tsri_table *t, const struct tsri_cli *cli)
{
    size_t n_columns = strlen(t->align);
    int width[16] = {0};
    TSR_ASSERT(n_columns <= TSRI_COUNT(width) && t->n_cells % n_columns == 0);
    for (size_t i = 0; i < t->n_cells; i++) {
        int w = width_of(t->cells[i]);
        if (w > width[i % n_columns]) width[i % n_columns] = w;
    }
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t column = i % n_columns;
        int pad = width[column] - width_of(t->cells[i]);
        bool right = t->align[column] == 'r', last = column + 1 == n_columns;
        if (i == 0) fputs(tsri_cli_color(cli, TSRI_COLOR_BOLD), stdout);
        if (column) fputs("  ", stdout);
        printf("%*s%s", right ? pad : 0, "", t->cells[i]);
        if (!right && !last) printf("%*s", pad, "");
        if (i + 1 == n_columns) fputs(tsri_cli_plain(cli), stdout);
        if (last) putchar('\n');
    }
}

int tsri_table_print(struct tsri_table *t, const struct tsri_cli *cli)
{
    bool whole = t->align[0];
    if (whole) print_cells(t, cli);
    tsri_table_fini(t);
    return whole ? 0 : tsri_cli_fail("no memory");
}
