/* queue.c - streams and events of the fake GPU. A queue is a thread and a list of operations; each
 * stays at the head of the list until it has run, so that the list is everything that still uses
 * memory. Events are marks: recording puts a new one into a queue, and who waits keeps the mark it
 * saw, as with CUDA, whatever is recorded afterwards. */
#include "fakegpu/parts.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* What an engine names the default stream with, as cudaStreamLegacy. */
#define DEFAULT_STREAM ((void *)1)

struct fake_queue {
    struct fake_queue *next; /* of all */
    uint32_t ordinal;
    pthread_t thread;
    pthread_cond_t work;
    struct fake_op *first, **last;
    uint64_t dice;
    bool closing, low;
};

struct tsr_device_stream {
    struct fake_queue *queue;
    bool owned;
};

struct tsr_device_event {
    struct fake_mark *mark; /* NULL: never recorded */
};

/* ---- marks ---- */

void fake_mark_drop(struct fake_mark *m)
{
    if (m && --m->refs == 0) free(m);
}

void fake_mark_wait(struct fake_mark *m)
{
    while (m && !m->passed)
        pthread_cond_wait(&fake.passed, &fake.lock);
}

/* ---- queues ---- */

/* Streams that give way do so more often. */
static void pause_before(struct fake_queue *q, uint32_t one_in, uint32_t most_us)
{
    if (q->low && one_in > 2) one_in = 2;
    q->dice = q->dice * 6364136223846793005u + 1442695040888963407u;
    uint64_t r = q->dice >> 33;
    if (most_us && r % one_in == 0) usleep((useconds_t)(r / one_in % most_us));
}

static void op_free(struct fake_op *op)
{
    if (op->end) op->end(op);
    fake_mark_drop(op->sets);
    fake_mark_drop(op->awaits);
    free(op->spans);
    free(op);
}

/* Under the lock, which is released while it runs. */
static void run_first(struct fake_queue *q)
{
    struct fake_op *op = q->first;
    fake_mark_wait(op->awaits);
    while (op->run && fake.held && !fake.lost)
        pthread_cond_wait(&fake.passed, &fake.lock);
    if (op->run && !fake.lost) {
        uint32_t one_in = fake.delay_one_in, delay_us = fake.delay_us;
        pthread_mutex_unlock(&fake.lock);
        pause_before(q, one_in, delay_us);
        op->run(op);
        pthread_mutex_lock(&fake.lock);
    }
    if (op->sets) op->sets->passed = true;
    q->first = op->next;
    if (!q->first) q->last = &q->first;
    op_free(op);
    pthread_cond_broadcast(&fake.passed);
}

static void *queue_main(void *arg)
{
    struct fake_queue *q = arg;
    pthread_mutex_lock(&fake.lock);
    while (q->first || !q->closing) {
        if (q->first)
            run_first(q);
        else
            pthread_cond_wait(&q->work, &fake.lock);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

struct fake_queue *fake_queue_open(uint32_t ordinal, uint32_t flags)
{
    static uint64_t n_opened;
    struct fake_queue *q = calloc(1, sizeof *q);
    if (!q) fake_die("out of memory");
    q->ordinal = ordinal;
    q->low = flags & TSR_STREAM_LOW;
    q->last = &q->first;
    pthread_cond_init(&q->work, NULL);
    pthread_mutex_lock(&fake.lock);
    q->dice = fake.seed * 1000003 + ++n_opened;
    q->next = fake.queues;
    fake.queues = q;
    pthread_mutex_unlock(&fake.lock);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&q->thread, NULL, queue_main, q) != 0) fake_die("cannot start a thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_setname_np(q->thread, "fakegpu-stream");
    return q;
}

void fake_queue_close(struct fake_queue *q)
{
    pthread_mutex_lock(&fake.lock);
    q->closing = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&fake.lock);
    pthread_join(q->thread, NULL);
    pthread_mutex_lock(&fake.lock);
    struct fake_queue **at = &fake.queues;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    pthread_mutex_unlock(&fake.lock);
    pthread_cond_destroy(&q->work);
    free(q);
}

void fake_push(struct fake_queue *q, struct fake_op *op)
{
    if (q->closing) fake_die("%s: the stream is closed", op->what);
    *q->last = op;
    q->last = &op->next;
    pthread_cond_signal(&q->work);
}

static struct fake_op *new_op(const char *what)
{
    struct fake_op *op = calloc(1, sizeof *op);
    if (!op) fake_die("out of memory");
    op->what = what;
    return op;
}

struct fake_mark *fake_mark_push(struct fake_queue *q)
{
    struct fake_op *op = new_op("event_record");
    op->sets = calloc(1, sizeof *op->sets);
    if (!op->sets) fake_die("out of memory");
    op->sets->refs = 2; /* the queue's and the caller's */
    struct fake_mark *m = op->sets;
    fake_push(q, op);
    return m;
}

void fake_await_push(struct fake_queue *q, struct fake_mark *m)
{
    if (!m || m->passed) return;
    struct fake_op *op = new_op("event_wait");
    m->refs++;
    op->awaits = m;
    fake_push(q, op);
}

void fake_queues_check_unused(struct fake_span span, const char *what)
{
    for (const struct fake_queue *q = fake.queues; q && !fake.lost; q = q->next)
        for (const struct fake_op *op = q->first; op; op = op->next)
            for (uint32_t i = 0; i < op->n_spans; i++)
                if (op->spans[i].first < span.first + span.bytes &&
                    span.first < op->spans[i].first + op->spans[i].bytes)
                    fake_die("%zu bytes of %s at %#zx are given back while a queued %s uses them",
                             span.bytes, what, (size_t)span.first, op->what);
}

uint64_t fake_control_queued(void)
{
    uint64_t n = 0;
    pthread_mutex_lock(&fake.lock);
    for (const struct fake_queue *q = fake.queues; q; q = q->next)
        for (const struct fake_op *op = q->first; op; op = op->next)
            n += op->run != NULL;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

struct fake_queue *fake_queue_of(const struct tsr_device *d, const struct tsr_device_stream *s)
{
    struct fake_queue *q = s ? s->queue : fake.defaults[d->ordinal];
    if (q->ordinal != d->ordinal)
        fake_die("a stream of device %u used on device %u", q->ordinal, d->ordinal);
    return q;
}

static void sync_queue(struct fake_queue *q)
{
    pthread_mutex_lock(&fake.lock);
    struct fake_mark *m = fake_mark_push(q);
    fake_mark_wait(m);
    fake_mark_drop(m);
    pthread_mutex_unlock(&fake.lock);
}

/* ---- streams ---- */

int fake_stream_open(struct tsr_device *d, struct tsr_device_stream **out, void *native,
                     uint32_t flags)
{
    int e = fake_fault(d, FAKE_STREAM_OPEN);
    if (e) return e;
    struct tsr_device_stream *s = calloc(1, sizeof *s);
    if (!s) fake_die("out of memory");
    s->owned = !native;
    s->queue = native ? native : fake_queue_open(d->ordinal, flags);
    pthread_mutex_lock(&fake.lock);
    if (native == DEFAULT_STREAM) s->queue = fake.defaults[d->ordinal];
    d->n_streams++;
    pthread_mutex_unlock(&fake.lock);
    *out = s;
    return 0;
}

void fake_stream_close(struct tsr_device *d, struct tsr_device_stream *s)
{
    if (s->owned) fake_queue_close(s->queue);
    free(s);
    pthread_mutex_lock(&fake.lock);
    d->n_streams--;
    pthread_mutex_unlock(&fake.lock);
}

/* One that fails has waited: what a caller does next must not depend on luck. */
int fake_stream_sync(struct tsr_device *d, struct tsr_device_stream *s)
{
    sync_queue(fake_queue_of(d, s));
    return fake_fault(d, FAKE_STREAM_SYNC);
}

/* ---- events ---- */

int fake_event_open(struct tsr_device *d, struct tsr_device_event **out)
{
    int e = fake_fault(d, FAKE_EVENT_OPEN);
    if (e) return e;
    *out = calloc(1, sizeof **out);
    if (!*out) fake_die("out of memory");
    pthread_mutex_lock(&fake.lock);
    d->n_events++;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

void fake_event_close(struct tsr_device *d, struct tsr_device_event *e)
{
    pthread_mutex_lock(&fake.lock);
    fake_mark_drop(e->mark);
    d->n_events--;
    pthread_mutex_unlock(&fake.lock);
    free(e);
}

int fake_event_record(struct tsr_device *d, struct tsr_device_event *e, struct tsr_device_stream *s)
{
    int err = fake_fault(d, FAKE_EVENT_RECORD);
    if (err) return err;
    pthread_mutex_lock(&fake.lock);
    fake_mark_drop(e->mark);
    e->mark = fake_mark_push(fake_queue_of(d, s));
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

int fake_event_wait(struct tsr_device *d, struct tsr_device_event *e, struct tsr_device_stream *s)
{
    int err = fake_fault(d, FAKE_EVENT_WAIT);
    if (err) return err;
    pthread_mutex_lock(&fake.lock);
    fake_await_push(fake_queue_of(d, s), e->mark);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

int fake_event_sync(struct tsr_device *d, struct tsr_device_event *e)
{
    pthread_mutex_lock(&fake.lock);
    struct fake_mark *m = e->mark;
    if (m) m->refs++;
    fake_mark_wait(m);
    fake_mark_drop(m);
    pthread_mutex_unlock(&fake.lock);
    return fake_fault(d, FAKE_EVENT_SYNC);
}

/* ---- the engine's ---- */

void *fake_control_stream_open(uint32_t ordinal)
{
    return fake_queue_open(ordinal, 0);
}

void fake_control_stream_close(void *native)
{
    fake_queue_close(native);
}

static struct fake_queue *engines_queue(void *native)
{
    return native ? native : fake.defaults[0];
}

void fake_control_stream_sync(void *native)
{
    sync_queue(engines_queue(native));
}

struct call {
    void (*fn)(void *arg);
    void *arg;
};

static void call_run(struct fake_op *op)
{
    const struct call *c = op->arg;
    c->fn(c->arg);
}

static void call_end(struct fake_op *op)
{
    free(op->arg);
}

void fake_control_launch(void *native, void (*fn)(void *arg), void *arg)
{
    struct fake_op *op = new_op("launch");
    struct call *c = calloc(1, sizeof *c);
    if (!c) fake_die("out of memory");
    *c = (struct call){fn, arg};
    op->run = call_run;
    op->end = call_end;
    op->arg = c;
    pthread_mutex_lock(&fake.lock);
    fake_push(engines_queue(native), op);
    pthread_mutex_unlock(&fake.lock);
}
