/* link.c - a client's connection to a server: connects by itself and again when it was lost, sends
 * requests of many threads and hands every reply to who waits for it. There is no thread here: of
 * those who wait, one reads for all, so that a lone caller has its answer without a switch.
 *
 * Nothing waits longer than its deadline. While an answer is overdue the next callers are refused
 * at once instead of waiting, too, until it has come or the connection is given up. */
#include "served/link.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWERS_MAX 64u
#define IN_BYTES ((size_t)64 << 10)
#define KEPT_BYTES ((size_t)1 << 20) /* a buffer that has grown beyond this is not kept */
#define RETRY_NS_MIN 20000000u
#define RETRY_NS_MAX 1000000000u

enum state { AWAY, GREETING, OPEN };

struct buffer {
    uint8_t *data;
    size_t n, room;
};

enum answer_state { ANSWER_FREE, ANSWER_WAITING, ANSWER_HERE, ANSWER_LOST };
struct answer {
    struct tsri_answer base; /* first */
    struct tsri_link *link;
    uint64_t id;
    uint16_t type; /* of the request */
    enum answer_state state;
    bool late; /* it was waited for in vain, and has not come since */
    struct buffer frame;
};

struct tsri_link {
    char path[TSRI_SOCKET_PATH_BYTES];
    char token[TSRI_WIRE_TOKEN_MAX + 1];
    uint32_t owner;
    uint64_t patience_ns;
    size_t staging_bytes;
    struct tsri_shared_pools *pools;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock: */
    struct tsri_region staging; /* of the next session */
    enum state state;
    int fd;
    bool broken;           /* to be closed as soon as nobody uses fd */
    bool reading, sending; /* somebody does: `in`, or `out`, and fd are theirs */
    uint64_t session, next_id;
    struct tsri_mapping *mapping; /* of the session */
    uint64_t since_ns;            /* GREETING: since when; AWAY: when to try again */
    uint64_t retry_ns;
    uint32_t n_late; /* answers that are overdue */
    uint64_t late_ns;
    int refused; /* why the server does not want us, or 0 */
    char why[256];
    struct buffer in, out;
    struct tsri_wire_parts parts; /* of what is being sent: of `out`, and of the caller's memory */
    int fds[2];
    uint32_t n_fds;
    struct answer answers[ANSWERS_MAX];
};

/* ---- time and memory ---- */

static bool buffer_room(struct buffer *b, size_t bytes)
{
    if (b->room >= bytes) return true;
    uint8_t *data = tsri_alloc(1, tsri_align_up(bytes, 4096));
    if (!data) return false;
    if (b->n) memcpy(data, b->data, b->n);
    tsri_free(b->data);
    b->data = data;
    b->room = tsri_align_up(bytes, 4096);
    return true;
}

static void buffer_trim(struct buffer *b)
{
    b->n = 0;
    if (b->room <= KEPT_BYTES) return;
    tsri_free(b->data);
    *b = (struct buffer){0};
}

static int left_ms(uint64_t until_ns)
{
    uint64_t now = tsri_now_ns();
    if (now >= until_ns) return 0;
    uint64_t ms = (until_ns - now + 999999) / 1000000;
    return ms > 60000 ? 60000 : (int)ms;
}

/* Waits for a change until then, which may be over: 0 is a time like any other here. */
static void wait_change(struct tsri_link *l, uint64_t until_ns)
{
    (void)tsri_cond_wait(&l->changed, &l->lock, until_ns ? until_ns : 1);
}

/* ---- mappings ---- */

void tsri_mapping_release(struct tsri_mapping *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1) return;
    tsri_shared_pool_release(m->pool);
    tsri_shared_pool_release(m->staging);
    tsri_region_fini(&m->control);
    tsri_free(m);
}

bool tsri_mapping_holds(const struct tsri_mapping *m)
{
    const _Atomic uint64_t *words = (const _Atomic uint64_t *)(const void *)m->control.data;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&words[m->welcome.slot], memory_order_relaxed) == m->welcome.word;
}

/* Takes the staging area over, if there is one. */
static int mapping_open(struct tsri_mapping **out, struct tsri_link *l,
                        const struct tsri_wire_welcome *w)
{
    struct tsri_mapping *m = tsri_alloc(1, sizeof *m);
    if (!m) return TSR_ENOMEM;
    m->welcome = *w;
    atomic_init(&m->refs, 1);
    int e = 0;
    if (w->page_bytes == 0 || w->pool_bytes / w->page_bytes > UINT32_MAX ||
        ((uint64_t)w->slot + 1) * sizeof(uint64_t) > w->control_bytes)
        e = tsri_fail(TSR_EINVAL, "the server sent an invalid welcome");
    if (e == 0) e = tsri_shared_pool_take(&m->pool, l->pools, w, l->fds[0]);
    if (e == 0) e = tsri_region_init_reader(&m->control, l->fds[1], (size_t)w->control_bytes);
    if (e == 0 && l->staging.data) e = tsri_shared_pool_give(&m->staging, l->pools, &l->staging);
    if (e) {
        tsri_mapping_release(m);
        return e;
    }
    *out = m;
    return 0;
}

struct tsri_mapping *tsri_link_mapping(struct tsri_link *l, uint64_t session)
{
    pthread_mutex_lock(&l->lock);
    struct tsri_mapping *m = l->state == OPEN && l->session == session ? l->mapping : NULL;
    if (m) atomic_fetch_add(&m->refs, 1);
    pthread_mutex_unlock(&l->lock);
    return m;
}

/* ---- losing it; everything from here on under lock, unless said ---- */

/* Closes what is broken once nobody uses it. */
static void settle(struct tsri_link *l)
{
    if (!l->broken || l->reading || l->sending) return;
    close(l->fd);
    for (uint32_t i = 0; i < l->n_fds; i++)
        close(l->fds[i]);
    l->n_fds = 0;
    l->fd = -1;
    l->broken = false;
    l->state = AWAY;
    buffer_trim(&l->in);
    buffer_trim(&l->out);
}

static void give_up(struct tsri_link *l, const char *why)
{
    if (l->fd < 0 || l->broken) return;
    tsri_log(l->state == OPEN ? TSR_LOG_WARN : TSR_LOG_DEBUG,
             "server at %s: %s; continuing without it", l->path, why);
    l->broken = true;
    shutdown(l->fd, SHUT_RDWR); /* wakes whoever waits for it */
    if (l->state == OPEN) l->retry_ns = RETRY_NS_MIN;
    l->since_ns = tsri_now_ns() + l->retry_ns;
    l->retry_ns = l->retry_ns * 2 > RETRY_NS_MAX ? RETRY_NS_MAX : l->retry_ns * 2;
    l->state = AWAY;
    l->n_late = 0;
    tsri_mapping_release(l->mapping);
    l->mapping = NULL;
    for (uint32_t i = 0; i < ANSWERS_MAX; i++)
        if (l->answers[i].state == ANSWER_WAITING) l->answers[i].state = ANSWER_LOST;
    pthread_cond_broadcast(&l->changed);
    settle(l);
}

static void drop(struct tsri_link *l, uint64_t session, const char *why)
{
    if (l->state == OPEN && l->session == session) give_up(l, why);
}

/* ---- reading ---- */

/* Counts an answer that has not come in time; late_ns is since when there is one. */
static void note_late(struct tsri_link *l)
{
    if (l->n_late++ == 0) l->late_ns = tsri_now_ns();
}

static void take_reply(struct tsri_link *l, const struct tsri_wire_head *head, const uint8_t *frame)
{
    size_t bytes = TSRI_WIRE_HEAD_BYTES + (size_t)head->body_bytes;
    for (uint32_t i = 0; i < ANSWERS_MAX; i++) {
        struct answer *a = &l->answers[i];
        if (a->state != ANSWER_WAITING || a->id != head->id) continue;
        if (a->late && l->n_late) l->n_late--;
        a->frame.n = 0;
        a->state = ANSWER_LOST;
        if (head->type == (a->type | TSRI_WIRE_REPLY) && buffer_room(&a->frame, bytes)) {
            memcpy(a->frame.data, frame, bytes);
            if (tsri_reply_decode(&a->base.reply, head, a->frame.data + TSRI_WIRE_HEAD_BYTES) == 0)
                a->state = ANSWER_HERE;
        }
        return;
    }
    if (l->n_late) l->n_late--;
}

/* The answer to hello: now, or never. */
static void take_welcome(struct tsri_link *l, const struct tsri_wire_head *head,
                         const uint8_t *frame)
{
    struct tsri_reply r;
    int e = tsri_reply_decode(&r, head, frame + TSRI_WIRE_HEAD_BYTES);
    if (e == 0 && head->type != (TSRI_WIRE_HELLO | TSRI_WIRE_REPLY))
        e = tsri_fail(TSR_EINVAL, "the server sent an unexpected reply to hello");
    if (e == 0 && r.status < 0)
        e = tsri_fail(r.status, "%.*s", (int)tsri_min_u32(r.text_bytes, 200), r.text);
    if (e == 0 && l->n_fds != 2) e = tsri_fail(TSR_EINVAL, "the server shares no memory");
    if (e == 0) e = mapping_open(&l->mapping, l, &r.welcome);
    for (uint32_t i = 0; i < l->n_fds; i++)
        close(l->fds[i]);
    l->n_fds = 0;
    l->refused = e;
    if (e) {
        snprintf(l->why, sizeof l->why, "%s", tsr_errmsg());
        give_up(l, tsr_errmsg());
        return;
    }
    l->state = OPEN;
    l->session++;
    l->n_late = 0;
    l->retry_ns = RETRY_NS_MIN;
    tsri_log(TSR_LOG_INFO, "server at %s: connected", l->path);
}

/* Hands out the whole frames of `in`. */
static void take_frames(struct tsri_link *l)
{
    size_t at = 0;
    struct tsri_wire_head head = {0};
    while (!l->broken && l->in.n - at >= TSRI_WIRE_HEAD_BYTES) {
        if (tsri_wire_head_get(l->in.data + at, &head) != 0 ||
            head.body_bytes > TSRI_WIRE_BODY_MAX) {
            give_up(l, "protocol error");
            break;
        }
        size_t bytes = TSRI_WIRE_HEAD_BYTES + (size_t)head.body_bytes;
        if (l->in.n - at < bytes) {
            if (!buffer_room(&l->in, at + bytes)) give_up(l, "out of memory for its reply");
            break;
        }
        if (l->state == GREETING)
            take_welcome(l, &head, l->in.data + at);
        else
            take_reply(l, &head, l->in.data + at);
        at += bytes;
    }
    memmove(l->in.data, l->in.data + at, l->in.n - at);
    l->in.n -= at;
    if (l->in.n == 0) buffer_trim(&l->in);
}

/* Waits for bytes until then and hands out what they complete. The caller has seen that nobody else
 * is reading. Lets the lock go while it waits. */
static void read_some(struct tsri_link *l, uint64_t until_ns)
{
    l->reading = true;
    int fd = l->fd;
    bool greeting = l->state == GREETING;
    bool room = buffer_room(&l->in, l->in.n + IN_BYTES);
    pthread_mutex_unlock(&l->lock);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t got = -1;
    int err = EAGAIN, ready = room ? poll(&p, 1, left_ms(until_ns)) : 0;
    if (ready > 0) {
        size_t bytes = l->in.room - l->in.n;
        got = greeting ? tsri_socket_recv_fds(fd, l->in.data + l->in.n, bytes, l->fds, 2, &l->n_fds)
                       : recv(fd, l->in.data + l->in.n, bytes, MSG_DONTWAIT);
        err = errno;
    }
    pthread_mutex_lock(&l->lock);
    if (got > 0) {
        l->in.n += (size_t)got;
        take_frames(l);
    } else if (ready > 0 && (got == 0 || (err != EAGAIN && err != EINTR))) {
        give_up(l, got == 0 ? "it closed the connection" : strerror(err));
    }
    l->reading = false;
    settle(l);
    pthread_cond_broadcast(&l->changed);
}

/* What has come already. */
static void read_ready(struct tsri_link *l)
{
    if (!l->reading && l->fd >= 0 && !l->broken) read_some(l, 0);
}

/* ---- sending ---- */

/* Without the lock. All of it by then, or an errno. */
static int send_all(int fd, struct tsri_wire_parts *p, uint64_t until_ns)
{
    for (uint32_t first = 0; first < p->n;) {
        ssize_t sent = tsri_socket_send_parts(fd, p->list + first, p->n - first);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            if (poll(&wait, 1, left_ms(until_ns)) <= 0) return ETIMEDOUT;
            continue;
        }
        if (sent <= 0) return errno;
        size_t done = (size_t)sent;
        while (first < p->n && done >= p->list[first].iov_len)
            done -= p->list[first++].iov_len;
        if (first == p->n) break;
        p->list[first].iov_base = (uint8_t *)p->list[first].iov_base + done;
        p->list[first].iov_len -= done;
    }
    return 0;
}

static int make_staging(struct tsri_link *l)
{
    if (!l->staging_bytes || l->staging.data) return 0;
    return tsri_region_init_shared(&l->staging, "tessera-staging", l->staging_bytes);
}

static void greet(struct tsri_link *l)
{
    struct tsri_request r;
    uint8_t frame[TSRI_WIRE_HEAD_BYTES + 32 + TSRI_WIRE_TOKEN_MAX];
    size_t bytes;
    l->fd = make_staging(l);
    if (l->fd == 0) l->fd = tsri_socket_connect(l->path, l->owner);
    if (l->fd < 0) {
        if (l->fd == TSR_EPERM && !l->refused) {
            tsri_log(TSR_LOG_WARN, "no server: %s", tsr_errmsg());
            l->refused = TSR_EPERM;
            snprintf(l->why, sizeof l->why, "%s", tsr_errmsg());
        }
        l->fd = -1;
        l->since_ns = tsri_now_ns() + l->retry_ns;
        l->retry_ns = l->retry_ns * 2 > RETRY_NS_MAX ? RETRY_NS_MAX : l->retry_ns * 2;
        return;
    }
    memset(&r, 0, offsetof(struct tsri_request, extra));
    r.type = TSRI_WIRE_HELLO;
    r.hello = (struct tsri_wire_hello){.version_min = TSRI_WIRE_VERSION_MIN,
                                       .version_max = TSRI_WIRE_VERSION_MAX,
                                       .staging_bytes = l->staging.data ? l->staging.bytes : 0,
                                       .token = l->token,
                                       .token_bytes = (uint32_t)strlen(l->token)};
    int e = tsri_request_bytes(&r, &bytes);
    TSR_ASSERT(e == 0 && bytes <= sizeof frame);
    tsri_request_encode(&r, ++l->next_id, 0, frame, bytes);
    l->state = GREETING;
    l->since_ns = tsri_now_ns();
    /* Whether it arrives or not: who may not come at all is told so without being asked, and the
     * few bytes fit in a fresh socket. */
    (void)tsri_socket_send_fds(l->fd, frame, bytes, &l->staging.fd, l->staging.data ? 1 : 0);
}

/* Brings the connection forward without waiting; true when it is there. */
static bool is_open(struct tsri_link *l)
{
    if (l->state == AWAY && l->fd < 0 && tsri_now_ns() >= l->since_ns) greet(l);
    if (l->state == GREETING) {
        read_ready(l);
        if (l->state == GREETING && tsri_now_ns() - l->since_ns > l->patience_ns)
            give_up(l, "no response");
    }
    return l->state == OPEN;
}

static int not_there(const struct tsri_link *l)
{
    if (l->refused) return tsri_fail(l->refused, "server at %s: %s", l->path, l->why);
    return tsri_fail(TSR_EAGAIN, "no server at %s", l->path);
}

/* An answer is overdue: it may have come meanwhile. */
static bool is_late(struct tsri_link *l)
{
    if (l->n_late) read_ready(l);
    if (l->n_late && tsri_now_ns() - l->late_ns > l->patience_ns) give_up(l, "no response");
    return l->n_late > 0;
}

static int refuse_late(struct tsri_link *l)
{
    if (!is_late(l)) return 0;
    return tsri_fail(TSR_EAGAIN, "the server at %s missed the deadline", l->path);
}

static int lost(const struct tsri_link *l)
{
    return tsri_fail(TSR_EAGAIN, "lost the connection to %s", l->path);
}

/* Becomes the one who sends, or says why not. */
static int begin_send(struct tsri_link *l, uint64_t session, uint64_t until_ns)
{
    while (l->state == OPEN && l->session == session && l->sending) {
        if (tsri_now_ns() >= until_ns) return tsri_fail(TSR_ETIME, "the server is too slow");
        wait_change(l, until_ns);
    }
    if (l->state != OPEN || l->session != session) return lost(l);
    l->sending = true;
    return 0;
}

/* `out` is filled, and `parts` say what of it, and of the request's own arrays, is sent. */
static int end_send(struct tsri_link *l, uint64_t until_ns)
{
    int fd = l->fd;
    pthread_mutex_unlock(&l->lock);
    int err = send_all(fd, &l->parts, until_ns);
    pthread_mutex_lock(&l->lock);
    l->sending = false;
    buffer_trim(&l->out);
    if (err) give_up(l, err == ETIMEDOUT ? "it does not read its messages" : strerror(err));
    settle(l);
    pthread_cond_broadcast(&l->changed);
    return err ? lost(l) : 0;
}

static int encode(struct tsri_link *l, struct tsri_request *r, uint64_t id, int32_t status)
{
    size_t bytes;
    int e = tsri_request_parts_bytes(r, &bytes);
    if (e) return e;
    if (!buffer_room(&l->out, bytes)) return TSR_ENOMEM;
    tsri_request_encode_parts(r, id, status, l->out.data, &l->parts);
    l->out.n = bytes;
    return 0;
}

static struct answer *free_answer(struct tsri_link *l)
{
    for (uint32_t i = 0; i < ANSWERS_MAX; i++)
        if (l->answers[i].state == ANSWER_FREE) return &l->answers[i];
    return NULL;
}

int tsri_link_start(struct tsri_link *l, uint64_t session, struct tsri_request *r,
                    uint64_t until_ns, struct tsri_answer **out)
{
    *out = NULL;
    pthread_mutex_lock(&l->lock);
    int e = refuse_late(l);
    if (e == 0) e = begin_send(l, session, until_ns);
    if (e) {
        pthread_mutex_unlock(&l->lock);
        return e;
    }
    struct answer *a = free_answer(l);
    uint64_t id = ++l->next_id;
    e = a ? encode(l, r, id, 0)
          : tsri_fail(TSR_EAGAIN, "too many calls in flight (%u)", ANSWERS_MAX);
    if (e) {
        l->sending = false;
        settle(l);
        pthread_cond_broadcast(&l->changed);
    } else {
        a->state = ANSWER_WAITING; /* before it is sent: the reply may be quicker than we are */
        a->id = id;
        a->type = r->type;
        a->late = false;
        a->link = l;
        e = end_send(l, until_ns);
        if (e) a->state = ANSWER_FREE;
    }
    pthread_mutex_unlock(&l->lock);
    if (e == 0) *out = &a->base;
    return e;
}

void tsri_link_tell(struct tsri_link *l, uint64_t session, struct tsri_request *r)
{
    uint64_t until_ns = tsri_now_ns() + l->patience_ns;
    pthread_mutex_lock(&l->lock);
    int e = begin_send(l, session, until_ns);
    if (e == 0) {
        e = encode(l, r, ++l->next_id, TSRI_WIRE_QUIET);
        if (e)
            l->sending = false;
        else
            e = end_send(l, until_ns);
    }
    if (e) drop(l, session, "a message could not be sent");
    pthread_mutex_unlock(&l->lock);
}

/* ---- waiting ---- */

int tsri_link_wait(struct tsri_answer *answer, uint64_t until_ns)
{
    struct answer *a = (struct answer *)answer;
    struct tsri_link *l = a->link;
    pthread_mutex_lock(&l->lock);
    while (a->state == ANSWER_WAITING && tsri_now_ns() < until_ns) {
        if (l->reading)
            wait_change(l, until_ns);
        else
            read_some(l, until_ns);
    }
    enum answer_state state = a->state;
    if (state == ANSWER_WAITING && !a->late) {
        a->late = true;
        note_late(l);
    }
    pthread_mutex_unlock(&l->lock);
    if (state == ANSWER_WAITING) return tsri_fail(TSR_ETIME, "the server did not respond in time");
    if (state == ANSWER_LOST) return lost(l);
    const struct tsri_reply *r = &answer->reply;
    if (r->status < 0)
        return tsri_fail(r->status, "%.*s", (int)tsri_min_u32(r->text_bytes, 400), r->text);
    return r->status;
}

void tsri_link_end(struct tsri_answer *answer)
{
    if (!answer) return;
    struct answer *a = (struct answer *)answer;
    struct tsri_link *l = a->link;
    pthread_mutex_lock(&l->lock);
    if (a->state == ANSWER_WAITING && !a->late) note_late(l);
    a->state = ANSWER_FREE;
    buffer_trim(&a->frame);
    pthread_mutex_unlock(&l->lock);
}

void tsri_link_drop(struct tsri_link *l, uint64_t session, const char *why)
{
    pthread_mutex_lock(&l->lock);
    drop(l, session, why);
    pthread_mutex_unlock(&l->lock);
}

uint64_t tsri_link_session(struct tsri_link *l)
{
    pthread_mutex_lock(&l->lock);
    uint64_t session = is_open(l) ? l->session : 0;
    if (!session) not_there(l);
    pthread_mutex_unlock(&l->lock);
    return session;
}

uint64_t tsri_link_life(struct tsri_link *l, uint64_t session, uint64_t *n_lost)
{
    pthread_mutex_lock(&l->lock);
    bool on = l->state == OPEN && l->session == session;
    uint64_t life = on ? l->mapping->welcome.boot_id : 0;
    *n_lost = on ? l->mapping->welcome.n_lost : 0;
    pthread_mutex_unlock(&l->lock);
    return life;
}

int tsri_link_await(struct tsri_link *l, uint64_t until_ns)
{
    pthread_mutex_lock(&l->lock);
    while (!is_open(l) && tsri_now_ns() < until_ns && !l->refused) {
        if (l->state == GREETING && !l->reading) {
            read_some(l, until_ns);
        } else {
            uint64_t soon = tsri_now_ns() + RETRY_NS_MIN;
            wait_change(l, soon < until_ns ? soon : until_ns);
        }
    }
    int e = l->state == OPEN ? 0 : not_there(l);
    pthread_mutex_unlock(&l->lock);
    return e;
}

int tsri_link_check(struct tsri_link *l, uint64_t session)
{
    pthread_mutex_lock(&l->lock);
    int e = refuse_late(l);
    if (e == 0 && (l->state != OPEN || l->session != session)) e = lost(l);
    pthread_mutex_unlock(&l->lock);
    return e;
}

/* ---- life ---- */

int tsri_link_open(struct tsri_link **out, const struct tsri_link_desc *desc)
{
    *out = NULL;
    struct tsri_link *l = tsri_alloc(1, sizeof *l);
    if (!l) return TSR_ENOMEM;
    l->fd = -1;
    l->staging.fd = -1;
    l->owner = desc->owner;
    l->pools = desc->pools;
    l->patience_ns = (uint64_t)desc->patience_ms * 1000000;
    l->retry_ns = RETRY_NS_MIN;
    int e = tsri_socket_path(desc->path, l->path);
    size_t token_bytes = strlen(desc->token);
    if (e == 0 && token_bytes > TSRI_WIRE_TOKEN_MAX)
        e = tsri_fail(TSR_ERANGE, "token of %zu bytes, limit %u", token_bytes, TSRI_WIRE_TOKEN_MAX);
    l->staging_bytes = (size_t)desc->staging_bytes;
    if (e == 0) e = make_staging(l); /* here, so that an error is one of open */
    if (e) {
        tsri_free(l);
        return e;
    }
    memcpy(l->token, desc->token, token_bytes + 1);
    tsri_cond_init(&l->changed);
    pthread_mutex_init(&l->lock, NULL);
    *out = l;
    return 0;
}

void tsri_link_close(struct tsri_link *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    if (l->fd >= 0 && !l->broken) {
        l->broken = true;
        settle(l);
    }
    pthread_mutex_unlock(&l->lock);
    tsri_mapping_release(l->mapping);
    for (uint32_t i = 0; i < ANSWERS_MAX; i++)
        tsri_free(l->answers[i].frame.data);
    tsri_free(l->in.data);
    tsri_free(l->out.data);
    tsri_region_fini(&l->staging);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    tsri_free(l);
}
