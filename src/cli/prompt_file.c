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
 * The parser takes exactly JSON (RFC 8259) of this form, no more, and bounds everything, so that
 * any file is safe to name. Errors name file, line and column. */
#include "cli/prompt_file.h"

#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define TOKENS_MAX ((size_t)1 << 22) /* of a document or the prompt */
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
    if (t->n_tokens >= TOKENS_MAX) return tsri_fail(TSR_ERANGE, "more than %zu tokens", TOKENS_MAX);
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
        return tsri_fail(TSR_EINVAL, "strings and tokens in one prompt");
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

/* ---- JSON: `at` moves over the text; a final zero ends it ---- */

struct prompt_parse {
    const char *at;
    struct tsri_prompt_file *file;
    struct tsri_prompt_text part; /* of the prompt, on its way */
    bool has[3];                  /* by place in the list of members */
};

static int expected(const char *what)
{
    return tsri_fail(TSR_EINVAL, "%s expected", what);
}

/* Steps over c and the space around it. */
static bool take(struct prompt_parse *p, char c)
{
    p->at += strspn(p->at, " \t\r\n");
    if (*p->at != c) return false;
    p->at++;
    p->at += strspn(p->at, " \t\r\n");
    return true;
}

static int parse_token(struct prompt_parse *p, struct tsri_prompt_text *out)
{
    size_t digits = strspn(p->at, "0123456789");
    uint64_t n = 0;
    if (digits == 0 || digits > 10 || (digits > 1 && *p->at == '0')) return expected("a token");
    for (size_t i = 0; i < digits; i++)
        n = n * 10 + (uint64_t)(p->at[i] - '0');
    if (n > UINT32_MAX) return tsri_fail(TSR_ERANGE, "a token above %u", UINT32_MAX);
    if (p->at[digits] && strchr(".eE", p->at[digits])) return expected("a whole number");
    int err = token_room(out);
    if (err) return err;
    out->tokens[out->n_tokens++] = (uint32_t)n;
    p->at += digits;
    return 0;
}

static int parse_tokens(struct prompt_parse *p, struct tsri_prompt_text *out)
{
    if (!take(p, '[')) return expected("'['");
    if (take(p, ']')) return 0;
    do {
        int err = parse_token(p, out);
        if (err) return err;
    } while (take(p, ','));
    return take(p, ']') ? 0 : expected("',' or ']'");
}

/* Four hexadecimal digits, or -1. */
static int32_t parse_hex4(const char *at)
{
    int32_t n = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF";
        const char *digit = at[i] ? strchr(digits, at[i]) : NULL;
        if (!digit) return -1;
        n = n * 16 + (int32_t)((digit - digits) % 16);
    }
    return n;
}

static size_t put_utf8(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t heads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(heads[n] | c);
    return n;
}

/* What follows a backslash. Half of a surrogate pair is no character. */
static int parse_escape(struct prompt_parse *p, char *out, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = *p->at ? strchr(from, *p->at) : NULL;
    if (known) {
        out[0] = to[known - from];
        *n = 1;
        p->at++;
        return 0;
    }
    if (*p->at != 'u') return expected("an escape");
    int32_t c = parse_hex4(p->at + 1);
    if (c < 0) return expected("four hexadecimal digits");
    p->at += 5;
    if (c >= 0xD800 && c < 0xDC00) {
        int32_t low = p->at[0] == '\\' && p->at[1] == 'u' ? parse_hex4(p->at + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF) return expected("the second half of the character");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        p->at += 6;
    } else if (c >= 0xDC00 && c < 0xE000) {
        return expected("the first half of the character");
    }
    *n = put_utf8((uint32_t)c, out);
    return 0;
}

/* Bytes of the character that begins here, at most 4; 0: it is not UTF-8 (RFC 3629). */
static size_t utf8_bytes(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    if (at[0] < 0x80) return 1;
    size_t n = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;
    uint32_t c = at[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0; /* also at the final zero */
        c = c << 6 | (at[i] & 0x3Fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    bool good = at[0] >= 0xC2 && at[0] <= 0xF4 && c >= least[n] && c <= 0x10FFFF &&
                (c < 0xD800 || c > 0xDFFF);
    return good ? n : 0;
}

static int parse_string(struct prompt_parse *p, struct tsri_prompt_text *out)
{
    if (*p->at++ != '"') return expected("a string or a list of tokens");
    while (*p->at != '"') {
        char bytes[4];
        size_t n = utf8_bytes(p->at);
        if ((unsigned char)*p->at < 0x20) return expected("the end of the string");
        if (n == 0) return expected("UTF-8");
        memcpy(bytes, p->at, n);
        p->at += n;
        int err = bytes[0] == '\\' ? parse_escape(p, bytes, &n) : 0;
        if (!err) err = byte_room(out, n);
        if (err) return err;
        memcpy(out->bytes + out->n_bytes, bytes, n);
        out->n_bytes += n;
    }
    p->at++;
    return 0;
}

static int parse_text(struct prompt_parse *p, struct tsri_prompt_text *out)
{
    if (*p->at == '[') return parse_tokens(p, out);
    int err = parse_string(p, out);
    return err ? err : text_cut(out);
}

static bool take_name(struct prompt_parse *p, const char *name)
{
    size_t n = strlen(name);
    if (*p->at != '"' || strncmp(p->at + 1, name, n) != 0 || p->at[n + 1] != '"') return false;
    p->at += n + 2;
    return true;
}

/* The name of a member out of `names`, and the colon; which one, or an error. */
static int take_member(struct prompt_parse *p, const char *const *names, int n, bool *has,
                       const char *what)
{
    int i = 0;
    while (i < n && !take_name(p, names[i]))
        i++;
    if (i == n) return expected(what);
    if (!take(p, ':')) return expected("':'");
    if (has[i]) return tsri_fail(TSR_EINVAL, "given twice");
    has[i] = true;
    return i;
}

static int parse_kind(struct prompt_parse *p, struct tsri_prompt_document *d)
{
    d->prefix = take_name(p, "prefix");
    return d->prefix || take_name(p, "segment") ? 0 : expected("\"segment\" or \"prefix\"");
}

static int parse_document_object(struct prompt_parse *p, struct tsri_prompt_document *d)
{
    static const char *const names[] = {"text", "kind", "behind"};
    bool has[3] = {false};
    if (!take(p, '{')) return expected("'{'");
    do {
        int i = take_member(p, names, 3, has, "\"text\", \"kind\" or \"behind\"");
        if (i < 0) return i;
        int err = i == 0   ? parse_text(p, &d->text)
                  : i == 1 ? parse_kind(p, d)
                           : parse_text(p, &d->behind);
        if (err) return err;
    } while (take(p, ','));
    if (!take(p, '}')) return expected("',' or '}'");
    if (d->prefix && d->behind.n_tokens)
        return tsri_fail(TSR_EINVAL, "a prefix stands behind nothing");
    return 0;
}

static int parse_documents(struct prompt_parse *p)
{
    struct tsri_prompt_file *f = p->file;
    if (!take(p, '[')) return expected("'['");
    if (take(p, ']')) return 0;
    do {
        if (f->n_documents == DOCUMENTS_MAX)
            return tsri_fail(TSR_ERANGE, "more than %u documents", DOCUMENTS_MAX);
        struct tsri_prompt_document *more =
            realloc(f->documents, (f->n_documents + 1) * sizeof *f->documents);
        if (!more) return no_memory();
        f->documents = more;
        struct tsri_prompt_document *d = &f->documents[f->n_documents++];
        *d = (struct tsri_prompt_document){.prefix = false};
        int err = *p->at == '{' ? parse_document_object(p, d) : parse_text(p, &d->text);
        if (!err && d->text.n_tokens == 0) err = tsri_fail(TSR_EINVAL, "an empty document");
        if (err) return err;
    } while (take(p, ','));
    return take(p, ']') ? 0 : expected("',' or ']'");
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

static int parse_parts(struct prompt_parse *p)
{
    if (!take(p, '[')) return expected("'['");
    do {
        int err = parse_text(p, &p->part);
        if (!err) err = add_part(p->file, &p->part);
        text_fini(&p->part);
        if (err) return err;
    } while (take(p, ','));
    return take(p, ']') ? 0 : expected("',' or ']'");
}

static int parse_prompt(struct prompt_parse *p)
{
    const char *inside = p->at + (*p->at == '[');
    inside += strspn(inside, " \t\r\n");
    bool parts = *p->at == '[' && (*inside == '[' || *inside == '"');
    return parts ? parse_parts(p) : parse_text(p, &p->file->prompt);
}

/* The system prompt stands before the prompt, as its first part. */
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

static int parse_file(struct prompt_parse *p)
{
    static const char *const names[] = {"documents", "system", "prompt"};
    struct tsri_prompt_file *f = p->file;
    if (!take(p, '{')) return expected("'{'");
    do {
        int i = take_member(p, names, 3, p->has, "\"documents\", \"system\" or \"prompt\"");
        if (i < 0) return i;
        int err = i == 0   ? parse_documents(p)
                  : i == 1 ? parse_text(p, &f->system)
                           : parse_prompt(p);
        if (err) return err;
    } while (take(p, ','));
    if (!take(p, '}')) return expected("',' or '}'");
    if (*p->at) return expected("the end of the file");
    if (f->prompt.n_tokens == 0) return tsri_fail(TSR_EINVAL, "there is no prompt");
    return f->system.n_tokens ? put_system_first(f) : 0;
}

/* ---- the file ---- */

/* All of it and a zero; NULL with a message. */
static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *buf = NULL;
    size_t room = 0, n = 0;
    if (!f) {
        tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
        return NULL;
    }
    do {
        room = room ? 2 * room : 65536;
        char *more = n < FILE_BYTES_MAX ? realloc(buf, room + 1) : NULL;
        if (!more) {
            tsri_fail(TSR_ERANGE, "%s: too large", path);
            goto out;
        }
        buf = more;
        n += fread(buf + n, 1, room - n, f);
    } while (n == room);
    if (ferror(f)) {
        tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
        goto out;
    }
    fclose(f);
    buf[n] = 0;
    return buf;
out:
    fclose(f);
    free(buf);
    return NULL;
}

static int fail_at(const char *path, const char *begin, const char *at, int err)
{
    unsigned line = 1, column = 1;
    for (const char *p = begin; p < at; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    char why[200];
    snprintf(why, sizeof why, "%s", tsr_errmsg());
    return tsri_fail(err, "%s:%u:%u: %s", path, line, column, why);
}

int tsri_prompt_file_parse(struct tsri_prompt_file *f, const char *text, const char *name)
{
    *f = (struct tsri_prompt_file){0};
    struct prompt_parse p = {.at = text, .file = f};
    int err = parse_file(&p);
    text_fini(&p.part);
    if (!err) return 0;
    tsri_prompt_file_fini(f);
    return fail_at(name, text, p.at, err);
}

int tsri_prompt_file_load(struct tsri_prompt_file *f, const char *path)
{
    char *text = read_all(path);
    if (!text) return TSR_EIO;
    int err = tsri_prompt_file_parse(f, text, path);
    free(text);
    return err;
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
