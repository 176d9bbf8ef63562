/* engine.c - requests come in, are admitted when there is room, and have their turns. One thread does
 * all the work; others only put requests into the queue and mark them as cancelled, under one lock
 * that is never held while the model runs. */
#include "serve/engine.h"

#include "serve/task.h"

#include <malloc.h>
#include <math.h>

#define RUNNING_DEFAULT 4u
#define QUEUED_DEFAULT 64u
#define SLOTS_DEFAULT 32768u
/* While answers are written, prompts get so many times the time of a pass: answers are slower then,
 * by this, and prompts are read in the rest of the time. */
#define READ_SHARE 2.0
/* While there are requests, what they leave to be stored gets so much of the time that they take. A busy
 * server would otherwise store nothing, and read the same documents again and again. */
#define LEARN_SHARE 0.1
/* Rows of a layer that are computed at once, if the model does not say better; a token of a running
 * answer waits for them. */
#define PIECE_ROWS 128u
#define PIECE_ROWS_MAX 512u
/* Without work for so long, what was freed goes back to the system: a tenth of the memory of a small
 * model's server. Sooner, the next answer would take it again at once. */
#define IDLE_NS 1000000000u

/* ---- lists, under lock ---- */

static void push(struct tsri_task_list *list, struct tsri_task *t)
{
    t->next = NULL;
    if (list->last)
        list->last->next = t;
    else
        list->first = t;
    list->last = t;
    list->n++;
}

static void take_out(struct tsri_task_list *list, const struct tsri_task *t)
{
    struct tsri_task *before = NULL;
    for (struct tsri_task *i = list->first; i != t; i = i->next)
        before = i;
    *(before ? &before->next : &list->first) = t->next;
    if (list->last == t) list->last = before;
    list->n--;
}

static struct tsri_task *find(const struct tsri_task_list *list, uint64_t id)
{
    struct tsri_task *t = list->first;
    while (t && t->id != id)
        t = t->next;
    return t;
}

static struct tsri_task *first_cancelled(const struct tsri_task_list *list)
{
    struct tsri_task *t = list->first;
    while (t && !t->cancelled)
        t = t->next;
    return t;
}

/* ---- tasks ---- */

static void task_free(struct tsri_task *t)
{
    void *const all[] = {(void *)t->desc.tokens, (void *)t->desc.segments, t->short_prompt, t->bias,
                         t->draft};
    for (size_t i = 0; i < TSRI_COUNT(all); i++)
        tsri_free(all[i]);
    tsri_free(t);
}

static int task_new(struct tsri_task **out, const struct tsri_engine *e,
                    const struct tsri_job_desc *d)
{
    struct tsri_task *t = tsri_alloc(1, sizeof *t);
    if (!t) return TSR_ENOMEM;
    uint32_t max_tokens = tsri_min_u32(d->max_tokens, e->info.context - d->n_tokens);
    uint32_t n_room = d->n_tokens + (d->keeps ? max_tokens : 0);
    uint32_t *tokens = tsri_alloc(n_room, sizeof *tokens);
    struct tsr_range *segments = tsri_alloc((size_t)d->n_segments + 1, sizeof *segments);
    t->desc = *d;
    t->desc.tokens = tokens;
    t->desc.segments = segments;
    if (!tokens || !segments) {
        task_free(t);
        return TSR_ENOMEM;
    }
    memcpy(tokens, d->tokens, d->n_tokens * sizeof *tokens);
    if (d->n_segments) memcpy(segments, d->segments, d->n_segments * sizeof *segments);
    t->n_slots = tsri_reading_slots(e, &t->desc);
    t->max_tokens = max_tokens;
    t->n_prompt = d->n_tokens;
    t->random = d->seed;
    t->queued_ns = tsri_now_ns();
    *out = t;
    return 0;
}

static int check_desc(const struct tsri_engine *e, const struct tsri_job_desc *d)
{
    if (!d || !d->tokens || !d->n_tokens || (d->n_segments && !d->segments) || !d->event ||
        d->mode > TSRI_MODE_LEARN || d->keeps > TSRI_KEEP_ALWAYS ||
        d->n_top > TSRI_ENGINE_TOP_MAX || !(d->temperature >= 0 && isfinite(d->temperature)) ||
        !(d->top_p >= 0 && d->top_p <= 1))
        return tsri_fail(TSR_EINVAL, "engine: a member of the request is missing or out of range");
    if (d->mode != TSRI_MODE_LEARN && !d->max_tokens)
        return tsri_fail(TSR_EINVAL, "engine: an answer of 0 tokens");
    if (d->mode == TSRI_MODE_LEARN && !d->n_segments)
        return tsri_fail(TSR_EINVAL, "engine: no documents to store");
    uint32_t context = e->info.context;
    if (d->n_tokens >= context)
        return tsri_fail(TSR_ERANGE, "prompt of %u tokens, but the model's context is %u tokens",
                         d->n_tokens, context);
    uint64_t end = 0, longest = 0;
    for (uint32_t i = 0; i < d->n_segments; i++) {
        if (!d->segments[i].n_tokens || d->segments[i].offset < end)
            return tsri_fail(TSR_EPROMPT, "segment %u is empty or out of order", i);
        end = (uint64_t)d->segments[i].offset + d->segments[i].n_tokens;
        if (d->segments[i].n_tokens > longest) longest = d->segments[i].n_tokens;
    }
    if (end >= d->n_tokens)
        return tsri_fail(TSR_EPROMPT, "no question after the last segment, which ends at %llu",
                         (unsigned long long)end);
    if (d->system && (!d->n_segments || d->segments[0].offset))
        return tsri_fail(TSR_EPROMPT, "the system prompt must be at token 0");
    if (d->mode == TSRI_MODE_LEARN && longest + d->segments[0].n_tokens + 1 > context)
        return tsri_fail(TSR_ERANGE, "segment of %llu tokens, but the model's context is %u tokens",
                         (unsigned long long)longest, context);
    uint32_t n = tsri_session_pool_round(&e->sessions, tsri_reading_slots(e, d));
    if (n > e->sessions.n_slots_max)
        return tsri_fail(TSR_ERANGE, "prompt and answer need %u tokens, limit %u", n,
                         e->sessions.n_slots_max);
    return 0;
}

/* ---- from any thread ---- */

int tsri_engine_submit(struct tsri_engine *e, const struct tsri_job_desc *desc, uint64_t *job)
{
    struct tsri_task *t;
    int r = check_desc(e, desc);
    if (!r) r = task_new(&t, e, desc);
    if (r) return r;
    bool learns = desc->mode == TSRI_MODE_LEARN;
    pthread_mutex_lock(&e->lock);
    struct tsri_task_list *list = learns ? &e->learning : &e->queue;
    if (list->n >= e->n_queued_max || e->closing) {
        e->stats.n_refused++;
        pthread_mutex_unlock(&e->lock);
        task_free(t);
        return tsri_fail(TSR_EAGAIN, "engine: %u requests are waiting, try again later",
                         e->n_queued_max);
    }
    t->id = *job = ++e->next_id;
    if (!learns) t->turn = tsri_turns_enter(&e->turns, desc->client);
    push(list, t);
    e->stats.n_submitted++;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

void tsri_engine_cancel(struct tsri_engine *e, uint64_t job)
{
    if (!job) return; /* of tasks that no client asked for */
    pthread_mutex_lock(&e->lock);
    struct tsri_task *t = find(&e->queue, job);
    if (!t) t = find(&e->learning, job);
    if (!t && e->learner && e->learner->id == job) t = e->learner;
    for (uint32_t i = 0; !t && i < e->n_running; i++)
        if (e->running[i]->id == job) t = e->running[i];
    if (t) t->cancelled = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void tsri_engine_stats(struct tsri_engine *e, struct tsri_engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->n_queued = e->queue.n;
    out->n_learning = e->learning.n + (e->learner != NULL);
    pthread_mutex_unlock(&e->lock);
}

/* ---- turns ---- */

/* The queue's next: of the client that has had the least time, the first. Under lock. */
static struct tsri_task *next_queued(const struct tsri_engine *e)
{
    struct tsri_task *best = e->queue.first;
    for (struct tsri_task *t = best; t; t = t->next)
        if (t->turn->used_ns < best->turn->used_ns) best = t;
    return best;
}

/* True: one more task runs now, or there may be room for one. */
static bool admit_one(struct tsri_engine *e)
{
    if (e->n_running == e->n_running_max) return false;
    pthread_mutex_lock(&e->lock);
    struct tsri_task *t = next_queued(e);
    bool fits = t && tsri_session_pool_fits(&e->sessions, t->n_slots);
    if (fits) {
        take_out(&e->queue, t);
        e->running[e->n_running++] = t;
    }
    pthread_mutex_unlock(&e->lock);
    if (fits) {
        t->state = TSRI_TASK_READING;
        t->started_ns = tsri_now_ns();
        int r = tsri_session_pool_take(&e->sessions, t->n_slots, &t->session);
        if (r) tsri_writing_end(e, t, TSRI_END_FAILED, r, tsr_errmsg());
        return true;
    }
    if (!t || !e->learner || !e->learner->session) return false;
    tsri_reading_stop(e, e->learner); /* starts its segment again later */
    return true;
}

/* The prompt whose turn it is; within a client the shortest one, so that a question need not wait for
 * a book. */
static struct tsri_task *next_reader(struct tsri_engine *e)
{
    struct tsri_task *best = NULL;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct tsri_task *t = e->running[i];
        if (t->state != TSRI_TASK_READING || t->gone) continue;
        bool less = !best || t->turn->used_ns < best->turn->used_ns;
        bool shorter = best && t->turn == best->turn && t->desc.n_tokens < best->desc.n_tokens;
        if (less || shorter) best = t;
    }
    pthread_mutex_unlock(&e->lock);
    return best;
}

static void charge(struct tsri_engine *e, struct tsri_task *const *tasks, uint32_t n, uint64_t ns)
{
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < n; i++)
        tasks[i]->turn->used_ns += ns / n;
    pthread_mutex_unlock(&e->lock);
}

static void write_some(struct tsri_engine *e)
{
    struct tsri_task *tasks[TSR_DECODER_ROWS_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++)
        if (e->running[i]->state == TSRI_TASK_WRITING && !e->running[i]->gone)
            tasks[n++] = e->running[i];
    e->now.n_writing = n;
    e->decode_s = 0;
    if (!n) return;
    tsri_writing_all(e, tasks, n);
    charge(e, tasks, n, (uint64_t)(e->decode_s * 1e9));
}

static void read_some(struct tsri_engine *e)
{
    uint64_t start_ns = tsri_now_ns(), from_ns = start_ns;
    do {
        struct tsri_task *t = next_reader(e);
        if (!t) return;
        int r = tsri_reading_piece(e, t);
        if (r < 0) tsri_writing_end(e, t, TSRI_END_FAILED, r, tsr_errmsg());
        if (r == 0) tsri_writing_begin(e, t);
        uint64_t now_ns = tsri_now_ns();
        charge(e, &t, 1, now_ns - from_ns);
        e->now.read_s += (double)(now_ns - from_ns) * 1e-9;
        from_ns = now_ns;
    } while ((double)(from_ns - start_ns) * 1e-9 < READ_SHARE * e->decode_s);
}

/* ---- documents ---- */

/* A task whose answer is out, and whose documents are to be stored. */
static void begin_learning(const struct tsri_engine *e, struct tsri_task *t)
{
    t->learns = false;
    t->desc.mode = TSRI_MODE_LEARN;
    t->desc.n_tokens = t->n_prompt;
    t->n_slots = tsri_reading_slots(e, &t->desc);
}

/* What is to be stored now; NULL: nothing, or there is no room for it beside what runs. */
static struct tsri_task *next_learner(struct tsri_engine *e)
{
    pthread_mutex_lock(&e->lock);
    if (!e->learner && e->learning.first) {
        e->learner = e->learning.first;
        take_out(&e->learning, e->learner);
    }
    pthread_mutex_unlock(&e->lock);
    struct tsri_task *t = e->learner;
    if (!t || t->state == TSRI_TASK_OVER) return NULL;
    return t->session || tsri_session_pool_fits(&e->sessions, t->n_slots) ? t : NULL;
}

static void learn_some(struct tsri_engine *e, struct tsri_task *t)
{
    uint32_t before = t->n_learned;
    int r = t->desc.mode == TSRI_MODE_KEEP ? tsri_reading_keep(e, t) : tsri_reading_learn(e, t);
    if (t->n_learned > before && t->desc.event) {
        struct tsri_job_event event = {.kind = TSRI_EVENT_LEARN,
                                       .job = t->id,
                                       .report = &t->report,
                                       .logprob = NAN,
                                       .n_done = t->n_learned,
                                       .n_total = t->desc.n_segments};
        t->desc.event(t->desc.arg, &event);
    }
    if (r == 0 && t->learns) {
        tsri_reading_stop(e, t); /* the next one may need more slots */
        begin_learning(e, t);
        return;
    }
    if (r < 0) tsri_writing_end(e, t, TSRI_END_FAILED, r, tsr_errmsg());
    if (r == 0) tsri_writing_end(e, t, TSRI_END_DONE, 0, NULL);
}

/* After requests had work_ns. What a piece takes longer than its share is paid for by later turns;
 * what is not used is not saved up. */
static void learn_in_turn(struct tsri_engine *e, uint64_t work_ns)
{
    struct tsri_task *t = next_learner(e);
    if (!t || !e->n_running) {
        e->learn_ns = 0;
        if (t) learn_some(e, t);
        return;
    }
    e->learn_ns += (int64_t)((double)work_ns * LEARN_SHARE);
    while (t && e->learn_ns > 0) {
        uint64_t start_ns = tsri_now_ns();
        learn_some(e, t);
        e->learn_ns -= (int64_t)(tsri_now_ns() - start_ns);
        t = next_learner(e);
    }
}

static bool keep_later(const struct tsri_task *t)
{
    bool whole = t->why == TSRI_END_STOP || t->why == TSRI_END_LENGTH;
    bool exact = tsri_trust_sure(&t->report) >= 1 || t->desc.keeps == TSRI_KEEP_ALWAYS;
    return whole && exact && t->desc.keeps && t->n_written && !t->desc.fresh;
}

/* What is left to do for later questions, after the client has had its last event: the answer is
 * stored for the next one of this conversation, and documents that were read in full for any. */
static bool learn_later(struct tsri_engine *e, struct tsri_task *t)
{
    bool keeps = keep_later(t);
    t->learns = t->report.reasons & TSR_BLEND_FIRST && t->desc.n_segments && !t->spoiled;
    if (!keeps && !t->learns) return false;
    if (!tsr_blend_space(e->blend) || e->closing || e->learning.n >= e->n_queued_max) return false;
    t->desc.event = NULL;
    t->id = 0;
    t->state = TSRI_TASK_QUEUED;
    t->gone = t->cancelled = false;
    if (keeps) {
        t->desc.mode = TSRI_MODE_KEEP;
        t->desc.n_tokens += t->n_written;
        t->n_slots = tsri_reading_slots(e, &t->desc);
    } else {
        begin_learning(e, t);
    }
    t->n_written = 0;
    push(&e->learning, t);
    return true;
}

/* ---- the thread ---- */

/* Ends one that was cancelled while it waited; false: there is none. */
static bool end_cancelled(struct tsri_engine *e, struct tsri_task_list *list)
{
    pthread_mutex_lock(&e->lock);
    struct tsri_task *t = first_cancelled(list);
    if (t) take_out(list, t);
    if (t && t->turn) tsri_turns_leave(t->turn);
    pthread_mutex_unlock(&e->lock);
    if (!t) return false;
    tsri_writing_end(e, t, TSRI_END_CANCELLED, 0, NULL);
    task_free(t);
    return true;
}

/* Cancelled tasks that run are ended; those that are over go, with their sessions. */
static void clear(struct tsri_engine *e)
{
    while (end_cancelled(e, &e->queue) || end_cancelled(e, &e->learning))
        continue;
    for (uint32_t i = 0; i < e->n_running;) {
        struct tsri_task *t = e->running[i];
        if (t->gone) tsri_writing_end(e, t, TSRI_END_CANCELLED, 0, NULL);
        if (t->state != TSRI_TASK_OVER) {
            i++;
            continue;
        }
        tsri_reading_stop(e, t);
        pthread_mutex_lock(&e->lock);
        e->running[i] = e->running[--e->n_running];
        tsri_turns_leave(t->turn);
        t->turn = NULL;
        bool learns = learn_later(e, t);
        pthread_mutex_unlock(&e->lock);
        if (!learns) task_free(t);
    }
    struct tsri_task *t = e->learner;
    if (t && t->gone) tsri_writing_end(e, t, TSRI_END_CANCELLED, 0, NULL);
    if (!t || t->state != TSRI_TASK_OVER) return;
    tsri_reading_stop(e, t);
    pthread_mutex_lock(&e->lock);
    e->learner = NULL;
    pthread_mutex_unlock(&e->lock);
    task_free(t);
}

/* Counts of the engine's thread become those that others read. Under lock. */
static void publish(struct tsri_engine *e)
{
    uint64_t n_submitted = e->stats.n_submitted, n_refused = e->stats.n_refused;
    e->now.n_reading = e->n_running - e->now.n_writing;
    e->now.n_slots = tsri_session_pool_slots(&e->sessions);
    e->now.n_slots_max = e->sessions.n_slots_max;
    e->stats = e->now;
    e->stats.n_submitted = n_submitted;
    e->stats.n_refused = n_refused;
}

/* Until there is something to do, or the engine is closed. Under lock. */
static void sleep_idle(struct tsri_engine *e)
{
    uint64_t until = tsri_now_ns() + IDLE_NS;
    while (!e->closing && !e->n_running && !e->queue.n && !e->learning.n && !e->learner) {
        if (tsri_cond_wait(&e->wake, &e->lock, until)) continue;
        until = 0;
        pthread_mutex_unlock(&e->lock);
        (void)malloc_trim(0);
        pthread_mutex_lock(&e->lock);
    }
}

/* Waits for something to do and looks who was cancelled. False: the engine is closed. */
static bool wait_for_work(struct tsri_engine *e)
{
    pthread_mutex_lock(&e->lock);
    publish(e);
    sleep_idle(e);
    for (uint32_t i = 0; i < e->n_running; i++)
        e->running[i]->gone = e->running[i]->cancelled;
    if (e->learner) e->learner->gone = e->learner->cancelled;
    bool open = !e->closing;
    pthread_mutex_unlock(&e->lock);
    return open;
}

static void cancel_all(struct tsri_engine *e)
{
    pthread_mutex_lock(&e->lock);
    for (struct tsri_task *t = e->queue.first; t; t = t->next)
        t->cancelled = true;
    for (struct tsri_task *t = e->learning.first; t; t = t->next)
        t->cancelled = true;
    for (uint32_t i = 0; i < e->n_running; i++)
        e->running[i]->gone = true;
    if (e->learner) e->learner->gone = true;
    pthread_mutex_unlock(&e->lock);
    clear(e);
}

static void *engine_main(void *arg)
{
    struct tsri_engine *e = arg;
    while (wait_for_work(e)) {
        uint64_t start_ns = tsri_now_ns();
        clear(e);
        while (admit_one(e))
            continue;
        write_some(e);
        read_some(e);
        learn_in_turn(e, tsri_now_ns() - start_ns);
    }
    cancel_all(e);
    return NULL;
}

/* ---- opening ---- */

static int start_thread(struct tsri_engine *e)
{
    int r = tsri_thread_start(&e->thread, "tessera-engine", engine_main, e);
    if (r) return tsri_fail(TSR_ENOMEM, "cannot start a thread: %s", strerror(r));
    e->has_thread = true;
    return 0;
}

int tsri_engine_open(struct tsri_engine **out, const struct tsri_engine_desc *d)
{
    *out = NULL;
    if (!d->model || !d->blend || d->n_running_max > TSR_DECODER_ROWS_MAX)
        return tsri_fail(TSR_EINVAL, "engine: no model, no blend or more than %u answers at once",
                         TSR_DECODER_ROWS_MAX);
    struct tsri_engine *e = tsri_alloc(1, sizeof *e);
    if (!e) return TSR_ENOMEM;
    pthread_mutex_init(&e->lock, NULL);
    tsri_cond_init(&e->wake);
    e->model = d->model;
    e->blend = d->blend;
    e->info.size = sizeof e->info;
    e->n_running_max = d->n_running_max ? d->n_running_max : RUNNING_DEFAULT;
    e->n_queued_max = d->n_queued_max ? d->n_queued_max : QUEUED_DEFAULT;
    int r = tsr_model_info(e->model, &e->info);
    uint64_t slots = d->n_slots_max ? d->n_slots_max : (uint64_t)RUNNING_DEFAULT * e->info.context;
    if (!d->n_slots_max && slots > SLOTS_DEFAULT) slots = SLOTS_DEFAULT;
    if (!r) r = tsr_decoder_open(&e->decoder, e->model, e->n_running_max);
    /* One session more for documents. */
    if (!r)
        r = tsri_session_pool_init(&e->sessions, e->model, (uint32_t)slots, e->n_running_max + 1);
    uint32_t n_rows = e->info.rows_best ? e->info.rows_best : PIECE_ROWS;
    e->sessions.n_rows_cut = tsri_min_u32(n_rows, PIECE_ROWS_MAX);
    if (!r) r = tsri_turns_init(&e->turns, e->n_running_max + e->n_queued_max);
    if (!r) r = tsri_sampler_init(&e->sampler, e->info.n_vocab);
    e->logits = tsri_alloc(e->n_running_max, e->info.n_vocab * sizeof *e->logits);
    e->running = tsri_alloc(e->n_running_max, sizeof *e->running);
    if (!r && (!e->logits || !e->running)) r = TSR_ENOMEM;
    if (!r) r = start_thread(e);
    if (r) {
        tsri_engine_close(e);
        return r;
    }
    *out = e;
    return 0;
}

void tsri_engine_close(struct tsri_engine *e)
{
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    if (e->has_thread) pthread_join(e->thread, NULL);
    tsr_decoder_close(e->decoder);
    tsri_session_pool_fini(&e->sessions);
    tsri_turns_fini(&e->turns);
    tsri_sampler_fini(&e->sampler);
    tsri_free(e->logits);
    tsri_free(e->running);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    tsri_free(e);
}
