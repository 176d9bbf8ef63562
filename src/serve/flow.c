/* flow.c - one answer from the engine's events to the bytes of its reply.
 *
 * The engine and the connection each hold a flow, and the one that lets go last frees it. Events make
 * bytes without the lock and hand them over with it; a connection that has nothing to send is
 * suspended and goes on with the next bytes. */
#include "serve/serve.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define OUT_BYTES_MAX ((size_t)64 << 20) /* of a client that does not read */
#define QUIET_NS (10 * (uint64_t)1000000000)
#define PROGRESS_NS (900 * (uint64_t)1000000) /* about a second, as flows are watched */
#define PROGRESS_PART 0.05 /* of what is to be read, before its speed says when it ends */

static double now_s(void)
{
    return 1e-9 * (double)tsri_now_ns();
}

/* ---- open and free ---- */

struct tsri_flow *tsri_flow_open(struct tsri_serve *s, enum tsri_api api, char *body, size_t bytes)
{
    struct tsri_flow *f = tsri_alloc(1, sizeof *f);
    if (!f) return NULL;
    f->serve = s;
    s->n_open++;
    f->api = api;
    f->body = body;
    f->n_body = bytes;
    f->start_s = now_s();
    f->created = (int64_t)time(NULL);
    snprintf(f->id, sizeof f->id, "%s-%016llx", api == TSRI_API_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)tsri_nonce());
    return f;
}

void tsri_flow_free(struct tsri_flow *f)
{
    if (!f) return;
    f->serve->n_open--;
    json_decref(f->documents);
    json_decref(f->logprobs);
    tsri_saying_fini(&f->said);
    tsri_api_fini(&f->request);
    free(f->progress);
    free(f->body);
    free(f->out);
    tsri_free(f);
}

/* With the lock held. */
static void unlist(struct tsri_flow *f)
{
    struct tsri_serve *s = f->serve;
    if (!f->listed) return;
    f->listed = false;
    if (f->before) f->before->next = f->next;
    if (f->next) f->next->before = f->before;
    if (s->flows == f) s->flows = f->next;
    s->n_flows--;
}

/* With the lock held: takes it from the list if it is not used any more. */
static bool is_last(struct tsri_flow *f)
{
    if (f->engine_has || f->connection) return false;
    unlist(f);
    return true;
}

/* A prompt that had the engine for itself tells how long a read takes. */
static void note_speed(const struct tsri_flow *f)
{
    if (f->serve->desc.speed_path && f->has_report && f->alone)
        tsri_speed_note_report(f->serve->desc.speed_path, f->serve->info.device, &f->report);
}

void tsri_flow_gone(struct tsri_flow *f)
{
    if (!f->gone) f->serve->n_gone++;
    f->gone = true;
}

void tsri_flow_leave(struct tsri_flow *f)
{
    struct tsri_serve *s = f->serve;
    pthread_mutex_lock(&s->lock);
    bool running = f->engine_has && !f->done;
    uint64_t job = f->job;
    f->connection = NULL;
    if (running) tsri_flow_gone(f);
    bool last = is_last(f);
    pthread_mutex_unlock(&s->lock);
    if (last) {
        note_speed(f);
        tsri_flow_free(f);
    } else if (running) {
        tsri_engine_cancel(s->engine, job);
    }
}

/* ---- bytes ---- */

/* Takes over `bytes`. */
static void hand_over(struct tsri_flow *f, char *bytes, unsigned status, bool done)
{
    struct tsri_serve *s = f->serve;
    size_t n = bytes ? strlen(bytes) : 0;
    pthread_mutex_lock(&s->lock);
    char *more = f->n_out + n <= OUT_BYTES_MAX
                     ? tsri_make_room(f->out, &f->out_room, f->n_out + n + 1, 1)
                     : NULL;
    if (more) {
        f->out = more;
        memcpy(f->out + f->n_out, bytes ? bytes : "", n);
        f->n_out += n;
    }
    f->told_ns = tsri_now_ns();
    if (status) f->status = status;
    if (done || !more) f->done = true;
    if (f->suspended && f->ready) tsri_web_resume(f);
    pthread_mutex_unlock(&s->lock);
    free(bytes);
}

/* The end of a stream: the last chunk, usage, [DONE]. */
static void end_stream(struct tsri_flow *f, char *last, bool with_usage)
{
    char *usage = with_usage ? tsri_reply_usage(f) : NULL, *all = NULL;
    if (asprintf(&all, "%s%sdata: [DONE]\n\n", last ? last : "", usage ? usage : "") < 0)
        all = NULL;
    free(last);
    free(usage);
    hand_over(f, all, 200, true);
}

static void fail(struct tsri_flow *f, const struct tsri_refusal *no)
{
    if (f->over) return;
    f->over = true;
    if (f->request.stream)
        end_stream(f, tsri_reply_error_chunk(no), false);
    else
        hand_over(f, tsri_reply_refusal(no), no->status, true);
}

/* ---- progress ---- */

/* Of the rest of the prompt: as fast as the part before, or as a full read was. */
static double seconds_left(const struct tsri_flow *f, uint64_t now_ns)
{
    double left = (double)(f->n_prompt - f->n_there), done = (double)(f->n_there - f->n_cached);
    if (!f->read_ns) return NAN;
    double since_s = 1e-9 * (double)(now_ns - f->there_ns);
    double s = done >= PROGRESS_PART * (left + done)
                   ? left / done * 1e-9 * (double)(f->there_ns - f->read_ns) - since_s
                   : f->full_guess_s * left / f->n_prompt - since_s;
    return s < 0 ? 0 : s;
}

/* With the lock held. To a client that has taken what was there: nothing piles up. */
static void tell_progress(struct tsri_flow *f, uint64_t now_ns)
{
    if (!f->progress || !f->reading || f->n_out > 0) return;
    size_t room = strlen(f->progress) + 128;
    char *out = tsri_make_room(f->out, &f->out_room, room, 1);
    if (!out) return;
    f->out = out;
    f->n_out = tsri_reply_progress(f, seconds_left(f, now_ns), f->out, room);
    f->told_ns = f->chunk_ns = now_ns;
    if (f->suspended && f->ready) tsri_web_resume(f);
}

static void on_piece(struct tsri_flow *f, const struct tsri_job_event *e)
{
    pthread_mutex_lock(&f->serve->lock);
    if (!f->read_ns) {
        f->read_ns = tsri_now_ns();
        f->n_cached = e->n_done;
    }
    if (e->n_done > f->n_there || !f->there_ns) {
        f->n_there = e->n_done;
        f->there_ns = tsri_now_ns();
    }
    pthread_mutex_unlock(&f->serve->lock);
}

/* ---- events ---- */

/* The logprobs of tokens whose text ends at `n` bytes or before; the others stay. */
static json_t *take_logprobs(struct tsri_flow *f, size_t n)
{
    json_t *taken = json_array();
    while (f->logprobs && json_array_size(f->logprobs)) {
        json_t *row = json_array_get(f->logprobs, 0);
        if ((size_t)json_integer_value(json_object_get(row, "end")) > n) break;
        json_incref(row);
        json_array_remove(f->logprobs, 0);
        json_object_del(row, "end");
        json_array_append_new(taken, row);
    }
    return taken;
}

/* What may be sent of the text, as a chunk; the last one has a reason to end. */
static void send_text(struct tsri_flow *f, const char *why)
{
    size_t n = tsri_saying_safe(&f->said, why != NULL), from = f->said.n_taken;
    char *text = NULL, *chunk = NULL;
    if (n > from) {
        text = tsri_utf8_copy(f->said.text + from, n - from);
        f->said.n_taken = n;
        chunk = tsri_reply_chunk(f, text ? text : "", take_logprobs(f, n), NULL);
        free(text);
    }
    if (!why) {
        if (chunk) hand_over(f, chunk, 200, false);
        return;
    }
    if (chunk) hand_over(f, chunk, 200, false);
    end_stream(f, tsri_reply_chunk(f, NULL, NULL, why), f->request.include_usage);
}

static void finish(struct tsri_flow *f, const char *why)
{
    if (f->over) return;
    f->over = true;
    if (f->request.stream) {
        send_text(f, why);
        return;
    }
    json_t *all = take_logprobs(f, f->said.n);
    json_decref(f->logprobs);
    f->logprobs = all;
    char *whole = tsri_reply_whole(f, why);
    hand_over(f, whole, whole ? 200 : 503, true);
}

static void on_read(struct tsri_flow *f, const struct tsri_job_event *e)
{
    pthread_mutex_lock(&f->serve->lock);
    f->reading = false;
    f->alone = f->alone && f->serve->n_flows == 1;
    pthread_mutex_unlock(&f->serve->lock);
    f->report = *e->report;
    f->has_report = true;
    f->queued_s = e->queued_s;
    f->ttft_s = now_s() - f->start_s;
    if (f->request.stream) hand_over(f, tsri_reply_chunk(f, "", NULL, NULL), 200, false);
}

static void add_logprob(struct tsri_flow *f, const struct tsri_job_event *e, size_t first)
{
    if (!f->request.logprobs) return;
    json_t *row = tsri_reply_logprob(f, e);
    if (!row) return;
    json_object_set_new(row, "end", json_integer((json_int_t)f->said.n));
    json_object_set_new(row, "offset", json_integer((json_int_t)first));
    if (!f->logprobs) f->logprobs = json_array();
    json_array_append_new(f->logprobs, row);
}

static void on_token(struct tsri_flow *f, const struct tsri_job_event *e)
{
    char bytes[512];
    if (f->over) return;
    int n = tsr_model_detokenize(f->serve->desc.model, &e->token, 1, 0, bytes, sizeof bytes);
    size_t before = f->said.n;
    f->n_tokens = e->n_tokens;
    if (n < 0 || (size_t)n > sizeof bytes || tsri_saying_add(&f->said, bytes, (size_t)n) < 0) {
        struct tsri_refusal no;
        tsri_refuse(&no, 500, NULL, NULL, "the text of token %u: %s", e->token, tsr_errmsg());
        fail(f, &no);
    } else {
        if (!f->said.stopped) add_logprob(f, e, before);
        if (f->said.stopped) {
            finish(f, "stop");
        } else if (f->request.stream) {
            send_text(f, NULL);
        }
    }
    if (f->over) tsri_engine_cancel(f->serve->engine, e->job);
}

static void note_slow(const struct tsri_flow *f)
{
    uint64_t now_ns = tsri_now_ns();
    struct tsri_slow_call call = {.ns = (uint64_t)(1e9 * (now_s() - f->start_s)),
                                  .end_ns = now_ns,
                                  .tenant = "serve",
                                  .call = f->request.api == TSRI_API_CHAT ? "chat" : "completion"};
    tsri_slow_note(&f->serve->slow, &call);
}

static void on_end(struct tsri_flow *f, const struct tsri_job_event *e)
{
    struct tsri_serve *s = f->serve;
    note_slow(f);
    struct tsri_refusal no;
    pthread_mutex_lock(&s->lock);
    bool late = f->late;
    pthread_mutex_unlock(&s->lock);
    if (e->why == TSRI_END_STOP) {
        finish(f, "stop");
    } else if (e->why == TSRI_END_LENGTH || (late && f->n_tokens)) {
        finish(f, "length");
    } else {
        if (late)
            tsri_refuse(&no, 503, "timeout", NULL, "the answer took longer than %u s",
                        s->desc.whole_s);
        else if (e->why == TSRI_END_FAILED)
            tsri_refuse(&no, 500, NULL, NULL, "%s", e->text ? e->text : tsr_strerror(e->err));
        else
            tsri_refuse(&no, 503, NULL, NULL, "the server is stopping");
        fail(f, &no);
    }
    pthread_mutex_lock(&s->lock);
    f->engine_has = false;
    bool last = is_last(f);
    pthread_mutex_unlock(&s->lock);
    if (!last) return;
    note_speed(f);
    tsri_flow_free(f);
}

static void on_event(void *arg, const struct tsri_job_event *e)
{
    if (e->kind == TSRI_EVENT_PIECE) on_piece(arg, e);
    if (e->kind == TSRI_EVENT_READ) on_read(arg, e);
    if (e->kind == TSRI_EVENT_TOKEN) on_token(arg, e);
    if (e->kind == TSRI_EVENT_END) on_end(arg, e);
}

/* ---- start ---- */

static bool refuse_submit(struct tsri_flow *f, int e, struct tsri_refusal *no)
{
    const char *param = f->request.api == TSRI_API_CHAT ? "messages" : "prompt";
    if (e == TSR_EAGAIN || e == TSR_EFULL)
        return tsri_refuse(no, 429, "queue_full", NULL, "too many questions wait: try again later");
    if (e == TSR_ERANGE)
        return tsri_refuse(no, 400, "context_length_exceeded", param, "%s", tsr_errmsg());
    return tsri_refuse(no, e == TSR_EINVAL ? 400 : 503, NULL, NULL, "%s", tsr_errmsg());
}

static bool goes_on(const struct tsri_api_request *q)
{
    for (uint32_t i = 0; i < q->n_messages; i++)
        if (strcmp(q->messages[i].role, "assistant") == 0) return true;
    return false;
}

/* A chat may go on, and one with answers in it has done so. */
static enum tsri_keeping keeping_of(const struct tsri_api_request *q)
{
    if (q->api != TSRI_API_CHAT || q->mode == TSRI_MODE_FAST) return TSRI_KEEP_NOTHING;
    return goes_on(q) ? TSRI_KEEP_ALWAYS : TSRI_KEEP_EXACT;
}

/* Where a document has several segments, they stay together. Whole folders come before the first
 * question, so in a chat that goes on they keep their order: everything up to the question is then
 * the same prompt in each turn. */
static bool is_order_free(const struct tsri_flow *f, const struct tsri_dialog *d, uint32_t system)
{
    const struct tsri_api_request *q = &f->request;
    bool wanted = q->order == TSRI_ORDER_FREE;
    if (q->order == TSRI_ORDER_DEFAULT) wanted = q->n_documents == 0 && !(f->whole && goes_on(q));
    return wanted && json_array_size(f->documents) == d->n_segments - system;
}

static struct tsri_job_desc job_of(struct tsri_flow *f, const struct tsri_dialog *d)
{
    const struct tsri_api_request *q = &f->request;
    const struct tsri_serve_desc *desc = &f->serve->desc;
    uint32_t left = d->context - (uint32_t)d->n_tokens;
    uint32_t max = q->max_tokens ? q->max_tokens : desc->max_tokens;
    uint32_t system = q->api == TSRI_API_CHAT && d->n_segments && d->segments[0].offset == 0;
    return (struct tsri_job_desc){
        .tokens = d->tokens,
        .n_tokens = (uint32_t)d->n_tokens,
        .segments = d->segments,
        .n_segments = (uint32_t)d->n_segments,
        .system = system,
        .free_order = is_order_free(f, d, system),
        .max_tokens = max < left ? max : left,
        .mode = q->mode,
        .keeps = keeping_of(q),
        .tells_pieces = f->progress != NULL,
        .ignore_end = q->ignore_end,
        .fresh = q->fresh,
        .n_top = q->n_top,
        .logprobs = q->logprobs,
        .temperature = q->temperature < 0 ? desc->temperature : q->temperature,
        .top_p = q->top_p > 0 ? q->top_p : DBL_MIN, /* 0: the most likely token alone */
        .seed = q->has_seed ? q->seed : tsri_nonce(),
        .client = (uint64_t)f->fd, /* a connection is a client */
        .full_s = f->full_guess_s > 0 ? f->full_guess_s : 0,
        .event = on_event,
        .arg = f};
}

bool tsri_flow_start(struct tsri_flow *f, struct tsri_refusal *no)
{
    struct tsri_serve *s = f->serve;
    struct tsri_dialog d;
    pthread_mutex_lock(&s->lock);
    bool stops = s->draining;
    pthread_mutex_unlock(&s->lock);
    if (stops) return tsri_refuse(no, 503, NULL, NULL, "the server is stopping");
    const char *separator = s->desc.separator ? s->desc.separator : "";
    bool fine =
        tsri_api_parse(&f->request, f->api, f->body ? f->body : "", f->n_body, separator, no);
    free(f->body);
    f->body = NULL;
    if (!fine) return false;
    if (f->request.model && strcmp(f->request.model, s->desc.model_name) != 0)
        return tsri_refuse(no, 404, "model_not_found", "model",
                           "the model %.200s does not exist; this server has %.200s",
                           f->request.model, s->desc.model_name);
    if (!tsri_prompt_make(f, &d, no)) return false;
    f->n_prompt = (uint32_t)d.n_tokens;
    f->reading = true;
    f->full_guess_s = s->desc.speed_path
                          ? tsri_speed_guess(s->desc.speed_path, s->info.device, f->n_prompt)
                          : NAN;
    f->said.stops = f->request.stops;
    f->said.n_stops = f->request.n_stops;
    if (f->request.progress && f->request.stream) f->progress = tsri_reply_progress_begin(f);
    struct tsri_job_desc job = job_of(f, &d);
    pthread_mutex_lock(&s->lock);
    stops = s->draining;
    f->engine_has = true;
    f->listed = true;
    f->deadline_ns = tsri_now_ns() + (uint64_t)s->desc.whole_s * 1000000000u;
    f->told_ns = tsri_now_ns();
    f->next = s->flows;
    if (f->next) f->next->before = f;
    s->flows = f;
    s->n_flows++;
    f->alone = s->n_flows == 1;
    s->n_requests++;
    /* A flow that is refused after all is freed with these bytes. */
    tell_progress(f, f->told_ns);
    pthread_mutex_unlock(&s->lock);
    uint64_t number = 0;
    int e = stops ? TSR_EBUSY : tsri_engine_submit(s->engine, &job, &number);
    tsri_dialog_fini(&d);
    if (stops) tsri_refuse(no, 503, NULL, NULL, "the server is stopping");
    if (e < 0 && !stops) refuse_submit(f, e, no);
    pthread_mutex_lock(&s->lock);
    f->job = number;
    if (e < 0) {
        f->engine_has = false;
        unlist(f);
        s->n_requests--;
    }
    pthread_mutex_unlock(&s->lock);
    return e >= 0;
}

bool tsri_flow_watch(struct tsri_flow *f, uint64_t now_ns)
{
    static const char quiet[] = ": reading\n\n";
    if (f->done || !f->engine_has) return false;
    if (now_ns - f->chunk_ns > PROGRESS_NS) tell_progress(f, now_ns);
    if (f->request.stream && now_ns - f->told_ns > QUIET_NS) {
        char *more = tsri_make_room(f->out, &f->out_room, f->n_out + sizeof quiet, 1);
        if (more) {
            f->out = more;
            memcpy(f->out + f->n_out, quiet, sizeof quiet - 1);
            f->n_out += sizeof quiet - 1;
            if (f->suspended && f->ready) tsri_web_resume(f);
        }
        f->told_ns = now_ns;
    }
    if (now_ns < f->deadline_ns) return false;
    if (!f->late) f->serve->n_late++;
    f->late = true;
    return true;
}
