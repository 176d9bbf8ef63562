/* columns.c - reads and writes such tables. The heading decides where a number is, so a table from
 * before a column was added is still read; it is not continued, because rows below its heading would
 * mean something else. */
#include "lab/columns.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define NUMBER_BYTES 64u /* of a number as text, its end included */

/* ---- reading ---- */

/* False: the heading is not one of such a table. Overwrites the line. */
static bool parse_heading(const struct tsri_columns *c, char *heading, struct tsri_columns_order *o)
{
    char *rest = NULL;
    const char *name;
    o->n = 0;
    for (size_t i = 0; i < c->n_texts; i++) {
        name = strtok_r(i ? NULL : heading, ",\n", &rest);
        if (!name || strcmp(name, c->texts[i]) != 0) return false;
    }
    while ((name = strtok_r(NULL, ",\n", &rest)) && !(c->last && strcmp(name, c->last) == 0)) {
        size_t k = 0;
        while (k < c->n_numbers && strcmp(c->numbers[k].name, name) != 0)
            k++;
        if (k == c->n_numbers || o->n == c->n_numbers) return false;
        o->at[o->n++] = k;
    }
    if (!c->last) return o->n > 0;
    return name && !strtok_r(NULL, ",\n", &rest);
}

bool tsri_columns_text(char **line, char *out, size_t bytes)
{
    size_t n = strcspn(*line, ",\n");
    if (!(*line)[n] || n >= bytes) return false;
    memcpy(out, *line, n);
    out[n] = 0;
    *line += n + 1;
    return true;
}

static double number_at(const struct tsri_columns *c, const void *row, size_t i)
{
    double number;
    memcpy(&number, (const char *)row + c->numbers[i].offset, sizeof number);
    return number;
}

static void set_number(const struct tsri_columns *c, void *row, size_t i, double number)
{
    memcpy((char *)row + c->numbers[i].offset, &number, sizeof number);
}

bool tsri_columns_numbers(const struct tsri_columns *c, const struct tsri_columns_order *o,
                          char **line, void *row)
{
    for (size_t i = 0; i < c->n_numbers; i++)
        set_number(c, row, i, NAN);
    for (size_t i = 0; i < o->n; i++) {
        char text[NUMBER_BYTES], *end;
        if (!tsri_columns_text(line, text, sizeof text)) return false;
        set_number(c, row, o->at[i], strtod(text, &end));
        if (*end || end == text) return false;
    }
    return true;
}

int tsri_columns_load(const struct tsri_columns *c, const char *path, bool to_append,
                      tsri_columns_line_fn take, void *arg)
{
    struct tsri_columns_order order;
    struct tsri_columns_line line = {.path = path, .order = &order};
    size_t room = 0;
    off_t good = 0;
    bool cut_off = false;
    int e = 0;
    FILE *in = fopen(path, "re");
    if (!in && errno == ENOENT && to_append) return 0;
    if (!in) return tsri_cli_fail("%s: %s", path, strerror(errno));
    for (ssize_t n; !e && (n = getline(&line.text, &room, in)) > 0; good += n) {
        cut_off = line.text[n - 1] != '\n';
        if (cut_off) break;
        if (++line.number > 1)
            e = take(arg, &line);
        else if (!parse_heading(c, line.text, &order))
            e = tsri_cli_fail("%s: not a table of %s: unknown heading", path, c->what);
        if (e < 0) e = tsri_cli_fail("%s:%zu: not a valid row", path, line.number);
    }
    free(line.text);
    fclose(in);
    /* What comes next must not be joined to half a line. */
    if (cut_off && to_append && truncate(path, good) != 0)
        e = tsri_cli_fail("%s: %s", path, strerror(errno));
    return e;
}

/* ---- writing ---- */

/* Whether rows of this program fit under the heading of a file. */
static bool has_all_numbers(const struct tsri_columns *c, FILE *file)
{
    char *line = NULL;
    size_t room = 0, same = 0;
    struct tsri_columns_order o = {.n = 0};
    rewind(file);
    if (getline(&line, &room, file) <= 0 || !parse_heading(c, line, &o)) o.n = 0;
    while (same < o.n && o.at[same] == same)
        same++;
    free(line);
    return same == c->n_numbers;
}

static void put_heading(FILE *out, const struct tsri_columns *c)
{
    for (size_t i = 0; i < c->n_texts; i++)
        fprintf(out, "%s%s", i ? "," : "", c->texts[i]);
    for (size_t i = 0; i < c->n_numbers; i++)
        fprintf(out, ",%s", c->numbers[i].name);
    if (c->last) fprintf(out, ",%s", c->last);
    fputc('\n', out);
}

int tsri_columns_open(FILE **out, const struct tsri_columns *c, const char *path)
{
    struct stat st;
    FILE *file = fopen(path, "a+e");
    *out = NULL;
    if (!file) return tsri_cli_fail("%s: %s", path, strerror(errno));
    bool is_new = fstat(fileno(file), &st) == 0 && st.st_size == 0;
    if (!is_new && !has_all_numbers(c, file)) {
        fclose(file);
        return tsri_cli_fail("%s: has other columns than this version writes; begin another table",
                             path);
    }
    if (is_new) put_heading(file, c);
    *out = file;
    return 0;
}

void tsri_columns_put(FILE *out, const struct tsri_columns *c, const void *row, int digits)
{
    for (size_t i = 0; i < c->n_numbers; i++)
        fprintf(out, ",%.*g", digits, number_at(c, row, i));
}

int tsri_columns_close(FILE *out, const char *path)
{
    bool failed = ferror(out);
    return (fclose(out) != 0 || failed) ? tsri_cli_fail("%s: %s", path, strerror(errno)) : 0;
}
