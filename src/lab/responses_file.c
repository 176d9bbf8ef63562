/* responses_file.c - answers as comma-separated values. All rows of a question are written in one go
 * after it, so that a run that was stopped goes on with the first question that is missing. The
 * answer's text is last, in quotes, for people who want to know what went wrong. */
#include "lab/answers.h"

#include <stddef.h>
#include <stdlib.h>

static const char *const texts[] = {"model", "set", "id", "method"};
#define ROW(member) offsetof(struct tsri_response, member)
static const struct tsri_column numbers[] = {
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
_Static_assert(TSRI_COUNT(numbers) <= TSRI_COLUMNS_MAX, "a table has room for them");
static const struct tsri_columns table = {.what = "answers",
                                          .texts = texts,
                                          .n_texts = TSRI_COUNT(texts),
                                          .numbers = numbers,
                                          .n_numbers = TSRI_COUNT(numbers),
                                          .last = "answer"};
#define DIGITS 6

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

static int take_row(void *arg, const struct tsri_columns_line *line)
{
    char *rest = line->text;
    struct tsri_responses *r = arg;
    struct tsri_response row = {.set = ""};
    char model[sizeof r->model];
    if (!tsri_columns_text(&rest, model, sizeof model) ||
        !tsri_columns_text(&rest, row.set, sizeof row.set) ||
        !tsri_columns_text(&rest, row.id, sizeof row.id) ||
        !tsri_columns_text(&rest, row.method, sizeof row.method) ||
        !tsri_columns_numbers(&table, line->order, &rest, &row) ||
        !read_quoted(rest, row.text, sizeof row.text))
        return -1;
    if (r->model[0] && strcmp(r->model, model) != 0)
        return tsri_cli_fail("%s:%zu: of model %s, not %s", line->path, line->number, model,
                             r->model);
    memcpy(r->model, model, sizeof model);
    return tsri_responses_add(r, &row);
}

int tsri_responses_load(struct tsri_responses *r, const char *path, bool to_append)
{
    return tsri_columns_load(&table, path, to_append, take_row, r);
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

int tsri_responses_append(const struct tsri_responses *r, const char *path,
                          const struct tsri_response *rows, size_t n)
{
    FILE *out;
    int e = tsri_columns_open(&out, &table, path);
    if (e) return e;
    for (size_t i = 0; i < n; i++) {
        struct tsri_response row = rows[i];
        fprintf(out, "%s,%s,%s,%s", r->model, row.set, row.id, row.method);
        tsri_columns_put(out, &table, &row, DIGITS);
        fputc(',', out);
        put_quoted(row.text, out);
    }
    return tsri_columns_close(out, path);
}
