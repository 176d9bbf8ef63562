/* responses_file.c - answers as comma-separated values. All rows of a question are written in one go
 * after it, so that a run that was stopped goes on with the first question that is missing. The
 * answer's text is last, in quotes, for people who want to know what went wrong. */
#include "lab/answers.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Texts first, then the numbers, which a file may have in any order, then the answer. */
static const char *const texts[] = {"model", "set", "id", "method"};
#define LAST "answer"
#define ROW(member) offsetof(struct tsri_response, member)
static const struct tsri_column columns[] = {
    {"tokens", ROW(n_tokens)},
    {"computed", ROW(n_computed)},
    {"recomputed", ROW(n_recomputed)},
    {"seconds", ROW(seconds)},
    {"exact", ROW(exact)},
    {"f1", ROW(f1)},
    {"right", ROW(right)},
    {"same_tokens", ROW(same_tokens)},
    {"same_words", ROW(same_words)},
    {"says_same", ROW(says_same)},
    {"kl", ROW(kl)},
    {"kl_answer", ROW(kl_answer)},
    {"sure", ROW(sure)},
    {"rounds", ROW(rounds)},
    {"reasons", ROW(reasons)},
    TSRI_GATE_COLUMNS(ROW),
};
#define TEXTS TSRI_COUNT(texts)
#define NUMBERS TSRI_COUNT(columns)

static double *number_at(struct tsri_response *row, size_t i)
{
    return (double *)(void *)((char *)row + columns[i].offset);
}

void tsri_responses_fini(struct tsri_responses *r)
{
    free(r->items);
    memset(r, 0, sizeof *r);
}

int tsri_responses_add(struct tsri_responses *r, const struct tsri_response *row)
{
    void *more = tsri_make_room(r->items, &r->n_room, r->n + 1, sizeof *row);
    if (!more) return tsri_cli_failed();
    r->items = more;
    r->items[r->n++] = *row;
    return 0;
}

const struct tsri_response *tsri_responses_find(const struct tsri_responses *r, const char *set,
                                                const char *id, const char *method)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct tsri_response *row = &r->items[i];
        if (strcmp(row->id, id) == 0 && strcmp(row->method, method) == 0 &&
            strcmp(row->set, set) == 0)
            return row;
    }
    return NULL;
}

/* ---- reading ---- */

/* Which columns a table has, in its order. */
struct response_order {
    size_t at[NUMBERS], n;
};

/* False: the file is no table of ours. */
static bool parse_heading(char *line, struct response_order *o)
{
    char *rest = NULL;
    const char *name;
    o->n = 0;
    for (size_t i = 0; i < TEXTS; i++) {
        name = strtok_r(i ? NULL : line, ",\n", &rest);
        if (!name || strcmp(name, texts[i]) != 0) return false;
    }
    while ((name = strtok_r(NULL, ",\n", &rest)) && strcmp(name, LAST) != 0) {
        size_t k = 0;
        while (k < NUMBERS && strcmp(columns[k].name, name) != 0)
            k++;
        if (k == NUMBERS || o->n == NUMBERS) return false;
        o->at[o->n++] = k;
    }
    return name && !strtok_r(NULL, ",\n", &rest);
}

/* The next field, ended by a comma, into room for `bytes`. */
static bool read_field(char **line, char *out, size_t bytes)
{
    size_t n = strcspn(*line, ",\n");
    if ((*line)[n] != ',' || n >= bytes) return false;
    memcpy(out, *line, n);
    out[n] = 0;
    *line += n + 1;
    return true;
}

static bool read_quoted(const char *from, char *out, size_t bytes)
{
    size_t n = 0;
    if (*from++ != '"') return false;
    for (; *from && !(from[0] == '"' && from[1] != '"'); from++) {
        if (*from == '"') from++;
        if (n + 1 == bytes) return false;
        out[n++] = *from;
    }
    out[n] = 0;
    return strcmp(from, "\"\n") == 0;
}

static bool parse_row(char *line, const struct response_order *o, char model[static 128],
                      struct tsri_response *row)
{
    memset(row, 0, sizeof *row);
    for (size_t i = 0; i < NUMBERS; i++)
        *number_at(row, i) = NAN;
    if (!read_field(&line, model, 128) || !read_field(&line, row->set, sizeof row->set) ||
        !read_field(&line, row->id, sizeof row->id) ||
        !read_field(&line, row->method, sizeof row->method))
        return false;
    for (size_t i = 0; i < o->n; i++) {
        char text[64], *end;
        if (!read_field(&line, text, sizeof text)) return false;
        *number_at(row, o->at[i]) = strtod(text, &end);
        if (*end || end == text) return false;
    }
    return read_quoted(line, row->text, sizeof row->text);
}

static int take_row(struct tsri_responses *r, const struct response_order *o, char *line,
                    const char *path, size_t number)
{
    struct tsri_response row;
    char model[sizeof r->model];
    if (!parse_row(line, o, model, &row))
        return tsri_cli_fail("%s:%zu: not a valid row", path, number);
    if (r->model[0] && strcmp(r->model, model) != 0)
        return tsri_cli_fail("%s:%zu: of model %s, not %s", path, number, model, r->model);
    memcpy(r->model, model, sizeof model);
    return tsri_responses_add(r, &row);
}

int tsri_responses_load(struct tsri_responses *r, const char *path, bool to_append)
{
    char *line = NULL;
    size_t room = 0, number = 0;
    struct response_order order;
    off_t good = 0;
    bool cut_off = false;
    int e = 0;
    FILE *in = fopen(path, "re");
    if (!in && errno == ENOENT && to_append) return 0;
    if (!in) return tsri_cli_fail("%s: %s", path, strerror(errno));
    for (ssize_t n; !e && (n = getline(&line, &room, in)) > 0; good += n) {
        cut_off = line[n - 1] != '\n';
        if (cut_off) break;
        if (++number == 1)
            e = parse_heading(line, &order)
                    ? 0
                    : tsri_cli_fail("%s: not a table of answers: unknown heading", path);
        else
            e = take_row(r, &order, line, path, number);
    }
    free(line);
    fclose(in);
    /* What comes next must not be joined to half a line. */
    if (!e && cut_off && to_append && truncate(path, good) != 0)
        e = tsri_cli_fail("%s: %s", path, strerror(errno));
    return e;
}

/* ---- writing ---- */

/* A model may say anything; the table has lines of UTF-8. */
static void put_quoted(char *text, FILE *out)
{
    for (char *at = text; *at; at++)
        if (*at == '\n' || *at == '\t') *at = ' ';
    fputc('"', out);
    for (const char *at = tsri_plain(text); *at; at++) {
        if (*at == '"') fputc('"', out);
        fputc(*at, out);
    }
    fputs("\"\n", out);
}

static void put_heading(FILE *out)
{
    for (size_t i = 0; i < TEXTS; i++)
        fprintf(out, "%s,", texts[i]);
    for (size_t i = 0; i < NUMBERS; i++)
        fprintf(out, "%s,", columns[i].name);
    fputs(LAST "\n", out);
}

/* Whether rows of this program fit under the heading of a file. */
static bool has_all_columns(FILE *file)
{
    char *line = NULL;
    size_t room = 0, same = 0;
    struct response_order o = {.n = 0};
    rewind(file);
    if (getline(&line, &room, file) <= 0 || !parse_heading(line, &o)) o.n = 0;
    while (same < o.n && o.at[same] == same)
        same++;
    free(line);
    return same == NUMBERS;
}

int tsri_responses_append(const struct tsri_responses *r, const char *path,
                          const struct tsri_response *rows, size_t n)
{
    struct stat st;
    FILE *out = fopen(path, "a+e");
    if (!out) return tsri_cli_fail("%s: %s", path, strerror(errno));
    bool is_new = fstat(fileno(out), &st) == 0 && st.st_size == 0;
    if (!is_new && !has_all_columns(out)) {
        fclose(out);
        return tsri_cli_fail("%s: has other columns than this version writes; begin another table",
                             path);
    }
    if (is_new) put_heading(out);
    for (size_t i = 0; i < n; i++) {
        struct tsri_response row = rows[i];
        fprintf(out, "%s,%s,%s,%s,", r->model, row.set, row.id, row.method);
        for (size_t k = 0; k < NUMBERS; k++)
            fprintf(out, "%.6g,", *number_at(&row, k));
        put_quoted(row.text, out);
    }
    bool failed = ferror(out);
    return (fclose(out) != 0 || failed) ? tsri_cli_fail("%s: %s", path, strerror(errno)) : 0;
}
