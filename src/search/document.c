/* document.c - from a file to its text: plain text and Markdown as they are, HTML and PDF through
 * their readers. Says why where there is none. */
#include "search/inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define PDF_WAIT_MS 60000u

static bool ends_in(const char *name, const char *const *ends)
{
    size_t n = strlen(name);
    for (; *ends; ends++)
        if (n >= strlen(*ends) && strcasecmp(name + n - strlen(*ends), *ends) == 0) return true;
    return false;
}

static bool begins_with(const char *data, size_t bytes, const char *what)
{
    return bytes >= strlen(what) && strncasecmp(data, what, strlen(what)) == 0;
}

enum tsri_kind tsri_kind_of(const char *name, const char *data, size_t bytes)
{
    static const char *const html[] = {".html", ".htm", ".xhtml", NULL};
    if (begins_with(data, bytes, "%PDF-")) return TSRI_KIND_PDF;
    if (ends_in(name, html) || begins_with(data, bytes, "<!doctype html") ||
        begins_with(data, bytes, "<html"))
        return TSRI_KIND_HTML;
    return TSRI_KIND_TEXT;
}

static int read_bytes(int fd, const char *name, size_t bytes, struct tsri_prose *out)
{
    char buf[65536];
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tsri_fail(TSR_EIO, "%s: %s", name, strerror(errno));
        if (n == 0) return tsri_prose_add(out, "", 0);
        /* It may grow while it is read. */
        if (out->bytes + (size_t)n > bytes) return tsri_fail(TSR_ERANGE, "%s: too large", name);
        int err = tsri_prose_add(out, buf, (size_t)n);
        if (err) return err;
    }
}

static int refuse(struct tsri_read *r, const char *why)
{
    snprintf(r->why, sizeof r->why, "%s", why);
    tsri_prose_fini(&r->text);
    return 0;
}

static int too_large(struct tsri_read *r)
{
    char why[64];
    snprintf(why, sizeof why, "is larger than %zu MB", TSRI_SEARCH_FILE_BYTES_MAX >> 20);
    return refuse(r, why);
}

static int convert(struct tsri_read *r, int fd, const char *name)
{
    const struct tsri_pdf_limits limits = {PDF_WAIT_MS, TSRI_SEARCH_FILE_BYTES_MAX};
    struct tsri_prose text = {0};
    int err = 0;
    enum tsri_kind kind = tsri_kind_of(name, r->text.data, r->text.bytes);
    if (kind == TSRI_KIND_HTML) err = tsri_html_text(r->text.data, r->text.bytes, &text);
    if (kind == TSRI_KIND_PDF) err = tsri_pdf_text(fd, &limits, &text);
    if (kind == TSRI_KIND_TEXT && r->text.bytes > TSRI_SEARCH_FILE_BYTES_MAX) return too_large(r);
    if (err == TSR_ENOMEM || err == 0) {
        if (kind != TSRI_KIND_TEXT) {
            tsri_prose_fini(&r->text);
            r->text = text;
        }
        return err;
    }
    tsri_prose_fini(&text);
    r->passing = err == TSR_EUNSUP || err == TSR_ETIME;
    return refuse(r, tsr_errmsg());
}

int tsri_read_file(struct tsri_read *r, int fd, const char *name)
{
    memset(r, 0, sizeof *r);
    int err = read_bytes(fd, name, 4 * TSRI_SEARCH_FILE_BYTES_MAX, &r->text);
    if (err == TSR_ENOMEM) return err;
    if (err == TSR_ERANGE) return too_large(r);
    if (err) {
        r->passing = true;
        return refuse(r, "cannot be read");
    }
    XXH128_hash_t hash = XXH3_128bits(r->text.data, r->text.bytes);
    r->hash[0] = hash.low64;
    r->hash[1] = hash.high64;
    err = convert(r, fd, name);
    if (err || r->why[0]) return err;
    const char *flaw = tsri_prose_flaw(&r->text);
    if (flaw) return refuse(r, flaw);
    tsri_prose_tidy(&r->text);
    return 0;
}

void tsri_read_fini(struct tsri_read *r)
{
    tsri_prose_fini(&r->text);
}

bool tsri_document_has_text(const char *name, const char *data, size_t bytes)
{
    return tsri_kind_of(name, data, bytes) != TSRI_KIND_TEXT;
}

int tsri_document_text(int fd, const char *name, char **text, size_t *bytes)
{
    struct tsri_read r;
    *text = NULL;
    *bytes = 0;
    if (lseek(fd, 0, SEEK_SET) != 0) return tsri_fail(TSR_EIO, "%s: %s", name, strerror(errno));
    int err = tsri_read_file(&r, fd, name);
    if (!err && r.why[0]) err = tsri_fail(TSR_EINVAL, "%s: %s", name, r.why);
    if (!err) {
        *text = r.text.data;
        *bytes = r.text.bytes;
        r.text = (struct tsri_prose){0};
    }
    tsri_read_fini(&r);
    return err;
}
