/* quality_file.c - measured rows as comma-separated values. All rows of a question are written in
 * one go after it, so a run that was stopped goes on with the first question that is missing. */
#include "lab/quality.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static const char *const texts[] = {"set", "id", "selector", "context", "stored"};
#define ROW(member) offsetof(struct tsri_quality_row, member)
static const struct tsri_column numbers[] = {
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
_Static_assert(TSRI_COUNT(numbers) <= TSRI_COLUMNS_MAX, "a table has room for them");
static const struct tsri_columns table = {.what = "measurements",
                                          .texts = texts,
                                          .n_texts = TSRI_COUNT(texts),
                                          .numbers = numbers,
                                          .n_numbers = TSRI_COUNT(numbers)};
#define DIGITS 8
#define NAME_BYTES 32u /* of a selector, a context, and how KV is stored */

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

static bool parse_texts(char **line, struct tsri_quality_row *row)
{
    char selector[NAME_BYTES], context[NAME_BYTES], stored[NAME_BYTES];
    if (!tsri_columns_text(line, row->set, sizeof row->set) ||
        !tsri_columns_text(line, row->id, sizeof row->id) ||
        !tsri_columns_text(line, selector, NAME_BYTES) ||
        !tsri_columns_text(line, context, NAME_BYTES) ||
        !tsri_columns_text(line, stored, NAME_BYTES))
        return false;
    int s = tsr_selector_find(selector), c = tsri_context_find(context);
    row->setting.selector = (uint32_t)s;
    row->setting.context = (uint32_t)c;
    row->setting.int8 = strcmp(stored, "int8") == 0;
    return s >= 0 && c >= 0 && (row->setting.int8 || strcmp(stored, "plain") == 0);
}

static int take_row(void *rows, const struct tsri_columns_line *line)
{
    char *rest = line->text;
    struct tsri_quality_row row = {.set = ""};
    if (!parse_texts(&rest, &row) || !tsri_columns_numbers(&table, line->order, &rest, &row) ||
        *rest)
        return -1;
    row.gate.ratio = row.setting.ratio;
    if (isnan(row.setting.n_rounds)) row.setting.n_rounds = 0;
    /* Older tables summed the attention of all layers. */
    if (isnan(row.setting.layers[1])) {
        row.setting.layers[0] = 0;
        row.setting.layers[1] = row.setting.selector == TSR_SELECT_QUERY;
    }
    return tsri_quality_add(rows, &row);
}

int tsri_quality_load(struct tsri_quality_rows *rows, const char *path)
{
    return tsri_columns_load(&table, path, true, take_row, rows);
}

int tsri_quality_append(const char *path, const struct tsri_quality_row *rows, size_t n)
{
    FILE *out;
    int e = tsri_columns_open(&out, &table, path);
    if (e) return e;
    for (size_t i = 0; i < n; i++) {
        const struct tsri_setting *s = &rows[i].setting;
        fprintf(out, "%s,%s,%s,%s,%s", rows[i].set, rows[i].id, tsr_selector_name(s->selector),
                tsri_context_name(s->context), s->int8 ? "int8" : "plain");
        tsri_columns_put(out, &table, &rows[i], DIGITS);
        fputc('\n', out);
    }
    return tsri_columns_close(out, path);
}
