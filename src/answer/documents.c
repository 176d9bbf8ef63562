/* documents.c - texts to ask about: read from files and standard input, and checked to be text. Folders
 * are read by src/search, and so are HTML and PDF. */
#include "answer/answer.h"
#include "search/search.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* ---- reading ---- */

static int read_all(FILE *f, const char *name, char **text, size_t *bytes)
{
    size_t n = 0, room = 0;
    char *all = NULL;
    for (;;) {
        char *more = tsri_make_room(all, &room, n + 4096, 1);
        if (!more) {
            free(all);
            return TSR_ENOMEM;
        }
        all = more;
        size_t got = fread(all + n, 1, room - n - 1, f);
        n += got;
        if (got == 0 || n > TSRI_DOCUMENT_BYTES_MAX) break;
    }
    if (ferror(f) || n > TSRI_DOCUMENT_BYTES_MAX) {
        int e = ferror(f) ? tsri_fail(TSR_EIO, "%s: %s", name, strerror(errno))
                          : tsri_fail(TSR_ERANGE, "%s: more than %zu MB", name,
                                      TSRI_DOCUMENT_BYTES_MAX >> 20);
        free(all);
        return e;
    }
    all[n] = 0;
    *text = all;
    *bytes = n;
    return 0;
}

/* NULL when it is text, which a zero ends, else what it is. */
static const char *not_text(const char *text, size_t bytes, size_t *at)
{
    bool something = false;
    for (size_t i = 0; i < bytes;) {
        int n = tsri_utf8_length(text + i);
        *at = i;
        if (text[i] == 0) return "is binary";
        if (n == 0) return "is not UTF-8 text";
        something |= !strchr(" \t\r\n\f\v", text[i]);
        i += (size_t)n;
    }
    *at = 0;
    return something ? NULL : "is empty";
}

size_t tsri_text_tidy(char *text, size_t bytes)
{
    size_t from = 0, n = 0;
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) from = 3;
    while (from < bytes && strchr(" \t\r\n\f\v", text[from]))
        from++;
    for (; from < bytes; from++) {
        if (text[from] == '\r') {
            if (from + 1 < bytes && text[from + 1] == '\n') continue;
            text[n++] = '\n';
        } else {
            text[n++] = text[from];
        }
    }
    while (n > 0 && strchr(" \t\n\f\v", text[n - 1]))
        n--;
    return n;
}

static int keep(struct tsri_documents *d, const char *path, char *text, size_t bytes)
{
    if (d->n == TSRI_DOCUMENTS_MAX)
        return tsri_fail(TSR_ERANGE, "more than %u documents", TSRI_DOCUMENTS_MAX);
    void *more = tsri_make_room(d->items, &d->n_room, d->n + 1, sizeof *d->items);
    if (!more) return TSR_ENOMEM;
    d->items = more;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    struct tsri_document *doc = &d->items[d->n];
    doc->name = strdup(strcmp(path, "-") == 0 ? "standard input" : name);
    if (!doc->name) return tsri_fail(TSR_ENOMEM, "no memory");
    doc->text = text;
    doc->bytes = bytes;
    d->n++;
    return 0;
}

int tsri_documents_add_file(struct tsri_documents *d, const char *path)
{
    bool standard = strcmp(path, "-") == 0;
    const char *shown = standard ? "standard input" : path;
    struct stat st;
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) return tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t bytes = 0, at = 0;
    int e = fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)
                ? tsri_fail(TSR_EINVAL, "%s is a folder: use --docs=%s", path, path)
                : read_all(f, shown, &text, &bytes);
    if (!e && !standard && tsri_document_has_text(path, text, bytes)) {
        free(text);
        text = NULL;
        e = tsri_document_text(fileno(f), path, &text, &bytes);
    }
    if (!standard) fclose(f);
    if (e) return e;
    const char *what = not_text(text, bytes, &at);
    if (what) {
        e = at ? tsri_fail(TSR_EINVAL, "%s %s (byte %zu)", shown, what, at)
               : tsri_fail(TSR_EINVAL, "%s %s", shown, what);
    } else {
        e = keep(d, path, text, tsri_text_tidy(text, bytes));
        if (!e) return 0;
    }
    free(text);
    return e;
}

int tsri_documents_add_text(struct tsri_documents *d, const char *text, size_t bytes)
{
    size_t at = 0;
    char *copy = malloc(bytes + 1);
    if (!copy) return tsri_fail(TSR_ENOMEM, "no memory");
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    const char *what = not_text(copy, bytes, &at);
    if (what) {
        free(copy);
        return tsri_fail(TSR_EINVAL, "document %zu of the prompt %s (byte %zu)", d->n + 1, what,
                         at);
    }
    int e = keep(d, "", copy, tsri_text_tidy(copy, bytes));
    if (e) free(copy);
    return e;
}

void tsri_documents_fini(struct tsri_documents *d)
{
    for (size_t i = 0; i < d->n; i++) {
        free(d->items[i].name);
        free(d->items[i].text);
    }
    free(d->items);
    memset(d, 0, sizeof *d);
}
