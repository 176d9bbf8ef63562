/* http.c - the server for browsers and Prometheus: /metrics, /healthz, /api/stats, and the page
 * that shows them, with a dashboard and alert rules to download. Read-only: there is nothing here
 * that changes anything, and what is served are numbers and names of models and tenants, never
 * tokens or KV.
 *
 * libmicrohttpd runs it in one thread of its own; every answer is made whole before it is sent. A
 * client that sends its request drop by drop, or does not read the answer, keeps a connection as
 * long as it likes: so there is always room for a newcomer, and it is the oldest connection that
 * goes. What asks and reads at once, as /healthz is asked for, is done long before that.
 * Whoever may connect to the address may read it, unless http_token names a file with a token; so
 * an address beyond loopback is refused without one. The page itself holds no data and needs no
 * token: it asks for it. A Host that is neither an address nor localhost is refused, since
 * otherwise any page in a browser here could read the answers by pointing its own name at us. */
#include "daemon/daemon.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECTIONS_MAX 64u               /* one more, and the oldest is cut off */
#define LISTED_MAX (4u * CONNECTIONS_MAX) /* with those that are cut off and not gone yet */
#define IDLE_S 10u
#define REQUEST_BYTES_MAX ((size_t)16 << 10)
#define TOKEN_MIN 16u
/* Numbers grow between asking for the length and writing them. */
#define SLACK_BYTES ((size_t)4 << 10)

/* Files that hold no data, made C arrays by the Makefile: the page, and what Grafana and Prometheus
 * are given to watch this server. */
extern const unsigned char tsri_page[], tsri_dashboard[], tsri_alerts[];
extern const size_t tsri_page_bytes, tsri_dashboard_bytes, tsri_alerts_bytes;
static const struct {
    const char *url, *type;
    const unsigned char *data;
    const size_t *bytes;
} files[] = {
    {"/", "text/html; charset=utf-8", tsri_page, &tsri_page_bytes},
    {"/grafana.json", "application/json", tsri_dashboard, &tsri_dashboard_bytes},
    {"/alerts.yaml", "text/plain; charset=utf-8", tsri_alerts, &tsri_alerts_bytes},
};

struct tsri_http {
    struct tsr_server *server;
    struct MHD_Daemon *daemon;
    char *token; /* NULL: none is asked for */
    /* Connections, oldest first, of which n_cut are shut down and will go; the library's thread's.
     */
    int fds[LISTED_MAX];
    uint32_t n_fds, n_cut;
};

struct http_answer {
    unsigned status;
    const char *type;
    char *body; /* taken over; NULL: `text` */
    const char *text;
    size_t bytes;
};

static struct http_answer plain(unsigned status, const char *text)
{
    return (struct http_answer){status, "text/plain; charset=utf-8", NULL, text, strlen(text)};
}

static size_t write_status(struct tsr_server *s, bool json, char *buf, size_t bytes)
{
    return json ? tsri_status_json(s, NULL, buf, bytes) : tsri_status_prometheus(s, buf, bytes);
}

static struct http_answer status(struct tsr_server *s, bool json)
{
    size_t bytes = write_status(s, json, NULL, 0) + SLACK_BYTES;
    char *body = malloc(bytes);
    size_t n = body ? write_status(s, json, body, bytes) : 0;
    if (n == 0 || n >= bytes) {
        free(body);
        return plain(MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
    }
    const char *type = json ? "application/json" : "text/plain; version=0.0.4; charset=utf-8";
    return (struct http_answer){MHD_HTTP_OK, type, body, NULL, n};
}

static bool is_allowed(const struct tsri_http *h, struct MHD_Connection *c)
{
    static const char scheme[] = "Bearer ";
    if (!h->token) return true;
    const char *sent = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    if (!sent || strncmp(sent, scheme, sizeof scheme - 1) != 0) return false;
    sent += sizeof scheme - 1;
    return tsri_token_same(h->token, sent, strlen(sent));
}

static struct http_answer answer_for(const struct tsri_http *h, struct MHD_Connection *c,
                                     const char *url, const char *method)
{
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return plain(MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
    if (!tsri_http_host_is_fine(MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host")))
        return plain(MHD_HTTP_FORBIDDEN, "use an IP address or localhost, not a host name\n");
    for (size_t i = 0; i < TSRI_COUNT(files); i++)
        if (strcmp(url, files[i].url) == 0)
            return (struct http_answer){MHD_HTTP_OK, files[i].type, NULL,
                                        (const char *)files[i].data, *files[i].bytes};
    if (strcmp(url, "/healthz") == 0) return plain(MHD_HTTP_OK, "ok\n");
    bool json = strcmp(url, "/api/stats") == 0;
    if (!json && strcmp(url, "/metrics") != 0)
        return plain(MHD_HTTP_NOT_FOUND, "not found; try /, /metrics, /healthz or /api/stats\n");
    if (!is_allowed(h, c)) return plain(MHD_HTTP_UNAUTHORIZED, "token required\n");
    return status(h->server, json);
}

static void add_headers(struct MHD_Response *r, const struct http_answer *a)
{
    MHD_add_response_header(r, "Content-Type", a->type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'none'; script-src 'unsafe-inline'; style-src "
                            "'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
                            "form-action 'none'; frame-ancestors 'none'");
    if (a->status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (a->status == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(r, "Allow", "GET, HEAD");
}

/* NOLINTNEXTLINE(readability-function-size): the library's signature */
static enum MHD_Result handle(void *arg, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *body,
                              size_t *body_bytes, void **state)
{
    static char seen; /* a mark; its address is all that counts */
    (void)version, (void)body;
    if (!*state) { /* the head alone: the rest of the request follows */
        *state = &seen;
        return MHD_YES;
    }
    if (*body_bytes) { /* nobody wants it */
        *body_bytes = 0;
        return MHD_YES;
    }
    struct http_answer a = answer_for(arg, c, url, method);
    struct MHD_Response *r =
        a.body ? MHD_create_response_from_buffer(a.bytes, a.body, MHD_RESPMEM_MUST_FREE)
               : MHD_create_response_from_buffer(a.bytes, (void *)(uintptr_t)a.text,
                                                 MHD_RESPMEM_PERSISTENT);
    if (!r) {
        free(a.body);
        return MHD_NO;
    }
    add_headers(r, &a);
    enum MHD_Result queued = MHD_queue_response(c, a.status, r);
    MHD_destroy_response(r);
    return queued;
}

/* ---- connections ---- */

static void add_connection(struct tsri_http *h, int fd)
{
    if (h->n_fds == LISTED_MAX) return; /* the library accepts no more than that */
    h->fds[h->n_fds++] = fd;
    if (h->n_fds - h->n_cut > CONNECTIONS_MAX) shutdown(h->fds[h->n_cut++], SHUT_RDWR);
}

static void remove_connection(struct tsri_http *h, int fd)
{
    uint32_t i = 0;
    while (i < h->n_fds && h->fds[i] != fd)
        i++;
    if (i == h->n_fds) return;
    memmove(&h->fds[i], &h->fds[i + 1], (h->n_fds - i - 1) * sizeof *h->fds);
    h->n_fds--;
    h->n_cut -= i < h->n_cut;
}

static void note_connection(void *arg, struct MHD_Connection *c, void **state,
                            enum MHD_ConnectionNotificationCode code)
{
    (void)state;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        add_connection(arg, info->connect_fd);
    else
        remove_connection(arg, info->connect_fd);
}

static void log_problem(void *arg, const char *format, va_list ap)
{
    char line[256];
    (void)arg;
    vsnprintf(line, sizeof line, format, ap);
    line[strcspn(line, "\n")] = 0;
    tsri_log(TSR_LOG_DEBUG, "http: %s", line);
}

/* ---- open and close ---- */

static int read_token(struct tsri_http *h, const char *path)
{
    if (!*path) return 0;
    h->token = tsri_read_private(path, "http_token");
    if (!h->token) return TSR_ECONFIG;
    h->token[strcspn(h->token, " \t\r\n")] = 0;
    if (strlen(h->token) >= TOKEN_MIN) return 0;
    return tsri_fail(TSR_ECONFIG, "http_token: %s: needs at least %u characters", path, TOKEN_MIN);
}

static void listen_at(struct tsri_http *h, const struct sockaddr_storage *address)
{
    unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG;
    if (address->ss_family == AF_INET6) flags |= MHD_USE_IPv6;
    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, h, MHD_OPTION_EXTERNAL_LOGGER, log_problem, NULL,
        MHD_OPTION_SOCK_ADDR, (const struct sockaddr *)address, MHD_OPTION_NOTIFY_CONNECTION,
        note_connection, h, MHD_OPTION_CONNECTION_LIMIT, LISTED_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, REQUEST_BYTES_MAX, MHD_OPTION_END);
}

int tsri_http_open(struct tsri_http **out, struct tsr_server *server, const struct tsri_options *o)
{
    struct sockaddr_storage address;
    *out = NULL;
    if (strcmp(o->http_listen, "off") == 0) return 0;
    int e = tsri_http_address(o->http_listen, &address);
    if (e) return e;
    struct tsri_http *h = tsri_alloc(1, sizeof *h);
    if (!h) return TSR_ENOMEM;
    h->server = server;
    e = read_token(h, o->http_token);
    if (e == 0 && !h->token && !tsri_http_is_loopback(&address))
        e = tsri_fail(TSR_ECONFIG,
                      "http_listen: %s is reachable from other machines: set http_token",
                      o->http_listen);
    if (e) {
        tsri_http_close(h);
        return e;
    }
    listen_at(h, &address);
    if (!h->daemon) {
        tsri_log(TSR_LOG_WARN, "http: status page and metrics are off: %s: %s", o->http_listen,
                 strerror(errno));
        tsri_http_close(h);
        return 0;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    tsri_log(TSR_LOG_INFO, "http: status page and metrics at http://%.*s:%u",
             (int)(strrchr(o->http_listen, ':') - o->http_listen), o->http_listen,
             info ? info->port : 0);
    *out = h;
    return 0;
}

void tsri_http_close(struct tsri_http *http)
{
    if (!http) return;
    if (http->daemon) MHD_stop_daemon(http->daemon);
    tsri_free(http->token);
    tsri_free(http);
}
