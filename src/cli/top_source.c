/* top_source.c - asks a server for its status: over its socket, as the other commands with
 * --connect, or over HTTP, which is all that `tessera serve` has. The HTTP is one GET of version
 * 1.0 on a connection of its own, so that the reply ends where the connection does. */
#include "cli/top.h"
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define ANSWER_NS 2000000000u /* keys wait for so long */
#define ANSWER_ONCE_NS 30000000000u
#define HTTP_OK 200
#define HTTP_TOKEN 401
#define SCHEME "http://"

/* ---- HTTP ---- */

bool tsri_top_url_parse(const char *url, char host[static 256], char port[static 8])
{
    if (strncmp(url, SCHEME, strlen(SCHEME)) != 0) return false;
    url += strlen(SCHEME);
    bool brackets = *url == '[';
    url += brackets;
    size_t n = strcspn(url, brackets ? "]" : ":/");
    if (n == 0 || n > 255 || (brackets && url[n] != ']')) return false;
    memcpy(host, url, n);
    host[n] = 0;
    url += n + brackets;
    if (*url != ':') return false;
    n = strspn(++url, "0123456789");
    if (n == 0 || n > 5 || (url[n] && url[n] != '/')) return false;
    memcpy(port, url, n);
    port[n] = 0;
    return strpbrk(host, " \r\n\t@") == NULL;
}

const char *tsri_top_http_body(const char *reply, size_t bytes, int *status, size_t *body_bytes)
{
    char line[16] = "", digits[4];
    memcpy(line, reply, bytes < sizeof line - 1 ? bytes : sizeof line - 1);
    const char *end = memmem(reply, bytes, "\r\n\r\n", 4);
    /* One space and digits: %d would go on after the line's end, and take a minus. */
    if (!end || sscanf(line, "HTTP/1.%*1[01]%*1[ ]%3[0-9]", digits) != 1) return NULL;
    *status = atoi(digits);
    *body_bytes = bytes - (size_t)(end + 4 - reply);
    return end + 4;
}

static bool wait_for(int fd, short events, uint64_t until_ns)
{
    uint64_t now = tsri_now_ns();
    struct pollfd p = {.fd = fd, .events = events};
    return now < until_ns && poll(&p, 1, (int)((until_ns - now) / 1000000 + 1)) == 1;
}

/* A socket that is connected and does not block, or -1. */
static int http_connect(const struct tsri_top_source *s, uint64_t until_ns)
{
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    int fd = -1;
    if (getaddrinfo(s->host, s->port, &want, &list) != 0) return -1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) continue;
        int error = 0;
        socklen_t bytes = sizeof error;
        bool ok = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ||
                  (errno == EINPROGRESS && wait_for(fd, POLLOUT, until_ns) &&
                   getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0);
        if (ok) break;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

static bool http_send(int fd, const char *request, uint64_t until_ns)
{
    for (size_t left = strlen(request); left > 0;) {
        ssize_t n = send(fd, request, left, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n < 0 && !wait_for(fd, POLLOUT, until_ns)) return false;
        if (n > 0) request += n, left -= (size_t)n;
    }
    return true;
}

/* Everything until the connection ends; NULL: it does not end in time, or not within the limit. */
static char *http_receive(int fd, uint64_t until_ns, size_t *bytes)
{
    char *text = NULL;
    size_t room = 0;
    for (*bytes = 0;;) {
        char *more =
            *bytes < TSRI_TOP_TEXT_MAX ? tsri_make_room(text, &room, *bytes + 65536, 1) : NULL;
        if (!more) break;
        text = more;
        ssize_t n = recv(fd, text + *bytes, room - *bytes, 0);
        if (n == 0) return text;
        if (n > 0) *bytes += (size_t)n;
        if (n < 0 && errno != EAGAIN && errno != EINTR) break;
        if (n < 0 && !wait_for(fd, POLLIN, until_ns)) break;
    }
    free(text);
    return NULL;
}

static int read_reply(const struct tsri_top_source *s, const char *reply, size_t bytes,
                      struct tsri_top_sample *out)
{
    int status = 0;
    size_t n;
    const char *body = tsri_top_http_body(reply, bytes, &status, &n);
    if (!body) return tsri_fail(TSR_EINVAL, "%s: the reply is not HTTP", s->where);
    if (status == HTTP_TOKEN)
        return tsri_fail(TSR_EPERM,
                         s->token ? "%s: wrong token"
                                  : "%s: a token is required: use --token-file (of tessera serve: "
                                    "serve.token in its store)",
                         s->where);
    if (status != HTTP_OK) return tsri_fail(TSR_EINVAL, "%s: HTTP status %d", s->where, status);
    return tsri_top_sample_read(out, body, n);
}

static int ask_http(struct tsri_top_source *s, struct tsri_top_sample *out)
{
    char request[1024], *reply = NULL;
    size_t bytes = 0;
    uint64_t until_ns = tsri_now_ns() + s->patience_ns;
    bool six = strchr(s->host, ':') != NULL;
    snprintf(request, sizeof request,
             "GET /api/stats HTTP/1.0\r\nHost: %s%s%s:%s\r\nConnection: close\r\n%s%s%s\r\n",
             six ? "[" : "", s->host, six ? "]" : "", s->port,
             s->token ? "Authorization: Bearer " : "", s->token ? s->token : "",
             s->token ? "\r\n" : "");
    int fd = http_connect(s, until_ns);
    if (fd < 0) return tsri_fail(TSR_EAGAIN, "no server answers at %s", s->where);
    if (http_send(fd, request, until_ns)) reply = http_receive(fd, until_ns, &bytes);
    close(fd);
    if (!reply) return tsri_fail(TSR_EAGAIN, "%s: no reply", s->where);
    int e = read_reply(s, reply, bytes, out);
    free(reply);
    return e;
}

/* ---- the socket ---- */

static int ask_socket(struct tsri_top_source *s, struct tsri_top_sample *out)
{
    struct tsri_request q;
    struct tsri_answer *a = NULL;
    int e = s->connected ? 0 : tsri_remote_try(&s->remote, s->cli);
    if (e) return e;
    s->connected = true;
    uint64_t until_ns = tsri_now_ns() + s->patience_ns;
    tsri_remote_clear(&q, TSRI_WIRE_STATS)->value = TSRI_WIRE_STATS_STATUS;
    e = tsri_link_start(s->remote.link, s->remote.session, &q, until_ns, &a);
    if (e == 0) e = tsri_link_wait(a, until_ns);
    if (e >= 0) e = tsri_top_sample_read(out, a->reply.text, a->reply.text_bytes);
    tsri_link_end(a);
    if (e < 0) { /* the next one connects again */
        tsri_remote_close(&s->remote);
        s->connected = false;
    }
    return e;
}

/* ---- both ---- */

static int open_http(struct tsri_top_source *s, const char *url)
{
    const char *file = tsri_cli_flag(s->cli, "token-file");
    if (tsri_remote_wanted(s->cli))
        return tsri_cli_usage(s->cli, "top: use a URL or --connect, not both");
    if (!tsri_top_url_parse(url, s->host, s->port))
        return tsri_cli_usage(s->cli, "%s: must be http://ADDRESS:PORT", url);
    snprintf(s->where, sizeof s->where, SCHEME "%s:%s", s->host, s->port);
    if (!file) return 0;
    s->token = tsri_read_private(file, "--token-file");
    if (!s->token) return tsri_cli_failed();
    s->token[strcspn(s->token, " \t\r\n")] = 0;
    return strlen(s->token) <= 512 ? 0 : tsri_cli_fail("%s: not a token", file);
}

int tsri_top_source_open(struct tsri_top_source *s, struct tsri_cli *cli)
{
    *s = (struct tsri_top_source){
        .cli = cli, .patience_ns = tsri_cli_flag(cli, "once") ? ANSWER_ONCE_NS : ANSWER_NS};
    if (cli->n_args) return open_http(s, cli->args[0]);
    if (tsri_cli_flag(cli, "token-file"))
        return tsri_cli_usage(cli, "top: --token-file is for a URL; sockets have --server_token");
    int status = tsri_cli_config(cli);
    if (status) return status;
    char path[TSRI_SOCKET_PATH_BYTES];
    if (tsri_remote_path(cli, path) != 0) return tsri_cli_failed();
    snprintf(s->where, sizeof s->where, "%s", path);
    return 0;
}

void tsri_top_source_close(struct tsri_top_source *s)
{
    if (s->connected) tsri_remote_close(&s->remote);
    tsri_free(s->token);
    memset(s, 0, sizeof *s);
}

int tsri_top_source_next(struct tsri_top_source *s, struct tsri_top_sample *out)
{
    return s->host[0] ? ask_http(s, out) : ask_socket(s, out);
}
