/* bench_daemon.c - a cache in another process, as its clients see it: how soon it answers after its
 * start and what it costs while idle; lookups against a bare ping-pong of the same bytes over a
 * Unix socket; loads and stores of 512 MB against memcpy; and what many clients at once get.
 *
 * The model is of 8B parameters: 32 layers, 8 KV heads of 128 in bf16, 128 KiB a token. */
#include "cache/manager.h"
#include "served/served.h"
#include "support/bench.h"
#include "support/kv_tier.h"
#include "support/tmpdir.h"

#include <tessera/deliver.h>
#include <tessera/server.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CHUNKS = 64,
    CHUNK_TOKENS = 512,
    PROMPT_TOKENS = CHUNKS * CHUNK_TOKENS,
    ON_DISK = 100000,
    SAMPLES = 4000,
    MOVED_TOKENS = 4096, /* 512 MB */
    SAVED_TOKENS = 2048, /* at once */
    CLIENTS = 64
};

static struct tmpdir dir;
static char socket_path[TSRI_SOCKET_PATH_BYTES];

static void nap(unsigned us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

static struct tsr_config *config(const char *owner, const char *host_size)
{
    struct tsr_config *cfg;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "owner", owner) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_size", host_size) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "server_socket", socket_path) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "server_deadline", "20000") == 0);
    BENCH_CHECK(tsr_config_set(cfg, "server_patience", "60000") == 0);
    return cfg;
}

/* ---- the program: start and idle ---- */

static void fill_disk(const char *path)
{
    struct tsr_config *cfg = config("process", "1M");
    BENCH_CHECK(tsr_config_set(cfg, "disk_path", path) == 0);
    struct tsr_tier_desc env = {.size = sizeof env, .config = cfg, .n_threads = 2};
    struct tsr_tier *tier;
    BENCH_CHECK(tsri_tier_open(&tier, &tsri_tier_disk, &env) == 0);
    BENCH_CHECK(kv_tier_fill(tier, ON_DISK));
    BENCH_CHECK(tsri_tier_flush(tier) == 0);
    tsri_tier_close(tier);
    tsr_config_close(cfg);
}

static pid_t start_program(const char *program, const char *disk)
{
    char at_socket[256], at_disk[512];
    snprintf(at_socket, sizeof at_socket, "--server_socket=%s", socket_path);
    snprintf(at_disk, sizeof at_disk, "--disk_path=%s", disk);
    pid_t pid = fork();
    if (pid == 0) {
        execl(program, program, at_socket, at_disk, "--entries_max=200000", (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* Milliseconds until somebody says hello back. */
static double until_answer(pid_t pid)
{
    uint64_t start = bench_now_ns();
    struct tsri_link *link;
    struct tsri_link_desc desc = {.path = socket_path, .token = "", .patience_ms = 10000};
    for (;;) {
        int fd = tsri_socket_connect(socket_path, geteuid());
        if (fd >= 0) {
            close(fd);
            break;
        }
        BENCH_CHECK(waitpid(pid, NULL, WNOHANG) == 0);
        nap(200);
    }
    BENCH_CHECK(tsri_link_open(&link, &desc) == 0);
    BENCH_CHECK(tsri_link_await(link, tsri_now_ns() + 10000000000u) == 0);
    double ms = (double)(bench_now_ns() - start) / 1e6;
    tsri_link_close(link);
    return ms;
}

/* Resident kilobytes that are not the shared pool. */
static double resident_mb(pid_t pid)
{
    char path[64], line[256];
    long all = 0, shared = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    BENCH_CHECK(f != NULL);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "VmRSS:", 6) == 0) all = strtol(line + 6, NULL, 10);
        if (strncmp(line, "RssShmem:", 9) == 0) shared = strtol(line + 9, NULL, 10);
    }
    fclose(f);
    return (double)(all - shared) / 1024;
}

static void measure_program(const char *program)
{
    enum { RUNS = 9 };
    double ms[RUNS];
    char disk[512], empty[512];
    snprintf(disk, sizeof disk, "%s/full", dir.path);
    snprintf(empty, sizeof empty, "%s/empty", dir.path);
    fill_disk(disk);
    for (int i = 0; i < RUNS; i++) {
        pid_t pid = start_program(program, disk);
        ms[i] = until_answer(pid);
        kill(pid, SIGTERM);
        waitpid(pid, NULL, 0);
    }
    bench_report("start, 100K entries on disk", bench_median(ms, RUNS), "ms", 0, 60, false);
    pid_t pid = start_program(program, empty);
    until_answer(pid);
    bench_report("rss, idle, beyond the pool", resident_mb(pid), "MB", 0, 10, false);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    pid = start_program(program, disk);
    until_answer(pid);
    bench_report("rss, 100K entries on disk", resident_mb(pid), "MB", 0, 0, false);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

/* ---- a server in another process ---- */

static pid_t start_server(void)
{
    int ready[2];
    char byte;
    BENCH_CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct tsr_cache *c;
        struct tsr_server *server;
        struct tsr_config *cfg = config("embedded", "1792M");
        BENCH_CHECK(tsr_config_set(cfg, "policy", "lru") == 0); /* the last text stays */
        BENCH_CHECK(tsr_cache_open(&c, cfg) == 0);
        BENCH_CHECK(tsr_server_open(&server, c, cfg) == 0);
        BENCH_CHECK(write(ready[1], "x", 1) == 1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    BENCH_CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    return pid;
}

struct work {
    struct tsr_cache *cache;
    struct tsr_space *space, *tiny;
    struct tsr_delivery *delivery;
    struct tsr_client *client;
    uint32_t *tokens;
    struct tsr_range segments[CHUNKS];
    struct tsr_match matches[CHUNKS];
    struct tsri_region user, other;
    struct tsr_shared shared;
    size_t bytes;
    uint32_t text;
    int ping_fd;
    size_t request_bytes, reply_bytes;
    uint8_t *ping;
};

static void open_work(struct work *w)
{
    struct tsr_config *cfg = config("daemon", "1M");
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "8B",
                                  .dtype = TSR_DTYPE_BF16,
                                  .n_layers = 32,
                                  .n_heads = 8,
                                  .k_dim = 128};
    struct tsr_space_desc tiny = desc;
    tiny.model = "tiny";
    tiny.n_layers = 1;
    tiny.n_heads = 1;
    BENCH_CHECK(tsr_cache_open(&w->cache, cfg) == 0);
    BENCH_CHECK(tsr_cache_connected(w->cache, 10000) == 0);
    BENCH_CHECK(tsr_space_open(&w->space, w->cache, &desc) == 0);
    BENCH_CHECK(tsr_space_open(&w->tiny, w->cache, &tiny) == 0);
    BENCH_CHECK(tsr_client_open(&w->client, w->cache) == 0);
    w->tokens = malloc(PROMPT_TOKENS * sizeof *w->tokens);
    BENCH_CHECK(w->tokens != NULL);
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++)
        w->tokens[i] = i * 2654435761u >> 15;
    for (uint32_t i = 0; i < CHUNKS; i++)
        w->segments[i] = (struct tsr_range){i * CHUNK_TOKENS, CHUNK_TOKENS};
    tsr_config_close(cfg);
}

static int store_text(struct work *w, struct tsr_space *space, const uint32_t *tokens, uint32_t n,
                      const void *kv)
{
    struct tsr_store_desc s = {
        .size = sizeof s,
        .space = space,
        .kind = TSR_KIND_SEGMENT,
        .tokens = tokens,
        .n_tokens = n,
        .view = {.data = (void *)(uintptr_t)kv, .bytes = n * tsr_space_token_bytes(space)}};
    return tsr_client_store(w->client, &s);
}

static int look_up(struct tsr_client *client, struct work *w, struct tsr_space *space,
                   struct tsr_match *matches)
{
    struct tsr_prompt p = {.size = sizeof p,
                           .tokens = w->tokens,
                           .n_tokens = PROMPT_TOKENS,
                           .flags = TSR_PROMPT_SEGMENTS,
                           .segments = w->segments,
                           .n_segments = CHUNKS};
    struct tsr_lookup_desc l = {.size = sizeof l,
                                .spaces = &space,
                                .n_spaces = 1,
                                .matches = matches,
                                .matches_max = CHUNKS};
    return tsr_client_lookup(client, &p, &l);
}

/* ---- lookups ---- */

static bool move_all(int fd, uint8_t *data, size_t bytes, bool out)
{
    while (bytes) {
        ssize_t n = out ? send(fd, data, bytes, MSG_NOSIGNAL) : recv(fd, data, bytes, 0);
        if (n <= 0) return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Another process that reads as much as a lookup sends and sends as much as it answers. */
static pid_t start_echo(struct work *w)
{
    int fds[2];
    w->request_bytes = TSRI_WIRE_HEAD_BYTES + 24 + 8 + 24 + PROMPT_TOKENS * 4 + CHUNKS * 8;
    w->reply_bytes = TSRI_WIRE_HEAD_BYTES + 16 + CHUNKS * sizeof(struct tsri_wire_match);
    w->ping = calloc(1, w->request_bytes);
    BENCH_CHECK(w->ping != NULL);
    BENCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    tsri_socket_widen(fds[0]);
    tsri_socket_widen(fds[1]);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        while (move_all(fds[1], w->ping, w->request_bytes, false) &&
               move_all(fds[1], w->ping, w->reply_bytes, true)) {
        }
        _exit(0);
    }
    close(fds[1]);
    w->ping_fd = fds[0];
    return pid;
}

static void ping_pong(struct work *w)
{
    BENCH_CHECK(move_all(w->ping_fd, w->ping, w->request_bytes, true));
    BENCH_CHECK(move_all(w->ping_fd, w->ping, w->reply_bytes, false));
}

static void measure_lookup(struct work *w)
{
    static double ours[SAMPLES], bare[SAMPLES];
    static uint8_t kv[CHUNK_TOKENS * 512];
    for (uint32_t i = 0; i < CHUNKS; i++)
        BENCH_CHECK(store_text(w, w->tiny, w->tokens + i * CHUNK_TOKENS, CHUNK_TOKENS, kv) ==
                    CHUNK_TOKENS);
    BENCH_CHECK(look_up(w->client, w, w->tiny, w->matches) == PROMPT_TOKENS);
    pid_t echo = start_echo(w);
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t start = bench_now_ns();
        BENCH_CHECK(look_up(w->client, w, w->tiny, w->matches) == PROMPT_TOKENS);
        uint64_t middle = bench_now_ns();
        ping_pong(w);
        ours[i] = (double)(middle - start) / 1e3;
        bare[i] = (double)(bench_now_ns() - middle) / 1e3;
    }
    bench_report("lookup p50, 64 chunks", bench_quantile(ours, SAMPLES, 0.5), "us",
                 bench_quantile(bare, SAMPLES, 0.5), 3, false);
    bench_report("lookup p99, 64 chunks", bench_quantile(ours, SAMPLES, 0.99), "us",
                 bench_quantile(bare, SAMPLES, 0.99), 4, false);
    close(w->ping_fd);
    kill(echo, SIGKILL);
    waitpid(echo, NULL, 0);
    free(w->ping);
}

/* ---- moving ---- */

static void store_all(void *arg)
{
    struct work *w = arg;
    for (uint32_t at = 0; at < MOVED_TOKENS; at += CHUNK_TOKENS) {
        w->tokens[at] = 0x10000000u + ++w->text; /* another text each time */
        BENCH_CHECK(store_text(w, w->space, w->tokens + at, CHUNK_TOKENS,
                               w->user.data + at * tsr_space_token_bytes(w->space)) ==
                    CHUNK_TOKENS);
    }
}

/* As a connector saves: a prefix in pieces out of an engine's pages, each one put. */
static void save_all(void *arg)
{
    struct work *w = arg;
    int64_t slots[SAVED_TOKENS];
    w->tokens[0] = 0x20000000u + ++w->text;
    for (uint32_t from = 0; from < MOVED_TOKENS; from += SAVED_TOKENS) {
        struct tsr_store_desc s = {.size = sizeof s,
                                   .space = w->space,
                                   .kind = TSR_KIND_PREFIX,
                                   .tokens = w->tokens,
                                   .n_tokens = from + SAVED_TOKENS,
                                   .from = from};
        struct tsr_put *put;
        for (uint32_t i = 0; i < SAVED_TOKENS; i++)
            slots[i] = (from + i) ^ 0x70; /* pages out of order */
        BENCH_CHECK(tsr_put_open(&put, w->client, &s) == 0);
        BENCH_CHECK(tsr_delivery_collect(w->delivery, put, slots, SAVED_TOKENS) == 0);
        BENCH_CHECK(tsr_put_commit(put) == SAVED_TOKENS);
    }
}

/* The engine's pages are w->user: [layer][plane][slot]. */
static void open_delivery(struct work *w)
{
    size_t row = 8 * 128 * 2, plane = MOVED_TOKENS * row;
    struct tsr_kv_layout layout = {.size = sizeof layout,
                                   .n_layers = 32,
                                   .n_planes = 2,
                                   .block_tokens = 16,
                                   .n_slots = MOVED_TOKENS};
    for (uint32_t p = 0; p < 2; p++)
        layout.planes[p] = (struct tsr_kv_plane){.base = w->user.data + p * plane,
                                                 .layer_stride = 2 * plane,
                                                 .block_stride = 16 * row,
                                                 .token_stride = row,
                                                 .head_stride = 256,
                                                 .element_stride = 2,
                                                 .dtype = TSR_DTYPE_BF16,
                                                 .n_heads = 8,
                                                 .dim = 128};
    struct tsr_delivery_desc desc = {.size = sizeof desc, .space = w->space, .layout = &layout};
    BENCH_CHECK(tsr_delivery_open(&w->delivery, w->client, &desc) == 0);
}

static void load_all(void *arg)
{
    struct work *w = arg;
    enum { N = MOVED_TOKENS / CHUNK_TOKENS };
    struct tsr_load_desc loads[N];
    size_t bytes = w->bytes / N;
    for (uint32_t i = 0; i < N; i++)
        loads[i] =
            (struct tsr_load_desc){.size = sizeof loads[i],
                                   .space = w->space,
                                   .match = &w->matches[i],
                                   .view = {.data = w->other.data + i * bytes, .bytes = bytes}};
    BENCH_CHECK(tsr_client_load(w->client, loads, N) == N);
}

static void copy_mapping(void *arg)
{
    struct work *w = arg;
    memcpy(w->other.data, w->shared.data, w->bytes);
}

static void copy_user(void *arg)
{
    struct work *w = arg;
    memcpy(w->other.data, w->user.data, w->bytes);
}

static void measure_moves(struct work *w)
{
    w->bytes = MOVED_TOKENS * tsr_space_token_bytes(w->space);
    BENCH_CHECK(tsri_region_init(&w->user, w->bytes) == 0);
    BENCH_CHECK(tsri_region_init(&w->other, w->bytes) == 0);
    for (size_t i = 0; i < w->bytes; i++)
        w->user.data[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int i = 0; i < 4; i++) /* every page of the pool is touched before anything is timed */
        store_all(w);
    BENCH_CHECK(look_up(w->client, w, w->space, w->matches) >= MOVED_TOKENS);
    load_all(w);
    BENCH_CHECK(memcmp(w->user.data, w->other.data, w->bytes) == 0);
    w->shared.size = sizeof w->shared;
    BENCH_CHECK(tsr_shared_open(w->client, &w->shared) == 0);
    struct bench_case c = {.name = "retrieve 512 MB",
                           .run = load_all,
                           .baseline = copy_mapping,
                           .arg = w,
                           .reps = 1,
                           .n_pairs = 15,
                           .work = (double)w->bytes,
                           .unit = "GB/s",
                           .target = 0.95};
    bench_run(&c);
    c.name = "store 512 MB";
    c.run = store_all;
    c.baseline = copy_user;
    c.target = 0.45;
    bench_run(&c);
    open_delivery(w);
    c.name = "save 512 MB";
    c.run = save_all;
    bench_run(&c);
    tsr_delivery_close(w->delivery);
    tsr_shared_close(&w->shared);
    tsri_region_fini(&w->user);
    tsri_region_fini(&w->other);
}

/* ---- many clients ---- */

struct asker {
    pthread_t thread;
    struct work *w;
    struct tsr_client *client;
    struct tsr_match matches[CHUNKS];
    _Atomic bool *stop;
    uint64_t n;
};

static void *ask(void *arg)
{
    struct asker *a = arg;
    while (!atomic_load(a->stop)) {
        BENCH_CHECK(look_up(a->client, a->w, a->w->tiny, a->matches) == PROMPT_TOKENS);
        a->n++;
    }
    return NULL;
}

/* Nanoseconds of the processor that this process and the server have used. */
static uint64_t cpu_ns(pid_t server)
{
    clockid_t clock;
    struct timespec theirs, ours;
    BENCH_CHECK(clock_getcpuclockid(server, &clock) == 0 && clock_gettime(clock, &theirs) == 0);
    BENCH_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ours) == 0);
    return (uint64_t)(theirs.tv_sec + ours.tv_sec) * 1000000000u +
           (uint64_t)(theirs.tv_nsec + ours.tv_nsec);
}

struct rate {
    double lookups; /* a second */
    double cpu_us;  /* of the processor for each, on both sides */
};

/* What n clients get together. */
static struct rate lookups(struct asker *askers, uint32_t n, pid_t server)
{
    uint64_t cpu = cpu_ns(server);
    _Atomic bool stop = false;
    uint64_t start = bench_now_ns(), done = 0;
    for (uint32_t i = 0; i < n; i++) {
        askers[i].stop = &stop;
        askers[i].n = 0;
        BENCH_CHECK(pthread_create(&askers[i].thread, NULL, ask, &askers[i]) == 0);
    }
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(askers[i].thread, NULL);
        done += askers[i].n;
    }
    double ns = (double)(bench_now_ns() - start);
    return (struct rate){.lookups = (double)done * 1e9 / ns,
                         .cpu_us = (double)(cpu_ns(server) - cpu) / 1e3 / (double)done};
}

static void measure_clients(struct work *w, pid_t server)
{
    enum { ROUNDS = 7 };
    struct asker *askers = calloc(CLIENTS, sizeof *askers);
    double one[ROUNDS], many[ROUNDS], one_us[ROUNDS], many_us[ROUNDS];
    BENCH_CHECK(askers != NULL);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        askers[i].w = w;
        BENCH_CHECK(tsr_client_open(&askers[i].client, w->cache) == 0);
        BENCH_CHECK(look_up(askers[i].client, w, w->tiny, askers[i].matches) == PROMPT_TOKENS);
    }
    for (int i = 0; i < ROUNDS; i++) {
        struct rate a = lookups(askers, 1, server), b = lookups(askers, CLIENTS, server);
        one[i] = a.lookups, one_us[i] = a.cpu_us;
        many[i] = b.lookups, many_us[i] = b.cpu_us;
    }
    bench_report("clients, 64 at once", bench_median(many, ROUNDS), "lookups/s",
                 bench_median(one, ROUNDS), 1.2, true);
    bench_report("clients, processor time of a lookup, 64 against one",
                 bench_median(many_us, ROUNDS), "us", bench_median(one_us, ROUNDS), 0, false);
    for (uint32_t i = 0; i < CLIENTS; i++)
        tsr_client_close(askers[i].client);
    free(askers);
}

int main(int argc, char **argv)
{
    char program[4096];
    const char *end = strrchr(argv[0], '/');
    snprintf(program, sizeof program, "%.*s/../bin/tesserad", end ? (int)(end - argv[0]) : 1,
             end ? argv[0] : ".");
    bench_init("bench_daemon", argc, argv);
    tmpdir_init(&dir);
    snprintf(socket_path, sizeof socket_path, "%.80s/s/sock", dir.path);
    BENCH_CHECK(access(program, X_OK) == 0);
    measure_program(program);
    pid_t server = start_server();
    static struct work w;
    open_work(&w);
    measure_lookup(&w);
    measure_clients(&w, server);
    measure_moves(&w);
    tsr_client_close(w.client);
    tsr_space_close(w.space);
    tsr_space_close(w.tiny);
    tsr_cache_close(w.cache);
    free(w.tokens);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    tmpdir_fini(&dir);
    return bench_end();
}
