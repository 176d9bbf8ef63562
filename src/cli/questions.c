/* questions.c - questions with their documents and right answers, a JSON object a line:
 *
 *   {"set": "musique", "id": "17", "documents": ["text", ...], "question": "...", "answers":
 * ["..."]}
 *
 * and optionally "system", and "plain": true for texts that are the whole prompt, one after
 * another, without a chat template (then "system" is needed). JSON is read as what it also is,
 * YAML, by the library that reads our configuration. Unknown members are refused: a misspelt one
 * would be measured without. */
#include "cli/quality.h"

#include <errno.h>
#include <stdlib.h>
#include <yaml.h>

#define LINE_BYTES_MAX ((size_t)8 << 20)
#define LIST_MAX 256u

struct file_line {
    const char *path;
    size_t line;
};

static int wrong(const struct file_line *p, const char *why)
{
    return tsri_cli_fail("%s:%zu: %s", p->path, p->line, why);
}

/* ---- one line ---- */

static int next_event(yaml_parser_t *parser, yaml_event_t *event, const struct file_line *p)
{
    if (yaml_parser_parse(parser, event)) return 0;
    return wrong(p, parser->problem ? parser->problem : "not JSON");
}

static char *take_text(const yaml_event_t *e)
{
    if (e->type != YAML_SCALAR_EVENT) return NULL;
    return strdup((const char *)e->data.scalar.value);
}

static int read_list(yaml_parser_t *parser, char ***items, size_t *n, const struct file_line *p)
{
    yaml_event_t e;
    int status = next_event(parser, &e, p);
    if (status) return status;
    bool is_list = e.type == YAML_SEQUENCE_START_EVENT;
    yaml_event_delete(&e);
    if (!is_list || *items) return wrong(p, "documents and answers are lists of texts, once each");
    *items = tsri_alloc(LIST_MAX, sizeof **items);
    if (!*items) return tsri_cli_fail("no memory");
    for (;;) {
        if ((status = next_event(parser, &e, p))) return status;
        bool end = e.type == YAML_SEQUENCE_END_EVENT;
        char *text = end || *n == LIST_MAX ? NULL : take_text(&e);
        yaml_event_delete(&e);
        if (end) return 0;
        if (!text) return wrong(p, "a list of at most 256 texts is wanted");
        (*items)[(*n)++] = text;
    }
}

static int read_text(yaml_parser_t *parser, char **out, const struct file_line *p)
{
    yaml_event_t e;
    int status = next_event(parser, &e, p);
    if (status) return status;
    char *text = *out ? NULL : take_text(&e);
    yaml_event_delete(&e);
    if (!text) return wrong(p, "set, id, system and question are texts, once each");
    *out = text;
    return 0;
}

static int read_plain(yaml_parser_t *parser, bool *out, const struct file_line *p)
{
    char *text = NULL;
    int status = read_text(parser, &text, p);
    if (status) return status;
    *out = strcmp(text, "true") == 0;
    if (!*out && strcmp(text, "false") != 0) status = wrong(p, "plain is true or false");
    free(text);
    return status;
}

static int read_member(yaml_parser_t *parser, const char *name, struct tsri_question *q,
                       const struct file_line *p)
{
    if (strcmp(name, "documents") == 0) return read_list(parser, &q->documents, &q->n_documents, p);
    if (strcmp(name, "answers") == 0) return read_list(parser, &q->answers, &q->n_answers, p);
    if (strcmp(name, "plain") == 0) return read_plain(parser, &q->plain, p);
    char **texts[] = {&q->set, &q->id, &q->system, &q->question};
    static const char *const names[] = {"set", "id", "system", "question"};
    for (size_t i = 0; i < TSRI_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return read_text(parser, texts[i], p);
    return wrong(p,
                 "a member that is none of set, id, system, plain, documents, question, answers");
}

static int read_object(yaml_parser_t *parser, struct tsri_question *q, const struct file_line *p)
{
    yaml_event_t e;
    int status = 0;
    for (int depth = 0; !status;) {
        if ((status = next_event(parser, &e, p))) break;
        yaml_event_type_t type = e.type;
        if (depth == 1 && type == YAML_SCALAR_EVENT)
            status = read_member(parser, (const char *)e.data.scalar.value, q, p);
        else if (type == YAML_MAPPING_START_EVENT && depth == 0)
            depth = 1;
        else if (type == YAML_MAPPING_END_EVENT)
            depth = 2;
        else if (type != YAML_STREAM_START_EVENT && type != YAML_DOCUMENT_START_EVENT)
            status = wrong(p, "a line is one JSON object");
        yaml_event_delete(&e);
        if (depth == 2) break;
    }
    return status;
}

/* Everything needed is there, and what may be left out is filled in. */
static int complete(struct tsri_question *q, const struct file_line *p)
{
    if (!q->question || !q->n_documents || !q->id)
        return wrong(p, "id, documents and question are needed");
    if (q->plain && !q->system) return wrong(p, "a plain prompt needs its system text");
    if (!q->set) q->set = strdup("prompts");
    if (!q->set) return tsri_cli_fail("no memory");
    /* They become fields of a table. */
    if (strpbrk(q->set, ",\"\n\r") || strpbrk(q->id, ",\"\n\r"))
        return wrong(p, "set and id without commas, quotes and line ends");
    return 0;
}

int tsri_question_parse(struct tsri_question *q, const char *text, size_t bytes, const char *path,
                        size_t line)
{
    struct file_line p = {path, line};
    yaml_parser_t parser;
    memset(q, 0, sizeof *q);
    if (!yaml_parser_initialize(&parser)) return tsri_cli_fail("no memory");
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    int e = read_object(&parser, q, &p);
    yaml_parser_delete(&parser);
    if (!e) e = complete(q, &p);
    if (e) tsri_question_fini(q);
    return e;
}

static void free_list(char **items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(items[i]);
    tsri_free(items);
}

void tsri_question_fini(struct tsri_question *q)
{
    free_list(q->documents, q->n_documents);
    free_list(q->answers, q->n_answers);
    free(q->set);
    free(q->id);
    free(q->system);
    free(q->question);
    memset(q, 0, sizeof *q);
}

/* ---- the file ---- */

/* False without memory. */
static bool add(struct tsri_questions *f, const struct tsri_question *q)
{
    struct tsri_question *more = realloc(f->items, (f->n + 1) * sizeof *more);
    if (!more) return false;
    f->items = more;
    f->items[f->n++] = *q;
    return true;
}

int tsri_questions_load(struct tsri_questions *f, const char *path)
{
    char *line = NULL;
    size_t room = 0, number = 0;
    int e = 0;
    memset(f, 0, sizeof *f);
    FILE *in = fopen(path, "r");
    if (!in) return tsri_cli_fail("%s: %s", path, strerror(errno));
    for (ssize_t n; !e && (n = getline(&line, &room, in)) > 0;) {
        struct tsri_question q = {0};
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        if ((size_t)n > LINE_BYTES_MAX) {
            e = tsri_cli_fail("%s:%zu: more than 8 MiB", path, number);
            break;
        }
        e = tsri_question_parse(&q, line, (size_t)n, path, number);
        if (e) break;
        if (!add(f, &q)) {
            tsri_question_fini(&q);
            e = tsri_cli_fail("no memory");
        }
    }
    free(line);
    fclose(in);
    if (!e && f->n == 0) e = tsri_cli_fail("%s: no questions in it", path);
    if (e) tsri_questions_fini(f);
    return e;
}

void tsri_questions_fini(struct tsri_questions *f)
{
    for (size_t i = 0; i < f->n; i++)
        tsri_question_fini(&f->items[i]);
    free(f->items);
    memset(f, 0, sizeof *f);
}
