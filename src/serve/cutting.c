/* cutting.c - documents in a text, with a separator after each part but the last (option chunked):
 *
 *     You are helpful.##The first document.##The second one.##What do they say?
 *
 * People also write separators when they mean something else: "##" begins a heading of Markdown. So a
 * text is cut only if the result makes sense, headings stay what they are, and what remains is the
 * user's own text: nothing of it becomes a system prompt. Only the last text of the user is cut. */
#include "serve/api.h"

#include "chunk/chunk.h"

#include <stdlib.h>

#define HEADING_BLANKS_MAX 3u /* before the marks of a heading, by CommonMark */

static const char blanks[] = " \t\r\n\f\v";

/* ---- what counts as a separator ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_run(const char *text, size_t bytes)
{
    return strspn(text, "#") >= bytes;
}

static bool ends_line(const char *at)
{
    while (is_blank(*at))
        at++;
    return *at == 0 || *at == '\n';
}

/* Where the search for separators is, and the line that it is in. A line is looked at once, and so is
 * each run of marks: texts are of strangers, and may be one line of 16 MB. */
struct cut_state {
    const char *at, *end;
    const char *seen; /* `line` is right up to here */
    const char *line, *marks_end;
    bool has_marks, bare; /* the line begins with a run of marks; and has nothing else */
};

static void look_at_line(struct cut_state *f)
{
    size_t blank = 0;
    while (blank <= HEADING_BLANKS_MAX && f->line[blank] == ' ')
        blank++;
    const char *marks = f->line + blank;
    f->marks_end = blank > HEADING_BLANKS_MAX ? marks : marks + strspn(marks, "#");
    f->has_marks = f->marks_end > marks;
    f->bare = f->has_marks && ends_line(f->marks_end);
}

static void go_to(struct cut_state *f, const char *at)
{
    const char *end = memrchr(f->seen, '\n', (size_t)(at - f->seen));
    if (end) {
        f->line = end + 1;
        look_at_line(f);
    }
    f->at = f->seen = at;
}

/* Whether the n bytes there are a mark of a heading of Markdown, which is a line such as "## Plan",
 * "## Plan ##" or "###". Not a "##" on a line of its own, and not "##Plan". run: of marks, all of them. */
static bool is_of_heading(const struct cut_state *f, size_t n, size_t run)
{
    const char *marks = f->marks_end;
    if (!f->has_marks) return false;
    if (f->bare) return strspn(f->line, " ") + n != (size_t)(marks - f->line);
    return is_blank(*marks) && (f->at < marks || ends_line(f->at + run));
}

/* The next separator; NULL: none. */
static const char *next_separator(struct cut_state *f, const char *core, size_t n)
{
    bool marks = is_run(core, n);
    for (const char *at; (at = memmem(f->at, (size_t)(f->end - f->at), core, n));) {
        go_to(f, at);
        size_t run = marks ? strspn(at, "#") : 0;
        bool heading = marks && is_of_heading(f, n, run);
        f->at = at + (heading ? run : n);
        if (!heading) return at;
    }
    return NULL;
}

/* ---- parts ---- */

/* As tsr_text_split(), but for headings. 0: there are no documents, or a part is empty. */
static uint32_t find_parts(const struct tsri_message *m, const char *separator,
                           struct tsr_text_part *parts, size_t documents_max)
{
    size_t n_core;
    const char *core = tsri_separator_core(separator, &n_core), *begin = m->text;
    struct cut_state f = {.at = begin, .end = begin + m->bytes, .seen = begin, .line = begin};
    uint32_t n = 0;
    look_at_line(&f);
    for (;;) {
        const char *at = next_separator(&f, core, n_core);
        size_t bytes = (size_t)((at ? at : f.end) - begin);
        if (strspn(begin, blanks) >= bytes || n == documents_max + 2) return 0;
        parts[n++] = (struct tsr_text_part){(size_t)(begin - m->text), bytes};
        if (!at) return n > 2 ? n : 0;
        begin = at + n_core;
    }
}

/* What comes before the documents goes before the question. */
static bool join_question(struct tsri_api_request *q, struct tsri_message *m, const char *before,
                          size_t bytes, struct tsri_refusal *no)
{
    size_t n = bytes + 2 + m->bytes;
    char *joined = malloc(n + 1);
    if (!joined) return tsri_refuse(no, 503, NULL, NULL, "no memory");
    memcpy(joined, before, bytes);
    memcpy(joined + bytes, "\n\n", 2);
    memcpy(joined + bytes + 2, m->text, m->bytes + 1);
    bool ok = tsri_api_hold(q, m, joined, n, no);
    free(joined);
    return ok;
}

/* Between two parts there is a separator, so that a zero behind one changes no other. */
static bool take_parts(struct tsri_api_request *q, struct tsri_message *m,
                       struct tsr_text_part *parts, uint32_t n, struct tsri_refusal *no)
{
    const char *param = q->api == TSRI_API_CHAT ? "messages" : "prompt";
    char *text = (char *)(uintptr_t)m->text;
    size_t first = q->n_documents - m->n_documents;
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_text_part *p = &parts[i];
        bool document = i > 0 && i < n - 1;
        if (document && !tsri_api_add_text(q, text + p->offset, p->bytes, "", param, no))
            return false;
        if (document) continue;
        p->bytes = tsri_text_tidy(text + p->offset, p->bytes);
        text[p->offset + p->bytes] = 0;
    }
    const char *before = text + parts[0].offset;
    m->text = text + parts[n - 1].offset;
    m->bytes = parts[n - 1].bytes;
    m->documents = q->documents + first;
    m->n_documents = q->n_documents - first;
    if (q->api == TSRI_API_CHAT) return join_question(q, m, before, parts[0].bytes, no);
    /* A plain prompt has no roles, and keeps its order. */
    q->messages[1] = *m;
    q->messages[0] =
        (struct tsri_message){.role = "system", .text = before, .bytes = parts[0].bytes};
    q->n_messages = 2;
    return true;
}

bool tsri_api_cut(struct tsri_api_request *q, struct tsri_refusal *no)
{
    struct tsri_message *m = NULL;
    for (uint32_t i = q->n_messages; i > 0 && !m; i--)
        if (strcmp(q->messages[i - 1].role, "user") == 0) m = &q->messages[i - 1];
    size_t documents_max = TSRI_DOCUMENTS_MAX - q->n_documents;
    if (!*q->separator || !m) return true;
    struct tsr_text_part *parts = tsri_alloc(documents_max + 2, sizeof *parts);
    if (!parts) return tsri_refuse(no, 503, NULL, NULL, "no memory");
    uint32_t n = find_parts(m, q->separator, parts, documents_max);
    bool ok = n == 0 || take_parts(q, m, parts, n, no);
    tsri_free(parts);
    return ok;
}
