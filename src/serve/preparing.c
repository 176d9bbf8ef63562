/* preparing.c - requests on their way to the engine. Reading JSON, searching the documents and making
 * tokens take up to seconds for a large request; the HTTP thread, which sends all answers, must not
 * wait for that, and neither must small requests. So there are two threads with a queue each: one for
 * small requests, one for large ones. A queue keeps the order of its requests. There are never more
 * of them than connections: each waits for its reply, suspended. */
#include "serve/serve.h"

#define SMALL_BYTES_MAX ((size_t)64 << 10) /* of a body: prepared within a tenth of a second */

static struct tsri_preparer *preparer_of(const struct tsri_flow *f)
{
    return &f->serve->preparers[f->n_body > SMALL_BYTES_MAX];
}

bool tsri_preparing_put(struct tsri_flow *f)
{
    struct tsri_preparer *p = preparer_of(f);
    if (f->serve->preparing_ends)
        return tsri_refuse(&f->no, 503, NULL, NULL, "the server is stopping");
    f->next_prepared = NULL;
    if (p->last)
        p->last->next_prepared = f;
    else
        p->first = f;
    p->last = f;
    pthread_cond_signal(&p->has_request);
    return true;
}

static struct tsri_flow *take(struct tsri_preparer *p)
{
    struct tsri_flow *f = p->first;
    p->first = f->next_prepared;
    if (!p->first) p->last = NULL;
    return f;
}

static void *prepare_all(void *arg)
{
    struct tsri_preparer *p = arg;
    struct tsri_serve *s = p->serve;
    pthread_mutex_lock(&s->lock);
    while (p->first || !s->preparing_ends) {
        if (!p->first) {
            pthread_cond_wait(&p->has_request, &s->lock);
            continue;
        }
        struct tsri_flow *f = take(p);
        pthread_mutex_unlock(&s->lock);
        if (!tsri_flow_start(f, &f->no) && !f->no.status)
            tsri_refuse(&f->no, 503, NULL, NULL, "no memory");
        pthread_mutex_lock(&s->lock);
        f->ready = true;
        if (f->suspended) tsri_web_resume(f);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int tsri_preparing_open(struct tsri_serve *s)
{
    for (size_t i = 0; i < TSRI_COUNT(s->preparers); i++) {
        struct tsri_preparer *p = &s->preparers[i];
        p->serve = s;
        tsri_cond_init(&p->has_request);
        int e = tsri_thread_start(&p->thread, "tessera-prepare", prepare_all, p);
        if (e) {
            pthread_cond_destroy(&p->has_request);
            return tsri_fail(TSR_EAGAIN, "cannot start a thread: %s", strerror(e));
        }
        s->n_preparers++;
    }
    return 0;
}

void tsri_preparing_close(struct tsri_serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->preparing_ends = true;
    for (uint32_t i = 0; i < s->n_preparers; i++)
        pthread_cond_signal(&s->preparers[i].has_request);
    pthread_mutex_unlock(&s->lock);
    for (; s->n_preparers; s->n_preparers--) {
        struct tsri_preparer *p = &s->preparers[s->n_preparers - 1];
        pthread_join(p->thread, NULL);
        pthread_cond_destroy(&p->has_request);
    }
}
