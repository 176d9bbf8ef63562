/* redis_kit.c - real servers for tests and benches. */
#include "support/redis_kit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define START_MS 10000u

static void sleep_ms(uint32_t ms)
{
    usleep(ms * 1000);
}

static bool installed(const char *program)
{
    const char *path = getenv("PATH");
    char file[4096];
    for (; path && *path; path += strcspn(path, ":"), path += *path == ':') {
        snprintf(file, sizeof file, "%.*s/%s", (int)strcspn(path, ":"), path, program);
        if (access(file, X_OK) == 0) return true;
    }
    return false;
}

/* Debian's redis-server is another name of redis-check-rdb of redis-tools, told apart by the name
 * it is called by; the package redis-server would also start a server on this machine. */
static const char *program(void)
{
    return installed("redis-server") ? "redis-server" : "redis-check-rdb";
}

const char *redis_kit_missing(void)
{
    return installed(program()) ? NULL : "redis-server is not installed (tools/setup)";
}

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 0;
    /* A cluster also listens at port + 10000. */
    for (int i = 0; i < 100 && (port == 0 || port > 50000); i++) {
        close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        a.sin_port = 0;
        if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &bytes) == 0)
            port = ntohs(a.sin_port);
    }
    close(fd);
    return port;
}

static void run_server(const struct redis_server *s)
{
    char port[16], socket_path[300], log[300];
    snprintf(port, sizeof port, "%d", s->port);
    snprintf(socket_path, sizeof socket_path, "%s/s", s->dir.path);
    snprintf(log, sizeof log, "%s/log", s->dir.path);
    const char *argv[40] = {"redis-server", "--port",     port,        "--bind",
                            "127.0.0.1",    "--dir",      s->dir.path, "--unixsocket",
                            socket_path,    "--save",     "",          "--appendonly",
                            "no",           "--logfile",  log,         "--daemonize",
                            "no",           "--loglevel", "warning",   NULL};
    int n = 0;
    while (argv[n])
        n++;
    for (int i = 0; s->args[i] && n < 38; i++)
        argv[n++] = s->args[i];
    argv[n] = NULL;
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    execvp(program(), (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Whether it answers, with anything. */
static bool answers(const struct redis_server *s)
{
    return redis_server_do(s, (const char *const[]){"PING", NULL})[0] != '\0';
}

void redis_server_start(struct redis_server *s)
{
    pid_t parent = getpid();
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        run_server(s);
    }
    for (uint32_t ms = 0; ms < START_MS; ms += 10) {
        if (answers(s)) return;
        sleep_ms(10);
    }
    fprintf(stderr, "redis-server at port %d does not come up\n", s->port);
    abort();
}

void redis_server_init(struct redis_server *s, const char *const *more)
{
    memset(s, 0, sizeof *s);
    tmpdir_init(&s->dir);
    for (int i = 0; more && more[i] && i < 15; i++)
        s->args[i] = more[i];
    s->port = free_port();
    snprintf(s->tcp, sizeof s->tcp, "127.0.0.1:%d", s->port);
    snprintf(s->unix_, sizeof s->unix_, "unix:%s/s", s->dir.path);
    redis_server_start(s);
}

void redis_server_kill(struct redis_server *s)
{
    if (s->pid <= 0) return;
    kill(s->pid, SIGCONT);
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void redis_server_fini(struct redis_server *s)
{
    redis_server_kill(s);
    tmpdir_fini(&s->dir);
}

const char *redis_server_do(const struct redis_server *s, const char *const *args)
{
    static char text[4096];
    text[0] = '\0';
    struct timeval limit = {5, 0};
    redisContext *c = redisConnectWithTimeout("127.0.0.1", s->port, limit);
    int n = 0;
    while (args[n])
        n++;
    if (!c || c->err) {
        if (c) redisFree(c);
        return text;
    }
    redisSetTimeout(c, limit);
    redisReply *r = redisCommandArgv(c, n, (const char **)(uintptr_t)args, NULL);
    if (r && r->type == REDIS_REPLY_INTEGER) snprintf(text, sizeof text, ":%lld", r->integer);
    if (r && r->type == REDIS_REPLY_STATUS) snprintf(text, sizeof text, "+%s", r->str);
    if (r && r->type == REDIS_REPLY_ERROR) snprintf(text, sizeof text, "-%s", r->str);
    if (r && r->type == REDIS_REPLY_STRING) snprintf(text, sizeof text, "$%s", r->str);
    if (r && r->type == REDIS_REPLY_NIL) snprintf(text, sizeof text, "$");
    if (r && r->type == REDIS_REPLY_ARRAY) snprintf(text, sizeof text, "*%zu", r->elements);
    freeReplyObject(r);
    redisFree(c);
    return text;
}

/* ---- tiers ---- */

int redis_kit_open(struct redis_kit *kit, const char *address)
{
    kit->setup.address = address;
    struct tsr_tier_desc env = {.size = sizeof env,
                                .arg = &kit->setup,
                                .n_threads = kit->n_threads ? kit->n_threads : 2,
                                .tenant = kit->tenant};
    return tsri_tier_open(&kit->tier, &tsri_tier_redis, &env);
}

void redis_kit_close(struct redis_kit *kit)
{
    tsri_tier_close(kit->tier);
    kit->tier = NULL;
}

void redis_kit_name(struct redis_kit *kit, const struct redis_server *s,
                    const struct kv_shape *shape, uint64_t seed, uint32_t part,
                    char name[TSRI_REDIS_NAME_BYTES])
{
    struct tsr_tier_ref ref = kv_tier_ref(shape, seed);
    const char *root = ((const struct tsri_redis *)kit->tier)->root;
    tsri_redis_name(name, root, ref.space, &ref.key, 0, TSRI_REDIS_RECORD);
    if (part == TSRI_REDIS_RECORD) return;
    redisContext *c = redisConnect("127.0.0.1", s->port);
    redisReply *r = redisCommand(c, "GET %s", name);
    struct tsri_parcel remote;
    if (!r || r->type != REDIS_REPLY_STRING ||
        tsri_parcel_read((const uint8_t *)r->str, r->len, &remote) != 0)
        abort();
    tsri_redis_name(name, root, ref.space, &ref.key, remote.nonce, part);
    freeReplyObject(r);
    redisFree(c);
}
