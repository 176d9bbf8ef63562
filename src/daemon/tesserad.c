/* tesserad.c - the server as a program: reads its configuration, opens a cache for every tenant,
 * serves until it is told to stop. It stays in the foreground; whoever starts it (systemd, a shell,
 * a container) keeps it running. SIGTERM and SIGINT end it after what was asked for is done, SIGHUP
 * reads the configuration again. */
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FAILED 1
#define USAGE 2
#define ACTIVATION_FD 3 /* sd_listen_fds(3) */

static atomic_int log_level; /* enum tsr_log_level */

struct args {
    int n_options;
    char **options; /* configuration flags */
    bool check, help, version;
};

static const char usage[] =
    "usage: tesserad [--config FILE] [--check] [--OPTION=VALUE ...]\n"
    "       tesserad --help | --version\n"
    "\n"
    "Serves a KV cache to the processes of this machine, in the foreground.\n"
    "\n"
    "  --config FILE     configuration file, see tessera.conf(5)\n"
    "  --check           check the configuration and exit\n"
    "  --OPTION=VALUE    any option of tessera.conf(5); overrides file and environment\n"
    "\n"
    "SIGTERM finishes pending requests and stops; SIGHUP reloads the configuration.\n";

/* Levels change with SIGHUP while threads write, so they are judged here. */
static void log_line(void *arg, int level, const char *text)
{
    if (level <= atomic_load(&log_level)) tsr_log_stderr(arg, level, text);
}

static int complain(int status)
{
    fprintf(stderr, "tesserad: %s\n", tsr_errmsg());
    return status;
}

/* ---- configuration ---- */

static int parse(struct args *a, int argc, char **argv)
{
    a->options = tsri_alloc((size_t)argc + 1, sizeof *a->options);
    if (!a->options) return TSR_ENOMEM;
    for (int i = 1; i < argc; i++) {
        const char *file = NULL;
        if (strcmp(argv[i], "--check") == 0) {
            a->check = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            a->help = true;
        } else if (strcmp(argv[i], "--version") == 0) {
            a->version = true;
        } else if (strcmp(argv[i], "--config") == 0) {
            if (i + 1 == argc || strncmp(argv[i + 1], "--", 2) == 0)
                return tsri_fail(TSR_ECONFIG, "--config needs a file");
            file = argv[++i];
        } else if (strncmp(argv[i], "--config=", 9) == 0) {
            file = argv[i] + 9;
        } else {
            a->options[a->n_options++] = argv[i];
        }
        /* The environment's file comes before its variables, however it was named. */
        if (file && setenv("TESSERA_CONFIG_FILE", file, 1) != 0)
            return tsri_fail(TSR_ENOMEM, "out of memory");
    }
    return 0;
}

static int configure(struct tsr_config **out, void *arg)
{
    const struct args *a = arg;
    int e = tsr_config_open(out);
    if (e) return e;
    e = tsr_config_load_env(*out);
    int n = e ? e : tsr_config_load_args(*out, a->n_options, a->options);
    if (n >= 0 && n < a->n_options) n = tsri_fail(TSR_ECONFIG, "unknown option %s", a->options[n]);
    if (n >= 0) n = tsri_config_check(*out);
    if (n < 0) {
        tsr_config_close(*out);
        *out = NULL;
        return n;
    }
    return 0;
}

/* Reading the configuration has log lines, and the level is in what is read: they wait. */
static int configure_and_log(struct tsr_config **out, struct args *a)
{
    static struct tsri_log_held held;
    tsr_log_set(tsri_log_hold, &held, TSR_LOG_DEBUG);
    int e = configure(out, a);
    int level = e ? TSR_LOG_WARN : (int)tsri_config_options(*out)->log_level;
    atomic_store(&log_level, level);
    tsr_log_set(log_line, NULL, TSR_LOG_DEBUG);
    tsri_log_tell(&held, level, tsr_log_stderr, NULL);
    return e;
}

/* What changed since the start: taken over where that is possible, pointed out where it is not. */
static void reload(struct args *a, const struct tsr_config *running, struct tsri_tenants *t)
{
    struct tsr_config *cfg;
    if (configure(&cfg, a) != 0) {
        tsri_log(TSR_LOG_ERROR, "not reloaded: %s", tsr_errmsg());
        return;
    }
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        const char *is = tsri_config_value(running, o), *now = tsri_config_value(cfg, o);
        if (!(o->flags & TSRI_OPT_RELOAD) && strcmp(is, now) != 0)
            tsri_log(TSR_LOG_WARN, "%s stays %s until restart", o->name,
                     o->flags & TSRI_OPT_SECRET ? "unchanged" : is);
    }
    const struct tsri_options *o = tsri_config_options(cfg);
    atomic_store(&log_level, o->log_level);
    for (uint32_t i = 0; i < t->n; i++)
        tsr_cache_freeze(t->list[i].cache, o->frozen);
    tsri_log(TSR_LOG_INFO, "reloaded: log_level %s, frozen %s", tsr_config_get(cfg, "log_level"),
             tsr_config_get(cfg, "frozen"));
    tsr_config_close(cfg);
}

/* ---- the service manager ---- */

/* sd_notify(3), without its library. */
static void notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof to.sun_path) return;
    memcpy(to.sun_path, path, strlen(path));
    if (*path == '@') to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to, bytes);
    close(fd);
}

/* sd_listen_fds(3): the socket that was opened for us, or -1. */
static int activation_fd(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    if (!pid || !n || strtol(pid, NULL, 10) != getpid() || strtol(n, NULL, 10) < 1) return -1;
    return ACTIVATION_FD;
}

/* Three descriptors a client; what the system allows. */
static void raise_descriptors(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return;
    r.rlim_cur = r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
}

/* ---- running ---- */

static void wait_for_the_end(struct args *a, const struct tsr_config *cfg, struct tsri_tenants *t,
                             const sigset_t *signals)
{
    int signal;
    while (sigwait(signals, &signal) == 0 && signal == SIGHUP) {
        notify("RELOADING=1");
        reload(a, cfg, t);
        notify("READY=1");
    }
}

static int serve(struct args *a, const struct tsr_config *cfg)
{
    const struct tsri_options *o = tsri_config_options(cfg);
    struct tsri_tenants tenants;
    struct tsr_server *server;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* threads started from here on too */
    raise_descriptors();
    if (tsri_tenants_init(&tenants, o, configure, a) != 0) return complain(FAILED);
    struct tsri_server_desc desc = {
        .tenants = tenants.list, .n_tenants = tenants.n, .listen_fd = activation_fd()};
    if (tsri_server_open(&server, &desc, o) != 0) {
        int status = complain(FAILED);
        tsri_tenants_fini(&tenants);
        return status;
    }
    struct tsri_http *http;
    if (tsri_http_open(&http, server, o) != 0) {
        int status = complain(FAILED);
        tsr_server_close(server);
        tsri_tenants_fini(&tenants);
        return status;
    }
    tsri_log(TSR_LOG_INFO, "tesserad %s serves %u tenant%s at %s", tsr_version(), tenants.n,
             tenants.n == 1 ? "" : "s", tsr_server_path(server));
    notify("READY=1");
    wait_for_the_end(a, cfg, &tenants, &signals);
    notify("STOPPING=1");
    tsri_http_close(http);
    tsr_server_close(server);
    int status = 0;
    for (uint32_t i = 0; i < tenants.n; i++) {
        uint64_t n_lost; /* those who stored it were told, or could have asked */
        if (tsri_cache_flush(tenants.list[i].cache, &n_lost) != 0) status = complain(FAILED);
    }
    tsri_tenants_fini(&tenants);
    tsri_log(TSR_LOG_INFO, "tesserad: stopped");
    return status;
}

int main(int argc, char **argv)
{
    struct args a = {0};
    struct tsr_config *cfg = NULL;
    int status = 0;
    if (parse(&a, argc, argv) != 0) {
        status = complain(USAGE);
    } else if (a.help) {
        fputs(usage, stdout);
    } else if (a.version) {
        printf("tesserad %s\n", tsr_version());
    } else if (configure_and_log(&cfg, &a) != 0) {
        status = complain(FAILED);
    } else if (a.check) {
        tsri_config_warn(cfg);
        puts("tesserad: the configuration is valid");
    } else {
        status = serve(&a, cfg);
    }
    tsr_config_close(cfg);
    tsri_free(a.options);
    return status;
}
