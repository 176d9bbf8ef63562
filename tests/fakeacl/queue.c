/* queue.c - streams, events and copies of the fake AscendCL. A stream is a thread and a list of
 * operations. One that has run stays on the list until the host knows that it has: until then its
 * memory counts as in use, and other streams' operations on it need an event in between. */
#include "fakeacl/parts.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* Before some operations, unless thousands of small ones wait. */
#define DELAY_ONE_IN 16u
#define DELAY_US 100u
#define POISON 0xdb
#define BATCH_MAX 4096u
#define PIECES_SEEN 2000u

struct stream {
    uint32_t index;
    int32_t device;
    bool open, closing;
    pthread_t thread;
    pthread_cond_t work;
    struct fake_op *first, **last; /* with those that have run */
    struct fake_op *next;          /* the first that has not */
    struct fake_clock clock;       /* its own number is that of its last operation */
    uint64_t dice;
};
static struct stream streams[FAKE_STREAMS];

struct event {
    struct event *next;
    struct fake_mark *mark; /* NULL: never recorded */
    int32_t device;
};
static struct event *events;
static size_t n_pieces; /* of operations that the host does not know to be over */

/* ---- order ---- */

static void merge(struct fake_clock *to, const struct fake_clock *from)
{
    for (uint32_t i = 0; i < FAKE_STREAMS; i++)
        if (from->n[i] > to->n[i]) to->n[i] = from->n[i];
}

static void mark_drop(struct fake_mark *m)
{
    if (m && --m->refs == 0) free(m);
}

static void op_free(struct fake_op *op)
{
    mark_drop(op->sets);
    mark_drop(op->awaits);
    free(op->pieces);
    free(op);
}

/* The host has waited: what it knows to be over is forgotten. */
static void host_learns(const struct fake_clock *clock)
{
    merge(&fake.host, clock);
    for (uint32_t i = 0; i < FAKE_STREAMS; i++) {
        struct stream *s = &streams[i];
        while (s->first && s->first != s->next && s->first->number <= fake.host.n[i]) {
            struct fake_op *op = s->first;
            s->first = op->next;
            if (!s->first) s->last = &s->first;
            n_pieces -= op->n_pieces;
            op_free(op);
        }
    }
}

static bool meet(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes)
{
    return a && b && a < b + b_bytes && b < a + a_bytes;
}

/* Whether one of them writes what the other reads or writes. */
static bool pieces_meet(const struct fake_piece *a, const struct fake_piece *b)
{
    return meet(a->dst, a->bytes, b->dst, b->bytes) || meet(a->dst, a->bytes, b->src, b->bytes) ||
           meet(a->src, a->bytes, b->dst, b->bytes);
}

static bool ops_meet(const struct fake_op *a, const struct fake_op *b)
{
    if (a->low >= b->high || b->low >= a->high) return false;
    for (uint32_t i = 0; i < a->n_pieces; i++)
        for (uint32_t k = 0; k < b->n_pieces; k++)
            if (pieces_meet(&a->pieces[i], &b->pieces[k])) return true;
    return false;
}

static bool touches(const struct fake_op *op, uintptr_t first, size_t bytes)
{
    if (op->low >= first + bytes || first >= op->high) return false;
    for (uint32_t i = 0; i < op->n_pieces; i++)
        if (meet(op->pieces[i].dst, op->pieces[i].bytes, first, bytes) ||
            meet(op->pieces[i].src, op->pieces[i].bytes, first, bytes))
            return true;
    return false;
}

bool fake_in_use(uintptr_t first, size_t bytes)
{
    for (uint32_t i = 0; i < FAKE_STREAMS; i++)
        for (const struct fake_op *op = streams[i].first; op; op = op->next)
            if (op->number > fake.host.n[i] && touches(op, first, bytes)) return true;
    return false;
}

static void check_order(const char *name, const struct stream *s, const struct fake_clock *clock,
                        const struct fake_op *op)
{
    for (uint32_t i = 0; i < FAKE_STREAMS; i++)
        for (const struct fake_op *other = streams[i].first; i != s->index && other;
             other = other->next)
            if (other->number > clock->n[i] && ops_meet(op, other))
                fake_die("%s: no event between this copy and one of another stream", name);
}

static void add_span(struct fake_op *op, const struct fake_span *span)
{
    struct fake_piece *p = &op->pieces[op->n_pieces++];
    *p = (struct fake_piece){.bytes = span->bytes};
    *(span->writes ? &p->dst : &p->src) = span->first;
    if (!op->high || span->first < op->low) op->low = span->first;
    if (span->first + span->bytes > op->high) op->high = span->first + span->bytes;
    n_pieces++;
}

/* What an operator finds out about its memory when its turn has come. */
static void add_late(struct stream *s, struct fake_op *op)
{
    static struct fake_span late[FAKE_SPANS]; /* under the lock */
    uint32_t n = op->work.late ? op->work.late(op->work.arg, late) : 0;
    if (n == 0) return;
    op->pieces = realloc(op->pieces, (op->n_pieces + n) * sizeof *op->pieces);
    if (!op->pieces) fake_die("out of memory");
    for (uint32_t i = 0; i < n; i++)
        add_span(op, &late[i]);
    check_order("an operator", s, &op->clock, op);
}

/* ---- running ---- */

static uint64_t hash_source(const struct fake_op *op)
{
    uint64_t h = 1469598103934665603u;
    for (uint32_t i = 0; i < op->n_pieces; i++)
        for (size_t k = 0; k < op->pieces[i].bytes; k++)
            h = (h ^ op->pieces[i].from[k]) * 1099511628211u;
    return h | 1;
}

static void pause_before(struct stream *s)
{
    s->dice = s->dice * 6364136223846793005u + 1442695040888963407u;
    uint64_t r = s->dice >> 33;
    if (r % DELAY_ONE_IN == 0) usleep((useconds_t)(r / DELAY_ONE_IN % DELAY_US));
}

static bool must_pause(void)
{
    return fake.held || (fake.lazy && !fake.n_waiting);
}

/* Under the lock, which is released while it runs. */
static void run_next(struct stream *s)
{
    struct fake_op *op = s->next;
    while (op->awaits && !op->awaits->passed)
        pthread_cond_wait(&fake.changed, &fake.lock);
    while (op->n_pieces && must_pause())
        pthread_cond_wait(&fake.changed, &fake.lock);
    if (op->n_pieces) {
        bool many = n_pieces > PIECES_SEEN;
        add_late(s, op);
        pthread_mutex_unlock(&fake.lock);
        if (!many) pause_before(s);
        if (op->hash && hash_source(op) != op->hash)
            fake_die("the source of a copy changed before it ran");
        for (uint32_t i = 0; i < op->n_pieces && !op->work.run; i++)
            memcpy(op->pieces[i].to, op->pieces[i].from, op->pieces[i].bytes);
        if (op->work.run) op->work.run(op->work.arg);
        pthread_mutex_lock(&fake.lock);
    }
    if (op->sets) op->sets->passed = true;
    s->next = op->next;
    if (op->sets || !s->next) pthread_cond_broadcast(&fake.changed);
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&fake.lock);
    while (s->next || !s->closing) {
        if (s->next)
            run_next(s);
        else
            pthread_cond_wait(&s->work, &fake.lock);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

static struct stream *stream_of(const char *name, void *handle)
{
    struct stream *s = handle;
    if (s < streams || s >= streams + FAKE_STREAMS || !s->open)
        fake_die("%s: %p is no stream, or was destroyed", name, handle);
    if (s->device != fake_device(name))
        fake_die("%s: a stream of device %d on device %d", name, s->device, fake_device(name));
    return s;
}

static struct fake_op *new_op(void)
{
    struct fake_op *op = calloc(1, sizeof *op);
    if (!op) fake_die("out of memory");
    return op;
}

static void push(struct stream *s, struct fake_op *op)
{
    op->number = ++s->clock.n[s->index];
    *s->last = op;
    s->last = &op->next;
    if (!s->next) s->next = op;
    pthread_cond_signal(&s->work);
}

/* ---- copies ---- */

static void add_piece(const char *name, struct fake_op *op, struct tsr_copy c, uint32_t kind)
{
    uintptr_t dst = (uintptr_t)c.dst, src = (uintptr_t)c.src;
    if (kind < TSRI_ACL_HOST_TO_DEVICE || kind > TSRI_ACL_DEVICE_TO_DEVICE)
        fake_die("%s: wrong kind %u", name, kind);
    if (!c.bytes) fake_die("%s: zero bytes", name);
    if (meet(dst, c.bytes, src, c.bytes)) fake_die("%s: source and target overlap", name);
    if (kind == TSRI_ACL_DEVICE_TO_DEVICE && (dst | src) % 64)
        fake_die("%s: %#zx to %#zx within the device: not multiples of 64", name, (size_t)src,
                 (size_t)dst);
    struct fake_piece *p = &op->pieces[op->n_pieces++];
    *p = (struct fake_piece){.dst = dst, .src = src, .bytes = c.bytes};
    p->to = fake_bytes(name, dst, c.bytes, kind != TSRI_ACL_DEVICE_TO_HOST);
    p->from = fake_bytes(name, src, c.bytes, kind != TSRI_ACL_HOST_TO_DEVICE);
    for (uint32_t i = 0; i < 2; i++) {
        uintptr_t first = i ? dst : src;
        if (!op->high || first < op->low) op->low = first;
        if (first + c.bytes > op->high) op->high = first + c.bytes;
    }
}

/* Looks at every piece that is on its way; with very many of them it is taken for granted. */
static bool any_in_use(const struct fake_op *op, bool source)
{
    if (n_pieces > PIECES_SEEN) return true;
    for (uint32_t i = 0; i < op->n_pieces; i++)
        if (fake_in_use(source ? op->pieces[i].src : op->pieces[i].dst, op->pieces[i].bytes))
            return true;
    return false;
}

/* Host memory is the caller's as well: what it must not change is remembered, and what it must not
 * look at yet is no longer what it was. */
static void guard_host(struct fake_op *op, uint32_t kind)
{
    if (kind == TSRI_ACL_HOST_TO_DEVICE && !any_in_use(op, true)) op->hash = hash_source(op);
    if (kind == TSRI_ACL_DEVICE_TO_HOST && !any_in_use(op, false))
        for (uint32_t i = 0; i < op->n_pieces; i++)
            memset(op->pieces[i].to, POISON, op->pieces[i].bytes);
}

static void queue_copies(const char *name, struct stream *s, const struct tsr_copy *copies,
                         size_t n, uint32_t kind)
{
    struct fake_op *op = new_op();
    op->pieces = calloc(n, sizeof *op->pieces);
    if (!op->pieces) fake_die("out of memory");
    for (size_t i = 0; i < n; i++)
        add_piece(name, op, copies[i], kind);
    merge(&s->clock, &fake.host);
    check_order(name, s, &s->clock, op);
    guard_host(op, kind);
    n_pieces += op->n_pieces;
    push(s, op);
}

void fake_queue_work(const char *name, void *stream, const struct fake_work *work,
                     const struct fake_span *spans, uint32_t n)
{
    struct stream *s = stream_of(name, stream);
    struct fake_op *op = new_op();
    op->work = *work;
    op->pieces = calloc(n, sizeof *op->pieces);
    if (!op->pieces) fake_die("out of memory");
    for (uint32_t i = 0; i < n; i++)
        add_span(op, &spans[i]);
    merge(&s->clock, &fake.host);
    op->clock = s->clock;
    check_order(name, s, &op->clock, op);
    fake.n_operators++;
    push(s, op);
}

TSR_API int aclrtMemcpyAsync(void *dst, size_t dst_max, const void *src, size_t bytes,
                             uint32_t kind, void *stream)
{
    int e = fake_enter("aclrtMemcpyAsync");
    if (e) return e;
    if (dst_max < bytes) fake_die("aclrtMemcpyAsync: %zu bytes to %zu", bytes, dst_max);
    queue_copies("aclrtMemcpyAsync", stream_of("aclrtMemcpyAsync", stream),
                 &(struct tsr_copy){dst, src, bytes}, 1, kind);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static uint32_t kind_of(const struct tsri_acl_batch *a)
{
    bool up = a->dst.type == TSRI_ACL_AT_DEVICE && a->src.type == TSRI_ACL_AT_HOST;
    bool down = a->dst.type == TSRI_ACL_AT_HOST && a->src.type == TSRI_ACL_AT_DEVICE;
    if (!up && !down) fake_die("aclrtMemcpyBatchAsync: from %u to %u", a->src.type, a->dst.type);
    uint32_t id = up ? a->dst.id : a->src.id;
    if ((int32_t)id != fake_device("aclrtMemcpyBatchAsync"))
        fake_die("aclrtMemcpyBatchAsync: device %u", id);
    return up ? TSRI_ACL_HOST_TO_DEVICE : TSRI_ACL_DEVICE_TO_HOST;
}

/* A call that fails has queued the first half. */
/* NOLINTNEXTLINE(readability-function-size): the library's signature */
TSR_API int aclrtMemcpyBatchAsync(void **dsts, size_t *dst_maxs, void **srcs, size_t *sizes,
                                  size_t n, struct tsri_acl_batch *attrs, size_t *attr_indexes,
                                  size_t n_attrs, size_t *fail_index, void *stream)
{
    const char *name = "aclrtMemcpyBatchAsync";
    if (getenv("FAKEACL_NO_BATCH")) return TSRI_ACL_NOT_SUPPORTED;
    struct tsr_copy copies[BATCH_MAX];
    int e = fake_enter(name);
    if (e) pthread_mutex_lock(&fake.lock);
    struct stream *s = stream_of(name, stream);
    if (n == 0 || n > BATCH_MAX || n_attrs != 1 || attr_indexes[0] != 0 || !fail_index)
        fake_die("%s: %zu copies, %zu attributes", name, n, n_attrs);
    fake.n_batches++;
    for (size_t i = 0; i < n; i++) {
        if (dst_maxs[i] < sizes[i]) fake_die("%s: %zu bytes to %zu", name, sizes[i], dst_maxs[i]);
        copies[i] = (struct tsr_copy){dsts[i], srcs[i], sizes[i]};
    }
    *fail_index = e ? n / 2 : SIZE_MAX;
    size_t n_queued = e ? n / 2 : n;
    if (n_queued) queue_copies(name, s, copies, n_queued, kind_of(attrs));
    pthread_mutex_unlock(&fake.lock);
    return e;
}

/* ---- streams ---- */

TSR_API int aclrtCreateStreamWithConfig(void **out, uint32_t priority, uint32_t flags)
{
    int e = fake_enter("aclrtCreateStreamWithConfig");
    if (e) return e;
    uint32_t i = 0;
    while (i < FAKE_STREAMS && streams[i].open)
        i++;
    if (i == FAKE_STREAMS) fake_die("more than %u streams", FAKE_STREAMS);
    if (priority > TSRI_ACL_PRIORITY_LEAST || flags > 0x3f)
        fake_die("aclrtCreateStreamWithConfig: priority %u, flags %#x", priority, flags);
    struct stream *s = &streams[i];
    struct fake_clock before = s->clock; /* numbers go on, so that old clocks stay true */
    *s = (struct stream){.index = i, .open = true, .clock = before};
    s->device = fake_device("aclrtCreateStreamWithConfig");
    s->last = &s->first;
    s->dice = i * 1000003u + before.n[i] + 1;
    pthread_cond_init(&s->work, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0) fake_die("cannot start a thread");
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    *out = s;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* What is queued runs first. */
static void end_stream(struct stream *s)
{
    pthread_mutex_lock(&fake.lock);
    s->closing = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&fake.lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&fake.lock);
    host_learns(&s->clock);
    pthread_cond_destroy(&s->work);
    s->open = false;
    pthread_mutex_unlock(&fake.lock);
}

TSR_API int aclrtDestroyStream(void *stream)
{
    pthread_mutex_lock(&fake.lock);
    struct stream *s = stream_of("aclrtDestroyStream", stream);
    if (s->clock.n[s->index] > fake.host.n[s->index])
        fake_die("aclrtDestroyStream: nobody has waited for what was queued");
    pthread_mutex_unlock(&fake.lock);
    end_stream(s);
    return 0;
}

static void wait_begins(void)
{
    fake.n_waiting++;
    pthread_cond_broadcast(&fake.changed);
}

/* A failed wait has not waited. */
TSR_API int aclrtSynchronizeStream(void *stream)
{
    int e = fake_enter("aclrtSynchronizeStream");
    if (e) return e;
    struct stream *s = stream_of("aclrtSynchronizeStream", stream);
    struct fake_clock upto = s->clock;
    wait_begins();
    while (s->next && s->next->number <= upto.n[s->index])
        pthread_cond_wait(&fake.changed, &fake.lock);
    fake.n_waiting--;
    host_learns(&upto);
    fake_check_edges();
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* ---- events ---- */

TSR_API int aclrtCreateEventExWithFlag(void **out, uint32_t flags)
{
    int e = fake_enter("aclrtCreateEventExWithFlag");
    if (e) return e;
    if (flags != TSRI_ACL_EVENT_SYNC) fake_die("aclrtCreateEventExWithFlag: flags %#x", flags);
    struct event *event = calloc(1, sizeof *event);
    if (!event) fake_die("out of memory");
    event->device = fake_device("aclrtCreateEventExWithFlag");
    event->next = events;
    events = event;
    *out = event;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

TSR_API int aclrtDestroyEvent(void *handle)
{
    pthread_mutex_lock(&fake.lock);
    struct event **at = &events;
    while (*at && *at != handle)
        at = &(*at)->next;
    struct event *event = *at;
    if (!event) fake_die("aclrtDestroyEvent: %p is no event, or was destroyed", handle);
    *at = event->next;
    mark_drop(event->mark);
    free(event);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static struct event *event_of(const char *name, void *handle)
{
    struct event *event = events;
    while (event && event != handle)
        event = event->next;
    if (!event) fake_die("%s: %p is no event, or was destroyed", name, handle);
    if (event->device != fake_device(name)) fake_die("%s: not its device", name);
    return event;
}

TSR_API int aclrtRecordEvent(void *handle, void *stream)
{
    int e = fake_enter("aclrtRecordEvent");
    if (e) return e;
    struct event *event = event_of("aclrtRecordEvent", handle);
    struct stream *s = stream_of("aclrtRecordEvent", stream);
    struct fake_op *op = new_op();
    struct fake_mark *m = calloc(1, sizeof *m);
    if (!m) fake_die("out of memory");
    push(s, op);
    *m = (struct fake_mark){.refs = 2, .clock = s->clock};
    mark_drop(event->mark);
    event->mark = op->sets = m;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

TSR_API int aclrtStreamWaitEvent(void *stream, void *handle)
{
    int e = fake_enter("aclrtStreamWaitEvent");
    if (e) return e;
    struct event *event = event_of("aclrtStreamWaitEvent", handle);
    struct stream *s = stream_of("aclrtStreamWaitEvent", stream);
    if (!event->mark) fake_die("aclrtStreamWaitEvent: the event was never recorded");
    struct fake_op *op = new_op();
    op->awaits = event->mark;
    event->mark->refs++;
    push(s, op);
    merge(&s->clock, &event->mark->clock);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

TSR_API int aclrtQueryEventStatus(void *handle, uint32_t *status)
{
    int e = fake_enter("aclrtQueryEventStatus");
    if (e) return e;
    struct event *event = event_of("aclrtQueryEventStatus", handle);
    if (!event->mark) fake_die("aclrtQueryEventStatus: the event was never recorded");
    struct fake_mark *mark = event->mark;
    mark->refs++;
    if (!mark->passed && fake.lazy && !fake.held) {
        wait_begins();
        while (!mark->passed)
            pthread_cond_wait(&fake.changed, &fake.lock);
        fake.n_waiting--;
    }
    *status = mark->passed ? TSRI_ACL_EVENT_COMPLETE : 0;
    if (mark->passed) host_learns(&mark->clock);
    mark_drop(mark);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

uint32_t fake_queue_forget(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < FAKE_STREAMS; i++) {
        if (!streams[i].open) continue;
        end_stream(&streams[i]);
        n++;
    }
    for (struct event *e = events, *next; e; e = next, n++) {
        next = e->next;
        mark_drop(e->mark);
        free(e);
    }
    events = NULL;
    return n;
}

void fake_queue_check_closed(void)
{
    uint32_t n = 0, n_events = 0;
    for (const struct event *e = events; e; e = e->next)
        n_events++;
    for (uint32_t i = 0; i < FAKE_STREAMS; i++)
        n += streams[i].open;
    if (n || n_events) fake_die("%u streams, %u events were not closed", n, n_events);
    if (fake.n_tensors || fake.n_executors)
        fake_die("%u tensors, %u executors were not given back", fake.n_tensors, fake.n_executors);
}
