/* test_strangers.c - tesserad as a program with several tenants above one disk, one Redis and one
 * bucket. Whatever tier an entry is in, no other tenant finds it, plants another in its place or
 * clears it, and its own tenant finds it again, after restarts and, where `tenant` says
 * that machines belong together, from another machine. Tenants are told apart by tokens and, where
 * the tests run as root, by their uids. */
#include "support/served_kit.h"
#include "support/test.h"
#ifdef TSRI_HAVE_REDIS
#include "support/redis_kit.h"
#endif
#ifdef TSRI_HAVE_S3
#include "support/s3_kit.h"
#include "support/s3_stub.h"
#endif

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 40, OPTIONS_MAX = 40, STRANGER = 65533 };

static struct tmpdir dir;

/* ---- a tesserad ---- */

struct machine {
    const char *name, *host; /* host: NULL: this machine's */
    const char *options[OPTIONS_MAX];
    char socket[TSRI_SOCKET_PATH_BYTES];
    pid_t pid;
};

static bool listens(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = connect(fd, (struct sockaddr *)&to, sizeof to) == 0;
    close(fd);
    return ok;
}

static void exec_tesserad(struct machine *m)
{
    static char program[512], flags[OPTIONS_MAX][600];
    const char *b = getenv("B"), *argv[OPTIONS_MAX + 1] = {program};
    int n = 1;
    snprintf(program, sizeof program, "%s/bin/tesserad", b ? b : "build");
    snprintf(flags[0], sizeof flags[0], "--server_socket=%s", m->socket);
    argv[n++] = flags[0];
    for (int i = 0; m->options[i]; i += 2) {
        snprintf(flags[n], sizeof flags[n], "--%s=%s", m->options[i], m->options[i + 1]);
        argv[n] = flags[n];
        n++;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (m->host && (unshare(CLONE_NEWUTS) != 0 || sethostname(m->host, strlen(m->host)) != 0))
        _exit(99);
    execv(program, (char **)(uintptr_t)argv);
    _exit(98);
}

/* Ends the test when it does not come up. */
static void start(struct machine *m)
{
    if (sandbox_refuses_memfd()) SKIP(SANDBOX_NO_MEMFD);
    snprintf(m->socket, sizeof m->socket, "%.70s/%s/sock", dir.path, m->name);
    fflush(stdout);
    m->pid = fork();
    if (m->pid == 0) exec_tesserad(m);
    for (int i = 0; i < 400 && !listens(m->socket); i++) {
        CHECK_INT(waitpid(m->pid, NULL, WNOHANG), 0);
        usleep(25000);
    }
    CHECK(listens(m->socket));
}

static void stop(struct machine *m)
{
    int status;
    kill(m->pid, SIGTERM);
    CHECK_INT(waitpid(m->pid, &status, 0), m->pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void restart(struct machine *m)
{
    stop(m);
    start(m);
}

/* ---- people ---- */

struct person {
    uint32_t uid; /* 0: as the tests run */
    const char *token;
};

enum deed { STORE, FIND, CLEAR };

/* In a process of the person's own. STORE: tokens kept, flushed. FIND: tokens that are known, or
 * that the servers below have, loaded and every byte compared. CLEAR: everything. */
static int act(const char *socket, const struct person *who, enum deed deed, uint64_t text)
{
    struct kit k;
    struct tsr_range range;
    if (who->uid && (setgid(who->uid) != 0 || setuid(who->uid) != 0)) return -100;
    /* A machine with much to do is no reason to find nothing. */
    const char *const options[] = {"server_token", who->token, "server_deadline", "20000", NULL};
    served_kit_open(&k, socket, options);
    uint32_t *tokens = kit_tokens(text, TOKENS);
    struct tsr_prompt p = kit_segment_prompt(tokens, TOKENS, &range);
    struct tsr_clear_desc all = {.size = sizeof all, .tier = -1};
    int n = 0, e = 0;
    if (deed == STORE) {
        n = kit_store_segment(&k, tokens, TOKENS);
        e = tsr_cache_flush(k.cache);
    } else if (deed == FIND) {
        e = tsr_client_discover(k.client, k.space, &p);
        n = kit_load_and_check(&k, &p);
    } else {
        n = tsr_cache_clear(k.cache, &all);
    }
    if (e < 0 || n < 0) printf("    deed %d: %d, %d: %s\n", deed, e, n, tsr_errmsg());
    free(tokens);
    kit_close(&k);
    return e < 0 ? e : n;
}

static int as(const struct machine *m, const struct person *who, enum deed deed, uint64_t text)
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int n = act(m->socket, who, deed, text);
        fflush(stdout);
        _exit(n < 0 || n > 100 ? 101 : n);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- what holds for every tier ---- */

static void are_apart(struct machine *m, const struct person *one, const struct person *other)
{
    enum { ONES = 1, OTHERS = 2 };
    start(m);
    CHECK_INT(as(m, one, STORE, ONES), TOKENS);
    CHECK_INT(as(m, other, FIND, ONES), 0);
    CHECK_INT(as(m, other, STORE, OTHERS), TOKENS);
    CHECK_INT(as(m, one, FIND, OTHERS), 0);
    restart(m); /* from here on nothing is in host memory */
    CHECK_INT(as(m, other, FIND, ONES), 0);
    CHECK_INT(as(m, one, FIND, OTHERS), 0);
    CHECK_INT(as(m, one, FIND, ONES), TOKENS);
    CHECK_INT(as(m, other, FIND, OTHERS), TOKENS);
    /* The same text, in both: a clear takes one of them. */
    CHECK_INT(as(m, other, STORE, ONES), TOKENS);
    CHECK(as(m, other, CLEAR, 0) > 0);
    restart(m);
    CHECK_INT(as(m, one, FIND, ONES), TOKENS);
    CHECK_INT(as(m, other, FIND, ONES), 0);
    CHECK_INT(as(m, other, FIND, OTHERS), 0);
    stop(m);
}

static const struct person me = {0, ""}, stranger = {STRANGER, ""}, alice = {0, "secret-1"},
                           bob = {0, "secret-2"}, carol = {0, "secret-3"};
static char tokens_path[300], uid_text[16];

/* A machine with these tenants and the given options more. */
static struct machine machine(const char *name, const char *const *more)
{
    struct machine m = {.name = name};
    const char *const common[] = {
        "host_size",       "2M",     "host_page_size", "16K",       "http_listen",      "off",
        "server_allow",    uid_text, "server_tokens",  tokens_path, "redis_timeout_ms", "20000",
        "redis_absent_ms", "0",      "s3_timeout_ms",  "20000",     "s3_absent_ms",     "0"};
    int n = 0;
    for (size_t i = 0; i < TSRI_COUNT(common); i++)
        m.options[n++] = common[i];
    for (int i = 0; more[i]; i++)
        m.options[n++] = more[i];
    TSR_ASSERT(n < OPTIONS_MAX);
    return m;
}

static void all_are_apart(struct machine *m)
{
    are_apart(m, &alice, &bob);
    are_apart(m, &me, geteuid() == 0 ? &stranger : &carol);
}

TEST(tenants_are_apart_on_one_disk)
{
    char disk[300];
    snprintf(disk, sizeof disk, "%.200s/disk", dir.path);
    struct machine m = machine("disk-only", (const char *const[]){"disk_path", disk, NULL});
    all_are_apart(&m);
}

TEST(tenants_are_apart_on_two_disks)
{
    char one[300], two[300];
    snprintf(one, sizeof one, "%.200s/disk-1", dir.path);
    snprintf(two, sizeof two, "%.200s/disk-2", dir.path);
    struct machine m = machine("disks", (const char *const[]){"disk_path", one, "disk_write",
                                                              "none", "disk2_path", two, NULL});
    all_are_apart(&m); /* all of it from the second */
}

#ifdef TSRI_HAVE_REDIS
static struct redis_server redis;

static bool has_redis(void)
{
    if (redis_kit_missing()) return false;
    if (!redis.pid) redis_server_init(&redis, NULL);
    return true;
}

TEST(tenants_are_apart_on_one_redis)
{
    if (!has_redis()) SKIP(redis_kit_missing());
    struct machine m = machine("redis", (const char *const[]){"redis_address", redis.tcp, NULL});
    all_are_apart(&m);
}

/* Of machines with one tenant in their options, every person is the same one. */
TEST(a_tenant_by_name_is_the_same_on_every_machine_of_its_fleet)
{
    if (!has_redis()) SKIP(redis_kit_missing());
    const char *const fleet[] = {"redis_address", redis.tcp, "tenant", "fleet", NULL};
    const char *const others[] = {"redis_address", redis.tcp, "tenant", "others", NULL};
    struct machine a = machine("fleet-a", fleet), b = machine("fleet-b", fleet),
                   c = machine("others", others);
    start(&a), start(&b), start(&c);
    CHECK_INT(as(&a, &alice, STORE, 11), TOKENS);
    CHECK_INT(as(&a, &me, STORE, 12), TOKENS);
    CHECK_INT(as(&b, &alice, FIND, 11), TOKENS);
    CHECK_INT(as(&b, &me, FIND, 12), TOKENS);
    CHECK_INT(as(&b, &bob, FIND, 11), 0);
    CHECK_INT(as(&b, &alice, FIND, 12), 0);
    CHECK_INT(as(&c, &alice, FIND, 11), 0);
    CHECK_INT(as(&c, &me, FIND, 12), 0);
    CHECK(as(&c, &alice, CLEAR, 0) >= 0 && as(&c, &me, CLEAR, 0) >= 0);
    CHECK(as(&a, &bob, CLEAR, 0) >= 0);
    restart(&b);
    CHECK_INT(as(&b, &alice, FIND, 11), TOKENS);
    CHECK_INT(as(&b, &me, FIND, 12), TOKENS);
    stop(&a), stop(&b), stop(&c);
}

/* uid 1001 here and uid 1001 there may be two people. */
TEST(without_a_name_the_clients_of_two_machines_are_apart)
{
    if (!has_redis()) SKIP(redis_kit_missing());
    if (geteuid() != 0) SKIP("another machine's name needs root");
    const char *const options[] = {"redis_address", redis.tcp, NULL};
    struct machine a = machine("here", options), b = machine("there", options);
    b.host = "there";
    pid_t pid = fork();
    if (pid == 0) _exit(unshare(CLONE_NEWUTS) != 0);
    int status;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    if (status) SKIP("UTS namespaces are refused here");
    start(&a), start(&b);
    CHECK_INT(as(&a, &stranger, STORE, 21), TOKENS);
    CHECK_INT(as(&a, &alice, STORE, 22), TOKENS);
    CHECK_INT(as(&b, &stranger, FIND, 21), 0);
    CHECK_INT(as(&b, &alice, FIND, 22), 0);
    restart(&a);
    CHECK_INT(as(&a, &stranger, FIND, 21), TOKENS);
    CHECK_INT(as(&a, &alice, FIND, 22), TOKENS);
    stop(&a), stop(&b);
}
#endif

#ifdef TSRI_HAVE_S3
static void apart_in_a_bucket(const char *name, const char *endpoint)
{
    struct machine m =
        machine(name, (const char *const[]){"s3_endpoint", endpoint, "s3_bucket", S3_KIT_BUCKET,
                                            "s3_access_key", S3_KIT_KEY, "s3_secret_key",
                                            S3_KIT_SECRET, NULL});
    all_are_apart(&m);
}

TEST(tenants_are_apart_in_one_bucket)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    static struct s3_stub stub;
    s3_stub_init(&stub);
    apart_in_a_bucket("bucket", stub.endpoint);
    s3_stub_fini(&stub);
}

TEST(tenants_are_apart_in_one_bucket_of_a_real_server)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    static struct s3_server server;
    if (s3_kit_missing()) SKIP(s3_kit_missing());
    s3_server_init(&server);
    apart_in_a_bucket("weed", server.endpoint);
    s3_server_fini(&server);
}
#endif

int main(void)
{
    tmpdir_init(&dir);
    if (chmod(dir.path, 0755) != 0) return 1; /* strangers come to the sockets below */
    snprintf(tokens_path, sizeof tokens_path, "%.200s/tokens", dir.path);
    FILE *f = fopen(tokens_path, "w");
    if (!f || chmod(tokens_path, 0600) != 0 ||
        fputs("alice secret-1\nbob secret-2\ncarol secret-3\n", f) < 0 || fclose(f) != 0)
        return 1;
    snprintf(uid_text, sizeof uid_text, "%d", STRANGER);
    RUN(tenants_are_apart_on_one_disk);
    RUN(tenants_are_apart_on_two_disks);
#ifdef TSRI_HAVE_REDIS
    RUN(tenants_are_apart_on_one_redis);
    RUN(a_tenant_by_name_is_the_same_on_every_machine_of_its_fleet);
    RUN(without_a_name_the_clients_of_two_machines_are_apart);
    if (redis.pid) redis_server_fini(&redis);
#endif
#ifdef TSRI_HAVE_S3
    RUN(tenants_are_apart_in_one_bucket);
    RUN(tenants_are_apart_in_one_bucket_of_a_real_server);
#endif
    tmpdir_fini(&dir);
    return test_end();
}
