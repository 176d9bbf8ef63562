/* test_soak.c - a server with a disk below it, and clients in processes of their own that store,
 * look up, load, hold leases and half a store, and are killed, stopped or left alone at random;
 * some leave a forked child behind that holds their socket. Nobody ever reads a wrong byte, and
 * when all of them are gone no lease, no page and no space is left. 30 seconds; ten minutes with
 * TESSERA_TEST_LONG. */
#include "support/served_kit.h"
#include "support/test.h"

#include <tessera/server.h>

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CLIENTS = 6,
    TEXTS = 60,
    SECONDS = 30,
    SECONDS_LONG = 600,
    WRONG = 42 /* how a client ends that was given something it should not have */
};

static void nap(uint32_t us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

/* ---- a client ---- */

struct life {
    struct kit k;
    uint64_t random;
    uint64_t requests;
    struct tsr_put *half;
};

static uint32_t pick(struct life *l, uint32_t n)
{
    return (uint32_t)(test_rand(&l->random) % n);
}

static void must(bool ok, const char *what)
{
    if (ok) return;
    printf("    a client: %s: %s\n", what, tsr_errmsg());
    fflush(stdout);
    _exit(WRONG);
}

/* Not there now, full, gone: all of that happens. */
static bool is_fair(int result)
{
    return result >= 0 || result == TSR_EAGAIN || result == TSR_EFULL || result == TSR_ETIME ||
           result == TSR_ENOENT;
}

static void hold_half_a_store(struct life *l, const uint32_t *tokens, uint32_t n)
{
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = l->k.space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = tokens,
                               .n_tokens = n};
    if (l->half) tsr_put_abort(l->half);
    l->half = NULL;
    int e = tsr_put_open(&l->half, l->k.client, &s);
    must(is_fair(e), "put_open");
    if (e) return;
    struct tsr_view view = kit_store_view(&s);
    must(is_fair(tsr_put_layer(l->half, 0, &view)), "put_layer");
    free(view.data);
}

/* Leases what is known of the text, and lets go an earlier one, or not. */
static void hold_lease(struct life *l, const struct tsr_prompt *p)
{
    struct kit_hits hits;
    must(is_fair(kit_lookup(&l->k, p, ++l->requests, &hits)), "lookup");
    if (pick(l, 3)) tsr_client_release(l->k.client, l->requests - pick(l, 4));
}

static void act(struct life *l)
{
    struct tsr_range range;
    uint32_t n = 16 + pick(l, 12) * 16, text = pick(l, TEXTS);
    uint32_t *tokens = kit_tokens(1000 + text, n);
    bool prefix = text % 2;
    struct tsr_prompt p =
        prefix ? kit_prefix_prompt(tokens, n) : kit_segment_prompt(tokens, n, &range);
    switch (pick(l, 16)) {
    case 0:
        hold_half_a_store(l, tokens, n);
        break;
    case 1:
        must(is_fair(tsr_cache_evict(l->k.cache, pick(l, 200000))), "evict");
        break;
    case 2:
        must(is_fair(tsr_client_prefetch(l->k.client, l->k.space, &p)), "prefetch");
        break;
    case 3:
        if (pick(l, 8) == 0) must(is_fair(tsr_cache_flush(l->k.cache)), "flush");
        break;
    case 4:
    case 5:
        hold_lease(l, &p);
        break;
    case 6:
    case 7:
    case 8:
    case 9:
        must(is_fair(prefix ? kit_store_prefix(&l->k, tokens, n)
                            : kit_store_segment(&l->k, tokens, n)),
             "store");
        break;
    default:
        must(is_fair(kit_load_and_check(&l->k, &p)), "load"); /* stops at a wrong byte */
    }
    free(tokens);
}

/* Lives until it is killed. */
static int live(const char *path, uint64_t seed)
{
    struct life l = {.random = seed};
    served_kit_open(&l.k, path, NULL);
    if (seed % 3 == 0 && fork() == 0) { /* holds the socket for a while */
        nap(900000);
        _exit(0);
    }
    for (;;) {
        act(&l);
        nap(3000 + pick(&l, 12000)); /* the machine has other work */
    }
}

/* ---- the world around them ---- */

struct world {
    struct server_kit s;
    pid_t pids[CLIENTS];
    bool stopped[CLIENTS];
    uint64_t random;
    uint32_t n_born, n_killed;
};

static void give_birth(struct world *w, int i)
{
    char seed[32];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)test_rand(&w->random));
    fflush(stdout);
    w->stopped[i] = false;
    w->n_born++;
    w->pids[i] = fork();
    if (w->pids[i] == 0) {
        execl("/proc/self/exe", "test_soak", "client", w->s.path, seed, (char *)NULL);
        _exit(127);
    }
}

/* It was alive until it was killed: a client that ended by itself had a reason. */
static bool was_killed(struct world *w, int i)
{
    int status = 0;
    kill(w->pids[i], SIGKILL);
    if (waitpid(w->pids[i], &status, 0) != w->pids[i]) return false;
    w->n_killed++;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    printf("    a client ended by itself: status %#x\n", (unsigned)status);
    return false;
}

static bool turn(struct world *w)
{
    int i = (int)(test_rand(&w->random) % CLIENTS);
    switch (test_rand(&w->random) % 4) {
    case 0:
        kill(w->pids[i], w->stopped[i] ? SIGCONT : SIGSTOP);
        w->stopped[i] = !w->stopped[i];
        return true;
    case 1:
    case 2:
        if (!was_killed(w, i)) return false;
        give_birth(w, i);
        return true;
    default:
        return true;
    }
}

static void soak(struct world *w, int seconds)
{
    uint64_t end = tsri_now_ns() + (uint64_t)seconds * 1000000000u;
    for (int i = 0; i < CLIENTS; i++)
        give_birth(w, i);
    bool fine = true;
    while (fine && tsri_now_ns() < end) {
        nap(100000);
        fine = turn(w);
    }
    for (int i = 0; i < CLIENTS; i++)
        fine = was_killed(w, i) && fine;
    CHECK(fine);
}

TEST(clients_killed_at_random_read_no_wrong_byte_and_leave_nothing)
{
    static struct world w;
    struct tmpdir disk;
    tmpdir_init(&disk);
    /* Memory for a third of the texts, so that they come and go. */
    const char *const options[] = {"disk_path", disk.path, "disk_size",         "64M",
                                   "host_size", "1M",      "disk_segment_size", "4M",
                                   NULL};
    w.random = (uint64_t)getpid() * 2654435761u;
    printf("    seed %llu\n", (unsigned long long)w.random);
    server_open(&w.s, options);
    soak(&w, getenv("TESSERA_TEST_LONG") ? SECONDS_LONG : SECONDS);
    printf("    %u clients, %llu requests, %llu lookups, %llu loads, %llu stores, %llu evictions\n",
           w.n_born, (unsigned long long)server_metric(&w.s, TSRI_M_requests),
           (unsigned long long)server_metric(&w.s, TSRI_M_lookups),
           (unsigned long long)server_metric(&w.s, TSRI_M_loads),
           (unsigned long long)server_metric(&w.s, TSRI_M_stores),
           (unsigned long long)server_metric(&w.s, TSRI_M_evictions));
    CHECK(server_wait_sessions(&w.s, 0));
    CHECK(server_wait_leased(&w.s, 0));
    CHECK(server_metric(&w.s, TSRI_M_loads) > 100 && server_metric(&w.s, TSRI_M_stores) > 100);
    CHECK_INT(server_metric(&w.s, TSRI_M_corrupt), 0);
    CHECK_INT(server_metric(&w.s, TSRI_M_requests_malformed), 0);
    /* What they have left can be read, and all of it goes. */
    for (uint32_t text = 0; text < TEXTS; text++) {
        struct tsr_range range;
        uint32_t *tokens = kit_tokens(1000 + text, 208);
        struct tsr_prompt p =
            text % 2 ? kit_prefix_prompt(tokens, 208) : kit_segment_prompt(tokens, 208, &range);
        CHECK(is_fair(kit_load_and_check(&w.s.k, &p)));
        free(tokens);
    }
    CHECK(kit_valid(&w.s.k));
    CHECK(server_end(&w.s)); /* counts pages, metadata, pins and leases */
    tmpdir_fini(&disk);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "client") == 0)
        return live(argv[2], strtoull(argv[3], NULL, 10));
    RUN(clients_killed_at_random_read_no_wrong_byte_and_leave_nothing);
    return test_end();
}
