/* trace.c - reads access traces: JSON lines, each a request in one of two forms,
 *
 *   {"chunks":[[id,tokens],...]}                segments, each standing for itself
 *   {"hash_ids":[id,...],"input_length":n}      blocks of 512 tokens of one text, the last
 *                                               one short
 *
 * Other members are stepped over. The parser takes exactly JSON (RFC 8259), no more, and bounds
 * nesting, line length and counts, so that any file is safe to name. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>

#define BLOCK_TOKENS 512u
#define LINE_BYTES_MAX ((size_t)64 << 20)
#define DEPTH_MAX 16
#define REQUESTS_MAX ((size_t)1 << 26)
#define CHUNKS_MAX ((size_t)1 << 30)

/* ---- building ---- */

/* The array with room for one more than n; NULL with a message when it would be too long. */
static void *grow(void *items, size_t *room, size_t n, size_t item_bytes, size_t max)
{
    if (n < *room) return items;
    size_t more = *room ? 2 * *room : 1024;
    void *p = n < max ? realloc(items, more * item_bytes) : NULL;
    if (p)
        *room = more;
    else
        tsri_fail(TSR_ERANGE, n < max ? "no memory for the trace" : "too long");
    return p;
}

int tsri_trace_add_request(struct tsri_trace *t, bool prefix)
{
    void *p =
        grow(t->requests, &t->requests_room, t->n_requests, sizeof *t->requests, REQUESTS_MAX);
    if (!p) return TSR_ERANGE;
    t->requests = p;
    t->requests[t->n_requests++] =
        (struct tsri_trace_request){.chunk_first = t->n_chunks, .prefix = prefix};
    return 0;
}

int tsri_trace_add_chunk(struct tsri_trace *t, uint64_t id, uint64_t n_tokens)
{
    struct tsri_trace_request *r = &t->requests[t->n_requests - 1];
    if (n_tokens == 0) return tsri_fail(TSR_EINVAL, "a chunk without tokens");
    if (n_tokens > TSRI_TRACE_TOKENS_MAX - r->n_tokens)
        return tsri_fail(TSR_ERANGE, "more than %u tokens in a request", TSRI_TRACE_TOKENS_MAX);
    void *p = grow(t->chunks, &t->chunks_room, t->n_chunks, sizeof *t->chunks, CHUNKS_MAX);
    if (!p) return TSR_ERANGE;
    t->chunks = p;
    t->chunks[t->n_chunks++] = (struct tsri_trace_chunk){id, (uint32_t)n_tokens};
    r->n_chunks++;
    r->n_tokens += (uint32_t)n_tokens;
    return 0;
}

void tsri_trace_fini(struct tsri_trace *t)
{
    free(t->requests);
    free(t->chunks);
    *t = (struct tsri_trace){0};
}

/* ---- JSON: `at` moves over the line; a final zero ends it ---- */

struct parse {
    struct tsri_trace *trace;
    const char *at;
    uint64_t input_length;
    bool has_chunks, has_blocks, has_length;
};

static int expected(const char *what)
{
    return tsri_fail(TSR_EINVAL, "%s expected", what);
}

static void skip_space(struct parse *p)
{
    p->at += strspn(p->at, " \t\r\n");
}

/* Steps over c and the space around it. */
static bool take(struct parse *p, char c)
{
    skip_space(p);
    if (*p->at != c) return false;
    p->at++;
    skip_space(p);
    return true;
}

static int parse_whole(struct parse *p, uint64_t *out)
{
    const char *at = p->at;
    size_t digits = strspn(at, "0123456789");
    if (digits == 0 || (digits > 1 && at[0] == '0')) return expected("a whole number");
    uint64_t n = 0;
    for (size_t i = 0; i < digits; i++) {
        if (n > (UINT64_MAX - 9) / 10) return tsri_fail(TSR_ERANGE, "number too large");
        n = n * 10 + (uint64_t)(at[i] - '0');
    }
    if (strchr(".eE", at[digits]) && at[digits]) return expected("a whole number");
    p->at += digits;
    *out = n;
    return 0;
}

static int skip_number(struct parse *p)
{
    const char *digits = "0123456789";
    const char *at = p->at + (*p->at == '-');
    size_t n = strspn(at, digits);
    if (n == 0 || (n > 1 && *at == '0')) return expected("a value");
    at += n;
    if (*at == '.') {
        n = strspn(++at, digits);
        if (n == 0) return expected("a digit");
        at += n;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '+' || *at == '-';
        n = strspn(at, digits);
        if (n == 0) return expected("a digit");
        at += n;
    }
    p->at = at;
    return 0;
}

static int skip_string(struct parse *p)
{
    if (*p->at != '"') return expected("a string");
    for (p->at++; *p->at != '"'; p->at++) {
        if ((unsigned char)*p->at < 0x20) return expected("the end of the string");
        if (*p->at != '\\') continue;
        p->at++;
        if (*p->at == 'u') {
            if (strspn(p->at + 1, "0123456789abcdefABCDEF") < 4)
                return expected("four hexadecimal digits");
            p->at += 4;
        } else if (!*p->at || !strchr("\"\\/bfnrt", *p->at)) {
            return expected("an escape");
        }
    }
    p->at++;
    return 0;
}

/* Any value. Recursion is bounded by `depth`. */
static int skip_value(struct parse *p, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < TSRI_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        if (strncmp(p->at, words[i], n) != 0) continue;
        p->at += n;
        return 0;
    }
    if (*p->at == '"') return skip_string(p);
    if (*p->at != '{' && *p->at != '[') return skip_number(p);
    if (depth == DEPTH_MAX) return tsri_fail(TSR_ERANGE, "nested too deeply");
    bool object = *p->at == '{';
    char close = object ? '}' : ']';
    p->at++;
    if (take(p, close)) return 0;
    do {
        int err = object ? skip_string(p) : 0;
        if (!err && object && !take(p, ':')) err = expected("':'");
        if (!err) err = skip_value(p, depth + 1);
        if (err) return err;
    } while (take(p, ','));
    return take(p, close) ? 0 : expected(object ? "',' or '}'" : "',' or ']'");
}

/* ---- the members that count ---- */

static int parse_chunks(struct parse *p)
{
    if (p->has_chunks || p->has_blocks) return tsri_fail(TSR_EINVAL, "chunks given twice");
    p->has_chunks = true;
    if (!take(p, '[')) return expected("'['");
    do {
        uint64_t id, n_tokens;
        if (!take(p, '[')) return expected("'['");
        int err = parse_whole(p, &id);
        if (!err && !take(p, ',')) err = expected("','");
        if (!err) err = parse_whole(p, &n_tokens);
        if (!err) err = tsri_trace_add_chunk(p->trace, id, n_tokens);
        if (!err && !take(p, ']')) err = expected("']'");
        if (err) return err;
    } while (take(p, ','));
    return take(p, ']') ? 0 : expected("',' or ']'");
}

static int parse_blocks(struct parse *p)
{
    if (p->has_chunks || p->has_blocks) return tsri_fail(TSR_EINVAL, "chunks given twice");
    p->has_blocks = true;
    if (!take(p, '[')) return expected("'['");
    do {
        uint64_t id;
        int err = parse_whole(p, &id);
        if (!err) err = tsri_trace_add_chunk(p->trace, id, BLOCK_TOKENS);
        if (err) return err;
    } while (take(p, ','));
    return take(p, ']') ? 0 : expected("',' or ']'");
}

static int parse_member(struct parse *p)
{
    const char *name = p->at;
    int err = skip_string(p);
    if (err) return err;
    size_t n = (size_t)(p->at - name);
    if (!take(p, ':')) return expected("':'");
    if (n == 8 && strncmp(name, "\"chunks\"", n) == 0) return parse_chunks(p);
    if (n == 10 && strncmp(name, "\"hash_ids\"", n) == 0) return parse_blocks(p);
    if (n != 14 || strncmp(name, "\"input_length\"", n) != 0) return skip_value(p, 0);
    if (p->has_length) return tsri_fail(TSR_EINVAL, "input_length given twice");
    p->has_length = true;
    return parse_whole(p, &p->input_length);
}

/* The last block is as long as the input leaves it. */
static int fit_blocks(const struct parse *p)
{
    struct tsri_trace *t = p->trace;
    struct tsri_trace_request *r = &t->requests[t->n_requests - 1];
    if (!p->has_length) return tsri_fail(TSR_EINVAL, "hash_ids without input_length");
    uint64_t n = p->input_length / BLOCK_TOKENS + (p->input_length % BLOCK_TOKENS != 0);
    if (n != r->n_chunks)
        return tsri_fail(TSR_EINVAL, "%u hash_ids for an input_length of %llu: %llu expected",
                         r->n_chunks, (unsigned long long)p->input_length, (unsigned long long)n);
    r->prefix = true;
    t->chunks[t->n_chunks - 1].n_tokens -= r->n_tokens - (uint32_t)p->input_length;
    r->n_tokens = (uint32_t)p->input_length;
    return 0;
}

static int parse_line(struct parse *p)
{
    int err = tsri_trace_add_request(p->trace, false);
    if (err) return err;
    if (!take(p, '{')) return expected("'{'");
    if (!take(p, '}')) {
        do {
            err = parse_member(p);
            if (err) return err;
        } while (take(p, ','));
        if (!take(p, '}')) return expected("',' or '}'");
    }
    if (*p->at) return expected("the end of the line");
    if (p->has_blocks) return fit_blocks(p);
    return p->has_chunks ? 0 : tsri_fail(TSR_EINVAL, "neither chunks nor hash_ids");
}

/* The next line into a buffer that grows up to a limit, without its newline; false at the end and
 * after a mistake, which *err has then. */
static bool take_line(FILE *file, char **line, size_t *room, int *err)
{
    size_t n = 0;
    for (int c = 0; c != '\n' && (c = getc_unlocked(file)) != EOF; n++) {
        if (c == 0) {
            *err = expected("text without zero bytes");
            return false;
        }
        char *p = grow(*line, room, n + 1, 1, LINE_BYTES_MAX);
        if (!p) {
            *err = TSR_ERANGE;
            return false;
        }
        *line = p;
        p[n] = (char)c;
        p[n + (c != '\n')] = 0;
    }
    return n > 0;
}

static int load_lines(struct tsri_trace *t, FILE *file, const char *path, size_t limit)
{
    char *line = NULL;
    size_t room = 0;
    int err = 0;
    for (size_t number = 1; !err && t->n_requests < limit; number++) {
        size_t column = 1;
        bool more = take_line(file, &line, &room, &err);
        if (more && line[strspn(line, " \t\r")]) {
            struct parse p = {.trace = t, .at = line};
            err = parse_line(&p);
            column += (size_t)(p.at - line);
        }
        if (err) tsri_fail(err, "%s:%zu:%zu: %s", path, number, column, tsr_errmsg());
        if (!more) break;
    }
    free(line);
    if (!err && ferror(file)) err = tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
    return err;
}

int tsri_trace_load(struct tsri_trace *t, const char *path, size_t limit)
{
    *t = (struct tsri_trace){0};
    FILE *file = fopen(path, "re");
    if (!file) return tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
    int err = load_lines(t, file, path, limit);
    fclose(file);
    if (!err && t->n_requests == 0) err = tsri_fail(TSR_EINVAL, "%s: no requests", path);
    if (err) tsri_trace_fini(t);
    return err;
}
