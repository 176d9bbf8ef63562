/* s3_text.c - what an S3 server writes: pages of a list, elements of a short answer, and the
 * Content-Range line. All of it comes from outside. expat reads the XML; we keep the text of one
 * element at a time, in a buffer of fixed size, and give up at a document type (servers send none,
 * and entities of its own are trouble) or deep nesting. What is not understood is an error or
 * passed over, never guessed. */
#include "s3/s3.h"

#include <stdlib.h>

#define DEPTH_MAX 16u

/* ---- XML ---- */

/* One pass over a document. `ended` is called at the end of each element: `text` is what it held,
 * without the space around, or NULL when there were elements in it or it is too long. */
struct xml_walk {
    const struct tsri_s3_expat *expat;
    XML_Parser parser;
    void (*ended)(struct xml_walk *w, const char *name, const char *text);
    void *arg;
    const char *root; /* another one is not read; NULL: any */
    unsigned depth;   /* of the element that is open: 1 for the root */
    bool leaf;        /* nothing but text has been met since it began */
    bool fits, stopped;
    size_t text_bytes;
    char text[TSRI_S3_TOKEN_BYTES];
};

static void stop(struct xml_walk *w)
{
    w->stopped = true;
    w->expat->StopParser(w->parser, XML_FALSE);
}

static void on_begin(void *arg, const XML_Char *name, const XML_Char **attributes)
{
    struct xml_walk *w = arg;
    (void)attributes;
    if (w->stopped) return;
    w->depth++;
    if (w->depth > DEPTH_MAX || (w->depth == 1 && w->root && strcmp(name, w->root) != 0)) stop(w);
    w->leaf = w->fits = true;
    w->text_bytes = 0;
}

static void on_text(void *arg, const XML_Char *text, int bytes)
{
    struct xml_walk *w = arg;
    size_t n = (size_t)bytes;
    if (w->stopped) return;
    if (w->text_bytes == 0) /* it may come in pieces */
        while (n && strchr(" \t\r\n", *text))
            text++, n--;
    w->fits = w->fits && n < sizeof w->text - w->text_bytes;
    if (!w->fits) return;
    memcpy(w->text + w->text_bytes, text, n);
    w->text_bytes += n;
}

static void on_end(void *arg, const XML_Char *name)
{
    struct xml_walk *w = arg;
    if (w->stopped) return; /* the end of <x/> comes even so */
    while (w->text_bytes && strchr(" \t\r\n", w->text[w->text_bytes - 1]))
        w->text_bytes--;
    w->text[w->text_bytes] = '\0';
    w->ended(w, name, w->leaf && w->fits ? w->text : NULL);
    w->leaf = false;
    w->depth--;
}

static void on_doctype(void *arg, const XML_Char *name, const XML_Char *system_id,
                       const XML_Char *public_id, int has_internal)
{
    (void)name, (void)system_id, (void)public_id, (void)has_internal;
    stop(arg);
}

/* True when all of it is one well-formed document. */
static bool walk(struct xml_walk *w, const char *text, size_t bytes)
{
    /* Servers send space to keep a connection alive, which may not stand before <?xml. */
    while (bytes && memchr(" \t\r\n", *text, 4))
        text++, bytes--;
    if (bytes > TSRI_S3_REPLY_MAX) return false;
    w->parser = w->expat->ParserCreate("UTF-8"); /* whatever the document says */
    if (!w->parser) return false;
    w->expat->SetUserData(w->parser, w);
    w->expat->SetElementHandler(w->parser, on_begin, on_end);
    w->expat->SetCharacterDataHandler(w->parser, on_text);
    w->expat->SetStartDoctypeDeclHandler(w->parser, on_doctype);
    bool good = w->expat->Parse(w->parser, text, (int)bytes, XML_TRUE) == XML_STATUS_OK;
    w->expat->ParserFree(w->parser);
    return good;
}

/* ---- one element ---- */

struct wanted {
    const char *name;
    char *out;
    size_t out_bytes;
    bool found;
};

static void seek_element(struct xml_walk *w, const char *name, const char *text)
{
    struct wanted *x = w->arg;
    if (strcmp(name, x->name) != 0) return;
    x->found = text && strlen(text) < x->out_bytes;
    if (x->found) memcpy(x->out, text, strlen(text) + 1);
    stop(w);
}

bool tsri_s3_element(const struct tsri_s3_expat *expat, const char *text, size_t bytes,
                     const char *name, char *out, size_t out_bytes)
{
    struct wanted x = {.name = name, .out = out, .out_bytes = out_bytes};
    struct xml_walk w = {.expat = expat, .ended = seek_element, .arg = &x};
    (void)walk(&w, text, bytes); /* errors are cut off at the size of their buffer */
    return x.found;
}

/* ---- lists ---- */

static bool read_number(const char *text, uint64_t *out)
{
    size_t n = strlen(text);
    if (n == 0 || n > 18 || strspn(text, "0123456789") != n) return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

struct listed {
    tsri_s3_object_fn fn;
    void *arg;
    int n;
    bool truncated, named, sized; /* the latter two: of the object that is open */
    char name[TSRI_S3_NAME_BYTES], *token;
    uint64_t bytes;
};

/* <Key> and <Size> of <Contents>. A name that is no name of ours is left out. */
static void read_member(struct listed *l, const char *name, const char *text)
{
    if (strcmp(name, "Key") == 0) {
        l->named = text && strlen(text) < sizeof l->name;
        if (l->named) memcpy(l->name, text, strlen(text) + 1);
    } else if (strcmp(name, "Size") == 0) {
        l->sized = text && read_number(text, &l->bytes);
    }
}

static void read_top(struct xml_walk *w, struct listed *l, const char *name, const char *text)
{
    if (strcmp(name, "Contents") == 0 && l->named && l->sized) {
        l->fn(l->arg, l->name, l->bytes);
        l->n++;
    } else if (strcmp(name, "IsTruncated") == 0) {
        if (!text) stop(w);
        l->truncated = text && strcmp(text, "true") == 0;
    } else if (strcmp(name, "NextContinuationToken") == 0) {
        if (!text) stop(w);
        if (text) memcpy(l->token, text, strlen(text) + 1);
    }
    l->named = l->sized = false;
}

static void read_listed(struct xml_walk *w, const char *name, const char *text)
{
    struct listed *l = w->arg;
    if (w->depth == 3) read_member(l, name, text);
    if (w->depth == 2) read_top(w, l, name, text);
}

int tsri_s3_read_list(const struct tsri_s3_expat *expat, const char *text, size_t bytes,
                      tsri_s3_object_fn fn, void *arg, char token[TSRI_S3_TOKEN_BYTES])
{
    struct listed l = {.fn = fn, .arg = arg, .token = token};
    struct xml_walk w = {
        .expat = expat, .ended = read_listed, .arg = &l, .root = "ListBucketResult"};
    token[0] = '\0';
    if (!walk(&w, text, bytes))
        return tsri_fail(TSR_ECORRUPT, "s3: malformed or truncated listing");
    if (!l.truncated)
        token[0] = '\0';
    else if (!token[0])
        return tsri_fail(TSR_ECORRUPT, "s3: listing has no continuation token");
    return l.n;
}

/* ---- Content-Range ---- */

bool tsri_s3_content_range(const char *text, struct tsri_extent *extent, uint64_t *total)
{
    uint64_t values[3];
    static const char behind[] = {'-', '/', '\0'};
    if (strncmp(text, "bytes ", 6) != 0) return false;
    text += 6;
    for (size_t i = 0; i < TSRI_COUNT(values); i++) {
        char number[20];
        size_t n = strspn(text, "0123456789");
        if (n >= sizeof number || text[n] != behind[i]) return false;
        memcpy(number, text, n);
        number[n] = '\0';
        if (!read_number(number, &values[i])) return false;
        text += n + 1;
    }
    if (values[0] > values[1] || values[1] >= values[2]) return false;
    *extent = (struct tsri_extent){values[0], values[1] + 1};
    *total = values[2];
    return true;
}
