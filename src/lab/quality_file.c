/* quality_file.c - measured rows as comma-separated values. All rows of a question are written in
 * one go behind it, so a run that was stopped goes on with the first question that is missing. */
#include "lab/quality.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first fields of a row are text, the others numbers, which a file may have in any order. Those
 * that it lacks were not measured when it was written. */
static const char *const texts[] = {"set", "id", "selector", "context", "stored"};
#define ROW(member) offsetof(struct tsri_quality_row, member)
static const struct tsri_column columns[] = {
    {"ratio", ROW(setting.ratio)},
    {"bias", ROW(setting.bias)},
    {"layers_from", ROW(setting.layers[0])},
    {"layers_to", ROW(setting.layers[1])},
    {"rounds", ROW(setting.n_rounds)},
    {"kl", ROW(kl)},
    {"kl_answer", ROW(kl_answer)},
    {"same", ROW(same)},
    {"gold", ROW(gold)},
    {"exact", ROW(exact)},
    {"f1", ROW(f1)},
    {"same_answer", ROW(same_answer)},
    {"says_same", ROW(says_same)},
    {"full_s", ROW(full_s)},
    {"blend_s", ROW(blend_s)},
    {"tokens", ROW(n_tokens)},
    {"recomputed", ROW(n_recomputed)},
    TSRI_GATE_COLUMNS(ROW),
};
#define TEXTS TSRI_COUNT(texts)
#define NUMBERS TSRI_COUNT(columns)

int tsri_quality_add(struct tsri_quality_rows *rows, const struct tsri_quality_row *row)
{
    void *more = tsri_make_room(rows->items, &rows->n_room, rows->n + 1, sizeof *row);
    if (!more) return tsri_cli_failed();
    rows->items = more;
    rows->items[rows->n++] = *row;
    return 0;
}

void tsri_quality_fini(struct tsri_quality_rows *rows)
{
    free(rows->items);
    memset(rows, 0, sizeof *rows);
}

bool tsri_quality_has(const struct tsri_quality_rows *rows, const struct tsri_question *q)
{
    for (size_t i = 0; i < rows->n; i++)
        if (strcmp(rows->items[i].id, q->id) == 0 && strcmp(rows->items[i].set, q->set) == 0)
            return true;
    return false;
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

bool tsri_setting_same(const struct tsri_setting *a, const struct tsri_setting *b)
{
    return a->selector == b->selector && a->context == b->context && a->int8 == b->int8 &&
           near(a->ratio, b->ratio) && near(a->bias, b->bias) && near(a->layers[0], b->layers[0]) &&
           near(a->layers[1], b->layers[1]) && near(a->n_rounds, b->n_rounds);
}

static double *number_of(struct tsri_quality_row *r, size_t column)
{
    return (double *)(void *)((char *)r + columns[column].offset);
}

/* Which column each number of a row is; 0: the file is no table of ours. */
static size_t parse_heading(char *line, size_t order[NUMBERS])
{
    char *rest = NULL;
    size_t n = 0;
    for (size_t i = 0; i < TEXTS; i++) {
        const char *name = strtok_r(i ? NULL : line, ",\n", &rest);
        if (!name || strcmp(name, texts[i]) != 0) return 0;
    }
    for (const char *name; (name = strtok_r(NULL, ",\n", &rest)); n++) {
        size_t k = 0;
        while (k < NUMBERS && strcmp(columns[k].name, name) != 0)
            k++;
        if (k == NUMBERS || n == NUMBERS) return 0;
        order[n] = k;
    }
    return n;
}

static bool parse_texts(char *const field[TEXTS], struct tsri_quality_row *row)
{
    int selector = tsr_selector_find(field[2]), context = tsri_context_find(field[3]);
    bool int8 = strcmp(field[4], "int8") == 0;
    if (selector < 0 || context < 0 || (!int8 && strcmp(field[4], "plain") != 0) ||
        strlen(field[0]) >= sizeof row->set || strlen(field[1]) >= sizeof row->id)
        return false;
    strcpy(row->set, field[0]);
    strcpy(row->id, field[1]);
    row->setting.selector = (uint32_t)selector;
    row->setting.context = (uint32_t)context;
    row->setting.int8 = int8;
    return true;
}

static bool parse_row(char *line, const size_t *order, size_t n, struct tsri_quality_row *row)
{
    char *rest = NULL, *field[TEXTS];
    memset(row, 0, sizeof *row);
    for (size_t i = 0; i < TEXTS; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, ",", &rest))) return false;
    if (!parse_texts(field, row)) return false;
    for (size_t i = 0; i < NUMBERS; i++)
        *number_of(row, i) = NAN;
    for (size_t i = 0; i < n; i++) {
        char *text = strtok_r(NULL, ",\n", &rest), *end;
        if (!text) return false;
        *number_of(row, order[i]) = strtod(text, &end);
        if (*end || end == text) return false;
    }
    row->gate.ratio = row->setting.ratio;
    if (isnan(row->setting.n_rounds)) row->setting.n_rounds = 0;
    /* Older tables summed the attention of all layers. */
    if (isnan(row->setting.layers[1])) {
        row->setting.layers[0] = 0;
        row->setting.layers[1] = row->setting.selector == TSR_SELECT_QUERY;
    }
    return strtok_r(NULL, ",\n", &rest) == NULL;
}

int tsri_quality_load(struct tsri_quality_rows *rows, const char *path)
{
    char *line = NULL;
    size_t room = 0, number = 0, order[NUMBERS], n_numbers = 0;
    off_t good = 0;
    bool cut_off = false;
    int e = 0;
    FILE *in = fopen(path, "r");
    if (!in) return errno == ENOENT ? 0 : tsri_cli_fail("%s: %s", path, strerror(errno));
    for (ssize_t n; !e && (n = getline(&line, &room, in)) > 0; good += n) {
        struct tsri_quality_row row;
        bool whole = line[n - 1] == '\n';
        if (number++ == 0) {
            if (whole && !(n_numbers = parse_heading(line, order)))
                e = tsri_cli_fail("%s: not a table of measurements: unknown heading", path);
        }
        cut_off = !whole;
        if (cut_off) break;
        if (number > 1)
            e = parse_row(line, order, n_numbers, &row)
                    ? tsri_quality_add(rows, &row)
                    : tsri_cli_fail("%s:%zu: not a valid row", path, number);
    }
    free(line);
    fclose(in);
    /* What comes next must not be joined to half a line. */
    if (cut_off && truncate(path, good) != 0) e = tsri_cli_fail("%s: %s", path, strerror(errno));
    return e;
}

static void put_heading(FILE *out)
{
    for (size_t i = 0; i < TEXTS; i++)
        fprintf(out, "%s%s", i ? "," : "", texts[i]);
    for (size_t i = 0; i < NUMBERS; i++)
        fprintf(out, ",%s", columns[i].name);
    fputc('\n', out);
}

/* Whether rows of this program fit under the heading of a file. */
static bool has_all_columns(FILE *file)
{
    char *line = NULL;
    size_t room = 0, order[NUMBERS], n = 0, same = 0;
    rewind(file);
    if (getline(&line, &room, file) > 0) n = parse_heading(line, order);
    while (same < n && order[same] == same)
        same++;
    free(line);
    return same == NUMBERS;
}

int tsri_quality_append(const char *path, const struct tsri_quality_row *rows, size_t n)
{
    FILE *out = fopen(path, "a+e");
    if (!out) return tsri_cli_fail("%s: %s", path, strerror(errno));
    struct stat st;
    bool is_new = fstat(fileno(out), &st) == 0 && st.st_size == 0;
    if (!is_new && !has_all_columns(out)) {
        fclose(out);
        return tsri_cli_fail("%s: has other columns than this version writes; begin another table",
                             path);
    }
    if (is_new) put_heading(out);
    for (size_t i = 0; i < n; i++) {
        struct tsri_quality_row row = rows[i];
        fprintf(out, "%s,%s,%s,%s,%s", row.set, row.id, tsr_selector_name(row.setting.selector),
                tsri_context_name(row.setting.context), row.setting.int8 ? "int8" : "plain");
        for (size_t k = 0; k < NUMBERS; k++)
            fprintf(out, ",%.8g", *number_of(&row, k));
        fputc('\n', out);
    }
    bool failed = ferror(out);
    return (fclose(out) != 0 || failed) ? tsri_cli_fail("%s: %s", path, strerror(errno)) : 0;
}
