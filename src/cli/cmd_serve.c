/* cmd_serve.c - `tessera serve`: answers the OpenAI API from one model and its store, with a folder of
 * documents or without. It says in a few lines where it is and what it does, reads documents ahead
 * while nobody asks, and ends when it is told to: answers that are being written are finished, and
 * what was stored is on disk. */
#include "cli/serving.h"

#include "daemon/daemon.h"
#include "serve/access.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORT 7465
#define LAST_ANSWERS_S 30.0 /* how long answers may take to end, after a signal */

extern char **environ;

static volatile sig_atomic_t n_signals;

static void on_signal(int number)
{
    (void)number;
    n_signals++;
}

bool tsri_serving_ends(void)
{
    return n_signals > 0;
}

/* A new file for this user alone; -1 and errno: it is there, or cannot be made. */
static int make_private(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/* ---- the token ---- */

/* Makes the file, for this user alone. One that is there stays: clients keep their key. */
static int make_token_file(const char *path)
{
    char token[TSRI_TOKEN_BYTES];
    int fd = make_private(path);
    if (fd < 0 && errno == EEXIST) return 0;
    if (fd < 0)
        return tsri_cli_fail("%s: %s: name a file with a token by --token-file", path,
                             strerror(errno));
    bool fine = tsri_token_make(token) &&
                write(fd, token, TSRI_TOKEN_BYTES - 1) == (ssize_t)TSRI_TOKEN_BYTES - 1 &&
                write(fd, "\n", 1) == 1;
    if (close(fd) == 0 && fine) return 0;
    unlink(path);
    return tsri_cli_fail("%s: cannot write a token", path);
}

static int read_token(struct tsri_serving *v)
{
    const char *given = tsri_cli_flag(v->cli, "token-file");
    int e = 0;
    if (given) {
        snprintf(v->token_path, sizeof v->token_path, "%s", given);
    } else {
        char store[3072];
        tsri_reader_store(v->cli->config, store, sizeof store);
        snprintf(v->token_path, sizeof v->token_path, "%s/serve.token", store);
        e = make_token_file(v->token_path);
    }
    if (e) return e;
    v->token = tsri_read_private(v->token_path, "--token-file");
    if (!v->token) return tsri_cli_failed();
    v->token[strcspn(v->token, "\r\n")] = 0;
    if (!tsri_token_is_fine(v->token))
        return tsri_cli_fail("%s: a token has at least 16 characters and no spaces", v->token_path);
    if (!tsri_token_make(v->page_token)) return tsri_cli_fail("cannot make a token");
    return 0;
}

/* ---- the page ---- */

/* The page has a token of its own, which ends with this process: whoever gets the port next, and with
 * it the requests of a page that is still open, gets nothing that opens anything. Its address is in a
 * file, because others can see the arguments of a browser and what is written to a log. */
static void write_page_file(struct tsri_serving *v)
{
    char store[3072];
    tsri_reader_store(v->cli->config, store, sizeof store);
    snprintf(v->page_path, sizeof v->page_path, "%s/serve-%ld.html", store, (long)getpid());
    unlink(v->page_path);
    int fd = make_private(v->page_path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !f) close(fd);
    int n = f ? fprintf(f,
                        "<!doctype html><meta http-equiv=refresh "
                        "content=\"0;url=%s/#token=%s\">\n",
                        v->url, v->page_token)
              : -1;
    if (f && fclose(f) == 0 && n > 0) return;
    if (fd >= 0) unlink(v->page_path);
    v->page_path[0] = 0;
}

/* ---- the address ---- */

static int read_address(struct tsri_serving *v)
{
    const char *host = tsri_cli_flag(v->cli, "host");
    double port = PORT;
    char text[96];
    int e = tsri_cli_flag_count(v->cli, "port", 0, 65535, &port);
    if (e) return e;
    if (!host || strcmp(host, "localhost") == 0) host = "127.0.0.1";
    snprintf(text, sizeof text, strchr(host, ':') ? "[%.60s]:%.0f" : "%.60s:%.0f", host, port);
    if (tsri_http_address(text, &v->address) < 0)
        return tsri_cli_usage(v->cli, "--host=%s: must be an address such as 127.0.0.1 or ::1",
                              host);
    if (!tsri_http_is_loopback(&v->address) && !tsri_cli_flag(v->cli, "token-file"))
        return tsri_cli_usage(v->cli,
                              "--host=%s: other machines can reach it; name a file with a token by "
                              "--token-file",
                              host);
    snprintf(v->host, sizeof v->host, strchr(host, ':') ? "[%.60s]" : "%.60s", host);
    return 0;
}

static int port_in_use(const struct tsri_serving *v)
{
    return tsri_cli_fail("port %u is in use: choose another one with --port",
                         ntohs(((const struct sockaddr_in *)&v->address)->sin_port));
}

/* Whether the address is free, before anything that takes long. It is taken later: the one who takes
 * it then says so, too. */
static int check_address(const struct tsri_serving *v)
{
    const struct sockaddr *at = (const struct sockaddr *)&v->address;
    socklen_t bytes =
        at->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) return tsri_cli_fail("cannot listen: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int e = bind(fd, at, bytes) == 0 && listen(fd, 1) == 0 ? 0 : errno;
    close(fd);
    if (e == EADDRINUSE) return port_in_use(v);
    return e ? tsri_cli_fail("cannot listen at %s: %s", v->host, strerror(e)) : 0;
}

/* "tessera serve FOLDER" */
static int check_arguments(struct tsri_cli *cli)
{
    struct stat st;
    if (cli->n_args == 0 || stat(cli->args[0], &st) != 0 || !S_ISDIR(st.st_mode))
        return tsri_cli_want_args(cli, 0, 0);
    return tsri_cli_usage(cli, "serve: unexpected argument '%s'; did you mean --docs=%s?",
                          cli->args[0], cli->args[0]);
}

/* ---- start ---- */

/* The name of the file that the model is in. */
static void name_model(struct tsri_serving *v)
{
    char path[4096];
    const char *file = tsri_reader_model(tsri_cli_flag(v->cli, "model"), path, sizeof path, NULL);
    const char *slash = strrchr(file, '/');
    snprintf(v->model_name, sizeof v->model_name, "%s", slash ? slash + 1 : file);
    char *dot = strrchr(v->model_name, '.');
    if (dot && strcmp(dot, ".gguf") == 0) *dot = 0;
    tsri_plain(v->model_name);
}

/* Before the model is loaded and documents are indexed: that takes long. */
static int read_limits(struct tsri_serving *v)
{
    struct tsri_serve_desc *d = &v->limits;
    double max = 0, at_once = 0, seconds = 0;
    int e = tsri_cli_flag_count(v->cli, "max", 1, 1 << 20, &max);
    if (!e) e = tsri_cli_flag_count(v->cli, "at-once", 1, 64, &at_once);
    if (!e) e = tsri_cli_flag_count(v->cli, "time-limit", 1, 86400, &seconds);
    if (!e) e = tsri_cli_flag_number(v->cli, "temperature", 0, 2, &d->temperature);
    d->max_tokens = (uint32_t)max;
    d->n_running_max = (uint32_t)at_once;
    d->whole_s = (uint32_t)seconds;
    return e;
}

/* With the option chunked, a message may hold documents. */
static const char *separator_of(const struct tsri_cli *cli)
{
    const struct tsri_options *o = cli->config ? tsri_config_options(cli->config) : NULL;
    return o && o->chunked ? o->separator : NULL;
}

static int open_server(struct tsri_serving *v)
{
    char speed[4096];
    tsri_reader_beside(&v->reader, v->cli, "speed", speed, sizeof speed);
    struct tsri_serve_desc d = v->limits;
    d.model = v->reader.model;
    d.blend = v->reader.blend;
    d.cache = v->reader.cache;
    d.search = v->search;
    d.model_name = v->model_name;
    d.separator = separator_of(v->cli);
    d.speed_path = speed;
    d.token = v->token;
    d.page_token = v->page_token;
    d.address = &v->address;
    int e = tsri_serve_open(&v->serve, &d);
    if (e == TSR_EBUSY) return port_in_use(v);
    return tsri_cli_check(e);
}

static void tell(struct tsri_serving *v)
{
    unsigned port = tsri_serve_port(v->serve);
    snprintf(v->url, sizeof v->url, "http://%s:%u", v->host, port);
    write_page_file(v);
    if (v->cli->json) {
        tsri_cli_json("{\"url\":", v->url);
        tsri_cli_json(",\"model\":", v->model_name);
        tsri_cli_json(",\"token_file\":", v->token_path);
        tsri_cli_json(",\"page_file\":", v->page_path);
        printf(",\"port\":%u,\"context\":%u}\n", port, v->reader.info.context);
    } else {
        printf("model      %s, context %u tokens\n", v->model_name, v->reader.info.context);
        /* What goes to a file or a log may be read by others. */
        if (isatty(STDOUT_FILENO))
            printf("page       %s/#token=%s\n", v->url, v->page_token);
        else if (v->page_path[0])
            printf("page       %s, by opening %s\n", v->url, v->page_path);
        else
            printf("page       %s, which asks for the API key\n", v->url);
        printf("OpenAI API %s/v1, API key in %s\n"
               "Ctrl-C ends it.\n",
               v->url, v->token_path);
    }
    fflush(stdout);
}

static void open_browser(struct tsri_serving *v)
{
    if (tsri_cli_flag(v->cli, "no-open") || v->cli->json) return;
    if (!getenv("DISPLAY") && !getenv("WAYLAND_DISPLAY")) return;
    if (!v->page_path[0]) return;
    char *arguments[] = {(char *)(uintptr_t) "xdg-open", v->page_path, NULL};
    pid_t child; /* not waited for */
    (void)!posix_spawnp(&child, "xdg-open", NULL, NULL, arguments, environ);
}

/* ---- end ---- */

static void finish_answers(struct tsri_serving *v)
{
    double start = tsri_cli_now_s();
    uint32_t n = tsri_serve_busy(v->serve);
    tsri_serve_drain(v->serve);
    if (n) tsri_cli_note("ending; %u answers are being finished (Ctrl-C gives them up)", n);
    while (tsri_serve_busy(v->serve) && n_signals < 2 && tsri_cli_now_s() - start < LAST_ANSWERS_S)
        usleep(50000);
}

static void catch_signals(void)
{
    struct sigaction ours = {.sa_handler = on_signal};
    struct sigaction none = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &ours, NULL);
    sigaction(SIGTERM, &ours, NULL);
    sigaction(SIGPIPE, &none, NULL);
    /* Not ignored, whatever our parent did: pdftotext's status is waited for. */
    signal(SIGCHLD, SIG_DFL);
}

int tsri_cmd_serve(struct tsri_cli *cli)
{
    struct tsri_serving *v = tsri_alloc(1, sizeof *v);
    if (!v) return tsri_cli_fail("no memory");
    v->cli = cli;
    int e = check_arguments(cli);
    if (!e) e = tsri_cli_config(cli);
    if (!e) e = read_address(v);
    if (!e) e = read_limits(v);
    if (!e) e = tsri_serving_name_folders(v);
    if (!e) e = check_address(v);
    if (!e) catch_signals();
    if (!e) e = tsri_reader_open(&v->reader, cli);
    if (!e) e = read_token(v);
    if (!e) name_model(v);
    if (!e) e = tsri_serving_open_folders(v);
    if (!e && !n_signals) e = open_server(v);
    if (v->serve) {
        tell(v);
        open_browser(v);
        tsri_serving_run(v);
        finish_answers(v);
    }
    tsri_serve_close(v->serve);
    if (v->page_path[0]) unlink(v->page_path);
    tsri_serving_close_folders(v);
    tsri_reader_close(&v->reader);
    tsri_free(v->token);
    tsri_free(v);
    return e;
}
