/* server.c - opening and closing a server, and its loop: new connections, requests, processes that
 * have died, calls that workers have finished. One thread; it waits in one place. */
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX 64
#define TICK_MS 1000
#define ACCEPTS_MAX 16 /* in one turn */

/* ---- small things ---- */

struct tsri_stats *tsri_server_stats(const struct tsr_server *s)
{
    return tsri_cache_metrics(s->tenants[0].cache);
}

static void wake(struct tsr_server *s)
{
    uint64_t one = 1;
    ssize_t n = write(s->wake_fd, &one, sizeof one);
    (void)n; /* full: the loop is awake */
}

void tsri_server_finished(struct tsr_server *s, struct tsri_call *call)
{
    pthread_mutex_lock(&s->lock);
    call->job.next = s->finished ? &s->finished->job : NULL;
    s->finished = call;
    pthread_mutex_unlock(&s->lock);
    wake(s);
}

bool tsri_server_allows(const struct tsr_server *s, uint32_t uid)
{
    for (uint32_t i = 0; i < s->n_allow; i++)
        if (s->allow[i] == uid) return true;
    return uid == geteuid();
}

bool tsri_token_same(const char *ours, const char *theirs, size_t bytes)
{
    if (strlen(ours) != bytes) return false;
    unsigned differ = 0;
    for (size_t i = 0; i < bytes; i++)
        differ |= (unsigned)(ours[i] ^ theirs[i]);
    return differ == 0;
}

const struct tsri_tenant *tsri_server_tenant(const struct tsr_server *s, uint32_t uid,
                                             const char *token, size_t token_bytes)
{
    const struct tsri_tenant *found = NULL;
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct tsri_tenant *t = &s->tenants[i];
        bool is = t->token ? token_bytes && tsri_token_same(t->token, token, token_bytes)
                           : !token_bytes && t->uid == uid;
        if (is) found = t;
    }
    return found;
}

/* ---- the loop ---- */

/* No descriptors left: one is kept to say so with. */
static void turn_away(struct tsr_server *s)
{
    if (s->spare_fd >= 0) close(s->spare_fd);
    int fd = accept4(s->endpoint.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) close(fd);
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    tsri_stats_add(tsri_server_stats(s), TSRI_M_sessions_refused, 1);
    tsri_log(TSR_LOG_WARN, "server: refused a client: out of file descriptors");
}

static void accept_some(struct tsr_server *s)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(s->endpoint.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            turn_away(s);
            return;
        }
        if (fd < 0) return;
        if (s->roster.n_used == s->roster.max) {
            close(fd);
            tsri_stats_add(tsri_server_stats(s), TSRI_M_sessions_refused, 1);
            continue;
        }
        if (tsri_session_open(s, fd) != 0)
            tsri_log(TSR_LOG_WARN, "server: refused a client: %s", tsr_errmsg());
    }
}

static void take_finished(struct tsr_server *s)
{
    uint64_t count;
    ssize_t n = read(s->wake_fd, &count, sizeof count);
    (void)n;
    pthread_mutex_lock(&s->lock);
    struct tsri_call *call = s->finished, *in_order = NULL;
    s->finished = NULL;
    pthread_mutex_unlock(&s->lock);
    while (call) { /* the last one is first */
        struct tsri_call *next = (struct tsri_call *)call->job.next;
        call->job.next = in_order ? &in_order->job : NULL;
        in_order = call;
        call = next;
    }
    while (in_order) {
        call = in_order;
        in_order = (struct tsri_call *)call->job.next;
        tsri_lane_finish(call);
    }
}

static void session_event(struct tsri_session *x, uint32_t events)
{
    if (x->state == TSRI_SESSION_ENDED) return;
    if (events & EPOLLOUT) tsri_session_flush(x);
    if (x->state == TSRI_SESSION_ENDED) return;
    if (events & EPOLLIN || (events & EPOLLOUT && !tsri_session_is_full(x)))
        tsri_session_read(x);
    else if (events & (EPOLLHUP | EPOLLERR))
        tsri_session_end(x, "it closed the connection");
}

/* A session of each tenant, and again while that takes no longer than a turn: then it is time to
 * see who else has come. */
static void give_turns(struct tsr_server *s)
{
    uint64_t start_ns = tsri_now_ns();
    do {
        for (uint32_t i = 0; i < s->n_shares; i++) {
            struct tsri_session *x = tsri_share_turn(&s->shares[i]);
            if (x) session_event(x, x->ready_events);
        }
    } while (tsri_shares_are_ready(s) && tsri_now_ns() - start_ns < TSRI_TURN_NS);
}

static void handle(struct tsr_server *s, uint64_t event, uint32_t events)
{
    struct tsri_session *x;
    switch (tsri_event_watch(event)) {
    case TSRI_WATCH_LISTEN:
        accept_some(s);
        return;
    case TSRI_WATCH_WAKE:
        take_finished(s);
        return;
    case TSRI_WATCH_SOCKET:
        x = tsri_roster_at(&s->roster, event);
        if (x) tsri_share_ready(x, events);
        return;
    case TSRI_WATCH_PROCESS:
        x = tsri_roster_at(&s->roster, event);
        if (x) tsri_session_end(x, "its process no longer exists");
        return;
    }
}

static void check_all(struct tsr_server *s)
{
    uint64_t now = tsri_now_ns();
    for (struct tsri_session *x = s->sessions; x; x = x->next)
        if (x->state != TSRI_SESSION_ENDED) tsri_session_check(x, now);
}

/* While stopping: is anything left that clients still wait for? */
static bool is_busy(struct tsr_server *s)
{
    if (tsri_now_ns() - s->stop_ns > TSRI_DRAIN_NS) return false;
    for (const struct tsri_session *x = s->sessions; x; x = x->next)
        if (x->state != TSRI_SESSION_ENDED && (x->n_calls || x->out.end > x->out.at)) return true;
    return false;
}

static void *loop(void *arg)
{
    struct tsr_server *s = arg;
    struct epoll_event events[EVENTS_MAX];
    uint64_t checked = tsri_now_ns();
    bool stopping = false, reaped = true;
    for (;;) {
        int wait_ms = tsri_shares_are_ready(s) || !reaped ? 0 : stopping ? 10 : TICK_MS;
        int n = epoll_wait(s->epoll_fd, events, EVENTS_MAX, wait_ms);
        for (int i = 0; i < n; i++)
            handle(s, events[i].data.u64, events[i].events);
        give_turns(s);
        if (tsri_now_ns() - checked > (uint64_t)TICK_MS * 1000000) {
            checked = tsri_now_ns();
            check_all(s);
        }
        reaped = tsri_sessions_reap(s);
        if (!stopping && atomic_load(&s->stopping)) {
            stopping = true;
            s->stop_ns = tsri_now_ns();
            epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->endpoint.fd, NULL);
            shutdown(s->endpoint.fd, SHUT_RDWR);
        }
        if (stopping && !is_busy(s)) break;
    }
    return NULL;
}

/* ---- open and close ---- */

static int open_memory(struct tsr_server *s, const struct tsri_options *o)
{
    s->staging_max = o->server_staging_max;
    atomic_store(&s->stall_ns, TSRI_STALL_NS);
    s->read_buffer = tsri_alloc(1, TSRI_READ_BYTES);
    if (!s->read_buffer) return TSR_ENOMEM;
    s->boot_id = tsri_nonce();
    int e = tsri_roster_init(&s->roster, o->clients_max);
    if (e == 0)
        e = tsri_allowance_init(&s->allowance, o->server_memory, s->n_tenants, o->clients_max);
    if (e == 0)
        e = tsri_region_init_shared(&s->control, "tessera-control",
                                    o->clients_max * sizeof(uint64_t));
    if (e == 0) e = tsri_region_init(&s->matches, TSRI_MATCHES_MAX * sizeof(struct tsr_match));
    if (e == 0)
        e = tsri_region_init(&s->wire_matches, TSRI_MATCHES_MAX * sizeof(struct tsri_wire_match));
    return e;
}

static int watch(struct tsr_server *s, int fd, enum tsri_watch kind)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = kind};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0) return 0;
    return tsri_fail(TSR_EIO, "epoll: %s", strerror(errno));
}

static int open_loop(struct tsr_server *s, const struct tsri_server_desc *desc,
                     const struct tsri_options *o)
{
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (s->epoll_fd < 0 || s->wake_fd < 0 || s->spare_fd < 0)
        return tsri_fail(TSR_EIO, "server: %s", strerror(errno));
    int e = desc->listen_fd >= 0
                ? tsri_endpoint_adopt(&s->endpoint, desc->listen_fd)
                : tsri_endpoint_init(&s->endpoint, o->server_socket, s->n_allow > 0);
    if (e == 0) e = watch(s, s->wake_fd, TSRI_WATCH_WAKE);
    if (e == 0) e = watch(s, s->endpoint.fd, TSRI_WATCH_LISTEN);
    if (e == 0) e = tsri_shares_init(s, o->server_threads);
    uint32_t n_threads = tsri_shares_threads(s, o->server_threads);
    if (e == 0) e = tsri_work_open(&s->work, "tessera-copy", n_threads, s->roster.max);
    return e;
}

static int start(struct tsr_server *s)
{
    int e = tsri_thread_start(&s->thread, "tessera-serve", loop, s);
    if (e) return tsri_fail(TSR_ENOMEM, "cannot start a thread: %s", strerror(e));
    s->has_thread = true;
    return 0;
}

int tsri_server_open(struct tsr_server **out, const struct tsri_server_desc *desc,
                     const struct tsri_options *options)
{
    struct tsr_server *s = tsri_alloc(1, sizeof *s);
    if (!s) return TSR_ENOMEM;
    s->tenants = desc->tenants;
    s->n_tenants = desc->n_tenants;
    s->epoll_fd = s->wake_fd = s->spare_fd = s->endpoint.fd = s->endpoint.lock_fd = -1;
    s->start_ns = tsri_now_ns();
    s->prefill_rate = options->prefill_rate;
    pthread_mutex_init(&s->lock, NULL);
    tsri_slow_init(&s->slow);
    int e = tsri_fork_guard_init(&s->guard);
    for (uint32_t i = 0; e == 0 && i < s->n_tenants; i++)
        if (tsri_cache_memory(s->tenants[i].cache).fd < 0)
            e = tsri_fail(TSR_EINVAL, "open a cache to be served with owner: embedded");
    s->allow = tsri_alloc(TSRI_TENANTS_MAX, sizeof *s->allow);
    if (e == 0 && !s->allow) e = TSR_ENOMEM;
    if (e == 0) {
        int n = tsri_uids_parse(options->server_allow, s->allow, TSRI_TENANTS_MAX);
        e = n < 0 ? n : 0;
        s->n_allow = n < 0 ? 0 : (uint32_t)n;
    }
    if (e == 0) e = open_memory(s, options);
    if (e == 0) e = open_loop(s, desc, options);
    if (e == 0) e = start(s);
    if (e) {
        tsr_server_close(s);
        return e;
    }
    *out = s;
    return 0;
}

int tsr_server_open(struct tsr_server **out, struct tsr_cache *cache, const struct tsr_config *cfg)
{
    if (!out || !cache) return tsri_fail(TSR_EINVAL, "out or cache is NULL");
    *out = NULL;
    if (tsri_cache_is_forked(cache))
        return tsri_fail(TSR_EFORK, "the cache belongs to the parent process");
    struct tsr_config *own = NULL;
    int e = cfg ? 0 : tsr_config_open(&own);
    if (e) return e;
    struct tsri_tenant *tenant = tsri_alloc(1, sizeof *tenant);
    e = tenant ? 0 : TSR_ENOMEM;
    if (tenant) {
        *tenant = (struct tsri_tenant){.cache = cache, .uid = geteuid(), .name = "its owner"};
        struct tsri_server_desc desc = {.tenants = tenant, .n_tenants = 1, .listen_fd = -1};
        e = tsri_server_open(out, &desc, tsri_config_options(cfg ? cfg : own));
    }
    if (e)
        tsri_free(tenant);
    else
        (*out)->own = tenant;
    tsr_config_close(own);
    return e;
}

const char *tsr_server_path(const struct tsr_server *server)
{
    return server->endpoint.path;
}

void tsr_server_close(struct tsr_server *s)
{
    if (!s) return;
    if (s->guard.page && !tsri_fork_guard_parent(&s->guard)) {
        /* A forked child: neither the thread nor the socket are its own. */
        tsri_fork_guard_fini(&s->guard);
        return;
    }
    if (s->has_thread) {
        atomic_store(&s->stopping, true);
        wake(s);
        pthread_join(s->thread, NULL);
    }
    for (struct tsri_session *x = s->sessions; x; x = x->next)
        tsri_session_end(x, "the server is shutting down");
    tsri_work_close(s->work); /* finishes what runs */
    s->work = NULL;
    if (s->wake_fd >= 0) take_finished(s);
    while (!tsri_sessions_reap(s)) {
    }
    tsri_endpoint_fini(&s->endpoint);
    int fds[] = {s->epoll_fd, s->wake_fd, s->spare_fd};
    for (size_t i = 0; i < TSRI_COUNT(fds); i++)
        if (fds[i] >= 0) close(fds[i]);
    tsri_shares_fini(s);
    tsri_region_fini(&s->wire_matches);
    tsri_region_fini(&s->matches);
    tsri_region_fini(&s->control);
    tsri_free(s->read_buffer);
    tsri_allowance_fini(&s->allowance);
    tsri_roster_fini(&s->roster);
    tsri_free(s->allow);
    tsri_free(s->own);
    tsri_fork_guard_fini(&s->guard);
    tsri_slow_fini(&s->slow);
    pthread_mutex_destroy(&s->lock);
    tsri_free(s);
}
