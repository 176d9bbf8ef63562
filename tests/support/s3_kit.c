/* s3_kit.c - a real S3 server for tests and benches. */
#include "support/s3_kit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define VERSION "4.48" /* as tools/setup-s3 has it */
#define START_MS 60000u

/* TESSERA_WEED, the cache folder of tools/setup, or PATH. */
static const char *program(void)
{
    static char file[4096];
    struct utsname machine;
    const char *given = getenv("TESSERA_WEED"), *deps = getenv("TESSERA_DEPS_DIR");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *path = getenv("PATH");
    uname(&machine);
    if (given && given[0]) return access(given, X_OK) == 0 ? given : NULL;
    snprintf(file, sizeof file, "%s%s/seaweedfs-%s-%s/weed",
             deps    ? deps
             : cache ? cache
             : home  ? home
                     : "/nonexistent",
             deps    ? ""
             : cache ? "/tessera"
                     : "/.cache/tessera",
             VERSION, machine.machine);
    if (access(file, X_OK) == 0) return file;
    for (; path && *path; path += strcspn(path, ":"), path += *path == ':') {
        snprintf(file, sizeof file, "%.*s/weed", (int)strcspn(path, ":"), path);
        if (access(file, X_OK) == 0) return file;
    }
    return NULL;
}

const char *s3_kit_missing(void)
{
    return program() ? NULL : "no S3 server is installed (tools/setup --s3)";
}

/* ---- one request ---- */

long s3_server_do(const char *endpoint, enum tsri_s3_http_method method, const char *path,
                  const void *body, size_t bytes, char *reply, size_t reply_bytes)
{
    struct tsri_s3_login login = {(char *)(uintptr_t)S3_KIT_KEY, (char *)(uintptr_t)S3_KIT_SECRET,
                                  NULL};
    struct tsri_throttle throttle;
    struct tsri_s3_http_setup setup = {.login = &login,
                                       .region = "us-east-1",
                                       .connections = 1,
                                       .timeout_ms = 10000,
                                       .throttle = &throttle};
    struct tsri_s3_http *http;
    struct tsri_s3_http_batch batch;
    struct tsri_s3_http_req *req = calloc(1, sizeof *req);
    char none[64];
    tsri_throttle_init(&throttle, 0);
    tsri_s3_http_batch_init(&batch);
    if (tsri_s3_http_open(&http, &setup) != 0) abort();
    if (!reply) reply = none, reply_bytes = sizeof none;
    req->method = method;
    req->batch = &batch;
    snprintf(req->url, sizeof req->url, "%s%s", endpoint, path);
    req->bodies[0] = tsri_stream_flat((void *)(uintptr_t)body, bytes);
    req->sinks[0] = tsri_stream_flat(reply, reply_bytes - 1);
    tsri_s3_http_send(http, req);
    (void)tsri_s3_http_next(&batch);
    long status = req->end == TSRI_S3_HTTP_ANSWERED ? req->status : 0;
    reply[req->bytes < reply_bytes ? req->bytes : 0] = '\0';
    tsri_s3_http_close(http, false);
    tsri_s3_http_batch_fini(&batch);
    tsri_throttle_fini(&throttle);
    free(req);
    return status;
}

/* ---- the server ---- */

/* Each part of it also listens at its port + 10000. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 200; i++) {
        socklen_t bytes = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
        a.sin_port = 0;
        if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &bytes) == 0)
            port = ntohs(a.sin_port);
        close(fd);
        if (port && port < 55000) return port;
    }
    abort();
}

static void write_config(const struct s3_server *s)
{
    char path[300];
    snprintf(path, sizeof path, "%s/s3.json", s->dir.path);
    FILE *f = fopen(path, "w");
    if (!f) abort();
    fprintf(f,
            "{\"identities\":[{\"name\":\"tests\",\"credentials\":[{\"accessKey\":\"%s\","
            "\"secretKey\":\"%s\"}],\"actions\":[\"Admin\",\"Read\",\"Write\",\"List\"]},"
            "{\"name\":\"reader\",\"credentials\":[{\"accessKey\":\"reader\","
            "\"secretKey\":\"%s\"}],\"actions\":[\"Read\",\"List\"]}]}",
            S3_KIT_KEY, S3_KIT_SECRET, S3_KIT_SECRET);
    fclose(f);
}

static void run_server(const struct s3_server *s)
{
    char args[9][320];
    snprintf(args[0], sizeof args[0], "-dir=%s", s->dir.path);
    snprintf(args[1], sizeof args[1], "-s3.port=%d", s->port);
    snprintf(args[2], sizeof args[2], "-s3.config=%s/s3.json", s->dir.path);
    snprintf(args[3], sizeof args[3], "-master.port=%d", s->inner_ports[0]);
    snprintf(args[4], sizeof args[4], "-volume.port=%d", s->inner_ports[1]);
    snprintf(args[5], sizeof args[5], "-filer.port=%d", s->inner_ports[2]);
    snprintf(args[6], sizeof args[6], "%s/log", s->dir.path);
    snprintf(args[7], sizeof args[7], "-s3.localSocket=%s/s3.sock", s->dir.path);
    snprintf(args[8], sizeof args[8], "-filer.localSocket=%s/filer.sock", s->dir.path);
    char *const argv[] = {(char *)(uintptr_t) "weed",
                          (char *)(uintptr_t) "server",
                          args[0],
                          (char *)(uintptr_t) "-ip=127.0.0.1",
                          (char *)(uintptr_t) "-ip.bind=127.0.0.1",
                          (char *)(uintptr_t) "-s3",
                          args[1],
                          args[2],
                          args[3],
                          args[4],
                          args[5],
                          (char *)(uintptr_t) "-s3.port.iceberg=0",
                          (char *)(uintptr_t) "-s3.port.lance=0",
                          (char *)(uintptr_t) "-s3.domainName=localhost",
                          args[7],
                          args[8],
                          (char *)(uintptr_t) "-volume.max=30",
                          (char *)(uintptr_t) "-master.volumeSizeLimitMB=256",
                          (char *)(uintptr_t) "-master.telemetry=false",
                          (char *)(uintptr_t) "-master.electionTimeout=1s",
                          (char *)(uintptr_t) "-master.heartbeatInterval=100ms",
                          (char *)(uintptr_t) "-master.resumeState=false",
                          NULL};
    int null = open("/dev/null", O_RDWR), log = open(args[6], O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    if (chdir(s->dir.path) == 0) execv(program(), argv);
    _exit(127);
}

void s3_server_start(struct s3_server *s)
{
    pid_t parent = getpid();
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        run_server(s);
    }
    /* It answers before it can store: it is there when a bucket can be made and written to. */
    for (uint32_t ms = 0; ms < START_MS; ms += 100) {
        long status =
            s3_server_do(s->endpoint, TSRI_S3_HTTP_PUT, "/" S3_KIT_BUCKET, "", 0, NULL, 0);
        if ((status == 200 || status == 409) &&
            s3_server_do(s->endpoint, TSRI_S3_HTTP_PUT, "/" S3_KIT_BUCKET "/up", "up", 2, NULL,
                         0) == 200)
            return;
        usleep(100000);
    }
    fprintf(stderr, "the S3 server at port %d does not come up\n", s->port);
    abort();
}

void s3_server_init(struct s3_server *s)
{
    memset(s, 0, sizeof *s);
    unsetenv("http_proxy");
    tmpdir_init(&s->dir);
    write_config(s);
    s->port = free_port();
    for (int i = 0; i < 3; i++)
        s->inner_ports[i] = free_port();
    snprintf(s->endpoint, sizeof s->endpoint, "http://127.0.0.1:%d", s->port);
    s3_server_start(s);
}

void s3_server_kill(struct s3_server *s)
{
    if (s->pid <= 0) return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void s3_server_fini(struct s3_server *s)
{
    static const char *const parts[] = {"master", "volume", "filer"};
    char path[128];
    s3_server_kill(s);
    /* What it leaves in places that cannot be chosen. */
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "/tmp/seaweedfs-%s-grpc-%d.sock", parts[i],
                 s->inner_ports[i] + 10000);
        unlink(path);
    }
    snprintf(path, sizeof path, "/tmp/seaweedfs-s3-grpc-%d.sock", s->port + 10000);
    unlink(path);
    tmpdir_fini(&s->dir);
}

/* ---- the log ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[16384];

static void keep_line(void *arg, int level, const char *text)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&log_lock);
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", text);
    pthread_mutex_unlock(&log_lock);
}

void s3_kit_log_begin(void)
{
    tsr_log_set(keep_line, NULL, TSR_LOG_WARN);
    pthread_mutex_lock(&log_lock);
    log_text[0] = '\0';
    pthread_mutex_unlock(&log_lock);
}

const char *s3_kit_log(void)
{
    static char copy[sizeof log_text];
    pthread_mutex_lock(&log_lock);
    memcpy(copy, log_text, sizeof copy);
    pthread_mutex_unlock(&log_lock);
    return copy;
}

int s3_kit_log_lines(int n)
{
    uint64_t until = tsri_now_ns() + 1000000000u;
    for (;;) {
        int n_lines = 0;
        for (const char *at = s3_kit_log(); (at = strchr(at, '\n')) != NULL; at++)
            n_lines++;
        if (n_lines >= n || tsri_now_ns() >= until) return n_lines;
        usleep(5000);
    }
}

/* ---- tiers ---- */

int s3_kit_open(struct s3_kit *kit, const char *endpoint)
{
    struct tsri_s3_setup *set = &kit->setup;
    set->endpoint = endpoint;
    if (!set->bucket) set->bucket = S3_KIT_BUCKET;
    if (!set->access_key) {
        set->access_key = S3_KIT_KEY;
        if (!set->secret_key) set->secret_key = S3_KIT_SECRET;
    }
    struct tsr_tier_desc env = {.size = sizeof env,
                                .arg = set,
                                .n_threads = kit->n_threads ? kit->n_threads : 2,
                                .tenant = kit->tenant};
    return tsri_tier_open(&kit->tier, &tsri_tier_s3, &env);
}

void s3_kit_close(struct s3_kit *kit)
{
    tsri_tier_close(kit->tier);
    kit->tier = NULL;
}

void s3_kit_path(const struct s3_kit *kit, const struct kv_shape *shape, uint64_t seed,
                 char path[TSRI_S3_URL_BYTES])
{
    struct tsr_tier_ref ref = kv_tier_ref(shape, seed);
    char name[TSRI_S3_NAME_BYTES];
    tsri_s3_name(name, ((const struct tsri_s3 *)kit->tier)->dir, ref.space, &ref.key);
    snprintf(path, TSRI_S3_URL_BYTES, "/%s/%s", kit->setup.bucket, name);
}

bool s3_kit_listed(const struct s3_kit *kit, uint32_t n, uint32_t ms)
{
    struct tsri_s3 *s = (struct tsri_s3 *)kit->tier;
    uint64_t until = tsri_now_ns() + (uint64_t)ms * 1000000;
    while (atomic_load(&s->n_listings) < n) {
        if (tsri_now_ns() >= until) return false;
        usleep(5000);
    }
    return true;
}
