/* html.c - the text of a page: what a reader sees, without markup, scripts and styles. libxml2 parses
 * it. It is loaded with the first page that is read: it brings eight libraries along, and most folders
 * have no HTML. Compiled against its headers, so the types are its own. */
#include "search/inside.h"

#include <dlfcn.h>
#include <libxml/HTMLparser.h>
#include <time.h>

/* Of the processor. Ordinary pages take milliseconds, but libxml2 compares every attribute of a tag
 * with all before it: a page of a few hundred kilobytes could take hours. */
#define PARSE_NS (3 * (uint64_t)1000000000)

struct html {
    htmlParserCtxtPtr (*begin)(void);
    htmlDocPtr (*read)(htmlParserCtxtPtr, xmlInputReadCallback, xmlInputCloseCallback, void *,
                       const char *, const char *, int);
    void (*end)(htmlParserCtxtPtr);
    void (*free_doc)(xmlDocPtr);
    xmlNodePtr (*root)(const xmlDoc *);
    bool ready;
};

static void load(void *arg)
{
    struct html *h = arg;
    void *library = dlopen("libxml2.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void (*init)(void) = NULL;
    if (!library) return;
    void *functions[] = {dlsym(library, "htmlNewParserCtxt"),    dlsym(library, "htmlCtxtReadIO"),
                         dlsym(library, "htmlFreeParserCtxt"),   dlsym(library, "xmlFreeDoc"),
                         dlsym(library, "xmlDocGetRootElement"), dlsym(library, "xmlInitParser")};
    memcpy(&h->begin, &functions[0], sizeof h->begin);
    memcpy(&h->read, &functions[1], sizeof h->read);
    memcpy(&h->end, &functions[2], sizeof h->end);
    memcpy(&h->free_doc, &functions[3], sizeof h->free_doc);
    memcpy(&h->root, &functions[4], sizeof h->root);
    memcpy(&init, &functions[5], sizeof init);
    if (init) init();
    h->ready = h->begin && h->read && h->end && h->free_doc && h->root && init;
}

static struct html loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void load_once(void)
{
    load(&loaded);
}

/* ---- from a tree to text ---- */

/* What separates text: nothing, a space, a line, a paragraph. The largest between two words counts. */
enum gap { GAP_NONE, GAP_SPACE, GAP_LINE, GAP_PARAGRAPH };

struct writing {
    struct tsri_prose *out;
    enum gap gap;
    int n_pre; /* open elements whose spaces count */
    int err;
};

static bool is_one_of(const xmlNode *node, const char *const *names)
{
    for (; *names; names++)
        if (node->name && strcmp((const char *)node->name, *names) == 0) return true;
    return false;
}

static enum gap gap_around(const xmlNode *node)
{
    static const char *const paragraphs[] = {
        "address", "article", "aside", "blockquote", "body", "div",        "dl",      "fieldset",
        "figure",  "footer",  "form",  "h1",         "h2",   "h3",         "h4",      "h5",
        "h6",      "header",  "hr",    "main",       "nav",  "ol",         "p",       "pre",
        "section", "table",   "title", "ul",         "head", "figcaption", "details", NULL};
    static const char *const lines[] = {"br",      "li",     "tr",      "dt", "dd",
                                        "caption", "option", "summary", NULL};
    static const char *const spaces[] = {"td", "th", "button", "img", "input", NULL};
    if (is_one_of(node, paragraphs)) return GAP_PARAGRAPH;
    if (is_one_of(node, lines)) return GAP_LINE;
    return is_one_of(node, spaces) ? GAP_SPACE : GAP_NONE;
}

static bool is_hidden(const xmlNode *node)
{
    static const char *const names[] = {"script", "style",    "template", "noscript", "svg",
                                        "math",   "textarea", "select",   "iframe",   "object",
                                        "meta",   "link",     NULL};
    return is_one_of(node, names);
}

static void widen(struct writing *w, enum gap gap)
{
    if (gap > w->gap) w->gap = gap;
}

static void put(struct writing *w, const char *text, size_t bytes)
{
    static const char *const gaps[] = {"", " ", "\n", "\n\n"};
    if (w->err || !bytes) return;
    if (w->out->bytes) w->err = tsri_prose_add(w->out, gaps[w->gap], strlen(gaps[w->gap]));
    if (!w->err) w->err = tsri_prose_add(w->out, text, bytes);
    w->gap = GAP_NONE;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void put_text(struct writing *w, const char *text)
{
    if (!text) return;
    if (w->n_pre > 0) {
        put(w, text, strlen(text));
        return;
    }
    while (*text) {
        size_t n = 0;
        while (is_space(*text))
            text++, widen(w, GAP_SPACE);
        while (text[n] && !is_space(text[n]))
            n++;
        put(w, text, n);
        text += n;
    }
}

static bool is_pre(const xmlNode *node)
{
    return node->name && strcmp((const char *)node->name, "pre") == 0;
}

/* Begins a node; whether its children are text of the page. */
static bool enter(struct writing *w, const xmlNode *node)
{
    if (node->type == XML_TEXT_NODE || node->type == XML_CDATA_SECTION_NODE) {
        put_text(w, (const char *)node->content);
        return false;
    }
    if (node->type != XML_ELEMENT_NODE || is_hidden(node)) return false;
    widen(w, gap_around(node));
    w->n_pre += is_pre(node);
    return true;
}

static void leave(struct writing *w, const xmlNode *node)
{
    widen(w, gap_around(node));
    w->n_pre -= is_pre(node);
}

/* Without recursion: how deep a page is nested is not ours to say. */
static int write_tree(const xmlNode *root, struct tsri_prose *out)
{
    struct writing w = {.out = out};
    const xmlNode *node = root;
    while (node && !w.err) {
        if (enter(&w, node) && node->children) {
            node = node->children;
            continue;
        }
        if (node->type == XML_ELEMENT_NODE && !is_hidden(node)) leave(&w, node);
        while (node != root && !node->next) {
            node = node->parent;
            leave(&w, node);
        }
        node = node == root ? NULL : node->next;
    }
    return w.err;
}

/* ---- reading ---- */

/* A page that is handed to the parser piece by piece, to see how long it takes. */
struct feed {
    htmlParserCtxtPtr parser;
    startElementSAXFunc start;
    const char *data;
    size_t bytes;
    uint64_t end_ns;
    bool late;
};

/* No attribute is text. The tree would look for the end of its list for each: 30000 took 15 s, in one
 * call that nothing ends. */
static void start_bare(void *parser, const xmlChar *name, const xmlChar **attributes)
{
    const struct feed *f = ((htmlParserCtxtPtr)parser)->_private;
    (void)attributes;
    f->start(parser, name, NULL);
}

static uint64_t busy_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int give(void *arg, char *buf, int room)
{
    struct feed *f = arg;
    f->late |= busy_ns() > f->end_ns;
    /* The tag that it is in would become part of the tree, which takes even longer. */
    if (f->late) f->parser->sax->startElement = NULL;
    size_t n = f->late || room < 0 ? 0 : (size_t)room < f->bytes ? (size_t)room : f->bytes;
    memcpy(buf, f->data, n);
    f->data += n;
    f->bytes -= n;
    return (int)n;
}

/* Of UTF-8: no encoding that the page names is looked at. */
static int parse(const char *data, size_t bytes, struct tsri_prose *out)
{
    const int options = HTML_PARSE_RECOVER | HTML_PARSE_NOERROR | HTML_PARSE_NOWARNING |
                        HTML_PARSE_NONET | HTML_PARSE_COMPACT;
    struct feed feed = {.parser = loaded.begin(), .data = data, .bytes = bytes};
    if (!feed.parser) return tsri_fail(TSR_ENOMEM, "search: no memory to read HTML");
    feed.start = feed.parser->sax->startElement;
    feed.parser->sax->startElement = start_bare;
    feed.parser->_private = &feed;
    feed.end_ns = busy_ns() + PARSE_NS;
    htmlDocPtr doc = loaded.read(feed.parser, give, NULL, &feed, NULL, "UTF-8", options);
    loaded.end(feed.parser);
    if (!doc) return tsri_fail(TSR_EIO, "cannot be parsed as HTML");
    int err = feed.late ? tsri_fail(TSR_ERANGE, "takes too long to read as HTML")
                        : write_tree(loaded.root(doc), out);
    loaded.free_doc(doc);
    return err;
}

int tsri_html_text(const char *data, size_t bytes, struct tsri_prose *out)
{
    pthread_once(&once, load_once);
    if (!loaded.ready) return tsri_fail(TSR_EUNSUP, "libxml2 is not installed");
    if (bytes > TSRI_SEARCH_FILE_BYTES_MAX) return tsri_fail(TSR_ERANGE, "html: too large");
    int err = tsri_prose_add(out, "", 0);
    if (err || !bytes) return err;
    if (tsri_is_utf8(data, bytes)) return parse(data, bytes, out);
    struct tsri_prose page = {0};
    err = tsri_page_utf8(data, bytes, &page);
    if (!err && page.bytes) err = parse(page.data, page.bytes, out);
    tsri_prose_fini(&page);
    return err;
}
