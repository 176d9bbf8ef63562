/* preparing.c - requests on their way to the engine. Reading JSON, searching the documents and making
 * tokens take up to a second for a large request; the HTTP thread, which sends all answers, must not
 * wait for that. One thread does it, in the order of the requests. There are never more of them than
 * connections: each waits for its reply, suspended. */
#include "serve/serve.h"

bool tsri_preparing_put(struct tsri_flow *f)
{
    struct tsri_serve *s = f->serve;
    if (s->preparing_ends) return tsri_refuse(&f->no, 503, NULL, NULL, "the server is stopping");
    f->next_prepared = NULL;
    if (s->prepared_last)
        s->prepared_last->next_prepared = f;
    else
        s->prepared = f;
    s->prepared_last = f;
    pthread_cond_signal(&s->has_request);
    return true;
}

static struct tsri_flow *take(struct tsri_serve *s)
{
    struct tsri_flow *f = s->prepared;
    s->prepared = f->next_prepared;
    if (!s->prepared) s->prepared_last = NULL;
    return f;
}

static void *prepare_all(void *arg)
{
    struct tsri_serve *s = arg;
    pthread_mutex_lock(&s->lock);
    while (s->prepared || !s->preparing_ends) {
        if (!s->prepared) {
            pthread_cond_wait(&s->has_request, &s->lock);
            continue;
        }
        struct tsri_flow *f = take(s);
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
    int e = tsri_thread_start(&s->preparer, "tessera-prepare", prepare_all, s);
    if (e) return tsri_fail(TSR_EAGAIN, "cannot start a thread: %s", strerror(e));
    s->has_preparer = true;
    return 0;
}

void tsri_preparing_close(struct tsri_serve *s)
{
    if (!s->has_preparer) return;
    pthread_mutex_lock(&s->lock);
    s->preparing_ends = true;
    pthread_cond_signal(&s->has_request);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->preparer, NULL);
    s->has_preparer = false;
}
