/* quality_file.c - measured rows as comma-separated values. All rows of a question are written in
 * one go behind it, so a run that was stopped goes on with the first question that is missing. */
#include "lab/quality.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADING \
    "set,id,selector,context,stored,ratio,bias,kl,kl_answer,same,gold,exact,f1,full_s,blend_s," \
    "tokens," \
    "recomputed,moved,mass,fresh,entropy,chunk_tokens,chunks\n"
#define NUMBERS 18

int tsri_quality_add(struct tsri_quality_rows *rows, const struct tsri_quality_row *row)
{
    void *more = tsri_cli_grow(rows->items, &rows->n_room, rows->n + 1, sizeof *row);
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

bool tsri_setting_same(const struct tsri_setting *a, const struct tsri_setting *b)
{
    return a->selector == b->selector && a->context == b->context && a->int8 == b->int8 &&
           fabs(a->ratio - b->ratio) < 1e-9 && fabs(a->bias - b->bias) < 1e-9;
}

/* The numbers of a row, in the order of the heading. */
static void numbers_of(struct tsri_quality_row *r, double *at[NUMBERS])
{
    double *all[NUMBERS] = {&r->setting.ratio,
                            &r->setting.bias,
                            &r->kl,
                            &r->kl_answer,
                            &r->same,
                            &r->gold,
                            &r->exact,
                            &r->f1,
                            &r->full_s,
                            &r->blend_s,
                            &r->n_tokens,
                            &r->n_recomputed,
                            &r->gate.moved,
                            &r->gate.mass,
                            &r->gate.fresh,
                            &r->gate.entropy,
                            &r->gate.chunk_tokens,
                            &r->gate.n_chunks};
    memcpy(at, all, sizeof all);
}

static bool parse_row(char *line, struct tsri_quality_row *row)
{
    char *rest = NULL, *field[5];
    double *number[NUMBERS];
    memset(row, 0, sizeof *row);
    numbers_of(row, number);
    for (int i = 0; i < 5; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, ",", &rest))) return false;
    int selector = tsr_selector_find(field[2]);
    bool same = strcmp(field[3], "same") == 0, int8 = strcmp(field[4], "int8") == 0;
    if (selector < 0 || (!same && strcmp(field[3], "pure") != 0) ||
        (!int8 && strcmp(field[4], "plain") != 0) || strlen(field[0]) >= sizeof row->set ||
        strlen(field[1]) >= sizeof row->id)
        return false;
    strcpy(row->set, field[0]);
    strcpy(row->id, field[1]);
    row->setting.selector = (uint32_t)selector;
    row->setting.context = same ? TSR_CONTEXT_SAME : TSR_CONTEXT_PURE;
    row->setting.int8 = int8;
    for (int i = 0; i < NUMBERS; i++) {
        char *text = strtok_r(NULL, ",\n", &rest), *end;
        if (!text) return false;
        *number[i] = strtod(text, &end);
        if (*end || end == text) return false;
    }
    return strtok_r(NULL, ",\n", &rest) == NULL;
}

int tsri_quality_load(struct tsri_quality_rows *rows, const char *path)
{
    char *line = NULL;
    size_t room = 0, number = 0;
    off_t good = 0;
    bool cut_off = false;
    int e = 0;
    FILE *in = fopen(path, "r");
    if (!in) return errno == ENOENT ? 0 : tsri_cli_fail("%s: %s", path, strerror(errno));
    for (ssize_t n; !e && (n = getline(&line, &room, in)) > 0; good += n) {
        struct tsri_quality_row row;
        bool whole = line[n - 1] == '\n';
        if (number++ == 0) {
            if (whole && strcmp(line, HEADING) != 0)
                e = tsri_cli_fail("%s: not a table of measurements: unknown heading", path);
        }
        cut_off = !whole;
        if (cut_off) break;
        if (number > 1)
            e = parse_row(line, &row) ? tsri_quality_add(rows, &row)
                                      : tsri_cli_fail("%s:%zu: not a valid row", path, number);
    }
    free(line);
    fclose(in);
    /* What comes next must not be joined to half a line. */
    if (cut_off && truncate(path, good) != 0) e = tsri_cli_fail("%s: %s", path, strerror(errno));
    return e;
}

int tsri_quality_append(const char *path, const struct tsri_quality_row *rows, size_t n)
{
    struct stat st;
    bool is_new = stat(path, &st) != 0 || st.st_size == 0;
    FILE *out = fopen(path, "a");
    if (!out) return tsri_cli_fail("%s: %s", path, strerror(errno));
    if (is_new) fputs(HEADING, out);
    for (size_t i = 0; i < n; i++) {
        struct tsri_quality_row row = rows[i];
        double *number[NUMBERS];
        numbers_of(&row, number);
        fprintf(out, "%s,%s,%s,%s,%s", row.set, row.id, tsr_selector_name(row.setting.selector),
                row.setting.context == TSR_CONTEXT_PURE ? "pure" : "same",
                row.setting.int8 ? "int8" : "plain");
        for (int k = 0; k < NUMBERS; k++)
            fprintf(out, ",%.8g", *number[k]);
        fputc('\n', out);
    }
    bool failed = ferror(out);
    return (fclose(out) != 0 || failed) ? tsri_cli_fail("%s: %s", path, strerror(errno)) : 0;
}
