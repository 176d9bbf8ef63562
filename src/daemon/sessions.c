/* sessions.c - one connection: frames in, replies out, and what goes when it ends. Everything here
 * runs in the loop and never waits. Requests that lie whole in the loop's own buffer are answered
 * where they lie; only what is left over gets memory of the session's, counted and bounded. */
#include "daemon/daemon.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READS_MAX 8 /* in one turn, so that nobody is kept waiting */
#define IN_MIN ((size_t)4096)

/* ---- memory ---- */

static void drop(struct tsri_session *x, enum tsri_side side)
{
    struct tsri_pending_bytes *p = side == TSRI_SIDE_IN ? &x->in : &x->out;
    tsri_session_free(x, side, p->data, p->room);
    *p = (struct tsri_pending_bytes){0};
}

/* Makes room for `bytes` behind `end`, and if it must grow, for `spare` more; what is there moves
 * to the front. */
static bool make_room(struct tsri_session *x, enum tsri_side side, size_t bytes, size_t spare)
{
    struct tsri_pending_bytes *p = side == TSRI_SIDE_IN ? &x->in : &x->out;
    size_t held = p->end - p->at;
    if (p->room - p->end >= bytes) return true;
    if (held && p->at) memmove(p->data, p->data + p->at, held);
    p->at = 0;
    p->end = held;
    if (p->room - held >= bytes) return true;
    size_t room = tsri_align_up(held + bytes + spare, IN_MIN);
    uint8_t *data = tsri_session_grow(x, side, p->data, p->room, room);
    if (!data) return false;
    p->data = data;
    p->room = room;
    return true;
}

bool tsri_session_is_full(const struct tsri_session *x)
{
    return x->out.end - x->out.at > TSRI_OUT_HIGH || x->n_calls >= TSRI_CALLS_MAX ||
           atomic_load_explicit(&x->server->stopping, memory_order_relaxed);
}

/* ---- out ---- */

/* Bytes that the frame at the front of `data` still lacks; a head, when not even that is there. 0
 * also for what will not be taken in. */
static size_t frame_lacks(const uint8_t *data, size_t bytes, struct tsri_wire_head *head)
{
    head->body_bytes = 0;
    if (bytes < TSRI_WIRE_HEAD_BYTES) return TSRI_WIRE_HEAD_BYTES - bytes;
    if (tsri_wire_head_get(data, head) != 0 || head->body_bytes > TSRI_WIRE_BODY_MAX) return 0;
    size_t all = TSRI_WIRE_HEAD_BYTES + (size_t)head->body_bytes;
    return all > bytes ? all - bytes : 0;
}

/* Requests that came while there was no room for their replies. */
static bool has_kept(const struct tsri_session *x)
{
    struct tsri_wire_head head;
    return x->in.end > x->in.at &&
           frame_lacks(x->in.data + x->in.at, x->in.end - x->in.at, &head) == 0;
}

static void listen_for(struct tsri_session *x, uint32_t events)
{
    if (x->listens == events) return;
    struct tsr_server *s = x->server;
    uint64_t event = tsri_roster_event(&s->roster, x->row, TSRI_WATCH_SOCKET);
    struct epoll_event ev = {.events = events, .data.u64 = event};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, x->fd, &ev) == 0) x->listens = events;
}

void tsri_session_flush(struct tsri_session *x)
{
    struct tsri_pending_bytes *out = &x->out;
    while (x->state != TSRI_SESSION_ENDED && out->end > out->at) {
        ssize_t sent =
            tsri_socket_send_fds(x->fd, out->data + out->at, out->end - out->at, NULL, 0);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent <= 0) {
            tsri_session_end(x, "it does not read its messages");
            return;
        }
        out->at += (size_t)sent;
        out->since_ns = tsri_now_ns();
    }
    if (x->state == TSRI_SESSION_ENDED) return;
    bool waits = out->end > out->at, full = tsri_session_is_full(x);
    if (!waits) drop(x, TSRI_SIDE_OUT);
    /* Kept requests make no event of their own: being writable, which it is, goes on with them. */
    bool goes_on = waits || (!full && has_kept(x));
    listen_for(x, (full ? 0u : EPOLLIN) | (goes_on ? EPOLLOUT : 0u));
}

/* Where a frame of so many bytes goes, or NULL after having ended the session. */
static uint8_t *out_room(struct tsri_session *x, size_t bytes)
{
    if (x->state == TSRI_SESSION_ENDED) return NULL;
    if (x->out.end == x->out.at) x->out.since_ns = tsri_now_ns();
    /* Half as much again as there was, so that many small replies are not moved each time. */
    if (!make_room(x, TSRI_SIDE_OUT, bytes, x->out.room / 2)) {
        tsri_session_end(x, "out of memory for its replies");
        return NULL;
    }
    uint8_t *at = x->out.data + x->out.end;
    x->out.end += bytes;
    return at;
}

void tsri_session_send(struct tsri_session *x, const uint8_t *frame, size_t bytes)
{
    uint8_t *at = out_room(x, bytes);
    if (at) memcpy(at, frame, bytes);
}

void tsri_session_reply(struct tsri_session *x, uint64_t id, struct tsri_reply *r)
{
    size_t bytes;
    struct tsri_reply error;
    if (tsri_reply_bytes(r, &bytes) != 0 || bytes > TSRI_REPLY_MAX) {
        static const char text[] = "the reply is too long";
        error = (struct tsri_reply){.type = r->type,
                                    .status = TSR_ERANGE,
                                    .version_min = TSRI_WIRE_VERSION_MIN,
                                    .version_max = TSRI_WIRE_VERSION_MAX,
                                    .text = text,
                                    .text_bytes = sizeof text - 1};
        r = &error;
        if (tsri_reply_bytes(r, &bytes) != 0) return;
    }
    uint8_t *at = out_room(x, bytes);
    if (at) tsri_reply_encode(r, id, at, bytes);
}

void tsri_session_fail(struct tsri_session *x, const struct tsri_wire_head *head, int err)
{
    if (head->status == TSRI_WIRE_QUIET) return;
    const char *text = tsr_errmsg();
    struct tsri_reply r = {.type = head->type,
                           .status = err,
                           .version_min = TSRI_WIRE_VERSION_MIN,
                           .version_max = TSRI_WIRE_VERSION_MAX,
                           .text = text,
                           .text_bytes = (uint32_t)strlen(text)};
    tsri_session_reply(x, head->id, &r);
}

/* ---- in ---- */

/* A body that is not taken in: it is read and thrown away, then answered. */
static void begin_skip(struct tsri_session *x, const struct tsri_wire_head *head, int err)
{
    x->skip = head->body_bytes;
    x->skip_head = *head;
    x->skip_error = err;
}

static void end_skip(struct tsri_session *x)
{
    int err = x->skip_error == TSR_ERANGE
                  ? tsri_fail(TSR_ERANGE, "body of %u bytes, limit %u", x->skip_head.body_bytes,
                              TSRI_WIRE_BODY_MAX)
                  : tsri_fail(TSR_EAGAIN, "out of memory for a body of %u bytes (server_memory)",
                              x->skip_head.body_bytes);
    tsri_session_fail(x, &x->skip_head, err);
}

static size_t skip_some(struct tsri_session *x, size_t bytes)
{
    size_t n = bytes < x->skip ? bytes : (size_t)x->skip;
    x->skip -= n;
    if (x->skip == 0) end_skip(x);
    return n;
}

void tsri_session_took(struct tsri_session *x, uint16_t type, uint64_t start_ns)
{
    uint64_t now = tsri_now_ns();
    struct tsri_slow_call call = {.ns = now - start_ns,
                                  .end_ns = now,
                                  .tenant = x->tenant ? x->tenant->name : NULL,
                                  .call = tsri_wire_name(type)};
    tsri_slow_note(&x->server->slow, &call);
    /* Clients copy themselves: what the server does of a load is to lend, and of a store in parts to
     * commit. Lookups and whole stores are timed where they are done. */
    if (!x->tenant) return;
    struct tsri_stats *stats = tsri_cache_metrics(x->tenant->cache);
    if (type == TSRI_WIRE_RETRIEVE) tsri_stats_observe_ns(stats, TSRI_M_load_ns, call.ns);
    if (type == TSRI_WIRE_PUT_COMMIT) tsri_stats_observe_ns(stats, TSRI_M_store_ns, call.ns);
}

/* Answers the whole frames of [data, data + bytes) as long as replies find a place; returns how
 * many bytes are done with. */
static size_t take_frames(struct tsri_session *x, const uint8_t *data, size_t bytes)
{
    size_t at = 0;
    struct tsri_wire_head head;
    while (x->state != TSRI_SESSION_ENDED && !tsri_session_is_full(x)) {
        if (x->skip) {
            at += skip_some(x, bytes - at);
            if (x->skip) break;
            continue;
        }
        if (bytes - at < TSRI_WIRE_HEAD_BYTES) break;
        if (tsri_wire_head_get(data + at, &head) != 0) {
            tsri_session_end(x, tsr_errmsg());
            break;
        }
        if (head.body_bytes > TSRI_WIRE_BODY_MAX) {
            begin_skip(x, &head, TSR_ERANGE);
            at += TSRI_WIRE_HEAD_BYTES;
            continue;
        }
        if (bytes - at - TSRI_WIRE_HEAD_BYTES < head.body_bytes) break;
        uint64_t start_ns = tsri_now_ns();
        if (start_ns - x->turn_ns > TSRI_TURN_NS) break;
        uint32_t n_calls = x->n_calls;
        tsri_call_answer(x, &head, data + at + TSRI_WIRE_HEAD_BYTES);
        /* What waits for a worker is timed when it is done. */
        if (x->n_calls == n_calls) tsri_session_took(x, head.type, start_ns);
        at += TSRI_WIRE_HEAD_BYTES + head.body_bytes;
    }
    return at;
}

/* How much room is made for the rest of a frame: as much as has come of it. What a head announces
 * costs nothing until it comes. */
static size_t room_ahead(size_t come, size_t lacks)
{
    size_t ahead = come < IN_MIN ? IN_MIN : come;
    return lacks < ahead ? lacks : ahead;
}

/* Keeps what is left over in memory of the session's own. */
static void keep_rest(struct tsri_session *x, const uint8_t *data, size_t bytes)
{
    struct tsri_wire_head head;
    size_t lacks = frame_lacks(data, bytes, &head);
    if (x->state == TSRI_SESSION_ENDED || bytes == 0) return;
    if (make_room(x, TSRI_SIDE_IN, bytes, room_ahead(bytes, lacks))) {
        memcpy(x->in.data + x->in.end, data, bytes);
        x->in.end += bytes;
        x->in.since_ns = x->in.begin_ns = tsri_now_ns();
    } else if (head.body_bytes && lacks) {
        begin_skip(x, &head, TSR_EAGAIN);
        skip_some(x, bytes - TSRI_WIRE_HEAD_BYTES);
    } else {
        tsri_session_end(x, "out of memory for its requests");
    }
}

/* -1: nothing there now, or the end, which is dealt with. */
static ssize_t receive(struct tsri_session *x, uint8_t *data, size_t room)
{
    ssize_t got;
    uint32_t n_fds = 0;
    if (x->state == TSRI_SESSION_NEW) {
        int fd = -1;
        got = tsri_socket_recv_fds(x->fd, data, room, &fd, 1, &n_fds);
        if (n_fds && x->staging_fd >= 0) close(x->staging_fd);
        if (n_fds) x->staging_fd = fd;
    } else {
        do {
            got = recv(x->fd, data, room, MSG_DONTWAIT); /* descriptors are thrown away */
        } while (got < 0 && errno == EINTR);
    }
    if (got > 0) return got;
    if (got < 0 && errno == EAGAIN) return -1;
    tsri_session_end(x, got == 0 ? "it closed the connection" : strerror(errno));
    return -1;
}

/* The buffer of the loop, for a session that has nothing left over. */
static bool read_fresh(struct tsri_session *x)
{
    uint8_t *buffer = x->server->read_buffer;
    ssize_t got = receive(x, buffer, TSRI_READ_BYTES);
    if (got < 0) return false;
    size_t done = take_frames(x, buffer, (size_t)got);
    keep_rest(x, buffer + done, (size_t)got - done);
    return true;
}

/* The rest of a frame whose beginning is kept. */
static bool read_rest(struct tsri_session *x)
{
    struct tsri_pending_bytes *in = &x->in;
    struct tsri_wire_head head;
    size_t lacks = frame_lacks(in->data + in->at, in->end - in->at, &head);
    if (lacks && !make_room(x, TSRI_SIDE_IN, room_ahead(in->end - in->at, lacks), 0)) {
        begin_skip(x, &head, TSR_EAGAIN);
        skip_some(x, in->end - in->at - TSRI_WIRE_HEAD_BYTES);
        drop(x, TSRI_SIDE_IN);
        return true;
    }
    ssize_t got = receive(x, in->data + in->end, in->room - in->end);
    if (got < 0) return false;
    in->end += (size_t)got;
    in->since_ns = tsri_now_ns();
    return true;
}

/* What is kept and complete. */
static void take_kept(struct tsri_session *x)
{
    struct tsri_pending_bytes *in = &x->in;
    if (in->end == in->at) return;
    size_t done = take_frames(x, in->data + in->at, in->end - in->at);
    in->at += done;
    if (done) in->since_ns = in->begin_ns = tsri_now_ns();
    if (x->state != TSRI_SESSION_ENDED && in->at == in->end) drop(x, TSRI_SIDE_IN);
}

void tsri_session_read(struct tsri_session *x)
{
    x->turn_ns = tsri_now_ns();
    for (int i = 0; i < READS_MAX; i++) {
        take_kept(x);
        if (x->state == TSRI_SESSION_ENDED || tsri_session_is_full(x) || has_kept(x)) break;
        if (!(x->in.end > x->in.at ? read_rest(x) : read_fresh(x))) break;
    }
    take_kept(x);
    tsri_session_flush(x);
}

static bool stands_still(const struct tsri_pending_bytes *p, uint64_t now_ns, uint64_t stall_ns)
{
    return p->end > p->at && now_ns > p->since_ns && now_ns - p->since_ns > stall_ns;
}

void tsri_session_check(struct tsri_session *x, uint64_t now_ns)
{
    uint64_t stall_ns = atomic_load_explicit(&x->server->stall_ns, memory_order_relaxed);
    bool waits = x->in.end > x->in.at && !tsri_session_is_full(x) && !has_kept(x);
    if (waits && stands_still(&x->in, now_ns, stall_ns))
        tsri_session_end(x, "incomplete request");
    else if (waits && now_ns > x->in.begin_ns &&
             now_ns - x->in.begin_ns > TSRI_FRAME_STALLS * stall_ns)
        tsri_session_end(x, "request not completed in time");
    else if (x->state == TSRI_SESSION_NEW && now_ns > x->open_ns &&
             now_ns - x->open_ns > TSRI_FRAME_STALLS * stall_ns)
        tsri_session_end(x, "no hello in time");
    else if (stands_still(&x->out, now_ns, stall_ns))
        tsri_session_end(x, "it does not read its replies");
}

/* ---- life ---- */

static int watch(struct tsri_session *x, int fd, enum tsri_watch kind)
{
    uint64_t event = tsri_roster_event(&x->server->roster, x->row, kind);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = event};
    if (epoll_ctl(x->server->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0) return 0;
    return tsri_fail(TSR_EAGAIN, "epoll: %s", strerror(errno));
}

int tsri_session_open(struct tsr_server *s, int fd)
{
    struct tsri_session *x = tsri_alloc(1, sizeof *x);
    uint32_t row;
    if (!x || !tsri_roster_take(&s->roster, x, &row)) {
        close(fd);
        tsri_free(x);
        return tsri_fail(TSR_EAGAIN, "out of memory or session slots");
    }
    *x = (struct tsri_session){
        .server = s, .row = row, .fd = fd, .staging_fd = -1, .open_ns = tsri_now_ns()};
    x->calls_end = &x->calls;
    x->peer.pidfd = -1;
    x->listens = EPOLLIN;
    tsri_socket_widen(fd);
    int err = tsri_peer_init(&x->peer, fd);
    if (err == 0 && !tsri_server_allows(s, x->peer.uid))
        err = tsri_fail(TSR_EPERM, "uid %u may not use this server", x->peer.uid);
    if (err == 0) {
        const struct tsri_tenant *tenant = tsri_server_tenant(s, x->peer.uid, "", 0);
        err = tsri_share_join(x, tsri_share_of(s, tenant));
        if (err) err = tsri_share_join(x, tsri_share_of(s, NULL)); /* it may show a token */
    }
    if (err == 0) err = watch(x, fd, TSRI_WATCH_SOCKET);
    if (err == 0 && x->peer.pidfd >= 0) err = watch(x, x->peer.pidfd, TSRI_WATCH_PROCESS);
    x->next = s->sessions;
    if (x->next) x->next->prev = x;
    s->sessions = x;
    tsri_stats_gauge_add(tsri_server_stats(s), TSRI_M_sessions, 1);
    tsri_stats_add(tsri_server_stats(s), TSRI_M_sessions_opened, 1);
    if (err == 0) return 0;
    /* It is told why, as the answer to the hello that it will send. */
    struct tsri_wire_head hello = {.type = TSRI_WIRE_HELLO};
    tsri_stats_add(tsri_server_stats(s), TSRI_M_sessions_refused, 1);
    tsri_session_fail(x, &hello, err);
    tsri_session_flush(x);
    tsri_session_end(x, tsr_errmsg());
    return err;
}

#define LEASES_A_TURN 4096 /* less than a millisecond */
#define LEASES_AT_ONCE 512 /* many sessions may end in one batch of events */

/* A session may have lease_entries_max of them. */
static void let_leases_go(struct tsri_session *x)
{
    if (!x->client || x->leaving) return;
    x->leaving = tsri_client_release_some(x->client, LEASES_AT_ONCE) == LEASES_AT_ONCE;
    if (!x->leaving) return;
    x->next_leaving = x->server->leaving;
    x->server->leaving = x;
}

void tsri_session_end(struct tsri_session *x, const char *why)
{
    struct tsr_server *s = x->server;
    if (x->state == TSRI_SESSION_ENDED) return;
    x->state = TSRI_SESSION_ENDED;
    atomic_store(&x->ended, true);
    /* First of all: whoever still reads from the pool learns that it reads in vain. */
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)s->control.data;
    atomic_store(&words[x->row], 0);
    tsri_log(TSR_LOG_INFO, "server: client of process %d disconnected: %s", (int)x->peer.pid, why);
    /* Said outright, since a child forked by an engine may hold the same descriptors. */
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
    shutdown(x->fd, SHUT_RDWR);
    close(x->fd);
    if (x->peer.pidfd >= 0) epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, x->peer.pidfd, NULL);
    tsri_peer_fini(&x->peer);
    if (x->staging_fd >= 0) close(x->staging_fd);
    let_leases_go(x);
    tsri_lane_clear(x);
    tsri_share_unlist(x);
    tsri_stats_gauge_add(tsri_server_stats(s), TSRI_M_sessions, -1);
    if (!x->running) tsri_session_retire(x); /* otherwise tsri_lane_finish does */
}

void tsri_session_retire(struct tsri_session *x)
{
    TSR_ASSERT(x->state == TSRI_SESSION_ENDED && !x->running);
    let_leases_go(x); /* which its worker has taken since */
    x->next_retired = x->server->retired;
    x->server->retired = x;
}

static void session_close(struct tsri_session *x)
{
    struct tsr_server *s = x->server;
    if (x->prev)
        x->prev->next = x->next;
    else
        s->sessions = x->next;
    if (x->next) x->next->prev = x->prev;
    tsri_share_leave(x);
    tsri_roster_give(&s->roster, x->row);
    for (uint32_t i = 0; i < TSRI_SESSION_PUTS_MAX; i++)
        if (x->puts[i]) {
            tsr_put_abort(x->puts[i]);
            tsri_unhold_pages(tsri_client_holder(x->client), x->put_pages[i]);
        }
    tsr_client_close(x->client);
    for (uint32_t i = 0; i < TSRI_SESSION_SPACES_MAX; i++)
        tsr_space_close(atomic_load(&x->spaces[i]));
    while (x->n_closed)
        tsr_space_close(x->closed[--x->n_closed]);
    tsri_region_fini(&x->staging);
    if (x->events.max) tsri_events_fini(&x->events);
    drop(x, TSRI_SIDE_IN);
    drop(x, TSRI_SIDE_OUT);
    tsri_free(x);
}

bool tsri_sessions_reap(struct tsr_server *s)
{
    uint64_t start_ns = s->retired || s->leaving ? tsri_now_ns() : 0;
    struct tsri_session *x = s->leaving;
    if (x && tsri_client_release_some(x->client, LEASES_A_TURN) < LEASES_A_TURN) {
        s->leaving = x->next_leaving;
        x->leaving = false;
    }
    struct tsri_session **at = &s->retired;
    while ((x = *at) && tsri_now_ns() - start_ns < TSRI_TURN_NS) {
        if (x->leaving) {
            at = &x->next_retired;
            continue;
        }
        *at = x->next_retired;
        session_close(x);
    }
    return !s->retired && !s->leaving;
}
