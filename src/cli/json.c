/* json.c - JSON files, whole or line by line. jansson does the parsing; this file bounds what is
 * given to it and names the place of a mistake. A document in memory takes up to 30 times its bytes
 * (a list of numbers of one digit), so the limits are those of memory too. */
#include "cli/json.h"

#include <errno.h>
#include <stdlib.h>

json_t *tsri_json_parse(const char *text, size_t bytes, const char *name, size_t line)
{
    json_error_t e;
    json_t *v = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!v) {
        size_t further = e.line > 1 ? (size_t)e.line - 1 : 0;
        tsri_fail(TSR_EINVAL, "%s:%zu:%d: %s", name, line + further, e.column, e.text);
    } else if (!json_is_object(v)) {
        tsri_fail(TSR_EINVAL, "%s:%zu: expected a JSON object", name, line);
        json_decref(v);
        v = NULL;
    }
    return v;
}

const char *tsri_json_unknown(const json_t *object, const char *const *names, size_t n)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    { /* only reads */
        size_t i = 0;
        while (i < n && strcmp(name, names[i]) != 0)
            i++;
        if (i == n) return name;
    }
    return NULL;
}

/* ---- files ---- */

/* Adds what follows in the file up to and with the byte `end` (EOF: all); how much there is then,
 * or an error. */
static int64_t take(struct tsri_json_lines *l, int end)
{
    size_t n = 0;
    for (int c = 0; c != end && (c = getc_unlocked(l->file)) != EOF; n++) {
        if (n == l->bytes_max)
            return tsri_fail(TSR_ERANGE, "%s:%zu: more than %zu bytes", l->path, l->number,
                             l->bytes_max);
        char *more = tsri_make_room(l->text, &l->room, n + 1, 1);
        if (!more) return TSR_ENOMEM;
        l->text = more;
        l->text[n] = (char)c;
    }
    if (ferror(l->file)) return tsri_fail(TSR_EIO, "%s: %s", l->path, strerror(errno));
    return (int64_t)n;
}

int tsri_json_lines_open(struct tsri_json_lines *l, const char *path, size_t bytes_max)
{
    *l = (struct tsri_json_lines){.path = path, .bytes_max = bytes_max};
    l->file = fopen(path, "re");
    return l->file ? 0 : tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
}

void tsri_json_lines_close(struct tsri_json_lines *l)
{
    if (l->file) fclose(l->file);
    free(l->text);
    *l = (struct tsri_json_lines){0};
}

static bool is_blank(const char *text, size_t n)
{
    while (n > 0 && memchr(" \t\r\n", text[n - 1], 4))
        n--;
    return n == 0;
}

int tsri_json_lines_next(struct tsri_json_lines *l, json_t **out)
{
    int64_t n;
    do {
        l->number++;
        n = take(l, '\n');
        if (n <= 0) return (int)n;
    } while (is_blank(l->text, (size_t)n));
    if (l->text[n - 1] == '\n') n--; /* a mistake at the end is in this line, not in the next */
    *out = tsri_json_parse(l->text, (size_t)n, l->path, l->number);
    return *out ? 1 : TSR_EINVAL;
}

json_t *tsri_json_load(const char *path, size_t bytes_max)
{
    struct tsri_json_lines all;
    if (tsri_json_lines_open(&all, path, bytes_max) < 0) return NULL;
    all.number = 1;
    int64_t n = take(&all, EOF);
    json_t *v = n < 0 ? NULL : tsri_json_parse(n ? all.text : "", (size_t)n, path, 1);
    tsri_json_lines_close(&all);
    return v;
}
