/* s3_text.c - what an S3 server writes: pages of a list, elements of a short answer, and the
 * Content-Range line. All of it comes from outside. The XML is walked tag by tag without building
 * anything, with bounded output; what is not understood is an error or passed over, never guessed.
 */
#include "tier/s3.h"

#include <stdlib.h>

/* ---- tags ---- */

struct xml {
    const char *at, *end;
};

/* A tag: <name ..>, </name> or <name/>. `text` is what stood before it. */
struct tag {
    const char *text, *name;
    size_t text_bytes, name_bytes;
    bool closes, empty;
};

static bool starts(const struct xml *x, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(x->end - x->at) >= n && memcmp(x->at, word, n) == 0;
}

/* Behind the next occurrence of `word`; false when there is none. */
static bool skip_past(struct xml *x, const char *word)
{
    const char *at = memmem(x->at, (size_t)(x->end - x->at), word, strlen(word));
    if (!at) return false;
    x->at = at + strlen(word);
    return true;
}

/* False at the end, or where it is no XML. Comments and <?..?> are passed over; a document type
 * ends it: servers send none, and entities of one's own are trouble. */
static bool next_tag(struct xml *x, struct tag *t)
{
    for (;;) {
        const char *open = memchr(x->at, '<', (size_t)(x->end - x->at));
        if (!open) return false;
        t->text = x->at;
        t->text_bytes = (size_t)(open - x->at);
        x->at = open + 1;
        if (starts(x, "?")) {
            if (!skip_past(x, "?>")) return false;
        } else if (starts(x, "!--")) {
            if (!skip_past(x, "-->")) return false;
        } else {
            break;
        }
    }
    if (starts(x, "!")) return false;
    const char *close = memchr(x->at, '>', (size_t)(x->end - x->at));
    if (!close) return false;
    t->closes = x->at < close && *x->at == '/';
    t->empty = close > x->at && close[-1] == '/' && !t->closes;
    t->name = x->at + t->closes;
    const char *end = close - t->empty;
    t->name_bytes = 0;
    while (t->name + t->name_bytes < end && !strchr(" \t\r\n", t->name[t->name_bytes]))
        t->name_bytes++;
    x->at = close + 1;
    return t->name_bytes > 0;
}

static bool is_named(const struct tag *t, const char *name)
{
    return t->name_bytes == strlen(name) && memcmp(t->name, name, t->name_bytes) == 0;
}

/* ---- text ---- */

/* The character of an entity, "amp" or "#34" or "#x22"; -1 for others. Only ASCII is ever ours. */
static int entity(const char *text, size_t n)
{
    static const struct {
        const char *name;
        char c;
    } known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    for (size_t i = 0; i < TSRI_COUNT(known); i++)
        if (n == strlen(known[i].name) && memcmp(text, known[i].name, n) == 0) return known[i].c;
    if (n < 2 || n > 6 || text[0] != '#') return -1;
    char digits[8] = {0};
    bool hex = text[1] == 'x';
    size_t skip = hex ? 2 : 1;
    memcpy(digits, text + skip, n - skip);
    if (strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789") != n - skip || n == skip)
        return -1;
    long c = strtol(digits, NULL, hex ? 16 : 10);
    return c > 0 && c < 128 ? (int)c : -1;
}

/* With entities resolved and spaces around it cut off; false when it does not fit. */
static bool copy_text(const char *text, size_t n, char *out, size_t out_bytes)
{
    size_t k = 0;
    while (n && strchr(" \t\r\n", *text) && *text)
        text++, n--;
    while (n && strchr(" \t\r\n", text[n - 1]) && text[n - 1])
        n--;
    for (size_t i = 0; i < n;) {
        int c = (unsigned char)text[i];
        size_t used = 1;
        if (c == '&') {
            const char *end = memchr(text + i, ';', n - i);
            if (!end) return false;
            used = (size_t)(end - text) - i + 1;
            c = entity(text + i + 1, used - 2);
        }
        if (c <= 0 || k + 1 >= out_bytes) return false;
        out[k++] = (char)c;
        i += used;
    }
    out[k] = '\0';
    return true;
}

/* What stands between the tag just read and its end; false when there are tags in it. */
static bool read_element(struct xml *x, const struct tag *open, char *out, size_t out_bytes)
{
    struct tag close;
    out[0] = '\0';
    if (open->empty) return true;
    struct xml behind = *x;
    if (!next_tag(&behind, &close) || !close.closes || close.name_bytes != open->name_bytes ||
        memcmp(close.name, open->name, open->name_bytes) != 0)
        return false;
    x->at = behind.at;
    return copy_text(close.text, close.text_bytes, out, out_bytes);
}

bool tsri_s3_element(const char *text, size_t bytes, const char *name, char *out, size_t out_bytes)
{
    struct xml x = {text, text + bytes};
    struct tag t;
    while (next_tag(&x, &t))
        if (!t.closes && is_named(&t, name)) return read_element(&x, &t, out, out_bytes);
    return false;
}

/* ---- lists ---- */

static bool read_number(const char *text, uint64_t *out)
{
    size_t n = strlen(text);
    if (n == 0 || n > 18 || strspn(text, "0123456789") != n) return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

/* One <Contents>: false when it is broken off. A name that is no name of ours is left out. */
static bool read_object(struct xml *x, tsri_s3_object_fn fn, void *arg, int *n)
{
    char name[TSRI_S3_NAME_BYTES], size[32];
    bool named = false, sized = false;
    uint64_t bytes = 0;
    struct tag t;
    while (next_tag(x, &t)) {
        if (t.closes && is_named(&t, "Contents")) {
            if (named && sized) {
                fn(arg, name, bytes);
                ++*n;
            }
            return true;
        }
        if (t.closes) continue;
        if (is_named(&t, "Key")) named = read_element(x, &t, name, sizeof name);
        if (is_named(&t, "Size"))
            sized = read_element(x, &t, size, sizeof size) && read_number(size, &bytes);
    }
    return false;
}

int tsri_s3_read_list(const char *text, size_t bytes, tsri_s3_object_fn fn, void *arg,
                      char token[TSRI_S3_TOKEN_BYTES])
{
    struct xml x = {text, text + bytes};
    struct tag t;
    char truncated[8] = "";
    int n = 0;
    bool begun = false, ended = false;
    token[0] = '\0';
    while (!ended && next_tag(&x, &t)) {
        if (is_named(&t, "ListBucketResult")) {
            ended = t.closes || t.empty;
            begun = true;
        } else if (!begun || t.closes) {
            continue;
        } else if (is_named(&t, "Contents") && !t.empty) {
            if (!read_object(&x, fn, arg, &n)) break;
        } else if (is_named(&t, "IsTruncated")) {
            if (!read_element(&x, &t, truncated, sizeof truncated)) break;
        } else if (is_named(&t, "NextContinuationToken")) {
            if (!read_element(&x, &t, token, TSRI_S3_TOKEN_BYTES)) break;
        }
    }
    if (!begun || !ended) return tsri_fail(TSR_ECORRUPT, "s3: a list that is none, or broken off");
    if (strcmp(truncated, "true") != 0)
        token[0] = '\0';
    else if (!token[0])
        return tsri_fail(TSR_ECORRUPT, "s3: a list that cannot be gone on with");
    return n;
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
