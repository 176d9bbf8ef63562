/* test_hostile.c - clients that break every rule at random: half frames, rubbish, calls nobody
 * finishes, descriptors nobody asked for, connections that end at any moment, processes that are
 * killed with calls under way while a child holds their socket. The server lives on, serves an
 * honest client with the right bytes all the time, and afterwards holds nothing. What they do is
 * chosen by a seed (TESSERA_TEST_SEED); what meets what is up to the machine. Three seconds; two
 * minutes with TESSERA_TEST_LONG. */
#include "daemon/daemon.h"

#include "support/fake_tier.h"
#include "support/test.h"
#include "support/wire_client.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 3, CONNECTIONS = 6, SECONDS = 3, SECONDS_LONG = 120 };

struct hostile {
    uint64_t random;
    const char *path;
    struct wire_client c[CONNECTIONS];
    bool open[CONNECTIONS];
};

static uint32_t pick(struct hostile *h, uint32_t n)
{
    return (uint32_t)(test_rand(&h->random) % n);
}

/* ---- what they do ---- */

/* Some memory with holes, memory that may shrink, a pipe, or nothing that could be staged. */
static int odd_descriptor(struct hostile *h)
{
    int fds[2];
    switch (pick(h, 4)) {
    case 0:
        return open("/dev/zero", O_RDONLY | O_CLOEXEC);
    case 1:
        if (pipe(fds) != 0) return -1;
        close(fds[1]);
        return fds[0];
    case 2:
        return memfd_create("odd", MFD_CLOEXEC);
    default:
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
}

static void send_descriptors(struct hostile *h, struct wire_client *c)
{
    int fds[TSRI_SOCKET_FDS_MAX];
    uint32_t n = 1 + pick(h, TSRI_SOCKET_FDS_MAX), have = 0;
    for (uint32_t i = 0; i < n; i++) {
        fds[have] = odd_descriptor(h);
        have += fds[have] >= 0;
    }
    (void)!tsri_socket_send_fds(c->fd, "TSRW", 4, fds, have);
    for (uint32_t i = 0; i < have; i++)
        close(fds[i]);
}

/* A head of some type, with a body that is shorter than it says, rubbish, or both. */
static void send_frame(struct hostile *h, struct wire_client *c)
{
    static uint8_t frame[TSRI_WIRE_HEAD_BYTES + 16384];
    uint32_t says = pick(h, 2) ? 8 * pick(h, 2048) : 8 * pick(h, TSRI_WIRE_BODY_MAX / 8);
    size_t has = pick(h, 2) && says < 16384 ? says : pick(h, 16384);
    struct tsri_wire_head head = {.version = TSRI_WIRE_VERSION_MAX,
                                  .type = (uint16_t)pick(h, 32),
                                  .id = ++c->next_id,
                                  .body_bytes = says,
                                  .status = (int32_t)pick(h, 2)};
    for (size_t i = 0; i < has; i++)
        frame[TSRI_WIRE_HEAD_BYTES + i] = pick(h, 3) ? 0 : (uint8_t)pick(h, 256);
    tsri_wire_head_put(&head, frame);
    /* Without waiting: who is not listened to goes on with something else. */
    (void)!tsri_socket_send_fds(c->fd, frame, TSRI_WIRE_HEAD_BYTES + has, NULL, 0);
}

/* A proper call whose answer nobody may ever read. */
static void send_call(struct hostile *h, struct wire_client *c)
{
    static const uint16_t types[] = {
        TSRI_WIRE_FLUSH,  TSRI_WIRE_PING, TSRI_WIRE_LIST,   TSRI_WIRE_EVICT, TSRI_WIRE_STATS,
        TSRI_WIRE_SPACES, TSRI_WIRE_WARM, TSRI_WIRE_EVENTS, TSRI_WIRE_ORDER, TSRI_WIRE_EVICT_KEYS};
    struct tsri_request r;
    memset(&r, 0, offsetof(struct tsri_request, extra));
    r.type = types[pick(h, TSRI_COUNT(types))];
    r.n = pick(h, 1000);
    uint8_t frame[256];
    size_t bytes;
    if (tsri_request_bytes(&r, &bytes) != 0 || bytes > sizeof frame) return;
    tsri_request_encode(&r, ++c->next_id, 0, frame, bytes);
    size_t part = pick(h, 4) ? bytes : pick(h, (uint32_t)bytes);
    (void)!tsri_socket_send_fds(c->fd, frame, part, NULL, 0);
}

static void store_and_find(struct hostile *h, struct wire_client *c)
{
    struct tsr_space_desc desc = kit_desc();
    struct tsri_wire_match match;
    uint32_t *tokens = kit_tokens(1000 + pick(h, 20), 64);
    int space = wc_space(c, &desc);
    if (space >= 0) (void)wc_find_segment(c, (uint32_t)space, tokens, 64, 1 + pick(h, 3), &match);
    struct tsri_request put = {.type = TSRI_WIRE_PUT_OPEN, .space = (uint32_t)space};
    put.store = (struct tsr_store_desc){.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 64};
    if (space >= 0) (void)!wc_send(c, &put, 0); /* half a store */
    free(tokens);
}

/* A child that keeps the socket a while after its parent is gone. */
static void leave_a_child(struct hostile *h)
{
    if (fork() != 0) return;
    alarm(20);
    nanosleep(&(struct timespec){.tv_nsec = (long)pick(h, 300) * 1000000}, NULL);
    _exit(0);
}

static void connect_one(struct hostile *h, uint32_t i)
{
    struct wire_client *c = &h->c[i];
    h->open[i] = wc_connect(c, h->path);
    if (!h->open[i] || pick(h, 4) == 0) return;
    if (pick(h, 6) == 0) send_descriptors(h, c);
    if (pick(h, 2)) (void)!wc_stage(c, 1 << 20);
    (void)wc_hello(c, NULL);
}

static void step(struct hostile *h)
{
    uint32_t i = pick(h, CONNECTIONS);
    struct wire_client *c = &h->c[i];
    if (!h->open[i]) {
        wc_close(c);
        connect_one(h, i);
        return;
    }
    switch (pick(h, 9)) {
    case 0:
        wc_close(c);
        h->open[i] = false;
        return;
    case 1:
        shutdown(c->fd, pick(h, 2) ? SHUT_RD : SHUT_WR);
        return;
    case 2:
        send_descriptors(h, c);
        return;
    case 3:
        (void)!tsri_socket_send_fds(c->fd, "this is not the protocol.", 25, NULL, 0);
        return;
    case 4:
    case 5:
        send_frame(h, c);
        return;
    case 6:
        if (pick(h, 4) == 0) store_and_find(h, c);
        return;
    default:
        send_call(h, c);
    }
}

static pid_t start_hostile(const char *path, uint64_t seed)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) return pid;
    struct hostile h = {.random = seed, .path = path};
    for (uint32_t i = 0; i < CONNECTIONS; i++)
        h.c[i].fd = -1;
    setpgid(0, 0);
    alarm(SECONDS_LONG + 60);
    for (uint32_t n = 0;; n++) {
        step(&h);
        if (n % 200 == 199 && pick(&h, 10) == 0) leave_a_child(&h);
    }
}

/* ---- and who should not notice ---- */

static bool is_served(struct server_kit *s, struct wire_client *c, uint32_t *tokens)
{
    struct tsri_wire_match match;
    const uint64_t leases[2] = {1, 2};
    struct tsri_request r = {.type = TSRI_WIRE_RELEASE, .ids = leases, .n = 2};
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
    int stored = wc_store_segment(c, s->k.space, 0, tokens, 64);
    if (stored == TSR_EFULL || stored == TSR_EAGAIN) return true; /* others have the rest */
    if (stored < 0) return false;
    /* It may have been evicted meanwhile; what is there has the right bytes. */
    int n = wc_find_segment(c, 0, tokens, 64, 1, &match);
    if (n == 64 && wc_borrow(c, s->k.space, 0, &match, tokens, 2) == 0)
        (void)kit_load_and_check(&s->k, &prompt);
    return n >= 0 && wc_call(c, &r) >= 0;
}

TEST(whatever_clients_do_the_server_lives_and_holds_nothing_in_the_end)
{
    struct server_kit s;
    struct fake_tier_plan plan;
    struct wire_client c;
    struct tsr_space_desc desc = kit_desc();
    pid_t pids[PROCESSES];
    const char *given = getenv("TESSERA_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 17;
    printf("    seed %llu\n", (unsigned long long)seed);
    fake_tier_plan_init(&plan);
    atomic_store(&plan.delay_us, 2000); /* so that calls are under way when their clients die */
    atomic_store(&plan.delay_calls, FAKE_FLUSH);
    server_open_tiers(&s, (const char *const[]){"server_memory", "4M", NULL}, &plan, 1);
    atomic_store(&s.server->stall_ns, 300000000);
    for (uint32_t i = 0; i < PROCESSES; i++)
        pids[i] = start_hostile(s.path, seed + i);
    CHECK(wc_open(&c, s.path, 1 << 20) && wc_space(&c, &desc) == 0);
    uint64_t until =
        tsri_now_ns() + (getenv("TESSERA_TEST_LONG") ? SECONDS_LONG : SECONDS) * 1000000000ull;
    for (uint64_t n = 0, random = seed; tsri_now_ns() < until; n++) {
        uint32_t *tokens = kit_tokens(1 + n % 30, 64);
        CHECK(is_served(&s, &c, tokens));
        free(tokens);
        if (n % 16) continue;
        uint32_t i = (uint32_t)(test_rand(&random) % PROCESSES);
        kill(pids[i], SIGKILL); /* with whatever it had under way */
        waitpid(pids[i], NULL, 0);
        pids[i] = start_hostile(s.path, seed += PROCESSES);
    }
    for (uint32_t i = 0; i < PROCESSES; i++) {
        kill(-pids[i], SIGKILL);
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    wc_close(&c);
    CHECK(server_wait_sessions(&s, 0) && server_wait_leased(&s, 0));
    WAIT_FOR(atomic_load(&s.server->allowance.used) == 0);
    CHECK(server_end(&s));
    fake_tier_plan_fini(&plan);
}

int main(void)
{
    RUN(whatever_clients_do_the_server_lives_and_holds_nothing_in_the_end);
    return test_end();
}
