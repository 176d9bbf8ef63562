/* world.c - the processes, the file system and the Redis server of one life. Everything lies in one
 * folder, and every process ends with the one that started it. */
#include "life/life.h"

#ifdef TSRI_HAVE_REDIS
#include "support/redis_kit.h"
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MS 60000 /* a call that takes longer hangs */
#define START_MS 20000u
#define FS_BYTES "48M"
#define ARGS_MAX 48

/* ---- the file system ---- */

static bool put_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return ok;
}

/* A namespace in which this process may mount; as root without one of users. */
static bool enter_namespace(void)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWNS) != 0) {
        char map[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
        snprintf(map, sizeof map, "%u %u 1", (unsigned)uid, (unsigned)uid);
        if (!put_text("/proc/self/uid_map", map)) return false;
        put_text("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "%u %u 1", (unsigned)gid, (unsigned)gid);
        put_text("/proc/self/gid_map", map);
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static bool mount_small(const char *path)
{
    return enter_namespace() && mount("none", path, "tmpfs", 0, "size=" FS_BYTES) == 0;
}

bool life_has_mounts(void)
{
    pid_t pid = fork();
    if (pid == 0) _exit(mount_small("/tmp") ? 0 : 1);
    int status = 1;
    return waitpid(pid, &status, 0) == pid && status == 0;
}

void life_fill(struct life_world *w, uint32_t spare_kb)
{
    struct statvfs st;
    char path[400];
    if (!w->plan->fills || statvfs(w->store, &st) != 0) return;
    uint64_t avail = (uint64_t)st.f_bavail * st.f_bsize, spare = (uint64_t)spare_kb << 10;
    snprintf(path, sizeof path, "%s/ballast", w->store);
    if (w->ballast < 0) w->ballast = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    w->full = true;
    off_t end = lseek(w->ballast, 0, SEEK_END);
    /* Others write meanwhile: what cannot be had any more is full already. */
    if (avail > spare && fallocate(w->ballast, 0, end, (off_t)(avail - spare)) != 0) return;
}

void life_unfill(struct life_world *w)
{
    if (w->ballast >= 0 && ftruncate(w->ballast, 0) != 0) perror("ballast");
}

/* ---- Redis ---- */

#ifdef TSRI_HAVE_REDIS
bool life_has_redis(void)
{
    return redis_kit_missing() == NULL;
}
static void redis_open(struct life_world *w)
{
    w->redis = calloc(1, sizeof *w->redis);
    if (!w->redis) abort();
    setenv("TMPDIR", w->dir, 1);
    redis_server_init(w->redis, NULL);
}
static const char *redis_address(const struct life_world *w)
{
    return w->redis->unix_;
}
void life_redis_restart(struct life_world *w)
{
    redis_server_kill(w->redis);
    redis_server_start(w->redis);
    w->redis_life++;
}
static void redis_close(struct life_world *w)
{
    redis_server_fini(w->redis);
    free(w->redis);
}
#else
bool life_has_redis(void)
{
    return false;
}
static void redis_open(struct life_world *w)
{
    (void)w;
}
static const char *redis_address(const struct life_world *w)
{
    (void)w;
    return "";
}
void life_redis_restart(struct life_world *w)
{
    (void)w;
}
static void redis_close(struct life_world *w)
{
    (void)w;
}
#endif

/* ---- processes ---- */

/* Arguments of a program, in memory that lives until it runs. */
struct args {
    char text[ARGS_MAX][400];
    char *list[ARGS_MAX + 1];
    int n;
};
static void add_arg(struct args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_arg(struct args *a, const char *fmt, ...)
{
    va_list list;
    if (a->n == ARGS_MAX) abort();
    va_start(list, fmt);
    vsnprintf(a->text[a->n], sizeof a->text[0], fmt, list);
    va_end(list);
    a->list[a->n] = a->text[a->n];
    a->list[++a->n] = NULL;
}

static void add_options(struct args *a, const struct life_world *w, const struct life_options *o,
                        const char *dashes)
{
    static const char *const policies[] = {"lru", "s3fifo", "adaptive"};
    add_arg(a, "%shost_size=%uK", dashes, o->host_kb);
    add_arg(a, "%shost_page_size=%uK", dashes, o->page_kb);
    add_arg(a, "%smetadata_size=1M", dashes);
    if (o->entries_max) add_arg(a, "%sentries_max=%u", dashes, o->entries_max);
    add_arg(a, "%sio_threads=%u", dashes, o->io_threads);
    add_arg(a, "%spolicy=%s", dashes, policies[o->policy % 3]);
    add_arg(a, "%sany_offset=%s", dashes, o->windows ? "true" : "false");
    add_arg(a, "%sdisk_segment_size=%uM", dashes, o->segment_mb);
    if (o->tiers & LIFE_DISK) {
        add_arg(a, "%sdisk_path=%s/d1", dashes, w->store);
        add_arg(a, "%sdisk_size=64M", dashes);
        add_arg(a, "%sdisk_io=%s", dashes, o->disk_io ? "threads" : "auto");
        add_arg(a, "%sdisk_write=%s", dashes, o->write ? "through" : "back");
    }
    if (o->tiers & LIFE_DISK2) {
        add_arg(a, "%sdisk2_path=%s/d2", dashes, w->store);
        add_arg(a, "%sdisk2_size=64M", dashes);
    }
    if (o->tiers & LIFE_REDIS) {
        add_arg(a, "%sredis_address=%s", dashes, redis_address(w));
        add_arg(a, "%sredis_absent_ms=0", dashes);
    }
}

static const char *self_path(const char *beside)
{
    static char path[600];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    if (n <= 0) abort();
    path[n] = '\0';
    if (!beside) return path;
    *strrchr(path, '/') = '\0';
    strcat(strcat(path, "/"), beside);
    return path;
}

/* What it says on stderr goes to a file in the folder; keep: a descriptor that it is given. */
static void spawn(struct life_world *w, struct life_process *p, const struct args *a, int keep)
{
    char log[400];
    snprintf(log, sizeof log, "%s/log", w->dir);
    p->life = ++w->n_lives;
    fflush(NULL);
    p->pid = fork();
    if (p->pid < 0) abort();
    if (p->pid > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    dup2(fd, 2);
    dup2(fd, 1);
    if (keep >= 0) fcntl(keep, F_SETFD, 0);
    execv(a->list[0], a->list);
    _exit(127);
}

static bool ended_well(struct life_process *p, int status, bool killed, char why[200])
{
    p->pid = 0;
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    if (WIFEXITED(status) && WEXITSTATUS(status) <= (p->may_fail ? 1 : 0)) return true;
    snprintf(why, 200, "a process ended with %s %d", WIFSIGNALED(status) ? "signal" : "exit status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return false;
}

bool life_process_died(struct life_process *p, char why[200])
{
    int status;
    if (p->pid == 0 || waitpid(p->pid, &status, WNOHANG) != p->pid) return false;
    if (ended_well(p, status, false, why)) snprintf(why, 200, "a process ended by itself");
    return true;
}

/* Waits for the end of one that was told to end. */
static bool await_end(struct life_process *p, bool killed, char why[200])
{
    int status;
    for (uint32_t ms = 0; ms < START_MS; ms++) {
        if (waitpid(p->pid, &status, WNOHANG) == p->pid) return ended_well(p, status, killed, why);
        usleep(1000);
    }
    snprintf(why, 200, "a process does not end");
    kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
    ended_well(p, status, true, why);
    return false;
}

bool life_say(struct life_process *p, const struct life_request *q)
{
    return send(p->fd, q, sizeof *q, MSG_NOSIGNAL) == (ssize_t)sizeof *q;
}

bool life_hear(struct life_process *p, struct life_reply *out)
{
    struct pollfd pf = {.fd = p->fd, .events = POLLIN};
    return poll(&pf, 1, ANSWER_MS) == 1 && recv(p->fd, out, sizeof *out, 0) == (ssize_t)sizeof *out;
}

/* ---- workers and tesserad ---- */

bool life_worker_start(struct life_world *w, uint32_t i, char why[200])
{
    static struct args a;
    static struct life_reply hello;
    struct life_process *p = &w->workers[i];
    bool owner = i == 0 && w->plan->owner != LIFE_DAEMON;
    int pair[2];
    a.n = 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) abort();
    add_arg(&a, "%s", self_path(NULL));
    add_arg(&a, "--worker");
    add_arg(&a, "%d", pair[1]);
    add_arg(&a, "%d", w->plan->evicts);
    add_arg(&a, "%d", w->plan->owner == LIFE_DAEMON);
    add_arg(&a, "%d", owner && w->plan->owner == LIFE_EMBEDDED);
    if (owner) add_options(&a, w, &w->options, "");
    if (w->plan->owner != LIFE_PROCESS) add_arg(&a, "server_socket=%s", w->socket);
    if (owner && w->plan->owner == LIFE_EMBEDDED) add_arg(&a, "owner=embedded");
    if (!owner) {
        add_arg(&a, "owner=daemon");
        add_arg(&a, "server_staging=%uM", w->plan->evicts ? 16u : 1u);
        add_arg(&a, "server_deadline=300");
        if (w->plan->owner == LIFE_DAEMON && i % 2) add_arg(&a, "server_token=secret-b");
    }
    spawn(w, p, &a, pair[1]);
    close(pair[1]);
    p->fd = pair[0];
    p->tenant = i % 2;
    memset(&hello, 0, sizeof hello);
    bool heard = life_hear(p, &hello);
    if (heard && hello.rc >= 0) return true;
    char ended[200];
    kill(p->pid, SIGKILL);
    await_end(p, true, ended);
    snprintf(why, 200, "worker %u: %s", i, heard ? hello.message : "ends while it opens");
    return false;
}

bool life_worker_stop(struct life_world *w, uint32_t i, bool killed, char why[200])
{
    struct life_process *p = &w->workers[i];
    struct life_request quit = {.op = LIFE_OP_QUIT};
    if (p->pid == 0) return true;
    if (killed)
        kill(p->pid, SIGKILL);
    else
        life_say(p, &quit);
    return await_end(p, killed, why);
}

static bool accepts(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0;
    close(fd);
    return ok;
}

static bool daemon_start(struct life_world *w, char why[200])
{
    static struct args a;
    a.n = 0;
    add_arg(&a, "%s", self_path("../../bin/tesserad"));
    add_options(&a, w, &w->options, "--");
    add_arg(&a, "--server_socket=%s", w->socket);
    add_arg(&a, "--server_tokens=%s/tokens", w->dir);
    add_arg(&a, "--http_listen=off");
    spawn(w, &w->daemon, &a, -1);
    w->daemon.fd = -1;
    for (uint32_t ms = 0; ms < START_MS; ms += 2) {
        if (life_process_died(&w->daemon, why)) return false;
        if (accepts(w->socket)) return true;
        usleep(2000);
    }
    snprintf(why, 200, "tesserad does not listen");
    return false;
}

struct life_process *life_owner(struct life_world *w)
{
    return w->plan->owner == LIFE_DAEMON ? &w->daemon : &w->workers[0];
}

bool life_owner_start(struct life_world *w, const struct life_options *o, char why[200])
{
    w->options = *o;
    w->daemon.may_fail = false;
    return w->plan->owner == LIFE_DAEMON ? daemon_start(w, why) : life_worker_start(w, 0, why);
}

bool life_owner_stop(struct life_world *w, bool killed, char why[200])
{
    if (w->plan->owner != LIFE_DAEMON) return life_worker_stop(w, 0, killed, why);
    if (w->daemon.pid == 0) return true;
    kill(w->daemon.pid, killed ? SIGKILL : SIGTERM);
    /* Its exit status says when entries could not be written. */
    w->daemon.may_fail = w->full || w->redis_life;
    return await_end(&w->daemon, killed, why);
}

void life_world_init(struct life_world *w, const struct life_plan *p, const char *dir)
{
    char tokens[300];
    memset(w, 0, sizeof *w);
    w->plan = p;
    w->ballast = w->daemon.fd = -1;
    for (uint32_t i = 0; i < LIFE_WORKERS; i++)
        w->workers[i].fd = -1;
    w->n_workers = p->owner == LIFE_PROCESS ? 1 : p->owner == LIFE_EMBEDDED ? 3 : 4;
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    snprintf(w->store, sizeof w->store, "%s/store", dir);
    snprintf(w->socket, sizeof w->socket, "%s/run/sock", dir);
    snprintf(tokens, sizeof tokens, "%s/tokens", dir);
    int fd = open(tokens, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (mkdir(w->store, 0700) != 0 || fd < 0 || write(fd, "b secret-b\n", 11) != 11) abort();
    close(fd);
    if (p->fills && !mount_small(w->store)) abort();
    if (p->tiers & LIFE_REDIS) redis_open(w);
    /* So that what a sanitizer says cannot be taken for entries that could not be written. */
    const char *asan = getenv("ASAN_OPTIONS");
    char options[1000];
    snprintf(options, sizeof options, "%s%sexitcode=99", asan ? asan : "", asan ? ":" : "");
    setenv("ASAN_OPTIONS", options, 1);
}

void life_world_fini(struct life_world *w)
{
    char why[200];
    for (uint32_t i = 0; i < LIFE_WORKERS; i++)
        life_worker_stop(w, i, true, why);
    life_owner_stop(w, true, why);
    if (w->ballast >= 0) close(w->ballast);
    if (w->redis) redis_close(w);
    if (w->plan->fills) umount2(w->store, MNT_DETACH);
}
