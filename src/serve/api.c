/* api.c - reads the body of a request. The rules are OpenAI's: null is as good as absent, members
 * that nobody knows are ignored, a known one of the wrong type is an error that names it. */
#include "serve/api.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- refusals ---- */

static const char *type_of(unsigned status)
{
    if (status == 401) return "authentication_error";
    if (status == 403) return "permission_error";
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

bool tsri_refuse(struct tsri_refusal *r, unsigned status, const char *code, const char *param,
                 const char *fmt, ...)
{
    va_list ap;
    *r = (struct tsri_refusal){.status = status, .type = type_of(status), .code = code};
    snprintf(r->param, sizeof r->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, ap);
    va_end(ap);
    tsri_plain(r->message);
    tsri_plain(r->param);
    return false;
}

json_t *tsri_refusal_json(const struct tsri_refusal *r)
{
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", r->message, "type", r->type,
                     "param", r->param[0] ? r->param : NULL, "code", r->code);
}

static bool bad(struct tsri_refusal *no, const char *param, const char *what)
{
    return tsri_refuse(no, 400, NULL, param, "%s: %s", param, what);
}

static bool cannot(struct tsri_refusal *no, const char *param, const char *what)
{
    return tsri_refuse(no, 400, "unsupported_parameter", param, "%s: %s", param, what);
}

/* ---- members ---- */

/* NULL: absent or null. */
static const json_t *member(const json_t *object, const char *name)
{
    const json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static bool read_flag(const json_t *object, const char *name, bool *out, struct tsri_refusal *no)
{
    const json_t *v = member(object, name);
    if (!v) return true;
    if (!json_is_boolean(v)) return bad(no, name, "must be true or false");
    *out = json_is_true(v);
    return true;
}

static bool read_real(const json_t *object, const char *name, double max, double *out,
                      struct tsri_refusal *no)
{
    const json_t *v = member(object, name);
    if (!v) return true;
    double x = json_number_value(v);
    if (!json_is_number(v)) return bad(no, name, "must be a number");
    if (!(x >= 0 && x <= max))
        return tsri_refuse(no, 400, NULL, name, "%s: must be between 0 and %g", name, max);
    *out = x;
    return true;
}

static bool read_count(const json_t *object, const char *name, json_int_t min, json_int_t max,
                       uint32_t *out, struct tsri_refusal *no)
{
    const json_t *v = member(object, name);
    if (!v) return true;
    json_int_t x = json_integer_value(v);
    if (!json_is_integer(v)) return bad(no, name, "must be a whole number");
    if (x < min || x > max)
        return tsri_refuse(no, 400, NULL, name,
                           "%s: must be between %" JSON_INTEGER_FORMAT " and %" JSON_INTEGER_FORMAT,
                           name, min, max);
    *out = (uint32_t)x;
    return true;
}

/* ---- documents ---- */

static const char *string_of(const json_t *object, const char *one, const char *other)
{
    const json_t *v = member(object, one);
    if (!v) v = member(object, other);
    return json_string_value(v);
}

static bool has_text(const char *text)
{
    return text[strspn(text, " \t\r\n\f\v")] != 0;
}

bool tsri_api_add_text(struct tsri_api_request *q, const char *text, size_t bytes, const char *name,
                       const char *param, struct tsri_refusal *no)
{
    char *own = (char *)(uintptr_t)text;
    if (q->n_documents == TSRI_DOCUMENTS_MAX) return bad(no, param, "too many documents");
    bytes = tsri_text_tidy(own, bytes);
    own[bytes] = 0;
    if (!has_text(own)) return bad(no, param, "a document is empty");
    q->documents[q->n_documents++] =
        (struct tsri_document){.name = (char *)(uintptr_t)name, .text = own, .bytes = bytes};
    return true;
}

/* A string, or {name|title, text|content|data}. */
static bool add_document(struct tsri_api_request *q, const json_t *v, const char *param,
                         struct tsri_refusal *no)
{
    const char *text = json_string_value(v), *name = "";
    if (json_is_object(v)) {
        text = string_of(v, "text", "content");
        if (!text) text = string_of(v, "data", "data");
        name = string_of(v, "name", "title");
    }
    if (!text) return bad(no, param, "a document is a string, or an object with name and text");
    /* The names of documents are lines of the prompt. */
    if (!name || strpbrk(name, "\r\n")) name = "";
    if (strlen(name) > TSRI_API_NAME_BYTES_MAX)
        return bad(no, param, "the name of a document is too long");
    return tsri_api_add_text(q, text, strlen(text), name, param, no);
}

static bool read_documents(struct tsri_api_request *q, struct tsri_refusal *no)
{
    const json_t *list = member(q->body, "documents"), *v;
    size_t i;
    if (list && !json_is_array(list)) return bad(no, "documents", "must be a list");
    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        if (!add_document(q, v, "documents", no)) return false;
    }
    q->n_listed = q->n_documents;
    return true;
}

/* ---- messages ---- */

struct content {
    const json_t *value;
    struct tsri_message *message;
    char *joined; /* texts of the parts */
    size_t n_joined;
};

/* {"type": "document"} with the document in it, in "document", or in "source" with a title here. */
static bool document_part(struct tsri_api_request *q, const json_t *part, struct tsri_refusal *no)
{
    const json_t *inner = member(part, "document");
    if (!inner) inner = member(part, "source");
    size_t before = q->n_documents;
    if (!add_document(q, inner ? inner : part, "messages", no)) return false;
    if (!q->documents[before].name[0] && inner) {
        const char *name = string_of(part, "name", "title");
        if (name && strlen(name) > TSRI_API_NAME_BYTES_MAX)
            return bad(no, "messages", "the name of a document is too long");
        if (name && !strpbrk(name, "\r\n")) q->documents[before].name = (char *)(uintptr_t)name;
    }
    return true;
}

static bool text_part(struct content *c, const json_t *part, struct tsri_refusal *no)
{
    const char *text = json_string_value(json_object_get(part, "text"));
    if (!text) return bad(no, "messages", "a part of the type text needs a string as its text");
    size_t n = strlen(text);
    memcpy(c->joined + c->n_joined, text, n);
    c->n_joined += n;
    c->joined[c->n_joined] = 0;
    return true;
}

static size_t text_bytes(const json_t *parts)
{
    size_t n = 1, i;
    const json_t *part;
    json_array_foreach((json_t *)(uintptr_t)parts, i, part)
    {
        const char *text = json_string_value(json_object_get(part, "text"));
        n += text ? strlen(text) : 0;
    }
    return n;
}

/* Held by the body, so that it lives as long: jansson has no other place for bytes of ours. */
bool tsri_api_hold(struct tsri_api_request *q, struct tsri_message *m, const char *text,
                   size_t bytes, struct tsri_refusal *no)
{
    json_t *held = json_stringn_nocheck(text, bytes);
    bool kept = held && json_array_append_new(json_object_get(q->body, "\x01texts"), held) == 0;
    if (!kept) return tsri_refuse(no, 503, NULL, NULL, "no memory");
    m->text = json_string_value(held);
    m->bytes = bytes;
    return true;
}

static bool read_parts(struct tsri_api_request *q, struct content *c, struct tsri_refusal *no)
{
    const json_t *part;
    size_t i;
    c->joined = malloc(text_bytes(c->value));
    if (!c->joined) return tsri_refuse(no, 503, NULL, NULL, "no memory");
    c->joined[0] = 0;
    json_array_foreach((json_t *)(uintptr_t)c->value, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type) return bad(no, "messages", "a part of a content needs a type");
        if (strcmp(type, "text") == 0) {
            if (!text_part(c, part, no)) return false;
        } else if (strcmp(type, "document") == 0) {
            if (strcmp(c->message->role, "user") != 0)
                return bad(no, "messages", "documents belong into messages of the user");
            if (!document_part(q, part, no)) return false;
        } else {
            return tsri_refuse(no, 400, "unsupported_value", "messages",
                               "a part of the type %.40s: only text and document are understood",
                               type);
        }
    }
    return tsri_api_hold(q, c->message, c->joined, c->n_joined, no);
}

static bool read_content(struct tsri_api_request *q, struct content *c, struct tsri_refusal *no)
{
    struct tsri_message *m = c->message;
    if (json_is_string(c->value)) {
        m->text = json_string_value(c->value);
        m->bytes = json_string_length(c->value);
        return true;
    }
    if (!c->value && strcmp(m->role, "assistant") == 0) {
        m->text = "";
        return true;
    }
    if (!json_is_array(c->value))
        return bad(no, "messages", "the content must be a string or a list of parts");
    bool ok = read_parts(q, c, no);
    free(c->joined);
    return ok;
}

static const char *role_of(const char *role)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    if (strcmp(role, "developer") == 0) return "system";
    for (size_t i = 0; i < TSRI_COUNT(roles); i++)
        if (strcmp(role, roles[i]) == 0) return roles[i];
    return NULL;
}

static bool read_messages(struct tsri_api_request *q, struct tsri_refusal *no)
{
    const json_t *list = member(q->body, "messages"), *v;
    size_t i;
    if (!list) return bad(no, "messages", "is missing");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return bad(no, "messages", "must be a list with at least one message");
    if (json_array_size(list) > TSRI_API_MESSAGES_MAX)
        return bad(no, "messages", "too many messages");
    q->messages = tsri_alloc(json_array_size(list), sizeof *q->messages);
    if (!q->messages) return tsri_refuse(no, 503, NULL, NULL, "no memory");
    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        const char *role = json_string_value(json_object_get(v, "role"));
        if (!role) return bad(no, "messages", "a message needs a role");
        struct tsri_message *m = &q->messages[q->n_messages++];
        m->role = role_of(role);
        if (!m->role)
            return tsri_refuse(no, 400, "unsupported_value", "messages",
                               "role %.40s: must be system, developer, user or assistant", role);
        struct content c = {.value = member(v, "content"), .message = m};
        size_t first = q->n_documents;
        if (!read_content(q, &c, no)) return false;
        m->documents = q->documents + first;
        m->n_documents = q->n_documents - first;
    }
    return tsri_api_cut(q, no);
}

/* ---- prompts ---- */

static bool read_token_prompt(struct tsri_api_request *q, const json_t *list,
                              struct tsri_refusal *no)
{
    const json_t *v;
    size_t i;
    uint32_t *tokens = tsri_alloc(json_array_size(list), sizeof *tokens);
    if (!tokens) return tsri_refuse(no, 503, NULL, NULL, "no memory");
    q->tokens = tokens;
    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        json_int_t token = json_integer_value(v);
        if (!json_is_integer(v) || token < 0 || token > INT32_MAX)
            return bad(no, "prompt", "a list of tokens has only whole numbers");
        tokens[q->n_tokens++] = (uint32_t)token;
    }
    return true;
}

static bool read_prompt(struct tsri_api_request *q, struct tsri_refusal *no)
{
    const json_t *v = member(q->body, "prompt");
    if (json_is_array(v) && json_array_size(v) == 1 && !json_is_integer(json_array_get(v, 0)))
        v = json_array_get(v, 0);
    if (json_is_array(v) && json_array_size(v) > 0 && json_is_integer(json_array_get(v, 0)))
        return read_token_prompt(q, v, no);
    if (json_is_array(v) && json_array_size(v) > 1)
        return cannot(no, "prompt", "one prompt for each request");
    if (!json_is_string(v) || json_string_length(v) == 0)
        return bad(no, "prompt", "must be a string, or a list of tokens");
    q->messages = tsri_alloc(2, sizeof *q->messages);
    if (!q->messages) return tsri_refuse(no, 503, NULL, NULL, "no memory");
    q->messages[0] = (struct tsri_message){
        .role = "user", .text = json_string_value(v), .bytes = json_string_length(v)};
    q->n_messages = 1;
    return tsri_api_cut(q, no);
}

/* ---- how to answer ---- */

static bool add_stop(struct tsri_api_request *q, const json_t *v, struct tsri_refusal *no)
{
    size_t bytes = json_string_length(v);
    if (!json_is_string(v)) return bad(no, "stop", "must be a string or a list of strings");
    if (bytes == 0) return true; /* as OpenAI: the empty string stops nothing */
    if (bytes > TSRI_API_STOP_BYTES_MAX) return bad(no, "stop", "a string is too long");
    if (q->n_stops == TSRI_API_STOPS_MAX) return bad(no, "stop", "too many strings");
    q->stops[q->n_stops++] = json_string_value(v);
    return true;
}

static bool read_stops(struct tsri_api_request *q, struct tsri_refusal *no)
{
    const json_t *v = member(q->body, "stop"), *item;
    size_t i;
    if (!v) return true;
    if (!json_is_array(v)) return add_stop(q, v, no);
    json_array_foreach((json_t *)(uintptr_t)v, i, item)
    {
        if (!add_stop(q, item, no)) return false;
    }
    return true;
}

static bool read_lengths(struct tsri_api_request *q, struct tsri_refusal *no)
{
    if (!read_count(q->body, "max_tokens", 1, 1 << 20, &q->max_tokens, no)) return false;
    return read_count(q->body, "max_completion_tokens", 1, 1 << 20, &q->max_tokens, no);
}

static bool read_logprobs(struct tsri_api_request *q, struct tsri_refusal *no)
{
    if (q->api == TSRI_API_COMPLETIONS) {
        const json_t *v = member(q->body, "logprobs");
        if (!v || json_is_false(v)) return true;
        q->logprobs = true;
        return read_count(q->body, "logprobs", 0, TSRI_API_TOP_MAX, &q->n_top, no);
    }
    if (!read_flag(q->body, "logprobs", &q->logprobs, no)) return false;
    if (!read_count(q->body, "top_logprobs", 0, TSRI_API_TOP_MAX, &q->n_top, no)) return false;
    if (q->n_top && !q->logprobs) return bad(no, "top_logprobs", "needs logprobs to be true");
    return true;
}

static bool read_stream(struct tsri_api_request *q, struct tsri_refusal *no)
{
    if (!read_flag(q->body, "stream", &q->stream, no)) return false;
    const json_t *v = member(q->body, "stream_options");
    if (!v) return true;
    if (!json_is_object(v)) return bad(no, "stream_options", "must be an object");
    if (!q->stream) return bad(no, "stream_options", "needs stream to be true");
    return read_flag(v, "include_usage", &q->include_usage, no);
}

static bool read_seed(struct tsri_api_request *q, struct tsri_refusal *no)
{
    const json_t *v = member(q->body, "seed");
    if (!v) return true;
    if (!json_is_integer(v)) return bad(no, "seed", "must be a whole number");
    q->seed = (uint64_t)json_integer_value(v);
    q->has_seed = true;
    return true;
}

/* Documents of a request are in the order that it gives them, unless it says otherwise; what a search
 * finds has none, unless it says so. */
static bool read_order(struct tsri_api_request *q, const json_t *v, struct tsri_refusal *no)
{
    const json_t *order = member(v, "order");
    const char *name = json_string_value(order);
    if (!order) return true;
    q->order = name && strcmp(name, "free") == 0    ? TSRI_ORDER_FREE
               : name && strcmp(name, "given") == 0 ? TSRI_ORDER_GIVEN
                                                    : TSRI_ORDER_DEFAULT;
    return q->order ? true : bad(no, "tessera.order", "must be free or given");
}

/* Our own member: {"mode": "exact" | "auto" | "fast", "order": "free" | "given", "search": false,
 * "cache": false, "progress": true}. Without the cache every answer is exact. */
static bool read_tessera(struct tsri_api_request *q, struct tsri_refusal *no)
{
    const json_t *v = member(q->body, "tessera");
    if (!v) return true;
    if (!json_is_object(v)) return bad(no, "tessera", "must be an object");
    bool cache = true;
    if (!read_flag(v, "search", &q->search, no) || !read_flag(v, "cache", &cache, no) ||
        !read_flag(v, "progress", &q->progress, no))
        return false;
    if (!read_order(q, v, no)) return false;
    q->fresh = !cache;
    if (q->fresh) q->mode = TSRI_MODE_EXACT;
    const json_t *mode = member(v, "mode");
    if (!mode) return true;
    const char *name = json_string_value(mode);
    for (int m = TSRI_MODE_AUTO; name && m <= TSRI_MODE_FAST; m++)
        if (strcmp(name, tsri_mode_name((enum tsri_mode)m)) == 0) {
            if (!q->fresh) q->mode = (enum tsri_mode)m;
            return true;
        }
    return bad(no, "tessera.mode", "must be exact, auto or fast");
}

/* What would change the answer if we could do it. */
static bool read_others(const struct tsri_api_request *q, struct tsri_refusal *no)
{
    /* The last one is vLLM's and llama-server's; `vllm bench serve` sends 1 in every request. */
    static const struct {
        const char *name;
        double none;
    } penalties[] = {{"frequency_penalty", 0}, {"presence_penalty", 0}, {"repetition_penalty", 1}};
    static const char *const lists[] = {"tools", "functions", "logit_bias"};
    uint32_t n = 1, best_of = 1;
    bool echo = false;
    if (!read_count(q->body, "n", 1, 128, &n, no)) return false;
    if (n != 1) return cannot(no, "n", "only 1 answer for each request");
    for (size_t i = 0; i < TSRI_COUNT(penalties); i++) {
        const char *name = penalties[i].name;
        const json_t *v = member(q->body, name);
        if (v && !json_is_number(v)) return bad(no, name, "must be a number");
        if (v && json_number_value(v) != penalties[i].none)
            return cannot(no, name,
                          penalties[i].none > 0 ? "only 1 is supported" : "only 0 is supported");
    }
    for (size_t i = 0; i < TSRI_COUNT(lists); i++) {
        const json_t *v = member(q->body, lists[i]);
        if (json_array_size(v) || json_object_size(v))
            return cannot(no, lists[i], "is not supported");
    }
    const json_t *format = member(q->body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text") != 0))
        return cannot(no, "response_format", "only text is supported");
    if (q->api == TSRI_API_CHAT) return true;
    if (!read_count(q->body, "best_of", 1, 128, &best_of, no)) return false;
    if (best_of != 1) return cannot(no, "best_of", "only 1 answer for each request");
    if (!read_flag(q->body, "echo", &echo, no)) return false;
    if (echo) return cannot(no, "echo", "is not supported");
    const char *suffix = json_string_value(member(q->body, "suffix"));
    return !suffix || !*suffix || cannot(no, "suffix", "is not supported");
}

/* ---- the whole ---- */

static bool read_body(struct tsri_api_request *q, struct tsri_refusal *no)
{
    const json_t *model = member(q->body, "model");
    if (model && !json_is_string(model)) return bad(no, "model", "must be a string");
    q->model = json_string_value(model);
    q->documents = tsri_alloc(TSRI_DOCUMENTS_MAX, sizeof *q->documents);
    if (!q->documents || json_object_set_new(q->body, "\x01texts", json_array()) != 0)
        return tsri_refuse(no, 503, NULL, NULL, "no memory");
    if (!read_documents(q, no)) return false;
    if (!(q->api == TSRI_API_CHAT ? read_messages(q, no) : read_prompt(q, no))) return false;
    return read_lengths(q, no) && read_real(q->body, "temperature", 2, &q->temperature, no) &&
           read_real(q->body, "top_p", 1, &q->top_p, no) && read_seed(q, no) && read_stops(q, no) &&
           read_logprobs(q, no) && read_flag(q->body, "ignore_eos", &q->ignore_end, no) &&
           read_stream(q, no) && read_tessera(q, no) && read_others(q, no);
}

/* At least as many as there are: every value but the first begins after one of these. */
static size_t count_values(const char *body, size_t bytes)
{
    size_t n = 1;
    bool text = false;
    for (size_t i = 0; i < bytes; i++) {
        if (text && body[i] == '\\')
            i++;
        else if (body[i] == '"')
            text = !text;
        else if (!text)
            n += body[i] == ',' || body[i] == '[' || body[i] == '{';
    }
    return n;
}

bool tsri_api_parse(struct tsri_api_request *q, enum tsri_api api, const char *body, size_t bytes,
                    const char *separator, struct tsri_refusal *no)
{
    json_error_t e;
    *q = (struct tsri_api_request){
        .api = api, .separator = separator, .temperature = -1, .top_p = 1, .search = true};
    if (count_values(body, bytes) > TSRI_API_VALUES_MAX)
        return tsri_refuse(no, 413, "too_large", NULL, "the body has more than %u values",
                           TSRI_API_VALUES_MAX);
    q->body = json_loadb(body, bytes, 0, &e);
    if (!q->body)
        return tsri_refuse(no, 400, NULL, NULL, "the body is no JSON: line %d, column %d: %s",
                           e.line, e.column, e.text);
    if (!json_is_object(q->body))
        return tsri_refuse(no, 400, NULL, NULL, "the body must be a JSON object");
    return read_body(q, no);
}

void tsri_api_fini(struct tsri_api_request *q)
{
    json_decref(q->body);
    tsri_free(q->messages);
    tsri_free(q->documents);
    tsri_free((void *)(uintptr_t)q->tokens);
    memset(q, 0, sizeof *q);
}

const char *tsri_mode_name(enum tsri_mode mode)
{
    static const char *const names[] = {"auto", "exact", "fast", "learn"};
    return names[mode];
}
