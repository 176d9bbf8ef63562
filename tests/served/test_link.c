/* test_link.c - a client's connection against a server that a test plays by hand: late, in another
 * order, half, wrong, or gone. */
#include "served/link.h"

#include "support/test.h"
#include "support/tmpdir.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SOON 10000000000u /* ten seconds, in which everything should have happened */

/* The other end. */
struct peer {
    struct tmpdir dir;
    char path[TSRI_SOCKET_PATH_BYTES];
    int listen_fd, fd;
    struct tsri_region pool, control;
    uint64_t word;
};

static uint64_t in_ms(uint32_t ms)
{
    return tsri_now_ns() + (uint64_t)ms * 1000000;
}

static void peer_open(struct peer *p)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    *p = (struct peer){.fd = -1, .word = 41};
    tmpdir_init(&p->dir);
    snprintf(p->path, sizeof p->path, "%.80s/sock", p->dir.path);
    memcpy(at.sun_path, p->path, strlen(p->path) + 1);
    p->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(p->listen_fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(p->listen_fd, 8) != 0 ||
        tsri_region_init_shared(&p->pool, "test-pool", 1 << 20) != 0 ||
        tsri_region_init_shared(&p->control, "test-control", 4096) != 0)
        sandbox_stop();
}

static void peer_close(struct peer *p)
{
    if (p->fd >= 0) close(p->fd);
    close(p->listen_fd);
    tsri_region_fini(&p->pool);
    tsri_region_fini(&p->control);
    tmpdir_fini(&p->dir);
}

/* The head of the next request; its body is read over. False when there is none in time. */
static bool peer_receive(struct peer *p, struct tsri_wire_head *head)
{
    uint8_t frame[TSRI_WIRE_HEAD_BYTES], body[4096];
    struct pollfd wait = {.fd = p->fd, .events = POLLIN};
    if (poll(&wait, 1, 5000) <= 0) return false;
    if (recv(p->fd, frame, sizeof frame, MSG_WAITALL) != sizeof frame) return false;
    if (tsri_wire_head_get(frame, head) != 0 || head->body_bytes > sizeof body) return false;
    return head->body_bytes == 0 ||
           recv(p->fd, body, head->body_bytes, MSG_WAITALL) == (ssize_t)head->body_bytes;
}

static size_t make_reply(struct tsri_reply *r, uint64_t id, uint8_t *frame)
{
    size_t bytes;
    if (tsri_reply_bytes(r, &bytes) != 0 || bytes > 4096) abort();
    tsri_reply_encode(r, id, frame, bytes);
    return bytes;
}

static bool peer_answer(struct peer *p, uint16_t type, uint64_t id, int32_t status)
{
    uint8_t frame[4096];
    struct tsri_reply r = {.type = type, .status = status};
    size_t bytes = make_reply(&r, id, frame);
    return send(p->fd, frame, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Takes the next connection and welcomes it, with a slot that may be out of bounds. */
static bool peer_welcome(struct peer *p, uint32_t slot)
{
    struct tsri_wire_head head;
    uint8_t frame[4096];
    struct pollfd wait = {.fd = p->listen_fd, .events = POLLIN};
    if (p->fd >= 0) close(p->fd);
    p->fd = poll(&wait, 1, 5000) > 0 ? accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (p->fd < 0 || !peer_receive(p, &head) || head.type != TSRI_WIRE_HELLO) return false;
    struct tsri_reply r = {.type = TSRI_WIRE_HELLO,
                           .welcome = {.version = 1,
                                       .slot = slot,
                                       .word = ++p->word,
                                       .pool_bytes = 1 << 20,
                                       .control_bytes = 4096,
                                       .page_bytes = 4096}};
    ((_Atomic uint64_t *)(void *)p->control.data)[3] = p->word;
    int fds[2] = {p->pool.fd, p->control.fd};
    size_t bytes = make_reply(&r, head.id, frame);
    return tsri_socket_send_fds(p->fd, frame, bytes, fds, 2) == (ssize_t)bytes;
}

static struct tsri_link *link_open(struct peer *p, uint32_t patience_ms)
{
    struct tsri_link *l;
    struct tsri_link_desc desc = {.path = p->path, .token = "", .patience_ms = patience_ms};
    if (tsri_link_open(&l, &desc) != 0) sandbox_stop();
    return l;
}

/* Opens a session; its number. */
static uint64_t meet(struct tsri_link *l, struct peer *p)
{
    for (int i = 0; i < 500 && !tsri_link_session(l); i++) {
        struct pollfd wait = {.fd = p->listen_fd, .events = POLLIN};
        if (poll(&wait, 1, 10) > 0 && !peer_welcome(p, 3)) return 0;
    }
    return tsri_link_session(l);
}

static struct tsri_answer *ping(struct tsri_link *l, uint64_t session)
{
    struct tsri_request q = {.type = TSRI_WIRE_PING};
    struct tsri_answer *a;
    return tsri_link_start(l, session, &q, tsri_now_ns() + SOON, &a) == 0 ? a : NULL;
}

TEST(answers_in_another_order_reach_who_waits_for_them)
{
    struct peer p;
    struct tsri_wire_head heads[3];
    struct tsri_answer *a[3];
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 10000);
    uint64_t session = meet(l, &p);
    CHECK(session != 0);
    for (int i = 0; i < 3; i++) {
        a[i] = ping(l, session);
        CHECK(a[i] && peer_receive(&p, &heads[i]));
    }
    for (int i = 3; i-- > 0;)
        CHECK(peer_answer(&p, TSRI_WIRE_PING, heads[i].id, 100 + i));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(tsri_link_wait(a[i], tsri_now_ns() + SOON), 100 + i);
        tsri_link_end(a[i]);
    }
    tsri_link_close(l);
    peer_close(&p);
}

TEST(while_an_answer_is_late_nobody_else_waits)
{
    struct peer p;
    struct tsri_wire_head first, second;
    struct tsri_request q = {.type = TSRI_WIRE_PING};
    struct tsri_answer *a;
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 10000);
    uint64_t session = meet(l, &p);
    a = ping(l, session);
    CHECK(a != NULL);
    uint64_t start = tsri_now_ns();
    CHECK_INT(tsri_link_wait(a, in_ms(30)), TSR_ETIME);
    CHECK(tsri_now_ns() - start >= 25000000);
    tsri_link_end(a);
    CHECK_INT(tsri_link_start(l, session, &q, in_ms(5000), &a), TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), "missed the deadline");
    CHECK(a == NULL);
    tsri_link_tell(l, session, &q); /* what nobody waits for may go */
    CHECK(peer_receive(&p, &first) && peer_receive(&p, &second));
    CHECK_INT(second.status, TSRI_WIRE_QUIET);
    CHECK(peer_answer(&p, TSRI_WIRE_PING, first.id, 1));
    a = ping(l, session); /* it has come: the connection is as good as new */
    CHECK(a && peer_receive(&p, &first) && peer_answer(&p, TSRI_WIRE_PING, first.id, 2));
    CHECK_INT(tsri_link_wait(a, tsri_now_ns() + SOON), 2);
    tsri_link_end(a);
    tsri_link_close(l);
    peer_close(&p);
}

TEST(a_late_answer_that_is_kept_can_be_taken_when_it_comes)
{
    struct peer p;
    struct tsri_wire_head head;
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 60000);
    uint64_t session = meet(l, &p);
    struct tsri_answer *a = ping(l, session);
    CHECK(a && peer_receive(&p, &head));
    CHECK_INT(tsri_link_wait(a, in_ms(5)), TSR_ETIME);
    CHECK_INT(tsri_link_check(l, session), TSR_EAGAIN);
    CHECK_INT(tsri_link_wait(a, in_ms(5)),
              TSR_ETIME); /* it is late once, however often waited for */
    CHECK(peer_answer(&p, TSRI_WIRE_PING, head.id, 3));
    WAIT_FOR(tsri_link_check(l, session) == 0);
    CHECK_INT(tsri_link_wait(a, 0), 3);
    tsri_link_end(a);
    CHECK_INT(tsri_link_check(l, session), 0);
    a = ping(l, session);
    CHECK(a && peer_receive(&p, &head));
    CHECK_INT(tsri_link_wait(a, in_ms(5)), TSR_ETIME);
    tsri_link_drop(l, session, "the test wants it");
    CHECK_INT(tsri_link_wait(a, 0), TSR_EAGAIN); /* lost with its session */
    tsri_link_end(a);
    session = meet(l, &p);
    CHECK_INT(tsri_link_check(l, session), 0);
    tsri_link_close(l);
    peer_close(&p);
}

TEST(one_that_stays_silent_is_given_up_and_met_again)
{
    struct peer p;
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 50);
    uint64_t session = meet(l, &p);
    struct tsri_answer *a = ping(l, session);
    CHECK(a != NULL);
    CHECK_INT(tsri_link_wait(a, in_ms(10)), TSR_ETIME);
    tsri_link_end(a);
    nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
    CHECK(ping(l, session) == NULL);
    uint64_t next = meet(l, &p);
    CHECK(next > session);
    CHECK(ping(l, session) == NULL); /* numbers of the old session mean nothing in the new one */
    CHECK(tsri_link_mapping(l, session) == NULL);
    tsri_link_close(l);
    peer_close(&p);
}

TEST(whatever_it_sends_instead_of_an_answer_loses_the_call_alone)
{
    struct peer p;
    struct tsri_wire_head head;
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 10000);
    for (int how = 0; how < 4; how++) {
        uint64_t session = meet(l, &p);
        CHECK(session != 0);
        struct tsri_answer *a = ping(l, session);
        CHECK(a && peer_receive(&p, &head));
        uint8_t frame[4096] = {0};
        struct tsri_reply r = {.type = how == 3 ? TSRI_WIRE_KEYS : TSRI_WIRE_PING};
        size_t bytes = make_reply(&r, head.id, frame);
        if (how == 0) bytes = 100, memset(frame, 'x', bytes); /* no frame */
        if (how == 1) bytes = 11;                             /* half a head, and the end */
        if (how == 2) bytes = 0;                              /* the end */
        CHECK(send(p.fd, frame, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
        if (how < 3) shutdown(p.fd, SHUT_RDWR); /* else it is the answer to something else */
        int n = tsri_link_wait(a, tsri_now_ns() + SOON);
        CHECK_INT(n, TSR_EAGAIN);
        tsri_link_end(a);
    }
    tsri_link_close(l);
    peer_close(&p);
}

TEST(a_welcome_that_makes_no_sense_is_refused)
{
    struct peer p;
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 10000);
    CHECK(tsri_link_session(l) == 0); /* knocks */
    CHECK(peer_welcome(&p, 512));     /* beyond the control page */
    CHECK_INT(tsri_link_await(l, tsri_now_ns() + SOON), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "invalid welcome");
    CHECK(tsri_link_session(l) == 0);
    tsri_link_close(l);
    peer_close(&p);
}

TEST(a_mapping_outlives_its_session_and_tells_that_it_is_over)
{
    struct peer p;
    peer_open(&p);
    memset(p.pool.data, 7, 100);
    struct tsri_link *l = link_open(&p, 10000);
    uint64_t session = meet(l, &p);
    struct tsri_mapping *m = tsri_link_mapping(l, session);
    CHECK(m && m->pool->region.bytes == 1 << 20 && m->pool->region.data[99] == 7);
    CHECK(tsri_mapping_holds(m));
    atomic_store(&((_Atomic uint64_t *)(void *)p.control.data)[3], 0);
    CHECK(!tsri_mapping_holds(m));
    tsri_link_close(l);
    CHECK(m->pool->region.data[99] == 7);
    tsri_mapping_release(m);
    tsri_mapping_release(NULL);
    peer_close(&p);
}

/* A server may still copy out of the staging area of a session that is over. */
TEST(every_session_has_a_staging_area_of_its_own)
{
    struct peer p;
    struct tsri_link *l;
    peer_open(&p);
    struct tsri_link_desc desc = {
        .path = p.path, .token = "", .patience_ms = 1000, .staging_bytes = 1 << 20};
    CHECK_INT(tsri_link_open(&l, &desc), 0);
    uint64_t first = meet(l, &p);
    struct tsri_mapping *before = tsri_link_mapping(l, first);
    CHECK(before && before->staging->region.bytes >= 1 << 20);
    CHECK_INT(tsri_link_check(l, first), 0);
    before->staging->region.data[0] = 7;
    close(p.fd);
    p.fd = -1;
    struct tsri_answer *lost = ping(l, first);
    if (lost) CHECK_INT(tsri_link_wait(lost, in_ms(5000)), TSR_EAGAIN);
    tsri_link_end(lost);
    uint64_t second = meet(l, &p);
    CHECK(second && second != first);
    CHECK_INT(tsri_link_check(l, first), TSR_EAGAIN);
    CHECK_INT(tsri_link_check(l, second), 0);
    struct tsri_mapping *after = tsri_link_mapping(l, second);
    CHECK(after && after->staging->region.bytes >= 1 << 20);
    after->staging->region.data[0] = 9;
    CHECK_INT(before->staging->region.data[0], 7);
    /* Nor is it written to while an answer is late. */
    struct tsri_answer *late = ping(l, second);
    CHECK_INT(tsri_link_wait(late, in_ms(10)), TSR_ETIME);
    tsri_link_end(late);
    CHECK_INT(tsri_link_check(l, second), TSR_EAGAIN);
    tsri_mapping_release(before);
    tsri_mapping_release(after);
    tsri_link_close(l);
    peer_close(&p);
}

TEST(nobody_there_is_no_session_and_no_wait)
{
    struct tsri_link *l;
    struct tsri_link_desc desc = {
        .path = "/nowhere/at/all.sock", .token = "", .patience_ms = 10000};
    CHECK_INT(tsri_link_open(&l, &desc), 0);
    CHECK(tsri_link_session(l) == 0);
    CHECK_HAS(tsr_errmsg(), "/nowhere/at/all.sock");
    CHECK_INT(tsri_link_await(l, in_ms(20)), TSR_EAGAIN);
    tsri_link_close(l);
    tsri_link_close(NULL);
    char long_token[300];
    memset(long_token, 'x', sizeof long_token);
    long_token[299] = 0;
    desc.token = long_token;
    CHECK_INT(tsri_link_open(&l, &desc), TSR_ERANGE);
}

/* ---- threads ---- */

struct asker {
    pthread_t thread;
    struct tsri_link *link;
    uint64_t session;
    int n_right;
};

static void *ask_often(void *arg)
{
    struct asker *x = arg;
    struct tsri_request q;
    for (uint32_t i = 0; i < 50; i++) {
        struct tsri_answer *a;
        memset(&q, 0, offsetof(struct tsri_request, extra));
        q.type = TSRI_WIRE_EVICT;
        if (tsri_link_start(x->link, x->session, &q, tsri_now_ns() + SOON, &a) != 0) break;
        x->n_right += tsri_link_wait(a, tsri_now_ns() + SOON) == 5;
        tsri_link_end(a);
    }
    return NULL;
}

static void *answer_all(void *arg)
{
    struct peer *p = arg;
    struct tsri_wire_head head;
    for (int i = 0; i < 8 * 50; i++)
        if (!peer_receive(p, &head) || !peer_answer(p, TSRI_WIRE_EVICT, head.id, 5)) break;
    return NULL;
}

/* Sends more than a socket holds. */
static void *send_much(void *arg)
{
    struct asker *x = arg;
    struct tsr_prompt prompt = {.size = sizeof prompt, .n_tokens = 8u << 20};
    uint32_t *tokens = calloc(prompt.n_tokens, sizeof *tokens);
    struct tsri_request q = {.type = TSRI_WIRE_KEYS, .prompt = prompt, .n = 1};
    struct tsri_answer *a;
    q.prompt.tokens = tokens;
    x->n_right = tsri_link_start(x->link, x->session, &q, in_ms(600000), &a);
    free(tokens);
    return NULL;
}

TEST(what_cannot_be_told_ends_the_session)
{
    struct peer p;
    struct tsri_request q = {.type = TSRI_WIRE_PING};
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 100);
    struct asker x = {.link = l, .session = meet(l, &p)};
    CHECK(pthread_create(&x.thread, NULL, send_much, &x) == 0);
    struct pollfd begun = {.fd = p.fd, .events = POLLIN};
    CHECK(poll(&begun, 1, 60000) == 1);
    tsri_link_tell(l, x.session, &q); /* its turn to send does not come */
    CHECK_INT(tsri_link_check(l, x.session), TSR_EAGAIN);
    pthread_join(x.thread, NULL);
    CHECK_INT(x.n_right, TSR_EAGAIN);
    tsri_link_tell(l, x.session, &q); /* of a session that is over: nothing to let go of */
    tsri_link_close(l);
    peer_close(&p);
}

TEST(many_threads_share_a_connection)
{
    struct peer p;
    struct asker askers[8];
    pthread_t peer;
    peer_open(&p);
    struct tsri_link *l = link_open(&p, 10000);
    uint64_t session = meet(l, &p);
    CHECK(pthread_create(&peer, NULL, answer_all, &p) == 0);
    for (int i = 0; i < 8; i++) {
        askers[i] = (struct asker){.link = l, .session = session};
        CHECK(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]) == 0);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(askers[i].thread, NULL);
    pthread_join(peer, NULL);
    for (int i = 0; i < 8; i++)
        CHECK_INT(askers[i].n_right, 50);
    tsri_link_close(l);
    peer_close(&p);
}

int main(void)
{
    RUN(answers_in_another_order_reach_who_waits_for_them);
    RUN(while_an_answer_is_late_nobody_else_waits);
    RUN(a_late_answer_that_is_kept_can_be_taken_when_it_comes);
    RUN(one_that_stays_silent_is_given_up_and_met_again);
    RUN(whatever_it_sends_instead_of_an_answer_loses_the_call_alone);
    RUN(a_welcome_that_makes_no_sense_is_refused);
    RUN(a_mapping_outlives_its_session_and_tells_that_it_is_over);
    RUN(every_session_has_a_staging_area_of_its_own);
    RUN(nobody_there_is_no_session_and_no_wait);
    RUN(what_cannot_be_told_ends_the_session);
    RUN(many_threads_share_a_connection);
    return test_end();
}
