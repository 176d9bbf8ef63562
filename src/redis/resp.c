/* resp.c - one connection to a server that speaks RESP. Requests are queued, sent and answered in
 * order; nothing here waits but open and ask. Values go from the caller's cells to the socket and
 * back without a copy in between; hiredis makes the connection and reads the replies of control
 * commands, which nest. */
#include "redis/redis.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define IN_BYTES (64u << 10)
#define WASTE_BYTES (64u << 10)
#define IOVS 64
#define VALUE_MAX ((int64_t)512 << 20) /* what a server allows */

struct tsri_resp {
    redisContext *context;
    int fd;
    /* Requests in order: `first` to before `send` wait for their replies, `send` is being sent. */
    struct tsri_resp_req *first, *last, *send;
    uint32_t n_pending;
    uint64_t sent; /* of send: of its head, then of its tail */
    enum { HEAD, BODY, TAIL } stage;
    struct tsri_stream body;
    /* What arrived and was not looked at yet. */
    size_t in_begin, in_end;
    bool in_value; /* the value of `first` is on its way to sink, then a line's end */
    struct tsri_stream sink;
    uint64_t active_ns;
    uint8_t in[IN_BYTES], waste[WASTE_BYTES];
};

/* ---- commands ---- */

/* To the head, or to the tail once there is a body. */
static void add_bytes(struct tsri_resp_req *req, const void *data, size_t bytes)
{
    bool tail = req->body.left > 0;
    uint32_t *used = tail ? &req->tail_bytes : &req->head_bytes;
    TSR_ASSERT(bytes <= (tail ? sizeof req->tail : sizeof req->head) - *used);
    memcpy((tail ? req->tail : req->head) + *used, data, bytes);
    *used += (uint32_t)bytes;
}

static size_t decimal(char text[24], uint64_t number)
{
    char *end = text + 24, *at = end;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    memmove(text, at, (size_t)(end - at));
    return (size_t)(end - at);
}

/* "$5\r\n" and the like. */
static void add_count(struct tsri_resp_req *req, char kind, uint64_t count)
{
    char text[28] = {kind};
    size_t n = 1 + decimal(text + 1, count);
    memcpy(text + n, "\r\n", 2);
    add_bytes(req, text, n + 2);
}

void tsri_req_begin(struct tsri_resp_req *req, uint32_t n_args, const char *command)
{
    req->head_bytes = req->tail_bytes = req->n_ignored = req->n_redirects = 0;
    req->body = (struct tsri_stream){.left = 0};
    req->type = 0;
    req->length = 0;
    add_count(req, '*', n_args);
    tsri_req_arg(req, command);
}

void tsri_req_arg(struct tsri_resp_req *req, const char *text)
{
    size_t n = strlen(text);
    add_count(req, '$', n);
    add_bytes(req, text, n);
    add_bytes(req, "\r\n", 2);
}

void tsri_req_number(struct tsri_resp_req *req, uint64_t number)
{
    char text[25];
    text[decimal(text, number)] = '\0';
    tsri_req_arg(req, text);
}

void tsri_req_body(struct tsri_resp_req *req, struct tsri_stream body)
{
    add_count(req, '$', body.left);
    req->body = body;
    add_bytes(req, "\r\n", 2);
}

bool tsri_req_says(const struct tsri_resp_req *req, const char *word)
{
    size_t n = strlen(word);
    return req->type == '-' && strncmp(req->text, word, n) == 0 &&
           (req->text[n] == ' ' || req->text[n] == '\0');
}

/* ---- the queue ---- */

void tsri_resp_send(struct tsri_resp *c, struct tsri_resp_req *req)
{
    req->next = NULL;
    req->type = 0;
    if (c->last)
        c->last->next = req;
    else
        c->first = req;
    c->last = req;
    if (!c->send) {
        c->send = req;
        c->stage = HEAD;
        c->sent = 0;
        c->body = req->body;
    }
    if (c->n_pending++ == 0) c->active_ns = tsri_now_ns();
}

uint32_t tsri_resp_pending(const struct tsri_resp *c)
{
    return c->n_pending;
}

uint64_t tsri_resp_active_ns(const struct tsri_resp *c)
{
    return c->active_ns;
}

int tsri_resp_fd(const struct tsri_resp *c)
{
    return c->fd;
}

short tsri_resp_events(const struct tsri_resp *c)
{
    if (!c->n_pending) return 0;
    return (short)(POLLIN | (c->send ? POLLOUT : 0));
}

static struct tsri_resp_req *pop(struct tsri_resp *c)
{
    struct tsri_resp_req *req = c->first;
    c->first = req->next;
    if (!c->first) c->last = NULL;
    c->n_pending--;
    return req;
}

void tsri_resp_break(struct tsri_resp *c)
{
    c->send = NULL;
    /* Those that `done` adds are none of ours. */
    for (uint32_t n = c->n_pending; n; n--) {
        struct tsri_resp_req *req = pop(c);
        req->type = 0;
        req->done(req);
    }
}

/* ---- sending ---- */

static int gather(const struct tsri_resp *c, struct iovec *iov)
{
    int n = 0;
    int stage = (int)c->stage;
    uint64_t sent = c->sent;
    struct tsri_stream body = c->body;
    for (struct tsri_resp_req *req = c->send; req && n + 3 < IOVS; req = req->next) {
        if (req != c->send) {
            stage = HEAD;
            sent = 0;
            body = req->body;
        }
        if (stage == HEAD) iov[n++] = (struct iovec){req->head + sent, req->head_bytes - sent};
        if (stage != TAIL && body.left) {
            uint64_t bytes = 0;
            int pieces = tsri_stream_iov(&body, iov + n, IOVS - n - 1, NULL, 0);
            for (int i = 0; i < pieces; i++)
                bytes += iov[n + i].iov_len;
            n += pieces;
            if (bytes < body.left) break;
        }
        if (req->tail_bytes > (stage == TAIL ? sent : 0)) {
            uint64_t from = stage == TAIL ? sent : 0;
            iov[n++] = (struct iovec){req->tail + from, req->tail_bytes - from};
        }
    }
    return n;
}

/* That many bytes have gone. */
static void passed(struct tsri_resp *c, uint64_t bytes)
{
    while (c->send) {
        struct tsri_resp_req *req = c->send;
        uint64_t left = c->stage == HEAD   ? req->head_bytes - c->sent
                        : c->stage == BODY ? c->body.left
                                           : req->tail_bytes - c->sent;
        uint64_t n = bytes < left ? bytes : left;
        if (c->stage == BODY)
            tsri_stream_advance(&c->body, n);
        else
            c->sent += n;
        bytes -= n;
        if (n < left) return;
        c->sent = 0;
        if (c->stage != TAIL) {
            c->stage = c->stage == HEAD ? BODY : TAIL;
            continue;
        }
        c->send = req->next;
        c->stage = HEAD;
        if (c->send) c->body = c->send->body;
    }
}

static int64_t send_some(struct tsri_resp *c)
{
    int64_t moved = 0;
    while (c->send) {
        struct iovec iov[IOVS];
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)gather(c, iov)};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? moved : TSR_EIO;
        passed(c, (uint64_t)n);
        moved += n;
    }
    return moved;
}

/* ---- receiving ---- */

static void answer(struct tsri_resp *c)
{
    if (c->first->n_ignored) {
        c->first->n_ignored--;
        return;
    }
    struct tsri_resp_req *req = pop(c);
    req->done(req);
}

static bool parse_number(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return errno == 0 && end != text && *end == '\0';
}

/* A line without its end. TSR_EIO when a server does not say such things. */
static int take_line(struct tsri_resp *c, const char *line, size_t bytes)
{
    struct tsri_resp_req *req = c->first;
    if (!req || req == c->send || bytes == 0) return TSR_EIO; /* not asked for */
    char text[sizeof req->text];
    size_t n = bytes - 1 < sizeof text - 1 ? bytes - 1 : sizeof text - 1;
    memcpy(text, line + 1, n);
    text[n] = '\0';
    if (strlen(text) != n) return TSR_EIO;
    req->type = line[0];
    switch (line[0]) {
    case '+':
    case '-':
        memcpy(req->text, text, n + 1);
        break;
    case ':':
        if (!parse_number(text, &req->length)) return TSR_EIO;
        break;
    case '$':
        if (!parse_number(text, &req->length) || req->length < -1 || req->length > VALUE_MAX)
            return TSR_EIO;
        if (req->length < 0) break;
        c->in_value = true;
        c->sink = req->sink && !req->n_ignored ? req->sink(req, (uint64_t)req->length)
                                               : tsri_stream_flat(NULL, 0);
        if (c->sink.left != (uint64_t)req->length)
            c->sink = tsri_stream_flat(NULL, (uint64_t)req->length);
        return 0;
    default:
        return TSR_EIO;
    }
    answer(c);
    return 0;
}

/* From the buffer as far as it goes: 1 when more bytes are needed, 0 after a step. */
static int take_step(struct tsri_resp *c)
{
    size_t have = c->in_end - c->in_begin;
    uint8_t *at = c->in + c->in_begin;
    if (c->in_value && c->sink.left) {
        size_t n = have < c->sink.left ? have : (size_t)c->sink.left;
        if (n == 0) return 1;
        tsri_stream_give(&c->sink, at, n);
        c->in_begin += n;
        return 0;
    }
    if (c->in_value) {
        if (have < 2) return 1;
        if (at[0] != '\r' || at[1] != '\n') return TSR_EIO;
        c->in_begin += 2;
        c->in_value = false;
        answer(c);
        return 0;
    }
    uint8_t *end = have ? memmem(at, have, "\r\n", 2) : NULL;
    if (!end) return have == IN_BYTES ? TSR_EIO : 1;
    c->in_begin += (size_t)(end - at) + 2;
    return take_line(c, (const char *)at, (size_t)(end - at));
}

static ssize_t receive(struct tsri_resp *c)
{
    if (c->in_begin == c->in_end) c->in_begin = c->in_end = 0;
    if (c->in_begin) {
        memmove(c->in, c->in + c->in_begin, c->in_end - c->in_begin);
        c->in_end -= c->in_begin;
        c->in_begin = 0;
    }
    struct iovec iov[IOVS];
    int n = 0;
    uint64_t wanted = 0;
    if (c->in_value && c->sink.left) /* nothing of it is in the buffer */
        n = tsri_stream_iov(&c->sink, iov, IOVS - 1, c->waste, WASTE_BYTES);
    for (int i = 0; i < n; i++)
        wanted += iov[i].iov_len;
    if (wanted == (c->in_value ? c->sink.left : 0))
        iov[n++] = (struct iovec){c->in + c->in_end, IN_BYTES - c->in_end};
    ssize_t got = readv(c->fd, iov, n);
    if (got <= 0) return got;
    uint64_t direct = (uint64_t)got < wanted ? (uint64_t)got : wanted;
    if (direct) tsri_stream_advance(&c->sink, direct);
    c->in_end += (size_t)got - direct;
    return got;
}

static int64_t receive_some(struct tsri_resp *c)
{
    int64_t moved = 0;
    for (;;) {
        int step = 0;
        while (c->in_value || c->in_begin != c->in_end) {
            step = take_step(c);
            if (step) break;
        }
        if (step < 0) return step;
        if (!c->n_pending) return moved;
        ssize_t n = receive(c);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? moved : TSR_EIO;
        if (n == 0) return TSR_EIO;
        moved += n;
    }
}

int64_t tsri_resp_move(struct tsri_resp *c, short events)
{
    int64_t sent = events & POLLOUT ? send_some(c) : 0;
    if (sent < 0) return sent;
    int64_t got = events & ~POLLOUT ? receive_some(c) : 0;
    if (got < 0) return got;
    if (sent + got) c->active_ns = tsri_now_ns();
    return sent + got;
}

bool tsri_resp_is_stale(struct tsri_resp *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

/* ---- connecting, control commands ---- */

static bool wait_for(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = tsri_now_ns();
        if (now >= deadline_ns) return false;
        struct pollfd p = {.fd = fd, .events = events};
        uint64_t ms = (deadline_ns - now) / 1000000 + 1;
        int n = poll(&p, 1, ms > 60000 ? 60000 : (int)ms);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

redisReply *tsri_resp_ask(struct tsri_resp *c, uint64_t deadline_ns, int n, const char *const *args)
{
    TSR_ASSERT(!c->n_pending);
    redisContext *x = c->context;
    const char **argv = (const char **)(uintptr_t)args;
    if (redisAppendCommandArgv(x, n, argv, NULL) != REDIS_OK) return NULL;
    int sent = 0;
    while (!sent) {
        if (redisBufferWrite(x, &sent) != REDIS_OK) return NULL;
        if (!sent && !wait_for(c->fd, POLLOUT, deadline_ns)) return NULL;
    }
    for (;;) {
        void *reply = NULL;
        if (redisGetReplyFromReader(x, &reply) != REDIS_OK) return NULL;
        if (reply) return reply;
        if (!wait_for(c->fd, POLLIN, deadline_ns)) return NULL;
        if (redisBufferRead(x) != REDIS_OK) return NULL;
    }
}

/* 0 when the server says OK. */
static int login_step(struct tsri_resp *c, uint64_t deadline_ns, int n, const char *const *args,
                      char *why, size_t why_bytes)
{
    redisReply *reply = tsri_resp_ask(c, deadline_ns, n, args);
    int err = 0;
    if (!reply) {
        snprintf(why, why_bytes, "no response to %s", args[0]);
        err = tsri_now_ns() >= deadline_ns ? TSR_ETIME : TSR_EIO;
    } else if (reply->type == REDIS_REPLY_ERROR) {
        /* The server's own words name no password. */
        snprintf(why, why_bytes, "%s: %.80s", args[0], reply->str);
        err = TSR_EPERM;
    }
    freeReplyObject(reply);
    return err;
}

static int login_to(struct tsri_resp *c, const struct tsri_login *login, uint64_t deadline_ns,
                    char *why, size_t why_bytes)
{
    int err = 0;
    if (login->password && login->user)
        err = login_step(c, deadline_ns, 3, (const char *[]){"AUTH", login->user, login->password},
                         why, why_bytes);
    else if (login->password)
        err = login_step(c, deadline_ns, 2, (const char *[]){"AUTH", login->password}, why,
                         why_bytes);
    char number[16];
    snprintf(number, sizeof number, "%u", login->database);
    if (!err && login->database)
        err = login_step(c, deadline_ns, 2, (const char *[]){"SELECT", number}, why, why_bytes);
    /* Also tells a server that wants a password, or is still loading, from one that serves. */
    if (!err) err = login_step(c, deadline_ns, 1, (const char *[]){"PING"}, why, why_bytes);
    return err;
}

static int connect_to(struct tsri_resp *c, const char *address, uint64_t deadline_ns, char *why,
                      size_t why_bytes)
{
    char host[TSRI_REDIS_ADDRESS_BYTES];
    int port, error = 0, on = 1;
    int err = tsri_redis_address_split(address, host, &port);
    if (err) return err;
    c->context = port ? redisConnectNonBlock(host, port) : redisConnectUnixNonBlock(host);
    if (!c->context) return tsri_fail(TSR_ENOMEM, "redis: out of memory for a connection");
    if (c->context->err) {
        snprintf(why, why_bytes, "%.80s", c->context->errstr);
        return TSR_EIO;
    }
    c->fd = c->context->fd;
    if (!wait_for(c->fd, POLLOUT, deadline_ns)) {
        snprintf(why, why_bytes, "connection timed out");
        return TSR_ETIME;
    }
    socklen_t bytes = sizeof error;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error) {
        snprintf(why, why_bytes, "%s", strerror(error));
        return TSR_EIO;
    }
    if (port) {
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    }
    return 0;
}

int tsri_resp_open(struct tsri_resp **out, const char *address, const struct tsri_login *login,
                   uint64_t deadline_ns, char *why, size_t why_bytes)
{
    *out = NULL;
    struct tsri_resp *c = tsri_alloc(1, sizeof *c);
    snprintf(why, why_bytes, "out of memory");
    if (!c) return TSR_ENOMEM;
    int err = connect_to(c, address, deadline_ns, why, why_bytes);
    if (!err) err = login_to(c, login, deadline_ns, why, why_bytes);
    if (err) {
        tsri_resp_close(c);
        return tsri_fail(err, "redis: %s: %s", address, why);
    }
    *out = c;
    return 0;
}

void tsri_resp_close(struct tsri_resp *c)
{
    if (!c) return;
    TSR_ASSERT(!c->n_pending);
    if (c->context) redisFree(c->context);
    tsri_free(c);
}
