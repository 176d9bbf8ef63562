/* reply.c - the JSON of replies: whole ones, chunks of a stream, errors, models, and the numbers of
 * /metrics and /api/stats. Members are OpenAI's; `tessera` and `recomputed_tokens` are ours. */
#include "serve/serve.h"

#include "search/search.h"
#include "stats/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PROGRESS_NAMES_MAX 64u

static json_t *number(double x)
{
    return isfinite(x) ? json_real(round(x * 1e6) / 1e6) : json_null();
}

/* ---- tokens and trust ---- */

/* Tokens that were known before this request: as exact, and reused as they are. Those that were
 * filled just now are among both, and count as new. */
static uint32_t n_reused(const struct tsr_blend_report *r)
{
    return r->n_reused > r->n_filled_reused ? r->n_reused - r->n_filled_reused : 0;
}

static uint32_t n_known(const struct tsr_blend_report *r)
{
    return r->n_exact + r->n_reused - r->n_filled_reused;
}

static json_t *usage(const struct tsri_flow *f)
{
    const struct tsr_blend_report *r = &f->report;
    return json_pack("{s:I, s:I, s:I, s:{s:I, s:I}}", "prompt_tokens", (json_int_t)f->n_prompt,
                     "completion_tokens", (json_int_t)f->n_tokens, "total_tokens",
                     (json_int_t)f->n_prompt + f->n_tokens, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)n_known(r), "recomputed_tokens",
                     (json_int_t)r->n_recomputed);
}

static json_t *about(const struct tsri_flow *f)
{
    const struct tsr_blend_report *r = &f->report;
    double sure = f->has_report ? tsri_trust_sure(r) : NAN, now = 1e-9 * (double)tsri_now_ns();
    return json_pack(
        "{s:s, s:b, s:o, s:s, s:{s:I, s:I, s:I, s:I}, s:{s:o, s:o, s:o, s:o}, s:b, s:O}", "mode",
        tsri_mode_name(f->request.mode), "exact", sure >= 1, "sure", number(sure), "trust",
        tsri_trust_words(sure), "tokens", "exact", (json_int_t)(n_known(r) - n_reused(r)), "reused",
        (json_int_t)n_reused(r), "recomputed", (json_int_t)r->n_recomputed, "new",
        (json_int_t)(r->n_new + r->n_filled_reused), "seconds", "queued", number(f->queued_s),
        "first_token", number(f->ttft_s), "full_read_estimate", number(f->full_guess_s), "total",
        number(now - f->start_s), "documents_searched", f->searched, "documents", f->documents);
}

/* ---- logprobs ---- */

static json_t *token_json(const struct tsri_flow *f, uint32_t token, double logprob)
{
    char bytes[256];
    int n = tsr_model_detokenize(f->serve->desc.model, &token, 1, TSR_TEXT_SPECIAL, bytes,
                                 sizeof bytes);
    if (n < 0 || (size_t)n > sizeof bytes) n = 0;
    char *text = tsri_utf8_copy(bytes, (size_t)n);
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    /* JSON has no infinity. */
    json_t *row = json_pack("{s:s, s:f, s:o}", "token", text ? text : "", "logprob",
                            isfinite(logprob) ? logprob : -9999.0, "bytes", list);
    free(text);
    return row;
}

json_t *tsri_reply_logprob(const struct tsri_flow *f, const struct tsri_job_event *e)
{
    json_t *row = token_json(f, e->token, (double)e->logprob), *top = json_array();
    for (uint32_t i = 0; i < e->n_top; i++)
        json_array_append_new(top, token_json(f, e->top[i].token, (double)e->top[i].logprob));
    if (row && json_object_set_new(row, "top_logprobs", top) == 0) return row;
    json_decref(row);
    return NULL;
}

static json_t *chat_logprobs(json_t *list)
{
    return json_pack("{s:o, s:n}", "content", list, "refusal");
}

/* {tokens, token_logprobs, top_logprobs, text_offset} of the same list. */
static json_t *plain_logprobs(json_t *list)
{
    json_t *tokens = json_array(), *chances = json_array(), *tops = json_array();
    json_t *offsets = json_array(), *row, *top;
    size_t i, k;
    json_array_foreach(list, i, row)
    {
        json_t *best = json_object();
        json_array_append(tokens, json_object_get(row, "token"));
        json_array_append(chances, json_object_get(row, "logprob"));
        json_array_append(offsets, json_object_get(row, "offset"));
        json_array_foreach(json_object_get(row, "top_logprobs"), k, top)
        {
            json_object_set(best, json_string_value(json_object_get(top, "token")),
                            json_object_get(top, "logprob"));
        }
        json_array_append_new(tops, best);
    }
    json_decref(list);
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", chances,
                     "top_logprobs", tops, "text_offset", offsets);
}

/* Takes the list; null where none is asked for. */
static json_t *logprobs_of(const struct tsri_flow *f, json_t *list)
{
    if (!f->request.logprobs || !list) {
        json_decref(list);
        return json_null();
    }
    if (f->request.api == TSRI_API_COMPLETIONS) return plain_logprobs(list);
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row)
    {
        json_object_del(row, "offset");
    }
    return chat_logprobs(list);
}

/* ---- replies ---- */

static json_t *head(const struct tsri_flow *f, const char *object)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", f->id, "object", object, "created",
                     (json_int_t)f->created, "model", f->serve->desc.model_name,
                     "system_fingerprint", "tessera-" TSR_VERSION);
}

static char *text_of(json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(v);
    return text;
}

char *tsri_reply_whole(const struct tsri_flow *f, const char *why)
{
    bool chat = f->request.api == TSRI_API_CHAT;
    char *said = tsri_utf8_copy(f->said.text ? f->said.text : "", f->said.n);
    json_t *v = head(f, chat ? "chat.completion" : "text_completion");
    json_t *logprobs = logprobs_of(f, f->logprobs ? json_incref(f->logprobs) : NULL);
    json_t *choice = chat ? json_pack("{s:i, s:{s:s, s:s, s:n}, s:o, s:s}", "index", 0, "message",
                                      "role", "assistant", "content", said ? said : "", "refusal",
                                      "logprobs", logprobs, "finish_reason", why)
                          : json_pack("{s:i, s:s, s:o, s:s}", "index", 0, "text", said ? said : "",
                                      "logprobs", logprobs, "finish_reason", why);
    free(said);
    json_object_set_new(v, "choices", json_pack("[o]", choice));
    json_object_set_new(v, "usage", usage(f));
    json_object_set_new(v, "tessera", about(f));
    return text_of(v);
}

static char *as_event(json_t *v)
{
    char *json = text_of(v), *out = NULL;
    if (json && asprintf(&out, "data: %s\n\n", json) < 0) out = NULL;
    free(json);
    return out;
}

static const char *chunk_object(const struct tsri_flow *f)
{
    return f->request.api == TSRI_API_CHAT ? "chat.completion.chunk" : "text_completion";
}

char *tsri_reply_chunk(const struct tsri_flow *f, const char *text, json_t *logprobs,
                       const char *why)
{
    json_t *v = head(f, chunk_object(f)), *choice;
    json_t *chances = logprobs_of(f, logprobs);
    if (f->request.api == TSRI_API_CHAT) {
        json_t *delta = json_object();
        if (text && !f->said.n_taken && !why && !*text)
            json_object_set_new(delta, "role", json_string("assistant"));
        if (text) json_object_set_new(delta, "content", json_string(text));
        choice = json_pack("{s:i, s:o, s:o, s:s?}", "index", 0, "delta", delta, "logprobs", chances,
                           "finish_reason", why);
    } else {
        choice = json_pack("{s:i, s:s, s:o, s:s?}", "index", 0, "text", text ? text : "",
                           "logprobs", chances, "finish_reason", why);
    }
    json_object_set_new(v, "choices", json_pack("[o]", choice));
    if (f->request.include_usage) json_object_set_new(v, "usage", json_null());
    if (why && !f->request.include_usage) json_object_set_new(v, "tessera", about(f));
    return as_event(v);
}

/* Each name once. */
static json_t *names_of(const struct tsri_flow *f)
{
    json_t *names = json_array(), *seen = json_object(), *row;
    size_t i;
    json_array_foreach(f->documents, i, row)
    {
        json_t *name = json_object_get(row, "name");
        const char *key = json_string_value(name);
        if (json_object_get(seen, key)) continue;
        if (json_array_size(names) == PROGRESS_NAMES_MAX) break;
        json_object_set_new(seen, key, json_true());
        json_array_append(names, name);
    }
    json_decref(seen);
    return names;
}

char *tsri_reply_progress_begin(const struct tsri_flow *f)
{
    json_t *v = head(f, chunk_object(f));
    json_object_set_new(v, "choices", json_array());
    if (f->request.include_usage) json_object_set_new(v, "usage", json_null());
    json_object_set_new(v, "tessera", json_pack("{s:{s:o}}", "progress", "documents", names_of(f)));
    char *text = text_of(v);
    if (text) text[strlen(text) - strlen("}}}")] = 0;
    return text;
}

size_t tsri_reply_progress(const struct tsri_flow *f, double seconds_left, char *to, size_t bytes)
{
    char left[32] = "null";
    if (isfinite(seconds_left)) snprintf(left, sizeof left, "%.1f", seconds_left);
    int n =
        snprintf(to, bytes, "data: %s,\"tokens_read\":%u,\"tokens\":%u,\"seconds_left\":%s}}}\n\n",
                 f->progress, f->n_there, f->n_prompt, left);
    return n > 0 && (size_t)n < bytes ? (size_t)n : 0;
}

char *tsri_reply_usage(const struct tsri_flow *f)
{
    json_t *v = head(f, chunk_object(f));
    json_object_set_new(v, "choices", json_array());
    json_object_set_new(v, "usage", usage(f));
    json_object_set_new(v, "tessera", about(f));
    return as_event(v);
}

char *tsri_reply_refusal(const struct tsri_refusal *no)
{
    return text_of(tsri_refusal_json(no));
}

char *tsri_reply_error_chunk(const struct tsri_refusal *no)
{
    return as_event(tsri_refusal_json(no));
}

static json_t *model_json(const struct tsri_serve *s)
{
    return json_pack("{s:s, s:s, s:i, s:s, s:I}", "id", s->desc.model_name, "object", "model",
                     "created", 0, "owned_by", "tessera", "context_length",
                     (json_int_t)s->info.context);
}

char *tsri_reply_models(const struct tsri_serve *s)
{
    return text_of(json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(s)));
}

char *tsri_reply_model(const struct tsri_serve *s)
{
    return text_of(model_json(s));
}

/* In the thread of all connections, so it must not wait for a folder that is being read. */
char *tsri_reply_status(const struct tsri_serve *s)
{
    json_t *documents = json_null();
    if (s->desc.search) {
        struct tsri_search_stats of = tsri_search_counts(s->desc.search);
        documents = json_pack("{s:I, s:I, s:I}", "files", (json_int_t)of.n_files, "passages",
                              (json_int_t)of.n_passages, "bytes", (json_int_t)of.n_bytes);
    }
    return text_of(json_pack("{s:s, s:s, s:I, s:o}", "model", s->desc.model_name, "version",
                             TSR_VERSION, "context", (json_int_t)s->info.context, "documents",
                             documents));
}

/* ---- numbers ---- */

struct serve_number {
    const char *name, *kind, *help;
    double value;
};

static void add_numbers(struct tsri_text *t, const struct serve_number *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tsri_text_add(t,
                      "# HELP tessera_serve_%s %s\n# TYPE tessera_serve_%s %s\n"
                      "tessera_serve_%s %.17g\n",
                      all[i].name, all[i].help, all[i].name, all[i].kind, all[i].name,
                      all[i].value);
}

/* The same as members of an object. */
static void add_members(struct tsri_text *t, const struct serve_number *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tsri_text_add(t, "%s\"%s\":%.17g", i ? "," : "", all[i].name, all[i].value);
}

static void write_numbers(struct tsri_serve *s, struct tsri_text *t,
                          void (*add)(struct tsri_text *, const struct serve_number *, size_t))
{
    struct tsri_engine_stats e = {0};
    tsri_engine_stats(s->engine, &e);
    pthread_mutex_lock(&s->lock);
    const struct serve_number all[] = {
        {"requests_total", "counter", "Questions accepted", (double)s->n_requests},
        {"refused_total", "counter", "Requests answered by an error", (double)s->n_refused},
        {"gone_total", "counter", "Answers given up because the client left", (double)s->n_gone},
        {"late_total", "counter", "Answers ended by the time limit", (double)s->n_late},
        {"connections", "gauge", "Open connections", s->n_conns},
        {"answers", "gauge", "Answers that are not sent yet", s->n_flows},
        {"queued", "gauge", "Questions that wait", e.n_queued},
        {"reading", "gauge", "Prompts that are read", e.n_reading},
        {"writing", "gauge", "Answers that are written", e.n_writing},
        {"kv_tokens", "gauge", "Tokens that sessions have KV memory for", e.n_slots},
        {"prompt_tokens_total", "counter", "Tokens of all prompts", (double)e.prompt_tokens},
        {"exact_tokens_total", "counter", "Prompt tokens reused exactly", (double)e.exact_tokens},
        {"reused_tokens_total", "counter", "Prompt tokens reused as stored",
         (double)e.reused_tokens},
        {"recomputed_tokens_total", "counter", "Prompt tokens cached and recomputed",
         (double)e.recomputed_tokens},
        {"new_tokens_total", "counter", "Prompt tokens that were not cached", (double)e.new_tokens},
        {"answer_tokens_total", "counter", "Tokens of all answers", (double)e.answer_tokens},
        {"stored_tokens_total", "counter", "Tokens of documents stored ahead",
         (double)e.learned_tokens},
        {"kept_tokens_total", "counter", "Tokens of chats stored as exact prefixes",
         (double)e.kept_tokens},
        {"learning", "gauge", "Chats and documents that wait to be stored", e.n_learning},
        {"read_seconds_total", "counter", "Time spent on prompts", e.read_s},
        {"decode_seconds_total", "counter", "Time spent on answers", e.decode_s},
    };
    pthread_mutex_unlock(&s->lock);
    add(t, all, TSRI_COUNT(all));
}

/* Room for numbers that grow between two calls. */
#define SLACK_BYTES 4096

char *tsri_reply_metrics(struct tsri_serve *s)
{
    struct tsri_text t;
    tsri_text_init(&t, NULL, 0);
    write_numbers(s, &t, add_numbers);
    size_t own = t.length + SLACK_BYTES;
    int n = s->desc.cache ? tsr_cache_stats_text(s->desc.cache, "prometheus", NULL, 0) : 0;
    size_t of_cache = n > 0 ? (size_t)n + SLACK_BYTES : 1;
    char *text = malloc(own + of_cache);
    if (!text) return NULL;
    tsri_text_init(&t, text, own);
    write_numbers(s, &t, add_numbers);
    if (n > 0 && tsr_cache_stats_text(s->desc.cache, "prometheus", text + t.length, of_cache) < 0)
        text[t.length] = 0;
    return text;
}

/* What tesserad says in /api/stats, with the answers as calls; false without memory. */
static bool write_stats(struct tsri_serve *s, struct tsri_text *t)
{
    tsri_text_add(t, "{\"version\":\"%s\",\"uptime\":%.1f,\"prefill_rate\":0,\"slow\":[",
                  TSR_VERSION, 1e-9 * (double)(tsri_now_ns() - s->start_ns));
    tsri_status_add_slow(t, &s->slow, NULL);
    tsri_text_add(t, "],\"serve\":{");
    write_numbers(s, t, add_members);
    tsri_text_add(t, "},\"tenants\":[");
    if (s->desc.cache && !tsri_status_add_cache(t, "serve", s->desc.cache)) return false;
    tsri_text_add(t, "]}\n");
    return true;
}

char *tsri_reply_stats(struct tsri_serve *s)
{
    struct tsri_text t;
    tsri_text_init(&t, NULL, 0);
    if (!write_stats(s, &t)) return NULL;
    size_t room = t.length + SLACK_BYTES;
    char *text = malloc(room);
    if (!text) return NULL;
    tsri_text_init(&t, text, room);
    if (write_stats(s, &t) && t.length < room) return text;
    free(text);
    return NULL;
}
