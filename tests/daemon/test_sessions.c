/* test_sessions.c - bytes in every form a client can send them: in pieces, many at once, too long,
 * no protocol at all, never read back. Each costs its own client something and nobody else. */
#include "daemon/daemon.h"

#include "support/test.h"
#include "support/wire_bytes.h"
#include "support/wire_client.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void ping(struct wire_bytes *b, uint64_t id)
{
    wb_head(b, TSRI_WIRE_PING, id, 0);
}

/* Whether somebody else is served. */
static bool others_are_served(struct server_kit *s)
{
    struct wire_client c;
    struct tsri_request r = {.type = TSRI_WIRE_PING};
    bool ok = wc_open(&c, s->path, 0) && wc_call(&c, &r) == 0;
    wc_close(&c);
    return ok;
}

TEST(a_request_may_come_in_any_pieces)
{
    struct server_kit s;
    struct wire_client c;
    server_open(&s, NULL);
    CHECK(wc_open(&c, s.path, 0));
    struct tsr_space_desc desc = kit_desc();
    CHECK_INT(wc_space(&c, &desc), 0);
    /* A lookup of 5000 tokens, and a ping behind it. */
    uint32_t *tokens = kit_tokens(3, 5000);
    struct tsri_request r = {.type = TSRI_WIRE_LOOKUP};
    uint32_t space = 0;
    r.lookup = (struct tsri_wire_lookup){.n_spaces = 1, .matches_max = 4, .spaces = &space};
    r.prompt = kit_prefix_prompt(tokens, 5000);
    size_t bytes;
    CHECK_INT(tsri_request_bytes(&r, &bytes), 0);
    uint8_t *frames = malloc(bytes + 24);
    tsri_request_encode(&r, 1, 0, frames, bytes);
    struct wire_bytes b;
    ping(&b, 2);
    memcpy(frames + bytes, b.data, 24);
    const size_t pieces[] = {1, 7, 8, 23, 24, 25, 4096, 10000, bytes, bytes + 1, bytes + 24};
    for (size_t i = 0; i < TSRI_COUNT(pieces); i++) {
        for (size_t at = 0; at < bytes + 24; at += pieces[i]) {
            size_t n = bytes + 24 - at < pieces[i] ? bytes + 24 - at : pieces[i];
            CHECK(wc_send_bytes(&c, frames + at, n));
            if (pieces[i] < 24 && at > 200) break; /* the rest at once: it takes long enough */
        }
        if (pieces[i] < 24) {
            size_t done = (200 / pieces[i] + 2) * pieces[i];
            CHECK(wc_send_bytes(&c, frames + done, bytes + 24 - done));
        }
        CHECK(wc_receive(&c));
        CHECK(c.head.id == 1 && c.reply.status == 0);
        CHECK(wc_receive(&c));
        CHECK(c.head.id == 2 && c.reply.status == 0);
    }
    free(frames);
    free(tokens);
    wc_close(&c);
    CHECK(server_end(&s));
}

TEST(many_requests_may_wait_for_their_replies)
{
    struct server_kit s;
    struct wire_client c;
    server_open(&s, NULL);
    CHECK(wc_open(&c, s.path, 0));
    enum { N = 20000 };
    uint8_t *frames = malloc(N * 24);
    struct wire_bytes b;
    for (uint64_t i = 0; i < N; i++) {
        ping(&b, i);
        memcpy(frames + i * 24, b.data, 24);
    }
    size_t at = 0;
    uint64_t next = 0;
    while (next < N) { /* as much as goes, then one reply */
        while (at < N * 24) {
            ssize_t sent = tsri_socket_send_fds(c.fd, frames + at, N * 24 - at, NULL, 0);
            if (sent < 0) break;
            at += (size_t)sent;
        }
        CHECK(wc_receive(&c));
        CHECK(c.head.id == next);
        next++;
    }
    free(frames);
    wc_close(&c);
    CHECK(server_end(&s));
}

TEST(what_is_no_protocol_ends_the_connection)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                        "TSRWTSRWTSRWTSRWTSRWTSRW",
                                        "and a line of text that is long enough\n"};
    struct server_kit s;
    server_open(&s, NULL);
    for (size_t i = 0; i < TSRI_COUNT(texts); i++) {
        struct wire_client c;
        CHECK(wc_connect(&c, s.path));
        CHECK(wc_send_bytes(&c, texts[i], strlen(texts[i])));
        CHECK(wc_ends(&c));
        wc_close(&c);
        CHECK(wc_open(&c, s.path, 0)); /* after hello */
        CHECK(wc_send_bytes(&c, texts[i], strlen(texts[i])));
        CHECK(wc_ends(&c));
        wc_close(&c);
    }
    CHECK(others_are_served(&s));
    CHECK(server_end(&s));
}

TEST(random_bytes_behind_a_good_head_do_no_harm)
{
    struct server_kit s;
    uint64_t seed = 77;
    server_open(&s, NULL);
    struct wire_client c = {.fd = -1};
    for (int i = 0; i < 3000; i++) {
        if (c.fd < 0) CHECK(wc_open(&c, s.path, i % 2 ? 4096 : 0));
        struct wire_bytes b;
        uint16_t type = (uint16_t)(2 + test_rand(&seed) % 25);
        wb_head(&b, type, 9, 0);
        size_t n = (test_rand(&seed) % 40) * 8;
        for (size_t k = 0; k < n; k++) /* mostly small numbers */
            b.data[b.n++] = test_rand(&seed) % 4 ? 0 : (uint8_t)(test_rand(&seed) % 5);
        wb_end(&b);
        CHECK(wc_send_bytes(&c, b.data, b.n));
        CHECK(wc_receive(&c));
        CHECK_INT(c.head.id, 9);
        if (i % 100 == 99) wc_close(&c);
    }
    wc_close(&c);
    CHECK(others_are_served(&s));
    tsr_cache_freeze(s.k.cache, 0); /* one of them may have been that */
    CHECK(server_end(&s));
}

TEST(a_body_that_is_too_long_is_skipped_and_answered)
{
    struct server_kit s;
    struct wire_client c;
    server_open(&s, NULL);
    CHECK(wc_open(&c, s.path, 0));
    struct wire_bytes b;
    uint64_t body = (uint64_t)TSRI_WIRE_BODY_MAX + 8;
    wb_head(&b, TSRI_WIRE_LOOKUP, 3, 0);
    b.n = 16;
    wb_u32(&b, body);
    b.n = 24;
    CHECK(wc_send_bytes(&c, b.data, 24));
    static uint8_t zeros[1 << 20];
    for (uint64_t left = body; left;) {
        size_t n = left < sizeof zeros ? (size_t)left : sizeof zeros;
        CHECK(wc_send_bytes(&c, zeros, n));
        left -= n;
    }
    CHECK(wc_receive(&c));
    CHECK(c.head.id == 3);
    CHECK_INT(c.reply.status, TSR_ERANGE);
    struct tsri_request r = {.type = TSRI_WIRE_PING};
    CHECK_INT(wc_call(&c, &r), 0); /* the stream goes on behind it */
    wc_close(&c);
    CHECK(server_end(&s));
}

/* A session is counted out when it ends, and freed a moment later. */
static void check_holds_nothing(struct server_kit *s)
{
    WAIT_FOR(atomic_load(&s->server->allowance.used) == 0);
}

TEST(when_memory_for_requests_is_used_up_only_who_asks_for_more_is_refused)
{
    struct server_kit s;
    struct wire_client hog, c;
    server_open(&s, (const char *const[]){"server_memory", "1M", NULL});
    CHECK(wc_open(&hog, s.path, 0) && wc_open(&c, s.path, 0));
    /* Most of a request of 600 KB, and no more of it. */
    struct wire_bytes b;
    wb_head(&b, TSRI_WIRE_CONTAINS, 3, 0);
    b.n = 16;
    wb_u32(&b, 600 * 1024);
    b.n = 24;
    static uint8_t zeros[600 * 1024];
    CHECK(wc_send_bytes(&hog, b.data, 24) && wc_send_bytes(&hog, zeros, 500 * 1024));
    /* How much room there is ahead of what has come depends on the pieces it came in. */
    WAIT_FOR(atomic_load(&s.server->allowance.used) >= 500 * 1024);
    /* A second one cannot be kept; it is read over. */
    CHECK(wc_send_bytes(&c, b.data, 24) && wc_send_bytes(&c, zeros, 600 * 1024));
    CHECK(wc_receive(&c));
    CHECK_INT(c.reply.status, TSR_EAGAIN);
    struct tsri_request r = {.type = TSRI_WIRE_PING};
    CHECK_INT(wc_call(&c, &r), 0);
    CHECK(others_are_served(&s));
    /* The first one goes on when it likes. */
    CHECK(wc_send_bytes(&hog, zeros, 100 * 1024));
    CHECK(wc_receive(&hog));
    CHECK_INT(hog.reply.status, TSR_EINVAL);
    wc_close(&hog), wc_close(&c);
    CHECK(server_wait_sessions(&s, 0));
    check_holds_nothing(&s);
    CHECK(server_end(&s));
}

/* A head of 64 MB costs what has come of it, from however many. */
TEST(what_a_request_announces_costs_nothing_until_it_comes)
{
    enum { N = 20 };
    struct server_kit s;
    static struct wire_client c[N];
    struct wire_bytes b;
    server_open(&s, NULL);
    wb_head(&b, TSRI_WIRE_LOOKUP, 3, 0);
    b.n = 16;
    wb_u32(&b, TSRI_WIRE_BODY_MAX);
    b.n = 24;
    static uint8_t some[1300];
    for (int i = 0; i < N; i++) {
        CHECK(wc_open(&c[i], s.path, 0));
        CHECK(wc_send_bytes(&c[i], b.data, 24) && wc_send_bytes(&c[i], some, sizeof some));
    }
    CHECK(others_are_served(&s));
    CHECK(atomic_load(&s.server->allowance.used) <= N * 16384);
    for (int i = 0; i < N; i++)
        wc_close(&c[i]);
    CHECK(server_wait_sessions(&s, 0));
    check_holds_nothing(&s);
    CHECK(server_end(&s));
}

/* Sessions of one tenant hold all they can get; small requests of others, and of newcomers, are
 * still taken and answered. */
TEST(whatever_others_hold_small_requests_are_answered)
{
    enum { N = 12 };
    struct server_kit s;
    static struct wire_client hogs[N];
    struct wire_client c;
    struct wire_bytes b;
    static uint8_t zeros[400 * 1024];
    server_open(&s, (const char *const[]){"server_memory", "1M", NULL});
    CHECK(wc_open(&c, s.path, 0));
    wb_head(&b, TSRI_WIRE_CONTAINS, 3, 0);
    for (size_t i = 0, bytes = sizeof zeros; i<N; i++, bytes = bytes> 8192 ? bytes / 2 : bytes) {
        CHECK(wc_open(&hogs[i], s.path, 0));
        b.n = 16;
        wb_u32(&b, (uint32_t)bytes / 8 * 8);
        CHECK(wc_send_bytes(&hogs[i], b.data, 24) && wc_send_bytes(&hogs[i], zeros, bytes - 256));
    }
    CHECK(others_are_served(&s));
    struct tsri_request r = {.type = TSRI_WIRE_STATS, .value = TSRI_WIRE_STATS_NUMBERS};
    CHECK_INT(wc_call(&c, &r), 0);
    /* Nor does it matter that a request comes in pieces. */
    wb_head(&b, TSRI_WIRE_PING, 9, 0);
    wb_end(&b);
    CHECK(wc_send_bytes(&c, b.data, 10));
    CHECK(others_are_served(&s));
    CHECK(wc_send_bytes(&c, b.data + 10, b.n - 10) && wc_receive(&c));
    CHECK_INT(c.reply.status, 0);
    for (int i = 0; i < N; i++)
        wc_close(&hogs[i]);
    wc_close(&c);
    CHECK(server_wait_sessions(&s, 0));
    check_holds_nothing(&s);
    CHECK(server_end(&s));
}

/* Sends a request that asks for some 20 KB, until even the sockets are full; how often. */
static uint64_t ask_and_do_not_listen(struct wire_client *c)
{
    struct wire_bytes b;
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    wb_head(&b, TSRI_WIRE_STATS, 1, 0);
    wb_u32(&b, TSRI_WIRE_STATS_PROMETHEUS), wb_u32(&b, 0);
    wb_end(&b);
    for (uint64_t n = 0;;) {
        ssize_t sent = tsri_socket_send_fds(c->fd, b.data, b.n, NULL, 0);
        if (sent == (ssize_t)b.n)
            n++;
        else if (sent >= 0 || errno != EAGAIN || poll(&p, 1, 300) <= 0)
            return n;
    }
}

TEST(who_does_not_read_is_not_listened_to_and_costs_little)
{
    struct server_kit s;
    struct wire_client c;
    server_open(&s, NULL);
    CHECK(wc_open(&c, s.path, 0));
    uint64_t n_sent = ask_and_do_not_listen(&c);
    CHECK(n_sent > 100);
    CHECK(atomic_load(&s.server->allowance.used) < (2u << 20));
    CHECK(others_are_served(&s));
    /* When it reads after all it gets everything. */
    for (uint64_t i = 0; i < n_sent; i++) {
        CHECK(wc_receive(&c));
        CHECK_INT(c.reply.status, 0);
    }
    CHECK(server_wait_sessions(&s, 1));
    wc_close(&c);
    CHECK(server_end(&s));
}

TEST(who_stands_still_for_too_long_is_ended)
{
    struct server_kit s;
    struct wire_client half, deaf, fine;
    struct wire_bytes b;
    server_open(&s, NULL);
    CHECK(wc_open(&half, s.path, 0) && wc_open(&deaf, s.path, 0) && wc_open(&fine, s.path, 0));
    atomic_store(&s.server->stall_ns, 300000000);
    wb_head(&b, TSRI_WIRE_STATS, 1, 0);
    wb_u32(&b, TSRI_WIRE_STATS_PROMETHEUS), wb_u32(&b, 0);
    wb_end(&b);
    CHECK(wc_send_bytes(&half, b.data, b.n - 1));
    CHECK(ask_and_do_not_listen(&deaf) > 100);
    CHECK(server_wait_sessions(&s, 1));
    CHECK(wc_ends(&half) && wc_ends(&deaf));
    struct tsri_request r = {.type = TSRI_WIRE_PING};
    CHECK_INT(wc_call(&fine, &r), 0);
    wc_close(&half), wc_close(&deaf), wc_close(&fine);
    CHECK(server_end(&s));
}

/* Who asks ten thousand things at once has them answered in turns with others. */
TEST(a_flood_of_requests_leaves_turns_for_others)
{
    enum { N = 20000 };
    struct server_kit s;
    struct wire_client flood, other;
    server_open(&s, NULL);
    CHECK(wc_open(&flood, s.path, 0) && wc_open(&other, s.path, 0));
    struct wire_bytes one;
    uint8_t *all = malloc(N * 24);
    for (uint64_t i = 0; i < N; i++) {
        wb_head(&one, TSRI_WIRE_PING, i, 0);
        wb_end(&one);
        memcpy(all + i * 24, one.data, 24);
    }
    CHECK_INT(one.n, 24);
    pid_t pid = fork(); /* one sends, one reads: neither side's buffers hold them all */
    if (pid == 0) _exit(wc_send_bytes(&flood, all, N * 24) ? 0 : 1);
    struct tsri_request ping = {.type = TSRI_WIRE_PING};
    for (uint64_t i = 0; i < N; i++) {
        CHECK(wc_receive(&flood));
        CHECK_INT(flood.head.id, i); /* none is lost, none overtakes */
        if (i % 1000 == 0) CHECK_INT(wc_call(&other, &ping), 0);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    free(all);
    wc_close(&flood), wc_close(&other);
    CHECK(server_end(&s));
}

/* Drop by drop it would never stand still, and keep memory that others need. */
TEST(a_request_that_does_not_come_to_its_end_is_cut_off)
{
    struct server_kit s;
    struct wire_client drip, silent, fine;
    struct wire_bytes b;
    server_open(&s, NULL);
    CHECK(wc_open(&drip, s.path, 0) && wc_connect(&silent, s.path) && wc_open(&fine, s.path, 0));
    atomic_store(&s.server->stall_ns, 300000000);
    wb_head(&b, TSRI_WIRE_PREFETCH, 1, 0);
    b.n = 16;
    wb_u32(&b, 32u << 20); /* says that so much will come */
    b.n = 24;
    CHECK(wc_send_bytes(&drip, b.data, b.n));
    uint64_t start = tsri_now_ns();
    bool cut = false;
    while (!cut && tsri_now_ns() - start < 10000000000u) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        cut = !wc_send_bytes(&drip, "x", 1);
    }
    CHECK(cut);
    CHECK(tsri_now_ns() - start > TSRI_FRAME_STALLS * 300000000ull / 2);
    CHECK(wc_ends(&silent)); /* nor is a place kept for who does not even say hello */
    struct tsri_request r = {.type = TSRI_WIRE_PING};
    CHECK_INT(wc_call(&fine, &r), 0);
    CHECK(server_wait_sessions(&s, 1));
    CHECK(atomic_load(&s.server->allowance.used) <
          65536); /* none of the 32 MB that it had announced */
    wc_close(&drip), wc_close(&silent), wc_close(&fine);
    CHECK(server_end(&s));
}

/* Requests that wait until there is room for their replies have come whole: however long that
 * takes, they are not half a request. */
TEST(requests_that_wait_for_room_are_not_half_a_request)
{
    struct server_kit s;
    struct wire_bytes b;
    server_open(&s, NULL);
    struct tsri_session x = {.server = s.server, .state = TSRI_SESSION_OPEN, .fd = -1};
    wb_head(&b, TSRI_WIRE_PING, 1, 0);
    wb_end(&b);
    x.in = (struct tsri_pending_bytes){.data = b.data, .end = b.n, .room = b.n, .since_ns = 1000};
    tsri_session_check(&x, 1001 + TSRI_STALL_NS);
    CHECK(x.state == TSRI_SESSION_OPEN);
    CHECK(server_end(&s));
}

TEST(a_connection_that_says_nothing_costs_nothing)
{
    struct server_kit s;
    struct wire_client c[50];
    server_open(&s, NULL);
    for (int i = 0; i < 50; i++)
        CHECK(wc_connect(&c[i], s.path));
    CHECK(server_wait_sessions(&s, 50));
    check_holds_nothing(&s);
    CHECK(others_are_served(&s));
    for (int i = 0; i < 50; i++)
        wc_close(&c[i]);
    CHECK(server_wait_sessions(&s, 0));
    CHECK(server_end(&s));
}

int main(void)
{
    RUN(a_request_may_come_in_any_pieces);
    RUN(many_requests_may_wait_for_their_replies);
    RUN(what_is_no_protocol_ends_the_connection);
    RUN(random_bytes_behind_a_good_head_do_no_harm);
    RUN(a_body_that_is_too_long_is_skipped_and_answered);
    RUN(when_memory_for_requests_is_used_up_only_who_asks_for_more_is_refused);
    RUN(what_a_request_announces_costs_nothing_until_it_comes);
    RUN(whatever_others_hold_small_requests_are_answered);
    RUN(who_does_not_read_is_not_listened_to_and_costs_little);
    RUN(who_stands_still_for_too_long_is_ended);
    RUN(a_flood_of_requests_leaves_turns_for_others);
    RUN(a_request_that_does_not_come_to_its_end_is_cut_off);
    RUN(requests_that_wait_for_room_are_not_half_a_request);
    RUN(a_connection_that_says_nothing_costs_nothing);
    return test_end();
}
