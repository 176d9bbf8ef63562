/* questions.c - questions with their documents and right answers, one JSON object per line:
 *
 *   {"set": "musique", "id": "17", "documents": ["text", ...], "question": "...", "answers":
 * ["..."]}
 *
 * and optionally "system", and "plain": true for texts that are the whole prompt, one after
 * another, without a chat template (then "system" is needed). Unknown members are refused: a
 * misspelt one would be ignored. */
#include "cli/json.h"
#include "lab/quality.h"

#include <stdlib.h>

#define LINE_BYTES_MAX ((size_t)8 << 20)
#define LIST_MAX 256u

/* ---- one line ---- */

/* A copy, or NULL with a message. */
static char *copy_text(const json_t *v, const char *name)
{
    const char *text = json_string_value(v);
    if (!text || strlen(text) != json_string_length(v)) {
        tsri_fail(TSR_EINVAL, "%s: expected a text", name);
        return NULL;
    }
    char *copy = strdup(text);
    if (!copy) tsri_fail(TSR_ENOMEM, "no memory");
    return copy;
}

/* A member that is missing leaves its place empty; `complete` knows which are needed. */
static int read_text(const json_t *object, const char *name, char **out)
{
    const json_t *v = json_object_get(object, name);
    if (!v) return 0;
    *out = copy_text(v, name);
    return *out ? 0 : TSR_EINVAL;
}

static int read_list(const json_t *object, const char *name, char ***items, size_t *n)
{
    const json_t *list = json_object_get(object, name);
    size_t size = json_array_size(list);
    if (!list) return 0;
    if (!json_is_array(list) || size > LIST_MAX)
        return tsri_fail(TSR_EINVAL, "%s: expected a list of at most %u texts", name, LIST_MAX);
    *items = tsri_alloc(size ? size : 1, sizeof **items);
    if (!*items) return tsri_fail(TSR_ENOMEM, "no memory");
    for (; *n < size; ++*n)
        if (!((*items)[*n] = copy_text(json_array_get(list, *n), name))) return TSR_EINVAL;
    return 0;
}

static int read_members(const json_t *object, struct tsri_question *q)
{
    static const char *const names[] = {"set",       "id",      "system", "question",
                                        "documents", "answers", "plain"};
    char **texts[] = {&q->set, &q->id, &q->system, &q->question};
    const char *unknown = tsri_json_unknown(object, names, TSRI_COUNT(names));
    if (unknown)
        return tsri_fail(
            TSR_EINVAL,
            "unknown member %s: must be set, id, system, plain, documents, question or answers",
            unknown);
    int e = 0;
    for (size_t i = 0; i < TSRI_COUNT(texts) && !e; i++)
        e = read_text(object, names[i], texts[i]);
    if (!e) e = read_list(object, "documents", &q->documents, &q->n_documents);
    if (!e) e = read_list(object, "answers", &q->answers, &q->n_answers);
    const json_t *plain = json_object_get(object, "plain");
    if (!e && plain && !json_is_boolean(plain))
        e = tsri_fail(TSR_EINVAL, "plain: expected true or false");
    q->plain = json_is_true(plain);
    return e;
}

/* Everything needed is there, and what may be left out is filled in. */
static int complete(struct tsri_question *q)
{
    if (!q->question || !q->n_documents || !q->id)
        return tsri_fail(TSR_EINVAL, "id, documents and question are required");
    if (q->plain && !q->system) return tsri_fail(TSR_EINVAL, "a plain prompt needs a system text");
    if (!q->set && !(q->set = strdup("prompts"))) return tsri_fail(TSR_ENOMEM, "no memory");
    /* They become fields of a table. */
    if (strpbrk(q->set, ",\"\n\r") || strpbrk(q->id, ",\"\n\r"))
        return tsri_fail(TSR_EINVAL, "set and id cannot have commas, quotes or line ends");
    return 0;
}

static void free_list(char **items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(items[i]);
    tsri_free(items);
}

static void question_fini(struct tsri_question *q)
{
    free_list(q->documents, q->n_documents);
    free_list(q->answers, q->n_answers);
    free(q->set);
    free(q->id);
    free(q->system);
    free(q->question);
    memset(q, 0, sizeof *q);
}

static int read_question(struct tsri_question *q, const json_t *object)
{
    memset(q, 0, sizeof *q);
    int e = read_members(object, q);
    if (!e) e = complete(q);
    if (e) question_fini(q);
    return e;
}

int tsri_question_dialog(const struct tsri_question *q, const struct tsr_model *model,
                         struct tsri_dialog *out)
{
    int e = q->plain ? tsri_cli_check(tsri_dialog_init_plain(out, model, q->system))
                     : tsri_cli_check(tsri_dialog_init(out, model, q->system));
    for (size_t i = 0; i < q->n_documents && !e; i++) {
        char name[] = ""; /* the texts of the sets have their titles */
        struct tsri_document doc = {name, q->documents[i], strlen(q->documents[i])};
        e = tsri_cli_check(tsri_dialog_add_document(out, &doc));
    }
    return e ? e : tsri_cli_check(tsri_dialog_add_question(out, q->question));
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

static int add_line(struct tsri_questions *f, const struct tsri_json_lines *lines,
                    const json_t *object)
{
    struct tsri_question q;
    int e = read_question(&q, object);
    if (e) return tsri_fail(e, "%s:%zu: %s", lines->path, lines->number, tsr_errmsg());
    if (add(f, &q)) return 0;
    question_fini(&q);
    return tsri_fail(TSR_ENOMEM, "no memory");
}

int tsri_questions_load(struct tsri_questions *f, const char *path)
{
    struct tsri_json_lines lines;
    json_t *object;
    memset(f, 0, sizeof *f);
    int e = tsri_json_lines_open(&lines, path, LINE_BYTES_MAX);
    while (!e && (e = tsri_json_lines_next(&lines, &object)) > 0) {
        e = add_line(f, &lines, object);
        json_decref(object);
    }
    tsri_json_lines_close(&lines);
    if (!e && f->n == 0) e = tsri_fail(TSR_EINVAL, "%s: no questions found", path);
    if (!e) return 0;
    tsri_questions_fini(f);
    return tsri_cli_failed();
}

void tsri_questions_fini(struct tsri_questions *f)
{
    for (size_t i = 0; i < f->n; i++)
        question_fini(&f->items[i]);
    free(f->items);
    memset(f, 0, sizeof *f);
}
