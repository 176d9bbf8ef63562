/* web.c - HTTP: which request is which, who may ask, and the bytes of replies. libmicrohttpd runs it
 * in one thread. A connection whose answer is not there yet is suspended: it costs nothing until the
 * engine has something to send. Requests are read and brought to the engine elsewhere (preparing.c).
 *
 * The page and /health hold no data and need no token; everything else does. The token is no cookie,
 * because cookies go to every port of a host: the page has it in the fragment of its address, which
 * is not sent, and sends it as other clients do, as `Authorization: Bearer`. */
#include "serve/serve.h"

#include "daemon/daemon.h"
#include "serve/access.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define REQUEST_NS (30 * (uint64_t)1000000000) /* until a request is there */
/* The same while most connections are taken: who has no token could keep all others out. */
#define CROWDED_NS (2 * (uint64_t)1000000000)
#define IDLE_S 60u
#define HEAD_BYTES_MAX ((size_t)64 << 10) /* of a request's head, and of a reply on its way */

/* The page, made C arrays by the Makefile. */
extern const unsigned char tsri_serve_page[], tsri_serve_script[], tsri_serve_style[];
extern const size_t tsri_serve_page_bytes, tsri_serve_script_bytes, tsri_serve_style_bytes;

struct tsri_conn {
    struct tsri_conn *next, *before;
    int fd;
    uint64_t since_ns; /* when we began to wait for a request; 0: there is one */
};

/* One request of a connection. */
struct call {
    struct tsri_refusal no; /* status 0: none */
    char *body;
    size_t n_body, room;
    bool too_large;
    struct tsri_flow *flow;
};

/* ---- replies ---- */

static void add_headers(struct MHD_Response *r, const char *type)
{
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
    MHD_add_response_header(
        r, "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'");
}

static enum MHD_Result queue(struct MHD_Connection *c, unsigned status, struct MHD_Response *r)
{
    enum MHD_Result queued = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return queued;
}

/* Takes over `text`; NULL without memory. */
static struct MHD_Response *reply(unsigned status, const char *type, char *text)
{
    if (!text) return NULL;
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(text);
        return NULL;
    }
    add_headers(r, type);
    if (status == MHD_HTTP_UNAUTHORIZED) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE)
        MHD_add_response_header(r, "Retry-After", "1");
    return r;
}

/* Takes over `text`. */
static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type,
                              char *text)
{
    struct MHD_Response *r = reply(status, type, text);
    return r ? queue(c, status, r) : MHD_NO;
}

static void count_refused(struct tsri_serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_refused++;
    pthread_mutex_unlock(&s->lock);
}

/* With a header more; name NULL: none. */
static enum MHD_Result refuse_with(struct tsri_serve *s, struct MHD_Connection *c,
                                   const struct tsri_refusal *no, const char *name,
                                   const char *value)
{
    count_refused(s);
    struct MHD_Response *r = reply(no->status, "application/json", tsri_reply_refusal(no));
    if (!r) return MHD_NO;
    if (name) MHD_add_response_header(r, name, value);
    return queue(c, no->status, r);
}

static enum MHD_Result refuse(struct tsri_serve *s, struct MHD_Connection *c,
                              const struct tsri_refusal *no)
{
    return refuse_with(s, c, no, NULL, NULL);
}

/* Nothing more of this connection is read, neither a body nor what follows it. */
static enum MHD_Result refuse_unread(struct tsri_serve *s, struct MHD_Connection *c,
                                     const struct tsri_refusal *no)
{
    return refuse_with(s, c, no, "Connection", "close");
}

/* ---- routes ---- */

enum route {
    ROUTE_NONE,
    ROUTE_PAGE,
    ROUTE_SCRIPT,
    ROUTE_STYLE,
    ROUTE_HEALTH,
    ROUTE_METRICS,
    ROUTE_STATUS,
    ROUTE_STATS,
    ROUTE_MODELS,
    ROUTE_MODEL,
    ROUTE_CHAT,
    ROUTE_COMPLETIONS,
    ROUTE_EMBEDDINGS
};

static const struct {
    const char *url;
    enum route route;
    bool posts, open; /* open: without a token */
} routes[] = {
    {"/", ROUTE_PAGE, false, true},
    {"/page.js", ROUTE_SCRIPT, false, true},
    {"/page.css", ROUTE_STYLE, false, true},
    {"/health", ROUTE_HEALTH, false, true},
    {"/metrics", ROUTE_METRICS, false, false},
    {"/api/stats", ROUTE_STATS, false, false},
    {"/tessera/status", ROUTE_STATUS, false, false},
    {"/v1/models", ROUTE_MODELS, false, false},
    {"/v1/chat/completions", ROUTE_CHAT, true, false},
    {"/v1/completions", ROUTE_COMPLETIONS, true, false},
    {"/v1/embeddings", ROUTE_EMBEDDINGS, true, false},
};
#define MODEL_URL "/v1/models/"

static enum route route_of(const char *url, bool *posts, bool *open)
{
    *posts = *open = false;
    for (size_t i = 0; i < TSRI_COUNT(routes); i++)
        if (strcmp(url, routes[i].url) == 0) {
            *posts = routes[i].posts;
            *open = routes[i].open;
            return routes[i].route;
        }
    return strncmp(url, MODEL_URL, strlen(MODEL_URL)) == 0 ? ROUTE_MODEL : ROUTE_NONE;
}

static const char *header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static bool has_token(const struct tsri_serve *s, const char *authorization)
{
    const char *page = s->desc.page_token;
    bool fine = tsri_bearer_is_fine(authorization, s->desc.token);
    return fine || (page && tsri_bearer_is_fine(authorization, page));
}

static enum MHD_Result add_to_head(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    (void)kind;
    tsri_head_add(arg, name, value);
    return MHD_YES;
}

/* Of an address that has another method. */
static enum MHD_Result refuse_method(struct tsri_serve *s, struct MHD_Connection *c,
                                     const char *url, const struct tsri_refusal *no)
{
    bool posts, open;
    (void)route_of(url, &posts, &open);
    return refuse_with(s, c, no, "Allow", posts ? "POST" : "GET, HEAD");
}

/* Before anything of the request is believed: false, and nothing more of it is to be read. */
static bool may_be_read(const struct tsri_serve *s, struct MHD_Connection *c,
                        struct tsri_refusal *no)
{
    struct tsri_head head = {0};
    const char *length = header(c, "Content-Length");
    MHD_get_connection_values(c, MHD_HEADER_KIND, add_to_head, &head);
    if (!tsri_head_is_clear(&head))
        return tsri_refuse(no, 400, "bad_headers", NULL,
                           "a header is there twice, or the length of the body is not clear");
    if (length && strtoull(length, NULL, 10) > s->desc.body_bytes_max)
        return tsri_refuse(no, 413, "too_large", NULL, "the body has more than %zu bytes",
                           s->desc.body_bytes_max);
    return true;
}

/* What can be said before the body is there. */
static bool may_ask(const struct tsri_serve *s, struct MHD_Connection *c, const char *url,
                    const char *method, struct tsri_refusal *no)
{
    bool posts, open;
    const char *host = header(c, "Host");
    enum route route = route_of(url, &posts, &open);
    if (!tsri_http_host_is_fine(host))
        return tsri_refuse(no, 403, "host", NULL, "use an IP address or localhost, not a name");
    if (!tsri_origin_is_fine(header(c, "Origin"), host))
        return tsri_refuse(no, 403, "origin", NULL, "requests of other sites are refused");
    if (route == ROUTE_NONE)
        return tsri_refuse(no, 404, "not_found", NULL, "%.100s: there is no such address", url);
    if (!open && !has_token(s, header(c, "Authorization")))
        return tsri_refuse(no, 401, "invalid_api_key", NULL,
                           "an API key is needed: it is in the file that `tessera serve` named "
                           "at its start, serve.token in its store");
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (posts ? strcmp(method, "POST") != 0 : !get)
        return tsri_refuse(no, 405, "method_not_allowed", NULL, "%.100s: use %s", url,
                           posts ? "POST" : "GET");
    return true;
}

/* ---- answers ---- */

void tsri_web_resume(struct tsri_flow *f)
{
    f->suspended = false;
    MHD_resume_connection(f->connection);
}

static ssize_t read_out(void *arg, uint64_t at, char *buf, size_t max)
{
    struct tsri_flow *f = arg;
    (void)at;
    pthread_mutex_lock(&f->serve->lock);
    size_t n = f->n_out - f->n_sent;
    ssize_t result = 0;
    if (n) {
        n = n < max ? n : max;
        memcpy(buf, f->out + f->n_sent, n);
        f->n_sent += n;
        if (f->n_sent == f->n_out) f->n_sent = f->n_out = 0;
        result = (ssize_t)n;
    } else if (f->done) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        f->suspended = true;
        MHD_suspend_connection(f->connection);
    }
    pthread_mutex_unlock(&f->serve->lock);
    return result;
}

static enum MHD_Result begin_stream(struct MHD_Connection *c, struct tsri_flow *f)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_out, f, NULL);
    if (!r) return MHD_NO;
    add_headers(r, "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, "X-Accel-Buffering", "no");
    return queue(c, MHD_HTTP_OK, r);
}

/* A whole reply, if it is there; otherwise this is called again when it is. */
static enum MHD_Result whole(struct MHD_Connection *c, struct tsri_flow *f)
{
    char *text = NULL;
    pthread_mutex_lock(&f->serve->lock);
    unsigned status = f->status;
    bool done = f->done;
    if (!done) {
        f->suspended = true;
        MHD_suspend_connection(c);
    } else if (f->out) {
        f->out[f->n_out] = 0;
        text = f->out;
        f->out = NULL;
        f->n_out = f->out_room = 0;
    }
    if (done && status != 200) f->serve->n_refused++;
    pthread_mutex_unlock(&f->serve->lock);
    return done ? answer(c, status, "application/json", text) : MHD_YES;
}

/* Something has happened to a request that was suspended: it is refused, or its reply begins. */
static enum MHD_Result go_on(struct tsri_serve *s, struct MHD_Connection *c, struct call *call)
{
    struct tsri_flow *f = call->flow;
    if (f->no.status) {
        struct tsri_refusal no = f->no;
        call->flow = NULL;
        tsri_flow_free(f);
        return refuse(s, c, &no);
    }
    return f->request.stream ? begin_stream(c, f) : whole(c, f);
}

static enum MHD_Result begin(struct tsri_serve *s, struct MHD_Connection *c, struct call *call,
                             enum tsri_api api)
{
    struct tsri_flow *f = tsri_flow_open(s, api, call->body, call->n_body);
    if (!f) return MHD_NO;
    call->body = NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    f->fd = info ? info->connect_fd : -1;
    f->connection = c;
    call->flow = f;
    pthread_mutex_lock(&s->lock);
    /* When nobody is left to resume it, it must not be suspended. */
    bool taken = tsri_preparing_put(f);
    if (taken) {
        f->suspended = true;
        MHD_suspend_connection(c);
    }
    pthread_mutex_unlock(&s->lock);
    return taken ? MHD_YES : go_on(s, c, call);
}

/* A part of the page, as it is in the program. */
static enum MHD_Result page(struct MHD_Connection *c, const char *type, const unsigned char *data,
                            size_t bytes)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)data, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    add_headers(r, type);
    return queue(c, MHD_HTTP_OK, r);
}

static enum MHD_Result dispatch(struct tsri_serve *s, struct MHD_Connection *c, const char *url,
                                struct call *call)
{
    struct tsri_refusal no;
    bool posts, open;
    switch (route_of(url, &posts, &open)) {
    case ROUTE_PAGE:
        return page(c, "text/html; charset=utf-8", tsri_serve_page, tsri_serve_page_bytes);
    case ROUTE_SCRIPT:
        return page(c, "text/javascript; charset=utf-8", tsri_serve_script,
                    tsri_serve_script_bytes);
    case ROUTE_STYLE:
        return page(c, "text/css; charset=utf-8", tsri_serve_style, tsri_serve_style_bytes);
    case ROUTE_HEALTH:
        return answer(c, 200, "application/json", strdup("{\"status\":\"ok\"}"));
    case ROUTE_METRICS:
        return answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", tsri_reply_metrics(s));
    case ROUTE_STATS:
        return answer(c, 200, "application/json", tsri_reply_stats(s));
    case ROUTE_STATUS:
        return answer(c, 200, "application/json", tsri_reply_status(s));
    case ROUTE_MODELS:
        return answer(c, 200, "application/json", tsri_reply_models(s));
    case ROUTE_MODEL:
        if (strcmp(url + strlen(MODEL_URL), s->desc.model_name) == 0)
            return answer(c, 200, "application/json", tsri_reply_model(s));
        tsri_refuse(&no, 404, "model_not_found", "model", "this server has only %.200s",
                    s->desc.model_name);
        return refuse(s, c, &no);
    case ROUTE_CHAT:
        return begin(s, c, call, TSRI_API_CHAT);
    case ROUTE_COMPLETIONS:
        return begin(s, c, call, TSRI_API_COMPLETIONS);
    default:
        tsri_refuse(&no, 400, "not_supported", NULL,
                    "embeddings: this server has a model that answers, and none for embeddings");
        return refuse(s, c, &no);
    }
}

/* ---- requests ---- */

static struct tsri_conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void wait_since(struct tsri_serve *s, struct MHD_Connection *c, uint64_t now_ns)
{
    struct tsri_conn *conn = conn_of(c);
    pthread_mutex_lock(&s->lock);
    if (conn) conn->since_ns = now_ns;
    pthread_mutex_unlock(&s->lock);
}

/* Adds to the body, or drops what is too much of it or for a request that is refused. */
static enum MHD_Result take_body(const struct tsri_serve *s, struct call *call, const char *data,
                                 size_t n)
{
    if (call->no.status || call->too_large) return MHD_YES;
    if (n > s->desc.body_bytes_max - call->n_body) {
        call->too_large = true;
        free(call->body);
        call->body = NULL;
        return MHD_YES;
    }
    char *more = tsri_make_room(call->body, &call->room, call->n_body + n, 1);
    if (!more) return MHD_NO;
    call->body = more;
    memcpy(call->body + call->n_body, data, n);
    call->n_body += n;
    return MHD_YES;
}

/* NOLINTNEXTLINE(readability-function-size): the library's signature */
static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *n_data, void **state)
{
    struct tsri_serve *s = arg;
    struct call *call = *state;
    (void)version;
    if (!call) { /* the head alone */
        call = calloc(1, sizeof *call);
        if (!call) return MHD_NO;
        *state = call;
        if (!may_be_read(s, c, &call->no)) return refuse_unread(s, c, &call->no);
        (void)may_ask(s, c, url, method, &call->no); /* told when the body is there */
        return MHD_YES;
    }
    if (*n_data) {
        size_t n = *n_data;
        *n_data = 0;
        return take_body(s, call, data, n);
    }
    if (call->flow) return go_on(s, c, call);
    wait_since(s, c, 0);
    if (call->too_large)
        tsri_refuse(&call->no, 413, "too_large", NULL, "the body has more than %zu bytes",
                    s->desc.body_bytes_max);
    if (call->no.status == MHD_HTTP_METHOD_NOT_ALLOWED) return refuse_method(s, c, url, &call->no);
    return call->no.status ? refuse(s, c, &call->no) : dispatch(s, c, url, call);
}

static void completed(void *arg, struct MHD_Connection *c, void **state,
                      enum MHD_RequestTerminationCode code)
{
    struct call *call = *state;
    (void)code;
    wait_since(arg, c, tsri_now_ns());
    if (!call) return;
    if (call->flow) tsri_flow_leave(call->flow);
    free(call->body);
    free(call);
    *state = NULL;
}

/* ---- connections ---- */

static void note_connection(void *arg, struct MHD_Connection *c, void **state,
                            enum MHD_ConnectionNotificationCode code)
{
    struct tsri_serve *s = arg;
    struct tsri_conn *conn = *state;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        conn = calloc(1, sizeof *conn);
        if (!conn || !info) {
            free(conn);
            return;
        }
        conn->fd = info->connect_fd;
        conn->since_ns = tsri_now_ns();
        *state = conn;
        pthread_mutex_lock(&s->lock);
        conn->next = s->conns;
        if (conn->next) conn->next->before = conn;
        s->conns = conn;
        s->n_conns++;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    if (!conn) return;
    pthread_mutex_lock(&s->lock);
    if (conn->before) conn->before->next = conn->next;
    if (conn->next) conn->next->before = conn->before;
    if (s->conns == conn) s->conns = conn->next;
    s->n_conns--;
    pthread_mutex_unlock(&s->lock);
    free(conn);
}

/* Drop by drop is no way to ask. */
void tsri_web_watch(struct tsri_serve *s, uint64_t now_ns)
{
    uint32_t many = s->desc.connections_max - s->desc.connections_max / 4;
    uint64_t patience_ns = s->n_conns >= many ? CROWDED_NS : REQUEST_NS;
    for (struct tsri_conn *c = s->conns; c; c = c->next)
        if (c->since_ns && now_ns - c->since_ns > patience_ns) shutdown(c->fd, SHUT_RDWR);
}

bool tsri_web_is_gone(int fd)
{
    /* Not recv(): bytes of a next request would hide the end behind them. */
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return fd >= 0 && poll(&p, 1, 0) > 0;
}

static void log_problem(void *arg, const char *format, va_list ap)
{
    char line[256];
    (void)arg;
    vsnprintf(line, sizeof line, format, ap);
    line[strcspn(line, "\n")] = 0;
    tsri_log(TSR_LOG_DEBUG, "http: %s", line);
}

int tsri_web_open(struct tsri_serve *s)
{
    const struct sockaddr_storage *address = s->desc.address;
    unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG |
                     MHD_ALLOW_SUSPEND_RESUME;
    if (address->ss_family == AF_INET6) flags |= MHD_USE_IPv6;
    errno = 0;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, s, MHD_OPTION_EXTERNAL_LOGGER, log_problem, NULL,
        MHD_OPTION_SOCK_ADDR, (const struct sockaddr *)address, MHD_OPTION_NOTIFY_CONNECTION,
        note_connection, s, MHD_OPTION_NOTIFY_COMPLETED, completed, s, MHD_OPTION_CONNECTION_LIMIT,
        s->desc.connections_max, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_BYTES_MAX, MHD_OPTION_END);
    if (!s->daemon)
        return tsri_fail(errno == EADDRINUSE ? TSR_EBUSY : TSR_EIO, "cannot listen: %s",
                         errno ? strerror(errno) : "libmicrohttpd gives no reason");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : 0;
    return 0;
}

void tsri_web_close(struct tsri_serve *s)
{
    if (s->daemon) MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
