/* prompt_file.c - reads what `tessera inspect` looks at: documents and a prompt, as one JSON
 * object. A TEXT below is a string or a list of tokens.
 *
 *   {"documents": [TEXT or {"text": TEXT, "kind": "segment" or "prefix", "behind": TEXT}, ...],
 *    "system": TEXT, "prompt": TEXT or [TEXT, ...]}
 *
 * Strings become tokens by a rule that is good enough to look at matches with: a word with the
 * space before it, or any other character alone; its number is a hash of its bytes. A model's
 * tokenizer cuts differently, so a prompt whose exact matches count is given as its tokens.
 *
 * Everything is bounded, so that any file is safe to name. Errors name the file, and the line and
 * column or the member. */
#include "cli/prompt_file.h"

#include "cli/json.h"

#include <stdlib.h>
#include <xxhash.h>

#define FILE_BYTES_MAX ((size_t)64 << 20)
#define DOCUMENTS_MAX 4096u
#define PARTS_MAX 4000u /* of the prompt: a lookup takes 4096 segments */

/* ---- a run of tokens ---- */

static int no_memory(void)
{
    return tsri_fail(TSR_ENOMEM, "no memory");
}

/* Room for one more token, and for where it ends in the text. */
static int token_room(struct tsri_prompt_text *t)
{
    if (t->n_tokens >= TSRI_PROMPT_TOKENS_MAX)
        return tsri_fail(TSR_ERANGE, "more than %zu tokens", TSRI_PROMPT_TOKENS_MAX);
    if (t->n_tokens < t->tokens_room) return 0;
    size_t room = t->tokens_room ? 2 * t->tokens_room : 256;
    uint32_t *tokens = realloc(t->tokens, room * sizeof *tokens);
    if (!tokens) return no_memory();
    t->tokens = tokens;
    uint32_t *ends = t->bytes ? realloc(t->ends, room * sizeof *ends) : NULL;
    if (t->bytes && !ends) return no_memory();
    t->ends = ends;
    t->tokens_room = room;
    return 0;
}

static int byte_room(struct tsri_prompt_text *t, size_t n)
{
    if (t->bytes && t->n_bytes + n <= t->bytes_room) return 0;
    size_t room = t->bytes_room ? 2 * t->bytes_room : 4096;
    while (room < t->n_bytes + n)
        room *= 2;
    char *bytes = realloc(t->bytes, room);
    if (!bytes) return no_memory();
    t->bytes = bytes;
    t->bytes_room = room;
    return 0;
}

static void text_fini(struct tsri_prompt_text *t)
{
    free(t->tokens);
    free(t->ends);
    free(t->bytes);
    *t = (struct tsri_prompt_text){0};
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

/* Where the token that begins at `at` ends. */
static size_t token_end(const struct tsri_prompt_text *t, size_t at)
{
    size_t end = at + (t->bytes[at] == ' ' && at + 1 < t->n_bytes && is_word(t->bytes[at + 1]));
    if (!is_word(t->bytes[end])) return end + 1;
    while (end < t->n_bytes && is_word(t->bytes[end]))
        end++;
    return end;
}

static int text_cut(struct tsri_prompt_text *t)
{
    for (size_t at = 0; at < t->n_bytes;) {
        size_t end = token_end(t, at);
        int err = token_room(t);
        if (err) return err;
        t->tokens[t->n_tokens] = (uint32_t)XXH3_64bits(t->bytes + at, end - at);
        t->ends[t->n_tokens++] = (uint32_t)end;
        at = end;
    }
    return 0;
}

/* Puts `more` behind t; both are strings or both are tokens, unless t is empty. */
static int text_append(struct tsri_prompt_text *t, const struct tsri_prompt_text *more)
{
    if (t->n_tokens && more->n_tokens && !t->bytes != !more->bytes)
        return tsri_fail(TSR_EINVAL, "cannot mix strings and tokens in a prompt");
    if (more->bytes) {
        int err = byte_room(t, more->n_bytes);
        if (err) return err;
        memcpy(t->bytes + t->n_bytes, more->bytes, more->n_bytes);
    }
    for (size_t i = 0; i < more->n_tokens; i++) {
        int err = token_room(t);
        if (err) return err;
        if (t->bytes) t->ends[t->n_tokens] = (uint32_t)t->n_bytes + more->ends[i];
        t->tokens[t->n_tokens++] = more->tokens[i];
    }
    t->n_bytes += more->n_bytes;
    return 0;
}

/* ---- from JSON ---- */

/* Adds where it is to the message. */
static int fail_in(const char *member, size_t i, int err)
{
    return tsri_fail(err, "%s[%zu]: %s", member, i, tsr_errmsg());
}

static int only(const json_t *object, const char *const *names, size_t n, const char *what)
{
    const char *unknown = tsri_json_unknown(object, names, n);
    return unknown ? tsri_fail(TSR_EINVAL, "unknown member \"%s\": must be %s", unknown, what) : 0;
}

static int read_tokens(const json_t *list, struct tsri_prompt_text *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t n = json_integer_value(v);
        if (!json_is_integer(v) || n < 0 || n > UINT32_MAX)
            return tsri_fail(TSR_EINVAL, "token %zu: expected a whole number up to %u", i,
                             UINT32_MAX);
        int err = token_room(out);
        if (err) return err;
        out->tokens[out->n_tokens++] = (uint32_t)n;
    }
    return 0;
}

/* A missing one is empty. */
static int read_text(const json_t *v, struct tsri_prompt_text *out)
{
    if (!v) return 0;
    if (json_is_array(v)) return read_tokens(v, out);
    if (!json_is_string(v)) return tsri_fail(TSR_EINVAL, "expected a string or a list of tokens");
    size_t n = json_string_length(v);
    if (n == 0) return 0;
    int err = byte_room(out, n);
    if (err) return err;
    memcpy(out->bytes, json_string_value(v), n);
    out->n_bytes = n;
    return text_cut(out);
}

static int read_document(const json_t *v, struct tsri_prompt_document *d)
{
    static const char *const names[] = {"text", "kind", "behind"};
    if (!json_is_object(v)) return read_text(v, &d->text);
    int err = only(v, names, TSRI_COUNT(names), "text, kind or behind");
    const json_t *kind = json_object_get(v, "kind");
    const char *word = kind ? json_string_value(kind) : "segment";
    if (!err && (!word || (strcmp(word, "segment") != 0 && strcmp(word, "prefix") != 0)))
        err = tsri_fail(TSR_EINVAL, "kind: expected \"segment\" or \"prefix\"");
    if (err) return err;
    d->prefix = strcmp(word, "prefix") == 0;
    err = read_text(json_object_get(v, "text"), &d->text);
    if (!err) err = read_text(json_object_get(v, "behind"), &d->behind);
    if (!err && d->prefix && d->behind.n_tokens)
        err = tsri_fail(TSR_EINVAL, "a prefix cannot have \"behind\"");
    return err;
}

static int read_documents(const json_t *list, struct tsri_prompt_file *f)
{
    size_t n = json_array_size(list);
    if (!list) return 0;
    if (!json_is_array(list)) return tsri_fail(TSR_EINVAL, "documents: expected a list");
    if (n > DOCUMENTS_MAX) return tsri_fail(TSR_ERANGE, "more than %u documents", DOCUMENTS_MAX);
    f->documents = calloc(n ? n : 1, sizeof *f->documents);
    if (!f->documents) return no_memory();
    f->n_documents = n;
    for (size_t i = 0; i < n; i++) {
        struct tsri_prompt_document *d = &f->documents[i];
        int err = read_document(json_array_get(list, i), d);
        if (!err && d->text.n_tokens == 0) err = tsri_fail(TSR_EINVAL, "an empty document");
        if (err) return fail_in("documents", i, err);
    }
    return 0;
}

static int add_part(struct tsri_prompt_file *f, const struct tsri_prompt_text *part)
{
    if (part->n_tokens == 0) return tsri_fail(TSR_EINVAL, "an empty part");
    if (f->n_parts == PARTS_MAX) return tsri_fail(TSR_ERANGE, "more than %u parts", PARTS_MAX);
    struct tsr_range *more = realloc(f->parts, (f->n_parts + 1) * sizeof *more);
    if (!more) return no_memory();
    f->parts = more;
    f->parts[f->n_parts++] =
        (struct tsr_range){(uint32_t)f->prompt.n_tokens, (uint32_t)part->n_tokens};
    return text_append(&f->prompt, part);
}

/* A list whose first item is a text is one of parts. */
static int read_prompt(const json_t *v, struct tsri_prompt_file *f)
{
    const json_t *first = json_array_get(v, 0);
    if (!json_is_array(first) && !json_is_string(first)) {
        int err = read_text(v, &f->prompt);
        return err ? tsri_fail(err, "prompt: %s", tsr_errmsg()) : 0;
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct tsri_prompt_text part = {0};
        int err = read_text(json_array_get(v, i), &part);
        if (!err) err = add_part(f, &part);
        text_fini(&part);
        if (err) return fail_in("prompt", i, err);
    }
    return 0;
}

/* Puts the system prompt before the prompt, as its first part. */
static int put_system_first(struct tsri_prompt_file *f)
{
    struct tsri_prompt_text prompt = f->prompt;
    struct tsr_range *parts = f->parts, all = {0, (uint32_t)prompt.n_tokens};
    uint32_t n = f->n_parts ? f->n_parts : 1, n_system = (uint32_t)f->system.n_tokens;
    f->prompt = (struct tsri_prompt_text){0};
    f->parts = NULL;
    f->n_parts = 0;
    int err = add_part(f, &f->system);
    for (uint32_t i = 0; i < n && !err; i++) {
        struct tsr_range r = parts ? parts[i] : all, *more = realloc(f->parts, (i + 2) * sizeof r);
        if (!more) {
            err = no_memory();
            break;
        }
        f->parts = more;
        f->parts[f->n_parts++] = (struct tsr_range){n_system + r.offset, r.n_tokens};
    }
    if (!err) err = text_append(&f->prompt, &prompt);
    text_fini(&prompt);
    free(parts);
    return err;
}

static int read_file(const json_t *v, struct tsri_prompt_file *f)
{
    static const char *const names[] = {"documents", "system", "prompt"};
    int err = only(v, names, TSRI_COUNT(names), "documents, system or prompt");
    if (!err) err = read_documents(json_object_get(v, "documents"), f);
    if (!err && (err = read_text(json_object_get(v, "system"), &f->system)))
        tsri_fail(err, "system: %s", tsr_errmsg());
    if (!err) err = read_prompt(json_object_get(v, "prompt"), f);
    if (!err && f->prompt.n_tokens == 0) err = tsri_fail(TSR_EINVAL, "no prompt");
    if (!err && f->system.n_tokens) err = put_system_first(f);
    return err;
}

int tsri_prompt_file_load(struct tsri_prompt_file *f, const char *path)
{
    *f = (struct tsri_prompt_file){0};
    json_t *v = tsri_json_load(path, FILE_BYTES_MAX);
    if (!v) return TSR_EINVAL;
    int err = read_file(v, f);
    json_decref(v);
    if (!err) return 0;
    tsri_prompt_file_fini(f);
    return tsri_fail(err, "%s: %s", path, tsr_errmsg());
}

void tsri_prompt_file_fini(struct tsri_prompt_file *f)
{
    for (size_t i = 0; i < f->n_documents; i++) {
        text_fini(&f->documents[i].text);
        text_fini(&f->documents[i].behind);
    }
    free(f->documents);
    free(f->parts);
    text_fini(&f->system);
    text_fini(&f->prompt);
    *f = (struct tsri_prompt_file){0};
}
