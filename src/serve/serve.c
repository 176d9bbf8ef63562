/* serve.c - opens the engine and the HTTP server, looks after them, and ends them in order. A thread
 * of its own sees what neither notices: clients that leave while they wait, answers that take too
 * long, requests that never end. */
#include "serve/serve.h"

#include <stdlib.h>

#define LOOK_NS ((uint64_t)200000000)
#define CANCELS_MAX 64u /* in one look; the rest is next */
#define CONNECTIONS 128u
#define BODY_BYTES ((size_t)16 << 20)
#define WHOLE_S 600u
#define ANSWER_TOKENS 1024u

static void look(struct tsri_serve *s)
{
    uint64_t jobs[CANCELS_MAX], now = tsri_now_ns();
    uint32_t n = 0;
    for (struct tsri_flow *f = s->flows; f && n < CANCELS_MAX; f = f->next) {
        bool gone = f->connection && !f->done && tsri_web_is_gone(f->fd);
        if (gone) tsri_flow_gone(f);
        if (tsri_flow_watch(f, now) || gone) jobs[n++] = f->job;
    }
    tsri_web_watch(s, now);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < n; i++)
        tsri_engine_cancel(s->engine, jobs[i]);
    pthread_mutex_lock(&s->lock);
}

static void *watch(void *arg)
{
    struct tsri_serve *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        (void)tsri_cond_wait(&s->wake, &s->lock, tsri_now_ns() + LOOK_NS);
        if (!s->closing) look(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start_watcher(struct tsri_serve *s)
{
    int e = tsri_thread_start(&s->watcher, "tessera-watch", watch, s);
    if (e) return tsri_fail(TSR_EAGAIN, "cannot start a thread: %s", strerror(e));
    s->has_watcher = true;
    return 0;
}

/* Replaces a text by a copy of it, which is NULL if there is no memory for it. */
static bool own(const char **text)
{
    if (!*text) return true;
    *text = tsri_strdup(*text);
    return *text != NULL;
}

static int copy_desc(struct tsri_serve *s, const struct tsri_serve_desc *desc)
{
    struct tsri_serve_desc *d = &s->desc;
    *d = *desc;
    const char **texts[] = {&d->model_name, &d->separator, &d->speed_path, &d->token,
                            &d->page_token};
    bool copied = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        copied &= own(texts[i]);
    if (!d->connections_max) d->connections_max = CONNECTIONS;
    if (!d->body_bytes_max) d->body_bytes_max = BODY_BYTES;
    if (!d->whole_s) d->whole_s = WHOLE_S;
    if (!d->max_tokens) d->max_tokens = ANSWER_TOKENS;
    if (!copied) return TSR_ENOMEM;
    s->info.size = sizeof s->info;
    return tsr_model_info(desc->model, &s->info);
}

int tsri_serve_open(struct tsri_serve **out, const struct tsri_serve_desc *desc)
{
    struct tsri_serve *s = tsri_alloc(1, sizeof *s);
    *out = NULL;
    if (!s) return TSR_ENOMEM;
    pthread_mutex_init(&s->lock, NULL);
    tsri_cond_init(&s->wake);
    tsri_slow_init(&s->slow);
    s->start_ns = tsri_now_ns();
    int e = copy_desc(s, desc);
    struct tsri_engine_desc engine = {.model = desc->model,
                                      .blend = desc->blend,
                                      .n_running_max = desc->n_running_max,
                                      .n_queued_max = desc->n_queued_max};
    if (!e) e = tsri_engine_open(&s->engine, &engine);
    if (!e) e = start_watcher(s);
    if (!e) e = tsri_preparing_open(s);
    if (!e) e = tsri_web_open(s);
    if (e < 0) {
        tsri_serve_close(s);
        return e;
    }
    *out = s;
    return 0;
}

uint16_t tsri_serve_port(const struct tsri_serve *s)
{
    return s->port;
}

struct tsri_engine *tsri_serve_engine(struct tsri_serve *s)
{
    return s->engine;
}

void tsri_serve_drain(struct tsri_serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

uint32_t tsri_serve_busy(struct tsri_serve *s)
{
    return s->n_open;
}

void tsri_serve_close(struct tsri_serve *s)
{
    if (!s) return;
    tsri_serve_drain(s);
    if (s->has_watcher) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->watcher, NULL);
    }
    tsri_preparing_close(s);
    /* Every answer ends with an event, which resumes its connection: libmicrohttpd cannot stop with
     * suspended ones. */
    tsri_engine_close(s->engine);
    tsri_web_close(s);
    tsri_slow_fini(&s->slow);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    tsri_free((void *)(uintptr_t)s->desc.model_name);
    tsri_free((void *)(uintptr_t)s->desc.separator);
    tsri_free((void *)(uintptr_t)s->desc.token);
    tsri_free((void *)(uintptr_t)s->desc.page_token);
    tsri_free((void *)(uintptr_t)s->desc.speed_path);
    tsri_free(s);
}
